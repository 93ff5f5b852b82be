"""Random tests: the seed that a failure prints repeats it, and together they rarely fail by chance."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from tests import conftest
from tests.conftest import ROOT

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


def drawing(path: Path) -> list[str]:
    """The functions of a file that ask for random numbers, themselves or by a fixture of this file."""
    text = path.read_text()
    if not re.search(r"\b(rng|seed)\b", text):  # reading the syntax of all files takes seconds
        return []
    functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}

    def asks(name: str) -> bool:
        arguments = {argument.arg for argument in functions[name].args.args} - {name}
        return bool(arguments & {"rng", "seed"}) or any(map(asks, arguments & functions.keys()))

    return sorted(filter(asks, functions))


def test_every_random_test_is_in_the_table_and_the_tails_add_up_to_less_than_one_in_1000():
    table, total = {}, 0.0
    for line in (ROOT / "docs/chance.md").read_text().splitlines():
        if row := re.fullmatch(r"\| `(tests/\S+)` \| (.+) \| (\S+) \| .+ \|", line):
            table.setdefault(row[1], []).extend(re.findall(r"`(\w+)`", row[2]))
            total += float(row[3])
    expected = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if names := [name for name in drawing(path) if name.startswith("test_")]:
            expected[path.relative_to(ROOT).as_posix()] = names
    assert {file: sorted(names) for file, names in table.items()} == expected
    assert 0 < total < 1e-3
    # Fixtures for several files are not looked for in them.
    assert drawing(ROOT / "tests/conftest.py") == ["of_this_seed", "own_id", "rng"]
    assert not any(map(drawing, (ROOT / "tests").glob("*/conftest.py")))
