"""Host settings that affect tail latency.

`host_checks` reads settings and changes none. Each check states the value found, whether it is good
for tail latency, and one command or kernel argument that improves it. Settings that a container or
guest cannot see are "unknown", not "good". Cores, clocks and kernel come first, then memory,
privileges and other load.
"""

import functools
import os
import re
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lstm_trt.config.format import count
from lstm_trt.machine import facts, gpu, linux, roofline
from lstm_trt.machine.linux import ROOT, read_int, read_text

#: In the order in which `doctor` lists them.
VERDICTS = ("attention", "unknown", "good")

CPU = "/sys/devices/system/cpu"

CAP_IPC_LOCK, CAP_SYS_NICE = 14, 23  # linux/capability.h

INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel

KERNEL_LINE = "kernel command line: "

#: Exit latency in us up to which an idle state does not matter for tails of milliseconds.
SHALLOW_IDLE_US = 10


@dataclass(frozen=True)
class Check:
    """One property of the host; `remedy` is one command or kernel argument, or empty if there is
    nothing to do."""

    name: str
    value: str
    verdict: str
    meaning: str
    remedy: str = ""


#: Result of a check: value, verdict, meaning, and possibly a remedy; None, or no value, if the
#: setting is not visible.
Found = tuple[str | None, *tuple[str, ...]] | None

#: All checks, in the order of their definition; those of the GPU are made only if CUDA has a
#: device.
CHECKS: list[Callable[[Path], Check]] = []

GPU_CHECKS: list[Callable[[Path], Check]] = []


def check(
    name: str, unseen: str = "", checks: list[Callable[[Path], Check]] | None = None
) -> Callable[[Callable[[Path], Found]], Callable[[Path], Check]]:
    """Decorator that adds a function to `checks` (default: `CHECKS`).

    `unseen` is the meaning if the function finds no value.

    A check never raises: if its function fails, it is "unknown" and states the error.
    """

    def register(find: Callable[[Path], Found]) -> Callable[[Path], Check]:
        @functools.wraps(find)
        def run(root: Path) -> Check:
            try:
                value, *texts = find(root) or (None,)
            except Exception as error:  # a file in an unexpected format
                value, texts = "not readable", ["unknown", str(error)[:80]]
            return (
                Check(name, value, *texts)
                if value
                else Check(name, "not visible", "unknown", unseen)
            )

        (CHECKS if checks is None else checks).append(run)
        return run

    return register


def _switch(on: bool | None) -> str | None:
    """A setting as text."""
    return None if on is None else "on" if on else "off"


def _commands(root: Path) -> set[str]:
    """The names of all processes that are visible from here."""
    return {read_text("comm", process) or "" for process in (root / "proc").glob("[0-9]*")}


def _for_last_core(argument: str, root: Path) -> str:
    """The kernel argument for the last core, to which recordings are pinned; empty on a single
    core."""
    online = linux.online_cores(root)
    return f"{KERNEL_LINE}{argument}{online[-1]}" if len(online) > 1 else ""


@check("CPU governor", "the CPU clock is not controlled from here")
def governor(root: Path) -> Found:
    found = facts.governors(linux.allowed_cores(), root)
    if found == "performance":
        return found, "good", "cores stay at their highest clock"
    meaning = "the clock drops when idle, so that the first calls after a pause are slow"
    return (
        found,
        "attention",
        meaning,
        f"echo performance | sudo tee {CPU}/cpu*/cpufreq/scaling_governor",
    )


@check("turbo / boost", "the clock may depend on temperature and on the other cores")
def turbo(root: Path) -> Found:
    found = _switch(facts.turbo(root))
    if found == "off":
        return found, "good", "the clock does not depend on temperature or on the other cores"
    intel = read_text(f"{CPU}/intel_pstate/no_turbo", root) is not None
    remedy = (
        f"echo 1 | sudo tee {CPU}/intel_pstate/no_turbo"
        if intel
        else f"echo 0 | sudo tee {CPU}/cpufreq/boost"
    )
    meaning = "faster in the median, but the clock depends on temperature and on the other cores"
    return found, "attention", meaning, remedy


