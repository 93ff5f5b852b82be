"""How long a row of the literature's plan takes, by rule.

A start (process, framework, gate, storing), a build, and the steps. Steps beside the batches are
the first call, the gate's, and in training the one before the loop. A step takes so many ms a
GFLOP of the forward pass, a cell (one layer, direction and time step), a million weights that the
cells touch (training at small batches adds up gradients of that size at every cell), a million
trained numbers (the optimizer) and a million outputs of the dense layer. The constants were
measured by trial recordings on one core of a 2-core EPYC of 2026 and rounded up; on another CPU
they are a guess. `plan.batches_of` rests on them: to change one is to ask other questions.

The whole set for a CPU with 2 cores: which workload at which scale, with whom, how many batches, how long.

`BLOCKS` is the choice: all implementations of a block run the same sizes, at one scale. A row gets
as many of the document's batches as fit into its block's seconds, and never fewer than `FEWEST`.
That follows from the estimates of `plan_estimates.py` on every machine alike, so that recordings of
two machines answer the same question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lstm_trt import registry
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import RuntimeUnavailable
from lstm_trt.config.format import table
from lstm_trt.literature.session import describe_benchmark, protocol_of, reason
from lstm_trt.literature.workloads import VARIANTS, WORKLOADS, LiteratureWorkload


@dataclass(frozen=True)
class Rate:
    """ms a GFLOP, a cell, and a million weights touched by the cells."""

    gflop_ms: float
    cell_ms: float
    weights_ms: float = 0.0

    def ms(self, workload: LiteratureWorkload) -> float:
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


def counts(workload: LiteratureWorkload) -> tuple[int, float]:
    """Cells of a forward pass, and the millions of weights that they touch together."""
    cells = workload.sequence * workload.layers * workload.directions
    weights = sum(4 * workload.hidden * (width + workload.hidden) for width in workload.shape.layer_inputs())
    return cells, workload.sequence * workload.directions * weights / 1e6


def step_ms(workload: LiteratureWorkload, name: str, mode: str) -> float:
    """Estimate of one batch."""
    outputs = math.prod(workload.output_shape) / 1e6 if workload.outputs else 0.0
    ms = OUTPUTS_MS.get((mode, name.split("-")[0]), 4.0) * outputs
    if mode == "forward":
        return ms + FORWARD[name].ms(workload)
    return ms + TRAINING[name].ms(workload) + PARAMETERS_MS * workload.parameters / 1e6


def build_s(workload: LiteratureWorkload, name: str, mode: str) -> float:
    """Estimate of the build: of the longest end in `BUILD_S` that the name has."""
    ends = [end for of, end in BUILD_S if of == mode and name.endswith(end)]
    if not ends:
        return 0.0
    once, a_cell = BUILD_S[mode, max(ends, key=len)]
    return once + a_cell * counts(workload)[0]


def estimate_s(workload: LiteratureWorkload, name: str, mode: str, steps: int) -> float:
    """Estimate of a whole row with so many batches, warm-up included."""
    more = 2 if mode == "forward" else 3
    start = next(seconds for begin, seconds in START_S.items() if name.startswith(begin))
    return start + build_s(workload, name, mode) + (steps + more) * step_ms(workload, name, mode) / 1e3


#: Of one recording: one that takes so much longer than estimated becomes a failure row, and the set goes on.
TIME_LIMIT_S = 300.0

#: Of the whole set; what the estimates must stay below, with room for a machine that is slower.
LIMIT_S = 45 * 60.0

#: Numbers of batches that a row may have, below the document's own.
LADDER = (200, 100, 50, 20, 10, 5, 3)

FEWEST = LADDER[-1]


EVERYONE = tuple(registry.IMPLEMENTATIONS)

COMPILED = tuple(name for name in EVERYONE if name.endswith("-compiled"))

NOT_COMPILED = tuple(name for name in EVERYONE if name not in COMPILED)

#: One of each kind that answers fastest, and PyTorch's cell in a loop.
FAMILIES = (
    "pytorch-one-call-eager", "pytorch-fused-eager", "tensorflow-xla", "tensorflow-one-call-graph", "onnxruntime",
)  # fmt: skip

TWO = ("pytorch-one-call-eager", "onnxruntime")

PYTORCH = tuple(name for name in NOT_COMPILED if name.startswith("pytorch-"))

LONG = (*PYTORCH, "tensorflow-while-graph", "tensorflow-xla", "tensorflow-one-call-graph")

#: What document 001 has rows for, and what has none there and is fast enough for a scale that torch.compile can do.
DOCUMENT_001 = tuple(name for name in NOT_COMPILED if name not in ("pytorch-one-call-scripted", "tensorflow-xla"))

SMALL = (
    "pytorch-basic-eager", "pytorch-fused-eager", "pytorch-one-call-eager", "pytorch-one-call-scripted", *COMPILED,
    "tensorflow-xla",
)  # fmt: skip

#: The three of document 004, and the nearest of TensorFlow's.
STYLES = ("pytorch-basic-eager", "pytorch-fused-eager", "pytorch-one-call-eager", "tensorflow-one-call-graph")

#: Trained by the frameworks of document 002 that live on: Torch7's, TensorFlow's, Keras on TensorFlow.
TEXT = ("pytorch-one-call-eager", "tensorflow-basic-graph", "tensorflow-one-call-graph")


@dataclass(frozen=True)
class Block:
    """Sizes x implementations in one mode; `seconds` bounds the loop of a row, `why` tells what was left out."""

    workloads: tuple[LiteratureWorkload, ...]
    implementations: tuple[str, ...]
    mode: str = "forward"
    scale: str = "1"
    seconds: float = 4.0
    why: str = ""


_LAYER, _STACK, _TEXT = (VARIANTS[name] for name in ("layer", "stack", "text-classifier"))

_PTB, _SHORT, _LONG, _BIDIRECTIONAL, _CTC = (WORKLOADS[name] for name in tuple(WORKLOADS) if name[:3] in ("ptb", "spe"))

_ALONG = (8, 32, 128, 512)

_DEEP = tuple(one for one in _STACK if one.layers in (4, 12, 20))


BLOCKS = (
    Block((WORKLOADS["cell"],), EVERYONE, why="all implementations"),
    Block(_LAYER[:1], EVERYONE, seconds=2, why="all implementations at the smallest layer, the one for TVM"),
    Block(_LAYER[1:], TWO, seconds=2, why="the other sizes of the document's table"),
    Block(
        tuple(one for one in _LAYER if (one.batch, one.hidden, one.layers) == (128, 128, 1) and one.sequence in _ALONG),
        ("tensorflow-one-call-graph",),
        seconds=2.5,
        why="TensorFlow at the table's longest column, by sequence",
    ),
    Block(_STACK[:1], EVERYONE, seconds=2.5, why="all implementations at depth 1"),
    Block((*_DEEP, _STACK[-1]), FAMILIES, seconds=2.5, why="one of each kind by depth, and the run with batch 32"),
    Block(_STACK[1:-1], TWO, why="all depths of the document with two"),
    Block(
        (_PTB,),
        (*NOT_COMPILED, "pytorch-one-call-compiled"),
        seconds=6,
        why="full size; the other compiled ones would build for minutes",
    ),
    Block((_PTB,), DOCUMENT_001, "training", seconds=6, why="full size: the rows of the document"),
    Block((_PTB,), SMALL, "training", "1/8", seconds=2, why="small enough for torch.compile, beside its neighbours"),
    Block(_TEXT[:3], TEXT, "training", seconds=4, why="full size up to hidden 512: the document's frameworks"),
    Block(_TEXT[:1], NOT_COMPILED, "training", "1/4", seconds=2, why="all but torch.compile"),
    Block(_TEXT[1:], (*TEXT, "tensorflow-xla"), "training", "1/4", seconds=2, why="by hidden"),
    Block((_SHORT,), NOT_COMPILED, "training", "1/4", seconds=3, why="all but torch.compile"),
    Block((_SHORT,), STYLES, "training", seconds=4, why="full size: the document's three, and one of TensorFlow"),
    Block((_LONG,), LONG, "training", "1/8", seconds=3, why="eager TensorFlow takes seconds a batch"),
    Block((_BIDIRECTIONAL, _CTC), LONG, "training", "1/16", seconds=4, why="eager TensorFlow takes seconds a batch"),
)


@dataclass(frozen=True)
class Entry:
    """One row of the plan. `configuration` is None where the implementation is not ready here; `reason` tells why."""

    workload: LiteratureWorkload
    implementation: str
    mode: str
    batches: int
    warmup: int
    estimate_s: float
    configuration: Configuration | None
    reason: str = ""


def entries() -> list[Entry]:
    """The plan's rows in the order of the documents, each registered implementation in at least one of them."""
    found: dict[tuple, Entry] = {}
    for block in BLOCKS:
        for workload in (one.scaled(block.scale) for one in block.workloads):
            for name in block.implementations:
                key = (workload, name, block.mode)
                if key not in found and reason(name, workload, block.mode) is None:
                    found[key] = _entry(workload, name, block)
    return list(found.values())


