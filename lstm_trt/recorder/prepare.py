"""One configuration -> one Recording, in this process: prepare, check parity, run the trials, add provenance.

`loop.py` describes what is timed. This module runs in a worker process. To record from a
notebook, use `pool.record`, which starts a worker: a process that has already imported a
runtime can no longer be pinned for it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np

from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import latency
from lstm_trt.machine import counters, facts
from lstm_trt.machine.linux import THREAD_VARIABLES
from lstm_trt.recorder.control import run_control
from lstm_trt.recorder.loop import Trials, against_clock, ends, pilot, quiet_collector, run_trials
from lstm_trt.recorder.parity import check_parity, nan_reaches_output
from lstm_trt.runtimes.base import PreparedStep, preparer_of
from lstm_trt.store.schema import Recording


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
class PreparedRun:
    """A prepared configuration: its step, and the provenance known before the trials.

    `loop`: arguments of `run_trials` and `Loop` in addition to the step and the protocol.
    """

    configuration: Configuration
    step: PreparedStep
    loop: dict
    provenance: dict
    seconds: dict
    gpu_state: Callable[[], dict | None]

    def recording(
        self,
        trials: Trials,
        round: int,
        timing_s: float,
        control: tuple[dict, dict] | None = None,
        control_s: float = 0.0,
        part: int | None = None,
        **provenance: object,
    ) -> Recording:
        """The trials and the control run (columns, description) as a recording; `provenance` adds further fields."""
        described, warnings = self.step.facts(), list(trials.warnings)
        if self.configuration.options.device != "cpu":
            from lstm_trt.machine.gpu import clock_warnings

            warnings += clock_warnings(trials.blocks)
        if described.get("graph_fallback"):
            warnings.append(f"the CUDA graph was refused, the engine ran without it: {described['graph_fallback']}")
        clock = self.provenance["clock"]
        clock = {**clock, **against_clock(trials.median_ns, clock)}
        if trials.median_ns < 1e3 * clock["shortest_us"]:
            empty, shortest = latency(clock["call_ns"] / 1e3, 2), latency(clock["shortest_us"], 2)
            warnings.append(f"most calls take less than {shortest} and are not resolved: an empty step takes {empty}")
        columns = {"trial": np.arange(len(trials.columns["latency_ns"]), dtype=np.int64), **trials.columns}
        provenance = {
            **self.provenance,
            "started_unix_ns": trials.started_unix_ns,
            "threads": {
                "asked": self.configuration.options.threads,
                "pinned_to": sorted(os.sched_getaffinity(0)),
                "process_tasks": len(os.listdir("/proc/self/task")),
            },
            "runtime": described,
            "clock": clock,
            "self_check": trials.self_check,
            "blocks": trials.blocks,
            "others": counters.others(trials.blocks, trials.wall_ns, len(self.configuration.options.cores)),
            "warnings": warnings,
            "control": control[1] if control else None,
            "seconds": {
                **self.seconds,
                "timing": timing_s,
                "inside_trials": trials.inside_ns / 1e9,
                "control": control_s,
            },
            **provenance,
        }
        return Recording(self.configuration, round, columns, provenance, control[0] if control else None, part)


@contextmanager
def prepare(
    configuration: Configuration, reference: Mapping, stage: Callable[[str], None] = lambda name: None
) -> Iterator[PreparedRun]:
    """Prepare and check parity in this process; always frees the runtime.

    For the CPU the process must be pinned already (`pin`), for a GPU the calling thread is pinned here after preparing.

    `reference`: the result of the workload kind's `Preparer.reference`. `stage(name)` is called on
    entering "build", "parity", on a GPU "warm-up", and "run". Raises `ConfigurationFailed` and the runtime's errors.
    """
    began = time.perf_counter()
    options, protocol, preparer = configuration.options, configuration.protocol, preparer_of(configuration.workload)
    runtime = preparer.runtime(configuration.runtime)
    stage("build")
    request = preparer.request(configuration, reference)
    step = runtime.prepare(request)
    try:
        built = time.perf_counter()
        stage("parity")
        gate = preparer.gate(configuration, reference)
        parity = check_parity(step, configuration, gate)
        parity["nan_reaches_output"] = nan_reaches_output(step, gate)
        gate = replace(gate, questions=(), expected=None, rounded=None)  # frees their arrays before the trials
        if options.device != "cpu":
            pin(options)
        step.load_inputs(request.inputs)
        step.reset()
        step.device_times()  # discards the times of the parity gate's steps
        description = facts.describe(options.device)
        clock = facts.clock_cost()
        # The garbage collector is disabled from here on: a collection can take longer than the loop, so it
        # is done now, as part of preparing, and the loop's own collection finds all objects frozen.
        with quiet_collector(), counters.Watcher(options.cores, options.device) as watcher:
            device_warm_up = None
            if options.device != "cpu" and gate.repeatable:
                stage("warm-up")
                highest_mhz = (watcher.gpu_state() or {}).get("max_sm_mhz")
                device_warm_up = warm_up_device(step, watcher.read, highest_mhz)
            piloted = pilot(step.step, protocol) if protocol.period_us else None
            step.reset()
            step.device_times()
            distributions = ("lstm_trt", "numpy", "torch", "onnx", "pyarrow", runtime.DISTRIBUTION)
            provenance = {
                "machine": description,
                "machine_fingerprint": facts.fingerprint(description),
                "versions": facts.versions(distributions),
                "clock": clock,
                "garbage_collector": "frozen and off",
                "parity": parity,
                "device_warm_up": device_warm_up,
                "pilot": piloted,
                **dict.fromkeys(("floor_ns", "floor_limited_by", "floor_missing")),
                "gpu_before": watcher.gpu_state(),
                **({"costs_s": dict(step.costs)} if step.costs else {}),
                **preparer.provenance(configuration, reference),
            }
            loop = {
                "threads": options.threads,
                "read_machine": watcher.read,
                "difference": watcher.difference,
                "device_times": step.device_times if options.device_clocks != "off" else None,
            }
            stage("run")
            seconds = {"build": built - began, "parity": time.perf_counter() - built}
            yield PreparedRun(configuration, step, loop, provenance, seconds, watcher.gpu_state)
    finally:
        with suppress(Exception):  # an earlier error is the relevant one
            step.close()


#: A GPU raises its clocks over some tenths of a second of load, far longer than a few short trials, and NVML may still
#: report the clock and the idleness of before then. The warm-up ends at the earliest after the first of these times,
#: when the SM clock has been the same, to `gpu.CLOCK_CHANGE`, for three parts and is not that of an idle GPU; and at
#: the latest after the second.
SHORTEST_WARM_UP_S, LONGEST_WARM_UP_S, WARM_UP_PART_S = 0.5, 2.0, 0.05

#: Share of the highest SM clock from which on a GPU is awake, whatever NVML says.
AWAKE = 0.6


def warm_up_device(step: PreparedStep, read: Callable[[], Mapping], highest_mhz: int | None) -> dict:
    """Call a step on a GPU, without recording the calls, until it is awake; returns their number and time.

    `read` gives the readings of NVML, `highest_mhz` is the highest SM clock. Where the clock cannot be read, for the
    shortest time.
    """
    from lstm_trt.machine import gpu

    began, calls, clocks = time.perf_counter(), 0, []
    while True:
        while time.perf_counter() - began < WARM_UP_PART_S * (len(clocks) + 1):
            step.step()
            calls += 1
            if calls % 1000 == 0:
                step.device_times()  # returns their events to the pool
        readings, seconds = read(), time.perf_counter() - began
        clock, reasons = readings["gpu_sm_mhz"], readings["gpu_throttle_reasons"]
        clocks.append(clock)
        latest = clocks[-3:]
        steady = len(latest) == 3 and None not in latest and gpu.is_steady(latest)
        idle = reasons is None or reasons & gpu.IDLE
        ready = clock is None or (steady and (clock >= AWAKE * (highest_mhz or math.inf) or not idle))
        if seconds >= (SHORTEST_WARM_UP_S if ready else LONGEST_WARM_UP_S):
            return {"calls": calls, "seconds": seconds, "sm_mhz": clock}


def record_here(
    configuration: Configuration,
    reference: Mapping,
    *,
    round: int = 0,
    control: bool = False,
    stage: Callable[[str], None] = lambda name: None,
    progress: Callable[[int, int], None] | None = None,
) -> Recording:
    """Record in this process: `prepare`, run the trials, and the control run if requested.

    `stage(name)` is called on entering "build", "parity", "run" and "control", and with "store" at the
    end. Raises `RunFailed` if the clocks or the kind's observer fail their check, and what `prepare` raises.
    """
    with prepare(configuration, reference, stage) as run:
        observer = preparer_of(configuration.workload).observer(run.step, configuration)

        def listen(done: int, total: int) -> None:
            observer.block(done)
            if progress:
                progress(done, total)

        began = time.perf_counter()
        trials = run_trials(run.step.step, configuration.protocol, **run.loop, progress=listen)
        ended = time.perf_counter()
        trials.self_check.update(loop_against_batches(trials))
        more = {"gpu_after": run.gpu_state(), **observer.finish(trials.columns, trials.self_check, trials.warnings)}
        controlled = None
        if control:
            stage("control")
            controlled = control_of(trials, configuration.protocol)
        control_s = time.perf_counter() - ended
        stage("store")
        return run.recording(trials, round, ended - began, controlled, control_s, **more)


def loop_against_batches(trials: Trials) -> dict[str, float]:
    """`batches_ns`: the sum of all batch times, including warm-up; `batches_loop_ns`: the time of the loop.

    The time of the loop is the sum over blocks of the time from the start of the first batch to the
    end of the last one; reading the machine's state between blocks is not included.
    """
    start, end = trials.columns["start_ns"], ends(trials.columns)
    first = np.array([block["first_row"] for block in trials.blocks])
    last = np.append(first[1:], len(start)) - 1
    return {"batches_ns": int((end - start).sum()), "batches_loop_ns": int((end[last] - start[first]).sum())}


def control_of(trials: Trials, protocol: Protocol) -> tuple[dict[str, np.ndarray], dict]:
    """The control run for these trials (`run_control`)."""
    return run_control(protocol, int(np.count_nonzero(~trials.columns["warmup"])), trials.median_ns)
