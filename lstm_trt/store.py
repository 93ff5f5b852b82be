"""Recordings on disk: the Parquet schema, writing, reading, validating, consolidating.

A recording is one self-contained file: a column a quantity, a row a trial, and as
JSON in the file's metadata the configuration, the provenance and the schema's
version. It is written under a temporary name and moved into place. A configuration
that failed is a small JSON file beside the recordings.

Schema history (older versions stay readable):
  1  first version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lstm_trt.cache import write_whole
from lstm_trt.configuration import Configuration, canonical_json
from lstm_trt.errors import STAGES, StoreError, UsageError

SCHEMA_VERSION = 1
METADATA_KEY = b"lstm_trt"
COLUMNS = {
    "trial": "int64",
    "warmup": "bool",
    "start_ns": "int64",
    "intended_ns": "int64",
    "latency_ns": "int64",
    "enqueue_ns": "int64",
    "h2d_ns": "int64",
    "compute_ns": "int64",
    "d2h_ns": "int64",
    "involuntary_switches": "int64",
    "minor_faults": "int64",
    "major_faults": "int64",
}
REQUIRED = ("trial", "warmup", "start_ns", "latency_ns")
TRIALS_FILE, CONFIGS_FILE = "trials.parquet", "configs.parquet"
_NAME = re.compile(r"^(?P<id>[0-9a-f]{64})-r(?P<round>\d+)(?P<suffix>\.parquet|\.failure\.json)$")


@dataclass(frozen=True)
class Recording:
    """Trials of one configuration in one round; a column that was not measured is absent.

    `trial` counts rows from 0, warm-up included. `warmup` marks the rows that
    statistics leave out.
    """

    configuration: Configuration
    round: int
    columns: dict[str, np.ndarray] = field(repr=False)
    provenance: dict = field(repr=False)

    @property
    def timed_ns(self) -> np.ndarray:
        """Latencies after warm-up, in ns, in the order of the trials."""
        return self.columns["latency_ns"][~self.columns["warmup"]]

    @property
    def file_name(self) -> str:
        return f"{self.configuration.id}-r{self.round}.parquet"


@dataclass(frozen=True)
class Failure:
    """A configuration that could not be recorded, at which stage, and why."""

    configuration: Configuration
    round: int
    stage: str
    reason: str
    provenance: dict = field(repr=False, default_factory=dict)

    @property
    def file_name(self) -> str:
        return f"{self.configuration.id}-r{self.round}.failure.json"


def write(recording: Recording, folder: Path) -> Path:
    """Write `<id>-r<round>.parquet` into `folder`, whole or not at all.

    Raises `StoreError` for a full disk or an unwritable folder; what was there stays.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    validate(recording, "the recording")
    rows = len(recording.columns["trial"])
    arrays, fields = [], []
    for name, kind in COLUMNS.items():
        values = recording.columns.get(name)
        arrow_kind = pa.bool_() if kind == "bool" else pa.int64()
        arrays.append(pa.nulls(rows, arrow_kind) if values is None else pa.array(values, arrow_kind))
        fields.append(pa.field(name, arrow_kind))
    described = {
        "schema_version": SCHEMA_VERSION,
        "configuration": recording.configuration.as_dict(),
        "config_id": recording.configuration.id,
        "round": recording.round,
        "provenance": recording.provenance,
    }
    schema = pa.schema(fields, metadata={METADATA_KEY: canonical_json(described).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), sink, compression="zstd", write_page_checksum=True)
    return put(folder / recording.file_name, sink.getvalue().to_pybytes())


def write_failure(failure: Failure, folder: Path) -> Path:
    """Write `<id>-r<round>.failure.json`; raises `StoreError` as `write` does."""
    if failure.stage not in STAGES:
        raise ValueError(f"unknown stage {failure.stage!r}")
    described = {
        "schema_version": SCHEMA_VERSION,
        "status": "failed",
        "stage": failure.stage,
        "reason": failure.reason,
        "configuration": failure.configuration.as_dict(),
        "config_id": failure.configuration.id,
        "round": failure.round,
        "provenance": failure.provenance,
    }
    return put(folder / failure.file_name, (json.dumps(described, indent=1, sort_keys=True) + "\n").encode())


