"""A network for whole windows as a stream: what its operators keep of earlier samples becomes inputs and outputs.

LSTM, GRU and RNN operators that read forward along time get their states from the call before, and convolutions (Conv
with padding, or a Pad before it) the samples that they still need. Whether that is all that the network needs of
earlier samples is tried: in two calls of half of the samples each, every tensor must be that of one run over all of
them. So operators that act on each sample alone may be any, as may layers over other axes; the first operator that
needs later samples, or earlier ones in another way, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lstm_trt.config.errors import UsageError, any_error
from lstm_trt.config.libraries import onnx
from lstm_trt.config.workload import State
from lstm_trt.export import onnx_checks
from lstm_trt.export.read_onnx import run_onnxruntime
from lstm_trt.export.sizes import fix_inputs

#: Samples of one run, and of two calls in its place.
SAMPLES = (32, 16)

Tensors = Mapping[str, np.ndarray]


def streamed(whole: Any, half: Any) -> tuple[bytes, dict[str, str]]:
    """The ONNX file of the stream, with the symbolic sizes of the network, and its states, input -> output.

    `whole` and `half`: the network as an `OnnxNetwork` of batch size 1 for each of `SAMPLES`. Raises `UsageError` with
    the name of the operator that cannot be in a stream.
    """
    model, inputs = onnx_checks.read(whole.path.read_bytes()), whole.make_inputs(0)
    fix_inputs(model, whole.constants)
    operators = [(name, onnx_checks.label(node)) for node in model.graph.node for name in node.output if name]
    pairs = {name: _halves(array, half.input_shapes[name]) for name, array in inputs.items()}
    parts = [{name: pair[place] for name, pair in pairs.items()} for place in (0, 1)]
    with any_error(UsageError, f"{whole.name} has no mode stream: it cannot be run with {SAMPLES[0]} samples"):
        (long,), (short,) = _results(model, [inputs]), _results(model, parts[:1])
        states = _carry(model, inputs | long, parts[0] | short, whole.facts.batch_symbol)
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
                " RNN that reads forward from a state of zero, nor a convolution with zeros before the first sample"
            )
    return model.SerializeToString(), {state.input: state.output for state in states}


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


def _carry(model: onnx.ModelProto, long: Tensors, short: Tensors, batch: str | None) -> list[State]:
    """Make what operators need of earlier samples inputs and outputs of the model; returns them, for batch size 1."""
    graph, make, numbers = model.graph, onnx.helper.make_node, onnx.numpy_helper.from_array
    nodes: list[onnx.NodeProto] = []
    states: list[State] = []

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
        kind, has, source = node.op_type, onnx_checks.attributes(node), next(iter(node.input), "")
        sizes = zip(long[source].shape, short[source].shape, strict=True) if source in short else ()
        axis = next((axis for axis, (one, other) in enumerate(sizes) if one != other), -1)
        count = 0
        if axis >= 0 and kind in ("Conv", "Pad"):
            count = long[node.output[0]].shape[axis] - long[source].shape[axis]
            if kind == "Conv":  # by its own padding, if as many samples come out
                count = 0 if count else [0, 0, *has.get("pads", [0] * axis)][axis]
        if count > 0:
            state = added(source, axis, count)
            joined, places = node.output[0] if kind == "Pad" else f"{state.input}_joined", f"{state.input}_places"
            graph.initializer.append(numbers(np.arange(-count, 0), places))
            nodes.append(make("Concat", [state.input, source], [joined], axis=axis))
            nodes.append(make("Gather", [joined, places], [state.output], axis=axis))
            if kind == "Pad":
                continue
            node.input[0] = joined
            next(attribute for attribute in node.attribute if attribute.name == "pads").ints[axis - 2] = 0
        nodes.append(node)
        along = kind in onnx_checks.RECURRENT and axis == has.get("layout", 0) and not any(node.input[4:5])
        kept = (2 if kind == "LSTM" else 1) if along and has.get("direction", "forward") == "forward" else 0
        for place in range(kept):
            state = added(source, axis, 1, has["hidden_size"])
            node.input.extend([""] * (6 + place - len(node.input)))
            node.output.extend([""] * (2 + place - len(node.output)))
            node.input[5 + place] = state.input
            node.output[1 + place] = node.output[1 + place] or f"{state.output}_of_layer"
            nodes.append(make("Identity", [node.output[1 + place]], [state.output]))
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return states
