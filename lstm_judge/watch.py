"""A recording in progress: number of trials, latencies so far, remaining time.

Only the latencies of each file in the folder are read, once. No verdict while recording: repeated
looks inflate false positives.
"""

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lstm_judge.statistics.sequential import limit_ns
from lstm_trt.config.errors import StoreError, UnknownConfiguration, UsageError
from lstm_trt.recorder.snapshot import GONE_S, NOTHING, Snapshot, State, snapshot_of, with_trials
from lstm_trt.store import files, folders, schema
from lstm_trt.store.locks import folder_in_use, stated_total
from lstm_trt.store.whole import Whole

POLL_S = 1.0


def misses_of(whole: Whole | None, deadline_us: float) -> int:
    """Number of latencies above the deadline."""
    return 0 if whole is None else int(whole.counts[whole.values > limit_ns(deadline_us)].sum())


class Follower:
    """Reads new recordings in a folder; `look` returns a snapshot."""

    def __init__(self, folder: Path, deadline_us: float | None = None) -> None:
        if not folder.is_dir():
            raise UsageError(f"no folder {folder}: give the --out folder of a recording")
        if deadline_us is not None and not 0 < deadline_us < math.inf:
            raise UsageError(f"the deadline must be greater than 0 us, not {deadline_us:g}")
        self._folder = folder
        self._deadline_us = deadline_us
        self._seen: set[str] = set()
        self._counts: dict[str, Whole | None] = {}
        self._last: schema.Recording | None = None
        self._written = 0.0
        self._unreadable = 0
        self._heard = time.monotonic()

    def look(self) -> Snapshot:
        """Read new recordings; returns the snapshot after that."""
        in_use = folder_in_use(self._folder)  # before reading: later files are read next time
        if self._read_new():
            self._heard = time.monotonic()
        configuration = whole = None
        if self._last:
            configuration = self._last.configuration
            whole = self._counts[configuration.id]
        known = self._soak(in_use)
        if self._deadline_us is not None:
            known["deadline_us"] = self._deadline_us
            known["misses"] = misses_of(whole, self._deadline_us)
        return snapshot_of(
            self._state(in_use),
            whole,
            configuration,
            len(self._seen),
            configurations=len(self._counts),
            total=stated_total(self._folder),
            unreadable=self._unreadable,
            **known,
        )

    @property
    def _last_soak(self) -> dict[str, Any] | None:
        """What the last recording states of its soak."""
        return self._last.provenance.get("soak") if self._last else None

    def _soak(self, in_use: bool) -> dict[str, Any]:
        """Elapsed and remaining seconds of a soak; it goes on after its last file was written."""
        soak = self._last_soak
        if soak is None:
            return {}
        elapsed_s = soak["elapsed_s"]
        if in_use and not soak["last"]:
            elapsed_s += max(0.0, time.time() - self._written)
            elapsed_s = min(soak["asked_s"], elapsed_s)
        return {"elapsed_s": elapsed_s, "left_s": max(0.0, soak["asked_s"] - elapsed_s)}

    def _state(self, in_use: bool) -> State:
        soak = self._last_soak
        if in_use:
            return State.RECORDING
        if soak is not None and soak["last"]:
            return State.COMPLETE
        if time.monotonic() - self._heard > GONE_S:
            if not self._seen:
                raise UsageError(f"{self._folder}: {NOTHING}")
            return State.STOPPED
        return State.IDLE if self._last else State.EMPTY

    def _read_new(self) -> bool:
        """Read files that were not there before; whether there were any."""
        fresh = []
        for path in folders.contents(self._folder).recorded:
            if path.name not in self._seen:
                with suppress(OSError):  # moved or removed in the meantime
                    fresh.append((path.stat().st_mtime, path))
        for written, path in sorted(fresh):
            self._seen.add(path.name)
            try:
                recording = files.read(path, ("latency_ns", "warmup"))
            except (StoreError, UnknownConfiguration):  # damaged, or of a newer version
                self._unreadable += 1
                continue
            key = recording.configuration.id
            self._counts[key] = with_trials(self._counts.get(key), recording.timed_ns)
            self._last = recording
            self._written = written
        return bool(fresh)


def follow(
    folder: Path, deadline_us: float | None = None, poll_s: float = POLL_S
) -> Iterator[Snapshot]:
    """A snapshot every `poll_s` seconds; ends when a soak is complete or the recorder has
    stopped."""
    follower = Follower(folder, deadline_us)
    while True:
        snapshot = follower.look()
        yield snapshot
        if snapshot.state in (State.COMPLETE, State.STOPPED):
            return
        time.sleep(poll_s)
