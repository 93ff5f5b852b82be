"""Pictures of single trials: the tails of a few configurations, and one configuration in order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from lstm_trt import plots_tables as tables
from lstm_trt.errors import UsageError
from lstm_trt.plots_style import (
    DEADLINE,
    GREY,
    MARKERS,
    Picture,
    guide,
    kind_colors,
    log_ticks,
    multiple,
    number,
    plain,
    sheet,
    style,
)

GUIDES = (1.25, 2.0)
OUTLIER_COLOR, BODY_COLOR = "#d55e00", "#0173b2"
#: With no event in n trials its share may still be 3/n, at 95 %.
RULE_OF_THREE = 3.0
#: Trials in order are few multiples apart: from this ratio on the body would be a line on a linear axis.
LOG_FROM = 6


def tails(
    trials: pd.DataFrame, summary: pd.DataFrame, configs: Sequence[str], deadline_us: float | None = None
) -> Picture:
    """Share of trials that take longer than a multiple of the median; log-log, a line a configuration.

    `configs` are config_ids. Each line is 1 - ECDF of the trials after warm-up, a step at each
    trial, ended by a mark at the maximum (at 1/n). Below 3/n a line is thin: with no event in
    n trials its share may still be 3/n at 95 % (rule of three). Several rounds are lines of one
    colour, all divided by the median of the middle round. A dashed line stands where
    `deadline_us` is on a configuration's own scale, with the number of late trials in the
    legend. Raises `UsageError` for a configuration without trials.
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
        _prove_nothing(ax, counts)
        _tail_axes(ax, ratios, max(counts))
        for ratio, color, config in deadlines:
            if ax.get_xlim()[0] * 1.005 < ratio < ax.get_xlim()[1] / 1.005:  # the legend tells the others
                ax.axvline(ratio, **{**DEADLINE, "color": color}, gid=f"deadline:{config}")
        ax.set_ylabel("share of trials that take longer (log)")
        ax.set_xlabel("latency / median (log)")
        body.legend(loc="outside lower left", ncols=1, labelspacing=0.3)
    return picture


