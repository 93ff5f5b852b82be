"""What a graph at known sizes computes: its recurrent layers, operations and parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lstm_onnx.constants import operators, scanned
from lstm_trt.config.libraries import onnx
from lstm_trt.config.workload import RecurrentLayer
from lstm_trt.export import onnx_checks
from lstm_trt.export.onnx_checks import RECURRENT
from lstm_trt.export.sizes import Sizes, attributes, bodies, known_sizes

#: ONNX's numbers of the element types that parameters have.
FLOATS = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}

#: Those of quantized weights, unsigned and signed.
INT8 = (2, 3)

#: Domains of ONNX's own operators.
ONNX_DOMAINS = ("", "ai.onnx")

#: Operators with products of two tensors.
PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")

#: Operators with products whose number, or whose rate, is not that of float32 products.
UNCOUNTED = (
    "Attention",
    "ConvInteger",
    "DFT",
    "Einsum",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
    "STFT",
)

#: `RecurrentLayer.within` of an operator that has constants only, which runtimes compute once.
CONSTANTS = "constants"

#: An attribute that recurrent operators get here: the mean of the lengths of their sequences.
MEAN_LENGTH = "mean_length"

#: Operations that a graph has at least, and whether it has no others.
Operations = tuple[int, bool]


def stored_numbers(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Stored tensors of floating point, and quantized weights."""
    return [
        tensor
        for tensor in onnx_checks.tensors(model.graph)
        if tensor.data_type in FLOATS.values()
        or (tensor.data_type in INT8 and len(tensor.dims) > 1)
    ]


def count_parameters(model: onnx.ModelProto) -> int:
    """`stored_numbers`, without those with which tensors are filled."""
    count = sum(math.prod(tensor.dims) for tensor in stored_numbers(model))
    for node in onnx_checks.nodes(model.graph):
        if node.op_type == "ConstantOfShape":
            count -= sum(each.t.data_type in FLOATS.values() for each in node.attribute)
    return count


def layers_of(graph: onnx.GraphProto, inputs: Iterable[str]) -> tuple[RecurrentLayer, ...]:
    """The recurrent operators of a graph with these inputs; its other inputs are weights."""
    varying = _varying(graph, inputs)
    found = []
    for node, known, within in operators(graph):
        constant = not within and varying.isdisjoint(node.input)
        found.append(_layer(node, known, CONSTANTS if constant else within))
    return tuple(filter(None, found))


def _layer(node: onnx.NodeProto, known: Sizes, within: str = "") -> RecurrentLayer | None:
    """A recurrent operator with its sizes as far as they are known, those of ONNX Runtime included;
    None for others."""
    if not node.op_type.endswith(tuple(RECURRENT)) or node.domain not in (
        *ONNX_DOMAINS,
        "com.microsoft",
    ):
        return None
    shapes = []
    for name in node.input[:3]:
        sizes = known.get(name, ())
        shapes.append(sizes if len(sizes) == 3 else (None, None, None))
    (sequence, batch, _), w, r = shapes
    has = attributes(node)
    if has.get("layout"):
        sequence, batch = batch, sequence
    columns = 1 if node.op_type.startswith("DynamicQuantize") else 2  # which has them transposed
    steps = has.get(MEAN_LENGTH)
    return RecurrentLayer(
        node.op_type,
        r[columns] or has.get("hidden_size"),
        w[columns],
        sequence,
        batch,
        has.get("direction", "forward"),
        name_of(node),
        bias=any(node.input[3:4]),
        within=within,
        steps=None if steps == sequence else steps,
    )


def name_of(node: onnx.NodeProto) -> str:
    """The name of an operator; that of its first output if it has none."""
    return next(filter(None, (node.name, *node.output)), "")


def _varying(graph: onnx.GraphProto, inputs: Iterable[str]) -> set[str]:
    """Tensors that are no constants, given the inputs that are none."""
    varying = set(inputs)
    for node in graph.node:
        if bodies(node) or not varying.isdisjoint(node.input):
            varying.update(filter(None, node.output))
    return varying


def count_flops(graph: onnx.GraphProto, outer: Sizes, varying: Iterable[str]) -> Operations:
    """Operations that a call has at least, and whether it has no others.

    `outer`: sizes of tensors around the graph. `varying`: tensors that are not constants. Those of
    constants are not counted, since runtimes compute them once.
    """
    known = {**outer, **known_sizes(graph)}
    varying = _varying(graph, varying)
    dequantized: set[str] = set()
    least = 0
    complete = True
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            dequantized.update(node.output)
        if bodies(node):
            flops, sure = _of_bodies(node, known, varying)
        elif varying.isdisjoint(node.input):
            continue
        elif node.op_type in PRODUCTS and not dequantized.isdisjoint(node.input):
            flops, sure = 0, False  # runtimes multiply whole numbers instead
        else:
            flops, sure = _flops(node, known)
        least += flops
        complete &= sure
    return least, complete


def _of_bodies(node: onnx.NodeProto, known: Sizes, varying: set[str]) -> Operations:
    """Those of the bodies of an operator; of branches, the fewest."""
    counts = [
        count_flops(body, known, varying.union(value.name for value in body.input))
        for body in bodies(node).values()
    ]
    flops, _ = min(counts)
    times = scanned(node, known) if node.op_type == "Scan" else 1
    if times is None or node.op_type == "Loop":  # how often is not known
        return 0, set(counts) == {(0, True)}
    return times * flops, set(counts) == {(flops, True)}


def _flops(node: onnx.NodeProto, known: Sizes) -> Operations:
    """Multiplications and additions of matrix products and convolutions, 0 for other operators;
    whether it is known."""
    if node.op_type in UNCOUNTED or node.domain not in ONNX_DOMAINS:
        return 0, False
    layer = _layer(node, known)
    if layer:
        return layer.flops, layer.counted
    if node.op_type not in PRODUCTS:
        return 0, True
    first, second, result = (known.get(name, (None,)) for name in (*node.input[:2], node.output[0]))
    per_place = first if node.op_type == "ConvTranspose" else result
    if not second or not per_place or None in (*second, *per_place):
        return 0, False
    if node.op_type in ("Conv", "ConvTranspose"):
        # each weight of one output channel (of one input channel, if transposed) per position
        return 2 * math.prod(per_place) * math.prod(second[1:]), True
    # The second operand states the number of terms of each sum.
    axis = 1 if attributes(node).get("transB") else max(len(second) - 2, 0)
    return 2 * math.prod(result) * second[axis], True
