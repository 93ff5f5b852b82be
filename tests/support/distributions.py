"""The wheel and the sdist of this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


def tracked_files(home: Path) -> list[str]:
    """The names of all files in the index; `home` gets a configuration with which git reads a clone of another owner.

    Before 2.38, git takes `safe.directory` neither from the command line nor from variables.
    """
    (home / ".gitconfig").write_text(f'[safe]\n\tdirectory = "{ROOT}"\n')
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "XDG_"))}
    environment["HOME"] = str(home)
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return listing.stdout.rstrip("\0").split("\0")


def build(folder: Path) -> tuple[Path, Path]:
    """Write a wheel and an sdist of the tracked files into `folder`; their paths."""
    for name in tracked_files(folder):
        if not name.startswith(("data/", "figures/", "notebooks/")):
            (folder / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "checkout" / name)
    code = f"from setuptools import build_meta as b; b.build_wheel({str(folder)!r}); b.build_sdist({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder / "checkout", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return wheel, sdist
