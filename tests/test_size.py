"""How large the packages are, and which of their functions are hard to read (`tests/support/size.py`)."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.support import size

#: Package -> the most nodes that its syntax trees may have. What adds more takes something away, or says why here.
#: `lstm_judge` has 1 800 more since it has a page to explore.
MOST = {"lstm_trt": 55_950, "lstm_judge": 81_765, "lstm_onnx": 33_070}

#: Function that is hard to read -> why it stays as it is.
HARD: dict[str, dict[str, str]] = {"lstm_trt": {}, "lstm_judge": {}, "lstm_onnx": {}}


@pytest.fixture(scope="module", params=MOST)
def package(request) -> str:
    return request.param


def measured(package: str) -> list:
    return [size.measure(path) for path in sorted((ROOT / package).rglob("*.py"))]


def test_the_package_is_no_larger_than_stated(package):
    assert sum(nodes for nodes, _, _ in measured(package)) <= MOST[package]


def test_the_functions_that_are_hard_to_read_are_those_with_a_reason(package):
    hard = set()
    for _, _, functions in measured(package):
        for branches, nodes, place in functions:
            if branches > size.MOST_BRANCHES or nodes > size.MOST_NODES:
                hard.add(place.rpartition(" ")[2])
    assert hard == set(HARD[package])


def test_the_size_counts_what_a_reader_reads():
    """One node a name, a number, a statement; texts by their length; nothing for annotations and docstrings."""
    import ast

    def nodes(source: str) -> int:
        return sum(weight for _, weight in size.nodes_of(ast.parse(source)))

    assert nodes("a = 1") == 3 and nodes("a: int = 1") == 3
    assert nodes('def f(x: int) -> str:\n    """Text."""\n    return x\n') == nodes("def f(x):\n    return x\n")
    assert nodes(f"a = {'x' * 79!r}") == 4
