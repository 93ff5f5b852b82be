"""The processes that prepare and record, seen from the parent.

A `Crew` has one preparer, which exports networks and knows PyTorch's answers, and one
worker for each runtime with its options, pinned before the runtime is imported. They
work one after another: nothing is prepared while something is timed. A process that
is lost costs the configuration under way and nothing else (`child.py`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lstm_trt import runtimes, store
from lstm_trt.child import Listener, Process, WorkerLost, memory_limit_bytes
from lstm_trt.configuration import Configuration, Protocol
from lstm_trt.errors import ConfigurationFailed, StoreError, UsageError
from lstm_trt.recording import describe_configuration
from lstm_trt.shapes import LstmShape
from lstm_trt.store import Failure, Recording

LOCK_FILE = ".lstm_trt.lock"


class Refused(StoreError):
    """The recording could not be written; the sweep must stop, since the next one cannot either."""


@dataclass
class Seconds:
    """Where the wall time of a sweep went."""

    preparing: float = 0.0
    timing: float = 0.0
    inside_trials: float = 0.0
    storing: float = 0.0

    def add(self, other: Seconds) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Outcome:
    """What became of one configuration: a file, or a failure row that was written."""

    path: Path
    failure: Failure | None
    seconds: Seconds
    warnings: list[str] = field(default_factory=list)


class Crew:
    """The processes of one campaign; a context manager that ends them all."""

    def __init__(self, time_limit_s: float | None = None, memory_limit: int | None = None) -> None:
        self.time_limit_s = time_limit_s
        self.memory_limit = memory_limit if memory_limit is not None else memory_limit_bytes()
        self._workers: dict[tuple, Process] = {}
        self._preparer: Process | None = None
        self._logs = tempfile.TemporaryDirectory(prefix="lstm_trt-")

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.end_workers()
        if self._preparer:
            self._preparer.kill()
        self._preparer = None
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
        key = (configuration.runtime, configuration.options)
        worker = self._workers.get(key)
        if worker is None or not worker.alive:
            name = f"{configuration.runtime}-{len(self._workers)}"
            worker = self._workers[key] = Process(configuration.options, Path(self._logs.name), name)
        return worker

    def record(
        self, configuration: Configuration, round: int, folder: Path, listener: Listener = lambda answer: None
    ) -> Outcome:
        """Record one configuration into `folder`, or write its failure row there.

        Raises `Refused` where neither can be written.
        """
        began = time.monotonic()
        marks: dict[str, float] = {}

        def listen(answer: dict) -> None:
            if answer["event"] == "stage":
                marks[answer["stage"]] = time.monotonic()
            listener(answer)

        limits = {"time_limit_s": self.time_limit_s, "memory_limit": self.memory_limit, "listener": listen}
        module, options = runtimes.load(configuration.runtime), configuration.options
        gate_seed = secrets.randbits(32)
        worker = self._worker(configuration)  # starts while the preparer works
        answer: dict = {}
        failure = None
        try:
            reference = self._prepare_process().call(
                {
                    "kind": "reference",
                    "shape": configuration.workload.as_dict(),
                    "seed": configuration.protocol.seed,
                    "gate_seed": gate_seed,
                    "onnx": module.NEEDS_ONNX,
                    "threads": options.threads,
                    # Rates are those of the processor's cores, in float32.
                    "floor": (options.device, options.precision) == ("cpu", "fp32"),
                },
                **limits,
            )
            answer = worker.call(
                {
                    "kind": "record",
                    "configuration": configuration.as_dict(),
                    "round": round,
                    "gate_seed": gate_seed,
                    "answers": reference["answers"],
                    "onnx_path": reference["onnx_path"],
                    "onnx_sha256": reference["onnx_sha256"],
                    "floor": reference["floor"],
                    "folder": str(folder),
                },
                **limits,
            )
        except ConfigurationFailed as error:
            detail = _without_paths(getattr(error, "detail", None) or "")
            failure = Failure(configuration, round, error.stage, str(error), {"detail": detail} if detail else {})
        ended = time.monotonic()
        if answer.get("event") == "refused":
            raise Refused(answer["reason"])
        path = store.write_failure(failure, folder) if failure else Path(answer["path"])
        # What failed counts as preparing up to the loop and as timing from there.
        run, stored = marks.get("run", ended), marks.get("store", ended)
        seconds = Seconds(
            preparing=run - began,
            timing=stored - run,
            inside_trials=answer.get("seconds", {}).get("inside_trials", 0.0),
            storing=time.monotonic() - stored,
        )
        return Outcome(path, failure, seconds, answer.get("warnings", []))


def _without_paths(text: str) -> str:
    """Tracebacks travel with recordings: folders of the machine do not."""
    return re.sub(r'File "[^"]*/([^/"]+/[^/"]+)"', r'File "\1"', text)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a folder for one campaign; raises `UsageError` where another process has it.

    The kernel lets go of the lock when its holder dies, however that happens.
    """
    path = folder / LOCK_FILE
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
                raise UsageError(
                    f"{folder} is in use by another sweep or recording (process {holder}):"
                    " wait for it, or choose another --out"
                ) from None
            # A file system without locks: go on without one.
        with suppress(OSError):  # a full disk; the lock holds all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def next_round(configuration: Configuration, folder: Path) -> int:
    """The first round that `folder` does not hold of this configuration."""
    recorded, failed = store.finished(folder)
    rounds = {round for identity, round in recorded | failed if identity == configuration.id}
    return max(rounds, default=-1) + 1


def record(
    shape: LstmShape,
    *,
    runtime: str = "onnxruntime",
    trials: int = 1000,
    warmup: int = 10,
    seed: int = 0,
    precision: str = "fp32",
    threads: int = 1,
    device: str | None = None,
    graph: bool = False,
    device_clocks: str = "off",
    out: str | os.PathLike | None = None,
    time_limit_s: float | None = None,
    listener: Listener = lambda answer: None,
) -> Recording:
    """Record one shape on one runtime in a fresh, pinned process.

    With `out` the recording stays there as a file, as a further round where the folder
    holds the configuration already. `listener` gets the process's answers (stages,
    progress). Raises `UsageError`, `RuntimeUnavailable`, or the `ConfigurationFailed`
    that tells stage and reason.
    """
    configuration = describe_configuration(
        shape,
        runtime,
        protocol=Protocol(trials=trials, warmup=warmup, seed=seed),
        precision=precision,
        threads=threads,
        device=device,
        graph=graph,
        device_clocks=device_clocks,
    )
    if time_limit_s is not None and not time_limit_s > 0:
        raise UsageError(f"the time limit must be above 0 s, not {time_limit_s:g}")
    with ExitStack() as stack:
        if out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lstm_trt-")))
        else:
            folder = store.make_folder(Path(out))
            stack.enter_context(folder_lock(folder))
        crew = stack.enter_context(Crew(time_limit_s))
        outcome = crew.record(configuration, next_round(configuration, folder), folder, listener)
        if outcome.failure:
            raise WorkerLost(outcome.failure.stage, f"{outcome.failure.stage}: {outcome.failure.reason}")
        return store.read(outcome.path)
