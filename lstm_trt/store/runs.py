"""Latencies from anywhere in the one form that analysis and plots take: `Runs`, groups of samples with their source.

`load` reads recordings of this lab (a file, a folder, a consolidated pair) and tables made elsewhere;
`as_runs` takes what is in memory already as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from lstm_trt.config.errors import UnknownConfiguration, UsageError
from lstm_trt.config.format import count
from lstm_trt.config.labels import configuration_fields
from lstm_trt.store import consolidated, folders
from lstm_trt.store.foreign import columns_of, groups_of_table
from lstm_trt.store.samples import TRIAL_CAUSES, Group, groups_of
from lstm_trt.store.schema import Failure, Recording
from lstm_trt.store.tables import read_table, time_column

if TYPE_CHECKING:
    import pandas as pd

#: What analysis and plots read of a recording; clocks of the device stay on disk.
_COLUMNS = ("trial", "latency_ns", "warmup", "start_ns", "intended_ns", *TRIAL_CAUSES)


@dataclass(frozen=True, eq=False)
class Runs(Sequence[Group]):
    """Latencies by configuration, and where they came from: a sequence of its `groups`.

    `grouped`: answers are a list, each with its group; else there is one group, whose `group` is {}.
    `how` (column and unit) and `group_by` tell how a table from elsewhere was read; they are empty for
    recordings of this lab (`own`), which stand in `recordings`, in the order they were read.
    """

    groups: tuple[Group, ...]
    source: str = ""
    warnings: tuple[str, ...] = ()
    how: dict[str, str] = field(default_factory=dict)
    group_by: tuple[str, ...] = ()
    grouped: bool = True
    own: bool = True
    recordings: tuple[Recording | Failure, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    @overload
    def __getitem__(self, index: int) -> Group: ...

    @overload
    def __getitem__(self, index: slice) -> Runs: ...

    def __getitem__(self, index):
        return self._only(self.groups[index]) if isinstance(index, slice) else self.groups[index]

    def __str__(self) -> str:
        """A line a group: its name, rounds and trials, or why there are none."""
        return "\n".join(
            f"{group.name}: {group.failure}"
            if group.failure is not None
            else f"{group.name}: {count(group.n, 'trial')} in {count(len(group.samples), 'round')}"
            for group in self.groups
        )

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A DataFrame, a row a group: what was configured, `rounds`, `n` and `failure`."""
        import pandas as pd

        rows = [{**group_fields(group), "rounds": len(group.samples), "n": group.n} for group in self.groups]
        failures = [None if group.failure is None else str(group.failure) for group in self.groups]
        return pd.DataFrame(rows).assign(failure=failures)

    def where(self, **wanted: Any) -> Runs:
        """Only the groups with these values: `where(hidden=[64, 128], runtime="onnxruntime", arrival="closed")`.

        Names are axes, runtime, mode, fields of options and protocol (`group_fields`); of a table from
        elsewhere its `group_by` columns. A list, tuple, set or range stands for any of its values.
        Raises `UsageError` for a name that no group has, and where nothing is left.
        """
        fields = [group_fields(group) for group in self.groups]
        for name in wanted:
            if not any(name in of_group for of_group in fields):
                known = ", ".join(dict.fromkeys(itertools.chain(*fields))) or "nothing"
                raise UsageError(f"{self.source or 'the runs'}: no group has a field {name!r}; choose from {known}")
        values = {
            name: list(value) if isinstance(value, list | tuple | set | frozenset | range) else [value]
            for name, value in wanted.items()
        }
        found = tuple(
            group
            for group, of_group in zip(self.groups, fields, strict=True)
            if all(of_group.get(name) in several for name, several in values.items())
        )
        if not found:
            asked = ", ".join(f"{name} {' or '.join(map(str, several))}" for name, several in values.items())
            raise UsageError(f"{self.source or 'the runs'}: no recording or row has {asked}")
        return self._only(found)

    def _only(self, groups: tuple[Group, ...]) -> Runs:
        ids = {group.configuration.id for group in groups if group.configuration is not None}
        kept = tuple(item for item in self.recordings if item.configuration.id in ids)
        return replace(self, groups=groups, recordings=kept)


