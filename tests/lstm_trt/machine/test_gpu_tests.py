"""The tests of a GPU: which files have them, and that a run on a machine without one is no success."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.conftest import ROOT, gpu_missing


def gpu_files() -> list[str]:
    """The files that the Makefile names."""
    (names,) = re.findall("^GPU_TESTS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return names.split()


def test_the_makefile_names_the_files_with_tests_of_a_gpu():
    mark = re.compile("^@pytest.mark.gpu$", re.MULTILINE)
    marked = [file for file in (ROOT / "tests").rglob("test_*.py") if mark.search(file.read_text())]
    assert sorted(str(file.relative_to(ROOT)) for file in marked) == sorted(gpu_files())


def test_a_run_in_which_no_test_passed_is_a_failure_where_one_must():
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--must-pass", *gpu_files(), "-k", "memory_is_freed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if gpu_missing():
        assert done.returncode == 1 and "skipped" in done.stdout, done.stdout + done.stderr
    else:
        assert done.returncode == 0, done.stdout + done.stderr
