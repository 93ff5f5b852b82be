"""Networks of users as workloads: ONNX files of any exporter.

The file is copied into the cache under the SHA-256 of its content, with external data included, so
that all processes of a recording read the same network, whatever happens to the file meanwhile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lstm_onnx.constants import fix_inputs, resolved
from lstm_onnx.input_values import INDEXING, LENGTHS
from lstm_onnx.limits import time_limit
from lstm_onnx.read_onnx import (
    NetworkFacts,
    OnnxFile,
    Tensor,
    deciding,
    flags_text,
    from_inputs,
    network_facts,
    random_inputs,
)
from lstm_trt.config.errors import UsageError, any_error, file_errors
from lstm_trt.config.format import listed
from lstm_trt.config.libraries import onnx
from lstm_trt.config.workload import State, Workload
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

    `OnnxNetwork("model.onnx", sizes={"time": 64, "batch": 1})` reads and checks a file, or the
    content of one without external data, or takes an `OnnxFile`; `name` is by default that of the
    file. `sizes`: values of
    its symbolic sizes; a size without a symbol is "INPUT.AXIS", as `x.0`. `constants`: numbers of
    inputs that are made constants of the network, such as the sampling rate of a speech model, so
    that only one branch of an If is computed. `states`: input -> output of the states that the mode
    "stream" carries (default: those that are recognized by their names). `inputs`: an .npz file
    with inputs by name, from which symbolic sizes and constants follow (`from_inputs`); others are
    random numbers of their type (standard normal, or whole numbers in the range that the graph
    allows, where an input for sequence lengths is the full length). Raises `UsageError` for an
    invalid file, size, state or input.
    """

    KIND = "onnx-network"

    name: str = field(compare=False)
    sha256: str
    sizes: tuple[tuple[str, int], ...]
    carried: tuple[tuple[str, str], ...]
    inputs_sha256: str | None
    fixed: tuple[tuple[str, float], ...]
    facts: NetworkFacts = field(compare=False, repr=False)

    #: The recurrent operators in the order of the graph.
    recurrent_layers: ClassVar[Any] = property(attrgetter("facts.layers"))
    #: Whether numbers of the network itself have half precision.
    half: ClassVar[Any] = property(attrgetter("facts.half"))
    #: Number of parameters; None if not known.
    parameters: ClassVar[Any] = property(attrgetter("facts.parameters"))
    #: Operations of one forward pass, matrix products only; None if not known.
    flops: ClassVar[Any] = property(attrgetter("facts.flops"))
    least_flops = property(lambda self: self.facts.least_flops or self.flops or 0)
    constants = property(lambda self: dict(self.fixed))
    lengths = property(
        lambda self: {
            each.name: each.range for each in self.facts.inputs if each.meaning == LENGTHS
        }
    )

    @time_limit()
    def __init__(
        self,
        path: str | Path | bytes | OnnxFile,
        *,
        name: str | None = None,
        sizes: Mapping[str, int] | None = None,
        states: Mapping[str, str] | None = None,
        inputs: str | Path | None = None,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        if isinstance(path, OnnxFile):
            file = path
        elif isinstance(path, bytes):
            file = OnnxFile.of(path, name or "network")
        else:
            file = OnnxFile.read(Path(path))
        file = replace(file, name=name or file.name)
        given = {} if inputs is None else _given(Path(inputs))
        own_sizes, own_constants = from_inputs(file, given)
        sizes = own_sizes | dict(sizes or {})
        constants = own_constants | dict(constants or {})
        facts = network_facts(file, sizes, constants, given)
        carried = (
            _found_states(facts) if states is None else _checked_states(file.name, facts, states)
        )
        inputs_sha256 = None
        if inputs is not None:
            _check_inputs(file.name, facts, constants, given, Path(inputs))
            stored = Path(inputs).read_bytes()
            inputs_sha256 = cache.sha256(stored)
            cache.fetch("inputs", inputs_sha256, ".npz", lambda: stored)
        self._set(file.name, file.sha256, sizes, carried, constants, inputs_sha256, facts)
        cache.fetch("onnx", file.sha256, ".onnx", lambda: file.content)

    def _set(
        self,
        name: str,
        sha256: str,
        sizes: Mapping,
        carried: Mapping,
        fixed: Mapping,
        inputs_sha256: str | None,
        facts: NetworkFacts,
    ) -> None:
        own = vars(self)
        own.update(name=name, sha256=sha256, inputs_sha256=inputs_sha256, facts=facts)
        for key, values in (("sizes", sizes), ("carried", carried), ("fixed", fixed)):
            own[key] = tuple(sorted(values.items()))

    @property
    def path(self) -> Path:
        """The file in the cache, with symbolic sizes; raises `UsageError` if it is not there."""
        return _cached("onnx", self.sha256, ".onnx", f"{self.name}.onnx is", "--onnx")

    @property
    def file(self) -> OnnxFile:
        """The network in the cache, read again."""
        return OnnxFile.of(self.path.read_bytes(), self.name)

    def simplified(
        self, model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]
    ) -> onnx.ModelProto:
        """The graph with its constants, and of an If that these or its sizes decide only the branch
        that is taken: runtimes reject a graph for the other one."""
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
        numbers = [pair for pair in (*self.sizes, *self.fixed) if pair[0] not in without]
        parts = [f"{self.name}@{self.sha256[:8]}"]
        parts += [
            f"{name}{value}" for name, value in (*numbers, *self.length_texts(without).items())
        ]
        if self.inputs_sha256:
            parts += ["inputs", self.inputs_sha256[:8]]
        return "-".join(parts)

    def length_texts(self, without: Sequence[str | None] = ()) -> dict[str, str]:
        """Input -> the lengths of its sequences; "-full" for whole sequences of a size that is left
        out."""
        time = self.facts.time_symbol
        whole = (self.axes["sequence"], dict(self.sizes).get(time or ""))
        texts = {}
        for name, (low, high) in self.lengths.items():
            texts[name] = str(low)
            if low < high:
                texts[name] = f"{low}to{high}"
            elif time and time in without and low in whole:
                texts[name] = "-full"
        return texts

    @property
    def label(self) -> str:
        return re.sub(r"[^\w.@-]", "_", self._named())

    @property
    def identity(self) -> dict:
        plain = {
            "kind": self.KIND,
            "sha256": self.sha256,
            "sizes": dict(self.sizes),
            "states": dict(self.carried),
        }
        if self.inputs_sha256:
            plain["inputs_sha256"] = self.inputs_sha256
        if self.fixed:
            plain["constants"] = self.constants
        if self.lengths:
            plain["lengths"] = {name: list(each) for name, each in self.lengths.items()}
        return plain

    def as_dict(self) -> dict:
        return {**self.identity, "name": self.name, "facts": self.facts.as_dict()}

    @classmethod
    def from_dict(cls, plain: Mapping) -> OnnxNetwork:
        network = object.__new__(cls)
        with any_error(UsageError, "invalid description of an ONNX network", str):
            network._set(
                plain["name"],
                plain["sha256"],
                plain["sizes"],
                plain["states"],
                plain.get("constants", {}),
                plain.get("inputs_sha256"),
                NetworkFacts.from_dict(plain["facts"]),
            )
        return network

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        return {tensor.name: tensor.shape for tensor in self.facts.inputs}

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        return {tensor.name: tensor.shape for tensor in self.facts.outputs}

    @property
    def types(self) -> dict[str, str]:
        return {
            tensor.name: tensor.type
            for tensor in (*self.facts.inputs, *self.facts.outputs)
            if tensor.type != "float32"
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong in the file, but does not prevent that it runs."""
        warnings = []
        for tensor in self.facts.outputs:
            if tensor.declared is not None:
                warnings.append(
                    f"{self.name}.onnx states another number of axes or other sizes for its output"
                    f" {tensor.name} than it has: {list(tensor.shape)} is used"
                )
        likely = self.likely_states
        if likely:
            warnings.append(
                f"{self.name}.onnx may have a state: an output has the shape and type of its input"
                f" {' and of '.join(likely)}; if so, carry it with"
                f" {flags_text('--state', dict(self.carried) | likely)}"
            )
        return tuple(warnings)

    @property
    def likely_states(self) -> dict[str, str]:
        """Input -> an output of its shape and type, of those that no name tells; empty if the user
        has named states.

        Not all inputs, nor all outputs, can be states: the first are data.
        """
        carried = dict(self.carried)
        if carried != _found_states(self.facts):
            return {}
        inputs = [each for each in self.facts.inputs if each.name not in carried]
        outputs = [each for each in self.facts.outputs if each.name not in carried.values()]
        found: dict[str, str] = {}
        for tensor in reversed(inputs):
            same = [each for each in outputs if each.form == tensor.form]
            if same:
                found[tensor.name] = same[-1].name
                outputs.remove(same[-1])
        if found and (len(found) == len(inputs) or not outputs):
            found.popitem()
        shapes = self.file.shapes if found else {}
        return {
            name: found[name]
            for name in shapes
            if name in found and self.facts.time_symbol not in shapes[name]
        }

    @property
    def states(self) -> tuple[State, ...]:
        return tuple(
            State(name, after, self.input_shapes[name], self.types.get(name, "float32"))
            for name, after in self.carried
        )

    @property
    def axes(self) -> dict[str, int | None]:
        """Sizes of the recurrent operators, as far as they have the same; sequence, batch and
        features of the first."""
        layers = self.facts.layers
        found: dict[str, int | None] = dict.fromkeys(super().axes)
        if layers:
            found["layers"] = len(layers)
            found["directions"] = max(layer.directions for layer in layers)
            for name in ("sequence", "batch", "features"):
                found[name] = getattr(layers[0], name)
            if len({layer.hidden for layer in layers}) == 1:
                found["hidden"] = layers[0].hidden
        return found

    @property
    def label_fields(self) -> dict[str, object]:
        fields: dict[str, object] = {
            "kind": self.KIND,
            "workload": f"{self.name}@{self.sha256[:8]}",
        }
        named = {"size": self.sizes, "value": self.fixed, "lengths": self.length_texts().items()}
        for what, pairs in named.items():
            for name, value in pairs:
                fields[f"{what} {name}"] = value
        if self.inputs_sha256:
            fields["inputs"] = self.inputs_sha256[:8]
        return fields

    def group_fields(self, mode: str) -> dict[str, object]:
        """The network and its mode, and the sizes that are no axes."""
        return {
            "workload": self._named((self.facts.time_symbol, self.facts.batch_symbol)),
            "mode": mode,
        }

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """Flags of `record`; of the file and of the inputs only the names are known."""
        found = {
            "--onnx": (f"{self.name}.onnx",),
            "--size": _pairs(self.sizes),
            "--value": _pairs(self.fixed),
        }
        if dict(self.carried) != _found_states(self.facts):
            found["--state"] = _pairs(self.carried)
        if self.inputs_sha256:
            found["--inputs"] = (f"{self.inputs_sha256[:8]}.npz",)
        return {flag: values for flag, values in found.items() if values}

    @property
    def gets_states(self) -> bool:
        """Whether it is a network for windows, to which the mode "stream" adds states
        (`streamed`)."""
        return not (
            self.carried or not self.facts.time_symbol or any(_candidates(self.facts).values())
        )

    def in_mode(self, mode: str) -> OnnxNetwork:
        """Itself, or in the mode "stream" the network with added states."""
        return (
            _with_states(self) if mode == "stream" and self.gets_states else super().in_mode(mode)
        )

    def check_mode(self, mode: str) -> None:
        if mode == "stream" and self._why_no_stream():
            raise UsageError(f"{self.name} has no mode stream: {self._why_no_stream()}")
        for tensor in self.facts.inputs:
            if tensor.meaning and not tensor.range and tensor.name not in dict(self.carried):
                raise UsageError(self._unknown(tensor))
        super().check_mode(mode)

    def _unknown(self, tensor: Tensor) -> str:
        """That an input has numbers that only the user knows, and how to give them."""
        value = ""
        is_index = str(tensor.meaning).startswith(INDEXING)  # which is an input, and no setting
        if math.prod(tensor.shape) == 1 and not is_index:
            value = (
                f"--value {tensor.name}={deciding(self.file.model).get(tensor.name, 'N')}, or with "
            )
        return (
            f"{self.name} does not say which numbers its input {tensor.name} has, and"
            f" {tensor.meaning} depends on them: give them with {value}--inputs FILE.npz"
        )

    def _why_no_stream(self) -> str:
        """Why it cannot be used in the mode "stream"; empty if it can."""
        if not self.carried:
            several = [
                f"{name} ({' or '.join(outputs)})"
                for name, outputs in _candidates(self.facts).items()
                if outputs
            ]
            if several:
                return (
                    f"it is not clear which outputs are its states, {listed(several)}: choose with"
                    " --state INPUT=OUTPUT"
                )
            return (
                "no states were recognized that could be carried; if it has none, --mode forward"
                " makes the same calls, else name them with --state INPUT=OUTPUT (inputs:"
                f" {listed(self.input_shapes)}; outputs: {listed(self.output_shapes)}), or export"
                " it with a symbolic number of samples"
            )
        if len(self.carried) == len(self.facts.outputs):
            return (
                "all its outputs are states, so no output would be read; add one, for example an"
                " Identity of a state"
            )
        for layer in self.facts.layers:
            if layer.direction != "forward":
                return (
                    f"its operator {layer.name} is {layer.direction} and needs the whole sequence"
                    " from the start"
                )
        return ""

    def make_inputs(
        self, seed: int | Sequence[int], mode: str = "forward"
    ) -> dict[str, np.ndarray]:
        """Inputs by name: the user's own, and random numbers for the others; states only if they
        are not carried."""
        own = self._own_inputs()
        carried = dict(self.carried) if mode == "stream" else ()
        drawn = [tensor for tensor in self.facts.inputs if tensor.name not in carried]
        return random_inputs(drawn, read_arrays(own) if own else {}, seed)

    def _own_inputs(self) -> Path | None:
        """The file in the cache with the user's inputs; raises `UsageError` if it is not there."""
        if not self.inputs_sha256:
            return None
        return _cached(
            "inputs", self.inputs_sha256, ".npz", f"the inputs of {self.name} are", "--inputs"
        )


@lru_cache(maxsize=64)  # a sweep asks for each runtime and precision
def stream_of(network: OnnxNetwork) -> Any:
    """A network for windows as a `streamed.Streamed`; raises `UsageError` as
    `streamed.streamed`."""
    from lstm_onnx import streamed

    sizes: dict[Any, int] = dict(network.sizes)
    if network.facts.batch_symbol:
        sizes[network.facts.batch_symbol] = 1
    file = network.file
    runs = []
    for samples in streamed.SAMPLES:
        sizes[network.facts.time_symbol] = samples
        runs.append(OnnxNetwork(file, sizes=sizes, constants=network.constants))
    return streamed.streamed(*runs)


@time_limit()
def _with_states(network: OnnxNetwork) -> OnnxNetwork:
    stream = stream_of(network)
    sizes: dict[Any, int] = dict(network.sizes)
    symbol = network.facts.time_symbol
    if sizes[symbol] % stream.stride:
        raise UsageError(
            f"{network.name} in the mode stream takes {stream.stride} samples a call, or a multiple"
            f" of them: give --size {symbol}={stream.stride}"
        )
    return OnnxNetwork(
        stream.content,
        name=network.name,
        sizes=sizes,
        states=stream.states,
        inputs=network._own_inputs(),
    )


def _cached(kind: str, sha256: str, suffix: str, what: str, flag: str) -> Path:
    """A file of the user in the cache; raises `UsageError` if it is not there."""
    stored = cache.stored(kind, sha256, suffix)
    if stored is None:
        raise UsageError(f"{what} no longer in the cache: give the file again, with {flag}")
    return stored.path


def read_arrays(file: Any) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name; pickled objects are not loaded."""
    with np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


# What a user gives


def _pairs(values: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """`NAME=VALUE` of each, as flags have them."""
    return tuple(f"{name}={value}" for name, value in values)


def _candidates(facts: NetworkFacts) -> dict[str, list[str]]:
    """Input -> the outputs that can be its state: their names differ as in `STATE_NAMES`, shape and
    type do not."""
    forms = {each.name: each.form for each in facts.outputs}
    found: dict[str, list[str]] = {}
    for tensor in facts.inputs:
        outputs = found[tensor.name] = []
        for old, news in STATE_NAMES:
            for new in news:
                name, changed = re.subn(old, new, tensor.name, count=1)
                if changed and forms.get(name) == tensor.form and name not in outputs:
                    outputs.append(name)
    return found


def _found_states(facts: NetworkFacts) -> dict[str, str]:
    """Input -> output of the states that are recognized; empty if one input has several, or two
    have the same."""
    found = [(name, output) for name, outputs in _candidates(facts).items() for output in outputs]
    clear = all(len(set(names)) == len(found) for names in zip(*found, strict=True))
    return dict(found) if clear else {}


def _checked_states(name: str, facts: NetworkFacts, states: Mapping[str, str]) -> dict[str, str]:
    inputs = {each.name: each.form for each in facts.inputs}
    outputs = {each.name: each.form for each in facts.outputs}
    for before, after in states.items():
        for what, wanted, forms in (("input", before, inputs), ("output", after, outputs)):
            if wanted not in forms:
                raise UsageError(
                    f"{name} has no {what} {wanted!r}: its {what}s are {listed(forms)}"
                )
        if inputs[before] != outputs[after]:
            raise UsageError(
                "a state has the same type and shape on both sides, but"
                f" {before} is {inputs[before]} and {after} is {outputs[after]}"
            )
    if len(set(states.values())) < len(states):
        raise UsageError("two states have the same output: each needs its own")
    return dict(states)


def _given(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file of a user; raises `UsageError`."""
    # BadZipFile, ValueError (pickled objects are not loaded), TypeError for a single array
    with (
        any_error(UsageError, f"{path} is not an .npz file of arrays, as numpy.savez writes it"),
        file_errors(f"read {path}"),
    ):
        refuse_named_pipe(path)
        return read_arrays(path)


def _check_inputs(
    name: str, facts: NetworkFacts, constants: Mapping[str, float], given: Mapping, path: Path
) -> None:
    """Raise `UsageError` for an array in a user's file that is no input, or has another shape or
    type."""
    forms = {tensor.name: tensor.form for tensor in facts.inputs}
    for key, array in given.items():
        if key in constants and (array == constants[key]).all():
            continue
        if key not in forms:
            raise UsageError(
                f"{path} has an array {key!r}, but the inputs of {name} are {listed(forms)}"
            )
        found = Tensor(key, array.dtype.name, array.shape).form
        if found != forms[key]:
            raise UsageError(f"{key} in {path} is {found}, but {name} needs {forms[key]}")
