"""Whether B is faster than A, slower, or the same: by the median, by the tail, and by clusters of late answers.

The unit of replication is the process. The same script in ten processes had medians known to
0.07 % each, and 3 % apart; so intervals of two processes that do not touch prove nothing. What is
asked is whether *another* process of B would differ from *another* process of A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from lstm_trt.analysis.answers import Answers, JsonFields, runs_to_judge
from lstm_trt.analysis.causes import holm
from lstm_trt.analysis.dependence import effective_n
from lstm_trt.analysis.outcomes import Change, ClusterChange
from lstm_trt.analysis.outliers import Cluster, quick
from lstm_trt.analysis.pairing import Pairs, control_ratio, differences, pair, shared
from lstm_trt.analysis.quantiles import (
    DEFAULT_CONFIDENCE,
    EFFECT,
    ONE_PROCESS_RATIO,
    ROUNDS,
    check_confidence,
    interval,
    interval_ranks,
    percentile,
    ratio_rank,
    share_of,
)
from lstm_trt.analysis.text import comparison_text
from lstm_trt.config.errors import UsageError
from lstm_trt.config.labels import record_both_command
from lstm_trt.store.runs import Runs
from lstm_trt.store.samples import Group, Sample

if TYPE_CHECKING:
    import pandas as pd


# Clusters that came and went

#: Clusters whose multiples of the median are this near are one cluster.
NEAR = 0.05


@dataclass(frozen=True)
class ClusterPair(JsonFields):
    """A cluster, and the share of the trials in its band of multiples of the local median on each side.

    `share` is that of the side that has it (of B where both do). `p_corrected` belongs to "the
    shares are equal", corrected for all clusters that were looked at (Holm).
    """

    multiplier: float
    share: float
    share_a: float
    share_b: float
    p_corrected: float


def changes(
    a: Sequence[np.ndarray], b: Sequence[np.ndarray], confidence: float
) -> dict[ClusterChange, tuple[ClusterPair, ...]]:
    """Clusters of both sides (timed trials of each process, in order), by their multiples of the local median.

    A cluster without a counterpart is gone, or new, where the trials in its band are too few on the
    other side for chance: Fisher's exact test, with counts scaled to the effective number of trials
    where late answers come in bursts, and Holm's correction. With 5 rounds a side and more
    the shares of the rounds must differ too (Mann and Whitney, exact); with fewer, those of all
    rounds of one side must lie above those of the other.
    """
    seen = [quick([Sample.of(latency_ns) for latency_ns in side]) for side in (a, b)]
    found = [outliers.clusters for outliers in seen]
    ratios = [
        [latency_ns / level for latency_ns, level in zip(side, outliers.levels_ns, strict=True)]
        for side, outliers in zip((a, b), seen, strict=True)
    ]
    looked: list[tuple[ClusterChange, float, _Band]] = []
    for mine, (clusters, others) in enumerate((found, found[::-1])):
        for cluster in clusters:
            twins = [other for other in others if _near(cluster, other)]
            if twins and mine == 0:
                continue  # counted once, from B's side
            band = _Band.of(ratios, cluster, twins)
            kind = ClusterChange.KEPT if twins else (ClusterChange.GONE, ClusterChange.NEW)[mine]
            looked.append((kind, cluster.multiplier, band))
    p_values = holm([band.p_value() for _, _, band in looked])
    pairs: dict[ClusterChange, list[ClusterPair]] = {kind: [] for kind in ClusterChange}
    for (kind, multiplier, band), p in zip(looked, p_values, strict=True):
        more = 0 if kind == ClusterChange.GONE else 1
        shares = band.share(0), band.share(1)
        sure = kind == ClusterChange.KEPT or (p <= 1 - confidence and band.rounds_agree(more, confidence))
        pairs[kind if sure else ClusterChange.UNCLEAR].append(ClusterPair(multiplier, shares[more], *shares, p))
    return {kind: tuple(sorted(found, key=lambda pair: pair.multiplier)) for kind, found in pairs.items()}


def _near(a: Cluster, b: Cluster) -> bool:
    """Whether they lie at about the same multiple: within 0.05, or one inside the other's extent."""
    apart = abs(a.multiplier - b.multiplier)
    return apart <= NEAR or b.low <= a.multiplier <= b.high or a.low <= b.multiplier <= a.high


