"""Data of the figures of a sweep: one point per configuration, with its sizes, system and rounds.

A *system* is everything that a network ran on: runtime, version, device, options, arrivals. Points of different
systems are never combined or joined by a line. Rounds are never averaged: a maximum is the largest of all rounds, any
other statistic that of the middle round. The sizes that a figure holds fixed are chosen and described here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median_low
from typing import Any

import numpy as np

from lstm_trt.analysis.series import Series, rounds_of
from lstm_trt.config.errors import UsageError, one_of
from lstm_trt.config.format import listed
from lstm_trt.config.workload import AXES
from lstm_trt.plots.style import count, number, whole_range, with_micro
from lstm_trt.store.runs import as_runs
from lstm_trt.store.samples import Group, NoTrials
from lstm_trt.store.schema import Failure

AXIS_NAMES = {
    "layers": "layers",
    "hidden": "hidden size",
    "sequence": "sequence length",
    "batch": "batch size",
    "features": "input features",
    "directions": "directions",
}

STATISTIC_NAMES = {
    "min_us": "minimum",
    "mean_us": "mean",
    "median_us": "median",
    "p90_us": "90th percentile",
    "p99_us": "99th percentile",
    "p999_us": "99.9th percentile",
    "max_us": "maximum",
}

#: Axis -> (axis of the panels, axis of the lines), as in the founding document.
ARRANGEMENT = dict.fromkeys(AXIS_NAMES, ("layers", "hidden"))
ARRANGEMENT |= {"hidden": ("layers", "sequence"), "layers": ("sequence", "hidden")}

#: Axes in the order in which a figure holds them fixed; of the first three the smallest value is preferred.
_HELD = ("batch", "features", "directions", "layers", "sequence", "hidden")
_SMALLEST = _HELD[:3]


@dataclass(frozen=True)
class Point:
    """One configuration on one machine; `failures` are those of all rounds."""

    group: Group
    system: str
    sizes: dict[str, Any]
    rounds: tuple[Series, ...]
    failures: tuple[Failure | NoTrials, ...] = ()

    @property
    def ok(self) -> bool:
        return bool(self.rounds)

    @property
    def failed(self) -> bool:
        """Whether any round failed."""
        return bool(self.failures) or not self.ok

    @property
    def stages(self) -> list[str]:
        """The stages at which rounds failed; "failed" if unknown."""
        return sorted({failure.stage or "failed" for failure in self.failures})

    @property
    def network(self) -> str:
        return self.group.configuration.name

    @property
    def precision(self) -> str:
        return self.group.configuration.options.precision

    @property
    def parity_error(self) -> float | None:
        """The largest of all rounds; None if it was not checked."""
        return self.group.parity_error if self.ok else None

    @property
    def floor_us(self) -> float | None:
        return next((sample.floor_us for sample in self.group.samples if sample.floor_us is not None), None)

    def each_round(self, statistic: str) -> list[float]:
        return [each.statistic(statistic) for each in self.rounds]

    def statistic(self, name: str) -> float:
        """The largest maximum of all rounds, or another statistic of the middle round; NaN if all rounds failed."""
        values = self.each_round(name)
        if not values:
            return math.nan
        return max(values) if name == "max_us" else median_low(values)


@dataclass(frozen=True)
class Elsewhere:
    """One number for one network, from elsewhere, which a figure of points draws beside them; it has no trials."""

    system: str
    sizes: dict[str, Any]
    latency_us: float
    ok, failed, rounds, stages, floor_us = True, False, (), (), None

    def statistic(self, name: str) -> float:
        """The number, whatever it is a statistic of; NaN as the maximum, which is not known."""
        return math.nan if name == "max_us" else self.latency_us


AnyPoint = Point | Elsewhere


def elsewhere(frame: Any, points: Sequence[Point], drawn: tuple[str, str, str]) -> list[Elsewhere]:
    """The rows of `frame` at the sizes of `points`; `drawn` are the axes of x, panels and lines.

    `frame` has the columns `label`, `latency_us` and axes, on x at any size. Raises `UsageError` if it lacks one of
    them, and if two rows have the same label and sizes or a label is that of a system, since a line would join them.
    """
    if missing := {"label", "latency_us", *drawn} - set(frame.columns):
        raise UsageError(f"the table to draw beside the recordings lacks the columns {listed(sorted(missing))}")
    axes = [axis for axis in AXES if axis in frame.columns]
    for axis in {*axes} - {drawn[0]}:
        frame = frame[frame[axis].isin(values(points, axis))]
    repeated = frame[frame.duplicated(["label", *axes]) | frame["label"].isin(systems(points))]
    if len(repeated):
        raise UsageError(f"the table to draw beside the recordings has {repeated.iloc[0]['label']!r} twice at one size")
    rows = frame.to_dict("records")
    return [Elsewhere(row["label"], {axis: row[axis] for axis in axes}, row["latency_us"]) for row in rows]


def reach(group: Group) -> float:
    """The largest maximum of a round as a multiple of its median."""
    return max(each.max_us / each.median_us for each in rounds_of(group))


def points_of(runs: Any, without: Sequence[str] = ()) -> list[Point]:
    """One point per configuration recorded by this package, in the order of the runs; `without` as in `system_labels`.

    Raises `UsageError` if there is none: other tables state neither sizes nor runtimes.
    """
    runs = as_runs(runs)
    groups = [group for group in runs if group.configuration is not None]
    if not groups:
        raise UsageError("nothing to draw: this figure needs recordings made by this package, which state their sizes")
    failures = [item for item in runs.recordings if isinstance(item, Failure)]
    points = []
    for group, system in zip(groups, system_labels(groups, without), strict=True):
        found = [failure for failure in failures if _belongs_to(failure, group)]
        if not (found or group.n):  # its recordings are not available
            found = [group.failure or NoTrials(None, "no trials after warm-up")]
        points.append(Point(group, system, group.configuration.workload.axes, rounds_of(group), tuple(found)))
    return points


def _belongs_to(failure: Failure, group: Group) -> bool:
    """Whether a failure is that of a round of this group; a group without samples does not state its machine."""
    machines = (None, failure.provenance.get("machine_fingerprint"))
    return failure.configuration.id == group.configuration.id and group.machine in machines


def one_group(runs: Any) -> Group:
    """The only configuration of the runs. Raises `UsageError` if there is not exactly one."""
    runs = as_runs(runs)
    if len(runs) != 1:
        raise UsageError(f"this figure shows one configuration, but there are {len(runs)}: select one")
    return runs[0]


def system_labels(groups: Sequence[Group], without: Sequence[str] = ()) -> list[str]:
    """A label for the system of each group: its runtime, and the properties that differ among the groups.

    The version is included only if a runtime has several. Properties in `without` are left out.
    """
    fields = [{**_system(group), **dict.fromkeys(without)} for group in groups]
    shown = [name for name in _differing(fields) if name != "runtime"]
    versions = {(system["runtime"], system["version"]) for system in fields}
    if "version" in shown and len(versions) == len({system["runtime"] for system in fields}):
        shown.remove("version")
    labels = []
    for system in fields:
        named = " ".join(system[name] for name in ("runtime", "version") if name == "runtime" or name in shown)
        rest = [system[name] for name in shown if name not in ("version", "device_name")]
        device = f" on {system['device_name']}" if "device_name" in shown else ""
        labels.append(", ".join(filter(None, [named, *rest])) + device)
    return labels


def _workload(group: Group) -> str:
    """Name of a workload that is no stacked LSTM, without the sizes that are axes; else empty."""
    return str(group.configuration.workload.group_fields(group.configuration.mode).get("workload", ""))


def _system(group: Group) -> dict[str, Any]:
    """The properties of a group's system as text, by name; "" for a default that is not mentioned, None if unknown."""
    configuration, machine = group.configuration, group.machine
    fields = {**asdict(configuration.options), **asdict(configuration.protocol)}
    for name in ("precision", "threads", "graph", "device_index", "arrival", "wait", "period_us", "pause_ms", "for_s"):
        del fields[name]
    return {
        "runtime": configuration.runtime,
        "version": configuration.runtime_version,
        "workload": _workload(group),
        "precision": configuration.options.precision,
        "threads": count(configuration.options.threads, "thread"),
        "mode": configuration.mode,
        "graph": ("graph" + " refused" * ("graph_captured" in group.group)) * configuration.options.graph,
        "arrival": with_micro(configuration.protocol.arrival_text),
        **{name: f"{name.replace('_', ' ')} {value}" for name, value in fields.items()},
        "device_name": configuration.device_name,
        "machine": f"machine {machine[:12]}" if machine else None,
    }


