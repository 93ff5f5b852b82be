"""Effective sample size of dependent trials, estimated from exceedances of high thresholds.

Slow calls that come in bursts carry less information about their rate than the same number of
isolated ones. How much less depends on the size of the bursts, which is estimated at the deadline
itself, if there are misses, and at high thresholds: by the extremal index (the reciprocal of the
mean number of exceedances per burst), and by the dispersion of the counts. Real recordings fail
tests of independence in the bulk while their tail may be independent, so the bulk is not tested.

Properties: if there is no significant dependence, the effective sample size is n. At a miss rate of
exactly the allowed one, MET occurs in at most 5 % of simulated recordings of autoregressions with
coefficients of 0.3 to 0.95, and of moving maxima of 2 to 10 trials, in which other slow calls show
the dependence. It does not hold where only misses come in bursts (`bursts.py`). Limits: dependence
too weak to be detected adds up to 0.1 % to that in the shortest recordings that can prove MET. A
burst that was not recorded, or with one miss only, cannot be detected. If a bad state occurs fewer
than about three times per length of the recording, it may be absent from the recording by chance.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lstm_judge.read.whole import Bins
from lstm_judge.statistics.bursts import BY_CHANCE, covariance, initial_positive
from lstm_judge.statistics.quantiles import rate_bounds
from lstm_judge.statistics.trials import Trials
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.format import count
from lstm_trt.config.libraries import special

#: Numbers of blocks for the dispersion of the counts of events.
DISPERSION_BLOCKS = (10, 20, 50)


def effective_n(events: np.ndarray) -> float:
    """Effective sample size for an event rate, at most n.

    `events`: bool, one per trial. n divided by the largest dispersion of the counts in 10, 20 and
    50 blocks (variance over that of the binomial). Conservative: about a third below n for
    independent trials.
    """
    n = len(events)
    rate = float(np.mean(events))
    if not 0 < rate < 1:
        return float(n)
    dispersion = 1.0
    for blocks in DISPERSION_BLOCKS:
        size = n // blocks
        if size < 2:
            break
        counts = events[: blocks * size].reshape(blocks, size).sum(axis=1)
        variance = float(((counts - size * rate) ** 2).sum()) / (blocks - 1)
        dispersion = max(dispersion, variance / (size * rate * (1 - rate)))
    return n / dispersion


#: At most this number of blocks, in which exceedances are counted: few, since each configuration of
#: a summary has them.
MOST_BLOCKS = 256


def independent_n(rounds: Sequence[Trials], limits_ns: Sequence[float]) -> list[int]:
    """As how many independent trials all count for the rate above each limit: n over the
    autocorrelation time.

    `rounds`: the trials of each process; what differs between processes is not counted. The time is
    1 + 2 times the sum of the autocorrelations over the `initial_positive` sequence. n if it is
    below `BY_CHANCE`, or the order is unknown, as of a histogram.
    """
    n = sum(each.n for each in rounds)
    if any(isinstance(each.whole, Bins) for each in rounds):
        return [n] * len(limits_ns)
    step = max(each.step for each in rounds)
    lengths = [len(each.latency_ns) for each in rounds]
    block = -(-sum(lengths) // MOST_BLOCKS)
    found = []
    for limit_ns in limits_ns:
        alone = 0.0
        counts = []
        for each in rounds:
            above = each.latency_ns > limit_ns
            rate = above.mean()
            alone += len(above) * rate * (1 - rate)
            blocks = len(above) // block
            counts.append(above[: blocks * block].reshape(-1, block).sum(axis=1) - block * rate)
        sums = initial_positive(partial(covariance, counts), max(lengths) // block)
        time = sums / max(alone, 1e-9)
        # One of each `step` trials was looked at.
        found.append(n if time < BY_CHANCE else _two_digits(n / (1 + (time - 1) * step)))
    return found


def _two_digits(number: float) -> int:
    """At most this number, at least 1; few different ones, for which bounds need to be found."""
    unit = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return max(1, int(number // unit * unit))


#: Maximum gaps, in trials, between two exceedances of one burst.
WINDOWS = (1, 4, 16, 64)

#: A window is tested only if less than this share of the gaps falls into it by chance.
CROWDED = 0.25

#: Numbers of the largest latencies that are tested, besides twice the allowed number of misses if
#: that is more.
LARGEST = (30, 100)

#: Confidence of the bound on the length of bursts of misses.
BURSTS = 0.95

#: Above this number of gaps the binomial distribution is used instead of the exact one.
MOST_EXACT = 5000

#: Minimum number of misses for the test of their counts per block.
COUNTED = 10

#: Probability of a false alarm for independent trials: tests of the largest latencies, of the
#: misses, of their counts.
FALSE_ALARM, FALSE_ALARM_MISSES, FALSE_ALARM_COUNTS = 6e-4, 0.1, 0.01

#: The local level is the running median of this number of blocks of this number of trials.
LEVEL_BLOCK = 25
LEVEL_BLOCKS = 11

#: With fewer trials there is no local level, and a drift of the bulk looks like bursts of the
#: largest latencies.
LEVEL_TRIALS = 2 * LEVEL_BLOCK * LEVEL_BLOCKS


#: Ascending indices of exceedances, an array per process.
Places = Sequence[np.ndarray]

#: Places of trials, and a value of each.
Values = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Dependence(JsonFields):
    """Dependence of the trials; `factor` (0 to 1) times n is the effective sample size.

    `extremal_index` and `dispersion` are the estimates for the set of exceedances that gave the
    factor, the most clustered one; both are 1 if no clustering is significant. `exceedances` is
    the size of that set, `at_deadline` whether these are the misses. `how` is a description as
    text, empty if no clustering is significant.
    """

    factor: float = 1.0
    extremal_index: float = 1.0
    dispersion: float = 1.0
    exceedances: int = 0
    at_deadline: bool = False
    how: str = ""

    def effective(self, misses: int, n: int) -> tuple[int, int]:
        """Effective numbers of misses and of trials, whole numbers whose rate is no smaller."""
        trials = max(1, math.floor(n * self.factor + 1e-9))
        return -(-misses * trials // n), trials


def assess(
    timed: Sequence[Trials], misses: Places, allowed: float, times: float = 1.0
) -> Dependence:
    """The dependence with the smallest effective sample size of several tests.

    `timed`: trials after warm-up of each process, latencies > 0. `misses`: ascending
    indices of the misses of each process. `allowed`: allowed miss rate. `times`: to plan a
    recording this many times as long, in which misses cluster in the same way; the bound of the
    length of their bursts is then closer to the estimate. The tests are:

    - gaps between misses, or between the largest latencies, in windows of 1 to 64 trials: more
      short gaps than for places drawn at random;
    - the largest ratios to the local level (running median of 275 trials), only if the largest
      latencies cluster: a drift of the bulk moves these to one end, which is not clustering;
    - counts of misses per round and, for at least 10 misses, per block of trials.
    """
    sizes = [process.n for process in timed]
    n = sum(sizes)
    late = Exceedances(misses, sizes)
    found = [Dependence()]
    if late.m >= 2:
        found += [
            _clustering(late, FALSE_ALARM_MISSES, at_deadline=True, times=times),
            *_counts(late),
        ]
    most = max(LARGEST[0], math.ceil(2 * n * allowed))
    found += _of_largest(tuple(timed), most, rate_only=not late.m)
    return min(found, key=lambda dependence: dependence.factor)


@lru_cache(maxsize=2)
def _of_largest(timed: Sequence[Trials], most: int, *, rate_only: bool) -> list[Dependence]:
    """Those of the largest latencies, which are the same at each of several deadlines."""
    sizes = [process.n for process in timed]
    wanted = sorted({min(size, sum(sizes) // 3) for size in (*LARGEST, most)})

    def clustering(of_trials: Sequence[Values], size: int) -> Dependence:
        largest = Exceedances(_largest(of_trials, size), sizes)
        return _clustering(largest, FALSE_ALARM / len(wanted), rate_only=rate_only)

    slow = _slowest(timed, wanted[-1])
    clustered = [size for size in wanted if clustering(slow, size).how]
    if not clustered:
        return []
    ratios = [_to_level(*each) for each in zip(timed, slow, strict=True)]
    return [clustering(ratios, size) for size in clustered]


def _to_level(process: Trials, slow: Values) -> Values:
    """The places, and the latencies there as multiples of the local level."""
    # Of a long recording only the slowest trials have a ratio.
    places, latency_ns = process.above(0.0) if process.step == 1 else slow
    level = local_level(process.latency_ns)
    return places, latency_ns / level[np.minimum(places // process.step, len(level) - 1)]


def local_level(latency_ns: np.ndarray) -> np.ndarray:
    """The running median of about 275 trials; at each trial the maximum over the neighbouring
    blocks.

    The maximum, so that trials next to a step do not count as exceedances. Bursts of up to 100
    trials do not affect it. With fewer than `LEVEL_TRIALS` it is the median of all.
    """
    n = len(latency_ns)
    if n < LEVEL_TRIALS:
        return np.full(n, np.median(latency_ns))
    blocks = n // LEVEL_BLOCK
    medians = np.median(latency_ns[: blocks * LEVEL_BLOCK].reshape(blocks, LEVEL_BLOCK), axis=1)
    padded = np.pad(medians, LEVEL_BLOCKS // 2, mode="reflect")
    running = np.median(sliding_window_view(padded, LEVEL_BLOCKS), axis=1)
    running = sliding_window_view(np.pad(running, 1, mode="edge"), 3).max(axis=1)
    return running[np.minimum(np.arange(n) // LEVEL_BLOCK, blocks - 1)]


def _slowest(timed: Sequence[Trials], count: int) -> list[Values]:
    """Of each process places and latencies of trials, among them the (count + 1) slowest of all
    processes."""
    least = min(float(process.ordered_ns[max(process.n - count - 1, 0)]) for process in timed)
    return [process.above(np.nextafter(least, 0)) for process in timed]


def _largest(of_trials: Sequence[Values], count: int) -> list[np.ndarray]:
    """Ascending places, an array per process, of values above the (count + 1)th largest of all."""
    pooled = np.concatenate([values for _, values in of_trials])
    rank = len(pooled) - count - 1
    threshold = np.partition(pooled, rank)[rank]
    return [places[values > threshold] for places, values in of_trials]


@dataclass(frozen=True)
class Exceedances:
    """Calls that miss, or are above a threshold: their places in each process, and its trials."""

    places: Places
    sizes: Sequence[int]

    @cached_property
    def m(self) -> int:
        """Their number."""
        return sum(map(len, self.places))

    @cached_property
    def gaps(self) -> np.ndarray:
        """Distances of neighbouring ones of one process."""
        return np.concatenate([np.diff(place) for place in self.places])

    def short(self, window: int) -> int:
        """Number of gaps of at most `window`."""
        return int(np.count_nonzero(self.gaps <= window))

    def share_by_chance(self, window: int) -> float:
        """P(gap <= window) for places drawn at random."""
        shares = []
        gaps = []
        for place, n in zip(self.places, self.sizes, strict=True):
            shares.append(_short_by_chance(len(place), n, window))
            gaps.append(max(len(place) - 1, 0))
        return float(np.average(shares, weights=gaps))

    def chance(self, window: int, short: int, by_chance: float) -> float:
        """P(at least `short` gaps of at most `window`) for places drawn at random; exact or an
        upper bound.

        `by_chance`: the share of `share_by_chance`. Wider windows than 1: gaps are negatively
        associated, so the binomial is at least as variable.
        """
        if short == 0:
            return 1.0
        gaps = len(self.gaps)
        if window == 1 and gaps <= MOST_EXACT:
            law = _law_of_neighbours(tuple(map(len, self.places)), tuple(self.sizes))
            return float(law[short:].sum())
        return float(special.betainc(short, gaps - short + 1, min(by_chance, 1)))

    def dispersion(self, window: int) -> float:
        """Variance over mean of counts in series much longer than the window: 1 + 2 (pairs -
        expected) / m.

        The variance-time curve of a stationary series of events, from pairs at most `window` trials
        apart (Cox and Lewis, The Statistical Analysis of Series of Events, 1966, 4.5).
        """
        excess = 0.0
        for place, n in zip(self.places, self.sizes, strict=True):
            m = len(place)
            lags = min(window, n - 1)
            pairs = np.searchsorted(place, place + window, "right") - np.arange(m) - 1
            by_chance = m * (m - 1) / (n * max(n - 1, 1)) * (lags * n - lags * (lags + 1) / 2)
            excess += float(pairs.sum()) - by_chance
        return max(1.0, 1 + 2 * excess / self.m)

    def extremal_index(self) -> float:
        """The intervals estimator (Ferro and Segers, J. R. Statist. Soc. B 65, 2003, eq. 5)."""
        gaps = self.gaps.astype(float)
        one, two = (0, 0) if gaps.max() <= 2 else (1, 2)
        squares = len(gaps) * ((gaps - one) * (gaps - two)).sum()
        index = 2 * (gaps - one).sum() ** 2 / squares
        return float(min(1.0, max(index, 1 / (len(gaps) + 1))))


def _clustering(
    found: Exceedances,
    alpha: float,
    *,
    rate_only: bool = False,
    at_deadline: bool = False,
    times: float = 1.0,
) -> Dependence:
    """Dependence by gaps between exceedances, if a window has significantly more short gaps than by
    chance.

    `rate_only`: without a miss only the rate of bursts matters, and the dispersion is ignored. For
    high thresholds the observed share of short gaps is used. For misses, which may be few, its
    upper bound is used, where the end of a burst counts as one more trial; with `times` that of so
    many times as many misses.
    """
    m = found.m
    if not len(found.gaps):
        return Dependence()
    shares = {window: found.share_by_chance(window) for window in WINDOWS}
    tested = [window for window in WINDOWS if window == 1 or shares[window] <= CROWDED]
    alarms = []
    for window in tested:
        short = found.short(window)
        by_chance = shares[window]
        if found.chance(window, short, by_chance) > alpha / len(tested):
            continue
        if at_deadline:
            joined = rate_bounds(times * short, times * m, BURSTS)[1]
            least = 0.1 / m
        else:
            joined = short / len(found.gaps)
            least = 1 / m
        index = max(1 - (joined - by_chance) / (1 - by_chance), least)
        alarms.append((min(1.0, index), window, short))
    if not alarms:
        return Dependence()
    index, window, short = min(alarms)
    index = min(index, found.extremal_index())
    dispersion = max(found.dispersion(window) for _, window, _ in alarms)
    factor = index if rate_only else min(index, 1 / dispersion)
    what = "misses" if at_deadline else "largest latencies"
    how = (
        f"{short} of the {m} {what} come{'s' if short == 1 else ''} within "
        f"{count(window, 'trial')} of the previous one"
    )
    return Dependence(factor, index, dispersion, m, at_deadline, how)


@lru_cache(maxsize=4096)
def _short_by_chance(m: int, n: int, window: int) -> float:
    """The same for m places of n: P(gap > w) = C(n - w, m) / C(n, m)."""
    return float(1 - np.prod(np.clip(1 - m / np.maximum(n - np.arange(window), 1), 0, 1)))


@lru_cache(maxsize=1024)
def _law_of_neighbours(numbers: tuple[int, ...], sizes: tuple[int, ...]) -> np.ndarray:
    """P(0, 1, ... gaps of 1) for m of n places drawn at random, `numbers` and `sizes` of each
    process.

    m minus the number of runs, which is hypergeometric (Stevens, Annals of Eugenics 9, 1939),
    summed over processes.
    """

    def log_choose(n, k):
        return special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)

    law = np.ones(1)
    for m, n in zip(numbers, sizes, strict=True):
        if m < 2:
            continue
        joined = np.arange(max(0, 2 * m - n - 1), m)
        logs = log_choose(m - 1, joined) + log_choose(n - m + 1, m - joined) - log_choose(n, m)
        law = np.convolve(law, np.r_[np.zeros(joined[0]), np.exp(logs)])
    return law


def _counts(late: Exceedances) -> Iterator[Dependence]:
    """Dispersion of the counts of misses per round and per block of trials, if significant."""
    bounds = np.cumsum([0, *late.sizes])
    pooled = np.concatenate(
        [start + place for start, place in zip(bounds, late.places, strict=False)]
    )
    alpha = FALSE_ALARM_COUNTS
    if len(late.sizes) > 1:
        yield _counted(pooled, bounds, alpha, f"{len(late.sizes)} rounds")
    if late.m >= COUNTED:
        numbers = [late.m // 5 >> halved for halved in range(8)]
        numbers = [number for number in numbers if number >= 2]
        for number in numbers:
            edges = np.linspace(0, bounds[-1], number + 1).round()
            yield _counted(
                pooled, edges, alpha / len(numbers), f"{number} equal parts of the recording"
            )


def _counted(places: np.ndarray, edges: np.ndarray, alpha: float, parts: str) -> Dependence:
    """Chi-squared over its degrees of freedom, if the counts, or the largest alone (exact), are
    significant."""
    counts = np.histogram(places, edges)[0]
    shares = np.diff(edges) / edges[-1]
    total = len(places)
    cells = len(counts)
    expected = total * shares
    statistic = float(((counts - expected) ** 2 / expected).sum())
    here = counts > expected
    alone = special.betainc(counts[here], total - counts[here] + 1, shares[here]).min(initial=1.0)
    together = float(special.chdtrc(cells - 1, statistic)) if expected.min() >= 5 else 1.0
    dispersion = statistic / (cells - 1)
    if min(alone * cells, together) > alpha / 2 or dispersion <= 1:
        return Dependence()
    return Dependence(
        1 / dispersion,
        1.0,
        dispersion,
        total,
        True,
        f"{counts.max()} of the {total} misses are in one of {parts}",
    )
