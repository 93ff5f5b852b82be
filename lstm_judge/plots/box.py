"""Box plots that stay readable if the box is a thousandth of the range.

They show latency / median - 1 on an asinh axis that is linear within the IQR, so that the box and
outliers at twice the median are both visible. All trials are within the axis limits.
"""

from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import Any

import numpy as np
import seaborn
from matplotlib.axes import Axes

from lstm_judge.plots import points as data, style
from lstm_judge.plots.points import AXIS_NAMES
from lstm_judge.plots.style import GREY, THIN_SPACE, Picture, multiple, number, whole
from lstm_judge.statistics.trials import Trials
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import as_list

PANEL_IN = 2.3

#: Rows and boxes of a figure, at most: there is room for the text beside so many.
MOST_ROWS = 3
MOST_BOXES = 10

#: Half of the width of a box, as a share of that.
HALF = 0.15

#: Smallest linear width, as a share of the median, for trials that all took equally long.
LEAST_WIDTH = 1e-3


def box_plots(
    runs: Any, axis: str, *, fixed: dict[str, int] | None = None, ax: Axes | None = None
) -> Picture:
    """A box plot of the trials for each value of `axis`, one panel per system; the other axes are
    held fixed.

    `runs` is the result of `load`, or a path, recordings or groups. Axes that are not in `fixed`
    are held at a chosen value, which the notes state. Boxes show the first recorded round, diamonds
    the maxima of the other rounds. The text beside a box is the number of outliers (1.5 x IQR, both
    sides), above it the maximum of all rounds as a multiple of the median, below it the median in
    µs. Failures are named at their position. At most 10 sizes and 3 systems are drawn, which the
    notes state; a single system into `ax` if given. Raises `UsageError` if there are no trials to
    draw.
    """
    every = data.points_of(runs)
    held = data.hold_fixed(every, (axis,), fixed)
    systems = data.systems(point for point in held if point.ok)
    if not systems:
        raise UsageError("the chosen configurations have no trials: nothing to draw")
    measured = data.values(held, axis)
    names = systems[:MOST_ROWS]
    sizes = style.spread(measured, MOST_BOXES)
    points = [point for point in held if point.system in names and point.sizes[axis] in sizes]
    good = [point for point in points if point.ok]
    width = _linear_width(good)
    looks = data.system_looks(every)
    with style.facets(
        f"Spread of latencies around the median, by {AXIS_NAMES[axis]}",
        [
            *data.describe(points, (axis,)),
            _reading(good),
            data.describe_shown("systems", names, systems),
            data.describe_shown(f"values of {AXIS_NAMES[axis]}", sizes, measured),
        ],
        [[style.folded(name, 95) if len(names) > 1 else "" for name in names]],
        (f"{AXIS_NAMES[axis]} (below: median in µs)", _axis_label(width)),
        ax=ax,
        columns=1,
        panel_in=PANEL_IN,
        sharex=False,
        summary=_summary(good, axis),
    ) as (picture, axes):
        for panel, system in zip(axes, names, strict=True):
            here = {point.sizes[axis]: point for point in points if point.system == system}
            _panel(panel, here, sizes, looks[system]["color"])
        _value_axis(axes, width)
    return picture


def _reading(points: Sequence[data.Point]) -> str:
    """How to read a box."""
    reading = (
        "Beside each box: number of outliers (outside 1.5 × IQR, both sides)."
        " Above it: maximum / median."
    )
    rounds = max(len(point.rounds) for point in points)
    if rounds > 1:
        reading += f" Boxes show the first of {rounds} rounds, diamonds the maxima of the others."
    shown = "Some" if any(point.rounds[0].whole for point in points) else "All"
    return f"{reading} {shown} trials of these are shown."


