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

from lstm_trt.config.configuration import cell_key, warnings_of
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
        return [
            *self.recordings.values(),
            *(path for numbered in self.parts.values() for path in numbered.values()),
        ]


def contents(folder: Path) -> Contents:
    """Files of a folder by their names; the files are not opened."""
    pair = (TRIALS_FILE, CONFIGS_FILE)
    found = Contents(pair=folder if all((folder / name).exists() for name in pair) else None)
    for path in sorted(folder.iterdir()):
        if match := _NAME.match(path.name):
            key = match["id"], int(match["round"])
            if match["part"]:
                found.parts.setdefault(key, {})[int(match["part"])] = path
            else:
                (found.failures if match["failure"] else found.recordings)[key] = path
        elif path.suffix == ".parquet" and not path.name.startswith(".") and path.name not in pair:
            found.others.append(path)
    found.parts.update(
        {key: dict(sorted(numbered.items())) for key, numbered in found.parts.items()}
    )
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
    rows = [metadata_of(path).num_rows for path in paths]
    step = max(1, math.ceil(sum(rows) / most)) if most else 1
    chosen = one_of_each(sum(rows), step)
    parts, whole, counts, most_ns = [], {}, (np.empty(0), np.empty(0, int)), 0
    for path, place in zip(paths, itertools.accumulate(rows, initial=0), strict=False):
        part = read_part(path, columns)
        parts.append(replace(part, columns={}))
        whole = whole or {
            name: np.empty(len(chosen), values.dtype) for name, values in part.columns.items()
        }
        if part.columns.keys() != whole.keys() or part.configuration != parts[0].configuration:
            raise StoreError(
                f"{path}: columns or configuration differ from those of {paths[0].name}"
            )
        start, stop = np.searchsorted(chosen, (place, place + len(part.columns["latency_ns"])))
        for name, values in part.columns.items():
            whole[name][start:stop] = (values + place if name == "trial" else values)[
                chosen[start:stop] - place
            ]
        if step > 1:
            counts = counted((counts, (part.timed_ns, 1)))
            most_ns = max(most_ns, part.columns["latency_ns"].max())
    control = next((part.control for part in parts if part.control), None)
    first = parts[0]
    reason = failure and read_failure(failure).reason
    with refused(f"{paths[0]} is damaged: a duration is 0", ZeroDivisionError, kind=StoreError):
        provenance = joined([part.provenance for part in parts])
        soak = provenance["soak"]
        lacks = list(missing(numbered, soak, reason))
        inside_ns = 1e9 * provenance["seconds"]["inside_trials"]
        self_check, unexplained_ns = provenance["self_check"], provenance.get("unexplained_cpu_ns")
        of_loop = warnings_of(
            first.configuration.protocol, sum(rows), inside_ns, self_check, unexplained_ns
        )
    provenance["soak"] = soak | {"parts": len(paths), "lacks": lacks}
    provenance["warnings"] = [*of_loop, *lacks]
    every = Whole(*counts, step, most_ns, partial(_timed, paths)) if step > 1 else None
    return Recording(first.configuration, first.round, whole, provenance, control, whole=every)


def read_part(path: Path, columns: Asked) -> Recording:
    """Read a part of a long recording; raises as `read`, and `StoreError` if the file does not say
    that it is one."""
    part = read(path, columns)
    if part.part is None:
        raise StoreError(
            f"{path} is damaged: it is named as a part of a long recording, and does not state which"
        )
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
        expected = max(present + 1, round((soak["part"] + 1) * soak["asked_s"] / soak["elapsed_s"]))
        yield f"soak incomplete: {present} of about {expected} parts" + (
            f" ({failure})" if failure else ""
        )


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
    recorded, failed = found.recordings.keys() | found.parts.keys(), set(found.failures)
    if found.pair is not None:
        for row in read_configs(folder)[0]:
            (recorded if row["status"] == "ok" else failed).add((row["config_id"], row["round"]))
    return recorded, failed - recorded


def cells(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """What `tidy` returns, and for all recordings and failures in a folder config_id -> `cell_key`.

    Raises `UnknownConfiguration` for those of a newer version.
    """
    plain: dict[str, dict] = {}

    def look(path: Path) -> None:
        described = described_by(metadata_of(path).metadata, path)
        plain[path.name[:64]] = configuration_of(described.get("configuration", {}), path).as_dict()

    moved = tidy(folder, look)
    found = contents(folder)
    plain |= {
        key[0]: read_failure(path).configuration.as_dict() for key, path in found.failures.items()
    }
    rows = read_configs(folder)[0] if found.pair else ()
    for row in rows:
        described = described_row(row, folder / CONFIGS_FILE)
        plain[row["config_id"]] = configuration_of(
            described["configuration"], folder / CONFIGS_FILE
        ).as_dict()
    return moved, {identity: cell_key(each) for identity, each in plain.items()}


def find_folder(path: str | Path) -> Path:
    """`path` in the working folder, or in its nearest parent that has it.

    So a notebook finds `data/epyc` both from its own folder (JupyterLab) and from the project
    folder (papermill). Raises `UsageError` if it is not found.
    """
    path = Path(path).expanduser()
    for folder in [Path(), *Path.cwd().parents]:
        if (folder / path).exists():
            return folder / path
    raise UsageError(
        f"{path} is not in the working folder or its parents: give the path of an existing file or folder"
    )


def project_folder(path: str | Path) -> Path:
    """`path` for new files of a notebook: in the project folder if it runs in one, else in the
    working folder."""
    here = [Path.cwd(), *Path.cwd().parents]
    projects = (
        each
        for each in here
        if (each / "pyproject.toml").exists() and (each / "notebooks").is_dir()
    )
    return next(projects, Path()) / Path(path).expanduser()
