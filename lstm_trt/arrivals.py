"""When the next call begins: one loop for each kind of arrival, and room for one block of their trials.

Closed: the next call when the last has returned. Periodic: a call is due each period, and
its latency counts from when it was due, so that a late call makes the next ones late and
each of them says so (no coordinated omission). Paused: an idle gap before each call, in
which the processor does what it does when it is idle.

`perf_counter_ns` and `time.sleep` use one clock, CLOCK_MONOTONIC, and `time.sleep` sleeps
to an absolute time of it (clock_nanosleep), so that what lies between reading the clock and
going to sleep does not add to the sleep.
"""

from __future__ import annotations

import resource
import time
from array import array
from collections.abc import Callable

import numpy as np

from lstm_trt.configuration import Protocol

#: `sleep` sleeps until this long before the call is due, then spins.
SPIN_NS = 200_000

_USAGE_FIELDS = {"involuntary_switches": 15, "minor_faults": 6, "major_faults": 7}


def spin_until(due_ns: int) -> int:
    """Read the clock until `due_ns`; returns the last reading."""
    clock = time.perf_counter_ns
    now = clock()
    while now < due_ns:
        now = clock()
    return now


def sleep_until(due_ns: int) -> int:
    """Sleep until `SPIN_NS` before `due_ns`, then spin; returns the last reading of the clock."""
    clock = time.perf_counter_ns
    ahead = due_ns - SPIN_NS - clock()
    if ahead > 0:
        time.sleep(ahead / 1e9)
    now = clock()
    while now < due_ns:
        now = clock()
    return now


def os_until(due_ns: int) -> int:
    """Leave the waiting to the operating system's timer; returns the clock after it."""
    clock = time.perf_counter_ns
    now = clock()
    while now < due_ns:
        time.sleep((due_ns - now) / 1e9)
        now = clock()
    return now


WAITING: dict[str, Callable[[int], int]] = {"spin": spin_until, "sleep": sleep_until, "os": os_until}


class Block:
    """Room for one block's rows, written once so that no page is touched first inside the loop."""

    def __init__(self, capacity: int, protocol: Protocol) -> None:
        self.rows = 0
        self.start, self.latency, self.switches, self.minor, self.major = (
            array("q", bytes(8 * capacity)) for _ in range(5)
        )
        self.intended = array("q", bytes(8 * capacity)) if protocol.arrival == "periodic" else None
        self._period_ns = round(1e3 * (protocol.period_us or 0))
        self._pause_s = (protocol.pause_ms or 0) / 1e3
        self._until = WAITING.get(protocol.wait)
        # When the next call is due; while the schedule stands still, how long it is still away.
        self._due_ns: int | None = None
        self._ahead_ns = self._period_ns
        self.run = {"closed": self._closed, "periodic": self._periodic, "paused": self._paused}[protocol.arrival]

    def _closed(self, step: Callable[[], None], count: int, who: int, budget_ns: int) -> int:
        """Up to `count` trials, fewer where `budget_ns` is over; returns how many were run."""
        start_of, latency_of = self.start, self.latency
        switches, minor, major = self.switches, self.minor, self.major
        clock, usage = time.perf_counter_ns, resource.getrusage
        first = self.rows
        limit = clock() + budget_ns
        for row in range(first, first + count):
            start = clock()
            step()
            end = clock()
            counted = usage(who)
            start_of[row] = start
            latency_of[row] = end - start
            switches[row] = counted[15]
            minor[row] = counted[6]
            major[row] = counted[7]
            if end > limit:
                break
        self.rows = row + 1
        return self.rows - first

    def _periodic(self, step: Callable[[], None], count: int, who: int, budget_ns: int) -> int:
        """As `_closed`, each call due one period after the last; a late one is begun at once.

        After `rest` the schedule stands still until the next run.
        """
        start_of, latency_of, intended_of = self.start, self.latency, self.intended
        switches, minor, major = self.switches, self.minor, self.major
        clock, usage, until, period = time.perf_counter_ns, resource.getrusage, self._until, self._period_ns
        first = self.rows
        now = clock()
        limit = now + budget_ns
        due = now + self._ahead_ns if self._due_ns is None else self._due_ns
        for row in range(first, first + count):
            start = until(due)
            step()
            end = clock()
            counted = usage(who)
            intended_of[row] = due
            start_of[row] = start
            latency_of[row] = end - due
            switches[row] = counted[15]
            minor[row] = counted[6]
            major[row] = counted[7]
            due += period
            if end > limit:
                break
        self._due_ns = due
        self.rows = row + 1
        return self.rows - first

    def _paused(self, step: Callable[[], None], count: int, who: int, budget_ns: int) -> int:
        """As `_closed`, with a pause before each call; the latency counts from the call's beginning."""
        start_of, latency_of = self.start, self.latency
        switches, minor, major = self.switches, self.minor, self.major
        clock, usage, sleep, pause = time.perf_counter_ns, resource.getrusage, time.sleep, self._pause_s
        first = self.rows
        limit = clock() + budget_ns
        for row in range(first, first + count):
            sleep(pause)
            start = clock()
            step()
            end = clock()
            counted = usage(who)
            start_of[row] = start
            latency_of[row] = end - start
            switches[row] = counted[15]
            minor[row] = counted[6]
            major[row] = counted[7]
            if end > limit:
                break
        self.rows = row + 1
        return self.rows - first

    def rest(self) -> None:
        """Stop the schedule until the next run: what is done meanwhile makes no call late, and a backlog stays."""
        if self._due_ns is not None:
            self._ahead_ns, self._due_ns = self._due_ns - time.perf_counter_ns(), None

    def take(self, before: tuple) -> dict[str, np.ndarray]:
        """The rows as arrays, counters as differences; empties the block."""
        rows, self.rows = self.rows, 0

        def column(values: array) -> np.ndarray:
            return np.frombuffer(values, dtype=np.int64, count=rows).copy()

        taken = {"start_ns": column(self.start), "latency_ns": column(self.latency)}
        if self.intended is not None:
            taken["intended_ns"] = column(self.intended)
        cumulative = {
            "involuntary_switches": self.switches,
            "minor_faults": self.minor,
            "major_faults": self.major,
        }
        for name, values in cumulative.items():
            taken[name] = np.diff(column(values), prepend=np.int64(before[_USAGE_FIELDS[name]]))
        return taken
