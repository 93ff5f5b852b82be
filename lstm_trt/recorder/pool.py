"""The processes that make references and record, seen from the parent.

A `WorkerPool` has one process that makes references: it exports networks and computes the outputs
that the parity gate compares with. And it has one worker per runtime and options, pinned before the
runtime is imported; on a GPU one per runtime, for all precisions. Within a pool no reference is
made while trials are timed. Pools take turns on the cores that they time
(`store.locks.timing_lock`); meanwhile they make references on other cores. If a process is lost,
only the configuration in progress fails (`process.py`).
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

from lstm_trt.config.configuration import COPIES, Configuration, Options, Protocol
from lstm_trt.config.errors import ConfigurationFailed, LabError, UsageError, check_number
from lstm_trt.config.format import count, latency, microseconds, percent
from lstm_trt.config.workload import Workload, check_whole
from lstm_trt.machine import facts, linux
from lstm_trt.machine.process import Interpreter
from lstm_trt.recorder.beside import cores_of, load_text
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.jobs import CopyJob, RecordJob, ReferenceJob, Seconds, Written
from lstm_trt.recorder.process import SILENCE_LIMIT_S, Limits, Listener, Process, WorkerLost
from lstm_trt.runtimes.base import preparer_of
from lstm_trt.store import files, folders
from lstm_trt.store.locks import folder_lock, timing_lock
from lstm_trt.store.schema import Failure, Recording
from lstm_trt.store.temporary import temporary_folder

#: Share of the available memory that a worker may use.
MEMORY_SHARE = 0.8

#: The cost of an empty step is shown if it is at least this share of the median.
SHOWN_SHARE = 0.005


@dataclass(frozen=True)
class Recorded:
    """Result for one configuration: a recording, with what its process answered, or a failure row.

    `path`: its file. `seconds`: wall time by activity.
    """

    path: Path
    failure: Failure | None
    seconds: Seconds
    written: Written | None = None

    @property
    def warnings(self) -> list[str]:
        return self.written.warnings if self.written else []

    def check(self, kept: bool = True) -> None:
        """Raise `WorkerLost` if the configuration failed; `kept`: its row stays in the folder."""
        if self.failure is None:
            return
        text = f"{self.failure.stage}: {self.failure.reason}"
        if kept:
            text += (
                f"; {self.path} keeps this failure until it is deleted or the configuration is"
                " recorded"
            )
        raise WorkerLost(self.failure.stage, text)


class WorkerPool:
    """The processes of one campaign; a context manager that ends all of them.

    `wait`: whether to wait while another recording uses the same cores or device, or for how many
    seconds at most; then `UsageError` is raised. `single`: for one configuration; one that is
    invalid raises `UsageError` and leaves no failure row. `interpreters`: configuration id ->
    Python of its worker; None, or no entry, is the current one.
    """

    def __init__(
        self,
        time_limit_s: float | None = None,
        memory_limit: int | None = None,
        interpreters: Mapping[str, Interpreter | None] | None = None,
        wait: bool | float = True,
        single: bool = False,
    ) -> None:
        self.time_limit_s = time_limit_s
        self.memory_limit = memory_limit
        self._most_memory = int(MEMORY_SHARE * linux.available_memory_bytes())
        self._interpreters = {} if interpreters is None else interpreters
        self._wait = wait
        self._single = single
        self._workers: dict[tuple, Process] = {}
        self._maker: Process | None = None
        self._open = ExitStack()
        self._logs = self._open.enter_context(temporary_folder())
        self._series: object = None

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end_workers()
        if self._maker:
            self._maker.close(0.0)
        self._open.close()

    def begin_series(self, series: object) -> None:
        """End the workers if those recordings, such as a round, were of another series."""
        if series != self._series:
            self.end_workers()
        self._series = series

    def end_workers(self) -> None:
        """End the workers, so that the next round starts new ones; the one of references stays."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _reference_process(self) -> Process:
        if self._maker is None or not self._maker.alive:
            self._maker = Process(None, self._logs, "reference")
        return self._maker

    def _worker(self, configuration: Configuration) -> Process:
        interpreter = self._interpreters.get(configuration.id)
        options = configuration.options
        # On a GPU a process takes seconds and half a GB, and these are no settings of it.
        if options.device != "cpu":
            options = replace(
                options,
                precision=Options.precision,
                graph=False,
                device_clocks=Options.device_clocks,
            )
        key = (configuration.runtime, options, options.device_index, interpreter)
        worker = self._workers.get(key)
        if worker is None or not worker.alive:
            if options.device != "cpu":
                self._leave_device(options)
            name = f"{configuration.runtime}-{len(self._workers)}"
            worker = Process(options, self._logs, name, interpreter)
            self._workers[key] = worker
        return worker

    def _leave_device(self, options: Options) -> None:
        """End the other workers on a GPU that allows one process only."""
        place = options.device_index
        others = [
            key for key in self._workers if (key[1].device, key[2]) == (options.device, place)
        ]
        if not others:
            return
        from lstm_trt.machine import gpu

        with gpu.Nvml() as session:
            if session.one_process_only(place):
                for key in others:
                    self._workers.pop(key).close()

    def record_configuration(
        self,
        configuration: Configuration,
        round: int,
        folder: Path,
        listener: Listener = lambda message: None,
        *,
        control: bool = False,
        asked_s: float | None = None,
    ) -> Recorded:
        """Record one configuration into `folder`, or write its failure row there.

        `control`: with a control run. `asked_s`: duration of a recording by time. `listener` also
        gets `{"event": "waiting", "holder": ...}` while another recording uses the cores. Raises
        `StoreError` if neither can be written, and `UsageError` if another recording uses the cores
        for longer than `wait`.
        """
        job = RecordJob(
            configuration.as_dict(),
            {},
            str(folder),
            round,
            control,
            asked_s,
            load_cores=cores_of(configuration.protocol, configuration.options),
        )
        if not self._wait:
            with timing_lock(resources(configuration.options, job.load_cores), wait=False):
                pass  # refused before preparing, which can take long
        times = Stopwatch(listener)
        try:
            written = self._written(configuration, job, times)
        except ConfigurationFailed as error:
            if self._single and error.invalid:
                raise UsageError(str(error)) from None
            failure = failure_of(configuration, round, error)
            failed_at = time.monotonic()
            path = files.write_failure(failure, folder)
            return Recorded(path, failure, times.of_failure(failed_at))
        files.forget_failure(configuration, round, folder)
        return Recorded(Path(written.path), None, times.with_preparing(written.seconds), written)

    def _written(self, configuration: Configuration, job: RecordJob, times: Stopwatch) -> Written:
        """Make the reference, wait for the cores, and let the worker record."""

        def tell_holder(holder: str) -> None:
            times({"event": "waiting", "holder": holder})

        preparer = preparer_of(configuration.workload)
        preparer.check(configuration)
        if preparer.FRESH_PROCESS:
            self.end_workers()
        limits = Limits(
            self.time_limit_s,
            self.memory_limit or self._most_memory,
            silence_limit_s(configuration.protocol),
        )
        worker = self._worker(configuration)  # starts while the reference is made
        with self._reference(configuration, limits, times) as reference:
            needed = resources(configuration.options, job.load_cores)
            lock = timing_lock(needed, self._wait, tell_holder)
            with (
                times.waiting(lock) as unlocked,
                self._copies(configuration, reference, job.load_cores, limits) as copies,
            ):
                job = replace(job, reference=reference, unlocked=tuple(unlocked), copies=copies)
                return worker.call(job, limits, times)

    @contextmanager
    def _copies(
        self,
        configuration: Configuration,
        reference: Mapping,
        load_cores: Sequence[int],
        limits: Limits,
    ) -> Iterator[tuple[int, ...]]:
        """Process ids of the copies that the protocol asks for, which call the step meanwhile."""
        options = configuration.options
        cores = cycle(load_cores)
        with ExitStack() as held:
            pids = []
            for number in range(int(dict(configuration.protocol.beside).get(COPIES, 0))):
                pinned = replace(options, cores=tuple(islice(cores, options.threads)))
                copy = Process(pinned, self._logs, f"copy-{number}")
                held.callback(copy.close, 0.0)
                asked = replace(configuration, options=pinned)
                copy.call(CopyJob(asked.as_dict(), reference), limits)
                pids.append(copy.child.pid)
            yield tuple(pids)

    @contextmanager
    def _reference(
        self, configuration: Configuration, limits: Limits, listener: Listener
    ) -> Iterator[dict]:
        """The reference for a configuration, with the gate's seed and the file of the outputs.

        The file is deleted afterwards.
        """
        path = self._logs / f"reference-{secrets.token_hex(8)}.npy"
        seed = secrets.randbits(32)
        job = ReferenceJob(configuration.as_dict(), seed, str(path))
        try:
            made = self._reference_process().call(job, limits, listener)
            yield {"gate_seed": seed, "reference_path": str(path)} | made
        finally:
            path.unlink(missing_ok=True)


