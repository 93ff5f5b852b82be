"""The host as a real-time engineer reads it: what delays answers before any network runs.

`host_checks` reads settings and changes none. Each check says what was found, whether
that is good for a tail of latencies, and the one line that improves it. What a
container or a guest cannot see is "unknown", not "good". First come cores, clocks and
the kernel, which keep other work off the timed core, then memory, privileges and neighbours.
"""

from __future__ import annotations

import functools
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


#: What a check found: value, verdict, meaning, and a remedy where there is one; None for what is not visible.
Found = tuple[str, ...] | None

#: All checks by the order in which they stand here.
CHECKS: list[Callable[[Path], Check]] = []


def check(name: str, unseen: str = "") -> Callable[[Callable[[Path], Found]], Callable[[Path], Check]]:
    """Make a check of this name of a function; `unseen` is the meaning where it finds nothing.

    A check raises nothing: one that fails is "unknown" and says why.
    """

    def of(find: Callable[[Path], Found]) -> Callable[[Path], Check]:
        @functools.wraps(find)
        def run(root: Path) -> Check:
            try:
                found = find(Path(root))
            except Exception as error:  # a file in a form that no kernel was seen to give
                found = "not readable", "unknown", str(error)[:80]
            return Check(name, *(found or ("not visible", "unknown", unseen)))

        CHECKS.append(run)
        return run

    return of


def _for_last_core(argument: str, root: Path) -> str:
    """The kernel argument for the last core, to which recordings are pinned; one core must stay for the rest."""
    online = linux.online_cores(root)
    return f"{KERNEL_LINE}{argument}{online[-1]}" if len(online) > 1 else ""


@check("CPU governor", "the host, or no one, decides the CPU clock")
def governor(root: Path) -> Found:
    found = facts.governors(linux.allowed_cores(), root)
    if found is None:
        return None
    if found == "performance":
        return found, "good", "cores stay at their highest clock"
    remedy = f"echo performance | sudo tee {CPU}/cpu*/cpufreq/scaling_governor"
    return found, "attention", "the clock falls when idle, the first answers after a pause are late", remedy


@check("turbo / boost", "the clock may depend on heat and on the other cores")
def turbo(root: Path) -> Found:
    on = facts.turbo(root)
    if on is None:
        return None
    if not on:
        return "off", "good", "the clock does not depend on heat or on the other cores"
    remedy = f"echo 0 | sudo tee {CPU}/cpufreq/boost"
    if read_text(f"{CPU}/intel_pstate/no_turbo", root) is not None:
        remedy = f"echo 1 | sudo tee {CPU}/intel_pstate/no_turbo"
    meaning = "faster in the median, but the clock depends on heat and on the other cores"
    return "on", "attention", meaning, remedy


@check("SMT (hyper-threads)", "another thread may share the timed core")
def smt(root: Path) -> Found:
    on = facts.simultaneous_threads(root)
    if on is None:
        return None
    if on:
        meaning = "a neighbour on the same physical core takes its caches and arithmetic"
        return "on", "attention", meaning, f"echo off | sudo tee {CPU}/smt/control"
    if linux.hypervisor(root) not in (None, "none"):
        return "none in this guest", "unknown", "the host may still run two guests' cores on one physical core"
    return "off", "good", "no other thread shares the timed core"


@check("isolated cores", "other programs may run on the timed core")
def isolated(root: Path) -> Found:
    cores = linux.isolated_cores(root)
    if cores is None:
        return None
    if not cores:
        remedy = _for_last_core("isolcpus=domain,managed_irq,", root)
        return "none", "attention", "the scheduler puts other programs on the timed core", remedy
    text = linux.list_text(cores)
    if set(cores) & set(linux.allowed_cores()):
        return text, "good", "other programs stay away from these cores"
    meaning = "this process may not use them, so recordings run on shared cores"
    return text, "attention", meaning, f"taskset -c {text} lstm-trt record ..."


@check("tickless cores")
def nohz_full(root: Path) -> Found:
    text = read_text(f"{CPU}/nohz_full", root)
    if linux.cpu_list(text):
        return text, "good", "no periodic timer interrupt on these cores while one program runs"
    meaning = "a timer interrupt reaches the timed core 100 to 1000 times a second"
    return "none", "attention", meaning, _for_last_core("nohz_full=", root)