def violins(
    runs: Any,
    axis: str,
    pair: tuple[int, int],
    *,
    fixed: dict[str, int] | None = None,
    ax: Axes | None = None,
) -> Picture:
    """The trials at two values of `axis` as the halves of a violin, one violin per system; other
    axes are held fixed.

    Left is the smaller value. `runs` and `fixed` are those of `box_plots`, and so are the latency
    axis and the round that is shown. Widths are kernel density estimates on that axis (seaborn's,
    Scott's rule), with the same maximum for each half: they show where trials are, not how many.
    With `ax` they are drawn into these axes. Raises `UsageError` if no system has trials at both
    values.
    """
    sides = sorted(as_list(pair))
    if len(sides) != 2:
        raise UsageError(f"violins compare a pair of values, not {pair!r}")
    good = [point for point in data.hold_fixed(data.points_of(runs), (axis,), fixed) if point.ok]
    found = {(point.system, point.sizes[axis]): point for point in good}
    names = [name for name in data.systems(good) if {(name, size) for size in sides} <= {*found}]
    if not names:
        raise UsageError(
            f"no system has trials at {axis} {sides[0]} and {sides[1]}: nothing to draw"
        )
    points = [found[name, size] for name in names for size in sides]
    width = _linear_width(points)
    with style.facets(
        f"Trials around the median, by {AXIS_NAMES[axis]}: {sides[0]} (left) and"
        f" {sides[1]} (right)",
        [
            *data.describe(points, (axis,)),
            "Each half: the first round, relative to its own median."
            " Widths: density of trials, all with the same maximum.",
        ],
        [[""]],
        ("below: medians, left | right", _axis_label(width)),
        ax=ax,
        panel_in=PANEL_IN,
        summary=_summary(points, axis),
    ) as (picture, (panel,)):
        panel.set_yscale("asinh", linear_width=width)  # before the densities are estimated
        _draw_halves(panel, points, axis)
        _value_axis([panel], width)
        labels = []
        for name in names:
            medians = [f"{number(found[name, size].rounds[0].median_us)} µs" for size in sides]
            labels.append(f"{style.folded(name, 95 // len(names))}\n{' | '.join(medians)}")
        panel.set_xticks(range(len(names)), labels)
    return picture


def _draw_halves(ax: Axes, points: Sequence[data.Point], axis: str) -> None:
    """A violin for each system, in the order of the points."""
    relative = [_relative(point.rounds[0]) for point in points]
    lengths = [len(each) for each in relative]
    seaborn.violinplot(
        x=np.repeat([point.system for point in points], lengths),
        y=np.concatenate(relative),
        hue=np.repeat([point.sizes[axis] for point in points], lengths),
        palette=style.size_colors(2),
        ax=ax,
        split=True,
        inner=None,
        cut=0,
        density_norm="width",
        linewidth=0.8,
        legend=False,
    )


def _relative(trials: Trials) -> np.ndarray:
    return trials.latency_us / trials.median_us - 1


def _linear_width(points: Iterable[data.Point]) -> float:
    """Width of the linear part of the latency axis, the IQR as a share of the median."""
    boxes = [point.rounds[0] for point in points]
    widths = [float(np.ptp(box.quartiles_us)) / box.median_us for box in boxes]
    return max(median_low(widths), LEAST_WIDTH)


def _axis_label(width: float) -> str:
    return f"latency / median − 1\n(asinh, linear within ±{100 * width:.2g} %)"


def _summary(good: Sequence[data.Point], axis: str) -> str:
    """The most outliers and the largest maximum, in one sentence."""
    most = max(good, key=lambda point: point.rounds[0].outliers / point.rounds[0].n)
    first = most.rounds[0]
    largest = max(good, key=_reach)
    return (
        f"Most outliers: {whole(first.outliers)} of {whole(first.n)}"
        f" ({data.axis_value(axis, most.sizes[axis])})."
        f" Largest maximum / median: {multiple(_reach(largest))}"
        f" ({data.axis_value(axis, largest.sizes[axis])})."
    )


def _reach(point: data.Point) -> float:
    """The maximum of all rounds as a multiple of the median of the first."""
    return point.statistic("max_us") / point.rounds[0].median_us


