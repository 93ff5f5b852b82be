"""Many recordings as two files: `trials.parquet` with all trials, `configs.parquet` with a row per recording."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np

from lstm_trt.config.configuration import canonical_json
from lstm_trt.config.errors import StoreError, UnknownConfiguration
from lstm_trt.config.workload import AXES
from lstm_trt.store import schema
from lstm_trt.store.files import configuration_of, described_by, opened, wanted

TRIALS_FILE, CONFIGS_FILE = "trials.parquet", "configs.parquet"

#: The new `configs.parquet` while both files are replaced: a process that is killed in between loses nothing.
NEXT_CONFIGS_FILE = "configs.parquet.next"

#: Columns of `configs.parquet` that are read, and those of them that have a value in every row.
CONFIG_COLUMNS = {
    "config_id": "string",
    "round": "int64",
    "status": "string",
    "stage": "string",
    "reason": "string",
    "row_group": "int64",
    "first_row": "int64",
    "rows": "int64",
    "configuration": "string",
    "provenance": "string",
}
ALWAYS = ("config_id", "round", "status", "configuration", "provenance")


def read_configs(folder: Path, name: str = CONFIGS_FILE) -> tuple[list[dict], dict]:
    """The rows of `configs.parquet`, and the JSON in its metadata; raises `StoreError` if the file is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def load(path: Path) -> tuple[list[dict], dict]:
        table = pq.read_table(path, page_checksum_verification=True)
        described = described_by(table.schema.metadata, path)
        fields = [pa.field(name, kind, nullable=name not in ALWAYS) for name, kind in CONFIG_COLUMNS.items()]
        return table.select(list(CONFIG_COLUMNS)).cast(pa.schema(fields)).to_pylist(), described

    return opened(folder / name, load)


def read_pair(
    folder: Path,
    known: set[tuple[str, int]],
    columns: Collection[str] | None = None,
    skipped: list[UnknownConfiguration] | None = None,
) -> Iterator[schema.Recording | schema.Failure]:
    """Recordings and failures of a consolidated pair, except those of the (config_id, round) in `known`.

    Raises `StoreError` if a file is damaged or the two files do not belong together. Rows of a newer version raise
    `UnknownConfiguration`, or are appended to `skipped` if it is given.
    """
    import pyarrow.parquet as pq

    def load(path: Path) -> tuple:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        types = file.schema_arrow
        return file, described_by(types.metadata, path), wanted(columns, types.names)

    apart = f"{folder}: {TRIALS_FILE} and {CONFIGS_FILE} do not belong together; consolidate again"
    rows, described = read_configs(folder)
    trials, of_trials, names = opened(folder / TRIALS_FILE, load)
    if described.get("pair") != of_trials.get("pair") and (folder / NEXT_CONFIGS_FILE).exists():
        rows, described = read_configs(folder, NEXT_CONFIGS_FILE)
    if described.get("pair") != of_trials.get("pair"):
        raise StoreError(apart)
    current, table = -1, None
    for row in rows:
        key = (row["config_id"], row["round"])
        if key in known:
            continue
        try:
            configuration = configuration_of(json.loads(row["configuration"]), folder / CONFIGS_FILE)
            provenance, failure = json.loads(row["provenance"]), None
            if row["status"] != "ok":
                failure = schema.Failure(configuration, row["round"], row["stage"], row["reason"], provenance)
            elif None in (row["row_group"], row["first_row"], row["rows"]):
                raise ValueError(f"row_group, first_row or rows of {row['config_id']} is missing")
        except UnknownConfiguration as error:
            if skipped is None:
                raise
            skipped.append(error)
            continue
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"{folder / CONFIGS_FILE} is damaged: {error}") from None
        if failure is not None:
            yield failure
            continue
        if row["row_group"] != current:
            current = row["row_group"]
            table = opened(
                folder / TRIALS_FILE, lambda _, group=current: schema.as_written(trials.read_row_group(group, names))
            )
        first, length = row["first_row"], row["rows"]
        if table is None or not 0 <= first <= first + length <= len(table):
            raise StoreError(apart)
        part = table.slice(first, length)
        recording = schema.Recording(
            configuration,
            row["round"],
            schema.numpy_columns(part, folder / TRIALS_FILE, columns),
            provenance,
            schema.numpy_control(part, folder / TRIALS_FILE),
        )
        schema.validate(recording, folder / TRIALS_FILE, columns)
        yield recording


def consolidate(
    items: Iterable[schema.Recording | schema.Failure], folder: Path, group_rows: int = 200_000
) -> tuple[int, int]:
    """Write `trials.parquet` and `configs.parquet` into `folder`; returns (recordings, failures).

    Memory use is one row group of about `group_rows` trials, or one recording if that is longer. Both files carry the
    same random stamp. They replace older files only when both are complete.
    """
    import secrets

    import pyarrow as pa
    import pyarrow.parquet as pq

    described = {"schema_version": schema.SCHEMA_VERSION, "pair": secrets.token_hex(8)}
    metadata = {schema.METADATA_KEY: canonical_json(described).encode()}
    types = pa.schema([("config_id", pa.string()), ("round", pa.int64()), *schema.arrow_schema()], metadata=metadata)
    temporary = [folder / f".{name}.{secrets.token_hex(8)}.tmp" for name in (TRIALS_FILE, CONFIGS_FILE)]
    rows: list[dict] = []
    pending, pending_rows, group, failures = [], 0, 0, 0
    try:
        with pq.ParquetWriter(temporary[0], types, compression="zstd", write_page_checksum=True) as writer:

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
                    **config.workload.axes,
                    "row_group": None,
                    "first_row": None,
                    "rows": None,
                    "configuration": canonical_json(config.as_dict()),
                    "provenance": canonical_json(item.provenance),
                }
                if isinstance(item, schema.Failure):
                    failures += 1
                    row.update(status="failed", stage=item.stage, reason=item.reason)
                else:
                    count = len(item.columns["trial"])
                    row.update(row_group=group, first_row=pending_rows, rows=count)
                    arrays = [pa.array([config.id] * count), pa.array(np.full(count, item.round, np.int64))]
                    pending.append(pa.Table.from_arrays([*arrays, *schema.arrow_arrays(item)], schema=types))
                    pending_rows += count
                rows.append(row)
                if pending_rows >= group_rows:
                    flush()
            flush()
        kinds = CONFIG_COLUMNS | dict.fromkeys(AXES, "int64")
        fields = [pa.field(name, kinds.get(name, "string")) for name in rows[0]] if rows else []
        table = pa.Table.from_pylist(rows, schema=pa.schema(fields, metadata=metadata))
        pq.write_table(table, temporary[1], compression="zstd", write_page_checksum=True)
        following = temporary[1].replace(folder / NEXT_CONFIGS_FILE)
        temporary[0].replace(folder / TRIALS_FILE)
        following.replace(folder / CONFIGS_FILE)
    except OSError as error:
        raise StoreError(f"cannot write into {folder}: {error.strerror or error}") from None
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)
    return len(rows) - failures, failures
