"""Match the configurations of two sources for a comparison, and list their other differences.

A field that has a single value within each source may differ between the sources: it is what the
comparison is about (runtime, version, machine). Fields that vary within a source identify its
configurations and must be equal.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from lstm_judge.read.labels import LEFT_OUT, flat, of_length, telling, version_text
from lstm_judge.read.rounds import Group
from lstm_judge.read.runs import Runs
from lstm_judge.statistics.quantiles import ONE_PROCESS_RATIO
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import Tells

#: Fields that are used only if nothing else distinguishes configurations.
_MINOR = (*telling(Tells.MINOR), "machine", "config_id")


@dataclass(frozen=True)
class Pair:
    """A configuration of A and the matching one of B, and the fields that they share; without a
    match one of them is None, and the fields are those of the other. `name`: that of B, if any."""

    name: str
    fields: dict
    a: Group | None
    b: Group | None

    @property
    def on_both_sides(self) -> bool:
        return self.a is not None and self.b is not None


@dataclass(frozen=True)
class Pairs:
    """Configurations of both sides that match, then those without a match.

    `several`: the sources have several configurations. `differ`: name -> (value in A, value in B)
    of fields with a single value in each source.
    """

    pairs: tuple[Pair, ...]
    several: bool = False
    differ: dict[str, tuple] = field(default_factory=dict)


class Identified(NamedTuple):
    """A group, and the fields that identify it; of recordings without cores and blocks."""

    fields: dict
    group: Group

    @classmethod
    def of(cls, group: Group) -> Self:
        configuration = group.configuration
        if configuration is None:
            return cls(group.group, group)
        left_out = ("kind", *telling(Tells.NEVER))
        every = {**dict.fromkeys(LEFT_OUT), **flat(configuration)}
        fields = {name: value for name, value in every.items() if name not in left_out}
        fields["machine"] = group.rounds[0].machine if group.rounds else None
        fields["config_id"] = configuration.id
        return cls(fields, group)


def pair(a: Runs, b: Runs) -> Pairs:
    """Match the groups of A and B.

    Two single groups are always compared. Raises `UsageError` if nothing matches, or if the match
    is not unique.
    """
    side_a = list(map(Identified.of, a))
    side_b = list(map(Identified.of, b))
    if len(a) == len(b) == 1:
        return Pairs((_paired(side_a[0], side_b[0]),), several=bool(a.group_by or b.group_by))
    fixed, free = _fixed_and_free(side_a, side_b)
    major = [name for name in free if name not in _MINOR]
    for names in (major, free):
        of_a = _by(side_a, names)
        of_b = _by(side_b, names)
        if len(of_a) == len(a) and len(of_b) == len(b):
            break
    for runs, by_key in ((a, of_a), (b, of_b)):
        if len(by_key) < len(runs):
            raise UsageError(
                f"{runs.source} has several configurations that {', '.join(free) or 'no field'}"
                " cannot distinguish: give one configuration per side, or the same --group-by"
                " columns"
            )
    every = [(of_a.get(key), of_b.get(key)) for key in of_a | of_b]
    every.sort(key=lambda both: None in both)
    if None in every[0]:
        in_a, in_b = (", ".join(group.name for group in runs[:3]) for runs in (a, b))
        raise UsageError(f"nothing to compare: {a.source} has {in_a}, {b.source} has {in_b}")
    differ = _differ(fixed, side_a[0].fields, side_b[0].fields)
    return Pairs(tuple(_paired(*both) for both in every), True, differ)


def _differ(names: Sequence[str], a: dict, b: dict) -> dict[str, tuple]:
    """Of these fields those with another value in A than in B, and the values."""
    return {
        name: (a[name], b[name])
        for name in names
        if name not in _MINOR and repr(a[name]) != repr(b[name])
    }


def _paired(a: Identified | None, b: Identified | None) -> Pair:
    if a is not None and b is not None:
        shared = {
            name: value
            for name, value in a.fields.items()
            if name in b.fields and value == b.fields[name]
            if value is not None or name not in LEFT_OUT
        }
        return Pair(b.group.name, shared, a.group, b.group)
    if a is not None:
        return Pair(a.group.name, a.group.group, a.group, None)
    assert b is not None
    return Pair(b.group.name, b.group.group, None, b.group)


def _fixed_and_free(
    side_a: Sequence[Identified], side_b: Sequence[Identified]
) -> tuple[list[str], list[str]]:
    """Of the fields that all groups have, those with a single value within each side, and those
    that vary within one."""
    fixed, free = [], []
    for name in side_a[0].fields:
        if not all(name in fields for fields, _ in (*side_a, *side_b)):
            continue
        in_a, in_b = ({repr(fields[name]) for fields, _ in side} for side in (side_a, side_b))
        if len(in_a) == len(in_b) == 1:
            fixed.append(name)
        else:
            free.append(name)
    return fixed, free


def _by(side: Sequence[Identified], names: Sequence[str]) -> dict[tuple, Identified]:
    """The groups by their values of these fields; fewer than there are if some have the same."""
    return {tuple(repr(each.fields[name]) for name in names): each for each in side}


#: Prefix of package versions; a package that only one side has loaded is not a difference.
VERSION = "version of "


def differences(a: Group, b: Group) -> list[str]:
    """Differences between the sides besides latency, `name: value in A -> value in B`."""
    values_a = _values_of(a)
    values_b = _values_of(b)
    found = []
    for name in dict.fromkeys([*values_a, *values_b]):
        in_a = values_a.get(name)
        in_b = values_b.get(name)
        loaded = not name.startswith(VERSION) or None not in (in_a, in_b)
        if in_a != in_b and loaded:
            found.append(f"{name.replace('_', ' ')}: {_text(in_a)} -> {_text(in_b)}")
    for side, values_of in (("A", values_a), ("B", values_b)):
        for name, values in values_of.items():
            if len(values) > 1:
                found.append(f"{name} differs between rounds of {side}")
    ratio = control_ratio(a, b)
    if not 1 / ONE_PROCESS_RATIO <= ratio <= ONE_PROCESS_RATIO:
        found.append(f"control run (an empty step): B / A {ratio:.2f}")
    first = recorded_first(a, b)
    if first is not None:
        found.append(
            f"order: all of {first} was recorded before {'B' if first == 'A' else 'A'}:"
            " a drift of the machine would look like a difference"
        )
    return found


def control_ratio(a: Group, b: Group) -> float:
    """Median of B's control runs over that of A's, which shows a change of the machine; 1 if not
    known."""
    in_a = _control_ns(a)
    in_b = _control_ns(b)
    return in_b / in_a if in_a and in_b else 1.0


def _control_ns(side: Group) -> float:
    """The median of the medians of the control runs; 0 without any."""
    controls = [each.control_ns for each in side.rounds if each.control_ns is not None]
    return float(statistics.median_low(map(np.median, controls))) if controls else 0.0


def on_both_sides(a: Group, b: Group) -> list[str]:
    """A line if recordings are on both sides."""
    recorded_a, recorded_b = (
        [(each.started_unix_ns, each.latency_ns.tobytes()) for each in side.rounds]
        for side in (a, b)
    )
    if recorded_a == recorded_b:
        return ["A and B are the same recording"]
    number = sum(recording in recorded_b for recording in recorded_a)
    return [f"recordings on both sides: {number}"] if number else []


def _values_of(side: Group) -> dict[str, set[str]]:
    """Name -> values on this side; several if the rounds differ."""
    fields = side.group
    configuration = side.configuration
    if configuration is not None:
        fields = flat(configuration)
        fields["runtime_version"] = version_text(
            configuration.runtime, configuration.runtime_version
        )
        del fields["trials"]  # as configured; "trials per process" is as recorded
    known = list(fields.items())
    for round_ in side.rounds:
        known += [(VERSION + name, text) for name, text in round_.versions.items() if text]
        known += [
            ("trials per process", round_.n),
            ("telemetry", round_.telemetry),
            ("machine", round_.machine),
        ]
    found: dict[str, set[str]] = {}
    for name, value in known:
        if value is not None:
            found.setdefault(name, set()).add(str(value))
    return found


def _text(values: Iterable[str] | None) -> str:
    ordered = sorted(values or ("none",), key=lambda text: (len(text), text))
    return " and ".join(ordered) if len(ordered) < 4 else f"{ordered[0]} to {ordered[-1]}"


def recorded_first(a: Group, b: Group) -> str | None:
    """The side, "A" or "B", that was recorded before the other; None if they alternated or it is
    not known.

    A change of the machine then looks like a difference: also with one process per side.
    """
    started_a = _started(a)
    started_b = _started(b)
    if not started_a or not started_b:
        return None
    if max(started_a) < min(started_b):
        return "A"
    return "B" if max(started_b) < min(started_a) else None


def _started(group: Group) -> list[int]:
    """When the rounds started; empty if it is not known of one."""
    started = [round_.started_unix_ns for round_ in group.rounds]
    return [] if None in started else [start for start in started if start is not None]


def later_recording(group: Group, others: Iterable[Group]) -> Group | None:
    """The first of `others` that records the configuration of `group` again on its machine, after
    all of it.

    Its number of trials may differ.
    """
    ended = max(_started(group), default=0)
    later = []
    for other in others:
        if (
            _but_for_trials(other) == _but_for_trials(group)
            and other.n
            and min(_started(other), default=0) > ended
        ):
            later.append(other)
    return min(later, key=_started, default=None)


def _but_for_trials(group: Group) -> tuple[str, str | None] | None:
    """Configuration and machine of a recording, whatever its number of trials."""
    configuration = group.configuration
    if configuration is None:
        return None
    return of_length(configuration).id, group.machine
