"""NVIDIA GPUs: the device that CUDA uses, from the driver's library, and its state, from NVML.
Read-only.

`cuda_device` asks libcuda, which alone decides whether programs can run: NVML is missing on Jetson
and in some containers, and counts GPUs in another order. NVML gives description, clocks,
temperature and power. Its package `nvidia-ml-py` (module pynvml) is optional: without it, or
without a driver, every reading is None. UUIDs, serial numbers and bus addresses are not stored,
since recordings are published.
"""

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

from lstm_trt.config.libraries import in_checkout

#: Name of the device of the tests' stand-in for a driver, and the variable without which it is
#: refused, so that nobody records on it by accident.
SHIM_NAME = "NVIDIA Shim"
SHIM_VARIABLE = "LSTM_TRT_ALLOW_SHIM"

#: What to do without a GPU.
NO_GPU_REMEDY = (
    "on a machine with an NVIDIA GPU: install its driver; `nvidia-smi` must list the GPU"
)

#: Attributes of a device (cuda.h): major and minor number of its compute capability.
_CAPABILITY = (75, 76)


def old_driver_remedy() -> str:
    """What to do with a driver that is too old for the packages."""
    how = ": delete .venv and run make gpu" if in_checkout() else ""
    return f"install a newer NVIDIA driver, or packages for the CUDA version of this one{how}"


class NoCudaDevice(Exception):
    """CUDA has no device here; the text says why. `driver`: whether there is a driver."""

    def __init__(self, reason: str, driver: bool) -> None:
        super().__init__(reason)
        self.driver = driver


class CudaDevice(NamedTuple):
    """A device as CUDA numbers them; `cuda_version` is the newest CUDA that the driver supports:
    (13, 0)."""

    name: str
    compute_capability: tuple[int, int]
    cuda_version: tuple[int, int]
    pci_bus_id: str

    def as_dict(self) -> dict[str, str]:
        """What an engine depends on, as JSON values: its name and `compute_capability`, "sm86"."""
        return {"name": self.name, "compute_capability": "sm{}{}".format(*self.compute_capability)}


def libcuda() -> ctypes.CDLL:
    """The driver's library; raises OSError without a driver."""
    return ctypes.CDLL("libcuda.so.1")


