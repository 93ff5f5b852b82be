"""What the trials of one configuration show, before anything is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lstm_judge.read.rounds import Round
from lstm_judge.read.whole import Bins
from lstm_judge.statistics import bursts, quantiles
from lstm_judge.statistics.bounds import Bounds, FixedTests, SequentialTests
from lstm_judge.statistics.dependence import Dependence, Places, assess
from lstm_judge.statistics.segments import Segments, not_judged, segments_of
from lstm_judge.statistics.sequential import Evidence, limit_ns
from lstm_judge.statistics.trials import Trials, timed_rounds
from lstm_judge.verdict.question import Question
from lstm_trt.config.errors import UsageError


@dataclass(frozen=True)
class TimedRound:
    """One round with its trials after warm-up and their segments, None if these are not judged."""

    round: Round
    trials: Trials
    segments: Segments | None

    @property
    def number(self) -> int:
        return self.round.round

    @property
    def n(self) -> int:
        return self.trials.n

    @property
    def spacing_ns(self) -> float:
        """The mean time from call to call; of latencies without start times the mean latency."""
        if self.round.start_ns is None:
            return 1e3 * self.trials.mean_us
        return float(np.diff(self.round.start_ns).mean()) / self.trials.step


@dataclass(frozen=True)
class RoundAtDeadline(TimedRound):
    """With the calls that miss.

    `places`: ascending indices of the trials that may miss, of which `certain` do. `evidence`: None
    unless the recording ended when it was decided.
    """

    places: np.ndarray
    certain: int
    evidence: Evidence | None

    @property
    def misses(self) -> int:
        return len(self.places)

    def misses_within(self, start: int, stop: int) -> int:
        """The number of misses of trials `start` to `stop` (half open)."""
        return int(np.diff(np.searchsorted(self.places, [start, stop]))[0])


@dataclass(frozen=True)
class Measured:
    """The trials of one configuration, whatever the deadline.

    `until`: the length of bursts for which a recording was to be decided; None for a number of
    trials that was fixed beforehand. `not_judged`: why segments are not judged; None if they are.
    """

    rounds: Sequence[TimedRound]
    until: float | None
    not_judged: str | None

    @cached_property
    def pooled(self) -> Trials:
        """The trials of all rounds."""
        if len(self.rounds) == 1:
            return self.rounds[0].trials
        return Trials.of(*(each.round for each in self.rounds))

    @property
    def ordered(self) -> bool:
        """Whether the order of the trials is known: a histogram has none."""
        return not any(isinstance(each.trials.whole, Bins) for each in self.rounds)

    @cached_property
    def slow(self) -> bursts.SlowCalls | None:
        """How the slowest calls come, whether they miss or not."""
        if not self.ordered:
            return None
        return bursts.slow_calls([each.trials for each in self.rounds], self.pooled.ordered_ns)

    @property
    def spacing_ns(self) -> float:
        """The mean time from call to call."""
        return float(np.mean([each.spacing_ns for each in self.rounds]))

    def at(self, question: Question) -> AtDeadline:
        """What they show about this question."""
        if question.burst_ms is not None:
            calls = 1e6 * question.burst_ms / self.spacing_ns
            question = replace(question, burst_length=max(1.0, calls), burst_ms=None)
        if self.until is not None and question.burst_length == 1:
            question = replace(question, burst_length=self.until)
        late_ns = limit_ns(question.deadline_us)
        rounds = []
        for each in self.rounds:
            certain, places = (edge.above(late_ns)[0] for edge in each.trials.bounds)
            evidence = None
            if self.until is not None:
                evidence = Evidence(
                    float(question.allowed), question.burst_length, question.confidence
                )
                evidence.add(np.isin(np.arange(each.n), places))
            rounds.append(
                RoundAtDeadline(
                    each.round, each.trials, each.segments, places, len(certain), evidence
                )
            )
        return AtDeadline(self, question, rounds)


def measure(rounds: Sequence[Round], until: float | None = None) -> Measured:
    """The trials after warm-up of the rounds of one configuration, and their segments.

    Raises `UsageError` if there are none, or a latency is not finite and positive.
    """
    timed = timed_rounds(rounds)
    if not timed:
        raise UsageError("there are no trials after warm-up")
    why = not_judged(timed)
    found = []
    for each in timed:
        trials = Trials.of(each)
        of_calls = not isinstance(trials.whole, Bins)
        if of_calls and not (np.isfinite(trials.latency_ns).all() and trials.latency_ns.min() > 0):
            raise UsageError("latencies must be finite and positive")
        found.append(
            TimedRound(each, trials, segments_of(trials.latency_ns) if why is None else None)
        )
    return Measured(found, until, why)


@dataclass(frozen=True)
class AtDeadline:
    """The misses of one configuration at a deadline, and as how many these count.

    `question`: with the length of bursts in calls. What takes long is computed when it is asked
    for.
    """

    measured: Measured
    question: Question
    rounds: Sequence[RoundAtDeadline]

    @property
    def n(self) -> int:
        return self.measured.pooled.n

    @cached_property
    def misses(self) -> int:
        """The number of calls that may miss."""
        return sum(each.misses for each in self.rounds)

    @cached_property
    def certain(self) -> int:
        """The number of calls that miss."""
        return sum(each.certain for each in self.rounds)

    @property
    def timed(self) -> list[Trials]:
        """The trials of each round."""
        return [each.trials for each in self.rounds]

    @property
    def places(self) -> Places:
        """The places of the misses of each round."""
        return [each.places for each in self.rounds]

    @cached_property
    def evidence(self) -> list[Evidence]:
        """That of each round; empty unless the recording ended when it was decided."""
        return [each.evidence for each in self.rounds if each.evidence is not None]

    @cached_property
    def dependence(self) -> Dependence:
        if not self.measured.ordered:
            return Dependence()
        return assess(self.timed, self.places, float(self.question.allowed))

    @property
    def effective(self) -> tuple[int, int]:
        """Effective numbers of misses and of trials, for MET."""
        return self.dependence.effective(self.misses, self.n)

    @property
    def met_at_effective_size(self) -> bool:
        """Whether the effective numbers prove MET."""
        return quantiles.proves_below(
            *self.effective, self.question.allowed, self.question.confidence
        )

    @cached_property
    def tau(self) -> float:
        """The number of misses, and of trials, that count as one for MISSED."""
        return bursts.autocorrelation_time(self.places, [each.n for each in self.rounds])

    @cached_property
    def assumed_length(self) -> float:
        """The longest bursts of misses for which these trials prove MET, if they do."""
        if self.evidence:
            return self.question.burst_length
        return bursts.longest_assumed(
            self.misses, self.n, self.question.allowed, self.question.confidence
        )

    @property
    def bounds(self) -> Bounds:
        if self.evidence:
            tests = SequentialTests(self.question.allowed, self.evidence, self.tau)
            return tests.bounds(self.measured.pooled, self.timed)
        tests = FixedTests(
            self.question.allowed,
            self.question.confidence,
            self.question.burst_length,
            self.n,
            self.effective[1],
            self.tau,
        )
        return tests.bounds(self.misses, self.certain, self.measured.pooled)
