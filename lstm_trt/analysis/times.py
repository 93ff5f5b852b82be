"""One time for each shape, from recordings: what the analysis of scaling works on.

It asks nothing of a measurement but a network's sizes and how long it took, so that
tables made elsewhere serve as well (`times_tables.py`). What was measured on different
systems (runtime, version, device, options, machine) is kept apart, and what was left
out is counted.

Times from tables that others made: CSV or Parquet, a row a measurement.

Columns are found by the lab's names, or by what `rename` calls them. Such tables come
out of spreadsheets: with blanks, spaces, further columns, separators between thousands.
What can be read in two ways is refused, with its line and column: a thousands comma
taken for a decimal one is wrong by a factor of 1000.
"""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lstm_trt.config.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


AXES = ("layers", "hidden", "sequence", "batch")

#: Of the intervals of medians that pairs of recordings are judged by.
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Round:
    """The median of one process, and the exact interval that holds the true one at `CONFIDENCE`.

    The bounds are order statistics, 0 and infinity where there are too few trials for one.
    """

    median_us: float
    low_us: float
    high_us: float
    n: int


@dataclass(frozen=True)
class Cell:
    """The time of one shape on one system; `rounds` where it comes from recordings."""

    latency_us: float
    rounds: tuple[Round, ...] = ()


@dataclass
class Counts:
    """What was read and what was left out.

    `rows` of the table, or recordings; `blank` of them have no time or no size; `duplicates`
    were put into one number with a row before them; `failed` are failure rows. `holes` are
    combinations of the sizes present that have no time.
    """

    rows: int = 0
    used: int = 0
    blank: int = 0
    duplicates: int = 0
    failed: int = 0
    holes: int = 0
    shapes: int = 0


@dataclass(frozen=True)
class Times:
    """Times of shapes: `cells[system][sizes]`, sizes in the order of `axes`.

    `axes` are those of `AXES` that the source has; the others are constant. `systems` tells
    what each system is, by the label that `cells` has for it.
    """

    where: str
    axes: tuple[str, ...]
    cells: dict[str, dict[tuple[int, ...], Cell]] = field(repr=False)
    systems: dict[str, dict]
    counts: Counts
    unused: tuple[str, ...] = ()

    @property
    def raw(self) -> bool:
        """Whether there are trials behind the numbers."""
        return any(cell.rounds for cells in self.cells.values() for cell in cells.values())


