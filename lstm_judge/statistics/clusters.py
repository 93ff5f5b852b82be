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

import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, lru_cache
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
    chosen = np.r_[-1, _ranks(spacings)]  # -1: the start of the search
    at = np.r_[0.0, ends[chosen[1:]]]
    counts = (chosen[None, :] - chosen[:, None]).astype(np.float64)
    lengths = np.maximum(at[None, :] - at[:, None], max(1e-12 * float(ends[-1]), 1e-200))
    density = counts / lengths
    # The ratio is a sum of three terms: those of (a, b] and (b, c], minus that of (a, c].
    with np.errstate(divide="ignore", invalid="ignore"):
        log_likelihood = np.where(counts > 0, counts * np.log(density), -np.inf)
    dense = np.where(counts >= LEAST - 1, log_likelihood, -np.inf)
    before, after, whole = _triples(len(chosen))
    gains = log_likelihood.ravel()[before] - log_likelihood.ravel()[whole]
    gains += dense.ravel()[after]
    gains[density.ravel()[before] >= density.ravel()[after]] = 0.0
    best = int(gains.argmax()) if len(gains) else 0
    if not len(gains) or gains[best] <= 0:
        return 0.0, 0, 0
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
    edges = _edges(len(spacings))
    widest = np.repeat(np.maximum.reduceat(spacings, edges[:-1]), np.diff(edges))
    places = np.flatnonzero(spacings == widest)
    first = np.unique(np.searchsorted(edges, places, "right"), return_index=True)[1]
    return np.unique(np.r_[0, places[first], len(spacings) - 1])


