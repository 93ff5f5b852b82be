"""Networks of users as workloads: ONNX files of any exporter, and PyTorch modules, which are exported first.

The file is copied into the cache under the SHA-256 of its content, with external data included, so that all processes
of a recording read the same network, whatever happens to the file meanwhile.
"""

from __future__ import annotations

import inspect
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lstm_trt.config.errors import ExportFailed, LabError, UsageError, first_line
from lstm_trt.config.format import bytes_text, listed
from lstm_trt.config.workload import RecurrentLayer, State, Workload
from lstm_trt.export import onnx_checks
from lstm_trt.export.evaluate import RECURRENT
from lstm_trt.export.to_onnx import export_module, sizes_of, with_sizes
from lstm_trt.machine.linux import available_memory_bytes
from lstm_trt.store import cache

if TYPE_CHECKING:
    import onnx
    import torch

#: Endings or beginnings by which exporters tell a carried state's input from its output.
STATE_NAMES = (
    (r"_?0$", ("n", "_n", "N", "_out", "_next")),
    (r"_?in$", ("out", "_out")),
    (r"^past_", ("present_",)),
    (r"^prev_?", ("next_", "new_", "")),
    (r"^initial_?", ("final_", "Y_", "")),
    (r"$", ("_out", "_next", "_new", "n", "_n", "_1")),
)


@dataclass(frozen=True)
class Tensor:
    """An input or output with its sizes; `type` is numpy's name, `range` the allowed integers of an input."""

    name: str
    type: str
    shape: tuple[int, ...]
    range: tuple[int, int] | None = None

    def as_dict(self) -> dict:
        """JSON values."""
        plain = {"name": self.name, "type": self.type, "shape": list(self.shape)}
        return plain | ({"range": list(self.range)} if self.range else {})

    @classmethod
    def from_dict(cls, plain: Mapping) -> Tensor:
        """Inverse of `as_dict`."""
        bounds = plain.get("range")
        return cls(plain["name"], plain["type"], tuple(plain["shape"]), tuple(bounds) if bounds else None)


