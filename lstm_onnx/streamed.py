"""A network for whole windows as a stream: what its operators keep of earlier samples becomes inputs and outputs.

LSTM, GRU and RNN operators that read forward along time get their states from the call before, and convolutions (Conv
with padding, or a Pad before it) the samples that they still need. States are zero before the first call; where a layer
begins from others, what is carried is the difference from these. A convolution with a stride takes as many samples a
call. Whether that is all that the network needs of earlier samples is tried: in two calls of half of the samples each,
every tensor must be that of one run over all of them. So operators that act on each sample alone may be any, as may
layers over other axes; the first operator that needs later samples, or earlier ones in another way, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lstm_onnx.constants import fix_inputs
from lstm_onnx.read_onnx import run_onnxruntime
from lstm_trt.config.errors import UsageError, any_error
from lstm_trt.config.libraries import onnx
from lstm_trt.config.workload import State
from lstm_trt.export import onnx_checks
from lstm_trt.export.sizes import attributes

#: Samples of one run, and of two calls in its place: multiples of what strides may take.
SAMPLES = (240, 120)

#: The end of the name of a state plus the first value, from which a layer begins.
SUM = "_and_first"

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Streamed:
    """The ONNX file of a stream, with the symbolic sizes of the network; its states, input -> output.

    Each call takes a multiple of `stride` samples.
    """

    content: bytes
    states: dict[str, str]
    stride: int


def streamed(whole: Any, half: Any) -> Streamed:
    """`whole` and `half`: the network as an `OnnxNetwork` of batch size 1, each for one of `SAMPLES`.

    Raises `UsageError` with the name of the operator that cannot be in a stream.
    """
    model, inputs = onnx_checks.read(whole.path.read_bytes()), whole.make_inputs(0)
    fix_inputs(model, whole.constants)
    operators = [(name, onnx_checks.label(node)) for node in model.graph.node for name in node.output if name]
    pairs = {name: _halves(array, half.input_shapes[name]) for name, array in inputs.items()}
    parts = [{name: pair[place] for name, pair in pairs.items()} for place in (0, 1)]
    with any_error(UsageError, f"{whole.name} has no mode stream: it cannot be run with {SAMPLES[0]} samples"):
        (long,), (short,) = _results(model, [inputs]), _results(model, parts[:1])
        states, strided = _carry(model, inputs | long, parts[0] | short, whole.facts.batch_symbol)
        calls = _results(model, parts, states)
    for name, label in operators:
        array, both = long[name], [call[name] for call in calls]
        # No samples may be missing between the calls; what is padded inside has some of them twice.
        twice = 2 * both[0].size - array.size
        moves = twice == 0 or (twice > 0 and name not in half.output_shapes)
        moves = moves and all(map(_same, both, _halves(array, both[0].shape)))
        # Without an axis of time: sizes and what follows from them, or the final state of a layer.
        if (
            not moves
            and not _same(both[1], array)
            and not (array.shape == both[1].shape and _same(both[1], short[name]))
        ):
            raise UsageError(
                f"{whole.name} has no mode stream: {label} needs more than the current sample, and is no LSTM, GRU or"
                " RNN that reads forward from a constant state, nor a convolution with zeros before the first sample"
            )
    stride = math.lcm(*(SAMPLES[0] // long[name].shape[axis] for name, axis in strided))
    return Streamed(model.SerializeToString(), {state.input: state.output for state in states}, stride)


def _results(model: onnx.ModelProto, sets: Sequence[Tensors], states: Sequence[State] = ()) -> list[dict]:
    """What all operators compute, by name, for sets of inputs one after another."""
    copy = onnx.load_from_string(model.SerializeToString())
    del copy.graph.output[:]
    made = (name for node in model.graph.node for name in node.output if name)
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    return run_onnxruntime(copy.SerializeToString(), sets, states)


def _halves(array: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The first and the last part of an array that have these sizes; both are all of it if it has no axis of time."""
    return [array[tuple(map(slice, sizes))], array[tuple(slice(-size, None) for size in sizes)]]


def _same(array: np.ndarray, other: np.ndarray) -> bool:
    """Whether they differ by rounding errors only."""
    atol = 1e-5 * float(np.abs(other).max(initial=0))
    return array.shape == other.shape and np.allclose(array, other, rtol=1e-4, atol=atol, equal_nan=True)


