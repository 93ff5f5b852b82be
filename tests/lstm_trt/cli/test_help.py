"""The help of each command equals the text in `golden/`; `python -m tests.lstm_trt.cli.test_help` rewrites them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lstm_literature import commands
from lstm_trt import registry
from tests.conftest import PROGRAMS, ROOT
from tests.support.packages import PACKAGES

GOLDEN = Path(__file__).parent / "golden"


def without_layout(text: str) -> list[str]:
    """The words of a help text without its layout, which differs: argparse 3.13 shortens `-p X, --parameter X`."""
    return re.sub(r"(-\w) [A-Z]+( [A-Z]+)*, (--)", r"\1, \3", text).split()


#: Program -> its commands, of which "" is the program itself.
COMMANDS_OF = {"lstm-trt": ["", *registry.commands()], "lstm-literature": ["", *commands.COMMANDS]}
CASES = [(program, command) for program, names in COMMANDS_OF.items() for command in names]


def golden(program: str, command: str) -> Path:
    """The file with a help text."""
    names = [program * (program != "lstm-trt" or not command), command]
    return GOLDEN / f"{'-'.join(filter(None, names))}.txt"


@pytest.mark.parametrize(("program", "command"), CASES)
def test_the_help_is_the_golden_text(lab, program, command):
    result = lab(*filter(None, [program, command]), "--help", COLUMNS="100", NO_COLOR="1")
    assert result.returncode == 0 and result.stderr == ""
    assert without_layout(result.stdout) == without_layout(golden(program, command).read_text())
    assert not command or f"{program} {command}" in result.stdout.split("example:")[1]


def test_every_command_has_a_module_and_no_module_is_left_over():
    modules = set()
    for package in PACKAGES:
        for path in (ROOT / package / "cli").glob("*.py"):
            if re.search("^EXAMPLE", path.read_text(), re.MULTILINE):
                modules.add(f"{package}.cli.{path.stem}")
    commands = registry.commands()
    assert modules == {each.module for each in commands.values()}
    assert all(each.module.endswith(f".cli.{name}") for name, each in commands.items())


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for program, name in CASES:
        line = [sys.executable, "-m", PROGRAMS[program][0], *filter(None, [name]), "--help"]
        golden(program, name).write_text(
            subprocess.run(
                line, check=True, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
            ).stdout
        )
