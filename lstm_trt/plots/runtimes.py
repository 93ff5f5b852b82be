"""Runtimes side by side: median and maximum of each, shape by shape, with the ratio to the fastest."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lstm_trt.plots import tables
from lstm_trt.plots.style import (
    BACKGROUND,
    DEADLINE,
    GREY,
    Picture,
    log_ticks,
    multiple,
    number,
    sheet,
    style,
    system_looks,
)

ROW_IN, MOST_LANES = 0.2, 30


def runtimes(summary: pd.DataFrame, shapes: int | None = None, deadline_us: float | None = None) -> Picture:
    """Median (full) and maximum (hollow) in µs of every system, a block a shape.

    At each stands its ratio to the fastest of that shape, median by median and maximum by
    maximum. Of more than `shapes` shapes (10, fewer with many systems) that number is taken, evenly by their fastest
    median among those measured on most systems; the notes say so. Failures are named.
    """
    tables.check_deadline(deadline_us)
    table = tables.prepare(summary)
    table["shape"] = [tables.shape_name(row) for row in table.itertuples()]
    looks = system_looks(tables.systems(table))
    most = shapes or max(3, min(10, MOST_LANES // len(tables.systems(table))))
    chosen, total = _choose_shapes(table, most)
    table = table[table["shape"].isin(chosen)]
    names = tables.systems(table)
    lanes = len(names) + 0.8
    notes = [
        f"{tables.describe_counts(table)}."
        + (f" {len(chosen)} of {total} shapes, spread evenly over their medians." if len(chosen) < total else ""),
        "Written at each: its ratio to the fastest of the shape, medians by the median and maxima by the maximum.",
        tables.describe_systems(table),
        tables.describe_rounds(table),
    ]
    columns = max(1, min(5, 110 // (max(16, *map(len, names)) + 6)))
    legend_in = 0.18 * math.ceil((len(names) + 2 + bool(deadline_us)) / columns)
    with style():
        picture, body = sheet(
            "Median and maximum latency of each runtime, shape by shape",
            notes,
            0.75 + ROW_IN * lanes * len(chosen) + legend_in,
        )
        ax = body.subplots()
        drawn = [deadline_us] if deadline_us else []
        for block, shape in enumerate(chosen):
            drawn += _block(ax, table[table["shape"] == shape], {name: looks[name] for name in names}, block * lanes)
            if block:
                ax.axhline(block * lanes - 0.9, color="0.85", linewidth=0.8)
        low, high = (min(drawn), max(drawn)) if drawn else (1.0, 10.0)
        reach = max(math.log(high / low), 0.7)
        ax.set_xscale("log")
        ax.set_xlim(low / math.exp(0.12 * reach), high * math.exp(0.14 * reach))
        log_ticks(ax.xaxis, *ax.get_xlim())
        ax.set_ylim(len(chosen) * lanes - 0.9, -0.9)
        ax.set_yticks([block * lanes + (len(names) - 1) / 2 for block in range(len(chosen))], chosen)
        ax.tick_params(axis="y", length=0)
        ax.grid(False, axis="y")
        ax.set_xlabel("latency [µs] (log)")
        dot = {"linestyle": "none", "markersize": 6}
        handles = [Line2D([], [], label=label, **looks[label], **dot) for label in names]
        handles.append(Line2D([], [], color=GREY, marker="o", label="full: median", **dot))
        handles.append(Line2D([], [], color=GREY, marker="o", markerfacecolor="white", label="hollow: maximum", **dot))
        if deadline_us:
            ax.axvline(deadline_us, gid="deadline", **DEADLINE)
            handles.append(Line2D([], [], label=f"deadline {number(deadline_us)} µs", **DEADLINE))
        body.legend(handles=handles, loc="outside lower center", ncols=columns)
    return picture


def _choose_shapes(table: pd.DataFrame, most: int) -> tuple[list[str], int]:
    """Shapes in the order of their fastest median, failures last; and how many there are in all."""
    total = table["shape"].nunique()
    good = tables.succeeded(table).dropna(subset=["median_us"])
    fastest = good.groupby("shape")["median_us"].min().sort_values(kind="stable")
    rest = sorted(set(table["shape"]) - set(fastest.index))
    if total <= most or fastest.empty:
        return [*fastest.index, *rest][:most], total
    on = good.groupby("shape")["system"].nunique()
    candidates = [shape for shape in fastest.index if on[shape] == on.max()]
    places = np.unique(np.linspace(0, len(candidates) - 1, most).round().astype(int))
    return [candidates[place] for place in places], total


def _block(ax: Axes, here: pd.DataFrame, looks: dict, top: float) -> list[float]:
    """One shape, a lane a system; returns the numbers drawn."""
    kinds = ("median_us", "max_us")
    numbers = {name: [tables.over_rounds(here[here["system"] == name], kind) for kind in kinds] for name in looks}
    best = [min((pair[k] for pair in numbers.values() if np.isfinite(pair[k])), default=np.nan) for k in (0, 1)]
    drawn: list[float] = []
    for index, (name, look) in enumerate(looks.items()):
        rows, y, color = here[here["system"] == name], top + index, look["color"]
        measured = np.isfinite(numbers[name][0])
        stages = sorted({tables.stage_of(row) for row in tables.failed(rows).itertuples()})
        if stages:
            place = {"x": 0.995, "ha": "right"} if measured else {"x": 0.01, "ha": "left"}
            place |= {"y": y, "va": "center", "transform": ax.get_yaxis_transform(), "gid": f"failed:{name}"}
            ax.text(s=f"× failed: {', '.join(stages)}", color=color, size=9, **place)
        if not measured:
            continue
        ax.plot(numbers[name], [y, y], color=color, linewidth=1.1, alpha=0.6, zorder=2)
        dot = {**look, "linestyle": "none", "markersize": 6, "markeredgewidth": 1.3}
        for kind, value, fastest, side in zip(kinds, numbers[name], best, (-1, 1), strict=True):
            face = color if kind == "median_us" else "white"
            ax.plot([value], [y], markerfacecolor=face, zorder=4 + side, gid=f"{kind}:{name}", **dot)
            place = {"ha": "right" if side < 0 else "left", "va": "center", "textcoords": "offset points"}
            weight = "bold" if value == fastest else "normal"
            ax.annotate(
                multiple(value / fastest),
                (value, y),
                (side * 7, 0),
                color=color,
                size=9,
                weight=weight,
                bbox=BACKGROUND,
                **place,
            )
            every = tables.succeeded(rows)[kind].dropna().tolist()
            if len(every) > 1:
                ax.plot(every, [y] * len(every), marker="|", linestyle="none", color=color, markersize=7, zorder=2.5)
            drawn += [value, *every]
    return drawn
