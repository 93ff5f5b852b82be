"""Median and maximum of each runtime, network by network, with the ratio to the fastest."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from lstm_judge.plots import points as data, style

ROW_IN, MOST_LANES, GAP = 0.2, 30, 0.8

#: Properties of a system that the name of a network states.
NAMED = ("workload", "mode")

#: The statistics, and where their ratios end, in points to the right of the axes.
KINDS, COLUMNS = ("median_us", "max_us"), (40, 88)


def runtimes(
    runs: Any,
    *,
    shapes: int | None = None,
    deadline_us: float | None = None,
    ax: Axes | None = None,
) -> style.Picture:
    """Median (filled) and maximum (hollow) in µs of every system, one block per network.

    `runs` is the result of `load`, or a path, recordings or groups. The numbers on the right are
    the ratios to the fastest system of that network, for median and maximum separately. At most
    `shapes` networks are shown (default 10, fewer with many systems), spread evenly over their
    fastest medians among those measured on most systems; the notes state this. Failures are named.
    With `ax` it is drawn into these axes. Raises `UsageError` if there is nothing to draw.
    """
    data.check_deadline(deadline_us)
    every = data.points_of(runs, without=NAMED)
    looks = data.system_looks(every)
    points, chosen, note = data.choose_networks(
        every, shapes or max(3, min(10, MOST_LANES // len(looks)))
    )
    networks = {
        network: [point for point in points if point.network == network] for network in chosen
    }
    names = data.systems(points)
    notes = [
        f"{data.describe_counts(points)}.{note}",
        "Right: ratio to the fastest runtime for that network, for median and maximum separately.",
        data.describe_systems(points, without=NAMED),
        data.describe_rounds(points),
    ]
    dot = {"linestyle": "none", "markersize": 6}
    handles = [style.entry(label, **looks[label] | dot) for label in names]
    handles.append(style.entry("filled: median", color=style.GREY, marker="o", **dot))
    handles.append(
        style.entry("hollow: maximum", color=style.GREY, marker="o", markerfacecolor="white", **dot)
    )
    handles += style.deadline(deadline_us)
    title, summary = (
        "Median and maximum latency of each runtime, by network",
        data.describe_fastest(points),
    )
    lanes = sum(len(here) + GAP for here in networks.values())
    how: Any = {"panel_in": ROW_IN * lanes, "below": 5, "summary": summary}
    with style.facets(title, notes, [[""]], ("latency [µs]", ""), handles, ax=ax, **how) as (
        picture,
        (ax,),
    ):
        drawn = [value for point in points for kind in KINDS for value in point.each_round(kind)]
        drawn += [deadline_us] if deadline_us else []
        ticks, top = [], 0.0
        for here in networks.values():
            _block(ax, sorted(here, key=lambda point: names.index(point.system)), looks, top)
            ticks.append(top + (len(here) - 1) / 2)
            top += len(here) + GAP
            ax.axhline(top - (1 + GAP) / 2, color="0.85", linewidth=0.8)
        low, high = (min(drawn), max(drawn)) if drawn else (1.0, 10.0)
        reach = max(math.log(high / low), 0.7)
        style.log_axis(ax.xaxis, low / math.exp(0.04 * reach), high * math.exp(0.04 * reach))
        ax.set_ylim(top - (1 + GAP) / 2, -(1 + GAP) / 2)
        ax.set_yticks(ticks, chosen)
        ax.tick_params(axis="y", length=0)
        ax.grid(False, axis="y")
        style.deadline(deadline_us, ax.axvline)
        for right, kind in zip(COLUMNS, KINDS, strict=True):
            style.beside(
                ax,
                data.STATISTIC_NAMES[kind],
                (1, 1),
                (right, 3),
                xycoords="axes fraction",
                ha="right",
                size=8,
            )
    return picture


def _block(
    ax: Axes, points: Sequence[data.Point], looks: dict[str, dict[str, Any]], top: float
) -> None:
    """Draw one network with one line per system."""
    best = {
        kind: min((point.statistic(kind) for point in points if point.ok), default=math.nan)
        for kind in KINDS
    }
    for y, point in enumerate(points):
        look = looks[point.system]
        text = {"xycoords": ax.get_yaxis_transform(), "color": look["color"]}
        if point.failed:
            failed, right = (
                f"× failed: {', '.join(point.stages)}",
                COLUMNS[-1] + 6 if point.ok else 6,
            )
            style.beside(ax, failed, (1, top + y), (right, 0), **text)
        if not point.ok:
            continue
        values, heights = [point.statistic(kind) for kind in KINDS], [top + y] * 2
        ax.plot(
            values, heights, **{**look, "marker": "", "linewidth": 1.1, "alpha": 0.6, "zorder": 2}
        )
        for kind, fill, right, value in zip(
            KINDS, (look["color"], "white"), COLUMNS, values, strict=True
        ):
            dot = look | {
                "markerfacecolor": fill,
                "linestyle": "none",
                "markersize": 6,
                "markeredgewidth": 1.3,
            }
            ax.plot([value], heights[:1], zorder=3 + (fill == "white"), **dot)
            weight = "bold" if value == best[kind] else "normal"
            ratio = style.multiple(value / best[kind])
            style.beside(ax, ratio, (1, top + y), (right, 0), ha="right", weight=weight, **text)
            each = point.each_round(kind)
            if len(each) > 1:
                ax.plot(
                    each,
                    [top + y] * len(each),
                    **{**look, "marker": "|", "linestyle": "none", "zorder": 2.5},
                )
