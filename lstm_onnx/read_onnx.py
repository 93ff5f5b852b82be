"""What an ONNX file contains: inputs, outputs and recurrent operators at given sizes, parameters, operations.

Reading is safe: nothing is executed or unpickled, external data has to be in the folder of the file or of what it is a
link to, and ONNX's checker runs first. Errors in a file are a `UsageError` of one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lstm_onnx import limits, work
from lstm_onnx.constants import fix_inputs, operators, resolved, scanned, symbolic_shapes, with_sizes
from lstm_onnx.input_values import LENGTHS, InputValues
from lstm_trt.config.errors import LabError, UsageError, any_error, file_errors, first_line
from lstm_trt.config.fields import ADDED, JsonFields
from lstm_trt.config.format import bytes_text, listed
from lstm_trt.config.libraries import onnx, onnxruntime, require
from lstm_trt.config.workload import RecurrentLayer, State
from lstm_trt.export import onnx_checks
from lstm_trt.export.onnx_checks import RECURRENT
from lstm_trt.export.sizes import Sizes, attributes, bodies, fit, known_sizes
from lstm_trt.machine.linux import available_memory_bytes
from lstm_trt.store import cache
from lstm_trt.store.files import refuse_named_pipe

#: Inputs or outputs of a call by name.
Arrays = dict[str, np.ndarray]

#: ONNX's numbers of the element types that parameters have.
FLOATS = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}

#: Those of quantized weights, unsigned and signed.
INT8 = (2, 3)

#: Operators with products of two tensors.
PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")

#: `RecurrentLayer.within` of an operator that has constants only, which runtimes compute once.
CONSTANTS = "constants"

#: Operators with products whose number, or whose rate, is not that of float32 products.
UNCOUNTED = ("Attention", "ConvInteger", "DFT", "Einsum", "MatMulInteger", "QLinearConv", "QLinearMatMul", "STFT")

#: Beginnings of the operators that round to whole numbers of few bits.
QUANTIZING = ("DynamicQuantize", "QGemm", "QLinear", "QuantizeLinear")

_MODULE = "into its PyTorch module, then use lab.TorchNetwork(module, example), or torch.onnx.export"

_CONVERTED = "it cannot be converted back, give the ONNX file from which it was made"

#: What files of other formats are, their endings, their first bytes, if any, and where these begin, and how to get to
#: ONNX.
FOREIGN = (
    ("a PyTorch file", (".pt", ".pth", ".jit"), b"\x80\x02", 0, f"load it {_MODULE}"),
    ("a program of torch.export", (".pt2",), b"", 0, 'torch.onnx.export(torch.export.load(FILE), (), "a.onnx")'),
    ("a file in ONNX Runtime's own format", (".ort",), b"ORTM", 4, _CONVERTED),
    ("a network in OpenVINO's format", (".xml",), b"<net ", 22, _CONVERTED),
    ("a TensorRT engine", (".engine", ".plan", ".trt"), b"ftrt", 0, _CONVERTED),
    ("a pointer of Git LFS", (), b"version https://git-lfs", 0, "git lfs pull fetches the file that it stands for"),
    ("a web page", (".html",), b"<!DOCTYPE", 0, "download the file itself"),
    ("a file of weights without a network", (".safetensors",), b'{"', 8, f"load them {_MODULE}"),
    ("a Keras file", (".keras", ".h5"), b"\x89HDF", 0, 'load it, then model.export("model.onnx", format="onnx")'),
    ("a TensorFlow Lite file", (".tflite",), b"TFL3", 4, "python -m tf2onnx.convert --tflite FILE --output model.onnx"),
)

#: An attribute that operators get here.
MEAN_LENGTH = "mean_length"

#: The largest size that is tried for an example is 2 to the power of one less.
EXAMPLE_DOUBLINGS = 11


def form(kind: str, shape: Sequence[int]) -> str:
    """`float32 [1, 4]`."""
    return f"{kind} {list(shape)}"


@dataclass(frozen=True)
class Tensor(JsonFields):
    """An input or output with its sizes; `type` is numpy's name, `range` the whole numbers that an input has.

    `meaning`: `LENGTHS` if these are the lengths of sequences; the operator that needs them if only the user can know
    them. `declared`: the sizes that the file states of an output, None where symbolic, if they contradict `shape`.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    range: tuple[int, int] | None = None
    declared: tuple[int | None, ...] | None = None
    meaning: str | None = None

    @property
    def form(self) -> str:
        """Type and shape, as messages have them."""
        return form(self.type, self.shape)

    def as_dict(self) -> dict:
        """JSON values; `range`, `declared` and `meaning` only if there is one."""
        return {name: value for name, value in super().as_dict().items() if value is not None}


