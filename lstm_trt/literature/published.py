"""What the documents printed: the tables of `data/published`, one CSV a document, as rows.

One row is one printed figure, with the workload and sizes it belongs to. A cell that holds
no figure is a row as well, without a value, so that a failure, a dash and an empty cell stay
apart. Corrected figures are marked and carry what was printed. `data/published/README.md`
explains the columns and lists the corrections.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from lstm_trt.config.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from lstm_trt.literature.workloads import LiteratureWorkload


#: Document -> the name of its table. "further" are figures of other sources to stand beside.
DOCUMENTS = {
    "000": "tvm-cudnn",
    "001": "ptb-language-model",
    "002": "text-classifier",
    "004": "speech",
    "further": "further",
}

FOLDER = Path("data/published")


#: Units of time, in seconds; the other units are no times.
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}

UNITS = (*SECONDS, "sequences/s", "count", "ratio")


#: The time of one unit of work as each document tells it: one such row a configuration.
#: "mean" is stated; "wall" is elapsed time over batches; "time" is a figure whose statistic is not stated.
TYPICAL = ("mean", "wall", "time")

#: What it took before the first answer.
COSTS = ("schedule", "tuning", "build")

STATISTICS = (
    *TYPICAL,
    *("median", "max", "min", "std", "elapsed", "sequences_per_s"),
    *COSTS,
    *("p99", "p99_low", "p99_high", "max_over_median", "time_per_step", "parameters"),
)


#: "no figure" is a printed dash, "empty" a cell with nothing in it.
STATUSES = ("ok", "failed", "no figure", "empty")

SIZES = ("batch", "sequence", "features", "hidden", "layers")


class Figure:
    """Base of one figure of a table, of a document or of a recording: a frozen dataclass with at least these fields."""

    value: float | None
    unit: str

    @property
    def seconds(self) -> float | None:
        """The value in seconds; None where there is no value or it is no time."""
        return None if self.value is None or self.unit not in SECONDS else self.value * SECONDS[self.unit]


def columns_of(kind: type[Figure]) -> tuple[str, ...]:
    """The columns of a table of figures of this kind, in order."""
    return tuple(field.name for field in fields(kind))


def frame(figures: Iterable[Figure], kind: type[Figure] | None = None) -> pd.DataFrame:
    """One row a figure of `kind` (`Row` if not given), its fields and `seconds`; no value is NaN or `<NA>`."""
    import pandas as pd

    figures, kind = list(figures), kind or Row
    table = pd.DataFrame({name: [getattr(one, name) for one in figures] for name in (*columns_of(kind), "seconds")})
    nullable = {"int | None": "Int64", "float | None": "float64", "bool": "bool"}
    types = {field.name: nullable[field.type] for field in fields(kind) if field.type in nullable}
    return table.astype({**types, "seconds": "float64"})


@dataclass(frozen=True)
class Row(Figure):
    """One cell of a published table; sizes that its document does not state are None.

    `value` is None unless `status` is "ok"; `reason` then says why, in the document's words.
    `published_value` is the cell as printed where `value` differs from it or there is none.
    """

    source: str
    table: str
    workload: str
    shape: str
    batch: int | None
    sequence: int | None
    features: int | None
    hidden: int | None
    layers: int | None
    mode: str
    implementation: str
    framework: str
    framework_version: str
    device: str
    hardware: str
    precision: str
    statistic: str
    value: float | None
    unit: str
    status: str
    reason: str
    corrected: bool
    published_value: str
    note: str

    @property
    def key(self) -> tuple[str, ...]:
        """What no two rows of the documents share."""
        configuration = (self.source, self.table, self.workload, self.shape, self.mode)
        version = (self.implementation, self.framework_version)
        return (*configuration, *version, self.device, self.hardware, self.precision, self.statistic)

    def matches(self, workload: LiteratureWorkload) -> bool:
        """Whether this row is about `workload`, whose sizes must be unscaled: every size that is stated is equal."""
        stated = [size for size in SIZES if getattr(self, size) is not None]
        same = all(getattr(self, size) == getattr(workload, size) for size in stated)
        return self.workload == workload.name and self.mode in workload.modes and same


COLUMNS = columns_of(Row)


def find(name: str) -> Path:
    """The CSV file of a document, by its number ("001") or by the name of its table.

    Looked for in `data/published` of the working folder, of the folders above it, and of the
    source tree that this package runs from: the tables are not part of an installed package.
    Raises `UsageError` for an unknown document, and where none of those folders has the file.
    """
    table = DOCUMENTS.get(name, name)
    if table not in DOCUMENTS.values():
        known = ", ".join(f"{number} or {table}" if number != table else table for number, table in DOCUMENTS.items())
        raise UsageError(f"no published figures of {name!r}: choose from {known}")
    for folder in [Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[2]]:
        path = folder / FOLDER / f"{table}.csv"
        if path.is_file():
            return path
    raise UsageError(f"there is no {FOLDER / table}.csv here or in a folder above: run in a checkout of the project")


def load(name: str) -> tuple[Row, ...]:
    """The rows of one document, in its own order; see `find` for names. Raises `UsageError`."""
    return read(find(name))


def load_all() -> tuple[Row, ...]:
    """The rows of every document. Raises `UsageError` as `load` does."""
    return tuple(row for number in DOCUMENTS for row in load(number))


def typical(rows: Iterable[Row]) -> list[Row]:
    """The rows to draw beside a recording's typical time: one a configuration, failures and empty cells included."""
    return [row for row in rows if row.statistic in TYPICAL]


