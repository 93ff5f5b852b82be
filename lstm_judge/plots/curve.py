"""Curves of a sweep: latency against one axis, with one panel and one line for each value of two
others.

Rounds are never averaged: lines show the middle round, maxima are the largest of all rounds, and
small marks show the single rounds.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lstm_judge.plots import points as data, style
from lstm_judge.plots.points import AXIS_NAMES, AnyPoint, Elsewhere
from lstm_judge.plots.style import GREY, Picture
from lstm_trt.config.errors import UsageError, one_of

#: If a panel would have more lines, each system gets its own panels.
LINES_PER_PANEL = 8

#: Characters that the titles of a row of panels have room for.
ROW_CHARACTERS = 95

#: Height of one row of failure marks, and of all rows at most, as shares of the panel height.
LANE, LANES = 0.045, 0.22

THICK = {"linewidth": 1.5, "markersize": 3.4, "zorder": 3}

THIN = {"linewidth": 0.8, "markersize": 2.8, "zorder": 2, "alpha": 0.6}
THIN |= {"markerfacecolor": "white", "markeredgewidth": 0.8}

FLOOR = {"linestyle": ":", "linewidth": 1.0, "alpha": 0.6, "zorder": 1.8}

EACH_ROUND = {"linestyle": "none", "marker": ".", "markersize": 3.5, "alpha": 0.6, "zorder": 1.9}


def curves(
    runs: Any,
    axis: str,
    *,
    statistic: str = "median_us",
    deadline_us: float | None = None,
    fixed: dict[str, int] | None = None,
    facet: str | None = None,
    line: str | None = None,
    beside: Any = None,
) -> Picture:
    """Latency in µs against `axis`, with one panel per value of `facet` and one line per value of
    `line`.

    `runs` is the result of `load`, or a path, recordings or groups. `statistic` (one of
    `STATISTIC_NAMES`) is drawn thick, the maximum thin in the same colour, the roofline bound
    dotted. Axes that are not drawn are held at one value: that in `fixed`, else a chosen one, which
    the notes state. Systems share a panel, with different markers and dashes, or get their own
    panels if a panel would have more than 8 lines. Failures are marked x at the bottom. At most
    four rows of panels are drawn; the notes state what is left out.

    `beside` is a DataFrame of numbers from elsewhere, such as means that were published: a row per
    network, with the columns `label`, the axes (`hidden`, ...) and `latency_us`. Each label is
    drawn as a further system with open markers, in the panels and lines of the recordings; rows of
    other networks are left out. It has no maximum, because one number has no spread.

    Raises `UsageError` for an unknown axis, statistic or value, and for a table `beside` that lacks
    a column or has two numbers for one network.
    """
    data.check_deadline(deadline_us)
    one_of("statistic", statistic, data.STATISTIC_NAMES)
    every = data.points_of(runs)
    one_of("axis", axis, data.ARRANGEMENT)
    facet, line = facet or data.ARRANGEMENT[axis][0], line or data.ARRANGEMENT[axis][1]
    if len({axis, facet, line}) < 3:
        raise UsageError(f"axis, facet and line must differ, not {axis}, {facet}, {line}")
    held = data.hold_fixed(every, (axis, facet, line), fixed)
    others = [] if beside is None else data.elsewhere(beside, held, (axis, facet, line))
    plan = CurvePlan(
        [*held, *others], (axis, facet, line), statistic, data.system_looks([*every, *others])
    )
    points = [point for point in plan.points if isinstance(point, data.Point)]
    varied = [name for name in (axis, facet, line) if len(data.values(points, name)) > 1]
    title = f"Latency against {AXIS_NAMES[axis]}: {' and '.join(data.STATISTIC_NAMES[name] for name in plan.kinds)}"
    notes = [
        f"{data.describe_counts(points)}. {data.describe_fixed(points, varied)}",
        data.describe_systems(points),
        data.describe_rounds(points),
        f"Open markers: one number each, from elsewhere: {'; '.join(plan.elsewhere)}."
        if others
        else "",
        data.describe_shown("systems", len(plan.systems), len(data.systems([*held, *others]))),
        data.describe_shown(
            f"values of {AXIS_NAMES[facet]}",
            *(len(data.values(of, facet)) for of in (points, held)),
        ),
        *{
            f"No roofline bound: {reason}."
            for point in points
            if (reason := point.group.floor_missing)
        },
    ]
    names, summary = (AXIS_NAMES[axis], "latency [µs]"), data.describe_extremes(points, statistic)
    more: dict[str, Any] = {"columns": plan.columns, "summary": summary}
    with style.facets(title, notes, plan.titles, names, plan.handles(deadline_us), **more) as (
        picture,
        axes,
    ):
        failed: list[Failed] = []
        for ax, (systems, value) in zip(axes, itertools.chain(*plan.blocks), strict=True):
            failed += plan.draw_panel(ax, systems, value)
            style.deadline(deadline_us, ax.axhline)
        rows = 2 + max((row for *_, row, _ in failed), default=-2)  # including a margin
        strip = min(LANE * rows, LANES)
        for ax, size, row, color in failed:
            look = {"color": color, "transform": ax.get_xaxis_transform(), **style.FAILED}
            ax.plot([size], [strip / rows * (0.75 + row)], **look)
        style.latency_axis(
            axes, [*plan.latencies_us, *([deadline_us] if deadline_us else [])], room_below=strip
        )
        log2 = axis == "batch" or (
            axes[0].get_yscale() == "log" and plan.sizes[-1] / plan.sizes[0] >= 4
        )
        for ax in axes:
            style.size_axis(ax, plan.sizes, log2)
    return picture


#: The mark of a failure, in the strip at the bottom: panel, size, row (if several lines failed
#: there), colour.
Failed = tuple[Axes, int, int, Any]


class CurvePlan:
    """Layout of the figure. `blocks` are lists of panels (systems, value of the facet), each of
    which begins a row.

    `points` are those that are drawn. `titles` have the value of the facet, and above the first
    panel of each system its name. `kinds` are the looks of the statistics.
    """

    def __init__(
        self,
        points: Sequence[AnyPoint],
        drawn: tuple[str, str, str],
        statistic: str,
        looks: Mapping[str, dict],
    ) -> None:
        (self.axis, self.facet, self.line), self.looks = drawn, looks
        self.lines = data.values(points, self.line)
        self.colors = dict(zip(self.lines, style.size_colors(len(self.lines)), strict=True))
        self.kinds = (
            {statistic: THICK} if statistic == "max_us" else {statistic: THICK, "max_us": THIN}
        )
        systems = [name for name in looks if name in data.systems(points)]
        self.apart = len(systems) > 1 and len(self.lines) * len(systems) > LINES_PER_PANEL
        self.systems = systems[: style.MOST_ROWS] if self.apart else systems
        groups = [[name] for name in self.systems] if self.apart else [self.systems]
        rows = style.MOST_ROWS // len(groups)
        self.blocks = []
        for group in groups:
            facets = data.values([point for point in points if point.system in group], self.facet)
            self.blocks.append([(group, value) for value in style.spread(facets, 3 * rows)])
        if max(map(len, self.blocks)) == 1:
            self.blocks = [[panel for block in self.blocks for panel in block]]
        places = {
            (system, value) for group, value in itertools.chain(*self.blocks) for system in group
        }
        here = [point for point in points if (point.system, point.sizes[self.facet]) in places]
        self.points = sorted(here, key=lambda point: point.sizes[self.axis])
        self.elsewhere = data.systems(point for point in here if isinstance(point, Elsewhere))
        self.sizes, several = data.values(here, self.axis), len(data.values(here, self.facet)) > 1
        self.columns = style.columns_of(max(map(len, self.blocks)))
        self.titles = []
        for block in self.blocks:
            named = [
                style.folded(group[0], ROW_CHARACTERS // self.columns) if self.apart else ""
                for group, _ in block
            ]
            first = [
                name if place == 0 or name != named[place - 1] else ""
                for place, name in enumerate(named)
            ]
            values = [data.axis_value(self.facet, value) * several for _, value in block]
            self.titles.append(
                ["\n".join(filter(None, pair)) for pair in zip(first, values, strict=True)]
            )

    def look(self, system: str, color: Any) -> dict:
        """The look of a line; its colour is that of the system if each system has only one."""
        alike = self.apart and system not in self.elsewhere
        dashes = style.DASHES[self.systems.index(system) % len(style.DASHES)]
        look = (
            {"linestyle": "-", "marker": "o"}
            if alike
            else self.looks[system] | {"linestyle": dashes}
        )
        look |= {"markerfacecolor": "white"} if system in self.elsewhere else {}
        look["color"] = (
            self.looks[system]["color"] if len(self.lines) == 1 < len(self.systems) else color
        )
        return look | ({"marker": ""} if len(self.sizes) > style.MOST_MARKED else {})

    @property
    def latencies_us(self) -> list[float]:
        """All that the panels show: statistics of each round, and roofline bounds."""
        floors_us = [point.floor_us for point in self.points if point.floor_us is not None]
        every = [each for point in self.points for each in point.rounds or [point]]
        return floors_us + [each.statistic(statistic) for each in every for statistic in self.kinds]

    def draw_panel(self, ax: Axes, systems: Sequence[str], value: int) -> list[Failed]:
        """Draw all lines of a panel; returns the marks of the failures, for which there is no room
        yet."""
        failed: list[Failed] = []
        rows: Counter[int] = Counter()
        here = [
            point
            for point in self.points
            if point.sizes[self.facet] == value and point.system in systems
        ]
        for system, (line, color) in itertools.product(systems, self.colors.items()):
            part = [
                point for point in here if point.system == system and point.sizes[self.line] == line
            ]
            look = self.look(system, color)
            self.draw_line(ax, part, look)
            for size in (point.sizes[self.axis] for point in part if point.failed):
                failed.append((ax, size, rows[size], look["color"]))
                rows[size] += 1
        return failed

    def draw_line(self, ax: Axes, part: Sequence[AnyPoint], look: dict) -> None:
        """Draw statistic, maximum and roofline bound of one line."""
        good = [point for point in part if point.ok]
        for statistic, kind in self.kinds.items() if good else ():
            places = [point.sizes[self.axis] for point in good]
            ax.plot(places, [point.statistic(statistic) for point in good], **look | kind)
            each = [
                (point.sizes[self.axis], each.statistic(statistic))
                for point in good
                for each in point.rounds
            ]
            if len(each) > len(good):
                ax.plot(*zip(*each, strict=True), color=look["color"], **EACH_ROUND)
        floors = [
            (point.sizes[self.axis], point.floor_us) for point in part if point.floor_us is not None
        ]
        if floors:
            ax.plot(*zip(*floors, strict=True), color=look["color"], **FLOOR)

    def handles(self, deadline_us: float | None) -> list[Line2D]:
        """The legend: sizes, systems, kinds of line, the deadline, failures by stage."""
        handles = (
            style.size_handles(AXIS_NAMES[self.line], self.colors) if len(self.lines) > 1 else []
        )
        if len(self.systems) > 1 and not self.apart:
            looks = {name: self.look(name, GREY) for name in self.systems}
            entries = [
                style.entry(style.folded(name), markersize=4.5, **look)
                for name, look in looks.items()
            ]
            handles += [style.heading("runtime"), *entries, style.heading(" ")]
        for statistic, kind in self.kinds.items():
            handles.append(
                style.entry(data.STATISTIC_NAMES[statistic], color=GREY, marker="o", **kind)
            )
        if any(point.floor_us is not None for point in self.points):
            handles.append(style.entry("roofline bound", color=GREY, **FLOOR))
        handles += style.deadline(deadline_us, name="deadline\n")
        stages = Counter(stage for point in self.points if point.failed for stage in point.stages)
        if stages:
            text = "\n".join(f"  {stage}: {total}" for stage, total in stages.most_common())
            handles.append(style.entry(f"failed at stage\n{text}", color=GREY, **style.FAILED))
        return handles
