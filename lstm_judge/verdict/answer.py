"""The verdict on one configuration, and its parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from lstm_judge.outcomes import Outcome
from lstm_judge.statistics.bounds import Bounds
from lstm_judge.statistics.bursts import SlowCalls
from lstm_judge.statistics.dependence import Dependence
from lstm_judge.statistics.excess import Excess
from lstm_judge.statistics.processes import Processes
from lstm_judge.statistics.segments import Levels
from lstm_judge.verdict.firm import FirmStatistics
from lstm_judge.verdict.question import Question
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.format import count, microseconds


@dataclass(frozen=True)
class VerdictRound(JsonFields):
    """Statistics of one process. `drift`: last level over first, minus 1 (see `segments.py`).

    `steady_state`, `drift` and `segments` are None if they are not judged, `levels` also unless
    trials alternate between several; `max_us` is None if it is above the range of a histogram.
    """

    round: int
    n: int
    misses: int
    max_us: float | None
    steady_state: str | None = None
    drift: float | None = None
    segments: int | None = None
    levels: Levels | None = None


@dataclass(frozen=True)
class Effective(JsonFields):
    """As how many independent trials and misses these count, for MET and the upper bounds.

    `outcome` is the verdict on these, which can only deny MET, and `outcome_if_independent` that on
    all trials; both ignore drift (`dependence.py`).
    """

    n: int = 0
    misses: int = 0
    outcome: Outcome = Outcome.NOT_ENOUGH_EVIDENCE
    outcome_if_independent: Outcome = Outcome.NOT_ENOUGH_EVIDENCE


@dataclass(frozen=True)
class Bursts(JsonFields):
    """How misses and slow calls come, and what MET assumes about that (`bursts.py`).

    `tau`: the number of misses that count as one, so that `independent_misses` = misses / tau in
    n / tau trials decide MISSED and the lower bounds. `assumed_length`: the longest bursts of
    misses for which these trials prove MET; None unless the verdict is MET. `slow`: how the slowest
    calls come, whether they miss or not; None unless the misses prove MET, or if there are too few.
    `slow_longer`: whether that is in longer bursts than MET holds for.
    """

    tau: float = 1.0
    independent_misses: float = 0.0
    assumed_length: float | None = None
    slow: SlowCalls | None = None
    slow_longer: bool = False


@dataclass(frozen=True)
class NewRecording(JsonFields):
    """The length of a new recording that would prove MET.

    `trials`: at the observed miss rate and dependence (only that of misses if there are too few
    trials to distinguish a drift from bursts); `trials_if_independent` ignores the dependence. Both
    are None if the miss rate is not below the allowed rate, the length is above 1e9, or the
    configuration failed. Such a recording may have more misses than expected: `chance` is that of
    proving MET, given the observed misses (beta-binomial law with the prior of Jeffreys), and
    `trials_for_80_percent` the length that proves it with a chance of 80 % at the miss rate
    (misses + 1/2) / n, None if that is not below the allowed rate. Misses of a burst count as one
    for both. Both are None unless the verdict is NOT ENOUGH EVIDENCE.
    """

    trials: int | None = None
    trials_if_independent: int | None = None
    chance: float | None = None
    trials_for_80_percent: int | None = None


@dataclass(frozen=True)
class EValues(JsonFields):
    """What decides a recording that ended when it was decided (`sequential.py`): the natural
    logarithms of the e-values for MET, of the round with the least, and for MISSED, of all rounds
    together."""

    log_met: float
    log_missed: float


@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict(JsonFields):
    """The verdict on one configuration, all rounds together; JSON values by `as_dict`.

    `reasons`: what prevents MET, as text; never empty if the outcome is NOT ENOUGH EVIDENCE. `n`
    and `misses` count the trials after warm-up. `percentile_us` is the measured percentile (an
    order statistic). `evidence`: None unless the recording ended when it was decided.
    `miss_excess`: what the misses spent more time on than the other calls; None unless MISSED and
    measured. `processes`: what these processes say about another one; None for one process, for
    processes of unequal length, and in a recording that ended when it was decided. All other
    numbers are of these processes together.

    `known_to`: a "bin" of a histogram, which has no order, or a "step" of a clock that shows 0;
    else None. Then `misses` counts the calls that may miss, of which `certain_misses` do, and
    `max_us` is the most that the longest may have taken. `not_judged`: why drift, and of a
    histogram dependence and (m,k), are not; None if they are.
    """

    outcome: Outcome = Outcome.NOT_ENOUGH_EVIDENCE
    question: Question
    reasons: tuple[str, ...]
    n: int = 0
    misses: int = 0
    certain_misses: int = 0
    max_us: float | None = None
    max_with_warmup_us: float | None = None
    percentile_us: float | None = None
    bounds: Bounds = field(default_factory=Bounds)
    effective: Effective = field(default_factory=Effective)
    bursts: Bursts = field(default_factory=Bursts)
    new_recording: NewRecording = field(default_factory=NewRecording)
    evidence: EValues | None = None
    miss_excess: Excess | None = None
    processes: Processes | None = None
    dependence: Dependence = field(default_factory=Dependence)
    firm_statistics: FirmStatistics | None = None
    known_to: str | None = None
    not_judged: str | None = None
    rounds: tuple[VerdictRound, ...] = ()

    @property
    def drift(self) -> float | None:
        """The drift of the largest absolute value among the rounds."""
        drifts = [each.drift for each in self.rounds if each.drift is not None]
        return max(drifts, key=abs, default=None)

    @property
    def trials_needed(self) -> int | None:
        """The length of the new recording that can prove what this one does not."""
        undecided = self.outcome == Outcome.NOT_ENOUGH_EVIDENCE
        return self.new_recording.trials if undecided else None

    @property
    def urgency(self) -> tuple[int, float]:
        """Sort key: MISSED, NOT ENOUGH EVIDENCE, MET; within each the largest maximum first."""
        order = (Outcome.MISSED, Outcome.NOT_ENOUGH_EVIDENCE, Outcome.MET)
        return order.index(self.outcome), -(self.max_us or 0.0)

    def __repr__(self) -> str:
        if not self.n:
            return f"<Verdict: {self.outcome}, {'; '.join(self.reasons)}>"
        return (
            f"<Verdict: {self.outcome}, {count(self.misses, 'miss')} in {self.n} trials, "
            f"max {microseconds(self.max_us)} us>"
        )
