"""The commands and programs of the README and of docs/ run as written, in order, in a folder that has data/."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from doctest import ELLIPSIS, OutputChecker
from pathlib import Path

import pytest

from lstm_judge.read.runs import load
from lstm_trt import registry
from lstm_trt.cli.main import FIRST_STEPS
from lstm_trt.machine.linux import allowed_cores
from tests.conftest import ROOT, ran
from tests.support.packages import PACKAGES

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md")), ROOT / "data/README.md", ROOT / "data/published/README.md"]


def blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run_program(code: str, folder: Path, names: dict) -> None:
    """Run a block of Python with the names of the blocks before it."""
    with chdir(folder), redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "a block of a page", "exec"), names)
    assert printed.getvalue() or "print" not in code


def run_page(text: str, folder: Path, lab, shell: bool = False) -> dict[str, int]:
    """Run all blocks of a page or section, of bash only if `shell`; returns numbers of commands, programs, outputs.

    An output may leave out parts, where it has `...`.
    """

    def run_command(line: str) -> str:
        result = lab(*shlex.split(line), cwd=folder)
        answers = (0, 1, 3) if re.search("compare|verdict (latencies.csv|loads)|--until", line) else (0,)
        assert result.returncode in answers, (line, result.stderr)
        return result.stdout

    for name in ("data", "docs"):
        (folder / name).symlink_to(ROOT / name)
    counts = {"commands": 0, "programs": 0, "outputs": 0}
    names = {"__name__": "__main__"}
    for language, block in blocks(text):
        named = re.match(r"(?:#|//) (\w+\.\w+)\n", block)
        if named:  # a module or source for the following commands
            (folder / named[1]).write_text(block)
        if language == "python":
            run_program(block, folder, names)
            counts["programs"] += 1
        elif language == "console":
            command, output = block.removeprefix("$ ").split("\n", 1)
            printed = run_command(command)
            assert printed == output or OutputChecker().check_output(output, printed, ELLIPSIS)
            counts["outputs"] += 1
        elif language == "sh":
            commands = [line for line in block.splitlines() if not line.startswith("make ")]
            assert all(line.startswith(("lstm-trt ", "lstm-literature ")) for line in commands), block
            assert all(run_command(line) for line in commands)
            counts["commands"] += len(commands)
        elif language == "bash" and shell:
            subprocess.run(["bash", "-e", "-c", block], cwd=folder, check=True)
        else:  # tests/lstm_trt/shim runs the bash of docs/gpu.md
            assert language in ("toml", "bash", "c"), f"cannot run {language}"
    return counts


def run_script(script: str, folder: Path, lab) -> int:
    """Run a script in bash under `set -e`; returns how many lstm-trt and lstm-literature commands it ran.

    These run in this process, which has loaded what they need: the script asks for them through a pipe, and so do
    scripts that it starts. `make` does nothing, since what it does has tests of its own. Fails unless the script ends
    with 0.
    """
    asked, answered = folder / ".asked", folder / ".answered"
    for pipe in (asked, answered):
        os.mkfifo(pipe)
    functions = "".join(
        f'{name}() {{ printf "%s\\0" {name} "$@" > .asked; read -r status < .answered; return $status; }}\n'
        f"export -f {name}\n"
        for name in ("lstm-trt", "lstm-literature")
    )
    others = f'make() {{ :; }}\npython() {{ {shlex.quote(sys.executable)} "$@"; }}\n'
    script = f"set -e\ntrap 'echo end > .asked' EXIT\n{functions}{others}{script}"
    commands = 0
    with subprocess.Popen(["bash", "-c", script], cwd=folder) as process:
        try:
            while (line := asked.read_text()) != "end\n":
                words = line.split("\0")[:-1]
                result = lab(*words, cwd=folder)
                commands += 1
                expected = (0, 1, 3) if words[1] in ("verdict", "report") else (0,)
                assert result.returncode in expected, (line, result.stderr)
                answered.write_text(f"{result.returncode}\n")
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, script
    for pipe in (asked, answered):
        pipe.unlink()
    return commands


# Records as the README does, in processes that load PyTorch.
@pytest.mark.heavy
def test_the_blocks_of_the_readme_run_twice(tmp_path, lab):
    (tmp_path / "data").symlink_to(ROOT / "data")
    activate = tmp_path / ".venv/bin/activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    scripts = [block for language, block in blocks(README.read_text()) if language == "sh"]
    for _ in range(2):
        commands = [run_script(script, tmp_path, lab) for script in scripts]
        assert commands == [0, 2, 4, 3]
    for folder, rounds in (("recordings", 2), ("own", 2), ("baseline", 5), ("new", 5)):
        assert set(load(tmp_path / folder).frame["rounds"]) == {rounds}
    for name in ("report.html", "report.xml", "report.md", "controller/streaming_gru.c"):
        assert (tmp_path / name).is_file()


def test_the_output_in_the_readme_is_that_of_its_command(lab):
    (block,) = [block for language, block in blocks(README.read_text()) if language == "console"]
    command, output = block.removeprefix("$ ").split("\n", 1)
    assert output.endswith("\n  ...\n")
    assert OutputChecker().check_output(output, lab(*shlex.split(command)).stdout, ELLIPSIS)


def test_the_first_steps_are_in_the_readme():
    """What `lstm-trt` prints without a command begins with the same recording and the same deadline."""
    steps = re.findall(r"lstm-trt (?:record|verdict|outliers|inspect) .*", FIRST_STEPS)
    assert len(steps) == 4
    for step in steps:
        assert step.replace("model.onnx", "data/networks/") in README.read_text()


@pytest.mark.parametrize(
    "name",
    [
        *("literature", "file-format", "commands"),
        pytest.param("python", marks=pytest.mark.heavy),
        pytest.param("verdict", marks=pytest.mark.heavy),
        pytest.param("compare", marks=pytest.mark.heavy),
        pytest.param("measuring", marks=pytest.mark.heavy),
        pytest.param("networks", marks=pytest.mark.heavy),
    ],
)
def test_the_blocks_of_the_other_pages_run(name, tmp_path, lab):
    if name == "verdict" and len(allowed_cores()) < 2:
        pytest.skip("loads on other cores need some")
    counts = run_page((ROOT / f"docs/{name}.md").read_text(), tmp_path, lab)
    assert counts["commands"] + counts["programs"] >= 1


def test_the_builds_of_engines_run(tmp_path, lab):
    pytest.importorskip("tensorrt_rtx")
    page = (ROOT / "docs/gpu.md").read_text()
    counts = run_page(page, tmp_path, lab)
    assert counts["commands"] == 3 and counts["programs"] == 1
    launches = int(re.search(r"\*\*(\d+) launches for one inference\*\*", page)[1])
    last = [line for language, block in blocks(page) if language == "sh" for line in block.splitlines()][-1]
    built = json.loads(lab(*shlex.split(last)[1:], "--format", "json", cwd=tmp_path).stdout)
    assert built["layers"]["launches"] == launches


def test_the_messages_that_the_gpu_page_explains_exist():
    sources = (ROOT / "benchmarks" / "gpu_packages.py").read_text()
    for package in PACKAGES:
        sources += "".join(path.read_text() for path in (ROOT / package).rglob("*.py"))
    table = (ROOT / "docs/gpu.md").read_text().split("## What errors mean")[1].split("\n## ")[0]
    messages = [part for row in table.splitlines()[4:] for part in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    parts = {part.strip(" ()").removeprefix("no ") for message in messages for part in message.split("...")}
    assert len(messages) > 10 and [part for part in parts if part not in sources] == []


def test_the_readme_links_every_page():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    missing = [page for page in PAGES[1:] if str(page.relative_to(ROOT)) not in links]
    assert missing == []


def test_the_page_of_commands_says_what_the_code_has():
    page = runpy.run_path(str(ROOT / "docs/command_page.py"))
    text = page["PAGE"].read_text()
    assert page["with_made"](text) == text, "run python docs/command_page.py"
    for name in (*registry.commands(), *registry.table("RUNTIMES"), *page["EXTRAS"]):
        assert f"`{name}`" in text


def test_the_files_that_pages_and_modules_name_exist():
    """Names such as `loop.py` are files of this repository."""
    paths = ran("git", "ls-files", "-co", "--exclude-standard", status=None).stdout.splitlines()
    folders = tuple(f"{name}/" for name in (*PACKAGES, "benchmarks", "tests"))
    read = [path for path in paths if path.endswith(".py") and path.startswith(folders)]
    read += [str(page.relative_to(ROOT)) for page in PAGES]
    assert len(read) > 100
    for path in read:
        for name in re.findall(r"`([\w/.]*\w\.py)\b", (ROOT / path).read_text()):
            assert any(f"/{file}".endswith(f"/{name.lstrip('./')}") for file in paths), (path, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_paths_in_packages_that_pages_name_exist(page):
    named = re.findall(rf"(?:tests/)?\b(?:{'|'.join(PACKAGES)})/[\w/.]*\w", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []
