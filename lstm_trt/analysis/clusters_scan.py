"""Where trials become denser again: the scan over all stretches, and the coordinate that makes a normal tail flat.

For given order statistics the scan's ratios are exact: where the density never rises, in the
coordinate that is scanned, the share of a stretch that lies before a dense piece of it is at
most Beta distributed. `clusters.py` says which coordinates are scanned, and why.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

#: Fewer trials than these are told with the tail.
LEAST = 5
#: The search begins so many body spreads from the level.
BEYOND = 1.5
#: Stretches of the scan begin and end at ranks from the top that grow by this factor.
GROWTH = 1.12


class Reference:
    """The cumulative hazard of a normal body up to where three of its n trials are left, straight from there."""

    def __init__(self, n: int, spread: float) -> None:
        from scipy.special import ndtri

        self.spread = spread
        self.last = max(BEYOND, -float(ndtri(min(3 / n, 0.4))))
        self.slope = float(self._hazard(np.array([self.last]))[0])

    @staticmethod
    def _hazard(z: np.ndarray) -> np.ndarray:
        from scipy.special import log_ndtr

        return np.exp(-(z**2) / 2 - 0.5 * math.log(2 * math.pi) - log_ndtr(-z))

    def cumulative(self, away: np.ndarray) -> np.ndarray:
        from scipy.special import log_ndtr

        z = away / self.spread
        near = np.minimum(z, self.last)
        return -log_ndtr(-near) + self.slope * (z - near)

    def rate(self, away: np.ndarray) -> np.ndarray:
        """The derivative of `cumulative`."""
        return self._hazard(np.minimum(away / self.spread, self.last)) / self.spread


def scan(spacings: np.ndarray) -> tuple[float, int, int]:
    """The densest stretch after a sparser one: its log likelihood ratio, first and last index.

    The spacings are those of exponential order statistics under the null, in any scale: for
    indices a < b < c the ratio of (a, b] to (b, c] is Beta distributed with b - a and c - b.
    """
    ends = np.cumsum(spacings)
    chosen = np.r_[-1, _ranks(spacings)]  # -1: where the search begins
    at = np.r_[0.0, ends[chosen[1:]]]
    counts = (chosen[None, :] - chosen[:, None]).astype(np.float64)
    lengths = np.maximum(at[None, :] - at[:, None], max(1e-12 * float(ends[-1]), 1e-200))
    density = counts / lengths
    # The ratio is a sum over pairs: of (a, b] and of (b, c], less that of (a, c].
    with np.errstate(divide="ignore", invalid="ignore"):
        one = np.where(counts > 0, counts * np.log(density), -np.inf)
    dense = np.where(counts >= LEAST - 1, one, -np.inf)
    best = (0.0, 0, 0)
    for j in range(1, len(chosen) - 1):
        gains = one[:j, j, None] - one[:j, j + 1 :]
        gains += dense[j, j + 1 :]
        gains[density[:j, j, None] >= density[j, j + 1 :]] = 0.0
        place = int(gains.argmax())
        if gains.flat[place] > best[0]:
            best = (float(gains.flat[place]), int(chosen[j]), int(chosen[j + 1 + place % (len(chosen) - j - 1)]))
    return best


def _ranks(spacings: np.ndarray) -> np.ndarray:
    """Indices at which stretches begin and end: of ranks from the top in steps of 12 %, that after the widest gap."""
    k = len(spacings)
    edges, rank = [0], 0
    while rank < k:
        rank = min(max(rank + 1, int(rank * GROWTH)), k)
        edges.append(rank)
    edges = k - np.array(edges[::-1])
    if len(edges) == k + 1:
        return np.arange(k)
    widest = [start + int(np.argmax(spacings[start:stop])) for start, stop in itertools.pairwise(edges)]
    return np.unique([0, *widest, k - 1])
