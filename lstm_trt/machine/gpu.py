"""NVIDIA GPUs through NVML: description, and current clocks, temperature and power. Read-only.

The package `nvidia-ml-py` (module pynvml) is optional: without it, or without a driver, there are no GPUs and every
reading is None. UUIDs, serial numbers and bus addresses are left out, since recordings are published.
"""

from __future__ import annotations

import os

READINGS = ("gpu_sm_mhz", "gpu_memory_mhz", "gpu_temperature_c", "gpu_power_mw", "gpu_throttle_reasons")


#: Bits of NVML's "clocks event reasons" (nvml.h, nvmlClocksEventReason*).
THROTTLE_REASONS = {
    0x001: "gpu idle",
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
    mask = mask or 0
    names = [name for bit, name in THROTTLE_REASONS.items() if mask & bit]
    rest = mask & ~sum(THROTTLE_REASONS)
    return names + ([hex(rest)] if rest else [])


def _text(value: object) -> str | None:
    """Text as str; old versions of pynvml return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class Nvml:
    """An NVML session: `devices` holds the handles, empty without a GPU; used with `with`."""

    def __init__(self) -> None:
        self.library, self.devices = None, []

    def __enter__(self) -> Nvml:
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # not installed, no driver, or a driver that does not respond
            return self
        self.library = pynvml
        handles = [
            self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(self.ask("nvmlDeviceGetCount") or 0)
        ]
        self.devices = [handle for handle in handles if handle is not None]
        return self

    def __exit__(self, *_: object) -> None:
        self.ask("nvmlShutdown")
        self.library, self.devices = None, []

    def first(self) -> object | None:
        """The GPU that is device 0 for CUDA; NVML itself ignores CUDA_VISIBLE_DEVICES."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        if visible.isdigit():
            return self.devices[int(visible)] if int(visible) < len(self.devices) else None
        handle = self.ask("nvmlDeviceGetHandleByUUID", visible)
        return self.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle

    def ask(self, name: str, *arguments: object) -> object | None:
        """Call an NVML function by its name; None if this driver, GPU or version of pynvml does not support it."""
        try:
            return getattr(self.library, name)(*arguments)
        except Exception:  # no such function; NVMLError has a class per code; old versions raise TypeError
            return None

    def _constant(self, name: str) -> object | None:
        return getattr(self.library, name, None)

    def versions(self) -> dict[str, str | None]:
        """{"driver": "580.65.06", "cuda_driver": "13.0"}."""
        number = self.ask("nvmlSystemGetCudaDriverVersion")
        return {
            "driver": _text(self.ask("nvmlSystemGetDriverVersion")),
            "cuda_driver": None if number is None else f"{number // 1000}.{number % 1000 // 10}",
        }

    def describe(self, handle: object) -> dict[str, object]:
        """Description of one GPU as JSON values; memory in bytes, clocks in MHz, power in mW."""
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        mig = self.ask("nvmlDeviceGetMigMode", handle)
        sm, mem = self._constant("NVML_CLOCK_SM"), self._constant("NVML_CLOCK_MEM")
        persistence = self.ask("nvmlDeviceGetPersistenceMode", handle)
        return {
            "name": _text(self.ask("nvmlDeviceGetName", handle)),
            "memory_bytes": None if memory is None else int(memory.total),
            "persistence_mode": None if persistence is None else bool(persistence),
            "mig_mode": None if mig is None else bool(mig[0]),
            "application_sm_mhz": self.ask("nvmlDeviceGetApplicationsClock", handle, sm),
            "application_memory_mhz": self.ask("nvmlDeviceGetApplicationsClock", handle, mem),
            "max_sm_mhz": self.ask("nvmlDeviceGetMaxClockInfo", handle, sm),
            "max_memory_mhz": self.ask("nvmlDeviceGetMaxClockInfo", handle, mem),
            "power_limit_mw": self.ask("nvmlDeviceGetPowerManagementLimit", handle),
        }

    def read(self, handle: object | None) -> dict[str, int | None]:
        """The current readings of one GPU, by the names of `READINGS`."""
        if handle is None:
            return dict.fromkeys(READINGS)
        reasons = self.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # the name before driver 535
            reasons = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        celsius = self._constant("NVML_TEMPERATURE_GPU")
        return {
            "gpu_sm_mhz": self.ask("nvmlDeviceGetClockInfo", handle, self._constant("NVML_CLOCK_SM")),
            "gpu_memory_mhz": self.ask("nvmlDeviceGetClockInfo", handle, self._constant("NVML_CLOCK_MEM")),
            "gpu_temperature_c": self.ask("nvmlDeviceGetTemperature", handle, celsius),
            "gpu_power_mw": self.ask("nvmlDeviceGetPowerUsage", handle),
            "gpu_throttle_reasons": reasons,
        }

    def state(self, handle: object) -> dict[str, object]:
        """Current state of one GPU: `describe`, `read`, the versions of the driver, `memory_used_bytes` by all
        processes, and the names of the throttle reasons. Takes milliseconds.
        """
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        readings = self.read(handle)
        return {
            **self.describe(handle),
            **self.versions(),
            "memory_used_bytes": None if memory is None else int(memory.used),
            **readings,
            "throttled_by": throttle_reasons(readings["gpu_throttle_reasons"]),
        }
