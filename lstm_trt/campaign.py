"""What a notebook draws from: recordings that ship, or a grid recorded here and now.

A notebook says which shapes and runtimes it is about; `load` brings their rows, from a
folder of recordings or, with `record=True`, from this machine, where it first records
whatever its own folder does not hold yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lstm_trt import store
from lstm_trt.configuration import Protocol
from lstm_trt.errors import UsageError
from lstm_trt.recording import describe_configuration
from lstm_trt.samples import Group, groups_of
from lstm_trt.shapes import AXES, Grid
from lstm_trt.store import Failure, Recording
from lstm_trt.tables import frames

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Campaign:
    """Recordings and failures of some shapes, and where they came from."""

    items: tuple[Recording | Failure, ...]
    source: Path

    @property
    def summary(self) -> pd.DataFrame:
        """One row a configuration and round."""
        return self._frames[0]

    @property
    def trials(self) -> pd.DataFrame:
        """One row a trial, with config_id and round."""
        return self._frames[1]

    @cached_property
    def groups(self) -> list[Group]:
        """What the analysis of tails and deadlines works on: a group a configuration and machine, a sample a round."""
        return groups_of(self.items)

    @property
    def controls(self) -> dict[str, np.ndarray]:
        """config_id -> latencies in ns of the control runs of all its rounds; only what has them."""
        parts: dict[str, list[np.ndarray]] = {}
        for group in self.groups:
            found = [sample.control_ns for sample in group.samples if sample.control_ns is not None]
            if found:
                parts.setdefault(group.configuration.id, []).extend(found)
        return {identity: np.concatenate(found) for identity, found in parts.items()}

    @cached_property
    def _frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        return frames(self.items)

    def select(self, *, runtimes: Iterable[str] = (), trials: int | None = None, **axes: Iterable[int]) -> Campaign:
        """Only these runtimes, this number of trials, and these values of the axes; what is not named stays.

        Raises `UsageError` for an unknown axis, and where nothing is left.
        """
        unknown = axes.keys() - set(AXES)
        if unknown:
            raise UsageError(f"unknown axis {', '.join(sorted(unknown))}: choose from {', '.join(AXES)}")
        wanted = {axis: set(values) for axis, values in axes.items()}
        runtimes = set(runtimes)

        def matches(item: Recording | Failure) -> bool:
            configuration = item.configuration
            return (
                all(getattr(configuration.workload, axis) in values for axis, values in wanted.items())
                and (not runtimes or configuration.runtime in runtimes)
                and (trials is None or configuration.protocol.trials == trials)
            )

        items = tuple(filter(matches, self.items))
        if not items:
            asked = ", ".join(f"{axis} {sorted(values)}" for axis, values in wanted.items())
            told = f"{' and '.join(sorted(runtimes)) or 'any runtime'}, {trials or 'any number of'} trials, {asked}"
            raise UsageError(f"{self.source} holds nothing of {told}: set record = True to record it here")
        return Campaign(items, self.source)

    def describe(self) -> str:
        """What it holds, in a line for people."""
        recordings = [item for item in self.items if isinstance(item, Recording)]
        failures = len(self.items) - len(recordings)
        devices = sorted({item.configuration.device_name for item in self.items})
        systems = sorted({f"{item.configuration.runtime} {item.configuration.runtime_version}" for item in self.items})
        counts = sorted({len(recording.timed_ns) for recording in recordings})
        told = [f"{len(recordings)} recordings of {' or '.join(map(str, counts))} trials"] if recordings else []
        told += [f"{failures} failures"] if failures else []
        return f"{', '.join(told)}; {', '.join(systems)}; on {', '.join(devices)}; from {self.source.name}"


def find(path: str | Path) -> Path:
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


def load(
    data: str | Path | Sequence[str | Path],
    *,
    record: bool = False,
    out: str | Path | None = None,
    grids: Sequence[Mapping[str, Sequence[int]]],
    runtimes: Sequence[str] = ("onnxruntime",),
    trials: int | None = 1000,
    rounds: int = 1,
    arrivals: Sequence[Mapping[str, object]] | None = ({},),
    control: bool = False,
    show_progress: bool = True,
) -> Campaign:
    """The recordings of `grids` (each: axis -> values, as `Grid` has them) on `runtimes`.

    `data` is a folder or file of recordings, or several of them. `arrivals` are what `Protocol`
    has of arrivals, a closed loop if not given; with None, what there is. `trials` None takes
    recordings of any length. With `record` they are recorded here first, into
    `out`, which goes on where it was; `control` adds a control run of an empty step to each.
    Raises `UsageError` for names and sizes that mean nothing and where there is nothing.
    """
    if not isinstance(data, str | Path) and not data:
        raise UsageError("data names no folder of recordings")
    wanted = [Grid(**{axis: tuple(values) for axis, values in grid.items()}) for grid in grids]
    protocols = [Protocol(trials=trials or 1000, **one) for one in arrivals or [{}]]
    if record:
        configurations = [
            describe_configuration(shape, runtime, protocol=protocol)
            for grid in wanted
            for shape in grid
            for runtime in runtimes
            for protocol in protocols
        ]
        from lstm_trt.sweep import run_sweep

        source = project_folder(out or "data/local/notebooks")
        report = run_sweep(configurations, source, rounds=rounds, control=control, show_progress=show_progress)
        print("\n".join(report.lines()))
        if report.stopped:
            raise UsageError("stopped; run the cell again to go on")
        keys = {configuration.id for configuration in configurations}
        items = tuple(item for item in store.read_many(source) if item.configuration.id in keys)
        return Campaign(items, source)
    sources = [find(path) for path in ([data] if isinstance(data, str | Path) else data)]
    source = sources[0]
    shapes = {shape for grid in wanted for shape in grid}
    unique = {(item.configuration.id, item.round): item for path in sources for item in store.read_many(path)}
    everything = Campaign(tuple(unique.values()), source)
    found = everything.select(runtimes=runtimes, trials=trials)
    items = tuple(
        item
        for item in found.items
        if item.configuration.workload in shapes
        and (arrivals is None or any(_arrives_alike(item.configuration.protocol, protocol) for protocol in protocols))
    )
    if not items:
        told = "shapes" if not any(arrivals or ()) else "shapes with such arrivals"
        raise UsageError(f"{source} holds none of these {told}: set record = True to record them here")
    return Campaign(items, source)


def _arrives_alike(one: Protocol, other: Protocol) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ("arrival", "wait", "period_us", "pause_ms"))
