"""How long a row of the literature's plan takes, by rule.

A start (process, framework, gate, storing), a build, and the steps. Steps beside the batches are
the first call, the gate's, and in training the one before the loop. A step takes so many ms a
GFLOP of the forward pass, a cell (one layer, direction and time step), a million weights that the
cells touch (training at small batches adds up gradients of that size at every cell), a million
trained numbers (the optimizer) and a million outputs of the dense layer. The constants were
measured by trial recordings on one core of a 2-core EPYC of 2026 and rounded up; on another CPU
they are a guess. `plan.batches_of` rests on them: to change one is to ask other questions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lstm_trt.literature.workloads import Workload


@dataclass(frozen=True)
class Rate:
    """ms a GFLOP, a cell, and a million weights touched by the cells."""

    gflop_ms: float
    cell_ms: float
    weights_ms: float = 0.0

    def ms(self, workload: Workload) -> float:
        cells, weights = counts(workload)
        return self.gflop_ms * workload.flops / 1e9 + self.cell_ms * cells + self.weights_ms * weights


_ONE_CALL, _TENSORRT, _TUNED = Rate(10, 0.003), Rate(1, 0.001), Rate(12, 0.03)
FORWARD = {
    "pytorch-basic-eager": Rate(14, 0.026),
    "pytorch-basic-scripted": Rate(14, 0.013),
    "pytorch-basic-compiled": Rate(14, 0.015),
    "pytorch-fused-eager": Rate(12, 0.018),
    "pytorch-fused-scripted": Rate(12, 0.019),
    "pytorch-fused-compiled": Rate(12, 0.009),
    "pytorch-one-call-eager": _ONE_CALL,
    "pytorch-one-call-scripted": _ONE_CALL,
    "pytorch-one-call-compiled": _ONE_CALL,
    "tensorflow-basic-eager": Rate(10, 0.30),
    "tensorflow-basic-graph": Rate(7, 0.015),
    "tensorflow-while-graph": Rate(8, 0.024),
    "tensorflow-static-eager": Rate(8, 1.05),
    "tensorflow-static-graph": Rate(8, 0.030),
    "tensorflow-xla": Rate(14, 0.002),
    "tensorflow-one-call-eager": Rate(20, 1.27),
    "tensorflow-one-call-graph": Rate(8, 0.032),
    "onnxruntime": Rate(7, 0.001),
    "tensorrt": _TENSORRT,
    "tensorrt-rtx": _TENSORRT,
    "tvm-untuned": Rate(1450, 0.0),
    "tvm-tuned": _TUNED,
}
TRAINING = {
    "pytorch-basic-eager": Rate(37, 0.25, 0.33),
    "pytorch-basic-scripted": Rate(37, 0.20, 0.33),
    "pytorch-basic-compiled": Rate(40, 0.02),
    "pytorch-fused-eager": Rate(37, 0.10, 0.56),
    "pytorch-fused-scripted": Rate(37, 0.05, 0.56),
    "pytorch-fused-compiled": Rate(40, 0.02),
    "pytorch-one-call-eager": Rate(25, 0.03, 0.05),
    "pytorch-one-call-scripted": Rate(25, 0.03, 0.05),
    "pytorch-one-call-compiled": Rate(40, 0.02),
    "tensorflow-basic-eager": Rate(25, 1.1, 2.2),
    "tensorflow-basic-graph": Rate(22, 0.05, 0.60),
    "tensorflow-while-graph": Rate(20, 0.10, 0.55),
    "tensorflow-static-eager": Rate(30, 1.5, 2.0),
    "tensorflow-static-graph": Rate(18, 0.10, 0.40),
    "tensorflow-xla": Rate(27, 0.10, 0.40),
    "tensorflow-one-call-eager": Rate(35, 2.0, 2.5),
    "tensorflow-one-call-graph": Rate(22, 0.10, 0.55),
}
#: ms a million outputs of the dense layer (4 elsewhere), and a million trained numbers.
OUTPUTS_MS = {("forward", "pytorch"): 4.0, ("training", "pytorch"): 30.0, ("training", "tensorflow"): 15.0}
PARAMETERS_MS = 5.0
#: Seconds, by the framework a name begins with.
START_S = {"pytorch": 3.0, "tensorflow": 4.2, "onnxruntime": 3.0, "tensorrt": 30.0, "tvm": 5.0}
#: Seconds of a build, and for each cell of it where the loop is unrolled: (mode, end of the name) -> both.
BUILD_S = {
    ("forward", "-compiled"): (7.0, 0.20),
    ("forward", "one-call-compiled"): (7.0, 0.0),
    ("training", "-compiled"): (10.0, 0.8),
    ("training", "one-call-compiled"): (10.0, 2.0),
    ("forward", "basic-graph"): (0.5, 0.012),
    ("forward", "static-graph"): (0.5, 0.018),
    ("forward", "-graph"): (0.5, 0.0),
    ("forward", "-xla"): (1.0, 0.0),
    ("training", "basic-graph"): (1.0, 0.055),
    ("training", "static-graph"): (1.0, 0.055),
    ("training", "-graph"): (2.0, 0.0),
    ("training", "-xla"): (6.0, 0.0),
    ("forward", "tvm-untuned"): (1.0, 0.8),
    ("forward", "tvm-tuned"): (70.0, 0.8),
}


def counts(workload: Workload) -> tuple[int, float]:
    """Cells of a forward pass, and the millions of weights that they touch together."""
    cells = workload.sequence * workload.layers * workload.directions
    weights = sum(4 * workload.hidden * (width + workload.hidden) for width in workload.shape.layer_inputs())
    return cells, workload.sequence * workload.directions * weights / 1e6


def step_ms(workload: Workload, name: str, mode: str) -> float:
    """Estimate of one batch."""
    outputs = math.prod(workload.output_shape) / 1e6 if workload.outputs else 0.0
    ms = OUTPUTS_MS.get((mode, name.split("-")[0]), 4.0) * outputs
    if mode == "forward":
        return ms + FORWARD[name].ms(workload)
    return ms + TRAINING[name].ms(workload) + PARAMETERS_MS * workload.parameters / 1e6


def build_s(workload: Workload, name: str, mode: str) -> float:
    """Estimate of the build: of the longest end in `BUILD_S` that the name has."""
    ends = [end for of, end in BUILD_S if of == mode and name.endswith(end)]
    if not ends:
        return 0.0
    once, a_cell = BUILD_S[mode, max(ends, key=len)]
    return once + a_cell * counts(workload)[0]


def estimate_s(workload: Workload, name: str, mode: str, steps: int) -> float:
    """Estimate of a whole row with so many batches, warm-up included."""
    more = 2 if mode == "forward" else 3
    start = next(seconds for begin, seconds in START_S.items() if name.startswith(begin))
    return start + build_s(workload, name, mode) + (steps + more) * step_ms(workload, name, mode) / 1e3
