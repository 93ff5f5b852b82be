"""What an ONNX file contains: inputs, outputs and recurrent operators at given sizes, parameters, operations.

Reading is safe: nothing is executed or unpickled, external data has to be in the folder of the file, and ONNX's checker
runs first. Errors in a file are a `UsageError` of one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lstm_trt.config.errors import UsageError, any_error, file_errors
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.format import bytes_text, listed
from lstm_trt.config.workload import RecurrentLayer, State
from lstm_trt.export import onnx_checks
from lstm_trt.export.onnx_checks import RECURRENT, attributes
from lstm_trt.export.to_onnx import known_sizes, with_sizes
from lstm_trt.machine.linux import available_memory_bytes
from lstm_trt.store import cache

if TYPE_CHECKING:
    import onnx


#: ONNX's numbers of the element types that parameters have.
FLOATS = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}


@dataclass(frozen=True)
class Tensor(JsonFields):
    """An input or output with its sizes; `type` is numpy's name, `range` the allowed integers of an input."""

    name: str
    type: str
    shape: tuple[int, ...]
    range: tuple[int, int] | None = None

    def as_dict(self) -> dict:
        """JSON values; `range` only if there is one."""
        return {name: value for name, value in super().as_dict().items() if value is not None}


@dataclass(frozen=True)
class NetworkFacts(JsonFields):
    """What follows from a file and its sizes; `flops` is None if a size inside the graph is not known.

    `half`: whether some of its numbers are float16, so that it computes in half precision whatever is asked for.
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


def read_file(path: Path) -> tuple[bytes, str]:
    """An ONNX file with its external data included, and the SHA-256 of the file and that data; nothing is executed.

    Raises `UsageError` if it cannot be read, or if external data is missing or outside the folder of the file.
    """
    from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

    with file_errors(f"read {path}"):
        content = path.read_bytes()
    model, folder = onnx_checks.read(content, path.name, UsageError), path.resolve().parent
    external = [tensor for tensor in onnx_checks.tensors(model.graph) if uses_external_data(tensor)]
    if not external:
        return content, cache.sha256(content)
    parts = {}
    for location in sorted({ExternalDataInfo(tensor).location for tensor in external}):
        place = (folder / location).resolve()
        if not place.is_relative_to(folder) or not place.is_file():
            where = "is missing" if place.is_relative_to(folder) else "is outside its folder, which is not allowed"
            raise UsageError(f"the external data {location!r} of {path} {where}")
        parts[location] = place.read_bytes()
    # ValueError for an offset beyond the file or above protobuf's 2 GiB, ValidationError
    with any_error(UsageError, f"the external data of {path} cannot be loaded"):
        load_external_data_for_model(model, str(folder))
        whole = model.SerializeToString()
    return whole, cache.sha256(b"".join((content, *parts.values())))


def checked(content: bytes, name: str) -> onnx.ModelProto:
    """The network, accepted by the ONNX checker, with local functions inlined; raises `UsageError`."""
    import onnx

    model = onnx_checks.read(content, name, UsageError)
    with any_error(UsageError, f"{name} is not valid ONNX"):  # the text names the operator
        onnx.checker.check_model(model)
    return model


def symbolic_shapes(model: onnx.ModelProto) -> dict[str, tuple[int | str, ...]]:
    """Input -> its sizes, a number or a symbol each; sizes without a symbol are `INPUT.AXIS`."""
    constants = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name not in constants:
            if not value.type.HasField("tensor_type"):
                raise UsageError(
                    f"the input {value.name} is not a tensor: sequences, maps and optionals are not supported"
                )
            dims = enumerate(value.type.tensor_type.shape.dim)
            found[value.name] = tuple(dim.dim_value or dim.dim_param or f"{value.name}.{axis}" for axis, dim in dims)
    return found


def read_symbols(path: Path) -> list[str]:
    """The symbolic sizes of an ONNX file; raises `UsageError` if it cannot be read."""
    shapes = symbolic_shapes(checked(read_file(path)[0], path.name)).values()
    return list(dict.fromkeys(size for shape in shapes for size in shape if isinstance(size, str)))


def _check_sizes(name: str, symbols: Mapping[str, Sequence[int | str]], sizes: Mapping[str, int]) -> None:
    known = list(dict.fromkeys(size for shape in symbols.values() for size in shape if isinstance(size, str)))
    for symbol, size in sizes.items():
        if symbol not in known:
            has = f"its symbolic sizes are {listed(known)}" if known else "all its sizes are fixed"
            raise UsageError(f"{name} has no symbolic size {symbol!r}: {has}")
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 2**31 - 1:
            raise UsageError(f"the size {symbol} must be a whole number of at least 1, not {size!r}")
    missing = [symbol for symbol in known if symbol not in sizes]
    if missing:
        needed = " ".join(f"--size {symbol}=N" for symbol in missing)
        raise UsageError(f"{name} has symbolic sizes: give {needed}")


# What follows from a file and its sizes


def network_facts(content: bytes, name: str, sizes: Mapping[str, int]) -> NetworkFacts:
    """What the content of an ONNX file says at these values of its symbolic sizes; raises `UsageError`."""
    model = checked(content, name)
    symbols = symbolic_shapes(model)
    _check_sizes(name, symbols, sizes)
    shapes = _sized(symbols, sizes)
    with any_error(UsageError, f"{name} is not valid at these sizes"):  # the text names the operator
        inferred = with_sizes(model, shapes)
    known: dict[str, Any] = known_sizes(inferred)
    inputs = []
    for value in model.graph.input:
        if value.name in shapes:
            kind = _numpy_type(value, name, "input")
            inputs.append(Tensor(value.name, kind, shapes[value.name], _range_of(model, value.name, kind, known)))
    outputs = [
        Tensor(value.name, _numpy_type(value, name, "output"), known.get(value.name, ()))
        for value in inferred.graph.output
    ]
    if any(None in tensor.shape for tensor in outputs):
        outputs = _measured_outputs(content, name, inputs, outputs)
    size = sum(math.prod(tensor.shape) * np.dtype(tensor.type).itemsize for tensor in (*inputs, *outputs))
    size, available = size + 3 * len(content), available_memory_bytes()
    if size > available:
        needs = f"at these sizes it needs at least {bytes_text(size)}, {bytes_text(available)} are available"
        raise UsageError(f"{name} does not fit into the memory: {needs}")
    stored = [tensor for tensor in onnx_checks.tensors(model.graph) if tensor.data_type in FLOATS.values()]
    every = list(onnx_checks.nodes(model.graph))
    fills = [a.t for node in every if node.op_type == "ConstantOfShape" for a in node.attribute]  # no parameters
    parameters = sum(math.prod(tensor.dims) for tensor in stored) - sum(
        fill.data_type in FLOATS.values() for fill in fills
    )
    layers, flops = _layers(model, known), [_flops(node, known) for node in every]
    return NetworkFacts(
        tuple(inputs),
        tuple(outputs),
        layers,
        parameters,
        None if None in flops or len(onnx_checks.graphs(model.graph)) > 1 else sum(filter(None, flops)),
        half=any(tensor.data_type == FLOATS["float16"] for tensor in stored),
        **_symbols_of_layers(model, symbols, sizes, layers),
    )


def _sized(symbols: Mapping[str, Sequence[int | str]], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Shapes with these values of their symbols."""
    return {
        value: tuple(sizes[size] if isinstance(size, str) else size for size in shape)
        for value, shape in symbols.items()
    }


