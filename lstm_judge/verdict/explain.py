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
        length = f"{short_number(question.burst_length)} calls, averaged over misses"
        misses = f"{count(seen.misses, 'miss')} in {seen.n} trials"
        yield f"{misses} do not exclude bursts of misses of {length}"


def dependent_trials(seen: AtDeadline) -> Iterator[str]:
    """Dependence, at whose effective sample size MET is not proven (`dependence.py`)."""
    misses, n = seen.effective
    if not quantiles.proves_below(misses, n, seen.question.allowed, seen.question.confidence):
        sizes = f"{seen.n} trials, effective sample size {n}"
        yield f"slow calls come in bursts: {seen.dependence.how}; {sizes}"


def slow_rounds(seen: AtDeadline) -> Iterator[str]:
    """Rounds that by themselves miss more than allowed (Bonferroni over the rounds)."""
    for each in seen.rounds:
        if _misses_more(seen, each.misses, each.n, tests=len(seen.rounds)):
            missed = f"{each.misses} of {each.n}"
            yield f"round {each.number} alone misses more than allowed: {missed}"


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
            trials = f"trials {start + 1} to {stop}{_of_round(seen, each)}"
            yield f"{trials} alone miss more than allowed: {missed} of {stop - start}"


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
            drift = f"drift{_of_round(seen, each)} {signed_percent(course.drift)}"
            would = f"{missed} of the last {len(last_ns)} trials would miss the deadline"
            yield f"{drift}: if it continues, {would}"


def _of_round(seen: AtDeadline, each: RoundAtDeadline) -> str:
    return f" of round {each.number}" if len(seen.rounds) > 1 else ""


def slow_calls(seen: AtDeadline) -> Iterator[str]:
    """Slow calls near the deadline that come in longer bursts than MET holds for."""
    slow = seen.measured.slow
    if slow is None or not slow.longer_than(seen.assumed_length):
        return
    median_us = seen.measured.pooled.median_us
    to_slow_us = slow.above_us - median_us
    if seen.question.deadline_us - median_us < FAR_FROM_SLOW * to_slow_us:
        length = f"at least {slow.length_low:.3g} calls on average"
        longer = f"longer than the {seen.assumed_length:.3g} for which MET holds"
        above = f"slow calls, above {microseconds(slow.above_us)} us,"
        yield f"{above} come in bursts of {length}, {longer}"


def against_missed(seen: AtDeadline) -> Iterator[str]:
    """So many misses are not MISSED if they come in too few bursts."""
    misses = seen.certain / seen.tau
    n = seen.n / seen.tau
    asked = seen.question.allowed, seen.question.confidence
    if not seen.evidence and not quantiles.proves_above(misses, n, *asked):
        counted = f"{seen.misses / seen.tau:.3g} in {n:.0f} trials"
        many = f"{seen.misses} in {seen.n} trials"
        yield f"misses come in bursts: {many} count as {counted}, too few to prove MISSED"


def undecided(seen: AtDeadline) -> list[str]:
    """Why a recording that was to end when it was decided is not: rounds that alone are MISSED, or
    too few trials."""
    alone = []
    for each in seen.rounds:
        if each.evidence is not None and each.evidence.outcome == Outcome.MISSED:
            missed = f"{count(each.misses, 'miss')} in {count(each.n, 'trial')}"
            together = "but all rounds together do not prove it"
            alone.append(f"round {each.number} alone is MISSED ({missed}), {together}")
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
    if seen.misses:
        few = f"the observed miss rate, {rate}, is too close to the allowed rate for {trials}"
    else:
        few = f"{trials} without a miss are too few"
    needed = f"{few}: {new.trials} are needed"
    if new.trials == new.trials_if_independent:
        return needed
    return f"{needed}, because slow calls come in bursts: {seen.dependence.how}"
