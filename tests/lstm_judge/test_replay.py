"""Replay at a fixed rate: the recursion by hand, identities that hold for any latencies, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from lstm_judge.read.numbers import rate
from lstm_judge.read.rounds import Group, NoTrials, Round
from lstm_judge.replay import replay_group, replay_text, waiting_ns
from lstm_judge.verdict.firm import longest_run
from lstm_trt.config.configuration import Configuration, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import LstmShape

CLOSED = Configuration(LstmShape(1, 8, 4), "onnxruntime", "1.0", "a processor")


def replay(rounds, *limits_us):
    return replay_group(Group("samples", tuple(rounds)), *limits_us)


def by_hand(latency_ns, period_ns):
    """(waiting time, response time, unfinished earlier calls when due) of each call."""
    calls, end, ends = [], 0, []
    for number, latency in enumerate(latency_ns):
        due = number * period_ns
        begins = max(due, end)
        under_way = sum(ended > due for ended in ends)
        end = begins + latency
        ends.append(end)
        calls.append((begins - due, end - due, under_way))
    return [np.array(column) for column in zip(*calls, strict=True)]


def bursty(generator, n):
    """Whole ns around 1000, some slow, in runs."""
    late = np.repeat(generator.random(n // 4 + 1) < 0.15, 4)[:n]
    return (generator.integers(900, 1100, n) * np.where(late, generator.integers(2, 6, n), 1)).astype(float)


@pytest.mark.random(tail=0, why="identity")
@pytest.mark.parametrize("n", [1, 2, 3, 10, 400])
def test_every_number_is_that_of_the_recursion_by_hand(n, rng):
    for _ in range(20):
        parts = [bursty(rng, n) for _ in range(rng.integers(1, 4))]
        period = int(max(part.mean() for part in parts)) + int(rng.integers(1, 800))
        deadline = int(rng.integers(900, 3000))
        result = replay([Round.of(part) for part in parts], period / 1e3, deadline / 1e3)
        hands = [by_hand(part, period) for part in parts]
        for part, hand in zip(parts, hands, strict=True):
            assert np.array_equal(waiting_ns(part, period), hand[0])
        waits, answers, under_way = (np.concatenate(columns) for columns in zip(*hands, strict=True))
        assert result.n == n * len(parts) and result.rounds == len(parts)
        assert result.queued == np.count_nonzero(waits) and result.queued_share == result.queued / result.n
        assert result.worst_wait_us == waits.max() / 1e3 and result.longest_queue == under_way.max()
        for side, values in ((result.replayed, answers), (result.closed, np.concatenate(parts))):
            ordered = np.sort(values) / 1e3
            expected = [ordered[-(-len(ordered) * part // 1000) - 1] for part in (500, 990, 999, 1000)]
            assert [side.median_us, side.p99_us, side.p999_us, side.max_us] == pytest.approx(expected, rel=1e-12)
            assert side.misses == np.count_nonzero(values > deadline)
        runs = [[len(run) for run in "".join("x "[int(v <= deadline)] for v in hand[1]).split()] for hand in hands]
        assert result.replayed.longest_run == max((run for part in runs for run in part), default=0)


@pytest.mark.random(tail=0, why="identity")
def test_a_period_that_no_call_exceeds_changes_nothing(rng):
    latency = rng.integers(1_000, 2_000, 1000)
    result = replay([Round.of(latency)], 2.0)
    assert result.closed == result.replayed and result.queued == result.longest_queue == 0 and result.worst_wait_us == 0
    assert result.utilisation == pytest.approx(latency.mean() / 2000)


def test_a_latency_of_exactly_the_deadline_is_no_miss():
    round_ = Round.of(np.array([100_100.0, 90_000.0, 100_101.0]))
    assert replay([round_], 200, 100.1).replayed.misses == 1


def test_a_call_that_ends_when_another_is_due_is_no_longer_waited_for():
    """Calls of 8 us are due every 10 us; one takes 40 us, and ends when the fourth after it is due."""
    latency = np.full(100, 8_000.0)
    latency[50] = 40_000
    found = replay([Round.of(latency)], 10)
    assert (found.worst_wait_us, found.longest_queue) == (30, 3)


def test_warm_up_is_left_out():
    latency = np.full(100, 10_000.0)
    latency[49] = 1_000_000
    found = replay([Round(latency, np.arange(100) == 49)], 40)
    assert (found.n, found.queued) == (99, 0)


@pytest.mark.parametrize("mean_us", [0.0371, 1, 9.9999, 123.456, 99_999.0])
def test_a_period_that_is_too_short_names_one_that_is_not(mean_us):
    rounds = [Round.of(np.full(10, mean_us * 900)), Round.of([mean_us * 500, mean_us * 1500])]
    with pytest.raises(UsageError, match="keep up") as refused:
        replay(rounds, mean_us)
    assert "\n" not in str(refused.value)
    smallest = float(str(refused.value).split("at least ")[1].split()[0])
    assert mean_us < smallest <= mean_us * 1.0011
    assert replay(rounds, smallest).utilisation < 1


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf")])
def test_invalid_periods_and_deadlines_are_refused(wrong):
    round_ = Round.of(np.full(10, 1000.0))
    with pytest.raises(UsageError, match="period"):
        replay([round_], wrong)
    with pytest.raises(UsageError, match="deadline"):
        replay([round_], 10, wrong)


def test_only_a_closed_loop_can_be_replayed():
    group = Group("one", (Round.of(np.full(10, 1000.0)),), configuration=CLOSED)
    assert replay_group(group, 10).n == replay_group(replace(group, configuration=None), 10).n == 10
    periodic = replace(CLOSED, protocol=Protocol(arrival="periodic", period_us=100))
    with pytest.raises(UsageError, match="--arrival closed"):
        replay_group(replace(group, configuration=periodic), 10)


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (Group("one", (), failure=NoTrials("memory", "out of memory")), "out of memory"),
        (Group("samples", ()), "no trials"),
    ],
)
def test_without_trials_there_is_no_replay(group, reason):
    with pytest.raises(UsageError, match=reason):
        replay_group(group, 10)


def test_runs():
    for text, expected in (("", 0), ("1", 1), ("0", 0), ("0110111", 3), ("1101", 2)):
        assert longest_run(np.array([place for place, letter in enumerate(text) if letter == "1"])) == expected


def test_percentiles_that_are_asked_for_are_in_the_text_and_the_json():
    """The other lines are golden."""
    latency = np.full(100, 10_000.0)
    latency[50] = 40_000
    group = Group("samples", (Round.of(latency),))
    found = replay_group(group, 12, 15, (Fraction("0.999"), Fraction("0.9")))
    replayed = json.loads(json.dumps(found.as_dict(), allow_nan=False))["replayed"]
    assert {key: each["us"] for key, each in replayed["percentiles"].items()} == {"p999": 40.0, "p90": 20.0}
    assert replayed["misses"] == 13
    assert [line.split()[0] for line in replay_text(found).splitlines()[2:5]] == ["max", "p99.9", "p90"]


def test_a_period_as_a_rate():
    assert [rate(period) for period in (0.5, 1, 1000, 1e6, 2e6)] == ["2 MHz", "1 MHz", "1 kHz", "1 Hz", "0.5 Hz"]
