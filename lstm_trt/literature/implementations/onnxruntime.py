"""A forward workload as ONNX, for ONNX Runtime and TensorRT: `nn.LSTM`, embedding and head included.

Sizes are static, those of the workload. PyTorch's TorchScript exporter is used, for the reasons
in `lstm_trt.export`. Nothing is cached: how long the export takes is one of the costs.

ONNX Runtime on the CPU: the forward workloads, exported from PyTorch's `nn.LSTM`.

A step is one run on a host input and a host output that stay bound, as in the lab's runtime of
this name. Costs: `export_s`, `build_s` (the session, with its graph optimizations) and
`first_call_s`.
"""

from __future__ import annotations

import io
import sys
import time
import warnings
from functools import partial

import numpy as np
import onnx
import torch

from lstm_trt.config.errors import BuildFailed, ExportFailed, RunFailed, building, first_line, run_failure
from lstm_trt.config.workload import Workload
from lstm_trt.export.to_onnx import INPUT, OPSET, OUTPUT
from lstm_trt.literature.data import Batch
from lstm_trt.literature.implementations.pytorch_networks import build_network, load_weights
from lstm_trt.literature.task import Task, check, check_inputs, exported_reason
from lstm_trt.runtimes import onnxruntime as runtimes_onnxruntime
from lstm_trt.runtimes.base import Availability


class _Plain(torch.nn.Module):
    """The network as a function of its inputs alone."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.network(inputs, None, None, None)


def export_workload(workload: Workload, weights: dict[str, np.ndarray], inputs: np.ndarray) -> bytes:
    """The ONNX file, checked: one LSTM operator a layer, inputs and outputs of the workload's sizes.

    Raises `ExportFailed`.
    """
    network = build_network(workload, "one-call")
    load_weights(network.canonical(), weights)
    buffer = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its deprecation, and that the batch is fixed, which it is
            torch.onnx.export(
                _Plain(network).eval().requires_grad_(False),
                (torch.from_numpy(np.array(inputs)),),
                buffer,
                input_names=[INPUT],
                output_names=[OUTPUT],
                opset_version=OPSET,
                dynamo=False,
            )
        model = onnx.load_from_string(buffer.getvalue())
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # whatever the exporter or the checker raises
        raise ExportFailed(f"PyTorch cannot export {workload.label}: {first_line(error)}") from error
    operators = [node.op_type for node in model.graph.node].count("LSTM")
    if operators != workload.layers:
        raise ExportFailed(f"the export of {workload.label} holds {operators} LSTM operators, not {workload.layers}")
    for value, sizes in ((model.graph.input[0], workload.input_shape), (model.graph.output[0], workload.output_shape)):
        found = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        if found != sizes:
            raise ExportFailed(f"the export of {workload.label} has {value.name} of {found}, not {sizes}")
    return buffer.getvalue()


NAME = "onnxruntime"

TITLE = "ONNX Runtime"

FRAMEWORK = "ONNX Runtime"

STYLE = "one-call"

EXECUTION = "graph"

EXTRA = None

DISTRIBUTION = runtimes_onnxruntime.DISTRIBUTION


def supports(workload: Workload, mode: str) -> str | None:
    """Forward passes of fixed length."""
    return exported_reason(workload, mode)


def availability() -> Availability:
    """Ready where the package is installed; never raises."""
    return runtimes_onnxruntime.availability("cpu")


def prepare(workload: Workload, mode: str, weights: dict[str, np.ndarray], batch: Batch, threads: int) -> Task:
    """Raises `RuntimeUnavailable`, `ExportFailed`, `MemoryExhausted`, `BuildFailed`."""
    availability().require(NAME)
    check(sys.modules[__name__], workload, mode, batch)
    with building(NAME, f"{workload.label} ({mode})"):
        return _Session(workload, weights, batch, threads)


class _Session(Task):
    def __init__(self, workload: Workload, weights: dict[str, np.ndarray], batch: Batch, threads: int) -> None:
        import onnxruntime

        from lstm_trt.export.to_onnx import INPUT, OUTPUT

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
        self._session = onnxruntime.InferenceSession(model, settings, providers=[runtimes_onnxruntime.PROVIDERS["cpu"]])
        self.costs["build_s"] = time.perf_counter() - began
        if self._session.get_providers()[0] != runtimes_onnxruntime.PROVIDERS["cpu"]:
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
