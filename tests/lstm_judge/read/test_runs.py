"""Runs: groups of rounds, selected by their configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lstm_judge.read.runs import LATENCIES, Incomplete, Runs, as_runs, load, other_versions
from lstm_judge.summarize.summarize import summarize
from lstm_onnx.c.file import VERSION
from lstm_trt.config.errors import UnknownConfiguration, UsageError
from lstm_trt.store import consolidated, files, folders, schema
from lstm_trt.store.locks import LOCK_FILE, folder_in_use, folder_lock
from tests.conftest import ROOT
from tests.lstm_trt.store.test_store import planted


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


def test_groups_are_chosen_by_a_range_and_by_what_the_protocol_has_by_default(folder):
    """Random selections are in tests/lstm_judge/cli/test_selection.py."""
    assert len(load(folder).where(hidden=range(10), period_us=None, arrival="closed")) == 1
    assert len(load(folder, hidden=16).recordings) == 1


def test_values_that_no_chosen_group_has_are_missing(folder):
    runs = load(folder)
    assert runs.where(hidden=range(10)).missing == {}
    found = runs.where(hidden=[8, "9"], runtime=["onnxruntime", "pytorch"])
    assert found.missing == {"hidden 9": {"hidden": 9}, "runtime pytorch": {"runtime": "pytorch"}}
    assert [type(warning) for warning in found.warnings] == [Incomplete]
    assert found.lacks == ["not recorded: hidden 9, runtime pytorch"] == str(found).splitlines()[1:]
    assert str(summarize(found)).splitlines()[-1:] == found.lacks


def test_what_was_missing_stays_so_as_long_as_the_selection_asks_for_it(folder):
    several = load(folder, hidden=[8, 9, 32])
    for again, missing in (({"hidden": [9, 32]}, ["hidden 9"]), ({"hidden": 32}, []), ({"threads": 1}, ["hidden 9"])):
        assert list(several.where(**again).missing) == missing


def test_a_text_chooses_what_is_written_so_and_a_default_that_recordings_leave_out(folder):
    """As the command line gives values."""
    runs = load(folder)
    assert [group.group["hidden"] for group in runs.where(hidden=["16", "17"], precision="FP32")] == [16]
    assert len(runs.where(io_binding="yes", graph="false", until="none", runtime="onnxruntime")) == 3
    with pytest.raises(UsageError, match="no recording or row has io_binding no"):
        runs.where(io_binding="no")
    with pytest.raises(UsageError, match="'thread' \\(did you mean 'threads'"):
        runs.where(thread=1)


def test_a_size_of_an_own_network_and_the_beginning_of_a_fingerprint_choose():
    runs = load(ROOT / "data/xeon/own-network")
    for time in ("64", [8, 16]):
        assert {*runs.where(time=time).frame["sequence"]} == set(map(int, np.atleast_1d(time)))
    assert len(runs.where(machine=runs[0].machine[:5])) == sum(group.n > 0 for group in runs)
    with pytest.raises(UsageError):
        runs.where(machine=runs[0].machine[1:5])


def on_machine(recording: schema.Recording, machine: str) -> schema.Recording:
    return replace(recording, provenance={**recording.provenance, "machine_fingerprint": machine})


def test_two_machines_with_one_configuration_stay_apart(tmp_path):
    """A selection has the recordings of its groups only, and a failure belongs to the machine on which it happened."""
    for recording, machine in ((planted(8), "a"), (planted(8, 1), "b"), (planted(9, 1), "b")):
        files.write(on_machine(recording, machine), tmp_path)
    failed = schema.Failure(planted(9).configuration, 0, "time", "late", {"machine_fingerprint": "a"})
    files.write_failure(failed, tmp_path)
    runs = load(tmp_path)
    assert sorted((group.group["hidden"], group.machine, group.failure is None) for group in runs) == [
        (8, "a", True),
        (8, "b", True),
        (9, "a", False),
        (9, "b", True),
    ]
    for chosen, machine in ((runs.where(machine="b", hidden=8), "b"), (runs.where(hidden=8)[:1], runs[0].machine)):
        assert [item.provenance["machine_fingerprint"] for item in chosen.recordings] == [machine]
        (row,) = summarize(chosen)
        assert row.machine == machine and row.rounds.count == 1
    for machine, last in (("a", "failed"), ("b", "ok")):
        assert [row.status for row in summarize(runs.where(machine=machine), by_round=True)] == ["ok", last]


def test_groups_of_a_table_are_chosen_by_its_columns(table):
    path = table({"hidden": [8, 16] * 3, "latency_us": [1, 2, 3, 4, 5, 6]})
    runs = load(path, group_by=["hidden"])
    assert runs.where(hidden=16)[0].n == 3 and not runs.own and runs.group_by == ("hidden",)
    assert runs.frame["hidden"].tolist() == [8, 16]


def test_runs_of_paths_groups_and_recordings(folder):
    runs = load(folder)
    items = list(folders.read_many(folder))
    assert as_runs(runs) is runs
    for source in (folder, str(folder), runs.groups, items, runs.recordings):
        again = as_runs(source)
        assert [group.name for group in again] == [group.name for group in runs] and again.grouped and again.own
    assert as_runs(runs[0]).groups == (runs[0],) and len(as_runs(items[0])) == 1
    with pytest.raises(UsageError):
        as_runs([1, 2])


# Recordings of a newer version, and one writer per folder


def newer(folder, name: str, change) -> None:
    """A recording of `planted(8)` with another configuration in its metadata, as a newer version would write it."""
    path = files.write(planted(8, round=7), folder)
    table = pq.read_table(path)
    described = json.loads(table.schema.metadata[schema.METADATA_KEY])
    change(described)
    pq.write_table(table.replace_schema_metadata({schema.METADATA_KEY: json.dumps(described).encode()}), folder / name)
    path.unlink()


NEWER = {
    "workload kind": lambda described: described["configuration"]["workload"].update(kind="transformer"),
    "field of the workload": lambda described: described["configuration"]["workload"].update(heads=8),
    "option": lambda described: described["configuration"]["options"].update(fusion="all"),
    "protocol": lambda described: described["configuration"]["protocol"].update(batching="adaptive"),
    "schema": lambda described: described.update(schema_version=99),
}


@pytest.mark.parametrize("kind", NEWER)
def test_a_recording_of_a_newer_version_is_skipped_with_one_warning(folder, kind):
    before = [group.name for group in load(folder)]
    newer(folder, f"{'0' * 64}-r0.parquet", NEWER[kind])
    kept = sorted(path.name for path in folder.iterdir())
    runs = load(folder)
    assert [group.name for group in runs] == before and len(runs.warnings) == 1
    assert runs.warnings[0].startswith("1 recording of a newer version")
    folders.tidy(folder)
    assert sorted(path.name for path in folder.iterdir()) == kept  # neither renamed nor deleted
    with pytest.raises(UnknownConfiguration, match=r"0000-r0\.parquet"):
        load(folder / f"{'0' * 64}-r0.parquet")
    with pytest.raises(UnknownConfiguration):  # it would be missing from the pair
        folders.consolidate_folder(folder)


def test_a_folder_of_nothing_but_newer_recordings_is_one_error(tmp_path):
    newer(tmp_path, f"{'0' * 64}-r0.parquet", NEWER["option"])
    with pytest.raises(UnknownConfiguration, match="1 recording of a newer version"):
        load(tmp_path)


def test_newer_rows_of_a_pair_and_newer_failures_are_skipped(tmp_path):
    consolidated.consolidate([planted(8), planted(16)], tmp_path)
    path = tmp_path / consolidated.CONFIGS_FILE
    table = pq.read_table(path)
    rows = table.to_pylist()
    changed = {"configuration": json.loads(rows[1]["configuration"])}
    NEWER["workload kind"](changed)
    rows[1]["configuration"] = json.dumps(changed["configuration"])
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    path = files.write_failure(schema.Failure(planted(32).configuration, 0, "build", "a reason"), tmp_path)
    described = json.loads(path.read_text())
    NEWER["option"](described)
    path.write_text(json.dumps(described))
    runs = load(tmp_path)
    assert [group.group["hidden"] for group in runs] == [8] and runs.warnings[0].startswith("2 recordings")
    with pytest.raises(UnknownConfiguration):
        list(folders.read_many(tmp_path))


def test_a_lock_is_released_when_its_holder_is_killed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from lstm_trt.store.locks import folder_lock\n"
        "with folder_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            assert folder_in_use(tmp_path)
            with pytest.raises(UsageError, match=f"process {holder.pid}"), folder_lock(tmp_path):
                pass
        finally:
            holder.kill()
    assert not folder_in_use(tmp_path)
    with folder_lock(tmp_path):
        assert (tmp_path / LOCK_FILE).read_text().strip() == str(os.getpid())


# Other versions


def recorded_with(version: str, hidden: int = 8, runtime: str = "onnxruntime", **versions: str) -> schema.Recording:
    plain = planted(hidden)
    configuration = replace(plain.configuration, runtime=runtime, runtime_version=version)
    return replace(plain, configuration=configuration, provenance={**plain.provenance, "versions": versions})


def lines_of(*recordings: schema.Recording) -> list[str]:
    return list(other_versions(as_runs(recordings)))


def test_recordings_of_one_version_that_is_installed_or_not_known_here_are_not_remarked():
    here = np.__version__
    assert lines_of(recorded_with(here, 8, numpy=here), recorded_with(here, 16, numpy=here)) == []
    assert lines_of(recorded_with("1.0", nothing_of_this_name="1.0")) == [] == lines_of(recorded_with("1.0"))
    assert lines_of(recorded_with(f"{VERSION}, gcc 1.2", runtime="c")) == []


@pytest.mark.parametrize(
    ("recordings", "named"),
    [
        ([recorded_with("0.1", numpy="0.1")], ["0.1", np.__version__]),
        ([recorded_with("0.1", 8), recorded_with("0.2", 16)], ["0.1", "0.2"]),
        ([recorded_with("1, gcc 1.2", runtime="c")], ["kernel 1", f"kernel {VERSION}"]),
        ([recorded_with(f"{VERSION}, gcc {name}", 8, "c") for name in ("1.2", "3.4")], ["gcc 1.2", "gcc 3.4"]),
        ([recorded_with(np.__version__, numpy=np.__version__), recorded_with("1, cc 1", 16, "c")], ["kernel 1"]),
    ],
)
def test_other_versions_than_here_and_several_are_named_in_one_line(recordings, named):
    (line,) = lines_of(*recordings)
    assert all(text in line for text in named) and "\n" not in line
    runs = as_runs(recordings)
    assert runs.remarks == (*runs.warnings, line)
    failed = schema.Failure(recorded_with("0.0", 99).configuration, 0, "build", "no")
    assert lines_of(*recordings, failed) == [line]  # what was not recorded has no version


def test_the_rows_of_a_summary_show_the_versions_that_tell_them_apart():
    one, other = (str(summarize([recorded_with(name) for name in names])) for names in (["1.0"], ["1.0", "2.0"]))
    assert "version" not in one.splitlines()[2].split() and "version" in other.splitlines()[2].split()
    *_, first, second = other.splitlines()
    assert "1.0" in first.split() and "2.0" in second.split()


def test_runs_groups_and_rounds_are_one_short_line():
    runs = load(ROOT / "data/epyc/deadline", columns=LATENCIES)[:3]
    group, n = runs[0], sum(group.n for group in runs)
    assert repr(runs) == f"<Runs: 3 configurations, {n} trials, {ROOT / 'data/epyc/deadline'}>"
    assert repr(group) == f"<Group {group.name}: {group.n} trials in 1 round>"
    assert repr(group.rounds[0]) == f"<Round 0: {group.rounds[0].n} trials>"
    assert len(repr(replace(runs, source=100 * "long/"))) < 200
    html = runs._repr_html_()
    assert html.startswith("<p>") and runs.sentence in html and html.count("<tr") == 4
    printed = []
    runs._repr_pretty_(SimpleNamespace(text=printed.append), cycle=False)
    assert printed[0].endswith(str(runs))
