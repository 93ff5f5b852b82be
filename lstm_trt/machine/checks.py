"""Host settings that affect tail latency, and that a user can change.

`host_checks` reads settings and changes none. Each check states the value found, whether it is good
for tail latency, and one command or kernel argument that improves it. Settings that a container or
guest cannot see are "unknown", not "good". Cores, clocks and kernel come first, then memory and
privileges. What recordings measure themselves (the cost of the clock, time that a
hypervisor or other programs took) has no check.
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

from lstm_trt.machine import facts, gpu, linux
from lstm_trt.machine.linux import ROOT, read_int, read_text

#: In the order in which `doctor` lists them.
VERDICTS = ("attention", "unknown", "good")

CPU = "/sys/devices/system/cpu"

CAP_IPC_LOCK, CAP_SYS_NICE = 14, 23  # linux/capability.h

#: Remedies that begin with it are shown as one line.
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


#: What a check finds: value, verdict, meaning, and possibly a remedy. None, or None as the value:
#: the setting is not visible.
Found = tuple[str | None, *tuple[str, ...]] | None

#: All checks, in the order of their definition; those of the GPU are made only if CUDA has a
#: device.
CHECKS: list[Callable[[Path], Check]] = []

GPU_CHECKS: list[Callable[[Path], Check]] = []


def check(
    name: str, unseen: str = "", checks: list[Callable[[Path], Check]] = CHECKS
) -> Callable[[Callable[[Path], Found]], Callable[[Path], Check]]:
    """Decorator that adds a function to `checks`; `unseen` is the meaning if it finds no value.

    A check never raises: if its function fails, it is "unknown" and states the error.
    """

    def register(find: Callable[[Path], Found]) -> Callable[[Path], Check]:
        @functools.wraps(find)
        def run(root: Path) -> Check:
            try:
                found = find(root)
            except Exception as error:  # a file in an unexpected format
                return Check(name, "not readable", "unknown", str(error)[:80])
            value, *texts = found or (None,)
            if not value:
                return Check(name, "not visible", "unknown", unseen)
            return Check(name, value, *texts)

        checks.append(run)
        return run

    return register


def _switch(on: bool | None) -> str | None:
    """A setting as text."""
    if on is None:
        return None
    return "on" if on else "off"


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
    remedy = f"echo performance | sudo tee {CPU}/cpu*/cpufreq/scaling_governor"
    return found, "attention", meaning, remedy


@check("turbo / boost", "the clock may depend on temperature and on the other cores")
def turbo(root: Path) -> Found:
    found = _switch(facts.turbo(root))
    if found == "off":
        return found, "good", "the clock does not depend on temperature or on the other cores"
    remedy = f"echo 0 | sudo tee {CPU}/cpufreq/boost"
    if read_text(f"{CPU}/intel_pstate/no_turbo", root) is not None:
        remedy = f"echo 1 | sudo tee {CPU}/intel_pstate/no_turbo"
    meaning = "faster in the median, but the clock depends on temperature and on the other cores"
    return found, "attention", meaning, remedy


@check("SMT (hyper-threads)", "another thread may share the timed core")
def smt(root: Path) -> Found:
    found = _switch(facts.simultaneous_threads(root))
    if found == "on":
        meaning = "a thread on the same physical core competes for its caches and arithmetic units"
        return found, "attention", meaning, f"echo off | sudo tee {CPU}/smt/control"
    if found and linux.hypervisor(root) not in (None, "none"):
        meaning = "the host may still run the cores of two guests on one physical core"
        return "none in this guest", "unknown", meaning
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


@check("CPU quota (cgroup)", "a quota could stop the process for up to 100 ms at a time")
def cgroup_quota(root: Path) -> Found:
    quota = linux.cpu_quota_cores(root)
    folders = linux.cgroup_folders(root)
    if quota is None:
        return "none" if folders else None, "good", "no quota can stop the process"
    stops = 0
    for folder in folders:
        _, periods = linux.throttling(read_text("cpu.stat", folder) or "")
        stops += periods or 0
    remedy = (
        "start the container without --cpus and --cpu-quota; for a service:"
        " systemctl set-property UNIT CPUQuota="
    )
    meaning = "once the quota is used up, the process stops until the period ends, up to 100 ms"
    return f"{quota:g} cores, {stops} stops so far", "attention", meaning, remedy


@check("clock source", "a slow clock would add microseconds to every trial")
def clock_source(root: Path) -> Found:
    folder = linux.CLOCK_SOURCE
    found = read_text(f"{folder}/current_clocksource", root)
    if found in ("tsc", "arch_sys_counter"):
        return found, "good", "read in user space in tens of nanoseconds"
    if "tsc" in (read_text(f"{folder}/available_clocksource", root) or "").split():
        remedy = f"echo tsc | sudo tee {folder}/current_clocksource"
    elif linux.hypervisor(root) not in (None, "none"):
        remedy = (
            "configure the host to give the guest an invariant TSC"
            " (QEMU: -cpu host,migratable=no,+invtsc)"
        )
    else:
        remedy = f"{KERNEL_LINE}clocksource=tsc tsc=reliable"
    meaning = "adjusted by the hypervisor, may jump; tsc is more stable"
    if found in ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "xen"):
        meaning = "each reading is a system call or slower"
    return found, "attention", meaning, remedy


@check("kernel preemption", "it is unknown how long the kernel may delay a wake-up")
def preemption(root: Path) -> Found:
    model = linux.preemption(root)
    if model == "PREEMPT_RT":
        return model, "good", "wake-ups are delayed by tens of microseconds at most"
    remedy = "run a PREEMPT_RT kernel (Debian: sudo apt install linux-image-rt-amd64)"
    return model, "attention", "no bound on how long the kernel delays a wake-up", remedy


@check("idle states", "it is unknown how long an idle core takes to wake up")
def idle_states(root: Path) -> Found:
    with suppress(OSError):  # by this device a program can keep all cores awake; read, not changed
        limit_us = int.from_bytes((root / "dev/cpu_dma_latency").read_bytes()[:4], "little")
        if limit_us <= SHALLOW_IDLE_US:
            return f"limited to {limit_us} us by a program", "good", "cores wake up at once"
    if read_text(f"{CPU}/cpuidle/current_driver", root) == "haltpoll":
        meaning = "idle cores return to the host, which decides how deeply they sleep"
        return "haltpoll (guest)", "unknown", meaning, f"{KERNEL_LINE}idle=poll"
    states = []
    core = linux.allowed_cores()[-1]
    for state in (root / f"{CPU}/cpu{core}/cpuidle".lstrip("/")).glob("state*"):
        latency_us = read_int("latency", state)
        if latency_us is not None and not read_int("disable", state):
            states.append((latency_us, read_text("name", state) or state.name))
    if not states:
        return None
    latency_us, deepest = max(states)
    value = f"{deepest}, {latency_us} us to wake up"
    if latency_us <= SHALLOW_IDLE_US:
        return value, "good", "cores wake up at once"
    meaning = "calls after a pause wait until the core wakes up (no effect while it spins)"
    return value, "attention", meaning, f"sudo cpupower idle-set -D {SHALLOW_IDLE_US + 1}"


@check("transparent huge pages", "the kernel may stop the process to merge pages")
def huge_pages(root: Path) -> Found:
    folder = "/sys/kernel/mm/transparent_hugepage/enabled"
    mode = (read_text(folder, root) or "").partition("[")[2].partition("]")[0]
    if mode != "always":
        return mode, "good", "pages are merged only if a program requests it"
    meaning = "the kernel may stop the process to find and merge pages"
    return mode, "attention", meaning, f"echo madvise | sudo tee {folder}"


def _capable(bit: int, root: Path) -> bool:
    status = read_text("/proc/self/status", root) or ""
    effective = re.search(r"^CapEff:\s*(\w+)", status, re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) >> bit & 1)


def _raise_limit(item: str, value: str) -> str:
    line = f'echo "$USER - {item} {value}"'
    return f"{line} | sudo tee -a /etc/security/limits.d/99-realtime.conf  (then log in again)"


@check("real-time priority")
def realtime_priority(root: Path) -> Found:
    limit = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
    if _capable(CAP_SYS_NICE, root) or limit != 0:
        value = f"rtprio {limit}"
        if limit == 0:
            value = "allowed (capability)"
        elif limit < 0:
            value = "rtprio unlimited"
        meaning = "SCHED_FIFO is allowed and keeps ordinary programs off the core (--fifo 80)"
        return value, "good", meaning
    meaning = "SCHED_FIFO is refused, so ordinary programs can take the core"
    return "rtprio 0", "attention", meaning, _raise_limit("rtprio", "90")


@check("locked memory")
def locked_memory(root: Path) -> Found:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if _capable(CAP_IPC_LOCK, root) or limit < 0:
        value = "unlimited" if limit < 0 else "allowed (capability)"
        return value, "good", "buffers can be pinned: no page faults"
    meaning = "mlockall and large pinned buffers are refused, so that pages may be evicted"
    remedy = _raise_limit("memlock", "unlimited")
    return f"memlock {limit // 1024} KiB", "attention", meaning, remedy


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


# GPUs


def _asked(function: str) -> Any | None:
    """The answer of NVML about the first GPU; None without one."""
    with gpu.Nvml() as session:
        return session.ask(function, session.device())


@check("GPU driver", checks=GPU_CHECKS)
def gpu_driver(root: Path) -> Found:
    device = gpu.cuda_device()
    newest, minor = device.cuda_version
    value = f"{device.name}, CUDA {newest}.{minor}"
    bindings = facts.installed_version("cuda-bindings")
    if bindings and int(bindings.partition(".")[0]) > newest:
        needed = f"cuda-bindings {bindings} needs CUDA {bindings.partition('.')[0]}"
        return value, "attention", needed, gpu.old_driver_remedy()
    tensorrt = facts.installed_version("tensorrt-cu13")
    if tensorrt and newest < 13:
        needed = f"tensorrt-cu13 {tensorrt} needs CUDA 13"
        return value, "attention", needed, gpu.old_driver_remedy()
    return value, "good", "the driver is new enough for the installed packages"


#: nvmlComputeMode_t in nvml.h.
COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")


@check("GPU compute mode", "NVML does not state it", checks=GPU_CHECKS)
def compute_mode(root: Path) -> Found:
    number = _asked("nvmlDeviceGetComputeMode")
    if number is None:
        return None
    mode = COMPUTE_MODES[number]
    if mode == "prohibited":
        remedy = "sudo nvidia-smi --compute-mode=DEFAULT"
        return mode, "attention", "no program can use the GPU", remedy
    if mode == "default":
        return mode, "good", "other programs can use the GPU at the same time"
    return mode, "good", "a second program is refused"


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
    highest_mhz = state["max_sm_mhz"]
    if not highest_mhz:
        return None
    value = f"{state['gpu_sm_mhz']} of at most {highest_mhz} MHz"
    meaning = (
        "whether the clock is locked cannot be read; an unlocked one follows load and temperature"
    )
    return value, "unknown", meaning, gpu.lock_advice(highest_mhz)


@check("GPU partition (MIG)", "this GPU has none", checks=GPU_CHECKS)
def mig(root: Path) -> Found:
    mode = _asked("nvmlDeviceGetMigMode")
    if mode and mode[0]:
        meaning = "only a part of the GPU is used; power and clocks are shared with the other parts"
        return "on", "attention", meaning
    return "off" if mode else "not supported", "good", "the whole GPU is used"


@check("MPS", checks=GPU_CHECKS)
def mps(root: Path) -> Found:
    commands = [read_text("comm", process) or "" for process in (root / "proc").glob("[0-9]*")]
    started = any(name.startswith("nvidia-cuda-mps") for name in commands)
    if started or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        meaning = "kernels of several programs run at the same time and disturb each other"
        return "in use", "attention", meaning, "echo quit | nvidia-cuda-mps-control"
    return "not in use", "good", "programs take turns on the GPU"


@check("core near the GPU", "the GPU's place is not visible", checks=GPU_CHECKS)
def near_gpu(root: Path) -> Found:
    address = gpu.cuda_device().pci_bus_id.lower()
    near = linux.cpu_list(read_text(f"/sys/bus/pci/devices/{address}/local_cpulist", root))
    if not near:
        return None
    allowed = linux.allowed_cores()
    core = allowed[-1]
    value = f"core {core}, the GPU is near {linux.list_text(near)}"
    useful = tuple(sorted(set(near) & set(allowed)))
    if core in near or not useful:
        return value, "good", "the timed core and the GPU share a memory node"
    remedy = f"taskset --cpu-list {linux.list_text(useful)} lstm-trt ..."
    return value, "attention", "copies cross between processors", remedy


def host_checks(root: Path = ROOT) -> list[Check]:
    """All checks, in the order of `CHECKS`; those of `GPU_CHECKS` if CUDA has a device."""
    checks = [*CHECKS, *GPU_CHECKS] if gpu.device_here() else CHECKS
    return [run(root) for run in checks]
