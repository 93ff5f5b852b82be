"""Whether B is faster than A, slower, or the same: by the median and by the tail, apart.

The unit of replication is the process. The same script in ten processes had medians known to
0.07 % each, and 3 % apart; so intervals of two processes that do not touch prove nothing. What is
asked is whether *another* process of B would differ from *another* process of A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction

import numpy as np

from lstm_trt.analysis.certainty import EFFECT
from lstm_trt.analysis.comparison_clusters import ClusterPair, changes
from lstm_trt.analysis.comparison_ratio import AMBIGUOUS, Judged, judge
from lstm_trt.analysis.comparison_sides import command, control_ratio, differences, shared
from lstm_trt.analysis.quantiles import CONFIDENCE, check_confidence, interval_ranks, share_of
from lstm_trt.errors import UsageError
from lstm_trt.samples import Group

#: The tail is compared at the highest of these that every process has an exact upper bound of.
TAIL_PERCENTILES = (99.99, 99.9, 99.0, 90.0)


@dataclass(frozen=True)
class Comparison:
    """B against A; every ratio is B's over A's, below 1 where B is faster.

    `median` and `tail` are SAME, FASTER, SLOWER or AMBIGUOUS. The ratio is that of Hodges and
    Lehmann, the middle of the ratios of all rounds of B to all of A; `_low` and `_high` are its
    exact interval over rounds, None where there are too few for one. `_us_rounds` have the
    percentile of each process. `rounds_needed` a side might decide what is AMBIGUOUS, 0 where nothing
    is, or where processes are too short for a tail; `command` records them, None where none are
    needed and where it is not known how the sides were recorded; with `one_configuration` it is to
    be run once for each side.
    """

    median: str
    tail: str
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

    def as_dict(self) -> dict:
        """JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def compare(a: Group, b: Group, effect: float = EFFECT, confidence: float = CONFIDENCE) -> Comparison:
    """B against A, replicated by process.

    With at least 5 rounds a side: FASTER and SLOWER where the interval of the ratio over rounds
    lies beyond the effect (outside 1 / (1 + effect) to 1 + effect), SAME where it lies within, else
    AMBIGUOUS. The interval is exact (Mann and Whitney's, turned round by Hodges and Lehmann); those
    of median and tail are taken at 1 - (1 - confidence) / 2 each, so that both hold together with
    `confidence`. Within each process nothing is assumed; processes are taken as independent.

    With fewer rounds AMBIGUOUS, unless the ratio exceeds 1.10, the ratio of any two rounds of one
    side, and what the percentile itself is uncertain by, and the order-statistic intervals of every
    process of one side are disjoint from those of the other. They are taken for as many trials as
    the trials are worth in their order. That rests on two processes of one configuration differing
    by less than 10 %: a machine where they do not needs the rounds.

    Raises `UsageError` where a side has no trials, a latency is not above 0, or the effect or the
    confidence is no share.
    """
    check_confidence(confidence)
    check_effect(effect)
    sides = [_timed(one) for one in (a, b)]
    tail = _tail_percentile([len(one) for side in sides for one in side], confidence)
    each = 1 - (1 - confidence) / 2
    machine = control_ratio(a, b)
    by_median = judge("median", Fraction(1, 2), sides, effect, confidence, each, machine)
    by_tail = Judged(AMBIGUOUS, None, None, None, ((), ()), (_no_tail(sides),), 0)
    if tail is not None:
        by_tail = judge(f"p{tail:g}", share_of(tail), sides, effect, confidence, each, machine)
    twice = shared(a, b)
    reasons = list(dict.fromkeys([*by_median.reasons, *by_tail.reasons]))
    if twice:
        reasons.insert(0, _twice(twice, sides))
    rounds = max(by_median.rounds_needed, by_tail.rounds_needed)
    came_and_went = changes(*sides, confidence)
    return Comparison(
        median=by_median.word,
        tail=by_tail.word,
        tail_percentile=tail,
        median_ratio=by_median.ratio,
        median_ratio_low=by_median.low,
        median_ratio_high=by_median.high,
        tail_ratio=by_tail.ratio,
        tail_ratio_low=by_tail.low,
        tail_ratio_high=by_tail.high,
        clusters_gone=came_and_went.gone,
        clusters_new=came_and_went.new,
        clusters_kept=came_and_went.kept,
        clusters_unclear=came_and_went.unclear,
        rounds_a=len(sides[0]),
        rounds_b=len(sides[1]),
        n_a=sum(map(len, sides[0])),
        n_b=sum(map(len, sides[1])),
        max_us_a=max(float(one.max()) for one in sides[0]) / 1e3,
        max_us_b=max(float(one.max()) for one in sides[1]) / 1e3,
        median_us_rounds_a=by_median.values_us[0],
        median_us_rounds_b=by_median.values_us[1],
        tail_us_rounds_a=by_tail.values_us[0],
        tail_us_rounds_b=by_tail.values_us[1],
        reasons=tuple(reasons),
        differences=tuple(differences(a, b)),
        command=command(a, b, rounds) if rounds else None,
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
    if not all(float(one.min()) > 0 for one in timed):
        raise UsageError(f"{side.name} has latencies that are not above 0: nothing was timed there")
    return timed


def _tail_percentile(sizes: Sequence[int], confidence: float) -> float | None:
    """The highest with an exact upper bound in every process."""
    for value in TAIL_PERCENTILES:
        if all(interval_ranks(n, share_of(value), confidence)[1] is not None for n in set(sizes)):
            return value
    return None


def _no_tail(sides: list[list[np.ndarray]]) -> str:
    least = min(len(one) for side in sides for one in side)
    return f"tail: no percentile from p90 on has an upper bound at n = {least}"


def _twice(count: int, sides: list[list[np.ndarray]]) -> str:
    if count == len(sides[0]) == len(sides[1]):
        return "A and B are the same recording: this compares it with itself"
    return f"{count} of the recordings {'is' if count == 1 else 'are'} on both sides"
