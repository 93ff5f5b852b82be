"""ONNX Runtime, and the base shared with TensorRT: forward workloads exported from PyTorch's `nn.LSTM`.

The ONNX model includes embedding and head, with the workload's sizes as static sizes. It is not cached, because the
export time is one of the costs. A step is one run with a host input and a host output that stay bound, as in the
runtime `onnxruntime`. Costs: `export_s`, `build_s` (creating the session, with graph optimizations) and
`first_call_s`.
"""

from abc import abstractmethod

import numpy as np

from lstm_literature.data import Batch
from lstm_literature.implementations import Implementation, mode_reason, timed
from lstm_literature.workloads import LiteratureWorkload
from lstm_trt.config.errors import ExportFailed
from lstm_trt.config.libraries import onnx, torch
from lstm_trt.export.to_onnx import export_module
from lstm_trt.runtimes import onnxruntime as runtime
from lstm_trt.runtimes.base import Availability, PreparedStep, Request


class Exported(Implementation):
    """Base class of the implementations that use the ONNX export: forward passes of fixed length."""

    STYLE = "one-call"
    EXECUTION = "graph"

    def supports(self, workload: LiteratureWorkload, mode: str, device: str = "cpu") -> str | None:
        """None for forward passes of fixed length, else the reason."""
        if mode == "training":
            return "training is not supported"
        if workload.lengths is not None:
            return "the export does not support variable lengths"
        return mode_reason(workload, mode)

    def _prepare(self, request: Request, batch: Batch) -> PreparedStep:
        costs: dict[str, float] = {}
        with timed(costs, "export_s"):
            model = export_workload(request.workload, request.weights, batch.inputs)
        step = self._built(model, request)
        step.costs = {**costs, **step.costs}
        return step

    @abstractmethod
    def _built(self, model: bytes, request: Request) -> PreparedStep:
        """The step for an ONNX model, with the costs of making it."""


class OnnxRuntime(Exported):
    """ONNX Runtime as an implementation."""

    NAME = "onnxruntime"
    TITLE = "ONNX Runtime"
    FRAMEWORK = "ONNX Runtime"
    DISTRIBUTION = runtime.DISTRIBUTION
    DEVICES = runtime.DEVICES

    def availability(self, device: str = "cpu") -> Availability:
        """Ready if the package is installed and has the device's provider."""
        return runtime.availability(device)

    def _built(self, model: bytes, request: Request) -> PreparedStep:
        runtime.load_libraries(request.options)
        return runtime.bound_session(model, request)


def export_workload(workload: LiteratureWorkload, weights: dict[str, np.ndarray], inputs: np.ndarray) -> bytes:
    """The ONNX model, checked: one LSTM operator per layer, inputs and outputs of the workload's sizes.

    Raises `ExportFailed`.
    """
    from lstm_literature.implementations.on_pytorch_networks import build_network, load_weights

    network = build_network(workload, "one-call")
    load_weights(network.canonical(), weights)
    module = network.eval().requires_grad_(False)
    content = export_module(module, (torch.from_numpy(np.array(inputs)),), workload.label, workload.layers)
    graph = onnx.load_from_string(content).graph
    for value, sizes in ((graph.input[0], workload.input_shape), (graph.output[0], workload.output_shape)):
        found = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        if found != sizes:
            raise ExportFailed(f"in the export of {workload.label}, {value.name} has shape {found}, expected {sizes}")
    return content


ONNXRUNTIME = OnnxRuntime()
