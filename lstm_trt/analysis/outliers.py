"""The answer about outliers as values: clusters, the tail, each round's own numbers, and all of it together.

What makes late answers late: how many there are, when the level moved, which clusters they form, what coincides.

`examine` answers all of it for the rounds of one configuration, `quick` leaves out causes and
periods, for tables of many. Trials are judged as multiples of their local level
(`segments.py`), clusters are found in the multiples of all rounds together (`clusters.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lstm_trt.analysis.causes import Cause
from lstm_trt.config.errors import UsageError
from lstm_trt.store.samples import Sample

#: Steady states from good to bad: the worst round stands for all.
STATES = ("flat", "warm-up", "slowdown", "no steady state")


@dataclass(frozen=True)
class Cluster:
    """Late trials (or fast ones) around one multiple of the local level.

    `low` and `high` bound its trials (half open), as multiples. `share` is of the timed trials,
    with its exact 95 % interval (Clopper and Pearson). `period_ms` is None where the times show
    none. `counts`: trials of each round.
    """

    multiplier: float
    low: float
    high: float
    time_us: float
    count: int
    share: float
    share_low: float
    share_high: float
    counts: tuple[int, ...]
    period_ms: float | None = None
    causes: tuple[Cause, ...] = ()

    def as_dict(self) -> dict:
        """JSON values."""
        return {
            "multiplier": self.multiplier,
            "count": self.count,
            "share": self.share,
            "share_low": self.share_low,
            "share_high": self.share_high,
            "period_ms": self.period_ms,
            "causes": [cause.as_dict() for cause in self.causes],
            "low": self.low,
            "high": self.high,
            "time_us": self.time_us,
            "counts": list(self.counts),
        }


@dataclass(frozen=True)
class Tail:
    """Slow trials beyond 1.5 x IQR of the local level that are of no cluster, where a normal body has not so many.

    `start` and `stop`: their least and largest multiple. `shape`: words.
    """

    count: int
    share: float
    start: float
    stop: float
    shape: str
    period_ms: float | None = None
    causes: tuple[Cause, ...] = ()

    def as_dict(self) -> dict:
        """JSON values."""
        return {
            "count": self.count,
            "share": self.share,
            "from": self.start,
            "to": self.stop,
            "shape": self.shape,
            "period_ms": self.period_ms,
            "causes": [cause.as_dict() for cause in self.causes],
        }


@dataclass(frozen=True)
class Round:
    """One sample's own numbers; `segments` count its timed trials."""

    round: int
    n: int
    outliers: int
    median_us: float
    steady_state: str
    drift: float
    segments: tuple

    def as_dict(self) -> dict:
        """JSON values."""
        return {
            "round": self.round,
            "n": self.n,
            "outliers": self.outliers,
            "median_us": self.median_us,
            "steady_state": self.steady_state,
            "drift": self.drift,
            "segments": [segment.as_dict() for segment in self.segments],
        }


@dataclass(frozen=True)
class Outliers:
    """The answer for one configuration.

    `outliers`: of all rounds' trials together, outside 1.5 x IQR on both sides, as box plots
    count. `labels`: for each sample an entry a timed trial, -1 body, -2 tail, else the index
    in `clusters`. `levels_ns`: the local level of each. `period_by`: "timestamps", or "summed
    latencies" where a file has no times; None where no periods were sought.
    """

    n: int
    outliers: int
    median_us: float
    clusters: tuple[Cluster, ...]
    tail: Tail | None
    rounds: tuple[Round, ...]
    period_by: str | None
    causes_counted: tuple[str, ...]
    labels: tuple[np.ndarray, ...] = field(repr=False)
    levels_ns: tuple[np.ndarray, ...] = field(repr=False)

    @property
    def steady_state(self) -> str:
        """The worst round's."""
        return max((one.steady_state for one in self.rounds), key=STATES.index)

    def as_dict(self) -> dict:
        """JSON values."""
        several = len(self.rounds) > 1
        return {
            "n": self.n,
            "outliers": self.outliers,
            "median_us": self.median_us,
            "clusters": [cluster.as_dict() for cluster in self.clusters],
            "tail": None if self.tail is None else self.tail.as_dict(),
            "steady_state": self.steady_state,
            "segments": [
                {**segment.as_dict(), **({"round": one.round} if several else {})}
                for one in self.rounds
                for segment in one.segments
            ],
            "rounds": [one.as_dict() for one in self.rounds],
            "period_by": self.period_by,
            "causes_counted": list(self.causes_counted),
        }


