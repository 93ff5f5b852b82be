"""A grid of shapes x runtimes -> recordings in a folder: random order, rounds, resume, progress.

A round records every configuration once, in new processes and in a new random order with
the runtimes mixed, so that a drift of the machine affects all of them alike. Progress is
kept only on disk: a killed sweep resumes with the same command and loses at most the
configuration in progress.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import random
import secrets
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from lstm_trt import registry
from lstm_trt.config.configuration import TIERS, Configuration, Options, Protocol, cell_key
from lstm_trt.config.errors import StoreError, UnsupportedPrecision, UsageError, one_line, refused
from lstm_trt.config.fields import as_list
from lstm_trt.config.format import count, duration, listed, terminal_width, warning_lines
from lstm_trt.config.workload import Workload
from lstm_trt.machine.process import Interpreter
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.jobs import Seconds
from lstm_trt.recorder.pool import Recorded, WorkerPool, check_limits, waiting_text
from lstm_trt.recorder.task import Result, record_task
from lstm_trt.store import files, folders, schema
from lstm_trt.store.locks import folder_lock, state_holder


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookBar(tqdm):
    """A progress bar as text in the output of a cell; updates replace it, so that a notebook is
    saved with the last.

    Not `tqdm.notebook`: its widgets need ipywidgets, and a saved notebook shows an error in their
    place.
    """

    def __init__(self, **how: Any) -> None:
        self._output = None
        super().__init__(file=io.StringIO(), ascii=False, **how)

    def display(self, *ignored: Any, **also: Any) -> None:
        from IPython.display import display

        text = {"text/plain": str(self)}
        if self._output is None:
            self._output = display(text, raw=True, display_id=True)
        else:
            self._output.update(text, raw=True)


class Progress:
    """Progress line with the current configuration, the number done and the remaining time; updates
    the report."""

    def __init__(self, plan: Sequence[Configuration], report: SweepReport, show: bool) -> None:
        self._report, self._began = report, time.monotonic()
        #: By runtime; what is done also of all, as None.
        self._left, self._done = defaultdict(Counter), defaultdict(Counter)
        for each in plan:
            self._left[each.runtime].update(_cost(each))
        self._ended, self._left_s = 0, 0.0
        self._running = ""
        self._versions = Counter(
            runtime for runtime, _ in {(each.runtime, each.runtime_version) for each in plan}
        )
        self._show = show and report.left > 0
        self._bar = None
        self._shown_at = -math.inf
        #: Shortest time between two lines; each update of a notebook makes the browser draw.
        self._every_s = 10.0

    def __enter__(self) -> Progress:
        in_notebook = _in_notebook()
        if self._show and (in_notebook or terminal_width(sys.stderr)):
            self._every_s = 0.5 if in_notebook else 0.0
            self._bar = (NotebookBar if in_notebook else tqdm)(
                total=self._report.total,
                initial=self._report.done_before + self._report.failed_before,
                bar_format="{n_fmt}/{total_fmt} |{bar:10}| {elapsed}{postfix}",
                dynamic_ncols=not in_notebook,
            )
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str("")
            self._bar.close()

    def begin(self, configuration: Configuration, number: int) -> None:
        several = self._versions[configuration.runtime] > 1
        self._running = configuration.title + f", version {configuration.runtime_version}" * several
        self._running += f", r{number}" if number else ""
        self._show_line(self._running)

    def submitted(self, jobs: int, workers: int) -> None:
        """While executors record: what they have, and how much each machine has recorded."""
        machines = listed(
            [f"{name} {number}" for name, number in self._report.machines.most_common()], 3
        )
        self._running = (
            f"{count(jobs, 'job')} at {count(workers, 'worker')}, recorded by {machines}"
        )
        self._show_line(self._running)

    def listen(self, message: dict) -> None:
        if message["event"] == "waiting":
            self._show_line(f"{self._running} {waiting_text(message)}", soon=True)
        if (
            message["event"] == "progress"
            and message["done"]
            and message["total"] > message["done"]
        ):
            self._show_line(f"{self._running} {100 * message['done'] // message['total']} %")

    def end(self, configuration: Configuration, outcome: Recorded) -> None:
        report = self._report
        report.seconds.add(outcome.seconds)
        if outcome.failure:
            report.failures.append(outcome.failure)
        else:
            report.recorded += 1
        report.warnings.extend(f"{configuration.name}: {text}" for text in outcome.warnings)
        report.machines.update([outcome.machine] if isinstance(outcome, Result) else [])
        cost, self._ended = _cost(configuration), self._ended + 1
        self._left[configuration.runtime].subtract(cost)
        for known in (configuration.runtime, None) if not outcome.failure else ():
            spent_s = max(0.0, outcome.seconds.timing - cost["scheduled_s"])
            self._done[known].update({"work": cost["work"], "spent_s": spent_s})
        spent_s = (
            sum(asdict(report.seconds).values()) - report.seconds.inside_trials
        )  # of several at a time
        self._left_s = self.seconds_left() / max(1.0, spent_s / (time.monotonic() - self._began))
        if self._bar is not None:
            self._bar.update()
        elif not report.machines:  # else `submitted` follows
            self._show_line("")

    def seconds_left(self) -> float:
        """Estimated from the remaining gaps between calls and each runtime's rate of operations so
        far."""
        seconds, left_s = self._report.seconds, 0.0
        overhead_s = (seconds.preparing + seconds.control + seconds.storing) / self._ended
        for runtime, left in self._left.items():
            done = self._done[runtime if self._done[runtime]["work"] else None]
            # The work is 0 with periodic arrivals, where the schedule sets the duration.
            rate = done["spent_s"] / (done["work"] or 1)
            left_s += left["cells"] * overhead_s + left["scheduled_s"] + left["work"] * rate
        return left_s

    def _show_line(self, running: str, soon: bool = False) -> None:
        """Show the line, but none that follows another too early, unless `soon`."""
        if not self._show or (time.monotonic() - self._shown_at < self._every_s and not soon):
            return
        self._shown_at = time.monotonic()
        report = self._report
        failed = f"{len(report.failures)} failed" if report.failures else ""
        time_left = (
            f"about {duration(self._left_s)} left"
            if self._ended
            else "remaining time not known yet"
        )
        text = ", ".join(
            filter(None, [time_left, failed, running])
        )  # a narrow terminal cuts the end
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        else:
            print(
                f"{report.total - report.left}/{report.total}  {text}", file=sys.stderr, flush=True
            )


def _cost(configuration: Configuration) -> dict[str, Any]:
    """Seconds of the schedule, and operations beside it."""
    protocol, calls = (
        configuration.protocol,
        configuration.protocol.trials + configuration.protocol.warmup,
    )
    work = 0 if protocol.period_us else calls * configuration.workload.work(configuration.mode)
    return {"cells": 1, "scheduled_s": calls * protocol.gap_s, "work": work}


#: Number of failures that the report lists; the folder contains all of them.
FAILURES_LISTED = 10


@dataclass
class SweepReport:
    """Result of a sweep. `left`: configurations not recorded yet (after Ctrl-C).

    `machines`: of an executor, with the numbers of results. `folders`: where the recordings are.
    """

    total: int
    done_before: int = 0
    failed_before: int = 0
    recorded: int = 0
    failures: list[schema.Failure] = field(default_factory=list)
    seconds: Seconds = field(default_factory=Seconds)
    wall_s: float = 0.0
    stopped: bool = False
    warnings: list[str] = field(default_factory=list)
    machines: Counter[str] = field(default_factory=Counter)
    folders: list[Path] = field(default_factory=list)

    @property
    def left(self) -> int:
        return (
            self.total - self.done_before - self.failed_before - self.recorded - len(self.failures)
        )

    @property
    def efficiency(self) -> float | None:
        """Time inside trials divided by the wall time of timing."""
        return self.seconds.inside_trials / self.seconds.timing if self.seconds.timing else None

    @property
    def preparing_s_each(self) -> float | None:
        """Preparation time per configuration, including the start of workers."""
        attempted = self.recorded + len(self.failures)
        return self.seconds.preparing / attempted if attempted else None

    def as_dict(self) -> dict:
        names = ("shape", "runtime", "precision", "stage", "reason")
        configured = [(each, each.configuration) for each in self.failures]
        failed = [
            (of.name, of.runtime, of.options.precision, each.stage, each.reason)
            for each, of in configured
        ]
        counted = (
            "total",
            "done_before",
            "failed_before",
            "recorded",
            "left",
            "stopped",
            "wall_s",
            "preparing_s_each",
        )
        return {
            **{name: getattr(self, name) for name in (*counted, "efficiency", "warnings")},
            **{f"{name}_s": seconds for name, seconds in asdict(self.seconds).items()},
            **({"machines": dict(self.machines)} if self.machines else {}),
            "failed": len(self.failures),
            "failures": [dict(zip(names, values, strict=True)) for values in failed],
        }

    def __str__(self) -> str:
        others = {
            "already recorded": self.done_before,
            "failed earlier": self.failed_before,
            "left": self.left,
        }
        counts = [f"{self.recorded} recorded", f"{len(self.failures)} failed"]
        counts += [f"{number} {what}" for what, number in others.items() if number]
        lines = [f"{', '.join(counts)}, of {self.total}; total time {duration(self.wall_s)}"]
        if self.efficiency is not None:
            seconds, each = self.seconds, f"{self.preparing_s_each:.2f} s per configuration"
            preparing = (
                f"preparing {seconds.preparing:.1f} s ({each}, including the start of workers)"
            )
            timing = (
                f"timing {seconds.timing:.1f} s ({100 * self.efficiency:.1f} % of it inside trials)"
            )
            control = f"control runs {seconds.control:.1f} s, " if seconds.control else ""
            lines.append(f"{preparing}, {timing}, {control}storing {seconds.storing:.1f} s")
        shown = self.failures[:FAILURES_LISTED]
        lines += [
            f"failed: {each.configuration.title} at {each.stage}: {each.reason}" for each in shown
        ]
        more = len(self.failures) - FAILURES_LISTED
        if more > 0:
            lines.append(f"and {count(more, 'more failure')}; lstm-trt summarize lists all of them")
        if self.failures or self.failed_before:
            kept = (
                "each failure is a file CONFIG_ID-rROUND.failure.json in the folder of recordings"
            )
            lines.append(f"{kept}: --retry-failed repeats it, and deleting the file forgets it")
        return "\n".join([*lines, *warning_lines(self.warnings)])


#: Who records: this process, an executor, a function that makes one when something is left, or
#: several by name.
Executors = (
    futures.Executor | Callable[[], futures.Executor] | Mapping[str, futures.Executor] | None
)

#: What executors raise that record nothing any more.
_ENDED = (futures.BrokenExecutor, futures.CancelledError)

#: How often workers are counted, at the least.
POLL_S = 5.0


def default_rounds(trials: int) -> int:
    """3 rounds from the Compare tier on, else 1: a comparison needs several processes, not only
    many trials."""
    return 3 if trials >= TIERS["compare"] else 1


def order(items: Iterable[Any], rounds: int, seed: int) -> Iterator[list[Any]]:
    """The items of each round in a new random order; reproducible for a given seed."""
    for number in range(rounds):
        shuffled = list(items)
        random.Random(f"{seed}/{number}").shuffle(shuffled)
        yield shuffled


def run_sweep(
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

    `rounds`: how often each configuration is recorded (None: `default_rounds` of the largest number
    of trials). `control`: add a control run after each, which doubles the run time. `wait`: whether
    to wait while another recording uses the same cores. `interpreters`: configuration id -> Python
    that records it; None, or no entry, is the current one. `warnings`: lines for the report. If a
    configuration fails, a failure row is written and the sweep continues.

    `executor` runs the recordings as tasks (`task.record_task`), on whichever machine; a mapping of
    names to executors records all on each, into a folder of its name. What any machine has recorded
    counts as recorded.

    Raises `UsageError` if the folder is unusable or in use, the executor cannot record this or has
    ended, or without `wait` the cores are in use; `StoreError` if the disk is full. Completed
    recordings are kept.
    """
    if rounds is None:
        rounds = default_rounds(max((item.protocol.trials for item in configurations), default=1))
    check_limits(time_limit_s, rounds)
    if executor is not None and (
        interpreters or wait is not True or any(each.protocol.for_s for each in configurations)
    ):
        here = "soaks (for_s), versions of a library, --no-wait and --wait-limit are for this machine only"
        raise UsageError(f"{here}: leave them out, or the executor (--scheduler)")
    keyed = {
        each.id if executor is None else cell_key(each.as_dict()): each
        for each in dict.fromkeys(configurations)
    }
    keys = [
        (key, number)
        for number, shuffled in enumerate(order(keyed, rounds, seed))
        for key in shuffled
    ]
    began, report = time.monotonic(), SweepReport(0, warnings=[*warnings])
    plans: list[tuple[Any, deque[Cell]]] = []
    with ExitStack() as stack:
        for place, each in executor.items() if isinstance(executor, Mapping) else [("", executor)]:
            folder = files.make_folder(Path(out) / place)
            stack.enter_context(folder_lock(folder))
            moved, cells = (folders.tidy(folder), {}) if each is None else folders.cells(folder)
            again = "it has been moved aside and is recorded again"
            report.warnings += [f"{path.name} was damaged; {again}" for path in moved]
            found = folders.finished(folder)
            recorded, failed = (
                {(cells.get(name, name), number): name for name, number in each} for each in found
            )
            left = [key for key in keys if key not in recorded]
            todo = [key for key in left if retry_failed or key not in failed]
            queue = deque(Cell(folder, *key, keyed[key[0]], failed.get(key)) for key in todo)
            plans.append((each() if todo and callable(each) else each, queue))
            report.total += len(keys)
            report.done_before += len(keys) - len(left)
            report.failed_before += len(left) - len(todo)
            report.folders.append(folder)
            state_holder(folder, len(keys))
        plan = [cell for _, cells in plans for cell in cells]
        progress = stack.enter_context(
            Progress([cell.configuration for cell in plan], report, show_progress)
        )
        if executor is None:
            pool = stack.enter_context(WorkerPool(time_limit_s, memory_limit, interpreters, wait))
            outcomes = _here(plan, pool, progress, control)
        else:
            how = {"control": control, "limits": (time_limit_s, memory_limit)}
            outcomes = stack.enter_context(closing(_elsewhere(plans, progress, **how)))
        try:
            with refused(
                "the executor has ended", *_ENDED, hint="; run the sweep again to resume it"
            ):
                for cell, outcome in outcomes:
                    progress.end(cell.configuration, outcome)
        except KeyboardInterrupt:
            report.stopped = True
        report.wall_s = time.monotonic() - began
    return report


