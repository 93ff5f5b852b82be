"""How latency grows with the sizes of a network.

Is it linear in layers, hidden size, sequence length and batch, and where does it leave the fitted
line? Is a larger network faster than a smaller one anywhere, or batch 1 slower than batch 2? Up to
which size is batching almost free, and which batch takes the least time per sample? Different
systems are never mixed, and shapes that were not measured are never interpolated.
"""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from lstm_judge.answers import Answers
from lstm_judge.outcomes import Doubt
from lstm_judge.read.runs import Runs, RunsSource, as_runs, is_path
from lstm_judge.scaling.times import ShapeTime, Times, read_times
from lstm_judge.statistics.quantiles import EFFECT, MEDIAN, ROUNDS, ratio_rank
from lstm_judge.statistics.segments import SAME_LEVEL
from lstm_trt.config.errors import check_number
from lstm_trt.config.libraries import special

#: Confidence of the intervals of medians for comparing pairs of recordings.
PAIR_CONFIDENCE = 0.99


def doubts(faster: ShapeTime, slower: ShapeTime) -> tuple[Doubt, ...] | None:
    """Why the trials do not prove that one median is below another; empty if they do, None without
    trials.

    The level of no round may change by more than 1 %: if one process has several speeds, its median
    depends on how long it had each of them. Each side needs 5 rounds, because medians of one script
    in several processes differ by 3 % although each is known to 0.07 %. The exact 99 %
    order-statistic intervals of the medians of all rounds of one side must be disjoint from those
    of the other side, and the exact 99 % interval of the ratio over rounds (Hodges-Lehmann) must be
    above 1.02. There is no correction for testing many pairs, so a few of very many are wrong.
    """
    if not (faster.rounds and slower.rounds):
        return None
    found = []
    few = min(len(faster.rounds), len(slower.rounds)) < ROUNDS
    if few:
        found.append(Doubt.FEW_ROUNDS)
    if any(each.level_range > SAME_LEVEL for each in (*faster.rounds, *slower.rounds)):
        found.append(Doubt.LEVEL_CHANGES)
    # A bound that does not exist at this number of trials may lie anywhere.
    highs_us = [each.percentile(MEDIAN, PAIR_CONFIDENCE).high_us for each in faster.rounds]
    lows_us = [each.percentile(MEDIAN, PAIR_CONFIDENCE).low_us for each in slower.rounds]
    overlap = max(high or math.inf for high in highs_us) >= min(low or 0.0 for low in lows_us)
    if overlap or (not few and _least_ratio(faster, slower) <= 1 + EFFECT):
        found.append(Doubt.NOT_SEPARATED)
    return tuple(found)


def _least_ratio(faster: ShapeTime, slower: ShapeTime) -> float:
    """The lower bound of the ratio of the medians over rounds; 0 if there are too few rounds."""
    ratios = sorted(
        slow.median_us / fast.median_us for slow in slower.rounds for fast in faster.rounds
    )
    rank = ratio_rank(len(slower.rounds), len(faster.rounds), PAIR_CONFIDENCE)
    return ratios[rank - 1] if rank else 0.0


#: A deviation from the fitted line by more than this share is a break.
DEPARTURE = 0.10

#: Minimum number of points before a break: two determine a line.
POINTS_BEFORE = 2

#: Minimum number of points for a test of linearity.
POINTS = 3

#: Batching is almost free while doubling the batch increases the time by at most this factor.
FREE_DOUBLING = 1.10


@dataclass(frozen=True)
class Line:
    """Latency along one axis with the others `fixed`: the fitted line, and the first size that
    leaves it.

    `breaks_at`: the first size whose time is more than 10 % off the line through the smaller ones.
    `breaks_tested`: whether every size has at least 5 rounds; the break is then significant,
    otherwise it may be noise. `times_us`: size -> time, ascending.

    `exponent`: the power of the size with which the time grows, with its interval (`power`).
    `departure`: the largest distance of a time from the fitted line, relative to that time.
    """

    system: str
    axis: str
    fixed: dict[str, int]
    slope_us: float
    intercept_us: float
    r2: float
    exponent: float
    exponent_low: float
    exponent_high: float
    departure: float
    breaks_at: int | None
    breaks_tested: bool
    times_us: dict[int, float]

    @property
    def untested_break(self) -> bool:
        """Whether there is a break that was not tested against noise."""
        return self.breaks_at is not None and not self.breaks_tested