@check("SMT (hyper-threads)", "another thread may share the timed core")
def smt(root: Path) -> Found:
    found = _switch(facts.simultaneous_threads(root))
    if found == "on":
        meaning = "a thread on the same physical core competes for its caches and arithmetic units"
        return found, "attention", meaning, f"echo off | sudo tee {CPU}/smt/control"
    if found and linux.hypervisor(root) not in (None, "none"):
        return (
            "none in this guest",
            "unknown",
            "the host may still run the cores of two guests on one physical core",
        )
    return found, "good", "no other thread shares the timed core"


@check("isolated cores", "other programs may run on the timed core")
def isolated(root: Path) -> Found:
    cores = linux.isolated_cores(root)
    if cores == ():
        remedy = _for_last_core("isolcpus=domain,managed_irq,", root)
        return "none", "attention", "the scheduler may run other programs on the timed core", remedy
    text = linux.list_text(cores)
    if cores and set(cores) & set(linux.allowed_cores()):
        return text, "good", "the scheduler keeps other programs off these cores"
    meaning = "this process may not use them, so recordings run on shared cores"
    return text, "attention", meaning, f"taskset -c {text} lstm-trt record ..."


@check("tickless cores")
def nohz_full(root: Path) -> Found:
    text = read_text(f"{CPU}/nohz_full", root)
    if text and linux.cpu_list(text):
        return text, "good", "no periodic timer interrupt on these cores while one program runs"
    meaning = "a timer interrupt reaches the timed core 100 to 1000 times a second"
    return "none", "attention", meaning, _for_last_core("nohz_full=", root)


@check("RCU callbacks", "deferred work of the kernel may run on the timed core")
def rcu_nocbs(root: Path) -> Found:
    cores = linux.kernel_argument("rcu_nocbs", root)
    if cores is None and linux.cpu_list(read_text(f"{CPU}/nohz_full", root)):
        cores = "tickless cores"  # the kernel moves the callbacks of nohz_full cores by itself
    if cores is not None:
        return (
            f"moved off {cores or 'all cores'}",
            "good",
            "deferred work of the kernel runs on other cores",
        )
    if read_text("/proc/cmdline", root) is None:
        return None
    meaning = "deferred work of the kernel runs on the timed core"
    return "on every core", "attention", meaning, _for_last_core("rcu_nocbs=", root)


@check("CPU quota (cgroup)", "a quota could stop the process for up to 100 ms at a time")
def cgroup_quota(root: Path) -> Found:
    quota, folders = linux.cpu_quota_cores(root), linux.cgroup_folders(root)
    if quota is None:
        return "none" if folders else None, "good", "no quota can stop the process"
    periods = sum(
        linux.throttling(read_text("cpu.stat", folder) or "")[1] or 0 for folder in folders
    )
    remedy = "start the container without --cpus and --cpu-quota; for a service: systemctl set-property UNIT CPUQuota="
    meaning = "once the quota is used up, the process stops until the period ends, up to 100 ms"
    return f"{quota:g} cores, {periods} stops so far", "attention", meaning, remedy


@check("clock source", "a slow clock would add microseconds to every trial")
def clock_source(root: Path) -> Found:
    folder = "/sys/devices/system/clocksource/clocksource0"
    found = read_text(f"{folder}/current_clocksource", root)
    if found in ("tsc", "arch_sys_counter"):
        return found, "good", "read in user space in tens of nanoseconds"
    if "tsc" in (read_text(f"{folder}/available_clocksource", root) or "").split():
        remedy = f"echo tsc | sudo tee {folder}/current_clocksource"
    elif linux.hypervisor(root) not in (None, "none"):
        remedy = "configure the host to give the guest an invariant TSC (QEMU: -cpu host,migratable=no,+invtsc)"
    else:
        remedy = f"{KERNEL_LINE}clocksource=tsc tsc=reliable"
    meaning = "adjusted by the hypervisor, may jump; tsc is more stable"
    if found in ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "xen"):
        meaning = "each reading is a system call or slower"
    return found, "attention", meaning, remedy


