"""Time of a call of generated C code in silence after a burst: `.venv/bin/python benchmarks/c_silence.py`.

Without biases the state of a recurrent layer decays through denormal numbers (below 1.2e-38 in float32), with which
most processors compute many times more slowly. Generated code takes them for zero during a call; with `-DNAME_KEEP_FPU`
it leaves the processor's setting. The same calls are repeated, those of both alternately: printed are the median over
calls in silence of the smallest time of each call, and the largest of these times by that median. Exit status 1 if it
is above 1.1 with denormal numbers as zero. Run it on an idle machine; it takes a second. Some processors compute
denormal numbers as fast as others: there both ratios are near 1.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import lstm_trt as lab
from lstm_onnx.c.compile import LoadedNetwork
from lstm_onnx.c.file import c_file
from lstm_onnx.c.targets import native_target
from lstm_trt.export.sizes import static_model
from tests.support.c_networks import loaded

UNITS, FEATURES, BURST, CALLS, REPETITIONS, LIMIT = 64, 12, 5, 3000, 20, 1.1


def network() -> bytes:
    """An ONNX model of two LSTM layers without biases, for one sample."""
    module = torch.nn.LSTM(FEATURES, UNITS, 2, bias=False)
    wrapped = lab.TorchNetwork(module, torch.zeros(1, 1, FEATURES), name="net")
    return static_model(wrapped.path, wrapped)


def times_ns(one: LoadedNetwork, x: np.ndarray, outputs: list[np.ndarray]) -> np.ndarray:
    """Of each call after a reset: first a burst of random numbers, then zeros."""
    step, reset, found = one.bound("step", x, *outputs), one.bound("reset"), np.empty(CALLS, np.int64)
    reset()
    x[:] = np.random.default_rng(0).standard_normal(FEATURES)
    for call in range(CALLS):
        if call == BURST:
            x[:] = 0
        began = time.perf_counter_ns()
        step()
        found[call] = time.perf_counter_ns() - began
    return found


def main() -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    file = c_file({"step": network()}, native_target(), "net")
    outputs = [np.empty(size, np.float32) for name, size in file.passes["step"].arguments.items() if name[0] == "y"]
    ways = {"denormal numbers are zero": loaded(file), "computed, -Dnet_KEEP_FPU": loaded(file, "-Dnet_KEEP_FPU")}
    smallest = {name: np.full(CALLS, np.iinfo(np.int64).max) for name in ways}
    for _ in range(REPETITIONS):
        for name, one in ways.items():
            found = times_ns(one, np.zeros(FEATURES, np.float32), outputs)
            smallest[name] = np.minimum(smallest[name], found)
    ratios = {}
    for name, every in smallest.items():
        found = every[BURST:]
        ratios[name] = found.max() / np.median(found)
        print(f"{name:28}median {np.median(found) / 1e3:.2f} us, largest {ratios[name]:.2f} times the median")
    return int(next(iter(ratios.values())) > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
