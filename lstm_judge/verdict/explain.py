"""Why misses that prove MET or MISSED do not suffice, or why they prove neither, as text."""

from __future__ import annotations

from collections.abc import Iterator

from lstm_judge.outcomes import Outcome, SteadyState
from lstm_judge.read.numbers import signed_percent
from lstm_judge.statistics import bursts, quantiles
from lstm_judge.statistics.segments import SAME_LEVEL
from lstm_judge.statistics.sequential import limit_ns
from lstm_judge.verdict.answer import NewRecording
from lstm_judge.verdict.measure import AtDeadline, RoundAtDeadline
from lstm_trt.config.format import count, microseconds, short_number

#: Bursts of slow calls say nothing about misses if the deadline is so many times as far from the
#: median.
FAR_FROM_SLOW = 2


def against_met(seen: AtDeadline) -> Iterator[str]:
    """Reasons against MET where the number of misses proves it.

    All trials together can meet a deadline that one round, or its end, misses: so these count.
    """
    if not seen.evidence:
        yield from bursts_not_excluded(seen)
        yield from dependent_trials(seen)
    yield from slow_rounds(seen)
    yield from slow_segments(seen)
    yield from drifts(seen)
    yield from slow_calls(seen)


def bursts_not_excluded(seen: AtDeadline) -> Iterator[str]:
    """Bursts as long as was given, with which so few misses occur too often (`bursts.py`)."""
    question = seen.question
    asked = question.allowed, question.confidence, question.burst_length
    if not bursts.proves_below_in_bursts(seen.misses, seen.n, *asked):
        yield (
            f"{count(seen.misses, 'miss')} in {seen.n} trials do not exclude bursts of misses of "
            f"{short_number(question.burst_length)} calls, averaged over misses"
        )


def dependent_trials(seen: AtDeadline) -> Iterator[str]:
    """Dependence, at whose effective sample size MET is not proven (`dependence.py`)."""
    if not seen.met_at_effective_size:
        yield (
            f"slow calls come in bursts: {seen.dependence.how}; "
            f"{seen.n} trials, effective sample size {seen.effective[1]}"
        )


def slow_rounds(seen: AtDeadline) -> Iterator[str]:
    """Rounds that by themselves miss more than allowed (Bonferroni over the rounds)."""
    for each in seen.rounds:
        if _misses_more(seen, each.misses, each.n, tests=len(seen.rounds)):
            yield (f"round {each.number} alone misses more than allowed: {each.misses} of {each.n}")


def slow_segments(seen: AtDeadline) -> Iterator[str]:
    """Segments after the first of a round that by themselves miss more than allowed (Bonferroni
    over these)."""
    later = []
    for each in seen.rounds:
        if each.segments is not None:
            later += [(each, segment) for segment in each.segments.segments[1:]]
    for each, segment in later:
        start = segment.start * each.trials.step
        stop = min(segment.stop * each.trials.step, each.n)
        missed = each.misses_within(start, stop)
        if _misses_more(seen, missed, stop - start, tests=len(later)):
            yield (
                f"trials {start + 1} to {stop}{_of_round(seen, each)} alone miss more than "
                f"allowed: {missed} of {stop - start}"
            )


def _misses_more(seen: AtDeadline, misses: int, n: int, tests: int) -> bool:
    """Whether this part of the trials, one of so many that are tested, misses more than allowed."""
    confidence = 1 - (1 - seen.question.confidence) / tests
    return quantiles.proves_above(misses, n, seen.question.allowed, confidence)


def drifts(seen: AtDeadline) -> Iterator[str]:
    """Rounds that become slower without reaching a steady state, and whose last segment would miss
    more than allowed if the drift continued.

    Its latencies are scaled to the final level and slowed down once more by the same drift; of
    several levels also their shares, as the drift contains them, change once more.
    """
    for each in seen.rounds:
        course = each.segments
        if course is None or course.drift <= SAME_LEVEL:
            continue
        if course.steady_state not in (SteadyState.SLOWDOWN, SteadyState.NONE):
            continue
        start = course.segments[-1].start
        later_ns = course.level_ns[-1] ** 2 / course.level_ns[0]
        last_ns = each.trials.latency_ns[start:] / course.level_ns[start:] * later_ns
        late = last_ns > limit_ns(seen.question.deadline_us)
        weights = course.levels.weights(start)[late] if course.levels else late
        missed = round(weights.sum())
        if missed > seen.question.allowed * len(last_ns):
            yield (
                f"drift{_of_round(seen, each)} {signed_percent(course.drift)}: if it continues, "
                f"{missed} of the last {len(last_ns)} trials would miss the deadline"
            )


def _of_round(seen: AtDeadline, each: RoundAtDeadline) -> str:
    return f" of round {each.number}" if len(seen.rounds) > 1 else ""


def slow_calls(seen: AtDeadline) -> Iterator[str]:
    """Slow calls near the deadline that come in longer bursts than MET holds for."""
    slow = seen.measured.slow
    if slow is None or not slow.longer_than(seen.assumed_length):
        return
    median_us = seen.measured.pooled.median_us
    if seen.question.deadline_us - median_us < FAR_FROM_SLOW * (slow.above_us - median_us):
        yield (
            f"slow calls, above {microseconds(slow.above_us)} us, come in bursts of at least "
            f"{slow.length_low:.3g} calls on average, longer than the "
            f"{seen.assumed_length:.3g} for which MET holds"
        )


def against_missed(seen: AtDeadline) -> Iterator[str]:
    """So many misses are not MISSED if they come in too few bursts."""
    n = seen.n / seen.tau
    asked = seen.question.allowed, seen.question.confidence
    if not seen.evidence and not quantiles.proves_above(seen.certain / seen.tau, n, *asked):
        yield (
            f"misses come in bursts: {seen.misses} in {seen.n} trials count as "
            f"{seen.misses / seen.tau:.3g} in {n:.0f} trials, too few to prove MISSED"
        )


def undecided(seen: AtDeadline) -> list[str]:
    """Why a recording that was to end when it was decided is not: rounds that alone are MISSED, or
    too few trials."""
    alone = []
    for each in seen.rounds:
        if each.evidence is not None and each.evidence.outcome == Outcome.MISSED:
            alone.append(
                f"round {each.number} alone is MISSED ({count(each.misses, 'miss')} in "
                f"{count(each.n, 'trial')}), but all rounds together do not prove it"
            )
    return alone or [f"{count(seen.n, 'trial')} did not decide it"]


def too_few(seen: AtDeadline, new: NewRecording) -> str:
    """Why so many trials do not prove MET, and how many would."""
    rate = f"{seen.misses} of {seen.n}"
    if seen.certain != seen.misses:
        rate = f"{seen.certain} to {rate} by what is known of each time"
    if seen.misses >= seen.question.allowed * seen.n:
        return f"the observed miss rate, {rate}, is not below the allowed rate"
    if new.trials is None:
        return "more than 1e9 new trials would be needed at the observed miss rate"
    trials = count(seen.n, "trial")
    few = f"{trials} without a miss are too few"
    if seen.misses:
        few = f"the observed miss rate, {rate}, is too close to the allowed rate for {trials}"
    if new.trials == new.trials_if_independent:
        return f"{few}: {new.trials} are needed"
    return (
        f"{few}: {new.trials} are needed, because slow calls come in bursts: {seen.dependence.how}"
    )
