"""Campaigns: the data of notebooks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lstm_literature as literature
from lstm_judge.campaign import (
    describe_runs,
    find_folder,
    largest_that_meets,
    load_or_record,
    own_networks,
    project_folder,
)
from lstm_judge.plots.heatmap import heat_map
from lstm_judge.read.labels import size_of
from lstm_judge.read.runs import Incomplete
from lstm_judge.report.report import report
from lstm_judge.verdict.verdict import verdict
from lstm_trt.config.configuration import Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.store import files, schema
from tests.conftest import ROOT
from tests.lstm_trt.store.test_store import planted


@pytest.fixture
def folder(tmp_path):
    for hidden in (8, 9, 10):
        files.write(planted(hidden), tmp_path)
    files.write_failure(schema.Failure(planted(11).configuration, 0, "build", "no"), tmp_path)
    return tmp_path


def grid(*hidden):
    return [{"layers": (1,), "hidden": hidden, "sequence": (4,)}]


SHORT = [Protocol(trials=17)]


def hidden_of(runs) -> list[int]:
    return [group.configuration.workload.hidden for group in runs]


def test_only_the_requested_runs_are_loaded(folder):
    runs = load_or_record(folder, grids=grid(8, 10, 11, 99), protocols=SHORT)
    assert hidden_of(runs) == [8, 10, 11] and [group.n for group in runs] == [17, 17, 0]
    said = describe_runs(runs)
    assert said.startswith("3 configurations, 34 trials, ") and "; 1 failure" in said
    assert hidden_of(runs.where(hidden=[8])) == [8]


def test_what_is_asked_for_and_not_recorded_is_named(folder):
    """A failure is recorded; a later selection keeps what it asks for."""
    assert load_or_record(folder, grids=grid(8, 11), protocols=SHORT).missing == {}
    runs = load_or_record(folder, grids=grid(8, 10, 11, 99), protocols=SHORT)
    line = f"1 of 4 are not in {folder}: 1x99-s4-b1; record = True records them"
    assert runs.warnings == (line,) and isinstance(runs.warnings[0], Incomplete)
    assert f"warning: {line}" in describe_runs(runs)
    assert runs.lacks == ["not recorded: 1x99-s4-b1"]
    assert runs.where(hidden=[8, 10]).lacks == [] and runs.where(hidden=[10, 99]).lacks[0].endswith("1x99-s4-b1")
    many = load_or_record(folder, grids=grid(8, *range(100, 120)))
    assert "20 of 21 are not in" in many.warnings[0] and "1x104-s4-b1 and 15 more;" in many.warnings[0]


@pytest.mark.parametrize(
    ("asked", "missing"),
    [
        ({"runtimes": ["onnxruntime", "pytorch"]}, ["1x8-s4-b1 on pytorch", "1x9-s4-b1 on pytorch"]),
        ({"options": Options.each(["fp32", "int8"])}, ["1x8-s4-b1 in int8", "1x9-s4-b1 in int8"]),
    ],
)
def test_what_is_missing_is_named_by_runtime_and_precision(folder, asked, missing):
    runs = load_or_record(folder, grids=grid(8, 9), **{"runtimes": (), **asked})
    assert [*runs.missing] == missing and "2 of 4 are not in" in runs.warnings[0]
    assert (runs.where(runtime="onnxruntime").missing == {}) == ("runtimes" in asked)


def ticks(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_result_over_an_incomplete_grid_says_so(folder):
    runs = load_or_record(folder, grids=[{"layers": 1, "hidden": [8, 9, 96], "sequence": [4, 5]}], protocols=SHORT)
    answer = verdict(runs, 1000, 50)
    assert str(answer).splitlines()[-1].startswith("not recorded: 1x8-s5-b1, ")
    assert answer.as_dict()[0]["warnings"] == list(runs.warnings)
    assert report(runs, 1000).unfinished == runs.lacks
    ax = heat_map(runs.where(hidden=[8, 9, 96])).axes[0]
    assert (ticks(ax.xaxis), ticks(ax.yaxis)) == (["8", "9", "96"], ["4", "5"])
    assert ticks(heat_map(runs.where(hidden=[8, 9], sequence=4)).axes[0].xaxis) == ["8", "9"]


def write_with(folder, **changes):
    """A recording of `planted(8)` with a changed configuration, which is returned."""
    recording = planted(8)
    configuration = replace(recording.configuration, **changes)
    files.write(replace(recording, configuration=configuration), folder)
    return configuration


def test_workloads_of_one_mode_are_loaded(folder):
    workload = write_with(folder, mode="stream").workload
    for mode, loaded in ((None, "forward"), ("stream", "stream")):
        runs = load_or_record(folder, workloads=[workload], runtimes=(), mode=mode)
        assert [group.configuration.mode for group in runs] == [loaded]
    with pytest.raises(UsageError, match="none of these networks on any runtime"):
        load_or_record(folder, workloads=[replace(workload, hidden=12)], runtimes=())


def test_a_network_at_several_lengths_and_the_longest_that_meets(folder):
    networks = own_networks("data/networks/keras_lstm.onnx", {"unk__135": 1, "unk__136": 6}, lengths=(4, 8))
    assert [size_of(network, "sequence") for network in networks] == [6, 4, 8]
    for network in networks:
        write_with(folder, workload=network)
    runs = load_or_record(folder, workloads=networks)
    chosen = largest_that_meets(runs, 1e6, percentile="50", by="sequence")
    assert len(runs) == 3 and chosen.configuration.workload == networks[2]


def test_several_precisions_are_loaded_on_request(folder):
    write_with(folder, options=Options(precision="int8", cores=(0,)))
    for precisions in (["int8"], ["fp32", "int8"]):
        runs = load_or_record(folder, grids=grid(8), options=Options.each(precisions))
        assert [group.configuration.options.precision for group in runs] == precisions
    with pytest.raises(UsageError, match="in bf16 or in tf32:"):
        load_or_record(folder, grids=grid(8), options=Options.each(["bf16", "tf32"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grids": grid(99), "protocols": SHORT}, "none of these networks"),
        ({"grids": grid(8), "protocols": [Protocol(trials=5)]}, "5 trials"),
        ({"grids": grid(8), "runtimes": ["pytorch"]}, "none of these networks on pytorch: set record = True"),
        (
            {"grids": grid(8), "runtimes": ["onnxruntim"]},
            "unknown runtime 'onnxruntim' .did you mean 'onnxruntime'",
        ),
        ({"grids": grid(8), "runtimes": ["onnxruntime", "pytorhc"]}, "unknown runtime 'pytorhc'"),
        ({"grids": grid(0)}, "at least 1"),
        ({"grids": [{"colour": [1]}]}, "colour"),
    ],
)
def test_missing_runs_raise_an_error(folder, arguments, message):
    with pytest.raises((UsageError, TypeError), match=message):
        load_or_record(folder, **arguments)


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize(
    ("workloads", "implementations", "message"),
    [
        (["cel"], (), "unknown workload 'cel' .did you mean 'cell'"),
        (["cell"], ["onnxruntim"], "unknown implementation 'onnxruntim' .did you mean 'onnxruntime'"),
    ],
)
def test_unknown_names_of_the_literature_raise_an_error(tmp_path, workloads, implementations, message, record):
    with pytest.raises(UsageError, match=message):
        literature.load(
            workloads, data=ROOT / "data/xeon/literature", implementations=implementations, record=record, out=tmp_path
        )


def test_a_workload_of_the_literature_that_is_not_recorded_is_named():
    folder = ROOT / "data/xeon/versions"
    found = literature.load(["layer", "cell"], data=folder).runs
    assert (
        found.missing == {"cell": {"workload": "cell"}}
        and "has no recording of cell: set record = True" in found.warnings[0]
    )
    assert literature.load(["layer"], data=folder).runs.missing == {}


def test_rounds_and_control_runs_of_a_campaign(tmp_path):
    noise = np.arange(7, 27)
    for number in range(11):
        control = {"start_ns": 100 * np.arange(20), "latency_ns": noise + number} if number < 2 else None
        files.write(replace(planted(8, round=number), control=control), tmp_path)
    (group,) = load_or_record(tmp_path, grids=grid(8))
    assert [round_.round for round_ in group.rounds] == list(range(11))  # not 0, 1, 10, 2, as text is sorted
    assert group.n == 11 * 17
    kept = [round_.control_ns for round_ in group.rounds if round_.control_ns is not None]
    np.testing.assert_array_equal(np.concatenate(kept), np.r_[noise, noise + 1])


def test_arrivals_are_only_mixed_on_request(tmp_path):
    closed = planted(8)
    files.write(closed, tmp_path)
    for period_us in (1000.0, 2000.0):
        protocol = replace(closed.configuration.protocol, arrival="periodic", wait="spin", period_us=period_us)
        intended = {"intended_ns": closed.columns["start_ns"]}
        configuration = replace(closed.configuration, protocol=protocol)
        files.write(replace(closed, configuration=configuration, columns={**closed.columns, **intended}), tmp_path)

    def periods(*protocols):
        runs = load_or_record(tmp_path, grids=grid(8), protocols=protocols)
        return sorted((group.configuration.protocol.period_us or 0) for group in runs)

    assert periods(*SHORT) == [0]
    assert periods(Protocol(trials=17, arrival="periodic", period_us=2000)) == [2000]
    assert periods() == [0, 1000, 2000]
    with pytest.raises(UsageError, match="paused 3 ms"):
        periods(Protocol(trials=17, arrival="paused", pause_ms=3))


@pytest.mark.heavy
def test_recording_here_resumes(tmp_path, capsys):
    arguments = {"record": True, "out": tmp_path / "out", "show_progress": False, "protocols": [Protocol(trials=30)]}
    assert len(load_or_record("nowhere", grids=grid(8), **arguments)) == 1
    again = load_or_record("nowhere", grids=grid(8, 9), **arguments)
    assert hidden_of(again) == [8, 9] and {group.n for group in again} == {30}
    assert "1 recorded, 0 failed" in capsys.readouterr().out


def test_data_is_found_from_the_notebooks_folder_and_from_the_top(monkeypatch):
    for start in (ROOT, ROOT / "notebooks", ROOT / "lstm_judge" / "statistics"):
        monkeypatch.chdir(start)
        assert find_folder("data/README.md").resolve() == ROOT / "data" / "README.md"
        assert project_folder("data/local/x") == ROOT / "data" / "local" / "x"
    with pytest.raises(UsageError, match="data/nothing"):
        find_folder("data/nothing")
