"""Times off the core: records planted byte by byte, and real threads where the kernel allows it."""

import ctypes
import errno
import json
import os
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import off_core
from lstm_trt.machine import switches
from lstm_trt.machine.switches import CORE, FAULTS, THREAD, Away, Ring, Switches, away_of, columns, rows_of, who_ran
from tests.conftest import ROOT

PREEMPT, WAIT, BACK = switches.OUT | switches.PREEMPTED, switches.OUT, 0


def record(kind: int, time_ns: int) -> bytes:
    """A switch as the kernel writes it: header, process and thread, time."""
    return struct.pack("IHHIIQ", THREAD.record, kind, 8 * THREAD.words, 7, 8, time_ns)


def away(content: bytes, until_ns: int) -> Away:
    return away_of(rows_of(content, THREAD)[0], until_ns)


def lost(number: int) -> bytes:
    return struct.pack("IHHQQIIQ", switches.LOST, 0, 40, 1, number, 7, 8, 0)


def other() -> bytes:
    return struct.pack("IHHQ", 5, 0, 16, 0)


def test_switches_are_read_byte_by_byte():
    content = record(PREEMPT, 100) + record(BACK, 150) + other() + record(WAIT, 300) + lost(5) + record(BACK, 700)
    rows, missing, names = rows_of(content, THREAD)
    assert rows[:, 2].tolist() == [100, 150, 300, 700] and missing == 5 and names == {}
    assert [int(word) >> 32 & 0xFFFF for word in rows[:, 0]] == [PREEMPT, BACK, WAIT, BACK]


@pytest.mark.parametrize("content", [b"", lost(3), other() * 3, record(BACK, 5)])
def test_records_without_a_departure_are_no_time_off_the_core(content):
    found = away(content, 10)
    assert not len(found.left_ns) and rows_of(content, THREAD)[1] == 3 * (content == lost(3))
    assert [column.tolist() for column in columns(np.array([0]), np.array([10]), found).values()] == 4 * [[0]]


def test_a_departure_without_a_return_is_left_out_or_lasts_until_now():
    # The return at 150 was lost, so that only the second departure is known to have ended.
    found = away(record(WAIT, 100) + lost(1) + record(PREEMPT, 400) + record(BACK, 450) + record(WAIT, 900), 1000)
    assert found.left_ns.tolist() == [400, 900] and found.back_ns.tolist() == [450, 1000]
    assert found.preempted.tolist() == [True, False]


@pytest.mark.random(tail=0, why="identity")
def test_total_time_agrees_with_a_count_of_each_nanosecond(rng):
    """Of the thread, and of that of three others which was preempted for longest."""

    def drawn() -> Away:
        edges = np.sort(rng.choice(400, 60, replace=False))
        return Away(edges[::2], edges[1::2], rng.random(30) < 0.5)

    def lost(away: Away, trial: slice, preempted: bool) -> int:
        gone = np.zeros(400, bool)
        for left, back, by_others in zip(away.left_ns, away.back_ns, away.preempted, strict=True):
            gone[left:back] = by_others or not preempted
        return int(gone[trial].sum())

    own, *pool = (drawn() for _ in range(4))
    start = np.sort(rng.choice(380, 40, replace=False))
    end = start + rng.integers(1, 20, 40)
    trials = [slice(*both) for both in zip(start, end, strict=True)]
    assert {name: column.tolist() for name, column in columns(start, end, own, pool).items()} == {
        "preempted_ns": [lost(own, trial, True) for trial in trials],
        "off_core_ns": [lost(own, trial, False) for trial in trials],
        "switches_out": [sum(left in range(trial.start, trial.stop) for left in own.left_ns) for trial in trials],
        "pool_preempted_ns": [max(lost(other, trial, True) for other in pool) for trial in trials],
    }


def test_ten_million_switches_fit_into_little_memory():
    """The arrays are views of the records, and of them: 24 bytes a record, and as much again for what is made."""
    rows = np.empty((1_000_000, 3), np.uint64)
    kinds = np.tile(np.array([WAIT, BACK], np.uint64), 500_000)
    rows[:, 0] = THREAD.record | kinds << np.uint64(32) | np.uint64(8 * THREAD.words << 48)
    rows[:, 2] = np.arange(1_000_000)
    content, total = rows.tobytes(), 0
    tracemalloc.start()
    try:
        for _ in range(10):  # as blocks are read
            total += len(away(content, 10**9).left_ns)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 5_000_000
    assert peak < 6 * len(content)


