"""Percentiles, rates and ratios with exact intervals: order statistics, the binomial, and ranks; nothing assumed.

Trials are taken as independent here; `dependence.py` gives the effective number of those that are not.
A ratio of two networks is one over rounds: within a process a median is known far better than it
repeats between processes, so that disjoint intervals of two recordings alone prove nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np

from lstm_trt.config.errors import UsageError

#: Of intervals beside a percentile, of verdicts and comparisons, where no other is asked for.
DEFAULT_CONFIDENCE = 0.95


#: Percentiles of every summary, by the name of their column.
PERCENTILES = {
    "median_us": Fraction("0.5"),
    "p90_us": Fraction("0.9"),
    "p99_us": Fraction("0.99"),
    "p999_us": Fraction("0.999"),
}


def percentile(sorted_values: np.ndarray, share: Fraction) -> float:
    """The order statistic at rank ceil(n share): the smallest value that this share of the trials does not exceed.

    The rank is exact. `numpy.percentile(..., 99.9, method="inverted_cdf")` computes it in
    floating point and gives the largest of 1000 values where the 999th is right.
    """
    rank = math.ceil(len(sorted_values) * share)
    return float(sorted_values[max(rank, 1) - 1])


def median(values: np.ndarray) -> float:
    """The order statistic in the middle, the lower of two; `values` in any order."""
    return percentile(np.sort(values), PERCENTILES["median_us"])


def count_outliers(values: np.ndarray) -> int:
    """Values outside 1.5 x IQR of the quartiles, both sides, numpy's linear quartiles."""
    low, high = np.percentile(values, [25, 75])
    reach = 1.5 * (high - low)
    return int(np.count_nonzero((values < low - reach) | (values > high + reach)))


def share_of(percentile: str | float | Fraction) -> Fraction:
    """`99.9` -> 999/1000, exactly; raises `UsageError` outside 0 to 100."""
    try:
        share = Fraction(str(percentile)) / 100
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"a percentile is a number such as 99.9, not {percentile!r}") from None
    if not 0 < share < 1:
        raise UsageError(f"a percentile lies between 0 and 100, not at {percentile}")
    return share


def check_confidence(confidence: float) -> float:
    """Raises `UsageError` where it is no share above one half and below 1."""
    if not 0.5 <= confidence < 1:
        raise UsageError(f"the confidence is a share such as 0.95, at least 0.5 and below 1, not {confidence:g}")
    return confidence


def at_most(count: int, n: int, share: float) -> float:
    """P(B <= count) for B ~ Binomial(n, share)."""
    from scipy.special import betaincc

    # scipy's bdtr errs by 1 in a million at n = 1e6; the incomplete beta is exact to 1e-13.
    return 0.0 if count < 0 else 1.0 if count >= n else float(betaincc(count + 1, n - count, share))


@lru_cache(maxsize=4096)
def interval_ranks(n: int, share: Fraction, confidence: float = DEFAULT_CONFIDENCE) -> tuple[int | None, int | None]:
    """Ranks (from 1, ascending) of the order statistics that hold the percentile; None where there is none.

    With B ~ Binomial(n, share) the low rank is the largest l with P(B <= l - 1) at most half of
    1 - confidence, the high one the smallest u with P(B >= u) at most that (David and Nagaraja,
    Order Statistics, 7.1). The interval then holds the percentile with at least `confidence`,
    whatever the distribution.
    """
    half, p = (1 - confidence) / 2, float(share)
    low = bisect_right(range(n), half, key=lambda count: at_most(count, n, p))
    high = 1 + bisect_left(range(n), True, key=lambda count: 1 - at_most(count, n, p) <= half)
    return (low if low >= 1 else None), (high if high <= n else None)


