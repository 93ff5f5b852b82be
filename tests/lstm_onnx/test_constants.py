"""Graphs as other exporters write them: what is read of them, and what runs of them at fixed sizes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from lstm_onnx import evaluate, read_onnx
from lstm_onnx.constants import resolved
from lstm_onnx.own_network import OnnxNetwork
from lstm_onnx.read_onnx import OnnxFile, network_facts
from lstm_trt.config.errors import UsageError
from lstm_trt.export.sizes import static_model
from lstm_trt.machine import roofline
from lstm_trt.machine.roofline import MachineRates, NoBound, roofline_bound
from tests.conftest import sampled
from tests.support.own_networks import GRU_FLOPS, LSTM_FLOPS, PRODUCT, branch, model_of, numbers, rates, saved, value

make = helper.make_node
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL

#: One flop and one byte per ns, of a processor without caches.
UNIT = MachineRates(1.0, ((1, 1.0),), 1, "planted", "2026-01-01T00:00:00Z", roofline.PROBES[64])


def constant(name, *entries, dtype=np.int64):
    return numpy_helper.from_array(np.array(entries, dtype), name)


def scalar(name, number, dtype=np.int64):
    return numpy_helper.from_array(np.array(number, dtype), name)


def lstm_model(nodes, constants=(), inputs=(), domains=()):
    """An LSTM of 4 units on X (time, 1, 3) with weights W and R, after `nodes`, which make them."""
    graph = [*nodes, make("LSTM", ["X", "W", "R"], ["Y", "Y_h"], hidden_size=4, name="my_lstm")]
    every = [value("X", ["time", 1, 3]), *inputs]
    return model_of(graph, every, [value("Y", ["time", 1, 1, 4])], constants, domains)


W, R = numbers("W", 1, 16, 3), numbers("R", 1, 16, 4)


def renamed(tensor, name, shape=None):
    array = numpy_helper.to_array(tensor)
    return numpy_helper.from_array(array if shape is None else array.reshape(shape), name)


def quantized(tensor, name):
    """A tensor of int8 with its scale, and the operator that makes floats of them."""
    array = numpy_helper.to_array(tensor)
    scale = np.float32(np.abs(array).max() / 127)
    stored = numpy_helper.from_array(np.round(array / scale).astype(np.int8), f"{name}_q")
    node = make("DequantizeLinear", [f"{name}_q", f"{name}_s"], [name])
    return [node], [stored, numpy_helper.from_array(scale, f"{name}_s")]


def through_unsqueeze():
    return lstm_model(
        [make("Unsqueeze", ["w", "zero"], ["W"]), make("Unsqueeze", ["r", "zero"], ["R"])],
        [renamed(W, "w", (16, 3)), renamed(R, "r", (16, 4)), constant("zero", 0)],
    )


def through_gates():
    """As PyTorch's decompositions write weights: gates are cut out and put together in another order."""
    stops = [constant(f"at{row}", row) for row in (0, 4, 8, 12, 16)]
    nodes, cut = [], []
    for gate, name in enumerate("iofc"):
        nodes.append(make("Slice", ["w", f"at{4 * gate}", f"at{4 * gate + 4}", "at0"], [f"w_{name}"]))
        cut.append(f"w_{name}")
    nodes += [make("Concat", cut, ["w2"], axis=0), make("Unsqueeze", ["w2", "at0"], ["W"])]
    return lstm_model(nodes, [renamed(W, "w", (16, 3)), R, *stops])


def through_a_computed_shape():
    """As tf2onnx: weights are transposed and reshaped to sizes that are computed from others."""
    nodes = [
        make("Transpose", ["w"], ["w2"], perm=[1, 0]),
        make("Shape", ["w2"], ["sizes"]),
        make("Cast", ["sizes"], ["sizes32"], to=TensorProto.INT32),
        make("Cast", ["sizes32"], ["sizes64"], to=INT64),
        make("Concat", ["one", "sizes64"], ["target"], axis=0),
        make("Reshape", ["w2", "target"], ["W"]),
        make("Identity", ["r"], ["R"]),
    ]
    array = np.ascontiguousarray(numpy_helper.to_array(W)[0].T)
    return lstm_model(nodes, [numpy_helper.from_array(array, "w"), renamed(R, "r"), constant("one", 1)])


