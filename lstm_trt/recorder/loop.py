"""The timed loop: blocks of trials with closed, periodic or paused arrivals, and a check of the
clocks.

It is independent of LSTMs: it calls a given `step`. A trial is timed by
`time.perf_counter_ns` (CLOCK_MONOTONIC) directly before and after one call. Context switches
and page faults are read once after each trial, outside the timed region, so a trial's counts
cover the trial and about 1 us of the recorder's own work before it. Between blocks the
machine's state is read; the `settle` trials after that are marked as warm-up.

Closed arrivals: the next call starts when the previous one has returned. Periodic: one call
is due per period, and its latency is counted from the due time, so that a delayed call also
shows in the latencies of the calls that it delays (no coordinated omission). Paused: each call
follows an idle gap.

`perf_counter_ns` and `time.sleep` use the same clock, CLOCK_MONOTONIC, and `time.sleep` sleeps
until an absolute time (clock_nanosleep), so a delay between reading the clock and going to
sleep does not lengthen the sleep. CLOCK_MONOTONIC_RAW, which is not adjusted (NTP), is read
before and after a loop and must agree with the trials' timestamps.

The control run has an empty step in place of the given one.
"""

import gc
import resource
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lstm_trt.config.configuration import Protocol, warnings_of
from lstm_trt.config.errors import RunFailed
from lstm_trt.config.format import microseconds
from lstm_trt.machine import counters
from lstm_trt.machine.switches import Switches

#: The wait `sleep` sleeps until this long before the call is due, then spins.
SPIN_NS = 200_000

#: Largest difference of the two clocks: relative, and absolute (for very short loops).
CLOCK_TOLERANCE = 1e-3

CLOCK_TOLERANCE_NS = 5_000

#: A call is too short to be resolved if an empty step would take a larger share of its time.
RESOLVED_SHARE = 0.1

#: A block of calls with gaps between them lasts for 50 gaps, at most this long.
LONGEST_BLOCK_S = 10.0

UNLIMITED = 1 << 62

#: Column of a block -> index in the result of getrusage.
_USAGE_FIELDS = {"involuntary_switches": 15, "minor_faults": 6, "major_faults": 7}


def waiter(spin_ns: int) -> Callable[[int], int]:
    """A function that sleeps until `spin_ns` before a time and then reads the clock until then.

    It returns the last reading.
    """

    def until(due_ns: int) -> int:
        clock, wake_ns = time.perf_counter_ns, due_ns - spin_ns
        now = clock()
        while now < wake_ns:
            time.sleep((wake_ns - now) / 1e9)
            now = clock()
        while now < due_ns:
            now = clock()
        return now

    return until


#: The ways to wait: by reading the clock only, at last, or not at all, that is by the operating
#: system's timer.
WAITING = {"spin": waiter(UNLIMITED), "sleep": waiter(SPIN_NS), "os": waiter(0)}