def median_interval(ordered: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Order statistics that hold the true median with at least `confidence`, whatever the distribution.

    `ordered` ascends. With B ~ Binomial(n, 1/2) and l the smallest number with P(B <= l) above
    (1 - confidence) / 2, these are the l-th smallest and l-th largest (David and Nagaraja,
    Order Statistics, 7.1); (0, inf) where l is 0. Trials are taken as independent.
    """
    from scipy.stats import binom

    rank = int(binom.ppf((1 - confidence) / 2, len(ordered), 0.5))
    if rank < 1:
        return 0.0, math.inf
    return float(ordered[rank - 1]), float(ordered[len(ordered) - rank])


def from_recordings(items: Iterable, where: str = "the recordings") -> Times:
    """Times of recordings (what `store.read_many` gives): the middle one of the rounds' medians.

    The middle, since a process is the unit of replication and its median one observation;
    for an even number of rounds the lower of the two. Everything in the configuration but
    the four sizes belongs to the system, and so does the machine.
    """
    from lstm_trt.store.schema import Failure

    found: dict[tuple, dict[tuple[int, ...], dict]] = {}
    told: dict[tuple, dict] = {}
    counts = Counts()
    for item in items:
        if isinstance(item, Failure):
            counts.failed += 1
            continue
        counts.rows += 1
        plain = item.configuration.as_dict()
        sizes = tuple(plain["workload"].get(axis) for axis in AXES)
        if None in sizes:
            counts.blank += 1  # a network of the literature, without these sizes
            continue
        told_here = _system(plain, item.provenance.get("machine_fingerprint"))
        key = tuple((name, str(value)) for name, value in told_here.items())
        told[key] = told_here
        rounds = found.setdefault(key, {}).setdefault(sizes, {})
        mark = (item.round, item.provenance.get("started_unix_ns"))
        if mark in rounds:
            counts.duplicates += 1  # a copy of the same file is no further round
            continue
        ordered = np.sort(item.timed_ns)
        if not len(ordered):
            counts.blank += 1
            continue
        low, high = median_interval(ordered)
        median = float(ordered[(len(ordered) - 1) // 2])
        rounds[mark] = Round(median / 1e3, low / 1e3, high / 1e3, len(ordered))
    labels = labels_of(told)
    cells: dict[str, dict[tuple[int, ...], Cell]] = {}
    for key, shapes in found.items():
        for sizes, rounds in sorted(shapes.items()):
            if not rounds:
                continue
            ordered_rounds = tuple(rounds[mark] for mark in sorted(rounds, key=str))
            latency = statistics.median_low(one.median_us for one in ordered_rounds)
            if latency <= 0:
                raise UsageError(
                    f"{where}: the median of {dict(zip(AXES, sizes, strict=True))} is 0: nothing was timed"
                )
            cells.setdefault(labels[key], {})[sizes] = Cell(latency, ordered_rounds)
            counts.used += len(ordered_rounds)
    if not cells:
        raise UsageError(f"{where}: no recording of a stacked LSTM among {counts.rows + counts.failed} items")
    return whole(where, AXES, cells, {labels[key]: told[key] for key in told}, counts)


def _system(plain: dict, machine: str | None) -> dict:
    """All of a configuration that is not one of the four sizes, flat."""
    told = {"runtime": plain["runtime"], "runtime_version": plain["runtime_version"]}
    told["device_name"] = plain["device_name"]
    told |= plain["options"]
    told |= {"mode": plain["mode"], **plain["protocol"]}
    told |= {name: value for name, value in plain["workload"].items() if name not in AXES}
    return told | {"machine": machine}


def labels_of(told: dict[tuple, dict]) -> dict[tuple, str]:
    """A short name for each system: the runtime, and of the rest what differs."""
    names = list(dict.fromkeys(name for one in told.values() for name in one))
    differ = [name for name in names if len({str(one.get(name)) for one in told.values()}) > 1]
    labels = {}
    for key, one in told.items():
        head = str(one.get("runtime") or one.get("framework") or "")
        rest = [
            f"{one[name]}"
            if name in ("precision", "device_name", "device")
            else f"{name.replace('_', ' ')} {one[name]}"
            for name in differ
            if name in one and name not in ("runtime", "framework")
        ]
        labels[key] = ", ".join(filter(None, [head, *rest])) or "all"
    return labels


def whole(
    where: str, axes: tuple[str, ...], cells: dict, systems: dict, counts: Counts, unused: tuple[str, ...] = ()
) -> Times:
    """Times in order, with shapes and holes counted."""
    for shapes in cells.values():
        counts.shapes += len(shapes)
        counts.holes += math.prod(len(set(values)) for values in zip(*shapes, strict=True)) - len(shapes)
    return Times(where, axes, dict(sorted(cells.items())), dict(sorted(systems.items())), counts, unused)


UNITS_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}

#: Where a table has times of several kinds, the first of these is read.
KINDS = ("latency", "median", "mean")

TIME_COLUMNS = tuple(f"{kind}_{unit}" for kind in KINDS for unit in UNITS_US)

#: Columns of a table that tell systems apart; rows of two systems never meet in one answer.
SYSTEM_COLUMNS = (
    *("runtime", "runtime_version", "framework", "device", "device_name", "precision", "threads", "mode", "graph"),
    *("device_clocks", "arrival", "features", "directions", "machine"),
)

#: Only the lab's own summaries mean these as part of the question.
SUMMARY_SYSTEM_COLUMNS = ("trials", "warmup", "seed")

LEAVE_BLANK = "leave blank what was not measured"

BLANKS = {"", "nan", "na", "n/a", "#n/a", "null", "none", "-", "--"}


def read_times(path: str | Path, rename: Mapping[str, str] | None = None) -> Times:
    """Times of a folder or file of recordings, or of a CSV or Parquet table made elsewhere.

    Raises `UsageError` or `StoreError`, one line, for what is not there or cannot be read.
    """
    from lstm_trt.store import folders

    path = Path(path)
    if not path.exists():
        raise UsageError(f"there is no file or folder {path}")
    if path.is_file() and path.suffix.lower() == ".parquet":
        columns = _foreign_parquet(path)
        if columns is not None:
            return from_columns(columns, rename, str(path))
    if path.is_dir() or path.suffix.lower() == ".parquet" or path.name.endswith(".failure.json"):
        if rename:
            raise UsageError(f"{path} holds recordings, whose columns need no --rename")
        return from_recordings(folders.read_many(path), str(path))
    columns, lines = _csv(path)
    return from_columns(columns, rename, str(path), lambda index: f"line {lines[index]}")


def from_frame(table: pd.DataFrame, rename: Mapping[str, str] | None = None) -> Times:
    """Times of a pandas table, as `from_columns` reads them."""
    plain = table.astype(object).where(table.notna(), None)
    return from_columns({str(name): plain[name].tolist() for name in plain}, rename)


def from_columns(
    columns: Mapping[str, Sequence],
    rename: Mapping[str, str] | None = None,
    where: str = "the table",
    place: Callable[[int], str] = lambda index: f"row {index + 1}",
) -> Times:
    """Times of a table from elsewhere: a column for each axis it has, and one of times.

    Names count without case and outer spaces. `rename` maps the table's names to the lab's
    (an axis, a time column, or a column that tells systems apart), or to "" to leave one out.
    The times are in the first present of `latency_`, `median_`, `mean_` followed by `ns`,
    `us`, `ms` or `s`. Rows of one shape become their median and are counted, and so are rows
    with a blank cell. Raises `UsageError` for what cannot be read, with row and column.
    """
    names = _named(columns, rename or {}, where)
    time_column = _time_column(names, where)
    axes = tuple(axis for axis in AXES if axis in names)
    has = ", ".join(columns) or "nothing"
    if not axes:
        raise UsageError(
            f'{where} has none of the columns {", ".join(AXES)}; it has {has}; --rename "Num LSTM layers=layers"'
            " says which column is which"
        )
    known = SYSTEM_COLUMNS + (SUMMARY_SYSTEM_COLUMNS if "config_id" in names else ())
    tell = [name for name in known if name in names]
    for name in (time_column, *axes, *tell):
        if len(names[name]) > 1:
            raise UsageError(f"{where} has {len(names[name])} columns named {name}: drop or rename all but one")
    scale = UNITS_US[time_column.rpartition("_")[2]]
    counts = Counts()
    found: dict[tuple, dict[tuple[int, ...], list[float]]] = {}
    told: dict[tuple, dict] = {}
    for index in range(len(columns[names[time_column][0]])):
        read = {
            name: _read(columns, names[name][0], index, name in axes, where, place) for name in (time_column, *axes)
        }
        counts.rows += 1
        if None in read.values():
            counts.blank += 1
            continue
        one = {name: _plain(columns[names[name][0]][index]) for name in tell}
        key = tuple((name, str(value)) for name, value in one.items())
        told[key] = one
        sizes = tuple(int(read[axis]) for axis in axes)
        found.setdefault(key, {}).setdefault(sizes, []).append(read[time_column] * scale)
        counts.used += 1
    if not found:
        raise UsageError(f"{where} has no row with a time and {', '.join(axes)}: {counts.rows} rows, all with blanks")
    labels = labels_of(told)
    cells = {
        labels[key]: {sizes: Cell(statistics.median(several)) for sizes, several in sorted(shapes.items())}
        for key, shapes in found.items()
    }
    counts.duplicates = counts.used - sum(len(shapes) for shapes in found.values())
    taken = {names[name][0] for name in (time_column, *axes, *tell)}
    unused = tuple(name for name in columns if name not in taken and name.strip())
    return whole(where, axes, cells, {labels[key]: told[key] for key in told}, counts, unused)


def normal_name(name: str) -> str:
    """A name without case and outer spaces."""
    return " ".join(str(name).split()).casefold()


def _named(columns: Mapping[str, Sequence], rename: Mapping[str, str], where: str) -> dict[str, list[str]]:
    """The lab's name -> the table's columns of that name, after renaming."""
    new_names = {normal_name(name): [name] for name in columns}
    for name in columns:
        if name not in new_names[normal_name(name)]:
            new_names[normal_name(name)].append(name)
    known = (*AXES, *TIME_COLUMNS, *SYSTEM_COLUMNS)
    moved: dict[str, list[str]] = {}
    gone: set[str] = set()
    for old, new in rename.items():
        originals = [old] if old in columns else new_names.get(normal_name(old), [])
        if not originals:
            raise UsageError(f"--rename: {where} has no column {old!r}; it has {', '.join(columns) or 'nothing'}")
        if new and normal_name(new) not in known:
            raise UsageError(f"--rename: {new!r} is no name of the lab's: choose from {', '.join(known)}")
        gone.update(originals)
        if new:
            moved.setdefault(normal_name(new), []).extend(originals)
    names: dict[str, list[str]] = {}
    for normal, originals in new_names.items():
        left = [name for name in originals if name not in gone]
        if left or normal in moved:
            names[normal] = left + moved.pop(normal, [])
    return names | moved


def _time_column(names: Mapping[str, list[str]], where: str) -> str:
    for kind in KINDS:
        present = [f"{kind}_{unit}" for unit in UNITS_US if f"{kind}_{unit}" in names]
        if len(present) > 1:
            raise UsageError(
                f'{where} has the times twice, {" and ".join(present)}: --rename "{present[0]}=" drops one'
            )
        if present:
            return present[0]
    units = ", ".join(f"latency_{unit}" for unit in UNITS_US)
    has = ", ".join(original for originals in names.values() for original in originals if original.strip())
    raise UsageError(
        f"{where} has no column of times ({units}; or median_ or mean_ instead of latency_); it has {has or 'nothing'};"
        ' --rename "Average time (s)=latency_s" says which column it is'
    )


def _plain(cell: object) -> str:
    return "" if cell is None or cell != cell else str(cell).strip()


def _read(columns, name: str, index: int, whole: bool, where: str, place) -> float | None:
    """The number in a cell, None for a blank one; `UsageError` with its row for anything else."""
    cell = columns[name][index]
    here = f"{where}, {place(index)}: {name.strip()} is"
    value = number(cell, here, whole)
    if value is None:
        return None
    if whole and (value < 1 or value != int(value)):
        raise UsageError(f"{here} {str(cell).strip()!r}: a size is a whole number of at least 1")
    if not value > 0:
        raise UsageError(f"{here} {str(cell).strip()!r}: a time must be above 0; {LEAVE_BLANK}")
    return value


def number(cell: object, here: str, whole: bool = False, remedy: str = LEAVE_BLANK) -> float | None:
    """The number that a cell holds, or None where it is blank; raises `UsageError` beginning with `here`.

    Spaces, underscores and apostrophes between groups of three digits are taken out, and so are
    commas where they can be nothing else: 1,234.5 and 1,234,567, or 1,024 where only whole
    numbers make sense.
    """
    if cell is None or cell != cell:
        return None
    text = str(cell).strip()
    if text.casefold() in BLANKS:
        return None
    digits = re.sub(r"(?<=\d)[\s_'’](?=\d{3}(?!\d))", "", text)
    if re.fullmatch(r"[+-]?\d{1,3}((,\d{3})+\.\d*|(,\d{3}){2,})", digits) or (
        whole and re.fullmatch(r"\d{1,3}(,\d{3})+", digits)
    ):
        digits = digits.replace(",", "")
    if re.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}", digits):
        one, other = digits.replace(",", ""), digits.replace(",", ".")
        raise UsageError(f"{here} {text!r}, which may be {one} or {other}: write it without a comma")
    if re.fullmatch(r"[+-]?[\d.]*,\d+([eE][+-]?\d+)?", digits):
        raise UsageError(f"{here} {text!r}, with a decimal comma: write a point")
    try:
        value = float(digits)
    except ValueError:
        raise UsageError(f"{here} {text!r}, not a number; {remedy}") from None
    if not math.isfinite(value) or isinstance(cell, bool):
        raise UsageError(f"{here} {text!r}, not a number; {remedy}")
    return value


def _foreign_parquet(path: Path) -> dict[str, list] | None:
    """The columns of a Parquet table; None where it is a recording of this lab's."""
    return foreign_parquet(path, lambda table: table.to_pydict())


def foreign_parquet(path: Path, convert: Callable[[pa.Table], Any] = lambda table: table) -> Any:
    """What `convert` makes of a Parquet table; None where it is a recording of this lab's.

    Raises `UsageError` for a damaged file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from lstm_trt.store.schema import METADATA_KEY

    try:
        if METADATA_KEY in (pq.read_schema(path).metadata or {}):
            return None
        return convert(pq.read_table(path))
    except (pa.ArrowException, OSError, ValueError) as error:
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(f"{path} is not a whole Parquet file: {told[0]}") from None


def _csv(path: Path) -> tuple[dict[str, list[str]], list[int]]:
    """Columns of a CSV file, and the line of each row; its separator is a comma, semicolon or tab."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text in UTF-8: save the table as CSV (UTF-8)") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    return csv_columns(text, path)