def through_constant_operators():
    stored = [make("Constant", [], [name], value=tensor) for name, tensor in (("W", W), ("R", R))]
    return lstm_model(stored)


def through_dequantize():
    (w_node, w), (r_node, r) = quantized(W, "W"), quantized(R, "R")
    return lstm_model([*w_node, *r_node], [*w, *r])


def in_half_precision():
    halves = [numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float16), t.name.lower()) for t in (W, R)]
    casts = [make("Cast", [name.lower()], [name], to=TensorProto.FLOAT) for name in "WR"]
    return lstm_model(casts, halves)


def with_stale_sizes():
    """An exporter left the sizes of its example in the file, those of an inner tensor and of the output."""
    model = through_unsqueeze()
    model.graph.value_info.append(value("W", [1, 99, 99]))
    model.graph.output[0].CopyFrom(value("Y", [7, 7]))
    return model


@pytest.mark.parametrize(
    "model",
    [
        through_unsqueeze,
        through_gates,
        through_a_computed_shape,
        through_constant_operators,
        through_dequantize,
        in_half_precision,
        with_stale_sizes,
    ],
)
def test_a_layer_is_read_however_its_weights_are_stored(model, tmp_path):
    network = OnnxNetwork(saved(model(), tmp_path), sizes={"time": 5})
    (layer,) = network.recurrent_layers
    assert (layer.operator, layer.hidden, layer.features, layer.sequence, layer.batch) == ("LSTM", 4, 3, 5, 1)
    assert layer.counted and network.flops == network.least_flops == 2 * 16 * (3 + 4) * 5
    assert network.output_shapes == {"Y": (5, 1, 1, 4)} and network.facts.time_symbol == "time"
    inputs = network.make_inputs(1)
    (found,) = run(static_model(network.path, network), inputs)
    (expected,) = run(network.path.read_bytes(), inputs)
    assert np.array_equal(found, expected)


def run(content, inputs):
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return onnxruntime.InferenceSession(content, settings).run(None, inputs)


# Branches


def rank_branches():
    """As PyTorch: an If on the number of axes; both branches use the same names, and the other one is invalid here."""
    test = [
        make("Shape", ["X"], ["sizes"]),
        make("Shape", ["sizes"], ["axes"]),
        make("Squeeze", ["axes"], ["rank"]),
        make("Equal", ["rank", "three"], ["has_three"]),
    ]
    steps = [make("Unsqueeze", ["X", "one"], ["inner"]), make("LSTM", ["inner", "W", "R"], ["Y"], hidden_size=4)]
    good = branch("good", [make("LSTM", ["X", "W", "R"], ["inner"], hidden_size=4, name="taken")], "inner")
    bad = branch("bad", steps, "Y")
    chosen = make("If", ["has_three"], ["every"], then_branch=good, else_branch=bad)
    again = branch("again", [make("Identity", ["every"], ["inner"])], "inner")
    other = branch("other", [make("Neg", ["every"], ["inner"])], "inner")
    nodes = [*test, chosen, make("If", ["has_three"], ["Z"], then_branch=again, else_branch=other)]
    constants = [W, R, scalar("three", 3), constant("one", 1)]
    return model_of(nodes, [value("X", ["time", 1, 3])], [value("Z", None)], constants)


def save_unchecked(model, tmp_path, name="network"):
    """`saved`, with a shape of the output, which ONNX's checker requires."""
    for output in model.graph.output:
        if not output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
    return saved(model, tmp_path, name)


