"""Curves of a sweep: latency against one axis, with one panel and one line for each value of two others.

Rounds are never averaged: lines show the middle round, maxima are the largest of all rounds, and small marks show the
single rounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lstm_trt.config.errors import UsageError, one_of
from lstm_trt.plots import points as data
from lstm_trt.plots import style
from lstm_trt.plots.points import AXIS_NAMES, Point
from lstm_trt.plots.style import GREY, Picture, number

#: If a panel would have more lines, each system gets its own panels.
LINES_PER_PANEL = 8

#: With more panels a figure would be too tall to read, and take minutes to lay out.
MOST_PANELS = 150

#: Height of one row of failure marks, and of all rows at most, as shares of the panel height.
LANE, LANES = 0.045, 0.22

THICK = {"linewidth": 1.5, "markersize": 3.4, "zorder": 3}

THIN = {
    "linewidth": 0.8,
    "markersize": 2.8,
    "zorder": 2,
    "alpha": 0.6,
    "markerfacecolor": "white",
    "markeredgewidth": 0.8,
}

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
) -> Picture:
    """Latency in µs against `axis`, with one panel per value of `facet` and one line per value of `line`.

    `runs` is the result of `load`, or a path, recordings or groups. `statistic` (one of `STATISTIC_NAMES`) is drawn
    thick, the maximum thin in the same colour, the roofline bound dotted. Axes that are not drawn are held at one
    value: that in `fixed`, else a chosen one, which the notes state. Systems share a panel, with different markers and
    dashes, or get their own panels if a panel would have more than 8 lines. Failures are marked x at the bottom. Raises
    `UsageError` for an unknown axis, statistic or value, and for more than 150 panels.
    """
    data.check_deadline(deadline_us)
    name = data.check_statistic(statistic)
    every = data.points_of(runs)
    one_of("axis", axis, data.ARRANGEMENT)
    facet, line = facet or data.ARRANGEMENT[axis][0], line or data.ARRANGEMENT[axis][1]
    if len({axis, facet, line}) < 3:
        raise UsageError(f"axis, facet and line must differ, not {axis}, {facet}, {line}")
    looks = style.system_looks(data.systems(every))
    points = data.hold_fixed(every, (axis, facet, line), fixed)
    facets = data.values(points, facet)
    points = [point for point in points if point.sizes[facet] in style.shown(facets)]
    plan = _arrange(points, axis, facet, line, statistic)
    if len(plan.panels) > MOST_PANELS:
        raise UsageError(
            f"curves against {AXIS_NAMES[axis]} would need {len(plan.panels)} panels for {len(plan.systems)} systems,"
            f" at most {MOST_PANELS} are possible: select fewer recordings"
        )
    drawn_axes = [name for name in (axis, facet, line) if len(data.values(points, name)) > 1]
    with style.figure(
        f"Latency against {AXIS_NAMES[axis]}: {name if name == 'maximum' else f'{name} and maximum'}",
        [
            f"{data.describe_counts(points)}. {data.describe_fixed(points, drawn_axes)}",
            data.describe_systems(points),
            data.describe_rounds(points),
            data.describe_shown(facet, plan.facets, len(facets)),
            *{f"No roofline bound: {reason}." for point in points if (reason := point.group.floor_missing)},
        ],
        max(plan.height_in, 0.3 + 0.17 * (len(style.shown(plan.lines)) + 2 * len(plan.systems) + 10)),
        summary=data.describe_extremes(points, statistic),
    ) as (picture, body):
        axes = style.panels(body, plan.titles, plan.columns, block=plan.block_size)
        lanes = _most_failures(points, plan)
        strip = min(LANE * lanes, LANES)
        drawn: list[float] = [deadline_us] if deadline_us else []
        for ax, (group, value) in zip(axes, plan.panels, strict=True):
            here = [point for point in points if point.sizes[facet] == value and point.system in group]
            drawn += _draw_panel(ax, here, plan, looks, strip / max(lanes, 1))
            if deadline_us:
                ax.axhline(deadline_us, **style.DEADLINE)
        style.latency_axis(axes, drawn, room_below=strip)
        log2 = axis == "batch" or (axes[0].get_yscale() == "log" and plan.sizes[-1] / plan.sizes[0] >= 4)
        for ax in axes:
            style.size_axis(ax, plan.sizes, log2)
        style.name_axes(axes, AXIS_NAMES[axis], "latency [µs]")
        style.side_legend(body, _handles(points, plan, looks, deadline_us))
    return picture


@dataclass(frozen=True)
class CurvePlan:
    """Layout of the figure. `panels` are (systems, value of the facet) in reading order.

    Every `block_size` panels a new row starts.
    """

    axis: str
    facet: str
    line: str
    statistic: str
    systems: list[str]
    lines: list[int]
    facets: list[int]
    sizes: list[int]
    apart: bool
    panels: list[tuple[list[str], int]]
    columns: int
    block_size: int
    row_in: float

    @property
    def by_system(self) -> bool:
        """Whether colour identifies the system, since each system has only one line."""
        return len(self.lines) == 1 and len(self.systems) > 1

    @property
    def titles(self) -> list[str]:
        """Of the panels: the value of the facet, and above the first one of each system its name."""
        several, titles = len(self.facets) > 1, []
        for group, value in self.panels:
            first = self.apart and value == self.facets[0]
            system = [style.folded(group[0], 95 if several else 95 // self.columns)] if first else []
            titles.append("\n".join(system + [data.axis_value(self.facet, value)] * several))
        return titles

    @property
    def height_in(self) -> float:
        rows = math.ceil(self.block_size / self.columns) * (len(self.panels) // self.block_size)
        return self.row_in * rows if rows > 1 else 3.6

    @property
    def colors(self) -> dict[int, tuple]:
        return dict(zip(self.lines, style.size_colors(len(self.lines)), strict=True))


def _arrange(points: Sequence[Point], axis: str, facet: str, line: str, statistic: str) -> CurvePlan:
    names, sizes = data.systems(points), data.values(points, axis)
    lines, facets = data.values(points, line), data.values(points, facet)
    apart = len(names) > 1 and len(lines) * len(names) > LINES_PER_PANEL
    panels = [(group, value) for group in ([[name] for name in names] if apart else [names]) for value in facets]
    block_size = len(facets) if len(facets) > 1 else len(panels)
    if apart and 1 < len(facets) <= 5:  # one row per system, one column per facet value
        columns, row_in = len(facets), 2.1
    else:
        columns, row_in = style.columns_of(block_size) if len(facets) > 1 else min(block_size, 2), 2.5
    return CurvePlan(
        axis, facet, line, statistic, names, lines, facets, sizes, apart, panels, columns, block_size, row_in
    )


def _draw_panel(ax: Axes, here: Sequence[Point], plan: CurvePlan, looks: dict, lane_height: float) -> list[float]:
    """Draw all lines of a panel; returns the latencies drawn."""
    drawn: list[float] = []
    lane: Counter = Counter()
    colors, present = plan.colors, {point.system for point in here}
    for order, system in enumerate(plan.systems):
        for size, color in colors.items() if system in present else ():
            part = [point for point in here if point.system == system and point.sizes[plan.line] == size]
            part.sort(key=lambda point: point.sizes[plan.axis])
            look = {"color": looks[system]["color"] if plan.by_system else color, "linestyle": "-", "marker": "o"}
            if not plan.apart:
                look |= {"linestyle": style.DASHES[order % len(style.DASHES)], "marker": looks[system]["marker"]}
            if len(plan.sizes) > style.MOST_MARKED:
                look["marker"] = ""
            drawn += _line(ax, part, plan, look)
            for point in part:
                if point.failed:  # in the strip at the bottom; stacked if several lines failed at one size
                    place = point.sizes[plan.axis]
                    y = lane_height * (0.75 + lane[place])
                    ax.plot([place], [y], color=look["color"], transform=ax.get_xaxis_transform(), **style.FAILED)
                    lane[place] += 1
    return drawn


def _line(ax: Axes, part: Sequence[Point], plan: CurvePlan, look: dict) -> list[float]:
    """Draw statistic, maximum and roofline bound of one line; returns the latencies drawn."""
    drawn: list[float] = []
    good = [point for point in part if point.ok]
    for statistic in dict.fromkeys((plan.statistic, "max_us")) if good else ():
        heights = [point.statistic(statistic) for point in good]
        kind = THICK if statistic == plan.statistic else THIN
        ax.plot([point.sizes[plan.axis] for point in good], heights, **look, **kind)
        drawn += heights
        each = [(point.sizes[plan.axis], value) for point in good for value in point.each_round(statistic)]
        if len(each) > len(good):
            ax.plot(*zip(*each, strict=True), color=look["color"], **EACH_ROUND)
            drawn += [value for _, value in each]
    floors = [(point.sizes[plan.axis], point.floor_us) for point in part if point.floor_us is not None]
    if floors:
        ax.plot(*zip(*floors, strict=True), color=look["color"], **FLOOR)
    return drawn + [floor_us for _, floor_us in floors]


def _most_failures(points: Sequence[Point], plan: CurvePlan) -> int:
    """Rows that the failure marks of any panel need, including a margin; 0 without failures."""
    places = Counter(
        (point.sizes[plan.axis], point.sizes[plan.facet], point.system if plan.apart else "")
        for point in points
        if point.failed
    )
    return 1 + max(places.values()) if places else 0


def _handles(points: Sequence[Point], plan: CurvePlan, looks: dict, deadline_us: float | None) -> list[Line2D]:
    """The legend: sizes, systems, kinds of line, failures by stage."""
    handles: list[Line2D] = []
    if len(plan.lines) > 1:
        handles += style.size_handles(AXIS_NAMES[plan.line], plan.colors)
    if len(plan.systems) > 1 and not plan.apart:
        handles.append(style.heading("runtime"))
        for order, system in enumerate(plan.systems):
            look = {**looks[system], "linestyle": style.DASHES[order % len(style.DASHES)], "markersize": 4.5}
            look |= {} if plan.by_system else {"color": GREY}
            handles.append(Line2D([], [], label=style.folded(system), **look))
        handles.append(style.heading(" "))
    for statistic in dict.fromkeys((plan.statistic, "max_us")):
        kind = THICK if statistic == plan.statistic else THIN
        handles.append(Line2D([], [], color=GREY, marker="o", label=data.STATISTIC_NAMES[statistic], **kind))
    if any(point.floor_us is not None for point in points):
        handles.append(Line2D([], [], color=GREY, label="roofline bound", **FLOOR))
    if deadline_us:
        handles.append(Line2D([], [], label=f"deadline\n{number(deadline_us)} µs", **style.DEADLINE))
    stages = Counter(stage for point in points if point.failed for stage in point.stages)
    if stages:
        text = "\n".join(f"  {stage}: {total}" for stage, total in stages.most_common())
        handles.append(Line2D([], [], color=GREY, label=f"failed at stage\n{text}", **style.FAILED))
    return handles
