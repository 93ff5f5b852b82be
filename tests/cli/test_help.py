"""The help of each command equals the text in `golden/`; `python -m tests.cli.test_help` rewrites these files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lstm_trt.registry import COMMANDS
from tests.conftest import ROOT

GOLDEN = Path(__file__).parent / "golden"


def without_layout(text: str) -> list[str]:
    """The words of a help text without its layout, which differs: argparse 3.13 shortens `-p X, --parameter X`."""
    return re.sub(r"(-\w) [A-Z]+( [A-Z]+)*, (--)", r"\1, \3", text).split()


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_help_is_the_golden_text(lab, command):
    result = lab(*filter(None, [command]), "--help", COLUMNS="100", NO_COLOR="1")
    assert result.returncode == 0 and result.stderr == ""
    assert without_layout(result.stdout) == without_layout((GOLDEN / f"{command or 'lstm-trt'}.txt").read_text())
    assert not command or f"lstm-trt {command}" in result.stdout.split("example:")[1]


def test_every_command_has_a_module_and_no_module_is_left_over():
    files = {path.stem for path in (ROOT / "lstm_trt/cli").glob("*.py")}
    assert files - {"__init__", "main", "common"} == set(COMMANDS)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in ("", *COMMANDS):
        line = [sys.executable, "-m", "lstm_trt", *filter(None, [name]), "--help"]
        (GOLDEN / f"{name or 'lstm-trt'}.txt").write_text(
            subprocess.run(
                line, check=True, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
            ).stdout
        )