@lru_cache(maxsize=4096)
def _edges(k: int) -> np.ndarray:
    """Bounds of the steps of `_ranks` for `k` spacings."""
    edges, rank = [0], 0
    while rank < k:
        rank = min(max(rank + 1, int(rank * GROWTH)), k)
        edges.append(rank)
    return k - np.array(edges[::-1])


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

    `within` and `wide` bound the place and width of the cluster; `expected` is its width before any
    trial is seen. `fit` finds `place`, `width`, `weight` (the share of the cluster), `decay` (of
    the rest) and `trials` (the number of those of the cluster).
    """

    def __init__(
        self,
        values: np.ndarray,
        window: tuple[float, float],
        step: float,
        reference: Reference,
        *,
        within: tuple[float, float],
        wide: tuple[float, float],
        expected: float = 0.0,
    ) -> None:
        self.start, self.stop = window
        self.reference = reference
        self.within = within
        self.wide = wide
        self.expected = expected
        inside = values[(values >= self.start) & (values <= self.stop)]
        if len(inside):
            self.values, self.counts = _binned(inside, step)
        else:
            self.values, self.counts = np.array([self.start]), np.zeros(1)
        self.origin = float(reference.cumulative(self.start))
        self.length = float(reference.cumulative(self.stop)) - self.origin
        self.coordinates = reference.cumulative(self.values) - self.origin
        self.rates = reference.rate(self.values)

    def fit(self, place: float, width: float, weight: float, turns: int) -> Self:
        """Expectation maximization from these start values, of at most `turns` iterations."""
        self.place, self.width, self.weight, self.decay = place, width, weight, 1.0
        least, most = self.within
        narrowest, widest = self.wide
        total = float(self.counts.sum())
        moments = np.stack([np.ones(len(self.values)), self.values, self.coordinates])
        of_all = float(self.counts @ self.coordinates)
        # A prior of two trials with the expected width, so that a few close trials do not make a
        # narrow cluster.
        prior = 2 if self.expected else 0
        for _ in range(turns):
            bump, rest = self._densities(self.values, self.coordinates, self.rates)
            belongs = self.counts * bump / (bump + rest)
            self.trials, sum_, coordinates = (moments @ belongs).tolist()
            if self.trials < 1:
                break
            place = min(max(sum_ / self.trials, least), most)
            squares = float(belongs @ (self.values - place) ** 2) + prior * self.expected**2
            width = min(max(math.sqrt(squares / (self.trials + prior)), narrowest), widest)
            weight = self.trials / total
            mean = (of_all - coordinates) / max(total - self.trials, 1e-9)
            settled = (
                abs(place - self.place) < SETTLED * width
                and abs(weight - self.weight) < SETTLED * weight
            )
            self.place, self.width, self.weight = place, width, weight
            self.decay = _decay(mean, self.length)
            if settled:
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
        """The range in which the cluster is denser than the rest, within 4.5 standard deviations."""
        low, high = (
            max(self.start, self.place - 4.5 * self.width),
            min(self.stop, self.place + 4.5 * self.width),
        )
        below, above = np.linspace(low, self.place, 300)[::-1], np.linspace(self.place, high, 300)
        return Bump(
            self.place,
            self._last_denser(below),
            float(np.nextafter(self._last_denser(above), math.inf)),
        )

    def _last_denser(self, outward: np.ndarray) -> float:
        """The last of these places before the rest is denser than the cluster."""
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
        if bump[-1] < 2 * rest[-1] or both.min() > dip * both[-1]:
            return False
        centres = np.array([places[np.argmin(both)], self.place])
        total = np.r_[0, np.cumsum(self.counts)]
        half = min(self.width / 2, self.reference.spread)
        inside = total[np.searchsorted(self.values, centres + half)]
        inside -= total[np.searchsorted(self.values, centres - half)]
        return bool(inside[0] - inside[1] <= 1.7 * math.sqrt(inside.sum()))


def around(ordered: np.ndarray, first: int, last: int, reference: Reference) -> Mixture:
    """A mixture fitted around a dense interval, within five standard deviations."""
    core = ordered[first : last + 1]
    place = float(np.median(core))
    # The densest part is narrower than the whole cluster, which is seldom narrower than the bulk.
    width = max(
        float(np.subtract(*np.percentile(core, [75, 25]))), 0.5 * reference.spread * (1 + place)
    )
    finest = max(1e-9 * (1 + place), 0.02 * reference.spread)
    expected, reach = width, float(core[-1] - core[0])
    within = (float(core[0]) - reach, float(core[-1]) + reach)
    for _ in range(4):
        window = (max(BEYOND * reference.spread, place - 5 * width), place + 5 * width)
        wide = (finest, 2 * width)
        mixture = Mixture(
            ordered, window, width / 20, reference, within=within, wide=wide, expected=expected
        )
        mixture.fit(place, width, 0.5, turns=15)
        place, width = mixture.place, mixture.width
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
    window, wide = (BEYOND * spread, 2 * float(ordered[-1])), (0.5 * spread, math.inf)
    mixture = Mixture(ordered, window, 0.0, reference, within=(0, math.inf), wide=wide)
    weight = 0.7 * len(far) / len(ordered)
    places = np.quantile(far, (0.1, 0.3, 0.5, 0.7, 0.9)).tolist()
    mixtures = [
        copy(mixture).fit(place, max(0.15 * place, 0.6 * spread), weight, turns=50)
        for place in places
    ]
    likelihoods = [mixture.log_likelihood() for mixture in mixtures]
    best = mixtures[likelihoods.index(max(likelihoods))]
    narrow = 3 * best.width <= best.place and best.width <= WIDEST * (1 + best.place)
    if best.trials < LEAST - 1 or best.decay < 0.6 or not narrow or not best.stands_out(DIP):
        return None
    smooth = _smooth(best.coordinates) + float(np.log(best.rates).sum())
    return best.found() if max(likelihoods) - smooth > SHOULDER else None


def _smooth(times: np.ndarray) -> float:
    """The largest log likelihood of exceedances (> 0) under tails whose hazard does not increase."""
    n, times = len(times), np.maximum(times, 1e-12)
    logs = np.log(times)
    shapes = np.linspace(0.3, 1, 15)
    means = np.array([np.mean(times**shape) for shape in shapes])
    best = float(np.max(n * (np.log(shapes / means) - 1) + (shapes - 1) * logs.sum()))
    scales = times.mean() * np.geomspace(0.05, 2, 40)[:, None]
    for shape in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0):
        pareto = -np.log(scales) - (1 + 1 / shape) * np.log1p(shape * times / scales)
        best = max(best, float(pareto.sum(axis=1).max()))
    ordered = np.sort(times)
    for share in (0.1, 0.2, 0.35, 0.5):
        cut = min(max(int(n * (1 - share)), 1), n - 1)
        weight, slow, fast = share, float(ordered[cut:].mean()), float(ordered[:cut].mean())
        for _ in range(61):
            rare, usual = (
                weight / slow * np.exp(-times / slow),
                (1 - weight) / fast * np.exp(-times / fast),
            )
            both = np.maximum(rare + usual, 1e-300)
            belongs = rare / both
            total = float(belongs.sum())
            if not 1e-6 < total < n - 1e-6:
                break
            weight, slow, fast = (
                total / n,
                float(belongs @ times) / total,
                float((1 - belongs) @ times) / (n - total),
            )
        best = max(best, float(np.log(both).sum()))
    return best


def _decay(mean: float, length: float) -> float:
    """Rate of an exponential truncated at this length with this mean; 0 if that is half of `length`
    or more."""
    share = max(mean / length, 1e-12)
    if share >= 0.499:
        return 0.0
    if share < 0.05:
        return 1 / share / length
    x, shares = _truncated()
    rate = float(np.interp(share, shares, x))
    # One step of Newton's method from the table: f(x) = 1 / x - 1 / (e^x - 1).
    grown = math.expm1(rate)
    rate -= (1 / rate - 1 / grown - share) / ((1 + grown) / grown**2 - 1 / rate**2)
    return rate / length


@cache
def _truncated() -> tuple[np.ndarray, np.ndarray]:
    """Rates times length from 20 to 0.01, and the means of the truncated exponentials as shares of
    the length."""
    x = np.geomspace(20.2, 0.01, 2000)
    return x, 1 / x - 1 / np.expm1(x)


def _binned(values: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Places and counts of a histogram; the values themselves if there are few."""
    if len(values) <= FEW:
        return values, np.ones(len(values))
    counts, edges = np.histogram(
        values, bins=min(1000, max(100, int(np.ptp(values) / max(step, 1e-12))))
    )
    kept = counts > 0
    return ((edges[:-1] + edges[1:]) / 2)[kept], counts[kept].astype(np.float64)


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
    slow = _side(ratios - 1, reference, LEAST)
    slow = [Bump(1 + bump.place, 1 + bump.low, 1 + bump.high) for bump in slow]
    fast = _side(-np.log(ratios), reference, max(LEAST, FAST_SHARE * len(ratios)))
    fast = [Bump(math.exp(-bump.place), math.exp(-bump.high), math.exp(-bump.low)) for bump in fast]
    # Bounds are those of spread ties: half a step more has the ties themselves, and not those next
    # to them.
    wider = [
        Bump(bump.place, bump.low - step / 2, bump.high + step / 2)
        for bump in (*bumps, *fast, *slow)
    ]
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
        cluster = _largest(left, reference, least) if len(left) >= LEAST else None
        if cluster is None:
            break
        inside = (left >= cluster.low) & (left < cluster.high)
        found = _joined(found, cluster.place, left[inside], reference.step)
        left = left[~inside]
    beyond = left[left > WELL_BEYOND * reference.spread]
    return [_bump(place, _with_stragglers(members, beyond)) for place, members in found]


