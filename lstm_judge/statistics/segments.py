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
from dataclasses import dataclass, field, replace

import numpy as np

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
BLOCKS, BLOCK_TRIALS = 200, 16

#: Shortest segment of constant level, and with a slope, in blocks.
SHORTEST, SHORTEST_SLOPE = 2, 10

#: A level of an alternation has at least this share of the trials, and the density between two
#: levels is at most this share of both of their peaks.
LEAST_SHARE, DIP_DENSITY = 0.2, 0.1

#: Fewest changes between the levels of an alternation.
FEWEST_CHANGES = 10

#: The main level is the fastest with at least this share of the trials at the most frequent one.
MAIN = 0.5

#: Penalties of a change and of a slope in addition to log(blocks), in squared standard errors of a
#: block.
CHANGE_PENALTY, SLOPE_PENALTY = 11.0, 8.0


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
        return (coming * len(kinds) / np.maximum(np.bincount(kinds, minlength=len(coming)), 1))[
            kinds
        ]


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
            return f"the median is below {FEWEST_STEPS} steps of the clock, of {latency(step_ns / 1e3)}"
    return None


#: Trials whose segments are searched at once.
AT_ONCE = 500_000


def segments_of(several: Sequence[np.ndarray]) -> list[Segments]:
    """Segments of the timed trials of each process, in order (at least one trial).

    Processes with the same number of trials are rows of one table.
    """
    found: dict[int, Segments] = {}
    alike: dict[int, list[int]] = {}
    for place, latency_ns in enumerate(several):
        alike.setdefault(len(latency_ns), []).append(place)
    for n, places in alike.items():
        rows = max(1, AT_ONCE // n)
        for some in (places[first : first + rows] for first in range(0, len(places), rows)):
            table = np.array([several[place] for place in some], dtype=np.float64)
            steps = [clock_step(row) for row in table]
            logs = np.log([spread_ties(row, step) for row, step in zip(table, steps, strict=True)])
            levels = _levels(table, logs, steps)
            for row, several_levels in levels.items():
                over_main = several_levels.multiples[several_levels.kinds]
                table[row] /= over_main
                logs[row] -= np.log(over_main)
            edges, medians, noise = _block_medians(logs)
            for row, partition in enumerate(_partitions(medians, noise)):
                course = _segments(
                    table[row], logs[row], edges, medians[row], levels.get(row), *partition
                )
                found[some[row]] = replace(course, step_ns=steps[row])
    return [found[place] for place in range(len(several))]


def _segments(
    latency_ns: np.ndarray,
    logs: np.ndarray,
    edges: np.ndarray,
    medians: np.ndarray,
    several: Levels | None,
    bounds: list,
    sloped: list,
) -> Segments:
    """The segments of one process between these bounds in blocks; with `several` levels latencies
    over their level."""
    places = [
        0,
        *(
            _place(logs, edges, *triple)
            for triple in zip(bounds, bounds[1:], bounds[2:], strict=False)
        ),
    ]
    segments, levels = [], np.empty(len(logs))
    for start, stop, slope in zip(places, [*places[1:], len(logs)], sloped, strict=True):
        levels[start:stop] = np.median(logs[start:stop])
        change = 0.0
        if slope:
            inside = (edges[:-1] >= start) & (edges[1:] <= stop)
            x = ((edges[:-1] + edges[1:]) / 2)[inside]
            x -= x.mean()
            per_trial = float(x @ medians[inside] / (x @ x))
            trials = np.arange(start, stop)
            levels[start:stop] += per_trial * (trials - trials.mean())
            change = math.expm1(per_trial * (stop - start - 1))
        segments.append(
            Segment(start, stop, stop - start, median(latency_ns[start:stop]) / 1e3, change)
        )
    levels = np.exp(levels)
    mean = levels
    if several and several.shares_last != several.shares_first:
        growth = np.subtract(several.shares_last, several.shares_first) @ np.log(several.medians_us)
        mean = levels * np.exp(growth * np.linspace(0, 1, len(levels)))
    steady = SteadyState.FLAT
    if len(segments) > 1 or sloped[0] or mean is not levels:
        steady = _steady_state(mean)
    return Segments(tuple(segments), steady, float(mean[-1] / mean[0] - 1), levels, several)


def _levels(table: np.ndarray, logs: np.ndarray, steps: Sequence[float]) -> dict[int, Levels]:
    """The levels between which the trials of each process (row) alternate, without those that have
    one level.

    In windows the mean level must be constant or linear (`_partitions`): a step, or a few long
    states, are segments. The noise of a window is that of the differences between neighbours, which
    contains the dependence of the trials (von Neumann, Annals of Mathematical Statistics 12, 1941),
    and at least that of independent trials.
    """
    n = logs.shape[1]
    found: dict[int, Levels] = {}
    if n < WINDOWS * BLOCK_TRIALS:
        return found
    # No alternation keeps in step with these places.
    looked = np.sort(logs if n <= LOOKED else logs[:, (n * _golden(LOOKED)).astype(np.int64)])
    least = int(LEAST_SHARE * looked.shape[1])
    kinds = np.array(
        [
            np.searchsorted(_dips(ordered, least), row)
            for ordered, row in zip(looked, logs, strict=True)
        ]
    )
    changes = np.count_nonzero(np.diff(kinds), axis=1)
    mixed = np.flatnonzero(changes >= FEWEST_CHANGES).tolist()
    if not mixed:
        return found
    edges = np.linspace(0, n, WINDOWS + 1).astype(np.int64)
    means = np.add.reduceat(kinds[mixed], edges[:-1], axis=1) / np.diff(edges)
    between = np.mean(np.diff(means) ** 2, axis=1) / 2
    noise = np.sqrt(np.maximum(between, kinds[mixed].var(axis=1) * WINDOWS / n))
    for row, (bounds, (changing, *_)) in zip(mixed, _partitions(means, noise), strict=True):
        of_trials = kinds[row]
        medians_ns = np.array(
            [np.median(table[row][of_trials == kind]) for kind in range(of_trials.max() + 1)]
        )
        if len(bounds) > 2 or np.diff(medians_ns).min() < FEWEST_STEPS * steps[row]:
            continue
        tenth = n // 10 if changing else n
        parts = (of_trials, of_trials[:tenth], of_trials[-tenth:])
        shares, first, last = [
            (np.bincount(part, minlength=len(medians_ns)) / len(part)).tolist() for part in parts
        ]
        main = int(np.argmax(np.array(shares) >= MAIN * max(shares)))
        run_length = n / (int(changes[row]) + 1)
        found[row] = Levels(
            (medians_ns / 1e3).tolist(), shares, first, last, run_length, main, of_trials
        )
    return found


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
    best = int(np.argmax(resonance >= 0.95 * resonance.max())) if resonance.max() > RESONANCE else 0
    if not best:
        return 0.0
    best += int(np.argmax(resonance[best : best + best // 4 + 1]))
    _, on = np.unique(np.round(central / steps[best]), return_counts=True)
    return (
        float(steps[best]) if np.count_nonzero(on >= ON_EACH * len(central)) >= MULTIPLES else 0.0
    )


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
    """The fractional parts of the first n multiples of the golden ratio, which fill 0 to 1 evenly."""
    return np.arange(1, n + 1) * 0.6180339887498949 % 1.0


def _block_medians(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges of the blocks, their medians (processes, blocks), and the standard error of a median of
    each process.

    The error is the larger of two estimates: from the spread within blocks, for independent trials,
    and from the lower quartile of the differences of neighbouring blocks, since trials are
    dependent.
    """
    n = logs.shape[1]
    blocks = max(1, min(BLOCKS, n // BLOCK_TRIALS))
    edges = np.linspace(0, n, blocks + 1).round().astype(np.int64)
    size = int(np.diff(edges).min())
    low, medians, high = np.percentile(
        logs[:, edges[:-1, None] + np.arange(size)], [25, 50, 75], axis=2
    )
    spread = np.maximum(np.median(high - low, axis=1) / 1.349, 1e-9)
    noise = 1.2533 * spread / math.sqrt(size)
    if blocks > 4:
        between = np.percentile(np.abs(np.diff(medians, axis=1)), 25, axis=1)
        noise = np.maximum(noise, between / (0.3186 * math.sqrt(2)))
    return edges, medians, noise


def _partitions(medians: np.ndarray, noise: np.ndarray) -> list[tuple[list[int], list[bool]]]:
    """Of each process the bounds of the segments in blocks, and whether each has a slope.

    Optimal partitioning (Jackson et al., An algorithm for optimal partitioning of data on an
    interval, 2005) with squared errors from a constant or from a line. Blocks are clipped to three
    standard errors from the median of the five blocks around them, so that a burst of slow trials
    is not a level.
    """
    rows, blocks = np.arange(len(medians)), medians.shape[1]
    if blocks < 2 * SHORTEST:
        return [([0, blocks], [False])] * len(medians)
    noise = noise[:, None]
    padded = np.pad(medians, ((0, 0), (2, 2)), mode="reflect")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5, axis=1), axis=2)
    y = np.clip(medians, around - 3 * noise, around + 3 * noise) / noise
    y -= y.mean(axis=1, keepdims=True)
    x = np.arange(blocks, dtype=np.float64)
    sum_y, sum_yy, sum_xy = (
        np.pad(np.cumsum(sums, axis=1), ((0, 0), (1, 0))) for sums in (y, y * y, x * y)
    )
    change, slope = (penalty + math.log(blocks) for penalty in (CHANGE_PENALTY, SLOPE_PENALTY))
    best, before = (
        np.full((len(rows), blocks + 1), np.inf),
        np.zeros((len(rows), blocks + 1), dtype=np.int64),
    )
    sloped = np.zeros((len(rows), blocks + 1), dtype=bool)
    best[:, 0] = -change
    for stop in range(SHORTEST, blocks + 1):
        starts = slice(0, stop - SHORTEST + 1)
        first = np.arange(stop - SHORTEST + 1)
        length = stop - first
        total = sum_y[:, stop, None] - sum_y[:, starts]
        level = sum_yy[:, stop, None] - sum_yy[:, starts] - total**2 / length
        covariance = sum_xy[:, stop, None] - sum_xy[:, starts] - total * (first + stop - 1) / 2
        gain = covariance**2 / (length * (length**2 - 1.0) / 12) - slope
        lines = (gain > 0) & (length >= SHORTEST_SLOPE)
        costs = best[:, starts] + level - np.where(lines, gain, 0) + change
        chosen = costs.argmin(axis=1)
        best[:, stop], before[:, stop], sloped[:, stop] = (
            costs[rows, chosen],
            chosen,
            lines[rows, chosen],
        )
    found = []
    for came_from, slopes in zip(before.tolist(), sloped.tolist(), strict=True):
        bounds = [blocks]
        while bounds[-1] > 0:
            bounds.append(came_from[bounds[-1]])
        found.append((bounds[::-1], [slopes[stop] for stop in bounds[-2::-1]]))
    return found


def _place(logs: np.ndarray, edges: np.ndarray, first: int, change: int, last: int) -> int:
    """The trial at which the level changes, within two blocks: the smallest sum of absolute
    deviations.

    The search ends half-way to the neighbouring changes, so that two changes are never at one
    trial.
    """
    near = 2 * SHORTEST
    before = np.median(logs[edges[max(first, change - near)] : edges[change]])
    after = np.median(logs[edges[change] : edges[min(last, change + near)]])
    start, stop = (
        edges[max(change - 2, (first + change + 1) // 2)],
        edges[min(change + 2, (change + last) // 2)],
    )
    gains = np.abs(logs[start : stop - 1] - after) - np.abs(logs[start : stop - 1] - before)
    return int(start + np.argmax(np.r_[0, np.cumsum(gains)]))


def _steady_state(levels: np.ndarray) -> SteadyState:
    """The class, by the levels in 20 windows compared with that of the last tenth of the trials."""
    last = float(np.median(levels[-max(len(levels) // 10, 1) :]))
    bounds = np.linspace(0, len(levels), min(WINDOWS, len(levels)) + 1).astype(int)
    windows = np.array(
        [np.median(levels[start:stop]) for start, stop in itertools.pairwise(bounds)]
    )
    away = np.abs(windows / last - 1) > SAME_LEVEL
    if away[len(windows) // 2 :].any():
        return SteadyState.NONE
    if not away.any():
        return SteadyState.FLAT
    return SteadyState.WARM_UP if windows[np.flatnonzero(away)[-1]] > last else SteadyState.SLOWDOWN