class Cell(NamedTuple):
    """What is recorded once: folder, key and round there, and the id of an earlier failure of it."""

    folder: Path
    key: str
    round: int
    configuration: Configuration
    failed: str | None


def _here(
    plan: Iterable[Cell], pool: WorkerPool, progress: Progress, control: bool
) -> Iterator[tuple[Cell, Recorded]]:
    for cell in plan:
        pool.begin_series(cell.round)
        progress.begin(cell.configuration, cell.round)
        how = (cell.configuration, cell.round, cell.folder, progress.listen)
        yield cell, pool.record_configuration(*how, control=control)


def _elsewhere(
    plans: Sequence[tuple[Any, deque[Cell]]], progress: Progress, **how: Any
) -> Generator[tuple[Cell, Recorded]]:
    """Each cell of the executors with its result, as they arrive; the jobs have `how`.

    Only two jobs a worker are submitted at a time, so that workers that join later get some. A
    future is dropped with its result, since Dask records again what a lost worker had and is still
    wanted. Raises `StoreError` if an executor gives a result twice.
    """
    how |= {"series": secrets.token_hex(8), "added": registry.added}
    running: dict[futures.Future, Cell] = {}
    try:
        while running or any(queue for _, queue in plans):
            for executor, queue in plans:
                client = getattr(executor, "_client", None)  # of Dask
                workers = (
                    len(client.nthreads()) if client else getattr(executor, "_max_workers", 32)
                )
                jobs = (
                    sum(cell.folder == queue[0].folder for cell in running.values()) if queue else 0
                )
                for cell in [
                    queue.popleft() for _ in range(min(len(queue), max(1, 2 * workers) - jobs))
                ]:
                    plain = cell.configuration.as_dict()
                    plain["options"] |= {"device_index": cell.configuration.options.device_index}
                    job = {"key": cell.key, "round": cell.round, "configuration": plain, **how}
                    running[executor.submit(record_task, job)] = cell
                progress.submitted(len(running), workers)
            done = futures.wait(running, POLL_S, futures.FIRST_COMPLETED).done
            while done:
                yield _kept(running, done.pop())
    finally:
        for future in running:
            future.cancel()


def _kept(running: dict[futures.Future, Cell], future: futures.Future) -> tuple[Cell, Recorded]:
    """The cell of a future and its result, whose file takes the place of the cell's earlier
    failures."""
    cell = running.pop(future)
    try:
        result = future.result()
    except _ENDED:
        raise
    except (
        Exception
    ) as error:  # every executor has its own, such as Dask's if several workers died of this
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


def sweep(
    workloads: Iterable[Workload],
    runtimes: Sequence[str | None] = (None,),
    protocol: Protocol | Sequence[Protocol] | None = None,
    options: Options | Sequence[Options] | None = None,
    *,
    out: str | os.PathLike,
    mode: str | None = None,
    executor: Executors = None,
    **how: Any,
) -> SweepReport:
    """Record every workload (a `Grid`, or any workloads) on every runtime into `out`; resumes if
    interrupted.

    With several protocols or options, each is recorded; `Options.each(precision=["fp32", "bf16"])`
    makes options with several precisions. A runtime is skipped for the precisions that it does not
    support on its device, with a warning in the report. A runtime None is the default of the
    workload's kind, as in `describe`.

    `how` is passed to `run_sweep`: `rounds`, `control`, `time_limit_s`, `memory_limit` (bytes),
    `retry_failed`, `wait`, `show_progress` and `seed` (of the order). Raises what
    `plan_configurations` and `run_sweep` raise.
    """
    wanted, skipped = plan_configurations(
        workloads, runtimes, protocol, options, mode, anywhere=executor is not None
    )
    return run_sweep(wanted, out, warnings=skipped, executor=executor, **how)


