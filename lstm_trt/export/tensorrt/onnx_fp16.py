"""Conversion of an ONNX network to float16, with float32 inputs and outputs.

TensorRT takes the precision from the graph (networks are strongly typed), so half precision needs a
different graph. Weights, biases, initial states and constants are float16, and so are sums: the
cell state loses precision at every step, which the parity check covers.
"""

from __future__ import annotations

import numpy as np

from lstm_trt.config.errors import BuildFailed, any_error, one_line
from lstm_trt.config.libraries import onnx
from lstm_trt.export.onnx_checks import is_float32, retype
from lstm_trt.export.sizes import graphs

HALF = "__half"


def to_half(model: onnx.ModelProto, name: str = "network") -> onnx.ModelProto:
    """The same network in float16: weights, biases, states and constants; float32 inputs and
    outputs.

    Each float32 input is cast at the start, each float32 output at the end. Raises `BuildFailed`
    for a number beyond +-65504 or an operator that does not support float16.
    """
    half = onnx.ModelProto()
    half.CopyFrom(model)
    graph = half.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [v.name for v in graph.input if v.name not in constants and is_float32(v)]
    outputs = [v.name for v in graph.output if is_float32(v)]
    values = [v for v in graph.input if v.name in constants]
    for each in graphs(graph):
        del each.value_info[:]
        if each is not graph:
            values += [*each.input, *each.output]
        for node in each.node:
            _halve(node, {*inputs, *outputs})
    retype(half, values, onnx.TensorProto.FLOAT16, name)
    middle = list(graph.node)
    del graph.node[:]
    for tensor in inputs:
        graph.node.append(
            _cast(tensor, tensor + HALF, onnx.TensorProto.FLOAT16, f"{tensor}_to_half")
        )
    graph.node.extend(middle)
    for tensor in outputs:
        graph.node.append(
            _cast(tensor + HALF, tensor, onnx.TensorProto.FLOAT, f"{tensor}_to_float")
        )
    with any_error(BuildFailed, f"{name} cannot be written in float16", one_line):
        onnx.checker.check_model(half, full_check=True)
    return half


def _cast(tensor: str, result: str, number: int, name: str) -> onnx.NodeProto:
    return onnx.helper.make_node("Cast", [tensor], [result], name, to=number)


def _halve(node: onnx.NodeProto, renamed: set[str]) -> None:
    """Rename the tensors in `renamed`, and make a tensor of each constant number and type float16
    of float32."""
    for names in (node.input, node.output):
        names[:] = [used + HALF if used in renamed else used for used in names]
    if node.op_type == "ConstantOfShape" and not node.attribute:  # its default is a float32 zero
        _set_value(node.attribute.add(), np.zeros(1, np.float32))
    for attribute in node.attribute:
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            numbers = np.array(onnx.helper.get_attribute_value(attribute), np.float32)
            _set_value(attribute, numbers)
        elif node.op_type == "Cast" and attribute.name == "to":
            if attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.FLOAT16


def _set_value(attribute: onnx.AttributeProto, numbers: np.ndarray) -> None:
    """Make it the attribute `value` with a tensor, which `retype` converts."""
    tensor = onnx.numpy_helper.from_array(numbers)
    attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
