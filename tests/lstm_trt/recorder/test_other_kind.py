"""A workload kind and a runtime that another package brings: registered by entry points, recorded, read, judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from lstm_judge.read.rounds import groups_of
from lstm_trt import registry
from lstm_trt.cli.main import main
from lstm_trt.config.configuration import Protocol
from lstm_trt.config.errors import BuildFailed, ConfigurationFailed, ParityFailed, UnknownConfiguration, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.config.workload import AXES, workload_from_dict
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.parity import check_parity
from lstm_trt.recorder.pool import record
from lstm_trt.recorder.soak import soak
from lstm_trt.recorder.sweep import run_sweep, sweep
from lstm_trt.runtimes.base import preparer_of
from lstm_trt.store import consolidated, folders
from tests.conftest import ROOT
from tests.support import other_kind
from tests.support.other_kind import GruWorkload, make_inputs, make_weights

GRU = GruWorkload(6)
NAME = "tests-numpy-gru"
SHORT = Protocol(trials=60, warmup=5)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The entry points of `other_kind` on the path, as if its package were installed; yields their folder."""
    folder = str(other_kind.install(tmp_path_factory.mktemp("site")))
    before = list(sys.path)
    sys.path.insert(0, folder)
    registry._offered.cache_clear()
    yield folder
    sys.path[:] = before
    registry._offered.cache_clear()


@pytest.fixture(scope="module")
def recorded(installed, tmp_path_factory):
    """Both modes and a shape of this lab in one folder, two rounds each, by real workers."""
    folder = tmp_path_factory.mktemp("recorded")
    configurations = [describe(GRU, NAME, SHORT, mode=mode) for mode in GRU.modes]
    configurations.append(describe(LstmShape(1, 8, 4), protocol=SHORT))
    report = run_sweep(configurations, folder, rounds=2, show_progress=False)
    assert (report.recorded, report.failures) == (6, [])
    return folder


def gru_recordings(folder):
    return [item for item in folders.read_many(folder) if isinstance(item.configuration.workload, GruWorkload)]


# Registered by entry points


def test_entry_points_add_to_the_tables(installed):
    assert registry.load_entry("WORKLOADS", "tests-gru") is GruWorkload
    assert preparer_of(GRU) is other_kind.PREPARER
    assert NAME in registry.table("RUNTIMES") and "onnxruntime" in registry.table("RUNTIMES")
    assert describe(GRU, NAME).mode == "forward"
    assert workload_from_dict(GRU.as_dict()) == GRU


def test_what_ships_is_not_replaced_by_an_entry_point(tmp_path, monkeypatch):
    folder = other_kind.install(tmp_path)
    text = "[lstm_trt.runtimes]\nonnxruntime = tests.support.other_kind:RUNTIME\n"
    next(folder.glob("*.dist-info/entry_points.txt")).write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    registry._offered.cache_clear()
    assert registry.load_entry("RUNTIMES", "onnxruntime").__name__ == "lstm_trt.runtimes.onnxruntime"
    registry._offered.cache_clear()


def test_a_kind_or_preparer_that_is_not_installed_is_an_error_of_its_own():
    with pytest.raises(UnknownConfiguration):
        workload_from_dict({"kind": "nobodys", "width": 3})
    for kind in ("tests.support.other_kind:GruWorkload", 7, None, ["tests-gru"]):  # a name with a dot imports nothing
        with pytest.raises(UnknownConfiguration):
            workload_from_dict({"kind": kind, "width": 3})


def test_fields_of_a_later_version_are_unknown(installed):
    configuration = describe(GRU, NAME, SHORT)
    plain = configuration.as_dict()
    assert type(configuration).from_dict(plain) == configuration
    for part in ("workload", "options", "protocol"):
        with pytest.raises(UnknownConfiguration):
            type(configuration).from_dict(plain | {part: plain[part] | {"of_tomorrow": 1}})


# Recorded in real workers


@pytest.mark.heavy
def test_recordings_are_read_back_whole(recorded):
    items = gru_recordings(recorded)
    assert sorted((item.configuration.mode, item.round) for item in items) == [
        *(("forward", 0), ("forward", 1), ("stream", 0), ("stream", 1))
    ]
    for item in items:
        assert item.configuration == describe(GRU, NAME, SHORT, mode=item.configuration.mode)
        assert len(item.timed_ns) == 60 and item.columns["warmup"].sum() >= 5
        assert item.provenance["reference_origin"] == "float64" and item.provenance["costs_s"] == {"build_s": 0.5}
        assert 0 <= item.provenance["parity"]["error"] <= item.provenance["parity"]["bound"]


