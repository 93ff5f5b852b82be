"""Pictures of a sweep: (table) -> figure, one function a picture, and one that draws what fits.

`summary` has one row a configuration and round, `trials` one a trial; their columns stand
in `lstm_trt.plots_tables` and the README of `data/`. Figures are made without pyplot and
show themselves in Jupyter. Rounds and systems (runtime, version, device, precision,
threads) are never averaged.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from lstm_trt.plots import tables
from lstm_trt.plots.boxes import box_plots
from lstm_trt.plots.curves import curves
from lstm_trt.plots.heat_map import heat_map
from lstm_trt.plots.runtimes import runtimes
from lstm_trt.plots.style import Picture, sheet, style, write_pictures
from lstm_trt.plots.trials import tails, trials_in_order

TAILS = 6

FAILURE_LINES = 25


def draw_sweep(
    summary: pd.DataFrame, trials: pd.DataFrame, folder: Path, deadline_us: float | None = None
) -> list[Path]:
    """Draw the pictures that the tables support into `folder` as `sweep-*.png`; returns their paths.

    Curves and box plots for every axis with more than one value, a heat map for two such axes,
    runtimes where there are several systems, tails of up to 6 configurations and the trials in
    order of the one with the largest maximum / median; failures where nothing succeeded. Each
    file appears whole or not at all; other files are left alone. Raises `UsageError` where the
    tables cannot be drawn or the folder not be written.
    """
    tables.check_deadline(deadline_us)
    table = tables.prepare(summary)
    plan = _plan(table, summary, trials, deadline_us)
    return write_pictures({f"sweep-{name}.png": draw for name, draw in plan.items()}, folder)


def _plan(table, summary, trials, deadline_us) -> dict[str, Callable[[], Picture]]:
    """Name of each picture -> how to draw it."""
    if tables.succeeded(table).empty:
        return {"failures": lambda: failures(summary)}
    axes = tables.varied(table)
    plan: dict[str, Callable[[], Picture]] = {}
    for axis in axes:
        plan[f"latency-by-{axis}"] = lambda axis=axis: curves(summary, axis, deadline_us=deadline_us)
    pair = [axis for axis in ("hidden", "sequence", "batch", "layers", "features", "directions") if axis in axes][:2]
    if len(pair) == 2:
        plan["heat-map"] = lambda: heat_map(summary, *pair, deadline_us=deadline_us)
    if len(tables.systems(table)) > 1:
        plan["runtimes"] = lambda: runtimes(summary, deadline_us=deadline_us)
    good = tables.succeeded(table)
    recorded = good[good["config_id"].isin(tables.recorded(trials))]
    for axis in axes:
        if tables.hold_fixed(table, (axis,))["config_id"].isin(recorded["config_id"]).any():
            plan[f"boxes-by-{axis}"] = lambda axis=axis: box_plots(trials, summary, axis)
    if len(recorded):
        chosen = choose_tails(recorded)
        plan["tails"] = lambda: tails(trials, summary, chosen, deadline_us=deadline_us)
        plan["trials"] = lambda: trials_in_order(trials, chosen[0], summary, deadline_us=deadline_us)
    return plan


def choose_tails(table: pd.DataFrame, most: int = TAILS) -> list[str]:
    """config_ids: first that with the largest maximum / median, then others evenly by their median."""
    best = table.groupby("config_id").agg(median_us=("median_us", "min"), max_us=("max_us", "max"))
    best = best.sort_values("median_us", kind="stable")
    worst = (best["max_us"] / best["median_us"]).idxmax()
    rest = [config for config in best.index if config != worst]
    places = np.unique(np.linspace(0, len(rest) - 1, min(most - 1, len(rest))).round().astype(int)) if rest else []
    return [worst, *(rest[place] for place in places)]


def failures(summary: pd.DataFrame) -> Picture:
    """What failed, at which stage and why, as lines of text; the first 25, and how many more."""
    table = tables.failed(tables.prepare(summary)).drop_duplicates("config_id")
    stages = Counter(tables.stage_of(row) for row in table.itertuples())
    lines = []
    for row in table.head(FAILURE_LINES).itertuples():
        reason = getattr(row, "reason", None)
        why = f": {reason}" if isinstance(reason, str) and reason else ""
        text = f"{tables.shape_name(row)} on {row.system}, {tables.stage_of(row)}{why}"
        lines.append(textwrap.shorten(text, 125, placeholder=" …"))
    if len(table) > FAILURE_LINES:
        lines.append(f"and {len(table) - FAILURE_LINES} more")
    told = ", ".join(f"{stage} {count}" for stage, count in stages.most_common())
    title = "No configuration succeeded" if tables.succeeded(summary).empty else "What failed"
    with style():
        notes = [f"{len(table)} failed, by stage: {told}", tables.describe_systems(table)] if len(table) else []
        picture, body = sheet(title, notes, 0.3 + 0.2 * max(len(lines), 1))
        body.text(0.012, 0.97, "\n".join(lines) or "Nothing failed.", va="top", ha="left", size=9, linespacing=1.5)
    return picture
