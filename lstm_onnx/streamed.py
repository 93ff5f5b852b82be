"""A network for whole windows as a stream: what its operators keep of earlier samples becomes
inputs and outputs.

LSTM, GRU and RNN operators that read forward along time get their states from the call before, and
convolutions (Conv with padding, or a Pad before it) the samples that they still need. States are
zero before the first call; where a layer begins from others, what is carried is the difference from
these. A convolution with a stride takes as many samples a call. Whether that is all that the
network needs of earlier samples is tried: in two calls of half of the samples each, every tensor
must be that of one run over all of them. So operators that act on each sample alone may be any, as
may layers over other axes; the first operator that needs later samples, or earlier ones in another
way, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lstm_onnx.constants import stored_values
from lstm_onnx.read_onnx import Arrays, run_onnxruntime
from lstm_trt.config.errors import UsageError, any_error
from lstm_trt.config.libraries import onnx
from lstm_trt.config.workload import State
from lstm_trt.export import onnx_checks
from lstm_trt.export.sizes import attributes

#: Samples of one run, and of two calls in its place: multiples of what strides may take.
SAMPLES = (240, 120)

#: The end of the name of a state plus the first value, from which a layer begins.
SUM = "_and_first"


@dataclass(frozen=True)
class Streamed:
    """The ONNX file of a stream, with the symbolic sizes of the network; its states, input ->
    output.

    Each call takes a multiple of `stride` samples.
    """

    content: bytes
    states: dict[str, str]
    stride: int


def streamed(whole: Any, half: Any) -> Streamed:
    """`whole` and `half`: the network as an `OnnxNetwork` of batch size 1, each for one of
    `SAMPLES`.

    Raises `UsageError` with the name of the operator that cannot be in a stream.
    """
    model = whole.file.changeable(whole.constants)
    labels = {
        name: onnx_checks.label(node) for node in model.graph.node for name in node.output if name
    }
    inputs = whole.make_inputs(0)
    first = {}
    second = {}
    for name, array in inputs.items():
        first[name], second[name] = _halves(array, half.input_shapes[name])
    with any_error(
        UsageError, f"{whole.name} has no mode stream: it cannot be run with {SAMPLES[0]} samples"
    ):
        (long,) = _results(model, [inputs])
        (short,) = _results(model, [first])
        carrying = _Carrying(model.graph, inputs | long, first | short, whole.facts.batch_symbol)
        carrying.carry()
        calls = _results(model, [first, second], carrying.states)
    for name, label in labels.items():
        one, other = (call[name] for call in calls)
        # Without an axis of time: the final state of a layer, or what follows from sizes.
        if long[name].shape == other.shape and _same(other, short[name]):
            continue
        if not _continues(long[name], one, other, name not in half.output_shapes):
            raise UsageError(
                f"{whole.name} has no mode stream: {label} needs more than the current sample, and"
                " is no LSTM, GRU or RNN that reads forward from a constant state, nor a"
                " convolution with zeros before the first sample"
            )
    return Streamed(
        model.SerializeToString(),
        {state.input: state.output for state in carrying.states},
        carrying.stride,
    )


def _continues(long: np.ndarray, first: np.ndarray, second: np.ndarray, inside: bool) -> bool:
    """Whether two calls give a tensor of one long run: its final state, or all its samples.

    No samples may be missing between the calls; a tensor `inside` that is padded has some of them
    twice.
    """
    if _same(second, long):
        return True
    twice = 2 * first.size - long.size
    if twice < 0 or (twice and not inside):
        return False
    return all(map(_same, (first, second), _halves(long, first.shape)))


def _results(
    model: onnx.ModelProto, sets: Sequence[Arrays], states: Sequence[State] = ()
) -> list[dict]:
    """What all operators compute, by name, for sets of inputs one after another."""
    copy = onnx.load_from_string(model.SerializeToString())
    del copy.graph.output[:]
    for node in model.graph.node:
        copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    return run_onnxruntime(copy.SerializeToString(), sets, states)


def _halves(array: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The first and the last part of an array that have these sizes; both are all of it if it has
    no axis of time."""
    return [array[tuple(map(slice, sizes))], array[tuple(slice(-size, None) for size in sizes)]]


def _same(array: np.ndarray, other: np.ndarray) -> bool:
    """Whether they differ by rounding errors only."""
    atol = 1e-5 * float(np.abs(other).max(initial=0))
    return array.shape == other.shape and np.allclose(
        array, other, rtol=1e-4, atol=atol, equal_nan=True
    )


