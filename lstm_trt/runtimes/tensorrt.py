"""TensorRT: the exported network as an engine built for the GPU that is here.

A trial is copy in, enqueue or graph launch, copy out, wait (`_tensorrt.py`). Each LSTM
layer is a loop of one or two kernels a time step, so that without a graph a trial is
bound by launches: measure `--graph` first.
"""

from __future__ import annotations

from types import ModuleType

from lstm_trt.runtimes import _tensorrt
from lstm_trt.runtimes.base import Availability, PreparedStep, Request

NAME = "tensorrt"

DISTRIBUTION = "tensorrt"

DEVICES = _tensorrt.DEVICES

PRECISIONS = _tensorrt.PRECISIONS

NEEDS_ONNX = True


def availability(device: str = "cuda") -> Availability:
    """Ready where TensorRT, PyCUDA, cuda-bindings and a GPU are."""
    return _tensorrt.availability(NAME, device)


def prepare(request: Request) -> PreparedStep:
    """Raises `UsageError`, `RuntimeUnavailable`, `ExportFailed`, `MemoryExhausted`, `BuildFailed`."""
    return _tensorrt.prepare(NAME, request, _open)


def _open(trt: ModuleType, engine: object, plan_sha256: str) -> _tensorrt.Opened:
    return _tensorrt.Opened(engine.create_execution_context())
