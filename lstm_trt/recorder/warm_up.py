"""Waking a GPU before its trials."""

import math
import time
from collections.abc import Callable, Mapping

from lstm_trt.machine import gpu
from lstm_trt.runtimes.base import PreparedStep

#: A GPU raises its clocks over some tenths of a second of load, far longer than a few short trials,
#: and NVML may still report the clock and the idleness of before then. The warm-up ends at the
#: earliest after the first of these times, when the SM clock has been the same, to
#: `gpu.CLOCK_CHANGE`, for three parts and is not that of an idle GPU; and at the latest after the
#: second.
SHORTEST_WARM_UP_S, LONGEST_WARM_UP_S, WARM_UP_PART_S = 0.5, 2.0, 0.05

#: Share of the highest SM clock from which on a GPU is awake, whatever NVML says.
AWAKE = 0.6


def warm_up_device(
    step: PreparedStep, read: Callable[[], Mapping], highest_mhz: int | None
) -> dict:
    """Call a step on a GPU, without recording the calls, until it is awake; returns their number
    and time.

    `read` gives the readings of NVML, `highest_mhz` is the highest SM clock. Where the clock cannot
    be read, for the shortest time.
    """
    began, calls, clocks = time.perf_counter(), 0, []
    while True:
        while time.perf_counter() - began < WARM_UP_PART_S * (len(clocks) + 1):
            step.step()
            calls += 1
            if calls % 1000 == 0:
                step.device_times()  # returns their events to the pool
        readings = read()
        seconds = time.perf_counter() - began
        clock = readings["gpu_sm_mhz"]
        reasons = readings["gpu_throttle_reasons"]
        clocks.append(clock)
        latest = clocks[-3:]
        steady = len(latest) == 3 and None not in latest and gpu.is_steady(latest)
        idle = reasons is None or reasons & gpu.IDLE
        ready = clock is None or (
            steady and (clock >= AWAKE * (highest_mhz or math.inf) or not idle)
        )
        if seconds >= (SHORTEST_WARM_UP_S if ready else LONGEST_WARM_UP_S):
            return {"calls": calls, "seconds": seconds, "sm_mhz": clock}
