"""Latencies of a table from elsewhere, a row per trial, as groups of rounds.

Besides the times these columns are used, named as in recordings: `warmup`, `round`, `trial`,
`start_ns` or `intended_ns` (in any unit), and the counted causes. If the rows are of several
configurations, `group_by` must separate them. A histogram has a row per bin, with the number of its
calls in a column that must be named.
"""

import itertools
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lstm_judge.read.labels import LEFT_OUT, telling
from lstm_judge.read.rounds import BLOCK_CAUSES, TRIAL_CAUSES, Group, NoTrials, Round
from lstm_judge.read.tables import (
    STARTS,
    UNIT_NS,
    Table,
    is_start,
    refuse_aggregates,
    split_unit,
    times,
)
from lstm_judge.read.whole import Bins
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import UsageError, printable
from lstm_trt.config.fields import Tells, about
from lstm_trt.config.format import count, latency
from lstm_trt.config.shape import AXES
from lstm_trt.store.whole import counted

#: Times are rounded to this many decimals of a nanosecond, so that 1.1 ms equals 1100 us.
STEP_DECIMALS = 3

#: Start times above this (150 years) are ignored.
LONGEST_NS = 2.0**62

#: Medians below and above these give a warning: the unit is probably wrong.
ABSURD_BELOW_NS = 1e3
ABSURD_ABOVE_NS = 1e9

#: Columns that describe the system in tables and recordings, besides the sizes of the network.
#: `wait` and `period_us` are not among them: in tables from elsewhere they can be measured.
SYSTEM_COLUMNS = (
    "runtime", "runtime_version", "framework", "device_name", "mode",
    *telling(Tells.SYSTEM, of=about(Options)),
    "arrival", *LEFT_OUT, "features", "directions", "machine",
)  # fmt: skip

#: Columns of the configuration: rows with different values are of different configurations.
_CONFIGURED = {*AXES, *SYSTEM_COLUMNS, "config_id"}

#: A column whose name contains one of these, without a unit, is a size too: `num_layers`, `hidden
#: size`, `batch_size`.
_SIZES = {"layer", "layers", "hidden", "sequence", "seq", "batch"}

#: Names of columns with the number of calls in each bin of a histogram.
_COUNTS = {"count", "counts", "freq", "frequency", "hits", "occurrences", "samples", "calls"}

#: Bins from which on numbers of calls that never decrease are taken as cumulative.
CUMULATIVE = 5

#: Rows from which on a size 1, 2, 3, ... is a running number of them, and not that many
#: configurations.
_MANY_ROWS = 1000

_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}

#: Kinds of columns with values that people read.
PLAIN_KINDS = ("number", "text", "bool")

#: Rows of each round of each group, in order of the trials: values of the keys -> [(number of the
#: round, rows)].
RowsOfRounds = dict[tuple, list[tuple[int, np.ndarray]]]


class TableOptions(NamedTuple):
    """The arguments of `runs.load` for tables."""

    column: str | None = None
    unit: str | None = None
    group_by: Sequence[str] = ()
    rename: Mapping[str, str] | None = None
    causes: Sequence[str] | None = None
    one_group: bool = False
    drop_missing: bool = False
    counts: str | None = None


