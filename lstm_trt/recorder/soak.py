"""A soak test: records trials for a given time, as parts that are complete recordings.

One process records all parts after a single preparation. A part ends after ten seconds or
200 000 trials and is then written and freed, so memory use is bounded and a killed soak
loses only the current part. While a part is written nothing is timed; the next `settle`
trials are marked as warm-up. `start_ns` uses one origin for all parts, so the gaps between
them are visible. The control run follows the first part and extends the total time.

A soak resumes with the same command if it was interrupted: the remaining time is recorded
as a new round, since it is a new process.
"""

import os
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import count
from lstm_trt.config.workload import Workload
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.pool import WorkerPool, next_round, remarks
from lstm_trt.recorder.process import Listener
from lstm_trt.recorder.snapshot import Snapshot, State, snapshot_of, verdict_command, with_trials
from lstm_trt.store import files, folders
from lstm_trt.store.locks import folder_lock

PART_TRIALS = 200_000

#: The remaining time of an interrupted soak is at least this.
LEAST_S = 0.1


_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def seconds_of(text: str) -> float:
    """`3h`, `1h30m`, `90s` or `90` in seconds; raises `UsageError` for anything else."""
    if re.fullmatch(r"(?a)\d+(\.\d+)?", text):
        return float(text)
    if (
        not re.fullmatch(r"(?a)(\d+(\.\d+)?d)?(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?", text)
        or not text
    ):
        raise UsageError(f"write the duration as 3h, 1h30m, 90s or in seconds, not {text!r}")
    return sum(
        float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)([dhms])", text)
    )


def soak_protocol(for_s: float, protocol: Protocol | None = None) -> Protocol:
    """The protocol of a soak of `for_s` seconds: `trials` is the largest number in a part."""
    return replace(protocol or Protocol(), trials=PART_TRIALS, for_s=for_s)


@dataclass(frozen=True)
class Soak:
    """One completed round of a soak; `continues` is the interrupted round that it resumed."""

    configuration: Configuration
    folder: Path
    round: int
    paths: list[Path]
    trials: int
    continues: int | None
    control: dict | None
    clock: dict
    nan_reaches_output: bool | None
    warnings: list[str]

    @property
    def parts(self) -> int:
        """Number of its files, `paths`."""
        return len(self.paths)

    @cached_property
    def snapshot(self) -> Snapshot:
        """Its latencies as `watch` shows them."""
        whole = None
        for path in self.paths:
            whole = with_trials(whole, files.read(path, ("latency_ns", "warmup")).timed_ns)
        return snapshot_of(State.COMPLETE, whole, self.configuration, self.parts)

    def as_dict(self) -> dict:
        """JSON values."""
        names = ("round", "parts", "trials", "continues", "control", "clock", "nan_reaches_output")
        return {
            "folder": str(self.folder),
            "config_id": self.configuration.id,
            **{name: getattr(self, name) for name in names},
            "summary": self.snapshot.as_dict(),
        }

    def __str__(self) -> str:
        lines = [f"round {self.round}, {count(self.parts, 'part')}; {self.snapshot}"]
        lines += remarks(self.control, self.clock, self.nan_reaches_output)
        return "\n".join([*lines, verdict_command(self.folder)])


@dataclass(frozen=True)
class Rest:
    """What the next process has to record: round, duration, and the interrupted round with its
    elapsed time."""

    round: int
    asked_s: float
    continues: int | None = None
    elapsed_s: float = 0.0


def rest_of(configuration: Configuration, folder: Path) -> Rest:
    """A new soak, or the remaining part of the last soak in `folder` if it was interrupted."""
    number = next_round(configuration, folder)
    whole_s = configuration.protocol.for_s or 0.0
    rounds = {
        key[1]: parts
        for key, parts in folders.contents(folder).parts.items()
        if key[0] == configuration.id
    }
    if rounds:
        latest = max(rounds)
        part = folders.read_part(list(rounds[latest].values())[-1], ()).provenance["soak"]
        if not part["last"]:
            return Rest(
                number, max(LEAST_S, part["asked_s"] - part["elapsed_s"]), latest, part["elapsed_s"]
            )
    return Rest(number, whole_s)


def soak(  # noqa: PLR0913
    workload: Workload,
    for_s: float,
    runtime: str | None = None,
    protocol: Protocol | None = None,
    options: Options | None = None,
    *,
    out: str | os.PathLike,
    mode: str | None = None,
    control: bool = True,
    wait: bool | float = True,
    listener: Listener = lambda message: None,
) -> Soak:
    """Record one workload for `for_s` seconds into `out` in a fresh, pinned process; other
    arguments as in `record`.

    `protocol.trials` is replaced by `PART_TRIALS`, the largest number of trials per part.
    `listener` also gets `{"event": "rest", ...}` if an interrupted soak is resumed. Raises what
    `record` raises; the parts written so far are kept.
    """
    configuration = describe(workload, runtime, soak_protocol(for_s, protocol), options, mode)
    folder = files.make_folder(Path(out))
    with folder_lock(folder), WorkerPool(wait=wait, single=True) as pool:
        damaged = [
            f"{path.name} was damaged and has been moved aside" for path in folders.tidy(folder)
        ]
        rest = rest_of(configuration, folder)
        if rest.continues is not None:
            listener({"event": "rest", **rest.__dict__})
        outcome = pool.record_configuration(
            configuration, rest.round, folder, listener, control=control, asked_s=rest.asked_s
        )
        outcome.check()
        paths = list(folders.contents(folder).parts[configuration.id, rest.round].values())
        first = files.read(paths[0], ()).provenance
    return Soak(
        configuration,
        folder,
        rest.round,
        paths,
        outcome.written.trials if outcome.written else 0,
        rest.continues,
        first["control"],
        first["clock"],
        first["parity"]["nan_reaches_output"],
        [*damaged, *outcome.warnings],
    )
