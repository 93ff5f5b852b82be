"""Recordings as Parquet files, one per recording: written atomically, validated when read.

A configuration that failed is stored as a small JSON file next to the recordings.
"""

import errno
import json
import os
import re
import tempfile
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from lstm_trt.config.configuration import Configuration, canonical_json
from lstm_trt.config.errors import (
    LabError,
    NotReadable,
    StoreError,
    UnknownConfiguration,
    UsageError,
    file_errors,
    refused,
)
from lstm_trt.config.fields import check_types
from lstm_trt.config.libraries import pa, pq
from lstm_trt.store import schema
from lstm_trt.store.provenance import Described, DescribedFailure, DescribedPart
from lstm_trt.store.temporary import temporary_file

#: Where `json.loads` may see a number that is not finite, or half a pair of surrogates.
_DOUBTFUL = re.compile(r"\\u|NaN|Infinity|[eE]\+?\d{3}")

#: What JSON raises that is damaged, or not of the expected form.
JSON_ERRORS = (ValueError, LookupError, TypeError, RecursionError)


def write(recording: schema.Recording, folder: Path) -> Path:
    """Write `<id>-r<round>.parquet` (or `-r<round>-p<part>`) into `folder`, atomically.

    Raises `StoreError` if the disk is full or the folder is not writable; an older file is then
    kept.
    """
    schema.validate(recording, "the recording")
    described = description(recording)
    if recording.part is not None:
        described |= {"part": recording.part, "last": recording.provenance["soak"]["last"]}
    types = schema.arrow_schema().with_metadata(
        {schema.METADATA_KEY: canonical_json(described).encode()}
    )
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(schema.arrow_arrays(recording), schema=types)
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return put(folder / recording.file_name, sink.getvalue().to_pybytes())


def description(item: schema.Recording | schema.Failure) -> dict[str, Any]:
    """The JSON values of a recording or failure, without the trials."""
    described = {
        "schema_version": schema.SCHEMA_VERSION,
        "configuration": item.configuration.as_dict(),
        "config_id": item.configuration.id,
        "round": item.round,
        "provenance": item.provenance,
    }
    if isinstance(item, schema.Failure):
        described |= {"status": "failed", "stage": item.stage, "reason": item.reason}
    return described


def read(path: Path, columns: Collection[str] | None = None) -> schema.Recording:
    """Read a recording, or a part of a long one; only the `columns` that are named, by default all.

    Raises `StoreError` if the file is damaged or not a recording, `UnknownConfiguration` if a newer
    version wrote it.
    """
    described, trials = trials_of(path, columns)
    table = trials(None)
    with refused(f"{path} is damaged", TypeError, kind=StoreError):
        check_types(Described if described.get("part") is None else DescribedPart, described)
    recording = schema.Recording(
        configuration_of(described["configuration"], path),
        described["round"],
        columns={},
        provenance=described["provenance"],
        part=described.get("part"),
    )
    return schema.with_trials(recording, table, path, columns)


def trials_of(
    path: Path, columns: Collection[str] | None
) -> tuple[dict, Callable[[int | None], Any]]:
    """The JSON in the metadata of a file of trials, and a function that reads the table of a row
    group (None: of all).

    Only the `columns` that are named are read, by default all. Both raise `StoreError` if the file
    is damaged.
    """
    with parquet_errors(path):
        file = pq.ParquetFile(path, page_checksum_verification=True)
        described = described_by(file.metadata.metadata, path)
        names = wanted(columns, file.schema_arrow.names)

    @lru_cache(maxsize=1)
    def trials(group: int | None) -> Any:
        with parquet_errors(path):
            # Threads gain nothing here, and starting them fails where memory is short.
            if group is None:
                return schema.as_written(file.read(names, use_threads=False))
            return schema.as_written(file.read_row_group(group, names, use_threads=False))

    return described, trials


def wanted(columns: Collection[str] | None, present: Sequence[str]) -> list[str] | None:
    """The columns to load: the named ones that are `present`, and those of the control run; None
    for all."""
    if columns is None:
        return None
    if unknown := [name for name in columns if name not in schema.COLUMNS]:
        raise UsageError(
            f"a recording has no column {unknown[0]!r}: choose from {', '.join(schema.COLUMNS)}"
        )
    return [name for name in present if name in columns or name in schema.CONTROL_COLUMNS]


def configuration_of(plain: dict, path: Path) -> Configuration:
    """The configuration stored in a file; raises `UnknownConfiguration` or `StoreError` with the
    file's name."""
    try:
        return Configuration.from_dict(plain)
    except UsageError as error:
        kind = UnknownConfiguration if isinstance(error, UnknownConfiguration) else StoreError
        raise kind(f"{path}: {error}") from None


