"""What an ONNX file contains, and what follows from it at given sizes: `NetworkFacts`.

Reading is safe: nothing is executed or unpickled, external data has to be in the folder of the file
or of what it is a link to, and ONNX's checker runs first. Errors in a file are a `UsageError` of
one line.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lstm_onnx import limits, work
from lstm_onnx.constants import fix_inputs, resolved, symbolic_shapes, with_sizes
from lstm_onnx.input_values import LENGTHS, InputValues
from lstm_onnx.operations import (
    FLOATS,
    MEAN_LENGTH,
    count_flops,
    count_parameters,
    layers_of,
    stored_numbers,
)
from lstm_trt.config.errors import LabError, UsageError, any_error, file_errors, first_line
from lstm_trt.config.fields import ADDED, JsonFields
from lstm_trt.config.format import bytes_text, listed
from lstm_trt.config.libraries import onnx, onnxruntime, require
from lstm_trt.config.workload import RecurrentLayer, State, check_whole
from lstm_trt.export import onnx_checks
from lstm_trt.export.sizes import fit, known_sizes
from lstm_trt.machine.linux import available_memory_bytes
from lstm_trt.store import cache
from lstm_trt.store.files import refuse_named_pipe

#: Inputs or outputs of a call by name.
Arrays = dict[str, np.ndarray]

#: Beginnings of the operators that round to whole numbers of few bits.
QUANTIZING = ("DynamicQuantize", "QGemm", "QLinear", "QuantizeLinear")

_MODULE = (
    "into its PyTorch module, then use lab.TorchNetwork(module, example), or torch.onnx.export"
)

_CONVERTED = "it cannot be converted back, give the ONNX file from which it was made"

#: What files of other formats are, their endings, their first bytes, if any, and where these begin,
#: and how to get to ONNX.
FOREIGN = (
    ("a PyTorch file", (".pt", ".pth", ".jit"), b"\x80\x02", 0, f"load it {_MODULE}"),
    (
        "a program of torch.export",
        (".pt2",),
        b"",
        0,
        'torch.onnx.export(torch.export.load(FILE), (), "a.onnx")',
    ),
    ("a file in ONNX Runtime's own format", (".ort",), b"ORTM", 4, _CONVERTED),
    ("a network in OpenVINO's format", (".xml",), b"<net ", 22, _CONVERTED),
    ("a TensorRT engine", (".engine", ".plan", ".trt"), b"ftrt", 0, _CONVERTED),
    (
        "a pointer of Git LFS",
        (),
        b"version https://git-lfs",
        0,
        "git lfs pull fetches the file that it stands for",
    ),
    ("a web page", (".html",), b"<!DOCTYPE", 0, "download the file itself"),
    ("a file of weights without a network", (".safetensors",), b'{"', 8, f"load them {_MODULE}"),
    (
        "a Keras file",
        (".keras", ".h5"),
        b"\x89HDF",
        0,
        'load it, then model.export("model.onnx", format="onnx")',
    ),
    (
        "a TensorFlow Lite file",
        (".tflite",),
        b"TFL3",
        4,
        "python -m tf2onnx.convert --tflite FILE --output model.onnx",
    ),
)

#: The largest size that is tried for an example is 2 to the power of one less.
EXAMPLE_DOUBLINGS = 11


@dataclass(frozen=True)
class Tensor(JsonFields):
    """An input or output with its sizes; `type` is numpy's name, `range` the whole numbers that an
    input has.

    `meaning`: `LENGTHS` if these are the lengths of sequences; the operator that needs them if only
    the user can know them. `declared`: the sizes that the file states of an output, None where
    symbolic, if they contradict `shape`.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    range: tuple[int, int] | None = field(default=None, metadata=ADDED)
    declared: tuple[int | None, ...] | None = field(default=None, metadata=ADDED)
    meaning: str | None = field(default=None, metadata=ADDED)

    @property
    def form(self) -> str:
        """`float32 [1, 4]`."""
        return f"{self.type} {list(self.shape)}"


