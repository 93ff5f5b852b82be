"""Graphs as other exporters write them: what is read of them, and what runs of them at fixed sizes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from lstm_onnx import evaluate, read_onnx
from lstm_onnx.constants import resolved
from lstm_onnx.own_network import OnnxNetwork
from lstm_onnx.read_onnx import OnnxFile, network_facts
from lstm_trt.config.errors import UsageError
from lstm_trt.export.sizes import static_model
from lstm_trt.machine import roofline
from lstm_trt.machine.roofline import MachineRates, NoBound, roofline_bound
from tests.conftest import sampled
from tests.support.own_networks import (
    GRU_FLOPS,
    LSTM_FLOPS,
    PRODUCT,
    constants_of,
    numbers,
    parsed,
    rates,
    saved,
    value,
)

#: One flop and one byte per ns, of a processor without caches.
UNIT = MachineRates(1.0, ((1, 1.0),), 1, "planted", "2026-01-01T00:00:00Z", roofline.PROBES[64])

W, R = (numpy_helper.to_array(numbers(name, *shape)) for name, shape in (("W", (1, 16, 3)), ("R", (1, 16, 4))))


def lstm_model(text="", **constants):
    """An LSTM of 4 units on X (time, 1, 3) with weights W and R, after what makes them."""
    return parsed(
        f"""(float[time, 1, 3] X) => (float[time, 1, 1, 4] Y) {{
            {text} [my_lstm] Y, Y_h = LSTM <hidden_size = 4> (X, W, R)
        }}""",
        **constants,
    )


def quantized(array):
    """A tensor of int8, and its scale."""
    scale = np.float32(np.abs(array).max() / 127)
    return np.round(array / scale).astype(np.int8), scale


def through_unsqueeze():
    return lstm_model("W = Unsqueeze (w, zero) R = Unsqueeze (r, zero)", w=W[0], r=R[0], zero=[0])


def through_gates():
    """As PyTorch's decompositions write weights: gates are cut out and put together in another order."""
    return lstm_model(
        """w_i = Slice (w, at0, at4, at0)
        w_o = Slice (w, at4, at8, at0)
        w_f = Slice (w, at8, at12, at0)
        w_c = Slice (w, at12, at16, at0)
        w2 = Concat <axis = 0> (w_i, w_o, w_f, w_c)
        W = Unsqueeze (w2, at0)""",
        w=W[0], R=R, at0=[0], at4=[4], at8=[8], at12=[12], at16=[16],
    )  # fmt: skip


def through_a_computed_shape():
    """As tf2onnx: weights are transposed and reshaped to sizes that are computed from others."""
    return lstm_model(
        """w2 = Transpose <perm = [1, 0]> (w)
        sizes = Shape (w2)
        sizes32 = Cast <to = 6> (sizes)
        sizes64 = Cast <to = 7> (sizes32)
        target = Concat <axis = 0> (one, sizes64)
        W = Reshape (w2, target)
        R = Identity (r)""",
        w=np.ascontiguousarray(W[0].T),
        r=R,
        one=[1],
    )


def through_constant_operators():
    model = lstm_model()
    for name, array in (("W", W), ("R", R)):
        stored = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))
        model.graph.node.insert(0, stored)
    return model


def through_dequantize():
    (w, w_scale), (r, r_scale) = quantized(W), quantized(R)
    text = "W = DequantizeLinear (w, w_scale) R = DequantizeLinear (r, r_scale)"
    return lstm_model(text, w=w, w_scale=w_scale, r=r, r_scale=r_scale)


def in_half_precision():
    return lstm_model("W = Cast <to = 1> (w) R = Cast <to = 1> (r)", w=W.astype(np.float16), r=R.astype(np.float16))


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
    return parsed(
        """(float[time, 1, 3] X) => (float[] Z) {
            sizes = Shape (X)
            axes = Shape (sizes)
            rank = Squeeze (axes)
            has_three = Equal (rank, three)
            every = If <
                then_branch = good () => (float[] inner) { [taken] inner = LSTM <hidden_size = 4> (X, W, R) },
                else_branch = bad () => (float[] Y) {
                    inner = Unsqueeze (X, one)
                    Y = LSTM <hidden_size = 4> (inner, W, R)
                }
            > (has_three)
            Z = If <
                then_branch = again () => (float[] inner) { inner = Identity (every) },
                else_branch = other () => (float[] inner) { inner = Neg (every) }
            > (has_three)
        }""",
        W=W, R=R, three=3, one=[1],
    )  # fmt: skip


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
    (expected,) = run(lstm_model(W=W, R=R).SerializeToString(), inputs)
    assert np.array_equal(run(content, inputs)[0], expected)
    assert network.warnings  # the output is stated without axes


#: Either of two operators on x, as `decided` says.
CHOICE = """y = If <
    then_branch = one () => (float[] i) { i = Neg (x) },
    else_branch = other () => (float[] i) { i = Relu (x) }
> (decided)"""


