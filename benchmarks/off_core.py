"""How this machine interrupts a busy thread: `.venv/bin/python benchmarks/off_core.py` (10 s, no privilege needed).

A thread that only reads the clock is pinned to one core. What is printed: how often and for how long it was off its
core, preempted (it could have gone on) or waiting by itself, and the longest gap between two readings that is not
explained by that: interrupts, or a hypervisor, which a guest cannot.

Each thread of the process has one perf event that counts nothing (`PERF_COUNT_SW_DUMMY`) but writes a record into a
ring of memory each time the thread leaves its core and returns to it, with the time by CLOCK_MONOTONIC, the clock of
recordings. The kernel writes them where it switches; nothing is added between two readings. It is allowed for one's own
threads with `perf_event_paranoid` up to 2. Where the kernel refuses, `Switches.missing` says why.

Layout: perf_event_open(2), include/uapi/linux/perf_event.h.
"""

import argparse
import ctypes
import mmap
import os
import platform
import struct
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

#: Number of the system call by machine.
SYSCALL = {"x86_64": 298, "aarch64": 241}

#: Software event 9 (dummy); sampled: thread and time; exclude_kernel, exclude_hv, sample_id_all, use_clockid,
#: context_switch; close on exec.
TYPE_SOFTWARE, DUMMY, TID_AND_TIME, FLAGS = 1, 9, 1 << 1 | 1 << 2, 1 << 5 | 1 << 6 | 1 << 18 | 1 << 25 | 1 << 26
CLOSE_ON_EXEC = 1 << 3

#: Types of records and bits of a switch.
LOST, SWITCH, OUT, PREEMPTED = 2, 14, 1 << 13, 1 << 14

#: Size of a switch: header, process and thread, time. Its first word has type, bits and size.
RECORD_BYTES = 24

#: Rings of up to this many pages are asked for, then of half as many, until the kernel grants one.
MOST_PAGES, LEAST_PAGES = 512, 8

#: Places of head and tail in the page before the ring.
HEAD, TAIL = 1024, 1032


class Away(NamedTuple):
    """Times in which one thread was off its core: starts and ends in ns of CLOCK_MONOTONIC, (n,) int64, ascending.

    `preempted`: (n,) bool; the others waited by themselves. `lost`: records that did not fit into the ring.
    """

    left_ns: np.ndarray
    back_ns: np.ndarray
    preempted: np.ndarray
    lost: int = 0

    def total_ns(self, at_ns: np.ndarray) -> np.ndarray:
        """Time off the core before each of these times."""
        if not len(self.left_ns):
            return np.zeros(len(at_ns), np.int64)
        before = np.concatenate([[0], np.cumsum(self.back_ns - self.left_ns)])
        place = np.searchsorted(self.left_ns, at_ns, "right")
        last = np.maximum(place - 1, 0)
        still = np.where(place > 0, np.maximum(self.back_ns[last] - at_ns, 0), 0)
        return before[place] - still

    def only_preempted(self) -> "Away":
        """Those in which the thread was preempted."""
        return Away(self.left_ns[self.preempted], self.back_ns[self.preempted], self.preempted[self.preempted])


