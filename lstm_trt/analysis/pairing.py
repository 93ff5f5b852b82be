"""Which configuration of one source is compared with which of another, and what differs beside their latencies.

What is the same throughout one source, and the same throughout the other, is what the comparison
is about (another runtime, another version, another machine) and does not keep two from being
matched; what varies within a source tells its configurations apart, and has to be equal.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lstm_trt.analysis.quantiles import ONE_PROCESS_RATIO
from lstm_trt.config.errors import UsageError
from lstm_trt.config.labels import configuration_fields
from lstm_trt.store.runs import Runs
from lstm_trt.store.samples import Group

#: These count only where nothing else tells configurations apart.
_MINOR = ("trials", "warmup", "seed", "for_s", "runtime_version", "device_name", "machine", "config_id")


@dataclass(frozen=True)
class Pairs:
    """`pairs`: (group, A's, B's), where `group` has what they share. The others are on one side only."""

    pairs: tuple[tuple[dict, Group, Group], ...]
    only_a: tuple[Group, ...] = ()
    only_b: tuple[Group, ...] = ()
    several: bool = False
    differ: dict[str, tuple] = field(default_factory=dict)


def pair(a: Runs, b: Runs) -> Pairs:
    """The groups of B that answer the same question as those of A.

    One group a side is compared whatever it is called. Raises `UsageError` where nothing can be
    matched, or where it cannot be told which of several belong together.
    """
    if len(a.groups) == len(b.groups) == 1:
        return Pairs(((_shared_fields(a[0], b[0]), a[0], b[0]),), several=bool(a.group_by or b.group_by))
    sides = [[_identity(group) for group in runs] for runs in (a, b)]
    names = [name for name in sides[0][0] if all(name in fields for side in sides for fields in side)]
    values = [{name: {repr(fields[name]) for fields in side} for name in names} for side in sides]
    fixed = [name for name in names if len(values[0][name]) == len(values[1][name]) == 1]
    free = [name for name in names if name not in fixed]
    major = [name for name in free if name not in _MINOR]
    keyed = [_by(side, runs.groups, major) for side, runs in zip(sides, (a, b), strict=True)]
    if None in keyed:
        keyed = [_by(side, runs.groups, free) for side, runs in zip(sides, (a, b), strict=True)]
    for side, runs in zip(keyed, (a, b), strict=True):
        if side is None:
            raise UsageError(
                f"{runs.source} holds several configurations that cannot be told apart by {', '.join(free) or 'a name'}"
                " in both: give one configuration a side, or the same --group-by columns"
            )
    matched = [key for key in keyed[0] if key in keyed[1]]
    differ = {name: (sides[0][0][name], sides[1][0][name]) for name in fixed if values[0][name] != values[1][name]}
    if not matched:
        have = [", ".join(group.name for group in runs[:3]) for runs in (a, b)]
        raise UsageError(f"nothing to compare: {a.source} has {have[0]}, {b.source} has {have[1]}")
    both = [(keyed[0][key], keyed[1][key]) for key in matched]
    return Pairs(
        tuple((_shared_fields(*groups), *groups) for groups in both),
        tuple(group for key, group in keyed[0].items() if key not in keyed[1]),
        tuple(group for key, group in keyed[1].items() if key not in keyed[0]),
        True,
        {name: values for name, values in differ.items() if name not in _MINOR},
    )


def _identity(group: Group) -> dict:
    """What tells a group from others: of a recording of this lab what was configured, but for cores and blocks."""
    configuration = group.configuration
    if configuration is None:
        return group.group
    fields = configuration_fields(configuration)
    left_out = ("kind", "cores", "block_trials", "block_ms", "settle")
    found = {name: value for name, value in fields.items() if name not in left_out}
    return {**found, "machine": group.samples[0].machine if group.samples else None, "config_id": configuration.id}


def _shared_fields(a: Group, b: Group) -> dict:
    fields_b = _identity(b)
    return {name: value for name, value in _identity(a).items() if name in fields_b and fields_b[name] == value}


def _by(side: Sequence[dict], groups: Sequence[Group], names: Sequence[str]) -> dict[tuple, Group] | None:
    """The groups by their values of these names; None where two have the same."""
    keyed = {tuple(repr(fields[name]) for name in names): group for fields, group in zip(side, groups, strict=True)}
    return keyed if len(keyed) == len(groups) else None


#: A package that one side has not loaded is no difference: its runtime is, and is named.
VERSION = "version of "


def differences(a: Group, b: Group) -> list[str]:
    """What is not the same on both sides, `name: A's -> B's`; any of it may be why latencies differ."""
    seen_a, seen_b = _values_seen(a), _values_seen(b)
    found = []
    for name in dict.fromkeys([*seen_a, *seen_b]):
        mine, its = seen_a.get(name), seen_b.get(name)
        if mine == its or (name.startswith(VERSION) and None in (mine, its)):
            continue
        found.append(f"{name.replace('_', ' ')}: {_values(mine)} -> {_values(its)}")
    for side, seen in (("A", seen_a), ("B", seen_b)):
        found += [f"{name} is not the same in all rounds of {side}" for name, values in seen.items() if len(values) > 1]
    ratio = control_ratio(a, b)
    if not 1 / ONE_PROCESS_RATIO <= ratio <= ONE_PROCESS_RATIO:
        found.append(f"control run of an empty step: B / A {ratio:.2f}, the machine was not in one state")
    first = recorded_first(a, b)
    if first is not None:
        found.append(f"order: all rounds of {first} were recorded before those of {'B' if first == 'A' else 'A'}")
    return found


def control_ratio(a: Group, b: Group) -> float:
    """Median of B's control runs over that of A's: how much faster or slower the machine itself was; 1 if not known."""
    runs = [[sample.control_ns for sample in side.samples if sample.control_ns is not None] for side in (a, b)]
    if not all(runs):
        return 1.0
    of_a, of_b = (statistics.median_low(float(np.median(run)) for run in side) for side in runs)
    return of_b / of_a if of_a > 0 and of_b > 0 else 1.0


def shared(a: Group, b: Group) -> int:
    """Recordings that are on both sides."""
    return sum(
        any(
            mine.started_unix_ns == its.started_unix_ns and np.array_equal(mine.latency_ns, its.latency_ns)
            for its in b.samples
        )
        for mine in a.samples
    )


def _values_seen(side: Group) -> dict[str, frozenset[str]]:
    """Name -> its values on this side: one, or several where the rounds are not alike."""
    seen: dict[str, set[str]] = {}

    def add(values: Mapping[str, object]) -> None:
        for name, value in values.items():
            if value is not None:
                seen.setdefault(name, set()).add(str(value))

    add(side.group if side.configuration is None else configuration_fields(side.configuration))
    for sample in side.samples:
        add({"machine": sample.machine})
        add({VERSION + name: version or None for name, version in sample.versions.items()})
        add({"trials of a process": len(sample.timed_ns)})
    seen.pop("trials", None)  # as asked for; those of a process are as recorded
    return {name: frozenset(values) for name, values in seen.items()}


def _values(values: Iterable[str] | None) -> str:
    ordered = sorted(values or (), key=lambda text: (len(text), text))
    return " and ".join(ordered) if len(ordered) < 4 else f"{ordered[0]} to {ordered[-1]}" if ordered else "not known"


def recorded_first(a: Group, b: Group) -> str | None:
    """The side, "A" or "B", all of whose rounds were recorded before those of the other; None where they took turns.

    What the machine did in between then looks like a difference.
    """
    started = [[sample.started_unix_ns for sample in side.samples] for side in (a, b)]
    if None in started[0] + started[1] or min(map(len, started)) < 2:
        return None
    if max(started[0]) < min(started[1]):
        return "A"
    return "B" if max(started[1]) < min(started[0]) else None
