"""Tables made elsewhere, as columns in memory: CSV, Parquet, JSON (trtexec's `--exportTimes`), one number a line.

A table says what it says and nothing is guessed: the column of times is the one called `latency`, or the only one
whose name states a unit (`latency_us`, `Average time (s)`, `latencyMs`); without such a column, or without a unit,
the reader is told which flag states it. What cannot be read raises `UsageError`, one line that names the first wrong
line or row.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa

from lstm_trt.config.errors import UsageError, first_line
from lstm_trt.config.format import count, listed
from lstm_trt.store.schema import METADATA_KEY

UNIT_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}

_SPELLINGS = {
    "ns": ("ns", "nanoseconds"),
    "us": ("us", "µs", "μs", "microseconds"),
    "ms": ("ms", "milliseconds"),
    "s": ("s", "sec", "seconds"),
}

_UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings}

_ANY_UNIT = "|".join(sorted(_UNITS, key=len, reverse=True))

#: A unit stands in brackets, behind a separator, or as the capital end of a camel-case word (trtexec's names).
_STATED = (
    re.compile(rf"(?P<stem>.+?)[\s_]*[\[(]\s*(?:in\s+)?(?P<unit>{_ANY_UNIT})\s*[\])]", re.IGNORECASE),
    re.compile(rf"(?P<stem>.+?)[\s_]+(?:in\s+)?(?P<unit>{_ANY_UNIT})", re.IGNORECASE),
    re.compile(r"(?P<stem>.*[a-z0-9])(?P<unit>Ns|Us|Ms)"),
)

#: Cells of text that hold nothing, in small letters.
_BLANKS = ("", "nan", "na", "n/a", "#n/a", "null", "none", "-", "--")

#: So much of a cell or name is shown in an error, and so many names.
_SHOWN_LETTERS, _SHOWN_NAMES = 40, 20


def split_unit(name: str) -> tuple[str, str | None]:
    """`"Latency [us]"` -> `("latency", "us")`: the name without its unit, as `normal_name` has it, and the unit.

    The unit is None where none is stated: `times` and `focus` do not end in one.
    """
    for pattern in _STATED:
        found = pattern.fullmatch(" ".join(name.split()))
        if found:
            return normal_name(found["stem"]), _UNITS[found["unit"].casefold()]
    return normal_name(name), None


def normal_name(name: str) -> str:
    """A name by which columns are found: small letters, one underscore for spaces and hyphens, none outside."""
    return re.sub(r"[\s_-]+", "_", str(name).strip().casefold())


def listed_names(names: Iterable[str]) -> str:
    """Names of columns for an error, which is one line."""
    return listed(map(_shown, names), _SHOWN_NAMES)


def _shown(cell: object) -> str:
    text = str(cell).strip()
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}... ({len(text)} letters)"


@dataclass(frozen=True)
class Table:
    """Columns of equal length, at least one row; `where` is what errors call the file.

    A file of plain numbers has one column, "". `unit`: of that column, where a comment above it states one.
    `lines` gives the line of each row in a text file, None in others. Raises `UsageError` for two columns of one name.
    """

    where: str
    data: pa.Table = field(repr=False)
    unit: str | None = None
    lines: Sequence[int] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in self.names:
            self._refuse_several([other for other in self.names if other == name])

    def _refuse_several(self, alike: Sequence[str]) -> None:
        if len(alike) > 1:
            raise UsageError(
                f"{self.where} has {len(alike)} columns named {_shown(alike[0])}: drop or rename all but one"
            )

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return self.data.column_names

    def place(self, row: int) -> str:
        """Where a row stands, for an error: `line 17` of a text file, else `row 16`."""
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"

    def array(self, name: str) -> pa.Array:
        """The column of a name."""
        return self.data.column(name).combine_chunks()

    def find(self, *names: str) -> str | None:
        """The column that has one of these normal names, None without; raises `UsageError` where several have."""
        found = [name for name in self.names if normal_name(name) in names]
        self._refuse_several(found)
        return found[0] if found else None

    def column(self, name: str, option: str) -> str:
        """The table's column of a name that `option` gives, without case and outer spaces."""
        if self.names == [""]:
            raise UsageError(f"{self.where} holds numbers without names of columns: leave {option} out")
        found = name if name in self.names else self.find(normal_name(name))
        if found is None:
            raise UsageError(f"{self.where} has no column {name!r}; it has {listed_names(self.names)}")
        return found

    def renamed(self, names: Mapping[str, str] | None) -> Table:
        """The table with columns called otherwise (its name -> the new one); those renamed to "" are left out."""
        if not names:
            return self
        new = {self.column(old, "--rename"): name for old, name in names.items()}
        kept = self.data.select([name for name in self.names if new.get(name, name)])
        return replace(self, data=kept.rename_columns([new.get(name, name) for name in kept.column_names]))

    def kind(self, name: str) -> str:
        """`number` (spans of time are), `bool`, `text`, `moment`, or `other`."""
        types, kind = pa.types, self.array(name).type
        if types.is_boolean(kind):
            return "bool"
        if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_duration(kind):
            return "number"
        if types.is_timestamp(kind):
            return "moment"
        return "text" if types.is_string(kind) or types.is_large_string(kind) else "other"

    def stated_unit(self, name: str) -> str | None:
        """The unit that a column states by its type or name, or a comment above the only one; None without."""
        return getattr(self.array(name).type, "unit", None) or split_unit(name)[1] or self.unit

    def numbers(self, name: str) -> np.ndarray:
        """A column as float64, or as int64 where it has whole numbers and no holes; holes are NaN.

        Single precision becomes the decimals that it was written from: 1.1 and not 1.10000002384. Spans and
        moments are numbers of their type's unit. Raises `UsageError` for what holds no numbers, with the row of
        a text that is none.
        """
        array, kind = self.array(name), self.kind(name)
        if kind == "text":
            return np.array([self._number_of_text(name, row, cell) for row, cell in enumerate(array.to_pylist())])
        if kind == "other":
            raise UsageError(f"{self.where}: {_shown(name)} holds no numbers")
        if pa.types.is_temporal(array.type):
            array = array.cast(pa.int64())
        elif kind == "bool" or pa.types.is_decimal(array.type):
            array = array.cast(pa.float64())
        values = array.to_numpy(zero_copy_only=False)
        if values.dtype in (np.float16, np.float32):
            values = values.astype(str)
        return values.astype(np.int64 if values.dtype.kind in "iu" and values.dtype != np.uint64 else np.float64)

    def _number_of_text(self, name: str, row: int, cell: str | None) -> float:
        text = "" if cell is None else cell.strip()
        try:
            return math.nan if text.casefold() in _BLANKS else float(text)
        except ValueError:
            column = f"{_shown(name)} is" if name else "there stands"
            raise UsageError(
                f"{self.where}, {self.place(row)}: {column} {_shown(cell)!r}, not a number: write it with a decimal"
                " point and no separator of thousands"
            ) from None

    def cells(self, name: str) -> list:
        """A column as JSON has it, a cell a row: 64 and not 64.0, text without outer spaces, None for nothing."""
        return [_json(cell) for cell in self.array(name).to_pylist()]


