"""A grid of shapes x runtimes -> recordings in a folder: random order, rounds, resume.

A round records every configuration once, in new processes and in a new random order with
the runtimes mixed, so that a drift of the machine affects all of them alike. Progress is
kept only on disk: a killed sweep resumes with the same command and loses at most the
configuration in progress.

`run_sweep` has three steps: it plans (`plan_folder`: what a folder does not contain yet), runs
(`record_here`, or `record_elsewhere` at executors) and reports (`report.SweepReport`).
"""

import itertools
import os
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lstm_trt import registry
from lstm_trt.config import stop
from lstm_trt.config.configuration import TIERS, Configuration, Options, Protocol, cell_key
from lstm_trt.config.errors import StoreError, UnsupportedPrecision, UsageError, one_line, refused
from lstm_trt.config.fields import as_list
from lstm_trt.config.workload import Workload
from lstm_trt.machine.process import Interpreter
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.jobs import Seconds
from lstm_trt.recorder.pool import Recorded, WorkerPool, check_limits
from lstm_trt.recorder.progress import Progress
from lstm_trt.recorder.report import SweepReport
from lstm_trt.recorder.task import Task, record_task
from lstm_trt.store import files, folders, schema
from lstm_trt.store.locks import folder_lock, state_holder

#: Who records: this process, an executor, a function that makes one when something is left, or
#: several by name.
Executors = (
    futures.Executor | Callable[[], futures.Executor] | Mapping[str, futures.Executor] | None
)


def sweep(  # noqa: PLR0913
    workloads: Iterable[Workload],
    runtimes: Sequence[str | None] = (None,),
    protocol: Protocol | Sequence[Protocol] | None = None,
    options: Options | Sequence[Options] | None = None,
    *,
    out: str | os.PathLike,
    mode: str | None = None,
    rounds: int | None = None,
    seed: int = 0,
    control: bool = False,
    time_limit_s: float | None = None,
    memory_limit: int | None = None,
    retry_failed: bool = False,
    wait: bool | float = True,
    show_progress: bool = True,
    executor: Executors = None,
) -> SweepReport:
    """Record every workload (a `Grid`, or any workloads) on every runtime into `out`; resumes if
    interrupted.

    With several protocols or options, each is recorded; `Options.each(precision=["fp32", "bf16"])`
    makes options with several precisions. A runtime is skipped for the precisions that it does not
    support on its device, with a warning in the report. A runtime None is the default of the
    workload's kind, as in `describe`.

    `rounds`: how often each configuration is recorded (None: `default_rounds` of the largest number
    of trials). `seed`: of the order. `control`: add a control run after each, which doubles the run
    time. `time_limit_s`: for each configuration. `memory_limit`: of a process, in bytes.
    `retry_failed`: record again what failed before. `wait`: whether to wait while another recording
    uses the same cores, or for how many seconds at most.

    `executor` runs the recordings as tasks (`task.record_task`), on whichever machine; a mapping of
    names to executors records all on each, into a folder of its name. What any machine has recorded
    counts as recorded.

    Raises what `plan_configurations` and `run_sweep` raise.
    """
    configurations, skipped = plan_configurations(
        workloads, runtimes, protocol, options, mode, anywhere=executor is not None
    )
    return run_sweep(
        configurations,
        out,
        rounds=rounds,
        seed=seed,
        control=control,
        time_limit_s=time_limit_s,
        memory_limit=memory_limit,
        retry_failed=retry_failed,
        wait=wait,
        show_progress=show_progress,
        warnings=skipped,
        executor=executor,
    )


def plan_configurations(
    workloads: Iterable[Workload],
    runtimes: Iterable[str | None],
    protocol: Protocol | Sequence[Protocol] | None = None,
    options: Options | Sequence[Options] | None = None,
    mode: str | None = None,
    anywhere: bool = False,
) -> tuple[list[Configuration], list[str]]:
    """The configurations that `sweep` records, and a line for each runtime and precision that is
    skipped.

    Raises what `describe` raises; an unsupported precision is an error only if no configuration is
    left.
    """
    configurations = []
    unsupported = []
    for workload, runtime, each_protocol, each_options in itertools.product(
        as_list(workloads), dict.fromkeys(as_list(runtimes)), as_list(protocol), as_list(options)
    ):
        try:
            configurations.append(
                describe(workload, runtime, each_protocol, each_options, mode, anywhere=anywhere)
            )
        except UnsupportedPrecision as error:
            unsupported.append(str(error))
    unsupported = list(dict.fromkeys(unsupported))
    if unsupported and not configurations:
        raise UsageError("; ".join(unsupported))
    return configurations, [f"skipped: {line}" for line in unsupported]