@check("RCU callbacks", "the kernel's deferred frees may run on the timed core")
def rcu_nocbs(root: Path) -> Found:
    command = read_text("/proc/cmdline", root)
    cores = linux.kernel_argument("rcu_nocbs", root)
    if cores is None and linux.cpu_list(read_text(f"{CPU}/nohz_full", root)):
        cores = "tickless cores"  # the kernel moves the callbacks of nohz_full cores by itself
    if cores is not None:
        return (
            f"moved off {cores}" if cores else "moved off all cores",
            "good",
            "the kernel's deferred frees run on other cores",
        )
    if command is None:
        return None
    meaning = "the kernel's deferred frees run on the timed core"
    return "on every core", "attention", meaning, _for_last_core("rcu_nocbs=", root)


@check("CPU quota (cgroup)", "a quota would stop the process for up to 100 ms at a time")
def cgroup_quota(root: Path) -> Found:
    quota = linux.cpu_quota_cores(root)
    folders = linux.cgroup_folders(root)
    if not folders:
        return None
    periods = sum(linux.throttling(read_text("cpu.stat", folder) or "")[1] or 0 for folder in folders)
    if quota is None:
        return "none", "good", "the process is never stopped for having used its share"
    remedy = "start the container without --cpus and --cpu-quota; for a service: systemctl set-property UNIT CPUQuota="
    meaning = "when the share is used up the process stops until the period ends, up to 100 ms"
    return f"{quota:g} cores, {periods} stops so far", "attention", meaning, remedy


@check("clock source", "a slow clock would add microseconds to every trial")
def clock_source(root: Path) -> Found:
    folder = "/sys/devices/system/clocksource/clocksource0"
    found = read_text(f"{folder}/current_clocksource", root)
    if found is None:
        return None
    if found in ("tsc", "arch_sys_counter"):
        return found, "good", "read in user space in tens of nanoseconds"
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
    return found, "attention", meaning, remedy


@check("timer")
def timer(root: Path) -> Found:
    cost = facts.clock_cost(5000)
    value = f"{cost['overhead_ns']} ns a reading, step {cost['step_ns']} ns"
    if cost["overhead_ns"] <= 200 and cost["resolution_ns"] <= 100:
        return value, "good", "small against any inference"
    return value, "attention", "the clock shows in every trial; see the clock source"


@check("kernel preemption", "how long the kernel may delay a wake-up is not known")
def preemption(root: Path) -> Found:
    model = linux.preemption(root)
    if model is None:
        return None
    if model == "PREEMPT_RT":
        return model, "good", "wake-ups are delayed by tens of microseconds at most"
    remedy = "run a PREEMPT_RT kernel (Debian: sudo apt install linux-image-rt-amd64)"
    return model, "attention", "no bound on how long the kernel delays a wake-up", remedy


@check("idle states", "how long an idle core takes to wake is not known")
def idle_states(root: Path) -> Found:
    held = None
    with suppress(OSError):  # a program can hold all cores awake through this device; reading it sets nothing
        held = int.from_bytes((Path(root) / "dev/cpu_dma_latency").read_bytes()[:4], "little")
    if held is not None and held <= SHALLOW_IDLE_US:
        return f"held at {held} us by a program", "good", "cores wake at once"
    driver, deepest = read_text(f"{CPU}/cpuidle/current_driver", root), None
    for state in sorted((Path(root) / f"{CPU}/cpu{linux.allowed_cores()[-1]}/cpuidle".lstrip("/")).glob("state*")):
        latency, off = read_int("latency", state), read_int("disable", state)
        if latency is not None and not off and (deepest is None or latency >= deepest[0]):
            deepest = (latency, read_text("name", state) or state.name)
    if driver == "haltpoll":
        meaning = "idle cores halt out of the guest; the host decides how deep they sleep"
        return "haltpoll (guest)", "unknown", meaning, f"{KERNEL_LINE}idle=poll"
    if deepest is None:
        return None
    value = f"{deepest[1]}, {deepest[0]} us to wake"
    if deepest[0] <= SHALLOW_IDLE_US:
        return value, "good", "cores wake at once"
    meaning = "answers after a pause wait for the core to wake (no effect while it spins)"
    return value, "attention", meaning, f"sudo cpupower idle-set -D {SHALLOW_IDLE_US + 1}"


@check("swap", "a page that was swapped out costs milliseconds")
def swap(root: Path) -> Found:
    try:
        memory = linux.psutil_at(root).swap_memory()
    except OSError:
        return None
    if memory.total == 0:
        return "none", "good", "no page of the process can be swapped out"
    used, total = memory.used // 2**20, memory.total // 2**20
    value = f"{used} of {total} MiB used, swappiness {read_int('/proc/sys/vm/swappiness', root)}"
    return value, "attention", "a page that was swapped out costs milliseconds", "sudo swapoff -a"


@check("transparent huge pages", "the kernel may stop the process to merge pages")
def huge_pages(root: Path) -> Found:
    folder = "/sys/kernel/mm/transparent_hugepage/enabled"
    mode = (read_text(folder, root) or "").partition("[")[2].partition("]")[0]
    if not mode:
        return None
    if mode != "always":
        return mode, "good", "pages are merged only where a program asks for it"
    meaning = "the kernel may stop the process to find and merge pages"
    return mode, "attention", meaning, f"echo madvise | sudo tee {folder}"


@check("virtual machine", "a hypervisor may take time from the cores")
def virtual_machine(root: Path) -> Found:
    kind = linux.hypervisor(root)
    if kind == "none":
        return "no", "good", "no hypervisor takes time from the cores"
    if kind is None:
        return None
    steal = ""
    with suppress(OSError):
        times = linux.psutil_at(root).cpu_times()
        if total_s := sum(times) - times.guest - times.guest_nice:  # guests count as user time too
            steal = f", {100 * times.steal / total_s:.2g} % stolen since boot"
    meaning = "the hypervisor can take the core at any time; recordings count it as steal"
    remedy = "record on the machine itself, or have each core of the guest pinned (virsh vcpupin DOMAIN VCPU CPU)"
    return kind + steal, "attention", meaning, remedy


def _capable(bit: int, root: Path) -> bool:
    for line in (read_text("/proc/self/status", root) or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> bit & 1)
    return False


def _raise_limit(item: str, value: str) -> str:
    return f'echo "$USER - {item} {value}" | sudo tee -a /etc/security/limits.d/99-realtime.conf  (then log in again)'


@check("real-time priority")
def realtime_priority(root: Path) -> Found:
    limit = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
    if _capable(CAP_SYS_NICE, root) or limit != 0:
        value = "allowed (capability)" if limit == 0 else f"rtprio {'unlimited' if limit < 0 else limit}"
        return value, "good", "SCHED_FIFO may keep ordinary programs off the core (chrt -f 80 ...)"
    meaning = "SCHED_FIFO is refused, so ordinary programs can take the core"
    return "rtprio 0", "attention", meaning, _raise_limit("rtprio", "90")


@check("locked memory")
def locked_memory(root: Path) -> Found:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if _capable(CAP_IPC_LOCK, root) or limit < 0:
        value = "unlimited" if limit < 0 else "allowed (capability)"
        return value, "good", "buffers can be pinned: no page faults"
    meaning = "mlockall and large pinned buffers are refused, pages may be taken away"
    return f"memlock {limit // 1024} KiB", "attention", meaning, _raise_limit("memlock", "unlimited")


@check("irqbalance", "it would move device interrupts onto the timed core")
def irqbalance(root: Path) -> Found:
    try:
        namespace = os.readlink(Path(root) / "proc/self/ns/pid")
    except OSError:
        return None
    if any(read_text("comm", process) == "irqbalance" for process in (Path(root) / "proc").glob("[0-9]*")):
        meaning = "it may move device interrupts onto the timed core at any time"
        return "running", "attention", meaning, "sudo systemctl disable --now irqbalance"
    if namespace != INITIAL_PID_NAMESPACE:
        return "not visible", "unknown", "the host's processes cannot be seen from this container"
    return "not running", "good", "interrupts stay on the cores that they were given"


@check("load", "other programs may be running")
def load(root: Path) -> Found:
    averages, cores = (read_text("/proc/loadavg", root) or "").split(), len(linux.online_cores(root))
    if not averages:
        return None
    value = f"{averages[0]} on {cores} cores"
    if float(averages[0]) <= max(0.25 * cores, cores - 1.5):
        return value, "good", "the timed core has room"
    meaning = "other programs run now and will be in the recording"
    return value, "attention", meaning, "ps -eo psr,pcpu,comm --sort=-pcpu | head  (and stop what is not needed)"


def host_checks(root: Path = ROOT) -> list[Check]:
    """All checks, in the order of `CHECKS`."""
    return [run(root) for run in CHECKS]
