"""What is said of the outliers of one configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lstm_judge.outcomes import SteadyState, TimesBy
from lstm_judge.statistics.causes import Cause
from lstm_judge.statistics.excess import Excess
from lstm_judge.statistics.segments import Levels, Segment
from lstm_trt.config.fields import JsonFields

#: Label of the trials of the tail.
TAIL = -2


@dataclass(frozen=True, kw_only=True)
class Outliers(JsonFields):
    """Outliers of one configuration.

    `outliers`: number of trials of all rounds outside 1.5 x IQR, on both sides, as in a box plot.
    `partition`: number of trials in the bulk, in slow clusters, in fast clusters and in the tail;
    they add up to n. `steady_state`: the worst of the rounds. `events`: None if neither periods nor
    causes were searched. `clock_step_us`: the largest step of a clock that the rounds show, 0 if
    none does.
    """

    n: int
    median_us: float
    outliers: int
    partition: Mapping[str, int]
    steady_state: SteadyState
    clusters: tuple[Cluster, ...]
    tail: Tail | None
    rounds: tuple[OutlierRound, ...]
    events: Events | None = None
    clock_step_us: float

    def __repr__(self) -> str:
        return (
            f"<Outliers: {self.n} trials, {self.outliers} outside 1.5 x IQR,"
            f" {len(self.clusters)} clusters, partition {self.partition}>"
        )


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
    def multiples(self) -> tuple[float, float]:
        """Of its trials, as far as events are compared with them."""
        return self.multiplier, self.multiplier

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

    @property
    def multiples(self) -> tuple[float, float]:
        """The smallest and the largest."""
        return self.start, self.stop

    def as_dict(self) -> dict:
        """JSON values."""
        found = super().as_dict()
        return {"from": found.pop("start"), "to": found.pop("stop"), **found}


@dataclass(frozen=True, kw_only=True)
class OutlierRound(JsonFields):
    """Statistics of one round; `segments` are in timed trials. `levels`: if the trials alternate
    between several.

    Not in JSON, with an entry for each timed trial: `labels`, -1 (`BULK`), -2 (`TAIL`), or the
    index in `Outliers.clusters`, and `level_ns`, the local level.
    """

    round: int
    n: int
    outliers: int
    median_us: float
    steady_state: SteadyState
    drift: float
    segments: tuple[Segment, ...]
    levels: Levels | None = None
    labels: np.ndarray = field(repr=False, compare=False)
    level_ns: np.ndarray = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Events(JsonFields):
    """What was recorded of the events that can explain slow calls.

    `period_by`: "timestamps", or "summed latencies" if there are no start times. `counted`: names
    of the events. `slowest`: excess of the slowest calls over the others, `control`: of those of
    the control run; None if not measured. `switches`: what each recording says of these
    measurements. `unexplained`: what is said of the CPU time of threads that are neither timed nor
    of the runtime's pool, by round, where it matters.
    """

    period_by: TimesBy
    counted: tuple[str, ...]
    slowest: Excess | None
    control: Excess | None
    switches: tuple[Mapping[str, Any], ...]
    unexplained: tuple[str, ...]
