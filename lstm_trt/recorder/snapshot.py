"""What a folder of recordings holds at one moment, in one line: the end of a soak, and `watch`
meanwhile.

All numbers are exact: latencies are counted by value, so that memory use depends on the number of
different ones.
"""

import shlex
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from lstm_trt.config.configuration import Configuration
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.format import count, duration, microseconds
from lstm_trt.store.whole import Whole, counted, percentile

#: The recorder is considered stopped if the folder's lock is free and no new file appeared for this
#: long.
GONE_S = 15.0

#: About a folder without recordings that nobody records into.
NOTHING = (
    "no recordings, and none in progress:"
    " give the --out folder of a running lstm-trt record or sweep"
)


class State(StrEnum):
    """State of a recording folder."""

    EMPTY = "nothing yet"
    RECORDING = "recording"
    IDLE = "idle"
    COMPLETE = "complete"
    STOPPED = "recorder stopped"


def with_trials(whole: Whole | None, latency_ns: np.ndarray) -> Whole | None:
    """The counts with further latencies in ns (without warm-up); None as long as there are none."""
    known = [(whole.values, whole.counts)] if whole else []
    return Whole(*counted([*known, (latency_ns, 1)])) if len(latency_ns) else whole


@dataclass(frozen=True)
class Snapshot(JsonFields):
    """Contents of a folder at one moment.

    The numbers are those of the configuration written last, over all its files; `elapsed_s` and
    `left_s` are None unless it is a soak, `total`, the planned number of files, unless it is a
    sweep.
    """

    state: State
    name: str | None
    config_id: str | None
    files: int
    n: int
    median_us: float | None
    p999_us: float | None
    max_us: float | None
    misses: int | None
    deadline_us: float | None
    configurations: int = 1
    elapsed_s: float | None = None
    left_s: float | None = None
    unreadable: int = 0
    total: int | None = None

    def __str__(self) -> str:
        recorded = (
            count(self.files, "file")
            if self.total is None
            else f"{self.files} of {self.total} files"
        )
        if not self.n:
            return f"{self.state}: {NOTHING if self.state is State.EMPTY else recorded}"
        median, p999, largest = map(microseconds, (self.median_us, self.p999_us, self.max_us))
        times = f"n {self.n}, median {median}, p99.9 {p999}, max {largest} us"
        if self.misses is not None:
            times += f", {count(self.misses, 'miss')} of the {self.deadline_us:g} us deadline"
        parts = [f"{self.name}: {times}"]
        if self.configurations > 1 or self.total is not None:
            parts[0] = (
                f"{recorded}, of {count(self.configurations, 'configuration')}; latest: {parts[0]}"
            )
        if self.elapsed_s is not None and self.left_s is not None:
            parts.append(f"{duration(self.elapsed_s)} elapsed, {duration(self.left_s)} left")
        if self.unreadable:
            parts.append(count(self.unreadable, "unreadable file"))
        if self.state is State.RECORDING:
            parts.append("no verdict before the end")
        elif self.state is State.IDLE:
            parts.append("no recording in progress")
        return "; ".join(parts)

    def ending(self, folder: Path) -> str | None:
        """The final line once the recording of `folder` has ended; None before."""
        if self.state is State.COMPLETE:
            return verdict_command(folder, self.deadline_us)
        if self.state is State.STOPPED:
            return f"recorder stopped: lock free and no new file for {GONE_S:g} s"
        return None


def verdict_command(folder: Path, deadline_us: float | None = None) -> str:
    """The last line of a completed soak: the command that tests it against a deadline."""
    deadline = "US" if deadline_us is None else f"{deadline_us:g}"
    return (
        f"complete: {shlex.join(['lstm-trt', 'verdict', str(folder), '--deadline-us', deadline])}"
    )


def snapshot_of(
    state: State,
    whole: Whole | None,
    configuration: Configuration | None,
    files: int,
    misses: int | None = None,
    deadline_us: float | None = None,
    **known: Any,
) -> Snapshot:
    """A snapshot of one configuration's latencies, with what is `known` besides (the last fields of
    `Snapshot`)."""
    name, identity = (configuration.title, configuration.id) if configuration else (None, None)
    n = len(whole) if whole else 0
    median_us, p999_us, max_us = (
        percentile(whole, Fraction(share)) / 1e3 if whole else None for share in (".5", ".999", "1")
    )
    return Snapshot(
        state, name, identity, files, n, median_us, p999_us, max_us, misses, deadline_us, **known
    )
