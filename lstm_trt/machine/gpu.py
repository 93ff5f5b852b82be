"""NVIDIA GPUs through NVML: what they are, and their clocks, temperature and power now. Read-only.

The package `nvidia-ml-py` (module pynvml) is optional: without it, or without a
driver, there are no GPUs and every reading is None. Nothing here changes a setting.
UUIDs, serial numbers and bus addresses are not passed on: recordings get published.
"""

from __future__ import annotations

import os
from collections.abc import Callable

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


def _ask(function: Callable | None, *arguments: object) -> object | None:
    """One query; None where this driver, card or version of pynvml does not answer it."""
    try:
        return function(*arguments) if function is not None else None
    except Exception:  # NVMLError has a class of its own for every code, and old versions raise TypeError
        return None


def _text(value: object) -> str | None:
    """Old versions of pynvml give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class Nvml:
    """An NVML session: `devices` holds the handles, empty without a GPU; used with `with`."""

    def __init__(self) -> None:
        self.library, self.devices = None, []

    def __enter__(self) -> Nvml:
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # not installed, no driver, or a driver that does not answer
            return self
        self.library = pynvml
        count = _ask(pynvml.nvmlDeviceGetCount) or 0
        handles = [_ask(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
        self.devices = [handle for handle in handles if handle is not None]
        return self

    def __exit__(self, *_: object) -> None:
        if self.library is not None:
            _ask(self.library.nvmlShutdown)
        self.library, self.devices = None, []

    def first(self) -> object | None:
        """The card that CUDA calls device 0: NVML itself does not heed CUDA_VISIBLE_DEVICES."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        if visible.isdigit():
            return self.devices[int(visible)] if int(visible) < len(self.devices) else None
        handle = self._ask("nvmlDeviceGetHandleByUUID", visible)
        return self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle

    def _ask(self, name: str, *arguments: object) -> object | None:
        return _ask(getattr(self.library, name, None), *arguments)

    def _constant(self, name: str) -> object | None:
        return getattr(self.library, name, None)

    def versions(self) -> dict[str, str | None]:
        """{"driver": "580.65.06", "cuda_driver": "13.0"}."""
        number = self._ask("nvmlSystemGetCudaDriverVersion")
        return {
            "driver": _text(self._ask("nvmlSystemGetDriverVersion")),
            "cuda_driver": None if number is None else f"{number // 1000}.{number % 1000 // 10}",
        }

    def describe(self, handle: object) -> dict[str, object]:
        """What one GPU is: JSON values, memory in bytes, clocks in MHz, power in mW."""
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        mig = self._ask("nvmlDeviceGetMigMode", handle)
        sm, mem = self._constant("NVML_CLOCK_SM"), self._constant("NVML_CLOCK_MEM")
        persistence = self._ask("nvmlDeviceGetPersistenceMode", handle)
        return {
            "name": _text(self._ask("nvmlDeviceGetName", handle)),
            "memory_bytes": None if memory is None else int(memory.total),
            "persistence_mode": None if persistence is None else bool(persistence),
            "mig_mode": None if mig is None else bool(mig[0]),
            "application_sm_mhz": self._ask("nvmlDeviceGetApplicationsClock", handle, sm),
            "application_memory_mhz": self._ask("nvmlDeviceGetApplicationsClock", handle, mem),
            "max_sm_mhz": self._ask("nvmlDeviceGetMaxClockInfo", handle, sm),
            "max_memory_mhz": self._ask("nvmlDeviceGetMaxClockInfo", handle, mem),
            "power_limit_mw": self._ask("nvmlDeviceGetPowerManagementLimit", handle),
        }

    def read(self, handle: object | None) -> dict[str, int | None]:
        """The readings of one GPU now, by the names of `READINGS`."""
        if handle is None:
            return dict.fromkeys(READINGS)
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # the name before driver 535
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        celsius = self._constant("NVML_TEMPERATURE_GPU")
        return {
            "gpu_sm_mhz": self._ask("nvmlDeviceGetClockInfo", handle, self._constant("NVML_CLOCK_SM")),
            "gpu_memory_mhz": self._ask("nvmlDeviceGetClockInfo", handle, self._constant("NVML_CLOCK_MEM")),
            "gpu_temperature_c": self._ask("nvmlDeviceGetTemperature", handle, celsius),
            "gpu_power_mw": self._ask("nvmlDeviceGetPowerUsage", handle),
            "gpu_throttle_reasons": reasons,
        }

    def state(self, handle: object) -> dict[str, object]:
        """One GPU at this moment: `describe`, `read`, the versions of the driver, `memory_used_bytes` by all
        processes, and the names of the throttle reasons. Takes milliseconds.
        """
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        readings = self.read(handle)
        return {
            **self.describe(handle),
            **self.versions(),
            "memory_used_bytes": None if memory is None else int(memory.used),
            **readings,
            "throttled_by": throttle_reasons(readings["gpu_throttle_reasons"]),
        }


def gpus() -> tuple[list[dict], dict[str, str | None]]:
    """Descriptions of all GPUs, and the versions of the driver; ([], Nones) without one."""
    with Nvml() as session:
        return [session.describe(handle) for handle in session.devices], session.versions()