@dataclass(frozen=True)
class NetworkFacts:
    """What follows from a file and its sizes; `flops` is None if a size inside the graph is not known.

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

    def as_dict(self) -> dict:
        """JSON values."""
        return {
            **vars(self),
            "inputs": [tensor.as_dict() for tensor in self.inputs],
            "outputs": [tensor.as_dict() for tensor in self.outputs],
            "layers": [dict(vars(layer)) for layer in self.layers],
        }

    @classmethod
    def from_dict(cls, plain: Mapping) -> NetworkFacts:
        """Inverse of `as_dict`."""
        tensors = {name: tuple(map(Tensor.from_dict, plain[name])) for name in ("inputs", "outputs")}
        layers = tuple(RecurrentLayer(**layer) for layer in plain["layers"])
        return cls(**{**plain, **tensors, "layers": layers})


@dataclass(frozen=True, init=False)
class OnnxNetwork(Workload):
    """An ONNX file with fixed sizes.

    `OnnxNetwork("model.onnx", sizes={"time": 64, "batch": 1})` reads and checks a file. `sizes`: values of its symbolic
    sizes; a size without a symbol is "INPUT.AXIS", as `x.0`. `states`: input -> output of the states that the mode
    "stream" carries (default: those that are recognized by their names). `inputs`: an .npz file with inputs by name;
    others are random numbers of their type (standard normal, or whole numbers in the range that the graph allows,
    where an input for sequence lengths is the full length). Raises `UsageError` for an invalid file, size, state or
    input.
    """

    KIND = "onnx-network"

    name: str = field(compare=False)
    sha256: str
    sizes: tuple[tuple[str, int], ...]
    carried: tuple[tuple[str, str], ...]
    inputs_sha256: str | None
    facts: NetworkFacts = field(compare=False, repr=False)

    def __init__(
        self,
        path: str | Path,
        *,
        sizes: Mapping[str, int] | None = None,
        states: Mapping[str, str] | None = None,
        inputs: str | Path | None = None,
    ) -> None:
        path = Path(path)
        content, sha256 = read_file(path)
        self._read(content, sha256, path.stem, sizes or {}, states, inputs)

    def _read(
        self,
        content: bytes,
        sha256: str,
        name: str,
        sizes: Mapping[str, int],
        states: Mapping[str, str] | None,
        inputs: str | Path | None,
    ) -> None:
        model = checked(content, name)
        symbols, shapes = symbolic_shapes(model), {}
        _check_sizes(name, symbols, sizes)
        for value in symbols:
            shapes[value] = tuple(sizes[size] if isinstance(size, str) else size for size in symbols[value])
        facts = _facts(model, content, name, shapes)
        facts = replace(facts, **_symbols_of_layers(model, symbols, sizes, facts.layers))
        carried = tuple(
            sorted((_found_states(facts) if states is None else _checked_states(name, facts, states)).items())
        )
        self._set(name, sha256, tuple(sorted(sizes.items())), carried, None, facts)
        if inputs is not None:
            object.__setattr__(self, "inputs_sha256", _keep_inputs(self, Path(inputs)))
        cache.fetch("onnx", sha256, ".onnx", lambda: content)

    def _set(self, *values: object) -> None:
        names = ("name", "sha256", "sizes", "carried", "inputs_sha256", "facts")
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def of_content(
        cls,
        content: bytes,
        name: str,
        sizes: Mapping[str, int] | None = None,
        states: Mapping[str, str] | None = None,
        inputs: str | Path | None = None,
    ) -> OnnxNetwork:
        """The network in the content of an ONNX file without external data."""
        network = object.__new__(cls)
        network._read(content, cache.sha256(content), name, sizes or {}, states, inputs)
        return network

    @property
    def path(self) -> Path:
        """The file in the cache, with symbolic sizes; raises `UsageError` if it is not there."""
        stored = cache.stored("onnx", self.sha256, ".onnx")
        if stored is None:
            raise UsageError(f"{self.name}.onnx is no longer in the cache: give the file again, with --onnx")
        return stored[0]

    @property
    def modes(self) -> tuple[str, ...]:
        return ("forward", "stream") if self.carried else ("forward",)

    @property
    def label(self) -> str:
        sizes = "".join(f"-{name}{size}" for name, size in self.sizes)
        inputs = f"-inputs-{self.inputs_sha256[:8]}" if self.inputs_sha256 else ""
        return re.sub(r"[^\w.@-]", "_", f"{self.name}@{self.sha256[:8]}{sizes}{inputs}")

    @property
    def identity(self) -> dict:
        plain = {"kind": self.KIND, "sha256": self.sha256, "sizes": dict(self.sizes), "states": dict(self.carried)}
        return plain | ({"inputs_sha256": self.inputs_sha256} if self.inputs_sha256 else {})

    def as_dict(self) -> dict:
        return {**self.identity, "name": self.name, "facts": self.facts.as_dict()}

    @classmethod
    def from_dict(cls, plain: Mapping) -> OnnxNetwork:
        network = object.__new__(cls)
        try:
            pairs = [tuple(sorted(plain[name].items())) for name in ("sizes", "states")]
            facts = NetworkFacts.from_dict(plain["facts"])
            network._set(plain["name"], plain["sha256"], *pairs, plain.get("inputs_sha256"), facts)
        except (AttributeError, KeyError, TypeError) as error:
            raise UsageError(f"invalid description of an ONNX network: {error}") from None
        return network

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        return {tensor.name: tensor.shape for tensor in self.facts.inputs}

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        return {tensor.name: tensor.shape for tensor in self.facts.outputs}

    @property
    def types(self) -> dict[str, str]:
        tensors = (*self.facts.inputs, *self.facts.outputs)
        return {tensor.name: tensor.type for tensor in tensors if tensor.type != "float32"}

    @property
    def states(self) -> tuple[State, ...]:
        shapes = self.input_shapes
        return tuple(State(before, after, shapes[before]) for before, after in self.carried)

    @property
    def recurrent_layers(self) -> tuple[RecurrentLayer, ...]:
        return self.facts.layers

    @property
    def parameters(self) -> int:
        return self.facts.parameters

    @property
    def flops(self) -> int | None:
        return self.facts.flops

    @property
    def axes(self) -> dict[str, int | None]:
        """Sizes of the recurrent operators, as far as they have the same; sequence, batch and features of the first."""
        layers = self.facts.layers
        found = dict.fromkeys(super().axes)
        if layers:
            first, hidden = layers[0], {layer.hidden for layer in layers}
            found |= {"layers": len(layers), "hidden": hidden.pop() if len(hidden) == 1 else None}
            found |= {name: getattr(first, name) for name in ("sequence", "batch", "features")}
            found["directions"] = max(layer.directions for layer in layers)
        return found

    @property
    def label_fields(self) -> dict[str, object]:
        sizes = {f"size {name}": size for name, size in self.sizes}
        inputs = {"inputs": self.inputs_sha256[:8]} if self.inputs_sha256 else {}
        return {"kind": self.KIND, "workload": f"{self.name}@{self.sha256[:8]}", **sizes, **inputs}

    def group_fields(self, mode: str) -> dict[str, object]:
        """The network and its mode, and the sizes that are no axes."""
        on_axes = (self.facts.time_symbol, self.facts.batch_symbol)
        rest = "".join(f"-{name}{size}" for name, size in self.sizes if name not in on_axes)
        inputs = f"-inputs-{self.inputs_sha256[:8]}" if self.inputs_sha256 else ""
        return {"workload": f"{self.name}@{self.sha256[:8]}{rest}{inputs}", "mode": mode}

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """Flags of `record`; of the file and of the inputs only the names are known."""
        found = {"--onnx": (f"{self.name}.onnx",)}
        found |= {"--size": tuple(f"{name}={size}" for name, size in self.sizes)} if self.sizes else {}
        states = tuple(f"{before}={after}" for before, after in self.carried)
        found |= (
            {"--state": states}
            if self.carried and self.carried != tuple(sorted(_found_states(self.facts).items()))
            else {}
        )
        return found | ({"--inputs": (f"{self.inputs_sha256[:8]}.npz",)} if self.inputs_sha256 else {})

    def check_mode(self, mode: str) -> None:
        if mode == "stream" and not self.carried:
            names = [listed([tensor.name for tensor in side]) for side in (self.facts.inputs, self.facts.outputs)]
            raise UsageError(
                f"{self.name} has no states that could be carried: name them with --state INPUT=OUTPUT"
                f" (inputs: {names[0]}; outputs: {names[1]})"
            )
        super().check_mode(mode)
        backward = [layer for layer in self.facts.layers if layer.direction != "forward"]
        if mode == "stream" and backward:
            raise UsageError(
                f"{self.name} cannot be used in the mode stream: its operator {backward[0].name} is"
                f" {backward[0].direction} and reads the whole sequence before its first output"
            )

    def make_inputs(self, seed: int | Sequence[int], mode: str = "forward") -> dict[str, np.ndarray]:
        """Inputs by name: the user's own, and random numbers for the others; states only if they are not carried."""
        generator = np.random.default_rng(seed)
        given = {}
        if self.inputs_sha256:
            stored = cache.stored("inputs", self.inputs_sha256, ".npz")
            if stored is None:
                raise UsageError(
                    f"the inputs of {self.name} are no longer in the cache: give the file again, with --inputs"
                )
            with np.load(stored[0], allow_pickle=False) as arrays:
                given = {name: arrays[name] for name in arrays.files}
        carried = {state.input for state in self.states} if mode == "stream" else ()
        wanted = [tensor for tensor in self.facts.inputs if tensor.name not in carried]
        return {tensor.name: given.get(tensor.name, _random(tensor, generator)) for tensor in wanted}