def _differing(fields: Sequence[Mapping[str, Any]]) -> list[str]:
    """The properties that differ among systems, without those of a machine that its device's name already tells."""
    names = [name for name in fields[0] if len({each[name] for each in fields} - {None}) > 1]
    of_machine = ("cores", "device", "machine")
    told = {name: {(each["device_name"], each[name]) for each in fields} for name in of_machine}
    devices = {each["device_name"] for each in fields}
    return [name for name in names if len(told.get(name, ())) != len(devices)]


def systems(points: Iterable[AnyPoint]) -> list[str]:
    """Labels of the systems, sorted."""
    return sorted({point.system for point in points})


def values(points: Iterable[AnyPoint], axis: str) -> list[int]:
    """The sizes on an axis, ascending, without missing ones. Raises `UsageError` for an unknown axis."""
    one_of("axis", axis, AXES)
    return sorted({point.sizes[axis] for point in points} - {None})


def varied(points: Sequence[Point]) -> list[str]:
    """Axes on which a workload has more than one value, not those that only tell networks of users apart."""
    by_workload: dict[str, list[Point]] = {}
    for point in points:
        by_workload.setdefault(_workload(point.group), []).append(point)
    return [axis for axis in AXES if any(len(values(each, axis)) > 1 for each in by_workload.values())]


