"""Networks of users as workloads: ONNX files of any exporter, and PyTorch modules, which are exported first.

The file is copied into the cache under the SHA-256 of its content, with external data included, so that all processes
of a recording read the same network, whatever happens to the file meanwhile.
"""

from __future__ import annotations

import inspect
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lstm_onnx.constants import fix_inputs, resolved
from lstm_onnx.input_values import LENGTHS
from lstm_onnx.limits import time_limit
from lstm_onnx.read_onnx import (
    NetworkFacts,
    Tensor,
    deciding,
    from_inputs,
    network_facts,
    random_array,
    read_file,
    read_shapes,
)
from lstm_onnx.torch_export import exported
from lstm_trt.config.errors import ExportFailed, UsageError, any_error, file_errors, nearest
from lstm_trt.config.fields import as_list
from lstm_trt.config.format import listed
from lstm_trt.config.libraries import onnx, require, torch
from lstm_trt.config.workload import State, Workload
from lstm_trt.export import onnx_checks
from lstm_trt.export.sizes import has_branches, write_sizes
from lstm_trt.store import cache
from lstm_trt.store.files import refuse_named_pipe

#: Endings or beginnings by which exporters tell a carried state's input from its output.
STATE_NAMES = (
    (r"_?0$", ("n", "_n", "N", "_out", "_next")),
    (r"_?in$", ("out", "_out")),
    (r"^past_", ("present_",)),
    (r"^prev_?", ("next_", "new_", "")),
    (r"^initial_?", ("final_", "Y_", "")),
    (r"^", ("new_", "next_", "updated_")),
    (r"$", ("_out", "out", "_next", "_new", "n", "_n", "N", "_N", "_1")),
)


