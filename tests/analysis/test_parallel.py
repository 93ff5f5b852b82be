"""Analyses in child processes give what they give here; their results are remembered, and errors are told."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from lstm_trt.analysis import parallel
from lstm_trt.analysis.parallel import computed, remembered
from lstm_trt.config.errors import MemoryExhausted, UsageError
from lstm_trt.machine import linux
from lstm_trt.store import cache
from tests.conftest import wait_for

ITEMS = [np.arange(100.0) + place for place in range(50)]


def sums(items: list) -> list:
    """The sum of each item, and the process that computed it."""
    time.sleep(0.01)
    return [(float(item.sum()), os.getpid()) for item in items]


def refused_except_first(items: list) -> list:
    if any(item[0] > 0 for item in items):
        raise UsageError(f"item {items[0][0]:g} is wrong")
    return [None for _ in items]


def killed_except_first(items: list) -> list:
    if any(item[0] > 0 for item in items):
        os.kill(os.getpid(), signal.SIGKILL)
    return [None for _ in items]


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
    found = computed(sums, ITEMS, [100] * 50)
    assert [value for value, _ in found] == [value for value, _ in sums(ITEMS)]
    workers = {pid for _, pid in found}
    assert found[0][1] == os.getpid() and 2 <= len(workers) <= 3
    assert all(pid != os.getpid() for _, pid in found[1:])


def test_short_work_and_one_core_need_no_child(monkeypatch, two_children):
    monkeypatch.setattr(parallel, "LONG_S", 1e9)
    assert {pid for _, pid in computed(sums, ITEMS, [100] * 50)} == {os.getpid()}
    monkeypatch.setattr(parallel, "LONG_S", 0.0)
    monkeypatch.setattr(parallel, "allowed_cores", lambda: linux.allowed_cores()[:1])
    assert {pid for _, pid in computed(sums, ITEMS, [100] * 50)} == {os.getpid()}
    assert computed(sums, [], []) == []


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
        computed(sums, ITEMS, [100] * 50)


def test_results_are_remembered_for_the_same_items_and_computed_where_they_are_not(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(parallel, "FIRST", 100)
    monkeypatch.setattr(parallel, "LONG_S", 0.0)
    asked = []

    def look(items):
        asked.extend(items)
        return [float(item.sum()) for item in items]

    def again(items, source="folder"):
        asked.clear()
        return remembered(look, items, [100] * len(items), source) == [item.sum() for item in items] and len(asked)

    assert again(ITEMS) == 50
    assert again(ITEMS[::-1]) == 0
    assert again([*ITEMS[:-1], ITEMS[-1] + 1]) == 1
    assert again(ITEMS, source="other") == 50 and again(ITEMS, source="") == 50
    monkeypatch.setattr(parallel.np, "__version__", "0")
    parallel._version.cache_clear()
    assert again(ITEMS) == 50
    (first, *_) = [entry.path for entry in cache.entries() if entry.kind == "analysis"]
    for entry in cache.entries():
        entry.path.write_bytes(b"damaged")
    assert first.exists() and again(ITEMS) == 50
    for entry in cache.entries():  # with a right digest
        cache.keep(entry.kind, entry.path.stem, entry.path.suffix, b"damaged")
    assert again(ITEMS) == 50
    monkeypatch.setattr(cache, "keep", lambda *_: (_ for _ in ()).throw(UsageError("cannot be written")))
    assert again([item + 1000 for item in ITEMS]) == 50
    parallel._version.cache_clear()