def groups_of_table(
    table: Table,
    name: str,
    unit: str,
    keys: Sequence[str],
    options: TableOptions,
    warnings: list[str],
) -> list[Group]:
    """The groups of a table, one for each combination of values of the columns `keys`.

    The column `name` holds the times in `unit`. A group of which more than half the rows were
    dropped has a failure instead of rounds. Warnings are appended to `warnings`.
    """
    refuse_aggregates(table, name)
    totals = Counter(_values_of_rows(table, keys))
    table, latency_ns = _latency_ns(table, name, unit, options, warnings)
    bins, calls = _calls(table, name, options.counts)
    edges_ns = None
    if calls is None:
        latency_ns, edges_ns = _of_coarse_clock(table.where, latency_ns, warnings)
    warmup = _warmup(table, warnings)
    causes = _causes(table, options.causes, {name, *keys}, warnings)
    round_name = _round_column(table, keys)
    rows_of = _rows_of_rounds(table, keys, round_name, warnings)
    if not options.one_group:
        read = {
            name,
            bins,
            *keys,
            round_name,
            *causes,
            table.find("trial"),
            table.find("warmup", "warm_up"),
        }
        mixed = _mixed(table, read)
        if keys:
            warnings += _mixed_within(table, mixed, rows_of)
        elif mixed:
            what = " and ".join(f"{values} values of {name}" for name, values in mixed.items())
            raise UsageError(
                f"{table.where} mixes {what}: use --group-by {shlex.join(mixed)} if these are"
                " configurations, --one-group if all rows are of one"
            )
        else:
            warnings += _balanced(table, read)
    every = Round(
        latency_ns,
        warmup,
        _start_ns(table, {name, *keys}, rows_of, warnings),
        causes,
        edges_ns=edges_ns,
    )
    groups = []
    for values, total in totals.items():
        rounds = []
        kept = 0
        for number, rows in rows_of.get(values, []):
            kept += len(rows)
            if warmup[rows].all():
                continue
            if calls is None:
                rounds.append(_of_rows(every, rows, number))
            else:
                rounds.append(_histogram(table.where, latency_ns[rows], calls[rows], number))
        fields = dict(zip(keys, values, strict=True))
        groups.append(_group(table.where, fields, rounds, total, total - kept))
    _refuse_few(table.where, groups)
    warnings += _absurd(table.where, groups, unit)
    return groups


def _group(where: str, fields: dict, rounds: list[Round], total: int, missing: int) -> Group:
    """A group of rounds; a failure if most of its rows have no time."""
    values = [f"{key}={printable(str(value))}" for key, value in fields.items()]
    group = Group(", ".join(values) or Path(where).name, tuple(rounds), fields)
    if 2 * missing <= total:
        return group
    reason = f"{missing} of {count(total, 'row')} have no time, too many to drop"
    if not fields:
        raise UsageError(f"{where}: {reason}: use another column")
    return replace(group, rounds=(), failure=NoTrials(None, reason))


def _refuse_few(where: str, groups: Iterable[Group]) -> None:
    """Raise `UsageError` if a group has fewer than 2 times."""
    for group in groups:
        if group.failure is None and group.n < 2:
            which = f"{where}: {group.name}" if group.group else where
            raise UsageError(
                f"{which} has {count(group.n, 'time')} after warm-up: at least 2 are needed, and"
                " about 1000 for the tail"
            )


def _values_of_rows(table: Table, keys: Sequence[str]) -> list[tuple]:
    """The values of the columns `keys` in each row."""
    if not keys:
        return [()] * table.data.num_rows
    return list(zip(*map(table.cells, keys), strict=True))


def columns_of(table: Table, names: Iterable[str], option: str) -> list[str]:
    """The table's columns with the names given by `option`, each once."""
    return list(dict.fromkeys(table.column(name, option) for name in names))


def _latency_ns(
    table: Table, name: str, unit: str, options: TableOptions, warnings: list[str]
) -> tuple[Table, np.ndarray]:
    """The rows that have a time, and the times; raises `UsageError` if others are missing or
    invalid.

    The times may be 0, and those of a histogram also infinite.
    """
    allowed = ["zero"]
    if options.drop_missing:
        allowed.append("blank or NaN")
    if options.counts:
        allowed.append("infinite")
    values = times(table, name, allowed)
    present = ~np.isnan(values)
    missing = int(np.count_nonzero(~present))
    if missing:
        warnings.append(
            f"{table.where}: {missing} of {count(len(present), 'row')} have no time and were"
            " dropped: no answer includes them, although they may be calls that failed"
        )
        table = table.with_rows(present)
        values = values[present]
    with np.errstate(over="ignore"):
        latency_ns = np.round(values * UNIT_NS[unit], STEP_DECIMALS)
    changed = (np.isfinite(latency_ns) != np.isfinite(values)) | ((latency_ns > 0) != (values > 0))
    if changed.any():
        raise UsageError(f"{table.where} has times out of range for the unit {unit}")
    return table, latency_ns


