"""A cluster and the tail it lies on as two curves: which trials are of which, and whether both are there.

The cluster is normal, the rest decays exponentially in the coordinate of a normal tail
(`clusters_scan.Reference`). The curves separate a cluster that the scan has found from what is
around it; where the body ends in a cluster of few trials, without a dip beyond chance, they find
it by their likelihood.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lstm_trt.analysis.clusters_scan import BEYOND, LEAST, Reference

#: A cluster lies at least so many body spreads from the level.
WELL_BEYOND = 3.25
#: A cluster's standard deviation, as a share of its place, is at most this; what is wider is a tail.
WIDEST = 0.15
#: The density before a cluster is at most this share of its own, where the two overlap.
DIP = 0.9
#: Up to so many trials beyond the body a cluster in which the body ends is sought by likelihood.
FEW = 2000
#: The log likelihood ratio it takes (simulated: smooth tails reach it in 1 % of the samples).
SHOULDER = 2.5
#: A fit has settled where a turn moves it by less, as a share of the cluster's width and weight.
SETTLED = 1e-3


@dataclass(frozen=True)
class Found:
    """A cluster on one side: its place and the half-open range of its trials, as distances from the level."""

    place: float
    low: float
    high: float


class Mixture:
    """A normal cluster on a rest that decays exponentially in the reference's coordinate, in a window of places."""

    def __init__(self, values: np.ndarray, start: float, stop: float, width: float, reference: Reference) -> None:
        self.start, self.stop, self.reference = start, stop, reference
        inside = values[(values >= start) & (values <= stop)]
        self.values, self.counts = _binned(inside, width / 20)
        self.origin = float(reference.cumulative(np.array([start]))[0])
        self.length = float(reference.cumulative(np.array([stop]))[0]) - self.origin
        self.coordinates = reference.cumulative(self.values) - self.origin
        self.rates = reference.rate(self.values)

    def fit(
        self,
        place: float,
        width: float,
        weight: float,
        decay: float,
        *,
        turns: int,
        within: tuple,
        wide: tuple,
        expected: float = 0.0,
    ):
        """Expectation maximisation; `within` and `wide` bound the cluster's place and width."""
        for _ in range(turns):
            bump, rest = _densities(
                (place, width, weight, decay), self.values, self.coordinates, self.rates, self.length
            )
            belongs = self.counts * bump / (bump + rest)
            total = float(belongs.sum())
            if total < 1:
                break
            before = place, weight
            weight = total / float(self.counts.sum())
            place = min(max(float(belongs @ self.values) / total, within[0]), within[1])
            # Two trials' worth of the expected width: a few trials close together are not all of a cluster.
            squares = float(belongs @ (self.values - place) ** 2) + 2 * expected**2
            width = math.sqrt(squares / (total + (2 if expected else 0)))
            width = min(max(width, wide[0]), wide[1])
            others = self.counts - belongs
            decay = _decay(float(others @ self.coordinates) / max(float(others.sum()), 1e-9), self.length)
            if abs(place - before[0]) < SETTLED * width and abs(weight - before[1]) < SETTLED * weight:
                break
        self.place, self.width, self.weight, self.decay, self.trials = place, width, weight, decay, total
        return self

    def _at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        coordinates = self.reference.cumulative(places) - self.origin
        shape = (self.place, self.width, self.weight, self.decay)
        return _densities(shape, places, coordinates, self.reference.rate(places), self.length)

    def log_likelihood(self) -> float:
        bump, rest = _densities(
            (self.place, self.width, self.weight, self.decay), self.values, self.coordinates, self.rates, self.length
        )
        return float(self.counts @ np.log(bump + rest))

    def found(self) -> Found:
        """Where the cluster is the denser of the two, within four and a half of its spreads."""
        low, high = max(self.start, self.place - 4.5 * self.width), min(self.stop, self.place + 4.5 * self.width)
        below, above = np.linspace(low, self.place, 300), np.linspace(self.place, high, 300)
        bump, rest = self._at(below)
        lost = np.flatnonzero(bump < rest)
        low = float(below[min(lost[-1] + 1, 299)]) if len(lost) else low
        bump, rest = self._at(above)
        lost = np.flatnonzero(bump < rest)
        high = float(above[max(lost[0] - 1, 0)]) if len(lost) else high
        return Found(self.place, low, float(np.nextafter(high, math.inf)))

    def stands_out(self, dip: float) -> bool:
        """Whether the cluster lies well outside the body, is mostly itself, and is denser than what is before it.

        The dip is the fit's; trials counted in windows of one spread of the cluster, at most
        two of the body, must not contradict it (by more than 1.7 of their errors).
        """
        if self.place < WELL_BEYOND * self.reference.spread:
            return False
        places = np.linspace(self.start, self.place, 300)
        bump, rest = self._at(places)
        both = bump + rest
        if bump[-1] < 2 * rest[-1] or both.min() > dip * both[-1]:
            return False
        centres = np.array([places[np.argmin(both)], self.place])
        total = np.r_[0, np.cumsum(self.counts)]
        half = min(self.width / 2, self.reference.spread)
        inside = total[np.searchsorted(self.values, centres + half)]
        inside -= total[np.searchsorted(self.values, centres - half)]
        return bool(inside[0] - inside[1] <= 1.7 * math.sqrt(inside.sum()))


