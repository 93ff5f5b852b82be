"""Bursts of misses: how many independent ones they count as, and what MET assumes about those that
were not seen.

Misses that come in bursts say less about their rate than as many single ones. Two questions follow:

- MISSED: `autocorrelation_time` is the number of misses, and of calls, that count as one. Simulated
  at the allowed rate, in bursts of 4, 10 and 20 on average, mixed with single ones, or of
  log-normal lengths, at most 5 % of recordings are called MISSED; in bad states of thousands of
  calls, of which few miss, up to 9 % (docs/evidence.md).
- MET: misses cannot prove that bursts do not exist that were not seen. `proves_below_in_bursts`
  tests the rate against every compound Poisson law of bursts with geometric lengths up to a mean B
  that the user states, and `longest_assumed` is the B up to which the test still holds.

What MET assumes of lengths L that are not geometric is E[L^2] / E[L] <= B. This number, S, is the
mean over misses of the length of the burst in which a miss lies. Such bursts come at the rate p / m
for a miss rate p and lengths of mean m, so the chance of few misses depends on (1 - G(z)) / m,
where G is the generating function of the lengths and 0 <= z < 1: the larger it is, the smaller that
chance. It is the mean over misses of (1 - z^L) / L, a convex function of L, so it is at least (1 -
z^S) / S (Jensen's inequality): of all lengths with the same S, equal ones are the worst. And (1 -
z^S) / S is at least (1 - z) / (S - (S - 1) z), the value of geometric lengths of mean S, since (1 -
z^S) / (1 - z) is S times the mean of z^j over j = 0 ... S - 1, which is convex in j. The mean
length alone says nothing: with 97 % single misses and 3 % bursts of 300 it is 10, S is 271, and MET
is false in up to 73 % (docs/evidence.md).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lstm_judge.statistics import quantiles
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.libraries import special

if TYPE_CHECKING:
    from lstm_judge.statistics.trials import Trials

#: Largest distance, in calls, between two misses that count as related one by one.
NEAR = 400

#: Misses farther apart are counted in blocks of this number of calls, up to this share of a
#: recording, if the counts of neighbouring blocks are correlated by more than this number of
#: standard errors.
BLOCK, FARTHEST, CORRELATED = 128, 1 / 20, 2.0

#: From this number of misses on their law is taken as normal.
MANY = 5000

#: From this number of bursts on the law of their misses is taken as normal: a chance of 5 % is then
#: 4.99 to 5 %.
MANY_BURSTS = 1_000_000

#: Slow calls are those above this percentile, or this number of the slowest.
SLOW = 0.995
FEW = 60

#: Number of parts for the standard error of their time, and the time that independent calls reach
#: by chance: the lower bound of 60 of them is above that in 1 of 500 recordings.
PARTS = 20
BY_CHANCE = 1.25


def autocorrelation_time(places: Sequence[np.ndarray], sizes: Sequence[int]) -> float:
    """The number of misses that count as one, at least 1; 1 for fewer than two, and in a histogram
    (`Bins`).

    `places`: ascending indices of the misses of each process, `sizes`: its trials. 1 + 2 times the
    sum of the autocorrelations of the misses over the `initial_positive` sequence. The larger of
    two: by call up to `NEAR`, and by counts in blocks, which shows long bad states in which few
    calls miss.
    """
    n = sum(sizes)
    k = sum(map(len, places))
    if k < 2 or k == n or isinstance(places[0], range):
        return 1.0
    rate = k / n
    by_call = _pairs(places, NEAR) / n - rate**2
    by_call[0] = rate * (1 - rate)
    time = initial_positive(lambda lag: by_call[lag], NEAR) / by_call[0]
    counts = []
    for late, size in zip(places, sizes, strict=True):
        blocks = size // BLOCK
        in_blocks = late[late < blocks * BLOCK] // BLOCK
        counts.append(np.bincount(in_blocks, minlength=blocks) - BLOCK * rate)
    blocks = sum(map(len, counts))
    lags = int(FARTHEST * blocks)
    if lags >= 2 and covariance(counts, 1) > CORRELATED * covariance(counts, 0) / math.sqrt(blocks):
        of_blocks = initial_positive(partial(covariance, counts), lags) / blocks
        time = max(time, of_blocks / (BLOCK * rate * (1 - rate)))
    return max(1.0, float(time))


def covariance(series: Sequence[np.ndarray], lag: int) -> float:
    """The sum of the products of values this far apart, of several series of deviations."""
    # A series that is shorter than the lag has no such pairs.
    return sum(float(each[: max(0, len(each) - lag)] @ each[lag:]) for each in series)


def initial_positive(at: Callable[[int], float], lags: int) -> float:
    """Twice the sum of autocovariances at distances up to `lags`, less that at distance 0.

    They are summed up to the first pair of neighbouring distances whose sum is not positive (the
    initial positive sequence: Geyer, Statistical Science 7, 1992).
    """
    pairs = (at(lag) + at(lag + 1) for lag in range(0, lags, 2))
    return 2 * float(sum(itertools.takewhile(lambda pair: pair > 0, pairs))) - at(0)


def _pairs(places: Sequence[np.ndarray], farthest: int) -> np.ndarray:
    """Numbers of pairs of places of one process at each distance up to `farthest`."""
    found = np.zeros(farthest + 1)
    for late in places:
        for step in range(1, len(late)):
            distances = late[step:] - late[:-step]
            distances = distances[distances <= farthest]
            if not len(distances):
                break
            found += np.bincount(distances, minlength=farthest + 1)
    return found


def runs_of(places: np.ndarray, apart: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths of the runs of ascending places, in which neighbours are at most `apart`
    calls apart."""
    first = np.diff(places, prepend=-np.inf) > apart
    last = np.diff(places, append=np.inf) > apart
    return places[first], places[last] - places[first] + 1


