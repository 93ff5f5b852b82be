"""Stacked LSTMs in numpy that compute in a lower precision, as runtimes on other hardware do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lstm_trt.config.shape import LstmShape

Rounding = Callable[[np.ndarray], np.ndarray]


def significant(bits: int) -> Rounding:
    """Rounds to this many significant bits, with the range of float32."""

    def rounded(values: np.ndarray) -> np.ndarray:
        mantissa, exponent = np.frexp(values)
        return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)

    return rounded


def half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(values.dtype)


def eight_bits(values: np.ndarray) -> np.ndarray:
    """Whole multiples of one scale for the array, as dynamic quantization makes them."""
    scale = np.abs(values).max() / 127 or 1.0
    return np.rint(values / scale) * scale


def exact(values: np.ndarray) -> np.ndarray:
    return values


#: Name -> (rounding of the operands of matrix products, rounding of biases, gates and states).
COMPUTED: dict[str, tuple[Rounding, Rounding]] = {
    "fp32": (exact, exact),
    "tf32": (significant(11), exact),
    "fp16": (half, half),
    "bf16 products": (significant(8), exact),
    "bf16": (significant(8), significant(8)),
    "int8": (eight_bits, exact),
}


def outputs(shape: LstmShape, weights: Mapping[str, np.ndarray], inputs: np.ndarray, computed: str) -> np.ndarray:
    """What the network of `export.network` gives, (sequence, batch, 1) float32, computed in one of `COMPUTED`."""
    product, stored = COMPUTED[computed]

    def multiply(left: np.ndarray, name: str) -> np.ndarray:
        return product(left) @ product(weights[name]).T

    every = stored(inputs)
    for layer in range(shape.layers):
        both = []
        for suffix, order in (("", slice(None)), ("_reverse", slice(None, None, -1)))[: shape.directions]:
            end = f"l{layer}{suffix}"
            bias = stored(weights[f"lstm.bias_ih_{end}"]) + stored(weights[f"lstm.bias_hh_{end}"])
            hidden = cell = np.zeros((inputs.shape[1], shape.hidden), np.float32)
            steps = []
            for now in every[order]:
                gates = multiply(now, f"lstm.weight_ih_{end}") + multiply(hidden, f"lstm.weight_hh_{end}") + bias
                i, f, g, o = np.split(stored(gates), 4, axis=-1)
                cell = stored(sigmoid(f) * cell + sigmoid(i) * np.tanh(g))
                hidden = stored(sigmoid(o) * np.tanh(cell))
                steps.append(hidden)
            both.append(np.stack(steps)[order])
        every = np.concatenate(both, axis=-1)
    return (multiply(every, "dense.weight") + stored(weights["dense.bias"])).astype(np.float32)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))
