"""The command line: folders, streams, signals and terminals."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress

import pytest

import lstm_trt
from lstm_judge.rerun import Run
from lstm_trt import registry
from lstm_trt.cli.main import main, parse
from lstm_trt.machine import facts
from lstm_trt.recorder import doctor
from lstm_trt.recorder.doctor import DoctorReport
from lstm_trt.recorder.pool import remarks
from lstm_trt.store import cache
from lstm_trt.store.folders import Consolidated
from tests.conftest import PROGRAMS, ROOT, ran, rest_is_heavy, wait_for
from tests.support.golden import TEXTS
from tests.support.packages import loaded

SHAPE = ("--layers", 1, "--hidden", 8, "--sequence", 4)


@pytest.mark.parametrize("command", ["export", "record", "sweep"])
def test_a_folder_that_cannot_be_written(tmp_path, refused, command):
    blocked = tmp_path / "file"
    blocked.write_text("kept")
    assert str(blocked) in refused(command, *SHAPE, "--out", blocked)
    assert str(blocked) in refused(command, *SHAPE, "--out", blocked / "below")
    assert blocked.read_text() == "kept"


def test_a_read_only_folder(tmp_path, refused):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        assert "Read-only file system" in refused("sweep", *SHAPE, "--out", disk)
        assert "Read-only file system" in refused("record", *SHAPE, "--out", disk / "new")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_bug_has_its_traceback_and_a_separate_exit_status(lab, monkeypatch):
    monkeypatch.setattr(cache, "entries", lambda: 1 / 0)
    result = lab("cache")
    assert result.returncode == 70 and "ZeroDivisionError" in result.stderr and "bug" in result.stderr


def test_the_program_alone_prints_ten_lines_with_commands_that_it_has(lab):
    lines = lab().stdout.splitlines()
    assert len(lines) == 10 and max(map(len, lines)) <= 100
    commands = [line.split("lstm-trt ")[1].split() for line in lines[1:]]
    known = registry.commands()
    parsed = [parse(given) for given in commands if given[0] in known]  # raises for options that it lacks
    assert [each.command for each in parsed] == [
        *("doctor", "record", "verdict", "outliers", "sweep", "summarize", "inspect")
    ]


def test_the_shell_gets_status_and_message_of_a_mistake(refused):
    assert "invalid choice: 'recrod'" in refused("recrod", process=True)


@pytest.mark.heavy
def test_a_closed_pipe_is_not_an_error(tmp_path, lab):
    command = f"{sys.executable} -m lstm_trt doctor --format json | head -c 10"
    result = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode in (0, 141) and result.stderr == ""  # 0 if all was written before


def test_the_cache_is_shown_and_cleared(tmp_path, lab):
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    assert lab("export", *SHAPE, "--out", tmp_path / "out", **home).returncode == 0
    shown = json.loads(lab("cache", "--format", "json", **home).stdout)
    assert shown["kinds"]["onnx"]["files"] == 1 and shown["bytes"] > 0
    assert "removed 1 file, " in lab("cache", "--clear", **home).stdout
    assert json.loads(lab("cache", "--format", "json", **home).stdout)["bytes"] == 0


@pytest.mark.parametrize("ending", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.heavy)])
def test_terminate_and_hang_up_are_a_clean_stop(ending, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    arguments = ["record", *map(str, SHAPE), "--trials", "10000000", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "lstm_trt", *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert wait_for((tmp_path / "out").is_dir, 300, process), "it didn't begin"
    process.send_signal(ending)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in errors
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] in ([], [".lstm_trt.lock"])
    assert not list((tmp_path / "tmp").iterdir())


#: A program that records, in which a library keeps the exception of a signal to itself.
KEPT = """
import os, signal, sys

from lstm_trt.cli.main import main
from lstm_trt.recorder import pool

begin = pool.WorkerPool.__enter__


def begin_after_a_signal(self):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        pass
    return begin(self)


