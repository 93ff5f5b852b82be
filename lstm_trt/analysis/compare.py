"""Compare two recordings: is B faster than A, slower, or the same, by median, tail and clusters.

The unit of replication is the process. The same script in ten processes had medians that were
known to 0.07 % each but differed by 3 %, so disjoint intervals of two processes prove nothing.
The question is whether *another* process of B would differ from *another* process of A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from lstm_trt.analysis import quantiles
from lstm_trt.analysis.answers import Answers, runs_to_judge
from lstm_trt.analysis.causes import holm
from lstm_trt.analysis.dependence import effective_n
from lstm_trt.analysis.outcomes import Change, ClusterChange
from lstm_trt.analysis.outliers import Cluster, quick
from lstm_trt.analysis.pairing import Pairs, control_ratio, differences, pair, shared
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.labels import record_both_command
from lstm_trt.store.runs import Runs
from lstm_trt.store.samples import Group, Latencies

if TYPE_CHECKING:
    import pandas as pd


# New clusters and clusters that are gone

#: Clusters are the same if their multiples of the median differ by at most this.
NEAR = 0.05


@dataclass(frozen=True)
class ClusterPair(JsonFields):
    """A cluster and its share of the trials on each side, counted in a band of multiples of the local median.

    `share` is that of the side that has the cluster (of B if both do). `p_corrected` is the p-value
    of equal shares, corrected for the number of clusters tested (Holm).
    """

    multiplier: float
    share: float
    share_a: float
    share_b: float
    p_corrected: float


def changes(
    a: Sequence[np.ndarray], b: Sequence[np.ndarray], confidence: float
) -> dict[ClusterChange, tuple[ClusterPair, ...]]:
    """Match the clusters of both sides (timed trials of each process, in order) by their multiples.

    A cluster without a counterpart is gone, or new, if the other side has significantly fewer trials
    in its band: Fisher's exact test, with counts scaled to the effective sample size, and Holm's
    correction. In addition, with at least 5 rounds per side the shares of the rounds must differ
    (exact Mann-Whitney test); with fewer, the shares of all rounds of one side must be above those
    of the other.
    """
    outliers_of_sides = [quick([Latencies.of(latency_ns) for latency_ns in side]) for side in (a, b)]
    found = [outliers.clusters for outliers in outliers_of_sides]
    ratios = [
        [latency_ns / level for latency_ns, level in zip(side, outliers.levels_ns, strict=True)]
        for side, outliers in zip((a, b), outliers_of_sides, strict=True)
    ]
    tested: list[tuple[ClusterChange, float, _Band]] = []
    for mine, (clusters, others) in enumerate((found, found[::-1])):
        for cluster in clusters:
            counterparts = [other for other in others if _near(cluster, other)]
            if counterparts and mine == 0:
                continue  # counted once, from B's side
            band = _Band.around(ratios, cluster, counterparts)
            kind = ClusterChange.KEPT if counterparts else (ClusterChange.GONE, ClusterChange.NEW)[mine]
            tested.append((kind, cluster.multiplier, band))
    p_values = holm([band.p_value() for _, _, band in tested])
    pairs: dict[ClusterChange, list[ClusterPair]] = {kind: [] for kind in ClusterChange}
    for (kind, multiplier, band), p in zip(tested, p_values, strict=True):
        more = 0 if kind == ClusterChange.GONE else 1
        shares = band.share(0), band.share(1)
        significant = kind == ClusterChange.KEPT or (p <= 1 - confidence and band.rounds_agree(more, confidence))
        pairs[kind if significant else ClusterChange.UNCLEAR].append(ClusterPair(multiplier, shares[more], *shares, p))
    return {kind: tuple(sorted(found, key=lambda pair: pair.multiplier)) for kind, found in pairs.items()}


def _near(a: Cluster, b: Cluster) -> bool:
    """Whether two clusters are at about the same multiple: within 0.05, or one within the range of the other."""
    apart = abs(a.multiplier - b.multiplier)
    return apart <= NEAR or b.low <= a.multiplier <= b.high or a.low <= b.multiplier <= a.high


@dataclass(frozen=True)
class _Band:
    """Trials in a band of multiples: for A and B a bool array per round, whether a trial is inside."""

    inside: tuple[tuple[np.ndarray, ...], ...]

    @classmethod
    def around(cls, ratios: Sequence[Sequence[np.ndarray]], cluster: Cluster, counterparts: Sequence[Cluster]) -> _Band:
        low = min(cluster.multiplier - NEAR, *(same.low for same in (cluster, *counterparts)))
        high = max(cluster.multiplier + NEAR, *(same.high for same in (cluster, *counterparts)))
        halfway = (1 + cluster.multiplier) / 2  # the band ends halfway to the bulk
        low, high = (max(low, halfway), high) if cluster.multiplier > 1 else (low, min(high, halfway))
        return cls(tuple(tuple((ratio >= low) & (ratio <= high) for ratio in side) for side in ratios))

    def share(self, side: int) -> float:
        return sum(int(inside.sum()) for inside in self.inside[side]) / sum(map(len, self.inside[side]))

    def p_value(self) -> float:
        """Two-sided p-value of equal shares."""
        from scipy.stats import fisher_exact

        table = []
        for side in (0, 1):
            trials = sum(effective_n(inside) for inside in self.inside[side])
            count = round(self.share(side) * trials)
            table.append([count, max(0, round(trials) - count)])
        tested: Any = fisher_exact(table)
        return float(tested.pvalue)

    def rounds_agree(self, more: int, confidence: float) -> bool:
        """Whether the rounds of side `more` have significantly larger shares."""
        above, below = ([float(inside.mean()) for inside in self.inside[side]] for side in (more, 1 - more))
        against = sum(higher <= lower for higher in above for lower in below)
        rank = (
            quantiles.ratio_rank(len(above), len(below), confidence)
            if min(len(above), len(below)) >= quantiles.ROUNDS
            else 1
        )
        return against < rank


# Comparison of one percentile

#: A threshold belongs to the tail if at most this many times as many trials exceed it as exceed the percentile.
TAIL = 5


@dataclass(frozen=True)
class PercentileChange:
    """Comparison of one percentile: ratio B / A with its interval over rounds, percentile of each process, and reason.

    `rounds_needed`: rounds per side that would decide an AMBIGUOUS result, otherwise 0.
    """

    change: Change
    ratio: float | None
    low: float | None
    high: float | None
    values_us: tuple[tuple[float, ...], ...]
    reason: str
    rounds_needed: int


def compare_percentile(
    name: str,
    share: Fraction,
    sides: list[list[np.ndarray]],
    effect: float,
    confidence: float,
    machine: float,
) -> PercentileChange:
    """Compare the percentile `share` of A's and B's processes (`sides`: trials in ns, in order, an array per process).

    `confidence` applies to the intervals within processes. The intervals over rounds of median and tail have this
    confidence jointly. `machine`: the ratio B / A of the control runs, or 1.
    """
    each = 1 - (1 - confidence) / 2
    ordered = [[np.sort(latency_ns) for latency_ns in side] for side in sides]
    values = [np.array([quantiles.percentile(latency_ns, share) for latency_ns in side]) for side in ordered]
    ratios = np.sort(np.divide.outer(values[1], values[0]).ravel())
    ratio = math.sqrt(ratios[(len(ratios) - 1) // 2] * ratios[len(ratios) // 2])
    m, n = len(values[0]), len(values[1])
    rank = quantiles.ratio_rank(m, n, each)
    bounds = (float(ratios[rank - 1]), float(ratios[-rank])) if rank else None
    values_us = tuple(tuple((value / 1e3).tolist()) for value in values)
    needed = next(
        (rounds for rounds in range(quantiles.ROUNDS, 101) if quantiles.ratio_rank(rounds, rounds, each)), 100
    )
    if min(m, n) < quantiles.ROUNDS:
        change, reason = _by_processes(share, sides, ordered, values, ratio, effect, confidence, machine)
    elif bounds:
        change, reason = _by_rounds(*bounds, effect)
        needed = 2 * max(m, n)
    else:
        change = Change.AMBIGUOUS
        reason = f"{m} and {n} rounds give no interval at {100 * confidence:g} % confidence; record {needed} per side"
    needed = needed if change == Change.AMBIGUOUS else 0
    return PercentileChange(change, ratio, *(bounds or (None, None)), values_us, f"{name}: {reason}", needed)


def _by_rounds(low: float, high: float, effect: float) -> tuple[Change, str]:
    least, most = 1 / (1 + effect), 1 + effect
    bounds = f"the ratio over rounds is between {low:.4g} and {high:.4g}"
    if high < least:
        return Change.FASTER, f"{bounds}, which differs from 1 by more than {100 * effect:g} %"
    if low > most:
        return Change.SLOWER, f"{bounds}, which differs from 1 by more than {100 * effect:g} %"
    if least <= low and high <= most:
        return Change.SAME, f"{bounds}, which is within {100 * effect:g} % of 1"
    return Change.AMBIGUOUS, f"{bounds}, neither entirely within {100 * effect:g} % of 1 nor entirely beyond"


def _by_processes(
    share: Fraction,
    sides: list[list[np.ndarray]],
    ordered: list[list[np.ndarray]],
    values: list[np.ndarray],
    ratio: float,
    effect: float,
    confidence: float,
    machine: float,
) -> tuple[Change, str]:
    """The comparison with fewer than 5 rounds per side."""
    smallest = max(quantiles.ONE_PROCESS_RATIO, 1 + effect)
    m, n = len(values[0]), len(values[1])
    rounds = f"{m} processes per side" if m == n else f"{m} and {n} processes"
    rounds = "one process per side" if m == n == 1 else rounds
    apart = max(ratio, 1 / ratio)
    if apart <= smallest:
        inconclusive = (
            f"a difference under {100 * (smallest - 1):.3g} % is inconclusive; record {quantiles.ROUNDS} per side"
        )
        return Change.AMBIGUOUS, f"with {rounds}, {inconclusive}"
    within = max(float(value.max() / value.min()) for value in values)
    if apart <= within:
        return Change.AMBIGUOUS, f"rounds of one side already differ by a ratio of {within:.2f}"
    slow = 1 if ratio > 1 else 0
    state = max(1.0, machine if slow else 1 / machine)
    if apart <= smallest * state:
        return Change.AMBIGUOUS, f"{rounds}, and the control runs (an empty step) also differ by a ratio of {state:.2f}"
    part = _effective_share(sides, values, share)
    lows, highs = (
        [
            (quantiles.interval(latency_ns, share, confidence, part)[end], value)
            for latency_ns, value in zip(ordered[side], values[side], strict=True)
        ]
        for side, end in ((slow, 0), (1 - slow, 1))
    )
    low, high = ([bound for bound, _ in bounds if bound is not None] for bounds in (lows, highs))
    if len(low) < len(lows) or len(high) < len(highs):
        correlated = f"trials are too correlated for an interval (effective sample size {100 * part:.0f} % of n)"
        return Change.AMBIGUOUS, f"with {rounds}, {correlated}"
    if max(high) >= min(low):
        return Change.AMBIGUOUS, "the exact intervals of the processes overlap"
    # The uncertainty within processes adds in quadrature to the difference between processes.
    chance = [max(math.log(value / bound) for bound, value in lows), max(math.log(b / v) for b, v in highs)]
    needed = math.exp(math.hypot(math.log(smallest), *chance))
    if apart <= needed:
        uncertain = f"and the uncertainty within each process, a ratio below {needed:.2f} is inconclusive"
        return Change.AMBIGUOUS, f"with {rounds} {uncertain}"
    apart = f"{100 * (quantiles.ONE_PROCESS_RATIO - 1):.0f} %"
    assumed = f"assumes that processes of one configuration differ by less than {apart}"
    change = Change.SLOWER if slow else Change.FASTER
    return change, f"{rounds}, with disjoint intervals and a ratio above {needed:.2f}; {assumed}"


def _effective_share(sides: list[list[np.ndarray]], values: list[np.ndarray], share: Fraction) -> float:
    """Effective sample size over the number of trials, the minimum of all processes.

    Computed for exceedances of each process's own percentile, and of the geometric mean of all percentiles
    if that is in the tail. The minimum, because a burst of slow calls in one process leaves no trace in the
    others.
    """
    middle = math.exp(np.mean(np.log(np.concatenate(values))))
    shares = []
    for side, own in zip(sides, values, strict=True):
        for latency_ns, value in zip(side, own, strict=True):
            beyond = latency_ns > middle
            shares.append(effective_n(latency_ns > value) / len(latency_ns))
            if beyond.mean() <= TAIL * (1 - share):
                shares.append(effective_n(beyond) / len(latency_ns))
    return min(shares)


#: The tail is compared at the highest of these percentiles that has an exact upper bound in every process.
TAIL_PERCENTILES = (99.99, 99.9, 99.0, 90.0)


#: Columns of tables of comparisons.
RESULTS = ("median", "median_ratio", "median_ratio_low", "median_ratio_high")
RESULTS += ("tail", "tail_percentile", "tail_ratio", "tail_ratio_low", "tail_ratio_high")


@dataclass(frozen=True)
class Comparison(JsonFields):
    """Comparison of B with A; every ratio is B / A, below 1 if B is faster.

    `median` and `tail` are SAME, FASTER, SLOWER or AMBIGUOUS. A ratio is the Hodges-Lehmann
    estimate, the median of the ratios of all rounds of B to all rounds of A; `_low` and `_high`
    are its exact interval over rounds, None if there are too few rounds. `_us_rounds` have the
    percentile of each process. `rounds_needed`: rounds per side that may decide an AMBIGUOUS
    result; 0 if nothing is ambiguous, or if the processes are too short for a tail. `command`:
    shell commands, on several lines, that record these rounds and compare them; None if none are
    needed, or if it is not known how the sides were recorded.
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
    clusters_gone: tuple[ClusterPair, ...]
    clusters_new: tuple[ClusterPair, ...]
    clusters_kept: tuple[ClusterPair, ...]
    clusters_unclear: tuple[ClusterPair, ...]
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
    reasons: tuple[str, ...]
    differences: tuple[str, ...]
    command: str | None
    rounds_needed: int
    one_configuration: bool
    effect: float
    confidence: float


