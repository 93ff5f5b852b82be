"""Match the configurations of two sources for a comparison, and list their other differences.

A field that has a single value within each source may differ between the sources: it is what the
comparison is about (runtime, version, machine). Fields that vary within a source identify its
configurations and must be equal.
"""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lstm_judge.read.labels import flat, telling, version_text
from lstm_judge.read.rounds import Group
from lstm_judge.read.runs import Runs
from lstm_judge.statistics.quantiles import ONE_PROCESS_RATIO
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import Tells

#: Fields that are used only if nothing else distinguishes configurations.
_MINOR = (*telling(Tells.MINOR), "machine", "config_id")


@dataclass(frozen=True)
class Pairs:
    """Groups of both sides that match, then those without a match.

    `pairs`: (shared fields, group of A, group of B); without a match (fields, group, None) or
    (fields, None, group). `several`: the sources have several configurations. `differ`: name ->
    (value in A, value in B) of fields with a single value in each source.
    """

    pairs: tuple[tuple[dict, Group | None, Group | None], ...]
    several: bool = False
    differ: dict[str, tuple] = field(default_factory=dict)


def pair(a: Runs, b: Runs) -> Pairs:
    """Match the groups of A and B.

    Two single groups are always compared. Raises `UsageError` if nothing matches, or if the match
    is not unique.
    """
    sides = [[(_identity(group), group) for group in runs] for runs in (a, b)]
    if len(a) == len(b) == 1:
        return Pairs((_paired(sides[0][0], sides[1][0]),), several=bool(a.group_by or b.group_by))
    every = [fields for side in sides for fields, _ in side]
    names = [name for name in every[0] if all(name in fields for fields in every)]
    values = [
        {name: {repr(fields[name]) for fields, _ in side} for name in names} for side in sides
    ]
    fixed = [name for name in names if len(values[0][name]) == len(values[1][name]) == 1]
    free = [name for name in names if name not in fixed]
    keyed = [_by(side, [name for name in free if name not in _MINOR]) for side in sides]
    if not all(keyed):
        keyed = [_by(side, free) for side in sides]
    for side, runs in zip(keyed, (a, b), strict=True):
        if not side:
            alike = f"{runs.source} has several configurations that {', '.join(free) or 'no field'} cannot distinguish"
            raise UsageError(
                f"{alike}: give one configuration per side, or the same --group-by columns"
            )
    of_a, of_b = keyed
    matched = [_paired(of_a[key], of_b[key]) for key in of_a if key in of_b]
    if not matched:
        have = [
            f"{runs.source} has {', '.join(group.name for group in runs[:3])}" for runs in (a, b)
        ]
        raise UsageError(f"nothing to compare: {have[0]}, {have[1]}")
    only_a = [(group.group, group, None) for key, (_, group) in of_a.items() if key not in of_b]
    only_b = [(group.group, None, group) for key, (_, group) in of_b.items() if key not in of_a]
    differ = [name for name in fixed if values[0][name] != values[1][name] and name not in _MINOR]
    first_a, first_b = (side[0][0] for side in sides)
    return Pairs(
        (*matched, *only_a, *only_b),
        True,
        {name: (first_a[name], first_b[name]) for name in differ},
    )


def _identity(group: Group) -> dict:
    """Fields that identify a group; for recordings the configuration without cores and blocks."""
    configuration = group.configuration
    if configuration is None:
        return group.group
    left_out = ("kind", *telling(Tells.NEVER))
    found = {name: value for name, value in flat(configuration).items() if name not in left_out}
    return {
        **found,
        "machine": group.rounds[0].machine if group.rounds else None,
        "config_id": configuration.id,
    }


def _paired(a: tuple[dict, Group], b: tuple[dict, Group]) -> tuple[dict, Group, Group]:
    """The fields that two groups share, and the groups."""
    return (
        {name: value for name, value in a[0].items() if name in b[0] and b[0][name] == value},
        a[1],
        b[1],
    )


