"""Steps that write down when they are made: `tests.support.traced_steps:any_name`, into the file of TESTS_TRACED."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path


def _make(name: str) -> Callable[[], object]:
    with open(os.environ["TESTS_TRACED"], "a") as file:
        file.write(f"{name} {os.getpid()} {os.environ.get('MALLOC_TRIM_THRESHOLD_', '-')}\n")
    return int


def __getattr__(name: str) -> Callable[[], object]:
    if name.startswith("_"):
        raise AttributeError(name)
    return partial(_make, name)


def made(trace: Path) -> list[list[str]]:
    """Name of the step, process and its threshold of freed memory, for each that was made."""
    return [line.split() for line in trace.read_text().splitlines()] if trace.exists() else []