def cuda_device(place: int = 0) -> CudaDevice:
    """A device of CUDA; raises `NoCudaDevice` without a driver or such a device. Creates no
    context."""
    try:
        library = libcuda()
    except OSError:
        raise NoCudaDevice("no GPU driver", False) from None

    def call(name: str, *arguments: Any) -> None:
        status = getattr(library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            library.cuGetErrorString(status, ctypes.byref(text))
            raise NoCudaDevice(text.value.decode() if text.value else f"error {status}", True)

    def number(name: str, *arguments: int) -> int:
        value = ctypes.c_int()
        call(name, ctypes.byref(value), *arguments)
        return value.value

    def text(name: str, device: int) -> str:
        buffer = ctypes.create_string_buffer(256)
        call(name, buffer, len(buffer), device)
        return buffer.value.decode()

    call("cuInit", 0)
    device = number("cuDeviceGet", place)
    version = number("cuDriverGetVersion")
    name = text("cuDeviceGetName", device)
    address = text("cuDeviceGetPCIBusId", device)
    if name.startswith(SHIM_NAME) and not os.environ.get(SHIM_VARIABLE):
        raise NoCudaDevice(f"{name} is the tests' stand-in for a driver", True)
    major, minor = (number("cuDeviceGetAttribute", attribute, device) for attribute in _CAPABILITY)
    return CudaDevice(name, (major, minor), (version // 1000, version % 1000 // 10), address)


def device_here(place: int = 0) -> CudaDevice | None:
    """A device of CUDA; None without a driver or such a device."""
    with suppress(NoCudaDevice):
        return cuda_device(place)
    return None


#: Name of a reading -> the function of NVML that gives it, and the name of the constant that says
#: which.
READINGS = {
    "gpu_sm_mhz": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
    "gpu_memory_mhz": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
    "gpu_temperature_c": ("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    "gpu_power_mw": ("nvmlDeviceGetPowerUsage",),
    "gpu_throttle_reasons": ("nvmlDeviceGetCurrentClocksEventReasons",),
}

#: Bits of NVML's "clocks event reasons" (nvml.h, nvmlClocksEventReason*).
IDLE = 0x001
THROTTLE_REASONS = {
    IDLE: "gpu idle",
    0x002: "application clocks setting",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clock setting",
}


def throttle_reasons(mask: int | None) -> list[str]:
    """Names of the bits of `gpu_throttle_reasons`; a bit without a name is given in hexadecimal."""
    if mask is None:
        return []
    names = [name for bit, name in THROTTLE_REASONS.items() if mask & bit]
    rest = mask & ~sum(THROTTLE_REASONS)
    return [*names, hex(rest)] if rest else names


#: Variables that change how CUDA runs, and whose values name no folder or device.
VARIABLES = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "NVIDIA_TF32_OVERRIDE",
)


def settings() -> dict[str, str]:
    """The environment variables that change how CUDA runs; `set` stands for folders and UUIDs."""
    found = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"):
        text = os.environ.get(name)
        if text is not None:
            found[name] = text if text.replace(",", "").isdecimal() else "set"
    return found


def visible(index: int) -> str:
    """`CUDA_VISIBLE_DEVICES` for a process that uses only the device with this index of this
    process."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(index) if listed is None else listed.split(",")[index].strip()


#: SM clocks that differ by at most this share count as one clock.
CLOCK_CHANGE = 0.02


def is_steady(clocks: Sequence[int]) -> bool:
    """Whether SM clocks in MHz, at least one, are the same to `CLOCK_CHANGE`."""
    return max(clocks) - min(clocks) <= CLOCK_CHANGE * max(clocks)


def clock_warnings(readings: Iterable[Mapping | None]) -> list[str]:
    """A warning if the SM clock differed between these readings: before, between and after blocks
    of trials."""
    clocks = [
        reading["gpu_sm_mhz"] for reading in readings if reading and reading.get("gpu_sm_mhz")
    ]
    if not clocks or is_steady(clocks):
        return []
    lowest = min(clocks)
    highest = max(clocks)
    text = f"the GPU's SM clock changed between {lowest} and {highest} MHz during the trials"
    lock = lock_advice(highest)
    return [f"{text}: lock it with {lock}" if lock else text]


def lock_advice(clock_mhz: int) -> str:
    """The command that locks the SM clock; empty if `LSTM_TRT_CLOCKS=fixed` says that locking it is
    not ours to do."""
    if os.environ.get("LSTM_TRT_CLOCKS") == "fixed":
        return ""
    return f"sudo nvidia-smi --lock-gpu-clocks={clock_mhz}"


class Nvml:
    """An NVML session, used with `with`; without NVML each answer is None."""

    library: Any = None

    def __enter__(self) -> Self:
        with suppress(Exception):  # not installed, no driver, or a driver that does not respond
            import pynvml

            pynvml.nvmlInit()
            self.library = pynvml
        return self

    def __exit__(self, *_: Any) -> None:
        self.ask("nvmlShutdown")
        self.library = None

    def devices(self) -> list[Any]:
        """The handles of all GPUs; empty without one."""
        indices = range(self.ask("nvmlDeviceGetCount") or 0)
        handles = (self.ask("nvmlDeviceGetHandleByIndex", index) for index in indices)
        return [handle for handle in handles if handle is not None]

    def device(self, place: int = 0) -> Any | None:
        """The GPU that is device `place` for CUDA, which can number them in another order and hide
        some."""
        found = device_here(place)
        if found is None:
            return None
        return self.ask("nvmlDeviceGetHandleByPciBusId", found.pci_bus_id.encode())

    def one_process_only(self, place: int) -> bool:
        """Whether a GPU is in the compute mode EXCLUSIVE_PROCESS (nvml.h), in which a second
        process fails."""
        return self.ask("nvmlDeviceGetComputeMode", self.device(place)) == 3

    def ask(
        self, name: str, *arguments: Any, convert: Callable[[Any], Any] = lambda answer: answer
    ) -> Any | None:
        """Call an NVML function by its name, with a handle and with constants by their names.

        None if this driver, GPU or version of pynvml does not support it, or there is no handle.
        """
        if None in arguments:
            return None
        try:
            values = [
                getattr(self.library, value) if isinstance(value, str) else value
                for value in arguments
            ]
            return convert(getattr(self.library, name)(*values))
        # No such function; NVMLError has a class per code; old versions raise TypeError.
        except Exception:
            return None

    def versions(self) -> dict[str, str | None]:
        """{"driver": "580.65.06", "cuda_driver": "13.0"}."""
        number = self.ask("nvmlSystemGetCudaDriverVersion")
        return {
            "driver": self.ask("nvmlSystemGetDriverVersion"),
            "cuda_driver": None if number is None else f"{number // 1000}.{number % 1000 // 10}",
        }

    def describe(self, handle: Any) -> dict[str, Any]:
        """Description of one GPU as JSON values; memory in bytes, clocks in MHz, power in mW."""
        return {
            "name": self.ask("nvmlDeviceGetName", handle),
            "memory_bytes": self.ask(
                "nvmlDeviceGetMemoryInfo", handle, convert=lambda memory: int(memory.total)
            ),
            "persistence_mode": self.ask("nvmlDeviceGetPersistenceMode", handle, convert=bool),
            "mig_mode": self.ask(
                "nvmlDeviceGetMigMode", handle, convert=lambda modes: bool(modes[0])
            ),
            "application_sm_mhz": self.ask(
                "nvmlDeviceGetApplicationsClock", handle, "NVML_CLOCK_SM"
            ),
            "application_memory_mhz": self.ask(
                "nvmlDeviceGetApplicationsClock", handle, "NVML_CLOCK_MEM"
            ),
            "max_sm_mhz": self.ask("nvmlDeviceGetMaxClockInfo", handle, "NVML_CLOCK_SM"),
            "max_memory_mhz": self.ask("nvmlDeviceGetMaxClockInfo", handle, "NVML_CLOCK_MEM"),
            "power_limit_mw": self.ask("nvmlDeviceGetPowerManagementLimit", handle),
        }

    def read(self, handle: Any | None) -> dict[str, int | None]:
        """The current readings of one GPU, by the names of `READINGS`."""
        found = {
            name: self.ask(function, handle, *constant)
            for name, (function, *constant) in READINGS.items()
        }
        if found["gpu_throttle_reasons"] is None:  # the name before driver 535
            found["gpu_throttle_reasons"] = self.ask(
                "nvmlDeviceGetCurrentClocksThrottleReasons", handle
            )
        return found

    def state(self, handle: Any) -> dict[str, Any]:
        """Current state of one GPU: `describe`, `read`, the versions of the driver,
        `memory_used_bytes` by all processes, and the names of the throttle reasons. Takes
        milliseconds.
        """
        readings = self.read(handle)
        return {
            **self.describe(handle),
            **self.versions(),
            "memory_used_bytes": self.ask(
                "nvmlDeviceGetMemoryInfo", handle, convert=lambda memory: int(memory.used)
            ),
            **readings,
            "throttled_by": throttle_reasons(readings["gpu_throttle_reasons"]),
        }
