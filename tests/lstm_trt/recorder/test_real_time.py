"""Real-time scheduling of the timed thread: when it begins and ends, whether it may, and how much it may run."""

from __future__ import annotations

import os

import numpy as np
import pytest

import lstm_trt
from lstm_trt.config.configuration import Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.machine import real_time
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.loop import Loop, PeriodTooShort, pilot
from lstm_trt.store import folders

SHAPE = LstmShape(1, 16, 8)


def sleeping(period_us: float = 20_000, wait: str = "os", **fields) -> Protocol:
    return Protocol(**{"arrival": "periodic", "period_us": period_us, "wait": wait, "fifo": 7, "warmup": 5, **fields})


def policy() -> tuple[int, int]:
    """That of this thread, and its priority."""
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, os.sched_getparam(0).sched_priority


ORDINARY = (os.SCHED_OTHER, 0)


@pytest.fixture
def allowed():
    """Whether this user may schedule threads so; the tests below know both answers."""
    try:
        with real_time.scheduled(7):
            return policy() == (os.SCHED_FIFO, 7)
    except UsageError as error:
        assert "doctor" in str(error)
        return False


def test_the_scheduling_is_given_back_also_after_an_error(allowed):
    if not allowed:
        pytest.skip("this user may not use real-time scheduling")
    before = policy()
    with pytest.raises(ZeroDivisionError), real_time.scheduled(7):
        assert real_time.stated()["policy"] == "SCHED_FIFO" and real_time.stated()["priority"] == 7
        raise ZeroDivisionError
    assert policy() == before
    with real_time.scheduled(None):
        assert policy() == before
    with real_time.scheduled(7, now=False):
        assert policy() == before
        real_time.enter(7)
    assert policy() == before


def test_a_recording_is_real_time_or_is_refused_with_what_to_do(tmp_path, allowed):
    asked = sleeping(trials=20)
    if not allowed:
        with pytest.raises(UsageError, match="doctor"):
            lstm_trt.record(SHAPE, "onnxruntime", asked, out=tmp_path)
        return
    recording = lstm_trt.record(SHAPE, "onnxruntime", asked, out=tmp_path)
    scheduling = recording.provenance["scheduling"]
    assert (scheduling["policy"], scheduling["priority"]) == ("SCHED_FIFO", 7)
    assert scheduling.keys() >= {"runtime_us", "period_us", "rtprio_limit"}
    assert policy() == ORDINARY
    (stored,) = folders.read_many(tmp_path)
    assert stored.configuration.protocol.fifo == 7


def test_who_may_not_is_refused_before_anything_is_made(monkeypatch):
    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with pytest.raises(UsageError, match="doctor"):
        real_time.enter(7)


def test_only_calls_after_the_warm_up_are_real_time(allowed):
    if not allowed:
        pytest.skip("this user may not use real-time scheduling")
    seen = []
    with real_time.scheduled(7, now=False):
        loop = Loop(lambda: seen.append(policy()), sleeping(1000, trials=20), after_warmup=lambda: real_time.enter(7))
        loop.run(5, 20, 1 << 62)
    assert seen == [ORDINARY] * 5 + [(os.SCHED_FIFO, 7)] * 20
    assert policy() == ORDINARY


def test_one_thread_only():
    with pytest.raises(UsageError, match="--threads"):
        describe(SHAPE, "onnxruntime", sleeping(), lstm_trt.Options(threads=2))


@pytest.mark.parametrize(("runtime_us", "longest"), [(950_000, 0.855), (500_000, 0.45), (-1, 0.9), (None, 0.9)])
def test_the_longest_duty_follows_from_the_limit(monkeypatch, runtime_us, longest):
    stated = real_time.stated() | {"runtime_us": runtime_us, "period_us": 1_000_000}
    monkeypatch.setattr(real_time, "stated", lambda: stated)
    assert np.isclose(real_time.longest_duty(), longest)


@pytest.mark.parametrize(
    ("call_us", "period_us", "wait", "fits"),
    [
        (100, 10_000, "os", True),
        (5_000, 5_001, "os", False),
        (1, 201, "sleep", False),
        (1, 201, "os", True),
        (1, 9_000, "sleep", True),
    ],
)
def test_a_thread_that_linux_would_stop_is_refused_with_a_period_that_fits(
    monkeypatch, manual_clock, call_us, period_us, wait, fits
):
    stated = real_time.stated() | {"runtime_us": 950_000, "period_us": 1_000_000}
    monkeypatch.setattr(real_time, "stated", lambda: stated)
    step = lambda: manual_clock.advance(1000 * call_us)  # noqa: E731
    asked = sleeping(period_us, wait)
    if fits:
        assert pilot(step, asked)["median_us"] == call_us + 1  # of the clock
        return
    with pytest.raises(PeriodTooShort, match="--period-us") as caught:
        pilot(step, asked)
    proposed_us = float(str(caught.value).split()[-1])
    assert pilot(step, sleeping(proposed_us, wait))["median_us"] == call_us + 1  # of the clock
