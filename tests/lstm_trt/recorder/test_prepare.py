"""`--prepare`: what is computed between the steps of a stream, beside their latency."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import lstm_trt
from lstm_judge.read.labels import record_command
from lstm_trt.config.configuration import Configuration, Options, Protocol, canonical_json
from lstm_trt.config.errors import ParityFailed, RunFailed, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.loop import ClockPair, PeriodTooShort, check_clocks, pilot
from lstm_trt.recorder.parity import check_parity
from lstm_trt.recorder.preparers.stacked import PREPARER
from lstm_trt.recorder.run import PART_S
from lstm_trt.recorder.soak import soak
from lstm_trt.runtimes import load_runtime
from lstm_trt.runtimes.base import Gate, PreparedStep
from lstm_trt.store import consolidated, files, folders
from tests.conftest import ROOT
from tests.lstm_trt.recorder.test_arrivals import periodic
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

    protocol = periodic(100_000, trials=90, warmup=5, block_trials=50, settle=2)
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
    with pytest.raises(PeriodTooShort, match=r"100 us is shorter than the median of step and prepare_next of 121.0 us"):
        pilot(step, protocol, step)
    # Where the pilot was right and the loop takes longer, calls are late, and a warning counts both.
    assert run_trials(step, protocol).warnings == []
    late = run_trials(step, protocol, prepare_next=step)
    assert "exceeds the period of 100 us" in late.warnings[0]
    assert (np.diff(late.columns["latency_ns"]) >= 20_000).all()
    assert pilot(step, periodic(130), step)["median_us"] == 121
    assert run_trials(step, periodic(130, trials=50), prepare_next=step).warnings == []


@pytest.mark.parametrize(("prepare_ns", "words"), [([6, 0], "previous"), ([5, 976], "outside")])
def test_the_self_check_counts_what_is_prepared(prepare_ns, words):
    columns = {"start_ns": np.array([0, 15]), "latency_ns": np.array([10, 10])}
    found = check_clocks({**columns, "prepare_ns": np.array([5, 975])}, ClockPair(0, 0), ClockPair(1000, 1000))
    assert found["loop_ns"] == 1000
    with pytest.raises(RunFailed, match=words):
        check_clocks({**columns, "prepare_ns": np.array(prepare_ns)}, ClockPair(0, 0), ClockPair(1000, 1000))


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


def test_parity_is_that_of_prepared_steps(rng):
    values = rng.standard_normal((8, 3))
    gate = Gate(tuple({"x": each} for each in values), {"y": np.cumsum(values, 0)}, 0, every=True)
    configuration = Configuration(STREAM, "c", "1", "a device")
    assert check_parity(Sums(None), configuration, gate)["error"] == 0
    right = Sums(1.0)
    assert check_parity(right, configuration, gate)["error"] == 0 and right.prepared == len(values)
    with pytest.raises(ParityFailed, match="outputs differ from"):
        check_parity(Sums(1.001), configuration, gate)


# The configuration


def test_it_is_part_of_the_identity_where_it_is_asked_for():
    usual, asked = (Configuration(STREAM, "c", "1", "a device", options) for options in (Options(), PREPARED))
    assert usual.id != asked.id and "prepare" not in usual.options.as_dict()
    assert usual.as_dict()["options"] | {"prepare": True} == asked.as_dict()["options"]
    assert Configuration.from_dict(json.loads(canonical_json(asked.as_dict()))) == asked


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mode", "stream"), "--prepare needs time between the steps, not closed arrivals: add --arrival periodic"),
        (
            ("--mode", "stream", "--arrival", "paused", "--pause-ms", 1),
            "--prepare needs time between the steps, not paused arrivals: add --arrival periodic",
        ),
        (("--arrival", "periodic", "--period-us", 1000), "--prepare is for streams, between two steps"),
        (
            ("--mode", "stream", "--arrival", "periodic", "--period-us", 1000, "--runtime", "onnxruntime"),
            "onnxruntime has no prepare_next: omit --prepare, or use the runtime c",
        ),
        (("--step", "tests.support.own_steps:make_numpy"), "python has no prepare_next"),
    ],
    ids=["closed", "paused", "window", "runtime", "own step"],
)
def test_what_has_nothing_to_prepare_is_refused_in_one_line(tmp_path, refused, arguments, words):
    shape = () if "--step" in arguments else ("--runtime", "c", "--layers", 1, "--hidden", 8, "--sequence", 1)
    for command in ("record", "sweep"):
        assert words in refused(command, *shape, *arguments, "--prepare", "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_python_refuses_the_same():
    for protocol, mode in ((Protocol(), "stream"), (periodic(1000), "forward")):
        with pytest.raises(UsageError, match="--prepare"):
            describe(STREAM, "c", protocol, PREPARED, mode, anywhere=True)
    assert describe(STREAM, "c", periodic(1000), PREPARED, "stream", anywhere=True).options.prepare


# Recordings


def test_the_column_is_kept_wherever_recordings_go(tmp_path):
    usual = planted(8)
    asked = replace(planted(8, prepare_ns=np.arange(20)), provenance={"prepare_us": 0.0115})
    asked = replace(asked, configuration=replace(asked.configuration, options=PREPARED))
    for recording in (usual, asked):
        files.write(recording, tmp_path)
    for place in ("files", "tables"):
        if place == "tables":
            consolidated.consolidate(folders.read_many(tmp_path), tmp_path)
        back = {item.configuration.id: item for item in folders.read_many(tmp_path)}
        assert all(same(back[item.configuration.id], item) for item in (usual, asked))
        some = {item.configuration.id: item for item in folders.read_many(tmp_path, ["trial", "prepare_ns"])}
        assert some[asked.configuration.id].columns.keys() == {"trial", "prepare_ns"}
        assert some[usual.configuration.id].columns.keys() == {"trial"}
        frame = lstm_trt.summarize(lstm_trt.load(tmp_path)).frame
        assert sorted(frame["prepare_us"].fillna(0)) == [0, 0.0115]


def test_recordings_from_before_have_none():
    recording = next(iter(folders.read_many(ROOT / "data" / "epyc" / "near")))
    assert "prepare_ns" not in recording.columns and "prepare" not in recording.configuration.as_dict()["options"]


def test_what_is_judged_is_named_prepared(tmp_path):
    for options in (Options(), PREPARED):
        recording = planted(8, rows=200)
        recording = replace(recording, provenance={"prepare_us": 1.25} if options.prepare else {})
        files.write(replace(recording, configuration=replace(recording.configuration, options=options)), tmp_path)
    runs = lstm_trt.load(tmp_path)
    header, *rows = [line for line in str(lstm_trt.summarize(runs)).splitlines() if "1x8" in line or " step " in line]
    assert "prepare us" in header
    assert sorted(("prepared" in row.split(), "unprepared" in row.split(), "1.25" in row.split()) for row in rows) == [
        (False, True, False),
        (True, False, True),
    ]
    assert str(lstm_trt.verdict(runs, deadline_us=100)).count("onnxruntime, prepared") == 1
    assert len(runs.where(prepare="yes")) == 1


@needs_c
def test_generated_code_has_it_where_it_is_asked_for(tmp_path):
    configuration = describe(STREAM, "c", periodic(1000), PREPARED, "stream")
    reference = PREPARER.reference(configuration, 99, tmp_path / "answers.npy", lambda *event, **values: None)
    reference |= {"gate_seed": 99, "reference_path": tmp_path / "answers.npy"}
    request = PREPARER.request(configuration, reference)
    step = load_runtime("c").prepare(replace(request, options=replace(request.options, prepare=False)))
    assert step.prepare_next is None
    step.close()
    step = load_runtime("c").prepare(request)
    assert 0 < check_parity(step, configuration, PREPARER.gate(configuration, reference))["error"] < 2e-6
    step.close()
    assert step.prepare_next is None


@needs_c
@pytest.mark.parametrize(
    "precision", ["fp32", pytest.param("bf16", marks=pytest.mark.heavy), pytest.param("int8", marks=pytest.mark.heavy)]
)
def test_a_prepared_recording_for_real(tmp_path, precision):
    options = replace(PREPARED, precision=precision)
    recording = lstm_trt.record(
        STREAM, "c", periodic(2000, trials=100, wait="os"), options, out=tmp_path, mode="stream"
    )
    (stored,) = folders.read_many(tmp_path)
    assert same(stored, recording)
    columns, provenance = stored.columns, stored.provenance
    assert (columns["prepare_ns"] > 0).all() and len(columns["prepare_ns"]) == len(columns["latency_ns"])
    assert provenance["prepare_us"] == np.median(columns["prepare_ns"][~columns["warmup"]]) / 1e3
    assert provenance["parity"]["not_checked"] is None and provenance["parity"]["error"] > 0
    end = columns["intended_ns"] + columns["latency_ns"] + columns["prepare_ns"]
    assert (columns["start_ns"][1:] >= end[:-1]).all() and provenance["pilot"]["median_us"] > 0
    row = lstm_trt.summarize(lstm_trt.load(tmp_path)).frame.iloc[0]
    assert row["prepare_us"] == provenance["prepare_us"] and row["group"]["prepare"] is True


@pytest.mark.heavy
@needs_c
def test_sweeps_soaks_and_networks_of_ones_own_are_prepared_too(tmp_path, lab):
    swept, protocol = tmp_path / "swept", periodic(2000, trials=50)
    report = lstm_trt.sweep(
        [STREAM], ["c"], protocol, [Options(), PREPARED], out=swept, mode="stream", show_progress=False
    )
    assert report.recorded == 2 and not report.failures
    found = {item.configuration.options.prepare: item for item in folders.read_many(swept)}
    assert "prepare_ns" in found[True].columns and "prepare_ns" not in found[False].columns
    assert " --prepare " in record_command(found[True].configuration, "again")
    assert "--prepare" not in record_command(found[False].configuration, "again")
    done = soak(STREAM, 1.0, "c", protocol, PREPARED, out=tmp_path / "soak", mode="stream")
    (whole,) = folders.read_many(tmp_path / "soak")
    assert done.parts == 1 and PART_S > 1 and whole.provenance["prepare_us"] > 0
    path = own_networks.saved(own_networks.stream("GRU"), tmp_path)
    result = lab(
        *("record", "--onnx", path, "--size", "time=1", "batch=1", "--mode", "stream", "--runtime", "c"),
        *("--arrival", "periodic", "--period-us", 2000, "--prepare", "--trials", 50, "--out", tmp_path / "own"),
    )
    assert result.returncode == 0, result.stderr
    (own,) = folders.read_many(tmp_path / "own")
    assert 0 < own.provenance["parity"]["error"] < 2e-6 and (own.columns["prepare_ns"] > 0).all()
