"""A table from elsewhere in memory: its columns as Arrow has them, and their cells as numbers.

Cells are taken as pyarrow read them, or one by one (`careful_numbers`), which accepts more and
names the line of what is no number.

Tables from elsewhere as columns: CSV, Parquet, JSON (trexec's `--exportTimes`), one number a line.

Files are read whole by pyarrow, a million rows within a second. What it cannot read, and what
holds a cell that is no time, is read again cell by cell (`times_tables.py`), to accept it
(spaces, thousands, blank rows) or to name its line.

What the columns of a table from elsewhere mean, told by their names.

Tables come out of harnesses, loggers and spreadsheets: `latency_us`, `Latency [us]`,
`latencyMs`, `Average time (s)`. A unit is believed only where it stands apart from the rest
of the name: in brackets, behind a separator, or as the capital end of a camel-case word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from lstm_trt.analysis.times import BLANKS, csv_columns, foreign_parquet, normal_name, number, separator_of
from lstm_trt.config.errors import UsageError, first_line

#: Beyond this a text is no number.
LONGEST_NUMBER = 60


@dataclass(frozen=True)
class Table:
    """Columns of equal length; names are the file's, without outer spaces.

    `repeated`: names that several columns have, of which the first is in `columns`. `unit`: of
    the only column, where the file says it beside the numbers. `named`: False where the
    file has one column without a name. `again` reads the file cell by cell, None where that is done.
    """

    where: str
    columns: dict[str, pa.Array] = field(repr=False)
    repeated: frozenset[str] = frozenset()
    lines: Sequence[int] | None = field(default=None, repr=False)
    named: bool = True
    unit: str | None = None
    again: Callable[[], Table] | None = field(default=None, repr=False)
    raw: dict[str, list] = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @property
    def filled(self) -> list[str]:
        """The columns that have a cell with something in it."""
        return [name for name, column in self.columns.items() if column.null_count < len(column)]

    def place(self, row: int) -> str:
        """Where a row stands, for an error: `line 17` of a text file, else `row 16`."""
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"

    def kind(self, name: str) -> str:
        """`number`, `bool`, `text`, `moment`, `span` (whose type says the unit), or `other`."""
        return kind_of(self.columns[name].type)

    def whole(self, name: str) -> bool:
        """Whether a column holds whole numbers, by its type."""
        return pa.types.is_integer(self.columns[name].type)

    def numbers(self, name: str) -> np.ndarray:
        """A column of numbers or truths as float64, or as int64 where it has no holes; holes are NaN.

        Numbers of single precision become the decimals that they were written from: 1.1 and not
        1.10000002384.
        """
        values = self.columns[name]
        if pa.types.is_boolean(values.type) or pa.types.is_decimal(values.type):
            values = values.cast(pa.float64())
        found = values.to_numpy(zero_copy_only=False)
        if found.dtype in (np.float16, np.float32):
            return found.astype(str).astype(np.float64)
        if found.dtype.kind in "iu" and found.dtype != np.uint64:
            return found.astype(np.int64)
        return found.astype(np.float64)

    def distinct(self, name: str) -> int:
        """How many values a column has; cells without one count as one value."""
        import pyarrow.compute as pc

        try:
            return pc.count_distinct(self.columns[name], mode="all").as_py()
        except pa.ArrowNotImplementedError:
            return len(self.codes(name)[1])

    def codes(self, name: str) -> tuple[np.ndarray, list]:
        """`(codes, values)`: the number of each row's value, and the values as JSON has them, as they first appear."""
        column = self.columns[name]
        if pa.types.is_null(column.type):
            return np.zeros(len(column), dtype=np.int64), [None]
        if kind_of(column.type) in ("moment", "span", "other"):
            column = pa.array([None if value is None else str(value) for value in column.to_pylist()])
        encoded = column.dictionary_encode(null_encoding="encode")
        values = [json_value(value) for value in encoded.dictionary.to_pylist()]
        return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), values


def kind_of(kind: pa.DataType) -> str:
    """The kind of a column, see `Table.kind`."""
    types = pa.types
    if types.is_boolean(kind):
        return "bool"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_duration(kind):
        return "span"
    if types.is_timestamp(kind):
        return "moment"
    return "text" if types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind) else "other"