@dataclass(frozen=True)
class NetworkFacts(JsonFields):
    """What follows from a file, its sizes and its constants.

    `flops` is None if a size inside the graph, or how often a part of it is computed, is not known; `least_flops` is
    the part that is known. `half`: whether some of its numbers are float16, so that it computes in half precision
    whatever is asked for. `quantized`: whether it rounds numbers to few bits; those near the edge between two fall on
    either side, depending on the order of a sum.
    `time_symbol` and `batch_symbol`: the symbolic sizes that are the sequence and the batch of the first recurrent
    operator.
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


def read_file(path: Path) -> tuple[bytes, str]:
    """An ONNX file with its external data included, and the SHA-256 of the file and that data; nothing is executed.

    Raises `UsageError` if it cannot be read, with a remedy for files of other formats, told by their ending or first
    bytes, or if external data is missing or outside the folders in which it may be (`_external_file`).
    """
    require("onnx")
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

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
    external = [tensor for tensor in onnx_checks.tensors(model.graph) if uses_external_data(tensor)]
    if not external:
        return content, cache.sha256(content)
    loaded = f"the external data of {path} cannot be loaded"
    # ValueError for a location with NUL, an offset that is no number, or above protobuf's 2 GiB
    with any_error(UsageError, loaded):
        places = [(tensor, ExternalDataInfo(tensor)) for tensor in external]
        if any(min(place.offset or 0, place.length or 0) < 0 for _, place in places):  # as some versions of onnx allow
            raise UsageError(f"{loaded}: an offset or a length in it is negative")
        parts = {}
        for location in sorted({place.location for _, place in places}):
            file = _external_file(path, location)
            with file_errors(f"read {file}"):
                parts[location] = file.read_bytes()
        for tensor, place in places:
            rest = memoryview(parts[place.location])[place.offset or 0 :]
            length = len(rest) if place.length is None else place.length
            if length > len(rest):
                raise UsageError(f"{loaded}: {place.location} ends before {tensor.name!r} does")
            tensor.raw_data = bytes(rest[:length])
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
        whole = model.SerializeToString()
    return whole, cache.sha256(b"".join((content, *parts.values())))


def _external_file(path: Path, location: str) -> Path:
    """A file of external data, beside the ONNX file or, if that is a link, beside the file that it is a link to.

    As in ONNX Runtime, which looks beside the link: what is found there may itself be a link into one of both folders,
    as in Hugging Face's cache, and into no other. Raises `UsageError`.
    """
    folders = (path.parent.resolve(), path.resolve().parent)
    places = [(folder / location).resolve() for folder in folders]
    inside = [place for place in places if any(place.is_relative_to(folder) for folder in folders)]
    found = next(filter(Path.is_file, inside), None)
    if found is None:
        outside = not inside or any(map(Path.is_file, places))
        where = "is outside its folder, which is not allowed" if outside else "is missing"
        raise UsageError(f"the external data {location!r} of {path} {where}")
    return found


def checked(content: bytes, name: str) -> onnx.ModelProto:
    """The network, accepted by the ONNX checker, with local functions inlined; raises `UsageError`."""
    model = work.read(content, name)
    with any_error(UsageError, f"{name} is not valid ONNX"):  # the text names the operator
        onnx.checker.check_model(model)
        for tensor in onnx_checks.tensors(model.graph):
            if tensor.ListFields():
                onnx.numpy_helper.to_array(tensor)  # which the checker does not try
    outputs = [value.name for value in model.graph.output]
    if not outputs or len(set(outputs)) < len(outputs):
        wrong = "two outputs have the same name" if outputs else "it has no outputs, so nothing could be read"
        raise UsageError(f"{name} is not valid ONNX: {wrong}; export it again")
    return model


def read_shapes(path: Path) -> dict[str, tuple[int | str, ...]]:
    """`symbolic_shapes` of a file; raises `UsageError` if it cannot be read."""
    return symbolic_shapes(checked(read_file(path)[0], path.name))


def symbols_in(shapes: Mapping[str, Sequence[int | str]]) -> list[str]:
    """The symbols in the result of `symbolic_shapes`."""
    return list(dict.fromkeys(size for shape in shapes.values() for size in shape if isinstance(size, str)))


def from_inputs(content: bytes, name: str, given: Mapping[str, np.ndarray]) -> tuple[dict[str, int], dict[str, float]]:
    """Symbolic sizes, and inputs that are constants of the network, by the inputs that a user gives.

    The latter are single whole numbers that decide between branches. Raises `UsageError` for an invalid file, which is
    not read if there are no inputs.
    """
    if not given:
        return {}, {}
    model = checked(content, name)
    whole = {key: array.item() for key, array in given.items() if array.size == 1 and array.dtype.kind in "iub"}
    constants = {key: whole[key] for key in (deciding(model) if whole else ()) if key in whole}
    sized = {key: size for key, size in symbolic_shapes(model).items() if key in given and key not in constants}
    pairs = [pair for key, sizes in sized.items() for pair in zip(sizes, given[key].shape, strict=False)]
    return {symbol: size for symbol, size in pairs if isinstance(symbol, str)}, constants


def deciding(model: onnx.ModelProto) -> dict[str, Any]:
    """Inputs on which the condition of an If depends -> the number with which it is compared, "N" if there is none."""
    with any_error(UsageError, "the network is not valid ONNX"):
        graph = resolved(model).graph
    found = {}
    single = [tensor for tensor in onnx_checks.tensors(graph) if tensor.name and math.prod(tensor.dims) == 1]
    numbers = {tensor.name: onnx.numpy_helper.to_array(tensor).item() for tensor in single}
    for node in reversed(onnx_checks.nodes(graph)):  # those that use a tensor before that which makes it
        if node.op_type == "If":
            found.setdefault(node.input[0], "N")
        ahead = [found[name] for name in node.output if name in found and node.op_type not in ("Shape", "Size")]
        compared = [numbers[name] for name in node.input if name in numbers and "N" in ahead]
        for name in filter(None, node.input) if ahead else ():
            found.setdefault(name, (compared or ahead)[0])
    return {value.name: found[value.name] for value in graph.input if value.name in found}


def fixed_text(shapes: Mapping[str, Sequence[int | str]], wanted: str) -> str:
    """What a file without symbolic sizes fixes, and how to export it with the size `wanted`."""
    fixed = listed([f"{name} is {' x '.join(map(str, shape)) or 'a single number'}" for name, shape in shapes.items()])
    again = f'export it with torch.onnx.export(..., dynamo=False, dynamic_axes={{INPUT: {{AXIS: "{wanted}"}}}})'
    return f"all sizes of its inputs are fixed ({fixed}); {again}, or with dynamic_shapes"


def _checked_sizes(shapes: Mapping[str, Sequence[int | str]], name: str, sizes: Mapping[str, int]) -> list[str]:
    """The symbolic sizes that are missing; raises `UsageError` for other names and values."""
    known = symbols_in(shapes)
    for symbol, size in sizes.items():
        if symbol not in known:
            has = f"its symbolic sizes are {listed(known)}" if known else fixed_text(shapes, symbol)
            raise UsageError(f"{name} has no symbolic size {symbol!r}: {has}")
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 2**31 - 1:
            raise UsageError(f"the size {symbol} must be a whole number of at least 1, not {size!r}")
    return [symbol for symbol in known if symbol not in sizes]


# What follows from a file and its sizes


def network_facts(
    content: bytes, name: str, sizes: Mapping[str, int], constants: Mapping, given: Mapping, *, measured: bool = False
) -> NetworkFacts:
    """What the content of an ONNX file says at these values of its symbolic sizes; raises `UsageError`.

    `constants`: numbers of inputs that are made constants of the graph (`fix_inputs`). `given`: values of other inputs,
    with which sizes of outputs are measured that cannot be derived, or all of them if `measured`.
    """
    model = checked(content, name)
    fix_inputs(model, constants, name)
    symbols = symbolic_shapes(model)
    missing = _checked_sizes(symbols, name, sizes)
    if missing:
        decided = {key: number for key, number in deciding(model).items() if number != "N"}
        example = _example(content, name, sizes, missing, {**decided, **constants})
        flags = _flags("--size", dict.fromkeys(missing, "N"))
        raise UsageError(f"{name} has symbolic sizes: give {flags}, or --inputs FILE.npz{example}")
    shapes = _sized(symbols, sizes)
    with any_error(UsageError, f"{name} is not valid at these sizes"):  # the text names the operator
        derived = with_sizes(model, shapes)
    graph = derived.graph
    wrong = onnx_checks.refusal(derived, onnx_checks.DEFINITION)
    if wrong:
        raise UsageError(f"{name} is not valid ONNX: {wrong}")
    known: dict[str, Any] = known_sizes(graph)
    types = {value.name: _numpy_type(value, name, "input") for value in model.graph.input if value.name in shapes}
    bare = [Tensor(key, kind, shapes[key]) for key, kind in types.items()]
    _check_memory(name, content, bare)
    inputs = _inputs(derived, bare, given)
    types = {value.name: _numpy_type(value, name, "output") for value in graph.output}
    if measured or any(None in known.get(key, (None,)) for key in types):
        known = _measured_shapes(model, name, inputs, given)
    stated: dict[str, Any] = known_sizes(model.graph)
    others = {key: stated[key] for key in types if not fit(stated.get(key, known[key]), known[key])}
    outputs = [Tensor(key, kind, known[key], declared=others.get(key)) for key, kind in types.items()]
    _check_memory(name, content, [*inputs, *outputs])
    tensors, every = list(onnx_checks.tensors(model.graph)), onnx_checks.nodes(model.graph)
    fills = [a.t.data_type for node in every if node.op_type == "ConstantOfShape" for a in node.attribute]
    quantized = [tensor for tensor in tensors if tensor.data_type in INT8 and len(tensor.dims) > 1]
    stored = [tensor for tensor in tensors if tensor.data_type in FLOATS.values()] + quantized
    no_parameters = sum(kind in FLOATS.values() for kind in fills)
    parameters = sum(math.prod(tensor.dims) for tensor in stored) - no_parameters
    layers, (least, complete) = _layers(graph, shapes), _count_flops(graph, {}, set(shapes))
    more = {"half": any(tensor.data_type == FLOATS["float16"] for tensor in stored), "least_flops": least}
    more["quantized"] = any(node.op_type.startswith(QUANTIZING) for node in every)
    more |= _symbols_of_layers(model, symbols, sizes, layers)
    return NetworkFacts(tuple(inputs), tuple(outputs), layers, parameters, least if complete else None, **more)


def _check_memory(name: str, content: bytes, tensors: Iterable[Tensor]) -> None:
    size = sum(math.prod(tensor.shape) * np.dtype(tensor.type).itemsize for tensor in tensors)
    size, available = 3 * (size + len(content)), available_memory_bytes()  # random numbers are in float64 first
    if size > available:
        needs = f"at these sizes it needs at least {bytes_text(size)}, {bytes_text(available)} are available"
        raise UsageError(f"{name} does not fit into the memory: {needs}")


def _sized(symbols: Mapping[str, Sequence[Any]], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Shapes with these values of their symbols."""
    return {name: tuple(sizes.get(size, size) for size in shape) for name, shape in symbols.items()}


