"""The verdict on a deadline: exact at its edges, and honest where trials depend on each other or drift.

Rates that have to be simulated are compared with limits from the binomial (`check_rate`).
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

import lstm_trt as lab
from lstm_judge.read.numbers import percent_certified
from lstm_judge.read.rounds import Group, NoTrials, Round
from lstm_judge.read.runs import Runs
from lstm_judge.statistics import dependence
from lstm_judge.statistics.quantiles import interval_ranks, proves_below, rate_bounds, share_of, trials_for_share
from lstm_judge.statistics.trials import Trials
from lstm_judge.verdict.firm import firm_statistics
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.text import names_text, sentence, verdict_line, verdict_text
from lstm_judge.verdict.verdict import (
    EXIT_STATUS,
    Verdicts,
    evidence_percentile,
    failed,
    judge as judge_question,
    judged_of,
    outcomes_at,
    provable,
)
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.shape import LstmShape
from tests.conftest import ROOT, rest_is_heavy
from tests.support import planted_latencies
from tests.support.planted_latencies import check_rate, even, judge, lognormal
from tests.support.planted_misses import geometric
from tests.support.said import refusal, said

MISSED, NOT_ENOUGH, MET = EXIT_STATUS


def of(*arrays) -> list[Round]:
    return [Round.of(latency_ns, round=place) for place, latency_ns in enumerate(arrays)]


def with_misses(n: int, places) -> np.ndarray:
    """Latencies of 100 us and no spread, 300 us at the places."""
    latency_ns = np.full(n, 1e5)
    latency_ns[list(places)] = 3e5
    return latency_ns


def spread(n: int, misses: int) -> list[int]:
    """Places of misses that lie as far apart as they can."""
    return [int((place + 0.5) * n / misses) for place in range(misses)]


# Edges that are exact


@pytest.mark.parametrize("sigma", [0, 0.05])
@pytest.mark.parametrize(
    ("percentile", "confidence", "n"),
    [("99", 0.95, 299), ("99.9", 0.95, 2995), ("99.99", 0.95, 29_956), ("99", 0.99, 459), ("99.9", 0.99, 4603)],
)
def test_clean_trials_needed_are_those_of_the_table(percentile, confidence, n, sigma):
    for trials, expected in ((n - 1, NOT_ENOUGH), (n, MET)):
        verdict = judge(of(even(n, sigma)[:trials]), 1000, percentile, confidence)
        assert (verdict.outcome, verdict.new_recording.trials, verdict.effective.n) == (expected, n, trials)


@pytest.mark.parametrize("misses", [0, 1, 2, 4])
@pytest.mark.parametrize(("percentile", "n"), [("99.9", 2500), ("99.9", 6000), ("99", 500), ("90", 60)])
def test_new_trials_decide_as_often_as_is_said(percentile, n, misses):
    """By scipy's laws of the misses: 80 % at the rate (misses + 1/2) / n, and the chance with an unknown rate."""
    verdict = judge(of(with_misses(n, spread(n, misses))), 200, percentile)
    question = Question(200, percentile)
    rate = (misses + 0.5) / n

    def most_misses(trials: int) -> int:
        return next(count for count in range(trials) if not proves_below(count, trials, question.allowed)) - 1

    if verdict.outcome != NOT_ENOUGH or verdict.new_recording.trials is None:
        assert verdict.new_recording.chance is verdict.new_recording.trials_for_80_percent is None
        return
    law = stats.betabinom(verdict.new_recording.trials, misses + 0.5, n - misses + 0.5)
    assert verdict.new_recording.chance == pytest.approx(law.cdf(most_misses(verdict.new_recording.trials)), rel=1e-6)
    likely = verdict.new_recording.trials_for_80_percent
    if rate >= float(1 - share_of(percentile)):
        assert likely is None
        return
    chances = [stats.binom(trials, rate).cdf(most_misses(trials)) for trials in (likely // 2, likely)]
    assert chances[0] < 0.8 <= chances[1]


@pytest.mark.parametrize(
    ("n", "misses", "least", "most"),
    [(6000, 5, 1, 1e9), (10_000, 9, 2e6, 1e9), (100_000, 99, 2e8, 1e10), (1500, 1, None, None)],
)
def test_at_nearly_the_allowed_rate_no_number_of_trials_is_likely_to_decide(n, misses, least, most):
    verdict = judge(of(with_misses(n, spread(n, misses))), 200)
    needed, likely = verdict.new_recording.trials, verdict.new_recording.trials_for_80_percent
    assert verdict.outcome == NOT_ENOUGH and needed is not None
    assert (likely is None) == (least is None)
    assert likely is None or max(least, 4 * needed) < likely < most
    said(verdict_text(verdict))


@pytest.mark.parametrize(
    ("percentile", "n"),
    rest_is_heavy([("99", 1000), ("99", 5000), ("99.9", 10_000), ("99.9", 30_000)], lambda _, n: n in (1000, 10_000)),
)
def test_the_outcome_is_that_of_scipys_tests(percentile, n):
    """With misses apart from each other: `quantile_test` and `binomtest` at every count, bounds as scipy's."""
    allowed = 1 - float(percentile) / 100
    seen = set()
    most = int(3 * n * allowed) + 1
    for misses in range(0, most, max(1, most // 40)):
        latency_ns = with_misses(n, spread(n, misses) if misses else [])
        verdict = judge(of(latency_ns), 200, percentile)
        # "The quantile lies below the deadline": as many at or below it as there are would be unlikely.
        p_met = stats.quantile_test(latency_ns, q=200e3, p=float(percentile) / 100, alternative="less").pvalue
        low = stats.binomtest(misses, n, 0.5, alternative="greater").proportion_ci(0.95, "exact").low
        expected = MET if p_met <= 0.05 else MISSED if low > allowed else NOT_ENOUGH
        assert verdict.outcome == expected, misses
        assert verdict.misses == misses and verdict.effective.n == n
        seen.add(expected)
    assert seen == {MET, MISSED, NOT_ENOUGH}


@pytest.mark.random(tail=0, why="identity")
def test_a_latency_of_exactly_the_deadline_is_no_miss(rng):
    for deadline_us in (812.345, 0.1, 1e-3, 1000 / 3, 1e6, *rng.uniform(0.01, 1e5, 300).round(3)):
        as_ns = float(Fraction(repr(float(deadline_us))) * 1000)
        converted = [as_ns, float(deadline_us) * 1e3, float(repr(float(deadline_us / 1e6))) * 1e9]
        assert judge(of(converted), deadline_us).misses == 0, deadline_us
        assert judge(of([as_ns * (1 + 1e-9)]), deadline_us).misses == 1


def test_missed_by_the_exact_lower_bound():
    verdict = judge(of(with_misses(3000, spread(3000, 8))), 200)
    assert verdict.outcome == MISSED and verdict.bounds.miss_rate_low > 0.001 and verdict.new_recording.trials is None
    verdict = judge(of(with_misses(3000, spread(3000, 6))), 200)
    assert verdict.outcome == NOT_ENOUGH and verdict.bounds.miss_rate_low <= 0.001
    said(verdict_text(verdict))


def test_the_measured_percentile_stands_between_its_bounds():
    """They are consistent with the test: MET exactly if the upper bound of the percentile is within the deadline."""
    latency_ns = 1e5 + np.arange(3000)[np.argsort(np.arange(3000) * 7 % 3000)]  # distinct, in no order
    ranks = interval_ranks(3000, share_of("99"), 2 * 0.95 - 1)
    verdict = judge(of(latency_ns), 200, "99")
    found = [verdict.bounds.percentile_low_us, verdict.percentile_us, verdict.bounds.percentile_high_us]
    assert found == pytest.approx([(1e5 + rank - 1) / 1e3 for rank in (ranks[0], 2970, ranks[1])], rel=1e-12)
    assert verdict.effective.n == 3000
    for deadline_us in (verdict.bounds.percentile_high_us, np.nextafter(verdict.bounds.percentile_high_us, 0) - 1e-6):
        met = judge(of(latency_ns), float(deadline_us), "99").effective.outcome_if_independent == MET
        assert met == (deadline_us == verdict.bounds.percentile_high_us)
    short = judge(of(latency_ns[:100]), 200, "99.9")
    assert short.bounds.percentile_high_us is None
    said(verdict_text(short))


def test_what_the_trials_certify():
    verdict = judge(of(np.full(1000, 1e5)), 200)
    assert verdict.bounds.certifies == verdict.bounds.max_certifies == 100 * (1 - rate_bounds(0, 1000)[1])
    assert percent_certified(verdict.bounds.certifies) == "99.7"
    verdict = judge(of(with_misses(10_000, spread(10_000, 3))), 200)
    assert verdict.bounds.certifies == pytest.approx(100 * (1 - rate_bounds(3, 10_000)[1]))
    assert proves_below(3, 10_000, 1 - Fraction(percent_certified(verdict.bounds.certifies)) / 100)


@pytest.mark.parametrize("n", [2, 10, 59, 299, 300, 1000, 2995, 2996, 3000, 29_956, 100_000, 299_572, 10**6])
def test_percentages_are_rounded_to_what_is_still_proven(n):
    shown = percent_certified(100 * (1 - rate_bounds(0, n)[1]))
    assert proves_below(0, n, 1 - Fraction(shown) / 100)
    rest = 100 - Fraction(shown)
    assert not proves_below(0, n, (rest - rest / 9) / 100)  # two digits of the rest: at most a tenth is given away


def test_the_highest_percentile_that_clean_trials_certify():
    table = {298: None, 299: "99", 2994: "99", 2995: "99.9", 29_955: "99.9", 29_956: "99.99", 299_572: "99.999"}
    assert {n: evidence_percentile(n) for n in table} == table
    assert evidence_percentile(10**8) == "99.999" and evidence_percentile(458, 0.99) is None


# Rounds, warm-up, (m,k)-firm statistics


def test_rounds_are_pooled_and_warm_up_stands_beside():
    latency_ns = with_misses(1010, [3, 500])
    latency_ns[3] = 9e5
    rounds = [Round(latency_ns, np.arange(1010) < 10, round=0), *of(np.full(2000, 1.5e5))]
    verdict = judge(rounds, 200)
    assert (verdict.n, verdict.misses, verdict.max_us, verdict.max_with_warmup_us) == (3000, 1, 300, 900)
    assert [each.max_us for each in verdict.rounds] == [300, 150]
    said(verdict_text(verdict))


def brute_force(rounds: list[np.ndarray]):
    worst = {}
    for window in (10, 100, 1000):
        sums = [np.convolve(misses, np.ones(min(window, len(misses)), int), "valid").max() for misses in rounds]
        worst[window] = max(sums) if max(map(len, rounds)) >= window else None
    runs = [len(list(group)) for misses in rounds for late, group in itertools.groupby(misses) if late]
    after = [misses[place] for misses in rounds for place in range(1, len(misses)) if misses[place - 1]]
    everything = np.concatenate(rounds)
    return worst, max(runs, default=0), everything.mean(), np.mean(after) if after else None


@pytest.mark.random(tail=0, why="identity")
def test_firm_statistics_are_those_of_counting_every_window(rng):
    for _ in range(200):
        rate = rng.choice([0, 0.01, 0.2, 0.9, 1])
        rounds = [(rng.random(rng.integers(1, 1300)) < rate).astype(int) for _ in range(rng.integers(1, 4))]
        found = firm_statistics([np.flatnonzero(misses) for misses in rounds], [len(misses) for misses in rounds])
        worst, longest, p_miss, after = brute_force(rounds)
        assert (found.worst_in, found.longest_run) == (worst, longest)
        assert found.p_miss == pytest.approx(p_miss) and found.p_miss_after_miss == (
            None if after is None else pytest.approx(after)
        )


def test_runs_and_windows_do_not_cross_rounds_and_pass_over_marked_rows():
    first, second = with_misses(50, [48, 49]), with_misses(50, [0, 1, 2])
    assert judge(of(first, second), 200).firm_statistics.longest_run == 3
    assert judge(of(first, second), 200).firm_statistics.worst_in == {10: 3, 100: None, 1000: None}
    marked = Round(with_misses(53, [24, 25, 26, 27, 28, 29]), np.isin(np.arange(53), [25, 26, 27]))
    assert judge([marked], 200).firm_statistics.longest_run == 3


# Trials that depend on each other. A series comes with the deadline that it misses at exactly the share allowed.


@functools.cache
def exceeded_us(allowed: float) -> float:
    """What log-normal latencies exceed at this rate."""
    return 100 * math.exp(0.05 * stats.norm.isf(allowed))


def independent(rng, n: int, allowed: float):
    return lognormal(rng, n, 0.05), exceeded_us(allowed)


def autoregressive(rng, n: int, allowed: float, rho: float):
    series = planted_latencies.autoregressive(rng, n, rho)
    return 1e5 * np.exp(0.05 * series), exceeded_us(allowed)


def moving_maximum(rng, n: int, allowed: float, k: int):
    """Frechet maxima of k neighbours: extremal index 1 / k at every level. To the power 0.05: 13 % a decade."""
    frechet = -1 / np.log(rng.random(n + k - 1))
    maxima = np.lib.stride_tricks.sliding_window_view(frechet, k).max(axis=1)
    return 1e5 * maxima**0.05, 100 * (-k / math.log(1 - allowed)) ** 0.05


def bursty(rng, n: int, allowed: float, length: float, chance: float):
    """A bad state of `length` trials on average in which a trial misses with `chance`; else no misses."""
    latency_ns = np.clip(lognormal(rng, n, 0.05), None, 1.6e5)
    misses = geometric(length, chance)(rng, n, allowed)
    latency_ns[misses] = 2e5 * (1 + rng.random(len(misses)))
    return latency_ns, 190.0


def mets(make, n: int, percentile: str, runs: int, rng: np.random.Generator, least: int = 0) -> list[int]:
    """Numbers of misses of the recordings, out of `runs`, that are called MET with at least so many misses."""
    allowed = 1 - Fraction(percentile) / 100
    found = []
    for _ in range(runs):
        latency_ns, deadline_us = make(rng, n, float(allowed))
        misses = int(np.count_nonzero(latency_ns > deadline_us * 1e3))
        if misses < least or not proves_below(misses, n, allowed):
            continue  # not MET, whatever the dependence
        factor = dependence.assess(
            [Trials(latency_ns)], [np.flatnonzero(latency_ns > deadline_us * 1e3)], float(allowed)
        ).factor
        if proves_below(math.ceil(misses * factor - 1e-9), math.floor(n * factor + 1e-9), allowed):
            verdict = judge(of(latency_ns), deadline_us, percentile)  # drift may still hold it back
            assert (verdict.effective.outcome, verdict.misses) == (MET, misses)
            found += [misses] * (verdict.outcome == MET)
    return found


EDGES = [("99", 300, 1000), ("99", 1000, 500), ("99", 3000, 300)]
EDGES += [("99.9", 2995, 300), ("99.9", 3500, 250), ("99.9", 10_000, 200), ("99.9", 30_000, 100)]
SERIES = {
    "independent": independent,
    **{f"rho {rho}": functools.partial(autoregressive, rho=rho) for rho in (0.3, 0.5, 0.8, 0.9, 0.95)},
    **{f"maximum of {k}": functools.partial(moving_maximum, k=k) for k in (2, 5, 10)},
}


@pytest.mark.random(tail=6.3e-5, why="rates, 63 checks of 0.05")
@pytest.mark.parametrize("name", rest_is_heavy(SERIES, ("independent", "rho 0.5").__contains__))
def test_met_at_the_boundary_in_at_most_5_percent_of_series(name, rng):
    for percentile, n, runs in EDGES:
        found = mets(SERIES[name], n, percentile, runs, rng)
        check_rate(len(found), runs, 0.05, (percentile, n))


@pytest.mark.random(tail=2.4e-5, why="rates, 24 checks of 0.05")
@pytest.mark.parametrize(
    ("length", "chance"),
    rest_is_heavy(
        [(5, 0.5), (5, 1), (10, 0.5), (20, 1), (50, 0.5), (50, 1)], lambda length, chance: length in (10, 20)
    ),
)
def test_a_burst_that_was_caught_keeps_met_to_5_percent(length, chance, rng):
    """Recordings without a bad state, or with one miss in it, cannot be recognized and are left out."""
    for percentile, n, runs in (("99", 1000, 400), ("99", 3000, 200), ("99.9", 10_000, 150), ("99.9", 30_000, 80)):
        found = mets(functools.partial(bursty, length=length, chance=chance), n, percentile, runs, rng, least=2)
        check_rate(len(found), runs, 0.05, (percentile, n))


@pytest.mark.random(tail=3e-6, why="rates, 3 checks of 0.05")
def test_where_bursts_come_often_enough_met_keeps_to_5_percent_over_all(rng):
    for length, chance in ((5, 0.5), (5, 1), (10, 0.5)):
        found = mets(functools.partial(bursty, length=length, chance=chance), 30_000, "99.9", 150, rng)
        check_rate(len(found), 150, 0.05)


BODIES = {name: planted_latencies.BODIES[name] for name in ("lognormal 5 %", "exponential 20 %", "Student-t 1 %")} | {
    "whole microseconds": lambda rng, n: np.round(lognormal(rng, n, 0.05) / 1e3) * 1e3,
    "two values": lambda rng, n: np.where(rng.random(n) < 0.02, 1.25e5, 1e5),
}


@pytest.mark.random(tail=1e-5, why="rates, 10 checks of 0.001")
@pytest.mark.parametrize("body", rest_is_heavy(BODIES, "lognormal 5 %".__eq__))
def test_independent_clean_trials_of_the_length_needed_are_met(body, rng):
    """At least 999 in 1000."""
    for n, percentile, runs in ((299, "99", 400), (2995, "99.9", 150)):
        question = Question(1e9, percentile)
        verdicts = [judged_of((of(BODIES[body](rng, n)), question, None)) for _ in range(runs)]
        check_rate(sum(verdict.outcome != MET for verdict in verdicts), runs, 1e-3)
        assert all(verdict.effective.n == n for verdict in verdicts if verdict.outcome == MET)


def test_chance_is_exact_for_neighbours_and_bounded_for_wider_windows():
    n, m = 24, 5
    gaps = np.diff(np.array(list(itertools.combinations(range(n), m))), axis=1)
    found = dependence.Exceedances([np.arange(m)], [n])
    for window in (1, 2, 3):
        short = (gaps <= window).sum(axis=1)
        share = found.share_by_chance(window)
        assert share == pytest.approx(short.mean() / (m - 1))
        for count in range(m):
            chance, true = found.chance(window, count, share), (short >= count).mean()
            if window == 1:
                assert chance == pytest.approx(true)
            elif true < 0.1:
                assert chance >= true
    pairs = list(itertools.product(itertools.combinations(range(6), 3), itertools.combinations(range(5), 2)))
    short = np.array([int((np.diff(a) == 1).sum() + (np.diff(b) == 1).sum()) for a, b in pairs])
    two = dependence.Exceedances([np.arange(3), np.arange(2)], [6, 5])
    for count in range(4):
        assert two.chance(1, count, 0.5) == pytest.approx((short >= count).mean())


@pytest.mark.random(tail=1e-9, why="measured under 90 seeds for each k, 8 and more")
@pytest.mark.parametrize("k", rest_is_heavy([2, 5, 10], (5).__eq__))
def test_the_extremal_index_of_a_moving_maximum_is_found(k, rng):
    # The estimate leans to the careful side.
    verdicts = [judge(of(moving_maximum(rng, 200_000, 0.001, k)[0]), 1e9) for _ in range(9)]
    assert 0.6 / k <= np.mean([verdict.dependence.extremal_index for verdict in verdicts]) <= 1.15 / k
    for verdict in verdicts:
        assert verdict.effective.n == math.floor(200_000 * verdict.dependence.factor + 1e-9)


def test_dependence_goes_from_met_to_not_enough_and_nowhere_else():
    latency_ns, _ = autoregressive(np.random.default_rng(5), 10_000, 0.001, 0.95)
    ordered = np.sort(latency_ns)
    far = judge(of(latency_ns), 1e4)
    assert (far.outcome, far.effective.outcome_if_independent, far.new_recording.trials_if_independent) == (
        NOT_ENOUGH,
        MET,
        2995,
    )
    assert far.effective.n < 2995 and far.new_recording.trials == math.ceil(2995 / far.dependence.factor) > 10_000
    assert far.bounds.certifies < 99.9
    said(verdict_text(far))
    missed = judge(of(latency_ns), ordered[-40] / 1e3)
    assert missed.outcome == missed.effective.outcome_if_independent == MISSED and missed.effective.n < 10_000
    assert judge(of(latency_ns), 1e4, "90").outcome == MET


def test_misses_in_one_burst_reduce_the_effective_sample_size():
    apart, together = spread(10_000, 4), range(5000, 5004)
    assert judge(of(with_misses(10_000, apart)), 200).outcome == MET
    verdict = judge(of(with_misses(10_000, together)), 200)
    assert (verdict.outcome, verdict.effective.outcome_if_independent) == (NOT_ENOUGH, MET)
    assert verdict.dependence.at_deadline
    said(*verdict.reasons)


def test_the_longer_recording_asked_for_does_certify():
    said_of = []
    for misses, (each, place) in itertools.product((2, 3, 4), ((2000, 0), (3333, 0.5), (4999, 1))):
        n = each * misses
        start = int(place * (n - 10))
        latency_ns = with_misses(n, range(start, start + misses))
        verdict = judge(of(latency_ns), 200, "99.9")
        fresh = verdict.new_recording.trials
        assert fresh >= trials_for_share(misses, n, Fraction(1, 1000))
        said_of.append(verdict_text(verdict))
        assert judge(of(np.tile(latency_ns, fresh // n)), 200, "99.9").outcome == MET  # the same bursts, repeated
        # The bound of the length of bursts of so few misses alone would demand more than five times as many.
        assert verdict.dependence.factor * fresh < 5000
    said(*said_of)


@pytest.mark.parametrize(
    "shape",
    [np.ones_like, lambda place: 1 + place, lambda place: 1 + 0.5 * (place > 0.6)],
    ids=["flat", "ramp", "step"],
)
@pytest.mark.parametrize("n", [20, 100, 200])
def test_a_short_recording_far_below_the_deadline_needs_the_trials_of_a_clean_one(n, shape):
    latency_ns = even(n) * shape(np.arange(n) / n)
    verdict = judge(of(latency_ns), 1000)
    assert (verdict.outcome, verdict.new_recording.trials) == (NOT_ENOUGH, 2995)
    said(*verdict.reasons)


def test_trials_are_never_demanded_without_a_reason():
    for answer in lab.verdict(ROOT / "data" / "epyc" / "deadline", 1000):
        assert (answer.outcome == NOT_ENOUGH) == bool(answer.reasons)
        if answer.outcome == NOT_ENOUGH and answer.new_recording.trials is not None:
            assert answer.new_recording.trials >= answer.new_recording.trials_if_independent
            assert answer.new_recording.trials > answer.n or answer.effective.outcome == MET


def test_misses_of_one_round_are_not_those_of_all():
    places = spread(10_000, 12)
    rounds = [np.full(10_000, 1e5), with_misses(10_000, places), np.full(10_000, 1e5)]
    verdict = judge(of(*rounds), 200)
    assert (verdict.outcome, verdict.effective.outcome_if_independent) == (NOT_ENOUGH, MET)
    said(*verdict.reasons)
    mixed = [with_misses(10_000, places[part::3]) for part in range(3)]
    assert judge(of(*mixed), 200).outcome == MET


@pytest.mark.random(tail=1e-6, why="rates, 1 check of 0.001")
def test_rounds_of_different_medians_are_no_dependence(rng):
    runs, question = 100, Question(1e4)
    recordings = [of(*(factor * lognormal(rng, 1000, 0.01) for factor in (1, 1.03, 0.98))) for _ in range(runs)]
    verdicts = [judged_of((rounds, question, None)) for rounds in recordings]
    check_rate(sum(verdict.effective.n != 3000 for verdict in verdicts), runs, 1e-3)


@pytest.mark.random(tail=0, why="identity")
@pytest.mark.parametrize(
    ("rounds", "until", "asked"),
    rest_is_heavy(
        [
            (lambda rng: [independent(rng, 2000, 0.01)[0]], None, {}),
            (lambda rng: [bursty(rng, 3000, 0.01, 10, 0.8)[0]], None, {}),
            (lambda rng: [bursty(rng, 3000, 0.004, 3, 0.8)[0]], None, {"burst_length": 5.0}),
            (lambda rng: [lognormal(rng, 1500, 0.05) * np.linspace(1, 1.1, 1500)], None, {}),
            (lambda rng: [factor * lognormal(rng, 700, 0.01) for factor in (1, 1.04, 0.98)], None, {}),
            (lambda rng: [lognormal(rng, 1200, 0.05)], 2.0, {}),
            (lambda rng: [lognormal(rng, 40, 0.05)], None, {}),
        ],
        lambda rounds, until, asked: until is not None or asked,
    ),
    ids=["independent", "bursts", "burst length given", "drift", "unlike rounds", "until decided", "too few"],
)
def test_the_outcomes_at_many_deadlines_are_those_of_each(rng, rounds, until, asked):
    rounds = of(*rounds(rng))
    every_us = np.concatenate([round_.timed_ns for round_ in rounds]) / 1e3
    inside = np.quantile(every_us, [0, 0.3, *np.linspace(0.97, 1, 10)])
    deadlines_us = np.unique([0.9 * every_us.min(), *inside, 1.01 * every_us.max(), 2 * every_us.max()]).tolist()
    question = Question(1.0, "99", **asked)
    found = outcomes_at(((rounds, question, until), deadlines_us))
    each = [replace(question, deadline_us=deadline_us) for deadline_us in deadlines_us]
    assert found == [judge_question(rounds, one, until).outcome for one in each]
    assert found[0] == MISSED and found[-1] in ((NOT_ENOUGH,) if every_us.size == 40 else (MET, NOT_ENOUGH))


# Drift


def test_a_drift_far_below_the_deadline_keeps_met_and_is_shown():
    texts = []
    for n, percentile in ((3000, "99"), (10_000, "99.9"), (30_000, "99.9")):
        latency_ns = even(n) * np.linspace(1, 1.03, n)
        verdict = judge(of(latency_ns), 200, percentile)
        assert verdict.outcome == MET and 0.015 < verdict.drift < 0.035
        texts.append(verdict_text(verdict))
        step = even(n) * np.where(np.arange(n) < n // 2, 1, 1.2)
        assert judge(of(step), 200, percentile).outcome == MET
    said(*texts)


def test_a_drift_that_ends_over_the_deadline_does_not_stay_met():
    for n, percentile, late in ((3000, "99", 10), (10_000, "99", 50), (30_000, "99.9", 12)):
        for rise in (np.linspace(1, 1.2, n), np.where(np.arange(n) < 0.8 * n, 1, 1.2)):
            latency_ns = even(n) * rise
            deadline_us = float(np.sort(latency_ns)[-late - 1]) / 1e3
            verdict = judge(of(latency_ns), deadline_us, percentile)
            assert verdict.misses == late and verdict.effective.outcome_if_independent == MET
            assert verdict.outcome == NOT_ENOUGH


@pytest.mark.parametrize(("share", "expected"), [(0.0095, MET), (0.0105, NOT_ENOUGH)])
def test_a_drift_counts_from_the_allowed_miss_rate_on(share, expected):
    """`share`: of the last segment, at its level after another rise of 10 %, above the deadline; 1 % are allowed."""
    latency_ns = even(10_000, 0.01) * np.where(np.arange(10_000) < 6000, 1, 1.1)
    deadline_us = float(np.quantile(latency_ns[6000:], 1 - share)) * 1.1 / 1e3
    verdict = judge(of(latency_ns), deadline_us, "99")
    assert (verdict.misses, verdict.outcome, verdict.effective.outcome) == (0, expected, MET)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(0.5, 0.5, MET), (0.2, 0.8, NOT_ENOUGH), (0.8, 0.2, MET)],
    ids=["even", "more", "less"],
)
def test_a_share_of_slow_calls_that_grows_is_a_drift_and_one_that_does_not_is_none(first, last, expected):
    """Every 150th slow call misses: 0.33 % of all, and 0.67 % once all are slow; 0.5 % are allowed."""
    n = 10_000
    slow = np.arange(n) * (5**0.5 - 1) / 2 % 1 < np.linspace(first, last, n)
    latency_ns = even(n) * np.where(slow, 2, 1)
    latency_ns[np.flatnonzero(slow)[::150]] = 2.5e5
    verdict = judge(of(latency_ns), 230, "99.5")
    assert (verdict.outcome, verdict.effective.outcome) == (expected, MET)
    said(verdict_text(verdict))
    (levels,) = [part["levels"] for part in verdict.as_dict()["rounds"]]
    assert levels["medians_us"] == pytest.approx([100, 200], rel=0.01)
    assert levels["shares_first"] == pytest.approx([1 - first, first], abs=0.05)


def test_a_drift_that_would_carry_the_tail_over_the_deadline_is_a_reason():
    latency_ns = even(10_000) * np.where(np.arange(10_000) < 6000, 1, 1.1)
    verdict = judge(of(latency_ns), 118)
    assert (verdict.misses, verdict.outcome, verdict.effective.outcome) == (0, NOT_ENOUGH, MET)
    said(verdict_text(verdict))
    assert judge(of(latency_ns), 140).outcome == MET
    assert judge(of(latency_ns[::-1]), 125).outcome == MET  # it gets faster
    # The slow level may come again, as the slowest calls show.
    assert not any("drift" in reason for reason in judge(of(latency_ns[::-1]), 118).reasons)


# What is handed on


@pytest.mark.random(tail=0, why="identity")
def test_failures_statuses_and_json(rng):
    verdict = failed("failed at build: no such layer", Question(1000))
    assert (verdict.outcome, verdict.n, verdict.max_us, verdict.new_recording.trials) == (NOT_ENOUGH, 0, None, None)
    said(verdict_text(verdict, "2x128"), verdict_line(verdict, "2x128"), sentence(verdict))
    statuses = {(MET,): 0, (MET, NOT_ENOUGH): 3, (NOT_ENOUGH, MISSED, MET): 1}
    for names, status in statuses.items():
        answers = tuple(replace(verdict, outcome=name) for name in names)
        assert Verdicts(Runs(()), answers).exit_status == status
    for answer in (verdict, judge(of(*(lognormal(rng, 500, 0.05) for _ in range(2))), 105)):
        again = json.loads(json.dumps(answer.as_dict(), allow_nan=False))
        assert {"question", "bounds", "effective", "bursts", "new_recording", "evidence"} <= again.keys()
        assert (again["outcome"], again["n"]) == (answer.outcome, answer.n)
        assert again["question"]["percentile"] == 99.9
        assert len(repr(answer)) < 300 and "\n" not in repr(answer)
    assert set(again["firm_statistics"]["worst_in"]) == {"10", "100", "1000"}


def configured(*latencies_ns, hidden: int = 8) -> Group:
    """A recording of a network with a hidden size."""
    configuration = Configuration(LstmShape(1, hidden, 4), "onnxruntime", "1.0", "a processor")
    rounds = tuple(of(*latencies_ns))
    failure = None if rounds else NoTrials("build", "no such layer")
    return Group(f"{hidden} units", rounds, {"hidden": hidden}, configuration, failure)


#: What a configuration did at 200 us and p99.9, and one that does it.
KINDS = {
    "met it": np.full(3000, 1e5),
    "missed it": np.full(3000, 3e5),
    "had too few trials to say": np.full(50, 1e5),
    "stayed undecided": with_misses(3000, spread(3000, 4)),
}


@pytest.mark.parametrize(
    "counts", [(1, 1, 1, 1, 1), (0, 0, 2, 0, 0), (3, 0, 0, 0, 0), (0, 2, 0, 1, 2), (2, 0, 5, 0, 1)]
)
def test_a_conclusion_counts_what_was_found_and_nothing_else(counts):
    *of_kinds, broken = counts
    groups = []
    for latency_ns, number in zip(KINDS.values(), of_kinds, strict=True):
        groups += [configured(latency_ns, hidden=8 + len(groups) + place) for place in range(number)]
    groups += [configured(hidden=100 + place) for place in range(broken)]
    verdicts = lab.verdict(groups, 200)
    largest = verdicts.largest()
    assert (largest is None) == (counts[0] == 0)
    said(str(verdicts), names_text(verdicts))


@pytest.mark.parametrize(
    ("met", "undecided", "named"),
    [(8, 16, True), (16, 8, False), (16, 16, False), (None, 16, True), (None, None, False)],
)
def test_a_conclusion_names_the_larger_network_that_a_new_recording_decides(met, undecided, named):
    """Nothing needs to be decided up to the size of the largest that met it; what no recording decides is not named."""
    places = [("met it", met), ("had too few trials to say", undecided), ("stayed undecided", 400), ("missed it", 500)]
    groups = [configured(KINDS[kind], hidden=hidden) for kind, hidden in places if hidden]
    verdicts = lab.verdict(groups, 200)
    lines = verdicts.conclusion.splitlines()
    last = (
        f"Largest undecided network: {undecided} units; 2995 new trials can prove MET: "
        f"lstm-trt record --layers 1 --hidden {undecided} --sequence 4 "
    )
    assert lines[-1].startswith(last) == named and (" --trials 2995 --out" in lines[-1]) == named
    assert any(line.startswith(f"Largest network that met it: {met} units, no misses") for line in lines) == bool(met)
    assert len(lines) == 1 + bool(met) + named and str(verdicts).endswith(verdicts.conclusion)


def test_the_largest_of_undecided_networks_is_one_that_a_new_recording_may_decide():
    kinds = ("stayed undecided", "had too few trials to say", "met it", "met it")
    verdicts = lab.verdict([configured(KINDS[kind], hidden=30 - place) for place, kind in enumerate(kinds)], 200)
    assert [verdicts.largest(), verdicts.largest(places=[0, 1, 3]), verdicts.largest(undecided=True)] == [2, 3, 1]
    assert [each.trials_needed for each in verdicts] == [None, 2995, None, None]


def test_a_conclusion_of_one_configuration_counts_nothing():
    groups = [configured(), *map(configured, KINDS.values())]
    said(*(lab.verdict([group], 200).conclusion for group in groups))


def test_a_configuration_that_failed_needs_no_number_of_trials():
    verdicts = lab.verdict([configured(np.full(100, 1e5)), configured(hidden=16)], 200, "99")
    short, broken = verdicts
    assert (
        short.new_recording.trials == 299
        and broken.new_recording.trials is broken.new_recording.trials_if_independent is None
    )
    assert [each["new_recording"]["trials"] for each in verdicts.as_dict()] == [299, None]
    assert verdicts.frame.set_index("network")["trials_needed"].dropna().to_dict() == {"8 units": 299}


@pytest.mark.parametrize(("lengths", "percentile"), [((3000, 400), 99), ((3000, 2995), 99.9), ((100,), 99)])
def test_without_a_percentile_it_is_the_highest_that_each_recording_can_prove(lengths, percentile):
    groups = [configured(np.full(n, 1e5), hidden=8 + n) for n in lengths]
    found = provable([*groups, configured(hidden=16), configured(np.full(1, 1e5), hidden=17)], 200)
    assert {each.question.percentile for each in found} == {percentile} and len(found) == len(lengths) + 1
    assert provable([configured(np.full(1, 1e5))], 200) is None


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    ("medians_us", "deadline_us", "far"),
    [
        ([500], 4, True),  # 125 times
        ([500], 6, False),
        ([5], 5000, True),
        ([5], 2000, False),
        ([500, 3000], 4, True),
        ([5, 3000], 0.02, True),
        ([5, 3000], 20, False),  # a grid of small and large networks has medians on both sides
        ([2, 50], 20_000, False),
    ],
)
def test_a_deadline_far_from_all_medians_is_asked_about(recorded, medians_us, deadline_us, far):
    groups = [configured(np.full(50, 1e3 * each), hidden=8 + place) for place, each in enumerate(medians_us)]
    if not recorded:
        groups = [replace(each, configuration=None) for each in groups]
    found = lab.verdict(groups, deadline_us)
    assert len(found.warnings) == far
    said(*found.warnings)


@pytest.mark.parametrize(
    ("n", "misses", "latency_us", "deadline_us", "expected"),
    [
        (3000, 0, 91.23, 100, MET),
        (1000, 0, 90, 100, NOT_ENOUGH),
        (10**6, 2, 100, 200, MET),
        (3000, 60, 100, 200, MISSED),
    ],
)
def test_verdict_text(n, misses, latency_us, deadline_us, expected):
    latency_ns = with_misses(n, spread(n, misses) if misses else []) * latency_us / 100
    verdict = judge(of(latency_ns), deadline_us)
    assert verdict.outcome == expected
    name = "2x128 on onnxruntime"
    said(verdict_text(verdict, name), sentence(verdict), verdict_line(verdict, name))


@pytest.mark.parametrize(
    "question",
    [*((us, "99.9", 0.95) for us in (-5, 0, float("nan"), float("inf"), "soon")), (9, "100", 0.95), (9, "99.9", 95)],
)
def test_invalid_questions_are_refused_in_one_line(question):
    refused = refusal(Question, *question)
    assert refused == refusal(lab.verdict, "no folder", *question)
    said(refused)


@pytest.mark.parametrize(
    "rounds",
    [
        *([], of([]), [Round(np.ones(3), np.ones(3, dtype=bool))]),
        *map(of, ([1.0, math.nan], [1.0, 0.0], [1.0, -3.0], [math.inf, 2.0])),
    ],
)
def test_what_cannot_be_judged_is_refused(rounds):
    said(refusal(judge, rounds, 100))


@pytest.mark.random(tail=0, why="identity")
@pytest.mark.parametrize("n", [1, 2, 3, 4, 10, 29, 60])
def test_small_recordings_have_a_verdict(n, rng):
    for deadline_us, percentile in itertools.product((50, 100, 1000), ("50", "90", "99.9")):
        verdict = judge(of(lognormal(rng, n, 0.05)), deadline_us, percentile)
        assert verdict_text(verdict) and verdict.effective.n <= n
        assert verdict.n == n
