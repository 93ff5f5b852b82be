"""Analyses in child processes give what they give here, and errors are told."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from lstm_judge.statistics import parallel
from lstm_judge.statistics.parallel import computed
from lstm_trt.config.errors import MemoryExhausted, UsageError
from lstm_trt.machine import linux
from tests.conftest import wait_for

ITEMS = [np.arange(100.0) + place for place in range(50)]


def total(item: np.ndarray) -> tuple[float, int]:
    """The sum of an item, and the process that computed it."""
    time.sleep(0.01)
    return float(item.sum()), os.getpid()


def refused_except_first(item: np.ndarray) -> None:
    if item[0] > 0:
        raise UsageError(f"item {item[0]:g} is wrong")


def killed_except_first(item: np.ndarray) -> None:
    if item[0] > 0:
        os.kill(os.getpid(), signal.SIGKILL)


def children() -> list[int]:
    """Child processes that run an analysis."""
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _serves(int(pid))]


def _serves(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as line, open(f"/proc/{pid}/stat") as state:
            return b"import serve" in line.read() and f") {state.read().rsplit(')', 1)[1].split()[0]}" != ") Z"
    except OSError:
        return False


@pytest.fixture
def two_children(monkeypatch):
    """Small chunks that count as long, on a machine of two cores."""
    monkeypatch.setattr(parallel, "allowed_cores", lambda: (0, 1))
    monkeypatch.setattr(parallel, "FIRST", 100)
    monkeypatch.setattr(parallel, "MOST", 400)
    monkeypatch.setattr(parallel, "LONG_S", 0.0)
    before = set(children())
    yield
    assert set(children()) <= before  # all were ended


def test_children_compute_what_this_process_would_in_the_same_order(two_children):
    found = computed(total, ITEMS, [100] * 50)
    assert [value for value, _ in found] == [value for value, _ in map(total, ITEMS)]
    workers = {pid for _, pid in found}
    assert found[0][1] == os.getpid() and 2 <= len(workers) <= 3
    assert all(pid != os.getpid() for _, pid in found[1:])


def test_short_work_and_one_core_need_no_child(monkeypatch, two_children):
    monkeypatch.setattr(parallel, "LONG_S", 1e9)
    assert {pid for _, pid in computed(total, ITEMS, [100] * 50)} == {os.getpid()}
    monkeypatch.setattr(parallel, "LONG_S", 0.0)
    monkeypatch.setattr(parallel, "allowed_cores", lambda: linux.allowed_cores()[:1])
    assert {pid for _, pid in computed(total, ITEMS, [100] * 50)} == {os.getpid()}
    assert computed(total, [], []) == []


@pytest.mark.heavy
def test_errors_of_a_child_are_those_of_the_analysis(two_children):
    with pytest.raises(UsageError, match="is wrong"):
        computed(refused_except_first, ITEMS, [100] * 50)
    with pytest.raises(MemoryExhausted, match="fewer recordings"):
        computed(killed_except_first, ITEMS, [100] * 50)


def test_ctrl_c_ends_the_children(monkeypatch, two_children):
    def stopped(*ignored):
        assert wait_for(lambda: len(children()) >= 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(parallel, "wait", stopped)
    with pytest.raises(KeyboardInterrupt):
        computed(total, ITEMS, [100] * 50)