@dataclass(frozen=True)
class Neighbours:
    """Two neighbours on an axis; `ratio`: latency of the larger / that of the smaller."""

    system: str
    axis: str
    smaller: dict[str, int]
    larger: dict[str, int]
    ratio: float

    @property
    def sizes(self) -> tuple[int, int]:
        """The sizes that differ."""
        return self.smaller[self.axis], self.larger[self.axis]

    @property
    def step(self) -> str:
        """The sizes that differ as text: `hidden 127 -> 128`."""
        return "{} {} -> {}".format(self.axis, *self.sizes)


#: The step of which an inversion is a penalty on batch 1.
BATCH_1_AND_2 = "batch 1 -> 2"


@dataclass(frozen=True)
class Inversion(Neighbours):
    """Neighbours of which the larger is faster; `uncertain_because` is None without trials."""

    uncertain_because: tuple[Doubt, ...] | None

    @property
    def certain(self) -> bool | None:
        """Whether the trials prove it; None without trials."""
        return None if self.uncertain_because is None else not self.uncertain_because


@dataclass(frozen=True)
class Batching:
    """Cost of batching for one network; times in us.

    `stops_at`: first batch whose time is more than 10 % per doubling above that of the previous
    batch, None if there is none. `free_up_to`: the batch before it, else the largest. If a larger
    batch is faster, its time is used, because a batch can be padded. `cheapest`: batch with the
    least time per sample. `cheapest_is_largest`: whether that is the largest measured, so that a
    larger batch may take even less. `times_us`: batch -> time, ascending.
    """

    system: str
    fixed: dict[str, int]
    times_us: dict[int, float]
    free_up_to: int
    stops_at: int | None
    cheapest: int
    cheapest_us_per_sample: float
    smallest: int
    smallest_us_per_sample: float
    cheapest_is_largest: bool


@dataclass(frozen=True)
class Findings:
    """All findings; those of the `neighbours` of which the larger is faster are `Inversion`."""

    times: Times
    linearity: list[Line]
    neighbours: list[Neighbours]
    batching: list[Batching]
    min_ratio: float

    @property
    def inversions(self) -> list[Inversion]:
        """Neighbours of which the larger is faster."""
        return [pair for pair in self.neighbours if isinstance(pair, Inversion)]

    @property
    def batch1_penalties(self) -> list[Inversion]:
        """The inversions of batches 1 and 2."""
        return [pair for pair in self.inversions if pair.step == BATCH_1_AND_2]

    @property
    def pairs(self) -> dict[str, int]:
        """Numbers of neighbours on each axis, and of batches 1 and 2."""
        counts = Counter(pair.axis for pair in self.neighbours)
        pairs = {axis: counts[axis] for axis in self.times.axes}
        pairs["batch 1 and 2"] = sum(pair.step == BATCH_1_AND_2 for pair in self.neighbours)
        return pairs

    def as_dict(self) -> dict:
        """JSON values; `certain` and `uncertain_because` only with trials, `system` only if there
        are several."""
        hidden = {"times_us", "intercept_us"}
        if len(self.times.systems) < 2:
            hidden.add("system")
        if not self.times.raw:
            hidden |= {"certain", "uncertain_because"}
        inversions = [
            _shown({**vars(pair), "certain": pair.certain}, hidden) for pair in self.inversions
        ]
        penalties = []
        for pair in self.batch1_penalties:
            shape = {"shape": pair.smaller, "ratio": 1 / pair.ratio, "certain": pair.certain}
            penalties.append(_shown(vars(pair) | shape, hidden | {"axis", "smaller", "larger"}))
        return {
            "linearity": [_shown(vars(line), hidden) for line in self.linearity],
            "inversions": inversions,
            "batch1_penalties": penalties,
            "batching": [_shown(vars(network), hidden) for network in self.batching],
            "counts": {
                **vars(self.times.counts),
                "pairs": self.pairs,
                "unused_columns": list(self.times.unused),
            },
            "systems": self.times.systems,
        }


def _shown(values: Mapping[str, Any], hidden: Collection[str]) -> dict[str, Any]:
    """The values without those that are not shown."""
    return {name: value for name, value in values.items() if name not in hidden}


