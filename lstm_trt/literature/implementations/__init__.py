"""The implementations of the literature's workloads: one file (or part of one) each, behind a runtime's contract.

An implementation is a runtime (`lstm_trt.runtimes`) of these workloads, a module or a small object in one. Beside
a runtime's names it has

    TITLE          as figures write it
    FRAMEWORK      "PyTorch", "TensorFlow", "ONNX Runtime", ...
    STYLE          "basic" (the cell written out), "fused" (the framework's cell in a loop), "while",
                   "static" (the cell unrolled), "one-call" (the framework's LSTM)
    EXECUTION      "eager", "scripted", "compiled", "graph", "xla", ...
    EXTRA          the extra of this package that installs it, None for the core
    supports(workload, mode, device) -> str | None     None where it can, else the reason in a few words

Its prepared steps have `costs`, and in training `loss` and `gradients`. `prepare` may call the step
(`first_call_s`), and puts the weights and the optimizer back afterwards. What ships stands in
`registry.IMPLEMENTATIONS`; others come by entry points of the group `lstm_trt.implementations`, or by a name with a
dot, `my_package.my_implementation` or `my_package.module:OBJECT`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np

from lstm_trt import runtimes
from lstm_trt.config.errors import BuildFailed, UsageError
from lstm_trt.literature.data import Batch
from lstm_trt.literature.workloads import LiteratureWorkload
from lstm_trt.runtimes.base import Request

#: What an implementation must have.
CONTRACT = (*runtimes.CONTRACT, "TITLE", "FRAMEWORK", "STYLE", "EXECUTION", "EXTRA", "supports")

#: What the literature's networks are computed in, by device.
PRECISIONS = {"cpu": ("fp32",), "cuda": ("fp32",)}


def load(name: str) -> Any:
    """The implementation of a name; raises `UsageError` for an unknown one, or one that lacks part of the contract."""
    return runtimes.load(name, "IMPLEMENTATIONS", CONTRACT)


def mode_reason(workload: LiteratureWorkload, mode: str) -> str | None:
    """Why no implementation has this mode of the workload; None where it is one of the document's."""
    return None if mode in workload.modes else f"{workload.name} is for {' and '.join(workload.modes)}"


def exported_reason(workload: LiteratureWorkload, mode: str) -> str | None:
    """Why the ONNX export cannot do this: it has forward passes of fixed length; None where it can."""
    if mode == "training":
        return "it does not train"
    if workload.lengths is not None:
        return "the export has no variable lengths"
    return mode_reason(workload, mode)


def checked_batch(implementation: Any, request: Request) -> Batch:
    """The batch of a request; raises `RuntimeUnavailable`, `BuildFailed` for what the implementation does not do."""
    implementation.availability(request.options.device).require(implementation.NAME)
    reason = implementation.supports(request.workload, request.mode, request.options.device)
    if reason:
        raise BuildFailed(f"{implementation.NAME} does not do {request.workload.label} ({request.mode}): {reason}")
    return batch_of(request.workload, request.inputs)


def batch_of(workload: LiteratureWorkload, inputs: Mapping[str, np.ndarray]) -> Batch:
    """Inputs by name as a batch; raises `UsageError` for inputs of other shapes than the workload's."""
    batch = Batch(**inputs)
    if batch.inputs.shape != workload.input_shape:
        raise UsageError(f"{workload.label} takes inputs of {workload.input_shape}, not {batch.inputs.shape}")
    return batch


def is_installed(package: str) -> bool:
    """Whether a package can be found, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
