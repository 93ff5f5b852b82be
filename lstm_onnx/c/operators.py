"""How each operator is computed: a table of handlers, which append stages to a program.

A convolution is a product of its windows, which are addresses: the result has its channels side by side, so that the
windows of the next one are rows in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lstm_onnx.c.node import Node
from lstm_onnx.c.program import FILL, Program, once
from lstm_onnx.c.recurrent import recurrent
from lstm_onnx.c.stages import Binary, Data, Pointwise, Value
from lstm_trt.config.libraries import onnx
from lstm_trt.export.onnx_checks import RECURRENT

#: Operators that move numbers without changing them.
MOVES = {
    "Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
}  # fmt: skip

#: Operators of which the outputs follow from sizes.
SIZES = {"Shape", "Size"}

#: Pointwise operator -> function of `kernel.c`; attributes or further inputs that are its parameters, with defaults.
POINTWISE: dict[str, tuple[str, dict[str, float]]] = {
    "Relu": ("relu", {}),
    "Sigmoid": ("logistic", {}),
    "Tanh": ("tangent", {}),
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "Elu": ("elu", {"alpha": 1.0}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "Softsign": ("softsign", {}),
    "Sqrt": ("square_root", {}),
    "Exp": ("power_of_e", {}),
    "Clip": ("clip", {"min": -math.inf, "max": math.inf}),
}

#: Operator of two tensors or more -> function of `kernel.c`.
ARITHMETIC = {"Add": "sum", "Sub": "difference", "Mul": "times", "Div": "quotient", "Max": "larger", "Min": "smaller"}

#: Function of `kernel.c` -> that of its operands in the other order.
SWAPPED = {"difference": "subtracted", "quotient": "divisor"}

#: Operator -> those by which it is computed, with inputs and output; of its own inputs all but the first are constants.
DEFINITIONS = {
    "Softmax": (
        ("ReduceMax", "x axes", "most"), ("Sub", "x most", "d"), ("Exp", "d", "e"), ("ReduceSum", "e axes", "all"),
        ("Div", "e all", "y"),
    ),
    "LayerNormalization": (
        ("ReduceMean", "x axes", "mean"), ("Sub", "x mean", "d"), ("Mul", "d d", "squares"),
        ("ReduceMean", "squares axes", "variance"), ("Add", "variance epsilon", "more"), ("Sqrt", "more", "deviation"),
        ("Div", "d deviation", "normal"), ("Mul", "normal scale", "scaled"), ("Add", "scaled bias", "y"),
    ),
    "BatchNormalization": (("Mul", "x scale", "scaled"), ("Add", "scaled bias", "y")),
}  # fmt: skip


# Functions of each number


def _pointwise(program: Program, node: Node) -> list[Value]:
    function, defaults = POINTWISE[node.kind]
    parameters = []
    for place, (name, default) in enumerate(defaults.items(), 1):
        value = node.get(place)
        if isinstance(value, Data):
            raise node.refused("its bounds must be constants")
        parameters.append(float(node.has.get(name, default) if value is None else value))
    return [program.each(Pointwise, node.inputs[0], function, tuple(parameters))]


def _root(program: Program, data: Data) -> Data:
    return program.each(Pointwise, data, "square_root", ())


def _power(program: Program, node: Node) -> list[Value]:
    data, exponent = node.inputs
    if isinstance(exponent, Data) or exponent.size != 1 or exponent.item() not in (0.5, 1, 2, 3):
        raise node.refused("the C kernel has powers with the constant exponents 0.5, 1, 2, and 3")
    if exponent.item() == 0.5:
        return [_root(program, data)]
    power = data
    for _ in range(int(exponent.item()) - 1):
        power = program.each(Binary, power, "times", others=[data])
    return [power]


def _cast(program: Program, node: Node) -> list[Value]:
    if node.has["to"] != onnx.TensorProto.FLOAT:
        raise node.refused("the C kernel has float32 only")
    return _same(program, node)


def _unmoved(program: Program, node: Node) -> list[Value]:
    raise node.refused("the C kernel has float32 only")


def _same(program: Program, node: Node) -> list[Value]:
    """The same numbers, as another tensor: a bias that is added to it must not change the first."""
    return [Data(program.data(node.inputs[0]).at)]


# Two tensors or more


def _arithmetic(program: Program, node: Node) -> list[Value]:
    value = node.inputs[0]
    for place, other in enumerate(node.inputs[1:], 1):
        name = node.proto.input[place if isinstance(value, np.ndarray) else 0]
        value = _of_two(program, node, value, other, used_once=program.uses[name] == 1)
    return [value]


def _of_two(program: Program, node: Node, first: Any, second: Any, used_once: bool) -> Data:
    function = ARITHMETIC[node.kind]
    data, constant = first, second
    if not isinstance(first, Data):
        data, constant = second, first
        function = SWAPPED.get(function, function)
    shape = np.broadcast_shapes(
        *(value.at.shape if isinstance(value, Data) else value.shape for value in (first, second))
    )
    if isinstance(constant, Data) or shape != data.at.shape:
        one, other = (Data(np.broadcast_to(program.data(value).at, shape)) for value in (first, second))
        return program.each(Binary, one, ARITHMETIC[node.kind], others=[other])
    whole = np.broadcast_to(node.constant(constant, "one operand"), shape)
    row = _row(whole, data)
    if row is None:
        return program.each(Binary, data, function, others=[program.data(whole)])
    rows = whole.size // row.size
    for product, stage in program.products:
        if node.kind == "Add" and used_once and product is data and stage.rows == rows:
            stage.bias = stage.bias + row
            return data
    return program.each(Binary, data, program.stored(row).at[0], function, rows, True)


def _row(constant: np.ndarray, data: Data) -> np.ndarray | None:
    """What all rows of a constant have, in the order in which `data` lies; None if it repeats otherwise."""
    flat = constant.ravel()[np.argsort(data.at, axis=None, kind="stable")]
    for width in (*constant.shape[-1:], *constant.shape, 1):
        if flat.size and (flat.reshape(-1, width) == flat[:width]).all():
            return flat[:width]
    return flat if once(constant).size == flat.size else None


# Reductions


def _reduced(program: Program, node: Node) -> list[Value]:
    data = node.inputs[0]
    if node.kind == "ReduceL2":
        data = program.each(Binary, data, "times", others=[data])
    rows, shape = _rows_of(node, data)
    if node.kind == "ReduceMax":
        return [Data(_halved(program, rows, "larger").reshape(shape))]
    share = 1 / rows.shape[1] if node.kind == "ReduceMean" else 1.0
    ones = np.full((rows.shape[1], 1), share, np.float32)
    sums = program.product(rows, ones, np.zeros(1, np.float32))
    if node.kind == "ReduceL2":
        sums = _root(program, sums)
    return [Data(sums.at.reshape(shape))]


def _rows_of(node: Node, data: Data) -> tuple[np.ndarray, list[int]]:
    """The addresses that are reduced to one number each, (numbers, k), and the shape of the result."""
    given = node.get(1)
    axes = node.has.get("axes") if given is None else given
    if isinstance(axes, Data):
        raise node.refused("its axes must be constants")
    if axes is None or not len(axes):
        axes = [] if node.has.get("noop_with_empty_axes") else range(data.at.ndim)
    axes = [int(axis) % data.at.ndim for axis in axes]
    shape = [1 if axis in axes else size for axis, size in enumerate(data.at.shape)]
    if not node.has.get("keepdims", 1):
        shape = [size for axis, size in enumerate(shape) if axis not in axes]
    last = np.moveaxis(data.at, axes, range(-len(axes), 0))
    return last.reshape(math.prod(shape), -1), shape


def _halved(program: Program, rows: np.ndarray, function: str) -> np.ndarray:
    """Rows of addresses reduced to one column by a function of two halves, which share a column if it is odd."""
    while rows.shape[1] > 1:
        half = -(-rows.shape[1] // 2)
        rows = program.each(Binary, Data(rows[:, :half]), function, others=[Data(rows[:, -half:])]).at
    return rows


# Products


def _dense(program: Program, node: Node) -> list[Value]:
    has = node.has
    data = node.inputs[0]
    matrix = node.constant(node.inputs[1], "the second factor")
    if not isinstance(data, Data) or has.get("transA"):
        raise node.refused("the C kernel multiplies rows of data by a constant matrix")
    if has.get("transB"):
        matrix = matrix.T
    if matrix.ndim == 1 or math.prod(matrix.shape[:-2]) != 1:
        raise node.refused("the second factor must be a matrix")
    k, columns = matrix.shape[-2:]
    bias = np.zeros(columns, np.float32)
    if node.get(2) is not None:
        given = has.get("beta", 1.0) * node.constant(node.get(2), "the bias")
        each = np.broadcast_to(given, (data.at.shape[0], columns))
        bias = each[0]
        if (each != bias).any():
            raise node.refused("its bias must be the same for all rows")
    shape = (*np.broadcast_shapes(data.at.shape[:-2], matrix.shape[:-2]), *data.at.shape[-2:-1], columns)
    matrix = has.get("alpha", 1.0) * matrix.reshape(k, columns)
    y = Data(program.product(data.at.reshape(-1, k), matrix, bias).at.reshape(shape))
    program.products.append((y, program.stages[-1]))
    return [y]


def _convolution(program: Program, node: Node) -> list[Value]:
    data = program.data(node.inputs[0]).at
    weights = node.constant(node.inputs[1], "its kernel")
    bias = np.zeros(len(weights), np.float32)
    if len(node.inputs) > 2:
        bias = node.constant(node.inputs[2], "its bias")
    kernel = weights.shape[2:]
    windows = _windows(program, node, np.moveaxis(data, 1, -1), kernel)
    windows = np.moveaxis(windows, len(kernel) + 1, -1)  # (batch, places, kernel, channels)
    shape = windows.shape[: len(kernel) + 1]
    groups = node.has.get("group", 1)
    parts = (np.split(windows, groups, axis=-1), np.split(weights, groups), np.split(bias, groups))
    found = []
    for window, matrix, each in zip(*parts, strict=True):
        flat = np.moveaxis(matrix, 1, -1).reshape(len(matrix), -1)
        found.append(program.product(window.reshape(-1, flat.shape[1]), flat.T, each).at)
    y = np.concatenate(found, axis=1).reshape(*shape, len(weights))
    return [Data(np.moveaxis(y, -1, 1))]


def _windows(program: Program, node: Node, data: np.ndarray, kernel: Sequence[int]) -> np.ndarray:
    """The windows of addresses (batch, ..., channels), padded with zeros: (batch, places, channels, kernel)."""
    strides = node.has.get("strides") or (1,) * len(kernel)
    dilations = node.has.get("dilations") or (1,) * len(kernel)
    spans = [each * (size - 1) + 1 for each, size in zip(dilations, kernel, strict=True)]
    pads = _pads(node, data.shape[1:-1], spans, strides)
    padded = np.pad(data, [(0, 0), *pads.tolist(), (0, 0)], constant_values=FILL)
    padded = program.filled(padded)
    padded = program.address(Data(padded)) + np.arange(padded.size).reshape(padded.shape)
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, tuple(range(1, len(kernel) + 1)))
    return windows[tuple(slice(None, None, step) for step in (1, *strides, 1, *dilations))]


def _pads(node: Node, sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """Numbers before and after each axis of a window, (axes, 2)."""
    padding = node.has.get("auto_pad", "NOTSET")
    if not padding.startswith("SAME"):
        return np.reshape(node.has.get("pads") or (0,) * 2 * len(sizes), (2, -1)).T
    lacks = []
    for size, stride, span in zip(sizes, strides, spans, strict=True):
        lacks.append(max((-(-size // stride) - 1) * stride + span - size, 0))
    less = np.array(lacks) // 2
    both = [less, np.array(lacks) - less]
    return np.stack(both if padding == "SAME_UPPER" else both[::-1], axis=1)


# Operators that are computed by others


def _defined(program: Program, node: Node) -> list[Value]:
    data, *given = node.inputs
    constants = [node.constant(value, "each input but the first") for value in given]
    epsilon = np.array(node.has.get("epsilon", 1e-5), np.float32)
    rank = data.at.ndim
    of_one_axis = node.kind == "Softmax" and program.opsets[""] >= 13  # before, it was of a matrix
    axis = node.has.get("axis", 1 if node.kind == "Softmax" and not of_one_axis else -1) % rank
    if node.kind == "BatchNormalization":
        scale, bias, mean, variance = (value.reshape(-1, *(1,) * (rank - 2)) for value in constants)
        scale = scale / np.sqrt(variance + epsilon)
        constants = [scale, bias - mean * scale]
    values: dict[str, Value] = {
        "x": data,
        "axes": np.arange(axis, axis + 1 if of_one_axis else rank),
        "epsilon": epsilon,
        "bias": np.zeros(1, np.float32),
    }
    values.update(zip(("scale", "bias"), constants, strict=False))
    return [_by_rows(program, node, DEFINITIONS[node.kind], values)]


def _by_rows(program: Program, node: Node, rows: Sequence[tuple[str, str, str]], values: dict[str, Value]) -> Value:
    """What rows of `DEFINITIONS` compute."""
    parts = [onnx.helper.make_node(kind, names.split(), [output]) for kind, names, output in rows]
    return program.expanded(node, parts, values, "y")


Handler = Callable[[Program, Node], Sequence[Value]]

#: Operator -> what appends its stages and returns its outputs, where an input varies. Operators of `MOVES` are
#: evaluated on addresses instead, where only what they move varies.
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(RECURRENT, recurrent),
    "Conv": _convolution,
    **dict.fromkeys(("MatMul", "Gemm"), _dense),
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceL2", "ReduceMax"), _reduced),
    **dict.fromkeys(DEFINITIONS, _defined),
    **dict.fromkeys(POINTWISE, _pointwise),
    "Pow": _power,
    "Cast": _cast,
    "Dropout": _same,
    **dict.fromkeys((*MOVES, *SIZES), _unmoved),
}


def known_operators() -> list[str]:
    """What a message names of the operators that compute."""
    known = [*RECURRENT, "Conv", "dense layers"]
    for name in HANDLERS:
        if name not in (*known, "MatMul", "Gemm", "Pow", "Cast", "Dropout", *MOVES, *SIZES):
            known.append(name)
    return known
