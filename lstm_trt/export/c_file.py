"""A network as one C file: LSTM and GRU layers with dense layers and pointwise functions around them, at batch size 1.

The graph of an ONNX model is read into calls of the functions in `kernel.c`, with all sizes as constants. At batch size
1 a tensor is a sequence of numbers whatever its axes are, so operators that only rename axes (Transpose, Reshape,
Squeeze) or take a part (Slice, Gather, Split) need no code: they are evaluated on the indices of the numbers, and must
give consecutive ones. Everything else is refused by name.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lstm_trt.config.errors import BuildFailed, first_line
from lstm_trt.config.workload import State
from lstm_trt.export.onnx_checks import INPUT_NAMES, label, read
from lstm_trt.machine.linux import cpuinfo_flags
from lstm_trt.store import cache, files

if TYPE_CHECKING:
    import onnx

#: Changes whenever other code is generated for the same network, so that recordings are not pooled.
VERSION = "1"

#: Largest weights in bytes that are written into the source by default.
LARGEST_INCLUDED = 2**20

#: Vectors of a group of columns in a packed matrix, as in `kernel.c`: in products of many rows, and of one.
TILE, GROUP = 4, 8

#: Floats before the weights: their SHA-256 as 16 whole numbers.
HEAD = 16

#: Time steps of which `kernel.c` computes the input's products at once.
CHUNK = 24


@dataclass(frozen=True)
class Target:
    """A processor to generate code for: floats per vector, and the compiler's flags for it."""

    name: str
    vector_length: int
    flags: tuple[str, ...]


TARGETS = {
    "x86-64-v4": Target("x86-64-v4", 16, ("-march=x86-64-v4",)),
    "x86-64-v3": Target("x86-64-v3", 8, ("-march=x86-64-v3",)),
    "x86-64": Target("x86-64", 4, ("-march=x86-64",)),
    "aarch64": Target("aarch64", 4, ("-march=armv8-a",)),
}


def native_target() -> Target:
    """The target of this processor, with all its instructions (`-march=native`)."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return Target("native", 4, ("-mcpu=native",))
    flags = cpuinfo_flags()
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return Target("native", 16, ("-march=native",))
    return Target("native", 8 if {"avx2", "fma"} <= flags else 4, ("-march=native",))


@dataclass(frozen=True)
class CFile:
    """C code of one network: the texts of NAME.c and NAME.h, and the weights, which are in the source if `included`.

    `weights` is float32, to be loaded at an address that is a multiple of 64. `window` and `step` are the rows of
    `NAME_run` and `NAME_step`, None without one; `outputs` the names of the outputs, in the order of the arguments.
    """

    name: str
    target: Target
    source: str
    header: str
    weights: bytes
    included: bool
    window: int | None
    step: int | None
    outputs: tuple[str, ...]

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Flags of gcc and clang, without input and output."""
        return ("-std=gnu99", "-O3", *self.target.flags)

    def write(self, folder: str | Path) -> list[Path]:
        """Write the source, the header and, if they are not included, the weights as NAME.bin; returns the paths."""
        folder = files.make_folder(Path(folder))
        contents = {f"{self.name}.c": self.source.encode(), f"{self.name}.h": self.header.encode()}
        contents |= {} if self.included else {f"{self.name}.bin": self.weights}
        return [files.put(folder / name, content) for name, content in contents.items()]