def _json(cell: object) -> object:
    if isinstance(cell, str):
        return cell.strip()
    if cell is None or isinstance(cell, bool | int):
        return cell
    if not isinstance(cell, float | Decimal):
        return str(cell)
    value = float(cell)
    if not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return int(value) if value.is_integer() else value


# The column of times


def time_column(table: Table, column: str | None, unit: str | None, known: Sequence[str] = ("latency",)) -> tuple:
    """`(name, unit, warnings)` of the column that holds the times.

    `column` and `unit` are what the user gave. Else the column called as the first of the `known` that is there,
    else the only one that states a unit, else the only one of the table; starts are no times.
    """
    if unit is not None and unit not in UNIT_NS:
        raise UsageError(f"unknown unit {unit!r}: choose from {', '.join(UNIT_NS)}")
    name = table.column(column, "--column") if column is not None else _only_times(table, known)
    stated, label = table.stated_unit(name), _shown(name) or "a file of plain numbers"
    if unit is None and stated is None:
        raise UsageError(f"{table.where}: {label} does not state its unit: say --unit ns, us, ms or s")
    against = unit is not None and stated is not None and unit != stated
    return name, unit or stated, [f"{label} states {stated}, and was read in {unit} as --unit says"] * against


def _only_times(table: Table, known: Sequence[str]) -> str:
    stems = {name: split_unit(name)[0] for name in table.names if not is_start(name)}
    times = {name for name in stems if table.kind(name) in ("number", "text")}
    found = next((same for stem in known if (same := [name for name in times if stems[name] == stem])), None)
    found = found or [name for name in times if table.stated_unit(name)]
    if not found and len(table.names) == 1:
        found = table.names
    if len(found) == 1:
        return found[0]
    several = f"several columns that may hold the times ({listed_names(n for n in table.names if n in found)})"
    raise UsageError(
        f"{table.where} has {several if found else 'no column that is known to hold the times'}: say --column NAME,"
        f" or --rename NAME=latency_us; it has {listed_names(table.names)}"
    )


