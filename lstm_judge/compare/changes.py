"""Whether a percentile, or the rate of misses, of B differs from that of A.

The unit of replication is the process. The same script in ten processes had medians that were
known to 0.07 % each but differed by 3 %, so disjoint intervals of two processes prove nothing.
The question is whether *another* process of B would differ from *another* process of A.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import astuple
from fractions import Fraction

import numpy as np

from lstm_judge.compare.answer import MissRates, PercentileChange, Question, Ratio
from lstm_judge.outcomes import Change
from lstm_judge.statistics import quantiles
from lstm_judge.statistics.dependence import effective_n
from lstm_judge.statistics.sequential import limit_ns
from lstm_judge.statistics.trials import Trials
from lstm_trt.config.format import short_number

#: The timed trials of each process of A, and of B.
Sides = Sequence[Sequence[Trials]]

#: A threshold belongs to the tail if at most this many times as many trials exceed it as exceed the
#: percentile.
TAIL = 5

#: Miss rates whose ratio is between 1 / 1.25 and 1.25 are the same: a margin of 2 % would need
#: 10 000 misses a process.
RATE_EFFECT = 0.25


def tail_change(sides: Sides, question: Question, machine: float) -> PercentileChange:
    """The change of the highest percentile that has an upper bound in every process."""
    least = min(process.n for side in sides for process in side)
    for percentile, share in question.tails.items():
        _, high = quantiles.interval_ranks(least, share, question.confidence)
        if high is not None:
            return percentile_change(sides, f"p{percentile:.15g}", share, question, machine)
    return PercentileChange(
        change=Change.AMBIGUOUS,
        percentile=None,
        ratio=Ratio(),
        a_us=(),
        b_us=(),
        reason=f"tail: n = {least} is too small for an upper bound of p{min(question.tails):g}",
        rounds_needed=0,
    )


def percentile_change(
    sides: Sides, heading: str, share: Fraction, question: Question, machine: float
) -> PercentileChange:
    """The change of the percentile `share`, which reasons call `heading`.

    `machine`: the ratio B / A of the control runs, or 1.
    """
    a_ns, b_ns = (
        np.array([quantiles.percentile(process.ordered_ns, share) for process in side])
        for side in sides
    )
    ratios = np.sort(np.divide.outer(b_ns, a_ns).ravel())
    middle = _middle(ratios)
    ratio = _ratio(middle, ratios, ratios, sides, question)
    if min(map(len, sides)) < quantiles.ROUNDS:
        change, reason = _in_few_rounds(sides, (a_ns, b_ns), middle, share, question, machine)
    else:
        change, reason = _decided(ratio, sides, question, Change.FASTER, Change.SLOWER)
    return PercentileChange(
        change=change,
        percentile=float(100 * share),
        ratio=ratio,
        a_us=tuple((a_ns / 1e3).tolist()),
        b_us=tuple((b_ns / 1e3).tolist()),
        reason=f"{heading}: {reason}",
        rounds_needed=_rounds_needed(change, sides, question),
    )


def _middle(ratios: np.ndarray) -> float:
    """The median of ascending ratios; of two middle ones their geometric mean."""
    return math.sqrt(float(ratios[(len(ratios) - 1) // 2]) * float(ratios[len(ratios) // 2]))


def _ratio(
    estimate: float, lows: np.ndarray, highs: np.ndarray, sides: Sides, question: Question
) -> Ratio:
    """The ratio with its interval over rounds, from the ascending ratios of all rounds of B to all
    rounds of A, of which each is at least `lows` and at most `highs`."""
    rank = quantiles.ratio_rank(*map(len, sides), question.each)
    if not rank:
        return Ratio(estimate)
    return Ratio(estimate, float(lows[rank - 1]), float(highs[-rank]))


def _decided(
    ratio: Ratio, sides: Sides, question: Question, less: Change, more: Change
) -> tuple[Change, str]:
    """Whether a ratio B / A with these bounds is the same, less or more; and why."""
    low = ratio.low
    high = ratio.high
    if low is None or high is None:
        m, n = map(len, sides)
        return Change.AMBIGUOUS, (
            f"{m} and {n} rounds give no interval at {100 * question.confidence:g} % confidence;"
            f" record {_fewest_rounds(question)} per side"
        )
    effect = question.effect
    if more == Change.MORE:
        effect = max(effect, RATE_EFFECT)
    bounds = f"the ratio over rounds is between {low:.4g} and {high:.4g}"
    if math.isinf(high):
        bounds = f"the ratio over rounds is at least {low:.4g}, without an upper bound"
    if math.isinf(low):
        bounds = "the ratio over rounds has no bound, because processes of A have no miss"
    margin = f"{100 * effect:g} %"
    least = 1 / (1 + effect)
    most = 1 + effect
    if high < least or low > most:
        apart = f"{bounds}, which differs from 1 by more than {margin}"
        return (less if high < least else more), apart
    if least <= low and high <= most:
        return Change.SAME, f"{bounds}, which is within {margin} of 1"
    return Change.AMBIGUOUS, f"{bounds}, neither entirely within {margin} of 1 nor entirely beyond"


def _fewest_rounds(question: Question) -> int:
    """Rounds per side that give an interval of the ratio over rounds, at least `ROUNDS` and at most
    100."""
    for rounds in range(quantiles.ROUNDS, 100):
        if quantiles.ratio_rank(rounds, rounds, question.each):
            return rounds
    return 100


def _rounds_needed(change: Change, sides: Sides, question: Question) -> int:
    """Rounds per side that may decide an AMBIGUOUS result, otherwise 0."""
    if change != Change.AMBIGUOUS:
        return 0
    m, n = map(len, sides)
    if min(m, n) < quantiles.ROUNDS or not quantiles.ratio_rank(m, n, question.each):
        return _fewest_rounds(question)
    return 2 * max(m, n)


def _processes(sides: Sides) -> str:
    m, n = map(len, sides)
    if m != n:
        return f"{m} and {n} processes"
    return "one process per side" if m == 1 else f"{m} processes per side"


# Fewer than 5 rounds per side


def _in_few_rounds(
    sides: Sides,
    values_ns: tuple[np.ndarray, np.ndarray],
    ratio: float,
    share: Fraction,
    question: Question,
    machine: float,
) -> tuple[Change, str]:
    """FASTER or SLOWER if nothing else can explain the ratio B / A of the percentiles `values_ns`;
    and why."""
    smallest = max(quantiles.ONE_PROCESS_RATIO, 1 + question.effect)
    slow = int(ratio > 1)
    apart = max(ratio, 1 / ratio)
    doubt = _doubt_of_ratio(sides, values_ns, apart, smallest, machine if slow else 1 / machine)
    if doubt is not None:
        return Change.AMBIGUOUS, doubt
    effective = _effective_share(sides, values_ns, share)
    lows, highs = (
        [
            quantiles.interval(process.ordered_ns, share, question.confidence, effective)[end]
            for process in sides[side]
        ]
        for side, end in ((slow, 0), (1 - slow, 1))
    )
    rounds = _processes(sides)
    if None in (*lows, *highs):
        return Change.AMBIGUOUS, (
            f"trials are too correlated for an interval with {rounds}"
            f" (effective sample size {100 * effective:.0f} % of n)"
        )
    low_ns = np.array(lows)
    high_ns = np.array(highs)
    if high_ns.max() >= low_ns.min():
        return Change.AMBIGUOUS, "the exact intervals of the processes overlap"
    # The uncertainty within processes adds in quadrature to the difference between processes.
    chance_slow = math.log((values_ns[slow] / low_ns).max())
    chance_fast = math.log((high_ns / values_ns[1 - slow]).max())
    needed = math.exp(math.hypot(math.log(smallest), chance_slow, chance_fast))
    if apart <= needed:
        return Change.AMBIGUOUS, (
            f"a ratio below {needed:.2f} is inconclusive with {rounds}"
            " and the uncertainty within each process"
        )
    return (Change.SLOWER if slow else Change.FASTER), (
        f"disjoint intervals and a ratio above {needed:.2f}, of {rounds}; assumes that processes"
        " of one configuration differ by less than"
        f" {100 * (quantiles.ONE_PROCESS_RATIO - 1):.0f} %"
    )


def _doubt_of_ratio(
    sides: Sides,
    values_ns: tuple[np.ndarray, np.ndarray],
    apart: float,
    smallest: float,
    machine: float,
) -> str | None:
    """Why a ratio `apart`, above 1, can be chance: also equal processes, rounds of one side, or the
    control runs (whose ratio in the same direction is `machine`) differ as much."""
    rounds = _processes(sides)
    if apart <= smallest:
        return (
            f"a difference under {100 * (smallest - 1):.3g} % is inconclusive with {rounds};"
            f" record {quantiles.ROUNDS} per side"
        )
    within = max(float(value.max() / value.min()) for value in values_ns)
    if apart <= within:
        return f"rounds of one side already differ by a ratio of {within:.2f}"
    if apart <= smallest * machine:
        return (
            f"the control runs (an empty step) also differ by a ratio of {machine:.2f},"
            f" with {rounds}"
        )
    return None


def _effective_share(
    sides: Sides, values_ns: tuple[np.ndarray, np.ndarray], share: Fraction
) -> float:
    """Effective sample size over the number of trials, the minimum of all processes.

    Computed for exceedances of each process's own percentile, and of the geometric mean of all
    percentiles if that is in the tail. The minimum, because a burst of slow calls in one process
    leaves no trace in the others.
    """
    pooled_ns = np.concatenate(values_ns)
    middle_ns = math.exp(np.mean(np.log(pooled_ns)))
    shares = []
    for process, own_ns in zip(itertools.chain(*sides), pooled_ns, strict=True):
        beyond = process.latency_ns > middle_ns
        shares.append(effective_n(process.latency_ns > own_ns) / len(beyond))
        if beyond.mean() <= TAIL * (1 - share):
            shares.append(effective_n(beyond) / len(beyond))
    return min(shares)


# Miss rates


def miss_rates(sides: Sides, deadline_us: float, question: Question) -> MissRates:
    """The change of the miss rates at a deadline.

    The interval of the ratio is that of the Mann-Whitney test, inverted. A pair of rates that are
    both 0 has any ratio: it counts against either direction, so that with ties the interval has at
    least its confidence.
    """
    calls = min(process.n for side in sides for process in side)
    a, b = (
        np.array(
            [np.sum(process.above(limit_ns(deadline_us))[0] < calls) / calls for process in side]
        )
        for side in sides
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.divide.outer(b, a).ravel()
    lows = np.sort(np.where(np.isnan(ratios), 0, ratios))
    highs = np.sort(np.where(np.isnan(ratios), math.inf, ratios))
    estimate = _middle(lows) if _middle(lows) == _middle(highs) else math.inf
    ratio = _ratio(estimate, lows, highs, sides, question)
    change = Change.AMBIGUOUS
    missed = a.any() or b.any()
    if not missed:
        reason = (
            "no call of either side missed, so no number of processes tells how the miss rates"
            " compare; a shorter deadline can be compared"
        )
    elif min(map(len, sides)) < quantiles.ROUNDS:
        reason = f"inconclusive with {_processes(sides)}; record {quantiles.ROUNDS} per side"
    else:
        change, reason = _decided(ratio, sides, question, Change.FEWER, Change.MORE)
    known = [bound and quantiles.finite(bound) for bound in astuple(ratio)]
    return MissRates(
        change=change,
        deadline_us=deadline_us,
        calls=calls,
        ratio=Ratio(*known),
        a=tuple(a.tolist()),
        b=tuple(b.tolist()),
        reason=(
            f"misses of {short_number(deadline_us)} us in the first {calls} calls of each process:"
            f" {reason}"
        ),
        rounds_needed=_rounds_needed(change, sides, question) if missed else 0,
    )
