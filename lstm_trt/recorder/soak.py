"""A soak test: records trials for a given time, as parts that are complete recordings.

One process records all parts after a single preparation. A part ends after ten seconds or
200 000 trials and is then written and freed, so memory use is bounded and a killed soak
loses only the current part. While a part is written nothing is timed; the next `settle`
trials are marked as warm-up. `start_ns` uses one origin for all parts, so the gaps between
them are visible. The control run follows the first part and extends the total time.

A soak resumes with the same command if it was interrupted: the remaining time is recorded
as a new round, since it is a new process.
"""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from lstm_trt.config.configuration import Configuration, Options, Protocol, warnings_of
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import count
from lstm_trt.config.workload import Workload
from lstm_trt.recorder.control import control_text
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.loop import Loop, clock_text
from lstm_trt.recorder.parity import nan_text
from lstm_trt.recorder.pool import WorkerPool, next_round
from lstm_trt.recorder.prepare import control_of, prepare
from lstm_trt.recorder.process import Listener
from lstm_trt.recorder.watch import LatencyHistogram, Snapshot, State, snapshot_of, verdict_command
from lstm_trt.store import files, folders
from lstm_trt.store.locks import folder_lock

PART_TRIALS = 200_000

PART_S = 10.0

#: The remaining time of an interrupted soak is at least this.
LEAST_S = 0.1