class Block:
    """Buffers for one block's rows, written once in advance so that the loop causes no page faults
    in them.

    With `spacing_ns`, which the control run uses, each call is due that long after the previous one
    (and the pause, if there is one) ended, in place of the protocol's arrivals.
    """

    def __init__(self, capacity: int, protocol: Protocol, spacing_ns: int = 0) -> None:
        self.rows = 0
        self._spacing_ns = spacing_ns
        self._period_ns = 0 if spacing_ns else round(1e3 * (protocol.period_us or 0))
        self._pause_s = (protocol.pause_ms or 0) / 1e3
        self._until = WAITING.get("spin" if spacing_ns else protocol.wait or "none")
        due = ["intended_ns"] if self._period_ns or spacing_ns else []
        names = ["start_ns", "latency_ns", *due, *_USAGE_FIELDS]
        self._columns = {name: array("q", bytes(8 * capacity)) for name in names}
        # When the next call is due; while the schedule is stopped, the time left until then.
        self._due_ns: int | None = None
        self._ahead_ns = self._period_ns

    def run(self, step: Callable[[], None], count: int, who: int, budget_ns: int) -> int:
        """Run up to `count` trials, fewer if `budget_ns` is used up; returns how many were run.

        With a period, each call is due one period after the previous one, an overdue call starts at
        once, and the latency is counted from the due time. After `rest` the schedule is stopped
        until the next run.
        """
        start_of, latency_of = self._columns["start_ns"], self._columns["latency_ns"]
        due_of: Any = self._columns.get("intended_ns")
        switches, minor, major = (self._columns[name] for name in _USAGE_FIELDS)
        clock, usage, sleep = time.perf_counter_ns, resource.getrusage, time.sleep
        until: Any = self._until
        pause, spacing, period = self._pause_s, self._spacing_ns, self._period_ns
        first, due = self.rows, self._due_ns
        now = clock()
        limit = now + budget_ns
        if due is None:
            due = now + self._ahead_ns
        for row in range(first, first + count):
            if pause:
                sleep(pause)
            if spacing:
                due = clock() + spacing
            start = clock() if due_of is None else until(due)
            step()
            end = clock()
            counted = usage(who)
            start_of[row] = start
            switches[row] = counted[15]
            minor[row] = counted[6]
            major[row] = counted[7]
            if due_of is None:
                latency_of[row] = end - start
            else:
                latency_of[row] = end - due
                due_of[row] = due
                due += period
            if end > limit:
                break
        self._due_ns, self.rows = due if period else None, row + 1
        return self.rows - first

    def rest(self) -> None:
        """Stop the schedule until the next run: work done meanwhile delays no call, and a backlog
        is kept."""
        if self._due_ns is not None:
            self._ahead_ns, self._due_ns = self._due_ns - time.perf_counter_ns(), None

    def take(self, before: tuple) -> dict[str, np.ndarray]:
        """The rows as arrays, counters as differences; empties the block."""
        rows, self.rows = self.rows, 0
        taken = {
            name: np.frombuffer(kept, np.int64, rows).copy() for name, kept in self._columns.items()
        }
        for name, field_index in _USAGE_FIELDS.items():
            taken[name] = np.diff(taken[name], prepend=np.int64(before[field_index]))
        return taken


class ClockPair(NamedTuple):
    """Both clocks at one moment, in ns. The uncertainty of `raw_ns` is half of `bracket_ns`."""

    monotonic_ns: int
    raw_ns: int
    bracket_ns: int = 0


def clock_pair() -> ClockPair:
    """CLOCK_MONOTONIC and CLOCK_MONOTONIC_RAW at one moment.

    The second is read before and after the first; of up to 50 attempts the one with the
    narrowest bracket is kept, since a preemption in between would look like a clock difference.
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
    """When each call returned; the latency is counted from the due time if there is one, else from
    the start."""
    return columns.get("intended_ns", columns["start_ns"]) + columns["latency_ns"]


def check_clocks(columns: Mapping[str, np.ndarray], first: ClockPair, last: ClockPair) -> dict:
    """Compare the trials' timestamps with the pairs of clocks read before and after the loop.

    Raises `RunFailed` if the clocks differ by more than 0.1 % plus the uncertainty of reading them,
    if a trial lies outside the loop, or if one starts before the previous one ended or before it
    was due. The check does not depend on the machine's load, since both clocks include all delays.
    """
    start, end = columns["start_ns"], ends(columns)
    by_stamps, by_raw = last.monotonic_ns - first.monotonic_ns, last.raw_ns - first.raw_ns
    allowed = (
        CLOCK_TOLERANCE * by_raw + CLOCK_TOLERANCE_NS + (first.bracket_ns + last.bracket_ns) / 2
    )
    if abs(by_stamps - by_raw) > allowed:
        raise RunFailed(
            f"self-check: the loop took {by_stamps} ns by CLOCK_MONOTONIC and {by_raw} ns by CLOCK_MONOTONIC_RAW"
        )
    if (end < start).any() or (start[1:] < end[:-1]).any():
        raise RunFailed("self-check: a trial starts before the previous one ended")
    if "intended_ns" in columns and (start < columns["intended_ns"]).any():
        raise RunFailed("self-check: a trial starts before it was due")
    if start[0] < first.monotonic_ns or end[-1] > last.monotonic_ns:
        raise RunFailed("self-check: a trial's timestamps are outside the loop")
    return {
        "loop_ns": by_stamps,
        "loop_raw_ns": by_raw,
        "clocks_differ_by": by_stamps / by_raw - 1 if by_raw else 0.0,
    }


class PeriodTooShort(RunFailed):
    """The period is shorter than the step's median latency."""

    invalid = True


