"""How many trials a new recording needs to prove MET."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lstm_judge.outcomes import Outcome
from lstm_judge.statistics import bursts, quantiles, sequential
from lstm_judge.statistics.bounds import most_true
from lstm_judge.statistics.dependence import LEVEL_TRIALS, assess
from lstm_judge.verdict.answer import NewRecording
from lstm_judge.verdict.decide import at_effective_size, fixed_number
from lstm_judge.verdict.measure import AtDeadline
from lstm_judge.verdict.question import Question
from lstm_trt.config.libraries import special

#: Chance of deciding with the length that is recommended.
LIKELY = 0.8

#: Above this number of misses that may occur, their law is that of their rate.
MANY_MISSES = 100_000


def new_recording(seen: AtDeadline, outcome: Outcome) -> NewRecording:
    """The length of a new recording that would prove MET, given the verdict on this one."""
    question = seen.question
    independent = quantiles.trials_for_share(
        seen.misses, seen.n, question.allowed, question.confidence
    )
    if seen.evidence:
        trials = sequential.trials_until_met(
            seen.misses, seen.n, float(question.allowed), question.burst_length, question.confidence
        )
        return NewRecording(trials, independent)
    trials = _trials(seen, independent)
    if independent is None or outcome != Outcome.NOT_ENOUGH_EVIDENCE:
        return NewRecording(trials, independent)
    like = _Like(question, seen.misses, seen.n, seen.dependence.factor, seen.tau)
    chance = None if trials is None else like.chance(trials)
    return NewRecording(trials, independent, chance, like.likely_trials)


def _trials(seen: AtDeadline, independent: int | None) -> int | None:
    """The number of trials that proves MET at the observed miss rate and dependence; None if none
    does."""
    if independent is None:
        return None
    lacking = Outcome.NOT_ENOUGH_EVIDENCE
    if at_effective_size(seen) == lacking and seen.dependence.at_deadline:
        return _repeated(seen, independent)
    factor = seen.dependence.factor
    # If this recording is too short anyway, what may be a drift of the bulk says nothing about a
    # longer one.
    if fixed_number(seen) == lacking and min(each.n for each in seen.rounds) < LEVEL_TRIALS:
        factor = 1.0
    return _settled(
        seen,
        math.ceil(independent / factor),
        lambda misses: _trials_with(seen.question, misses, factor),
    )


def _trials_with(question: Question, misses: int, factor: float) -> int:
    """Minimum number of trials in which so many misses prove MET; above 1e9 if none does.

    `factor`: effective sample size over n.
    """
    asked = question.allowed, question.confidence
    effective = quantiles.trials_for(math.ceil(factor * misses - 1e-9), *asked)
    trials = math.ceil(effective / factor)
    if question.burst_length == 1:
        return trials
    return max(trials, bursts.trials_for_in_bursts(misses, *asked, question.burst_length))


def _settled(seen: AtDeadline, trials: int, least: Callable[[int], int]) -> int | None:
    """The first number of trials, from `trials` on, that is enough for the misses expected in it;
    None above 1e9.

    `least`: number of misses -> trials.
    """
    while trials <= quantiles.LONGEST:
        enough = least(-(-trials * seen.misses // seen.n))
        if enough <= trials:
            return trials
        trials = enough
    return None


def _repeated(seen: AtDeadline, least: int) -> int | None:
    """Length at which this recording, repeated with its bursts of misses, proves MET; at least
    `least`.

    From few misses, only a bound of the length of bursts is known, which decreases as they are
    repeated. The search goes up by 10 %, or by one recording.
    """
    question = seen.question
    asked = question.allowed, question.confidence
    times = -(-least // seen.n)
    while times * seen.n <= quantiles.LONGEST:
        dependence = assess(seen.timed, seen.places, float(question.allowed), times)
        effective = dependence.effective(times * seen.misses, times * seen.n)
        if quantiles.proves_below(*effective, *asked):
            break
        times += max(1, times // 10)
    else:
        return None
    if question.burst_length == 1:
        return times * seen.n
    return _settled(
        seen,
        times * seen.n,
        lambda misses: bursts.trials_for_in_bursts(misses, *asked, question.burst_length),
    )


@dataclass(frozen=True)
class _Like:
    """New recordings like one of n trials with so many misses, of which `tau` count as one."""

    question: Question
    misses: int
    n: int
    factor: float
    tau: float

    def chance(self, trials: int) -> float:
        """The chance that so many new trials prove MET, whose misses have a beta-binomial law
        (prior of Jeffreys)."""
        allowed = math.ceil(trials * float(self.question.allowed))
        most = most_true(lambda misses: self._trials_with(misses) <= trials, allowed)
        if most is None:
            return 0.0
        seen = self.misses / self.tau + 0.5
        others = (self.n - self.misses) / self.tau + 0.5
        drawn = trials / self.tau
        if most > MANY_MISSES:  # their rate is known as well as it is drawn
            return float(special.betainc(seen, others, most / trials))
        count = np.arange(math.floor(most / self.tau) + 1)
        log_chances = (
            special.betaln(seen + count, others + drawn - count)
            - special.betaln(seen, others)
            - special.betaln(drawn - count + 1, count + 1)
            - math.log(drawn + 1)
        )
        return min(1.0, float(np.exp(log_chances).sum()))

    @property
    def likely_trials(self) -> int | None:
        """The length that proves MET with the chance `LIKELY` at the miss rate (misses + 1/2) / n;
        None above 1e9."""
        rate = (self.misses + 0.5) / self.n
        if rate >= float(self.question.allowed):
            return None

        def enough(misses: int) -> bool:
            trials = self._trials_with(misses)
            if trials > quantiles.LONGEST:
                return True
            if self.tau == 1:
                return quantiles.at_most(misses, trials, rate) >= LIKELY
            return bursts.polya_aeppli(misses, trials * rate, self.tau) >= LIKELY

        misses = range(math.ceil(quantiles.LONGEST * rate))
        trials = self._trials_with(bisect_left(misses, True, key=enough))
        return trials if trials <= quantiles.LONGEST else None

    def _trials_with(self, misses: int) -> int:
        return _trials_with(self.question, misses, self.factor)
