"""Segments of constant level or slope in a series of trials: warm-up, drift, steps, steady state.

Change points are searched on medians of blocks, so that clusters with up to 10 % of the trials do
not affect them and a million trials take no longer than ten thousand. Each change is then placed at
the trial where the two levels fit best. The segments give the local level of every trial. Clusters
are searched in multiples of the local level, so that drift and steps do not blur them.

Calls that alternate between several levels, as with two states of a clock, have no course of their
own: the segments are those of each latency over the median of its level (`Levels`), and the shares
of the levels are tested for a trend.

The classes follow Barrett et al., Virtual machine warmup blows hot and cold (OOPSLA 2017): flat,
warm-up (ends faster), slowdown (ends slower), no steady state (not settled at the end).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lstm_judge.outcomes import SteadyState
from lstm_judge.read.rounds import Round
from lstm_judge.read.whole import Bins
from lstm_judge.statistics.quantiles import median
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.format import latency

#: Levels that differ by at most this share count as equal: half of the smallest relevant difference
#: of comparisons.
SAME_LEVEL = 0.01

#: Number of windows for the classification of the course.
WINDOWS = 20

#: A clock's quantum is looked for up to this multiple of the spread of the bulk and this share of
#: the median: wider steps are states. The share of the values that must be near its multiples, as a
#: resonance, and on so many of them.
WIDEST_QUANTUM, LARGEST_QUANTUM, RESONANCE, MULTIPLES, ON_EACH = 2.5, 0.03, 0.6, 3, 0.01

#: Share of distinct values above which no step is looked for: it would be fine, or the values are
#: of several states.
MOST_DISTINCT = 0.5

#: Maximum number of blocks, and minimum number of trials in each.
BLOCKS = 200
BLOCK_TRIALS = 16

#: Shortest segment of constant level, and with a slope, in blocks.
SHORTEST = 2
SHORTEST_SLOPE = 10

#: A level of an alternation has at least this share of the trials, and the density between two
#: levels is at most this share of both of their peaks.
LEAST_SHARE = 0.2
DIP_DENSITY = 0.1

#: Fewest changes between the levels of an alternation.
FEWEST_CHANGES = 10

#: The main level is the fastest with at least this share of the trials at the most frequent one.
MAIN = 0.5

#: Penalties of a change and of a slope in addition to log(blocks), in squared standard errors of a
#: block.
CHANGE_PENALTY = 11.0
SLOPE_PENALTY = 8.0


@dataclass(frozen=True)
class Segment(JsonFields):
    """Timed trials `start` to `stop` (half open), their number, and their median.

    `change`: relative change of the level from the first to the last of these trials, 0 if there
    is no significant slope.
    """

    start: int
    stop: int
    trials: int
    median_us: float
    change: float


@dataclass(frozen=True)
class Levels(JsonFields):
    """Several levels between which the calls of a process alternate, the fastest first.

    `medians_us` and `shares`: of the trials at each level. `shares_first` and `shares_last`: shares
    in the first and the last tenth of the trials if they change significantly, else in all.
    `run_length`: mean number of consecutive trials, of those in memory, at one level. `main`: index
    of the level that `Segments.level_ns` follows. `kinds`: index of the level of each trial, not in
    JSON.
    """

    medians_us: Sequence[float]
    shares: Sequence[float]
    shares_first: Sequence[float]
    shares_last: Sequence[float]
    run_length: float
    main: int
    kinds: np.ndarray = field(repr=False, compare=False)

    @property
    def multiples(self) -> np.ndarray:
        """The medians over that of the main level."""
        return np.divide(self.medians_us, self.medians_us[self.main])

    def others(self, ratios: np.ndarray) -> Iterator[tuple[float, float]]:
        """The range of each other level, up to half-way to the next one or 3 x IQR outside.

        `ratios`: of each trial, over `Segments.level_ns`.
        """
        edges = np.sqrt(self.multiples[1:] * self.multiples[:-1])
        for kind, (least, most) in enumerate(itertools.pairwise([0, *edges, math.inf])):
            if kind != self.main:
                low, high = np.percentile(ratios[self.kinds == kind], [25, 75])
                reach = 3 * (high - low)
                yield max(least, low - reach), min(most, high + reach)

    def weights(self, start: int) -> np.ndarray:
        """How often the like of each trial from `start` on comes if the shares change once more by
        as much."""
        kinds = self.kinds[start:]
        coming = np.clip(2 * np.array(self.shares_last) - self.shares_first, 0, 1)
        here = np.bincount(kinds, minlength=len(coming))
        return (coming * len(kinds) / np.maximum(here, 1))[kinds]


@dataclass(frozen=True)
class Segments:
    """Course of the level over the trials.

    `drift`: level at the last trial over that at the first, minus 1; of several levels that of the
    geometric mean. `level_ns`: local level of every trial; within each segment it is constant, or
    its logarithm is linear. `levels`: None unless trials alternate between several; then the
    segments are those of each latency over the median of its level, times that of the main one.
    `step_ns`: `clock_step` of the trials.
    """

    segments: tuple[Segment, ...]
    steady_state: SteadyState
    drift: float
    level_ns: np.ndarray = field(repr=False)
    levels: Levels | None = None
    step_ns: float = 0.0


#: With a median below this number of steps of the clock, ratios of latencies are those of steps.
FEWEST_STEPS = 3

#: Trials, the first ones, that show the step of a clock.
LOOKED = 10_000


def not_judged(rounds: Sequence[Round]) -> str | None:
    """Why levels, clusters, periods and ratios of these trials are not judged; None if they are.

    A histogram has no order. Where the median is below `FEWEST_STEPS` steps of the clock, ratios
    are those of steps.
    """
    for round_ in rounds:
        if isinstance(round_.whole, Bins):
            return "a histogram has no order"
        latency_ns = round_.timed_ns
        if round_.edges_ns is not None:
            step_ns = float((round_.edges_ns[1] - round_.latency_ns).max())
        else:
            step_ns = clock_step(latency_ns[:LOOKED])
        if median(latency_ns) < FEWEST_STEPS * step_ns:
            return (
                f"the median is below {FEWEST_STEPS} steps of the clock, "
                f"of {latency(step_ns / 1e3)}"
            )
    return None


def segments_of(latency_ns: np.ndarray) -> Segments:
    """Segments of the timed trials of one process, in order (at least one trial)."""
    latency_ns = np.asarray(latency_ns, dtype=np.float64)
    step_ns = clock_step(latency_ns)
    logs = np.log(spread_ties(latency_ns, step_ns))
    levels = _levels(latency_ns, logs, step_ns)
    if levels is not None:
        over_main = levels.multiples[levels.kinds]
        latency_ns = latency_ns / over_main
        logs -= np.log(over_main)
    edges, medians, noise = _block_medians(logs)
    bounds, sloped = _partition(medians, noise)
    changes = zip(bounds, bounds[1:], bounds[2:], strict=False)
    places = [0, *(_place(logs, edges, *triple) for triple in changes), len(logs)]
    segments = []
    level = np.empty(len(logs))
    for (start, stop), slope in zip(itertools.pairwise(places), sloped, strict=True):
        per_trial = _slope(edges, medians, start, stop) if slope else 0.0
        trials = np.arange(start, stop)
        level[start:stop] = np.median(logs[start:stop]) + per_trial * (trials - trials.mean())
        segments.append(
            Segment(
                start,
                stop,
                trials=stop - start,
                median_us=median(latency_ns[start:stop]) / 1e3,
                change=math.expm1(per_trial * (stop - start - 1)),
            )
        )
    drift = level[-1] - level[0]
    level = np.exp(level)
    mean = level
    if levels is not None:
        growth = np.subtract(levels.shares_last, levels.shares_first) @ np.log(levels.medians_us)
        mean = level * np.exp(growth * np.linspace(0, 1, len(level)))
        drift += growth
    return Segments(tuple(segments), _steady_state(mean), math.expm1(drift), level, levels, step_ns)


def _slope(edges: np.ndarray, medians: np.ndarray, start: int, stop: int) -> float:
    """Change of the level per trial between two trials, by the blocks between them."""
    inside = (edges[:-1] >= start) & (edges[1:] <= stop)
    x = ((edges[:-1] + edges[1:]) / 2)[inside]
    x -= x.mean()
    return float(x @ medians[inside] / (x @ x))


def _levels(latency_ns: np.ndarray, logs: np.ndarray, step_ns: float) -> Levels | None:
    """The levels between which the trials of a process alternate; None if they have one level.

    In windows the mean level must be constant or linear (`_partition`): a step, or a few long
    states, are segments. The noise of a window is that of the differences between neighbours, which
    contains the dependence of the trials (von Neumann, Annals of Mathematical Statistics 12, 1941),
    and at least that of independent trials.
    """
    n = len(logs)
    if n < WINDOWS * BLOCK_TRIALS:
        return None
    # No alternation keeps in step with these places.
    looked = logs if n <= LOOKED else logs[(n * _golden(LOOKED)).astype(np.int64)]
    dips = _dips(np.sort(looked), int(LEAST_SHARE * len(looked)))
    kinds = np.searchsorted(dips, logs)
    changes = int(np.count_nonzero(np.diff(kinds)))
    if changes < FEWEST_CHANGES:
        return None
    edges = np.linspace(0, n, WINDOWS + 1).astype(np.int64)
    means = np.add.reduceat(kinds, edges[:-1]) / np.diff(edges)
    noise = math.sqrt(max(np.mean(np.diff(means) ** 2) / 2, kinds.var() * WINDOWS / n))
    bounds, (changing, *_) = _partition(means, noise)
    medians_ns = [np.median(latency_ns[kinds == kind]) for kind in range(len(dips) + 1)]
    if len(bounds) > 2 or np.diff(medians_ns).min() < FEWEST_STEPS * step_ns:
        return None
    tenth = n // 10 if changing else n
    shares, first, last = (
        (np.bincount(part, minlength=len(medians_ns)) / len(part)).tolist()
        for part in (kinds, kinds[:tenth], kinds[-tenth:])
    )
    main = int(np.argmax(np.array(shares) >= MAIN * max(shares)))
    return Levels(
        (np.array(medians_ns) / 1e3).tolist(), shares, first, last, n / (changes + 1), main, kinds
    )


def _dips(ordered: np.ndarray, least: int) -> list[float]:
    """Ascending places of the dips between modes of ascending values, of which each mode has about
    `least` or more.

    The density at a place is that of the `least` / 10 values around it, of at least 20.
    """
    width = max(least // 10, 20)
    gaps = ordered[width:] - ordered[:-width]
    first = least - width // 2
    inner = gaps[first : len(ordered) - least - width // 2]
    if not len(inner):
        return []
    dip = first + int(inner.argmax())
    if DIP_DENSITY * gaps[dip] <= max(gaps[:dip].min(), gaps[dip + 1 :].min()):
        return []
    place = float(ordered[dip] + ordered[dip + width]) / 2
    below = int(np.searchsorted(ordered, place))
    return [*_dips(ordered[:below], least), place, *_dips(ordered[below:], least)]


def quantum(values: np.ndarray) -> float:
    """The greatest common step of values that a clock of another unit than theirs counted; 0 if
    there is none.

    A clock of 100 MHz, read in ns, gives values that are multiples of 10 ns up to rounding, so that
    neighbouring values are 1 ns apart. It is the lowest frequency at which the values of the bulk
    resonate (the modulus of their characteristic function), at steps from a 25th of their spread
    on; finer ones do not matter.
    """
    low, quarter, median, three, high = np.percentile(values, [5, 25, 50, 75, 95])
    spread = min(median - quarter, three - median) / 0.6745
    if len(values) < 100 or not spread > 0 or high - low > 40 * spread:
        return 0.0
    central = values[(values >= low) & (values <= high)] - median
    if len(np.unique(central)) > MOST_DISTINCT * len(central):
        return 0.0
    width = spread / 100
    counts, _ = np.histogram(central, bins=np.arange(low - median, high - median + width, width))
    size = 1 << 16
    resonance = np.abs(np.fft.rfft(counts, size)) / len(central)
    steps = size * width / np.maximum(np.arange(len(resonance)), 1e-9)
    widest = min(WIDEST_QUANTUM * spread, LARGEST_QUANTUM * median)
    resonance[(steps > widest) | (steps < spread / 25)] = 0
    if resonance.max() <= RESONANCE:
        return 0.0
    best = int(np.argmax(resonance >= 0.95 * resonance.max()))
    best += int(np.argmax(resonance[best : best + best // 4 + 1]))
    _, on = np.unique(np.round(central / steps[best]), return_counts=True)
    if np.count_nonzero(on >= ON_EACH * len(central)) < MULTIPLES:
        return 0.0
    return float(steps[best])


def clock_step(values: np.ndarray) -> float:
    """The resolution of a coarse clock; 0 if fewer than half of the central 90 % of the values are
    ties.

    It is the median difference of neighbouring distinct values, or `quantum` if that is more. Two
    values more than 5 % apart are two states, not clock steps, unless they are 1 and 2, or 2 and 3
    steps, or all values are multiples of their least difference and that is a power of ten (1 us,
    as in tables).
    """
    low, median, high = np.percentile(values, [5, 50, 95])
    central = np.unique(values[(values >= low) & (values <= high)])
    if len(central) > 0.45 * len(values) or len(values) < 3:
        return 0.0
    distinct = np.unique(values)
    steps = np.diff(central if len(central) > 1 else distinct)
    steps = steps[steps > 1e-9 * median]
    step = float(np.median(steps)) if len(steps) else 0.0
    if step > 0.05 * median:
        least = np.diff(distinct)
        least = float(least[least > 1e-9 * median].min())
        numbers = np.r_[math.log10(least), distinct / least]
        if np.abs(numbers - numbers.round()).max() < 1e-6:
            return least
    two_states = (
        len(central) < 3 and step > 0.05 * median and round(central[0] / step, 6) not in (1, 2)
    )
    return 0.0 if two_states else max(step, quantum(values))


def spread_ties(values: np.ndarray, step: float) -> np.ndarray:
    """Values of a clock with this step spread evenly over it, so that ties do not look like levels
    or clusters."""
    return np.maximum(values + step * (_golden(len(values)) - 0.5), values / 2) if step else values


def _golden(n: int) -> np.ndarray:
    """Fractional parts of the first n multiples of the golden ratio, which fill 0 to 1 evenly."""
    return np.arange(1, n + 1) * 0.6180339887498949 % 1.0


def _block_medians(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Edges of the blocks, their medians, and the standard error of a median.

    The error is the larger of two estimates: from the spread within blocks, for independent trials,
    and from the lower quartile of the differences of neighbouring blocks, since trials are
    dependent.
    """
    n = len(logs)
    blocks = max(1, min(BLOCKS, n // BLOCK_TRIALS))
    edges = np.linspace(0, n, blocks + 1).round().astype(np.int64)
    size = int(np.diff(edges).min())
    low, medians, high = np.percentile(
        logs[edges[:-1, None] + np.arange(size)], [25, 50, 75], axis=1
    )
    spread = max(float(np.median(high - low)) / 1.349, 1e-9)
    noise = 1.2533 * spread / math.sqrt(size)
    if blocks > 4:
        between = np.percentile(np.abs(np.diff(medians)), 25)
        noise = max(noise, float(between) / (0.3186 * math.sqrt(2)))
    return edges, medians, noise


def _partition(medians: np.ndarray, noise: float) -> tuple[list[int], list[bool]]:
    """The bounds of the segments in blocks, and whether each has a slope.

    Optimal partitioning (Jackson et al., An algorithm for optimal partitioning of data on an
    interval, 2005) with squared errors from a constant or from a line. Blocks are clipped to three
    standard errors from the median of the five blocks around them, so that a burst of slow trials
    is not a level.
    """
    blocks = len(medians)
    if blocks < 2 * SHORTEST:
        return [0, blocks], [False]
    around = np.median(sliding_window_view(np.pad(medians, 2, mode="reflect"), 5), axis=1)
    y = np.clip(medians, around - 3 * noise, around + 3 * noise) / noise
    errors, lines = _errors(y - y.mean())
    change = CHANGE_PENALTY + math.log(blocks)
    best = np.full(blocks + 1, np.inf)
    best[0] = -change
    before = [0] * (blocks + 1)
    for stop in range(SHORTEST, blocks + 1):
        costs = best[: stop - SHORTEST + 1] + errors[stop, : stop - SHORTEST + 1]
        before[stop] = int(costs.argmin())
        best[stop] = costs[before[stop]] + change
    bounds = [blocks]
    while bounds[-1] > 0:
        bounds.append(before[bounds[-1]])
    bounds.reverse()
    return bounds, [bool(lines[stop, start]) for start, stop in itertools.pairwise(bounds)]


def _errors(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared errors of a segment with a stop (row) and start (column), and whether it has a slope.

    Those of a line, and `SLOPE_PENALTY`, if that is less than those of a constant.
    """
    blocks = len(y)
    sum_y, sum_yy, sum_xy = (
        np.append(0, np.cumsum(values)) for values in (y, y * y, np.arange(blocks) * y)
    )
    stop, start = np.ogrid[: blocks + 1, : blocks + 1]
    length = np.maximum(stop - start, SHORTEST)  # shorter ones are not asked for
    total = sum_y[:, None] - sum_y
    errors = sum_yy[:, None] - sum_yy - total**2 / length
    covariance = sum_xy[:, None] - sum_xy - total * (start + stop - 1) / 2
    gain = covariance**2 / (length * (length**2 - 1.0) / 12) - SLOPE_PENALTY - math.log(blocks)
    lines = (gain > 0) & (length >= SHORTEST_SLOPE)
    return np.where(lines, errors - gain, errors), lines


def _place(logs: np.ndarray, edges: np.ndarray, first: int, change: int, last: int) -> int:
    """The trial at which the level changes, within two blocks: the smallest sum of absolute
    deviations.

    The search ends half-way to the neighbouring changes, so that two changes are never at one
    trial.
    """
    near = 2 * SHORTEST
    before = np.median(logs[edges[max(first, change - near)] : edges[change]])
    after = np.median(logs[edges[change] : edges[min(last, change + near)]])
    start = edges[max(change - 2, (first + change + 1) // 2)]
    stop = edges[min(change + 2, (change + last) // 2)]
    gains = np.abs(logs[start : stop - 1] - after) - np.abs(logs[start : stop - 1] - before)
    return int(start + np.argmax(np.r_[0, np.cumsum(gains)]))


def _steady_state(levels: np.ndarray) -> SteadyState:
    """The class, by the levels in 20 windows compared with that of the last tenth of the trials."""
    if levels.min() == levels.max():  # the answer is the same below, after 21 medians
        return SteadyState.FLAT
    last = float(np.median(levels[-max(len(levels) // 10, 1) :]))
    parts = np.array_split(levels, min(WINDOWS, len(levels)))
    windows = np.array([np.median(part) for part in parts])
    away = np.abs(windows / last - 1) > SAME_LEVEL
    if not away.any():
        return SteadyState.FLAT
    if away[len(windows) // 2 :].any():
        return SteadyState.NONE
    return SteadyState.WARM_UP if windows[away][-1] > last else SteadyState.SLOWDOWN
