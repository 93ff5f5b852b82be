"""Counters and gauges of the machine, read between blocks of trials.

Nothing here runs inside a timed trial. The files of /proc and /sys stay open and are
read again at offset 0: 0.1 to 0.15 ms per reading on a guest with two cores. psutil is
not used: it opens each file every time, and does not tell to which core a row belongs.
A counter that the system lacks is None, so that zero always means that nothing happened.

Counters (`difference` subtracts them):
  steal_ns                time that the hypervisor took from the pinned cores; /proc/stat
                          counts it in ticks, of 10 ms as a rule
  interrupts              on the pinned cores (columns of /proc/interrupts);
                          None if that table is larger than 16 KiB: on a machine with
                          hundreds of cores, reading it takes milliseconds
  softirqs                on the pinned cores (columns of /proc/softirqs)
  throttled_ns            time for which a CPU quota stopped this cgroup or one of its
  throttled_periods       parents, and the number of such periods (cpu.stat, v1 and v2)
  runnable_ns             time in which this thread could have run but waited for a core
                          (/proc/thread-self/schedstat), in trials and between them
  thread_cpu_ns           CPU time of the thread that reads, which is the timed one
  process_cpu_ns          CPU time of this process, also of threads that have ended
CPU time of its other threads since the last reading, by number: `threads_cpu_ns`. After the trials
`split_cpu_time` replaces these and process_cpu_ns by pool_cpu_ns, of the threads that ran in every
block, and unexplained_cpu_ns, the rest: a runtime's pool works in every call, whereas threads that
do something else, such as sending usage data, run now and then, and may live too briefly for any
list of threads. Time of others, from /proc/stat; one block's can be negative, since idle time is
counted in ticks:
  others_ns               time in which the pinned cores were neither idle nor used by this
                          process, but by other programs, the kernel or the hypervisor
  others_total_ns         the same for all cores
Gauges:
  cpu_khz                 clock of the slowest pinned core, where cpufreq states it
  gpu_*                   with a GPU: clocks in MHz, temperature, power in mW, and the
                          bit mask that `gpu.throttle_reasons` names
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from lstm_trt.machine import linux

#: Readings that never decrease; all others are gauges.
COUNTERS = (
    "steal_ns",
    "interrupts",
    "softirqs",
    "throttled_ns",
    "throttled_periods",
    "runnable_ns",
    "thread_cpu_ns",
    "process_cpu_ns",
)

#: Readings whose differences may be negative.
OTHERS = ("others_ns", "others_total_ns")

#: CPU time of the other threads since the last reading, by thread, of those that ran.
BY_THREAD = "threads_cpu_ns"

#: Less unexplained CPU time in a block is none: the clocks are read one after the other.
EXACT_NS = 10_000

#: A recording was not alone if others used more than this share of the pinned cores' time, or this
#: share of one of the remaining cores, and in either case more than two ticks.
ALONE_SHARE = 0.02
ALONE_SHARE_ELSEWHERE = 0.5
ALONE_NS = 20_000_000


#: Rows of /proc/interrupts with one number for the whole machine instead of one per core.
WHOLE_MACHINE = (b"ERR:", b"MIS:", b"Err:")

#: A larger table is too slow to be read between blocks.
LARGEST_TABLE_BYTES = 16 * 1024


def difference(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, int | float | None]:
    """The change between two readings: counters are subtracted, gauges are those of `after`.

    A counter that one of the readings lacks, or that decreased, is None.
    """
    changed = dict(after)
    for name in (*COUNTERS, *OTHERS):
        if name not in after:
            continue
        first = before.get(name)
        last = after[name]
        if first is None or last is None or (last < first and name in COUNTERS):
            changed[name] = None
        else:
            changed[name] = last - first
    return changed


def split_cpu_time(blocks: Sequence[Mapping]) -> list[dict]:
    """The blocks with `pool_cpu_ns` and `unexplained_cpu_ns` in place of the CPU times of process
    and threads.

    None where one of them is not known. With several threads that of one block can be negative.
    """
    tables: list[Any] = [block.get(BY_THREAD) for block in blocks]
    pool = None  # the threads that ran in every block
    if None not in tables:
        pool = set.intersection(*map(set, tables))
    found = []
    for block in blocks:
        kept = dict(block)
        of_threads = kept.pop(BY_THREAD, None)
        process_ns = kept.pop("process_cpu_ns", None)
        kept["pool_cpu_ns"] = kept["unexplained_cpu_ns"] = None
        if pool is not None:
            pool_ns = sum(of_threads[thread] for thread in pool)
            rest_ns = process_ns - block["thread_cpu_ns"] - pool_ns
            kept["pool_cpu_ns"] = pool_ns
            kept["unexplained_cpu_ns"] = rest_ns if abs(rest_ns) >= EXACT_NS else 0
        found.append(kept)
    return found


def total(blocks: Sequence[Mapping], name: str) -> int | None:
    """The sum of a counter over blocks, at least 0; None if it is not known of all."""
    values: list[Any] = [block.get(name) for block in blocks]
    return None if None in values else max(0, sum(values))


def others(
    blocks: Sequence[Mapping],
    wall_ns: int,
    cores: int,
    load_ns: int = 0,
    on_pinned: bool = False,
) -> dict[str, int | bool] | None:
    """CPU time of others on the pinned `cores` and on all cores, and whether the recording was
    alone.

    `blocks`: the differences of readings over `wall_ns` in total. `load_ns`: CPU time of the loads
    that belong to the recording, which are not others, and whether they ran `on_pinned` cores. None
    if the system does not count idle time.
    """
    pinned, everywhere = (total(blocks, name) for name in OTHERS)
    if pinned is None or everywhere is None:
        return None
    everywhere = max(0, everywhere - load_ns)
    if on_pinned:
        pinned = max(0, pinned - load_ns)
    disturbed = pinned > max(ALONE_NS, ALONE_SHARE * cores * wall_ns)
    disturbed |= everywhere - pinned > max(ALONE_NS, ALONE_SHARE_ELSEWHERE * wall_ns)
    return {"pinned_cores_ns": pinned, "all_cores_ns": everywhere, "alone": not disturbed}


def cpu_clock(thread: int) -> int:
    """The clock of a thread's CPU time, by its number (clock_getcpuclockid of the C library, for
    threads)."""
    return ~thread << 3 | 6


def process_clock(pid: int) -> int:
    """The clock of a process's CPU time, of all its threads (clock_getcpuclockid)."""
    return ~pid << 3 | 2


