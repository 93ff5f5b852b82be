"""ONNX Runtime on the CPU: the forward workloads, exported from PyTorch's `nn.LSTM`, embedding and head included.

A step is one run on a host input and a host output that stay bound, as in the lab's runtime of
this name. Costs: `export_s`, `build_s` (the session, with its graph optimizations) and
`first_call_s`. Nothing is cached: how long the export takes is one of the costs.
"""

from __future__ import annotations

import io
import sys
import time
import warnings

import numpy as np

from lstm_trt.config.errors import ExportFailed, building, first_line
from lstm_trt.export.to_onnx import INPUT, OPSET, OUTPUT
from lstm_trt.literature.implementations import checked_batch, exported_reason
from lstm_trt.literature.workloads import LiteratureWorkload
from lstm_trt.runtimes import onnxruntime as runtime
from lstm_trt.runtimes.base import Availability, PreparedStep, Request


def export_workload(workload: LiteratureWorkload, weights: dict[str, np.ndarray], inputs: np.ndarray) -> bytes:
    """The ONNX file, checked: one LSTM operator a layer, inputs and outputs of the workload's sizes, which are static.

    By PyTorch's TorchScript exporter, for the reasons in `lstm_trt.export`. Raises `ExportFailed`.
    """
    import onnx
    import torch

    from lstm_trt.literature.implementations.pytorch_networks import build_network, load_weights

    class Plain(torch.nn.Module):
        """The network as a function of its inputs alone."""

        def __init__(self, network: torch.nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.network(inputs, None, None, None)

    network = build_network(workload, "one-call")
    load_weights(network.canonical(), weights)
    buffer = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its deprecation, and that the batch is fixed, which it is
            torch.onnx.export(
                Plain(network).eval().requires_grad_(False),
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

DISTRIBUTION = runtime.DISTRIBUTION


DEVICES = ("cpu",)

PRECISIONS = {"cpu": ("fp32",)}


def supports(workload: LiteratureWorkload, mode: str, device: str = "cpu") -> str | None:
    """Forward passes of fixed length."""
    return exported_reason(workload, mode)


def availability(device: str = "cpu") -> Availability:
    """Ready where the package is installed; never raises."""
    return runtime.availability(device)


def prepare(request: Request) -> PreparedStep:
    """Raises `RuntimeUnavailable`, `ExportFailed`, `MemoryExhausted`, `BuildFailed`."""
    batch = checked_batch(sys.modules[__name__], request)
    with building(NAME, request.label):
        began = time.perf_counter()
        model = export_workload(request.workload, request.weights, batch.inputs)
        exported_s = time.perf_counter() - began
        step = runtime.bound_session(model, request)
        step.costs = {"export_s": exported_s, **step.costs}
        return step