class Planted(Ring):
    """A ring in plain memory, with a head that the test moves."""

    def __init__(self, pages: int, event: switches.Event = THREAD) -> None:
        self.event, self.lost, self.names, self.missing = event, 0, {}, ""
        self.size, self._map = pages * switches.mmap.PAGESIZE, bytearray((1 + pages) * switches.mmap.PAGESIZE)

    def close(self) -> None:
        pass

    def write(self, content: bytes) -> None:
        head = struct.unpack_from("Q", self._map, switches.HEAD)[0]
        for offset, byte in enumerate(content):
            self._map[switches.mmap.PAGESIZE + (head + offset) % self.size] = byte
        struct.pack_into("Q", self._map, switches.HEAD, head + len(content))


def test_a_ring_is_read_across_its_end_and_its_place_is_freed():
    ring = Planted(1)
    ring.write(b"x" * (switches.mmap.PAGESIZE - 36))
    assert len(ring.read()) == switches.mmap.PAGESIZE - 36
    content = b"".join(record(kind, time) for kind, time in ((WAIT, 1), (BACK, 2), (PREEMPT, 3), (BACK, 4)))
    ring.write(content)
    assert bytes(ring.read()) == content
    assert struct.unpack_from("Q", ring._map, switches.TAIL) == struct.unpack_from("Q", ring._map, switches.HEAD)
    assert ring.read() == b""
    ring.write(b"y" * switches.mmap.PAGESIZE)  # as many bytes as it holds
    assert bytes(ring.read()) == b"y" * switches.mmap.PAGESIZE


def core(kind: int, other: int, own: int, time_ns: int) -> bytes:
    """A switch of a core: thread `own` leaves for `other`, or comes after it."""
    return struct.pack("IHHIIIIQ", CORE.record, kind, 8 * CORE.words, other, other, own, own, time_ns)


