"""Whether late trials come at a fixed period: by the times between them, not by their numbers.

A timer that hits whichever trial is under way makes trials late every so many milliseconds,
however many trials fit in between. The times from one late trial to the next are then multiples
of the period, of the period itself most often; a beat that was missed or a late trial of another
origin spoils a few of them. Periodograms lock onto harmonics; a count of intervals near
multiples does not, since for half the period twice as many are expected by chance. Late trials
also bunch without any timer; their intervals are then short, but as many beside a multiple as at it.
Intervals are whole numbers of trials, so that windows are as wide as the trials are apart, and how
many fall into one of them by chance is counted on trials drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: A period is named where so many intervals near its multiples come by chance in one of so many samples.
ALPHA = 1e-3
#: The same of the windows beside those, which the best of many candidates has to pass.
ALPHA_BESIDE = 1e-4
#: Multiples that are looked at, intervals at least, and random ones to compare with: so many, or so many times as many.
MULTIPLES, LEAST, RANDOM, TIMES = 6, 4, 8000, 10
#: A multiple of the best period is taken where this share of its intervals are near the multiple's.
HARMONIC = 0.8
#: How far an interval may be off, as a share of the period, beyond the usual time from one trial to the next.
OFF = 0.005
#: A period is at least so many times that: below, neighbours that share their lot look the same as a timer.
SPACINGS = 5
#: Windows beside each multiple, which a smooth distribution of intervals fills as much, so many reaches away.
BESIDE = 2.2
#: Random intervals in these windows, a third of them at a multiple, that are added to those counted.
PRIOR = 30


@dataclass(frozen=True)
class Period:
    """`period_ms`; of the intervals between late trials, `share` are within reach of its multiples."""

    period_ms: float
    share: float


def find_period(starts_ns: Sequence[np.ndarray], members: Sequence[np.ndarray], latency_ns: float) -> Period | None:
    """The period of marked trials, None where their times show none.

    `starts_ns`: ascending times of the trials of each sample; `members`: bool, the marked
    ones; `latency_ns`: the usual length of a trial. By that, or by the usual time to the next
    trial where it is more, a start may lie before the beat.
    """
    intervals, random, spacings = [], [], []
    generator = np.random.default_rng(5)
    marked = sum(int(np.count_nonzero(one)) for one in members)
    for starts, member in zip(starts_ns, members, strict=True):
        if np.count_nonzero(member) < 2:
            continue
        intervals.append(_intervals(starts, np.flatnonzero(member)))
        random += _random_intervals(starts, int(np.count_nonzero(member)), generator)
        spacings.append(np.diff(starts))
    if not intervals:
        return None
    intervals, random = np.sort(np.concatenate(intervals)), np.sort(np.concatenate(random))
    if len(intervals) < LEAST or marked < LEAST:
        return None
    return _best(intervals, random, max(latency_ns, float(np.median(np.concatenate(spacings)))))


def _intervals(starts: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Times between late trials; where one beat hit trials in a row the first of them counts."""
    first = places[np.diff(places, prepend=-2) > 1]
    return np.diff(starts[first]).astype(np.float64)


def _random_intervals(starts: np.ndarray, count: int, generator: np.random.Generator) -> list[np.ndarray]:
    """The same for as many trials drawn at random, so often that they are many."""
    drawn, total = [], 0
    while total < max(RANDOM, TIMES * count) and len(drawn) < RANDOM // 20:
        places = np.sort(generator.choice(len(starts), count, replace=False, shuffle=False))
        drawn.append(_intervals(starts, places))
        total += len(drawn[-1])
    return drawn


def _best(intervals: np.ndarray, random: np.ndarray, spacing_ns: float) -> Period | None:
    from scipy.special import bdtrc

    n = len(intervals)
    # Parts of intervals too: with few trials to a period, no single interval need be near it.
    chosen = (intervals[np.linspace(0, n - 1, min(n, 400 // part)).astype(int)] / part for part in (1, 2, 3))
    candidates = np.unique(np.concatenate(list(chosen)))
    candidates = candidates[candidates > SPACINGS * spacing_ns]
    if not len(candidates):
        return None
    near, expected = (_near(ordered, candidates, spacing_ns) for ordered in (intervals, random))
    chance = (expected + 1) / (len(random) + 1)
    # Given both counts, that of the marked ones is binomial where they are as frequent.
    p_values = bdtrc(near - 1, near + expected, n / (n + len(random)))
    p_values = np.where(near > n * chance, p_values, 1.0)
    best = int(np.lexsort((-near / n + chance, p_values))[0])
    period, count = candidates[best], int(near[best])
    if p_values[best] * len(candidates) > ALPHA or count < LEAST:
        return None
    # Strays can lift a harmonic: the longest period that explains nearly as many is the timer's.
    for times in (2, 3):
        if _near(intervals, np.array([times * period]), spacing_ns)[0] >= HARMONIC * count:
            period = times * period
            break
    for _ in range(5):
        beats = np.maximum(np.round(intervals / period), 1)
        inside = (np.abs(intervals - beats * period) <= _reach(period, spacing_ns)) & (beats <= MULTIPLES)
        if not inside.any():
            return None
        period = float(intervals[inside].sum() / beats[inside].sum())
    at, beside = (int(_near(intervals, np.array([period]), spacing_ns, aside)[0]) for aside in ((0,), (-1, 1)))
    random_at, random_beside = (_near(random, np.array([period]), spacing_ns, aside)[0] for aside in ((0,), (-1, 1)))
    share = float(random_at + PRIOR / 3) / float(random_at + random_beside + PRIOR)
    # Intervals that know no beat lie in the three windows as random ones do.
    if not at or bdtrc(at - 1, at + beside, share) > ALPHA_BESIDE:
        return None
    return Period(period / 1e6, float(np.mean(inside)))


def _reach(periods, spacing_ns: float):
    """Half the width of a window; three of them fit side by side from one multiple to the next."""
    return np.minimum(spacing_ns + OFF * periods, periods / (2 * BESIDE + 2))


def _near(ordered: np.ndarray, periods: np.ndarray, spacing_ns: float, asides: tuple[int, ...] = (0,)) -> np.ndarray:
    """How many of ascending intervals lie in windows at the first multiples of each period (0), or beside them."""
    reach = _reach(periods, spacing_ns)
    counts = np.zeros(len(periods), dtype=np.int64)
    for multiple in range(1, MULTIPLES + 1):
        for aside in asides:
            middle = multiple * periods + aside * BESIDE * reach
            counts += np.searchsorted(ordered, middle + reach, "right")
            counts -= np.searchsorted(ordered, middle - reach, "left")
    return counts