def switches_of(content: bytes) -> tuple[np.ndarray, np.ndarray, int]:
    """First word and time of each switch in the kernel's records, (n,) uint64, and the number of lost records.

    Nearly all records are switches, which are read as an array; any other is stepped over by its size.
    """
    words, times, lost, place = [], [], 0, 0
    while place < len(content):
        rows = np.frombuffer(content, np.uint64, (len(content) - place) // RECORD_BYTES * 3, place).reshape(-1, 3)
        other = np.flatnonzero((rows[:, 0] & 0xFFFFFFFF != SWITCH) | (rows[:, 0] >> 48 != RECORD_BYTES))
        good = rows[: other[0] if len(other) else None]
        words.append(good[:, 0])
        times.append(good[:, 2])
        place += good.nbytes
        if place < len(content):
            kind, _, size = struct.unpack_from("IHH", content, place)
            if kind == LOST:
                lost += struct.unpack_from("Q", content, place + 16)[0]
            place += max(size, 8)
    return np.concatenate([*words, np.empty(0, np.uint64)]), np.concatenate([*times, np.empty(0, np.uint64)]), lost


def away_of(content: bytes, until_ns: int) -> Away:
    """The times off the core in a thread's records; one that is off its core at the end is so until `until_ns`.

    A return without a departure, at the beginning or after lost records, and a departure without a return are left out.
    """
    words, times, lost = switches_of(content)
    leaves = (words & np.uint64(OUT << 32)) != 0
    pairs = np.flatnonzero(leaves & ~np.append(leaves[1:], False))
    left, back = times[pairs], np.append(times, until_ns)[pairs + 1]
    return Away(left.astype(np.int64), back.astype(np.int64), (words[pairs] & np.uint64(PREEMPTED << 32)) != 0, lost)


def columns(start_ns: np.ndarray, end_ns: np.ndarray, own: Away, pool: Iterable[Away] = ()) -> dict[str, np.ndarray]:
    """Per trial, (n,) int64: what the timed thread lost between `start_ns` and `end_ns`, and the threads of its pool.

    `preempted_ns` and `off_core_ns`: time off the core, preempted and in all; `switches_out`: how often it left.
    `pool_preempted_ns`: the largest time that one of the other threads was preempted.
    """

    def between(away: Away) -> np.ndarray:
        return away.total_ns(end_ns) - away.total_ns(start_ns)

    left = np.searchsorted(own.left_ns, end_ns) - np.searchsorted(own.left_ns, start_ns)
    others = [between(away.only_preempted()) for away in pool]
    return {
        "preempted_ns": between(own.only_preempted()),
        "off_core_ns": between(own),
        "switches_out": left.astype(np.int64),
        **({"pool_preempted_ns": np.max(others, axis=0)} if others else {}),
    }


class _Ring:
    """The event of one thread and its ring; raises `OSError` where the kernel refuses either."""

    def __init__(self, thread: int) -> None:
        attributes = bytearray(136)
        struct.pack_into("IIQQQQQ", attributes, 0, TYPE_SOFTWARE, len(attributes), DUMMY, 0, TID_AND_TIME, 0, FLAGS)
        struct.pack_into("i", attributes, 92, 1)  # CLOCK_MONOTONIC
        libc = ctypes.CDLL(None, use_errno=True)
        number = SYSCALL.get(platform.machine(), -1)
        self._event = libc.syscall(number, ctypes.c_char_p(bytes(attributes)), thread, -1, -1, CLOSE_ON_EXEC)
        if self._event < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.pages = MOST_PAGES
        while True:
            try:
                self._map = mmap.mmap(self._event, (1 + self.pages) * mmap.PAGESIZE)
                return
            except OSError:
                self.pages //= 2
                if self.pages < LEAST_PAGES:
                    os.close(self._event)
                    raise

    def take(self) -> bytes:
        """The records since the last call; frees their place in the ring."""
        ring, first = self.pages * mmap.PAGESIZE, mmap.PAGESIZE
        head, tail = (struct.unpack_from("Q", self._map, place)[0] for place in (HEAD, TAIL))
        begin, end = tail % ring, head % ring
        whole = self._map[first + begin : first + (end if end > begin else ring)] if head > tail else b""
        if head > tail and end <= begin:
            whole += self._map[first : first + end]
        struct.pack_into("Q", self._map, TAIL, head)
        return whole

    def close(self) -> None:
        self._map.close()
        os.close(self._event)


class Switches:
    """Rings of all threads of this process, from `with` on; `take` reads them between blocks.

    `missing`: why nothing is measured, empty otherwise.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._tasks = root / "proc/self/task"
        self._rings: dict[int, _Ring] = {}
        self.missing, self.lost = "", 0

    def __enter__(self) -> Self:
        self._follow()
        return self

    def __exit__(self, *_: Any) -> None:
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    def _follow(self) -> None:
        """Open a ring for each thread that has none yet; those of threads that have ended stay until the end."""
        for name in os.listdir(self._tasks):
            if self.missing or int(name) in self._rings:
                continue
            try:
                self._rings[int(name)] = _Ring(int(name))
            except ProcessLookupError:  # it has just ended
                continue
            except OSError as error:
                if int(name) == os.getpid() or not self._rings:
                    self.missing = f"perf_event_open: {error.strerror}"
                # else the memory for rings is used up: the threads that have one are measured

    def discard(self) -> None:
        """Forget the records so far, and follow new threads."""
        self._follow()
        for ring in self._rings.values():
            ring.take()

    def take(self, start_ns: np.ndarray, end_ns: np.ndarray) -> dict[str, np.ndarray]:
        """`columns` of trials of the calling thread since the last call; empty where nothing is measured."""
        own, now = threading.get_native_id(), time.perf_counter_ns()
        away = {thread: away_of(ring.take(), now) for thread, ring in self._rings.items()}
        self.lost += sum(each.lost for each in away.values())
        if self.missing or own not in away:
            return {}
        mine = away.pop(own)
        return columns(start_ns, end_ns, mine, away.values())

    def as_dict(self) -> Mapping[str, Any]:
        """JSON values, for the provenance."""
        pages = [ring.pages for ring in self._rings.values()]
        ring_bytes = min(pages, default=0) * mmap.PAGESIZE
        return {"threads": len(pages), "ring_bytes": ring_bytes, "lost": self.lost, "missing": self.missing or None}


def spin(seconds: float, core: int, watched: Switches) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Start and end of every gap of more than 1 us between two readings of the clock, and their `columns`."""
    os.sched_setaffinity(0, [core])
    clock, gaps = time.perf_counter_ns, []
    watched.discard()
    before = clock()
    end = before + int(1e9 * seconds)
    while before < end:
        now = clock()
        if now - before > 1000:
            gaps.append((before, now))
        before = now
    start_ns, end_ns = np.array(gaps, np.int64).reshape(-1, 2).T
    return start_ns, end_ns, watched.take(start_ns, end_ns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="default: the last one allowed")
    arguments = parser.parse_args()
    with Switches() as watched:
        if watched.missing:
            print(f"the kernel refuses: {watched.missing}", file=sys.stderr)
            return 2
        start_ns, end_ns, found = spin(arguments.seconds, arguments.core, watched)
    gaps_ns, off_ns, preempted_ns = end_ns - start_ns, found["off_core_ns"], found["preempted_ns"]
    rows = (
        ("preempted", preempted_ns),
        ("waiting by itself", off_ns - preempted_ns),
        ("on the core, cause not observed", gaps_ns - off_ns),
    )
    print(f"{len(gaps_ns)} gaps of more than 1 us in {arguments.seconds:g} s on core {arguments.core}")
    for name, times_ns in rows:
        held = times_ns[times_ns > 1000]
        longest_us = held.max(initial=0) / 1e3
        print(f"  {name}: {len(held)} times, {held.sum() / 1e6:.3f} ms in all, the longest {longest_us:.1f} us")
    if watched.lost:
        print(f"  {watched.lost} records did not fit into the ring")
    return 0


if __name__ == "__main__":
    sys.exit(main())