def _numpy_type(value: onnx.ValueInfoProto, name: str, what: str) -> str:
    import onnx

    number = value.type.tensor_type.elem_type
    try:
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
    except KeyError:
        kind = np.dtype(object)
    if kind.kind not in "fiub" or kind.isbuiltin != 1:
        text = onnx_checks.type_name(number)
        raise UsageError(f"the {what} {value.name} of {name} has the type {text}, which is not supported")
    return kind.name


def _range_of(model: onnx.ModelProto, tensor: str, kind: str, known: Mapping) -> tuple[int, int] | None:
    """The whole numbers that an input may have: indices of a table, or the full length where lengths are expected."""
    if np.dtype(kind).kind not in "iu":
        return None
    for node in onnx_checks.nodes(model.graph):
        if node.op_type in RECURRENT and list(node.input[4:5]) == [tensor]:
            length = known[node.input[0]][1 if attributes(node).get("layout") else 0]
            return (length, length) if length else (1, 1)
        if node.op_type == "Gather" and node.input[1] == tensor:
            rows = known.get(node.input[0], (None,))[attributes(node).get("axis", 0)]
            return (0, rows - 1) if rows else (0, 0)
    return (0, 1)


def _layers(model: onnx.ModelProto, known: Mapping[str, Any]) -> tuple[RecurrentLayer, ...]:
    return tuple(filter(None, (_layer(node, known) for node in onnx_checks.nodes(model.graph))))