def json_value(value: object) -> object:
    """A cell as JSON has it: 64 and not 64.0, text without outer spaces, None for nothing."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool) or value is None:
        return value
    value = float(value) if not isinstance(value, int) else value
    if value != value or value in (float("inf"), float("-inf")):
        return None if value != value else str(value)
    return int(value) if value == int(value) else value


def careful_numbers(table: Table, name: str) -> np.ndarray:
    """A column cell by cell, float64 with NaN for blanks; raises `UsageError` with the place of a text."""
    cells = table.raw[name]
    label = f"{name} is" if name else "there stands"
    found = np.empty(len(cells))
    for row, cell in enumerate(cells):
        if isinstance(cell, str) and len(cell.strip()) > LONGEST_NUMBER:
            raise UsageError(f"{table.where}, {table.place(row)}: {len(cell)} letters are no number")
        if isinstance(cell, str) and cell.strip().casefold().lstrip("+-") in ("inf", "infinity"):
            found[row] = float(cell)
            continue
        if isinstance(cell, float):
            found[row] = cell
            continue
        value = number(cell, f"{table.where}, {table.place(row)}: {label}", remedy="a time is one number")
        found[row] = np.nan if value is None else value
    return found


def span_ns(table: Table, name: str) -> np.ndarray:
    """A column of spans or moments, whose type says its unit, as int64 in ns; holes become the least int64."""
    column = table.columns[name].cast(pa.int64())
    values = column.fill_null(np.iinfo(np.int64).min).to_numpy(zero_copy_only=False)
    return values * int(UNIT_NS[table.columns[name].type.unit])


#: Beyond this a text is no name of a column.
LONGEST_NAME = 200

_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}


def read_table(path: Path) -> Table | None:
    """The columns of a file from elsewhere; None where it is a recording of this lab.

    Raises `UsageError` in one line for what cannot be read.
    """
    if not path.exists():
        raise UsageError(f"there is no file or folder {path}")
    try:
        with path.open("rb") as file:
            start = file.read(4)
            parquet = start == b"PAR1" or path.suffix.lower() in (".parquet", ".pq")
            content = None if parquet else start + file.read()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    if content is None:
        table = foreign_parquet(path)
        return None if table is None else _of_arrow(str(path), table.column_names, table.columns)
    if not content.strip():
        raise UsageError(f"{path} is empty")
    if b"\0" in content[:65536]:
        raise UsageError(f"{path} is no text, Parquet or JSON file: save the table as CSV (UTF-8)")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text in UTF-8: save the table as CSV (UTF-8)") from None
    suffix = path.suffix.lower()
    if suffix in (".json", ".jsonl") or (text.lstrip()[0] in "[{" and suffix not in (".csv", ".tsv")):
        return _of_json(path, text)
    return _of_text(path, text)


def _of_arrow(where: str, names: Sequence[str], columns: Sequence, **more) -> Table:
    """A table of the columns that have a name; the first of those with the same one."""
    if any(len(str(name)) > LONGEST_NAME for name in names):
        raise UsageError(
            f"{where}: its first line holds no names of columns, but text of {max(map(len, names))} letters"
        )
    found: dict[str, pa.Array] = {}
    repeated = set()
    for name, column in zip((" ".join(str(name).split()) for name in names), columns, strict=True):
        if not name:
            continue
        if name in found:
            repeated.add(name)
            continue
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        found[name] = whole.dictionary_decode() if pa.types.is_dictionary(whole.type) else whole
    table = Table(where, found, frozenset(repeated), **more)
    if not table.rows:
        raise UsageError(f"{where} has no rows")
    return table


def _of_json(path: Path, text: str) -> Table:
    """A list of objects, an object a line, an object of lists, or a list of numbers."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            value = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise UsageError(f"{path} is not JSON: {first_line(error)}") from None
    if isinstance(value, dict):
        lists = {name: cells for name, cells in value.items() if isinstance(cells, list) and cells}
        if len({len(cells) for cells in lists.values()}) != 1:
            raise UsageError(f"{path} is JSON, but no list of objects with a time each (as of trtexec --exportTimes)")
        return _of_arrow(str(path), list(lists), [_typed(cells) for cells in lists.values()])
    if not isinstance(value, list) or not value:
        raise UsageError(f"{path} is JSON, but no list of objects with a time each (as of trtexec --exportTimes)")
    if not any(isinstance(one, dict) for one in value):
        return Table(str(path), {"": _typed(value)}, named=False, raw={"": value})
    wrong = next((place for place, one in enumerate(value) if not isinstance(one, dict)), None)
    if wrong is not None:
        raise UsageError(f"{path}, row {wrong + 1}: {str(value[wrong])[:40]!r} among objects: give each row its names")
    names = list(dict.fromkeys(name for one in value for name in one))
    raw = {name: [one.get(name) for one in value] for name in names}
    return _of_arrow(str(path), names, [_typed(cells) for cells in raw.values()], raw=raw)


