"""One page on the late answers of a configuration: where they lie, how many, when, and what coincides with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lstm_trt import plots_tables as tables
from lstm_trt.analysis.quantiles import CONFIDENCE
from lstm_trt.errors import UsageError
from lstm_trt.plots_order import draw_order
from lstm_trt.plots_page import (
    PAGES,
    TAIL_TO_CARD,
    card_height_in,
    draw_card,
    facts,
    fold_rows,
    page_tail,
    write_pages,
)
from lstm_trt.plots_stretches import stretches_of
from lstm_trt.plots_style import Picture, multiple, number, percent, sheet, style, whole

if TYPE_CHECKING:
    from lstm_trt.analysis.causes import Cause
    from lstm_trt.analysis.outliers_values import Cluster, Outliers, Tail
    from lstm_trt.samples import Group


def outliers_page(group: Group, outliers: Outliers) -> Picture:
    """Tail with the control run, what each cluster is, and every trial in order; `outliers` is `examine` of the group.

    Raises `UsageError` where there are no trials after warm-up.
    """
    stretches = stretches_of(group, outliers)
    if not stretches:
        raise UsageError(f"{group.name or 'the recording'}: no trials after warm-up")
    box = tables.spread(np.concatenate([stretch.latency_us[~stretch.warm] for stretch in stretches]))
    rows = card_rows(outliers)
    middle_in, low_in = max(3.55, card_height_in(rows)), 3.5
    with style():
        title = f"The late answers of {group.name}" if group.name else "The late answers"
        picture, body = sheet(title, facts(group), middle_in + low_in)
        middle, low = body.subfigures(2, 1, height_ratios=(middle_in, low_in))
        left, right = middle.subfigures(1, 2, width_ratios=TAIL_TO_CARD)
        page_tail(left, group, outliers, box.median_us, CONFIDENCE)
        draw_card(right, rows, middle_in)
        draw_order(low, stretches, box, None, outliers)
    return picture


def card_rows(outliers: Outliers) -> list[tuple[str, str]]:
    """(name, value), a heading where there is no value."""
    rows = [("Outliers", ""), (f"of n = {whole(outliers.n)}", whole(outliers.outliers))]
    rows += [("as a share", percent(outliers.outliers / outliers.n)), ("steady state", outliers.steady_state)]
    for cluster in outliers.clusters:
        low, high = percent(cluster.share_low).removesuffix(" %"), percent(cluster.share_high)
        rows += [
            (f"Cluster at {multiple(cluster.multiplier)}", ""),
            ("trials", f"{whole(cluster.count)}, {low} to {high}"),
        ]
        rows += _when_and_why(cluster, outliers)
    if outliers.tail is not None:
        tail = outliers.tail
        rows += [("Tail", ""), ("trials", f"{whole(tail.count)}, {percent(tail.share)}")]
        rows.append(("from", f"{multiple(tail.start)} to {multiple(tail.stop)}"))
        rows += fold_rows("shape", tail.shape.split(",")[0])
        rows += _when_and_why(tail, outliers)
    return rows


def _when_and_why(late: Cluster | Tail, outliers: Outliers) -> list[tuple[str, str]]:
    if outliers.period_by is None:
        return []
    period = "none seen" if late.period_ms is None else f"{number(late.period_ms)} ms"
    return [("period", period), *fold_rows("comes with", causes_words(late, outliers))]


def causes_words(late: Cluster | Tail, outliers: Outliers) -> str:
    """`minor page faults (odds 12×)`, how much likelier than in the body; `in part` of few trials; or unexplained."""
    if not outliers.causes_counted:
        return "nothing was counted"
    return ", ".join(_cause_words(cause) for cause in late.causes) or "unexplained"


def _cause_words(cause: Cause) -> str:
    from lstm_trt.analysis.outliers_words import MOSTLY, NAMES

    if cause.by == "control":
        return "the machine's own noise (control run)"
    told = NAMES.get(cause.name, cause.name.replace("_", " "))
    odds = f"odds\u00a0{number(cause.odds_ratio)}×"
    if cause.share >= MOSTLY:
        return f"{told} ({odds})"
    return f"in part {told} ({percent(cause.share)} of these, {odds})"


def draw_outliers(groups: Sequence[Group], findings: Sequence[Outliers], folder: str | Path) -> list[Path]:
    """Write a page a configuration as `outliers-*.png`; returns the paths.

    Of more than 12 those have a page that have the largest maximum over their median. Raises
    `UsageError` where the folder cannot be written.
    """

    def page(group: Group, outliers: Outliers) -> Callable[[], Picture]:
        return lambda: outliers_page(group, outliers)

    def reach(pair: tuple[Group, Outliers]) -> float:
        timed = np.concatenate([sample.timed_ns for sample in pair[0].samples])
        return -float(timed.max() / np.median(timed))

    pairs = [pair for pair in zip(groups, findings, strict=True) if pair[0].n]
    pairs = sorted(pairs, key=reach)[:PAGES] if len(pairs) > PAGES else pairs
    return write_pages("outliers", [(group.name, page(group, outliers)) for group, outliers in pairs], folder)
