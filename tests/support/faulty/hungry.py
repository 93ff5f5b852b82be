"""Allocates ever more memory in the timed loop, for sequences of 6 only."""

from tests.support.faulty import RightStep, contract


class Step(RightStep):
    def __init__(self, request):
        super().__init__(request)
        self.allocated = []

    def step(self):
        if self.inputs.shape[0] == 6:
            self.allocated.append(bytearray(b"x") * (64 << 20))
        super().step()


globals().update(contract("tests.support.faulty.hungry", Step))
