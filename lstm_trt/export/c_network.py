"""The graph of an ONNX model as calls of the functions in `kernel.c`, at static sizes and batch size 1.

At batch size 1 a tensor is a sequence of numbers whatever its axes are, so operators that only rename axes (Transpose,
Reshape, Squeeze) or take a part (Slice, Gather, Split) need no code: they are evaluated on the addresses of the
numbers. What depends on constants only is evaluated beforehand. Everything else is refused by name.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lstm_trt.config.errors import BuildFailed, any_error
from lstm_trt.config.format import listed
from lstm_trt.config.libraries import onnx
from lstm_trt.config.workload import RecurrentLayer, State
from lstm_trt.export.onnx_checks import INPUT_NAMES, RECURRENT, attributes, label, read
from lstm_trt.export.sizes import evaluated


@dataclass(frozen=True)
class Data:
    """A tensor that is not a constant, as the addresses of its numbers: those of a base are consecutive."""

    at: np.ndarray


#: Addresses: index of the base, times this, plus the offset in it.
BASE = 1 << 40


@dataclass
class Layer:
    """A recurrent layer; `kind` as in `kernel.c`, `weights` the arrays W, R, and both biases, (gates x units, ...)."""

    kind: str
    units: int
    features: int
    weights: tuple[np.ndarray, ...] = field(repr=False)

    @property
    def gates(self) -> int:
        return 4 if self.kind == "LSTM" else 3

    @property
    def gates_of_h(self) -> int:
        """Gates in the first product with h."""
        return {"LSTM": 4, "GRU": 3, "RESET": 2}[self.kind]


@dataclass
class Stage:
    """One call: the addresses of the first number that it reads and writes, and how many it writes."""

    x: int
    y: int
    size: int


@dataclass
class Recurrent(Stage):
    rows: int
    layer: int
    width: int
    reverse: bool


@dataclass
class Dense(Stage):
    rows: int
    matrix: np.ndarray  # (k, columns)
    bias: np.ndarray


@dataclass
class Pointwise(Stage):
    function: str
    parameters: tuple[float, ...]


@dataclass
class Affine(Stage):
    rows: int
    scale: np.ndarray
    shift: np.ndarray


class Copy(Stage):
    pass


#: Operators that move numbers without changing them.
MOVES = {
    "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
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
    "Clip": ("clip", {"min": -math.inf, "max": math.inf}),
}

#: Operators of which the input may vary; of others only constants.
KINDS = {"LSTM", "GRU", "MatMul", "Gemm", "Add", "Sub", "Mul", "Div", "Dropout", "Shape", "Size", *MOVES, *POINTWISE}

#: Number of pieces in which a tensor may lie in memory; each is copied.
MOST_PIECES = 16


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


def _kind(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


class Reader:
    """One graph with static sizes as stages; `states` are those that are carried.

    Raises `BuildFailed` for an operator or attribute that the kernel lacks.
    """

    def __init__(self, content: bytes, states: Sequence[State], name: str) -> None:
        model = read(content, name)
        graph, carried = model.graph, {state.input: state.output for state in states}
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.bases: list[str] = []
        self.stages: list[Stage] = []
        self.layers: list[Layer] = []
        self.carries = bool(states)
        #: Address in a state that is carried -> that of the same number after the call.
        self.after: dict[int, int] = {}
        #: Numbers of the layers with an initial state that each call copies.
        self.given: set[int] = set()
        #: Base -> size.
        self.buffers: dict[int, int] = {}
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
                raise BuildFailed(f"the input {value.name} is not float32: the C kernel takes nothing else")
            sizes = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            base = f"state {value.name}" if value.name in carried else parameter("x", value.name, inputs)
            self.values[value.name] = self._new(base, sizes)
            if value.name not in carried:
                self.inputs[base] = math.prod(sizes)
        self._read_all(graph.node)
        for before, name in carried.items():
            after = [self.after.get(address) for address in self.values[before].at.ravel().tolist()]
            if not isinstance(self.values[name], Data) or after != self.values[name].at.ravel().tolist():
                raise BuildFailed(f"the output {name} is not the state of the layers that begin with {before}")
        self.output_names = tuple(value.name for value in graph.output if value.name not in carried.values())
        #: Parameter of each output -> its base and size.
        self.outputs: dict[str, tuple[int, int]] = {}
        for name in self.output_names:
            self.outputs[parameter("y", name, self.output_names)] = self._output(name)

    def _new(self, base: str, shape: tuple[int, ...]) -> Data:
        self.bases.append(base)
        start = (len(self.bases) - 1) * BASE
        return Data(np.arange(start, start + math.prod(shape)).reshape(shape))

    def _buffer(self, shape: tuple[int, ...]) -> Data:
        self.buffers[len(self.bases)] = math.prod(shape)
        return self._new(f"b{len(self.bases)}", shape)

    def place(self, address: int) -> str:
        """The C expression of an address."""
        name, offset = self.bases[address // BASE], address % BASE
        return f"{name} + {offset}" if offset else name

    def _address(self, data: Data, what: str) -> int:
        """Where a tensor begins, which is copied if it lies in several pieces."""
        flat = data.at.ravel()
        cuts = np.flatnonzero(np.diff(flat) != 1) + 1
        if len(cuts) >= MOST_PIECES:
            raise BuildFailed(
                f"{what} is put together of {len(cuts) + 1} pieces (Transpose, Gather, Slice, Concat), and the C kernel"
                f" copies at most {MOST_PIECES}: join or reorder whole tensors outside the network"
            )
        if len(cuts):
            pieces, flat = np.split(flat, cuts), self._buffer(flat.shape).at
            for piece, into in zip(pieces, np.split(flat, cuts), strict=True):
                self.stages.append(Copy(piece[0], into[0], len(piece)))
        return flat[0]

    def _add(self, kind: type[Stage], node: onnx.NodeProto, data: Data, shape: tuple[int, ...], *more: Any) -> Data:
        """Append a stage with one input and its further fields; returns its result, in a new buffer."""
        x = self._address(data, f"the input of {label(node)}")
        y = self._buffer(shape)
        self.stages.append(kind(x, y.at.flat[0], y.at.size, *more))
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
                    self._read(node)
                    continue
                except BuildFailed as error:
                    faults.append(str(error))
            lost.update(node.output)
        if unknown:
            known = f"LSTM, GRU, dense layers, arithmetic with constants, and {', '.join(POINTWISE)}"
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
        moved = kind in MOVES and all(isinstance(value, Data) for value in inputs[: None if kind == "Concat" else 1])
        if constant or moved:
            with any_error(BuildFailed, f"{label(node)} cannot be evaluated"):
                found = evaluated(node, dict(zip(node.input, arrays, strict=True)), self.opsets)
            outputs = found if constant else [Data(at) for at in found]
        elif kind == "Dropout":
            outputs = [Data(inputs[0].at)]
        elif kind in ("LSTM", "GRU"):
            outputs = self._recurrent(node, has, inputs)
        elif kind in ("MatMul", "Gemm"):
            outputs = [self._dense(node, has, inputs)]
        elif kind in ("Add", "Sub", "Mul", "Div"):
            outputs = [self._arithmetic(node, inputs)]
        else:
            outputs = [self._pointwise(node, has, inputs)]
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
        begin = self._address(x, f"the input of {label(node)}")
        y = self._buffer((rows, directions, 1, units))
        ends: list[list[np.ndarray]] = [[], []]
        for index in range(directions):
            number = len(self.layers)
            kind_name = "RESET" if kind == "GRU" and not has.get("linear_before_reset") else kind
            self.layers.append(Layer(kind_name, units, w.shape[2], (w[index], r[index], *np.split(b[index], 2))))
            for end, name, value in zip(ends, "hc", (h, c), strict=True):
                after = self._new(f"net->{name}{number}", (1, units)).at
                end.append(after)
                if isinstance(value, Data):
                    self._begin(node, Data(value.at.reshape(-1, units)[index]), after[0])
                elif value is not None and value.any():
                    raise BuildFailed(f"{label(node)}: its initial state must be zero or a tensor, not a constant")
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

    def _begin(self, node: onnx.NodeProto, state: Data, after: np.ndarray) -> None:
        """The state from which the last layer begins: carried, or else copied to `after`, where it ends."""
        if self.bases[state.at[0] // BASE].startswith("state "):
            self.after.update(zip(state.at.tolist(), after.tolist(), strict=True))
            return
        x = self._address(state, f"the initial state of {label(node)}")
        self.stages.append(Copy(x, after[0], len(after)))
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
        y = self._add(Dense, node, data, shape, data.at.size // k, matrix, bias)
        self.products.append((y, self.stages[-1]))
        return y

    def _arithmetic(self, node: onnx.NodeProto, inputs: Sequence[Any]) -> Data:
        first, second = inputs
        swapped = not isinstance(first, Data)
        data, constant = (second, first) if swapped else (first, second)
        constant = self._constant(node, constant, "one operand")
        if swapped and node.op_type == "Div":
            raise BuildFailed(f"{label(node)}: the C kernel divides by constants only")
        if np.broadcast_shapes(data.at.shape, constant.shape) != data.at.shape:
            raise BuildFailed(f"{label(node)}: its constant has more elements or axes than its input")
        constant = np.broadcast_to(constant, data.at.shape).reshape(-1, data.at.shape[-1])
        rows = len(constant)
        constant = constant[0] if (constant == constant[0]).all() else constant.ravel()
        rows = rows if len(constant) == data.at.shape[-1] else 1
        once = self.uses.count(node.input[1 if swapped else 0]) == 1
        product = next((stage for product, stage in self.products if product is data and stage.rows == rows), None)
        if node.op_type == "Add" and product and once:
            product.bias = product.bias + constant
            return data
        one, zero = np.ones_like(constant), np.zeros_like(constant)
        scale, shift = {
            "Add": (one, constant),
            "Sub": (-one, constant) if swapped else (one, -constant),
            "Mul": (constant, zero),
            "Div": (1 / constant if node.op_type == "Div" else one, zero),
        }[node.op_type]
        return self._add(Affine, node, data, data.at.shape, rows, scale, shift)

    def _pointwise(self, node: onnx.NodeProto, has: Mapping, inputs: Sequence[Any]) -> Data:
        function, defaults = POINTWISE[node.op_type]
        known = {**has, **{name: value for name, value in zip(defaults, inputs[1:], strict=False) if value is not None}}
        if any(isinstance(value, Data) for value in known.values()):
            raise BuildFailed(f"{label(node)}: its bounds must be constants")
        parameters = tuple(float(known.get(name, default)) for name, default in defaults.items())
        return self._add(Pointwise, node, inputs[0], inputs[0].at.shape, function, parameters)

    def _output(self, name: str) -> tuple[int, int]:
        """The base that holds an output, all of it, and its size."""
        data = self.values[name]
        if not isinstance(data, Data):
            raise BuildFailed(f"the output {name} does not depend on the input")
        address, size = self._address(data, f"the output {name}"), data.at.size
        taken = {base for base, _ in self.outputs.values()}
        if address // BASE in taken or self.buffers.get(address // BASE) != size:
            copy = Copy(address, self._buffer(data.at.shape).at.flat[0], size)
            self.stages.append(copy)
            address = copy.y
        return address // BASE, size

    @property
    def rows(self) -> int:
        """Time steps of the first recurrent layer; 1 without one."""
        return next((stage.rows for stage in self.stages if isinstance(stage, Recurrent)), 1)