@dataclass(frozen=True)
class Trials:
    """What the loop recorded.

    `columns`: name -> int64 array with one entry per row (`warmup` is bool); a column that
    was not measured is absent. `start_ns` and, with periodic arrivals, `intended_ns` are
    counted from the start of the loop.
    `blocks`: first row, number of rows, and what changed on the machine during each block.
    `self_check`: how well the two clocks agree, see `check_clocks`.
    """

    columns: dict[str, np.ndarray]
    blocks: list[dict]
    self_check: dict
    started_unix_ns: int
    inside_ns: int
    warnings: list[str] = field(default_factory=list)

    @property
    def median_ns(self) -> float:
        """Median time of the timed calls, from start to end."""
        return float(
            np.median((ends(self.columns) - self.columns["start_ns"])[~self.columns["warmup"]])
        )


def against_clock(median_ns: float, clock: Mapping[str, int]) -> dict[str, float]:
    """How well calls of this median time are resolved, by the costs that `facts.clock_cost` found.

    `median_share`: the share of the median that an empty step, which is a call of a Python
    function, takes. `shortest_us`: the shortest call that is resolved, of which an empty step and a
    step of the clock are at most `RESOLVED_SHARE`.
    """
    shortest_us = max(clock["call_ns"], clock["step_ns"]) / RESOLVED_SHARE / 1e3
    return {"median_share": clock["call_ns"] / median_ns, "shortest_us": shortest_us}


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Run, freeze and disable the garbage collector; restores its state on exit.

    Objects that a worker has already frozen, between two configurations, stay frozen:
    traversing its 200 000 objects each time would take 30 ms.
    """
    if not gc.isenabled():  # already disabled, by this function or by the caller
        yield
        return
    was_frozen = gc.get_freeze_count() > 0
    gc.collect()
    if not was_frozen:
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
        gc.enable()


class Loop:
    """Consecutive blocks of trials; the machine's state is read between them.

    `read_machine` is called before the first and after each block (`counters.difference` compares
    its results); `device_times` returns the device times of the block's rows. With more than one
    thread, context switches and page faults of the whole process are counted, else those of this
    thread. `switches` measures the time off the core. `after_warmup` is called once, before the
    first timed trial. `first_pair` and `last_pair` are the two clocks before the first block and
    after the last; `restart` resets them, to exclude time that was not spent in the loop.
    """

    def __init__(
        self,
        step: Callable[[], None],
        protocol: Protocol,
        *,
        threads: int = 1,
        read_machine: Callable[[], Mapping] = dict,
        device_times: Callable[[], Mapping[str, np.ndarray]] = dict,
        switches: Switches | None = None,
        after_warmup: Callable[[], None] | None = None,
    ) -> None:
        self._switches, self._after_warmup = switches, after_warmup
        self._step, self._protocol = step, protocol
        self._who = resource.RUSAGE_THREAD if threads == 1 else resource.RUSAGE_SELF
        self._read_machine, self._device_times = read_machine, device_times
        self._block = Block(protocol.block_trials + max(protocol.warmup, protocol.settle), protocol)
        # With long gaps a block is longer, otherwise most of its calls would be `settle` trials.
        self._budget_ns = max(
            protocol.block_ms * 1_000_000, int(1e9 * min(LONGEST_BLOCK_S, 50 * protocol.gap_s))
        )
        self.restart()

    def restart(self) -> None:
        """Read the machine and the clocks again, and discard the blocks recorded so far."""
        self.chunks: list[dict[str, np.ndarray]] = []
        self.blocks: list[dict] = []
        self.rows = 0
        self._machine = self._read_machine()
        self.started_unix_ns = time.time_ns()
        self.first_pair = self.last_pair = clock_pair()

    def run(self, marked: int, most: int, budget_ns: int) -> int:
        """Run one block: `marked` warm-up trials, then up to `most`; returns how many were timed.

        Raises `RunFailed` if the runtime returns the device times of another number of trials.
        """
        if self._switches:
            self._switches.discard()
        before_usage = resource.getrusage(self._who)
        if marked:
            self._block.run(self._step, marked, self._who, UNLIMITED)
        if self._after_warmup:
            self._block.rest()
            self._after_warmup()
            self._after_warmup = None
        most = min(
            self._protocol.block_trials,
            most,
            self._switches.room(marked) if self._switches else UNLIMITED,
        )
        timed = self._block.run(self._step, most, self._who, min(self._budget_ns, budget_ns))
        self._block.rest()
        self.last_pair = clock_pair()
        machine = self._read_machine()
        chunk, rows = self._block.take(before_usage), marked + timed
        chunk["warmup"] = np.arange(rows) < marked
        if self._switches:
            chunk |= self._switches.take(chunk["start_ns"], ends(chunk))
        for name, values in self._device_times().items():
            if len(values) != rows:
                raise RunFailed(
                    f"the runtime returned {len(values)} values of {name} for {rows} trials"
                )
            chunk[name] = values
        self.chunks.append(chunk)
        self.blocks.append(
            {"first_row": self.rows, "rows": rows, **counters.difference(self._machine, machine)}
        )
        self.rows += rows
        self._machine = machine
        return timed

    def part(
        self,
        marked: int,
        end_ns: int = UNLIMITED,
        after: Callable[[int], object] = lambda timed: None,
    ) -> int:
        """Run blocks until the protocol's trials are timed or the clock is past `end_ns`; returns
        how many were timed.

        The first block has `marked` warm-up trials, the others `settle`. `after(timed)` follows
        each block, and ends the part if it returns true.
        """
        timed, clock, ended = 0, time.perf_counter_ns, False
        while not timed or not (ended or timed >= self._protocol.trials or clock() >= end_ns):
            timed += self.run(marked, self._protocol.trials - timed, max(0, end_ns - clock()))
            marked = self._protocol.settle
            ended = bool(after(timed))
        return timed

    def trials(self, origin_ns: int | None = None) -> Trials:
        """The trials since `restart`, checked; timestamps are relative to `origin_ns` (default: the
        loop's start)."""
        columns = {
            name: np.concatenate([chunk[name] for chunk in self.chunks]) for name in self.chunks[0]
        }
        self_check = check_clocks(columns, self.first_pair, self.last_pair)
        inside_ns = int((ends(columns) - columns["start_ns"]).sum())
        wall_ns = self_check["loop_ns"]
        for name in ("start_ns", "intended_ns"):
            if name in columns:
                columns[name] -= self.first_pair.monotonic_ns if origin_ns is None else origin_ns
        self_check["outside_share"] = 1 - inside_ns / wall_ns
        blocks = counters.split_cpu_time(self.blocks)
        self_check["between_calls"] = between_calls(columns, blocks, inside_ns, wall_ns)
        unexplained_ns = counters.total(blocks, "unexplained_cpu_ns")
        warnings = warnings_of(self._protocol, self.rows, inside_ns, self_check, unexplained_ns)
        return Trials(columns, blocks, self_check, self.started_unix_ns, inside_ns, warnings)


def between_calls(
    columns: Mapping[str, np.ndarray], blocks: Sequence[Mapping], inside_ns: int, wall_ns: int
) -> dict[str, int] | None:
    """What the timed thread did between the calls of a loop, in ns, by
    `configuration.BETWEEN_CALLS`; the sum is exact.

    Its CPU time, and its time of waiting for a core, are known for the whole loop, and within calls
    by its times off the core. None where either is not measured.
    """
    cpu_ns, runnable_ns = (
        counters.total(blocks, "thread_cpu_ns"),
        counters.total(blocks, "runnable_ns"),
    )
    if "off_core_ns" not in columns or cpu_ns is None or runnable_ns is None:
        return None
    outside_ns = wall_ns - inside_ns
    cpu_of_calls_ns = inside_ns - columns["off_core_ns"].sum()
    recorder_ns = int(np.clip(cpu_ns - cpu_of_calls_ns, 0, outside_ns))
    runnable_ns = int(
        np.clip(runnable_ns - columns["preempted_ns"].sum(), 0, outside_ns - recorder_ns)
    )
    waiting_ns = outside_ns - recorder_ns - runnable_ns
    return {"recorder_ns": recorder_ns, "runnable_ns": runnable_ns, "waiting_ns": waiting_ns}


def pilot(step: Callable[[], None], protocol: Protocol) -> dict:
    """Check that the period is long enough, by a few calls in a closed loop that are not recorded.

    Returns `{"calls", "median_us"}`. Raises `PeriodTooShort` if the period is below the
    median: the backlog of calls would grow without limit.
    """
    for rounds, seconds in ((10, 0.5), (100, 1.0)):  # the first round is warm-up
        taken: list[int] = []
        limit = time.perf_counter_ns() + int(1e9 * seconds)
        while len(taken) < rounds and (len(taken) < 3 or time.perf_counter_ns() < limit):
            start = time.perf_counter_ns()
            step()
            taken.append(time.perf_counter_ns() - start)
    median_us = float(np.median(taken)) / 1e3
    if protocol.period_us is not None and protocol.period_us < median_us:
        median = f"the step's median latency of {microseconds(median_us)} us (pilot of {len(taken)} calls)"
        remedy = f"use a longer period, such as --period-us {1.25 * median_us + 1:.0f}"
        short = f"the period of {protocol.period_us:g} us is shorter than {median}"
        raise PeriodTooShort(f"{short}: delays would grow without limit; {remedy}")
    return {"calls": len(taken), "median_us": median_us}


#: The longest control run, and the most calls of one.
LONGEST_CONTROL_S, MOST_CALLS = 60.0, 1_000_000

#: Calls that sleep are read from the ring of `switches` after so many.
MOST_SLEEPS = 5_000

#: Upper estimate of the loop's own time per call.
LEAST_SPACING_NS = 2_000


def _empty() -> None:
    pass


def run_control(
    protocol: Protocol, calls: int, median_ns: float, switches: Switches | None = None
) -> tuple[dict[str, np.ndarray], dict]:
    """The control run of a recording with `calls` trials and this median latency.

    It is an empty step with the same arrivals, which shows the delays that the machine itself
    causes, in the same pinned process right after the trials. A stall of the machine (another task,
    the hypervisor, a firmware interrupt) delays an empty step as it delays any other, so delays
    seen in both runs are not caused by the network.

    With closed and paused arrivals, the core spins for the recording's median latency in place of
    each call, since an empty step takes no time; the latency is the delay beyond that. With
    periodic arrivals, calls are due once per period as in the recording, and the latency is counted
    from the due time.

    Runs the same number of calls, at most a million, for at most a minute. Returns the
    columns `start_ns` (due time of each call, from the start of the loop), `latency_ns`
    (from the due time), and where `switches` measures them `preempted_ns` and `off_core_ns`
    (also from the due time), all int64; and a description of the run, as JSON values.
    """
    spacing_ns = (
        round(1e3 * protocol.period_us)
        if protocol.period_us
        else max(LEAST_SPACING_NS, round(median_ns))
    )
    turn_ns = spacing_ns + 1e6 * (protocol.pause_ms or 0)
    calls = max(1, min(calls, MOST_CALLS, int(1e9 * LONGEST_CONTROL_S / turn_ns)))
    block = Block(calls, protocol, 0 if protocol.arrival == "periodic" else spacing_ns)
    who, began, clock = resource.RUSAGE_THREAD, time.perf_counter_ns(), time.perf_counter_ns
    end_ns, taken = began + int(1e9 * LONGEST_CONTROL_S), []
    with quiet_collector():
        while calls > 0 and (not taken or clock() < end_ns):
            if switches:
                switches.discard()
            most = MOST_SLEEPS if protocol.wait in ("sleep", "os") else calls
            calls -= block.run(_empty, min(calls, most), who, end_ns - clock())
            block.rest()
            part = block.take(resource.getrusage(who))
            taken.append(
                part | (switches.take(part["intended_ns"], ends(part)) if switches else {})
            )
    columns = {name: np.concatenate([part[name] for part in taken]) for name in taken[0]}
    start_ns, latency_ns = columns["intended_ns"] - began, columns["latency_ns"]
    facts = {
        "arrival": protocol.arrival,
        "wait": protocol.wait if protocol.arrival == "periodic" else "spin",
        "spacing_us": spacing_ns / 1e3,
        **({"pause_ms": protocol.pause_ms} if protocol.pause_ms else {}),
        "calls": len(latency_ns),
        "median_us": float(np.median(latency_ns)) / 1e3,
        "max_us": int(latency_ns.max()) / 1e3,
    }
    off_core = {name: columns[name] for name in ("preempted_ns", "off_core_ns") if name in columns}
    return {"start_ns": start_ns, "latency_ns": latency_ns, **off_core}, facts