def TorchNetwork(
    module: torch.nn.Module,
    example_inputs: torch.Tensor | Sequence[torch.Tensor],
    *,
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
    sizes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    inputs: str | Path | None = None,
) -> OnnxNetwork:
    """A PyTorch module in evaluation mode as an `OnnxNetwork`: exported, with PyTorch's outputs to check against.

    Names of inputs are by default those of the parameters of `forward`, those of outputs `output`, or `output0`,
    `output1` and so on (tuples in the order of their tensors). `dynamic_axes` makes sizes symbolic (input or output ->
    axis -> symbol), and `sizes` gives their values (default: those of the example). Raises `ExportFailed` if PyTorch
    cannot export the module, `UsageError` as `OnnxNetwork` does.
    """
    import torch
    from torch.utils import _pytree

    example = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    if not all(isinstance(tensor, torch.Tensor) for tensor in example):
        raise UsageError(
            "example_inputs must be a tensor or a sequence of tensors, in the order of the module's parameters"
        )
    name = name or type(module).__name__
    parameters = [text for text in inspect.signature(module.forward).parameters][: len(example)]
    named = list(input_names or parameters)
    training = module.training
    module.eval()
    try:
        probe = tuple(torch.randn_like(tensor) if tensor.is_floating_point() else tensor for tensor in example)
        with torch.inference_mode():
            results = [tensor for tensor in _pytree.tree_leaves(module(*probe)) if isinstance(tensor, torch.Tensor)]
        several = [f"output{index}" for index in range(len(results))] if len(results) > 1 else ["output"]
        answers = list(output_names or several)
        for what, names, needed in (("input", named, len(example)), ("output", answers, len(results))):
            if len(names) != needed:
                raise UsageError(f"{name} has {needed} {what}s, but {len(names)} names were given")
        content = export_module(module, example, name, None, dynamic_axes, named, answers)
    except LabError:
        raise
    except Exception as error:
        raise ExportFailed(f"{name} cannot be run with the example inputs: {first_line(error)}") from error
    finally:
        module.train(training)
    own = {
        symbol: example[named.index(tensor)].shape[axis]
        for tensor, axes in (dynamic_axes or {}).items()
        if tensor in named
        for axis, symbol in axes.items()
    }
    network = OnnxNetwork.of_content(content, name, {**own, **(sizes or {})}, states, inputs)
    arrays = {f"input/{key}": tensor.numpy() for key, tensor in zip(named, probe, strict=True)}
    arrays |= {f"output/{key}": tensor.float().numpy() for key, tensor in zip(answers, results, strict=True)}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    cache.keep("onnx", network.sha256, ".torch.npz", buffer.getvalue())
    return network


