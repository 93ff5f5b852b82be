"""The graph of an ONNX model as calls of the functions in `kernel.c`, at static sizes and batch size 1.

Operators that only rename axes (Transpose, Reshape, Squeeze), take a part (Slice, Gather, Split) or put parts together
(Concat, Pad) need no code: they are evaluated on the addresses of the numbers, and what then does not lie in a row is
copied where a call needs it so. A convolution is a product of its windows, also addresses: the result has its channels
side by side, so that the windows of the next one are rows in memory. What depends on constants only is evaluated
beforehand. Everything else is refused by name.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from lstm_onnx.c.moves import BASE, Loop, moves
from lstm_onnx.constants import evaluated
from lstm_onnx.streamed import SUM
from lstm_trt.config.errors import BuildFailed, any_error
from lstm_trt.config.format import listed
from lstm_trt.config.libraries import onnx
from lstm_trt.config.workload import RecurrentLayer, State
from lstm_trt.export.onnx_checks import INPUT_NAMES, RECURRENT, label, read
from lstm_trt.export.sizes import attributes, sizes_of


@dataclass(frozen=True)
class Data:
    """A tensor that is not a constant, as the addresses of its numbers: those of a base are consecutive."""

    at: np.ndarray


@dataclass
class Layer:
    """A recurrent layer; `kind` as in `kernel.c`, `weights` the arrays W, R, and both biases, (gates x units, ...).

    `bounded`: its inputs are outputs of recurrent layers, from -1 to 1.
    """

    kind: str
    units: int
    features: int
    weights: tuple[np.ndarray, ...] = field(repr=False)
    bounded: bool

    @property
    def gates(self) -> int:
        return {"LSTM": 4, "RNN": 1}.get(self.kind, 3)

    @property
    def gates_of_h(self) -> int:
        """Gates in the first product with h."""
        return {"LSTM": 4, "GRU": 3, "RESET": 2, "RNN": 1}[self.kind]


@dataclass
class Stage:
    """One call: the addresses of the first number that it reads and writes, and how many it writes."""

    x: int
    y: int
    size: int

    @property
    def reads(self) -> tuple[int, ...]:
        """All addresses from which it reads on."""
        return (self.x,)


@dataclass
class Recurrent(Stage):
    rows: int
    layer: int
    width: int
    reverse: bool


@dataclass
class Dense(Stage):
    rows: int
    stride: int  # from a row of x to the next
    matrix: np.ndarray  # (k, columns)
    bias: np.ndarray


@dataclass
class Pointwise(Stage):
    function: str
    parameters: tuple[float, ...]


@dataclass
class Binary(Stage):
    other: int
    function: str
    rows: int = 1
    repeated: bool = False  # all rows have the same of `other`

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.x, self.other)


@dataclass
class Copy(Stage):
    """`size` numbers in all, in loops from the outermost to the innermost."""

    loops: tuple[Loop, ...]


#: Operators that move numbers without changing them.
MOVES = {
    "Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
}  # fmt: skip

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

#: Operators of which the input may vary; of others only constants, unless ONNX defines them by operators of these.
ARITHMETIC = {"Add": "sum", "Sub": "difference", "Mul": "times", "Div": "quotient", "Max": "larger", "Min": "smaller"}
REDUCED = ("ReduceMean", "ReduceSum", "ReduceL2", "ReduceMax")
KINDS = {*RECURRENT, "MatMul", "Gemm", "Conv", "Pow", "Cast", "Dropout", "Shape", "Size"}
KINDS |= {*MOVES, *POINTWISE, *ARITHMETIC, *REDUCED}

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
KINDS |= {*DEFINITIONS}

#: The place of a constant, before it has an address.
FILL = -1


def identifier(text: str) -> str:
    """A C identifier for a network: letters, digits and underscores of `text`."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "network"
    return f"n{name}" if name[0].isdigit() else name


def parameter(letter: str, name: str, names: Sequence[str]) -> str:
    """The parameter of a C function for one of the inputs or outputs: x or y, with its name if there are several.

    The numbers of the inputs or outputs replace names that are not different in C.
    """
    if len(names) == 1:
        return letter
    different = len({identifier(each) for each in names}) == len(names)
    return f"{letter}_{identifier(name) if different else list(names).index(name)}"


