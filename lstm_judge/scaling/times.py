"""One time per shape: the input of the scaling analysis.

Only the sizes of the network and a time are needed, so averages from elsewhere can be used.
Different systems (runtime, version, device, options, machine) are kept apart, and rows that are
left out are counted.
"""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lstm_judge.answers import resolved
from lstm_judge.read import tables
from lstm_judge.read.foreign import SYSTEM_COLUMNS
from lstm_judge.read.labels import flat, labels, telling
from lstm_judge.read.rounds import Group
from lstm_judge.read.runs import FILE, Runs, RunsSource, as_runs, is_path, load, matching, paths_of
from lstm_judge.statistics.segments import SAME_LEVEL
from lstm_judge.statistics.trials import Trials, trials_of
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import Tells
from lstm_trt.config.format import count, listed
from lstm_trt.store.schema import Failure

AXES = ("layers", "hidden", "sequence", "batch")

#: Names of columns of times, in order of preference: trials, or rows of `summarize`.
KINDS = ("latency", "median", "mean")


@dataclass(frozen=True)
class ShapeTime:
    """The time of one shape on one system; `rounds` is empty if it comes from a table of averages."""

    latency_us: float
    rounds: tuple[Trials, ...] = ()


#: The system, the sizes in the order of the axes, and their time; None if it is not known.
Measured = tuple[dict, tuple[int, ...], ShapeTime | None]


@dataclass
class Counts:
    """Numbers of rows that were read and left out.

    `rows`: rows of the table, or recordings. `blank`: rows without a time or a size. `duplicates`:
    rows pooled with an earlier row of the same shape. `failed`: failures. `holes`: combinations of
    the sizes present that have no time.
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

    `axes`: those of `AXES` that the source has. `systems`: label of a system, as in `cells` ->
    its fields. `how` has the column and unit of tables, `warnings` lines of text from reading.
    """

    where: str
    axes: tuple[str, ...]
    cells: dict[str, dict[tuple[int, ...], ShapeTime]] = field(repr=False)
    systems: dict[str, dict]
    counts: Counts
    unused: tuple[str, ...] = ()
    how: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def raw(self) -> bool:
        """Whether there are trials, not only averages."""
        return any(cell.rounds for cells in self.cells.values() for cell in cells.values())

    @property
    def mode_text(self) -> str:
        """The mode of all systems, with a comma; empty for forward, and if they differ, which their
        labels state."""
        modes = {fields.get("mode", "forward") for fields in self.systems.values()}
        return "" if len(modes) > 1 or "forward" in modes else f", mode {modes.pop()}"

    def level_changes(self, share: float = SAME_LEVEL) -> tuple[int, int]:
        """Number of recordings within which the level changes by more than this share, and of all
        recordings."""
        rounds = [
            part for cells in self.cells.values() for cell in cells.values() for part in cell.rounds
        ]
        return sum(part.level_range > share for part in rounds), len(rounds)


def read_times(
    source: RunsSource,
    rename: Mapping[str, str] | None = None,
    column: str | None = None,
    unit: str | None = None,
    where: Mapping[str, Any] | None = None,
) -> Times:
    """Times of recordings (anything that `as_runs` accepts), or of tables with a row per
    measurement.

    `rename`, `column` and `unit` are for tables, as in `read.runs.load`; `where` (name -> value or
    values) selects, as `Runs.where`. Several tables are different systems, unless they have columns
    of the system. Raises `UsageError` or `StoreError`, with a one-line message, if the source
    cannot be read.
    """
    if not is_path(source):
        return from_runs(resolved(as_runs(source)).where(**where or {}))
    warnings: list[str] = []
    found = tables.read_tables(paths_of(source), warnings, column)
    if found is None:
        return from_runs(
            resolved(load(source, rename=rename, column=column, unit=unit)).where(**where or {})
        )
    known = (
        *AXES,
        *(f"{kind}_{unit}" for kind in KINDS for unit in tables.UNIT_NS),
        *SYSTEM_COLUMNS,
    )
    for new in (rename or {}).values():
        if new and tables.normal_name(new) not in known:
            raise UsageError(
                f"--rename: unknown column name {new!r}: choose from {', '.join(known)}"
            )
    return from_tables([table.renamed(rename) for table in found], column, unit, warnings, where)