def _entry(workload: LiteratureWorkload, name: str, block: Block) -> Entry:
    batches, warmup = batches_of(workload, name, block.mode, block.seconds)
    estimate = estimate_s(workload, name, block.mode, batches + warmup)
    configuration, why = None, ""
    try:
        configuration = describe_benchmark(workload, name, block.mode, batches=batches, warmup=warmup)
    except RuntimeUnavailable as error:
        why = error.reason
    return Entry(workload, name, block.mode, batches, warmup, estimate, configuration, why)


def batches_of(workload: LiteratureWorkload, name: str, mode: str, seconds: float) -> tuple[int, int]:
    """(timed, warm-up): as many of the document's batches as the seconds hold, and the warm-up in proportion."""
    steps = [workload.batches, *(number for number in LADDER if number < workload.batches)]
    for batches in steps:
        warmup = protocol_of(workload, batches).warmup
        if batches == FEWEST or (batches + warmup) * step_ms(workload, name, mode) <= 1e3 * seconds:
            return batches, warmup
    raise AssertionError("the ladder ends with FEWEST")


def reference_s(found: Iterable[Entry]) -> float:
    """Estimate of what PyTorch takes to answer the gate's question, once for a workload and mode, in two steps."""
    asked = {(entry.workload, entry.mode) for entry in found}
    return sum(2 * step_ms(workload, "pytorch-one-call-eager", mode) / 1e3 for workload, mode in asked)