def read(path: str | Path) -> tuple[Row, ...]:
    """The rows of a CSV file of these columns.

    Raises `UsageError`, with file and line, for other columns, an unknown keyword, a number that
    is none, a value where the status says there is none, or a figure that stands twice.
    """
    path = Path(path)
    rows: dict[tuple[str, ...], Row] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            if tuple(next(reader, ())) != COLUMNS:
                raise UsageError(f"{path} is no table of published figures: its columns must be {','.join(COLUMNS)}")
            for cells in reader:
                row = _row(cells, f"{path} line {reader.line_num}")
                if row.key in rows:
                    raise UsageError(f"{path} line {reader.line_num}: this figure stands twice, give it once")
                rows[row.key] = row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return tuple(rows.values())


def _row(cells: list[str], where: str) -> Row:
    if len(cells) != len(COLUMNS):
        raise UsageError(f"{where}: {len(cells)} cells where there are {len(COLUMNS)} columns")
    named = dict(zip(COLUMNS, cells, strict=True))
    known = {"statistic": STATISTICS, "unit": UNITS, "status": STATUSES, "corrected": ("true", "false")}
    for column, keywords in known.items():
        if named[column] not in keywords:
            raise UsageError(f"{where}: {column} is {named[column]!r}: write one of {', '.join(keywords)}")
    sizes = {size: _number(named[size], int, f"{where}: {size}") for size in SIZES}
    value = _number(named["value"], float, f"{where}: value")
    corrected = named["corrected"] == "true"
    if (value is None) == (named["status"] == "ok"):
        raise UsageError(f"{where}: a row has a value where its status is ok, and only there")
    if named["status"] == "failed" and not named["reason"]:
        raise UsageError(f"{where}: a failure needs its reason")
    if corrected and not named["published_value"]:
        raise UsageError(f"{where}: a corrected figure needs its published_value")
    return Row(**{**named, **sizes, "value": value, "corrected": corrected})


def _number(text: str, kind: type, where: str) -> int | float | None:
    if not text:
        return None
    try:
        number = kind(text)
    except ValueError:
        raise UsageError(f"{where} is {text!r}: write a number or leave it empty") from None
    if not (math.isfinite(number) and number > 0):
        raise UsageError(f"{where} is {text}: it must be above 0")
    return number
