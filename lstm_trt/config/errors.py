"""What can go wrong, as exceptions that say what was wrong, where, and what to do.

The command line prints a `LabError` as one line on standard error and exits 2.
Anything else that escapes is a bug: it keeps its traceback and exits 70.

One line out of whatever a framework raises, while it builds or runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

STAGES = ("export", "build", "parity", "run", "memory", "time")


def first_line(error: BaseException) -> str:
    """The first line of an error's text, with the next where it ends in a colon; its kind where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


class LabError(Exception):
    """Base of every error that a user can cause or mend; its text is one line."""


class UsageError(LabError):
    """A name, size or path that the caller gave cannot be used."""


class UnknownConfiguration(UsageError):
    """What a newer version, or a package that is not installed here, has recorded: readers skip it with one line."""


class StoreError(LabError):
    """A recording could not be written or read."""


class RuntimeUnavailable(LabError):
    """A runtime cannot run here; `remedy` is the command or step that makes it ready."""

    def __init__(self, runtime: str, reason: str, remedy: str = ""):
        super().__init__(f"{runtime}: {reason}" + (f"; {remedy}" if remedy else ""))
        self.runtime, self.reason, self.remedy = runtime, reason, remedy


class ConfigurationFailed(LabError):
    """One configuration failed at a known `stage` (one of `STAGES`); a sweep goes on."""

    stage = "run"


class ExportFailed(ConfigurationFailed):
    """The network could not be written as ONNX, or what was written is wrong."""

    stage = "export"


class BuildFailed(ConfigurationFailed):
    """The runtime could not load, compile or build the network."""

    stage = "build"


class ParityFailed(ConfigurationFailed):
    """The runtime's answer disagrees with PyTorch in float32."""

    stage = "parity"


class RunFailed(ConfigurationFailed):
    """The timed loop broke off or failed its self-check."""

    stage = "run"


class MemoryExhausted(ConfigurationFailed):
    """Host or device memory did not suffice."""

    stage = "memory"


class TimeLimitReached(ConfigurationFailed):
    """The configuration took longer than its limit."""

    stage = "time"


#: How the frameworks, CUDA, TensorRT and the system say it, in small letters. Most raise their general error for want
#: of memory, and TensorRT only logs it, so that nothing but the text tells it apart.
_NO_MEMORY = (
    "out of memory",
    "outofmemory",
    "could not be allocated",
    "not enough memory",
    "allocate memory",
    "resource exhausted",
    "oom when allocating",
    "_status_alloc_failed",
)


@contextmanager
def building(name: str, what: str) -> Iterator[None]:
    """Turns whatever is raised inside into one line: `MemoryExhausted`, or `BuildFailed`.

    `name` is what builds, `what` the thing that is built; errors of this lab pass as they are.
    """
    try:
        yield
    except LabError:
        raise
    except Exception as error:  # every framework has its own
        if is_memory_error(error):
            raise MemoryExhausted(f"{name} has not the memory for {what}: {first_line(error)}") from error
        raise BuildFailed(f"{name} cannot build {what}: {first_line(error)}") from error


def run_failure(name: str, error: Exception) -> LabError:
    """What `name` raised while it ran, as one line: `MemoryExhausted` or `RunFailed`, to be raised."""
    return (MemoryExhausted if is_memory_error(error) else RunFailed)(f"{name}: {first_line(error)}")


def is_memory_message(text: str) -> bool:
    """Whether a message of a library says that memory did not suffice."""
    return any(pattern in text.lower() for pattern in _NO_MEMORY)


def is_memory_error(error: BaseException | None) -> bool:
    """Whether memory is at the bottom of it, on the host or the device, however it was wrapped."""
    while error is not None:
        if isinstance(error, MemoryError) or is_memory_message(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False
