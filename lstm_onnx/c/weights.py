"""Weights as generated code reads them: packed matrices, one after another."""

import numpy as np

from lstm_onnx.c.stages import Layer
from lstm_trt.export.network import to_bfloat16
from lstm_trt.store import cache

#: Vectors of a group of columns in a packed matrix, as in `kernel.c`: in products of many rows, and
#: of one.
TILE = 4
GROUP = 8

#: Precision -> bits of a weight in products with what a recurrent layer bounds by 1, and in all
#: others.
PRECISIONS = {"fp32": (32, 32), "bf16": (16, 16), "int8": (8, 16)}

#: The whole number that stands for 1 in a product of whole numbers.
WHOLE = 32767

#: Floats before the weights: their SHA-256 as 16 whole numbers.
HEAD = 16


def in_pairs(values: np.ndarray) -> np.ndarray:
    """Float32 numbers, (..., k), in words of two, (..., (k + 1) // 2), as `kernel.c` reads them.

    The lower half of a word is the even number, rounded to bfloat16; the upper half is that with
    which the whole word, read as float32, is nearest to the odd number.
    """
    padded = np.pad(
        values.astype(np.float32), [(0, 0)] * (values.ndim - 1) + [(0, values.shape[-1] % 2)]
    )
    low = to_bfloat16(np.ascontiguousarray(padded[..., ::2])).view(np.uint32) >> 16
    odd = np.ascontiguousarray(padded[..., 1::2]).view(np.uint32).astype(np.int64)
    high = np.clip(((odd & 0x7FFFFFFF) - low + 0x8000) >> 16, 0, 0x7F7F)
    return (odd & 0x80000000 | high << 16 | low).astype(np.uint32).view(np.float32)


def in_bytes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows as whole numbers from -127 to 127, and the scale of each row, (..., 1) in float32."""
    scales = np.abs(values).max(axis=-1, keepdims=True, initial=0) / np.float32(127)
    return np.rint(values / np.where(scales > 0, scales, 1)).astype(np.int8), scales


def as_packed(values: np.ndarray, bits: int) -> np.ndarray:
    """Rows of numbers, (..., k), as generated code reads them from so many bits each."""
    if bits == 8:
        whole, scales = in_bytes(values)
        return whole * scales
    words = in_pairs(values).view(np.uint32)
    both = np.stack([words << 16, words], axis=-1).view(np.float32)
    return both.reshape(*values.shape[:-1], -1)[..., : values.shape[-1]]


class Weights:
    """Packed matrices and vectors, each of them once; `bits` as in `PRECISIONS`."""

    def __init__(self, vector_length: int, precision: str = "fp32") -> None:
        self.length = vector_length
        self.bits = PRECISIONS[precision]
        self.parts: list[np.ndarray] = []
        self.known: dict[str, int] = {}
        self.size = HEAD
        #: Floats of which arrays have multiples.
        self.unit = 1 if self.row_major else 16

    @property
    def row_major(self) -> bool:
        """Whether matrices are as ONNX has them, for `kernel_generic.c`."""
        return self.length == 1

    def add(self, *arrays: np.ndarray) -> int:
        """The offset in floats of these arrays, one after another."""
        part = np.concatenate([array.ravel() for array in arrays]).astype(np.float32)
        part = np.pad(part, (0, -len(part) % self.unit))
        key = cache.sha256(part.tobytes())
        if key not in self.known:
            self.known[key] = self.size
            self.parts.append(part)
            self.size += len(part)
        return self.known[key]

    def vector(self, values: np.ndarray) -> np.ndarray:
        """Padded with zeros along the first axis to a multiple of the vector length."""
        return np.pad(values, [(0, -len(values) % self.length)] + [(0, 0)] * (values.ndim - 1))

    def gates(self, values: np.ndarray, gates: int) -> np.ndarray:
        """(gates x units, ...) as blocks of a vector of each gate, then the remaining units."""
        rows = np.arange(len(values)).reshape(gates, -1)
        full = rows.shape[1] // self.length * self.length
        blocks = rows[:, :full].reshape(gates, -1, self.length).swapaxes(0, 1)
        order = np.concatenate([blocks.ravel(), rows[:, full:].ravel()])
        return self.vector(values[order])

    def matrix(self, columns: np.ndarray, group: int, bounded: bool = False) -> np.ndarray:
        """(columns, k) in groups of `group` vectors of columns, in a group row after row.

        `bounded`: the matrix is multiplied by what a recurrent layer bounds by 1.
        """
        bits = self.bits[not bounded]
        # A vector of words has pairs of two rows of all its columns, then of the next two.
        if bits == 8:
            whole, scales = in_bytes(self.vector(columns))
            whole = np.pad(whole, ((0, 0), (0, -whole.shape[1] % 4)))
            whole = whole.reshape(-1, self.length, whole.shape[1] // 4, 2, 2)
            words = whole.transpose(0, 2, 3, 1, 4).reshape(-1, whole.shape[2], 4 * self.length)
            heads = scales.reshape(-1, 1, self.length) / np.float32(WHOLE)
            vectors = np.concatenate([heads, words.view(np.float32)], axis=1)
        else:
            if bits == 16:
                columns = in_pairs(columns)
            vectors = self.vector(columns).reshape(-1, self.length, columns.shape[-1])
            vectors = vectors.swapaxes(1, 2)
        found: list[np.ndarray] = [np.zeros(0, np.float32)]
        for at in range(0, len(vectors), group):
            found.append(vectors[at : at + group].swapaxes(0, 1).ravel())
        return np.concatenate(found)

    def recurrent(self, rows: np.ndarray, gates: int) -> np.ndarray:
        """(gates x units, units) in the groups of `kernel.c`; the last one may be larger."""
        packed = self.gates(rows, gates)
        together = GROUP // gates  # vectors of each gate in a group
        size = together * self.length
        full, left = divmod(rows.shape[-1], size)
        if full and left < self.length:
            full -= 1
        end = full * size * gates
        whole = self.matrix(packed[:end], together * gates, True)
        return np.concatenate([whole, self.matrix(packed[end:], 4 * GROUP, True)])


def packed(layer: Layer, weights: Weights) -> int:
    """The offset of a layer's packed weights, in the order of `recurrent` in the kernel."""
    w, r, wb, rb = layer.weights
    first = layer.gates_of_h
    last = (layer.gates - 1) * layer.units
    biases = wb + rb
    recurrent = np.zeros_like(rb)
    if layer.kind == "GRU":  # the last gate's own bias is multiplied by the reset gate
        biases[last:] = wb[last:]
        recurrent[last:] = rb[last:]
    if weights.row_major:
        of_h = recurrent[last:] if layer.kind == "GRU" else recurrent[:0]
        return weights.add(w, r, biases, of_h)
    parts = [
        weights.matrix(weights.gates(w, layer.gates), TILE, layer.bounded),
        weights.gates(biases, layer.gates),
        weights.recurrent(r[: first * layer.units], first),
    ]
    if layer.kind == "RESET":
        parts.append(weights.recurrent(r[last:], 1))
    parts.append(weights.gates(recurrent, layer.gates))
    return weights.add(*parts)