@dataclass(frozen=True)
class NetworkFacts(JsonFields):
    """What follows from a file, its sizes and its constants.

    `flops` is None if a size inside the graph, or how often a part of it is computed, is not known;
    `least_flops` is the part that is known. `half`: whether some of its numbers are float16, so
    that it computes in half precision whatever is asked for. `quantized`: whether it rounds numbers
    to few bits; those near the edge between two fall on either side, depending on the order of a
    sum. `time_symbol` and `batch_symbol`: the symbolic sizes that are the sequence and the batch of
    the first recurrent operator.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    layers: tuple[RecurrentLayer, ...]
    parameters: int
    flops: int | None
    time_symbol: str | None = None
    batch_symbol: str | None = None
    half: bool = False
    least_flops: int | None = None
    quantized: bool = field(default=False, metadata=ADDED)


@dataclass(frozen=True)
class OnnxFile:
    """A network that was read and checked once.

    `content` has its external data included, and `sha256` is that of the file and that data. In
    `model` local functions are inlined; whoever changes it takes `changeable`.
    """

    name: str
    content: bytes
    sha256: str
    model: onnx.ModelProto

    @classmethod
    def read(cls, path: Path) -> OnnxFile:
        """Read and check a file; nothing is executed.

        Raises `UsageError` if it cannot be read, with a remedy for files of other formats, told by
        their ending or first bytes, if external data is missing or outside the folders in which it
        may be (`_external_file`), or if it is not valid ONNX.
        """
        require("onnx")
        from onnx.external_data_helper import uses_external_data

        refuse_named_pipe(path)
        with file_errors(f"read {path}"):
            content = path.read_bytes()
        try:
            model = work.read(content, path.name)
        except UsageError:
            for what, endings, start, offset, remedy in FOREIGN:
                if path.suffix.lower() in endings or (start and content.startswith(start, offset)):
                    raise UsageError(f"{path.name} is {what}, not ONNX: {remedy}") from None
            raise
        sha256 = cache.sha256(content)
        external = list(filter(uses_external_data, onnx_checks.tensors(model.graph)))
        if external:
            # ValueError for a location with NUL, an offset that is no number, or above protobuf's 2
            # GiB
            with any_error(UsageError, f"the external data of {path} cannot be loaded"):
                files = _load_external(path, external)
                sha256 = cache.sha256(b"".join((content, *files)))
                content = model.SerializeToString()
        _check(model, path.name)
        return cls(path.stem, content, sha256, model)

    @classmethod
    def of(cls, content: bytes, name: str) -> OnnxFile:
        """Check the content of a file without external data; raises `UsageError`."""
        model = work.read(content, name)
        _check(model, name)
        return cls(name, content, cache.sha256(content), model)

    @property
    def shapes(self) -> dict[str, tuple[int | str, ...]]:
        """`symbolic_shapes` of its inputs."""
        return symbolic_shapes(self.model)

    def changeable(self, constants: Mapping[str, float]) -> onnx.ModelProto:
        """A copy of the model in which these inputs are constants (`fix_inputs`)."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        fix_inputs(model, constants, self.name)
        return model


def _load_external(path: Path, tensors: Sequence[onnx.TensorProto]) -> list[bytes]:
    """Put their external data into tensors; the files that have it, in the order of their names."""
    from onnx.external_data_helper import ExternalDataInfo

    files = {}
    for tensor in tensors:
        place = ExternalDataInfo(tensor)
        if place.location not in files:
            file = _external_file(path, place.location)
            with file_errors(f"read {file}"):
                files[place.location] = file.read_bytes()
        content = files[place.location]
        begin = place.offset or 0
        end = len(content) if place.length is None else begin + place.length
        if not 0 <= begin <= end <= len(content):  # some versions of onnx allow less than 0
            raise ValueError(
                f"{place.location} has no bytes {begin} to {end}, where {tensor.name!r} should be"
            )
        tensor.raw_data = content[begin:end]
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
    return [files[location] for location in sorted(files)]


