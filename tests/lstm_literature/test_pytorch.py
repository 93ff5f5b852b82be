"""The PyTorch, ONNX Runtime and TensorRT implementations of the literature's workloads, at small sizes on the CPU.

The reference is computed here in numpy from the formulas: the LSTM with gate order i, f, g, o
and two bias vectors, cross-entropy, CTC's forward recursion, SGD and Adam.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lstm_literature import implementations
from lstm_literature.data import make_batch
from lstm_literature.implementations.on_onnxruntime import export_workload
from lstm_literature.workloads import WORKLOADS
from lstm_onnx.evaluate import recurrent_outputs
from lstm_trt.config import errors
from lstm_trt.config.configuration import Options
from lstm_trt.export import onnx_checks
from lstm_trt.export.tensorrt import build, trt as export_trt
from lstm_trt.export.to_onnx import INPUT, OUTPUT
from lstm_trt.runtimes.base import Availability, Request
from lstm_trt.runtimes.cuda._tensorrt import TensorRtRuntime
from tests.conftest import rest_is_heavy, sampled
from tests.support import framework_checks as checks
from tests.support.framework_checks import (
    Reference,
    apart,
    given,
    one_thread_for_the_reference,  # noqa: F401
    prepared,
    reference_outputs,
    tiny,
)
from tests.support.network_in_numpy import evaluate, parse

STYLES = ("basic", "fine-grained", "fused", "one-call")
QUICK = [f"pytorch-{style}-{execution}" for style in STYLES for execution in ("eager", "scripted")]
EAGER_FIRST = rest_is_heavy(QUICK, lambda name: name.endswith("eager"))
needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++").split()[0]) is None, reason="torch.compile needs a C++ compiler"
)

BIDIRECTIONAL = replace(tiny("speech-bidirectional-ce-long"), modes=("forward",), name="bidirectional")
FORWARD = [*checks.FORWARD.values(), BIDIRECTIONAL]
#: Of two layers, since the second one reads what the first one writes at padding.
CTC = tiny("speech-ctc-long", layers=2)
TRAINING = [CTC if name == CTC.name else tiny(name) for name in WORKLOADS if "training" in WORKLOADS[name].modes]
label = {"ids": lambda workload: workload.name}


def onnx_order(array: np.ndarray) -> np.ndarray:
    """Gates i, f, g, o of PyTorch in the order of ONNX."""
    i, f, g, o = np.split(array, 4)
    return np.concatenate([i, o, f, g])


def lstm_in_numpy(workload, weights, batch):
    """Outputs of the network in float64; zero beyond a sequence's length."""
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    lengths = batch.lengths if batch.lengths is not None else np.full(workload.batch, workload.sequence)
    read = weights["embedding.weight"][batch.inputs] if workload.vocabulary else batch.inputs.astype(np.float64)
    for layer in range(workload.layers):
        names = [f"l{layer}{suffix}" for suffix in ("", "_reverse")[: workload.directions]]
        w, r = (
            np.stack([onnx_order(weights[f"lstm.{part}_{name}"]) for name in names])
            for part in ("weight_ih", "weight_hh")
        )
        biases = (
            np.concatenate([onnx_order(weights[f"lstm.{part}_{name}"]) for part in ("bias_ih", "bias_hh")])
            for name in names
        )
        direction = "bidirectional" if workload.directions == 2 else "forward"
        outputs, *_ = recurrent_outputs("LSTM", (read, w, r, np.stack(list(biases)), lengths), {"direction": direction})
        read = outputs.transpose(0, 2, 1, 3).reshape(workload.sequence, workload.batch, -1)
    if workload.head == "none":
        return read
    outputs = (read[-1] if workload.head == "last-step" else read) @ weights["dense.weight"].T
    return outputs + weights.get("dense.bias", 0)


def loss_in_numpy(workload, outputs, batch):
    logs = outputs - np.log(np.exp(outputs).sum(-1, keepdims=True))
    if workload.loss == "cross-entropy":
        return -np.take_along_axis(logs, batch.targets[..., None], -1).mean()
    losses = []
    for row, labels in enumerate(batch.targets):
        padded = np.zeros(2 * len(labels) + 1, dtype=int)
        padded[1::2] = labels
        ways = np.zeros(len(padded))
        ways[:2] = np.exp(logs[0, row, padded[:2]])
        for step in range(1, batch.lengths[row]):
            more = ways.copy()
            more[1:] += ways[:-1]
            skips = (padded[2:] != 0) & (padded[2:] != padded[:-2])
            more[2:] += ways[:-2] * skips
            ways = more * np.exp(logs[step, row, padded])
        losses.append(-np.log(ways[-2:].sum()) / len(labels))
    return np.mean(losses)


