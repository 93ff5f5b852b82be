"""What pip installs on this machine for its GPU, by the CUDA version of the driver; for `make gpu`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # lstm_trt is not installed yet

from lstm_trt.machine.gpu import NO_GPU_REMEDY, NoCudaDevice, cuda_device

#: What pip installs for the newest CUDA version that a driver supports: packages of the extras, and headers for PyCUDA.
REQUIREMENTS = {
    12: {
        "tensorrt": ("tensorrt-cu12>=10.13,<12", "cuda-bindings>=12.9,<13"),
        "rtx": ("tensorrt-rtx-cu12>=1.7,<2", "cuda-bindings>=12.9,<13"),
        "headers": ("nvidia-cuda-runtime-cu12", "nvidia-cuda-profiler-api-cu12"),
    },
    13: {
        "tensorrt": ("tensorrt-cu13>=10.13,<12", "cuda-bindings>=13,<14"),
        "rtx": ("tensorrt-rtx-cu13>=1.7,<2", "cuda-bindings>=13,<14"),
        "headers": ("nvidia-cuda-runtime==13.*", "nvidia-cuda-profiler-api==13.*"),
    },
}


def requirements(purpose: str = "tensorrt") -> tuple[str, ...]:
    """The `REQUIREMENTS` for this machine's driver; raises `NoCudaDevice` without a driver or if it is too old."""
    found = cuda_device().cuda_version
    if found[0] < min(REQUIREMENTS):
        text = f"the driver supports CUDA {found[0]}.{found[1]}, but CUDA {min(REQUIREMENTS)} or newer is needed"
        raise NoCudaDevice(text, True)
    return REQUIREMENTS[min(found[0], max(REQUIREMENTS))][purpose]


if __name__ == "__main__":
    try:
        print(*requirements(*sys.argv[1:]))
    except NoCudaDevice as error:
        sys.exit(f"{error}; {NO_GPU_REMEDY}")