def from_runs(runs: Runs) -> Times:
    """Times of groups of trials: the median of the medians of the rounds (for an even number the
    lower middle one).

    The system is everything in the configuration except the four sizes, and the machine; for a
    table, the other columns that it was grouped by.
    """
    where = runs.source or "the recordings"
    measured = [(group, _fields(group)) for group in runs if group.rounds]
    sizes_of = [
        {axis: size for axis in AXES if isinstance(size := fields.get(axis), int)}
        for _, fields in measured
    ]
    axes = tuple(axis for axis in AXES if any(axis in sizes for sizes in sizes_of))
    rounds = sum(len(group.rounds) for group in runs)
    failed = sum(isinstance(item, Failure) for item in runs.recordings)
    known = {"rows": len(runs.recordings) - failed, "failed": failed}
    counts = Counts(
        **known if runs.recordings else {"rows": rounds, "failed": len(runs) - len(measured)}
    )
    counts.duplicates = counts.rows - rounds
    found: list[Measured] = []
    for (group, fields), sizes in zip(measured, sizes_of, strict=True):
        system = {name: value for name, value in fields.items() if name not in AXES}
        trials = trials_of(group) if sizes.keys() == set(axes) else ()
        counts.used += len(trials)
        latency_us = (
            statistics.median_low(part.median_us for part in trials) if trials else math.inf
        )
        if latency_us <= 0:
            raise UsageError(f"{where}: the median of {sizes} is 0")
        found.append(
            (system, tuple(sizes.values()), ShapeTime(latency_us, trials) if trials else None)
        )
    counts.blank = rounds - counts.used
    if not (axes and counts.used):
        raise UsageError(
            f"{where}: none of {counts.rows + counts.failed} recordings is of a stacked LSTM"
        )
    return _times(found, counts, where=where, axes=axes, how=runs.how, warnings=runs.remarks)


def _fields(group: Group) -> dict:
    """All fields of a group; those in `AXES` are its sizes, the others describe the system."""
    if group.configuration is None:
        return {tables.normal_name(name): value for name, value in group.group.items()}
    workload = group.configuration.workload
    plain, sizes = workload.as_dict(), {axis: workload.axes[axis] for axis in AXES}
    fields = flat(group.configuration).items()
    others = {name: value for name, value in fields if name not in plain and value is not None}
    return {**others, **plain, **sizes, "machine": group.rounds[0].machine}


