"""Recordings on disk: round trips, damage, foreign files, consolidation."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lstm_trt as lab
from lstm_trt.config.configuration import Configuration, Protocol
from lstm_trt.config.errors import LabError, NotReadable, StoreError, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.store import consolidated, files as store_files, folders, schema
from lstm_trt.store.locks import folder_lock
from tests.conftest import ROOT, run_here


def planted(hidden: int = 8, round: int = 0, rows: int = 20, **columns) -> schema.Recording:
    generator = np.random.default_rng(hidden + 1000 * round)
    latency = generator.integers(10_000, 20_000, rows)
    whole = {
        "trial": np.arange(rows),
        "warmup": np.arange(rows) < 3,
        "start_ns": np.cumsum(latency) + 100 * np.arange(rows),
        "latency_ns": latency,
        "minor_faults": np.zeros(rows, np.int64),
        **columns,
    }
    configuration = Configuration(
        LstmShape(1, hidden, 4), "onnxruntime", "1.0", "a processor", protocol=Protocol(trials=rows - 3)
    )
    return schema.Recording(configuration, round, whole, {"planted": hidden, "machine_fingerprint": "m"})


def same(first: schema.Recording, second: schema.Recording) -> bool:
    return (
        (first.configuration, first.round, first.provenance) == (second.configuration, second.round, second.provenance)
        and first.columns.keys() == second.columns.keys()
        and all(np.array_equal(first.columns[name], second.columns[name]) for name in first.columns)
    )


def test_a_recording_comes_back_as_it_was(tmp_path):
    recording = planted()
    path = store_files.write(recording, tmp_path)
    assert same(store_files.read(path), recording)
    assert [each.name for each in tmp_path.iterdir()] == [path.name] == [f"{recording.configuration.id}-r0.parquet"]
    # Readable by anyone with a Parquet reader; what was not measured is null.
    frame = pq.read_table(path).to_pandas()
    assert list(frame) == [*schema.COLUMNS, *schema.CONTROL_COLUMNS]
    assert frame["compute_ns"].isna().all() and frame["warmup"].dtype == bool
    description = json.loads(pq.read_schema(path).metadata[b"lstm_trt"])
    assert {"schema_version": 1, "config_id": recording.configuration.id}.items() <= description.items()


@pytest.mark.parametrize(
    "change",
    [
        {"trial": np.arange(1, 21)},
        {"latency_ns": np.full(20, -1)},
        {"warmup": np.zeros(19, bool)},
        {"colour": np.zeros(20)},
        *({"blocks": rows} for rows in [(19,), (-1, 21), (20, 20)]),
    ],
)
def test_an_invalid_recording_is_not_written(tmp_path, change):
    rows = change.pop("blocks", ())
    recording = planted(**change)
    if rows:
        recording.provenance["blocks"] = [{"first_row": 0, "rows": each} for each in rows]
    with pytest.raises(StoreError):
        store_files.write(recording, tmp_path)
    assert list(tmp_path.iterdir()) == []


def described(table: pa.Table, **changes) -> pa.Table:
    """A table of trials with other values in its description."""
    description = json.loads(table.schema.metadata[b"lstm_trt"]) | changes
    return table.replace_schema_metadata({b"lstm_trt": json.dumps(description).encode()})


def damaged_files(folder: Path) -> dict[str, Path]:
    path = store_files.write(planted(), folder)
    whole, table = path.read_bytes(), pq.read_table(path)
    contents = {
        "short": whole[:-100],
        "text": b"latency\n1\n2\n",
        "empty": b"",
        "middle": whole[:4] + bytes(56) + whole[60:],
    }
    tables = {
        "foreign": pa.table({"a": [1]}),
        "newer": described(table, schema_version=schema.SCHEMA_VERSION + 1),
        "bare": table.replace_schema_metadata({b"lstm_trt": b'{"schema_version": 1}'}),
    }
    files = {name: folder / f"{name}.parquet" for name in (*contents, *tables)}
    for name, content in contents.items():
        files[name].write_bytes(content)
    for name, damaged in tables.items():
        pq.write_table(damaged, files[name])
    return files


def test_damaged_and_foreign_files_are_one_line(tmp_path, refused):
    files = damaged_files(tmp_path)
    for path in files.values():
        with pytest.raises(LabError, match=path.name):
            store_files.read(path)
    for name, expected in {
        "foreign": "--unit",
        "newer": "upgrade lstm_trt",
        "short": "not a valid Parquet file",
    }.items():
        assert expected in refused("summarize", files[name])
    said = refused("summarize", files["bare"], files["empty"])
    assert str(files["bare"]) in said or str(files["empty"]) in said


@pytest.mark.parametrize("command", ["summarize", "outliers", "verdict", "compare", "scaling", "replay"])
def test_a_truncated_recording_is_a_line_and_the_rest_of_the_folder_is_read(tmp_path, lab, command):
    store_files.write(planted(), tmp_path)
    more = {"verdict": ["--deadline-us", 1e9], "replay": ["--period-us", 1e9], "compare": [tmp_path]}
    whole = lab(command, tmp_path, *more.get(command, ()))
    path = store_files.write(planted(9), tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    rest = lab(command, tmp_path, *more.get(command, ()))
    assert rest.returncode == 3 and rest.stdout == whole.stdout
    lines = [line for line in rest.stderr.splitlines() if line not in whole.stderr.splitlines()]
    assert len(lines) == 1 and path.name in lines[0] and "the rest is read; a sweep with the same --out" in lines[0]


@pytest.mark.parametrize(("name", "value"), [("round", "x"), ("provenance", []), ("part", "x")])
def test_a_recording_that_contradicts_itself_is_refused_when_read(tmp_path, name, value):
    path = store_files.write(planted(), tmp_path)
    pq.write_table(described(pq.read_table(path), **{name: value}), path)
    with pytest.raises(StoreError):
        store_files.read(path)


def unreadable(error: Exception, monkeypatch) -> None:
    """Opening a Parquet file raises this."""

    def raise_error(*arguments, **options):
        raise error

    for name in ("ParquetFile", "read_metadata"):
        monkeypatch.setattr(pq, name, raise_error)


def replaced_by(path, kind, monkeypatch):
    """Put something in the place of a recording that the system does not let be read."""
    match kind:
        case "folder":
            path.unlink()
            path.mkdir()
        case "link to what is gone":
            path.unlink()
            path.symlink_to(path.parent / "gone")
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case _:
            unreadable(OSError(getattr(errno, kind), "said by a library"), monkeypatch)


@pytest.mark.parametrize("kind", ["folder", "link to what is gone", "pipe", "EACCES", "EIO", "EMFILE", "ESTALE"])
def test_what_cannot_be_read_is_not_damaged(kind, tmp_path, monkeypatch):
    """It stays where it is, and no command promises to record it again."""
    store_files.write(planted(8), tmp_path)
    path = store_files.write(planted(9), tmp_path)
    with monkeypatch.context() as context:
        replaced_by(path, kind, context)
        found = sorted(each.name for each in tmp_path.iterdir())
        for read in (folders.tidy, folders.cells, lambda folder: list(folders.read_many(folder))):
            with pytest.raises(NotReadable, match=r"cannot read .*\.parquet: [A-Z]"):
                read(tmp_path)
        skipped = []
        assert len(list(folders.read_many(tmp_path, skipped=skipped))) + len(skipped) == 2
        with pytest.raises(NotReadable):
            store_files.read_failure(tmp_path)
        assert sorted(each.name for each in tmp_path.iterdir()) == found
    if kind.startswith("E"):
        assert len(lab.load(tmp_path)) == 2
    else:
        loaded = lab.load(tmp_path)
        assert len(loaded) == 1 and "records it again" not in "".join(loaded.warnings)


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError("malloc of size 9 failed")])
def test_a_lack_of_memory_says_nothing_of_a_file(error, tmp_path, monkeypatch):
    path = store_files.write(planted(), tmp_path)
    unreadable(error, monkeypatch)
    for read, place in ((store_files.read, path), (store_files.metadata_of, path), (folders.tidy, tmp_path)):
        with pytest.raises(MemoryError):
            read(place)
    found = run_here(["summarize", str(tmp_path)])
    assert found.returncode == 1 and found.stderr.startswith("lstm-trt: not enough memory")
    assert len(found.stderr.splitlines()) == 1
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("warnings", "one"),
        ("switches", {"ran": {}}),
        ("machine", {"cpu": 5}),
        ("parity", {"error": "small"}),
        ("started_unix_ns", 2**70),
        ("machine_fingerprint", ["m"]),
        ("versions", {"torch": {}}),
    ],
)
def test_what_a_recording_states_has_its_type(name, value, tmp_path):
    """In a recording, in a consolidated pair and in a failure; one that is damaged does not keep others from it."""
    sound, damaged = planted(8), planted(9)
    damaged.provenance[name] = value
    failed = schema.Failure(damaged.configuration, 1, "run", "fell over", damaged.provenance)
    for write, read, item in (
        (store_files.write, store_files.read, damaged),
        (store_files.write_failure, store_files.read_failure, failed),
    ):
        path = write(item, tmp_path)
        with pytest.raises(StoreError, match=f"provenance.{name}"):
            read(path)
        path.unlink()
    consolidated.consolidate([sound, damaged], tmp_path)
    (group,) = lab.load(tmp_path)
    assert group.configuration == sound.configuration


@pytest.mark.parametrize("text", ['"\\ud800"', "1e999", "NaN", "-Infinity"])
def test_numbers_and_texts_that_json_cannot_have_are_damage(text, tmp_path):
    failure = schema.Failure(planted().configuration, 0, "run", "fell over", {"detail": "PLACE"})
    path = store_files.write_failure(failure, tmp_path)
    path.write_text(path.read_text().replace('"PLACE"', text))
    with pytest.raises(StoreError, match="not a valid failure file"):
        store_files.read_failure(path)
    path.write_text(path.read_text().replace(text, '"\\ud83d\\ude00 1e999 NaN"'))
    assert store_files.read_failure(path).provenance["detail"] == "\U0001f600 1e999 NaN"


def test_one_flipped_bit_in_the_latencies_is_found(tmp_path):
    path = store_files.write(planted(rows=5000), tmp_path)
    column = pq.ParquetFile(path).metadata.row_group(0).column(list(schema.COLUMNS).index("latency_ns"))
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError):
        store_files.read(path)


def test_a_folder_without_recordings_names_the_command_that_records(tmp_path, refused):
    assert "lstm-trt record" in refused("summarize", tmp_path)


def test_failures_come_back_and_give_way_to_recordings(tmp_path):
    recording = planted()
    failure = schema.Failure(recording.configuration, 0, "time", "took longer")
    path = store_files.write_failure(failure, tmp_path)
    assert path.name == f"{recording.configuration.id}-r0.failure.json"
    assert store_files.read_failure(path) == failure
    assert list(folders.read_many(tmp_path)) == [failure]
    store_files.write(recording, tmp_path)
    assert [type(item) for item in folders.read_many(tmp_path)] == [schema.Recording]
    for damaged in ("{}", "true", "[]", "null", "[" * 100_000):
        path.write_text(damaged)
        with pytest.raises(StoreError, match=r"failure\.json"):
            store_files.read_failure(path)


def test_consolidation_holds_the_folder_and_a_tidy_of_another_process_takes_nothing_of_it(tmp_path, monkeypatch):
    store_files.write(planted(), tmp_path)
    seen = []

    def read_many(path):
        seen.extend(item.name for item in path.glob(".*.tmp"))
        with pytest.raises(UsageError, match="in use"), folder_lock(path):
            pass
        yield from ()

    monkeypatch.setattr(folders, "read_many", read_many)
    for _ in range(2):
        folders.consolidate_folder(tmp_path)
    assert sorted(name.rsplit(".", 3)[0] for name in set(seen)) == 2 * [".configs.parquet"] + 2 * [".trials.parquet"]
    assert not list(tmp_path.glob(".*.tmp"))
    with folder_lock(tmp_path), pytest.raises(UsageError, match="in use"):
        folders.consolidate_folder(tmp_path)


#: For each number that it reads, a fork of this process consolidates a folder in groups of 20 rows and kills itself
#: before that one of its writes and renamings; its exit status is printed.
KILLED = """
import os, signal, sys
from pathlib import Path
import numpy, pandas  # else each fork loads them
import pyarrow.parquet as pq
from lstm_trt.store import consolidated, folders
left = 0
def counted(call):
    def counting(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return counting
pq.ParquetWriter.write_table = counted(pq.ParquetWriter.write_table)
Path.replace = counted(Path.replace)
consolidated.consolidate.__defaults__ = (20,)
for line in sys.stdin:
    left = int(line)
    fork = os.fork()
    if fork == 0:
        folders.consolidate_folder(Path(sys.argv[1]))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), flush=True)
