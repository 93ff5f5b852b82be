"""The session on a lent GPU (`benchmarks/gpu_session.py`): its parts, limits and archives; rehearsals without a GPU."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import gpu_session
from benchmarks.gpu_session import Command, Session
from lstm_judge.environments import package_folders
from lstm_literature.commands import PROGRAM
from lstm_trt.cli import main
from lstm_trt.config.configuration import Options
from lstm_trt.config.shape import PUBLISHED_003
from lstm_trt.machine.linux import choose_cores
from lstm_trt.recorder.pool import resources
from lstm_trt.store import files
from lstm_trt.store.folders import read_many
from lstm_trt.store.locks import timing_lock
from lstm_trt.store.schema import Failure
from tests.conftest import ROOT, ran, sampled, wait_for
from tests.lstm_trt.store.test_store import planted

#: Packages that are not on the machines lent so far; this one is not installed there either.
ABSENT = re.compile(
    "ipykernel|ipython|jupyter|jax|keras|lstm|mxnet|nb|notebook|openvino|papermill|pycuda|tensorflow|tensorrt|tvm|__editable"
)


PROGRAMS = {"lstm_trt": main.PROGRAM, "lstm_literature": PROGRAM}


@pytest.mark.parametrize("place", gpu_session.PLACES.values(), ids=gpu_session.PLACES)
def test_a_call_fits_into_its_time_and_its_commands_are_those_of_this_checkout(place, tmp_path):
    for parts in gpu_session.calls(place).values():
        commands = list(itertools.chain.from_iterable(parts.values()))
        assert sum(command.limit_s for command in commands) <= gpu_session.CALL_S <= 560
        for command in commands:
            words = command.line(tmp_path)[1:]
            assert "WORK" not in words and all((ROOT / word).is_file() for word in words if word.endswith(".py"))
            if words[0] == "-m" and words[1] != "pytest":
                main.parse(words[2:], PROGRAMS[words[1]])


def test_the_tests_of_a_gpu_are_those_that_make_runs():
    (named,) = re.findall("^GPU_TESTS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert gpu_session.GPU_TESTS.split() == named.split()


def test_the_grid_is_the_published_one():
    assert {axis: " ".join(map(str, getattr(PUBLISHED_003, axis))) for axis in gpu_session.GRID} == gpu_session.GRID
    assert {"layers", "hidden", "sequence"} == {*gpu_session.GRID}


def session(tmp_path, parts: dict[str, list[str]], limit_s: float = 60, **more) -> Session:
    """A session of programs given as text."""
    made = Session({}, tmp_path / "work", tmp_path / "out", place=gpu_session.PLACES["cpu"], **more)
    for part, codes in parts.items():
        made.parts[part] = []
        for number, code in enumerate(codes):
            (made.work / f"{part}{number}.py").write_text(code)
            made.parts[part].append(Command(f"WORK/{part}{number}.py", limit_s))
    return made


@pytest.mark.heavy
def test_a_part_that_hangs_is_killed_and_the_next_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_session, "GRACE_S", 1.0)
    monkeypatch.setattr(gpu_session, "LEAST_S", 0.0)
    monkeypatch.setattr(gpu_session.run_limited, "__defaults__", (1.0,))
    folder = tmp_path / "work"
    stops = f"""
import pathlib, time
try:
    time.sleep(600)
except KeyboardInterrupt:
    pathlib.Path({str(folder / "kept")!r}).touch()