def test_sizes_that_are_split_decide_a_branch():
    """An operator with two outputs: constant folding of other packages leaves it."""
    text = f"""(float[2, 3] x) => (float[2, 3] y) {{
        sizes = Shape (x)
        rows, columns = Split <num_outputs = 2> (sizes)
        has_two = Equal (rows, two)
        decided = Squeeze (has_two)
        {CHOICE}
    }}"""
    assert [node.op_type for node in resolved(parsed(text, two=[2])).graph.node] == ["Neg", "Identity"]


def test_nothing_random_is_taken_for_a_constant():
    text = f"""(float[2] x) => (float[2] y) {{
        r = RandomUniform <shape = [1]> ()
        b = Greater (r, half)
        decided = Squeeze (b)
        {CHOICE}
    }}"""
    found = resolved(parsed(text, half=np.array([0.5], np.float32)))
    assert "If" in {node.op_type for node in found.graph.node}


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
    other.g.CopyFrom(onnx.parser.parse_graph("b () => (float[] q) { q = Unsqueeze (P, one) }"))
    model.graph.initializer.extend(constants_of(one=[1]))
    network = OnnxNetwork(saved(model, tmp_path), sizes={"time": 5})
    assert network.flops is None and network.least_flops == PRODUCT
    fixed = OnnxNetwork(saved(model, tmp_path), sizes={"time": 5}, constants={"sr": 1})
    assert fixed.flops == PRODUCT and fixed.recurrent_layers == () and fixed.output_shapes == {"Y": (5, 1, 1, 3)}


def test_an_old_file_takes_a_constant_too(tmp_path):
    """Before version 4 of the format, each constant is an input as well."""
    text = """(float[n, 6] x, float scale, float[6, 2] A) => (float[n, 2] y) {
        scaled = Mul (x, scale)
        y = MatMul (scaled, A)
    }"""
    model = parsed(text, A=(6, 2))
    model.ir_version = 3
    path = saved(model, tmp_path)
    network = OnnxNetwork(path, sizes={"n": 5}, constants={"scale": 2.5})
    inputs = network.make_inputs(1)
    assert set(inputs) == {"x"} and network.flops == 2 * 5 * 6 * 2
    (expected,) = run(path.read_bytes(), {**inputs, "scale": np.array(2.5, np.float32)})
    assert np.allclose(run(static_model(network.path, network), inputs)[0], expected)


@pytest.mark.parametrize(("kind", "shape"), [("int64", ""), ("int32", "[1]"), ("float", "")])
@pytest.mark.parametrize(("rate", "name", "flops"), [(16000, "lstm_16k", LSTM_FLOPS), (8000, "gru_8k", GRU_FLOPS)])
def test_a_constant_input_decides_the_branch(tmp_path, kind, shape, rate, name, flops):
    path = saved(rates(kind, shape), tmp_path)
    network = OnnxNetwork(path, sizes={"time": 5}, constants={"sr": rate})
    (layer,) = network.recurrent_layers
    assert (layer.name, layer.within, network.flops) == (name, "", PRODUCT + flops)
    assert network.input_shapes == {"X": (5, 1, 3)} and network.constants == {"sr": rate}
    inputs = network.make_inputs(1)
    given = np.full((1,) if shape else (), rate, "float32" if kind == "float" else kind)
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
    model = parsed(
        """(int64[1, 1] token) => (float[1, 1, 1, 4] Y) {
            x = Gather (table, token)
            sizes = Shape (token)
            rank = Size (sizes)
            has_two = Equal (rank, two)
            X = If <
                then_branch = a () => (float[] i) { i = Identity (x) },
                else_branch = b () => (float[] i) { i = Unsqueeze (x, zero) }
            > (has_two)
            Y = LSTM <hidden_size = 4> (X, W, R)
        }""",
        table=(7, 3), W=W, R=R, two=2, zero=[0],
    )  # fmt: skip
    np.savez(tmp_path / "in.npz", token=np.array([[3]]))
    network = OnnxNetwork(saved(model, tmp_path), inputs=tmp_path / "in.npz")
    assert network.constants == {} and network.input_shapes == {"token": (1, 1)}
    assert len(network.recurrent_layers) == 1 and network.flops == 2 * 16 * 7


# Loops


def test_a_layer_in_a_loop_is_listed_but_not_counted(tmp_path):
    model = parsed(
        """(float[5, 1, 3] X, float[1, 1, 4] h0, int64 most) => (float[1, 1, 2] y) {
            hn = Loop <
                body = b (int64 i, bool going, float[1, 1, 4] h) => (bool still, float[1, 1, 4] after) {
                    [inner] , after = LSTM <hidden_size = 4> (X, W, R, "", "", h, h)
                    still = Identity (going)
                }
            > (most, "", h0)
            y = MatMul (hn, A)
        }""",
        W=W, R=R, A=(4, 2),
    )  # fmt: skip
    network = OnnxNetwork(saved(model, tmp_path))
    (layer,) = network.recurrent_layers
    assert (layer.name, layer.hidden, layer.sequence) == ("inner", 4, 5) and "Loop" in layer.within
    assert not layer.counted and network.flops is None