"""


@pytest.mark.heavy
def test_consolidation_that_is_killed_at_any_moment_loses_and_doubles_nothing(tmp_path):
    """With a pair that is the only copy of four recordings, and three new ones."""
    items = {(item.configuration.id, item.round): item for item in (planted(8 + k % 3, k // 3) for k in range(7))}
    for number, item in enumerate(items.values()):
        path = store_files.write(item, tmp_path)
        if number == 3:
            folders.consolidate_folder(tmp_path)
            for path in folders.contents(tmp_path).recorded:
                path.unlink()

    def check():
        back = list(folders.read_many(tmp_path))
        assert len(back) == 7 and all(same(item, items[item.configuration.id, item.round]) for item in back)

    command, pipe = [sys.executable, "-c", KILLED, tmp_path], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        for kill in range(1, 12):  # seven groups, the configurations, three renamings
            print(kill, file=process.stdin, flush=True)
            assert process.stdout.readline() == f"{-signal.SIGKILL}\n"
            check()
    folders.tidy(tmp_path)
    check()
    assert not list(tmp_path.glob(".*.tmp"))
    folders.consolidate_folder(tmp_path)
    for path in folders.contents(tmp_path).recorded:
        path.unlink()
    check()
    assert sorted(path.name for path in tmp_path.glob("*.parquet*")) == ["configs.parquet", "trials.parquet"]


@pytest.mark.parametrize("group_rows", [1, 50, 10**6])
def test_consolidation_keeps_everything(tmp_path, group_rows):
    items = [planted(hidden, round) for hidden in (8, 9, 10) for round in (0, 1)]
    items.append(schema.Failure(planted(11).configuration, 0, "parity", "differs", {"detail": "x"}))
    items.insert(2, planted(12, rows=5, compute_ns=np.arange(5)))
    assert consolidated.consolidate(items, tmp_path, group_rows) == (7, 1)
    for path in (tmp_path, tmp_path / "trials.parquet", tmp_path / "configs.parquet"):
        back = {(item.configuration.id, item.round): item for item in folders.read_many(path)}
        assert len(back) == 8
        for item in items:
            other = back[item.configuration.id, item.round]
            assert other == item if isinstance(item, schema.Failure) else same(other, item)
    frame = pq.read_table(tmp_path / "trials.parquet").to_pandas()
    assert len(frame) == 6 * 20 + 5 and frame["config_id"].nunique() == 4


def test_a_consolidated_folder_and_its_sources_are_read_once(tmp_path):
    for hidden in (8, 9):
        store_files.write(planted(hidden), tmp_path)
    consolidated.consolidate(folders.read_many(tmp_path), tmp_path)
    store_files.write(planted(10), tmp_path)
    assert widths(tmp_path) == [8, 9, 10]
    # And again, from the folder into itself.
    assert consolidated.consolidate(folders.read_many(tmp_path), tmp_path) == (3, 0)
    assert widths(tmp_path / "trials.parquet") == [8, 9, 10]


def widths(path: Path) -> list[int]:
    return sorted(item.configuration.workload.hidden for item in folders.read_many(path))


def consolidate_one(recording: schema.Recording, folder: Path) -> None:
    consolidated.consolidate([recording], folder)


def opened(folder: Path) -> list[str]:
    """What of a folder this process holds open, with the names of files that were deleted."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the handle of the listing itself
            found.append(str(handle.readlink()))
    return [name for name in found if name.startswith(f"{folder}/")]


