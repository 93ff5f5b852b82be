"""Times off the core: records planted byte by byte, and real threads where the kernel allows it."""

import errno
import json
import os
import struct
import subprocess
import sys
import threading
import time
import tracemalloc

import numpy as np
import pytest

from benchmarks import off_core as switches
from benchmarks.off_core import Away, Switches, away_of, columns, switches_of
from tests.conftest import ROOT

PREEMPT, WAIT, BACK = switches.OUT | switches.PREEMPTED, switches.OUT, 0


def record(kind: int, time_ns: int) -> bytes:
    """A switch as the kernel writes it: header, process and thread, time."""
    return struct.pack("IHHIIQ", switches.SWITCH, kind, switches.RECORD_BYTES, 7, 8, time_ns)


def lost(number: int) -> bytes:
    return struct.pack("IHHQQIIQ", switches.LOST, 0, 40, 1, number, 7, 8, 0)


def other() -> bytes:
    return struct.pack("IHHQ", 3, 0, 16, 0)


def test_switches_are_read_byte_by_byte():
    content = record(PREEMPT, 100) + record(BACK, 150) + other() + record(WAIT, 300) + lost(5) + record(BACK, 700)
    words, times, missing = switches_of(content)
    assert times.tolist() == [100, 150, 300, 700] and missing == 5
    assert [int(word) >> 32 & 0xFFFF for word in words] == [PREEMPT, BACK, WAIT, BACK]


@pytest.mark.parametrize("content", [b"", lost(3), other() * 3, record(BACK, 5)])
def test_records_without_a_departure_are_no_time_off_the_core(content):
    away = away_of(content, 10)
    assert not len(away.left_ns) and away.lost == 3 * (content == lost(3))
    assert columns(np.array([0]), np.array([10]), away)["off_core_ns"].tolist() == [0]


def test_a_departure_without_a_return_is_left_out_or_lasts_until_now():
    # The return at 150 was lost, so that only the second departure is known to have ended.
    away = away_of(record(WAIT, 100) + lost(1) + record(PREEMPT, 400) + record(BACK, 450) + record(WAIT, 900), 1000)
    assert away.left_ns.tolist() == [400, 900] and away.back_ns.tolist() == [450, 1000]
    assert away.preempted.tolist() == [True, False] and away.lost == 1


def test_time_off_the_core_is_that_within_each_trial():
    """Before, across the beginning, within, across the end, around it, and after."""
    own = Away(np.array([0, 90, 210, 290, 400]), np.array([10, 110, 220, 310, 600]), np.array([0, 1, 0, 1, 1], bool))
    start, end = np.array([100, 200, 300, 450, 700]), np.array([200, 300, 400, 500, 800])
    found = columns(start, end, own)
    assert found["off_core_ns"].tolist() == [10, 20, 10, 50, 0]
    assert found["preempted_ns"].tolist() == [10, 10, 10, 50, 0]
    assert found["switches_out"].tolist() == [0, 2, 0, 0, 0]
    assert "pool_preempted_ns" not in found


def test_of_other_threads_only_the_longest_preemption_counts():
    own = Away(*np.empty((2, 0), np.int64), np.empty(0, bool))
    waits = Away(np.array([100]), np.array([190]), np.array([False]))
    short, long = (Away(np.array([120]), np.array([120 + time]), np.array([True])) for time in (5, 30))
    found = columns(np.array([100, 200]), np.array([200, 300]), own, [waits, short, long])
    assert found["pool_preempted_ns"].tolist() == [30, 0] and found["off_core_ns"].tolist() == [0, 0]


def test_total_time_agrees_with_a_count_of_each_nanosecond(rng):
    edges = np.sort(rng.choice(2000, 60, replace=False))
    own = Away(edges[::2], edges[1::2], rng.random(30) < 0.5)
    away = np.zeros(2001, bool)
    for left, back in zip(own.left_ns, own.back_ns, strict=True):
        away[left:back] = True
    start = np.sort(rng.choice(1990, 40, replace=False))
    end = start + rng.integers(1, 10, 40)
    found = columns(start, end, own)["off_core_ns"]
    assert found.tolist() == [int(away[first:last].sum()) for first, last in zip(start, end, strict=True)]


def test_ten_million_switches_fit_into_little_memory():
    """The arrays are views of the records, and of them: 24 bytes a record, and as much again for what is made."""
    rows = np.empty((1_000_000, 3), np.uint64)
    kinds = np.tile(np.array([WAIT, BACK], np.uint64), 500_000)
    rows[:, 0] = switches.SWITCH | kinds << np.uint64(32) | np.uint64(switches.RECORD_BYTES << 48)
    rows[:, 2] = np.arange(1_000_000)
    content, total = rows.tobytes(), 0
    tracemalloc.start()
    try:
        for _ in range(10):  # as blocks are read
            total += len(away_of(content, 10**9).left_ns)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 5_000_000
    assert peak < 6 * len(content)


class Planted(switches._Ring):
    """A ring in plain memory, with a head that the test moves."""

    def __init__(self, pages: int) -> None:
        self.pages, self._map = pages, bytearray((1 + pages) * switches.mmap.PAGESIZE)

    def write(self, content: bytes) -> None:
        head = struct.unpack_from("Q", self._map, switches.HEAD)[0]
        ring = self.pages * switches.mmap.PAGESIZE
        for offset, byte in enumerate(content):
            self._map[switches.mmap.PAGESIZE + (head + offset) % ring] = byte
        struct.pack_into("Q", self._map, switches.HEAD, head + len(content))


