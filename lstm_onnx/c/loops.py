"""LSTM, GRU and RNN operators that `kernel.c` has no layers for: a loop over time steps of other operators.

So they may have any activations, clip, peepholes, input_forget, and a length that varies. The input's products are
computed before the loop, for all time steps at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lstm_onnx.c.moves import BASE
from lstm_onnx.c.node import Node
from lstm_onnx.c.program import Program
from lstm_onnx.c.stages import Data, End, Repeat, Value
from lstm_onnx.evaluate import Activation, activations_of
from lstm_trt.config.libraries import onnx
from lstm_trt.export.onnx_checks import INPUT_NAMES, RECURRENT

#: The version of the operators of which a time step consists.
OPSET = 18


def is_unusual(node: Node, rows: int, directions: int) -> bool:
    """Whether an operator has something that the layers of `kernel.c` lack."""
    lengths = node.get(INPUT_NAMES.index("sequence_lens"))
    peepholes = node.get(INPUT_NAMES.index("P"))
    names = tuple(node.has.get("activations") or ())
    default = RECURRENT[node.kind] * directions
    return (
        "clip" in node.has
        or bool(node.has.get("input_forget"))
        or (names or default)[: len(default)] != default
        or not _is_constant(lengths, rows)
        or not _is_constant(peepholes, 0)
    )


def _is_constant(value: Value, number: float) -> bool:
    """Whether an input is left out, or a constant of only this number."""
    return value is None or (isinstance(value, np.ndarray) and bool((value == number).all()))


def looped(
    program: Program, node: Node, x: Data, arrays: dict[str, np.ndarray], reverse: Sequence[bool]
) -> list[Value]:
    """Y, Y_h and, of an LSTM, Y_c, with time first; `arrays`: W, R and B, `reverse`: of each direction."""
    directions = activations_of(node.kind, node.has, len(reverse))
    lengths = node.get(INPUT_NAMES.index("sequence_lens"))
    if lengths is not None and (any(reverse) or program.carries):
        raise node.refused("a sequence of a length that varies is read forward only, and in a whole window")
    if any(reverse) and program.carries:
        raise node.refused("a layer that reads the sequence backwards has no state that could be carried")
    program.limit(lengths, len(x.at) + 1)
    found = [
        _direction(program, node, x, {key: array[index] for key, array in arrays.items()}, index, backwards, functions)
        for index, (backwards, functions) in enumerate(zip(reverse, directions, strict=True))
    ]
    y = Data(np.stack([rows.at for rows, _ in found], axis=1))
    states = [Data(np.stack([ends[key].at for _, ends in found])) for key in found[0][1]]
    return [y, *states]


def _direction(
    program: Program,
    node: Node,
    x: Data,
    arrays: dict[str, np.ndarray],
    index: int,
    reverse: bool,
    functions: Sequence[Activation],
) -> tuple[Data, dict[str, Data]]:
    """The outputs, (time, 1, units), and the last states, (1, units)."""
    rows = len(x.at)
    w, r = arrays["W"], arrays["R"]
    units = r.shape[-1]
    cell = _Cell(node, functions, index, units)
    of_input, of_state = np.split(arrays["B"], 2)
    if node.kind == "GRU" and cell.flag:  # the reset gate multiplies the last part
        of_state = of_state * (np.arange(3 * units) >= 2 * units)
        of_input = of_input + np.split(arrays["B"], 2)[1] - of_state
    else:
        of_input, of_state = of_input + of_state, np.zeros_like(of_state)
    products = program.product(x.at.reshape(rows, -1), w.T, of_input)
    states: dict[str, Data] = {}
    for place, key in enumerate("hc"[: 2 if node.kind == "LSTM" else 1]):
        states[key] = _begun(program, node.get(INPUT_NAMES.index("initial_h") + place), index, units)
    lengths = node.get(INPUT_NAMES.index("sequence_lens"))
    if lengths is not None:
        states["n"] = _begun(program, None, 0, 1)
    y = program.buffer((rows, 1, units))
    begin = len(program.stages)
    text = f"{node.kind} {w.shape[-1]} -> {units}"
    program.stages.append(Repeat(products.at.flat[0], y.at.flat[0], y.at.size, rows, text))
    time = f"({rows - 1} - t)" if reverse else "t"
    given, written = (
        program.new(f"({program.place(data.at.flat[0])} + {time} * {data.at[0].size})", (1, data.at[0].size))
        for data in (products, y)
    )
    values = {"xw": given, **states, "R": r.T, "RB": of_state, "length": lengths}
    outputs = cell.time_step(lengths is not None)
    after = program.expanded(
        node, cell.nodes, values | cell.constants, [outputs["y"], *map(outputs.get, states)], OPSET
    )
    for value, place in zip(after, (written, *states.values()), strict=True):
        program.copy_row(program.address(value), place.at.flat[0], place.at.size)
    inside = program.stages[begin:]
    made = {stage.y // BASE for stage in inside}
    read = [address for stage in inside for address in stage.reads if address // BASE not in made]
    kept = [data.at.flat[0] for data in (products, y, *states.values())]
    program.stages.append(End(kept[1], kept[1], 0, (*read, *kept)))
    return y, {key: data for key, data in states.items() if key != "n"}


def _begun(program: Program, state: Value, index: int, units: int) -> Data:
    """A buffer for a state, (1, units), with its first value."""
    if state is None:
        state = np.zeros((index + 1, units), np.float32)
    first = program.stored(state) if isinstance(state, np.ndarray) else state
    begin = program.address(Data(first.at.reshape(-1, units)[index]))
    data = program.buffer((1, units))
    program.copy_row(begin, data.at.flat[0], units)
    return data


class _Cell:
    """The operators of one time step, of one direction, by the definitions of ONNX.

    They read the tensors xw, h, c, R, RB (with biases that are not in xw), n (the number of the step) and length.
    """

    def __init__(self, node: Node, functions: Sequence[Activation], index: int, units: int) -> None:
        self.kind = node.kind
        self.functions = functions
        self.units = units
        self.clip = node.has.get("clip")
        self.flag = bool(node.has.get("input_forget") or node.has.get("linear_before_reset"))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        peepholes = node.get(INPUT_NAMES.index("P"))
        self.peepholes = [None] * 3 if peepholes is None else np.split(node.constant(peepholes, "P")[index], 3)

    def add(self, kind: str, *inputs: str, **has: Any) -> str:
        """The output of another operator."""
        output = f"v{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, [output], **has))
        return output

    def number(self, value: Any) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = np.array(value, np.float32)
        return name

    def part(self, source: str, first: int, end: int) -> str:
        """Gates from one to another, of (1, gates x units)."""
        places = [np.array([number * self.units]) for number in (first, end)]
        names = [f"p{len(self.constants)}", f"q{len(self.constants)}", f"a{len(self.constants)}"]
        self.constants.update(zip(names, (*places, np.array([1])), strict=True))
        return self.add("Slice", source, *names)

    def activated(self, place: int, source: str) -> str:
        """An activation, of which the input is clipped."""
        name, alpha, beta = self.functions[place]
        if self.clip is not None:
            source = self.add("Clip", source, self.number(-self.clip), self.number(self.clip))
        if name == "Affine":
            return self.add("Add", self.add("Mul", source, self.number(alpha)), self.number(beta))
        if name == "ScaledTanh":
            inner = self.add("Tanh", self.add("Mul", source, self.number(beta)))
            return self.add("Mul", inner, self.number(alpha))
        has = {key: value for key, value in (("alpha", alpha), ("beta", beta)) if value is not None}
        return self.add(name, source, **has)

    def seen(self, source: str, place: int, c: str) -> str:
        """A gate that sees the cell through a peephole."""
        weights = self.peepholes[place]
        return source if weights is None else self.add("Add", source, self.add("Mul", c, self.number(weights)))

    def time_step(self, has_length: bool) -> dict[str, str]:
        """The names of what a time step gives: y, h and, of an LSTM, c; with a length also the next n."""
        found = {"LSTM": self.lstm, "GRU": self.gru, "RNN": self.rnn}[self.kind]()
        found["y"] = found["h"]
        if has_length:
            inside = self.add("Less", "n", "length")
            for key in [key for key in found if key != "y"]:
                found[key] = self.add("Where", inside, found[key], key)
            found["y"] = self.add("Where", inside, found["y"], self.number([0]))
            found["n"] = self.add("Add", "n", self.number([1]))
        return found

    def lstm(self) -> dict[str, str]:
        sums = self.add("Add", self.add("MatMul", "h", "R"), "xw")
        i, o, forget, new = (self.part(sums, gate, gate + 1) for gate in range(4))
        i = self.activated(0, self.seen(i, 0, "c"))
        forget = self.add("Sub", self.number(1), i) if self.flag else self.activated(0, self.seen(forget, 2, "c"))
        c = self.add("Add", self.add("Mul", forget, "c"), self.add("Mul", i, self.activated(1, new)))
        o = self.activated(0, self.seen(o, 1, c))
        return {"h": self.add("Mul", o, self.activated(2, c)), "c": c}

    def gru(self) -> dict[str, str]:
        first, last = self.part("xw", 0, 2), self.part("xw", 2, 3)
        if self.flag:
            own = self.add("Gemm", "h", "R", "RB")
            gates = self.activated(0, self.add("Add", self.part(own, 0, 2), first))
        else:
            of_gates = self.part("R", 0, 2)
            gates = self.activated(0, self.add("Add", self.add("MatMul", "h", of_gates), first))
        z, reset = self.part(gates, 0, 1), self.part(gates, 1, 2)
        if self.flag:
            own = self.add("Mul", reset, self.part(own, 2, 3))
        else:
            own = self.add("MatMul", self.add("Mul", reset, "h"), self.part("R", 2, 3))
        new = self.activated(1, self.add("Add", own, last))
        return {"h": self.add("Add", new, self.add("Mul", z, self.add("Sub", "h", new)))}

    def rnn(self) -> dict[str, str]:
        sums = self.add("Add", self.add("MatMul", "h", "R"), "xw")
        return {"h": self.activated(0, sums)}
