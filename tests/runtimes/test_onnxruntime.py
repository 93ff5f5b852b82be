"""The ONNX Runtime runtime, and the interface of all runtimes."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from lstm_trt import registry, runtimes
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed, RuntimeUnavailable, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.export import to_onnx
from lstm_trt.export.network import build_module, make_inputs, make_weights, reference_outputs
from lstm_trt.export.to_onnx import INPUT, OUTPUT
from lstm_trt.recorder.parity import PARITY_BOUNDS, relative_error
from lstm_trt.runtimes import load
from lstm_trt.runtimes.base import Request
from tests.conftest import ROOT

SHAPES = [
    LstmShape(1, 8, 1),
    LstmShape(3, 32, 20, 2),
    LstmShape(2, 24, 15, 5, directions=2),
    LstmShape(1, 6, 4, 1, features=3, directions=2),
]


def prepared(shape: LstmShape, runtime="onnxruntime", **options):
    inputs, _, _ = make_inputs(shape, 0)
    network = to_onnx.export_network(shape)
    return load(runtime).prepare(Request(shape, Options(**options), {INPUT: inputs}, {}, network.path))


def reference(shape: LstmShape, inputs: np.ndarray) -> np.ndarray:
    return reference_outputs(build_module(shape, make_weights(shape, 0)), inputs)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
def test_outputs_follow_the_inputs_and_agree_with_pytorch(shape, runtime):
    step = prepared(shape, runtime)
    for seed in (1, 2):
        inputs, _, _ = make_inputs(shape, seed)
        step.load_inputs({INPUT: inputs})
        step.step()
        outputs = step.outputs()[OUTPUT]
        assert outputs.shape == (shape.sequence, shape.batch, 1) and outputs.dtype == np.float32
        assert relative_error(outputs, reference(shape, inputs)) < PARITY_BOUNDS["fp32"]
    kept = outputs.copy()
    step.load_inputs({INPUT: np.zeros_like(inputs)})
    step.step()
    assert (outputs == kept).all(), "outputs() must return a copy"
    step.close()
    step.close()


def test_int8_really_quantizes():
    shape = LstmShape(2, 64, 20)
    step = prepared(shape, precision="int8")
    inputs, _, _ = make_inputs(shape, 1)
    step.load_inputs({INPUT: inputs})
    step.step()
    error = relative_error(step.outputs()[OUTPUT], reference(shape, inputs))
    assert PARITY_BOUNDS["fp32"] < error < PARITY_BOUNDS["int8"]


def test_int8_that_quantizes_nothing_is_refused(monkeypatch):
    import onnx
    from onnxruntime import quantization

    monkeypatch.setattr(quantization, "quantize_dynamic", lambda model, target, **how: onnx.save(model, target))
    with pytest.raises(BuildFailed, match="int8"):
        prepared(LstmShape(1, 8, 4), precision="int8")


def test_without_cuda_there_are_a_reason_and_a_remedy():
    state = load("onnxruntime").availability("cuda")
    if state.ready:
        pytest.skip("this machine has ONNX Runtime with CUDA")
    assert state.reason and state.remedy
    with pytest.raises(RuntimeUnavailable, match=state.reason.split()[0]):
        prepared(LstmShape(1, 8, 2), device="cuda")


def test_unknown_and_incomplete_runtimes_are_rejected():
    with pytest.raises(UsageError, match="onnxruntime"):
        load("onnxrumtime")
    with pytest.raises(UsageError, match=r"no\.such\.module"):
        load("no.such.module")
    with pytest.raises(UsageError, match="NAME"):
        load("os.path")


@pytest.mark.parametrize("name", registry.RUNTIMES)
def test_every_registered_runtime_has_the_required_attributes(name):
    module = load(name)
    assert name == module.NAME
    assert set(module.PRECISIONS) == set(module.DEVICES)
    assert all("fp32" in precisions for precisions in module.PRECISIONS.values())
    for device in module.DEVICES:
        state = module.availability(device)
        assert (state.ready and state.version and state.device_name) or state.reason


def test_loading_the_runtimes_does_not_import_their_libraries():
    code = (
        "import sys; from lstm_trt import registry, runtimes; [runtimes.load(name) for name in registry.RUNTIMES];"
        "heavy = ('torch', 'onnxruntime', 'openvino', 'onnx', 'pandas', 'matplotlib');"
        "print([name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=os.environ)
    assert result.stdout.strip() == "[]", result.stderr


def test_the_docstring_names_all_required_attributes():
    assert all(name in runtimes.__doc__ for name in runtimes.CONTRACT)
