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
from typing import Any, NamedTuple

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
from lstm_trt.config.format import listed
from lstm_trt.store.schema import Failure

AXES = ("layers", "hidden", "sequence", "batch")

#: Names of columns of times, in order of preference: trials, or rows of `summarize`.
KINDS = ("latency", "median", "mean")


@dataclass(frozen=True)
class ShapeTime:
    """The time of one shape on one system; of a table of averages it has no `rounds`."""

    latency_us: float
    rounds: tuple[Trials, ...] = ()


class Measured(NamedTuple):
    """The time of one shape, its sizes in the order of the axes."""

    system: dict
    sizes: tuple[int, ...]
    time: ShapeTime


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
        times = itertools.chain(*(cells.values() for cells in self.cells.values()))
        ranges = [each.level_range for time in times for each in time.rounds]
        return sum(change > share for change in ranges), len(ranges)


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
    if is_path(source):
        warnings: list[str] = []
        found = tables.read_tables(paths_of(source), warnings, column)
        if found is not None:
            renamed = [table.renamed(rename) for table in found]
            return from_tables(renamed, column, unit, warnings, where)
        source = load(source, rename=rename, column=column, unit=unit)
    return from_runs(resolved(as_runs(source)).where(**where or {}))


def from_runs(runs: Runs) -> Times:
    """Times of groups of trials: the median of the medians of the rounds (for an even number the
    lower middle one).

    The system is everything in the configuration except the four sizes, and the machine; for a
    table, the other columns that it was grouped by.
    """
    where = runs.source or "the recordings"
    groups = [group for group in runs if group.rounds]
    sizes_of = [_sizes(_fields(group)) for group in groups]
    axes = tuple(axis for axis in AXES if axis in set().union(*sizes_of))
    counts = _counted(runs)
    measured = []
    for group, sizes in zip(groups, sizes_of, strict=True):
        trials = trials_of(group) if len(sizes) == len(axes) else ()
        if trials:
            counts.used += len(trials)
            time = ShapeTime(statistics.median_low(each.median_us for each in trials), trials)
            if time.latency_us <= 0:
                raise UsageError(f"{where}: the median of {sizes} is 0")
            system = {name: value for name, value in _fields(group).items() if name not in AXES}
            measured.append(Measured(system, tuple(sizes.values()), time))
    counts.blank = counts.rows - counts.duplicates - counts.used
    if not (axes and counts.used):
        raise UsageError(f"{where}: none of the recordings is of a stacked LSTM")
    return _times(measured, counts, where=where, axes=axes, how=runs.how, warnings=runs.remarks)


def _counted(runs: Runs) -> Counts:
    """Numbers of recordings or rounds, and of failures; recordings given twice are duplicates."""
    rounds = sum(len(group.rounds) for group in runs)
    if not runs.recordings:
        return Counts(rounds, failed=sum(not group.rounds for group in runs))
    failed = sum(isinstance(item, Failure) for item in runs.recordings)
    recorded = len(runs.recordings) - failed
    return Counts(recorded, duplicates=recorded - rounds, failed=failed)


def _sizes(fields: Mapping[str, Any]) -> dict[str, int]:
    """The sizes among the fields of a group."""
    return {axis: fields[axis] for axis in AXES if isinstance(fields.get(axis), int)}


def _fields(group: Group) -> dict:
    """All fields of a group; those in `AXES` are its sizes, the others describe the system."""
    if group.configuration is None:
        return {tables.normal_name(name): value for name, value in group.group.items()}
    workload = group.configuration.workload
    plain = workload.as_dict()
    fields = flat(group.configuration).items()
    others = {name: value for name, value in fields if name not in plain and value is not None}
    return {**others, **plain, **workload.axes, "machine": group.rounds[0].machine}


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
    counts = Counts()
    medians_us = defaultdict[Any, list[float]](list)
    read: list[_Columns] = []
    said = list(warnings)
    for table, file in zip(several, tables.file_names(several), strict=True):
        found = _columns_of(table, column, unit, said)
        if read and found.axes != read[0].axes:
            raise UsageError(
                f"{several[0].where} has the sizes {', '.join(read[0].axes)}, {table.where} has"
                f" {', '.join(found.axes)}: analyze them separately"
            )
        read.append(found)
        for key, times_us in _by_shape(
            table, found, {FILE: file} if len(several) > 1 else {}
        ).items():
            medians_us[key].append(statistics.median(times_us))
            counts.used += len(times_us)
        counts.rows += table.data.num_rows
    counts.blank = counts.rows - counts.used
    counts.duplicates = counts.used - len(medians_us)
    measured = [
        Measured(dict(system), shape, ShapeTime(statistics.median(us)))
        for (system, shape), us in medians_us.items()
    ]
    source = listed((table.where for table in several), 3)
    axes = read[0].axes
    rows = [each.system | dict(zip(axes, each.sizes, strict=True)) for each in measured]
    found = matching(rows, where or {}, source)
    return _times(
        list(itertools.compress(measured, found.chosen)),
        counts,
        where=source,
        axes=axes,
        unused=tuple(dict.fromkeys(itertools.chain(*(each.unused for each in read)))),
        how={
            "column": ", ".join(dict.fromkeys(each.time for each in read)),
            "unit": ", ".join(dict.fromkeys(each.unit for each in read)),
        },
        warnings=tuple(dict.fromkeys([*said, *found.warnings])),
    )


