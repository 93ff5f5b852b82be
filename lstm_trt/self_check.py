"""Clocks that are held against one another: what the trials' own stamps say must be true.

The recorder's clock is CLOCK_MONOTONIC; CLOCK_MONOTONIC_RAW, which nothing adjusts, is read
beside it before and after a loop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from lstm_trt.errors import RunFailed

#: How far the two clocks may differ: relative, and absolute for very short loops.
CLOCK_TOLERANCE = 1e-3
CLOCK_TOLERANCE_NS = 5_000


class ClockPair(NamedTuple):
    """Both clocks at one moment, in ns. `raw_ns` is known to within half of `bracket_ns`."""

    monotonic_ns: int
    raw_ns: int
    bracket_ns: int = 0


def clock_pair() -> ClockPair:
    """CLOCK_MONOTONIC and CLOCK_MONOTONIC_RAW at one moment.

    The second is read on both sides of the first; of up to 50 tries the one with the
    narrowest bracket counts, since a preemption in between would look like a drift.
    """
    raw_clock, best, pair = time.CLOCK_MONOTONIC_RAW, 1 << 62, ClockPair(0, 0)
    for _ in range(50):
        before = time.clock_gettime_ns(raw_clock)
        now = time.perf_counter_ns()
        after = time.clock_gettime_ns(raw_clock)
        if after - before < best:
            best = after - before
            pair = ClockPair(now, (before + after) // 2, best)
            if best < 1_000:
                break
    return pair


def ends(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """When each call had its answer: the latency counts from when it was due, where that was set."""
    return columns.get("intended_ns", columns["start_ns"]) + columns["latency_ns"]


def check_clocks(columns: Mapping[str, np.ndarray], first: ClockPair, last: ClockPair) -> dict:
    """Hold the trials' stamps against the pairs of clocks taken before and after the loop.

    Raises `RunFailed` where the clocks differ by more than 0.1 % and what reading them may be off,
    where a trial lies outside the loop, or where one begins before the last ended or before it was due.
    How busy the machine is plays no part: what keeps the loop waiting, both clocks count.
    """
    start, end = columns["start_ns"], ends(columns)
    by_stamps, by_raw = last.monotonic_ns - first.monotonic_ns, last.raw_ns - first.raw_ns
    allowed = CLOCK_TOLERANCE * by_raw + CLOCK_TOLERANCE_NS + (first.bracket_ns + last.bracket_ns) / 2
    if abs(by_stamps - by_raw) > allowed:
        raise RunFailed(
            f"self-check: the loop took {by_stamps} ns by CLOCK_MONOTONIC and {by_raw} ns by CLOCK_MONOTONIC_RAW"
        )
    if (end < start).any() or (start[1:] < end[:-1]).any():
        raise RunFailed("self-check: a trial begins before the last one ended")
    if "intended_ns" in columns and (start < columns["intended_ns"]).any():
        raise RunFailed("self-check: a trial begins before it was due")
    if start[0] < first.monotonic_ns or end[-1] > last.monotonic_ns:
        raise RunFailed("self-check: a trial lies outside the loop")
    return {"loop_ns": by_stamps, "loop_raw_ns": by_raw, "clocks_differ_by": by_stamps / by_raw - 1 if by_raw else 0.0}
