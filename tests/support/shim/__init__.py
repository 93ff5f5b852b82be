"""A stand-in for NVIDIA's driver (`cuda.c`), NVML (`nvml.c`) and the package tensorrt, built when tests run.

Device memory is host memory. What runs on it is real: cuda-bindings or PyCUDA, nvidia-ml-py, and this package. It shows
nothing about speed, or about a real driver, TensorRT, cuDNN, or the CUDA parts of PyTorch and ONNX Runtime.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from lstm_trt.machine.gpu import SHIM_VARIABLE

HERE = Path(__file__).resolve().parent

LIBRARIES = {"cuda.c": "libcuda.so.1", "nvml.c": "libnvidia-ml.so.1"}


def build(folder: Path, user: Path | None = None) -> None:
    """Compile the libraries into a folder; functions that only `user` names, a library to be loaded, return an error.

    PyCUDA names most functions of the driver, and the loader looks for all of them.
    """
    for source, library in LIBRARIES.items():
        names = ["-o", str(folder / library), f"-Wl,-soname,{library}", str(HERE / source)]
        command = ["gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", *names, "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        if user and source == "cuda.c":
            lacks = _symbols(user, "--undefined-only") - _symbols(folder / library, "--defined-only")
            subprocess.run([*command, *(f"-Wl,--defsym={name}=unsupported" for name in lacks)], check=True)


def _symbols(library: Path, which: str) -> set[str]:
    """The functions of the driver that a library names."""
    listed = subprocess.run(["nm", "-D", which, str(library)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listed.splitlines() if line.split()[-1].startswith("cu")}


def environment(folder: Path, layer: str) -> dict[str, str]:
    """The environment of a process that uses the libraries in a folder; each reports there what it has not freed.

    `layer`: what is to drive the device, pycuda or cuda-bindings.
    """
    paths = [str(HERE), str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")]  # kernels of notebooks start elsewhere
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "SHIM_REPORT": str(folder / "report"),
        "SHIM_LAYER": layer,
        SHIM_VARIABLE: "1",
    }


def left() -> list[dict]:
    """The reports of the processes that have ended since the last call and have not freed everything."""
    path = Path(os.environ["SHIM_REPORT"])
    lines = path.read_text().splitlines() if path.exists() else []
    path.write_text("")
    reports = [json.loads(line) for line in lines]
    return [report for report in reports if any(count for name, count in report.items() if name != "pid")]
