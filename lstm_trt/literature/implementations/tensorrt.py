"""TensorRT and TensorRT for RTX on a GPU: the forward workloads, exported from PyTorch's `nn.LSTM`.

A step is copy in, enqueue, copy out, wait, as in the lab's runtimes of these names, in float32
without TF32 and without a CUDA graph. Costs: `export_s`; `build_s`, the engine's build (from the
record of that build where the engine came from the cache, which the facts tell); `first_call_s`,
loading the engine and its first run, in which TensorRT for RTX compiles its kernels.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from lstm_trt.config.errors import building
from lstm_trt.config.workload import Workload
from lstm_trt.literature.data import Batch
from lstm_trt.literature.task import Task, check, exported_reason
from lstm_trt.runtimes import tensorrt, tensorrt_rtx
from lstm_trt.runtimes.base import Availability, PreparedStep, Request


@dataclass(frozen=True)
class TensorRt:
    """One flavour, as the contract of `literature.task` wants it."""

    runtime: ModuleType
    TITLE: str
    EXTRA: str
    FRAMEWORK: str = "TensorRT"
    STYLE: str = "one-call"
    EXECUTION: str = "graph"
    DEVICES: tuple[str, ...] = ("cuda",)

    @property
    def NAME(self) -> str:
        return self.runtime.NAME

    @property
    def DISTRIBUTION(self) -> str:
        return self.runtime.DISTRIBUTION

    def supports(self, workload: Workload, mode: str) -> str | None:
        """Forward passes of fixed length."""
        return exported_reason(workload, mode)

    def availability(self, device: str = "cuda") -> Availability:
        """Ready where the flavour, PyCUDA, cuda-bindings and a GPU are; never raises."""
        return self.runtime.availability(device)

    def prepare(
        self,
        workload: Workload,
        mode: str,
        weights: dict[str, np.ndarray],
        batch: Batch,
        threads: int,
        device: str = "cuda",
    ) -> Task:
        """Raises `RuntimeUnavailable`, `ExportFailed`, `MemoryExhausted`, `BuildFailed`."""
        self.availability(device).require(self.NAME)
        check(self, workload, mode, batch)
        with building(self.NAME, f"{workload.label} ({mode})"):
            return _Engine(self.runtime, workload, weights, batch, threads)


class _Engine(Task):
    def __init__(
        self, runtime: ModuleType, workload: Workload, weights: dict[str, np.ndarray], batch: Batch, threads: int
    ) -> None:
        from lstm_trt.config.configuration import Options
        from lstm_trt.export import build, engine
        from lstm_trt.export.to_onnx import INPUT, OUTPUT
        from lstm_trt.literature.implementations.onnxruntime import export_workload
        from lstm_trt.runtimes._tensorrt import TensorRtStep

        began = time.perf_counter()
        model = export_workload(workload, weights, batch.inputs)
        self.costs = {"export_s": time.perf_counter() - began}
        wanted = engine.EngineOptions(runtime.NAME, "fp32", detailed=True)
        built = build.build_engine(model, wanted, name=workload.label)
        self.costs["build_s"] = built.information["build_seconds"]
        request = Request(workload.shape, Options(device="cuda", threads=threads), batch.inputs)
        sizes = {INPUT: workload.input_shape, OUTPUT: workload.output_shape}
        began = time.perf_counter()
        self._prepared: PreparedStep = TensorRtStep(runtime.NAME, request, built, runtime._open, sizes)
        self.costs["first_call_s"] = time.perf_counter() - began
        self.step = self._prepared.step

    def step(self) -> None:
        raise AssertionError("set per instance")

    def load_batch(self, batch: Batch) -> None:
        self._prepared.load_inputs(batch.inputs)

    def outputs(self) -> np.ndarray:
        return self._prepared.outputs()[0]

    def facts(self) -> dict:
        return self._prepared.facts()

    def close(self) -> None:
        self._prepared.close()
        self.step = self._prepared.step  # which says that it is closed


TENSORRT = TensorRt(tensorrt, "TensorRT", "tensorrt")

TENSORRT_RTX = TensorRt(tensorrt_rtx, "TensorRT for RTX", "rtx")