@check("timer")
def timer(root: Path) -> Found:
    cost = facts.clock_cost(5000)
    value = f"{cost['overhead_ns']} ns per reading, step {cost['step_ns']} ns"
    if cost["overhead_ns"] <= 200 and cost["resolution_ns"] <= 100:
        return value, "good", "negligible compared with any inference"
    return value, "attention", "reading the clock adds to every trial; see the clock source"


@check("kernel preemption", "it is unknown how long the kernel may delay a wake-up")
def preemption(root: Path) -> Found:
    model = linux.preemption(root)
    if model == "PREEMPT_RT":
        return model, "good", "wake-ups are delayed by tens of microseconds at most"
    remedy = "run a PREEMPT_RT kernel (Debian: sudo apt install linux-image-rt-amd64)"
    return model, "attention", "no bound on how long the kernel delays a wake-up", remedy


@check("idle states", "it is unknown how long an idle core takes to wake up")
def idle_states(root: Path) -> Found:
    held = None
    with suppress(
        OSError
    ):  # a program can keep all cores awake with this device; reading it changes nothing
        held = int.from_bytes((root / "dev/cpu_dma_latency").read_bytes()[:4], "little")
    if held is not None and held <= SHALLOW_IDLE_US:
        return f"limited to {held} us by a program", "good", "cores wake up at once"
    if read_text(f"{CPU}/cpuidle/current_driver", root) == "haltpoll":
        meaning = "idle cores return to the host, which decides how deeply they sleep"
        return "haltpoll (guest)", "unknown", meaning, f"{KERNEL_LINE}idle=poll"
    states = (root / f"{CPU}/cpu{linux.allowed_cores()[-1]}/cpuidle".lstrip("/")).glob("state*")
    latencies_us = (
        (read_int("latency", state), state) for state in states if not read_int("disable", state)
    )
    latency_us, deepest = max(
        (each for each in latencies_us if each[0] is not None), default=(None, None)
    )
    if latency_us is None or deepest is None:
        return None
    value = f"{read_text('name', deepest) or deepest.name}, {latency_us} us to wake up"
    if latency_us <= SHALLOW_IDLE_US:
        return value, "good", "cores wake up at once"
    meaning = "calls after a pause wait until the core wakes up (no effect while it spins)"
    return value, "attention", meaning, f"sudo cpupower idle-set -D {SHALLOW_IDLE_US + 1}"


@check("swap", "reading a page back from swap takes milliseconds")
def swap(root: Path) -> Found:
    if read_text("/proc/meminfo", root) is None:
        return None
    with linux.psutil_at(root) as psutil:
        memory = psutil.swap_memory()
    if memory.total == 0:
        return "none", "good", "no page of the process can be swapped out"
    used, total = memory.used // 2**20, memory.total // 2**20
    value = f"{used} of {total} MiB used, swappiness {read_int('/proc/sys/vm/swappiness', root)}"
    return value, "attention", "reading a page back from swap takes milliseconds", "sudo swapoff -a"


@check("transparent huge pages", "the kernel may stop the process to merge pages")
def huge_pages(root: Path) -> Found:
    folder = "/sys/kernel/mm/transparent_hugepage/enabled"
    mode = (read_text(folder, root) or "").partition("[")[2].partition("]")[0]
    if mode != "always":
        return mode, "good", "pages are merged only if a program requests it"
    meaning = "the kernel may stop the process to find and merge pages"
    return mode, "attention", meaning, f"echo madvise | sudo tee {folder}"


@check("roofline bound")
def roofline_bound(root: Path) -> Found:
    try:
        name = roofline.core_probe(root).name
    except roofline.NoBound as reason:
        return "none", "unknown", str(reason)
    return f"measured with {name}", "good", "no float32 implementation on these cores can be faster"


@check("virtual machine", "a hypervisor may take time from the cores")
def virtual_machine(root: Path) -> Found:
    kind = linux.hypervisor(root)
    if kind == "none":
        return "no", "good", "no hypervisor takes time from the cores"
    if kind is None:
        return None
    steal = ""
    with suppress(OSError):
        with linux.psutil_at(root) as psutil:
            times: Any = psutil.cpu_times()  # its fields depend on the system
        if total_s := sum(times) - times.guest - times.guest_nice:  # guests count as user time too
            steal = f", {100 * times.steal / total_s:.2g} % stolen since boot"
    meaning = "the hypervisor can take the core at any time; recordings count it as steal"
    remedy = (
        "record on the host itself, or pin each core of the guest (virsh vcpupin DOMAIN VCPU CPU)"
    )
    return kind + steal, "attention", meaning, remedy


