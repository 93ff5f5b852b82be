"""Readers of /proc, /sys and the cgroup of this process.

Functions take `root` in place of `/`, so that tests can simulate a machine. Missing information
gives None or an empty result, never an exception.
"""

import itertools
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import decimal

ROOT = Path("/")

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
            handle = os.open(
                os.devnull, os.O_RDWR
            )  # the lowest free number, which is that of the stream
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
        for part in filter(None, text.replace("(null)", "").replace("\n", "").strip().split(",")):
            first, _, last = part.partition("-")
            cores.extend(range(int(decimal(first)), int(decimal(last or first)) + 1))
    except ValueError:
        return None
    return tuple(cores)


def list_text(cores: tuple[int, ...] | None) -> str | None:
    """Inverse of `cpu_list` for cores in order: (0, 1, 2, 8) -> "0-2,8"."""
    if cores is None:
        return None
    # Within a run of consecutive cores, the core minus its place stays the same.
    runs = itertools.groupby(enumerate(sorted(cores)), lambda pair: pair[1] - pair[0])
    parts = ([core for _, core in run] for _, run in runs)
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def online_cores(root: Path = ROOT) -> tuple[int, ...]:
    """Logical cores that are switched on."""
    return cpu_list(read_text("/sys/devices/system/cpu/online", root)) or tuple(
        range(os.cpu_count() or 1)
    )


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
        rule = (
            f"there must be one core for each of --threads {threads}, out of {list_text(allowed)}"
        )
        raise UsageError(f"--cores {list_text(wanted)}: {rule}")
    if not wanted and threads > len(allowed):
        usable = f"this process may use only {len(allowed)}"
        raise UsageError(f"{threads} threads need {threads} cores, but {usable}: lower --threads")
    return wanted or allowed[-threads:]


def sibling_cores(cores: tuple[int, ...], root: Path = ROOT) -> tuple[int, ...]:
    """The cores and those that share a physical core with them (hyper-threads)."""
    folder = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    siblings = (cpu_list(read_text(folder.format(core), root)) or (core,) for core in cores)
    return tuple(sorted({*cores, *(core for group in siblings for core in group)}))


def isolated_cores(root: Path = ROOT) -> tuple[int, ...] | None:
    """Cores that the scheduler does not use: isolcpus=, or an isolated cpuset partition (kernel
    6.7)."""
    files = ("/sys/devices/system/cpu/isolated", "/sys/fs/cgroup/cpuset.cpus.isolated")
    lists = [cores for file in files if (cores := cpu_list(read_text(file, root))) is not None]
    return tuple(sorted(set().union(*lists))) if lists else None


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


def kernel_argument(name: str, root: Path = ROOT) -> str | None:
    """Value of `name=value` on the kernel's command line, "" for a bare `name`, None without it."""
    arguments = (
        argument.partition("=") for argument in (read_text("/proc/cmdline", root) or "").split()
    )
    return next((value for key, _, value in arguments if key == name), None)


#: A line of mountinfo: ids, device, folder, mount point, options and fields - type, source, options
#: of the hierarchy.
_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .*- (cgroup2?) .*?(\S+)$", re.MULTILINE)


def _cgroup_mounts(controller: str, root: Path) -> list[tuple[str, str, str]]:
    """(folder inside the hierarchy, mount point, type) of each hierarchy that may have the
    controller.

    The type is "cgroup" for version 1 and "cgroup2" for version 2.
    """
    mounts = _MOUNT.findall(read_text("/proc/self/mountinfo", root) or "")
    found = [
        mount[:3] for mount in mounts if mount[2] == "cgroup2" or controller in mount[3].split(",")
    ]
    if not found:  # no mountinfo: the usual places
        if (root / "sys/fs/cgroup/cgroup.controllers").exists():
            found.append(("/", "/sys/fs/cgroup", "cgroup2"))
        found += [
            ("/", f"/sys/fs/cgroup/{name}", "cgroup")
            for name in (controller, f"{controller},cpuacct")
        ]
    return found


def cgroup_folders(root: Path = ROOT, controller: str = "cpu") -> list[Path]:
    """Folders that can contain limits of this process ("cpu" or "memory"): its own cgroup first,
    then the parents.

    Limits of parents apply to the process too. In a container the path in /proc/self/cgroup may not
    exist below the mount point; the nearest existing parent, possibly the mount point itself, is
    then the container's cgroup.
    """
    paths: dict[str, str] = {}
    for controllers, path in re.findall(
        r"(?m)^\d+:(.*?):(.*)", read_text("/proc/self/cgroup", root) or ""
    ):
        if not controllers or controller in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = path
    folders: list[Path] = []
    for inside, mount, kind in _cgroup_mounts(controller, root):
        path = paths.get(kind, "/")
        if (path + "/").startswith(inside + "/"):
            path = path[len(inside) :]
        parts = [part for part in path.split("/") if part not in ("", "..")]
        own = (root / mount.lstrip("/")).joinpath(*parts)
        found = (own, *own.parents)[: len(parts) + 1]
        folders += [folder for folder in found if folder.is_dir() and folder not in folders]
    return folders