def separator_of(line: str) -> str:
    """The separator of a CSV file by its first line: a comma, semicolon or tab."""
    return max(",;\t", key=re.sub(r'"[^"]*"', "", line).count)


def csv_columns(text: str, path: object) -> tuple[dict[str, list[str]], list[int]]:
    """Columns of CSV text, and the line of each row; `path` is what errors call it.

    Two columns of one name become two, the second with a space behind its name.
    """
    lines = text.splitlines(keepends=True)
    first = next((line for line in lines if line.strip()), "")
    separator = separator_of(first)
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    rows, numbers = [], []
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append(row)
                numbers.append(reader.line_num)
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    if not rows:
        raise UsageError(f"{path} is empty")
    header: list[str] = []
    for name in (" ".join(name.split()) for name in rows[0]):
        # Outer spaces do not count: two columns of one name are refused only where they are needed.
        header.append(name + " " * sum(name == one.strip() for one in header) if name else "")
    if len(rows) == 1:
        raise UsageError(f"{path} has a header ({', '.join(header)}) and no rows")
    columns: dict[str, list[str]] = {name: [] for name in header if name}
    for row, line in zip(rows[1:], numbers[1:], strict=True):
        if any(cell.strip() for cell in row[len(header) :]):
            raise UsageError(
                f"{path}, line {line}: {len(row)} cells under {len(header)} names: put numbers with commas in quotes,"
                " or write them without"
            )
        for name, cell in zip(header, row + [""] * (len(header) - len(row)), strict=False):
            if name:
                columns[name].append(cell)
    return columns, numbers[1:]