@dataclass(frozen=True, init=False)
class OnnxNetwork(Workload):
    """An ONNX file with fixed sizes.

    `OnnxNetwork("model.onnx", sizes={"time": 64, "batch": 1})` reads and checks a file, or the content of one without
    external data; `name` is by default that of the file. `sizes`: values of its symbolic
    sizes; a size without a symbol is "INPUT.AXIS", as `x.0`. `constants`: numbers of inputs that are made constants of
    the network, such as the sampling rate of a speech model, so that only one branch of an If is computed. `states`:
    input -> output of the states that the mode "stream" carries (default: those that are recognized by their names).
    `inputs`: an .npz file with inputs by name, from which symbolic sizes and constants follow (`from_inputs`); others
    are random numbers of their type (standard normal, or whole numbers in the range that the graph allows, where an
    input for sequence lengths is the full length). Raises `UsageError` for an invalid file, size, state or input.
    """

    KIND = "onnx-network"

    name: str = field(compare=False)
    sha256: str
    sizes: tuple[tuple[str, int], ...]
    carried: tuple[tuple[str, str], ...]
    inputs_sha256: str | None
    fixed: tuple[tuple[str, float], ...]
    facts: NetworkFacts = field(compare=False, repr=False)

    recurrent_layers: ClassVar[Any] = property(attrgetter("facts.layers"))
    half: ClassVar[Any] = property(attrgetter("facts.half"))
    parameters: ClassVar[Any] = property(attrgetter("facts.parameters"))
    flops: ClassVar[Any] = property(attrgetter("facts.flops"))
    least_flops = property(lambda self: self.facts.least_flops or self.flops or 0)
    constants = property(lambda self: dict(self.fixed))
    lengths = property(lambda self: {each.name: each.range for each in self.facts.inputs if each.meaning == LENGTHS})

    @time_limit()
    def __init__(
        self,
        path: str | Path | bytes,
        *,
        name: str | None = None,
        sizes: Mapping[str, int] | None = None,
        states: Mapping[str, str] | None = None,
        inputs: str | Path | None = None,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        if isinstance(path, bytes):
            content, sha256, name = path, cache.sha256(path), name or "network"
        else:
            (content, sha256), name = read_file(Path(path)), name or Path(path).stem
        given = {} if inputs is None else _given(Path(inputs))
        own_sizes, own_constants = from_inputs(content, name, given)
        sizes, constants = {**own_sizes, **(sizes or {})}, {**own_constants, **(constants or {})}
        facts = network_facts(content, name, sizes, constants, given)
        carried = _found_states(facts) if states is None else _checked_states(name, facts, states)
        inputs_sha256 = None if inputs is None else _keep_inputs(name, facts, constants, Path(inputs))
        self._set(name, sha256, sizes, carried, constants, inputs_sha256=inputs_sha256, facts=facts)
        cache.fetch("onnx", sha256, ".onnx", lambda: content)

    def _set(self, name: str, sha256: str, sizes: Mapping, carried: Mapping, fixed: Mapping, **others: Any) -> None:
        pairs = {"sizes": sizes, "carried": carried, "fixed": fixed}
        ordered = {key: tuple(sorted(values.items())) for key, values in pairs.items()}
        vars(self).update(name=name, sha256=sha256, **ordered, **others)

    @property
    def path(self) -> Path:
        """The file in the cache, with symbolic sizes; raises `UsageError` if it is not there."""
        return _cached("onnx", self.sha256, ".onnx", f"{self.name}.onnx is", "--onnx")

    def simplified(self, model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
        """The graph with its constants, and of an If that these or its sizes decide only the branch that is taken:
        runtimes reject a graph for the other one."""
        fix_inputs(model, self.constants)
        if not has_branches(model):
            return model
        write_sizes((*model.graph.input, *model.graph.output), shapes)
        return resolved(model)

    @property
    def modes(self) -> tuple[str, ...]:
        return ("forward",) if self._why_no_stream() else ("forward", "stream")

    def _named(self, without: Sequence[str | None] = ()) -> str:
        """Name, hashes, constants, and sizes except those in `without`."""
        sizes = "".join(f"-{name}{size}" for name, size in (*self.sizes, *self.fixed) if name not in without)
        sizes += "".join(f"-{name}{text}" for name, text in self.length_texts(without).items())
        inputs = f"-inputs-{self.inputs_sha256[:8]}" if self.inputs_sha256 else ""
        return f"{self.name}@{self.sha256[:8]}{sizes}{inputs}"

    def length_texts(self, without: Sequence[str | None] = ()) -> dict[str, str]:
        """Input -> the lengths of its sequences; "-full" for whole sequences of a size that is left out."""
        time, texts = self.facts.time_symbol, {}
        whole = {self.axes["sequence"], dict(self.sizes).get(time)} if time and time in without else set()
        for name, (low, high) in self.lengths.items():
            texts[name] = f"{low}to{high}" if low < high else "-full" if low in whole else str(low)
        return texts

    @property
    def label(self) -> str:
        return re.sub(r"[^\w.@-]", "_", self._named())

    @property
    def identity(self) -> dict:
        plain = {"kind": self.KIND, "sha256": self.sha256, "sizes": dict(self.sizes), "states": dict(self.carried)}
        lengths = {name: list(range_) for name, range_ in self.lengths.items()}
        added = {"inputs_sha256": self.inputs_sha256, "constants": self.constants, "lengths": lengths}
        return plain | {name: value for name, value in added.items() if value}

    def as_dict(self) -> dict:
        return {**self.identity, "name": self.name, "facts": self.facts.as_dict()}

    @classmethod
    def from_dict(cls, plain: Mapping) -> OnnxNetwork:
        network = object.__new__(cls)
        with any_error(UsageError, "invalid description of an ONNX network", str):
            others = {"facts": NetworkFacts.from_dict(plain["facts"]), "inputs_sha256": plain.get("inputs_sha256")}
            pairs = (plain["sizes"], plain["states"], plain.get("constants", {}))
            network._set(plain["name"], plain["sha256"], *pairs, **others)
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
    def warnings(self) -> tuple[str, ...]:
        """What is wrong in the file, but does not prevent that it runs."""
        wrong = [tensor for tensor in self.facts.outputs if tensor.declared is not None]
        states = f"{self.name}.onnx states another number of axes or other sizes for its output"
        warnings = [f"{states} {tensor.name} than it has: {list(tensor.shape)} is used" for tensor in wrong]
        if self.likely_states:
            pairs = [*self.carried, *self.likely_states.items()]
            flags = " ".join(f"--state {before}={after}" for before, after in pairs)
            inputs = f"{self.name}.onnx may have a state: an output has the shape and type of its input"
            warnings.append(f"{inputs} {' and of '.join(self.likely_states)}; if so, carry it with {flags}")
        return tuple(warnings)

    @property
    def likely_states(self) -> dict[str, str]:
        """Input -> an output of its shape and type, of those that no name tells; empty if the user has named states.

        Not all inputs, nor all outputs, can be states: the first are data.
        """
        found: dict[str, str] = {}
        carried = dict(self.carried)
        if carried != _found_states(self.facts):
            return found
        outputs = [tensor for tensor in self.facts.outputs if tensor.name not in carried.values()]
        for tensor in reversed(self.facts.inputs):
            same = [each for each in outputs if (each.shape, each.type) == (tensor.shape, tensor.type)]
            if same and tensor.name not in carried:
                found[tensor.name] = same[-1].name
                outputs.remove(same[-1])
        if found and (len(found) + len(carried) == len(self.facts.inputs) or not outputs):
            found.popitem()
        shapes = read_shapes(self.path) if found else {}
        return {name: found[name] for name in shapes if name in found and self.facts.time_symbol not in shapes[name]}

    @property
    def states(self) -> tuple[State, ...]:
        inputs = {tensor.name: tensor for tensor in self.facts.inputs}
        return tuple(State(name, after, inputs[name].shape, inputs[name].type) for name, after in self.carried)

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
        sizes |= {f"value {name}": number for name, number in self.fixed}
        inputs = {"inputs": self.inputs_sha256[:8]} if self.inputs_sha256 else {}
        lengths = {f"lengths {name}": text for name, text in self.length_texts().items()}
        return {"kind": self.KIND, "workload": f"{self.name}@{self.sha256[:8]}", **sizes, **lengths, **inputs}

    def group_fields(self, mode: str) -> dict[str, object]:
        """The network and its mode, and the sizes that are no axes."""
        return {"workload": self._named((self.facts.time_symbol, self.facts.batch_symbol)), "mode": mode}

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """Flags of `record`; of the file and of the inputs only the names are known."""
        states = () if dict(self.carried) == _found_states(self.facts) else self.carried
        found = {
            "--onnx": (f"{self.name}.onnx",),
            "--size": tuple(f"{name}={size}" for name, size in self.sizes),
            "--value": tuple(f"{name}={number}" for name, number in self.fixed),
            "--state": tuple(f"{before}={after}" for before, after in states),
            "--inputs": (f"{self.inputs_sha256[:8]}.npz",) if self.inputs_sha256 else (),
        }
        return {flag: values for flag, values in found.items() if values}

    @property
    def gets_states(self) -> bool:
        """Whether it is a network for windows, to which the mode "stream" adds states (`streamed`)."""
        return not (self.carried or not self.facts.time_symbol or any(_candidates(self.facts).values()))

    def in_mode(self, mode: str) -> OnnxNetwork:
        """Itself, or in the mode "stream" the network with added states."""
        return _with_states(self) if mode == "stream" and self.gets_states else super().in_mode(mode)

    def check_mode(self, mode: str) -> None:
        reason = self._why_no_stream() if mode == "stream" else ""
        if reason:
            raise UsageError(f"{self.name} has no mode stream: {reason}")
        for tensor in self.facts.inputs:
            if tensor.meaning and not tensor.range and tensor.name not in dict(self.carried):
                raise UsageError(self._unknown(tensor))
        super().check_mode(mode)

    def _unknown(self, tensor: Tensor) -> str:
        """That an input has numbers that only the user knows, and how to give them."""
        number = deciding(onnx_checks.read(self.path.read_bytes(), self.name)).get(tensor.name, "N")
        value = f"--value {tensor.name}={number}, or with " if math.prod(tensor.shape) == 1 else ""
        which = f"which numbers its input {tensor.name} has, and {tensor.meaning} depends on them"
        return f"{self.name} does not say {which}: give them with {value}--inputs FILE.npz"

    def _why_no_stream(self) -> str:
        """Why it cannot be used in the mode "stream"; empty if it can."""
        if not self.carried:
            several = [f"{key} ({' or '.join(outputs)})" for key, outputs in _candidates(self.facts).items() if outputs]
            if several:
                unclear = f"it is not clear which outputs are its states, {listed(several)}"
                return f"{unclear}: choose with --state INPUT=OUTPUT"
            names = [listed([tensor.name for tensor in side]) for side in (self.facts.inputs, self.facts.outputs)]
            return (
                "no states were recognized that could be carried; if it has none, --mode forward makes the same calls,"
                f" else name them with --state INPUT=OUTPUT (inputs: {names[0]}; outputs: {names[1]}), or export it"
                " with a symbolic number of samples"
            )
        if len(self.carried) == len(self.facts.outputs):
            return "all its outputs are states, so no output would be read; add one, for example an Identity of a state"
        for layer in self.facts.layers:
            if layer.direction != "forward":
                return f"its operator {layer.name} is {layer.direction} and needs the whole sequence from the start"
        return ""

    def make_inputs(self, seed: int | Sequence[int], mode: str = "forward") -> dict[str, np.ndarray]:
        """Inputs by name: the user's own, and random numbers for the others; states only if they are not carried."""
        generator = np.random.default_rng(seed)
        what, own = f"the inputs of {self.name} are", self.inputs_sha256
        given = _arrays(_cached("inputs", own, ".npz", what, "--inputs")) if own else {}
        carried = {state.input for state in self.states} if mode == "stream" else ()
        wanted = [tensor for tensor in self.facts.inputs if tensor.name not in carried]
        return {tensor.name: given.get(tensor.name, random_array(tensor, generator)) for tensor in wanted}


@lru_cache(maxsize=64)  # a sweep asks for each runtime and precision
def stream_of(network: OnnxNetwork) -> Any:
    """A network for windows as a `streamed.Streamed`; raises `UsageError` as `streamed.streamed`."""
    from lstm_onnx import streamed

    batch, more = network.facts.batch_symbol, {"name": network.name, "constants": network.constants}
    one = dict(network.sizes) | ({batch: 1} if batch else {})
    every = [{**one, network.facts.time_symbol: samples} for samples in streamed.SAMPLES]
    return streamed.streamed(*(OnnxNetwork(network.path, sizes=each, **more) for each in every))


@time_limit()
def _with_states(network: OnnxNetwork) -> OnnxNetwork:
    stream = stream_of(network)
    sizes: dict[Any, int] = dict(network.sizes)
    symbol = network.facts.time_symbol
    if sizes[symbol] % stream.stride:
        multiple = f"takes {stream.stride} samples a call, or a multiple of them: give --size {symbol}={stream.stride}"
        raise UsageError(f"{network.name} in the mode stream {multiple}")
    own = network.inputs_sha256 and _cached("inputs", network.inputs_sha256, ".npz", "its inputs are", "--inputs")
    return OnnxNetwork(stream.content, name=network.name, sizes=sizes, states=stream.states, inputs=own)


def TorchNetwork(
    module: torch.nn.Module,
    example_inputs: torch.Tensor | Sequence[torch.Tensor],
    *,
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Mapping[str, Mapping[int, Any]] | None = None,
    sizes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    inputs: str | Path | None = None,
) -> OnnxNetwork:
    """A PyTorch module in evaluation mode as an `OnnxNetwork`: exported, with PyTorch's outputs to check against.

    Dropout is left out, also of a module in training mode, which stays in that mode. Packed sequences inside `forward`
    become sequence lengths. Names of inputs are by default those of the parameters of `forward` (of a traced module
    `input0` and so on), those of outputs `output`, or `output0`, `output1` and so on (tuples and dictionaries in the
    order of their tensors). `dynamic_axes` makes sizes symbolic (input or output -> axis -> symbol, a name or a
    `torch.export.Dim`), and `sizes` gives their values (default: those of the example). Raises `ExportFailed` if
    PyTorch cannot export the module, or if its outputs are random, `UsageError` as `OnnxNetwork` does, and
    `NotInstalled` without PyTorch.
    """
    require("torch")
    from torch.utils import _pytree

    example = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    if not all(isinstance(tensor, torch.Tensor) for tensor in example):
        order = "in the order of the module's parameters"
        raise UsageError(f"example_inputs must be a tensor or a sequence of tensors, {order}")
    name = name or type(module).__name__
    with any_error(UsageError, f"{name} has no evaluation mode: give the module itself, not what was exported from it"):
        training = module.training
        module.train(training)
    if any(getattr(part, "proj_size", 0) for part in module.modules()):
        raise ExportFailed(f"{name} has an LSTM with proj_size, which ONNX does not have: record it with --step")
    of_names = (dynamic_axes or {}).items()
    axes = {key: {axis: getattr(size, "__name__", size) for axis, size in each.items()} for key, each in of_names}
    parameters: Iterable[str] = (f"input{index}" for index in range(len(example)))
    with suppress(ValueError):  # a traced module has no signature
        parameters = inspect.signature(module.forward).parameters
    named = as_list(input_names or [*parameters][: len(example)])
    module.eval()
    try:
        with any_error(ExportFailed, f"{name} cannot be run with the example inputs"):
            probe = tuple(torch.randn_like(tensor) if tensor.is_floating_point() else tensor for tensor in example)
            with torch.no_grad():
                runs = [_pytree.tree_leaves(module(*probe)) for _ in range(2)]
            results, again = ([leaf for leaf in run if isinstance(leaf, torch.Tensor)] for run in runs)
            if not all(a.float().allclose(b.float(), equal_nan=True) for a, b in zip(results, again, strict=True)):
                raise ExportFailed(f"the outputs of {name} are random, by a dropout with training=True for example")
            numbered = [f"output{index}" for index in range(len(results))] if len(results) > 1 else ["output"]
            answers = as_list(output_names or numbered)
            for what, given, needed in (("input", named, len(example)), ("output", answers, len(results))):
                if len(given) != needed:
                    raise UsageError(f"{name} has {needed} {what}s, but {len(given)} names were given")
            tensors = dict(zip((*named, *answers), (*example, *results), strict=True))
            own = _sizes_of_symbols(axes, tensors, named)
            more: Any = {"input_names": named, "output_names": answers, "dynamic_axes": axes}
            content = exported(module, example, name, **more)
    finally:
        module.train(training)
    network = OnnxNetwork(content, name=name, sizes={**own, **(sizes or {})}, states=states, inputs=inputs)
    arrays: dict[str, Any] = {f"input/{key}": tensor.numpy() for key, tensor in zip(named, probe, strict=True)}
    arrays |= {f"output/{key}": tensor.float().numpy() for key, tensor in zip(answers, results, strict=True)}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    cache.keep("onnx", network.sha256, ".torch.npz", buffer.getvalue())
    return network


def _sizes_of_symbols(
    dynamic_axes: Mapping[str, Mapping[int, str]], tensors: Mapping[str, torch.Tensor], inputs: Sequence[str]
) -> dict[str, int]:
    """The size of each symbol of an input in the example.

    Raises `UsageError` for an unknown input or output, or an axis that it lacks; PyTorch would ignore them.
    """
    found = {}
    for name, axes in dynamic_axes.items():
        if name not in tensors:
            known = f"{nearest(name, tensors)}: there are {listed(tensors)}"
            raise UsageError(f"dynamic_axes: no input or output is called {name!r}{known}")
        for axis, symbol in axes.items():
            if not isinstance(symbol, str):
                raise UsageError(f"dynamic_axes: the axis {axis} of {name!r} needs a name, not {symbol!r}")
            if not (isinstance(axis, int) and 0 <= axis < tensors[name].dim()):
                raise UsageError(f"dynamic_axes: {name!r} has the axes 0 to {tensors[name].dim() - 1}, not {axis!r}")
            if name in inputs:
                found[symbol] = tensors[name].shape[axis]
    return found


def torch_answers(network: OnnxNetwork) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None:
    """Inputs and PyTorch's outputs of a `TorchNetwork` at the sizes of its example; None for other networks."""
    stored = cache.stored("onnx", network.sha256, ".torch.npz")
    if stored is None:
        return None
    arrays = _arrays(stored.path)
    inputs, outputs = (
        {name.removeprefix(side): array for name, array in arrays.items() if name.startswith(side)}
        for side in ("input/", "output/")
    )
    return inputs, outputs


def _cached(kind: str, sha256: str, suffix: str, what: str, flag: str) -> Path:
    """A file of the user in the cache; raises `UsageError` if it is not there."""
    stored = cache.stored(kind, sha256, suffix)
    if stored is None:
        raise UsageError(f"{what} no longer in the cache: give the file again, with {flag}")
    return stored.path


def _arrays(file: Any) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name; pickled objects are not loaded."""
    with np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


# What a user gives


def _candidates(facts: NetworkFacts) -> dict[str, list[str]]:
    """Input -> the outputs that can be its state: their names differ as in `STATE_NAMES`, shape and type do not."""
    outputs = {(tensor.name, tensor.shape, tensor.type) for tensor in facts.outputs}
    found = {}
    for tensor in facts.inputs:
        named = [
            re.sub(old, new, tensor.name, count=1)
            for old, news in STATE_NAMES
            for new in news
            if re.search(old, tensor.name)
        ]
        found[tensor.name] = [name for name in dict.fromkeys(named) if (name, tensor.shape, tensor.type) in outputs]
    return found


def _found_states(facts: NetworkFacts) -> dict[str, str]:
    """Input -> output of the states that are recognized; empty if one input has several, or two have the same."""
    pairs = [(name, output) for name, outputs in _candidates(facts).items() for output in outputs]
    clear = all(len(set(side)) == len(pairs) for side in zip(*pairs, strict=True))
    return dict(pairs) if clear else {}


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


def _given(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file of a user; raises `UsageError`."""
    # BadZipFile, ValueError (pickled objects are not loaded), TypeError for a single array
    invalid = any_error(UsageError, f"{path} is not an .npz file of arrays, as numpy.savez writes it")
    with invalid, file_errors(f"read {path}"):
        refuse_named_pipe(path)
        return _arrays(path)


def _keep_inputs(name: str, facts: NetworkFacts, constants: Mapping[str, float], path: Path) -> str:
    """Check an .npz file of inputs and copy it into the cache; returns its SHA-256."""
    tensors = {tensor.name: tensor for tensor in facts.inputs}
    for key, array in _given(path).items():
        tensor = tensors.get(key)
        if key in constants and (array == constants[key]).all():
            continue
        if tensor is None:
            raise UsageError(f"{path} has an array {key!r}, but the inputs of {name} are {listed(list(tensors))}")
        if array.shape != tensor.shape or array.dtype.name != tensor.type:
            found, needed = f"{array.dtype.name} {list(array.shape)}", f"{tensor.type} {list(tensor.shape)}"
            raise UsageError(f"{key} in {path} is {found}, but {name} needs {needed}")
    content = path.read_bytes()
    return cache.fetch("inputs", cache.sha256(content), ".npz", lambda: content).sha256
