"""Answers in bfloat16 and calls it fp32."""

import numpy as np

from tests.support.faulty import RightStep, contract


class Step(RightStep):
    def step(self):
        super().step()
        self.answer = (self.answer.view(np.uint32) & 0xFFFF0000).view(np.float32)


globals().update(contract("tests.support.faulty.wrong", Step))
