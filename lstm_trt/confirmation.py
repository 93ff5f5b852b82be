"""The largest network that meets a deadline, and the fresh recording that confirms it.

The best of many is picked: each MET is wrong with a probability of at most 1 - confidence, but of
many networks near the deadline the one that was lucky is the one that is chosen. A recording that
had no part in the choice is not chosen for its luck. The first one counts: who records until one
passes has picked again.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lstm_trt import runtimes
from lstm_trt.analysis.deadline import MET, Verdict, judge
from lstm_trt.configuration import Configuration
from lstm_trt.errors import UsageError
from lstm_trt.flags import flags_of
from lstm_trt.samples import Group, groups_of
from lstm_trt.shapes import LstmShape

#: What "largest" may mean, and what it is called.
SIZES = {"flops": "multiply-adds", "parameters": "parameters"}


def size_of(shape: LstmShape, by: str = "flops") -> int:
    """Multiply-adds of one forward pass (half of `flops`, which count both), or trained parameters."""
    if by not in SIZES:
        raise UsageError(f"unknown size {by!r}: choose from {', '.join(SIZES)}")
    return shape.flops // 2 if by == "flops" else shape.parameters


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
        if best is not None and size < best[0]:
            continue
        verdict = judge(group.samples, deadline_us, percentile, confidence)
        if verdict.verdict == MET and (best is None or (size, -verdict.max_us) > best):
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
        return self.verdict is not None and self.verdict.verdict == MET

    def words(self) -> str:
        """Several lines for people."""
        from lstm_trt.analysis.deadline_words import sentence

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
    from lstm_trt.campaign import find, project_folder

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
            folder = find(data)
        except UsageError:  # nothing was recorded there yet: the command says how
            folder = None
    fresh = _first_fresh(group, folder)
    if record and fresh is None:
        _record(configuration, folder)
        fresh = _first_fresh(group, folder)
    if fresh is None:
        return Confirmation(group, command)
    return Confirmation(group, command, fresh, judge(fresh.samples, deadline_us, percentile, confidence))


def record_command(configuration: Configuration, out: str | Path) -> str:
    """The shell line that records this configuration; what has its default value is left out."""
    if configuration.of_literature:
        from lstm_trt.literature.recording import command

        return command(configuration, out)
    flags = flags_of(configuration)
    if configuration.options.device == runtimes.load(configuration.runtime).DEVICES[0]:
        del flags["--device"]  # what the runtime chooses by itself
    words = [word for flag, values in flags.items() for word in (flag, *values)]
    return shlex.join(["lstm-trt", "record", *words, "--out", str(out)])


def _question(configuration: Configuration) -> dict:
    """What two recordings must have in common; their lengths may differ."""
    plain = configuration.as_dict()
    return plain | {
        "protocol": {name: value for name, value in plain["protocol"].items() if name not in ("trials", "for_s")}
    }


def _first_fresh(group: Group, folder: Path | None) -> Group | None:
    """The oldest recording in `folder` that asks the same on the same machine and began after all of the group."""
    from lstm_trt import store
    from lstm_trt.store import Recording

    if folder is None or not folder.exists():
        return None
    last = max((sample.started_unix_ns or 0 for sample in group.samples), default=0)
    machine, asked = group.samples[0].machine, _question(group.configuration)
    found = [
        item
        for item in store.read_many(folder)
        if isinstance(item, Recording)
        and _question(item.configuration) == asked
        and item.provenance.get("machine_fingerprint") == machine
        and item.provenance.get("started_unix_ns", 0) > last
    ]
    found.sort(key=lambda item: item.provenance["started_unix_ns"])
    return groups_of(found[:1])[0] if found else None


def _record(configuration: Configuration, folder: Path) -> None:
    from lstm_trt import processes
    from lstm_trt.recording import describe_configuration

    if configuration.of_literature:
        raise UsageError(
            f"{configuration.name} is a workload of the literature: {record_command(configuration, folder)}"
        )
    options, protocol = configuration.options, configuration.protocol
    chosen = {name: getattr(options, name) for name in ("precision", "threads", "device", "graph", "device_clocks")}
    here = describe_configuration(configuration.workload, configuration.runtime, protocol=protocol, **chosen)
    if _question(here) != _question(configuration):
        raise UsageError(
            f"{configuration.workload.name} was recorded on {configuration.device_name} with {configuration.runtime}"
            f" {configuration.runtime_version}, here is {here.device_name} with {here.runtime_version}"
            f" on cores {list(here.options.cores)}: record the sweep here first"
        )
    when = {name: getattr(protocol, name) for name in ("arrival", "wait", "period_us", "pause_ms", "warmup", "seed")}
    processes.record(
        configuration.workload, runtime=configuration.runtime, trials=protocol.trials, **when, **chosen, out=folder
    )
