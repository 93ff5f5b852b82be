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
from lstm_judge.plots.style import GREY, THIN_SPACE, Picture, multiple, number, whole
from lstm_judge.statistics.trials import Trials
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import as_list

PANEL_IN = 2.3

#: Rows and boxes of a figure, at most.
MOST_ROWS, MOST_BOXES = 3, 15

#: Width per box from which its number of outliers fits on one line.
ROOMY_IN = 1.2

#: Smallest linear width, as a share of the median, for trials that all took equally long.
LEAST_WIDTH = 1e-3

VIOLIN = {
    "split": True,
    "inner": None,
    "cut": 0,
    "density_norm": "width",
    "linewidth": 0.8,
    "legend": False,
}

OUTLIER = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 2.6,
    "markeredgewidth": 0,
    "alpha": 0.45,
}


def box_plots(
    runs: Any, axis: str, *, fixed: dict[str, int] | None = None, ax: Axes | None = None
) -> Picture:
    """A box plot of the trials for each value of `axis`, one panel per system; the other axes are
    held fixed.

    `runs` is the result of `load`, or a path, recordings or groups. Axes that are not in `fixed`
    are held at a chosen value, which the notes state. Boxes show the first recorded round, diamonds
    the maxima of the other rounds. The text beside a box is the number of outliers (1.5 x IQR, both
    sides), above it the maximum of all rounds as a multiple of the median, below it the median in
    µs. Failures are named at their position. At most 15 sizes and 3 systems are drawn, which the
    notes state, a single system into `ax` if given. Raises `UsageError` if there are no trials to draw.
    """
    every = data.points_of(runs)
    looks = data.system_looks(every)
    points = data.hold_fixed(every, (axis,), fixed)
    good = [point for point in points if point.ok]
    if not good:
        raise UsageError("the chosen configurations have no trials: nothing to draw")
    systems, measured = data.systems(good), data.values(points, axis)
    names = systems[:MOST_ROWS]
    sizes = style.spread(measured, MOST_BOXES)
    points = [point for point in points if point.system in names and point.sizes[axis] in sizes]
    good = [point for point in points if point.ok]
    columns = 2 if len(names) > 1 and len(sizes) <= 3 else 1
    slot_in = (style.WIDTH_IN / columns - 1.4) / len(sizes)
    reading = "Beside each box: number of outliers (outside 1.5 × IQR, both sides). Above it: maximum / median."
    rounds = max(len(point.rounds) for point in points)
    reading += f" Boxes show the first of {rounds} rounds, diamonds the maxima of the others." * (
        rounds > 1
    )
    notes = [
        f"{data.describe_counts(points)}. {data.describe_fixed(points, (axis,))}",
        data.describe_systems(points),
        f"{reading} {'Some' if any(point.rounds[0].whole for point in good) else 'All'} trials of these are shown.",
        data.describe_shown("systems", len(names), len(systems)),
        data.describe_shown(f"values of {data.AXIS_NAMES[axis]}", len(sizes), len(measured)),
    ]
    unit = "" if slot_in <= 0.7 else " µs"  # if it does not fit, the axis label states it
    width, ends = _linear_width(point.rounds[0] for point in good), []
    labels = (
        f"{data.AXIS_NAMES[axis]} (below: median{'' if unit else ' in µs'})",
        _axis_label(width),
    )
    titles = [style.folded(system, 95 // columns) if len(names) > 1 else "" for system in names]
    title = f"Spread of latencies around the median, by {data.AXIS_NAMES[axis]}"
    how: Any = {
        "columns": columns,
        "panel_in": PANEL_IN,
        "sharex": False,
        "summary": _summary(good, axis),
    }
    with style.facets(title, notes, [titles], labels, ax=ax, **how) as (picture, axes):
        for panel, system in zip(axes, names, strict=True):
            here = {point.sizes[axis]: point for point in points if point.system == system}
            ends += _panel(panel, here, sizes, looks[system]["color"], slot_in)
            medians = {
                size: f"\n{number(point.rounds[0].median_us)}{unit}"
                for size, point in here.items()
                if point.ok
            }
            style.size_ticks(
                panel.xaxis,
                sizes,
                range(len(sizes)),
                [f"{size}{medians.get(size, '')}" for size in sizes],
            )
            panel.grid(False, axis="x")
        _value_axis(axes, width, min(ends), max(ends))
    return picture


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
    With `ax` they are drawn into these axes.
    Raises `UsageError` if no system has trials at both values.
    """
    sides = sorted(as_list(pair))
    if len(sides) != 2:
        raise UsageError(f"violins compare a pair of values, not {pair!r}")
    good = [point for point in data.hold_fixed(data.points_of(runs), (axis,), fixed) if point.ok]
    found = {(point.system, point.sizes[axis]): point for point in good}
    names = [name for name in data.systems(good) if all((name, size) in found for size in sides)]
    if not names:
        raise UsageError(
            f"no system has trials at {axis} {sides[0]} and {sides[1]}: nothing to draw"
        )
    keys = [(name, size) for name in names for size in sides]
    points = [found[key] for key in keys]
    boxes = [point.rounds[0] for point in points]
    notes = [
        f"{data.describe_counts(points)}. {data.describe_fixed(points, (axis,))}",
        data.describe_systems(points),
        "Each half: the first round, relative to its own median. Widths: density of trials, all with the same maximum.",
    ]
    title = f"Trials around the median, by {data.AXIS_NAMES[axis]}: {sides[0]} (left) and {sides[1]} (right)"
    width = _linear_width(boxes)
    labels = ("below: medians, left | right", _axis_label(width))
    how: Any = {"ax": ax, "panel_in": PANEL_IN, "summary": _summary(points, axis)}
    with style.facets(title, notes, [[""]], labels, **how) as (picture, (ax,)):
        ax.set_yscale("asinh", linear_width=width)  # before the densities are estimated
        y = np.concatenate([box.latency_us / box.median_us - 1 for box in boxes])
        x, hue = (
            np.repeat(each, [len(box.latency_us) for box in boxes])
            for each in zip(*keys, strict=True)
        )
        seaborn.violinplot(
            x=x, y=y, hue=hue, order=names, palette=style.size_colors(2), ax=ax, **VIOLIN
        )
        _value_axis([ax], width, y.min(), y.max())
        medians = {key: f"{number(box.median_us)} µs" for key, box in zip(keys, boxes, strict=True)}
        wide = 95 // len(names)
        labels = [
            f"{style.folded(name, wide)}\n{' | '.join(medians[name, side] for side in sides)}"
            for name in names
        ]
        ax.set(xticks=range(len(names)), xticklabels=labels)
    return picture


def _linear_width(boxes: Iterable[Trials]) -> float:
    """Width of the linear part of the latency axis, the IQR as a share of the median."""
    return max(
        median_low(float(np.ptp(box.quartiles_us)) / box.median_us for box in boxes), LEAST_WIDTH
    )


def _axis_label(width: float) -> str:
    return f"latency / median − 1\n(asinh, linear within ±{100 * width:.2g} %)"


def _summary(good: Sequence[data.Point], axis: str) -> str:
    """The most outliers and the largest maximum, in one sentence."""
    most = max(good, key=lambda point: point.rounds[0].outliers / point.rounds[0].n)
    largest = max(good, key=_reach)
    first, (where, at) = (
        most.rounds[0],
        (data.axis_value(axis, point.sizes[axis]) for point in (most, largest)),
    )
    outliers = f"Most outliers: {whole(first.outliers)} of {whole(first.n)} ({where})."
    return f"{outliers} Largest maximum / median: {multiple(_reach(largest))} ({at})."


def _reach(point: data.Point) -> float:
    """The maximum of all rounds as a multiple of the median of the first."""
    return max(each.max_us for each in point.rounds) / point.rounds[0].median_us


def _panel(
    ax: Axes, points: dict[int, data.Point], sizes: Sequence[int], color, slot_in: float
) -> tuple[float, float]:
    """Draw one system; `points` maps sizes to points. Returns the lowest and highest number drawn."""
    extremes = [0.0]
    for place, size in enumerate(sizes):
        if size in points and points[size].ok:
            first, *others = points[size].rounds
            extremes += _draw_box(
                ax, place, first, [each.max_us for each in others], color, slot_in
            )
        else:
            text = f"failed: {points[size].stages[0]}" if size in points else "not recorded"
            look = {
                "rotation": 90,
                "ha": "center",
                "va": "center",
                "color": GREY,
                "bbox": style.BACKGROUND,
            }
            ax.text(place, 0.5, text, transform=ax.get_xaxis_transform(), **look)
    ax.set_xlim(-0.5, len(sizes) - 1 + max(0.55, (0.8 if slot_in < ROOMY_IN else 1.05) / slot_in))
    return min(extremes), max(extremes)


def _draw_box(
    ax: Axes, place: int, box: Trials, others_us: list[float], color, slot_in: float
) -> list[float]:
    """Draw box, outliers, maxima and their text; returns the lowest and highest number drawn."""
    relative, later = (
        box.latency_us / box.median_us - 1,
        [largest / box.median_us - 1 for largest in others_us],
    )
    largest = (
        box.max_us / box.median_us - 1
    )  # of all trials, of which a long recording has only some in memory
    highest, half = max([largest, *later]), min(0.15, 0.21 / slot_in)
    lines = {
        "whiskerprops": {"color": color},
        "capprops": {"color": color},
        "medianprops": {"color": "black"},
    }
    lines |= {"boxprops": {"facecolor": (*color, 0.35), "edgecolor": color}}
    ax.bxp(
        [_box(box)],
        [place],
        widths=2 * half,
        showfliers=False,
        patch_artist=True,
        manage_ticks=False,
        **lines,
    )
    # Jitter separates outliers of equal latency; the largest stays centred below its marker.
    jitter = np.random.default_rng(0).uniform(-0.6 * half, 0.6 * half, len(relative))
    jitter[np.argmax(relative)] = 0
    ax.plot(place + jitter[box.is_outlier], relative[box.is_outlier], color=color, **OUTLIER)
    mark = {"linestyle": "none", "markersize": 5}
    ax.plot([place], [largest], marker="^", color="black", **mark)
    if later:
        ax.plot(
            [place] * len(later), later, marker="D", color=color, markerfacecolor="white", **mark
        )
    reach = f"{'max ' if slot_in > 0.72 else ''}{multiple(highest + 1)}"
    style.beside(ax, reach, (place, highest), (0, 6), bbox=style.BACKGROUND)
    upright = slot_in < 0.7
    counts = (
        f"{whole(box.outliers)} of{' ' if upright or slot_in > ROOMY_IN else chr(10)}{whole(box.n)}"
    )
    style.beside(ax, counts, (place + half, 0), (3, 0), rotation=90 if upright else 0)
    return [relative.min(), highest]


def _box(box: Trials) -> dict[str, float]:
    """Statistics for `bxp`; whiskers end at the outermost trials that are not outliers."""
    inside, (q1, q3) = box.latency_us[~box.is_outlier], box.quartiles_us
    ends_us = {
        "med": box.median_us,
        "q1": q1,
        "q3": q3,
        "whislo": inside.min(),
        "whishi": inside.max(),
    }
    return {name: value_us / box.median_us - 1 for name, value_us in ends_us.items()}


def _value_axis(axes: Sequence[Axes], width: float, lowest: float, highest: float) -> None:
    """Set ticks in percent that do not overlap, and guides with multiples of the median on the
    right."""
    low, high = np.arcsinh(np.array((lowest, highest)) / width)
    room = max(high - low, 1.0)
    bottom, top = width * np.sinh((low - 0.08 * room, high + 0.17 * room))
    steps = [mantissa * 10.0**power for power in range(-6, 7) for mantissa in (1, 2.5, 5)]
    guides = [ratio - 1 for ratio in style.GUIDES]
    far = sorted(
        (sign * step for step in steps for sign in (1, -1)),
        key=lambda value: -abs(np.log10(abs(value))),
    )
    for ax in axes:
        ax.set_yscale("asinh", linear_width=width)
        ax.set_ylim(bottom, top)
        style.set_ticks(ax.yaxis, [0, *guides, *far], bottom, top, _percent_tick)
        style.guides(guides, ax)


def _percent_tick(value: float) -> str:
    return f"{100 * value:+,.9g} %".replace(",", THIN_SPACE).replace("-", "−") if value else "0"