def test_a_branch_that_sizes_decide_replaces_its_if(tmp_path):
    network = OnnxNetwork(save_unchecked(rank_branches(), tmp_path), sizes={"time": 5})
    (layer,) = network.recurrent_layers
    assert (layer.name, layer.within, layer.sequence) == ("taken", "", 5)
    assert network.flops == 2 * 16 * (3 + 4) * 5 and network.output_shapes == {"Z": (5, 1, 1, 4)}
    content = static_model(network.path, network)
    assert "If" not in {node.op_type for node in onnx.load_from_string(content).graph.node}
    inputs = network.make_inputs(1)
    (expected,) = run(lstm_model([], [W, R]).SerializeToString(), inputs)
    assert np.array_equal(run(content, inputs)[0], expected)
    assert network.warnings  # the output is stated without axes


def test_sizes_that_are_split_decide_a_branch():
    """An operator with two outputs: constant folding of other packages leaves it."""
    parts = [
        make("Shape", ["x"], ["sizes"]),
        make("Split", ["sizes"], ["rows", "columns"], num_outputs=2),
        make("Equal", ["rows", "two"], ["has_two"]),
        make("Squeeze", ["has_two"], ["decided"]),
    ]
    one, other = (branch(name, [make(op, ["x"], ["i"])], "i") for name, op in (("a", "Neg"), ("b", "Relu")))
    nodes = [*parts, make("If", ["decided"], ["y"], then_branch=one, else_branch=other)]
    model = resolved(model_of(nodes, [value("x", [2, 3])], [value("y", [2, 3])], [constant("two", 2)]))
    assert [node.op_type for node in model.graph.node] == ["Neg", "Identity"]


def test_both_branches_of_an_if_on_an_input_are_listed_as_such(tmp_path):
    network = OnnxNetwork(saved(rates(), tmp_path), sizes={"time": 5})
    assert {(layer.name, layer.within.split(", ")[-1]) for layer in network.recurrent_layers} == {
        ("lstm_16k", "then_branch"),
        ("gru_8k", "else_branch"),
    }
    assert [layer.sequence for layer in network.recurrent_layers] == [5, 5]
    assert not any(layer.counted for layer in network.recurrent_layers)
    assert network.flops is None and network.least_flops == PRODUCT + GRU_FLOPS  # the cheaper branch
    assert roofline_bound(network, UNIT).total_ns == PRODUCT + GRU_FLOPS


def test_a_branch_that_does_nothing_is_the_cheaper_one(tmp_path):
    """Its outputs have other sizes than those of the other branch."""
    model = rates()
    (other,) = (attribute for attribute in model.graph.node[-1].attribute if attribute.name == "else_branch")
    other.g.CopyFrom(branch("b", [make("Unsqueeze", ["P", "one"], ["q"])], "q"))
    model.graph.initializer.append(constant("one", 1))
    network = OnnxNetwork(saved(model, tmp_path), sizes={"time": 5})
    assert network.flops is None and network.least_flops == PRODUCT
    fixed = OnnxNetwork(saved(model, tmp_path), sizes={"time": 5}, constants={"sr": 1})
    assert fixed.flops == PRODUCT and fixed.recurrent_layers == () and fixed.output_shapes == {"Y": (5, 1, 1, 3)}


def test_an_old_file_takes_a_constant_too(tmp_path):
    """Before version 4 of the format, each constant is an input as well."""
    nodes = [make("Mul", ["x", "scale"], ["scaled"]), make("MatMul", ["scaled", "A"], ["y"])]
    inputs = [value("x", ["n", 6]), value("scale", []), value("A", [6, 2])]
    model = model_of(nodes, inputs, [value("y", ["n", 2])], [numbers("A", 6, 2)])
    model.ir_version = 3
    path = saved(model, tmp_path)
    network = OnnxNetwork(path, sizes={"n": 5}, constants={"scale": 2.5})
    inputs = network.make_inputs(1)
    assert set(inputs) == {"x"} and network.flops == 2 * 5 * 6 * 2
    (expected,) = run(path.read_bytes(), {**inputs, "scale": np.array(2.5, np.float32)})
    assert np.allclose(run(static_model(network.path, network), inputs)[0], expected)


