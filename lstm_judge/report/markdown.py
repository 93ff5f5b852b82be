"""A report in a few lines of Markdown, for a pull request."""

import math
from collections.abc import Sequence

from lstm_judge.outcomes import Outcome
from lstm_judge.report.answer import Report
from lstm_judge.report.text import answer, title
from lstm_trt.config.format import escaped, markdown, microseconds, short_number, value_text

#: Most rows of a table in Markdown.
MOST_ROWS = 20

#: A decided configuration is near the deadline if its percentile is at most so many times it, or
#: that part of it.
NEAR = 2


def page(report: Report) -> str:
    """Warnings, the answer, verdicts by system, the comparison, and what is undecided or near the
    deadline."""
    said = [f"**Unfinished: {escaped(report.shown(reason))}.**" for reason in report.unfinished]
    said += [f"**Warning: {escaped(report.shown(each))}.**" for each in report.runs.remarks]
    said += [escaped(report.shown(line)) for line in answer(report)]
    lines = [f"## {title(report)}", *said, _table(report, *report.overview)]
    lines += _first_rows(report, "Compared with the baseline, SLOWER first", *report.compared)
    percentile = f"p{short_number(report.verdicts[0].question.percentile)}"
    lines += _first_rows(
        report,
        f"Undecided, then {percentile} within a factor of {NEAR} of the deadline, the nearest"
        " first",
        [
            "network",
            "verdict",
            f"{percentile} us",
            "max us",
            "misses",
            "n",
            "trials needed",
            "remark",
        ],
        [_row(report, place) for place in _near(report)],
    )
    return "\n\n".join(lines) + "\n"


def _first_rows(
    report: Report, heading: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[str]:
    """A heading and a table of at most `MOST_ROWS`; nothing without rows."""
    if not rows:
        return []
    counted = f"{MOST_ROWS} of {len(rows)}" if len(rows) > MOST_ROWS else str(len(rows))
    return [f"{heading}: {counted}", _table(report, header, rows[:MOST_ROWS])]


def _table(report: Report, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the last column is free text, which is not cut."""
    return markdown(
        header, [[*map(report.cut, row[:-1]), report.shown(row[-1])] for row in rows]
    ).rstrip()


def _near(report: Report) -> list[int]:
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


def _row(report: Report, place: int) -> list[str]:
    verdict = report.verdicts[place]
    outcome = report.outcome(place)
    needed = verdict.new_recording.trials if outcome == Outcome.NOT_ENOUGH_EVIDENCE else None
    return [
        report.runs[place].name,
        outcome,
        *map(microseconds, (verdict.percentile_us, verdict.max_us)),
        *map(value_text, (verdict.misses, verdict.n, needed)),
        report.remark(place),
    ]