def _of_coarse_clock(
    where: str, latency_ns: np.ndarray, warnings: list[str]
) -> tuple[np.ndarray, np.ndarray | None]:
    """The times, and the least and the most that each may be, if some are 0; else None for the
    latter.

    A clock that did not advance during a call took at most one step; its step is at most the
    shortest other time. A time of k steps is of a call that took more than k - 1 and less than k +
    1. A time of 0 is counted as one step.
    """
    zeros = latency_ns == 0
    if not zeros.any():
        return latency_ns, None
    if zeros.all():
        raise UsageError(f"{where}: all times are 0: measure with a clock of smaller steps")
    step_ns = float(latency_ns[~zeros].min())
    warnings.append(
        f"{where}: {np.count_nonzero(zeros)} of {len(zeros)} times are 0: a step of the clock"
        f" is up to {latency(step_ns / 1e3)}; each counts as one, and the others are known to"
        " one"
    )
    edges_ns = np.stack([np.maximum(latency_ns - step_ns, 0), latency_ns + step_ns])
    return np.maximum(latency_ns, step_ns), edges_ns


def _of_rows(every: Round, rows: np.ndarray, number: int) -> Round:
    """The round with this number, of some of the rows."""
    return replace(
        every,
        latency_ns=every.latency_ns[rows],
        warmup=every.warmup[rows],
        start_ns=None if every.start_ns is None else every.start_ns[rows],
        causes={cause: counts[rows] for cause, counts in every.causes.items()},
        edges_ns=None if every.edges_ns is None else every.edges_ns[:, rows],
        round=number,
    )


def _calls(table: Table, name: str, given: str | None) -> tuple[str | None, np.ndarray | None]:
    """The `given` column with the numbers of calls in the bins of a histogram, and these; (None,
    None) without one.

    Raises `UsageError` if it has anything else, and if none is given but the rows seem to be bins:
    ascending times, and a column that is called as one of numbers.
    """
    if given is not None:
        column = table.column(given, "--counts")
        calls = _whole_numbers(table, column)
        if calls is None:
            raise UsageError(
                f"{table.where}: --counts {column} is not a column of whole numbers of at least 0"
            )
        return column, calls
    for bins in table.names:
        named = split_unit(bins)[0] in _COUNTS and not table.counts_rows(bins)
        if named and (np.diff(table.numbers(name)) > 0).all():
            raise UsageError(
                f"{table.where} has ascending times with a column {bins}: read a histogram"
                f" with --counts {bins}, or leave the column out with --rename {bins}="
            )
    return None, None


def _histogram(where: str, latency_ns: np.ndarray, calls: np.ndarray, number: int) -> Round:
    """The calls in each bin. A last bin at infinity has the calls above the others.

    A table has one number for each bin, which may be its lower edge, its middle or its upper edge.
    So a bin may reach from its number by its width to both sides; that of a bin is the smallest
    distance between numbers from there on, since bins do not become narrower, and empty ones may be
    left out. Raises `UsageError` if calls may be missing.
    """
    values_ns, numbers = counted([(latency_ns, calls)])
    finite_ns = values_ns[np.isfinite(values_ns)]
    bins = len(finite_ns)
    if bins < 2 or not numbers.any():
        raise UsageError(
            f"{where}: a histogram needs at least 2 bins and a call, here are {bins} bins"
        )
    if bins == len(values_ns) and not numbers[-1]:
        raise UsageError(
            f"{where}: the last bin is empty, so calls above it may be missing: add a row"
            " inf with their number, 0 if there were none"
        )
    of_bins = numbers[:bins]
    if bins >= CUMULATIVE and of_bins[0] < of_bins[-1] and (np.diff(of_bins) >= 0).all():
        raise UsageError(
            f"{where}: the numbers of calls never decrease, as if cumulative: give those"
            " of each bin"
        )
    widths_ns = np.minimum.accumulate(np.diff(finite_ns)[::-1])[::-1]
    last_ns = finite_ns[-1] + 2 * widths_ns[-1]  # bins that grow usually do so up to twice
    above_ns = values_ns[bins:]
    least_ns = [0.0, *(finite_ns[1:] - widths_ns), *np.minimum(above_ns, finite_ns[-1])]
    most_ns = [*(finite_ns[:-1] + widths_ns), last_ns, *above_ns]
    kept = numbers > 0
    edges_ns = np.round([least_ns, most_ns], STEP_DECIMALS)[:, kept]
    whole = Bins(values_ns[kept], numbers[kept], most_ns=values_ns[kept][-1])
    return Round(
        whole.values,
        np.zeros(len(whole.values), bool),
        whole=whole,
        edges_ns=edges_ns,
        round=number,
    )


