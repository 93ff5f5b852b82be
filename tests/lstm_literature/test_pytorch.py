"""The PyTorch, ONNX Runtime and TensorRT implementations of the literature's workloads, at small sizes on the CPU.

The reference is computed here in numpy from the formulas: the LSTM with gate order i, f, g, o
and two bias vectors, cross-entropy, CTC's forward recursion, SGD and Adam.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lstm_literature import implementations
from lstm_literature.data import Batch, make_batch, make_weights
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
from tests.support.network_in_numpy import evaluate, parse

STYLES = ("basic", "fine-grained", "fused", "one-call")
QUICK = [f"pytorch-{style}-{execution}" for style in STYLES for execution in ("eager", "scripted")]
EAGER_FIRST = rest_is_heavy(QUICK, lambda name: name.endswith("eager"))
needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++").split()[0]) is None, reason="torch.compile needs a C++ compiler"
)


def small(name, **sizes):
    """A workload with the same structure and small sizes, all different from each other."""
    workload = WORKLOADS[name]
    sizes = {"batch": 5, "sequence": 7, "hidden": 6, "features": 4, "layers": min(workload.layers, 3)} | sizes
    if workload.vocabulary:
        sizes |= {"vocabulary": 13}
    if workload.outputs:
        sizes |= {"outputs": min(workload.outputs, 11)}
    if workload.lengths:
        sizes = {"lengths": (3, sizes["sequence"]), "labels": 2} | sizes
    return replace(workload, **sizes)


FORWARD = [
    small("cell", sequence=1),
    small("layer"),
    small("stack", layers=3),
    small("ptb-lm"),
    replace(small("speech-bidirectional-ce-long"), modes=("forward",), name="bidirectional"),
]
TRAINING = [small(name) for name, workload in WORKLOADS.items() if "training" in workload.modes]
label = {"ids": lambda workload: workload.name}


def request_of(workload, mode, weights, batch, threads=1, device="cpu"):
    return Request(workload, Options(threads=threads, device=device), batch.by_name(), weights, mode=mode)


def prepare(name, workload, mode, seed=1, weights=None, batch=None, threads=1, device="cpu"):
    weights = make_weights(workload, seed) if weights is None else weights
    batch = make_batch(workload, seed) if batch is None else batch
    return implementations.load_implementation(name).prepare(
        request_of(workload, mode, weights, batch, threads, device)
    )


def difference(found, expected):
    """Relative error by norm over all numbers; absolute if only zeros are expected.

    (`output[-1]` reads only the first step of the last reverse layer, so its recurrent weights have no gradient.)
    """
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = (
            np.concatenate([side[name].ravel() for name in sorted(expected)]) for side in (found, expected)
        )
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    return np.linalg.norm(found - expected) / (np.linalg.norm(expected) or 1.0)


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


@pytest.mark.parametrize("workload", FORWARD, **label)
@pytest.mark.parametrize("name", [*EAGER_FIRST, "onnxruntime"])
def test_forward_agrees_with_numpy_and_with_one_call(name, workload):
    weights, batch = make_weights(workload, 2), make_batch(workload, 3)
    reference = prepare("pytorch-one-call-eager", workload, "forward", weights=weights)
    prepared = prepare(name, workload, "forward", weights=weights)
    for step in (reference, prepared):
        step.load_inputs(batch.by_name())  # a batch that was not used for building
        step.step()
    outputs = prepared.outputs()[OUTPUT]
    assert outputs.dtype == np.float32 and outputs.shape == workload.output_shape
    assert difference(outputs, reference.outputs()[OUTPUT]) < 1e-5
    assert difference(outputs, lstm_in_numpy(workload, weights, batch)) < 1e-5
    prepared.close()


@pytest.mark.parametrize("workload", TRAINING, **label)
def test_loss_of_one_call_is_numpys(workload):
    weights, batch = make_weights(workload, 2), make_batch(workload, 3)
    prepared = prepare("pytorch-one-call-eager", workload, "training", weights=weights, batch=batch)
    prepared.step()
    expected = loss_in_numpy(workload, lstm_in_numpy(workload, weights, batch), batch)
    assert prepared.loss() == pytest.approx(expected, rel=1e-5)


def test_gradients_of_one_call_are_differences_of_the_loss():
    """Along a random direction of all weights, in float64 numpy: (f(w + e) - f(w - e)) / 2e."""
    for workload in (small("ptb-lm"), small("speech-ctc-long", layers=2)):
        weights, batch = make_weights(workload, 2), make_batch(workload, 3)
        gradients = prepare("pytorch-one-call-eager", workload, "training", weights=weights, batch=batch).gradients()
        generator = np.random.default_rng(4)
        along = {name: generator.standard_normal(array.shape) for name, array in weights.items()}

        def loss_at(distance, workload=workload, weights=weights, batch=batch, along=along):
            moved = {name: array.astype(np.float64) + distance * along[name] for name, array in weights.items()}
            return loss_in_numpy(workload, lstm_in_numpy(workload, moved, batch), batch)

        slope = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
        assert sum((gradients[name] * along[name]).sum() for name in along) == pytest.approx(slope, rel=1e-4)


def assert_trains_like_one_call(name, workload):
    weights, batch = make_weights(workload, 2), make_batch(workload, 3)
    reference = prepare("pytorch-one-call-eager", workload, "training", weights=weights, batch=batch)
    prepared = prepare(name, workload, "training", weights=weights, batch=batch)
    expected, found = reference.gradients(), prepared.gradients()
    assert difference(found, expected) < 1e-4
    for tensor in expected:
        assert found[tensor].dtype == np.float32
        assert difference(found[tensor], expected[tensor]) < 1e-4, tensor
    for _ in range(3):  # an update after an update: the optimizer's state counts as well
        reference.step()
        prepared.step()
        assert prepared.loss() == pytest.approx(reference.loss(), rel=1e-4)
    assert difference(prepared.gradients(), reference.gradients()) < 1e-3
    prepared.close()


@pytest.mark.parametrize("workload", TRAINING, **label)
@pytest.mark.parametrize("name", EAGER_FIRST[:-2] + EAGER_FIRST[-1:])  # without the reference
def test_training_agrees_with_one_call(name, workload):
    assert_trains_like_one_call(name, workload)


def reordered(array, order, hidden):
    return array.reshape(4, hidden, -1)[list(order)].reshape(array.shape)


@pytest.mark.parametrize("style", STYLES)
def test_a_wrong_order_of_gates_or_a_missing_bias_is_detected(style):
    workload = small("ptb-lm", layers=2)
    weights, batch = make_weights(workload, 2), make_batch(workload, 3)
    expected = lstm_in_numpy(workload, weights, batch)

    def error(changed):
        prepared = prepare(f"pytorch-{style}-eager", workload, "forward", weights=weights | changed, batch=batch)
        prepared.step()
        return difference(prepared.outputs()[OUTPUT], expected)

    assert error({}) < 1e-5
    lstm = [name for name in weights if name.startswith("lstm.")]
    for order in ((0, 3, 1, 2), (0, 1, 3, 2), (0, 2, 1, 3)):  # ONNX's i, o, f, c; o and g swapped; i, c, f, o
        assert error({name: reordered(weights[name], order, workload.hidden) for name in lstm}) > 1e-3
    for name in lstm:
        if "bias" in name:
            assert error({name: np.zeros_like(weights[name])}) > 1e-4
            other = name.replace("bias_ih", "bias_xx").replace("bias_hh", "bias_ih").replace("bias_xx", "bias_hh")
            assert error({name: weights[other]}) > 1e-4  # one of the two used twice
            assert error({name: weights[other], other: weights[name]}) < 1e-5  # only their sum matters


def test_the_directions_have_different_weights():
    workload = replace(small("speech-bidirectional-ce-long", layers=2), modes=("forward",))
    weights, batch = make_weights(workload, 2), make_batch(workload, 3)
    swapped = {
        name: weights[name[:-8] if name.endswith("_reverse") else f"{name}_reverse"]
        for name in weights
        if "lstm" in name
    }
    for style in STYLES:
        prepared = prepare(f"pytorch-{style}-eager", workload, "forward", weights=weights | swapped, batch=batch)
        prepared.step()
        assert difference(prepared.outputs()[OUTPUT], lstm_in_numpy(workload, weights, batch)) > 1e-2


def test_weights_that_do_not_fit_are_rejected():
    workload = small("ptb-lm")
    weights = make_weights(workload, 1)
    for changed in (
        {name: array for name, array in weights.items() if name != "dense.bias"},
        weights | {"lstm.bias_ih_l9": weights["lstm.bias_ih_l0"]},
        weights | {"dense.weight": weights["dense.weight"].T.copy()},
    ):
        with pytest.raises(errors.UsageError, match=r"lstm\.bias_ih_l9|dense"):
            prepare("pytorch-basic-eager", workload, "forward", weights=changed)


@pytest.mark.parametrize("style", STYLES)
def test_padding_has_no_influence(style):
    workload = small("speech-ctc-long", layers=2)
    batch = make_batch(workload, 3)
    assert len(set(batch.lengths)) > 1
    prepared = prepare(f"pytorch-{style}-eager", workload, "training", batch=batch)
    expected = prepared.gradients()
    noise = batch.inputs.copy()
    noise[np.arange(workload.sequence)[:, None] >= batch.lengths] = 9.0
    prepared.load_inputs(replace(batch, inputs=noise).by_name())
    assert difference(prepared.gradients(), expected) == 0
    noise[batch.lengths[-1] - 1, -1] = 9.0  # the last step of the shortest sequence
    prepared.load_inputs(replace(batch, inputs=noise).by_name())
    assert difference(prepared.gradients(), expected) > 1e-3
    other = replace(batch, lengths=np.full_like(batch.lengths, workload.sequence))
    prepared.load_inputs(other.by_name())
    prepared.step()
    weights = make_weights(workload, 1)
    assert prepared.loss() == pytest.approx(
        loss_in_numpy(workload, lstm_in_numpy(workload, weights, other), other), rel=1e-5
    )


def test_wrong_lengths_and_shapes_are_rejected():
    workload = small("speech-ctc-long")
    batch = make_batch(workload, 3)
    prepared = prepare("pytorch-basic-eager", workload, "training", batch=batch)
    for wrong in (batch.lengths[::-1], batch.lengths - 1, batch.lengths[:3], np.array([7, 7, 7, 7, 0])):
        with pytest.raises(errors.UsageError, match="lengths"):
            prepared.load_inputs(replace(batch, lengths=wrong).by_name())
    with pytest.raises(errors.UsageError, match="inputs"):
        prepared.load_inputs(Batch(batch.inputs[:-1], batch.targets, batch.lengths).by_name())


@pytest.mark.parametrize("workload", rest_is_heavy(TRAINING, lambda workload: workload == TRAINING[0]), **label)
@pytest.mark.parametrize("name", EAGER_FIRST)
def test_the_loss_decreases_over_twenty_steps(name, workload):
    prepared = prepare(name, replace(workload, learning_rate=workload.learning_rate * 5), "training")
    losses = []
    for _ in range(20):
        prepared.step()
        losses.append(prepared.loss())
    assert np.isfinite(losses).all()
    assert losses[1] != losses[0], "no update"
    assert losses[-1] < losses[0]
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))


@pytest.mark.parametrize("name", QUICK)
def test_the_first_step_starts_from_the_given_weights(name):
    workload = small("ptb-lm", layers=2)
    weights, batch = make_weights(workload, 2), make_batch(workload, 3)
    prepared = prepare(name, workload, "training", weights=weights, batch=batch)
    with pytest.raises(errors.RunFailed, match="loss"):
        prepared.loss()
    prepared.step()
    assert prepared.loss() == pytest.approx(
        loss_in_numpy(workload, lstm_in_numpy(workload, weights, batch), batch), rel=1e-5
    )


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("style", STYLES)
def test_two_updates_are_the_optimizers_formula(style, kind):
    """SGD: w - r g. Adam (Kingma and Ba, algorithm 1): moments 0.9 and 0.999, bias corrected, epsilon 1e-8."""
    rate = 0.01
    workload = replace(small("speech-ce-short"), optimizer=kind, learning_rate=rate)
    prepared = prepare(f"pytorch-{style}-eager", workload, "training")
    weights = {name: array.astype(np.float64) for name, array in make_weights(workload, 1).items()}
    first = {name: np.zeros_like(array) for name, array in weights.items()}
    second = {name: np.zeros_like(array) for name, array in weights.items()}
    for count in (1, 2):
        gradients = prepared.gradients()
        prepared.step()
        for name in weights:
            gradient = gradients[name].astype(np.float64)
            if kind == "sgd":
                weights[name] -= rate * gradient
                continue
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            scale = np.sqrt(second[name] / (1 - 0.999**count)) + 1e-8
            weights[name] -= rate * first[name] / (1 - 0.9**count) / scale
    for name, held in prepared._parameters.items():
        parts = [parameter.detach().numpy().T if len(held) > 1 else parameter.detach().numpy() for parameter in held]
        np.testing.assert_allclose(np.concatenate(parts), weights[name], rtol=1e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(("style", "products"), [("basic", 2), ("fine-grained", 8)])
def test_a_step_of_the_written_out_cell_has_as_many_products_as_document_001(style, products):
    """Those of one layer; the fine-grained cell multiplies inputs and hidden state for each gate."""
    import torch

    workload = small("layer", layers=1)
    prepared = prepare(f"pytorch-{style}-eager", workload, "forward")
    with torch.profiler.profile() as profile:
        prepared.step()
    calls = {event.key: event.count for event in profile.key_averages()}
    assert calls["aten::mm"] == products * workload.sequence
    assert {len(held) for held in prepared._parameters.values()} == {1 if style == "basic" else 4}


def test_computing_gradients_changes_nothing():
    workload = small("ptb-lm")
    with_gradients, without = (prepare("pytorch-fused-eager", workload, "training") for _ in range(2))
    for _ in range(3):
        with_gradients.gradients()
        with_gradients.step()
        without.step()
        assert with_gradients.loss() == without.loss()


@pytest.mark.parametrize("mode", rest_is_heavy(["forward", "training"], lambda mode: mode == "training"))
@pytest.mark.parametrize("name", EAGER_FIRST)
def test_a_step_takes_longer_with_more_work(name, mode):
    """32 times the steps take more than 3 times as long (minimum times): the work is complete when a step returns."""
    workload = small("ptb-lm", hidden=48, batch=64, layers=1)  # so that work per weight (packing, the update) is small
    tasks = [prepare(name, replace(workload, sequence=sequence), mode) for sequence in (4, 128)]
    times = [[], []]
    for _ in range(7):  # alternately, so that a busy machine affects both
        for prepared, taken in zip(tasks, times, strict=True):
            began = time.perf_counter()
            prepared.step()
            taken.append(time.perf_counter() - began)
    few, many = map(min, times)
    assert many > 3 * few


def test_outputs_are_those_of_the_last_step_and_a_copy():
    workload = small("layer")
    for name in ("pytorch-one-call-eager", "pytorch-basic-scripted", "onnxruntime"):
        prepared = prepare(name, workload, "forward")
        prepared.step()
        before = prepared.outputs()[OUTPUT]
        prepared.load_inputs(make_batch(workload, 8).by_name())
        prepared.step()
        after = prepared.outputs()[OUTPUT]
        assert difference(after, before) > 0.1
        after[:] = 0
        assert prepared.outputs()[OUTPUT].any()
        prepared.close()
        prepared.close()
        with pytest.raises(errors.RunFailed, match="closed"):
            prepared.step()


def test_costs_and_facts():
    workload = small("ptb-lm")
    for name, mode in (
        ("pytorch-one-call-eager", "forward"),
        ("pytorch-basic-scripted", "training"),
        ("onnxruntime", "forward"),
    ):
        prepared = prepare(name, workload, mode, threads=1)
        expected = {"build_s", "first_call_s"} | ({"export_s"} if name == "onnxruntime" else set())
        assert prepared.costs.keys() == expected and all(cost > 0 for cost in prepared.costs.values())
        facts = prepared.facts()
        if name.startswith("pytorch"):
            assert (facts["threads"], facts["interop_threads"]) == (1, 1)
        if name == "pytorch-one-call-eager":
            assert facts["operators"]["aten.mkldnn_rnn_layer"] == workload.layers
        if mode == "training":
            assert facts["gradients"] == "on" and facts["optimizer"] == "Adam, eager" and "scripted" in facts


def test_threads_are_those_of_the_options():
    import torch

    before = torch.get_num_threads()
    try:
        assert prepare("pytorch-basic-eager", small("layer"), "forward", threads=2).facts()["threads"] == 2
        assert prepare("pytorch-basic-eager", small("layer"), "forward", threads=1).facts()["threads"] == 1
    finally:
        torch.set_num_threads(before)


def test_unsupported_workloads_are_rejected_with_a_reason():
    load = implementations.load_implementation
    for name, workload, mode, reason in (
        ("pytorch-basic-eager", WORKLOADS["cell"], "training", "forward"),
        ("onnxruntime", WORKLOADS["ptb-lm"], "training", "training"),
        ("tensorrt", WORKLOADS["ptb-lm"], "training", "training"),
        ("pytorch-basic-compiled", WORKLOADS["speech-ce-long"], "training", "1000 cells"),
        ("pytorch-one-call-compiled", WORKLOADS["ptb-lm"], "training", "150 cells"),
        ("pytorch-fused-compiled", WORKLOADS["speech-ctc-long"].scaled("1/100"), "training", "CTC"),
    ):
        assert reason in load(name).supports(workload, mode)
        with pytest.raises((errors.BuildFailed, errors.RuntimeUnavailable)):
            small_batch = Batch(np.zeros(workload.input_shape[:2], np.int64))
            load(name).prepare(request_of(workload, mode, {}, small_batch))
    assert load("pytorch-one-call-compiled").supports(WORKLOADS["ptb-lm"], "forward") is None
    assert load("pytorch-basic-compiled").supports(WORKLOADS["ptb-lm"], "training") is None
    assert load("tensorrt").supports(WORKLOADS["ptb-lm"], "forward") is None


def test_an_error_while_running_is_one_line():
    workload = small("ptb-lm")
    prepared = prepare("pytorch-basic-eager", workload, "training")
    prepared._arguments = (prepared._arguments[0] + 1000, *prepared._arguments[1:])
    with pytest.raises(errors.RunFailed, match="pytorch-basic-eager failed in a call: ") as caught:
        prepared.step()
    assert "\n" not in str(caught.value)


@pytest.mark.heavy
@needs_compiler
@sampled(3)
@pytest.mark.parametrize("style", [style for style in STYLES if f"pytorch-{style}-compiled" in implementations.names()])
def test_compiled_forward_agrees(style):
    workload = replace(FORWARD[-1], sequence=2, layers=1)
    weights, batch = make_weights(workload, 2), make_batch(workload, 3)
    prepared = prepare(f"pytorch-{style}-compiled", workload, "forward", weights=weights)
    prepared.load_inputs(batch.by_name())
    prepared.step()
    assert difference(prepared.outputs()[OUTPUT], lstm_in_numpy(workload, weights, batch)) < 1e-5
    facts = prepared.facts()
    assert facts["compiled"]["graphs"] == 1 and facts["compiled"]["inductor_cached"] == 0
    assert facts["recompiled_later"] == 0
    prepared.close()


@pytest.mark.heavy
@needs_compiler
@sampled(2)
@pytest.mark.parametrize("name", ["pytorch-basic-compiled", "pytorch-one-call-compiled"])
def test_compiled_training_agrees(name):
    assert_trains_like_one_call(name, small("text-classifier", sequence=2))


@needs_compiler
def test_compiled_implementations_fail_if_nothing_is_compiled():
    import torch

    with torch.compiler.set_stance("force_eager"), pytest.raises(errors.BuildFailed, match="compiled"):
        prepare("pytorch-one-call-compiled", small("layer"), "forward")


@pytest.mark.parametrize("workload", FORWARD, **label)
def test_tensorrt_parses_the_exported_workloads_correctly(workload):
    """The network that TensorRT for RTX parsed from the file, computed in numpy; this needs no GPU."""
    trt = pytest.importorskip("tensorrt_rtx")
    weights, batch = make_weights(workload, 2), make_batch(workload, 3)
    model = export_workload(workload, weights, make_batch(workload, 4).inputs)
    onnx_checks.check(onnx_checks.read(model))
    network, keep = parse(trt, export_trt.logger("tensorrt-rtx"), model)
    outputs = evaluate(trt, network, {INPUT: batch.inputs})[OUTPUT]
    assert keep and difference(outputs, lstm_in_numpy(workload, weights, batch)) < 1e-5


@pytest.mark.parametrize("name", ["tensorrt", "tensorrt-rtx"])
def test_tensorrt_gets_the_workloads_sizes(name, monkeypatch):
    """Everything without a GPU: mocks of the engine's build and the step record their arguments."""
    workload = small("ptb-lm")
    batch, asked = make_batch(workload, 3), {}

    class Step:
        def __init__(self, name, request, built, open_context):
            asked.update(name=name, inputs=request.inputs[INPUT], device=request.options.device)
            asked.update(sizes=request.workload.output_shapes)
            self.load_inputs, self.facts = None, dict

        def step(self):
            asked["steps"] = asked.get("steps", 0) + 1

    def build_engine(onnx, options, *, name):
        asked.update(options=options, inputs_of_onnx=len(onnx_checks.recurrent_nodes(onnx_checks.read(onnx))))
        return SimpleNamespace(information={"build_seconds": 2.5})

    monkeypatch.setattr(TensorRtRuntime, "availability", lambda runtime, device: Availability(True))
    monkeypatch.setattr("lstm_literature.implementations.on_tensorrt.TensorRtStep", Step)
    monkeypatch.setattr(build, "build_engine", build_engine)
    prepared = prepare(name, workload, "forward", batch=batch, device="cuda")
    prepared.step()
    assert asked["steps"] == 1 and asked["name"] == name and asked["device"] == "cuda"
    assert asked["sizes"] == {OUTPUT: (7, 5, 11)}
    assert asked["inputs"].shape == (7, 5) and asked["inputs"].dtype == np.int64
    assert (asked["options"].flavour, asked["options"].precision, asked["inputs_of_onnx"]) == (name, "fp32", 3)
    assert prepared.costs["build_s"] == 2.5 and prepared.costs.keys() == {"export_s", "build_s", "first_call_s"}


@pytest.mark.parametrize("name", ["tensorrt", "tensorrt-rtx"])
def test_tensorrt_without_a_gpu_names_what_is_missing(name):
    implementation = implementations.load_implementation(name)
    state = implementation.availability()
    if state.ready:
        pytest.skip("there is a GPU")
    with pytest.raises(errors.RuntimeUnavailable, match=state.reason):
        prepare(name, small("layer"), "forward", device="cuda")