def _capable(bit: int, root: Path) -> bool:
    effective = re.search(
        r"^CapEff:\s*(\w+)", read_text("/proc/self/status", root) or "", re.MULTILINE
    )
    return effective is not None and bool(int(effective[1], 16) >> bit & 1)


def _raise_limit(item: str, value: str) -> str:
    return f'echo "$USER - {item} {value}" | sudo tee -a /etc/security/limits.d/99-realtime.conf  (then log in again)'


@check("real-time priority")
def realtime_priority(root: Path) -> Found:
    limit = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
    if _capable(CAP_SYS_NICE, root) or limit != 0:
        value = (
            "allowed (capability)"
            if limit == 0
            else f"rtprio {'unlimited' if limit < 0 else limit}"
        )
        return (
            value,
            "good",
            "SCHED_FIFO is allowed and keeps ordinary programs off the core (chrt -f 80 ...)",
        )
    meaning = "SCHED_FIFO is refused, so ordinary programs can take the core"
    return "rtprio 0", "attention", meaning, _raise_limit("rtprio", "90")


@check("locked memory")
def locked_memory(root: Path) -> Found:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if _capable(CAP_IPC_LOCK, root) or limit < 0:
        value = "unlimited" if limit < 0 else "allowed (capability)"
        return value, "good", "buffers can be pinned: no page faults"
    meaning = "mlockall and large pinned buffers are refused, so that pages may be evicted"
    return (
        f"memlock {limit // 1024} KiB",
        "attention",
        meaning,
        _raise_limit("memlock", "unlimited"),
    )


@check("interrupted calls")
def interrupted_calls(root: Path) -> Found:
    from lstm_trt.machine.switches import Switches  # loads numpy

    with Switches(root) as watched:
        found = watched.as_dict()
    setting = "sudo sysctl kernel.perf_event_paranoid"
    if found["missing"]:
        meaning = (
            f"recordings cannot tell calls that were preempted or waiting ({found['missing']})"
        )
        return "not measured", "attention", meaning, f"{setting}=2"
    if found["ran_missing"]:
        meaning = f"recordings cannot name what interrupted a call ({found['ran_missing']})"
        return "measured, without names", "attention", meaning, f"{setting}=0"
    return "measured", "good", "recordings tell when a call was off its core, and what ran there"


@check("irqbalance", "if it runs, it may move device interrupts onto the timed core")
def irqbalance(root: Path) -> Found:
    try:
        namespace = os.readlink(root / "proc/self/ns/pid")
    except OSError:
        return None
    if "irqbalance" in _commands(root):
        meaning = "it may move device interrupts onto the timed core at any time"
        return "running", "attention", meaning, "sudo systemctl disable --now irqbalance"
    if namespace != INITIAL_PID_NAMESPACE:
        return "not visible", "unknown", "the host's processes cannot be seen from this container"
    return "not running", "good", "interrupts stay on their assigned cores"


@check("load", "other programs may be running")
def load(root: Path) -> Found:
    averages, cores = (
        (read_text("/proc/loadavg", root) or "").split(),
        len(linux.online_cores(root)),
    )
    if not averages:
        return None
    value = f"{averages[0]} on {count(cores, 'core')}"
    if float(averages[0]) <= max(0.25 * cores, cores - 1.5):
        return value, "good", "there are enough idle cores"
    meaning = "other programs are running and will affect the recording"
    return (
        value,
        "attention",
        meaning,
        "ps -eo psr,pcpu,comm --sort=-pcpu | head  (and stop unneeded programs)",
    )


# GPUs


def _asked(function: str) -> Any | None:
    """The answer of NVML about the first GPU; None without one."""
    with gpu.Nvml() as session:
        return session.ask(function, session.device())


