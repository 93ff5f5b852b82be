"""What slow calls spent their time on: planted times off the core, and what is said of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from lstm_judge.outliers.text import outliers_text
from lstm_judge.read.rounds import Round
from lstm_judge.statistics import excess as parts
from lstm_judge.statistics.excess import Spent
from lstm_judge.verdict.text import verdict_line, verdict_text
from tests.support.planted_latencies import explain, judge
from tests.support.said import said

RAN = {"times": 41, "shortest_ns": 12_000, "longest_ns": 310_000, "total_ns": 2_000_000}
SWITCHES = {
    "missing": None,
    "ran": {"kworker/0:1": RAN},
    "ran_missing": None,
    "faults": {"[heap]": 3},
    "faults_missing": None,
}
REFUSED = {
    "missing": "perf_event_open: Operation not permitted",
    "ran_missing": "the same",
    "faults_missing": "the same",
}


def round_(n: int = 1000, **slow_ns: int) -> Round:
    """Calls of 100 us, each tenth of them longer by these parts; `late` and `behind` begin before the call."""
    slow = np.arange(n) % 10 == 9
    latency_ns = np.full(n, 100_000.0) + np.arange(n) % 7 * 100
    for time_ns in slow_ns.values():
        latency_ns[slow] += time_ns
    preempted = slow * slow_ns.get("preempted", 0)
    off_core = {"preempted_ns": preempted, "off_core_ns": preempted + slow * slow_ns.get("waiting", 0)}
    blocks = [{"rows": n // 2, "interrupts": 40, "steal_ns": 0}, {"rows": n - n // 2, "interrupts": 40, "steal_ns": 0}]
    return Round.of(latency_ns, np.arange(n) * 1_000_000, off_core=off_core, switches=SWITCHES, blocks=blocks)


def test_the_parts_of_planted_calls_are_found():
    found = round_(preempted=70_000, waiting=20_000, on_core=5_000)
    slow = np.arange(1000) % 10 == 9
    excess = Spent([found]).excess(slow, ~slow)
    assert (excess.n, excess.others, excess.mostly) == (100, 900, "preempted")
    assert excess.parts_us["preempted"] == pytest.approx(70) and excess.parts_us["waiting"] == pytest.approx(20)
    assert excess.parts_us["on_core"] == pytest.approx(5, abs=0.1)
    assert sum(excess.parts_us.values()) == pytest.approx(excess.excess_us)
    json.dumps(excess.as_dict(), allow_nan=False)


@pytest.mark.random(tail=0, why="identity")
def test_the_parts_sum_to_the_excess_whatever_they_are(rng):
    rounds = []
    for _ in range(3):
        n = int(rng.integers(20, 60))
        latency_ns = rng.uniform(1e4, 1e6, n)
        off = latency_ns * rng.random(n)
        off_core = {"off_core_ns": off, "preempted_ns": off * rng.random(n), "late_ns": (latency_ns - off) / 2}
        starts = np.cumsum(rng.uniform(1e4, 1e6, n))
        warmup = np.arange(n) < 5
        rounds.append(Round(latency_ns, warmup, starts, off_core=off_core, switches=SWITCHES))
    slow = [rng.random(len(each.timed_ns)) < 0.3 for each in rounds]
    slow[0][0], slow[0][1] = True, False
    excess = Spent(rounds).excess(np.concatenate(slow), ~np.concatenate(slow))
    assert set(excess.parts_us) == {"late", "behind", "preempted", "waiting", "on_core"}
    pooled, chosen = np.concatenate([each.timed_ns for each in rounds]), np.concatenate(slow)
    assert excess.excess_us == pytest.approx((pooled[chosen].mean() - pooled[~chosen].mean()) / 1e3)
    assert sum(excess.parts_us.values()) == pytest.approx(excess.excess_us)


def test_a_call_that_is_late_is_told_from_one_behind_the_previous_call():
    """Due every 100 us: the second call wakes 30 us late, the third takes 180 us, so that the next is 80 us behind."""
    late, latency = np.array([0, 30_000, 0, 85_000, 0]), np.array([50_000, 80_000, 180_000, 140_000, 50_000])
    off = {"off_core_ns": np.zeros(5), "preempted_ns": np.zeros(5), "late_ns": late}
    found = parts.parts_of(Round.of(latency, np.arange(5) * 100_000, off_core=off))
    assert found["late"].tolist() == [0, 30_000, 0, 5_000, 0]
    assert found["behind"].tolist() == [0, 0, 0, 80_000, 0]
    assert found["on_core"].tolist() == [50_000, 50_000, 180_000, 55_000, 50_000]


def test_without_times_off_the_core_nothing_is_split_and_the_reason_is_stated():
    refused = replace(round_(on_core=90_000), off_core={}, switches=SWITCHES | REFUSED | {"ran": {}, "faults": {}})
    refused = replace(
        refused, blocks=[{**refused.blocks[0], "runnable_ns": 7_000}, {**refused.blocks[1], "runnable_ns": 0}]
    )
    slow = np.arange(1000) < 500
    excess = Spent([refused]).excess(slow, ~slow)
    assert list(excess.parts_us) == ["not_split"] and excess.seen == {"runnable_ns": (7_000, 0)}
    said(outliers_text(explain([refused])))
    mixed = Spent([round_(), refused]).excess(np.tile(slow, 2), np.tile(~slow, 2))
    assert list(mixed.parts_us) == ["not_split"]


def test_recordings_of_earlier_versions_say_nothing():
    before = Round.of(round_(on_core=90_000).latency_ns)
    found = explain([before])
    assert found.events.slowest is found.events.control is None and found.events.switches == ()
    said(outliers_text(found))
    verdict = judge([before], 150)
    assert verdict.outcome == "MISSED" and verdict.miss_excess is None


def test_counters_are_stated_where_they_were_higher():
    n = 1000
    first = np.arange(n) < n // 2
    found = round_()
    blocks = [{"rows": n // 2, "interrupts": 55, "cpu_khz": 2e6}, {"rows": n // 2, "interrupts": 40, "cpu_khz": 3e6}]
    faults = np.where(first, 2, 0)
    found = replace(found, blocks=blocks, causes={"minor_faults": faults, "major_faults": np.zeros(n, int)})
    excess = Spent([found]).excess(first, ~first)
    assert excess.seen == {"minor_faults": (2, 0), "interrupts": (55, 40), "cpu_khz": (2e6, 3e6)}
    assert Spent([found]).excess(~first, first).seen == {}
    found = replace(found, latency_ns=found.latency_ns + first * 50_000)
    said(outliers_text(explain([found])))


def test_the_control_run_has_the_same_parts():
    n = 500
    stalls = np.arange(n) % 50 == 0
    off = {"preempted_ns": stalls * 40_000, "off_core_ns": stalls * 45_000}
    found = replace(round_(), control_ns=100.0 + stalls * 50_000, control_off_core=off)
    excess = Spent.of_control([found]).slowest()
    assert excess.n == 10 and excess.excess_us == pytest.approx(50)
    expected = {"preempted": 40, "waiting": 5, "on_core": 5}
    assert excess.parts_us == pytest.approx(expected)
    assert Spent.of_control([round_()]).slowest() is None


def test_what_ran_is_pooled_over_recordings():
    other = SWITCHES | {"ran": {"kworker/0:1": RAN | {"times": 1, "shortest_ns": 5_000}, "sshd": RAN}}
    found = parts.ran([SWITCHES, other])
    assert found["kworker/0:1"] == {"times": 42, "shortest_ns": 5_000, "longest_ns": 310_000, "total_ns": 4_000_000}
    assert found["sshd"] == RAN


def test_outliers_say_what_slow_calls_spent_their_time_on():
    found = explain([replace(round_(preempted=90_000), control_ns=np.full(1000, 100.0))])
    slowest = found.events.slowest
    # Some are as slow as the tenth; of the others, 100 - n take 90 us longer too.
    assert slowest.n >= 10
    assert slowest.parts_us["preempted"] == pytest.approx(90 - 90 * (100 - slowest.n) / (1000 - slowest.n), abs=0.1)
    said(outliers_text(found))


@pytest.mark.parametrize("spent", [("preempted",), ("waiting",), ("on_core",), ("preempted", "waiting", "on_core")])
def test_a_missed_deadline_says_what_would_help(spent):
    """Nothing is recommended where no part is the main one."""
    found = round_(**dict.fromkeys(spent, 90_000))
    verdict = judge([found], 150)
    assert verdict.miss_excess.mostly == (spent[0] if len(spent) == 1 else None)
    assert judge([found], 1000).miss_excess is None
    said(verdict_text(verdict), verdict_line(verdict, "name"))


def test_if_all_calls_miss_their_whole_time_is_told():
    excess = judge([round_(preempted=40_000)], 10).miss_excess
    assert excess.others == 0 and excess.mostly == "on_core"
    assert excess.excess_us == pytest.approx(round_(preempted=40_000).latency_ns.mean() / 1e3)
