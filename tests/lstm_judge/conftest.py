"""What tests of judgements share: a table of latencies from elsewhere, and the answer of a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def put(path: Path, columns: dict, separator: str = ",") -> Path:
    """A CSV file; cells as they are printed."""
    rows = zip(*columns.values(), strict=True)
    lines = [separator.join(columns), *(separator.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def table(tmp_path):
    """Write a table with these columns into the folder of the test."""

    def write(columns: dict, name: str = "t.csv", separator: str = ",") -> Path:
        return put(tmp_path / name, columns, separator)

    return write


@pytest.fixture
def answer(run):
    """The JSON output of a command, and its exit status; standard error must be empty."""

    def call(*arguments: object) -> tuple:
        status, out, errors = run(*arguments, "--format", "json")
        assert errors == "", errors
        return json.loads(out), status

    return call
