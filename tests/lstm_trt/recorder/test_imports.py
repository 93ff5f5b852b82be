"""What a recording of a stacked LSTM on a CPU loads, in the process of the command and in the one that is timed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT, rest_is_heavy

#: Written by each process of this package when it ends: its modules, and the large libraries among them.
HOOK = """
import atexit, os, sys
LIBRARIES = ("pandas", "scipy", "matplotlib", "torch")
def write():
    names = [name for name in sys.modules if name.split(".")[0] == "lstm_trt" or name in LIBRARIES]
    kind = next((kind for kind in ("worker", "cli") if any(f"{kind}." in f"{name}." for name in names)), "other")
    if "lstm_trt.machine.roofline" in names and kind == "worker":
        kind = "preparing"  # the process that makes the reference, and the roofline bound
    with open(os.path.join(os.environ["SEEN"], f"{kind}-{os.getpid()}"), "w") as file:
        file.write(" ".join(names))
atexit.register(write)
"""

#: What none of both may load.
NEEDLESS = (
    *("lstm_judge.analysis", "lstm_judge.plots", "lstm_judge.read.tables", "lstm_judge.read.foreign"),
    *("lstm_onnx.own_network", "lstm_onnx.read_onnx", "lstm_trt.recorder.soak", "lstm_trt.recorder.watch"),
    *(
        "lstm_trt.machine.gpu",
        "lstm_trt.machine.roofline",
        "lstm_trt.runtimes.cuda._cuda",
        "lstm_trt.export.tensorrt.trt",
    ),
    *("scipy", "matplotlib"),
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> dict[str, set[str]]:
    """Process -> its modules."""
    folder = tmp_path_factory.mktemp("seen")
    (folder / "sitecustomize.py").write_text(HOOK)
    command = [sys.executable, "-m", "lstm_trt", "record", "--runtime", "onnxruntime", "--layers", "1", "--hidden", "8"]
    command += ["--sequence", "4", "--trials", "20", "--out", str(folder / "out")]
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"SEEN": str(folder), "PYTHONPATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "20 trials after warm-up: max " in done.stdout and ", median " in done.stdout
    return {file.name.split("-")[0]: set(file.read_text().split()) for file in folder.glob("*-[0-9]*")}


@pytest.mark.parametrize(("process", "most"), [("cli", 45), ("worker", 36)])
def test_a_recording_loads_only_what_it_needs(loaded, process, most):
    names = loaded[process]
    assert [name for name in names if name.startswith(NEEDLESS)] == []
    own = sorted(name for name in names if name.startswith("lstm_trt"))
    assert len(own) <= most, own
    assert process == "cli" or not {"pandas", "torch"} & names
    other = {"cli": "prepare", "worker": "describe"}[process]  # the other process's half
    assert f"lstm_trt.recorder.{other}" not in names


def test_runtimes_on_a_cpu_load_no_cuda():
    names = ["c", "onnxruntime", "openvino", "pytorch", "torch-compile", "torchscript"]
    loaded = f"[runtimes.load_runtime(name) for name in {names}]"
    code = f"import sys; from lstm_trt import runtimes; {loaded}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"lstm_trt.runtimes.cuda._cuda", "lstm_trt.machine.gpu"} & set(done.stdout.split())


@pytest.mark.parametrize("arguments", [("verdict", "--deadline-us", "1000"), ("outliers",)])
@pytest.mark.parametrize("table", rest_is_heavy([False, True], bool))
def test_an_answer_in_text_loads_no_data_frames(tmp_path, arguments, table):
    (tmp_path / "t.csv").write_text("latency_us,slow\n" + "\n".join(f"{100 + 7 * k % 40},{k % 3}" for k in range(400)))
    path = tmp_path / "t.csv" if table else ROOT / "data/epyc/confirm"
    code = "import sys; from lstm_trt.cli.main import main; main(sys.argv[1:]); print(); print(*sys.modules)"
    command = [sys.executable, "-c", code, arguments[0], str(path), *arguments[1:]]
    loaded = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    assert "lstm_judge.analysis.quantiles" in loaded
    assert not {"pandas", "matplotlib", "torch"} & set(loaded.split())
