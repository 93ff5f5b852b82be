"""What a recording of a stacked LSTM on a CPU loads, in the process of the command and in the one that is timed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from lstm_trt import registry
from tests.conftest import ROOT, rest_is_heavy
from tests.support.packages import PACKAGES, loaded

#: Large libraries.
LIBRARIES = ("pandas", "scipy", "matplotlib", "torch")

#: Loaded by each process when it has written its modules, which are then written again: what a test does not find among
#: the modules before, it must find among those after.
PLANTED = ("lstm_judge.statistics.quantiles", "lstm_onnx.own_network", "lstm_literature.published", "scipy")

#: Written by each process of a package when it ends: its modules, and the large libraries among them.
HOOK = f"""
import atexit, importlib, os, sys
NAMES = {(*PACKAGES, *LIBRARIES)}
def write(kind):
    names = [name for name in sys.modules if name.split(".")[0] in NAMES]
    with open(os.path.join(os.environ["SEEN"], f"{{kind}}-{{os.getpid()}}"), "w") as file:
        file.write(" ".join(names))
def write_twice():
    kind = "other"
    if "lstm_trt.cli.main" in sys.modules:
        kind = "cli"
    if "lstm_trt.recorder.child" in sys.modules:
        # The process that makes the reference has the roofline bound too.
        kind = "preparing" if "lstm_trt.machine.roofline" in sys.modules else "worker"
    write(kind)
    for name in {PLANTED}:
        importlib.import_module(name)
    write(f"{{kind}} planted")
atexit.register(write_twice)
"""

#: What none of both may load.
NEEDLESS = (
    *("lstm_trt.recorder.soak", "lstm_trt.recorder.snapshot", "lstm_trt.machine.gpu", "lstm_trt.machine.roofline"),
    *("lstm_trt.runtimes.cuda._cuda", "lstm_trt.export.tensorrt.trt", "scipy", "matplotlib"),
)


@pytest.fixture(scope="module")
def modules(tmp_path_factory) -> dict[str, set[str]]:
    """Process -> its modules; with " planted" after its name those that it has after it loaded `PLANTED`."""
    folder = tmp_path_factory.mktemp("seen")
    (folder / "sitecustomize.py").write_text(HOOK)
    line = "-m lstm_trt record --runtime onnxruntime --layers 1 --hidden 8 --sequence 4 --trials 20 --out out"
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"SEEN": str(folder), "PYTHONPATH": path}
    command = [sys.executable, *line.split()]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {file.name.split("-")[0]: set(file.read_text().split()) for file in folder.glob("*-[0-9]*")}


def allowed_of_others(process: str) -> set[str]:
    """What a process may load of the packages beside `lstm_trt`: the command their tables, and the flags of kinds.

    The process that is timed loads nothing of them.
    """
    if process == "worker":
        return set()
    allowed = {module.__name__ for module in registry.packages()} | set(registry.table("FLAGS").values())
    folders: set[str] = set()
    for name in allowed:
        parts = name.split(".")
        folders |= {".".join(parts[:end]) for end in range(1, len(parts))}
    return allowed | folders


def of_others(names: set[str]) -> set[str]:
    """Of these modules those of the packages beside `lstm_trt`."""
    return {name for name in names if name.startswith(PACKAGES[1:])}


def needless(names: set[str], process: str) -> set[str]:
    """Of these modules those that a process of a recording does not need."""
    other = {"cli": "prepare", "worker": "describe"}[process]  # the other process's half
    unwanted = [*NEEDLESS, f"lstm_trt.recorder.{other}"]
    if process == "worker":
        unwanted += ["pandas", "torch"]
    found = {name for name in names if f"{name}.".startswith(tuple(f"{each}." for each in unwanted))}
    return found | of_others(names) - allowed_of_others(process)


@pytest.mark.parametrize(("process", "most"), [("cli", 51), ("worker", 41)])
def test_a_recording_loads_only_what_it_needs(modules, process, most):
    assert needless(modules[process], process) == set()
    own = sorted(modules[process] - set(LIBRARIES) - of_others(modules[process]))
    assert len(own) <= most, own
    assert set(PLANTED) <= needless(modules[f"{process} planted"], process)


def test_what_is_needless_exists():
    assert [name for name in NEEDLESS if find_spec(name) is None] == []


def test_runtimes_on_a_cpu_load_no_cuda():
    names = ["c", "onnxruntime", "openvino", "pytorch", "torch-compile", "torchscript"]
    code = f"from lstm_trt import runtimes; [runtimes.load_runtime(name) for name in {names}]"
    assert loaded(code, ["lstm_trt.runtimes.cuda._cuda", "lstm_trt.machine.gpu"], "lstm_trt.machine.gpu") == []


@pytest.mark.parametrize("command", ["verdict {} --deadline-us 1000", "outliers {}"])
@pytest.mark.parametrize("table", rest_is_heavy([False, True], bool))
def test_an_answer_in_text_loads_no_data_frames(tmp_path, command, table):
    path = ROOT / "data/epyc/confirm"
    if table:
        path = tmp_path / "t.csv"
        path.write_text("latency_us,slow\n" + "\n".join(f"{100 + 7 * k % 40},{k % 3}" for k in range(400)))
    code = "import sys; from lstm_trt.cli.main import main; main(sys.argv[1:])"
    names = ["lstm_judge.statistics.quantiles", "pandas", "matplotlib", "torch"]
    assert loaded(code, names, "pandas", *command.format(path).split()) == names[:1]
