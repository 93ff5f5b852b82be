"""Outliers: the course of the level, clusters and tail, their periods and causes.

`outliers` analyzes runs, `explain_of` the rounds of configurations; `quick_of` leaves out causes
and periods. Trials are taken as multiples of their local level (`segments.py`), and clusters are
searched in the multiples of all rounds together (`clusters.py`). Every trial is in the bulk, in a
slow or fast cluster, or in the tail (`Outliers.partition`). The number of trials outside 1.5 x IQR,
as in a box plot, is a different count: it depends neither on the order of the trials nor on
clusters.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from lstm_judge.answers import Answers, runs_to_judge
from lstm_judge.outcomes import CountedBy, SteadyState, TimesBy
from lstm_judge.read.numbers import multiple
from lstm_judge.read.rounds import Round
from lstm_judge.read.runs import RunsSource
from lstm_judge.statistics.causes import BULK, CONTROL, Cause, find_causes, find_period
from lstm_judge.statistics.clusters import Bump, Search, search, together
from lstm_judge.statistics.excess import Excess, Spent
from lstm_judge.statistics.parallel import computed
from lstm_judge.statistics.quantiles import at_most, count_outliers, median, rate_bounds
from lstm_judge.statistics.segments import Levels, Segment, Segments, segments_of, spread_ties
from lstm_judge.statistics.trials import timed_rounds
from lstm_trt.config.configuration import unexplained_text
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import JsonFields, json_value
from lstm_trt.config.format import number, percent
from lstm_trt.config.libraries import pd, special

#: Display names of counters.
CAUSE_NAMES = {
    "involuntary_switches": "involuntary context switches",
    "minor_faults": "minor page faults",
    "major_faults": "major page faults",
    "steal_ns": "CPU time stolen by the host",
    "throttled_periods": "CPU throttling",
    "runnable_ns": "time waiting for a core",
    "pool_preempted_ns": "preemption of its pool",
    "unexplained_cpu_ns": "CPU time of threads outside the runtime's pool",
    "cpu_khz": "clock",
}

#: A cause explains a cluster only in part if fewer than this share of its trials have it.
MOSTLY = 0.5


@dataclass(frozen=True, kw_only=True)
class Cluster(JsonFields):
    """A cluster of trials around one multiple of the local level: slow if it is above 1, fast if
    below.

    `low` and `high`: half-open range of its trials, as multiples. `share`: share of the timed
    trials, with its exact 95 % interval (Clopper and Pearson). `excess`: over the bulk, None if not
    measured. `period_ms`: None if there is no period. `hint`: what usually has this period, if no
    cause was found, else None. `counts`: trials of each round.
    """

    multiplier: float
    count: int
    share: float
    share_low: float
    share_high: float
    period_ms: float | None = None
    hint: str | None = None
    causes: tuple[Cause, ...] = ()
    excess: Excess | None = None
    low: float
    high: float
    time_us: float
    counts: tuple[int, ...]

    @property
    def fast(self) -> bool:
        """Whether its trials are faster than the bulk."""
        return self.multiplier < 1


@dataclass(frozen=True)
class Tail(JsonFields):
    """Slow trials outside clusters that a normal distribution would not have.

    These are the trials above the upper fence of 1.5 x IQR of the bulk, if they are more than a
    normal distribution has there; else those so far above it that a normal distribution has one of
    them in 1 % of rounds. `start` and `stop`: smallest and largest multiple. `shape`: how the tail
    decays, as text. `hint` and `excess`: as of a cluster.
    """

    count: int
    share: float
    start: float
    stop: float
    shape: str
    period_ms: float | None = None
    hint: str | None = None
    causes: tuple[Cause, ...] = ()
    excess: Excess | None = None

    def as_dict(self) -> dict:
        """JSON values."""
        names = {"start": "from", "stop": "to"}
        return {names.get(name, name): value for name, value in super().as_dict().items()}


@dataclass(frozen=True)
class OutlierRound(JsonFields):
    """Statistics of one round; `segments` are in timed trials. `levels`: if the trials alternate
    between several."""

    round: int
    n: int
    outliers: int
    median_us: float
    steady_state: SteadyState
    drift: float
    segments: tuple[Segment, ...]
    levels: Levels | None = None


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """Outliers of one configuration.

    `outliers`: number of trials of all rounds outside 1.5 x IQR, on both sides, as in a box plot.
    `labels`: for each round an array with an entry per timed trial: -1 bulk, -2 tail, else the
    index in `clusters`; `partition` counts them. `levels_ns`: the local level of each trial.
    `slowest`: excess of the slowest calls over the others, `control`: of those of the control run;
    None if not measured. `switches`: what each recording says of these measurements. `unexplained`:
    what is said of the CPU time of threads that are neither timed nor of the runtime's pool, by
    round, where it matters. `period_by`: "timestamps", or "summed latencies" if there are no start
    times; None if no periods were searched. `clock_step_us`: the largest step of a clock that the
    rounds show, 0 if none does.
    """

    n: int
    outliers: int
    median_us: float
    clock_step_us: float
    clusters: tuple[Cluster, ...]
    tail: Tail | None
    rounds: tuple[OutlierRound, ...]
    period_by: TimesBy | None = None
    causes_counted: tuple[str, ...] = ()
    slowest: Excess | None = None
    control: Excess | None = None
    switches: tuple[Mapping[str, Any], ...] = ()
    unexplained: tuple[str, ...] = ()
    labels: tuple[np.ndarray, ...] = field(repr=False)
    levels_ns: tuple[np.ndarray, ...] = field(repr=False)

    @property
    def steady_state(self) -> SteadyState:
        """The worst of the rounds."""
        return max((part.steady_state for part in self.rounds), key=list(SteadyState).index)

    @property
    def partition(self) -> dict[str, int]:
        """Number of trials in the bulk, in slow clusters, in fast clusters and in the tail; they
        add up to n."""
        fast = sum(cluster.count for cluster in self.clusters if cluster.fast)
        clusters, tail = (
            sum(cluster.count for cluster in self.clusters),
            self.tail.count if self.tail else 0,
        )
        bulk = self.n - clusters - tail
        return {"bulk": bulk, "slow_clusters": clusters - fast, "fast_clusters": fast, "tail": tail}

    @property
    def segments(self) -> list[tuple[Segment, int]]:
        """The segments of all rounds, each with the number of its round."""
        return [(segment, part.round) for part in self.rounds for segment in part.segments]

    def as_dict(self) -> dict:
        """JSON values."""
        found = {
            name: json_value(value)
            for name, value in vars(self).items()
            if name not in ("labels", "levels_ns")
        }
        several = len(self.rounds) > 1
        segments = [
            segment.as_dict() | ({"round": number} if several else {})
            for segment, number in self.segments
        ]
        return {
            **found,
            "partition": self.partition,
            "steady_state": self.steady_state,
            "segments": segments,
        }


#: Label of the trials of the tail.
TAIL = -2

#: Confidence of the two-sided interval of a cluster's share.
SHARE_CONFIDENCE = 0.95

#: Share of a normal distribution beyond each fence of 1.5 x IQR; significance level of a tail.
NORMAL_BEYOND, TAIL_ALPHA = 0.00349, 0.01

#: IQR of a normal distribution in standard deviations.
NORMAL_IQR = 1.349


class OutlierAnswers(Answers):
    """Outliers of configurations, a `NoTrials` for each that failed; `clusters` is a DataFrame."""

    _NOTHING_FOUND: ClassVar = {"outliers": None, "partition": None, "clusters": [], "segments": []}

    def _row(self, answer: Outliers) -> dict:
        return {
            **{name: getattr(answer, name) for name in ("n", "median_us", "outliers")},
            "outliers_percent": 100 * answer.outliers / answer.n,
            **answer.partition,
            "steady_state": answer.steady_state,
            "clusters": clusters_line(answer.clusters),
        }

    @property
    def clusters(self) -> pd.DataFrame:
        """A row per cluster: multiple of the local median, share in percent with its interval,
        period, causes."""
        columns = (
            "network",
            "multiplier",
            "trials",
            "percent",
            "percent_low",
            "percent_high",
            "period_ms",
            "causes",
        )
        rows = []
        for group, found in self.items():
            for cluster in found.clusters if isinstance(found, Outliers) else ():
                percents = (
                    100 * share for share in (cluster.share, cluster.share_low, cluster.share_high)
                )
                why = causes_text(cluster, found)
                rows.append(
                    (
                        group.name,
                        cluster.multiplier,
                        cluster.count,
                        *percents,
                        cluster.period_ms,
                        why,
                    )
                )
        return pd.DataFrame(rows, columns=columns)


def clusters_line(clusters: Sequence) -> str:
    """`2.0 % at 1.25x, 1.0 % at 2.01x`, or `none`."""
    return (
        ", ".join(
            f"{percent(cluster.share)} at {multiple(cluster.multiplier)}" for cluster in clusters
        )
        or "none"
    )


def clusters_cell(clusters: Sequence) -> str:
    """The most frequent cluster and the number of others: `2.0 % at 1.25x; 2 more`, `2.0 % at
    1.25x`, or `none`."""
    line = clusters_line(sorted(clusters, key=lambda cluster: -cluster.share)[:1])
    return f"{line}; {len(clusters) - 1} more" if len(clusters) > 1 else line


def causes_text(part: Cluster | Tail, outliers: Outliers) -> str:
    """Causes for figures: `minor page faults (odds ratio 12)`, compared with the bulk, or
    `unexplained`."""
    if not outliers.causes_counted:
        return "no events were counted" + hint_text(part)
    texts = []
    for cause in part.causes:
        if cause.by == CountedBy.CONTROL:
            texts.append("machine noise (control run)")
            continue
        name = CAUSE_NAMES.get(cause.name, cause.name.replace("_", " "))
        odds = f"odds\u00a0ratio\u00a0{number(cause.odds_ratio)}"
        whole = cause.share >= MOSTLY
        texts.append(
            f"{name} ({odds})"
            if whole
            else f"partly {name} ({percent(cause.share)} of these, {odds})"
        )
    return ", ".join(texts) or "unexplained" + hint_text(part)


def hint_text(part: Cluster | Tail) -> str:
    return f" ({part.hint})" if part.hint else ""


def outliers(runs: RunsSource, causes: bool = True) -> OutlierAnswers:
    """Outliers of each configuration and their clusters; with `causes`, also periods and associated
    events.

    `runs`: the result of `load`, or a path, recordings or groups. Raises `UsageError` if a
    configuration has fewer than 2 trials after warm-up.
    """
    runs = runs_to_judge(runs)
    measured = [group for group in runs if group.failure is None]
    look, known = (
        (explain_of, measured) if causes else (quick_of, [group.plain for group in measured])
    )
    found = iter(computed(look, [group.rounds for group in known], [group.n for group in known]))
    answers = tuple(next(found) if group.failure is None else group.failure for group in runs)
    return OutlierAnswers(runs, answers, runs.remarks)


def quick_of(several: Sequence[Sequence[Round]]) -> list[Outliers]:
    """As `explain_of`, without causes and periods."""
    kept = list(map(timed_rounds, several))
    if not all(kept):
        raise UsageError("there are no trials after warm-up: record more trials")
    timed = [
        [np.asarray(round_.timed_ns, dtype=np.float64) for round_ in rounds] for rounds in kept
    ]
    courses = iter(segments_of(list(itertools.chain(*timed))))
    each = [list(itertools.islice(courses, len(rounds))) for rounds in kept]
    return together(
        [_search(*configuration) for configuration in zip(kept, timed, each, strict=True)]
    )


def _search(
    rounds: Sequence[Round], timed: Sequence[np.ndarray], courses: Sequence[Segments]
) -> Search[Outliers]:
    """`quick_of` one configuration, from the timed latencies in ns of each round and their
    segments."""
    levels = [course.level_ns for course in courses]
    sizes = np.cumsum([len(latency) for latency in timed])[:-1]
    spread = [
        spread_ties(latency, course.step_ns) for latency, course in zip(timed, courses, strict=True)
    ]
    pooled = np.concatenate(timed)
    level_ns = np.concatenate(levels)
    # Clusters are searched in spread values; a trial has the part of its own value, so that ties
    # stay together.
    ratios = np.concatenate(spread) / level_ns
    tied = pooled / level_ns
    step = max(
        course.step_ns / float(np.median(latency))
        for latency, course in zip(timed, courses, strict=True)
    )
    main = np.ones(len(ratios), bool)
    others: list[tuple[float, float]] = []
    for part, at_main, course in zip(
        np.split(ratios, sizes), np.split(main, sizes), courses, strict=True
    ):
        if course.levels:
            at_main[:] = course.levels.kinds == course.levels.main
            others += course.levels.others(part)
    bumps = yield from search(ratios, main, step, others)
    bulk = _labels(tied, bumps) == BULK
    if bumps and not others and bulk.sum() >= len(ratios) / 2:
        # Large clusters shift the level: repeat with the level of the bulk alone.
        centre = float(np.median(ratios[bulk]))
        ratios, tied, levels = ratios / centre, tied / centre, [level * centre for level in levels]
        bumps = (yield from search(ratios, bulk, step)) or bumps
    labels = _labels(tied, bumps)
    tail = _tail(ratios, tied, labels, main)
    n, median_ns = len(pooled), median(pooled)
    by_sample = np.split(labels, sizes)
    clusters = []
    for place, bump in enumerate(bumps):
        inside = labels == place
        count = int(np.count_nonzero(inside))
        low, high = rate_bounds(count, n, 1 - (1 - SHARE_CONFIDENCE) / 2)
        clusters.append(
            Cluster(
                multiplier=bump.place,
                low=bump.low,
                high=bump.high,
                time_us=float(np.median(pooled[inside]) if count else bump.place * median_ns) / 1e3,
                count=count,
                share=count / n,
                share_low=low,
                share_high=high,
                counts=tuple(int(np.count_nonzero(part == place)) for part in by_sample),
            )
        )
    described = []
    for round_, latency, course in zip(rounds, timed, courses, strict=True):
        counted = round_.round, len(latency), count_outliers(latency), median(latency) / 1e3
        described.append(
            OutlierRound(
                *counted, course.steady_state, course.drift, course.segments, course.levels
            )
        )
    return Outliers(
        n=n,
        outliers=count_outliers(pooled),
        median_us=median_ns / 1e3,
        clock_step_us=max(course.step_ns for course in courses) / 1e3,
        clusters=tuple(clusters),
        tail=tail,
        rounds=tuple(described),
        labels=tuple(by_sample),
        levels_ns=tuple(levels),
    )


def _labels(ratios: np.ndarray, bumps: Sequence[Bump]) -> np.ndarray:
    """For each trial `BULK`, or the index of the first cluster whose range it is in."""
    labels = np.full(len(ratios), BULK, dtype=np.int64)
    for place, bump in enumerate(bumps):
        labels[(labels == BULK) & (ratios >= bump.low) & (ratios < bump.high)] = place
    return labels


def _tail(
    ratios: np.ndarray, tied: np.ndarray, labels: np.ndarray, main: np.ndarray
) -> Tail | None:
    """The slow trials of the bulk that a normal distribution would not have; they are labelled as
    tail.

    `ratios`: as `tied`, with ties of the clock spread, which gives the shape, and the quartiles of
    the `main` trials.
    """
    bulk = labels == BULK
    total = int(np.count_nonzero(bulk & main))
    if total < 2:
        return None
    low, middle, high = np.percentile(ratios[bulk & main], [25, 50, 75])
    fence = high + 1.5 * (high - low)
    count = int(np.count_nonzero(bulk & (tied > fence)))
    if 1 - at_most(count - 1, total, NORMAL_BEYOND) > TAIL_ALPHA:
        fence = max(
            fence, middle - float(special.ndtri(TAIL_ALPHA / total)) * (high - low) / NORMAL_IQR
        )
    beyond = bulk & (tied > fence)
    if not beyond.any():
        return None
    labels[beyond] = TAIL
    slow = tied[beyond]
    shape = _shape(np.sort(np.maximum(ratios[beyond], fence)), float(fence))
    return Tail(len(slow), len(slow) / len(tied), float(slow.min()), float(slow.max()), shape)


def _shape(ordered: np.ndarray, fence: float) -> str:
    """How a tail decays, as text: by the tail index of its excesses (Pickands 1975,
    probability-weighted moments)."""
    n = len(ordered)
    if n < 20:
        return "a few stragglers" if n < 5 else "too few trials to estimate how it decays"
    excess = ordered - fence
    first = float(excess.mean())
    second = float(excess @ (1 - (np.arange(1, n + 1) - 0.35) / n)) / n
    index = 2 - first / (first - 2 * second) if first > 2 * second else -9.0
    # Hosking and Wallis (1987): for an exponential tail the standard error is about 1.6 / sqrt(n);
    # one-sided 97.5 %.
    error = 1.96 * 1.6 / n**0.5
    if index > min(error, 0.4):
        return "decays slowly, like a power law"
    if index < -error:
        return "decays faster than an exponential"
    return "decays like an exponential"


def explain_of(several: list[Sequence[Round]]) -> list[Outliers]:
    """Outliers of the rounds of each configuration, which takes less time for several together.

    Raises `UsageError` if one has no trials after warm-up.
    """
    return [
        _explained(found, rounds) for found, rounds in zip(quick_of(several), several, strict=True)
    ]


def _explained(found: Outliers, rounds: Sequence[Round]) -> Outliers:
    """`found` with causes and periods."""
    rounds = timed_rounds(rounds)
    starts = [_starts(round_) for round_ in rounds]
    scale_ns = found.median_us * 1e3
    ranges = {
        kind: (cluster.multiplier, cluster.multiplier)
        for kind, cluster in enumerate(found.clusters)
    }
    ranges |= {TAIL: (found.tail.start, found.tail.stop)} if found.tail else {}
    excess_ns = {
        kind: ((low - 1) * scale_ns, (high - 1) * scale_ns) for kind, (low, high) in ranges.items()
    }
    causes, bulk = (
        find_causes(rounds, found.labels, excess_ns),
        [label == BULK for label in found.labels],
    )
    spent = Spent(rounds)

    def explained(part: Cluster | Tail, kind: int) -> Any:
        inside = [label == kind for label in found.labels]
        period = find_period(starts, inside, scale_ns)
        ms, hint = (period.ms, None if causes[kind] else period.hint) if period else (None, None)
        return replace(
            part, causes=causes[kind], period_ms=ms, hint=hint, excess=spent.excess(inside, bulk)
        )

    counted = sorted({name for round_ in rounds for name in (*round_.causes, *round_.block_causes)})
    counted += [CONTROL] if any(round_.control_ns is not None for round_ in rounds) else []
    clusters = tuple(explained(cluster, kind) for kind, cluster in enumerate(found.clusters))
    tail = found.tail and explained(found.tail, TAIL)
    by = (
        TimesBy.TIMESTAMPS
        if all(round_.start_ns is not None for round_ in rounds)
        else TimesBy.SUMMED_LATENCIES
    )
    return replace(
        found,
        clusters=clusters,
        tail=tail,
        period_by=by,
        causes_counted=tuple(counted),
        slowest=spent.slowest(),
        control=Spent.of_control(rounds).slowest(),
        switches=tuple(round_.switches for round_ in rounds if round_.switches),
        unexplained=tuple(filter(None, map(_unexplained, rounds))),
    )


def _unexplained(round_: Round) -> str | None:
    text = unexplained_text(round_.unexplained_cpu_ns, float(np.mean(round_.timed_ns)))
    return text and f"Round {round_.round}: {text} (telemetry: {round_.telemetry})"


def _starts(round_: Round) -> np.ndarray:
    """Start times of the timed trials; if not recorded, the sums of the preceding latencies, as in
    a closed loop."""
    start_ns = round_.start_ns
    if start_ns is None:
        start_ns = np.cumsum(round_.latency_ns) - round_.latency_ns
    return np.asarray(round_.timed(start_ns), dtype=np.float64)
