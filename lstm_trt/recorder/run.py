"""One configuration -> its recording, in this process: build, check, time, write.

`record` and `record_soak` tell it from top to bottom. `loop.py` describes what is timed. This
module runs in a worker process. To record from a notebook, use `pool.record`, which starts one: a
process that has already imported a runtime can no longer be pinned for it.
"""

from __future__ import annotations

import gc
import itertools
import os
import resource
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lstm_trt import registry
from lstm_trt.config.configuration import Configuration, Options, warnings_of
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import latency
from lstm_trt.config.libraries import telemetry
from lstm_trt.machine import counters, facts, real_time
from lstm_trt.machine.linux import THREAD_VARIABLES
from lstm_trt.machine.switches import Switches
from lstm_trt.recorder.beside import Loads
from lstm_trt.recorder.bound import against_bound
from lstm_trt.recorder.jobs import RecordJob, Seconds, Send, Written
from lstm_trt.recorder.loop import (
    UNLIMITED,
    Block,
    Loop,
    Trials,
    against_clock,
    ends,
    pilot,
    quiet_collector,
    run_control,
)
from lstm_trt.recorder.parity import check_parity, nan_reaches_output
from lstm_trt.runtimes.base import PreparedStep, preparer_of
from lstm_trt.store import files
from lstm_trt.store.provenance import joined
from lstm_trt.store.schema import Recording

#: A part of a soak ends after so many seconds, or after the trials of its protocol.
PART_S = 10.0


def record(configuration: Configuration, job: RecordJob, send: Send) -> Written:
    """Record once: build the step and check its outputs, time it, and write the file.

    `send(event, **values)` gets "stage" ("build", "parity", on a GPU "warm-up", "run", "control",
    "store"), and after each block "progress" (done, total). Raises `RunFailed` if the clocks or the
    kind's observer fail their check, and what `set_up` and `files.write` raise.
    """
    total = configuration.protocol.trials

    def tell(done: int) -> None:
        send("progress", done=done, total=total)

    with set_up(configuration, job.reference, send) as run, Session(run, job, send) as session:
        tell(0)
        timed = session.one_pass(UNLIMITED, tell)
        send("stage", stage="store")
        session.loads.add_rates(timed.provenance.get("beside", []))
        written = session.write(timed)
    return Written(written.path, 1, session.trials, session.seconds, written.warnings)


def record_soak(
    configuration: Configuration, job: RecordJob, send: Send, part_s: float = PART_S
) -> Written:
    """Record parts of at most `part_s` seconds until those of the job are over.

    Nothing is timed while a part is written; the state of the network goes on from part to part.
    As `record`, but `send` gets "soak" (elapsed_s, asked_s, trials, parts) in place of "progress".
    The parts written before an error are kept.
    """
    asked_s = job.asked_s or 0.0
    asked_ns = int(1e9 * asked_s)
    clock = time.perf_counter_ns

    def elapsed_s(now_ns: int) -> float:
        return (now_ns - end_ns + asked_ns) / 1e9

    def tell(done: int) -> None:
        so_far = session.trials + done
        send("soak", elapsed_s=elapsed_s(clock()), asked_s=asked_s, trials=so_far, parts=part)

    with set_up(configuration, job.reference, send) as run, Session(run, job, send) as session:
        end_ns = session.origin_ns + asked_ns
        stated: dict[str, Any] = {}
        for part in itertools.count():
            timed = session.one_pass(min(end_ns, clock() + int(1e9 * part_s)), tell)
            elapsed = elapsed_s(timed.ended_ns)
            if part == 0:
                end_ns += clock() - timed.ended_ns  # of the control run
            last = clock() >= end_ns
            if last:
                send("stage", stage="store")
            soak = {"part": part, "last": last, "asked_s": asked_s, "elapsed_s": elapsed}
            written = session.write(timed, part, soak=soak)
            stated = joined([stated, written.stated]) if stated else written.stated
            del timed
            if last:
                break
            gc.collect()  # automatic collection is disabled, possibly for hours
            session.loop.restart()
    warnings = warnings_of(
        configuration.protocol,
        session.rows,
        1e9 * session.seconds.inside_trials,
        stated["self_check"],
        stated["unexplained_cpu_ns"],
    )
    warnings.extend(job.unlocked)
    return Written(written.path, part + 1, session.trials, session.seconds, warnings)


def pin(options: Options) -> None:
    """Pin this process and set the size of thread pools; call it before importing the runtime.

    Raises `UsageError` if the cores may not be used.
    """
    for name in THREAD_VARIABLES:
        os.environ[name] = str(options.threads)
    try:
        os.sched_setaffinity(0, options.cores)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot pin to cores {list(options.cores)}: {error}") from None


