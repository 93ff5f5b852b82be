"""Many recordings as two files: `trials.parquet` with all trials, `configs.parquet` with a row per
recording."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from lstm_trt.config.configuration import canonical_json
from lstm_trt.config.errors import StoreError, file_errors, refused
from lstm_trt.config.fields import check_types
from lstm_trt.config.libraries import pa, pq
from lstm_trt.config.workload import AXES
from lstm_trt.store import schema
from lstm_trt.store.files import (
    JSON_ERRORS,
    configuration_of,
    described_by,
    description,
    json_values,
    parquet_errors,
    trials_of,
)
from lstm_trt.store.provenance import DescribedFailure, DescribedRow
from lstm_trt.store.schema import Asked, Key, Stored
from lstm_trt.store.temporary import temporary_file

TRIALS_FILE = "trials.parquet"
CONFIGS_FILE = "configs.parquet"

#: The new `configs.parquet` while both files are replaced: a process that is killed in between
#: loses nothing.
NEXT_CONFIGS_FILE = "configs.parquet.next"

#: Columns of `configs.parquet`, and those of them that are read.
_COLUMNS = {
    "config_id": "string",
    "round": "int64",
    "status": "string",
    "stage": "string",
    "reason": "string",
    "runtime": "string",
    "runtime_version": "string",
    "device_name": "string",
    **dict.fromkeys((*AXES, "row_group", "first_row", "rows"), "int64"),
    "configuration": "string",
    "provenance": "string",
}
_NOT_READ = {"runtime", "runtime_version", "device_name", *AXES}
CONFIG_COLUMNS = {name: kind for name, kind in _COLUMNS.items() if name not in _NOT_READ}


def read_configs(folder: Path, name: str = CONFIGS_FILE) -> tuple[list[dict], dict]:
    """The rows of `configs.parquet`, and the JSON in its metadata; raises `StoreError` if the file
    is damaged."""
    with parquet_errors(folder / name):
        # `read_table` would import pandas.
        file = pq.ParquetFile(folder / name, page_checksum_verification=True)
        table = file.read(list(CONFIG_COLUMNS), use_threads=False)
        described = described_by(table.schema.metadata, folder / name)
        table = table.select(list(CONFIG_COLUMNS))
        return table.cast(pa.schema(list(CONFIG_COLUMNS.items()))).to_pylist(), described


def described_row(row: dict, path: Path) -> dict:
    """A row of `configs.parquet` with the JSON of its configuration and provenance; raises
    `StoreError`."""
    with refused(f"{path} is damaged", *JSON_ERRORS, kind=StoreError):
        described = row | {name: json_values(row[name]) for name in ("configuration", "provenance")}
        check_types(DescribedRow if row["status"] == "ok" else DescribedFailure, described)
    return described


def read_pair(
    folder: Path, known: set[Key], columns: Asked = None
) -> Iterator[Callable[[], Stored]]:
    """A reader for each recording and failure of a consolidated pair, except for the (config_id,
    round) in `known`.

    Raises `StoreError` if a file is damaged or the two files do not belong together, as the readers
    do; these also raise `UnknownConfiguration` for rows of a newer version.
    """
    path = folder / CONFIGS_FILE
    apart = f"{folder}: {TRIALS_FILE} and {CONFIGS_FILE} do not belong together; consolidate again"
    rows, described = read_configs(folder)
    of_trials, trials = trials_of(folder / TRIALS_FILE, columns)
    if described.get("pair") != of_trials.get("pair") and (folder / NEXT_CONFIGS_FILE).exists():
        rows, described = read_configs(folder, NEXT_CONFIGS_FILE)
    if described.get("pair") != of_trials.get("pair"):
        raise StoreError(apart)

    def read(row: dict) -> Stored:
        described = described_row(row, path)
        configuration = configuration_of(described["configuration"], path)
        provenance = described["provenance"]
        number = row["round"]
        if row["status"] != "ok":
            return schema.Failure(configuration, number, row["stage"], row["reason"], provenance)
        table = trials(row["row_group"])
        first = row["first_row"]
        if not 0 <= first <= first + row["rows"] <= len(table):
            raise StoreError(apart)
        recording = schema.Recording(configuration, number, {}, provenance)
        own = table.slice(first, row["rows"])
        return schema.with_trials(recording, own, folder / TRIALS_FILE, columns)

    return (partial(read, row) for row in rows if (row["config_id"], row["round"]) not in known)


def consolidate(
    items: Iterable[Stored], folder: Path, group_rows: int = 200_000
) -> tuple[int, int]:
    """Write `trials.parquet` and `configs.parquet` into `folder`; returns (recordings, failures).

    Memory use is one row group of about `group_rows` trials, or one recording if that is longer.
    Both files carry the same random stamp. They replace older files only when both are complete.
    """
    import secrets

    described = {"schema_version": schema.SCHEMA_VERSION, "pair": secrets.token_hex(8)}
    metadata = {schema.METADATA_KEY: canonical_json(described).encode()}
    with (
        file_errors(f"write into {folder}", kind=StoreError),
        temporary_file(folder / TRIALS_FILE) as trials_file,
        temporary_file(folder / CONFIGS_FILE) as configs_file,
    ):
        rows = _write_trials(items, trials_file, metadata, group_rows)
        types = pa.schema(list(_COLUMNS.items()), metadata=metadata)
        table = pa.Table.from_pylist(rows, schema=types)
        with configs_file.open("wb") as file:
            pq.write_table(table, file, compression="zstd", write_page_checksum=True)
        following = configs_file.replace(folder / NEXT_CONFIGS_FILE)
        trials_file.replace(folder / TRIALS_FILE)
        following.replace(folder / CONFIGS_FILE)
    failures = sum(row["status"] != "ok" for row in rows)
    return len(rows) - failures, failures


def _write_trials(
    items: Iterable[Stored], path: Path, metadata: dict[bytes, bytes], group_rows: int
) -> list[dict]:
    """Write the trials of all recordings into one file; returns the rows of `configs.parquet`."""
    key = [("config_id", pa.string()), ("round", pa.int64())]
    types = pa.schema([*key, *schema.arrow_schema()], metadata=metadata)
    rows: list[dict] = []
    pending: list[pa.Table] = []
    group = 0
    first_row = 0
    # Given a path, pyarrow leaves a file open whose last bytes cannot be written.
    with (
        path.open("wb") as file,
        pq.ParquetWriter(file, types, compression="zstd", write_page_checksum=True) as writer,
    ):
        for item in items:
            row = _row(item)
            rows.append(row)
            if isinstance(item, schema.Failure):
                continue
            arrays = schema.arrow_arrays(item)
            count = len(arrays[0])
            row |= {"row_group": group, "first_row": first_row, "rows": count}
            key = [pa.repeat(row["config_id"], count), pa.repeat(item.round, count)]
            pending.append(pa.Table.from_arrays([*key, *arrays], schema=types))
            first_row += count
            if first_row >= group_rows:
                writer.write_table(pa.concat_tables(pending), row_group_size=first_row)
                pending.clear()
                group += 1
                first_row = 0
        if pending:
            writer.write_table(pa.concat_tables(pending), row_group_size=first_row)
    return rows


def _row(item: Stored) -> dict:
    """The row of a recording or failure, without the place of its trials."""
    configuration = item.configuration
    row = {"status": "ok", **vars(configuration), **configuration.workload.axes}
    row |= description(item)
    for name in ("configuration", "provenance"):
        row[name] = canonical_json(row[name])
    return row
