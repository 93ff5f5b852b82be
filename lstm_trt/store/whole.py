"""All trials of a recording that is too long for memory: counts of its latencies, and its parts,
one at a time."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

#: Latencies in whole ns within this range are counted in an array of this length.
DENSE = 2**24


@dataclass(frozen=True, eq=False)
class Whole:
    """The latencies after warm-up in ns, by value; as of a sorted array, `len` and `[rank]` give
    order statistics.

    `values`: the distinct ones, ascending, `counts`: the number of trials with each. `step`: one of
    each so many trials is kept in memory. `most_ns`: the largest latency including warm-up.
    `parts`: reads the latencies after warm-up again, in order, an array per part.
    """

    values: np.ndarray = field(repr=False)
    counts: np.ndarray = field(repr=False)
    step: int = 1
    most_ns: float = 0.0
    parts: Callable[[], Iterable[np.ndarray]] = field(default=tuple, repr=False)

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self.counts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, rank: Any) -> Any:
        rank = np.asarray(rank)
        return self.values[
            np.searchsorted(self._ends, np.where(rank < 0, rank + len(self), rank), "right")
        ]


def percentile(sorted_values: np.ndarray | Whole, share: Fraction) -> float:
    """The order statistic at rank ceil(n share): the smallest value that this share of the trials
    does not exceed.

    The rank is exact. `numpy.percentile(..., 99.9, method="inverted_cdf")` computes it in
    floating point and returns the largest of 1000 values instead of the 999th.
    """
    rank = math.ceil(len(sorted_values) * share)
    return float(sorted_values[max(rank, 1) - 1])


def one_of_each(n: int, step: int) -> np.ndarray:
    """Places of n / `step` trials of n, ascending: a random one of each `step` consecutive trials,
    the same each time.

    Every second, third, ... trial would hide events that come back after as many trials, or show
    nothing else.
    """
    first = np.arange(0, n, step)
    return np.minimum(first + np.random.default_rng(0).integers(0, step, len(first)), n - 1)


def counted(parts: Iterable[tuple[np.ndarray, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values, ascending, and their numbers, of several pairs of values and numbers (1 for
    one of each)."""
    values = np.empty(0)
    numbers = np.empty(0, np.int64)
    for more, each in map(_dense, parts):
        values, places = np.unique(np.concatenate([values, more]), return_inverse=True)
        numbers = np.bincount(
            places, np.concatenate([numbers, np.broadcast_to(each, len(more))])
        ).astype(np.int64)
    return values, numbers


def _dense(part: tuple[np.ndarray, Any]) -> tuple[np.ndarray, Any]:
    """Values in whole ns that are close together, counted without sorting, which is several times
    faster."""
    values, each = part
    if values.dtype.kind != "i" or np.ptp(values) >= DENSE:
        return values, each
    found = np.bincount(values - values.min())
    return np.flatnonzero(found) + values.min(), found[found > 0]
