"""Whether the parts of a verdict agree with each other."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from lstm_judge.outcomes import Outcome
from lstm_judge.statistics.sequential import limit_ns
from lstm_judge.verdict.answer import Verdict

#: Beginnings and parts of reasons that deny a MET that the bounds prove.
DENIED = ("alone miss", "drift", "slow calls, above")


def contradictions(verdict: Verdict) -> Iterator[str]:
    """Bounds on the wrong side of an estimate, of the deadline or of the allowed rate.

    Both upper bounds are within what is allowed exactly if MET is proven, which a reason may deny, and both lower ones
    beyond it exactly if the verdict is MISSED.
    """
    low_us, high_us = verdict.bounds.percentile_low_us, verdict.bounds.percentile_high_us
    low, high = verdict.bounds.miss_rate_low, verdict.bounds.miss_rate_high
    assert low is not None and high is not None
    allowed = float(1 - Fraction(f"{verdict.question.percentile:.12g}") / 100)
    limit_us = limit_ns(verdict.question.deadline_us) / 1e3
    within = high_us is not None and high_us <= limit_us
    beyond = low_us is not None and low_us > limit_us
    if within != (high <= allowed):
        yield "one upper bound is within what is allowed, the other is not"
    if beyond != (low > allowed):
        yield "one lower bound is beyond what is allowed, the other is not"
    if beyond != (verdict.outcome == Outcome.MISSED):
        yield f"{verdict.outcome} beside a percentile of at least {low_us} us"
    denied = any(part in reason for reason in verdict.reasons for part in DENIED)
    if within != (verdict.outcome == Outcome.MET) and not (within and denied):
        yield f"{verdict.outcome} beside a percentile of at most {high_us} us"
    if not low <= verdict.certain_misses / verdict.n:
        yield "the lower bound of the miss rate is above the rate"
    if not verdict.misses / verdict.n <= high:
        yield "the upper bound of the miss rate is below the rate"
    if verdict.percentile_us is not None and low_us is not None and low_us > verdict.percentile_us:
        yield "the lower bound of the percentile is above the percentile"
    if verdict.percentile_us is not None and high_us is not None and high_us < verdict.percentile_us:
        yield "the upper bound of the percentile is below the percentile"
