"""How numbers are moved: arrays of addresses as loops, which put each number in its place and do not grow with them."""

from __future__ import annotations

import numpy as np
import pytest

from lstm_onnx.c.moves import BASE, moves
from lstm_trt.config.errors import BuildFailed


def numbered(base: int, *shape: int) -> np.ndarray:
    """The addresses of a tensor."""
    return base * BASE + np.arange(np.prod(shape, dtype=int)).reshape(shape)


def windows(array: np.ndarray, size: int, stride: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(array, size, 0)[::stride]


#: 35 of 35 places, in which there is no order.
MIXED = np.array([place * place * 11 % 37 % 35 * 13 % 35 for place in range(35)])

#: Addresses that operators leave, for so many samples.
MOVED = {
    "a tensor": lambda n: numbered(0, n, 5),
    "transposed": lambda n: numbered(0, n, 5).T,
    "transposed, many features": lambda n: numbered(0, n, 80).T,
    "transposed and flat": lambda n: numbered(0, n, 80).T.ravel(),
    "features of two kinds and a constant": lambda n: np.concatenate(
        [numbered(0, n, 5), numbered(1, n, 30), np.full((n, 3), 2 * BASE)], axis=1
    ),
    "two parts in time": lambda n: np.concatenate([numbered(0, 40, n), np.full((40, 3), 2 * BASE)], axis=1),
    "reflected on all sides": lambda n: np.pad(numbered(0, n, 30), ((2, 3), (4, 5)), mode="reflect"),
    "reflected and flat": lambda n: np.pad(numbered(0, n, 30), ((2, 3), (4, 5)), mode="reflect").ravel(),
    "edges": lambda n: np.pad(numbered(0, n, 30), ((2, 3), (4, 5)), mode="edge"),
    "padded by turns": lambda n: np.pad(numbered(0, n, 30), ((0, 0), (2, 1)), constant_values=BASE),
    "every second, backwards": lambda n: numbered(0, n, 30)[::-1, ::-2],
    "windows": lambda n: windows(numbered(0, n, 7), 5, 3),
    # The last window of a row and the first of the next touch, so that they look like one.
    "windows of each row": lambda n: np.stack([windows(row, 256, 128) for row in numbered(0, n, 640)]),
    "windows of each row, flat": lambda n: np.stack([windows(row, 8, 4) for row in numbered(0, n, 20)]).ravel(),
    "windows of an image": lambda n: np.lib.stride_tricks.sliding_window_view(
        np.pad(numbered(0, n, 8, 3), ((1, 1), (1, 1), (0, 0)), constant_values=BASE), (3, 3), (0, 1)
    ),
    "one number": lambda n: np.broadcast_to(numbered(0, 1), (n, 4)),
    "features in another order": lambda n: numbered(0, n, 35)[:, MIXED],
    "features of two kinds in another order": lambda n: np.concatenate([numbered(0, n, 5), numbered(1, n, 30)], axis=1)[
        :, MIXED
    ],
    "in another order, transposed": lambda n: numbered(0, n, 35)[:, MIXED].T,
    "nothing": lambda n: numbered(0, n, 0),
}


def carried_out(at: np.ndarray) -> np.ndarray:
    """What the moves put into each place; each of them must be written once."""
    found = np.full(at.size, -1)
    for move in moves(at):
        places = np.array([[move.x], [move.to]])
        for loop in move.loops:
            steps = np.arange(loop.count) * np.array([[loop.read], [loop.write]])
            places = (places[:, :, None] + steps[:, None]).reshape(2, -1)
        read, written = places
        assert len(set(written.tolist())) == written.size and (found[written] == -1).all()
        assert (read // BASE == move.x // BASE).all()
        found[written] = read
    return found


@pytest.mark.parametrize("case", MOVED)
def test_each_number_comes_to_its_place(case):
    for samples in (5, 6, 7, 8, 50, 97):
        at = MOVED[case](samples)
        assert np.array_equal(carried_out(at), at.ravel())


@pytest.mark.parametrize("case", MOVED)
def test_moves_do_not_grow_with_the_samples(case):
    few, many = (moves(MOVED[case](samples)) for samples in (60, 600))
    assert len(many) == len(few) <= 40 and [len(move.loops) for move in many] == [len(move.loops) for move in few]


def test_numbers_without_any_order_are_refused():
    """A statement for each would take a compiler minutes."""
    at = numbered(0, 3, 3000)[:, np.arange(3000) ** 2 * 7 % 2999]
    with pytest.raises(BuildFailed, match="moves 3000 numbers in no order"):
        moves(at)
