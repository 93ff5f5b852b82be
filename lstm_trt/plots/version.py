"""Median latency by version of a library: a panel per network and runtime, a dot per round."""

import math
import re
from collections.abc import Iterable
from typing import Any

from lstm_trt.config.errors import UsageError
from lstm_trt.plots import points as data
from lstm_trt.plots import style

#: Height of a row of panels.
ROW_IN = 2.8


def versions(runs: Any) -> style.Picture:
    """Median latency in us of each round over the versions that were recorded, oldest first.

    One panel per network and runtime, one dot per round; the line joins the middle rounds. Numbers: the middle round
    relative to that of the oldest version. `runs` is the result of `load` or `versions`' folder. Raises `UsageError`
    unless a network and runtime have two versions.
    """
    series = by_version(data.points_of(runs))
    if not series:
        raise UsageError("nothing to draw: no network was recorded with two versions of a runtime")
    drawn = [point for found in series.values() for point in found.values()]
    changes = [f"{title.replace(chr(10), ', ')}: {_ratios(found)[-1]}" for title, found in series.items()]
    color, columns = style.kind_colors(1)[0], style.columns_of(len(series))
    notes = [f"{data.describe_counts(drawn)}. Numbers: ratio to the oldest version."]
    height_in = ROW_IN * math.ceil(len(series) / columns) + 0.4
    summary = f"Newest version relative to the oldest: {'; '.join(changes)}."
    with style.figure("Median latency by version", notes, height_in, summary=summary) as (picture, body):
        axes = style.panels(body, list(series), columns, share_x=False, share_y=False)
        for ax, found in zip(axes, series.values(), strict=True):
            for place, (point, ratio) in enumerate(zip(found.values(), _ratios(found), strict=True)):
                medians_us = point.each_round("median_us")
                ax.plot([place] * len(medians_us), medians_us, color=color, marker="o", markersize=4, linestyle="none")
                style.beside(ax, ratio, (place, max(medians_us)), (0, 6), va="baseline")
            middles_us = [point.statistic("median_us") for point in found.values()]
            ax.plot(range(len(found)), middles_us, color=style.GREY, linewidth=1, zorder=1)
            ax.set_xlim(-0.5, len(found) - 0.5)
            ax.set_xticks(range(len(found)), found)
            ax.set_ylim(0, 1.25 * ax.dataLim.y1)
        style.name_axes(axes, "version", "median latency [µs]")
    return picture


def by_version(points: Iterable[data.Point]) -> dict[str, dict[str, data.Point]]:
    """Network and runtime -> version -> its point, oldest first; only those with several versions."""
    series: dict[str, dict[str, data.Point]] = {}
    for point in points:
        configuration = point.group.configuration
        if point.ok:
            series.setdefault(f"{point.network}\n{configuration.runtime}", {})[configuration.runtime_version] = point
    return {title: dict(sorted(found.items(), key=_order)) for title, found in series.items() if len(found) > 1}


def _order(item: tuple[str, data.Point]) -> list[int]:
    """The key that sorts versions by their numbers: 1.9 before 1.20."""
    return [int(digits) for digits in re.findall(r"\d+", item[0])]


def _ratios(found: dict[str, data.Point]) -> list[str]:
    """The median of each version divided by that of the first, as text."""
    medians_us = [point.statistic("median_us") for point in found.values()]
    return [f"{median_us / medians_us[0]:.2f}" for median_us in medians_us]
