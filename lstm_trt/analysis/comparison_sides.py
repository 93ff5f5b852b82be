"""What differs between two recorded sides beside their latencies, and the command that records rounds of both."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Mapping

import numpy as np

from lstm_trt.analysis.certainty import ONE_PROCESS_RATIO
from lstm_trt.configuration import Configuration
from lstm_trt.flags import DEFAULTS, flags_of
from lstm_trt.samples import Group, Sample

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
    if a.configuration.of_literature or b.configuration.of_literature:
        return _literature(a.configuration, b.configuration, rounds)
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


def _literature(one: Configuration, other: Configuration, rounds: int) -> str | None:
    """The commands for workloads of the literature; None where one side is a shape of this lab."""
    from lstm_trt.literature.recording import command as command_of

    if not (one.of_literature and other.of_literature):
        return None
    return " && ".join(dict.fromkeys(command_of(side, "rounds", rounds) for side in (one, other)))


def _sweep(flags: Mapping[str, tuple[str, ...]], rounds: int) -> str:
    words = [word for flag, values in flags.items() for word in (flag, *values)]
    return shlex.join(["lstm-trt", "sweep", *words, "--rounds", str(rounds), "--out", "rounds"])
