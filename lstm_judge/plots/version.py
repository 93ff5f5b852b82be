"""Median latency by version of a library: a panel per network and runtime, a dot per round."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from lstm_judge.plots import points as data, style
from lstm_trt.config.errors import UsageError


def versions(runs: Any, *, ax: Axes | None = None) -> style.Picture:
    """Median latency of each round over the versions that were recorded, relative to the oldest
    version.

    One panel per network and runtime, one dot per round; the line joins the middle rounds, of which
    the numbers below are the ratios. `runs` is the result of `load` or `versions`' folder; of more
    than 12 series a part is drawn, a single one into `ax` if given. Raises `UsageError` unless a
    network and runtime have two versions.
    """
    every = by_version(data.points_of(runs))
    if not every:
        raise UsageError("nothing to draw: no network was recorded with two versions of a runtime")
    series = {title: every[title] for title in style.spread([*every])}
    drawn = [point for found in series.values() for point in found.values()]
    changes = [
        f"{title.replace(chr(10), ', ')}: {_ratios(found)[-1]:.2f}"
        for title, found in series.items()
    ]
    looks = style.runtime_looks(sorted({point.runtime for point in drawn}))
    firsts = (next(iter(found.values())).statistic("median_us") for found in series.values())
    titles = [
        f"{title}: 1 = {style.number(first)} µs"
        for title, first in zip(series, firsts, strict=True)
    ]
    notes = [
        f"{data.describe_counts(drawn)}. A dot is a round; numbers: ratio to the oldest version.",
        f"On {', '.join(sorted({point.group.configuration.device_name for point in drawn}))}.",
        data.describe_shown("series", len(series), len(every)),
    ]
    title, names = (
        "Median latency by version",
        ("version, and its ratio", "latency / oldest version"),
    )
    how: Any = {"sharex": False, "summary": f"Newest relative to the oldest: {'; '.join(changes)}."}
    with style.facets(title, notes, [titles], names, ax=ax, **how) as (picture, axes):
        for panel, found in zip(axes, series.values(), strict=True):
            ratios = _ratios(found)
            for place, (point, ratio) in enumerate(zip(found.values(), ratios, strict=True)):
                rounds = (
                    np.array(point.each_round("median_us")) * ratio / point.statistic("median_us")
                )
                beside = place + np.linspace(-0.2, 0.2, len(rounds)) * (len(rounds) > 1)
                panel.plot(beside, rounds, markersize=4, linestyle="none", **looks[point.runtime])
            panel.plot(range(len(found)), ratios, color=style.GREY, linewidth=1, zorder=1)
            panel.set_xlim(-0.5, len(found) - 0.5)
            panel.set_xticks(range(len(found)), map("{}\n{:.2f}".format, found, ratios))
    return picture


def by_version(points: Iterable[data.Point]) -> dict[str, dict[str, data.Point]]:
    """Network and runtime -> version -> its point, oldest first; those with several versions."""
    series: dict[str, dict[str, data.Point]] = {}
    for point in points:
        configuration = point.group.configuration
        if point.ok:
            series.setdefault(f"{point.network}\n{configuration.runtime}", {})[
                configuration.runtime_version
            ] = point
    return {
        title: dict(sorted(found.items(), key=_order))
        for title, found in series.items()
        if len(found) > 1
    }


def _order(item: tuple[str, data.Point]) -> list[int]:
    """The key that sorts versions by their numbers: 1.9 before 1.20."""
    return [int(digits) for digits in re.findall(r"\d+", item[0])]


def _ratios(found: dict[str, data.Point]) -> list[float]:
    """The median of each version divided by that of the first."""
    medians_us = [point.statistic("median_us") for point in found.values()]
    return [median_us / medians_us[0] for median_us in medians_us]