def run_sweep(  # noqa: PLR0913
    configurations: Sequence[Configuration],
    out: str | os.PathLike,
    *,
    rounds: int | None = None,
    seed: int = 0,
    control: bool = False,
    time_limit_s: float | None = None,
    memory_limit: int | None = None,
    retry_failed: bool = False,
    wait: bool | float = True,
    show_progress: bool = True,
    interpreters: Mapping[str, Interpreter | None] | None = None,
    warnings: Iterable[str] = (),
    executor: Executors = None,
) -> SweepReport:
    """Record the configurations that `out` does not contain yet; Ctrl-C ends it cleanly with
    `report.stopped`.

    If a configuration fails, a failure row is written and the sweep continues. `interpreters`:
    configuration id -> Python that records it; None, or no entry, is the current one. `warnings`:
    lines for the report. The other arguments are those of `sweep`.

    Raises `UsageError` if the folder is unusable or in use, the executor cannot record this or has
    ended, or without `wait` the cores are in use; `StoreError` if the disk is full. Completed
    recordings are kept.
    """
    if rounds is None:
        rounds = default_rounds(max((each.protocol.trials for each in configurations), default=1))
    check_limits(time_limit_s, rounds)
    if executor is not None:
        _check_for_executors(configurations, interpreters, wait)
    began = time.monotonic()
    report = SweepReport(warnings=[*warnings])
    wanted = wanted_keys(configurations, rounds, seed, anywhere=executor is not None)
    with ExitStack() as held:
        plans = []
        executors = executor if isinstance(executor, Mapping) else {"": executor}
        for name, each in executors.items():
            folder = files.make_folder(Path(out) / name)
            held.enter_context(folder_lock(folder))
            plans.append(plan_folder(folder, each, wanted, retry_failed, report))
            state_holder(folder, len(wanted))
        planned = [cell.configuration for plan in plans for cell in plan.cells]
        progress = held.enter_context(Progress(planned, report, show_progress))
        if executor is None:
            pool = held.enter_context(WorkerPool(time_limit_s, memory_limit, interpreters, wait))
            outcomes = record_here(plans[0].cells, pool, progress, control)
        else:
            limits = (time_limit_s, memory_limit)
            outcomes = held.enter_context(
                closing(record_elsewhere(plans, progress, control, limits))
            )
        try:
            with refused(
                "the executor has ended", *_ENDED, hint="; run the sweep again to resume it"
            ):
                for cell, outcome in outcomes:
                    report.add(cell.configuration, outcome)
                    progress.end(cell.configuration, outcome.seconds)
        except KeyboardInterrupt:
            report.stopped = True
        report.wall_s = time.monotonic() - began
    return report


def default_rounds(trials: int) -> int:
    """3 rounds from the Compare tier on, else 1: a comparison needs several processes, not only
    many trials."""
    return 3 if trials >= TIERS["compare"] else 1


def _check_for_executors(
    configurations: Iterable[Configuration],
    interpreters: Mapping[str, Interpreter | None] | None,
    wait: bool | float,
) -> None:
    if interpreters or wait is not True or any(each.protocol.for_s for each in configurations):
        raise UsageError(
            "soaks (for_s), versions of a library, --no-wait and --wait-limit are for this machine"
            " only: leave them out, or the executor (--scheduler)"
        )


# The plan


class Cell(NamedTuple):
    """What is recorded once: folder, key and round there, and the id of an earlier failure."""

    folder: Path
    key: str
    round: int
    configuration: Configuration
    failed: str | None


@dataclass(frozen=True)
class FolderPlan:
    """What is left to be recorded into a folder, and by which executor; None is this process."""

    folder: Path
    executor: Any
    cells: deque[Cell]


def order(items: Iterable[Any], rounds: int, seed: int) -> Iterator[list[Any]]:
    """The items of each round in a new random order; reproducible for a given seed."""
    for number in range(rounds):
        shuffled = list(items)
        random.Random(f"{seed}/{number}").shuffle(shuffled)
        yield shuffled


def wanted_keys(
    configurations: Iterable[Configuration], rounds: int, seed: int, anywhere: bool
) -> dict[tuple[str, int], Configuration]:
    """(key, round) -> configuration, in the order of recording.

    The key is the id of the configuration; if it may be recorded `anywhere`, without the machine.
    """
    keyed = {}
    for configuration in dict.fromkeys(configurations):
        key = cell_key(configuration.as_dict()) if anywhere else configuration.id
        keyed[key] = configuration
    wanted = {}
    for number, keys in enumerate(order(keyed, rounds, seed)):
        for key in keys:
            wanted[key, number] = keyed[key]
    return wanted


