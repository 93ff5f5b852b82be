"""Timing locks between real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from lstm_trt.config.errors import UsageError
from lstm_trt.store.locks import timing_lock
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
        assert holders == [f"process {holder.pid}"]
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


def test_other_users_may_lock_too_and_without_lock_files_recording_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("LSTM_TRT_LOCKS", str(tmp_path))
    before = os.umask(0o077)
    try:
        with timing_lock(["core-3"]):
            (path,) = tmp_path.iterdir()
            assert path.stat().st_mode & 0o777 == 0o666 and path.read_bytes() == b""
    finally:
        os.umask(before)
    monkeypatch.setenv("LSTM_TRT_LOCKS", str(tmp_path / "missing"))
    with timing_lock(["core-3"], wait=False), timing_lock(["core-3"], wait=False):
        pass


def test_a_planted_link_changes_no_other_file(tmp_path, monkeypatch):
    """Other users may write into the folder of the locks: nothing is written, and links are not followed."""
    monkeypatch.setenv("LSTM_TRT_LOCKS", str(tmp_path))
    victim, gone = tmp_path / "victim", tmp_path / "gone"
    victim.write_text("kept")
    (tmp_path / "lstm_trt-core-0.lock").symlink_to(victim)
    (tmp_path / "lstm_trt-core-1.lock").hardlink_to(victim)
    (tmp_path / "lstm_trt-core-2.lock").symlink_to(gone)
    os.mkfifo(tmp_path / "lstm_trt-core-3.lock")
    with timing_lock(["core-0", "core-1", "core-2", "core-3"], wait=False):
        pass
    assert victim.read_text() == "kept" and not gone.exists()
