"""C code in fp32, and with weights in bf16 and int8, beside ONNX Runtime: `.venv/bin/python benchmarks/c_race.py`.

A call of a stream, or of a window, of each network by each competitor, alternately, from Python on one core; ONNX
Runtime also with a thread for each core, as by default. All compute the same outputs. Each of several
processes gives the ratios of the medians to that of the code in fp32; printed are the medians in us and the ratios, the
middle one with the lowest and the highest. Where the weights exceed the first-level cache a call is bound by reading
them, and bf16 halves their bytes, int8 quarters nearly all. Run it on an idle machine; it takes eight minutes.
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
from lstm_trt import runtimes
from lstm_trt.export.to_onnx import INPUT, export_network
from lstm_trt.runtimes.base import Request

TICKS = [(1, 8), (1, 16), (1, 32), (1, 64), (2, 64), (1, 128), (2, 200), (2, 256), (3, 256), (3, 960)]
SHAPES = [(*tick, 1) for tick in TICKS] + [(1, 32, 32), (1, 20, 100), (2, 64, 64), (2, 200, 128)]
CORES = len(os.sched_getaffinity(0))

#: Name -> runtime and options.
COMPETITORS = {
    "fp32": ("c", lab.Options()),
    "bf16": ("c", lab.Options(precision="bf16")),
    "int8": ("c", lab.Options(precision="int8")),
    "ORT": ("onnxruntime", lab.Options()),
    f"ORT, {CORES} threads": ("onnxruntime", lab.Options(threads=CORES)),
}
FIRST, *OTHERS = COMPETITORS

#: Time of one competitor on one network in a process, in s, and blocks of calls that alternate.
SECONDS, BLOCKS = 0.5, 20

#: Largest difference of outputs from those in fp32, relative to the largest: of the same precision, and of others.
SAME, ROUNDED = 1e-5, 0.03


def medians_us(shape: lab.LstmShape) -> list[float]:
    """Of all competitors."""
    mode = "stream" if shape.sequence == 1 else "forward"
    network = shape.in_mode(mode)
    path = export_network(network, 0, mode=mode).path
    inputs = {INPUT: np.random.default_rng(0).standard_normal((shape.sequence, 1, shape.features)).astype(np.float32)}
    held = {}
    for name, (runtime, options) in COMPETITORS.items():
        request = Request(network, options, inputs, {}, path, mode)
        held[name] = runtimes.load_runtime(runtime).prepare(request)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # this thread, not those of a pool
    steps = {name: each.step for name, each in held.items()}
    outputs = {}
    for name, call in steps.items():
        call()
        (outputs[name],) = held[name].outputs().values()
        error = np.abs(outputs[name] - outputs[FIRST]).max() / np.abs(outputs[FIRST]).max()
        if not error <= (ROUNDED if name in ("bf16", "int8") else SAME):
            raise SystemExit(f"{name} differs from {FIRST} by {error:.2g} of the largest output")
    times_ns: dict[str, list[int]] = {name: [] for name in steps}
    began = time.perf_counter_ns()
    steps[FIRST]()
    calls = max(1, int(1e9 * SECONDS / BLOCKS / max(time.perf_counter_ns() - began, 1000)))
    for _ in range(BLOCKS):
        for name, call in steps.items():
            for _ in range(calls):
                start = time.perf_counter_ns()
                call()
                times_ns[name].append(time.perf_counter_ns() - start)
    return [statistics.median(times) / 1e3 for times in times_ns.values()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5, metavar="N")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(medians_us(lab.LstmShape(*json.loads(arguments.one)))))
        return 0
    print(f"{'network':>12}{FIRST + ' us':>10}   ratios to it of {arguments.processes} processes: {', '.join(OTHERS)}")
    for shape in SHAPES:
        command = [sys.executable, __file__, "--one", json.dumps(shape)]
        runs = [json.loads(subprocess.check_output(command)) for _ in range(arguments.processes)]
        cells = []
        for place in range(1, len(COMPETITORS)):
            ratios = sorted(run[place] / run[0] for run in runs)
            cells.append(f"{statistics.median(ratios):6.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        name = lab.LstmShape(*shape).title("forward").removesuffix("-b1")
        print(f"{name:>12}{statistics.median(run[0] for run in runs):10.2f}   {'   '.join(cells)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
