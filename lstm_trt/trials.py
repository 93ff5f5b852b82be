"""The timed loop. It knows nothing of LSTMs: it is given a `step` and calls it.

A trial is timed by `time.perf_counter_ns` (CLOCK_MONOTONIC) around one call of
`step`, and nothing else stands between the two readings (`arrivals.py`). Context switches and page
faults are read once after each trial, outside the timed region, so that a trial's
counts cover itself and the recorder's own microsecond before it. Between blocks the
machine's state is read; the `settle` trials after that are marked as warm-up.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from lstm_trt.arrivals import Block
from lstm_trt.configuration import Protocol
from lstm_trt.errors import RunFailed
from lstm_trt.self_check import check_clocks, clock_pair, ends

#: Above this share of time outside the trials a closed-loop recording is warned of.
OUTSIDE_SHARE_LIMIT = 0.20
#: A block of calls with gaps between them lasts as long as 50 of them, at most this.
LONGEST_BLOCK_S = 10.0
UNLIMITED = 1 << 62


class PeriodTooShort(RunFailed):
    """Calls are asked for at a higher rate than the step can answer."""


@dataclass(frozen=True)
class Trials:
    """What the loop recorded.

    `columns`: name -> int64 array, one entry a row (`warmup` is bool); a column that
    was not measured is absent. `start_ns` and, where calls were due at a time,
    `intended_ns` count from the loop's beginning.
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


class Loop:
    """Blocks of trials one after another; between two of them the machine is read.

    `first_pair` and `last_pair` are the two clocks before the first block and after the
    last; `restart` begins a new account, for what was not the loop's own time.
    """

    def __init__(
        self,
        step: Callable[[], None],
        protocol: Protocol,
        *,
        threads: int = 1,
        read_machine: Callable[[], Mapping] | None = None,
        difference: Callable[[Mapping, Mapping], dict] | None = None,
        device_times: Callable[[], dict[str, np.ndarray]] | None = None,
    ) -> None:
        self._step, self._protocol = step, protocol
        self._who = resource.RUSAGE_THREAD if threads == 1 else resource.RUSAGE_SELF
        self._read_machine, self._difference, self._device_times = read_machine or dict, difference, device_times
        self._block = Block(protocol.block_trials + max(protocol.warmup, protocol.settle), protocol)
        # With long gaps a block has some calls for all that, or `settle` would mark most of them.
        self._budget_ns = max(protocol.block_ms * 1_000_000, int(1e9 * min(LONGEST_BLOCK_S, 50 * protocol.gap_s)))
        self.restart()

    def restart(self) -> None:
        """Read the machine and the clocks anew, and forget the blocks that there were."""
        self.chunks: list[dict[str, np.ndarray]] = []
        self.blocks: list[dict] = []
        self.rows = 0
        self._machine = self._read_machine()
        self.started_unix_ns = time.time_ns()
        self.first_pair = self.last_pair = clock_pair()

    def run(self, marked: int, most: int, budget_ns: int = UNLIMITED) -> int:
        """One block: `marked` trials of warm-up, then up to `most`; returns how many were timed."""
        before_usage = resource.getrusage(self._who)
        if marked:
            self._block.run(self._step, marked, self._who, UNLIMITED)
        timed = self._block.run(
            self._step, min(self._protocol.block_trials, most), self._who, min(self._budget_ns, budget_ns)
        )
        self._block.rest()
        self.last_pair = clock_pair()
        machine = self._read_machine()
        chunk = self._block.take(before_usage)
        chunk["warmup"] = np.arange(marked + timed) < marked
        if self._device_times:
            chunk.update(_checked_device_times(self._device_times(), marked + timed))
        self.chunks.append(chunk)
        changed = self._difference(self._machine, machine) if self._difference else {}
        self.blocks.append({"first_row": self.rows, "rows": marked + timed, **changed})
        self.rows += marked + timed
        self._machine = machine
        return timed

    def trials(self, origin_ns: int | None = None) -> Trials:
        """What was recorded since `restart`, checked; stamps count from `origin_ns`, or from the beginning."""
        columns = {name: np.concatenate([chunk[name] for chunk in self.chunks]) for name in self.chunks[0]}
        self_check = check_clocks(columns, self.first_pair, self.last_pair)
        inside_ns = int((ends(columns) - columns["start_ns"]).sum())
        wall_ns = self.last_pair.monotonic_ns - self.first_pair.monotonic_ns
        for name in ("start_ns", "intended_ns"):
            if name in columns:
                columns[name] -= self.first_pair.monotonic_ns if origin_ns is None else origin_ns
        self_check["outside_share"] = 1 - inside_ns / wall_ns
        warnings = warnings_of(self._protocol, self.rows, inside_ns, wall_ns)
        return Trials(columns, self.blocks, self_check, self.started_unix_ns, wall_ns, inside_ns, warnings)


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
    """Run `protocol.warmup` and `protocol.trials` trials of `step` as they arrive (`arrivals.py`).

    `read_machine` is called before the first and after each block, `difference`
    compares two of its readings; `device_times` gives device clocks of the block's
    rows; `progress(done, total)` is called between blocks. With more than one thread
    the switches and faults of the whole process are counted, else of this thread.

    Self-check: the loop's length by the trials' own clock and by CLOCK_MONOTONIC_RAW
    agree within 0.1 %; no trial begins before the last one ended. Raises `RunFailed`
    where they do not.
    """
    done = 0
    with quiet_collector():
        if progress:
            progress(0, protocol.trials)
        loop = Loop(
            step,
            protocol,
            threads=threads,
            read_machine=read_machine,
            difference=difference,
            device_times=device_times,
        )
        while done < protocol.trials:
            done += loop.run(protocol.settle if loop.blocks else protocol.warmup, protocol.trials - done)
            if progress:
                progress(done, protocol.trials)
    return loop.trials()


