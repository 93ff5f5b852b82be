"""Read tables from elsewhere: CSV, Parquet, JSON (trtexec's `--exportTimes`), .npy, or one number
per line.

`tools` reads what other benchmark tools write in formats of their own. Nothing is guessed. The
column of times is called `latency`, or is the only one that states a unit in its name
(`latency_us`, `Average time (s)`, trtexec's `latencyMs`). Otherwise, or if no unit is stated, the
error message names the options to use. Invalid content raises `UsageError` with a one-line message
that names the first wrong line or row.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import math
import re
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol, TypeGuard
from warnings import catch_warnings

import numpy as np
import pyarrow as pa
from pyarrow import types

from lstm_judge.read.tools import aggregates, columns_of_json, columns_of_text
from lstm_trt.config.errors import StoreError, UsageError, file_errors, first_line, one_of, refused
from lstm_trt.config.format import bytes_text, count, decimal, listed
from lstm_trt.config.libraries import pq
from lstm_trt.store.files import parquet_errors, refuse_named_pipe
from lstm_trt.store.folders import contents
from lstm_trt.store.schema import METADATA_KEY, numpy_of

UNIT_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}

_UNITS = {
    **dict.fromkeys(("ns", "nanoseconds"), "ns"),
    **dict.fromkeys(("us", "µs", "μs", "microseconds"), "us"),
    **dict.fromkeys(("ms", "milliseconds"), "ms"),
    **dict.fromkeys(("s", "sec", "seconds"), "s"),
}

_ANY_UNIT = "|".join(sorted(_UNITS, key=len, reverse=True))

#: A unit in brackets, after a separator, or as trtexec writes it in its JSON.
_STATED = (
    re.compile(
        rf"(?P<stem>.+?)[\s_]*[\[(]\s*(?:in\s+)?(?P<unit>{_ANY_UNIT})\s*[\])]", re.IGNORECASE
    ),
    re.compile(rf"(?P<stem>.+?)[\s_]+(?:in\s+)?(?P<unit>{_ANY_UNIT})", re.IGNORECASE),
    re.compile(r"(?P<stem>.*[a-z0-9])(?P<unit>Ms)"),
)

#: Text cells that count as blank, in lower case.
_BLANKS = ("", "nan", "na", "n/a", "#n/a", "null", "none", "-", "--")

#: Text cells of the calls above the range of a histogram.
_ABOVE = re.compile(r"(?a)(#.*)?over\w*:?|> ?[\d.]+|[\d.]+ ?\+", re.IGNORECASE)

#: Words in the name of a column of aggregates, and of a column beside which the times of all rows
#: are aggregates.
_AGGREGATES = re.compile(
    r"averages?|avg|means?|medians?|med|geomean|min|max|minimum|maximum|best|worst|fastest|slowest"
    r"|std|stddev|stdev|sd|rms|variance|(p|q|tp|pct)\d+|\d+(th|%)|percentiles?|quantiles?"
)
_AGGREGATED_BY = re.compile(r"percentiles?|quantiles?|iterations")

#: Maximum number of characters of a cell or name, and of names, in an error message.
_SHOWN_LETTERS = 40
_SHOWN_NAMES = 20


def split_unit(name: str) -> tuple[str, str | None]:
    """`"Latency [us]"` -> `("latency", "us")`: the normalized name (`normal_name`) without its
    unit, and the unit.

    The unit is None if none is stated: `times` and `focus` do not end in a unit, and `images_per_s`
    is a rate.
    """
    for pattern in _STATED:
        found = pattern.fullmatch(" ".join(name.split()))
        if found and not normal_name(found["stem"]).endswith("_per"):
            return normal_name(found["stem"]), _UNITS[found["unit"].casefold()]
    return normal_name(name), None


def normal_name(name: str) -> str:
    """A name in lower case, stripped, with one underscore for spaces and hyphens; columns are
    looked up by it."""
    return re.sub(r"[\s_-]+", "_", str(name).strip().casefold())


def has_word(name: str, words: re.Pattern) -> bool:
    """Whether a word of a name, also of one in camel case, is one of `words`."""
    apart = re.sub(r"(?<=[a-z\d])(?=[A-Z])", "_", name).casefold()
    return any(map(words.fullmatch, re.split(r"[^\w%]+|_+", apart)))


def listed_names(names: Iterable[str]) -> str:
    """Column names for a one-line error message."""
    return listed(map(_shown, names), _SHOWN_NAMES)


def _shown(cell: object) -> str:
    text = str(cell).strip()
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."


#: Kind of a column (`Table.kind`) -> tests of its type.
_KINDS = {
    "number": (types.is_integer, types.is_floating, types.is_decimal, types.is_duration),
    "bool": (types.is_boolean,),
    "text": (types.is_string, types.is_large_string),
    "moment": (types.is_timestamp,),
}


@dataclass(frozen=True)
class Table:
    """Columns of equal length with at least one row; `where` names the file in error messages.

    A file of plain numbers has one column, "". `unit` is the unit of that column if a comment above
    it states one. `lines` has the line number of each row of a text file and is None for others.
    `places` has the names of all columns of the file in their order, also of those without a name,
    which are left out. Raises `UsageError` if two columns have the same name.
    """

    where: str
    data: pa.Table
    unit: str | None = None
    lines: Sequence[int] | None = None
    places: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, times in Counter(self.names).items():
            self._refuse_several([name] * times)

    def _refuse_several(self, alike: Sequence[str]) -> None:
        if len(alike) > 1:
            raise UsageError(
                f"{self.where} has {len(alike)} columns named {_shown(alike[0])}: drop or"
                " rename all but one"
            )

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return self.data.column_names

    def place(self, row: int) -> str:
        """Position of a row for an error message: `line 17` of a text file, otherwise `row 16`."""
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"

    def array(self, name: str) -> pa.Array:
        """The column with this name."""
        return self.data.column(name).combine_chunks()

    def find(self, *names: str) -> str | None:
        """The column with one of these normalized names, or None; raises `UsageError` if there are
        several."""
        found = [name for name in self.names if normal_name(name) in names]
        self._refuse_several(found)
        return found[0] if found else None

    def column(self, name: str, option: str) -> str:
        """The column with the name that `option` gives, ignoring case and surrounding spaces, or
        its place from 1."""
        if self.names == [""]:
            raise UsageError(f"{self.where} has numbers without column names: remove {option}")
        found = name if name in self.names else self.find(normal_name(name))
        if found is None and name.isdecimal() and 1 <= int(name) <= len(self.places):
            found = self.places[int(name) - 1] or None
        if found is None:
            raise UsageError(
                f"{self.where} has no column {name!r}; its columns are {listed_names(self.names)}"
            )
        return found

    def renamed(self, names: Mapping[str, str] | None) -> Table:
        """The table with columns renamed, old name -> new name; those renamed to "" are dropped."""
        if not names:
            return self
        new = {self.column(old, "--rename"): name for old, name in names.items()}
        kept = self.data.select([name for name in self.names if new.get(name, name)])
        data = kept.rename_columns([new.get(name, name) for name in kept.column_names])
        return replace(self, data=data, places=[new.get(name, name) for name in self.places])

    def kind(self, name: str) -> str:
        """`number` (including durations), `bool`, `text`, `moment` (a timestamp), or `other`."""
        for kind, tests in _KINDS.items():
            if any(test(self.array(name).type) for test in tests):
                return kind
        return "other"

    def stated_unit(self, name: str) -> str | None:
        """The unit of a column: from its type, its name, or a comment above plain numbers; None if
        not stated."""
        return getattr(self.array(name).type, "unit", None) or split_unit(name)[1] or self.unit

    def numbers(self, name: str, kinds: Sequence[str] = tuple(_KINDS)) -> np.ndarray:
        """A column as float64, or as int64 if it has whole numbers and no missing values; missing
        values are NaN.

        Single-precision values are converted through their decimal text: 1.1 and not 1.10000002384.
        Durations and timestamps are in the unit of their type. Raises `UsageError` if the column is
        not of these `kinds`, or, with the row of a text, if a value is not a number.
        """
        array = self.array(name)
        kind = self.kind(name)
        if kind not in kinds:
            raise UsageError(f"{self.where}: {_shown(name)} is not a column of numbers")
        if kind == "text":
            return np.array(
                [
                    self._number_of_text(name, row, cell)
                    for row, cell in enumerate(array.to_pylist())
                ]
            )
        if types.is_temporal(array.type):
            array = array.cast(pa.int64())
        elif kind == "bool" or types.is_decimal(array.type):
            array = array.cast(pa.float64())
        # What `numpy_of` does, pyarrow does with pandas.
        values = array.to_numpy(zero_copy_only=False) if array.null_count else numpy_of(array)
        if values.dtype in (np.float16, np.float32):
            values = values.astype(str)
        if values.dtype.kind in "iu" and values.dtype != np.uint64:
            return values.astype(np.int64)
        return values.astype(np.float64)

    def _number_of_text(self, name: str, row: int, cell: str | None) -> float:
        text = "" if cell is None else cell.strip()
        if text.casefold() in _BLANKS:
            return math.nan
        if _ABOVE.fullmatch(text):
            return math.inf
        with suppress(ValueError):
            return float(decimal(text))
        raise UsageError(
            f"{self.where}, {self.place(row)}: {_shown(name) or 'the time'} is {_shown(cell)!r},"
            " not a number: write it in decimal, with a point and without separators of thousands"
        )

    def counts_rows(self, name: str) -> bool:
        """Whether a column is a running number of the rows: 0, 1, 2, ... or 1, 2, 3, ..."""
        if not types.is_integer(self.array(name).type) or self.data.num_rows < 3:
            return False
        values = self.numbers(name)
        return bool(values[0] in (0, 1) and (np.diff(values) == 1).all())

    def with_rows(self, rows: np.ndarray) -> Table:
        """Only the rows for which the array is true."""
        lines = self.lines and list(itertools.compress(self.lines, rows))
        return replace(self, data=self.data.filter(pa.array(rows)), lines=lines)

    def cells(self, name: str) -> list:
        """A column as JSON values: 64 and not 64.0, stripped text, None for missing values."""
        array = self.array(name)
        if self.kind(name) == "other":
            return [_json(cell) for cell in array.to_pylist()]
        encoded = array.dictionary_encode()  # each value once: they are few in a column that groups
        values = [_json(cell) for cell in encoded.dictionary.to_pylist()]
        return [None if place is None else values[place] for place in encoded.indices.to_pylist()]


def _json(cell: object) -> object:
    if not isinstance(cell, float | Decimal):
        return cell if cell is None or isinstance(cell, bool | int) else str(cell).strip()
    value = float(cell)
    if not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return int(value) if value.is_integer() else value


# The column of times


def time_column(
    table: Table, column: str | None, unit: str | None, known: Sequence[str] = ("latency",)
) -> tuple[str, str, list[str]]:
    """`(name, unit, warnings)` of the column that holds the times.

    `column` and `unit` are given by the user. Otherwise the column is the first of the names
    `known` that is present, else the only one that states a unit, else the only one of the table.
    Start times are not considered.
    """
    if unit is not None:
        one_of("unit", unit, UNIT_NS)
    name = _only_times(table, known) if column is None else table.column(column, "--column")
    stated = table.stated_unit(name)
    label = f"{table.where}: {_shown(name) or 'a file of plain numbers'}"
    if unit is None:
        if stated is None:
            raise UsageError(f"{label} does not state its unit: use --unit ns, us, ms or s")
        return name, stated, []
    if stated in (None, unit):
        return name, unit, []
    return (
        name,
        unit,
        [f"{label} states the unit {stated}, but is read in {unit} because of --unit"],
    )


def _only_times(table: Table, known: Sequence[str]) -> str:
    """The column of times; raises `UsageError` if there are none or several that may be it."""
    times = [
        name
        for name in table.names
        if table.kind(name) in ("number", "text") and not is_start(name)
    ]
    found: Sequence[str] = []
    for stem in known:
        found = found or [name for name in times if split_unit(name)[0] == stem]
    found = found or [name for name in times if table.stated_unit(name)]
    if not found and len(table.names) == 1:
        found = table.names
    if len(found) == 1:
        return found[0]
    summaries = [name for name in times if has_word(name, _AGGREGATES)]
    if summaries and set(found) <= set(summaries):
        raise aggregates(
            f"{table.where} has no column of single times, but {listed_names(summaries)}, that is"
        )
    raise UsageError(
        f"{table.where} has {'several columns' if found else 'no column'} that may hold the times:"
        " use --column with its name or its place from 1, or --rename NAME=latency_us; its columns"
        f" are {listed_names(table.names)}"
    )


#: Names of columns of start times, in order of preference: of recordings (intended, actual),
#: trtexec (old, new), other.
STARTS = ("intended", "start", "startin", "startenq", "starth2d", "startcompute", "timestamp")


def is_start(name: str) -> bool:
    """Whether a column with this name holds start times."""
    return split_unit(name)[0] in STARTS


def refuse_aggregates(table: Table, name: str) -> None:
    """Raise `UsageError` if a column of times holds no times of single calls: aggregates, or a
    running number."""
    if has_word(name, _AGGREGATES):
        raise aggregates(f"{table.where}: {_shown(name)} holds")
    for other in table.names:
        stem, unit = split_unit(other)
        of_times = unit is not None or _AGGREGATES.fullmatch(stem)
        if other != name and has_word(other, _AGGREGATES if of_times else _AGGREGATED_BY):
            raise aggregates(f"{table.where} has a column {_shown(other)}, so its rows are")
    if split_unit(name)[0] != "latency" and table.counts_rows(name):
        raise UsageError(
            f"{table.where}: {_shown(name) or 'the file'} counts the rows, it has no"
            " times: use --column"
        )


#: Kinds of invalid times, and what to do about them.
_REMEDIES = {
    "blank or NaN": "--drop-missing leaves these rows out, and states their number",
    "infinite": "give a call that did not end the time after which it was given up;"
    " --counts reads a histogram",
    "negative": "measure with a clock that is never set back, such as time.perf_counter_ns",
    "zero": "measure with a clock of smaller steps, such as time.perf_counter_ns",
}


def times(table: Table, name: str, allowed: Collection[str] = ()) -> np.ndarray:
    """The column of times in its own unit: finite and positive, except for the kinds of `_REMEDIES`
    that are `allowed`.

    Raises `UsageError` with the number of invalid times of the first such kind, and the line of the
    first of them.
    """
    values = table.numbers(name, ("number", "text"))
    kinds = (np.isnan(values), np.isposinf(values), values < 0, values == 0)
    for (kind, remedy), wrong in zip(_REMEDIES.items(), kinds, strict=True):
        if kind not in allowed and wrong.any():
            raise UsageError(
                f"{table.where}: of {len(values)} times in {_shown(name) or 'the file'},"
                f" {np.count_nonzero(wrong)} {kind}, the first in"
                f" {table.place(int(np.argmax(wrong)))}: {remedy}"
            )
    return values


# Files

#: The path that means standard input, and its name in messages.
STANDARD_INPUT = Path("-")
STANDARD_INPUT_NAME = "standard input"

#: Suffixes of the tables that are read from a folder, each also with .gz.
SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".npy", ".parquet", ".pq")

#: First bytes of files.
_PARQUET, _NPY, _GZIP = b"PAR1", b"\x93NUMPY", b"\x1f\x8b"

#: Maximum size of a file after decompression, and of standard input.
LARGEST_BYTES = 2**30


def read_tables(
    paths: Iterable[Path], warnings: list[str], column: str | None = None
) -> list[Table] | None:
    """Read the tables of files and folders; None if these hold recordings of lstm_trt.

    `column`: that of the times, if it is given, which tells whether a table has a heading
    (`_has_heading`). A file that is given twice is read once. Warnings are appended to `warnings`.
    Raises `UsageError`, with a one-line message, if a file cannot be read, or if some paths hold
    tables and others recordings.
    """
    files = {file.resolve(): file for path in paths for file in _files(path, warnings)}
    tables = {file: read_table(file, column) for file in files.values()}
    recorded = [file for file, table in tables.items() if table is None]
    found = [table for table in tables.values() if table is not None]
    if recorded and found:
        raise UsageError(
            f"{recorded[0]} holds recordings of lstm_trt, but {found[0].where} is a table:"
            " analyze them separately, or compare them with lstm-trt compare"
        )
    return found or None


def _files(path: Path, warnings: list[str]) -> list[Path]:
    """The tables in a folder; the path itself if it is a file or holds recordings."""
    if not path.is_dir():
        return [path]
    with file_errors(f"read {path}"):
        found = contents(path)
        files = sorted(filter(Path.is_file, path.glob("[!.]*")))
    recorded = found.recorded or found.failures or found.pair
    if recorded or any(read_table(file) is None for file in found.others):
        return [path]
    tables = [file for file in files if _suffix(file) in SUFFIXES]
    if not tables:
        raise StoreError(
            f"{path} contains no recordings and no tables ({', '.join(SUFFIXES)}; also"
            f" .gz); record with: lstm-trt record --out {path} ..."
        )
    if others := [file.name for file in files if file not in tables]:
        warnings.append(f"{path}: not read, unknown suffix: {listed_names(others)}")
    return tables


def _suffix(path: Path) -> str:
    """The suffix in lower case, without .gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def source_of(paths: Iterable[Path]) -> str:
    """The paths as text, with the name of standard input."""
    return listed((STANDARD_INPUT_NAME if path == STANDARD_INPUT else path for path in paths), 3)


