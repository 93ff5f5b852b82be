"""What several processes of equal length say about another one.

All calls together answer for the processes that were recorded, and for no other: medians of
processes of one program differ by several percent, so that the next one may miss a deadline that
these meet. The only assumption here is that the processes were recorded alike: each order of
theirs, and of another one, is equally likely.

- The largest of R + 1 values is the last with a probability of 1 / (R + 1), or less if there are
  ties.
- With the confidence C at least the share (1 - C)^(1 / R) of all processes has a value up to the
  largest of R (Wilks, Annals of Mathematical Statistics 12, 1941).
- If percentiles of processes are log-normal, with the confidence C at least the share `SHARE` of
  them is up to exp(mean + k s) of their logarithms (ISO 16269-6); k is from the noncentral t
  distribution (`tolerance_factor`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lstm_judge.statistics import quantiles
from lstm_judge.statistics.dependence import Places
from lstm_judge.statistics.trials import Trials
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.libraries import special

#: The share of processes for which `percentile_bound_us` holds.
SHARE = 0.95

#: It needs this number of processes.
LEAST_PROCESSES = 3

#: And this number of calls above the percentile in each of them.
LEAST_ABOVE = 10


@dataclass(frozen=True)
class Processes(JsonFields):
    """Statements on another process, from `count` processes of `trials` calls each after warm-up.

    `percentile_low_us`, `percentile_high_us`: the least and the largest percentile of a process.
    `larger_max_chance`: the most that the probability can be that another process has a larger
    maximum. `worst_misses`: the most misses in a process; at the confidence of the verdict at least
    the share `no_more_misses_share` of processes has no more. `percentile_bound_us`: at this
    confidence 95 % of processes have a percentile of at most this, if the percentiles are
    log-normal; None for fewer than 3 processes, or fewer than 10 calls above the percentile in
    each.
    """

    count: int
    trials: int
    percentile_low_us: float
    percentile_high_us: float
    larger_max_chance: float
    worst_misses: int
    no_more_misses_share: float
    percentile_bound_us: float | None = None


def processes_of(
    timed: Sequence[Trials], misses: Places, share: Fraction, confidence: float
) -> Processes | None:
    """What these processes say about another one; None for one process, and for processes of
    unequal length.

    `misses`: indices of the misses of each. `share`: of the percentile. It is also None if a
    percentile is above the range of a histogram.
    """
    number = len(timed)
    trials = timed[0].n
    if number == 1 or any(process.n != trials for process in timed):
        return None
    percentiles_us = np.array(
        [quantiles.percentile(process.ordered_ns, share) / 1e3 for process in timed]
    )
    if not np.isfinite(percentiles_us).all():
        return None
    bound_us = None
    if number >= LEAST_PROCESSES and trials - math.ceil(trials * share) >= LEAST_ABOVE:
        logs = np.log(percentiles_us)
        bound_us = math.exp(logs.mean() + tolerance_factor(number, confidence) * logs.std(ddof=1))
    return Processes(
        number,
        trials,
        float(percentiles_us.min()),
        float(percentiles_us.max()),
        larger_max_chance=1 / (number + 1),
        worst_misses=max(map(len, misses)),
        no_more_misses_share=(1 - confidence) ** (1 / number),
        percentile_bound_us=bound_us,
    )


def tolerance_factor(number: int, confidence: float) -> float:
    """k of the upper bound mean + k s from `number` values, for the share `SHARE` of a normal law
    (ISO 16269-6)."""
    root = math.sqrt(number)
    return float(special.nctdtrit(number - 1, root * special.ndtri(SHARE), confidence)) / root
