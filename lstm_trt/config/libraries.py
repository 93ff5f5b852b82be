"""Libraries that take long to import: each is imported when its first attribute is read.

So a command, and a process that records, loads those only that it uses. To a type checker they are
ordinary imports. The version of any library is known without importing it, and so is the command
that installs what is missing.

Two libraries send usage data unless they are told not to before they are imported, from threads
that then run on the cores on which calls are timed: ONNX Runtime (docs/Privacy.md of
microsoft/onnxruntime) and OpenVINO (the package openvino_telemetry). In our processes they are told
so here; a user who has chosen to send it has it sent.
"""

import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lstm_trt.config.errors import NotInstalled

#: The extra with what recording needs.
RECORDING = "record"

#: The libraries that only it installs.
OF_RECORDING = ("onnx", "onnxruntime", "torch")

#: Library -> its first version that sends usage data on Linux, in numbers.
SENDS_SINCE = {"onnxruntime": (1, 29), "openvino": (0,)}

#: ONNX Runtime reads it when it is imported: any of these values, or a variable such as CI, turns
#: its telemetry off.
ORT_VARIABLE = "ORT_DISABLE_TELEMETRY"
ORT_OFF = ("1", "true", "yes", "on", "y")

#: The module that sends OpenVINO's events; without it `openvino.tools.ovc` uses its own stub.
OPENVINO_MODULE = "openvino_telemetry"

#: Below the user's home: what `opt_in_out` of OpenVINO writes, "1" for a user who agrees.
OPENVINO_CONSENT = "intel/openvino_telemetry"


def turn_telemetry_off() -> None:
    """In a process of ours, before it imports a runtime: neither library sends anything, unless its
    user chose that."""
    os.environ.setdefault(ORT_VARIABLE, "1")
    try:
        consented = (Path.home() / OPENVINO_CONSENT).read_text().strip() == "1"
    except (OSError, RuntimeError, ValueError):  # no such file, no home
        consented = False
    if not consented:
        missing: Any = None  # importing it fails
        sys.modules.setdefault(OPENVINO_MODULE, missing)


def sends(library: str, version: str) -> bool:
    """Whether this version of a library sends usage data unless it is told not to."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return library in SENDS_SINCE and numbers >= SENDS_SINCE[library]


def telemetry() -> dict[str, str]:
    """ "on" or "off" for each library imported by this process that sends usage data unless it is
    told not to.

    ONNX Runtime also turns its own off where a variable such as CI is set; it is "on" here.
    """
    ort_off = os.environ.get(ORT_VARIABLE, "").strip().lower() in ORT_OFF
    off = {"onnxruntime": ort_off, "openvino": sys.modules.get(OPENVINO_MODULE) is None}
    found = {}
    for library, is_off in off.items():
        version = getattr(sys.modules.get(library), "__version__", "")
        if library in sys.modules and sends(library, version):
            found[library] = "off" if is_off else "on"
    return found


class _Library(ModuleType):
    """Stands for the module of its name; raises `NotInstalled` if it is of the extra `record` and
    missing."""

    def __getattr__(self, name: str) -> Any:
        module = sys.modules.get(self.__name__)
        if module is None:
            require(self.__name__)
            module = import_module(self.__name__)
        return getattr(module, name)


class _OnnxRuntime(_Library):
    """ONNX Runtime without telemetry; if the user's program has imported it with telemetry, that is
    said once."""

    _used = False

    def __getattr__(self, name: str) -> Any:
        if self.__name__ not in sys.modules:
            os.environ.setdefault(ORT_VARIABLE, "1")
        elif not self._used and ORT_VARIABLE not in os.environ and self.__name__ in telemetry():
            remedy = f"set {ORT_VARIABLE}=1 before it is imported"
            warnings.warn(
                f"onnxruntime was imported with its telemetry on: to turn it off, {remedy}",
                stacklevel=2,
            )
        self._used = True
        return super().__getattr__(name)


if TYPE_CHECKING:
    import numpy as np
    import onnx
    import onnxruntime
    import pandas as pd
    import psutil
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    from scipy import special
else:
    np = _Library("numpy")
    onnx = _Library("onnx")
    onnxruntime = _OnnxRuntime("onnxruntime")
    pa = _Library("pyarrow")
    pd = _Library("pandas")
    pq = _Library("pyarrow.parquet")
    psutil = _Library("psutil")
    special = _Library("scipy.special")
    torch = _Library("torch")

__all__ = ["np", "onnx", "onnxruntime", "pa", "pd", "pq", "psutil", "special", "torch"]

#: Versions of CUDA that names of packages end with.
CUDA_MAJORS = (12, 13)


def has_packages(folder: str) -> bool:
    """Whether a folder of the module path is one of installed packages."""
    return Path(folder).name in ("site-packages", "dist-packages")


def in_checkout() -> bool:
    """Whether this package runs from a checkout: it has the project's Makefile beside it."""
    return (Path(__file__).parents[2] / "Makefile").is_file()


def how_to_install(extra: str, target: str = "") -> str:
    """The command that installs an extra of this package: with pip, or in a checkout with a
    `target` of make."""
    if not in_checkout():
        return f"pip install 'lstm_trt[{extra}]'"
    return f"make {target}" if target else f"pip install -e '.[{extra}]'"


def require(*libraries: str) -> None:
    """Raise `NotInstalled` unless those of these libraries that the extra `record` has are there;
    imports none."""
    for name in libraries:
        if name in OF_RECORDING and find_spec(name) is None:
            raise NotInstalled(name, how_to_install(RECORDING))


def installed_version(distribution: str) -> str | None:
    """Version of an installed package without importing it, or None; its name can end with a CUDA
    version."""
    from importlib import metadata  # takes long itself

    for name in (distribution, *(f"{distribution}-cu{major}" for major in CUDA_MAJORS)):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None
