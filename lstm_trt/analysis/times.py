"""One time for each shape: what the analysis of scaling works on.

It asks nothing of a measurement but a network's sizes and how long it took, so that tables made elsewhere serve as
well. What was measured on different systems (runtime, version, device, options, machine) is kept apart, and what
was left out is counted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lstm_trt.analysis.quantiles import PERCENTILES, interval, percentile
from lstm_trt.config.errors import UsageError
from lstm_trt.config.labels import configuration_fields, labels
from lstm_trt.store.foreign import SYSTEM_COLUMNS
from lstm_trt.store.runs import Runs, as_runs, load
from lstm_trt.store.samples import Group
from lstm_trt.store.schema import Failure
from lstm_trt.store.tables import UNIT_NS, Table, listed, normal_name, read_table, time_column, times

AXES = ("layers", "hidden", "sequence", "batch")

#: Of the intervals of medians that pairs of recordings are judged by.
PAIR_CONFIDENCE = 0.99

#: Where a table has times of several kinds, the first of these is read: trials, or rows of `summarize`.
KINDS = ("latency", "median", "mean")

#: Only the lab's own summaries mean these as part of the question.
SUMMARY_SYSTEM_COLUMNS = ("trials", "warmup", "seed")


@dataclass(frozen=True)
class Round:
    """The median of one process, and the exact interval that holds the true one at `PAIR_CONFIDENCE`.

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


def read_times(
    source: object, rename: Mapping[str, str] | None = None, column: str | None = None, unit: str | None = None
) -> Times:
    """Times of recordings (whatever `as_runs` takes), or of a table made elsewhere with a row a measurement.

    `rename`, `column` and `unit` are for tables, as in `store.runs.load`. Raises `UsageError` or `StoreError`,
    one line, for what is not there or cannot be read.
    """
    if not isinstance(source, str | Path):
        return from_runs(as_runs(source))
    table = read_table(Path(source))
    if table is None:
        return from_runs(load(source, rename=rename, column=column, unit=unit))
    known = (*AXES, *(f"{kind}_{unit}" for kind in KINDS for unit in UNIT_NS), *SYSTEM_COLUMNS)
    for new in (rename or {}).values():
        if new and normal_name(new) not in known:
            raise UsageError(f"--rename: {new!r} is no name of the lab's: choose from {', '.join(known)}")
    return from_table(table.renamed(rename), column, unit)


def from_runs(runs: Runs) -> Times:
    """Times of groups of trials: the middle one of the rounds' medians.

    The middle, since a process is the unit of replication and its median one observation; for an even number of
    rounds the lower of the two. Everything in the configuration but the four sizes belongs to the system, and so
    does the machine; of a table, the other columns that it was grouped by.
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
    label_of = labels_of({_key(system): system for _, _, system in measured})
    cells: dict[str, dict[tuple[int, ...], Cell]] = {}
    for group, sizes, system in measured:
        rounds = tuple(_round(np.sort(sample.timed_ns)) for sample in group.samples if not sample.warmup.all())
        if sizes.keys() != set(axes) or not rounds:
            counts.blank += len(group.samples)
            continue
        counts.blank += len(group.samples) - len(rounds)
        counts.used += len(rounds)
        latency_us = statistics.median_low(round.median_us for round in rounds)
        if latency_us <= 0:
            raise UsageError(f"{where}: the median of {sizes} is 0: nothing was timed")
        cells.setdefault(label_of[_key(system)], {})[tuple(sizes[axis] for axis in axes)] = Cell(latency_us, rounds)
    if not cells or not axes:
        raise UsageError(f"{where}: no recording of a stacked LSTM among {counts.rows + counts.failed} items")
    cells = {label: dict(sorted(shapes.items())) for label, shapes in cells.items()}
    return _whole(where, axes, cells, {label_of[_key(system)]: system for _, _, system in measured}, counts)


def _sizes(group: Group) -> dict[str, int]:
    """The sizes of a group on the `AXES` that it has."""
    if group.configuration is None:
        fields = {normal_name(name): value for name, value in group.group.items()}
    else:
        fields = group.configuration.workload.axes
    return {axis: fields[axis] for axis in AXES if isinstance(fields.get(axis), int)}


def _system(group: Group) -> dict:
    """All of a group's configuration that is not one of the four sizes, flat."""
    if group.configuration is None:
        return {normal_name(name): value for name, value in group.group.items() if normal_name(name) not in AXES}
    fields, workload = configuration_fields(group.configuration), group.configuration.workload.as_dict()
    first = ("runtime", "runtime_version", "device_name", *group.configuration.options.as_dict(), "mode")
    names = dict.fromkeys([*first, *(name for name in fields if name not in workload), *workload])
    kept = (name for name in names if name not in AXES and (name in workload or fields[name] is not None))
    return {**{name: fields[name] for name in kept}, "machine": group.samples[0].machine}