def _of_text(path: Path, text: str) -> Table:
    """One number a line, or CSV; lines that begin with # before the rest are comments."""
    comments, place = [], 0
    for line in re.finditer(r"[^\r\n]*(?:\r\n|\r|\n|$)", text):
        if line[0].strip() and not line[0].lstrip().startswith("#"):
            place = line.start()
            first = line[0].strip()
            break
        comments.append(line[0].strip().lstrip("#").strip())
        if line.end() >= len(text):
            raise UsageError(f"{path} holds comments and no numbers")
    if not first.isprintable() and "\t" not in first:
        raise UsageError(f"{path} is no text, Parquet or JSON file: save the table as CSV (UTF-8)")
    if _is_number(first.partition("#")[0]):
        return _of_lines(path, text, comments)
    separator = separator_of(first)
    cells = [cell.strip() for cell in first.split(separator)]
    if all(_is_number(cell) for cell in cells if cell) or all(_is_number(cell) for cell in first.split()):
        raise UsageError(
            f"{path} begins with {first[:40]!r}: its first line must hold the names of the columns, or the file one"
            " number a line"
        )

    def again() -> Table:
        # As many line ends as before, so that lines keep their numbers.
        columns, lines = csv_columns("\n" * len(text[:place].splitlines()) + text[place:], path)
        named = [name.strip() for name in columns]  # a second column of one name has a space behind its name
        return _of_arrow(str(path), named, [_typed(cells) for cells in columns.values()], lines=lines, raw=columns)

    if separator not in first and len(first.split()) > 1:
        rest = text[place:].splitlines()
        if len(rest) > 1 and len(rest[1].split()) == len(first.split()):
            raise UsageError(f"{path} separates its columns by spaces: save the table as CSV, with commas")
    # Spreadsheets leave rows of separators below a table.
    stop = text.find("\n", len(text.rstrip(f"{separator} \t\r\n")))
    return _fast(path, text[place : stop + 1 if stop >= 0 else None], separator, again) or again()


def _fast(path: Path, text: str, separator: str, again: Callable[[], Table]) -> Table | None:
    """The table as pyarrow reads it, None where it cannot."""
    from pyarrow import csv

    content = text.encode()
    try:
        found = csv.read_csv(
            pa.BufferReader(content),
            # One block: types are told from the whole file, not from its beginning.
            read_options=csv.ReadOptions(block_size=min(len(content) + 1, 2**30)),
            parse_options=csv.ParseOptions(delimiter=separator),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )
    except pa.ArrowException:
        return None
    if not found.num_rows:
        return None
    return _of_arrow(str(path), found.column_names, found.columns, again=again)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _of_lines(path: Path, text: str, comments: Sequence[str]) -> Table:
    """One number a line; what follows a # is a comment."""
    every = text.splitlines()
    if "#" in text:
        every = [line.partition("#")[0] for line in every]
    lines = [place for place, line in enumerate(every, 1) if line.strip()]
    cells = [every[place - 1].strip() for place in lines]
    header = comments[-1] if comments else ""
    # numpy.savetxt writes the header "# latency_us"; "# deadline 10 ms" says nothing of the column.
    unit = split_unit(header)[1] if header and find_times([header]) == [header] and len(header.split()) < 3 else None
    try:
        # An array of text is as wide as its longest cell.
        values = np.array(cells).astype(np.float64) if max(map(len, cells)) <= LONGEST_NUMBER else cells
    except ValueError:
        values = cells  # told by line when it is read
    return Table(str(path), {"": pa.array(values)}, lines=lines, named=False, unit=unit, raw={"": cells})


