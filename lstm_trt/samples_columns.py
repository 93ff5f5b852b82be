"""Columns of a table from elsewhere as arrays of a sample: times, starts, warm-up, rounds, counts.

What cannot be read raises `UsageError` with the line of the first such row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lstm_trt.errors import UsageError
from lstm_trt.samples import BLOCK_CAUSES, TRIAL_CAUSES
from lstm_trt.samples_cells import Table, careful_numbers, span_ns
from lstm_trt.samples_names import (
    ROUND_NAMES,
    UNIT_NS,
    WARMUP_NAMES,
    find_named,
    find_starts,
    find_times,
    is_start,
    split_unit,
)
from lstm_trt.times_tables import normal_name

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
