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
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from lstm_trt.config.configuration import TIERS, Configuration, Options, Protocol, cell_key
from lstm_trt.config.errors import UnsupportedPrecision, UsageError
from lstm_trt.config.format import count, duration, listed
from lstm_trt.config.workload import Workload
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.pool import Recorded, Seconds, WorkerPool, check_limits, waiting_text
from lstm_trt.recorder.process import Interpreter
from lstm_trt.recorder.task import Arrival, Cell, record_elsewhere
from lstm_trt.store import files, folders, schema
from lstm_trt.store.locks import folder_lock


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookBar(tqdm):
    """A progress bar as text in the output of a cell; updates replace it, so that a notebook is saved with the last.

    Not `tqdm.notebook`: its widgets need ipywidgets, and a saved notebook shows an error in their place.
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
    """Progress line with the current configuration, the number done and the remaining time; updates the report."""

    def __init__(self, plan: Sequence[Configuration], report: SweepReport, show: bool) -> None:
        self._report, self._began = report, time.monotonic()
        self._costs = [_cost(each) for each in plan]
        self._done: list[tuple[tuple, Recorded]] = []
        self._left_s = 0.0
        self._running = ""
        self._versions = Counter(runtime for runtime, _ in {(each.runtime, each.runtime_version) for each in plan})
        self._show = show and report.left > 0
        self._bar = None
        self._shown_at = -math.inf
        #: Shortest time between two lines; each update of a notebook makes the browser draw.
        self._every_s = 10.0

    def __enter__(self) -> Progress:
        in_notebook = _in_notebook()
        if self._show and (in_notebook or sys.stderr.isatty()):
            self._every_s = 0.5 if in_notebook else 0.0
            self._bar = (NotebookBar if in_notebook else tqdm)(
                total=self._report.total,
                initial=self._report.done_before + self._report.failed_before,
                bar_format="{n_fmt}/{total_fmt} |{bar:20}| {elapsed}{postfix}",
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

    def listen(self, message: dict) -> None:
        if message["event"] == "submitted":
            self._running = f"{count(message['jobs'], 'job')} submitted, {self._report.machines_text}"
            self._show_line(self._running)
        if message["event"] == "waiting":
            self._show_line(f"{self._running} {waiting_text(message)}", soon=True)
        if message["event"] == "progress" and message["done"] and message["total"] > message["done"]:
            self._show_line(f"{self._running} {100 * message['done'] // message['total']} %")

    def end(self, configuration: Configuration, outcome: Recorded) -> None:
        report = self._report
        report.seconds.add(outcome.seconds)
        if outcome.failure:
            report.failures.append(outcome.failure)
        else:
            report.recorded += 1
        report.warnings.extend(f"{configuration.name}: {text}" for text in outcome.warnings)
        self._costs.remove(cost := _cost(configuration))
        self._done.append((cost, outcome))
        parallel = report.seconds.spent / (time.monotonic() - self._began)  # above 1 with an executor
        self._left_s = self.seconds_left() / max(1.0, parallel)
        if self._bar is not None:
            self._bar.update()
        else:
            self._show_line("")

    def seconds_left(self) -> float:
        """Estimated from the remaining gaps between calls and each runtime's rate of operations so far."""
        overhead_s, spent_s, work_done = 0.0, defaultdict(float), defaultdict(float)
        for (runtime, scheduled_s, work), outcome in self._done:
            seconds = outcome.seconds
            overhead_s += seconds.spent - seconds.timing
            for known in (runtime, None) if not outcome.failure else ():  # None: over all runtimes
                spent_s[known] += max(0.0, seconds.timing - scheduled_s)
                work_done[known] += work
        left_s = 0.0
        for runtime, scheduled_s, work in self._costs:
            known = runtime if work_done[runtime] else None
            # The work is 0 with periodic arrivals, where the schedule sets the duration.
            left_s += overhead_s / len(self._done) + scheduled_s + work * spent_s[known] / (work_done[known] or 1)
        return left_s

    def _show_line(self, running: str, soon: bool = False) -> None:
        """Show the line, but none that follows another too early, unless `soon`."""
        if not self._show or (time.monotonic() - self._shown_at < self._every_s and not soon):
            return
        self._shown_at = time.monotonic()
        report = self._report
        failed = f"{len(report.failures)} failed" if report.failures else ""
        time_left = f"about {duration(self._left_s)} left" if self._done else "remaining time not known yet"
        text = ", ".join(filter(None, [running, failed, time_left]))
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        else:
            print(f"{report.total - report.left}/{report.total}  {text}", file=sys.stderr, flush=True)


