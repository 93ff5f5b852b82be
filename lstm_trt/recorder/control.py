"""The control run: an empty step with the same arrivals, which shows what the machine itself does to a call.

It runs in the same pinned process right after the trials. A stall of the machine (another
task, the hypervisor, an interrupt of the firmware) makes an empty step late as it makes any
other, so what the two have in common is not the network's doing.

An empty step takes no time, so where calls follow one another (closed and paused arrivals)
the core is kept busy in its place: it spins for the recording's median latency, and the
latency is how much later than that it was done. With a period, calls are due each period
and waited for as in the recording; the latency counts from there.
"""

from __future__ import annotations

import time
from array import array

import numpy as np

from lstm_trt.config.configuration import Protocol
from lstm_trt.recorder.loop import WAITING, quiet_collector

LONGEST_S = 60.0

MOST_CALLS = 1_000_000

#: What a turn of the loop below takes itself, with room to spare.
LEAST_SPACING_NS = 2_000


def _empty() -> None:
    pass


def run_control(protocol: Protocol, calls: int, median_ns: float) -> tuple[dict[str, np.ndarray], dict]:
    """The control run of a recording with `calls` trials and this median latency.

    As many calls, at most a million, for at most a minute. Returns `start_ns` (when each
    call was due, from the loop's beginning) and `latency_ns` (from there), both int64; and
    what was run, as JSON values.
    """
    spacing_ns = round(1e3 * protocol.period_us) if protocol.period_us else max(LEAST_SPACING_NS, round(median_ns))
    turn_ns = spacing_ns + 1e6 * (protocol.pause_ms or 0)
    calls = max(1, min(calls, MOST_CALLS, int(1e9 * LONGEST_S / turn_ns)))
    due_at, latency_of = array("q", bytes(8 * calls)), array("q", bytes(8 * calls))
    with quiet_collector():
        loop = _periodic if protocol.arrival == "periodic" else _following
        began, done = loop(due_at, latency_of, spacing_ns, protocol)
    start_ns = np.frombuffer(due_at, np.int64, done) - began
    latency_ns = np.frombuffer(latency_of, np.int64, done).copy()
    told = {
        "arrival": protocol.arrival,
        "wait": protocol.wait if protocol.arrival == "periodic" else "spin",
        "spacing_us": spacing_ns / 1e3,
        **({"pause_ms": protocol.pause_ms} if protocol.pause_ms else {}),
        "calls": done,
        "median_us": float(np.median(latency_ns)) / 1e3,
        "max_us": int(latency_ns.max()) / 1e3,
    }
    return {"start_ns": start_ns, "latency_ns": latency_ns}, told


def _periodic(due_at: array, latency_of: array, spacing_ns: int, protocol: Protocol) -> tuple[int, int]:
    clock, until, step = time.perf_counter_ns, WAITING[protocol.wait], _empty
    began = clock()
    limit = began + int(1e9 * LONGEST_S)
    due = began + spacing_ns
    for row in range(len(due_at)):
        until(due)
        step()
        end = clock()
        due_at[row] = due
        latency_of[row] = end - due
        due += spacing_ns
        if end > limit:
            break
    return began, row + 1


def _following(due_at: array, latency_of: array, spacing_ns: int, protocol: Protocol) -> tuple[int, int]:
    clock, sleep, step = time.perf_counter_ns, time.sleep, _empty
    pause = (protocol.pause_ms or 0) / 1e3
    began = clock()
    limit = began + int(1e9 * LONGEST_S)
    for row in range(len(due_at)):
        if pause:
            sleep(pause)
        due = clock() + spacing_ns
        while clock() < due:
            pass
        step()
        end = clock()
        due_at[row] = due
        latency_of[row] = end - due
        if end > limit:
            break
    return began, row + 1