def choose_networks(points: Sequence[Point], most: int) -> tuple[list[Point], list[str], str]:
    """The points of at most so many networks, these in the order of their fastest median, failures last, and a note.

    Of more they are those measured on most systems, spread evenly over the medians.
    """
    good = sorted((point for point in points if point.ok), key=lambda point: -point.statistic("median_us"))
    fastest = {point.network: point.statistic("median_us") for point in good}  # the last one is the smallest
    measured_on = Counter(network for network, _ in {(point.network, point.system) for point in good})
    every = {point.network for point in points}
    chosen = sorted(every, key=lambda network: (fastest.get(network, math.inf), network))
    if len(every) > most:
        widest = max(measured_on[network] for network in every)
        chosen = spread([network for network in chosen if measured_on[network] == widest], most)
    some = f" {len(chosen)} of {len(every)} networks, spread evenly over their medians."
    note = some if len(chosen) < len(every) else ""
    return [point for point in points if point.network in chosen], chosen, note


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the items, at equal distances, with the first and the last."""
    places = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[place] for place in places]


def hold(
    rows: Sequence[Mapping[str, Any]], free: Sequence[str], fixed: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Choose a value for each axis that is not `free`: that in `fixed`, else the one with the most points.

    `rows` map axes to sizes, and "system" to a label. Ties are resolved to the smallest batch, features and
    directions, and to the middle value of the other axes. Raises `UsageError` for an unknown axis, and for a fixed
    value that was not measured.
    """
    fixed, held = fixed or {}, {}
    for axis in (*free, *fixed):
        one_of("axis", axis, AXES)
        if axis in free and axis in fixed:
            raise UsageError(f"{axis} is drawn and cannot be fixed")
    for axis in [*fixed, *(axis for axis in _HELD if axis not in fixed and axis not in free)]:
        places = {(row.get(axis), row.get("system"), *(row.get(name) for name in free)) for row in rows}
        drawn = Counter(size for size, *_ in places if size is not None)
        if axis in fixed and fixed[axis] not in drawn:
            raise UsageError(f"nothing was measured at {axis} = {fixed[axis]}: choose from {listed(sorted(drawn))}")
        if not drawn:
            continue
        best = [size for size, total in drawn.items() if total == max(drawn.values())]
        held[axis] = fixed[axis] if axis in fixed else min(best) if axis in _SMALLEST else median_low(best)
        rows = [row for row in rows if row[axis] == held[axis]]
    return held


def at(sizes: Mapping[str, int], held: Mapping[str, int]) -> bool:
    """Whether the sizes match all held values."""
    return all(sizes[axis] == value for axis, value in held.items())


def hold_fixed(points: Sequence[Point], free: Sequence[str], fixed: Mapping[str, int] | None = None) -> list[Point]:
    """The points at one value of every axis that is not `free`, see `hold`; successful points decide the choice."""
    points = [point for point in points if all(point.sizes.get(axis, 0) is not None for axis in free)]
    if not points:
        raise UsageError(f"none of these workloads has the axes {listed(free)}: nothing to draw")
    # A size that differs only between networks of users is not held at one of them.
    several = {axis for axis in AXES if len(values(points, axis)) > 1} - {*varied(points), *free, *(fixed or {})}
    good = [point for point in points if point.ok and not fixed]  # all points at a requested value may have failed
    rows = [{**point.sizes, **dict.fromkeys(several), "system": point.system} for point in good or points]
    held = hold(rows, free, fixed)
    return [point for point in points if at(point.sizes, held)]


