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
  interrupts_total        of the whole machine (/proc/stat)
  context_switches_total  of the whole machine (/proc/stat)
  throttled_ns            time for which a CPU quota stopped this cgroup or one of its
  throttled_periods       parents, and the number of such periods (cpu.stat, v1 and v2)
Time of others, from /proc/stat; one block's can be negative, since idle time is counted in ticks:
  others_ns               time in which the pinned cores were neither idle nor used by this process, but by other
                          programs, the kernel or the hypervisor
  others_total_ns         the same for all cores
Gauges:
  cpu_khz                 clock of the slowest pinned core; with several pinned cores
                          also cpu_khz_<core> for each core
  gpu_*                   with a GPU: clocks in MHz, temperature, power in mW, and the
                          bit mask that `gpu.throttle_reasons` names
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lstm_trt.machine import linux
from lstm_trt.machine.linux import ROOT

#: Readings that never decrease; all others are gauges.
COUNTERS = (
    "steal_ns",
    "interrupts",
    "softirqs",
    "interrupts_total",
    "context_switches_total",
    "throttled_ns",
    "throttled_periods",
)

#: Readings whose differences may be negative.
OTHERS = ("others_ns", "others_total_ns")

#: A recording was not alone if others used more than this share of the pinned cores' time, or this share of one of the
#: remaining cores, and in either case more than two ticks.
ALONE_SHARE, ALONE_SHARE_ELSEWHERE, ALONE_NS = 0.02, 0.5, 20_000_000


#: Rows of /proc/interrupts with one number for the whole machine instead of one per core.
WHOLE_MACHINE = (b"ERR:", b"MIS:", b"Err:")

#: A larger table is too slow to be read between blocks.
LARGEST_TABLE_BYTES = 16 * 1024


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int | float | None]:
    """The change between two readings: counters are subtracted, gauges are those of `after`.

    A counter that one of the readings lacks, or that decreased, is None.
    """
    changed = dict(after)
    for name in COUNTERS:
        if name in changed:
            first, last = before.get(name), after[name]
            changed[name] = None if first is None or last is None or last < first else last - first
    for name in OTHERS:
        if name in changed:
            first, last = before.get(name), after[name]
            changed[name] = None if first is None or last is None else last - first
    return changed


def others(blocks: Sequence[Mapping], wall_ns: int, cores: int) -> dict[str, int | bool] | None:
    """CPU time of others on the pinned `cores` and on all cores, and whether the recording was alone.

    `blocks`: the differences of readings over `wall_ns` in total. None if the system does not count idle time.
    """
    if any(block.get(name) is None for block in blocks for name in OTHERS):
        return None
    pinned, everywhere = (max(0, sum(block[name] for block in blocks)) for name in OTHERS)
    disturbed = pinned > max(ALONE_NS, ALONE_SHARE * cores * wall_ns)
    disturbed |= everywhere - pinned > max(ALONE_NS, ALONE_SHARE_ELSEWHERE * wall_ns)
    return {"pinned_cores_ns": pinned, "all_cores_ns": everywhere, "alone": not disturbed}