def _carry(
    model: onnx.ModelProto, long: Tensors, short: Tensors, batch: str | None
) -> tuple[list[State], list[tuple[str, int]]]:
    """Make what operators need of earlier samples inputs and outputs of the model.

    Returns them, for batch size 1, and the outputs of convolutions with a stride along time, each with its axis.
    """
    graph, make, numbers = model.graph, onnx.helper.make_node, onnx.numpy_helper.from_array
    nodes: list[onnx.NodeProto] = []
    states: list[State] = []
    strided: list[tuple[str, int]] = []
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    varying = {value.name for value in graph.input} - known.keys()

    def added(source: str, axis: int, count: int, *width: int) -> State:
        """A state of the sizes of a tensor, but `count` along time, and another `width` if it is given."""
        array, names = long[source], (f"stream_state{len(states)}_in", f"stream_state{len(states)}_out")
        sizes: list[Any] = [*array.shape[:-1], *(width or array.shape[-1:])]
        sizes[axis] = count
        states.append(State(*names, tuple(sizes), array.dtype.name))
        sizes[not axis] = batch if batch and sizes[not axis] == 1 else sizes[not axis]
        for side, name in zip((graph.input, graph.output), names, strict=True):
            number = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            side.append(onnx.helper.make_tensor_value_info(name, number, sizes))
        return states[-1]

    for node in graph.node:
        kind, has, source = node.op_type, attributes(node), next(iter(node.input), "")
        sizes = zip(long[source].shape, short[source].shape, strict=True) if source in short else ()
        axis = next((axis for axis, (one, other) in enumerate(sizes) if one != other), -1)
        count = place = around = 0
        stride = 1
        if kind not in ("Shape", "Size") and not varying.isdisjoint(node.input):
            varying.update(node.output)
        if axis >= 0 and kind in ("Conv", "Pad"):
            before, after = long[source].shape[axis], long[node.output[0]].shape[axis]
            count = after - before
            if kind == "Conv":
                place, around = axis - 2, len(long[source].shape) - 2
                stride = has.get("strides", [1] * around)[place]
                if stride > 1:
                    strided.append((node.output[0], axis))
                # by its own padding, if as many samples come out as go in, or as its stride leaves
                count = has.get("pads", [0] * around)[place] if after * stride == before else 0
        if count > 0:
            state = added(source, axis, count)
            joined, places = node.output[0] if kind == "Pad" else f"{state.input}_joined", f"{state.input}_places"
            graph.initializer.append(numbers(np.arange(-count, 0), places))
            nodes.append(make("Concat", [state.input, source], [joined], axis=axis))
            nodes.append(make("Gather", [joined, places], [state.output], axis=axis))
            if kind == "Pad":
                continue
            node.input[0] = joined
            pads = next(attribute for attribute in node.attribute if attribute.name == "pads").ints
            pads[place] = 0
            if stride > 1:  # what it would add behind the last sample is never read then
                pads[place + around] = 0
        along = kind in onnx_checks.RECURRENT and axis == has.get("layout", 0) and not any(node.input[4:5])
        kept = (2 if kind == "LSTM" else 1) if along and has.get("direction", "forward") == "forward" else 0
        behind = []
        for place in range(kept):
            node.input.extend([""] * (6 + place - len(node.input)))
            node.output.extend([""] * (2 + place - len(node.output)))
            begin = node.input[5 + place]
            from_zero = not begin or not np.any(known.get(begin, long.get(begin)))
            if begin in varying and not from_zero:
                continue
            state = added(source, axis, 1, has["hidden_size"])
            node.input[5 + place] = state.input
            node.output[1 + place] = node.output[1 + place] or f"{state.output}_of_layer"
            if from_zero:
                behind.append(make("Identity", [node.output[1 + place]], [state.output]))
            else:
                node.input[5 + place] = f"{state.input}{SUM}"
                nodes.append(make("Add", [state.input, begin], [node.input[5 + place]]))
                behind.append(make("Sub", [node.output[1 + place], begin], [state.output]))
        nodes += [node, *behind]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return states, strided
