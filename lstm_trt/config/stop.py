"""A stop that a signal asked for, also where its exception got lost.

Python raises the exception of a signal's handler wherever the program is. That may be in a library
that keeps it to itself: C code that asks whether an object has an attribute takes any exception for
"no". So a long wait looks here whether a stop was asked for.
"""

from typing import Any, NoReturn

#: The signals that asked for it.
asked: set[int] = set()


def stop(number: int, frame: Any) -> NoReturn:
    """Handler of the signals that end a command as Ctrl-C does."""
    asked.add(number)
    raise KeyboardInterrupt


def check() -> None:
    """Raise `KeyboardInterrupt` if a stop was asked for."""
    if asked:
        raise KeyboardInterrupt
