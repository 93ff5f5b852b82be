"""The packages of this project: tests that name packages or folders take them from here. And what a process loads."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import ROOT, ran

#: In the order of their imports: the first is imported by all others.
PACKAGES = ("lstm_trt", "lstm_judge", "lstm_onnx", "lstm_literature")

#: Prints on its last two lines which of NAMES a process has loaded, and which after PLANTED was loaded too.
FIND = """
import importlib, sys

def find():
    return [name for name in sys.modules if f"{name}.".startswith(NAMES)]

print()
print(*find())
importlib.import_module(PLANTED)
print(*find())
"""


def copy_packages(folder: Path, *ignored: str) -> None:
    """Copy the packages into a folder, without files of these names."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*ignored))


def loaded(code: str, names: Sequence[str], planted: str, *arguments: object) -> list[str]:
    """The modules of `names`, and those below them, that a new process has loaded after it ran `code`.

    Fails unless the same search finds `planted`, one of them, as soon as the process has loaded it: the absence of a
    module that was moved or renamed would say nothing.
    """
    told = f"NAMES = {tuple(f'{name}.' for name in names)!r}\nPLANTED = {planted!r}"
    done = ran(sys.executable, "-c", f"{code}\n{told}{FIND}", *arguments)
    *_, before, after = done.stdout.splitlines()
    assert planted in after.split() and planted not in before.split(), (before, after)
    return before.split()
