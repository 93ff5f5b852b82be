"""Changes of a graph before it is read: operators that go into others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from lstm_onnx.streamed import SUM
from lstm_trt.config.libraries import onnx
from lstm_trt.export.sizes import attributes


def fold_normalizations(graph: onnx.GraphProto) -> None:
    """Change a graph in place: a BatchNormalization after a Conv or Gemm goes into its weights."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    made = {node.output[0]: node for node in graph.node}
    uses = Counter(value.name for value in graph.output)
    for node in graph.node:
        uses.update(node.input)
    for node in list(graph.node):
        product = made.get(node.input[0]) if node.op_type == "BatchNormalization" else None
        if product is None or uses[node.input[0]] > 1:
            continue
        if product.op_type not in ("Conv", "Gemm") or attributes(product).get("beta", 1.0) != 1.0:
            continue
        if constants.keys() >= {*product.input[1:], *node.input[1:]}:
            _fold(graph, constants, product, node)


def _fold(
    graph: onnx.GraphProto,
    constants: dict[str, onnx.TensorProto],
    product: onnx.NodeProto,
    node: onnx.NodeProto,
) -> None:
    """Compute the weights and the bias of a product with the normalization that follows."""
    names = [*product.input[1:], *node.input[1:]]
    weights, *old, scale, bias, mean, variance = [
        onnx.numpy_helper.to_array(constants[name]) for name in names
    ]
    scale = scale / np.sqrt(variance.astype(np.float64) + attributes(node).get("epsilon", 1e-5))
    if product.op_type == "Conv" or attributes(product).get("transB"):
        weights = (weights.T * scale).T
    else:
        weights = weights * scale
    bias = (sum(old) - mean) * scale + bias
    product.input[1:] = [f"{node.output[0]}, {what}" for what in ("weights", "bias")]
    product.output[0] = node.output[0]
    for name, array in zip(product.input[1:], (weights, bias), strict=True):
        graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    graph.node.remove(node)


def fold_first_states(
    graph: onnx.GraphProto, carried: dict[str, str], kept: Sequence[str]
) -> dict[str, str]:
    """Change a graph and `carried` in place: states themselves, not what they differ by.

    Such states are those of `lstm_onnx.streamed`. Returns input -> name of the first value, of
    those not in `kept`.
    """
    made = {name: node for node in graph.node for name in node.output}
    found = {}
    for before, after in carried.items():
        begin = made.get(f"{before}{SUM}")
        if begin is None or before in kept:
            continue
        found[before] = begin.input[1]
        begin.op_type = "Identity"
        del begin.input[1:]
        carried[before] = made[after].input[0]
        graph.node.remove(made[after])
    return found
