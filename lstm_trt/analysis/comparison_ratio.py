"""One percentile of two sides, process by process: is their ratio beyond what processes differ by?

Called with the trials of each process; `comparison.py` says what the answers rest on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lstm_trt.analysis.certainty import ONE_PROCESS_RATIO, ROUNDS, ratio_rank, worth
from lstm_trt.analysis.quantiles import interval_ranks
from lstm_trt.analysis.summary import percentile

SAME, FASTER, SLOWER, AMBIGUOUS = "SAME", "FASTER", "SLOWER", "AMBIGUOUS"
#: What this many times as many trials exceed as the percentile counts as its tail.
TAIL = 5


@dataclass(frozen=True)
class Judged:
    """The word, the ratio B / A with its bounds over rounds, each process's percentile, and why.

    `rounds_needed` a side would decide where this did not; 0 where it did.
    """

    word: str
    ratio: float | None
    low: float | None
    high: float | None
    values_us: tuple[tuple[float, ...], tuple[float, ...]]
    reasons: tuple[str, ...]
    rounds_needed: int


def judge(
    name: str,
    share: Fraction,
    sides: list[list[np.ndarray]],
    effect: float,
    confidence: float,
    each: float,
    machine: float = 1.0,
) -> Judged:
    """Compare the percentile `share` of A's and B's processes (`sides`: trials in ns, in order, an array a process).

    `each` is the confidence of the interval over rounds, `confidence` that within processes, `machine`
    by how much the machine itself was slower for B, as far as control runs tell.
    """
    ordered = [[np.sort(one) for one in side] for side in sides]
    values = [np.array([percentile(one, share) for one in side]) for side in ordered]
    ratios = np.sort(np.divide.outer(values[1], values[0]).ravel())
    ratio = math.sqrt(ratios[(len(ratios) - 1) // 2] * ratios[len(ratios) // 2])
    m, n = len(values[0]), len(values[1])
    rank = ratio_rank(m, n, each)
    low, high = (float(ratios[rank - 1]), float(ratios[-rank])) if rank else (None, None)
    values_us = tuple(tuple((one / 1e3).tolist()) for one in values)
    few = min(m, n) < ROUNDS
    if rank and not few:
        word, reason = _by_rounds(name, low, high, effect)
        needed = 2 * max(m, n) if word == AMBIGUOUS else 0
    elif few:
        word, reason = _by_processes(name, share, sides, ordered, values, ratio, effect, confidence, machine)
        needed = _least_rounds(each) if word == AMBIGUOUS else 0
    else:
        word, needed = AMBIGUOUS, _least_rounds(each)
        reason = f"{name}: {m} and {n} rounds give no interval at {100 * confidence:g} % confidence, {needed} a side do"
    return Judged(word, ratio, low, high, values_us, (reason,), needed)


def _least_rounds(each: float) -> int:
    return next((m for m in range(ROUNDS, 101) if ratio_rank(m, m, each)), 100)


def _by_rounds(name: str, low: float, high: float, effect: float) -> tuple[str, str]:
    least, most = 1 / (1 + effect), 1 + effect
    bounds = f"{name}: over rounds the ratio lies between {low:.4g} and {high:.4g}"
    if high < least:
        return FASTER, f"{bounds}, beyond the effect of {100 * effect:g} %"
    if low > most:
        return SLOWER, f"{bounds}, beyond the effect of {100 * effect:g} %"
    if least <= low and high <= most:
        return SAME, f"{bounds}, within {100 * effect:g} % of 1"
    return AMBIGUOUS, f"{bounds}, neither within {100 * effect:g} % of 1 nor beyond"


def _by_processes(
    name: str,
    share: Fraction,
    sides: list[list[np.ndarray]],
    ordered: list[list[np.ndarray]],
    values: list[np.ndarray],
    ratio: float,
    effect: float,
    confidence: float,
    machine: float,
) -> tuple[str, str]:
    """With fewer than 5 rounds a side."""
    sure = max(ONE_PROCESS_RATIO, 1 + effect)
    m, n = len(values[0]), len(values[1])
    rounds = "one process a side" if m == n == 1 else f"{m} processes a side" if m == n else f"{m} and {n} processes"
    apart = max(ratio, 1 / ratio)
    if apart <= sure:
        return AMBIGUOUS, f"{name}: {rounds}: below a ratio of {sure:.2f} that proves nothing, {ROUNDS} a side do"
    within = max(float(one.max() / one.min()) for one in values)
    if apart <= within:
        return AMBIGUOUS, f"{name}: rounds of one side differ by a ratio of {within:.2f} themselves"
    slow = 1 if ratio > 1 else 0
    state = max(1.0, machine if slow else 1 / machine)
    if apart <= sure * state:
        return (
            AMBIGUOUS,
            f"{name}: {rounds}, and the control run of an empty step differs by a ratio of {state:.2f} too",
        )
    part = _part_worth(sides, values, share)
    lows = [(_bounds(one, part, share, confidence)[0], v) for one, v in zip(ordered[slow], values[slow], strict=True)]
    fast = 1 - slow
    highs = [(_bounds(one, part, share, confidence)[1], v) for one, v in zip(ordered[fast], values[fast], strict=True)]
    if any(bound is None for bound, _ in lows + highs):
        return AMBIGUOUS, (
            f"{name}: {rounds}: there is no interval, since late answers that come together make the trials worth"
            f" {100 * part:.0f} % of their number"
        )
    if max(bound for bound, _ in highs) >= min(bound for bound, _ in lows):
        return AMBIGUOUS, f"{name}: the exact intervals of the processes overlap"
    # Chance within the processes adds to what processes differ by, as squares.
    chance = [max(math.log(value / bound) for bound, value in lows), max(math.log(b / v) for b, v in highs)]
    needed = math.exp(math.hypot(math.log(sure), *chance))
    if apart <= needed:
        return AMBIGUOUS, (
            f"{name}: {rounds}: with chance within a process added, that proves nothing below a ratio of {needed:.2f}"
        )
    word = SLOWER if slow else FASTER
    return word, (
        f"{name}: {rounds}, with disjoint intervals and a ratio beyond {needed:.2f}; this holds where processes"
        f" of one configuration differ by less than {100 * (ONE_PROCESS_RATIO - 1):.0f} %"
    )


def _part_worth(sides: list[list[np.ndarray]], values: list[np.ndarray], share: Fraction) -> float:
    """Independent trials over trials, the least of all processes.

    Looked at above each process's own percentile, and above the middle of all where that is still
    the tail. The least, since a burst of late answers that fell into one process only leaves no
    trace in the other.
    """
    middle = math.exp(np.mean(np.log(np.concatenate(values))))
    looks = []
    for side, own in zip(sides, values, strict=True):
        for one, value in zip(side, own, strict=True):
            beyond = one > middle
            looks.append(worth(one > value) / len(one))
            if beyond.mean() <= TAIL * (1 - share):
                looks.append(worth(beyond) / len(one))
    return min(looks)


def _bounds(ordered: np.ndarray, part: float, share: Fraction, confidence: float) -> tuple[float | None, float | None]:
    """The order-statistic interval, its ranks those of as many trials as these are worth."""
    n = len(ordered)
    trials = max(1, math.floor(n * part))
    low, high = interval_ranks(trials, share, confidence)
    return (
        None if low is None else float(ordered[max(1, low * n // trials) - 1]),
        None if high is None else float(ordered[min(n, -(-high * n // trials)) - 1]),
    )
