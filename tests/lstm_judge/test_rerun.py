"""Strict reruns: errors that papermill ignores give one line with notebook and cell."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("papermill")

from lstm_judge.cli import rerun as command  # noqa: E402
from lstm_judge.rerun import (  # noqa: E402
    assigned,
    check_notebooks,
    fitted,
    parse_value,
)
from lstm_trt.config.errors import UsageError  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

DEFAULTS = """# What may be changed.
trials = 10
deadline_us: float = 1000.0
record = False
name = "a"
hidden = [
    64,
    128,
]
deep = {"hidden": [200]}
runtime = "onnxruntime"
record_anew = False
seed = int("3")
"""


def notebook(path: Path, *cells: object, tags: tuple = ("parameters",), kernel: str | None = "python3") -> Path:
    """A notebook with a text cell, the parameters cell (number 2), and these; a cell with tags is (source, tags)."""
    book = nbformat.v4.new_notebook()
    if kernel:
        book.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
    book.cells = [nbformat.v4.new_markdown_cell("# Title")]
    for cell in ((DEFAULTS, list(tags)), *cells):
        source, tags_here = cell if isinstance(cell, tuple) else (cell, [])
        book.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags_here} if tags_here else {}))
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, path)
    return path


def parse(*arguments: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--format", default="text")
    command.add_arguments(parser)
    return parser.parse_args(list(map(str, arguments)))


@pytest.fixture
def rerun(tmp_path, capsys):
    """Run the command with outputs in `runs`: exit status, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        status = command.run(parse(*arguments, "--out", tmp_path / "runs"))
        return status, *capsys.readouterr()

    return call


def in_a_process(*arguments: object, **options) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    return subprocess.Popen([sys.executable, "-m", "lstm_trt", "rerun", *map(str, arguments)], **pipes | options)


# What runs


def test_a_notebook_runs_in_its_folder_with_the_parameters(tmp_path, rerun):
    folder = tmp_path / "note books {1}"  # papermill replaces names in braces
    path = notebook(
        folder / "näme.v1.ipynb",
        "import os\nopen('seen', 'w').write(repr((trials, name, hidden, record, runtime, os.getcwd())))",
        "# only a comment",
        "   ",
        "import warnings; warnings.warn('this is not a failure')",
    )
    before = path.read_bytes()
    status, out, errors = rerun(path, "-p", "trials", 1000, "-p", "record", True, "-y", "name: '007'\nhidden: [32]")
    (output,) = (tmp_path / "runs").iterdir()
    assert (status, errors) == (0, "") and out.startswith(f"{path}: 6 cells in ") and str(output) in out
    assert (folder / "seen").read_text() == repr((1000, "007", [32], True, "onnxruntime", str(folder)))
    assert output.name.startswith("näme.v1-20")
    injected = nbformat.read(output, 4).cells[2]
    assert injected.metadata.tags == ["injected-parameters"] and "trials = 1000" in injected.source
    assert path.read_bytes() == before


def test_parameters_that_papermills_pattern_does_not_read(tmp_path, rerun):
    source = "foo: None | str = None  # foo = 1 in words\nlow, high = 1, 2\nhidden = [8]\nother = hidden = [8, 16]"
    path = notebook(
        tmp_path / "a.ipynb",
        (source, ["parameters"]),
        "assert (foo, low, high, hidden, other) == ('BAR', 5, 2, [32], [8, 16])",
        tags=("an ordinary cell",),
    )
    status, _, errors = rerun(path, *["-p", "foo", "BAR", "-p", "low", "5", "-y"], "hidden: [32]")
    assert status == 0, errors


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("foo: None | str = None", "foo"),
        ("low, (high, *rest) = 1, (2, 3)", "low high rest"),
        ("a = 1  # a == 2, b = 3\n# c = 4", "a"),
        ("a = (\n    1,  # = one\n    2)\nb = {'x': 'y = 1'}", "a b"),
        ("text = '''\nb = 5\n'''", "text"),
        ("import os\na = b = os.sep", "a b"),
        ("if True:\n    a = 1\nelse:\n    b: int = 2", "a b"),
        ("for a in ():\n    b = a", "a b"),
        ("%matplotlib inline\n!true\na = 1", "a"),
        ("%%time\na = 1", "a"),
    ],
)
def test_the_names_that_a_cell_assigns(source, names):
    assert sorted(assigned({"source": source})) == sorted(names.split())


