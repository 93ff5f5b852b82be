"""All trials of a recording that is too long for memory, and of a histogram."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from lstm_trt.store.whole import Whole

#: Of a recording with more trials, only one of each two, three, ... is kept, up to this number.
KEPT = 1_000_000

#: Share of the trials, the slowest, whose places are kept once they were asked for.
SLOWEST = 0.01


class AllTrials(Whole):
    """The latencies of all trials, by value; where slow ones are is read from the files again."""

    def __truediv__(self, divisor: float) -> AllTrials:
        return AllTrials(self.values / divisor, self.counts)

    def above(self, limit_ns: float) -> tuple[Any, np.ndarray]:
        """Places and latencies of the trials above a limit, in order; reads the parts if it is not
        a high one."""
        least, places, slow_ns = self._slowest
        if limit_ns < least:
            return self._read_above(limit_ns)
        return places[slow_ns > limit_ns], slow_ns[slow_ns > limit_ns]

    @cached_property
    def _slowest(self) -> tuple[float, np.ndarray, np.ndarray]:
        least = float(self[int(len(self) * (1 - SLOWEST))])
        return (least, *self._read_above(least))

    def _read_above(self, limit_ns: float) -> tuple[np.ndarray, np.ndarray]:
        places = [np.empty(0, int)]
        slow_ns = [np.empty(0)]
        first = 0
        for latency_ns in self.parts():
            here = np.flatnonzero(latency_ns > limit_ns)
            places.append(first + here)
            slow_ns.append(latency_ns[here].astype(np.float64))
            first += len(latency_ns)
        return np.concatenate(places), np.concatenate(slow_ns)


class Bins(AllTrials):
    """The calls of a histogram, `values` as its numbers for each bin; their order is not known."""

    def above(self, limit_ns: float) -> tuple[Any, np.ndarray]:
        """As many places as calls are above a limit, and the latencies of the bins above it."""
        above = self.values > limit_ns
        return range(int(self.counts[above].sum())), self.values[above]


#: Ascending values, or those of a long recording.
Ordered = np.ndarray | AllTrials
