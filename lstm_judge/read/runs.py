"""`Runs`, groups of rounds with their source: the input of analysis and plots.

`load` reads recordings (files, folders, consolidated pairs) and tables from elsewhere;
`as_runs` also accepts groups and recordings in memory. The package's docstring has the words.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeGuard, overload

from lstm_judge.read.foreign import TableOptions, columns_of, groups_of_table
from lstm_judge.read.frames import html_table, numeric
from lstm_judge.read.labels import FIELDS, known_text, version_text, with_version
from lstm_judge.read.rounds import (
    OFF_CORE,
    TRIAL_CAUSES,
    Group,
    below_floor,
    fields_of,
    group_key,
    groups_of,
    in_order,
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
from lstm_trt.config.format import count, listed, short_number, warning_lines
from lstm_trt.config.libraries import installed_version, pd
from lstm_trt.store import consolidated, folders
from lstm_trt.store.locks import folder_in_use
from lstm_trt.store.schema import Failure, Recording, Stored

#: Most names in a line of what is missing.
MOST_MISSING = 5

#: Most characters of the source in the line that shows runs.
LONGEST_SOURCE = 120

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
    for and is not recorded, name -> its fields. `asked`: the values of `where`.
    """

    groups: tuple[Group, ...]
    source: str = ""
    warnings: tuple[str, ...] = ()
    how: dict[str, str] = field(default_factory=dict)
    group_by: tuple[str, ...] = ()
    grouped: bool = True
    own: bool = True
    recordings: tuple[Stored, ...] = ()
    unfinished: tuple[str, ...] = ()
    missing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """What an answer about them says besides: the warnings, which groups are `below_floor`, and
        in one line which `other_versions` they have."""
        return (*self.warnings, *below_floor(self.groups), *other_versions(self.groups))

    def __len__(self) -> int:
        return len(self.groups)

    @overload
    def __getitem__(self, index: int) -> Group: ...

    @overload
    def __getitem__(self, index: slice) -> Runs: ...

    def __getitem__(self, index):
        if isinstance(index, slice):
            return replace(self._only(self.groups[index]), asked={})
        return self.groups[index]

    @property
    def sentence(self) -> str:
        """What they are in one line: configurations, trials, and the end of a long source."""
        trials = count(sum(group.n for group in self.groups), "trial")
        text = f"{count(len(self), 'configuration')}, {trials}"
        return f"{text}, {self.source[-LONGEST_SOURCE:]}" if self.source else text

    def __repr__(self) -> str:
        return f"<Runs: {self.sentence}>"

    def __str__(self) -> str:
        """A line per group: name, trials and rounds, or the reason of the failure."""
        lines = [f"{group.name}: {group.failure or group.measured}" for group in self.groups]
        return "\n".join([*lines, *self.lacks])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the remarks and a line per group in a terminal, and in a PDF of a notebook."""
        printer.text("\n".join([*warning_lines(self.remarks), str(self)]))

    def _repr_html_(self) -> str:
        """Show the sentence, the remarks and the table in Jupyter."""
        return html_table([self.sentence, *warning_lines(self.remarks), *self.lacks], self.frame)

    @property
    def lacks(self) -> list[str]:
        """A line that names what was asked for and is not recorded; none if nothing is missing."""
        return [f"not recorded: {listed(self.missing, MOST_MISSING)}"] if self.missing else []

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A DataFrame with a row per group: its configuration, `rounds`, `n` and `failure`."""
        rows = []
        for group in self.groups:
            rows.append(
                {
                    **group_fields(group),
                    "rounds": len(group.rounds),
                    "n": group.n,
                    "failure": group.failure and str(group.failure),
                }
            )
        return numeric(pd.DataFrame(rows))

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
        wanted = {**self.asked, **wanted}
        found = matching(list(map(group_fields, self.groups)), wanted, self.source or "the runs")
        left = self._only(tuple(itertools.compress(self.groups, found.chosen)))
        missing = dict(found.missing)
        for name, fields in self.missing.items():
            if all(_is_any(key, fields[key], wanted[key]) for key in wanted.keys() & fields):
                missing[name] = fields
        warnings = dict.fromkeys((*left.warnings, *found.warnings))
        return replace(left, missing=missing, warnings=tuple(warnings), asked=wanted)

    def _only(self, groups: tuple[Group, ...]) -> Runs:
        """With these groups and their recordings; failures of rounds that have no machine belong to
        all of a group."""
        keys = {group.key for group in groups if group.key}
        of_failures = {(name, place) for name, machine, _ in keys for place in (machine, None)}
        kept = []
        for item in self.recordings:
            key = group_key(item)
            if key in keys or (isinstance(item, Failure) and key[:2] in of_failures):
                kept.append(item)
        return replace(self, groups=groups, recordings=tuple(kept))