class ScalingAnswers(Answers[Findings]):
    """The `Findings` of all configurations together, as the only answer.

    `frame` has a row per series: its fitted line, and the first size that leaves it.
    """

    @property
    def findings(self) -> Findings:
        return self.answers[0]

    def along(self, *axes: str) -> str:
        """The answer for these sizes ("layers", "hidden", "sequence", "batch"), a line per system:
        how time grows with them, what batching costs, and whether a larger network is faster."""
        return "\n".join(self._texts.sentences(self.findings, axes))

    def as_dict(self) -> dict:
        """JSON values of the findings, the column and unit of a table, and the warnings."""
        return {
            **self.findings.as_dict(),
            **self.findings.times.how,
            "warnings": list(self.warnings),
        }

    def _rows(self) -> Iterator[dict]:
        for line in self.findings.linearity:
            yield _shown(
                {"system": line.system, "axis": line.axis, **line.fixed, **vars(line)},
                {"fixed", "times_us"},
            )


def scaling(
    source: RunsSource,
    min_ratio: float = 1.0,
    rename: Mapping[str, str] | None = None,
    column: str | None = None,
    unit: str | None = None,
    where: Mapping[str, Any] | None = None,
) -> ScalingAnswers:
    """Analyze how latency grows with each size of the network; see `find_scaling`.

    `source`: the result of `load`, a path or several, recordings or groups, or tables with one time
    per shape, such as averages. `rename`, `column` and `unit` are for tables, `where` selects
    (`times.read_times`).
    """
    source = source if is_path(source) else as_runs(source)
    times = read_times(source, rename, column, unit, where)
    runs = source if isinstance(source, Runs) else Runs((), times.where)
    return ScalingAnswers(runs, (find_scaling(times, min_ratio),), times.warnings)


def find_scaling(times: Times, min_ratio: float = 1.0) -> Findings:
    """Analyze every line and every pair of neighbours.

    Neighbours are adjacent among the sizes that were measured on their line. Inversions with a
    ratio (slower / faster) below `min_ratio` are ignored. Raises `UsageError` for a `min_ratio`
    below 1.
    """
    check_number(
        "--min-ratio (slower / faster) must be at least 1", min_ratio, lambda ratio: ratio >= 1
    )
    found = Findings(times, [], [], [], min_ratio)
    for system, axis, fixed, line in lines(times):
        if len(line) >= POINTS:
            found.linearity.append(_fitted(system, axis, fixed, line))
        if axis == "batch" and len(line) > 1:
            found.batching.append(_batching(system, fixed, line))
        for small, large in itertools.pairwise(line):
            pair = Neighbours(
                system,
                axis,
                {name: fixed.get(name, small) for name in times.axes},
                {name: fixed.get(name, large) for name in times.axes},
                line[large].latency_us / line[small].latency_us,
            )
            if pair.ratio < 1 and 1 / pair.ratio >= min_ratio:
                why = doubts(faster=line[large], slower=line[small])
                pair = Inversion(**vars(pair), uncertain_because=why)
            found.neighbours.append(pair)
    return found


def lines(times: Times) -> Iterator[tuple[str, str, dict[str, int], dict[int, ShapeTime]]]:
    """(system, axis, sizes of the other axes, {size: cell}) of every line, sizes ascending."""
    for system, cells in times.cells.items():
        for axis in times.axes:
            found: dict[tuple, dict[int, ShapeTime]] = {}
            for sizes, time in sorted(cells.items(), key=itemgetter(0)):
                fixed = dict(zip(times.axes, sizes, strict=True))
                size = fixed.pop(axis)
                found.setdefault(tuple(fixed.items()), {})[size] = time
            for rest, line in sorted(found.items(), key=itemgetter(0)):
                yield system, axis, dict(rest), line


def fit(sizes: Sequence[float], times_us: Sequence[float]) -> tuple[float, float, float]:
    """Slope in us per unit, intercept in us and R2 of the unweighted least-squares line.

    R2 = 1 - residual / total sum of squares; 1 if all times are equal. Needs two different sizes.
    """
    x = np.asarray(sizes, dtype=float)
    y = np.asarray(times_us, dtype=float)
    if np.allclose(y, y.mean(), rtol=1e-12, atol=0):  # only rounding errors
        return 0.0, float(y.mean()), 1.0
    slope, intercept = np.polyfit(x, y, 1)
    left = y - intercept - slope * x
    return float(slope), float(intercept), float(1 - left.var() / y.var())


def power(sizes: Sequence[float], times_us: Sequence[float]) -> tuple[float, float, float]:
    """The exponent of the size with which the time grows, and its 95 % interval.

    Least squares of the logarithms, with Student's t for the interval. A fixed cost beside a linear
    one makes it less than 1; R2 of a straight line does not tell: it is above 0.99 for an exponent
    of 1.2. Needs three sizes.
    """
    (exponent, _), covariance = np.polyfit(np.log(sizes), np.log(times_us), 1, cov=True)
    reach = special.stdtrit(len(sizes) - 2, 0.975) * math.sqrt(covariance[0, 0])
    return float(exponent), float(exponent - reach), float(exponent + reach)


