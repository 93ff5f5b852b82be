"""Which clusters of late answers came and went from one recorded side to the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lstm_trt.analysis.causes import holm
from lstm_trt.analysis.certainty import ROUNDS, ratio_rank, worth
from lstm_trt.samples import Sample

#: Clusters whose multiples of the median are this near are one cluster.
NEAR = 0.05


@dataclass(frozen=True)
class ClusterPair:
    """A cluster, and the share of the trials in its band of multiples of the local median on each side.

    `share` is that of the side that has it (of B where both do). `p_corrected` belongs to "the
    shares are equal", corrected for all clusters that were looked at (Holm).
    """

    multiplier: float
    share: float
    share_a: float
    share_b: float
    p_corrected: float


@dataclass(frozen=True)
class Changes:
    """`gone`: only A has them; `new`: only B; `kept`: both; `unclear`: one side alone, but chance may explain it."""

    gone: tuple[ClusterPair, ...] = ()
    new: tuple[ClusterPair, ...] = ()
    kept: tuple[ClusterPair, ...] = ()
    unclear: tuple[ClusterPair, ...] = ()


def changes(a: Sequence[np.ndarray], b: Sequence[np.ndarray], confidence: float) -> Changes:
    """Clusters of both sides (timed trials of each process, in order), by their multiples of the local median.

    A cluster without a counterpart is gone, or new, where the trials in its band are too few on the
    other side for chance: Fisher's exact test, with the counts taken for as many trials as they are
    worth where late answers come in bursts, and Holm's correction. With 5 rounds a side and more
    the shares of the rounds must differ too (Mann and Whitney, exact); with fewer, those of all
    rounds of one side must lie above those of the other.
    """
    from lstm_trt.analysis.outliers import quick

    seen = [quick([Sample.of(one) for one in side]) for side in (a, b)]
    found = [one.clusters for one in seen]
    if not any(found):
        return Changes()
    ratios = [
        [one / level for one, level in zip(side, one_seen.levels_ns, strict=True)]
        for side, one_seen in zip((a, b), seen, strict=True)
    ]
    looked: list[tuple[str, float, _Band]] = []
    for mine, (clusters, others) in enumerate((found, found[::-1])):
        for cluster in clusters:
            twins = [one for one in others if _near(cluster, one)]
            if twins and mine == 0:
                continue  # told once, from B's side
            band = _Band.of(
                ratios,
                min(c.low for c in (cluster, *twins)),
                max(c.high for c in (cluster, *twins)),
                cluster.multiplier,
            )
            looked.append(("kept" if twins else ("gone", "new")[mine], cluster.multiplier, band))
    p_values = holm([band.p_value() for _, _, band in looked])
    answer: dict[str, list[ClusterPair]] = {"gone": [], "new": [], "kept": [], "unclear": []}
    for (kind, multiplier, band), p in zip(looked, p_values, strict=True):
        place, more = kind, {"gone": 0, "new": 1}.get(kind)
        if more is not None and not (p <= 1 - confidence and band.rounds_agree(more, confidence)):
            place = "unclear"
        share_a, share_b = band.share(0), band.share(1)
        answer[place].append(ClusterPair(multiplier, share_a if more == 0 else share_b, share_a, share_b, p))
    return Changes(**{kind: tuple(sorted(pairs, key=lambda one: one.multiplier)) for kind, pairs in answer.items()})


def _near(one, other) -> bool:
    """Whether they lie at about the same multiple: within 0.05, or one inside the other's extent."""
    return (
        abs(one.multiplier - other.multiplier) <= NEAR
        or other.low <= one.multiplier <= other.high
        or one.low <= other.multiplier <= one.high
    )


@dataclass(frozen=True)
class _Band:
    """Trials in a band of multiples: for A and B, an array a round of whether a trial lies in it."""

    inside: tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]

    @classmethod
    def of(cls, ratios: Sequence[Sequence[np.ndarray]], low: float, high: float, multiplier: float) -> _Band:
        low, high = min(low, multiplier - NEAR), max(high, multiplier + NEAR)
        if multiplier > 1:  # not into the body: at most half the way to it
            low = max(low, (1 + multiplier) / 2)
        else:
            high = min(high, (1 + multiplier) / 2)
        return cls(tuple(tuple((one >= low) & (one <= high) for one in side) for side in ratios))

    def share(self, side: int) -> float:
        return sum(int(one.sum()) for one in self.inside[side]) / sum(map(len, self.inside[side]))

    def p_value(self) -> float:
        """Of equal shares, two-sided."""
        from scipy.stats import fisher_exact

        table = []
        for side in (0, 1):
            trials = sum(worth(one) for one in self.inside[side])
            count = round(self.share(side) * trials)
            table.append([count, max(0, round(trials) - count)])
        return float(fisher_exact(table).pvalue)

    def rounds_agree(self, more: int, confidence: float) -> bool:
        """Whether the rounds of side `more` have the larger share, as a whole."""
        above, below = ([float(one.mean()) for one in self.inside[side]] for side in (more, 1 - more))
        against = sum(one <= other for one in above for other in below)
        rank = ratio_rank(len(above), len(below), confidence) if min(len(above), len(below)) >= ROUNDS else 1
        return against < rank
