"""Clusters among the late trials, and what is only the smooth tail of the body.

Trials come as multiples of the local level. A cluster is a place beyond the body at which trials
become denser again. Two tests look for it, both exact for given order statistics:

- density: where the density of the trials never rises beyond the body, as in every body with one
  peak, the share of a stretch that lies before a dense piece of it is at most Beta distributed;
- hazard: the same with the total time on test instead of the length (Barlow and Proschan,
  Statistical theory of reliability, 1975), in a coordinate in which the tail of a normal body is
  exponential. A tail as light as the normal's or heavier (lognormal, exponential, Student's t)
  never falls faster again; a cluster does, also where the body reaches into it.

Both are scanned over all stretches; the limit holds for the largest of all of them. The second
counts only well outside the body and where the dip can be seen. What is found is separated from
what is around it by the two densities, taken out, and the search goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lstm_trt.analysis.clusters_mixture import DIP, FEW, WELL_BEYOND, WIDEST, Found, around, shoulder
from lstm_trt.analysis.clusters_scan import BEYOND, LEAST, Reference, scan

#: Log likelihood ratio that the scan's maximum reaches by chance in under 1 % of smooth tails
#: (simulated: 99th percentile 5.0 at 10 trials beyond the body, 8.5 at 100, 9.3 at 10 000).
LIMIT = 9.5
#: Trials faster than the body make no answer late; they are a cluster from this share on.
FAST_SHARE = 0.01
#: Clusters at most on a side.
MOST = 8
#: Log likelihood ratio from which on two neighbours are two clusters.
TWO = 6.0
#: As DIP, where the clock is so coarse that the body's shape is not known.
CLEAR_DIP = 0.5


@dataclass(frozen=True)
class Bump:
    """A cluster: its place, and the half-open range of its trials, as multiples of the local level."""

    multiplier: float
    low: float
    high: float


def find_bumps(ratios: np.ndarray, body: np.ndarray | None = None, step: float = 0.0) -> tuple[Bump, ...]:
    """Clusters among multiples of the local level (any order, > 0), from the fastest to the slowest.

    `body` (bool), where it is known already, marks the trials whose spread counts. `step` is the
    clock's, as a multiple: nearer than two steps to the level there is no cluster.
    """
    quarter, middle, three = np.percentile(ratios if body is None else ratios[body], [25, 50, 75])
    spread = max(min(middle - quarter, three - middle) / 0.6745, 1e-7)
    shaped = step <= 1.2 * spread  # else the body is a few steps of the clock: only gaps and dips can be told
    spread = max(spread, 0.6 * step)
    slow = _side(ratios - 1, spread, LEAST, shaped)
    slow = [Bump(1 + one.place, 1 + one.low, 1 + one.high) for one in slow]
    fast = _side(-np.log(ratios), spread, max(LEAST, FAST_SHARE * len(ratios)), shaped)
    fast = [Bump(math.exp(-one.place), math.exp(-one.high), math.exp(-one.low)) for one in fast]
    return tuple(sorted((*fast, *slow), key=lambda bump: bump.multiplier))


def _side(away: np.ndarray, spread: float, least: float, shaped: bool) -> list[Found]:
    """Clusters on the side where `away`, the distance from the level, is positive."""
    left = np.sort(away[away > BEYOND * spread])
    found: list[tuple[float, np.ndarray]] = []
    reference = Reference(len(away), spread)
    for _ in range(MOST):
        one = _largest(left, reference, least, shaped) if len(left) >= LEAST else None
        if one is None:
            break
        inside = (left >= one.low) & (left < one.high)
        found = _joined(found, one.place, left[inside])
        left = left[~inside]
    beyond = left[left > WELL_BEYOND * spread]
    whole = [(place, _with_stragglers(members, beyond)) for place, members in found]
    # Ranges are a rounding error wider than their trials, since multiples are computed from them.
    return [
        Found(_place(place, members), float(members[0]) - 1e-12, float(members[-1]) + 1e-12) for place, members in whole
    ]


def _with_stragglers(members: np.ndarray, left: np.ndarray) -> np.ndarray:
    """A cluster with the few trials that a fit to few trials left beside it, within the width of the cluster."""
    low, high, width = members[0], members[-1], np.ptp(members)
    for zone in (left[(left < low) & (left >= low - width)], left[(left > high) & (left <= high + width)]):
        if len(zone) <= max(LEAST - 1, len(members) // 20):
            members = np.concatenate([members, zone])
    return np.sort(members)


def _place(place: float, members: np.ndarray) -> float:
    """The fitted place, or the trials' median where that is another by more than its error: no normal cluster."""
    median = float(np.median(members))
    return place if abs(place - median) <= 2.5 * float(members.std()) / math.sqrt(len(members)) else median


