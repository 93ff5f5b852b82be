"""Recordings in memory and as Parquet files.

The file has a row per trial and a column per quantity. Configuration, provenance and the
schema's version are JSON in the file's metadata.

Schema history (older versions stay readable):
  1  First version. Added later: the columns of the control run, parts of long recordings.
     The first readers ignore these columns, and raise for configurations with a period, a
     pause or a duration because of their unknown fields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import StoreError
from lstm_trt.config.libraries import pa

if TYPE_CHECKING:
    from lstm_trt.store.whole import Whole

SCHEMA_VERSION = 1

METADATA_KEY = b"lstm_trt"

#: Columns of the trials; `warmup` is boolean, the others are int64.
COLUMNS = (
    "trial",
    "warmup",
    "start_ns",
    "intended_ns",  # periodic arrivals
    "latency_ns",
    "prepare_ns",  # `prepare_next` after the call, which is not part of its latency
    "enqueue_ns",  # until the work was handed to the device
    "h2d_ns",  # on the device's own clock
    "compute_ns",
    "d2h_ns",
    "involuntary_switches",
    "minor_faults",
    "major_faults",
    "preempted_ns",  # times off the core
    "off_core_ns",
    "switches_out",
    "pool_preempted_ns",
)

#: Columns of the control run, an empty step: a row per call. They may be shorter than the trials
#: (nulls at the end).
CONTROL_COLUMNS = {
    "control_start_ns": "start_ns",
    "control_latency_ns": "latency_ns",
    "control_preempted_ns": "preempted_ns",
    "control_off_core_ns": "off_core_ns",
}

#: Columns without which nothing can be said about a recording.
REQUIRED = ("trial", "warmup", "start_ns", "latency_ns")


@dataclass(frozen=True)
class Recording:
    """Trials of one configuration in one round; a column that was not measured is absent.

    `trial` numbers the rows from 0, warm-up included. `warmup` marks the rows that
    statistics leave out. With periodic arrivals a call is due at `intended_ns`, and
    `latency_ns` is measured from then. `control`: "start_ns" and "latency_ns" of the control
    run (`recorder/loop.py`), with times from its own start; None if there was none. `part`: number
    of this part of a long recording; None for a complete one.
    `whole`: all trials, if `columns` have only one of each `whole.step`.
    """

    configuration: Configuration
    round: int
    columns: dict[str, np.ndarray] = field(repr=False)
    provenance: dict = field(repr=False)
    control: dict[str, np.ndarray] | None = field(default=None, repr=False)
    part: int | None = None
    whole: Whole | None = field(default=None, repr=False)

    @property
    def timed_ns(self) -> np.ndarray:
        """Latencies after warm-up in ns, in order of the trials."""
        return self.columns["latency_ns"][~self.columns["warmup"]]

    @property
    def file_name(self) -> str:
        part = "" if self.part is None else f"-p{self.part:05d}"
        return f"{self.configuration.id}-r{self.round}{part}.parquet"


@dataclass(frozen=True)
class Failure:
    """A configuration that could not be recorded, with stage and reason."""

    configuration: Configuration
    round: int
    stage: str
    reason: str
    provenance: dict = field(repr=False, default_factory=dict)

    @property
    def file_name(self) -> str:
        return f"{self.configuration.id}-r{self.round}.failure.json"


#: What a folder has of a configuration and round.
Stored = Recording | Failure

#: (config_id, round)
Key = tuple[str, int]

#: Names of the columns to read; None for all.
Asked = Collection[str] | None


def validate(recording: Recording, where: object, asked: Asked = None) -> None:
    """Raise `StoreError` if columns (by default all, else those `asked`) are missing, of unequal
    length, or invalid."""
    for fault in _faults(recording, asked):
        raise StoreError(f"{where}: {fault}")


def _faults(recording: Recording, asked: Asked) -> Iterator[str]:
    columns = recording.columns
    for name in REQUIRED:
        if name not in columns and (asked is None or name in asked):
            yield f"column {name} is missing"
    lengths = {name: len(values) for name, values in columns.items()}
    first, rows = next(iter(lengths.items()), ("trial", 0))
    for name, length in lengths.items():
        if name not in COLUMNS:
            yield f"unknown column {name}"
        if length != rows:
            yield f"column {name} has {length} rows, {first} has {rows}"
    if rows:
        yield from _faults_of_blocks(recording.provenance, rows)
    elif asked is None or asked:
        yield "contains no trials"
    yield from _faults_of_values(columns, rows)
    if recording.control is not None and columns:
        yield from _faults_of_control(recording.control, rows)


def _faults_of_blocks(provenance: dict, rows: int) -> Iterator[str]:
    blocks = [block["rows"] for block in provenance.get("blocks", ())]
    if blocks and (sum(blocks) != rows or min(blocks) < 0):
        yield f"its blocks have {sum(blocks)} rows, the recording {rows}"


def _faults_of_values(columns: dict[str, np.ndarray], rows: int) -> Iterator[str]:
    if "trial" in columns and not np.array_equal(columns["trial"], np.arange(rows)):
        yield "trials are missing or out of order"
    if "latency_ns" in columns and (columns["latency_ns"] < 0).any():
        yield "a latency is negative"
    if "start_ns" in columns and (np.diff(columns["start_ns"]) < 0).any():
        yield "a trial starts before the previous one"


def _faults_of_control(control: dict[str, np.ndarray], rows: int) -> Iterator[str]:
    names = {"start_ns", "latency_ns", *control}
    lengths = {len(control.get(name, ())) for name in names}
    if len(lengths) > 1 or not 0 < max(lengths) <= rows:
        yield f"the control run has {lengths} rows, the recording {rows}"


def arrow_schema():
    """All columns of a recording file, in order."""
    names = (*COLUMNS, *CONTROL_COLUMNS)
    return pa.schema([(name, pa.bool_() if name == "warmup" else pa.int64()) for name in names])


def as_written(table):
    """The columns of a recording in the types in which they were written, for tables whose schema
    may be damaged.

    Others are left out: config_id and round of a consolidated table. Raises
    `pyarrow.ArrowException`, `LookupError` or `ValueError` for what is damaged.
    """
    types = arrow_schema()
    names = [name for name in table.schema.names if name in types.names]
    return table.select(names).cast(pa.schema([types.field(name) for name in names]))


def arrow_arrays(recording: Recording) -> list:
    """The recording's columns in the order of `arrow_schema`; columns that were not measured are
    null."""
    control = recording.control or {}
    known: dict[str, Any] = dict(recording.columns)
    for column, name in CONTROL_COLUMNS.items():
        known[column] = control.get(name, ())
    arrays = []
    for column in arrow_schema():
        array = _arrow_array(known.get(column.name, ()), column.type)
        missing = len(known["trial"]) - len(array)
        if missing:
            array = pa.concat_arrays([array, pa.nulls(missing, column.type)])
        arrays.append(array)
    return arrays


def _arrow_array(values, type):
    """The Arrow array of numpy numbers; `pyarrow.array` would import pandas, longer than most
    recordings take."""
    if type == pa.bool_():
        packed = np.packbits(np.asarray(values, bool), bitorder="little")
    else:
        packed = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(type, len(values), [None, pa.py_buffer(packed)])


def numpy_of(values: pa.Array) -> np.ndarray:
    """Values of which none is missing; `to_numpy` imports pandas first, which takes longer than
    reading them."""
    if pa.types.is_boolean(values.type):
        return np.from_dlpack(values.cast(pa.uint8())).view(bool)
    return np.from_dlpack(values)


def with_trials(recording: Recording, table, path: Path, asked: Asked) -> Recording:
    """A recording with the trials of a table that was read with the columns `asked`, by default
    all.

    A column that is entirely null was not measured and is left out. Raises `StoreError` for values
    that are missing, except at the end of the control run, and as `validate`.
    """
    columns = {}
    for name in table.schema.names:
        values = table.column(name)
        if values.null_count == len(values):
            continue
        present = values.drop_null() if name in CONTROL_COLUMNS else values
        if missing := values[: len(present)].null_count:
            raise StoreError(f"{path}: column {name} has {missing} missing values")
        columns[name] = numpy_of(present.combine_chunks())
    control = {
        name: columns.pop(column) for column, name in CONTROL_COLUMNS.items() if column in columns
    }
    recording = replace(recording, columns=columns, control=control or None)
    validate(recording, path, asked)
    return recording
