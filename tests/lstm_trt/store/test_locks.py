"""Timing locks between real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from lstm_trt.config.errors import UsageError
from lstm_trt.store.locks import LOCK_FILE, folder_lock, timing_lock
from tests.conftest import ROOT


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """Another process that holds core 1 until it is killed."""
    monkeypatch.setenv("LSTM_TRT_LOCKS", str(tmp_path))
    program = (
        "import time; from lstm_trt.store.locks import timing_lock\n"
        "with timing_lock(['core-1']): print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_recording_on_a_core_waits_until_the_first_has_ended_however_it_ends(holder):
    holders = []

    def waiting(text: str) -> None:
        holders.append(text)
        os.kill(holder.pid, signal.SIGKILL)

    with timing_lock(["core-1", "core-0"], waiting=waiting):
        (text,) = holders
        assert re.fullmatch(rf"process {holder.pid}, python\S* of \S+, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d", text)
        assert holder.wait(300) == -signal.SIGKILL
    with timing_lock(["core-1"], waiting=waiting):
        assert len(holders) == 1  # free again


def test_without_waiting_a_core_in_use_is_refused_and_nothing_stays_locked(holder):
    with timing_lock(["core-0"], wait=False):  # another core
        pass
    with pytest.raises(UsageError, match=f"core 1 .*{holder.pid}"), timing_lock(["core-0", "core-1"], wait=False):
        raise AssertionError("this core is in use")
    with timing_lock(["core-0"], wait=False):
        pass


def test_a_wait_can_be_limited(holder):
    for wait in (0.0, 0.01, -1.0, float("nan")):
        with pytest.raises(UsageError, match=f"core 1 .*{holder.pid}"), timing_lock(["core-1"], wait):
            raise AssertionError("this core is in use")
    with timing_lock(["core-1"], 600.0, lambda text: holder.kill()):  # locked as soon as it is free
        assert holder.wait(300) == -signal.SIGKILL


def test_a_folder_names_who_records_into_it_and_a_lock_that_is_a_link_is_refused(tmp_path):
    lock, victim = tmp_path / LOCK_FILE, tmp_path / "victim"
    with folder_lock(tmp_path), pytest.raises(UsageError, match=rf"process {os.getpid()}, python"):
        folder_lock(tmp_path).__enter__()
    victim.write_text("kept")
    lock.unlink(missing_ok=True)
    lock.symlink_to(victim)
    with pytest.raises(UsageError, match="remove this file"):
        folder_lock(tmp_path).__enter__()
    assert victim.read_text() == "kept"


def test_other_users_may_lock_too_and_without_lock_files_recording_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("LSTM_TRT_LOCKS", str(tmp_path))
    before = os.umask(0o077)
    try:
        with timing_lock(["core-3"]) as unlocked:
            assert unlocked == []
            (path,) = tmp_path.iterdir()
            assert path.stat().st_mode & 0o777 == 0o666 and path.read_bytes() == b""
    finally:
        os.umask(before)
    monkeypatch.setenv("LSTM_TRT_LOCKS", str(tmp_path / "missing"))
    with timing_lock(["core-3"], wait=False), timing_lock(["core-3"], wait=False) as unlocked:
        assert len(unlocked) == 1 and "core 3 is not locked" in unlocked[0]


def test_a_planted_link_changes_no_other_file(tmp_path, monkeypatch):
    """Other users may write into the folder of the locks: nothing is written, and links are not followed."""
    monkeypatch.setenv("LSTM_TRT_LOCKS", str(tmp_path))
    victim, gone = tmp_path / "victim", tmp_path / "gone"
    victim.write_text("kept")
    locks = [tmp_path / f"lstm_trt-core-{core}.lock" for core in range(4)]
    locks[0].symlink_to(victim)
    locks[1].hardlink_to(victim)
    locks[2].symlink_to(gone)
    os.mkfifo(locks[3])
    with timing_lock([f"core-{core}" for core in range(4)], wait=False) as unlocked:
        assert [line.partition(" is not locked")[0] for line in unlocked] == ["core 0", "core 2"]
        assert all("remove this file" in line for line in unlocked)
    assert victim.read_text() == "kept" and not gone.exists()
