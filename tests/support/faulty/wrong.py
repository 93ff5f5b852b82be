"""Computes in bfloat16 instead of fp32."""

import numpy as np

from tests.support.faulty import RightStep, contract


class Step(RightStep):
    def step(self):
        super().step()
        self.latest = (self.latest.view(np.uint32) & 0xFFFF0000).view(np.float32)


globals().update(contract("tests.support.faulty.wrong", Step))
