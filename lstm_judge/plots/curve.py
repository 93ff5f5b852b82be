"""Curves of a sweep: latency against one axis, with one panel and one line for each value of two
others.

Rounds are never averaged: lines show the middle round, maxima are the largest of all rounds, and
small marks show the single rounds.

What has a line is a list of `Series`, which `in_blocks` puts into panels; `by_size` draws the axes
of any figure of latencies against a size.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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

#: Height of the strip for the marks of failures, as a share of the panel height.
STRIP = 0.14

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


@dataclass(frozen=True)
class Series:
    """What one line shows: its system, its sizes on the axes of the panels and of the colours, and
    `found`, the points or what was fitted to them."""

    system: str
    facet: int
    line: int
    found: Any


#: Panels that begin a row, by title.
Block = dict[str, list[Series]]


def in_blocks(series: Sequence[Series], facet: str, apart: bool = False) -> list[Block]:
    """Panels for each size on the axis `facet`, and for each system if they are `apart`.

    At most four rows of panels are made.
    """
    several = len({each.facet for each in series}) > 1
    systems = sorted({each.system for each in series})[: style.MOST_ROWS] if apart else [None]
    blocks: list[Block] = []
    for system in systems:
        here = [each for each in series if system in (None, each.system)]
        block: Block = {}
        for size in style.spread(
            sorted({each.facet for each in here}), 3 * (style.MOST_ROWS // len(systems))
        ):
            value = data.axis_value(facet, size) if several else None
            title = "\n".join(filter(None, [None if block else system, value]))
            block[title] = [each for each in here if each.facet == size]
        blocks.append(block)
    if max(map(len, blocks)) > 1:
        return blocks
    return [{title: here for block in blocks for title, here in block.items()}]


@dataclass(frozen=True)
class Head:
    """Title, notes and main result of a figure."""

    title: str
    notes: list[str]
    summary: str


@contextmanager
def by_size(
    head: Head,
    blocks: Sequence[Block],
    names: tuple[str, str],
    handles: Sequence[Line2D],
    numbers: Sequence[float],
    sizes: Sequence[int],
    strip: float = 0.0,
    ax: Axes | None = None,
) -> Iterator[tuple[Picture, Iterable[tuple[Axes, list[Series]]]]]:
    """Panels for latencies against `sizes`; yields the axes of each with its series.

    They share a latency axis for the `numbers`, which is logarithmic if these span more than a
    factor of 20; `strip` is the share of the height below it that is free.
    """
    columns = style.columns_of(max(map(len, blocks)))
    width = ROW_CHARACTERS // columns
    panels: list[list[Series]] = []
    titles = []
    for block in blocks:
        panels += block.values()
        lines = [title.split("\n") for title in block]
        titles.append(["\n".join(style.folded(line, width) for line in each) for each in lines])
    with style.facets(
        head.title,
        head.notes,
        titles,
        names,
        handles,
        ax=ax,
        columns=columns,
        summary=head.summary,
    ) as (picture, axes):
        style.latency_axis(axes, numbers, room_below=strip)
        far = sizes[-1] / sizes[0] >= 4 and axes[0].get_yscale() == "log"
        for panel in axes:
            style.size_axis(panel, sizes, log2=far or names[0] == AXIS_NAMES["batch"])
        yield picture, zip(axes, panels, strict=True)


def line_colors(series: Iterable[Series]) -> dict[int, Any]:
    """Colours of the lines, by size."""
    sizes = sorted({each.line for each in series})
    return dict(zip(sizes, style.size_colors(len(sizes)), strict=True))


def curves(
    runs: Any,
    axis: str,
    *,
    statistic: str = "median_us",
    deadline_us: float | None = None,
    line: str | None = None,
    beside: Any = None,
    ax: Axes | None = None,
) -> Picture:
    """Latency in µs against `axis`, with one panel per value of a second axis and one line per
    value of `line`.

    `runs` is the result of `load`, or a path, recordings or groups. `statistic` (one of
    `STATISTIC_NAMES`) is drawn thick, the maximum thin in the same colour, the roofline bound
    dotted. Axes that are not drawn are held at one value, which is chosen and which the notes
    state. Systems share a panel, with different markers and dashes, or get their own panels if a
    panel would have more than 8 lines. Failures are marked x at the bottom. At most four rows of
    panels are drawn; the notes state what is left out. A single panel is drawn into `ax` if given.

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
    facet, usual = data.ARRANGEMENT[axis]
    line = line or usual
    if line in (axis, facet):
        raise UsageError(f"line must not be {line}, which is drawn already")
    drawn = (axis, facet, line)
    held = data.hold_fixed(every, drawn)
    others = [] if beside is None else data.elsewhere(beside, held, drawn)
    kinds = {statistic: THICK}
    kinds.setdefault("max_us", THIN)
    curves = _arranged([*held, *others], drawn, data.system_looks([*every, *others]))
    points = curves.points
    numbers = list(_numbers(points, kinds))
    if deadline_us:
        numbers.append(deadline_us)
    with by_size(
        Head(
            f"Latency against {AXIS_NAMES[axis]}: "
            + " and ".join(data.STATISTIC_NAMES[name] for name in kinds),
            _notes(curves, drawn),
            data.describe_extremes(_recorded(points), statistic),
        ),
        curves.blocks,
        (AXIS_NAMES[axis], "latency [µs]"),
        _handles(curves, AXIS_NAMES[line], kinds, deadline_us),
        numbers,
        data.values(points, axis),
        STRIP if any(point.failed for point in points) else 0.0,
        ax,
    ) as (picture, panels):
        for panel, here in panels:
            _draw_panel(panel, here, axis, curves, kinds)
            style.deadline(deadline_us, panel.axhline)
    return picture


