"""A table from elsewhere in memory: its columns as Arrow has them, and their cells as numbers.

Cells are taken as pyarrow read them, or one by one (`careful_numbers`), which accepts more and
names the line of what is no number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lstm_trt.errors import UsageError
from lstm_trt.samples_names import UNIT_NS
from lstm_trt.times_tables import number

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