@dataclass(frozen=True)
class SlowCalls(JsonFields):
    """How the slowest calls come, whether they miss or not.

    `above_us`: they take longer than this: their 99.5th percentile, or what all but the 60 slowest
    calls do not exceed. `length`: their `autocorrelation_time`, the number of
    calls that count as one; `length_low`: its lower bound at 95 %.
    """

    above_us: float
    length: float
    length_low: float

    def longer_than(self, length: float) -> bool:
        """Whether they come in longer bursts than these, significantly and not by chance."""
        return self.length_low > max(length, BY_CHANCE)


def slow_calls(timed: Sequence[Trials], pooled_ns: quantiles.Ordered) -> SlowCalls | None:
    """The calls above `SLOW`, or the `FEW` slowest if those are fewer; None in less than four times
    as many.

    The bound is that of Student's t over `PARTS` equal parts of the recording. `pooled_ns`: the
    trials of all processes, ascending. None too if ties leave fewer than 20 calls above the others.
    """
    sizes = [process.n for process in timed]
    n = sum(sizes)
    if n < 4 * FEW:
        return None
    threshold = min(quantiles.quantile(pooled_ns, SLOW), float(pooled_ns[n - FEW - 1]))
    places = [process.above(threshold)[0] for process in timed]
    if sum(map(len, places)) < PARTS:
        return None
    time = autocorrelation_time(places, sizes)
    starts = np.cumsum([0, *sizes[:-1]])
    pooled = np.concatenate([start + late for start, late in zip(starts, places, strict=True)])
    times = []
    edges = [n // PARTS * part + min(part, n % PARTS) for part in range(PARTS + 1)]
    for start, stop in itertools.pairwise(edges):
        inside = pooled[(pooled >= start) & (pooled < stop)]
        if len(inside):
            times.append(autocorrelation_time([inside - start], [stop - start]))
    low = 1.0
    if len(times) > 1:
        error = float(np.std(times, ddof=1)) / math.sqrt(len(times))
        low = max(low, time - float(special.stdtrit(len(times) - 1, 0.95)) * error)
    return SlowCalls(threshold / 1e3, time, low)


def polya_aeppli(count: int, expected: float, mean: float) -> float:
    """P(at most `count` misses) if `expected` come in a Poisson number of bursts of geometric
    lengths, of mean >= 1.

    The sum of K such lengths is at most `count` with the probability that a binomial of `count` and
    1 / mean is at least K (compound Poisson law of Polya and Aeppli).
    """
    if mean <= 1:
        return float(special.gammaincc(count + 1, expected))
    bursts = expected / mean
    if bursts > MANY_BURSTS:
        return float(special.ndtr((count + 0.5 - expected) / math.sqrt((2 * mean - 1) * expected)))
    # A Poisson number is outside these bounds with a probability of 1e-13 at most: of millions few
    # are computed.
    width = 8 * math.sqrt(bursts)
    fewest = max(1, math.floor(bursts - width))
    most = min(count, math.ceil(bursts + width + 32))
    number = np.arange(fewest, most + 1)
    chance = np.exp(number * math.log(bursts) - bursts - special.gammaln(number + 1))
    at_most = special.betainc(number, count - number + 1.0, 1 / mean)
    return math.exp(-bursts) + float(chance @ at_most)


def proves_below_in_bursts(
    count: int, n: int, allowed: Fraction, confidence: float, longest: float
) -> bool:
    """Whether `count` misses in n trials reject "the rate is `allowed` or more" for bursts of mean
    1 to `longest`.

    The exact binomial test for single misses, and `polya_aeppli` for every mean; its largest value
    was at `longest` for every number of misses tried, and is looked for on nine means. A recording
    with fewer misses never proves less.
    """
    if not quantiles.proves_below(count, n, allowed, confidence):
        return False
    # The longest, at which most fail, comes first.
    means = np.geomspace(longest, 1, 9)[:-1] if longest > 1 else ()
    return all(polya_aeppli(count, n * float(allowed), mean) <= 1 - confidence for mean in means)


def assumption(longest: float) -> str:
    """What MET assumes, in words; `longest`: see `longest_assumed`."""
    return f"a miss lies, averaged over misses, in a burst of at most {calls(longest)}"


def calls(length: float) -> str:
    """A mean length of bursts: 1 call, 12.5 calls."""
    return f"{length:.3g} call{'' if length == 1 else 's'}"


def longest_assumed(count: int, n: int, allowed: Fraction, confidence: float) -> float:
    """The length B of bursts up to which `count` misses in n trials prove MET, to three digits; at
    least 1.

    Without a miss n times the allowed rate over ln(1 / (1 - confidence)).
    """
    expected = n * float(allowed)
    most = max(1.0, expected / -math.log(1 - confidence))
    if not count:
        return most
    means = np.geomspace(1, most, 1 + math.ceil(1000 * math.log(most)))
    place = bisect_left(
        means, True, key=lambda mean: polya_aeppli(count, expected, mean) > 1 - confidence
    )
    return float(means[max(place - 1, 0)])


def trials_for_in_bursts(count: int, allowed: Fraction, confidence: float, longest: float) -> int:
    """Minimum number of trials in which `count` misses prove MET for bursts up to `longest`; at
    most 1e9 + 1.

    For more than `MANY` by the normal law: that many misses have the variance (2 `longest` - 1)
    times their number.
    """
    if count > MANY:
        spread = float(special.ndtri(confidence)) * math.sqrt(2 * longest - 1)
        return math.ceil(((spread + math.sqrt(spread**2 + 4 * count)) / 2) ** 2 / float(allowed))
    return bisect_left(
        range(quantiles.LONGEST + 1),
        True,
        key=lambda n: proves_below_in_bursts(count, n, allowed, confidence, longest),
    )
