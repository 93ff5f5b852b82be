"""Pictures of single trials: the tails of a few configurations, and one configuration in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from lstm_trt import plots_tables as tables
from lstm_trt.errors import UsageError
from lstm_trt.plots_order import draw_order
from lstm_trt.plots_stretches import stretch_of, stretches_of
from lstm_trt.plots_style import DEADLINE, GREY, MARKERS, Picture, kind_colors, multiple, number, plain, sheet, style
from lstm_trt.plots_tail import CONTROL, exceedance, multiple_ticks, share_tick

if TYPE_CHECKING:
    from lstm_trt.analysis.outliers_values import Outliers
    from lstm_trt.samples import Group

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
    stretch = stretch_of(name, rows["trial"].to_numpy(), latency_us, warm, outliers, index)
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
    stretches = stretches_of(group, outliers)
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