# Reading a graph


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

    def packed(self, weights: Weights) -> int:
        """The offset of its packed weights, in the order of `recurrent` in `kernel.c`."""
        w, r, wb, rb = self.weights
        first = {"LSTM": 4, "GRU": 3, "RESET": 2}[self.kind]
        size, separate = self.units, (self.gates - 1) * self.units
        biases = wb + rb
        if self.kind == "GRU":  # the last gate's bias is multiplied by the reset gate
            biases = np.concatenate([biases[:separate], wb[separate:]])
        parts = [weights.matrix(weights.gates(w, self.gates), TILE), weights.gates(biases, self.gates)]
        parts.append(weights.matrix(weights.gates(r[: first * size], first), GROUP // first * first))
        if self.kind == "RESET":
            parts.append(weights.matrix(r[separate:], GROUP))
        parts.append(weights.vector(rb[separate:]))
        return weights.add(*parts)


@dataclass
class Stage:
    """One call: what it computes, the bases that it reads and writes, and how many numbers it writes."""

    reads: int
    writes: int
    size: int


@dataclass
class Recurrent(Stage):
    x: str
    rows: int
    layer: int
    place: int
    width: int
    reverse: bool


@dataclass
class Dense(Stage):
    x: str
    rows: int
    matrix: np.ndarray  # (k, columns)
    bias: np.ndarray


@dataclass
class Pointwise(Stage):
    x: str
    function: str
    parameters: tuple[float, ...]


@dataclass
class Affine(Stage):
    x: str
    rows: int
    scale: np.ndarray
    shift: np.ndarray


@dataclass
class Copy(Stage):
    x: str
    place: int


class Weights:
    """Packed matrices and vectors, each of them once, at multiples of 16 floats."""

    def __init__(self, vector_length: int) -> None:
        self.length = vector_length
        self.parts: list[np.ndarray] = []
        self.known: dict[str, int] = {}
        self.size = HEAD

    def add(self, *arrays: np.ndarray) -> int:
        """The offset in floats of these arrays, one after another."""
        part = np.concatenate([array.ravel() for array in arrays]).astype(np.float32)
        part = np.pad(part, (0, -len(part) % 16))
        key = cache.sha256(part.tobytes())
        if key not in self.known:
            self.known[key] = self.size
            self.parts.append(part)
            self.size += len(part)
        return self.known[key]

    def vector(self, values: np.ndarray) -> np.ndarray:
        """Padded with zeros along the first axis to a multiple of the vector length."""
        return np.pad(values, [(0, -len(values) % self.length)] + [(0, 0)] * (values.ndim - 1))

    def gates(self, values: np.ndarray, gates: int) -> np.ndarray:
        """(gates x units, ...) as blocks of a vector of each gate."""
        each = [self.vector(part).reshape(-1, self.length, *values.shape[1:]) for part in np.split(values, gates)]
        return np.stack(each, axis=1).reshape(-1, *values.shape[1:])

    def matrix(self, columns: np.ndarray, group: int) -> np.ndarray:
        """(columns, k) in groups of `group` vectors of columns, in a group row after row."""
        vectors = self.vector(columns).reshape(-1, self.length, columns.shape[-1])
        groups = [vectors[at : at + group] for at in range(0, len(vectors), group)]
        return np.concatenate([part.transpose(2, 0, 1).ravel() for part in groups])


#: Operators that move numbers without changing them.
MOVES = {
    "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
}  # fmt: skip

#: Pointwise operator -> function of `kernel.c`; attributes that are its parameters, with defaults.
POINTWISE: dict[str, tuple[str, dict[str, float]]] = {
    "Relu": ("relu", {}),
    "Sigmoid": ("logistic", {}),
    "Tanh": ("tangent", {}),
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "Elu": ("elu", {"alpha": 1.0}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "Softsign": ("softsign", {}),
}

#: Number of pieces in which a tensor may lie in memory; each is copied.
MOST_PIECES = 16

#: Columns up to which a dense layer is computed as separate dot products.
FEW_COLUMNS = 4


class Reader:
    """One graph with static sizes as stages; `states` are those that are carried.

    Raises `BuildFailed` for an operator or attribute that the kernel lacks.
    """

    def __init__(self, content: bytes, states: Sequence[State], name: str) -> None:
        import onnx

        graph = read(content, name).graph
        self.opsets = {entry.domain: entry.version for entry in onnx.load_from_string(content).opset_import}
        self.bases: list[str] = []
        self.stages: list[Stage] = []
        self.layers: list[Layer] = []
        self.initial: list[tuple[int | None, int | None]] = []
        self.product: Data | None = None
        self.values: dict[str, Data | np.ndarray] = {
            tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer
        }
        self.uses = [name for node in graph.node for name in node.input] + [value.name for value in graph.output]
        carried = {state.input for state in states}
        given = [value for value in graph.input if value.name not in self.values]
        for value in given:
            if value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
                raise BuildFailed(f"the input {value.name} is not float32: the C kernel takes nothing else")
            sizes = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            self.values[value.name] = self._new(f"state {value.name}" if value.name in carried else "x", sizes)
        inputs = [value.name for value in given if value.name not in carried]
        if len(inputs) != 1:
            raise BuildFailed(
                f"the C kernel takes one input, not {', '.join(inputs)}; states are carried in the mode stream"
            )
        self.input = self.values[inputs[0]].at
        for node in graph.node:
            self._read(node)
        self._check_states(states)
        kept = {state.output for state in states}
        self.outputs: dict[str, tuple[int, int]] = {}
        for value in graph.output:
            if value.name not in kept:
                self.outputs[value.name] = self._output(value.name)

    def _new(self, base: str, shape: tuple[int, ...]) -> Data:
        self.bases.append(base)
        start = (len(self.bases) - 1) * BASE
        return Data(np.arange(start, start + math.prod(shape)).reshape(shape))

    def _buffer(self, shape: tuple[int, ...]) -> tuple[Data, int]:
        return self._new(f"b{len(self.bases)}", shape), len(self.bases) - 1

    def _place(self, first: int) -> str:
        """The C expression of an address."""
        name, offset = self.bases[first // BASE], first % BASE
        return f"{name} + {offset}" if offset else name

    def _operand(self, data: Data, node: onnx.NodeProto) -> tuple[int, str]:
        """The base and the C expression of a tensor, which is copied if it lies in several pieces."""
        flat = data.at.ravel()
        pieces = np.split(flat, np.flatnonzero(np.diff(flat) != 1) + 1)
        if len(pieces) > MOST_PIECES:
            raise BuildFailed(f"{label(node)}: its input is rearranged in memory, which the C kernel does not do")
        if len(pieces) > 1:
            copy, base = self._buffer(flat.shape)
            place = 0
            for piece in pieces:
                read = int(piece[0])
                self.stages.append(Copy(read // BASE, base, len(piece), self._place(read), place))
                place += len(piece)
            flat = copy.at
        return int(flat[0]) // BASE, self._place(int(flat[0]))

    def _read(self, node: onnx.NodeProto) -> None:
        import onnx

        has = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        inputs = [self.values[name] if name else None for name in node.input]
        kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        if kind in ("Shape", "Size") or not any(isinstance(value, Data) for value in inputs):
            outputs = self._evaluated(node, [value.at if isinstance(value, Data) else value for value in inputs])
        elif kind in MOVES and all(isinstance(value, Data) for value in inputs[: None if kind == "Concat" else 1]):
            moved = self._evaluated(node, [value.at if isinstance(value, Data) else value for value in inputs])
            outputs = [Data(at) for at in moved]
        elif kind == "Dropout":
            outputs = inputs[:1]
        elif kind in ("LSTM", "GRU"):
            outputs = self._recurrent(node, has, inputs)
        elif kind in ("MatMul", "Gemm"):
            outputs = [self._dense(node, has, inputs)]
        elif kind in ("Add", "Sub", "Mul", "Div"):
            outputs = [self._arithmetic(node, inputs)]
        elif kind in POINTWISE or kind == "Clip":
            outputs = [self._pointwise(node, has, inputs)]
        else:
            others = ", ".join((*POINTWISE, "Clip"))
            raise BuildFailed(
                f"{label(node)}: the C kernel has LSTM, GRU, dense layers, arithmetic with constants, and {others}"
            )
        self.values.update(zip(node.output, outputs, strict=False))

    def _evaluated(self, node: onnx.NodeProto, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """The outputs of one operator, by ONNX's reference evaluator."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        ends = [[onnx.ValueInfoProto(name=name) for name in names if name] for names in (node.input, node.output)]
        opsets = [onnx.helper.make_opsetid(*entry) for entry in self.opsets.items()]
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "node", *ends), opset_imports=opsets)
        try:
            feeds = {name: value for name, value in zip(node.input, inputs, strict=True) if name}
            return ReferenceEvaluator(model).run(None, feeds)
        except Exception as error:  # the evaluator raises any class
            raise BuildFailed(f"{label(node)} cannot be evaluated: {first_line(error)}") from None

    def _constant(self, node: onnx.NodeProto, value: object, what: str) -> np.ndarray:
        if not isinstance(value, np.ndarray) or value.dtype != np.float32:
            raise BuildFailed(f"{label(node)}: {what} must be a constant in float32")
        return value

    def _recurrent(self, node: onnx.NodeProto, has: Mapping, inputs: Sequence[object]) -> list[Data]:
        x, w, r, b, lengths, h, c, p = (*inputs, *(None,) * (8 - len(inputs)))
        kind, units = node.op_type, int(has["hidden_size"])
        directions = 2 if has.get("direction") == b"bidirectional" else 1
        layout = bool(has.get("layout"))
        if not isinstance(x, Data):
            raise BuildFailed(f"{label(node)}: its input is a constant")
        rows, batch = x.at.shape[layout], x.at.shape[1 - layout]
        names = [name.decode() for name in has.get("activations", ())]
        default = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}[kind]
        faults = {
            f"batch size {batch}, but the C kernel computes batch size 1": batch != 1,
            f"activations {', '.join(names)}: the C kernel has {', '.join(default)}": names
            not in ([], default * directions),
            "clip": "clip" in has,
            "input_forget": bool(has.get("input_forget")),
            "peepholes (input P)": p is not None and not (isinstance(p, np.ndarray) and not p.any()),
            "sequence_lens other than the full length": lengths is not None
            and not (isinstance(lengths, np.ndarray) and (lengths == rows).all()),
        }
        fault = next((text for text, found in faults.items() if found), None)
        if fault:
            remedy = "" if "kernel" in fault else ": the C kernel does not support it"
            raise BuildFailed(f"{label(node)}: {fault}{remedy}")
        w, r = self._constant(node, w, INPUT_NAMES[1]), self._constant(node, r, INPUT_NAMES[2])
        gates = w.shape[1] // units
        b = (
            np.zeros((directions, 2 * gates * units), np.float32)
            if b is None
            else self._constant(node, b, INPUT_NAMES[3])
        )
        base, pointer = self._operand(x, node)
        y, into = self._buffer((rows, directions, 1, units))
        ends: list[list[np.ndarray]] = [[], []]
        for index in range(directions):
            number = len(self.layers)
            reset_first = kind == "GRU" and not has.get("linear_before_reset")
            kind_name = "RESET" if reset_first else kind
            self.layers.append(Layer(kind_name, units, w.shape[2], (w[index], r[index], *np.split(b[index], 2))))
            self.initial.append(tuple(self._initial(node, value, index) for value in (h, c)))
            for end, name in zip(ends, ("h", "c"), strict=True):
                end.append(self._new(f"net->{name}{number}", (1, units)).at)
            reverse = index == 1 or has.get("direction") == b"reverse"
            width = directions * units
            self.stages.append(Recurrent(base, into, y.at.size, pointer, rows, number, index * units, width, reverse))
        states = [Data(np.stack(end)) for end in ends]
        if layout:
            y, states = Data(y.at.transpose(2, 0, 1, 3)), [Data(state.at.swapaxes(0, 1)) for state in states]
        return [y, *states]

    def _initial(self, node: onnx.NodeProto, value: object, direction: int) -> int | None:
        """The address of the carried state from which a direction begins; None for zero."""
        if value is None or (isinstance(value, np.ndarray) and not value.any()):
            return None
        state = value.at.reshape(-1, int(value.at.shape[-1]))[direction] if isinstance(value, Data) else np.zeros(0)
        if not len(state) or (np.diff(state) != 1).any():
            raise BuildFailed(f"{label(node)}: its initial state must be zero or a carried state")
        return int(state[0])

    def _check_states(self, states: Sequence[State]) -> None:
        """Raises `BuildFailed` unless each state is read and written by the same layers, all of them or none."""
        found = {}
        for number, starts in enumerate(self.initial):
            for name, start in zip(("h", "c"), starts, strict=True):
                needed = states and (name == "h" or self.layers[number].kind == "LSTM")
                if needed and start is None:
                    raise BuildFailed(
                        f"layer {number + 1} begins each call from zero; its state must be carried as well"
                    )
                if start is not None:
                    found[start] = self.bases.index(f"net->{name}{number}") * BASE
        for state in states:
            after = self.values[state.output]
            flat = after.at.ravel() if isinstance(after, Data) else np.zeros(0)
            begin = self.bases.index(f"state {state.input}") * BASE
            size = math.prod(state.shape)
            pieces = {start: into for start, into in found.items() if begin <= start < begin + size}
            covered = np.full(size, -1)
            for start, into in pieces.items():
                units = self.layers[int(self.bases[into // BASE][6:])].units
                covered[start - begin : start - begin + units] = np.arange(into, into + units)
            if not np.array_equal(covered, flat):
                raise BuildFailed(
                    f"the output {state.output} is not the state of the layers that begin with {state.input}"
                )

    def _dense(self, node: onnx.NodeProto, has: Mapping, inputs: Sequence[object]) -> Data:
        data, matrix = inputs[0], self._constant(node, inputs[1], "the second factor")
        if not isinstance(data, Data) or has.get("transA"):
            raise BuildFailed(f"{label(node)}: the C kernel multiplies rows of data by a constant matrix")
        matrix = matrix.T if has.get("transB") else matrix
        if matrix.ndim == 1 or math.prod(matrix.shape[:-2]) != 1:
            raise BuildFailed(f"{label(node)}: the second factor must be a matrix")
        k, columns = matrix.shape[-2:]
        bias = np.zeros(columns, np.float32)
        if len(inputs) > 2 and inputs[2] is not None:
            bias = np.broadcast_to(has.get("beta", 1.0) * self._constant(node, inputs[2], "the bias"), (1, columns))[0]
        base, pointer = self._operand(data, node)
        shape = (*data.at.shape[:-1], columns)
        y, into = self._buffer(shape)
        matrix = has.get("alpha", 1.0) * matrix.reshape(k, columns)
        self.stages.append(Dense(base, into, y.at.size, pointer, data.at.size // k, matrix, bias))
        self.product = y
        return y

    def _arithmetic(self, node: onnx.NodeProto, inputs: Sequence[object]) -> Data:
        first, second = inputs
        swapped = not isinstance(first, Data)
        data, constant = (second, first) if swapped else (first, second)
        constant = self._constant(node, constant, "one operand")
        if (swapped and node.op_type == "Div") or np.broadcast_shapes(data.at.shape, constant.shape) != data.at.shape:
            raise BuildFailed(
                f"{label(node)}: the C kernel has arithmetic with constants of the same or smaller size only"
            )
        constant = np.broadcast_to(constant, data.at.shape).reshape(-1, data.at.shape[-1])
        rows = len(constant)
        constant = constant[0] if (constant == constant[0]).all() else constant.ravel()
        rows = rows if len(constant) == data.at.shape[-1] else 1
        last = self.stages[-1] if self.stages else None
        once = self.uses.count(node.input[1 if swapped else 0]) == 1
        if node.op_type == "Add" and data is self.product and once and rows == last.rows:
            last.bias = last.bias + constant
            return data
        one, zero = np.ones_like(constant), np.zeros_like(constant)
        scale, shift = {
            "Add": (one, constant),
            "Sub": (-one, constant) if swapped else (one, -constant),
            "Mul": (constant, zero),
            "Div": (1 / constant if node.op_type == "Div" else one, zero),
        }[node.op_type]
        base, pointer = self._operand(data, node)
        y, into = self._buffer(data.at.shape)
        self.stages.append(Affine(base, into, y.at.size, pointer, rows, scale, shift))
        return y

    def _pointwise(self, node: onnx.NodeProto, has: Mapping, inputs: Sequence[object]) -> Data:
        if node.op_type == "Clip":
            bounds = [*inputs[1:], None, None][:2]
            known = [
                has.get(name) if value is None else value for name, value in zip(("min", "max"), bounds, strict=True)
            ]
            if any(isinstance(bound, Data) for bound in known):
                raise BuildFailed(f"{label(node)}: its bounds must be constants")
            defaults = (-math.inf, math.inf)
            function = "clip"
            parameters = [
                float(default if bound is None else bound) for bound, default in zip(known, defaults, strict=True)
            ]
        else:
            function, defaults = POINTWISE[node.op_type]
            parameters = [float(has.get(name, default)) for name, default in defaults.items()]
        base, pointer = self._operand(inputs[0], node)
        y, into = self._buffer(inputs[0].at.shape)
        self.stages.append(Pointwise(base, into, y.at.size, pointer, function, tuple(parameters)))
        return y

    def _output(self, name: str) -> tuple[int, int]:
        """The base that holds an output, all of it, and its size."""
        import onnx

        data = self.values[name]
        if not isinstance(data, Data):
            raise BuildFailed(f"the output {name} does not depend on the input")
        end = onnx.helper.make_node("Identity", [name], [name], name=f"output {name}")
        base, pointer = self._operand(data, end)
        written = {stage.writes: stage.size for stage in self.stages}
        if written.get(base) != data.at.size or base in (other for other, _ in self.outputs.values()):
            copy, into = self._buffer(data.at.shape)
            self.stages.append(Copy(base, into, copy.at.size, pointer, 0))
            base = into
        return base, data.at.size

    @property
    def rows(self) -> int:
        """Time steps of the first recurrent layer; 1 without one."""
        return next((stage.rows for stage in self.stages if isinstance(stage, Recurrent)), 1)


# Writing C


def identifier(text: str) -> str:
    """A C identifier for a network: letters, digits and underscores of `text`."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "network"
    return f"n{name}" if name[0].isdigit() else name


def c_file(
    model: bytes | None,
    step: bytes | None,
    target: Target,
    name: str,
    *,
    states: Sequence[State] = (),
    include_weights: bool | None = None,
    error: str = "not measured",
) -> CFile:
    """C code for a network: `model` is an ONNX model of a window, `step` one of a call that carries its state.

    Either may be None. Both have static sizes, batch size 1 and the same weights. `states` are those that `step` has as
    inputs and outputs; without any, the state of all its layers is carried. `error` is a line for the head of the
    source. Raises `BuildFailed` with the operator or attribute that the kernel lacks.
    """
    weights = Weights(target.vector_length)
    window = Reader(model, (), name) if model else None
    tick = Reader(step, states, name) if step else None
    if tick and any(stage.reverse for stage in tick.stages if isinstance(stage, Recurrent)):
        raise BuildFailed("a layer that reads the sequence backwards has no state that could be carried")
    readers = [reader for reader in (window, tick) if reader]
    layers = [(layer, layer.packed(weights)) for layer in readers[0].layers]
    if [layer.packed(weights) for layer in readers[-1].layers] != [offset for _, offset in layers]:
        raise BuildFailed("the window and the step have different layers")
    bodies = [_body(reader, layers, weights) for reader in readers]
    content = np.concatenate([np.zeros(HEAD, np.float32), *weights.parts])
    digest = cache.sha256(content.tobytes())
    content[:HEAD] = np.frombuffer(bytes.fromhex(digest), ">u2")  # 16 whole numbers
    included = content.nbytes <= LARGEST_INCLUDED if include_weights is None else include_weights
    found = CFile(
        name=name,
        target=target,
        source="",
        header="",
        weights=content.tobytes(),
        included=included,
        window=window.rows if window else None,
        step=tick.rows if tick else None,
        outputs=tuple(readers[0].outputs),
    )
    struct, struct_bytes = _struct(name, layers, bodies, bool(tick), target.vector_length)
    compiler = f"cc {' '.join(found.compile_flags)} -c {name}.c"
    head = (
        f"/* {name}: {_sizes(readers[0])}; batch size 1, float32. Generated by lstm_trt, kernel {VERSION}.\n"
        f"   Network SHA-256 {cache.sha256(model or step)}.\n"
        f"   Weights: {content.nbytes} bytes {'in this file' if included else f'in {name}.bin'}, SHA-256 {digest}.\n"
        f"   Memory of an instance, struct {name}: {struct_bytes} bytes.\n"
        f"   Target {target.name}, vectors of {target.vector_length} floats: {compiler}\n"
        f"   Error: {error}. */\n"
    )
    prototypes = _prototypes(name, readers, window, tick)
    header = _header(name, head, struct, prototypes, found, readers)
    source = _source(head, found, bodies, layers, prototypes, content, window, tick)
    return replace(found, header=header, source=source)


def _sizes(reader: Reader) -> str:
    """The layers in words."""
    names = {"LSTM": "LSTM", "GRU": "GRU", "RESET": "GRU"}
    parts = []
    for stage in reader.stages:
        if isinstance(stage, Recurrent):
            layer = reader.layers[stage.layer]
            parts.append(f"{names[layer.kind]} {layer.features} -> {layer.units}{' backwards' * stage.reverse}")
        elif isinstance(stage, Dense):
            parts.append(f"dense {' -> '.join(map(str, stage.matrix.shape))}")
        elif isinstance(stage, Pointwise):
            parts.append(stage.function)
    return ", ".join(parts)


@dataclass(frozen=True)
class _Body:
    """Statements of one pass, with the functions that they call, and the floats that they need in the struct."""

    functions: dict[str, str]
    lines: list[str]
    buffer: int
    gates: int


def _body(reader: Reader, layers: Sequence[tuple[Layer, int]], weights: Weights) -> _Body:
    functions: dict[str, str] = {}
    calls: list[str] = []
    gates = 0
    outputs = [base for base, _ in reader.outputs.values()]
    for stage in reader.stages:
        y = reader.bases[stage.writes]
        if isinstance(stage, Recurrent):
            layer, offset = layers[stage.layer]
            sizes = f"{layer.kind}, {layer.features}, {layer.units}, {stage.rows}, {int(stage.reverse)}"
            name = re.sub(r"\W+", "_", f"{sizes.lower()}_{stage.width}")
            functions[name] = (
                f"static void {name}(const float *x, const float *w, const float *sums, float *h, float *c, float *xp, float *y)\n"
                f"{{\n    recurrent({sizes}, x, w, sums, h, c, xp, y, {stage.width});\n}}\n"
            )
            gates = max(gates, min(stage.rows, CHUNK) * layer.gates * len(weights.vector(np.zeros(layer.units))))
            state = f"PREPARED({stage.layer}), net->h{stage.layer}, net->c{stage.layer}"
            calls.append(f"{name}({stage.x}, w + {offset}, {state}, net->gates, {y} + {stage.place});")
        elif isinstance(stage, Dense):
            k, columns = stage.matrix.shape
            few = columns <= FEW_COLUMNS
            matrix = weights.vector(stage.matrix).T if few else weights.matrix(stage.matrix.T, TILE)
            where = f"w + {weights.add(matrix)}, w + {weights.add(weights.vector(stage.bias))}"
            calls.append(
                f"{'dots' if few else 'dense'}({stage.rows}, {k}, {columns}, {stage.x}, {k}, {where}, {y}, {columns});"
            )
        elif isinstance(stage, Pointwise):
            a, b = (*map(_number, stage.parameters), "0", "0")[:2]
            calls.append(f"POINTWISE({stage.function}, {stage.size}, {stage.x}, {y}, {a}, {b});")
        elif isinstance(stage, Affine):
            both = [f"w + {weights.add(weights.vector(part))}" for part in (stage.scale, stage.shift)]
            calls.append(f"affine({stage.rows}, {stage.size // stage.rows}, {stage.x}, {', '.join(both)}, {y});")
        else:
            calls.append(f"memcpy({y} + {stage.place}, {stage.x}, {4 * stage.size});")
    places, size = _buffers(reader, outputs)
    names = [f"float *{reader.bases[base]} = net->buffer + {place};" for base, place in places.items()]
    names += [f"float *{reader.bases[base]} = {_argument(reader, name)};" for name, (base, _) in reader.outputs.items()]
    return _Body(functions, [*names, *calls], size, gates)


def _number(value: float) -> str:
    """A float constant in C."""
    return f"{'-' * (value < 0)}__builtin_inff()" if math.isinf(value) else f"{np.float32(value)!s}f"


def _argument(reader: Reader, output: str) -> str:
    """The parameter for an output: y, or y_NAME if there are several."""
    return "y" if len(reader.outputs) == 1 else f"y_{identifier(output)}"


def _buffers(reader: Reader, outputs: Sequence[int]) -> tuple[dict[int, int], int]:
    """Base -> place of each buffer in floats, and the size of all: a place is used again after the last reading."""
    last = {stage.reads: number for number, stage in enumerate(reader.stages)}
    free: list[tuple[int, int]] = []
    places: dict[int, int] = {}
    sizes: dict[int, int] = {}
    total = 0
    for number, stage in enumerate(reader.stages):
        if stage.writes not in places and stage.writes not in outputs:
            needed = -(-stage.size // 16) * 16
            fitting = min((entry for entry in free if entry[0] >= needed), default=None)
            if fitting:
                free.remove(fitting)
                sizes[stage.writes], places[stage.writes] = fitting
            else:
                sizes[stage.writes], places[stage.writes] = needed, total
                total += needed
        free += [(sizes[base], places[base]) for base in {stage.reads} & places.keys() if last[base] == number]
    return places, total


def _struct(
    name: str, layers: Sequence[tuple[Layer, int]], bodies: Sequence[_Body], has_step: bool, length: int
) -> tuple[str, int]:
    """The fields of the struct, and its size in bytes."""
    sizes: dict[str, int] = {}
    for number, (layer, _) in enumerate(layers):
        units = -(-layer.units // length) * length
        sizes |= {f"h{number}": 3 * units, f"c{number}": units}
        if has_step:
            sizes[f"sums{number}"] = {"LSTM": 4, "GRU": 3, "RESET": 2}[layer.kind] * units
    sizes |= {"gates": max(body.gates for body in bodies), "buffer": max(body.buffer for body in bodies)}
    aligned = "__attribute__((aligned(64)))"
    fields = [f"    float {field}[{size}] {aligned};" for field, size in sizes.items() if size]
    text = "\n".join([f"struct {name} {{", f"    const float *weights {aligned};", "    int prepared;", *fields, "};"])
    return text, 64 + sum(-(-4 * size // 64) * 64 for size in sizes.values())


def _prototypes(name: str, readers: Sequence[Reader], window: Reader | None, tick: Reader | None) -> dict[str, str]:
    """Function of one pass -> its declaration."""
    found = {}
    for function, reader in (("run", window), ("step", tick)):
        if reader:
            x = f"const float x[{_extent(reader.input.size, reader.rows)}]"
            ys = [
                f"float {_argument(reader, output)}[{_extent(size, reader.rows)}]"
                for output, (_, size) in reader.outputs.items()
            ]
            found[function] = f"void {name}_{function}(struct {name} *net, {', '.join([x, *ys])})"
    return found


def _extent(size: int, rows: int) -> str:
    return f"{rows} * {size // rows}" if rows > 1 and size % rows == 0 else str(size)


def _header(
    name: str, head: str, struct: str, prototypes: Mapping[str, str], found: CFile, readers: Sequence[Reader]
) -> str:
    reader = readers[-1]
    per_row = lambda size: size // reader.rows if size % reader.rows == 0 else size  # noqa: E731
    macros = {f"{name}_WINDOW": found.window, f"{name}_STEP": found.step, f"{name}_INPUTS": per_row(reader.input.size)}
    for output, (_, size) in reader.outputs.items():
        end = f"_{identifier(output)}" if len(reader.outputs) > 1 else ""
        macros[f"{name}_OUTPUTS{end}"] = per_row(size)
    comments = {
        "run": "A window of time steps from zero states, in time; the state after it is kept for step.",
        "step": "A call that continues from the state before it.",
    }
    functions = "\n".join(f"\n/* {comments[key]} */\n{text};" for key, text in prototypes.items())
    tick = (
        "\n/* Optional, after a step: computes now what the next step needs of the state, so that it answers sooner. */\n"
        f"void {name}_prepare_next(struct {name} *net);\n"
        if found.step
        else ""
    )
    included = (
        f"\n/* The weights, for {name}_init. */\nextern const float {name}_weights[];\n" if found.included else ""
    )
    return f"""{head}
#ifndef {name}_H
#define {name}_H

{chr(10).join(f"#define {macro} {value}" for macro, value in macros.items() if value is not None)}

/* One instance: state and buffers. At an address that is a multiple of 64; instances are independent. */
{struct}
{included}
/* Prepares an instance with states of zero. `weights`: {f"{name}_weights" if found.included else f"the content of {name}.bin"}, at an address that
   is a multiple of 64; they are read by every call. Returns 0, or 1 if an address is not a multiple of 64, 2 if these
   are not the weights of this network, 3 if the processor lacks the instructions. */
int {name}_init(struct {name} *net, const void *weights);

/* Sets all states to zero. */
void {name}_reset(struct {name} *net);
{functions}
{tick}
#endif
"""


def _source(
    head: str,
    found: CFile,
    bodies: Sequence[_Body],
    layers: Sequence[tuple[Layer, int]],
    prototypes: Mapping[str, str],
    content: np.ndarray,
    window: Reader | None,
    tick: Reader | None,
) -> str:
    name, length = found.name, found.target.vector_length
    needs = {16: "__AVX512F__", 8: "__AVX2__"}.get(length)
    guard = ""
    if needs:
        flags = " ".join(found.target.flags)
        guard = f'#ifndef {needs}\n#error "compile this file with {flags}"\n#endif\n#include <immintrin.h>\n'
    kernel = resources.files("lstm_trt.export").joinpath("kernel.c").read_text()
    functions = {key: text for body in bodies for key, text in body.functions.items()}
    marks = ", ".join(f"{int(value)}" for value in content[:HEAD])
    parts = [
        f'{head}\n#include "{name}.h"\n\n#include <stdint.h>\n#include <string.h>\n{guard}\n#define VL {length}\n',
        kernel,
        f"/* {name} */\n",
        *functions.values(),
        f"""int {name}_init(struct {name} *net, const void *weights)
{{
    static const float marks[{HEAD}] = {{{marks}}};
    if (!supported()) return 3;
    if ((uintptr_t)net % 64 || (uintptr_t)weights % 64) return 1;
    if (memcmp(marks, weights, sizeof marks)) return 2;
    net->weights = weights;
    {name}_reset(net);
    return 0;
}}
""",
        f"void {name}_reset(struct {name} *net)\n{{\n"
        + "".join(
            f"    memset(net->{field}{number}, 0, sizeof net->{field}{number});\n"
            for number in range(len(layers))
            for field in "hc"
        )
        + "    net->prepared = 0;\n}\n",
    ]
    for (function, prototype), body in zip(prototypes.items(), bodies, strict=True):
        begin = ["const float *w = net->weights;"]
        if function == "run":
            begin.append(f"{name}_reset(net);")
        sums = "(net->prepared ? net->sums##n : 0)" if function == "step" else "0"
        end = ["net->prepared = 0;"] if function == "step" else []
        lines = "".join(f"    {line}\n" for line in [*begin, *body.lines, *end])
        parts.append(f"#define PREPARED(n) {sums}\n{prototype}\n{{\n{lines}}}\n#undef PREPARED\n")
    if found.step:
        calls = "".join(
            f"    prepare({layer.kind}, {layer.features}, {layer.units}, net->weights + {offset}, net->h{number}, net->sums{number});\n"
            for number, (layer, offset) in enumerate(layers)
        )
        parts.append(f"void {name}_prepare_next(struct {name} *net)\n{{\n{calls}    net->prepared = 1;\n}}\n")
    if found.included:
        rows = [", ".join(f"{float(value).hex()}f" for value in row) for row in content.reshape(-1, 16)]
        values = ",\n".join(rows)
        parts.append(f"const float {name}_weights[] __attribute__((aligned(64))) = {{\n{values}\n}};\n")
    return "\n".join(parts)
