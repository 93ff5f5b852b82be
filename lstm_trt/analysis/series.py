"""The latencies of one process, or of several pooled, and their statistics.

Percentiles and their intervals are order statistics (`quantiles`), that is, latencies that occurred; only the quartiles
of boxes and of the 1.5 x IQR rule are interpolated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lstm_trt.analysis.quantiles import DEFAULT_CONFIDENCE, PERCENTILES, interval, is_outlier, percentile
from lstm_trt.analysis.segments import find_segments
from lstm_trt.store.samples import Group


@dataclass(frozen=True)
class Series:
    """Latencies after warm-up, in ns and in order; at least one."""

    latency_ns: np.ndarray

    @property
    def n(self) -> int:
        return len(self.latency_ns)

    @cached_property
    def ordered_ns(self) -> np.ndarray:
        return np.sort(self.latency_ns)

    @cached_property
    def latency_us(self) -> np.ndarray:
        return self.latency_ns / 1000

    @cached_property
    def quartiles_us(self) -> tuple[float, float]:
        """Interpolated quartiles, for boxes and the 1.5 x IQR rule only."""
        low, high = np.quantile(self.ordered_ns, (0.25, 0.75)) / 1e3
        return float(low), float(high)

    @cached_property
    def is_outlier(self) -> np.ndarray:
        """Which trials are outside 1.5 x IQR, on both sides, as counted in the founding document and by `summarize`."""
        return is_outlier(self.latency_ns)

    @property
    def outliers(self) -> int:
        return int(self.is_outlier.sum())

    @cached_property
    def level_range(self) -> float:
        """The highest level of the trials over the lowest, minus 1 (see `segments.py`)."""
        level_ns = find_segments(self.latency_ns).level_ns
        return float(level_ns.max() / level_ns.min() - 1)

    @property
    def median_us(self) -> float:
        return self.statistic("median_us")

    @property
    def max_us(self) -> float:
        return self.statistic("max_us")

    def statistic(self, name: str) -> float:
        """In us: "min_us", "mean_us", "max_us", or one of `quantiles.PERCENTILES`."""
        if name in PERCENTILES:
            return percentile(self.ordered_ns, PERCENTILES[name]) / 1e3
        if name == "mean_us":
            return float(np.mean(self.ordered_ns, dtype=np.float64)) / 1e3
        return float(self.ordered_ns[{"min_us": 0, "max_us": -1}[name]]) / 1e3

    def interval_us(self, name: str, confidence: float = DEFAULT_CONFIDENCE) -> tuple[float | None, float | None]:
        """The exact interval of a percentile in us; None for a bound that does not exist at this n."""
        low, high = interval(self.ordered_ns, PERCENTILES[name], confidence)
        return None if low is None else low / 1e3, None if high is None else high / 1e3


def rounds_of(group: Group) -> tuple[Series, ...]:
    """The rounds of a group that have trials after warm-up."""
    return tuple(Series(sample.timed_ns) for sample in group.samples if len(sample.timed_ns))
