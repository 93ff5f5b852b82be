"""Latency against the error relative to float32: a panel per network, a dot per runtime and
precision."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from lstm_judge.plots import points as data, style
from lstm_judge.read.numbers import scientific
from lstm_judge.statistics.quantiles import DEFAULT_CONFIDENCE, MEDIAN
from lstm_trt.config.errors import UsageError

#: Most panels, and most dots in a panel that has others beside it.
MOST_PANELS = 4
MOST_BESIDE = 9

#: Offsets of a label from its dot in points, in order of preference.
PLACES = ((6, 0), (-6, 0), (0, 5), (0, -5), (5, 5), (5, -5), (-5, 5), (-5, -5))

MARK = {"linestyle": "none", "markersize": 6}


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
    if len(every) > len(checked):
        unchecked = style.count(len(every) - len(checked), "configuration")
        note += f" {unchecked} not checked and not drawn."
    points = _without_precision(drawn)
    looks = data.system_looks(points)
    errors = list(map(_error, points))
    with style.facets(
        "Median latency against error, by precision",
        [
            f"{data.describe_counts(points)}.{note}",
            f"Vertical lines: exact {100 * DEFAULT_CONFIDENCE:g} % interval of the median,"
            " one per round.",
            data.describe_systems(points, without=("precision",)),
        ],
        [chosen],
        ("error relative to float32 (0, then log)", "latency [µs]"),
        [style.entry(label, **look | MARK) for label, look in looks.items()]
        + style.deadline(deadline_us),
        ax=ax,
        columns=1 if len(points) > MOST_BESIDE * len(chosen) else None,
        below=5,
        summary=f"{data.describe_fastest(drawn)} Errors: {scientific(min(errors))}"
        f" to {scientific(max(errors))}.",
    ) as (picture, axes):
        panels = dict(zip(chosen, axes, strict=True))
        for point in points:
            _draw(panels[point.network], point, looks[point.system])
        for panel in axes:
            style.deadline(deadline_us, panel.axhline)
            _error_axis(panel, errors)
        style.latency_axis(axes, np.ravel([panel.dataLim.intervaly for panel in axes]))
    with style.style():
        picture.draw_without_rendering()  # the places of labels depend on the layout
        for network, panel in panels.items():
            _label(panel, [point for point in points if point.network == network], looks)
    return picture


def _without_precision(points: Sequence[data.Point]) -> list[data.Point]:
    """The points with systems that do not name the precision."""
    systems = data.system_labels([point.group for point in points], without=("precision",))
    return [replace(point, system=system) for point, system in zip(points, systems, strict=True)]


def _error(point: data.Point) -> float:
    return point.group.parity_error or 0.0


def _draw(ax: Axes, point: data.Point, look: dict) -> None:
    """The median and its interval in each round."""
    for trials in point.rounds:
        found: Any = trials.percentile(MEDIAN)
        ends_us = [found.low_us or found.us, found.high_us or found.us]
        ax.plot([_error(point)] * 2, ends_us, color=look["color"], linewidth=1.3, zorder=2)
    ax.plot([_error(point)], [point.statistic("median_us")], **look | MARK, zorder=3)


def _error_axis(ax: Axes, errors: Sequence[float]) -> None:
    """Logarithmic down to the smallest error, linear from there to 0; with room for labels."""
    known = [error for error in errors if error] or [1e-7]
    first = math.floor(math.log10(min(known)))
    powers = 10.0 ** np.arange(first, math.ceil(math.log10(max(known))) + 2)
    ax.set_xscale("symlog", linthresh=powers[0])
    ax.set_xlim(-0.7 * powers[0], 12 * max(known))
    style.set_ticks(
        ax.xaxis, [0, *powers], *ax.get_xlim(), lambda error: f"{error:.0e}" if error else "0"
    )


def _label(ax: Axes, points: Sequence[data.Point], looks: dict[str, dict]) -> None:
    """Name the precision of each dot beside it where that covers no other dot or label; left out if
    it fits nowhere."""
    dots = [(_error(point), point.statistic("median_us")) for point in points]
    size = 8 * style.DPI / 72
    taken = [
        Bbox.from_bounds(x - size / 2, y - size / 2, size, size)
        for x, y in ax.transData.transform(dots)
    ]
    for point, dot in zip(points, dots, strict=True):
        for offset in PLACES:
            label = style.beside(
                ax,
                point.precision,
                dot,
                offset,
                color=looks[point.system]["color"],
                bbox=style.BACKGROUND,
            )
            box = label.get_window_extent()
            if ax.bbox.count_contains(box.corners()) == 4 and not box.count_overlaps(taken):
                taken.append(box)
                break
            label.remove()
