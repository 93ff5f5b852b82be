"""Dies with SIGSEGV in the timed loop, for sequences of 6 only."""

import ctypes

from tests.support.faulty import RightStep, contract


class Step(RightStep):
    calls = 0

    def step(self):
        self.calls += 1
        if self.inputs.shape[0] == 6 and self.calls > 5:
            ctypes.string_at(0)
        super().step()


globals().update(contract("tests.support.faulty.segfault", Step))
