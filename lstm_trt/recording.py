"""One configuration -> one Recording, in this process: prepare, gate, run the trials, add provenance.

What is timed is described in `trials.py`. This module is what a worker process runs;
`processes.record` starts such a process, which is the way to record from a notebook,
since a process that has imported a runtime already cannot be pinned for it any more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lstm_trt import machine, runtimes
from lstm_trt.configuration import Configuration, Options, Protocol, choose_cores
from lstm_trt.errors import ParityFailed, RuntimeUnavailable, UsageError
from lstm_trt.networks import make_inputs, make_weights
from lstm_trt.runtimes.contract import PreparedStep, Request
from lstm_trt.shapes import LstmShape
from lstm_trt.store import Recording
from lstm_trt.trials import quiet_collector, run_trials

#: Largest relative error, by the Euclidean norm over all outputs, against PyTorch in
#: float32. Float32 itself was seen up to 1e-6; TF32 at 1e-4 to 1e-3 and bfloat16 at 1e-3
#: to 4e-3, so a runtime that silently computes in those does not pass as fp32.
PARITY_BOUNDS = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 1e-2, "bf16": 3e-2, "int8": 5e-2}

THREAD_ENVIRONMENT = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass(frozen=True)
class Reference:
    """What the parity gate asks, and PyTorch's answer.

    `answers` are (sequence, d, 1) for the d distinct sequences that
    `make_inputs(shape, seed)` makes.
    """

    seed: int
    answers: np.ndarray


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
    state = _availability(runtime, device)
    if not state.ready:
        raise RuntimeUnavailable(runtime, state.reason, state.remedy)
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


def record_here(
    configuration: Configuration,
    reference: Reference,
    *,
    round: int = 0,
    onnx_path: os.PathLike | None = None,
    onnx_sha256: str | None = None,
    floor: dict | None = None,
    stage: Callable[[str], None] = lambda name: None,
    progress: Callable[[int, int], None] | None = None,
) -> Recording:
    """Record in this process, which must be pinned already (`pin`).

    `floor` is the speed of light of the shape here (`rates.py`), stored beside the trials.
    `stage(name)` is called on entering "build", "parity" and "run", and "store" when the
    loop is over. Raises `ConfigurationFailed` and what the runtime raises; frees the
    runtime in every case.
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
        description = machine.describe(options.device)
        clock = machine.clock_cost()
        # Collecting takes longer than many a loop, so it counts as preparing: the loop's
        # own collection finds everything frozen already.
        with quiet_collector(), machine.Watcher(options.cores, options.device) as watcher:
            gpu_before = watcher.gpu_state()
            stage("run")
            ready = time.perf_counter()
            trials = run_trials(
                prepared.step,
                protocol,
                threads=options.threads,
                read_machine=watcher.read,
                difference=watcher.difference,
                device_times=prepared.device_times if options.device_clocks != "off" else None,
                progress=progress,
            )
            timed = time.perf_counter()
            stage("store")
            gpu_after = watcher.gpu_state()
        rows = len(trials.columns["latency_ns"])
        columns = {"trial": np.arange(rows, dtype=np.int64), **trials.columns}
        provenance = {
            "started_unix_ns": trials.started_unix_ns,
            "machine": description,
            "machine_fingerprint": machine.fingerprint(description),
            "versions": machine.versions(("lstm_trt", "numpy", "torch", "onnx", "pyarrow", module.DISTRIBUTION)),
            "threads": {
                "asked": options.threads,
                "pinned_to": sorted(os.sched_getaffinity(0)),
                "process_tasks": _count_tasks(),
            },
            "runtime": prepared.facts(),
            "network_sha256": onnx_sha256,
            "parity": parity,
            "floor_ns": floor["floor_ns"] if floor else None,
            "floor_limited_by": floor["limited_by"] if floor else None,
            "clock": clock,
            "gpu_before": gpu_before,
            "gpu_after": gpu_after,
            "self_check": trials.self_check,
            "blocks": trials.blocks,
            "garbage_collector": "frozen and off",
            "warnings": trials.warnings,
            "seconds": {
                "build": built - began,
                "parity": ready - built,
                "timing": timed - ready,
                "inside_trials": trials.inside_ns / 1e9,
            },
        }
        return Recording(configuration, round, columns, provenance)
    finally:
        with suppress(Exception):  # what went wrong before is what must be told
            prepared.close()


def check_parity(prepared: PreparedStep, configuration: Configuration, reference: Reference) -> dict:
    """Ask the prepared step with fresh inputs and hold its answer against PyTorch's.

    Returns `{"error", "bound", "inputs_seed"}`; raises `ParityFailed`. Two questions are
    asked, so that a step that does not read its inputs, or gives the last answer
    again, fails as well.
    """
    shape, precision = configuration.workload, configuration.options.precision
    bound = PARITY_BOUNDS[precision]
    inputs, _, which = make_inputs(shape, reference.seed)
    prepared.load_inputs(np.zeros_like(inputs))
    prepared.step()
    prepared.load_inputs(inputs)
    prepared.step()
    outputs = prepared.outputs()
    expected = reference.answers[:, which]
    if len(outputs) != 1 or outputs[0].shape != expected.shape:
        shapes = ", ".join(str(array.shape) for array in outputs)
        raise ParityFailed(f"outputs have the shape {shapes}, not {expected.shape}")
    error = relative_error(outputs[0], expected)
    if not error <= bound:  # NaN fails too
        raise ParityFailed(
            f"outputs differ from PyTorch in float32 by {error:.2g} (relative, by norm); {precision} allows {bound:g}"
        )
    return {"error": error, "bound": bound, "inputs_seed": reference.seed}


def relative_error(outputs: np.ndarray, expected: np.ndarray) -> float:
    """Euclidean norm of the difference over that of `expected`, in float64."""
    expected = expected.astype(np.float64)
    return float(np.linalg.norm(outputs - expected) / max(np.linalg.norm(expected), np.finfo(np.float64).tiny))


def _count_tasks() -> int | None:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return None