def around(ordered: np.ndarray, first: int, last: int, reference: Reference) -> Mixture:
    """The cluster around a dense stretch and the rest within five of its spreads."""
    core = ordered[first : last + 1]
    place = float(np.median(core))
    # The densest piece is narrower than the whole cluster, whose jitter is seldom less than the body's.
    width = max(float(np.subtract(*np.percentile(core, [75, 25]))), 0.5 * reference.spread * (1 + place))
    finest = max(1e-9 * (1 + place), 0.02 * reference.spread)
    width = max(width, finest)
    expected, reach = width, float(core[-1] - core[0])
    within = (float(core[0]) - reach, float(core[-1]) + reach)
    for _ in range(4):
        start, stop = max(BEYOND * reference.spread, place - 5 * width), place + 5 * width
        mixture = Mixture(ordered, start, stop, width, reference)
        mixture.fit(place, width, 0.5, 1.0, turns=15, within=within, wide=(finest, 2 * width), expected=expected)
        place, width = mixture.place, mixture.width
    return mixture


def shoulder(ordered: np.ndarray, reference: Reference, least: float) -> Mixture | None:
    """A cluster that the body reaches into, where few trials show no dip beyond chance; None where there is none.

    A normal body with a normal cluster has to be likelier by `SHOULDER` than every smooth tail:
    Weibull's, Pareto's, and two exponentials, all in the reference's coordinate. The rest has to
    decay about as fast as a normal body.
    """
    spread = reference.spread
    far = ordered[ordered > (WELL_BEYOND - 0.25) * spread]
    if len(far) < max(LEAST, least / 2):
        return None
    best = None
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        place = float(np.quantile(far, share))
        mixture = Mixture(ordered, BEYOND * spread, 2 * float(ordered[-1]), 0.0, reference)
        mixture.fit(
            place,
            max(0.15 * place, 0.6 * spread),
            0.7 * len(far) / len(ordered),
            1.0,
            turns=50,
            within=(0, math.inf),
            wide=(0.5 * spread, math.inf),
        )
        if best is None or mixture.log_likelihood() > best.log_likelihood():
            best = mixture
    if best.trials < LEAST - 1 or best.decay < 0.6 or best.place < 3 * best.width or not best.stands_out(DIP):
        return None
    if best.width > WIDEST * (1 + best.place):
        return None
    smooth = _smooth(best.coordinates) + float(np.log(best.rates).sum())
    return best if best.log_likelihood() - smooth > SHOULDER else None


def _smooth(times: np.ndarray) -> float:
    """The largest log likelihood of exceedances under tails that never fall faster again (one place each, > 0)."""
    n, times = len(times), np.maximum(times, 1e-12)
    logs = np.log(times)
    shapes = np.linspace(0.3, 1, 15)
    means = np.array([np.mean(times**shape) for shape in shapes])
    best = float(np.max(n * (np.log(shapes / means) - 1) + (shapes - 1) * logs.sum()))
    scales = times.mean() * np.geomspace(0.05, 2, 40)[:, None]
    for shape in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0):
        best = max(
            best, float((-np.log(scales) - (1 + 1 / shape) * np.log1p(shape * times / scales)).sum(axis=1).max())
        )
    ordered = np.sort(times)
    for share in (0.1, 0.2, 0.35, 0.5):
        cut = min(max(int(n * (1 - share)), 1), n - 1)
        weight, slow, fast = share, float(ordered[cut:].mean()), float(ordered[:cut].mean())
        for _ in range(60):
            one, other = weight / slow * np.exp(-times / slow), (1 - weight) / fast * np.exp(-times / fast)
            belongs = one / np.maximum(one + other, 1e-300)
            total = float(belongs.sum())
            if not 1e-6 < total < n - 1e-6:
                break
            weight, slow, fast = total / n, float(belongs @ times) / total, float((1 - belongs) @ times) / (n - total)
        one, other = weight / slow * np.exp(-times / slow), (1 - weight) / fast * np.exp(-times / fast)
        best = max(best, float(np.log(np.maximum(one + other, 1e-300)).sum()))
    return best


def _densities(shape: tuple, places, coordinates, rates, length: float) -> tuple[np.ndarray, np.ndarray]:
    place, width, weight, decay = shape
    bump = weight * np.exp(-(((places - place) / width) ** 2) / 2) / (width * math.sqrt(2 * math.pi))
    norm = 1 / length if decay * length < 1e-6 else decay / -math.expm1(-decay * length)
    return bump, (1 - weight) * norm * np.exp(-decay * coordinates) * rates + 1e-300


def _decay(mean: float, length: float) -> float:
    """Rate of an exponential cut off at `length` that has this mean, 0 where the mean is half of it or more."""
    share = mean / length
    if share >= 0.499:
        return 0.0
    if share < 0.05:
        return 1 / max(mean, 1e-12)
    low, high = 0.0, 1 / share
    for _ in range(25):
        x = (low + high) / 2
        low, high = (x, high) if (1 / x - 1 / math.expm1(x) if x > 1e-3 else 0.5 - x / 12) > share else (low, x)
    return (low + high) / 2 / length


def _binned(values: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Places and counts; the values themselves where there are few."""
    if len(values) <= FEW:
        return values, np.ones(len(values))
    counts, edges = np.histogram(values, bins=min(1000, max(100, int(np.ptp(values) / max(step, 1e-12)))))
    kept = counts > 0
    return ((edges[:-1] + edges[1:]) / 2)[kept], counts[kept].astype(np.float64)
