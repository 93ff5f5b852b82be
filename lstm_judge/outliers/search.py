"""Clusters and tail of one configuration, and the course of its level.

Trials are taken as multiples of their local level (`segments.py`), and clusters are searched in the
multiples of all rounds together (`clusters.py`). Every trial is in the bulk, in a slow or fast
cluster, or in the tail (`Outliers.partition`). The number of trials outside 1.5 x IQR, as in a box
plot, is a different count: it depends neither on the order of the trials nor on clusters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lstm_judge.outcomes import SteadyState
from lstm_judge.outliers.answer import TAIL, Cluster, OutlierRound, Outliers, Tail
from lstm_judge.read.rounds import Round
from lstm_judge.statistics.causes import BULK
from lstm_judge.statistics.clusters import Bump, find_clusters
from lstm_judge.statistics.quantiles import at_most, count_outliers, median, rate_bounds
from lstm_judge.statistics.segments import Segments, segments_of, spread_ties
from lstm_judge.statistics.trials import timed_rounds
from lstm_trt.config.errors import UsageError
from lstm_trt.config.libraries import special

#: Confidence of each bound of a cluster's share: the interval has 95 %.
SHARE_CONFIDENCE = 0.975

#: Share of a normal distribution beyond each fence of 1.5 x IQR; significance level of a tail.
NORMAL_BEYOND, TAIL_ALPHA = 0.00349, 0.01

#: IQR of a normal distribution in standard deviations.
NORMAL_IQR = 1.349


def search_outliers(rounds: Sequence[Round]) -> Outliers:
    """Outliers of the rounds of one configuration, without periods and causes.

    Raises `UsageError` if there are no trials after warm-up.
    """
    rounds = timed_rounds(rounds)
    if not rounds:
        raise UsageError("there are no trials after warm-up: record more trials")
    timed = [np.asarray(round_.timed_ns, dtype=np.float64) for round_ in rounds]
    courses = [segments_of(latency_ns) for latency_ns in timed]
    multiples, bumps = _search(_multiples(timed, courses))
    labels = multiples.labels(bumps)
    tail = _tail(multiples, labels)
    described = []
    stop = 0
    for round_, latency_ns, course in zip(rounds, timed, courses, strict=True):
        trials = slice(stop, stop + len(latency_ns))
        stop = trials.stop
        described.append(
            OutlierRound(
                round=round_.round,
                n=len(latency_ns),
                outliers=count_outliers(latency_ns),
                median_us=median(latency_ns) / 1e3,
                steady_state=course.steady_state,
                drift=course.drift,
                segments=course.segments,
                levels=course.levels,
                labels=labels[trials],
                level_ns=multiples.level_ns[trials],
            )
        )
    latency_ns = np.concatenate(timed)
    clusters = _clusters(bumps, labels, described, latency_ns)
    return Outliers(
        n=len(latency_ns),
        median_us=median(latency_ns) / 1e3,
        outliers=count_outliers(latency_ns),
        partition=_partition(clusters, labels),
        steady_state=max((each.steady_state for each in described), key=list(SteadyState).index),
        clusters=clusters,
        tail=tail,
        rounds=tuple(described),
        clock_step_us=max(course.step_ns for course in courses) / 1e3,
    )


def _partition(clusters: Sequence[Cluster], labels: np.ndarray) -> dict[str, int]:
    return {
        "bulk": int(np.count_nonzero(labels == BULK)),
        "slow_clusters": sum(cluster.count for cluster in clusters if not cluster.fast),
        "fast_clusters": sum(cluster.count for cluster in clusters if cluster.fast),
        "tail": int(np.count_nonzero(labels == TAIL)),
    }


def _clusters(
    bumps: Sequence[Bump],
    labels: np.ndarray,
    rounds: Sequence[OutlierRound],
    latency_ns: np.ndarray,
) -> tuple[Cluster, ...]:
    """The clusters at these places, with the trials that are labelled so."""
    n = len(latency_ns)
    clusters = []
    for place, bump in enumerate(bumps):
        counts = tuple(int(np.count_nonzero(each.labels == place)) for each in rounds)
        count = sum(counts)
        time_ns = bump.place * median(latency_ns)
        if count:
            time_ns = float(np.median(latency_ns[labels == place]))
        low, high = rate_bounds(count, n, SHARE_CONFIDENCE)
        clusters.append(
            Cluster(
                multiplier=bump.place,
                low=bump.low,
                high=bump.high,
                time_us=time_ns / 1e3,
                count=count,
                share=count / n,
                share_low=low,
                share_high=high,
                counts=counts,
            )
        )
    return tuple(clusters)


@dataclass(frozen=True, kw_only=True)
class _Multiples:
    """The trials of all rounds as multiples of their local level, `level_ns`.

    `spread`: with ties of the clock spread over its `step`, in which clusters are searched. `own`:
    of the latency itself, which decides where a trial belongs, so that ties stay together. `main`:
    whether a trial is at the main level of its round; `known`: least and largest multiple of each
    other level.
    """

    level_ns: np.ndarray
    spread: np.ndarray
    own: np.ndarray
    step: float
    main: np.ndarray
    known: Sequence[tuple[float, float]]

    def labels(self, bumps: Sequence[Bump]) -> np.ndarray:
        """For each trial `BULK`, or the index of the first cluster whose range it is in."""
        labels = np.full(len(self.own), BULK, dtype=np.int64)
        for place, bump in enumerate(bumps):
            labels[(labels == BULK) & (self.own >= bump.low) & (self.own < bump.high)] = place
        return labels


def _multiples(timed: Sequence[np.ndarray], courses: Sequence[Segments]) -> _Multiples:
    """The multiples of the timed latencies of each round, whose level has this course."""
    spread = []
    main = []
    known: list[tuple[float, float]] = []
    steps = []
    for latency_ns, course in zip(timed, courses, strict=True):
        spread.append(spread_ties(latency_ns, course.step_ns) / course.level_ns)
        steps.append(course.step_ns / float(np.median(latency_ns)))
        if course.levels is None:
            main.append(np.ones(len(latency_ns), bool))
        else:
            main.append(course.levels.kinds == course.levels.main)
            known += course.levels.others(spread[-1])
    level_ns = np.concatenate([course.level_ns for course in courses])
    return _Multiples(
        level_ns=level_ns,
        spread=np.concatenate(spread),
        own=np.concatenate(timed) / level_ns,
        step=max(steps),
        main=np.concatenate(main),
        known=known,
    )


def _search(trials: _Multiples) -> tuple[_Multiples, Sequence[Bump]]:
    """The clusters, and the trials as multiples of the level of the bulk, which large clusters
    shift."""
    bumps = find_clusters(trials.spread, trials.main, trials.step, trials.known)
    bulk = trials.labels(bumps) == BULK
    if not bumps or trials.known or bulk.sum() < len(bulk) / 2:
        return trials, bumps
    centre = float(np.median(trials.spread[bulk]))
    trials = replace(
        trials,
        level_ns=trials.level_ns * centre,
        spread=trials.spread / centre,
        own=trials.own / centre,
    )
    return trials, find_clusters(trials.spread, bulk, trials.step) or bumps


def _tail(trials: _Multiples, labels: np.ndarray) -> Tail | None:
    """The slow trials of the bulk that a normal distribution would not have; they are labelled as
    tail."""
    bulk = labels == BULK
    main = trials.spread[bulk & trials.main]
    total = len(main)
    if total < 2:
        return None
    low, middle, high = np.percentile(main, [25, 50, 75])
    fence = high + 1.5 * (high - low)
    count = int(np.count_nonzero(bulk & (trials.own > fence)))
    if 1 - at_most(count - 1, total, NORMAL_BEYOND) > TAIL_ALPHA:
        fence = max(fence, middle - special.ndtri(TAIL_ALPHA / total) * (high - low) / NORMAL_IQR)
    beyond = bulk & (trials.own > fence)
    if not beyond.any():
        return None
    labels[beyond] = TAIL
    slow = trials.own[beyond]
    shape = _shape(np.sort(np.maximum(trials.spread[beyond], fence)), float(fence))
    return Tail(len(slow), len(slow) / len(labels), float(slow.min()), float(slow.max()), shape)


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
