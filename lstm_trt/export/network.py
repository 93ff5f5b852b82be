"""The networks as PyTorch modules, their seeded weights and inputs.

Weights and inputs come from numpy's generator instead of PyTorch's, so that all frameworks and
versions get the same numbers.
"""

from __future__ import annotations

import math

import numpy as np

from lstm_trt.config.libraries import torch
from lstm_trt.config.shape import LstmShape

#: Maximum number of distinct sequences in a batch. The rest of the batch repeats them in random
#: order, so that all outputs are checked while the reference outputs are computed for these only.
DISTINCT_SEQUENCES = 4


def lstm_weight_shapes(shape: LstmShape) -> dict[str, tuple[int, ...]]:
    """PyTorch's names and shapes of an LSTM's weights, gates in the order i, f, g, o (ONNX has i,
    o, f, c)."""
    named: dict[str, tuple[int, ...]] = {}
    gates = 4 * shape.hidden
    for layer, width in enumerate(shape.layer_inputs()):
        for suffix in ("", "_reverse")[: shape.directions]:
            named[f"lstm.weight_ih_l{layer}{suffix}"] = (gates, width)
            named[f"lstm.weight_hh_l{layer}{suffix}"] = (gates, shape.hidden)
            named[f"lstm.bias_ih_l{layer}{suffix}"] = (gates,)
            named[f"lstm.bias_hh_l{layer}{suffix}"] = (gates,)
    return named


def weight_shapes(shape: LstmShape) -> dict[str, tuple[int, ...]]:
    """`lstm_weight_shapes`, and the dense layer to one output."""
    dense = {"dense.weight": (1, shape.hidden * shape.directions), "dense.bias": (1,)}
    return {**lstm_weight_shapes(shape), **dense}


def make_weights(shape: LstmShape, seed: int) -> dict[str, np.ndarray]:
    """Float32 weights by name, uniform in +-1/sqrt(hidden) as PyTorch initialises an LSTM."""
    return uniform_weights(
        np.random.default_rng([seed, *shape.network]), weight_shapes(shape), shape.hidden
    )


def uniform_weights(
    generator: np.random.Generator, shapes: dict[str, tuple[int, ...]], size: int
) -> dict[str, np.ndarray]:
    """Float32 weights of these shapes, uniform in +-1/sqrt(size), drawn in their order."""
    bound = 1 / math.sqrt(size)
    return {
        name: generator.uniform(-bound, bound, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def make_inputs(
    shape: LstmShape, seed: int | list[int], calls: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standard normal inputs of `calls` successive calls, with few distinct sequences.

    Returns `(inputs, distinct, which)`: inputs (calls * sequence, batch, features), the
    distinct sequences (calls * sequence, d, features) with d <= DISTINCT_SEQUENCES, and for
    each position in the batch the index of its sequence: `inputs[:, b] == distinct[:, which[b]]`.
    """
    generator = np.random.default_rng(seed)
    count = min(shape.batch, DISTINCT_SEQUENCES)
    distinct = generator.standard_normal(
        (calls * shape.sequence, count, shape.features), dtype=np.float32
    )
    which = generator.permutation(np.arange(shape.batch) % count)
    return np.ascontiguousarray(distinct[:, which]), distinct, which


def build_module(
    shape: LstmShape, weights: dict[str, np.ndarray], mode: str = "forward"
) -> torch.nn.Module:
    """The stacked LSTM with a dense layer to one output at every step, in evaluation mode.

    Input (sequence, batch, features), output (sequence, batch, 1), float32, on the CPU. In mode
    "stream" it also takes and returns the state, (layers, batch, hidden) each: `outputs, hn, cn =
    module(inputs, h0, c0)`.
    """

    class StackedLstm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(
                shape.features, shape.hidden, shape.layers, bidirectional=shape.directions == 2
            )
            self.dense = torch.nn.Linear(shape.hidden * shape.directions, 1)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            every_step, _ = self.lstm(inputs)
            return self.dense(every_step)

    class StreamingLstm(StackedLstm):
        def forward(self, inputs: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor):
            every_step, (hn, cn) = self.lstm(inputs, (h0, c0))
            return self.dense(every_step), hn, cn

    module = (StreamingLstm if mode == "stream" else StackedLstm)()
    module.load_state_dict(
        {name: torch.from_numpy(array) for name, array in weights.items()}, strict=True
    )
    return module.eval().requires_grad_(False)


def reference_outputs(module: torch.nn.Module, inputs: np.ndarray) -> np.ndarray:
    """Outputs of PyTorch on the CPU in float32: (sequence, batch, 1)."""
    with torch.inference_mode():
        return module(torch.from_numpy(inputs)).numpy().copy()


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Float32 values, each rounded to the nearest that bfloat16 has (ties to even): 8 significant
    bits."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
