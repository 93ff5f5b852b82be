"""The wheel and the sdist contain what they use, and nothing of the tests."""

from __future__ import annotations

import json
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, ran
from tests.support.distributions import build, tracked_files
from tests.support.packages import PACKAGES

#: Of a checkout, or for editors: no file that a command reads.
NOT_READ = ("ruff.toml", "py.typed", ".pyi")

RECORDINGS = ROOT / "data/epyc/confirm"

#: With `lab.explore` they read every file that a package has beside its modules.
COMMANDS = (
    "lstm-trt export --layers 1 --hidden 8 --sequence 4 --c --target x86-64 --threads 2 --out threads",
    "lstm-trt export --layers 1 --hidden 8 --sequence 4 --c --target generic --out generic",
    "lstm-trt export --layers 1 --hidden 400 --sequence 4 --c --target aarch64 --out large",
    f"lstm-trt report {RECORDINGS} --deadline-us 1000 --out report.html",
    "lstm-literature list",
)

#: Prints as JSON the exit statuses of commands, and the names of all files that were opened.
USE = """
import contextlib, io, json, sys
opened = set()
sys.addaudithook(lambda event, given: event == "open" and opened.add(str(given[0])))
import lstm_trt as lab
from lstm_literature import commands
from lstm_trt.cli import main
programs, statuses = {"lstm-trt": main.main, "lstm-literature": commands.main}, []
recordings, *given = sys.argv[1:]
assert lab.explore(recordings).page
for command in given:
    program, *words = command.split()
    with contextlib.redirect_stdout(io.StringIO()):
        statuses.append(programs[program](words))
print(json.dumps([statuses, sorted(opened)]))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> dict[str, Path]:
    """The wheel and the sdist of the tracked files, as folders."""
    built, folder = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("unpacked")
    wheel, sdist = build(built)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (inside,) = (path for path in folder.iterdir() if path.name != "wheel")
    return {"wheel": folder / "wheel", "sdist": inside}


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.heavy
def test_they_have_the_packages_whole_and_no_test(unpacked, tmp_path):
    """The tests read recordings, pages and notebooks, which stay in the repository."""
    packages = {name for name in tracked_files(tmp_path) if name.startswith(tuple(f"{each}/" for each in PACKAGES))}
    packages -= {f"{each}/ruff.toml" for each in PACKAGES}
    assert {name.partition("/")[0] for name in packages} == {*PACKAGES}
    for folder in unpacked.values():
        assert packages <= names_in(folder) and not (folder / "tests").exists()


@pytest.mark.heavy
def test_the_sdist_builds_the_same_wheel(unpacked, tmp_path):
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    ran(sys.executable, "-c", code, cwd=unpacked["sdist"])
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == names_in(unpacked["wheel"])


# Writes three networks as C, of which none is compiled, in a process that loads PyTorch.
@pytest.mark.heavy
def test_what_the_commands_read_is_in_the_wheel_and_all_of_it_is_read(unpacked, tmp_path):
    wheel = unpacked["wheel"]
    environment = os.environ | {"PYTHONPATH": str(wheel), "CC": "no-such-compiler"}
    statuses, opened = json.loads(
        ran(sys.executable, "-c", USE, RECORDINGS, *COMMANDS, cwd=tmp_path, env=environment).stdout
    )
    assert statuses == [0] * len(COMMANDS)
    read = {(tmp_path / name).resolve() for name in opened}
    of_others = (ROOT / "data", Path(sys.prefix))
    of_the_checkout = [path for path in read if path.is_relative_to(ROOT) and "site-packages" not in path.parts]
    assert [path for path in of_the_checkout if not any(map(path.is_relative_to, of_others))] == []
    beside = [wheel / name for name in names_in(wheel) if name.startswith(PACKAGES) and not name.endswith(".py")]
    there = {path.resolve() for path in beside if ".dist-info" not in str(path) and not path.name.endswith(NOT_READ)}
    assert len(there) > 15 and there <= read