def named(thread: int, name: bytes) -> bytes:
    """A record of a thread's new name, padded to 8 bytes, before its own thread and time."""
    size = -(-(len(name) + 1) // 8) * 8
    return struct.pack("IHHII", switches.COMM, 0, 32 + size, thread, thread) + name.ljust(size, b"\0") + bytes(16)


def fault(time_ns: int, address: int) -> bytes:
    return struct.pack("IHHIIQQ", FAULTS.record, 0, 8 * FAULTS.words, 7, 8, time_ns, address)


#: What happens on the core (when, who leaves, who comes, how), when thread 8 was away and whether it was preempted, the
#: trials, and who ran in its place for how long.
TURNS = {
    "two, a wait by itself, and a preemption between trials": (
        [
            *[(100, 8, 91, PREEMPT), (120, 91, 92, WAIT), (150, 92, 8, WAIT), (300, 8, 93, WAIT), (400, 93, 8, WAIT)],
            *[(600, 8, 94, PREEMPT), (650, 94, 8, WAIT)],
        ],
        [(100, 150, True), (300, 400, False), (600, 650, True)],
        [(60, 500), (700, 800)],
        [(91, 20), (92, 30)],
    ),
    "the thread goes on on another core": (
        *([(100, 8, 91, PREEMPT), (900, 91, 92, WAIT)], [(100, 130, True)], [(50, 1000)], [(91, 30)]),
    ),
    "nothing of the core": ([], [(100, 130, True)], [(50, 1000)], []),
    "nothing of the thread": ([(100, 8, 91, PREEMPT)], [], [(50, 1000)], []),
    "a neighbour on its own core": (*([(100, 0, 95, WAIT), (140, 95, 0, WAIT)], [(100, 150, True)], [(50, 200)], []),),
}


@pytest.mark.parametrize("case", TURNS)
def test_what_ran_is_each_turn_of_another_thread_within_the_preemption(case):
    turns, gone, trials, expected = TURNS[case]
    content = b"".join(
        core(kind, after, before, time) + core(BACK, before, after, time) for time, before, after, kind in turns
    )
    left, back, preempted = np.array(gone, int).reshape(-1, 3).T
    away = Away(left, back, preempted.astype(bool))
    assert who_ran(rows_of(content, CORE)[0], 8, away, *np.array(trials).T) == expected


def test_addresses_are_counted_by_what_is_mapped_there(tmp_path):
    maps = tmp_path / "proc/self/maps"
    maps.parent.mkdir(parents=True)
    lines = ("1000-2000 r-xp 00000000 08:01 17 /usr/lib/libnet.so", "2000-3000 rw-p 00000000 00:00 0 [heap]")
    maps.write_text(
        "\n".join([*lines, "7f00-8f00 rw-p 00000000 00:00 0", "ff000000000f0000-ff000000000ff000 rw-p 0 0 0 [stack]"])
    )
    addresses = [0x1000, 0x1FFF, 0x2000, 0x7F00, 0x3000, 0xFF000000000F0000, 0xFFFFFFFFFFFFFFFF]
    found = switches.mappings_of(np.array(addresses, np.uint64), tmp_path)
    expected = {"libnet.so": 2, "[heap]": 1, "anonymous memory": 1, "[stack]": 1, "not mapped any more": 2}
    assert dict(found) == expected
    assert dict(switches.mappings_of(np.array([5], np.uint64), tmp_path / "none")) == {"not mapped any more": 1}


def test_records_of_all_kinds_become_columns_and_what_the_provenance_says(monkeypatch, tmp_path):
    thread = threading.get_native_id()
    for name, comm in ((thread, "timed"), (91, "kworker/0:1"), (77, "pool")):
        (tmp_path / f"proc/self/task/{name}").mkdir(parents=True)
        (tmp_path / f"proc/{name}").mkdir()
        (tmp_path / f"proc/{name}/comm").write_text(comm + "\n")
    rings: dict = {}

    def ring(event, number, core=-1):
        return rings.setdefault((event, number, core), Planted(1, event))

    monkeypatch.setattr(switches, "Ring", ring)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    with Switches(tmp_path) as watched:
        watched.discard()
        rings[THREAD, thread, -1].write(
            record(PREEMPT, 110) + record(BACK, 190) + record(WAIT, 220) + record(BACK, 230)
        )
        rings[switches.POOL, 77, -1].write(record(PREEMPT, 150) + record(BACK, 195) + lost(2))
        rings[FAULTS, thread, -1].write(fault(120, 16) + fault(205, 16) + fault(225, 32))
        written = named(92, b"sh") + core(PREEMPT, 91, thread, 110)
        for number, time in ((91, 110), (92, 130), (93, 150), (0, 170)):
            written += core(BACK, thread, number, time)
        rings[CORE, -1, 3].write(written + core(BACK, 0, thread, 190))
        assert watched.room(2) == switches.LEAST_ROOM
        found = watched.take(np.array([100, 210]), np.array([200, 300]))
        told = watched.as_dict()
    assert {name: values.tolist() for name, values in found.items()} == {
        "preempted_ns": [80, 0],
        "off_core_ns": [80, 10],
        "switches_out": [1, 1],
        "pool_preempted_ns": [45, 0],
    }
    assert told["ran"] == {
        name: {"times": 1, "shortest_ns": 20, "longest_ns": 20, "total_ns": 20}
        for name in ("kworker/0:1", "sh", "pid 93, ended", "idle, or a process outside of this container")
    }
    missing = dict.fromkeys(("missing", "ran_missing", "faults_missing"))
    assert told.items() >= {**missing, "faults": {"not mapped any more": 2}, "lost": 2, "threads": 3}.items()


def test_a_block_has_as_many_trials_as_fit_into_half_of_the_ring(monkeypatch):
    ring = Planted(16)
    monkeypatch.setattr(switches, "Ring", lambda *_: ring)
    with Switches() as watched:
        assert watched.room(10) > 1e9  # no switch was seen
        ring.write((record(WAIT, 1) + record(BACK, 2)) * 30)  # three sleeps in each of ten trials
        assert watched.room(10) == 16 * switches.mmap.PAGESIZE // (2 * 3 * 48)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EMFILE])
def test_where_the_kernel_refuses_nothing_is_measured_and_the_reason_is_kept(monkeypatch, number):
    monkeypatch.setattr(switches.ctypes, "CDLL", lambda *_, **__: refusing(number))
    with Switches() as watched:
        watched.discard()
        assert watched.take(np.array([0]), np.array([1])) == {}
        assert watched.room(10) > 1e9
        reason = f"perf_event_open: {os.strerror(number)}"
        refused = dict.fromkeys(("missing", "ran_missing", "faults_missing"), reason)
        nothing = {"threads": 0, "ring_bytes": 0, "lost": 0, "ran": {}, "faults": {}}
        assert watched.as_dict() == nothing | refused


def refusing(number: int) -> SimpleNamespace:
    """A C library whose system call fails."""

    def syscall(*_):
        ctypes.set_errno(number)
        return -1

    return SimpleNamespace(syscall=syscall)


def test_an_unknown_processor_is_refused_and_not_called(monkeypatch):
    monkeypatch.setattr(switches, "SYSCALL", {})
    with Switches() as watched:
        assert watched.as_dict()["missing"]


@pytest.fixture
def allowed():
    """Rings of this process; skipped where the kernel refuses them."""
    with Switches() as watched:
        if missing := watched.as_dict()["missing"]:
            pytest.skip(missing)
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
    told = allowed.as_dict()
    assert told["lost"] == 0 and told["ring_bytes"] >= switches.mmap.PAGESIZE


def test_threads_that_start_later_are_followed(allowed):
    go, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (go.wait(), done.set()))
    allowed.discard()
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