@dataclass(frozen=True)
class Curves:
    """All points of a figure, the panels with those that are drawn, whether systems are `apart`,
    colours by the size of a line, and the looks of the systems."""

    every: list[AnyPoint]
    blocks: list[Block]
    apart: bool
    colors: dict[int, Any]
    looks: dict[str, dict]

    @property
    def points(self) -> list[AnyPoint]:
        """Those that are drawn."""
        panels = [panel for block in self.blocks for panel in block.values()]
        return [point for panel in panels for series in panel for point in series.found]


def _arranged(
    points: list[AnyPoint], drawn: tuple[str, str, str], of_systems: Mapping[str, dict]
) -> Curves:
    """Points in their panels. If a panel had too many lines, systems are apart."""
    axis, facet, _ = drawn
    series = _series(points, drawn)
    colors = line_colors(series)
    systems = data.systems(points)
    apart = len(systems) > 1 and len(colors) * len(systems) > LINES_PER_PANEL
    elsewhere = {point.system for point in points if isinstance(point, Elsewhere)}
    looks = {}
    for system, dashes in zip(systems, itertools.cycle(style.DASHES)):
        look = {**of_systems[system], "linestyle": dashes}
        if system in elsewhere:
            look["markerfacecolor"] = "white"
        elif apart:
            look |= {"linestyle": "-", "marker": "o"}
        if len(colors) > 1 or len(systems) == 1:
            del look["color"]  # it is that of the size
        if len(data.values(points, axis)) > style.MOST_MARKED:
            look["marker"] = ""
        looks[system] = look
    return Curves(points, in_blocks(series, facet, apart), apart, colors, looks)


def _numbers(points: Iterable[AnyPoint], kinds: Iterable[str]) -> Iterator[float]:
    """All latencies that are drawn: statistics of each round, and roofline bounds."""
    for point in points:
        if point.floor_us is not None:
            yield point.floor_us
        for each in point.rounds or [point]:
            yield from map(each.statistic, kinds)


def _series(points: Iterable[AnyPoint], drawn: tuple[str, str, str]) -> list[Series]:
    """The points that a line joins, by size on the first of the axes `drawn`."""
    axis, facet, line = drawn
    found: dict[tuple[str, int, int], list[AnyPoint]] = {}
    for point in sorted(points, key=lambda point: point.sizes[axis]):
        key = (point.system, point.sizes[facet], point.sizes[line])
        found.setdefault(key, []).append(point)
    return [Series(*key, found[key]) for key in sorted(found)]


