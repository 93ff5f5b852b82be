"""The complete set of benchmarks for a CPU with 2 cores: workloads, scales, implementations, batches, estimated times.

`BLOCKS` defines the set: all implementations of a block run the same sizes at the same scale. A row
gets as many of the document's batches as fit into its block's seconds, but at least `FEWEST`. The
numbers of batches are derived from the estimates, not from the machine, so that recordings of
different machines are comparable; changing a rate changes them.

The time of a row is the sum of start, build and steps, estimated with the `RATES` of its
implementation. In addition to the batches there is one step for the first call, one for the parity
gate, and in training one before the loop. A training step also takes `PARAMETERS_MS` per million
parameters (the optimizer), and `weights_ms` matters (each cell adds to gradients of the size of the
weights, which dominates for small batches). These rates, measured on one core of a 2-core EPYC in 2026
and rounded up, give the numbers of batches. The estimated time is theirs times `Rates.measured`, which
makes it that of the recordings on a 2-core Xeon in data/xeon/literature; other CPUs differ. An implementation
without rates gets the fewest batches and no estimate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from lstm_judge.read.numbers import table
from lstm_literature import implementations
from lstm_literature.implementations import Rates
from lstm_literature.preparer import REFERENCE, can_run, describe_benchmark, protocol_of
from lstm_literature.sides import successors
from lstm_literature.workloads import AS_THERE, VARIANTS, WORKLOADS, LiteratureWorkload
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import RuntimeUnavailable
from lstm_trt.config.format import count

#: Time of the optimizer per million parameters, in training.
PARAMETERS_MS = 5.0

#: Time limit of one recording: if it takes longer, it becomes a failure row and the set continues.
TIME_LIMIT_S = 300.0

#: Possible numbers of batches of a row, in addition to the document's number.
LADDER = (200, 100, 50, 20, 10, 5, 3)

FEWEST = LADDER[-1]

COMPILED = tuple(name for name in implementations.IMPLEMENTATIONS if name.endswith("-compiled"))

#: Implementations that are built in seconds: compiling a training step of PyTensor takes more than a minute.
NOT_COMPILED = tuple(name for name in implementations.IMPLEMENTATIONS if name not in (*COMPILED, "pytensor-scan"))

#: The fastest implementation of each kind, and PyTorch's cell in a loop.
FAMILIES = (
    "pytorch-one-call-eager", "pytorch-fused-eager", "tensorflow-xla", "tensorflow-one-call-graph", "jax-scan",
    "onnxruntime",
)  # fmt: skip

TWO = ("pytorch-one-call-eager", "onnxruntime")

#: Implementations for long sequences, where eager TensorFlow takes seconds per batch.
LONG = (
    "pytorch-basic-eager", "pytorch-fused-eager", "pytorch-one-call-eager", "tensorflow-while-graph", "tensorflow-xla",
    "tensorflow-one-call-graph", "jax-scan", "mxnet-one-call",
)  # fmt: skip

#: Implementations without a counterpart in document 001, which are not the fastest of other frameworks either.
NOT_DOCUMENT_001 = ("keras-", "pytorch-one-call-scripted", "tensorflow-xla")

DOCUMENT_001 = tuple(name for name in NOT_COMPILED if not name.startswith(NOT_DOCUMENT_001))

#: Implementations for a scale that is small enough for torch.compile.
SMALL = (
    "pytorch-basic-eager", "pytorch-fused-eager", "pytorch-one-call-eager", "pytorch-one-call-scripted", *COMPILED,
    "tensorflow-xla", "jax-scan",
)  # fmt: skip

#: The three styles of document 004, and the most similar one of TensorFlow.
STYLES = ("pytorch-basic-eager", "pytorch-fused-eager", "pytorch-one-call-eager", "tensorflow-one-call-graph")

#: What takes the place of the six frameworks of document 002 today, both back ends of Keras included.
DOCUMENT_002 = tuple(name for names in successors("002").values() for name in names)

#: The same without PyTensor, and the fastest of other frameworks.
OVER_HIDDEN = (*(name for name in DOCUMENT_002 if name in NOT_COMPILED), "pytorch-one-call-eager", "jax-scan")

#: PyTorch, TensorFlow and Keras, current versions of frameworks of document 002, in one style each.
TEXT = ("pytorch-one-call-eager", "tensorflow-basic-graph", "tensorflow-one-call-graph", "jax-scan")


@dataclass(frozen=True)
class Part:
    """Sizes x implementations in one mode; `seconds` limits the loop of a row.

    Empty `implementations` means all, including those of other packages.
    """

    workloads: tuple[LiteratureWorkload, ...]
    implementations: tuple[str, ...] = ()
    mode: str = "forward"
    scale: str = "1"
    seconds: float = 4.0


_LAYER, _STACK, _TEXT = (VARIANTS[name] for name in ("layer", "stack", "text-classifier"))

_PTB, _SHORT, _LONG, *_DEEP_SPEECH = (WORKLOADS[name] for name in tuple(WORKLOADS) if name[:3] in ("ptb", "spe"))

_COLUMN = tuple(_LAYER[0].variant(batch=128, sequence=sequence, hidden=128) for sequence in (8, 32, 128, 512))

_DEEP = tuple(workload for workload in _STACK if workload.layers in (4, 12, 20))

#: Layers that TVM's default loops compute in about two seconds.
_UNTUNED = tuple(workload for workload in _LAYER if workload.flops < 2.2e9)


BLOCKS = (
    # All implementations, also at the smallest layer.
    Part((WORKLOADS["cell"],), seconds=2),
    Part(_LAYER[:1], seconds=2),
    # The other sizes of the document's table.
    Part(_LAYER[1:], TWO, seconds=1),
    # The larger ones take minutes with TVM's default loops.
    Part(_UNTUNED, ("tvm-untuned",), seconds=2),
    # TensorFlow and JAX for the sequences of the table's longest column.
    Part(_COLUMN, ("tensorflow-one-call-graph", "jax-scan"), seconds=2),
    # All implementations at depth 1.
    Part(_STACK[:1], seconds=2),
    # One of each kind over depth, and the run with batch 32.
    Part((*_DEEP, _STACK[-1]), (*FAMILIES, "tvm-untuned"), seconds=1),
    # Two implementations at all depths of the document.
    Part(_STACK[1:-1], TWO, seconds=1),
    # Full size; building the other compiled implementations would take minutes.
    Part((_PTB,), (*NOT_COMPILED, "pytorch-one-call-compiled"), seconds=3),
    # Full size: the rows of the document.
    Part((_PTB,), DOCUMENT_001, "training", seconds=4),
    # Small enough for torch.compile, with others to compare.
    Part((_PTB,), SMALL, "training", "1/8", seconds=2),
    # Full size up to hidden 512: the document's frameworks.
    Part(_TEXT[:3], TEXT, "training", seconds=3),
    # All but torch.compile.
    Part(_TEXT[:1], (*NOT_COMPILED, "pytensor-scan"), "training", "1/4", seconds=2),
    # The document's frameworks over hidden size, except for PyTensor.
    Part(_TEXT[1:], OVER_HIDDEN, "training", "1/4", seconds=2),
    # The programs of document 002 that differ, with what takes the place of their frameworks; PyTensor for one size.
    *(
        Part(VARIANTS[name][: 1 if program == "theano" else None], successors("002")[program], "training", "1/4", 2)
        for (workload, program), name in AS_THERE.items()
        if workload == "text-classifier"
    ),
    # All but the slowest.
    Part((_SHORT,), (*LONG, "keras-jax", "keras-torch"), "training", "1/4", seconds=2),
    # Full size: the document's three styles, and one of TensorFlow.
    Part((_SHORT,), STYLES, "training", seconds=4),
    # Small enough for a few seconds per row.
    Part((_LONG,), LONG, "training", "1/8", seconds=3),
    Part(tuple(_DEEP_SPEECH), LONG, "training", "1/16", seconds=4),
)


@dataclass(frozen=True)
class ScheduledRecording:
    """One row of the plan.

    `configuration` is None if the implementation is not ready on this machine, with the `reason`; `estimate_s` is
    None if the implementation has no rates. `recorded`: whether it was recorded before.
    """

    workload: LiteratureWorkload
    implementation: str
    mode: str
    batches: int
    warmup: int
    estimate_s: float | None
    configuration: Configuration | None
    reason: str = ""
    recorded: bool = False

    def as_dict(self) -> dict:
        """JSON values."""
        return {
            "workload": self.workload.label,
            "scale": self.workload.scale,
            "mode": self.mode,
            "implementation": self.implementation,
            "batches": self.batches,
            "warmup": self.warmup,
            "recorded": self.recorded,
            "document_batches": self.workload.batches,
            "estimate_s": self.estimate_s,
            "config_id": self.configuration and self.configuration.id,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Schedule:
    """The rows in the order of the documents."""

    entries: tuple[ScheduledRecording, ...]

    @property
    def ready(self) -> Schedule:
        """The rows that can be recorded on this machine."""
        return Schedule(tuple(entry for entry in self.entries if entry.configuration))

    @property
    def left(self) -> Schedule:
        """Those of `ready` that are not recorded yet."""
        return Schedule(tuple(entry for entry in self.ready.entries if not entry.recorded))

    @property
    def total_s(self) -> float:
        """Estimate for all rows and the parity references, two steps of PyTorch each; without an estimate 0."""
        references = {(entry.workload, entry.mode) for entry in self.entries}
        references_s = sum(2 * step_ms(workload, REFERENCE, mode) / 1e3 for workload, mode in references)
        return sum(entry.estimate_s or 0.0 for entry in self.entries) + references_s

    def as_dict(self) -> dict:
        """JSON values."""
        parts = {"": self, "here_": self.ready, "left_": self.left}
        return {
            "rows": [entry.as_dict() for entry in self.entries],
            **{f"estimate_{name}s": part.total_s for name, part in parts.items()},
            "time_limit_s": TIME_LIMIT_S,
        }

    def __str__(self) -> str:
        """One line per row with scale, batches, estimate and why it cannot be recorded, and the total."""
        header = ("workload", "scale", "mode", "implementation", "warm-up", "batches", "estimate")
        rows = [_cells(entry) for entry in self.entries]
        lines = table(header, rows, right=header[4:], left=header[:4], drop=("warm-up", "batches", "mode")).split("\n")
        for number, entry in enumerate(self.entries, 1):
            if entry.recorded:
                lines[number] += "  recorded"
            if not entry.configuration:
                lines[number] += f"  cannot be recorded: {entry.reason}"
        ready = self.ready
        left = self.left
        total = f"{len(ready.entries)} of {count(len(rows), 'row')} can be recorded on this machine"
        if len(left.entries) < len(ready.entries):
            total += f"; {len(left.entries)} of them are not recorded yet"
        total += f", in about {left.total_s / 60:.0f} min by rates measured on a 2-core Xeon"
        if len(ready.entries) < len(rows):
            total += f"; all rows would take {self.total_s / 60:.0f} min"
        if unknown := sum(entry.estimate_s is None for entry in self.entries):
            total += f" (without {count(unknown, 'row')} without an estimate)"
        total += f"; time limit per row {TIME_LIMIT_S:g} s; resumes if interrupted"
        return "\n".join([*lines, total])


def _cells(entry: ScheduledRecording) -> list[str]:
    workload = entry.workload
    batches = f"{entry.batches} of {workload.batches}" if entry.batches < workload.batches else str(entry.batches)
    estimate = "-" if entry.estimate_s is None else f"{math.ceil(entry.estimate_s)} s"
    return [
        workload.label, workload.scale, entry.mode, entry.implementation, str(entry.warmup), batches, estimate
    ]  # fmt: skip


def plan(more: Sequence[str] = (), recorded: Collection[str] = ()) -> Schedule:
    """The whole set; each implementation of `implementations.names(more)` is in at least one row that it supports.

    `recorded`: ids of the configurations that were recorded before.
    """
    found: dict[tuple, ScheduledRecording] = {}
    for block in BLOCKS:
        for workload in (workload.scaled(block.scale) for workload in block.workloads):
            for name in block.implementations or implementations.names(more):
                key = (workload, name, block.mode)
                if key not in found and can_run(name, workload, block.mode):
                    found[key] = _entry(workload, name, block, recorded)
    return Schedule(tuple(found.values()))


def _entry(workload: LiteratureWorkload, name: str, block: Part, recorded: Collection[str]) -> ScheduledRecording:
    batches, warmup = batches_of(workload, name, block.mode, block.seconds)
    estimate = estimate_s(workload, name, block.mode, batches + warmup)
    configuration = None
    reason = ""
    try:
        configuration = describe_benchmark(workload, name, block.mode, batches=batches, warmup=warmup)
    except RuntimeUnavailable as error:
        reason = error.reason
    done = bool(configuration) and configuration.id in recorded
    return ScheduledRecording(workload, name, block.mode, batches, warmup, estimate, configuration, reason, done)


def batches_of(workload: LiteratureWorkload, name: str, mode: str, seconds: float) -> tuple[int, int]:
    """(timed, warm-up): as many of the document's batches as fit into `seconds`, and the warm-up in proportion."""
    step = step_ms(workload, name, mode)
    for batches in [workload.batches, *(number for number in LADDER if number < workload.batches)]:
        warmup = protocol_of(workload, batches).warmup
        if step is not None and (batches + warmup) * step <= 1e3 * seconds:
            break
    return batches, warmup


def _rates(name: str, mode: str) -> Rates | None:
    return getattr(implementations.load_implementation(name), "RATES", {}).get(mode)


def step_ms(workload: LiteratureWorkload, name: str, mode: str) -> Any:
    """Estimate for one batch, a float; None for an implementation without rates."""
    rates = _rates(name, mode)
    optimizer_ms = PARAMETERS_MS * workload.parameters / 1e6 if mode == "training" else 0.0
    return rates and rates.step_ms(workload) + optimizer_ms


def estimate_s(workload: LiteratureWorkload, name: str, mode: str, steps: int) -> float | None:
    """Estimate for a row with `steps` batches, including warm-up; None for an implementation without rates."""
    rates = _rates(name, mode)
    step = step_ms(workload, name, mode)
    more = 2 if mode == "forward" else 3
    return rates and rates.measured * (rates.start_s + rates.building_s(workload) + (steps + more) * step / 1e3)