def compare_groups(
    a: Group, b: Group, effect: float = quantiles.EFFECT, confidence: float = quantiles.DEFAULT_CONFIDENCE
) -> Comparison:
    """Compare B with A; the unit of replication is the process.

    With at least 5 rounds per side: FASTER or SLOWER if the interval of the ratio over rounds is
    entirely outside the range from 1 / (1 + effect) to 1 + effect, SAME if it is entirely inside,
    else AMBIGUOUS. The interval is exact (Hodges-Lehmann interval of the Mann-Whitney test). The
    intervals of median and tail have the confidence 1 - (1 - confidence) / 2 each, and `confidence`
    jointly. Processes are assumed to be independent; nothing is assumed within a process.

    With fewer rounds the result is AMBIGUOUS, unless two conditions hold. The ratio exceeds 1.10,
    the ratio of any two rounds of one side, and the uncertainty of the percentile. And the
    order-statistic intervals (at the effective sample size) of all processes of one side are
    disjoint from those of the other. This assumes that two processes of one configuration differ
    by less than 10 %; on a machine where they differ by more, record 5 rounds.

    Raises `UsageError` if a side has no trials, a latency is not positive, or the effect or the
    confidence is out of range.
    """
    quantiles.check_confidence(confidence)
    check_effect(effect)
    sides = [_timed(side) for side in (a, b)]
    tail = _tail_percentile([len(latency_ns) for side in sides for latency_ns in side], confidence)
    machine = control_ratio(a, b)
    by_median = compare_percentile("median", Fraction(1, 2), sides, effect, confidence, machine)
    if tail is None:
        least = min(len(latency_ns) for side in sides for latency_ns in side)
        reason = f"tail: n = {least} is too small for an upper bound of p90"
        by_tail = PercentileChange(Change.AMBIGUOUS, None, None, None, ((), ()), reason, 0)
    else:
        by_tail = compare_percentile(f"p{tail:g}", quantiles.share_of(tail), sides, effect, confidence, machine)
    common = shared(a, b)
    reasons = [by_median.reason, by_tail.reason]
    if common:
        reasons.insert(0, _on_both_sides(common, sides))
    rounds = max(by_median.rounds_needed, by_tail.rounds_needed)
    if rounds and a.configuration is not None and b.configuration is not None:
        command = record_both_command(a.configuration, b.configuration, "rounds", rounds)
    else:
        command = None
    clusters = changes(sides[0], sides[1], confidence)
    return Comparison(
        median=by_median.change,
        tail=by_tail.change,
        tail_percentile=tail,
        median_ratio=by_median.ratio,
        median_ratio_low=by_median.low,
        median_ratio_high=by_median.high,
        tail_ratio=by_tail.ratio,
        tail_ratio_low=by_tail.low,
        tail_ratio_high=by_tail.high,
        **{f"clusters_{kind}": pairs for kind, pairs in clusters.items()},
        rounds_a=len(sides[0]),
        rounds_b=len(sides[1]),
        n_a=sum(map(len, sides[0])),
        n_b=sum(map(len, sides[1])),
        max_us_a=max(float(latency_ns.max()) for latency_ns in sides[0]) / 1e3,
        max_us_b=max(float(latency_ns.max()) for latency_ns in sides[1]) / 1e3,
        median_us_rounds_a=by_median.values_us[0],
        median_us_rounds_b=by_median.values_us[1],
        tail_us_rounds_a=by_tail.values_us[0],
        tail_us_rounds_b=by_tail.values_us[1],
        reasons=tuple(reasons),
        differences=tuple(differences(a, b)),
        command=command,
        rounds_needed=rounds,
        one_configuration=a.configuration is not None and a.configuration == b.configuration,
        effect=effect,
        confidence=confidence,
    )