@check("GPU driver", checks=GPU_CHECKS)
def gpu_driver(root: Path) -> Found:
    device = gpu.cuda_device()
    value = f"{device.name}, CUDA {device.cuda_version[0]}.{device.cuda_version[1]}"
    for name in ("cuda-bindings", "tensorrt-cu13"):
        version = facts.installed_version(name)
        needed = 13 if name == "tensorrt-cu13" else int((version or "0").partition(".")[0])
        if version and needed > device.cuda_version[0]:
            return (
                value,
                "attention",
                f"{name} {version} needs CUDA {needed}",
                gpu.old_driver_remedy(),
            )
    return value, "good", "the driver is new enough for the installed packages"


@check("GPU compute mode", "NVML does not state it", checks=GPU_CHECKS)
def compute_mode(root: Path) -> Found:
    modes = {
        None: None,
        0: "default",
        1: "exclusive thread",
        2: "prohibited",
        3: "exclusive process",
    }
    mode = _asked("nvmlDeviceGetComputeMode")
    if mode == 2:
        return (
            modes[mode],
            "attention",
            "no program can use the GPU",
            "sudo nvidia-smi --compute-mode=DEFAULT",
        )
    meaning = (
        "other programs can use the GPU at the same time"
        if mode == 0
        else "a second program is refused"
    )
    return modes.get(mode, str(mode)), "good", meaning


@check("GPU persistence mode", "NVML does not state it", checks=GPU_CHECKS)
def persistence_mode(root: Path) -> Found:
    found = _switch(_asked("nvmlDeviceGetPersistenceMode"))
    if found == "on":
        return found, "good", "the driver stays loaded between programs"
    meaning = "the driver is initialized again for each program, and locked clocks are lost"
    return found, "attention", meaning, "sudo nvidia-smi --persistence-mode=1"


@check("GPU clocks", "NVML does not state them", checks=GPU_CHECKS)
def gpu_clocks(root: Path) -> Found:
    with gpu.Nvml() as session:
        state = session.state(session.device())
    value, most = "{gpu_sm_mhz} of at most {max_sm_mhz} MHz".format_map(state), state["max_sm_mhz"]
    meaning = (
        "whether the clock is locked cannot be read; an unlocked one follows load and temperature"
    )
    return value if most else None, "unknown", meaning, gpu.lock_advice(most)


@check("GPU partition (MIG)", "this GPU has none", checks=GPU_CHECKS)
def mig(root: Path) -> Found:
    mode = _asked("nvmlDeviceGetMigMode")
    if mode and mode[0]:
        return (
            "on",
            "attention",
            "only a part of the GPU is used; power and clocks are shared with the other parts",
        )
    return "off" if mode else "not supported", "good", "the whole GPU is used"


@check("MPS", checks=GPU_CHECKS)
def mps(root: Path) -> Found:
    started = any(name.startswith("nvidia-cuda-mps") for name in _commands(root))
    if started or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        meaning = "kernels of several programs run at the same time and disturb each other"
        return "in use", "attention", meaning, "echo quit | nvidia-cuda-mps-control"
    return "not in use", "good", "programs take turns on the GPU"


@check("core near the GPU", "the GPU's place is not visible", checks=GPU_CHECKS)
def near_gpu(root: Path) -> Found:
    address = gpu.cuda_device().pci_bus_id.lower()
    near = linux.cpu_list(read_text(f"/sys/bus/pci/devices/{address}/local_cpulist", root)) or ()
    core, useful = linux.allowed_cores()[-1], sorted(set(near) & set(linux.allowed_cores()))
    value = f"core {core}, the GPU is near {linux.list_text(near)}" if near else None
    if core in near or not useful:
        return value, "good", "the timed core and the GPU share a memory node"
    meaning = "copies cross between processors"
    return (
        value,
        "attention",
        meaning,
        f"taskset --cpu-list {linux.list_text(tuple(useful))} lstm-trt ...",
    )


def host_checks(root: Path = ROOT) -> list[Check]:
    """All checks, in the order of `CHECKS`; those of `GPU_CHECKS` if CUDA has a device."""
    return [run(root) for run in (*CHECKS, *(GPU_CHECKS if gpu.device_here() else ()))]
