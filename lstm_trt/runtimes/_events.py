"""Device clocks from a pool of events, alike for every runtime that has events to record.

A trial takes four events and records them around its copies and its computation;
between blocks, when the trials are over, `read` turns them into nanoseconds. So
nothing is asked of the driver inside a trial but to record.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

#: Trials between two readings of the device clocks that need no new events; a trial
#: that makes the pool grow is slower, and `event_pool` in the facts shows it.
POOL_TRIALS = 2048


class EventClocks:
    """Events of the trials since the last reading, from a pool.

    `every`: events around the copies too. `new_event()` makes an event with
    `record(stream)`; `elapsed_ms(first, later)` gives the milliseconds between two.
    `enqueue_ns` is the host's time a trial until all its work is enqueued.
    """

    def __init__(
        self,
        new_event: Callable[[], object],
        stream: object,
        every: bool,
        elapsed_ms: Callable[[object, object], float] = lambda first, later: first.elapsed_time(later),
    ) -> None:
        self._new_event, self._stream, self._every, self._elapsed_ms = new_event, stream, every, elapsed_ms
        self._sets: list[tuple] = []
        self._used = 0
        self.enqueue_ns: list[int] = []
        self._grow(POOL_TRIALS)

    @property
    def size(self) -> int:
        """Trials that the pool holds."""
        return len(self._sets)

    def take(self) -> tuple:
        """Four events of the next trial: before copy in, before compute, after compute, after copy out."""
        if self._used == len(self._sets):
            self._grow(max(1, len(self._sets)))
        events = self._sets[self._used]
        self._used += 1
        return events

    def restart(self) -> None:
        """Forget the trials so far."""
        self._used = 0
        self.enqueue_ns.clear()

    def read(self) -> dict[str, np.ndarray]:
        """int64 nanoseconds a trial, and a fresh start; the trials must be over (a step waits for its end)."""
        sets, elapsed_ms = self._sets[: self._used], self._elapsed_ms
        columns = {"enqueue_ns": list(self.enqueue_ns)}
        columns["compute_ns"] = [elapsed_ms(before, after) * 1e6 for _, before, after, _ in sets]
        if self._every:
            columns["h2d_ns"] = [elapsed_ms(first, before) * 1e6 for first, before, _, _ in sets]
            columns["d2h_ns"] = [elapsed_ms(after, last) * 1e6 for _, _, after, last in sets]
        self.restart()
        return {name: np.rint(values).astype(np.int64) for name, values in columns.items()}

    def release(self) -> None:
        """Let go of the events and of the stream."""
        self.restart()
        self._sets.clear()
        self._stream = None

    def _grow(self, trials: int) -> None:
        for _ in range(trials):
            inner = [self._new_event(), self._new_event()]
            outer = [self._new_event(), self._new_event()] if self._every else [None, None]
            events = (outer[0], *inner, outer[1])
            for event in filter(None, events):
                event.record(self._stream)  # the driver makes an event when it is first recorded
            self._sets.append(events)
