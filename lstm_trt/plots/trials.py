"""What trials in order are drawn from: rounds laid one after the other, and what each colour stands for.

Trials in the order of their calls, in µs: what comes again and again is seen here and nowhere else.

Given findings of `analysis.outliers`, trials are coloured by cluster and the medians of the
segments drawn as steps; without them what lies outside 1.5 x IQR is coloured. Many trials are
thinned for the eye only: no outlier and no extreme of the body is left out.

Pictures of single trials: the tails of a few configurations, and one configuration in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from lstm_trt.config.errors import UsageError
from lstm_trt.plots import tables
from lstm_trt.plots.style import (
    DEADLINE,
    GREY,
    MARKERS,
    Picture,
    guide,
    kind_colors,
    log_ticks,
    multiple,
    number,
    percent,
    plain,
    sheet,
    style,
    whole,
)
from lstm_trt.plots.tail import CONTROL, exceedance, multiple_ticks, share_tick

if TYPE_CHECKING:
    from lstm_trt.analysis.outliers import Outliers
    from lstm_trt.store.samples import Group


OUTLIER_COLOR, BODY_COLOR = "#d55e00", "#0173b2"

#: Labels of `Outliers.labels` that are no cluster.
BODY, OTHER = -1, -2

CLUSTER_MARKS = ("o", "s", "^", "D", "v", "P")


@dataclass(frozen=True)
class Series:
    """One round, a row a call: place on the x axis, latency, warm-up, and a label a row as `Outliers.labels` has them.

    `levels` are (place, level in µs) at both ends of each segment.
    """

    name: str
    place: np.ndarray
    latency_us: np.ndarray
    warm: np.ndarray
    labels: np.ndarray
    levels: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Kind:
    """What one colour stands for."""

    label: int
    words: str
    look: dict


def kinds_of(outliers: Outliers | None, stretches: Sequence[Series]) -> list[Kind]:
    """Body, clusters and other outliers, as the legend names them; what has no trial is left out."""
    counts: dict[int, int] = {}
    for stretch in stretches:
        for label, count in zip(*np.unique(stretch.labels[~stretch.warm], return_counts=True), strict=True):
            counts[int(label)] = counts.get(int(label), 0) + int(count)
    if outliers is None:
        names = {BODY: ("trial", {"color": BODY_COLOR}), OTHER: ("outlier", {"color": OUTLIER_COLOR})}
        return [Kind(label, words, look) for label, (words, look) in names.items() if counts.get(label)]
    kinds = [Kind(BODY, f"body: {trial_words(counts.get(BODY, 0))}", {"color": BODY_COLOR})]
    for index, (cluster, look) in enumerate(zip(outliers.clusters, cluster_looks(len(outliers.clusters)), strict=True)):
        words = f"{multiple(cluster.multiplier)}: {trial_words(cluster.count)}, {percent(cluster.share)}"
        kinds.append(Kind(index, words, look))
    kinds.append(Kind(OTHER, f"other outliers: {trial_words(counts.get(OTHER, 0))}", {"color": "0.25"}))
    return [kind for kind in kinds if counts.get(kind.label)]


def cluster_looks(count: int) -> list[dict]:
    """Colour and marker of each cluster; none has the blue of the body."""
    colors = kind_colors(count + 1)[1:]
    return [{"color": colors[i], "marker": CLUSTER_MARKS[i % len(CLUSTER_MARKS)]} for i in range(count)]


def trial_words(count: int) -> str:
    return f"{whole(count)} trial{'s' if count != 1 else ''}"


def series_of_groups(group: Group, outliers: Outliers | None) -> list[Series]:
    """All rounds of a group, one after the other, with gaps between them; rounds without timed trials are left out."""
    kept = [index for index, sample in enumerate(group.samples) if len(sample.timed_ns)]
    rows = sum(len(group.samples[index].latency_ns) for index in kept)
    stretches, offset = [], 0
    for index, place in enumerate(kept):
        sample = group.samples[place]
        places = offset + np.arange(len(sample.latency_ns))
        stretches.append(
            series_of(f"round {sample.round}", places, sample.latency_ns / 1000, sample.warmup, outliers, index)
        )
        offset += len(places) + max(round(0.015 * rows), 1)
    return stretches


def series_of(
    name: str, place: np.ndarray, latency_us: np.ndarray, warm: np.ndarray, outliers: Outliers | None, index: int
) -> Series:
    """A round to draw, the `index`-th of the findings; without these what lies outside 1.5 x IQR is an outlier.

    Raises `UsageError` where the findings are of other trials.
    """
    labels, levels = np.full(len(place), BODY), ()
    timed = np.flatnonzero(~warm)
    if outliers is None:
        labels[timed[tables.spread(latency_us[timed]).is_outlier]] = OTHER
    else:
        found = len(outliers.labels[index]) if index < len(outliers.labels) else 0
        if found != len(timed):
            raise UsageError(f"the findings are of {found} trials, {name} has {len(timed)} after warm-up")
        labels[timed] = outliers.labels[index]
        level_us = outliers.levels_ns[index] / 1000
        ends = [end for segment in outliers.rounds[index].segments for end in (segment.start, segment.stop - 1)]
        levels = tuple((float(place[timed[end]]), float(level_us[end])) for end in ends)
    return Series(name, np.asarray(place), latency_us, np.asarray(warm, dtype=bool), labels, levels)


GUIDES = (1.25, 2.0)

#: From this ratio on the body would be a line on a linear axis.
LOG_FROM = 6

#: More trials of the body than this are thinned.
DRAWN = 24_000


def draw_order(
    body, stretches: Sequence[Series], box: tables.Spread, deadline_us: float | None, outliers: Outliers | None
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


def _shade(ax: Axes, stretches: Sequence[Series]) -> None:
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


def _dots(ax: Axes, stretches: Sequence[Series], kind: Kind, rows: int) -> None:
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


def _levels(ax: Axes, stretches: Sequence[Series]) -> None:
    """The level of the body: a step or a slope a segment; what clusters are multiples of."""
    label = "level, by segment"
    for stretch in stretches:
        if stretch.levels:
            place, level = zip(*stretch.levels, strict=True)
            ax.plot(place, level, color="black", linewidth=1.2, label=label, zorder=4, gid="segments")
            label = "_"


def _scale(ax: Axes, stretches: Sequence[Series], box: tables.Spread, deadline_us: float | None) -> None:
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


#: With no event in n trials its share may still be 3/n, at 95 %.
RULE_OF_THREE = 3.0

CONTROL_WORDS = "control run: an empty step's excess in µs, on the median of the line with its mark"


def tails(
    trials: pd.DataFrame,
    summary: pd.DataFrame,
    configs: Sequence[str],
    deadline_us: float | None = None,
    controls: Mapping[str, np.ndarray] | None = None,
) -> Picture:
    """Share of trials that take longer than a multiple of the median; log-log, a line a configuration.

    `configs` are config_ids. Each line is 1 - ECDF of the trials after warm-up, a step at each
    trial, ended by a mark at the maximum (at 1/n). Below 3/n a line is thin: with no event in
    n trials its share may still be 3/n at 95 % (rule of three). Several rounds are lines of one
    colour, all divided by the median of the middle round. A dashed line stands where
    `deadline_us` is on a configuration's own scale, with the number of late trials in the
    legend. `controls`: config_id -> latencies of its control run in ns; their excess in µs over their own
    median is drawn in grey on the configuration's scale, with the marker of its line at the end.
    Raises `UsageError` for a configuration without trials.
    """
    tables.check_deadline(deadline_us)
    table = tables.prepare(summary)
    configs = list(dict.fromkeys(configs))
    table = table[table["config_id"].isin(configs)]
    unknown = set(configs) - set(table["config_id"])
    if unknown or not configs:
        raise UsageError(f"not in the summary: {', '.join(sorted(str(one)[:12] for one in unknown)) or 'no configs'}")
    colors, several = kind_colors(len(configs)), len(tables.systems(table)) > 1
    with style():
        picture, body = sheet(
            "How often an answer takes longer than a multiple of its median",
            [
                f"{tables.describe_counts(table)}. A cliff is a cluster of slow trials, the plateau above it how many.",
                tables.describe_systems(table),
                "Below 3/n trials prove nothing: what never happened in n trials may still have a share of 3/n "
                "(rule of three, at 95 %)."
                + (" One line a round, over the median of the middle round." if table["round"].nunique() > 1 else ""),
            ],
            4.1 + 0.19 * len(configs),
        )
        ax = body.subplots()
        counts, ratios, deadlines = [], [0.97, 1.3], []
        told = CONTROL_WORDS
        for config, color, marker in zip(configs, colors, MARKERS * len(configs), strict=False):
            rounds = [tables.timed_us(part) for part in tables.rounds_of(trials, config).values()]
            median_us = tables.middle([tables.spread(part).median_us for part in rounds])
            row = next(table[table["config_id"] == config].itertuples())
            words = f"{tables.shape_name(row)}{f', {row.system}' if several else ''}: median {number(median_us)} µs, "
            words += f"max {multiple(max(part.max() for part in rounds) / median_us)}"
            if deadline_us:
                late, n = sum(int((part > deadline_us).sum()) for part in rounds), sum(map(len, rounds))
                words += f", deadline at {multiple(deadline_us / median_us)}: {late} of {n} late"
                deadlines.append((deadline_us / median_us, color, config))
            for part in rounds:
                ratio = np.sort(part) / median_us
                _tail(ax, ratio, color, marker, words, config)
                ratios += [ratio[0], ratio[-1]]
                counts.append(len(part))
                words = "_"
            control_ns = (controls or {}).get(config)
            if control_ns is not None and len(control_ns):
                ratio = np.sort(1 + (control_ns - np.median(control_ns)) / 1000 / median_us)
                _control(ax, ratio, marker, told, config)
                ratios.append(ratio[-1])
                told = "_"
        _prove_nothing(ax, counts)
        _tail_axes(ax, ratios, max(counts))
        for ratio, color, config in deadlines:
            if ax.get_xlim()[0] * 1.005 < ratio < ax.get_xlim()[1] / 1.005:  # the legend tells the others
                ax.axvline(ratio, **{**DEADLINE, "color": color}, gid=f"deadline:{config}")
        ax.set_ylabel("share of trials that take longer (log)")
        ax.set_xlabel("latency / median (log)")
        handles, labels = ax.get_legend_handles_labels()
        order = sorted(range(len(handles)), key=lambda place: labels[place] == CONTROL_WORDS)  # it comes last
        handles, labels = [handles[place] for place in order], [labels[place] for place in order]
        body.legend(handles, labels, loc="outside lower left", ncols=1, labelspacing=0.3)
    return picture


def _tail(ax: Axes, ratio: np.ndarray, color, marker: str, label: str, config: str) -> None:
    """The share after the last trial would be 0; its mark stands at 1/n."""
    n = len(ratio)
    ratio, above = exceedance(ratio)
    share = above / n
    share[-1] = 1 / n
    proven = share >= RULE_OF_THREE / n
    look = {"color": color, "drawstyle": "steps-post"}
    ax.plot(np.r_[ratio[0], ratio], np.r_[1.0, share], **look, linewidth=0.9, alpha=0.8, gid=f"tail:{config}")
    ax.plot(np.r_[ratio[0], ratio[proven]], np.r_[1.0, share[proven]], **look, linewidth=2.0, gid=f"proven:{config}")
    ax.plot(ratio[-1], 1 / n, color=color, marker=marker, markersize=6, label=label, gid=f"max:{config}")


def _control(ax: Axes, ratio: np.ndarray, marker: str, label: str, config: str) -> None:
    n = len(ratio)
    ratio, above = exceedance(ratio)
    share = np.maximum(above, 1) / n
    ax.plot(ratio, share, **CONTROL, drawstyle="steps-post", zorder=1.8, label=label, gid=f"control:{config}")
    end = {"marker": marker, "markersize": 6, "markerfacecolor": "white", "markeredgecolor": CONTROL["color"]}
    ax.plot(ratio[-1], 1 / n, linestyle="none", **end, zorder=1.9, gid=f"control-max:{config}")


def _prove_nothing(ax: Axes, counts: Sequence[int]) -> None:
    """One line for each length of recording; those within a fifth of another are told by the shorter one."""
    told: list[int] = []
    for n in sorted(set(counts)):
        if not told or n > 1.2 * told[-1]:
            told.append(n)
    for n in told:
        level = min(RULE_OF_THREE / n, 1.0)
        ax.axhline(level, color=GREY, linewidth=1.0, linestyle=(0, (1, 1.5)), zorder=1, gid=f"3/n:{n}")
        place = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points", "ha": "left", "va": "top"}
        ax.annotate(f"3/n at n = {n}", (0, level), (5, -2), size=9, color="0.3", **place)
    ax.axhspan(0, min(RULE_OF_THREE / told[-1], 1.0), color="0.95", zorder=0)


def _tail_axes(ax: Axes, ratios: Sequence[float], most: int) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    low, high = min(ratios), max(ratios)
    high *= (high / low) ** 0.05
    low /= (high / low) ** 0.02
    ax.xaxis.set_major_locator(FixedLocator(multiple_ticks(low, high)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{plain(value)}×"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(low, high)
    ax.set_ylim(0.6 / most, 1.4)
    ax.yaxis.set_major_locator(LogLocator(base=10, numticks=20))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: share_tick(value)))
    ax.yaxis.set_minor_locator(NullLocator())


def trials_in_order(
    trials: pd.DataFrame,
    config_id: str,
    summary: pd.DataFrame | None = None,
    round_number: int | None = None,
    deadline_us: float | None = None,
    outliers: Outliers | None = None,
) -> Picture:
    """Every trial of one round in order, in µs, and beside it how many there are at each latency.

    Warm-up is shaded, outliers (1.5 x IQR, both sides, of the trials after warm-up) coloured,
    with guides at 1.25 and 2 times the median. With `outliers`, what `examine` found in the
    samples of this configuration, clusters have colours of their own and segments are steps.
    Without `round_number` the round with the largest maximum is drawn. Warm-up trials above the
    picture are counted at its top edge. Raises `UsageError` where there are no such trials.
    """
    tables.check_deadline(deadline_us)
    rounds = tables.rounds_of(trials, config_id)
    chosen, several = "", len(rounds) > 1
    if round_number is None:
        chosen = ", the one with the largest maximum"
        round_number = max(rounds, key=lambda number: tables.timed_us(rounds[number]).max())
    if round_number not in rounds:
        raise UsageError(f"no round {round_number} of {config_id[:12]}: there is {sorted(rounds)}")
    rows = rounds[round_number]
    warm = rows["warmup"].to_numpy(dtype=bool)
    index = list(rounds).index(round_number)
    if outliers is not None and len(outliers.labels) != len(rounds):
        raise UsageError(f"the findings are of {len(outliers.labels)} rounds, {config_id[:12]} has {len(rounds)}")
    latency_us = rows["latency_ns"].to_numpy(dtype=float) / 1000
    name = f"round {round_number}"
    stretch = series_of(name, rows["trial"].to_numpy(), latency_us, warm, outliers, index)
    box = tables.spread(latency_us[~warm])
    title, note = f"Every trial in order: configuration {config_id[:12]}", ""
    if summary is not None:
        table = tables.prepare(summary[summary["config_id"] == config_id])
        title, note = f"Every trial in order: {tables.shape_name(next(table.itertuples()))}", ""
        note = tables.describe_systems(table)
    told = f" Round {round_number} of {len(rounds)} rounds{chosen}." if several else ""
    return _picture(title, [_counts(box, int(warm.sum())) + told, note], [stretch], box, deadline_us, outliers)


def group_in_order(group: Group, outliers: Outliers | None = None, deadline_us: float | None = None) -> Picture:
    """The same of all rounds of a group, one after the other; raises `UsageError` where there are no timed trials."""
    tables.check_deadline(deadline_us)
    stretches = series_of_groups(group, outliers)
    if not stretches:
        raise UsageError(f"{group.name or 'the recording'}: no trials after warm-up")
    box = tables.spread(np.concatenate([stretch.latency_us[~stretch.warm] for stretch in stretches]))
    warm = sum(int(stretch.warm.sum()) for stretch in stretches)
    title = f"Every trial in order: {group.name}" if group.name else "Every trial in order"
    rounds = f" {len(stretches)} rounds, one after the other." if len(stretches) > 1 else ""
    return _picture(title, [_counts(box, warm) + rounds], stretches, box, deadline_us, outliers)


def _counts(box: tables.Spread, warm: int) -> str:
    return (
        f"n = {box.n} after {warm} warm-up trials; median {number(box.median_us)} µs, maximum {number(box.max_us)} µs "
        f"({multiple(box.max_us / box.median_us)}); {box.outliers} of {box.n} outside 1.5 × IQR."
    )


def _picture(title, notes, stretches, box, deadline_us, outliers) -> Picture:
    with style():
        picture, body = sheet(title, notes, 3.7)
        draw_order(body, stretches, box, deadline_us, outliers)
    return picture
