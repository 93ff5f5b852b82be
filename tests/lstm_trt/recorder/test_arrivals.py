"""When calls begin: closed, periodic, paused; the control run; what the command line makes of them."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lstm_trt.config.arrivals import SPINS_NS, Periodic, Spaced
from lstm_trt.config.configuration import TIERS, Configuration, Protocol
from lstm_trt.config.errors import RunFailed, StoreError, UsageError
from lstm_trt.config.shape import Grid, LstmShape
from lstm_trt.recorder import loop
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.loop import ClockPair, PeriodTooShort, check_clocks, ends, pilot, run_control
from lstm_trt.recorder.pool import Recorded, Seconds, WorkerPool, silence_limit_s
from lstm_trt.recorder.progress import Progress
from lstm_trt.recorder.report import SweepReport
from lstm_trt.recorder.sweep import default_rounds, order, run_sweep
from lstm_trt.store import consolidated, files, folders
from tests.conftest import ROOT
from tests.lstm_trt.recorder.test_loop import CountingSwitches, spin
from tests.lstm_trt.store.test_store import planted
from tests.support.trials import run_trials


def periodic(period_us: float = 1000, **more) -> Protocol:
    return Protocol(**{"arrival": "periodic", "period_us": period_us, "warmup": 5, **more})


# What is asked for, and its identity


def test_a_wait_is_that_of_the_arrival():
    asked = [Protocol(), periodic(1000), periodic(1000, wait="os"), Protocol(arrival="paused", pause_ms=100)]
    assert [item.wait for item in asked] == ["none", "spin", "os", "os"]
    assert periodic(1000) == periodic(1000.0, wait="spin")
    assert not {"period_us", "pause_ms", "for_s"} & Protocol().as_dict().keys()


@pytest.mark.parametrize(
    "fields",
    [
        {"arrival": "periodic", "period_us": True},
        {"arrival": "periodic", "period_us": "1000"},
        {"arrival": "periodic", "period_us": 1000, "wait": "none"},
        {"arrival": "paused", "pause_ms": 1, "wait": "none"},
        {"wait": "spin"},
        {"for_s": 0},
        {"for_s": 1e9},
        {"deadline_us": 1000},
        {"burst_length": 20},
        {"until": "tired", "deadline_us": 1000, "burst_length": 1},
    ],
)
def test_a_protocol_that_means_nothing(fields):
    with pytest.raises(UsageError):
        Protocol(**fields)


# The loops


def assert_never_early(columns) -> None:
    """Calls of at least 0.15 ms that are due each ms begin neither before that, nor before the last one has ended."""
    start, due, end = columns["start_ns"], columns["intended_ns"], ends(columns)
    assert (np.diff(due) >= 1_000_000).all() and (start >= due).all()
    assert (start[1:] >= end[:-1]).all() and (end - start >= 150_000).all()


@pytest.mark.parametrize("wait", Periodic.WAITS)
def test_a_call_is_due_each_period_and_never_early(wait, manual_clock):
    trials = run_trials(lambda: manual_clock.advance(150_000), periodic(1000, trials=150, wait=wait))
    columns = trials.columns
    assert_never_early(columns)
    start, due, latency = columns["start_ns"], columns["intended_ns"], columns["latency_ns"]
    assert len(due) == 155 and (columns["warmup"].sum(), len(trials.blocks)) == (5, 1)
    assert (np.diff(due) == 1_000_000).all() and due[0] >= 0 and (latency < 300_000).all()
    assert trials.inside_ns == (due + latency - start).sum() and trials.warnings == []
    assert trials.self_check["outside_share"] > 0.5


@pytest.mark.parametrize("wait", Periodic.WAITS)
def test_no_call_is_early_by_this_machines_clocks(wait):
    assert_never_early(run_trials(lambda: spin(150_000), periodic(1000, trials=150, wait=wait)).columns)


def test_the_operating_system_wakes_later_than_a_loop_that_spins(manual_clock):
    late = {}
    for wait in ("os", "sleep", "spin"):
        columns = run_trials(lambda: None, periodic(500, trials=300, wait=wait)).columns
        late[wait] = columns["start_ns"] - columns["intended_ns"]
    assert (late["os"] >= manual_clock.WAKE_NS - manual_clock.READ_NS).all()
    assert all((late[wait] >= 0).all() and (late[wait] <= manual_clock.READ_NS).all() for wait in ("sleep", "spin"))


@pytest.mark.parametrize("wait", sorted(SPINS_NS))
@pytest.mark.parametrize("ahead_ns", [-1000, 0, 1, 50_000, 250_000, 2_000_000])
def test_waiting_ends_no_earlier_than_it_should(wait, ahead_ns):
    for _ in range(20):
        arrivals = periodic(1000, wait=wait).arrivals()
        arrivals._ahead_ns = ahead_ns
        arrivals.begin()
        started = arrivals.start()
        assert arrivals.due_ns <= started <= time.perf_counter_ns()


def lindley(due, service, slack):
    """How late each call begins where they are served in turn, and each needs `slack` to begin (Lindley, 1952)."""
    late = np.zeros(len(due), dtype=np.int64)
    for row in range(len(due)):
        backlog = due[row - 1] + late[row - 1] + service[row - 1] - due[row] if row else 0
        late[row] = max(0, backlog) + slack[row]
    return late


def test_the_calls_after_a_stall_are_late_as_lindleys_recursion_says(manual_clock):
    durations_ns = [300_000] * 200
    durations_ns[30] = 40_000_000
    remaining = iter(durations_ns)
    columns = run_trials(lambda: manual_clock.advance(next(remaining)), periodic(1000, trials=200, warmup=0)).columns
    start, due, latency = columns["start_ns"], columns["intended_ns"], columns["latency_ns"]
    end = due + latency
    service, ready = end - start, np.maximum(due, np.concatenate([due[:1], end[:-1]]))
    slack = start - ready  # the loop's own work, and what the machine did in it
    assert (slack >= 0).all() and (slack <= 2 * manual_clock.READ_NS).all()
    late = start - due
    assert (lindley(due, service, slack) == late).all()
    without_slack = lindley(due, service, np.zeros_like(slack))
    assert (late >= without_slack).all() and (late - without_slack <= np.cumsum(slack)).all()
    # No coordinated omission: 40 ms late, and 0.7 ms less each period, so about 56 calls tell of it.
    assert latency[30] >= 40_000_000
    assert (latency[31:66] > 14_000_000).all() and (np.diff(latency[31:66]) < 0).all()
    assert (latency[31:] > 1_000_000).sum() == pytest.approx(56, abs=2)


def test_reading_the_machine_makes_no_call_late(manual_clock):
    def slow_reading():
        manual_clock.advance(50_000_000)
        return {}

    trials = run_trials(lambda: None, periodic(1000, trials=200, block_trials=20, settle=1), read_machine=slow_reading)
    firsts = [block["first_row"] for block in trials.blocks]
    due, start = trials.columns["intended_ns"], trials.columns["start_ns"]
    assert len(firsts) == 10
    assert (start - due <= manual_clock.READ_NS).all()
    assert (due[firsts[1:]] - due[np.array(firsts[1:]) - 1] >= 50_000_000).all()  # the schedule stood still


def test_a_backlog_outlives_the_reading_of_the_machine(manual_clock):
    trials = run_trials(
        lambda: manual_clock.advance(1_500_000), periodic(1000, trials=100, warmup=0, block_trials=10, settle=0)
    )
    latency = trials.columns["latency_ns"]
    assert len(trials.blocks) == 10
    assert (latency >= 1_500_000 + 500_000 * np.arange(100)).all()
    assert "exceeds the period" in trials.warnings[0]


def test_a_pause_comes_before_each_call_and_is_not_counted(manual_clock):
    trials = run_trials(
        lambda: manual_clock.advance(200_000), Protocol(arrival="paused", pause_ms=3, trials=40, warmup=2)
    )
    start, latency = trials.columns["start_ns"], trials.columns["latency_ns"]
    assert "intended_ns" not in trials.columns and start[0] >= 3_000_000
    assert (start[1:] - (start + latency)[:-1] >= 3_000_000).all()
    assert (latency == 200_000 + manual_clock.READ_NS).all()
    assert trials.warnings == []


def test_blocks_of_calls_with_gaps_are_not_mostly_settling(manual_clock):
    trials = run_trials(lambda: None, Protocol(arrival="paused", pause_ms=2, trials=100, warmup=1, block_ms=1))
    assert len(trials.blocks) <= 4


@pytest.mark.parametrize(
    ("start", "due", "latency", "words"),
    [
        ([10, 20], [10, 21], [5, 5], "before it was due"),
        ([10, 14], [10, 12], [5, 5], "previous"),
        ([10, 20], [10, 20], [5, -1], "previous"),
        ([10, 30], [2, 4], [20, 20], "previous"),
        ([10, 20], [10, 15], [5, 990], "outside"),
        ([10, 40, 60], [10, 20, 30], [30, 40, 50], None),  # calls that wait for one another
    ],
)
def test_the_self_check_of_calls_that_were_due(start, due, latency, words):
    columns = {"start_ns": np.array(start), "intended_ns": np.array(due), "latency_ns": np.array(latency)}
    with pytest.raises(RunFailed, match=words) if words else nullcontext():
        check_clocks(columns, ClockPair(0, 0), ClockPair(1000, 1000))
    assert ends(columns).tolist() == np.add(due, latency).tolist()


def test_a_period_below_the_median_is_refused_by_the_pilot(manual_clock):
    with pytest.raises(PeriodTooShort):
        pilot(lambda: manual_clock.advance(300_000), periodic(100))
    told = pilot(lambda: manual_clock.advance(100_000), periodic(110))
    assert told == {"calls": 100, "median_us": 101.0}
    told = pilot(lambda: manual_clock.advance(400_000_000), periodic(1_000_000))  # few calls where they take long
    assert told["calls"] == 3


def test_a_worker_may_be_silent_for_the_first_calls():
    assert silence_limit_s(Protocol()) == 600
    assert silence_limit_s(Protocol(arrival="paused", pause_ms=3_600_000, warmup=10)) > 600 + 10 * 3600


# Control runs


@pytest.mark.parametrize(
    ("protocol", "spacing_ns", "most"),
    [
        (Protocol(), 200_000, None),
        (periodic(300), 300_000, 300_000),
        (periodic(300, wait="sleep"), 300_000, 300_000),
        (periodic(300, wait="os"), 300_000, 300_000),
        (Protocol(arrival="paused", pause_ms=0.5), 700_000, None),
    ],
)
def test_the_control_run_of_an_empty_step(protocol, spacing_ns, most, manual_clock):
    columns, told = run_control(protocol, 400, 200_000.0)
    start, latency = columns["start_ns"], columns["latency_ns"]
    assert len(start) == len(latency) == told["calls"] == 400
    assert (latency > 0).all() and told["max_us"] == latency.max() / 1e3
    assert 1e3 * told["spacing_us"] + 1e9 * protocol.gap_s * (most is None) == spacing_ns and start[0] >= 200_000
    assert (np.diff(start) >= spacing_ns).all() and (most is None or (np.diff(start) <= most).all())
    assert told["wait"] != "spin" or (latency <= 2 * manual_clock.READ_NS).all()
    json.dumps(told, allow_nan=False)


@pytest.mark.parametrize(("protocol", "blocks"), [(periodic(100, wait="os"), 3), (periodic(100), 1), (Protocol(), 1)])
def test_a_control_run_that_sleeps_is_read_before_the_ring_is_full(monkeypatch, manual_clock, protocol, blocks):
    monkeypatch.setattr(loop, "MOST_SLEEPS", 30)
    watched = CountingSwitches()
    columns, told = run_control(protocol, 80, 50_000.0, watched)
    assert len(watched.blocks) == watched.discarded == blocks and told["calls"] == 80
    assert columns["off_core_ns"].tolist() == [7] * 80 and (np.diff(columns["start_ns"]) > 0).all()


@pytest.mark.parametrize(("protocol", "late"), [(Protocol(), 1), (periodic(1000), 20)])
def test_a_stall_of_the_machine_shows_in_the_control_run(monkeypatch, manual_clock, protocol, late):
    durations_ns = iter([0] * 50 + [30_000_000] + [0] * 49)
    monkeypatch.setattr(loop, "_empty", lambda: manual_clock.advance(next(durations_ns)))
    latency = run_control(protocol, 100, 100_000.0)[0]["latency_ns"]
    assert latency[50] >= 30_000_000
    # With a period the calls that were due meanwhile are late as well; in a closed loop the next one waits its turn.
    assert (latency > 8_000_000).sum() >= late and (latency[:50] < 5_000_000).all() and latency[-1] < 5_000_000


@pytest.mark.parametrize(
    ("protocol", "median_ns", "calls"),
    [
        (Protocol(arrival="paused", pause_ms=3_600_000), 1e5, 1),
        (Protocol(arrival="paused", pause_ms=100), 1e5, 599),
        (periodic(1_000_000), 1e5, 60),
        (Protocol(), 1e9, 60),
        (Protocol(), 1e5, 1000),
        (Protocol(), 0.0, 1000),
    ],
)
def test_a_control_run_takes_a_minute_at_most(monkeypatch, protocol, median_ns, calls):
    planned = []

    class PlannedBlock(loop.Block):
        def __init__(self, calls, arrivals):
            planned.append((calls, arrivals.spacing_ns))
            super().__init__(1, Spaced(1))

        def run(self, step, count, who, budget_ns):
            return super().run(step, 1, who, budget_ns)

    monkeypatch.setattr(loop, "Block", PlannedBlock)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    run_control(protocol, 1000, median_ns)
    ((count, spacing_ns),) = planned
    assert count == calls and spacing_ns >= loop.LEAST_SPACING_NS


def test_the_control_run_is_kept_wherever_recordings_go(tmp_path):
    noise = {"start_ns": np.arange(1, 13) * 1000, "latency_ns": np.arange(12) + 100}
    off_core = {"preempted_ns": np.arange(12), "off_core_ns": np.arange(12) * 2}
    recordings = [
        replace(planted(8 + place), control=control) for place, control in enumerate([noise | off_core, None, noise])
    ]
    for recording in recordings:
        files.write(recording, tmp_path)
    consolidated.consolidate(folders.read_many(tmp_path), tmp_path / ".." / tmp_path.name)
    for path in (tmp_path, tmp_path / "trials.parquet"):
        for columns in (None, ["latency_ns", "warmup"]):
            back = {item.configuration.id: item for item in folders.read_many(path, columns)}
            for recording in recordings:
                found = back[recording.configuration.id]
                np.testing.assert_equal(found.control, recording.control)
                assert columns is None or sorted(found.columns) == columns
    for broken in (
        {**noise, "start_ns": np.arange(3)},
        {name: np.arange(21) for name in noise},
        {**noise, "off_core_ns": np.arange(3)},
        off_core,
    ):
        with pytest.raises(StoreError):
            files.write(replace(planted(11), control=broken), tmp_path)
    with pytest.raises(UsageError):
        next(folders.read_many(tmp_path, ["colour"]))


def test_recordings_from_before_have_no_control_run_and_nothing_prepared():
    recording = next(iter(folders.read_many(ROOT / "data" / "epyc" / "near")))
    assert recording.control is None and "prepare_ns" not in recording.columns
    assert "prepare" not in recording.configuration.as_dict()["options"]


# For real


@pytest.mark.parametrize(
    "arrival", ["periodic --period-us 2000", pytest.param("paused --pause-ms 2", marks=pytest.mark.heavy)]
)
def test_a_recording_for_real(tmp_path, typed, arrival):
    line = f"record --layers 1 --hidden 8 --sequence 4 --arrival {arrival} --trials 50 --out {{}}"
    answer = typed(f"{line} --format json", tmp_path)
    recording = files.read(Path(answer["path"]))
    start, due = recording.columns["start_ns"], recording.columns.get("intended_ns")
    told, protocol = recording.provenance["control"], recording.configuration.protocol
    if protocol.arrival == "periodic":
        assert protocol.wait == "spin" and (start >= due).all() and told["spacing_us"] == 2000
        assert 0 < recording.provenance["pilot"]["median_us"] < 2000
    else:
        assert due is None and (start[1:] - ends(recording.columns)[:-1] >= 2_000_000).all() and told["pause_ms"] == 2
    assert answer["control"] == told and (told["arrival"], told["calls"]) == (protocol.arrival, 50)
    assert len(recording.control["latency_ns"]) == 50
    assert "control run of an empty step: max " in typed(line, tmp_path)
    text = typed(f"{line} --no-control", tmp_path)
    without = files.read(tmp_path / Path(text.split()[-1]).name)
    assert without.control is without.provenance["control"] is None and "control run" not in text


@pytest.mark.heavy
def test_a_period_that_is_too_short_is_refused_and_in_a_sweep_a_row(tmp_path, typed):
    """A mistyped period leaves no row that a later verdict of the folder would count; a sweep has other networks."""
    arguments = "--layers 1 --hidden 8 --sequence 4 --arrival periodic --period-us 1 --trials 20"
    typed(f"record {arguments} --out {{}}", tmp_path / "a", status=2)
    assert not [path for path in (tmp_path / "a").iterdir() if not path.name.endswith(".lock")]
    typed(f"sweep {arguments} --quiet --out {{}}", tmp_path / "b", status=1)
    (failure,) = folders.read_many(tmp_path / "b")
    assert failure.stage == "run" and "the period of" in failure.reason


# Rounds, tiers, time left


def test_rounds_by_default_are_three_from_the_compare_tier_on(tmp_path, monkeypatch):
    trials = (1, TIERS["look"], 9_999, TIERS["compare"], TIERS["certify"])
    assert list(map(default_rounds, trials)) == [1, 1, 1, 3, 3]
    asked = []

    def record(pool: WorkerPool, configuration: Configuration, round: int, *others: object, **how: object) -> Recorded:
        asked.append(round)
        return Recorded(tmp_path, None, Seconds())

    monkeypatch.setattr(WorkerPool, "record_configuration", record)
    configuration = describe(LstmShape(1, 4, 2), "onnxruntime", Protocol(trials=10_000))
    assert run_sweep([configuration], tmp_path, show_progress=False).recorded == 3
    assert asked == [0, 1, 2]


@pytest.mark.heavy
@pytest.mark.parametrize(("asked", "trials"), [("look", 1000), ("compare --trials 10000", 10_000)])
def test_a_tier_names_the_number_of_trials(tmp_path, typed, asked, trials):
    line = f"record --layers 1 --hidden 8 --sequence 4 --tier {asked} --format json --out {{}}"
    answer = typed(line, tmp_path)
    assert answer["summary"]["n"] == trials and answer["nan_reaches_output"] is False


class Sweep:
    """Recordings that take as long as a test says, in the order of a sweep; the clock is `time.monotonic`."""

    def __init__(self, monkeypatch, took_s: dict[Configuration, float]) -> None:
        self.now_s, self.took_s = 100.0, took_s
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self.progress = Progress(list(took_s), SweepReport(total=len(took_s)), show=False)

    def estimates(self) -> list[float]:
        """After each recording but the last the time left that the progress states, by that which is left."""
        left_s, found = sum(self.took_s.values()), []
        for configuration, took_s in list(self.took_s.items())[:-1]:
            self.now_s += took_s
            left_s -= took_s
            self.progress.end(configuration, Seconds(timing=took_s))
            found.append(self.progress.seconds_left() / left_s)
        return found


def configured(protocol: Protocol, hidden: int = 8) -> Configuration:
    return Configuration(LstmShape(1, hidden, 4), "onnxruntime", "1", "a processor", protocol=protocol)


@pytest.mark.parametrize("columns", [60, 200])
def test_the_time_left_fits_a_narrow_terminal(monkeypatch, columns):
    reads, writes = os.openpty()
    termios.tcsetwinsize(writes, (24, columns))
    monkeypatch.setattr(sys, "stderr", os.fdopen(writes, "w"))
    plan = [Configuration(LstmShape(2, 200, 128), "onnxruntime", "1", "a processor", protocol=periodic(1e6, trials=9))]
    with Progress(plan * 600, SweepReport(total=1000, done_before=400), show=True) as progress:
        progress._report.add(plan[0], Recorded(Path(), None, Seconds()))
        progress._began -= 15.0  # one network at a time
        progress.end(plan[0], Seconds(preparing=1.0, timing=14.0))
        progress.begin(plan[0], 1)
        shown = b""
        while b" left" not in shown.split(b"\r")[-1] and select.select([reads], [], [], 10)[0]:
            shown += os.read(reads, 100_000)  # a terminal hands over what was written a part at a time
        last = shown.decode().split("\r")[-1]
    assert len(last) <= columns and "401/1000" in last and "about 2 h 29 min left" in last
    assert ("2x200-s128-b1" in last) == (columns == 200)


@pytest.mark.parametrize("around_s", [0.2, 1.0, 20.0])
@pytest.mark.parametrize(
    ("protocol", "calls_s"),
    [
        (Protocol(), 0.1),
        (Protocol(), 30.0),
        (periodic(10_000, trials=995), 10.0),
        (Protocol(arrival="paused", pause_ms=10, trials=990, warmup=10), 11.0),  # calls of about 1 ms
        (Protocol(arrival="paused", pause_ms=1, trials=990, warmup=10), 11.0),  # of about 10 ms
    ],
)
def test_the_time_left_of_recordings_that_are_alike(monkeypatch, protocol, calls_s, around_s):
    took_s = {configured(protocol, hidden=hidden): around_s + calls_s for hidden in range(8, 12)}
    assert Sweep(monkeypatch, took_s).estimates() == pytest.approx([1.0] * 3, rel=0.01)


def test_the_time_left_knows_that_another_period_takes_another_time(monkeypatch):
    took_s = {configured(periodic(1000 * ms, trials=995)): 1.0 + ms for ms in (10, 50)}
    (estimate,) = Sweep(monkeypatch, took_s).estimates()
    assert 0.5 < estimate < 2


@pytest.mark.random(tail=1e-5, why="measured under 500 seeds: 4.9 and more of the logarithm of the ratio")
def test_the_time_left_of_networks_of_unlike_sizes_is_within_a_factor_of_two_from_a_third_on(monkeypatch, rng):
    """Each runtime has an overhead of a call and a speed of its own; the largest network does 4 000 times the least."""
    runtimes = {"fast": (1, 5e-6, 60e9), "usual": (2, 20e-6, 10e9), "slow": (8, 300e-6, 2e9)}
    grid = Grid(layers=(1, 2), hidden=(16, 32, 64, 128, 256, 512), sequence=(16, 32, 64, 128), batch=(1,))
    took_s = {}
    for shape in grid:
        for runtime, (around_s, call_s, flops_per_s) in runtimes.items():
            configuration = Configuration(shape, runtime, "1", "a processor")
            calls = configuration.protocol.trials + configuration.protocol.warmup
            noise = rng.lognormal(0, 0.2)
            took_s[configuration] = noise * (around_s + calls * (call_s + shape.flops / flops_per_s))
    assert max(took_s.values()) > 100 * min(took_s.values())
    (shuffled,) = order(took_s, 1, seed=int(rng.integers(2**32)))
    estimates = Sweep(monkeypatch, {configuration: took_s[configuration] for configuration in shuffled}).estimates()
    # The last ones may all be of the fastest or slowest runtime.
    from_a_third_on = estimates[len(estimates) // 3 : len(estimates) * 9 // 10]
    assert min(from_a_third_on) > 0.5 and max(from_a_third_on) < 2