def _cost(configuration: Configuration) -> tuple[str, float, int]:
    """Runtime, seconds of the schedule, and operations beside it."""
    protocol, calls = configuration.protocol, configuration.protocol.trials + configuration.protocol.warmup
    work = 0 if protocol.period_us else calls * configuration.workload.work(configuration.mode)
    return configuration.runtime, protocol.scheduled_s, work


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
        return self.total - self.done_before - self.failed_before - self.recorded - len(self.failures)

    @property
    def machines_text(self) -> str:
        """`node1 12, node2 11`: what the machines of an executor have recorded."""
        return listed(f"{name} {number}" for name, number in self.machines.most_common() if name)

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
        failed = [(of.name, of.runtime, of.options.precision, each.stage, each.reason) for each, of in configured]
        counted = ("total", "done_before", "failed_before", "recorded", "left", "stopped", "wall_s", "preparing_s_each")
        return {
            **{name: getattr(self, name) for name in (*counted, "efficiency", "warnings")},
            **{f"{name}_s": seconds for name, seconds in asdict(self.seconds).items()},
            **({"machines": dict(self.machines)} if self.machines_text != "none" else {}),
            "failed": len(self.failures),
            "failures": [dict(zip(names, values, strict=True)) for values in failed],
        }

    def __str__(self) -> str:
        others = {"already recorded": self.done_before, "failed earlier": self.failed_before, "left": self.left}
        counts = [f"{self.recorded} recorded", f"{len(self.failures)} failed"]
        counts += [f"{number} {what}" for what, number in others.items() if number]
        lines = [f"{', '.join(counts)}, of {self.total}; total time {duration(self.wall_s)}"]
        if self.efficiency is not None:
            seconds, each = self.seconds, f"{self.preparing_s_each:.2f} s per configuration"
            preparing = f"preparing {seconds.preparing:.1f} s ({each}, including the start of workers)"
            timing = f"timing {seconds.timing:.1f} s ({100 * self.efficiency:.1f} % of it inside trials)"
            control = f"control runs {seconds.control:.1f} s, " if seconds.control else ""
            lines.append(f"{preparing}, {timing}, {control}storing {seconds.storing:.1f} s")
        shown = self.failures[:FAILURES_LISTED]
        lines += [f"failed: {each.configuration.title} at {each.stage}: {each.reason}" for each in shown]
        more = len(self.failures) - FAILURES_LISTED
        if more > 0:
            lines.append(f"and {count(more, 'more failure')}; lstm-trt summarize lists all of them")
        if self.failures or self.failed_before:
            kept = "each failure is a file CONFIG_ID-rROUND.failure.json in the folder of recordings"
            lines.append(f"{kept}: --retry-failed repeats it, and deleting the file forgets it")
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


Item = TypeVar("Item")


def default_rounds(trials: int) -> int:
    """3 rounds from the Compare tier on, else 1: a comparison needs several processes, not only many trials."""
    return 3 if trials >= TIERS["compare"] else 1


def order(items: Iterable[Item], rounds: int, seed: int) -> Iterator[list[Item]]:
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
    wait: bool = True,
    show_progress: bool = True,
    interpreters: Mapping[str, Interpreter | None] | None = None,
    warnings: Iterable[str] = (),
    executor: Executor | Mapping[str, Executor] | None = None,
) -> SweepReport:
    """Record the configurations that `out` does not contain yet; Ctrl-C ends it cleanly with `report.stopped`.

    `rounds`: how often each configuration is recorded (None: `default_rounds` of the largest
    number of trials). `control`: add a control run after each, which doubles the run time.
    `wait`: whether to wait while another recording uses the same cores. `interpreters`:
    configuration id -> Python that records it; None, or no entry, is the current one. `warnings`: lines
    for the report. If a configuration fails, a failure row is written and the sweep continues.

    `executor` runs the recordings as tasks (`task.record_task`), on whichever machine; a mapping of names to executors
    records all on each, into a folder of its name. What any machine has recorded counts as recorded.

    Raises `UsageError` if the folder is unusable or in use, the executor cannot record this or has ended, or without
    `wait` the cores are in use; `StoreError` if the disk is full. Completed recordings are kept.
    """
    if rounds is None:
        rounds = default_rounds(max((item.protocol.trials for item in configurations), default=1))
    check_limits(time_limit_s, rounds)
    local = executor is None
    if not local and (interpreters or not wait or any(each.protocol.for_s for each in configurations)):
        raise UsageError("an executor records no soaks (for_s) and no versions, and it waits for cores (no --no-wait)")
    keyed = {each.id if local else cell_key(each.as_dict()): each for each in dict.fromkeys(configurations)}
    keys = [(key, number) for number, shuffled in enumerate(order(keyed, rounds, seed)) for key in shuffled]
    began, report, plan = time.monotonic(), SweepReport(0, warnings=[*warnings]), []
    with ExitStack() as stack:
        for name, each in executor.items() if isinstance(executor, Mapping) else [("", executor)]:
            folder = files.make_folder(Path(out) / name)
            stack.enter_context(folder_lock(folder))
            if local:
                moved, (recorded, known) = folders.tidy(folder), folders.finished(folder)
                failed = dict.fromkeys(known, ())
            else:
                moved, recorded, failed = folders.finished_anywhere(folder)
            again = "it has been moved aside and is recorded again"
            report.warnings += [f"{path.name} was damaged; {again}" for path in moved]
            left = [key for key in keys if key not in recorded]
            todo = [key for key in left if retry_failed or key not in failed]
            plan += [Cell(each, folder, *key, keyed[key[0]], failed.get(key, ())) for key in todo]
            report.total += len(keys)
            report.done_before += len(keys) - len(left)
            report.failed_before += len(left) - len(todo)
            report.folders.append(folder)
        progress = stack.enter_context(Progress([cell.configuration for cell in plan], report, show_progress))
        how = {"control": control, "time_limit_s": time_limit_s, "memory_limit": memory_limit}
        if local:
            pool = stack.enter_context(WorkerPool(time_limit_s, memory_limit, interpreters, wait))
            recordings = _record_here(plan, pool, progress, control)
        else:
            recordings = stack.enter_context(closing(record_elsewhere(plan, progress.listen, **how)))
        try:
            for cell, outcome, machine in recordings:
                report.machines[machine] += 1
                progress.end(cell.configuration, outcome)
        except KeyboardInterrupt:
            report.stopped = True
        report.wall_s = time.monotonic() - began
    return report


