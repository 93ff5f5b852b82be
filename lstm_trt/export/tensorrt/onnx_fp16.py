"""Conversion of an ONNX network to float16, with float32 inputs and outputs.

TensorRT takes the precision from the graph (networks are strongly typed), so half precision needs a
different graph. Weights, biases, initial states and constants are float16, and so are sums: the
cell state loses precision at every step, which the parity check covers.
"""

from __future__ import annotations

import numpy as np

from lstm_trt.config.errors import BuildFailed, any_error, one_line
from lstm_trt.config.libraries import onnx
from lstm_trt.export.onnx_checks import graphs, is_float32, retype

HALF = "__half"


def to_half(model: onnx.ModelProto, name: str = "network") -> onnx.ModelProto:
    """The same network in float16: weights, biases, states and constants; float32 inputs and
    outputs.

    Each float32 input is cast at the start, each float32 output at the end. Raises `BuildFailed`
    for a number beyond +-65504 or an operator that does not support float16.
    """
    half = onnx.ModelProto()
    half.CopyFrom(model)
    graph, to = half.graph, onnx.TensorProto
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [v.name for v in graph.input if v.name not in constants and is_float32(v)]
    outputs = [v.name for v in graph.output if is_float32(v)]
    for each in graphs(graph):
        del each.value_info[:]
        for node in each.node:
            _halve(node, {*inputs, *outputs})
    values = [v for each in graphs(graph)[1:] for v in (*each.input, *each.output)]
    values += [v for v in graph.input if v.name in constants]
    retype(half, values, to.FLOAT16, name)
    middle, cast = list(graph.node), onnx.helper.make_node
    del graph.node[:]
    graph.node.extend(cast("Cast", [i], [i + HALF], f"{i}_to_half", to=to.FLOAT16) for i in inputs)
    graph.node.extend(middle)
    graph.node.extend(cast("Cast", [o + HALF], [o], f"{o}_to_float", to=to.FLOAT) for o in outputs)
    with any_error(BuildFailed, f"{name} cannot be written in float16", one_line):
        onnx.checker.check_model(half, full_check=True)
    return half


def _halve(node: onnx.NodeProto, renamed: set[str]) -> None:
    """Rename the tensors in `renamed`, and make a tensor of each constant number and type float16
    of float32."""
    for names in (node.input, node.output):
        names[:] = [used + HALF if used in renamed else used for used in names]
    if node.op_type == "ConstantOfShape" and not node.attribute:  # its default is a float32 zero
        node.attribute.append(
            onnx.helper.make_attribute("value", onnx.helper.make_tensor("value", 1, [1], [0.0]))
        )
    for attribute in node.attribute:
        if (
            node.op_type == "Cast"
            and attribute.name == "to"
            and attribute.i == onnx.TensorProto.FLOAT
        ):
            attribute.i = onnx.TensorProto.FLOAT16
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            numbers = np.array(onnx.helper.get_attribute_value(attribute), np.float32)
            attribute.CopyFrom(
                onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(numbers))
            )
