"""`Runs`, groups of rounds with their source: the input of analysis and plots.

`load` reads recordings (files, folders, consolidated pairs) and tables from elsewhere;
`as_runs` also accepts objects in memory.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard, overload

from lstm_judge.read.foreign import TableOptions, columns_of, groups_of_table
from lstm_judge.read.labels import FIELDS, version_text, with_version
from lstm_judge.read.rounds import (
    OFF_CORE,
    TRIAL_CAUSES,
    Group,
    below_floor,
    fields_of,
    group_key,
    groups_of,
)
from lstm_judge.read.tables import (
    InMemory,
    Table,
    file_names,
    in_memory,
    read_tables,
    source_of,
    table_of,
    time_column,
)
from lstm_judge.read.whole import KEPT
from lstm_trt import registry
from lstm_trt.config.errors import (
    LabError,
    NotReadable,
    UnknownConfiguration,
    UsageError,
    nearest,
)
from lstm_trt.config.fields import as_list
from lstm_trt.config.format import count, listed, short_number
from lstm_trt.config.libraries import installed_version, pd
from lstm_trt.store import consolidated, folders
from lstm_trt.store.locks import folder_in_use
from lstm_trt.store.schema import Failure, Recording, Stored

#: Most names in a line of what is missing.
MOST_MISSING = 5

#: Columns of a recording that latencies alone need, and those that analysis and plots use: not the
#: device's own clock.
LATENCIES = ("latency_ns", "warmup")
COLUMNS = ("trial", *LATENCIES, "start_ns", "intended_ns", *TRIAL_CAUSES, *OFF_CORE)


class NotATable(UsageError):
    """Options for tables were given for recordings of lstm_trt."""


class Incomplete(str):
    """A warning that recordings are missing from an answer: the exit status of its command is 3
    instead of 0."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Runs(Sequence[Group]):
    """Latencies by configuration and their source: a sequence of `groups`.

    `grouped`: whether JSON output is a list with an object per group; otherwise it is the object of
    the only group. For a table, `how` has the column and unit that were read, and `group_by` its
    columns. `own` is true for recordings of lstm_trt; `recordings` has them in the order they were
    read. `unfinished`: why more of them will or should follow, as text. `missing`: what was asked
    for and is not recorded, name -> its fields.
    """

    groups: tuple[Group, ...]
    source: str = ""
    warnings: tuple[str, ...] = ()
    how: dict[str, str] = field(default_factory=dict)
    group_by: tuple[str, ...] = ()
    grouped: bool = True
    own: bool = True
    recordings: tuple[Stored, ...] = field(default=(), repr=False)
    unfinished: tuple[str, ...] = ()
    missing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """What an answer about them says besides: the warnings, and in one line which
        `other_versions` they have."""
        return (*self.warnings, *other_versions(self.groups))

    def __len__(self) -> int:
        return len(self.groups)

    @overload
    def __getitem__(self, index: int) -> Group: ...

    @overload
    def __getitem__(self, index: slice) -> Runs: ...

    def __getitem__(self, index):
        return self._only(self.groups[index]) if isinstance(index, slice) else self.groups[index]

    def __str__(self) -> str:
        """A line per group: name, trials and rounds, or the reason of the failure."""
        lines = []
        for group in self.groups:
            measured = f"{count(group.n, 'trial')} in {count(len(group.rounds), 'round')}"
            lines.append(f"{group.name}: {group.failure or measured}")
        return "\n".join([*lines, *self.lacks])

    @property
    def lacks(self) -> list[str]:
        """A line that names what was asked for and is not recorded; none if nothing is missing."""
        return [f"not recorded: {listed(self.missing, MOST_MISSING)}"] if self.missing else []

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A DataFrame with a row per group: its configuration, `rounds`, `n` and `failure`."""
        rows = [
            {**group_fields(group), "rounds": len(group.rounds), "n": group.n}
            for group in self.groups
        ]
        failures = [None if group.failure is None else str(group.failure) for group in self.groups]
        return pd.DataFrame(rows).assign(failure=failures)

    def where(self, **wanted: Any) -> Runs:
        """Only the groups with these values: `where(hidden=[64, 128], runtime="onnxruntime",
        arrival="closed")`.

        Names are axes, runtime, mode, fields of options and protocol (`group_fields`), and sizes of
        an own network; for a table its `group_by` columns. A list, tuple, set or range matches any
        of its values, a text also the values that are written so, and `machine` the beginning of a
        fingerprint. Values that no group has, except for those of a range, are `missing`, and a
        warning names them. Raises `UsageError` for an unknown name, and if no group is left.
        """
        if not wanted:
            return self
        fields = [group_fields(group) for group in self.groups]
        named: list[str] = []
        chosen, missing = matching(fields, wanted, self.source or "the runs", named)
        for name, known in self.missing.items():
            if all(
                key not in known or _is_any(key, known[key], values)
                for key, values in wanted.items()
            ):
                missing[name] = known
        left = self._only(tuple(itertools.compress(self.groups, chosen)))
        return replace(left, missing=missing, warnings=(*left.warnings, *named))

    def _only(self, groups: tuple[Group, ...]) -> Runs:
        """With these groups and their recordings; failures of rounds that have no machine belong to
        all of a group."""
        keys = {group.key for group in groups if group.key}
        of_failures = {(name, place) for name, machine, _ in keys for place in (machine, None)}
        every = [(item, group_key(item)) for item in self.recordings]
        kept = [
            item
            for item, key in every
            if key in keys or (isinstance(item, Failure) and key[:2] in of_failures)
        ]
        of_all = below_floor(self.groups)
        others = [text for text in self.warnings if text not in of_all]
        return replace(
            self, groups=groups, recordings=tuple(kept), warnings=(*others, *below_floor(groups))
        )


#: What `load` reads: a path or several, or numbers in memory, such as a DataFrame or an array.
Readable: TypeAlias = "str | Path | Sequence[str | Path] | InMemory"

#: What every answer accepts: what `load` reads, its result, or groups or recordings of it.
RunsSource: TypeAlias = "Readable | Runs | Group | Iterable[Group] | Stored | Iterable[Stored]"


def other_versions(groups: Iterable[Group]) -> list[str]:
    """A line if recordings of a runtime have several versions, or another one than is installed
    here."""
    recorded: dict[str, dict[str, Group]] = {}
    for group in groups:
        if group.configuration is not None and group.rounds:
            recorded.setdefault(group.configuration.runtime, {})[
                group.configuration.runtime_version
            ] = group
    texts = []
    for runtime, versions in recorded.items():
        others = {_version_here(group) for group in versions.values()} - {None, *versions}
        if others or len(versions) > 1:
            first, *rest = sorted(
                versions, key=lambda version: [int(part) for part in re.findall(r"\d+", version)]
            )
            text = ", ".join(
                [
                    with_version(runtime, first),
                    *(version_text(runtime, version) for version in rest),
                ]
            )
            here = ", ".join(version_text(runtime, version) for version in sorted(map(str, others)))
            texts.append(f"{text} (here {here})" if here else text)
    return (
        [f"recorded with several versions, or another than is installed here: {'; '.join(texts)}"]
        if texts
        else []
    )


def _version_here(group: Group) -> str | None:
    """The version with which a group would be recorded here, of C code with the same compiler; None
    if not known."""
    runtime, version = group.configuration.runtime, group.configuration.runtime_version
    if runtime == "c":
        return version.replace(
            version.split(",")[0], registry.load_entry("RUNTIMES", runtime).VERSION, 1
        )
    stated = group.rounds[0].versions
    distribution = next((name for name in stated if stated[name] == version), None)
    return distribution and installed_version(distribution)


def group_fields(group: Group) -> dict:
    """All fields of a group in one dictionary: configuration and machine, or the values of a
    table's group."""
    if group.configuration is None:
        return dict(group.group) or {"name": group.name}
    return fields_of(group.configuration, group.machine)


