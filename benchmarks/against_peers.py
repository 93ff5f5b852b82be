"""The recorder beside other timers: `.venv/bin/python benchmarks/against_peers.py`.

Two LSTMs, as ONNX files with static sizes, are timed with one thread on one core, in float32 and with the same inputs:

* `recorder`: `lab.record` with its defaults: parity check, control run, times off the core.
* `benchmark_app` of OpenVINO: one synchronous request with the latency hint. It times inside OpenVINO, so the call from
  Python is not included.
* `torch.utils.benchmark`: `Timer.blocked_autorange` with its defaults.
* `pyperf`: its `Runner` with its defaults, which starts 20 processes.
* `bare loop`: two readings of the clock around each call.

All but `benchmark_app` time the same prepared step of lstm_trt; where a tool times several calls together, the median
is that of means. `benchmark_app` is compared with the recorder and the bare loop on OpenVINO, the others on ONNX
Runtime. Only the recorder checks the outputs.

Every round runs each row once, in new processes and in a new random order. The medians and p99.9 are medians over the
rounds, the maximum is that of all rounds, `lowest` and `highest` are the rounds' medians. The seconds are those from
the start of the command to its end, with imports and with building the network. Exit status 1 if a row failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from recorder import bare_loop

import lstm_trt as lab
from lstm_judge.read.numbers import table
from lstm_judge.statistics.quantiles import percentile, share_of
from lstm_trt import runtimes
from lstm_trt.config.format import microseconds
from lstm_trt.config.libraries import OPENVINO_MODULE, turn_telemetry_off
from lstm_trt.export.network import make_inputs
from lstm_trt.export.to_onnx import INPUT
from lstm_trt.machine.facts import cpu_name, installed_version, versions
from lstm_trt.machine.linux import choose_cores, run_command
from lstm_trt.recorder.run import pin
from lstm_trt.runtimes.base import PreparedStep, Request

#: Layers, hidden units, time steps.
NETWORKS = ((2, 64, 32), (1, 32, 32))

#: Runtimes of a tool.
BOTH, ONE = ("onnxruntime", "openvino"), ("onnxruntime",)

#: Packages that may be missing, and whose versions are written.
PACKAGES = ("onnxruntime", "openvino", "torch", "pyperf")

#: Settings of `benchmark_app` besides the latency hint, those of lstm_trt, and what it prints; its JSON report has the
#: same numbers rounded to 10 us.
APP_SETTINGS = {"NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": "1", "ENABLE_CPU_PINNING": "NO"}
APP_SETTINGS |= {"INFERENCE_PRECISION_HINT": "f32"}
PRINTED, UNITS = re.compile(r"(Median|Max): +([\d.]+) (us|ms)"), {"us": 1, "ms": 1000}

#: First argument of the processes in which this script times: the second is the job.
TIMED = "--timed"

HEADER = ("tool", "runtime", "median us", "lowest", "highest", "p99.9 us", "max us", "seconds", "kept of the trials")


@dataclass(frozen=True)
class Job:
    """What one process times; `model` and `inputs` are files."""

    tool: str
    runtime: str
    network: tuple[int, int, int]
    trials: int
    core: int
    model: str
    inputs: str


def answer_of(values_us: Sequence[float] | np.ndarray, calls: int = 1, kept: str = "time") -> dict:
    """The answer from values, each the mean of so many calls: a mean has neither the tail nor the maximum of calls."""
    ordered = np.sort(np.asarray(values_us))
    median = {"median_us": float(np.median(ordered))}
    if calls > 1:
        return {**median, "kept": f"{len(ordered)} means of {calls} calls each"}
    tail = {"p99.9_us": float(percentile(ordered, share_of("99.9")))} if len(ordered) >= 1000 else {}
    return {**median, **tail, "max_us": float(ordered[-1]), "kept": f"{len(ordered)} calls: {kept}"}


def by_recorder(job: Job) -> dict:
    """By the recorder, which starts its own processes."""
    protocol, options = lab.Protocol(trials=job.trials), lab.Options(cores=(job.core,))
    columns = lab.record(lab.LstmShape(*job.network), job.runtime, protocol, options).columns
    latency_us = columns["latency_ns"][~columns["warmup"]] / 1e3
    return answer_of(latency_us, kept=f"start, time, {len(columns) - 2} columns more")


def prepared(job: Job) -> PreparedStep:
    """Pins this process; the step that the recorder would time. Its buffers live as long as it."""
    options = lab.Options(cores=(job.core,))
    pin(options)
    inputs = {INPUT: np.load(job.inputs)}
    request = Request(lab.LstmShape(*job.network), options, inputs, {}, Path(job.model))
    return runtimes.load_runtime(job.runtime).prepare(request)


def by_loop(job: Job) -> dict:
    """By a loop that reads the clock before and after each call, after 10 calls to warm up."""
    held = prepared(job)
    return answer_of(bare_loop(held.step, job.trials, 10) / 1e3)


def by_torch(job: Job) -> dict:
    """By PyTorch's timer, which chooses how many calls it times together."""
    from torch.utils.benchmark import Timer

    held = prepared(job)
    measured = Timer("call()", globals={"call": held.step}).blocked_autorange()
    return answer_of([1e6 * seconds for seconds in measured.times], measured.number_per_run)


