"""How moved numbers follow each other: nested loops in place of a table of addresses.

An array of addresses, as ONNX's operators leave it (Slice, Pad, Transpose, windows of a
convolution), is cut along its axes, from the first to the last, into segments in which all steps
are the same. What is left at the end is one number, and the loops around it. So the number of loops
depends on how the network moves numbers, and not on how many they are.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lstm_trt.config.errors import BuildFailed

#: Addresses: index of the base, times this, plus the offset in it.
BASE = 1 << 40

#: Segments of an axis up to which code is written: one without any order becomes as many
#: statements.
MOST_SEGMENTS = 1024

#: Changes of a step from number to number, up to which two rows are one loop.
MOST_CHANGES = 16


@dataclass(frozen=True)
class Loop:
    """How often, and how far from a number that is read, or written, to the next."""

    count: int
    read: int
    write: int


@dataclass(frozen=True)
class Move:
    """Numbers read from the address `x` on, and written `to` places after the first.

    `loops` around them, the outermost first.
    """

    x: int
    to: int
    loops: tuple[Loop, ...]


def moves(at: np.ndarray) -> list[Move]:
    """What puts the numbers at these addresses one after another, in the order of the array.

    Raises `BuildFailed` for many numbers without any order.
    """
    strides = [math.prod(at.shape[axis + 1 :]) for axis in range(at.ndim)]
    return list(_moves(np.stack([at, at // BASE]), 0, strides, ())) if at.size else []


def _moves(
    block: np.ndarray, to: int, strides: list[int], around: tuple[tuple[int, int], ...]
) -> Iterator[Move]:
    """Those of a block: addresses, their bases, and how far each moves in a pass of each loop.

    `around`: how often each of these loops is passed, and how far on it writes.
    """
    if block.ndim == 1:
        x, _, *reads = block.tolist()
        yield Move(x, to, _joined(around, reads))
        return
    segments, inner = _cut(block)
    if inner:
        block = _factored(block, inner)
        strides = [strides[0] * inner, *strides]
    for start, count in segments:
        part = block[:, start]
        loops = around
        if count > 1:
            part = np.stack([*part, block[0, start + 1] - part[0]])
            loops = (*around, (count, strides[0]))
        yield from _moves(part, to + start * strides[0], strides[1:], loops)


def _joined(around: Sequence[tuple[int, int]], reads: Sequence[int]) -> tuple[Loop, ...]:
    """The loops, of which those that continue each other are one."""
    found: list[Loop] = []
    for (count, write), read in zip(around, reads, strict=True):
        outer = 1
        if found and (found[-1].read, found[-1].write) == (count * read, count * write):
            outer = found.pop().count
        found.append(Loop(outer * count, read, write))
    return tuple(found)


def _factored(block: np.ndarray, inner: int) -> np.ndarray:
    """The first axis as two, of which the second has this size."""
    return block.reshape(len(block), -1, inner, *block.shape[2:])


def _cut(block: np.ndarray) -> tuple[list[tuple[int, int]], int]:
    """The segments of the first axis; or of a part of it with fewer, and the size of the rest."""
    segments, size, found = _segments(block), block.shape[1], 0
    for inner in range(2, size // 2 + 1):
        if len(segments) > 1 and size % inner == 0:
            factored = _factored(block, inner)
            middle = factored.shape[1] // 2
            # Most sizes are none of the network: the parts in the middle show it.
            if len(_segments(factored[:, middle - 1 : middle + 2])) == 1:
                fewer = _segments(factored)
                if len(fewer) < len(segments):
                    segments = fewer
                    found = inner
    if len(segments) > MOST_SEGMENTS:
        raise BuildFailed(
            f"the network moves {size} numbers in no order: the C kernel has no code for that"
        )
    return segments, found


def _segments(block: np.ndarray) -> list[tuple[int, int]]:
    """First place and length of each segment of the first axis; of very many, not the last."""
    rows = block.reshape(*block.shape[:2], -1)
    steps = np.diff(rows[0], axis=0)
    apart = np.any(np.diff(rows[1:], axis=1), axis=(0, 2))
    breaks = np.flatnonzero(np.diff(steps, axis=0).any(axis=1) | apart[1:]) + 1
    found = []
    start = 0
    while start < rows.shape[1] and len(found) <= MOST_SEGMENTS:
        later = breaks[np.searchsorted(breaks, start + 1) :]
        end = int(later[0]) + 1 if later.size else rows.shape[1]
        # Two rows always have one step, which must not be another for each of their numbers.
        pair = end == start + 2 and np.count_nonzero(np.diff(steps[start])) > MOST_CHANGES
        if pair or apart[start : start + 1].any():
            end = start + 1
        found.append((start, end - start))
        start = end
    return found
