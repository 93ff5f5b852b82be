"""What the README shows is run as it stands, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run(arguments: list[str], folder) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


def test_commands_and_code_run_in_the_order_in_which_they_are_read(tmp_path):
    shown = re.findall(r"```(sh|python)\n(.*?)```", README, re.DOTALL)
    commands = 0
    for language, block in shown:
        if language == "python":
            result = run([sys.executable, "-c", block], tmp_path)
            assert result.returncode == 0, (block, result.stderr)
            continue
        for command in [line for line in block.splitlines() if line.startswith("lstm-trt ")]:
            result = run([sys.executable, "-m", "lstm_trt", *shlex.split(command)[1:]], tmp_path)
            assert result.returncode == 0, (command, result.stderr)
            assert result.stdout
            commands += 1
    assert commands >= 15
    assert [language for language, _ in shown].count("python") == 3


def test_the_builds_of_engines_run_too(tmp_path):
    pytest.importorskip("tensorrt_rtx")
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("lstm-trt build ")]
    assert len(commands) == 3
    for command in commands:
        result = run([sys.executable, "-m", "lstm_trt", *shlex.split(command)[1:]], tmp_path)
        assert result.returncode == 0, (command, result.stderr)
    launches = int(re.search(r"\*\*(\d+) launches for one inference\*\*", README)[1])
    assert f"launches an inference (derived, one a kernel and turn): {launches} " in result.stdout


def test_every_link_and_picture_is_there():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) >= 4
    for link in links:
        assert (ROOT / link.replace("\\", "")).exists(), link


@pytest.mark.parametrize(
    "command",
    [
        *("doctor", "record", "sweep", "summarize", "consolidate", "export", "build", "scaling", "rerun", "cache"),
        *("verdict", "outliers", "compare", "replay", "watch"),
    ],
)
def test_every_command_is_told(command):
    assert f"| `{command}` |" in README