#: When a call began, the best first: of recordings of this lab (intended before actual), of trtexec old and new.
STARTS = ("intended", "start", "startin", "startenq", "starth2d", "startcompute")


def is_start(name: str) -> bool:
    """Whether a column of this name tells when a call began."""
    return split_unit(name)[0] in STARTS


def times(table: Table, name: str, blanks: bool = False) -> np.ndarray:
    """The column of times in its own unit, all finite and above 0, NaN for `blanks` where they are allowed.

    Raises `UsageError` with how many are not, and the line of the first.
    """
    if table.kind(name) not in ("number", "text"):
        raise UsageError(f"{table.where}: {_shown(name)} holds no numbers")
    values = table.numbers(name)
    wrong = {"infinite": np.isinf(values), "zero or negative": (values <= 0) & ~np.isinf(values)}
    if not blanks:
        wrong = {"blank or NaN": np.isnan(values), **wrong}
    counts = [f"{np.count_nonzero(rows)} {kind}" for kind, rows in wrong.items() if rows.any()]
    if counts:
        first = table.place(int(np.argmax(np.logical_or.reduce(list(wrong.values())))))
        remedy = "leave blank what was not measured" if blanks else "take out what is none"
        of = f"of {len(values)} times" + (f" in {_shown(name)}" if name else "")
        raise UsageError(
            f"{table.where}: {of}, {' and '.join(counts)}, the first in {first}: a time is above 0; {remedy}"
        )
    return values


# Files


def read_table(path: Path) -> Table | None:
    """The columns of a file from elsewhere; None where the path holds recordings of this lab, or is a folder.

    Raises `UsageError` in one line for what cannot be read.
    """
    if not path.exists():
        raise UsageError(f"there is no file or folder {path}")
    if path.is_dir() or path.name.endswith(".failure.json"):
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    suffix = path.suffix.lower()
    if content.startswith(b"PAR1") or suffix in (".parquet", ".pq"):
        return _of_parquet(path)
    if not content.strip():
        raise UsageError(f"{path} is empty")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{path} is no text in UTF-8, Parquet or JSON file: save the table as CSV (UTF-8)")
    if suffix in (".json", ".jsonl") or (text.lstrip()[:1] in ("[", "{") and suffix not in (".csv", ".tsv")):
        return _of_json(path, text)
    return _of_text(path, text)


def _of_parquet(path: Path) -> Table | None:
    import pyarrow.parquet as pq

    try:
        if METADATA_KEY in (pq.read_schema(path).metadata or {}):
            return None
        data = pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"{path} is not a whole Parquet file: {first_line(error)}") from None
    return _table(path, data)


def _table(path: Path, data: pa.Table, lines: Sequence[int] | None = None) -> Table:
    """A table of the columns that have a name, plainly encoded; raises `UsageError` where it has no rows."""
    if not data.num_rows:
        raise UsageError(f"{path} has no rows")
    named = []
    for name, column in zip(data.column_names, data.columns, strict=True):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        named.append((" ".join(str(name).split()), column.cast(pa.string() if pa.types.is_null(kind) else kind)))
    kept = [(name, column) for name, column in named if name]  # pandas writes its index without a name
    return Table(
        str(path), pa.Table.from_arrays([column for _, column in kept], [name for name, _ in kept]), lines=lines
    )


