"""A recording in progress: number of trials, latencies so far, remaining time.

Only the latencies of each file in the folder are read, once, and counted by value: all numbers are exact, and memory
use depends on the number of different latencies. No verdict while recording: repeated looks inflate false positives.
"""

import math
import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from lstm_judge.analysis.quantiles import MEDIAN, percentile
from lstm_judge.analysis.sequential import limit_ns
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import StoreError, UnknownConfiguration, UsageError
from lstm_trt.config.fields import JsonFields
from lstm_trt.config.format import count, duration, microseconds
from lstm_trt.store import files as store_files, folders, schema
from lstm_trt.store.locks import folder_in_use, stated_total
from lstm_trt.store.whole import Whole, counted

POLL_S = 1.0

#: The recorder is considered stopped if the folder's lock is free and no new file appeared for this long.
GONE_S = 15.0


#: About a folder without recordings that nobody records into.
NOTHING = "no recordings, and none in progress: give the --out folder of a running lstm-trt record or sweep"


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

    The numbers are those of the configuration written last, over all its files;
    `elapsed_s` and `left_s` are None unless it is a soak, `total`, the planned number of files, unless it is a sweep.
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
        recorded = count(self.files, "file") if self.total is None else f"{self.files} of {self.total} files"
        if not self.n:
            return f"{self.state}: {NOTHING if self.state is State.EMPTY else recorded}"
        median, p999, largest = map(microseconds, (self.median_us, self.p999_us, self.max_us))
        times = f"n {self.n}, median {median}, p99.9 {p999}, max {largest} us"
        if self.misses is not None:
            times += f", {count(self.misses, 'miss')} of the {self.deadline_us:g} us deadline"
        parts = [f"{self.name}: {times}"]
        if self.configurations > 1 or self.total is not None:
            parts[0] = f"{recorded}, of {count(self.configurations, 'configuration')}; latest: {parts[0]}"
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
    return f"complete: {shlex.join(['lstm-trt', 'verdict', str(folder), '--deadline-us', deadline])}"


def snapshot_of(
    state: State,
    whole: Whole | None,
    configuration: Configuration | None,
    files: int,
    deadline_us: float | None = None,
    **known: Any,
) -> Snapshot:
    """A snapshot of one configuration's latencies, with what is `known` besides (the last fields of `Snapshot`)."""
    name, identity = (configuration.title, configuration.id) if configuration else (None, None)
    shares = (MEDIAN, Fraction(999, 1000), Fraction(1))
    median_us, p999_us, max_us = (percentile(whole, share) / 1e3 if whole else None for share in shares)
    values, counts = (whole.values, whole.counts) if whole else (np.empty(0), np.empty(0))
    misses = None if deadline_us is None else int(counts[values > limit_ns(deadline_us)].sum())
    latencies = (len(whole or ()), median_us, p999_us, max_us, misses, deadline_us)
    return Snapshot(state, name, identity, files, *latencies, **known)


class Follower:
    """Reads new recordings in a folder; `look` returns a snapshot."""

    def __init__(self, folder: Path, deadline_us: float | None = None) -> None:
        if not folder.is_dir():
            raise UsageError(f"no folder {folder}: give the --out folder of a recording")
        if deadline_us is not None and not 0 < deadline_us < math.inf:
            raise UsageError(f"the deadline must be greater than 0 us, not {deadline_us:g}")
        self._folder, self._deadline_us = folder, deadline_us
        self._seen: set[str] = set()
        self._counts: dict[str, Whole | None] = {}
        self._last: schema.Recording | None = None
        self._written, self._unreadable, self._heard = 0.0, 0, time.monotonic()

    def look(self) -> Snapshot:
        """Read new recordings; returns the snapshot after that."""
        in_use = folder_in_use(self._folder)  # checked before reading: later files are read next time
        if self._read_new():
            self._heard = time.monotonic()
        configuration = whole = soak = elapsed_s = left_s = None
        if self._last:
            configuration, soak = self._last.configuration, self._last.provenance.get("soak")
            whole = self._counts[configuration.id]
        if soak is not None:
            elapsed_s = soak["elapsed_s"]
            if in_use and not soak["last"]:
                elapsed_s = min(soak["asked_s"], elapsed_s + max(0.0, time.time() - self._written))
            left_s = max(0.0, soak["asked_s"] - elapsed_s)
        state = State.IDLE if self._last else State.EMPTY
        if in_use:
            state = State.RECORDING
        elif soak is not None and soak["last"]:
            state = State.COMPLETE
        elif time.monotonic() - self._heard > GONE_S:
            if not self._seen:
                raise UsageError(f"{self._folder}: {NOTHING}")
            state = State.STOPPED
        known = {"configurations": len(self._counts), "elapsed_s": elapsed_s, "left_s": left_s}
        known |= {"total": stated_total(self._folder), "unreadable": self._unreadable}
        return snapshot_of(state, whole, configuration, len(self._seen), deadline_us=self._deadline_us, **known)

    def _read_new(self) -> bool:
        fresh = []
        for path in folders.contents(self._folder).recorded:
            with suppress(OSError):  # moved or removed in the meantime
                fresh += [(path.stat().st_mtime, path)] if path.name not in self._seen else []
        for written, path in sorted(fresh):
            self._seen.add(path.name)
            try:
                recording = store_files.read(path, ("latency_ns", "warmup"))
            except (StoreError, UnknownConfiguration):  # damaged, or of a newer version
                self._unreadable += 1
                continue
            key = recording.configuration.id
            self._counts[key] = with_trials(self._counts.get(key), recording.timed_ns)
            self._last, self._written = recording, written
        return bool(fresh)


def follow(folder: Path, deadline_us: float | None = None, poll_s: float = POLL_S) -> Iterator[Snapshot]:
    """A snapshot every `poll_s` seconds; ends when a soak is complete or the recorder has stopped."""
    follower = Follower(folder, deadline_us)
    while True:
        snapshot = follower.look()
        yield snapshot
        if snapshot.state in (State.COMPLETE, State.STOPPED):
            return
        time.sleep(poll_s)
