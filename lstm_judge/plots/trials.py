"""Trials in the order of their calls, in µs, which shows periodic events and drift.

With findings of `outliers`, trials are coloured by cluster and the levels of the segments
are drawn as steps; without, trials outside 1.5 x IQR are coloured.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from lstm_judge.outliers.answer import TAIL, OutlierRound, Outliers
from lstm_judge.plots import points as data, style
from lstm_judge.plots.style import Picture, count, multiple, number, percent, whole
from lstm_judge.read.rounds import Group
from lstm_judge.statistics.causes import BULK
from lstm_judge.statistics.quantiles import is_outlier
from lstm_judge.statistics.trials import Trials, timed_rounds
from lstm_trt.config.errors import UsageError

BULK_COLOR = "#0173b2"

#: From this ratio on the axis is logarithmic; on a linear one the bulk would be a thin line.
LOG_FROM = 6

DOT = {"linestyle": "none", "marker": ".", "markeredgewidth": 0}

#: More dots than this are an image in SVG and PDF files, which would be large otherwise.
VECTORS = 2_000


@dataclass(frozen=True)
class Calls:
    """Calls of one or several rounds in sequence, with gaps between rounds; arrays have one item
    per call.

    `place` is the position on the x axis, `labels` are those of `OutlierRound`. `middles` maps the
    number of a round to its centre; `levels` has for each round (place, level in µs) at both
    ends of each segment. Of a long recording these are one of every `step` calls.
    """

    place: np.ndarray
    latency_us: np.ndarray
    warm: np.ndarray
    labels: np.ndarray
    middles: dict[int, float]
    levels: tuple[tuple[np.ndarray, np.ndarray], ...]
    step: int

    @property
    def timed(self) -> Trials:
        """The calls after warm-up, as one round."""
        return Trials(1e3 * self.latency_us[~self.warm])


def trials_in_order(runs: Any, *, deadline_us: float | None = None) -> Picture:
    """All trials of one configuration in order, in µs, with a histogram of the latencies.

    `runs` is the result of `load`, or a path, recordings or groups, with one configuration. All
    rounds are drawn in sequence. Warm-up is shaded, trials outside 1.5 x IQR of their round (both
    sides, after warm-up) are coloured, and guides mark 1.25 and 2 times the median. Trials outside
    the axis limits are counted at the top edge. `outliers_page` colours clusters instead. Raises
    `UsageError` if there are no such trials.
    """
    data.check_deadline(deadline_us)
    group = data.one_group(runs)
    calls = calls_of(group)
    timed = calls.timed
    notes = [
        f"n = {whole(timed.n)} after {whole(calls.warm.sum())} warm-up trials;"
        f" median {number(timed.median_us)} µs,"
        f" maximum {number(timed.max_us)} µs ({multiple(timed.max_us / timed.median_us)});"
        f" {whole((calls.labels == TAIL).sum())} of {whole(timed.n)} are outside 1.5 × IQR"
        " (box plot)."
    ]
    if len(calls.middles) > 1:
        notes[0] += f" {len(calls.middles)} rounds in sequence."
    if group.configuration is not None:
        notes.append(data.describe_systems(data.points_of(group)))
    named = f": {group.name}" if group.name else ""
    with style.figure(f"Trials in order{named}", notes, 3.7) as (picture, body):
        draw_order(body, calls, deadline_us)
    return picture


def calls_of(group: Group, outliers: Outliers | None = None) -> Calls:
    """The calls of all rounds of a group that have trials after warm-up.

    Without findings, trials are labelled by the 1.5 x IQR of their round. Raises `UsageError` if
    there are no such trials, or if the findings do not match them.
    """
    rounds = timed_rounds(group.rounds)
    if not rounds:
        raise UsageError(f"{group.name or 'the recording'}: no trials after warm-up")
    found: Sequence[OutlierRound | None] = [None] * len(rounds)
    if outliers is not None:
        found = outliers.rounds
        labelled = [len(part.labels) for part in found]
        trials = [len(each.timed_ns) for each in rounds]
        if labelled != trials:
            raise UsageError(
                f"the findings are of rounds with {labelled} trials, but {group.name} has {trials}"
            )
    gap = max(round(0.015 * sum(len(each.latency_ns) for each in rounds)), 1)
    places = []
    labels = []
    levels = []
    middles = {}
    first = 0
    for each, part in zip(rounds, found, strict=True):
        place = first + np.arange(len(each.latency_ns))
        places.append(place)
        middles[each.round] = place.mean()
        first += len(place) + gap
        label = np.full(len(place), BULK)
        if part is None:
            label[~each.warmup] = np.where(is_outlier(each.timed_ns), TAIL, BULK)
        else:
            label[~each.warmup] = part.labels
            ends = [end for one in part.segments for end in (one.start, one.stop - 1)]
            levels.append((place[~each.warmup][ends], part.level_ns[ends] / 1000))
        labels.append(label)
    return Calls(
        place=np.concatenate(places),
        latency_us=np.concatenate([each.latency_ns for each in rounds]) / 1000,
        warm=np.concatenate([each.warmup for each in rounds]).astype(bool),
        labels=np.concatenate(labels),
        middles=middles,
        levels=tuple(levels),
        step=max((each.whole.step for each in rounds if each.whole), default=1),
    )


@dataclass(frozen=True)
class Kind:
    """Trials of one label: their name in the legend, and their look."""

    label: int
    name: str
    look: dict[str, Any]


def kinds_of(outliers: Outliers | None, calls: Calls) -> list[Kind]:
    """Bulk, clusters and tail; without findings, trials inside and outside 1.5 x IQR. Those without
    trials are left out."""
    counts = Counter(calls.labels[~calls.warm].tolist())
    bulk = {"color": BULK_COLOR}
    if outliers is None:
        kinds = [
            Kind(BULK, "within 1.5 × IQR", bulk),
            Kind(TAIL, "outside 1.5 × IQR (box plot)", {"color": "#d55e00"}),
        ]
    else:
        kinds = [Kind(BULK, f"bulk: {count(counts[BULK], 'trial')}", bulk)]
        looks = cluster_looks(len(outliers.clusters))
        for index, cluster in enumerate(outliers.clusters):
            name = (
                f"{'fast' if cluster.fast else 'slow'} cluster at {multiple(cluster.multiplier)}:"
                f" {count(cluster.count, 'trial')}, {percent(cluster.share)}"
            )
            kinds.append(Kind(index, name, looks[index]))
        kinds.append(Kind(TAIL, f"tail: {count(counts[TAIL], 'trial')}", {"color": "0.25"}))
    return [kind for kind in kinds if counts[kind.label]]


def cluster_looks(total: int) -> list[dict]:
    """Colour and marker of each cluster, without the blue of the bulk."""
    return style.kind_looks(total + 1)[1:]


def draw_order(
    body: SubFigure, calls: Calls, deadline_us: float | None, outliers: Outliers | None = None
) -> None:
    """Trials and histogram side by side, and their legend below."""
    ax, side = body.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": (5, 1)})
    timed = calls.timed
    _shade(ax, calls)
    for kind in kinds_of(outliers, calls):
        _dots(ax, calls, kind)
    for place, level_us in calls.levels:  # a step or slope per segment: clusters are multiples
        ax.plot(
            place, level_us, color="black", linewidth=1.2, label="level of each segment", zorder=4
        )
    _latency_axis(ax, calls, deadline_us)
    _histogram(side, timed, ax)
    low, high = ax.get_ylim()
    style.guides([ratio * timed.median_us for ratio in style.GUIDES], ax, side)
    if deadline_us and low < deadline_us < high:
        style.deadline(deadline_us, ax.axhline, side.axhline)
    _order_axis(ax, calls)
    style.legend_below(body, style.handles_of(ax), ncols=4, markerscale=1.8, columnspacing=1.5)


def _order_axis(ax: Axes, calls: Calls) -> None:
    label = "trial"
    if len(calls.middles) > 1:
        label = "trials in order, by round"
        numbers = style.spread([*calls.middles])
        ax.set_xticks([calls.middles[number] for number in numbers], numbers)
        ax.grid(False, axis="x")
    else:
        ax.xaxis.set_major_formatter(style.plain)
    if calls.step > 1:
        label += f", one of every {calls.step}"
    ax.set_xlabel(label)
    ax.margins(x=0.01)


def _shade(ax: Axes, calls: Calls) -> None:
    """Shade warm-up trials, at the start of a round and later."""
    warm = calls.place[calls.warm]
    for span in np.split(warm, np.flatnonzero(np.diff(warm) > 1) + 1):
        if len(span):
            ax.axvspan(
                span[0] - 0.5, span[-1] + 0.5, label="warm-up", color="0.88", zorder=0, linewidth=0
            )
    ax.plot(
        warm, calls.latency_us[calls.warm], **DOT, markersize=(_mark_size(calls) + 2), color="0.4"
    )


def _mark_size(calls: Calls) -> float:
    return 7.0 if len(calls.place) < 100 else 3.0 if len(calls.place) < 20_000 else 1.5


def _dots(ax: Axes, calls: Calls, kind: Kind) -> None:
    chosen = (calls.labels == kind.label) & ~calls.warm
    size = _mark_size(calls)
    if kind.label != BULK:
        size += 1 if "marker" in kind.look else 2
    ax.plot(
        calls.place[chosen],
        calls.latency_us[chosen],
        **DOT | kind.look,
        markersize=size,
        rasterized=bool(chosen.sum() > VECTORS),
        label=kind.name,
        zorder=2 if kind.label == BULK else 3,
    )


def _latency_axis(ax: Axes, calls: Calls, deadline_us: float | None) -> None:
    """Set limits from the timed trials, and a deadline near them; values outside are counted at the
    edge."""
    timed = calls.timed
    low = timed.latency_us.min()
    high = max(timed.max_us, 1.3 * timed.median_us)
    if deadline_us and low / 2 < deadline_us < 2 * high:
        low = min(low, deadline_us)
        high = max(high, deadline_us)
    if high / max(low, 1e-3) > LOG_FROM:
        style.log_axis(ax.yaxis, low / 1.2, high * 1.3)
    else:
        bottom = max(0.0, low - 0.12 * (high - low))
        ax.set_ylim(bottom, high + 0.1 * (high - bottom))
        ax.yaxis.set_major_formatter(style.plain)
    ax.set_ylabel("latency [µs]" + style.scale_text(ax.yaxis))
    bottom, top = ax.get_ylim()
    warm_us = calls.latency_us[calls.warm]
    above = warm_us[warm_us > top]
    below = (warm_us < bottom).sum()
    outside = []
    if len(above):
        outside.append(
            f"▲ {len(above)} of {len(warm_us)} warm-up trials above, up to {number(above.max())} µs"
        )
    if below:
        outside.append(f"▼ {below} of {len(warm_us)} warm-up trials below")
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
    spaced = np.geomspace if ax.get_yscale() == "log" else np.linspace
    side.hist(
        timed.latency_us,
        spaced(low, high, 61).tolist(),
        orientation="horizontal",
        color=BULK_COLOR,
        alpha=0.8,
        linewidth=0,
    )
    side.set_xscale("log")
    side.set_xlim(0.5, max(side.dataLim.x1, 2) * 2)
    side.xaxis.set_major_formatter(style.plain)
    side.set_xticks([], minor=True)
    side.set_xlabel("trials (log)")
