"""How each operator is computed: a table of handlers, which append stages to a program.

A convolution is a product of its windows, which are addresses: the result has its channels side by
side, so that the windows of the next one are rows in memory.

A new operator takes the first of these that fits:

1. `MOVES`, if it only moves numbers (Tile): it is evaluated on their addresses.
2. `functions.BY_FUNCTION`, if ONNX defines it by operators that have handlers (HardSwish), and this
   definition is right for large numbers, infinities and sums that cancel.
3. `DEFINITIONS`, if it can be written as other operators (LogSoftmax).
4. `POINTWISE` or `ARITHMETIC`, if it is a function of each number or of two (Sign), with that
   function in `kernel.c`, and for one number in `kernel_generic.c`.
5. A handler in `HANDLERS`: a function of the program and the node, which returns the outputs.
   `Data` are arrays of addresses, so that indexing, transposing and joining them costs nothing
   (what `np.concatenate`, `np.stack` and `np.pad` return needs `.view(Data)`). `program.each`
   computes each number, `program.product` rows times a constant matrix, and a `Call` whatever a
   new function of `kernel.c` does. `node.refused("why, and what to do")` is the error for the rest.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lstm_onnx.c.functions import BY_FUNCTION, function_of
from lstm_onnx.c.node import Node
from lstm_onnx.c.program import FILL, Program, once, rows_of
from lstm_onnx.c.recurrent import recurrent
from lstm_onnx.c.stages import Addresses, Binary, Call, Data, Pointwise, Value, is_constant
from lstm_trt.config.libraries import onnx
from lstm_trt.export.onnx_checks import RECURRENT

#: Operators that move numbers without changing them.
MOVES = (
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
    "Identity", "Pad", "Reshape", "Slice", "SpaceToDepth", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip

#: Operators of which the outputs follow from sizes.
SIZES = ("Shape", "Size")

#: Pointwise operator -> function of `kernel.c`.
POINTWISE = {
    "Relu": "relu",
    "Sigmoid": "logistic",
    "Tanh": "tangent",
    "LeakyRelu": "leaky_relu",
    "Elu": "elu",
    "HardSigmoid": "hard_sigmoid",
    "Softsign": "softsign",
    "Sqrt": "square_root",
    "Exp": "power_of_e",
    "Clip": "clip",
    "Neg": "negated",
    "Abs": "absolute",
    "Reciprocal": "inverse",
    "Log": "natural_log",
    "Erf": "error_function",
}

#: Attributes or further inputs that are parameters of these functions, with their defaults.
PARAMETERS = {
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Clip": {"min": -math.inf, "max": math.inf},
}

#: Operator of two tensors or more -> function of `kernel.c`. Of a condition 1 is true and 0 is
#: false.
ARITHMETIC = {
    "Add": "sum",
    "Sub": "difference",
    "Mul": "times",
    "Div": "quotient",
    "Max": "larger",
    "Min": "smaller",
    "Sum": "sum",
    "Less": "less",
    "Greater": "greater",
    "Equal": "equal",
    "And": "times",
    "Or": "larger",
}

#: Operators that answer with conditions.
CONDITIONS = {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Not", "And", "Or"}

#: Function of `kernel.c` -> that of its operands in the other order.
SWAPPED = {"difference": "subtracted", "quotient": "divisor", "less": "greater", "greater": "less"}

#: Reduction -> the operator for each number before it, the function of `kernel.c` that joins two
#: numbers, and the operator behind it. A sum is a product with ones, a mean with its share.
REDUCED: dict[str, tuple[str, str, str]] = {
    "ReduceMean": ("", "mean", ""),
    "ReduceSum": ("", "sum", ""),
    "ReduceL1": ("Abs", "sum", ""),
    "ReduceL2": ("square", "sum", "Sqrt"),
    "ReduceSumSquare": ("square", "sum", ""),
    "ReduceLogSum": ("", "sum", "Log"),
    "ReduceMax": ("", "larger", ""),
    "ReduceMin": ("", "smaller", ""),
}

#: Why an operator that is not the same in training is refused.
TRAINING = "it is in training mode: export the network in evaluation mode"

#: Operator of one input x -> those by which it is computed. ONNX's own definitions of these are not
#: right in float32 (that of Softplus is infinite from 88 on), or are missing; others are in
#: `functions`.
EXPONENTIALS = """
    most = ReduceMax x axes
    d = Sub x most
    e = Exp d
    all = ReduceSum e axes