def _typed(cells: Sequence) -> pa.Array:
    """Cells of JSON or CSV as whole numbers, numbers, truths, or text."""
    plain = [cell.strip() if isinstance(cell, str) else cell for cell in cells]
    plain = [None if isinstance(cell, str) and cell.casefold() in BLANKS else cell for cell in plain]
    texts = [cell for cell in plain if isinstance(cell, str)]
    if texts:
        if all(text.casefold() in _TRUTHS for text in texts) and len(texts) + plain.count(None) == len(plain):
            return pa.array([None if cell is None else _TRUTHS[cell.casefold()] for cell in plain])
        for kind in (int, float):
            try:
                return pa.array([None if cell is None else kind(cell) for cell in plain])
            except (ValueError, TypeError, OverflowError, pa.ArrowException):
                continue
    try:
        return pa.array(plain)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if cell is None else str(cell) for cell in plain])


UNIT_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}

_SPELLINGS = {
    "ns": ("ns", "nsec", "nsecs", "nanosecond", "nanoseconds"),
    "us": ("us", "µs", "μs", "usec", "usecs", "microsecond", "microseconds"),
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds"),
    "s": ("s", "sec", "secs", "second", "seconds"),
}

_UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings}

_WORDS = "|".join(sorted(_UNITS, key=len, reverse=True))

_IN_BRACKETS = re.compile(rf"^(?P<stem>.*?)[\s_]*[\[({{<]\s*(?:in\s+)?(?P<unit>{_WORDS})\s*[\])}}>]$", re.IGNORECASE)

_BEHIND = re.compile(rf"^(?:(?P<stem>.*?)[\s_./-]+)??(?:in[\s_]+)?(?P<unit>{_WORDS})$", re.IGNORECASE)

_CAMEL = re.compile(r"^(?P<stem>.*[a-z0-9])(?P<unit>Ns|Us|Ms|Sec|Nanos|Micros|Millis)$")

_CAMEL_UNITS = {"nanos": "ns", "micros": "us", "millis": "ms"} | _UNITS


def _words(name: str) -> list[str]:
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return [word for word in re.split(r"[\s_.\-/:]+", apart.casefold()) if word]


#: Names of the column of times, the first that is there counts; all of one row are as good.
_TIME_STEMS = (
    ("latency", "latencies"),
    ("duration", "durations", "elapsed", "elapsed time", "response time", "execution time", "inference time"),
    ("latency time", "time", "times", "runtime", "wall time", "wall", "real time", "rtt", "delay", ""),
    ("average latency", "mean latency", "avg latency", "median latency"),
    ("average time", "mean time", "avg time", "median time", "average", "mean", "median"),
)

_START_STEMS = (
    *("intended", "intended start", "start", "start time", "starttime", "started", "begin", "begin time"),
    *("start in", "start enq", "start h2d", "start compute", "timestamp", "time stamp", "ts", "time"),
)

WARMUP_NAMES = ("warmup", "warm up", "is warmup", "is warm up")

#: Each value is a process of its own.
ROUND_NAMES = ("round", "process", "pid")

TRIAL_NAMES = ("trial", "iteration", "iter", "index", "idx", "sample", "call", "request", "no", "nr", "i", "n")

_NO_TIMES = {*TRIAL_NAMES, *ROUND_NAMES, *WARMUP_NAMES, "id", "run", "step", "unnamed: 0", "row", "epoch", "seed"}


_CONFIGURATION = set(
    _words(
        "layers layer hidden units sequence sequences seq seqlen timesteps steps batch batchsize features inputs"
        " directions bidirectional runtime backend framework engine model models network net architecture arch config"
        " configuration configs variant device gpu machine host hostname precision dtype quantization quantized threads"
        " mode graph kernel provider workload experiment scenario case benchmark bench test name label group category"
        " method algorithm implementation impl system platform library lib version shape size setting settings arrival"
        " period pause wait clocks optimizer compiler flags tool client server hyperparameters"
    )
)

#: Words that change nothing beside one of those: `num_layers`, `hidden size`.
_BESIDE = set(
    _words(
        "num number n nr no of count length len lstm gru rnn type kind name id dim dims dimension time the per in us ms"
        " intra inter op core cores stacked cell cells"
    )
)