class _Columns(NamedTuple):
    """The columns of a table: that of the times, those of the sizes by axis and of the system."""

    time: str
    unit: str
    sizes: dict[str, str]
    system: dict[str, str]
    unused: list[str]

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.sizes)


def _columns_of(
    table: tables.Table, column: str | None, unit: str | None, warnings: list[str]
) -> _Columns:
    """Find the columns; raises `UsageError` if there is none of a size."""
    name, stated, found = tables.time_column(table, column, unit, KINDS)
    warnings += found
    sizes = _columns(table, AXES)
    if not sizes:
        raise UsageError(
            f"{table.where} has none of the columns {', '.join(AXES)}; its columns are"
            f" {tables.listed_names(table.names)}; rename them, for example with"
            ' --rename "Num LSTM layers=layers"'
        )
    own = telling(Tells.MINOR) if table.find("config_id") else ()
    system = _columns(table, SYSTEM_COLUMNS + own)
    taken = {name, *sizes.values(), *system.values()}
    unused = [name for name in table.names if name not in taken]
    return _Columns(name, stated, sizes, system, unused)


def _by_shape(
    table: tables.Table, columns: _Columns, alone: Mapping[str, str]
) -> dict[tuple, list[float]]:
    """Times in us of the rows that have one and all sizes, by system and shape; `alone` is the
    system of a table without columns that describe it."""
    times = tables.times(table, columns.time, ["blank or NaN"])
    times_us = times * (tables.UNIT_NS[columns.unit] / tables.UNIT_NS["us"])
    sizes = np.array([_whole_sizes(table, name) for name in columns.sizes.values()])
    used = np.flatnonzero(~np.isnan([times_us, *sizes]).any(axis=0))
    if not len(used):
        raise UsageError(f"{table.where}: no row has a time and {', '.join(columns.sizes)}")
    cells = [table.cells(name) for name in columns.system.values()]
    found = defaultdict[tuple, list[float]](list)
    for row in used:
        values = ["" if texts[row] is None else str(texts[row]) for texts in cells]
        system = dict(zip(columns.system, values, strict=True)) or alone
        key = (tuple(system.items()), tuple(sizes[:, row].astype(int).tolist()))
        found[key].append(float(times_us[row]))
    return found


def _columns(table: tables.Table, names: Iterable[str]) -> dict[str, str]:
    """Normal name -> name of the column, of those that the table has."""
    return {name: found for name in names if (found := table.find(name))}


def _whole_sizes(table: tables.Table, name: str) -> np.ndarray:
    """A column of sizes as float64, NaN for blanks; raises `UsageError`, with the row, if a size is
    invalid."""
    sizes = table.numbers(name).astype(np.float64)
    wrong = ~np.isnan(sizes) & ~((sizes >= 1) & np.isfinite(sizes) & (sizes == np.floor(sizes)))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise UsageError(
            f"{table.where}, {table.place(row)}: {name} is {sizes[row]:g}, but must be a"
            " whole number of at least 1"
        )
    return sizes


def _times(measured: Sequence[Measured], counts: Counts, **more: Any) -> Times:
    """Sorted `Times`, with a short label for each system; counts shapes and holes."""
    names = _labels([each.system for each in measured])
    cells: dict[str, dict[tuple[int, ...], ShapeTime]] = {}
    systems: dict[str, dict] = {}
    in_order = sorted(zip(names, measured, strict=True), key=lambda pair: (pair[0], pair[1].sizes))
    for name, (system, sizes, time) in in_order:
        systems[name] = system
        cells.setdefault(name, {})[sizes] = time
    for shapes in cells.values():
        grid = math.prod(len(set(sizes)) for sizes in zip(*shapes, strict=True))
        counts.shapes += len(shapes)
        counts.holes += grid - len(shapes)
    return Times(cells=cells, systems=systems, counts=counts, **more)


def _labels(systems: Sequence[dict]) -> list[str]:
    """A short name for each system: the runtime, and the fields that differ; the version only of a
    runtime with several."""
    heads = [str(each.get("runtime") or each.get("framework") or "") for each in systems]
    versions = {(each.get("runtime"), each.get("runtime_version")) for each in systems}
    named = ["runtime", "framework"]
    if len(dict(versions)) == len(versions):
        named.append("runtime_version")
    rest = [{**each, **dict.fromkeys(named)} for each in systems]
    return [
        ", ".join(filter(None, pair)) or "all" for pair in zip(heads, labels(rest), strict=True)
    ]
