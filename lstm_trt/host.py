"""The host as a real-time engineer reads it: what makes late answers late before any network runs.

`host_checks` reads settings and changes none. Each check says what was found, whether
that is good for a tail of latencies, and the one line that improves it. What a
container or a guest cannot see is "unknown", not "good". Cores, clocks and the kernel
are in `host_cpu.py`; memory, privileges and neighbours are here.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

from lstm_trt import host_cpu, system
from lstm_trt.host_cpu import Check
from lstm_trt.system import ROOT, read_int, read_text

__all__ = ["CHECKS", "VERDICTS", "Check", "host_checks"]

VERDICTS = ("good", "attention", "unknown")
CAP_IPC_LOCK, CAP_SYS_NICE = 14, 23  # linux/capability.h
INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel


def swap(root: Path) -> Check:
    name, sizes = "swap", {}
    for line in (read_text("/proc/meminfo", root) or "").splitlines():
        key, _, value = line.partition(":")
        if key in ("SwapTotal", "SwapFree"):
            sizes[key] = int(value.split()[0]) // 1024
    if len(sizes) < 2:
        return Check(name, "not visible", "unknown", "a page that was swapped out costs milliseconds")
    if sizes["SwapTotal"] == 0:
        return Check(name, "none", "good", "no page of the process can be swapped out")
    used = sizes["SwapTotal"] - sizes["SwapFree"]
    value = f"{used} of {sizes['SwapTotal']} MiB used, swappiness {read_int('/proc/sys/vm/swappiness', root)}"
    return Check(name, value, "attention", "a page that was swapped out costs milliseconds", "sudo swapoff -a")


def huge_pages(root: Path) -> Check:
    name, folder = "transparent huge pages", "/sys/kernel/mm/transparent_hugepage/enabled"
    mode = (read_text(folder, root) or "").partition("[")[2].partition("]")[0]
    if not mode:
        return Check(name, "not visible", "unknown", "the kernel may stop the process to merge pages")
    if mode != "always":
        return Check(name, mode, "good", "pages are merged only where a program asks for it")
    meaning = "the kernel may stop the process to find and merge pages"
    return Check(name, mode, "attention", meaning, f"echo madvise | sudo tee {folder}")


def virtual_machine(root: Path) -> Check:
    name, kind = "virtual machine", system.hypervisor(root)
    if kind == "none":
        return Check(name, "no", "good", "no hypervisor takes time from the cores")
    if kind is None:
        return Check(name, "not visible", "unknown", "a hypervisor may take time from the cores")
    steal, ticks = "", (read_text("/proc/stat", root) or "").partition("\n")[0].split()[1:9]
    if len(ticks) == 8 and sum(map(int, ticks)):
        steal = f", {100 * int(ticks[7]) / sum(map(int, ticks)):.2g} % stolen since boot"
    meaning = "the hypervisor can take the core at any time; recordings count it as steal"
    remedy = "record on the machine itself, or have each core of the guest pinned (virsh vcpupin DOMAIN VCPU CPU)"
    return Check(name, kind + steal, "attention", meaning, remedy)


def _capable(bit: int, root: Path) -> bool:
    for line in (read_text("/proc/self/status", root) or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> bit & 1)
    return False


def _raise_limit(item: str, value: str) -> str:
    return f'echo "$USER - {item} {value}" | sudo tee -a /etc/security/limits.d/99-realtime.conf  (then log in again)'


def realtime_priority(root: Path) -> Check:
    name, limit = "real-time priority", resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
    if _capable(CAP_SYS_NICE, root) or limit != 0:
        value = "allowed (capability)" if limit == 0 else f"rtprio {'unlimited' if limit < 0 else limit}"
        return Check(name, value, "good", "SCHED_FIFO may keep ordinary programs off the core (chrt -f 80 ...)")
    meaning = "SCHED_FIFO is refused, so ordinary programs can take the core"
    return Check(name, "rtprio 0", "attention", meaning, _raise_limit("rtprio", "90"))


def locked_memory(root: Path) -> Check:
    name, limit = "locked memory", resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if _capable(CAP_IPC_LOCK, root) or limit < 0:
        value = "unlimited" if limit < 0 else "allowed (capability)"
        return Check(name, value, "good", "buffers can be pinned: no page faults")
    meaning = "mlockall and large pinned buffers are refused, pages may be taken away"
    return Check(name, f"memlock {limit // 1024} KiB", "attention", meaning, _raise_limit("memlock", "unlimited"))


def irqbalance(root: Path) -> Check:
    name = "irqbalance"
    try:
        processes = [entry for entry in os.listdir(Path(root) / "proc") if entry.isdigit()]
        namespace = os.readlink(Path(root) / "proc/self/ns/pid")
    except OSError:
        return Check(name, "not visible", "unknown", "it would move device interrupts onto the timed core")
    if any(read_text(f"/proc/{process}/comm", root) == "irqbalance" for process in processes):
        meaning = "it may move device interrupts onto the timed core at any time"
        return Check(name, "running", "attention", meaning, "sudo systemctl disable --now irqbalance")
    if namespace != INITIAL_PID_NAMESPACE:
        return Check(name, "not visible", "unknown", "the host's processes cannot be seen from this container")
    return Check(name, "not running", "good", "interrupts stay on the cores that they were given")


def load(root: Path) -> Check:
    words, cores = (read_text("/proc/loadavg", root) or "").split(), len(system.online_cores(root))
    if not words:
        return Check("load", "not visible", "unknown", "other programs may be running")
    value = f"{words[0]} on {cores} cores"
    if float(words[0]) <= max(0.25 * cores, cores - 1.5):
        return Check("load", value, "good", "the timed core has room")
    meaning = "other programs run now and will be in the recording"
    return Check(
        "load", value, "attention", meaning, "ps -eo psr,pcpu,comm --sort=-pcpu | head  (and stop what is not needed)"
    )


CHECKS: tuple[Callable[[Path], Check], ...] = (
    host_cpu.governor,
    host_cpu.turbo,
    host_cpu.smt,
    host_cpu.isolated,
    host_cpu.nohz_full,
    host_cpu.rcu_nocbs,
    host_cpu.cgroup_quota,
    host_cpu.clock_source,
    host_cpu.timer,
    host_cpu.preemption,
    host_cpu.idle_states,
    swap,
    huge_pages,
    virtual_machine,
    realtime_priority,
    locked_memory,
    irqbalance,
    load,
)


def host_checks(root: Path = ROOT) -> list[Check]:
    """All checks, in the order of `CHECKS`; one that fails is "unknown" and says why."""
    found = []
    for check in CHECKS:
        try:
            found.append(check(Path(root)))
        except Exception as error:  # a file in a form that no kernel was seen to give
            found.append(Check(check.__name__.replace("_", " "), "not readable", "unknown", str(error)[:80]))
    return found