def test_the_state_is_reset_right_before_the_trials(recorded):
    for item in gru_recordings(recorded):
        assert item.provenance["runtime"]["resets"] >= 2  # before the gate, and after it
        assert item.provenance["runtime"]["calls_since_reset"] == len(item.columns["trial"])


def test_the_pilot_of_a_period_leaves_no_state(installed, tmp_path):
    protocol = Protocol(trials=20, warmup=5, arrival="periodic", period_us=20_000)
    recording = record(GRU, NAME, protocol, mode="stream", control=False, out=tmp_path)
    assert recording.provenance["pilot"]
    assert recording.provenance["runtime"]["calls_since_reset"] == len(recording.columns["trial"])


def test_a_sweep_takes_any_kind_and_mode(installed, tmp_path):
    workloads = [GruWorkload(3), GruWorkload(3, leak=0.5)]
    report = sweep(workloads, (NAME,), Protocol(trials=5), out=tmp_path, mode="stream", show_progress=False)
    assert (report.recorded, report.left) == (2, 0)
    items = list(folders.read_many(tmp_path))
    assert {item.configuration.workload for item in items} == set(workloads)
    assert all(item.configuration.mode == "stream" for item in items)


@pytest.mark.heavy
def test_a_soak_takes_any_kind(installed, tmp_path):
    done = soak(GRU, 1.0, NAME, Protocol(warmup=2), out=tmp_path, mode="stream", control=False)
    (whole,) = folders.read_many(tmp_path)
    assert done.configuration.mode == whole.configuration.mode == "stream"
    assert whole.provenance["runtime"]["calls_since_reset"] == len(whole.columns["trial"])


def test_unknown_modes_and_what_a_runtime_does_not_do(installed, tmp_path):
    with pytest.raises(UsageError, match="forward, stream"):
        describe(GRU, NAME, mode="training")
    with pytest.raises(UsageError):
        describe(LstmShape(1, 8, 4, directions=2), mode="stream")
    with pytest.raises(ConfigurationFailed, match="it is too wide") as caught:
        record(GruWorkload(2000), NAME, SHORT, out=tmp_path)
    assert caught.value.stage == "build"
    with pytest.raises(BuildFailed):
        other_kind.PREPARER.check(describe(GruWorkload(2000), NAME))


