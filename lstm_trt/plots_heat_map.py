"""Heat maps of a sweep: a cell a configuration, its number written in.

With a deadline the colour tells the margin, so that what is late is seen before it is
read. `heat_map` draws what was seen, `margin_map` what the trials prove.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from lstm_trt import plots_tables as tables
from lstm_trt.analysis.quantiles import interval_ranks, share_of
from lstm_trt.errors import UsageError
from lstm_trt.plots_cells import HATCH_EVIDENCE, Cell, Colors, draw_cells, short
from lstm_trt.plots_style import Picture, number, plain, whole

if TYPE_CHECKING:
    from lstm_trt.samples import Group


def heat_map(
    summary: pd.DataFrame,
    x: str = "hidden",
    y: str = "sequence",
    value: str = "max_us",
    deadline_us: float | None = None,
    fixed: dict[str, int] | None = None,
    facets: Sequence[str] = ("layers", "batch"),
) -> Picture:
    """A cell a configuration with its latency in µs written in, a panel a system and value of `facets`.

    With a deadline the colour is the margin, log2(deadline / value), and late cells are bold;
    else it is the latency on a log scale. Failures are hatched with their stage, what was not
    measured is grey. Where `facets` make more than 12 panels the last is held fixed.
    Raises `UsageError` for a column or value that is not there.
    """
    tables.check_deadline(deadline_us)
    table = tables.prepare(summary)
    if value not in table:
        raise UsageError(f"the summary has no column {value!r}")
    check_axes(table, x, y)
    name = tables.STATISTIC_NAMES.get(value, value)
    title = f"{name[0].upper()}{name[1:]} latency by {tables.AXIS_NAMES[x]} and {tables.AXIS_NAMES[y]}"
    reading = []
    if deadline_us:
        title += f", against a deadline of {number(deadline_us)} µs"
        reading.append("Colour: margin to the deadline; late cells are bold.")
    if table["round"].nunique() > 1:
        reading.append(f"Of several rounds: the {'largest' if value == 'max_us' else 'middle one'}.")

    def cell_of(rows: pd.DataFrame, colors: Colors) -> Cell:
        number_us = tables.over_rounds(rows, value)
        if not np.isfinite(number_us):
            return Cell()
        late = bool(deadline_us) and number_us > deadline_us
        return Cell((short(number_us),), colors.of(number_us), late, kind="measured")

    return draw_cells(table, (x, y), facets, fixed, value, deadline_us, title, reading, cell_of, f"{name} latency")


def check_axes(table: pd.DataFrame, x: str, y: str) -> None:
    """Raises `UsageError` where these two cannot span a map."""
    if x == y:
        raise UsageError("x and y must differ")
    for axis in (x, y):
        tables.values(table, axis)


def margin_map(
    groups: Sequence[Group],
    deadline_us: float,
    percentile: str | float | None = None,
    confidence: float = 0.95,
    x: str = "hidden",
    y: str = "sequence",
    fixed: dict[str, int] | None = None,
    facets: Sequence[str] = ("layers", "batch"),
) -> Picture:
    """What the trials prove against a deadline, a cell a configuration of this lab.

    In a cell: the exact upper bound of the percentile, an order statistic, one-sided at
    `confidence`, with what the trials are worth where they are not independent; the colour is its
    margin to the deadline. Where the bound lies beyond the maximum of the trials, the maximum is
    written after a ">". Verdicts are those of `judge`: MISSED is bold, NOT ENOUGH EVIDENCE dotted;
    failures are hatched as in `heat_map`. Without `percentile` it is, cell by cell, the highest of
    p99, p99.9, p99.99 and p99.999 that so many trials can prove.
    Raises `UsageError` where nothing of this can be drawn.
    """
    tables.check_deadline(deadline_us)
    mine = [group for group in groups if group.configuration is not None]
    if not mine:
        raise UsageError("a map needs recordings of this lab: those from elsewhere do not tell their shapes")
    rows = [_judged(group, deadline_us, percentile, confidence) for group in mine]
    machines = {row["machine"] for row in rows if row["machine"]}
    if len(machines) > 1:
        for row in rows:
            row["device_name"] += f" ({row['machine']})"
    table = tables.prepare(pd.DataFrame(rows))
    check_axes(table, x, y)
    good = tables.succeeded(table)
    asked = {words: sorted(part["n"].unique()) for words, part in good.groupby("percentile", sort=True)}
    several = [f"p{words} at n = {' or '.join(map(whole, counts))}" for words, counts in asked.items()]
    named = f"p{next(iter(asked))}" if len(asked) == 1 else "a high percentile"
    title = f"Margin to a deadline of {number(deadline_us)} µs: what the trials prove of {named}"
    reading = [f"The upper bound of {', '.join(several) or named}, exact, at {100 * confidence:g} %."]
    if percentile is None and asked:
        reading.append("It is the highest of p99, p99.9, p99.99 and p99.999 that so many trials can prove.")
    if not good.empty and good["beyond"].any():
        reading.append("After a >: the maximum; the bound lies beyond it.")
    marks = []
    if (good["verdict"] == "NOT ENOUGH EVIDENCE").any():
        label = "NOT ENOUGH EVIDENCE"
        marks.append(Patch(facecolor="white", edgecolor="0.35", hatch=HATCH_EVIDENCE, label=label))
    if (good["verdict"] == "MISSED").any():
        reading.append("Bold: MISSED.")

    def cell_of(rows: pd.DataFrame, colors: Colors) -> Cell:
        judged = tables.succeeded(rows)
        if judged.empty:
            return Cell()
        row = judged.iloc[0]
        unproven = row["verdict"] == "NOT ENOUGH EVIDENCE"
        words = (">" if row["beyond"] else "") + short(row["bound_us"])
        hatch = HATCH_EVIDENCE if unproven else None
        return Cell((words,), colors.of(row["bound_us"]), row["verdict"] == "MISSED", hatch, row["verdict"])

    return draw_cells(table, (x, y), facets, fixed, "bound_us", deadline_us, title, reading, cell_of, "bound", marks)


def map_axes(groups: Sequence[Group]) -> tuple[str, str]:
    """Two axes that span a map of these shapes: those that vary, in the order in which people ask for them."""
    shapes = [group.configuration.shape for group in groups]
    order = ("hidden", "sequence", "batch", "layers", "features", "directions")
    varied = [axis for axis in order if len({getattr(shape, axis) for shape in shapes}) > 1]
    x, y, *_ = [*varied, *(axis for axis in order if axis not in varied)]
    return x, y


def _judged(group: Group, deadline_us: float, percentile: str | float | None, confidence: float) -> dict:
    """A row as `plots_tables.prepare` has them, with the bound and the verdict."""
    from lstm_trt.analysis.deadline import evidence_percentile, judge

    configuration, options = group.configuration, group.configuration.options
    machine = next((sample.machine for sample in group.samples if sample.machine), None)
    row = {
        "config_id": f"{configuration.id} {machine}",
        "round": 0,
        "machine": machine,
        "runtime": configuration.runtime,
        "runtime_version": configuration.runtime_version,
        "device_name": configuration.device_name,
        **{name: getattr(options, name) for name in ("precision", "threads", "graph", "device_clocks")},
        **configuration.shape.as_dict(),
        "mode": configuration.mode,
        "arrival": configuration.protocol.arrival_words,
        "status": "ok",
    }
    if not group.n:
        stage = (group.failure or "").removeprefix("failed at ").split(":")[0]
        return row | {"status": "failed", "stage": stage, "bound_us": np.nan, "n": 0}
    ordered = np.sort(np.concatenate([sample.timed_ns for sample in group.samples])) / 1000
    chosen = percentile if percentile is not None else evidence_percentile(len(ordered), confidence) or "99"
    verdict = judge(group.samples, deadline_us, chosen, confidence)
    rank = _bound_rank(len(ordered), chosen, confidence, verdict.effective_n / verdict.n)
    return row | {
        "n": len(ordered),
        "percentile": plain(float(chosen)),
        "bound_us": float(ordered[-1 if rank is None else rank - 1]),
        "beyond": rank is None,
        "verdict": verdict.verdict,
    }


def _bound_rank(n: int, percentile: str | float, confidence: float, worth: float) -> int | None:
    """Rank of the order statistic that is the upper bound of n trials, each worth so much; None where there is none."""
    effective_n = max(1, math.floor(n * worth + 1e-9))
    # A two-sided interval at 2c - 1 leaves 1 - c above it: the bound that the verdict rests on.
    rank = interval_ranks(effective_n, share_of(percentile), 2 * confidence - 1)[1]
    return None if rank is None else n - math.floor((effective_n - rank) / worth + 1e-9)