_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def seconds_of(text: str) -> float:
    """`3h`, `1h30m`, `90s` or `90` in seconds; raises `UsageError` for anything else."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not re.fullmatch(r"(\d+(\.\d+)?d)?(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?", text) or not text:
        raise UsageError(f"write the duration as 3h, 1h30m, 90s or in seconds, not {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)([dhms])", text))


def soak_protocol(for_s: float, protocol: Protocol | None = None) -> Protocol:
    """The protocol of a soak of `for_s` seconds: `trials` is the largest number of trials per part."""
    return replace(protocol or Protocol(), trials=PART_TRIALS, for_s=for_s)


def soak_here(
    configuration: Configuration,
    reference: Mapping,
    *,
    round: int,
    folder: Path,
    asked_s: float,
    control: bool = False,
    stage: Callable[[str], None] = lambda name: None,
    progress: Callable[..., None] = lambda **values: None,
    part_s: float = PART_S,
) -> dict:
    """Record parts in this process for `asked_s` seconds; returns the worker's result message.

    `progress(elapsed_s, asked_s, trials, parts)` is called after each block. Raises what
    `record_here` and `store.write` raise; the parts written so far are kept.
    """
    import pyarrow.parquet  # noqa: F401  imported now, so that writing the first part does not take longer

    protocol = configuration.protocol
    done = {"path": "", "parts": 0, "trials": 0, "warnings": []}
    totals = dict.fromkeys(("timing", "inside_trials", "control", "store"), 0.0)
    rows = wall_ns = 0
    with prepare(configuration, reference, stage) as run:
        loop = Loop(run.step.step, protocol, **run.loop)
        clock = time.perf_counter_ns
        origin = loop.first_pair.monotonic_ns
        end = origin + int(1e9 * asked_s)
        marked, last = protocol.warmup, False
        while not last:
            began, timed = clock(), 0
            part_end = min(end, began + int(1e9 * part_s))
            while True:
                timed += loop.run(marked, protocol.trials - timed, max(0, part_end - clock()))
                marked, now = protocol.settle, clock()
                elapsed_s = asked_s - (end - now) / 1e9
                progress(elapsed_s=elapsed_s, asked_s=asked_s, trials=done["trials"] + timed, parts=done["parts"])
                if now >= part_end or timed >= protocol.trials:
                    break
            done["trials"] += timed
            trials = loop.trials(origin)
            gpu_after, controlled, control_s = run.gpu_state(), None, 0.0
            if control and done["parts"] == 0:
                controlled = control_of(trials, protocol)
                control_s = (clock() - now) / 1e9
                end += int(1e9 * control_s)
            last = clock() >= end
            soak = {"part": done["parts"], "last": last, "asked_s": asked_s, "elapsed_s": elapsed_s}
            recording = run.recording(
                trials,
                round,
                (now - began) / 1e9,
                controlled,
                control_s,
                done["parts"],
                gpu_after=gpu_after,
                soak=soak,
            )
            writing = clock()
            done["path"] = str(files.write(recording, folder))
            done["parts"] += 1
            rows, wall_ns = rows + loop.rows, wall_ns + trials.wall_ns
            totals["timing"] += (now - began) / 1e9
            totals["inside_trials"] += trials.inside_ns / 1e9
            totals["store"] += (clock() - writing) / 1e9
            totals["control"] += control_s
            del recording, trials, controlled
            gc.collect()  # automatic collection is disabled, possibly for hours
            if not last:
                loop.restart()
        stage("store")
        del loop  # it holds the step, which must be freed before the runtime leaves the device
    done["warnings"] = warnings_of(protocol, rows, 1e9 * totals["inside_trials"], wall_ns)
    return {**done, "seconds": totals}


@dataclass(frozen=True)
class Soak:
    """One completed round of a soak; `continues` is the interrupted round that it resumed, if any."""

    configuration: Configuration
    folder: Path
    round: int
    parts: int
    trials: int
    continues: int | None
    control: dict | None
    clock: dict
    nan_reaches_output: bool | None
    warnings: list[str]

    @property
    def paths(self) -> list[Path]:
        """The files of its parts."""
        return list(folders.contents(self.folder).parts[self.configuration.id, self.round].values())

    @cached_property
    def snapshot(self) -> Snapshot:
        """Its latencies as `watch` shows them."""
        histogram = LatencyHistogram()
        for path in self.paths:
            histogram.add(files.read(path, ("latency_ns", "warmup")).timed_ns)
        return snapshot_of(State.COMPLETE, histogram, self.configuration, self.parts)

    def as_dict(self) -> dict:
        """JSON values."""
        return {
            "folder": str(self.folder),
            "config_id": self.configuration.id,
            "round": self.round,
            "parts": self.parts,
            "trials": self.trials,
            "continues": self.continues,
            "summary": self.snapshot.as_dict(),
            "control": self.control,
            "clock": self.clock,
            "nan_reaches_output": self.nan_reaches_output,
        }

    def __str__(self) -> str:
        lines = [f"round {self.round}, {count(self.parts, 'part')}; {self.snapshot}"]
        lines += [control_text(self.control) if self.control else "", clock_text(self.clock)]
        lines += [nan_text(self.nan_reaches_output) * (self.nan_reaches_output is False)]
        return "\n".join([*filter(None, lines), verdict_command(self.folder)])


@dataclass(frozen=True)
class Rest:
    """What the next process has to record: round, duration, and the interrupted round with its elapsed time."""

    round: int
    asked_s: float
    continues: int | None = None
    elapsed_s: float = 0.0


def rest_of(configuration: Configuration, folder: Path) -> Rest:
    """A new soak, or the remaining part of the last soak in `folder` if it was interrupted."""
    number, whole_s = next_round(configuration, folder), configuration.protocol.for_s
    rounds = {key[1]: parts for key, parts in folders.contents(folder).parts.items() if key[0] == configuration.id}
    if not rounds:
        return Rest(number, whole_s)
    latest = max(rounds)
    part = files.read(list(rounds[latest].values())[-1], ()).provenance["soak"]
    if part["last"]:
        return Rest(number, whole_s)
    return Rest(number, max(LEAST_S, part["asked_s"] - part["elapsed_s"]), latest, part["elapsed_s"])


def soak(
    workload: Workload,
    for_s: float,
    runtime: str | None = None,
    protocol: Protocol | None = None,
    options: Options | None = None,
    *,
    out: str | os.PathLike,
    mode: str | None = None,
    control: bool = True,
    wait: bool = True,
    listener: Listener = lambda message: None,
) -> Soak:
    """Record one workload for `for_s` seconds into `out` in a fresh, pinned process; other arguments as in `record`.

    `protocol.trials` is replaced by `PART_TRIALS`, the largest number of trials per part. `listener` also gets
    `{"event": "rest", ...}` if an interrupted soak is resumed.
    Raises what `record` raises; the parts written so far are kept.
    """
    configuration = describe(workload, runtime, soak_protocol(for_s, protocol), options, mode)
    folder = files.make_folder(Path(out))
    with folder_lock(folder), WorkerPool(wait=wait, single=True) as pool:
        damaged = [f"{path.name} was damaged and has been moved aside" for path in folders.tidy(folder)]
        rest = rest_of(configuration, folder)
        if rest.continues is not None:
            listener({"event": "rest", **rest.__dict__})
        outcome = pool.record(configuration, rest.round, folder, listener, control=control, asked_s=rest.asked_s)
        outcome.check()
        parts = list(folders.contents(folder).parts[configuration.id, rest.round].values())
        first = files.read(parts[0], ()).provenance
    return Soak(
        configuration,
        folder,
        rest.round,
        len(parts),
        outcome.message["trials"],
        rest.continues,
        first["control"],
        first["clock"],
        first["parity"]["nan_reaches_output"],
        [*damaged, *outcome.warnings],
    )