def by_pyperf(job: Job) -> dict | None:
    """By pyperf, which starts this script again for each of its processes; None in these."""
    import pyperf

    runner = pyperf.Runner(program_args=[__file__, TIMED, json.dumps(asdict(job))])
    held = prepared(job)
    bench = runner.bench_func("call", held.step)
    if runner.args.worker:
        return None
    return answer_of([1e6 * seconds for seconds in bench.get_values()], round(bench.get_total_loops()))


@dataclass(frozen=True)
class Peer:
    """A tool: how it is called, if it is no command, on which runtimes, what pins it, and what it does not do."""

    function: Callable[[Job], dict | None] | None
    runtimes: tuple[str, ...]
    pinned_by: str
    cannot: str


APP_CANNOT = "keep single calls; p99.9 (p99 at most, instead of the median); time the call from Python; other runtimes"
MEANS_CANNOT = "keep single calls by default, unless they are long"

PEERS = {
    "recorder": Peer(by_recorder, BOTH, "itself", "throughput of parallel requests; times of layers; answer at once"),
    "benchmark_app": Peer(None, ("openvino",), "this script (-pin chooses the core itself)", APP_CANNOT),
    "torch.utils.benchmark": Peer(by_torch, ONE, "this script", f"{MEANS_CANNOT}; pin; repeat in new processes"),
    "pyperf": Peer(by_pyperf, ONE, "itself (--affinity)", MEANS_CANNOT),
    "bare loop": Peer(by_loop, BOTH, "this script", "pin; repeat in new processes; tell what interrupted a call"),
}


def timed(text: str) -> None:
    """In a new process: time the job and print the answer. pyperf reads further arguments of the command line."""
    job = Job(**json.loads(text))
    sys.argv.remove(TIMED)
    turn_telemetry_off()
    function = PEERS[job.tool].function
    if answer := function and function(job):
        print(json.dumps(answer))


def command(job: Job) -> list[str]:
    """The command line of a job."""
    if job.tool != "benchmark_app":
        more = ["--quiet", "--affinity", str(job.core)] if job.tool == "pyperf" else []
        return [sys.executable, __file__, TIMED, json.dumps(asdict(job)), *more]
    settings = Path(job.model).with_name("settings.json")  # with -hint, benchmark_app takes these from a file only
    settings.write_text(json.dumps({"CPU": APP_SETTINGS}))
    files = ["-m", job.model, "-i", job.inputs, "-load_config", str(settings)]
    program = f"import sys; sys.modules['{OPENVINO_MODULE}'] = None; "
    program += "from openvino.tools.benchmark.main import main; main()"
    how = ["-d", "CPU", "-api", "sync", "-hint", "latency", "-niter", str(job.trials)]
    return [sys.executable, "-c", program, *how, *files]