def torch_answers(network: OnnxNetwork) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None:
    """Inputs and PyTorch's outputs of a `TorchNetwork` at the sizes of its example; None for other networks."""
    stored = cache.stored("onnx", network.sha256, ".torch.npz")
    if stored is None:
        return None
    with np.load(stored[0], allow_pickle=False) as arrays:
        sides = [
            {name.partition("/")[2]: arrays[name] for name in arrays.files if name.startswith(side)}
            for side in ("input/", "output/")
        ]
    return sides[0], sides[1]


# Reading files


def read_file(path: Path) -> tuple[bytes, str]:
    """An ONNX file with its external data included, and the SHA-256 of the file and that data; nothing is executed.

    Raises `UsageError` if it cannot be read, or if external data is missing or outside the folder of the file.
    """
    from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    model, folder = _parsed(content, path.name), path.resolve().parent
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
    try:
        load_external_data_for_model(model, str(folder))
        whole = model.SerializeToString()
    except Exception as error:  # ValueError for an offset beyond the file or above protobuf's 2 GiB, ValidationError
        raise UsageError(f"the external data of {path} cannot be loaded: {first_line(error)}") from None
    return whole, cache.sha256(b"".join((content, *parts.values())))


def _parsed(content: bytes, name: str) -> onnx.ModelProto:
    try:
        return onnx_checks.read(content, name)
    except ExportFailed as error:
        raise UsageError(str(error)) from None


