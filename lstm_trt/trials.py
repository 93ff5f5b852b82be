"""The timed loop. It knows nothing of LSTMs: it is given a `step` and calls it.

A trial is timed by `time.perf_counter_ns` (CLOCK_MONOTONIC) around one call of
`step`, and nothing else stands between the two readings. Context switches and page
faults are read once after each trial, outside the timed region, so that a trial's
counts cover itself and the recorder's own microsecond before it. Between blocks the
machine's state is read; the `settle` trials after that are marked as warm-up.
"""

from __future__ import annotations

import gc
import resource
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from lstm_trt.configuration import Protocol
from lstm_trt.errors import RunFailed

#: How far the two clocks may differ: relative, and absolute for very short loops.
CLOCK_TOLERANCE = 1e-3
CLOCK_TOLERANCE_NS = 5_000
#: Above this share of time outside the trials a closed-loop recording is warned of.
OUTSIDE_SHARE_LIMIT = 0.20

_USAGE_FIELDS = {"involuntary_switches": 15, "minor_faults": 6, "major_faults": 7}


@dataclass(frozen=True)
class Trials:
    """What the loop recorded.

    `columns`: name -> int64 array, one entry a row (`warmup` is bool); a column that
    was not measured is absent. `start_ns` counts from the loop's beginning.
    `blocks`: first row, rows, and what changed on the machine during each block.
    `self_check`: what the second clock said, see `run_trials`.
    """

    columns: dict[str, np.ndarray]
    blocks: list[dict]
    self_check: dict
    started_unix_ns: int
    wall_ns: int
    inside_ns: int
    warnings: list[str] = field(default_factory=list)


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Garbage collector run, frozen and off; as it was before on the way out.

    What a worker has frozen already, between two configurations, stays so: to go
    through its 200 000 objects each time takes 30 ms.
    """
    if not gc.isenabled():  # off already, by this function or by the caller: nothing can collect
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


def clock_pair() -> tuple[int, int]:
    """CLOCK_MONOTONIC and CLOCK_MONOTONIC_RAW at one moment, in ns.

    The second is read on both sides of the first; of up to 50 tries the one with the
    narrowest bracket counts, since a preemption in between would look like a drift.
    """
    raw_clock, best, pair = time.CLOCK_MONOTONIC_RAW, 1 << 62, (0, 0)
    for _ in range(50):
        before = time.clock_gettime_ns(raw_clock)
        now = time.perf_counter_ns()
        after = time.clock_gettime_ns(raw_clock)
        if after - before < best:
            best, pair = after - before, (now, (before + after) // 2)
            if best < 1_000:
                break
    return pair


class _Block:
    """Room for one block's rows, written once so that no page is touched first inside the loop."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows = 0
        self.start, self.latency, self.switches, self.minor, self.major = (
            array("q", bytes(8 * capacity)) for _ in range(5)
        )

    def run(self, step: Callable[[], None], count: int, who: int, budget_ns: int) -> int:
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

    def take(self, before: tuple) -> dict[str, np.ndarray]:
        """The rows as arrays, counters as differences; empties the block."""
        rows, self.rows = self.rows, 0

        def column(values: array) -> np.ndarray:
            return np.frombuffer(values, dtype=np.int64, count=rows).copy()

        taken = {"start_ns": column(self.start), "latency_ns": column(self.latency)}
        cumulative = {
            "involuntary_switches": self.switches,
            "minor_faults": self.minor,
            "major_faults": self.major,
        }
        for name, values in cumulative.items():
            taken[name] = np.diff(column(values), prepend=np.int64(before[_USAGE_FIELDS[name]]))
        return taken


