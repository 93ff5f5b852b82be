"""What every kind of workload tells of itself: its identity, its axes, its named inputs and outputs.

A kind is a frozen dataclass that derives from `Workload`, named in `registry.WORKLOADS` (or by an installed
package's entry point `lstm_trt.workloads`); who prepares it stands in `registry.PREPARERS`. The stacked LSTM of
this lab is `shape.LstmShape`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar

from lstm_trt import registry
from lstm_trt.config.errors import UnknownConfiguration, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from lstm_trt.config.configuration import Configuration

#: Sizes that any kind may have; null where they mean nothing for it. Analyses and figures vary these.
AXES = ("layers", "hidden", "sequence", "batch", "features", "directions")


#: Metadata of a dataclass field that was added after recordings had been made without it.
ADDED = {"added": True}


def identity_fields(part: object) -> dict:
    """A dataclass as plain values, for an identity that survives new fields.

    A field declared with `field(default=..., metadata=ADDED)` is left out where it has its default, so
    that what was recorded before it existed keeps its id; so is a field with `compare=False`. Tuples become lists.
    """
    values = {
        item.name: getattr(part, item.name)
        for item in fields(part)
        if item.compare and not (item.metadata.get("added") and getattr(part, item.name) == item.default)
    }
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def known_fields(kind: type, plain: Mapping) -> object:
    """A dataclass of these values; raises `UnknownConfiguration` for a field that this version does not have."""
    unknown = plain.keys() - {item.name for item in fields(kind)}
    if unknown:
        raise UnknownConfiguration(f"this version knows no {kind.__name__.lower()} {', '.join(sorted(unknown))}")
    return kind(**plain)


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raises `UsageError` for what is no whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise UsageError(f"{name} must be at least {least}, not {value}")
    if most is not None and value > most:
        raise UsageError(f"{name} must be at most {most}, not {value}")


class Workload(ABC):
    """One workload: what is computed, apart from the runtime that computes it."""

    #: The kind, as recordings store it.
    KIND: ClassVar[str]

    #: What a step may do: "forward", "training", ... An open set; the first is the default. Recordings of
    #: different modes are never pooled.
    modes: tuple[str, ...] = ("forward",)

    @property
    @abstractmethod
    def label(self) -> str:
        """Unique among the workloads of its kind, for people and file names: `2x200-s128-b1`."""

    @abstractmethod
    def as_dict(self) -> dict:
        """JSON values with `kind`: the workload's part of the identity. `from_dict` is the inverse.

        A field that is added to a kind later is left out where it has its default, so that every
        recording keeps its id (`identity_fields`).
        """

    @classmethod
    @abstractmethod
    def from_dict(cls, plain: Mapping) -> Workload:
        """Inverse of `as_dict`; raises `UsageError` where a field is missing or unknown."""

    @property
    @abstractmethod
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of what a forward step reads."""

    @property
    @abstractmethod
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of what a forward step answers."""

    @property
    def axes(self) -> dict[str, int | None]:
        """`AXES` of this workload; None where an axis means nothing for it."""
        return {axis: getattr(self, axis, None) for axis in AXES}

    @property
    def parameters(self) -> int | None:
        """Trained numbers; None where they are not known."""
        return None

    @property
    def flops(self) -> int | None:
        """Operations of one forward pass, matrix products only (2 a weight); None where they are not known."""
        return None

    def group_fields(self, mode: str) -> dict[str, object]:
        """What tells it from other workloads beside its axes, runtime and options, name -> JSON value."""
        return {"workload": self.label, "mode": mode}

    def title(self, mode: str) -> str:
        """The label, with the mode where it is not the usual forward pass."""
        return self.label if mode == "forward" else f"{self.label} {mode}"

    def command(self, configuration: Configuration, out: str | Path, rounds: int | None = None) -> str | None:
        """The shell line that records it, where that is not `lstm-trt record` with the flags of a shape."""
        return None

    def check_mode(self, mode: str) -> None:
        """Raises `UsageError` for a mode that this workload does not have."""
        if mode not in self.modes:
            raise UsageError(f"{self.label} has no mode {mode!r}: choose from {', '.join(self.modes)}")


def workload_from_dict(plain: Mapping) -> Workload:
    """The workload of a recording's JSON, of any kind that is registered here.

    Raises `UnknownConfiguration` for a kind that is not, `UsageError` for fields that do not go together.
    """
    kind = plain.get("kind", "stacked-lstm")
    try:
        found = registry.load("WORKLOADS", kind) if isinstance(kind, str) and "." not in kind else None
    except KeyError:
        found = None
    except (ImportError, AttributeError) as error:
        raise UnknownConfiguration(f"the workload kind {kind!r} cannot be loaded: {error}") from None
    if found is None:
        known = ", ".join(registry.table("WORKLOADS"))
        raise UnknownConfiguration(f"unknown workload kind {kind!r}: this version knows {known}")
    return found.from_dict(plain)
