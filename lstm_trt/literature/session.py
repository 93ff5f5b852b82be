"""One workload of the literature with one implementation -> one Recording, by the lab's own recorder.

`record` starts a fresh pinned process, in which `record_here` prepares the task, holds its answer
(in training its first loss) against PyTorch's, and runs the document's warm-up and batches
(`trials.run_trials`). What it took to get there is kept in `provenance["costs_s"]`. A training
loop checks itself as document 004 does: the loss is finite and falls, or the recording fails; and the
loop took as long as its batches together, or the recording carries a warning.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path

import numpy as np

from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import ParityFailed, RunFailed
from lstm_trt.config.workload import FAMILIES, Workload
from lstm_trt.literature import implementations
from lstm_trt.literature.data import make_batch, make_weights
from lstm_trt.literature.describe import base_of, describe_configuration, where
from lstm_trt.literature.task import Task
from lstm_trt.literature.workloads import WORKLOADS
from lstm_trt.recorder.loop import Trials, ends, run_trials
from lstm_trt.recorder.parity import PARITY_BOUNDS, relative_error
from lstm_trt.recorder.session import PreparedRun, control_of, surroundings
from lstm_trt.store.schema import Recording

#: What all others must agree with.
REFERENCE = "pytorch-one-call-eager"

#: Largest relative difference of the first step's loss from the reference's, in float32.
LOSS_BOUND = 1e-4

#: How much of a training loop may lie between its batches before the recording carries a warning:
#: 1 % of the loop (document 004), or, in short loops, the recorder's own work after each batch and
#: the time slice of another program for each batch beside which a context switch was counted.
LOOP_BOUND, BETWEEN_NS, SWITCH_NS = 0.01, 20_000, 5_000_000


def write_reference(workload: Workload, mode: str, seed: int, gate_seed: int, path: Path) -> None:
    """Write the reference's answer to the gate's batch as an .npy file.

    Forward: the outputs (`Workload.output_shape`) float32. Training: the loss of the first step,
    (1,) float64.
    """
    batch = make_batch(workload, gate_seed)
    task = implementations.load(REFERENCE).prepare(workload, mode, make_weights(workload, seed), batch, 1)
    try:
        task.step()
        np.save(path, task.outputs() if mode == "forward" else np.array([task.loss()]))
    finally:
        task.close()


def check_answer(task: Task, configuration: Configuration, gate_seed: int, expected: np.ndarray) -> dict:
    """Ask the task with the gate's batch and hold its answer against the reference's; raises `ParityFailed`.

    Forward: all outputs, relative by norm. Training: the loss of the first step, relative; the
    weights have made that step afterwards.
    """
    workload, forward = configuration.workload, configuration.mode == "forward"
    task.load_batch(make_batch(workload, gate_seed))
    task.step()
    answer = task.outputs() if forward else np.array([task.loss()])
    what, bound = ("outputs", PARITY_BOUNDS["fp32"]) if forward else ("first loss", LOSS_BOUND)
    if answer.shape != expected.shape:
        raise ParityFailed(f"outputs have the shape {answer.shape}, not {expected.shape}")
    error = relative_error(answer, expected)
    if not error <= bound:  # NaN fails too
        raise ParityFailed(f"{what} differ from PyTorch in float32 by {error:.2g} (relative), allowed is {bound:g}")
    return {"of": what, "error": error, "bound": bound, "inputs_seed": gate_seed}


@contextmanager
def prepare(
    configuration: Configuration, gate_seed: int, answers_path: Path, stage: Callable[[str], None]
) -> Iterator[tuple[PreparedRun, Task]]:
    """Prepare and gate in this process, which must be pinned already; frees the task in every case."""
    began = time.perf_counter()
    workload, options = configuration.workload, configuration.options
    module = implementations.load(configuration.runtime)
    stage("build")
    seed = configuration.protocol.seed
    weights, batch = make_weights(workload, seed), make_batch(workload, seed)
    kind = where(module, options.device)
    task = module.prepare(workload, configuration.mode, weights, batch, options.threads, **kind)
    try:
        built = time.perf_counter()
        stage("parity")
        parity = check_answer(task, configuration, gate_seed, np.load(answers_path))
        task.load_batch(batch)
        with surroundings(options, module.DISTRIBUTION) as (told, loop, gpu_state):
            provenance = {
                **told,
                "parity": parity,
                "floor_ns": None,
                "floor_limited_by": None,
                "gpu_before": gpu_state(),
                "costs_s": dict(task.costs),
                "implementation": {name.lower(): getattr(module, name) for name in _TOLD},
            }
            seconds = {"build": built - began, "parity": time.perf_counter() - built}
            yield PreparedRun(configuration, task, loop, provenance, seconds, gpu_state), task
    finally:
        with suppress(Exception):  # what went wrong before is what must be told
            task.close()


_TOLD = ("TITLE", "FRAMEWORK", "STYLE", "EXECUTION", "DISTRIBUTION")


def record_here(
    configuration: Configuration,
    *,
    gate_seed: int,
    answers_path: Path,
    round: int = 0,
    control: bool = False,
    stage: Callable[[str], None] = lambda name: None,
    progress: Callable[[int, int], None] | None = None,
) -> Recording:
    """Record in this process: prepare and gate, run the batches, check the loop, and the control run if asked.

    Raises `ParityFailed`, `RunFailed` where the losses or the clocks contradict, and what the framework raises.
    """
    with prepare(configuration, gate_seed, answers_path, stage) as (bench, task):
        losses = _Losses(task, configuration.mode == "training", progress)
        stage("run")
        began = time.perf_counter()
        trials = run_trials(task.step, configuration.protocol, **bench.loop, progress=losses.listen)
        ended = time.perf_counter()
        gpu_after = bench.gpu_state()
        trials.self_check.update(loop_against_batches(trials))
        if losses.kept is not None:
            check_losses(losses.kept)
            trials.warnings.extend(check_between_batches(trials))
        controlled = None
        if control:
            stage("control")
            controlled = control_of(trials, configuration.protocol)
        control_s = time.perf_counter() - ended
        stage("store")
        more = {"gpu_after": gpu_after, "losses": losses.kept}
        return bench.recording(trials, round, ended - began, controlled, control_s, **more)


class _Losses:
    """The loss of one step before the loop, and of the last batch of each of its blocks; `kept` is None in forward."""

    def __init__(self, task: Task, training: bool, progress: Callable[[int, int], None] | None) -> None:
        self._task, self._progress = task, progress
        self.kept: list[float] | None = None
        if training:
            task.step()
            self.kept = [float(task.loss())]

    def listen(self, done: int, total: int) -> None:
        if self.kept is not None and done:
            self.kept.append(float(self._task.loss()))
        if self._progress:
            self._progress(done, total)


def loop_against_batches(trials: Trials) -> dict[str, float]:
    """`batches_ns`: the sum of all batches' times, warm-up included; `batches_loop_ns`: the loop's own time.

    The loop's time runs from the begin of a block's first batch to the end of its last; between
    blocks the machine is read.
    """
    start, end = trials.columns["start_ns"], ends(trials.columns)
    first = np.array([block["first_row"] for block in trials.blocks])
    last = np.append(first[1:], len(start)) - 1
    return {"batches_ns": int((end - start).sum()), "batches_loop_ns": int((end[last] - start[first]).sum())}


def check_losses(losses: list[float]) -> None:
    """Raises `RunFailed` unless the losses of a training loop are finite and the last is below the first."""
    if not all(map(math.isfinite, losses)):
        raise RunFailed(f"the loss is not finite: it began at {losses[0]:.6g} and ended at {losses[-1]:.6g}")
    if not losses[-1] < losses[0]:
        raise RunFailed(f"the loss does not fall: it began at {losses[0]:.8g} and ended at {losses[-1]:.8g}")


def check_between_batches(trials: Trials) -> list[str]:
    """The warning, if any, that more of a training loop lies between its batches than is accounted for.

    A busy machine can interrupt the loop between two batches, which makes no batch's time wrong, so
    this is no error. Raises `RunFailed` where the batches together take longer than the loop that
    holds them: then one of the times must be wrong.
    """
    batches, loop = (trials.self_check[name] for name in ("batches_ns", "batches_loop_ns"))
    if batches > loop:
        raise RunFailed(
            f"self-check: the batches together took {batches / 1e9:.6g} s, longer than their loop of {loop / 1e9:.6g} s"
        )
    # The gap between two batches is too short to be interrupted more than once.
    interrupted = int(np.count_nonzero(trials.columns["involuntary_switches"]))
    allowed = max(LOOP_BOUND * loop, BETWEEN_NS * len(trials.columns["start_ns"]) + SWITCH_NS * interrupted)
    if loop - batches <= allowed:
        return []
    return [
        f"{(loop - batches) / 1e6:.3g} ms of the loop's {loop / 1e6:.3g} ms lie between the batches: the recorder's own"
        f" work and the context switches counted account for {allowed / 1e6:.3g} ms (was the machine busy?)"
    ]


def record(
    workload: Workload | str,
    implementation: str,
    mode: str | None = None,
    *,
    out: str | Path | None = None,
    scale: str = "1",
    threads: int = 1,
    batches: int | None = None,
    warmup: int | None = None,
    seed: int = 0,
    device: str | None = None,
    time_limit_s: float | None = None,
    listener: Callable[[dict], None] = lambda answer: None,
) -> Recording:
    """Record a workload (or its name) with an implementation in a fresh, pinned process.

    `mode` is the document's first if not given, `scale` a fraction of the sizes such as "1/8"
    (`Workload.scaled`), `batches` and `warmup` the document's. With `out` the recording, or the
    failure, stays there as a file; as a further round where the folder holds it already. Raises
    `UsageError`, `RuntimeUnavailable`, or the `ConfigurationFailed` that tells stage and reason.
    """
    from lstm_trt.recorder.pool import record_configuration

    configuration = describe_configuration(
        workload,
        implementation,
        mode,
        scale=scale,
        threads=threads,
        batches=batches,
        warmup=warmup,
        seed=seed,
        device=device,
    )
    return record_configuration(configuration, control=False, out=out, time_limit_s=time_limit_s, listener=listener)


def command(configuration: Configuration, out: str | Path, rounds: int | None = None) -> str:
    """The shell line that records this configuration."""
    workload, options, protocol = configuration.workload, configuration.options, configuration.protocol
    words = ["lstm-trt", "literature", workload.name, "--implementation", configuration.runtime]
    words += ["--mode", configuration.mode]
    whole = base_of(workload)
    for name in FAMILIES.get(workload.name, ()):
        size = getattr(whole or workload, name)
        if whole is None and name in ("batch", "sequence"):
            size = math.ceil(size / Fraction(workload.scale))  # scaling rounds down
        if size != getattr(WORKLOADS[workload.name], name):
            words += [f"--{name}", str(size)]
    words += ["--scale", workload.scale] if workload.scale != "1" else []
    words += ["--batches", str(protocol.trials), "--warmup", str(protocol.warmup)]
    words += ["--threads", str(options.threads)] if options.threads != 1 else []
    words += ["--seed", str(protocol.seed)] if protocol.seed else []
    words += ["--device", options.device] if options.device != "cpu" else []
    words += ["--rounds", str(rounds)] if rounds else []
    return shlex.join([*words, "--out", str(out)])
