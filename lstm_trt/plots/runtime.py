"""Median and maximum of each runtime, network by network, with the ratio to the fastest."""

import math
from typing import Any

from matplotlib.axes import Axes

from lstm_trt.plots import points as data
from lstm_trt.plots import style

ROW_IN, MOST_LANES = 0.2, 30

#: Properties of a system that the name of a network states.
NAMED = ("workload", "mode")

#: Statistic -> (side of its marker for the ratio, whether the marker is filled).
KINDS = {"median_us": (-1, True), "max_us": (1, False)}


def runtimes(runs: Any, *, shapes: int | None = None, deadline_us: float | None = None) -> style.Picture:
    """Median (filled) and maximum (hollow) in µs of every system, one block per network.

    `runs` is the result of `load`, or a path, recordings or groups. The number at each marker is the ratio to the
    fastest system of that network, for median and maximum separately. At most `shapes` networks are shown (default 10,
    fewer with many systems), spread evenly over their fastest medians among those measured on most systems; the notes
    state this. Failures are named. Raises `UsageError` if there is nothing to draw.
    """
    data.check_deadline(deadline_us)
    every = data.points_of(runs, without=NAMED)
    looks = style.system_looks(data.systems(every))
    points, chosen, note = data.choose_networks(every, shapes or max(3, min(10, MOST_LANES // len(looks))))
    names = data.systems(points)
    lanes = len(names) + 0.8
    notes = [
        f"{data.describe_counts(points)}.{note}",
        "At each marker: ratio to the fastest runtime for that network, for median and maximum separately.",
        data.describe_systems(points, without=NAMED),
        data.describe_rounds(points),
    ]
    columns = max(1, min(5, 110 // (max(16, *map(len, names)) + 6)))
    legend_in = 0.18 * math.ceil((len(names) + 2 + bool(deadline_us)) / columns)
    title, summary = "Median and maximum latency of each runtime, by network", data.describe_fastest(points)
    height_in = 0.75 + ROW_IN * lanes * len(chosen) + legend_in
    with style.figure(title, notes, height_in, summary=summary) as (picture, body):
        ax = body.subplots()
        drawn = [deadline_us] if deadline_us else []
        for block, network in enumerate(chosen):
            here = {point.system: point for point in points if point.network == network}
            drawn += _block(ax, here, {name: looks[name] for name in names}, block * lanes)
            if block:
                ax.axhline(block * lanes - 0.9, color="0.85", linewidth=0.8)
        low, high = (min(drawn), max(drawn)) if drawn else (1.0, 10.0)
        reach = max(math.log(high / low), 0.7)
        style.log_axis(ax.xaxis, low / math.exp(0.12 * reach), high * math.exp(0.14 * reach))
        ax.set_ylim(len(chosen) * lanes - 0.9, -0.9)
        ax.set_yticks([block * lanes + (len(names) - 1) / 2 for block in range(len(chosen))], chosen)
        ax.tick_params(axis="y", length=0)
        ax.grid(False, axis="y")
        ax.set_xlabel("latency [µs] (log)")
        dot = {"linestyle": "none", "markersize": 6}
        handles = [style.entry(label, **looks[label], **dot) for label in names]
        handles.append(style.entry("filled: median", color=style.GREY, marker="o", **dot))
        handles.append(style.entry("hollow: maximum", color=style.GREY, marker="o", markerfacecolor="white", **dot))
        handles += style.deadline(deadline_us, ax.axvline)
        body.legend(handles=handles, loc="outside lower center", ncols=columns)
    return picture


def _block(ax: Axes, points: dict[str, data.Point], looks: dict[str, dict], top: float) -> list[float]:
    """Draw one network with one line per system; returns the latencies drawn."""
    good = [point for point in points.values() if point.ok]
    best = {kind: min((point.statistic(kind) for point in good), default=math.nan) for kind in KINDS}
    drawn: list[float] = []
    for lane, (system, look) in enumerate(looks.items()):
        point, y, color = points.get(system), top + lane, look["color"]
        if point is None:
            continue
        if point.failed:
            place = {"x": 0.995, "ha": "right"} if point.ok else {"x": 0.01, "ha": "left"}
            place |= {"y": y, "va": "center", "transform": ax.get_yaxis_transform()}
            ax.text(s=f"× failed: {', '.join(point.stages)}", color=color, size=9, **place)
        if not point.ok:
            continue
        numbers = {kind: point.statistic(kind) for kind in KINDS}
        ax.plot(list(numbers.values()), [y, y], color=color, linewidth=1.1, alpha=0.6, zorder=2)
        dot = {**look, "linestyle": "none", "markersize": 6, "markeredgewidth": 1.3}
        for kind, (side, full) in KINDS.items():
            value = numbers[kind]
            ax.plot([value], [y], markerfacecolor=color if full else "white", zorder=4 + side, **dot)
            text = {"weight": "bold" if value == best[kind] else "normal", "color": color, "bbox": style.BACKGROUND}
            style.beside(ax, style.multiple(value / best[kind]), (value, y), (side * 7, 0), **text)
            each = point.each_round(kind)
            if len(each) > 1:
                ax.plot(each, [y] * len(each), marker="|", linestyle="none", color=color, markersize=7, zorder=2.5)
            drawn += [value, *each]
    return drawn
