"""Conversion of an ONNX network to float16, with float32 inputs and outputs.

TensorRT takes the precision from the graph (networks are strongly typed), so half precision needs a different graph.
Weights, biases, initial states and constants are float16, and so are sums: the cell state loses precision at every
step, which the parity check covers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lstm_trt.config.errors import BuildFailed, one_line

if TYPE_CHECKING:
    import onnx


HALF_MAXIMUM = 65504.0

HALF = "__half"


def to_half(model: onnx.ModelProto, name: str = "network") -> onnx.ModelProto:
    """The same network in float16: weights, biases, states and constants; float32 inputs and outputs.

    Each float32 input is cast at the start, each float32 output at the end. Raises `BuildFailed` for a number beyond
    +-65504 or an operator that does not support float16.
    """
    import onnx

    half = onnx.ModelProto()
    half.CopyFrom(model)
    graph = half.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [v.name for v in graph.input if v.name not in constants and _is_float(v)]
    outputs = [v.name for v in graph.output if _is_float(v)]
    _halve(graph, dict.fromkeys((*inputs, *outputs)), name)
    for value in (v for v in graph.input if v.name in constants and _is_float(v)):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    middle, cast = list(graph.node), onnx.helper.make_node
    del graph.node[:]
    graph.node.extend(cast("Cast", [i], [i + HALF], f"{i}_to_half", to=onnx.TensorProto.FLOAT16) for i in inputs)
    graph.node.extend(middle)
    graph.node.extend(cast("Cast", [o + HALF], [o], f"{o}_to_float", to=onnx.TensorProto.FLOAT) for o in outputs)
    try:
        onnx.checker.check_model(half, full_check=True)
    except Exception as error:
        raise BuildFailed(f"{name} cannot be written in float16: {one_line(error)}") from None
    return half


def _is_float(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type == 1  # TensorProto.FLOAT


def _halve(graph: onnx.GraphProto, renamed: dict[str, None], name: str) -> None:
    """Convert constants to float16 and rename the tensors in `renamed`, also in inner graphs."""
    import onnx

    del graph.value_info[:]
    for tensor in graph.initializer:
        _halve_tensor(tensor, name)
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [used + HALF if used in renamed else used for used in names]
        if node.op_type == "ConstantOfShape" and not node.attribute:  # its default is a float32 zero
            node.attribute.append(onnx.helper.make_attribute("value", onnx.helper.make_tensor("value", 1, [1], [0.0])))
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _halve_tensor(attribute.t, name)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.FLOAT16
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                numbers = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
                sizes = [] if attribute.name == "value_float" else [len(numbers)]
                attribute.CopyFrom(onnx.helper.make_attribute("value", onnx.helper.make_tensor("", 1, sizes, numbers)))
                _halve_tensor(attribute.t, name)
            inner_graphs = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
            for inner in inner_graphs:  # accessing an unset `g` would create it
                _halve(inner, renamed, name)
                for value in filter(_is_float, (*inner.input, *inner.output)):
                    value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16


def _halve_tensor(tensor: onnx.TensorProto, name: str) -> None:
    import numpy as np
    import onnx

    if tensor.data_type != onnx.TensorProto.FLOAT:
        return
    numbers = onnx.numpy_helper.to_array(tensor)
    largest = float(np.max(np.abs(numbers[np.isfinite(numbers)]), initial=0))
    if largest > HALF_MAXIMUM:
        raise BuildFailed(f"{name} has {largest:g} in {tensor.name!r}, above float16's {HALF_MAXIMUM:g}: use fp32")
    tensor.CopyFrom(onnx.numpy_helper.from_array(numbers.astype(np.float16), tensor.name))
