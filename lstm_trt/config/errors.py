"""Exceptions, and one-line messages from the errors of frameworks.

The command line prints a `LabError` as one line on standard error and exits with its `exit_status`.
Any other exception is a bug: its traceback is printed and the exit status is 70.
"""

import math
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from numbers import Real
from traceback import walk_tb
from typing import Any

STAGES = ("export", "build", "parity", "run", "memory", "time")


#: Locations in the source code of TensorRT, which do not help its users.
_SOURCE = re.compile(
    r"[;.]?\s*In \w+ at /\S+?:\d+\)?|^I\w+::\w+: |Error Code \d+: |\[\w+\.cpp:\d+: ~?\w+\]\s*"
)


def one_line(error: object) -> str:
    """An exception or message without line breaks and without locations in the source code of
    TensorRT."""
    text = " ".join(_SOURCE.sub("", " ".join(str(error).split())).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def first_line(error: BaseException) -> str:
    """First line of an error's text, with the second if the first ends in a colon; the class name
    if empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def last_line(text: str) -> str:
    """The last line of what a program printed, after ": ", at most 300 characters; empty without
    any."""
    lines = text.strip().splitlines()
    return f": {lines[-1].strip()[:300]}" if lines else ""


def printable(text: str) -> str:
    """The text with control characters as escapes such as `\\x1b`."""
    if text.isprintable():
        return text
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)


class LabError(Exception):
    """Base of all errors that a user can cause or fix; the text is one line.

    `exit_status` is 2 for an error in the input, 1 for valid input that could not be carried out.
    """

    exit_status = 2

    def __str__(self) -> str:
        """The text, with control characters as escapes: names in damaged files may contain them."""
        return printable(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback: one line, which begins with the line of the
        cell."""
        frames = walk_tb(self.__traceback__)
        own = [line for frame, line in frames if frame.f_globals.get("__name__") == "__main__"]
        place = f"line {own[0]}: " if own else ""
        return [f"{place}{type(self).__name__}: {self}"]


class UsageError(LabError):
    """An argument, such as a name, size or path, is invalid."""


class UnsupportedPrecision(UsageError):
    """A runtime does not support a precision on a device."""


class UnknownConfiguration(UsageError):
    """Recorded by a newer version, or with a package that is not installed; readers skip it with a
    warning."""


class StoreError(LabError):
    """A recording could not be written or read."""


class NotReadable(StoreError):
    """The system does not let a file be read now: no permission, a failing disk, too many open
    files.

    So nothing is known of its content, which may well be whole.
    """


def nearest(name: object, names: Iterable[object]) -> str:
    """The one of `names` that is most like a mistyped name, as ` (did you mean 'fp16'?)`; empty if
    none is like it."""
    from difflib import get_close_matches  # slow to import, and only needed for mistakes

    found = get_close_matches(str(name), map(str, names), 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def one_of(what: str, value: Any, known: Collection[Any]) -> Any:
    """The value; raises `UsageError` unless it is one of the `known` ones."""
    if value not in known:
        choices = ", ".join(map(str, known))
        raise UsageError(f"unknown {what} {value!r}{nearest(value, known)}: choose from {choices}")
    return value


def check_number(must: str, value: Any, fits: Callable[[Any], bool]) -> None:
    """Raise `UsageError` with `must` ("the effect must be ...") unless it is a finite number that
    `fits`."""
    if not (isinstance(value, Real) and math.isfinite(value) and fits(value)):
        shown = f"{value:g}" if isinstance(value, Real) else repr(value)
        raise UsageError(f"{must}, not {shown}")


@contextmanager
def refused(
    what: str, *causes: type[Exception], hint: str = "", kind: type[LabError] = UsageError
) -> Generator[None]:
    """Turn errors of the classes `causes` raised inside into `kind`: `what` ("a.npy is not an
    array"), reason, hint."""
    try:
        yield
    except causes as error:
        if isinstance(error, MemoryError):  # Arrow's is one of its other errors, too
            raise
        reason = getattr(error, "strerror", None) or first_line(error)
        raise kind(f"{what}: {reason}{hint}") from None


def file_errors(
    what: str, hint: str = "", kind: type[LabError] = UsageError
) -> AbstractContextManager[None]:
    """Turn an `OSError` raised inside into `kind`: cannot `what` (such as "read data/a.csv"), the
    reason, the hint."""
    return refused(f"cannot {what}", OSError, hint=hint, kind=kind)


@contextmanager
def any_error(
    kind: type[LabError], what: str, text: Callable[..., str] = first_line
) -> Generator[None]:
    """Turn any exception raised inside into `kind`: `what`, and its `text`. A `LabError` is passed
    on unchanged."""
    try:
        yield
    except LabError:
        raise
    except Exception as error:  # every library has its own classes
        raise kind(f"{what}: {text(error)}") from error


class RuntimeUnavailable(LabError):
    """A runtime cannot run on this machine; `remedy` is what the user can do about it."""

    def __init__(self, runtime: str, reason: str, remedy: str = ""):
        super().__init__(f"{runtime}: {reason}" + (f"; {remedy}" if remedy else ""))
        self.reason = reason
        self.remedy = remedy


class NotInstalled(LabError):
    """A library is missing that the plain package does not bring; `remedy` is the command that
    installs it."""

    def __init__(self, library: str, remedy: str):
        super().__init__(f"{library} is not installed; install it with {remedy}")
        self.reason = f"{library} is not installed"
        self.remedy = remedy


class ConfigurationFailed(LabError):
    """One configuration failed at `stage` (one of `STAGES`); a sweep continues with the next.

    `invalid`: its protocol cannot be carried out with this network. `detail`: all that a library or
    a traceback says.
    """

    stage = "run"
    invalid = False
    detail = ""


class ExportFailed(ConfigurationFailed):
    """The network could not be exported to ONNX, or the exported model is wrong."""

    stage = "export"


class BuildFailed(ConfigurationFailed):
    """The runtime could not load, compile or build the network."""

    stage = "build"


class ParityFailed(ConfigurationFailed):
    """The runtime's output differs from that of PyTorch in float32."""

    stage = "parity"


class RunFailed(ConfigurationFailed):
    """The timed loop was interrupted or failed its self-check."""


class MemoryExhausted(ConfigurationFailed):
    """Not enough host or device memory."""

    stage = "memory"
    exit_status = 1


class TimeLimitReached(ConfigurationFailed):
    """The configuration exceeded its time limit."""

    stage = "time"


#: How frameworks, CUDA, TensorRT and the system report that memory ran out, in lower case. Most
#: raise a general error and TensorRT only logs it, so the text is the only way to recognize it.
_NO_MEMORY = re.compile(
    "out ?of ?memory|could not be allocated|not enough memory|allocate memory|resource exhausted"
    "|oom when allocating|_status_alloc_failed"
)


@contextmanager
def building(name: str, what: str) -> Generator[None]:
    """Turn any exception raised inside into a one-line `MemoryExhausted` or `BuildFailed`.

    `name` is the framework, `what` is what it builds. A `LabError` is passed on unchanged.
    """
    try:
        yield
    except LabError:
        raise
    except Exception as error:
        reason = first_line(error)
        if is_memory_error(error):
            raise MemoryExhausted(f"{name} ran out of memory for {what}: {reason}") from error
        raise BuildFailed(f"{name} cannot build {what}: {reason}") from error


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, its cause, the cause of that, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_memory_message(text: str) -> bool:
    """Whether a library's message reports that memory ran out.

    glibc's "cannot allocate memory in static TLS block" does not: a library was loaded too late.
    """
    text = text.lower()
    return "static tls" not in text and _NO_MEMORY.search(text) is not None


def is_memory_error(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, reports that host or device memory ran out."""
    return any(
        isinstance(each, MemoryError) or is_memory_message(str(each)) for each in causes(error)
    )