def _external_file(path: Path, location: str) -> Path:
    """A file of external data, beside the ONNX file or, if that is a link, beside the file that it
    is a link to.

    As in ONNX Runtime, which looks beside the link: what is found there may itself be a link into
    one of both folders, as in Hugging Face's cache, and into no other. Raises `UsageError`.
    """
    folders = (path.parent.resolve(), path.resolve().parent)
    where = "is missing"
    for folder in folders:
        place = (folder / location).resolve()
        if not any(place.is_relative_to(each) for each in folders):
            where = "is outside its folder, which is not allowed"
        elif place.is_file():
            return place
    raise UsageError(f"the external data {location!r} of {path} {where}")


def _check(model: onnx.ModelProto, name: str) -> None:
    """Raise `UsageError` unless the ONNX checker accepts a network, and its outputs can be read."""
    with any_error(UsageError, f"{name} is not valid ONNX"):  # the text names the operator
        onnx.checker.check_model(model)
        for tensor in onnx_checks.tensors(model.graph):
            if tensor.ListFields():
                onnx.numpy_helper.to_array(tensor)  # which the checker does not try
    outputs = [value.name for value in model.graph.output]
    if not outputs or len(set(outputs)) < len(outputs):
        fault = "two outputs have the same name" if outputs else "it has no outputs to be read"
        raise UsageError(f"{name} is not valid ONNX: {fault}; export it again")


def symbols_in(shapes: Mapping[str, Sequence[int | str]]) -> list[str]:
    """The symbols in the result of `symbolic_shapes`."""
    sizes = dict.fromkeys(itertools.chain.from_iterable(shapes.values()))
    return [size for size in sizes if isinstance(size, str)]


def from_inputs(
    file: OnnxFile, given: Mapping[str, np.ndarray]
) -> tuple[dict[str, int], dict[str, float]]:
    """Symbolic sizes, and inputs that are constants of the network, by the inputs that a user
    gives.

    The latter are single whole numbers that decide between branches.
    """
    constants = {}
    sizes = {}
    for key in deciding(file.changeable({})) if given else ():
        if key in given and given[key].size == 1 and given[key].dtype.kind in "iub":
            constants[key] = given[key].item()
    for key in given.keys() & file.shapes - constants.keys():
        sizes.update(zip(file.shapes[key], given[key].shape, strict=False))
    return {symbol: size for symbol, size in sizes.items() if isinstance(symbol, str)}, constants


def deciding(model: onnx.ModelProto) -> dict[str, Any]:
    """Inputs on which the condition of an If depends -> the number with which it is compared, "N"
    if there is none."""
    with any_error(UsageError, "the network is not valid ONNX"):
        graph = resolved(model).graph
    numbers = {}
    for tensor in onnx_checks.tensors(graph):
        if tensor.name and math.prod(tensor.dims) == 1:
            numbers[tensor.name] = onnx.numpy_helper.to_array(tensor).item()
    found: dict[str, Any] = {}
    for node in reversed(onnx_checks.nodes(graph)):  # those that use a tensor before what makes it
        if node.op_type == "If":
            found.setdefault(node.input[0], "N")
        decided = [found[name] for name in node.output if name in found]
        if "N" in decided:
            decided = [numbers[name] for name in node.input if name in numbers] + decided
        if decided and node.op_type not in ("Shape", "Size"):
            for name in filter(None, node.input):
                found.setdefault(name, decided[0])
    return {value.name: found[value.name] for value in graph.input if value.name in found}


