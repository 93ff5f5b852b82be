"""When a timed thread was off its core, and what ran there instead, by perf events of Linux.

An event of a thread counts nothing (`PERF_COUNT_SW_DUMMY`) but writes a record into a ring of
memory each time the thread leaves its core and returns to it, with the time by CLOCK_MONOTONIC, the
clock of recordings. The kernel writes them where it switches: nothing is added to a timed call, and
the rings are read between blocks of trials. A bit of the record says whether the thread was
preempted (it could have gone on; this includes sched_yield) or waited by itself.

Three kinds of events, each measured where the kernel allows it (`perf_event_paranoid`, CAP_PERFMON,
seccomp):
  of each thread   times off the core; for one's own threads up to paranoid 2
  of each core     which thread ran next; as root, with CAP_PERFMON, or with paranoid 0
  page faults      the address of each fault of the timed thread; up to paranoid 2

Layout: perf_event_open(2), include/uapi/linux/perf_event.h.
"""

import ctypes
import mmap
import os
import struct
import threading
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from lstm_trt.machine.linux import ROOT, read_text

#: Number of the system call by machine.
SYSCALL = {"x86_64": 298, "aarch64": 241}

TYPE_SOFTWARE, CLOSE_ON_EXEC, CLOCK_MONOTONIC = 1, 1 << 3, 1

#: Types of records, and bits of a switch: out of the core (otherwise back), and preempted.
LOST, COMM, OUT, PREEMPTED = 2, 3, 1 << 13, 1 << 14

#: Places of head and tail in the page before the ring.
HEAD, TAIL = 1024, 1032  # one after the other


class Event(NamedTuple):
    """What a ring records: fields of perf_event_attr, the type of the records, and their size in
    `words` of 8 bytes.

    Rings of `pages` are asked for, then of half as many, until the kernel grants one: all threads
    of an ordinary user share about 0.5 MiB per core.
    """

    record: int
    words: int
    pages: int
    config: int
    flags: int
    sampled: int = 1 << 1 | 1 << 2  # thread and time
    period: int = 0


#: exclude_kernel, exclude_hv, sample_id_all, use_clockid.
_FLAGS = 1 << 5 | 1 << 6 | 1 << 18 | 1 << 25
_DUMMY, _PAGE_FAULTS, _SWITCHES, _NAMES = 9, 2, _FLAGS | 1 << 26, 1 << 9

THREAD = Event(14, 3, 128, _DUMMY, _SWITCHES)
POOL = THREAD._replace(pages=16)
CORE = Event(15, 4, 128, _DUMMY, _SWITCHES | _NAMES)
FAULTS = Event(9, 4, 32, _PAGE_FAULTS, _FLAGS, THREAD.sampled | 1 << 3, 1)

#: A block has at least this number of trials, even if their switches may not all fit into the ring.
LEAST_ROOM = 100

#: More than any block has.
UNLIMITED = 1 << 62

#: Names that the provenance lists: those that ran longest.
MOST_NAMES = 20


class Away(NamedTuple):
    """Times in which one thread was off its core: starts and ends in ns of CLOCK_MONOTONIC, (n,)
    int64, ascending.

    `preempted`: (n,) bool; in the others it waited by itself.
    """

    left_ns: np.ndarray
    back_ns: np.ndarray
    preempted: np.ndarray

    def total_ns(self, at_ns: np.ndarray) -> np.ndarray:
        """Time off the core before each of these times."""
        if not len(self.left_ns):
            return np.zeros(len(at_ns), np.int64)
        before = np.concatenate([[0], np.cumsum(self.back_ns - self.left_ns)])
        place = np.searchsorted(self.left_ns, at_ns, "right")
        last = np.maximum(place - 1, 0)
        still = np.where(place > 0, np.maximum(self.back_ns[last] - at_ns, 0), 0)
        return before[place] - still

    def only_preempted(self) -> Self:
        """Those in which the thread was preempted."""
        return type(self)(*(values[self.preempted] for values in self))


def rows_of(content: bytes, event: Event) -> tuple[np.ndarray, int, dict[int, str]]:
    """The event's records, (n, words) uint64, the number of lost ones, and the names that threads
    got meanwhile.

    Nearly all records are of the event's type, which are read as an array; any other is stepped
    over by its size.
    """
    found = [np.empty((0, event.words), np.uint64)]
    lost = 0
    names = {}
    size = 8 * event.words
    place = 0
    while place < len(content):
        whole = (len(content) - place) // size * event.words
        rows = np.frombuffer(content, np.uint64, whole, place).reshape(-1, event.words)
        header = rows[:, 0]
        other = np.flatnonzero((header & 0xFFFFFFFF != event.record) | (header >> 48 != size))
        found.append(rows[: other[0] if len(other) else None])
        place += found[-1].nbytes
        if place == len(content):
            break
        kind, _, length = struct.unpack_from("IHH", content, place)
        if kind == LOST:
            lost += struct.unpack_from("Q", content, place + 16)[0]
        elif kind == COMM:
            thread = struct.unpack_from("I", content, place + 12)[0]
            name = content[place + 16 : place + length - 16].partition(b"\0")[0]
            names[thread] = name.decode(errors="replace")
        place += max(length, 8)
    return np.concatenate(found), lost, names


