"""Periods and causes of slow trials.

Period: a timer interrupts the trial that is running every few milliseconds, whatever the number of
trials in between. The intervals between slow trials are then multiples of the period, most often
the period itself, except where an interrupt fell between trials or a slow trial has another cause.
Periodograms lock onto harmonics. A count of intervals near multiples does not, because for half
the period twice as many are expected by chance. Slow trials can also cluster in time without a
timer; their intervals are then short, but as frequent next to a multiple as at it. An interval is
a whole number of trials, so the windows are as wide as the spacing of the trials, and the expected
number in a window is estimated from trials drawn at random.

Causes: odds ratios, exact tests, and Holm's correction over all of them. Counters that are read at
every trial are tested by runs of slow trials, within short parts of each round: both may be more
frequent at its start without one causing the other. Circular shifts of the events within a round
would not show this, because they move that start too. Where a state lasts longer than a part, its
slow trials and their events have little to be compared with, and the cause may stay unnamed
(docs/evidence.md). Counters that are read between blocks have one value for all trials of a block,
so the test counts blocks (Fisher's exact test). The control run, an empty step with the same
arrivals, shows the noise of the machine itself. An association is not proof of a cause.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lstm_judge.outcomes import CountedBy
from lstm_judge.read.rounds import Round
from lstm_judge.statistics.bursts import autocorrelation_time, runs_of
from lstm_judge.statistics.quantiles import rate_bounds
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.libraries import special

#: Significance level of a period, over all candidates.
PERIOD_ALPHA = 1e-3

#: Significance level of the comparison with the windows next to the multiples.
ALPHA_BESIDE = 1e-4

#: Multiples that are examined; minimum number of intervals; random intervals to compare with: this
#: many, and at least this many times the number of slow trials.
MULTIPLES, LEAST, RANDOM, TIMES = 6, 4, 8000, 10

#: A multiple of the best period is preferred if it has at least this share of the intervals of the
#: best period.
HARMONIC = 0.8

#: Tolerance of an interval as a share of the period, in addition to the usual spacing of the
#: trials.
OFF = 0.005

#: Minimum period in spacings of the trials: below, correlated neighbours look the same as a timer.
SPACINGS = 5

#: Distance of the windows next to a multiple, in half-widths; intervals without a period fill them
#: equally.
BESIDE = 2.2

#: Pseudo-count of random intervals in these windows, a third of them at a multiple.
PRIOR = 30


#: Periods in ms of timers of Linux that often interrupt a program: kernel ticks (`CONFIG_HZ`), the
#: default of `cpu.max`, and `vm.stat_interval`.
USUAL_PERIODS = {
    1.0: "period of a 1 kHz kernel tick",
    4.0: "period of a 250 Hz kernel tick",
    10.0: "period of a 100 Hz kernel tick",
    100.0: "period of a cgroup's CPU quota",
    1000.0: "period of the kernel's memory statistics",
}

#: A period may differ from a usual one by this many standard errors.
PERIOD_ERRORS = 3


@dataclass(frozen=True)
class Period:
    """A period and its standard error, from the distances of the intervals to the multiples of the
    period."""

    ms: float
    error_ms: float

    @property
    def hint(self) -> str | None:
        """What usually has this period, which is no proof that it is the cause; None if nothing
        known has."""
        for ms, hint in USUAL_PERIODS.items():
            if abs(self.ms - ms) <= PERIOD_ERRORS * self.error_ms:
                return hint
        return None


def find_period(
    starts_ns: Sequence[np.ndarray], members: Sequence[np.ndarray], latency_ns: float
) -> Period | None:
    """The period of marked trials; None if there is none.

    `starts_ns`: ascending start times of the trials of each round. `members`: bool, the marked
    trials. `latency_ns`: typical duration of a trial. A start may precede the timer's event by
    this duration, or by the typical spacing of the trials if that is more.
    """
    marked = []
    for starts, member in zip(starts_ns, members, strict=True):
        places = np.flatnonzero(member)
        if len(places) > 1:
            marked.append((starts, places))
    intervals = [_intervals(starts, places[np.newaxis]) for starts, places in marked]
    if sum(map(len, intervals)) < LEAST:
        return None
    found = np.sort(np.concatenate(intervals))
    typical_ns = np.median(np.concatenate([np.diff(starts) for starts, _ in marked]))
    spacing_ns = max(latency_ns, float(typical_ns))
    candidates = _candidates(found, spacing_ns)
    if _near(found, candidates, spacing_ns).max(initial=0) < LEAST:
        return None
    generator = np.random.default_rng(5)
    by_chance = np.concatenate(
        [_random_intervals(starts, len(places), generator) for starts, places in marked]
    )
    by_chance.sort()
    candidate = _candidate(candidates, found, by_chance, spacing_ns)
    period = None if candidate is None else _refined(found, candidate, spacing_ns)
    if period is None or not _is_at_multiples(found, by_chance, 1e6 * period.ms, spacing_ns):
        return None
    return period


def _intervals(starts: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Times between the marked trials of each row; of consecutive ones only the first counts."""
    rows, columns = np.nonzero(np.diff(places, prepend=-2) > 1)
    between = np.diff(starts[places[rows, columns]])
    return between[rows[1:] == rows[:-1]].astype(np.float64)


