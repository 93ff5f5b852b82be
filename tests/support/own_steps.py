"""Steps as users write them, importable by name: `tests.support.own_steps:make_numpy` and others."""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np

#: Imported in this process only if it times the step.
PARENT = os.environ.get("TESTS_OWN_STEPS_PARENT") == str(os.getpid())


def make_numpy():
    """A recurrent layer in numpy; a plain function is timed."""
    generator = np.random.default_rng(0)
    weights, samples = generator.standard_normal((16, 16)) / 4, generator.standard_normal((8, 16))

    def step():
        state = np.zeros(16)
        for sample in samples:
            state = np.tanh(weights @ state + sample)
        return state

    return step


class Pipeline:
    """Scaling, a filter with state, a decision: an object that counts its calls."""

    def __init__(self):
        self.calls, self.resets, self.state, self.parent = 0, 0, 0.0, PARENT

    def step(self):
        self.calls += 1
        self.state = 0.9 * self.state + 0.1 * float(np.float32(self.calls))

    def reset(self):
        self.calls, self.state, self.resets = 0, 0.0, self.resets + 1

    def outputs(self):
        return {"alarm": np.array([self.state > 1e9])}

    def facts(self):
        cores = sorted(os.sched_getaffinity(0))
        odd = {"nan": float("nan"), "array": np.arange(2), ("a", 1): 0}
        return {"calls": self.calls, "resets": self.resets, "in_parent": self.parent, "cores": cores, **odd}

    def close(self):
        print("closed", file=sys.stderr)


def make_c():
    """A binding of the C function that the variable names."""
    library = ctypes.CDLL(os.environ["TESTS_OWN_STEPS_LIBRARY"])
    samples = np.arange(64, dtype=np.float64)
    library.energy.restype = ctypes.c_double
    address, count = samples.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(len(samples))
    assert library.energy(address, count) == float((samples**2).sum())
    return lambda: library.energy(address, count)


def raises_at_once():
    raise ValueError("no such accelerator\nand more")


def needs_an_argument(name):
    return name.upper


def returns_nothing():
    pass


def returns_a_coroutine():
    async def step():
        pass

    return step


def raises_later():
    calls = iter(range(499))
    return lambda: next(calls)


def leaves():
    sys.exit("the licence has ended")


class FactsAreWrong(Pipeline):
    def facts(self):
        raise RuntimeError("no facts")