def put(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all; raises `StoreError` in one line."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; nothing was left half-written") from None
    return path


def make_folder(folder: Path) -> Path:
    """Create a folder for recordings and prove that it can be written; raises `UsageError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable.tmp"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}; choose another --out") from None
    return folder


def validate(recording: Recording, where: object) -> None:
    """Raise `StoreError` where columns are missing, of unequal length, or not what they claim."""
    columns = recording.columns
    for name in REQUIRED:
        if name not in columns:
            raise StoreError(f"{where}: column {name} is missing")
    for name, values in columns.items():
        if name not in COLUMNS:
            raise StoreError(f"{where}: unknown column {name}")
        if len(values) != len(columns["trial"]):
            raise StoreError(f"{where}: column {name} has {len(values)} rows, trial has {len(columns['trial'])}")
    if len(columns["trial"]) == 0:
        raise StoreError(f"{where}: holds no trial")
    if not np.array_equal(columns["trial"], np.arange(len(columns["trial"]))):
        raise StoreError(f"{where}: trials are missing or out of order")
    if (columns["latency_ns"] < 0).any():
        raise StoreError(f"{where}: a latency is negative")


def read(path: Path) -> Recording:
    """One recording. Raises `StoreError` for a damaged, foreign or newer file."""
    import pyarrow.parquet as pq

    table = _open(path, lambda path: pq.read_table(path, page_checksum_verification=True))
    described = _described(table.schema.metadata, path)
    try:
        return Recording(
            configuration=Configuration.from_dict(described["configuration"]),
            round=described["round"],
            columns=_columns(table, path),
            provenance=described["provenance"],
        )
    except KeyError as error:
        raise StoreError(f"{path}: its metadata lacks {error}") from None


def read_failure(path: Path) -> Failure:
    """One failure row. Raises `StoreError` for a damaged or foreign file."""
    try:
        described = json.loads(path.read_text())
        _check_version(described, path)
        return Failure(
            configuration=Configuration.from_dict(described["configuration"]),
            round=described["round"],
            stage=described["stage"],
            reason=described["reason"],
            provenance=described.get("provenance", {}),
        )
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, UsageError) as error:
        raise StoreError(f"{path} is not a failure row of this lab: {error}") from None


def _open(path: Path, reader):
    import pyarrow as pa

    try:
        return reader(path)
    except FileNotFoundError:
        raise StoreError(f"there is no file {path}") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise StoreError(f"{path} is not a whole Parquet file: {text}") from None


def _described(metadata: dict | None, path: Path) -> dict:
    if not metadata or METADATA_KEY not in metadata:
        raise StoreError(f"{path} is a Parquet file but no recording of this lab: it lacks the lstm_trt metadata")
    try:
        described = json.loads(metadata[METADATA_KEY])
    except ValueError as error:
        raise StoreError(f"{path}: its lstm_trt metadata is damaged: {error}") from None
    _check_version(described, path)
    return described


def _check_version(described: dict, path: Path) -> None:
    version = described.get("schema_version")
    if not isinstance(version, int):
        raise StoreError(f"{path}: its metadata has no schema_version")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {version}, this lab reads up to {SCHEMA_VERSION}: upgrade lstm_trt"
        )


def _columns(table, path: Path) -> dict[str, np.ndarray]:
    columns = {}
    for name in table.schema.names:
        if name not in COLUMNS:
            continue  # config_id and round of a consolidated table
        values = table.column(name)
        if values.null_count == len(values):
            continue
        if values.null_count:
            raise StoreError(f"{path}: column {name} has {values.null_count} holes")
        kind = bool if COLUMNS[name] == "bool" else np.int64
        columns[name] = values.to_numpy().astype(kind, copy=False)
    return columns


@dataclass(frozen=True)
class Contents:
    """What a folder holds: recordings by (config_id, round), failures likewise, the pair, renamed files."""

    recordings: dict[tuple[str, int], Path]
    failures: dict[tuple[str, int], Path]
    pair: Path | None
    others: list[Path]


def contents(folder: Path) -> Contents:
    """The names in a folder, without opening the files."""
    recordings, failures, others = {}, {}, []
    for path in sorted(folder.iterdir()):
        match = _NAME.match(path.name)
        if match:
            kind = recordings if match["suffix"] == ".parquet" else failures
            kind[match["id"], int(match["round"])] = path
        elif (
            path.suffix == ".parquet" and not path.name.startswith(".") and path.name not in (TRIALS_FILE, CONFIGS_FILE)
        ):
            others.append(path)
    pair = folder if (folder / TRIALS_FILE).exists() and (folder / CONFIGS_FILE).exists() else None
    return Contents(recordings, failures, pair, others)


def read_many(path: Path) -> Iterator[Recording | Failure]:
    """Everything under a file, a folder, or a consolidated pair (its folder or either file).

    A recording beside a consolidated pair that also holds it is given once. A failure
    whose configuration was recorded later in the same round is left out. Raises
    `StoreError` where there is nothing, or where a file is damaged.
    """
    path = Path(path)
    if not path.exists():
        raise StoreError(f"there is no file or folder {path}")
    if path.is_file():
        if path.name in (TRIALS_FILE, CONFIGS_FILE):
            yield from _read_pair(path.parent, set())
        elif path.name.endswith(".failure.json"):
            yield read_failure(path)
        else:
            yield read(path)
        return
    try:
        found = contents(path)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None
    if not (found.recordings or found.failures or found.others or found.pair):
        raise StoreError(f"{path} holds no recording; record one with: lstm-trt record --out {path} ...")
    for file in [*found.recordings.values(), *found.others]:
        yield read(file)
    for key, file in found.failures.items():
        if key not in found.recordings:
            yield read_failure(file)
    if found.pair is not None:
        yield from _read_pair(path, found.recordings.keys() | found.failures.keys())


def _read_pair(folder: Path, known: set[tuple[str, int]]) -> Iterator[Recording | Failure]:
    import pyarrow.parquet as pq

    configs = _open(folder / CONFIGS_FILE, lambda path: pq.read_table(path, page_checksum_verification=True))
    trials = _open(folder / TRIALS_FILE, lambda path: pq.ParquetFile(path, page_checksum_verification=True))
    stamps = [_described(configs.schema.metadata, folder / CONFIGS_FILE).get("pair")]
    stamps.append(_described(trials.schema_arrow.metadata, folder / TRIALS_FILE).get("pair"))
    if stamps[0] != stamps[1]:
        raise StoreError(f"{folder}: {TRIALS_FILE} and {CONFIGS_FILE} are not of one consolidation; consolidate again")
    current, table = -1, None
    for row in configs.to_pylist():
        key = (row["config_id"], row["round"])
        if key in known:
            continue
        configuration = Configuration.from_dict(json.loads(row["configuration"]))
        provenance = json.loads(row["provenance"])
        if row["status"] != "ok":
            yield Failure(configuration, row["round"], row["stage"], row["reason"], provenance)
            continue
        if row["row_group"] != current:
            current = row["row_group"]
            table = _open(folder / TRIALS_FILE, lambda _, group=current: trials.read_row_group(group))
        part = table.slice(row["first_row"], row["rows"])
        recording = Recording(configuration, row["round"], _columns(part, folder / TRIALS_FILE), provenance)
        validate(recording, folder / TRIALS_FILE)
        yield recording


def set_aside_damaged(folder: Path) -> list[Path]:
    """Rename recordings that are no whole Parquet files to `*.damaged`; returns their old paths.

    The lab itself never leaves one; a copy that broke off does.
    """
    import pyarrow.parquet as pq

    moved = []
    for path in contents(folder).recordings.values():
        try:
            _open(path, pq.read_metadata)
        except StoreError:
            path.rename(path.with_name(path.name + ".damaged"))
            moved.append(path)
    return moved


def finished(folder: Path) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """(config_id, round) of what was recorded, and of what failed, in a folder."""
    import pyarrow.parquet as pq

    found = contents(folder)
    recorded, failed = set(found.recordings), set(found.failures)
    if found.pair is not None:
        columns = ["config_id", "round", "status"]
        for row in _open(folder / CONFIGS_FILE, lambda path: pq.read_table(path, columns=columns)).to_pylist():
            (recorded if row["status"] == "ok" else failed).add((row["config_id"], row["round"]))
    return recorded, failed - recorded


def consolidate(items: Iterable[Recording | Failure], folder: Path, group_rows: int = 200_000) -> tuple[int, int]:
    """Write `trials.parquet` and `configs.parquet` into `folder`; returns (recordings, failures).

    Streams: memory holds one row group of about `group_rows` trials. Both files carry
    one random stamp, and appear only when both are whole.
    """
    import secrets

    import pyarrow as pa
    import pyarrow.parquet as pq

    described = {"schema_version": SCHEMA_VERSION, "pair": secrets.token_hex(8)}
    metadata = {METADATA_KEY: canonical_json(described).encode()}
    kinds = {name: pa.bool_() if kind == "bool" else pa.int64() for name, kind in COLUMNS.items()}
    schema = pa.schema([("config_id", pa.string()), ("round", pa.int64()), *kinds.items()], metadata=metadata)
    temporary = [folder / f".{name}.tmp" for name in (TRIALS_FILE, CONFIGS_FILE)]
    rows: list[dict] = []
    pending, pending_rows, group, failures = [], 0, 0, 0
    try:
        with pq.ParquetWriter(temporary[0], schema, compression="zstd", write_page_checksum=True) as writer:

            def flush() -> None:
                nonlocal pending, pending_rows, group
                if pending:
                    writer.write_table(pa.concat_tables(pending), row_group_size=pending_rows)
                    pending, pending_rows, group = [], 0, group + 1

            for item in items:
                config = item.configuration
                row = {
                    "config_id": config.id,
                    "round": item.round,
                    "status": "ok",
                    "stage": None,
                    "reason": None,
                    "runtime": config.runtime,
                    "runtime_version": config.runtime_version,
                    "device_name": config.device_name,
                    **config.workload.as_dict(),
                    "row_group": None,
                    "first_row": None,
                    "rows": None,
                    "configuration": canonical_json(config.as_dict()),
                    "provenance": canonical_json(item.provenance),
                }
                if isinstance(item, Failure):
                    failures += 1
                    row.update(status="failed", stage=item.stage, reason=item.reason)
                else:
                    count = len(item.columns["trial"])
                    row.update(row_group=group, first_row=pending_rows, rows=count)
                    arrays = [pa.array([config.id] * count), pa.array(np.full(count, item.round, np.int64))]
                    for name, kind in kinds.items():
                        values = item.columns.get(name)
                        arrays.append(pa.nulls(count, kind) if values is None else pa.array(values, kind))
                    pending.append(pa.Table.from_arrays(arrays, schema=schema))
                    pending_rows += count
                rows.append(row)
                if pending_rows >= group_rows:
                    flush()
            flush()
        integers = {"round", "row_group", "first_row", "rows", *LSTM_FIELDS}
        fields = [(name, pa.int64() if name in integers else pa.string()) for name in rows[0]] if rows else []
        table = pa.Table.from_pylist(rows, schema=pa.schema(fields, metadata=metadata))
        pq.write_table(table, temporary[1], compression="zstd", write_page_checksum=True)
        for path, name in zip(temporary, (TRIALS_FILE, CONFIGS_FILE), strict=True):
            path.replace(folder / name)
    except OSError as error:
        raise StoreError(f"cannot write into {folder}: {error.strerror or error}") from None
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)
    return len(rows) - failures, failures


LSTM_FIELDS = ("layers", "hidden", "sequence", "batch", "features", "directions")
