"""Curves of a sweep: latency against one axis, a panel and a line for the others.

The table has one row a configuration and round. Rounds are never averaged: a line runs
through the middle round, a maximum is the largest of all rounds, every round is a point.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lstm_trt.config.errors import UsageError
from lstm_trt.plots import tables
from lstm_trt.plots.style import (
    DASHES,
    DEADLINE,
    GREY,
    WIDTH_IN,
    Picture,
    folded,
    latency_axis,
    number,
    sheet,
    size_axis,
    size_colors,
    style,
    system_looks,
)

#: Axis -> (one facet a value of, one line a value of), as the founding document has them.
ARRANGEMENT = {
    "sequence": ("layers", "hidden"),
    "hidden": ("layers", "sequence"),
    "batch": ("layers", "hidden"),
    "layers": ("sequence", "hidden"),
    "features": ("layers", "hidden"),
    "directions": ("layers", "hidden"),
}

#: More lines than this in a panel, and each system gets panels of its own.
LINES_A_PANEL = 8

LEGEND_IN = 1.55

#: Height of one row of failure marks as a share of the panel's, and most for all rows.
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


def curves(
    summary: pd.DataFrame,
    axis: str,
    statistic: str = "median_us",
    deadline_us: float | None = None,
    fixed: dict[str, int] | None = None,
    facet: str | None = None,
    line: str | None = None,
) -> Picture:
    """Latency in µs against one axis: a panel for each value of `facet`, a line for each of `line`.

    `statistic` is drawn thick, the maximum thin in the same colour, the speed-of-light floor
    (column `floor_us`) dotted. Axes that are not drawn are held at one value: that of `fixed`,
    else one that is chosen and told. Several systems share a panel, told apart by marker and
    dashes, or get panels of their own where that would be more than 8 lines. Failures are
    marked x at the bottom. Raises `UsageError` for a column or value that is not there.
    """
    tables.check_deadline(deadline_us)
    table = tables.prepare(summary)
    if statistic not in table:
        raise UsageError(f"the summary has no column {statistic!r}")
    if axis not in ARRANGEMENT:
        raise UsageError(f"unknown axis {axis!r}: choose from {', '.join(ARRANGEMENT)}")
    facet, line = facet or ARRANGEMENT[axis][0], line or ARRANGEMENT[axis][1]
    if len({axis, facet, line}) < 3:
        raise UsageError(f"axis, facet and line must differ, not {axis}, {facet}, {line}")
    looks = system_looks(tables.systems(table))
    table = tables.hold_fixed(table, (axis, facet, line), fixed)
    plan = _arrange(table, axis, facet, line, statistic)
    shown = [one for one in (axis, facet, line) if len(tables.values(table, one)) > 1]
    name = tables.STATISTIC_NAMES.get(statistic, statistic)
    with style():
        picture, body = sheet(
            f"Latency against {tables.AXIS_NAMES[axis]}: {'maximum' if name == 'maximum' else f'{name} and maximum'}",
            [
                f"{tables.describe_counts(table)}. {tables.describe_fixed(table, shown)}",
                tables.describe_systems(table),
                tables.describe_rounds(table),
            ],
            max(plan.height_in, 0.3 + 0.17 * (len(plan.lines) + 2 * len(plan.systems) + 9)),
        )
        axes = _panels(body, plan)
        lanes = _most_failures(table, plan)
        strip = min(LANE * lanes, LANES)
        drawn: list[float] = [deadline_us] if deadline_us else []
        for ax, (group, value) in zip(axes, plan.panels, strict=True):
            here = table[(table[facet] == value) & table["system"].isin(group)]
            drawn += _draw_panel(ax, here, plan, looks, strip / max(lanes, 1))
            if deadline_us:
                ax.axhline(deadline_us, gid="deadline", **DEADLINE)
            words = [tables.axis_value(facet, value)] if len(plan.facets) > 1 else []
            if plan.apart and value == plan.facets[0]:  # above a row of panels, or of its one panel
                words.insert(0, folded(group[0], 95 if len(plan.facets) > 1 else 95 // plan.columns))
            ax.set_title("\n".join(words), loc="left")
        _scales(axes, plan, drawn, strip)
        handles = _handles(table, plan, looks, deadline_us)
        body.legend(handles=handles, loc="outside right upper", handlelength=2.9, labelspacing=0.35)
    return picture


@dataclass(frozen=True)
class Plan:
    """What is drawn where. `panels` are (systems in it, value of the facet) in reading order.

    A block is `a_block` panels that fill rows together; the next one starts a row of its own.
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
    a_block: int
    row_in: float

    @property
    def by_system(self) -> bool:
        """Colour tells the system: there is but one line a system."""
        return len(self.lines) == 1 and len(self.systems) > 1

    @property
    def rows(self) -> int:
        return math.ceil(self.a_block / self.columns) * (len(self.panels) // self.a_block)

    @property
    def height_in(self) -> float:
        return self.row_in * self.rows if self.rows > 1 else 3.6


def _arrange(table: pd.DataFrame, axis: str, facet: str, line: str, statistic: str) -> Plan:
    systems, sizes = tables.systems(table), tables.values(table, axis)
    lines, facets = tables.values(table, line), tables.values(table, facet)
    apart = len(systems) > 1 and len(lines) * len(systems) > LINES_A_PANEL
    panels = [(group, value) for group in ([[one] for one in systems] if apart else [systems]) for value in facets]
    a_block = len(facets) if len(facets) > 1 else len(panels)
    if apart and 1 < len(facets) <= 5:  # a row a system, a column a facet
        columns, row_in = len(facets), 2.1
    else:
        columns, row_in = min(a_block, 2 if a_block in (2, 4) or len(facets) == 1 else 3), 2.5
    return Plan(axis, facet, line, statistic, systems, lines, facets, sizes, apart, panels, columns, a_block, row_in)


def _draw_panel(ax: Axes, here: pd.DataFrame, plan: Plan, looks: dict, lane_height: float) -> list[float]:
    """Every line of every system that the rows hold; returns the numbers drawn."""
    drawn: list[float] = []
    lane: Counter = Counter()
    for order, label in enumerate(plan.systems):
        for size, color in zip(plan.lines, size_colors(len(plan.lines)), strict=True):
            part = here[(here["system"] == label) & (here[plan.line] == size)].sort_values(plan.axis)
            look = {"color": looks[label]["color"] if plan.by_system else color, "linestyle": "-", "marker": "o"}
            if not plan.apart:
                look |= {"linestyle": DASHES[order % len(DASHES)], "marker": looks[label]["marker"]}
            drawn += _line(ax, part, plan.axis, plan.statistic, look, f"{label}/{plan.line}={size}")
            _mark_failures(ax, part, plan.axis, look["color"], lane, lane_height)
    return drawn


def _scales(axes: Sequence[Axes], plan: Plan, drawn: Sequence[float], strip: float) -> None:
    logarithmic = latency_axis(axes, drawn, room_below=strip)
    log2 = plan.axis == "batch" or (logarithmic and plan.sizes[-1] / plan.sizes[0] >= 4)
    for ax in axes:
        size_axis(ax, plan.sizes, log2, (WIDTH_IN - LEGEND_IN - 0.6) / plan.columns - 0.25)
        if ax.xaxis.get_tick_params()["labelbottom"]:
            ax.set_xlabel(tables.AXIS_NAMES[plan.axis] + (" (log2)" if log2 else ""))
        if ax.yaxis.get_tick_params()["labelleft"]:
            ax.set_ylabel("latency [µs]" + (" (log)" if logarithmic else ""))


def _panels(body, plan: Plan) -> list[Axes]:
    """Axes that share both scales, in the order of `plan.panels`."""
    grid = body.subplots(plan.rows, plan.columns, sharex=True, sharey=True, squeeze=False)
    block_rows = math.ceil(plan.a_block / plan.columns)
    for row, column in itertools.product(range(plan.rows), range(plan.columns)):
        place = (row % block_rows) * plan.columns + column
        grid[row][column].set_visible(place < plan.a_block)
        if place < plan.a_block <= place + plan.columns:  # nothing below it in its block
            grid[row][column].tick_params(labelbottom=True)
    return [ax for ax in grid.flat if ax.get_visible()]


def _line(ax: Axes, part: pd.DataFrame, axis: str, statistic: str, look: dict, name: str) -> list[float]:
    """Statistic, maximum and floor of one line; returns the numbers drawn."""
    drawn: list[float] = []
    for kind in dict.fromkeys((statistic, "max_us")):
        if kind not in part:
            continue
        points = [(size, tables.over_rounds(part[part[axis] == size], kind)) for size in tables.values(part, axis)]
        points = [point for point in points if np.isfinite(point[1])]
        if not points:
            continue
        xs, ys = zip(*points, strict=True)
        ax.plot(xs, ys, **look, **(THICK if kind == statistic else THIN), gid=f"{kind}:{name}")
        drawn += ys
        if part["round"].nunique() > 1:
            every = tables.succeeded(part).dropna(subset=[kind])
            dots = {"linestyle": "none", "marker": ".", "markersize": 3.5, "alpha": 0.6, "zorder": 1.9}
            ax.plot(every[axis], every[kind], color=look["color"], gid=f"rounds:{kind}:{name}", **dots)
            drawn += every[kind].tolist()
    if "floor_us" in part and part["floor_us"].notna().any():
        floor = part.dropna(subset=["floor_us"]).drop_duplicates(axis)
        dotted = {"linestyle": ":", "linewidth": 1.0, "alpha": 0.6, "zorder": 1.8}
        ax.plot(floor[axis], floor["floor_us"], color=look["color"], gid=f"floor:{name}", **dotted)
        drawn += floor["floor_us"].tolist()
    return drawn


def _mark_failures(ax: Axes, part: pd.DataFrame, axis: str, color, lane: Counter, height: float) -> None:
    """An x in the strip at the bottom; those of other lines at the same size go above it."""
    cross = {"linestyle": "none", "marker": "x", "markersize": 5.5, "markeredgewidth": 1.5, "zorder": 5}
    for size in tables.values(tables.failed(part), axis):
        y = height * (0.75 + lane[size])
        ax.plot([size], [y], color=color, transform=ax.get_xaxis_transform(), gid="failed", **cross)
        lane[size] += 1


def _most_failures(table: pd.DataFrame, plan: Plan) -> int:
    """Most marks above one another in any panel, and half a row of room; 0 without failures."""
    rows = tables.failed(table).drop_duplicates("config_id")
    if rows.empty:
        return 0
    keys = [plan.axis, plan.facet, *(["system"] if plan.apart else [])]
    return 1 + int(rows.groupby(keys, observed=True).size().max())


def _handles(table: pd.DataFrame, plan: Plan, looks: dict, deadline_us: float | None) -> list[Line2D]:
    """The legend: sizes, the largest on top as the lines mostly lie; systems; kinds of line."""
    handles: list[Line2D] = []
    if len(plan.lines) > 1:
        pairs = zip(plan.lines, size_colors(len(plan.lines)), strict=True)
        sizes = [Line2D([], [], color=color, marker="o", markersize=4, label=str(size)) for size, color in pairs]
        handles += [_words(tables.AXIS_NAMES[plan.line]), *reversed(sizes), _words(" ")]
    if len(plan.systems) > 1 and not plan.apart:
        handles.append(_words("runtime"))
        for i, label in enumerate(plan.systems):
            look = {**looks[label], "linestyle": DASHES[i % len(DASHES)], "markersize": 4.5}
            look |= {} if plan.by_system else {"color": GREY}
            handles.append(Line2D([], [], label=folded(label), **look))
        handles.append(_words(" "))
    return handles + _kind_handles(table, plan.statistic, deadline_us)


def _words(text: str) -> Line2D:
    return Line2D([], [], linestyle="none", label=text)


def _kind_handles(table: pd.DataFrame, statistic: str, deadline_us: float | None) -> list[Line2D]:
    handles = []
    for kind in dict.fromkeys((statistic, "max_us")):
        look = THICK if kind == statistic else THIN
        handles.append(Line2D([], [], color=GREY, marker="o", label=tables.STATISTIC_NAMES.get(kind, kind), **look))
    if "floor_us" in table and table["floor_us"].notna().any():
        handles.append(Line2D([], [], color=GREY, linestyle=":", linewidth=1, label="speed-of-light\nfloor"))
    if deadline_us:
        handles.append(Line2D([], [], label=f"deadline\n{number(deadline_us)} µs", **DEADLINE))
    stages = Counter(tables.stage_of(row) for row in tables.failed(table).itertuples())
    if stages:
        text = "\n".join(f"  {stage}: {count}" for stage, count in stages.most_common())
        cross = {"linestyle": "none", "marker": "x", "markeredgewidth": 1.5}
        handles.append(Line2D([], [], color=GREY, label=f"failed\n{text}", **cross))
    return handles
