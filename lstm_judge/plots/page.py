"""Report pages of one configuration: latency tail, a small table of numbers, and all trials in
order.

`verdict_page` shows whether the network meets a deadline, and with what confidence; `outliers_page`
shows its slow trials: latency, number, timing, and coinciding events.
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
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
from lstm_judge.plots.tail import draw_tail, loads
from lstm_judge.plots.trials import calls_of, draw_order
from lstm_judge.read.numbers import percent_certified
from lstm_judge.read.rounds import Group, Round, by_network
from lstm_judge.read.runs import Runs, as_runs
from lstm_judge.statistics.trials import Trials, timed_rounds
from lstm_judge.verdict.answer import Verdict
from lstm_judge.verdict.text import sentence
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


def verdict_page(runs: Any, verdict: Verdict, outliers: Outliers | None = None) -> Picture:
    """Verdict with reasons, tail with deadline and evidence line, (m,k)-firm statistics, and trials
    in order.

    `runs` is the result of `load`, or a path, recordings or groups, with one configuration;
    `verdict` is an element of `lab.verdict(runs, ...)`, `outliers` one of `lab.outliers(runs)`. A
    group without trials gives a page with verdict and reason only.
    """
    return _page(
        as_runs(runs),
        f"Does {data.one_group(runs).name or 'this recording'} meet a deadline of"
        f" {number(verdict.question.deadline_us)} µs?",
        verdict_rows(verdict),
        outliers,
        verdict,
    )


def outliers_page(runs: Any, outliers: Outliers) -> Picture:
    """Tail with the control run, a table of the clusters, and all trials in order.

    `runs` is the result of `load`, or a path, recordings or groups, with one configuration;
    `outliers` is an element of `lab.outliers(runs)`. Raises `UsageError` if there are no trials
    after warm-up.
    """
    name = data.one_group(runs).name
    return _page(
        as_runs(runs),
        (f"Latency tail of {name}" if name else "Latency tail"),
        outlier_rows(outliers),
        outliers,
    )


def _page(
    runs: Runs, title: str, rows: Rows, outliers: Outliers | None, verdict: Verdict | None = None
) -> Picture:
    """The verdict, if any, at the top; below it tail, table, and the trials in order."""
    group = runs[0]
    heights_in = []
    summary = outliers_line(outliers, "Findings") if outliers else ""
    deadline_us = None
    if verdict:
        reasons = textwrap.wrap(style.with_micro(sentence(verdict)), SENTENCE_WIDTH)
        heights_in.append(max(0.68, 0.185 * len(reasons) + 0.2))
        summary = f"{verdict.outcome}: {' '.join(reasons)}"
        deadline_us = verdict.question.deadline_us
    calls = None
    if group.n or not verdict:
        calls = calls_of(group, outliers)
        heights_in += [max(3.55, table_height_in(rows)), ORDER_IN]
    with style.figure(
        title,
        [", ".join(f"{name} {value}" for name, value in runs.how.items()), *facts(group)],
        sum(heights_in),
        summary=summary,
    ) as (picture, body):
        parts = body.subfigures(len(heights_in), 1, squeeze=False, height_ratios=heights_in)[:, 0]
        if verdict:
            _band(parts[0], verdict.outcome, reasons, heights_in[0])
        if calls:
            left, right = parts[-2].subfigures(1, 2, width_ratios=TAIL_TO_TABLE)
            draw_tail(left, group, outliers, verdict)
            draw_table(right, rows, heights_in[-2])
            draw_order(parts[-1], calls, deadline_us, outliers)
    return picture


def facts(group: Group) -> list[str]:
    """Notes for the head of a page: what was measured, where and how."""
    rounds = timed_rounds(group.rounds)
    configuration = group.configuration
    notes = [_counts(group, rounds)] if rounds else []
    known = {"machine": rounds[0].machine, **rounds[0].versions} if rounds else {}
    if configuration is not None:
        notes.append(
            f"{data.describe_systems(data.points_of(group))}; arrivals:"
            f" {configuration.protocol.arrival_text}"
        )
        known.pop(configuration.runtime, None)  # its version is in the line above
    else:
        notes.append(", ".join(f"{key} {value}" for key, value in group.group.items()))
    return [*notes, ", ".join(f"{name} {value}" for name, value in known.items() if value)]


def _counts(group: Group, rounds: Sequence[Round]) -> str:
    """Numbers of trials and rounds, the maximum, and the roofline bound."""
    text = f"n = {count(group.n, 'trial')} after warm-up"
    if len(rounds) > 1:
        text += f" in {len(rounds)} rounds, each in its own process"
    text += f"; maximum {number(max(Trials.of(round_).max_us for round_ in rounds))} µs"
    first = rounds[0]
    if first.floor_us:
        text += (
            f"; roofline bound {number(first.floor_us)} µs"
            " (minimum time for arithmetic and weight traffic)"
        )
    elif first.floor_missing:
        text += f"; no roofline bound: {first.floor_missing}"
    return f"{text}."


def _band(part, verdict: Any, lines: Sequence[str], height_in: float) -> None:
    """Draw the verdict in its colour, and the reasons beside it."""
    left = 0.1 / style.WIDTH_IN
    width = BADGE_IN / style.WIDTH_IN
    gap = 0.07 / height_in
    part.add_artist(
        Rectangle(
            (left, gap),
            width,
            1 - 2 * gap,
            facecolor=VERDICT_COLORS[verdict],
            linewidth=0,
            transform=part.transSubfigure,
        )
    )
    part.text(
        left + width / 2,
        0.5,
        "\n".join(textwrap.wrap(verdict, 12)),
        size=15 if len(verdict) < 10 else 12,
        ha="center",
        va="center",
        weight="bold",
        color="white",
    )
    part.text(
        left + width + 0.15 / style.WIDTH_IN,
        0.5,
        "\n".join(lines),
        size=10,
        va="center",
        linespacing=1.25,
    )


def table_height_in(rows: Rows) -> float:
    """Height that `draw_table` needs."""
    headings = sum(not value for _, value in rows)
    return TABLE_LINE_IN * (len(rows) + 0.35 * headings + 0.55)


def draw_table(part, rows: Rows, height_in: float) -> None:
    """Draw a small table from the top; headings stand apart and are underlined."""
    line = TABLE_LINE_IN / height_in
    place = 1 - 0.12 / height_in + 0.35 * line  # the first heading has nothing to stand apart from
    for name, value in rows:
        if value:
            place -= line
            look = {"color": "0.3"}
        else:
            place -= 1.35 * line
            look = {"color": "0.1", "weight": "bold"}
            under = place - 0.05 / height_in
            part.add_artist(Line2D([0.02, 0.97], [under, under], color="0.75", linewidth=0.8))
        part.text(0.02, place, name, size=9, **look)
        part.text(0.97, place, value, size=9, ha="right")


def _folded_rows(name: str, value: str) -> Rows:
    """One row, or several if the value is too long to fit beside its name."""
    if len(value) <= TABLE_WIDTH - len(name):
        return [(name, value)]
    return [(name, THIN_SPACE), *(("", line) for line in textwrap.wrap(value, TABLE_WIDTH))]


def verdict_rows(verdict: Verdict) -> Rows:
    """The numbers beside the tail of `verdict_page`."""
    firm = verdict.firm_statistics
    if firm is None:
        return []
    question = verdict.question
    bounds = verdict.bounds
    confidence = f"{100 * question.confidence:g} %"
    again = firm.p_miss_after_miss
    rows = [
        ("Misses: (m,k)-firm statistics", ""),
        (f"in n = {whole(verdict.n)} trials", whole(verdict.misses)),
        *(
            (f"most in any {k} consecutive", "–" if worst is None else whole(worst))
            for k, worst in firm.worst_in.items()
        ),
        ("longest run of misses", whole(firm.longest_run)),
        ("Miss rate", ""),
        ("measured", percent(firm.p_miss)),
        ("after a miss", "–" if again is None else percent(again)),
        (f"lower bound, {confidence}", percent(bounds.miss_rate_low)),
        (f"upper bound, {confidence}", percent(bounds.miss_rate_high)),
        ("allowed", f"{short_number(100 - question.percentile)} %"),
        ("Maximum", ""),
        ("after warm-up", f"{number(verdict.max_us)} µs"),
        ("including warm-up", f"{number(verdict.max_with_warmup_us)} µs"),
        ("Evidence", ""),
        ("proven within deadline", f"{percent_certified(bounds.certifies)} %"),
    ]
    by_round = [each.max_us for each in verdict.rounds if each.max_us is not None]
    if len(by_round) > 1:
        rows.insert(-2, ("by round", f"{number(min(by_round))} to {number(max(by_round))} µs"))
    if verdict.effective.n < verdict.n:
        rows.append(("effective sample size", whole(verdict.effective.n)))
    if verdict.trials_needed is not None:
        rows.append(("new trials needed", whole(verdict.trials_needed)))
    if verdict.drift:
        rows.append(("drift of the bulk", f"{100 * verdict.drift:+.2g} %"))
    return rows


def outlier_rows(outliers: Outliers) -> Rows:
    """The numbers beside the tail of `outliers_page`."""
    rows = [
        ("Trials", ""),
        *((kind.replace("_", " "), whole(size)) for kind, size in outliers.partition.items()),
        ("sum", whole(outliers.n)),
        ("steady state", outliers.steady_state),
        ("Box plot", ""),
        (
            "outside 1.5 × IQR",
            f"{whole(outliers.outliers)}, {percent(outliers.outliers / outliers.n)}",
        ),
    ]
    for cluster in outliers.clusters:
        kind = "Fast" if cluster.fast else "Slow"
        share = f"{percent_number(cluster.share_low)} to {percent(cluster.share_high)}"
        rows += [
            (f"{kind} cluster at {multiple(cluster.multiplier)}", ""),
            ("trials", f"{whole(cluster.count)}, {share}"),
            *_when_and_why(cluster, outliers),
        ]
    tail = outliers.tail
    if tail is not None:
        rows += [
            ("Tail", ""),
            ("trials", f"{whole(tail.count)}, {percent(tail.share)}"),
            ("range", f"{multiple(tail.start)} to {multiple(tail.stop)}"),
            *_folded_rows("shape", tail.shape),
            *_when_and_why(tail, outliers),
        ]
    return rows


def _when_and_why(found: Cluster | Tail, outliers: Outliers) -> Rows:
    if outliers.events is None:
        return []
    return [
        ("period", "none found" if found.period_ms is None else f"{number(found.period_ms)} ms"),
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
    if len(places) > PAGES:
        places = sorted(places, key=lambda place: -data.reach(runs[place]))[:PAGES]
    switched = [place for place in places if any(round_.switches for round_ in runs[place].rounds)]
    found: Sequence[Any] = findings  # not None where there are trials
    pictures = _files("outliers", runs, places, lambda one, place: outliers_page(one, found[place]))
    pictures |= _files("timeline", runs, switched, lambda one, _: timeline(one))
    return style.write_pictures(pictures, folder, formats)


def draw_verdicts(
    runs: Any, verdicts: Sequence[Verdict], folder: str | Path, *, formats: Iterable[str] = ("png",)
) -> list[Path]:
    """Write one page per configuration as `verdict-*.png` (or svg, pdf), for several sizes a map of
    margins for the percentile of the verdicts, and the tails of each network that was recorded
    beside loads.

    Returns the paths. Of more than 12 configurations, the worst get a page; the map shows all.
    Raises `UsageError` if the folder cannot be written.
    """
    runs = as_runs(runs)

    def page(one: Runs, place: int) -> Picture:
        outliers = search_outliers(one[0].rounds) if one[0].n else None
        return verdict_page(one, verdicts[place], outliers)

    places = sorted(range(len(runs)), key=lambda place: verdicts[place].urgency)
    files = _files("verdict", runs, places[:PAGES], page)
    recorded = replace(
        runs, groups=tuple(group for group in runs if group.configuration is not None)
    )
    asked = verdicts[0].question
    of_first = {}
    for network in by_network(recorded):
        timed = [place for place in network if recorded[place].n]
        if len(timed) > 1:
            of_first[timed[0]] = timed

    def by_load(first: Runs, place: int) -> Picture:
        return loads([recorded[each] for each in of_first[place]], deadline_us=asked.deadline_us)

    files |= _files("verdict-loads", recorded, of_first, by_load)
    axes = map_axes(recorded) if recorded.groups else ()
    workloads = {group.configuration.workload for group in recorded}
    if sum(None not in map(workload.axes.get, axes) for workload in workloads) > 1:
        files[f"verdict-margin-p{short_number(asked.percentile)}"] = partial(
            heat_map,
            recorded,
            *axes,
            value=BOUND,
            deadline_us=asked.deadline_us,
            confidence=asked.confidence,
            percentile=short_number(asked.percentile),
        )
    return style.write_pictures(files, folder, formats)


def _files(
    kind: str, runs: Runs, places: Iterable[int], draw: Callable[[Runs, int], Picture]
) -> dict[str, Draw]:
    """Pages by the names of their files, `<kind>-<configuration>`; equal names are numbered."""
    files: dict[str, Draw] = {}
    for page in places:
        one = runs[page : page + 1]
        name = f"{kind} {one[0].name} {one.how.get('column', '')}".replace("µ", "u")
        stem = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:90]
        file = stem
        place = 1
        while file in files:
            place += 1
            file = f"{stem}-{place}"
        files[file] = partial(draw, one, page)
    return files
