"""Generated C code with weights in bf16 beside that in fp32: `.venv/bin/python benchmarks/c_race.py`.

A call of a stream, or of a window, of each network in both precisions, alternately, from Python through ctypes, on one
core. Each of several processes gives the ratio of the medians; printed are the medians in us and the ratios, the middle
one with the lowest and the highest. Where the weights exceed the first-level cache a call is bound by reading them, and
bf16 halves their bytes. Run it on an idle machine; it takes three minutes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import lstm_trt as lab
from lstm_trt.export.c_compile import LoadedNetwork, find_compiler
from lstm_trt.export.c_file import c_file, native_target
from lstm_trt.export.sizes import static_model
from lstm_trt.export.to_onnx import export_network

TICKS = [(1, 8), (1, 16), (1, 32), (1, 64), (2, 64), (1, 128), (2, 200), (2, 256), (3, 256), (3, 960)]
SHAPES = [(*tick, 1) for tick in TICKS] + [(1, 32, 32), (1, 20, 100), (2, 64, 64), (2, 200, 128)]
PRECISIONS = ("fp32", "bf16")

#: Time of one precision of one network in a process, in s, and blocks of calls that alternate.
SECONDS, BLOCKS = 0.5, 20


def step_of(shape: lab.LstmShape, precision: str) -> tuple:
    """The network's memory, a call, and its arrays, which must be kept."""
    model = static_model(export_network(shape, 0).path, shape)
    function, models = ("step", (None, model)) if shape.sequence == 1 else ("run", (model, None))
    file = c_file(*models, native_target(), "network", include_weights=False, precision=precision)
    network, random = LoadedNetwork(file, find_compiler()), np.random.default_rng(0)
    arrays = [random.standard_normal(size).astype(np.float32) for size in file.passes[function].arguments.values()]
    return network, network.bound(function, *arrays), arrays


def medians_us(shape: lab.LstmShape) -> list[float]:
    """Of both precisions."""
    steps = {precision: step_of(shape, precision) for precision in PRECISIONS}
    times_ns: dict[str, list[int]] = {precision: [] for precision in PRECISIONS}
    began = time.perf_counter_ns()
    steps["fp32"][1]()
    calls = max(1, int(1e9 * SECONDS / BLOCKS / max(time.perf_counter_ns() - began, 1000)))
    for _ in range(BLOCKS):
        for precision, (_, call, _) in steps.items():
            for _ in range(calls):
                start = time.perf_counter_ns()
                call()
                times_ns[precision].append(time.perf_counter_ns() - start)
    return [statistics.median(times) / 1e3 for times in times_ns.values()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5, metavar="N")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print(json.dumps(medians_us(lab.LstmShape(*json.loads(arguments.one)))))
        return 0
    print(f"{'network':>12}{'fp32 us':>10}{'bf16 us':>10}   bf16 / fp32 of {arguments.processes} processes")
    for shape in SHAPES:
        command = [sys.executable, __file__, "--one", json.dumps(shape)]
        runs = [json.loads(subprocess.check_output(command)) for _ in range(arguments.processes)]
        fp32, bf16 = (statistics.median(each) for each in zip(*runs, strict=True))
        ratios = sorted(after / before for before, after in runs)
        name = lab.LstmShape(*shape).title("forward").removesuffix("-b1")
        middle = statistics.median(ratios)
        print(f"{name:>12}{fp32:10.2f}{bf16:10.2f}   {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
