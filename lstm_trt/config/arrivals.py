"""When calls start: one class a kind of arrival, which knows all that is particular to it.

That is when the next call starts, which field of the protocol it needs and whether that is right,
the gap between calls, its text, what a recording of it is warned of, and its control run. A kind is
listed in `KINDS`.

The loop (`recorder.loop.Block`) calls `before()` before each call, if the kind has it. Where calls
are due at a time (`Timed`), it takes as the start of a call what `start()` returns, and counts the
latency from `due_ns`; else it reads the clock. `begin` and `rest` come before and after each run of
calls.

`perf_counter_ns` and `time.sleep` use the same clock, CLOCK_MONOTONIC, and `time.sleep` sleeps
until an absolute time (clock_nanosleep), so a delay between reading the clock and going to sleep
does not lengthen the sleep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import microseconds

#: The wait `sleep` sleeps until this long before the call is due, then spins.
SPIN_NS = 200_000

#: A time that is never reached.
NEVER_NS = 1 << 62

#: How to wait until a call is due -> for how long at the end by reading the clock.
SPINS_NS = {"spin": NEVER_NS, "sleep": SPIN_NS, "os": 0}

#: Bounds of a period or a pause.
SHORTEST_GAP_S = 1e-6
LONGEST_GAP_S = 3600.0

#: A closed-loop recording that spends more than this share of its time outside the trials gets a
#: warning.
OUTSIDE_SHARE_LIMIT = 0.20

#: What the timed thread did between calls, as `loop.between_calls` splits that time.
BETWEEN_CALLS = {
    "recorder_ns": "the recorder's own work",
    "runnable_ns": "waiting for the core (other programs, or a CPU quota)",
    "waiting_ns": "other waiting",
}


class Closed:
    """The next call starts when the previous one has returned."""

    NAME = "closed"

    #: Ways to wait for the next call; the first is the default.
    WAITS: tuple[str, ...] = ("none",)

    #: The field of the protocol that states the gap, if there is one; so many of its units are a s.
    FIELD: str | None = None
    PER_S = 1.0

    #: Called before each call, outside its time.
    before: Callable[[], None] | None = None

    #: When the call that is due at a time is due.
    due_ns = 0

    #: Whether calls sleep between them, which switches the core to other tasks.
    sleeps = False

    def __init__(self, gap: float | None, wait: str | None) -> None:
        self.gap = gap
        self.wait = wait

    @property
    def gap_s(self) -> float:
        """The gap between the starts of calls, or the pause before one, in s."""
        return (self.gap or 0.0) / self.PER_S

    @property
    def text(self) -> str:
        """The arrivals in words, without the wait: "periodic every 1000 us"."""
        return self.NAME

    def begin(self) -> None:
        """Start the schedule, or let it go on after `rest`."""

    def rest(self) -> None:
        """Stop the schedule: work done meanwhile delays no call, and a backlog is kept."""

    def warning(
        self, mean_us: float, outside_share: float, self_check: Mapping[str, Any]
    ) -> str | None:
        """What a recording is warned of.

        By the mean time of its calls, the share of its time between calls, and its self-check.
        """
        if outside_share <= OUTSIDE_SHARE_LIMIT:
            return None
        text = f"{100 * outside_share:.0f} % of the time passed between calls"
        between = self_check.get("between_calls")
        if not between:
            return text
        wall_ns = self_check["loop_ns"]
        parts = [
            f"{100 * between[name] / wall_ns:.0f} % {what}" for name, what in BETWEEN_CALLS.items()
        ]
        return f"{text}: {', '.join(parts)}"

    def control(self, call_ns: int) -> Timed:
        """The arrivals of the control run of calls that took `call_ns`."""
        return Spaced(call_ns)


class Timed(Closed):
    """Arrivals whose calls are due at a time, from which their latency is counted."""

    #: From one due time to the next, and the same with a pause in between.
    spacing_ns = 0
    turn_ns = 0.0

    def start(self) -> int:
        """Wait until the next call is due, which is `due_ns` then; returns the last reading."""
        raise NotImplementedError


class Periodic(Timed):
    """One call is due per period.

    Its latency is counted from the due time, so that a delayed call also shows in the latencies of
    the calls that it delays (no coordinated omission). An overdue call starts at once.
    """

    NAME = "periodic"
    WAITS = ("spin", "sleep", "os")
    FIELD = "period_us"
    PER_S = 1e6

    def __init__(self, gap: float | None, wait: str | None) -> None:
        super().__init__(gap, wait)
        self.spacing_ns = round(1e3 * (gap or 0))
        self.turn_ns = float(self.spacing_ns)
        self.sleeps = wait != "spin"
        self._spin_ns = SPINS_NS[wait or "spin"]
        # When the next call is due; while the schedule is stopped, the time left until then.
        self._next_ns: Any = None
        self._ahead_ns = self.spacing_ns

    @property
    def text(self) -> str:
        return f"{self.NAME} every {self.gap:g} us"

    def begin(self) -> None:
        if self._next_ns is None:
            self._next_ns = time.perf_counter_ns() + self._ahead_ns

    def rest(self) -> None:
        if self._next_ns is not None:
            self._ahead_ns = self._next_ns - time.perf_counter_ns()
            self._next_ns = None

    def start(self) -> int:
        clock = time.perf_counter_ns
        due_ns = self._next_ns
        self.due_ns = due_ns
        self._next_ns = due_ns + self.spacing_ns
        wake_ns = due_ns - self._spin_ns
        now = clock()
        while now < wake_ns:
            time.sleep((wake_ns - now) / 1e9)
            now = clock()
        while now < due_ns:
            now = clock()
        return now

    def warning(
        self, mean_us: float, outside_share: float, self_check: Mapping[str, Any]
    ) -> str | None:
        if mean_us <= (self.gap or 0):
            return None
        return (
            f"the mean time per call of {microseconds(mean_us)} us exceeds the period of"
            f" {self.gap:g} us: the backlog was larger at the end, so the latencies depend on the"
            " length of the recording"
        )

    def control(self, call_ns: int) -> Timed:
        return Periodic(self.gap, self.wait)


class Paused(Closed):
    """Each call follows an idle gap."""

    NAME = "paused"
    WAITS = ("os",)
    FIELD = "pause_ms"
    PER_S = 1e3
    sleeps = True

    def __init__(self, gap: float | None, wait: str | None) -> None:
        super().__init__(gap, wait)
        self.before = partial(time.sleep, self.gap_s)

    @property
    def text(self) -> str:
        return f"{self.NAME} {self.gap:g} ms"

    def warning(
        self, mean_us: float, outside_share: float, self_check: Mapping[str, Any]
    ) -> str | None:
        return None

    def control(self, call_ns: int) -> Timed:
        return Spaced(call_ns, self.gap_s)


class Spaced(Timed):
    """Of control runs: each call is due this long after the previous one, and the pause, ended."""

    def __init__(self, spacing_ns: int, pause_s: float = 0.0) -> None:
        super().__init__(None, "spin")
        self.spacing_ns = spacing_ns
        self.turn_ns = spacing_ns + 1e9 * pause_s
        self.sleeps = pause_s > 0
        if pause_s:
            self.before = partial(time.sleep, pause_s)

    def start(self) -> int:
        clock = time.perf_counter_ns
        now = clock()
        due_ns = now + self.spacing_ns
        self.due_ns = due_ns
        while now < due_ns:
            now = clock()
        return now


#: Value of `Protocol.arrival` -> its class.
KINDS: dict[str, type[Closed]] = {kind.NAME: kind for kind in (Closed, Periodic, Paused)}


def checked_time(field: str, value: Any, least: float, most: float) -> float:
    """A time of a protocol as a float; raises `UsageError` unless it is a number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{field} must be a number, not {value!r}")
    if not least <= value <= most:
        raise UsageError(f"{field} must be between {least:g} and {most:.0f}, not {value:g}")
    return float(value)
