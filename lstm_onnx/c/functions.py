"""Operators that ONNX defines by other operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from lstm_onnx.c.node import Node
from lstm_onnx.c.stages import Data, Value
from lstm_trt.config.libraries import onnx

#: Those that are right in float32, and have no row in `operators.DEFINITIONS`: the definition of
#: Softplus, for example, is infinite for numbers above 88, and that of LayerNormalization loses the
#: digits of numbers with a large mean.
BY_FUNCTION = (
    "Celu", "Gelu", "GreaterOrEqual", "HardSwish", "LessOrEqual", "MeanVarianceNormalization",
    "Mish", "PRelu", "RMSNormalization", "Selu", "Shrink", "SwiGLU", "Swish", "ThresholdedRelu",
)  # fmt: skip


def function_of(node: Node, opset: int) -> tuple[list[onnx.NodeProto], list[str], list[str], int]:
    """The operators of the definition, its names of inputs and outputs, and its opset.

    It is that of `opset`, or else the first one after it. Raises `BuildFailed` without any.
    """
    import onnx.inliner

    schema: Any = onnx.defs.get_schema(node.kind, "")
    versions = {opset, schema.since_version, *schema.all_function_opset_versions}
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    proto.input[:] = [f"in{place}" if name else "" for place, name in enumerate(node.proto.input)]
    proto.output[:] = [f"out{place}" for place in range(len(node.proto.output))]
    given = {attribute.name for attribute in proto.attribute}
    for name, attribute in schema.attributes.items():  # the inliner leaves defaults out
        if name not in given and attribute.default_value.name:
            proto.attribute.append(attribute.default_value)
    inputs = [
        _described(name, value)
        for name, value in zip(proto.input, node.inputs, strict=True)
        if name
    ]
    outputs = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in proto.output
    ]
    graph = onnx.helper.make_graph([proto], "one", inputs, outputs)
    for version in sorted(each for each in versions if each >= opset):
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
        model = onnx.inliner.inline_selected_functions(
            model, [("", node.kind)], inline_schema_functions=True
        )
        if all(part.op_type != node.kind for part in model.graph.node):
            return list(model.graph.node), list(proto.input), list(proto.output), version
    raise node.refused("this version of ONNX has no definition of it by other operators")


def _described(name: str, value: Value) -> onnx.ValueInfoProto:
    """The type and shape of an input."""
    array = np.empty(value.shape, np.float32) if isinstance(value, Data) else value
    return onnx.helper.make_tensor_value_info(
        name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )
