"""The host as a real-time engineer reads it: what delays answers before any network runs.

`host_checks` reads settings and changes none. Each check says what was found, whether
that is good for a tail of latencies, and the one line that improves it. What a
container or a guest cannot see is "unknown", not "good". First come cores, clocks and
the kernel, which keep other work off the timed core, then memory, privileges and neighbours.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lstm_trt.machine import facts, linux
from lstm_trt.machine.linux import ROOT, read_int, read_text

VERDICTS = ("good", "attention", "unknown")

CPU = "/sys/devices/system/cpu"

CAP_IPC_LOCK, CAP_SYS_NICE = 14, 23  # linux/capability.h

INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel

KERNEL_LINE = "kernel command line: "

#: Exit latency in us up to which an idle state does not show in a tail of milliseconds.
SHALLOW_IDLE_US = 10


@dataclass(frozen=True)
class Check:
    """One property of the host; `remedy` is one command or kernel argument, empty where nothing is to be done."""

    name: str
    value: str
    verdict: str
    meaning: str
    remedy: str = ""


def _for_last_core(argument: str, root: Path) -> str:
    """The kernel argument for the last core, to which recordings are pinned; one core must stay for the rest."""
    online = linux.online_cores(root)
    return f"{KERNEL_LINE}{argument}{online[-1]}" if len(online) > 1 else ""


def governor(root: Path) -> Check:
    name, found = "CPU governor", facts.governors(linux.allowed_cores(), root)
    if found is None:
        return Check(name, "not visible", "unknown", "the host, or no one, decides the CPU clock")
    if found == "performance":
        return Check(name, found, "good", "cores stay at their highest clock")
    remedy = f"echo performance | sudo tee {CPU}/cpu*/cpufreq/scaling_governor"
    return Check(
        name, found, "attention", "the clock falls when idle, the first answers after a pause are late", remedy
    )


def turbo(root: Path) -> Check:
    name, on = "turbo / boost", facts.turbo(root)
    if on is None:
        return Check(name, "not visible", "unknown", "the clock may depend on heat and on the other cores")
    if not on:
        return Check(name, "off", "good", "the clock does not depend on heat or on the other cores")
    remedy = f"echo 0 | sudo tee {CPU}/cpufreq/boost"
    if read_text(f"{CPU}/intel_pstate/no_turbo", root) is not None:
        remedy = f"echo 1 | sudo tee {CPU}/intel_pstate/no_turbo"
    meaning = "faster in the median, but the clock depends on heat and on the other cores"
    return Check(name, "on", "attention", meaning, remedy)


def smt(root: Path) -> Check:
    name, on = "SMT (hyper-threads)", facts.simultaneous_threads(root)
    if on is None:
        return Check(name, "not visible", "unknown", "another thread may share the timed core")
    if on:
        meaning = "a neighbour on the same physical core takes its caches and arithmetic"
        return Check(name, "on", "attention", meaning, f"echo off | sudo tee {CPU}/smt/control")
    if linux.hypervisor(root) not in (None, "none"):
        return Check(
            name, "none in this guest", "unknown", "the host may still run two guests' cores on one physical core"
        )
    return Check(name, "off", "good", "no other thread shares the timed core")


def isolated(root: Path) -> Check:
    name, cores = "isolated cores", linux.isolated_cores(root)
    if cores is None:
        return Check(name, "not visible", "unknown", "other programs may run on the timed core")
    if not cores:
        remedy = _for_last_core("isolcpus=domain,managed_irq,", root)
        return Check(name, "none", "attention", "the scheduler puts other programs on the timed core", remedy)
    text = linux.list_text(cores)
    if set(cores) & set(linux.allowed_cores()):
        return Check(name, text, "good", "other programs stay away from these cores")
    meaning = "this process may not use them, so recordings run on shared cores"
    return Check(name, text, "attention", meaning, f"taskset -c {text} lstm-trt record ...")


def nohz_full(root: Path) -> Check:
    name, text = "tickless cores", read_text(f"{CPU}/nohz_full", root)
    if linux.cpu_list(text):
        return Check(name, text, "good", "no periodic timer interrupt on these cores while one program runs")
    meaning = "a timer interrupt reaches the timed core 100 to 1000 times a second"
    return Check(name, "none", "attention", meaning, _for_last_core("nohz_full=", root))


def rcu_nocbs(root: Path) -> Check:
    name, command = "RCU callbacks", read_text("/proc/cmdline", root)
    cores = linux.kernel_argument("rcu_nocbs", root)
    if cores is None and linux.cpu_list(read_text(f"{CPU}/nohz_full", root)):
        cores = "tickless cores"  # the kernel moves the callbacks of nohz_full cores by itself
    if cores is not None:
        return Check(
            name,
            f"moved off {cores}" if cores else "moved off all cores",
            "good",
            "the kernel's deferred frees run on other cores",
        )
    if command is None:
        return Check(name, "not visible", "unknown", "the kernel's deferred frees may run on the timed core")
    meaning = "the kernel's deferred frees run on the timed core"
    return Check(name, "on every core", "attention", meaning, _for_last_core("rcu_nocbs=", root))


def cgroup_quota(root: Path) -> Check:
    name, quota = "CPU quota (cgroup)", linux.cpu_quota_cores(root)
    folders = linux.cgroup_folders(root)
    if not folders:
        return Check(name, "not visible", "unknown", "a quota would stop the process for up to 100 ms at a time")
    periods = sum(linux.throttling(read_text("cpu.stat", folder) or "")[1] or 0 for folder in folders)
    if quota is None:
        return Check(name, "none", "good", "the process is never stopped for having used its share")
    remedy = "start the container without --cpus and --cpu-quota; for a service: systemctl set-property UNIT CPUQuota="
    meaning = "when the share is used up the process stops until the period ends, up to 100 ms"
    return Check(name, f"{quota:g} cores, {periods} stops so far", "attention", meaning, remedy)


def clock_source(root: Path) -> Check:
    name, folder = "clock source", "/sys/devices/system/clocksource/clocksource0"
    found = read_text(f"{folder}/current_clocksource", root)
    if found is None:
        return Check(name, "not visible", "unknown", "a slow clock would add microseconds to every trial")
    if found in ("tsc", "arch_sys_counter"):
        return Check(name, found, "good", "read in user space in tens of nanoseconds")
    if "tsc" in (read_text(f"{folder}/available_clocksource", root) or "").split():
        remedy = f"echo tsc | sudo tee {folder}/current_clocksource"
    elif linux.hypervisor(root) not in (None, "none"):
        remedy = "let the host give the guest an invariant TSC (QEMU: -cpu host,migratable=no,+invtsc)"
    else:
        remedy = f"{KERNEL_LINE}clocksource=tsc tsc=reliable"
    slow = found in ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "xen")
    meaning = (
        "each reading is a system call or slower" if slow else "corrected by the hypervisor, may step; tsc is steadier"
    )
    return Check(name, found, "attention", meaning, remedy)


def timer(root: Path) -> Check:
    cost = facts.clock_cost(5000)
    value = f"{cost['overhead_ns']} ns a reading, step {cost['step_ns']} ns"
    if cost["overhead_ns"] <= 200 and cost["resolution_ns"] <= 100:
        return Check("timer", value, "good", "small against any inference")
    return Check("timer", value, "attention", "the clock shows in every trial; see the clock source")


def preemption(root: Path) -> Check:
    name, model = "kernel preemption", linux.preemption(root)
    if model is None:
        return Check(name, "not visible", "unknown", "how long the kernel may delay a wake-up is not known")
    if model == "PREEMPT_RT":
        return Check(name, model, "good", "wake-ups are delayed by tens of microseconds at most")
    remedy = "run a PREEMPT_RT kernel (Debian: sudo apt install linux-image-rt-amd64)"
    return Check(name, model, "attention", "no bound on how long the kernel delays a wake-up", remedy)


def idle_states(root: Path) -> Check:
    name, held = "idle states", None
    with suppress(OSError):  # a program can hold all cores awake through this device; reading it sets nothing
        held = int.from_bytes((Path(root) / "dev/cpu_dma_latency").read_bytes()[:4], "little")
    if held is not None and held <= SHALLOW_IDLE_US:
        return Check(name, f"held at {held} us by a program", "good", "cores wake at once")
    driver, deepest = read_text(f"{CPU}/cpuidle/current_driver", root), None
    for state in sorted((Path(root) / f"{CPU}/cpu{linux.allowed_cores()[-1]}/cpuidle".lstrip("/")).glob("state*")):
        latency, off = read_int("latency", state), read_int("disable", state)
        if latency is not None and not off and (deepest is None or latency >= deepest[0]):
            deepest = (latency, read_text("name", state) or state.name)
    if driver == "haltpoll":
        meaning = "idle cores halt out of the guest; the host decides how deep they sleep"
        return Check(name, "haltpoll (guest)", "unknown", meaning, f"{KERNEL_LINE}idle=poll")
    if deepest is None:
        return Check(name, "not visible", "unknown", "how long an idle core takes to wake is not known")
    value = f"{deepest[1]}, {deepest[0]} us to wake"
    if deepest[0] <= SHALLOW_IDLE_US:
        return Check(name, value, "good", "cores wake at once")
    meaning = "answers after a pause wait for the core to wake (no effect while it spins)"
    return Check(name, value, "attention", meaning, f"sudo cpupower idle-set -D {SHALLOW_IDLE_US + 1}")


def swap(root: Path) -> Check:
    name = "swap"
    try:
        memory = linux.psutil_at(root).swap_memory()
    except OSError:
        return Check(name, "not visible", "unknown", "a page that was swapped out costs milliseconds")
    if memory.total == 0:
        return Check(name, "none", "good", "no page of the process can be swapped out")
    used, total = memory.used // 2**20, memory.total // 2**20
    value = f"{used} of {total} MiB used, swappiness {read_int('/proc/sys/vm/swappiness', root)}"
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
    name, kind = "virtual machine", linux.hypervisor(root)
    if kind == "none":
        return Check(name, "no", "good", "no hypervisor takes time from the cores")
    if kind is None:
        return Check(name, "not visible", "unknown", "a hypervisor may take time from the cores")
    steal = ""
    with suppress(OSError):
        times = linux.psutil_at(root).cpu_times()
        if total_s := sum(times) - times.guest - times.guest_nice:  # guests count as user time too
            steal = f", {100 * times.steal / total_s:.2g} % stolen since boot"
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
    averages, cores = (read_text("/proc/loadavg", root) or "").split(), len(linux.online_cores(root))
    if not averages:
        return Check("load", "not visible", "unknown", "other programs may be running")
    value = f"{averages[0]} on {cores} cores"
    if float(averages[0]) <= max(0.25 * cores, cores - 1.5):
        return Check("load", value, "good", "the timed core has room")
    meaning = "other programs run now and will be in the recording"
    return Check(
        "load", value, "attention", meaning, "ps -eo psr,pcpu,comm --sort=-pcpu | head  (and stop what is not needed)"
    )


CHECKS: tuple[Callable[[Path], Check], ...] = (
    governor,
    turbo,
    smt,
    isolated,
    nohz_full,
    rcu_nocbs,
    cgroup_quota,
    clock_source,
    timer,
    preemption,
    idle_states,
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
