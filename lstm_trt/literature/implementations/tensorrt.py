"""TensorRT and TensorRT for RTX on a GPU: the forward workloads, exported from PyTorch's `nn.LSTM`.

A step is copy in, enqueue, copy out, wait, as in the lab's runtimes of these names, in float32
without TF32 and without a CUDA graph. Costs: `export_s`; `build_s`, the engine's build (from the
record of that build where the engine came from the cache, which the facts tell); `first_call_s`,
loading the engine and its first run, in which TensorRT for RTX compiles its kernels.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import ModuleType

from lstm_trt.config.errors import building
from lstm_trt.export import build, engine
from lstm_trt.literature.implementations import checked_batch, exported_reason
from lstm_trt.literature.implementations.onnxruntime import export_workload
from lstm_trt.literature.workloads import LiteratureWorkload
from lstm_trt.runtimes import tensorrt, tensorrt_rtx
from lstm_trt.runtimes._tensorrt import TensorRtStep
from lstm_trt.runtimes.base import Availability, PreparedStep, Request


@dataclass(frozen=True)
class TensorRt:
    """One flavour as an implementation."""

    runtime: ModuleType
    TITLE: str
    EXTRA: str
    FRAMEWORK: str = "TensorRT"
    STYLE: str = "one-call"
    EXECUTION: str = "graph"
    DEVICES: tuple[str, ...] = ("cuda",)
    PRECISIONS: dict = field(default_factory=lambda: {"cuda": ("fp32",)})

    @property
    def NAME(self) -> str:
        return self.runtime.NAME

    @property
    def DISTRIBUTION(self) -> str:
        return self.runtime.DISTRIBUTION

    def supports(self, workload: LiteratureWorkload, mode: str, device: str = "cuda") -> str | None:
        """Forward passes of fixed length."""
        return exported_reason(workload, mode)

    def availability(self, device: str = "cuda") -> Availability:
        """Ready where the flavour, PyCUDA, cuda-bindings and a GPU are; never raises."""
        return self.runtime.availability(device)

    def prepare(self, request: Request) -> PreparedStep:
        """Raises `RuntimeUnavailable`, `ExportFailed`, `MemoryExhausted`, `BuildFailed`."""
        batch = checked_batch(self, request)
        with building(self.NAME, request.label):
            began = time.perf_counter()
            model = export_workload(request.workload, request.weights, batch.inputs)
            costs = {"export_s": time.perf_counter() - began}
            wanted = engine.EngineOptions(self.NAME, "fp32", detailed=True)
            built = build.build_engine(model, wanted, name=request.workload.label)
            costs["build_s"] = built.information["build_seconds"]
            began = time.perf_counter()
            step = TensorRtStep(self.NAME, request, built, self.runtime._open)
            step.costs = {**costs, "first_call_s": time.perf_counter() - began}
            return step


TENSORRT = TensorRt(tensorrt, "TensorRT", "tensorrt")

TENSORRT_RTX = TensorRt(tensorrt_rtx, "TensorRT for RTX", "rtx")
