"""An installation with pip that has no extra: what can be looked at, and what its user is told."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from lstm_judge import campaign, rerun
from lstm_onnx.c import compile as c_compile
from lstm_trt.config import libraries
from lstm_trt.config.errors import RuntimeUnavailable, UsageError
from lstm_trt.export.tensorrt import trt
from lstm_trt.machine import gpu
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: What `make` and an editable installation need, which only a checkout has.
OF_A_CHECKOUT = re.compile(r"make [a-z-]+|pip install -e")

#: Prints as JSON for each module the names that introspection lacks, and the lines that users read.
LOOK = """
import contextlib, importlib, inspect, io, json, pydoc
from lstm_trt.cli.main import main
from lstm_trt.recorder import doctor
from lstm_trt.registry import COMMANDS, RUNTIMES
from lstm_literature import implementations, states

lacking = {}
for name in ("lstm_trt", "lstm_judge.plots", "lstm_literature"):
    module = importlib.import_module(name)
    members = [member for member, _ in inspect.getmembers(module)]
    lacking[name] = [member for member in dir(module) if member not in members or not hasattr(module, member)]
    assert len(pydoc.render_doc(module)) > 200
sweep = "sweep --layers 1 --hidden 8 --sequence 4 --scheduler tcp://127.0.0.1:1 --out out".split()
said = []
for line in [*([command, "--help"] for command in COMMANDS), ["rerun", "a.ipynb", "-p", "a", "1"], sweep]:
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()) as printed:
        with contextlib.suppress(SystemExit):
            main(line)
    assert bool(errors.getvalue()) == ("--help" not in line) and bool(printed.getvalue()) == ("--help" in line), line
    said.append(errors.getvalue())
said += [row.remedy for name in RUNTIMES for row in doctor.rows_of(name)]
said += [states.row_of(name).remedy for name in implementations.entries()]
print(json.dumps([lacking, said]))
"""


def needed_by(name: str, found: dict[str, metadata.Distribution]) -> None:
    """Add a distribution and what it needs without extras to those that were `found`."""
    distribution = metadata.distribution(name)
    if distribution.name not in found:
        found[distribution.name] = distribution
        for requirement in map(Requirement, distribution.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed_by(requirement.name, found)


@pytest.fixture(scope="module")
def looked(tmp_path_factory) -> tuple[dict[str, list[str]], list[str]]:
    """What `LOOK` prints in a process that finds the packages, and what they need without extras."""
    site = tmp_path_factory.mktemp("site-packages")
    for name in ("lstm_trt", "lstm_literature"):
        (site / name).symlink_to(ROOT / name)
    needed: dict[str, metadata.Distribution] = {}
    for text in PROJECT["dependencies"]:
        needed_by(Requirement(text).name, needed)
    for distribution in needed.values():
        for file in distribution.files or ():
            top = file.parts[0]
            if top != ".." and not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    environment = os.environ | {"PYTHONPATH": str(site)}
    line = [sys.executable, "-S", "-c", LOOK]
    done = subprocess.run(line, cwd=site, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


@pytest.mark.heavy
def test_introspection_finds_every_name(looked):
    assert looked[0] == {"lstm_trt": [], "lstm_judge.plots": [], "lstm_literature": []}


@pytest.mark.heavy
def test_every_command_has_its_help_and_what_is_missing_is_said_with_its_extra(looked):
    said = [line for line in looked[1] if line]
    for extra in ("lab", "cluster", "openvino", "frameworks"):
        assert any(f"pip install 'lstm_trt[{extra}]'" in line for line in said), extra
    assert [line for line in said if OF_A_CHECKOUT.search(line) or line.count("\n") > 1] == []


def remedies() -> list[str]:
    """What is said to users who lack a compiler, papermill, TensorRT, its bindings, a newer driver or recordings."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        campaign.gpu_runs("no-such-topic")
    with pytest.raises(RuntimeUnavailable) as no_compiler:
        c_compile.find_compiler()
    with pytest.raises(UsageError) as no_papermill:
        rerun.rerun(["a.ipynb"])
    flavours = [flavour.remedy for flavour in trt.FLAVOURS.values()]
    errors = [str(no_compiler.value), str(no_papermill.value)]
    return [said.getvalue(), gpu.old_driver_remedy(), *errors, *flavours]


def test_remedies_are_those_of_a_checkout_or_of_an_installation(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setitem(sys.modules, "papermill", None)
    assert libraries.in_checkout() and all(OF_A_CHECKOUT.search(line) for line in remedies())
    monkeypatch.setattr(libraries, "__file__", str(tmp_path / "lstm_trt/config/libraries.py"))
    assert not libraries.in_checkout()
    installed = remedies()
    assert [line for line in installed if OF_A_CHECKOUT.search(line)] == []
    for extra in ("c", "lab", "tensorrt", "rtx"):
        assert any(f"pip install 'lstm_trt[{extra}]'" in line for line in installed), extra


@pytest.mark.heavy
def test_words_of_a_checkout_stand_only_in_functions_that_ask_whether_it_is_one():
    targets = "|".join(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    of_a_checkout = re.compile(rf"\bmake ({targets})\b|pip install -e")
    wrong = []
    for package in ("lstm_trt", "lstm_literature"):
        for path in (ROOT / package).rglob("*.py"):
            for function in re.split(r"(?m)^(?=def |class |    def |#: )", path.read_text()):
                without = re.sub(r'"""(?s:.*?)"""|#.*', "", function)
                if of_a_checkout.search(without) and "in_checkout()" not in without:
                    wrong.append(f"{path}: {of_a_checkout.search(without)[0]}")
    assert wrong == []