def file_names(tables: Sequence[Table]) -> list[str]:
    """Distinct names: the names of the files without suffixes, or the whole paths."""
    names = [table.where for table in tables]
    stems = [path.name.removesuffix(".gz").removesuffix(_suffix(path)) for path in map(Path, names)]
    return stems if len(set(stems)) == len(stems) else names


def read_table(path: Path, column: str | None = None) -> Table | None:
    """Read a table, with the given `column` of times; None if the path is a folder or holds
    recordings of lstm_trt.

    Raises `UsageError`, with a one-line message, if the file cannot be read.
    """
    if path == STANDARD_INPUT:
        return _of_content(
            STANDARD_INPUT_NAME, "", sys.stdin.buffer.read(LARGEST_BYTES + 1), column
        )
    if not path.exists():
        raise UsageError(f"no such file or folder: {path}")
    refuse_named_pipe(path)
    if path.is_dir() or path.name.endswith(".failure.json"):
        return None
    with file_errors(f"read {path}"), path.open("rb") as file:
        if path.suffix.lower() in (".parquet", ".pq") or file.peek(4).startswith(_PARQUET):
            return _of_parquet(path)
        return _of_content(str(path), _suffix(path), file.read(), column)


class InMemory(Protocol):
    """Numbers in memory: an array, a DataFrame or a Series of pandas, a tensor."""

    def __array__(self) -> np.ndarray: ...


