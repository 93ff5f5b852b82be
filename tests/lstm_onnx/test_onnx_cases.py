"""LSTM, GRU and RNN operators under every runtime that reads ONNX: computed as defined, or refused with a reason.

The cases are those of ONNX, and one for each attribute, input and activation of the definitions. The reason is the one
that `lstm-trt inspect` prints. For TensorRT the parsed network is computed in numpy.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from lstm_onnx.evaluate import evaluate
from lstm_onnx.own_network import OnnxNetwork
from lstm_trt import registry, runtimes
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed, UsageError
from lstm_trt.export import onnx_checks
from lstm_trt.export.tensorrt import trt as export_trt
from lstm_trt.recorder.parity import relative_error
from lstm_trt.runtimes.base import Request
from tests.conftest import rest_is_heavy, sampled
from tests.support import network_in_numpy
from tests.support.planted_graphs import backend_cases, feeds, own_cases

CASES = {
    **backend_cases(),
    **{name: (model, feeds(model), None) for name, model in own_cases().items()},
}

#: One for each activation in each gate takes long.
PARAMETERS = rest_is_heavy(CASES, lambda case: "activation" not in case and list(CASES).index(case) % 3 == 0)

READERS = ("onnxruntime", "openvino", "tensorrt-rtx")


def test_every_runtime_that_reads_onnx_has_rules():
    readers = {name for name in registry.table("RUNTIMES") if getattr(runtimes.load_runtime(name), "NEEDS_ONNX", False)}
    assert readers == {*READERS, "tensorrt", "c"}
    assert all(isinstance(runtimes.load_runtime(name).ONNX_RULES, onnx_checks.Rules) for name in readers - {"c"})


def run(runtime: str, model: onnx.ModelProto, inputs: dict) -> dict[str, np.ndarray]:
    """The outputs; raises `BuildFailed` if the runtime refuses the model."""
    if runtime == "tensorrt-rtx":
        onnx_checks.check(model)
        trt = pytest.importorskip("tensorrt_rtx")
        network, keep = network_in_numpy.parse(trt, export_trt.logger(runtime), model.SerializeToString())
        assert keep
        return network_in_numpy.evaluate(trt, network, inputs)
    network = OnnxNetwork(model.SerializeToString(), name="one")
    step = runtimes.load_runtime(runtime).prepare(Request(network, Options(), inputs, onnx_path=network.path))
    step.load_inputs(inputs)
    step.step()
    outputs = step.outputs()
    step.close()
    return outputs


@pytest.mark.parametrize("runtime", READERS)
@pytest.mark.parametrize("case", PARAMETERS)
def test_computed_as_defined_or_refused(case, runtime):
    model, inputs, expected = CASES[case]
    reason = onnx_checks.refusal(model, runtimes.load_runtime(runtime).ONNX_RULES)
    if reason:
        with pytest.raises(BuildFailed) as refusal:
            run(runtime, model, inputs)
        assert str(refusal.value) == reason
        return
    outputs = run(runtime, model, inputs)
    for name, right in (expected or evaluate(model, inputs)).items():
        assert outputs[name].shape == right.shape
        assert relative_error(outputs[name], right) < (1e-5 if right.dtype != np.float16 else 1e-3)


# 12 s: gcc compiles 27 networks as users do; `test_operators` computes the others together.
@pytest.mark.random(
    tail=0,
    why="identity: the seed chooses 18 of 157 cases; all of those that are not refused were computed, with at "
    "most 0.7 of the bound",
)
@pytest.mark.heavy
@sampled(2)
@pytest.mark.skipif(not runtimes.load_runtime("c").availability().ready, reason="needs a C compiler")
def test_c_code_computes_as_defined_or_is_refused(rng):
    """At batch size 1 and from zero states; the generator refuses what it lacks, and names the operator."""
    computed = set()
    usual = ["{}", "{'bias': False}", "{'directions': 2}", "{'direction': 'reverse'}"]
    needed = {f"{kind} {case}" for kind in ("LSTM", "GRU") for case in usual} | {"GRU {'linear_before_reset': 1}"}
    cases = own_cases(sizes=(5, 1, 6, 4), states=False)
    for case in needed | set(rng.choice(list(cases), 18, replace=False).tolist()):
        model = cases[case]
        inputs = feeds(model)
        try:
            outputs = run("c", model, inputs)
        except (BuildFailed, UsageError) as refusal:
            assert "operator 'my_" in str(refusal) or "input" in str(refusal), (case, refusal)
            continue
        for name, right in evaluate(model, inputs).items():
            assert outputs[name].shape == right.shape and relative_error(outputs[name], right) < 2e-6, case
        computed.add(case)
    assert needed <= computed


@pytest.mark.heavy
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_nothing_is_refused_that_would_be_computed_as_defined(runtime, monkeypatch):
    module, spared = runtimes.load_runtime(runtime), []
    refused = {case: CASES[case] for case in CASES if onnx_checks.refusal(CASES[case][0], module.ONNX_RULES)}
    monkeypatch.setattr(onnx_checks, "refusal", lambda model, rules: None)
    for case, (model, inputs, expected) in refused.items():
        try:
            outputs = run(runtime, model, inputs)
        except BuildFailed:
            continue
        right = expected or evaluate(model, inputs)
        shapes_agree = all(outputs[name].shape == right[name].shape for name in right)
        if shapes_agree and max(relative_error(outputs[name], right[name]) for name in right) < 1e-4:
            spared.append(case)
    assert len(refused) > 10 and not spared
