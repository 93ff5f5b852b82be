"""Standard streams that are closed, full or not read: a command does what it does with /dev/null in their place."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT, sampled

#: The names of the streams that are closed.
CLOSED = [["stdout"], ["stderr"], ["stdin", "stdout", "stderr"]]

#: Each way to print: answers as text and JSON, warnings, help, the first steps, a mistake.
WORDS = [
    *([], ["record", "--help"], ["lstm-literature", "--version"], ["cache"], ["summarize", "no such folder"]),
    *(["verdict", "data/epyc/confirm", "--deadline-us", "270", "--format", form] for form in ("text", "json")),
]

#: Runs each command with /dev/null for all streams, then in a process of its own without those that are closed, as
#: Python begins without them; prints the cases that differ. The first runs also import what the others need.
SCRIPT = """
import json, os, sys
from tests.conftest import PROGRAMS

NUMBERS = {"stdin": 0, "stdout": 1, "stderr": 2}
words, closings = json.loads(sys.argv[1])


def status(command):
    program, *given = command if command and command[0] in PROGRAMS else ["lstm-trt", *command]
    try:
        return PROGRAMS[program][1](given)
    except SystemExit as ended:
        return ended.code or 0


def status_without(command, closed):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        for name in closed:
            os.close(NUMBERS[name])
            setattr(sys, name, None)
        found = status(command)
        numbers = {name: getattr(sys, name).fileno() for name in NUMBERS}
        os._exit(found if numbers == NUMBERS else 99)
    finally:
        os._exit(98)


answers = os.fdopen(os.dup(1), "w")
null = os.open(os.devnull, os.O_RDWR)
for number in NUMBERS.values():
    os.dup2(null, number)
os.close(null)
right = [status(command) for command in words]
found = []
for command, expected in zip(words, right):
    found += [(command, closed) for closed in closings if status_without(command, closed) != expected]
json.dump([right, found], answers)
answers.close()
"""


def test_a_command_has_the_same_status_where_streams_are_closed():
    given = json.dumps([WORDS, CLOSED])
    done = subprocess.run([sys.executable, "-c", SCRIPT, given], capture_output=True, text=True, cwd=ROOT)
    assert json.loads(done.stdout) == [[0, 0, 0, 0, 2, 1, 1], []], done.stderr


def test_a_child_process_has_its_connection_where_streams_are_closed(tmp_path):
    """The pipe to it would get the number of a closed stream, which is replaced in the child."""
    code = f"""
import os, sys
for number, name in enumerate(("stdin", "stdout", "stderr")):
    os.close(number)
    setattr(sys, name, None)
from lstm_trt.machine.process import Child
begin = "from multiprocessing.connection import Connection; theirs = Connection(int(sys.argv[-1]))"
child = Child(begin + "; theirs.send(abs(theirs.recv()))")
child.connection.send(-3)
open({str(tmp_path / "answer")!r}, "w").write(str(child.connection.recv()))
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert (tmp_path / "answer").read_text() == "3"


@pytest.mark.parametrize("place", ["/dev/full", "a pipe that nobody reads"])
def test_what_standard_error_does_not_take_changes_no_status(place):
    if place == "/dev/full":
        errors = os.open(place, os.O_WRONLY)
    else:
        reader, errors = os.pipe()
        os.close(reader)
    command = [sys.executable, "-m", "lstm_trt", "summarize", "no such folder"]
    try:
        assert subprocess.run(command, stderr=errors, cwd=ROOT).returncode == 2
    finally:
        os.close(errors)


@pytest.mark.heavy
@sampled(2)
@pytest.mark.parametrize("streams", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_a_recording_is_stored_where_streams_are_closed_or_full(tmp_path, streams):
    command = f"{sys.executable} -m lstm_trt record --layers 1 --hidden 8 --sequence 4 --trials 20 --out {tmp_path}"
    assert subprocess.run(["bash", "-c", f"{command} {streams}"], cwd=ROOT).returncode == 0
    assert len(list(tmp_path.glob("*.parquet"))) == 1
