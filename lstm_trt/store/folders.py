"""What a folder of recordings holds: whole recordings, parts of long ones, failures, a consolidated pair.

The parts of one (configuration, round) are one recording: its trials continue over the
parts on one clock.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from lstm_trt.config.configuration import warnings_of
from lstm_trt.config.errors import StoreError, UnknownConfiguration, UsageError
from lstm_trt.store.consolidated import CONFIGS_FILE, TRIALS_FILE, consolidate, read_pair
from lstm_trt.store.files import make_folder, opened, read, read_failure, wanted
from lstm_trt.store.schema import Failure, Recording

#: Names of recordings, parts and failures: `<id>-r<round>.parquet`, `-r<round>-p<part>.parquet`, `.failure.json`.
_NAME = re.compile(
    r"^(?P<id>[0-9a-f]{64})-r(?P<round>\d+)(?:(?:-p(?P<part>\d+))?\.parquet|(?P<failure>\.failure\.json))$"
)


#: (config_id, round)
Key = tuple[str, int]


@dataclass(frozen=True)
class Contents:
    """What a folder holds, by (config_id, round): whole recordings, failures, parts; the pair; renamed files.

    `parts`: number of the part -> its file, ascending.
    """

    recordings: dict[Key, Path]
    failures: dict[Key, Path]
    pair: Path | None
    others: list[Path]
    parts: dict[Key, dict[int, Path]] = field(default_factory=dict)

    @property
    def recorded(self) -> list[Path]:
        """The files of whole recordings and of parts."""
        return [*self.recordings.values(), *(path for numbered in self.parts.values() for path in numbered.values())]


def contents(folder: Path) -> Contents:
    """The names in a folder, without opening the files."""
    recordings, failures, parts, others = {}, {}, {}, []
    for path in sorted(folder.iterdir()):
        match = _NAME.match(path.name)
        if match:
            key = match["id"], int(match["round"])
            if match["part"]:
                parts.setdefault(key, {})[int(match["part"])] = path
            else:
                (failures if match["failure"] else recordings)[key] = path
        elif (
            path.suffix == ".parquet" and not path.name.startswith(".") and path.name not in (TRIALS_FILE, CONFIGS_FILE)
        ):
            others.append(path)
    pair = folder if (folder / TRIALS_FILE).exists() and (folder / CONFIGS_FILE).exists() else None
    parts = {key: dict(sorted(numbered.items())) for key, numbered in parts.items()}
    return Contents(recordings, failures, pair, others, parts)


def read_many(
    path: Path, columns: Collection[str] | None = None, skipped: list[UnknownConfiguration] | None = None
) -> Iterator[Recording | Failure]:
    """Everything under a file, a folder, or a consolidated pair (its folder or either file).

    Of the trials' columns only `columns` are loaded, where they are named: 200 million
    trials take 17 GB with all of them, 3.4 GB with `latency_ns`, `warmup` and `start_ns`.
    The parts of a long recording are given as one; one whose last part is missing says so
    in its warnings. A recording beside a consolidated pair that also holds it is given
    once. A failure whose configuration was recorded later in the same round is left out.
    Raises `StoreError` where there is nothing, or where a file is damaged. What a newer version recorded
    into a folder or pair (`UnknownConfiguration`) is put into `skipped` where that is given, and raised where not.
    """
    path = Path(path)
    if not path.exists():
        raise StoreError(f"there is no file or folder {path}")
    wanted(columns, ())  # refuses unknown names
    if path.is_file():
        if path.name in (TRIALS_FILE, CONFIGS_FILE):
            yield from read_pair(path.parent, set(), columns, skipped)
        elif path.name.endswith(".failure.json"):
            yield read_failure(path)
        else:
            yield read(path, columns)
        return
    try:
        found = contents(path)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None
    if not (found.recordings or found.failures or found.others or found.parts or found.pair):
        raise StoreError(f"{path} holds no recording; record one with: lstm-trt record --out {path} ...")
    known = found.recordings.keys() | found.parts.keys()
    readers = [partial(read, file, columns) for file in [*found.recordings.values(), *found.others]]
    readers += [partial(read_parts, parts, columns, found.failures.get(key)) for key, parts in found.parts.items()]
    readers += [partial(read_failure, file) for key, file in found.failures.items() if key not in known]
    for reader in readers:
        try:
            item = reader()
        except UnknownConfiguration as error:
            if skipped is None:
                raise
            skipped.append(error)
        else:
            yield item
    if found.pair is not None:
        yield from read_pair(path, known | found.failures.keys(), columns, skipped)


@dataclass(frozen=True)
class Consolidated:
    """A consolidated pair that was written into `folder`: how many recordings and failures it holds."""

    folder: Path
    recordings: int
    failures: int

    def as_dict(self) -> dict:
        """JSON values."""
        return {"folder": str(self.folder), "recordings": self.recordings, "failures": self.failures}

    def __str__(self) -> str:
        counts = f"{self.recordings} recordings, {self.failures} failures"
        return f"{self.folder}: {TRIALS_FILE} and {CONFIGS_FILE} hold {counts}"


def consolidate_folder(path: Path, out: Path | None = None) -> Consolidated:
    """Write a consolidated pair of everything under `path` into `out` (default: the folder of `path`).

    Raises `UsageError` where there is no such path or `out` cannot be written, and what `read_many` raises.
    """
    if not path.exists():
        raise UsageError(f"there is no folder {path}")
    folder = make_folder(out or (path if path.is_dir() else path.parent))
    return Consolidated(folder, *consolidate(read_many(path), folder))


def read_parts(
    numbered: dict[int, Path], columns: Collection[str] | None = None, failure: Path | None = None
) -> Recording:
    """The parts of one long recording as one: number of the part -> its file, ascending.

    Trials and blocks are counted through, `start_ns` continues on the soak's own clock.
    What is missing stands in the provenance's warnings, with the reason of the `failure` where one was
    written. Memory: the columns asked for, and one part.
    """
    import pyarrow.parquet as pq

    paths = list(numbered.values())
    rows = [opened(path, pq.read_metadata).num_rows for path in paths]
    places = np.cumsum([0, *rows])
    first = last = None
    whole: dict[str, np.ndarray] = {}
    blocks, checks, seconds, control = [], [], {}, None
    for path, place in zip(paths, places, strict=False):
        last = read(path, columns)
        if first is None:
            first = last  # the step was built and gated once
            whole = {name: np.empty(places[-1], values.dtype) for name, values in first.columns.items()}
        if last.columns.keys() != whole.keys() or last.configuration != first.configuration:
            raise StoreError(f"{path} has other columns, or another configuration, than {paths[0].name}")
        for name, values in last.columns.items():
            whole[name][place : place + len(values)] = values + place if name == "trial" else values
        provenance = last.provenance
        blocks += [{**block, "first_row": block["first_row"] + int(place)} for block in provenance["blocks"]]
        checks.append(provenance["self_check"])
        for name in ("timing", "inside_trials", "control"):
            seconds[name] = seconds.get(name, 0.0) + provenance["seconds"][name]
        control = control or last.control
    check = joined_checks(checks)
    lacks = list(missing(numbered, last.provenance["soak"], failure and read_failure(failure).reason))
    warnings = warnings_of(
        first.configuration.protocol, int(places[-1]), 1e9 * seconds["inside_trials"], check["loop_ns"]
    )
    provenance = {
        **first.provenance,
        "gpu_after": last.provenance.get("gpu_after"),
        "blocks": blocks,
        "self_check": check,
        "seconds": first.provenance["seconds"] | seconds,
        "soak": last.provenance["soak"] | {"parts": len(paths), "lacks": lacks},
        "warnings": [*warnings, *lacks],
    }
    return Recording(first.configuration, first.round, whole, provenance, control)


def joined_checks(checks: list[dict]) -> dict:
    """The self-checks of all parts as one: durations summed, the largest difference of the clocks."""
    loop_ns = sum(check["loop_ns"] for check in checks)
    return {
        "loop_ns": loop_ns,
        "loop_raw_ns": sum(check["loop_raw_ns"] for check in checks),
        "clocks_differ_by": max((check["clocks_differ_by"] for check in checks), key=abs),
        "outside_share": sum(check["outside_share"] * check["loop_ns"] for check in checks) / loop_ns,
    }


def missing(numbered: dict[int, Path], soak: dict, failure: str | None) -> Iterator[str]:
    """A line for each thing that a soak lacks; `soak` is what its last part says of it."""
    holes = [number for number in range(max(numbered)) if number not in numbered]
    if holes:
        yield f"soak with holes: part {', '.join(map(str, holes))} missing"
    if not soak["last"]:
        count = len(numbered)
        expected = max(count + 1, round((soak["part"] + 1) * soak["asked_s"] / soak["elapsed_s"]))
        yield f"soak incomplete: {count} of about {expected} parts" + (f" ({failure})" if failure else "")


def tidy(folder: Path) -> list[Path]:
    """Remove what killed writers left, and rename recordings that are no whole Parquet files to `*.damaged`.

    The lab itself never leaves one; a copy that broke off does. Returns their old paths.
    """
    import pyarrow.parquet as pq

    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    moved = []
    for path in contents(folder).recorded:
        try:
            opened(path, pq.read_metadata)
        except StoreError:
            path.rename(path.with_name(path.name + ".damaged"))
            moved.append(path)
    return moved


def finished(folder: Path) -> tuple[set[Key], set[Key]]:
    """(config_id, round) of what was recorded, and of what failed, in a folder.

    A long recording counts from its first part on: what is missing becomes a further round.
    """
    import pyarrow.parquet as pq

    found = contents(folder)
    recorded, failed = found.recordings.keys() | found.parts.keys(), set(found.failures)
    if found.pair is not None:
        columns = ["config_id", "round", "status"]
        for row in opened(folder / CONFIGS_FILE, lambda path: pq.read_table(path, columns=columns)).to_pylist():
            (recorded if row["status"] == "ok" else failed).add((row["config_id"], row["round"]))
    return recorded, failed - recorded


def find_folder(path: str | Path) -> Path:
    """`path` as it stands, or below the first parent of the working folder that has it.

    So a notebook finds `data/epyc` from its own folder in JupyterLab and from the top
    folder under papermill. Raises `UsageError` where no parent has it.
    """
    path = Path(path).expanduser()
    for folder in [Path(), *Path.cwd().parents]:
        if (folder / path).exists():
            return folder / path
    raise UsageError(f"there is no {path} here or in a folder above: give the path of the recordings")


def project_folder(path: str | Path) -> Path:
    """Where new files of a notebook go: below the project's top folder if it runs inside one, else here."""
    path = Path(path).expanduser()
    for folder in [Path.cwd(), *Path.cwd().parents]:
        if (folder / "pyproject.toml").exists() and (folder / "notebooks").is_dir():
            return folder / path
    return path
