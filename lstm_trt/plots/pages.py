"""What the pages of one configuration have in common: facts under the title, the tail, a card of numbers.

One page on the late answers of a configuration: where they lie, how many, when, and what coincides with them.

One page that an engineer shows at a review: does this network answer in time, how sure is that, what is late.

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
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from lstm_trt.analysis.quantiles import DEFAULT_CONFIDENCE
from lstm_trt.analysis.text import causes_text
from lstm_trt.config.errors import UsageError
from lstm_trt.plots import tables
from lstm_trt.plots.heat_map import map_axes, margin_map
from lstm_trt.plots.style import WIDTH_IN, Picture, multiple, number, percent, sheet, style, whole, write_pictures
from lstm_trt.plots.tail import Judged, draw_tail, share_tick
from lstm_trt.plots.trials import cluster_looks, draw_order, series_of_groups

if TYPE_CHECKING:
    from lstm_trt.analysis.deadline import Verdict
    from lstm_trt.analysis.outliers import Cluster, Outliers, Tail
    from lstm_trt.store.samples import Group


CARD_LINE_IN = 0.182

#: Share of the width that the tail has beside the card.
TAIL_TO_CARD = (2.75, 1)

#: Characters of a value that a card's line has room for, and of the whole line.
CARD_VALUE = 34

#: Pages that one command writes at most.
PAGES = 12

LEGEND = ("tail", "round", "band", "late", "control")


def facts(group: Group) -> list[str]:
    """What was measured, where and how, as notes under a title."""
    samples = [sample for sample in group.samples if len(sample.timed_ns)]
    first, configuration = (samples or [None])[0], group.configuration
    notes = []
    if samples:
        counts = f"n = {whole(group.n)} trial{'s' if group.n != 1 else ''} after warm-up"
        counts += f" in {len(samples)} rounds, each a process of its own" if len(samples) > 1 else ""
        largest = max(float(sample.timed_ns.max()) for sample in samples) / 1000
        counts += f"; maximum {number(largest)} µs"
        if first.floor_us:
            counts += f"; floor {number(first.floor_us)} µs, what arithmetic and weight traffic need on this machine"
        notes.append(counts + ".")
    if configuration is not None:
        options = configuration.options
        threads = "1 thread" if options.threads == 1 else f"{options.threads} threads"
        words = f"{configuration.runtime} {configuration.runtime_version} ({options.precision}, {threads}) on "
        words += f"{configuration.device_name}; arrivals: {configuration.protocol.arrival_words}"
        notes.append(words)
    elif group.group:
        notes.append(", ".join(f"{key} {value}" for key, value in group.group.items()))
    if first is not None and (first.machine or first.versions):
        told = None if configuration is None else configuration.runtime  # its version stands above
        versions = [f"{name} {version}" for name, version in first.versions.items() if name != told]
        notes.append(", ".join(([f"machine {first.machine}"] if first.machine else []) + versions))
    return notes


def page_tail(
    part,
    group: Group,
    outliers: Outliers | None,
    median_us: float,
    confidence: float,
    asked: Judged | None = None,
    worth: float = 1.0,
) -> None:
    """The tail of all rounds with its legend below."""
    ax = part.subplots()
    samples = [sample for sample in group.samples if len(sample.timed_ns)]
    control = [sample.control_ns for sample in samples if sample.control_ns is not None and len(sample.control_ns)]
    clusters = () if outliers is None else outliers.clusters
    draw_tail(
        ax,
        [sample.timed_ns / 1000 for sample in samples],
        median_us=median_us,
        confidence=confidence,
        asked=asked,
        control_us=np.concatenate(control) / 1000 if control else None,
        clusters=clusters,
        looks=cluster_looks(len(clusters)),
        worth=worth,
    )
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(handles)), key=lambda place: LEGEND.index(handles[place].get_gid().split(":")[0]))
    handles, labels = [handles[place] for place in order], [labels[place] for place in order]
    part.legend(handles, labels, loc="outside lower left", ncols=2, columnspacing=1.2, labelspacing=0.3)


def card_height_in(rows: Sequence[tuple[str, str]]) -> float:
    """What `draw_card` needs."""
    headings = sum(not value for _, value in rows)
    return CARD_LINE_IN * (len(rows) + 0.35 * max(headings - 1, 0) + 0.9)


def draw_card(part, rows: Sequence[tuple[str, str]], height_in: float) -> None:
    """A small table: (name, value); a row without value is a heading. Lines at one distance, from the top."""
    place = height_in - 0.12
    for index, (name, value) in enumerate(rows):
        heading = not value
        place -= CARD_LINE_IN * (1.35 if heading and index else 1)
        level = place / height_in
        part.text(0.02, level, name, size=9, weight="bold" if heading else "normal", color="0.1" if heading else "0.3")
        part.text(0.97, level, value, size=9, ha="right", gid=f"card:{name}")
        if heading:
            under = (place - 0.05) / height_in
            part.add_artist(Line2D([0.02, 0.97], [under, under], color="0.75", linewidth=0.8))


def fold_rows(name: str, value: str) -> list[tuple[str, str]]:
    """A row, or several where the value is too long to stand beside its name."""
    room = CARD_VALUE - len(name)
    if len(value) <= room:
        return [(name, value)]
    return [(name, "\u2009"), *(("", line) for line in textwrap.wrap(value, CARD_VALUE))]


def write_pages(kind: str, pages: Sequence[tuple[str, Callable[[], Picture]]], folder: str | Path) -> list[Path]:
    """Write pages as `<kind>-<name>.png`; pages of one name are numbered."""
    files: dict[str, Callable[[], Picture]] = {}
    for name, draw in pages:
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", name.replace("µ", "u")).strip("-.")[:80]
        stem = "-".join(filter(None, (kind, slug)))
        file, number = f"{stem}.png", 1
        while file in files:
            number += 1
            file = f"{stem}-{number}.png"
        files[file] = draw
    return write_pictures(files, folder)


def outliers_page(group: Group, outliers: Outliers) -> Picture:
    """Tail with the control run, what each cluster is, and every trial in order; `outliers` is `examine` of the group.

    Raises `UsageError` where there are no trials after warm-up.
    """
    stretches = series_of_groups(group, outliers)
    if not stretches:
        raise UsageError(f"{group.name or 'the recording'}: no trials after warm-up")
    box = tables.spread(np.concatenate([stretch.latency_us[~stretch.warm] for stretch in stretches]))
    rows = outlier_card_rows(outliers)
    middle_in, low_in = max(3.55, card_height_in(rows)), 3.5
    with style():
        title = f"The late answers of {group.name}" if group.name else "The late answers"
        picture, body = sheet(title, facts(group), middle_in + low_in)
        middle, low = body.subfigures(2, 1, height_ratios=(middle_in, low_in))
        left, right = middle.subfigures(1, 2, width_ratios=TAIL_TO_CARD)
        page_tail(left, group, outliers, box.median_us, DEFAULT_CONFIDENCE)
        draw_card(right, rows, middle_in)
        draw_order(low, stretches, box, None, outliers)
    return picture


def outlier_card_rows(outliers: Outliers) -> list[tuple[str, str]]:
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
    return [("period", period), *fold_rows("comes with", causes_text(late, outliers))]


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


#: Blue and vermilion are told apart by everybody; what is not known has no colour.
VERDICT_COLORS = {"MET": "#0173b2", "MISSED": "#d55e00", "NOT ENOUGH EVIDENCE": "0.35"}

BADGE_IN = 1.75

SENTENCE_WIDTH = int((WIDTH_IN - BADGE_IN - 0.45) * 13.2)


def deadline_page(group: Group, verdict: Verdict, outliers: Outliers | None = None) -> Picture:
    """One page: verdict, tail with deadline and evidence line, (m, k) card, trials in order.

    `verdict` is `judge` of the group's samples, `outliers` what `quick` or `examine` found in
    them. A group without trials gives a page with the verdict and the reason.
    """
    from lstm_trt.analysis.text import sentence

    stretches = series_of_groups(group, outliers)
    title = f"Does {group.name or 'this recording'} answer within {number(verdict.deadline_us)} µs?"
    lines = textwrap.wrap(re.sub(r"\bus\b", "µs", sentence(verdict)), SENTENCE_WIDTH)
    band_in = max(0.68, 0.185 * len(lines) + 0.2)
    rows = verdict_card_rows(verdict)
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


def verdict_card_rows(verdict: Verdict) -> list[tuple[str, str]]:
    """The numbers beside the tail: (name, value); a name without value is a heading."""
    from lstm_trt.config.format import percent_certified

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
    rows += [("Evidence", ""), ("proven to be in time", f"{percent_certified(verdict.certifies)} %")]
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
