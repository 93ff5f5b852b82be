"""Whether recordings prove that one network is faster than another.

Any two medians differ; what counts is whether they would differ again. Within a process a
median is known far better than it repeats between processes, so that disjoint intervals
of two recordings alone prove nothing.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from lstm_trt.times import CONFIDENCE, Cell

#: Into so many blocks trials are cut to see what they are worth.
WORTH_BLOCKS = (10, 20, 50)

#: One process a side proves nothing below this ratio: medians of processes differ by 3 % and more.
ONE_PROCESS_RATIO = 1.10
#: With this many rounds a side the ratio's interval over rounds decides, beyond this effect.
ROUNDS, EFFECT = 5, 0.02
#: Above so many rounds a side the distribution of ranks is taken as normal.
EXACT_ROUNDS = 100


def certain(faster: Cell, slower: Cell) -> bool | None:
    """Whether raw trials prove that one median is below another; None without trials.

    Both must hold. The exact 99 % order-statistic intervals of the medians are disjoint, those
    of every round of one side from those of every round of the other. And the processes agree:
    with fewer than 5 rounds a side the ratio must exceed 1.10, since the medians of one script
    in several processes differ by 3 % where each is known to 0.07 %; from 5 rounds on the exact
    99 % interval of the ratio over rounds (Hodges and Lehmann's, of Mann and Whitney's test)
    must lie beyond 2 %. Each pair is judged by itself: of very many, a few are wrong.
    """
    if not (faster.rounds and slower.rounds):
        return None
    if not max(one.high_us for one in faster.rounds) < min(one.low_us for one in slower.rounds):
        return False
    if min(len(faster.rounds), len(slower.rounds)) < ROUNDS:
        return slower.latency_us / faster.latency_us > ONE_PROCESS_RATIO
    ratios = sorted(one.median_us / other.median_us for one in slower.rounds for other in faster.rounds)
    rank = ratio_rank(len(slower.rounds), len(faster.rounds), CONFIDENCE)
    return rank > 0 and ratios[rank - 1] > 1 + EFFECT


@cache
def ratio_rank(m: int, n: int, confidence: float) -> int:
    """Largest k with P(U <= k - 1) at most half of 1 - confidence, U Mann and Whitney's for m and n; 0 for none.

    The k-th smallest and k-th largest of all m x n ratios then hold the ratio of two systems with
    at least `confidence`, if m and n rounds are drawn from distributions that differ by it alone.
    Above 100 rounds a side U counts as normal, a rank less for safety.
    """
    if max(m, n) > EXACT_ROUNDS:
        from scipy.special import ndtri

        spread = math.sqrt(m * n * (m + n + 1) / 12)
        return max(0, math.floor(m * n / 2 + float(ndtri((1 - confidence) / 2)) * spread - 0.5))
    ways = np.zeros((m + 1, m * n + 1))  # of choosing j of the ranks seen so far, by their sum above the least
    ways[0, 0] = 1
    for rank in range(1, m + n + 1):
        for j in range(min(m, rank), 0, -1):
            step = rank - j
            ways[j, step:] += ways[j - 1, : m * n + 1 - step]
    below = np.cumsum(ways[m]) / ways[m].sum()
    return int(np.count_nonzero(below <= (1 - confidence) / 2))


def worth(events: np.ndarray) -> float:
    """How many independent trials tell the rate of these events as well as the trials in their order; at most n.

    `events`: bool, one a trial. n over the largest dispersion of the counts in 10, 20 and 50 blocks
    (variance over that of the binomial). Meant to err on the low side: chance alone takes a third.
    """
    n, rate = len(events), float(np.mean(events))
    if not 0 < rate < 1:
        return float(n)
    dispersion = 1.0
    for blocks in WORTH_BLOCKS:
        size = n // blocks
        if size < 2:
            break
        counts = events[: blocks * size].reshape(blocks, size).sum(axis=1)
        variance = float(((counts - size * rate) ** 2).sum()) / (blocks - 1)
        dispersion = max(dispersion, variance / (size * rate * (1 - rate)))
    return n / dispersion