def run_trials(
    step: Callable[[], None],
    protocol: Protocol,
    *,
    threads: int = 1,
    read_machine: Callable[[], Mapping] | None = None,
    difference: Callable[[Mapping, Mapping], dict] | None = None,
    device_times: Callable[[], dict[str, np.ndarray]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trials:
    """Run `protocol.warmup` and `protocol.trials` trials of `step` in a closed loop.

    `read_machine` is called before the first and after each block, `difference`
    compares two of its readings; `device_times` gives device clocks of the block's
    rows; `progress(done, total)` is called between blocks. With more than one thread
    the switches and faults of the whole process are counted, else of this thread.

    Self-check: the loop's length by the trials' own clock and by CLOCK_MONOTONIC_RAW
    agree within 0.1 %; no trial begins before the last one ended. Raises `RunFailed`
    where they do not.
    """
    who = resource.RUSAGE_THREAD if threads == 1 else resource.RUSAGE_SELF
    read_machine = read_machine or dict
    block = _Block(protocol.block_trials + max(protocol.warmup, protocol.settle))
    budget_ns = protocol.block_ms * 1_000_000
    chunks: list[dict[str, np.ndarray]] = []
    blocks: list[dict] = []
    done = rows = 0
    unlimited = 1 << 62
    with quiet_collector():
        if progress:
            progress(0, protocol.trials)
        before_machine = read_machine()
        started_unix_ns = time.time_ns()
        first_pair = clock_pair()
        while done < protocol.trials:
            before_usage = resource.getrusage(who)
            marked = protocol.settle if blocks else protocol.warmup
            if marked:
                block.run(step, marked, who, unlimited)
            timed = block.run(step, min(protocol.block_trials, protocol.trials - done), who, budget_ns)
            done += timed
            last_pair = clock_pair()
            after_machine = read_machine()
            chunk = block.take(before_usage)
            chunk["warmup"] = np.arange(marked + timed) < marked
            if device_times:
                chunk.update(_checked_device_times(device_times(), marked + timed))
            chunks.append(chunk)
            changed = difference(before_machine, after_machine) if difference else {}
            blocks.append({"first_row": rows, "rows": marked + timed, **changed})
            rows += marked + timed
            before_machine = after_machine
            if progress:
                progress(done, protocol.trials)
    columns = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    self_check = check_clocks(columns, first_pair, last_pair)
    columns["start_ns"] -= first_pair[0]
    inside_ns = int(columns["latency_ns"].sum())
    wall_ns = last_pair[0] - first_pair[0]
    self_check["outside_share"] = outside = 1 - inside_ns / wall_ns
    warnings = []
    if protocol.arrival == "closed" and outside > OUTSIDE_SHARE_LIMIT:
        warnings.append(
            f"{100 * outside:.0f} % of the loop lies outside the trials:"
            " the step is short beside the recorder's own work"
        )
    return Trials(columns, blocks, self_check, started_unix_ns, wall_ns, inside_ns, warnings)


def check_clocks(columns: Mapping[str, np.ndarray], first: tuple[int, int], last: tuple[int, int]) -> dict:
    """Hold the trials' stamps against the pairs of clocks taken before and after the loop.

    Raises `RunFailed` where the clocks differ by more than 0.1 %, where a trial lies
    outside the loop, or where one begins before the last ended.
    """
    start, latency = columns["start_ns"], columns["latency_ns"]
    by_stamps, by_raw = last[0] - first[0], last[1] - first[1]
    allowed = CLOCK_TOLERANCE * by_raw + CLOCK_TOLERANCE_NS
    if abs(by_stamps - by_raw) > allowed:
        raise RunFailed(
            f"self-check: the loop took {by_stamps} ns by CLOCK_MONOTONIC and {by_raw} ns by CLOCK_MONOTONIC_RAW"
        )
    if (latency < 0).any() or (start[1:] < start[:-1] + latency[:-1]).any():
        raise RunFailed("self-check: a trial begins before the last one ended")
    if start[0] < first[0] or start[-1] + latency[-1] > last[0]:
        raise RunFailed("self-check: a trial lies outside the loop")
    return {"loop_ns": by_stamps, "loop_raw_ns": by_raw, "clocks_differ_by": by_stamps / by_raw - 1 if by_raw else 0.0}


def _checked_device_times(times: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    for name, values in times.items():
        if len(values) != rows:
            raise RunFailed(f"the runtime gave {len(values)} values of {name} for {rows} trials")
    return times
