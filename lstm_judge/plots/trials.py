"""Trials in the order of their calls, in µs, which shows periodic events and drift.

With findings of `analysis.outliers`, trials are coloured by cluster and the levels of the segments
are drawn as steps; without, trials outside 1.5 x IQR are coloured. Large numbers of bulk trials are
thinned in the figure, but outliers and extremes are always kept.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from lstm_judge.outliers.answer import TAIL, Outliers
from lstm_judge.plots import points as data, style
from lstm_judge.plots.style import Picture, count, multiple, number, percent, whole
from lstm_judge.read.rounds import Group
from lstm_judge.statistics.causes import BULK
from lstm_judge.statistics.quantiles import count_outliers, is_outlier
from lstm_judge.statistics.trials import Trials, timed_rounds
from lstm_trt.config.errors import UsageError

OUTLIER_COLOR, BULK_COLOR = "#d55e00", "#0173b2"

#: From this ratio on the axis is logarithmic; on a linear one the bulk would be a thin line.
LOG_FROM = 6

#: Where all latencies are longer, the axis is in ms.
LONG_US = 10_000

DOT = {"linestyle": "none", "marker": ".", "markeredgewidth": 0}

#: More bulk trials than this are thinned.
DRAWN = 24_000

#: More dots than this are an image in SVG and PDF files, which would be large otherwise.
VECTORS = 2_000


@dataclass(frozen=True)
class Calls:
    """Calls of one or several rounds in sequence, with gaps between rounds; arrays have one item
    per call.

    `outliers` is the number of timed trials outside 1.5 x IQR of their round, as in a box plot.

    `place` is the position on the x axis, `labels` are those of `OutlierRound.labels`. `middles` maps
    the number of a round to its centre; `levels` has for each round (place, level in µs) at both
    ends of each segment. Of a long recording these are one of every `step` calls.
    """

    place: np.ndarray
    latency_us: np.ndarray
    warm: np.ndarray
    labels: np.ndarray
    middles: dict[int, float]
    levels: tuple[tuple[np.ndarray, np.ndarray], ...]
    outliers: int
    step: int

    @property
    def timed(self) -> Trials:
        """The calls after warm-up, as one round."""
        return Trials(1e3 * self.latency_us[~self.warm])


def trials_in_order(
    runs: Any,
    *,
    round_number: int | None = None,
    deadline_us: float | None = None,
    outliers: Outliers | None = None,
) -> Picture:
    """All trials of one configuration in order, in µs, with a histogram of the latencies.

    `runs` is the result of `load`, or a path, recordings or groups, with one configuration. All
    rounds are drawn in sequence, or only that of `round_number`. Warm-up is shaded, trials outside
    1.5 x IQR of their round (both sides, after warm-up) are coloured, and guides mark 1.25 and 2
    times the median. With `outliers`, an element of `lab.outliers(runs)`, clusters have their own
    colours and segments are drawn as steps. Trials outside the axis limits are counted at the top
    edge. Raises `UsageError` if there are no such trials.
    """
    data.check_deadline(deadline_us)
    group = data.one_group(runs)
    calls = calls_of(group, outliers, round_number)
    timed, warm = calls.timed, int(calls.warm.sum())
    trials = f"n = {whole(timed.n)} after {whole(warm)} warm-up trials; median {number(timed.median_us)} µs"
    largest = f"maximum {number(timed.max_us)} µs ({multiple(timed.max_us / timed.median_us)})"
    outside = f"{whole(calls.outliers)} of {whole(timed.n)} are outside 1.5 × IQR (box plot)"
    notes = [f"{trials}, {largest}; {outside}."]
    if len(calls.middles) > 1:
        notes[0] += f" {len(calls.middles)} rounds in sequence."
    elif round_number is not None:
        notes[0] += f" Only round {round_number} of {len(group.rounds)} rounds."
    if group.configuration is not None:
        if group.configuration.protocol.after_warmup:
            slowest = max(timed_rounds(group.rounds), key=lambda round_: round_.timed_ns.max())
            call = (
                int(np.argmax(slowest.latency_ns * ~slowest.warmup))
                + 1
                - group.configuration.protocol.warmup
            )
            notes[0] += (
                f" All inputs are zero after the warm-up; the slowest call is number {call} of silence."
            )
        notes.append(data.describe_systems(data.points_of(group)))
    title = f"Trials in order: {group.name}" if group.name else "Trials in order"
    with style.figure(title, notes, 3.7) as (picture, body):
        draw_order(body, calls, deadline_us, outliers)
    return picture


def calls_of(
    group: Group, outliers: Outliers | None = None, round_number: int | None = None
) -> Calls:
    """The calls of all rounds of a group that have trials after warm-up, or of one of them.

    Without findings, trials are labelled by the 1.5 x IQR of their round. Raises `UsageError` if
    there are no such trials, or if the findings do not match them.
    """
    kept = timed_rounds(group.rounds)
    if not kept:
        raise UsageError(f"{group.name or 'the recording'}: no trials after warm-up")
    if outliers is not None and len(outliers.rounds) != len(kept):
        raise UsageError(
            f"the findings have {len(outliers.rounds)} rounds, but {group.name} has {len(kept)}"
        )
    found = [
        (index, round_) for index, round_ in enumerate(kept) if round_number in (None, round_.round)
    ]
    if not found:
        numbers = ", ".join(str(round_.round) for round_ in kept)
        raise UsageError(f"{group.name} has no round {round_number}: choose from {numbers}")
    gap = max(round(0.015 * sum(len(round_.latency_ns) for _, round_ in found)), 1)
    places, labels, levels, first = [], [], [], 0
    for index, round_ in found:
        places.append(first + np.arange(len(round_.latency_ns)))
        first += len(round_.latency_ns) + gap
        timed, n = ~round_.warmup, len(round_.timed_ns)
        kinds = (
            np.where(is_outlier(round_.timed_ns), TAIL, BULK)
            if outliers is None
            else outliers.rounds[index].labels
        )
        if len(kinds) != n:
            raise UsageError(
                f"the findings have {len(kinds)} trials, but round {round_.round} has {n} after warm-up"
            )
        labels.append(np.full(len(timed), BULK))
        labels[-1][timed] = kinds
        if outliers is not None:
            ends = [
                end
                for segment in outliers.rounds[index].segments
                for end in (segment.start, segment.stop - 1)
            ]
            levels.append((places[-1][timed][ends], outliers.rounds[index].level_ns[ends] / 1000))
    return Calls(
        np.concatenate(places),
        np.concatenate([round_.latency_ns for _, round_ in found]) / 1000,
        np.concatenate([round_.warmup for _, round_ in found]).astype(bool),
        np.concatenate(labels),
        {
            round_.round: float(place.mean())
            for (_, round_), place in zip(found, places, strict=True)
        },
        tuple(levels),
        sum(count_outliers(round_.timed_ns) for _, round_ in found),
        max(round_.whole.step if round_.whole else 1 for _, round_ in found),
    )


def kinds_of(outliers: Outliers | None, calls: Calls) -> list[tuple[int, str, dict]]:
    """(label, name in the legend, look) of bulk, clusters and tail; those without trials are left
    out.

    Without findings, trials inside and outside 1.5 x IQR.
    """
    counts = Counter(calls.labels[~calls.warm].tolist())
    if outliers is None:
        kinds = [
            (BULK, "within 1.5 × IQR", BULK_COLOR),
            (TAIL, "outside 1.5 × IQR (box plot)", OUTLIER_COLOR),
        ]
        return [(label, name, {"color": color}) for label, name, color in kinds if counts[label]]
    kinds = [(BULK, f"bulk: {count(counts[BULK], 'trial')}", {"color": BULK_COLOR})]
    for index, (cluster, look) in enumerate(
        zip(outliers.clusters, cluster_looks(len(outliers.clusters)), strict=True)
    ):
        name = f"{'fast' if cluster.fast else 'slow'} cluster at {multiple(cluster.multiplier)}:"
        kinds.append(
            (index, f"{name} {count(cluster.count, 'trial')}, {percent(cluster.share)}", look)
        )
    kinds.append((TAIL, f"tail: {count(counts[TAIL], 'trial')}", {"color": "0.25"}))
    return [kind for kind in kinds if counts[kind[0]]]


def cluster_looks(total: int) -> list[dict]:
    """Colour and marker of each cluster, without the blue of the bulk."""
    return style.kind_looks(total + 1)[1:]


def draw_order(
    body: SubFigure, calls: Calls, deadline_us: float | None, outliers: Outliers | None
) -> None:
    """Trials and histogram side by side, and their legend below."""
    ax, side = body.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": (5, 1)})
    timed = calls.timed
    _shade(ax, calls)
    for label, name, look in kinds_of(outliers, calls):
        _dots(ax, calls, label, name, look)
    level = {"color": "black", "linewidth": 1.2, "label": "level of each segment", "zorder": 4}
    for (
        place,
        level_us,
    ) in calls.levels:  # a step or slope per segment: clusters are multiples of it
        ax.plot(place, level_us, **level)
    _latency_axis(ax, calls, deadline_us)
    _histogram(side, timed, ax)
    low, high = ax.get_ylim()
    style.guides([ratio * timed.median_us for ratio in style.GUIDES], ax, side)
    style.deadline(
        deadline_us if low < (deadline_us or 0) < high else None, ax.axhline, side.axhline
    )
    _order_axis(ax, calls)
    style.legend_below(body, style.handles_of(ax), ncols=4, markerscale=1.8, columnspacing=1.5)


def _order_axis(ax: Axes, calls: Calls) -> None:
    first, last = calls.place[0], calls.place[-1]
    span, rounds = max(last - first, 1), len(calls.middles)
    ax.set_xlim(first - 0.01 * span - 0.5, last + 0.01 * span + 0.5)
    part = f", one of every {calls.step}" * (calls.step > 1)
    if rounds == 1:
        ax.xaxis.set_major_formatter(lambda value, _: style.plain(value))
        ax.set_xlabel(f"trial{part}")
        return
    names = [f"round {number}" if rounds <= 8 else str(number) for number in calls.middles]
    style.size_ticks(ax.xaxis, list(calls.middles), list(calls.middles.values()), names)
    ax.grid(False, axis="x")
    ax.set_xlabel("trials in order, by round" + (" number" if rounds > 8 else "") + part)


def _shade(ax: Axes, calls: Calls) -> None:
    """Shade warm-up trials, at the start of a round and later."""
    warm = calls.place[calls.warm]
    for span in np.split(warm, np.flatnonzero(np.diff(warm) > 1) + 1) if len(warm) else ():
        ax.axvspan(
            span[0] - 0.5, span[-1] + 0.5, label="warm-up", color="0.88", zorder=0, linewidth=0
        )
    ax.plot(
        warm, calls.latency_us[calls.warm], **DOT, markersize=_mark_size(calls) + 2, color="0.4"
    )


def _mark_size(calls: Calls) -> float:
    return 7.0 if len(calls.place) < 100 else 3.0 if len(calls.place) < 20_000 else 1.5


def _dots(ax: Axes, calls: Calls, label: int, name: str, look: dict) -> None:
    chosen = (calls.labels == label) & ~calls.warm
    place, value, size = calls.place[chosen], calls.latency_us[chosen], _mark_size(calls)
    if label == BULK:
        kept = thinned(value)
        place, value = place[kept], value[kept]
    elif "marker" in look:
        size = 4.0 if len(place) < 3_000 else 2.2
    else:
        size += 2
    look = {**DOT, "markersize": size, **look, "rasterized": len(place) > VECTORS}
    ax.plot(place, value, **look, label=name, zorder=2 if label == BULK else 3)


def thinned(values: np.ndarray, most: int = DRAWN) -> np.ndarray:
    """Indices of about `most` values that look like all: the extremes of each short run, and two
    more."""
    if len(values) <= most:
        return np.arange(len(values))
    length = -(-4 * len(values) // most)
    full = len(values) // length * length
    parts = values[:full].reshape(-1, length)
    begins = np.arange(0, full, length)
    kept = [
        begins + parts.argmin(axis=1),
        begins + parts.argmax(axis=1),
        begins,
        begins + length // 2,
    ]
    return np.unique(np.concatenate([*kept, np.arange(full, len(values))]))


def _latency_axis(ax: Axes, calls: Calls, deadline_us: float | None) -> None:
    """Set limits from the timed trials, and a deadline near them; values outside are counted at the
    edge."""
    timed, warm_us = calls.timed, calls.latency_us[calls.warm]
    low, high = timed.latency_us.min(), max(timed.max_us, 1.3 * timed.median_us)
    if deadline_us and low / 2 < deadline_us < 2 * high:
        low, high = min(low, deadline_us), max(high, deadline_us)
    if high / max(low, 1e-3) > LOG_FROM:
        bottom, top = low / 1.2, high * 1.3
        style.log_axis(ax.yaxis, bottom, top)
    else:
        bottom = max(0.0, low - 0.12 * (high - low))
        top = high + 0.1 * (high - bottom)
        ax.set_ylim(bottom, top)
    unit, scale = ("ms", 1e3) if low > LONG_US else ("µs", 1)
    ax.yaxis.set_major_formatter(lambda value, _: style.plain(value / scale))
    ax.set_ylabel(f"latency [{unit}]" + style.scale_text(ax.yaxis))
    above, below = warm_us[warm_us > top], warm_us[warm_us < bottom]
    outside = []
    if len(above):
        outside.append(
            f"▲ {len(above)} of {len(warm_us)} warm-up trials above, up to {number(above.max())} µs"
        )
    if len(below):
        outside.append(
            f"▼ {len(below)} of {len(warm_us)} warm-up trials below, from {number(below.min())} µs"
        )
    if deadline_us and not bottom < deadline_us < top:
        outside.append(f"{'▲' if deadline_us > top else '▼'} deadline at {number(deadline_us)} µs")
    style.beside(
        ax,
        "   ".join(outside),
        (0.005, 1),
        (0, 3),
        ha="left",
        color="0.35",
        xycoords="axes fraction",
    )


def _histogram(side: Axes, timed: Trials, ax: Axes) -> None:
    """Draw a histogram with counts on a log axis, so that single trials are visible."""
    low, high = ax.get_ylim()
    bins = np.geomspace(low, high, 61) if ax.get_yscale() == "log" else np.linspace(low, high, 61)
    look: Any = {"bins": bins, "color": BULK_COLOR, "alpha": 0.8, "linewidth": 0}
    counts: Any = side.hist(timed.latency_us, orientation="horizontal", **look)[0]
    side.set_xscale("log")
    side.set_xlim(0.5, max(counts.max(), 2) * 2)
    side.xaxis.set_major_formatter(lambda value, _: style.plain(value))
    side.set_xticks([], minor=True)
    side.set_xlabel("trials (log)")