def _tail(ax: Axes, ratio: np.ndarray, color, marker: str, label: str, config: str) -> None:
    """`ratio` ascending. The share after the last trial would be 0; its mark stands at 1/n."""
    n = len(ratio)
    share = (n - np.arange(1, n + 1)) / n
    share[-1] = 1 / n
    proven = share >= RULE_OF_THREE / n
    look = {"color": color, "drawstyle": "steps-post"}
    ax.plot(np.r_[ratio[0], ratio], np.r_[1.0, share], **look, linewidth=0.9, alpha=0.8, gid=f"tail:{config}")
    ax.plot(np.r_[ratio[0], ratio[proven]], np.r_[1.0, share[proven]], **look, linewidth=2.0, gid=f"proven:{config}")
    ax.plot(ratio[-1], 1 / n, color=color, marker=marker, markersize=6, label=label, gid=f"max:{config}")


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
    steps = (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000)
    kept: list[float] = []
    for value in sorted(steps, key=lambda value: value not in (1, 1.25, 2, 10, 100)):
        if low <= value <= high and all(abs(np.log(value / other)) > 0.05 * np.log(high / low) for other in kept):
            kept.append(value)
    ax.xaxis.set_major_locator(FixedLocator(sorted(kept)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{plain(value)}×"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(low, high)
    ax.set_ylim(0.6 / most, 1.4)
    ax.yaxis.set_major_locator(LogLocator(base=10, numticks=20))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10f}".rstrip("0").rstrip(".")))
    ax.yaxis.set_minor_locator(NullLocator())


def trials_in_order(
    trials: pd.DataFrame,
    config_id: str,
    summary: pd.DataFrame | None = None,
    round_number: int | None = None,
    deadline_us: float | None = None,
) -> Picture:
    """Every trial of one round in order, in µs, and beside it how many there are at each latency.

    Warm-up is shaded, outliers (1.5 x IQR, both sides, of the trials after warm-up) coloured,
    with guides at 1.25 and 2 times the median. Without `round_number` the round with the
    largest maximum is drawn. Warm-up trials above the picture are counted at its top edge.
    Raises `UsageError` where there are no such trials.
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
    box = tables.spread(tables.timed_us(rows))
    warm = rows["warmup"].to_numpy(dtype=bool)
    index, latency_us = rows["trial"].to_numpy(), rows["latency_ns"].to_numpy(dtype=float) / 1000
    title, note = f"Every trial in order: configuration {config_id[:12]}", ""
    if summary is not None:
        table = tables.prepare(summary[summary["config_id"] == config_id])
        row = next(table.itertuples())
        title, note = f"Every trial in order: {tables.shape_name(row)}", tables.describe_systems(table)
    with style():
        picture, body = sheet(
            title,
            [
                f"n = {box.n} after {int(warm.sum())} warm-up trials; median {number(box.median_us)} µs, maximum "
                f"{number(box.max_us)} µs ({multiple(box.max_us / box.median_us)}); {box.outliers} of {box.n} outside "
                f"1.5 × IQR." + (f" Round {round_number} of {len(rounds)} rounds{chosen}." if several else ""),
                note,
            ],
            3.7,
        )
        ax, side = body.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": (5, 1)})
        _order(ax, index, latency_us, warm, box)
        _scale(ax, latency_us, warm, box, deadline_us)
        _histogram(side, box, ax)
        for ratio in GUIDES:
            if ratio * box.median_us < ax.get_ylim()[1]:
                guide([ax, side], ratio * box.median_us, f"{ratio:g}×", gid=f"guide:{ratio:g}")
        if deadline_us and ax.get_ylim()[0] < deadline_us < ax.get_ylim()[1]:
            for one in (ax, side):
                one.axhline(deadline_us, label=f"deadline {number(deadline_us)} µs", gid="deadline", **DEADLINE)
        ax.set_xlabel("trial")
        handles, labels = ax.get_legend_handles_labels()
        body.legend(handles, labels, loc="outside lower left", ncols=5, markerscale=2, columnspacing=1.5)
    return picture


def _order(ax: Axes, index: np.ndarray, latency_us: np.ndarray, warm: np.ndarray, box: tables.Spread) -> None:
    edges = np.flatnonzero(np.diff(np.r_[0, warm.astype(int), 0]))
    shade = {"color": "0.88", "zorder": 0, "linewidth": 0, "gid": "warm-up"}
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        ax.axvspan(index[first] - 0.5, index[last - 1] + 0.5, label="warm-up" if first == edges[0] else "_", **shade)
    small = {"linestyle": "none", "marker": ".", "markeredgewidth": 0, "markersize": 3 if len(index) < 20_000 else 1.5}
    large = {**small, "markersize": small["markersize"] + 2}
    timed, inside, outside = index[~warm], ~box.is_outlier, box.is_outlier
    ax.plot(index[warm], latency_us[warm], color="0.4", gid="before", **large)
    ax.plot(timed[inside], box.latency_us[inside], color=BODY_COLOR, label="trial", gid="body", **small)
    ax.plot(timed[outside], box.latency_us[outside], color=OUTLIER_COLOR, label="outlier", gid="outliers", **large)
    span = max(index[-1] - index[0], 1)
    ax.set_xlim(index[0] - 0.01 * span - 0.5, index[-1] + 0.01 * span + 0.5)


def _scale(ax: Axes, latency_us: np.ndarray, warm: np.ndarray, box: tables.Spread, deadline_us: float | None) -> None:
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
    above, below = latency_us[warm & (latency_us > top)], latency_us[warm & (latency_us < bottom)]
    words = []
    if len(above):
        words.append(f"▲ {len(above)} of {warm.sum()} warm-up trials above, up to {number(above.max())} µs")
    if len(below):
        words.append(f"▼ {len(below)} of {warm.sum()} warm-up trials below, from {number(below.min())} µs")
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
