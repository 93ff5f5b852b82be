"""Compare two recordings: is B faster than A, slower, or the same, by median, tail, misses of a
deadline and clusters.

The unit of replication is the process. The same script in ten processes had medians that were
known to 0.07 % each but differed by 3 %, so disjoint intervals of two processes prove nothing.
The question is whether *another* process of B would differ from *another* process of A.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from lstm_judge.answers import Answers, runs_to_judge
from lstm_judge.compare.pairing import (
    Pairs,
    control_ratio,
    differences,
    pair,
    recorded_first,
    shared,
)
from lstm_judge.outcomes import Change, ClusterChange
from lstm_judge.outliers.outliers import Cluster, Outliers, quick_of
from lstm_judge.read.labels import can_alternate, record_both_command
from lstm_judge.read.rounds import Group, Round
from lstm_judge.read.runs import Runs, RunsSource
from lstm_judge.statistics import quantiles
from lstm_judge.statistics.causes import holm
from lstm_judge.statistics.dependence import effective_n
from lstm_judge.statistics.parallel import computed
from lstm_judge.statistics.sequential import limit_ns
from lstm_judge.statistics.trials import Trials, trials_of
from lstm_trt.config.errors import UsageError, check_number
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.format import short_number
from lstm_trt.config.libraries import pd

#: The timed trials of each process of A, and of B.
Sides = Sequence[Sequence[Trials]]

#: For A and B a bool array per round: whether a trial is in a band of multiples.
Inside = Sequence[Sequence[np.ndarray]]


#: The tail is compared at the highest of these percentiles that has an exact upper bound in every
#: process.
TAILS = {percentile: quantiles.share_of(percentile) for percentile in (99.99, 99.9, 99.0, 90.0)}


@dataclass(frozen=True)
class Question:
    """What is compared, and what counts as a difference.

    `effect`: the smallest relative difference that is relevant; of miss rates at least
    `RATE_EFFECT`. `confidence`: of all comparisons of a pair jointly. `deadline_us`: the miss rates
    at this deadline are compared too. `percentile`: that of the tail; None for the highest of
    `TAILS` that the trials can bound. Raises `UsageError` if one is out of range.
    """

    effect: float = quantiles.EFFECT
    confidence: float = quantiles.DEFAULT_CONFIDENCE
    deadline_us: float | None = None
    percentile: str | float | None = None

    def __post_init__(self) -> None:
        quantiles.check_confidence(self.confidence)
        must = "the effect must be a share such as 0.02, at least 0 and below 1"
        check_number(must, self.effect, lambda share: 0 <= share < 1)
        if self.deadline_us is not None:
            check_number(
                "the deadline must be a positive time in us", self.deadline_us, lambda us: us > 0
            )
        if self.percentile is not None:
            quantiles.share_of(self.percentile)

    @property
    def each(self) -> float:
        """The confidence of each comparison over rounds: all of a pair hold jointly at `confidence`
        (Bonferroni)."""
        comparisons = 2 if self.deadline_us is None else 3
        return 1 - (1 - self.confidence) / comparisons

    @property
    def tails(self) -> dict[float, Fraction]:
        """Percentiles at which the tail may be compared, the preferred one first."""
        if self.percentile is None:
            return TAILS
        share = quantiles.share_of(self.percentile)
        return {float(100 * share): share}

    @property
    def flags(self) -> str:
        """What a command `compare` needs for this deadline and percentile."""
        text = ""
        if self.deadline_us is not None:
            text += f" --deadline-us {self.deadline_us:.15g}"
        if self.percentile is not None:
            text += f" --percentile {self.percentile}"
        return text


# New clusters and clusters that are gone

#: Clusters are the same if their multiples of the median differ by at most this.
NEAR = 0.05


@dataclass(frozen=True)
class ClusterPair(JsonFields):
    """A cluster and its share of the trials on each side, counted in a band of multiples of the
    local median.

    `share` is that of the side that has the cluster (of B if both do). `p_corrected` is the p-value
    of equal shares, corrected for the number of clusters tested (Holm).
    """

    multiplier: float
    share: float
    share_a: float
    share_b: float
    p_corrected: float


def changes(
    sides: Sides, confidence: float, found: Sequence[Outliers]
) -> dict[ClusterChange, tuple[ClusterPair, ...]]:
    """Match the clusters `found` on both sides by their multiples.

    A cluster without a counterpart is gone, or new, if the other side has significantly fewer
    trials in its band: Fisher's exact test, with counts scaled to the effective sample size, and
    Holm's correction. In addition, with at least 5 rounds per side the shares of the rounds must
    differ (exact Mann-Whitney test); with fewer, the shares of all rounds of one side must be above
    those of the other.
    """
    ratios = [
        [
            process.latency_ns / level
            for process, level in zip(side, outliers.levels_ns, strict=True)
        ]
        for side, outliers in zip(sides, found, strict=True)
    ]
    tested: list[tuple[ClusterChange, float, Inside]] = []
    for mine, kind in enumerate((ClusterChange.GONE, ClusterChange.NEW)):
        for cluster in found[mine].clusters:
            same = [other for other in found[1 - mine].clusters if _near(cluster, other)]
            if same and mine == 0:
                continue  # counted once, from B's side
            inside = _inside(ratios, cluster, same)
            tested.append((ClusterChange.KEPT if same else kind, cluster.multiplier, inside))
    p_values = holm([_p_value(inside) for _, _, inside in tested])
    pairs: dict[ClusterChange, tuple[ClusterPair, ...]] = dict.fromkeys(ClusterChange, ())
    for (kind, multiplier, inside), p in sorted(
        zip(tested, p_values, strict=True), key=lambda row: row[0][1]
    ):
        more = 0 if kind == ClusterChange.GONE else 1
        significant = p <= 1 - confidence and _rounds_agree(
            inside[more], inside[1 - more], confidence
        )
        share_a, share_b = map(_share, inside)
        pair = ClusterPair(multiplier, (share_a, share_b)[more], share_a, share_b, p)
        pairs[kind if significant or kind == ClusterChange.KEPT else ClusterChange.UNCLEAR] += (
            pair,
        )
    return pairs


def _near(a: Cluster, b: Cluster) -> bool:
    """Whether two clusters are at about the same multiple: within 0.05, or one within the range of
    the other."""
    apart = abs(a.multiplier - b.multiplier)
    return apart <= NEAR or b.low <= a.multiplier <= b.high or a.low <= b.multiplier <= a.high


def _inside(
    ratios: Sequence[Sequence[np.ndarray]], cluster: Cluster, same: Sequence[Cluster]
) -> Inside:
    """The trials in the band of a cluster, and of those of the other side that are the same."""
    low = min(cluster.multiplier - NEAR, *(each.low for each in (cluster, *same)))
    high = max(cluster.multiplier + NEAR, *(each.high for each in (cluster, *same)))
    halfway = (1 + cluster.multiplier) / 2  # the band ends halfway to the bulk
    low, high = (max(low, halfway), high) if cluster.multiplier > 1 else (low, min(high, halfway))
    return [[(ratio >= low) & (ratio <= high) for ratio in side] for side in ratios]


def _share(rounds: Sequence[np.ndarray]) -> float:
    return float(np.concatenate(rounds).mean())


def _p_value(inside: Inside) -> float:
    """Two-sided p-value of equal shares."""
    from scipy.stats import fisher_exact

    table = []
    for rounds in inside:
        trials = sum(map(effective_n, rounds))
        count = round(_share(rounds) * trials)
        table.append([count, max(0, round(trials) - count)])
    tested: Any = fisher_exact(table)
    return float(tested.pvalue)


def _rounds_agree(
    more: Sequence[np.ndarray], less: Sequence[np.ndarray], confidence: float
) -> bool:
    """Whether the rounds of one side have significantly larger shares than those of the other."""
    against = sum(float(above.mean()) <= float(below.mean()) for above in more for below in less)
    enough = min(len(more), len(less)) >= quantiles.ROUNDS
    return against < (quantiles.ratio_rank(len(more), len(less), confidence) if enough else 1)


# Comparison of one percentile

#: A threshold belongs to the tail if at most this many times as many trials exceed it as exceed the
#: percentile.
TAIL = 5


#: Of one percentile: the fields of a `Comparison` that begin with its name, the reason, and the
#: rounds per side that would decide an AMBIGUOUS result, otherwise 0.
OnePercentile = tuple[dict[str, Any], str, int]


def _fields(
    name: str, change: Change, rounds_us: Sequence[tuple[float, ...]], *ratios: float | None
) -> dict[str, Any]:
    """`rounds_us`: the percentile of each process of A, and of B; `ratios`: B / A, and its interval
    over rounds."""
    ends = ("", "_us_rounds_a", "_us_rounds_b", "_ratio", "_ratio_low", "_ratio_high")
    return {
        name + end: value for end, value in zip(ends, (change, *rounds_us, *ratios), strict=True)
    }


def _middle(ratios: np.ndarray) -> float:
    """The median of ascending ratios; of two middle ones their geometric mean."""
    return math.sqrt(float(ratios[(len(ratios) - 1) // 2]) * float(ratios[len(ratios) // 2]))


def _decided(
    low: float, high: float, effect: float, less: Change, more: Change
) -> tuple[Change, str]:
    """Whether a ratio B / A between these bounds is the same, less or more; and why."""
    bounds = f"the ratio over rounds is between {low:.4g} and {high:.4g}"
    if math.isinf(high):
        bounds = f"the ratio over rounds is at least {low:.4g}, without an upper bound"
    if math.isinf(low):
        bounds = "the ratio over rounds has no bound, because processes of A have no miss"
    least = 1 / (1 + effect)
    most = 1 + effect
    if high < least or low > most:
        change = less if high < least else more
        return change, f"{bounds}, which differs from 1 by more than {100 * effect:g} %"
    if least <= low and high <= most:
        return Change.SAME, f"{bounds}, which is within {100 * effect:g} % of 1"
    return (
        Change.AMBIGUOUS,
        f"{bounds}, neither entirely within {100 * effect:g} % of 1 nor entirely beyond",
    )


def _fewest_rounds(confidence: float) -> int:
    """Rounds per side that give an interval of the ratio over rounds, at least `ROUNDS` and at most
    100."""
    enough = (
        rounds
        for rounds in range(quantiles.ROUNDS, 101)
        if quantiles.ratio_rank(rounds, rounds, confidence)
    )
    return next(enough, 100)


def _no_interval(m: int, n: int, question: Question) -> str:
    given = f"{m} and {n} rounds give no interval at {100 * question.confidence:g} % confidence"
    return f"{given}; record {_fewest_rounds(question.each)} per side"


def _processes(m: int, n: int) -> str:
    if m == n == 1:
        return "one process per side"
    return f"{m} processes per side" if m == n else f"{m} and {n} processes"


@dataclass(frozen=True)
class _Percentiles:
    """Comparison of the percentiles of the processes of both sides.

    The confidence of the question applies to the intervals within processes. `machine`: the ratio B
    / A of the control runs, or 1.
    """

    sides: Sides
    question: Question
    machine: float

    def compare(self, name: str, heading: str, share: Fraction) -> OnePercentile:
        """Compare the percentile `share` of A's and B's processes; `name`: "median" or "tail"."""
        each = self.question.each
        values = [
            np.array([quantiles.percentile(part.ordered_ns, share) for part in side])
            for side in self.sides
        ]
        ratios = np.sort(np.divide.outer(values[1], values[0]).ravel())
        ratio = _middle(ratios)
        m, n = map(len, values)
        rank = quantiles.ratio_rank(m, n, each)
        bounds = (float(ratios[rank - 1]), float(ratios[-rank])) if rank else ()
        needed = _fewest_rounds(each)
        if min(m, n) < quantiles.ROUNDS:
            change, reason = self._by_processes(share, values, ratio)
        elif bounds:
            needed = 2 * max(m, n)
            change, reason = _decided(*bounds, self.question.effect, Change.FASTER, Change.SLOWER)
        else:
            change = Change.AMBIGUOUS
            reason = _no_interval(m, n, self.question)
        rounds_us = [tuple((value / 1e3).tolist()) for value in values]
        fields = _fields(name, change, rounds_us, ratio, *(bounds or (None, None)))
        return fields, f"{heading}: {reason}", needed if change == Change.AMBIGUOUS else 0

    def _by_processes(
        self, share: Fraction, values: list[np.ndarray], ratio: float
    ) -> tuple[Change, str]:
        """The comparison with fewer than 5 rounds per side."""
        smallest = max(quantiles.ONE_PROCESS_RATIO, 1 + self.question.effect)
        m, n = map(len, values)
        rounds = _processes(m, n)
        apart = max(ratio, 1 / ratio)
        if apart <= smallest:
            inconclusive = f"a difference under {100 * (smallest - 1):.3g} % is inconclusive"
            return (
                Change.AMBIGUOUS,
                f"{inconclusive} with {rounds}; record {quantiles.ROUNDS} per side",
            )
        within = max(float(value.max() / value.min()) for value in values)
        if apart <= within:
            return Change.AMBIGUOUS, f"rounds of one side already differ by a ratio of {within:.2f}"
        slow = int(ratio > 1)
        state = max(1.0, self.machine if slow else 1 / self.machine)
        if apart <= smallest * state:
            also = f"the control runs (an empty step) also differ by a ratio of {state:.2f}"
            return Change.AMBIGUOUS, f"{also}, with {rounds}"
        part = self._effective_share(share, values)
        lows, highs = (
            [
                quantiles.interval(process.ordered_ns, share, self.question.confidence, part)[end]
                for process in self.sides[side]
            ]
            for side, end in ((slow, 0), (1 - slow, 1))
        )
        if None in (*lows, *highs):
            effective = f"effective sample size {100 * part:.0f} % of n"
            return (
                Change.AMBIGUOUS,
                f"trials are too correlated for an interval with {rounds} ({effective})",
            )
        low, high = np.array(lows), np.array(highs)
        if high.max() >= low.min():
            return Change.AMBIGUOUS, "the exact intervals of the processes overlap"
        # The uncertainty within processes adds in quadrature to the difference between processes.
        chance = (math.log((values[slow] / low).max()), math.log((high / values[1 - slow]).max()))
        needed = math.exp(math.hypot(math.log(smallest), *chance))
        if apart <= needed:
            inconclusive = f"a ratio below {needed:.2f} is inconclusive"
            return (
                Change.AMBIGUOUS,
                f"{inconclusive} with {rounds} and the uncertainty within each process",
            )
        assumed = f"processes of one configuration differ by less than {100 * (quantiles.ONE_PROCESS_RATIO - 1):.0f} %"
        change = Change.SLOWER if slow else Change.FASTER
        return (
            change,
            f"disjoint intervals and a ratio above {needed:.2f}, of {rounds}; assumes that {assumed}",
        )

    def _effective_share(self, share: Fraction, values: list[np.ndarray]) -> float:
        """Effective sample size over the number of trials, the minimum of all processes.

        Computed for exceedances of each process's own percentile, and of the geometric mean of all
        percentiles if that is in the tail. The minimum, because a burst of slow calls in one
        process leaves no trace in the others.
        """
        pooled = np.concatenate(values)
        middle = math.exp(np.mean(np.log(pooled)))
        shares = []
        for process, value in zip(itertools.chain(*self.sides), pooled, strict=True):
            beyond = process.latency_ns > middle
            shares.append(effective_n(process.latency_ns > value) / len(beyond))
            if beyond.mean() <= TAIL * (1 - share):
                shares.append(effective_n(beyond) / len(beyond))
        return min(shares)


# Comparison of miss rates

#: Miss rates whose ratio is between 1 / 1.25 and 1.25 are the same: a margin of 2 % would need 10
#: 000 misses a process.
RATE_EFFECT = 0.25


@dataclass(frozen=True)
class MissRates(JsonFields):
    """Miss rates of B compared with those of A; the unit is the process, and a rate that of its
    first `calls`.

    `change`: B has FEWER misses, MORE, the SAME, or AMBIGUOUS. `calls`: the trials of the shortest
    process, because the rates of shorter and longer processes do not have the same distribution.
    `miss_rate_rounds_`: the rate of each process. `miss_rate_ratio`: the median of the ratios of
    all rates of B to all rates of A; `_low` and `_high`: its exact interval over rounds. They are
    None where they are unbounded, or not known because of 0 / 0.
    """

    change: Change
    deadline_us: float
    calls: int
    miss_rate_rounds_a: tuple[float, ...]
    miss_rate_rounds_b: tuple[float, ...]
    miss_rate_ratio: float | None
    miss_rate_ratio_low: float | None
    miss_rate_ratio_high: float | None

    @property
    def columns(self) -> dict[str, Any]:
        """Its columns in a table with a row per configuration."""
        names = ("deadline_us", "miss_rate_ratio", "miss_rate_ratio_low", "miss_rate_ratio_high")
        return {"misses": self.change, **{name: getattr(self, name) for name in names}}


def _miss_rates(sides: Sides, deadline_us: float, question: Question) -> tuple[MissRates, str, int]:
    """The comparison of miss rates, its reason, and the rounds per side that may decide it if it is
    AMBIGUOUS.

    The interval of the ratio is that of the Mann-Whitney test, inverted. A pair of rates that are
    both 0 has any ratio: it counts against either direction, so that with ties the interval has at
    least its confidence.
    """
    calls = min(process.n for side in sides for process in side)
    limit = limit_ns(deadline_us)
    rates = [
        np.array([np.sum(process.above(limit)[0] < calls) / calls for process in side])
        for side in sides
    ]
    m, n = map(len, rates)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.divide.outer(rates[1], rates[0]).ravel()
    lows = np.sort(np.where(np.isnan(ratios), 0, ratios))
    highs = np.sort(np.where(np.isnan(ratios), math.inf, ratios))
    ratio = _middle(lows) if _middle(lows) == _middle(highs) else math.inf
    rank = quantiles.ratio_rank(m, n, question.each)
    low, high = (float(lows[rank - 1]), float(highs[-rank])) if rank else (0.0, math.inf)
    change = Change.AMBIGUOUS
    needed = _fewest_rounds(question.each)
    if not rates[0].any() and not rates[1].any():
        reason = "no call of either side missed, so no number of processes tells how the miss rates compare"
        reason += "; a shorter deadline can be compared"
        needed = 0
    elif min(m, n) < quantiles.ROUNDS:
        reason = f"inconclusive with {_processes(m, n)}; record {quantiles.ROUNDS} per side"
    elif not rank:
        reason = _no_interval(m, n, question)
    else:
        change, reason = _decided(
            low, high, max(question.effect, RATE_EFFECT), Change.FEWER, Change.MORE
        )
        needed = 2 * max(m, n)
    reason = f"misses of {short_number(deadline_us)} us in the first {calls} calls of each process: {reason}"
    found = MissRates(
        change=change,
        deadline_us=deadline_us,
        calls=calls,
        miss_rate_rounds_a=tuple(rates[0].tolist()),
        miss_rate_rounds_b=tuple(rates[1].tolist()),
        miss_rate_ratio=quantiles.finite(ratio),
        miss_rate_ratio_low=quantiles.finite(low) if rank else None,
        miss_rate_ratio_high=quantiles.finite(high),
    )
    return found, reason, needed if change == Change.AMBIGUOUS else 0


# Comparison of two sides


@dataclass(frozen=True)
class Comparison(JsonFields):
    """Comparison of B with A; every ratio is B / A, below 1 if B is faster.

    `median` and `tail` are SAME, FASTER, SLOWER or AMBIGUOUS. A ratio is the Hodges-Lehmann
    estimate, the median of the ratios of all rounds of B to all rounds of A; `_low` and `_high` are
    its exact interval over rounds, None if there are too few rounds. `_us_rounds` have the
    percentile of each process. `clusters_` are None if they were not searched. `rounds_needed`:
    rounds per side that may decide an AMBIGUOUS result; 0 if nothing is ambiguous, or if the
    processes are too short for a tail. `misses`: the miss rates, None if no deadline was given.
    `command`: shell commands, on several lines, that record these rounds and compare them; also if
    nothing is ambiguous, but all of one side was recorded before the other and both can be recorded
    alternately. None if none are needed, or if it is not known how the sides were recorded.
    """

    median: Change
    tail: Change
    tail_percentile: float | None
    median_ratio: float | None
    median_ratio_low: float | None
    median_ratio_high: float | None
    tail_ratio: float | None
    tail_ratio_low: float | None
    tail_ratio_high: float | None
    clusters_gone: tuple[ClusterPair, ...] | None
    clusters_new: tuple[ClusterPair, ...] | None
    clusters_kept: tuple[ClusterPair, ...] | None
    clusters_unclear: tuple[ClusterPair, ...] | None
    rounds_a: int
    rounds_b: int
    n_a: int
    n_b: int
    max_us_a: float
    max_us_b: float
    median_us_rounds_a: tuple[float, ...] = field(repr=False)
    median_us_rounds_b: tuple[float, ...] = field(repr=False)
    tail_us_rounds_a: tuple[float, ...] = field(repr=False)
    tail_us_rounds_b: tuple[float, ...] = field(repr=False)
    misses: MissRates | None
    reasons: tuple[str, ...]
    differences: tuple[str, ...]
    command: str | None
    rounds_needed: int
    one_configuration: bool
    effect: float
    confidence: float

    @property
    def changes(self) -> tuple[Change, ...]:
        """The results: of the median, of the tail, and of the miss rates if they were compared."""
        return (
            (self.median, self.tail)
            if self.misses is None
            else (self.median, self.tail, self.misses.change)
        )


#: Columns of a comparison in tables.
COMPARED = (
    *("median", "median_ratio", "median_ratio_low", "median_ratio_high"),
    *("tail", "tail_percentile", "tail_ratio", "tail_ratio_low", "tail_ratio_high"),
)


def compare_groups(
    a: Group,
    b: Group,
    effect: float = quantiles.EFFECT,
    confidence: float = quantiles.DEFAULT_CONFIDENCE,
    deadline_us: float | None = None,
    percentile: str | float | None = None,
) -> Comparison:
    """Compare B with A; the unit of replication is the process.

    With at least 5 rounds per side: FASTER or SLOWER if the interval of the ratio over rounds is
    entirely outside the range from 1 / (1 + effect) to 1 + effect, SAME if it is entirely inside,
    else AMBIGUOUS. The interval is exact (Hodges-Lehmann interval of the Mann-Whitney test). The
    intervals of median, tail and miss rates have `confidence` jointly (`Question.each`). Processes
    are assumed to be independent; nothing is assumed within a process.

    With fewer rounds the result is AMBIGUOUS, unless two conditions hold. The ratio exceeds 1.10,
    the ratio of any two rounds of one side, and the uncertainty of the percentile. And the
    order-statistic intervals (at the effective sample size) of all processes of one side are
    disjoint from those of the other. This assumes that two processes of one configuration differ
    by less than 10 %; on a machine where they differ by more, record 5 rounds. Miss rates are then
    AMBIGUOUS.

    Raises `UsageError` if a side has no trials, a latency is not positive, or an argument is out of
    range.
    """
    return compared([(a, b, Question(effect, confidence, deadline_us, percentile))])[0]


def compared(
    asked: Sequence[tuple[Group, Group, Question]], clusters: bool = True
) -> list[Comparison]:
    """`compare_groups` of several pairs, which takes less time together; `clusters`: whether to
    search for them."""
    sides = [tuple(_timed(side) for side in both) for *both, _ in asked]
    rounds = [
        [Round.of(process.latency_ns) for process in side]
        for both in sides
        for side in both
        if clusters
    ]
    found = iter(quick_of(rounds))
    return [
        _comparison(*each, both, list(itertools.islice(found, 2)))
        for each, both in zip(asked, sides, strict=True)
    ]


def _comparison(
    a: Group, b: Group, question: Question, sides: Sides, outliers: Sequence[Outliers]
) -> Comparison:
    """`compare_groups` of a pair, whose processes are known, and their outliers if clusters are to
    be compared."""
    percentiles = _Percentiles(sides, question, control_ratio(a, b))
    by_median, median_reason, rounds = percentiles.compare("median", "median", quantiles.MEDIAN)
    least = min(process.n for side in sides for process in side)
    bounded = (
        name
        for name, share in question.tails.items()
        if quantiles.interval_ranks(least, share, question.confidence)[1]
    )
    tail = next(bounded, None)
    if tail is None:
        tail_reason = (
            f"tail: n = {least} is too small for an upper bound of p{min(question.tails):g}"
        )
        by_tail = _fields("tail", Change.AMBIGUOUS, ((), ()), None, None, None)
    else:
        by_tail, tail_reason, tail_rounds = percentiles.compare(
            "tail", f"p{tail:.15g}", question.tails[tail]
        )
        rounds = max(rounds, tail_rounds)
    reasons = [*_on_both_sides(shared(a, b), sides), median_reason, tail_reason]
    misses = None
    if question.deadline_us is not None:
        misses, reason, more = _miss_rates(sides, float(question.deadline_us), question)
        reasons.append(reason)
        rounds = max(rounds, more)
    command = None
    if a.configuration is not None and b.configuration is not None:
        alternate = recorded_first(a, b) and can_alternate(a.configuration, b.configuration)
        more = rounds or (max(quantiles.ROUNDS, *map(len, sides)) if alternate else 0)
        command = (
            record_both_command(a.configuration, b.configuration, "rounds", more) if more else None
        )
        command = command and command + question.flags
    found = by_median | by_tail
    clusters = (
        changes(sides, question.confidence, outliers) if outliers else dict.fromkeys(ClusterChange)
    )
    found |= {f"clusters_{kind}": pairs for kind, pairs in clusters.items()}
    for letter, side in zip("ab", sides, strict=True):
        found |= {f"rounds_{letter}": len(side), f"n_{letter}": sum(process.n for process in side)}
        found[f"max_us_{letter}"] = max(process.max_us for process in side)
    return Comparison(
        **found,
        tail_percentile=tail,
        misses=misses,
        reasons=tuple(reasons),
        differences=tuple(differences(a, b)),
        command=command,
        rounds_needed=rounds,
        one_configuration=a.configuration is not None and a.configuration == b.configuration,
        effect=question.effect,
        confidence=question.confidence,
    )


def _timed(side: Group) -> tuple[Trials, ...]:
    if side.failure is not None:
        raise UsageError(f"{side.name} has no trials to compare: {side.failure}")
    timed = trials_of(side)
    if not timed:
        raise UsageError(f"{side.name} has no trials after warm-up to compare")
    if not all(process.latency_ns.min() > 0 for process in timed):
        raise UsageError(f"{side.name} has latencies that are not positive")
    return timed


def _on_both_sides(count: int, sides: Sides) -> list[str]:
    if count == len(sides[0]) == len(sides[1]):
        return ["A and B are the same recording"]
    return (
        [f"{count} of the recordings {'is' if count == 1 else 'are'} on both sides"]
        if count
        else []
    )


@dataclass(frozen=True)
class NotCompared:
    """A configuration that is on one side only, or failed on one side."""

    name: str
    reason: str

    def as_dict(self) -> dict:
        """JSON values."""
        nothing = dict.fromkeys(("median", "tail", "misses"))
        return {**nothing, "clusters_gone": [], "clusters_new": [], "reasons": [self.reason]}


@dataclass(frozen=True, eq=False, repr=False)
class Comparisons(Answers):
    """Comparisons of the configurations of A (`runs`) and B (`other`), a `NotCompared` for each
    without one.

    `frame` has a row per configuration of both sides: the fields they share, ratios, and their
    intervals over rounds.
    """

    other: Runs = field(kw_only=True)
    pairs: Pairs = field(kw_only=True)

    @property
    def exit_status(self) -> int:
        """1 if any is SLOWER or has MORE misses, else 3 if any is AMBIGUOUS or a side failed, else
        0.

        Configurations that are on one side only do not count.
        """
        found: set[Change] = set()
        for _, answer in self._compared():
            found |= {Change.AMBIGUOUS} if isinstance(answer, NotCompared) else set(answer.changes)
        return 1 if found & {Change.SLOWER, Change.MORE} else 3 if Change.AMBIGUOUS in found else 0

    def as_dict(self) -> dict | list:
        sides = {
            name: {"source": runs.source, **runs.how}
            for name, runs in (("a", self.runs), ("b", self.other))
        }
        shared = {**sides, "warnings": list(self.warnings)}
        found = zip(self.pairs.pairs, self.answers, strict=True)
        plain = [
            {**shared, "group": fields, **answer.as_dict()} for (fields, _, _), answer in found
        ]
        return plain if self.pairs.several else {**plain[0], "group": {}}

    def _rows(self) -> Iterator[dict]:
        for fields, answer in self._compared():
            row = fields | {
                name: getattr(answer, name, None) for name in (*COMPARED, "rounds_a", "rounds_b")
            }
            if isinstance(answer, Comparison) and answer.misses is not None:
                row |= answer.misses.columns
            yield row

    def _compared(self) -> Iterator[tuple[dict, Comparison | NotCompared]]:
        """Fields and answer of each configuration that is on both sides."""
        for (fields, *groups), answer in zip(self.pairs.pairs, self.answers, strict=True):
            if None not in groups:
                yield fields, answer


class ComparisonSeries(tuple[Comparisons, ...]):
    """Comparisons of several sources with one: text, JSON and rows of all, and the worst exit
    status."""

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(itertools.chain(*(each.warnings for each in self))))

    @property
    def exit_status(self) -> int:
        return min({each.exit_status for each in self} - {0}, default=0)

    @property
    def frame(self) -> Any:
        return pd.concat([each.frame.assign(source=each.other.source) for each in self])

    def as_dict(self) -> list:
        return [each.as_dict() for each in self]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))


def compare(
    a: RunsSource,
    *others: RunsSource,
    effect: float = quantiles.EFFECT,
    confidence: float = quantiles.DEFAULT_CONFIDENCE,
    clusters: bool = True,
    deadline_us: float | None = None,
    percentile: str | float | None = None,
) -> Any:
    """`Comparisons` of each configuration of B with the matching one of A (see `pairing.py`).

    Of several others each is compared with A; the result is then a `ComparisonSeries`.

    `a` and `others`: results of `load`, or paths, recordings or groups. `effect` is the smallest
    relative difference that is relevant. With `deadline_us` their miss rates at this deadline are
    compared too; `percentile` is that of the tail, by default the highest that has an exact upper
    bound. Raises `UsageError` if an argument is out of range, a configuration has fewer than 2
    trials after warm-up, or no configurations match.
    """
    question = Question(effect, confidence, deadline_us, percentile)
    a = runs_to_judge(a)
    b, *more = others
    if more:
        return ComparisonSeries(
            _compared_runs(a, runs_to_judge(other), question, clusters) for other in others
        )
    return _compared_runs(a, runs_to_judge(b), question, clusters)


def _compared_runs(a: Runs, b: Runs, question: Question, clusters: bool) -> Comparisons:
    pairs = pair(a, b)
    answers: list[Comparison | NotCompared | None] = []
    asked: list[tuple[Group, Group, Question]] = []
    for _, *both in pairs.pairs:
        sides = [
            (runs.source, group)
            for runs, group in zip((a, b), both, strict=True)
            if group is not None
        ]
        failed = [
            f"{source}: {group.failure}" for source, group in sides if group.failure is not None
        ]
        source, group = sides[0]
        if len(sides) < 2:
            answers.append(NotCompared(group.name, f"only in {source}"))
        elif failed:
            answers.append(NotCompared(f"{group.name}: not compared", failed[0]))
        else:
            asked.append((group.plain, sides[1][1].plain, question))
            answers.append(None)
    trials = [x.n + y.n for x, y, _ in asked]
    found = iter(computed(partial(compared, clusters=clusters), asked, trials))
    answers = [answer or next(found) for answer in answers]
    return Comparisons(a, tuple(answers), (*a.remarks, *b.remarks), other=b, pairs=pairs)
