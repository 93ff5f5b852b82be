"""LSTM, GRU and RNN operators that `kernel.c` has no layers for: a loop over time steps of other operators.

So they may have any activations, clip, peepholes, input_forget, and a length that varies. The input's products are
computed before the loop, for all time steps at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lstm_onnx.c.moves import BASE
from lstm_onnx.c.node import Node
from lstm_onnx.c.program import Program, rows_of
from lstm_onnx.c.stages import Data, End, Repeat, Value
from lstm_onnx.evaluate import Activation, activations_of
from lstm_trt.config.libraries import onnx
from lstm_trt.export.onnx_checks import INPUT_NAMES, RECURRENT

#: The version of the operators of which a time step consists.
OPSET = 18

#: A time step by the definitions of ONNX: from h and c to h_ and c_. `xw` has the product of the input with all biases
#: that `RB` has not, F, G and H are the activations; whole numbers are places of gates.
CELLS = {
    "LSTM": """
        hr = MatMul h R
        s = Add hr xw
        si = Slice s 0 1 axis
        so = Slice s 1 2 axis
        sf = Slice s 2 3 axis
        sg = Slice s 3 4 axis
        pi = Mul c P0
        ai = Add si pi
        i = F ai
        pf = Mul c P2
        af = Add sf pf
        forget = F af
        new = G sg
        kept = Mul forget c
        added = Mul i new
        c_ = Add kept added
        po = Mul c_ P1
        ao = Add so po
        o = F ao
        seen = H c_
        h_ = Mul o seen
    """,
    "GRU": """
        xu = Slice xw 0 2 axis
        xn = Slice xw 2 3 axis
        Ru = Slice R 0 2 axis
        Rn = Slice R 2 3 axis
        hu = MatMul h Ru
        au = Add hu xu
        u = F au
        z = Slice u 0 1 axis
        r = Slice u 1 2 axis
        rh = Mul r h
        hn = MatMul rh Rn
        an = Add hn xn
        new = G an
        d = Sub h new
        zd = Mul z d
        h_ = Add new zd
    """,
    "RNN": """
        hr = MatMul h R
        s = Add hr xw
        h_ = F s
    """,
}

#: Rows in place of others: of an LSTM with input_forget, and of a GRU with linear_before_reset.
FLAGS = {
    "input_forget": {"forget = F af": "forget = Sub one i"},
    "linear_before_reset": {
        "rh = Mul r h": "all = MatMul h Rn\nbiased = Add all RB",
        "hn = MatMul rh Rn": "hn = Mul r biased",
    },
}

#: What follows where the sequence has a length: after it, states stay and outputs are 0.
LENGTH = """
    inside = Less n length
    y = Where inside h_ zero
    h_ = Where inside h_ h
    c_ = Where inside c_ c
    n_ = Add n one
"""


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
    of_input, of_state = np.split(arrays["B"], 2)
    own = None
    if node.has.get("linear_before_reset"):  # the reset gate multiplies the last part of these biases
        own = of_state[2 * units :]
        of_state = np.concatenate([of_state[: 2 * units], np.zeros_like(own)])
    products = program.product(x.at.reshape(rows, -1), w.T, of_input + of_state)
    states: dict[str, Data] = {}
    for place, key in enumerate("hc"[: 2 if node.kind == "LSTM" else 1]):
        states[key] = _begun(program, node.get(INPUT_NAMES.index("initial_h") + place), index, units)
    lengths = node.get(INPUT_NAMES.index("sequence_lens"))
    if lengths is not None:
        states["n"] = _begun(program, None, 0, 1)
    y = program.buffer((rows, 1, units))
    begin = len(program.stages)
    head = f"{node.kind} {w.shape[-1]} -> {units}"
    program.stages.append(Repeat(products.at.flat[0], y.at.flat[0], y.at.size, rows, head))
    time = f"({rows - 1} - t)" if reverse else "t"
    given, written = (
        program.new(f"({program.place(data.at.flat[0])} + {time} * {data.at[0].size})", (1, data.at[0].size))
        for data in (products, y)
    )
    values = {**_constants(node, index, units), **states, "xw": given, "R": r.T, "RB": own, "length": lengths}
    text = _time_step(node)
    names = ["h_" if lengths is None else "y", *(f"{key}_" for key in states)]
    steps = _activated(rows_of(text, values), functions, node.has.get("clip"))
    after = program.expanded(node, steps, values, names, OPSET)
    for value, place in zip(after, (written, *states.values()), strict=True):
        program.copy_row(program.address(value), place.at.flat[0], place.at.size)
    inside = program.stages[begin:]
    made = {stage.y // BASE for stage in inside}
    read = [address for stage in inside for address in stage.reads if address // BASE not in made]
    kept = [data.at.flat[0] for data in (products, y, *states.values())]
    program.stages.append(End(kept[1], kept[1], 0, (*read, *kept)))
    return y, {key: data for key, data in states.items() if key != "n"}


def _constants(node: Node, index: int, units: int) -> dict[str, Value]:
    """What a time step reads besides its input, states, and R; c is none until it is known."""
    values: dict[str, Value] = dict.fromkeys(("c", "P0", "P1", "P2"))
    values.update({"axis": np.array([1]), "zero": np.zeros(1, np.float32), "one": np.ones(1, np.float32)})
    for gate in range(5):
        values[str(gate)] = np.array([gate * units])
    peepholes = node.get(INPUT_NAMES.index("P"))
    if peepholes is not None:
        parts = np.split(node.constant(peepholes, "P")[index], 3)
        values.update(zip(("P0", "P1", "P2"), parts, strict=True))
    return values


def _time_step(node: Node) -> str:
    """The text of `CELLS` with the flags of an operator, and its length."""
    text = CELLS[node.kind]
    for flag, others in FLAGS.items():
        if node.has.get(flag):
            for row, other in others.items():
                text = text.replace(row, other)
    return text if node.get(INPUT_NAMES.index("sequence_lens")) is None else text + LENGTH


def _begun(program: Program, state: Value, index: int, units: int) -> Data:
    """A buffer for a state, (1, units), with its first value."""
    if state is None:
        state = np.zeros((index + 1, units), np.float32)
    first = program.stored(state) if isinstance(state, np.ndarray) else state
    begin = program.address(Data(first.at.reshape(-1, units)[index]))
    data = program.buffer((1, units))
    program.copy_row(begin, data.at.flat[0], units)
    return data


def _activated(
    rows: Iterable[onnx.NodeProto], functions: Sequence[Activation], clip: float | None
) -> Iterator[onnx.NodeProto]:
    """The rows of a time step, of which F, G and H are these activations of clipped inputs."""
    for row in rows:
        if row.op_type in "FGH":
            activation = functions["FGH".index(row.op_type)]
            row.op_type = activation.name
            for key, number in activation.parameters.items():
                row.attribute.append(onnx.helper.make_attribute(key, number))
            if clip is not None:
                bounded = onnx.helper.make_node("Clip", row.input, [f"{row.output[0]}, clipped"], min=-clip, max=clip)
                row.input[:] = bounded.output
                yield bounded
        yield row
