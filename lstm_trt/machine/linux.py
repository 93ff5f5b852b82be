"""Readers of /proc, /sys and the cgroup of this process.

Functions take `root` in place of `/`, so that tests can simulate a machine. Missing information
gives None or an empty result, never an exception.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import decimal

ROOT = Path("/")

CLOCK_SOURCE = "/sys/devices/system/clocksource/clocksource0"

#: Environment variables with the number of threads of libraries.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def open_standard_streams() -> None:
    """Open /dev/null in place of standard streams that are closed, here and for child processes.

    Otherwise there is no object to write to, and the next file, pipe or socket gets the number of a
    closed stream.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # The lowest free number, which is that of the stream.
            handle = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, "r+"))


def read_text(path: str, root: Path = ROOT) -> str | None:
    """Content of a small file without surrounding white space; None if it cannot be read."""
    try:
        return (Path(root) / path.lstrip("/")).read_text(errors="replace").replace("\0", "").strip()
    except OSError:
        return None


def read_int(path: str, root: Path = ROOT) -> int | None:
    """The whole number in a file; None if it contains something else."""
    try:
        return int(read_text(path, root) or "")
    except ValueError:
        return None


def cpu_list(text: str | None) -> tuple[int, ...] | None:
    """The kernel's list format, "0-3,8" -> (0, 1, 2, 3, 8); "" and "(null)" are empty."""
    if text is None:
        return None
    cores: list[int] = []
    try:
        for part in filter(None, text.replace("(null)", "").strip().split(",")):
            first, _, last = part.partition("-")
            cores.extend(range(int(decimal(first)), int(decimal(last or first)) + 1))
    except ValueError:
        return None
    return tuple(cores)


def list_text(cores: tuple[int, ...] | None) -> str | None:
    """Inverse of `cpu_list`: (0, 1, 2, 8) -> "0-2,8"."""
    if cores is None:
        return None
    runs: list[list[int]] = []  # first and last core
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def online_cores(root: Path = ROOT) -> tuple[int, ...]:
    """Logical cores that are switched on."""
    online = cpu_list(read_text("/sys/devices/system/cpu/online", root))
    return online or tuple(range(os.cpu_count() or 1))


def allowed_cores() -> tuple[int, ...]:
    """Logical cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def choose_cores(threads: int, wanted: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The `wanted` cores, or the last `threads` cores that this process may use.

    The last, because interrupts and other work run mostly on the first. Raises `UsageError` if
    fewer are allowed, or if `wanted` are not one allowed core per thread: two threads pinned to one
    core make the tail 30 times longer.
    """
    allowed = allowed_cores()
    if wanted and (len(wanted) != threads or not set(wanted) <= set(allowed)):
        raise UsageError(
            f"--cores {list_text(wanted)}: there must be one core for each of --threads {threads},"
            f" out of {list_text(allowed)}"
        )
    if not wanted and threads > len(allowed):
        usable = f"this process may use only {len(allowed)}"
        raise UsageError(f"{threads} threads need {threads} cores, but {usable}: lower --threads")
    return wanted or allowed[-threads:]


#: The cores that share a physical core with one.
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def physical_cores(root: Path = ROOT) -> int | None:
    """Number of physical cores that are switched on; None if the system does not state it."""
    groups = {read_text(_SIBLINGS.format(core), root) for core in online_cores(root)}
    return None if None in groups else len(groups)


def sibling_cores(cores: tuple[int, ...], root: Path = ROOT) -> tuple[int, ...]:
    """The cores and those that share a physical core with them (hyper-threads)."""
    found = set(cores)
    for core in cores:
        found.update(cpu_list(read_text(_SIBLINGS.format(core), root)) or ())
    return tuple(sorted(found))


def isolated_cores(root: Path = ROOT) -> tuple[int, ...] | None:
    """Cores that the scheduler does not use: isolcpus=, or an isolated cpuset partition (kernel
    6.7)."""
    by_argument = cpu_list(read_text("/sys/devices/system/cpu/isolated", root))
    by_cgroup = cpu_list(read_text("/sys/fs/cgroup/cpuset.cpus.isolated", root))
    if by_argument is None and by_cgroup is None:
        return None
    return tuple(sorted({*(by_argument or ()), *(by_cgroup or ())}))


def cpuinfo(root: Path = ROOT) -> dict[str, str]:
    """Lines of /proc/cpuinfo as name -> value, the first of each name, which is that of the first
    processor."""
    first: dict[str, str] = {}
    for line in (read_text("/proc/cpuinfo", root) or "").splitlines():
        key, _, value = line.partition(":")
        first.setdefault(key.strip(), " ".join(value.split()))
    return first


def cpuinfo_flags(root: Path = ROOT) -> frozenset[str]:
    """Feature flags of the first processor; empty if the file has none."""
    lines = cpuinfo(root)
    return frozenset((lines.get("flags") or lines.get("Features") or "").split())


#: A line of mountinfo: ids, device, folder, mount point, options and fields - type, source, options
#: of the hierarchy.
_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .*- (cgroup2?) .*?(\S+)$", re.MULTILINE)


