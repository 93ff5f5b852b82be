"""Ignores new inputs, like a graph with frozen inputs."""

from tests.support.faulty import RightStep, contract


class Step(RightStep):
    def load_inputs(self, inputs):
        pass


globals().update(contract("tests.support.faulty.frozen", Step))