@dataclass(frozen=True)
class _Band:
    """Trials in a band of multiples: for A and B, an array a round of whether a trial lies in it."""

    inside: tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]

    @classmethod
    def of(cls, ratios: Sequence[Sequence[np.ndarray]], cluster: Cluster, twins: Sequence[Cluster]) -> _Band:
        low = min(cluster.multiplier - NEAR, *(each.low for each in (cluster, *twins)))
        high = max(cluster.multiplier + NEAR, *(each.high for each in (cluster, *twins)))
        halfway = (1 + cluster.multiplier) / 2  # to the bulk, and no nearer
        low, high = (max(low, halfway), high) if cluster.multiplier > 1 else (low, min(high, halfway))
        return cls(tuple(tuple((ratio >= low) & (ratio <= high) for ratio in side) for side in ratios))

    def share(self, side: int) -> float:
        return sum(int(inside.sum()) for inside in self.inside[side]) / sum(map(len, self.inside[side]))

    def p_value(self) -> float:
        """Of equal shares, two-sided."""
        from scipy.stats import fisher_exact

        table = []
        for side in (0, 1):
            trials = sum(effective_n(inside) for inside in self.inside[side])
            count = round(self.share(side) * trials)
            table.append([count, max(0, round(trials) - count)])
        return float(fisher_exact(table).pvalue)

    def rounds_agree(self, more: int, confidence: float) -> bool:
        """Whether the rounds of side `more` have the larger share, as a whole."""
        above, below = ([float(inside.mean()) for inside in self.inside[side]] for side in (more, 1 - more))
        against = sum(higher <= lower for higher in above for lower in below)
        rank = ratio_rank(len(above), len(below), confidence) if min(len(above), len(below)) >= ROUNDS else 1
        return against < rank


# One percentile of two sides: is their ratio beyond what processes differ by?

#: What this many times as many trials exceed as the percentile counts as its tail.
TAIL = 5


