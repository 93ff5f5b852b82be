"""The name of a network in C: that of its files and struct, which begins its functions'."""

import functools
import re
from importlib import resources

from lstm_onnx.c.reader import identifier
from lstm_trt.config.errors import UsageError

#: Before generated names that no program calls; no network has a name that begins with it.
OWN = "lstm_trt"

#: What follows the name of a network in names that are declared in its header.
SUFFIXES = ("init", "reset", "run", "run_n", "step", "prepare_next", "help", "stop", "weights")


@functools.cache
def _reserved() -> frozenset[str]:
    """Names that programs find elsewhere, in small letters, from `reserved.txt`.

    Keywords of C and C++, what the headers of the C library and of POSIX declare, the names of
    these headers and of those of C++ and other compilers (a file `math.h` of a network would hide
    the system's, on some systems `Math.h` too), files that Windows cannot have, and the types of
    `kernel.c`.
    """
    return frozenset(resources.files("lstm_onnx.c").joinpath("reserved.txt").read_text().split())


def is_free(name: str) -> bool:
    """Whether a network can have this name in programs in C and C++.

    A name in capitals could be that of a macro of `kernel.c`.
    """
    if (
        not re.fullmatch(r"[A-Za-z]\w*", name, flags=re.ASCII)
        or name.isupper()
        or name.startswith(OWN)
    ):
        return False
    declared = {f"{name}_{suffix}".lower() for suffix in SUFFIXES}
    return _reserved().isdisjoint({name.lower(), *declared})


def free_name(text: str) -> str:
    """A name for a network that is called `text`, which may be any text."""
    name = identifier(text)
    return name if is_free(name) else f"network_{name}"


def checked_name(name: str) -> str:
    """The name, if it can be that of a network; raises `UsageError` with one that can."""
    if is_free(name):
        return name
    why = (
        "C, C++ or their libraries have that name"
        if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)
        else "this is none"
    )
    raise UsageError(
        f"the name must be a C identifier with small letters that nothing else has, not {name!r}:"
        f" {why}; for example {free_name(name)}"
    )
