"""Checks of ONNX graphs and conversion to float16, compared with the network that TensorRT's parser creates."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.shape import LstmShape
from lstm_trt.export import onnx_checks
from lstm_trt.export.network import make_inputs
from lstm_trt.export.sizes import static_model
from lstm_trt.export.tensorrt import onnx_fp16, trt as export_trt
from lstm_trt.export.tensorrt.build import build_engine
from lstm_trt.export.to_onnx import INPUT, OUTPUT, export_network
from lstm_trt.recorder.parity import relative_error
from lstm_trt.store import cache
from tests.conftest import rest_is_heavy
from tests.lstm_trt.export.test_engine import RTX, options, spelled, trt
from tests.support.network_in_numpy import evaluate, parse
from tests.support.planted_graphs import REFUSED, feeds, lstm, relu
from tests.support.prepared_steps import reference


def entries() -> list[str]:
    return [entry.path.name for entry in cache.entries() if entry.kind == "engine"]


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("fp16", 1e-2)])
@pytest.mark.parametrize(
    "shape",
    [LstmShape(1, 8, 5, 3, features=6), LstmShape(3, 72, 24, 4), LstmShape(2, 24, 9, 2, directions=2)],
    ids=spelled,
)
@pytest.mark.parametrize("symbolic", rest_is_heavy([False, True], bool), ids=["static", "symbolic"])
def test_what_tensorrt_reads_computes_what_pytorch_does(shape, precision, bound, symbolic):
    path = export_network(shape, 3).path
    model = onnx_checks.read(path.read_bytes() if symbolic else static_model(path, shape))
    onnx_checks.check(model)
    if precision == "fp16":
        model = onnx_fp16.to_half(model)
    network, keep = parse(trt, export_trt.logger(RTX), model.SerializeToString())
    inputs, _, _ = make_inputs(shape, 1)
    outputs = evaluate(trt, network, {INPUT: inputs})[OUTPUT]
    assert keep and outputs.dtype == np.float32
    error = relative_error(outputs, reference(shape, inputs, 3))
    assert error < bound
    assert precision == "fp32" or error > 1e-5  # a smaller error would mean that it was computed in float32


def test_half_is_half_all_through_and_the_buffers_stay_float32():
    import onnxruntime

    shape = LstmShape(2, 16, 6, 2)
    half = onnx_fp16.to_half(onnx_checks.read(static_model(export_network(shape).path, shape)))
    onnx.checker.check_model(half, full_check=True)
    assert {tensor.data_type for tensor in onnx_checks.tensors(half.graph)} <= {
        TensorProto.FLOAT16,
        TensorProto.INT64,
        TensorProto.UNDEFINED,  # attributes that hold no tensor
    }
    for value in (half.graph.input[0], half.graph.output[0]):
        assert value.type.tensor_type.elem_type == TensorProto.FLOAT
    inputs, _, _ = make_inputs(shape, 1)
    session = onnxruntime.InferenceSession(half.SerializeToString(), providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {INPUT: inputs})
    assert relative_error(outputs, reference(shape, inputs)) < 1e-2
    onnx_checks.check(half, "fp16")
    with pytest.raises(BuildFailed, match="--precision fp16"):
        onnx_checks.check(half, "tf32")
    half.graph.initializer.append(numpy_helper.from_array(np.full(3, 1e6, np.float32), "large"))
    with pytest.raises(BuildFailed, match=r"1e\+06 in 'large'"):
        onnx_fp16.to_half(half)


@pytest.mark.parametrize("case", REFUSED)
def test_bad_graphs_are_rejected_with_the_name_of_their_operator(case):
    plant, message = REFUSED[case]
    before = entries()
    with pytest.raises(BuildFailed) as refusal:
        build_engine(plant().SerializeToString(), options())
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
    assert "'my_lstm" in str(refusal.value) or "no name" in case  # inlining a function adds to the name
    assert entries() == before


def answers(model) -> tuple[dict, dict]:
    """(inputs, outputs of the network that TensorRT's parser creates)."""
    given = feeds(model)
    network, keep = parse(trt, export_trt.logger(RTX), model.SerializeToString())
    assert keep
    return given, evaluate(trt, network, given)


def in_onnxruntime(model, feeds: dict) -> dict:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip((value.name for value in model.graph.output), session.run(None, feeds), strict=True))


@pytest.mark.parametrize(
    "given",
    rest_is_heavy(
        [
            {"states": False},
            {},
            {"directions": 2},
            {"direction": "reverse"},
            {"peepholes": True},
            {"peepholes": True, "directions": 2},
            {"lengths": [2, 5, 3]},
            {"lengths": [2, 5, 3], "direction": "reverse"},
            {"lengths": [2, 5, 3], "directions": 2},
            {"lengths": [2, 5, 3], "peepholes": True},
            *(
                {"activations": [name, "Tanh", "Tanh"]}
                for name in onnx_checks.TENSORRT.activations
                if name != "Sigmoid"
            ),
            *({"activations": ["Sigmoid", name, name]} for name in onnx_checks.TENSORRT.activations if name != "Tanh"),
            {"activations": ["Sigmoid", "LeakyRelu", "Tanh"], "activation_alpha": [0.3]},
            {
                "activations": ["HardSigmoid", "LeakyRelu", "Tanh"],
                "activation_alpha": [0.3, 0.1],
                "activation_beta": [0.4],
            },
        ],
        lambda given: "activations" not in given or "activation_alpha" in given,
    ),
    ids=str,
)
def test_accepted_graphs_are_read_correctly_and_build(given):
    model = lstm(**given)
    onnx_checks.check(model)
    feeds, read = answers(model)
    for name, right in in_onnxruntime(model, feeds).items():
        np.testing.assert_allclose(read[name], right, rtol=1e-5, atol=1e-6, err_msg=name)
    assert len(build_engine(model.SerializeToString(), options()).plan) > 100_000


@pytest.mark.parametrize(
    ("case", "right"),
    [
        ("layout", lambda feeds: in_onnxruntime(lstm(states=False), {"X": feeds["X"].swapaxes(0, 1)})["Y"]),
        ("clip", lambda feeds: in_onnxruntime(lstm(clip=0.5), feeds)["Y"]),
        ("softplus", lambda feeds: in_onnxruntime(lstm(activations=["Sigmoid", "Softplus", "Tanh"]), feeds)["Y"]),
    ],
)
def test_the_checks_are_needed(case, right):
    """TensorRT accepts these silently, and its network computes something else."""
    model = REFUSED[case][0]()
    feeds, read = answers(model)
    expected = right(feeds)
    if case == "layout":
        expected = expected.transpose(2, 0, 1, 3)  # batch first
    assert read["Y"].shape != expected.shape or np.abs(read["Y"] - expected).max() > 1e-2
    assert builds_without_checks(model.SerializeToString())


@pytest.mark.parametrize("case", ["float64", "bfloat16"])
def test_the_checks_are_needed_for_types(case):
    assert builds_without_checks(REFUSED[case][0]().SerializeToString())


def builds_without_checks(content: bytes) -> bool:
    network, (builder, _) = parse(trt, export_trt.logger(RTX), content)
    return builder.build_serialized_network(network, builder.create_builder_config()) is not None


def test_a_network_without_a_recurrent_operator_builds():
    assert build_engine(relu(), options()).information["onnx"]["lstms"] == []