def _random_intervals(starts: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """`_intervals` of `count` trials drawn at random, repeated until there are enough."""
    wanted = max(RANDOM, TIMES * count)
    drawn: list[np.ndarray] = []
    total = times = 0
    while total < wanted and times < RANDOM // 20:
        # A repetition has at most count - 1 intervals, so at least this many are needed.
        needed = min(math.ceil((wanted - total) / (count - 1)), RANDOM // 20 - times)
        places = [
            generator.choice(len(starts), count, replace=False, shuffle=False)
            for _ in range(needed)
        ]
        drawn.append(_intervals(starts, np.sort(places, axis=1)))
        total += len(drawn[-1])
        times += needed
    return np.concatenate(drawn)


def _candidates(intervals: np.ndarray, spacing_ns: float) -> np.ndarray:
    """The periods that are tried: intervals, and halves and thirds of them, because with few trials
    per period no interval need be near the period."""
    n = len(intervals)
    parts = []
    for part in (1, 2, 3):
        chosen = np.linspace(0, n - 1, min(n, 400 // part)).astype(int)
        parts.append(intervals[chosen] / part)
    candidates = np.unique(np.concatenate(parts))
    return candidates[candidates > SPACINGS * spacing_ns]


def _candidate(
    candidates: np.ndarray, intervals: np.ndarray, random: np.ndarray, spacing_ns: float
) -> float | None:
    """The most significant period, by the intervals near its multiples; None if there is none.

    Under the null hypothesis the count of the marked trials, given the sum of both counts, is
    binomial.
    """
    n = len(intervals)
    near = _near(intervals, candidates, spacing_ns)
    expected = _near(random, candidates, spacing_ns)
    chance = (expected + 1) / (len(random) + 1)
    p_values = special.bdtrc(near - 1, near + expected, n / (n + len(random)))
    p_values[near <= n * chance] = 1.0
    best = int(np.lexsort((-near / n + chance, p_values))[0])
    period = candidates[best]
    count = int(near[best])
    if p_values[best] * len(candidates) > PERIOD_ALPHA or count < LEAST:
        return None
    # The best candidate can be a harmonic: take the longest period that explains nearly as many
    # intervals.
    for times in (2, 3):
        if _near(intervals, times * period, spacing_ns) >= HARMONIC * count:
            return times * period
    return period


def _refined(intervals: np.ndarray, period_ns: float, spacing_ns: float) -> Period | None:
    """The period by the intervals near its multiples; None if none is."""
    error_ns = 0.0
    for _ in range(5):
        beats = np.maximum(np.round(intervals / period_ns), 1)
        near = np.abs(intervals - beats * period_ns) <= _reach(period_ns, spacing_ns)
        near &= beats <= MULTIPLES
        if not near.any():
            return None
        total = beats[near].sum()
        period_ns = float(intervals[near].sum() / total)
        error_ns = float(np.linalg.norm((intervals - beats * period_ns)[near]) / total)
    return Period(period_ns / 1e6, error_ns / 1e6)


def _is_at_multiples(
    intervals: np.ndarray, random: np.ndarray, period_ns: float, spacing_ns: float
) -> bool:
    """Whether intervals are at multiples more often than beside them.

    Those without a period are distributed over the three windows like random ones.
    """
    at, random_at = (_near(each, period_ns, spacing_ns) for each in (intervals, random))
    beside, random_beside = (
        _near(each, period_ns, spacing_ns, -1) + _near(each, period_ns, spacing_ns, 1)
        for each in (intervals, random)
    )
    share = (random_at + PRIOR / 3) / (random_at + random_beside + PRIOR)
    return at > 0 and special.bdtrc(at - 1, at + beside, share) <= ALPHA_BESIDE


def _reach(periods, spacing_ns: float):
    """Half the width of a window; three windows fit between multiples."""
    return np.minimum(spacing_ns + OFF * periods, periods / (2 * BESIDE + 2))


def _near(ordered: np.ndarray, periods: Any, spacing_ns: float, aside: int = 0) -> Any:
    """Number of ascending intervals in windows at the first multiples of a period, or next to them:
    before (`aside` -1) or after (1).

    For an array of periods an array.
    """
    reach = _reach(periods, spacing_ns)
    found = 0
    for multiple in range(1, MULTIPLES + 1):
        middle = multiple * periods + aside * BESIDE * reach
        found += np.searchsorted(ordered, middle + reach, "right")
        found -= np.searchsorted(ordered, middle - reach)
    return found


#: Significance level of a cause after Holm's correction.
CAUSE_ALPHA = 0.01

#: Confidence of the intervals of odds ratios.
ODDS_CONFIDENCE = 0.95

#: The control run explains a cluster if its stalls are at least this share of the cluster; and the
#: share that must be exceeded with 95 % confidence.
EXPLAINS = 0.5
SURELY = 0.25

#: Parts of a round within which slow calls are compared with calls of the bulk, because both change
#: with time.
STRATA = 20

#: Maximum number of values of a sum of counts whose law is computed exactly.
EXACT = 5000

#: Slow calls at most so many calls apart are one run.
APART = 2

#: Label of the trials of the bulk.
BULK = -1

CONTROL = "machine noise (control run)"


@dataclass(frozen=True)
class Cause(JsonFields):
    """An event that is associated with a cluster.

    `odds_ratio`: odds of the event in the cluster over those in the bulk (with one half added to
    each count, Haldane and Anscombe), with its 95 % interval (Woolf). `p`: corrected by Holm's
    method over all events and clusters tested. `share` and `share_bulk`: share of the trials of
    the cluster, and of the bulk, that have the event. `by`: the unit of the test, "trial" or
    "block"; or "control": then `odds_ratio` is the rate of stalls of the control run over the
    cluster's share, with its exact interval.
    """

    name: str
    odds_ratio: float
    odds_low: float
    odds_high: float
    p: float
    share: float
    share_bulk: float
    by: CountedBy


@dataclass(frozen=True)
class _Counted:
    """Of the timed trials of a round, whether a counter is above its median, and the labels."""

    round: Round
    has: np.ndarray
    labels: np.ndarray


def odds(table: Iterable[int]) -> tuple[float, float, float]:
    """Odds ratio of [a, b, c, d] with one half added to each, and its interval (Woolf 1955)."""
    a, b, c, d = (count + 0.5 for count in table)
    log = math.log(a * d / (b * c))
    z = float(special.ndtri(1 - (1 - ODDS_CONFIDENCE) / 2))
    reach = z * math.sqrt(1 / a + 1 / b + 1 / c + 1 / d)
    return math.exp(log), math.exp(log - reach), math.exp(min(log + reach, 700))


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p-values (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.maximum.accumulate(factors * np.asarray(p_values)[order])
    return np.minimum(corrected, 1).tolist()


def find_causes(
    rounds: Sequence[Round],
    labels: Sequence[np.ndarray],
    excess_ns: Mapping[int, tuple[float, float]],
) -> dict[int, tuple[Cause, ...]]:
    """For each kind (label), the causes associated with its trials, the most significant first.

    `labels`: labels of the timed trials of each round; those labelled `BULK` are the reference.
    `excess_ns`: range of the excess of each kind's trials over the level; negative for fast trials.
    """
    counters = [
        *_counters(rounds, labels, CountedBy.TRIAL),
        *_counters(rounds, labels, CountedBy.BLOCK),
    ]
    tested: list[tuple[int, Cause]] = []
    for kind in excess_ns:
        for name, by, counted in counters:
            cause = _tested(name, by, counted, kind)
            if cause is not None:
                tested.append((kind, cause))
    found: dict[int, list[Cause]] = {kind: [] for kind in excess_ns}
    for (kind, cause), p in zip(tested, holm([cause.p for _, cause in tested]), strict=True):
        if p <= CAUSE_ALPHA and cause.odds_ratio > 1:
            found[kind].append(replace(cause, p=p))
    for kind, causes in found.items():
        causes.sort(key=lambda cause: (cause.p, -cause.odds_ratio))
        noise = _control(rounds, labels, kind, excess_ns[kind])
        if noise is not None:
            causes.append(noise)
    return {kind: tuple(causes) for kind, causes in found.items()}


def _counters(
    rounds: Sequence[Round], labels: Sequence[np.ndarray], by: CountedBy
) -> Iterator[tuple[str, CountedBy, list[_Counted]]]:
    """The counters of trials, or of blocks, each in the rounds that have it."""
    tables = [round_.causes if by == CountedBy.TRIAL else round_.block_causes for round_ in rounds]
    for name in sorted(set().union(*tables)):
        counted = []
        for round_, table, kinds in zip(rounds, tables, labels, strict=True):
            if name in table:
                counts = round_.timed(table[name])
                has = counts > max(float(np.median(counts)), 0)
                counted.append(_Counted(round_, has, kinds))
        yield name, by, counted


def _tested(name: str, by: CountedBy, counted: Sequence[_Counted], kind: int) -> Cause | None:
    """An event with its uncorrected p-value; None if there is nothing to compare.

    Odds are those of trials, the p-value counts runs of trials, or blocks.
    """
    has = np.concatenate([each.has for each in counted])
    labels = np.concatenate([each.labels for each in counted])
    table = _table(has, labels == kind, labels == BULK)
    a, b, c, d = table
    if not a + b or not c + d:
        return None
    parts = _by_run(counted, kind) if by == CountedBy.TRIAL else _by_block(counted, kind)
    if parts is None:
        return None
    return Cause(name, *odds(table), chance_of(parts), a / (a + b), c / (c + d), by)


def _table(has: np.ndarray, inside: np.ndarray, outside: np.ndarray) -> tuple[int, ...]:
    """Numbers of trials or blocks inside, with and without the cause, and the same outside."""
    return tuple(
        int(np.count_nonzero(cell))
        for cell in (inside & has, inside & ~has, outside & has, outside & ~has)
    )


def _by_run(counted: Sequence[_Counted], kind: int) -> np.ndarray | None:
    """A row for each stratum: the table of runs of slow calls and of runs of the bulk; None without
    an event in both.

    A burst of slow calls, and one of events, so count once each: as many parts of the bulk count as
    one as their autocorrelation time says (`bursts.py`). The parts have the median length of the
    runs, of which no more is looked at, so that a long run is not likelier to contain an event than
    a part. What is compared is near in time: each round has `STRATA` equal parts.
    """
    if not any(np.isin(each.labels[each.has], (kind, BULK)).any() for each in counted):
        return None
    runs = [runs_of(np.flatnonzero(each.labels == kind), APART) for each in counted]
    length = int(np.median(np.concatenate([sizes for _, sizes in runs])))
    inside = []
    outside = []
    events = []
    sizes = []
    for each, (starts, lengths) in zip(counted, runs, strict=True):
        n = len(each.labels)
        stops = starts + np.minimum(lengths, length)
        parts = itertools.starmap(slice, zip(starts, stops, strict=True))
        marked = np.array([each.has[part].any() for part in parts], dtype=bool)
        inside.append(_in_strata(starts, marked, n))
        whole = n // length * length
        bulk = (each.labels[:whole] == BULK).reshape(-1, length)
        kept = np.flatnonzero(2 * bulk.sum(axis=1) >= length)
        marked = (each.has[:whole].reshape(-1, length) & bulk).any(axis=1)[kept]
        outside.append(_in_strata(kept * length, marked, n))
        events.append(np.flatnonzero(marked))
        sizes.append(len(kept))
    # Divided and rounded so that the sums over the strata are right.
    total = np.cumsum(np.concatenate(outside), axis=0)
    scaled = np.diff(np.rint(total / autocorrelation_time(events, sizes)), axis=0, prepend=0)
    return np.hstack([np.concatenate(inside), scaled.astype(int)])


def _in_strata(places: np.ndarray, marked: np.ndarray, n: int) -> np.ndarray:
    """How many of these places among n calls are marked, and how many are not, in each of `STRATA`
    equal parts."""
    cells = 2 * (places * STRATA // n) + ~marked
    return np.bincount(cells, minlength=2 * STRATA).reshape(-1, 2)


def chance_of(tables: np.ndarray) -> float:
    """P(A >= a) of tables [[a, b], [c, d]], rows of `tables`, with the margins of each fixed; A is
    the sum of their a.

    The exact test of Mantel and Haenszel (Birch, Journal of the Royal Statistical Society B 26,
    1964), of one table Fisher's. Where more than `EXACT` values of A are possible, its normal
    approximation.
    """
    a, b, c, d = tables.T
    runs, events, n = a + b, a + c, a + b + c + d
    least = np.maximum(0, runs + events - n)
    most = np.minimum(runs, events)
    if int((most - least).sum()) > EXACT:
        mean = runs * events / np.maximum(n, 1)
        spread = mean * (n - runs) * (n - events) / np.maximum(n * (n - 1.0), 1)
        return float(special.ndtr((mean.sum() - a.sum() + 0.5) / math.sqrt(spread.sum())))
    law = np.ones(1)
    for low, high, row, column, total in zip(least, most, runs, events, n, strict=True):
        values = np.arange(low, high + 1)
        rest = total - row - column + values
        cells = np.array([values, row - values, column - values, rest])
        log_ways = -special.gammaln(cells + 1.0).sum(axis=0)
        law = np.convolve(law, np.exp(log_ways - log_ways.max()))
    return float(law[a.sum() - least.sum() :].sum() / law.sum())


def _by_block(counted: Sequence[_Counted], kind: int) -> np.ndarray | None:
    """The table of blocks, as one row, with many or few of the kind; None if all are, or none is,
    with the cause."""
    marked = []
    shares = []
    for each in counted:
        starts = _blocks(each.round)
        marked.append(each.has[starts])
        sizes = np.diff(starts, append=len(each.labels))
        shares.append(np.add.reduceat(each.labels == kind, starts, dtype=float) / sizes)
    has = np.concatenate(marked)
    share = np.concatenate(shares)
    many = share > np.median(share)
    return np.array([_table(has, many, ~many)]) if 0 < has.sum() < len(has) else None


def _blocks(round_: Round) -> np.ndarray:
    """Where blocks of timed trials start.

    A block ends where a block counter changes, or before warm-up rows. Adjacent blocks with equal
    counts cannot be distinguished this way, so longer runs are cut to the length of a typical
    short one (lower quartile).
    """
    timed = np.flatnonzero(~round_.warmup)
    ends = np.diff(timed) > 1
    for values in round_.block_causes.values():
        ends |= np.diff(values[timed]) != 0
    bounds = [0, *(np.flatnonzero(ends) + 1).tolist(), len(timed)]
    lengths = np.diff(bounds)
    inner = np.sort(lengths[1:-1] if len(lengths) > 2 else lengths)
    length = max(int(inner[len(inner) // 4]), 1)
    starts: list[int] = []
    for start, stop in itertools.pairwise(bounds):
        pieces = max(1, round((stop - start) / length))
        starts += np.linspace(start, stop, pieces + 1).astype(int).tolist()[:-1]
    return np.array(starts)


def _control(
    rounds: Sequence[Round],
    labels: Sequence[np.ndarray],
    kind: int,
    excess_ns: tuple[float, float],
) -> Cause | None:
    """The control run as a cause, if its stalls are frequent enough to explain the slow trials.

    Stalls count from half to twice the excess of the slow trials. The exact interval of the rate
    ratio is that of a binomial share (Clopper and Pearson), given the total number of events.
    """
    low_ns, high_ns = excess_ns
    stalls = calls = count = trials = 0
    for round_, kinds in zip(rounds, labels, strict=True):
        if round_.control_ns is not None and len(round_.control_ns):
            stall_ns = round_.control_ns - np.median(round_.control_ns)
            like = (stall_ns >= low_ns / 2) & (stall_ns <= 2 * high_ns)
            stalls += int(np.count_nonzero(like))
            calls += len(stall_ns)
            count += int(np.count_nonzero(kinds == kind))
            trials += len(kinds)
    if not count or not stalls or low_ns <= 0:
        return None
    times = trials / calls
    ratio = stalls / count * times
    p = float(special.bdtrc(stalls - 1, stalls + count, SURELY / (SURELY + times)))
    if ratio < EXPLAINS or p > 1 - ODDS_CONFIDENCE:
        return None
    # The share is below 1, since `count` is above 0.
    bounds = rate_bounds(stalls, stalls + count, 1 - (1 - ODDS_CONFIDENCE) / 2)
    low, high = (share / (1 - share) * times for share in bounds)
    return Cause(CONTROL, ratio, low, high, p, min(1.0, ratio), stalls / calls, CountedBy.CONTROL)
