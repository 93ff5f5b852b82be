"""The largest network that meets a deadline, and the fresh recording that confirms it.

The best of many is picked: each MET is wrong with a probability of at most 1 - confidence, but of
many networks near the deadline the one that was lucky is the one that is chosen. A recording that
had no part in the choice is not chosen for its luck. The first one counts: who records until one
passes has picked again.

What a notebook draws from: recordings that ship, or a grid recorded here and now.

A notebook says which shapes and runtimes it is about; `load` brings their rows, from a
folder of recordings or, with `record=True`, from this machine, where it first records
whatever its own folder does not hold yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lstm_trt.analysis.deadline import Verdict, judge
from lstm_trt.analysis.outcomes import Outcome
from lstm_trt.analysis.summary import frames
from lstm_trt.config.configuration import Configuration, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.labels import record_command
from lstm_trt.config.shape import Grid
from lstm_trt.config.workload import AXES, Workload
from lstm_trt.recorder.session import describe
from lstm_trt.store import folders
from lstm_trt.store.folders import find_folder, project_folder
from lstm_trt.store.samples import Group, groups_of
from lstm_trt.store.schema import Failure, Recording

if TYPE_CHECKING:
    import pandas as pd


#: What "largest" may mean, and what it is called.
SIZES = {"flops": "multiply-adds", "parameters": "parameters"}


def size_of(workload: Workload, by: str = "flops") -> int | None:
    """Multiply-adds of one forward pass (half of `flops`), or trained parameters; None where they are not known."""
    if by not in SIZES:
        raise UsageError(f"unknown size {by!r}: choose from {', '.join(SIZES)}")
    flops, parameters = workload.flops, workload.parameters
    return parameters if by == "parameters" else flops and flops // 2


def largest_that_meets(
    groups: Sequence[Group],
    deadline_us: float,
    percentile: str | float = "99.9",
    confidence: float = 0.95,
    by: str = "flops",
) -> Group | None:
    """The group with the largest network, by multiply-adds of one answer, whose verdict is MET; None where none is.

    Among equals the one with the smallest maximum.
    """
    best: tuple[int, float] | None = None
    found = None
    for group in groups:
        if group.configuration is None or not group.n:
            continue
        size = size_of(group.configuration.workload, by)
        if size is None:
            continue
        if best is not None and size < best[0]:
            continue
        verdict = judge(group.samples, deadline_us, percentile, confidence)
        if verdict.verdict == Outcome.MET and (best is None or (size, -verdict.max_us) > best):
            best, found = (size, -verdict.max_us), group
    return found


@dataclass(frozen=True)
class Confirmation:
    """The command of a fresh recording of `group`, and what it showed where there is one."""

    group: Group
    command: str
    fresh: Group | None = None
    verdict: Verdict | None = None

    @property
    def confirmed(self) -> bool:
        return self.verdict is not None and self.verdict.verdict == Outcome.MET

    def words(self) -> str:
        """Several lines for people."""
        from lstm_trt.analysis.text import sentence

        if self.verdict is None:
            told = ["Not confirmed yet: there is no recording of it that had no part in the choice. To record one:"]
        else:
            head = "Confirmed" if self.confirmed else "NOT confirmed"
            told = [f"{head} by a recording that had no part in the choice. {sentence(self.verdict)}"]
            told.append("It was recorded by:")
        return "\n".join([*told, f"  {self.command}"])


def confirm(
    group: Group,
    deadline_us: float,
    percentile: str | float = "99.9",
    confidence: float = 0.95,
    *,
    data: str | Path | None = None,
    record: bool = False,
    out: str | Path = "data/local/confirm",
) -> Confirmation:
    """Judge the first recording of this configuration that is younger than those of `group`.

    It is sought in `data`; with `record` in `out`, where it is made if there is none. It has as many
    trials as the group. Raises `UsageError` for a group from elsewhere, and where a recording made
    here would be of another machine or version.
    """

    if group.configuration is None or not group.n:
        raise UsageError(f"{group.name or 'this'} was not recorded by this lab: it cannot be recorded afresh")
    configuration = replace(
        group.configuration, protocol=replace(group.configuration.protocol, trials=group.n, for_s=None)
    )
    command = record_command(configuration, out)
    folder = None
    if record:
        folder = project_folder(out)
    elif data is not None:
        try:
            folder = find_folder(data)
        except UsageError:  # nothing was recorded there yet: the command says how
            folder = None
    fresh = _first_fresh(group, folder)
    if record and fresh is None:
        _record(configuration, folder)
        fresh = _first_fresh(group, folder)
    if fresh is None:
        return Confirmation(group, command)
    return Confirmation(group, command, fresh, judge(fresh.samples, deadline_us, percentile, confidence))


def _question(configuration: Configuration) -> dict:
    """What two recordings must have in common; their lengths may differ."""
    plain = configuration.as_dict()
    return plain | {
        "protocol": {name: value for name, value in plain["protocol"].items() if name not in ("trials", "for_s")}
    }


def _first_fresh(group: Group, folder: Path | None) -> Group | None:
    """The oldest recording in `folder` that asks the same on the same machine and began after all of the group."""
    from lstm_trt.store import folders
    from lstm_trt.store.schema import Recording

    if folder is None or not folder.exists():
        return None
    last = max((sample.started_unix_ns or 0 for sample in group.samples), default=0)
    machine, asked = group.samples[0].machine, _question(group.configuration)
    found = [
        item
        for item in folders.read_many(folder)
        if isinstance(item, Recording)
        and _question(item.configuration) == asked
        and item.provenance.get("machine_fingerprint") == machine
        and item.provenance.get("started_unix_ns", 0) > last
    ]
    found.sort(key=lambda item: item.provenance["started_unix_ns"])
    return groups_of(found[:1])[0] if found else None


def _record(configuration: Configuration, folder: Path) -> None:
    from lstm_trt.recorder import pool

    own = configuration.workload.command(configuration, folder)
    if own is not None:
        raise UsageError(f"{configuration.name} is recorded by a command of its own: {own}")
    workload, runtime, protocol = configuration.workload, configuration.runtime, configuration.protocol
    options = replace(configuration.options, cores=())
    here = describe(workload, runtime, protocol, options)
    if _question(here) != _question(configuration):
        raise UsageError(
            f"{configuration.name} was recorded on {configuration.device_name} with {configuration.runtime}"
            f" {configuration.runtime_version}, here is {here.device_name} with {here.runtime_version}"
            f" on cores {list(here.options.cores)}: record the sweep here first"
        )
    pool.record(workload, runtime, protocol, options, out=folder)


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
            describe(shape, runtime, protocol)
            for grid in wanted
            for shape in grid
            for runtime in runtimes
            for protocol in protocols
        ]
        from lstm_trt.recorder.sweep import run_sweep

        source = project_folder(out or "data/local/notebooks")
        report = run_sweep(configurations, source, rounds=rounds, control=control, show_progress=show_progress)
        print("\n".join(report.lines()))
        if report.stopped:
            raise UsageError("stopped; run the cell again to go on")
        keys = {configuration.id for configuration in configurations}
        items = tuple(item for item in folders.read_many(source) if item.configuration.id in keys)
        return Campaign(items, source)
    sources = [find_folder(path) for path in ([data] if isinstance(data, str | Path) else data)]
    source = sources[0]
    shapes = {shape for grid in wanted for shape in grid}
    unique = {(item.configuration.id, item.round): item for path in sources for item in folders.read_many(path)}
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
