"""One line out of whatever a framework raises, while it builds or runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lstm_trt.errors import BuildFailed, LabError, MemoryExhausted, RunFailed, first_line

#: How the frameworks, CUDA and the system say it, in small letters.
_NO_MEMORY = (
    "out of memory",
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


def is_memory_error(error: BaseException | None) -> bool:
    """Whether memory is at the bottom of it, on the host or the device, however it was wrapped."""
    while error is not None:
        text = str(error).lower()
        if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False