def test_a_ring_is_read_across_its_end_and_its_place_is_freed():
    ring = Planted(1)
    ring.write(b"x" * (switches.mmap.PAGESIZE - 36))
    assert len(ring.take()) == switches.mmap.PAGESIZE - 36
    content = b"".join(record(kind, time) for kind, time in ((WAIT, 1), (BACK, 2), (PREEMPT, 3), (BACK, 4)))
    ring.write(content)
    assert bytes(ring.take()) == content
    assert struct.unpack_from("Q", ring._map, switches.TAIL) == struct.unpack_from("Q", ring._map, switches.HEAD)
    assert ring.take() == b""
    ring.write(b"y" * switches.mmap.PAGESIZE)  # as many bytes as it holds
    assert bytes(ring.take()) == b"y" * switches.mmap.PAGESIZE


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EMFILE])
def test_where_the_kernel_refuses_nothing_is_measured_and_the_reason_is_kept(monkeypatch, number):
    def refused(self, thread):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(switches._Ring, "__init__", refused)
    with Switches() as watched:
        watched.discard()
        assert watched.take(np.array([0]), np.array([1])) == {}
        assert watched.as_dict() == {
            "threads": 0,
            "ring_bytes": 0,
            "lost": 0,
            "missing": f"perf_event_open: {os.strerror(number)}",
        }


def test_an_unknown_processor_is_refused_and_not_called(monkeypatch):
    monkeypatch.setattr(switches.platform, "machine", lambda: "riscv64")
    with Switches() as watched:
        assert watched.missing


@pytest.fixture
def allowed():
    """Rings of this process; skipped where the kernel refuses them."""
    with Switches() as watched:
        if watched.missing:
            pytest.skip(watched.missing)
        yield watched


def timed(work, count: int) -> tuple[np.ndarray, np.ndarray]:
    start, end = np.empty(count, np.int64), np.empty(count, np.int64)
    for row in range(count):
        start[row] = time.perf_counter_ns()
        work(row)
        end[row] = time.perf_counter_ns()
    return start, end


def test_a_sleep_is_time_off_the_core_and_no_preemption(allowed):
    allowed.discard()
    start, end = timed(lambda row: time.sleep(0.002 if row % 5 == 0 else 0), 40)
    found = allowed.take(start, end)
    slept = np.arange(40) % 5 == 0
    assert (found["switches_out"][slept] >= 1).all()
    waited = found["off_core_ns"] - found["preempted_ns"]
    # A sleep lasts 2 ms at least, most of it off the core; a busy machine only adds to it.
    assert (waited[slept] > 1_500_000).all() and (found["off_core_ns"] <= end - start).all()
    assert allowed.lost == 0 and allowed.as_dict()["ring_bytes"] >= switches.LEAST_PAGES * 4096


def test_threads_that_start_later_are_followed(allowed):
    go, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (go.wait(), done.set()))
    before = allowed.as_dict()["threads"]
    thread.start()
    allowed.discard()
    followed = allowed.as_dict()["threads"]
    go.set()
    done.wait()
    thread.join()
    if followed == before:
        pytest.skip("the memory that the kernel grants an ordinary user for rings is used up")
    assert followed == before + 1
    assert "pool_preempted_ns" in allowed.take(np.array([0]), np.array([1]))


def test_a_thread_that_shares_its_core_is_preempted(tmp_path):
    """Two busy processes on one core: the scheduler takes turns, and each turn of the other is a preemption."""
    core = min(os.sched_getaffinity(0))
    script = tmp_path / "shared.py"
    script.write_text(
        "import json, os, time, numpy as np\n"
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from benchmarks.off_core import Switches\n"
        f"os.sched_setaffinity(0, [{core}])\n"
        "with Switches() as watched:\n"
        "    watched.discard()\n"
        "    start = time.perf_counter_ns()\n"
        "    while time.perf_counter_ns() - start < 400_000_000: pass\n"
        "    end = time.perf_counter_ns()\n"
        "    found = watched.take(np.array([start]), np.array([end]))\n"
        "    print(json.dumps([watched.missing, end - start, {k: int(v[0]) for k, v in found.items()}]))\n"
    )
    turn = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", turn])
    try:
        done = subprocess.run([sys.executable, script, str(ROOT)], capture_output=True, text=True, check=True)
    finally:
        busy.kill()
        busy.wait()
    missing, wall_ns, found = json.loads(done.stdout)
    if missing:
        pytest.skip(missing)
    assert found["preempted_ns"] > 0.1 * wall_ns and found["switches_out"] >= 1
    assert found["preempted_ns"] <= found["off_core_ns"] < wall_ns


def test_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["off_core.py", "--seconds", "0.2"])
    cores = os.sched_getaffinity(0)
    try:
        status = switches.main()
    finally:
        os.sched_setaffinity(0, cores)
    printed = capsys.readouterr()
    if status == 2:
        assert printed.err.startswith("the kernel refuses: ")
    else:
        assert [line.split(":")[0].strip() for line in printed.out.splitlines()[1:4]] == [
            "preempted",
            "waiting by itself",
            "on the core, cause not observed",
        ]
