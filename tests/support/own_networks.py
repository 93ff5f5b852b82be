"""ONNX networks as users have them: symbolic sizes, states, tables, convolutions; each a model of some kB."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

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


def model_of(nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(list(nodes), "own", list(inputs), list(outputs), list(constants))
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def smoothing_then_gru(width=3):
    """A convolution over `width` time steps before a GRU, with a state; input x (time, 1, 2)."""
    make = helper.make_node
    nodes = [
        make("Transpose", ["x"], ["channels_first"], perm=[1, 2, 0]),
        make("Conv", ["channels_first", "kernel"], ["smooth"], kernel_shape=[width], pads=[width - 1, 0]),
        make("Transpose", ["smooth"], ["steps"], perm=[2, 0, 1]),
        make("GRU", ["steps", "W", "R", "", "", "h0"], ["Y", "hn"], hidden_size=4),
    ]
    constants = [numbers("kernel", 2, 2, width), numbers("W", 1, 12, 2), numbers("R", 1, 12, 4)]
    inputs = [value("x", ["time", 1, 2]), value("h0", [1, 1, 4])]
    return model_of(nodes, inputs, [value("Y", ["time", 1, 1, 4]), value("hn", [1, 1, 4])], constants)


def as_pytorch_exports():
    """A Reshape to a computed shape before an LSTM with states, a dense layer, and sizes that the exporter fixed.

    Shape inference does not derive the last size of `steps`, and the stored sizes of `flat` are those of an example.
    """
    make, constant = helper.make_node, lambda name, *numbers: numpy_helper.from_array(np.array(numbers), name)
    nodes = [
        make("Shape", ["X"], ["sizes"]),
        make("Slice", ["sizes", "zero", "two"], ["outer"]),
        make("Slice", ["sizes", "two", "three"], ["last"]),
        make("Mul", ["last", "one"], ["product"]),
        make("Reshape", ["product", "minus_one"], ["width"]),
        make("Concat", ["outer", "width"], ["target"], axis=0),
        make("Reshape", ["X", "target"], ["steps"]),
        make("LSTM", ["steps", "W", "R", "", "", "h0", "c0"], ["Y", "hn", "cn"], hidden_size=4),
        make("Squeeze", ["Y", "one"], ["flat"]),
        make("MatMul", ["flat", "A"], ["product_of_flat"]),
        make("Add", ["product_of_flat", "bias"], ["y"]),
    ]
    constants = [numbers("W", 1, 16, 3), numbers("R", 1, 16, 4), numbers("A", 4, 2), numbers("bias", 2)]
    constants += [constant("zero", 0), constant("one", 1), constant("two", 2), constant("three", 3)]
    constants.append(constant("minus_one", -1))
    states = [value(name, [1, 1, 4]) for name in ("h0", "c0")]
    outputs = [value("y", ["time", 1, 2]), *(value(name, [1, 1, 4]) for name in ("hn", "cn"))]
    model = model_of(nodes, [value("X", ["time", 1, 3]), *states], outputs, constants)
    model.graph.value_info.append(value("flat", [5, 1, 4]))
    return model


def words():
    """A table of 5 rows, an LSTM with sequence lengths, a dense layer; inputs `tokens`, `lengths` of whole numbers."""
    make = helper.make_node
    nodes = [
        make("Gather", ["table", "tokens"], ["embedded"]),
        make("LSTM", ["embedded", "W", "R", "", "lengths"], ["", "last"], hidden_size=3),
        make("Squeeze", ["last", "first_axis"], ["flat"]),
        make("Gemm", ["flat", "dense"], ["scores"], transB=1),
        make("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
    ]
    constants = [numbers("table", 5, 2), numbers("W", 1, 12, 2), numbers("R", 1, 12, 3), numbers("dense", 7, 3)]
    constants.append(numpy_helper.from_array(np.array([0]), "first_axis"))
    inputs = [value("tokens", ["time", "batch"], TensorProto.INT64), value("lengths", ["batch"], TensorProto.INT32)]
    outputs = [value("scores", ["batch", 7]), value("best", ["batch"], TensorProto.INT64)]
    return model_of(nodes, inputs, outputs, constants)


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
    make = helper.make_node("MatMul", ["x", "A"], ["y"])
    return model_of([make], [value("x", ["batch", 6])], [value("y", ["batch", 2])], [numbers("A", 6, 2)])


def quantized(opset=17):
    """A GRU and a product of 8 and 7 bits with its result in 8 bits, as quantizing tools write them; x (time, 1, 3)."""
    make, stored = helper.make_node, numpy_helper.from_array
    nodes = [make("GRU", ["x", "W", "R"], ["Y"], hidden_size=16), make("Squeeze", ["Y", "one"], ["h"])]
    for name, scale in (("h", "scale_of_h"), ("product", "scale_of_product")):
        nodes.append(make("QuantizeLinear", [name, scale, "zero"], [f"{name}_in_8_bits"]))
        nodes.append(make("DequantizeLinear", [f"{name}_in_8_bits", scale, "zero"], [f"{name}_rounded"]))
        if name == "h":
            nodes.append(make("DequantizeLinear", ["A", "scales_of_A"], ["A_rounded"], axis=1))
            nodes.append(make("MatMul", ["h_rounded", "A_rounded"], ["product"]))
    whole = np.random.default_rng(3).integers(-63, 64, (16, 5)).astype(np.int8)  # 8 bits would saturate without VNNI
    scales = {"scale_of_h": 1 / 127, "scale_of_product": 0.02, "scales_of_A": np.linspace(0.01, 0.02, 5)}
    constants = [stored(np.asarray(scale, np.float32), name) for name, scale in scales.items()]
    constants += [numbers("W", 1, 48, 3), numbers("R", 1, 48, 16), stored(whole, "A"), stored(np.array([1]), "one")]
    constants.append(stored(np.array(128, np.uint8), "zero"))
    model = model_of(nodes, [value("x", ["time", 1, 3])], [value("product_rounded", ["time", 1, 5])], constants)
    model.opset_import[0].version = opset
    return model


def selected():
    """The positive numbers of x: the size of the output depends on the values."""
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["positive"]),
        helper.make_node("Compress", ["x", "positive"], ["y"]),
    ]
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    return model_of(nodes, [value("x", [8])], [value("y", ["some"])], [zero])


def branch(name, nodes, result, constants=()):
    return helper.make_graph(nodes, name, [], [value(result, None)], constants)


def rates(kind=TensorProto.INT64, shape=()):
    """As Silero VAD: an If on the sampling rate. One branch has an LSTM, the other a GRU; both begin with a product."""
    names = {"LSTM": ("W", "R", "lstm_16k", 16), "GRU": ("Wg", "Rg", "gru_8k", 12)}
    first, second = (
        branch(
            name,
            [helper.make_node(kind, ["P", w, r], ["a"], hidden_size=4, name=name)],
            "a",
            [numbers(w, 1, gates, 3), numbers(r, 1, gates, 4)],
        )
        for kind, (w, r, name, gates) in names.items()
    )
    nodes = [
        helper.make_node("MatMul", ["X", "A"], ["P"]),
        helper.make_node("Equal", ["sr", "high"], ["fits"]),
        helper.make_node("Squeeze", ["fits"], ["is_high"]),
        helper.make_node("If", ["is_high"], ["Y"], then_branch=first, else_branch=second),
    ]
    inputs = [value("X", ["time", 1, 3]), value("sr", list(shape), kind)]
    stored = [
        numbers("A", 3, 3),
        numpy_helper.from_array(np.array(16000, helper.tensor_dtype_to_np_dtype(kind)), "high"),
    ]
    return model_of(nodes, inputs, [value("Y", ["time", 1, 1, 4])], stored)


#: Operations of `rates` at 5 steps: of its product, and of each branch.
PRODUCT, LSTM_FLOPS, GRU_FLOPS = 2 * 5 * 9, 2 * 5 * 16 * 7, 2 * 5 * 12 * 7


def saved(model, folder, name="network"):
    """Write `model` as `name`.onnx; returns the path."""
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path
