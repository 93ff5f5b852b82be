"""What is particular to OpenVINO: precisions, threads, and requests that alternate."""

from __future__ import annotations

import os
import re

import pytest

from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.shape import LstmShape
from lstm_trt.export import to_onnx
from lstm_trt.export.network import make_inputs
from lstm_trt.export.sizes import static_model
from lstm_trt.recorder.parity import PARITY_BOUNDS
from lstm_trt.runtimes import openvino
from tests.conftest import computes_bf16
from tests.support.prepared_steps import error, outputs_of, prepare

SHAPE = LstmShape(2, 64, 20)


def error_of(step) -> float:
    inputs, _, _ = make_inputs(SHAPE, 1)
    return error(outputs_of(step, inputs), SHAPE, inputs)


def test_the_facts_are_what_it_uses():
    step = prepare("openvino", SHAPE, threads=2)
    facts = step.facts()
    assert (facts["inference_precision"], facts["recurrent_precisions"]) == ("f32", ["f32", "f32"])
    threads = min(2, len(os.sched_getaffinity(0)))  # OpenVINO starts no more threads than there are cores
    assert (facts["inference_threads"], facts["streams"], facts["own_pinning"]) == (threads, 1, False)
    assert step.costs.keys() == {"build_s", "first_call_s"}
    step.close()
    assert step.facts() == {}


def test_bfloat16_is_bfloat16_or_refused():
    if computes_bf16("openvino"):
        assert PARITY_BOUNDS["fp32"] < error_of(prepare("openvino", SHAPE, precision="bf16")) < PARITY_BOUNDS["bf16"]
    else:
        with pytest.raises(BuildFailed, match="does not compute in bf16"):
            prepare("openvino", SHAPE, precision="bf16")


def test_a_processor_without_bfloat16_is_refused(monkeypatch):
    monkeypatch.setattr(openvino, "cpuinfo_flags", lambda: frozenset({"avx512f"}))
    with pytest.raises(BuildFailed, match="does not compute in bf16"):
        prepare("openvino", SHAPE, precision="bf16")


def test_recurrent_layers_in_another_precision_are_refused():
    """As with the hint f16 on most processors: the reason why fp16 is not offered.

    The layers then compute in float32, with AVX-512 and bf16 (AMD Zen 4) in bfloat16, or really in float16.
    """
    network = to_onnx.export_network(SHAPE)
    content = static_model(network.path, SHAPE)
    try:
        compiled = openvino._compiled(content, "f16", 1)
    except BuildFailed as refused:
        assert re.search(r"\b(f32|bf16) instead of f16", str(refused))
    else:
        assert set(openvino._recurrent_precisions(compiled)) == {"f16"}
