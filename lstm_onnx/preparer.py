"""How networks of users are prepared: the file in the cache, inputs, and reference outputs.

The reference is ONNX Runtime on the CPU in float32, and it is itself compared with something
independent: PyTorch's outputs of a network that began as a module, or else the evaluation of the
graph in numpy (`export.evaluate`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lstm_onnx import evaluate
from lstm_onnx.constants import symbolic_shapes
from lstm_onnx.operations import FLOATS
from lstm_onnx.own_network import OnnxNetwork, read_arrays
from lstm_onnx.read_onnx import Arrays, in_sequence, run_onnxruntime
from lstm_onnx.torch_network import torch_answers
from lstm_trt import registry, runtimes
from lstm_trt.config.configuration import Configuration, Options
from lstm_trt.config.errors import LabError, ParityFailed, UsageError
from lstm_trt.config.libraries import onnx
from lstm_trt.config.workload import State
from lstm_trt.export import onnx_checks
from lstm_trt.export.network import to_bfloat16
from lstm_trt.export.sizes import static_model
from lstm_trt.recorder.parity import PARITY_BOUNDS, relative_error, stacked
from lstm_trt.recorder.preparers.stacked import STREAM_SAMPLES, announced_bound, gate_calls
from lstm_trt.runtimes.base import Gate, Preparer, Request, Send

#: Calls of a stream that are evaluated in numpy; each is a function of its inputs and states only.
EVALUATED_CALLS = 10

#: The limit of an output in float32 is this multiple of the difference of its evaluation in float32
#: from that in float64, if that is more than the usual bound: rounding errors grow in some
#: networks, and are large in comparison with outputs near 0.
ROUNDING_MULTIPLE = 8

#: That limit is at most this.
MOST_ROUNDING = 1e-3

#: Before the names of the outputs of the rounded network in the file of answers.
ROUNDED = "rounded "

ONNX_RUNTIME = "ONNX Runtime in float32"
NUMPY = "an evaluation in numpy"
PYTORCH = "PyTorch"


class OwnPreparer(Preparer):
    """ONNX files: recorded on every runtime that reads them."""

    LIBRARIES = ("onnx", "onnxruntime")

    def runtime(self, name: str):
        """Raises `UsageError` also for a runtime that reads no ONNX files."""
        runtime = super().runtime(name)
        if not _reads_onnx(runtime):
            able = [
                other
                for other in registry.table("RUNTIMES")
                if _reads_onnx(runtimes.load_runtime(other))
            ]
            raise UsageError(f"{name} does not read ONNX files: choose from {', '.join(able)}")
        return runtime

    def check(self, configuration: Configuration) -> None:
        """Raises `BuildFailed` also for what the runtime refuses or would misread in the file."""
        super().check(configuration)
        runtime = self.runtime(configuration.runtime)
        if hasattr(runtime, "ONNX_RULES"):
            onnx_checks.checked(
                static_model(configuration.workload.path, configuration.workload),
                runtime.ONNX_RULES,
                configuration.options.precision,
            )

    def reference(
        self, configuration: Configuration, gate_seed: int, reference_path: Path, send: Send
    ) -> dict:
        network = configuration.workload
        options = configuration.options
        bound = announced_bound(configuration, send)
        send("stage", stage="export")
        sets = gate_inputs(network, configuration.mode, gate_seed)
        states = network.states if configuration.mode == "stream" else ()
        path = network.path  # each time, its content is checked against its hash
        model = static_model(path, network)
        name, every, checked_by, limit = reference_outputs(network, model, sets, states)
        if states and every:
            _check_against_one_run(network, sets, every, limit)
        answers: dict[str, Any] = stacked(every) if every else {}
        if name == ONNX_RUNTIME and options.precision != Options.precision:
            less = [{key: _less(array) for key, array in inputs.items()} for inputs in sets]
            rounded = stacked(run_onnxruntime(_rounded(model, options.precision), less, states))
            answers |= {ROUNDED + key: array for key, array in rounded.items()}
        with reference_path.open("wb") as file:
            np.savez(file, **answers)
        asked = (configuration.runtime, options.device, options.precision)
        named = {"reference": name, "checked_by": checked_by, "least_bound": limit}
        if not every:
            named["not_checked"] = "neither ONNX Runtime nor an evaluation in numpy runs it"
        elif checked_by is None and asked == ("onnxruntime", "cpu", "fp32"):
            named["not_checked"] = "it is its own reference"
        return {
            "onnx_path": str(path),
            "provenance": {
                "network_sha256": network.sha256,
                "lengths": network.lengths or None,
                **bound,
            },
            "named": named,
        }

    def request(self, configuration: Configuration, reference: Mapping) -> Request:
        network = configuration.workload
        return Request(
            network,
            configuration.options,
            network.make_inputs(configuration.protocol.seed, configuration.mode),
            {},
            Path(reference["onnx_path"]),
            configuration.mode,
        )

    def gate(self, configuration: Configuration, reference: Mapping) -> Gate:
        """Several sets of inputs, so that a step that ignores its inputs or repeats its last
        outputs fails as well."""
        named = reference["named"]
        expected = None
        rounded = {}
        if "not_checked" not in named:
            expected = {}
            for name, array in read_arrays(reference["reference_path"]).items():
                side = rounded if name.startswith(ROUNDED) else expected
                side[name.removeprefix(ROUNDED)] = array
        seed = reference["gate_seed"]
        return Gate(
            tuple(gate_inputs(configuration.workload, configuration.mode, seed)),
            expected,
            seed,
            every=True,
            rounded=rounded or None,
            **named,
        )

    def multiplied_share(self, workload: OnnxNetwork) -> float:
        """The others are 0, or the number that a tensor has most often, whose products are one."""
        size = 0
        repeated = 0
        for tensor in onnx_checks.tensors(workload.file.model.graph):
            if tensor.data_type in FLOATS.values() and len(tensor.dims) > 1:
                _, times = np.unique(
                    onnx.numpy_helper.to_array(tensor).astype(np.float32), return_counts=True
                )
                size += times.sum()
                repeated += times.max(initial=0)
        return float(1 - repeated / size) if size else 1.0


PREPARER = OwnPreparer()


def _reads_onnx(runtime: Any) -> bool:
    return getattr(runtime, "NEEDS_ONNX", False)


def gate_inputs(network: OnnxNetwork, mode: str, seed: int) -> list[Arrays]:
    """At least two sets of inputs, as many as `LEAST_VALUES` of each output or `STREAM_SAMPLES` of
    a stream need."""
    calls = gate_calls(
        mode, network.axes["sequence"] or 1, map(math.prod, network.output_shapes.values()), 2
    )
    return [network.make_inputs([seed, call], mode) for call in range(calls)]


def _less(array: np.ndarray) -> np.ndarray:
    """Float32 values rounded to bfloat16; others as they are."""
    return to_bfloat16(array) if array.dtype == np.float32 else array


def _rounded(model: bytes, precision: str) -> bytes:
    """The network with its parameters rounded to bfloat16, for tf32 those of matrix products only,
    without biases."""
    found = onnx.load_from_string(model)
    biases = {node.input[3] for node in onnx_checks.recurrent_nodes(found) if len(node.input) > 3}
    for tensor in found.graph.initializer:
        if precision != "tf32" or (tensor.name not in biases and len(tensor.dims) > 1):
            rounded = _less(onnx.numpy_helper.to_array(tensor))
            tensor.CopyFrom(onnx.numpy_helper.from_array(rounded, tensor.name))
    return found.SerializeToString()


def reference_outputs(
    network: OnnxNetwork,
    model: bytes,
    sets: Sequence[Mapping[str, np.ndarray]],
    states: Sequence[State] = (),
) -> tuple[str | None, list[Arrays], str | None, float]:
    """The name of the reference, its outputs for each set of inputs, what has confirmed it, and its
    largest limit.

    The reference is the evaluation in numpy if ONNX Runtime does not run the network; without
    either there are no outputs. Raises `ParityFailed` if ONNX Runtime disagrees with PyTorch or
    with the evaluation.
    """
    answers = torch_answers(network)
    compared: tuple = (model, sets[:EVALUATED_CALLS], states)
    if answers:
        compared = (network.path.read_bytes(), [answers[0]], ())
    try:
        found = run_onnxruntime(model, sets, states)
    except Exception:  # the package's own classes; others can still run it
        found = []
        compared = (model, sets, states)
    narrow = _evaluated(*compared)
    # Of quantized numbers, more fall on the other side of an edge.
    wide = [] if network.facts.quantized else _evaluated(*compared, in_float64=True)
    evaluated = wide or narrow
    limits = limits_of(network, narrow, wide)
    limit = max(limits.values())
    if not found:
        return NUMPY if evaluated else None, evaluated, None, limit
    name = PYTORCH if answers else NUMPY
    expected = [answers[1]] if answers else evaluated
    if not expected:
        return ONNX_RUNTIME, found, None, limit
    # Over all sets at once: a single number near zero has a large relative error.
    outputs = stacked(run_onnxruntime(*compared) if answers else found[:EVALUATED_CALLS])
    for output, right in stacked(expected).items():
        error = relative_error(outputs[output], right)
        if not error <= limits[output]:
            raise ParityFailed(
                f"{output} of ONNX Runtime differs from {name} by {error:.2g} (relative, by norm);"
                f" limit: {limits[output]:.2g}: nothing can be compared with it"
            )
    return ONNX_RUNTIME, found, name, limit


def _evaluated(
    model: bytes,
    sets: Iterable[Mapping[str, np.ndarray]],
    states: Sequence[State],
    in_float64: bool = False,
) -> list[Arrays]:
    """`run_onnxruntime`, in numpy; empty if the network cannot be evaluated."""
    graph = onnx.load_from_string(model)
    if in_float64:
        graph = evaluate.in_float64(graph)
        sets = [{name: _wider(array) for name, array in inputs.items()} for inputs in sets]
    with suppress(LabError):
        return in_sequence(partial(evaluate.evaluate, graph), sets, states)
    return []


def _wider(array: np.ndarray) -> np.ndarray:
    """Float32 values in float64; others as they are."""
    return array.astype(np.float64) if array.dtype == np.float32 else array


def limits_of(
    network: OnnxNetwork, narrow: Sequence[Arrays], wide: Sequence[Arrays]
) -> dict[str, float]:
    """Output -> the largest relative error between implementations that compute the network as it
    is in the file.

    `narrow` and `wide`: its outputs evaluated in float32 and in float64, whose difference counts
    `ROUNDING_MULTIPLE` times.
    """
    precision = "fp16" if network.facts.half else "fp32"
    least = PARITY_BOUNDS["int8" if network.facts.quantized else precision]
    limits = dict.fromkeys(network.output_shapes, least)
    if narrow and wide and not network.facts.half:
        outputs = stacked(narrow)
        for name, exact in stacked(wide).items():
            grown = ROUNDING_MULTIPLE * relative_error(outputs[name], exact)
            limits[name] = max(least, min(grown, MOST_ROUNDING))
    return limits


def _check_against_one_run(
    network: OnnxNetwork, sets: list[Arrays], every: list[Arrays], limit: float
) -> None:
    """Raises `ParityFailed` unless the calls of a stream give what one run over all samples gives.

    Nothing is compared if the file fixes the number of samples, be it inside the graph.
    """
    symbol = network.facts.time_symbol
    if symbol is None:
        return
    model = network.file.changeable(network.constants)
    shapes = symbolic_shapes(model)
    whole = {state.input: state.zeros() for state in network.states} | sets[0]
    for name in sets[0]:
        if symbol in shapes[name]:
            whole[name] = np.concatenate(
                [inputs[name] for inputs in sets], shapes[name].index(symbol)
            )
    try:
        (outputs,) = run_onnxruntime(model.SerializeToString(), [whole])
    except Exception:  # the package's own classes, for a size that is fixed inside the graph
        return
    for name in every[-1]:
        joined = _joined([call[name] for call in every], outputs[name].shape)
        error = math.inf if joined is None else relative_error(joined, outputs[name])
        if not error <= limit:
            raise ParityFailed(
                f"called with {network.axes['sequence']} samples at a time, {name} differs by"
                f" {error:.2g} from one run over all {STREAM_SAMPLES} samples: the network depends"
                " on earlier samples in other ways than through its states (a convolution over"
                " time, for example)"
            )


def _joined(calls: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray | None:
    """The outputs of several calls as one run over all their samples gives them, in its `shape`;
    None if it cannot be.

    That of the last call if it has this shape, else all of them along an axis, or along a new one:
    a network can answer one sample without an axis for it.
    """
    last = calls[-1]
    if last.shape == shape:
        return last
    wanted = [size for size in shape if size > 1]
    for join, axes in ((np.concatenate, last.ndim), (np.stack, last.ndim + 1)):
        for axis in range(axes):
            joined = join(calls, axis)
            if [size for size in joined.shape if size > 1] == wanted:
                return joined.reshape(shape)
    return None
