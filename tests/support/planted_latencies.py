"""Synthetic latencies with known properties: bulks of many shapes, clusters of exact size, periodic delays, causes."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from scipy.stats import binom

from lstm_judge.outliers.explain import explain_outliers as explain  # noqa: F401
from lstm_judge.outliers.search import search_outliers as quick  # noqa: F401
from lstm_judge.read.rounds import Round
from lstm_judge.verdict import verdict as deadline
from lstm_judge.verdict.answer import Verdict
from lstm_judge.verdict.question import Question

MEDIAN_NS = 100_000.0
NORMAL = np.vectorize(NormalDist().inv_cdf)

#: Name -> latencies of n trials, in ns.
BODIES = {
    "normal 1 %": lambda g, n: MEDIAN_NS * (1 + 0.01 * g.standard_normal(n)),
    "normal 5 %": lambda g, n: MEDIAN_NS * (1 + 0.05 * g.standard_normal(n)),
    "lognormal 1 %": lambda g, n: lognormal(g, n, 0.01),
    "lognormal 2 %": lambda g, n: lognormal(g, n, 0.02),
    "lognormal 5 %": lambda g, n: lognormal(g, n, 0.05),
    "lognormal 10 %": lambda g, n: lognormal(g, n, 0.10),
    "exponential 5 %": lambda g, n: MEDIAN_NS + 0.05 * MEDIAN_NS * g.exponential(size=n),
    "exponential 20 %": lambda g, n: MEDIAN_NS + 0.20 * MEDIAN_NS * g.exponential(size=n),
    "Student-t 1 %": lambda g, n: np.abs(MEDIAN_NS * (1 + 0.01 * g.standard_t(2, size=n))),
    "Student-t 5 %": lambda g, n: np.abs(MEDIAN_NS * (1 + 0.05 * g.standard_t(2, size=n))),
    "uniform 5 %": lambda g, n: MEDIAN_NS * (1 + 0.05 * g.uniform(-1, 1, n)),
    "gamma": lambda g, n: MEDIAN_NS * (0.9 + 0.025 * g.gamma(4, size=n)),
}


def lognormal(generator: np.random.Generator, n: int, sigma: float) -> np.ndarray:
    return MEDIAN_NS * np.exp(sigma * generator.standard_normal(n))


def plant(
    generator: np.random.Generator,
    latency_ns: np.ndarray,
    clusters: tuple[tuple[float, float], ...],
    *,
    jitter: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Latencies with clusters (multiplier, share) of exact size, and the cluster of each trial (-1: bulk).

    A trial of a cluster is its original latency times the multiplier, or with `jitter` the median
    times the multiplier with this relative spread. Positions are random.
    """
    n = len(latency_ns)
    latency_ns, planted = latency_ns.copy(), np.full(n, -1)
    for k, (multiplier, share) in enumerate(clusters):
        count, free = round(share * n), np.flatnonzero(planted < 0)
        places = generator.choice(free, count, replace=False)
        planted[places] = k
        median = float(np.median(latency_ns[planted < 0]))
        own = latency_ns[places] if jitter is None else median * (1 + jitter * generator.standard_normal(count))
        latency_ns[places] = multiplier * own
    return latency_ns, planted


def moving(latency_ns: np.ndarray, drift: float = 0.03, step: float = 0.05, at: float = 0.37) -> np.ndarray:
    """The latencies with a drift over the recording and a step of their level."""
    place = np.arange(len(latency_ns)) / len(latency_ns)
    return latency_ns * (1 + drift * place) * np.where(place >= at, 1 + step, 1.0)


def in_states(generator: np.random.Generator, n: int, run_length: float) -> np.ndarray:
    """Which of two states each trial is in: runs of geometric lengths, in turn."""
    ends = np.cumsum(generator.geometric(1 / run_length, size=n))
    return (generator.integers(0, 2) + np.searchsorted(ends, np.arange(n), "right")) % 2