def describe_systems(points: Iterable[Point], without: Sequence[str] = ()) -> str:
    """Runtimes with version and options, grouped by device and by equal options; `without` as in `system_labels`.

    The mode is one of the options unless it is "forward" for all.
    """
    fields = list({point.system: _system(point.group) for point in points}.values())
    always = ("precision", "threads", *("mode" for each in fields if each["mode"] != "forward"))
    options: dict[tuple[str, str], list[str]] = {}
    for each in fields:
        names = dict.fromkeys((*always, *_differing(fields)))
        shown = [each[name] for name in names if name not in ("runtime", "version", "device_name", *without)]
        system = each["device_name"], f"{each['runtime']} {each['version']}"
        options.setdefault(system, []).append(", ".join(filter(None, shown)))
    devices: dict[str, dict[str, list[str]]] = {}
    for (device, runtime), texts in options.items():
        devices.setdefault(device, {}).setdefault(" and ".join(dict.fromkeys(texts)), []).append(runtime)
    return " · ".join(
        "; ".join(f"{', '.join(runtimes)} ({text})" for text, runtimes in by_options.items()) + f" on {device}"
        for device, by_options in devices.items()
    )


def describe_extremes(points: Iterable[Point], statistic: str) -> str:
    """The smallest and the largest value of a statistic with their configurations, in one sentence."""
    good = sorted((point for point in points if point.ok), key=lambda point: point.statistic(statistic))
    if not good:
        return "No configuration succeeded."
    ends = [f"{number(point.statistic(statistic))} µs ({point.group.name})" for point in (good[0], good[-1])]
    return f"The {STATISTIC_NAMES[statistic]} is {' to '.join(dict.fromkeys(ends))}."


def describe_fastest(points: Sequence[Point]) -> str:
    """In how many networks each system has the smallest median, in one sentence."""
    best: dict[str, Point] = {}
    for point in sorted((point for point in points if point.ok), key=lambda point: point.statistic("median_us")):
        best.setdefault(point.network, point)
    wins = Counter(point.system for point in best.values()).most_common()
    counted = " and ".join(f"{system} in {total} of {len(best)} networks" for system, total in wins)
    return f"The smallest median is that of {counted}." if wins else "No configuration succeeded."


def describe_counts(points: Iterable[Point]) -> str:
    """The number of trials and rounds per configuration."""
    rounds = [point.rounds for point in points if point.ok]
    if not rounds:
        return "no configuration succeeded"
    lengths = [each.n for several in rounds for each in several]
    noun = "trial" if max(lengths) == 1 else "trials"
    text = f"n = {whole_range(lengths)} {noun} per configuration after warm-up"
    most_rounds = max(map(len, rounds))
    return text + (f" in each of {most_rounds} rounds" if most_rounds > 1 else "")


def describe_fixed(points: Sequence[Point], drawn: Sequence[str]) -> str:
    """The sizes that a figure holds fixed: those of which all points have the same value."""
    common = {axis: values(points, axis) for axis in AXES if axis not in drawn}
    sizes = [axis_value(axis, found[0]) for axis, found in common.items() if len(found) == 1]
    return f"Fixed: {', '.join(sizes)}." if sizes else ""


def describe_shown(axis: str, shown: Sequence[int], total: int) -> str:
    """Which values of an axis have a panel, if not all."""
    return f"{len(shown)} of {total} values of {AXIS_NAMES[axis]} are shown." if len(shown) < total else ""


def describe_rounds(points: Iterable[Point]) -> str:
    """How several rounds are shown; empty if there is only one."""
    if all(len(point.rounds) < 2 for point in points):
        return ""
    return "Of several rounds the middle one is shown, for maxima the largest; small marks are single rounds."


def axis_value(axis: str, value: int) -> str:
    """A size as text: 2 layers, batch 4."""
    if axis == "directions":
        return "unidirectional" if value == 1 else "bidirectional"
    if axis in ("layers", "features"):
        return f"{value} {AXIS_NAMES[axis][:-1] if value == 1 else AXIS_NAMES[axis]}"
    return f"{axis} {value}"


def check_deadline(deadline_us: float | None) -> None:
    if deadline_us is not None and not (np.isfinite(deadline_us) and deadline_us > 0):
        raise UsageError(f"the deadline must be a positive number of microseconds, not {deadline_us}")
