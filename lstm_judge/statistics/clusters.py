"""Clusters of slow (or fast) trials, as opposed to the smooth tail of the bulk.

Trials are given as multiples of the local level. A cluster is a place beyond the bulk at which
the density of the trials increases again. Two tests look for it, both exact for given order
statistics:

- density: if the density never increases beyond the bulk, as in any unimodal distribution, the
  share of an interval that lies before a dense part of it is at most Beta distributed;
- hazard: the same with the total time on test instead of the length (Barlow and Proschan,
  Statistical theory of reliability, 1975), in a coordinate in which the tail of a normal bulk is
  exponential (`Reference`). The hazard of a tail as light as the normal or heavier (lognormal,
  exponential, Student's t) never increases in this coordinate. That of a cluster does, even if it
  overlaps the bulk.

Both scan all intervals (`scan`), and the limit applies to the maximum over all of them. The
second test counts only well outside the bulk and if the dip before the cluster is visible.

A cluster is separated from its surroundings by a mixture of two densities (`Mixture`): a normal
cluster, and a rest that decays exponentially in the coordinate of a normal tail. Its trials are
removed and the search is repeated. If a cluster of few trials overlaps the bulk without a
significant dip, the mixture finds it by its likelihood (`shoulder`).
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np

from lstm_judge.statistics.segments import FEWEST_STEPS
from lstm_trt.config.libraries import special

#: Minimum number of trials of a cluster.
LEAST = 5

#: Distance from the level at which the search starts, in spreads of the bulk.
BEYOND = 1.5

#: The intervals of the scan start and end at ranks, counted from the top, that grow by this factor.
GROWTH = 1.12


class Reference:
    """Cumulative hazard of a normal bulk, continued linearly from where three of its n trials
    remain.

    `step`: of the clock. If that is more than 1.2 spreads the bulk is a few steps, whose shape is
    not known; then `shaped` is False. `dip`: maximum density in the dip before a cluster, as a
    share of the density at the cluster.
    """

    def __init__(self, n: int, spread: float, step: float) -> None:
        self.shaped = step <= 1.2 * spread
        self.dip = DIP if self.shaped else CLEAR_DIP
        self.spread = max(spread, 0.6 * step)
        self.step = step
        self.last = max(BEYOND, -float(special.ndtri(min(3 / n, 0.4))))
        self.slope = float(self._hazard(self.last))

    @staticmethod
    def _hazard(z: Any) -> Any:
        return np.exp(-(z**2) / 2 - 0.5 * math.log(2 * math.pi) - special.log_ndtr(-z))

    def cumulative(self, away: Any) -> Any:
        z = away / self.spread
        near = np.minimum(z, self.last)
        return -special.log_ndtr(-near) + self.slope * (z - near)

    def rate(self, away: np.ndarray) -> np.ndarray:
        """The derivative of `cumulative`."""
        return self._hazard(np.minimum(away / self.spread, self.last)) / self.spread


# The scan over all intervals


def scan(spacings: np.ndarray) -> tuple[float, int, int]:
    """The interval with the largest increase in density: its log likelihood ratio, first and last
    index.

    Under the null hypothesis the spacings are those of exponential order statistics, in any scale:
    for indices a < b < c, the ratio of (a, b] to (b, c] is Beta distributed with b - a and c - b.
    """
    ends = np.cumsum(spacings)
    chosen = np.append(-1, _ranks(spacings))  # -1: the start of the search
    at = np.append(0.0, ends)[chosen + 1]
    # Tables of all pairs a, b, flattened; a triple has only pairs with a < b.
    counts = (chosen - chosen[:, None]).ravel().astype(np.float64)
    least = max(1e-12 * float(ends[-1]), 1e-200)
    density = counts / np.maximum((at - at[:, None]).ravel(), least)
    # The ratio is a sum of three terms: those of (a, b] and (b, c], minus that of (a, c].
    with np.errstate(divide="ignore", invalid="ignore"):
        log_likelihood = counts * np.log(density)
    dense = np.where(counts >= LEAST - 1, log_likelihood, -np.inf)
    before, after, whole = _triples(len(chosen))
    gains = log_likelihood[before] - log_likelihood[whole] + dense[after]
    gains[density[before] >= density[after]] = 0.0
    best = int(gains.argmax())
    first, last = divmod(int(after[best]), len(chosen))
    return float(gains[best]), int(chosen[first]), int(chosen[last])


@lru_cache(maxsize=32)
def _triples(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For all a < b < c below `k`, by b, the places of (a, b), (b, c) and (a, c) in a flattened k x
    k table."""
    numbers = np.arange(k)
    b, a, c = np.nonzero(
        (numbers < numbers[:, None])[:, :, None] & (numbers > numbers[:, None])[:, None, :]
    )
    return a * k + b, b * k + c, a * k + c


