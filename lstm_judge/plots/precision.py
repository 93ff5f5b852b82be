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

#: Most dots in a figure with several panels, most panels, and most dots in a panel that has others
#: beside it.
MOST_DOTS, MOST_PANELS, MOST_BESIDE = 40, 6, 9

#: Offsets of a label from its dot in points, in order of preference.
PLACES = ((6, 0), (-6, 0), (0, 5), (0, -5), (5, 5), (5, -5), (-5, 5), (-5, -5))

DOT = {"linestyle": "none", "markersize": 6}


def precisions(
    runs: Any,
    *,
    shapes: int | None = None,
    deadline_us: float | None = None,
    ax: Axes | None = None,
) -> style.Picture:
    """Median latency in µs against the relative error of the outputs, a panel per network and a dot
    per configuration.

    `runs` is the result of `load`, or a path, recordings or groups. Colour and marker are those of
    the runtime, labels name the precision. Lines are the exact 95 % interval of the median, one per
    round. The error is that of the parity gate, the largest of all rounds; configurations that were
    not checked are not drawn. At most `shapes` networks are shown (default 6, fewer with many
    configurations), see `runtimes`; with `ax` one,
    which is drawn into these axes. Raises `UsageError` if there is nothing to draw.
    """
    data.check_deadline(deadline_us)
    every = [point for point in data.points_of(runs) if point.ok]
    checked = [point for point in every if point.group.parity_error is not None]
    if not checked:
        raise UsageError("nothing to draw: no recording states its error relative to float32")
    networks = {point.network for point in checked}
    most = shapes or max(1, min(MOST_PANELS, MOST_DOTS * len(networks) // len(checked)))
    drawn, chosen, note = data.choose_networks(checked, most)
    labels = data.system_labels([point.group for point in drawn], without=("precision",))
    dots = [replace(point, system=label) for point, label in zip(drawn, labels, strict=True)]
    looks = data.system_looks(dots)
    errors = [point.group.parity_error or 0.0 for point in drawn]
    unchecked = len(every) - len(checked)
    note += (
        f" {style.count(unchecked, 'configuration')} not checked and not drawn."
        if unchecked
        else ""
    )
    notes = [
        f"{data.describe_counts(drawn)}.{note}",
        f"Vertical lines: exact {100 * DEFAULT_CONFIDENCE:g} % interval of the median, one per round.",
        data.describe_systems(dots, without=("precision",)),
    ]
    columns = style.columns_of(len(chosen)) if len(drawn) <= MOST_BESIDE * len(chosen) else 1
    title, names = (
        "Median latency against error, by precision",
        ("error relative to float32", "latency [µs]"),
    )
    summary = f"{data.describe_fastest(drawn)} Errors: {scientific(min(errors))} to {scientific(max(errors))}."
    handles = [style.entry(label, **look | DOT) for label, look in looks.items()] + style.deadline(
        deadline_us
    )
    how: Any = {"columns": columns, "below": 5, "summary": summary}
    with style.facets(title, notes, [chosen], names, handles, ax=ax, **how) as (picture, axes):
        latencies = [deadline_us] if deadline_us else []
        left = min(filter(None, errors), default=1e-7) / (
            4 if 0 in errors else 1
        )  # the place of 0, if there is one
        for panel, network in zip(axes, chosen, strict=True):
            for point in (point for point in dots if point.network == network):
                latencies += _draw(
                    panel, point, max(point.group.parity_error or 0.0, left), looks[point.system]
                )
            style.deadline(deadline_us, panel.axhline)
        style.latency_axis(axes, latencies)
        _error_axis(axes, left, max(left, *errors), 0 in errors)
    with style.style():
        picture.draw_without_rendering()  # the places of labels depend on the layout
        for panel, network in zip(axes, chosen, strict=True):
            _label(panel, [point for point in dots if point.network == network], looks, left)
    return picture


def _draw(ax: Axes, point: data.Point, error: float, look: dict) -> list[float]:
    """The median and its interval in each round; returns the latencies drawn."""
    ends = []
    for each in point.rounds:
        found = each.percentile(MEDIAN)
        ends += [found.low_us or found.us, found.high_us or found.us]
        ax.plot([error, error], ends[-2:], color=look["color"], linewidth=1.3, zorder=2)
    ax.plot([error], [point.statistic("median_us")], **look | DOT, zorder=3)
    return ends


def _error_axis(axes: Sequence[Axes], low: float, high: float, zero: bool) -> None:
    """Logarithmic, with a tick at each power of ten and room for labels; with `zero` an error of 0
    is at `low`."""
    margin = max((high / low) ** 0.12, 12)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    ticks = [low] * zero + [10.0**power for power in powers if not zero or 10.0**power > low]
    for ax in axes:
        ax.set_xscale("log")
        ax.set_xlim(low / margin, high * margin)
        style.set_ticks(
            ax.xaxis,
            ticks,
            *ax.get_xlim(),
            lambda value: "0" if zero and value == low else f"{value:.0e}",
        )


def _label(ax: Axes, points: Sequence[data.Point], looks: dict, left: float) -> None:
    """Name the precision of each dot beside it where that covers no other dot or label; left out if
    it fits nowhere."""
    figure: Any = ax.get_figure(root=True)
    scale = figure.dpi / 72
    places = [
        (max(point.group.parity_error or 0.0, left), point.statistic("median_us"))
        for point in points
    ]
    dots = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in ax.transData.transform(places) / scale]
    inside = Bbox(ax.bbox.get_points() / scale)
    taken = list(dots)
    for point, place, dot in zip(points, places, dots, strict=True):
        size = np.array(style.text_size(point.precision))
        for offset in PLACES:
            corner = np.add(dot.min, 4) + offset - size * (1 - np.sign(offset)) / 2
            box = Bbox([corner, corner + size])
            within = np.all(inside.min <= box.min) and np.all(box.max <= inside.max)
            if within and not any(box.overlaps(other) for other in taken if other is not dot):
                look = {"color": looks[point.system]["color"], "bbox": style.BACKGROUND}
                style.beside(ax, point.precision, place, offset, **look)
                taken.append(box)
                break
