"""ONNX networks as users have them: symbolic sizes, states, tables, convolutions; each a model of some kB."""

from __future__ import annotations

import re
from contextlib import contextmanager

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from lstm_trt.config.errors import UsageError
from lstm_trt.export.sizes import sizes_of
from tests.support.planted_graphs import recurrent

FLOAT = TensorProto.FLOAT


def stream(kind="LSTM", features=3, hidden=4, **how):
    """One operator with symbolic `time` and `batch`, and states h0 -> hn (and c0 -> cn)."""
    model = recurrent(kind, (2, 1, features, hidden), **how)
    names = {"Y_h": "hn", "Y_c": "cn"}
    for node in model.graph.node:
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
        dims = value.type.tensor_type.shape.dim
        if value.name in ("X", "Y"):
            dims[0].dim_param = "time"
        dims[-2].dim_param = "batch"
    return model


def value(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def numbers(name, *shape):
    generator = np.random.default_rng(len(name) + sum(shape))
    return numpy_helper.from_array(generator.uniform(-0.5, 0.5, shape).astype(np.float32), name)


def model_of(nodes, inputs, outputs, constants=(), domains=()):
    graph = helper.make_graph(list(nodes), "own", list(inputs), list(outputs), list(constants))
    return whole_model(graph, domains)


def whole_model(graph, domains=()):
    opsets = [helper.make_opsetid("", 18), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def constants_of(**constants):
    """Stored tensors by name: a tuple is the shape of random numbers, all else the entries."""
    return [
        numbers(name, *entries) if isinstance(entries, tuple) else numpy_helper.from_array(np.asarray(entries), name)
        for name, entries in constants.items()
    ]


def parsed(text, **constants):
    """A network in ONNX's own notation: `(float[time, 3] x) => (float[time, 3] y) { y = Tanh (x) }`.

    Of the constants it has those that the text names.
    """
    graph = onnx.parser.parse_graph(f"own {text}")
    words = set(re.findall(r"\w+", text))
    graph.initializer.extend(constants_of(**{name: each for name, each in constants.items() if name in words}))
    return whole_model(graph)


def smoothing_then_gru(width=3):
    """A convolution over `width` time steps before a GRU, with a state; input x (time, 1, 2)."""
    return parsed(
        f"""(float[time, 1, 2] x, float[1, 1, 4] h0) => (float[time, 1, 1, 4] Y, float[1, 1, 4] hn) {{
            channels_first = Transpose <perm = [1, 2, 0]> (x)
            smooth = Conv <kernel_shape = [{width}], pads = [{width - 1}, 0]> (channels_first, kernel)
            steps = Transpose <perm = [2, 0, 1]> (smooth)
            Y, hn = GRU <hidden_size = 4> (steps, W, R, "", "", h0)
        }}""",
        kernel=(2, 2, width),
        W=(1, 12, 2),
        R=(1, 12, 4),
    )


def as_pytorch_exports():
    """A Reshape to a computed shape before an LSTM with states, a dense layer, and sizes that the exporter fixed.

    Shape inference does not derive the last size of `steps`, and the stored sizes of `flat` are those of an example.
    """
    model = parsed(
        """(float[time, 1, 3] X, float[1, 1, 4] h0, float[1, 1, 4] c0)
        => (float[time, 1, 2] y, float[1, 1, 4] hn, float[1, 1, 4] cn) {
            sizes = Shape (X)
            outer = Slice (sizes, zero, two)
            last = Slice (sizes, two, three)
            product = Mul (last, one)
            width = Reshape (product, minus_one)
            target = Concat <axis = 0> (outer, width)
            steps = Reshape (X, target)
            Y, hn, cn = LSTM <hidden_size = 4> (steps, W, R, "", "", h0, c0)
            flat = Squeeze (Y, one)
            product_of_flat = MatMul (flat, A)
            y = Add (product_of_flat, bias)
        }""",
        W=(1, 16, 3), R=(1, 16, 4), A=(4, 2), bias=(2,), zero=[0], one=[1], two=[2], three=[3], minus_one=[-1],
    )  # fmt: skip
    model.graph.value_info.append(value("flat", [5, 1, 4]))
    return model


def words():
    """A table of 5 rows, an LSTM with sequence lengths, a dense layer; inputs `tokens`, `lengths` of whole numbers."""
    return parsed(
        """(int64[time, batch] tokens, int32[batch] lengths) => (float[batch, 7] scores, int64[batch] best) {
            embedded = Gather (table, tokens)
            , last = LSTM <hidden_size = 3> (embedded, W, R, "", lengths)
            flat = Squeeze (last, first_axis)
            scores = Gemm <transB = 1> (flat, dense)
            best = ArgMax <axis = 1, keepdims = 0> (scores)
        }""",
        table=(5, 2), W=(1, 12, 2), R=(1, 12, 3), dense=(7, 3), first_axis=[0],
    )  # fmt: skip


def unnamed_sizes():
    """An LSTM whose symbolic sizes have no names."""
    model = stream()
    for item in (*model.graph.input, *model.graph.output):
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.Clear()
    return model


def dense():
    """No recurrent layer: y = x A."""
    return parsed("(float[batch, 6] x) => (float[batch, 2] y) { y = MatMul (x, A) }", A=(6, 2))


def quantized(opset=17):
    """A GRU and a product of 8 and 7 bits with its result in 8 bits, as quantizing tools write them; x (time, 1, 3)."""
    model = parsed(
        """(float[time, 1, 3] x) => (float[time, 1, 5] product_rounded) {
            Y = GRU <hidden_size = 16> (x, W, R)
            h = Squeeze (Y, one)
            h_in_8_bits = QuantizeLinear (h, scale_of_h, zero)
            h_rounded = DequantizeLinear (h_in_8_bits, scale_of_h, zero)
            A_rounded = DequantizeLinear <axis = 1> (A, scales_of_A)
            product = MatMul (h_rounded, A_rounded)
            product_in_8_bits = QuantizeLinear (product, scale_of_product, zero)
            product_rounded = DequantizeLinear (product_in_8_bits, scale_of_product, zero)
        }""",
        W=(1, 48, 3),
        R=(1, 48, 16),
        A=np.random.default_rng(3).integers(-63, 64, (16, 5)).astype(np.int8),  # 8 bits would saturate without VNNI
        one=[1],
        zero=np.uint8(128),
        scale_of_h=np.float32(1 / 127),
        scale_of_product=np.float32(0.02),
        scales_of_A=np.linspace(0.01, 0.02, 5, dtype=np.float32),
    )
    model.opset_import[0].version = opset
    return model


def selected():
    """The positive numbers of x: the size of the output depends on the values."""
    return parsed(
        "(float[8] x) => (float[some] y) { positive = Greater (x, zero) y = Compress (x, positive) }",
        zero=np.float32(0),
    )


def rates(kind="int64", shape=""):
    """As Silero VAD: an If on the sampling rate. One branch has an LSTM, the other a GRU; both begin with a product."""
    number = np.array(16000, {"int64": np.int64, "int32": np.int32, "float": np.float32}[kind])
    return parsed(
        f"""(float[time, 1, 3] X, {kind}{shape} sr) => (float[time, 1, 1, 4] Y) {{
            P = MatMul (X, A)
            fits = Equal (sr, high)
            is_high = Squeeze (fits)
            Y = If <
                then_branch = lstm () => (float[] a) {{ [lstm_16k] a = LSTM <hidden_size = 4> (P, W, R) }},
                else_branch = gru () => (float[] a) {{ [gru_8k] a = GRU <hidden_size = 4> (P, Wg, Rg) }}
            > (is_high)
        }}""",
        A=(3, 3), W=(1, 16, 3), R=(1, 16, 4), Wg=(1, 12, 3), Rg=(1, 12, 4), high=number,
    )  # fmt: skip


#: Operations of `rates` at 5 steps: of its product, and of each branch.
PRODUCT, LSTM_FLOPS, GRU_FLOPS = 2 * 5 * 9, 2 * 5 * 16 * 7, 2 * 5 * 12 * 7


def saved(model, folder, name="network"):
    """Write `model` as `name`.onnx; returns the path."""
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


def drawn_inputs(model, rng):
    """Normal numbers for each input of a network of known sizes."""
    return {each.name: rng.standard_normal(sizes_of(each)).astype(np.float32) for each in model.graph.input}


@contextmanager
def one_line(words, kind=UsageError):
    """What follows is refused with these words, a pattern, in one line."""
    with pytest.raises(kind, match=words) as refusal:
        yield refusal
    assert "\n" not in str(refusal.value)
