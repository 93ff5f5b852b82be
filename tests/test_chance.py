"""Random tests: the seed that a failure prints repeats it, and together they rarely fail by chance.

Each test that draws from the seed states how likely a correct program fails it, all of its cases together, and how
this is known: `@pytest.mark.random(tail=3.2e-5, why="rates, 32 checks of 0.05")`. Under whichever seed, the whole suite
(`make test` and `make test-frameworks`) fails by chance in less than one run of 1000: the tails add up to less than
that. `python -m tests.test_chance` prints them. The words of `why`:

* *rates*: a share of samples is counted, and `check_rate` (tests/support/planted_latencies.py) allows as many as a
  program that fails exactly the stated share exceeds once in a million times, by the binomial law: at most 1e-6 for
  each check. Under three seeds and more (the heavy cases under one), the share of no case was above the stated one; at
  the shares that were seen, all checks together have a chance of 1.3e-7.
* *identity*: the expected answer follows from the drawn numbers themselves, whatever they are; only a fault of the
  program fails it.
* *fuzzing*: each drawn file or network must be answered or refused; only a fault of the program fails it.
* *exact*: calculated from the law of what is drawn.
* *measured*: the statistic was computed under 300 seeds, or as many as stated; the threshold is so many standard
  deviations away. Where that is more than seven, 1e-9 stands for all cases together.
* *counted at test_x*: one tail holds for several tests of a file. The first of them states it, the others have 0.

The seed alone makes a test random: tests with real processes assert nothing that a slow or busy machine can change.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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


COUNTED_AT = "counted at "


class Chance(NamedTuple):
    """What the marker of a test states."""

    test: str
    tail: float
    why: str


@functools.cache
def functions_of(path: Path) -> dict[str, ast.FunctionDef]:
    """The functions of a file that can draw random numbers or have the marker; of another file none."""
    text = path.read_text()
    if not re.search(r"\b(rng|seed|mark\.random)\b", text):  # reading the syntax of all files takes seconds
        return {}
    return {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def drawing(functions: dict[str, ast.FunctionDef]) -> list[str]:
    """The functions that ask for random numbers, themselves or by a fixture of the same file."""

    def asks(name: str) -> bool:
        arguments = {argument.arg for argument in functions[name].args.args} - {name}
        return bool(arguments & {"rng", "seed"}) or any(map(asks, arguments & functions.keys()))

    return sorted(filter(asks, functions))


def marked(functions: dict[str, ast.FunctionDef]) -> list[Chance]:
    """What the markers of a file state."""
    chances = []
    for name, function in functions.items():
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.random":
                stated = {keyword.arg: ast.literal_eval(keyword.value) for keyword in decorator.keywords}
                chances.append(Chance(name, **stated))
    return chances


def files() -> Iterator[tuple[str, dict[str, ast.FunctionDef]]]:
    """The files of tests that may draw, with their functions."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if functions := functions_of(path):
            yield path.relative_to(ROOT).as_posix(), functions


def test_each_test_that_draws_is_marked_and_the_tails_add_up_to_less_than_one_in_1000():
    total = 0.0
    for file, functions in files():
        chances = marked(functions)
        tests = [name for name in drawing(functions) if name.startswith("test_")]
        assert sorted(chance.test for chance in chances) == tests, file
        total += sum(chance.tail for chance in chances)
    assert 0 < total < 1e-3
    # Fixtures for several files are not looked for in them.
    assert drawing(functions_of(ROOT / "tests/conftest.py")) == ["of_this_seed", "own_id", "rng"]
    assert not any(drawing(functions_of(path)) for path in (ROOT / "tests").glob("*/**/conftest.py"))


def test_a_tail_of_zero_is_an_identity_or_fuzzing_or_counted_at_another_test_of_the_file():
    for file, functions in files():
        chances = marked(functions)
        with_tail = {chance.test for chance in chances if chance.tail}
        for chance in chances:
            named = chance.why.removeprefix(COUNTED_AT)
            never = re.match(r"(identity|fuzzing)\b", chance.why) is not None
            assert (chance.tail == 0) == (never or named in with_tail), (file, chance)


class Row(NamedTuple):
    """A line of the printed table."""

    file: str
    tests: list[str]
    tail: float
    why: str


def rows() -> Iterator[Row]:
    """All random tests; those of a file that share a tail, or the reason why they have none, share a row."""
    for file, functions in files():
        chances = marked(functions)
        reasons = {chance.test: chance.why for chance in chances}
        together: dict[str, list[Chance]] = {}
        for chance in chances:
            shared = chance.test if chance.tail else chance.why.removeprefix(COUNTED_AT)
            together.setdefault(shared, []).append(chance)
        for shared, group in together.items():
            tests = [chance.test for chance in group]
            tail = sum(chance.tail for chance in group)
            yield Row(file, tests, tail, reasons.get(shared, shared))


def table() -> Iterator[str]:
    """The rows as Markdown, and below them what all tails are together."""
    yield "| file | tests | chance | how it is known |"
    yield "| --- | --- | --- | --- |"
    total = 0.0
    for row in rows():
        yield f"| {row.file} | {', '.join(row.tests)} | {row.tail:g} | {row.why} |"
        total += row.tail
    yield f"| all | | {total:.3g} | less than 0.001 is allowed |"


def test_the_table_has_each_test_once():
    found = list(rows())
    in_rows = [(row.file, test) for row in found for test in row.tests]
    in_files = [(file, chance.test) for file, functions in files() for chance in marked(functions)]
    assert sorted(in_rows) == sorted(in_files)
    assert not any(row.why.startswith(COUNTED_AT) for row in found)


if __name__ == "__main__":
    print("\n".join(table()))