#: What `load` reads: a path or several, or numbers in memory, such as a DataFrame or an array.
Readable: TypeAlias = str | Path | Sequence[str | Path] | InMemory

#: What every answer accepts: what `load` reads, its result, or groups or recordings of it.
RunsSource: TypeAlias = Readable | Runs | Group | Iterable[Group] | Stored | Iterable[Stored]


def other_versions(groups: Iterable[Group]) -> Iterator[str]:
    """A line if recordings of a runtime have several versions, or another one than is installed
    here."""
    recorded: dict[str, dict[str, Group]] = {}
    for group in groups:
        if group.configuration is not None and group.rounds:
            versions = recorded.setdefault(group.configuration.runtime, {})
            versions[group.configuration.runtime_version] = group
    texts = []
    for runtime, versions in recorded.items():
        others = {_version_here(group) for group in versions.values()} - {None, *versions}
        if not others and len(versions) == 1:
            continue
        first, *rest = sorted(versions, key=in_order)
        text = with_version(runtime, first)
        for version in rest:
            text += f", {version_text(runtime, version)}"
        if others:
            here = ", ".join(version_text(runtime, version) for version in sorted(map(str, others)))
            text += f" (here {here})"
        texts.append(text)
    if texts:
        yield (
            f"recorded with several versions, or another than is installed here: {'; '.join(texts)}"
        )


def _version_here(group: Group) -> str | None:
    """The version with which a group would be recorded here, of C code with the same compiler; None
    if not known."""
    runtime = group.configuration.runtime
    version = group.configuration.runtime_version
    if runtime == "c":
        _, comma, compiler = version.partition(",")
        return registry.load_entry("RUNTIMES", runtime).VERSION + comma + compiler
    for distribution, stated in group.rounds[0].versions.items():
        if stated == version:
            return installed_version(distribution)
    return None


def group_fields(group: Group) -> dict:
    """All fields of a group in one dictionary: configuration and machine, or the values of a
    table's group."""
    if group.configuration is None:
        return dict(group.group) or {"name": group.name}
    return fields_of(group.configuration, group.machine)


class Matching(NamedTuple):
    """Rows that have wanted values: whether each is `chosen`, the values that none of them has, and
    a line that names these."""

    chosen: list[bool]
    missing: dict[str, Mapping[str, Any]]
    warnings: list[str]


def matching(
    fields: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any], source: str
) -> Matching:
    """Which of these rows have the `wanted` values, see `Runs.where`.

    Raises `UsageError` as `Runs.where` does.
    """
    known = dict.fromkeys(itertools.chain(*fields))
    if "config_id" in known:  # recordings leave out what has its default
        known |= {name: field.default for name, field in FIELDS.items()}
    allowed = {_field_named(name, known, source): values for name, values in wanted.items()}
    rows = [{name: row.get(name, known[name]) for name in allowed} for row in fields]
    chosen = [all(_is_any(name, row[name], allowed[name]) for name in allowed) for row in rows]
    if allowed and not any(chosen):
        filters = [
            f"{name} {' or '.join(map(str, as_list(values)))}" for name, values in allowed.items()
        ]
        raise UsageError(f"{source}: no recording or row has {', '.join(filters)}")
    missing = _not_found(list(itertools.compress(rows, chosen)), allowed)
    text = f"{source}: no recording or row has {listed(missing)}, which was asked for"
    return Matching(chosen, missing, [Incomplete(text)] if missing else [])