@dataclass
class Run:
    """What is recorded: a step that was built and checked, what reads the machine, and the
    provenance that is known before the trials.

    `seconds` by activity. `silence`: the inputs of silence, if the protocol asks for them.
    """

    configuration: Configuration
    step: PreparedStep
    watcher: counters.Watcher
    switches: Switches
    provenance: dict[str, Any]
    seconds: dict[str, float]
    silence: Mapping[str, np.ndarray] = field(default_factory=dict)

    def loop(self) -> Loop:
        """The loop of its trials."""
        options = self.configuration.options
        protocol = self.configuration.protocol
        has_clocks = options.device_clocks != "off"
        changes = protocol.after_warmup or protocol.fifo
        return Loop(
            self.step.step,
            protocol,
            threads=options.threads,
            read_machine=self.watcher.read,
            device_times=self.step.device_times if has_clocks else dict,
            switches=self.switches,
            after_warmup=self._after_warmup if changes else None,
            prepare_next=self.step.prepare_next,
        )

    def _after_warmup(self) -> None:
        protocol = self.configuration.protocol
        if protocol.after_warmup:
            self.step.load_inputs(self.silence)
        if protocol.fifo:
            real_time.enter(protocol.fifo)

    def recording(self, timed: Pass, round: int, part: int | None, more: Mapping) -> Recording:
        """The trials of a pass as a recording; `more`: further provenance."""
        trials = timed.trials
        described = self.step.facts()
        clock = self.provenance["clock"]
        clock = {**clock, **against_clock(trials.median_ns, clock)}
        warnings = [*trials.warnings, *self._device_warnings(timed, described)]
        if trials.median_ns < 1e3 * clock["shortest_us"]:
            warnings.append(
                f"most calls take less than {latency(clock['shortest_us'], 2)} and are not"
                f" resolved: an empty step takes {latency(clock['call_ns'] / 1e3, 2)}"
            )
        options = self.configuration.options
        loads = timed.provenance.get("beside", [])
        load_ns = sum(load["cpu_ns"] for load in loads)
        on_pinned = self.configuration.protocol.beside_on == "same-core"
        numbers = np.arange(len(trials.columns["latency_ns"]), dtype=np.int64)
        columns = {"trial": numbers, **trials.columns}
        provenance = {
            **self.provenance,
            "started_unix_ns": trials.started_unix_ns,
            "threads": {
                "asked": options.threads,
                "pinned_to": sorted(os.sched_getaffinity(0)),
                "process_tasks": len(os.listdir("/proc/self/task")),
            },
            "runtime": described,
            "clock": clock,
            "self_check": trials.self_check,
            "blocks": trials.blocks,
            "telemetry": telemetry(),
            "unexplained_cpu_ns": counters.total(trials.blocks, "unexplained_cpu_ns"),
            "others": counters.others(
                trials.blocks,
                trials.self_check["loop_ns"],
                len(options.cores),
                load_ns,
                on_pinned,
            ),
            "warnings": warnings,
            "switches": self.switches.as_dict(),
            "seconds": {
                **self.seconds,
                "timing": timed.seconds.timing,
                "inside_trials": timed.seconds.inside_trials,
                "control": timed.seconds.control,
            },
            **timed.provenance,
            **more,
        }
        if "prepare_ns" in columns:
            prepare_ns = columns["prepare_ns"][~columns["warmup"]]
            provenance["prepare_us"] = float(np.median(prepare_ns)) / 1e3
        return Recording(self.configuration, round, columns, provenance, timed.control, part)

    def _device_warnings(self, timed: Pass, described: Mapping[str, Any]) -> list[str]:
        """What is wrong with the times of a GPU, by its clocks and what the runtime says it did."""
        warnings: list[str] = []
        if self.configuration.options.device != "cpu":
            from lstm_trt.machine.gpu import clock_warnings

            warnings += clock_warnings(
                (
                    self.provenance["gpu_before"],
                    *timed.trials.blocks,
                    timed.provenance.get("gpu_after"),
                )
            )
            # Newer versions of PyTorch keep bfloat16 from cuDNN.
            if described.get("lstm_kernel") == "operators":
                warnings.append(
                    "PyTorch did not use cuDNN's LSTM: a call was"
                    f" {sum(described['operators'].values())} separate operators"
                )
        if described.get("graph_fallback"):
            warnings.append(
                "the CUDA graph was refused, the engine ran without it:"
                f" {described['graph_fallback']}"
            )
        return warnings


