"""The processes that prepare and record, seen from the parent.

A `Crew` has one preparer, which exports networks and knows PyTorch's answers, and one
worker for each runtime with its options, pinned before the runtime is imported. They
work one after another: nothing is prepared while something is timed. The parent
sleeps meanwhile, and wakes four times a second to look at the worker's memory and the
clock. A process that dies, hangs or grows too large costs the configuration under
way and nothing else.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lstm_trt import runtimes, store
from lstm_trt.configuration import Configuration, Options, Protocol
from lstm_trt.errors import STAGES, ConfigurationFailed, MemoryExhausted, StoreError, TimeLimitReached, UsageError
from lstm_trt.recording import THREAD_ENVIRONMENT, describe_configuration
from lstm_trt.shapes import LstmShape
from lstm_trt.store import Failure, Recording

LOCK_FILE = ".lstm_trt.lock"
POLL_S = 0.25
#: A process that gives no sign of life for this long hangs. A recording gives one every
#: block, so that a long one is not taken for that.
SILENCE_LIMIT_S = 600.0
#: Share of the memory available at the start that a worker may hold.
MEMORY_SHARE = 0.8

Listener = Callable[[dict], None]


def available_memory_bytes() -> int | None:
    """What the system could give without swapping, at most the cgroup's limit; None where unknown."""
    available = None
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limit = int(Path(path).read_text())
            available = limit if available is None else min(available, limit)
    return available


def memory_limit_bytes() -> int | None:
    """`MEMORY_SHARE` of the available memory."""
    available = available_memory_bytes()
    return None if available is None else int(MEMORY_SHARE * available)


class WorkerLost(ConfigurationFailed):
    """A process died, hung or grew too large; `stage` says where."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(reason)
        self.stage = stage


class Refused(StoreError):
    """The recording could not be written; the sweep must stop, since the next one cannot either."""


class Process:
    """One child process; `call` gives it a job and waits for the end of it."""

    def __init__(self, options: Options | None, log_folder: Path, name: str) -> None:
        threads = options.threads if options else 1
        environment = dict(os.environ)
        environment.update(dict.fromkeys(THREAD_ENVIRONMENT, str(threads)))
        self._log = log_folder / f"{name}.log"
        reading, writing = os.pipe()
        # The very same modules as here, whatever the working folder holds and a notebook added.
        code = f"import sys; sys.path[:] = {sys.path!r}; from lstm_trt.worker import main; sys.exit(main())"
        command = [sys.executable, "-P", "-c", code, str(writing)]
        if options is not None:
            command.append(json.dumps(asdict(options)))
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                start_new_session=True,  # Ctrl-C reaches the parent alone
                env=environment,
            )
        os.close(writing)
        self._answers = reading
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(reading, selectors.EVENT_READ)
        self.stage = "build"

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def call(self, job: dict, *, time_limit_s: float | None, memory_limit: int | None, listener: Listener) -> dict:
        """The job's last answer: "done" or "refused".

        `listener` gets every answer as it comes. Raises `WorkerLost`, `TimeLimitReached`,
        `MemoryExhausted`, or the `ConfigurationFailed` that the process reported; in the
        first three cases the process is gone.
        """
        began = heard = time.monotonic()
        self.stage = "build"
        try:
            self._child.stdin.write(json.dumps(job).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            pass  # it is dead already: told below
        while True:
            if self._selector.select(POLL_S):
                chunk = os.read(self._answers, 1 << 20)
                if not chunk:
                    raise self._death()
                self._buffer += chunk
                heard = time.monotonic()
                while b"\n" in self._buffer:
                    line, self._buffer = self._buffer.split(b"\n", 1)
                    answer = json.loads(line)
                    final = self._take(answer, listener)
                    if final:
                        return answer
            now = time.monotonic()
            if time_limit_s is not None and now - began > time_limit_s:
                self.kill()
                raise TimeLimitReached(f"took longer than {time_limit_s:g} s (--time-limit), at the stage {self.stage}")
            if now - heard > SILENCE_LIMIT_S:
                self.kill()
                raise TimeLimitReached(f"gave no sign of life for {SILENCE_LIMIT_S:g} s, at the stage {self.stage}")
            if memory_limit is not None and self._resident_bytes() > memory_limit:
                self.kill()
                limit = f"{memory_limit / 1e9:.1f} GB (--memory-limit-gb)"
                raise MemoryExhausted(f"the process grew beyond {limit}, at the stage {self.stage}")

    def _take(self, answer: dict, listener: Listener) -> bool:
        if answer["event"] == "stage":
            self.stage = answer["stage"]
        listener(answer)
        if answer["event"] == "failed":
            if answer["spent"]:
                self.close()
            failure = WorkerLost(answer["stage"] or self._known_stage(), answer["reason"])
            failure.detail = answer.get("detail")
            raise failure
        return answer["event"] in ("done", "refused")

    def _known_stage(self) -> str:
        return self.stage if self.stage in STAGES else "run"

    def _death(self) -> ConfigurationFailed:
        code = self._child.wait()
        stage = self._known_stage()
        tail = self.log_tail()
        self.close()
        if code == -signal.SIGKILL:
            return MemoryExhausted(
                f"the process was killed (SIGKILL), most likely for want of memory, at the stage {stage}"
            )
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return WorkerLost(stage, f"the process died with {how} at the stage {stage}" + (f": {tail}" if tail else ""))

    def log_tail(self) -> str:
        """The last line that the process printed."""
        with suppress(OSError):
            lines = self._log.read_text(errors="replace").strip().splitlines()
            return lines[-1].strip()[:300] if lines else ""
        return ""

    def _resident_bytes(self) -> int:
        try:
            return int(Path(f"/proc/{self._child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return 0

    def kill(self) -> None:
        with suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End the process, whatever it does; may be called twice."""
        if self._answers is None:
            return
        with suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        self._selector.close()
        os.close(self._answers)
        self._answers = None


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
