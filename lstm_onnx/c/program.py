"""The calls that compute a network, as they are found, and the memory that they use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lstm_onnx.c.moves import BASE, Loop, moves
from lstm_onnx.c.node import Node
from lstm_onnx.c.stages import Addresses, Binary, Copy, Data, Dense, Layer, Stage, Value
from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.libraries import onnx

#: The place of a constant, before it has an address.
FILL = -1


def once(array: np.ndarray) -> np.ndarray:
    """The array with the size 1 along the axes along which all its numbers are the same."""
    for axis, size in enumerate(array.shape):
        first = array.take([0], axis) if size > 1 else array
        if (array == first).all():
            array = first
    return array


def rows_of(text: str, values: Mapping[str, Value]) -> list[onnx.NodeProto]:
    """The operators of a text with rows "output = Operator input ...".

    One that reads a tensor that is None is left out, and so is its output; a sum with one is the
    other operand.
    """
    absent = {name for name, value in values.items() if value is None}
    nodes = []
    for line in filter(str.strip, text.splitlines()):
        output, _, kind, *inputs = line.split()
        given = [name for name in inputs if name not in absent]
        if given == inputs:
            nodes.append(onnx.helper.make_node(kind, inputs, [output]))
        elif kind == "Add" and given:
            nodes.append(onnx.helper.make_node("Identity", given, [output]))
        else:
            absent.add(output)
    return nodes


class Program:
    """Stages, and the bases of their addresses: inputs, outputs, states, buffers, constants."""

    def __init__(self) -> None:
        #: Base -> its name in C.
        self.bases: list[str] = []
        self.stages: list[Stage] = []
        self.layers: list[Layer] = []
        #: Base -> size.
        self.buffers: dict[int, int] = {}
        #: Base -> its numbers.
        self.constants: dict[int, np.ndarray] = {}
        #: Products with constant matrices, and their stages.
        self.products: list[tuple[Addresses, Any]] = []
        self.values: dict[str, Value] = {}
        #: Tensors of whole numbers and conditions, which are float32 in C.
        self.whole: set[str] = set()
        #: Inputs of whole numbers -> the number below which they are, as far as that is known, or
        #: 2.
        self.whole_inputs: dict[str, int] = {}
        #: Tensor -> how often the graph reads it.
        self.uses: Counter[str] = Counter()
        self.opsets: dict[str, int] = {}
        #: Whether states are carried from call to call.
        self.carries = False
        #: Address in a state that is carried -> that of the same number after the call.
        self.after: dict[int, int] = {}
        #: Numbers of the layers with an initial state that each call copies.
        self.given: set[int] = set()
        #: Field of the struct with the state of a layer -> a constant from which it begins.
        self.firsts: dict[str, np.ndarray] = {}
        #: Bases with outputs of recurrent layers, and names of the tensors which are such inputs of
        #: others.
        self.bounded: set[int] = set()
        self.bounded_inputs: set[str] = set()

    def read(self, proto: onnx.NodeProto) -> None:
        """Append the stages of an operator, of which the outputs are among `values` then."""
        raise NotImplementedError

    def new(self, base: str, shape: tuple[int, ...]) -> Addresses:
        """A tensor whose numbers follow each other from the place `base` in C on."""
        self.bases.append(base)
        start = (len(self.bases) - 1) * BASE
        return np.arange(start, start + math.prod(shape)).reshape(shape).view(Data)

    def buffer(self, shape: tuple[int, ...]) -> Addresses:
        """A tensor for results."""
        self.buffers[len(self.bases)] = math.prod(shape)
        return self.new(f"b{len(self.bases)}", shape)

    def stored(self, value: np.ndarray) -> Addresses:
        """A constant, all numbers of which are among the weights."""
        self.constants[len(self.bases)] = value.astype(np.float32)
        return self.new("constant", value.shape)

    def data(self, value: Addresses | np.ndarray) -> Addresses:
        """A tensor, of which a constant gets addresses, once for numbers that are repeated."""
        if isinstance(value, Data):
            return value
        return np.broadcast_to(self.stored(once(value)), value.shape, subok=True)

    def filled(self, at: np.ndarray, value: float = 0.0) -> Addresses:
        """Addresses, in which `FILL` stood for a constant."""
        missing = at == FILL
        at = at.copy()
        if missing.any():
            at[missing] = self.data(np.full(np.count_nonzero(missing), value))
        return at.view(Data)

    def limit(self, index: Value, rows: int) -> None:
        """Note that an input is an index of so many rows."""
        if isinstance(index, Data):
            for name in self.whole_inputs:
                if np.intersect1d(self.values[name] // BASE, index // BASE).size:
                    self.whole_inputs[name] = rows

    def place(self, address: int) -> str:
        """The C expression of an address."""
        name = self.bases[address // BASE]
        offset = address % BASE
        return f"{name} + {offset}" if offset else name

    def address(self, data: Addresses) -> int:
        """Where a tensor begins, which is copied if it lies in several pieces.

        Raises `BuildFailed` if it has no numbers.
        """
        if not data.size:
            raise BuildFailed("a tensor of no numbers: the window is too short for this network")
        if (np.diff(data.ravel()) == 1).all():
            return data.flat[0]
        return self.copied(data)

    def copy_row(self, x: int, y: int, size: int) -> None:
        """Append a copy of adjacent numbers."""
        self.stages.append(Copy(x, y, size, (Loop(size, 1, 1),)))

    def copied(self, data: Addresses) -> int:
        """Where a copy of a tensor begins."""
        first = self.buffer(data.shape).flat[0]
        for move in moves(data):
            self.stages.append(Copy(move.x, first + move.to, data.size, move.loops))
        return first

    def each(
        self, kind: type[Stage], data: Addresses, *more: Any, others: Sequence[Addresses] = ()
    ) -> Addresses:
        """Append a stage for each number by itself, with those of `others`, in `data`'s order."""
        if not data.size:
            return data
        order = np.argsort(data, axis=None, kind="stable")
        x = self.address(data.ravel()[order])
        rest = []
        for other in others:
            rest.append(x if other is data else self.address(other.ravel()[order]))
        y = self.buffer((data.size,))
        self.stages.append(kind(x, y[0], len(y), *rest, *more))
        at = np.empty_like(y)
        at[order] = y
        return at.reshape(data.shape)

    def joined(self, function: str, first: Addresses, second: Addresses) -> Addresses:
        """Append a function of two numbers, for each of two tensors of one shape."""
        return self.each(Binary, first, function, others=[second])

    def product(self, rows: Addresses, matrix: np.ndarray, bias: np.ndarray) -> Addresses:
        """Append the product of rows, (n, k), with a matrix, (k, columns); returns (n, columns)."""
        if not rows.size:
            raise BuildFailed("a product of no rows: the window is too short for this network")
        x, _, stride = self.lines(rows[None])
        y = self.buffer((len(rows), matrix.shape[1]))
        self.stages.append(Dense(x, y.flat[0], y.size, len(rows), stride, matrix, bias))
        return y

    def lines(self, at: Addresses) -> tuple[int, int, int]:
        """Where rows, (batches, rows, k), begin; how far it is to the next batch and row.

        They are copied if that differs from one to another.
        """
        _, rows, k = at.shape
        steps = []
        even = bool((np.diff(at) == 1).all()) and np.ptp(at) < BASE // 2
        for axis, size in ((0, rows * k), (1, k)):
            far = np.diff(at, axis=axis)
            steps.append(int(far.flat[0]) if far.size else size)
            even = even and bool((far == steps[-1]).all()) and steps[-1] >= 0
        if even:
            return at.flat[0], *steps
        return self.address(at), rows * k, k

    def begin_from(self, state: np.ndarray, after: Any) -> None:
        """The state from which a layer begins, which `reset` puts where it ends."""
        self.firsts[self.bases[after // BASE]] = state.astype(np.float32).ravel()

    def expanded(
        self,
        node: Node,
        parts: Iterable[onnx.NodeProto],
        values: Mapping[str, Value],
        outputs: Sequence[str],
        opset: int | None = None,
    ) -> list[Value]:
        """What operators compute from `values` in place of one, which is named in a refusal.

        They are of the version `opset`, or of that of the network.
        """
        before = self.opsets
        if opset is not None:
            self.opsets = {**before, "": opset}
        prefix = f"{node.proto.output[0]} of {node.kind}, "
        for name, value in values.items():
            self.values[prefix + name] = value
        for part in parts:
            copy = onnx.NodeProto()
            copy.CopyFrom(part)
            copy.name = node.proto.name
            copy.input[:] = [prefix + name if name else "" for name in part.input]
            copy.output[:] = [prefix + name for name in part.output]
            self.read(copy)
        self.opsets = before
        return [self.values[prefix + name] for name in outputs]
