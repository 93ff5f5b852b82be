"""The packages: the first knows none of the others, and what they add is found by its name."""

from __future__ import annotations

import configparser
import json
import re
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

import lstm_trt as lab
from lstm_trt import registry
from tests.conftest import ROOT, ran
from tests.support.packages import PACKAGES, copy_packages, loaded

OTHERS = PACKAGES[1:]
TABLES = [name for name, value in vars(registry).items() if name.isupper() and isinstance(value, dict)]


# The core names no other package


def named_in(text: str) -> list[str]:
    """The other packages, and their commands, that a text names."""
    return re.findall(rf"\b(?:{'|'.join(OTHERS)})\b", text.replace("-", "_"))


def test_no_file_of_the_core_names_another_package():
    files = list((ROOT / PACKAGES[0]).rglob("*.py"))
    assert len(files) > 50
    assert {path: names for path in files if (names := named_in(path.read_text()))} == {}


@pytest.mark.parametrize(
    "text", ["import lstm_judge.read", '"lstm_onnx.c"', "# as in lstm_judge/plots", '"""See `lstm-literature list`."""']
)
def test_a_name_is_found_in_any_text(text):
    assert len(named_in(text)) == 1


@pytest.mark.parametrize("code", ["import lstm_trt", "from lstm_trt import registry, runtimes"])
def test_importing_the_core_reads_no_entry_points(code):
    unwanted = ["importlib.metadata", "configparser", *OTHERS]
    for planted in ("importlib.metadata", "lstm_judge.registry"):
        assert loaded(code, unwanted, planted) == []


# What the others add


def test_the_project_names_the_packages_as_their_own_files_do():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = {}
    for package in OTHERS:
        file = configparser.ConfigParser(delimiters="=")
        file.read(ROOT / package / "entry_points.txt")
        assert list(file[registry.PACKAGES].values()) == [f"{package}.registry"]
        stated |= dict(file[registry.PACKAGES])
    assert project["entry-points"][registry.PACKAGES] == stated
    assert {module.__name__ for module in registry.packages()} == set(stated.values())


def test_a_package_adds_to_tables_that_there_are_and_no_name_twice():
    for module in registry.packages():
        assert [name for name in vars(module) if name.isupper() and name not in TABLES] == []
    for name in TABLES:
        tables = [getattr(module, name, {}) for module in (registry, *registry.packages())]
        names = list(chain.from_iterable(tables))
        assert len(names) == len(set(names)), name


def test_names_of_other_packages_are_names_of_the_lab():
    for module in registry.packages():
        assert set(getattr(module, "API", ())) <= set(dir(lab))
    assert (lab.summarize.__module__, lab.plots.__name__) == ("lstm_judge.summarize.summarize", "lstm_judge.plots")


def test_each_command_has_a_place_of_its_own_and_they_are_in_this_order():
    places = [command.place for command in registry.commands().values()]
    assert places == sorted(set(places)) and len(places) > 15


# A further package

PLANTED = {
    "__init__.py": "",
    "entry_points.txt": "[lstm_trt.packages]\nplanted = lstm_planted.registry\n",
    "registry.py": """
from lstm_trt.registry import Command

COMMANDS = {"plant": Command(35, "lstm_planted.command", "recording", "print what grows")}
API = {"grow": "lstm_planted.plant:grow"}
RUNTIMES = {"planted": "lstm_planted.runtime"}
TEXTS = {"Plant": "lstm_planted.text"}
""",
    "plant.py": """
class Plant:
    height_cm = 7

def grow():
    return Plant()
""",
    "command.py": """
import lstm_trt as lab
from lstm_trt.cli.common import print_answer

EXAMPLE = "lstm-trt plant"

def add_arguments(parser):
    pass

def run(arguments):
    print_answer(lab.grow(), arguments.format)
""",
    "text.py": """
def cells(plant):
    return ["height in cm"], [[str(plant.height_cm)]]
""",
    "runtime.py": """
NAME, DISTRIBUTION, DEVICES, PRECISIONS = "planted", "numpy", ("cpu",), {"cpu": ("fp32",)}
availability = prepare = None
""",
}

#: Prints as JSON what a process knows of the planted package.
ASK = """
import contextlib, io, json, sys
import lstm_trt as lab
from lstm_trt import plots, runtimes
from lstm_trt.cli.main import main

def printed(*line):
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        main(line)
    return output.getvalue()

print(json.dumps({
    "from": lab.__file__,
    "help": printed("--help"),
    "command": printed("plant", "--format", "md"),
    "names": dir(lab),
    "height_cm": lab.grow().height_cm,
    "runtime": runtimes.load_runtime("planted").NAME,
    "plots": [plots.__name__, lab.plots.__name__],
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict:
    """What a process says in a copy of the packages with one more beside them, and a folder of an older checkout."""
    folder: Path = tmp_path_factory.mktemp("packages")
    copy_packages(folder)
    for name, text in PLANTED.items():
        (folder / "lstm_planted").mkdir(exist_ok=True)
        (folder / "lstm_planted" / name).write_text(text)
    left = folder / "lstm_trt" / "plots" / "__pycache__"
    left.mkdir(parents=True)
    (left / "style.cpython-311.pyc").write_bytes(b"")
    answer = json.loads(ran(sys.executable, "-c", ASK, cwd=folder).stdout)
    assert answer["from"].startswith(str(folder))
    return answer


def test_a_further_package_adds_without_an_edit_elsewhere(told):
    commands = re.findall(r"^  (\w+)  ", told["help"], re.MULTILINE)
    assert commands[commands.index("record") + 1] == "plant"
    assert told["command"].splitlines()[0] == "| height in cm |"
    assert "grow" in told["names"] and told["height_cm"] == 7
    assert told["runtime"] == "planted"
    assert "plant" not in registry.commands() and "grow" not in dir(lab)


def test_a_folder_that_an_older_checkout_left_hides_no_name(told):
    assert told["plots"] == ["lstm_judge.plots"] * 2
