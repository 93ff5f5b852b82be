"""Trials in the order of their calls, in µs: what comes again and again is seen here and nowhere else.

Given findings of `analysis.outliers`, trials are coloured by cluster and the medians of the
segments drawn as steps; without them what lies outside 1.5 x IQR is coloured. Many trials are
thinned for the eye only: no outlier and no extreme of the body is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from lstm_trt import plots_tables as tables
from lstm_trt.plots_stretches import BODY, BODY_COLOR, OTHER, Kind, Stretch, kinds_of
from lstm_trt.plots_style import DEADLINE, guide, log_ticks, number, plain

if TYPE_CHECKING:
    from lstm_trt.analysis.outliers_values import Outliers

GUIDES = (1.25, 2.0)
#: From this ratio on the body would be a line on a linear axis.
LOG_FROM = 6
#: More trials of the body than this are thinned.
DRAWN = 24_000


def draw_order(
    body, stretches: Sequence[Stretch], box: tables.Spread, deadline_us: float | None, outliers: Outliers | None
) -> None:
    """Trials and histogram side by side, and their legend below."""
    ax, side = body.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": (5, 1)})
    rows = sum(len(stretch.place) for stretch in stretches)
    _shade(ax, stretches)
    for kind in kinds_of(outliers, stretches):
        _dots(ax, stretches, kind, rows)
    _levels(ax, stretches)
    _scale(ax, stretches, box, deadline_us)
    _histogram(side, box, ax)
    for ratio in GUIDES:
        if ax.get_ylim()[0] < ratio * box.median_us < ax.get_ylim()[1]:
            guide([ax, side], ratio * box.median_us, f"{ratio:g}×", gid=f"guide:{ratio:g}")
    if deadline_us and ax.get_ylim()[0] < deadline_us < ax.get_ylim()[1]:
        for one in (ax, side):
            one.axhline(deadline_us, label=f"deadline {number(deadline_us)} µs", gid="deadline", **DEADLINE)
    first, last = stretches[0].place[0], stretches[-1].place[-1]
    span = max(last - first, 1)
    ax.set_xlim(first - 0.01 * span - 0.5, last + 0.01 * span + 0.5)
    if len(stretches) > 1:
        ax.xaxis.set_major_locator(FixedLocator([stretch.place.mean() for stretch in stretches]))
        names = [stretch.name if len(stretches) <= 8 else stretch.name.split()[-1] for stretch in stretches]
        ax.set_xticklabels(names)
        ax.grid(False, axis="x")
        ax.set_xlabel("trials of each round, in order" + (", by round" if len(stretches) > 8 else ""))
    else:
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
        ax.set_xlabel("trial")
    handles, labels = ax.get_legend_handles_labels()
    body.legend(handles, labels, loc="outside lower left", ncols=4, markerscale=1.8, columnspacing=1.5)


def _shade(ax: Axes, stretches: Sequence[Stretch]) -> None:
    """Warm-up, wherever it stands."""
    shade = {"color": "0.88", "zorder": 0, "linewidth": 0, "gid": "warm-up"}
    label = "warm-up"
    for stretch in stretches:
        edges = np.flatnonzero(np.diff(np.r_[0, stretch.warm.astype(int), 0]))
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            ax.axvspan(stretch.place[first] - 0.5, stretch.place[last - 1] + 0.5, label=label, **shade)
            label = "_"
    small = _mark_size(sum(len(stretch.place) for stretch in stretches)) + 2
    place = np.concatenate([stretch.place[stretch.warm] for stretch in stretches])
    value = np.concatenate([stretch.latency_us[stretch.warm] for stretch in stretches])
    ax.plot(place, value, **_dot(small), color="0.4", gid="before")


def _mark_size(rows: int) -> float:
    return 7.0 if rows < 100 else 3.0 if rows < 20_000 else 1.5


def _dot(size: float) -> dict:
    return {"linestyle": "none", "marker": ".", "markeredgewidth": 0, "markersize": size}


def _dots(ax: Axes, stretches: Sequence[Stretch], kind: Kind, rows: int) -> None:
    chosen = [(stretch.labels == kind.label) & ~stretch.warm for stretch in stretches]
    place = np.concatenate([s.place[mask] for s, mask in zip(stretches, chosen, strict=True)])
    value = np.concatenate([s.latency_us[mask] for s, mask in zip(stretches, chosen, strict=True)])
    size = _mark_size(rows)
    gid = {BODY: "body", OTHER: "outliers"}.get(kind.label, f"cluster:{kind.label}")
    if kind.label == BODY:
        kept = thinned(value)
        place, value = place[kept], value[kept]
    elif "marker" in kind.look:
        size = 4.0 if len(place) < 3_000 else 2.2
    else:
        size += 2
    look = {**_dot(size), **kind.look, "label": kind.words, "gid": gid}
    ax.plot(place, value, **look, zorder=2 if kind.label == BODY else 3)


def thinned(values: np.ndarray, most: int = DRAWN) -> np.ndarray:
    """Places of at most about `most` values that look like all: of each short stretch its extremes and two more."""
    if len(values) <= most:
        return np.arange(len(values))
    length = -(-4 * len(values) // most)
    whole = len(values) // length * length
    parts = values[:whole].reshape(-1, length)
    begins = np.arange(0, whole, length)
    kept = [begins + parts.argmin(axis=1), begins + parts.argmax(axis=1), begins, begins + length // 2]
    return np.unique(np.concatenate([*kept, np.arange(whole, len(values))]))


def _levels(ax: Axes, stretches: Sequence[Stretch]) -> None:
    """The level of the body: a step or a slope a segment; what clusters are multiples of."""
    label = "level, by segment"
    for stretch in stretches:
        if stretch.levels:
            place, level = zip(*stretch.levels, strict=True)
            ax.plot(place, level, color="black", linewidth=1.2, label=label, zorder=4, gid="segments")
            label = "_"


def _scale(ax: Axes, stretches: Sequence[Stretch], box: tables.Spread, deadline_us: float | None) -> None:
    """Limits by the timed trials and a deadline not far from them; what lies outside is told at the edge."""
    low, high = box.latency_us.min(), max(box.max_us, 1.3 * box.median_us)
    if deadline_us and low / 2 < deadline_us < 2 * high:
        low, high = min(low, deadline_us), max(high, deadline_us)
    logarithmic = high / max(low, 1e-3) > LOG_FROM
    if logarithmic:
        ax.set_yscale("log")
        top = high * 1.3
        ax.set_ylim(low / 1.2, top)
        log_ticks(ax.yaxis, low / 1.2, top)
    else:
        bottom = max(0.0, low - 0.12 * (high - low))
        top = high + 0.1 * (high - bottom)
        ax.set_ylim(bottom, top)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    ax.set_ylabel("latency [µs]" + (" (log)" if logarithmic else ""))
    bottom = ax.get_ylim()[0]
    warm_us = np.concatenate([stretch.latency_us[stretch.warm] for stretch in stretches])
    above, below = warm_us[warm_us > top], warm_us[warm_us < bottom]
    words = []
    if len(above):
        words.append(f"▲ {len(above)} of {len(warm_us)} warm-up trials above, up to {number(above.max())} µs")
    if len(below):
        words.append(f"▼ {len(below)} of {len(warm_us)} warm-up trials below, from {number(below.min())} µs")
    if deadline_us and not bottom < deadline_us < top:
        words.append(f"{'▲' if deadline_us > top else '▼'} deadline at {number(deadline_us)} µs")
    place = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom", "gid": "outside"}
    ax.annotate("   ".join(words), (0.005, 1), (0, 3), size=9, color="0.35", **place)


def _histogram(side: Axes, box: tables.Spread, ax: Axes) -> None:
    """Counts on a log axis, as real-time laboratories draw them: a single trial is seen."""
    low, high = ax.get_ylim()
    bins = np.geomspace(low, high, 61) if ax.get_yscale() == "log" else np.linspace(low, high, 61)
    counts, _ = np.histogram(box.latency_us, bins)
    side.barh(bins[:-1], counts, np.diff(bins), align="edge", color=BODY_COLOR, alpha=0.8, linewidth=0, gid="histogram")
    side.set_xscale("log")
    side.set_xlim(0.5, max(counts.max(), 2) * 2)
    side.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    side.xaxis.set_minor_locator(NullLocator())
    side.set_xlabel("trials (log)")