def _ranks(spacings: np.ndarray) -> np.ndarray:
    """Indices at which intervals start and end: ranks from the top in steps of 12 %, each at the
    widest gap."""
    chosen = {0, len(spacings) - 1}
    for start, stop in itertools.pairwise(_edges(len(spacings))):
        chosen.add(start + int(spacings[start:stop].argmax()))
    return np.array(sorted(chosen))


@lru_cache(maxsize=4096)
def _edges(k: int) -> list[int]:
    """Bounds of the steps of `_ranks` for `k` spacings."""
    ranks = [0]
    while ranks[-1] < k:
        ranks.append(min(max(ranks[-1] + 1, int(ranks[-1] * GROWTH)), k))
    return [k - rank for rank in reversed(ranks)]


# A cluster and the tail as a mixture of two densities

#: Minimum distance of a cluster from the level, in spreads of the bulk.
WELL_BEYOND = 3.25

#: Maximum standard deviation of a cluster, as a share of its place; wider ones are a tail.
WIDEST = 0.15

#: Maximum density in the dip before a cluster, as a share of the density at the cluster.
DIP = 0.9

#: Maximum number of trials beyond the bulk for the search by likelihood (`shoulder`).
FEW = 2000

#: Minimum log likelihood ratio of a shoulder (simulated: smooth tails reach it in 1 % of the
#: rounds).
SHOULDER = 2.5

#: A fit has converged if an iteration changes place and weight by less, as shares of the cluster's
#: width and weight.
SETTLED = 1e-3


@dataclass(frozen=True)
class Bump:
    """A cluster: its place and the half-open range of its trials, as distance from the local level
    or as multiples."""

    place: float
    low: float
    high: float