def group_fields(group: Group) -> dict:
    """What a group is, flat: all that was configured and the machine, or the values of a table's group."""
    configuration = group.configuration
    if configuration is None:
        return dict(group.group) or {"name": group.name}
    machine = group.samples[0].machine if group.samples else None
    return {
        **configuration_fields(configuration),
        **configuration.workload.group_fields(configuration.mode),
        **configuration.workload.axes,
        "machine": machine,
        "config_id": configuration.id,
    }


def as_runs(source: Runs | Group | Recording | Failure | str | Path | Iterable) -> Runs:
    """`Runs` of what holds latencies: `Runs`, groups, recordings, one of these, or a path (see `load`)."""
    if isinstance(source, Runs):
        return source
    if isinstance(source, str | Path):
        return load(source)
    items = [source] if isinstance(source, Group | Recording | Failure) else list(source)
    groups = [item for item in items if isinstance(item, Group)]
    if len(groups) == len(items):
        own = all(group.configuration is not None for group in groups)
        return Runs(tuple(groups), grouped=len(groups) > 1 or bool(groups and groups[0].group), own=own)
    wrong = next((item for item in items if not isinstance(item, Recording | Failure)), None)
    if wrong is not None:
        raise UsageError(f"a path, Runs, groups or recordings are wanted, not {type(wrong).__name__}")
    return Runs(tuple(groups_of(items)), grouped=len(items) > 1, recordings=tuple(items))


def load(
    path: str | Path,
    *,
    column: str | None = None,
    unit: str | None = None,
    group_by: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    causes: Sequence[str] | None = None,
    one_group: bool = False,
    **where: Any,
) -> Runs:
    """The latencies under a path: a file, folder or consolidated pair of this lab's, or a table from elsewhere.

    Of a table: `column` holds the times in `unit` (ns, us, ms or s). Each combination of values of the
    `group_by` columns is a group. `rename` (the table's name -> another) is applied first. `causes` are
    columns of counts. `one_group` says that all rows (of a group) are of one configuration. `where` keeps
    some groups only, see `Runs.where`. Raises `UsageError` or `StoreError`, one line, for what cannot be read.
    """
    path = Path(path)
    table = read_table(path)
    if table is None:
        options = {"--column": column, "--unit": unit, "--group-by": group_by, "--rename": rename, "--causes": causes}
        for option in (option for option, value in options.items() if value):
            why = "are grouped by configuration" if option == "--group-by" else "know their columns and units"
            raise UsageError(f"{path} holds recordings of this lab, which {why}: leave {option} out")
        runs = _recorded(path)
    else:
        table = table.renamed(rename)
        keys = columns_of(table, group_by, "--group-by")
        name, unit, warnings = time_column(table, column, unit)
        if name in keys:
            raise UsageError(f"--group-by {name}: that column holds the times")
        groups = groups_of_table(table, name, unit, keys, causes, one_group, warnings)
        how = ({"column": name} if name else {}) | {"unit": unit}
        runs = Runs(tuple(groups), str(path), tuple(warnings), how, tuple(keys), grouped=bool(keys), own=False)
    return runs.where(**where) if where else runs


def _recorded(path: Path) -> Runs:
    skipped: list[UnknownConfiguration] = []
    items = tuple(folders.read_many(path, _COLUMNS, skipped))
    if skipped:
        newer = f"{count(len(skipped), 'recording')} of a newer version skipped, the first one is {skipped[0]}"
        if not items:
            raise UnknownConfiguration(f"{path} holds nothing else: {newer}")
    soaks = [item.provenance["soak"] for item in items if "soak" in item.provenance]  # only these can lack a part
    warnings = list(dict.fromkeys(text for soak in soaks for text in soak.get("lacks", ())))
    warnings += [newer] if skipped else []
    groups = groups_of(items)
    grouped = path.name in (consolidated.TRIALS_FILE, consolidated.CONFIGS_FILE)
    if path.is_dir():
        found = folders.contents(path)
        grouped = not found.parts or bool(found.recordings or found.others or found.pair) or len(groups) > 1
    if not grouped:
        groups = [replace(group, group={}) for group in groups]
    return Runs(tuple(groups), str(path), tuple(warnings), grouped=grouped, recordings=items)
