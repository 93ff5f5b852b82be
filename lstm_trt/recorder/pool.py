"""The processes that prepare and record, seen from the parent.

A `WorkerPool` has one preparing process, which exports networks and knows PyTorch's answers, and one
worker for each runtime with its options, pinned before the runtime is imported. They
work one after another: nothing is prepared while something is timed. A process that
is lost costs the configuration under way and nothing else (`process.py`).
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lstm_trt.config.configuration import Configuration, Options, Protocol, canonical_json
from lstm_trt.config.errors import ConfigurationFailed, StoreError, UsageError
from lstm_trt.config.workload import Workload
from lstm_trt.recorder.process import SILENCE_LIMIT_S, Interpreter, Listener, Process, WorkerLost, memory_limit_bytes
from lstm_trt.recorder.session import describe
from lstm_trt.runtimes.base import preparer_of
from lstm_trt.store import files, folders
from lstm_trt.store.locks import folder_lock
from lstm_trt.store.schema import Failure, Recording

#: Shared references that are kept for further runtimes; one can have 256 MB.
ANSWERS_KEPT_BYTES = 600_000_000


class Refused(StoreError):
    """The recording could not be written; the sweep must stop, since the next one cannot either."""


@dataclass
class Seconds:
    """Where the wall time of a sweep went."""

    preparing: float = 0.0
    timing: float = 0.0
    inside_trials: float = 0.0
    control: float = 0.0
    storing: float = 0.0

    def add(self, other: Seconds) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Outcome:
    """What became of one configuration: a file, or a failure row that was written; `answer` is the worker's last."""

    path: Path
    failure: Failure | None
    seconds: Seconds
    answer: dict = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        return self.answer.get("warnings", [])

    def check(self) -> None:
        """Raises `WorkerLost` where it failed."""
        if self.failure:
            raise WorkerLost(self.failure.stage, f"{self.failure.stage}: {self.failure.reason}")


class WorkerPool:
    """The processes of one campaign; a context manager that ends them all.

    `interpreters`: the Python of a configuration's worker by the configuration's id, where it is not this one.
    """

    def __init__(
        self,
        time_limit_s: float | None = None,
        memory_limit: int | None = None,
        interpreters: Mapping[str, Interpreter] | None = None,
    ) -> None:
        self._interpreters = dict(interpreters or {})
        self.time_limit_s = time_limit_s
        self.memory_limit = memory_limit if memory_limit is not None else memory_limit_bytes()
        self._workers: dict[tuple, Process] = {}
        self._preparer: Process | None = None
        self._references: dict[str, dict] = {}
        self._logs = tempfile.TemporaryDirectory(prefix="lstm_trt-")

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end_workers()
        if self._preparer:
            self._preparer.kill()
        self._logs.cleanup()

    def end_workers(self) -> None:
        """End the workers, so that the next round has fresh ones; the preparer stays."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _prepare_process(self) -> Process:
        if self._preparer is None or not self._preparer.alive:
            self._preparer = Process(None, Path(self._logs.name), "preparer")
        return self._preparer

    def _worker(self, configuration: Configuration) -> Process:
        interpreter = self._interpreters.get(configuration.id)
        key = (configuration.runtime, configuration.options, interpreter)
        worker = self._workers.get(key)
        if worker is None or not worker.alive:
            name = f"{configuration.runtime}-{len(self._workers)}"
            worker = self._workers[key] = Process(configuration.options, Path(self._logs.name), name, interpreter)
        return worker

    def record(
        self,
        configuration: Configuration,
        round: int,
        folder: Path,
        listener: Listener = lambda answer: None,
        *,
        control: bool = False,
        asked_s: float | None = None,
    ) -> Outcome:
        """Record one configuration into `folder`, or write its failure row there.

        `control`: with a control run. `asked_s`: how long a recording by time goes on.
        Raises `Refused` where neither can be written.
        """
        began = time.monotonic()
        loop_began: float | None = None

        def listen(answer: dict) -> None:
            nonlocal loop_began
            if answer == {"event": "stage", "stage": "run"}:
                loop_began = time.monotonic()
            listener(answer)

        limits = {
            "time_limit_s": self.time_limit_s,
            "memory_limit": self.memory_limit,
            "listener": listen,
            "silence_s": silence_limit_s(configuration.protocol),
        }
        answer: dict = {}
        failure = None
        job = {
            "kind": "record",
            "configuration": configuration.as_dict(),
            "round": round,
            "folder": str(folder),
            "control": control,
            "asked_s": asked_s,
        }
        try:
            preparer = preparer_of(configuration.workload)
            preparer.check(configuration)
            if preparer.FRESH_PROCESS:
                self.end_workers()
            worker = self._worker(configuration)  # starts while the reference is made
            make = self._shared_reference if preparer.SHARED_REFERENCE else self._reference
            job["reference"] = make(configuration, limits)
            answer = worker.call(job, **limits)
            if not preparer.SHARED_REFERENCE:
                Path(job["reference"]["answers_path"]).unlink()
        except ConfigurationFailed as error:
            detail = _without_paths(getattr(error, "detail", ""))
            failure = Failure(configuration, round, error.stage, str(error), {"detail": detail} if detail else {})
        ended = time.monotonic()
        if answer.get("event") == "refused":
            raise Refused(answer["reason"])
        path = files.write_failure(failure, folder) if failure else Path(answer["path"])
        # What failed counts as preparing up to the loop and as timing from there. Of what was recorded
        # the worker knows it better: on a busy machine its answers are read late.
        known = answer.get("seconds", {})
        timing = known.get("timing", ended - (loop_began or ended))
        control_s = known.get("control", 0.0) if control else 0.0
        storing = known.get("store", time.monotonic() - ended)
        preparing = ended - began - timing - control_s - known.get("store", 0.0)
        seconds = Seconds(preparing, timing, known.get("inside_trials", 0.0), control_s, storing)
        return Outcome(path, failure, seconds, answer)

    def _reference(self, configuration: Configuration, limits: dict) -> dict:
        """What the preparing process answers for a configuration, with the gate's seed and the file of its answers."""
        path = Path(self._logs.name) / f"answers-{secrets.token_hex(8)}.npy"
        asked = {"gate_seed": secrets.randbits(32), "answers_path": str(path)}
        job = {"kind": "reference", "configuration": configuration.as_dict(), **asked}
        return self._prepare_process().call(job, **limits)["reference"]

    def _shared_reference(self, configuration: Configuration, limits: dict) -> dict:
        """The reference that serves all runtimes of a workload; as many are kept as `ANSWERS_KEPT_BYTES` allow."""
        plain = configuration.as_dict()
        key = canonical_json([plain["workload"], plain["mode"], configuration.protocol.seed])
        found = self._references.pop(key, None) or self._reference(configuration, limits)
        self._references[key] = found  # the last one used is the last one
        size = {name: Path(kept["answers_path"]).stat().st_size for name, kept in self._references.items()}
        for name in list(size)[:-1]:
            if sum(size.values()) <= ANSWERS_KEPT_BYTES:
                break
            Path(self._references.pop(name)["answers_path"]).unlink()
            del size[name]
        return found