@dataclass(frozen=True)
class PercentileChange:
    """B against A by one percentile: the ratio B / A with its bounds over rounds, each process's percentile, and why.

    `rounds_needed` a side would decide where this did not; 0 where it did.
    """

    change: Change
    ratio: float | None
    low: float | None
    high: float | None
    values_us: tuple[tuple[float, ...], tuple[float, ...]]
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
    """Compare the percentile `share` of A's and B's processes (`sides`: trials in ns, in order, an array a process).

    `confidence` is that of the intervals within processes. The interval over rounds is one of two, median and
    tail, that hold together with it. `machine`: by how much the machine itself was slower for B, as far as
    control runs tell.
    """
    each = 1 - (1 - confidence) / 2
    ordered = [[np.sort(latency_ns) for latency_ns in side] for side in sides]
    values = [np.array([percentile(latency_ns, share) for latency_ns in side]) for side in ordered]
    ratios = np.sort(np.divide.outer(values[1], values[0]).ravel())
    ratio = math.sqrt(ratios[(len(ratios) - 1) // 2] * ratios[len(ratios) // 2])
    m, n = len(values[0]), len(values[1])
    rank = ratio_rank(m, n, each)
    low, high = (float(ratios[rank - 1]), float(ratios[-rank])) if rank else (None, None)
    values_us = tuple(tuple((value / 1e3).tolist()) for value in values)
    needed = next((rounds for rounds in range(ROUNDS, 101) if ratio_rank(rounds, rounds, each)), 100)
    if min(m, n) < ROUNDS:
        change, reason = _by_processes(share, sides, ordered, values, ratio, effect, confidence, machine)
    elif rank:
        change, reason = _by_rounds(low, high, effect)
        needed = 2 * max(m, n)
    else:
        change = Change.AMBIGUOUS
        reason = f"{m} and {n} rounds give no interval at {100 * confidence:g} % confidence; record {needed} per side"
    needed = needed if change == Change.AMBIGUOUS else 0
    return PercentileChange(change, ratio, low, high, values_us, f"{name}: {reason}", needed)


def _by_rounds(low: float, high: float, effect: float) -> tuple[Change, str]:
    least, most = 1 / (1 + effect), 1 + effect
    bounds = f"over rounds the ratio lies between {low:.4g} and {high:.4g}"
    if high < least:
        return Change.FASTER, f"{bounds}, beyond the effect of {100 * effect:g} %"
    if low > most:
        return Change.SLOWER, f"{bounds}, beyond the effect of {100 * effect:g} %"
    if least <= low and high <= most:
        return Change.SAME, f"{bounds}, within {100 * effect:g} % of 1"
    return Change.AMBIGUOUS, f"{bounds}, neither within {100 * effect:g} % of 1 nor beyond"


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
    """With fewer than 5 rounds a side."""
    sure = max(ONE_PROCESS_RATIO, 1 + effect)
    m, n = len(values[0]), len(values[1])
    rounds = f"{m} processes per side" if m == n else f"{m} and {n} processes"
    rounds = "one process per side" if m == n == 1 else rounds
    apart = max(ratio, 1 / ratio)
    if apart <= sure:
        inconclusive = f"a difference under {100 * (sure - 1):.3g} % is inconclusive; record {ROUNDS} per side"
        return Change.AMBIGUOUS, f"with {rounds}, {inconclusive}"
    within = max(float(value.max() / value.min()) for value in values)
    if apart <= within:
        return Change.AMBIGUOUS, f"rounds of one side already differ by a ratio of {within:.2f}"
    slow = 1 if ratio > 1 else 0
    state = max(1.0, machine if slow else 1 / machine)
    if apart <= sure * state:
        return Change.AMBIGUOUS, f"{rounds}, and the control run of an empty step differs by a ratio of {state:.2f} too"
    part = _effective_share(sides, values, share)
    lows, highs = (
        [
            (interval(latency_ns, share, confidence, part)[end], value)
            for latency_ns, value in zip(ordered[side], values[side], strict=True)
        ]
        for side, end in ((slow, 0), (1 - slow, 1))
    )
    if any(bound is None for bound, _ in lows + highs):
        correlated = f"trials are too correlated for an interval (effective sample size {100 * part:.0f} % of n)"
        return Change.AMBIGUOUS, f"with {rounds}, {correlated}"
    if max(bound for bound, _ in highs) >= min(bound for bound, _ in lows):
        return Change.AMBIGUOUS, "the exact intervals of the processes overlap"
    # Chance within the processes adds to what processes differ by, as squares.
    chance = [max(math.log(value / bound) for bound, value in lows), max(math.log(b / v) for b, v in highs)]
    needed = math.exp(math.hypot(math.log(sure), *chance))
    if apart <= needed:
        uncertain = f"and the uncertainty within each, a ratio below {needed:.2f} is inconclusive"
        return Change.AMBIGUOUS, f"with {rounds} {uncertain}"
    assumed = f"assumes that processes of one configuration differ by less than {100 * (ONE_PROCESS_RATIO - 1):.0f} %"
    change = Change.SLOWER if slow else Change.FASTER
    return change, f"{rounds}, with disjoint intervals and a ratio beyond {needed:.2f}; {assumed}"


def _effective_share(sides: list[list[np.ndarray]], values: list[np.ndarray], share: Fraction) -> float:
    """Effective number of trials over their number, the least of all processes.

    Looked at above each process's own percentile, and above the middle of all where that is still
    the tail. The least, since a burst of late answers that fell into one process only leaves no
    trace in the other.
    """
    middle = math.exp(np.mean(np.log(np.concatenate(values))))
    looks = []
    for side, own in zip(sides, values, strict=True):
        for latency_ns, value in zip(side, own, strict=True):
            beyond = latency_ns > middle
            looks.append(effective_n(latency_ns > value) / len(latency_ns))
            if beyond.mean() <= TAIL * (1 - share):
                looks.append(effective_n(beyond) / len(latency_ns))
    return min(looks)


#: The tail is compared at the highest of these that every process has an exact upper bound of.
TAIL_PERCENTILES = (99.99, 99.9, 99.0, 90.0)


@dataclass(frozen=True)
class Comparison(JsonFields):
    """B against A; every ratio is B's over A's, below 1 where B is faster.

    `median` and `tail` are SAME, FASTER, SLOWER or AMBIGUOUS. The ratio is that of Hodges and
    Lehmann, the middle of the ratios of all rounds of B to all of A; `_low` and `_high` are its
    exact interval over rounds, None where there are too few for one. `_us_rounds` have the
    percentile of each process. `rounds_needed` a side might decide what is AMBIGUOUS, 0 where nothing
    is, or where processes are too short for a tail; `command` records them, None where none are
    needed and where it is not known how the sides were recorded; with `one_configuration` it is to
    be run once for each side.
    """

    median: Change
    tail: Change
    tail_percentile: float | None
    median_ratio: float
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


def compare_groups(a: Group, b: Group, effect: float = EFFECT, confidence: float = DEFAULT_CONFIDENCE) -> Comparison:
    """B against A, replicated by process.

    With at least 5 rounds a side: FASTER and SLOWER where the interval of the ratio over rounds
    lies beyond the effect (outside 1 / (1 + effect) to 1 + effect), SAME where it lies within, else
    AMBIGUOUS. The interval is exact (Mann and Whitney's, turned round by Hodges and Lehmann); those
    of median and tail are taken at 1 - (1 - confidence) / 2 each, so that both hold together with
    `confidence`. Within each process nothing is assumed; processes are taken as independent.

    With fewer rounds AMBIGUOUS, unless the ratio exceeds 1.10, the ratio of any two rounds of one
    side, and what the percentile itself is uncertain by, and the order-statistic intervals of every
    process of one side are disjoint from those of the other. They are taken for the effective
    number of trials. That rests on two processes of one configuration differing
    by less than 10 %: a machine where they do not needs the rounds.

    Raises `UsageError` where a side has no trials, a latency is not above 0, or the effect or the
    confidence is no share.
    """
    check_confidence(confidence)
    check_effect(effect)
    sides = [_timed(side) for side in (a, b)]
    tail = _tail_percentile([len(latency_ns) for side in sides for latency_ns in side], confidence)
    machine = control_ratio(a, b)
    by_median = compare_percentile("median", Fraction(1, 2), sides, effect, confidence, machine)
    if tail is None:
        least = min(len(latency_ns) for side in sides for latency_ns in side)
        reason = f"tail: no percentile from p90 on has an upper bound at n = {least}"
        by_tail = PercentileChange(Change.AMBIGUOUS, None, None, None, ((), ()), reason, 0)
    else:
        by_tail = compare_percentile(f"p{tail:g}", share_of(tail), sides, effect, confidence, machine)
    twice = shared(a, b)
    reasons = [by_median.reason, by_tail.reason]
    if twice:
        reasons.insert(0, _twice(twice, sides))
    known = a.configuration is not None and b.configuration is not None
    rounds = max(by_median.rounds_needed, by_tail.rounds_needed)
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
        **{f"clusters_{kind}": pairs for kind, pairs in changes(*sides, confidence).items()},
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
        command=record_both_command(a.configuration, b.configuration, "rounds", rounds) if rounds and known else None,
        rounds_needed=rounds,
        one_configuration=a.configuration is not None and a.configuration == b.configuration,
        effect=effect,
        confidence=confidence,
    )


def check_effect(effect: float) -> None:
    """Raises `UsageError` where it is no share from 0 to below 1."""
    if not 0 <= effect < 1:  # NaN too
        raise UsageError(f"the effect is a share such as 0.02, at least 0 and below 1, not {effect:g}")


def _timed(side: Group) -> list[np.ndarray]:
    if side.failure is not None:
        raise UsageError(f"{side.name} has no trials to compare: {side.failure}")
    timed = [sample.timed_ns for sample in side.samples if len(sample.timed_ns)]
    if not timed:
        raise UsageError(f"{side.name} has no trials after warm-up to compare")
    if not all(float(latency_ns.min()) > 0 for latency_ns in timed):
        raise UsageError(f"{side.name} has latencies that are not above 0: nothing was timed there")
    return timed


def _tail_percentile(sizes: Sequence[int], confidence: float) -> float | None:
    """The highest with an exact upper bound in every process."""
    for value in TAIL_PERCENTILES:
        if all(interval_ranks(n, share_of(value), confidence)[1] is not None for n in set(sizes)):
            return value
    return None


def _twice(count: int, sides: list[list[np.ndarray]]) -> str:
    if count == len(sides[0]) == len(sides[1]):
        return "A and B are the same recording: this compares it with itself"
    return f"{count} of the recordings {'is' if count == 1 else 'are'} on both sides"


@dataclass(frozen=True)
class NotCompared:
    """A configuration that is on one side only, or failed on one; `group` tells it from the others."""

    name: str
    group: dict
    reason: str

    def as_dict(self) -> dict:
        """JSON values."""
        return {"median": None, "tail": None, "clusters_gone": [], "clusters_new": [], "reasons": [self.reason]}


@dataclass(frozen=True, eq=False)
class Comparisons(Answers):
    """Comparisons of the configurations of two sides, a `NotCompared` where there is none; `runs` is A, `other` B."""

    other: Runs = field(kw_only=True)
    pairs: Pairs = field(kw_only=True)

    def __str__(self) -> str:
        blocks = [f"{name}: {of_a} in A, {of_b} in B" for name, (of_a, of_b) in self.pairs.differ.items()]
        head = "\n".join([*blocks, ""]) if blocks else ""
        return head + "\n\n".join(map(self._text, range(len(self))))

    def _text(self, place: int) -> str:
        answer = self.answers[place]
        if isinstance(answer, NotCompared):
            return f"{answer.name}: {answer.reason}"
        _, *groups = self.pairs.pairs[place]
        names = [
            f"{group.name} in {runs.source}" if self.pairs.several else runs.source
            for runs, group in zip((self.runs, self.other), groups, strict=True)
        ]
        return comparison_text(answer, *(("A", "B") if names[0] == names[1] else names))

    def as_dict(self) -> dict | list:
        sides = {name: {"source": runs.source, **runs.how} for name, runs in (("a", self.runs), ("b", self.other))}
        groups = [group for group, _, _ in self.pairs.pairs]
        groups += [answer.group for answer in self.answers[len(groups) :]]
        plain = [
            {**sides, "group": group, **answer.as_dict()} for group, answer in zip(groups, self.answers, strict=True)
        ]
        return plain if self.pairs.several else {**plain[0], "group": {}}

    @property
    def frame(self) -> pd.DataFrame:
        """A row a configuration of both sides: what they share, and the ratios with their intervals over rounds."""
        import pandas as pd

        # Configurations on one side only, the last of the answers, have no row.
        names = ("median", "median_ratio", "median_ratio_low", "median_ratio_high")
        names += ("tail", "tail_percentile", "tail_ratio", "tail_ratio_low", "tail_ratio_high", "rounds_a", "rounds_b")
        return pd.DataFrame(
            {**group, **{name: getattr(answer, name, None) for name in names}}
            for (group, _, _), answer in zip(self.pairs.pairs, self.answers, strict=False)
        )


def compare(a: Any, b: Any, effect: float = EFFECT, confidence: float = DEFAULT_CONFIDENCE) -> Comparisons:
    """Each configuration of B compared with that of A which answers the same question (`pairing.py`).

    `a` and `b`: what `store.runs.as_runs` takes. `effect` is the smallest relative difference that matters. Raises
    `UsageError` where an argument is out of range, a configuration has fewer than 2 trials after warm-up, or none
    of A and B belong together.
    """
    check_confidence(confidence)
    check_effect(effect)
    a, b = runs_to_judge(a), runs_to_judge(b)
    pairs = pair(a, b)
    answers: list[Comparison | NotCompared] = []
    for shared_fields, *groups in pairs.pairs:
        failed = next((side for side in zip((a, b), groups, strict=True) if side[1].failure is not None), None)
        if failed is None:
            answers.append(compare_groups(*groups, effect, confidence))
        else:
            reason = f"{failed[0].source}: {failed[1].failure}"
            answers.append(NotCompared(f"{groups[0].name}: not compared", shared_fields, reason))
    for runs, groups in ((a, pairs.only_a), (b, pairs.only_b)):
        answers += [NotCompared(group.name, group.group, f"only in {runs.source}") for group in groups]
    return Comparisons(a, tuple(answers), (*a.warnings, *b.warnings), other=b, pairs=pairs)