#: Labels of trials that are of no cluster.
BODY, TAIL = -1, -2

#: Of a cluster's share, both bounds at once.
CONFIDENCE = 0.95

#: A normal body leaves this share of its trials beyond each fence of 1.5 x IQR.
NORMAL_BEYOND = 0.00349


def examine(samples: Sequence[Sample]) -> Outliers:
    """All of the answer; raises `UsageError` where no sample has a timed trial."""
    found, samples = _find(samples)
    return _explain(found, samples)


def quick(samples: Sequence[Sample]) -> Outliers:
    """As `examine`, without causes and periods."""
    return _find(samples)[0]


def _find(samples: Sequence[Sample]) -> tuple[Outliers, list[Sample]]:
    from lstm_trt.analysis.clusters import find_bumps
    from lstm_trt.analysis.quantiles import PERCENTILES, count_outliers, percentile, rate_bounds
    from lstm_trt.analysis.segments import clock_step, find_segments, spread_ties

    samples = [sample for sample in samples if not np.all(sample.warmup)]
    if not samples:
        raise UsageError("there is no trial after warm-up to look for outliers in: record more trials")
    timed = [np.asarray(sample.timed_ns, dtype=np.float64) for sample in samples]
    stretches = [find_segments(latency) for latency in timed]
    levels = [one.level_ns for one in stretches]
    spread = [spread_ties(latency) for latency in timed]
    sizes = np.cumsum([len(latency) for latency in timed])[:-1]
    ratios = np.concatenate([one / level for one, level in zip(spread, levels, strict=True)])
    step = max(clock_step(latency) / float(np.median(latency)) for latency in timed)
    bumps = find_bumps(ratios, step=step)
    if bumps:
        # Heavy clusters pull the level: once more, from the body alone.
        body = np.ones(len(ratios), dtype=bool)
        for bump in bumps:
            body &= (ratios < bump.low) | (ratios >= bump.high)
        if body.sum() >= len(ratios) / 2:
            centre = float(np.median(ratios[body]))
            ratios, levels = ratios / centre, [level * centre for level in levels]
            bumps = find_bumps(ratios, body, step) or bumps
    labels = np.full(len(ratios), BODY, dtype=np.int64)
    for place, bump in enumerate(bumps):
        labels[(labels == BODY) & (ratios >= bump.low) & (ratios < bump.high)] = place
    tail = _tail(ratios, labels)
    pooled = np.concatenate(timed)
    n, median_ns = len(pooled), percentile(np.sort(pooled), PERCENTILES["median_us"])
    parts = np.split(labels, sizes)
    clusters = []
    for place, bump in enumerate(bumps):
        inside = labels == place
        count = int(np.count_nonzero(inside))
        low, high = rate_bounds(count, n, 1 - (1 - CONFIDENCE) / 2)
        clusters.append(
            Cluster(
                multiplier=float(bump.multiplier),
                low=float(bump.low),
                high=float(bump.high),
                time_us=float(np.median(pooled[inside])) / 1e3 if count else float(bump.multiplier * median_ns) / 1e3,
                count=count,
                share=count / n,
                share_low=low,
                share_high=high,
                counts=tuple(int(np.count_nonzero(part == place)) for part in parts),
            )
        )
    rounds = tuple(
        Round(
            round=sample.round,
            n=len(latency),
            outliers=count_outliers(latency),
            median_us=percentile(np.sort(latency), PERCENTILES["median_us"]) / 1e3,
            steady_state=one.steady_state,
            drift=one.drift,
            segments=one.segments,
        )
        for sample, latency, one in zip(samples, timed, stretches, strict=True)
    )
    found = Outliers(
        n=n,
        outliers=count_outliers(pooled),
        median_us=median_ns / 1e3,
        clusters=tuple(clusters),
        tail=tail,
        rounds=rounds,
        period_by=None,
        causes_counted=(),
        labels=tuple(parts),
        levels_ns=tuple(levels),
    )
    return found, samples