def fold_normalizations(graph: onnx.GraphProto) -> None:
    """Change a graph in place: a BatchNormalization after a Conv or Gemm goes into its weights and bias."""
    known = {tensor.name: tensor for tensor in graph.initializer}
    made = {node.output[0]: node for node in graph.node}
    uses = Counter(name for node in graph.node for name in node.input) + Counter(value.name for value in graph.output)
    for node in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        product = made.get(node.input[0], node)
        has, constants = attributes(product), [*product.input[1:], *node.input[1:]]
        is_product = product.op_type in ("Conv", "Gemm") and has.get("beta", 1.0) == 1.0
        if not is_product or uses[node.input[0]] > 1 or not known.keys() >= set(constants):
            continue
        weights, *old, scale, bias, mean, variance = (onnx.numpy_helper.to_array(known[name]) for name in constants)
        scale = scale / np.sqrt(variance.astype(np.float64) + attributes(node).get("epsilon", 1e-5))
        by_rows = product.op_type == "Conv" or has.get("transB")
        weights = (weights.T * scale).T if by_rows else weights * scale
        bias = (sum(old) - mean) * scale + bias
        product.input[1:], product.output[0] = (
            [f"{node.output[0]}, {what}" for what in ("weights", "bias")],
            node.output[0],
        )
        for name, array in zip(product.input[1:], (weights, bias), strict=True):
            graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
        graph.node.remove(node)