def cgroup_folders(root: Path = ROOT, controller: str = "cpu") -> list[Path]:
    """Folders that can contain limits of this process ("cpu" or "memory"): its own cgroup first,
    then the parents.

    Limits of parents apply to the process too. In a container the path in /proc/self/cgroup may not
    exist below the mount point; the nearest existing parent, possibly the mount point itself, is
    then the container's cgroup.
    """
    paths: dict[str, str] = {}  # by type: "cgroup" is version 1, "cgroup2" version 2
    lines = re.findall(r"(?m)^\d+:(.*?):(.*)", read_text("/proc/self/cgroup", root) or "")
    for controllers, path in lines:
        if not controllers:
            paths["cgroup2"] = path
        elif controller in controllers.split(","):
            paths["cgroup"] = path
    folders: list[Path] = []
    mounts = _MOUNT.findall(read_text("/proc/self/mountinfo", root) or "")
    for inside, mount, kind, options in mounts:
        if kind == "cgroup" and controller not in options.split(","):
            continue
        path = paths.get(kind, "/")
        if (path + "/").startswith(inside + "/"):
            path = path[len(inside) :]
        top = root / mount.lstrip("/")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            folder = top.joinpath(*parts[:depth])
            if folder.is_dir() and folder not in folders:
                folders.append(folder)
    return folders


def cpu_quota_cores(root: Path = ROOT) -> float | None:
    """The tightest CPU quota of the cgroup and its parents in cores; None without one."""
    quotas = []
    for folder in cgroup_folders(root):
        text = read_text("cpu.max", folder)  # v2: "max 100000", "150000 100000"
        if text is None:  # v1: -1 for no quota
            quota_us = read_text("cpu.cfs_quota_us", folder)
            text = f"{quota_us} {read_text('cpu.cfs_period_us', folder)}"
        quota = re.fullmatch(r"(\d+) ([1-9]\d*)", text)
        if quota:
            quotas.append(int(quota[1]) / int(quota[2]))
    return min(quotas, default=None)


#: Files of a cgroup's memory in v2 and v1: limit ("max" for none), use, and the name in memory.stat
#: of the part of the use that is a cache of files, which the kernel gives back first.
_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def memory_bytes(name: str, root: Path = ROOT) -> int | None:
    """A line of /proc/meminfo, such as "MemTotal"."""
    found = re.search(rf"(?m)^{name}: +(\d+) kB", read_text("/proc/meminfo", root) or "")
    return None if found is None else 1024 * int(found[1])


def available_memory_bytes(root: Path = ROOT) -> int:
    """Memory that is available without swapping, at most what the limits of the cgroup and its
    parents leave."""
    left = [memory_bytes("MemAvailable", root) or 0]
    for folder in cgroup_folders(root, "memory"):
        for limit_name, use_name, cache_name in _MEMORY:
            limit = read_int(limit_name, folder)
            if limit is not None:
                used = read_int(use_name, folder) or 0
                cached = _statistics(read_text("memory.stat", folder) or "").get(cache_name, 0)
                left.append(max(0, limit - max(0, used - cached)))
    return min(left)


def _statistics(text: str) -> dict[str, int]:
    """The lines "name number" of a cgroup's memory.stat or cpu.stat."""
    return {name: int(value) for name, value in re.findall(r"(?m)^(\w+) +(\d+)$", text)}


def throttling(text: str) -> tuple[int | None, int | None]:
    """(nanoseconds throttled, periods throttled) of one cpu.stat: v1 counts ns, v2 microseconds."""
    values = _statistics(text)
    time_us = values.get("throttled_usec")
    time_ns = values.get("throttled_time")
    return time_ns if time_us is None else 1000 * time_us, values.get("nr_throttled")


def preemption(root: Path = ROOT) -> str | None:
    """Preemption model of the kernel: "PREEMPT_RT", "PREEMPT_DYNAMIC (full)", "PREEMPT", "none or
    voluntary".

    /proc/version also states who built the kernel on which host, which is left out.
    """
    version = read_text("/proc/version", root)
    real_time = re.search(r"\bPREEMPT[_ ]RT\b", version or "")
    if real_time or read_text("/sys/kernel/realtime", root) == "1":
        return "PREEMPT_RT"
    if version is None:
        return None
    if re.search(r"\bPREEMPT_DYNAMIC\b", version):
        modes = read_text("/sys/kernel/debug/sched/preempt", root) or ""  # "none voluntary (full)"
        arguments = read_text("/proc/cmdline", root) or ""
        chosen = re.findall(r"\((.*?)\)", modes) or re.findall(r"(?<!\S)preempt=(\S+)", arguments)
        return f"PREEMPT_DYNAMIC ({chosen[0]})" if chosen else "PREEMPT_DYNAMIC"
    return "PREEMPT" if re.search(r"\bPREEMPT\b", version) else "none or voluntary"


def hypervisor(root: Path = ROOT) -> str | None:
    """Name of the hypervisor, "unknown" if it has no name, "none" on bare x86, else None."""
    kind = read_text("/sys/hypervisor/type", root)
    if kind:
        return kind
    clocks = read_text(f"{CLOCK_SOURCE}/available_clocksource", root) or ""
    for sign, name in (("kvm-clock", "kvm"), ("hyperv", "hyperv"), ("xen", "xen")):
        if sign in clocks:
            return name
    flags = cpuinfo_flags(root)
    if "hypervisor" in flags:
        return read_text("/sys/class/dmi/id/sys_vendor", root) or "unknown"
    # "fpu" is an x86 flag; Arm's flags do not show a hypervisor.
    return "none" if "fpu" in flags else None


#: Seconds that a command has for cleaning up after Ctrl-C.
STOP_LIMIT_S = 5


def run_command(
    command: Sequence[str], limit_s: float | None = None, **where: Any
) -> subprocess.CompletedProcess:
    """Run a command to its end, its output as text; Ctrl-C or the limit ends it and all processes
    that it started.

    `where`: `cwd` and `env`. Raises `OSError` if it cannot be started, `TimeoutExpired` at the
    limit.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        **where,
    ) as child:
        try:
            output, errors = child.communicate(timeout=limit_s)
        except BaseException:
            with suppress(OSError, subprocess.TimeoutExpired):
                os.killpg(child.pid, signal.SIGINT)
                child.wait(STOP_LIMIT_S)
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, child.returncode, output, errors)