def _not_found(
    rows: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """The wanted values that no row has, as text -> field and value; not those of a range."""
    missing = {}
    for name, values in wanted.items():
        for value in () if isinstance(values, range) else as_list(values):
            if not any(_is(name, row[name], value) for row in rows):
                missing[f"{name} {value}"] = {name: int(value) if str(value).isdecimal() else value}
    return missing


def _field_named(name: str, known: Mapping[str, Any], source: str) -> str:
    """The field with this name, which can also be a size; raises `UsageError` if there is none."""
    for key in (name, f"size {name}"):
        if key in known:
            return key
    raise UsageError(
        f"{source}: no group has the field {name!r}{nearest(name, known)}; choose from"
        f" {', '.join(known) or 'nothing'}"
    )


def _is_any(name: str, value: Any, wanted: Any) -> bool:
    """Whether a field has one of these values, see `_is`."""
    return any(_is(name, value, each) for each in as_list(wanted))


def _is(name: str, value: Any, wanted: Any) -> bool:
    """Whether a field has this value, or one that is written as the text `wanted`; a fingerprint
    begins with it."""
    texts = {str(value).casefold(), known_text(name, value).casefold()}
    if isinstance(value, float):
        texts.add(short_number(value))
    if isinstance(value, bool):
        texts.add("yes" if value else "no")
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
    items = as_list(source)
    if all(isinstance(item, Group) for item in items):
        return Runs(
            tuple(items),
            grouped=len(items) > 1 or any(group.group for group in items),
            own=all(group.configuration is not None for group in items),
        )
    if wrong := {type(item).__name__ for item in items if not isinstance(item, Stored)}:
        raise UsageError(
            f"expected paths, Runs, groups or recordings, not {', '.join(wrong)}; see lab.load"
        )
    return Runs(tuple(groups_of(items)), grouped=len(items) > 1, recordings=tuple(items))


def load(  # noqa: PLR0913
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
    options = TableOptions(
        column,
        unit,
        as_list(group_by),
        rename,
        None if causes is None else as_list(causes),
        one_group,
        drop_missing,
        counts,
    )
    warnings: list[str] = []
    if in_memory(path):
        tables = [table_of(path)]
        paths = [Path(tables[0].where)]
    else:
        paths = paths_of(path)
        tables = read_tables(paths, warnings, column)
    if tables is None:
        return _of_recordings(paths, options, columns).where(**where)
    return _of_tables(tables, paths, options, warnings).where(**where)


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
    """The groups of these tables, of which `paths` are the sources."""
    files = file_names(tables)
    tables = [table.renamed(options.rename) for table in tables]
    several = len(paths) > 1 or paths[0].is_dir()
    by_file = several and _is_by_file(tables, options)
    asked = [name for name in options.group_by if not (by_file and name == FILE)]
    same: dict[tuple, list[Group]] = {}
    columns = {}
    units = {}
    for table, file in zip(tables, files, strict=True):
        keys = columns_of(table, asked, "--group-by")
        name, unit, found = time_column(table, options.column, options.unit)
        if name in keys:
            raise UsageError(f"--group-by {name}: this column holds the times")
        groups = groups_of_table(table, name, unit, keys, options, found)
        for group in [_of_file(group, file) for group in groups] if by_file else groups:
            same.setdefault(tuple(group.group.items()), []).append(group)
        columns[name] = None
        units[unit] = None
        warnings += found
    source = source_of(paths)
    joined = tuple(_joined(groups, source) for groups in same.values())
    how = {
        "column": ", ".join(filter(None, columns)),
        "unit": ", ".join(units),
        "counts": options.counts,
    }
    return Runs(
        joined,
        source,
        tuple(dict.fromkeys(warnings)),
        how={name: text for name, text in how.items() if text},
        group_by=tuple(joined[0].group),
        grouped=bool(joined[0].group),
        own=False,
    )


def _is_by_file(tables: Sequence[Table], options: TableOptions) -> bool:
    """Whether each of several tables has groups of its own: it was asked for, or nothing else."""
    if FILE in options.group_by:
        return all(table.find(FILE) is None for table in tables)
    return not (options.group_by or options.one_group)


def _of_file(group: Group, file: str) -> Group:
    """A group of one of several tables, with the name of its file."""
    name = f"{file}, {group.name}" if group.group else file
    return replace(group, name=name, group={FILE: file, **group.group})


def _joined(groups: Sequence[Group], source: str) -> Group:
    """One group of all rounds; rounds that have the same number are numbered again."""
    first = groups[0]
    if len(groups) == 1:
        return first
    rounds = [round_ for group in groups for round_ in group.rounds]
    if len({round_.round for round_ in rounds}) < len(rounds):
        rounds = [replace(round_, round=number) for number, round_ in enumerate(rounds)]
    return replace(
        first,
        name=first.name if first.group else source,
        rounds=tuple(rounds),
        failure=None if rounds else first.failure,
    )


def _of_recordings(paths: Sequence[Path], options: TableOptions, columns: Sequence[str]) -> Runs:
    """The groups of all recordings of these paths, with what reading them has to say."""
    _refuse_table_options(paths[0], options)
    skipped: list[LabError] = []
    read = [tuple(folders.read_many(path, columns, skipped, most=KEPT)) for path in paths]
    items = tuple(itertools.chain(*read))
    lacks = list(_skipped_lines(skipped))
    if skipped and not items:
        raise type(skipped[0])(
            f"{source_of(paths)} has no recordings that this version can read: {lacks[0]}"
        )
    groups = groups_of(items)
    grouped = len(groups) > 1 or not _is_one_recording(paths)
    if not grouped:
        groups = [replace(group, group={}) for group in groups]
    parts_lack = _missing_parts(items)
    in_use = [path for path in paths if path.is_dir() and folder_in_use(path)]
    return Runs(
        tuple(groups),
        source_of(paths),
        (
            *parts_lack,
            *lacks,
            *_several_folders(read),
            *_mixed_telemetry(groups),
            *_decided_by_data(groups),
            *_thinned_out(items),
        ),
        grouped=grouped,
        recordings=items,
        unfinished=(*(f"{path} is being recorded" for path in in_use), *parts_lack),
    )


def _refuse_table_options(path: Path, options: TableOptions) -> None:
    for name, value in options._asdict().items():
        if value:
            raise NotATable(
                f"{path} holds recordings of lstm_trt, which have fixed columns and units, and are"
                f" grouped by configuration: remove --{name.replace('_', '-')}"
            )


def _is_one_recording(paths: Sequence[Path]) -> bool:
    """Whether the source is a file of one recording, or a folder that has parts of one only."""
    if len(paths) > 1 or paths[0].name in (consolidated.TRIALS_FILE, consolidated.CONFIGS_FILE):
        return False
    if not paths[0].is_dir():
        return True
    found = folders.contents(paths[0])
    return bool(found.parts) and not (found.recordings or found.others or found.pair)


# What reading recordings has to say, a function for each reason.


def _skipped_lines(skipped: Sequence[LabError]) -> Iterator[str]:
    """A line for each recording that could not be read, and one for those of a newer version."""
    newer = []
    for error in skipped:
        if isinstance(error, UnknownConfiguration):
            newer.append(error)
        elif isinstance(error, NotReadable):
            yield Incomplete(f"{error}: skipped, the rest is read")
        else:
            yield Incomplete(
                f"{error}: skipped, the rest is read; a sweep with the same --out records it again"
            )
    if newer:
        yield f"{count(len(newer), 'recording')} of a newer version skipped; the first: {newer[0]}"


def _missing_parts(items: Iterable[Stored]) -> list[str]:
    """What long recordings say of parts that are missing, each line once."""
    lacks = (item.provenance.get("soak", {}).get("lacks", ()) for item in items)
    return list(dict.fromkeys(itertools.chain(*lacks)))


def _several_folders(read: Sequence[Sequence[Stored]]) -> Iterator[str]:
    """A line if recordings of several paths are of the same configuration and machine."""
    ids = [{group_key(item)[:2] for item in items} for items in read]
    shared = sum(map(len, ids)) - len(set().union(*ids))
    if shared:
        yield (
            f"{count(shared, 'configuration')} of more than one of these folders: their"
            " recordings are pooled; lstm-trt compare compares two folders"
        )


def _mixed_telemetry(groups: Iterable[Group]) -> Iterator[str]:
    """A line if telemetry was on in some rounds of a group only."""
    mixed = [group for group in groups if len({round_.telemetry for round_ in group.rounds}) > 1]
    if mixed:
        yield (
            f"{count(len(mixed), 'configuration')} with some rounds recorded with telemetry on,"
            f" which are pooled; the first: {mixed[0].name}"
        )


def _decided_by_data(groups: Iterable[Group]) -> Iterator[str]:
    """A line if recordings ended when the evidence was enough."""
    decided = sum(group.until is not None for group in groups)
    if decided:
        yield (
            f"{count(decided, 'configuration')} recorded until decided: the number of trials"
            " depended on the data, which intervals and comparisons do not allow for"
        )


def _thinned_out(items: Iterable[Stored]) -> Iterator[str]:
    """A line for each long recording of which some trials only are in memory."""
    for item in items:
        if isinstance(item, Recording) and item.whole:
            yield (
                "clusters, causes, segments and figures over time of"
                f" {item.configuration.title}: one of every {item.whole.step} of its"
                f" {len(item.whole)} trials"
            )
