"""Columns of a table from elsewhere as arrays of a sample: times, starts, warm-up, rounds, counts.

What cannot be read raises `UsageError` with the line of the first such row.

Latencies to judge, from recordings of this lab or from tables made elsewhere.

A table has a row a trial: the column of times, and what else its names tell (`samples_names.py`):
when each call began, which rows are warm-up, which round they are of, what was counted at each.
Rows of several configurations are told apart by `group_by`, and refused where they are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lstm_trt.analysis.times import normal_name
from lstm_trt.config.errors import UsageError
from lstm_trt.store.columns import (
    ROUND_NAMES,
    TRIAL_NAMES,
    UNIT_NS,
    WARMUP_NAMES,
    Table,
    are_averages,
    careful_numbers,
    find_named,
    find_starts,
    find_times,
    is_start,
    mixes,
    names_configuration,
    read_table,
    span_ns,
    split_unit,
)
from lstm_trt.store.samples import BLOCK_CAUSES, TRIAL_CAUSES, Group, Sample

#: Times are rounded to this many decimals of a nanosecond, so that 1.1 ms is 1100 us.
STEP_DECIMALS = 3

#: Clocks that tell more than this (150 years) are none.
LONGEST_NS = 2.0**62


def listed(names: Iterable[str]) -> str:
    """Names for an error, which is one line."""
    names = list(names)
    return ", ".join(names[:20]) + f" and {len(names) - 20} more" * (len(names) > 20) or "none"


def columns_named(table: Table, names: Sequence[str], option: str) -> list[str]:
    """The table's columns of these names, without case and outer spaces."""
    found = []
    for wanted in names:
        same = [name for name in table.columns if name == wanted.strip()]
        same = same or [name for name in table.columns if normal_name(name) == normal_name(wanted)]
        if not same:
            if not table.named:
                raise UsageError(f"{table.where} holds numbers without names of columns: leave {option} out")
            raise UsageError(f"{table.where} has no column {wanted!r}; it has {listed(table.columns)}")
        if len(same) > 1 or same[0] in table.repeated:
            raise UsageError(f"{table.where} has several columns named {wanted}: rename all but one")
        if same[0] in found:
            raise UsageError(f"{option} names {wanted} twice")
        found.append(same[0])
    return found


def time_column(table: Table, column: str | None, group_by: Sequence[str]) -> str:
    if column is not None:
        return columns_named(table, [column], "--column")[0]
    if not table.named:
        return ""
    taken = {normal_name(name) for name in group_by}
    # A column of texts whose name leaves no doubt has a cell that is no number: told later, with its line.
    named = [name for name in table.columns if split_unit(name)[1] or name.casefold().startswith("latenc")]
    texts = {name for name in named if table.kind(name) == "text"}
    candidates = [name for name in table.columns if name in texts or table.kind(name) in ("number", "span")]
    found = find_times(name for name in candidates if normal_name(name) not in taken) or find_times(candidates)
    if len(found) == 1 and found[0] in table.repeated:
        raise UsageError(f"{table.where} has several columns named {found[0]}: rename all but one")
    if len(found) != 1:
        what = (
            f"several columns that may hold the times ({listed(found)})" if found else "no column known for its times"
        )
        raise UsageError(f"{table.where} has {what}; say --column NAME; it has {listed(table.columns)}")
    return found[0]


def clean(table: Table, name: str) -> bool:
    """Whether the column of times can be taken as pyarrow read it."""
    if table.kind(name) == "span":
        return True
    values = table.numbers(name) if table.kind(name) == "number" else np.zeros(1)
    return bool(np.isfinite(values).all() and (values > 0).all())


def unit_of(table: Table, name: str, unit: str | None, warnings: list[str]) -> str:
    if table.columns and table.kind(name) == "span":
        told = table.columns[name].type.unit
        if unit not in (None, told):
            raise UsageError(f"{table.where}: {name} holds spans of time in {told}: leave --unit out")
        return told
    told = table.unit or split_unit(name)[1]
    if unit is None and told is None and not table.named:
        warnings.append(f"{table.where} does not say its unit, microseconds were taken: say --unit ns, us, ms or s")
        return "us"
    if unit is None and told is None:
        raise UsageError(f"{table.where}: the name {name} does not say its unit: say --unit ns, us, ms or s")
    if unit is not None and told not in (None, unit):
        warnings.append(f"{name or table.where} is in {told} by its name, and was read in {unit} as --unit says")
    return unit or told