@pytest.mark.parametrize("workload", [*FORWARD, *TRAINING], **label)
def test_the_reference_is_numpys(workload):
    weights, batch = given(workload)
    outputs = lstm_in_numpy(workload, weights, batch)
    assert apart(reference_outputs(workload), outputs) < 1e-5
    if workload in TRAINING:
        loss, _ = Reference(workload, weights).step(batch, update=False)
        assert loss == pytest.approx(loss_in_numpy(workload, outputs, batch), rel=1e-5)


@pytest.mark.parametrize("workload", [tiny("ptb-lm"), CTC], **label)
def test_gradients_of_the_reference_are_differences_of_the_loss(workload):
    """Along a random direction of all weights, in float64 numpy: (f(w + e) - f(w - e)) / 2e."""
    weights, batch = given(workload)
    _, gradients = Reference(workload, weights).step(batch, update=False)
    generator = np.random.default_rng(4)
    along = {name: generator.standard_normal(array.shape) for name, array in weights.items()}

    def loss_at(distance):
        moved = {name: array.astype(np.float64) + distance * along[name] for name, array in weights.items()}
        return loss_in_numpy(workload, lstm_in_numpy(workload, moved, batch), batch)

    slope = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
    assert sum((gradients[name] * along[name]).sum() for name in along) == pytest.approx(slope, rel=1e-4)


def test_the_reference_changes_with_each_gate_bias_and_direction():
    """So an implementation that agrees with it has all of them in their places."""
    weights, _ = given(BIDIRECTIONAL)
    lstm = [name for name in weights if name.startswith("lstm.")]
    biases = [name for name in lstm if "bias_ih" in name]
    # ONNX's i, o, f, g; TensorFlow's older kernels' i, g, f, o; two gates exchanged.
    orders = [(0, 3, 1, 2), (0, 2, 1, 3), (0, 1, 3, 2), (1, 0, 2, 3), (3, 1, 2, 0)]
    changes = [
        {name: np.concatenate([np.split(weights[name], 4)[gate] for gate in order]) for name in lstm}
        for order in orders
    ]
    for first in biases:
        second = first.replace("_ih", "_hh")
        changes += [{name: np.zeros_like(weights[name])} for name in (first, second)]
        changes += [{first: weights[second]}, {second: weights[first]}]
    changes.append({name: weights[name.removesuffix("_reverse")] for name in lstm})
    outputs = reference_outputs(BIDIRECTIONAL)
    for changed in changes:
        assert apart(reference_outputs(BIDIRECTIONAL, weights | changed), outputs) > 1e-3, changed.keys()


def current(task) -> dict[tuple[str, ...], np.ndarray]:
    """The weights, each by its own name."""
    values = {}
    for name, held in task._parameters.items():
        parts = [parameter.detach().numpy() for parameter in held]
        values[name,] = np.concatenate([part.T for part in parts] if len(parts) > 1 else parts)
    return values


@pytest.mark.parametrize("workload", FORWARD, **label)
@pytest.mark.parametrize("name", [*EAGER_FIRST, "onnxruntime"])
def test_outputs_agree(name, workload):
    checks.assert_outputs_agree(name, workload)


@pytest.mark.parametrize("workload", TRAINING, **label)
@pytest.mark.parametrize("name", EAGER_FIRST)
def test_training_agrees_and_the_loss_decreases(name, workload):
    checks.assert_training_agrees(name, workload, current)


def test_the_outputs_are_a_copy():
    for name in ("pytorch-one-call-eager", "pytorch-basic-scripted", "onnxruntime"):
        task = prepared(name, tiny("layer"))
        task.step()
        task.outputs()[OUTPUT][:] = 0
        assert task.outputs()[OUTPUT].any()


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"dense.bias": None}, "dense"),
        ({"dense.weight": np.zeros((6, 13), np.float32)}, "dense"),
        ({"lstm.bias_ih_l9": np.zeros(16, np.float32)}, r"lstm\.bias_ih_l9"),
    ],
)
def test_weights_that_do_not_fit_are_rejected(wrong, name):
    weights = given(tiny("ptb-lm"))[0] | wrong
    with pytest.raises(errors.UsageError, match=name):
        prepared("pytorch-basic-eager", tiny("ptb-lm"), "forward", {n: a for n, a in weights.items() if a is not None})


