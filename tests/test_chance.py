"""Random tests: the seed that a failure prints repeats it, and together they rarely fail by chance."""

from __future__ import annotations

import functools

from tests import conftest

pytest_plugins = ["pytester"]

DRAWING = """
import pytest

@pytest.mark.parametrize("size", [1, 2])
def test_parts(size, rng):
    assert size == 1, rng.integers(2**62)

def test_alone(rng):
    assert False, rng.integers(2**62)

def test_fixed():
    pass
"""


def test_the_seed_that_a_repeated_test_prints_repeats_it_alone(pytester):
    hooks = "own_id, pytest_addoption, pytest_configure, pytest_generate_tests, pytest_runtest_makereport, rng, seed"
    pytester.makeconftest(f"from tests.conftest import {hooks}")
    pytester.makepyfile(test_drawing=DRAWING)
    run = functools.partial(pytester.inline_run, "-p", "no:cacheprovider", "-p", "no:xdist")
    several = run("--seed", "5", "--seeds", "3")
    assert several.countoutcomes() == [4, 0, 6]
    repeats = [dict(report.sections)["seed"] for report in several.getfailures()]
    names = [f"test_drawing.py::{name}" for name in ("test_parts[2]", "test_alone")]
    assert repeats == [f'repeat with "{name}" --seed {seed}' for name in names for seed in (5, 6, 7)]
    messages = [report.longrepr.reprcrash.message for report in several.getfailures()]
    assert len(set(messages)) == 6
    for name, message in zip(names, messages[1::3], strict=True):
        (alone,) = run(name, "--seed", "6").getfailures()
        assert alone.longrepr.reprcrash.message == message
    for name in names:
        repeated = f"{name[:-1]}-seed=5]" if name.endswith("]") else f"{name}[seed=5]"
        assert {conftest.own_id(known + group, 5) for known in (name, repeated) for group in ("", "@group")} == {name}
