"""One configuration -> its recording, in this process: prepare, check parity, run the trials, add
provenance, write.

`loop.py` describes what is timed. This module runs in a worker process. To record from a
notebook, use `pool.record`, which starts a worker: a process that has already imported a
runtime can no longer be pinned for it.
"""

import gc
import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lstm_trt import registry
from lstm_trt.config.configuration import Configuration, Options, warnings_of
from lstm_trt.config.errors import LabError, RunFailed, UsageError
from lstm_trt.config.format import latency, percent
from lstm_trt.config.libraries import telemetry
from lstm_trt.machine import counters, facts
from lstm_trt.machine.linux import THREAD_VARIABLES
from lstm_trt.machine.switches import Switches
from lstm_trt.recorder.loop import (
    UNLIMITED,
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
    """A prepared configuration: its step, what reads the machine, and the provenance known before
    the trials."""

    configuration: Configuration
    step: PreparedStep
    watcher: counters.Watcher
    switches: Switches
    provenance: dict
    seconds: dict
    silence: Mapping[str, np.ndarray] = field(default_factory=dict)

    def recording(
        self,
        trials: Trials,
        round: int,
        seconds: dict,
        part: int | None,
        control: tuple[Any, Any],
        **provenance: Any,
    ) -> Recording:
        """The trials and the control run (columns, description, or None and None) as a recording.

        `seconds` by activity; `provenance` adds further fields.
        """
        described, warnings, options = (
            self.step.facts(),
            list(trials.warnings),
            self.configuration.options,
        )
        threads = {"asked": options.threads, "pinned_to": sorted(os.sched_getaffinity(0))}
        threads["process_tasks"] = len(os.listdir("/proc/self/task"))
        if options.device != "cpu":
            from lstm_trt.machine.gpu import clock_warnings

            warnings += clock_warnings(
                (self.provenance["gpu_before"], *trials.blocks, provenance.get("gpu_after"))
            )
            if (
                described.get("lstm_kernel") == "operators"
            ):  # newer versions of PyTorch keep bfloat16 from cuDNN
                count = sum(described["operators"].values())
                warnings.append(
                    f"PyTorch did not use cuDNN's LSTM: a call was {count} separate operators"
                )
        if described.get("graph_fallback"):
            warnings.append(
                f"the CUDA graph was refused, the engine ran without it: {described['graph_fallback']}"
            )
        clock = self.provenance["clock"]
        clock = {**clock, **against_clock(trials.median_ns, clock)}
        clock["quantum_ns"] = facts.quantum(trials.columns["latency_ns"][~trials.columns["warmup"]])
        if trials.median_ns < 1e3 * clock["shortest_us"]:
            empty, shortest = latency(clock["call_ns"] / 1e3, 2), latency(clock["shortest_us"], 2)
            warnings.append(
                f"most calls take less than {shortest} and are not resolved: an empty step takes {empty}"
            )
        columns = {
            "trial": np.arange(len(trials.columns["latency_ns"]), dtype=np.int64),
            **trials.columns,
        }
        provenance = {
            **self.provenance,
            "started_unix_ns": trials.started_unix_ns,
            "threads": threads,
            "runtime": described,
            "clock": clock,
            "self_check": trials.self_check,
            "blocks": trials.blocks,
            "telemetry": telemetry(),
            "unexplained_cpu_ns": counters.total(trials.blocks, "unexplained_cpu_ns"),
            "others": counters.others(
                trials.blocks, trials.self_check["loop_ns"], len(options.cores)
            ),
            "warnings": warnings,
            "control": control[1],
            "switches": self.switches.as_dict(),
            "seconds": {**self.seconds, **seconds},
            **provenance,
        }
        return Recording(self.configuration, round, columns, provenance, control[0], part)


@contextmanager
def prepared(
    configuration: Configuration,
    reference: Mapping,
    stage: Callable[[str], None] = lambda name: None,
) -> Iterator[PreparedRun]:
    """Prepare and check parity in this process; always frees the runtime.

    For the CPU the process must be pinned already (`pin`), for a GPU the calling thread is pinned
    here after preparing.

    `reference`: the result of the workload kind's `Preparer.reference`. `stage(name)` is called on
    entering "build", "parity", on a GPU "warm-up", and "run". Raises `ConfigurationFailed` and the
    runtime's errors.
    """
    began = time.perf_counter()
    options, protocol, preparer = (
        configuration.options,
        configuration.protocol,
        preparer_of(configuration.workload),
    )
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
        gate = replace(
            gate, inputs=(), expected=None, rounded=None
        )  # frees their arrays before the trials
        if options.device != "cpu":
            pin(options)
        step.load_inputs(request.inputs)
        description = facts.describe(options.device)
        distributions = ("lstm_trt", "numpy", "torch", "onnx", "pyarrow", runtime.DISTRIBUTION)
        provenance = {
            "machine": description,
            "machine_fingerprint": facts.fingerprint(description),
            "versions": facts.versions(distributions),
            "commit": facts.commit(),
            "clock": facts.clock_cost(),
            "garbage_collector": "frozen and off",
            "parity": parity,
            **dict.fromkeys(
                ("device_warm_up", "pilot", "floor_ns", "floor_limited_by", "floor_missing")
            ),
            **({"costs_s": dict(step.costs)} if step.costs else {}),
            **preparer.provenance(configuration, reference),
        }
        # The garbage collector is disabled from here on: a collection can take longer than the
        # loop, so it is done now, as part of preparing, and the loop's own collection finds all
        # objects frozen. The rings are opened here, since the threads of the runtime exist by now.
        with (
            quiet_collector(),
            counters.Watcher(options.cores, options.device) as watcher,
            Switches() as switches,
        ):
            if (
                options.device != "cpu" and gate.repeatable
            ):  # last, since a GPU lowers its clocks when it has no work
                stage("warm-up")
                highest_mhz = (watcher.gpu_state() or {}).get("max_sm_mhz")
                provenance["device_warm_up"] = warm_up_device(step, watcher.read, highest_mhz)
            provenance["pilot"] = pilot(step.step, protocol) if protocol.period_us else None
            step.reset()
            step.device_times()  # discards those of steps that are no trials
            provenance["gpu_before"] = watcher.gpu_state()
            stage("run")
            seconds = {"build": built - began, "parity": time.perf_counter() - built}
            silence = {
                name: np.zeros_like(array) if array.dtype.kind == "f" else array
                for name, array in request.inputs.items()
            }
            yield PreparedRun(configuration, step, watcher, switches, provenance, seconds, silence)
    finally:
        with suppress(Exception):  # an earlier error is the relevant one
            step.close()


#: A part of a soak ends after so many seconds, or after the trials of its protocol.
PART_S = 10.0

#: A GPU raises its clocks over some tenths of a second of load, far longer than a few short trials,
#: and NVML may still report the clock and the idleness of before then. The warm-up ends at the
#: earliest after the first of these times, when the SM clock has been the same, to
#: `gpu.CLOCK_CHANGE`, for three parts and is not that of an idle GPU; and at the latest after the
#: second.
SHORTEST_WARM_UP_S, LONGEST_WARM_UP_S, WARM_UP_PART_S = 0.5, 2.0, 0.05

#: Share of the highest SM clock from which on a GPU is awake, whatever NVML says.
AWAKE = 0.6


def warm_up_device(
    step: PreparedStep, read: Callable[[], Mapping], highest_mhz: int | None
) -> dict:
    """Call a step on a GPU, without recording the calls, until it is awake; returns their number
    and time.

    `read` gives the readings of NVML, `highest_mhz` is the highest SM clock. Where the clock cannot
    be read, for the shortest time.
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
        ready = clock is None or (
            steady and (clock >= AWAKE * (highest_mhz or math.inf) or not idle)
        )
        if seconds >= (SHORTEST_WARM_UP_S if ready else LONGEST_WARM_UP_S):
            return {"calls": calls, "seconds": seconds, "sm_mhz": clock}


def record_into(
    folder: Path,
    configuration: Configuration,
    reference: Mapping,
    *,
    round: int = 0,
    control: bool = False,
    asked_s: float | None = None,
    part_s: float = PART_S,
    unlocked: Sequence[str] = (),
    send: Callable[..., None] = lambda event, **values: None,
) -> dict:
    """Record in this process into a folder: `prepared`, the trials, and after the first of them the
    control run.

    One recording, or with `asked_s` the parts of a soak of so many seconds, each of at most
    `part_s`; nothing is timed while one is written. `unlocked`: warnings of `locks.timing_lock`.
    `send(event, **values)` gets "stage" ("build", "parity", "run", "control", "store"), and after
    each block "progress" (done, total), for a soak "soak" (elapsed_s, asked_s, trials, parts).

    Returns the last path, numbers, seconds by activity, and warnings. Raises `RunFailed` if the
    clocks or the kind's observer fail their check, and what `prepared` and `files.write` raise; the
    parts written so far are kept.
    """
    import pyarrow.parquet  # noqa: F401  imported now, so that writing the first part does not take longer

    protocol, options, clock = configuration.protocol, configuration.options, time.perf_counter_ns
    soaks = asked_s is not None
    whole_ns, part_ns = (int(1e9 * asked_s), int(1e9 * part_s)) if soaks else (UNLIMITED, UNLIMITED)
    timed, rows, totals = 0, 0, Counter()
    loop: Any = None
    evidence = None
    whole: dict[str, Any] = {}
    if protocol.until:
        evidence = registry.load_entry("STOPPING", protocol.until).of(protocol)

    def after(done: int) -> bool:
        observer.block(done)
        if soaks:
            elapsed_s = (clock() - end + whole_ns) / 1e9
            send("soak", elapsed_s=elapsed_s, asked_s=asked_s, trials=timed + done, parts=part)
        else:
            send("progress", done=done, total=protocol.trials)
        block = loop.chunks[-1]
        return evidence is not None and evidence.look(block["latency_ns"][~block["warmup"]])

    with prepared(configuration, reference, lambda name: send("stage", stage=name)) as run:
        observer = preparer_of(configuration.workload).observer(run.step, configuration)
        if not soaks:
            send("progress", done=0, total=protocol.trials)
        read, device_times = (
            run.watcher.read,
            run.step.device_times if options.device_clocks != "off" else dict,
        )
        how: dict[str, Any] = {
            "read_machine": read,
            "device_times": device_times,
            "switches": run.switches,
        }
        if protocol.after_warmup:
            how["after_warmup"] = partial(run.step.load_inputs, run.silence)
        loop = Loop(run.step.step, protocol, threads=options.threads, **how)
        origin = loop.first_pair.monotonic_ns
        end = origin + whole_ns
        for part in itertools.count():
            began = clock()
            timed += loop.part(
                protocol.settle if part else protocol.warmup, min(end, began + part_ns), after
            )
            now, trials = clock(), loop.trials(origin)
            seconds = {
                "timing": (now - began) / 1e9,
                "inside_trials": trials.inside_ns / 1e9,
                "control": 0.0,
            }
            elapsed_s = (now - end + whole_ns) / 1e9
            more = {"gpu_after": run.watcher.gpu_state()}
            if not soaks:
                trials.self_check.update(loop_against_batches(trials))
            more |= observer.finish(trials.columns, trials.self_check, trials.warnings)
            controlled = None, None
            if control and part == 0:
                send("stage", stage="control")
                controlled = run_control(protocol, timed, trials.median_ns, run.switches)
                seconds["control"] = (clock() - now) / 1e9
                end += int(1e9 * seconds["control"])
            if part == 0:
                asked_at = clock()
                trials.warnings.extend([*against_bound(run, trials.median_ns), *unlocked])
                end += clock() - asked_at
            last = not soaks or clock() >= end
            if evidence:
                more["until"] = evidence.as_dict()
            if soaks:
                more["soak"] = {
                    "part": part,
                    "last": last,
                    "asked_s": asked_s,
                    "elapsed_s": elapsed_s,
                }
            if last:
                send("stage", stage="store")
            recording = run.recording(
                trials, round, seconds, part if soaks else None, controlled, **more
            )
            stated = {
                name: recording.provenance[name] for name in ("self_check", "unexplained_cpu_ns")
            }
            whole = joined([whole, stated]) if part else stated
            warnings, stored = recording.provenance["warnings"], clock()
            path = files.write(recording, folder)
            totals.update({**seconds, "storing": (clock() - stored) / 1e9})
            rows += loop.rows
            del trials, controlled, recording
            if last:
                break
            gc.collect()  # automatic collection is disabled, possibly for hours
            loop.restart()
        loop = None  # it holds the step, which must be freed before the runtime leaves the device
    if soaks:
        inside_ns = 1e9 * totals["inside_trials"]
        warnings = warnings_of(
            protocol, rows, inside_ns, whole["self_check"], whole["unexplained_cpu_ns"]
        )
        warnings.extend(unlocked)
    return {
        "path": str(path),
        "parts": part + 1,
        "trials": timed,
        "seconds": dict(totals),
        "warnings": warnings,
    }


#: Share of the roofline bound below which a median is not that of the network's arithmetic.
LEAST_OF_BOUND = 0.5


def against_bound(run: PreparedRun, median_ns: float) -> list[str]:
    """Warnings of a median below the roofline bound, which is then computed from rates that are
    measured again.

    Nothing may be timed meanwhile. Raises `RunFailed` below half of the bound, unless weights that
    are 0 or repeat explain it: the step did not compute what the network states.
    """
    bound_ns, workload = run.provenance.get("floor_ns"), run.configuration.workload
    if bound_ns is None or median_ns >= bound_ns:
        return []
    from lstm_trt.machine import roofline

    try:
        rates = roofline.renewed_rates(run.configuration.options.threads)
    except (LabError, OSError):  # its text has the path of the cache, which no recording may have
        return [f"{_faster(median_ns, bound_ns)}; the rates could not be measured again"]
    bound_ns = run.provenance["floor_ns"] = roofline.roofline_bound(workload, rates).total_ns
    if median_ns >= bound_ns:
        return []
    found = _faster(median_ns, bound_ns)
    if median_ns >= LEAST_OF_BOUND * bound_ns:
        return [found]
    multiplied = preparer_of(workload).multiplied_share(workload)
    if median_ns >= LEAST_OF_BOUND * multiplied * bound_ns:
        return [f"{found}; {percent(1 - multiplied)} of its weights are 0 or repeat one number"]
    raise RunFailed(
        f"{found}; the step computes only a part of the network, as with lengths or counts of 0"
    )


def _faster(median_ns: float, bound_ns: float) -> str:
    took = f"a median of {latency(median_ns / 1e3)} is {median_ns / bound_ns:.2g} of its roofline bound"
    return f"faster than this network's arithmetic: {took}, {latency(bound_ns / 1e3)}"


def loop_against_batches(trials: Trials) -> dict[str, float]:
    """`batches_ns`: the sum of all batch times, including warm-up; `batches_loop_ns`: the time of
    the loop.

    The time of the loop is the sum over blocks of the time from the start of the first batch to the
    end of the last one; reading the machine's state between blocks is not included.
    """
    start, end = trials.columns["start_ns"], ends(trials.columns)
    first = np.array([block["first_row"] for block in trials.blocks])
    last = np.append(first[1:], len(start)) - 1
    return {
        "batches_ns": int((end - start).sum()),
        "batches_loop_ns": int((end[last] - start[first]).sum()),
    }
