"""Report pages of one configuration: latency tail, a small table of numbers, and all trials in
order.

`verdict_page` shows whether the network meets a deadline, and with what confidence; `outliers_page`
shows its slow trials: latency, number, timing, and coinciding events.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from lstm_judge.outcomes import Outcome
from lstm_judge.outliers.answer import Cluster, Outliers, Tail
from lstm_judge.outliers.search import search_outliers
from lstm_judge.outliers.text import causes_text, outliers_line
from lstm_judge.plots import points as data, style
from lstm_judge.plots.heatmap import BOUND, heat_map, map_axes
from lstm_judge.plots.over_time import timeline
from lstm_judge.plots.style import (
    THIN_SPACE,
    Draw,
    Picture,
    count,
    multiple,
    number,
    percent,
    whole,
)
from lstm_judge.plots.tail import draw_tail
from lstm_judge.plots.trials import calls_of, draw_order
from lstm_judge.read.numbers import percent_certified
from lstm_judge.read.rounds import Group
from lstm_judge.read.runs import Runs, as_runs
from lstm_judge.statistics.trials import Trials, timed_rounds
from lstm_judge.verdict.answer import Verdict
from lstm_judge.verdict.text import sentence
from lstm_judge.verdict.verdict import evidence_percentile
from lstm_trt.config.format import percent_number, short_number

TABLE_LINE_IN = 0.182

#: Height of the trials in order.
ORDER_IN = 3.4

#: Width ratio of tail and table.
TAIL_TO_TABLE = (2.75, 1)

#: Characters per line of the table.
TABLE_WIDTH = 34

#: Maximum number of pages that one command writes.
PAGES = 12

#: Blue and vermilion are safe for the colour-blind; grey if there is no decision.
VERDICT_COLORS = {
    Outcome.MET: "#0173b2",
    Outcome.MISSED: "#d55e00",
    Outcome.NOT_ENOUGH_EVIDENCE: "0.35",
}

BADGE_IN = 1.75

SENTENCE_WIDTH = int((style.WIDTH_IN - BADGE_IN - 0.45) * 13.2)

#: Rows of the table beside the tail: (name, value); a row without a value is a heading.
Rows = list[tuple[str, str]]

#: Names of configurations and their pages.
Pages = Sequence[tuple[str, Draw]]


def verdict_page(runs: Any, verdict: Verdict, outliers: Outliers | None = None) -> Picture:
    """Verdict with reasons, tail with deadline and evidence line, (m,k)-firm statistics, and trials
    in order.

    `runs` is the result of `load`, or a path, recordings or groups, with one configuration;
    `verdict` is an element of `lab.verdict(runs, ...)`, `outliers` one of `lab.outliers(runs)`. A
    group without trials gives a page with verdict and reason only.
    """
    name = data.one_group(runs).name or "this recording"
    title = f"Does {name} meet a deadline of {number(verdict.question.deadline_us)} µs?"
    return _page(as_runs(runs), title, verdict_rows(verdict), outliers, verdict)


def outliers_page(runs: Any, outliers: Outliers) -> Picture:
    """Tail with the control run, a table of the clusters, and all trials in order.

    `runs` is the result of `load`, or a path, recordings or groups, with one configuration;
    `outliers` is an element of `lab.outliers(runs)`. Raises `UsageError` if there are no trials
    after warm-up.
    """
    name = data.one_group(runs).name
    title = f"Latency tail of {name}" if name else "Latency tail"
    return _page(as_runs(runs), title, outlier_rows(outliers), outliers)


def _page(
    runs: Runs, title: str, rows: Rows, outliers: Outliers | None, verdict: Verdict | None = None
) -> Picture:
    """The verdict, if any, at the top; below it the tail beside its table, and the trials in order."""
    group = runs[0]
    reasons = textwrap.wrap(style.with_micro(sentence(verdict)), SENTENCE_WIDTH) if verdict else []
    heights_in = [max(0.68, 0.185 * len(reasons) + 0.2)] if verdict else []
    calls = calls_of(group, outliers) if group.n or not verdict else None
    summary = outliers_line(outliers, "Findings") if outliers else ""
    summary = f"{verdict.outcome}: {' '.join(reasons)}" if verdict else summary
    if calls:
        heights_in += [max(3.55, table_height_in(rows)), ORDER_IN]
    read = ", ".join(f"{name} {value}" for name, value in runs.how.items())  # of a table
    with style.figure(title, [read, *facts(group)], sum(heights_in), summary=summary) as (
        picture,
        body,
    ):
        parts = body.subfigures(len(heights_in), 1, squeeze=False, height_ratios=heights_in)[:, 0]
        if verdict:
            _band(parts[0], verdict.outcome, reasons, heights_in[0])
        if calls:
            left, right = parts[-2].subfigures(1, 2, width_ratios=TAIL_TO_TABLE)
            draw_tail(left, group, outliers, verdict)
            draw_table(right, rows, heights_in[-2])
            draw_order(
                parts[-1], calls, verdict.question.deadline_us if verdict else None, outliers
            )
    return picture


def facts(group: Group) -> list[str]:
    """Notes for the head of a page: what was measured, where and how."""
    rounds = timed_rounds(group.rounds)
    first: Any = rounds[0] if rounds else None
    configuration, notes = group.configuration, []
    if rounds:
        counts = f"n = {count(group.n, 'trial')} after warm-up"
        counts += f" in {len(rounds)} rounds, each in its own process" if len(rounds) > 1 else ""
        largest = max(Trials.of(round_).max_us for round_ in rounds)
        counts += f"; maximum {number(largest)} µs"
        if first.floor_us:
            counts += f"; roofline bound {number(first.floor_us)} µs (minimum time for arithmetic and weight traffic)"
        elif first.floor_missing:
            counts += f"; no roofline bound: {first.floor_missing}"
        notes.append(counts + ".")
    if configuration is not None:
        notes.append(
            f"{data.describe_systems(data.points_of(group))}; arrivals: {configuration.protocol.arrival_text}"
        )
    elif group.group:
        notes.append(", ".join(f"{key} {value}" for key, value in group.group.items()))
    if rounds:
        told = (
            None if configuration is None else configuration.runtime
        )  # its version is in the line above
        known = {"machine": first.machine, **first.versions}
        notes.append(
            ", ".join(f"{name} {value}" for name, value in known.items() if value and name != told)
        )
    return notes


def _band(part, verdict: Any, lines: Sequence[str], height_in: float) -> None:
    """Draw the verdict in its colour, and the reasons beside it."""
    left, width, gap = 0.1 / style.WIDTH_IN, BADGE_IN / style.WIDTH_IN, 0.07 / height_in
    look = {"facecolor": VERDICT_COLORS[verdict], "linewidth": 0, "transform": part.transSubfigure}
    part.add_artist(Rectangle((left, gap), width, 1 - 2 * gap, **look))
    center = {"ha": "center", "va": "center", "weight": "bold", "color": "white"}
    size = 15 if len(verdict) < 10 else 12
    part.text(left + width / 2, 0.5, "\n".join(textwrap.wrap(verdict, 12)), size=size, **center)
    place = left + width + 0.15 / style.WIDTH_IN
    part.text(place, 0.5, "\n".join(lines), size=10, va="center", linespacing=1.25)


def table_height_in(rows: Rows) -> float:
    """Height that `draw_table` needs."""
    headings = sum(not value for _, value in rows)
    return TABLE_LINE_IN * (len(rows) + 0.35 * max(headings - 1, 0) + 0.9)


def draw_table(part, rows: Rows, height_in: float) -> None:
    """Draw a small table from the top, with equal line spacing."""
    place = height_in - 0.12
    for index, (name, value) in enumerate(rows):
        heading = not value
        place -= TABLE_LINE_IN * (1.35 if heading and index else 1)
        level = place / height_in
        part.text(
            0.02,
            level,
            name,
            size=9,
            weight="bold" if heading else "normal",
            color="0.1" if heading else "0.3",
        )
        part.text(0.97, level, value, size=9, ha="right")
        if heading:
            under = (place - 0.05) / height_in
            part.add_artist(Line2D([0.02, 0.97], [under, under], color="0.75", linewidth=0.8))


def _folded_rows(name: str, value: str) -> Rows:
    """One row, or several if the value is too long to fit beside its name."""
    if len(value) <= TABLE_WIDTH - len(name):
        return [(name, value)]
    return [(name, THIN_SPACE), *(("", line) for line in textwrap.wrap(value, TABLE_WIDTH))]


def verdict_rows(verdict: Verdict) -> Rows:
    """The numbers beside the tail of `verdict_page`."""
    statistics, n = verdict.firm_statistics, verdict.n
    if statistics is None:
        return []
    rows = [
        ("Misses: (m,k)-firm statistics", ""),
        (f"in n = {whole(n)} trials", whole(verdict.misses)),
    ]
    for k, worst in statistics.worst_in.items():
        rows.append((f"most in any {k} consecutive", "–" if worst is None else whole(worst)))
    rows.append(("longest run of misses", whole(statistics.longest_run)))
    rows += [("Miss rate", ""), ("measured", percent(statistics.p_miss))]
    again = statistics.p_miss_after_miss
    rows.append(("after a miss", "–" if again is None else percent(again)))
    confidence = f"{100 * verdict.question.confidence:g} %"
    rows += [(f"lower bound, {confidence}", percent(verdict.bounds.miss_rate_low))]
    rows += [(f"upper bound, {confidence}", percent(verdict.bounds.miss_rate_high))]
    rows.append(("allowed", f"{short_number(100 - verdict.question.percentile)} %"))
    rows += [("Maximum", ""), ("after warm-up", f"{number(verdict.max_us)} µs")]
    rows.append(("including warm-up", f"{number(verdict.max_with_warmup_us)} µs"))
    by_round = [each.max_us for each in verdict.rounds if each.max_us is not None]
    if len(by_round) > 1:
        low, high = min(by_round), max(by_round)
        rows.append(("by round", f"{number(low)} to {number(high)} µs"))
    rows += [
        ("Evidence", ""),
        ("proven within deadline", f"{percent_certified(verdict.bounds.certifies)} %"),
    ]
    if verdict.effective.n < n:
        rows.append(("effective sample size", whole(verdict.effective.n)))
    if verdict.outcome == Outcome.NOT_ENOUGH_EVIDENCE and verdict.new_recording.trials is not None:
        rows.append(("new trials needed", whole(verdict.new_recording.trials)))
    if verdict.drift:
        rows.append(("drift of the bulk", f"{100 * verdict.drift:+.2g} %"))
    return rows


def outlier_rows(outliers: Outliers) -> Rows:
    """The numbers beside the tail of `outliers_page`."""
    rows = [
        ("Trials", ""),
        *((kind.replace("_", " "), whole(size)) for kind, size in outliers.partition.items()),
    ]
    rows += [("sum", whole(outliers.n)), ("steady state", outliers.steady_state), ("Box plot", "")]
    rows.append(
        (
            "outside 1.5 × IQR",
            f"{whole(outliers.outliers)}, {percent(outliers.outliers / outliers.n)}",
        )
    )
    for cluster in outliers.clusters:
        share = f"{percent_number(cluster.share_low)} to {percent(cluster.share_high)}"
        name = f"{'Fast' if cluster.fast else 'Slow'} cluster at {multiple(cluster.multiplier)}"
        rows += [(name, ""), ("trials", f"{whole(cluster.count)}, {share}")]
        rows += _when_and_why(cluster, outliers)
    if (tail := outliers.tail) is not None:
        rows += [("Tail", ""), ("trials", f"{whole(tail.count)}, {percent(tail.share)}")]
        rows.append(("range", f"{multiple(tail.start)} to {multiple(tail.stop)}"))
        rows += _folded_rows("shape", tail.shape)
        rows += _when_and_why(tail, outliers)
    return rows


def _when_and_why(found: Cluster | Tail, outliers: Outliers) -> Rows:
    if outliers.events is None:
        return []
    period = "none found" if found.period_ms is None else f"{number(found.period_ms)} ms"
    return [
        ("period", period),
        *_folded_rows("coincides with", causes_text(found, outliers.events, short=True)),
    ]


def draw_outliers(
    runs: Any,
    findings: Sequence[Outliers | None],
    folder: str | Path,
    *,
    formats: Iterable[str] = ("png",),
) -> list[Path]:
    """Write a page per configuration as `outliers-*.png` (or svg, pdf), and `timeline-*.png`;
    returns the paths.

    `findings` has None for configurations that failed. Of more than 12 configurations, those with
    the largest maximum / median get a page. Raises `UsageError` if the folder cannot be written.
    """
    runs = as_runs(runs)
    places = [place for place, group in enumerate(runs) if group.n]
    places = (
        sorted(places, key=lambda place: -data.reach(runs[place]))[:PAGES]
        if len(places) > PAGES
        else places
    )
    shown: list[Any] = [(runs[place : place + 1], findings[place]) for place in places]
    pages = [(_file_name(one), partial(outliers_page, one, found)) for one, found in shown]
    timed = [one for one, _ in shown if any(round_.switches for round_ in one[0].rounds)]
    timelines = [(_file_name(one), partial(timeline, one)) for one in timed]
    return [
        *_write_pages("outliers", pages, folder, formats),
        *_write_pages("timeline", timelines, folder, formats),
    ]


def _file_name(one: Runs) -> str:
    """What tells the page of a configuration from others: its name, and of a table the column."""
    return f"{one[0].name} {one.how.get('column', '')}"


def draw_verdicts(
    runs: Any, verdicts: Sequence[Verdict], folder: str | Path, *, formats: Iterable[str] = ("png",)
) -> list[Path]:
    """Write one page per configuration as `verdict-*.png` (or svg, pdf), and for several sizes a
    map of margins.

    Returns the paths. Of more than 12 configurations, the worst get a page; the map shows all. It
    is drawn for the percentile of the verdicts, and for the highest percentile that the trials can
    prove if that is a different one. Raises `UsageError` if the folder cannot be written.
    """
    runs = as_runs(runs)

    def page(one: Runs, verdict: Verdict) -> Picture:
        return verdict_page(one, verdict, search_outliers(one[0].rounds) if one[0].n else None)

    places = sorted(range(len(runs)), key=lambda place: _urgency(verdicts[place]))[:PAGES]
    worst = [(runs[place : place + 1], verdicts[place]) for place in places]
    pages: Any = [(_file_name(one), partial(page, one, verdict)) for one, verdict in worst]
    recorded = replace(
        runs, groups=tuple(group for group in runs if group.configuration is not None)
    )
    workloads = {group.configuration.workload for group in recorded}
    first, axes = verdicts[0], map_axes(recorded) if workloads else ()
    if len([workload for workload in workloads if None not in map(workload.axes.get, axes)]) > 1:
        question = {
            "deadline_us": first.question.deadline_us,
            "confidence": first.question.confidence,
        }
        margins = partial(heat_map, recorded, *axes, value=BOUND, **question)
        requested = short_number(first.question.percentile)
        pages.append((f"margin-p{requested}", partial(margins, percentile=requested)))
        if {
            evidence_percentile(group.n, first.question.confidence) for group in recorded if group.n
        } - {
            requested,
            None,
        }:
            pages.append(("margin-proven", margins))
    return _write_pages("verdict", pages, folder, formats)


def _urgency(verdict: Verdict) -> tuple:
    """Sort key: MISSED, NOT ENOUGH EVIDENCE, MET; within each the largest maximum first."""
    return (Outcome.MISSED, Outcome.NOT_ENOUGH_EVIDENCE, Outcome.MET).index(verdict.outcome), -(
        verdict.max_us or 0.0
    )


def _write_pages(kind: str, pages: Pages, folder: str | Path, formats: Iterable[str]) -> list[Path]:
    """Write pages as `<kind>-<name>.<format>`; pages with equal names are numbered."""
    files: dict[str, Draw] = {}
    for name, draw in pages:
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", name.replace("µ", "u")).strip("-.")[:80]
        stem = "-".join(filter(None, (kind, slug)))
        numbered = (
            f"{stem}{suffix}"
            for suffix in ["", *(f"-{place}" for place in range(2, len(pages) + 2))]
        )
        files[next(file for file in numbered if file not in files)] = draw
    return style.write_pictures(files, folder, formats)
