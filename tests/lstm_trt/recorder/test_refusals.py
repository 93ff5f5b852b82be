"""Commands that contradict themselves are refused in one line, before anything is made: `refusals.txt` has the lines.

`python -m tests.lstm_trt.recorder.test_refusals` rewrites it; use it after an intended change, and review the
differences. Several commands before the arguments, as in "record,sweep", are refused in the same line.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.conftest import run_here

TABLE = Path(__file__).with_name("refusals.txt")
LINES = TABLE.read_text().splitlines()


def answers(line: str, out: Path) -> set[str]:
    """What the commands of a line of the table say on standard error."""
    commands, *arguments = shlex.split(line)
    said = set()
    for command in commands.split(","):
        done = run_here([command, *arguments, "--out", str(out)])
        assert (done.returncode, done.stdout, out.exists()) == (2, "", False), done
        said.add(done.stderr.replace(f"{command} --help", "COMMAND --help"))
    return said


@pytest.mark.parametrize(("line", "expected"), list(zip(LINES[::2], LINES[1::2], strict=True)))
def test_what_contradicts_itself_is_refused_in_one_line(tmp_path, line, expected):
    assert answers(line, tmp_path / "out") == {f"{expected}\n"}


if __name__ == "__main__":
    told = [f"{line}\n{answers(line, Path('no-such-folder')).pop()}" for line in LINES[::2]]
    TABLE.write_text("".join(told))