#: Handle of a file that cannot be read, or is too slow to read.
CLOSED = -1


def _content(handle: int) -> bytes:
    """The whole file; empty if it cannot be read, or was removed with its cgroup."""
    content = b""
    with suppress(OSError):
        while more := os.pread(handle, 1 << 16, len(content)):
            content += more
    return content


def _columns_sum(table: bytes, cores: Sequence[int]) -> int | None:
    """Sum over the columns of `cores` in a table whose first line is "CPU0 CPU1 ..."."""
    head, *lines = table.splitlines() or [b""]
    names = head.split()
    try:
        places = [1 + names.index(b"CPU%d" % core) for core in cores]
    except ValueError:  # a pinned core has no column, or there is no table
        return None
    last = max(places)
    total = 0
    for line in lines:
        fields = line.split(None, last + 1)
        if len(fields) > last and fields[0] not in WHOLE_MACHINE:
            total += sum(int(fields[place]) for place in places if fields[place].isdigit())
    return total


class Watcher:
    """Readings of the pinned `cores`, and with `device="cuda"` of the GPU; used with `with`."""

    def __init__(
        self, cores: Sequence[int], device: str = "cpu", *, root: Path = linux.ROOT
    ) -> None:
        self.cores = tuple(cores)
        self.root = Path(root)
        self._held = ExitStack()
        self._nvml: Any = None
        self._gpu: Any = None
        if device != "cpu":
            from lstm_trt.machine import gpu

            self._nvml = gpu.Nvml()

    def __enter__(self) -> Self:
        self._threads: dict[int, int] = {}
        self._tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
        proc = self.root / "proc"
        self._stat = self._open(proc / "stat")
        self._schedule = self._open(proc / "thread-self/schedstat")
        self._tables = {}
        for name in ("interrupts", "softirqs"):
            table = self._open(proc / name)
            too_large = len(_content(table)) > LARGEST_TABLE_BYTES
            self._tables[name] = CLOSED if too_large else table
        cpu = self.root / "sys/devices/system/cpu"
        self._clocks = [
            self._open(cpu / f"cpu{core}/cpufreq/scaling_cur_freq") for core in self.cores
        ]
        self._throttling = [
            self._open(folder / "cpu.stat") for folder in linux.cgroup_folders(self.root)
        ]
        if self._nvml is not None:
            self._gpu = self._held.enter_context(self._nvml).device()
        return self

    def __exit__(self, *_: Any) -> None:
        self._held.close()

    def _open(self, path: Path) -> int:
        """A handle of the file until `__exit__`, or `CLOSED`."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return CLOSED
        self._held.callback(os.close, handle)
        return handle

    def read(self) -> dict[str, Any]:
        """All current readings, by name; None for those that the system lacks."""
        values: dict[str, Any] = dict.fromkeys((*COUNTERS, *OTHERS, BY_THREAD))
        self._read_stat(values)
        for name, table in self._tables.items():
            values[name] = _columns_sum(_content(table), self.cores)
        schedule = _content(self._schedule).split()
        if len(schedule) > 1:
            values["runnable_ns"] = int(schedule[1])
        self._read_throttling(values)
        clocks_khz = [int(text) for text in map(_content, self._clocks) if text.strip().isdigit()]
        values["cpu_khz"] = min(clocks_khz, default=None)
        if self._nvml is not None:
            values |= self._nvml.read(self._gpu)
        self._read_cpu_times(values)
        return values

    def gpu_state(self) -> dict[str, Any] | None:
        """The current state of the GPU (`Nvml.state`), read before and after the trials; None
        without a GPU."""
        return None if self._gpu is None else self._nvml.state(self._gpu)

    def _read_stat(self, values: dict) -> None:
        """Rows "cpu1 user nice system idle iowait irq softirq steal ..."."""
        idle = {}  # ticks by core
        steal = {}
        content = _content(self._stat)
        now_ns = time.monotonic_ns()
        own_ns = time.process_time_ns()
        for line in content.splitlines():
            name, _, row = line.partition(b" ")
            fields = row.split(None, 8)
            # Sandboxes such as gVisor print rows of zeros, which are not counts.
            if name.startswith(b"cpu") and len(fields) >= 8 and row.strip(b"0 "):
                idle[name] = int(fields[3]) + int(fields[4])
                steal[name] = int(fields[7])
        idle.pop(b"cpu", None)  # the sum of all
        pinned = [b"cpu%d" % core for core in self.cores]
        if not pinned or not idle.keys() >= set(pinned):
            return
        values["steal_ns"] = sum(steal[core] for core in pinned) * self._tick_ns
        # Not from the busy columns: they sample what runs at each tick, which errs if calls follow
        # the timer.
        for name, cores in zip(OTHERS, (pinned, idle), strict=True):
            idle_ns = sum(idle[core] for core in cores) * self._tick_ns
            values[name] = len(cores) * now_ns - idle_ns - own_ns

    def _read_cpu_times(self, values: dict) -> None:
        """Clocks of all threads, then of the process: the kernel counts a running thread up to when
        its clock is read.

        So what the process has beyond its threads is what ended threads had, to some microseconds.
        """
        before = self._threads
        self._threads = {}
        with suppress(OSError):  # there is no /proc
            for thread in map(int, os.listdir(self.root / "proc/self/task")):
                with suppress(OSError):  # it has ended
                    self._threads[thread] = time.clock_gettime_ns(cpu_clock(thread))
        if self._threads.pop(threading.get_native_id(), None) is None:
            return
        values["process_cpu_ns"] = time.process_time_ns()
        values["thread_cpu_ns"] = time.thread_time_ns()
        spent_ns = {}
        for thread, now_ns in self._threads.items():
            if now_ns > before.get(thread, 0):
                spent_ns[thread] = now_ns - before.get(thread, 0)
        values[BY_THREAD] = spent_ns

    def _read_throttling(self, values: dict) -> None:
        """Sum over this cgroup and its parents: each counts the effect of its own quota."""
        for file in self._throttling:
            stopped = linux.throttling(_content(file).decode())
            for name, value in zip(("throttled_ns", "throttled_periods"), stopped, strict=True):
                if value is not None:
                    values[name] = (values[name] or 0) + value