class Stopwatch:
    """Listens to the messages of one recording, and measures what it spends its time with."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._began = time.monotonic()
        self._waited_s = 0.0
        self._run_at: float | None = None

    def __call__(self, message: dict) -> None:
        if message["event"] == "stage" and message["stage"] == "run":
            self._run_at = time.monotonic()
        self._listener(message)

    @contextmanager
    def waiting(self, lock: AbstractContextManager[list[str]]) -> Iterator[list[str]]:
        """Hold a lock; the time until it is free counts as nothing."""
        asked = time.monotonic()
        with lock as unlocked:
            self._waited_s += time.monotonic() - asked
            yield unlocked

    def of_failure(self, failed_at: float) -> Seconds:
        """A failure counts as preparing until the loop starts and as timing after that."""
        run_at = failed_at if self._run_at is None else self._run_at
        storing = time.monotonic() - failed_at
        return self.with_preparing(Seconds(timing=failed_at - run_at, storing=storing))

    def with_preparing(self, seconds: Seconds) -> Seconds:
        """These times, and as preparing all that has passed besides."""
        known_s = seconds.timing + seconds.control + seconds.storing
        passed_s = time.monotonic() - self._began - self._waited_s
        return replace(seconds, preparing=passed_s - known_s)


def resources(options: Options, load_cores: Sequence[int] = ()) -> list[str]:
    """What a recording must have to itself: its physical cores and those of its loads, and the GPU,
    by its address on the bus."""
    cores = linux.sibling_cores((*options.cores, *load_cores))
    needed = [f"core-{core}" for core in cores]
    if options.device != "cpu":
        from lstm_trt.machine import gpu

        if device := gpu.device_here(options.device_index):
            needed.append(f"gpu-{device.pci_bus_id}")
    return needed


def waiting_text(message: dict) -> str:
    """The `waiting` message of `WorkerPool.record_configuration` as text."""
    return f"waits until another recording on the same cores ends ({message['holder']})"


def remarks(
    control: Mapping | None,
    clock: Mapping,
    nan_reaches_output: bool | None,
    beside: Iterable[Mapping] = (),
) -> list[str]:
    """What a recording's control run, the costs of its clock, a NaN in its inputs and its loads
    showed, if it matters.

    `clock`: the results of `facts.clock_cost` and `loop.against_clock`.
    """
    found = []
    if control:
        found.append(
            f"control run of an empty step: max {microseconds(control['max_us'])} us"
            f" of {count(control['calls'], 'call')}"
        )
    if clock["median_share"] >= SHOWN_SHARE:
        found.append(
            f"an empty step takes {latency(clock['call_ns'] / 1e3, 2)},"
            f" {percent(clock['median_share'])} of the median;"
            f" calls from {latency(clock['shortest_us'], 2)} are resolved"
        )
    if nan_reaches_output is False:
        found.append(nan_text(False))
    found += map(load_text, beside)
    return found


def nan_text(reaches_output: bool | None) -> str:
    """The result of `parity.nan_reaches_output` in words; empty if there is none."""
    if reaches_output is None:
        return ""
    return f"a NaN in the input {'reaches' if reaches_output else 'does not reach'} the output"


def check_limits(time_limit_s: float | None, rounds: int = 1) -> None:
    """Raises `UsageError` unless there is at least one round and the time limit is positive."""
    check_whole("rounds", rounds, 1)
    if time_limit_s is not None:
        check_number(
            "the time limit must be greater than 0 s", time_limit_s, lambda seconds: seconds > 0
        )


def silence_limit_s(protocol: Protocol) -> float:
    """How long a worker may send no message: it sends the first only after the calls of the first
    block."""
    return SILENCE_LIMIT_S + protocol.gap_s * (max(protocol.warmup, protocol.settle) + 1)


def failure_of(configuration: Configuration, round: int, error: LabError) -> Failure:
    """The failure row of an error; of a traceback without the machine's folders, since it is
    stored."""
    detail = re.sub(r'File "[^"]*/([^/"]+/[^/"]+)"', r'File "\1"', getattr(error, "detail", ""))
    machine = facts.describe(configuration.options.device)
    provenance = {"machine_fingerprint": facts.fingerprint(machine)}
    if detail:
        provenance["detail"] = detail
    return Failure(configuration, round, getattr(error, "stage", "build"), str(error), provenance)


def next_round(configuration: Configuration, folder: Path) -> int:
    """The first round of this configuration in `folder` that failed, else the number after its last
    round."""
    recorded, failed = folders.finished(folder)
    again = [round for identity, round in failed if identity == configuration.id]
    if again:
        return min(again)
    done = [round for identity, round in recorded if identity == configuration.id]
    return max(done) + 1 if done else 0


def recorded_rounds(configuration: Configuration, folder: Path, rounds: int) -> list[Recording]:
    """The recordings of a configuration in `folder` in its first so many rounds, in their order."""
    found = []
    for item in folders.read_many(folder, skipped=[]):
        is_same = isinstance(item, Recording) and item.configuration.id == configuration.id
        if is_same and item.round < rounds:
            found.append(item)
    return sorted(found, key=lambda recording: recording.round)


def record(  # noqa: PLR0913
    workload: Workload,
    runtime: str | None = None,
    protocol: Protocol | None = None,
    options: Options | None = None,
    *,
    rounds: int | None = None,
    mode: str | None = None,
    control: bool = True,
    out: str | os.PathLike | None = None,
    time_limit_s: float | None = None,
    wait: bool | float = True,
    listener: Listener = lambda message: None,
) -> Recording:
    """Record one workload on one runtime in a fresh, pinned process.

    `control` adds a control run of an empty step. With `out`, the recording is written to this
    folder, as a further round if it already contains the configuration. With `rounds`, as in
    `sweep`, those of so many rounds are recorded that `out` does not contain yet, each in a new
    process, and the last is returned. `wait`: whether to wait while another recording uses the same
    cores, or for how many seconds at most. `listener` gets the process's messages (stages,
    progress), and before each of several `rounds` `{"event": "round", "round": ...}`. Raises
    `UsageError`, `RuntimeUnavailable`, or `ConfigurationFailed` with stage and reason.
    """
    configuration = describe(workload, runtime, protocol, options, mode)
    check_limits(time_limit_s, 1 if rounds is None else rounds)
    if rounds is not None and out is None:
        raise UsageError("rounds are recorded into a folder: give out as well")
    with ExitStack() as stack:
        kept = stack.enter_context(temporary_folder()) if out is None else out
        folder = files.make_folder(Path(kept))
        stack.enter_context(folder_lock(folder))
        pool = stack.enter_context(WorkerPool(time_limit_s, wait=wait, single=True))
        if rounds is None:
            number = next_round(configuration, folder)
            outcome = pool.record_configuration(
                configuration, number, folder, listener, control=control
            )
            outcome.check(kept=out is not None)
            return files.read(outcome.path)
        folders.tidy(folder)
        recorded, _ = folders.finished(folder)
        for number in range(rounds):
            if (configuration.id, number) not in recorded:
                pool.begin_series(number)
                listener({"event": "round", "round": number})
                pool.record_configuration(
                    configuration, number, folder, listener, control=control
                ).check()
        return recorded_rounds(configuration, folder, rounds)[-1]
