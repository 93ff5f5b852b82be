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
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement

from lstm_judge import campaign, rerun
from lstm_onnx.c import compile as c_compile
from lstm_trt.config import libraries
from lstm_trt.config.errors import NotInstalled, RuntimeUnavailable, UsageError
from lstm_trt.export.tensorrt import trt
from lstm_trt.machine import gpu
from tests.conftest import ROOT, ran
from tests.support.distributions import build
from tests.support.packages import PACKAGES

#: What `make` and an editable installation need, which only a checkout has.
OF_A_CHECKOUT = re.compile(r"make [a-z-]+|pip install -e")

#: The command that a wheel names where what recording needs is missing.
RECORDS = "install it with pip install 'lstm_trt[record]'"

#: Prints as JSON for each module the names that introspection lacks.
INTROSPECT = """
import importlib, inspect, json, pydoc

lacking = {}
for name in ("lstm_trt", "lstm_judge.plots", "lstm_literature"):
    module = importlib.import_module(name)
    members = [member for member, _ in inspect.getmembers(module)]
    lacking[name] = [member for member in dir(module) if member not in members or not hasattr(module, member)]
    assert len(pydoc.render_doc(module)) > 200
print(json.dumps(lacking))
"""

#: Prints as JSON the lines that users read.
LOOK = """
import contextlib, io, json
from lstm_trt import registry
from lstm_trt.cli.main import main
from lstm_trt.recorder import doctor
from lstm_literature import implementations, states

sweep = "sweep --layers 1 --hidden 8 --sequence 4 --scheduler tcp://127.0.0.1:1 --out out".split()
said = []
for line in [*([command, "--help"] for command in registry.commands()), ["rerun", "a.ipynb", "-p", "a", "1"], sweep]:
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()) as printed:
        with contextlib.suppress(SystemExit):
            main(line)
    assert bool(errors.getvalue()) == ("--help" not in line) and bool(printed.getvalue()) == ("--help" in line), line
    said.append(errors.getvalue())
said += [row.remedy for name in registry.table("RUNTIMES") for row in doctor.rows_of(name)]
said += [states.row_of(name).remedy for name in implementations.entries()]
print(json.dumps(said))
"""

#: Prints as JSON what each name of `lab` says that needs more than the plain package; "" if it says nothing.
ASK = """
import json
from pathlib import Path
import lstm_trt as lab

Path("model.onnx").touch()
shape = lab.LstmShape(layers=1, hidden=8, sequence=4)
calls = {
    "record": lambda: lab.record(shape),
    "record with another runtime": lambda: lab.record(shape, "c"),
    "soak": lambda: lab.soak(shape, 5, out="out"),
    "sweep": lambda: lab.sweep([shape], "onnxruntime", out="out"),
    "versions": lambda: lab.versions("onnxruntime", ["1.20", "1.21"], shape, out="out"),
    "describe": lambda: lab.describe(shape),
    "load_or_record": lambda: lab.load_or_record("no-data", workloads=[shape], record=True, out="out"),
    "OnnxNetwork": lambda: lab.OnnxNetwork("model.onnx"),
    "own_networks": lambda: lab.own_networks("model.onnx", {}),
    "TorchNetwork": lambda: lab.TorchNetwork(None, ()),
    "inspect": lambda: lab.inspect("model.onnx"),
    "export_c": lambda: lab.export_c(shape, "out"),
    "export_onnx": lambda: lab.export_onnx(shape, "out"),
    "build_engine": lambda: lab.build_engine(shape),
}
said = dict.fromkeys(calls, "")
for name, call in calls.items():
    try:
        call()
    except lab.LabError as error:
        said[name] = str(error)
print(json.dumps(said))
"""

SHAPE = "--layers 1 --hidden 8 --sequence 4"