#: A program that says that it is called "sleeper", and after each 9 ms runs for 1 ms on one core at a higher priority.
SLEEPER = """
import ctypes, os, sys, time
core, busy = int(sys.argv[1]), 0.001
os.sched_setaffinity(0, [core])
ctypes.CDLL(None).prctl(15, b"sleeper")
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
print("ready", flush=True)
while True:
    time.sleep(0.009)
    end = time.perf_counter() + busy
    while time.perf_counter() < end:
        pass
"""

#: Calls of 1 ms on one core, timed as the recorder does it; what was measured of them is printed as JSON.
BUSY = """
import json, os, sys, time
import numpy as np
from lstm_trt.machine.switches import Switches
os.sched_setaffinity(0, [int(sys.argv[1])])
clock, start, end = time.perf_counter_ns, np.empty(500, np.int64), np.empty(500, np.int64)
with Switches() as watched:
    watched.discard()
    for row in range(500):
        start[row] = clock()
        while clock() < start[row] + 1_000_000:
            pass
        end[row] = clock()
    found = watched.take(start, end)
    plain = {name: values.tolist() for name, values in found.items()}
    print(json.dumps([watched.as_dict(), plain, (end - start).tolist()]))
"""


def beside(program: str, its_core: int, core: int) -> tuple[dict, dict[str, np.ndarray], np.ndarray]:
    """What is measured of `BUSY` on a core while a program runs on its own; skips where one of both is refused."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(its_core)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        if other.stdout.readline() != "ready\n":
            pytest.skip(f"no higher priority: {other.stderr.read().splitlines()[-1]}")
        command = [sys.executable, "-c", BUSY, str(core)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    finally:
        other.kill()
        other.communicate()
    told, found, taken = json.loads(done.stdout)
    if told["missing"]:
        pytest.skip(told["missing"])
    return told, {name: np.array(values) for name, values in found.items()}, np.array(taken)


def test_a_sleeper_at_a_higher_priority_is_found_in_the_calls_that_it_hit():
    core = min(os.sched_getaffinity(0))
    told, found, taken = beside(SLEEPER, core, core)
    hit = np.abs(found["preempted_ns"] - 1_000_000) < 500_000
    if not hit.any():
        pytest.skip("nothing was preempted by the sleeper: the kernel gives this priority no precedence")
    # It runs for 1 ms by the clock, and on a busy machine it takes longer to wake and to sleep again.
    assert np.median(found["preempted_ns"][hit]) > 900_000
    assert (found["off_core_ns"] <= taken).all() and (found["preempted_ns"] <= found["off_core_ns"]).all()
    if told["ran_missing"]:
        assert told["ran"] == {}
    else:
        ran = told["ran"]["sleeper"]
        assert ran["times"] >= hit.sum() / 2 and 900_000 < ran["total_ns"] / ran["times"] < 1_500_000


#: A program that is always busy.
NEIGHBOUR = SLEEPER.replace("os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))", "busy = 1e9").replace(
    "sleeper", "neighbour"
)


def test_a_thread_that_shares_its_core_is_preempted():
    """The scheduler takes turns, and each turn of the other is a preemption."""
    core = min(os.sched_getaffinity(0))
    _, found, taken = beside(NEIGHBOUR, core, core)
    assert found["preempted_ns"].sum() > 0.1 * taken.sum() and found["switches_out"].sum() >= 1
    assert (found["preempted_ns"] <= found["off_core_ns"]).all() and (found["off_core_ns"] <= taken).all()


def test_a_busy_neighbour_on_another_core_is_not_named():
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core: there is no neighbour")
    told, _, _ = beside(NEIGHBOUR, cores[1], cores[0])
    assert "neighbour" not in told["ran"]


def test_a_storm_of_page_faults_is_counted_by_address(allowed):
    if missing := allowed.as_dict()["faults_missing"]:
        pytest.skip(missing)
    pages = 300
    allowed.discard()
    start = time.perf_counter_ns()
    with switches.mmap.mmap(-1, pages * switches.mmap.PAGESIZE) as fresh:
        for page in range(pages):
            fresh[page * switches.mmap.PAGESIZE] = 1
        end = time.perf_counter_ns()
        allowed.take(np.array([start]), np.array([end]))
    # The kernel can give several pages at one fault, and it limits the rate of records: a share of them must be there.
    assert 1 <= sum(allowed.as_dict()["faults"].values()) <= 2 * pages


def test_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["off_core.py", "--seconds", "0.2"])
    cores = os.sched_getaffinity(0)
    try:
        status = off_core.main()
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