@contextmanager
def set_up(configuration: Configuration, reference: Mapping, send: Send) -> Iterator[Run]:
    """Build the step and check its outputs in this process; always frees the runtime.

    For the CPU the process must be pinned already (`pin`), for a GPU the calling thread is pinned
    here after building.

    `reference`: the result of the workload kind's `Preparer.reference`. Raises
    `ConfigurationFailed` and the runtime's errors.
    """
    began = time.perf_counter()
    options = configuration.options
    protocol = configuration.protocol
    preparer = preparer_of(configuration.workload)
    runtime = preparer.runtime(configuration.runtime)
    send("stage", stage="build")
    request = preparer.request(configuration, reference)
    step = runtime.prepare(request)
    try:
        built = time.perf_counter()
        send("stage", stage="parity")
        gate = preparer.gate(configuration, reference)
        parity = check_parity(step, configuration, gate)
        parity["nan_reaches_output"] = nan_reaches_output(step, gate)
        repeatable = gate.repeatable
        del gate  # frees its arrays before the trials
        if options.device != "cpu":
            pin(options)
        step.load_inputs(request.inputs)
        provenance = {
            **_surroundings(options.device, runtime.DISTRIBUTION),
            "parity": parity,
            "device_warm_up": None,
            "pilot": None,
            "floor_ns": None,
            "floor_limited_by": None,
            "floor_missing": None,
            **({"costs_s": dict(step.costs)} if step.costs else {}),
            **preparer.provenance(configuration, reference),
        }
        # The garbage collector is disabled from here on: a collection can take longer than the
        # loop, so it is done now, and the loop's own collection finds all objects frozen. The rings
        # of `Switches` are opened here, since the threads of the runtime exist by now.
        with (
            quiet_collector(),
            counters.Watcher(options.cores, options.device) as watcher,
            Switches() as switches,
        ):
            if options.device != "cpu" and repeatable:
                # Last, since a GPU lowers its clocks when it has no work.
                from lstm_trt.recorder.warm_up import warm_up_device

                send("stage", stage="warm-up")
                highest_mhz = (watcher.gpu_state() or {}).get("max_sm_mhz")
                provenance["device_warm_up"] = warm_up_device(step, watcher.read, highest_mhz)
            if protocol.period_us:
                provenance["pilot"] = pilot(step.step, protocol, step.prepare_next)
            step.reset()
            step.device_times()  # discards those of steps that are no trials
            provenance["gpu_before"] = watcher.gpu_state()
            send("stage", stage="run")
            seconds = {"build": built - began, "parity": time.perf_counter() - built}
            silence = _silence(request.inputs)
            yield Run(configuration, step, watcher, switches, provenance, seconds, silence)
    finally:
        with suppress(Exception):  # an earlier error is the relevant one
            step.close()


def call_for_ever(run: Run, held: ExitStack) -> None:
    """Call the step of a run with its arrivals, as its trials are called, and keep nothing.

    `held`: what the run needs. If a call fails, the process ends, so that it is missed.
    """
    protocol = run.configuration.protocol
    block = Block(protocol.block_trials, protocol.arrivals(), run.step.prepare_next)
    nothing_yet = resource.getrusage(resource.RUSAGE_THREAD)
    try:
        with held:
            while True:
                block.run(run.step.step, protocol.block_trials, resource.RUSAGE_THREAD, UNLIMITED)
                block.take(nothing_yet)
                run.step.device_times()
    finally:
        traceback.print_exc()
        os._exit(1)


def _surroundings(device: str, distribution: str) -> dict[str, Any]:
    """What is known of the machine and the installed packages."""
    description = facts.describe(device)
    distributions = ("lstm_trt", "numpy", "torch", "onnx", "pyarrow", distribution)
    return {
        "machine": description,
        "machine_fingerprint": facts.fingerprint(description),
        "versions": facts.versions(distributions),
        "commit": facts.commit(),
        "clock": facts.clock_cost(),
        "garbage_collector": "frozen and off",
    }


