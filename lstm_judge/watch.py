"""A recording in progress: number of trials, latencies so far, remaining time.

Only the latencies of each file in the folder are read, once. No verdict while recording: repeated
looks inflate false positives.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lstm_judge.statistics.sequential import limit_ns
from lstm_trt.config.errors import StoreError, UnknownConfiguration, UsageError, check_number
from lstm_trt.recorder.snapshot import GONE_S, NOTHING, Snapshot, State, snapshot_of, with_trials
from lstm_trt.store import files, folders, schema
from lstm_trt.store.locks import folder_in_use, stated_total
from lstm_trt.store.whole import Whole

POLL_S = 1.0


def misses_of(whole: Whole | None, deadline_us: float) -> int:
    """Number of latencies above the deadline."""
    return 0 if whole is None else int(whole.counts[whole.values > limit_ns(deadline_us)].sum())


@dataclass
class Recorded:
    """What was read of a folder so far: the `names` of files, and latencies by configuration id.

    `last`: the recording that was written last, at the time `written`.
    """

    names: set[str] = field(default_factory=set)
    latencies: dict[str, Whole | None] = field(default_factory=dict)
    last: schema.Recording | None = None
    written: float = 0.0
    unreadable: int = 0

    def read_new(self, folder: Path) -> bool:
        """Read files that were not there before; whether there were any."""
        fresh = []
        for path in folders.contents(folder).recorded:
            if path.name not in self.names:
                with suppress(OSError):  # moved or removed in the meantime
                    fresh.append((path.stat().st_mtime, path))
        for written, path in sorted(fresh):
            self.names.add(path.name)
            try:
                recording = files.read(path, ("latency_ns", "warmup"))
            except (StoreError, UnknownConfiguration):  # damaged, or of a newer version
                self.unreadable += 1
                continue
            key = recording.configuration.id
            self.latencies[key] = with_trials(self.latencies.get(key), recording.timed_ns)
            self.last = recording
            self.written = written
        return bool(fresh)

    @property
    def soak(self) -> dict[str, Any] | None:
        """What the last recording states of its soak."""
        return self.last.provenance.get("soak") if self.last else None

    def seconds(self, in_use: bool) -> dict[str, float]:
        """Elapsed and remaining seconds of a soak; it goes on after its last file was written."""
        if self.soak is None:
            return {}
        asked_s = self.soak["asked_s"]
        elapsed_s = self.soak["elapsed_s"]
        if in_use and not self.soak["last"]:
            elapsed_s = min(asked_s, elapsed_s + max(0.0, time.time() - self.written))
        return {"elapsed_s": elapsed_s, "left_s": max(0.0, asked_s - elapsed_s)}

    def state(self, in_use: bool, silent_s: float) -> State:
        """The state of the folder, in which nothing new was found for so long."""
        if in_use:
            return State.RECORDING
        if self.soak and self.soak["last"]:
            return State.COMPLETE
        if silent_s > GONE_S:
            return State.STOPPED
        return State.IDLE if self.last else State.EMPTY


def follow(
    folder: Path, deadline_us: float | None = None, poll_s: float = POLL_S
) -> Iterator[Snapshot]:
    """A snapshot every `poll_s` seconds; ends when a soak is complete or the recorder has
    stopped.

    Raises `UsageError` if there is no such folder, if nobody has recorded into it for a while, or
    for an invalid deadline.
    """
    if not folder.is_dir():
        raise UsageError(f"no folder {folder}: give the --out folder of a recording")
    if deadline_us is not None:
        check_number("the deadline must be greater than 0 us", deadline_us, lambda us: us > 0)
    recorded = Recorded()
    heard = time.monotonic()
    while True:
        in_use = folder_in_use(folder)  # before reading: later files are read next time
        if recorded.read_new(folder):
            heard = time.monotonic()
        state = recorded.state(in_use, time.monotonic() - heard)
        if state is State.STOPPED and not recorded.names:
            raise UsageError(f"{folder}: {NOTHING}")
        configuration = whole = misses = None
        if recorded.last:
            configuration = recorded.last.configuration
            whole = recorded.latencies[configuration.id]
        if deadline_us is not None:
            misses = misses_of(whole, deadline_us)
        yield snapshot_of(
            state,
            whole,
            configuration,
            len(recorded.names),
            misses,
            deadline_us,
            configurations=len(recorded.latencies),
            total=stated_total(folder),
            unreadable=recorded.unreadable,
            **recorded.seconds(in_use),
        )
        if state in (State.COMPLETE, State.STOPPED):
            return
        time.sleep(poll_s)
