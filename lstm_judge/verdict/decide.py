"""The rules that decide a verdict."""

from lstm_judge.outcomes import Outcome
from lstm_judge.statistics import quantiles
from lstm_judge.verdict.question import Question


def by_count(question: Question, misses: int, n: int, certain: int | None = None) -> Outcome:
    """The outcome of n independent trials; `certain`: the number of misses that are, if it is not
    all."""
    asked = question.allowed, question.confidence
    if quantiles.proves_below(misses, n, *asked):
        return Outcome.MET
    if quantiles.proves_above(misses if certain is None else certain, n, *asked):
        return Outcome.MISSED
    return Outcome.NOT_ENOUGH_EVIDENCE