def _fixed_text(shapes: Mapping[str, Sequence[int | str]], wanted: str) -> str:
    """What a file without symbolic sizes fixes, and how to export it with the size `wanted`."""
    fixed = [
        f"{name} is {' x '.join(map(str, shape)) or 'a single number'}"
        for name, shape in shapes.items()
    ]
    return (
        f"all sizes of its inputs are fixed ({listed(fixed)}); export it with"
        f' torch.onnx.export(..., dynamo=False, dynamic_axes={{INPUT: {{AXIS: "{wanted}"}}}}), or'
        " with dynamic_shapes"
    )


def _checked_sizes(
    shapes: Mapping[str, Sequence[int | str]], name: str, sizes: Mapping[str, int]
) -> list[str]:
    """The symbolic sizes that are missing; raises `UsageError` for other names and values."""
    known = symbols_in(shapes)
    for symbol, size in sizes.items():
        if symbol not in known:
            has = (
                f"its symbolic sizes are {listed(known)}" if known else _fixed_text(shapes, symbol)
            )
            raise UsageError(f"{name} has no symbolic size {symbol!r}: {has}")
        check_whole(f"the size {symbol}", size, 1, 2**31 - 1)
    return [symbol for symbol in known if symbol not in sizes]


# What follows from a file and its sizes


def network_facts(
    file: OnnxFile,
    sizes: Mapping[str, int],
    constants: Mapping,
    given: Mapping,
    *,
    measured: bool = False,
) -> NetworkFacts:
    """What an ONNX file says at these values of its symbolic sizes; raises `UsageError`.

    `constants`: numbers of inputs that are made constants of the graph (`fix_inputs`). `given`:
    values of other inputs, with which sizes of outputs are measured that cannot be derived, or all
    of them if `measured`.
    """
    name = file.name
    model = file.changeable(constants)
    symbols = symbolic_shapes(model)
    missing = _checked_sizes(symbols, name, sizes)
    if missing:
        decided = {key: number for key, number in deciding(model).items() if number != "N"}
        raise UsageError(
            f"{name} has symbolic sizes: give {flags_text('--size', dict.fromkeys(missing, 'N'))},"
            f" or --inputs FILE.npz{_example(file, sizes, missing, {**decided, **constants})}"
        )
    shapes = _sized(symbols, sizes)
    # The text names the operator.
    with any_error(UsageError, f"{name} is not valid at these sizes"):
        derived = with_sizes(model, shapes)
    wrong = onnx_checks.refusal(derived, onnx_checks.DEFINITION)
    if wrong:
        raise UsageError(f"{name} is not valid ONNX: {wrong}")
    inputs = _inputs(file, model, derived, shapes, given)
    outputs = _outputs(file, model, derived, inputs, given, measured)
    _check_memory(file, [*inputs, *outputs])
    layers = layers_of(derived.graph, shapes)
    symbol_of = _symbols_of_layers(model, symbols, sizes, layers)
    flops, complete = count_flops(derived.graph, {}, shapes)
    return NetworkFacts(
        tuple(inputs),
        tuple(outputs),
        layers,
        count_parameters(model),
        flops=flops if complete else None,
        time_symbol=symbol_of.get("sequence"),
        batch_symbol=symbol_of.get("batch"),
        half=any(tensor.data_type == FLOATS["float16"] for tensor in stored_numbers(model)),
        least_flops=flops,
        quantized=any(
            node.op_type.startswith(QUANTIZING) for node in onnx_checks.nodes(model.graph)
        ),
    )


def _check_memory(file: OnnxFile, tensors: Iterable[Tensor]) -> None:
    size = len(file.content)
    for tensor in tensors:
        size += math.prod(tensor.shape) * np.dtype(tensor.type).itemsize
    needed = 3 * size  # random numbers are in float64 first
    available = available_memory_bytes()
    if needed > available:
        raise UsageError(
            f"{file.name} does not fit into the memory: at these sizes it needs at least"
            f" {bytes_text(needed)}, {bytes_text(available)} are available"
        )