@dataclass
class _Carrying:
    """Makes what operators need of earlier samples inputs and outputs of the graph, for batch size
    1.

    `long` and `short` are the tensors of runs over many and fewer samples, `batch` the symbol of
    the batch size. What a call takes is a multiple of `stride` samples.
    """

    graph: onnx.GraphProto
    long: Arrays
    short: Arrays
    batch: str | None
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    stride: int = 1

    def __post_init__(self) -> None:
        self.known = stored_values(self.graph)
        self.varying = {value.name for value in self.graph.input} - self.known.keys()

    def carry(self) -> None:
        """Change the graph."""
        for node in self.graph.node:
            if node.op_type not in ("Shape", "Size") and not self.varying.isdisjoint(node.input):
                self.varying.update(node.output)
            axis = self._axis_of_time(node)
            if axis >= 0 and node.op_type == "Pad":
                self._pad(node, axis)
            elif axis >= 0 and node.op_type == "Conv":
                self._convolution(node, axis)
            elif self._reads_along_time(node, axis):
                self._layer(node, axis)
            else:
                self.nodes.append(node)
        del self.graph.node[:], self.graph.value_info[:]
        self.graph.node.extend(self.nodes)

    def _axis_of_time(self, node: onnx.NodeProto) -> int:
        """The axis of the first input along which more samples are longer; -1 without one."""
        source = node.input[0] if node.input else ""
        if source in self.short:
            longer = np.not_equal(self.long[source].shape, self.short[source].shape)
            if longer.any():
                return int(longer.argmax())
        return -1

    def _reads_along_time(self, node: onnx.NodeProto, axis: int) -> bool:
        """Whether a recurrent layer reads all samples, from the first to the last."""
        has = attributes(node)
        if node.op_type not in onnx_checks.RECURRENT or axis != has.get("layout", 0):
            return False
        return has.get("direction", "forward") == "forward" and not any(node.input[4:5])

    def _add(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **has: Any) -> None:
        self.nodes.append(onnx.helper.make_node(kind, inputs, outputs, **has))

    def _state(self, source: str, axis: int, count: int, *width: int) -> State:
        """A state of the sizes of a tensor, but `count` along time, and another `width` if it is
        given."""
        array = self.long[source]
        names = f"stream_state{len(self.states)}_in", f"stream_state{len(self.states)}_out"
        sizes: list[Any] = [*array.shape[:-1], *(width or array.shape[-1:])]
        sizes[axis] = count
        self.states.append(State(*names, tuple(sizes), array.dtype.name))
        if self.batch and sizes[not axis] == 1:
            sizes[not axis] = self.batch
        number = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        for side, name in zip((self.graph.input, self.graph.output), names, strict=True):
            side.append(onnx.helper.make_tensor_value_info(name, number, sizes))
        return self.states[-1]

    def _join(self, source: str, axis: int, count: int, joined: str = "") -> str:
        """The tensor of the samples with `count` earlier ones before them, which become a state."""
        state = self._state(source, axis, count)
        joined = joined or f"{state.input}_joined"
        places = f"{state.input}_places"
        self.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(-count, 0), places))
        self._add("Concat", [state.input, source], [joined], axis=axis)
        self._add("Gather", [joined, places], [state.output], axis=axis)
        return joined

    def _pad(self, node: onnx.NodeProto, axis: int) -> None:
        """The zeros before the first sample become earlier samples."""
        source = node.input[0]
        count = self.long[node.output[0]].shape[axis] - self.long[source].shape[axis]
        if count > 0:
            self._join(source, axis, count, node.output[0])
        else:
            self.nodes.append(node)

    def _convolution(self, node: onnx.NodeProto, axis: int) -> None:
        """Its own padding becomes earlier samples, if it gives all samples, or those that its
        stride leaves."""
        sizes = self.long[node.input[0]].shape
        samples = self.long[node.output[0]].shape[axis]
        place = axis - 2
        has = attributes(node)
        stride = has["strides"][place] if "strides" in has else 1
        if stride > 1:
            self.stride = math.lcm(self.stride, SAMPLES[0] // samples)
        for attribute in node.attribute:
            if (
                attribute.name == "pads"
                and attribute.ints[place]
                and samples * stride == sizes[axis]
            ):
                node.input[0] = self._join(node.input[0], axis, attribute.ints[place])
                attribute.ints[place] = 0
                if stride > 1:  # what it would add behind the last sample is never read then
                    attribute.ints[place + len(sizes) - 2] = 0
        self.nodes.append(node)

    def _layer(self, node: onnx.NodeProto, axis: int) -> None:
        """A recurrent layer: its states, or their difference from the first ones, are carried."""
        behind = []
        for place in range(2 if node.op_type == "LSTM" else 1):
            node.input.extend([""] * (6 + place - len(node.input)))
            node.output.extend([""] * (2 + place - len(node.output)))
            begin = node.input[5 + place]
            from_zero = not begin or not np.any(self.known.get(begin, self.long.get(begin)))
            if begin in self.varying and not from_zero:
                continue
            state = self._state(node.input[0], axis, 1, attributes(node)["hidden_size"])
            end = node.output[1 + place] or f"{state.output}_of_layer"
            node.output[1 + place] = end
            if from_zero:
                node.input[5 + place] = state.input
                behind.append(("Identity", [end], [state.output]))
            else:
                node.input[5 + place] = f"{state.input}{SUM}"
                self._add("Add", [state.input, begin], [node.input[5 + place]])
                behind.append(("Sub", [end, begin], [state.output]))
        self.nodes.append(node)
        for each in behind:
            self._add(*each)