@pytest.mark.parametrize("style", STYLES)
def test_padding_has_no_influence(style):
    checks.assert_padding_has_no_influence(f"pytorch-{style}-eager", CTC)


@pytest.mark.parametrize("lengths", [[3, 3, 4], [3, 3, 3], [4, 3], [4, 4, 0]])
def test_wrong_lengths_are_rejected(lengths):
    task = prepared("pytorch-basic-eager", CTC, "training")
    with pytest.raises(errors.UsageError, match="lengths"):
        task.load_inputs(replace(given(CTC)[1], lengths=np.array(lengths)).by_name())


@pytest.mark.parametrize(("style", "products"), [("basic", 2), ("fine-grained", 8)])
def test_a_step_of_the_written_out_cell_has_as_many_products_as_document_001(style, products):
    """Those of one layer; the fine-grained cell multiplies inputs and hidden state for each gate."""
    import torch

    workload = tiny("layer")
    task = prepared(f"pytorch-{style}-eager", workload)
    with torch.profiler.profile() as profile:
        task.step()
    calls = {event.key: event.count for event in profile.key_averages()}
    assert calls["aten::mm"] == products * workload.sequence
    assert {len(held) for held in task._parameters.values()} == {1 if style == "basic" else 4}


@pytest.mark.parametrize("mode", rest_is_heavy(["forward", "training"], lambda mode: mode == "training"))
@pytest.mark.parametrize("name", EAGER_FIRST)
def test_time_inside_the_step_grows_with_the_work(name, mode):
    checks.assert_time_grows_with_the_work(name, mode)


@pytest.mark.parametrize(
    ("name", "mode", "costs"),
    [
        ("pytorch-one-call-eager", "forward", []),
        ("pytorch-basic-scripted", "training", []),
        ("onnxruntime", "forward", ["export_s"]),
    ],
)
def test_costs_and_facts(name, mode, costs):
    workload = tiny("ptb-lm")
    task = prepared(name, workload, mode)
    checks.assert_costs(task, *costs)
    facts = task.facts()
    if name.startswith("pytorch"):
        assert (facts["threads"], facts["interop_threads"]) == (1, 1)
    if name == "pytorch-one-call-eager":
        assert facts["operators"]["aten.mkldnn_rnn_layer"] == workload.layers
    if mode == "training":
        assert (facts["gradients"], facts["optimizer"]) == ("on", "Adam, eager") and "scripted" in facts


def test_threads_are_those_of_the_options():
    for threads in (2, 1):
        assert prepared("pytorch-basic-eager", tiny("layer"), threads=threads).facts()["threads"] == threads


@pytest.mark.parametrize(
    ("name", "workload", "mode", "reason"),
    [
        ("pytorch-basic-eager", WORKLOADS["cell"], "training", "forward"),
        ("onnxruntime", WORKLOADS["ptb-lm"], "training", "training"),
        ("tensorrt", WORKLOADS["ptb-lm"], "training", "training"),
        ("pytorch-basic-compiled", WORKLOADS["speech-ce-long"], "training", "1000 cells"),
        ("pytorch-one-call-compiled", WORKLOADS["ptb-lm"], "training", "150 cells"),
        ("pytorch-fused-compiled", CTC, "training", "CTC"),
        ("pytorch-one-call-compiled", WORKLOADS["ptb-lm"], "forward", None),
        ("pytorch-basic-compiled", WORKLOADS["ptb-lm"], "training", None),
        ("tensorrt", WORKLOADS["ptb-lm"], "forward", None),
    ],
    ids=lambda value: getattr(value, "label", None),
)
def test_what_is_supported(name, workload, mode, reason):
    implementation = implementations.load_implementation(name)
    found = implementation.supports(workload, mode)
    if reason is None:
        assert found is None
        return
    assert reason in found
    with pytest.raises((errors.BuildFailed, errors.RuntimeUnavailable)):
        implementation.prepare(Request(workload, Options(), {}, {}, mode=mode))


