"""(m,k)-firm statistics: at most m misses in any k consecutive trials."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lstm_judge.statistics.bursts import runs_of
from lstm_trt.config.fields import JsonFields

#: Window lengths k, in trials.
FIRM_WINDOWS = (10, 100, 1000)


@dataclass(frozen=True)
class FirmStatistics(JsonFields):
    """(m,k)-firm statistics: at most m misses in any k consecutive trials.

    `worst_in`: k -> m, None if no round has k trials. `p_miss_after_miss`: share of misses among
    the trials that follow a miss, None if there are none. Windows and runs do not cross rounds.
    Trials on both sides of rows marked as warm-up (after each block) count as consecutive.
    """

    worst_in: dict[int, int | None]
    longest_run: int
    p_miss: float
    p_miss_after_miss: float | None


def longest_run(places: np.ndarray) -> int:
    """Length of the longest run of consecutive numbers in an ascending array."""
    _, lengths = runs_of(places)
    return int(lengths.max(initial=0))


def firm_statistics(misses: Sequence[np.ndarray], sizes: Sequence[int]) -> FirmStatistics:
    """(m,k)-firm statistics; `misses`: ascending indices of the misses of each round, `sizes`:
    trials of each round.

    A round that is shorter than a window counts as one window.
    """
    worst_in = {}
    for window in FIRM_WINDOWS:
        counts = [np.searchsorted(late, late + window) - np.arange(len(late)) for late in misses]
        worst_in[window] = (
            int(np.concatenate(counts).max(initial=0)) if max(sizes) >= window else None
        )
    followed = 0
    again = 0
    for late, size in zip(misses, sizes, strict=True):
        followed += np.count_nonzero(late < size - 1)
        again += np.count_nonzero(np.diff(late) == 1)
    return FirmStatistics(
        worst_in,
        longest_run=max(map(longest_run, misses)),
        p_miss=sum(map(len, misses)) / sum(sizes),
        p_miss_after_miss=again / followed if followed else None,
    )
