"""Folders of recordings: single-file recordings, parts of long recordings, failures, a consolidated
pair.

The parts of one (configuration, round) are one recording: trials and `start_ns` continue
from part to part.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lstm_trt.config.configuration import Configuration, cell_key, warnings_of
from lstm_trt.config.errors import (
    LabError,
    NotReadable,
    StoreError,
    UnknownConfiguration,
    UsageError,
    file_errors,
    refused,
)
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.format import count
from lstm_trt.store.consolidated import (
    CONFIGS_FILE,
    TRIALS_FILE,
    consolidate,
    described_row,
    read_configs,
    read_pair,
)
from lstm_trt.store.files import (
    configuration_of,
    described_by,
    make_folder,
    metadata_of,
    read,
    read_failure,
    wanted,
)
from lstm_trt.store.locks import folder_lock
from lstm_trt.store.provenance import joined
from lstm_trt.store.schema import Asked, Key, Recording, Stored
from lstm_trt.store.temporary import remove_abandoned
from lstm_trt.store.whole import Whole, counted, one_of_each

#: Names of recordings, parts and failures: `<id>-r<round>.parquet`, `-r<round>-p<part>.parquet`,
#: `.failure.json`.
_NAME = re.compile(
    r"^(?P<id>[0-9a-f]{64})-r(?P<round>\d+)(?:(?:-p(?P<part>\d+))?\.parquet|(?P<failure>\.failure\.json))$"
)


@dataclass(frozen=True)
class Contents:
    """Files of a folder: recordings, failures and parts by (config_id, round).

    `pair`: the folder, if it holds a consolidated pair. `others`: Parquet files with other names.
    `parts`: number of the part -> file, ascending.
    """

    recordings: dict[Key, Path] = field(default_factory=dict)
    failures: dict[Key, Path] = field(default_factory=dict)
    pair: Path | None = None
    others: list[Path] = field(default_factory=list)
    parts: dict[Key, dict[int, Path]] = field(default_factory=dict)

    @property
    def recorded(self) -> list[Path]:
        """The files of recordings and of parts."""
        parts = (numbered.values() for numbered in self.parts.values())
        return [*self.recordings.values(), *itertools.chain(*parts)]


def contents(folder: Path) -> Contents:
    """Files of a folder by their names; the files are not opened."""
    pair = (TRIALS_FILE, CONFIGS_FILE)
    found = Contents(pair=folder if all((folder / name).exists() for name in pair) else None)
    for path in sorted(folder.iterdir()):
        match = _NAME.match(path.name)
        if match is None:
            hidden = path.name.startswith(".")
            if path.suffix == ".parquet" and not hidden and path.name not in pair:
                found.others.append(path)
            continue
        key = match["id"], int(match["round"])
        if match["failure"]:
            found.failures[key] = path
        elif match["part"]:
            found.parts.setdefault(key, {})[int(match["part"])] = path
        else:
            found.recordings[key] = path
    for key, numbered in found.parts.items():
        found.parts[key] = dict(sorted(numbered.items()))
    return found


def read_many(
    path: Path,
    columns: Asked = None,
    skipped: list[LabError] | None = None,
    command: str = "record",
    most: int | None = None,
) -> Iterator[Stored]:
    """All recordings and failures of a file, a folder, or a consolidated pair (its folder or either
    file).

    With `columns`, only these columns of the trials are loaded: 200 million trials take 17 GB with
    all columns, 3.4 GB with `latency_ns`, `warmup` and `start_ns`. The parts of a long recording
    are joined; missing parts are named in its warnings. With `most`, only so many of its trials are
    kept, see `Recording.whole`. A recording that is also in the consolidated pair of the folder is
    given once. A failure is left out if its configuration was recorded later in the same round.

    Raises `StoreError` if there is no recording (the message names the `command` that makes one),
    or a file is damaged, `UnknownConfiguration` for recordings of a newer version. If `skipped` is
    given, errors of single recordings of a folder or pair are appended to it instead.
    """
    path = Path(path)
    if not path.exists():
        raise StoreError(f"no such file or folder: {path}")
    wanted(columns, ())  # raises for unknown names
    if path.is_file() and path.name not in (TRIALS_FILE, CONFIGS_FILE):
        yield read_failure(path) if path.name.endswith(".failure.json") else read(path, columns)
        return
    with file_errors(f"read {path}", kind=StoreError):
        found = Contents(pair=path.parent) if path.is_file() else contents(path)
    if not (found.recordings or found.failures or found.others or found.parts or found.pair):
        raise StoreError(
            f"{path} contains no recordings; record one with: lstm-trt {command} --out {path} ..."
        )
    for reader in _readers(found, columns, most):
        try:
            yield reader()
        except (StoreError, UnknownConfiguration) as error:
            if skipped is None:
                raise
            skipped.append(error)


def _readers(found: Contents, columns: Asked, most: int | None) -> Iterator[Callable[[], Stored]]:
    """A reader for each recording and failure of a folder."""
    known = found.recordings.keys() | found.parts.keys()
    for file in (*found.recordings.values(), *found.others):
        yield partial(read, file, columns)
    for key, parts in found.parts.items():
        yield partial(read_parts, parts, columns, found.failures.get(key), most)
    for key, file in found.failures.items():
        if key not in known:
            yield partial(read_failure, file)
    if found.pair is not None:
        yield from read_pair(found.pair, known | found.failures.keys(), columns)


@dataclass(frozen=True)
class Consolidated(JsonFields):
    """Result of a consolidation: the folder, and the numbers of recordings and failures."""

    folder: Path
    recordings: int
    failures: int

    def __str__(self) -> str:
        counts = f"{count(self.recordings, 'recording')}, {count(self.failures, 'failure')}"
        return f"{self.folder}: wrote {TRIALS_FILE} and {CONFIGS_FILE} with {counts}"


def consolidate_folder(path: Path, out: Path | None = None) -> Consolidated:
    """Merge all recordings of `path` into two tables, trials.parquet and configs.parquet, in `out`
    (default: `path`).

    Raises `UsageError` if `path` does not exist, or `out` is not writable or in use, and the errors
    of `read_many`.
    """
    if not path.exists():
        raise UsageError(f"no such folder: {path}")
    folder = make_folder(out or (path if path.is_dir() else path.parent))
    with folder_lock(folder):
        return Consolidated(folder, *consolidate(read_many(path), folder))


def read_parts(
    numbered: dict[int, Path], columns: Asked, failure: Path | None, most: int | None = None
) -> Recording:
    """Join the parts of a long recording: `numbered` is number of the part -> file, ascending.

    Trials and blocks are numbered consecutively. Missing parts are named in the warnings of the
    provenance, with the reason from the `failure` file if there is one. Memory use: the columns
    of the whole recording, or of `most` trials, and one part.
    """
    paths = list(numbered.values())
    rows = sum(metadata_of(path).num_rows for path in paths)
    trials = _Trials(rows, step=math.ceil(rows / most) if most else 1)
    parts = []
    for path in paths:
        part = read_part(path, columns)
        trials.add(part)
        parts.append(replace(part, columns={}))
        same_columns = part.columns.keys() == trials.columns.keys()
        if not same_columns or part.configuration != parts[0].configuration:
            differ = f"columns or configuration differ from those of {paths[0].name}"
            raise StoreError(f"{path}: {differ}")
    reason = read_failure(failure).reason if failure else None
    with refused(f"{paths[0]} is damaged: a duration is 0", ZeroDivisionError, kind=StoreError):
        provenance = _provenance_of(parts, rows, numbered, reason)
    controls = [part.control for part in parts if part.control]
    return replace(
        parts[0],
        columns=trials.columns,
        provenance=provenance,
        control=controls[0] if controls else None,
        part=None,
        whole=trials.whole(partial(_timed, paths)),
    )


class _Trials:
    """The trials of a long recording, of which one of each `step` is kept in `columns`."""

    def __init__(self, rows: int, step: int):
        self.columns: dict[str, np.ndarray] = {}
        self._step = max(1, step)
        self._kept = one_of_each(rows, self._step)
        self._rows = 0  # of the parts so far
        self._counts = (np.empty(0), np.empty(0, int))
        self._most_ns = 0

    def add(self, part: Recording) -> None:
        """Add the next part."""
        latency_ns = part.columns["latency_ns"]
        end = self._rows + len(latency_ns)
        start, stop = np.searchsorted(self._kept, (self._rows, end))
        places = self._kept[start:stop] - self._rows
        for name, values in part.columns.items():
            kept = values[places]
            if name == "trial":
                kept += self._rows
            if name not in self.columns:
                self.columns[name] = np.empty(len(self._kept), values.dtype)
            self.columns[name][start:stop] = kept
        self._rows = end
        if self._step > 1:
            self._counts = counted((self._counts, (part.timed_ns, 1)))
            self._most_ns = max(self._most_ns, latency_ns.max())

    def whole(self, again: Callable[[], Iterator[np.ndarray]]) -> Whole | None:
        """All latencies by value, if not all are kept; `again` reads them again."""
        if self._step == 1:
            return None
        return Whole(*self._counts, self._step, self._most_ns, again)


def _provenance_of(
    parts: Sequence[Recording], rows: int, numbered: dict[int, Path], failure: str | None
) -> dict[str, Any]:
    """The provenance of a long recording; its warnings are about the whole of it."""
    found = joined([part.provenance for part in parts])
    lacks = list(missing(numbered, found["soak"], failure))
    of_loop = warnings_of(
        parts[0].configuration.protocol,
        rows,
        1e9 * found["seconds"]["inside_trials"],
        found["self_check"],
        found.get("unexplained_cpu_ns"),
    )
    found["soak"] = {**found["soak"], "parts": len(parts), "lacks": lacks}
    found["warnings"] = [*of_loop, *lacks]
    return found


def read_part(path: Path, columns: Asked) -> Recording:
    """Read a part of a long recording; raises as `read`, and `StoreError` if the file does not say
    that it is one."""
    part = read(path, columns)
    if part.part is None:
        named = "it is named as a part of a long recording, and does not state which"
        raise StoreError(f"{path} is damaged: {named}")
    return part


def _timed(paths: Sequence[Path]) -> Iterator[np.ndarray]:
    """The latencies after warm-up in ns of each part."""
    return (read(path, ("latency_ns", "warmup")).timed_ns for path in paths)


def missing(numbered: dict[int, Path], soak: dict, failure: str | None) -> Iterator[str]:
    """Warnings about missing parts of a long recording; `soak` is the entry in the provenance of
    its last part."""
    absent = [number for number in range(max(numbered)) if number not in numbered]
    if absent:
        yield f"soak incomplete: part {', '.join(map(str, absent))} missing"
    if not soak["last"]:
        present = len(numbered)
        expected = round((soak["part"] + 1) * soak["asked_s"] / soak["elapsed_s"])
        why = f" ({failure})" if failure else ""
        yield f"soak incomplete: {present} of about {max(present + 1, expected)} parts{why}"


def tidy(folder: Path, look: Callable[[Path], Any] = metadata_of) -> list[Path]:
    """Remove temporary files of killed writers and rename damaged recordings to `*.damaged`.

    A damaged recording, for example an incomplete copy, is one for which `look` raises
    `StoreError`. Returns the old paths of those renamed. Raises `NotReadable` for one of which
    nothing is known; it stays where it is.
    """
    remove_abandoned(folder)
    moved = []
    for path in contents(folder).recorded:
        try:
            look(path)
        except NotReadable:
            raise
        except StoreError:
            path.rename(path.with_name(path.name + ".damaged"))
            moved.append(path)
    return moved


def finished(folder: Path) -> tuple[set[Key], set[Key]]:
    """(config_id, round) of the recordings and of the failures in a folder.

    A long recording counts as recorded from its first part on; if it is incomplete, a new round is
    recorded.
    """
    found = contents(folder)
    recorded = found.recordings.keys() | found.parts.keys()
    failed = set(found.failures)
    if found.pair is not None:
        for row in read_configs(folder)[0]:
            kind = recorded if row["status"] == "ok" else failed
            kind.add((row["config_id"], row["round"]))
    return recorded, failed - recorded


def cells(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """What `tidy` returns, and for all recordings and failures in a folder config_id -> `cell_key`.

    Raises `UnknownConfiguration` for those of a newer version.
    """
    known: dict[str, Configuration] = {}

    def look(path: Path) -> None:
        described = described_by(metadata_of(path).metadata, path)
        known[path.name[:64]] = configuration_of(described.get("configuration", {}), path)

    moved = tidy(folder, look)
    found = contents(folder)
    for (identity, _), path in found.failures.items():
        known[identity] = read_failure(path).configuration
    if found.pair:
        path = folder / CONFIGS_FILE
        for row in read_configs(folder)[0]:
            described = described_row(row, path)
            known[row["config_id"]] = configuration_of(described["configuration"], path)
    return moved, {identity: cell_key(each.as_dict()) for identity, each in known.items()}