def plan_folder(
    folder: Path,
    executor: Any,
    wanted: Mapping[tuple[str, int], Configuration],
    retry_failed: bool,
    report: SweepReport,
) -> FolderPlan:
    """What of the wanted keys a folder does not contain yet; the report gets what it contains.

    Damaged files are moved aside.
    """
    keys: Mapping[str, str] = {}  # by configuration id, where they are not the same
    if executor is None:
        damaged = folders.tidy(folder)
    else:
        damaged, keys = folders.cells(folder)
    recorded, failed = folders.finished(folder)
    done = {(keys.get(identity, identity), number) for identity, number in recorded}
    failures = {(keys.get(identity, identity), number): identity for identity, number in failed}
    left = [key for key in wanted if key not in done]
    todo = [key for key in left if retry_failed or key not in failures]
    if todo and callable(executor):
        executor = executor()
    report.folders.append(folder)
    report.total += len(wanted)
    report.done_before += len(wanted) - len(left)
    report.failed_before += len(left) - len(todo)
    for path in damaged:
        again = "it has been moved aside and is recorded again"
        report.warnings.append(f"{path.name} was damaged; {again}")
    cells = deque(Cell(folder, *key, wanted[key], failures.get(key)) for key in todo)
    return FolderPlan(folder, executor, cells)


# The run

#: What executors raise that record nothing any more.
_ENDED = (futures.BrokenExecutor, futures.CancelledError)

#: How often workers are counted, at the least.
POLL_S = 5.0


def record_here(
    cells: Iterable[Cell], pool: WorkerPool, progress: Progress, control: bool
) -> Iterator[tuple[Cell, Recorded]]:
    """Record the cells in the processes of `pool`, one after the other."""
    for cell in cells:
        pool.begin_series(cell.round)
        progress.begin(cell.configuration, cell.round)
        outcome = pool.record_configuration(
            cell.configuration, cell.round, cell.folder, progress.listen, control=control
        )
        yield cell, outcome


def record_elsewhere(
    plans: Sequence[FolderPlan],
    progress: Progress,
    control: bool,
    limits: tuple[float | None, int | None],
) -> Generator[tuple[Cell, Recorded]]:
    """Record the cells of the plans at their executors; gives each with its result, as they arrive.

    Only two tasks a worker are submitted at a time, so that workers that join later get some. A
    future is dropped with its result, since Dask records again what a lost worker had and is still
    wanted. Raises `StoreError` if an executor gives a result twice.
    """
    series = secrets.token_hex(8)
    running: dict[futures.Future, Cell] = {}
    try:
        while running or any(plan.cells for plan in plans):
            for plan in plans:
                workers = _workers_of(plan.executor)
                submitted = sum(cell.folder == plan.folder for cell in running.values())
                room = max(1, 2 * workers) - submitted
                for _ in range(min(room, len(plan.cells))):
                    cell = plan.cells.popleft()
                    task = _task(cell, control, limits, series)
                    running[plan.executor.submit(record_task, task)] = cell
                progress.submitted(len(running), workers)
            stop.check()
            done = futures.wait(running, POLL_S, futures.FIRST_COMPLETED).done
            while done:
                yield _kept(running, done.pop())
    finally:
        for future in running:
            future.cancel()


def _workers_of(executor: Any) -> int:
    """How many workers an executor has now, about."""
    client = getattr(executor, "_client", None)  # of Dask
    return len(client.nthreads()) if client else getattr(executor, "_max_workers", 32)


def _task(cell: Cell, control: bool, limits: tuple[float | None, int | None], series: str) -> Task:
    configuration = cell.configuration.as_dict()
    configuration["options"]["device_index"] = cell.configuration.options.device_index
    return Task(cell.key, cell.round, configuration, control, *limits, series, registry.added)


def _kept(running: dict[futures.Future, Cell], future: futures.Future) -> tuple[Cell, Recorded]:
    """The cell of a future and its result, whose file takes the place of the cell's earlier
    failures."""
    cell = running.pop(future)
    try:
        result = future.result()
    except _ENDED:
        raise
    except Exception as error:  # every executor has its own, such as Dask's if its workers died
        reason = f"the executor did not return its result: {one_line(error)}"
        failure = schema.Failure(cell.configuration, cell.round, "run", reason)
        return cell, Recorded(files.write_failure(failure, cell.folder), failure, Seconds())
    if (result.key, result.round) != (cell.key, cell.round):
        raise StoreError(f"{result.path.name} arrived a second time")
    path = files.put(cell.folder / result.path.name, result.content)
    earlier = cell.folder / f"{cell.failed}-r{cell.round}.failure.json"
    if earlier != path:
        earlier.unlink(missing_ok=True)
    return cell, result
