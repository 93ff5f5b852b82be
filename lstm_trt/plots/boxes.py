"""Box plots that stay readable when the box is a thousandth of the range.

Drawn is latency / median - 1 on an asinh axis whose linear width is the IQR: the box is
seen, and so are outliers at twice the median. Nothing is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from lstm_trt.config.errors import UsageError
from lstm_trt.plots import tables
from lstm_trt.plots.style import (
    BACKGROUND,
    GREY,
    WIDTH_IN,
    Picture,
    folded,
    guide,
    multiple,
    number,
    sheet,
    style,
    system_looks,
)

#: Where the founding document saw clusters of outliers.
GUIDES = (1.25, 2.0)

PANEL_IN = 3.3

#: Room that a box needs for its count of outliers on one line.
ROOMY_IN = 1.2

#: Where every trial took equally long the axis is linear within a thousandth of the median.
LEAST_WIDTH = 1e-3

OUTLIER = {"linestyle": "none", "marker": "o", "markersize": 2.6, "markeredgewidth": 0, "alpha": 0.45}


def box_plots(trials: pd.DataFrame, summary: pd.DataFrame, axis: str, fixed: dict[str, int] | None = None) -> Picture:
    """A box of the trials for each value of `axis`, a panel for each system; the other axes are held fixed.

    Axes that `fixed` does not name are held at a value that is chosen and told. The box is of
    the first round that was recorded; the maxima of other rounds are diamonds. Beside a box
    stands how many trials are outliers (1.5 x IQR, both sides), above it the maximum of all
    rounds as a multiple of the median, below it the median in µs. Failures are named in their place.
    Raises `UsageError` where no trials are there to draw.
    """
    table = tables.prepare(summary)
    looks = system_looks(tables.systems(table))
    table = tables.hold_fixed(table, (axis,), fixed)
    systems, sizes = tables.systems(table), tables.values(table, axis)
    good = tables.succeeded(table)
    latencies = {
        config: [tables.timed_us(part) for part in tables.rounds_of(trials, config).values()]
        for config in set(good["config_id"]) & tables.recorded(trials)
    }
    systems = [label for label in systems if latencies.keys() & set(good[good["system"] == label]["config_id"])]
    if not systems:
        raise UsageError("no trials of the configurations chosen: nothing to draw")
    rounds = table["round"].nunique()
    several = f" Boxes are of the first of {rounds} rounds, diamonds the maxima of the others." if rounds > 1 else ""
    columns = 2 if len(systems) > 1 and len(sizes) <= 3 else 1
    rows = math.ceil(len(systems) / columns)
    slot_in = (WIDTH_IN / columns - 1.4) / len(sizes)
    with style():
        picture, body = sheet(
            f"How single trials spread around their median, by {tables.AXIS_NAMES[axis]}",
            [
                f"{tables.describe_counts(table)}. {tables.describe_fixed(table, (axis,))}",
                tables.describe_systems(table[table["system"].isin(systems)]),
                "Beside each box: how many trials lie outside 1.5 × IQR, on either side; above it: the maximum over "
                f"the median.{several} Nothing is cut off.",
            ],
            PANEL_IN * rows + 0.25,
        )
        grid = body.subplots(rows, columns, squeeze=False)
        for ax in grid.flat[len(systems) :]:
            ax.set_visible(False)
        for ax, label in zip(grid.flat, systems, strict=False):
            _panel(ax, latencies, table[table["system"] == label], axis, sizes, looks[label]["color"], slot_in)
            unit = "" if slot_in > 0.7 else " in µs"
            ax.set_xlabel(f"{tables.AXIS_NAMES[axis]}, and the median{unit} below it")
            if len(systems) > 1:
                ax.set_title(folded(label, 95 // columns), loc="left")
    return picture


def _panel(
    ax: Axes, latencies: dict, table: pd.DataFrame, axis: str, sizes: Sequence[int], color, slot_in: float
) -> None:
    boxes: dict[int, tables.Spread] = {}
    others: dict[int, list[float]] = {}
    for place, size in enumerate(sizes):
        rows = table[table[axis] == size]
        good = tables.succeeded(rows).sort_values("round")
        if good.empty or good["config_id"].iloc[0] not in latencies:
            words = [f"failed: {tables.stage_of(row)}" for row in tables.failed(rows).itertuples()] or ["not recorded"]
            look = {
                "rotation": 90,
                "ha": "center",
                "va": "center",
                "color": GREY,
                "gid": f"failed:{size}",
                "bbox": BACKGROUND,
            }
            ax.text(place, 0.5, words[0], transform=ax.get_xaxis_transform(), **look)
            continue
        first, *rest = latencies[good["config_id"].iloc[0]]
        boxes[size] = tables.spread(first)
        others[size] = [float(part.max()) for part in rest]
    width = _linear_width(boxes.values())
    ax.set_yscale("asinh", linear_width=width)
    extremes = [0.0]
    for size, box in boxes.items():
        extremes += _draw_box(ax, sizes.index(size), size, box, others[size], color, slot_in)
    _value_axis(ax, width, min(extremes), max(extremes))
    ax.set_xlim(-0.5, len(sizes) - 1 + max(0.55, (0.8 if slot_in < ROOMY_IN else 1.05) / slot_in))
    unit = " µs" if slot_in > 0.7 else ""  # where there is no room for it the axis' name says so
    medians = [f"{number(boxes[size].median_us)}{unit}" if size in boxes else "" for size in sizes]
    ax.set_xticks(range(len(sizes)), [f"{size}\n{median}" for size, median in zip(sizes, medians, strict=True)])
    ax.grid(False, axis="x")


def _draw_box(ax: Axes, place: int, size: int, box: tables.Spread, others: list[float], color, slot_in) -> list[float]:
    """Box, outliers, maxima and their words; returns the lowest and highest number drawn."""
    relative, later = box.latency_us / box.median_us - 1, [largest / box.median_us - 1 for largest in others]
    highest, half = max([relative.max(), *later]), min(0.15, 0.21 / slot_in)
    lines = {"whiskerprops": {"color": color}, "capprops": {"color": color}, "medianprops": {"color": "black"}}
    face = {"facecolor": (*color, 0.35), "edgecolor": color, "gid": f"box:{size}"}
    lines |= {"boxprops": face, "showfliers": False, "patch_artist": True, "manage_ticks": False}
    ax.bxp([_box(box)], [place], widths=2 * half, **lines)
    # The jitter shows how many there are at one height; the largest stands under its mark.
    jitter = np.random.default_rng(0).uniform(-0.6 * half, 0.6 * half, box.n)
    jitter[np.argmax(relative)] = 0
    ax.plot(place + jitter[box.is_outlier], relative[box.is_outlier], color=color, gid=f"outliers:{size}", **OUTLIER)
    mark = {"linestyle": "none", "markersize": 5}
    ax.plot([place], [relative.max()], marker="^", color="black", gid=f"max:{size}", **mark)
    ax.plot([place] * len(later), later, marker="D", color=color, markerfacecolor="white", gid=f"rounds:{size}", **mark)
    words = {"textcoords": "offset points", "size": 9}
    ax.annotate(
        f"{'max ' if slot_in > 0.72 else ''}{multiple(highest + 1)}",
        (place, highest),
        (0, 6),
        ha="center",
        va="bottom",
        **words,
    )
    count = f"{box.outliers} of {box.n}" if slot_in > ROOMY_IN else f"{box.outliers} of\n{box.n}"
    if slot_in < 0.7:
        count, words = count.replace("\n", " "), {**words, "rotation": 90}
    ax.annotate(count, (place + half, 0), (3, 0), ha="left", va="center", gid=f"count:{size}", **words)
    return [relative.min(), highest]


def _box(box: tables.Spread) -> dict:
    """Whiskers reach to the last trials that are no outliers."""
    inside = box.latency_us[~box.is_outlier]
    low, high = box.quartiles_us
    numbers = {"med": box.median_us, "q1": low, "q3": high, "whislo": inside.min(), "whishi": inside.max()}
    return {name: value / box.median_us - 1 for name, value in numbers.items()}


def _linear_width(boxes) -> float:
    """The middle of the boxes' own IQRs, relative to their medians."""
    relative = [box.iqr_us / box.median_us for box in boxes]
    return max(float(tables.middle(relative)), LEAST_WIDTH) if relative else LEAST_WIDTH


