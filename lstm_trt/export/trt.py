"""TensorRT's two flavours behind one interface: import, messages, and the GPU that is here.

`tensorrt` builds and runs for the GPU of the machine; `tensorrt-rtx` (TensorRT for RTX)
also builds engines where there is no GPU. Their Python names are the same, so that one
file serves both. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from lstm_trt.config.errors import RuntimeUnavailable
from lstm_trt.machine.gpu import Nvml


@dataclass(frozen=True)
class Flavour:
    """Where one flavour comes from; `extra` is the extra of this package that installs it."""

    title: str
    module: str
    distribution: str
    extra: str


#: Our runtime's name -> its Python package.
FLAVOURS = {
    "tensorrt": Flavour("TensorRT", "tensorrt", "tensorrt", "tensorrt"),
    "tensorrt-rtx": Flavour("TensorRT for RTX", "tensorrt_rtx", "tensorrt-rtx", "rtx"),
}


#: The oldest messages are forgotten beyond these; a build of ten layers gives about 3000.
KEPT_MESSAGES = 20_000


def load_module(flavour: str) -> ModuleType:
    """The Python module of a flavour.

    Raises `RuntimeUnavailable` where it is not installed, or installed without its libraries: the wheels of
    `tensorrt` on PyPI are stubs that fetch them.
    """
    package = FLAVOURS[flavour]
    elsewhere = "see NVIDIA's installation guide, or use tensorrt-rtx, which is whole on PyPI"
    try:
        module = importlib.import_module(package.module)
    except ModuleNotFoundError as error:
        if error.name == package.module:
            remedy = f"pip install {package.distribution}"
            raise RuntimeUnavailable(flavour, "not installed", remedy) from None
        raise RuntimeUnavailable(flavour, f"installed without its part {error.name!r}", elsewhere) from None
    except (ImportError, OSError) as error:  # the bindings are there, a library that they load is not
        raise RuntimeUnavailable(flavour, f"its libraries are missing: {one_line(error)}", elsewhere) from None
    if not hasattr(module, "Builder"):
        reason = f"the module {package.module!r} has no Builder: a stub without the libraries"
        raise RuntimeUnavailable(flavour, reason, elsewhere)
    return module


_LOGGERS: dict[str, object] = {}


def logger(flavour: str):
    """The one logger of a flavour in this process: TensorRT uses only the first that it is given.

    Everything that uses TensorRT here has to pass this one. It prints nothing and keeps every
    message, most verbose included, as (severity, text) in `lines`. Messages are decoded by the
    bindings before they come here; what is not UTF-8 must be refused before (`onnx_checks.read`).
    """
    trt = load_module(flavour)
    if flavour not in _LOGGERS:

        class Messages(trt.ILogger):
            def __init__(self) -> None:
                trt.ILogger.__init__(self)
                self.lines: deque[tuple[str, str]] = deque(maxlen=KEPT_MESSAGES)

            def log(self, severity, msg: str) -> None:
                self.lines.append((severity.name, msg))

        _LOGGERS[flavour] = Messages()
    return _LOGGERS[flavour]


@contextmanager
def collected(flavour: str) -> Iterator[deque[tuple[str, str]]]:
    """The messages of what is done inside; those from before are forgotten."""
    lines = logger(flavour).lines
    lines.clear()
    yield lines


#: The severities of errors.
ERRORS = ("ERROR", "INTERNAL_ERROR")

#: TensorRT has no codes for what went wrong, only messages. These come after nearly every error on a machine
#: without a driver, and are never the cause of another one.
_NOISE = re.compile(r"catchCudaError|CUDA initialization failure|^--- |^ModelImporter\.cpp:\d+: (While parsing|---)")

#: Places in TensorRT's sources, which mean nothing to its users.
_SOURCE = re.compile(r"[;.]?\s*In \w+ at /\S+?:\d+\)?|^I\w+::\w+: |Error Code \d+: |\[\w+\.cpp:\d+: ~?\w+\]\s*")


def errors_of(lines: Iterable[tuple[str, str]]) -> str:
    """The first error among messages that says what was wrong, as one line; "" without one."""
    errors = [text for severity, text in lines if severity in ERRORS]
    causes = [text for text in errors if not _NOISE.search(text)] or errors
    return one_line(causes[0]) if causes else ""


def one_line(error: object, limit: int = 300) -> str:
    """An exception or message without line breaks and without places in TensorRT's sources."""
    text = " ".join(_SOURCE.sub("", " ".join(str(error).split())).split())
    text = text or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def gpu() -> dict | None:
    """The GPU that CUDA calls device 0: its name and `compute_capability`, "sm86"; None without one."""
    with Nvml() as session:
        handle = session.first()
        if handle is None:
            return None
        capability = session.ask("nvmlDeviceGetCudaComputeCapability", handle)
        name = session.describe(handle)["name"]
        return {"name": name, "compute_capability": capability and "sm{}{}".format(*capability)}