def check_effect(effect: float) -> None:
    """Raise `UsageError` if the effect is not at least 0 and below 1."""
    if not 0 <= effect < 1:  # also for NaN
        raise UsageError(f"the effect must be a share such as 0.02, at least 0 and below 1, not {effect:g}")


def _timed(side: Group) -> list[np.ndarray]:
    if side.failure is not None:
        raise UsageError(f"{side.name} has no trials to compare: {side.failure}")
    timed = [sample.timed_ns for sample in side.samples if len(sample.timed_ns)]
    if not timed:
        raise UsageError(f"{side.name} has no trials after warm-up to compare")
    if not all(float(latency_ns.min()) > 0 for latency_ns in timed):
        raise UsageError(f"{side.name} has latencies that are not positive")
    return timed


def _tail_percentile(sizes: Sequence[int], confidence: float) -> float | None:
    """The highest of `TAIL_PERCENTILES` with an exact upper bound in every process."""
    for value in TAIL_PERCENTILES:
        if all(quantiles.interval_ranks(n, quantiles.share_of(value), confidence)[1] is not None for n in set(sizes)):
            return value
    return None


def _on_both_sides(count: int, sides: list[list[np.ndarray]]) -> str:
    if count == len(sides[0]) == len(sides[1]):
        return "A and B are the same recording"
    return f"{count} of the recordings {'is' if count == 1 else 'are'} on both sides"