def _inputs(model: onnx.ModelProto, bare: Sequence[Tensor], given: Mapping[str, np.ndarray]) -> list[Tensor]:
    """The inputs with the numbers that they have: those given, if they are lengths or cannot be drawn.

    Recurrent operators with sequences of known lengths get the mean of these as their attribute `MEAN_LENGTH`.
    """
    values = InputValues(model, bare)
    meanings, arrays, found = values.meanings(), dict(given), []
    for tensor in bare:
        whole = np.dtype(tensor.type).kind in "iu"
        drawn, meaning = meanings.get(tensor.name, ((0, 1) if whole else None, None))
        array = given.get(tensor.name)
        if meaning and array is not None and array.size:
            drawn = (int(array.min()), int(array.max()))
        elif meaning == LENGTHS and drawn:
            arrays[tensor.name] = np.full(tensor.shape, drawn[0], tensor.type)
        found.append(replace(tensor, range=drawn, meaning=meaning))
    for node in onnx_checks.recurrent_nodes(model):
        lengths = values.value("".join(node.input[4:5]), arrays)
        if lengths is not None:
            node.attribute.append(onnx.helper.make_attribute(MEAN_LENGTH, float(lengths.mean())))
    return found


def _numpy_type(value: onnx.ValueInfoProto, name: str, what: str) -> str:
    number = value.type.tensor_type.elem_type
    with suppress(KeyError):
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
        if kind.kind in "fiub" and kind.isbuiltin == 1:
            return kind.name
    text = onnx_checks.type_name(number)
    raise UsageError(f"the {what} {value.name} of {name} has the type {text}, which is not supported")