def check_limits(time_limit_s: float | None, rounds: int = 1) -> None:
    """Raises `UsageError` where there would be no round, or no time for one."""
    if rounds < 1:
        raise UsageError(f"rounds must be at least 1, not {rounds}")
    if time_limit_s is not None and not time_limit_s > 0:
        raise UsageError(f"the time limit must be above 0 s, not {time_limit_s:g}")


def silence_limit_s(protocol: Protocol) -> float:
    """How long a worker may be silent: the calls of the first block come before its first sign of life."""
    return SILENCE_LIMIT_S + protocol.gap_s * (max(protocol.warmup, protocol.settle) + 1)


def _without_paths(text: str) -> str:
    """Tracebacks travel with recordings: folders of the machine do not."""
    return re.sub(r'File "[^"]*/([^/"]+/[^/"]+)"', r'File "\1"', text)


def next_round(configuration: Configuration, folder: Path) -> int:
    """The first round that `folder` does not hold of this configuration."""
    recorded, failed = folders.finished(folder)
    rounds = {round for identity, round in recorded | failed if identity == configuration.id}
    return max(rounds, default=-1) + 1


def record(
    workload: Workload,
    runtime: str = "onnxruntime",
    protocol: Protocol | None = None,
    options: Options | None = None,
    *,
    mode: str | None = None,
    control: bool = True,
    out: str | os.PathLike | None = None,
    time_limit_s: float | None = None,
    listener: Listener = lambda answer: None,
) -> Recording:
    """Record one workload on one runtime in a fresh, pinned process.

    `control` adds a control run of an empty step. With `out` the recording stays there as a file, as a
    further round where the folder holds the configuration already. `listener` gets the
    process's answers (stages, progress). Raises `UsageError`, `RuntimeUnavailable`, or the
    `ConfigurationFailed` that tells stage and reason.
    """
    configuration = describe(workload, runtime, protocol, options, mode)
    return record_configuration(configuration, control=control, out=out, time_limit_s=time_limit_s, listener=listener)


def record_configuration(
    configuration: Configuration,
    *,
    control: bool = True,
    out: str | os.PathLike | None = None,
    time_limit_s: float | None = None,
    listener: Listener = lambda answer: None,
) -> Recording:
    """Record one configuration in a fresh, pinned process; `out`, `listener` and what is raised as with `record`."""
    check_limits(time_limit_s)
    with ExitStack() as stack:
        if out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lstm_trt-")))
        else:
            folder = files.make_folder(Path(out))
            stack.enter_context(folder_lock(folder))
        pool = stack.enter_context(WorkerPool(time_limit_s))
        number = next_round(configuration, folder)
        outcome = pool.record(configuration, number, folder, listener, control=control)
        outcome.check()
        return files.read(outcome.path)
