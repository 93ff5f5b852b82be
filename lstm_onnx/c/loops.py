"""LSTM, GRU and RNN operators that `kernel.c` has no layers for: a loop of other operators.

So they may have any activations, clip, peepholes, input_forget, and a length that varies. The
input's products are computed before the loop, for all time steps at once.
Weights in bf16 or int8 and `prepare_next` are not there for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from lstm_onnx.c.moves import BASE
from lstm_onnx.c.node import Node
from lstm_onnx.c.program import Program, rows_of
from lstm_onnx.c.stages import Addresses, Data, End, Repeat, Value, is_constant
from lstm_onnx.evaluate import Activation, activations_of
from lstm_trt.config.libraries import onnx
from lstm_trt.export.onnx_checks import RECURRENT

#: The version of the operators of which a time step consists.
OPSET = 18

#: A time step by the definitions of ONNX: from h and c to h_ and c_. `xw` has the product of the
#: input with all biases that `RB` has not, F, G and H are the activations; whole numbers are places
#: of gates.
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
    lengths = node.named("sequence_lens")
    peepholes = node.named("P")
    default = RECURRENT[node.kind] * directions
    names = tuple(node.has.get("activations", default))
    return (
        "clip" in node.has
        or bool(node.has.get("input_forget"))
        or names[: len(default)] != default
        or not _is_only(lengths, rows)
        or not _is_only(peepholes, 0)
    )


def _is_only(value: Value, number: float) -> bool:
    """Whether an input is left out, or a constant of only this number."""
    return value is None or (is_constant(value) and bool((value == number).all()))


def looped(
    program: Program,
    node: Node,
    x: Addresses,
    arrays: dict[str, np.ndarray],
    reverse: Sequence[bool],
) -> list[Value]:
    """Y, Y_h and, of an LSTM, Y_c, with time first; `arrays`: W, R and B."""
    directions = activations_of(node.kind, node.has, len(reverse))
    lengths = node.named("sequence_lens")
    if lengths is not None and (any(reverse) or program.carries):
        raise node.refused(
            "a sequence of a length that varies is read forward only, and in a whole window:"
            " export it without sequence_lens, for sequences of one length"
        )
    if any(reverse) and program.carries:
        raise node.refused(
            "a layer that reads the sequence backwards has no state that could be carried"
        )
    program.limit(lengths, len(x) + 1)
    rows = []
    ends = []
    for index, (backwards, functions) in enumerate(zip(reverse, directions, strict=True)):
        w, r, b = (array[index] for array in arrays.values())
        products, own = _products(program, node, x, w, b)
        states = _states(program, node, index, r.shape[-1])
        values = _constants(node, index, r.shape[-1])
        values.update(states, R=r.T, RB=own, length=lengths)
        rows.append(_time_steps(program, node, products, states, values, backwards, functions))
        ends.append(states)
    found = [np.stack(rows, axis=1)]
    for key in states:
        if key != "n":
            found.append(np.stack([states[key] for states in ends]))
    return [each.view(Data) for each in found]


def _products(
    program: Program, node: Node, x: Addresses, w: np.ndarray, b: np.ndarray
) -> tuple[Addresses, Value]:
    """The input's products with biases, (time, gates x units), and the biases not in them."""
    of_input, of_state = np.split(b, 2)
    own = None
    # The reset gate multiplies the last part of these biases.
    if node.has.get("linear_before_reset"):
        *others, own = np.split(of_state, 3)
        of_state = np.concatenate([*others, np.zeros_like(own)])
    return program.product(x.reshape(len(x), -1), w.T, of_input + of_state), own


def _states(program: Program, node: Node, index: int, units: int) -> dict[str, Addresses]:
    """Buffers with the first states, (1, units), and with the time step where that is needed."""
    states = {"h": _begun(program, node.named("initial_h"), index, units)}
    if node.kind == "LSTM":
        states["c"] = _begun(program, node.named("initial_c"), index, units)
    if node.named("sequence_lens") is not None:
        states["n"] = _begun(program, None, 0, 1)
    return states


def _time_steps(
    program: Program,
    node: Node,
    products: Addresses,
    states: Mapping[str, Addresses],
    values: Mapping[str, Value],
    backwards: bool,
    functions: Sequence[Activation],
) -> Addresses:
    """Append the loop, which leaves the last states in `states`; returns (time, 1, units)."""
    rows = len(products)
    y = program.buffer((rows, *states["h"].shape))
    begin = len(program.stages)
    head = f"{node.kind} {node.inputs[0].shape[-1]} -> {y.shape[-1]}"
    program.stages.append(Repeat(products.flat[0], y.flat[0], y.size, rows, head))
    time = f"({rows - 1} - t)" if backwards else "t"
    values = {**values, "xw": _row(program, products, time)}
    written = _row(program, y, time)
    names = ["h_" if values["length"] is None else "y", *(f"{key}_" for key in states)]
    steps = _activated(rows_of(_time_step(node), values), functions, node.has.get("clip"))
    after = program.expanded(node, steps, values, names, OPSET)
    for value, place in zip(after, (written, *states.values()), strict=True):
        program.copy_row(program.address(value), place.flat[0], place.size)
    inside = program.stages[begin:]
    made = {stage.y // BASE for stage in inside}
    needed = [data.flat[0] for data in (products, y, *states.values())]
    for stage in inside:
        needed += [address for address in stage.reads if address // BASE not in made]
    program.stages.append(End(y.flat[0], y.flat[0], 0, tuple(needed)))
    return y


def _row(program: Program, data: Addresses, time: str) -> Addresses:
    """The row of a time step, (1, ...)."""
    size = data[0].size
    return program.new(f"({program.place(data.flat[0])} + {time} * {size})", (1, size))


def _constants(node: Node, index: int, units: int) -> dict[str, Value]:
    """What a time step reads besides its input, states, and R; c is none until it is known."""
    values: dict[str, Value] = dict.fromkeys(("c", "P0", "P1", "P2"))
    values.update(axis=np.array([1]), zero=np.zeros(1, np.float32), one=np.ones(1, np.float32))
    for gate in range(5):
        values[str(gate)] = np.array([gate * units])
    peepholes = node.named("P")
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
    return text if node.named("sequence_lens") is None else text + LENGTH


def _begun(program: Program, state: Value, index: int, units: int) -> Addresses:
    """A buffer for a state, (1, units), with its first value."""
    if state is None:
        state = np.zeros((index + 1, units), np.float32)
    first = program.stored(state) if is_constant(state) else state
    begin = program.address(first.reshape(-1, units)[index])
    data = program.buffer((1, units))
    program.copy_row(begin, data.flat[0], units)
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
                bounded = onnx.helper.make_node(
                    "Clip", row.input, [f"{row.output[0]}, clipped"], min=-clip, max=clip
                )
                row.input[:] = bounded.output
                yield bounded
        yield row