def _with_stragglers(members: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Add to a cluster the few remaining trials next to it, up to a distance of its width."""
    low, high, width = members[0], members[-1], np.ptp(members)
    for zone in (
        left[(left < low) & (left >= low - width)],
        left[(left > high) & (left <= high + width)],
    ):
        if len(zone) <= max(LEAST - 1, len(members) // 20):
            members = np.concatenate([members, zone])
    return np.sort(members)


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
    too near.

    Fewer than `DIP_STEPS` steps of the clock apart they are one.

    This restores clusters that the search found in two parts.
    """
    others = []
    for other_place, other in found:
        both = np.concatenate([members, other])
        near = _gap(members, other) < DIP_STEPS * step
        if (
            near
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
    return sum(
        len(part) * math.log(len(part) / len(both) * whole / max(float(part.std()), 1e-3 * whole))
        for part in (a, b)
    )


def _largest(ordered: np.ndarray, reference: Reference, least: float) -> Bump | None:
    """The most significant cluster of an ascending array; None if there is none."""
    for dip in (reference.dip, None):
        found = _scanned(ordered, reference, least, dip)
        if found is not None:
            return found
    found = (
        (shoulder(ordered, reference, least)) if reference.shaped and len(ordered) <= FEW else None
    )
    origin = BEYOND * reference.spread
    return found if found and _shown(ordered, origin, found, least, reference) else None


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
        if dip is not None:
            spacings = np.diff(reference.cumulative(np.r_[origin, ordered])) * np.arange(
                len(ordered), 0, -1
            )
        else:
            spacings = np.diff(ordered, prepend=origin)
        gain, first, last = scan(spacings)
        if gain < LIMIT:
            return None
        mixture = around(ordered, first, last, reference)
        found, width, core = mixture.found(), mixture.width, ordered[first : last + 1]
        if dip is None and not core[0] <= mixture.place <= core[-1]:
            # The mixture does not describe the surroundings: use the dense interval itself.
            found, width = (
                Bump(float(np.median(core)), float(core[0]), float(core[-1]) + 1e-12),
                float(core.std()),
            )
        fits = _shown(ordered, origin, found, least, reference) and width <= WIDEST * (
            1 + found.place
        )
        if fits and (dip is None or mixture.stands_out(dip)):
            return found
        origin, ordered = float(ordered[last]), ordered[last + 1 :]
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
