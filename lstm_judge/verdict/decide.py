"""The rules that decide a verdict, one for each way to record."""

from __future__ import annotations

from dataclasses import dataclass

from lstm_judge.outcomes import Outcome
from lstm_judge.statistics import quantiles, sequential
from lstm_judge.verdict.explain import against_met, against_missed
from lstm_judge.verdict.measure import AtDeadline
from lstm_judge.verdict.question import Question


@dataclass(frozen=True)
class Decision:
    """The outcome, what the misses alone prove, and the reasons against that."""

    proven: Outcome
    against: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        return Outcome.NOT_ENOUGH_EVIDENCE if self.against else self.proven


def decide(seen: AtDeadline) -> Decision:
    """What the misses prove, unless there is a reason against it."""
    proven = until_decided(seen) if seen.evidence else fixed_number(seen)
    if proven == Outcome.MET:
        return Decision(proven, tuple(against_met(seen)))
    if proven == Outcome.MISSED:
        return Decision(proven, tuple(against_missed(seen)))
    return Decision(proven, ())


def fixed_number(seen: AtDeadline) -> Outcome:
    """Of a number of trials that was fixed beforehand, as if they were independent."""
    return by_count(seen.question, seen.misses, seen.n, seen.certain)


def until_decided(seen: AtDeadline) -> Outcome:
    """Of a recording that ended when it was decided."""
    return sequential.outcome_of(seen.evidence)


def at_effective_size(seen: AtDeadline) -> Outcome:
    """As `fixed_number`, at the effective sample size, which can only deny MET."""
    independent = fixed_number(seen)
    if independent == Outcome.MET and by_count(seen.question, *seen.effective) != Outcome.MET:
        return Outcome.NOT_ENOUGH_EVIDENCE
    return independent


def by_count(question: Question, misses: int, n: int, certain: int | None = None) -> Outcome:
    """The outcome of n independent trials; `certain`: the number of misses that are, if it is not
    all."""
    asked = question.allowed, question.confidence
    if quantiles.proves_below(misses, n, *asked):
        return Outcome.MET
    if quantiles.proves_above(misses if certain is None else certain, n, *asked):
        return Outcome.MISSED
    return Outcome.NOT_ENOUGH_EVIDENCE