def _has(words: np.ndarray, bit: int) -> np.ndarray:
    return words & np.uint64(bit << 32) != 0


def away_of(rows: np.ndarray, until_ns: int) -> Away:
    """The times off the core in a thread's records; one that is off its core at the end is so until
    `until_ns`.

    A return without a departure, at the beginning or after lost records, and a departure without a
    return are left out.
    """
    words = rows[:, 0]
    times = rows[:, 2].astype(np.int64)
    leaves = _has(words, OUT)
    pairs = np.flatnonzero(leaves & ~np.append(leaves[1:], False))
    return Away(times[pairs], np.append(times, until_ns)[pairs + 1], _has(words[pairs], PREEMPTED))


def columns(
    start_ns: np.ndarray, end_ns: np.ndarray, own: Away, pool: Iterable[Away] = ()
) -> dict[str, np.ndarray]:
    """Per trial, (n,) int64: what the timed thread lost between `start_ns` and `end_ns`, and the
    threads of its pool.

    `preempted_ns` and `off_core_ns`: time off the core, preempted and in all; `switches_out`: how
    often it left. `pool_preempted_ns`: the largest time that one of the other threads was
    preempted, 0 if there are none.
    """

    def between(away: Away) -> np.ndarray:
        return away.total_ns(end_ns) - away.total_ns(start_ns)

    left = np.searchsorted(own.left_ns, end_ns) - np.searchsorted(own.left_ns, start_ns)
    others = [between(away.only_preempted()) for away in pool]
    return {
        "preempted_ns": between(own.only_preempted()),
        "off_core_ns": between(own),
        "switches_out": left.astype(np.int64),
        "pool_preempted_ns": np.max([np.zeros(len(start_ns), np.int64), *others], axis=0),
    }