def total_s(found: Sequence[Entry]) -> float:
    """Estimate of these rows together."""
    return sum(entry.estimate_s for entry in found) + reference_s(found)


def text(found: Sequence[Entry]) -> str:
    """A line a row with scale, batches and estimate, what is not ready here, and the total."""
    rows = []
    for entry in found:
        workload = entry.workload
        batches = f"{entry.batches} of {workload.batches}" if entry.batches < workload.batches else str(entry.batches)
        row = (workload.label, workload.scale, entry.mode, entry.implementation, str(entry.warmup), batches)
        note = f"not recorded here: {entry.reason}" if entry.configuration is None else ""
        rows.append((*row, f"{math.ceil(entry.estimate_s)} s", note))
    header = ("workload", "scale", "mode", "implementation", "warm-up", "batches", "estimate", "")
    here = [entry for entry in found if entry.configuration]
    total = f"{len(here)} of {len(found)} rows can be recorded here, in about {total_s(here) / 60:.0f} min"
    if len(here) < len(found):
        total += f"; all of them would take {total_s(found) / 60:.0f} min"
    total += f"; limit per row {TIME_LIMIT_S:g} s; what was recorded stays, and the same command resumes"
    return f"{table(header, rows, left=('scale', ''), right=('warm-up', 'batches', 'estimate'))}\n{total}"