def matching(
    fields: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any], source: str, warnings: list[str]
) -> tuple[list[bool], dict[str, Mapping[str, Any]]]:
    """Which of these rows have the `wanted` values, see `Runs.where`, and the values that none of
    them has.

    These are named in one line, which is added to `warnings`. Raises `UsageError` as `Runs.where`
    does.
    """
    known = dict.fromkeys(itertools.chain(*fields))
    if "config_id" in known:  # recordings leave out what has its default
        known |= {name: field.default for name, field in FIELDS.items()}
    allowed: dict[str, Any] = {}
    for name, value in wanted.items():
        key = name if name in known else f"size {name}"
        if key not in known:
            choices = ", ".join(known) or "nothing"
            raise UsageError(
                f"{source}: no group has the field {name!r}{nearest(name, known)}; choose from {choices}"
            )
        allowed[key] = value
    chosen = [
        all(_is_any(name, row.get(name, known[name]), values) for name, values in allowed.items())
        for row in fields
    ]
    if allowed and not any(chosen):
        filters = ", ".join(
            f"{name} {' or '.join(map(str, as_list(values)))}" for name, values in allowed.items()
        )
        raise UsageError(f"{source}: no recording or row has {filters}")
    missing: dict[str, Mapping[str, Any]] = {}
    for name, values in allowed.items():
        found = [row.get(name, known[name]) for row in itertools.compress(fields, chosen)]
        for value in () if isinstance(values, range) else as_list(values):
            if not any(_is(name, each, value) for each in found):
                missing[f"{name} {value}"] = {name: int(value) if str(value).isdecimal() else value}
    if missing:
        warnings.append(
            Incomplete(f"{source}: no recording or row has {listed(missing)}, which was asked for")
        )
    return chosen, missing


