"""One page that an engineer shows at a review: does this network answer in time, how sure is that, what is late.

The verdict in words stands first, then the tail against the deadline beside the numbers that a
control engineer asks for, then every trial in order.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Rectangle

from lstm_trt import plots_tables as tables
from lstm_trt.plots_heat_map import map_axes, margin_map
from lstm_trt.plots_order import draw_order
from lstm_trt.plots_outliers import draw_outliers
from lstm_trt.plots_page import (
    PAGES,
    TAIL_TO_CARD,
    card_height_in,
    draw_card,
    facts,
    page_tail,
    write_pages,
)
from lstm_trt.plots_stretches import stretches_of
from lstm_trt.plots_style import WIDTH_IN, Picture, number, percent, sheet, style, whole
from lstm_trt.plots_tail import Judged, share_tick

if TYPE_CHECKING:
    from lstm_trt.analysis.deadline import Verdict
    from lstm_trt.analysis.outliers_values import Outliers
    from lstm_trt.samples import Group

__all__ = ["deadline_page", "draw_outliers", "draw_verdicts"]

#: Blue and vermilion are told apart by everybody; what is not known has no colour.
VERDICT_COLORS = {"MET": "#0173b2", "MISSED": "#d55e00", "NOT ENOUGH EVIDENCE": "0.35"}
BADGE_IN = 1.75
SENTENCE_WIDTH = int((WIDTH_IN - BADGE_IN - 0.45) * 13.2)


def deadline_page(group: Group, verdict: Verdict, outliers: Outliers | None = None) -> Picture:
    """One page: verdict, tail with deadline and evidence line, (m, k) card, trials in order.

    `verdict` is `judge` of the group's samples, `outliers` what `quick` or `examine` found in
    them. A group without trials gives a page with the verdict and the reason.
    """
    from lstm_trt.analysis.deadline_words import sentence

    stretches = stretches_of(group, outliers)
    title = f"Does {group.name or 'this recording'} answer within {number(verdict.deadline_us)} µs?"
    lines = textwrap.wrap(re.sub(r"\bus\b", "µs", sentence(verdict)), SENTENCE_WIDTH)
    band_in = max(0.68, 0.185 * len(lines) + 0.2)
    rows = card_rows(verdict)
    middle_in, low_in = max(3.55, card_height_in(rows)), 3.3
    with style():
        if not stretches:
            picture, body = sheet(title, facts(group), band_in)
            _band(body, verdict.verdict, lines, band_in)
            return picture
        picture, body = sheet(title, facts(group), band_in + middle_in + low_in)
        band, middle, low = body.subfigures(3, 1, height_ratios=(band_in, middle_in, low_in))
        _band(band, verdict.verdict, lines, band_in)
        left, right = middle.subfigures(1, 2, width_ratios=TAIL_TO_CARD)
        box = tables.spread(np.concatenate([stretch.latency_us[~stretch.warm] for stretch in stretches]))
        asked = Judged(verdict.deadline_us, 1 - verdict.percentile / 100)
        worth = min(1.0, verdict.effective_n / verdict.n)
        page_tail(left, group, outliers, box.median_us, verdict.confidence, asked, worth)
        draw_card(right, rows, middle_in)
        draw_order(low, stretches, box, verdict.deadline_us, outliers)
    return picture


def _band(part, word: str, lines: Sequence[str], height_in: float) -> None:
    """The verdict as a colour and a word, and what it rests on beside it."""
    left, width, gap = 0.1 / WIDTH_IN, BADGE_IN / WIDTH_IN, 0.07 / height_in
    look = {"facecolor": VERDICT_COLORS[word], "linewidth": 0, "gid": "badge"}
    part.add_artist(Rectangle((left, gap), width, 1 - 2 * gap, transform=part.transSubfigure, **look))
    center = {"ha": "center", "va": "center", "weight": "bold", "color": "white", "gid": "verdict"}
    part.text(left + width / 2, 0.5, "\n".join(textwrap.wrap(word, 12)), size=15 if len(word) < 10 else 12, **center)
    beside = {"size": 10, "va": "center", "linespacing": 1.25, "gid": "sentence"}
    part.text(left + width + 0.15 / WIDTH_IN, 0.5, "\n".join(lines), **beside)


def card_rows(verdict: Verdict) -> list[tuple[str, str]]:
    """The numbers beside the tail: (name, value); a name without value is a heading."""
    from lstm_trt.analysis.deadline_words import certified

    card, n = verdict.card, verdict.n
    if card is None:
        return []
    rows = [("Late trials, the (m, k) card", ""), (f"of n = {whole(n)}", whole(verdict.misses))]
    for k, worst in card.worst_in.items():
        rows.append((f"most of any {k} in a row", "–" if worst is None else whole(worst)))
    rows.append(("longest run", whole(card.longest_run)))
    rows += [("Share of trials that are late", ""), ("seen", percent(card.p_miss))]
    again = card.p_miss_after_miss
    rows.append(("seen after a late one", "–" if again is None else percent(again)))
    sure = f"{100 * verdict.confidence:g} %"
    rows += [(f"at least, at {sure}", percent(verdict.miss_rate_low))]
    rows += [(f"at most, at {sure}", percent(verdict.miss_rate_high))]
    rows.append(("allowed", f"{share_tick(100 - verdict.percentile)} %"))
    rows += [("Maximum", ""), (f"of n = {whole(n)}", f"{number(verdict.max_us)} µs")]
    rows.append(("with warm-up", f"{number(verdict.max_with_warmup_us)} µs"))
    if len(verdict.max_us_rounds) > 1:
        low, high = min(verdict.max_us_rounds), max(verdict.max_us_rounds)
        rows.append(("of each round", f"{number(low)} to {number(high)} µs"))
    rows += [("Evidence", ""), ("proven to be in time", f"{certified(verdict.certifies)} %")]
    if verdict.effective_n < n:
        rows.append((f"{whole(n)} trials are worth", whole(verdict.effective_n)))
    if verdict.verdict == "NOT ENOUGH EVIDENCE" and verdict.trials_needed is not None:
        rows.append(("fresh trials needed", whole(verdict.trials_needed)))
    if verdict.drift:
        rows.append(("drift of the body", f"{100 * verdict.drift:+.2g} %"))
    return rows


def draw_verdicts(groups: Sequence[Group], verdicts: Sequence[Verdict], folder: str | Path) -> list[Path]:
    """Write a page a configuration as `verdict-*.png`, and the margin map where there are several; returns the paths.

    Of more than 12 those have a page that are nearest to a miss, or beyond it; the map has all. It
    is drawn for the percentile of the verdicts, and where the trials allow another one, for that
    too. Raises `UsageError` where the folder cannot be written.
    """
    from lstm_trt.analysis.outliers import quick

    def page(group: Group, verdict: Verdict) -> Callable[[], Picture]:
        return lambda: deadline_page(group, verdict, quick(group.samples) if group.n else None)

    pairs = sorted(zip(groups, verdicts, strict=True), key=lambda pair: _place(pair[1]))[:PAGES]
    paths = write_pages("verdict", [(group.name, page(group, verdict)) for group, verdict in pairs], folder)
    mine = [group for group in groups if group.configuration is not None]
    if len({group.configuration.workload for group in mine}) < 2:
        return paths
    first, (x, y) = verdicts[0], map_axes(mine)

    def margins(percentile: str | None) -> Callable[[], Picture]:
        return lambda: margin_map(mine, first.deadline_us, percentile, first.confidence, x, y)

    asked = share_tick(first.percentile)
    maps = [(f"margin-p{asked}", margins(asked))]
    if any(_highest(group, first.confidence) not in (asked, None) for group in mine if group.n):
        maps.append(("margin-proven", margins(None)))
    return paths + write_pages("verdict", maps, folder)


def _highest(group: Group, confidence: float) -> str | None:
    from lstm_trt.analysis.deadline import evidence_percentile

    return evidence_percentile(group.n, confidence)


def _place(verdict: Verdict) -> tuple:
    """MISSED first, then what is not known, then MET; the largest maximum first among each."""
    order = ("MISSED", "NOT ENOUGH EVIDENCE", "MET").index(verdict.verdict)
    return order, -(verdict.max_us or 0.0)