def cpu_quota_cores(root: Path = ROOT) -> float | None:
    """The tightest CPU quota of the cgroup and its parents in cores; None without one."""
    quotas = []
    for folder in cgroup_folders(root):
        v1 = f"{read_text('cpu.cfs_quota_us', folder)} {read_text('cpu.cfs_period_us', folder)}"  # -1 for no quota
        quota = re.fullmatch(
            r"(\d+) (\d+)", read_text("cpu.max", folder) or v1
        )  # v2: "max 100000", "150000 100000"
        if quota and int(quota[2]):
            quotas.append(int(quota[1]) / int(quota[2]))
    return min(quotas, default=None)


#: Files of a cgroup's memory in v2 and v1: limit ("max" for none), use, and the name in memory.stat
#: of the part of the use that is a cache of files, which the kernel gives back first.
_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@contextmanager
def psutil_at(root: Path = ROOT) -> Iterator[Any]:
    """The module psutil, meanwhile reading /proc below `root`; importing it takes 20 ms."""
    import psutil

    # Of values that are not used here.
    warnings.filterwarnings("ignore", ".*stats couldn't be determined", RuntimeWarning)
    before = psutil.PROCFS_PATH
    psutil.PROCFS_PATH = str(Path(root) / "proc")
    try:
        yield psutil
    finally:
        psutil.PROCFS_PATH = before


def available_memory_bytes(root: Path = ROOT) -> int:
    """Memory that is available without swapping, at most what the limits of the cgroup and its
    parents leave."""
    with psutil_at(root) as psutil:
        left = [psutil.virtual_memory().available]
    for folder in cgroup_folders(root, "memory"):
        for limit_name, use_name, cache_name in _MEMORY:
            if (limit := read_int(limit_name, folder)) is not None:
                cached = _statistics(read_text("memory.stat", folder) or "").get(cache_name, 0)
                left.append(max(0, limit - max(0, (read_int(use_name, folder) or 0) - cached)))
    return min(left)


def _statistics(text: str) -> dict[str, int]:
    """The lines "name number" of a cgroup's memory.stat or cpu.stat."""
    return {name: int(value) for name, value in re.findall(r"(?m)^(\w+) +(\d+)$", text)}


def throttling(text: str) -> tuple[int | None, int | None]:
    """(nanoseconds throttled, periods throttled) of one cpu.stat: v1 counts ns, v2 microseconds."""
    values = _statistics(text)
    time_us, time_ns = values.get("throttled_usec"), values.get("throttled_time")
    return time_ns if time_us is None else 1000 * time_us, values.get("nr_throttled")


def preemption(root: Path = ROOT) -> str | None:
    """Preemption model of the kernel: "PREEMPT_RT", "PREEMPT_DYNAMIC (full)", "PREEMPT", "none or
    voluntary".

    /proc/version also states who built the kernel on which host, which is left out.
    """
    version = read_text("/proc/version", root)
    if read_text("/sys/kernel/realtime", root) == "1" or re.search(
        r"\bPREEMPT[_ ]RT\b", version or ""
    ):
        return "PREEMPT_RT"
    if version is None:
        return None
    if re.search(r"\bPREEMPT_DYNAMIC\b", version):
        modes = read_text("/sys/kernel/debug/sched/preempt", root) or ""  # "none voluntary (full)"
        chosen = modes.partition("(")[2].partition(")")[0] or kernel_argument("preempt", root)
        return f"PREEMPT_DYNAMIC ({chosen})" if chosen else "PREEMPT_DYNAMIC"
    return "PREEMPT" if re.search(r"\bPREEMPT\b", version) else "none or voluntary"


def hypervisor(root: Path = ROOT) -> str | None:
    """Name of the hypervisor, "unknown" if it has no name, "none" on bare x86, else None."""
    if kind := read_text("/sys/hypervisor/type", root):
        return kind
    clocks = (
        read_text("/sys/devices/system/clocksource/clocksource0/available_clocksource", root) or ""
    )
    for sign, name in (("kvm-clock", "kvm"), ("hyperv", "hyperv"), ("xen", "xen")):
        if sign in clocks:
            return name
    flags = cpuinfo_flags(root)
    if "hypervisor" in flags:
        return read_text("/sys/class/dmi/id/sys_vendor", root) or "unknown"
    return (
        "none" if "fpu" in flags else None
    )  # "fpu" is an x86 flag; Arm's flags do not show a hypervisor


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
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        command, **pipes, **where, text=True, errors="replace", start_new_session=True
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
