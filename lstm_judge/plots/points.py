"""Data of the figures of a sweep: one point per configuration, with its sizes, system and rounds.

A *system* is everything that a network ran on: runtime, version, device, options, arrivals. Points
of different systems are never combined or joined by a line. Rounds are never averaged: a maximum is
the largest of all rounds, any other statistic that of the middle round. The sizes that a figure
holds fixed are chosen and described here.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

import numpy as np

from lstm_judge.plots import style
from lstm_judge.plots.style import number, whole_range, with_micro
from lstm_judge.read.labels import differing, field_text, labels, with_version
from lstm_judge.read.rounds import Group, NoTrials, label_fields
from lstm_judge.read.runs import Runs, as_runs
from lstm_judge.statistics.trials import Trials, trials_of
from lstm_trt.config.errors import UsageError, check_number, one_of
from lstm_trt.config.format import listed
from lstm_trt.config.workload import AXES
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

#: Axes in the order in which a figure holds them fixed; of the first three the smallest value is
#: preferred.
_HELD = ("batch", "features", "directions", "layers", "sequence", "hidden")
_SMALLEST = _HELD[:3]


@dataclass(frozen=True)
class Point:
    """One configuration on one machine; `failures` are those of all rounds."""

    group: Group
    system: str
    sizes: dict[str, Any]
    rounds: tuple[Trials, ...]
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
    def runtime(self) -> str:
        return self.group.configuration.runtime

    @property
    def machine(self) -> str:
        return self.group.machine or self.group.configuration.device_name

    @property
    def network(self) -> str:
        return self.group.configuration.name

    @property
    def precision(self) -> str:
        return self.group.configuration.options.precision

    @property
    def floor_us(self) -> float | None:
        return next(
            (round_.floor_us for round_ in self.group.rounds if round_.floor_us is not None), None
        )

    def each_round(self, statistic: str) -> list[float]:
        return [each.statistic(statistic) for each in self.rounds]

    def statistic(self, name: str) -> float:
        """The largest maximum of all rounds, or another statistic of the middle round; NaN if all
        rounds failed."""
        values = self.each_round(name)
        if not values:
            return math.nan
        return max(values) if name == "max_us" else median_low(values)


@dataclass(frozen=True)
class Elsewhere:
    """One number for one network, from elsewhere, which a figure of points draws beside them; it
    has no trials."""

    system: str
    sizes: dict[str, Any]
    latency_us: float
    ok, failed, rounds, stages, floor_us, machine = True, False, (), (), None, ""

    @property
    def runtime(self) -> str:
        return self.system

    def statistic(self, name: str) -> float:
        """The number, whatever it is a statistic of; NaN as the maximum, which is not known."""
        return math.nan if name == "max_us" else self.latency_us


AnyPoint = Point | Elsewhere


def elsewhere(frame: Any, points: Sequence[Point], drawn: tuple[str, str, str]) -> list[Elsewhere]:
    """The rows of `frame` at the sizes of `points`; `drawn` are the axes of x, panels and lines.

    `frame` has the columns `label`, `latency_us` and axes, on x at any size. Raises `UsageError` if
    it lacks one of them, and if two rows have the same label and sizes or a label is that of a
    system, since a line would join them.
    """
    if missing := {"label", "latency_us", *drawn} - set(frame.columns):
        raise UsageError(
            f"the table to draw beside the recordings lacks the columns {listed(sorted(missing))}"
        )
    axes = [axis for axis in AXES if axis in frame.columns]
    for axis in {*axes} - {drawn[0]}:
        frame = frame[frame[axis].isin(values(points, axis))]
    repeated = frame[frame.duplicated(["label", *axes]) | frame["label"].isin(systems(points))]
    if len(repeated):
        raise UsageError(
            f"the table to draw beside the recordings has {repeated.iloc[0]['label']!r} twice at one size"
        )
    rows = frame.to_dict("records")
    return [
        Elsewhere(row["label"], {axis: row[axis] for axis in axes}, row["latency_us"])
        for row in rows
    ]


def reach(group: Group) -> float:
    """The largest maximum of a round as a multiple of its median."""
    return max(each.max_us / each.median_us for each in trials_of(group))


def points_of(runs: Any, without: Sequence[str] = ()) -> list[Point]:
    """One point per configuration recorded by this package, in the order of the runs; `without` as
    in `system_labels`.

    Raises `UsageError` if there is none: other tables state neither sizes nor runtimes.
    """
    runs = as_runs(runs)
    groups = [group for group in runs if group.configuration is not None]
    if not groups:
        raise UsageError(
            "nothing to draw: this figure needs recordings made by this package, which state their sizes"
        )
    failures = [item for item in runs.recordings if isinstance(item, Failure)]
    points = []
    for group, system in zip(groups, system_labels(groups, without), strict=True):
        found = [failure for failure in failures if _belongs_to(failure, group)]
        if not (found or group.n):  # its recordings are not available
            found = [group.failure or NoTrials(None, "no trials after warm-up")]
        points.append(
            Point(group, system, group.configuration.workload.axes, trials_of(group), tuple(found))
        )
    return points


def _belongs_to(failure: Failure, group: Group) -> bool:
    """Whether a failure is that of a round of this group; a group without rounds does not state its
    machine."""
    machines = (None, failure.provenance.get("machine_fingerprint"))
    return failure.configuration.id == group.configuration.id and group.machine in machines


def one_group(runs: Any) -> Group:
    """The only configuration of the runs. Raises `UsageError` if there is not exactly one."""
    runs = as_runs(runs)
    if len(runs) != 1:
        raise UsageError(
            f"this figure shows one configuration, but there are {len(runs)}: select one"
        )
    return runs[0]


def system_labels(groups: Sequence[Group], without: Sequence[str] = ()) -> list[str]:
    """A label for the system of each group: its runtime, and the properties that tell it from
    others of the groups.

    Properties in `without` are left out.
    """
    fields = [_system(group) | dict.fromkeys(without) for group in groups]
    texts, several = labels(fields, enough=True), len({each["runtime"] for each in fields}) > 1
    heads = ["" if several else each["runtime"] for each in fields]
    return [with_micro(", ".join(filter(None, pair))) for pair in zip(heads, texts, strict=True)]


def _workload(group: Group) -> str:
    """Name of a workload that is no stacked LSTM, without the sizes that are axes; else empty."""
    return str(
        group.configuration.workload.group_fields(group.configuration.mode).get("workload", "")
    )


def _system(group: Group) -> dict[str, Any]:
    """The properties of a group's system by name."""
    refused = {"graph": "refused"} if "graph_captured" in group.group else {}
    known = {
        "runtime": group.configuration.runtime,
        "workload": _workload(group),
        **label_fields(group),
    }
    return {**known, **refused, "cores": None}