def break_of(
    sizes: Sequence[int], times_us: Sequence[float], rounds_us: Sequence[np.ndarray] | None = None
) -> int | None:
    """First size whose time deviates by more than 10 % from the line fitted to the sizes before it,
    or None.

    The deviation is relative to the prediction. At least two sizes come before it. If sizes double,
    the noise of the first two is amplified three times in the prediction of the third. With
    `rounds_us`, the times of the rounds of each size, the deviation must be significant.
    """
    for place in range(POINTS_BEFORE, len(sizes)):
        slope, intercept, _ = fit(sizes[:place], times_us[:place])
        expected = intercept + slope * sizes[place]
        if abs(times_us[place] - expected) <= DEPARTURE * abs(expected) * (1 + 1e-9):
            continue
        if rounds_us is None or _beyond_noise(sizes[: place + 1], rounds_us[: place + 1]):
            return int(sizes[place])
    return None


def _beyond_noise(sizes: Sequence[int], rounds_us: Sequence[np.ndarray]) -> bool:
    """Whether the last size is significantly more than 10 % off the line through the sizes before
    it.

    The distance to the nearer edge of the 10 % is a linear combination of the mean times, whose
    standard error is that of rounds. Student's t with the degrees of freedom of Welch and
    Satterthwaite (Biometrika 34, 1947), two-sided at 99 % as for inversions.
    """
    before = np.asarray(sizes[:-1], dtype=float)
    apart = before - before.mean()
    weights = 1 / len(before) + (sizes[-1] - before.mean()) * apart / (apart @ apart)
    means = np.array([times.mean() for times in rounds_us])
    expected = float(weights @ means[:-1])
    side = np.sign(means[-1] - expected)
    factors = np.append(-weights * (side + DEPARTURE * np.sign(expected)), side)
    distance = factors @ means
    numbers = np.array([len(times) for times in rounds_us])
    variances = np.array([times.var(ddof=1) for times in rounds_us]) / numbers * factors**2
    if not variances.any():
        return bool(distance > 0)
    freedom = variances.sum() ** 2 / np.sum(variances**2 / (numbers - 1))
    quantile = special.stdtrit(freedom, (1 + PAIR_CONFIDENCE) / 2)
    return bool(distance > quantile * math.sqrt(variances.sum()))


def _fitted(system: str, axis: str, fixed: dict[str, int], line: dict[int, ShapeTime]) -> Line:
    sizes = list(line)
    times_us = [each.latency_us for each in line.values()]
    slope, intercept, r2 = fit(sizes, times_us)
    fitted_us = intercept + slope * np.array(sizes)
    tested = all(len(each.rounds) >= ROUNDS for each in line.values())
    rounds_us = None
    if tested:
        rounds_us = [np.array([each.median_us for each in time.rounds]) for time in line.values()]
    return Line(
        system,
        axis,
        fixed,
        slope,
        intercept,
        r2,
        *power(sizes, times_us),
        departure=float(np.max(np.abs(1 - fitted_us / np.array(times_us)))),
        breaks_at=break_of(sizes, times_us, rounds_us),
        breaks_tested=tested,
        times_us=dict(zip(sizes, times_us, strict=True)),
    )


def _batching(system: str, fixed: dict[str, int], line: dict[int, ShapeTime]) -> Batching:
    sizes = list(line)
    times_us = [each.latency_us for each in line.values()]
    effective = np.minimum.accumulate(times_us[::-1])[::-1]
    free = FREE_DOUBLING ** np.diff(np.log2(sizes)) * (1 + 1e-9)
    stops = np.flatnonzero(effective[1:] / effective[:-1] > free)
    per_sample = (np.array(times_us) / sizes).tolist()
    best = int(np.argmin(per_sample))
    return Batching(
        system=system,
        fixed=fixed,
        times_us=dict(zip(sizes, times_us, strict=True)),
        free_up_to=sizes[stops[0] if len(stops) else -1],
        stops_at=sizes[stops[0] + 1] if len(stops) else None,
        cheapest=sizes[best],
        cheapest_us_per_sample=per_sample[best],
        smallest=sizes[0],
        smallest_us_per_sample=per_sample[0],
        cheapest_is_largest=best == len(sizes) - 1,
    )
