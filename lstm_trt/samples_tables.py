"""Latencies to judge, from recordings of this lab or from tables made elsewhere.

A table has a row a trial: the column of times, and what else its names tell (`samples_names.py`):
when each call began, which rows are warm-up, which round they are of, what was counted at each.
Rows of several configurations are told apart by `group_by`, and refused where they are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from lstm_trt.errors import UsageError
from lstm_trt.samples import TRIAL_CAUSES, Group, Sample, groups_of
from lstm_trt.samples_cells import Table
from lstm_trt.samples_columns import (
    ascending,
    cause_counts,
    clean,
    columns_named,
    latencies,
    round_column,
    start_columns,
    time_column,
    unit_of,
    warmup_rows,
)
from lstm_trt.samples_files import read_table
from lstm_trt.samples_names import (
    TRIAL_NAMES,
    UNIT_NS,
    WARMUP_NAMES,
    are_averages,
    find_named,
    find_starts,
    mixes,
    names_configuration,
    split_unit,
)
from lstm_trt.times_tables import normal_name

#: Medians below and above these are warned of: no call from a host takes less, no control loop waits for more.
ABSURD_BELOW_NS, ABSURD_ABOVE_NS = 1e3, 1e9
_RECORDED = ("latency_ns", "warmup", "start_ns", "intended_ns", *TRIAL_CAUSES)
#: Whole numbers that count something a person would not group by.
_NO_GROUPS = {"run", "rep", "repeat", "repetition", "block", "chunk", "part", "seed", "id", "row", "hour", "minute"}
_NO_GROUPS |= {"cpu", "core", "thread", "temperature", "temp", "clock", "frequency", "retries", "queue", "depth"}


@dataclass(frozen=True)
class Read:
    """What was read. `grouped`: answers are a list, each with its group; else there is one group, {}.

    `column`, `unit` and the `keys` that it was grouped by tell how a table from elsewhere was read;
    None and nothing for recordings of this lab (`own`).
    """

    groups: list[Group]
    grouped: bool
    warnings: list[str] = field(default_factory=list)
    source: str = ""
    column: str | None = None
    unit: str | None = None
    keys: tuple[str, ...] = ()
    own: bool = False

    @property
    def how(self) -> dict:
        """`column`, where it has a name, and `unit` of a table from elsewhere, for JSON answers."""
        told = {"column": self.column or None, "unit": self.unit}
        return {name: value for name, value in told.items() if value is not None}


def read_groups(
    path: str | Path,
    column: str | None = None,
    unit: str | None = None,
    group_by: Sequence[str] = (),
    causes: Sequence[str] | None = None,
    one_group: bool = False,
) -> Read:
    """The latencies under a path: a file, folder or pair of this lab's, or a table from elsewhere.

    Of a table: `column` holds the times (found by its name where it is not given) in `unit`
    (of the name, where not given; microseconds for plain numbers, with a warning). Each
    combination of values of the `group_by` columns is a group. `causes` are columns of
    counts; those that this lab counts are known by name. `one_group` says that the rows (of a
    group) are of one configuration, whatever their other columns look like. Raises `UsageError` or
    `StoreError`, one line, for what cannot be read or judged.
    """
    found = read_foreign(path, column, unit, group_by, causes, one_group)
    return _own(Path(path)) if found is None else found


def read_foreign(
    path: str | Path,
    column: str | None = None,
    unit: str | None = None,
    group_by: Sequence[str] = (),
    causes: Sequence[str] | None = None,
    one_group: bool = False,
) -> Read | None:
    """As `read_groups`; None where the path holds recordings of this lab, to which the options do not apply."""
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


def _own(path: Path) -> Read:
    from lstm_trt import store

    warnings: dict[str, None] = {}

    def items() -> Iterator:
        for item in store.read_many(path, _RECORDED):
            if "soak" in item.provenance:  # only these can lack a part
                warnings.update({text: None for text in item.provenance["warnings"] if text.startswith("soak")})
            yield item

    groups = groups_of(items())
    grouped = path.name in (store.TRIALS_FILE, store.CONFIGS_FILE)
    if path.is_dir():
        found = store.contents(path)
        grouped = not found.parts or bool(found.recordings or found.others or found.pair) or len(groups) > 1
    if not grouped:
        groups = [replace(group, group={}) for group in groups]
    return Read(groups, grouped, list(warnings), str(path), own=True)


def groups_of_table(
    table: Table,
    column: str | None = None,
    unit: str | None = None,
    group_by: Sequence[str] = (),
    causes: Sequence[str] | None = None,
    one_group: bool = False,
) -> Read:
    """The groups of a table from elsewhere, as `read_groups` reads them."""
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
    return Read(groups, bool(keys), warnings, table.where, name, unit, tuple(keys))


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