def warnings_of(protocol: Protocol, rows: int, inside_ns: float, wall_ns: float) -> list[str]:
    """What a reader of a loop of `rows` trials should know: `inside_ns` of its `wall_ns` were inside them."""
    outside, mean_us, told = 1 - inside_ns / wall_ns, inside_ns / rows / 1e3, []
    if protocol.arrival == "closed" and outside > OUTSIDE_SHARE_LIMIT:
        told.append(
            f"{100 * outside:.0f} % of the loop lies outside the trials:"
            " the step is short beside the recorder's own work"
        )
    if protocol.arrival == "periodic" and mean_us > protocol.period_us:
        told.append(
            f"the calls took {mean_us:.1f} us in the mean, longer than the period of {protocol.period_us:g} us:"
            " they fell ever further behind, and latencies tell the length of the recording"
        )
    return told


def pilot(step: Callable[[], None], protocol: Protocol) -> dict:
    """A few calls in a closed loop before the trials, which are not kept; may the period be so short?

    Returns `{"calls", "median_us"}`. Raises `PeriodTooShort` where the period is below the
    median: each call would come later than the one before, without end.
    """
    for rounds, seconds in ((10, 0.5), (100, 1.0)):  # the first warm up
        taken: list[int] = []
        limit = time.perf_counter_ns() + int(1e9 * seconds)
        while len(taken) < rounds and (len(taken) < 3 or time.perf_counter_ns() < limit):
            start = time.perf_counter_ns()
            step()
            taken.append(time.perf_counter_ns() - start)
    median_us = float(np.median(taken)) / 1e3
    if protocol.period_us < median_us:
        raise PeriodTooShort(
            f"the step takes {median_us:.1f} us at the median (pilot of {len(taken)} calls), longer than the period"
            f" of {protocol.period_us:g} us, so that each call would come later than the one before:"
            f" give a period above that, such as --period-us {1.25 * median_us + 1:.0f}"
        )
    return {"calls": len(taken), "median_us": median_us}


def _checked_device_times(times: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    for name, values in times.items():
        if len(values) != rows:
            raise RunFailed(f"the runtime gave {len(values)} values of {name} for {rows} trials")
    return times
