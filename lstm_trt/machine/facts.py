"""Description of the machine for the provenance of recordings, and the cost of the clock that times
trials.

`describe` is called once per recording; a `counters.Watcher` is read between blocks. Properties
that the system does not state are None. Host names, users and paths are left out, since recordings
are published.
"""

import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from lstm_trt import __version__
from lstm_trt.config.libraries import installed_version
from lstm_trt.machine import linux
from lstm_trt.machine.linux import ROOT, read_int, read_text, run_command

#: (implementer, part) of Arm cores that have no "model name" in /proc/cpuinfo.
ARM_CORES = {
    ("0x41", "0xd07"): "Arm Cortex-A57",
    ("0x41", "0xd08"): "Arm Cortex-A72",
    ("0x41", "0xd0b"): "Arm Cortex-A76",
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd42"): "Arm Cortex-A78AE",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
}


@lru_cache(maxsize=8)
def cpu_name(root: Path = ROOT) -> str:
    """Name of the processor according to the kernel, "AMD EPYC 9575F 64-Core Processor"."""
    first = linux.cpuinfo(root)
    for key in ("model name", "Model", "Hardware", "cpu model", "cpu"):
        if first.get(key):
            return first[key]
    core = (first.get("CPU implementer", ""), first.get("CPU part", ""))
    if core in ARM_CORES:
        return ARM_CORES[core]
    return f"implementer {core[0]} part {core[1]}" if core[0] else platform.machine() or "unknown"


def versions(distributions: Iterable[str] = ()) -> dict[str, str | None]:
    """Python, kernel, C library and the given packages, none of them imported; None if not
    installed, or not glibc."""
    found = {
        "python": platform.python_version(),
        "kernel": os.uname().release,
        "libc": " ".join(platform.libc_ver()).strip() or None,
    }
    for name in distributions:
        found[name] = installed_version(name)
    if "lstm_trt" in found:
        found["lstm_trt"] = found["lstm_trt"] or __version__
    return found


@lru_cache(maxsize=1)
def commit() -> str | None:
    """The commit of the checkout that runs, with `-dirty` if its files were changed; None for an
    installed package.

    `LSTM_TRT_COMMIT` names it where there is no .git, as in a copy of the tracked files.
    """
    root = Path(__file__).parents[2]
    named = os.environ.get("LSTM_TRT_COMMIT") or None
    if named or not (root / ".git").exists():
        return named
    describe_commit = ["describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    with suppress(OSError):  # git is not installed
        return run_command(["git", "-C", str(root), *describe_commit]).stdout.strip() or None
    return None


def _caches(core: int, root: Path) -> dict[str, int]:
    """Bytes of each data cache that `core` reaches: {"L1d": 49152, "L2": 1048576}."""
    sizes = {}
    for index in range(8):
        folder = f"/sys/devices/system/cpu/cpu{core}/cache/index{index}"
        kind = read_text(f"{folder}/type", root)
        size = re.fullmatch(r"(\d+)K", read_text(f"{folder}/size", root) or "")
        if size and kind in ("Data", "Unified"):
            suffix = "d" if kind == "Data" else ""
            sizes[f"L{read_text(f'{folder}/level', root)}{suffix}"] = 1024 * int(size[1])
    return sizes


def turbo(root: Path = ROOT) -> bool | None:
    """Whether cores may run above their nominal clock; None if unknown."""
    no_turbo = read_int("/sys/devices/system/cpu/intel_pstate/no_turbo", root)
    boost = read_int("/sys/devices/system/cpu/cpufreq/boost", root)
    if no_turbo is not None:
        return no_turbo == 0
    return None if boost is None else boost == 1


def governors(cores: Sequence[int], root: Path = ROOT) -> str | None:
    """The frequency governor of the cores, several joined by commas."""
    names = {
        read_text(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor", root)
        for core in cores
    }
    return ", ".join(sorted(filter(None, names))) or None


def simultaneous_threads(root: Path = ROOT) -> bool | None:
    """Whether two logical cores share a physical one (SMT)."""
    active = read_int("/sys/devices/system/cpu/smt/active", root)
    if active is not None:
        return active == 1
    physical = linux.physical_cores(root)
    return None if physical is None else len(linux.online_cores(root)) > physical


def describe(device: str = "cpu", root: Path = ROOT) -> dict[str, Any]:
    """Description of the machine as JSON values; sizes in bytes, a quota in cores, core lists as
    "0-3,8".

    With `device="cuda"` also `gpus` (see `gpu.Nvml.describe`), `driver` and `cuda_driver`.
    """
    allowed = linux.allowed_cores()
    description: dict[str, Any] = {
        "cpu": cpu_name(root),
        "architecture": platform.machine(),
        "logical_cores": len(linux.online_cores(root)),
        "physical_cores": linux.physical_cores(root),
        "allowed_cores": linux.list_text(allowed),
        "smt": simultaneous_threads(root),
        "caches": _caches(allowed[-1], root),
        "memory_bytes": linux.memory_bytes("MemTotal", root),
        "hypervisor": linux.hypervisor(root),
        "governor": governors(allowed, root),
        "turbo": turbo(root),
        "isolated_cores": linux.list_text(linux.isolated_cores(root)),
        "nohz_full": linux.list_text(
            linux.cpu_list(read_text("/sys/devices/system/cpu/nohz_full", root))
        ),
        "cgroup_quota_cores": linux.cpu_quota_cores(root),
        "clock_source": read_text(f"{linux.CLOCK_SOURCE}/current_clocksource", root),
        "kernel": os.uname().release,
        "preemption": linux.preemption(root),
    }
    if device != "cpu":
        from lstm_trt.machine import gpu

        with gpu.Nvml() as session:
            description["gpus"] = [session.describe(handle) for handle in session.devices()]
            description |= session.versions()
        description["cuda_settings"] = gpu.settings()
    return description


def fingerprint(description: Mapping[str, Any]) -> str:
    """Hash of the properties that distinguish machines (CPU, logical cores, GPUs, driver): 16
    hexadecimal digits."""
    gpu_names = [described["name"] for described in description.get("gpus") or ()]
    parts = [
        description.get("cpu"),
        description.get("logical_cores"),
        gpu_names,
        description.get("driver"),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def clock_cost(samples: int = 20_000) -> dict[str, int]:
    """Cost and resolution of the clock that times trials, in ns.

    `overhead_ns` is the median difference of two successive calls of `perf_counter_ns`; `call_ns`
    that with a call of an empty Python function in between, which is the latency of an empty step;
    `step_ns` the smallest difference above zero; `resolution_ns` the result of clock_getres.
    """

    def step() -> None:
        pass

    clock = time.perf_counter_ns
    costs = []
    calls = []
    for _ in range(samples):
        before = clock()
        costs.append(clock() - before)
        before = clock()
        step()
        calls.append(clock() - before)
    return {
        "overhead_ns": sorted(costs)[samples // 2],
        "call_ns": sorted(calls)[samples // 2],
        "step_ns": min(filter(None, costs), default=0),
        "resolution_ns": round(time.clock_getres(time.CLOCK_MONOTONIC) * 1e9),
    }