def checked(content: bytes, name: str) -> onnx.ModelProto:
    """The network, accepted by the ONNX checker, with local functions inlined; raises `UsageError`."""
    import onnx

    model = _parsed(content, name)
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # ValidationError; its text names the operator
        raise UsageError(f"{name} is not valid ONNX: {first_line(error)}") from None
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


def _found_states(facts: NetworkFacts) -> dict[str, str]:
    """Input -> output of the states that are recognized by their names and have the same shape and type."""
    outputs = {tensor.name: tensor for tensor in facts.outputs}
    found: dict[str, str] = {}
    for tensor in facts.inputs:
        names = [
            re.sub(old, new, tensor.name) for old, news in STATE_NAMES for new in news if re.search(old, tensor.name)
        ]
        for name in names:
            other = outputs.get(name)
            if other and name not in found.values() and (other.shape, other.type) == (tensor.shape, tensor.type):
                found[tensor.name] = name
                break
    return found


def _checked_states(name: str, facts: NetworkFacts, states: Mapping[str, str]) -> dict[str, str]:
    sides = ({tensor.name: tensor for tensor in facts.inputs}, {tensor.name: tensor for tensor in facts.outputs})
    for before, after in states.items():
        for what, tensor, side in (("input", before, sides[0]), ("output", after, sides[1])):
            if tensor not in side:
                raise UsageError(f"{name} has no {what} {tensor!r}: its {what}s are {listed(list(side))}")
        one, other = sides[0][before], sides[1][after]
        if (one.shape, one.type) != (other.shape, other.type):
            texts = [f"{tensor.name} is {tensor.type} {list(tensor.shape)}" for tensor in (one, other)]
            raise UsageError(f"a state has the same type and shape on both sides, but {' and '.join(texts)}")
    if len(set(states.values())) < len(states):
        raise UsageError("two states have the same output: each needs its own")
    return dict(states)


# What follows from a file and its sizes


def _facts(model: onnx.ModelProto, content: bytes, name: str, shapes: Mapping[str, tuple[int, ...]]) -> NetworkFacts:
    import onnx

    inferred = _inferred(model, name, shapes)
    known = dict(_tensors_of(inferred))
    inputs = []
    for value in model.graph.input:
        if value.name in shapes:
            kind = _numpy_type(value, name, "input")
            inputs.append(Tensor(value.name, kind, shapes[value.name], _range_of(model, value.name, kind, known)))
    outputs = [
        Tensor(value.name, _numpy_type(value, name, "output"), known[value.name]) for value in inferred.graph.output
    ]
    if any(None in tensor.shape for tensor in outputs):
        outputs = _measured_outputs(content, name, tuple(inputs), tuple(outputs))
    size = sum(math.prod(tensor.shape) * np.dtype(tensor.type).itemsize for tensor in (*inputs, *outputs)) + 3 * len(
        content
    )
    if size > available_memory_bytes():
        needs = f"at these sizes it needs at least {bytes_text(size)}"
        raise UsageError(
            f"{name} does not fit into the memory: {needs}, {bytes_text(available_memory_bytes())} are available"
        )
    stored = [tensor for tensor in onnx_checks.tensors(model.graph) if _is_float(tensor.data_type)]
    every = list(onnx_checks.nodes(model.graph))
    fills = [a.t for node in every if node.op_type == "ConstantOfShape" for a in node.attribute]  # no parameters
    parameters = sum(math.prod(tensor.dims) for tensor in stored) - sum(_is_float(fill.data_type) for fill in fills)
    layers = tuple(layer for node in every if (layer := _layer(node, known)))
    flops = [_flops(node, known) for node in every]
    recurrent = sum(layer.input_flops + layer.recurrent_flops for layer in layers)
    incomplete = None in flops or len(layers) < sum(node.op_type in RECURRENT for node in every)
    inner = any(attribute.type == onnx.AttributeProto.GRAPH for node in every for attribute in node.attribute)
    total = None if incomplete or inner else sum(flops) + recurrent
    return NetworkFacts(tuple(inputs), tuple(outputs), layers, parameters, total)


