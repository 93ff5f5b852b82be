"""The timed loop: blocks of trials, a check of the clocks, and the control run.

It is independent of LSTMs: it calls a given `step`. A trial is timed by
`time.perf_counter_ns` (CLOCK_MONOTONIC) directly before and after one call. Context switches
and page faults are read once after each trial, outside the timed region, so a trial's counts
cover the trial and about 1 us of the recorder's own work before it. If the step has `prepare_next`,
that is called next, and timed by itself. Between blocks the machine's state is read; the `settle`
trials after that are marked as warm-up.

When calls start is a matter of the arrivals (`config.arrivals`): closed, periodic or paused.

CLOCK_MONOTONIC_RAW, which is not adjusted (NTP), is read before and after a loop and must agree
with the trials' timestamps. The control run has an empty step in place of the given one.
"""

import gc
import math
import resource
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lstm_trt.config.arrivals import NEVER_NS, SPINS_NS, Closed, Timed
from lstm_trt.config.configuration import Protocol, warnings_of
from lstm_trt.config.errors import RunFailed
from lstm_trt.config.format import microseconds, percent
from lstm_trt.machine import counters, real_time
from lstm_trt.machine.switches import Switches

#: Largest difference of the two clocks: relative, and absolute (for very short loops).
CLOCK_TOLERANCE = 1e-3

CLOCK_TOLERANCE_NS = 5_000

#: A call is too short to be resolved if an empty step would take a larger share of its time.
RESOLVED_SHARE = 0.1

#: A block of calls with gaps between them lasts for 50 gaps, at most this long.
LONGEST_BLOCK_S = 10.0

UNLIMITED = NEVER_NS

#: Column of a block -> index in the result of getrusage.
_USAGE_FIELDS = {"involuntary_switches": 15, "minor_faults": 6, "major_faults": 7}