def _three(known: Sizes, name: str) -> Sequence[int | None]:
    """The sizes of a tensor of three axes, None where they are not known."""
    sizes = known.get(name, ())
    return sizes if len(sizes) == 3 else (None, None, None)


def _layers(graph: onnx.GraphProto, inputs: Iterable[str]) -> tuple[RecurrentLayer, ...]:
    """The recurrent operators of a graph with these inputs; its other inputs are weights."""
    varying, found = _varying(graph, set(inputs)), []
    for node, known, within in operators(graph):
        constant = not within and not varying & {*node.input}
        found.append(_layer(node, known, CONSTANTS if constant else within))
    return tuple(filter(None, found))


def _layer(node: onnx.NodeProto, known: Sizes, within: str = "") -> RecurrentLayer | None:
    """A recurrent operator with its sizes as far as they are known, those of ONNX Runtime included; None for others."""
    if not node.op_type.endswith(tuple(RECURRENT)) or node.domain not in ("", "ai.onnx", "com.microsoft"):
        return None
    x, w, r = (_three(known, name) for name in node.input[:3])
    if node.op_type.startswith("DynamicQuantize"):  # its weights are transposed
        w, r = (w[0], w[2], w[1]), (r[0], r[2], r[1])
    has = attributes(node)
    sequence, batch = (x[1], x[0]) if has.get("layout") else (x[0], x[1])
    bias, name = any(node.input[3:4]), node.name or next(filter(None, node.output), "")
    sizes = (r[2] or has.get("hidden_size"), w[2], sequence, batch)
    steps = has.get(MEAN_LENGTH)
    steps = None if steps == sequence else steps
    return RecurrentLayer(node.op_type, *sizes, has.get("direction", "forward"), name, bias, within, steps)


