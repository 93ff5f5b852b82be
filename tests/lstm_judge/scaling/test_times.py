"""One time for each shape, from groups of trials and from tables."""

from __future__ import annotations

import pytest

from lstm_judge.read.runs import load
from lstm_judge.scaling.times import from_runs, read_times
from lstm_judge.summarize.summarize import summarize
from lstm_trt.config.errors import UsageError
from lstm_trt.store import files
from tests.lstm_judge.read.test_rounds import put
from tests.lstm_trt.store.test_store import planted
from tests.support.said import refusal, said


def test_trials_of_a_table_are_groups_as_recordings_are(tmp_path):
    columns = {"Hidden": [8, 8, 8, 16, 16, 16], "tool": ["x"] * 6, "latency_us": [1, 2, 9, 4, 5, 6]}
    times = from_runs(load(put(tmp_path / "t.csv", columns), group_by=["Hidden", "tool"]))
    assert times.axes == ("hidden",) and times.raw and [*times.systems.values()] == [{"tool": "x"}]
    (cells,) = times.cells.values()
    assert {sizes: cell.latency_us for sizes, cell in cells.items()} == {(8,): 2, (16,): 5}
    with pytest.raises(UsageError):
        from_runs(load(tmp_path / "t.csv", group_by=["tool"], one_group=True))


def test_a_summary_of_this_lab_is_a_table_of_times(tmp_path):
    for hidden in (8, 16, 32):
        files.write(planted(hidden), tmp_path)
    rows = summarize(load(tmp_path)).frame
    rows.to_csv(tmp_path / "summary.csv")
    times = read_times(tmp_path / "summary.csv")
    (cells,) = times.cells.values()
    medians_us = dict(zip(rows["hidden"], rows["median_us"], strict=True))
    assert {sizes[1]: cell.latency_us for sizes, cell in cells.items()} == medians_us
    assert not times.raw and times.counts.blank == 0


def test_a_column_of_times_may_be_named_or_renamed(tmp_path):
    path = put(tmp_path / "t.csv", {"Depth": [1, 2], "took": [10, 20], "other": [3, 4]})
    wanted = read_times(path, {"Depth": "layers", "took": "latency_ms"}).cells
    assert read_times(path, {"Depth": "layers"}, column="took", unit="ms").cells == wanted
    unclear = ({"column": "took"}, {"unit": "ms"})
    said(*(refusal(read_times, path, {"Depth": "layers"}, folder=tmp_path, **options) for options in unclear))


def test_shapes_of_tables_and_of_recordings_are_selected(tmp_path):
    path = put(tmp_path / "t.csv", {"hidden": [8, 16, 32], "runtime": ["a", "a", "b"], "latency_us": [1, 2, 3]})
    for where, sizes in ({"hidden": ["8", "32"]}, {8, 32}), ({"runtime": "a", "hidden": 16}, {16}):
        times = read_times(path, where=where)
        assert {size for cells in times.cells.values() for (size,) in cells} == sizes and times.counts.holes == 0
    wrong = ({"hidden": 9}, {"hiden": 8})
    said(*(refusal(read_times, path, where=where, folder=tmp_path) for where in wrong))
    (tmp_path / "own").mkdir()
    for hidden in (8, 16):
        files.write(planted(hidden), tmp_path / "own")
    for source in (tmp_path / "own", load(tmp_path / "own")):
        assert read_times(source, where={"hidden": "16"}).counts.shapes == 1


def test_several_tables_are_several_systems_unless_columns_name_them(tmp_path):
    first = put(tmp_path / "first.csv", {"hidden": [8, 16], "latency_us": [1, 2]})
    second = put(tmp_path / "second.csv", {"hidden": [8, 16, 16], "latency_ms": [3, 4, ""]})

    def found(times):
        return {label: {size: cell.latency_us for (size,), cell in row.items()} for label, row in times.cells.items()}

    times = read_times([first, second])
    assert found(times) == {"file first": {8: 1, 16: 2}, "file second": {8: 3000, 16: 4000}}
    assert times.systems["file first"] == {"file": "first"}
    assert (times.counts.rows, times.counts.used, times.counts.blank, times.counts.shapes) == (5, 4, 1, 4)
    assert times.how == {"column": "latency_us, latency_ms", "unit": "us, ms"}
    put(first, {"runtime": ["x", "y"], "hidden": [8, 8], "latency_us": [1, 2]})
    put(second, {"runtime": ["x", "x"], "hidden": [16, 8], "latency_us": [3, 4]})
    times = read_times(tmp_path)
    assert found(times) == {"x": {8: 2.5, 16: 3}, "y": {8: 2}} and times.counts.duplicates == 1
    put(second, {"layers": [8], "latency_us": [1]})
    said(refusal(read_times, [first, second], folder=tmp_path))
