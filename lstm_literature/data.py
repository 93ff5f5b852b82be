"""Weights and batches of the literature's workloads, from numpy's generator, so that all frameworks get the same.

Nothing here is timed. Weight names and gate order (i, f, g, o) are PyTorch's; other
frameworks convert from these.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lstm_literature.workloads import LiteratureWorkload
from lstm_trt.export.network import lstm_weight_shapes, uniform_weights


@dataclass(frozen=True)
class Batch:
    """One batch, time-major; for the shapes see `LiteratureWorkload`.

    `lengths` (batch,) int64 are in descending order and the first equals `sequence`; inputs
    beyond a sequence's length are zero, and no output may depend on them.
    """

    inputs: np.ndarray
    targets: np.ndarray | None = None
    lengths: Any = None  # an array, if they vary

    def by_name(self) -> dict[str, np.ndarray]:
        """The arrays that the workload has, by name, as inputs of a prepared step."""
        return {name: array for name, array in vars(self).items() if array is not None}


def weight_shapes(workload: LiteratureWorkload) -> dict[str, tuple[int, ...]]:
    """PyTorch's names and shapes of all trained weights, in the order embedding, LSTM, dense."""
    shapes: dict[str, tuple[int, ...]] = {}
    if workload.vocabulary:
        shapes["embedding.weight"] = (workload.vocabulary, workload.features)
    shapes |= lstm_weight_shapes(workload.shape)
    if workload.head != "none":
        shapes["dense.weight"] = (workload.outputs, workload.width)
        if workload.head_bias:
            shapes["dense.bias"] = (workload.outputs,)
    return shapes


def make_weights(workload: LiteratureWorkload, seed: int) -> dict[str, np.ndarray]:
    """Float32 weights by name, with PyTorch's distributions.

    The embedding is standard normal, the LSTM uniform in +-1/sqrt(hidden), the dense layer
    in +-1/sqrt(its inputs). They depend only on the network, not on batch, sequence or scale.
    """
    shapes = weight_shapes(workload)
    generator = np.random.default_rng([seed, *(size for shape in shapes.values() for size in shape)])
    weights = {}
    for name, shape in shapes.items():
        if name == "embedding.weight":
            weights[name] = generator.standard_normal(shape, dtype=np.float32)
        else:
            inputs = workload.width if name.startswith("dense") else workload.hidden
            weights |= uniform_weights(generator, {name: shape}, inputs)
    return weights


def make_batch(workload: LiteratureWorkload, seed: int) -> Batch:
    """Standard normal inputs or uniform random tokens, with uniform random targets if there is a loss."""
    generator = np.random.default_rng([seed, 1])
    lengths = _lengths(workload, generator)
    if workload.vocabulary:
        inputs = generator.integers(workload.vocabulary, size=workload.input_shape, dtype=np.int64)
    else:
        inputs = generator.standard_normal(workload.input_shape, dtype=np.float32)
    if workload.lengths is not None:
        inputs[np.arange(workload.sequence)[:, None] >= lengths] = 0
    return Batch(inputs, _targets(workload, generator), lengths)


def _lengths(workload: LiteratureWorkload, generator: np.random.Generator) -> Any:
    """Lengths in descending order, the first equal to the sequence; all equal for CTC with fixed length; else None."""
    if workload.loss != "ctc":
        return None
    least, largest = workload.lengths or (workload.sequence, workload.sequence)
    if workload.even_lengths:  # truncated as in document 004
        return np.linspace(largest, least, workload.batch).astype(np.int64)
    lengths = generator.integers(least, largest, size=workload.batch, endpoint=True, dtype=np.int64)
    lengths[0] = largest
    return np.sort(lengths)[::-1].copy()


def _targets(workload: LiteratureWorkload, generator: np.random.Generator) -> Any:
    if workload.loss is None:
        return None
    if workload.loss == "ctc":
        return generator.integers(1, workload.outputs, size=(workload.batch, workload.labels), dtype=np.int64)
    size = (workload.batch,) if workload.head == "last-step" else (workload.sequence, workload.batch)
    return generator.integers(workload.outputs, size=size, dtype=np.int64)