def _varying(graph: onnx.GraphProto, inputs: set[str]) -> set[str]:
    """Tensors that are no constants, given the inputs that are none."""
    varying = set(inputs)
    for node in graph.node:
        if bodies(node) or varying & {*node.input}:
            varying |= {*filter(None, node.output)}
    return varying


def _count_flops(graph: onnx.GraphProto, outer: Sizes, varying: set[str]) -> tuple[int, bool]:
    """Operations that a call has at least, and whether it has no others.

    `varying`: tensors that are not constants. Those of constants are not counted, since runtimes compute them once.
    """
    known, varying, least, complete = {**outer, **known_sizes(graph)}, _varying(graph, varying), 0, True
    whole = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    for node in graph.node:
        inner = bodies(node).values()
        if inner or varying & {*node.input}:
            counts = [_count_flops(body, known, varying | {value.name for value in body.input}) for body in inner]
            counts, times = counts or [_flops(node, known)], _times(node, known)
            if whole & {*node.input} and node.op_type in PRODUCTS:
                counts = [(0, False)]  # runtimes multiply whole numbers instead
            fewest, _ = min(counts)
            least += (times or 0) * fewest
            complete &= all(count == (fewest, True) for count in counts) and (times is not None or not fewest)
    return least, complete


def _times(node: onnx.NodeProto, known: Sizes) -> int | None:
    """How often an operator computes its body, or itself; None if that is not known."""
    if node.op_type == "Scan":
        return scanned(node, known)
    return None if node.op_type == "Loop" else 1


def _flops(node: onnx.NodeProto, known: Sizes) -> tuple[int, bool]:
    """Multiplications and additions of matrix products and convolutions, 0 for other operators; whether it is known."""
    if node.op_type in UNCOUNTED or node.domain not in ("", "ai.onnx"):
        return 0, False
    if node.op_type in RECURRENT:
        layer = _layer(node, known)
        return (layer.flops, layer.counted) if layer else (0, False)
    if node.op_type not in PRODUCTS:
        return 0, True
    first, second, result = (known.get(name, (None,)) for name in (*node.input[:2], node.output[0]))
    per_place = first if node.op_type == "ConvTranspose" else result
    if None in (*(second or [None]), *(per_place or [None])):
        return 0, False
    if node.op_type in ("MatMul", "Gemm"):  # the second operand states the number of terms of each sum
        terms = second[1] if attributes(node).get("transB") else second[-2] if len(second) > 1 else second[0]
        return 2 * math.prod(result) * terms, True
    # A convolution multiplies each weight of one output channel (of one input channel, if transposed) per position.
    return 2 * math.prod(per_place) * math.prod(second[1:]), True