def within(times_ns: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Whether each of these times is inside a trial, bool."""
    place = np.searchsorted(start_ns, times_ns, "right")
    return times_ns < np.append(0, end_ns)[place]


def who_ran(
    rows: np.ndarray, thread: int, away: Away, start_ns: np.ndarray, end_ns: np.ndarray
) -> list[tuple[int, int]]:
    """(thread, ns) of each turn that others had on one core while `thread` was preempted there
    within a trial.

    `rows`: records of the core. `away`: those of the thread, which may return to another core.
    """
    if not len(away.back_ns):  # the thread's own records can be lost
        return []
    times = rows[:, 3].astype(np.int64)
    threads = rows[:, 2] >> 32
    into = np.flatnonzero(~_has(rows[:, 0], OUT))
    begins = times[into]
    ends = np.append(begins, away.back_ns[-1])[1:]
    turns = []
    left = (threads == thread) & _has(rows[:, 0], PREEMPTED) & within(times, start_ns, end_ns)
    for at in np.flatnonzero(left):
        back = away.back_ns[min(np.searchsorted(away.back_ns, times[at]), len(away.back_ns) - 1)]
        turn = int(np.searchsorted(into, at))
        while turn < len(ends) and threads[into[turn]] != thread and begins[turn] < back:
            turns.append((int(threads[into[turn]]), int(min(ends[turn], back) - begins[turn])))
            turn += 1
    return turns


def mappings_of(addresses: np.ndarray, root: Path = ROOT) -> Counter:
    """Number of addresses by what is mapped there: [stack], [heap], the name of a file, or
    anonymous memory."""
    starts, ends, names = [], [], []
    for line in (read_text("/proc/self/maps", root) or "").splitlines():
        fields = line.split(None, 5)
        first, _, last = fields[0].partition("-")
        starts.append(int(first, 16))
        ends.append(int(last, 16))
        names.append(os.path.basename(fields[5]) if len(fields) > 5 else "anonymous memory")
    found = Counter()
    for address in addresses.tolist():
        place = bisect_right(starts, address) - 1
        mapped = place >= 0 and address < ends[place]
        found[names[place] if mapped else "not mapped any more"] += 1
    return found


class Ring:
    """The ring of a thread's or a core's event; `missing` is why there is none, empty otherwise."""

    def __init__(self, event: Event, thread: int, core: int = -1) -> None:
        self.event = event
        self.size = 0
        self.lost = 0
        self.names: dict[int, str] = {}
        self.missing = ""
        self._map: Any = None
        attributes = bytearray(136)
        fields = (event.config, event.period, event.sampled, 0, event.flags)
        struct.pack_into("IIQQQQQ", attributes, 0, TYPE_SOFTWARE, len(attributes), *fields)
        struct.pack_into("i", attributes, 92, CLOCK_MONOTONIC)
        libc = ctypes.CDLL(None, use_errno=True)
        number = SYSCALL.get(os.uname().machine, -1)
        handle = libc.syscall(
            number, ctypes.c_char_p(bytes(attributes)), thread, core, -1, CLOSE_ON_EXEC
        )
        if handle < 0:
            self.missing = f"perf_event_open: {os.strerror(ctypes.get_errno())}"
            return
        pages = event.pages
        while pages and not self._map:
            with suppress(OSError):
                self._map = mmap.mmap(handle, (1 + pages) * mmap.PAGESIZE)
                self.size = pages * mmap.PAGESIZE
            pages //= 2
        os.close(handle)  # the map holds the event
        if not self._map:
            self.missing = "the memory for rings is used up (perf_event_mlock_kb)"

    def span(self) -> tuple[int, int]:
        """Tail and head: the numbers of all bytes that were read and written."""
        if self.missing:
            return 0, 0
        head, tail = struct.unpack_from("QQ", self._map, HEAD)
        return tail, head

    def read(self) -> bytes:
        """The content since the last call; frees its place in the ring."""
        tail, head = self.span()
        if head == tail:
            return b""
        start = mmap.PAGESIZE
        begin = start + tail % self.size
        end = start + head % self.size
        if end > begin:
            content = self._map[begin:end]
        else:
            content = self._map[begin : start + self.size] + self._map[start:end]
        struct.pack_into("Q", self._map, TAIL, head)
        return content

    def take(self) -> np.ndarray:
        """The records since the last call, as `rows_of`; adds to `lost` and `names`."""
        rows, lost, names = rows_of(self.read(), self.event)
        self.lost += lost
        self.names |= names
        return rows

    def close(self) -> None:
        if not self.missing:
            self._map.close()


class Switches:
    """The rings of this process from `with` on, whose thread is the timed one; `take` reads them
    between blocks."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._turns: dict[str, array] = {}
        self._faults: Counter = Counter()

    def __enter__(self) -> Self:
        self._thread = threading.get_native_id()
        self._own = Ring(THREAD, self._thread)
        self._faulting = Ring(FAULTS, self._thread)
        self._cores = [Ring(CORE, -1, core) for core in os.sched_getaffinity(0)]
        self._pool: dict[int, Ring] = {}
        return self

    def __exit__(self, *_: Any) -> None:
        for ring in self._rings():
            ring.close()

    def _rings(self) -> list[Ring]:
        return [self._own, self._faulting, *self._cores, *self._pool.values()]

    def discard(self) -> None:
        """Forget the records so far, and follow new threads; the rings of those that have ended
        stay until the end."""
        for thread in map(int, os.listdir(self._root / "proc/self/task")):
            if thread != self._thread and thread not in self._pool and not self._own.missing:
                self._pool[thread] = Ring(POOL, thread)
        for ring in self._rings():
            ring.read()

    def room(self, trials: int) -> int:
        """The trials whose switches fit into half of the ring, by those since `discard`, which were
        `trials`."""
        tail, head = self._own.span()
        if head == tail or not trials:
            return UNLIMITED
        return max(LEAST_ROOM, self._own.size * trials // (2 * (head - tail)))

    def take(self, start_ns: np.ndarray, end_ns: np.ndarray) -> dict[str, np.ndarray]:
        """`columns` of trials of the timed thread since `discard`; empty if nothing is measured."""
        if self._own.missing:
            return {}
        now = time.perf_counter_ns()
        own = away_of(self._own.take(), now)
        for ring in self._cores:
            for thread, turn_ns in who_ran(ring.take(), self._thread, own, start_ns, end_ns):
                name = self._name(thread, ring)
                self._turns.setdefault(name, array("q")).append(turn_ns)
        faults = self._faulting.take()
        inside = within(faults[:, 2].astype(np.int64), start_ns, end_ns)
        if inside.any():
            self._faults += mappings_of(faults[inside, 3], self._root)
        pool = [away_of(ring.take(), now) for ring in self._pool.values() if not ring.missing]
        return columns(start_ns, end_ns, own, pool)

    def _name(self, thread: int, ring: Ring) -> str:
        if not thread:
            return "idle, or a process outside of this container"
        name = ring.names.get(thread) or read_text(f"/proc/{thread}/comm", self._root)
        return name or f"pid {thread}, ended"

    def as_dict(self) -> Mapping[str, Any]:
        """JSON values, for the provenance: what was measured since `with`, and why the rest was
        not."""
        longest = sorted(self._turns.items(), key=lambda item: -sum(item[1]))[:MOST_NAMES]
        ran = {
            name: {
                "times": len(turns_ns),
                "shortest_ns": min(turns_ns),
                "longest_ns": max(turns_ns),
                "total_ns": sum(turns_ns),
            }
            for name, turns_ns in longest
        }
        return {
            "threads": sum(not ring.missing for ring in (self._own, *self._pool.values())),
            "ring_bytes": self._own.size,
            "lost": sum(ring.lost for ring in self._rings()),
            "missing": self._own.missing or None,
            "ran": ran,
            "ran_missing": self._cores[0].missing or None,
            "faults": dict(self._faults.most_common(MOST_NAMES)),
            "faults_missing": self._faulting.missing or None,
        }
