"""TensorFlow 2 and Keras 3 on the CPU: the cell written out, Keras' own cell unrolled, and Keras' own layer.

`basic` writes the cell out of matrix products and pointwise operators in a Python loop over
time, which `graph` unrolls into one `tf.function`; `while` is the same cell in a symbolic
`tf.while_loop`, and `tensorflow-xla` is that one with `jit_compile=True`: its build time does not
grow with the sequence. On one core of a 2-core EPYC, XLA built the training step of `ptb-lm` (3 x 50
cells, batch 2) in 2.5 s as a loop and in 34 s unrolled; 64 hidden units over 512 steps, forward, in
0.2 s and in 18 s. `static` unrolls `keras.layers.LSTMCell`, `one-call` is `keras.layers.LSTM`.
Embedding, head and loss are the same for all; in graphs and XLA they, the gradients and the
optimizer are part of one function.

The written-out cells hold PyTorch's two bias vectors, so they follow it update by update.
Keras has one, the sum of both: an update moves the sum of two twice as far, so Keras' loss agrees
in the first step and falls a little differently after it.

Sequences of different lengths are masked: padding is computed and thrown away, not packed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lstm_trt.config.errors import building
from lstm_trt.literature.implementations import PRECISIONS, checked_batch, is_installed, mode_reason
from lstm_trt.literature.workloads import LiteratureWorkload
from lstm_trt.machine.facts import installed_version
from lstm_trt.runtimes.base import Availability, PreparedStep, Request

#: Most cells (steps x layers x directions) that may be unrolled into one graph. Tracing and the first
#: call took 14 ms a cell in a forward pass and 40 ms in a training step (50 ms where padding is
#: masked) on one core of a 2-core EPYC, whatever the number of cells: these limits are about a minute.
UNROLLED = {"forward": 4000, "training": 1000}


#: The wheels that install TensorFlow, with and without its GPU libraries.
DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")

_REMEDY = "pip install -e '.[frameworks]'"


@dataclass(frozen=True)
class TensorFlow:
    """One style and execution as an implementation."""

    STYLE: str
    EXECUTION: str
    FRAMEWORK: str = "TensorFlow"
    EXTRA: str = "frameworks"
    DEVICES: tuple[str, ...] = ("cpu",)
    PRECISIONS: dict = field(default_factory=lambda: PRECISIONS)

    @property
    def NAME(self) -> str:
        return "tensorflow-xla" if self.EXECUTION == "xla" else f"tensorflow-{self.STYLE}-{self.EXECUTION}"

    @property
    def TITLE(self) -> str:
        kind = {"basic": "basic", "while": "while loop", "static": "Keras LSTMCell", "one-call": "Keras LSTM"}
        return f"TensorFlow {kind[self.STYLE]}, {'XLA' if self.EXECUTION == 'xla' else self.EXECUTION}"

    @property
    def DISTRIBUTION(self) -> str:
        return next((name for name in DISTRIBUTIONS if installed_version(name)), DISTRIBUTIONS[0])

    @property
    def unrolled(self) -> bool:
        """Whether a graph holds one cell a step."""
        return self.EXECUTION != "eager" and self.STYLE in ("basic", "static")

    def supports(self, workload: LiteratureWorkload, mode: str, device: str = "cpu") -> str | None:
        """None where it can; graphs that are unrolled have a limit."""
        reason = mode_reason(workload, mode)
        if reason or not self.unrolled:
            return reason
        cells = workload.sequence * workload.layers * workload.directions
        limit = UNROLLED[mode]
        if cells > limit:
            return f"the graph is unrolled: {cells} cells would build for over a minute, the limit is {limit}"
        return None

    def availability(self, device: str = "cpu") -> Availability:
        """Ready where TensorFlow and Keras are installed; imports neither, never raises."""
        version = installed_version(self.DISTRIBUTION)
        for package in ("tensorflow", "keras"):
            if not is_installed(package):
                return Availability(False, version, reason=f"{package} is not installed", remedy=_REMEDY)
        return Availability(True, version)

    def prepare(self, request: Request) -> PreparedStep:
        """Raises `RuntimeUnavailable`, `MemoryExhausted`, and `BuildFailed` for what it does not support or build."""
        batch = checked_batch(self, request)
        with building(self.NAME, request.label):
            from lstm_trt.literature.implementations.tensorflow_task import ForwardStep, TrainingStep

            return (ForwardStep if request.mode == "forward" else TrainingStep)(self, request, batch)


BASIC_EAGER = TensorFlow("basic", "eager")

BASIC_GRAPH = TensorFlow("basic", "graph")

WHILE_GRAPH = TensorFlow("while", "graph")

STATIC_EAGER = TensorFlow("static", "eager")

STATIC_GRAPH = TensorFlow("static", "graph")

XLA = TensorFlow("while", "xla")

ONE_CALL_EAGER = TensorFlow("one-call", "eager")

ONE_CALL_GRAPH = TensorFlow("one-call", "graph")
