"""Median and maximum of each runtime, network by network, with the ratio to the fastest."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from lstm_judge.plots import points as data, style

#: Height of a line, in inches; lines of a figure, at most; distance between networks, in lines.
ROW_IN, MOST_LANES, GAP = 0.2, 30, 0.8

#: Properties of a system that the name of a network states.
NAMED = ("workload", "mode")

#: The statistics, and where their ratios end, in points to the right of the axes.
COLUMNS = {"median_us": 40, "max_us": 88}

MARK = {"linestyle": "none", "markersize": 6}


def runtimes(
    runs: Any, *, deadline_us: float | None = None, ax: Axes | None = None
) -> style.Picture:
    """Median (filled) and maximum (hollow) in µs of every system, one block per network.

    `runs` is the result of `load`, or a path, recordings or groups. The numbers on the right are
    the ratios to the fastest system of that network, for median and maximum separately. At most 10
    networks are shown, fewer with many systems, spread evenly over their fastest medians among
    those measured on most systems; the notes state this. Failures are named. With `ax` it is drawn
    into these axes. Raises `UsageError` if there is nothing to draw.
    """
    data.check_deadline(deadline_us)
    every = data.points_of(runs, without=NAMED)
    looks = data.system_looks(every)
    most = max(3, min(10, MOST_LANES // len(looks)))
    points, chosen, note = data.choose_networks(every, most)
    points.sort(key=lambda point: point.system)
    grey = {"color": style.GREY, "marker": "o", **MARK}
    with style.facets(
        "Median and maximum latency of each runtime, by network",
        [
            f"{data.describe_counts(points)}.{note}",
            "Right: ratio to the fastest runtime for that network,"
            " for median and maximum separately.",
            data.describe_systems(points, without=NAMED),
            data.describe_rounds(points),
        ],
        [[""]],
        ("latency [µs]", ""),
        [
            *(style.entry(system, **looks[system] | MARK) for system in data.systems(points)),
            style.entry("filled: median", **grey),
            style.entry("hollow: maximum", markerfacecolor="white", **grey),
            *style.deadline(deadline_us),
        ],
        ax=ax,
        panel_in=ROW_IN * (len(points) + GAP * len(chosen)),
        below=5,
        summary=data.describe_fastest(points),
    ) as (picture, (panel,)):
        _draw(panel, points, chosen, looks)
        style.deadline(deadline_us, panel.axvline)
        low, high = panel.dataLim.intervalx
        if low > high:  # nothing is drawn
            low, high = 1, 10
        room = max((high / low) ** 0.04, 1.03)
        style.log_axis(panel.xaxis, low / room, high * room)
    return picture


def _draw(
    ax: Axes, points: Sequence[data.Point], networks: Sequence[str], looks: dict[str, dict]
) -> None:
    """A block of lines for each network."""
    ticks = []
    top = 0.0
    for network in networks:
        block = [point for point in points if point.network == network]
        for line, point in enumerate(block):
            _lane(ax, point, block, looks[point.system], top + line)
        ticks.append(top + (len(block) - 1) / 2)
        top += len(block) + GAP
        ax.axhline(top - (1 + GAP) / 2, color="0.85", linewidth=0.8)
    ax.set_ylim(top - (1 + GAP) / 2, -(1 + GAP) / 2)
    ax.set_yticks(ticks, networks)
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    for kind, right in COLUMNS.items():
        style.beside(
            ax,
            data.STATISTIC_NAMES[kind],
            (1, 1),
            (right, 3),
            xycoords="axes fraction",
            ha="right",
            size=8,
        )


def _lane(
    ax: Axes, point: data.Point, others: Sequence[data.Point], look: dict, height: float
) -> None:
    """Draw one system in a line: its statistics, and their ratios to the best of the network."""
    text = {"xycoords": ax.get_yaxis_transform(), "color": look["color"]}
    if point.failed:
        right = COLUMNS["max_us"] + 6 if point.ok else 6
        style.beside(ax, f"× failed: {', '.join(point.stages)}", (1, height), (right, 0), **text)
    if not point.ok:
        return
    ends_us = [point.statistic(kind) for kind in COLUMNS]
    line = {"marker": "", "linewidth": 1.1, "alpha": 0.6, "zorder": 2}
    ax.plot(ends_us, [height] * 2, **look | line)
    for kind, right in COLUMNS.items():
        value_us = point.statistic(kind)
        ax.plot(
            [value_us],
            [height],
            **look | MARK,
            markerfacecolor="white" if kind == "max_us" else look["color"],
            markeredgewidth=1.3,
            zorder=4 if kind == "max_us" else 3,
        )
        best_us = min(other.statistic(kind) for other in others if other.ok)
        style.beside(
            ax,
            style.multiple(value_us / best_us),
            (1, height),
            (right, 0),
            ha="right",
            weight="bold" if value_us == best_us else "normal",
            **text,
        )
        each_us = point.each_round(kind)
        if len(each_us) > 1:
            ax.plot(
                each_us,
                [height] * len(each_us),
                **look | {"marker": "|", "linestyle": "none", "zorder": 2.5},
            )
