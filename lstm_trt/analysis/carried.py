"""Rounds and stretches that miss a deadline more than the whole, and drifts that carry the tail over it.

All trials of a configuration together can meet a deadline that one process, or the end of one,
misses: then the whole says nothing about the calls that come next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lstm_trt.analysis.quantiles import proves_above
from lstm_trt.samples import Sample


@dataclass(frozen=True)
class Round:
    """What one process contributed. `drift`: last level over first, minus 1 (see `segments.py`)."""

    round: int
    n: int
    misses: int
    max_us: float
    steady_state: str
    drift: float
    segments: int


def rounds_alone(
    samples: Sequence[Sample], misses: Sequence[np.ndarray], sizes: Sequence[int], allowed: Fraction, confidence: float
) -> list[str]:
    """Rounds that by themselves prove to miss more than allowed (Bonferroni over the rounds)."""
    if len(samples) == 1:
        return []
    each = 1 - (1 - confidence) / len(samples)
    return [
        f"round {sample.round} by itself misses more than allowed: {len(late)} of {size}"
        for sample, late, size in zip(samples, misses, sizes, strict=True)
        if proves_above(len(late), size, allowed, each)
    ]


def rounds_of(
    samples: Sequence[Sample],
    timed: Sequence[np.ndarray],
    misses: Sequence[np.ndarray],
    late_ns: float,
    allowed: Fraction,
    confidence: float,
) -> tuple[tuple[Round, ...], list[str]]:
    """What each process contributed, and where a drift carries its tail over the deadline.

    It does where a segment after the first proves by itself to miss more than allowed (Bonferroni
    over these), and where a process ends slower than it began, unsettled, and the latencies of its
    last segment, at the level of its end and slower once more by the same factor, would miss more
    than allowed. `timed`: latencies in ns, in order, an array a process; `misses`: ascending
    indices of those above `late_ns`.
    """
    from lstm_trt.analysis.segments import SAME_LEVEL, find_segments

    found = [find_segments(one) for one in timed]
    later = sum(len(one.segments) - 1 for one in found)
    each = 1 - (1 - confidence) / max(1, later)
    rounds, reasons = [], []
    for sample, one, late, seen in zip(samples, timed, misses, found, strict=True):
        of = f" of round {sample.round}" if len(timed) > 1 else ""
        for segment in seen.segments[1:]:
            inside = int(np.searchsorted(late, segment.stop) - np.searchsorted(late, segment.start))
            length = segment.stop - segment.start
            if proves_above(inside, length, allowed, each):
                stretch = f"trials {segment.start + 1} to {segment.stop}{of}"
                reasons.append(f"{stretch} by themselves miss more than allowed: {inside} of {length}")
        if seen.steady_state in ("slowdown", "no steady state") and seen.drift > SAME_LEVEL:
            start = seen.segments[-1].start
            last = one[start:] / seen.level_ns[start:] * seen.level_ns[-1] * (1 + seen.drift)
            carried = int(np.count_nonzero(last > late_ns))
            if carried > allowed * len(last):
                reasons.append(
                    f"the body{of} drifts by {100 * seen.drift:+.1f} %;"
                    f" as much again, and {carried} of the last {len(last)} trials would miss"
                )
        drifts = (seen.steady_state, float(seen.drift), len(seen.segments))
        rounds.append(Round(sample.round, len(one), len(late), float(one.max()) / 1e3, *drifts))
    return tuple(rounds), reasons
