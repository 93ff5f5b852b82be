"""Data of the figures of a sweep: one point per configuration, with its sizes, system and rounds.

A *system* is everything that a network ran on: runtime, version, device, options, arrivals. Points
of different systems are never combined or joined by a line. Rounds are never averaged: a maximum is
the largest of all rounds, any other statistic that of the middle round. The sizes that a figure
holds fixed are chosen and described here.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

import numpy as np

from lstm_judge.plots import style
from lstm_judge.plots.style import number, whole_range, with_micro
from lstm_judge.read.labels import differing, field_text, labels, with_version
from lstm_judge.read.rounds import Group, NoTrials, label_fields
from lstm_judge.read.runs import Runs, as_runs
from lstm_judge.statistics.quantiles import check_time
from lstm_judge.statistics.trials import Trials, trials_of
from lstm_trt.config.errors import UsageError, one_of
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
ARRANGEMENT = dict.fromkeys(AXIS_NAMES, ("layers", "hidden")) | {
    "hidden": ("layers", "sequence"),
    "layers": ("sequence", "hidden"),
}

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
        """The roofline bound, which is the same in all rounds that state it."""
        return min((each.floor_us for each in self.group.rounds if each.floor_us), default=None)

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
    missing = {"label", "latency_us", *drawn} - {*frame.columns}
    if missing:
        raise UsageError(
            f"the table to draw beside the recordings lacks the columns {listed(sorted(missing))}"
        )
    axes = [axis for axis in AXES if axis in frame.columns]
    for axis in axes:
        if axis != drawn[0]:
            frame = frame[frame[axis].isin(values(points, axis))]
    repeated = frame[frame.duplicated(["label", *axes]) | frame["label"].isin(systems(points))]
    if len(repeated):
        raise UsageError(
            "the table to draw beside the recordings has"
            f" {repeated.iloc[0]['label']!r} twice at one size"
        )
    return [
        Elsewhere(row["label"], {axis: row[axis] for axis in axes}, row["latency_us"])
        for row in frame.to_dict("records")
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
            "nothing to draw: this figure needs recordings made by this package,"
            " which state their sizes"
        )
    points = []
    for group, system in zip(groups, system_labels(groups, without), strict=True):
        found = [
            item
            for item in runs.recordings
            if isinstance(item, Failure)
            and item.configuration.id == group.configuration.id
            # a group without rounds does not state its machine
            and group.machine in (None, item.provenance.get("machine_fingerprint"))
        ]
        if not found and not group.n:  # its recordings are not available
            found = [group.failure or NoTrials(None, "no trials after warm-up")]
        points.append(
            Point(group, system, group.configuration.workload.axes, trials_of(group), tuple(found))
        )
    return points


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
    texts = labels(fields, enough=True)
    runtimes = [each["runtime"] for each in fields]
    if len({*runtimes}) == 1:
        texts = [", ".join(filter(None, pair)) for pair in zip(runtimes, texts, strict=True)]
    return [with_micro(each) for each in texts]


def _workload(group: Group) -> str:
    """Name of a workload that is no stacked LSTM, without the sizes that are axes; else empty."""
    return str(
        group.configuration.workload.group_fields(group.configuration.mode).get("workload", "")
    )


def _system(group: Group) -> dict[str, Any]:
    """The properties of a group's system by name."""
    fields = {
        "runtime": group.configuration.runtime,
        "workload": _workload(group),
        **label_fields(group),
        "cores": None,
    }
    if "graph_captured" in group.group:
        fields["graph"] = "refused"
    return fields


def systems(points: Iterable[AnyPoint]) -> list[str]:
    """Labels of the systems, sorted."""
    return sorted({point.system for point in points})