def _tail(ratios: np.ndarray, labels: np.ndarray) -> Tail | None:
    """Marks slow trials beyond the fence as tail, and tells them where a normal body has fewer."""
    from lstm_trt.analysis.quantiles import at_most

    body = labels == BODY
    if np.count_nonzero(body) < 2:
        return None
    low, high = np.percentile(ratios[body], [25, 75])
    reach = 1.5 * (high - low)
    beyond = body & (ratios > high + reach)
    labels[beyond | (body & (ratios < low - reach))] = TAIL
    count, of = int(np.count_nonzero(beyond)), int(np.count_nonzero(body))
    if not count or 1 - at_most(count - 1, of, NORMAL_BEYOND) > 0.01:
        return None
    slow = np.sort(ratios[beyond])
    return Tail(count, count / len(ratios), float(slow[0]), float(slow[-1]), _shape(slow, float(high + reach)))


def _shape(ordered: np.ndarray, fence: float) -> str:
    """Words for how a tail falls: by the tail index of its excesses (Pickands 1975, probability-weighted moments)."""
    n = len(ordered)
    if n < 20:
        return "a few stragglers" if n < 5 else "too few to tell how it falls"
    excess = ordered - fence
    first = float(excess.mean())
    second = float(excess @ (1 - (np.arange(1, n + 1) - 0.35) / n)) / n
    index = 2 - first / (first - 2 * second) if first > 2 * second else -9.0
    # Hosking and Wallis (1987): the index of an exponential tail errs by about 1.6 / sqrt(n), one-sided 97.5 %.
    error = 1.96 * 1.6 / n**0.5
    if index > min(error, 0.4):
        return "falls slowly, like a power of the latency"
    if index < -error:
        return "ends soon"
    return "falls smoothly, like an exponential"


def _explain(found: Outliers, samples: list[Sample]) -> Outliers:
    from dataclasses import replace

    from lstm_trt.analysis.causes import CONTROL, find_causes, find_period

    starts, by = _starts(samples)
    kinds = [*range(len(found.clusters)), *([TAIL] if found.tail else [])]
    late = [(cluster.multiplier, cluster.multiplier) for cluster in found.clusters]
    late += [(found.tail.start, found.tail.stop)] if found.tail else []
    excess = [tuple((multiple - 1) * found.median_us * 1e3 for multiple in ends) for ends in late]
    # The tail that is told is the slow one; fast outliers carry the same label.
    labels = [
        np.where((label == TAIL) & (sample.timed_ns < level), TAIL - 1, label)
        for label, sample, level in zip(found.labels, samples, found.levels_ns, strict=True)
    ]
    causes = find_causes(samples, labels, kinds, BODY, excess)

    def period(kind: int) -> float | None:
        told = find_period(starts, [label == kind for label in labels], found.median_us * 1e3)
        return None if told is None else told.period_ms

    clusters = tuple(
        replace(cluster, period_ms=period(place), causes=causes[place]) for place, cluster in enumerate(found.clusters)
    )
    tail = None if found.tail is None else replace(found.tail, period_ms=period(TAIL), causes=causes[-1])
    counted = sorted({name for sample in samples for name in (*sample.causes, *sample.block_causes)})
    counted += [CONTROL] if any(sample.control_ns is not None for sample in samples) else []
    return replace(found, clusters=clusters, tail=tail, period_by=by, causes_counted=tuple(counted))


def _starts(samples: list[Sample]) -> tuple[list[np.ndarray], str]:
    """Times of the timed trials; without stamps the latencies before each are summed, as in a closed loop."""
    starts, by = [], "timestamps"
    for sample in samples:
        if sample.start_ns is None:
            by = "summed latencies"
            ends = np.cumsum(np.asarray(sample.latency_ns, dtype=np.float64))
            starts.append(sample.timed(ends - sample.latency_ns))
        else:
            starts.append(np.asarray(sample.timed(sample.start_ns), dtype=np.float64))
    return starts, by