def _sized(
    symbols: Mapping[str, Sequence[Any]], sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Shapes with these values of their symbols."""
    return {name: tuple(sizes.get(size, size) for size in shape) for name, shape in symbols.items()}


def _inputs(
    file: OnnxFile,
    model: onnx.ModelProto,
    derived: onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]],
    given: Mapping[str, np.ndarray],
) -> list[Tensor]:
    """The inputs with the numbers that they have: those given, if they are lengths or cannot be
    drawn.

    Recurrent operators of `derived` with sequences of known lengths get the mean of these as their
    attribute `MEAN_LENGTH`.
    """
    bare = [
        Tensor(value.name, _numpy_type(value, file.name, "input"), shapes[value.name])
        for value in model.graph.input
        if value.name in shapes
    ]
    _check_memory(file, bare)
    values = InputValues(derived, bare)
    meanings = values.meanings()
    arrays = dict(given)
    found = []
    for tensor in bare:
        drawn = (0, 1) if np.dtype(tensor.type).kind in "iu" else None
        drawn, meaning = meanings.get(tensor.name, (drawn, None))
        array = given.get(tensor.name)
        if meaning and array is not None and array.size:
            drawn = (int(array.min()), int(array.max()))
        elif meaning == LENGTHS and drawn:
            arrays[tensor.name] = np.full(tensor.shape, drawn[0], tensor.type)
        found.append(replace(tensor, range=drawn, meaning=meaning))
    for node in onnx_checks.recurrent_nodes(derived):
        lengths = values.value("".join(node.input[4:5]), arrays)
        if lengths is not None:
            node.attribute.append(onnx.helper.make_attribute(MEAN_LENGTH, float(lengths.mean())))
    return found


def _outputs(
    file: OnnxFile,
    model: onnx.ModelProto,
    derived: onnx.ModelProto,
    inputs: Sequence[Tensor],
    given: Mapping[str, np.ndarray],
    measured: bool,
) -> list[Tensor]:
    """The outputs, with sizes that are derived, or measured where that is asked for or needed."""
    types = {value.name: _numpy_type(value, file.name, "output") for value in derived.graph.output}
    known: dict[str, Any] = known_sizes(derived.graph)
    if measured or any(None in known.get(key, (None,)) for key in types):
        known = _measured_shapes(model, file.name, inputs, given)
    stated: dict[str, Any] = known_sizes(model.graph)
    found = []
    for key, kind in types.items():
        declared = stated.get(key, known[key])
        found.append(
            Tensor(key, kind, known[key], declared=None if fit(declared, known[key]) else declared)
        )
    return found


def _numpy_type(value: onnx.ValueInfoProto, name: str, what: str) -> str:
    number = value.type.tensor_type.elem_type
    with suppress(KeyError):
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
        if kind.kind in "fiub" and kind.isbuiltin == 1:
            return kind.name
    raise UsageError(
        f"the {what} {value.name} of {name} has the type {onnx_checks.type_name(number)}, which is"
        " not supported"
    )


def _symbols_of_layers(
    model: onnx.ModelProto,
    symbols: Mapping,
    sizes: Mapping[str, int],
    layers: Sequence[RecurrentLayer],
) -> dict[str, str]:
    """Which symbol is the "sequence", and which the "batch", of the first recurrent operator: those
    that change it."""
    found: dict[str, str] = {}
    for symbol in sizes if layers else ():
        # Not every size is possible: an addition of two inputs, for example.
        with suppress(Exception):
            larger = with_sizes(model, _sized(symbols, {**sizes, symbol: 2 * sizes[symbol]}))
            other = layers_of(larger.graph, symbols)[0]
            if other.sequence != layers[0].sequence:
                found["sequence"] = symbol
            elif other.batch != layers[0].batch:
                found["batch"] = symbol
    return found


def _example(
    file: OnnxFile, sizes: Mapping[str, int], missing: Sequence[str], numbers: Mapping
) -> str:
    """Flags of the first call that ONNX Runtime computes with random inputs, or nothing.

    One of the missing sizes, or all of them, are a power of two, others 1; `numbers` are those of
    inputs.
    """
    for power in range(EXAMPLE_DOUBLINGS):
        for grown in (*([symbol] for symbol in missing), missing):
            limits.check_time()
            trial = {symbol: 2**power if symbol in grown else 1 for symbol in missing}
            with suppress(LabError):
                network_facts(file, {**sizes, **trial}, numbers, {}, measured=True)
                return (
                    f"; for example {flags_text('--size', trial)}{flags_text(' --value', numbers)}"
                )
    return ""


def flags_text(flag: str, values: Mapping[str, Any]) -> str:
    """`--size time=4 --size batch=1`."""
    return " ".join(f"{flag} {name}={value}" for name, value in values.items())


def _measured_shapes(
    model: onnx.ModelProto, name: str, inputs: Sequence[Tensor], given: Mapping
) -> dict[str, tuple]:
    """The shapes of the outputs that ONNX Runtime returns, for a graph whose sizes cannot be
    derived."""
    arrays = random_inputs(inputs, given, 0)
    try:
        (results,) = run_onnxruntime(model.SerializeToString(), [arrays])
    except LabError:
        raise
    except Exception as error:  # the package's own classes
        if given.keys() >= arrays.keys():
            raise UsageError(
                f"{name} gives no outputs for the given inputs: {first_line(error)}"
            ) from error
        raise UsageError(
            f"{name} gives no outputs for random inputs: give real ones with --inputs"
            f" FILE.npz{flags_text(', or --value', deciding(model))}"
        ) from error
    return {key: array.shape for key, array in results.items()}


def run_onnxruntime(
    content: bytes, sets: Iterable[Mapping], states: Sequence[State] = ()
) -> list[Arrays]:
    """The outputs of ONNX Runtime on the CPU for sets of inputs, one after another; `states` are
    carried by hand.

    Raises the package's errors.
    """
    model = onnx.load_from_string(content)
    del model.graph.value_info[
        :
    ]  # PyTorch's exporter fixes symbolic sizes there, and ONNX Runtime relies on it
    session = session_of(model, onnxruntime.SessionOptions())
    names = [value.name for value in session.get_outputs()]

    def call(options: Any, inputs: Arrays) -> Arrays:
        return dict(zip(names, session.run(names, inputs, options), strict=True))

    return limits.run(lambda options: in_sequence(partial(call, options), sets, states))


def session_of(model: onnx.ModelProto, settings: Any) -> Any:
    """ONNX Runtime on one core of the CPU; its errors are raised only, not printed as well."""
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )


def in_sequence(
    call: Callable[[Arrays], Arrays], sets: Iterable[Mapping], states: Sequence[State]
) -> list[Arrays]:
    """The outputs of `call` for sets of inputs, one after another, with `states` carried from call
    to call."""
    carried = {state.input: state.zeros() for state in states}
    found = []
    for inputs in sets:
        outputs = call({**inputs, **carried})
        carried = {state.input: outputs.pop(state.output) for state in states}
        found.append(outputs)
    return found


def random_inputs(
    tensors: Iterable[Tensor], given: Mapping[str, np.ndarray], seed: int | Sequence[int]
) -> Arrays:
    """The given inputs, and random numbers for the others, which do not depend on what is given."""
    generator = np.random.default_rng(seed)
    return {each.name: given.get(each.name, _random_array(each, generator)) for each in tensors}


def _random_array(tensor: Tensor, generator: np.random.Generator) -> np.ndarray:
    """Standard normal numbers, or whole numbers in the tensor's range."""
    if np.dtype(tensor.type).kind == "f":
        return generator.standard_normal(tensor.shape).astype(tensor.type)
    low, high = tensor.range or (0, 1)
    return generator.integers(low, high, tensor.shape, endpoint=True).astype(tensor.type)
