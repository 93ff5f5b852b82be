"""Places of misses in a recording, by kind of dependence: ascending indices below n, at a mean rate of `rate`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtr

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


def process_latencies(rng: np.random.Generator, shape: tuple[int, ...], differ: float = 0.03) -> np.ndarray:
    """Latencies in ns around 100 us: the last axis is calls, which vary by 1 %, of processes, whose medians differ."""
    medians = differ * rng.standard_normal((*shape[:-1], 1))
    return 1e5 * np.exp(medians + 0.01 * rng.standard_normal(shape))


def probabilities(**of_lengths: float) -> np.ndarray:
    """The law of lengths 0, 1, ... from weights such as `of_300=0.03`."""
    weights = {int(name.removeprefix("of_")): weight for name, weight in of_lengths.items()}
    law = np.zeros(max(weights) + 1)
    law[list(weights)] = list(weights.values())
    return law / law.sum()


def log_normal(mean: float, deviation: float, longest: int = 2000) -> np.ndarray:
    """Lengths rounded up to whole calls; `mean` and `deviation` of the logarithm."""
    below = ndtr((np.log(np.arange(1, longest + 1)) - mean) / deviation)
    return np.diff(below, prepend=[0, 0]) / below[-1]


def pareto(exponent: float, longest: int) -> np.ndarray:
    law = np.r_[0, np.arange(1.0, longest + 1) ** -(exponent + 1)]
    return law / law.sum()


def means(law: np.ndarray) -> tuple[float, float]:
    """The mean length of bursts, and the mean over misses of the length of their burst, E[L^2] / E[L]."""
    lengths = np.arange(len(law))
    mean = float(lengths @ law)
    return mean, float(lengths**2 @ law) / mean


def chance_of_at_most(count: int, expected: float, law: np.ndarray) -> float:
    """P(at most `count` misses) if `expected` come in a Poisson number of bursts: exact (Panjer, ASTIN 12, 1981)."""
    rates = np.arange(len(law)) * law * expected / means(law)[0]
    chances = np.zeros(count + 1)
    chances[0] = math.exp(-expected / means(law)[0])
    for number in range(1, count + 1):
        longest = min(number, len(law) - 1)
        chances[number] = rates[1 : longest + 1] @ chances[number - longest : number][::-1] / number
    return float(chances.sum())


#: Laws of the lengths of bursts in which a miss lies, averaged over misses, in a burst of 20 calls.
LENGTHS_20 = {
    "all of 20": probabilities(of_20=1),
    "singles, 2.3 % of 40": probabilities(of_1=1 - 19 / 819, of_40=19 / 819),
    "log-normal": log_normal(0.8836, 1.2),
    "Pareto, cut at 680": pareto(1.5, 680),
}

#: Laws with a mean length of at most 20 that are outside of this.
OUTSIDE_20 = {
    "geometric, mean 20": np.r_[0, (1 - 1 / 20) ** np.arange(1500) / 20],
    "log-normal, mean 20": log_normal(2.251, 1.2),
    "97 % single, 3 % of 300": probabilities(of_1=0.97, of_300=0.03),
}

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
