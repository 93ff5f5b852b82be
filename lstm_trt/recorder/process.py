"""One child process, seen from the parent: it is given jobs, monitored, and ended.

While a job runs, the parent checks the child's memory and the time limits four times a
second and sleeps otherwise. If the child dies, hangs or uses too much memory, the job fails
with the stage that it had reached.
"""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import psutil

from lstm_trt import registry
from lstm_trt.config import stop
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import (
    STAGES,
    ConfigurationFailed,
    MemoryExhausted,
    StoreError,
    TimeLimitReached,
    last_line,
)
from lstm_trt.machine.process import Child, Interpreter
from lstm_trt.recorder.jobs import Failed, Job

POLL_S = 0.25

#: From the trials on a process has no children of its own; loads do not count as its memory.
TIMED = ("run", "control", "store")

#: A process that sends no message for this long is considered hanging. A recording sends one
#: after each block; the gaps between its calls are added to this limit.
SILENCE_LIMIT_S = 600.0

Listener = Callable[[dict], None]


class WorkerLost(ConfigurationFailed):
    """A process failed, died, hung or used too much memory; `stage` is where, `detail` is its
    traceback, if any.

    `invalid`: the protocol cannot be carried out with this network.

    A network that a runtime cannot export or build is an error in the input.
    """

    def __init__(self, stage: str, reason: str, detail: str = "", invalid: bool = False) -> None:
        super().__init__(reason)
        self.stage, self.detail, self.invalid = stage, detail, invalid
        self.exit_status = 2 if stage in ("export", "build") else 1


@dataclass(frozen=True)
class Limits:
    """Of one job: time, memory, and the longest time without a message; None: no limit."""

    time_s: float | None = None
    memory_bytes: int | None = None
    silence_s: float = SILENCE_LIMIT_S


class Process(Child):
    """One child process, which runs one job at a time."""

    def __init__(
        self, options: Options | None, logs: Path, name: str, interpreter: Interpreter | None = None
    ) -> None:
        self.patience_s = 0.5
        variables = {}
        if options and options.device != "cpu":
            self.patience_s = 10.0  # freeing a GPU takes longer
            if options.device_index:
                from lstm_trt.machine import gpu

                variables["CUDA_VISIBLE_DEVICES"] = gpu.visible(options.device_index)
        self._log = logs / f"{name}.log"
        code = "from lstm_trt.recorder.child import main; sys.exit(main())"
        with self._log.open("ab") as log:
            super().__init__(code, interpreter, options.threads if options else 1, variables, log)
        self.stage = "build"

    def call(self, job: Job, limits: Limits, listener: Listener = lambda message: None) -> Any:
        """Run a job; returns its answer. `listener` gets every message as it arrives.

        Raises `WorkerLost`, `TimeLimitReached`, `MemoryExhausted`, or the `ConfigurationFailed`
        that the process reported; in the first three cases the process has ended. `StoreError` if
        it could not write.
        """
        self.stage = "build"
        with suppress(OSError):  # the process is dead: the error is raised on receiving
            self.connection.send((job, registry.added))
        began = heard = time.monotonic()
        while True:
            stop.check()
            if self.connection.poll(POLL_S):
                try:
                    message = self.connection.recv()
                except (EOFError, OSError):
                    raise self._death() from None
                heard = time.monotonic()
                listener(message)
                match message["event"]:
                    case "stage":
                        self.stage = message["stage"]
                    case "failed":
                        self._raise(message["answer"])
                    case "done":
                        return message["answer"]
            self._check(limits, began, heard)

    def _raise(self, failed: Failed) -> NoReturn:
        """Raise what the process reported."""
        if failed.refused:
            raise StoreError(failed.reason)
        if failed.spent:
            self.close()
        stage = failed.stage or self._known_stage()
        raise WorkerLost(stage, failed.reason, failed.detail, failed.invalid)

    def _check(self, limits: Limits, began: float, heard: float) -> None:
        """End the process, and raise, if it exceeds a limit."""
        now = time.monotonic()
        at_stage = f"at stage {self.stage}"
        if limits.time_s is not None and now - began > limits.time_s:
            self.close(0.0)
            limit = f"{limits.time_s:g} s (--time-limit)"
            raise TimeLimitReached(f"took longer than {limit}, {at_stage}")
        if now - heard > limits.silence_s:
            self.close(0.0)
            silence = f"no sign of progress for {limits.silence_s:g} s"
            raise TimeLimitReached(f"{silence}, {at_stage}")
        if limits.memory_bytes is not None and self._resident_bytes() > limits.memory_bytes:
            self.close(0.0)
            limit = f"{limits.memory_bytes / 1e9:.1f} GB (--memory-limit-gb)"
            raise MemoryExhausted(f"the process used more memory than {limit}, {at_stage}")

    def _known_stage(self) -> str:
        return self.stage if self.stage in STAGES else "run"

    def _death(self) -> ConfigurationFailed:
        """Why the process died; with the last line that it printed."""
        code = self.child.wait()
        stage = self._known_stage()
        printed = ""
        with suppress(OSError):
            printed = self._log.read_text(errors="replace")
        self.close()
        if code == -signal.SIGKILL:
            killed = f"the process was killed (SIGKILL) at stage {stage}"
            return MemoryExhausted(
                f"{killed}, as Linux does when memory runs out (dmesg names what it killed)"
            )
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        died = f"the process died with {how} at stage {stage}{last_line(printed)}"
        return WorkerLost(stage, died)

    def _resident_bytes(self) -> int:
        """Memory of the process, and until it is timed also of its own children, such as compilers.

        Finding these reads all of /proc, which would disturb the trials.
        """
        total = 0
        with suppress(psutil.Error):  # it has ended
            process = psutil.Process(self.child.pid)
            for each in (
                process,
                *(process.children(recursive=True) if self.stage not in TIMED else ()),
            ):
                total += each.memory_info().rss
        return total
