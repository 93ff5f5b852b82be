"""Faulty runtimes, one module each, with the interface of `lstm_trt.runtimes`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lstm_trt.export.to_onnx import INPUT, OUTPUT
from lstm_trt.runtimes.base import Availability, PreparedStep, Request


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm(weights: Mapping[str, np.ndarray], layers: int, inputs: np.ndarray, state: list | None = None) -> np.ndarray:
    """Outputs (sequence, batch, 1) of a stacked LSTM with a dense layer, in numpy, which loads faster than PyTorch.

    `state`: (h, c) of each layer before the first step, which are replaced by those after the last step.
    """
    values = inputs
    for layer in range(layers):
        names = (f"lstm.{name}_l{layer}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        w_ih, w_hh, b_ih, b_hh = (weights[name] for name in names)
        h, c = state[layer] if state else 2 * [np.zeros((values.shape[1], w_hh.shape[1]), np.float32)]
        steps = []
        for x in values:
            i, f, g, o = np.split(x @ w_ih.T + h @ w_hh.T + b_ih + b_hh, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            steps.append(h)
        if state:
            state[layer] = (h, c)
        values = np.stack(steps)
    return values @ weights["dense.weight"].T + weights["dense.bias"]


class RightStep(PreparedStep):
    """A correct step; the faulty runtimes change one aspect of it."""

    def __init__(self, request: Request) -> None:
        self.weights, self.layers = request.weights, request.workload.layers
        self.inputs = request.inputs[INPUT].copy()
        self.latest = None

    def step(self) -> None:
        self.latest = lstm(self.weights, self.layers, self.inputs)

    def load_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        np.copyto(self.inputs, inputs[INPUT])

    def outputs(self) -> dict[str, np.ndarray]:
        return {OUTPUT: self.latest}


def contract(name: str, prepare) -> dict:
    """The attributes of a runtime module."""
    return {
        "NAME": name,
        "DISTRIBUTION": "numpy",
        "DEVICES": ("cpu",),
        "PRECISIONS": {"cpu": ("fp32",)},
        "NEEDS_ONNX": False,
        "availability": lambda device: Availability(True, "1.0", "a planted device"),
        "prepare": prepare,
    }
