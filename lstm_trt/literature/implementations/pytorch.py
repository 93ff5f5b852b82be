"""PyTorch: three styles of the network, each eager, scripted and compiled.

Forward runs in inference mode. A training step zeroes the gradients and runs forward, loss,
backward and the optimizer, and reads the loss. `scripted`: TorchScript, deprecated by PyTorch
and still used; the network and its loss are scripted (forward: frozen too), the backward pass
is autograd's and the optimizer is not scripted. `compiled`: `torch.compile` with Inductor of
the same part, and its backward pass with it; the whole must become one graph, or the name is
refused. Loops over time are unrolled by it, a piece of C++ for each step, hence `UNROLLED`; what
no answer depends on falls away, such as all steps but one of a last reverse layer of which the
head reads `output[-1]`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lstm_trt.config.errors import building
from lstm_trt.literature.implementations import PRECISIONS, checked_batch, mode_reason
from lstm_trt.literature.workloads import LiteratureWorkload
from lstm_trt.runtimes import _torch, torch_compile
from lstm_trt.runtimes.base import Availability, PreparedStep, Request

#: Most cells (steps x layers x directions) that may be unrolled into one compiled graph. On a shared
#: 2-core EPYC, in seconds of one core: 0.25 a cell forward (400 cells: 110), about 1 in a training step,
#: 2 in one within `nn.LSTM`, which then has no oneDNN.
UNROLLED = {"forward": 400, "training": 200, "one-call": 64}


@dataclass(frozen=True)
class PyTorch:
    """One style and execution as an implementation."""

    STYLE: str
    EXECUTION: str
    FRAMEWORK: str = "PyTorch"
    EXTRA: str | None = None
    DISTRIBUTION: str = _torch.DISTRIBUTION
    DEVICES: tuple[str, ...] = ("cpu", "cuda")
    PRECISIONS: dict = field(default_factory=lambda: PRECISIONS)

    @property
    def NAME(self) -> str:
        return f"pytorch-{self.STYLE}-{self.EXECUTION}"

    @property
    def TITLE(self) -> str:
        kind = {"basic": "basic", "fused": "LSTMCell", "one-call": "nn.LSTM"}[self.STYLE]
        return f"PyTorch {kind}, {self.EXECUTION}"

    def supports(self, workload: LiteratureWorkload, mode: str, device: str = "cpu") -> str | None:
        """None where it can; forward passes of `nn.LSTM` are one call of oneDNN a layer on a CPU and need no limit."""
        reason = mode_reason(workload, mode)
        if reason or self.EXECUTION != "compiled":
            return reason
        if self.STYLE == "one-call" and mode == "forward" and device == "cpu":
            return None
        if workload.loss == "ctc" and mode == "training":
            return "torch.compile does not take the CTC loss, whose sizes depend on the lengths' values"
        cells = workload.sequence * workload.layers * workload.directions
        limit = UNROLLED["one-call" if self.STYLE == "one-call" else mode]
        if cells > limit:
            return f"torch.compile unrolls it: {cells} cells would compile for minutes, the limit is {limit}"
        return None

    def availability(self, device: str = "cpu") -> Availability:
        """Ready where PyTorch is, and for `compiled` a C++ compiler; never raises."""
        if self.EXECUTION == "compiled":
            return torch_compile.availability(device)
        return _torch.availability(device, self.DEVICES)

    def prepare(self, request: Request) -> PreparedStep:
        """Raises `RuntimeUnavailable`, `MemoryExhausted`, and `BuildFailed` for what it does not support or build."""
        batch = checked_batch(self, request)
        with building(self.NAME, request.label):
            from lstm_trt.literature.implementations.pytorch_task import ForwardStep, TrainingStep

            return (ForwardStep if request.mode == "forward" else TrainingStep)(self, request, batch)


BASIC_EAGER = PyTorch("basic", "eager")

BASIC_SCRIPTED = PyTorch("basic", "scripted")

BASIC_COMPILED = PyTorch("basic", "compiled")

FUSED_EAGER = PyTorch("fused", "eager")

FUSED_SCRIPTED = PyTorch("fused", "scripted")

FUSED_COMPILED = PyTorch("fused", "compiled")

ONE_CALL_EAGER = PyTorch("one-call", "eager")

ONE_CALL_SCRIPTED = PyTorch("one-call", "scripted")

ONE_CALL_COMPILED = PyTorch("one-call", "compiled")
