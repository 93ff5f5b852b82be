"""Runs: groups of samples from anywhere, chosen by what was configured."""

from __future__ import annotations

import pytest

from lstm_trt.config.errors import UsageError
from lstm_trt.store import files, folders
from lstm_trt.store.runs import Runs, as_runs, load
from tests.store.test_samples import put
from tests.store.test_store import planted


@pytest.fixture
def folder(tmp_path):
    for hidden in (8, 16, 32):
        files.write(planted(hidden), tmp_path)
    files.write(planted(8, round=1), tmp_path)
    return tmp_path


def test_runs_are_a_sequence_of_their_groups(folder):
    runs = load(folder)
    assert len(runs) == 3 and list(runs) == list(runs.groups) and runs[0] is runs.groups[0] and runs.own
    assert isinstance(runs[1:], Runs) and [group.group["hidden"] for group in runs[1:]] == [16, 32]
    assert len(runs.recordings) == 4 and len(runs[:1].recordings) == 2
    assert len(str(runs).splitlines()) == 3
    assert runs.frame["hidden"].tolist() == [8, 16, 32] and runs.frame["rounds"].tolist() == [2, 1, 1]
    assert runs.frame["n"].tolist() == [group.n for group in runs]


def test_groups_are_chosen_by_axis_runtime_options_and_protocol(folder):
    runs = load(folder)
    assert [group.group["hidden"] for group in runs.where(hidden=[8, 32], runtime="onnxruntime")] == [8, 32]
    assert len(runs.where(hidden=range(10), period_us=None, arrival="closed", threads=1)) == 1
    assert len(load(folder, hidden=16).recordings) == 1
    for wrong in ({"hiden": 8}, {"hidden": 9}):
        with pytest.raises(UsageError):
            runs.where(**wrong)


def test_groups_of_a_table_are_chosen_by_its_columns(tmp_path):
    path = put(tmp_path / "t.csv", {"hidden": [8, 16] * 3, "latency_us": [1, 2, 3, 4, 5, 6]})
    runs = load(path, group_by=["hidden"])
    assert runs.where(hidden=16)[0].n == 3 and not runs.own and runs.group_by == ("hidden",)
    assert runs.frame["hidden"].tolist() == [8, 16]


def test_runs_of_whatever_holds_latencies(folder):
    runs = load(folder)
    items = list(folders.read_many(folder))
    assert as_runs(runs) is runs
    for source in (folder, str(folder), runs.groups, items, runs.recordings):
        again = as_runs(source)
        assert [group.name for group in again] == [group.name for group in runs] and again.grouped and again.own
    assert as_runs(runs[0]).groups == (runs[0],) and len(as_runs(items[0])) == 1
    with pytest.raises(UsageError):
        as_runs([1, 2])