"""
DEFINITIONS = {
    "Softmax": f"{EXPONENTIALS} y = Div e all",
    "LogSoftmax": f"""{EXPONENTIALS} l = Log all
        y = Sub d l""",
    "Softplus": """
        positive = Relu x
        size = Abs x
        n = Neg size
        e = Exp n
        m = Add e one
        l = Log m
        y = Add positive l
    """,
    "Not": "y = Sub one x",
    "GlobalAveragePool": "y = ReduceMean x places",
    "GlobalMaxPool": "y = ReduceMax x places",
    "Affine": """
        m = Mul x alpha
        y = Add m beta
    """,
    "ScaledTanh": """
        m = Mul x beta
        t = Tanh m
        y = Mul t alpha
    """,
}
SCALED = """
    scaled = Mul x scale
    y = Add scaled bias
"""
NORMALIZED = f"""
    mean = ReduceMean data axes
    d = Sub data mean
    squares = Mul d d
    variance = ReduceMean squares axes
    more = Add variance epsilon
    deviation = Sqrt more
    normal = Div d deviation
    x = Reshape normal shape
    {SCALED}
"""


# Functions of each number


def of_whole_numbers(kind: int) -> bool:
    """Whether an ONNX type is of whole numbers or conditions: float32 in C, exact up to 2^24."""
    return onnx.helper.tensor_dtype_to_np_dtype(kind).kind in "biu"


def _pointwise(program: Program, node: Node) -> list[Value]:
    parameters = []
    for place, (name, default) in enumerate(PARAMETERS.get(node.kind, {}).items(), 1):
        value = node.get(place)
        if isinstance(value, Data):
            raise node.refused("its bounds must be constants")
        parameters.append(float(node.has.get(name, default) if value is None else value))
    return [program.each(Pointwise, node.inputs[0], POINTWISE[node.kind], tuple(parameters))]


def _of_each(program: Program, kind: str, data: Addresses) -> Addresses:
    """What an operator without parameters computes, or the square."""
    if kind == "square":
        return program.joined("times", data, data)
    return program.each(Pointwise, data, POINTWISE[kind], ())


def _power(program: Program, node: Node) -> list[Value]:
    data, constant = node.inputs
    exponent = None if isinstance(constant, Data) or constant.size != 1 else constant.item()
    if exponent not in (0.5, 1, 2, 3):
        raise node.refused(
            "the C kernel has powers with the constant exponents 0.5, 1, 2, and 3: write others, of"
            " numbers above 0, as Exp of the exponent times Log"
        )
    if exponent == 0.5:
        return [_of_each(program, "Sqrt", data)]
    power = data
    for _ in range(int(exponent) - 1):
        power = program.joined("times", power, data)
    return [power]


def _cast(program: Program, node: Node) -> list[Value]:
    kinds = onnx.TensorProto
    to = node.has["to"]
    data = node.inputs[0]
    if to == kinds.BOOL:
        return [_of_two(program, node, "where_true", data, np.ones(1, np.float32))]
    if to != kinds.FLOAT and not (node.proto.input[0] in program.whole and of_whole_numbers(to)):
        raise node.refused(
            "the C kernel has float32 only, and whole numbers that are inputs or follow from these"
        )
    return _same(program, node)


def _cast_like(program: Program, node: Node) -> list[Value]:
    value = node.inputs[0]
    return _same(program, node) if isinstance(value, Data) else [value.astype(np.float32)]


def _unmoved(program: Program, node: Node) -> list[Value]:
    raise node.refused(
        "what says which numbers it moves must be a constant, not computed from the input"
    )


def _dropout(program: Program, node: Node) -> list[Value]:
    training = node.get(2)
    if isinstance(training, Data) or np.any(training):
        raise node.refused(TRAINING)
    return _same(program, node)


def _same(program: Program, node: Node) -> list[Value]:
    """The same numbers, as another tensor: a bias that is added to it must not change the first."""
    return [program.data(node.inputs[0]).view()]


# Two tensors or more


def _arithmetic(program: Program, node: Node) -> list[Value]:
    value = node.inputs[0]
    for place, other in enumerate(node.inputs[1:], 1):
        if not isinstance(value, Data) and not isinstance(other, Data):
            value = program.data(value)
        name = node.proto.input[place if is_constant(value) else 0]
        value = _of_two(
            program, node, ARITHMETIC[node.kind], value, other, used_once=program.uses[name] == 1
        )
    return [value]


def _of_two(
    program: Program,
    node: Node,
    function: str,
    first: Value,
    second: Value,
    used_once: bool = False,
) -> Addresses:
    """What a function computes of two tensors of shapes that fit, of which one may be a constant.

    `used_once`: a constant row that is added to a product goes into its bias.
    """
    data = first
    constant = second
    turned = function
    if not isinstance(first, Data):
        data = second
        constant = first
        turned = SWAPPED.get(function, function)
    shape = np.broadcast_shapes(first.shape, second.shape)
    if isinstance(constant, Data) or shape != data.shape:
        return program.joined(
            function, _spread(program, first, shape), _spread(program, second, shape)
        )
    whole = np.broadcast_to(node.number(constant, "one operand"), shape)
    row = _row(whole, data)
    if row is None:
        return program.joined(turned, data, program.data(whole))
    rows = whole.size // row.size
    for product, stage in program.products:
        if function == "sum" and used_once and product is data and stage.rows == rows:
            stage.bias = stage.bias + row
            return data
    return program.each(Binary, data, program.stored(row)[0], turned, rows, True)


def _spread(program: Program, value: Value, shape: tuple[int, ...]) -> Addresses:
    """A tensor, repeated where the shape is larger."""
    return np.broadcast_to(program.data(value), shape, subok=True)


def _where(program: Program, node: Node) -> list[Value]:
    condition, first, second = node.inputs
    shape = np.broadcast_shapes(condition.shape, first.shape, second.shape)
    at = _spread(program, condition, shape)
    kept = _of_two(program, node, "where_true", at, first)
    others = _of_two(program, node, "where_false", at, second)
    return [_of_two(program, node, "sum", kept, others)]


def _row(constant: np.ndarray, data: Addresses) -> np.ndarray | None:
    """What all rows of a constant have, in the order of `data`; None if it repeats otherwise."""
    flat = constant.ravel()[np.argsort(data, axis=None, kind="stable")]
    for width in (*constant.shape[-1:], *constant.shape, 1):
        if flat.size and (flat.reshape(-1, width) == flat[:width]).all():
            return flat[:width]
    return flat if once(constant).size == flat.size else None


# Reductions


def _reduced(program: Program, node: Node) -> list[Value]:
    before, function, behind = REDUCED[node.kind]
    data = node.inputs[0]
    if before:
        data = _of_each(program, before, data)
    rows, shape = _rows_of(node, data)
    if function in ("sum", "mean"):
        k = rows.shape[1]
        weights = np.full((k, 1), 1 / k if function == "mean" else 1.0, np.float32)
        found = program.product(rows, weights, np.zeros(1, np.float32))
    else:
        found = _halved(program, rows, function)
    if behind:
        found = _of_each(program, behind, found)
    return [found.reshape(shape)]


def _rows_of(node: Node, data: Addresses) -> tuple[Addresses, list[int]]:
    """The addresses of each number of the result, (numbers, k), and the shape of the result."""
    given = node.get(1)
    axes = node.has.get("axes") if given is None else given
    if isinstance(axes, Data):
        raise node.refused("its axes must be constants")
    if axes is None or not len(axes):
        axes = [] if node.has.get("noop_with_empty_axes") else range(data.ndim)
    axes = [int(axis) % data.ndim for axis in axes]
    shape = [1 if axis in axes else size for axis, size in enumerate(data.shape)]
    if not node.has.get("keepdims", 1):
        shape = [size for axis, size in enumerate(shape) if axis not in axes]
    last = np.moveaxis(data, axes, range(-len(axes), 0))
    return last.reshape(math.prod(shape), -1), shape


def _halved(program: Program, rows: Addresses, function: str) -> Addresses:
    """Rows reduced to one column by a function of two halves, which share the middle one."""
    while rows.shape[1] > 1:
        half = -(-rows.shape[1] // 2)
        rows = program.joined(function, rows[:, :half], rows[:, -half:])
    return rows


def _running_sum(program: Program, node: Node) -> list[Value]:
    """CumSum: sums of 1, 2, 4, ... numbers, each of two of those before."""
    axis = int(node.number(node.inputs[1], "its axis").item())
    way = -1 if node.has.get("reverse") else 1
    at = np.moveaxis(node.inputs[0], axis, 0)[::way]
    if node.has.get("exclusive"):
        at = program.filled(np.concatenate([np.full_like(at[:1], FILL), at[:-1]]))
    width = 1
    while width < len(at):
        sums = program.joined("sum", at[width:], at[:-width])
        at = np.concatenate([at[:width], sums]).view(Data)
        width *= 2
    return [np.moveaxis(at[::way], 0, axis)]


# Products


def _product(program: Program, node: Node) -> list[Value]:
    """MatMul, and Gemm with its factors and bias."""
    alpha = node.has.get("alpha", 1.0)
    beta = node.has.get("beta", 1.0)
    first, second = node.inputs[:2]
    if node.has.get("transA"):
        first = first.T
    if node.has.get("transB"):
        second = second.T
    bias = node.get(2)
    if is_constant(bias):
        bias = np.asarray(beta * node.constant(bias, "the bias"))
    elif bias is not None and beta != 1.0:
        bias = _of_two(program, node, "times", bias, np.array(beta, np.float32))
    if is_constant(second) and second.ndim > 1 and math.prod(second.shape[:-2]) == 1:
        y = _by_matrix(program, first, alpha * node.constant(second, "the second factor"))
        program.products.append((y, program.stages[-1]))
    elif is_constant(first) and first.ndim == 2 and second.ndim > 1:
        matrix = alpha * node.constant(first, "the first factor").T
        y = _by_matrix(program, program.data(second).swapaxes(-1, -2), matrix).swapaxes(-1, -2)
    else:
        y = _of_data(program, program.data(first), program.data(second))
        if alpha != 1.0:
            y = _of_two(program, node, "times", y, np.array(alpha, np.float32))
    if bias is None:
        return [y]
    return [_of_two(program, node, "sum", y, bias, used_once=True)]


def _by_matrix(program: Program, data: Addresses, matrix: np.ndarray) -> Addresses:
    """The product of rows of data with a constant matrix, (..., k, columns)."""
    k, columns = matrix.shape[-2:]
    around = np.broadcast_shapes(data.shape[:-2], matrix.shape[:-2])
    y = program.product(
        data.reshape(-1, k), matrix.reshape(k, columns), np.zeros(columns, np.float32)
    )
    return y.reshape(*around, *data.shape[-2:-1], columns)


def _of_data(program: Program, first: Addresses, second: Addresses) -> Addresses:
    """The product of two tensors, by their addresses, as `numpy.matmul` defines it."""
    a = first if first.ndim > 1 else first[None]
    b = second if second.ndim > 1 else second[:, None]
    around = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, k = a.shape[-2:]
    columns = b.shape[-1]
    a = np.broadcast_to(a, (*around, rows, k), subok=True).reshape(-1, rows, k)
    b = np.broadcast_to(b, (*around, k, columns), subok=True).reshape(-1, k, columns)
    by_columns = columns == 1 or bool((np.diff(b, axis=1) == 1).all())
    x, *steps_of_x = program.lines(a)
    z, *steps_of_z = program.lines(b.swapaxes(1, 2) if by_columns else b)
    y = program.buffer((len(a), rows, columns))
    numbers = (len(a), rows, k, columns, int(by_columns), *steps_of_x, *steps_of_z)
    program.stages.append(Call(x, y.flat[0], y.size, "data_product", numbers, (z,)))
    shape = (*around, *first.shape[-2:-1], *(second.shape[-1:] if second.ndim > 1 else ()))
    return y.reshape(shape)


def _convolution(program: Program, node: Node) -> list[Value]:
    weights = node.constant(node.inputs[1], "its kernel")
    bias = node.get(2)
    bias = np.zeros(len(weights), np.float32) if bias is None else node.constant(bias, "its bias")
    kernel = weights.shape[2:]
    at = np.moveaxis(program.data(node.inputs[0]), 1, -1)
    windows = list(_windows(node, at.shape[1:-1], kernel))
    widths = [(0, 0), *(padding for _, padding in windows), (0, 0)]
    padded = program.filled(np.pad(at, widths, constant_values=FILL))
    read = program.address(padded) + np.arange(padded.size).reshape(padded.shape).view(Data)
    for axis, (reads, _) in enumerate(windows, 1):  # (batch, places, kernel, channels) at last
        read = np.moveaxis(read.take(reads, axis), axis + 1, -2)
    groups = node.has.get("group", 1)
    weights = np.moveaxis(weights, 1, -1).reshape(len(weights), -1)
    parts = (np.split(read, groups, axis=-1), np.split(weights, groups), np.split(bias, groups))
    found = []
    for part, matrix, each in zip(*parts, strict=True):
        found.append(program.product(part.reshape(-1, matrix.shape[1]), matrix.T, each))
    y = np.concatenate(found, axis=1).reshape(*read.shape[: len(kernel) + 1], len(weights))
    return [np.moveaxis(y, -1, 1).view(Data)]


def _windows(
    node: Node, sizes: Sequence[int], kernel: Sequence[int]
) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
    """Of each axis the places that windows read, (windows, kernel), and the padding at both ends.

    Places count from the beginning of the padding on. With `ceil_mode` the last window may end
    behind the padding, if it does not begin in it.
    """
    ones = (1,) * len(kernel)
    strides = node.has.get("strides") or ones
    dilations = node.has.get("dilations") or ones
    padding = node.has.get("auto_pad", "NOTSET")
    pads = node.has.get("pads") or (0,) * 2 * len(kernel)
    for axis, (size, each, stride, dilation) in enumerate(
        zip(sizes, kernel, strides, dilations, strict=True)
    ):
        before = pads[axis]
        after = pads[len(kernel) + axis]
        span = dilation * (each - 1) + 1
        if padding.startswith("SAME"):
            lack = max((-(-size // stride) - 1) * stride + span - size, 0)
            before = lack // 2 if padding == "SAME_UPPER" else lack - lack // 2
            after = lack - before
        left = before + size + after - span
        number = left // stride + 1
        if node.has.get("ceil_mode") and left % stride and number * stride < before + size:
            number += 1
        reads = np.arange(number)[:, None] * stride + np.arange(each) * dilation
        yield reads, (before, after)


def _pooled(program: Program, node: Node) -> list[Value]:
    """MaxPool and AveragePool, axis by axis."""
    if len(node.proto.output) > 1:
        raise node.refused(
            "the C kernel has no indices of the largest numbers: remove this output, and what is"
            " computed from it"
        )
    at = node.inputs[0]
    is_mean = node.kind == "AveragePool"
    included = node.has.get("count_include_pad", 0)
    counts = np.ones(())
    windows = _windows(node, at.shape[2:], node.has["kernel_shape"])
    for axis, (reads, (before, after)) in enumerate(windows, 2):
        counted = np.pad(np.ones(at.shape[axis]), (before, after), constant_values=included)
        beyond = max(reads.max() + 1 - len(counted), 0)
        widths = [(0, 0)] * at.ndim
        widths[axis] = (before, after + beyond)
        padded = program.filled(
            np.pad(at, widths, constant_values=FILL), 0.0 if is_mean else -math.inf
        )
        at = padded.take(reads[:, 0], axis)
        for places in reads.T[1:]:
            at = program.joined("sum" if is_mean else "larger", at, padded.take(places, axis))
        counts = np.multiply.outer(counts, np.pad(counted, (0, beyond))[reads].sum(axis=1))
    if not is_mean:
        return [at]
    return [_of_two(program, node, "times", at, (1 / counts).astype(np.float32))]


def _lookup(program: Program, node: Node) -> list[Value]:
    """Gather of rows of a table by indices that vary."""
    table, index = node.inputs
    axis = node.has.get("axis", 0) % table.ndim
    at = program.stored(table) if is_constant(table) else table
    at = np.moveaxis(at, axis, 0)
    program.limit(index, len(at))
    index = program.data(index)
    y = program.buffer((*index.shape, *at.shape[1:]))
    numbers = (index.size, len(at), at[0].size)
    program.stages.append(
        Call(program.address(index), y.flat[0], y.size, "lookup", numbers, (program.address(at),))
    )
    rank = index.ndim
    return [np.moveaxis(y, range(rank), range(axis, axis + rank))]


# Operators that are computed by others


def _defined(program: Program, node: Node) -> list[Value]:
    """An operator of `DEFINITIONS` with one input."""
    data = node.inputs[0]
    rank = data.ndim
    of_one_axis = program.opsets[""] >= 13  # of Softmax, which was of a matrix before
    axis = node.has.get("axis", -1 if of_one_axis else 1) % rank
    values: dict[str, Value] = {
        "x": data,
        "axes": np.arange(axis, axis + 1 if of_one_axis else rank),
        "places": np.arange(2, rank),
        "one": np.ones(1, np.float32),
    }
    for name in ("alpha", "beta"):
        values[name] = np.array(node.has.get(name, 0), np.float32)
    return [_by_rows(program, node, DEFINITIONS[node.kind], values)]


def _by_rows(program: Program, node: Node, text: str, values: dict[str, Value]) -> Addresses:
    """What a text as those of `DEFINITIONS` computes."""
    return program.expanded(node, rows_of(text, values), values, ["y"])[0]


def _normalized(
    program: Program,
    node: Node,
    data: Addresses,
    axes: Sequence[int],
    scale: np.ndarray,
    bias: Value,
) -> list[Value]:
    """Data without their mean along axes, divided by their deviation, in the shape of the first
    input; then scaled."""
    values = {
        "data": data,
        "axes": np.array(axes),
        "epsilon": np.array(node.has.get("epsilon", 1e-5), np.float32),
        "shape": np.array(node.inputs[0].shape),
        "scale": scale,
        "bias": bias,
    }
    return [_by_rows(program, node, NORMALIZED, values)]


def _layer_normalization(program: Program, node: Node) -> list[Value]:
    data = node.inputs[0]
    axes = range(data.ndim)[node.has.get("axis", -1) :]
    return _normalized(program, node, data, axes, node.inputs[1], node.get(2))


def _batch_normalization(program: Program, node: Node) -> list[Value]:
    if node.has.get("training_mode"):
        raise node.refused(TRAINING)
    scale, bias, mean, variance = _of_channels(node)
    scale = scale / np.sqrt(variance + np.float32(node.has.get("epsilon", 1e-5)))
    values = {"x": node.inputs[0], "scale": scale, "bias": bias - mean * scale}
    return [_by_rows(program, node, SCALED, values)]


def _group_normalization(program: Program, node: Node) -> list[Value]:
    """GroupNormalization, and InstanceNormalization, of which each channel is a group."""
    data, first, _ = node.inputs
    batch, channels = data.shape[:2]
    groups = node.has.get("num_groups", channels)
    scale, bias = _of_channels(node, channels // len(first))
    return _normalized(program, node, data.reshape(batch, groups, -1), [2], scale, bias)


def _of_channels(node: Node, times: int = 1) -> Iterator[np.ndarray]:
    """Each input but the first, a number of each channel, or of so many channels side by side.

    In a shape that fits (batch, channels, ...).
    """
    data, *given = node.inputs
    for value in given:
        each = node.constant(value, "each input but the first").repeat(times)
        yield each.reshape(-1, *(1,) * (data.ndim - 2))


def _by_function(program: Program, node: Node) -> list[Value]:
    """An operator as ONNX itself defines it by others."""
    parts, inputs, outputs, opset = function_of(node, program.opsets[""])
    return program.expanded(
        node, parts, dict(zip(inputs, node.inputs, strict=True)), outputs, opset
    )


Handler = Callable[[Program, Node], Sequence[Value]]

#: Operator -> what appends its stages and returns its outputs, where an input varies. Operators of
#: `MOVES` are evaluated on addresses instead, if only what they move varies.
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(RECURRENT, recurrent),
    "Conv": _convolution,
    "MatMul": _product,
    "Gemm": _product,
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    "Where": _where,
    **dict.fromkeys(REDUCED, _reduced),
    "CumSum": _running_sum,
    "MaxPool": _pooled,
    "AveragePool": _pooled,
    **dict.fromkeys(DEFINITIONS, _defined),
    "LayerNormalization": _layer_normalization,
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _group_normalization,
    **dict.fromkeys(POINTWISE, _pointwise),
    "Pow": _power,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Dropout": _dropout,
    **dict.fromkeys((*MOVES, *SIZES), _unmoved),
    "Gather": _lookup,
    **dict.fromkeys(BY_FUNCTION, _by_function),
}
