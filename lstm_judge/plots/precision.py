"""Latency against the error relative to float32: a panel per network, a dot per runtime and
precision."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from lstm_judge.plots import points as data, style
from lstm_judge.read.numbers import scientific
from lstm_judge.statistics.quantiles import DEFAULT_CONFIDENCE, MEDIAN
from lstm_trt.config.errors import UsageError

#: Most panels, and most dots in a panel that has others beside it.
MOST_PANELS, MOST_BESIDE = 4, 9

#: Offsets of a label from its dot in points, in order of preference.
PLACES = ((6, 0), (-6, 0), (0, 5), (0, -5), (5, 5), (5, -5), (-5, 5), (-5, -5))

MARK = {"linestyle": "none", "markersize": 6}


@dataclass(frozen=True)
class Dot:
    """One configuration; `intervals_us` are those of the median of each round, `error` is where the
    dot stands, which is above 0."""

    point: data.Point
    error: float
    median_us: float
    intervals_us: list[tuple[float, float]]
    look: dict[str, Any]

    @classmethod
    def of(cls, point: data.Point, least: float, look: dict[str, Any]) -> "Dot":
        found = [trials.percentile(MEDIAN) for trials in point.rounds]
        intervals = [(each.low_us or each.us, each.high_us or each.us) for each in found]
        error = max(point.group.parity_error or 0.0, least)
        return cls(point, error, point.statistic("median_us"), intervals, look)


def precisions(
    runs: Any, *, deadline_us: float | None = None, ax: Axes | None = None
) -> style.Picture:
    """Median latency in µs against the relative error of the outputs, a panel per network and a dot
    per configuration.

    `runs` is the result of `load`, or a path, recordings or groups. Colour and marker are those of
    the runtime, labels name the precision. Lines are the exact 95 % interval of the median, one per
    round. The error is that of the parity gate, the largest of all rounds; configurations that were
    not checked are not drawn. At most 4 networks are shown, see `runtimes`; a single one is drawn
    into `ax` if given. Raises `UsageError` if there is nothing to draw.
    """
    data.check_deadline(deadline_us)
    every = [point for point in data.points_of(runs) if point.ok]
    checked = [point for point in every if point.group.parity_error is not None]
    if not checked:
        raise UsageError("nothing to draw: no recording states its error relative to float32")
    drawn, chosen, note = data.choose_networks(checked, MOST_PANELS)
    labels = data.system_labels([point.group for point in drawn], without=("precision",))
    points = [replace(point, system=label) for point, label in zip(drawn, labels, strict=True)]
    looks = data.system_looks(points)
    errors = [point.group.parity_error or 0.0 for point in points]
    least = min([error for error in errors if error], default=1e-7)
    if 0 in errors:
        least /= 4  # where 0 stands on a logarithmic axis
    dots = [Dot.of(point, least, looks[point.system]) for point in points]
    if len(every) > len(checked):
        unchecked = style.count(len(every) - len(checked), "configuration")
        note += f" {unchecked} not checked and not drawn."
    confidence = f"{100 * DEFAULT_CONFIDENCE:g} %"
    notes = [
        f"{data.describe_counts(points)}.{note}",
        f"Vertical lines: exact {confidence} interval of the median, one per round.",
        data.describe_systems(points, without=("precision",)),
    ]
    handles = [style.entry(label, **look | MARK) for label, look in looks.items()]
    with style.facets(
        "Median latency against error, by precision",
        notes,
        [chosen],
        ("error relative to float32", "latency [µs]"),
        handles + style.deadline(deadline_us),
        ax=ax,
        columns=1 if len(dots) > MOST_BESIDE * len(chosen) else None,
        below=5,
        summary=f"{data.describe_fastest(drawn)} "
        f"Errors: {scientific(min(errors))} to {scientific(max(errors))}.",
    ) as (picture, axes):
        panels = dict(zip(chosen, axes, strict=True))
        for dot in dots:
            _draw(panels[dot.point.network], dot)
        ends_us = [end for dot in dots for interval in dot.intervals_us for end in interval]
        style.latency_axis(axes, [*ends_us, deadline_us or math.nan])
        for panel in axes:
            style.deadline(deadline_us, panel.axhline)
            _error_axis(panel, least, max(dot.error for dot in dots), 0 in errors)
    with style.style():
        picture.draw_without_rendering()  # the places of labels depend on the layout
        for network, panel in panels.items():
            _label(panel, [dot for dot in dots if dot.point.network == network])
    return picture


def _draw(ax: Axes, dot: Dot) -> None:
    """The median and its interval in each round."""
    for interval in dot.intervals_us:
        ax.plot([dot.error] * 2, interval, color=dot.look["color"], linewidth=1.3, zorder=2)
    ax.plot([dot.error], [dot.median_us], **dot.look | MARK, zorder=3)


def _error_axis(ax: Axes, low: float, high: float, zero: bool) -> None:
    """Logarithmic, with a tick at each power of ten and room for labels; with `zero` an error of 0
    is at `low`."""
    margin = max((high / low) ** 0.12, 12)
    powers = 10.0 ** np.arange(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    ticks = [low, *powers[powers > low]] if zero else powers
    ax.set_xscale("log")
    ax.set_xlim(low / margin, high * margin)
    style.set_ticks(
        ax.xaxis,
        ticks,
        *ax.get_xlim(),
        lambda value: "0" if zero and value == low else f"{value:.0e}",
    )


def _label(ax: Axes, dots: Sequence[Dot]) -> None:
    """Name the precision of each dot beside it where that covers no other dot or label; left out if
    it fits nowhere."""
    middles = ax.transData.transform([(dot.error, dot.median_us) for dot in dots])
    size = 8 * style.DPI / 72
    taken = [Bbox.from_bounds(x - size / 2, y - size / 2, size, size) for x, y in middles]
    for index, dot in enumerate(dots):
        others = taken[:index] + taken[index + 1 :]
        for offset in PLACES:
            label = style.beside(
                ax,
                dot.point.precision,
                (dot.error, dot.median_us),
                offset,
                color=dot.look["color"],
                bbox=style.BACKGROUND,
            )
            box = label.get_window_extent()
            if ax.bbox.count_contains(box.corners()) == 4 and not box.count_overlaps(others):
                taken.append(box)
                break
            label.remove()