#: Cells after the parameters, the one at which the run ends, and the start of its line.
ENDS = {
    "exit": (("1", "import sys\nsys.exit(0)", "open('after', 'w')"), 4, '"import sys" raised SystemExit: 0'),
    "raises": (
        ("def f():\n    raise ValueError('the first line\\nthe second')", "f()"),
        *(4, '"f()" raised ValueError: the first line'),
    ),
    "dead": (("1", "import os\nos._exit(0)", "1"), 4, '"import os" DeadKernelError: Kernel died'),
    "quit": (("exit()", "1"), 3, '"exit()" called exit()'),
    "status": (("raise SystemExit(3)",), 3, '"raise SystemExit(3)" raised SystemExit: 3'),
    "skipped": ((("x = 1", ["skip-execution"]), "1"), 3, '"x = 1" did not complete'),
    "allowed": ((("raise SystemExit", ["raises-exception"]), "1"), 3, '"raise SystemExit" raised SystemExit'),
}


@pytest.mark.heavy
@pytest.mark.parametrize(
    "names",
    [("exit", "raises", "dead"), ("quit", "status", "skipped", "allowed")],
    ids=" ".join,
)
def test_each_failure_is_one_line_and_the_others_still_run(tmp_path, names):
    """A kernel for each; together they are all ways in which a notebook does not complete."""
    bad = [notebook(tmp_path / f"{name}.ipynb", *ENDS[name][0]) for name in names]
    good = notebook(tmp_path / "good.ipynb", "1")
    process = in_a_process(*bad, good, "-p", "trials", "5", "--out", "runs", "--format", "json", cwd=tmp_path)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 1 and errors.count("\n") == len(bad), errors
    *failed, last = json.loads(out)
    for run, line, path in zip(failed, errors.splitlines(), bad, strict=True):
        _, cell, failure = ENDS[path.stem]
        assert (run["notebook"], run["status"], run["cell"]) == (str(path), "failed", cell), run
        assert line.startswith(f"lstm-trt: {path}: cell {cell}: {failure}")
        assert run["failure"] in line and run["output"] in line
        assert re.fullmatch(rf"runs/{path.stem}-.*\.failed\.ipynb", run["output"])
    assert "the second" not in errors and not (tmp_path / "after").exists()
    assert (last["status"], last["cell"], last["failure"]) == ("ok", None, None)
    written = {str(path.relative_to(tmp_path)) for path in (tmp_path / "runs").iterdir()}
    assert written == {run["output"] for run in (*failed, last)}


@pytest.mark.heavy
def test_a_failure_quotes_the_line_and_an_error_of_ours_is_one_line(tmp_path):
    """In a cell that begins with an empty line, of a call over several lines, and where a package is missing."""
    shapes = "import lstm_trt as lab\n\ndef shapes(layers):\n    return lab.Grid((layers,), (8,), (4,))"
    ours = notebook(tmp_path / "ours.ipynb", shapes, "\nfirst = 1\n\nlist(\n    shapes(0)\n)\nlast = 2")
    lacks = notebook(tmp_path / "lacks.ipynb", "import json\nimport no_such_package")
    process = in_a_process(ours, lacks, "--out", tmp_path / "runs")
    _, errors = process.communicate(timeout=600)
    first, second = errors.splitlines()
    assert ': cell 4: "shapes(0)" raised UsageError: layers must be ' in first
    raised = f"raised ModuleNotFoundError: No module named 'no_such_package' in {sys.executable}: install it there"
    assert f'cell 3: "import no_such_package" {raised}' in second
    (output,) = (tmp_path / "runs").glob("ours-*")
    shown = [each for cell in nbformat.read(output, 4).cells for each in cell.get("outputs", [])]
    (text,) = [line for each in shown if each.output_type == "error" for line in each.traceback]
    assert text.startswith("line 4: UsageError: layers must be ") and "\n" not in text


