"""TensorRT and TensorRT for RTX on a GPU: the forward workloads, exported from PyTorch's `nn.LSTM`.

A step is copy in, enqueue, copy out, wait, as in the runtimes of the same names, in float32
without TF32 and without a CUDA graph. Costs: `export_s`; `build_s`, building the engine (if the
engine was cached, which the facts show, the time of the original build); `first_call_s`, loading
the engine and its first run, in which TensorRT for RTX compiles its kernels.
"""

from dataclasses import dataclass

from lstm_literature.implementations import timed
from lstm_literature.implementations.on_onnxruntime import Exported
from lstm_trt.export.tensorrt import build, engine
from lstm_trt.runtimes.base import Availability, PreparedStep, Request
from lstm_trt.runtimes.cuda import tensorrt, tensorrt_rtx
from lstm_trt.runtimes.cuda._tensorrt import TensorRtRuntime, TensorRtStep


@dataclass(frozen=True)
class TensorRt(Exported):
    """One flavour as an implementation."""

    runtime: TensorRtRuntime
    TITLE: str
    EXTRA: str

    FRAMEWORK = "TensorRT"
    DEVICES = ("cuda",)

    @property
    def NAME(self) -> str:
        return self.runtime.NAME

    @property
    def DISTRIBUTION(self) -> str:
        return self.runtime.DISTRIBUTION

    def availability(self, device: str = "cuda") -> Availability:
        """Ready if the flavour's package, PyCUDA, cuda-bindings and a GPU are present; never raises."""
        return self.runtime.availability(device)

    def _built(self, model: bytes, request: Request) -> PreparedStep:
        built = build.build_engine(
            model, engine.EngineOptions(self.NAME, "fp32", detailed=True), name=request.workload.label
        )
        costs = {"build_s": built.information["build_seconds"]}
        with timed(costs, "first_call_s"):
            step = TensorRtStep(self.NAME, request, built, self.runtime.open_context)
        step.costs = costs
        return step


TENSORRT = TensorRt(tensorrt.RUNTIME, "TensorRT", "tensorrt")

TENSORRT_RTX = TensorRt(tensorrt_rtx.RUNTIME, "TensorRT for RTX", "rtx")
