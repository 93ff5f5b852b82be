"""Base class of all kinds of workload: identity, axes, named inputs and outputs.

A kind is a frozen dataclass that derives from `Workload` and is listed in `registry.WORKLOADS`, or
in the entry point `lstm_trt.workloads` of an installed package. `registry.PREPARERS` names the
module that prepares it. The processes that record import both, so that a package which is not
installed lies on PYTHONPATH. The stacked LSTM is `shape.LstmShape`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from lstm_trt import registry
from lstm_trt.config.errors import UnknownConfiguration, UsageError, refused
from lstm_trt.config.fields import ADDED as ADDED, JsonFields, identity_fields, known_fields
from lstm_trt.config.libraries import np

#: Sizes that analyses and figures vary; null for kinds to which they do not apply.
AXES = ("layers", "hidden", "sequence", "batch", "features", "directions")

#: Recurrent operator -> gates of a hidden unit.
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise `UsageError` if the value is not an integer between `least` and `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise UsageError(f"{name} must be at least {least}, not {value}")
    if most is not None and value > most:
        raise UsageError(f"{name} must be at most {most}, not {value}")


@dataclass(frozen=True)
class State:
    """A tensor that the mode "stream" carries: the output `output` of a call is the input `input`
    of the next.

    It has the same shape and type on both sides, and is zero before the first call.
    """

    input: str
    output: str
    shape: tuple[int, ...]
    type: str = "float32"

    def zeros(self) -> np.ndarray:
        """The state before the first call."""
        return np.zeros(self.shape, self.type)


def carried_text(states: Iterable[State]) -> str:
    """`carried state h0 -> hn, c0 -> cn`."""
    return f"carried state {', '.join(f'{state.input} -> {state.output}' for state in states)}"


@dataclass(frozen=True)
class RecurrentLayer(JsonFields):
    """One recurrent operator; `operator` is "LSTM", "GRU" or "RNN", or ends with it, `direction` as
    in ONNX.

    A size is None if it is not known. `bias`: whether it has the input B. `within`: the operator in
    the body of which it is, and which body, so that it may be computed several times, or not at
    all. `steps`: the mean of the lengths of its sequences, if they are shorter than `sequence`.
    """

    operator: str
    hidden: int | None
    features: int | None
    sequence: int | None
    batch: int | None
    direction: str = "forward"
    name: str = ""
    bias: bool = True
    within: str = ""
    steps: float | None = field(default=None, metadata=ADDED)

    @property
    def computed(self) -> float:
        """Time steps that have to be computed; 0 if not known."""
        return (self.sequence or 0) if self.steps is None else self.steps

    @property
    def counted(self) -> bool:
        """Whether it is known that, and how often, a forward pass computes it in the precision of
        the network."""
        known = None not in (self.hidden, self.features, self.sequence, self.batch)
        return known and not self.within and self.operator in GATES

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    @property
    def gates(self) -> int:
        """Rows of the weights of one direction: gates times hidden units; 0 if not known."""
        (gates,) = (gates for kind, gates in GATES.items() if self.operator.endswith(kind))
        return gates * (self.hidden or 0)

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of W, R and, if it has one, B, as in ONNX, as far as they are known."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.gates and self.features:
            shapes["W"] = (self.directions, self.gates, self.features)
        if self.hidden:
            shapes["R"] = (self.directions, self.gates, self.hidden)
        if self.hidden and self.bias:
            shapes["B"] = (self.directions, 2 * self.gates)
        return shapes

    @property
    def input_flops(self) -> int:
        """Multiplications and additions (2 per weight) that do not depend on an earlier step; 0 if
        not known."""
        return self._flops(self.features)

    @property
    def recurrent_flops(self) -> int:
        """Multiplications and additions that depend on the previous step; 0 if not known."""
        return self._flops(self.hidden)

    def _flops(self, inputs: int | None) -> int:
        """Those of the weights of so many inputs."""
        weights = self.directions * self.gates * (inputs or 0)
        return round(2 * weights * (self.batch or 0) * self.computed)

    @property
    def flops(self) -> int:
        """All of them, as far as they are known."""
        return self.input_flops + self.recurrent_flops


class Workload(ABC):
    """What is computed, independently of the runtime."""

    #: The kind, as recordings store it.
    KIND: ClassVar[str]

    #: The program with the commands that record it.
    PROGRAM: ClassVar[str] = "lstm-trt"

    #: Modes of a step: "forward", "training", ... The first is the default. Recordings of different
    #: modes are never pooled.
    modes: tuple[str, ...] = ("forward",)

    @property
    @abstractmethod
    def label(self) -> str:
        """Unique among the workloads of its kind, usable in a file name: `2x200-s128-b1`."""

    def as_dict(self) -> dict[str, Any]:
        """JSON values with `kind`: the workload's part of the id.

        A field that is added to a kind later must be left out if it has its default, so that
        recordings keep their ids (`identity_fields`).
        """
        return {"kind": self.KIND, **identity_fields(self)}

    @property
    def identity(self) -> dict[str, Any]:
        """The part of `as_dict` from which the id is computed; a kind can leave out what follows
        from the rest."""
        return self.as_dict()

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Inverse of `as_dict`; raises `UsageError` if a field is missing or unknown."""
        with refused(f"not a {cls.KIND} of this version", TypeError):
            own = {name: value for name, value in plain.items() if name != "kind"}
            return known_fields(cls, own)

    #: Name -> shape of the inputs of a forward step, or of a call in "stream" without the states;
    #: may be empty.
    input_shapes: Mapping[str, tuple[int, ...]] = {}

    #: Name -> shape of the outputs of a forward step, or of a call in "stream" without the states;
    #: may be empty.
    output_shapes: Mapping[str, tuple[int, ...]] = {}

    #: What the mode "stream" carries from call to call.
    states: tuple[State, ...] = ()

    #: Name -> numpy type of the inputs, outputs and states that are not float32.
    types: Mapping[str, str] = {}

    #: The recurrent operators in the order of the graph; empty if not known.
    recurrent_layers: tuple[RecurrentLayer, ...] = ()

    #: Whether numbers of the network itself have half precision.
    half: bool = False

    #: Number of parameters; None if not known.
    parameters: int | None = None

    #: Operations of one forward pass, matrix products only (2 per weight); None if not known.
    flops: int | None = None

    #: Flags of `lstm-trt record`, or of `versions`, that select it, with their values; None if
    #: there are none.
    flags: Mapping[str, tuple[str, ...]] | None = None

    @property
    def axes(self) -> dict[str, int | None]:
        """Sizes of this workload by axis (`AXES`); None for axes that do not apply."""
        return {axis: getattr(self, axis, None) for axis in AXES}

    @property
    def least_flops(self) -> int:
        """The part of `flops` that is known."""
        return self.flops or 0

    def work(self, mode: str) -> int:
        """Operations of a call, to estimate the time of one recording by others: those of `flops`,
        and an overhead."""
        # About 2 us per time step and layer, expressed in operations.
        return self.least_flops + 50_000 * (self.axes["sequence"] or 1) * (self.axes["layers"] or 1)

    @property
    def label_fields(self) -> dict[str, object]:
        """Fields that labels can show to tell it from other workloads: name -> value."""
        return self.as_dict()

    def group_fields(self, mode: str) -> dict[str, object]:
        """Fields that distinguish it from other workloads, besides its axes: name -> JSON value."""
        return {"workload": self.label, "mode": mode}

    def title(self, mode: str) -> str:
        """The label, with the mode if it is not "forward"."""
        return self.label if mode == "forward" else f"{self.label} {mode}"

    def command(
        self, configuration: Any, out: str | Path, rounds: int | str | None = None
    ) -> str | None:
        """The shell command that records a `Configuration` of it, if that is not `lstm-trt record`
        with `flags`."""
        return None

    def in_mode(self, mode: str) -> Self:
        """The workload as it is recorded in a mode; raises `UsageError` for a mode that it does not
        have."""
        self.check_mode(mode)
        return self

    def check_mode(self, mode: str) -> None:
        """Raise `UsageError` for a mode that this workload does not have."""
        if mode not in self.modes:
            raise UsageError(
                f"{self.label} has no mode {mode!r}: choose from {', '.join(self.modes)}"
            )


def workload_from_dict(plain: Mapping[str, Any]) -> Workload:
    """The workload that a recording's JSON describes.

    Raises `UnknownConfiguration` for a kind that is not registered, `UsageError` for invalid
    fields.
    """
    kind = plain.get("kind", "stacked-lstm")
    found = None
    if isinstance(kind, str) and "." not in kind:
        what = f"the workload kind {kind!r} cannot be loaded"
        with (
            refused(what, ImportError, AttributeError, kind=UnknownConfiguration),
            suppress(KeyError),
        ):
            found = registry.load_entry("WORKLOADS", kind)
    if found is None:
        known = ", ".join(registry.table("WORKLOADS"))
        raise UnknownConfiguration(f"unknown workload kind {kind!r}: this version has {known}")
    return found.from_dict(plain)
