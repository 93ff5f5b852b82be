"""A workload kind and a runtime that another package brings: registered by entry points, recorded, read, judged."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest

from lstm_judge.read.rounds import groups_of
from lstm_trt import registry
from lstm_trt.config.configuration import Protocol
from lstm_trt.config.errors import BuildFailed, ConfigurationFailed, ParityFailed, UnknownConfiguration, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.config.workload import AXES, workload_from_dict
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.parity import check_parity
from lstm_trt.recorder.pool import record
from lstm_trt.recorder.sweep import run_sweep, sweep
from lstm_trt.runtimes.base import preparer_of
from lstm_trt.store import consolidated, folders
from tests.conftest import ROOT
from tests.lstm_trt.store.test_store import same
from tests.support import other_kind
from tests.support.other_kind import GruWorkload

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


@pytest.mark.parametrize("kind", ["nobodys", "tests.support.other_kind:GruWorkload", 7, None, ["tests-gru"]])
def test_a_kind_that_is_not_installed_is_an_error_of_its_own(kind):
    """A name with a dot imports nothing."""
    with pytest.raises(UnknownConfiguration):
        workload_from_dict({"kind": kind, "width": 3})


# Recorded in real workers


def test_recordings_are_read_back_whole_also_from_a_consolidated_folder(recorded, tmp_path):
    items = sorted(folders.read_many(recorded), key=lambda item: item.configuration.mode)
    consolidated.consolidate(items, tmp_path)
    again = {(item.configuration.id, item.round): item for item in folders.read_many(tmp_path)}
    assert len(again) == 6 and all(same(again[item.configuration.id, item.round], item) for item in items)
    items = [item for item in items if item.configuration.runtime == NAME]
    assert [(item.configuration.mode, item.round) for item in items] == list(itertools.product(GRU.modes, (0, 1)))
    for item in items:
        assert item.configuration == describe(GRU, NAME, SHORT, mode=item.configuration.mode)
        assert len(item.timed_ns) == 60 and item.columns["warmup"].sum() >= 5
        told = item.provenance
        assert told["reference_origin"] == "float64" and told["costs_s"] == {"build_s": 0.5}
        assert 0 <= told["parity"]["error"] <= told["parity"]["bound"]
        # The state is reset before the gate, and right before the trials.
        assert told["runtime"]["resets"] >= 2 and told["runtime"]["calls_since_reset"] == len(item.columns["trial"])


def test_the_pilot_of_a_period_leaves_no_state(installed, tmp_path):
    protocol = Protocol(trials=20, warmup=5, arrival="periodic", period_us=20_000)
    recording = record(GRU, NAME, protocol, mode="stream", control=False, out=tmp_path)
    assert recording.provenance["pilot"]
    assert recording.provenance["runtime"]["calls_since_reset"] == len(recording.columns["trial"])


def test_a_sweep_takes_any_kind_and_mode(installed, tmp_path):
    workloads = {GruWorkload(3), GruWorkload(3, leak=0.5)}
    report = sweep(list(workloads), (NAME,), Protocol(trials=5), out=tmp_path, mode="stream", show_progress=False)
    assert (report.recorded, report.left) == (2, 0)
    made = {(item.configuration.workload, item.configuration.mode) for item in folders.read_many(tmp_path)}
    assert made == set(itertools.product(workloads, ["stream"]))


def test_unknown_modes_and_what_a_runtime_does_not_do(installed, tmp_path):
    with pytest.raises(UsageError, match="forward, stream"):
        describe(GRU, NAME, mode="training")
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
    ("runtime", "mode"),
    [("WRONG_ENERGY", "forward"), ("IGNORES_GAIN", "forward"), ("NEVER_RESETS", "stream"), ("NO_ENERGY", "forward")],
)
def test_the_gate_finds_what_is_wrong_in_any_input_or_output(installed, tmp_path, runtime, mode):
    with pytest.raises(ParityFailed, match="power .*energy" if runtime == "NO_ENERGY" else "float64 .* fp32"):
        check_parity(*prepared_gate(runtime, mode, tmp_path))


# Summaries, verdicts, samples


def test_modes_are_never_pooled_and_axes_may_be_null(recorded, typed):
    of_gru = [group for group in groups_of(folders.read_many(recorded)) if group.configuration.workload == GRU]
    found = {(group.configuration.mode, len(group.rounds), group.n) for group in of_gru}
    assert len({group.name for group in of_gru}) == len(of_gru) == 2
    assert found == {("forward", 2, 120), ("stream", 2, 120)}
    rows = typed("summarize {} --format json", recorded)
    assert {row["n"] for row in rows} == {120}
    rows = [row for row in rows if row["configuration"]["runtime"] == NAME]
    assert sorted(row["configuration"]["mode"] for row in rows) == ["forward", "stream"]
    for row in rows:
        assert row["rounds"]["count"] == 2 and row["group"]["workload"] == "gru-6x4"
        assert {axis: row["configuration"][axis] for axis in AXES} == dict.fromkeys(AXES) | {"sequence": 4}


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("summarize {}", 0),
        ("summarize {} --by-round", 0),
        ("verdict {} --deadline-us 1e9", 3),  # too few trials for p99.9, and no pause is so long
        ("outliers {}", 0),
    ],
)
def test_each_command_takes_recordings_with_null_axes(recorded, typed, command, status):
    text = typed(command, recorded, status=status)
    assert "gru-6x4" in text and "None" not in text
    assert "gru-6x4" in json.dumps(typed(f"{command} --format json", recorded, status=status))


def test_scaling_and_figures_take_folders_with_null_axes(recorded, typed, tmp_path):
    typed("scaling {}", recorded)  # of the shapes
    typed("summarize {} --figures {} --deadline-us 1e6", recorded, tmp_path)
    assert list(tmp_path.glob("*.png"))


def test_without_the_package_a_reader_skips_them_with_one_line(recorded):
    """In a process that has no such entry points, beside the recordings of this lab."""
    command = [sys.executable, "-m", "lstm_trt", "summarize", str(recorded)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900)
    assert result.returncode == 0, result.stderr
    assert "1x8" in result.stdout and "gru" not in result.stdout
    (line,) = [line for line in result.stderr.splitlines() if "skipped" in line]
    assert "4 recordings" in line and "tests-gru" in line
