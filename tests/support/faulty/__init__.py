"""Runtimes that misbehave, one module each, after the contract of `lstm_trt.runtimes`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lstm_trt.export.network import build_module, reference_outputs
from lstm_trt.export.to_onnx import INPUT, OUTPUT
from lstm_trt.runtimes.base import Availability, PreparedStep, Request


class RightStep(PreparedStep):
    """Answers as PyTorch does; the others break one thing of it."""

    def __init__(self, request: Request) -> None:
        self.module = build_module(request.workload, request.weights)
        self.inputs = request.inputs[INPUT].copy()
        self.answer = None

    def step(self) -> None:
        self.answer = reference_outputs(self.module, self.inputs)

    def load_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        np.copyto(self.inputs, inputs[INPUT])

    def outputs(self) -> dict[str, np.ndarray]:
        return {OUTPUT: self.answer}


def contract(name: str, prepare) -> dict:
    """The names that a runtime module needs."""
    return {
        "NAME": name,
        "DISTRIBUTION": "torch",
        "DEVICES": ("cpu",),
        "PRECISIONS": {"cpu": ("fp32",)},
        "NEEDS_ONNX": False,
        "availability": lambda device: Availability(True, "1.0", "a planted device"),
        "prepare": prepare,
    }