def latencies(table: Table, name: str, unit: str) -> np.ndarray:
    """The times in ns, all finite and above 0; raises `UsageError` with how many are not, and the first's line."""
    if table.kind(name) == "span":
        values = span_ns(table, name).astype(np.float64)
        values[values <= np.iinfo(np.int64).min / 2] = np.nan
        unit = "ns"
    elif table.kind(name) == "number":
        values = table.numbers(name).astype(np.float64)
    elif table.raw:
        values = careful_numbers(table, name)
    else:
        raise UsageError(f"{table.where}: {name} holds no numbers")
    kinds = {"blank or NaN": np.isnan(values), "infinite": np.isinf(values), "zero or negative": values <= 0}
    kinds["zero or negative"] &= ~kinds["infinite"]
    wrong = [f"{np.count_nonzero(rows)} {kind}" for kind, rows in kinds.items() if rows.any()]
    if wrong:
        first = table.place(int(np.argmax(np.logical_or.reduce(list(kinds.values())))))
        raise UsageError(
            f"{table.where}: of {len(values)} times{f' in {name}' * bool(name)}, {' and '.join(wrong)}, the first in"
            f" {first}: a time is above 0; take out what is none"
        )
    with np.errstate(over="ignore"):
        latency_ns = np.round(values * UNIT_NS[unit], STEP_DECIMALS)
    if not np.isfinite(latency_ns).all() or not (latency_ns > 0).all():
        raise UsageError(f"{table.where}: {name or 'the file'} has times that are out of all range in {unit}")
    return latency_ns


def warmup_rows(table: Table, warnings: list[str]) -> np.ndarray:
    rows = np.zeros(table.rows, dtype=bool)
    name = find_named(table.filled, WARMUP_NAMES)
    if name is None:
        return rows
    codes, values = table.codes(name)
    truths = [_truth(value) for value in values]
    if None in truths:
        warnings.append(f"{name} has values other than true, false, 1 and 0: no row was taken as warm-up")
        return rows
    return np.array(truths)[codes]


def _truth(value: object) -> bool | None:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    return known.get(str(value).strip().casefold())


def round_column(table: Table, keys: Sequence[str]) -> str | None:
    """The column of rounds: each of its values is one process, with two trials at least."""
    name = find_named([name for name in table.filled if name not in keys], ROUND_NAMES)
    if name is None or table.kind(name) not in ("number", "text", "bool"):
        return None
    codes, _ = table.codes(name)
    return name if np.bincount(codes).min() > 1 else None