pool.WorkerPool.__enter__ = begin_after_a_signal
sys.exit(main(sys.argv[1:]))
"""


def test_a_stop_that_a_library_kept_to_itself_is_seen_by_the_next_wait(tmp_path):
    arguments = ["record", *map(str, SHAPE), "--trials", "10000000", "--out", str(tmp_path / "out")]
    stopped = ran(sys.executable, "-c", KEPT, *arguments, status=130)
    assert stopped.stderr == "lstm-trt: stopped\n"
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_a_deleted_working_folder_is_one_line(monkeypatch, capsys):
    def gone():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "getcwd", gone)
    assert main(["summarize", "recordings"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "lstm-trt: cannot use the working folder: No such file or directory; change to another one"
    ]


def test_too_little_address_space_is_refused_before_a_library_waits_for_more(monkeypatch, lab):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (400_000_000, resource.RLIM_INFINITY))
    found = lab("summarize", "recordings")
    assert found.returncode == 1 and len(found.stderr.splitlines()) == 1
    assert "not enough memory" in found.stderr and "400 MB of address space (ulimit -v)" in found.stderr


HEAVY = ("torch", "onnx", "onnxruntime", "openvino", "pycuda", "cuda.bindings", "tensorrt", "tensorrt_rtx", "pynvml")
HEAVY += ("pandas", "matplotlib")
#: Code that must load neither these nor others: what it may not load, and one of them that is there.
LIGHT = {
    "import lstm_trt, lstm_trt.cli.main as main; main.build_parser()": ("numpy", "pyarrow", "scipy"),
    "from lstm_trt.machine import checks, counters, facts; facts.describe('cpu')": ("numpy",),
    "import lstm_trt.export.tensorrt.engine": ("onnx",),
    "from lstm_trt import registry, runtimes\n"
    "for name in registry.table('RUNTIMES'): runtimes.load_runtime(name)\n"
    "for name in ('pytorch', 'pytorch-cudagraph', 'torch-compile', 'torchscript'):\n"
    "    runtimes.load_runtime(name).availability('cpu')": ("onnx",),
}


@pytest.mark.parametrize("code", LIGHT)
def test_importing_loads_nothing_heavy(code):
    assert loaded(code, (*HEAVY, *LIGHT[code]), LIGHT[code][0]) == []


def test_the_names_of_the_package_all_resolve():

    for name in dir(lstm_trt):
        assert getattr(lstm_trt, name) is not None
    with pytest.raises(AttributeError):
        lstm_trt.no_such_name  # noqa: B018


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", rest_is_heavy([80, 120], lambda width: width == 80))
@pytest.mark.parametrize("name", ["verdict-met", "replay", "summarize", "literature"])
def test_a_terminal_gets_lines_of_its_width_and_a_pipe_the_whole_text(monkeypatch, name, width):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    program, *arguments = TEXTS[name] if TEXTS[name][0] in PROGRAMS else ["lstm-trt", *TEXTS[name]]
    with redirect_stdout(Terminal()) as out:
        PROGRAMS[program][1](arguments)
    whole = (ROOT / f"tests/golden/{name}.txt").read_text()
    assert max(map(len, whole.splitlines())) > 80
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    if "columns not shown" not in out.getvalue():
        assert out.getvalue().split() == whole.split()


VERSIONS = {"lstm_trt": "0", "python": "3", "kernel": "6"}


@pytest.mark.parametrize(("term", "width"), [("dumb", 120), ("xterm", 20), ("xterm", 39)])
@pytest.mark.parametrize("command", [["doctor"], ["summarize", "data/epyc/confirm"], []])
def test_a_terminal_that_is_narrow_or_without_control_sequences_gets_what_a_pipe_gets(
    lab, monkeypatch, command, term, width
):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(doctor, "examine", lambda: DoctorReport([], VERSIONS, facts.describe("cpu"), []))
    whole = lab(*command).stdout
    with redirect_stdout(Terminal()) as out, suppress(SystemExit):  # the program alone ends after its first steps
        main(command)
    assert out.getvalue() == whole and "\033" not in whole


def test_an_error_is_wrapped_too_and_a_pipe_gets_one_line(monkeypatch, refused):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    line = refused("lstm-literature", "list", "foo")
    assert "unknown workload 'foo': choose from" in line and len(line) > 60
    with redirect_stderr(Terminal()) as errors:
        assert PROGRAMS["lstm-literature"][1](["list", "foo"]) == 2
    assert max(map(len, errors.getvalue().splitlines())) <= 60 and errors.getvalue().split() == line.split()


def test_an_empty_folder_names_the_command_that_records_into_it(tmp_path, refused):
    assert "lstm-literature record " in refused("lstm-literature", "table", "--out", tmp_path)
    assert "lstm-trt record " in refused("summarize", tmp_path)


def test_after_a_command_signals_mean_what_they_did_before():
    """A process that is asked to end while it ends anyway must not end as if by Ctrl-C."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    for line in (["--version"], ["summarize", "no-such-folder"]):
        with contextlib.suppress(SystemExit):
            main(line)
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def test_one_is_singular():
    assert str(Consolidated(ROOT, 1, 1)).endswith(" 1 recording, 1 failure")
    assert ": 1 cell in " in str(Run(ROOT, ROOT, 1.0, 1))
    assert remarks({"max_us": 1.0, "calls": 1}, {"median_share": 0.0}, True)[0].endswith(" of 1 call")