def run(job: Job) -> dict:
    """The answer of a new process and its seconds, or why it `failed`."""
    app = job.tool == "benchmark_app"
    began = time.perf_counter()
    done = run_command(command(job), **({"preexec_fn": partial(os.sched_setaffinity, 0, {job.core})} if app else {}))
    seconds, printed = {"seconds": time.perf_counter() - began}, done.stdout.splitlines()
    found = {name: float(value) * UNITS[unit] for name, value, unit in PRINTED.findall(done.stdout)}
    if done.returncode or not (found if app else printed):
        last_line = (done.stderr.splitlines() or printed or ["no output"])[-1]
        return {"failed": f"exit status {done.returncode}: {last_line}"}
    if not app:
        return {**json.loads(printed[-1]), **seconds}
    return {"median_us": found["Median"], "max_us": found["Max"], "kept": "none: median, mean, extremes", **seconds}


def cells(answers: Sequence[Mapping]) -> list[str]:
    """The cells of a row after its tool and runtime: the answers of its rounds, or the first reason for none."""
    reasons = [answer[name] for answer in answers for name in ("missing", "failed") if name in answer]
    if reasons:
        return reasons[:1]
    medians = [answer["median_us"] for answer in answers]
    tail, most = ([answer.get(name) for answer in answers] for name in ("p99.9_us", "max_us"))
    values = [np.median(medians), min(medians), max(medians)]
    values += [None if None in tail else np.median(tail), None if None in most else max(most)]
    seconds = np.median([answer["seconds"] for answer in answers])
    return [*map(microseconds, values), f"{seconds:.1f}", answers[-1]["kept"]]


def jobs(folder: str, trials: int, networks: Sequence[tuple[int, int, int]]) -> list[Job]:
    """The rows of the tables; their models and inputs are written into `folder`."""
    core, made = choose_cores(1)[0], []
    for network in networks:
        shape = lab.LstmShape(*network)
        files = str(lab.export_onnx(shape, folder).path), f"{folder}/{shape.label}.npy"
        np.save(files[1], make_inputs(shape, 0)[0])
        made += [Job(tool, name, network, trials, core, *files) for tool in PEERS for name in PEERS[tool].runtimes]
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds in new processes (default %(default)s)")
    parser.add_argument("--trials", type=int, default=10_000, help="calls of a process, where a tool lets one choose")
    parser.add_argument("--networks", type=int, default=len(NETWORKS), help="only the first of the networks")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the answers of all rounds as JSON")
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.trials, arguments.networks) < 1:
        parser.error("--rounds, --trials and --networks must be at least 1")
    networks = NETWORKS[: arguments.networks]
    with tempfile.TemporaryDirectory(prefix="lstm_trt-") as folder:
        answers: dict[Job, list[dict]] = {job: [] for job in jobs(folder, arguments.trials, networks)}
        order = np.random.default_rng(0)
        for job in [job for _ in range(arguments.rounds) for job in order.permutation(np.array([*answers], object))]:
            print(f"{job.tool} on {job.runtime}, {lab.LstmShape(*job.network).label}", file=sys.stderr, flush=True)
            missing = [name for name in PACKAGES if name in (job.tool, job.runtime) and not installed_version(name)]
            answers[job].append({"missing": f"not installed: pip install {missing[0]}"} if missing else run(job))
    for network in networks:
        rows = [[job.tool, job.runtime, *cells(found)] for job, found in answers.items() if job.network == network]
        print(f"{lab.LstmShape(*network).label}\n{table(HEADER, rows)}\n")
    tools = [[name, peer.pinned_by, peer.cannot] for name, peer in PEERS.items()]
    print(table(("tool", "pinned by", "what it cannot do"), tools, wrap=True, width=120))
    if arguments.out:
        known = {"processor": cpu_name(), "versions": versions(PACKAGES), "trials": arguments.trials}
        kept = ("tool", "runtime", "network", "core")
        rows = [{**{name: getattr(job, name) for name in kept}, "rounds": found} for job, found in answers.items()]
        arguments.out.write_text(json.dumps({**known, "rows": rows}, indent=1) + "\n")
    return int(any("failed" in answer for found in answers.values() for answer in found))


if __name__ == "__main__":
    sys.exit(timed(sys.argv.pop(2)) if sys.argv[1:2] == [TIMED] else main())