def cause_counts(table: Table, chosen: Sequence[str] | None, taken: set, warnings: list[str]) -> dict[str, np.ndarray]:
    known = [cause for cause in (*TRIAL_CAUSES, *BLOCK_CAUSES) if cause in table.filled]
    names = known if chosen is None else columns_named(table, chosen, "--causes")
    found = {}
    for name in names:
        values = table.numbers(name) if table.kind(name) in ("number", "bool") else np.full(table.rows, np.nan)
        if name in taken or not (np.isfinite(values).all() and (values >= 0).all() and (values == values // 1).all()):
            why = f"{name} is no column of counts: a cause is 0 or a whole number above, in every row"
            if chosen is not None:
                raise UsageError(f"{table.where}: {why}")
            warnings.append(why)
            continue
        found[name] = values.astype(np.int64)
    return found


def start_columns(table: Table, taken: set) -> Iterator[tuple[str, np.ndarray]]:
    """Columns that may tell when the calls began, in ns from the first, where their unit is known."""
    for name in find_starts(name for name in table.columns if name not in taken):
        kind, unit = table.kind(name), split_unit(name)[1]
        if table.columns[name].null_count:
            continue
        if kind in ("span", "moment"):
            values, scale = span_ns(table, name), 1.0
        elif kind == "number" and unit is not None:
            values, scale = table.numbers(name), UNIT_NS[unit]
        else:
            continue
        # Whole numbers are subtracted as such: nanoseconds since 1970 have more digits than a float.
        if (np.abs(values.astype(np.float64)) * scale < LONGEST_NS).all():
            yield name, np.round((values - values[0]) * scale).astype(np.int64)


def ascending(table: Table, starts: Sequence[tuple], places: list, warnings: list[str]) -> np.ndarray | None:
    """The first of the columns that ascends in every sample: a clock too coarse for the trials tells no period."""
    for _, values in starts:
        if all((np.diff(values[rows]) > 0).all() for parts in places for _, rows in parts):
            return values
    named = [name for name, _ in starts if is_start(name)]
    if named:
        warnings.append(f"{named[0]} does not ascend from row to row: no period can be named")
    return None


#: Medians below and above these are warned of: no call from a host takes less, no control loop waits for more.
ABSURD_BELOW_NS, ABSURD_ABOVE_NS = 1e3, 1e9

#: Whole numbers that count something a person would not group by.
_NO_GROUPS = {"run", "rep", "repeat", "repetition", "block", "chunk", "part", "seed", "id", "row", "hour", "minute"}

_NO_GROUPS |= {"cpu", "core", "thread", "temperature", "temp", "clock", "frequency", "retries", "queue", "depth"}


@dataclass(frozen=True)
class Foreign:
    """What was read of a table from elsewhere: its column of times, their unit, and the `keys` it was grouped by."""

    groups: list[Group]
    warnings: list[str]
    column: str
    unit: str
    keys: tuple[str, ...]

    @property
    def how(self) -> dict[str, str]:
        """`column`, where it has a name, and `unit`, for JSON answers."""
        return ({"column": self.column} if self.column else {}) | {"unit": self.unit}


def read_foreign(
    path: str | Path,
    column: str | None = None,
    unit: str | None = None,
    group_by: Sequence[str] = (),
    causes: Sequence[str] | None = None,
    one_group: bool = False,
) -> Foreign | None:
    """As `runs.load`; None where the path holds recordings of this lab, to which the options do not apply."""
    path = Path(path)
    table = None if path.is_dir() or path.name.endswith(".failure.json") else read_table(path)
    if table is not None:
        return groups_of_table(table, column, unit, group_by, causes, one_group)
    given = {"--column": column, "--unit": unit, "--group-by": group_by, "--causes": causes}
    for option, value in given.items():
        if value:
            told = "are grouped by configuration" if option == "--group-by" else "know their columns and units"
            raise UsageError(f"{path} holds recordings of this lab, which {told}: leave {option} out")
    return None


def groups_of_table(
    table: Table,
    column: str | None = None,
    unit: str | None = None,
    group_by: Sequence[str] = (),
    causes: Sequence[str] | None = None,
    one_group: bool = False,
) -> Foreign:
    """The groups of a table from elsewhere, as `runs.load` reads them."""
    warnings: list[str] = []
    if unit is not None and unit not in UNIT_NS:
        raise UsageError(f"unknown unit {unit!r}: choose from {', '.join(UNIT_NS)}")
    name = time_column(table, column, group_by)
    if table.again is not None and not clean(table, name):
        table = table.again()
    keys = columns_named(table, group_by, "--group-by")
    if name in keys:
        raise UsageError(f"--group-by {name}: that column holds the times")
    unit = unit_of(table, name, unit, warnings)
    latency_ns = latencies(table, name, unit)
    if len(latency_ns) < 2:
        raise UsageError(f"{table.where} holds one time: at least 2 are needed, and 1000 to say something of the tail")
    if are_averages(name):
        warnings.append(f"{name} holds averages by its name: late answers are lost in them")
    warmup = warmup_rows(table, warnings)
    rounds = round_column(table, keys)
    trial = find_named([name for name in table.columns if table.kind(name) == "number"], TRIAL_NAMES)
    counts = cause_counts(table, causes, {name, *keys}, warnings)
    rows_of = _rows_by(table, keys)
    if not one_group:
        known = {name, *keys, trial, rounds, find_named(table.columns, WARMUP_NAMES)}
        _tell_mixtures(table, known | {*find_starts(table.columns), *counts}, rows_of, keys, warnings)
    starts = list(start_columns(table, {name, *keys}))
    places = _places(table, rounds, trial, rows_of, warnings)
    start_ns = ascending(table, starts, places, warnings)
    groups = []
    for (values, _), parts in zip(rows_of, places, strict=True):
        told = dict(zip(keys, values, strict=True))
        label = ", ".join(f"{key}={value}" for key, value in told.items()) or Path(table.where).name
        samples = tuple(
            Sample(
                latency_ns=latency_ns[rows],
                warmup=warmup[rows],
                start_ns=None if start_ns is None else start_ns[rows],
                causes={cause: values[rows] for cause, values in counts.items()},
                round=number,
            )
            for number, rows in parts
        )
        group = Group(label, tuple(sample for sample in samples if not sample.warmup.all()), told)
        if group.n < 2:
            which = f"{table.where}: {label}" if told else table.where
            few = f"{group.n} time{'s' * (group.n != 1)}" + " after warm-up" * bool(warmup.any())
            raise UsageError(f"{which} has {few}, at least 2 are needed")
        groups.append(group)
    warnings += _absurd(table.where, groups, unit)
    return Foreign(groups, warnings, name, unit, tuple(keys))


def _tell_mixtures(table: Table, known: set, rows_of: list, keys: Sequence[str], warnings: list[str]) -> None:
    """Raise `UsageError` where another column shows that the rows are of several configurations.

    Where they were told apart already, but not by that column, warn of it.
    """
    mixed = {}
    for name in table.columns:
        kind = table.kind(name)
        if name in known or kind not in ("number", "text", "bool"):
            continue
        if kind == "number" and not names_configuration(name) and not table.whole(name):
            continue
        count = table.distinct(name)
        if mixes(name, kind, count, table.rows):
            mixed[name] = count
        elif kind == "number" and not keys and 2 <= count <= table.rows / 10 and _may_be_planned(name):
            sizes = np.bincount(table.codes(name)[0])
            if sizes.min() == sizes.max():  # as in a planned experiment, and not as what happens to a trial
                told = f"{count} values of {name}, equally often"
                warnings.append(f"{table.where} has {told}: say --group-by {name} if they are configurations")
    if mixed and not keys:
        told = " and ".join(f"{count} values of {name}" for name, count in mixed.items())
        raise UsageError(
            f"{table.where} mixes {told}: say --group-by {' '.join(map(_quoted, mixed))}, or --one-group if all rows"
            " are of one configuration"
        )
    for name in mixed:
        codes, _ = table.codes(name)
        if any(np.ptp(codes[rows]) for _, rows in rows_of):
            warnings.append(f"{table.where} mixes values of {name} within a group: --group-by {name} as well?")


def _may_be_planned(name: str) -> bool:
    return normal_name(name) not in _NO_GROUPS and (names_configuration(name) or split_unit(name)[1] is None)


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name


def _rows_by(table: Table, keys: Sequence[str]) -> list[tuple[tuple, np.ndarray]]:
    """`(values of the keys, rows)` of each group, in the order in which they appear."""
    every = np.zeros(table.rows, dtype=np.int64)
    values_of, codes_of = [], []
    for key in keys:
        codes, values = table.codes(key)
        _, every = np.unique(every * len(values) + codes, return_inverse=True)
        values_of.append(values)
        codes_of.append(codes)
    _, first, inverse = np.unique(every, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(inverse))[:-1])
    found = [
        (tuple(values[codes[row]] for values, codes in zip(values_of, codes_of, strict=True)), part)
        for row, part in zip(first, parts, strict=True)
    ]
    return sorted(found, key=lambda one: one[1][0])


def _places(table: Table, rounds: str | None, trial: str | None, rows_of: list, warnings: list[str]) -> list[list]:
    """For each group its `(round, rows)`, rows in the order of the trials."""
    numbers = None if trial is None else table.numbers(trial)
    codes, values = table.codes(rounds) if rounds else (None, [0])
    named = [int(value) if isinstance(value, int) else place for place, value in enumerate(values)]
    found, sorted_by = [], False
    for _, rows in rows_of:
        parts = []
        for code in [0] if codes is None else np.unique(codes[rows]):
            part = rows if codes is None else rows[codes[rows] == code]
            if numbers is not None and (np.diff(numbers[part]) < 0).any() and len(set(numbers[part])) == len(part):
                part, sorted_by = part[np.argsort(numbers[part], kind="stable")], True
            parts.append((named[code], part))
        found.append(sorted(parts, key=lambda one: one[0]))
    if sorted_by:
        warnings.append(f"rows were put in the order of {trial}")
    return found


def _absurd(where: str, groups: Sequence[Group], unit: str) -> list[str]:
    """A warning where medians look like a wrong unit."""
    medians = [float(np.median(np.concatenate([sample.timed_ns for sample in group.samples]))) for group in groups]
    if min(medians) < ABSURD_BELOW_NS:
        return [f"a median in {where} is {min(medians):g} ns: is {unit} the right unit?"]
    if max(medians) > ABSURD_ABOVE_NS:
        return [f"a median in {where} is {max(medians) / 1e9:g} s: is {unit} the right unit?"]
    return []
