"""The processes that prepare and record, seen from the parent.

A `WorkerPool` has one preparing process, which exports networks and computes the reference outputs,
and one worker per runtime and options, pinned before the runtime is imported; on a GPU one per
runtime, for all precisions. Within a pool nothing is prepared while trials are timed. Pools take
turns on the cores that they time (`store.locks.timing_lock`); meanwhile they prepare on other
cores. If a process is lost, only the configuration in progress fails (`process.py`).
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import ConfigurationFailed, LabError, UsageError, check_number
from lstm_trt.config.format import count, latency, microseconds, percent
from lstm_trt.config.workload import Workload, check_whole
from lstm_trt.machine import facts, linux
from lstm_trt.machine.process import Interpreter
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.process import SILENCE_LIMIT_S, Listener, Process, WorkerLost
from lstm_trt.runtimes.base import preparer_of
from lstm_trt.store import files, folders
from lstm_trt.store.locks import folder_lock, timing_lock
from lstm_trt.store.schema import Failure, Recording
from lstm_trt.store.temporary import temporary_folder

#: Total size of the shared references that are kept for further runtimes; one can take 256 MB.
ANSWERS_KEPT_BYTES = 600_000_000


#: Share of the available memory that a worker may use.
MEMORY_SHARE = 0.8

#: The cost of an empty step is shown if it is at least this share of the median.
SHOWN_SHARE = 0.005


@dataclass
class Seconds:
    """Wall time of a sweep by activity."""

    preparing: float = 0.0
    timing: float = 0.0
    inside_trials: float = 0.0
    control: float = 0.0
    storing: float = 0.0

    def add(self, other: Seconds) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Recorded:
    """Result for one configuration: a recording or a failure row, at `path`; `message` is the
    worker's last message."""

    path: Path
    failure: Failure | None
    seconds: Seconds
    message: dict = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        return self.message.get("warnings", [])

    def check(self, kept: bool = True) -> None:
        """Raises `WorkerLost` if the configuration failed; `kept`: the failure row stays in the
        user's folder."""
        if self.failure:
            row = (
                f"; {self.path} keeps this failure until it is deleted or the configuration is recorded"
                * kept
            )
            raise WorkerLost(
                self.failure.stage, f"{self.failure.stage}: {self.failure.reason}{row}"
            )


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
        self._wait, self._single, self._interpreters = wait, single, interpreters or {}
        self.time_limit_s = time_limit_s
        self.memory_limit, self._most_memory = (
            memory_limit,
            int(MEMORY_SHARE * linux.available_memory_bytes()),
        )
        self._workers: dict[tuple, Process] = {}
        self._preparer: Process | None = None
        self._references: dict[str | None, dict] = {}  # by `Preparer.reference_key`
        self._open = ExitStack()
        self._logs = self._open.enter_context(temporary_folder())
        self._series: object = None

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end_workers()
        if self._preparer:
            self._preparer.close(0.0)
        self._open.close()

    def begin_series(self, series: object) -> None:
        """End the workers if those recordings, such as a round, were of another series."""
        if series != self._series:
            self.end_workers()
        self._series = series

    def end_workers(self) -> None:
        """End the workers, so that the next round starts new ones; the preparing process is kept."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _prepare_process(self) -> Process:
        if self._preparer is None or not self._preparer.alive:
            self._preparer = Process(None, self._logs, "preparer")
        return self._preparer

    def _worker(self, configuration: Configuration) -> Process:
        interpreter, options = self._interpreters.get(configuration.id), configuration.options
        if (
            options.device != "cpu"
        ):  # a process takes seconds and half a GB there, and these are no settings of it
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
            worker = self._workers[key] = Process(options, self._logs, name, interpreter)
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
        preparer, needed = preparer_of(configuration.workload), resources(configuration.options)
        if not self._wait:
            with timing_lock(needed, wait=False):  # refuse before preparing, which can take long
                pass
        began, entered = time.monotonic(), {}

        def listen(message: dict) -> None:
            if message["event"] == "stage":
                entered[message["stage"]] = time.monotonic()
            listener(message)

        limits = {
            "time_limit_s": self.time_limit_s,
            "memory_limit": self.memory_limit or self._most_memory,
        }
        limits |= {"listener": listen, "silence_s": silence_limit_s(configuration.protocol)}
        job = {"kind": "record", "configuration": configuration.as_dict(), "folder": str(folder)}
        job["how"] = {"round": round, "control": control, "asked_s": asked_s}
        failure, message = None, {}
        try:
            preparer.check(configuration)
            if preparer.FRESH_PROCESS:
                self.end_workers()
            worker = self._worker(configuration)  # starts while the reference is made
            with self._reference(configuration, limits) as reference:
                asked = time.monotonic()
                with timing_lock(
                    needed,
                    self._wait,
                    lambda holder: listener({"event": "waiting", "holder": holder}),
                ) as unlocked:
                    began += time.monotonic() - asked
                    job["how"]["unlocked"] = unlocked
                    message = worker.call(job | {"reference": reference}, **limits)
            path = Path(message["path"])
        except ConfigurationFailed as error:
            if self._single and error.invalid:
                raise UsageError(str(error)) from None
            failure, ended = failure_of(configuration, round, error), time.monotonic()
            path = files.write_failure(failure, folder)
            message = {
                "seconds": {
                    "timing": ended - entered.get("run", ended),
                    "storing": time.monotonic() - ended,
                }
            }
        else:
            files.forget_failure(configuration, round, folder)
        # Failures count as preparing until the loop starts and as timing after that. For recordings
        # the worker's own times are used: on a busy machine its messages are read with a delay.
        seconds = Seconds(**message["seconds"])
        seconds.preparing = (
            time.monotonic() - began - seconds.timing - seconds.control - seconds.storing
        )
        return Recorded(path, failure, seconds, message)

    @contextmanager
    def _reference(self, configuration: Configuration, limits: dict) -> Iterator[dict]:
        """The reference for a configuration, with the gate's seed and the file of the outputs.

        Those with a `reference_key` are kept, the latest up to `ANSWERS_KEPT_BYTES`; others are
        deleted after use.
        """
        key = preparer_of(configuration.workload).reference_key(configuration)
        found = self._references.pop(key, None)
        if found is None:
            path = self._logs / f"reference-{secrets.token_hex(8)}.npy"
            asked = {"gate_seed": secrets.randbits(32), "reference_path": str(path)}
            job = {"kind": "reference", "configuration": configuration.as_dict(), **asked}
            found = self._prepare_process().call(job, **limits)["reference"] | asked
        self._references[key] = found  # the most recently used is the last
        try:
            yield found
        finally:
            kept = 0
            for name, reference in reversed(list(self._references.items())):
                path = Path(reference["reference_path"])
                kept += path.stat().st_size if name else 0
                if name is None or (kept > ANSWERS_KEPT_BYTES and name != key):
                    del self._references[name]
                    path.unlink(missing_ok=True)


def resources(options: Options) -> list[str]:
    """What a recording must have to itself: its physical cores, and the GPU, by its address on the
    bus."""
    needed = [f"core-{core}" for core in linux.sibling_cores(options.cores)]
    if options.device != "cpu":
        from lstm_trt.machine import gpu

        if device := gpu.device_here(options.device_index):
            needed.append(f"gpu-{device.pci_bus_id}")
    return needed


def waiting_text(message: dict) -> str:
    """The `waiting` message of `WorkerPool.record_configuration` as text."""
    return f"waits until another recording on the same cores ends ({message['holder']})"


def remarks(control: Mapping | None, clock: Mapping, nan_reaches_output: bool | None) -> list[str]:
    """What a recording's control run, the costs of its clock and a NaN in its inputs showed, if it
    matters.

    `clock`: the results of `facts.clock_cost` and `loop.against_clock`.
    """
    found = []
    if control:
        calls = count(control["calls"], "call")
        found.append(
            f"control run of an empty step: max {microseconds(control['max_us'])} us of {calls}"
        )
    if clock["median_share"] >= SHOWN_SHARE:
        empty, shortest = latency(clock["call_ns"] / 1e3, 2), latency(clock["shortest_us"], 2)
        share = percent(clock["median_share"])
        found.append(
            f"an empty step takes {empty}, {share} of the median; calls from {shortest} are resolved"
        )
    return found if nan_reaches_output is not False else [*found, nan_text(nan_reaches_output)]


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
    provenance = {
        "machine_fingerprint": facts.fingerprint(facts.describe(configuration.options.device))
    }
    provenance |= {"detail": detail} if detail else {}
    return Failure(configuration, round, getattr(error, "stage", "build"), str(error), provenance)


def next_round(configuration: Configuration, folder: Path) -> int:
    """The first round of this configuration in `folder` that failed, else the number after its last
    round."""
    recorded, failed = folders.finished(folder)
    again, done = (
        {round for identity, round in found if identity == configuration.id}
        for found in (failed, recorded)
    )
    return min(again, default=max(done, default=-1) + 1)


def recorded_rounds(configuration: Configuration, folder: Path, rounds: int) -> list[Recording]:
    """The recordings of a configuration in `folder`, of its first so many rounds, in their order."""
    found = []
    for item in folders.read_many(folder, skipped=[]):
        if (
            isinstance(item, Recording)
            and item.configuration.id == configuration.id
            and item.round < rounds
        ):
            found.append(item)
    return sorted(found, key=lambda recording: recording.round)


def record(
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
