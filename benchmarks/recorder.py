"""Overhead of the recorder per call: `.venv/bin/python benchmarks/recorder.py`.

One ONNX Runtime session on one pinned core. Blocks of recorded trials alternate with
blocks recorded without times off the core (`machine/switches.py`), and with blocks of a bare
loop with the same session (two clock readings and a list), in the order A B C C B A. The result
is the ratio of the medians pooled over all blocks, with a distribution-free confidence
interval (order statistics) for the median ratio of neighbouring blocks. Exit status 1 if one of
the two ratios exceeds 1.01.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
from scipy.stats import quantile_test

import lstm_trt as lab
from lstm_trt import runtimes
from lstm_trt.export import to_onnx
from lstm_trt.export.network import make_inputs
from lstm_trt.export.to_onnx import INPUT
from lstm_trt.machine import counters
from lstm_trt.machine.linux import choose_cores
from lstm_trt.machine.switches import Switches
from lstm_trt.recorder.loop import Loop, quiet_collector
from lstm_trt.recorder.run import pin
from lstm_trt.runtimes.base import Request

LIMIT = 1.01


def bare_loop(call: Callable[[], None], trials: int, warmup: int) -> np.ndarray:
    """Latencies in ns, after warm-up, of a loop without the recorder."""
    latencies = []
    for _ in range(warmup + trials):
        start = time.perf_counter_ns()
        call()
        latencies.append(time.perf_counter_ns() - start)
    return np.array(latencies[warmup:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40, help="pairs of blocks (default 40)")
    parser.add_argument("--trials", type=int, default=1000, help="trials per block (default 1000)")
    parser.add_argument("--hidden", type=int, default=64, help="hidden units (default 64)")
    parser.add_argument("--sequence", type=int, default=100, help="time steps (default 100)")
    arguments = parser.parse_args()
    shape = lab.LstmShape(2, arguments.hidden, arguments.sequence)
    options = lab.Options(cores=choose_cores(1))
    network = to_onnx.export_network(shape)
    pin(options)
    inputs, _, _ = make_inputs(shape, 0)
    prepared = runtimes.load_runtime("onnxruntime").prepare(Request(shape, options, {INPUT: inputs}, {}, network.path))
    call = prepared.step  # of a network without states: the runtime's own call
    protocol = lab.Protocol(trials=arguments.trials, warmup=10)
    blocks: dict[str, list[np.ndarray]] = {"recorded": [], "without times off the core": [], "bare loop": []}
    recorded, without, bare = blocks
    with counters.Watcher(options.cores, "cpu") as watcher, Switches() as switches:
        if missing := switches.as_dict()["missing"]:
            print(f"times off the core are not measured here: {missing}")

        def run(kind: str) -> np.ndarray:
            with quiet_collector():
                if kind == bare:
                    return bare_loop(call, arguments.trials, 10)
                how = {"switches": switches} if kind == recorded else {}
                loop = Loop(prepared.step, protocol, read_machine=watcher.read, **how)
                loop.part(protocol.warmup)
            columns = loop.trials().columns
            return columns["latency_ns"][~columns["warmup"]]

        for pair in range(arguments.pairs):
            for kind in list(blocks)[:: 1 if pair % 2 == 0 else -1]:
                blocks[kind].append(run(kind))
    pooled = {name: float(np.median(np.concatenate(values))) for name, values in blocks.items()}
    medians = {name: np.array([np.median(block) for block in values]) for name, values in blocks.items()}
    print(f"{shape.label} on onnxruntime, {3 * arguments.pairs} interleaved blocks of {arguments.trials} trials")
    print(", ".join(f"{name} {value / 1e3:.2f} us" for name, value in pooled.items()))
    status = 0
    for other in (without, bare):
        ratio, ratios = pooled[recorded] / pooled[other], medians[recorded] / medians[other]
        low, high = quantile_test(ratios, q=0, p=0.5).confidence_interval(0.95)
        status |= ratio > LIMIT
        print(
            f"{'ok    ' if ratio <= LIMIT else 'FAILED'}  recorded / {other}: pooled ratio {ratio:.4f}, at most {LIMIT}"
        )
        print(f"        pairs of blocks: median ratio {np.median(ratios):.4f}, 95 % interval {low:.4f} to {high:.4f}")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
