"""Median latency by version of a library: a panel per network and runtime, a dot per round."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from lstm_judge.plots import points as data, style
from lstm_trt.config.errors import UsageError

#: Version -> its point, oldest first.
Versions = dict[str, data.Point]


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
    looks = style.runtime_looks(sorted({point.runtime for point in drawn}))
    titles = []
    changes = []
    for title, found in series.items():
        titles.append(f"{title}: 1 = {style.number(_oldest_us(found))} µs")
        changes.append(f"{title.replace(chr(10), ', ')}: {[*_ratios(found).values()][-1]:.2f}")
    devices = sorted({point.group.configuration.device_name for point in drawn})
    with style.facets(
        "Median latency by version",
        [
            f"{data.describe_counts(drawn)}. A dot is a round;"
            " numbers: ratio to the oldest version.",
            f"On {', '.join(devices)}.",
            data.describe_shown("series", series, every),
        ],
        [titles],
        ("version, and its ratio", "latency / oldest version"),
        ax=ax,
        sharex=False,
        summary=f"Newest relative to the oldest: {'; '.join(changes)}.",
    ) as (picture, axes):
        for panel, found in zip(axes, series.values(), strict=True):
            _draw(panel, found, looks)
    return picture


def _draw(ax: Axes, found: Versions, looks: dict[str, dict]) -> None:
    ratios = _ratios(found)
    for place, point in enumerate(found.values()):
        rounds = np.divide(point.each_round("median_us"), _oldest_us(found))
        apart = 0.2 if len(rounds) > 1 else 0
        ax.plot(
            np.linspace(place - apart, place + apart, len(rounds)),
            rounds,
            markersize=4,
            linestyle="none",
            **looks[point.runtime],
        )
    ax.plot([*ratios.values()], color=style.GREY, linewidth=1, zorder=1)
    ax.set_xlim(-0.5, len(found) - 0.5)
    ax.set_xticks(
        range(len(found)), [f"{version}\n{ratio:.2f}" for version, ratio in ratios.items()]
    )


def by_version(points: Iterable[data.Point]) -> dict[str, Versions]:
    """Network and runtime -> version -> its point, oldest first; those with several versions."""
    series: dict[str, Versions] = {}
    for point in points:
        if point.ok:
            found = series.setdefault(f"{point.network}\n{point.runtime}", {})
            found[point.group.configuration.runtime_version] = point
    return {
        title: {version: found[version] for version in sorted(found, key=_order)}
        for title, found in series.items()
        if len(found) > 1
    }


def _order(version: str) -> list[int]:
    """The key that sorts versions by their numbers: 1.9 before 1.20."""
    return [int(digits) for digits in re.findall(r"\d+", version)]


def _oldest_us(found: Versions) -> float:
    return next(iter(found.values())).statistic("median_us")


def _ratios(found: Versions) -> dict[str, float]:
    """The median of each version divided by that of the oldest."""
    oldest_us = _oldest_us(found)
    return {version: point.statistic("median_us") / oldest_us for version, point in found.items()}