def described_by(metadata: dict | None, path: Path) -> dict:
    """The JSON in a file's metadata.

    Raises `StoreError` if it is missing or damaged, `UnknownConfiguration` if a newer version wrote
    it.
    """
    if not metadata or schema.METADATA_KEY not in metadata:
        raise StoreError(
            f"{path} is a Parquet file but not a recording: it has no lstm_trt metadata"
        )
    with refused(f"{path}: the lstm_trt metadata is damaged", *JSON_ERRORS, kind=StoreError):
        described = json_values(metadata[schema.METADATA_KEY].decode())
    check_version(described, path)
    return described


def check_version(described: Any, path: Path) -> None:
    """Raise `UnknownConfiguration` for a newer schema version, `StoreError` if there is none."""
    version = described.get("schema_version") if isinstance(described, dict) else None
    if not isinstance(version, int):
        raise StoreError(f"{path}: the metadata has no schema_version")
    if version > schema.SCHEMA_VERSION:
        most = f"this version reads up to {schema.SCHEMA_VERSION}: upgrade lstm_trt"
        raise UnknownConfiguration(f"{path} has schema version {version}, {most}")


def json_values(text: str) -> Any:
    """The values of a JSON text; raises one of `JSON_ERRORS`, also for numbers and texts that could
    not be written."""
    values = json.loads(text)
    if _DOUBTFUL.search(text):
        json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
    return values


@contextmanager
def parquet_errors(path: Path, kind: type[LabError] = StoreError) -> Generator[None, None, None]:
    """Raise `kind` if the Parquet file that is read inside is damaged, `NotReadable` if it cannot
    be read at all."""
    causes = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError)
    with refused(f"{path} is not a valid Parquet file", *causes, kind=kind):
        try:
            if path.is_file():  # else opening may wait, and Arrow does not say what is there
                yield
            else:
                raise FileNotFoundError(errno.ENOENT, "")
        except OSError as error:
            if error.errno is None:  # the content is not what Arrow expects
                raise
            raise NotReadable(f"cannot read {path}: {os.strerror(error.errno)}") from None


def metadata_of(path: Path) -> Any:
    """The metadata of a Parquet file; raises `StoreError` if it is damaged."""
    with parquet_errors(path):
        return pq.read_metadata(path)


def write_failure(failure: schema.Failure, folder: Path) -> Path:
    """Write `<id>-r<round>.failure.json`; raises `StoreError` as `write` does."""
    content = json.dumps(description(failure), indent=1, sort_keys=True) + "\n"
    return put(folder / failure.file_name, content.encode())


def read_failure(path: Path) -> schema.Failure:
    """Read a failure file.

    Raises `StoreError` if it is damaged or not a failure file, `UnknownConfiguration` if a newer
    version wrote it.
    """
    with file_errors(f"read {path}", kind=NotReadable):
        content = path.read_bytes()
    with refused(f"{path} is not a valid failure file", *JSON_ERRORS, kind=StoreError):
        described = json_values(content.decode())
        check_version(described, path)
        check_types(DescribedFailure, described)
    return schema.Failure(
        configuration_of(described["configuration"], path),
        described["round"],
        described["stage"],
        described["reason"],
        described.get("provenance", {}),
    )


def forget_failure(configuration: Configuration, round: int, folder: Path) -> None:
    """Delete the failure row of a configuration that has now been recorded in this round."""
    (folder / schema.Failure(configuration, round, "", "").file_name).unlink(missing_ok=True)


def put(path: Path, content: bytes) -> Path:
    """Write a file atomically; raises `StoreError`."""
    with file_errors(f"write {path}", "; no partial file was left", StoreError):
        write_whole(path, content)
    return path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: under a temporary name, then renamed.

    Raises OSError (disk full, no permission); no partial file is left.
    """
    with temporary_file(path) as temporary:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def make_folder(folder: Path) -> Path:
    """Create a folder for recordings and check that it is writable; raises `UsageError`."""
    with file_errors(f"write into {folder}", "; choose another --out"):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    return folder


def refuse_named_pipe(path: Path) -> None:
    """Raise `UsageError` for a pipe with a name, from which reading may never end.

    Those without one are of a shell, `/dev/stdin` or `<(...)`, and end with its command.
    """
    if path.is_fifo() and path.resolve().exists():
        raise UsageError(
            f"{path} is a named pipe, which may never end: save what it gives as a file"
        )