def _panel(ax: Axes, points: dict[int, data.Point], sizes: Sequence[int], color) -> None:
    """Draw one system; `points` maps sizes to points."""
    labels = []
    for place, size in enumerate(sizes):
        labels.append(str(size))
        if size in points and points[size].ok:
            labels[place] += f"\n{number(points[size].rounds[0].median_us)}"
            _draw_box(ax, place, points[size], color)
            continue
        ax.text(
            place,
            0.5,
            f"failed: {points[size].stages[0]}" if size in points else "not recorded",
            transform=ax.get_xaxis_transform(),
            rotation=90,
            ha="center",
            va="center",
            color=GREY,
            bbox=style.BACKGROUND,
        )
    style.size_ticks(ax.xaxis, sizes, range(len(sizes)), labels)
    ax.set_xlim(-0.5, len(sizes))
    ax.grid(False, axis="x")


def _draw_box(ax: Axes, place: int, point: data.Point, color) -> None:
    """Draw box, outliers, maxima and their text."""
    box = point.rounds[0]
    inside = box.latency_us[~box.is_outlier]
    q1, q3 = box.quartiles_us
    ends_us = {
        "med": box.median_us,
        "q1": q1,
        "q3": q3,
        "whislo": inside.min(),
        "whishi": inside.max(),
    }
    ax.bxp(
        [{name: value_us / box.median_us - 1 for name, value_us in ends_us.items()}],
        [place],
        widths=2 * HALF,
        showfliers=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": (*color, 0.35), "edgecolor": color},
        whiskerprops={"color": color},
        capprops={"color": color},
        medianprops={"color": "black"},
    )
    # Jitter separates outliers of equal latency; the largest stays centred below its marker.
    relative = _relative(box)
    jitter = np.random.default_rng(0).uniform(-0.6 * HALF, 0.6 * HALF, len(relative))
    jitter[np.argmax(relative)] = 0
    ax.plot(
        place + jitter[box.is_outlier],
        relative[box.is_outlier],
        "o",
        markersize=2.6,
        markeredgewidth=0,
        alpha=0.45,
        color=color,
    )
    # The largest of all trials: of a long recording only some are in memory.
    largest, *later = (each.max_us / box.median_us - 1 for each in point.rounds)
    ax.plot([place], [largest], "^", markersize=5, color="black")
    ax.plot([place] * len(later), later, "D", markersize=5, color=color, mfc="white")
    style.beside(
        ax,
        f"max {multiple(_reach(point))}",
        (place, _reach(point) - 1),
        (0, 6),
        bbox=style.BACKGROUND,
    )
    style.beside(ax, f"{whole(box.outliers)} of\n{whole(box.n)}", (place + HALF, 0), (3, 0))


def _value_axis(axes: Sequence[Axes], width: float) -> None:
    """Limits around what is drawn, ticks in percent that do not overlap, and guides with multiples
    of the median on the right."""
    low, high = np.arcsinh(
        np.array((min(ax.dataLim.y0 for ax in axes), max(ax.dataLim.y1 for ax in axes))) / width
    )
    room = max(high - low, 1.0)
    bottom, top = width * np.sinh((low - 0.08 * room, high + 0.17 * room))
    guides = [ratio - 1 for ratio in style.GUIDES]
    steps = np.outer(10.0 ** np.arange(-6, 7), (1, 2.5, 5)).ravel()
    ticks = [0, *guides, *np.column_stack((steps, -steps)).flat]
    for ax in axes:
        ax.set_yscale("asinh", linear_width=width)
        ax.set_ylim(bottom, top)
        style.set_ticks(ax.yaxis, ticks, bottom, top, _percent_tick)
        style.guides(guides, ax)


def _percent_tick(value: float) -> str:
    return f"{100 * value:+,.9g} %".replace(",", THIN_SPACE).replace("-", "−") if value else "0"
