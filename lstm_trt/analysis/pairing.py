"""Which configuration of one source is compared with which of another.

What is the same throughout one source, and the same throughout the other, is what the comparison
is about (another runtime, another version, another machine) and does not keep two from being
matched; what varies within a source tells its configurations apart, and has to be equal.

What differs between two recorded sides beside their latencies, and the command that records rounds of both.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lstm_trt.analysis.quantiles import ONE_PROCESS_RATIO
from lstm_trt.config.errors import UsageError
from lstm_trt.config.labels import DEFAULTS, flags_of
from lstm_trt.store.runs import Runs
from lstm_trt.store.samples import Group, Sample

#: Tell recordings of one configuration apart; they count only where nothing else does.
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
        one, other = told(a.groups[0]), told(b.groups[0])
        shared = {name: value for name, value in one.items() if name in other and other[name] == value}
        return Pairs(((shared, a.groups[0], b.groups[0]),), several=bool(a.group_by or b.group_by))
    sides = [[told(group) for group in read.groups] for read in (a, b)]
    names = [name for name in sides[0][0] if all(name in one for side in sides for one in side)]
    values = [{name: {repr(one[name]) for one in side} for name in names} for side in sides]
    fixed = [name for name in names if len(values[0][name]) == len(values[1][name]) == 1]
    free = [name for name in names if name not in fixed]
    major = [name for name in free if name not in _MINOR]
    keyed = [_by(side, read.groups, major) for side, read in zip(sides, (a, b), strict=True)]
    if None in keyed:
        keyed = [_by(side, read.groups, free) for side, read in zip(sides, (a, b), strict=True)]
    for side, read in zip(keyed, (a, b), strict=True):
        if side is None:
            raise UsageError(
                f"{read.source} holds several configurations that cannot be told apart by {', '.join(free) or 'a name'}"
                " in both: give one configuration a side, or the same --group-by columns"
            )
    matched = [key for key in keyed[0] if key in keyed[1]]
    differ = {name: (sides[0][0][name], sides[1][0][name]) for name in fixed if values[0][name] != values[1][name]}
    if not matched:
        have = [", ".join(group.name for group in read.groups[:3]) for read in (a, b)]
        raise UsageError(f"nothing to compare: {a.source} has {have[0]}, {b.source} has {have[1]}")
    pairs = []
    for key in matched:
        one, other = told(keyed[0][key]), told(keyed[1][key])
        shared = {name: value for name, value in one.items() if name in other and other[name] == value}
        pairs.append((shared, keyed[0][key], keyed[1][key]))
    return Pairs(
        tuple(pairs),
        tuple(group for key, group in keyed[0].items() if key not in keyed[1]),
        tuple(group for key, group in keyed[1].items() if key not in keyed[0]),
        True,
        {name: both for name, both in differ.items() if name not in _MINOR},
    )


def told(group: Group) -> dict:
    """What tells a group from others: of a recording of this lab everything that was configured."""
    if group.configuration is None:
        return group.group
    plain = group.configuration.as_dict()
    options = {name: value for name, value in plain["options"].items() if name != "cores"}
    protocol = {name: plain["protocol"].get(name) for name in ("arrival", "wait", "period_us", "pause_ms")}
    protocol |= {name: plain["protocol"].get(name) for name in ("trials", "warmup", "seed", "for_s")}
    workload = {name: value for name, value in plain["workload"].items() if name != "kind"}
    said = {**workload, "mode": plain["mode"], "runtime": plain["runtime"], **options, **protocol}
    said |= {name: plain[name] for name in ("runtime_version", "device_name")}
    machine = group.samples[0].machine if group.samples else None
    return {**said, "machine": machine, "config_id": group.configuration.id}


def _by(side: Sequence[dict], groups: Sequence[Group], names: Sequence[str]) -> dict[tuple, Group] | None:
    """The groups by their values of these names; None where two have the same."""
    keyed = {tuple(repr(one[name]) for name in names): group for one, group in zip(side, groups, strict=True)}
    return keyed if len(keyed) == len(groups) else None


#: Axes of which a sweep takes several values, so that it interleaves them.
SWEPT = ("--layers", "--hidden", "--sequence", "--batch", "--features", "--directions", "--runtime")

#: A package that one side has not loaded is no difference: its runtime is, and is told.
VERSION = "version of "


def differences(a: Group, b: Group) -> list[str]:
    """What is not the same on both sides, `name: A's -> B's`; any of it may be why latencies differ."""
    one, other = _told(a), _told(b)
    found = []
    for name in dict.fromkeys([*one, *other]):
        mine, its = one.get(name), other.get(name)
        if mine == its or (name.startswith(VERSION) and None in (mine, its)):
            continue
        found.append(f"{name.replace('_', ' ')}: {_values(mine)} -> {_values(its)}")
    for side, told in (("A", one), ("B", other)):
        found += [f"{name} is not the same in all rounds of {side}" for name, values in told.items() if len(values) > 1]
    ratio = control_ratio(a, b)
    if not 1 / ONE_PROCESS_RATIO <= ratio <= ONE_PROCESS_RATIO:
        found.append(f"control run of an empty step: B / A {ratio:.2f}, the machine was not in one state")
    return found + _order(a, b)


def control_ratio(a: Group, b: Group) -> float:
    """Median of B's control runs over that of A's: how much faster or slower the machine itself was; 1 if not known."""
    runs = [[one.control_ns for one in side.samples if one.control_ns is not None] for side in (a, b)]
    if not all(runs):
        return 1.0
    one, other = (statistics.median_low(float(np.median(run)) for run in side) for side in runs)
    return other / one if one > 0 and other > 0 else 1.0


def shared(a: Group, b: Group) -> int:
    """Recordings that are on both sides."""
    return sum(any(_same(one, other) for other in b.samples) for one in a.samples)


def _same(one: Sample, other: Sample) -> bool:
    return one.started_unix_ns == other.started_unix_ns and np.array_equal(one.latency_ns, other.latency_ns)


def _told(side: Group) -> dict[str, frozenset[str]]:
    """Name -> its values on this side: one, or several where the rounds are not alike."""
    told: dict[str, set[str]] = {}

    def put(values: Mapping[str, object]) -> None:
        for name, value in values.items():
            if value is not None:
                told.setdefault(name, set()).add(str(value))

    if side.configuration is not None:
        plain = side.configuration.as_dict()
        put(plain["workload"])
        put({name: plain.get(name) for name in ("mode", "runtime", "runtime_version", "device_name")})
        put(plain["options"] | plain["protocol"])
    else:
        put(side.group)
    for sample in side.samples:
        put({"machine": sample.machine})
        put({VERSION + name: version or None for name, version in sample.versions.items()})
        put({"trials of a process": len(sample.timed_ns)})
    told.pop("trials", None)  # those that were asked for: the same thing said twice
    return {name: frozenset(values) for name, values in told.items()}


def _values(values: Iterable[str] | None) -> str:
    ordered = sorted(values or (), key=lambda text: (len(text), text))
    return " and ".join(ordered) if len(ordered) < 4 else f"{ordered[0]} to {ordered[-1]}" if ordered else "not known"


def _order(a: Group, b: Group) -> list[str]:
    """Rounds that were not interleaved: what the machine did in between looks like a difference."""
    started = [[sample.started_unix_ns for sample in side.samples] for side in (a, b)]
    if None in started[0] + started[1] or min(map(len, started)) < 2:
        return []
    for (first, second), names in ((started, "AB"), (started[::-1], "BA")):
        if max(first) < min(second):
            return [f"order: all rounds of {names[0]} were recorded before those of {names[1]}"]
    return []


def command(a: Group, b: Group, rounds: int) -> str | None:
    """The sweep that records so many rounds of both sides, interleaved where one sweep can; None for foreign ones.

    Where both are one configuration the command is to be run once for each side, with a folder each.
    """
    if a.configuration is None or b.configuration is None:
        return None
    own = [side.configuration.workload.command(side.configuration, "rounds", rounds) for side in (a, b)]
    if any(own):
        return " && ".join(dict.fromkeys(own)) if all(own) else None
    one, other = flags_of(a.configuration), flags_of(b.configuration)
    differ = [flag for flag in one.keys() | other.keys() if one.get(flag) != other.get(flag)]
    if not differ:
        return _sweep(one, rounds)
    if len(differ) == 1 and differ[0] in SWEPT:
        flag = differ[0]
        return _sweep(
            {**one, flag: (*one.get(flag, (DEFAULTS.get(flag),)), *other.get(flag, (DEFAULTS.get(flag),)))}, rounds
        )
    return f"{_sweep(one, rounds)} && {_sweep(other, rounds)}"


def _sweep(flags: Mapping[str, tuple[str, ...]], rounds: int) -> str:
    words = [word for flag, values in flags.items() for word in (flag, *values)]
    return shlex.join(["lstm-trt", "sweep", *words, "--rounds", str(rounds), "--out", "rounds"])
