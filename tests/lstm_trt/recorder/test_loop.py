"""The timed loop against steps whose behaviour is known."""

from __future__ import annotations

import gc
import itertools
import mmap
import time
from contextlib import nullcontext

import numpy as np
import pytest

from lstm_trt.config.configuration import Protocol
from lstm_trt.config.errors import RunFailed
from lstm_trt.recorder.loop import ClockPair, check_clocks, clock_pair
from tests.support.trials import NoSwitches, run_trials


def spin(duration_ns: int) -> None:
    end = time.perf_counter_ns() + duration_ns
    while time.perf_counter_ns() < end:
        pass


def test_every_trial_is_kept_in_order_and_warm_up_is_marked():
    calls = []
    trials = run_trials(lambda: calls.append(None), Protocol(trials=300, warmup=7, block_trials=100, settle=2))
    columns = trials.columns
    assert len(calls) == len(columns["latency_ns"]) == 300 + 7 + 2 * 2
    assert (~columns["warmup"]).sum() == 300
    marked = np.flatnonzero(columns["warmup"])
    assert marked.tolist() == [*range(7), 107, 108, 209, 210]
    assert [(b["first_row"], b["rows"]) for b in trials.blocks] == [(0, 107), (107, 102), (209, 102)]
    assert (np.diff(columns["start_ns"]) >= columns["latency_ns"][:-1]).all()
    assert columns["start_ns"][0] >= 0


@pytest.mark.parametrize(("trials", "warmup"), [(1, 0), (1, 5), (2, 0)])
def test_very_short_recordings(trials, warmup):
    recorded = run_trials(lambda: None, Protocol(trials=trials, warmup=warmup))
    assert recorded.columns["warmup"].tolist() == [True] * warmup + [False] * trials


def test_a_late_trial_is_late_in_its_own_row(manual_clock):
    count = 0

    def step():
        nonlocal count
        count += 1
        manual_clock.advance(3_000_000 if count == 41 else 20_000)

    latency = run_trials(step, Protocol(trials=80, warmup=10)).columns["latency_ns"]
    read_ns = manual_clock.READ_NS
    assert latency.tolist() == [3_000_000 + read_ns if row == 40 else 20_000 + read_ns for row in range(90)]


def test_a_trial_takes_at_least_as_long_as_its_step():
    latency = run_trials(lambda: spin(20_000), Protocol(trials=80, warmup=10)).columns["latency_ns"]
    assert (latency >= 20_000).all()


def test_page_faults_are_counted_in_the_trial_that_made_them():
    pages = iter([0] * 20 + [64] + [0] * 19)

    def step():
        count = next(pages)
        with mmap.mmap(-1, 64 * mmap.PAGESIZE) as fresh:
            for page in range(count):
                fresh[page * mmap.PAGESIZE] = 1

    columns = run_trials(step, Protocol(trials=40, warmup=0)).columns
    assert columns["minor_faults"][20] >= 64 and np.median(columns["minor_faults"]) == 0
    assert (columns["involuntary_switches"] >= 0).all() and (columns["major_faults"] >= 0).all()


class CountingSwitches(NoSwitches):
    """Each call was off its core for 7 ns; a block has place for the switches of 40 calls."""

    def __init__(self) -> None:
        self.discarded, self.blocks = 0, []

    def discard(self) -> None:
        self.discarded += 1

    def room(self, trials: int) -> int:
        return 40

    def take(self, start_ns, end_ns) -> dict:
        self.blocks.append((start_ns, end_ns))
        return {"off_core_ns": np.full(len(start_ns), 7)}


def test_times_off_the_core_are_read_after_each_block_which_has_as_many_trials_as_fit():
    watched = CountingSwitches()
    trials = run_trials(lambda: spin(1_000), Protocol(trials=100, warmup=5, settle=2), switches=watched)
    assert [block["rows"] for block in trials.blocks] == [45, 42, 22] and watched.discarded == 3
    assert trials.columns["off_core_ns"].tolist() == [7] * 109
    starts, ends = (np.concatenate(times) for times in zip(*watched.blocks, strict=True))
    assert (np.diff(starts) > 0).all() and (ends - starts == trials.columns["latency_ns"]).all()


def test_blocks_end_by_time_too_and_carry_what_changed():
    readings = iter(range(1000))
    trials = run_trials(
        lambda: spin(1_000_000),
        Protocol(trials=60, warmup=0, block_trials=1000, block_ms=10, settle=1),
        read_machine=lambda: {"steal_ns": next(readings)},
    )
    assert len(trials.blocks) >= 4
    assert all(block["steal_ns"] == 1 for block in trials.blocks)
    assert sum(block["rows"] for block in trials.blocks) == len(trials.columns["latency_ns"])