#: Any two values of these are a mixture, however few rows there are; of the second, where they are text.
_SIZES = {"layers", "layer", "hidden", "units", "sequence", "sequences", "seqlen", "batch", "batchsize", "directions"}

_NAMES = {"model", "network", "runtime", "config", "configuration", "framework", "backend", "precision"}

#: Text that tells how a single trial went.
_OF_A_TRIAL = set(
    _words(
        "status result outcome ok error comment comments note notes message msg phase state flag reason level severity"
        " warning event timestamp time date day hour minute cause throttled type thread cpu core"
    )
)


def split_unit(name: str) -> tuple[str, str | None]:
    """`"Latency [us]"` -> `("latency", "us")`; the stem has spaces between its words and no capitals.

    The unit is None where the name has none: `times` and `focus` do not end in a unit.
    """
    name = " ".join(name.split())
    for pattern in (_IN_BRACKETS, _CAMEL, _BEHIND):
        found = pattern.match(name)
        if found:
            return " ".join(_words(found["stem"] or "")), _CAMEL_UNITS[found["unit"].casefold()]
    return " ".join(_words(name)), None


def find_times(numeric: Iterable[str]) -> list[str]:
    """Of the names of the columns with numbers, the one of the times: one name where it is clear.

    Several where it is not, none where there is nothing that may be one. Well-known names
    first (latency before duration before time before averages), then names that have
    "latency" in them, then the only column that is no index, start or size.
    """
    numeric = list(numeric)
    stems = {name: split_unit(name) for name in numeric}
    for row in _TIME_STEMS:
        found = [name for name in numeric if stems[name][0] in row and (stems[name][0] or stems[name][1])]
        if found:
            return found
    found = [name for name in numeric if "latency" in stems[name][0].split()]
    if found:
        return found
    left = [name for name in numeric if not (_no_time(name) or is_start(name) or names_configuration(name))]
    with_unit = [name for name in left if stems[name][1]]
    return with_unit or left


def _no_time(name: str) -> bool:
    return " ".join(_words(name)) in _NO_TIMES or normal_name(name) in _NO_TIMES


def is_start(name: str) -> bool:
    """Whether a column of this name tells when a call began, on some clock."""
    return split_unit(name)[0] in _START_STEMS[:-1]


def find_starts(names: Iterable[str]) -> list[str]:
    """Columns that may tell when the calls began, the best first."""
    stems = {name: split_unit(name)[0] for name in names}
    found = [name for name in stems if stems[name] in _START_STEMS]
    return sorted(found, key=lambda name: _START_STEMS.index(stems[name]))


def find_named(names: Iterable[str], known: Iterable[str]) -> str | None:
    """The first of the names that is one of the known, without case and separators."""
    known = tuple(known)
    return next((name for name in names if " ".join(_words(name)) in known), None)


def are_averages(name: str) -> bool:
    """Whether the times of a column of this name are averages, whose tail is gone."""
    return not {"average", "avg", "mean", "median"}.isdisjoint(_words(name))


def names_configuration(name: str) -> bool:
    """Whether a column of this name says what was measured: `hidden_size`, `Num LSTM layers`, `runtime`.

    `gpu_temperature` or `batch_time_us` have a further word, and do not.
    """
    words = set(_words(name))
    return not words.isdisjoint(_CONFIGURATION) and words <= _CONFIGURATION | _BESIDE and not _is_a_part(name)


def _is_a_part(name: str) -> bool:
    """`kernel_us`, `network_ms`: a time within the call; only a period or a pause is a setting."""
    stem, unit = split_unit(name)
    return unit is not None and stem not in ("period", "pause", "arrival period")


def mixes(name: str, kind: str, values: int, rows: int) -> bool:
    """Whether a column with so many distinct values in so many rows shows that configurations are mixed.

    `kind`: "text", "number" (of any kind) or "bool". A size, or the text of a model or runtime, does
    with any two values; another name of a configuration where values repeat, twice on average; any other
    column only where it is text, does not say how a trial went, and repeats ten times on average.
    """
    if values < 2:
        return False
    words = set(_words(name))
    if names_configuration(name):
        sure = _SIZES | _NAMES if kind == "text" else _SIZES
        return not words.isdisjoint(sure) or 2 * values <= rows
    return kind == "text" and words.isdisjoint(_OF_A_TRIAL) and 10 * values <= rows and not _no_time(name)