@pytest.mark.parametrize(("kind", "shape"), [(INT64, ()), (TensorProto.INT32, (1,)), (TensorProto.FLOAT, ())])
@pytest.mark.parametrize(("rate", "name", "flops"), [(16000, "lstm_16k", LSTM_FLOPS), (8000, "gru_8k", GRU_FLOPS)])
def test_a_constant_input_decides_the_branch(tmp_path, kind, shape, rate, name, flops):
    path = saved(rates(kind, shape), tmp_path)
    network = OnnxNetwork(path, sizes={"time": 5}, constants={"sr": rate})
    (layer,) = network.recurrent_layers
    assert (layer.name, layer.within, network.flops) == (name, "", PRODUCT + flops)
    assert network.input_shapes == {"X": (5, 1, 3)} and network.constants == {"sr": rate}
    inputs = network.make_inputs(1)
    given = np.full(shape, rate, helper.tensor_dtype_to_np_dtype(kind))
    (found,) = run(static_model(network.path, network), inputs)
    (expected,) = run(path.read_bytes(), {**inputs, "sr": given})
    assert np.array_equal(found, expected)


def test_inputs_give_the_sizes_and_decide_the_branch(tmp_path):
    path = saved(rates(), tmp_path)
    np.savez(tmp_path / "in.npz", X=np.ones((5, 1, 3), np.float32), sr=np.array(8000))
    network = OnnxNetwork(path, inputs=tmp_path / "in.npz")
    assert network.sizes == (("time", 5),) and network.constants == {"sr": 8000}
    assert [layer.name for layer in network.recurrent_layers] == ["gru_8k"]
    assert set(network.make_inputs(1)) == {"X"} and (network.make_inputs(1)["X"] == 1).all()


def test_tokens_that_are_given_stay_inputs(tmp_path):
    """A single whole number that decides nothing is data: the layers after it are computed in each call."""
    nodes = [
        make("Gather", ["table", "token"], ["x"]),
        make("Shape", ["token"], ["sizes"]),
        make("Size", ["sizes"], ["rank"]),
        make("Equal", ["rank", "two"], ["has_two"]),
        make("If", ["has_two"], ["X"], then_branch=branch("a", [make("Identity", ["x"], ["i"])], "i"),
             else_branch=branch("b", [make("Unsqueeze", ["x", "zero"], ["i"])], "i")),
        make("LSTM", ["X", "W", "R"], ["Y"], hidden_size=4),
    ]  # fmt: skip
    stored = [numbers("table", 7, 3), W, R, scalar("two", 2), constant("zero", 0)]
    model = model_of(nodes, [value("token", [1, 1], INT64)], [value("Y", [1, 1, 1, 4])], stored)
    np.savez(tmp_path / "in.npz", token=np.array([[3]]))
    network = OnnxNetwork(saved(model, tmp_path), inputs=tmp_path / "in.npz")
    assert network.constants == {} and network.input_shapes == {"token": (1, 1)}
    assert len(network.recurrent_layers) == 1 and network.flops == 2 * 16 * 7


# Loops


def test_a_layer_in_a_loop_is_listed_but_not_counted(tmp_path):
    body = helper.make_graph(
        [
            make("LSTM", ["X", "W", "R", "", "", "h", "h"], ["", "after"], hidden_size=4, name="inner"),
            make("Identity", ["going"], ["still"]),
        ],
        "body",
        [value("i", [], INT64), value("going", [], BOOL), value("h", [1, 1, 4])],
        [value("still", [], BOOL), value("after", [1, 1, 4])],
    )
    nodes = [make("Loop", ["most", "", "h0"], ["hn"], body=body), make("MatMul", ["hn", "A"], ["y"])]
    inputs = [value("X", [5, 1, 3]), value("h0", [1, 1, 4]), value("most", [], INT64)]
    model = model_of(nodes, inputs, [value("y", [1, 1, 2])], [W, R, numbers("A", 4, 2)])
    network = OnnxNetwork(saved(model, tmp_path))
    (layer,) = network.recurrent_layers
    assert (layer.name, layer.hidden, layer.sequence) == ("inner", 4, 5) and "Loop" in layer.within
    assert not layer.counted and network.flops is None


