"""Calls at random times, as those of many independent callers: a class of `lstm_trt/config/arrivals.py`."""

import random
import time
from collections.abc import Mapping

from lstm_trt.config.arrivals import Timed


class Random(Timed):
    """Calls are due at random times, with gaps of an exponential law (a Poisson process)."""

    NAME = "random"
    WAITS = ("spin",)
    FIELD = "mean_gap_us"
    PER_S = 1e6

    def __init__(self, gap: float | None, wait: str | None) -> None:
        super().__init__(gap, wait)
        self.spacing_ns = round(1e3 * (gap or 0))
        self.turn_ns = float(self.spacing_ns)

    @property
    def text(self) -> str:
        return f"{self.NAME} every {self.gap:g} us on average"

    def begin(self) -> None:
        self.due_ns = time.perf_counter_ns()

    def start(self) -> int:
        self.due_ns += round(self.spacing_ns * random.expovariate(1.0))
        now = time.perf_counter_ns()
        while now < self.due_ns:
            now = time.perf_counter_ns()
        return now

    def warning(self, mean_us: float, outside_share: float, self_check: Mapping) -> str | None:
        return None

    def control(self, call_ns: int) -> Timed:
        return Random(self.gap, self.wait)
