"""A network as C files for deployment, with the error of the code where it can be measured."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lstm_onnx.c import folder as c_folder
from lstm_onnx.c.compile import LoadedNetwork, find_compiler
from lstm_onnx.c.file import CFile, c_file
from lstm_onnx.c.folder import LARGEST_ERROR, Answers
from lstm_onnx.c.names import checked_name, free_name
from lstm_onnx.c.rewrites import fold_normalizations
from lstm_onnx.c.statements import FEW_COLUMNS
from lstm_onnx.c.targets import TARGETS, Target, native_target
from lstm_onnx.c.weights import PRECISIONS, WHOLE, as_packed
from lstm_onnx.constants import evaluated, opsets_of, stored_values
from lstm_onnx.evaluate import NotEvaluated, evaluate, in_float64
from lstm_onnx.own_network import OnnxNetwork, stream_of
from lstm_onnx.read_onnx import in_sequence
from lstm_trt.config.errors import BuildFailed, LabError, RuntimeUnavailable, UsageError, one_of
from lstm_trt.config.format import bytes_text, count, listed, short_number
from lstm_trt.config.libraries import onnx
from lstm_trt.config.shape import LstmShape
from lstm_trt.config.workload import State
from lstm_trt.export import onnx_checks
from lstm_trt.export.onnx_checks import RECURRENT
from lstm_trt.export.sizes import attributes, known_sizes, sizes_of, static_model
from lstm_trt.export.to_onnx import export_network

#: Samples from which the error is taken at least, in as many calls as they need.
MEASURED_SAMPLES = 256

#: Threads that compute a call together; each exchange waits for all of them.
MOST_THREADS = 64

#: Operator -> places of inputs that are matrices, which may be packed.
MATRICES = {"MatMul": (1,), "Gemm": (1,), "Conv": (1,), **dict.fromkeys(RECURRENT, (1, 2))}

#: The processor of this machine, instead of a name in `TARGETS`.
NATIVE = "native"


@dataclass(frozen=True)
class WrittenC:
    """The C files of a network, at `paths`.

    `error`: the largest of an output of all functions on random inputs, compared with float64,
    relative to the largest output; None if it was not measured. `samples`: of a call of each of
    the functions `run` and `step` that the file has.
    """

    paths: tuple[Path, ...]
    file: CFile
    error: float | None
    samples: Mapping[str, int]

    def as_dict(self) -> dict:
        """JSON values."""
        file = self.file
        return {
            "files": [{"path": str(path), "bytes": path.stat().st_size} for path in self.paths],
            "name": file.name,
            "samples": self.samples,
            "any_length": bool(file.strides),
            "no_step": file.no_step or None,
            "target": file.target.name,
            "vector_length": file.target.vector_length,
            "weights": {"bytes": len(file.weights), "included": file.included},
            "precision": file.precision,
            "threads": file.threads,
            "error": self.error,
            "command": file.command,
        }

    def __str__(self) -> str:
        file = self.file
        lines = [f"{path}: {bytes_text(path.stat().st_size)}" for path in self.paths]
        for function, rows in self.samples.items():
            lines.append(f"{file.name}_{function}: {count(rows, 'sample')} per call")
        if file.strides:
            lines.append(f"{file.name}_run_n: any number of samples per call")
        if file.no_step:
            lines.append(f"{file.name}_step: none, because {file.no_step}")
        place = "included" if file.included else f"in {file.name}.bin"
        lines += [
            f"weights: {bytes_text(len(file.weights))}, {place}",
            f"error: {file.error}",
            f"compile with: {file.command}",
        ]
        return "\n".join(lines)


def export_c(
    network: LstmShape | OnnxNetwork,
    folder: str | Path = ".",
    *,
    target: str = NATIVE,
    mode: str | None = None,
    name: str | None = None,
    seed: int = 0,
    precision: str = "fp32",
    threads: int = 1,
) -> WrittenC:
    """Write the network into `folder` as NAME.c and NAME.h, weights above 1 MiB as NAME.bin.

    Beside them are a test with known answers, NAME_test.c, if a reference in float64 can be
    evaluated; and what CMake needs to build and test all networks of the folder, with a README,
    where there are none.

    `target`: "native" for the processor of this machine, or a name in `targets.TARGETS`. The file
    has the function `run`, for the whole sequence, and `step`, for one sample (as many as the
    stride of a convolution) with carried state, unless the network has no mode "stream": then the
    file and the answer say why. An ONNX network with states as inputs and outputs has only `step`,
    for its sequence. With a `mode`, "forward" or "stream", there is only `run` or `step`, for the
    whole sequence. Weights of a shape are those of `seed`; `name` is a C identifier (default: that
    of the network). With the `precision` "bf16" the weights of matrices take half the memory
    (`weights.as_packed`); with "int8" those that are multiplied by what a recurrent layer puts out
    take a quarter, and so does the state in these products half. The error is that against the
    network with these weights and states. With several `threads` the program lets others help, see
    the header.

    If this machine has a compiler and can run the code, its error is measured and is part of the
    files. Raises `UsageError` for an invalid name, target or mode, `BuildFailed` for what cannot be
    generated, and the errors of `export_network`; then nothing is written.
    """
    chosen = (
        native_target()
        if target == NATIVE
        else TARGETS[one_of("target", target, (NATIVE, *TARGETS))]
    )
    if name is None:
        name = free_name(
            network.name if isinstance(network, OnnxNetwork) else f"lstm_{network.label}"
        )
    else:
        name = checked_name(name)
    models = _models(network, mode, seed)
    one_of("precision", precision, tuple(PRECISIONS))
    if not 1 <= threads <= MOST_THREADS:
        raise UsageError(f"threads must be from 1 to {MOST_THREADS}, not {threads}")
    try:
        file = models.code(chosen, name, precision, threads)
    except BuildFailed as error:
        if len(models.functions) == 1:
            raise
        window = {"run": models.functions["run"]}
        models = _Models(window, no_step=f"it cannot be generated: {error}")
        file = models.code(chosen, name, precision, threads)
    answers = known_answers(file, models.functions, models.states)
    error = measured_error(replace(file, included=False), answers) if answers else None
    text = (
        "not measured: the code cannot be compiled or run here, or not evaluated in random numbers"
    )
    if error is not None:
        text = (
            f"{short_number(error, 2)} of the largest output of"
            f" {listed([each.function for each in answers])},"
            " compared with float64 on random numbers"
        )
    file = replace(file, error=text)
    return WrittenC(
        tuple(c_folder.write(file, answers, folder)), file, error, _samples(network, file, models)
    )


@dataclass(frozen=True)
class _Models:
    """ONNX models of the functions `run` and `step`, and the states that the step gets.

    `any_length`: the step computes what the window does, sample after sample as they lie in memory.
    `no_step`: why there is none. `step_samples`: of a call of the step, where the network decides.
    """

    functions: dict[str, bytes]
    states: tuple[State, ...] = ()
    any_length: bool = False
    no_step: str = ""
    step_samples: int | None = None

    def code(self, target: Target, name: str, precision: str, threads: int) -> CFile:
        """What is generated for them; raises `BuildFailed`."""
        file = c_file(
            self.functions,
            target,
            name,
            states=self.states,
            precision=precision,
            threads=threads,
        )
        return replace(file, any_length=self.any_length, no_step=self.no_step)


def _models(network: LstmShape | OnnxNetwork, mode: str | None, seed: int) -> _Models:
    own = isinstance(network, OnnxNetwork)
    if mode is None and own and network.states:
        mode = "stream"
    if mode is not None:
        network = network.in_mode(mode)
        network.check_mode(mode)
    path = network.path if isinstance(network, OnnxNetwork) else export_network(network, seed).path
    model = static_model(path, network)
    if mode == "stream":  # a layer of a shape carries its state itself
        return _Models({"step": model}, network.states if own else ())
    window = {"run": model}
    if mode is not None:
        return _Models(window)
    if isinstance(network, OnnxNetwork):
        return _with_step(network, window)
    if network.directions > 1:
        return _Models(
            window, no_step="it is bidirectional and needs the whole sequence from the start"
        )
    return _Models(
        {**window, "step": static_model(path, replace(network, sequence=1))}, any_length=True
    )


def _with_step(network: OnnxNetwork, window: dict[str, bytes]) -> _Models:
    """The window and the step with states of its own, or why there is none."""
    try:
        if not network.gets_states:
            network.check_mode("stream")  # says why
        stream = stream_of(network)
    except UsageError as error:
        return _Models(window, no_step=str(error))
    stride = stream.stride
    sizes: dict[Any, int] = {**dict(network.sizes), network.facts.time_symbol: stride}
    try:
        tick = OnnxNetwork(stream.content, name=network.name, sizes=sizes, states=stream.states)
        step = static_model(tick.path, tick)
    except LabError as error:
        return _Models(
            window, no_step=f"it cannot be generated for {count(stride, 'sample')}: {error}"
        )
    any_length = stride == 1 and _in_order(window["run"], step)
    return _Models({**window, "step": step}, tick.states, any_length, step_samples=stride)


def _samples(network: LstmShape | OnnxNetwork, file: CFile, models: _Models) -> dict[str, int]:
    """Samples of a call of each function: the time steps of the first layer, unless a size says.

    Strides in front of that layer, or behind it, take more samples than the layer has steps. In a
    network without recurrent layers the only size that was given counts as that of time.
    """
    samples = dict(file.samples)
    if isinstance(network, OnnxNetwork):
        sizes = dict(network.sizes)
        time = network.facts.time_symbol
        if time is not None:
            samples = dict.fromkeys(samples, sizes[time])
        elif len(sizes) == 1:
            samples = dict.fromkeys(samples, *sizes.values())
    if "step" in samples and models.step_samples is not None:
        samples["step"] = models.step_samples
    return samples


def _in_order(window: bytes, step: bytes) -> bool:
    """Whether the samples of all inputs and outputs lie one after another in memory."""
    graph = onnx_checks.read(window).graph
    whole = known_sizes(graph)
    one = known_sizes(onnx_checks.read(step).graph)
    for value in (*graph.input, *graph.output):
        sizes = np.array(whole[value.name])
        differs = np.flatnonzero(sizes != one[value.name])
        if differs.size and (sizes[: differs[0]] > 1).any():
            return False
    return True


def known_answers(
    file: CFile, models: Mapping[str, bytes], states: Sequence[State]
) -> list[Answers]:
    """Answers of a file's functions to random inputs, by their models.

    None where these cannot be evaluated, or not in numbers (the logarithm of a number below 0).

    The window begins with its first states, and what it answers is what the step has to answer
    sample by sample; a step alone carries its `states` from call to call. The models get the
    weights and, in int8, the rounding of the states that the code has.
    """
    function, model = next(iter(models.items()))
    rows = file.samples[function]
    states = states if function == "step" else ()
    graph = onnx_checks.read(model)
    graph = in_float64(with_packed_weights(graph, file.precision, file.reader.bounded_inputs))
    known = {tensor.name for tensor in graph.graph.initializer} | {state.input for state in states}
    given = [value for value in graph.graph.input if value.name not in known]
    generator = np.random.default_rng(0)
    inputs = []
    wide = []
    for _ in range(math.ceil(MEASURED_SAMPLES / rows)):
        drawn = {value.name: _drawn(generator, value, file.reader.whole_inputs) for value in given}
        inputs.append({name: array.astype(np.float32) for name, array in drawn.items()})
        wide.append(drawn)
    try:
        with np.errstate(all="ignore"):
            outputs = in_sequence(partial(evaluate, graph), wide, states)
    except NotEvaluated:
        return []
    whole = Answers(function, inputs, outputs, 0 if states else 1)
    if not np.isfinite(whole.scale):
        return []
    found = [whole]
    if file.strides:
        found.append(replace(whole, function="run_n", count=rows))
    if len(models) > 1:
        found.append(_by_steps(whole, known_sizes(onnx_checks.read(models["step"]).graph)))
    return found


def _drawn(
    generator: np.random.Generator, value: onnx.ValueInfoProto, whole: Mapping[str, int]
) -> np.ndarray:
    """Random numbers for an input, exact in float32; whole ones below that in `whole`, if any."""
    shape: Any = sizes_of(value)
    if value.name in whole:
        numbers = generator.integers(0, whole[value.name], shape)
    else:
        numbers = generator.standard_normal(shape, np.float32)
    return numbers.astype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def _by_steps(whole: Answers, sizes: Mapping[str, Any]) -> Answers:
    """The answers of windows as those of steps, whose tensors have these `sizes`."""
    tensors = {**whole.inputs[0], **whole.outputs[0]}
    steps = max(array.size // math.prod(sizes[name]) for name, array in tensors.items())
    inputs = []
    outputs = []
    for given, answers in zip(whole.inputs, whole.outputs, strict=True):
        for step in range(steps):
            inputs.append({**given, **_of_step(given, sizes, step)})
            outputs.append(_of_step(answers, sizes, step))
        outputs[-1] = {**answers, **outputs[-1]}  # what has no axis of time is of the last sample
    return Answers("step", inputs, outputs, steps)


def _of_step(
    tensors: Mapping[str, np.ndarray], sizes: Mapping[str, Sequence[int]], step: int
) -> dict[str, np.ndarray]:
    """The parts that are of a step, of tensors with an axis of time."""
    parts = {}
    for name, array in tensors.items():
        axes = [axis for axis, size in enumerate(sizes[name]) if size != array.shape[axis]]
        if axes:
            size = sizes[name][axes[0]]
            parts[name] = array.take(range(step * size, (step + 1) * size), axes[0])
    return parts


def measured_error(file: CFile, every: Sequence[Answers]) -> float | None:
    """The largest error relative to the largest output; None if the code cannot run here.

    Raises `BuildFailed` if it is above `LARGEST_ERROR`, or if the code is for this machine and its
    compiler refuses it.
    """
    if file.target.vector_length > native_target().vector_length:
        return None
    try:
        loaded = LoadedNetwork(file, find_compiler())
    except RuntimeUnavailable:
        return None
    except BuildFailed:
        if file.target.name == NATIVE:
            raise
        return None
    largest = 0.0
    for answers in every:
        error = _error_of(file, loaded, answers)
        if not error <= LARGEST_ERROR[file.precision]:
            raise BuildFailed(
                f"the compiled code is wrong: the error of {answers.function} is {error:.2g}"
                " of the largest output"
            )
        largest = max(largest, error)
    return largest


def _error_of(file: CFile, loaded: LoadedNetwork, answers: Answers) -> float:
    """The largest error of a function, relative to the largest output."""
    given = {name: array.copy() for name, array in answers.inputs[0].items()}
    outputs = {name: np.empty(shape, np.float32) for name, shape in answers.shapes.items()}
    arrays = [*given.values(), *(outputs[name] for name in file.reader.output_names)]
    call = loaded.bound(answers.function, *arrays)
    if answers.count:
        call = partial(call, ctypes.c_size_t(answers.count))
    prepares = answers.function == "step" and file.prepares
    errors = []
    for number, (inputs, right) in enumerate(zip(answers.inputs, answers.outputs, strict=True)):
        if answers.calls_of_a_sequence and number % answers.calls_of_a_sequence == 0:
            loaded.bound("reset")()
        elif prepares and number % 2:
            loaded.bound("prepare_next")()
        for name, array in inputs.items():
            given[name][...] = array
        call()
        errors += [np.abs(outputs[name] - array).max() for name, array in right.items()]
    return float(np.max(errors) / max(answers.scale, np.finfo(np.float64).tiny))


def with_packed_weights(
    model: onnx.ModelProto, precision: str, bounded: Collection[str] = ()
) -> onnx.ModelProto:
    """The model, changed in place: its matrices as code in this precision reads them.

    In int8 the recurrent layers round their state, and those with inputs in `bounded` these too.
    """
    if precision == "fp32":
        return model
    fold_normalizations(model.graph)
    opsets = opsets_of(model)
    known = stored_values(model.graph)
    for node in model.graph.node:
        if known.keys() | {""} >= {*node.input}:
            known |= zip(node.output, evaluated(node, known, opsets), strict=False)
        if node.op_type in RECURRENT and precision == "int8":
            steps = [WHOLE if node.input[0] in bounded else 0, WHOLE]
            node.attribute.append(onnx.helper.make_attribute("steps", steps))
        for place in MATRICES.get(node.op_type, ()):
            if node.input[place] in known:
                _pack(model.graph, node, place, known[node.input[place]], precision, bounded)
    return model


def _pack(
    graph: onnx.GraphProto,
    node: onnx.NodeProto,
    place: int,
    matrix: np.ndarray,
    precision: str,
    bounded: Collection[str],
) -> None:
    """Replace a matrix that a node reads by the packed one, unless it has few columns."""
    recurrent = node.op_type in RECURRENT
    has = attributes(node)
    # Rows are (columns, k); of a convolution k are places with all channels.
    axes = (-1, -2)
    if node.op_type == "Conv":
        axes = (1, -1)
    elif recurrent or has.get("transB"):
        axes = (-1, -1)
    turned = np.moveaxis(has.get("alpha", 1.0) * matrix, *axes)
    rows = turned.reshape(len(turned), -1) if node.op_type == "Conv" else turned
    if not recurrent and rows.shape[-2] // has.get("group", 1) <= FEW_COLUMNS:
        return
    is_bounded = recurrent and (place == 2 or node.input[0] in bounded)
    packed = as_packed(np.ascontiguousarray(rows), PRECISIONS[precision][not is_bounded])
    packed = np.moveaxis(packed.reshape(turned.shape), *reversed(axes))
    name = f"{node.input[place]} of {node.output[0]}, packed"
    graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(packed), name))
    node.input[place] = name
    for attribute in node.attribute:
        if attribute.name == "alpha":  # which the packed numbers have
            attribute.f = 1.0
