"""How large the packages are, and which of their functions are hard to read (`tests/support/size.py`)."""

from __future__ import annotations

import ast

import pytest

from tests.conftest import ROOT
from tests.support import size

#: Package -> the most nodes that its syntax trees may have. What adds more takes something away, or says why here.
#: `lstm_trt` has 2 040 more since it records beside loads, which it supervises, and with real-time priority;
#: `lstm_judge` 330 since it keeps loads apart, names the worst and draws their tails. The literature's package has
#: 1 210 fewer, `lstm_onnx` 270.
MOST = {"lstm_trt": 58_040, "lstm_judge": 82_840, "lstm_onnx": 32_880, "lstm_literature": 25_250}


@pytest.mark.parametrize("package", MOST)
def test_the_package_is_no_larger_than_stated_and_no_function_of_it_is_hard_to_read(package):
    measured = [size.measure(path) for path in (ROOT / package).rglob("*.py")]
    assert sum(nodes for nodes, _ in measured) <= MOST[package]
    assert not [name for _, hard in measured for name in hard]


def test_the_size_counts_what_a_reader_reads(tmp_path):
    """One node a name, a number, a statement; texts by their length; nothing for annotations and docstrings."""

    def nodes(source: str) -> int:
        return size.size_of(ast.parse(source))

    assert nodes("a = 1") == nodes("a: int = 1") == 3
    assert nodes('def f(x: int) -> str:\n    """Text."""\n    return x\n') == nodes("def f(x):\n    return x\n")
    assert nodes(f"a = {'x' * 79!r}") == 4


@pytest.mark.parametrize(
    ("body", "is_hard"),
    [
        ("if a: pass\n  " * (size.MOST_BRANCHES - 1), False),
        ("if a: pass\n  " * size.MOST_BRANCHES, True),
        ("a\n  " * (size.MOST_NODES // 2), True),
        ("a\n  " * (size.MOST_NODES // 2 - 1), False),
    ],
)
def test_a_function_is_hard_to_read_that_branches_often_or_is_long(tmp_path, body, is_hard):
    (tmp_path / "module.py").write_text(f"def f():\n  {body}")
    assert size.measure(tmp_path / "module.py")[1] == ["f"] * is_hard
