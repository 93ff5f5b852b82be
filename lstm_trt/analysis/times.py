"""One time per shape: the input of the scaling analysis.

Only the sizes of the network and a time are needed, so averages from elsewhere can be used. Different systems
(runtime, version, device, options, machine) are kept apart, and rows that are left out are counted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from lstm_trt.analysis.segments import SAME_LEVEL, find_segments
from lstm_trt.analysis.series import Series
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import Tells
from lstm_trt.config.format import count, listed
from lstm_trt.config.labels import flat, labels, telling
from lstm_trt.store.foreign import SYSTEM_COLUMNS
from lstm_trt.store.runs import FILE, Runs, as_runs, is_path, load, paths_of
from lstm_trt.store.samples import Group
from lstm_trt.store.schema import Failure
from lstm_trt.store.tables import (
    UNIT_NS,
    Table,
    file_names,
    listed_names,
    normal_name,
    read_tables,
    time_column,
    times,
)

AXES = ("layers", "hidden", "sequence", "batch")

#: Confidence of the intervals of medians for comparing pairs of recordings.
PAIR_CONFIDENCE = 0.99

#: Names of columns of times, in order of preference: trials, or rows of `summarize`.
KINDS = ("latency", "median", "mean")


@dataclass(frozen=True)
class MedianOfRound:
    """The median of one process, and its exact interval at `PAIR_CONFIDENCE`.

    The bounds are order statistics; 0 and infinity if there are too few trials. `latency_ns`: its trials in order.
    """

    median_us: float
    low_us: float
    high_us: float
    n: int
    latency_ns: np.ndarray | None = field(default=None, repr=False, compare=False)

    @cached_property
    def level_range(self) -> float:
        """The highest level of the trials over the lowest, minus 1 (see `segments.py`)."""
        if self.latency_ns is None:
            return 0.0
        level_ns = find_segments(self.latency_ns).level_ns
        return float(level_ns.max() / level_ns.min() - 1)


@dataclass(frozen=True)
class ShapeTime:
    """The time of one shape on one system; `rounds` is empty if it comes from a table of averages."""

    latency_us: float
    rounds: tuple[MedianOfRound, ...] = ()


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
        """The mode of all systems, with a comma; empty for forward, and if they differ, which their labels state."""
        modes = {fields.get("mode", "forward") for fields in self.systems.values()}
        return "" if len(modes) > 1 or "forward" in modes else f", mode {modes.pop()}"

    def level_changes(self, share: float = SAME_LEVEL) -> tuple[int, int]:
        """Number of recordings within which the level changes by more than this share, and of all recordings."""
        rounds = [part for cells in self.cells.values() for cell in cells.values() for part in cell.rounds]
        return sum(part.level_range > share for part in rounds), len(rounds)


def read_times(
    source: object, rename: Mapping[str, str] | None = None, column: str | None = None, unit: str | None = None
) -> Times:
    """Times of recordings (anything that `as_runs` accepts), or of tables with a row per measurement.

    `rename`, `column` and `unit` are for tables, as in `store.runs.load`. Several tables are different systems, unless
    they have columns of the system. Raises `UsageError` or `StoreError`, with a one-line message, if the source cannot
    be read.
    """
    if not is_path(source):
        return from_runs(as_runs(source))
    warnings: list[str] = []
    tables = read_tables(paths_of(source), warnings)
    if tables is None:
        return from_runs(load(source, rename=rename, column=column, unit=unit))
    known = (*AXES, *(f"{kind}_{unit}" for kind in KINDS for unit in UNIT_NS), *SYSTEM_COLUMNS)
    for new in (rename or {}).values():
        if new and normal_name(new) not in known:
            raise UsageError(f"--rename: unknown column name {new!r}: choose from {', '.join(known)}")
    parts = [from_table(table.renamed(rename), column, unit) for table in tables]
    found = _together(parts, file_names(tables)) if len(parts) > 1 else parts[0]
    return replace(found, warnings=(*warnings, *found.warnings))


def from_runs(runs: Runs) -> Times:
    """Times of groups of trials: the median of the medians of the rounds (for an even number the lower middle one).

    The system is everything in the configuration except the four sizes, and the machine; for a table, the other
    columns that it was grouped by.
    """
    where = runs.source or "the recordings"
    failed = [group for group in runs if not group.samples]
    measured = [(group, _sizes(group), _system(group)) for group in runs if group.samples]
    samples = sum(len(group.samples) for group in runs)
    counts = Counts(rows=samples, failed=len(failed))
    if runs.recordings:
        counts.failed = sum(isinstance(item, Failure) for item in runs.recordings)
        counts.rows = len(runs.recordings) - counts.failed
    counts.duplicates = counts.rows - samples
    axes = tuple(axis for axis in AXES if any(axis in sizes for _, sizes, _ in measured))
    cells: list[tuple[dict, tuple[int, ...], ShapeTime]] = []
    for group, sizes, system in measured:
        rounds = tuple(_round(sample.timed_ns) for sample in group.samples if not sample.warmup.all())
        if sizes.keys() != set(axes) or not rounds:
            counts.blank += len(group.samples)
            continue
        counts.blank += len(group.samples) - len(rounds)
        counts.used += len(rounds)
        latency_us = statistics.median_low(round.median_us for round in rounds)
        if latency_us <= 0:
            raise UsageError(f"{where}: the median of {sizes} is 0")
        cells.append((system, tuple(sizes[axis] for axis in axes), ShapeTime(latency_us, rounds)))
    if not axes or not cells:
        raise UsageError(f"{where}: none of {counts.rows + counts.failed} recordings is of a stacked LSTM")
    found = _times(where, axes, [system for _, _, system in measured], cells, counts)
    return replace(found, how=runs.how, warnings=runs.warnings)


def _sizes(group: Group) -> dict[str, int]:
    """The sizes of a group, by axis."""
    if group.configuration is None:
        fields = {normal_name(name): value for name, value in group.group.items()}
    else:
        fields = group.configuration.workload.axes
    return {axis: size for axis in AXES if isinstance(size := fields.get(axis), int)}


def _system(group: Group) -> dict:
    """All fields of a group except the four sizes."""
    if group.configuration is None:
        return {normal_name(name): value for name, value in group.group.items() if normal_name(name) not in AXES}
    workload, fields = group.configuration.workload.as_dict(), flat(group.configuration)
    found = {name: value for name, value in fields.items() if name not in workload and value is not None}
    found |= {name: value for name, value in workload.items() if name not in AXES}
    return {**found, "machine": group.samples[0].machine}


def _round(latency_ns: np.ndarray) -> MedianOfRound:
    series = Series(latency_ns)
    low, high = series.interval_us("median_us", PAIR_CONFIDENCE)
    return MedianOfRound(series.median_us, low or 0.0, math.inf if high is None else high, series.n, latency_ns)


def from_table(table: Table, column: str | None = None, unit: str | None = None) -> Times:
    """Times of a table with a column per axis and a column of times (`tables.time_column`, `KINDS`).

    Several rows of one shape are replaced by their median. These rows, and rows with a blank cell, are counted. Raises
    `UsageError`, with row and column, if a value is invalid.
    """
    time_name, stated, warnings = time_column(table, column, unit, KINDS)
    axes = {axis: name for axis in AXES if (name := table.find(axis))}
    if not axes:
        raise UsageError(
            f"{table.where} has none of the columns {', '.join(AXES)}; its columns are {listed_names(table.names)};"
            ' rename them, for example with --rename "Num LSTM layers=layers"'
        )
    known = SYSTEM_COLUMNS + (telling(Tells.MINOR) if table.find("config_id") else ())
    system_names = {name: found for name in known if (found := table.find(name))}
    times_us = times(table, time_name, blanks=True) * (UNIT_NS[stated] / UNIT_NS["us"])
    sizes = np.array([_whole_sizes(table, name) for name in axes.values()])
    system_cells = [["" if cell is None else str(cell) for cell in table.cells(name)] for name in system_names.values()]
    used = np.flatnonzero(~np.isnan([times_us, *sizes]).any(axis=0))
    counts = Counts(rows=table.data.num_rows, used=len(used), blank=table.data.num_rows - len(used))
    if not len(used):
        raise UsageError(
            f"{table.where}: no row has a time and {', '.join(axes)} ({count(counts.rows, 'row')} with blanks)"
        )
    several: dict[tuple, list[float]] = {}
    for row in used:
        key = tuple(cells[row] for cells in system_cells), tuple(int(size) for size in sizes[:, row])
        several.setdefault(key, []).append(float(times_us[row]))
    counts.duplicates = counts.used - len(several)
    measured = [
        (dict(zip(system_names, system, strict=True)), shape, ShapeTime(statistics.median(rows_us)))
        for (system, shape), rows_us in several.items()
    ]
    taken = {time_name, *axes.values(), *system_names.values()}
    unused = tuple(name for name in table.names if name not in taken)
    found = _times(table.where, tuple(axes), [system for system, _, _ in measured], measured, counts, unused)
    return replace(found, how={"column": time_name, "unit": stated}, warnings=tuple(warnings))


def _together(found: Sequence[Times], names: Sequence[str]) -> Times:
    """The times of several tables; a table without columns of the system is a system of its own, with this name."""
    first = found[0]
    for other in found:
        if other.axes != first.axes:
            sizes = f"{first.where} has the sizes {', '.join(first.axes)}, {other.where} has {', '.join(other.axes)}"
            raise UsageError(f"{sizes}: analyze them separately")
    several: dict[tuple, tuple[dict, list[float]]] = {}
    for part, name in zip(found, names, strict=True):
        for label, cells in part.cells.items():
            system = part.systems[label] or {FILE: name}
            for sizes, cell in cells.items():
                several.setdefault((_key(system), sizes), (system, []))[1].append(cell.latency_us)
    measured = [(system, sizes, ShapeTime(statistics.median(us))) for (_, sizes), (system, us) in several.items()]
    summed = ("rows", "used", "blank", "duplicates")
    counts = Counts(**{name: sum(getattr(part.counts, name) for part in found) for name in summed})
    counts.duplicates += sum(len(us) - 1 for _, us in several.values())
    how = {name: ", ".join(dict.fromkeys(part.how[name] for part in found)) for name in first.how}
    warnings = dict.fromkeys(text for part in found for text in part.warnings)
    unused = tuple(dict.fromkeys(name for part in found for name in part.unused))
    where = listed((part.where for part in found), 3)
    together = _times(where, first.axes, [system for system, _, _ in measured], measured, counts, unused)
    return replace(together, how=how, warnings=tuple(warnings))


def _whole_sizes(table: Table, name: str) -> np.ndarray:
    """A column of sizes as float64, NaN for blanks; raises `UsageError`, with the row, if a size is invalid."""
    sizes = table.numbers(name).astype(np.float64)
    wrong = ~np.isnan(sizes) & ~((sizes >= 1) & np.isfinite(sizes) & (sizes == np.floor(sizes)))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise UsageError(
            f"{table.where}, {table.place(row)}: {name} is {sizes[row]:g}, but must be a whole number of at least 1"
        )
    return sizes


def _times(
    where: str,
    axes: tuple[str, ...],
    systems: Iterable[dict],
    measured: Iterable[tuple[dict, tuple[int, ...], ShapeTime]],
    counts: Counts,
    unused: tuple[str, ...] = (),
) -> Times:
    """Sorted `Times`, with a short label for each system; counts shapes and holes. `measured`: (system, sizes, cell).

    `systems`: all systems, including those without a time.
    """
    system_of = {_key(system): system for system in systems}
    label_of = dict(zip(system_of, _labels(system_of.values()), strict=True))
    cells: dict[str, dict[tuple[int, ...], ShapeTime]] = {}
    for system, sizes, cell in sorted(measured, key=lambda row: (label_of[_key(row[0])], row[1])):
        cells.setdefault(label_of[_key(system)], {})[sizes] = cell
    for shapes in cells.values():
        counts.shapes += len(shapes)
        counts.holes += math.prod(len(set(values)) for values in zip(*shapes, strict=True)) - len(shapes)
    return Times(
        where,
        axes,
        cells,
        {label_of[key]: system_of[key] for key in sorted(system_of, key=lambda key: label_of[key])},
        counts,
        unused,
    )


def _key(system: dict) -> tuple:
    return tuple((name, str(value)) for name, value in system.items())


def _labels(systems: Iterable[dict]) -> list[str]:
    """A short name for each system: the runtime, and the fields that differ."""
    systems = list(systems)
    named = ("runtime", "framework")
    rest = [{name: value for name, value in system.items() if name not in named} for system in systems]
    heads = [str(system.get("runtime") or system.get("framework") or "") for system in systems]
    return [", ".join(filter(None, pair)) or "all" for pair in zip(heads, labels(rest), strict=True)]