def _array(cells: Sequence) -> pa.Array:
    """Cells of JSON; as text where they are not all of one type."""
    try:
        return pa.array(cells)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())


def _of_json(path: Path, text: str) -> Table:
    """A list of objects, an object a line, an object of lists, or a list of numbers."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            value = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise UsageError(f"{path} is not JSON: {first_line(error)}") from None
    columns = {}
    if isinstance(value, dict):
        columns = {name: cells for name, cells in value.items() if isinstance(cells, list) and cells}
        columns = columns if len({len(cells) for cells in columns.values()}) == 1 else {}
    elif isinstance(value, list) and any(isinstance(row, dict) for row in value):
        wrong = next((place for place, row in enumerate(value) if not isinstance(row, dict)), None)
        if wrong is not None:
            raise UsageError(
                f"{path}, row {wrong + 1}: {_shown(value[wrong])!r} among objects: give each row its names"
            )
        names = dict.fromkeys(name for row in value for name in row)
        columns = {name: [row.get(name) for row in value] for name in names}
    elif isinstance(value, list) and value:
        return Table(str(path), pa.table({"": _array(value)}))
    if not columns:
        raise UsageError(f"{path} is JSON, but no list of objects with a time each (as of trtexec --exportTimes)")
    return _table(path, pa.Table.from_arrays([_array(cells) for cells in columns.values()], list(columns)))


def _of_text(path: Path, text: str) -> Table:
    """One number a line, or CSV; lines that begin with # before the rest are comments."""
    lines = text.split("\n")
    start = next((at for at, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), None)
    if start is None:
        raise UsageError(f"{path} holds comments and no numbers")
    first = lines[start].strip()
    if _is_number(first.partition("#")[0]):
        return _of_numbers(path, lines, lines[:start])
    separator = max(",;\t", key=re.sub(r'"[^"]*"', "", first).count)
    if all(_is_number(cell) for cell in first.split(separator) if cell.strip()):
        raise UsageError(
            f"{path} begins with {_shown(first)!r}: its first line must hold the names of the columns, or the file one"
            " number a line"
        )
    return _of_csv(path, lines, start, separator)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _of_numbers(path: Path, lines: Sequence[str], comments: Sequence[str]) -> Table:
    """One number a line; what follows a # is a comment."""
    cells = {place: cell for place, line in enumerate(lines, 1) if (cell := line.partition("#")[0].strip())}
    header = comments[-1].strip(" \t#") if comments else ""
    unit = None if " " in header else split_unit(header)[1]  # numpy.savetxt writes the header "# latency_us"
    return Table(str(path), pa.table({"": list(cells.values())}), unit, list(cells))


def _of_csv(path: Path, lines: Sequence[str], start: int, separator: str) -> Table:
    """CSV with a header in line `start` (from 0), read whole by pyarrow: a million rows within a second."""
    from pyarrow import csv

    blank = f"{separator} \t"  # spreadsheets leave rows of separators below a table
    places = [place for place, line in enumerate(lines[start:], start + 1) if line.strip(blank)]
    if len(places) == 1:
        raise UsageError(f"{path} has a header ({_shown(lines[start])}) and no rows")
    content = "\n".join(lines[place - 1] for place in places).encode()
    ragged = []
    try:
        data = csv.read_csv(
            pa.BufferReader(content),
            # One block: types are told from the whole file, not from its beginning.
            read_options=csv.ReadOptions(block_size=min(len(content) + 1, 2**30), use_threads=False),
            parse_options=csv.ParseOptions(
                delimiter=separator, invalid_row_handler=lambda row: ragged.append(row) or "error"
            ),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )
    except pa.ArrowException as error:
        if ragged:
            row = ragged[0]
            raise UsageError(
                f"{path}, line {places[row.number - 1]}: {count(row.actual_columns, 'cell')} under"
                f" {count(row.expected_columns, 'name')}: put cells with a separator in quotes, and close quotes"
            ) from None
        raise UsageError(f"{path} is not CSV: {_shown(first_line(error))}") from None
    if data.num_rows != len(places) - 1:
        raise UsageError(f"{path} is not CSV: a quote is not closed, or a cell holds the end of a line")
    return _table(path, data, places[1:])