def pages(runs: Runs, most: int) -> list[Runs]:
    """The runs in parts of at most so many systems."""
    points = points_of(runs)
    names = systems(points)
    parts = [names[start : start + most] for start in range(0, len(names), most)]
    return [
        replace(runs, groups=tuple(point.group for point in points if point.system in part))
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
    looks = style.kind_looks(len(found))
    taken = Counter()
    for look, point in zip(looks, found.values(), strict=True):
        if len(runtimes) > 1 or len(found) == 1:
            look.update(runtimes[point.runtime])
            look["color"] = tuple(np.multiply(look["color"], 0.62 ** taken[point.runtime]))
            taken[point.runtime] += 1
        look["linestyle"] = style.DASHES[machines.index(point.machine) % len(style.DASHES)]
    return dict(zip(found, looks, strict=True))


def values(points: Iterable[AnyPoint], axis: str) -> list[int]:
    """The sizes on an axis, ascending, without missing ones. Raises `UsageError` for an unknown
    axis."""
    one_of("axis", axis, AXES)
    return sorted({point.sizes[axis] for point in points} - {None})


def varied(points: Sequence[Point]) -> list[str]:
    """Axes on which a workload has more than one value, not those that only tell networks of users
    apart."""
    sizes = {(_workload(point.group), axis, point.sizes[axis]) for point in points for axis in AXES}
    counts = Counter((workload, axis) for workload, axis, size in sizes if size is not None)
    several = {axis for (_, axis), count in counts.items() if count > 1}
    return [axis for axis in AXES if axis in several]


def choose_networks(points: Sequence[Point], most: int) -> tuple[list[Point], list[str], str]:
    """The points of at most so many networks, these in the order of their fastest median, failures
    last, and a note.

    Of more they are those measured on most systems, spread evenly over the medians.
    """
    fastest = dict.fromkeys((point.network for point in points), math.inf)
    measured_on: dict[str, set[str]] = {network: set() for network in fastest}
    for point in points:
        if point.ok:
            fastest[point.network] = min(fastest[point.network], point.statistic("median_us"))
            measured_on[point.network].add(point.system)
    chosen = sorted(fastest, key=lambda network: (fastest[network], network))
    note = ""
    if len(chosen) > most:
        widest = max(map(len, measured_on.values()))
        chosen = style.spread(
            [network for network in chosen if len(measured_on[network]) == widest], most
        )
        note = f" {len(chosen)} of {len(fastest)} networks, spread evenly over their medians."
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
    fixed = fixed or {}
    for axis in (*free, *fixed):
        one_of("axis", axis, AXES)
    both = {*free} & {*fixed}
    if both:
        raise UsageError(f"{listed(sorted(both))} is drawn and cannot be fixed")
    held: dict[str, int] = {}
    for axis in dict.fromkeys((*fixed, *_HELD)):
        if axis in free:
            continue
        places = {(row.get(axis), *map(row.get, ("system", *free))) for row in rows}
        drawn = Counter(size for size, *_ in places if size is not None)
        if axis in fixed:
            held[axis] = fixed[axis]
            if held[axis] not in drawn:
                raise UsageError(
                    f"nothing was measured at {axis} = {fixed[axis]}:"
                    f" choose from {listed(sorted(drawn))}"
                )
        elif drawn:
            best = [size for size, total in drawn.items() if total == max(drawn.values())]
            held[axis] = min(best) if axis in _SMALLEST else median_low(best)
        if axis in held:
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
    several = {axis for axis in AXES if len(values(points, axis)) > 1}
    several -= {*varied(points), *free, *(fixed or {})}
    # All points at a requested value may have failed.
    good = [] if fixed else [point for point in points if point.ok]
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
    devices: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        fields = _system(point.group) | dict.fromkeys(without)
        fields["version"] = with_version(
            str(fields.pop("runtime")), point.group.configuration.runtime_version
        )
        devices.setdefault(str(fields.pop("device_name")), []).append(fields)
    texts = []
    for device, systems in devices.items():
        runtimes = dict.fromkeys(each.pop("version") for each in systems)
        told = {"precision", "threads", *differing(systems)}
        if systems[0]["mode"] not in (None, "forward"):
            told.add("mode")
        options = []
        for name in systems[0]:
            if name in told:
                values = dict.fromkeys(field_text(name, each[name]) for each in systems)
                options.append(" / ".join(filter(None, values)))
        texts.append(
            f"{', '.join(runtimes)} ({with_micro(', '.join(filter(None, options)))}) on {device}"
        )
    return " · ".join(texts)


def describe_extremes(points: Iterable[Point], statistic: str) -> str:
    """The smallest and the largest value of a statistic, and where they are, in one sentence."""
    good = [point for point in points if point.ok]
    if not good:
        return "No configuration succeeded."
    good.sort(key=lambda point: point.statistic(statistic))
    ends = [
        f"{number(point.statistic(statistic))} µs ({point.group.name})"
        for point in (good[0], good[-1])
    ]
    return f"The {STATISTIC_NAMES[statistic]} is {' to '.join(dict.fromkeys(ends))}."


def describe_fastest(points: Sequence[Point]) -> str:
    """In how many networks each system has the smallest median, in one sentence."""
    good = [point for point in points if point.ok]
    good.sort(key=lambda point: -point.statistic("median_us"))
    best = {point.network: point.system for point in good}  # the last one is the fastest
    wins = [
        f"{system} in {total} of {len(best)} networks"
        for system, total in Counter(best.values()).most_common()
    ]
    if not wins:
        return "No configuration succeeded."
    return f"The smallest median is that of {' and '.join(wins)}."


def describe(points: Sequence[Point], drawn: Sequence[str]) -> list[str]:
    """Notes for the head of a figure: numbers of trials, the sizes that are not `drawn` and held
    fixed, and systems."""
    return [
        f"{describe_counts(points)}. {describe_fixed(points, drawn)}",
        describe_systems(points),
    ]


def describe_counts(points: Iterable[Point]) -> str:
    """The number of trials and rounds per configuration."""
    rounds = [point.rounds for point in points if point.ok]
    if not rounds:
        return "no configuration succeeded"
    lengths = [trials.n for several in rounds for trials in several]
    noun = "trial" if max(lengths) == 1 else "trials"
    text = f"n = {whole_range(lengths)} {noun} per configuration after warm-up"
    most = max(map(len, rounds))
    return f"{text} in each of {most} rounds" if most > 1 else text


def describe_fixed(points: Sequence[Point], drawn: Sequence[str]) -> str:
    """The sizes that a figure holds fixed: those of which all points have the same value."""
    sizes = []
    for axis in AXES:
        found = values(points, axis)
        if axis not in drawn and len(found) == 1:
            sizes.append(axis_value(axis, found[0]))
    return f"Fixed: {', '.join(sizes)}." if sizes else ""


def describe_shown(what: str, shown: Sized, every: Sized) -> str:
    """How many systems, or sizes, are drawn, if not all."""
    return f"{len(shown)} of {len(every)} {what} are shown." if len(shown) < len(every) else ""


def describe_rounds(points: Iterable[Point]) -> str:
    """How several rounds are shown; empty if there is only one."""
    if all(len(point.rounds) < 2 for point in points):
        return ""
    return (
        "Of several rounds the middle one is shown, for maxima the largest;"
        " small marks are single rounds."
    )


def axis_value(axis: str, value: int) -> str:
    """A size as text: 2 layers, batch 4."""
    if axis == "directions":
        return "unidirectional" if value == 1 else "bidirectional"
    if axis in ("layers", "features"):
        name = AXIS_NAMES[axis]
        return f"{value} {name[:-1] if value == 1 else name}"
    return f"{axis} {value}"


def check_deadline(deadline_us: float | None) -> None:
    if deadline_us is not None:
        check_time("deadline", deadline_us)