"""
    hangs = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid)); time.sleep(600)"
    )
    run = session(tmp_path, {"a": [stops, hangs], "b": ["print('reached')"]}, limit_s=4)
    assert run.run()
    assert [row["status"] for row in run.report] == [0, -9, 0]
    assert (folder / "kept").exists() and "reached" in (tmp_path / "out/log.txt").read_text()
    assert json.loads((tmp_path / "out/report.json").read_text()) == run.report
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not running(child))


def running(process: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_does_not_fit_into_the_time_is_left_out_from_the_end(tmp_path):
    run = session(tmp_path, {"a": ["pass"], "b": ["pass"], "c": ["pass"]}, seconds=gpu_session.LEAST_S + 1)
    run.parts = {"a": run.parts["a"], **{part: [replace(run.parts[part][0], limit_s=400)] for part in ("b", "c")}}
    run._began = time.monotonic()
    run._run("a", run.parts["a"][0])
    run._began -= 10  # the time that it took
    run.run()
    assert [row.get("skipped") for row in run.report[1:]] == ["no time left"] * 3


@pytest.mark.heavy
def test_without_a_recording_or_a_passed_test_nothing_else_is_run(tmp_path, stored):
    def parts_run(place: str) -> list[str]:
        run = session(tmp_path, {"look": ["pass"], "grid": ["pass"]})
        run.place = gpu_session.PLACES[place]
        assert run.run() == (len(run.report) == 2)
        return [row["part"] for row in run.report]

    assert parts_run("cpu") == ["look"]
    whole = planted()
    whole.provenance.update(parity={"error": 3e-7, "bound": 1e-5})
    look = stored(whole, into="work/look")
    files.write_failure(Failure(planted(16).configuration, 0, "parity", "outputs differ by 2e-05"), look)
    assert parts_run("cpu") == ["look", "grid"]
    log = (tmp_path / "out/log.txt").read_text()
    assert "3.0e-07     1e-05" in log and "failed at parity: outputs differ by 2e-05" in log
    assert parts_run("cuda") == ["look"]  # where a test must have passed too
    cases = "<testcase><skipped/></testcase><testcase><failure/></testcase><testcase/>"
    report = tmp_path / "work" / gpu_session.REPORT
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert gpu_session.tests_passed(report) == 1
    assert parts_run("cuda") == ["look", "grid"]


def test_recordings_are_packed_between_two_networks_only(tmp_path, stored):
    go_on = tmp_path / "go on"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.02)"
    run = session(tmp_path, {"a": [waits]}, limit_s=600, pack_every_s=0.1)
    stored(8, into="work/grid")
    timed = resources(Options(device="cpu", cores=choose_cores(1)))
    with timing_lock(timed):  # a network is being timed
        thread = threading.Thread(target=run.run)
        thread.start()
        time.sleep(0.5)
        assert not list(run.out.glob("recordings-*"))
    assert wait_for((run.out / "recordings-1.tgz").exists)
    assert thread.is_alive()  # not at the part's end
    go_on.touch()
    thread.join()
    with tarfile.open(run.out / "recordings-1.tgz") as archive:
        assert archive.getnames() == [f"grid/{planted().file_name}"]


def test_what_comes_home_is_at_most_six_files_of_16_mib(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_session, "ARCHIVE_BYTES", 100_000)
    run = session(tmp_path, {})
    contents = {f"{number}.parquet": os.urandom(45_000 + number) for number in range(7)}
    for name, content in (contents | {".half.parquet": b"half"}).items():
        (run.work / name).write_bytes(content)
    run.run()
    archives = sorted(run.out.iterdir())  # beside a log and a report
    assert [path.suffix for path in archives] == [".tgz"] * 4 and not capsys.readouterr().err
    assert all(path.stat().st_size < 110_000 for path in archives)
    later = session(tmp_path / "later", {})  # goes on from what came home
    for path in archives:
        shutil.copy(path, later.work)
    later.run()
    assert {path.name: path.read_bytes() for path in later.work.glob("*.parquet")} == contents
    (run.work / "more.parquet").write_bytes(os.urandom(200_000))
    run.pack()
    assert "1 files are too many bytes to come back" in capsys.readouterr().err


def test_what_came_home_is_collected_by_card(tmp_path, stored):
    run = session(tmp_path, {})
    for part, hidden in (("grid", 8), ("grid", 16), ("edge", 24)):
        item = planted(hidden)
        stored(replace(item, configuration=replace(item.configuration, device_name="NVIDIA H200")), into=f"work/{part}")
    (run.work / "kernels.json").write_text("[]")
    run.run()
    assert gpu_session.collect(list(run.out.glob("*.tgz")), tmp_path / "data") == 0
    card = tmp_path / "data/h200"
    assert {path.name for path in card.iterdir()} == {"grid", "edge", "kernels.json"}
    assert [len(list(read_many(card / part))) for part in ("grid", "edge")] == [2, 1]


@pytest.fixture(scope="session")
def lent(tmp_path_factory) -> dict:
    """A copy of the tracked files without .git, and a Python without the packages that a lent machine lacks.

    PyTorch is 2.11 where pip finds a build of it for the CPU, as on that machine.
    """
    folder = tmp_path_factory.mktemp("lent")
    for name in filter(None, ran("git", "ls-files", "-coz", "--exclude-standard").stdout.split("\0")):
        if not name.startswith(("data/", "figures/", "notebooks/")) and (ROOT / name).is_file():
            (folder / "lab" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "lab" / name)
    ran(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    ours = map(Path, package_folders())
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", packages, "torch==2.11.0+cpu")
    older = ran(sys.executable, *pip, status=None).returncode == 0
    for path in (path for folder in ours for path in folder.iterdir()):
        known = older and path.name.startswith(("torch-", "torch."))
        if not (ABSENT.match(path.name.lower()) or path.suffix == ".pth" or known or (packages / path.name).exists()):
            (packages / path.name).symlink_to(path)
    others = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")  # without the last, the copy is compiled once
    environment = {name: value for name, value in os.environ.items() if name not in others}
    commit = "0123456789abcdef0123456789abcdef01234567"
    return {
        "python": str(folder / "venv/bin/python"),
        "cwd": folder / "lab",
        "env": environment | {"LSTM_TRT_COMMIT": commit},
        "commit": commit,
    }


# Starts some 30 processes, of which most load PyTorch; call 3 compiles.
@pytest.mark.heavy
@sampled(3)
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_rehearsal_without_a_gpu_where_little_is_installed(lent, tmp_path, call):
    """No IPython, OpenVINO or TensorRT, this package not installed, and no .git, as on the machines lent so far."""
    command = [lent["python"], "benchmarks/gpu_session.py", str(call), "--rehearse", "cpu", "--work", str(tmp_path)]
    done = ran(*command, status=None, cwd=lent["cwd"], env=lent["env"])
    log = tmp_path / "out/log.txt"
    assert (done.returncode, done.stderr) == (0, ""), f"{done}\n{log.read_text() if log.exists() else ''}"
    folders = [path for path in tmp_path.iterdir() if path.is_dir() and path.name != "out"]
    found = [item for folder in folders for item in read_many(folder)]
    assert found and not [item for item in found if isinstance(item, Failure)]
    for item in found:
        assert item.provenance["commit"] == lent["commit"] and item.provenance["versions"]["lstm_trt"]
    home = tmp_path / "home"
    gpu_session.unpack(list((tmp_path / "out").glob("*.tgz")), home)
    assert {path.name for path in folders} <= {path.name for path in home.iterdir()}
    if call == 2:
        rows = json.loads((tmp_path / "kernels.json").read_text())
        assert [row["network"] for row in rows] == [f"2x{size}-s128-b1" for size in gpu_session.KERNELS.split()]
        assert all(row["kernels"] and row["busy_us"] is None for row in rows)
