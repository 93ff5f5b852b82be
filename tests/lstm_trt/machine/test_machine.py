"""Facts, counters, GPU readings and host checks on simulated machines and on this one."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

import lstm_trt
from lstm_trt.machine import checks as machine_checks, counters, facts, gpu, linux, switches
from lstm_trt.machine.counters import COUNTERS, LARGEST_TABLE_BYTES, OTHERS, Watcher, difference

STAT = """cpu  100 0 50 1000 5 0 3 30 0 0
cpu0 60 0 20 500 5 0 1 10 0 0
cpu1 40 0 30 500 0 0 2 20 0 0
intr 5000 0 1 2 3
ctxt 7777
btime 1
"""
INTERRUPTS = """           CPU0       CPU1
 24:          1          5  IO-APIC   5-edge      ACPI:Ged
LOC:        100        200   Local timer interrupts
ERR:          9
MIS:          0
"""
SOFTIRQS = """                    CPU0       CPU1
          HI:          1          2
       TIMER:         10         40
"""
CPUINFO = """processor	: 0
model name	: Planted  CPU @ 3 GHz
cpu MHz		: 3000.500
flags		: fpu avx2 fma

processor	: 1
model name	: Planted  CPU @ 3 GHz
cpu MHz		: 2500.250
"""
MEMINFO = """MemTotal:       1024 kB
MemFree:         512 kB
MemAvailable:    768 kB
Buffers:           8 kB
Cached:           64 kB
"""


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def tree(tmp_path):
    return plant(
        tmp_path,
        {
            "/proc/stat": STAT,
            "/proc/interrupts": INTERRUPTS,
            "/proc/softirqs": SOFTIRQS,
            "/proc/cpuinfo": CPUINFO,
            "/sys/devices/system/cpu/online": "0-1\n",
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "3000500\n",
            "/sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "2500250\n",
        },
    )


TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


# --- readings on a simulated machine ---


def test_counters_of_the_pinned_cores(tree):
    with Watcher((1,), "cpu", root=tree) as watcher:
        reading = watcher.read()
    assert reading["steal_ns"] == 20 * TICK_NS
    assert reading["interrupts"] == 205
    assert reading["softirqs"] == 42
    assert reading["cpu_khz"] == 2500250
    assert reading["throttled_ns"] is None and reading["throttled_periods"] is None
    with Watcher((0, 1), "cpu", root=tree) as watcher:
        reading = watcher.read()
    assert (reading["steal_ns"], reading["interrupts"], reading["softirqs"]) == (30 * TICK_NS, 306, 53)
    assert reading["cpu_khz"] == 2500250


STAT_IDLE = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 0 0 0 {} {} 0 0 0 0 0\ncpu1 50 0 0 {} 0 0 0 5 0 0\n"


@pytest.mark.parametrize(
    ("idle", "own_s", "pinned_s", "all_s"),
    [
        ((0, 0, 0), 2.0, 0.0, 2.0),  # this process used all of core 1, others all of core 0
        ((150, 50, 0), 2.0, 0.0, 0.0),  # waiting for a disk is idle
        ((200, 0, 100), 0.5, 0.5, 0.5),  # half of what core 1 did was not this process
        ((200, 0, 0), 1.5, 0.5, 0.5),
    ],
)
def test_the_time_of_others_is_neither_idle_nor_own(tmp_path, monkeypatch, idle, own_s, pinned_s, all_s):
    """Within two seconds; idle time in hundredths of a second: of core 0, its wait for disks, of core 1."""
    clocks = {"monotonic_ns": 7_000_000_000, "process_time_ns": 3_000_000_000}
    for name in clocks:
        monkeypatch.setattr(time, name, lambda name=name: clocks[name])
    ticks = 10**7 // TICK_NS
    plant(tmp_path, {"/proc/stat": STAT_IDLE.format(1000, 500, 400)})
    with Watcher((1,), "cpu", root=tmp_path) as watcher:
        before = watcher.read()
        start = (1000, 500, 400)
        (tmp_path / "proc/stat").write_text(
            STAT_IDLE.format(*(first + ticks * more for first, more in zip(start, idle, strict=True)))
        )
        clocks["monotonic_ns"] += 2_000_000_000
        clocks["process_time_ns"] += int(1e9 * own_s)
        changed = difference(before, watcher.read())
    assert (changed["others_ns"], changed["others_total_ns"]) == (1e9 * pinned_s, 1e9 * all_s)
    found = counters.others([changed], 2_000_000_000, 1)
    assert found == {"pinned_cores_ns": 1e9 * pinned_s, "all_cores_ns": 1e9 * all_s, "alone": all_s == 0}


def test_short_disturbances_and_idle_ticks_do_not_count():
    def alone(pinned_ns, all_ns, wall_ns=10**9, cores=1):
        blocks = [{"others_ns": pinned_ns + 5, "others_total_ns": all_ns}, {"others_ns": -5, "others_total_ns": 0}]
        return counters.others(blocks, wall_ns, cores)["alone"]

    assert alone(-(10**7), -(10**7)) and alone(19_000_000, 19_000_000) and not alone(21_000_000, 21_000_000)
    assert alone(21_000_000, 21_000_000, cores=2)  # of twice the time
    assert not alone(19_000_000, 19_000_000 + 510_000_000) and alone(0, 490_000_000)
    assert counters.others([{"others_ns": None, "others_total_ns": None}], 10**9, 1) is None


def test_hyper_threads_share_a_core(tmp_path):
    for core, siblings in {0: "0,4", 4: "0,4", 1: "1,5"}.items():
        plant(tmp_path, {f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list": f"{siblings}\n"})
    assert linux.sibling_cores((4, 1), tmp_path) == (0, 1, 4, 5)
    assert linux.sibling_cores((2,), tmp_path) == (2,)


def test_what_is_not_counted_is_none(tmp_path):
    with Watcher((0,), "cuda", root=tmp_path) as watcher:
        reading = watcher.read()
        assert set(reading) == {*COUNTERS, *OTHERS, counters.BY_THREAD, "cpu_khz", *gpu.READINGS}
        # this machine may have a GPU, the simulated root has none
        assert all(value is None for name, value in reading.items() if not name.startswith("gpu_"))
    # a core without a row, rows of zeros as sandboxes print them, a core without a column
    plant(tmp_path, {"/proc/stat": "cpu 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\nintr 0\nctxt 0\n"})
    plant(tmp_path, {"/proc/interrupts": INTERRUPTS})
    for cores in ((0,), (7,)):
        with Watcher(cores, "cpu", root=tmp_path) as watcher:
            reading = watcher.read()
        assert reading["steal_ns"] is reading["others_ns"] is reading["others_total_ns"] is None
        assert reading["interrupts"] == (101 if cores == (0,) else None)


def test_a_table_too_large_to_read_quickly_is_left_out(tree):
    plant(tree, {"/proc/interrupts": INTERRUPTS + " 25: 1 1 x\n" * (LARGEST_TABLE_BYTES // 10)})
    with Watcher((1,), "cpu", root=tree) as watcher:
        reading = watcher.read()
    assert reading["interrupts"] is None and reading["softirqs"] == 42


def test_difference_of_counters_and_gauges():
    before = {"steal_ns": 5, "interrupts": None, "softirqs": 9, "throttled_ns": 1, "cpu_khz": 1}
    after = {"steal_ns": 7, "interrupts": 3, "softirqs": 8, "throttled_ns": None, "cpu_khz": 2, "runnable_ns": 4}
    assert difference(before, after) == {
        "steal_ns": 2,
        "interrupts": None,
        "softirqs": None,  # went backwards
        "throttled_ns": None,
        "cpu_khz": 2,
        "runnable_ns": None,
    }
    assert after["steal_ns"] == 7  # the readings are not changed


# --- cgroups ---


def cgroup_v1(root: Path, path: str, mount_root: str = "/") -> Path:
    return plant(
        root,
        {
            "/proc/self/cgroup": f"9:name=systemd:/x\n3:cpuset:/y\n2:cpu,cpuacct:{path}\n0::/z\n",
            "/proc/self/mountinfo": (
                f"32 31 0:29 {mount_root} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
                "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
            ),
        },
    )


def cgroup_v2(root: Path, path: str) -> Path:
    return plant(
        root,
        {
            "/proc/self/cgroup": f"0::{path}\n",
            "/proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
        },
    )


def reading_of(root: Path) -> tuple:
    with Watcher((0,), "cpu", root=root) as watcher:
        reading = watcher.read()
    return reading["throttled_ns"], reading["throttled_periods"]


V1, V2 = "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"
#: The cgroup, files below its mount, (throttled ns, stops), the quota in cores.
CGROUPS = {
    "v1, its own path": (
        *(cgroup_v1, ("/jobs/a",), V1),
        {
            "jobs/a/cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 123456\n",
            "jobs/a/cpu.cfs_quota_us": "150000\n",
            "jobs/a/cpu.cfs_period_us": "100000\n",
            "jobs/cpu.cfs_quota_us": "-1\n",
            "jobs/cpu.cfs_period_us": "100000\n",
        },
        *((123456, 4), 1.5),
    ),
    "v1, a container falls back to the mount point": (
        *(cgroup_v1, ("/docker/0123abc",), V1, {"cpu.stat": "nr_throttled 2\nthrottled_time 77\n"}, (77, 2), None),
    ),
    "v1, the mount shows a folder in which the process has another": (
        *(cgroup_v1, ("/docker/0123abc/inner", "/docker/0123abc"), V1),
        {
            "cpu.stat": "nr_throttled 2\nthrottled_time 77\n",
            "inner/cpu.stat": "nr_throttled 1\nthrottled_time 3\n",
        },
        *((80, 3), None),
    ),
    "v2, its own and its parent's": (
        *(cgroup_v2, ("/user.slice/session.scope",), V2),
        {
            "cpu.stat": "usage_usec 5\n",  # the root is never throttled
            "user.slice/cpu.stat": "usage_usec 5\nnr_periods 9\nnr_throttled 2\nthrottled_usec 1500\n",
            "user.slice/cpu.max": "50000 100000\n",
            "user.slice/session.scope/cpu.stat": "usage_usec 5\nnr_periods 0\nnr_throttled 1\nthrottled_usec 500\n",
            "user.slice/session.scope/cpu.max": "200000 100000\n",
        },
        *((2_000_000, 3), 0.5),
    ),
    "v2, above a namespace": (
        *(cgroup_v2, ("/../../other",), V2),
        {"cpu.max": "max 100000\n", "cpu.stat": "nr_throttled 0\nthrottled_usec 0\n"},
        *((0, 0), None),
    ),
}


@pytest.mark.parametrize("case", CGROUPS)
def test_a_cgroup_counts_its_own_and_its_parents_quota(tmp_path, case):
    make, where, mount, files, throttled, cores = CGROUPS[case]
    make(tmp_path, *where)
    plant(tmp_path / mount.lstrip("/"), files)
    assert reading_of(tmp_path) == throttled and linux.cpu_quota_cores(tmp_path) == cores
    check = machine_checks.cgroup_quota(tmp_path)
    assert check.verdict == ("attention" if cores else "good") and bool(check.remedy) == bool(cores)
    assert not cores or check.value == f"{cores} cores, {throttled[1]} stops so far"
    assert machine_checks.cgroup_quota(tmp_path / "nothing").verdict == "unknown"


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_available_memory_is_bounded_by_the_smallest_limit_along_the_own_cgroup(tmp_path, version):
    plant(tmp_path, {"/proc/meminfo": MEMINFO.replace("1024", "9999999").replace("768", "8388608")})
    assert linux.available_memory_bytes(tmp_path) == 2**33  # no cgroup, no limit
    if version == "v2":
        cgroup_v2(tmp_path, "/user.slice/jobs/one")
        mount, name, unlimited = "/sys/fs/cgroup", "memory.max", "max"
    else:
        plant(tmp_path, {"/proc/self/cgroup": "5:memory:/user.slice/jobs/one\n2:cpu,cpuacct:/elsewhere\n"})
        hierarchy = "36 31 0:33 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        plant(tmp_path, {"/proc/self/mountinfo": hierarchy})
        mount, name, unlimited = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", str(2**63 - 4096)
    # What is in use counts, except for the cache of files that the kernel gives back.
    use, cached = (
        ("memory.current", "inactive_file") if version == "v2" else ("memory.usage_in_bytes", "total_inactive_file")
    )
    own, parent = "user.slice/jobs/one", "user.slice"
    for file, text, available in (
        (f"other/{name}", "4096\n", 2**33),
        (name, f"{unlimited}\n", 2**33),
        (f"{own}/{name}", f"{2**31}\n", 2**31),
        (f"{parent}/{name}", f"{2**30}\n", 2**30),
        (f"{parent}/{use}", f"{2**29}\n", 2**29),
        (f"{parent}/memory.stat", f"anon 1\n{cached} {2**28}\n", 2**30 - 2**28),
        (f"{own}/{use}", f"{2**32}\n", 0),
    ):
        plant(tmp_path, {f"{mount}/{file}": text})
        assert linux.available_memory_bytes(tmp_path) == available, file


def test_throttling_between_two_readings(tmp_path):
    cgroup_v2(tmp_path, "/")
    stat = "nr_periods 9\nnr_throttled {}\nthrottled_usec {}\n"
    plant(tmp_path, {"/sys/fs/cgroup/cpu.stat": stat.format(2, 100)})
    with Watcher((0,), "cpu", root=tmp_path) as watcher:
        before = watcher.read()
        plant(tmp_path, {"/sys/fs/cgroup/cpu.stat": stat.format(5, 350)})
        changed = counters.difference(before, watcher.read())
    assert (changed["throttled_ns"], changed["throttled_periods"]) == (250_000, 3)


# --- this machine ---


def test_counters_of_this_machine_grow():
    core = linux.allowed_cores()[-1]
    with Watcher((core,), "cpu") as watcher:
        first = watcher.read()
        time.sleep(0.05)  # at least one timer interrupt, and a context switch away and back
        second = watcher.read()
        assert first.keys() == second.keys() == {*COUNTERS, *OTHERS, counters.BY_THREAD, "cpu_khz"}
    changed = difference(first, second)
    for name in COUNTERS:
        assert (first[name] is None) == (second[name] is None)
        if first[name] is not None:
            assert changed[name] is not None and changed[name] >= 0
    if first["interrupts"] is not None:
        assert changed["interrupts"] > 0
    json.dumps(first)


def test_reading_is_quick_and_leaks_no_file():
    handles = set(os.listdir("/proc/self/fd"))
    with Watcher((linux.allowed_cores()[-1],), "cpu") as watcher:
        costs = []
        for _ in range(100):
            start = time.perf_counter_ns()
            watcher.read()
            costs.append(time.perf_counter_ns() - start)
    # 0.1 ms on an idle guest with two cores; the bound only catches a reading of another order, at its fastest
    assert min(costs) < 10_000_000
    assert len(os.listdir("/proc/self/fd")) == len(handles)


def test_description_is_json_and_names_no_host_user_or_path():
    description = facts.describe("cuda")
    text = json.dumps({**description, **facts.versions(["numpy", "no-such-package"])}, allow_nan=False)
    for private in (socket.gethostname(), os.path.expanduser("~"), str(Path.cwd())):
        if len(private) > 1:
            assert not re.search(rf"(?<!\w){re.escape(private)}(?!\w)", text)
    assert description["cpu"] and description["logical_cores"] >= 1 and description["memory_bytes"] > 2**20
    assert isinstance(description["gpus"], list)
    assert facts.versions(["no-such-package"])["no-such-package"] is None
    assert "gpus" not in facts.describe("cpu")


def test_fingerprint_distinguishes_machines_and_nothing_else():
    description = facts.describe("cpu")
    print_ = facts.fingerprint(description)
    assert re.fullmatch("[0-9a-f]{16}", print_)
    assert facts.fingerprint(facts.describe("cpu")) == print_
    assert facts.fingerprint({**description, "kernel": "9.9", "governor": "x", "allowed_cores": "0"}) == print_
    card = {"name": "NVIDIA H200", "power_limit_mw": 700000}
    others = [{"cpu": "another"}, {"logical_cores": 4096}, {"gpus": [card]}, {"gpus": [card], "driver": "1.2"}]
    prints = {print_, *(facts.fingerprint({**description, **other}) for other in others)}
    assert len(prints) == 5
    # fingerprints in recordings must stay valid in later versions
    assert facts.fingerprint({"cpu": "AMD EPYC", "logical_cores": 2}) == "8a7baee2fa236f61"


def test_clock_cost_is_that_of_the_clock():
    cost = facts.clock_cost(2000)
    assert set(cost) == {"overhead_ns", "call_ns", "step_ns", "resolution_ns"}
    assert cost["step_ns"] > 0
    assert 0 <= cost["overhead_ns"] <= cost["call_ns"] < 1_000_000
    assert cost["resolution_ns"] >= 1


# --- descriptions of simulated machines ---


def test_description_of_a_planted_machine(tree):
    core = linux.allowed_cores()[-1]
    cpu = "/sys/devices/system/cpu"
    caches = [("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "2", "2048K")]
    for number, values in enumerate(caches):
        folder = f"{cpu}/cpu{core}/cache/index{number}"
        plant(tree / folder[1:], dict(zip(("type", "level", "size"), values, strict=True)))
    plant(
        tree,
        {
            f"{cpu}/cpu0/topology/thread_siblings_list": "0-1\n",
            f"{cpu}/cpu1/topology/thread_siblings_list": "0-1\n",
            f"{cpu}/isolated": "\n",
            f"{cpu}/nohz_full": "(null)\n",
            f"{cpu}/intel_pstate/no_turbo": "1\n",
            f"{cpu}/cpu{core}/cpufreq/scaling_governor": "powersave\n",
            "/proc/meminfo": MEMINFO,
            "/proc/version": "Linux version 6.1.0 (someone@build-host) (gcc 12) #1 SMP PREEMPT_RT Debian\n",
        },
    )
    description = facts.describe("cpu", tree)
    told = {"cpu": "Planted CPU @ 3 GHz", "logical_cores": 2, "physical_cores": 1, "smt": True, "turbo": False}
    told |= {"caches": {"L1d": 48 * 1024, "L2": 2 * 2**20}, "governor": "powersave", "memory_bytes": 2**20}
    told |= {"isolated_cores": "", "nohz_full": "", "hypervisor": "none", "preemption": "PREEMPT_RT"}
    assert description.items() >= told.items()
    assert "build-host" not in json.dumps(description)


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "Arm Neoverse-V2"),
        ("processor\t: 0\nCPU implementer\t: 0x61\nCPU part\t: 0x022\n", "implementer 0x61 part 0x022"),
        ("processor\t: 0\n\nModel\t: Raspberry Pi 5 Model B\n", "Raspberry Pi 5 Model B"),
    ],
)
def test_cpu_name_on_arm(tmp_path, cpuinfo, name):
    assert facts.cpu_name(plant(tmp_path, {"/proc/cpuinfo": cpuinfo})) == name


@pytest.mark.parametrize(
    ("version", "model"),
    [
        ("Linux version 6.18 #1 SMP PREEMPT_DYNAMIC @0", "PREEMPT_DYNAMIC"),
        ("Linux version 5.4 #1 SMP PREEMPT RT Tue", "PREEMPT_RT"),
        ("Linux version 5.4 #1 SMP PREEMPT Tue", "PREEMPT"),
        ("Linux version 4.4.0 #1 SMP Sun Jan 10", "none or voluntary"),
    ],
)
def test_preemption_models(tmp_path, version, model):
    assert linux.preemption(plant(tmp_path, {"/proc/version": version})) == model


@pytest.mark.parametrize(
    ("arguments", "modes", "model"),
    [
        ("quiet preempt=full", None, "PREEMPT_DYNAMIC (full)"),
        ("preempt=full preempt=none", None, "PREEMPT_DYNAMIC (full)"),
        ("nopreempt=full preempt preempt=", None, "PREEMPT_DYNAMIC"),
        ("preempt=full", "none (voluntary) full", "PREEMPT_DYNAMIC (voluntary)"),
        ("preempt=full", "none voluntary", "PREEMPT_DYNAMIC (full)"),
    ],
)
def test_the_mode_of_dynamic_preemption(tmp_path, arguments, modes, model):
    files = {"/proc/version": "Linux version 6.18 #1 SMP PREEMPT_DYNAMIC", "/proc/cmdline": arguments}
    if modes:
        files["/sys/kernel/debug/sched/preempt"] = modes
    assert linux.preemption(plant(tmp_path, files)) == model


def test_core_lists():
    assert linux.cpu_list("0-3,8\n") == (0, 1, 2, 3, 8)
    assert linux.cpu_list("") == linux.cpu_list(" (null)") == ()
    assert linux.cpu_list(None) is None and linux.cpu_list("what") is None
    assert linux.list_text((8, 0, 1, 2, 3)) == "0-3,8" and linux.list_text(()) == ""


# --- GPUs, through a planted pynvml ---


def planted_nvml(monkeypatch, bus=1, **functions):
    """NVML with two GPUs, of which CUDA calls the one on this PCI bus device 0."""
    library = types.SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByPciBusId=lambda address: {b"0000:01:00.0": 0, b"0000:02:00.0": 1}[address],
        nvmlDeviceGetName=lambda handle: ["NVIDIA A", "NVIDIA B"][handle],
        nvmlSystemGetDriverVersion=lambda: "580.65.06",
        nvmlSystemGetCudaDriverVersion=lambda: 13010,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=1 << 30, used=1 << 20),
        nvmlDeviceGetMigMode=lambda handle: [0, 0],
        nvmlDeviceGetClockInfo=lambda handle, kind: 1000 * kind + handle,
        nvmlDeviceGetTemperature=lambda handle, kind: 40 + handle,
        nvmlDeviceGetPowerUsage=lambda handle: 123456,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x44,
        **functions,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    device = gpu.CudaDevice(f"NVIDIA {'AB'[bus - 1]}", (9, 0), (13, 1), f"0000:0{bus}:00.0")
    monkeypatch.setattr(gpu, "cuda_device", lambda place=0: device)
    return library


def test_gpus_are_described_and_read(monkeypatch):
    library = planted_nvml(monkeypatch)
    description = facts.describe("cuda")
    assert description.items() >= {"driver": "580.65.06", "cuda_driver": "13.1"}.items()
    for name, card in zip(("NVIDIA A", "NVIDIA B"), description["gpus"], strict=True):
        assert card.items() >= {"name": name, "memory_bytes": 1 << 30, "persistence_mode": None}.items()
    assert gpu.device_here().name == "NVIDIA A"
    with Watcher((0,), "cuda") as watcher:
        reading, state = watcher.read(), watcher.gpu_state()
    assert json.dumps(state)
    told = {"name": "NVIDIA A", "driver": "580.65.06", "memory_used_bytes": 1 << 20, "mig_mode": False}
    told |= {"throttled_by": ["software power cap", "hardware thermal slowdown"], "persistence_mode": None}
    assert state.items() >= told.items()
    readings = {"gpu_sm_mhz": 1000, "gpu_memory_mhz": 2000, "gpu_temperature_c": 40, "gpu_power_mw": 123456}
    assert reading.items() >= readings.items() and state.items() >= readings.items()
    with Watcher((0,), "cpu") as watcher:
        assert watcher.gpu_state() is None
    # Drivers since 535 have another name for the reasons, and this one says how it is configured.
    library.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: 0x4
    library.nvmlDeviceGetPersistenceMode = lambda handle: 1
    with Watcher((0,), "cuda") as watcher:
        assert watcher.gpu_state().items() >= {"throttled_by": ["software power cap"], "persistence_mode": True}.items()


@pytest.mark.parametrize("package", ["planted_rt", "planted_rt_cu12", "planted_rt_cu13"])
def test_a_package_for_a_cuda_version_is_found_by_its_plain_name(tmp_path, monkeypatch, package):
    folder = tmp_path / f"{package}-11.4.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 11.4.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert facts.versions(["planted-rt", "planted"]).items() >= {"planted-rt": "11.4.0", "planted": None}.items()


def test_the_gpu_is_the_one_that_cuda_sees(monkeypatch):
    """NVML counts by PCI address, CUDA can begin with the fastest."""
    planted_nvml(monkeypatch, bus=2)
    assert gpu.device_here().name == "NVIDIA B"
    with Watcher((0,), "cuda") as watcher:
        assert watcher.read()["gpu_sm_mhz"] == 1001 and watcher.gpu_state()["name"] == "NVIDIA B"


def test_no_driver_no_gpus(monkeypatch):
    def refuse():
        raise RuntimeError("driver not loaded")

    planted_nvml(monkeypatch).nvmlInit = refuse
    assert gpu.device_here().name == "NVIDIA A"  # CUDA decides, as on Jetson
    with Watcher((0,), "cuda") as watcher:
        assert watcher.read()["gpu_sm_mhz"] is None
    assert facts.describe("cuda").items() >= {"driver": None, "cuda_driver": None}.items()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert facts.describe("cuda")["gpus"] == []
    assert gpu.throttle_reasons(None) == [] and gpu.throttle_reasons(0x1001) == ["gpu idle", "0x1000"]


@pytest.mark.gpu
def test_the_gpu_of_this_machine_answers():
    if gpu.device_here() is None:
        pytest.skip("no NVIDIA GPU")
    with Watcher((linux.allowed_cores()[-1],), "cuda") as watcher:
        reading = watcher.read()
    assert reading["gpu_sm_mhz"] > 0 and 0 < reading["gpu_temperature_c"] < 120


# --- the host's checks ---


LAST = linux.allowed_cores()[-1]
#: Check, files of a planted machine (in the folder of cores; `cpuN` is the last that this process may use), verdict,
#: a part of the remedy.
HOST_CHECKS = [
    ("governor", {"cpuN/cpufreq/scaling_governor": "performance"}, "good", ""),
    ("governor", {"cpuN/cpufreq/scaling_governor": "schedutil"}, "attention", "scaling_governor"),
    ("turbo", {"cpufreq/boost": "1"}, "attention", "echo 0 | sudo tee"),
    ("turbo", {"intel_pstate/no_turbo": "0"}, "attention", "echo 1 | sudo tee"),
    ("turbo", {"cpufreq/boost": "0"}, "good", ""),
    ("smt", {"smt/active": "1"}, "attention", "smt/control"),
    ("smt", {"smt/active": "0", "/proc/cpuinfo": "flags: fpu"}, "good", ""),
    ("smt", {"smt/active": "0", "/proc/cpuinfo": "flags: fpu hypervisor"}, "unknown", ""),
    ("isolated", {"isolated": "", "online": "0-7"}, "attention", "isolcpus=domain,managed_irq,7"),
    ("isolated", {"isolated": "", "online": "0"}, "attention", ""),
    ("isolated", {"isolated": f"{LAST}"}, "good", ""),
    ("isolated", {"isolated": "4094-4095"}, "attention", "taskset -c 4094-4095"),
    ("nohz_full", {"nohz_full": "(null)", "online": "0-3"}, "attention", "nohz_full=3"),
    ("nohz_full", {"nohz_full": "1-3"}, "good", ""),
    ("clock_source", {"CLOCK/current_clocksource": "tsc"}, "good", ""),
    (
        "clock_source",
        {"CLOCK/current_clocksource": "hpet", "CLOCK/available_clocksource": "tsc hpet acpi_pm"},
        "attention",
        "echo tsc",
    ),
    (
        "clock_source",
        {"CLOCK/current_clocksource": "kvm-clock", "CLOCK/available_clocksource": "kvm-clock"},
        "attention",
        "invtsc",
    ),
    ("preemption", {"/sys/kernel/realtime": "1"}, "good", ""),
    ("preemption", {"/proc/version": "Linux 6.1 #1 SMP PREEMPT_DYNAMIC x"}, "attention", "PREEMPT_RT"),
    (
        "idle_states",
        {
            "cpuN/cpuidle/state1/name": "C1",
            "cpuN/cpuidle/state1/latency": "2",
            "cpuN/cpuidle/state2/name": "C6",
            "cpuN/cpuidle/state2/latency": "170",
        },
        "attention",
        "cpupower idle-set -D 11",
    ),
    (
        "idle_states",
        {
            "cpuN/cpuidle/state1/name": "C1",
            "cpuN/cpuidle/state1/latency": "2",
            "cpuN/cpuidle/state2/latency": "170",
            "cpuN/cpuidle/state2/disable": "1",
        },
        "good",
        "",
    ),
    ("idle_states", {"cpuidle/current_driver": "haltpoll"}, "unknown", "idle=poll"),
    ("huge_pages", {"/sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never"}, "attention", "tee"),
    ("huge_pages", {"/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never"}, "good", ""),
]


@pytest.mark.parametrize(("check", "files", "verdict", "remedy"), HOST_CHECKS)
def test_host_checks(tmp_path, check, files, verdict, remedy):
    for name, text in files.items():
        path = name.replace("cpuN", f"cpu{LAST}").replace("CLOCK", "../clocksource/clocksource0")
        plant(tmp_path, {str(Path("/sys/devices/system/cpu") / path): f"{text}\n"})
    result = getattr(machine_checks, check)(tmp_path)
    assert result.verdict == verdict, result
    assert remedy in result.remedy and bool(remedy) == bool(result.remedy), result
    assert "\n" not in result.remedy


@pytest.mark.parametrize(
    ("missing", "ran_missing", "verdict", "remedy"),
    [
        ("perf_event_open: Permission denied", "perf_event_open: Permission denied", "attention", "paranoid=2"),
        (None, "perf_event_open: Permission denied", "attention", "paranoid=0"),
        (None, None, "good", ""),
    ],
)
def test_doctor_says_which_permission_adds_what(tmp_path, monkeypatch, missing, ran_missing, verdict, remedy):
    told = {"missing": missing, "ran_missing": ran_missing}
    monkeypatch.setattr(switches.Switches, "as_dict", lambda self: told)
    result = machine_checks.interrupted_calls(tmp_path)
    assert result.verdict == verdict and result.remedy.endswith(remedy)
    assert not remedy or "Permission denied" in result.meaning


def test_all_checks_work_on_an_empty_machine_and_on_this_one(tmp_path):
    for checks in (machine_checks.host_checks(tmp_path), machine_checks.host_checks()):
        assert len(checks) == len(machine_checks.CHECKS) == len({check.name for check in checks})
        for check in checks:
            assert check.verdict in machine_checks.VERDICTS and check.value and check.meaning
            assert check.verdict != "good" or not check.remedy

    @machine_checks.check("broken", checks=[])
    def broken(root):
        raise ValueError("odd file")

    assert broken(tmp_path) == machine_checks.Check("broken", "not readable", "unknown", "odd file")


def test_a_checkout_states_its_version_and_its_commit(tmp_path, monkeypatch):
    """As where the tracked files were copied: nothing is installed, and there is no .git."""
    monkeypatch.setattr(facts, "installed_version", lambda name: None)
    assert facts.versions(["lstm_trt", "numpy"])["lstm_trt"] == lstm_trt.__version__
    monkeypatch.delenv("LSTM_TRT_COMMIT", raising=False)
    folder = tmp_path / "lstm_trt" / "machine"
    folder.mkdir(parents=True)
    monkeypatch.setattr(facts, "__file__", str(folder / "facts.py"))

    def commit() -> str | None:
        facts.commit.cache_clear()
        return facts.commit()

    assert commit() is None
    monkeypatch.setenv("LSTM_TRT_COMMIT", "0123abc")
    assert commit() == "0123abc"
    monkeypatch.delenv("LSTM_TRT_COMMIT")
    if shutil.which("git"):
        git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
        for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
            subprocess.run([*git, *words], check=True)
        found = commit()
        assert re.fullmatch("[0-9a-f]{40}", found)
        (folder / "facts.py").write_text("changed")
        subprocess.run([*git, "add", "."], check=True)
        assert commit() == f"{found}-dirty"
    facts.commit.cache_clear()