def _inferred(model: onnx.ModelProto, name: str, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    try:
        return with_sizes(model, shapes)
    except Exception as error:  # InferenceError, ValidationError: the text names the operator
        raise UsageError(f"{name} is not valid at these sizes: {first_line(error)}") from None


def _tensors_of(model: onnx.ModelProto) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        yield value.name, sizes_of(value)
    for tensor in model.graph.initializer:
        yield tensor.name, tuple(tensor.dims)


def _numpy_type(value: onnx.ValueInfoProto, name: str, what: str) -> str:
    import onnx

    number = value.type.tensor_type.elem_type
    try:
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
    except KeyError:
        kind = np.dtype(object)
    if kind.kind not in "fiub" or kind.isbuiltin != 1:
        text = onnx.TensorProto.DataType.Name(number).lower()
        raise UsageError(f"the {what} {value.name} of {name} has the type {text}, which is not supported")
    return kind.name


def _is_float(number: int) -> bool:
    import onnx

    kinds = onnx.TensorProto
    return number in (kinds.FLOAT, kinds.FLOAT16, kinds.BFLOAT16, kinds.DOUBLE)


def _range_of(model: onnx.ModelProto, tensor: str, kind: str, known: Mapping) -> tuple[int, int] | None:
    """The whole numbers that an input may have: indices of a table, or the full length where lengths are expected."""
    if np.dtype(kind).kind not in "iu":
        return None
    for node in onnx_checks.nodes(model.graph):
        if node.op_type in RECURRENT and list(node.input[4:5]) == [tensor]:
            length = known[node.input[0]][1 if _attributes(node).get("layout") else 0]
            return (length, length) if length else (1, 1)
        if node.op_type == "Gather" and node.input[1] == tensor:
            rows = known.get(node.input[0], (None,))[_attributes(node).get("axis", 0)]
            return (0, rows - 1) if rows else (0, 0)
    return (0, 1)


def _attributes(node: onnx.NodeProto) -> dict:
    import onnx

    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def _layer(node: onnx.NodeProto, known: Mapping[str, tuple[int | None, ...]]) -> RecurrentLayer | None:
    """A recurrent operator with its sizes; None for other operators, and where the sizes are not known."""
    if node.op_type not in RECURRENT or node.domain not in ("", "ai.onnx"):
        return None
    x, r, attributes = known.get(node.input[0]), known.get(node.input[2]), _attributes(node)
    if x is None or r is None or len(x) != 3 or len(r) != 3 or None in (*x, r[2]):
        return None
    sequence, batch = (x[1], x[0]) if attributes.get("layout") else (x[0], x[1])
    direction = attributes.get("direction", b"forward").decode()
    bias = len(node.input) > 3 and bool(node.input[3])
    return RecurrentLayer(node.op_type, r[2], x[2], sequence, batch, direction, node.name or node.output[0], bias)


def _flops(node: onnx.NodeProto, known: Mapping[str, tuple[int | None, ...]]) -> int | None:
    """Multiplications and additions of a matrix product or convolution; 0 for other operators, None if not known."""
    if node.op_type not in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
        return 0
    sizes = [known.get(name) for name in (node.input[0], node.input[1], node.output[0])]
    if any(size is None or None in size for size in sizes):
        return None
    first, second, result = sizes
    if node.op_type == "MatMul":
        return 2 * math.prod(result) * first[-1]
    if node.op_type == "Gemm":
        return 2 * math.prod(result) * first[0 if _attributes(node).get("transA") else 1]
    # A convolution multiplies each weight of one output channel (of one input channel, if transposed) per position.
    return 2 * math.prod(result if node.op_type == "Conv" else first) * math.prod(second[1:])


def _symbols_of_layers(
    model: onnx.ModelProto,
    symbols: Mapping[str, Sequence[int | str]],
    sizes: Mapping[str, int],
    layers: Sequence[RecurrentLayer],
) -> dict[str, str | None]:
    """Which symbol is the sequence, and which the batch, of the first recurrent operator: those that change it."""
    found: dict[str, str | None] = {"time_symbol": None, "batch_symbol": None}
    for symbol in sizes if layers else ():
        larger = {**sizes, symbol: 2 * sizes[symbol]}
        shapes = {value: tuple(larger.get(size, size) for size in shape) for value, shape in symbols.items()}
        try:
            known = dict(_tensors_of(with_sizes(model, shapes)))
        except Exception:  # not every size is possible: an addition of two inputs, for example
            continue
        node = next(node for node in onnx_checks.nodes(model.graph) if _layer(node, known))
        other = _layer(node, known)
        if other.sequence != layers[0].sequence:
            found["time_symbol"] = symbol
        elif other.batch != layers[0].batch:
            found["batch_symbol"] = symbol
    return found


def _measured_outputs(
    content: bytes, name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> list[Tensor]:
    """The outputs with the sizes that ONNX Runtime returns, for a graph whose sizes cannot be derived."""
    generator = np.random.default_rng(0)
    try:
        (results,) = run_onnxruntime(content, [{tensor.name: _random(tensor, generator) for tensor in inputs}])
    except Exception as error:
        raise UsageError(f"the sizes of the outputs of {name} cannot be determined: {first_line(error)}") from None
    return [replace(tensor, shape=results[tensor.name].shape) for tensor in outputs]


def run_onnxruntime(
    content: bytes, sets: Iterable[Mapping[str, np.ndarray]], states: Sequence[State] = ()
) -> list[dict[str, np.ndarray]]:
    """The outputs of ONNX Runtime on the CPU for sets of inputs, one after another; `states` are carried by hand.

    Raises the package's errors.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4  # errors are also raised as exceptions
    session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    types = {value.name: value.type for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    half = {"tensor(float16)": "float16", "tensor(double)": "float64"}
    carried = {state.input: np.zeros(state.shape, half.get(types[state.input], "float32")) for state in states}
    found = []
    for inputs in sets:
        outputs = dict(zip(names, session.run(names, {**inputs, **carried}), strict=True))
        carried = {state.input: outputs.pop(state.output) for state in states}
        found.append(outputs)
    return found


# Inputs


def _random(tensor: Tensor, generator: np.random.Generator) -> np.ndarray:
    if np.dtype(tensor.type).kind == "f":
        return generator.standard_normal(tensor.shape).astype(tensor.type)
    low, high = tensor.range or (0, 1)
    return generator.integers(low, high, tensor.shape, endpoint=True).astype(tensor.type)


def _keep_inputs(network: OnnxNetwork, path: Path) -> str:
    """Check an .npz file of inputs and copy it into the cache; returns its SHA-256."""
    try:
        content = path.read_bytes()
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            given = {name: arrays[name] for name in arrays.files}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # BadZipFile, ValueError (pickled objects are not loaded), TypeError for a single array
        raise UsageError(
            f"{path} is not an .npz file of arrays, as numpy.savez writes it: {first_line(error)}"
        ) from None
    tensors = {tensor.name: tensor for tensor in network.facts.inputs}
    for name, array in given.items():
        if name not in tensors:
            raise UsageError(
                f"{path} has an array {name!r}, but the inputs of {network.name} are {listed(list(tensors))}"
            )
        tensor = tensors[name]
        if array.shape != tensor.shape or array.dtype.name != tensor.type:
            raise UsageError(
                f"{name} in {path} is {array.dtype.name} {list(array.shape)}, but {network.name} needs"
                f" {tensor.type} {list(tensor.shape)}"
            )
    return cache.fetch("inputs", cache.sha256(content), ".npz", lambda: content)[1]
