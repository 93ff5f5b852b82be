"""Exact intervals of percentiles and rates, compared with independent computations from the binomial."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from lstm_judge.statistics.quantiles import (
    LONGEST,
    check_confidence,
    count_outliers,
    interval,
    interval_ranks,
    is_outlier,
    proves_above,
    proves_below,
    rate_bounds,
    share_of,
    trials_for,
    trials_for_share,
)
from tests.conftest import rest_is_heavy
from tests.support.said import refusal, said

SHARES = [Fraction(text) for text in ("0.01", "0.1", "0.25", "0.5", "0.75", "0.9", "0.99", "0.999", "0.9999")]
SIZES = [*range(1, 130), 298, 299, 300, 459, 999, 1000, 2994, 2995, 3000, 3687, 3688, 10_000, 29_956, 30_000, 100_000]


# Intervals of percentiles


@pytest.mark.parametrize("confidence", [0.83, 0.95, 0.99])
def test_intervals_cover_as_asked_and_no_rank_further_in_would(confidence):
    """P(X_low <= q < X_high) from the binomial: B of n below q, low <= B < high. Each side errs by half at most."""
    half = (1 - confidence) / 2
    cases = list(itertools.product(SIZES, SHARES))
    ranks = [interval_ranks(n, share, confidence) for n, share in cases]
    n, share = np.array(cases, dtype=float).T
    low = np.array([low or 0 for low, _ in ranks])
    high = np.array([high or n + 1 for (_, high), (n, _) in zip(ranks, cases, strict=True)])
    assert ((low == 0) == [low is None for low, _ in ranks]).all() and (low <= n).all()
    assert ((high > n) == [high is None for _, high in ranks]).all() and (high >= 1).all()
    below, above = stats.binom.cdf, stats.binom.sf
    # The next rank further in would err by more.
    assert ((below(low - 1, n, share) <= half) & (below(low, n, share) > half)).all()
    assert ((above(high - 1, n, share) <= half) & ((above(high - 2, n, share) > half) | (high == 1))).all()
    assert (below(high - 1, n, share) - below(low - 1, n, share) >= confidence - 1e-12).all()


# Outliers


@pytest.mark.random(tail=0, why="identity")
def test_values_on_a_fence_are_inside_whatever_the_unit(rng):
    # Quartiles 101_003 and 101_011: the fences are 100_991 and 101_023, which no product with 1e-3 represents exactly.
    ordered = np.array([100_990, 100_991, 101_003, 101_003, 101_007, 101_011, 101_011, 101_023, 101_024])
    assert is_outlier(ordered).tolist() == [True, *[False] * 7, True]
    shuffled = rng.permutation(ordered).astype(np.float64)
    assert count_outliers(shuffled) == count_outliers(1e3 * (shuffled / 1e3)) == 2


@pytest.mark.random(tail=0, why="identity")
def test_outliers_are_those_of_exact_quartiles(rng):
    """Against fractions: numpy's linear quartiles lie at (n - 1) / 4 and 3 (n - 1) / 4."""
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 101, 1002):
        values = rng.integers(10**6, 10**6 + 12, n)  # narrow, so that many values are on the fences
        ordered = [Fraction(int(value)) for value in np.sort(values)]
        low, high = (
            ordered[int(place)] + place % 1 * (ordered[min(int(place) + 1, n - 1)] - ordered[int(place)])
            for place in (Fraction(n - 1, 4), Fraction(3 * (n - 1), 4))
        )
        reach = Fraction(3, 2) * (high - low)
        assert is_outlier(values).tolist() == [not low - reach <= int(value) <= high + reach for value in values]


# Bounds of rates