@pytest.mark.parametrize("write", [store_files.write, consolidate_one], ids=["recording", "consolidated"])
def test_a_full_disk_leaves_nothing_and_nothing_open(tmp_path, write):
    """Wherever the disk is full: at each eighth of the longest file and one byte before its end.

    The limit on the size of a file stands for it. The error is held, as by Python 3.13 until a collection of garbage.
    """
    write(planted(rows=2000), tmp_path)
    largest = max(path.stat().st_size for path in tmp_path.iterdir())
    for path in tmp_path.iterdir():
        path.unlink()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in [*range(0, largest, largest // 8), largest - 1]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, unlimited[1]))
        try:
            with pytest.raises(StoreError, match="File too large") as raised:
                write(planted(rows=2000), tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        assert raised.value and opened(tmp_path) == list(tmp_path.iterdir()) == [], size


def test_halves_of_two_consolidations_are_not_read_together(tmp_path):
    consolidate_one(planted(8), tmp_path)
    kept = (tmp_path / "configs.parquet").read_bytes()
    consolidate_one(planted(9), tmp_path)
    (tmp_path / "configs.parquet").write_bytes(kept)
    with pytest.raises(StoreError):
        list(folders.read_many(tmp_path))


def test_a_consolidation_that_breaks_off_leaves_the_old_pair(tmp_path):
    consolidate_one(planted(8), tmp_path)

    def broken():
        yield planted(9)
        raise StoreError("a damaged file")

    with pytest.raises(StoreError):
        consolidated.consolidate(broken(), tmp_path, group_rows=1)
    assert widths(tmp_path) == [8]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["configs.parquet", "trials.parquet"]


def pair(folder) -> tuple[Path, pa.Table]:
    """A consolidated recording and failure in a folder: the path of `configs.parquet` and its table."""
    failure = schema.Failure(planted().configuration, 0, "run", "it broke off")
    consolidated.consolidate([planted(16), failure], folder)
    path = folder / consolidated.CONFIGS_FILE
    return path, pq.read_table(path)


@pytest.mark.parametrize(
    "damage",
    [
        *({name: None} for name in ("reason", "stage", "provenance", "config_id", "rows")),
        {"configuration": "{"},
        {"rows": 10**6},
        {"first_row": -3, "rows": -3},
        {"first_row": -1},
        *({"row_group": place} for place in (7, -7, 2**40)),
    ],
    ids=str,
)
def test_consolidated_rows_that_are_damaged_are_refused(damage, tmp_path):
    path, configs = pair(tmp_path)
    rows = [row | damage for row in configs.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=configs.schema), path)
    with pytest.raises(StoreError):
        list(folders.read_many(tmp_path))


@pytest.mark.parametrize("name", consolidated.CONFIG_COLUMNS)
def test_a_consolidated_column_that_is_damaged_is_refused(name, tmp_path):
    """The schema of a Parquet file has no checksum: a name may be another, or twice there, a type another."""
    path, configs = pair(tmp_path)
    place = configs.column_names.index(name)
    doubled = configs.append_column(name, configs.column(name))
    renamed = configs.rename_columns([column + "x" * (column == name) for column in configs.column_names])
    for table in (doubled, renamed, configs.set_column(place, name, pa.array([[1.5]] * len(configs)))):
        pq.write_table(table.replace_schema_metadata(configs.schema.metadata), path)
        for read in (widths, folders.finished):
            with pytest.raises(StoreError):
                read(tmp_path)


@pytest.fixture(params=["one file", "a pair"])
def trials(request, tmp_path) -> tuple[Path, pa.Table]:
    """The path of a file with trials in a folder that has no other, and its table."""
    if request.param == "one file":
        path = store_files.write(planted(16), tmp_path)
    else:
        path = pair(tmp_path)[0].with_name(consolidated.TRIALS_FILE)
    return path, pq.read_table(path)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *(("trial", values) for values in (range(1, 21), range(19, -1, -1))),
        ("start_ns", range(19, -1, -1)),
        *(("latency_ns", values) for values in ([-1] * 20, [0.5] * 20, [[1.5]] * 20, ["a"] * 20, [b"\xff"] * 20)),
        *((name, pa.nulls(20)) for name in schema.REQUIRED),
        *((name, None) for name in schema.REQUIRED),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_column_that_is_damaged_or_has_another_name_is_refused_where_it_is_read(name, values, trials):
    """As another program may have written it."""
    path, table = trials
    place = table.column_names.index(name)
    if values is None:
        damaged = table.rename_columns([*table.column_names[:place], "damaged", *table.column_names[place + 1 :]])
    else:
        damaged = table.set_column(place, name, pa.array(values))
    pq.write_table(damaged.replace_schema_metadata(table.schema.metadata), path)
    for columns in (None, [name], schema.REQUIRED):
        with pytest.raises(StoreError):
            list(folders.read_many(path.parent, columns))
    if values is None or name == "latency_ns":
        assert list(folders.read_many(path.parent, set(schema.REQUIRED) - {name}))
