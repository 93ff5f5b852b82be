"""Temporary files and folders: what a killed process leaves is removed by the next one, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lstm_trt.store import folders, temporary
from lstm_trt.store.temporary import remove_abandoned, temporary_file, temporary_folder
from tests.conftest import ROOT, sampled
from tests.lstm_trt.store.test_store import planted, store_files

#: Makes both, with content, says so and waits.
HOLDER = """
import sys
from pathlib import Path
from lstm_trt.store.temporary import temporary_file, temporary_folder
with temporary_file(Path(sys.argv[1], "a.parquet")) as file, temporary_folder() as folder:
    file.write_text("a")
    (folder / "inside").write_text("b")
    print("made", flush=True)
    sys.stdin.read()
"""

#: What people and other programs may call their own files and folders.
OWN = ("lstm_trt-pictures", ".notes.tmp", ".a.parquet.0123.lstm_trt.tmp", ".a.parquet.0123456789abcdef.tmp")


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_holds_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in OWN:
        (tmp_path / name).mkdir()
    command, pipe = [sys.executable, "-c", HOLDER, tmp_path], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "made\n"
        remove_abandoned(tmp_path)
        names = {path.name for path in tmp_path.iterdir()} - set(OWN)
        assert sorted(name.rsplit(".", 3)[0] for name in names) == [".a.parquet", ".run"]
        process.kill()
    remove_abandoned(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(OWN)


def test_what_is_taken_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """Another process may look between making a file and locking it."""
    opened, taken = os.open, []

    def late(path, *arguments):
        if not taken and Path(path).exists():
            taken.append(Path(path))
            Path(path).unlink()
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", late)
    with temporary_file(tmp_path / "a") as path:
        assert path.exists() and [path] != taken
        remove_abandoned(tmp_path)
        path.replace(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_is_removed_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="x"), temporary_folder() as folder:
        (folder / "inside").touch()
        raise ValueError("x")
    assert not list(tmp_path.iterdir())


def ends_before_line(number: int, use: Callable[[], None]) -> bool:
    """Whether Ctrl-C before this line of the module, counted as they run, came before `use` had ended."""
    lines = 0

    def count(frame, event, _):
        nonlocal lines
        if frame.f_code.co_filename != temporary.__file__:
            return None
        lines += event == "line"
        if event == "line" and lines == number:
            raise KeyboardInterrupt
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        use()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_signal_at_any_moment_leaves_nothing(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def use() -> None:
        with temporary_file(tmp_path / "a") if kind == "file" else temporary_folder():
            pass

    number = 1
    while ends_before_line(number, use):
        assert not list(tmp_path.iterdir()), number
        number += 1
    assert number > 15


#: Command -> its arguments; {} is the folder with recordings, {out} that for new files.
KILLED = {
    "consolidate": ("{}", "--out", "{out}"),
    "report": ("{}", "--deadline-us", "100", "--out", "{out}/report.html"),
    "sweep": ("--layers", "1", "--hidden", "8", "--sequence", "4", "--trials", "20", "--rounds", "2", "--out", "{out}"),
}


@pytest.mark.heavy
@sampled(3)  # twelve runs of a command: half a minute
@pytest.mark.parametrize("command", KILLED)
def test_ten_kills_leave_nothing_once_the_command_has_run_again(command, tmp_path, monkeypatch):
    """At moments spread over its run, by a signal that it cannot handle and by one that ends it cleanly."""
    for name in ("tmp", "out", "recordings"):
        (tmp_path / name).mkdir()
    for number in range(4):
        store_files.write(planted(8 + number, rows=20_000), tmp_path / "recordings")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    places = [part.format(tmp_path / "recordings", out=tmp_path / "out") for part in KILLED[command]]
    arguments = [sys.executable, "-m", "lstm_trt", command, *places]

    def start() -> subprocess.Popen:
        return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    began = time.monotonic()
    assert start().wait(300) in (0, 1, 3)
    whole_s = time.monotonic() - began
    for number in range(10):
        process = start()
        try:
            process.wait(whole_s * (number + 0.5) / 10)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGHUP if number % 3 == 0 else signal.SIGKILL)
            # SIGHUP by itself: before it is handled, or after the command. SIGINT: Python ends so, whatever status is
            # asked for, if the interrupt has passed through an `exec` (of dataclasses, while modules are imported).
            assert process.wait(300) in (130, -signal.SIGHUP, -signal.SIGINT, -signal.SIGKILL)
    assert start().wait(300) in (0, 1, 3)
    assert not list((tmp_path / "tmp").iterdir())
    left = {path.name for path in (tmp_path / "out").iterdir()} - {".lstm_trt.lock"}
    found = folders.contents(tmp_path / "out")
    known = {path.name for path in (*found.recorded, *found.failures.values())}
    assert left - known <= {"trials.parquet", "configs.parquet", "report.html"}