def _value_axis(ax: Axes, width: float, lowest: float, highest: float) -> None:
    """Ticks in per cent where there is room for them; the guides as multiples on the right."""

    def bend(value: float) -> float:
        return float(np.arcsinh(value / width))

    low, high = bend(lowest), bend(highest)
    room = max(high - low, 1.0)
    bottom, top = low - 0.08 * room, high + 0.17 * room
    steps = [mantissa * 10.0**power for power in range(-6, 7) for mantissa in (1, 2.5, 5)]
    candidates = [0.0, *(step for size in steps for step in (size, -size)), *(ratio - 1 for ratio in GUIDES)]
    kept: list[float] = [0.0]
    apart = (top - bottom) * 0.16 / (PANEL_IN - 1)
    for value in sorted(candidates, key=lambda value: (value + 1 not in GUIDES, -abs(np.log10(abs(value) or 1)))):
        place = bend(value)
        if bottom <= place <= top and all(abs(place - bend(other)) >= apart for other in kept):
            kept.append(value)
    ax.set_ylim(width * np.sinh(bottom), width * np.sinh(top))
    ax.yaxis.set_major_locator(FixedLocator(sorted(kept)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _per_cent(value)))
    ax.set_ylabel(f"latency / median − 1\n(asinh, linear within ±{100 * width:.2g} %)")
    for ratio in GUIDES:
        if bottom <= bend(ratio - 1) <= top:
            guide([ax], ratio - 1, f"{ratio:g}×", gid="guide")


def _per_cent(value: float) -> str:
    per_cent = 100 * value
    text = f"{per_cent:+,.0f}".replace(",", "\u202f") if abs(per_cent) >= 1000 else f"{per_cent:+.4g}"
    return "0" if value == 0 else f"{text} %".replace("-", "−")