def _joined(found: list[tuple[float, np.ndarray]], place: float, members: np.ndarray) -> list[tuple[float, np.ndarray]]:
    """Clusters with a new one, put together with those that two normal clusters explain hardly better than one.

    What a search leaves of a cluster, beside the range where it is the denser one, comes back so.
    """
    others = []
    for other_place, other in found:
        both = np.concatenate([members, other])
        if _gain(members, other, both) < TWO or _beside(members, other) or _beside(other, members):
            place = (place * len(members) + other_place * len(other)) / len(both)
            members = np.sort(both)
        else:
            others.append((other_place, other))
    return [*others, (place, members)]


def _beside(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether one is much the smaller and lies at the edge of the other."""
    gap = max(other[0] - one[-1], one[0] - other[-1])
    return 4 * len(one) < len(other) and max(gap, np.ptp(one) / 3) < np.ptp(other) / 8


def _gain(one: np.ndarray, other: np.ndarray, both: np.ndarray) -> float:
    """Log likelihood ratio of two normal clusters over one, each trial of the cluster it is in."""
    if one[0] < other[-1] and other[0] < one[-1]:
        return 0.0
    whole = max(float(both.std()), 1e-12)
    return sum(
        len(part) * math.log(len(part) / len(both) * whole / max(float(part.std()), 1e-3 * whole))
        for part in (one, other)
    )


def _largest(ordered: np.ndarray, reference: Reference, least: float, shaped: bool) -> Found | None:
    """The cluster that stands out most of an ascending array, None where none does.

    `shaped`: whether the body's shape is known well enough to compare tails with it.
    """
    for dip in (DIP if shaped else CLEAR_DIP, None):
        found = _scanned(ordered, BEYOND * reference.spread, reference, least, dip)
        if found is not None:
            return found
    mixture = shoulder(ordered, reference, least) if shaped and len(ordered) <= FEW else None
    if mixture is not None and _enough(ordered, mixture.found(), least):
        return mixture.found()
    return None


def _scanned(ordered: np.ndarray, origin: float, reference: Reference, least: float, dip: float | None) -> Found | None:
    """The cluster of the scan's largest ratio or, where that is none, of the stretches beyond it.

    With a `dip` the hazard is scanned, and the density before a cluster is at most this share of its own.
    """
    while len(ordered) >= LEAST:
        if dip is not None:
            spacings = np.diff(reference.cumulative(np.r_[origin, ordered])) * np.arange(len(ordered), 0, -1)
        else:
            spacings = np.diff(ordered, prepend=origin)
        gain, first, last = scan(spacings)
        if gain < LIMIT:
            return None
        mixture = around(ordered, first, last, reference)
        found, width, core = mixture.found(), mixture.width, ordered[first : last + 1]
        if dip is None and not core[0] <= mixture.place <= core[-1]:
            # Its surroundings are nothing that two curves describe: the dense stretch itself is the answer.
            found, width = Found(float(np.median(core)), float(core[0]), float(core[-1]) + 1e-12), float(core.std())
        fits = _enough(ordered, found, least) and width <= WIDEST * (1 + found.place)
        if fits and (dip is None or mixture.stands_out(dip)):
            return found
        origin, ordered = float(ordered[last]), ordered[last + 1 :]
    return None


def _enough(ordered: np.ndarray, found: Found, least: float) -> bool:
    return int(np.count_nonzero((ordered >= found.low) & (ordered < found.high))) >= least