def _symbols_of_layers(
    model: onnx.ModelProto, symbols: Mapping, sizes: Mapping[str, int], layers: Sequence[RecurrentLayer]
) -> dict[str, str]:
    """Which symbol is the sequence, and which the batch, of the first recurrent operator: those that change it."""
    found = {}
    for symbol in sizes if layers else ():
        larger = {**sizes, symbol: 2 * sizes[symbol]}
        with suppress(Exception):  # not every size is possible: an addition of two inputs, for example
            other = _layers(with_sizes(model, _sized(symbols, larger)).graph, symbols)[0]
            if other.sequence != layers[0].sequence:
                found["time_symbol"] = symbol
            elif other.batch != layers[0].batch:
                found["batch_symbol"] = symbol
    return found


def _example(content: bytes, name: str, sizes: Mapping[str, int], missing: Sequence[str], numbers: Mapping) -> str:
    """Flags of the first call that ONNX Runtime computes with random inputs, or nothing.

    One of the missing sizes, or all of them, are a power of two, others 1; `numbers` are those of inputs.
    """
    for power in range(EXAMPLE_DOUBLINGS):
        for grown in (*([symbol] for symbol in missing), missing):
            limits.check_time()
            trial = {symbol: 2**power if symbol in grown else 1 for symbol in missing}
            with suppress(LabError):
                network_facts(content, name, {**sizes, **trial}, numbers, {}, measured=True)
                return f"; for example {_flags('--size', trial)}{_flags(' --value', numbers)}"
    return ""


def _flags(flag: str, values: Mapping[str, Any]) -> str:
    return " ".join(f"{flag} {name}={value}" for name, value in values.items())


def _measured_shapes(model: onnx.ModelProto, name: str, inputs: Sequence[Tensor], given: Mapping) -> dict[str, tuple]:
    """The shapes of the outputs that ONNX Runtime returns, for a graph whose sizes cannot be derived."""
    generator = np.random.default_rng(0)
    arrays = {each.name: given.get(each.name, random_array(each, generator)) for each in inputs}
    try:
        (results,) = run_onnxruntime(model.SerializeToString(), [arrays])
    except LabError:
        raise
    except Exception as error:  # the package's own classes
        reason, values = f"{name} gives no outputs for", _flags(", or --value", deciding(model))
        if given.keys() >= arrays.keys():
            raise UsageError(f"{reason} the given inputs: {first_line(error)}") from error
        raise UsageError(f"{reason} random inputs: give real ones with --inputs FILE.npz{values}") from error
    return {key: array.shape for key, array in results.items()}


def run_onnxruntime(content: bytes, sets: Iterable[Mapping], states: Sequence[State] = ()) -> list[Arrays]:
    """The outputs of ONNX Runtime on the CPU for sets of inputs, one after another; `states` are carried by hand.

    Raises the package's errors.
    """
    model = onnx.load_from_string(content)
    del model.graph.value_info[:]  # PyTorch's exporter fixes symbolic sizes there, and ONNX Runtime relies on it
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4  # errors are also raised as exceptions
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]

    def all_outputs(options: Any) -> list[Arrays]:
        return in_sequence(
            lambda inputs: dict(zip(names, session.run(names, inputs, options), strict=True)), sets, states
        )

    return limits.run(all_outputs)


def in_sequence(call: Callable[[Arrays], Arrays], sets: Iterable[Mapping], states: Sequence[State]) -> list[Arrays]:
    """The outputs of `call` for sets of inputs, one after another, with `states` carried from call to call."""
    carried, found = {state.input: state.zeros() for state in states}, []
    for inputs in sets:
        outputs = call({**inputs, **carried})
        carried = {state.input: outputs.pop(state.output) for state in states}
        found.append(outputs)
    return found


def random_array(tensor: Tensor, generator: np.random.Generator) -> np.ndarray:
    """Standard normal numbers, or whole numbers in the tensor's range."""
    if np.dtype(tensor.type).kind == "f":
        return generator.standard_normal(tensor.shape).astype(tensor.type)
    low, high = tensor.range or (0, 1)
    return generator.integers(low, high, tensor.shape, endpoint=True).astype(tensor.type)
