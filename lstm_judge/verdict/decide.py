"""The rules that decide a verdict, one for each way to record."""

from __future__ import annotations

from dataclasses import dataclass

from lstm_judge.outcomes import Outcome
from lstm_judge.statistics import quantiles, sequential
from lstm_judge.verdict.explain import against_met, against_missed
from lstm_judge.verdict.measure import AtDeadline


@dataclass(frozen=True)
class Decision:
    """The outcome, what the misses alone prove, and the reasons against that."""

    proven: Outcome
    against: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        return Outcome.NOT_ENOUGH_EVIDENCE if self.against else self.proven


def decide(seen: AtDeadline) -> Decision:
    """What the misses prove, unless there is a reason against it; of a recording that ended when it
    was decided, all rounds together."""
    proven = sequential.outcome_of(seen.evidence) if seen.evidence else fixed_number(seen)
    against = ()
    if proven == Outcome.MET:
        against = tuple(against_met(seen))
    elif proven == Outcome.MISSED:
        against = tuple(against_missed(seen))
    return Decision(proven, against)


def fixed_number(seen: AtDeadline) -> Outcome:
    """Of a number of trials that was fixed beforehand, as if they were independent."""
    asked = seen.question.allowed, seen.question.confidence
    if quantiles.proves_below(seen.misses, seen.n, *asked):
        return Outcome.MET
    if quantiles.proves_above(seen.certain, seen.n, *asked):
        return Outcome.MISSED
    return Outcome.NOT_ENOUGH_EVIDENCE


def at_effective_size(seen: AtDeadline) -> Outcome:
    """As `fixed_number`, at the effective sample size, which can only deny MET."""
    independent = fixed_number(seen)
    if independent == Outcome.MET and not seen.met_at_effective_size:
        return Outcome.NOT_ENOUGH_EVIDENCE
    return independent
