"""No damaged file gives a traceback, kills the process or keeps it for ever: 10 000 mutants, half of them in a run."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, sampled

#: CPU time in s after which a mutant hangs: others take some hundredths, an engine's build a second.
LIMIT_S = 60

#: Time in s between two looks at the process, and how many in a row may see that it had no CPU time at all. It is
#: counted in looks, since a machine can be stopped for hours.
LOOK_S, IDLE_LOOKS = 0.2, 3000

#: Kind -> its mutants, and the number of cases that share them, so that none takes long.
KINDS = {
    "recordings": (2400, 4),
    "stated": (900, 2),
    "csv": (2400, 6),
    "json": (1600, 2),
    "onnx": (1800, 4),
    "networks": (900, 1),
}


def cases() -> list:
    """Kind, first and last mutant of each case."""
    found = []
    for kind, (count, number) in KINDS.items():
        bounds = range(0, count + 1, count // number)
        found += [pytest.param(kind, first, last, id=f"{kind}-{first}") for first, last in itertools.pairwise(bounds)]
    return found


def cpu_s(process: int) -> float:
    """The CPU time of a process so far."""
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    user, system = after_name[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def hung(child: subprocess.Popen, place: Path) -> str | None:
    """Waits until the process ends; why it was left if it hangs. `place`: the file with the number of its mutant."""
    at, since_s, used_s, idle = "", 0.0, 0.0, 0
    while child.poll() is None:
        time.sleep(LOOK_S)
        before_s, used_s = used_s, cpu_s(child.pid)
        idle = idle + 1 if used_s == before_s else 0
        now = place.read_text() if place.exists() else ""
        if now != at:
            at, since_s = now, used_s
        if used_s - since_s > LIMIT_S:
            return f"no answer within {LIMIT_S} s of CPU time at mutant {at}"
        if idle > IDLE_LOOKS:
            return f"waits for something that does not come at mutant {at}"
    return None


@pytest.mark.random(tail=0, why="fuzzing, 10 000 mutants")
@pytest.mark.heavy
@sampled(2)
@pytest.mark.parametrize(("kind", "first", "last"), cases())
def test_mutated_files_are_answered_or_refused_by_one_line(kind, first, last, tmp_path, seed):
    if kind == "onnx":
        pytest.importorskip("tensorrt_rtx", reason="builds engines with tensorrt-rtx")
    arguments = [kind, str(seed), str(first), str(last), str(tmp_path)]
    command = [sys.executable, "-m", "tests.support.mutants", *arguments]
    with open(tmp_path / "output", "w") as output:
        child = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        why = hung(child, tmp_path / "at")
        child.kill()
        child.wait()
    assert why is None
    said = (tmp_path / "output").read_text()
    assert child.returncode == 0, f"at mutant {(tmp_path / 'at').read_text()}:\n{said[-3000:]}"
    assert "[ERROR]" not in said and "Exception" not in said, said[-3000:]
    assert (tmp_path / "at").read_text() == f"{last} done"


@pytest.mark.parametrize(
    ("code", "limit", "value", "message"),
    [("while True: pass", "LIMIT_S", 0.2, "CPU time"), ("input()", "IDLE_LOOKS", 3, "does not come")],
    ids=["computes", "waits"],
)
def test_a_process_that_hangs_is_found(tmp_path, monkeypatch, code, limit, value, message):
    monkeypatch.setattr(sys.modules[__name__], limit, value)
    (tmp_path / "at").write_text("7 verdict")
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    why = hung(child, tmp_path / "at")
    child.kill()
    child.communicate()
    assert message in why and "mutant 7 verdict" in why