def test_a_scan_is_counted_as_often_as_it_runs(tmp_path):
    """As tf2onnx writes a cell: products in the body, computed once per step."""
    body = helper.make_graph(
        [make("MatMul", ["x", "A"], ["p"]), make("Add", ["p", "s"], ["after"]), make("Identity", ["after"], ["out"])],
        "body",
        [value("s", [1, 4]), value("x", [1, 3])],
        [value("after", [1, 4]), value("out", [1, 4])],
    )
    nodes = [make("Scan", ["s0", "X"], ["sn", "Y"], body=body, num_scan_inputs=1)]
    inputs = [value("s0", [1, 4]), value("X", ["time", 1, 3])]
    model = model_of(nodes, inputs, [value("Y", ["time", 1, 4])], [numbers("A", 3, 4)])
    network = OnnxNetwork(saved(model, tmp_path), sizes={"time": 6})
    assert network.flops == 6 * 2 * 3 * 4 and network.output_shapes == {"Y": (6, 1, 4)}
    assert network.recurrent_layers == ()


# Bounds


def test_products_of_constants_are_no_work_of_a_call(tmp_path):
    """A runtime computes W = A B once; a bound that counts it would be too high."""
    nodes = [make("MatMul", ["A", "B"], ["C"]), make("MatMul", ["x", "C"], ["y"])]
    stored = [numbers("A", 6, 50), numbers("B", 50, 7)]
    network = OnnxNetwork(saved(model_of(nodes, [value("x", [2, 6])], [value("y", [2, 7])], stored), tmp_path))
    assert network.flops == 2 * 2 * 6 * 7