def _warmup(table: Table, warnings: list[str]) -> np.ndarray:
    """Whether each row is one of warm-up."""
    name = table.find("warmup", "warm_up")
    if name:
        truths = [_TRUTHS.get(str(cell).casefold()) for cell in table.cells(name)]
        if None not in truths:
            return np.array(truths)
        warnings.append(
            f"{name} has values other than true, false, 1 and 0: no row is treated as warm-up"
        )
    return np.zeros(table.data.num_rows, bool)


def _round_column(table: Table, keys: Sequence[str]) -> str | None:
    """The column of rounds: each of its values is one round with at least two trials."""
    name = table.find("round")
    if name is None or name in keys or table.kind(name) not in PLAIN_KINDS:
        return None
    return name if min(Counter(table.cells(name)).values()) > 1 else None


def _causes(
    table: Table, given: Sequence[str] | None, taken: set, warnings: list[str]
) -> dict[str, np.ndarray]:
    """The columns of counts per trial: those `given`, else those named as in recordings."""
    if given is None:
        names = [
            name
            for name in (*TRIAL_CAUSES, *BLOCK_CAUSES)
            if name in table.names and table.array(name).null_count < table.data.num_rows
        ]
    else:
        names = columns_of(table, given, "--causes")
    found = {}
    for name in names:
        values = _whole_numbers(table, name)
        if name not in taken and values is not None:
            found[name] = values
            continue
        problem = (
            f"{table.where}: {name} is not a column of counts: a cause must be a whole number of"
            " at least 0 in every row"
        )
        if given is not None:
            raise UsageError(problem)
        warnings.append(problem)
    return found


def _whole_numbers(table: Table, name: str) -> np.ndarray | None:
    """A column of whole numbers of at least 0; None if it has anything else."""
    if table.kind(name) not in ("number", "bool"):
        return None
    values = table.numbers(name)
    whole = np.isfinite(values) & (values >= 0) & (values == np.floor(values))
    return values.astype(np.int64) if whole.all() else None


def _rows_of_rounds(
    table: Table, keys: Sequence[str], round_name: str | None, warnings: list[str]
) -> RowsOfRounds:
    """The rows of each round of each group; groups are in the order of their first rows."""
    cells = table.cells(round_name) if round_name else [0] * table.data.num_rows
    numbers = {}
    for place, cell in enumerate(dict.fromkeys(cells)):
        numbers[cell] = cell if isinstance(cell, int) else place
    rows_by: dict[tuple, list[int]] = {}
    for row, of_row in enumerate(zip(_values_of_rows(table, keys), cells, strict=True)):
        rows_by.setdefault(of_row, []).append(row)
    trial = table.find("trial")
    trials = np.zeros(table.data.num_rows)
    if trial and table.kind(trial) == "number":
        trials = table.numbers(trial)
    found: RowsOfRounds = {}
    for (values, cell), places in rows_by.items():
        rows = np.array(places)
        of_round = trials[rows]
        if (np.diff(of_round) < 0).any() and len(set(of_round)) == len(rows):
            rows = rows[np.argsort(of_round)]
            warnings.append(f"rows were sorted by {trial}")
        found.setdefault(values, []).append((int(numbers[cell]), rows))
    for rounds in found.values():
        rounds.sort(key=itemgetter(0))
    return found


