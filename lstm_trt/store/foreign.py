"""Latencies of a table made elsewhere as groups of samples: a row a trial.

Beside the times, columns count by the names that recordings of this lab have: `warmup`, `round`, `trial`,
`start_ns` or `intended_ns` (in any unit), and the causes that the lab counts. Rows of several configurations are
told apart by `group_by`, and refused where they are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import AXES
from lstm_trt.store.samples import BLOCK_CAUSES, TRIAL_CAUSES, Group, Sample
from lstm_trt.store.tables import STARTS, UNIT_NS, Table, is_start, normal_name, split_unit, time_column, times

#: Times are rounded to this many decimals of a nanosecond, so that 1.1 ms is 1100 us.
STEP_DECIMALS = 3

#: Clocks that tell more than this (150 years) are none.
LONGEST_NS = 2.0**62

#: Medians below and above these are warned of: no call from a host takes less, no control loop waits for more.
ABSURD_BELOW_NS, ABSURD_ABOVE_NS = 1e3, 1e9

#: What tells systems apart in tables and recordings, beside the sizes of the network.
SYSTEM_COLUMNS = (
    *("runtime", "runtime_version", "framework", "device", "device_name", "precision", "threads", "mode", "graph"),
    *("device_clocks", "arrival", "features", "directions", "machine"),
)

#: Columns that say what was measured: rows with two values of one are of two configurations.
_CONFIGURED = {*AXES, *SYSTEM_COLUMNS, "config_id"}

#: In a name without a unit these say so as well: `num_layers`, `hidden size`, `batch_size`.
_SIZES = {"layer", "layers", "hidden", "sequence", "seq", "batch"}

_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True)
class Foreign:
    """What was read of a table: its column of times, their unit, and the columns (`keys`) it was grouped by."""

    groups: tuple[Group, ...]
    warnings: tuple[str, ...]
    column: str
    unit: str
    keys: tuple[str, ...]

    @property
    def how(self) -> dict[str, str]:
        """`column`, where it has a name, and `unit`, for JSON answers."""
        return ({"column": self.column} if self.column else {}) | {"unit": self.unit}


def groups_of_table(
    table: Table,
    column: str | None = None,
    unit: str | None = None,
    group_by: Sequence[str] = (),
    causes: Sequence[str] | None = None,
    one_group: bool = False,
) -> Foreign:
    """The groups of a table, as `runs.load` reads them."""
    keys = _columns(table, group_by, "--group-by")
    name, unit, warnings = time_column(table, column, unit)
    if name in keys:
        raise UsageError(f"--group-by {name}: that column holds the times")
    latency_ns = _latency_ns(table, name, unit)
    if are_averages(name):
        warnings.append(f"{name} holds averages by its name: late answers are lost in them")
    warmup = _warmup(table, warnings)
    counts = _counts(table, causes, {name, *keys}, warnings)
    starts = dict(_starts(table, {name, *keys}))
    round_name, trial_name = _rounds(table, keys), table.find("trial")
    rows_by_key = _rows_by(table, keys)
    if not one_group:
        known = {name, *keys, round_name, trial_name, table.find("warmup", "warm_up"), *counts}
        known |= {column for column in table.names if is_start(column)}
        _refuse_mixtures(table, known, rows_by_key, keys, warnings)
    parts_of_groups = _parts(table, round_name, trial_name, rows_by_key, warnings)
    start_ns = _ascending(starts, parts_of_groups, warnings)
    groups = []
    for (values, _), parts in zip(rows_by_key, parts_of_groups, strict=True):
        fields = dict(zip(keys, values, strict=True))
        samples = [
            Sample(
                latency_ns=latency_ns[rows],
                warmup=warmup[rows],
                start_ns=None if start_ns is None else start_ns[rows],
                causes={cause: values[rows] for cause, values in counts.items()},
                round=number,
            )
            for number, rows in parts
        ]
        label = ", ".join(f"{key}={value}" for key, value in fields.items()) or Path(table.where).name
        group = Group(label, tuple(sample for sample in samples if not sample.warmup.all()), fields)
        if group.n < 2:
            which = f"{table.where}: {label}" if fields else table.where
            few = f"{group.n} time{'s' * (group.n != 1)}" + " after warm-up" * bool(warmup.any())
            raise UsageError(f"{which} has {few}, at least 2 are needed")
        groups.append(group)
    warnings += _absurd(table.where, groups, unit)
    return Foreign(tuple(groups), tuple(warnings), name, unit, tuple(keys))


def are_averages(name: str) -> bool:
    """Whether the times of a column of this name are averages, whose tail is gone."""
    return not {"average", "avg", "mean", "median"}.isdisjoint(normal_name(name).split("_"))


def _columns(table: Table, names: Sequence[str], option: str) -> list[str]:
    found = [table.column(name, option) for name in names]
    for place, name in enumerate(found):
        if name in found[:place]:
            raise UsageError(f"{option} names {name} twice")
    return found


def _latency_ns(table: Table, name: str, unit: str) -> np.ndarray:
    values = times(table, name)
    if len(values) < 2:
        raise UsageError(f"{table.where} holds one time: at least 2 are needed, and 1000 to say something of the tail")
    with np.errstate(over="ignore"):
        latency_ns = np.round(values * UNIT_NS[unit], STEP_DECIMALS)
    if not np.isfinite(latency_ns).all() or not (latency_ns > 0).all():
        raise UsageError(f"{table.where}: {name or 'the file'} has times that are out of all range in {unit}")
    return latency_ns


def _warmup(table: Table, warnings: list[str]) -> np.ndarray:
    name = table.find("warmup", "warm_up")
    if name is not None:
        codes, values = table.values(name)
        truths = [_TRUTHS.get(str(value).casefold()) for value in values]
        if None not in truths:
            return np.array(truths)[codes]
        warnings.append(f"{name} has values other than true, false, 1 and 0: no row was taken as warm-up")
    return np.zeros(table.data.num_rows, dtype=bool)


def _rounds(table: Table, keys: Sequence[str]) -> str | None:
    """The column of rounds: each of its values is one process, with two trials at least."""
    name = table.find("round")
    if name is None or name in keys or table.kind(name) not in ("number", "text", "bool"):
        return None
    return name if np.bincount(table.values(name)[0]).min() > 1 else None


def _counts(table: Table, causes: Sequence[str] | None, taken: set, warnings: list[str]) -> dict[str, np.ndarray]:
    """The columns that count something at each trial: those that were given, else those that this lab counts."""
    names = [cause for cause in (*TRIAL_CAUSES, *BLOCK_CAUSES) if cause in table.names]
    names = [name for name in names if table.array(name).null_count < table.data.num_rows]
    found = {}
    for name in names if causes is None else _columns(table, causes, "--causes"):
        values = table.numbers(name) if table.kind(name) in ("number", "bool") else np.full(1, np.nan)
        if name in taken or not (np.isfinite(values).all() and (values >= 0).all() and (values == values // 1).all()):
            problem = f"{name} is no column of counts: a cause is 0 or a whole number above, in every row"
            if causes is not None:
                raise UsageError(f"{table.where}: {problem}")
            warnings.append(problem)
            continue
        found[name] = values.astype(np.int64)
    return found


def _starts(table: Table, taken: set) -> Iterator[tuple[str, np.ndarray]]:
    """Columns that tell when the calls began, the best first, in ns from the first row, where their unit is stated."""
    names = [name for name in table.names if is_start(name) and name not in taken]
    for name in sorted(names, key=lambda name: STARTS.index(split_unit(name)[0])):
        unit = table.stated_unit(name)
        if table.kind(name) not in ("number", "span", "moment") or unit is None or table.array(name).null_count:
            continue
        values = table.numbers(name)
        # Whole numbers are subtracted as such: nanoseconds since 1970 have more digits than a float.
        if (np.abs(values.astype(np.float64)) * UNIT_NS[unit] < LONGEST_NS).all():
            yield name, np.round((values - values[0]) * UNIT_NS[unit]).astype(np.int64)


def _ascending(starts: dict[str, np.ndarray], parts_of_groups: list, warnings: list[str]) -> np.ndarray | None:
    """The first of the starts that ascends in every sample: a clock too coarse for the trials tells no period."""
    for values in starts.values():
        if all((np.diff(values[rows]) > 0).all() for parts in parts_of_groups for _, rows in parts):
            return values
    if starts:
        warnings.append(f"{next(iter(starts))} does not ascend from row to row: no period can be named")
    return None


def _refuse_mixtures(table: Table, known: set, rows_by_key: list, keys: Sequence[str], warnings: list[str]) -> None:
    """Raise `UsageError` where another column shows that the rows are of several configurations.

    So do two values of a column that says what was measured, and a text that repeats, twice on average. Where
    rows were told apart already, but not by that column, warn of it.
    """
    mixed = {}
    for name in table.names:
        kind, rows = table.kind(name), table.data.num_rows
        if name in known or kind not in ("number", "text", "bool"):
            continue
        count = table.distinct(name)
        repeats = kind == "text" and 2 * count <= rows and not table.array(name).null_count
        if count > 1 and (repeats or _says_what_was_measured(name)):
            mixed[name] = count
        elif not keys and 2 <= count <= rows / 10 and pa.types.is_integer(table.array(name).type):
            sizes = np.bincount(table.values(name)[0])
            if sizes.min() == sizes.max():  # as in a planned experiment, and not as what happens to a trial
                what = f"{count} values of {name}, equally often"
                warnings.append(f"{table.where} has {what}: say --group-by {name} if they are configurations")
    if mixed and not keys:
        what = " and ".join(f"{count} values of {name}" for name, count in mixed.items())
        flags = " ".join(f'"{name}"' if " " in name else name for name in mixed)
        raise UsageError(
            f"{table.where} mixes {what}: say --group-by {flags}, or --one-group if all rows are of one configuration"
        )
    for name in mixed:
        codes, _ = table.values(name)
        if any(np.ptp(codes[rows]) for _, rows in rows_by_key):
            warnings.append(f"{table.where} mixes values of {name} within a group: --group-by {name} as well?")


def _says_what_was_measured(name: str) -> bool:
    stem, unit = split_unit(name)
    return unit is None and (stem in _CONFIGURED or not _SIZES.isdisjoint(stem.split("_")))


def _rows_by(table: Table, keys: Sequence[str]) -> list[tuple[tuple, np.ndarray]]:
    """`(values of the keys, rows)` of each group, in the order in which they appear."""
    combined = np.zeros(table.data.num_rows, dtype=np.int64)
    columns = [table.values(key) for key in keys]
    for codes, values in columns:
        _, combined = np.unique(combined * len(values) + codes, return_inverse=True)
    _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(inverse))[:-1])
    found = [
        (tuple(values[codes[row]] for codes, values in columns), part) for row, part in zip(first, parts, strict=True)
    ]
    return sorted(found, key=lambda group: group[1][0])


def _parts(
    table: Table, round_name: str | None, trial_name: str | None, rows_by_key: list, warnings: list[str]
) -> list[list[tuple[int, np.ndarray]]]:
    """For each group its `(round, rows)`, rows in the order of the trials."""
    sortable = trial_name is not None and table.kind(trial_name) == "number"
    trials = table.numbers(trial_name) if sortable else None
    codes, values = table.values(round_name) if round_name else (np.zeros(table.data.num_rows, dtype=np.int64), [0])
    numbers = [value if isinstance(value, int) else place for place, value in enumerate(values)]
    found, was_sorted = [], False
    for _, rows in rows_by_key:
        parts = []
        for code in np.unique(codes[rows]):
            part = rows[codes[rows] == code]
            if trials is not None and (np.diff(trials[part]) < 0).any() and len(set(trials[part])) == len(part):
                part, was_sorted = part[np.argsort(trials[part], kind="stable")], True
            parts.append((int(numbers[code]), part))
        found.append(sorted(parts, key=lambda part: part[0]))
    if was_sorted:
        warnings.append(f"rows were put in the order of {trial_name}")
    return found


def _absurd(where: str, groups: Sequence[Group], unit: str) -> list[str]:
    """A warning where medians look like a wrong unit."""
    medians = [float(np.median(np.concatenate([sample.timed_ns for sample in group.samples]))) for group in groups]
    if min(medians) < ABSURD_BELOW_NS:
        return [f"a median in {where} is {min(medians):g} ns: is {unit} the right unit?"]
    if max(medians) > ABSURD_ABOVE_NS:
        return [f"a median in {where} is {max(medians) / 1e9:g} s: is {unit} the right unit?"]
    return []