@dataclass(frozen=True)
class NotCompared:
    """A configuration that is on one side only, or failed on one side; `group` identifies it."""

    name: str
    group: dict
    reason: str

    def as_dict(self) -> dict:
        """JSON values."""
        return {"median": None, "tail": None, "clusters_gone": [], "clusters_new": [], "reasons": [self.reason]}


@dataclass(frozen=True, eq=False)
class Comparisons(Answers):
    """Comparisons of the configurations of A (`runs`) and B (`other`), a `NotCompared` for each without one."""

    other: Runs = field(kw_only=True)
    pairs: Pairs = field(kw_only=True)

    @property
    def exit_status(self) -> int:
        """1 if any median or tail is SLOWER, else 3 if any is AMBIGUOUS or a side failed, else 0.

        Configurations that are on one side only do not count.
        """
        found = {
            change
            for answer in self.answers[: len(self.pairs.pairs)]
            for change in ((answer.median, answer.tail) if isinstance(answer, Comparison) else (Change.AMBIGUOUS,))
        }
        return 1 if Change.SLOWER in found else 3 if Change.AMBIGUOUS in found else 0

    def as_dict(self) -> dict | list:
        sides = {name: {"source": runs.source, **runs.how} for name, runs in (("a", self.runs), ("b", self.other))}
        groups = [group for group, _, _ in self.pairs.pairs]
        groups += [answer.group for answer in self.answers[len(groups) :]]
        shared = {**sides, "warnings": list(self.warnings)}
        plain = [
            {**shared, "group": group, **answer.as_dict()} for group, answer in zip(groups, self.answers, strict=True)
        ]
        return plain if self.pairs.several else {**plain[0], "group": {}}

    @property
    def frame(self) -> pd.DataFrame:
        """A row per configuration of both sides: the fields they share, ratios, and their intervals over rounds."""
        import pandas as pd

        # Configurations on one side only are the last answers and have no row.
        return pd.DataFrame(
            {**group, **{name: getattr(answer, name, None) for name in (*RESULTS, "rounds_a", "rounds_b")}}
            for (group, _, _), answer in zip(self.pairs.pairs, self.answers, strict=False)
        )