def _layer(node: onnx.NodeProto, known: Mapping[str, Any]) -> RecurrentLayer | None:
    """A recurrent operator with its sizes; None for other operators, and where the sizes are not known."""
    if node.op_type not in RECURRENT or node.domain not in ("", "ai.onnx"):
        return None
    x, w, r = (known.get(name, ()) for name in node.input[:3])
    if any(len(sizes or ()) != 3 for sizes in (x, w, r)):
        return None
    has, hidden, features = attributes(node), r[2], w[2]
    sequence, batch = (x[1], x[0]) if has.get("layout") else (x[0], x[1])
    if None in (hidden, features, sequence, batch):
        return None
    bias, name = any(node.input[3:4]), node.name or node.output[0]
    return RecurrentLayer(node.op_type, hidden, features, sequence, batch, has.get("direction", "forward"), name, bias)


def _flops(node: onnx.NodeProto, known: Mapping[str, Any]) -> int | None:
    """Multiplications and additions of matrix products and convolutions; 0 for other operators, None if not known."""
    if node.op_type in RECURRENT:
        layer = _layer(node, known)
        return layer and layer.input_flops + layer.recurrent_flops
    if node.op_type not in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
        return 0
    first, second, result = (known.get(name, (None,)) for name in (*node.input[:2], node.output[0]))
    transposed = node.op_type == "ConvTranspose"
    per_place = first if transposed else result
    if None in (*(second or [None]), *(per_place or [None])):
        return None
    if node.op_type in ("MatMul", "Gemm"):  # the second operand states the number of terms of each sum
        terms = second[1] if attributes(node).get("transB") else second[-2] if len(second) > 1 else second[0]
        return 2 * math.prod(result) * terms
    # A convolution multiplies each weight of one output channel (of one input channel, if transposed) per position.
    return 2 * math.prod(per_place) * math.prod(second[1:])


def _symbols_of_layers(
    model: onnx.ModelProto,
    symbols: Mapping[str, Sequence[int | str]],
    sizes: Mapping[str, int],
    layers: Sequence[RecurrentLayer],
) -> dict[str, str]:
    """Which symbol is the sequence, and which the batch, of the first recurrent operator: those that change it."""
    found = {}
    for symbol in sizes if layers else ():
        larger = {**sizes, symbol: 2 * sizes[symbol]}
        try:
            known = known_sizes(with_sizes(model, _sized(symbols, larger)))
        except Exception:  # not every size is possible: an addition of two inputs, for example
            continue
        other = _layers(model, known)[0]
        if other.sequence != layers[0].sequence:
            found["time_symbol"] = symbol
        elif other.batch != layers[0].batch:
            found["batch_symbol"] = symbol
    return found


def _measured_outputs(content: bytes, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs with the sizes that ONNX Runtime returns, for a graph whose sizes cannot be derived."""
    generator = np.random.default_rng(0)
    with any_error(UsageError, f"the sizes of the outputs of {name} cannot be determined"):
        (results,) = run_onnxruntime(content, [{tensor.name: random_array(tensor, generator) for tensor in inputs}])
    return [replace(tensor, shape=results[tensor.name].shape) for tensor in outputs]


def run_onnxruntime(
    content: bytes, sets: Iterable[Mapping[str, np.ndarray]], states: Sequence[State] = ()
) -> list[dict[str, np.ndarray]]:
    """The outputs of ONNX Runtime on the CPU for sets of inputs, one after another; `states` are carried by hand.

    Raises the package's errors.
    """
    import onnx
    import onnxruntime

    model = onnx.load_from_string(content)
    del model.graph.value_info[:]  # PyTorch's exporter fixes symbolic sizes there, and ONNX Runtime relies on it
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4  # errors are also raised as exceptions
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return in_sequence(lambda inputs: dict(zip(names, session.run(names, inputs), strict=True)), sets, states)


def in_sequence(
    call: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]],
    sets: Iterable[Mapping[str, np.ndarray]],
    states: Sequence[State],
) -> list[dict[str, np.ndarray]]:
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