#: Command lines that need more than the plain package.
RECORDING = (
    f"record {SHAPE} --out out",
    f"record {SHAPE} --runtime openvino --out out",
    f"record {SHAPE} --runtime c --for 5s --out out",
    "record --onnx model.onnx --out out",
    f"sweep {SHAPE} --out out",
    f"versions onnxruntime 1.20 1.21 {SHAPE} --out out",
    "inspect model.onnx",
    f"export {SHAPE} --out out",
    f"export {SHAPE} --c --out out",
    "export --onnx model.onnx --c --out out",
    f"build {SHAPE} --out out",
)


class Installed:
    """An environment with the wheel and what pip installs with it, used from a folder without a checkout."""

    def __init__(self, environment: Path, folder: Path):
        self.environment = environment
        self.folder = folder

    def run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with no module path but its own."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [self.environment / "bin" / program, *arguments]
        return ran(*command, status=None, cwd=self.folder, env=variables)

    def printed(self, code: str) -> Any:
        """The JSON values that Python code prints."""
        done = self.run("python", "-c", code)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    """The wheel, installed without extras; skips where pip reaches no index."""
    environment = tmp_path_factory.mktemp("environment")
    venv = ran(sys.executable, "-m", "venv", environment, status=None)
    if venv.returncode:
        pytest.skip(f"needs venv with pip: {venv.stdout.strip()}")
    wheel, _ = build(tmp_path_factory.mktemp("wheel"))
    found = Installed(environment, tmp_path_factory.mktemp("empty"))
    pip = ("-m", "pip", "install", "--quiet", "--no-compile", "--retries", "1", "--disable-pip-version-check")
    done = found.run("python", *pip, "--constraint", ROOT / "constraints.txt", wheel)
    if "No matching distribution found for" in done.stderr:
        pytest.skip(f"needs an index that pip reaches: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.heavy
def test_what_records_is_not_installed(installed):
    code = "import importlib.util as u, json; print(json.dumps([name for name in {} if u.find_spec(name)]))"
    assert installed.printed(code.format(("torch", "onnx", "onnxruntime", "pynvml"))) == []
    assert installed.printed(code.format(PACKAGES)) == [*PACKAGES]


@pytest.mark.heavy
def test_latencies_are_judged_and_drawn(installed):
    times = 100 * np.random.default_rng(1).permutation(5000) / 5000 + 400  # all orders are alike: 400 to 499.98
    (installed.folder / "times.csv").write_text("\n".join(["latency_us", *map(str, times)]))
    for deadline, status, answer in (("1000", 0, "MET"), ("450", 1, "MISSED")):
        verdict = ("verdict", "times.csv", "--deadline-us", deadline)
        done = installed.run("lstm-trt", *verdict, "--figures", f"figures-{deadline}")
        assert (done.returncode, done.stdout.split(":")[0]) == (status, answer), done.stderr
        assert "max 500.0 us in n = 5000 trials" in done.stdout
        (figure,) = (installed.folder / f"figures-{deadline}").glob("*.png")
        assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.heavy
@pytest.mark.parametrize("line", RECORDING)
def test_a_command_that_needs_more_says_so_in_one_line(installed, line):
    done = installed.run("lstm-trt", *line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"lstm-trt: (torch|onnx) is not installed; {re.escape(RECORDS)}\n", done.stderr)
    assert not (installed.folder / "out").exists()


@pytest.mark.heavy
def test_a_name_of_the_lab_that_needs_more_says_so_in_one_line(installed):
    for name, said in installed.printed(ASK).items():
        assert re.fullmatch(rf"(torch|onnx) is not installed; {re.escape(RECORDS)}", said), name


@pytest.mark.heavy
def test_doctor_says_what_every_runtime_lacks(installed):
    done = installed.run("lstm-trt", "doctor")
    assert done.returncode == 0 and "RUNTIMES: 0 of " in done.stdout
    assert "not installed: torch, onnx, " in done.stdout and "-> pip install 'lstm_trt[record]'" in done.stdout


@pytest.fixture(scope="module")
def linked(tmp_path_factory) -> Path:
    """A folder with links to what pip installed here with the plain package, and to nothing else."""
    folder = tmp_path_factory.mktemp("linked")
    wanted, found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"], set()
    while wanted:
        requirement = Requirement(wanted.pop())
        if requirement.name in found or not (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(requirement.name)
        distribution = metadata.distribution(requirement.name)
        if distribution.files is None:
            pytest.skip(f"nobody says which files {requirement.name} has")
        wanted += distribution.requires or []
        for first in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not (folder / first).exists():
                (folder / first).symlink_to(distribution.locate_file(first))
    return folder


def test_introspection_finds_every_name(linked):
    """As where the plain package is installed: only what it depends on can be imported or is said to be there."""
    code = f"import sys; sys.path = [{str(ROOT)!r}, {str(linked)!r}, *sys.path]\n"
    here = ran(sys.executable, "-I", "-S", "-c", f"{code}import importlib.util as u; print(u.find_spec('onnx'))")
    assert here.stdout == "None\n"
    lacking = json.loads(ran(sys.executable, "-I", "-S", "-c", code + INTROSPECT).stdout)
    assert lacking == {"lstm_trt": [], "lstm_judge.plots": [], "lstm_literature": []}


@pytest.mark.heavy
def test_introspection_of_an_installation_finds_every_name(installed):
    assert not any(installed.printed(INTROSPECT).values())


@pytest.mark.heavy
def test_every_command_has_its_help_and_what_is_missing_is_said_with_its_extra(installed):
    lines = installed.printed(LOOK)
    said = [line for line in lines if line]
    for extra in ("record", "lab", "cluster", "openvino", "frameworks"):
        assert any(f"pip install 'lstm_trt[{extra}]'" in line for line in said), extra
    assert [line for line in said if OF_A_CHECKOUT.search(line) or line.count("\n") > 1] == []


def remedies() -> list[str]:
    """What is said to users who lack a compiler, papermill, PyTorch, TensorRT, its bindings, a driver or recordings."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        campaign.gpu_runs("no-such-topic")
    with pytest.raises(RuntimeUnavailable) as no_compiler:
        c_compile.find_compiler()
    with pytest.raises(UsageError) as no_papermill:
        rerun.rerun(["a.ipynb"])
    with pytest.raises(NotInstalled) as no_torch:
        libraries.require("torch")
    flavours = [flavour.remedy for flavour in trt.FLAVOURS.values()]
    errors = [str(each.value) for each in (no_compiler, no_papermill, no_torch)]
    return [said.getvalue(), gpu.old_driver_remedy(), *errors, *flavours]


def test_remedies_are_those_of_a_checkout_or_of_an_installation(tmp_path, machine, monkeypatch):
    machine.compiler()
    machine.without("papermill", "torch")
    assert libraries.in_checkout() and all(OF_A_CHECKOUT.search(line) for line in remedies())
    monkeypatch.setattr(libraries, "__file__", str(tmp_path / "lstm_trt/config/libraries.py"))
    assert not libraries.in_checkout()
    installed = remedies()
    assert [line for line in installed if OF_A_CHECKOUT.search(line)] == []
    for extra in ("c", "lab", "record", "tensorrt", "rtx"):
        assert any(f"pip install 'lstm_trt[{extra}]'" in line for line in installed), extra


@pytest.mark.heavy
def test_words_of_a_checkout_stand_only_in_functions_that_ask_whether_it_is_one():
    targets = "|".join(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    of_a_checkout = re.compile(rf"\bmake ({targets})\b|pip install -e")
    wrong = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for function in re.split(r"(?m)^(?=def |class |    def |#: )", path.read_text()):
                without = re.sub(r'"""(?s:.*?)"""|#.*', "", function)
                if of_a_checkout.search(without) and "in_checkout()" not in without:
                    wrong.append(f"{path}: {of_a_checkout.search(without)[0]}")
    assert wrong == []