def _record_here(plan: Iterable[Cell], pool: WorkerPool, progress: Progress, control: bool) -> Iterator[Arrival]:
    for cell in plan:
        pool.begin_series(cell.round)
        progress.begin(cell.configuration, cell.round)
        how = (cell.configuration, cell.round, cell.folder, progress.listen)
        yield cell, pool.record_configuration(*how, control=control), ""


def sweep(
    workloads: Iterable[Workload],
    runtimes: Sequence[str | None] = (None,),
    protocol: Protocol | Sequence[Protocol] | None = None,
    options: Options | Sequence[Options] | None = None,
    *,
    out: str | os.PathLike,
    mode: str | None = None,
    executor: Executor | Mapping[str, Executor] | None = None,
    **how: Any,
) -> SweepReport:
    """Record every workload (a `Grid`, or any workloads) on every runtime into `out`; resumes if interrupted.

    With several protocols or options, each is recorded; `Options.each(precision=["fp32", "bf16"])` makes options
    with several precisions. A runtime is skipped for the precisions that it does not support on its device, with a
    warning in the report. A runtime None is the default of the workload's kind, as in `describe`.

    `how` is passed to `run_sweep`: `rounds`, `control`, `time_limit_s`, `memory_limit` (bytes), `retry_failed`,
    `wait`, `show_progress` and `seed` (of the order). Raises what `plan_configurations` and `run_sweep` raise.
    """
    wanted, skipped = plan_configurations(workloads, runtimes, protocol, options, mode, anywhere=executor is not None)
    return run_sweep(wanted, out, warnings=skipped, executor=executor, **how)


def plan_configurations(
    workloads: Iterable[Workload],
    runtimes: Iterable[str | None],
    protocol: Protocol | Sequence[Protocol] | None = None,
    options: Options | Sequence[Options] | None = None,
    mode: str | None = None,
    anywhere: bool = False,
) -> tuple[list[Configuration], list[str]]:
    """The configurations that `sweep` records, and a line for each runtime that is skipped for some precisions.

    Raises what `describe` raises; an unsupported precision is an error only if no configuration is left.
    """
    wanted: list[Configuration] = []
    lacking: dict[tuple, dict[str, UnsupportedPrecision]] = {}
    several = (each if isinstance(each, Sequence) else [each] for each in (protocol, options))
    sides: list[Any] = [workloads, dict.fromkeys(runtimes), *several]
    for workload, runtime, protocol_of_it, options_of_it in itertools.product(*sides):
        try:
            wanted.append(describe(workload, runtime, protocol_of_it, options_of_it, mode, anywhere=anywhere))
        except UnsupportedPrecision as error:
            lacking.setdefault((error.runtime, error.device), {})[error.precision] = error
    lines = []
    for (runtime, device), errors in lacking.items():
        *_, last = errors.values()
        lines.append(f"{runtime} on {device} does not support {listed(errors)}: choose from {listed(last.offered)}")
    if lines and not wanted:
        raise UsageError("; ".join(lines))
    return wanted, [f"skipped: {line}" for line in lines]
