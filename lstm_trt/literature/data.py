"""Weights and batches of the literature's workloads, from numpy's generator, so that every framework gets the same.

Nothing here is timed. Names and the order of gates (i, f, g, o) are PyTorch's; other
frameworks map from these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lstm_trt.export.network import lstm_weight_shapes, uniform_weights
from lstm_trt.literature.workloads import LiteratureWorkload


@dataclass(frozen=True)
class Batch:
    """One batch, time-major; shapes as `LiteratureWorkload` tells.

    `lengths` (batch,) int64 fall and begin with the sequence itself; inputs beyond a
    sequence's length are zero, and no answer may depend on them.
    """

    inputs: np.ndarray
    targets: np.ndarray | None = None
    lengths: np.ndarray | None = None

    def by_name(self) -> dict[str, np.ndarray]:
        """What the workload has of it, by name, as a prepared step takes it."""
        return {name: array for name, array in vars(self).items() if array is not None}


def weight_shapes(workload: LiteratureWorkload) -> dict[str, tuple[int, ...]]:
    """PyTorch's names and shapes of all that is trained, in the order embedding, LSTM, dense."""
    return {**_embedding_shapes(workload), **lstm_weight_shapes(workload.shape), **_dense_shapes(workload)}


def _embedding_shapes(workload: LiteratureWorkload) -> dict[str, tuple[int, ...]]:
    return {"embedding.weight": (workload.vocabulary, workload.features)} if workload.vocabulary else {}


def _dense_shapes(workload: LiteratureWorkload) -> dict[str, tuple[int, ...]]:
    if workload.head == "none":
        return {}
    bias = {"dense.bias": (workload.outputs,)} if workload.head_bias else {}
    return {"dense.weight": (workload.outputs, workload.width), **bias}


def make_weights(workload: LiteratureWorkload, seed: int) -> dict[str, np.ndarray]:
    """Float32 weights by name, with PyTorch's distributions.

    The embedding is standard normal, the LSTM uniform in +-1/sqrt(hidden), the dense layer
    in +-1/sqrt(its inputs). They depend on the network and not on batch, sequence or scale.
    """
    sizes = (size for shape in weight_shapes(workload).values() for size in shape)
    generator = np.random.default_rng([seed, *sizes])
    return {
        **{
            name: generator.standard_normal(shape, dtype=np.float32)
            for name, shape in _embedding_shapes(workload).items()
        },
        **uniform_weights(generator, lstm_weight_shapes(workload.shape), workload.hidden),
        **uniform_weights(generator, _dense_shapes(workload), workload.width),
    }


def make_batch(workload: LiteratureWorkload, seed: int) -> Batch:
    """Standard normal inputs or uniform tokens, with uniform targets where there is a loss."""
    generator = np.random.default_rng([seed, 1])
    lengths = _lengths(workload, generator)
    if workload.vocabulary:
        inputs = generator.integers(workload.vocabulary, size=workload.input_shape, dtype=np.int64)
    else:
        inputs = generator.standard_normal(workload.input_shape, dtype=np.float32)
    if workload.lengths is not None:
        inputs[np.arange(workload.sequence)[:, None] >= lengths] = 0
    return Batch(inputs, _targets(workload, generator), lengths)


def _lengths(workload: LiteratureWorkload, generator: np.random.Generator) -> np.ndarray | None:
    """Falling, the first as long as the sequence; all of them where CTC has one fixed length; else None."""
    if workload.loss != "ctc":
        return None
    least, largest = workload.lengths or (workload.sequence, workload.sequence)
    lengths = generator.integers(least, largest, size=workload.batch, endpoint=True, dtype=np.int64)
    lengths[0] = largest
    return np.sort(lengths)[::-1].copy()


def _targets(workload: LiteratureWorkload, generator: np.random.Generator) -> np.ndarray | None:
    if workload.loss is None:
        return None
    if workload.loss == "ctc":
        return generator.integers(1, workload.outputs, size=(workload.batch, workload.labels), dtype=np.int64)
    size = (workload.batch,) if workload.head == "last-step" else (workload.sequence, workload.batch)
    return generator.integers(workload.outputs, size=size, dtype=np.int64)