def in_memory(source: object) -> TypeGuard[InMemory]:
    """Whether this is a DataFrame, an array, or something else with numbers in memory."""
    return hasattr(source, "__array__") and not isinstance(source, str)  # a text of numpy is a path


def table_of(source: Any) -> Table:
    """The table of a DataFrame of pandas, or of an array; raises `UsageError` if there is none."""
    if not hasattr(source, "columns"):
        return _of_array("the array", np.asarray(source))
    with refused("the DataFrame cannot be read", ValueError, TypeError, pa.ArrowException):
        return _table("the DataFrame", pa.Table.from_pandas(source, preserve_index=False))


def _of_content(where: str, suffix: str, content: bytes, column: str | None) -> Table:
    compressed = content.startswith(_GZIP)
    if compressed:
        invalid = refused(f"{where} is not a valid gzip file", OSError, EOFError, zlib.error)
        with invalid, gzip.open(io.BytesIO(content)) as file:
            content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES and (compressed or where == STANDARD_INPUT_NAME):
        raise UsageError(
            f"{where} holds more than {bytes_text(LARGEST_BYTES)}: split the table, or save it as"
            " Parquet"
        )
    if content.startswith(_NPY):
        return _of_npy(where, content)
    if not content.strip():
        raise UsageError(f"{where} is empty")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(
            f"{where} is not a UTF-8 text, Parquet, JSON or .npy file: save it as CSV (UTF-8)"
        )
    brackets = text.lstrip().startswith(("[", "{")) and suffix not in (".csv", ".tsv")
    if brackets or suffix in (".json", ".jsonl"):
        return _of_json(where, text)
    return _of_text(where, text, column)


