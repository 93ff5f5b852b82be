"""Percentiles, rates and ratios with exact, distribution-free intervals: order statistics,
binomial, ranks.

Trials are assumed to be independent; `dependence.py` estimates the effective sample size if they
are not. Intervals of ratios are computed over rounds: a median is known far better within a process
than it repeats between processes, so disjoint intervals of two recordings prove nothing.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import numpy as np

from lstm_judge.read.whole import Ordered
from lstm_trt.config.errors import UsageError, check_number
from lstm_trt.config.fields import as_list
from lstm_trt.config.format import decimal
from lstm_trt.config.libraries import special
from lstm_trt.store.whole import percentile

#: Default confidence of intervals, verdicts and comparisons.
DEFAULT_CONFIDENCE = 0.95


MEDIAN = Fraction("0.5")

#: Percentiles of the summary by column name.
PERCENTILES = {
    "median_us": MEDIAN,
    "p90_us": Fraction("0.9"),
    "p99_us": Fraction("0.99"),
    "p999_us": Fraction("0.999"),
}


@dataclass(frozen=True)
class Percentile:
    """A percentile in us, and the bounds of its exact interval; None for a bound that does not
    exist at this n."""

    share: Fraction
    us: float | None
    low_us: float | None
    high_us: float | None

    @property
    def heading(self) -> str:
        """`median`, `p99.9`."""
        return "median" if self.share == MEDIAN else f"p{float(100 * self.share):.15g}"

    @property
    def key(self) -> str:
        """`median`, `p999`."""
        return self.heading.replace(".", "")

    def as_dict(self) -> dict[str, float | None]:
        """JSON values, beside its key."""
        return {"us": self.us, "low_us": self.low_us, "high_us": self.high_us}


def median(values: np.ndarray) -> float:
    """The median of values in any order; for an even number the lower of the two middle ones."""
    return percentile(np.sort(values), MEDIAN)


def quantile(ordered: Ordered, share: float) -> float:
    """An interpolated quantile (numpy's default), for boxes and thresholds only."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    low = float(ordered[below])
    return low + (float(ordered[math.ceil(place)]) - low) * (place - below)


def fences(ordered_ns: Ordered) -> tuple[int, int]:
    """The smallest and the largest whole number of ns inside 1.5 x IQR, with numpy's default
    (linear) quartiles.

    Exact: values are rounded to whole ns, and compared with the fences in integers. In floating
    point a value on a fence would be inside or outside depending on the unit.
    """
    last = len(ordered_ns) - 1
    quartiles = []  # four times each
    for quarters in (1, 3):
        # A quartile lies between two order statistics, at a number of quarters of the way.
        rank, part = divmod(quarters * last, 4)
        before = int(_whole(ordered_ns[rank]))
        after = int(_whole(ordered_ns[min(rank + 1, last)]))
        quartiles.append(before * (4 - part) + after * part)
    low, high = quartiles
    reach = 3 * (high - low)
    return -((reach - 2 * low) // 8), (2 * high + reach) // 8


def _whole(values_ns: Any) -> np.ndarray:
    return np.rint(np.minimum(values_ns, 2.0**62)).astype(np.int64)


def is_outlier(values_ns: np.ndarray) -> np.ndarray:
    """Which values, in any order, are outside 1.5 x IQR, on both sides (`fences`)."""
    return _outside(values_ns, *fences(np.sort(values_ns)))


def _outside(values_ns: np.ndarray, low: int, high: int) -> np.ndarray:
    whole = _whole(values_ns)
    return (whole < low) | (whole > high)


def count_outliers(values_ns: Ordered) -> int:
    """Number of values, in any order, outside 1.5 x IQR, as in a box plot; see `fences`."""
    if isinstance(values_ns, np.ndarray):
        return int(np.count_nonzero(is_outlier(values_ns)))
    return int(values_ns.counts[_outside(values_ns.values, *fences(values_ns))].sum())


def mean_and_deviation(values: Ordered) -> tuple[float, float]:
    """The mean, and the standard deviation with n - 1 in its denominator; NaN for one value."""
    n = len(values)
    counts: Any = 1
    if not isinstance(values, np.ndarray):
        values, counts = values.values, values.counts
    mean = float(np.sum(values * counts, dtype=np.float64)) / n
    if n == 1 or not math.isfinite(mean):
        return mean, math.nan
    return mean, math.sqrt(float(np.sum(counts * (values - mean) ** 2)) / (n - 1))


def share_of(percentile: str | float | Fraction) -> Fraction:
    """A percentile as an exact share: `99.9` -> 999/1000; raises `UsageError` for less than 50 or
    100 and more."""
    try:
        text = decimal(percentile) if isinstance(percentile, str) else str(percentile)
        share = Fraction(text) / 100
    except (ValueError, ZeroDivisionError):
        raise UsageError(
            f"a percentile must be a number such as 99.9, not {percentile!r}"
        ) from None
    if Fraction(1, 2) <= share < 1:
        return share
    if Fraction(1, 2) <= 100 * share < 1:
        raise UsageError(
            f"{percentile} is a share; percentiles are in percent: {float(10000 * share):g}?"
        )
    raise UsageError(
        f"{percentile} is no percentile: they are in percent, at least 50 and below 100"
    )


def shares_of(percentiles: Iterable[str | float]) -> list[Fraction]:
    """Percentiles as exact shares, the highest first; raises as `share_of`."""
    return sorted(set(map(share_of, as_list(percentiles))), reverse=True)


def check_time(name: str, time_us: float) -> None:
    """Raise `UsageError` if the `name` (deadline, period) is not a positive time in us."""
    check_number(f"the {name} must be a positive time in us", time_us, lambda us: us > 0)


def check_confidence(confidence: float) -> float:
    """The confidence; raises `UsageError` if it is not at least 0.5 and below 1."""
    check_number(
        "the confidence must be a share such as 0.95, at least 0.5 and below 1",
        confidence,
        lambda share: 0.5 <= share < 1,
    )
    return confidence


def at_most(count: int, n: int, share: float) -> float:
    """P(B <= count) for B ~ Binomial(n, share)."""
    if count < 0:
        return 0.0
    if count >= n:
        return 1.0
    # The relative error of scipy's bdtr is 1e-6 at n = 1e6, that of the incomplete beta function
    # 1e-13.
    return float(special.betaincc(count + 1, n - count, share))


@lru_cache(maxsize=4096)
def interval_ranks(
    n: int, share: Fraction, confidence: float = DEFAULT_CONFIDENCE
) -> tuple[int | None, int | None]:
    """Ranks (from 1, ascending) of the order statistics that bound the percentile; None if there is
    no bound.

    With B ~ Binomial(n, share), the low rank is the largest l with P(B <= l - 1) at most half of 1
    - confidence, and the high rank the smallest u with P(B >= u) at most that (David and Nagaraja,
    Order Statistics, 7.1). The interval contains the percentile with a probability of at least
    `confidence`, for any distribution.
    """
    half = (1 - confidence) / 2
    p = float(share)
    low = bisect_right(range(n), half, key=lambda count: at_most(count, n, p))
    high = 1 + bisect_left(range(n), True, key=lambda count: 1 - at_most(count, n, p) <= half)
    return (low if low >= 1 else None), (high if high <= n else None)


def interval(
    ordered: Ordered,
    share: Fraction,
    confidence: float = DEFAULT_CONFIDENCE,
    effective: float = 1.0,
    most: Ordered | None = None,
) -> tuple[float | None, float | None]:
    """The values at `interval_ranks` of an ascending array; None for a bound that does not exist at
    this n.

    `effective`: effective sample size over n; the ranks are computed for the former and scaled to
    n. `most`: the most that each value may be, ascending, if `ordered` has the least.
    """
    n = len(ordered)
    trials = max(1, math.floor(n * effective + 1e-9))
    low, high = interval_ranks(trials, share, confidence)
    least_value = most_value = None
    if low is not None:
        least_value = float(ordered[max(1, low * n // trials) - 1])
    if high is not None:
        most = ordered if most is None else most
        most_value = finite(float(most[min(n, -(-high * n // trials)) - 1]))
    return least_value, most_value


def finite(value: float) -> float | None:
    """The value; None if it is not known, because it is above the range of a histogram."""
    return value if math.isfinite(value) else None


def rate_bounds(
    count: float, n: float, confidence: float = DEFAULT_CONFIDENCE
) -> tuple[float, float]:
    """Lower and upper bound of a rate, from `count` events in n trials, each one-sided at
    `confidence`.

    Clopper and Pearson, Biometrika 26 (1934): the rates at which at least, or at most, `count`
    events occur with probability 1 - confidence. For a two-sided interval at 95 % use 0.975.
    """
    low = 0.0 if count == 0 else float(special.betaincinv(count, n - count + 1, 1 - confidence))
    high = 1.0 if count == n else float(special.betaincinv(count + 1, n - count, confidence))
    return low, high


def proves_below(
    count: int, n: int, allowed: Fraction, confidence: float = DEFAULT_CONFIDENCE
) -> bool:
    """Whether `count` events in n trials reject "the rate is `allowed` or more" (exact binomial
    test)."""
    return n > 0 and at_most(count, n, float(allowed)) <= 1 - confidence


def proves_above(
    count: float, n: float, allowed: Fraction, confidence: float = DEFAULT_CONFIDENCE
) -> bool:
    """Whether the exact lower bound of the rate is above `allowed`."""
    return (
        count > 0 and float(special.betainc(count, n - count + 1, float(allowed))) < 1 - confidence
    )


#: Maximum length of a recording that is suggested, in trials: eleven days at 1 kHz.
LONGEST = 10**9


@lru_cache(maxsize=4096)
def trials_for(events: int, allowed: Fraction, confidence: float = DEFAULT_CONFIDENCE) -> int:
    """Minimum number of trials in which this number of events proves a rate below `allowed`; at
    most 1e9 + 1."""
    return bisect_left(
        range(LONGEST + 1), True, key=lambda n: proves_below(events, n, allowed, confidence)
    )


def trials_for_share(
    events: int, n: int, allowed: Fraction, confidence: float = DEFAULT_CONFIDENCE
) -> int | None:
    """Minimum number of trials N in which ceil(N x events / n) events prove a rate below `allowed`.

    This is the length of a new recording if the rate of events stays the same. None if that rate is
    `allowed` or more, or N is above 1e9.

    k events are expected for (k - 1) n / events < N <= k n / events, and the longest of these N is
    sufficient if any is. From some k on all k are sufficient (T(k) / k decreases, T =
    `trials_for`), except for rounding to whole trials. Therefore a range before the k found by
    bisection is searched, long enough that T(k) / k decreases by more than one trial.
    """
    if n < 1 or Fraction(events, n) >= allowed:
        return None
    if events == 0:
        return _or_none(trials_for(0, allowed, confidence))

    def sufficient(count: int) -> bool:
        return proves_below(count, count * n // events, allowed, confidence)

    most = LONGEST * events // n + 1
    last = 1 + bisect_left(range(1, most + 1), True, key=sufficient)
    if last > most:
        return None
    first = max(1, last - 1000 - math.ceil(8 * math.sqrt(last)))
    count = next(filter(sufficient, range(first, last + 1)))
    return _or_none(max(trials_for(count, allowed, confidence), (count - 1) * n // events + 1))


def _or_none(trials: int) -> int | None:
    return trials if trials <= LONGEST else None


#: With one process per side a ratio below this is inconclusive: medians of processes differ by 3 %
#: and more.
ONE_PROCESS_RATIO = 1.10

#: Minimum number of rounds per side for an interval of the ratio over rounds, and default of the
#: smallest relevant relative difference.
ROUNDS = 5
EFFECT = 0.02

#: Above this number of rounds per side the normal approximation of the rank distribution is used.
EXACT_ROUNDS = 100


@cache
def ratio_rank(m: int, n: int, confidence: float) -> int:
    """Largest k with P(U <= k - 1) at most half of 1 - confidence, for the Mann-Whitney U of m and
    n; 0 for none.

    The k-th smallest and k-th largest of all m x n ratios bound the ratio of two systems with a
    probability of at least `confidence`, if the distributions of the m and n rounds differ by this
    ratio only. Above 100 rounds per side the normal approximation is used, with one rank less for
    safety.
    """
    if max(m, n) > EXACT_ROUNDS:
        spread = math.sqrt(m * n * (m + n + 1) / 12)
        return max(
            0, math.floor(m * n / 2 + float(special.ndtri((1 - confidence) / 2)) * spread - 0.5)
        )
    ways = np.zeros(
        (m + 1, m * n + 1)
    )  # numbers of ways to choose j ranks, by their sum minus the smallest sum
    ways[0, 0] = 1
    for rank in range(1, m + n + 1):
        for j in range(min(m, rank), 0, -1):
            step = rank - j
            ways[j, step:] += ways[j - 1, : m * n + 1 - step]
    below = np.cumsum(ways[m]) / ways[m].sum()
    return int(np.count_nonzero(below <= (1 - confidence) / 2))