def _recorded(points: Iterable[AnyPoint]) -> list[data.Point]:
    return [point for point in points if isinstance(point, data.Point)]


def _notes(curves: Curves, drawn: tuple[str, str, str]) -> list[str]:
    """What the points are, and what is left out, for the head of the figure."""
    own = _recorded(curves.points)
    every = _recorded(curves.every)
    varied = [axis for axis in drawn if len(data.values(own, axis)) > 1]
    notes = [*data.describe(own, varied), data.describe_rounds(own)]
    elsewhere = data.systems(point for point in curves.points if isinstance(point, Elsewhere))
    if elsewhere:
        notes.append(f"Open markers: one number each, from elsewhere: {'; '.join(elsewhere)}.")
    facet = drawn[1]
    notes += [
        data.describe_shown("systems", data.systems(own), data.systems(every)),
        data.describe_shown(
            f"values of {AXIS_NAMES[facet]}", data.values(own, facet), data.values(every, facet)
        ),
    ]
    missing = dict.fromkeys(point.group.floor_missing for point in own)
    return notes + [f"No roofline bound: {reason}." for reason in missing if reason]


def _handles(
    curves: Curves, of_lines: str, kinds: Mapping[str, dict], deadline_us: float | None
) -> list[Line2D]:
    """The legend: sizes, systems that share a panel, statistics, bound, deadline, and failures by
    stage."""
    points = curves.points
    handles = style.size_handles(of_lines, curves.colors) if len(curves.colors) > 1 else []
    if len(curves.looks) > 1 and not curves.apart:
        handles.append(style.heading("runtime"))
        for system, look in curves.looks.items():
            handles.append(
                style.entry(style.folded(system), **{"color": GREY, "markersize": 4.5} | look)
            )
        handles.append(style.heading(" "))
    for statistic, kind in kinds.items():
        handles.append(style.entry(data.STATISTIC_NAMES[statistic], color=GREY, marker="o", **kind))
    if any(point.floor_us is not None for point in points):
        handles.append(style.entry("roofline bound", color=GREY, **FLOOR))
    handles += style.deadline(deadline_us, name="deadline\n")
    stages = Counter(stage for point in points if point.failed for stage in point.stages)
    if stages:
        lines = [f"\n  {stage}: {total}" for stage, total in stages.most_common()]
        handles.append(style.entry(f"failed at stage{''.join(lines)}", color=GREY, **style.FAILED))
    return handles


def _draw_panel(
    ax: Axes,
    series: Iterable[Series],
    axis: str,
    curves: Curves,
    kinds: Mapping[str, dict],
) -> None:
    """Draw the lines of a panel, and mark what failed at a size, evenly over the height of the
    strip at the bottom."""
    failed: dict[int, list] = {}  # size -> colours of the lines that failed there
    for each in series:
        look = {"color": curves.colors[each.line], **curves.looks[each.system]}
        points = {point.sizes[axis]: point for point in each.found}
        _draw_line(ax, points, look, kinds)
        for size, point in points.items():
            if point.failed:
                failed.setdefault(size, []).append(look["color"])
    for size, of_lines in failed.items():
        for row, color in enumerate(of_lines, 1):
            ax.plot(
                [size],
                [(STRIP * row / (len(of_lines) + 1))],
                color=color,
                transform=ax.get_xaxis_transform(),
                **style.FAILED,
            )


def _draw_line(
    ax: Axes, points: Mapping[int, AnyPoint], look: dict, kinds: Mapping[str, dict]
) -> None:
    """Draw statistic, maximum and roofline bound of one line."""
    good = {size: point for size, point in points.items() if point.ok}
    for statistic, kind in kinds.items() if good else ():
        ax.plot([*good], [point.statistic(statistic) for point in good.values()], **look | kind)
        for size, point in good.items():
            if len(point.rounds) > 1:
                rounds = [each.statistic(statistic) for each in point.rounds]
                ax.plot([size] * len(rounds), rounds, color=look["color"], **EACH_ROUND)
    floors = {size: point.floor_us for size, point in points.items() if point.floor_us is not None}
    ax.plot([*floors], [*floors.values()], color=look["color"], **FLOOR)