def test_tests_and_bounds_of_rates_are_those_of_scipy():
    rng = random.Random(5)
    cases = [(count, n, Fraction(1, 2), 0.95) for n in (1, 2, 7, 30_000) for count in {0, 1, n // 2, n - 1, n}]
    for _ in range(400):
        n, allowed = rng.randint(1, 5000), Fraction(rng.choice(("0.5", "0.1", "0.01", "0.001")))
        cases.append((min(n, rng.randint(0, 3 + int(2 * n * allowed))), n, allowed, rng.choice((0.9, 0.95, 0.99))))
    for count, n, allowed, confidence in cases:
        low, high = rate_bounds(count, n, confidence)
        less, more = (stats.binomtest(count, n, float(allowed), alternative=side) for side in ("less", "greater"))
        assert low == pytest.approx(more.proportion_ci(confidence, "exact").low, rel=1e-7)
        assert high == pytest.approx(less.proportion_ci(confidence, "exact").high, rel=1e-7)
        assert proves_below(count, n, allowed, confidence) == (less.pvalue <= 1 - confidence) == (high <= allowed)
        assert proves_above(count, n, allowed, confidence) == (more.pvalue < 1 - confidence) == (low > allowed)


def test_they_stay_exact_where_trials_are_many():
    """At 1e6 trials scipy's bdtr is off by 1 in a million; the reference is the sum in logarithms."""
    for n, allowed in ((10**6, Fraction(1, 1000)), (3 * 10**6, Fraction(1, 100))):
        centre = int(n * allowed - 1.645 * float(n * allowed * (1 - allowed)) ** 0.5)
        for count in range(centre - 8, centre + 8):
            below = np.exp(stats.binom.logpmf(np.arange(count + 1), n, float(allowed))).sum()
            assert proves_below(count, n, allowed) == (below <= 0.05)


@pytest.mark.parametrize(
    ("allowed", "confidence"),
    rest_is_heavy(
        itertools.product((Fraction(1, 100), Fraction(1, 1000)), (0.95, 0.99)),
        lambda allowed, confidence: (allowed, confidence) == (Fraction(1, 1000), 0.95),
    ),
)
def test_the_size_of_the_met_test_is_at_most_what_is_asked(allowed, confidence):
    """For every n from 1 to 50 000: the most misses that give MET, by this code, have at most that probability."""
    sizes = np.arange(1, 50_001)
    # The quantile function of scipy says where the last MET count is, within one.
    near = stats.binom.ppf(1 - confidence, sizes, float(allowed)).astype(int)
    most = np.full(len(sizes), -1)
    for place, (n, around) in enumerate(zip(sizes.tolist(), near.tolist(), strict=True)):
        for count in range(around + 1, max(-1, around - 3), -1):
            if proves_below(count, n, allowed, confidence):
                most[place] = count
                break
    size = np.where(most >= 0, stats.binom.cdf(np.maximum(most, 0), sizes, float(allowed)), 0.0)
    assert size.max() <= 1 - confidence + 1e-12
    # And no larger count would do: the test is as strong as it can be.
    assert (stats.binom.cdf(most + 1, sizes, float(allowed)) > 1 - confidence - 1e-12).all()


# How many trials


def test_trials_for_no_and_one_miss_are_those_of_the_table():
    table = {
        (0, 0.95): (299, 2995, 29_956, 299_572),
        (1, 0.95): (473, 4742, 47_437, 474_385),
        (0, 0.99): (459, 4603, 46_050, 460_515),
    }
    for (events, confidence), trials in table.items():
        assert tuple(trials_for(events, Fraction(1, 10**k), confidence) for k in (2, 3, 4, 5)) == trials
    for events, allowed in itertools.product((0, 1, 5, 40), (Fraction(1, 2), Fraction(1, 50), Fraction(1, 1000))):
        n = trials_for(events, allowed)
        assert proves_below(events, n, allowed) and not proves_below(events, n - 1, allowed)


def suffices(lengths: np.ndarray, events: int, n: int, allowed: Fraction, confidence: float) -> np.ndarray:
    charged = -(-lengths * events // n)
    return stats.binom.cdf(charged, lengths, float(allowed)) <= 1 - confidence


def test_the_new_recording_is_the_shortest_that_suffices():
    rng = random.Random(11)
    for _ in range(60):
        allowed, confidence = Fraction(rng.choice(("0.5", "0.25", "0.1", "0.01"))), rng.choice((0.9, 0.95, 0.99))
        n = rng.randint(5, 5000)
        events = rng.randint(0, int(n * allowed * Fraction(rng.choice(("0.3", "0.6", "0.85")))))
        found = trials_for_share(events, n, allowed, confidence)
        # By trying every length: none is shorter.
        assert suffices(np.arange(1, found + 1), events, n, allowed, confidence).nonzero()[0].tolist() == [found - 1]


@pytest.mark.parametrize(("events", "n", "allowed"), [(985, 100_000, "0.01"), (480, 1000, "0.5"), (96, 10_000, "0.01")])
def test_it_is_also_the_shortest_if_the_rate_is_near_the_allowed_one(events, n, allowed):
    """No smaller count suffices at its longest length."""
    allowed = Fraction(allowed)
    found = trials_for_share(events, n, allowed)
    count = -(-found * events // n)
    assert proves_below(count, found, allowed)
    counts = np.arange(1, count, dtype=np.int64)
    assert (stats.binom.cdf(counts, counts * n // events, float(allowed)) > 0.05).all()
    assert not proves_below(-(-(found - 1) * events // n), found - 1, allowed)


def test_it_is_none_for_too_high_a_rate_and_fast_near_the_limit(monkeypatch):
    from scipy import special

    evaluated, betaincc = [], special.betaincc
    monkeypatch.setattr(special, "betaincc", lambda a, *rest: evaluated.append(np.size(a)) or betaincc(a, *rest))
    allowed = Fraction(1, 1000)
    assert trials_for_share(1, 1000, allowed) is None and trials_for_share(2, 1000, allowed) is None
    assert trials_for_share(0, 10, Fraction(1, 10**10)) is None  # 2.996e10 is above the maximum
    assert trials_for_share(999_999, 10**9, allowed) is None
    assert trials_for_share(9_900, 10**7, allowed) < LONGEST
    assert trials_for_share(499_999, 10**6, Fraction(1, 2)) is None
    assert 0 < sum(evaluated) < 1_000_000  # of 1e9 lengths


# Arguments


def test_shares_are_exact():
    assert share_of("99.9") == Fraction(999, 1000) == share_of(99.9)
    assert share_of(Fraction(1995, 20)) == Fraction(9975, 10_000)


@pytest.mark.parametrize(
    ("checked", "wrong"),
    [
        *((share_of, each) for each in ("0", "100", "-1", "100.1", "many", "", "1/0", "nan", float("inf"))),
        *((check_confidence, each) for each in (0.49, 1, 95, float("nan"), -0.95)),
    ],
)
def test_invalid_percentiles_and_confidences_are_refused(checked, wrong):
    said(refusal(checked, wrong))


@pytest.mark.parametrize("effective", [1.0, 0.5, 0.3, 0.07])
def test_an_interval_of_fewer_effective_trials_is_spread_outwards(effective):
    """The interval of the effective number, at the same shares of all trials, rounded away from the percentile."""
    n, share = 1000, Fraction(9, 10)
    ranks = interval_ranks(math.floor(n * effective), share)
    expected = [None if rank is None else Fraction(rank, math.floor(n * effective)) * n for rank in ranks]
    low, high = interval(np.arange(1, n + 1), share, effective=effective)
    assert low == math.floor(expected[0])
    assert high == (None if expected[1] is None else math.ceil(expected[1]))
