"""Make a report of recordings, and write its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lstm_judge.answers import runs_to_judge
from lstm_judge.compare.compare import compare
from lstm_judge.outcomes import Outcome
from lstm_judge.outliers.outliers import OutlierAnswers, Outliers, outliers
from lstm_judge.plots.points import system_labels
from lstm_judge.read.runs import Runs, RunsSource, paths_of
from lstm_judge.report import html, junit, markdown
from lstm_judge.report.answer import FAILED, NAMES, Report, Slider
from lstm_judge.report.views import compared_neighbours
from lstm_judge.statistics.parallel import computed
from lstm_judge.statistics.quantiles import shares_of
from lstm_judge.statistics.trials import Trials
from lstm_judge.summarize.summarize import SummaryRow, summarize_groups
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.verdict import outcomes_at, verdict
from lstm_trt.config.errors import file_errors, one_of
from lstm_trt.store.files import write_whole

#: Ending of a file -> what writes its content.
FORMATS: dict[str, Callable[[Report], str]] = {
    ".html": html.page,
    ".md": markdown.page,
    ".xml": junit.page,
}

#: Number of deadlines at which every configuration is judged.
DEADLINES = 60


def report(  # noqa: PLR0913
    runs: RunsSource,
    deadline_us: float,
    percentile: str | float = "99.9",
    confidence: float = 0.95,
    *,
    baseline: RunsSource | None = None,
    out: str | Path | Sequence[str | Path] = (),
    anonymous: bool = False,
    undecided: str = "failure",
    percentiles: Iterable[str | float] = (),
    explore: bool = False,
    **bursts: Any,
) -> Report:
    """The verdicts on recordings with what they rest on, written to files; other arguments are
    those of `verdict`.

    `out`: one path or several, ending in .html (one file that needs nothing else), .md (a short
    form) or .xml (JUnit, where `undecided` is what NOT ENOUGH EVIDENCE is: a "failure", or
    "skipped"). `baseline`: recordings that these are compared with. `anonymous`: leave out host
    name, user and paths. `percentiles`: as for `summarize`. `explore`: the HTML file also has
    the calls in order, and neighbours compared with each other. The same recordings give the same
    bytes. Raises `UsageError` if an argument is out of range, and what `verdict` and `compare`
    raise.
    """
    # What can be refused is refused before files are read and judged, which may take long.
    question = Question(deadline_us, percentile, confidence, **bursts)
    shares = shares_of(percentiles)
    paths = paths_of(out) if out else []
    for path in paths:
        one_of("format of a report", path.suffix, FORMATS)
        with file_errors(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
    runs = runs_to_judge(runs, bounds=True)
    tails = outliers(runs)
    answer = Report(
        verdicts=verdict(runs, deadline_us, percentile, confidence, **bursts),
        rows=_rows(summarize_groups(runs, clusters=False, shares=shares), tails),
        tails=tails,
        systems=_systems(runs),
        slider=_slider(runs, question),
        comparisons=None if baseline is None else compare(baseline, runs, confidence=confidence),
        anonymous=anonymous,
        undecided=undecided,
        pairs=compared_neighbours(runs, tails, question) if explore else None,
    )
    for path in paths:
        with file_errors(f"write {path}"):
            write_whole(path, FORMATS[path.suffix](answer).encode())
    return answer


def _rows(rows: Iterable[SummaryRow], tails: OutlierAnswers) -> list[SummaryRow]:
    """The rows of a summary with the clusters of `tails`, which are not searched twice."""
    complete = []
    for row, tail in zip(rows, tails, strict=True):
        complete.append(replace(row, clusters=tail.clusters) if isinstance(tail, Outliers) else row)
    return complete


def _systems(runs: Runs) -> dict[str, list[int]]:
    """Label of a system -> the places of its configurations; a table is one system."""
    labels = system_labels(runs.groups) if runs.own else [runs.source] * len(runs)
    systems: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        systems.setdefault(label, []).append(place)
    return systems


def _slider(runs: Runs, question: Question) -> Slider:
    """What each configuration is at deadlines from below the shortest to above the longest latency,
    evenly on a log scale, and at the given one."""
    measured = [place for place, group in enumerate(runs) if group.n]
    timed = [Trials.of(*runs[place].rounds) for place in measured]
    low = min((trials.min_us / 1.1 for trials in timed), default=question.deadline_us)
    high = max((trials.max_us * 1.1 for trials in timed), default=question.deadline_us)
    deadlines_us = sorted(
        {
            question.deadline_us,
            *(float(f"{us:.3g}") for us in np.geomspace(low, high, DEADLINES - 1)),
        }
    )
    found = computed(
        outcomes_at,
        [
            ((runs[place].plain.rounds, question, runs[place].until), deadlines_us)
            for place in measured
        ],
        [runs[place].n for place in measured],
    )
    names = np.full((len(runs), len(deadlines_us)), NAMES.index(FAILED))
    for place, outcomes in zip(measured, found, strict=True):
        names[place] = [list(Outcome).index(outcome) for outcome in outcomes]
    return Slider(deadlines_us, names)