def _silence(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """These inputs with zeros in place of all floating-point numbers."""
    return {
        name: np.zeros_like(array) if array.dtype.kind == "f" else array
        for name, array in inputs.items()
    }


@dataclass
class Pass:
    """Trials of a run, timed one after another, and what was found beside them.

    `control`: the columns of the control run; None without.
    `ended_ns`: when the last trial ended, by `time.perf_counter_ns`.
    """

    trials: Trials
    ended_ns: int
    seconds: Seconds
    provenance: dict[str, Any]
    control: dict[str, np.ndarray] | None = None


@dataclass(frozen=True)
class File:
    """A recording that was written: its path, its warnings, and what a whole soak is judged by."""

    path: str
    warnings: list[str]
    stated: dict[str, Any]


class Session:
    """The passes of a run, and the files that they are written to."""

    def __init__(self, run: Run, job: RecordJob, send: Send) -> None:
        import pyarrow.parquet  # noqa: F401  imported now, so that the first file is not slower

        configuration = run.configuration
        self._run = run
        self._job = job
        self._send = send
        self._observer = preparer_of(configuration.workload).observer(run.step, configuration)
        self._stopping: Any = None
        self.loads = Loads(configuration.protocol, job.load_cores, job.copies)
        if configuration.protocol.until:
            kind = registry.load_entry("STOPPING", configuration.protocol.until)
            self._stopping = kind.of(configuration.protocol)
        #: Numbers of timed trials, and of rows with those of warm-up.
        self.trials = 0
        self.rows = 0
        self.seconds = Seconds()

    def __enter__(self) -> Session:
        self.loads.__enter__()
        self.loop: Any = self._run.loop()
        self.origin_ns = self.loop.first_pair.monotonic_ns
        return self

    def __exit__(self, *exception: object) -> None:
        self.loads.__exit__(*exception)
        self.loop = None  # it holds the step, which must be freed before the runtime is

    def one_pass(self, end_ns: int, tell: Callable[[int], None]) -> Pass:
        """Time trials until there are those of the protocol, it is decided, or the clock is past
        `end_ns`.

        After the first pass follow the control run and the check against the roofline bound.
        `tell(done)` is called after each block.
        """
        protocol = self._run.configuration.protocol
        is_first = self.trials == 0
        marked = protocol.warmup if is_first else protocol.settle
        self.loads.begin()
        began_ns = time.perf_counter_ns()
        # The first pass is so scheduled after its warm-up.
        with real_time.scheduled(protocol.fifo, now=not is_first):
            timed = self.loop.part(marked, end_ns, partial(self._after_block, tell))
            ended_ns = time.perf_counter_ns()
            scheduling = real_time.stated() if protocol.fifo else None
        loads = self.loads.finish()
        trials = self.loop.trials(self.origin_ns)
        self.trials += timed
        timing_s = (ended_ns - began_ns) / 1e9
        seconds = Seconds(timing=timing_s, inside_trials=trials.inside_ns / 1e9)
        gpu_after = self._run.watcher.gpu_state()
        provenance: dict[str, Any] = {"gpu_after": gpu_after, "control": None}
        if loads:
            provenance["beside"] = loads
        if scheduling:
            provenance["scheduling"] = scheduling
        if self._job.asked_s is None:
            trials.self_check.update(loop_against_batches(trials))
        provenance |= self._observer.finish(trials.columns, trials.self_check, trials.warnings)
        if self._stopping is not None:
            provenance["until"] = self._stopping.as_dict()
        found = Pass(trials, ended_ns, seconds, provenance)
        if is_first:
            if self._job.control:
                self._time_control(found, timed)
            trials.warnings.extend(
                against_bound(self._run.configuration, self._run.provenance, trials.median_ns)
            )
            trials.warnings.extend(self._job.unlocked)
        return found

    def _after_block(self, tell: Callable[[int], None], done: int) -> bool:
        """After each block; returns whether the recording ends here."""
        self._observer.block(done)
        tell(done)
        if self._stopping is None:
            return False
        block = self.loop.chunks[-1]
        return self._stopping.look(block["latency_ns"][~block["warmup"]])

    def _time_control(self, found: Pass, calls: int) -> None:
        """Add the control run to a pass."""
        self._send("stage", stage="control")
        protocol = self._run.configuration.protocol
        with real_time.scheduled(protocol.fifo):
            found.control, found.provenance["control"] = run_control(
                protocol, calls, found.trials.median_ns, self._run.switches
            )
        found.seconds.control = (time.perf_counter_ns() - found.ended_ns) / 1e9

    def write(self, timed: Pass, part: int | None = None, **more: Any) -> File:
        """Write a pass to a file of the job's folder; `more`: further provenance."""
        recording = self._run.recording(timed, self._job.round, part, more)
        began_ns = time.perf_counter_ns()
        path = files.write(recording, Path(self._job.folder))
        timed.seconds.storing = (time.perf_counter_ns() - began_ns) / 1e9
        self.seconds.add(timed.seconds)
        self.rows += self.loop.rows
        provenance = recording.provenance
        stated = {name: provenance[name] for name in ("self_check", "unexplained_cpu_ns")}
        return File(str(path), provenance["warnings"], stated)


def loop_against_batches(trials: Trials) -> dict[str, float]:
    """`batches_ns`: the sum of all batch times, including warm-up; `batches_loop_ns`: the time of
    the loop.

    The time of the loop is the sum over blocks of the time from the start of the first batch to the
    end of the last one; reading the machine's state between blocks is not included.
    """
    start = trials.columns["start_ns"]
    end = ends(trials.columns)
    first = np.array([block["first_row"] for block in trials.blocks])
    last = np.append(first[1:], len(start)) - 1
    return {
        "batches_ns": int((end - start).sum()),
        "batches_loop_ns": int((end[last] - start[first]).sum()),
    }
