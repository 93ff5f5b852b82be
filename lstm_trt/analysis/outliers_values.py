"""The answer about outliers as values: clusters, the tail, each round's own numbers, and all of it together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lstm_trt.analysis.causes import Cause

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
