"""Test whether a percentile of the latency meets a deadline.

There are three verdicts. MET: the exact binomial test rejects that the miss rate is the allowed
rate or more. MISSED: the exact lower bound of the miss rate is above the allowed rate, also if the
misses of a burst are counted as one (`bursts.py`). Otherwise NOT ENOUGH EVIDENCE, with the length
of the new recording that is needed. MET assumes that bursts of misses that were not seen are short;
the length that is assumed can be given. Where the bins of a histogram or a coarse clock leave open
whether a call misses, it does for MET, and does not for MISSED. Only these findings turn MET into
NOT ENOUGH EVIDENCE: dependence, which reduces the effective sample size (`dependence.py`); bursts
as long as was given; a round or a segment that by itself misses more than allowed; a drift that
would carry the tail over the deadline; long bursts of slow calls near the deadline. Parts and drift
matter because all trials together can meet a deadline that one process, or its end, misses.

Bounds of percentile and miss rate are these tests, inverted (`bounds.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from lstm_judge.answers import Answers, runs_to_judge
from lstm_judge.outcomes import Outcome, SteadyState
from lstm_judge.read.foreign import ABSURD_ABOVE_NS, ABSURD_BELOW_NS
from lstm_judge.read.labels import size_of
from lstm_judge.read.numbers import signed_percent
from lstm_judge.read.rounds import Round
from lstm_judge.read.runs import Runs, RunsSource, as_runs
from lstm_judge.read.whole import Bins
from lstm_judge.statistics import bursts, quantiles, sequential
from lstm_judge.statistics.bounds import Bounds, FixedTests, SequentialTests
from lstm_judge.statistics.dependence import LEVEL_TRIALS, Dependence, Places, assess
from lstm_judge.statistics.excess import Spent
from lstm_judge.statistics.parallel import computed
from lstm_judge.statistics.processes import processes_of
from lstm_judge.statistics.segments import SAME_LEVEL, Segments, not_judged, segments_of
from lstm_judge.statistics.sequential import Evidence, limit_ns
from lstm_judge.statistics.trials import Trials, timed_rounds
from lstm_judge.verdict.answer import (
    Bursts,
    Effective,
    EValues,
    NewRecording,
    Verdict,
    VerdictRound,
)
from lstm_judge.verdict.decide import by_count
from lstm_judge.verdict.firm import firm_statistics
from lstm_judge.verdict.question import Question
from lstm_trt import registry
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import count, microseconds, short_number
from lstm_trt.config.libraries import pd, special

#: Exit status of the command for each verdict.
EXIT_STATUS = {Outcome.MET: 0, Outcome.MISSED: 1, Outcome.NOT_ENOUGH_EVIDENCE: 3}

#: A ratio of median to deadline outside these bounds suggests a wrong deadline or unit.
FAR_ABOVE, FAR_BELOW = 100, 2e-3

#: Bursts of slow calls say nothing about misses if the deadline is so many times as far from the
#: median.
FAR_FROM_SLOW = 2

#: Chance of deciding with the length that is recommended. Above this number of misses that may
#: occur, their law is that of their rate.
LIKELY, MANY_MISSES = 0.8, 100_000


def rounds_of(
    question: Question,
    rounds: Sequence[Round],
    timed: Sequence[Trials],
    misses: Places,
    courses: Sequence[Segments | None],
) -> tuple[tuple[VerdictRound, ...], list[str]]:
    """Statistics of each process, and the reasons against MET: one process, or the end of one, is
    too slow.

    A reason is that one of several rounds, or a segment after the first, significantly misses more
    than allowed by itself (Bonferroni correction). Another is drift: a process becomes slower
    without reaching a steady state, and the latencies of its last segment would miss more than
    allowed if they were scaled to the final level and slowed down once more by the same drift; of
    several levels also their shares, as `drift` contains them, change once more. `misses`:
    ascending indices of the trials that may be above the deadline; `courses`: the segments of the
    trials of each process that are in memory, None if not judged.
    """
    allowed, confidence = _test(question)
    later = sum(len(course.segments) - 1 for course in courses if course)

    def alone(part: str, missed: int, n: int, tests: int) -> list[str]:
        proven = quantiles.proves_above(missed, n, allowed, 1 - (1 - confidence) / tests)
        return [f"{part} more than allowed: {missed} of {n}"] if proven else []

    stated, reasons = [], []
    for round_, process, late in zip(rounds, timed, misses, strict=True):
        reasons += alone(f"round {round_.round} alone misses", len(late), process.n, len(rounds))
    for round_, process, late, course in zip(rounds, timed, misses, courses, strict=True):
        counted = (round_.round, process.n, len(late), quantiles.finite(process.bounds[1].max_us))
        if course is None:
            stated.append(VerdictRound(*counted))
            continue
        of_round = f" of round {round_.round}" * (len(rounds) > 1)
        for segment in course.segments[1:]:
            start, stop = segment.start * process.step, min(segment.stop * process.step, process.n)
            inside = int(np.searchsorted(late, stop) - np.searchsorted(late, start))
            trials = f"trials {start + 1} to {stop}{of_round}"
            reasons += alone(f"{trials} alone miss", inside, stop - start, later)
        if (
            course.steady_state in (SteadyState.SLOWDOWN, SteadyState.NONE)
            and course.drift > SAME_LEVEL
        ):
            start = course.segments[-1].start
            later_ns = course.level_ns[-1] ** 2 / course.level_ns[0]
            last = process.latency_ns[start:] / course.level_ns[start:] * later_ns
            weights = course.levels.weights(start) if course.levels else np.ones(len(last))
            missed = round(weights[last > limit_ns(question.deadline_us)].sum())
            if missed > allowed * len(last):
                drift = f"drift{of_round} {signed_percent(course.drift)}: if it continues"
                reasons.append(
                    f"{drift}, {missed} of the last {len(last)} trials would miss the deadline"
                )
        stated.append(
            VerdictRound(
                *counted, course.steady_state, course.drift, len(course.segments), course.levels
            )
        )
    return tuple(stated), reasons


def _test(question: Question) -> tuple[Fraction, float]:
    """Allowed miss rate and confidence, as the tests in `quantiles` and `bursts` take them."""
    return question.allowed, question.confidence


class Verdicts(Answers[Verdict]):
    """Verdicts of configurations; `exit_status` is 1 if any is MISSED, else 3 if any lacks
    evidence, else 0."""

    @property
    def exit_status(self) -> int:
        return min({EXIT_STATUS[answer.outcome] for answer in self.answers} - {0}, default=0)

    @property
    def conclusion(self) -> str:
        """How many configurations meet the deadline, what others lack, and the largest network that
        meets it."""
        return registry.load_entry("TEXTS", "Verdicts").conclusion(self)

    def largest(self, by: str = "flops", places: Iterable[int] | None = None) -> int | None:
        """The place of the largest network (`by`: see `size_of`) that is MET, of all or of some
        `places`; or None.

        Of networks of equal size it is that with the smallest maximum.
        """
        chosen = range(len(self)) if places is None else places
        met = {
            place: self.runs[place].configuration
            for place in chosen
            if self[place].outcome == Outcome.MET
        }
        sizes = {place: known and size_of(known.workload, by) for place, known in met.items()}
        sized = [place for place, size in sizes.items() if size is not None]
        return max(
            sized, key=lambda place: (sizes[place], -(self[place].max_us or math.inf)), default=None
        )

    @property
    def frame(self) -> pd.DataFrame:
        """A row per configuration, the largest maximum first.

        `miss_rate_upper_percent`: one-sided upper bound of the miss rate. `trials_needed`: length
        of a new recording, if the verdict is NOT ENOUGH EVIDENCE and a recording could prove MET.
        """
        frame = super().frame.astype({"trials_needed": "Int64"})
        return frame.sort_values("max_us", ascending=False, na_position="last", ignore_index=True)

    def _row(self, answer: Verdict) -> dict:
        high = answer.bounds.miss_rate_high
        lacking = answer.outcome == Outcome.NOT_ENOUGH_EVIDENCE
        return {
            "verdict": answer.outcome,
            "max_us": answer.max_us,
            "n": answer.n,
            "misses": answer.misses,
            "miss_rate_upper_percent": None if high is None else 100 * high,
            "effective_n": answer.effective.n,
            "trials_needed": answer.new_recording.trials if lacking else None,
            "because": "; ".join(answer.reasons),
        }


def verdict(
    runs: RunsSource,
    deadline_us: float,
    percentile: str | float = "99.9",
    confidence: float = quantiles.DEFAULT_CONFIDENCE,
    *,
    burst_length: float = 1.0,
    burst_ms: float | None = None,
) -> Verdicts:
    """Test whether a percentile of the latency of each configuration meets the deadline, at this
    confidence.

    `runs`: the result of `load`, or a path, recordings or groups. MET must hold for bursts of
    misses of up to `burst_length` calls, averaged over misses, or of `burst_ms` by the time from
    call to call. A configuration that failed has the verdict NOT ENOUGH EVIDENCE. Raises
    `UsageError` if an argument is out of range, or a configuration has fewer than 2 trials after
    warm-up.
    """
    question = Question(
        deadline_us, percentile, confidence, burst_length, burst_ms
    )  # refused before reading files
    runs = runs_to_judge(runs, bounds=True)
    measured = [group for group in runs if group.failure is None]
    asked = [(group.plain.rounds, question, group.until) for group in measured]
    judged = iter(computed(judged_of, asked, [group.n for group in measured]))
    verdicts = tuple(
        _explained(next(judged), group.rounds)
        if group.failure is None
        else failed(group.failure, question)
        for group in runs
    )
    return Verdicts(runs, verdicts, (*runs.remarks, *_far_deadline(runs, question.deadline_us)))


def provable(runs: RunsSource, deadline_us: float) -> Verdicts | None:
    """The verdicts at the highest percentile that each of the recordings can prove, p99 if they are
    too short for any.

    None if no configuration failed or has two trials. `runs` and errors: as for `verdict`.
    """
    runs = as_runs(runs)
    judged = tuple(group for group in runs if group.failure or group.n > 1)
    percentile = evidence_percentile(min((group.n for group in judged if group.n), default=0))
    return (
        verdict(replace(runs, groups=judged), deadline_us, percentile or "99") if judged else None
    )


def _far_deadline(runs: Runs, deadline_us: float) -> list[str]:
    """A warning if all medians are so far from the deadline that it, or the unit of a table, may be
    wrong.

    Networks of a grid can differ by more than that: the nearest median decides. There is no warning
    if reading a table gave one about the unit already.
    """
    groups = [group for group in runs if group.failure is None]
    medians = [group.median_ns for group in groups]
    if not runs.own and any(
        not ABSURD_BELOW_NS <= median_ns <= ABSURD_ABOVE_NS for median_ns in medians
    ):
        return []
    ratios = [median_ns / 1e3 / deadline_us for median_ns in medians]
    if not ratios or (min(ratios) <= FAR_ABOVE and max(ratios) >= FAR_BELOW):
        return []
    ratio = min(ratios) if min(ratios) > FAR_ABOVE else max(ratios)
    unit = f"{runs.how.get('unit', 'us')} the right unit"
    doubt = f"{short_number(deadline_us)} us the right deadline" if runs.own else unit
    return [
        f"the median of {groups[ratios.index(ratio)].name} is {ratio:.3g} times the deadline: is {doubt}?"
    ]


#: Of one configuration its rounds, what is tested, and `until` of `judge`.
Asked = tuple[Sequence[Round], Question, float | None]


def judge(rounds: Sequence[Round], question: Question, until: float | None = None) -> Verdict:
    """Test whether the percentile of the latency of all rounds (one per process) meets the
    deadline.

    The number of trials must be fixed before they are recorded: appending trials and testing again
    inflates false METs (9 % after 3 tests). If the miss rate is exactly the allowed one, MET occurs
    in at most 1 - confidence of recordings whose misses are independent, or come in bursts of
    geometric lengths of at most `burst_length` calls on average, and MISSED in as many if bursts
    are short (`bursts.py` says for which this was simulated).

    `until`: the length of bursts for which a recording was to be decided; then `sequential.py`
    decides. Raises `UsageError` if there are no trials after warm-up, or a latency is not finite
    and positive.
    """
    return _explained(judged_of((rounds, question, until)), rounds)


def _explained(verdict: Verdict, rounds: Sequence[Round]) -> Verdict:
    """The verdict, if it is MISSED with what the misses spent more time on."""
    if verdict.outcome != Outcome.MISSED or verdict.known_to:
        return verdict
    rounds = timed_rounds(rounds)
    late = [round_.timed_ns > limit_ns(verdict.question.deadline_us) for round_ in rounds]
    return replace(verdict, miss_excess=Spent(rounds).excess(late, [~each for each in late]))


def misses_of(timed: Sequence[Trials], deadline_us: float) -> tuple[list[Any], int]:
    """Places of the trials of each process that may miss, and the number of all that do for
    certain."""
    late_ns = limit_ns(deadline_us)
    certain, misses = zip(
        *([edge.above(late_ns)[0] for edge in process.bounds] for process in timed), strict=True
    )
    return list(misses), sum(map(len, certain))


def judged_of(asked: Asked) -> Verdict:
    """`judge` without `miss_excess`."""
    rounds, question, until = asked
    kept = timed_rounds(rounds)
    if not kept:
        raise UsageError("there are no trials after warm-up")
    timed = list(map(Trials.of, kept))
    for process in timed:
        if isinstance(process.whole, Bins):
            continue
        if not np.isfinite(process.latency_ns).all() or process.latency_ns.min() <= 0:
            raise UsageError("latencies must be finite and positive")
    why = not_judged(kept)
    courses = [None if why else segments_of(process.latency_ns) for process in timed]
    return _judged((kept, question, until), timed, courses, why)


def _in_calls(question: Question, rounds: Sequence[Round], timed: Sequence[Trials]) -> Question:
    """The question with the length of bursts in calls: their duration by the mean time from call to
    call."""
    if question.burst_ms is None:
        return question
    spacings_ns = []
    for round_, process in zip(rounds, timed, strict=True):
        closed_ns = 1e3 * process.statistic("mean_us")
        spacings_ns.append(
            closed_ns if round_.start_ns is None else np.diff(round_.start_ns).mean() / process.step
        )
    burst_length = max(1.0, 1e6 * question.burst_ms / float(np.mean(spacings_ns)))
    return replace(question, burst_length=burst_length, burst_ms=None)


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """What the trials of one configuration show, before anything is decided.

    `timed`: those of each process, `pooled`: of all. `misses`: ascending indices of the trials of
    each process that may miss, of which `certain` do. `evidence`: of each process, if the recording
    ended when it was decided. `slow_parts`: reasons against MET of `rounds_of`.
    """

    question: Question
    rounds: Sequence[Round]
    timed: Sequence[Trials]
    pooled: Trials
    misses: Places
    certain: int
    evidence: Sequence[Evidence]
    dependence: Dependence
    tau: float
    stated: tuple[VerdictRound, ...]
    slow_parts: Sequence[str]

    @property
    def n(self) -> int:
        return self.pooled.n

    @cached_property
    def missed(self) -> int:
        return sum(map(len, self.misses))

    @property
    def ordered(self) -> bool:
        """Whether the order of the trials is known: a histogram has none."""
        return _ordered(self.timed)

    @property
    def effective(self) -> tuple[int, int]:
        """Effective numbers of misses and of trials, for MET."""
        return self.dependence.effective(self.missed, self.n)

    @cached_property
    def trials_if_independent(self) -> int | None:
        """Length of a new recording that would prove MET, if all trials were independent."""
        return quantiles.trials_for_share(self.missed, self.n, *_test(self.question))

    @cached_property
    def independent_verdict(self) -> Outcome:
        """The verdict if all trials were independent."""
        return by_count(self.question, self.missed, self.n, self.certain)

    @cached_property
    def effective_verdict(self) -> Outcome:
        """That at the effective sample size, which can only deny MET."""
        if (
            self.independent_verdict == Outcome.MET
            and by_count(self.question, *self.effective) != Outcome.MET
        ):
            return Outcome.NOT_ENOUGH_EVIDENCE
        return self.independent_verdict

    @property
    def bounds(self) -> Bounds:
        if self.evidence:
            return SequentialTests(1 - self.question.share, self.evidence, self.tau).bounds(
                self.pooled, self.timed
            )
        _, effective_n = self.effective
        tests = FixedTests(
            *_test(self.question), self.question.burst_length, self.n, effective_n, self.tau
        )
        return tests.bounds(self.missed, self.certain, self.pooled)


def _ordered(timed: Sequence[Trials]) -> bool:
    return not any(isinstance(process.whole, Bins) for process in timed)


def _measured(
    asked: Asked, timed: Sequence[Trials], courses: Sequence[Segments | None]
) -> _Measured:
    rounds, question, until = asked
    question = _in_calls(question, rounds, timed)
    if until is not None and question.burst_length == 1:
        question = replace(question, burst_length=until)
    misses, certain = misses_of(timed, question.deadline_us)
    evidence = []
    if until is not None:
        for process, places in zip(timed, misses, strict=True):
            seen = Evidence(float(1 - question.share), question.burst_length, question.confidence)
            seen.add(np.isin(np.arange(process.n), places))
            evidence.append(seen)
    stated, slow_parts = rounds_of(question, rounds, timed, misses, courses)
    return _Measured(
        question=question,
        rounds=rounds,
        timed=timed,
        pooled=timed[0] if len(timed) == 1 else Trials.of(*rounds),
        misses=misses,
        certain=certain,
        evidence=evidence,
        dependence=assess(timed, misses, float(1 - question.share))
        if _ordered(timed)
        else Dependence(),
        tau=bursts.autocorrelation_time(misses, [process.n for process in timed]),
        stated=stated,
        slow_parts=slow_parts,
    )


@dataclass(frozen=True)
class _Met:
    """What MET assumes, and what denies it. `assumed`: the longest bursts of misses for which it is
    proven."""

    assumed: float
    slow: bursts.SlowCalls | None
    reasons: Sequence[str]

    @property
    def slow_longer(self) -> bool:
        """Whether the slow calls come in longer bursts than MET holds for."""
        return self.slow is not None and self.slow.longer_than(self.assumed)


def _met(found: _Measured) -> _Met:
    """What MET rests on, where the number of misses proves it."""
    question, n, reasons = found.question, found.n, []
    assumed = question.burst_length
    if not found.evidence:
        assumed = bursts.longest_assumed(found.missed, n, *_test(question))
        if not bursts.proves_below(found.missed, n, *_test(question), question.burst_length):
            long = f"bursts of misses of {short_number(question.burst_length)} calls, averaged over misses"
            reasons.append(f"{count(found.missed, 'miss')} in {n} trials do not exclude {long}")
        if found.effective_verdict != Outcome.MET:
            clustered = f"slow calls come in bursts: {found.dependence.how}"
            reasons.append(f"{clustered}; {n} trials, effective sample size {found.effective[1]}")
    reasons += found.slow_parts
    slow = bursts.slow_calls(found.timed, found.pooled.ordered_ns) if found.ordered else None
    met = _Met(assumed, slow, reasons)
    if slow and met.slow_longer and _near(slow, question, found.pooled):
        above = f"slow calls, above {microseconds(slow.above_us)} us,"
        length = f"at least {slow.length_low:.3g} calls on average"
        reasons.append(
            f"{above} come in bursts of {length}, longer than the {assumed:.3g} for which MET holds"
        )
    return met


def _near(slow: bursts.SlowCalls, question: Question, pooled: Trials) -> bool:
    """Whether the deadline is less than `FAR_FROM_SLOW` times as far from the median as slow calls
    are."""
    median_us = pooled.median_us
    return question.deadline_us - median_us < FAR_FROM_SLOW * (slow.above_us - median_us)


def _few_bursts(found: _Measured) -> list[str]:
    """Why so many misses are not MISSED, if they come in too few bursts."""
    misses, n = found.certain / found.tau, found.n / found.tau
    if found.evidence or quantiles.proves_above(misses, n, *_test(found.question)):
        return []
    counted = f"{found.missed / found.tau:.3g} in {n:.0f} trials"
    many = f"{found.missed} in {found.n} trials"
    return [f"misses come in bursts: {many} count as {counted}, too few to prove MISSED"]


def _new_trials(found: _Measured) -> int | None:
    """Length of a new recording that would prove MET."""
    question = found.question
    if found.evidence:
        asked = (float(1 - question.share), question.burst_length, question.confidence)
        return sequential.trials_for(found.missed, found.n, *asked)
    factor: float | None = found.dependence.factor
    if found.effective_verdict == Outcome.NOT_ENOUGH_EVIDENCE and found.dependence.at_deadline:
        factor = None
    # If this recording is too short anyway, what may be a drift of the bulk says nothing about a
    # longer one.
    elif (
        found.independent_verdict == Outcome.NOT_ENOUGH_EVIDENCE
        and min(each.n for each in found.timed) < LEVEL_TRIALS
    ):
        factor = 1.0
    return _trials_needed(question, found.trials_if_independent, found.timed, found.misses, factor)


def _judged(
    asked: Asked,
    timed: Sequence[Trials],
    courses: Sequence[Segments | None],
    why: str | None = None,
) -> Verdict:
    """`judge` of one configuration, from the timed trials of each round and their segments.

    `why` these are not judged, if they are not.
    """
    found = _measured(asked, timed, courses)
    question, evidence, n, missed, tau = (
        found.question,
        found.evidence,
        found.n,
        found.missed,
        found.tau,
    )
    decided = sequential.outcome_of(evidence) if evidence else found.independent_verdict
    met = _met(found) if decided == Outcome.MET else None
    reasons = list(met.reasons) if met else []
    if decided == Outcome.MISSED:
        reasons += _few_bursts(found)
    verdict = Outcome.NOT_ENOUGH_EVIDENCE if reasons else decided
    needed = found.trials_if_independent
    trials_needed = _new_trials(found)
    chance = likely = None
    if verdict == Outcome.NOT_ENOUGH_EVIDENCE and evidence and decided == verdict:
        reasons += sequential.undecided(evidence, [round_.round for round_ in found.rounds])
    elif verdict == Outcome.NOT_ENOUGH_EVIDENCE:
        if trials_needed is None or found.independent_verdict == verdict:
            how = found.dependence.how
            reasons.append(_missing(question, missed, found.certain, n, needed, trials_needed, how))
        if needed is not None and not evidence:
            planned = _Planned(question, missed, n, found.dependence.factor, tau)
            likely = planned.trials_for(LIKELY)
            chance = trials_needed and planned.chance(trials_needed)
    effective_misses, effective_n = found.effective
    firm = None
    if found.ordered and found.certain == missed:
        firm = firm_statistics(found.misses, [process.n for process in timed])
    most_ns = found.pooled.bounds[1].ordered_ns
    return Verdict(
        outcome=verdict,
        question=question,
        reasons=tuple(reasons),
        n=n,
        misses=missed,
        certain_misses=found.certain,
        max_us=quantiles.finite(float(most_ns[-1]) / 1e3),
        max_with_warmup_us=quantiles.finite(
            max(round_.edge(1).most_ns for round_ in found.rounds) / 1e3
        ),
        percentile_us=quantiles.finite(
            quantiles.percentile(found.pooled.ordered_ns, question.share) / 1e3
        ),
        bounds=found.bounds,
        effective=Effective(
            effective_n, effective_misses, found.effective_verdict, found.independent_verdict
        ),
        bursts=Bursts(
            tau=tau,
            independent_misses=missed / tau,
            assumed_length=met.assumed if met and verdict == Outcome.MET else None,
            slow=met.slow if met else None,
            slow_longer=met is not None and met.slow_longer,
        ),
        new_recording=NewRecording(trials_needed, needed, chance, likely),
        evidence=EValues(
            min(seen.log_met for seen in evidence), sequential.pooled(evidence).log_missed
        )
        if evidence
        else None,
        processes=None
        if evidence
        else processes_of(timed, found.misses, question.share, question.confidence),
        dependence=found.dependence,
        firm_statistics=firm,
        known_to=("step" if found.ordered else "bin") if found.pooled.edges else None,
        not_judged=why,
        rounds=found.stated,
    )


def outcomes_of(asked: tuple[Asked, Sequence[float]]) -> list[Outcome]:
    """The verdicts of `judge` of one configuration at several deadlines, ascending.

    Between the same two latencies the misses are the same, and what MET is denied for then is only
    a drift, which fewer trials exceed at a longer deadline: so MET and MISSED stay what they are.
    What else costs time is computed once.
    """
    (rounds, question, until), deadlines_us = asked
    kept = timed_rounds(rounds)
    timed, found, before = list(map(Trials.of, kept)), [], None
    why, n = not_judged(kept), sum(process.n for process in timed)
    courses = [None if why else segments_of(process.latency_ns) for process in timed]
    for deadline_us in deadlines_us:
        misses, certain = misses_of(timed, deadline_us)
        missed = sum(map(len, misses))
        outcome = by_count(question, missed, n, certain)
        if before == (missed, certain) and found[-1] != Outcome.NOT_ENOUGH_EVIDENCE:
            outcome = found[-1]
        elif until is not None or outcome == Outcome.MET:
            here = replace(question, deadline_us=deadline_us)
            outcome = _judged((kept, here, until), timed, courses, why).outcome
        elif outcome == Outcome.MISSED:
            tau = bursts.autocorrelation_time(misses, [process.n for process in timed])
            proven = quantiles.proves_above(certain / tau, n / tau, *_test(question))
            outcome = outcome if proven else Outcome.NOT_ENOUGH_EVIDENCE
        found.append(outcome)
        before = missed, certain
    return found


def failed(reason: object, question: Question) -> Verdict:
    """The verdict for a configuration without trials: NOT ENOUGH EVIDENCE, with the reason; more
    would not help."""
    return Verdict(question=question, reasons=(str(reason),))


def evidence_percentile(n: int, confidence: float = quantiles.DEFAULT_CONFIDENCE) -> str | None:
    """The highest of 99, 99.9, 99.99, 99.999 that n trials without a miss prove; None below 299
    trials at 95 %."""
    tested = {
        percentile: 1 - quantiles.share_of(percentile)
        for percentile in ("99.999", "99.99", "99.9", "99")
    }
    return next(
        (
            each
            for each, allowed in tested.items()
            if quantiles.proves_below(0, n, allowed, confidence)
        ),
        None,
    )


def _trials_needed(
    question: Question,
    needed: int | None,
    timed: Sequence[Trials],
    misses: Places,
    factor: float | None,
) -> int | None:
    """Length of a new recording that proves MET; `needed` of independent trials.

    `factor`: effective sample size over n; None if the recording itself has to be repeated to know
    it.
    """
    if needed is None:
        return None
    n, missed = sum(process.n for process in timed), sum(map(len, misses))
    if factor is not None:
        first = math.ceil(needed / factor)
        return _settled(first, missed, n, lambda expected: _trials_for(question, expected, factor))
    trials = _repeated(question, needed, timed, misses)
    if trials is None or question.burst_length == 1:
        return trials
    tested = (*_test(question), question.burst_length)
    return _settled(trials, missed, n, lambda expected: bursts.trials_for(expected, *tested))


def _trials_for(question: Question, misses: int, factor: float) -> int:
    """Minimum number of trials in which so many misses prove MET; above 1e9 if none does."""
    effective = quantiles.trials_for(math.ceil(factor * misses - 1e-9), *_test(question))
    trials = math.ceil(effective / factor)
    if question.burst_length > 1:
        trials = max(trials, bursts.trials_for(misses, *_test(question), question.burst_length))
    return trials


@dataclass(frozen=True)
class _Planned:
    """A new recording like one of n trials with so many misses, of which `tau` count as one."""

    question: Question
    misses: int
    n: int
    factor: float
    tau: float

    def chance(self, trials: int) -> float:
        """The chance that so many new trials prove MET, whose misses have a beta-binomial law
        (prior of Jeffreys)."""
        most = self._most_misses(trials)
        if most < 0:
            return 0.0
        seen = self.misses / self.tau + 0.5
        others = (self.n - self.misses) / self.tau + 0.5
        drawn = trials / self.tau
        if most > MANY_MISSES:  # their rate is known as well as it is drawn
            return float(special.betainc(seen, others, most / trials))
        count = np.arange(math.floor(most / self.tau) + 1)
        log_ways = (
            special.gammaln(drawn + 1)
            - special.gammaln(count + 1)
            - special.gammaln(drawn - count + 1)
        )
        log_chances = (
            log_ways
            + special.betaln(seen + count, others + drawn - count)
            - special.betaln(seen, others)
        )
        return min(1.0, float(np.exp(log_chances).sum()))

    def trials_for(self, chance: float) -> int | None:
        """The length that proves MET with this chance at the miss rate (misses + 1/2) / n; None
        above 1e9."""
        rate = (self.misses + 0.5) / self.n
        if rate >= float(1 - self.question.share):
            return None

        def enough(misses: int) -> bool:
            trials = _trials_for(self.question, misses, self.factor)
            if trials > quantiles.LONGEST:
                return True
            if self.tau == 1:
                return quantiles.at_most(misses, trials, rate) >= chance
            return bursts.at_most(misses, trials * rate, self.tau) >= chance

        most = math.ceil(quantiles.LONGEST * rate)
        fewest = bisect_left(range(most), True, key=enough)
        trials = _trials_for(self.question, fewest, self.factor)
        return trials if trials <= quantiles.LONGEST else None

    def _most_misses(self, trials: int) -> int:
        """The largest number of misses that proves MET in so many trials, -1 if none does."""
        most = math.ceil(trials * float(1 - self.question.share))

        def too_many(misses: int) -> bool:
            return _trials_for(self.question, misses, self.factor) > trials

        return bisect_left(range(most), True, key=too_many) - 1


def _settled(trials: int, misses: int, n: int, least: Callable[[int], int]) -> int | None:
    """The first number of trials, from `trials` on, that is enough for the misses expected in it;
    None above 1e9.

    `least`: number of misses -> trials. `misses` in n trials were observed.
    """
    while trials <= quantiles.LONGEST:
        enough = least(-(-trials * misses // n))
        if enough <= trials:
            return trials
        trials = enough
    return None


def _repeated(
    question: Question, least: int, timed: Sequence[Trials], misses: Places
) -> int | None:
    """Length at which this recording, repeated with its bursts of misses, proves MET; at least
    `least`.

    From few misses, only a bound of the length of bursts is known, which decreases as they are
    repeated. The search goes up by 10 %, or by one recording.
    """
    n, missed = sum(process.n for process in timed), sum(map(len, misses))
    times = -(-least // n)
    while times * n <= quantiles.LONGEST:
        dependence = assess(timed, misses, float(1 - question.share), times)
        if quantiles.proves_below(
            *dependence.effective(times * missed, times * n), *_test(question)
        ):
            return times * n
        times += max(1, times // 10)
    return None


def _missing(
    question: Question,
    misses: int,
    certain: int,
    n: int,
    needed: int | None,
    trials_needed: int | None,
    how: str,
) -> str:
    """Why n trials do not prove MET, and how many would; `how` describes the dependence."""
    rate = (
        f"{misses} of {n}"
        if certain == misses
        else f"{certain} to {misses} of {n} by what is known of each time"
    )
    if Fraction(misses, n) >= 1 - question.share:
        return f"the observed miss rate, {rate}, is not below the allowed rate"
    if trials_needed is None:
        return "more than 1e9 new trials would be needed at the observed miss rate"
    close = (
        f"the observed miss rate, {rate}, is too close to the allowed rate for {count(n, 'trial')}"
    )
    few = f"{count(n, 'trial')} without a miss are too few"
    reason = f"{close if misses else few}: {trials_needed} are needed"
    return (
        reason if trials_needed == needed else f"{reason}, because slow calls come in bursts: {how}"
    )
