"""LSTM, GRU and RNN operators as layers of `kernel.c`."""

from collections.abc import Iterator, Sequence

import numpy as np

from lstm_onnx.c.loops import is_unusual, looped
from lstm_onnx.c.moves import BASE
from lstm_onnx.c.node import Node
from lstm_onnx.c.program import Program
from lstm_onnx.c.stages import Addresses, Data, Layer, Recurrent, Value, is_constant
from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.workload import RecurrentLayer


def recurrent(program: Program, node: Node) -> list[Value]:
    """Y, Y_h and, of an LSTM, Y_c."""
    x = node.inputs[0]
    if not isinstance(x, Data):
        raise node.refused("its input is a constant")
    w = node.constant(node.inputs[1], "W")
    r = node.constant(node.inputs[2], "R")
    if node.has.get("layout"):
        x = x.swapaxes(0, 1)
    rows, batch, features = x.shape
    direction = node.has.get("direction", "forward")
    layer = RecurrentLayer(node.kind, r.shape[-1], features, rows, batch, direction)
    b = node.named("B")
    b = np.zeros(layer.weight_shapes["B"], np.float32) if b is None else node.constant(b, "B")
    arrays = {"W": w, "R": r, "B": b}
    for fault in _faults(node, layer, arrays):
        raise node.refused(fault)
    reverse = [direction == "reverse", True][: layer.directions]
    compute = looped if is_unusual(node, rows, layer.directions) else _layers
    y, *states = compute(program, node, x, arrays, reverse)
    if node.has.get("layout"):
        return [y.transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in states)]
    return [y, *states]


def _layers(
    program: Program,
    node: Node,
    x: Addresses,
    arrays: dict[str, np.ndarray],
    reverse: Sequence[bool],
) -> list[Value]:
    """A layer of `kernel.c` for each direction: Y and the states, with time first."""
    w, r, b = arrays.values()
    units = r.shape[-1]
    features = w.shape[-1]
    begin = program.address(x)
    bounded = begin // BASE in program.bounded
    y = program.buffer((len(x), len(reverse), 1, units))
    program.bounded.add(y.flat[0] // BASE)
    if bounded:
        program.bounded_inputs.add(node.proto.input[0])
    kind = node.kind
    if kind == "GRU" and not node.has.get("linear_before_reset"):
        kind = "RESET"
    ends: dict[str, list[np.ndarray]] = {"h": [], "c": []}
    for index, backwards in enumerate(reverse):
        number = len(program.layers)
        weights = (w[index], r[index], *np.split(b[index], 2))
        program.layers.append(Layer(kind, units, features, weights, bounded))
        for state, found in ends.items():
            value = node.named(f"initial_{state}")
            found.append(program.new(f"net->{state}{number}", (1, units)))
            if state == "h" or node.kind == "LSTM" or value is not None:
                _begin(program, value, index, found[-1])
        place = y[0, index, 0, 0]
        head = f"{node.kind} {features} -> {units}"
        if backwards:
            head += " backwards"
        program.stages.append(
            Recurrent(begin, place, y.size, len(x), number, len(reverse) * units, backwards, head)
        )
    return [y, *(np.stack(end).view(Data) for end in ends.values())]


def _begin(program: Program, state: Value, index: int, after: np.ndarray) -> None:
    """The state from which the last layer begins: carried, a constant, or else copied.

    `after` is where the state ends.
    """
    number = len(program.layers) - 1
    units = after.size
    if state is None or (is_constant(state) and not state.any()):
        if program.carries:
            raise BuildFailed(
                f"layer {number + 1} begins each call from zero; its state must be carried as well"
            )
        return
    if is_constant(state) and not program.carries:
        program.begin_from(state.reshape(-1, units)[index], after.flat[0])
        return
    begin = program.data(state).reshape(-1, units)[index]
    if program.bases[begin[0] // BASE].startswith("state "):
        program.after.update(zip(begin.tolist(), after[0].tolist(), strict=True))
    else:
        program.copy_row(program.address(begin), after[0, 0], units)
        program.given.add(number)


def _faults(node: Node, layer: RecurrentLayer, arrays: dict[str, np.ndarray]) -> Iterator[str]:
    """Why a layer cannot be generated."""
    has = node.has
    if layer.direction not in ("forward", "reverse", "bidirectional"):
        yield f"unknown direction {layer.direction!r}"
    if has.get("hidden_size") != layer.hidden:
        yield f"hidden_size {has.get('hidden_size')}, but R of {layer.hidden} units"
    for name, array in arrays.items():
        expected = layer.weight_shapes[name]
        if array.shape != expected:
            yield f"{name} has shape {array.shape}, expected {expected}"
    if layer.batch != 1:
        yield (
            f"batch size {layer.batch}, but the C kernel computes batch size 1:"
            " give the file a symbolic batch size, and call the code once for each sequence"
        )
    lengths = node.named("sequence_lens")
    if lengths is not None and lengths.shape != (1,):
        yield f"sequence_lens has shape {lengths.shape}, expected (1,)"