class Block:
    """Buffers for one block's rows, written once in advance so that the loop causes no page faults
    in them."""

    def __init__(
        self, capacity: int, arrivals: Closed, prepare_next: Callable[[], Any] | None = None
    ) -> None:
        self.rows = 0
        self._arrivals = arrivals
        self._prepare_next = prepare_next
        names = ["start_ns", "latency_ns", *_USAGE_FIELDS]
        if isinstance(arrivals, Timed):
            names.append("intended_ns")
        if prepare_next is not None:
            names.append("prepare_ns")
        self._columns = {name: array("q", bytes(8 * capacity)) for name in names}

    def run(self, step: Callable[[], None], count: int, who: int, budget_ns: int) -> int:
        """Run up to `count` trials, fewer if `budget_ns` is used up; returns how many were run.

        The latency of a call that is due at a time is counted from then. After `rest` the schedule
        is stopped until the next run.
        """
        start_of = self._columns["start_ns"]
        latency_of = self._columns["latency_ns"]
        switches, minor, major = (self._columns[name] for name in _USAGE_FIELDS)
        due_of: Any = self._columns.get("intended_ns")
        prepared_of: Any = self._columns.get("prepare_ns")
        prepare_next = self._prepare_next
        clock = time.perf_counter_ns
        usage = resource.getrusage
        arrivals = self._arrivals
        before = arrivals.before
        wait = arrivals.start if isinstance(arrivals, Timed) else None
        first = self.rows
        arrivals.begin()
        limit = clock() + budget_ns
        for row in range(first, first + count):
            if before is not None:
                before()
            start = clock() if wait is None else wait()
            step()
            end = clock()
            counted = usage(who)
            start_of[row] = start
            switches[row] = counted[15]
            minor[row] = counted[6]
            major[row] = counted[7]
            if wait is None:
                latency_of[row] = end - start
            else:
                due = arrivals.due_ns
                latency_of[row] = end - due
                due_of[row] = due
            if prepare_next is not None:
                began = clock()
                prepare_next()
                prepared_of[row] = clock() - began
            if end > limit:
                break
        self.rows = row + 1
        return self.rows - first

    def rest(self) -> None:
        """Stop the schedule until the next run: work done meanwhile delays no call."""
        self._arrivals.rest()

    def take(self, before: tuple) -> dict[str, np.ndarray]:
        """The rows as arrays, counters as differences; empties the block."""
        rows = self.rows
        self.rows = 0
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
    start = columns["start_ns"]
    end = ends(columns)
    free = end + columns.get("prepare_ns", 0)
    by_stamps = last.monotonic_ns - first.monotonic_ns
    by_raw = last.raw_ns - first.raw_ns
    allowed = (
        CLOCK_TOLERANCE * by_raw + CLOCK_TOLERANCE_NS + (first.bracket_ns + last.bracket_ns) / 2
    )
    if abs(by_stamps - by_raw) > allowed:
        raise RunFailed(
            f"self-check: the loop took {by_stamps} ns by CLOCK_MONOTONIC"
            f" and {by_raw} ns by CLOCK_MONOTONIC_RAW"
        )
    if (end < start).any() or (start[1:] < free[:-1]).any():
        raise RunFailed("self-check: a trial starts before the previous one ended")
    if "intended_ns" in columns and (start < columns["intended_ns"]).any():
        raise RunFailed("self-check: a trial starts before it was due")
    if start[0] < first.monotonic_ns or free[-1] > last.monotonic_ns:
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
    counted from the start of the loop. `inside_ns`: of all calls, each with `prepare_next`.
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
        taken_ns = ends(self.columns) - self.columns["start_ns"]
        return float(np.median(taken_ns[~self.columns["warmup"]]))


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
    first timed trial, `prepare_next` after each trial. `first_pair` and `last_pair` are the two
    clocks before the first block and after the last; `restart` resets them, to exclude time that
    was not spent in the loop.
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
        prepare_next: Callable[[], Any] | None = None,
    ) -> None:
        self._switches = switches
        self._after_warmup = after_warmup
        self._step = step
        self._protocol = protocol
        self._who = resource.RUSAGE_THREAD if threads == 1 else resource.RUSAGE_SELF
        self._read_machine = read_machine
        self._device_times = device_times
        marked = max(protocol.warmup, protocol.settle)
        self._block = Block(protocol.block_trials + marked, protocol.arrivals(), prepare_next)
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
        chunk = self._block.take(before_usage)
        rows = marked + timed
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
        if "prepare_ns" in columns:
            inside_ns += int(columns["prepare_ns"].sum())
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
    `arrivals.BETWEEN_CALLS`; the sum is exact.

    Its CPU time, and its time of waiting for a core, are known for the whole loop, and within calls
    by its times off the core. None where either is not measured.
    """
    cpu_ns = counters.total(blocks, "thread_cpu_ns")
    runnable_ns = counters.total(blocks, "runnable_ns")
    if "off_core_ns" not in columns or cpu_ns is None or runnable_ns is None:
        return None
    left_ns = wall_ns - inside_ns
    cpu_of_calls_ns = inside_ns - columns["off_core_ns"].sum()
    recorder_ns = int(np.clip(cpu_ns - cpu_of_calls_ns, 0, left_ns))
    left_ns -= recorder_ns
    runnable_ns = int(np.clip(runnable_ns - columns["preempted_ns"].sum(), 0, left_ns))
    return {
        "recorder_ns": recorder_ns,
        "runnable_ns": runnable_ns,
        "waiting_ns": left_ns - runnable_ns,
    }


def pilot(
    step: Callable[[], None],
    protocol: Protocol,
    prepare_next: Callable[[], Any] | None = None,
) -> dict:
    """Check that the period is long enough, by a few calls in a closed loop that are not recorded,
    each with `prepare_next` if there is one.

    Returns `{"calls", "median_us"}`. Raises `PeriodTooShort` if the period is below the
    median: the backlog of calls would grow without limit.
    """
    for rounds, seconds in ((10, 0.5), (100, 1.0)):  # the first round is warm-up
        taken: list[int] = []
        limit = time.perf_counter_ns() + int(1e9 * seconds)
        while len(taken) < rounds and (len(taken) < 3 or time.perf_counter_ns() < limit):
            start = time.perf_counter_ns()
            step()
            if prepare_next is not None:
                prepare_next()
            taken.append(time.perf_counter_ns() - start)
    median_us = float(np.median(taken)) / 1e3
    if protocol.fifo:
        check_duty(protocol, median_us)
    if protocol.period_us is not None and protocol.period_us < median_us:
        median = (
            "step's median latency" if prepare_next is None else "median of step and prepare_next"
        )
        raise PeriodTooShort(
            f"the period of {protocol.period_us:g} us is shorter than the {median} of"
            f" {microseconds(median_us)} us (pilot of {len(taken)} calls): delays would grow"
            f" without limit; use a longer period, such as --period-us {1.25 * median_us + 1:.0f}"
        )
    return {"calls": len(taken), "median_us": median_us}


def check_duty(protocol: Protocol, median_us: float) -> None:
    """Raise `PeriodTooShort` if a real-time thread with such calls would be stopped by Linux.

    It runs during its calls, and while it spins before them.
    """
    period_us = protocol.period_us or math.inf
    spins_us = SPINS_NS[protocol.wait or "os"] / 1e3
    duty = (median_us + spins_us) / period_us
    longest = real_time.longest_duty()
    if duty >= longest:
        needed_us = 1.1 * (median_us + spins_us) / longest + 1
        raise PeriodTooShort(
            f"the real-time thread would run for {percent(min(1.0, duty))} of the time, and Linux"
            f" stops such threads near that: at most {percent(longest)}; use a longer period, such"
            f" as --period-us {needed_us:.0f}"
        )


#: The longest control run, and the most calls of one.
LONGEST_CONTROL_S = 60.0
MOST_CALLS = 1_000_000

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
    arrivals = protocol.arrivals().control(max(LEAST_SPACING_NS, round(median_ns)))
    most = int(1e9 * LONGEST_CONTROL_S / arrivals.turn_ns)
    calls = max(1, min(calls, MOST_CALLS, most))
    block = Block(calls, arrivals)
    clock = time.perf_counter_ns
    began = clock()
    end_ns = began + int(1e9 * LONGEST_CONTROL_S)
    parts: list[dict[str, np.ndarray]] = []
    with quiet_collector():
        while calls > 0 and (not parts or clock() < end_ns):
            if switches:
                switches.discard()
            most = min(calls, MOST_SLEEPS) if arrivals.sleeps else calls
            calls -= block.run(_empty, most, resource.RUSAGE_THREAD, end_ns - clock())
            block.rest()
            part = block.take(resource.getrusage(resource.RUSAGE_THREAD))
            if switches:
                part |= switches.take(part["intended_ns"], ends(part))
            parts.append(part)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    latency_ns = columns["latency_ns"]
    described = {
        "arrival": protocol.arrival,
        "wait": arrivals.wait,
        "spacing_us": arrivals.spacing_ns / 1e3,
        "calls": len(latency_ns),
        "median_us": float(np.median(latency_ns)) / 1e3,
        "max_us": int(latency_ns.max()) / 1e3,
    }
    if protocol.pause_ms:
        described["pause_ms"] = protocol.pause_ms
    kept = {"start_ns": columns["intended_ns"] - began, "latency_ns": latency_ns}
    for name in ("preempted_ns", "off_core_ns"):
        if name in columns:
            kept[name] = columns[name]
    return kept, described