def test_an_error_while_running_is_one_line():
    task = prepared("pytorch-basic-eager", tiny("ptb-lm"), "training")
    task._arguments = (task._arguments[0] + 1000, *task._arguments[1:])
    with pytest.raises(errors.RunFailed, match="pytorch-basic-eager failed in a call: ") as caught:
        task.step()
    assert "\n" not in str(caught.value)


@pytest.mark.heavy
@needs_compiler
@sampled(3)
@pytest.mark.parametrize("style", [style for style in STYLES if f"pytorch-{style}-compiled" in implementations.names()])
def test_compiled_outputs_agree(style):
    facts = checks.assert_outputs_agree(f"pytorch-{style}-compiled", replace(BIDIRECTIONAL, sequence=2, layers=1))
    assert facts["compiled"]["graphs"] == 1 and facts["compiled"]["inductor_cached"] == 0
    assert facts["recompiled_later"] == 0


@pytest.mark.heavy
@needs_compiler
@sampled(2)
@pytest.mark.parametrize("name", ["pytorch-basic-compiled", "pytorch-one-call-compiled"])
def test_compiled_training_agrees(name):
    checks.assert_training_agrees(name, tiny("text-classifier", sequence=2), current)


@needs_compiler
def test_compiled_implementations_fail_if_nothing_is_compiled():
    import torch

    with torch.compiler.set_stance("force_eager"), pytest.raises(errors.BuildFailed, match="compiled"):
        prepared("pytorch-one-call-compiled", tiny("layer"))


@pytest.mark.parametrize("workload", FORWARD, **label)
def test_tensorrt_parses_the_exported_workloads_correctly(workload):
    """The network that TensorRT for RTX parsed from the file, computed in numpy; this needs no GPU."""
    trt = pytest.importorskip("tensorrt_rtx")
    weights, batch = given(workload)
    model = export_workload(workload, weights, make_batch(workload, 4).inputs)
    onnx_checks.check(onnx_checks.read(model))
    network, keep = parse(trt, export_trt.logger("tensorrt-rtx"), model)
    outputs = evaluate(trt, network, {INPUT: batch.inputs})[OUTPUT]
    assert keep and apart(outputs, lstm_in_numpy(workload, weights, batch)) < 1e-5


@pytest.mark.parametrize("name", ["tensorrt", "tensorrt-rtx"])
def test_tensorrt_gets_the_workloads_sizes(name, monkeypatch):
    """Everything without a GPU: mocks of the engine's build and the step record their arguments."""
    workload, asked = tiny("ptb-lm"), {}

    class Step:
        load_inputs, facts = None, dict

        def __init__(self, name, request, built, open_context):
            asked.update(name=name, request=request)

        def step(self):
            pass

    def build_engine(onnx, options, *, name):
        asked.update(options=options, layers=len(onnx_checks.recurrent_nodes(onnx_checks.read(onnx))))
        return SimpleNamespace(information={"build_seconds": 2.5})

    monkeypatch.setattr(TensorRtRuntime, "availability", lambda runtime, device: Availability(True))
    monkeypatch.setattr("lstm_literature.implementations.on_tensorrt.TensorRtStep", Step)
    monkeypatch.setattr(build, "build_engine", build_engine)
    task = prepared(name, workload, device="cuda")
    request, inputs = asked["request"], asked["request"].inputs[INPUT]
    assert (asked["name"], request.options.device, request.workload.output_shapes) == (
        name,
        "cuda",
        {OUTPUT: (4, 3, 13)},
    )
    assert (inputs.shape, inputs.dtype) == ((4, 3), np.int64)
    assert (asked["options"].flavour, asked["options"].precision, asked["layers"]) == (name, "fp32", 2)
    checks.assert_costs(task, "export_s")
    assert task.costs["build_s"] == 2.5


@pytest.mark.parametrize("name", ["tensorrt", "tensorrt-rtx"])
def test_tensorrt_without_a_gpu_names_what_is_missing(name):
    implementation = implementations.load_implementation(name)
    state = implementation.availability()
    if state.ready:
        pytest.skip("there is a GPU")
    with pytest.raises(errors.RuntimeUnavailable, match=state.reason):
        prepared(name, tiny("layer"), device="cuda")
