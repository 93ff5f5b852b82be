"""`--prepare`: what is computed between the steps of a stream, beside their latency."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

import lstm_trt
from lstm_judge.read.labels import record_command
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import ParityFailed, RunFailed, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.loop import ClockPair, PeriodTooShort, check_clocks, pilot
from lstm_trt.recorder.parity import check_parity
from lstm_trt.recorder.run import PART_S
from lstm_trt.recorder.soak import soak
from lstm_trt.runtimes import load_runtime
from lstm_trt.runtimes.base import Gate, PreparedStep
from lstm_trt.store import consolidated, files, folders
from lstm_trt.store.schema import Recording
from tests.lstm_trt.recorder.test_arrivals import periodic
from tests.lstm_trt.recorder.test_stream import prepared
from tests.lstm_trt.store.test_store import planted, same
from tests.support import own_networks
from tests.support.trials import run_trials

PREPARED = Options(prepare=True)
STREAM = LstmShape(2, 16, 1)

needs_c = pytest.mark.skipif(not load_runtime("c").availability("cpu").ready, reason="needs a C compiler")


# The loop


def test_what_is_prepared_has_a_column_of_its_own_and_is_not_in_the_latency(manual_clock):
    calls = []

    def step():
        calls.append("step")
        manual_clock.advance(20_000)

    def prepare_next():
        calls.append("prepare")
        manual_clock.advance(10_000 * len(calls))

    protocol = periodic(5_000, trials=90, warmup=5, block_trials=50, settle=2)
    trials = run_trials(step, protocol, prepare_next=prepare_next)
    assert calls == ["step", "prepare"] * 97  # those of warm-up, too
    prepare_ns = trials.columns["prepare_ns"]
    assert prepare_ns.tolist() == [10_000 * number + manual_clock.READ_NS for number in range(2, 196, 2)]
    assert (trials.columns["latency_ns"] <= 20_000 + 3 * manual_clock.READ_NS).all()
    assert trials.median_ns == 20_000 + manual_clock.READ_NS and trials.warnings == []
    taken_ns = trials.columns["latency_ns"] - (trials.columns["start_ns"] - trials.columns["intended_ns"])
    assert trials.inside_ns == taken_ns.sum() + prepare_ns.sum()
    assert "prepare_ns" not in run_trials(step, protocol).columns


def test_a_period_that_holds_the_step_but_not_both_is_too_short(manual_clock):
    def step():
        manual_clock.advance(60_000)

    protocol = periodic(100, trials=50, warmup=0)
    assert pilot(step, protocol)["median_us"] == 61
    with pytest.raises(PeriodTooShort, match="median of step and prepare_next of 121"):
        pilot(step, protocol, step)
    # Where the pilot was right and the loop takes longer, calls are late, and a warning counts both.
    assert run_trials(step, protocol).warnings == []
    late = run_trials(step, protocol, prepare_next=step)
    assert "exceeds the period of 100 us" in late.warnings[0]
    assert (np.diff(late.columns["latency_ns"]) >= 20_000).all()
    assert pilot(step, periodic(130), step)["median_us"] == 121
    assert run_trials(step, periodic(130, trials=50), prepare_next=step).warnings == []


@pytest.mark.parametrize(("prepare_ns", "right"), [([5, 975], True), ([6, 0], False), ([5, 976], False)])
def test_the_self_check_counts_what_is_prepared(prepare_ns, right):
    times = {"start_ns": [0, 15], "latency_ns": [10, 10], "prepare_ns": prepare_ns}
    columns = {name: np.array(values) for name, values in times.items()}
    with nullcontext() if right else pytest.raises(RunFailed):
        assert check_clocks(columns, ClockPair(0, 0), ClockPair(1000, 1000))["loop_ns"] == 1000


# Parity


class Sums(PreparedStep):
    """Adds its inputs up; prepares the sum so far, multiplied by `factor`."""

    def __init__(self, factor: float | None) -> None:
        self.factor = 1.0 if factor is None else factor
        self.prepared = 0
        if factor is not None:
            self.prepare_next = self.prepare
        self.reset()

    def reset(self):
        self.sum = self.known = np.zeros(3)

    def prepare(self):
        self.known = self.factor * self.sum
        self.prepared += 1

    def load_inputs(self, inputs):
        self.inputs = inputs["x"]

    def step(self):
        self.sum = self.known = self.known + self.inputs

    def outputs(self):
        return {"y": self.sum}


@pytest.mark.random(tail=0, why="identity")
def test_parity_is_that_of_prepared_steps(rng):
    values = rng.standard_normal((8, 3))
    gate = Gate(tuple({"x": each} for each in values), {"y": np.cumsum(values, 0)}, 0, every=True)
    configuration = Configuration(STREAM, "c", "1", "a device")
    for step in (Sums(None), right := Sums(1.0)):
        assert check_parity(step, configuration, gate)["error"] == 0
    assert right.prepared == len(values)
    with pytest.raises(ParityFailed):
        check_parity(Sums(1.001), configuration, gate)


# The configuration


def test_python_refuses_the_same():
    for protocol, mode in ((Protocol(), "stream"), (periodic(1000), "forward")):
        with pytest.raises(UsageError):
            describe(STREAM, "c", protocol, PREPARED, mode, anywhere=True)
    assert describe(STREAM, "c", periodic(1000), PREPARED, "stream", anywhere=True).options.prepare


# Recordings


def prepared_and_not(folder, rows: int = 20) -> list[Recording]:
    """A recording that is prepared, and one that is not, in a folder."""
    usual = planted(8, rows=rows)
    asked = planted(8, rows=rows, prepare_ns=np.arange(rows))
    asked.provenance["prepare_us"] = 1.25
    asked = replace(asked, configuration=replace(usual.configuration, options=PREPARED))
    for recording in (asked, usual):
        files.write(recording, folder)
    return [asked, usual]


def test_the_column_is_kept_wherever_recordings_go(tmp_path):
    made = prepared_and_not(tmp_path)
    for _ in ("files", "tables"):
        for columns in (None, ["trial", "prepare_ns"]):
            back = {item.configuration.id: item for item in folders.read_many(tmp_path, columns)}
            for item in made:
                found = back[item.configuration.id]
                if columns:
                    assert found.columns.keys() == set(columns) & item.columns.keys()
                else:
                    assert same(found, item)
        frame = lstm_trt.summarize(lstm_trt.load(tmp_path)).frame
        assert sorted(frame["prepare_us"].fillna(0)) == [0, 1.25]
        consolidated.consolidate(folders.read_many(tmp_path), tmp_path)


def test_what_is_judged_is_named_prepared(tmp_path):
    prepared_and_not(tmp_path, rows=200)
    runs = lstm_trt.load(tmp_path)
    header, *rows = [line for line in str(lstm_trt.summarize(runs)).splitlines() if "1x8" in line or " step " in line]
    assert "prepare us" in header
    said = [{"prepared", "unprepared", "1.25"}.intersection(row.split()) for row in rows]
    assert sorted(said, key=len) == [{"unprepared"}, {"prepared", "1.25"}]
    assert str(lstm_trt.verdict(runs, deadline_us=100)).count("onnxruntime, prepared") == 1
    assert len(runs.where(prepare="yes")) == 1


@needs_c
def test_generated_code_has_it_where_it_is_asked_for(tmp_path):
    configuration, request, gate = prepared(STREAM, "c", tmp_path)
    step = load_runtime("c").prepare(request)
    assert step.prepare_next is None
    step.close()
    step = load_runtime("c").prepare(replace(request, options=replace(request.options, prepare=True)))
    assert 0 < check_parity(step, configuration, gate)["error"] < 2e-6
    step.close()
    assert step.prepare_next is None


@needs_c
@pytest.mark.parametrize(
    "precision", ["fp32", pytest.param("bf16", marks=pytest.mark.heavy), pytest.param("int8", marks=pytest.mark.heavy)]
)
def test_a_prepared_recording_for_real(tmp_path, precision):
    protocol, options = periodic(2000, trials=100, wait="os"), replace(PREPARED, precision=precision)
    recording = lstm_trt.record(STREAM, "c", protocol, options, out=tmp_path, mode="stream")
    (stored,) = folders.read_many(tmp_path)
    assert same(stored, recording)
    columns, told = stored.columns, stored.provenance
    prepare_ns = columns["prepare_ns"]
    assert (prepare_ns > 0).all() and told["prepare_us"] == np.median(prepare_ns[~columns["warmup"]]) / 1e3
    assert told["parity"]["not_checked"] is None and told["parity"]["error"] > 0 and told["pilot"]["median_us"] > 0
    end = columns["intended_ns"] + columns["latency_ns"] + prepare_ns
    assert (columns["start_ns"][1:] >= end[:-1]).all()
    row = lstm_trt.summarize(lstm_trt.load(tmp_path)).frame.iloc[0]
    assert row["prepare_us"] == told["prepare_us"] and row["group"]["prepare"] is True


@pytest.mark.heavy
@needs_c
def test_sweeps_soaks_and_networks_of_ones_own_are_prepared_too(tmp_path, typed):
    swept, protocol = tmp_path / "swept", periodic(2000, trials=50)
    report = lstm_trt.sweep(
        [STREAM], ["c"], protocol, [Options(), PREPARED], out=swept, mode="stream", show_progress=False
    )
    assert report.recorded == 2
    for item in folders.read_many(swept):
        is_prepared = item.configuration.options.prepare
        assert ("prepare_ns" in item.columns) == is_prepared
        assert (" --prepare " in record_command(item.configuration, "again")) == is_prepared
    done = soak(STREAM, 1.0, "c", protocol, PREPARED, out=tmp_path / "soak", mode="stream")
    (whole,) = folders.read_many(tmp_path / "soak")
    assert done.parts == 1 and PART_S > 1 and whole.provenance["prepare_us"] > 0
    line = "record --onnx {} --size time=1 batch=1 --mode stream --runtime c --arrival periodic --period-us 2000"
    path = own_networks.saved(own_networks.stream("GRU"), tmp_path)
    typed(f"{line} --prepare --trials 50 --out {{}}", path, tmp_path / "own")
    (own,) = folders.read_many(tmp_path / "own")
    assert 0 < own.provenance["parity"]["error"] < 2e-6 and (own.columns["prepare_ns"] > 0).all()