def test_device_clocks_must_cover_every_row():
    given = []

    def device_times():
        given.append(None)
        return {"compute_ns": np.full(50 if len(given) == 1 else 51, 5)}

    protocol = Protocol(trials=90, warmup=0, block_trials=50, settle=5)
    with pytest.raises(RunFailed, match="51 values of compute_ns for 45 trials"):
        run_trials(lambda: None, protocol, device_times=device_times)


def test_time_outside_the_trials_is_reported_and_warned_of(manual_clock):
    short = run_trials(lambda: None, Protocol(trials=2000))
    assert short.self_check["outside_share"] > 0.2 and "of the time passed between calls" in short.warnings[0]
    long = run_trials(lambda: manual_clock.advance(500_000), Protocol(trials=100))
    assert long.self_check["outside_share"] < 0.2 and long.warnings == []
    assert long.inside_ns == long.columns["latency_ns"].sum() <= long.self_check["loop_ns"]


def columns(start, latency):
    return {"start_ns": np.array(start), "latency_ns": np.array(latency)}


@pytest.mark.parametrize(
    ("start", "latency", "first_ns", "last", "words"),
    [
        ([10, 20], [5, 5], 0, (1_000_000_000, 1_002_000_000), "CLOCK_MONOTONIC_RAW"),
        ([10, 12], [5, 5], 0, (1000, 1000), "previous"),
        ([20, 10], [5, 5], 0, (1000, 1000), "previous"),
        ([10, 20], [5, -5], 0, (1000, 1000), "previous"),
        ([10, 20], [5, 5], 15, (1000, 1000), "outside"),
        ([10, 20], [5, 5000], 0, (1000, 1000), "outside"),
    ],
)
def test_the_self_check_finds_clocks_and_stamps_that_lie(start, latency, first_ns, last, words):
    with pytest.raises(RunFailed, match=words):
        check_clocks(columns(start, latency), ClockPair(first_ns, first_ns), ClockPair(*last))


def test_clocks_that_are_slow_to_read_may_differ_by_as_much():
    given, first = columns([10, 20], [5, 5]), ClockPair(0, 0, 40_000)
    check_clocks(given, first, ClockPair(100_000, 140_000, 40_000))
    with pytest.raises(RunFailed, match="CLOCK_MONOTONIC_RAW"):
        check_clocks(given, first, ClockPair(100_000, 140_000, 10_000))


def test_the_self_check_passes_what_is_right_and_says_by_how_much():
    told = check_clocks(columns([10, 20], [5, 5]), ClockPair(0, 0), ClockPair(1_000_000_000, 1_000_500_000))
    assert told["clocks_differ_by"] == pytest.approx(-0.0005, rel=1e-3)


def test_the_two_clocks_are_read_at_one_moment():
    # A pair is off by at most half its bracket, and beyond that the clocks may drift by 0.1 %.
    pairs = [clock_pair() for _ in range(200)]
    for one, other in itertools.pairwise(pairs):
        elapsed_ns = other.raw_ns - one.raw_ns
        differ_ns = abs(other.monotonic_ns - one.monotonic_ns - elapsed_ns)
        assert differ_ns <= (one.bracket_ns + other.bracket_ns) / 2 + 1e-3 * elapsed_ns + 2


def test_of_several_readings_the_narrowest_counts(monkeypatch):
    readings = iter([0, 90_000, 100_000, 100_900])
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: next(readings))
    monkeypatch.setattr(time, "perf_counter_ns", iter([7, 8]).__next__)
    assert clock_pair() == ClockPair(8, 100_450, 900)


@pytest.mark.parametrize("was_on", [True, False])
@pytest.mark.parametrize("error", [None, ValueError])
def test_the_collector_is_off_inside_and_as_before_afterwards(was_on, error):
    seen = []

    def step():
        seen.append(gc.isenabled())
        if error:
            raise error

    gc.unfreeze()  # other tests of this process freeze
    (gc.enable if was_on else gc.disable)()
    try:
        with pytest.raises(error) if error else nullcontext():
            run_trials(step, Protocol(trials=5, warmup=0))
        assert not any(seen) and gc.isenabled() is was_on and gc.get_freeze_count() == 0
    finally:
        gc.enable()
        gc.freeze()  # as conftest.py