@pytest.mark.heavy
def test_a_cell_may_take_so_long_and_no_longer(tmp_path, rerun):
    path = notebook(tmp_path / "slow.ipynb", "import time\ntime.sleep(600)")
    status, _, errors = rerun(path, "--cell-limit", 15)
    assert status == 1 and f'{path}: cell 3: "import time" CellTimeoutError: ' in errors
    assert "after 15 seconds" in errors


def test_a_kernel_that_does_not_start(tmp_path, rerun, monkeypatch):
    kernels = tmp_path / "share" / "kernels" / "broken"
    kernels.mkdir(parents=True)
    spec = {"argv": ["/nowhere/python"], "display_name": "broken", "language": "python"}
    (kernels / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))
    path = notebook(tmp_path / "a.ipynb", "1", kernel="broken")
    status, _, errors = rerun(path)
    assert status == 1 and errors.count("\n") == 1
    assert f"{path}: the kernel did not start: FileNotFoundError" in errors


@pytest.mark.heavy
def test_ctrl_c_stops_the_kernel_too(tmp_path):
    path = notebook(tmp_path / "a.ipynb", "import os, time\nopen('pid', 'w').write(str(os.getpid()))", "time.sleep(60)")
    other = notebook(tmp_path / "b.ipynb", "open('ran', 'w')")
    process = in_a_process(path, other, "--out", tmp_path / "runs")
    deadline = time.monotonic() + 300
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=300)
    assert (process.returncode, out, errors) == (130, "", "lstm-trt: stopped\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    (output,) = (tmp_path / "runs").iterdir()
    assert output.name.endswith(".failed.ipynb") and not (tmp_path / "ran").exists()


@pytest.mark.heavy
def test_plain_papermill_runs_the_same_notebook(tmp_path):
    path = notebook(tmp_path / "a.ipynb", "print(trials)")
    command = [sys.executable, "-m", "papermill", path, tmp_path / "out.ipynb", "-p", "trials", "77"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    assert nbformat.read(tmp_path / "out.ipynb", 4).cells[-1].outputs[0].text == "77\n"


# Errors before anything runs


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"trial": 1}, "unknown parameter 'trial'; its parameters cell assigns trials, deadline_us, "),
        ({"x": 1}, "unknown parameter 'x'"),
        ({"record_anew": "false"}, "record_anew must be True or False"),
        ({"deadline_us": "five"}, "deadline_us must be a number, not 'five'"),
        ({"trials": [1, 2]}, "trials must be a number, not [1, 2]"),
        ({"hidden": "large"}, "hidden must be a number, not 'large'"),
        ({"hidden": [64, "large"]}, "hidden must be a number, not 'large'"),
        ({"deep": 5}, "deep must be an object"),
    ],
)
def test_a_parameter_of_the_wrong_type(tmp_path, parameters, message):
    path = notebook(tmp_path / "a.ipynb", "x = 1")  # x is assigned, but not in the parameters cell
    with pytest.raises(UsageError, match=re.escape(f"{path}: {message}")):
        check_notebooks([path], parameters)


def test_parameters_that_are_fine(tmp_path):
    path = notebook(tmp_path / "a.ipynb")
    given = {"trials": 5.5, "deadline_us": None, "record": 1, "name": 5, "hidden": [1], "seed": "x", "record_anew": 0}
    assert check_notebooks([path, path], given) == {path: (2, given)}
    assert check_notebooks([path], {"hidden": 64}) == {path: (2, {"hidden": [64]})}
    magic = ("%matplotlib inline\n!true\nother = 3", ["parameters"])
    with_magic = notebook(tmp_path / "b.ipynb", magic, tags=())
    assert check_notebooks([with_magic], {"other": 4}) == {with_magic: (3, {"other": 4})}