def test_a_scan_is_counted_as_often_as_it_runs(tmp_path):
    """As tf2onnx writes a cell: products in the body, computed once per step."""
    model = parsed(
        """(float[1, 4] s0, float[time, 1, 3] X) => (float[time, 1, 4] Y) {
            sn, Y = Scan <
                body = b (float[1, 4] s, float[1, 3] x) => (float[1, 4] after, float[1, 4] out) {
                    p = MatMul (x, A)
                    after = Add (p, s)
                    out = Identity (after)
                },
                num_scan_inputs = 1
            > (s0, X)
        }""",
        A=(3, 4),
    )
    network = OnnxNetwork(saved(model, tmp_path), sizes={"time": 6})
    assert network.flops == 6 * 2 * 3 * 4 and network.output_shapes == {"Y": (6, 1, 4)}
    assert network.recurrent_layers == ()


# Bounds


def test_products_of_constants_are_no_work_of_a_call(tmp_path):
    """A runtime computes W = A B once; a bound that counts it would be too high."""
    model = parsed("(float[2, 6] x) => (float[2, 7] y) { C = MatMul (A, B) y = MatMul (x, C) }", A=(6, 50), B=(50, 7))
    assert OnnxNetwork(saved(model, tmp_path)).flops == 2 * 2 * 6 * 7


def test_a_quantized_network_has_no_bound_in_float32(tmp_path):
    text = "q, s, z = DynamicQuantizeLinear (x) y = MatMulInteger (q, A, z)"
    model = parsed(f"(float[3, 40] x) => (int32[3, 2] y) {{ {text} }}", A=np.ones((40, 2), np.int8))
    network = OnnxNetwork(saved(model, tmp_path))
    assert (network.flops, network.least_flops, network.parameters) == (None, 0, 80)
    with pytest.raises(NoBound, match="no float32"):
        roofline_bound(network, UNIT)


def test_a_quantized_layer_of_onnx_runtime_is_listed(tmp_path):
    """`onnxruntime.quantization.quantize_dynamic` makes such operators; their weights are transposed."""
    from onnxruntime.quantization import quantize_dynamic

    plain = saved(lstm_model(W=W, R=R), tmp_path, "plain")
    quantize_dynamic(plain, tmp_path / "small.onnx", op_types_to_quantize=["LSTM"])
    network = OnnxNetwork(tmp_path / "small.onnx", sizes={"time": 5})
    (layer,) = network.recurrent_layers
    assert (layer.operator, layer.hidden, layer.features) == ("DynamicQuantizeLSTM", 4, 3)
    assert layer.weight_shapes["W"] == (1, 16, 3) and not layer.counted
    assert network.flops is None and network.least_flops == 0


def test_an_operator_of_unknown_sizes_is_listed_with_what_is_known(tmp_path):
    """The number of steps depends on the values of an input."""
    model = parsed(
        """(float[6, 1, 3] X, bool[6] mask) => (float[1, 1, 2] y) {
            places = NonZero (mask)
            rows = Transpose <perm = [1, 0]> (places)
            kept = GatherND (X, rows)
            , Y_h = LSTM <hidden_size = 4> (kept, W, R)
            y = MatMul (Y_h, A)
        }""",
        W=W, R=R, A=(4, 2),
    )  # fmt: skip
    np.savez(tmp_path / "in.npz", mask=np.array([True] * 4 + [False] * 2))
    network = OnnxNetwork(saved(model, tmp_path), inputs=tmp_path / "in.npz")
    (layer,) = network.recurrent_layers
    assert (layer.hidden, layer.features, layer.sequence) == (4, 3, None)
    assert network.flops is None and network.least_flops == 2 * 4 * 2
    assert roofline_bound(network, UNIT).total_ns == 2 * 4 * 2


#: A branch with a branch in it, and one that has only one operator.
DEEP = """deep () => (float[] u2) <float[2] k = {0.3, -0.2}> {
    t = If <
        then_branch = i () => (float[] u) { u = Mul (x, x) },
        else_branch = j () => (float[] u) { u = Neg (x) }
    > (yes)
    u2 = Add (t, k)
}"""
FLAT = "flat () => (float[] u2) { u2 = Neg (x) }"


def test_a_resolved_graph_computes_what_the_evaluator_says():
    """Nested branches, names that two branches share, and a branch that only hands on a tensor from outside."""
    text = f"""(float[2] x) => (float[2] y) {{
        first = If <then_branch = {DEEP}, else_branch = {FLAT}> (yes)
        second = If <then_branch = {FLAT}, else_branch = {DEEP}> (no)
        difference = Sub (first, second)
        y = Add (first, difference)
    }}"""
    model = parsed(text, yes=True, no=False)
    inputs = {"x": np.array([1.5, -0.25], np.float32)}
    expected = evaluate.evaluate(model, inputs)["y"]
    found = resolved(onnx.load_from_string(model.SerializeToString()))
    onnx.checker.check_model(found, full_check=True)
    assert "If" not in {node.op_type for node in found.graph.node}
    assert np.array_equal(evaluate.evaluate(found, inputs)["y"], expected)


@pytest.mark.random(tail=0, why="identity: the seed chooses a third of the cases")
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
