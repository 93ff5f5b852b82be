"""One configuration -> one Recording, in this process: prepare, gate, run the trials, add provenance.

What is timed is described in `trials.py`. This module is what a worker process runs;
`processes.record` starts such a process, which is the way to record from a notebook,
since a process that has imported a runtime already cannot be pinned for it any more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lstm_trt import runtimes
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.network import make_inputs, make_weights
from lstm_trt.literature.task import Task
from lstm_trt.machine import counters, facts
from lstm_trt.machine.linux import choose_cores
from lstm_trt.recorder.control import run_control
from lstm_trt.recorder.loop import Trials, ends, pilot, quiet_collector, run_trials
from lstm_trt.recorder.parity import Reference, check_parity
from lstm_trt.recorder.process import THREAD_ENVIRONMENT
from lstm_trt.runtimes.base import PreparedStep, Request
from lstm_trt.store.schema import Recording


def describe_configuration(
    shape: LstmShape,
    runtime: str,
    *,
    protocol: Protocol | None = None,
    precision: str = "fp32",
    threads: int = 1,
    device: str | None = None,
    graph: bool = False,
    device_clocks: str = "off",
) -> Configuration:
    """The configuration that these names mean on this machine; nothing is run.

    Raises `UsageError` for unknown names, for a precision or device that the runtime
    does not offer, for more threads than cores; `RuntimeUnavailable` where it cannot run.
    """
    module = runtimes.load(runtime)
    device = device or module.DEVICES[0]
    options = Options(precision, threads, choose_cores(threads), device, graph, device_clocks)
    if device not in module.DEVICES:
        raise UsageError(f"{runtime} has no device {device!r}: choose from {', '.join(module.DEVICES)}")
    if precision not in module.PRECISIONS[device]:
        offered = ", ".join(module.PRECISIONS[device])
        raise UsageError(f"{runtime} on {device} offers no {precision}: choose from {offered}")
    if graph and device == "cpu":
        raise UsageError(f"{runtime} runs on the CPU, where there is no CUDA graph: leave --graph out")
    if device_clocks != "off" and device == "cpu":
        raise UsageError(f"{runtime} runs on the CPU, which has no device clocks: leave --device-clocks off")
    state = _availability(runtime, device).require(runtime)
    return Configuration(
        workload=shape,
        runtime=runtime,
        runtime_version=state.version or "unknown",
        device_name=state.device_name or device,
        options=options,
        protocol=protocol or Protocol(),
    )


@lru_cache(maxsize=64)
def _availability(runtime: str, device: str):
    return runtimes.load(runtime).availability(device)


@lru_cache(maxsize=4)
def cached_weights(network: tuple[int, int, int, int], seed: int) -> dict[str, np.ndarray]:
    """`make_weights` for `shape.network`; the last few stay."""
    layers, hidden, features, directions = network
    return make_weights(LstmShape(layers, hidden, 1, 1, features, directions), seed)


def pin(options: Options) -> None:
    """Pin this process and tell thread pools their size; before the runtime is imported.

    Raises `UsageError` where the cores may not be used.
    """
    for name in THREAD_ENVIRONMENT:
        os.environ[name] = str(options.threads)
    try:
        os.sched_setaffinity(0, options.cores)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot pin to cores {list(options.cores)}: {error}") from None


@dataclass
class PreparedRun:
    """A configuration that stands prepared: its step, its machine, and what is known before the trials.

    `loop` are the arguments of `run_trials` and `Loop` beside the step and the protocol.
    """

    configuration: Configuration
    prepared: PreparedStep | Task
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
        """Trials, and the control run with what it tells, as a recording; `provenance` goes beside the rest."""
        columns = {"trial": np.arange(len(trials.columns["latency_ns"]), dtype=np.int64), **trials.columns}
        provenance = {
            **self.provenance,
            "started_unix_ns": trials.started_unix_ns,
            "threads": {
                "asked": self.configuration.options.threads,
                "pinned_to": sorted(os.sched_getaffinity(0)),
                "process_tasks": _count_tasks(),
            },
            "runtime": self.prepared.facts(),
            "self_check": trials.self_check,
            "blocks": trials.blocks,
            "warnings": trials.warnings,
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
    configuration: Configuration,
    reference: Reference,
    *,
    onnx_path: os.PathLike | None = None,
    onnx_sha256: str | None = None,
    floor: dict | None = None,
    stage: Callable[[str], None] = lambda name: None,
) -> Iterator[PreparedRun]:
    """Prepare and gate in this process, which must be pinned already (`pin`); frees the runtime in every case.

    `floor` is the speed of light of the shape here (`rates.py`). `stage(name)` is called on
    entering "build", "parity" and "run". Raises `ConfigurationFailed` and what the runtime raises.
    """
    began = time.perf_counter()
    shape, options, protocol = configuration.workload, configuration.options, configuration.protocol
    module = runtimes.load(configuration.runtime)
    stage("build")
    inputs, _, _ = make_inputs(shape, protocol.seed)
    if hasattr(module, "configure"):
        module.configure(options)
    weights = {} if module.NEEDS_ONNX else cached_weights(shape.network, protocol.seed)
    prepared = module.prepare(Request(shape, options, inputs, weights, onnx_path))
    try:
        built = time.perf_counter()
        stage("parity")
        parity = check_parity(prepared, configuration, reference)
        prepared.load_inputs(inputs)
        prepared.device_times()  # what the gate's own steps left behind
        with surroundings(options, module.DISTRIBUTION) as (told, loop, gpu_state):
            piloted = pilot(prepared.step, protocol) if protocol.period_us else None
            prepared.device_times()
            provenance = {
                **told,
                "network_sha256": onnx_sha256,
                "parity": parity,
                "pilot": piloted,
                "floor_ns": floor["floor_ns"] if floor else None,
                "floor_limited_by": floor["limited_by"] if floor else None,
                "gpu_before": gpu_state(),
            }
            loop["device_times"] = prepared.device_times if options.device_clocks != "off" else None
            stage("run")
            seconds = {"build": built - began, "parity": time.perf_counter() - built}
            yield PreparedRun(configuration, prepared, loop, provenance, seconds, gpu_state)
    finally:
        with suppress(Exception):  # what went wrong before is what must be told
            prepared.close()


@contextmanager
def surroundings(options: Options, distribution: str) -> Iterator[tuple[dict, dict, Callable[[], dict | None]]]:
    """`(provenance, loop, gpu_state)`: what a recording tells of the machine, and what reads it while trials run.

    The garbage collector is off inside: collecting takes longer than many a loop, so it counts
    as preparing, and the loop's own collection finds everything frozen already.
    """
    description = facts.describe(options.device)
    clock = facts.clock_cost()
    with quiet_collector(), counters.Watcher(options.cores, options.device) as watcher:
        provenance = {
            "machine": description,
            "machine_fingerprint": facts.fingerprint(description),
            "versions": facts.versions(("lstm_trt", "numpy", "torch", "onnx", "pyarrow", distribution)),
            "clock": clock,
            "garbage_collector": "frozen and off",
        }
        loop = {"threads": options.threads, "read_machine": watcher.read, "difference": watcher.difference}
        yield provenance, loop, watcher.gpu_state


def record_here(
    configuration: Configuration,
    reference: Reference,
    *,
    round: int = 0,
    control: bool = False,
    stage: Callable[[str], None] = lambda name: None,
    progress: Callable[[int, int], None] | None = None,
    **prepared: object,
) -> Recording:
    """Record in this process: `prepare` (which `prepared` goes to), run the trials, and the control run if asked.

    `stage(name)` is called on entering "build", "parity", "run" and "control", and "store"
    when all is over.
    """
    with prepare(configuration, reference, stage=stage, **prepared) as bench:
        began = time.perf_counter()
        trials = run_trials(bench.prepared.step, configuration.protocol, **bench.loop, progress=progress)
        ended = time.perf_counter()
        gpu_after = bench.gpu_state()
        controlled = None
        if control:
            stage("control")
            controlled = control_of(trials, configuration.protocol)
        control_s = time.perf_counter() - ended
        stage("store")
        return bench.recording(trials, round, ended - began, controlled, control_s, gpu_after=gpu_after)


def control_of(trials: Trials, protocol: Protocol) -> tuple[dict[str, np.ndarray], dict]:
    """The control run that goes with these trials (`run_control`)."""
    timed = ~trials.columns["warmup"]
    median_ns = float(np.median((ends(trials.columns) - trials.columns["start_ns"])[timed]))
    return run_control(protocol, int(np.count_nonzero(timed)), median_ns)


def _count_tasks() -> int | None:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return None
