"""Places of misses in a recording, by kind of dependence: ascending indices below n, at a mean rate of `rate`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Lengths = Callable[[np.random.Generator, int], np.ndarray]


def independent(rng: np.random.Generator, n: int, rate: float) -> np.ndarray:
    return np.sort(rng.choice(n, rng.binomial(n, rate), replace=False))


def drifting(rng: np.random.Generator, n: int, rate: float) -> np.ndarray:
    """A rate that rises linearly from 0 to twice its mean."""
    return np.unique((np.sqrt(rng.random(rng.poisson(n * rate))) * n).astype(int))


def in_bursts(mean: float, lengths: Lengths, density: float = 1.0):
    """Bursts of random lengths with this mean; each call of a burst misses with the probability `density`."""

    def places(rng: np.random.Generator, n: int, rate: float) -> np.ndarray:
        bad = rate / density
        begins = bad / (1 - bad) / mean
        before = int(min(50 * mean, n))  # the recording begins within a stationary process
        total = n + before
        count = int(total * begins * 1.3 + 12 * math.sqrt(total * begins) + 15)
        gaps, long = rng.geometric(begins, count), lengths(rng, count)
        starts = np.cumsum(gaps) + np.r_[0, np.cumsum(long)[:-1]] - 1 - before
        inside = starts < n
        starts, long = starts[inside], long[inside]
        if not len(starts):
            return np.empty(0, int)
        calls = np.repeat(starts, long) + np.arange(long.sum()) - np.repeat(np.r_[0, np.cumsum(long)[:-1]], long)
        calls = calls[(calls >= 0) & (calls < n)]
        return calls if density == 1 else calls[rng.random(len(calls)) < density]

    return places


def geometric(mean: float, density: float = 1.0):
    """A two-state chain: bursts of geometric lengths."""
    return in_bursts(mean, lambda rng, count: rng.geometric(1 / mean, count), density)


def periodic(length: int):
    """Bursts of `length` misses at a fixed distance, from a random place on."""

    def places(rng: np.random.Generator, n: int, rate: float) -> np.ndarray:
        starts = np.arange(rng.integers(round(length / rate)) - round(length / rate), n, round(length / rate))
        calls = (starts[:, None] + np.arange(length)).ravel()
        return calls[(calls >= 0) & (calls < n)]

    return places


KINDS = {
    "independent": independent,
    "bursts of 4": geometric(4),
    "bursts of 10": geometric(10),
    "bursts of 20": geometric(20),
    "80 % single, 20 % bursts of 20": in_bursts(4.8, lambda rng, count: np.where(rng.random(count) < 0.2, 20, 1)),
    "every second call of bursts of 20": geometric(20, 0.5),
    "log-normal lengths, mean 10": in_bursts(
        9.7, lambda rng, count: np.ceil(np.exp(rng.normal(1.5, 1.2, count))).astype(int)
    ),
    "bad states of 1000 calls, 5 % of which miss": geometric(1000, 0.05),
    "bad states of 5000 calls, 2 % of which miss": geometric(5000, 0.02),
    "bursts of 10, periodic": periodic(10),
    "drift": drifting,
}