class Mixture:
    """A normal cluster, and a rest that decays exponentially in the reference's coordinate, within
    a window.

    `fit` finds `place`, `width`, `weight` (the share of the cluster), `decay` (of the rest) and
    `trials` (the number of those of the cluster). Of many trials a histogram with bins of about
    `step` is fitted.
    """

    def __init__(
        self,
        values: np.ndarray,
        window: tuple[float, float],
        reference: Reference,
        step: float = 0.0,
    ) -> None:
        self.start, self.stop = window
        self.reference = reference
        self.values = values[(values >= self.start) & (values <= self.stop)]
        self.counts = np.ones(len(self.values))
        if len(self.values) > FEW:
            bins = min(1000, max(100, int(np.ptp(self.values) / max(step, 1e-12))))
            counts, edges = np.histogram(self.values, bins)
            self.values = ((edges[:-1] + edges[1:]) / 2)[counts > 0]
            self.counts = counts[counts > 0].astype(np.float64)
        self.origin = float(reference.cumulative(self.start))
        self.length = float(reference.cumulative(self.stop)) - self.origin
        self.coordinates = reference.cumulative(self.values) - self.origin
        self.rates = reference.rate(self.values)

    def fit(
        self,
        place: float,
        width: float,
        weight: float,
        turns: int,
        within: tuple[float, float],
        wide: tuple[float, float],
        expected: float = 0.0,
    ) -> Self:
        """Expectation maximization from these start values, of at most `turns` iterations.

        `within` and `wide` bound the place and width of the cluster; `expected` is its width before
        any trial is seen.
        """
        self.place = place
        self.width = width
        self.weight = weight
        self.decay = 1.0
        self.trials = 0.0
        total = float(self.counts.sum())
        moments = np.stack([np.ones(len(self.values)), self.values, self.coordinates])
        of_all = float(self.counts @ self.coordinates)
        # A prior of two trials with the expected width, so that a few close trials do not make a
        # narrow cluster.
        prior = 2 if expected else 0
        for _ in range(turns):
            bump, rest = self._densities(self.values, self.coordinates, self.rates)
            belongs = self.counts * bump / (bump + rest)
            self.trials, sum_, coordinates = (moments @ belongs).tolist()
            if self.trials < 1:
                break
            place = min(max(sum_ / self.trials, within[0]), within[1])
            squares = float(belongs @ (self.values - place) ** 2) + prior * expected**2
            width = min(max(math.sqrt(squares / (self.trials + prior)), wide[0]), wide[1])
            weight = self.trials / total
            moved = abs(place - self.place) / width, abs(weight - self.weight) / weight
            self.place, self.width, self.weight = place, width, weight
            mean = (of_all - coordinates) / max(total - self.trials, 1e-9)
            self.decay = _decay(mean, self.length)
            if max(moved) < SETTLED:
                break
        return self

    def _densities(
        self, places: np.ndarray, coordinates: np.ndarray, rates: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Densities of the cluster and of the rest at places with these coordinates and rates."""
        peak = self.weight / (self.width * math.sqrt(2 * math.pi))
        bump = peak * np.exp(-0.5 * ((places - self.place) / self.width) ** 2)
        turns = max(self.decay * self.length, 1e-9)
        norm = (1 - self.weight) * turns / (-math.expm1(-turns) * self.length)
        return bump, norm * np.exp(-self.decay * coordinates) * rates + 1e-300

    def _at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        coordinates = self.reference.cumulative(places) - self.origin
        return self._densities(places, coordinates, self.reference.rate(places))

    def log_likelihood(self) -> float:
        bump, rest = self._densities(self.values, self.coordinates, self.rates)
        return float(self.counts @ np.log(bump + rest))

    def found(self) -> Bump:
        """The range where the cluster is denser than the rest, within 4.5 standard deviations."""
        low = self._last_denser(max(self.start, self.place - 4.5 * self.width))
        high = self._last_denser(min(self.stop, self.place + 4.5 * self.width))
        return Bump(self.place, low, float(np.nextafter(high, math.inf)))

    def _last_denser(self, end: float) -> float:
        """The last place from the cluster to `end` before the rest is denser than the cluster."""
        outward = np.linspace(end, self.place, 300)[::-1]
        bump, rest = self._at(outward)
        lost = np.flatnonzero(bump < rest)
        return float(outward[max(lost[0] - 1, 0) if len(lost) else -1])

    def stands_out(self, dip: float) -> bool:
        """Whether the cluster is well outside the bulk, twice as dense as the rest, and preceded by
        a dip.

        The dip is that of the fit. It must not be contradicted, by more than 1.7 standard errors,
        by the trials counted in windows of one width of the cluster (at most two spreads of the
        bulk).
        """
        if self.place < WELL_BEYOND * self.reference.spread:
            return False
        places = np.linspace(self.start, self.place, 300)
        bump, rest = self._at(places)
        both = bump + rest
        emptiest = both.argmin()
        if bump[-1] < 2 * rest[-1] or both[emptiest] > dip * both[-1]:
            return False
        half = min(self.width / 2, self.reference.spread)
        before, at = (
            self.counts[(self.values >= centre - half) & (self.values < centre + half)].sum()
            for centre in (places[emptiest], self.place)
        )
        return bool(before - at <= 1.7 * math.sqrt(before + at))


def around(core: np.ndarray, ordered: np.ndarray, reference: Reference) -> Mixture:
    """A mixture fitted around a dense interval, `core`, within five standard deviations."""
    place = float(np.median(core))
    # The densest part is narrower than the whole cluster, which is seldom narrower than the bulk.
    low, high = np.percentile(core, [25, 75]).tolist()
    width = expected = max(high - low, 0.5 * reference.spread * (1 + place))
    finest = max(1e-9 * (1 + place), 0.02 * reference.spread)
    reach = float(core[-1] - core[0])
    within = (float(core[0]) - reach, float(core[-1]) + reach)
    for _ in range(4):
        window = (max(BEYOND * reference.spread, place - 5 * width), place + 5 * width)
        mixture = Mixture(ordered, window, reference, width / 20)
        mixture.fit(place, width, 0.5, 15, within, (finest, 2 * width), expected)
        place = mixture.place
        width = mixture.width
    return mixture


def shoulder(ordered: np.ndarray, reference: Reference, least: float) -> Bump | None:
    """A cluster of few trials that overlaps the bulk without a significant dip; None if there is
    none.

    The log likelihood of a normal bulk with a normal cluster must exceed that of every smooth tail
    by `SHOULDER`: Weibull, Pareto, and two exponentials, all in the reference's coordinate. The
    rest must decay about as fast as a normal bulk.
    """
    spread = reference.spread
    far = ordered[ordered > (WELL_BEYOND - 0.25) * spread]
    if len(far) < max(LEAST, least / 2):
        return None
    weight = 0.7 * len(far) / len(ordered)
    wide = (0.5 * spread, math.inf)
    mixture = Mixture(ordered, (BEYOND * spread, 2 * float(ordered[-1])), reference)
    mixtures = []
    for place in np.quantile(far, (0.1, 0.3, 0.5, 0.7, 0.9)).tolist():
        width = max(0.15 * place, 0.6 * spread)
        mixtures.append(copy(mixture).fit(place, width, weight, 50, (0, math.inf), wide))
    best = max(mixtures, key=Mixture.log_likelihood)
    narrow = 3 * best.width <= best.place and best.width <= WIDEST * (1 + best.place)
    if best.trials < LEAST - 1 or best.decay < 0.6 or not narrow or not best.stands_out(DIP):
        return None
    smooth = _smooth(best.coordinates) + float(np.log(best.rates).sum())
    return best.found() if best.log_likelihood() - smooth > SHOULDER else None


def _smooth(times: np.ndarray) -> float:
    """The largest log likelihood of exceedances (> 0) under tails whose hazard never increases."""
    n = len(times)
    times = np.sort(np.maximum(times, 1e-12))
    found = []
    for shape in np.linspace(0.3, 1, 15):  # Weibull
        log_likelihood = n * (np.log(shape / np.mean(times**shape)) - 1)
        found.append(log_likelihood + (shape - 1) * np.log(times).sum())
    scales = times.mean() * np.geomspace(0.05, 2, 40)[:, None]
    for shape in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0):  # Pareto
        pareto = -np.log(scales) - (1 + 1 / shape) * np.log1p(shape * times / scales)
        found.append(pareto.sum(axis=1).max())
    for first in (0.1, 0.2, 0.35, 0.5):  # two exponentials
        share = first
        cut = min(max(int(n * (1 - share)), 1), n - 1)
        slow = times[cut:].mean()
        fast = times[:cut].mean()
        for _ in range(61):
            rare = share / slow * np.exp(-times / slow)
            both = np.maximum(rare + (1 - share) / fast * np.exp(-times / fast), 1e-300)
            belongs = rare / both
            total = belongs.sum()
            if not 1e-6 < total < n - 1e-6:
                break
            share = total / n
            slow = belongs @ times / total
            fast = (1 - belongs) @ times / (n - total)
        found.append(np.log(both).sum())
    return float(max(found))


def _decay(mean: float, length: float) -> float:
    """Rate of an exponential truncated at this length with this mean; 0 if that is half of `length`
    or more."""
    share = max(mean / length, 1e-12)
    if share >= 0.499:
        return 0.0
    if share < 0.05:
        return 1 / share / length
    # Newton's method from the left of the root of f(x) = 1 / x - 1 / (e^x - 1), which is convex.
    rate = 12 * (0.5 - share)
    for _ in range(7):
        grown = math.expm1(rate)
        rate -= (1 / rate - 1 / grown - share) / ((1 + grown) / grown**2 - 1 / rate**2)
    return rate / length


# The search

#: Log likelihood ratio that the maximum of the scan reaches by chance in under 1 % of smooth tails
#: (simulated: 99th percentile 5.0 at 10 trials beyond the bulk, 8.5 at 100, 9.3 at 10 000).
LIMIT = 9.5

#: Minimum share of the trials for a cluster faster than the bulk, which makes no call slow.
FAST_SHARE = 0.01

#: Maximum number of clusters on each side.
MOST = 8

#: Log likelihood ratio above which two neighbours are separate clusters.
TWO = 6.0

#: As DIP, for clocks so coarse that the shape of the bulk is unknown.
CLEAR_DIP = 0.5


#: A clock shows a cluster that is `FEWEST_STEPS` of its steps from the level, behind a dip this
#: number of steps wide.
DIP_STEPS = 2


def find_clusters(
    ratios: np.ndarray, bulk: np.ndarray, step: float, known: Sequence[tuple[float, float]] = ()
) -> tuple[Bump, ...]:
    """Clusters among multiples of the local level (any order, > 0), from the fastest to the
    slowest.

    `bulk` (bool) marks the trials from which the spread is computed. `step` is the clock's
    resolution as a multiple of the level. `known`: least and largest multiple of clusters that are
    known.
    """
    quarter, middle, three = np.percentile(ratios[bulk], [25, 50, 75])
    spread = max(min(middle - quarter, three - middle) / 0.6745, 1e-7)
    reference = Reference(len(ratios), spread, step)
    bumps: list[Bump] = []
    for low, high in _united(known):
        inside = (ratios >= low) & (ratios <= high)
        if inside.any():
            bumps.append(_bump(float(np.median(ratios[inside])), np.sort(ratios[inside])))
            ratios = ratios[~inside]
    for bump in _side(ratios - 1, reference, LEAST):
        bumps.append(Bump(1 + bump.place, 1 + bump.low, 1 + bump.high))
    for bump in _side(-np.log(ratios), reference, max(LEAST, FAST_SHARE * len(ratios))):
        place, low, high = (math.exp(-away) for away in (bump.place, bump.high, bump.low))
        bumps.append(Bump(place, low, high))
    # Bounds are those of spread ties: half a step more has the ties themselves, and not those next
    # to them.
    wider = [Bump(bump.place, bump.low - step / 2, bump.high + step / 2) for bump in bumps]
    return tuple(sorted(wider, key=lambda bump: bump.place))


def _united(ranges: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same ranges, joined where they overlap."""
    found: list[tuple[float, float]] = []
    for low, high in sorted(ranges):
        if found and low < found[-1][1]:
            before = found.pop()
            found.append((before[0], max(before[1], high)))
        else:
            found.append((low, high))
    return found


def _side(away: np.ndarray, reference: Reference, least: float) -> list[Bump]:
    """Clusters on the side where `away`, the distance from the level, is positive."""
    left = np.sort(away[away > BEYOND * reference.spread])
    found: list[tuple[float, np.ndarray]] = []
    for _ in range(MOST):
        cluster = _largest(left, reference, least)
        if cluster is None:
            break
        inside = (left >= cluster.low) & (left < cluster.high)
        found = _joined(found, cluster.place, left[inside], reference.step)
        left = left[~inside]
    beyond = left[left > WELL_BEYOND * reference.spread]
    return [_bump(place, _with_stragglers(members, beyond)) for place, members in found]


def _with_stragglers(members: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Add to a cluster the few remaining trials next to it, up to a distance of its width."""
    low = members[0]
    high = members[-1]
    width = high - low
    before = left[(left < low) & (left >= low - width)]
    after = left[(left > high) & (left <= high + width)]
    few = max(LEAST - 1, len(members) // 20)
    zones = [zone for zone in (before, after) if len(zone) <= few]
    return np.sort(np.concatenate([members, *zones]))


def _bump(place: float, members: np.ndarray) -> Bump:
    """A cluster at the fitted place, or at the median of its trials if they differ significantly
    (it is not normal)."""
    median = float(np.median(members))
    near = abs(place - median) <= 2.5 * float(members.std()) / math.sqrt(len(members))
    # Widen the range by a rounding error, because multiples are computed from distances.
    return Bump(place if near else median, float(members[0]) - 1e-12, float(members[-1]) + 1e-12)


def _joined(
    found: list[tuple[float, np.ndarray]], place: float, members: np.ndarray, step: float
) -> list[tuple[float, np.ndarray]]:
    """Add a cluster, merged with those that two normal clusters explain hardly better than one, or
    that are fewer than `DIP_STEPS` steps of the clock away.

    This restores clusters that the search found in two parts.
    """
    others = []
    for other_place, other in found:
        both = np.concatenate([members, other])
        if (
            _gap(members, other) < DIP_STEPS * step
            or _gain(members, other, both) < TWO
            or _beside(members, other)
            or _beside(other, members)
        ):
            place = (place * len(members) + other_place * len(other)) / len(both)
            members = np.sort(both)
        else:
            others.append((other_place, other))
    return [*others, (place, members)]


def _beside(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether `a` is much smaller than `b` and at its edge."""
    return 4 * len(a) < len(b) and max(_gap(a, b), np.ptp(a) / 3) < np.ptp(b) / 8


def _gap(a: np.ndarray, b: np.ndarray) -> float:
    """Distance of two ascending arrays; negative if they overlap."""
    return max(b[0] - a[-1], a[0] - b[-1])


def _gain(a: np.ndarray, b: np.ndarray, both: np.ndarray) -> float:
    """Log likelihood ratio of two normal clusters over one."""
    if _gap(a, b) < 0:
        return 0.0
    whole = max(float(both.std()), 1e-12)
    gain = 0.0
    for part in (a, b):
        width = max(float(part.std()), 1e-3 * whole)
        gain += len(part) * math.log(len(part) / len(both) * whole / width)
    return gain


def _largest(ordered: np.ndarray, reference: Reference, least: float) -> Bump | None:
    """The most significant cluster of an ascending array; None if there is none."""
    if len(ordered) < LEAST:
        return None
    found = _scanned(ordered, reference, least, reference.dip)
    if found is None:
        found = _scanned(ordered, reference, least, None)
    if found is None and reference.shaped and len(ordered) <= FEW:
        found = shoulder(ordered, reference, least)
        if found and not _shown(ordered, BEYOND * reference.spread, found, least, reference):
            return None
    return found


def _scanned(
    ordered: np.ndarray, reference: Reference, least: float, dip: float | None
) -> Bump | None:
    """The cluster at the scan's largest ratio or, if that is not one, beyond it; None if there is
    none.

    With a `dip` the hazard is scanned, and the density before a cluster must be at most this share
    of its own.
    """
    origin = BEYOND * reference.spread
    while len(ordered) >= LEAST:
        places = np.append(origin, ordered)
        if dip is None:
            spacings = np.diff(places)
        else:
            spacings = np.diff(reference.cumulative(places)) * np.arange(len(ordered), 0, -1)
        gain, first, last = scan(spacings)
        if gain < LIMIT:
            return None
        core = ordered[first : last + 1]
        mixture = around(core, ordered, reference)
        found = mixture.found()
        width = mixture.width
        if dip is None and not core[0] <= mixture.place <= core[-1]:
            # The mixture does not describe the surroundings: use the dense interval itself.
            found = Bump(float(np.median(core)), float(core[0]), float(core[-1]) + 1e-12)
            width = float(core.std())
        if (
            width <= WIDEST * (1 + found.place)
            and _shown(ordered, origin, found, least, reference)
            and (dip is None or mixture.stands_out(dip))
        ):
            return found
        origin = float(ordered[last])
        ordered = ordered[last + 1 :]
    return None


def _shown(
    ordered: np.ndarray, origin: float, found: Bump, least: float, reference: Reference
) -> bool:
    """Whether a cluster has enough trials, and a clock with this step shows it: far enough, and
    behind a wide dip.

    `ordered`: ascending trials beyond `origin`.
    """
    inside = int(np.count_nonzero((ordered >= found.low) & (ordered < found.high)))
    if inside < least or found.place < FEWEST_STEPS * reference.step:
        return False
    # The emptiest window before the cluster begins at a trial.
    wide = DIP_STEPS * reference.step
    starts = np.r_[origin, ordered[ordered < found.place - wide]]
    before = np.searchsorted(ordered, starts + wide, "right") - np.arange(len(starts))
    return bool(before.min() <= reference.dip * inside)