def test_a_process_of_its_own_finds_it_by_the_path(installed):
    code = (
        "import lstm_trt as lab; from tests.support.other_kind import GruWorkload as G\n"
        f"print(lab.record(G(3), {NAME!r}, lab.Protocol(trials=7), control=False).configuration.workload.label)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((installed, str(ROOT)))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=900)
    assert done.stdout.strip() == "gru-3x4", done.stderr


# The gate, by name


def prepared_gate(runtime, mode, tmp_path):
    """A step of `runtime` and the gate's questions, in this process."""
    configuration = describe(GRU, f"tests.support.other_kind:{runtime}", mode=mode)
    path = tmp_path / "answers.npy"
    reference = other_kind.PREPARER.reference(configuration, 3, path, lambda event, **values: None)
    reference |= {"gate_seed": 3, "reference_path": str(path)}
    step = getattr(other_kind, runtime).prepare(other_kind.PREPARER.request(configuration, reference))
    return step, configuration, other_kind.PREPARER.gate(configuration, reference)


@pytest.mark.parametrize("mode", GRU.modes)
def test_the_gate_passes_what_is_right(installed, tmp_path, mode):
    told = check_parity(*prepared_gate("RUNTIME", mode, tmp_path))
    assert told["of"] == "outputs" and told["inputs_seed"] == 3 and told["error"] < told["bound"]


@pytest.mark.parametrize(
    ("runtime", "mode", "words"),
    [
        ("WRONG_ENERGY", "forward", "numpy in float64 .* fp32"),
        ("IGNORES_GAIN", "forward", "fp32"),
        ("NEVER_RESETS", "stream", "fp32"),
        ("NO_ENERGY", "forward", "power .*energy"),
    ],
)
def test_the_gate_finds_what_is_wrong_in_any_input_or_output(installed, tmp_path, runtime, mode, words):
    with pytest.raises(ParityFailed, match=words):
        check_parity(*prepared_gate(runtime, mode, tmp_path))


def test_a_wrong_second_output_is_never_timed(installed, tmp_path):
    report = run_sweep([describe(GRU, "tests.support.other_kind:WRONG_ENERGY", SHORT)], tmp_path, show_progress=False)
    assert report.recorded == 0 and [failure.stage for failure in report.failures] == ["parity"]
    assert list(tmp_path.glob("*.parquet")) == []


def test_the_carried_state_matters():
    inputs, weights = make_inputs(GRU, 1), make_weights(GRU, 0)
    first = other_kind.run(GRU, weights, inputs, np.zeros(GRU.width, np.float32))
    second = other_kind.run(GRU, weights, inputs, first["states"][-1])
    assert not np.allclose(first["states"], second["states"])


# Summaries, verdicts, samples


def answer_of(capsys, *arguments):
    capsys.readouterr()
    status = main([str(argument) for argument in arguments])
    return status, json.loads(capsys.readouterr().out)


def test_modes_are_never_pooled_and_axes_may_be_null(recorded, capsys):
    items = list(folders.read_many(recorded))
    groups = [group for group in groups_of(items) if isinstance(group.configuration.workload, GruWorkload)]
    assert sorted(group.configuration.mode for group in groups) == ["forward", "stream"]
    assert all(len(group.rounds) == 2 and group.n == 120 for group in groups)
    assert len({group.name for group in groups}) == 2
    status, answer = answer_of(capsys, "summarize", recorded, "--format", "json")
    rows = [row for row in answer if row["configuration"]["runtime"] == NAME]
    assert status == 0 and sorted(row["configuration"]["mode"] for row in rows) == ["forward", "stream"]
    for row in rows:
        assert row["n"] == 120 and row["rounds"]["count"] == 2 and row["configuration"]["sequence"] == 4
        assert all(row["configuration"][axis] is None for axis in AXES if axis != "sequence")
        assert row["group"]["workload"] == "gru-6x4"
    assert {row["n"] for row in answer if row["configuration"]["runtime"] == "onnxruntime"} == {120}


def test_each_command_takes_recordings_with_null_axes(recorded, capsys):
    _, answer = answer_of(capsys, "verdict", recorded, "--deadline-us", 1e6, "--format", "json")
    assert len(answer) == 3
    _, answer = answer_of(capsys, "outliers", recorded, "--format", "json")
    assert len(json.dumps(answer).split("gru-6x4")) > 2
    for status, command in (
        (0, ("summarize", recorded)),
        (0, ("summarize", recorded, "--by-round")),
        (3, ("verdict", recorded, "--deadline-us", 1e9)),  # too few trials for p99.9, and no pause is so long
        (0, ("outliers", recorded)),
    ):
        assert main([str(argument) for argument in command]) == status, command
        text = capsys.readouterr().out
        assert "gru-6x4" in text and "None" not in text, command
    assert main(["scaling", str(recorded)]) == 0  # of the shapes


def test_figures_take_recordings_with_null_axes(recorded, capsys, tmp_path):
    assert main(["summarize", str(recorded), "--figures", str(tmp_path), "--deadline-us", "1000000"]) == 0
    assert list(tmp_path.glob("*.png"))


def test_consolidation_keeps_them(recorded, tmp_path):
    items = list(folders.read_many(recorded))
    consolidated.consolidate(items, tmp_path)
    again = {(item.configuration.id, item.round): item for item in folders.read_many(tmp_path)}
    assert len(again) == 6
    for item in items:
        assert np.array_equal(again[item.configuration.id, item.round].timed_ns, item.timed_ns)


def test_without_the_package_a_reader_skips_them_with_one_line(recorded):
    """In a process that has no such entry points, beside the recordings of this lab."""
    command = [sys.executable, "-m", "lstm_trt", "summarize", str(recorded)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900)
    assert result.returncode == 0, result.stderr
    assert "1x8" in result.stdout and "gru" not in result.stdout
    (line,) = [line for line in result.stderr.splitlines() if "skipped" in line]
    assert "4 recordings" in line and "tests-gru" in line