def test_a_quantized_network_has_no_bound_in_float32(tmp_path):
    nodes = [make("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]), make("MatMulInteger", ["q", "A", "z"], ["y"])]
    stored = [numpy_helper.from_array(np.ones((40, 2), np.int8), "A")]
    model = model_of(nodes, [value("x", [3, 40])], [value("y", [3, 2], TensorProto.INT32)], stored)
    network = OnnxNetwork(saved(model, tmp_path))
    assert (network.flops, network.least_flops, network.parameters) == (None, 0, 80)
    with pytest.raises(NoBound, match="no float32"):
        roofline_bound(network, UNIT)


def test_a_quantized_layer_of_onnx_runtime_is_listed(tmp_path):
    """`onnxruntime.quantization.quantize_dynamic` makes such operators; their weights are transposed."""
    from onnxruntime.quantization import quantize_dynamic

    plain = saved(lstm_model([], [numbers("W", 1, 16, 3), numbers("R", 1, 16, 4)]), tmp_path, "plain")
    quantize_dynamic(plain, tmp_path / "small.onnx", op_types_to_quantize=["LSTM"])
    network = OnnxNetwork(tmp_path / "small.onnx", sizes={"time": 5})
    (layer,) = network.recurrent_layers
    assert (layer.operator, layer.hidden, layer.features) == ("DynamicQuantizeLSTM", 4, 3)
    assert layer.weight_shapes["W"] == (1, 16, 3) and not layer.counted
    assert network.flops is None and network.least_flops == 0


def test_an_operator_of_unknown_sizes_is_listed_with_what_is_known(tmp_path):
    """The number of steps depends on the values of an input."""
    nodes = [
        make("NonZero", ["mask"], ["places"]),
        make("Transpose", ["places"], ["rows"], perm=[1, 0]),
        make("GatherND", ["X", "rows"], ["kept"]),
        make("LSTM", ["kept", "W", "R"], ["", "Y_h"], hidden_size=4),
        make("MatMul", ["Y_h", "A"], ["y"]),
    ]
    inputs = [value("X", [6, 1, 3]), value("mask", [6], BOOL)]
    model = model_of(nodes, inputs, [value("y", [1, 1, 2])], [W, R, numbers("A", 4, 2)])
    np.savez(tmp_path / "in.npz", mask=np.array([True] * 4 + [False] * 2))
    network = OnnxNetwork(saved(model, tmp_path), inputs=tmp_path / "in.npz")
    (layer,) = network.recurrent_layers
    assert (layer.hidden, layer.features, layer.sequence) == (4, 3, None)
    assert network.flops is None and network.least_flops == 2 * 4 * 2
    assert roofline_bound(network, UNIT).total_ns == 2 * 4 * 2


def test_nothing_random_is_taken_for_a_constant():
    nodes = [make("RandomUniform", [], ["r"], shape=[1]), make("Greater", ["r", "half"], ["b"])]
    one, other = (branch(name, [make(op, ["x"], ["i"])], "i") for name, op in (("a", "Neg"), ("b", "Relu")))
    nodes += [make("Squeeze", ["b"], ["c"]), make("If", ["c"], ["y"], then_branch=one, else_branch=other)]
    stored = [constant("half", 0.5, dtype=np.float32)]
    model = resolved(model_of(nodes, [value("x", [2])], [value("y", [2])], stored))
    assert "If" in {node.op_type for node in model.graph.node}


def test_a_resolved_graph_computes_what_the_evaluator_says():
    """Nested branches, names that two branches share, and a branch that only hands on a tensor from outside."""
    inner = make("If", ["yes"], ["t"], then_branch=branch("i", [make("Mul", ["x", "x"], ["u"])], "u"),
                 else_branch=branch("j", [make("Neg", ["x"], ["u"])], "u"))  # fmt: skip
    deep = branch("deep", [inner, make("Add", ["t", "k"], ["u2"])], "u2", [numbers("k", 2)])
    flat = branch("flat", [make("Neg", ["x"], ["u2"])], "u2")
    nodes = [
        make("If", ["yes"], ["first"], then_branch=deep, else_branch=flat),
        make("If", ["no"], ["second"], then_branch=flat, else_branch=deep),
        make("Sub", ["first", "second"], ["difference"]),
        make("Add", ["first", "difference"], ["y"]),
    ]
    stored = [scalar("yes", True, np.bool_), scalar("no", False, np.bool_)]
    model = model_of(nodes, [value("x", [2])], [value("y", [2])], stored)
    inputs = {"x": np.array([1.5, -0.25], np.float32)}
    expected = evaluate.evaluate(model, inputs)["y"]
    found = resolved(onnx.load_from_string(model.SerializeToString()))
    onnx.checker.check_model(found, full_check=True)
    assert "If" not in {node.op_type for node in found.graph.node}
    assert np.array_equal(evaluate.evaluate(found, inputs)["y"], expected)


@pytest.mark.heavy
@sampled(2)
def test_the_sizes_of_the_cases_of_onnx_are_those_of_their_outputs(seed, monkeypatch):
    """Operators of ONNX, with the inputs that their cases give; what is refused is refused in one line.

    A third of the cases, by the seed: an operator mostly has several, one after another.
    """
    from onnx.backend.test.case.node import collect_testcases

    monkeypatch.setattr(read_onnx, "available_memory_bytes", lambda: 2**34)  # which reads many files
    read = refused = 0
    for case in collect_testcases(None)[seed % 3 :: 3]:
        arrays, expected = case.data_sets[0]
        names = [value.name for value in case.model.graph.input]
        numbers = (np.ndarray, np.generic)  # a few cases give scalars
        given = {name: np.asarray(each) for name, each in zip(names, arrays, strict=False) if isinstance(each, numbers)}
        try:
            facts = network_facts(OnnxFile.of(case.model.SerializeToString(), case.name), {}, {}, given)
        except UsageError as error:
            assert "\n" not in str(error)
            refused += 1
            continue
        read += 1
        # ONNX's own inference takes the number of points of a window for the number of numbers that state it.
        for tensor, array in zip(facts.outputs, expected, strict=False) if "window" not in case.name else ():
            assert not isinstance(array, np.ndarray) or tensor.shape == array.shape, case.name
    assert read > 2 * refused
