"""A report in a few lines of Markdown, for a pull request."""

import math
from typing import Any

from lstm_judge.outcomes import Outcome
from lstm_trt.config.format import escaped, markdown, microseconds, short_number, value_text

#: Most rows of a table in Markdown.
MOST_ROWS = 20

#: A decided configuration is near the deadline if its percentile is at most so many times it, or
#: that part of it.
NEAR = 2


def page(report: Any) -> str:
    """Warnings, the answer, verdicts by system, the comparison, and what is undecided or near the
    deadline."""
    reasons = (f"**Unfinished: {escaped(report.shown(reason))}.**" for reason in report.unfinished)
    warnings = (
        f"**Warning: {escaped(report.shown(warning))}.**" for warning in report.runs.remarks
    )
    lines = [
        f"## {report.title}",
        *reasons,
        *warnings,
        *(escaped(report.shown(line)) for line in report.answer),
        _table(report, *report.overview),
    ]
    if report.comparisons:
        lines += _first_rows(report, "Compared with the baseline, SLOWER first", *report.compared)
    percentile = f"p{short_number(report.verdicts[0].question.percentile)}"
    header = [
        "network",
        "verdict",
        f"{percentile} us",
        "max us",
        "misses",
        "n",
        "trials needed",
        "remark",
    ]
    title = (
        f"Undecided, then {percentile} within a factor of {NEAR} of the deadline, the nearest first"
    )
    lines += _first_rows(report, title, header, [_row(report, place) for place in _near(report)])
    return "\n\n".join(lines) + "\n"


def _first_rows(report: Any, title: str, header: list[str], rows: list[list[str]]) -> list[str]:
    """A title and a table of at most `MOST_ROWS`; nothing without rows."""
    if not rows:
        return []
    counted = f"{MOST_ROWS} of {len(rows)}" if len(rows) > MOST_ROWS else str(len(rows))
    return [f"{title}: {counted}", _table(report, header, rows[:MOST_ROWS])]


def _near(report: Any) -> list[int]:
    """The places of the undecided, of those that failed, and of those near the deadline, each by
    their ratio to it."""
    keys = {}
    for place, verdict in enumerate(report.verdicts):
        distance = math.inf
        if verdict.percentile_us:
            distance = abs(math.log(verdict.percentile_us / verdict.question.deadline_us))
        decided = verdict.outcome != Outcome.NOT_ENOUGH_EVIDENCE
        if not decided or distance <= math.log(NEAR):
            keys[place] = (decided, distance)
    return sorted(keys, key=keys.__getitem__)


def _row(report: Any, place: int) -> list[str]:
    verdict = report.verdicts[place]
    times = map(microseconds, (verdict.percentile_us, verdict.max_us))
    needed = (
        verdict.new_recording.trials
        if report.outcome(place) == Outcome.NOT_ENOUGH_EVIDENCE
        else None
    )
    numbers = map(value_text, (verdict.misses, verdict.n, needed))
    return [report.runs[place].name, report.outcome(place), *times, *numbers, report.remark(place)]


def _table(report: Any, header: list[str], rows: list[list[str]]) -> str:
    return markdown(
        header, [[*map(report.cut, row[:-1]), report.shown(row[-1])] for row in rows]
    ).rstrip()