def interval(
    ordered: np.ndarray, share: Fraction, confidence: float = DEFAULT_CONFIDENCE, effective: float = 1.0
) -> tuple[float | None, float | None]:
    """The values at `interval_ranks` of an ascending array; None where a bound does not exist at this n.

    `effective`: effective number of trials over their number; the ranks are those of the former, spread over all.
    """
    n = len(ordered)
    trials = max(1, math.floor(n * effective))
    low, high = interval_ranks(trials, share, confidence)
    return (
        None if low is None else float(ordered[max(1, low * n // trials) - 1]),
        None if high is None else float(ordered[min(n, -(-high * n // trials)) - 1]),
    )


def rate_bounds(count: int, n: int, confidence: float = DEFAULT_CONFIDENCE) -> tuple[float, float]:
    """Lower and upper bound of a rate seen `count` times in n, each one-sided at `confidence`.

    Clopper and Pearson, Biometrika 26 (1934): the rates at which so many or more, so few or fewer,
    are seen with probability 1 - confidence. For both at once with 95 % ask for 0.975.
    """
    from scipy.special import betaincinv

    low = 0.0 if count == 0 else float(betaincinv(count, n - count + 1, 1 - confidence))
    high = 1.0 if count == n else float(betaincinv(count + 1, n - count, confidence))
    return low, high


def proves_below(count: int, n: int, allowed: Fraction, confidence: float = DEFAULT_CONFIDENCE) -> bool:
    """Whether `count` events in n trials reject "the rate is `allowed` or more" (exact binomial test)."""
    return n > 0 and at_most(count, n, float(allowed)) <= 1 - confidence


def proves_above(count: int, n: int, allowed: Fraction, confidence: float = DEFAULT_CONFIDENCE) -> bool:
    """Whether the exact lower bound of the rate lies above `allowed`."""
    from scipy.special import betainc

    return count > 0 and float(betainc(count, n - count + 1, float(allowed))) < 1 - confidence


#: Longer recordings than this are not asked for: at 1 kHz it is eleven days.
LONGEST = 10**9


@lru_cache(maxsize=4096)
def trials_for(events: int, allowed: Fraction, confidence: float = DEFAULT_CONFIDENCE) -> int:
    """The fewest trials in which so many events still prove that the rate is below `allowed`; at most 1e9 + 1."""
    return bisect_left(range(LONGEST + 1), True, key=lambda n: proves_below(events, n, allowed, confidence))


def trials_for_share(events: int, n: int, allowed: Fraction, confidence: float = DEFAULT_CONFIDENCE) -> int | None:
    """The fewest trials N in which ceil(N x events / n) events prove that the rate is below `allowed`.

    The length of a fresh recording, at the share of events that one of n trials showed. None
    where the share is `allowed` or more, and where N is above 1e9.

    k events are what N of (k - 1) n / events < N <= k n / events are charged with; the longest of
    these certifies if any does. From some k on all do (T(k) / k falls, T = `trials_for`), but for
    the rounding to whole trials, so that a range before the k found by bisection is looked
    through: there T(k) / k falls by more than one trial.
    """
    from scipy.special import betaincc

    if n < 1 or Fraction(events, n) >= allowed:
        return None
    if events == 0:
        return _or_none(trials_for(0, allowed, confidence))
    p, alpha = float(allowed), 1 - confidence

    def certifies(first: int, stop: int) -> np.ndarray:
        counts = np.arange(first, stop, dtype=np.int64)
        lengths = counts * n // events
        return betaincc(counts + 1.0, (lengths - counts).astype(float), p) <= alpha

    most = LONGEST * events // n + 1
    low, high = 0, 1
    while not certifies(high, high + 1)[0]:
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if certifies(middle, middle + 1)[0] else (middle, high)
    first = max(1, high - 1000 - math.ceil(8 * math.sqrt(high)))
    count = first + int(np.argmax(certifies(first, high + 1)))
    return _or_none(max(trials_for(count, allowed, confidence), (count - 1) * n // events + 1))


def _or_none(trials: int) -> int | None:
    return trials if trials <= LONGEST else None


#: One process per side is inconclusive below this ratio: medians of processes differ by 3 % and more.
ONE_PROCESS_RATIO = 1.10

#: With this many rounds a side the ratio's interval over rounds decides, beyond this effect.
ROUNDS, EFFECT = 5, 0.02

#: Above so many rounds a side the distribution of ranks is taken as normal.
EXACT_ROUNDS = 100


@cache
def ratio_rank(m: int, n: int, confidence: float) -> int:
    """Largest k with P(U <= k - 1) at most half of 1 - confidence, U Mann and Whitney's for m and n; 0 for none.

    The k-th smallest and k-th largest of all m x n ratios then hold the ratio of two systems with
    at least `confidence`, if m and n rounds are drawn from distributions that differ by it alone.
    Above 100 rounds a side U counts as normal, a rank less for safety.
    """
    if max(m, n) > EXACT_ROUNDS:
        from scipy.special import ndtri

        spread = math.sqrt(m * n * (m + n + 1) / 12)
        return max(0, math.floor(m * n / 2 + float(ndtri((1 - confidence) / 2)) * spread - 0.5))
    ways = np.zeros((m + 1, m * n + 1))  # of choosing j of the ranks seen so far, by their sum above the least
    ways[0, 0] = 1
    for rank in range(1, m + n + 1):
        for j in range(min(m, rank), 0, -1):
            step = rank - j
            ways[j, step:] += ways[j - 1, : m * n + 1 - step]
    below = np.cumsum(ways[m]) / ways[m].sum()
    return int(np.count_nonzero(below <= (1 - confidence) / 2))