class _File:
    """A file that stays open; `read` returns its current content."""

    def __init__(self, path: Path) -> None:
        try:
            self.handle: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.handle = None

    def read(self) -> bytes:
        """The whole file; empty if it cannot be read, or was removed with its cgroup."""
        if self.handle is None:
            return b""
        try:
            content = os.pread(self.handle, 1 << 16, 0)
            while content and (more := os.pread(self.handle, 1 << 16, len(content))):
                content += more
            return content
        except OSError:
            return b""

    def close(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


def _columns_sum(table: bytes, cores: Sequence[int]) -> int | None:
    """Sum over the columns of `cores` in a table whose first line is "CPU0 CPU1 ..."."""
    head, _, body = table.partition(b"\n")
    names = head.split()
    try:
        places = [1 + names.index(b"CPU%d" % core) for core in cores]
    except ValueError:  # a pinned core has no column
        return None
    total, last = 0, max(places)
    for line in body.splitlines():
        fields = line.split(None, last + 1)
        if len(fields) > last and fields[0] not in WHOLE_MACHINE:
            for place in places:
                if fields[place].isdigit():
                    total += int(fields[place])
    return total


class Watcher:
    """Readings of the pinned `cores`, and with `device="cuda"` of the GPU; used with `with`.

    `names` maps each reading to "counter" or "gauge".
    """

    def __init__(self, cores: Sequence[int], device: str = "cpu", *, root: Path = ROOT) -> None:
        self.cores, self.device, self.root = tuple(cores), device, Path(root)
        self.names = dict.fromkeys(COUNTERS, "counter") | dict.fromkeys(OTHERS, "balance") | {"cpu_khz": "gauge"}
        if len(self.cores) > 1:
            self.names |= {f"cpu_khz_{core}": "gauge" for core in self.cores}
        if device != "cpu":
            from lstm_trt.machine.gpu import READINGS

            self.names |= dict.fromkeys(READINGS, "gauge")
        self._files: list[_File] = []

    def __enter__(self) -> Watcher:
        self._tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
        self._stat, self._interrupts = self._open("/proc/stat"), self._open("/proc/interrupts")
        self._softirqs, self._cpuinfo = self._open("/proc/softirqs"), self._open("/proc/cpuinfo")
        cpu = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
        self._clocks = {core: self._open(cpu.format(core)) for core in self.cores}
        self._throttling = [self._open(str(folder / "cpu.stat"), "/") for folder in linux.cgroup_folders(self.root)]
        for table in (self._interrupts, self._softirqs, self._cpuinfo):
            if len(table.read()) > LARGEST_TABLE_BYTES:
                table.close()
        # Without the aperfmperf flag "cpu MHz" is the constant nominal clock, which is not read.
        if "aperfmperf" not in linux.cpuinfo_flags(self.root):
            self._cpuinfo.close()
        self._nvml: Any = None
        self._gpu: Any = None
        if self.device != "cpu":
            from lstm_trt.machine.gpu import Nvml

            self._nvml = Nvml().__enter__()
            self._gpu = self._nvml.device()
        return self

    def __exit__(self, *_: Any) -> None:
        for file in self._files:
            file.close()
        self._files.clear()
        if self._nvml is not None:
            self._nvml.__exit__()

    def _open(self, path: str, root: Path | str | None = None) -> _File:
        file = _File(Path(root or self.root) / path.lstrip("/"))
        self._files.append(file)
        return file

    def read(self) -> dict[str, int | float | None]:
        """All current readings, by `names`."""
        values: dict[str, int | float | None] = dict.fromkeys(self.names)
        self._read_stat(values)
        table = self._interrupts.read()
        values["interrupts"] = _columns_sum(table, self.cores) if table else None
        table = self._softirqs.read()
        values["softirqs"] = _columns_sum(table, self.cores) if table else None
        self._read_throttling(values)
        self._read_clocks(values)
        if self._nvml is not None:
            values |= self._nvml.read(self._gpu)
        return values

    def gpu_state(self) -> dict[str, Any] | None:
        """The current state of the GPU (`Nvml.state`), read before and after the trials; None without a GPU."""
        return None if self._gpu is None else self._nvml.state(self._gpu)

    def _read_stat(self, values: dict) -> None:
        """Rows "cpu1 user nice system idle iowait irq softirq steal ...", "intr total ...", "ctxt total"."""
        wanted = {b"cpu%d" % core for core in self.cores}
        steal, idle, idle_total, rows, rows_total = 0, 0, 0, 0, 0
        content, now_ns, own_ns = self._stat.read(), time.monotonic_ns(), time.process_time_ns()
        for line in content.splitlines():
            if line.startswith(b"cpu"):
                fields = line.split()
                # Sandboxes such as gVisor print rows of zeros, which are not counts.
                if fields[0] == b"cpu" or len(fields) <= 8 or all(field == b"0" for field in fields[1:]):
                    continue
                idle_here = int(fields[4]) + int(fields[5])
                idle_total, rows_total = idle_total + idle_here, rows_total + 1
                if fields[0] in wanted:
                    steal, idle, rows = steal + int(fields[8]), idle + idle_here, rows + 1
            elif line.startswith(b"intr "):
                values["interrupts_total"] = int(line.split(None, 2)[1]) or None
            elif line.startswith(b"ctxt "):
                values["context_switches_total"] = int(line.split(None, 2)[1]) or None
        if wanted and rows == len(wanted):
            values["steal_ns"] = steal * self._tick_ns
            # Not from the busy columns: they sample what runs at each tick, which errs if calls follow the timer.
            values["others_ns"] = rows * now_ns - idle * self._tick_ns - own_ns
            values["others_total_ns"] = rows_total * now_ns - idle_total * self._tick_ns - own_ns

    def _read_throttling(self, values: dict) -> None:
        """Sum over this cgroup and its parents: each counts the effect of its own quota."""
        for file in self._throttling:
            stopped = linux.throttling(file.read().decode())
            for name, value in zip(("throttled_ns", "throttled_periods"), stopped, strict=True):
                if value is not None:
                    values[name] = (values[name] or 0) + value

    def _read_clocks(self, values: dict) -> None:
        clocks: dict[int, int] = {}
        for core, file in self._clocks.items():
            text = file.read().strip()
            if text.isdigit():
                clocks[core] = int(text)
        if not clocks:
            core = -1
            for line in self._cpuinfo.read().splitlines():
                key, _, value = line.partition(b":")
                if key.startswith(b"processor"):
                    core = int(value)
                elif key.startswith(b"cpu MHz") and core in self.cores:
                    clocks[core] = round(1000 * float(value))
        values["cpu_khz"] = min(clocks.values(), default=None)
        if len(self.cores) > 1:
            values |= {f"cpu_khz_{core}": clocks.get(core) for core in self.cores}
