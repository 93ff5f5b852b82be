"""Recordings as tasks of an executor, whose processes may be on other machines (docs/cluster.md).

A process that runs tasks keeps one `WorkerPool` between them, since its start takes longer than most recordings. A
thread owns it: Linux ends the processes of the pool with the thread that started them, and those of executors come
and go. The pool ends after `IDLE_S` without a task.
"""

from __future__ import annotations

import os
import platform
import secrets
import sys
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple

from lstm_trt import registry
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import LabError, StoreError, one_line, refused
from lstm_trt.recorder.describe import on_this_machine
from lstm_trt.recorder.pool import Recorded, Seconds, WorkerPool, failure_of
from lstm_trt.recorder.process import Listener
from lstm_trt.store import files
from lstm_trt.store.schema import Failure

#: How often the workers of executors are counted.
POLL_S = 5.0

#: How long a process that runs tasks keeps its pool without one.
IDLE_S = 10.0


@dataclass(frozen=True)
class Result:
    """The `content` of the file `name`: a recording, or the failure row of `recorded.failure`.

    `key` and `round` are those of the job; `machine` is the name of the host, which no file states.
    """

    key: str
    round: int
    name: str
    content: bytes = field(repr=False)
    recorded: Recorded
    machine: str = field(default_factory=platform.node)


class Cell(NamedTuple):
    """One recording of a plan: who records it, its folder, its key and round there, and files of earlier failures."""

    executor: Executor | None
    folder: Path
    key: str
    round: int
    configuration: Configuration
    failures: Sequence[Path]


#: A cell, what came of it, and the machine that recorded it.
Arrival = tuple[Cell, Recorded, str]


def record_elsewhere(plan: Sequence[Cell], listener: Listener, **how: Any) -> Generator[Arrival]:
    """Record cells by their executors, and write the files as they arrive; `how` goes into the jobs (`record_task`).

    Only two jobs a worker are submitted at a time, so that workers that join later get some. A future is dropped with
    its result, since Dask records again what a lost worker had and is still wanted. Raises `UsageError` if an executor
    has ended, `StoreError` if a file cannot be written, or an executor gives a result twice.
    """
    how |= {"added": registry.added, "series": secrets.token_hex(8)}
    running: dict[Future, Cell] = {}
    queues: defaultdict[Any, deque[Cell]] = defaultdict(deque)
    for cell in plan:
        queues[cell.executor].append(cell)
    try:
        while running or any(queues.values()):
            for executor, queue in queues.items():
                jobs = sum(cell.executor is executor for cell in running.values())
                for _ in range(min(len(queue), max(1, 2 * getattr(executor, "workers", 32)) - jobs)):
                    cell = queue.popleft()
                    running[executor.submit(record_task, _job(cell) | how)] = cell
            listener({"event": "submitted", "jobs": len(running)})
            done = wait(running, POLL_S, FIRST_COMPLETED).done
            while done:
                future = done.pop()
                cell = running.pop(future)
                yield _arrival(cell, future)
                del future
    finally:
        for future in running:
            future.cancel()


def _arrival(cell: Cell, future: Future) -> Arrival:
    with refused("the executor has ended", BrokenExecutor, CancelledError, hint="; run the sweep again to resume it"):
        error = future.exception()
    if error:  # for example that of Dask for a task with which several workers died
        failure = Failure(cell.configuration, cell.round, "run", f"{type(error).__name__}: {one_line(error)}")
        return cell, Recorded(files.write_failure(failure, cell.folder), failure, Seconds()), "lost"
    result: Result = future.result()
    if (result.key, result.round) != (cell.key, cell.round):
        raise StoreError(f"{result.name} arrived twice: the executor gives results of other jobs")
    path = files.put(cell.folder / result.name, result.content)
    for earlier in cell.failures:
        if earlier != path:
            earlier.unlink(missing_ok=True)
    return cell, replace(result.recorded, path=path), result.machine


def _job(cell: Cell) -> dict:
    plain = cell.configuration.as_dict()
    plain["options"] |= {"cores": [], "device_index": cell.configuration.options.device_index}
    return {"key": cell.key, "round": cell.round, "configuration": plain}


def record_task(job: dict) -> Result:
    """Record one configuration on this machine; what prevents it is the result's failure.

    The job, which `sweep.run_sweep` makes, has `key` and `round`; `configuration`, of any machine, as JSON values;
    `control`, `time_limit_s`, `memory_limit` as `run_sweep`; `series`, with whose other jobs it shares processes;
    and `added` names of the registry. Raises `CancelledError` if nobody waits for it any more.
    """
    done: Future[Result] = Future()
    with _STARTING:
        tasks = _tasks(os.getpid())
    tasks.put((job, _cancelled(), done))
    return done.result()


_STARTING = Lock()


@cache
def _tasks(process: int) -> SimpleQueue:
    """The tasks of this process, and the thread that records them one by one."""
    tasks = SimpleQueue()
    Thread(target=_serve, args=(tasks,), daemon=True).start()
    return tasks


def _serve(tasks: SimpleQueue) -> None:
    while True:
        job, cancelled, done = tasks.get()
        try:
            with WorkerPool() as pool:
                while True:
                    done.set_result(_record(pool, job, cancelled))
                    job, cancelled, done = tasks.get(timeout=IDLE_S)
        except Exception as error:  # `queue.Empty` after the last task
            if not done.done():
                done.set_exception(error)


def _record(pool: WorkerPool, job: dict, cancelled: Callable[[], bool]) -> Result:
    def listen(message: dict) -> None:
        if cancelled():
            raise CancelledError

    registry.added.update(job["added"])
    asked, number = Configuration.from_dict(job["configuration"]), job["round"]
    pool.time_limit_s, pool.memory_limit = job["time_limit_s"], job["memory_limit"]
    pool.begin_series((job["series"], number))
    with tempfile.TemporaryDirectory(prefix="lstm_trt-") as folder:
        try:
            here = on_this_machine(asked)
            recorded = pool.record_configuration(here, number, Path(folder), listen, control=job["control"])
        except LabError as error:
            failure = failure_of(asked, number, error)
            recorded = Recorded(files.write_failure(failure, Path(folder)), failure, Seconds())
        return Result(job["key"], number, recorded.path.name, recorded.path.read_bytes(), recorded)


def _cancelled() -> Callable[[], bool]:
    """A function that says whether the task in this thread has been cancelled, which only Dask tells."""
    with suppress(KeyError, ValueError):  # Dask is not loaded, or this is no worker of it
        worker = sys.modules["distributed"].get_worker()
        key = worker.get_current_task()
        # A nanny sets it, so that freed memory goes back to the system at once: calls would have more page faults.
        os.environ.pop("MALLOC_TRIM_THRESHOLD_", None)
        return lambda: getattr(worker.state.tasks.get(key), "state", "cancelled") == "cancelled"
    return lambda: False