def systems(points: Iterable[AnyPoint]) -> list[str]:
    """Labels of the systems, sorted."""
    return sorted({point.system for point in points})


def pages(runs: Runs, most: int) -> list[Runs]:
    """The runs in parts of at most so many systems."""
    points = points_of(runs)
    names = systems(points)
    parts = [names[start : start + most] for start in range(0, len(names), most)]
    return [
        replace(runs, groups=tuple(each.group for each in points if each.system in part))
        for part in parts
    ]


def system_looks(points: Iterable[AnyPoint]) -> dict[str, dict[str, Any]]:
    """Colour, marker and line style of each system; pass all points of a sweep, so that its figures
    agree.

    Each runtime has a colour and a marker, and its further systems darker colours; a single
    runtime's systems have those of their places. Line styles differ by machine.
    """
    found = {point.system: point for point in sorted(points, key=lambda point: point.system)}
    runtimes = style.runtime_looks(sorted({point.runtime for point in found.values()}))
    machines = sorted({point.machine for point in found.values()})
    alone, looks, taken = 1 == len(runtimes) < len(found), {}, Counter()
    for place, (system, point) in enumerate(found.items()):
        look = style.kind_looks(place + 1)[-1] if alone else dict(runtimes[point.runtime])
        if not alone:
            look["color"] = tuple(np.multiply(look["color"], 0.62 ** taken[point.runtime]))
        dashes = style.DASHES[machines.index(point.machine) % len(style.DASHES)]
        looks[system] = {**look, "linestyle": dashes}
        taken[point.runtime] += 1
    return looks


def values(points: Iterable[AnyPoint], axis: str) -> list[int]:
    """The sizes on an axis, ascending, without missing ones. Raises `UsageError` for an unknown
    axis."""
    one_of("axis", axis, AXES)
    return sorted({point.sizes[axis] for point in points} - {None})


def varied(points: Sequence[Point]) -> list[str]:
    """Axes on which a workload has more than one value, not those that only tell networks of users
    apart."""
    by_workload: dict[str, list[Point]] = {}
    for point in points:
        by_workload.setdefault(_workload(point.group), []).append(point)
    return [
        axis for axis in AXES if any(len(values(each, axis)) > 1 for each in by_workload.values())
    ]


def choose_networks(points: Sequence[Point], most: int) -> tuple[list[Point], list[str], str]:
    """The points of at most so many networks, these in the order of their fastest median, failures
    last, and a note.

    Of more they are those measured on most systems, spread evenly over the medians.
    """
    good = sorted(
        (point for point in points if point.ok), key=lambda point: -point.statistic("median_us")
    )
    fastest = {
        point.network: point.statistic("median_us") for point in good
    }  # the last one is the smallest
    measured_on = Counter(
        network for network, _ in {(point.network, point.system) for point in good}
    )
    every = {point.network for point in points}
    chosen = sorted(every, key=lambda network: (fastest.get(network, math.inf), network))
    if len(every) > most:
        widest = max(measured_on[network] for network in every)
        chosen = style.spread(
            [network for network in chosen if measured_on[network] == widest], most
        )
    some = f" {len(chosen)} of {len(every)} networks, spread evenly over their medians."
    note = some if len(chosen) < len(every) else ""
    return [point for point in points if point.network in chosen], chosen, note


