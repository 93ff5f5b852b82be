"""One recording as a task of an executor, whose processes may be on other machines
(docs/cluster.md).

A process that runs tasks keeps one `WorkerPool` between them, since its start takes longer than
most recordings, and ends it after `IDLE_S` without a task. A thread owns it: Linux ends the
processes of a pool with the thread that started them, and those of executors come and go.
"""

import os
import platform
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from queue import SimpleQueue
from threading import Lock, Thread

from lstm_trt import registry
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import LabError
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.jobs import Seconds
from lstm_trt.recorder.pool import Recorded, WorkerPool, failure_of
from lstm_trt.store import files
from lstm_trt.store.temporary import temporary_folder

IDLE_S = 10.0


@dataclass(frozen=True)
class Task:
    """What `sweep` asks of a machine: one recording.

    `configuration`: as JSON values, since `added`, names of the registry, may be needed to read it.
    `series`: tasks of one series and round share processes.
    """

    key: str
    round: int
    configuration: dict
    control: bool
    time_limit_s: float | None
    memory_limit: int | None
    series: str
    added: dict


@dataclass(frozen=True, kw_only=True)
class Result(Recorded):
    """What a task returns: `content` is that of the file `path.name`, a recording or a failure row.

    `key` and `round` are those of the task. `machine`: name of the host, which no file states.
    """

    key: str
    round: int
    content: bytes = field(repr=False)
    machine: str


def record_task(task: Task) -> Result:
    """Record one configuration on this machine; what prevents it is the result's failure.

    Raises `CancelledError` if Dask has cancelled the task.
    """
    done: Future[Result] = Future()
    with _STARTING:
        tasks = _tasks(os.getpid())
    tasks.put((task, _cancelled(), done))
    return done.result()


_STARTING = Lock()


@cache
def _tasks(process: int) -> SimpleQueue:
    """The tasks of this process, which a thread records one by one."""
    tasks = SimpleQueue()
    Thread(target=_serve, args=(tasks,), daemon=True).start()
    return tasks


def _serve(tasks: SimpleQueue) -> None:
    while True:
        task, cancelled, done = tasks.get()
        try:
            with WorkerPool() as pool:
                while True:
                    done.set_result(_record(pool, task, cancelled))
                    task, cancelled, done = tasks.get(timeout=IDLE_S)
        except Exception as error:  # `queue.Empty` after the last task
            if not done.done():
                done.set_exception(error)


def _record(pool: WorkerPool, task: Task, cancelled: Callable[[], bool]) -> Result:
    def listen(message: dict) -> None:
        if cancelled():
            raise CancelledError

    registry.added.update(task.added)
    asked = Configuration.from_dict(task.configuration)
    pool.time_limit_s = task.time_limit_s
    pool.memory_limit = task.memory_limit
    pool.begin_series((task.series, task.round))
    with temporary_folder() as folder:
        try:
            here = describe(
                asked.workload, asked.runtime, asked.protocol, asked.options, asked.mode
            )
            recorded = pool.record_configuration(
                here, task.round, folder, listen, control=task.control
            )
        except LabError as error:
            failure = failure_of(asked, task.round, error)
            recorded = Recorded(files.write_failure(failure, folder), failure, Seconds())
        return Result(
            **vars(recorded),
            key=task.key,
            round=task.round,
            machine=platform.node(),
            content=recorded.path.read_bytes(),
        )


def _cancelled() -> Callable[[], bool]:
    """A function that says whether the task in this thread has been cancelled, which only Dask
    tells."""
    with suppress(KeyError, ValueError):  # Dask is not loaded, or this is no worker of it
        worker = sys.modules["distributed"].get_worker()
        key = worker.get_current_task()
        # A nanny sets it, so that freed memory goes back to the system at once: calls would have
        # more page faults.
        os.environ.pop("MALLOC_TRIM_THRESHOLD_", None)
        return lambda: getattr(worker.state.tasks.get(key), "state", "cancelled") == "cancelled"
    return lambda: False