def _is_any(name: str, value: Any, wanted: Any) -> bool:
    """Whether a field has one of these values, see `_is`."""
    return any(_is(name, value, each) for each in as_list(wanted))


def _is(name: str, value: Any, wanted: Any) -> bool:
    """Whether a field has this value, or one that is written as the text `wanted`; a fingerprint
    begins with it."""
    texts = {str(value).casefold(), short_number(value) if isinstance(value, float) else ""}
    texts |= {"yes" if value else "no"} if isinstance(value, bool) else set()
    return (
        value == wanted
        or str(wanted).casefold() in texts
        or (name == "machine" and str(value).startswith(wanted))
    )


def is_path(source: object) -> TypeGuard[str | Path | Sequence[str | Path]]:
    """Whether this is a path, or several in a list or tuple."""
    several = source if isinstance(source, list | tuple) and source else [source]
    return all(isinstance(item, str | Path) for item in several)


def as_runs(source: RunsSource) -> Runs:
    """Convert to `Runs`: a path or several, a DataFrame or an array (see `load`), groups,
    recordings, or `Runs`."""
    if isinstance(source, Runs):
        return source
    if is_path(source) or in_memory(source):
        return load(source)
    items: list[Any] = as_list(source)
    groups = [item for item in items if isinstance(item, Group)]
    if len(groups) == len(items):
        own = all(group.configuration is not None for group in groups)
        several = len(groups) > 1 or bool(groups and groups[0].group)
        return Runs(tuple(groups), warnings=tuple(below_floor(groups)), grouped=several, own=own)
    wrong = next((item for item in items if not isinstance(item, Stored)), None)
    if wrong is not None:
        raise UsageError(
            f"expected paths, Runs, groups or recordings, not {type(wrong).__name__}; see lab.load"
        )
    groups = groups_of(items)
    warnings = tuple(below_floor(groups))
    return Runs(tuple(groups), warnings=warnings, grouped=len(items) > 1, recordings=tuple(items))