def _of_npy(where: str, content: bytes) -> Table:
    invalid = refused(f"{where} is not a valid .npy file", Exception)  # of many classes
    with invalid, catch_warnings(action="ignore"):
        array = np.load(io.BytesIO(content), allow_pickle=False)
    return _of_array(where, array)


def _of_array(where: str, array: np.ndarray) -> Table:
    """An array of one dimension, or a structured one with named columns."""
    if array.ndim != 1:
        raise UsageError(
            f"{where} has {array.ndim} dimensions: save one dimension, or a structured array"
        )
    array = array.astype(array.dtype.newbyteorder("="))
    columns = {name: array[name] for name in array.dtype.names or ()} or {"": array}
    # A text that is not Unicode is a ValueError, too.
    with refused(f"{where} is not an array of numbers", ValueError, TypeError, pa.ArrowException):
        return _table(where, pa.table(columns))


def _of_parquet(path: Path) -> Table | None:
    with parquet_errors(path, UsageError):
        file = pq.ParquetFile(path)
        if METADATA_KEY in (file.metadata.metadata or {}):
            return None
        return _table(str(path), file.read(use_threads=False))


def _table(where: str, data: pa.Table, lines: Sequence[int] | None = None) -> Table:
    """A table of the named columns, with dictionaries decoded; raises `UsageError` if it has no
    rows."""
    if not data.num_rows:
        raise UsageError(f"{where} has no rows")
    places = [" ".join(name.split()) for name in data.column_names]
    names = []
    columns = []
    for name, column in zip(places, data.columns, strict=True):
        # Plain numbers are one column without a name, and pandas writes its index as another one.
        if name or len(places) == 1:
            kind = column.type.value_type if types.is_dictionary(column.type) else column.type
            columns.append(column.cast(pa.string() if types.is_null(kind) else kind))
            names.append(name)
    return Table(where, pa.table(columns, names), lines=lines, places=places)


