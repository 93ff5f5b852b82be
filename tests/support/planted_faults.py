"""Networks in which a fault of ONNX Runtime is planted, and whether the comparison with numpy finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import onnx
from onnx import numpy_helper

from lstm_onnx import preparer as own
from lstm_onnx.own_network import OnnxNetwork
from lstm_trt.config.errors import ParityFailed
from lstm_trt.export.network import to_bfloat16
from lstm_trt.export.onnx_checks import recurrent_nodes
from lstm_trt.export.sizes import static_model
from tests.support.c_networks import drawn, network


def _by_gate(array: np.ndarray, gates: int) -> np.ndarray:
    """A view (directions, 1, or 2 of B, gates, numbers of a gate)."""
    return array.reshape(len(array), 1 if array.ndim == 3 else 2, gates, -1)


def _swapped(rng: np.random.Generator, weights: list[np.ndarray], gates: int) -> None:
    """Two gates in the place of each other, in all arrays."""
    pair = rng.choice(gates, 2, replace=False)
    for view in (_by_gate(array, gates) for array in weights):
        view[:, :, pair] = view[:, :, pair[::-1]]


def _rounded(rng: np.random.Generator, weights: list[np.ndarray], gates: int) -> None:
    """W or R with the digits of bfloat16."""
    array = weights[rng.integers(2)]
    array[...] = to_bfloat16(array)


def _without_a_bias(rng: np.random.Generator, weights: list[np.ndarray], gates: int) -> None:
    """Both biases of one gate left out."""
    _by_gate(weights[2], gates)[:, :, rng.integers(gates)] = 0


#: What is planted in one recurrent operator: function of random numbers, its arrays W, R and B, and its gates.
FAULTS: dict[str, Callable[[np.random.Generator, list[np.ndarray], int], None]] = {
    "a gate swapped": _swapped,
    "a weight matrix rounded to bf16": _rounded,
    "a gate's bias left out": _without_a_bias,
}


def drawn_network(rng: np.random.Generator, largest: int = 64) -> OnnxNetwork:
    """A network with biases: up to 4 layers of 16 to `largest` units, 8 steps or more, 4 features or more.

    Half of them end in a Sigmoid of small values, as detectors do that find nothing.
    """
    plan = drawn(rng, largest)
    at_least = {"hidden": tuple(max(16, units) for units in plan.hidden), "sequence": max(8, plan.sequence)}
    model = network(replace(plan, bias=True, features=max(4, plan.features), **at_least))
    if rng.random() < 0.5:
        model.graph.initializer.append(numpy_helper.from_array(np.array(rng.uniform(2, 7), np.float32), "large"))
        model.graph.node[-2].output[0] = "before"
        for kind, inputs, output in (("Sub", ["before", "large"], "shifted"), ("Sigmoid", ["shifted"], "y")):
            model.graph.node.append(onnx.helper.make_node(kind, inputs, [output]))
    return OnnxNetwork(model.SerializeToString(), name="drawn")


def planted(rng: np.random.Generator, content: bytes, fault: str) -> bytes:
    """The file with a fault in one of its recurrent operators."""
    model = onnx.load_from_string(content)
    node = recurrent_nodes(model)[rng.integers(len(recurrent_nodes(model)))]
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    weights = [numpy_helper.to_array(stored[name]).copy() for name in node.input[1:4]]
    FAULTS[fault](rng, weights, {"LSTM": 4, "GRU": 3}[node.op_type])
    for name, array in zip(node.input[1:4], weights, strict=True):
        stored[name].CopyFrom(numpy_helper.from_array(array, name))
    return model.SerializeToString()


def is_refused(rng: np.random.Generator, found: OnnxNetwork, seed: int, fault: str | None = None) -> bool:
    """Whether ONNX Runtime, with a fault if there is one, is refused as the reference of a network."""
    model, run = static_model(found.path, found), own.run_onnxruntime
    computes = planted(rng, model, fault) if fault else model
    with patch.object(own, "run_onnxruntime", lambda content, sets, states=(): run(computes, sets, states)):
        try:
            *_, checked_by, _ = own.reference_outputs(found, model, own.gate_inputs(found, "forward", seed))
        except ParityFailed:
            return True
    assert checked_by == own.NUMPY
    return False
