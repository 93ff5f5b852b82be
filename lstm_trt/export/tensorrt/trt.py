"""Common interface of both TensorRT flavours: import, messages, and the GPU of this machine.

`tensorrt` builds and runs engines for the GPU of the machine; `tensorrt-rtx` (TensorRT for RTX)
also builds engines without a GPU. Both have the same Python names. Their modules are imported when
they are first used.
"""

import importlib
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from lstm_trt.config.errors import RuntimeUnavailable, one_line
from lstm_trt.config.libraries import CUDA_MAJORS, how_to_install, installed_version
from lstm_trt.machine import gpu as machine_gpu


@dataclass(frozen=True)
class Flavour:
    """Names of one flavour; `extra` of this package, or in a checkout a `target` of make, installs
    it."""

    title: str
    module: str
    distribution: str
    extra: str
    target: str = ""

    @property
    def remedy(self) -> str:
        """The command that installs it."""
        return how_to_install(self.extra, self.target)


#: Name of the runtime -> its Python package.
FLAVOURS = {
    "tensorrt": Flavour("TensorRT", "tensorrt", "tensorrt", "tensorrt", "gpu"),
    "tensorrt-rtx": Flavour("TensorRT for RTX", "tensorrt_rtx", "tensorrt-rtx", "rtx"),
}


#: Number of latest messages that are kept; a build of ten layers gives about 3000.
KEPT_MESSAGES = 20_000


def load_module(flavour: str) -> ModuleType:
    """The Python module of a flavour.

    Raises `RuntimeUnavailable` if it is not installed, or installed without its libraries: the
    wheels of `tensorrt` on PyPI are stubs that download them.
    """
    package = FLAVOURS[flavour]
    try:
        module = importlib.import_module(package.module)
    except ModuleNotFoundError as error:
        if error.name == package.module:
            raise RuntimeUnavailable(flavour, "not installed", package.remedy) from None
        reason = f"incomplete installation without module {error.name!r}"
    except (ImportError, OSError) as error:  # a library that the bindings load is missing
        reason = f"its libraries are missing: {one_line(error)}"
    else:
        if hasattr(module, "Builder"):
            return module
        reason = f"the module {package.module!r} has no Builder: a stub without the libraries"
    elsewhere = (
        "see NVIDIA's installation guide, or use tensorrt-rtx, which PyPI has with its libraries"
    )
    raise RuntimeUnavailable(flavour, reason, elsewhere)


@cache
def logger(flavour: str) -> Any:
    """The only logger of a flavour in this process, since TensorRT uses only the first logger that
    it is given.

    All code that uses TensorRT must pass this one. It prints nothing and keeps all messages,
    including the most verbose ones, as (severity, text) in `lines`. The bindings decode messages
    before they reach the logger, so that names that are not UTF-8 must be rejected earlier
    (`onnx_checks.read`).
    """
    trt: Any = load_module(flavour)

    class Messages(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.lines: deque[tuple[str, str]] = deque(maxlen=KEPT_MESSAGES)

        def log(self, severity, msg: str) -> None:
            self.lines.append((severity.name, msg))

    return Messages()


def collected(flavour: str) -> deque[tuple[str, str]]:
    """The messages that are logged from now on; earlier ones are discarded."""
    lines = logger(flavour).lines
    lines.clear()
    return lines


#: The severities of errors.
ERRORS = ("ERROR", "INTERNAL_ERROR")

#: TensorRT has only messages for errors, no codes. These follow nearly every error on a machine
#: without a driver. They are the cause only if there is no other message.
_NOISE = re.compile(
    r"^--- |^ModelImporter\.cpp:\d+: (While parsing|---)|catchCudaError|CUDA initialization failure"
)


def errors_of(lines: Iterable[tuple[str, str]]) -> str:
    """The first meaningful error among messages, as one line; "" without one."""
    errors = [text for severity, text in lines if severity in ERRORS]
    causes = [text for text in errors if not _NOISE.search(text)]
    causes = causes or [text for text in errors if "CUDA initialization failure" in text] or errors
    return one_line(causes[0]) if causes else ""


def cuda_major(flavour: str) -> int | None:
    """The CUDA version that an installed flavour was made for, 12 or 13, from the names of its
    packages."""
    name = FLAVOURS[flavour].distribution
    return next((major for major in CUDA_MAJORS if installed_version(f"{name}-cu{major}")), None)


#: Message of the bindings where TensorRT returned null instead of an object.
_NULL = "factory function returned nullptr"


@contextmanager
def starting(flavour: str) -> Iterator[None]:
    """Make a `Builder` or `Runtime` in the `with` block; raises `RuntimeUnavailable` if TensorRT
    refuses.

    It refuses without a GPU or with a driver that is too old, by returning null, which the bindings
    turn into a TypeError without a reason. The reason is in the messages since `collected`.
    """
    try:
        yield
    except TypeError as error:
        if _NULL not in str(error):
            raise
        reason = errors_of(logger(flavour).lines) or "no reason given"
        raise RuntimeUnavailable(
            flavour, f"TensorRT cannot start: {reason}", machine_gpu.old_driver_remedy()
        ) from None