def from_tables(
    several: Sequence[tables.Table],
    column: str | None = None,
    unit: str | None = None,
    warnings: Iterable[str] = (),
    where: Mapping[str, Any] | None = None,
) -> Times:
    """Times of tables with a column per axis and a column of times (`tables.time_column`, `KINDS`).

    Several rows of one shape are replaced by their median, in each table and then of all tables.
    These rows, and rows with a blank cell, are counted. One of several tables without columns of
    the system is a system of its own, with the name of the file. Raises `UsageError`, with row and
    column, if a value is invalid.
    """
    counts, several_us = Counts(), defaultdict[Any, dict[str, list[float]]](dict)
    read, warned, unused, axes = [], [*warnings], [], ()
    for table, file in zip(several, tables.file_names(several), strict=True):
        time_name, stated, more = tables.time_column(table, column, unit, KINDS)
        columns = _columns(table, AXES)
        if not columns:
            lacks = f"none of the columns {', '.join(AXES)}; its columns are {tables.listed_names(table.names)}"
            example = '--rename "Num LSTM layers=layers"'
            raise UsageError(f"{table.where} has {lacks}; rename them, for example with {example}")
        described = _columns(
            table, SYSTEM_COLUMNS + (telling(Tells.MINOR) if table.find("config_id") else ())
        )
        times_us = tables.times(table, time_name, ["blank or NaN"]) * (
            tables.UNIT_NS[stated] / tables.UNIT_NS["us"]
        )
        sizes = np.array([_whole_sizes(table, name) for name in columns.values()])
        used = np.flatnonzero(~np.isnan([times_us, *sizes]).any(axis=0))
        if not len(used):
            rows = count(table.data.num_rows, "row")
            raise UsageError(
                f"{table.where}: no row has a time and {', '.join(columns)} ({rows} with blanks)"
            )
        texts = [
            ["" if cell is None else str(cell) for cell in table.cells(name)]
            for name in described.values()
        ]
        alone = ((FILE, file),) * (len(several) > 1)
        for row in used:
            system = tuple(zip(described, (cells[row] for cells in texts), strict=True)) or alone
            of_shape = several_us[system, tuple(map(int, sizes[:, row]))]
            of_shape.setdefault(file, []).append(float(times_us[row]))
        counts.rows += table.data.num_rows
        counts.used += len(used)
        taken = {time_name, *columns.values(), *described.values()}
        unused += [name for name in table.names if name not in taken]
        warned += more
        read.append({"column": time_name, "unit": stated})
        axes = axes or tuple(columns)
        if tuple(columns) != axes:
            differ = f"{several[0].where} has the sizes {', '.join(axes)}, {table.where} has {', '.join(columns)}"
            raise UsageError(f"{differ}: analyze them separately")
    counts.blank, counts.duplicates = counts.rows - counts.used, counts.used - len(several_us)
    medians_us = {
        key: statistics.median(map(statistics.median, us.values()))
        for key, us in several_us.items()
    }
    measured: list[Measured] = [
        (dict(key[0]), key[1], ShapeTime(us)) for key, us in medians_us.items()
    ]
    source = listed((table.where for table in several), 3)
    rows = [row[0] | dict(zip(axes, row[1], strict=True)) for row in measured]
    chosen, _ = matching(rows, where or {}, source, warned)
    return _times(
        list(itertools.compress(measured, chosen)),
        counts,
        where=source,
        axes=axes,
        unused=tuple(dict.fromkeys(unused)),
        how={
            name: ", ".join(dict.fromkeys(each[name] for each in read))
            for name in ("column", "unit")
        },
        warnings=tuple(dict.fromkeys(warned)),
    )


def _columns(table: tables.Table, names: Iterable[str]) -> dict[str, str]:
    """Normal name -> name of the column, of those that the table has."""
    return {name: found for name in names if (found := table.find(name))}


def _whole_sizes(table: tables.Table, name: str) -> np.ndarray:
    """A column of sizes as float64, NaN for blanks; raises `UsageError`, with the row, if a size is
    invalid."""
    sizes = table.numbers(name).astype(np.float64)
    wrong = ~np.isnan(sizes) & ~((sizes >= 1) & np.isfinite(sizes) & (sizes == np.floor(sizes)))
    if wrong.any():
        row, allowed = int(np.argmax(wrong)), "a whole number of at least 1"
        raise UsageError(
            f"{table.where}, {table.place(row)}: {name} is {sizes[row]:g}, but must be {allowed}"
        )
    return sizes


def _times(measured: Sequence[Measured], counts: Counts, **more: Any) -> Times:
    """Sorted `Times`, with a short label for each system; counts shapes and holes."""
    labelled = zip(_labels([system for system, _, _ in measured]), measured, strict=True)
    cells: dict[str, dict[tuple[int, ...], ShapeTime]] = {}
    systems: dict[str, dict] = {}
    for label, (system, sizes, cell) in sorted(labelled, key=lambda row: (row[0], row[1][1])):
        systems[label] = system
        if cell is not None:
            cells.setdefault(label, {})[sizes] = cell
    for shapes in cells.values():
        counts.shapes += len(shapes)
        counts.holes += math.prod(len(set(values)) for values in zip(*shapes, strict=True)) - len(
            shapes
        )
    return Times(cells=cells, systems=systems, counts=counts, **more)


def _labels(systems: Sequence[dict]) -> list[str]:
    """A short name for each system: the runtime, and the fields that differ."""
    named = ("runtime", "framework")
    rest = [
        {name: value for name, value in system.items() if name not in named} for system in systems
    ]
    heads = [str(system.get("runtime") or system.get("framework") or "") for system in systems]
    return [
        ", ".join(filter(None, pair)) or "all" for pair in zip(heads, labels(rest), strict=True)
    ]
