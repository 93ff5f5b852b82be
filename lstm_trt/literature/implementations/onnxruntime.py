"""ONNX Runtime on the CPU: the forward workloads, exported from PyTorch's `nn.LSTM`.

A step is one run on a host input and a host output that stay bound, as in the lab's runtime of
this name. Costs: `export_s`, `build_s` (the session, with its graph optimizations) and
`first_call_s`.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import numpy as np

from lstm_trt.errors import BuildFailed, RunFailed
from lstm_trt.failures import building, run_failure
from lstm_trt.literature.data import Batch
from lstm_trt.literature.task import Task, check, check_inputs, exported_reason
from lstm_trt.literature.workloads import Workload
from lstm_trt.runtimes import onnxruntime as runtime
from lstm_trt.runtimes.contract import Availability

NAME = "onnxruntime"
TITLE = "ONNX Runtime"
FRAMEWORK = "ONNX Runtime"
STYLE = "one-call"
EXECUTION = "graph"
EXTRA = None
DISTRIBUTION = runtime.DISTRIBUTION


def supports(workload: Workload, mode: str) -> str | None:
    """Forward passes of fixed length."""
    return exported_reason(workload, mode)


def availability() -> Availability:
    """Ready where the package is installed; never raises."""
    return runtime.availability("cpu")


def prepare(workload: Workload, mode: str, weights: dict[str, np.ndarray], batch: Batch, threads: int) -> Task:
    """Raises `RuntimeUnavailable`, `ExportFailed`, `MemoryExhausted`, `BuildFailed`."""
    availability().require(NAME)
    check(sys.modules[__name__], workload, mode, batch)
    with building(NAME, f"{workload.label} ({mode})"):
        return _Session(workload, weights, batch, threads)


class _Session(Task):
    def __init__(self, workload: Workload, weights: dict[str, np.ndarray], batch: Batch, threads: int) -> None:
        import onnxruntime

        from lstm_trt.export import INPUT, OUTPUT
        from lstm_trt.literature.implementations.pytorch_onnx import export_workload

        self._workload, self._threads = workload, threads
        self._inputs = np.ascontiguousarray(batch.inputs).copy()
        self._outputs = np.empty(workload.output_shape, dtype=np.float32)
        began = time.perf_counter()
        model = export_workload(workload, weights, batch.inputs)
        self.costs = {"export_s": time.perf_counter() - began}
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
        settings.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        settings.log_severity_level = 4  # its errors come as exceptions too
        began = time.perf_counter()
        self._session = onnxruntime.InferenceSession(model, settings, providers=[runtime.PROVIDERS["cpu"]])
        self.costs["build_s"] = time.perf_counter() - began
        if self._session.get_providers()[0] != runtime.PROVIDERS["cpu"]:
            raise BuildFailed(f"onnxruntime fell back to {self._session.get_providers()[0]}")
        self._binding = self._session.io_binding()
        for bind, name, array in (
            (self._binding.bind_input, INPUT, self._inputs),
            (self._binding.bind_output, OUTPUT, self._outputs),
        ):
            bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)  # by address: never copied
        self._run = partial(self._session.run_with_iobinding, self._binding)
        began = time.perf_counter()
        self.step()
        self.costs["first_call_s"] = time.perf_counter() - began

    def step(self) -> None:
        if self._run is None:
            raise RunFailed("the task is closed")
        try:
            self._run()
        except Exception as error:
            raise run_failure(NAME, error) from error

    def load_batch(self, batch: Batch) -> None:
        check_inputs(self._workload, batch)
        np.copyto(self._inputs, batch.inputs, casting="same_kind")

    def outputs(self) -> np.ndarray:
        return self._outputs.copy()

    def facts(self) -> dict:
        providers = self._session.get_providers() if self._session else []
        return {"providers": providers, "intra_op_threads": self._threads, "graph_optimization": "all"}

    def close(self) -> None:
        self._run = self._binding = self._session = None