def hold(
    rows: Sequence[Mapping[str, Any]], free: Sequence[str], fixed: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Choose a value for each axis that is not `free`: that in `fixed`, else the one with the most
    points.

    `rows` map axes to sizes, and "system" to a label. Ties are resolved to the smallest batch,
    features and directions, and to the middle value of the other axes. Raises `UsageError` for an
    unknown axis, and for a fixed value that was not measured.
    """
    fixed, held = fixed or {}, {}
    for axis in (*free, *fixed):
        one_of("axis", axis, AXES)
        if axis in free and axis in fixed:
            raise UsageError(f"{axis} is drawn and cannot be fixed")
    for axis in [*fixed, *(axis for axis in _HELD if axis not in fixed and axis not in free)]:
        places = {
            (row.get(axis), row.get("system"), *(row.get(name) for name in free)) for row in rows
        }
        drawn = Counter(size for size, *_ in places if size is not None)
        if axis in fixed and fixed[axis] not in drawn:
            raise UsageError(
                f"nothing was measured at {axis} = {fixed[axis]}: choose from {listed(sorted(drawn))}"
            )
        if not drawn:
            continue
        best = [size for size, total in drawn.items() if total == max(drawn.values())]
        held[axis] = (
            fixed[axis] if axis in fixed else min(best) if axis in _SMALLEST else median_low(best)
        )
        rows = [row for row in rows if row[axis] == held[axis]]
    return held


def at(sizes: Mapping[str, int], held: Mapping[str, int]) -> bool:
    """Whether the sizes match all held values."""
    return all(sizes[axis] == value for axis, value in held.items())


def hold_fixed(
    points: Sequence[Point], free: Sequence[str], fixed: Mapping[str, int] | None = None
) -> list[Point]:
    """The points at one value of every axis that is not `free`, see `hold`; successful points
    decide the choice."""
    points = [
        point for point in points if all(point.sizes.get(axis, 0) is not None for axis in free)
    ]
    if not points:
        raise UsageError(f"none of these workloads has the axes {listed(free)}: nothing to draw")
    # A size that differs only between networks of users is not held at one of them.
    several = {axis for axis in AXES if len(values(points, axis)) > 1} - {
        *varied(points),
        *free,
        *(fixed or {}),
    }
    good = [
        point for point in points if point.ok and not fixed
    ]  # all points at a requested value may have failed
    rows = [
        {**point.sizes, **dict.fromkeys(several), "system": point.system}
        for point in good or points
    ]
    held = hold(rows, free, fixed)
    return [point for point in points if at(point.sizes, held)]


def describe_systems(points: Iterable[Point], without: Sequence[str] = ()) -> str:
    """Runtimes with version, and the values of their options, by device; `without` as in
    `system_labels`.

    The mode is one of the options unless it is "forward" for all.
    """
    devices: dict[Any, list[dict[str, Any]]] = {}
    for point in points:
        fields = _system(point.group) | dict.fromkeys(without)
        fields["version"] = with_version(
            str(fields.pop("runtime")), point.group.configuration.runtime_version
        )
        devices.setdefault(str(fields.pop("device_name")), []).append(fields)
    texts = []
    for device, systems in devices.items():
        runtimes = dict.fromkeys(each.pop("version") for each in systems)
        names = [
            name for name in systems[0] if name in ("precision", "threads", *differing(systems))
        ]
        names += ["mode"] * (systems[0]["mode"] not in (None, "forward") and "mode" not in names)
        values = (dict.fromkeys(field_text(name, each[name]) for each in systems) for name in names)
        options = ", ".join(text for each in values if (text := " / ".join(filter(None, each))))
        texts.append(f"{', '.join(runtimes)} ({with_micro(options)}) on {device}")
    return " · ".join(texts)


def describe_extremes(points: Iterable[Point], statistic: str) -> str:
    """The smallest and the largest value of a statistic with their configurations, in one sentence."""
    good = sorted(
        (point for point in points if point.ok), key=lambda point: point.statistic(statistic)
    )
    if not good:
        return "No configuration succeeded."
    ends = [
        f"{number(point.statistic(statistic))} µs ({point.group.name})"
        for point in (good[0], good[-1])
    ]
    return f"The {STATISTIC_NAMES[statistic]} is {' to '.join(dict.fromkeys(ends))}."


def describe_fastest(points: Sequence[Point]) -> str:
    """In how many networks each system has the smallest median, in one sentence."""
    best: dict[str, Point] = {}
    for point in sorted(
        (point for point in points if point.ok), key=lambda point: point.statistic("median_us")
    ):
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


def describe_shown(what: str, shown: int, total: int) -> str:
    """How many systems, or sizes, are drawn, if not all."""
    return f"{shown} of {total} {what} are shown." if shown < total else ""


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
    if deadline_us is not None:
        check_number("the deadline must be a positive time in us", deadline_us, lambda us: us > 0)