def _by(
    side: Sequence[tuple[dict, Group]], names: Sequence[str]
) -> dict[tuple, tuple[dict, Group]]:
    """The groups by their values of these fields; empty if two groups have the same values."""
    keyed = {tuple(repr(fields[name]) for name in names): (fields, group) for fields, group in side}
    return keyed if len(keyed) == len(side) else {}


#: Prefix of package versions; a package that only one side has loaded is not a difference.
VERSION = "version of "


def differences(a: Group, b: Group) -> list[str]:
    """Differences between the sides besides latency, `name: value in A -> value in B`."""
    values_a, values_b = _values_of(a), _values_of(b)
    found = []
    for name in dict.fromkeys([*values_a, *values_b]):
        in_a, in_b = values_a.get(name), values_b.get(name)
        if in_a != in_b and not (name.startswith(VERSION) and None in (in_a, in_b)):
            found.append(f"{name.replace('_', ' ')}: {_text(in_a)} -> {_text(in_b)}")
    for side, all_values in (("A", values_a), ("B", values_b)):
        found += [
            f"{name} differs between rounds of {side}"
            for name, values in all_values.items()
            if len(values) > 1
        ]
    ratio = control_ratio(a, b)
    if not 1 / ONE_PROCESS_RATIO <= ratio <= ONE_PROCESS_RATIO:
        found.append(f"control run (an empty step): B / A {ratio:.2f}")
    first = recorded_first(a, b)
    if first is not None:
        last = "B" if first == "A" else "A"
        found.append(
            f"order: all of {first} was recorded before {last}: a drift of the machine would look like a difference"
        )
    return found


def control_ratio(a: Group, b: Group) -> float:
    """Median of B's control runs over that of A's, which shows a change of the machine; 1 if not
    known."""
    runs = [
        [round_.control_ns for round_ in side.rounds if round_.control_ns is not None]
        for side in (a, b)
    ]
    if not all(runs):
        return 1.0
    median_a, median_b = (
        statistics.median_low(float(np.median(run)) for run in side) for side in runs
    )
    return median_b / median_a if median_a > 0 and median_b > 0 else 1.0


def shared(a: Group, b: Group) -> int:
    """Number of recordings that are on both sides."""
    of_a, of_b = (
        [(each.started_unix_ns, each.latency_ns.tobytes()) for each in side.rounds]
        for side in (a, b)
    )
    return sum(recording in of_b for recording in of_a)


def _values_of(side: Group) -> dict[str, set[str]]:
    """Name -> values on this side; several if the rounds differ."""
    fields, configuration = side.group, side.configuration
    if configuration is not None:
        version = version_text(configuration.runtime, configuration.runtime_version)
        fields = {**flat(configuration), "runtime_version": version}
    parts = [fields]
    for round_ in side.rounds:
        versions = {VERSION + name: version or None for name, version in round_.versions.items()}
        more = {"trials per process": round_.n, "telemetry": round_.telemetry}
        parts.append({"machine": round_.machine, **versions, **more})
    found: dict[str, set[str]] = {}
    for name, value in itertools.chain(*(part.items() for part in parts)):
        if (
            value is not None and name != "trials"
        ):  # as configured; "trials per process" is as recorded
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
    started: list[list[Any]] = [
        [round_.started_unix_ns for round_ in side.rounds] for side in (a, b)
    ]
    if None in started[0] + started[1] or not all(started):
        return None
    if max(started[0]) < min(started[1]):
        return "A"
    return "B" if max(started[1]) < min(started[0]) else None


def later_recording(group: Group, others: Iterable[Group]) -> Group | None:
    """The first of `others` that records the configuration of `group` again on its machine, after
    all of it.

    Its number of trials may differ.
    """

    def asked(each: Group) -> tuple:
        protocol = replace(each.configuration.protocol, trials=1, for_s=None)
        return replace(each.configuration, protocol=protocol).id, each.machine

    def begun(each: Group) -> list[int]:
        return [round_.started_unix_ns or 0 for round_ in each.rounds]

    recorded = (each for each in others if each.n and each.configuration is not None)
    later = (
        each
        for each in recorded
        if min(begun(each)) > max(begun(group)) and asked(each) == asked(group)
    )
    return min(later, key=begun, default=None)
