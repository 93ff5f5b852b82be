"""No damaged file gives a traceback, kills the process or keeps it for ever: 10 000 mutants."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

#: A mutant that keeps the process for longer hangs: others take some milliseconds, an engine's build a second.
LIMIT_S = 300


@pytest.mark.heavy
@pytest.mark.parametrize(("kind", "count"), [("recordings", 3000), ("csv", 3000), ("json", 2000), ("onnx", 2000)])
def test_mutated_files_are_answered_or_refused_by_one_line(kind, count, tmp_path, seed):
    if kind == "onnx":
        pytest.importorskip("tensorrt_rtx", reason="builds engines with tensorrt-rtx")
    command = [sys.executable, "-m", "tests.support.mutants", kind, str(seed), "0", str(count), str(tmp_path)]
    with open(tmp_path / "output", "w") as output:
        child = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        at, since = "", time.monotonic()
        while child.poll() is None:
            time.sleep(0.2)
            place = tmp_path / "at"
            now = place.read_text() if place.exists() else ""
            if now != at:
                at, since = now, time.monotonic()
            if time.monotonic() - since > LIMIT_S:
                child.kill()
                child.wait()
                pytest.fail(f"no answer within {LIMIT_S} s at mutant {at}")
    said = (tmp_path / "output").read_text()
    assert child.returncode == 0, f"at mutant {(tmp_path / 'at').read_text()}:\n{said[-3000:]}"
    assert "[ERROR]" not in said and "Exception" not in said, said[-3000:]
    assert (tmp_path / "at").read_text() == f"{count} done"