def plan_configurations(
    workloads: Iterable[Workload],
    runtimes: Iterable[str | None],
    protocol: Protocol | Sequence[Protocol] | None = None,
    options: Options | Sequence[Options] | None = None,
    mode: str | None = None,
    anywhere: bool = False,
) -> tuple[list[Configuration], list[str]]:
    """The configurations that `sweep` records, and a line for each runtime that is skipped for some
    precisions.

    Raises what `describe` raises; an unsupported precision is an error only if no configuration is
    left.
    """
    wanted: list[Configuration] = []
    lacking: dict[tuple, dict[str, UnsupportedPrecision]] = {}
    sides = (
        as_list(workloads),
        dict.fromkeys(as_list(runtimes)),
        as_list(protocol),
        as_list(options),
    )
    for workload, runtime, protocol_of_it, options_of_it in itertools.product(*sides):
        try:
            wanted.append(
                describe(workload, runtime, protocol_of_it, options_of_it, mode, anywhere=anywhere)
            )
        except UnsupportedPrecision as error:
            lacking.setdefault((error.runtime, error.device), {})[error.precision] = error
    lines = []
    for (runtime, device), errors in lacking.items():
        *_, last = errors.values()
        lines.append(
            f"{runtime} on {device} does not support {listed(errors)}: choose from {listed(last.offered)}"
        )
    if lines and not wanted:
        raise UsageError("; ".join(lines))
    return wanted, [f"skipped: {line}" for line in lines]
