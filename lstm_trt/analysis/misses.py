"""Misses of a deadline: which trials are late, and how many come in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

#: Numbers of consecutive trials in which the worst number of misses is told.
CARD_WINDOWS = (10, 100, 1000)
#: Latencies this near above the deadline are the deadline: units were converted in floating point.
ROUNDING = 4 * np.finfo(np.float64).eps


@dataclass(frozen=True)
class Card:
    """Misses in a row, for control engineers: (m, k) says m misses at worst in k consecutive trials.

    `worst_in`: k -> m, None where no round has k trials. `p_miss_after_miss`: the share of misses
    among the trials that follow a miss, None where none does. Neither windows nor runs cross
    rounds; where marked rows lie between (after each block), their neighbours count as consecutive.
    """

    worst_in: dict[int, int | None]
    longest_run: int
    p_miss: float
    p_miss_after_miss: float | None

    def as_dict(self) -> dict:
        return {**vars(self), "worst_in": {str(window): worst for window, worst in self.worst_in.items()}}


def limit_ns(deadline_us: float) -> float:
    """What a miss is above: the deadline, exactly as its decimals say, and the rounding of a unit's conversion."""
    return float(Fraction(repr(deadline_us)) * 1000) * (1 + ROUNDING)


def longest_run(places: np.ndarray) -> int:
    """The most consecutive numbers among ascending ones."""
    if not len(places):
        return 0
    ends = np.flatnonzero(np.diff(places, append=places[-1] + 2) > 1)
    return int(np.diff(ends, prepend=-1).max())


def card(misses: Sequence[np.ndarray], sizes: Sequence[int]) -> Card:
    """The (m, k) card; `misses`: ascending indices of the misses of each round, `sizes`: its trials.

    Misses of a round that is shorter than a window count as those of one window.
    """
    worst_in = {}
    for window in CARD_WINDOWS:
        counts = [np.searchsorted(one, one + window, "left") - np.arange(len(one)) for one in misses]
        worst = max((int(count.max()) for count in counts if len(count)), default=0)
        worst_in[window] = worst if max(sizes, default=0) >= window else None
    longest = followed = after = 0
    for one, size in zip(misses, sizes, strict=True):
        if not len(one):
            continue
        longest = max(longest, longest_run(one))
        after += len(one) - int(one[-1] == size - 1)
        followed += int(np.count_nonzero(np.diff(one) == 1))
    return Card(worst_in, longest, sum(map(len, misses)) / sum(sizes), followed / after if after else None)
