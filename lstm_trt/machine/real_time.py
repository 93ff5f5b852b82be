"""The real-time scheduling of the timed thread (SCHED_FIFO), as far as this machine allows it.

Linux stops real-time threads that leave no time to others: in each `sched_rt_period_us` they may
run for `sched_rt_runtime_us`, by default for 950 ms of each second. A thread that never sleeps was
stopped for 50 ms each second by Linux 6.18, also alone on its core. So the duty must stay below
that limit.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lstm_trt.config.errors import UsageError
from lstm_trt.machine import linux

#: The largest duty of a real-time thread, as a share of the limit.
DUTY_SHARE = 0.9

_FILES = "/proc/sys/kernel/sched_rt_{}_us"


def enter(priority: int) -> None:
    """Schedule this thread as SCHED_FIFO; threads that it starts are not.

    Raises `UsageError` if this user may not.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except OSError as error:
        raise UsageError(
            f"--fifo {priority}: {error.strerror}; lstm-trt doctor says what to set for real-time"
            " priorities, or run as root"
        ) from None


@contextmanager
def scheduled(priority: int | None, now: bool = True) -> Iterator[None]:
    """Give this thread's scheduling back at the end; at the beginning `enter` with a `priority`,
    unless somebody does later. None changes nothing."""
    if priority is None:
        yield
        return
    policy = os.sched_getscheduler(0)
    parameters = os.sched_getparam(0)
    try:
        if now:
            enter(priority)
        yield
    finally:
        # Without a privilege this flag of `enter` stays.
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, parameters)


def stated() -> dict[str, Any]:
    """The scheduling of this thread, and what limits real-time threads here.

    A limit is None where the system does not state it, and a `runtime_us` of -1 is none.
    """
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    return {
        "policy": "SCHED_FIFO" if policy == os.SCHED_FIFO else policy,
        "priority": os.sched_getparam(0).sched_priority,
        "rtprio_limit": resource.getrlimit(resource.RLIMIT_RTPRIO)[0],
        "runtime_us": linux.read_int(_FILES.format("runtime")),
        "period_us": linux.read_int(_FILES.format("period")),
    }


def longest_duty() -> float:
    """The share of time for which a real-time thread may run without ever being stopped."""
    limits = stated()
    share = 1.0
    if limits["period_us"] and (limits["runtime_us"] or 0) > 0:
        share = limits["runtime_us"] / limits["period_us"]
    return DUTY_SHARE * share