def load(
    path: Readable,
    *,
    column: str | None = None,
    unit: str | None = None,
    group_by: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    causes: Sequence[str] | None = None,
    one_group: bool = False,
    drop_missing: bool = False,
    counts: str | None = None,
    columns: Sequence[str] = COLUMNS,
    **where: Any,
) -> Runs:
    """Read latencies from recordings (a file, a folder or a consolidated pair) or from tables.

    `path` can be several of these, a folder of tables, `-` for a table on standard input, or a
    DataFrame or an array instead of a path. The other arguments are for tables. `column` holds the
    times in `unit` (ns, us, ms or s). Each combination of values of the `group_by` columns is a
    group. `rename` (old name -> new name) is applied first. `causes` are columns of counts.
    `one_group` states that all rows of a group are of one configuration. `drop_missing` drops rows
    without a time. `counts` is the column of a histogram with the number of calls in each bin.
    `columns` are those of recordings that are loaded: `LATENCIES` take less time and memory, and
    show no causes.

    Each of several tables is a group, unless there are `group_by` columns or `one_group`. A group
    with rows of several tables has a round for each; `group_by=["file", ...]` keeps the tables
    apart.

    Keyword arguments in `where` select groups, see `Runs.where`. Raises `UsageError` or
    `StoreError`, with a one-line message, if a path cannot be read.
    """
    warnings: list[str] = []
    causes = causes and as_list(causes)
    options = TableOptions(
        column, unit, as_list(group_by), rename, causes, one_group, drop_missing, counts
    )
    if in_memory(path):
        table = table_of(path)
        paths, tables = [Path(table.where)], [table]
    else:
        paths = paths_of(path)
        tables = read_tables(paths, warnings, column)
    runs = (
        _recorded(paths, options, columns)
        if tables is None
        else _of_tables(tables, paths, options, warnings)
    )
    return runs.where(**where) if where else runs


#: Field of the groups of several tables: the name of the table.
FILE = "file"


def paths_of(source: object) -> list[Path]:
    """One path or several as a list, each once; raises `UsageError` if there is none."""
    paths = as_list(source)
    if not paths or not all(isinstance(path, str | Path) for path in paths):
        raise UsageError("no path given: name files or folders, and save arrays of numbers as .npy")
    return list(dict.fromkeys(map(Path, paths)))


def _of_tables(
    tables: Sequence[Table], paths: Sequence[Path], options: TableOptions, warnings: list[str]
) -> Runs:
    files = file_names(tables)
    tables = [table.renamed(options.rename) for table in tables]
    group_by, several = options.group_by, len(paths) > 1 or paths[0].is_dir()
    unnamed = FILE not in group_by or all(table.find(FILE) is None for table in tables)
    by_file = several and unnamed and (FILE in group_by or not (group_by or options.one_group))
    same: dict[tuple, list[Group]] = {}
    columns, units = [], []
    for table, file in zip(tables, files, strict=True):
        keys = columns_of(
            table, [name for name in group_by if not (by_file and name == FILE)], "--group-by"
        )
        name, unit, found = time_column(table, options.column, options.unit)
        if name in keys:
            raise UsageError(f"--group-by {name}: this column holds the times")
        for group in groups_of_table(table, name, unit, keys, options, found):
            label = f"{file}, {group.name}" if group.group else file
            named = (
                replace(group, name=label, group={FILE: file, **group.group}) if by_file else group
            )
            same.setdefault(tuple(named.group.items()), []).append(named)
        columns.append(name)
        units.append(unit)
        warnings += found
    source = source_of(paths)
    groups = tuple(
        _joined(groups, source) if len(groups) > 1 else groups[0] for groups in same.values()
    )
    read = {"column": dict.fromkeys(filter(None, columns)), "unit": dict.fromkeys(units)}
    read["counts"] = dict.fromkeys(filter(None, [options.counts]))
    how, group = (
        {name: ", ".join(values) for name, values in read.items() if values},
        groups[0].group,
    )
    return Runs(
        groups,
        source,
        tuple(dict.fromkeys(warnings)),
        how,
        tuple(group),
        grouped=bool(group),
        own=False,
    )


