"""The evaluation in numpy, compared with the expected values of ONNX's own cases and with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from lstm_onnx import evaluate as evaluation
from lstm_onnx.evaluate import NotEvaluated, evaluate
from lstm_onnx.read_onnx import run_onnxruntime
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.network import build_module, make_inputs, make_weights, reference_outputs
from lstm_trt.export.onnx_checks import PARAMETERS
from lstm_trt.export.sizes import static_model
from lstm_trt.export.to_onnx import INPUT, OUTPUT, export_network
from tests.support.own_networks import model_of, one_line, parsed, value, whole_model
from tests.support.planted_graphs import backend_cases, feeds, inside_a_function, inside_an_if, lstm, recurrent, relu

CASES = backend_cases()


def test_there_are_18_cases():
    assert len(CASES) == 18


def test_activations_have_the_parameters_that_the_checks_of_graphs_state():
    found = {}
    for name, (_, *defaults) in evaluation.ACTIVATIONS.items():
        found[name] = ("alpha", "beta")[: len(defaults)]
    assert found == PARAMETERS


@pytest.mark.parametrize("case", CASES)
def test_the_cases_of_onnx(case):
    model, inputs, expected = CASES[case]
    outputs = evaluate(model, inputs)
    assert outputs.keys() == expected.keys()
    for name, right in expected.items():
        assert outputs[name].dtype == right.dtype
        np.testing.assert_allclose(outputs[name], right, rtol=1e-5, atol=1e-6)


def test_a_network_of_the_grid_computes_what_pytorch_does():
    shape = LstmShape(2, 24, 9, 2, directions=2)
    weights, (inputs, _, _) = make_weights(shape, 3), make_inputs(shape, 1)
    model = onnx.load_from_string(static_model(export_network(shape, 3, weights).path, shape))
    right = reference_outputs(build_module(shape, weights), inputs)
    np.testing.assert_allclose(evaluate(model, {INPUT: inputs})[OUTPUT], right, rtol=1e-5, atol=1e-6)


def test_operators_inside_functions_and_branches():
    plain = lstm(layout=1, states=False)
    given = feeds(plain)
    expected = evaluate(plain, given)
    for outputs in (
        evaluate(inside_a_function(), given),
        evaluate(inside_an_if(), {**given, "condition": np.array(True)}),
    ):
        for found, right in zip(outputs.values(), expected.values(), strict=True):
            np.testing.assert_array_equal(found, right)


def test_clip_bounds_the_input_of_every_activation():
    """The definition's words: an LSTM's cell state too, before h."""
    model = lstm((1, 1, 1, 1), bias=False, clip=0.25)
    zeros = {name: np.zeros_like(value) for name, value in feeds(model).items()}
    outputs = evaluate(model, {**zeros, "c0": np.full((1, 1, 1), 8, np.float32)})
    assert outputs["Y_c"].item() == pytest.approx(4)  # sigmoid(0) x 8
    assert outputs["Y"].item() == pytest.approx(0.5 * np.tanh(0.25))


def unknown_operator():
    return whole_model(onnx.parser.parse_graph("one (float[2] x) => (float[2] y) { y = own.Mine (x) }"), ["own"])


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (unknown_operator(), "'Mine'"),
        (recurrent("GRU", activations=["Sigmoid", "tanh"]), "Sigmoid, tanh"),
        (recurrent("GRU", activations=["Sigmoid"]), "activations Sigmoid"),
        (recurrent("RNN", activations=["Affine"]), "Affine"),
        (recurrent("RNN", lengths=[0, 5, 3]), "length 0"),
        (lstm(direction="sideways"), "sideways"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_evaluated(model, reason):
    with one_line(reason, NotEvaluated):
        evaluate(model, feeds(model))


def test_too_many_operations(monkeypatch):
    monkeypatch.setattr(evaluation, "LARGEST_FLOPS", 1000)
    with pytest.raises(NotEvaluated, match="1e\\+03 operations"):
        evaluate(lstm(), feeds(lstm()))


def test_a_network_without_a_recurrent_operator():
    (outputs,) = evaluate(onnx.load_from_string(relu()), {"x": np.array([-1, 2], np.float32)}).values()
    np.testing.assert_array_equal(outputs, [0, 2])


@pytest.mark.parametrize("opset", [9, 13, 15])
@pytest.mark.parametrize("sizes", ["4, 3", "2, 3, 5, 4"])
def test_normalization_by_stored_means_in_all_versions(opset, sizes):
    """Those of networks that are not trained; compared with ONNX Runtime, for two and four axes."""
    text = "y = BatchNormalization <epsilon = 0.01> (x, scale, bias, mean, variance)"
    variance = np.array([0.6, 0.1, 0.3], np.float32)
    stored = {"scale": (3,), "bias": (3,), "mean": (3,), "variance": variance}
    model = parsed(f"(float[{sizes}] x) => (float[{sizes}] y) {{ {text} }}", **stored)
    model.opset_import[0].version = opset
    given = feeds(model)
    (right,) = run_onnxruntime(model.SerializeToString(), [given])
    np.testing.assert_allclose(evaluate(model, given)["y"], right["y"], rtol=1e-5, atol=1e-6)


FLOAT8, INT4 = TensorProto.FLOAT8E4M3FN, TensorProto.INT4

#: What QuantizeLinear and DequantizeLinear can have: type, scales (axis, blocks), domain, type of the scales, zero.
LINEAR = {
    "uint8": {},
    "int8": {"kind": TensorProto.INT8},
    "without a zero point": {"zero": False},
    "by channel": {"scales": 6},
    "by rows": {"scales": 4, "axis": 0},
    "from the last axis": {"scales": 6, "axis": -1},
    "int16": {"kind": TensorProto.INT16},
    "uint16": {"kind": TensorProto.UINT16},
    "int4": {"kind": INT4},
    "float8": {"kind": FLOAT8},
    "in blocks": {"scales": (4, 3), "axis": 1, "block_size": 2},
    "float16": {"scale_kind": np.float16},
    "of ONNX Runtime": {"domain": "com.microsoft"},
    "int16 of ONNX Runtime": {"domain": "com.microsoft", "kind": TensorProto.INT16},
}


def quantized_and_back(
    opset, kind=TensorProto.UINT8, zero=True, scales=(), scale_kind=np.float32, domain="", **attributes
):
    """x -> whole numbers -> y, (4, 6)."""
    scale = np.asarray(np.linspace(0.02, 0.04, int(np.prod(scales))).reshape(scales), scale_kind)
    constants = [numpy_helper.from_array(scale, "scale")]
    if zero:
        number = np.full(scales, 0 if kind == FLOAT8 else 3).astype(helper.tensor_dtype_to_np_dtype(kind))
        constants.append(numpy_helper.from_array(number, "zero"))
    more = [tensor.name for tensor in constants]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *more], ["q"], domain=domain, **attributes),
        helper.make_node("DequantizeLinear", ["q", *more], ["y"], domain=domain, **attributes),
    ]
    of = helper.np_dtype_to_tensor_dtype(np.dtype(scale_kind))
    model = model_of(nodes, [value("x", (4, 6), of)], [value("y", (4, 6), of)], constants, [domain] if domain else ())
    model.opset_import[0].version = opset
    model.ir_version = 10
    return model, {"x": np.random.default_rng(0).standard_normal((4, 6)).astype(scale_kind)}


@pytest.mark.parametrize("how", LINEAR)
def test_quantization_in_all_versions_is_that_of_onnx_runtime(how):
    """Every version of the operators that ONNX Runtime runs; a kind exists from one version on."""
    ran = []
    for opset in range(10, onnx.defs.onnx_opset_version() + 1):
        model, given = quantized_and_back(opset, **LINEAR[how])
        try:
            (right,) = run_onnxruntime(model.SerializeToString(), [given])
        except Exception:  # this version lacks this kind, or ONNX Runtime does
            continue
        ran.append(opset)
        found = evaluate(model, given)["y"]
        assert found.dtype == right["y"].dtype
        np.testing.assert_allclose(found, right["y"], rtol=1e-3 if found.dtype == np.float16 else 1e-6)
    assert len(ran) >= 3 and ran == list(range(ran[0], ran[-1] + 1))