def _key(system: dict) -> tuple:
    return tuple((name, str(value)) for name, value in system.items())


def _round(ordered: np.ndarray) -> Round:
    low, high = interval(ordered, PERCENTILES["median_us"], PAIR_CONFIDENCE)
    bounds_us = (0.0 if low is None else low / 1e3, math.inf if high is None else high / 1e3)
    return Round(percentile(ordered, PERCENTILES["median_us"]) / 1e3, *bounds_us, len(ordered))


def from_table(table: Table, column: str | None = None, unit: str | None = None) -> Times:
    """Times of a table: a column for each axis that it has, and one of times (`tables.time_column`, `KINDS`).

    Rows of one shape become their median and are counted, and so are rows with a blank cell. Raises `UsageError`
    for what cannot be read, with row and column.
    """
    time_name, unit, _ = time_column(table, column, unit, KINDS)
    axes = {axis: name for axis in AXES if (name := _only(table, axis))}
    if not axes:
        raise UsageError(
            f"{table.where} has none of the columns {', '.join(AXES)}; it has {listed(table.names)};"
            ' --rename "Num LSTM layers=layers" says which column is which'
        )
    known = SYSTEM_COLUMNS + (SUMMARY_SYSTEM_COLUMNS if table.find("config_id") else ())
    told = {name: found for name in known if (found := _only(table, name))}
    times_us = times(table, time_name, blanks=True) * (UNIT_NS[unit] / UNIT_NS["us"])
    columns = [_whole_sizes(table, name) for name in axes.values()]
    cells_of = [(values, codes) for codes, values in map(table.values, told.values())]
    counts = Counts(rows=table.data.num_rows)
    found: dict[tuple, dict[tuple[int, ...], list[float]]] = {}
    systems: dict[tuple, dict] = {}
    for row in np.flatnonzero(~np.isnan([times_us, *columns]).any(axis=0)):
        cells = ["" if values[codes[row]] is None else str(values[codes[row]]) for values, codes in cells_of]
        system = dict(zip(told, cells, strict=True))
        systems[_key(system)] = system
        sizes = tuple(int(sizes[row]) for sizes in columns)
        found.setdefault(_key(system), {}).setdefault(sizes, []).append(float(times_us[row]))
        counts.used += 1
    counts.blank = counts.rows - counts.used
    if not found:
        raise UsageError(
            f"{table.where} has no row with a time and {', '.join(axes)}: {counts.rows} rows, all with blanks"
        )
    label_of = labels_of(systems)
    cells = {
        label_of[key]: {sizes: Cell(statistics.median(several)) for sizes, several in sorted(shapes.items())}
        for key, shapes in found.items()
    }
    counts.duplicates = counts.used - sum(len(shapes) for shapes in found.values())
    taken = {time_name, *axes.values(), *told.values()}
    unused = tuple(name for name in table.names if name not in taken)
    return _whole(table.where, tuple(axes), cells, {label_of[key]: systems[key] for key in systems}, counts, unused)


def _only(table: Table, name: str) -> str | None:
    """The table's column of one of the lab's names, None where it has none; raises `UsageError` for several."""
    found = [column for column in table.data.column_names if normal_name(column) == name]
    if len(found) > 1:
        raise UsageError(f"{table.where} has {len(found)} columns named {name}: drop or rename all but one")
    return found[0] if found else None


def _whole_sizes(table: Table, name: str) -> np.ndarray:
    """A column of sizes as float64, NaN for blanks; raises `UsageError` for what is no size, with its row."""
    sizes = table.numbers(name, whole=True).astype(np.float64)
    wrong = ~np.isnan(sizes) & ~((sizes >= 1) & np.isfinite(sizes) & (sizes == np.floor(sizes)))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise UsageError(
            f"{table.where}, {table.place(row)}: {name} is {sizes[row]:g}: a size is a whole number of at least 1"
        )
    return sizes


def labels_of(systems: dict[tuple, dict]) -> dict[tuple, str]:
    """A short name for each system: the runtime, and of the rest what differs."""
    named = ("runtime", "framework")
    rest = [{name: value for name, value in system.items() if name not in named} for system in systems.values()]
    heads = [str(system.get("runtime") or system.get("framework") or "") for system in systems.values()]
    texts = [", ".join(filter(None, pair)) or "all" for pair in zip(heads, labels(rest), strict=True)]
    return dict(zip(systems, texts, strict=True))


def _whole(
    where: str, axes: tuple[str, ...], cells: dict, systems: dict, counts: Counts, unused: tuple[str, ...] = ()
) -> Times:
    """Times in order, with shapes and holes counted."""
    for shapes in cells.values():
        counts.shapes += len(shapes)
        counts.holes += math.prod(len(set(values)) for values in zip(*shapes, strict=True)) - len(shapes)
    return Times(where, axes, dict(sorted(cells.items())), dict(sorted(systems.items())), counts, unused)