def _start_ns(
    table: Table, taken: set, rows_of: RowsOfRounds, warnings: list[str]
) -> np.ndarray | None:
    """Start times of the calls in ns from the first row; None if the table has none.

    The first of the columns `STARTS` that has a unit and ascends in every round. A clock that is
    too coarse for this cannot show a period.
    """
    names = [name for name in table.names if is_start(name) and name not in taken]
    coarse = []
    for name in sorted(names, key=lambda name: STARTS.index(split_unit(name)[0])):
        unit = table.stated_unit(name)
        if unit is None or table.kind(name) not in ("number", "moment"):
            continue
        if table.array(name).null_count:
            continue
        values = table.numbers(name)
        if not (np.abs(values.astype(np.float64)) * UNIT_NS[unit] < LONGEST_NS).all():
            continue
        # Subtract before converting to float: nanoseconds since 1970 have more digits than a float.
        start_ns = np.round((values - values[0]) * UNIT_NS[unit]).astype(np.int64)
        rounds = itertools.chain(*rows_of.values())
        if all((np.diff(start_ns[rows]) > 0).all() for _, rows in rounds):
            return start_ns
        coarse.append(name)
    if coarse:
        warnings.append(
            f"{coarse[0]} does not increase from row to row: periods of slow trials cannot be found"
        )
    return None


def _mixed(table: Table, read: set) -> dict[str, int]:
    """Columns outside `read` which show that the rows are of several configurations, and their
    numbers of values.

    Such a column has several values and either belongs to the configuration by its name, or is text
    in which each value occurs twice on average.
    """
    mixed = {}
    for name in _unread(table, read):
        array = table.array(name)
        values = len(array.unique())
        repeats = table.kind(name) == "text" and 2 * values <= len(array) and not array.null_count
        if values > 1 and (repeats or _is_configured(table, name)):
            mixed[name] = values
    return mixed


def _unread(table: Table, read: set) -> list[str]:
    return [
        name
        for name in table.names
        if name not in read and not is_start(name) and table.kind(name) in PLAIN_KINDS
    ]


def _mixed_within(table: Table, mixed: Iterable[str], rows_of: RowsOfRounds) -> list[str]:
    """A line for each of these columns of which a group has several values."""
    lines = []
    for name in mixed:
        cells = table.cells(name)
        for rounds in rows_of.values():
            if len({cells[row] for _, rows in rounds for row in rows}) > 1:
                lines.append(
                    f"{table.where} mixes values of {name} within a group: add it to --group-by?"
                )
                break
    return lines


def _balanced(table: Table, read: set) -> list[str]:
    """A line for each column of whole numbers that occur equally often: as in a planned experiment,
    unlike a quantity measured at each trial."""
    lines = []
    for name in _unread(table, read):
        if pa.types.is_integer(table.array(name).type):
            times = Counter(table.cells(name))
            if 2 <= len(times) <= table.data.num_rows / 10 and len(set(times.values())) == 1:
                lines.append(
                    f"{table.where} has {len(times)} values of {name}, equally often: use"
                    f" --group-by {name} if these are configurations"
                )
    return lines


def _is_configured(table: Table, name: str) -> bool:
    """Whether a column belongs to the configuration by its name, and as a size does not count the
    trials."""
    stem, unit = split_unit(name)
    if unit is not None or (stem not in _CONFIGURED and _SIZES.isdisjoint(stem.split("_"))):
        return False
    if stem in SYSTEM_COLUMNS or table.kind(name) != "number":
        return True
    counted = table.counts_rows(name) and table.data.num_rows >= _MANY_ROWS
    return not counted and not (table.numbers(name) <= 0).any()  # no size is 0


def _absurd(where: str, groups: Sequence[Group], unit: str) -> list[str]:
    """A warning if a median suggests a wrong unit."""
    for group in groups:
        if group.rounds and not ABSURD_BELOW_NS <= group.median_ns <= ABSURD_ABOVE_NS:
            return [
                f"a median in {where} is {latency(group.median_ns / 1e3)}: is {unit} the right"
                " unit?"
            ]
    return []
