"""Exact intervals for percentiles and for rates of misses: order statistics and the binomial, nothing assumed.

Trials are taken as independent here; `dependence.py` says what they are worth where they are not.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from lstm_trt.errors import UsageError

#: Of the intervals that tables show beside a percentile.
CONFIDENCE = 0.95


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
    from scipy.special import bdtr

    return 0.0 if count < 0 else 1.0 if count >= n else float(bdtr(count, n, share))


@lru_cache(maxsize=4096)
def interval_ranks(n: int, share: Fraction, confidence: float = CONFIDENCE) -> tuple[int | None, int | None]:
    """Ranks (from 1, ascending) of the order statistics that hold the percentile; None where there is none.

    With B ~ Binomial(n, share) the low rank is the largest l with P(B <= l - 1) at most half of
    1 - confidence, the high one the smallest u with P(B >= u) at most that (David and Nagaraja,
    Order Statistics, 7.1). The interval then holds the percentile with at least `confidence`,
    whatever the distribution.
    """
    from scipy.stats import binom

    half, p = (1 - confidence) / 2, float(share)
    low = int(binom.ppf(half, n, p))
    while low > 0 and at_most(low - 1, n, p) > half:
        low -= 1
    while at_most(low, n, p) <= half:
        low += 1
    high = int(binom.ppf(1 - half, n, p)) + 1
    while high <= n and 1 - at_most(high - 1, n, p) > half:
        high += 1
    while high > 1 and 1 - at_most(high - 2, n, p) <= half:
        high -= 1
    return (low if low >= 1 else None), (high if high <= n else None)


def interval(
    ordered: np.ndarray, share: Fraction, confidence: float = CONFIDENCE
) -> tuple[float | None, float | None]:
    """The values at `interval_ranks` of an ascending array; None where a bound does not exist at this n."""
    low, high = interval_ranks(len(ordered), share, confidence)
    return (None if low is None else float(ordered[low - 1])), (None if high is None else float(ordered[high - 1]))


def rate_bounds(count: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Lower and upper bound of a rate seen `count` times in n, each one-sided at `confidence`.

    Clopper and Pearson, Biometrika 26 (1934): the rates at which so many or more, so few or fewer,
    are seen with probability 1 - confidence. For both at once with 95 % ask for 0.975.
    """
    from scipy.special import betaincinv

    low = 0.0 if count == 0 else float(betaincinv(count, n - count + 1, 1 - confidence))
    high = 1.0 if count == n else float(betaincinv(count + 1, n - count, confidence))
    return low, high


def proves_below(count: int, n: int, allowed: Fraction, confidence: float = CONFIDENCE) -> bool:
    """Whether `count` events in n trials reject "the rate is `allowed` or more" (exact binomial test)."""
    return n > 0 and at_most(count, n, float(allowed)) <= 1 - confidence


def proves_above(count: int, n: int, allowed: Fraction, confidence: float = CONFIDENCE) -> bool:
    """Whether the exact lower bound of the rate lies above `allowed`."""
    from scipy.special import bdtrc

    return count > 0 and float(bdtrc(count - 1, n, float(allowed))) < 1 - confidence


@lru_cache(maxsize=4096)
def trials_for(events: int, allowed: Fraction, confidence: float = CONFIDENCE) -> int:
    """The fewest trials in which so many events still prove that the rate is below `allowed`."""
    low, high = events, max(2 * events, math.ceil(1 / allowed))
    while not proves_below(events, high, allowed, confidence):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if proves_below(events, middle, allowed, confidence) else (middle, high)
    return high