def _array(cells: Sequence) -> pa.Array:
    """Cells of JSON; as text if they are not all of one type."""
    try:
        return pa.array(cells)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())


def _of_columns(columns: Mapping[str, Sequence]) -> pa.Table:
    return pa.table(list(map(_array, columns.values())), list(columns))


def _of_json(where: str, text: str) -> Table:
    """A list of objects, one object per line, an object of lists, or a list of numbers."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            value = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise UsageError(f"{where} is not JSON: {first_line(error)}") from None
    columns: Mapping[str, Sequence] = {}
    if isinstance(value, dict):
        columns = columns_of_json(where, value) or _equal_lists(value)
    elif isinstance(value, list) and any(isinstance(row, dict) for row in value):
        columns = _columns_of_objects(where, value)
    elif isinstance(value, list) and value:
        columns = {"": value}
    if not columns:
        raise UsageError(
            f"{where} is JSON, but not a list of objects with a time each (as of trtexec"
            " --exportTimes)"
        )
    with refused(f"{where} has a text that is not Unicode", UnicodeError):
        return _table(where, _of_columns(columns))


def _equal_lists(value: Mapping[str, Any]) -> dict[str, list]:
    """The lists of an object; none if they differ in length."""
    lists = {name: cells for name, cells in value.items() if isinstance(cells, list) and cells}
    return lists if len(set(map(len, lists.values()))) == 1 else {}


def _columns_of_objects(where: str, rows: Sequence[Any]) -> dict[str, list]:
    """The columns of a list of objects, None for what one lacks."""
    for place, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UsageError(
                f"{where}, row {place}: {_shown(row)!r} is not an object, unlike other rows"
            )
    names = dict.fromkeys(itertools.chain(*rows))
    return {name: [row.get(name) for row in rows] for name in names}


def _of_text(where: str, text: str, column: str | None) -> Table:
    """Lines of another tool, one number per line, or CSV; leading lines that start with # are
    comments."""
    lines = text.split("\n")
    of_tool = columns_of_text(where, lines)
    if of_tool is not None:
        columns, places = of_tool
        return _table(where, _of_columns(columns), places)
    start = 0
    while not lines[start].partition("#")[0].strip():
        start += 1
        if start == len(lines):
            raise UsageError(f"{where} has comments but no numbers")
    if _is_number(lines[start].partition("#")[0].strip()):
        return _of_numbers(where, lines, start)
    separator = max(",;\t", key=re.sub(r'"[^"]*"', "", lines[start]).count)
    cells = [cell.strip(' "') for cell in lines[start].split(separator)]
    return _of_csv(where, lines, start, separator, _has_heading(where, cells, column))


def _has_heading(where: str, cells: Sequence[str], column: str | None) -> bool:
    """Whether the first row has names: no number is in the given column of times, named or counted
    from 1.

    pandas writes headings of numbers: 0, or 0, 1, 2, ..., or with an empty cell first. Raises
    `UsageError` if no column is given and all cells are numbers, or if the number is given instead
    of the column's place.
    """
    if not cells[0] or list(cells) == list(map(str, range(len(cells)))):
        return True
    numbers = [_is_number(cell) and cell != "0" for cell in cells]
    if column and column.isdecimal() and 1 <= int(column) <= len(cells):
        return not numbers[int(column) - 1]
    place = cells.index(column) if column in cells else 0
    if numbers[place] if column in cells else all(numbers):
        raise UsageError(
            f"{where} has no heading, it starts with {_shown(', '.join(cells))!r}: use"
            f" --column with the place of the times, such as --column {place + 1}"
        )
    return True


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        decimal(text)
        return True
    return False


def _of_numbers(where: str, lines: Sequence[str], start: int) -> Table:
    """One number per line from line `start`; text after # is a comment."""
    numbers = [line.partition("#")[0].strip() for line in lines]
    # pandas writes the heading 0 for a column without a name.
    heading = numbers[start] == "0" and numbers.count("0") == 1
    table = _of_csv(where, numbers, start, ",", heading)
    # numpy.savetxt writes the header "# latency_us".
    header = lines[start - 1].strip(" \t#") if start else ""
    unit = None if " " in header else split_unit(header)[1]
    return replace(table, data=table.data.rename_columns([""]), unit=unit)


