"""Implementations of one workload as bars: what a document printed above, what was recorded today below.

Each side has its own axis and its own fastest, since machine and size differ; at every bar stand
its time and its ratio to the fastest of its side. What failed is drawn as such, with the words
for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from lstm_trt.errors import UsageError
from lstm_trt.literature.metrics import Row
from lstm_trt.literature.standing import Entry, Side
from lstm_trt.literature.task import COSTS
from lstm_trt.plots_style import MARKERS, Picture, kind_colors, log_ticks, multiple, number, sheet, style

ROW_IN, HEAD_IN = 0.21, 0.62
#: Colour of a framework, the same in all pictures; by the first word of a title.
FAMILIES = {
    "PyTorch": "#0173b2",
    "TensorFlow": "#de8f05",
    "ONNX": "#029e73",
    "Apache": "#cc78bc",
    "TVM": "#cc78bc",
    "TensorRT": "#56a01a",
}
OTHER = "0.55"


def family_color(title: str) -> str:
    """The colour of what a title begins with, grey for what has no colour of its own."""
    return FAMILIES.get(title.split()[0], OTHER)


def bars(sides: Sequence[Side], title: str, notes: Sequence[str] = ()) -> Picture:
    """A panel a side, the fastest bar first, times of a batch in ms on log axes.

    Raises `UsageError` where no side has an entry.
    """
    sides = [side for side in sides if side.entries]
    if not sides:
        raise UsageError("there is nothing to draw: neither published figures nor recordings")
    heights = [HEAD_IN + ROW_IN * len(side.entries) for side in sides]
    lines = [side.words for side in sides]
    with style():
        picture, body = sheet(title, [*lines, *notes], sum(heights))
        axes = np.atleast_1d(body.subplots(len(sides), 1, height_ratios=heights))
        for ax, side in zip(axes, sides, strict=True):
            _panel(ax, side)
        axes[-1].set_xlabel("time of a batch [ms] (log); at each bar: its ratio to the fastest of its panel")
    return picture


def costs(rows: Sequence[Row], title: str, notes: Sequence[str] = ()) -> Picture:
    """What each implementation took before its first answer, in s on a log axis: a mark a kind of cost.

    Of several recordings of one implementation each is drawn. Raises `UsageError` where nothing was kept.
    """
    kinds = [name.removesuffix("_s") for name in COSTS]
    found = [row for row in rows if row.statistic in kinds and row.value]
    if not found:
        raise UsageError("these recordings keep no costs of export, tuning or build")
    totals: dict[str, float] = {}
    for row in found:
        totals[row.title] = max(totals.get(row.title, 0.0), row.value)
    titles = sorted(totals, key=totals.get)
    low, high = min(row.value for row in found) / 1.5, max(row.value for row in found) * 1.5
    with style():
        picture, body = sheet(title, notes, 1.1 + ROW_IN * len(titles))
        ax = body.subplots()
        for kind, color, marker in zip(kinds, kind_colors(len(kinds)), MARKERS, strict=False):
            mine = [row for row in found if row.statistic == kind]
            if mine:
                places = [titles.index(row.title) for row in mine]
                look = {"color": color, "marker": marker, "linestyle": "none", "markersize": 6, "alpha": 0.8}
                ax.plot([row.value for row in mine], places, label=kind.replace("_", " "), **look)
        ax.set_xscale("log")
        ax.set_xlim(low, high)
        log_ticks(ax.xaxis, low, high)
        ax.set_xlabel("time [s] (log)")
        ax.set_yticks(range(len(titles)), titles)
        ax.set_ylim(len(titles) - 0.4, -0.6)
        body.legend(loc="outside lower left", ncols=len(kinds))
    return picture


def _panel(ax: Axes, side: Side) -> None:
    ranked = side.ranked
    rest = [one for one in side.entries if one.seconds is None]
    entries = [*ranked, *sorted(rest, key=lambda one: (one.status == "empty", one.title))]
    times = [1e3 * one.seconds for one in ranked] or [1.0]
    low, high = min(times) / 2.2, max(times) * 1.15
    reach = high * (high / low) ** 0.32  # room for the words behind the longest bar
    ax.set_xscale("log")
    ax.set_xlim(low, reach)
    for place, one in enumerate(entries):
        if one.seconds is None:
            _missing(ax, place, one, low)
            continue
        time_ms = 1e3 * one.seconds
        ax.barh(place, time_ms - low, left=low, height=0.72, color=family_color(one.title), gid="bar")
        words = f"{number(time_ms)} ms   {multiple(side.ratio(one))}"
        ax.annotate(words, (time_ms, place), (4, 0), textcoords="offset points", va="center", size=8.5)
    ax.set_yticks(range(len(entries)), [one.title for one in entries])
    ax.set_ylim(len(entries) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    log_ticks(ax.xaxis, low, reach)
    if not ranked:
        ax.set_xticks([])
    ax.set_title(side.name, loc="left")


def _missing(ax: Axes, place: int, one: Entry, low: float) -> None:
    """A failure is a hatched stub with its words, an empty cell of the document only words."""
    failed = one.status == "failed"
    words = one.reason if failed else f"no figure ({one.reason})" if one.reason else "no figure"
    edge = low
    if failed:
        edge = low * (ax.get_xlim()[1] / low) ** 0.04
        ax.barh(place, edge - low, left=low, height=0.72, color="white", edgecolor="#c44", hatch="////", gid="failure")
    shown = words if len(words) <= 75 else words[:74] + "…"
    look = {"color": "#a22" if failed else "0.45", "size": 8.5, "va": "center"}
    ax.annotate(shown, (edge, place), (4, 0), textcoords="offset points", **look)
