"""Bounds of the miss rate and of the percentile: the tests of a verdict, inverted.

A bound is no statistic of its own. The upper bound of the miss rate is the smallest allowed rate at
which the misses that were seen would prove MET, the lower bound the largest at which they would
prove MISSED. The percentile is at most the latency above which so few calls lie that they just
prove MET, and at least that above which so many lie that they just prove MISSED. So the upper
bounds are within what is allowed exactly if MET is proven, and the lower ones beyond it exactly if
MISSED is. Effective sizes are those of the misses at the deadline, for any number of misses.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from lstm_judge.statistics import bursts, quantiles, sequential
from lstm_judge.statistics.sequential import Evidence
from lstm_judge.statistics.trials import Trials
from lstm_trt.config.fields import JsonFields

#: A rate is searched to this share of it, and to this number where no allowed rate is proven.
PRECISION = 1e-7
SMALLEST = 1e-12


@dataclass(frozen=True)
class Bounds(JsonFields):
    """One-sided bounds of a verdict, each at its confidence.

    Those of the percentile are None where no number of misses would prove MET, or MISSED, at this
    number of trials; all are None without trials. `certifies`: the highest percentile that these
    trials prove to meet the deadline. `max_certifies`: the share in % of calls that they prove not
    to exceed the longest that was seen.
    """

    percentile_low_us: float | None = None
    percentile_high_us: float | None = None
    miss_rate_low: float | None = None
    miss_rate_high: float | None = None
    certifies: float | None = None
    max_certifies: float | None = None


def searched(
    proven: Callable[[float], bool], first: float, low: float, high: float
) -> tuple[float, float]:
    """Two neighbouring rates between `low` and `high`, of which `proven` holds for the larger one
    only.

    It holds for all rates from some rate on. The search begins at the allowed rate, so that both
    are on the side of it on which the verdict is.
    """
    middle = first
    while high - low > max(PRECISION * high, SMALLEST):
        low, high = (low, middle) if proven(middle) else (middle, high)
        middle = (low + high) / 2
    return low, high


@dataclass(frozen=True)
class FixedTests:
    """The tests of a verdict on a number of trials that was fixed beforehand.

    n trials count as `effective_n` for MET, a whole number, in which misses count as the least
    whole number that is no smaller a share. For MISSED they count as n / `tau`, and `tau` misses as
    one: this test needs no whole numbers. `burst_length`: the mean length of bursts of misses, in
    calls, for which MET must hold.
    """

    allowed: Fraction
    confidence: float
    burst_length: float
    n: int
    effective_n: int
    tau: float

    def effective(self, misses: int) -> int:
        """The number of misses in `effective_n` trials."""
        return -(-misses * self.effective_n // self.n)

    def met(self, misses: int) -> bool:
        """Whether this number of misses proves MET."""
        return quantiles.proves_below(
            self.effective(misses), self.effective_n, self.allowed, self.confidence
        ) and self._met_in_bursts(misses, self.allowed)

    def _met_in_bursts(self, misses: int, allowed: Fraction) -> bool:
        return bursts.proves_below_in_bursts(
            misses, self.n, allowed, self.confidence, self.burst_length
        )

    def missed(self, misses: int) -> bool:
        """Whether this number of misses proves MISSED."""
        counted = (misses, self.n), (misses / self.tau, self.n / self.tau)
        return all(quantiles.proves_above(*each, self.allowed, self.confidence) for each in counted)

    def rate_high(self, misses: int) -> float:
        """The smallest allowed rate for which these misses prove MET."""
        counted = (misses, self.n), (self.effective(misses), self.effective_n)
        high = max(quantiles.rate_bounds(*each, self.confidence)[1] for each in counted)
        if self.burst_length == 1 or self._met_in_bursts(misses, Fraction(high)):
            return high
        allowed = float(self.allowed)
        first = allowed if allowed > high else (high + 1) / 2
        _, high = searched(
            lambda rate: self._met_in_bursts(misses, Fraction(rate)), first, high, 1.0
        )
        return high

    def rate_low(self, misses: int) -> float:
        """The largest allowed rate for which these misses prove MISSED; 0 without any."""
        counted = (misses, self.n), (misses / self.tau, self.n / self.tau)
        return min(quantiles.rate_bounds(*each, self.confidence)[0] for each in counted)

    def bounds(self, misses: int, certain: int, pooled: Trials) -> Bounds:
        """The bounds of these tests; `certain`: the number of the misses that do not only perhaps
        miss."""
        least, most = pooled.bounds
        few = most_true(lambda each: not self.missed(each), self.n + 1)
        miss_rate_high = self.rate_high(misses)
        return Bounds(
            percentile_low_us=exceeded_us(least, few),
            percentile_high_us=exceeded_us(most, most_true(self.met, self.n)),
            miss_rate_low=self.rate_low(certain),
            miss_rate_high=miss_rate_high,
            certifies=100 * (1 - miss_rate_high),
            max_certifies=100 * (1 - self.rate_high(0)),
        )


def most_true(met: Callable[[int], bool], n: int) -> int | None:
    """The largest number below n up to which `met` holds; None if it does not even for 0."""
    too_many = bisect_left(range(n), True, key=lambda misses: not met(misses))
    return too_many - 1 if too_many else None


def exceeded_us(series: Trials, misses: int | None) -> float | None:
    """The latency that so many trials may exceed; None if that is all of them, for no number, and
    above the range of a histogram."""
    if misses is None or misses >= series.n:
        return None
    return quantiles.finite(float(series.ordered_ns[series.n - misses - 1]) / 1e3)


@dataclass(frozen=True)
class SequentialTests:
    """The tests of recordings that end when they are decided: the e-values of `sequential.py`.

    MET is decided by each of the `rounds`, MISSED by all of them together, where `tau` misses count
    as one. Where other numbers of misses are asked for, these come in the same bursts, and as many
    of them after the last ok call.
    """

    allowed: Fraction
    rounds: Sequence[Evidence]
    tau: float

    def _decides(self, log_e_value: float) -> bool:
        return log_e_value >= -math.log(1 - self.rounds[0].confidence)

    def _met(self, seen: Evidence, misses: int, allowed: float) -> bool:
        """Whether so many misses in the calls of a round decide MET."""
        n, until_ok = seen.until_ok
        counted = max(0, misses - (seen.misses - until_ok))
        return self._decides(sequential.log_met(n, counted, allowed, seen.burst_length))

    def _missed(self, misses: int, allowed: float) -> bool:
        """Whether so many misses in all calls decide MISSED."""
        together = sequential.pooled(self.rounds)
        # Of single misses, if none was seen.
        of_each = np.array([[0.0, 1.0], [1.0, 0.0]])
        if together.misses:
            of_each = together.transitions / together.misses
        changed = of_each * misses
        others = changed[0, 1] + changed[1].sum()
        changed[0, 0] = max(0.0, together.transitions.sum() - others)
        asked = replace(together, allowed=allowed, misses=misses, transitions=changed)
        return self._decides(asked.log_missed_of(self.tau))

    def rate_high(self, seen: Evidence, misses: int) -> float:
        """The smallest allowed rate for which so many misses in a round decide MET; 1 if there is
        none."""
        _, high = searched(
            lambda rate: self._met(seen, misses, rate), float(self.allowed), 0.0, 1.0
        )
        return high

    def percentile_high_us(self, seen: Evidence, series: Trials) -> float:
        """The latency that as many calls of a round exceed as just decide MET; infinite if there is
        none."""
        allowed = float(self.allowed)
        most = most_true(lambda misses: self._met(seen, misses, allowed), series.n)
        high_us = exceeded_us(series.bounds[1], most)
        return math.inf if high_us is None else high_us

    def bounds(self, pooled: Trials, timed: Sequence[Trials]) -> Bounds:
        """The bounds of these tests; `timed`: the trials of each round, `pooled`: of all."""
        allowed = float(self.allowed)
        n = pooled.n
        misses = sum(each.misses for each in self.rounds)
        low = 0.0
        if misses:
            low, _ = searched(lambda rate: not self._missed(misses, rate), allowed, 0.0, 1.0)
        few = most_true(lambda each: not self._missed(each, allowed), n + 1)
        percentile_us = quantiles.percentile(pooled.ordered_ns, 1 - self.allowed) / 1e3
        highs_us = [self.percentile_high_us(*each) for each in zip(self.rounds, timed, strict=True)]
        rates_high = [self.rate_high(each, each.misses) for each in self.rounds]
        miss_rate_high = max(misses / n, *rates_high)
        without_misses = [replace(each, until_ok=(each.n, 0), misses=0) for each in self.rounds]
        return Bounds(
            percentile_low_us=exceeded_us(pooled.bounds[0], few),
            percentile_high_us=quantiles.finite(max(percentile_us, *highs_us)),
            miss_rate_low=min(low, misses / n),
            miss_rate_high=miss_rate_high,
            certifies=100 * (1 - miss_rate_high),
            max_certifies=100 * (1 - max(self.rate_high(each, 0) for each in without_misses)),
        )