def _of_csv(where: str, lines: Sequence[str], start: int, separator: str, heading: bool) -> Table:
    """CSV from line `start` (from 0), which may be a heading; pyarrow reads a million rows within a
    second."""
    blank = f"{separator} \t"  # spreadsheets write rows of separators below a table
    places = [place for place, line in enumerate(lines[start:], start + 1) if line.strip(blank)]
    if len(places) == 1 and heading:
        raise UsageError(f"{where} has a header ({_shown(lines[start])}) but no rows")
    content = "".join(f"{lines[place - 1]}\n" for place in places).encode()
    ragged: list[Any] = []
    try:
        data = _parsed(content, separator, heading, ragged)
    except pa.ArrowException as error:
        if not ragged:
            raise UsageError(f"{where} is not valid CSV: {_shown(first_line(error))}") from None
        row = ragged[0]
        raise UsageError(
            f"{where}, line {places[row.number - 1]}: {count(row.actual_columns, 'cell')} in a"
            f" table with {count(row.expected_columns, 'column')}: quote cells that contain a"
            " separator, and close all quotes"
        ) from None
    rows = places[1:] if heading else places
    if data.num_rows != len(rows):
        raise UsageError(
            f"{where} is not valid CSV: a quote is not closed, or a cell contains a line break"
        )
    if not heading:
        data = data.rename_columns([f"column {place}" for place in range(1, data.num_columns + 1)])
    return _table(where, data, rows)


def _parsed(content: bytes, separator: str, heading: bool, ragged: list) -> pa.Table:
    """The columns of CSV; a row with another number of cells is appended to `ragged`."""
    from pyarrow import csv

    # One block: types are inferred from the whole file, not from its beginning.
    read = csv.ReadOptions(
        block_size=min(len(content) + 1, 2**30),
        use_threads=False,
        autogenerate_column_names=not heading,
    )
    parse = csv.ParseOptions(
        delimiter=separator, invalid_row_handler=lambda row: ragged.append(row) or "error"
    )
    convert = csv.ConvertOptions(strings_can_be_null=True)
    data = csv.read_csv(pa.BufferReader(content), read, parse, convert)
    if b"0x" in content.lower():  # pyarrow takes hexadecimal numbers for numbers; they are texts
        convert.column_types = dict.fromkeys(data.column_names, pa.string())
        texts = csv.read_csv(pa.BufferReader(content), read, parse, convert)
        for place, column in enumerate(texts.columns):
            if any("0x" in (cell or "").lower() for cell in column.to_pylist()):
                data = data.set_column(place, data.column_names[place], column)
    return data