def _joined(groups: Sequence[Group], source: str) -> Group:
    """One group of all rounds; rounds that have the same number are numbered again."""
    rounds = [round_ for group in groups for round_ in group.rounds]
    if len({round_.round for round_ in rounds}) < len(rounds):
        rounds = [replace(round_, round=number) for number, round_ in enumerate(rounds)]
    name = groups[0].name if groups[0].group else source
    return replace(
        groups[0], name=name, rounds=tuple(rounds), failure=None if rounds else groups[0].failure
    )


def _recorded(paths: Sequence[Path], options: TableOptions, columns: Sequence[str]) -> Runs:
    for name in (name for name, value in options._asdict().items() if value):
        why = "are grouped by configuration" if "group" in name else "have fixed columns and units"
        raise NotATable(
            f"{paths[0]} holds recordings of lstm_trt, which {why}: remove --{name.replace('_', '-')}"
        )
    skipped: list[LabError] = []
    parts = [tuple(folders.read_many(path, columns, skipped, most=KEPT)) for path in paths]
    items = tuple(itertools.chain(*parts))
    newer = [error for error in skipped if isinstance(error, UnknownConfiguration)]
    again = "; a sweep with the same --out records it again"
    lacks: list[str] = [
        Incomplete(
            f"{error}: skipped, the rest is read{'' if isinstance(error, NotReadable) else again}"
        )
        for error in skipped
        if error not in newer
    ]
    if newer:
        lacks.append(
            f"{count(len(newer), 'recording')} of a newer version skipped; the first: {newer[0]}"
        )
    if skipped and not items:
        raise type(skipped[0])(
            f"{source_of(paths)} has no recordings that this version can read: {lacks[0]}"
        )
    soaks = [
        item.provenance["soak"] for item in items if "soak" in item.provenance
    ]  # only these have parts
    warnings = list(dict.fromkeys(text for soak in soaks for text in soak.get("lacks", ())))
    written = (path for path in paths if path.is_dir() and folder_in_use(path))
    unfinished = (*(f"{path} is being recorded" for path in written), *warnings)
    warnings += lacks
    ids = [
        {(item.configuration.id, item.provenance.get("machine_fingerprint")) for item in part}
        for part in parts
    ]
    shared = sum(map(len, ids)) - len(set().union(*ids))
    if shared:
        again = f"{count(shared, 'configuration')} of more than one of these folders: their recordings are pooled"
        warnings.append(f"{again}; lstm-trt compare compares two folders")
    groups = groups_of(items)
    mixed = [group for group in groups if len({round_.telemetry for round_ in group.rounds}) > 1]
    if mixed:
        pooled = f"{count(len(mixed), 'configuration')} with some rounds recorded with telemetry on, which are pooled"
        warnings.append(f"{pooled}; the first: {mixed[0].name}")
    warnings += below_floor(groups)
    decided = [group for group in groups if group.until is not None]
    if decided:
        counted = count(len(decided), "configuration")
        why = "the number of trials depended on the data, which intervals and comparisons do not allow for"
        warnings.append(f"{counted} recorded until decided: {why}")
    for item in items:
        if isinstance(item, Recording) and item.whole:
            each = f"one of every {item.whole.step} of its {len(item.whole)} trials"
            warnings.append(
                f"clusters, causes, segments and figures over time of {item.configuration.title}: {each}"
            )
    grouped = len(paths) > 1 or paths[0].name in (
        consolidated.TRIALS_FILE,
        consolidated.CONFIGS_FILE,
    )
    if not grouped and paths[0].is_dir():
        found = folders.contents(paths[0])
        grouped = (
            not found.parts
            or bool(found.recordings or found.others or found.pair)
            or len(groups) > 1
        )
    if not grouped:
        groups = [replace(group, group={}) for group in groups]
    more = {"grouped": grouped, "recordings": items, "unfinished": unfinished}
    return Runs(tuple(groups), source_of(paths), tuple(warnings), **more)
