"""One recording, one Parquet file: written under a temporary name and moved into place, validated when read.

A configuration that failed is a small JSON file beside the recordings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from lstm_trt.config.configuration import Configuration, canonical_json
from lstm_trt.config.errors import StoreError, UnknownConfiguration, UsageError, first_line
from lstm_trt.store.cache import write_whole
from lstm_trt.store.schema import (
    COLUMNS,
    CONTROL_COLUMNS,
    METADATA_KEY,
    SCHEMA_VERSION,
    Failure,
    Recording,
    arrow_arrays,
    arrow_schema,
    numpy_columns,
    numpy_control,
    validate,
)


def write(recording: Recording, folder: Path) -> Path:
    """Write `<id>-r<round>.parquet` (or `-r<round>-p<part>`) into `folder`, whole or not at all.

    Raises `StoreError` for a full disk or an unwritable folder; what was there stays.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    validate(recording, "the recording")
    described = {
        "schema_version": SCHEMA_VERSION,
        "configuration": recording.configuration.as_dict(),
        "config_id": recording.configuration.id,
        "round": recording.round,
        "provenance": recording.provenance,
    }
    if recording.part is not None:
        described |= {"part": recording.part, "last": recording.provenance["soak"]["last"]}
    schema = arrow_schema().with_metadata({METADATA_KEY: canonical_json(described).encode()})
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(arrow_arrays(recording), schema=schema)
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return put(folder / recording.file_name, sink.getvalue().to_pybytes())


def write_failure(failure: Failure, folder: Path) -> Path:
    """Write `<id>-r<round>.failure.json`; raises `StoreError` as `write` does."""
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


def read(path: Path, columns: Collection[str] | None = None) -> Recording:
    """One recording, or one part of a long one; of its columns only `columns`, where they are named.

    Raises `StoreError` for a damaged or foreign file, `UnknownConfiguration` for one of a newer version.
    """
    import pyarrow.parquet as pq

    def load(path: Path):
        file = pq.ParquetFile(path, page_checksum_verification=True)
        return file.read(wanted(columns, file.schema_arrow.names))

    table = opened(path, load)
    described = described_by(table.schema.metadata, path)
    try:
        return Recording(
            configuration=configuration_of(described["configuration"], path),
            round=described["round"],
            columns=numpy_columns(table, path),
            provenance=described["provenance"],
            control=numpy_control(table, path),
            part=described.get("part"),
        )
    except KeyError as error:
        raise StoreError(f"{path}: its metadata lacks {error}") from None


def wanted(columns: Collection[str] | None, present: Sequence[str]) -> list[str] | None:
    """The columns to load of those `present` in a file: those that were named, and the control run's; None for all."""
    if columns is None:
        return None
    if unknown := [name for name in columns if name not in COLUMNS]:
        raise UsageError(f"a recording has no column {unknown[0]!r}: choose from {', '.join(COLUMNS)}")
    return [name for name in present if name in columns or name in CONTROL_COLUMNS]


def read_failure(path: Path) -> Failure:
    """One failure row. Raises `StoreError` for a damaged or foreign file, `UnknownConfiguration` for a newer one."""
    try:
        described = json.loads(path.read_text())
        check_version(described, path)
        return Failure(
            configuration=configuration_of(described["configuration"], path),
            round=described["round"],
            stage=described["stage"],
            reason=described["reason"],
            provenance=described.get("provenance", {}),
        )
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None
    except UnknownConfiguration:
        raise
    except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:
        raise StoreError(f"{path} is not a failure row of this lab: {error}") from None


def configuration_of(plain: dict, path: Path) -> Configuration:
    """The configuration that a file stores; raises `UnknownConfiguration`, naming the file, for a newer version's."""
    try:
        return Configuration.from_dict(plain)
    except UnknownConfiguration as error:
        raise UnknownConfiguration(f"{path}: {error}") from None


def opened(path: Path, reader: Callable[[Path], Any]) -> Any:
    """What `reader(path)` gives; raises `StoreError` where the file is not there or not whole."""
    import pyarrow as pa

    try:
        return reader(path)
    except FileNotFoundError:
        raise StoreError(f"there is no file {path}") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{path} is not a whole Parquet file: {first_line(error)}") from None


def described_by(metadata: dict | None, path: Path) -> dict:
    """The lab's JSON in a file's metadata; raises `StoreError` where there is none, or of a newer version."""
    if not metadata or METADATA_KEY not in metadata:
        raise StoreError(f"{path} is a Parquet file but no recording of this lab: it lacks the lstm_trt metadata")
    try:
        described = json.loads(metadata[METADATA_KEY])
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: its lstm_trt metadata is damaged: {error}") from None
    check_version(described, path)
    return described


def check_version(described: Any, path: Path) -> None:
    """Raises `UnknownConfiguration` for a newer schema version, `StoreError` where there is none."""
    version = described.get("schema_version") if isinstance(described, dict) else None
    if not isinstance(version, int):
        raise StoreError(f"{path}: its metadata has no schema_version")
    if version > SCHEMA_VERSION:
        raise UnknownConfiguration(
            f"{path} has schema version {version}, this lab reads up to {SCHEMA_VERSION}: upgrade lstm_trt"
        )