def compare(
    a: Any, b: Any, effect: float = quantiles.EFFECT, confidence: float = quantiles.DEFAULT_CONFIDENCE
) -> Comparisons:
    """Compare each configuration of B with the matching one of A (see `pairing.py`).

    `a` and `b`: results of `load`, or paths, recordings or groups. `effect` is the smallest relative difference that
    is relevant.
    Raises `UsageError` if an argument is out of range, a configuration has fewer than 2 trials after warm-up, or no
    configurations match.
    """
    quantiles.check_confidence(confidence)
    check_effect(effect)
    a, b = runs_to_judge(a), runs_to_judge(b)
    pairs = pair(a, b)
    answers: list[Comparison | NotCompared] = []
    for shared_fields, *groups in pairs.pairs:
        failed = next((side for side in zip((a, b), groups, strict=True) if side[1].failure is not None), None)
        if failed is None:
            answers.append(compare_groups(groups[0], groups[1], effect, confidence))
        else:
            reason = f"{failed[0].source}: {failed[1].failure}"
            answers.append(NotCompared(f"{groups[0].name}: not compared", shared_fields, reason))
    for runs, groups in ((a, pairs.only_a), (b, pairs.only_b)):
        answers += [NotCompared(group.name, group.group, f"only in {runs.source}") for group in groups]
    return Comparisons(a, tuple(answers), (*a.warnings, *b.warnings), other=b, pairs=pairs)
