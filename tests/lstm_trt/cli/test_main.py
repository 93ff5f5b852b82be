"""Bad input: one clear line, exit status 2, no data lost, no partial files."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
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
from tests.conftest import PROGRAMS, ROOT, rest_is_heavy, wait_for
from tests.support.golden import TEXTS
from tests.support.packages import loaded

SHAPE = ("--layers", 1, "--hidden", 8, "--sequence", 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--version=1",), "see lstm-trt --help"),
        (("recrod",), "invalid choice: 'recrod' (did you mean 'record'?): choose from doctor, cache, record"),
        (
            ("record", "--layers", 1, "--hidden", 8, "--out", "x"),
            "--sequence is missing: give the sizes of a stacked LSTM",
        ),
        (("doctor", "--colour"), "unrecognized arguments: --colour; see lstm-trt doctor --help"),
        (("record", "--xyz=1"), "unrecognized arguments: --xyz=1; see lstm-trt record --help"),
        (("record", "--runtmie", "c"), "arguments: --runtmie (did you mean '--runtime'?); see lstm-trt record --help"),
        (("doctor", "extra"), "unrecognized arguments: extra; see lstm-trt doctor --help"),
        (("summarize", "x", "--format", "xml"), "choose from text, json, csv, md; see lstm-trt summarize --help"),
        (("record", "--layers", 0, "--hidden", 8, "--sequence", 4, "--out", "x"), "layers must be at least 1"),
        (("record", "--layers", "two", "--hidden", 8, "--sequence", 4, "--out", "x"), "invalid int value: 'two'"),
        (("record", "--layers", "1_0", "--hidden", 8, "--sequence", 4, "--out", "x"), "invalid int value: '1_0'"),
        (("record", *SHAPE, "--trials", "\u0661\u0662", "--out", "x"), "invalid int value: '\u0661\u0662'"),
        (("verdict", "x", "--deadline-us", "1_000"), "invalid float value: '1_000'"),
        (("verdict", "x", "--deadline-ms", "\u0661"), "invalid float value: '\u0661'"),
        (("record", *SHAPE, "--cores", "1_0", "--out", "x"), "--cores: needs numbers of cores"),
        (("record", *SHAPE, "--for", "\u0661h", "--out", "x"), "write the duration as 3h"),
        (
            ("record", *SHAPE, "--runtime", "tensorflo", "--out", "x"),
            "unknown runtime 'tensorflo' (did you mean 'tensorrt'?): choose from c, onnxruntime",
        ),
        (("record", *SHAPE, "--runtime", "a.b.c", "--out", "x"), "cannot be imported"),
        (("record", *SHAPE, "--precision", "fp8", "--out", "x"), "invalid choice: 'fp8'"),
        (("record", *SHAPE, "--precision", "tf32", "--out", "x"), "tf32: choose from"),
        (("record", *SHAPE, "--device", "tpu", "--out", "x"), "unknown device 'tpu'"),
        (("record", *SHAPE, "--device-clocks", "all", "--out", "x"), "no device clocks"),
        (("record", *SHAPE, "--graph", "--out", "x"), "omit --graph"),
        (("record", *SHAPE, "--threads", 4096, "--out", "x"), "lower --threads"),
        (("record", *SHAPE, "--cores", "two", "--out", "x"), "--cores: needs numbers of cores, such as 2,3 or 0-3"),
        (("record", *SHAPE, "--cores", 99999, "--out", "x"), "--cores 99999: there must be one core for each of"),
        (("sweep", *SHAPE, "--cores", "0,1", "--out", "x"), "one core for each of --threads 1, out of"),
        (("record", *SHAPE, "--trials", 0, "--out", "x"), "trials must be at least 1"),
        (("record", *SHAPE, "--warmup", -1, "--out", "x"), "warmup must be at least 0"),
        (("record", *SHAPE, "--seed", -1, "--out", "x"), "seed must be at least 0"),
        (("record", *SHAPE, "--directions", 3, "--out", "x"), "directions must be 1 or 2"),
        (("sweep", "--layers", 1, "--hidden", 8, "--out", "x"), "--sequence is missing"),
        (("sweep", "--grid", "funding", "--out", "x"), "unknown grid 'funding': choose from published-003"),
        (("sweep", *SHAPE, "--rounds", 0, "--out", "x"), "rounds must be at least 1"),
        (("sweep", *SHAPE, "--time-limit", 0, "--out", "x"), "time limit must be"),
        (("sweep", *SHAPE, "--memory-limit-gb", -1, "--out", "x"), "--memory-limit-gb must be above 0"),
        (("sweep", *SHAPE, "--batch", 1, 0, "--out", "x"), "batch must be at least 1"),
        (("sweep", *SHAPE, "--runtime", "onnxruntime", "nope", "--out", "x"), "unknown runtime 'nope'"),
        (("consolidate", "nowhere-at-all"), "nowhere-at-all"),
        (("summarize", "nowhere-at-all"), "no such file or folder: nowhere-at-all"),
        (("export", "--layers", 1, "--hidden", 8, "--sequence", 0, "--out", "x"), "sequence must be at least 1"),
        (("export", *SHAPE, "--seed", -1, "--out", "x"), "seed must be at least 0"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_a_mistake_is_one_line(tmp_path, refused, arguments, message):
    before = sorted(path.name for path in ROOT.iterdir())
    assert message in refused(*(tmp_path / "x" if argument == "x" else argument for argument in arguments))
    assert not (tmp_path / "x").exists() or not list((tmp_path / "x").iterdir())
    assert sorted(path.name for path in ROOT.iterdir()) == before


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


def test_importing_the_package_loads_nothing_heavy():
    heavy = ("torch", "pandas", "matplotlib", "numpy", "onnx", "onnxruntime", "pyarrow", "scipy")
    for code in ("import lstm_trt", "import lstm_trt.cli.main as main; main.build_parser()"):
        assert loaded(code, heavy, "numpy") == []


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


def test_the_help_lists_every_command_once_by_group(lab):
    text = lab("--help", COLUMNS="80").stdout
    commands = registry.commands()
    assert re.findall(r"^  (\w+)  ", text, re.MULTILINE) == list(commands)
    groups = dict.fromkeys(each.group for each in commands.values())
    assert re.findall(r"^([\w ]+):$", text, re.MULTILINE)[1:] == list(groups)