def fold_first_states(graph: onnx.GraphProto, carried: dict[str, str], kept: Sequence[str]) -> dict[str, str]:
    """Change a graph in place, and `carried`: a state is carried itself, and not its difference from its first value.

    Such states are those of `lstm_onnx.streamed`. Returns input -> name of the first value, of those not in `kept`.
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


def _not_float(graph: onnx.GraphProto, value: onnx.ValueInfoProto) -> str:
    """Why an input of another type is refused."""
    refused = f"the input {value.name} is not float32: the C kernel takes nothing else"
    names = {value.name}
    for node in graph.node:
        if node.op_type == "Gather" and node.input[1] in names:
            return f"{refused}, and it is an index of the {label(node)}"
        if node.op_type in ("Cast", *MOVES) and node.input[0] in names:
            names.update(node.output)
    if any(size != 1 for size in sizes_of(value)):
        return refused
    return f"{refused}; if it is a setting, give its value with --value {value.name}=N"


def _kind(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def once(array: np.ndarray) -> np.ndarray:
    """The array with the size 1 along the axes along which all its numbers are the same."""
    for axis, size in enumerate(array.shape):
        first = array.take([0], axis) if size > 1 else array
        if (array == first).all():
            array = first
    return array


class Reader:
    """One graph with static sizes as stages; `states` are those that are carried.

    A state is that of a recurrent layer, which the layer itself carries; or it is in `kept`, and is copied after each
    call. Raises `BuildFailed` for an operator or attribute that the kernel lacks.
    """

    def __init__(self, content: bytes, states: Sequence[State], name: str, kept: Sequence[str] = ()) -> None:
        model = read(content, name)
        graph, carried = model.graph, {state.input: state.output for state in states}
        fold_normalizations(graph)
        firsts = fold_first_states(graph, carried, kept)
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.bases: list[str] = []
        self.stages: list[Stage] = []
        self.layers: list[Layer] = []
        self.carries = bool(states)
        #: Address in a state that is carried -> that of the same number after the call.
        self.after: dict[int, int] = {}
        #: Numbers of the layers with an initial state that each call copies.
        self.given: set[int] = set()
        #: Field of the struct with the state of a layer -> a constant from which it begins.
        self.firsts: dict[str, np.ndarray] = {}
        #: Bases with outputs of recurrent layers, and names of the tensors which are such inputs of others.
        self.bounded: set[int] = set()
        self.bounded_inputs: set[str] = set()
        #: Base -> size.
        self.buffers: dict[int, int] = {}
        #: Base -> its numbers.
        self.constants: dict[int, np.ndarray] = {}
        #: States that are not in `kept`, but not those of a recurrent layer either.
        self.others: list[str] = []
        #: Field of the struct with a state in `kept` -> size.
        self.fields: dict[str, int] = {}
        self.products: list[tuple[Data, Any]] = []  # and their `Dense`
        #: Each tensor, `Data` or a constant.
        self.values: dict[str, Any] = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self.uses = [name for node in graph.node for name in node.input] + [value.name for value in graph.output]
        given = [value for value in graph.input if value.name not in self.values]
        inputs = [value.name for value in given if value.name not in carried]
        #: Parameter of each input, x or x_NAME if there are several, -> its size.
        self.inputs: dict[str, int] = {}
        for value in given:
            if value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
                raise BuildFailed(_not_float(graph, value))
            sizes = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            base = f"state {value.name}" if value.name in carried else parameter("x", value.name, inputs)
            if value.name in kept:
                base = f"net->s{len(self.fields)}"
                self.fields[base.removeprefix("net->")] = math.prod(sizes)
            self.values[value.name] = self._new(base, sizes)
            if value.name in kept and len(sizes) > 2:  # channels side by side, as convolutions read them
                data = self.values[value.name].at.reshape(sizes[0], *sizes[2:], sizes[1])
                self.values[value.name] = Data(np.moveaxis(data, -1, 1))
            if value.name not in carried:
                self.inputs[base] = math.prod(sizes)
        self._read_all(graph.node)
        for before, name in carried.items():
            after = [self.after.get(address) for address in self.values[before].at.ravel().tolist()]
            same = isinstance(self.values[name], Data) and after == self.values[name].at.ravel().tolist()
            first = self.values[firsts[before]] if before in firsts else None
            if before not in kept and (not same or isinstance(first, Data)):
                self.others.append(before)
            elif first is not None:
                self._begin_from(first, after[0])
        outputs = {state.output for state in states}
        self.output_names = tuple(value.name for value in graph.output if value.name not in outputs)
        #: Parameter of each output -> its base and size.
        self.outputs: dict[str, tuple[int, int]] = {}
        for name in self.output_names:
            self.outputs[parameter("y", name, self.output_names)] = self._output(name)
        changed = [(self.values[before].at.ravel(), carried[before]) for before in kept]
        ends = [self._copied(Data(self._data(name).at.ravel()[np.argsort(at)])) for at, name in changed]
        for x, (at, _) in zip(ends, changed, strict=True):
            self._copy_row(x, at.min(), at.size)

    @classmethod
    def of(cls, content: bytes, states: Sequence[State], name: str) -> Self:
        """The graph, of which all states that no recurrent layer carries are kept."""
        others = cls(content, states, name).others
        return cls(content, states, name, others)

    def _new(self, base: str, shape: tuple[int, ...]) -> Data:
        self.bases.append(base)
        start = (len(self.bases) - 1) * BASE
        return Data(np.arange(start, start + math.prod(shape)).reshape(shape))

    def _buffer(self, shape: tuple[int, ...]) -> Data:
        self.buffers[len(self.bases)] = math.prod(shape)
        return self._new(f"b{len(self.bases)}", shape)

    def _data(self, value: Any) -> Data:
        """A tensor, by its name or itself, of which a constant gets addresses, once for numbers that are repeated."""
        value = self.values[value] if isinstance(value, str) else value
        if isinstance(value, Data):
            return value
        return Data(np.broadcast_to(self._stored(once(value)).at, value.shape))

    def _stored(self, value: np.ndarray) -> Data:
        """A constant, all numbers of which are among the weights."""
        self.constants[len(self.bases)] = value.astype(np.float32)
        return self._new("constant", value.shape)

    def _filled(self, at: np.ndarray, value: float = 0.0) -> np.ndarray:
        """Addresses, in which `FILL` stood for a constant."""
        missing, at = at == FILL, at.copy()
        if missing.any():
            at[missing] = self._data(np.full(np.count_nonzero(missing), value)).at
        return at

    def place(self, address: int) -> str:
        """The C expression of an address."""
        name, offset = self.bases[address // BASE], address % BASE
        return f"{name} + {offset}" if offset else name

    def _address(self, data: Data) -> int:
        """Where a tensor begins, which is copied if it lies in several pieces."""
        return data.at.flat[0] if (np.diff(data.at.ravel()) == 1).all() else self._copied(data)

    def _copy_row(self, x: int, y: int, size: int) -> None:
        """Append a copy of adjacent numbers."""
        self.stages.append(Copy(x, y, size, (Loop(size, 1, 1),)))

    def _copied(self, data: Data) -> int:
        """Where a copy of a tensor begins."""
        whole = self._buffer(data.at.shape).at
        for move in moves(data.at):
            self.stages.append(Copy(move.x, whole.flat[0] + move.to, data.at.size, move.loops))
        return whole.flat[0]

    def _each(self, kind: type[Stage], data: Data, *more: Any, others: Sequence[Data] = ()) -> Data:
        """Append a stage for each number by itself, with those of `others`, in the order in which `data` lies."""
        if not data.at.size:
            return data
        order = np.argsort(data.at, axis=None, kind="stable")
        x = self._address(Data(data.at.ravel()[order]))
        rest = [x if each is data else self._address(Data(each.at.ravel()[order])) for each in others]
        y, at = self._buffer((data.at.size,)).at, np.empty(data.at.size, np.int64)
        self.stages.append(kind(x, y[0], len(y), *rest, *more))
        at[order] = y
        return Data(at.reshape(data.at.shape))

    def _product(self, rows: np.ndarray, matrix: np.ndarray, bias: np.ndarray) -> Data:
        """Append the product of rows of addresses, (n, k), with a matrix, (k, columns); returns (n, columns)."""
        n, k = rows.shape
        if not rows.size:
            raise BuildFailed("a product of no rows: the window is too short for this network")
        far = np.diff(rows[:, 0])
        regular = (
            (np.diff(rows) == 1).all() and (far == far[:1]).all() and (far[:1] >= 0).all() and far.sum() < BASE // 2
        )
        x, stride = (rows[0, 0], far[0] if n > 1 else k) if regular else (self._address(Data(rows)), k)
        y = self._buffer((n, matrix.shape[1]))
        self.stages.append(Dense(x, y.at.flat[0], y.at.size, n, int(stride), matrix, bias))
        return y

    def _read_all(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Raises `BuildFailed` that names all nodes which cannot be generated, those after them only by their kind."""
        unknown: dict[str, list[str]] = defaultdict(list)
        faults: list[str] = []
        lost: set[str] = set()
        for node in nodes:
            varies = any(isinstance(self.values.get(name), Data) or name in lost for name in node.input)
            if varies and _kind(node) not in KINDS:
                unknown[_kind(node)].append(label(node))
            elif lost.isdisjoint(node.input):
                try:
                    with any_error(BuildFailed, f"{label(node)} is not valid"):
                        self._read(node)
                    continue
                except BuildFailed as error:
                    faults.append(str(error))
            lost.update(node.output)
        if unknown:
            known = ", ".join((*RECURRENT, "Conv", "dense layers", *ARITHMETIC, *REDUCED, *DEFINITIONS, *POINTWISE))
            first = [f"{each[0]}{f' and {len(each) - 1} more' * (len(each) > 1)}" for each in unknown.values()]
            faults.insert(0, f"{listed(first)}: the C kernel has {known}; compute the rest outside the network")
        if faults:
            raise BuildFailed("; ".join(faults))

    def _read(self, node: onnx.NodeProto) -> None:
        has = attributes(node)
        unknown = [name for name in node.input if name and name not in self.values]
        if unknown:
            raise BuildFailed(f"{label(node)}: the C kernel does not compute its input {unknown[0]}")
        inputs: list[Any] = [self.values[name] if name else None for name in node.input]
        arrays = [value.at if isinstance(value, Data) else value for value in inputs]
        kind = _kind(node)
        constant = kind in ("Shape", "Size") or not any(isinstance(value, Data) for value in inputs)
        moved = kind in MOVES and (kind == "Concat" or isinstance(inputs[0], Data))
        if constant or moved:
            fill = 0.0
            if kind == "Concat" and not constant:
                arrays = [self._data(value).at for value in inputs]
            if kind == "Pad" and not constant and has.get("mode", b"constant") in (b"constant", "constant"):
                fill = has.get("value", 0.0) if len(inputs) < 3 or inputs[2] is None else float(inputs[2].item())
                names, arrays = [*node.input[:2], "fill", *node.input[3:]], [*arrays[:2], np.int64(FILL), *arrays[3:]]
                node = onnx.helper.make_node(kind, names, node.output, name=node.name)
            with any_error(BuildFailed, f"{label(node)} cannot be evaluated"):
                found = evaluated(node, dict(zip(node.input, arrays, strict=True)), self.opsets)
            outputs = found if constant else [Data(self._filled(at, fill)) for at in found]
        elif kind == "Dropout" or (kind == "Cast" and has["to"] == onnx.TensorProto.FLOAT):
            outputs = [Data(inputs[0].at)]
        elif kind == "Conv":
            outputs = [self._convolution(node, has, inputs)]
        elif kind in DEFINITIONS:
            outputs = [self._defined(node, has, inputs)]
        elif kind == "Pow":
            outputs = [self._power(node, inputs)]
        elif kind in REDUCED:
            outputs = [self._reduced(node, has, inputs)]
        elif kind in RECURRENT:
            outputs = self._recurrent(node, has, inputs)
        elif kind in ("MatMul", "Gemm"):
            outputs = [self._dense(node, has, inputs)]
        elif kind in ARITHMETIC:
            value = inputs[0]
            for other in inputs[1:]:
                value = self._arithmetic(node, (value, other))
            outputs = [value]
        elif kind in POINTWISE:
            outputs = [self._pointwise(node, has, inputs)]
        else:
            raise BuildFailed(f"{label(node)}: the C kernel has float32 only")
        self.values.update(zip(node.output, outputs, strict=False))

    def _constant(self, node: onnx.NodeProto, value: Any, what: str) -> np.ndarray:
        if not isinstance(value, np.ndarray) or value.dtype != np.float32:
            raise BuildFailed(f"{label(node)}: {what} must be a constant in float32, not computed from the input")
        return value

    def _recurrent(self, node: onnx.NodeProto, has: Mapping, inputs: Sequence[Any]) -> list[Data]:
        x, w, r, b, lengths, h, c, p = (*inputs, *(None,) * (8 - len(inputs)))
        if not isinstance(x, Data):
            raise BuildFailed(f"{label(node)}: its input is a constant")
        w, r = self._constant(node, w, INPUT_NAMES[1]), self._constant(node, r, INPUT_NAMES[2])
        kind, units, layout = node.op_type, r.shape[-1], bool(has.get("layout"))
        rows, batch = x.at.shape[layout], x.at.shape[1 - layout]
        direction, default = has.get("direction", "forward"), RECURRENT[kind]
        layer = RecurrentLayer(kind, units, x.at.shape[-1], rows, batch, direction)
        directions, shapes = layer.directions, layer.weight_shapes
        b = np.zeros(shapes["B"], np.float32) if b is None else self._constant(node, b, INPUT_NAMES[3])
        names = tuple(has.get("activations", ())) or default * directions
        full = lengths is None or (isinstance(lengths, np.ndarray) and (lengths == rows).all())
        without = p is None or (isinstance(p, np.ndarray) and not p.any())
        lacks = "the C kernel does not support"
        faults = {
            f"unknown direction {direction!r}": direction not in ("forward", "reverse", "bidirectional"),
            f"hidden_size {has.get('hidden_size')}, but R of {units} units": has.get("hidden_size") != units,
            **{
                f"{name} has shape {array.shape}, expected {shapes[name]}": array.shape != shapes[name]
                for name, array in (("W", w), ("R", r), ("B", b))
            },
            f"batch size {batch}, but the C kernel computes batch size 1: give the file a symbolic batch size, and"
            " call the code once for each sequence": batch != 1,
            f"{lacks} activations {', '.join(names)}, only {', '.join(default)}": names != default * directions,
            f"{lacks} clip": "clip" in has,
            f"{lacks} input_forget": bool(has.get("input_forget")),
            f"{lacks} peepholes (input P)": not without,
            f"{lacks} sequence_lens other than the full length": not full,
        }
        fault = next((text for text, found in faults.items() if found), None)
        if fault:
            raise BuildFailed(f"{label(node)}: {fault}")
        begin = self._address(x)
        bounded = begin // BASE in self.bounded
        y = self._buffer((rows, directions, 1, units))
        self.bounded.add(y.at.flat[0] // BASE)
        if bounded:
            self.bounded_inputs.add(node.input[0])
        ends: list[list[np.ndarray]] = [[], []]
        for index in range(directions):
            number = len(self.layers)
            kind_name = "RESET" if kind == "GRU" and not has.get("linear_before_reset") else kind
            weights = (w[index], r[index], *np.split(b[index], 2))
            self.layers.append(Layer(kind_name, units, w.shape[2], weights, bounded))
            for end, name, value in zip(ends, "hc", (h, c), strict=True):
                after = self._new(f"net->{name}{number}", (1, units)).at
                end.append(after)
                if isinstance(value, np.ndarray) and value.any() and not self.carries:
                    self._begin_from(value.reshape(-1, units)[index], after.flat[0])
                elif isinstance(value, Data) or (value is not None and value.any()):
                    self._begin(Data(self._data(value).at.reshape(-1, units)[index]), after[0])
                elif self.carries and (name == "h" or kind == "LSTM"):
                    raise BuildFailed(
                        f"layer {number + 1} begins each call from zero; its state must be carried as well"
                    )
            reverse, place = index == 1 or direction == "reverse", y.at[0, index, 0, 0]
            self.stages.append(Recurrent(begin, place, y.at.size, rows, number, directions * units, reverse))
        states = [Data(np.stack(end)) for end in ends]
        if layout:
            y, states = Data(y.at.transpose(2, 0, 1, 3)), [Data(state.at.swapaxes(0, 1)) for state in states]
        return [y, *states]

    def _begin_from(self, state: np.ndarray, after: Any) -> None:
        """The state from which a layer begins, which `reset` puts where it ends."""
        self.firsts[self.bases[after // BASE]] = state.astype(np.float32).ravel()

    def _begin(self, state: Data, after: np.ndarray) -> None:
        """The state from which the last layer begins: carried, or else copied to `after`, where it ends."""
        if self.bases[state.at[0] // BASE].startswith("state "):
            self.after.update(zip(state.at.tolist(), after.tolist(), strict=True))
            return
        self._copy_row(self._address(state), after[0], len(after))
        self.given.add(len(self.layers) - 1)

    def _dense(self, node: onnx.NodeProto, has: Mapping, inputs: Sequence[Any]) -> Data:
        data, matrix = inputs[0], self._constant(node, inputs[1], "the second factor")
        if not isinstance(data, Data) or has.get("transA"):
            raise BuildFailed(f"{label(node)}: the C kernel multiplies rows of data by a constant matrix")
        matrix = matrix.T if has.get("transB") else matrix
        if matrix.ndim == 1 or math.prod(matrix.shape[:-2]) != 1:
            raise BuildFailed(f"{label(node)}: the second factor must be a matrix")
        k, columns = matrix.shape[-2:]
        bias = np.zeros(columns, np.float32)
        if len(inputs) > 2 and inputs[2] is not None:
            bias = has.get("beta", 1.0) * self._constant(node, inputs[2], "the bias")
            each = np.broadcast_to(bias, (data.at.shape[0], columns))
            if (each != each[0]).any():
                raise BuildFailed(f"{label(node)}: its bias must be the same for all rows")
            bias = each[0]
        shape = (*np.broadcast_shapes(data.at.shape[:-2], matrix.shape[:-2]), *data.at.shape[-2:-1], columns)
        matrix = has.get("alpha", 1.0) * matrix.reshape(k, columns)
        y = Data(self._product(data.at.reshape(-1, k), matrix, bias).at.reshape(shape))
        self.products.append((y, self.stages[-1]))
        return y

    def _convolution(self, node: onnx.NodeProto, has: Mapping, inputs: Sequence[Any]) -> Data:
        data, weights = self._data(inputs[0]).at, self._constant(node, inputs[1], "its kernel")
        outs, kernel, groups = len(weights), weights.shape[2:], has.get("group", 1)
        bias = np.zeros(outs, np.float32) if len(inputs) < 3 else self._constant(node, inputs[2], "its bias")
        strides, dilations = (has.get(name) or (1,) * len(kernel) for name in ("strides", "dilations"))
        spans = [each * (size - 1) + 1 for each, size in zip(dilations, kernel, strict=True)]
        pads = np.reshape(has.get("pads") or (0,) * 2 * len(kernel), (2, -1)).T
        padding = has.get("auto_pad", "NOTSET")
        if padding.startswith("SAME"):
            sizes = zip(data.shape[2:], strides, spans, strict=True)
            lacks = np.array([max((-(-size // stride) - 1) * stride + span - size, 0) for size, stride, span in sizes])
            pads = np.stack([lacks // 2, lacks - lacks // 2][:: 1 if padding == "SAME_UPPER" else -1], axis=1)
        padded = np.pad(np.moveaxis(data, 1, -1), [(0, 0), *pads.tolist(), (0, 0)], constant_values=FILL)
        padded = self._filled(padded)
        padded = self._address(Data(padded)) + np.arange(padded.size).reshape(padded.shape)
        windows = np.lib.stride_tricks.sliding_window_view(padded, spans, tuple(range(1, len(kernel) + 1)))
        every = [slice(None, None, step) for step in (1, *strides, 1, *dilations)]
        windows = np.moveaxis(windows[tuple(every)], len(kernel) + 1, -1)  # (batch, places, kernel, channels)
        shape, found = windows.shape[: len(kernel) + 1], []
        parts = (np.split(windows, groups, axis=-1), np.split(weights, groups), np.split(bias, groups))
        for window, matrix, each in zip(*parts, strict=True):
            flat = np.moveaxis(matrix, 1, -1).reshape(len(matrix), -1)
            found.append(self._product(window.reshape(-1, flat.shape[1]), flat.T, each).at)
        return Data(np.moveaxis(np.concatenate(found, axis=1).reshape(*shape, outs), -1, 1))

    def _defined(self, node: onnx.NodeProto, has: Mapping, inputs: Sequence[Any]) -> Any:
        data, *constants = inputs
        constants = [self._constant(node, value, "each input but the first") for value in constants]
        epsilon, rank, kind = np.array(has.get("epsilon", 1e-5), np.float32), data.at.ndim, node.op_type
        axis = has.get("axis", -1 if kind != "Softmax" or self.opsets[""] >= 13 else 1) % rank
        last = axis + 1 if kind == "Softmax" and self.opsets[""] >= 13 else rank  # before, it was of a matrix
        if kind == "BatchNormalization":
            scale, bias, mean, variance = (value.reshape(-1, *(1,) * (rank - 2)) for value in constants)
            scale = scale / np.sqrt(variance + epsilon)
            constants = [scale, bias - mean * scale]
        prefix = f"{node.output[0]} of {kind}, "
        values = {"x": data, "axes": np.arange(axis, last), "epsilon": epsilon, "bias": np.zeros(1, np.float32)}
        values |= zip(("scale", "bias"), constants, strict=False)
        self.values |= {prefix + name: value for name, value in values.items()}
        for operator, names, output in DEFINITIONS[kind]:
            given = [prefix + name for name in names.split()]
            self._read(onnx.helper.make_node(operator, given, [prefix + output], name=node.name))
        return self.values[prefix + "y"]

    def _power(self, node: onnx.NodeProto, inputs: Sequence[Any]) -> Data:
        data, exponent = inputs
        if isinstance(exponent, Data) or exponent.size != 1 or exponent.item() not in (0.5, 1, 2, 3):
            raise BuildFailed(f"{label(node)}: the C kernel has powers with the constant exponents 0.5, 1, 2, and 3")
        if exponent.item() == 0.5:
            return self._each(Pointwise, data, *POINTWISE["Sqrt"][:1], ())
        power = data
        for _ in range(int(exponent.item()) - 1):
            power = self._each(Binary, power, "times", others=[data])
        return power

    def _reduced(self, node: onnx.NodeProto, has: Mapping, inputs: Sequence[Any]) -> Data:
        data, *given = inputs
        axes = given[0] if given and given[0] is not None else has.get("axes")
        if isinstance(axes, Data):
            raise BuildFailed(f"{label(node)}: its axes must be constants")
        if axes is None or not len(axes):
            axes = range(0 if has.get("noop_with_empty_axes") else data.at.ndim)
        axes = [int(axis) % data.at.ndim for axis in axes]
        shape = [1 if axis in axes else size for axis, size in enumerate(data.at.shape)]
        if not has.get("keepdims", 1):
            shape = [size for axis, size in enumerate(shape) if axis not in axes]
        if node.op_type == "ReduceL2":
            data = self._each(Binary, data, "times", others=[data])
        rows = np.moveaxis(data.at, axes, range(-len(axes), 0)).reshape(math.prod(shape), -1)
        while node.op_type == "ReduceMax" and rows.shape[1] > 1:  # of halves, which share a column if it is odd
            half = -(-rows.shape[1] // 2)
            rows = self._each(Binary, Data(rows[:, :half]), "larger", others=[Data(rows[:, -half:])]).at
        if node.op_type == "ReduceMax":
            return Data(rows.reshape(shape))
        share = 1 / rows.shape[1] if node.op_type == "ReduceMean" else 1.0
        sums = self._product(rows, np.full((rows.shape[1], 1), share, np.float32), np.zeros(1, np.float32))
        sums = self._each(Pointwise, sums, *POINTWISE["Sqrt"][:1], ()) if node.op_type == "ReduceL2" else sums
        return Data(sums.at.reshape(shape))

    def _arithmetic(self, node: onnx.NodeProto, inputs: Sequence[Any]) -> Data:
        first, second = inputs
        swapped = not isinstance(first, Data)
        data, constant = (second, first) if swapped else (first, second)
        shape = np.broadcast_shapes(*(getattr(value, "at", value).shape for value in inputs))
        if isinstance(constant, Data) or shape != data.at.shape:
            one, other = (Data(np.broadcast_to(self._data(value).at, shape)) for value in inputs)
            return self._each(Binary, one, ARITHMETIC[node.op_type], others=[other])
        function = ARITHMETIC[node.op_type]
        if swapped:
            function = {"difference": "subtracted", "quotient": "divisor"}.get(function, function)
        whole = np.broadcast_to(self._constant(node, constant, "one operand"), shape)
        row = self._row(whole, data)
        if row is None:
            return self._each(Binary, data, function, others=[self._data(whole)])
        rows = whole.size // row.size
        used_once = self.uses.count(node.input[1 if swapped else 0]) == 1
        product = next((stage for product, stage in self.products if product is data and stage.rows == rows), None)
        if node.op_type == "Add" and product and used_once:
            product.bias = product.bias + row
            return data
        return self._each(Binary, data, self._stored(row).at[0], function, rows, True)

    def _row(self, constant: np.ndarray, data: Data) -> np.ndarray | None:
        """What all rows of a constant have, in the order in which `data` lies; None if it repeats otherwise."""
        flat = constant.ravel()[np.argsort(data.at, axis=None, kind="stable")]
        for width in (*constant.shape[-1:], *constant.shape, 1):
            if flat.size and (flat.reshape(-1, width) == flat[:width]).all():
                return flat[:width]
        return flat if once(constant).size == flat.size else None

    def _pointwise(self, node: onnx.NodeProto, has: Mapping, inputs: Sequence[Any]) -> Data:
        function, defaults = POINTWISE[node.op_type]
        known = {**has, **{name: value for name, value in zip(defaults, inputs[1:], strict=False) if value is not None}}
        if any(isinstance(value, Data) for value in known.values()):
            raise BuildFailed(f"{label(node)}: its bounds must be constants")
        parameters = tuple(float(known.get(name, default)) for name, default in defaults.items())
        return self._each(Pointwise, inputs[0], function, parameters)

    def _output(self, name: str) -> tuple[int, int]:
        """The base that holds an output, all of it, and its size."""
        data = self.values[name]
        if not isinstance(data, Data):
            raise BuildFailed(f"the output {name} does not depend on the input")
        address, size = self._address(data), data.at.size
        taken = {base for base, _ in self.outputs.values()}
        if address // BASE in taken or self.buffers.get(address // BASE) != size:
            whole = self._buffer(data.at.shape).at.flat[0]
            self._copy_row(address, whole, size)
            address = whole
        return address // BASE, size

    @property
    def rows(self) -> int:
        """Time steps of the first recurrent layer; 1 without one."""
        return next((stage.rows for stage in self.stages if isinstance(stage, Recurrent)), 1)
