"""Answers the question that it was built with, whatever is asked: a graph that froze its inputs."""

from tests.support.faulty import RightStep, contract


class Step(RightStep):
    def load_inputs(self, inputs):
        pass


globals().update(contract("tests.support.faulty.frozen", Step))