@pytest.mark.parametrize(
    ("default", "given", "expected"),
    [
        ([], "c", ["c"]),
        ([], ("c", "d"), ["c", "d"]),
        ({}, {"x": 1}, {"x": 1}),
        *((default, None, None) for default in ([8], 1, False, {}, "")),
    ],
)
def test_a_value_is_fitted_to_its_default(default, given, expected):
    assert fitted("x", default, given) == expected


#: Name of a file -> its text, or the cells and options of `notebook`, and why it cannot run.
UNFIT = {
    "untagged": ([], {"tags": ()}, "0 cells are tagged 'parameters'"),
    "twice": ([("trials = 1", ["parameters"])], {}, "2 cells are tagged 'parameters'"),
    "again": (
        [("trials = 1", ["injected-parameters"])],
        {},
        "2 cells are tagged 'parameters' or 'injected-parameters'",
    ),
    "nameless": ([], {"kernel": None}, "has no kernel"),
    "text": ("not json\n", {}, "is not a valid notebook"),
    "empty": ("", {}, "is not a valid notebook"),
    "other": (
        '{"cells": [{"cell_type": "code"}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
        {},
        "is not a valid notebook",
    ),
    "nowhere": (None, {}, "No such file"),
}


def test_every_notebook_that_cannot_run_is_named(tmp_path, rerun):
    cases = {tmp_path: "Is a directory"}
    for name, (content, options, message) in UNFIT.items():
        path = tmp_path / f"{name}.ipynb"
        cases[path] = message
        if isinstance(content, list):
            notebook(path, *content, **options)
        elif content is not None:
            path.write_text(content)
    good = notebook(tmp_path / "good.ipynb", "open('ran', 'w')")
    with pytest.raises(UsageError) as every:
        rerun(good, *cases, "-p", "trials", 1)
    for path, message in cases.items():
        with pytest.raises(UsageError) as caught:
            check_notebooks([path], {})
        found = str(caught.value)
        assert message in found and str(path) in found and "\n" not in found and found in str(every.value)
    assert not (tmp_path / "runs").exists() and not (tmp_path / "ran").exists()
    nameless = tmp_path / "nameless.ipynb"
    assert check_notebooks([nameless], {}, kernel="python3") == {nameless: (2, {})}


def printed() -> list[str]:
    """The arguments of this command in README, the notebooks and its help, one text for each example."""
    texts = [(ROOT / "README.md").read_text(), command.EXAMPLE]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        texts += [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"]
    return [found for text in texts for found in re.findall(r"lstm-trt rerun ([^`\n]+)", text)]


@pytest.mark.heavy
def test_examples_run_as_printed(monkeypatch):
    """The parameters are those of the notebooks, and the data that ships has recordings for their values."""
    monkeypatch.chdir(ROOT / "notebooks")
    examples = [parse(*shlex.split(arguments)) for arguments in printed()]
    assert len(examples) >= 3
    for example in examples:
        values = {name: parse_value(value) for name, value in example.parameter}
        for path in check_notebooks([ROOT / path for path in example.notebooks], values):
            cells = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
            known: dict[str, object] = {}
            exec(cells[0], known)
            exec(cells[1], known | values)  # loads the data


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-p", "a", 1, "-p", "a", 2), "a is given twice"),
        (("-p", "a", 1, "-y", "a: 2"), "a is given twice"),
        (("-y", "a"), "not YAML of the form"),
        (("-y", "a: ["), "is not YAML"),
        (("-p", "trials", 1, "--cell-limit", 0), "at least 1 s"),
        ((), "cannot write into"),
    ],
)
def test_wrong_arguments_and_a_folder_that_cannot_be_written(tmp_path, rerun, arguments, message):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UsageError, match=message):
        rerun(notebook(tmp_path / "a.ipynb"), *arguments)


@pytest.mark.parametrize("text", ["1", "-5", "1.5", "1e3", "True", "true", "None", "nan", "1_000", "0x10", "a b", ""])
def test_values_are_those_of_papermill(text):
    from papermill.cli import _resolve_type

    assert repr(parse_value(text)) == repr(_resolve_type(text))