#: Name -> level of each of n trials, counted from the fastest.
ALTERNATIONS = {
    "one level": lambda g, n: np.zeros(n, dtype=int),
    "two levels, independent": lambda g, n: g.integers(0, 2, n),
    "two levels, runs of 50": lambda g, n: in_states(g, n, 50),
    "three levels, independent": lambda g, n: g.integers(0, 3, n),
    "two levels, the share of the slow from 20 to 80 %": lambda g, n: (g.random(n) < np.linspace(0.2, 0.8, n)) * 1,
}


def at_levels(generator: np.random.Generator, kinds: np.ndarray, sigma: float = 0.01) -> np.ndarray:
    """Lognormal latencies at 1, 2, 3 times the same level."""
    return (1 + kinds) * lognormal(generator, len(kinds), sigma)


def beats(
    generator: np.random.Generator,
    n: int,
    period_ms: float,
    *,
    missed: float = 0.0,
    strays: int = 0,
    median_ns: float = MEDIAN_NS,
    outside_ns: float = 700.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Latencies, starts and delayed trials of a closed loop in which a timer delays the current trial.

    `missed`: share of timer events without effect; `strays`: delayed trials at random positions.
    """
    latency_ns = median_ns * np.exp(0.01 * generator.standard_normal(n))
    strayed = np.zeros(n, dtype=bool)
    strayed[generator.choice(n, strays, replace=False)] = True
    start_ns, hit = np.empty(n), np.zeros(n, dtype=bool)
    now, beat = 0.0, generator.uniform(0, period_ms * 1e6)
    for trial in range(n):
        start_ns[trial] = now
        while beat < now:  # between two trials: no trial is delayed
            beat += period_ms * 1e6
        if beat < now + latency_ns[trial]:
            hit[trial] = generator.random() >= missed
            beat += period_ms * 1e6
        if hit[trial] or strayed[trial]:
            latency_ns[trial] *= 1.25
        now += latency_ns[trial] + outside_ns
    return latency_ns, start_ns, hit


def with_counts(
    generator: np.random.Generator, latency_ns: np.ndarray, inside: np.ndarray, *, holds: float, else_: float, **more
) -> Round:
    """A sample with context switches in a share `holds` of the trials `inside`, `else_` of the rest; faults in 1 %."""
    n = len(latency_ns)
    switches = generator.random(n) < np.where(inside, holds, else_)
    faults = generator.random(n) < 0.01
    causes = {"involuntary_switches": switches.astype(np.int64), "minor_faults": faults.astype(np.int64)}
    return Round.of(latency_ns, causes=causes, **more)


def autoregressive(generator: np.random.Generator, n: int, rho: float) -> np.ndarray:
    """A stationary series of normal values; each is `rho` times the one before it and noise."""
    from scipy.signal import lfilter  # takes a second to load

    noise = generator.standard_normal(n)
    noise[1:] *= math.sqrt(1 - rho * rho)
    return lfilter([1], [1, -rho], noise)


def judge(rounds, *question, **lengths) -> Verdict:
    """The verdict on a `Question` with these fields."""
    return deadline.judge(rounds, Question(*question, **lengths))


def even(n: int, sigma: float = 0.01) -> np.ndarray:
    """A lognormal bulk in an order in which all parts are spread alike: chance plants no cluster, burst or step."""
    return MEDIAN_NS * np.exp(sigma * NORMAL((np.arange(n) * (5**0.5 - 1) / 2 + 0.5) % 1))


#: The chance that a program with exactly the rate that is asked for fails one `check_rate`.
CHANCE = 1e-6


def at_most(runs: int, rate: float) -> int:
    """The number of events that is exceeded with a probability of at most CHANCE at this rate."""
    return int(binom.isf(CHANCE, runs, rate))


def check_rate(events: int, runs: int, rate: float, shown: object = None) -> None:
    """Fails if more than `rate` of runs show an event, and for a program that keeps this rate once in 1 / CHANCE."""
    assert events <= at_most(runs, rate), f"{events} of {runs}, at most {rate:g} expected: {shown}"
