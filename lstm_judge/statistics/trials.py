"""The latencies of one process, or of several pooled, and their statistics.

Percentiles and their intervals are order statistics (`quantiles`), that is, latencies that
occurred; only the quartiles of boxes and of the 1.5 x IQR rule are interpolated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from lstm_judge.read.rounds import Group, Round
from lstm_judge.read.whole import AllTrials
from lstm_judge.statistics.quantiles import (
    DEFAULT_CONFIDENCE,
    PERCENTILES,
    Ordered,
    Percentile,
    count_outliers,
    finite,
    interval,
    is_outlier,
    mean_and_deviation,
    percentile,
    quantile,
)
from lstm_judge.statistics.segments import segments_of
from lstm_trt.store.whole import counted


@dataclass(frozen=True, eq=False)
class Trials:
    """Latencies after warm-up, in ns and in order; at least one.

    `whole`: all of them, if `latency_ns` has only one of each `step`, or an entry for each bin of a
    histogram; then all statistics and `above` are of all. `edges`: the least and the most that the
    latencies may be, if they differ.
    """

    latency_ns: np.ndarray
    whole: AllTrials | None = None
    edges: tuple[Trials, ...] = ()

    @classmethod
    def of(cls, *rounds: Round) -> Trials:
        """The timed trials of rounds, one after another."""
        latency_ns = np.concatenate([round_.timed(round_.latency_ns) for round_ in rounds])
        edges: tuple[Trials, ...] = ()
        if any(round_.edges_ns is not None for round_ in rounds):
            edges = tuple(cls.of(*(round_.edge(end) for round_ in rounds)) for end in (0, 1))
        whole = rounds[0].whole
        if len(rounds) > 1 and any(round_.whole for round_ in rounds):
            pairs = (
                (each.whole.values, each.whole.counts) if each.whole else (each.timed_ns, 1)
                for each in rounds
            )
            whole = AllTrials(*counted(pairs))
        return cls(latency_ns, whole, edges)

    @property
    def n(self) -> int:
        return len(self.whole or self.latency_ns)

    @property
    def step(self) -> int:
        return self.whole.step if self.whole else 1

    @cached_property
    def ordered_ns(self) -> Ordered:
        return self.whole or np.sort(self.latency_ns)

    @property
    def bounds(self) -> tuple[Trials, ...]:
        """The least and the most that the latencies may be."""
        return self.edges or (self, self)

    def above(self, limit_ns: float) -> tuple[np.ndarray, np.ndarray]:
        """Places and latencies of the trials above a limit, in order."""
        if self.whole:
            return self.whole.above(limit_ns)
        places = np.flatnonzero(self.latency_ns > limit_ns)
        return places, self.latency_ns[places]

    @cached_property
    def latency_us(self) -> np.ndarray:
        return self.latency_ns / 1000

    @property
    def ordered_us(self) -> Ordered:
        return self.ordered_ns / 1000

    @cached_property
    def quartiles_us(self) -> tuple[float, float]:
        """Interpolated quartiles, for boxes and the 1.5 x IQR rule only."""
        return quantile(self.ordered_ns, 0.25) / 1e3, quantile(self.ordered_ns, 0.75) / 1e3

    @cached_property
    def is_outlier(self) -> np.ndarray:
        """Which of `latency_ns` are outside 1.5 x IQR, on both sides, as counted by `summarize`."""
        return is_outlier(self.latency_ns)

    @property
    def outliers(self) -> int:
        return count_outliers(self.ordered_ns)

    @cached_property
    def level_range(self) -> float:
        """The highest level of the trials over the lowest, minus 1 (see `segments.py`)."""
        level_ns = segments_of(self.latency_ns).level_ns
        return float(level_ns.max() / level_ns.min() - 1)

    @property
    def median_us(self) -> float:
        return self.statistic("median_us")

    @property
    def min_us(self) -> float:
        return float(self.ordered_ns[0]) / 1e3

    @property
    def max_us(self) -> float:
        return float(self.ordered_ns[-1]) / 1e3

    @property
    def mean_us(self) -> float:
        return mean_and_deviation(self.ordered_ns)[0] / 1e3

    @property
    def std_us(self) -> float:
        """Standard deviation with n - 1 in its denominator; NaN of one trial."""
        return mean_and_deviation(self.ordered_ns)[1] / 1e3

    def statistic(self, name: str) -> float:
        """In us: "min_us", "mean_us", "max_us", or one of `quantiles.PERCENTILES`."""
        if name in PERCENTILES:
            return percentile(self.ordered_ns, PERCENTILES[name]) / 1e3
        return getattr(self, name)

    def percentile(
        self,
        share: Fraction,
        confidence: float = DEFAULT_CONFIDENCE,
        independent_n: int | None = None,
    ) -> Percentile:
        """A percentile with its interval, which is exact for independent trials.

        `independent_n`: as how many of them all trials count, if they depend on each other.
        """
        least, most = self.bounds
        effective = 1.0 if independent_n is None else independent_n / self.n
        low, high = (
            bound and bound / 1e3
            for bound in interval(least.ordered_ns, share, confidence, effective, most.ordered_ns)
        )
        return Percentile(share, finite(percentile(self.ordered_ns, share) / 1e3), low, high)


def timed_rounds(rounds: Iterable[Round]) -> tuple[Round, ...]:
    """Those that have trials after warm-up."""
    return tuple(round_ for round_ in rounds if not round_.warmup.all())


def trials_of(group: Group) -> tuple[Trials, ...]:
    """The rounds of a group that have trials after warm-up."""
    return tuple(map(Trials.of, timed_rounds(group.rounds)))
