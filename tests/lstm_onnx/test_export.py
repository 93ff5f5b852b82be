"""`lstm-trt export --c`: the files, what is printed, and mistakes."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess

import numpy as np
import onnx
import pytest
import torch

import lstm_trt
from lstm_onnx.c import export as to_c, file as c_file
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.network import build_module, make_weights, reference_outputs
from lstm_trt.export.to_onnx import export_onnx
from tests.conftest import rest_is_heavy
from tests.support.own_networks import parsed, saved
from tests.support.planted_graphs import relu

SHAPE = ("--layers", 1, "--hidden", 8, "--sequence", 4)


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_the_command_writes_what_it_prints(tmp_path, lab):
    result = lab("export", *SHAPE, "--c", "--target", "x86-64", "--out", tmp_path, CC="gcc")
    assert result.returncode == 0, result.stderr
    files = sorted(tmp_path.iterdir())
    name = "lstm_1x8_s4_b1"
    beside = ["CMakeLists.txt", "README.md", f"{name}.c", f"{name}.h", f"{name}.network.cmake", f"{name}_test.c"]
    assert [path.name for path in files] == beside
    assert all(str(path) in result.stdout for path in files)
    printed = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    head = files[2].read_text().split("*/")[0]
    assert printed["compile with"] in head and printed["error"] in head
    assert 0 < float(printed["error"].split()[0]) < 1e-6


def without_its_error(*network: object, **how: object) -> to_c.WrittenC:
    """`export_c` of a network that is not compiled to measure its error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "no-such-compiler")
        return lstm_trt.export_c(*network, **how)


def run_self_test(folder, name) -> subprocess.CompletedProcess:
    """With the command in its first line."""
    command = (folder / f"{name}_test.c").read_text().splitlines()[0].removeprefix("/* ")
    return subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)


@pytest.mark.skipif(not shutil.which("cc"), reason="needs cc")
@pytest.mark.parametrize(
    ("mode", "precision", "largest", "function"),
    rest_is_heavy(
        [("forward", "fp32", 2**20, "run"), (None, "bf16", 0, "run"), ("stream", "int8", 2**20, "step")],
        lambda mode, precision, largest, function: function == "step",
    ),
)
def test_the_self_test_finds_one_other_weight(tmp_path, monkeypatch, mode, precision, largest, function):
    """With weights in the source, and in a file."""
    monkeypatch.setattr(c_file, "LARGEST_INCLUDED", largest)
    without_its_error(LstmShape(1, 20, 3), tmp_path, mode=mode, precision=precision, name="net")
    done = run_self_test(tmp_path, "net")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"net_{function}: largest error ")
    source, weights = tmp_path / "net.c", tmp_path / "net.bin"
    if weights.exists():
        content = np.fromfile(weights, np.float32)
        content[c_file.HEAD] += 0.25
        content.tofile(weights)
    else:
        head, rows = source.read_text().split("net_weights[net_WEIGHTS]")
        lines = rows.split("\n")
        lines[2] = lines[2].replace(lines[2].split(",")[0], "0.25f", 1)
        source.write_text(f"{head}net_weights[net_WEIGHTS]{chr(10).join(lines)}")
    assert run_self_test(tmp_path, "net").returncode == 1
    if weights.exists():
        weights.unlink()
        missing = run_self_test(tmp_path, "net")
        assert missing.returncode == 1 and "cannot read net.bin" in missing.stderr


@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("cc")), reason="needs cmake and cc")
def test_cmake_builds_and_tests_all_networks_of_a_folder(tmp_path):
    for number, precision in enumerate(("fp32", "int8")):
        without_its_error(LstmShape(1, 8, 2), tmp_path, mode="forward", precision=precision, name=f"net{number}")
    for command in (("-S", ".", "-B", "."), ("--build", ".")):  # twice: CMake's own files are not networks
        subprocess.run(["cmake", *command], cwd=tmp_path, check=True, capture_output=True)
        subprocess.run(["cmake", "."], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(["ctest"], cwd=tmp_path, capture_output=True, text=True)
    assert "100% tests passed" in done.stdout and "out of 2" in done.stdout


def test_files_of_the_user_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    for name in ("README.md", "CMakeLists.txt"):
        (tmp_path / name).write_text("mine")
    written = lstm_trt.export_c(LstmShape(1, 8, 2), tmp_path, name="net")
    assert (tmp_path / "README.md").read_text() == (tmp_path / "CMakeLists.txt").read_text() == "mine"
    assert {path.name for path in written.paths} == {"net.c", "net.h", "net.network.cmake", "net_test.c"}


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
@pytest.mark.parametrize("wrong", [1e-3, np.nan])
def test_code_that_computes_something_else_is_not_written(tmp_path, refused, monkeypatch, wrong):
    """Other numbers, and none where the network has some: planted in the weights that are loaded."""

    def planted(file):
        content = file.content.copy()
        content[c_file.HEAD :] += wrong
        return content.tobytes()

    monkeypatch.setattr(c_file.CFile, "weights", property(planted))
    arguments = ("export", *SHAPE, "--c", "--target", "x86-64", "--out", tmp_path / "out")
    assert "the compiled code is wrong" in refused(*arguments, CC="gcc")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_code_for_this_machine_that_does_not_compile_is_not_written(tmp_path, refused, monkeypatch):
    monkeypatch.setattr(c_file.CFile, "source", property(lambda file: "#error planted"))
    assert "planted" in refused("export", *SHAPE, "--c", "--out", tmp_path / "out", CC="gcc")
    assert not (tmp_path / "out").exists()
    written = lstm_trt.export_c(LstmShape(1, 8, 2), tmp_path / "out", target="x86-64-v3")
    assert written.error is None  # an older compiler, or another system, may lack its flags


@pytest.mark.skipif(not shutil.which("cmake") or not shutil.which("g++"), reason="needs cmake and g++")
def test_a_program_in_cpp_builds_it_with_cmake(tmp_path):
    """The project has no language C and no tests; with the option it has that of the network, which is right."""
    without_its_error(LstmShape(1, 8, 2), tmp_path / "networks", name="net")
    (tmp_path / "main.cpp").write_text(
        '#include "net.h"\n#include <string>\nstatic net each;\n'
        "int main() { return net_init(&each, net_weights) + std::string().size(); }\n"
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(app CXX)\nenable_testing()\n"
        "include(networks/net.network.cmake)\nadd_executable(app main.cpp)\ntarget_link_libraries(app net)\n"
    )
    for option in ("OFF", "ON"):
        for command in (["-S", ".", "-B", "build", f"-DLSTM_TRT_TESTS={option}"], ["--build", "build"]):
            subprocess.run(["cmake", *command], cwd=tmp_path, check=True, capture_output=True)
        subprocess.run([tmp_path / "build/app"], check=True)
        assert (tmp_path / "build/net_test").exists() == (option == "ON")
    done = subprocess.run(["ctest", "--test-dir", "build"], cwd=tmp_path, capture_output=True, text=True)
    assert "100% tests passed" in done.stdout


def test_without_a_compiler_the_error_is_unknown(tmp_path, lab):
    arguments = ("export", *SHAPE, "--c", "--name", "controller", "--format", "json", "--out", tmp_path)
    answer = json.loads(lab(*arguments, CC="no-such-compiler").stdout)
    assert answer["name"] == "controller" and answer["samples"] == {"run": 4, "step": 1} and answer["error"] is None
    assert {file["path"]: file["bytes"] for file in answer["files"]} == {
        str(path): path.stat().st_size for path in tmp_path.iterdir()
    }
    assert "not measured" in (tmp_path / "controller.c").read_text()


def test_where_random_numbers_have_no_answer_the_error_is_unknown(tmp_path):
    """The logarithm of a number below 0 is a NaN in C as in the graph: no error of the code."""
    path = saved(parsed("(float[1, 8] x) => (float[1, 8] y) { y = Log (x) }"), tmp_path)
    written = lstm_trt.export_c(lstm_trt.OnnxNetwork(path), tmp_path / "out", name="net")
    assert written.error is None and not (tmp_path / "out" / "net_test.c").exists()


@pytest.mark.parametrize(
    ("given", "samples"),
    [
        (LstmShape(1, 8, 4), {"run": 4, "step": 1}),
        ((LstmShape(1, 8, 4), "forward"), {"run": 4}),
        ((LstmShape(1, 8, 4), "stream"), {"step": 4}),
        (LstmShape(1, 8, 4, directions=2), {"run": 4}),
        ("forward", {"run": 2, "step": 1}),
        ("stream", {"step": 2}),
        ("one sample", {"run": 1}),
    ],
    ids=str,
)
def test_the_functions_of_a_file(tmp_path, monkeypatch, given, samples):
    """Of a shape, a shape in a mode, ONNX files without and with states as inputs, and one for a single sample.

    Whether that file's calls would give what the network gives for several samples, nothing could say.
    """
    monkeypatch.setenv("CC", "no-such-compiler")
    network, mode = given if isinstance(given, tuple) else (given, None)
    if network == "one sample":
        network = lstm_trt.OnnxNetwork(export_onnx(LstmShape(1, 8, 1), tmp_path).path)
    if isinstance(network, str):
        path = export_onnx(LstmShape(1, 8, 4), tmp_path, symbolic=True, mode=network).path
        network = lstm_trt.OnnxNetwork(path, sizes={"sequence": 2, "batch": 1})
    written = lstm_trt.export_c(network, tmp_path, mode=mode)
    assert written.samples == samples
    header = (tmp_path / f"{written.file.name}.h").read_text()
    assert all((f"{written.file.name}_{function}(" in header) == (function in samples) for function in ("run", "step"))


#: Prints the answers of `run`, and those of `step`, to the inputs of `inputs()`; the exit status is that of `init`.
MAIN = """
#include "net.h"
#include <stdio.h>

static struct net net;

int main(void)
{
    float x[7 * 12], y[7], z;
    const int result = net_init(&net, net_weights);
    if (result) return result;
    for (int i = 0; i < 7 * 12; i++) x[i] = (i * 37 % 101) / 50.f - 1;
    net_run(&net, x, y);
    for (int i = 0; i < 7; i++) printf("%.9g ", y[i]);
    net_reset(&net);
    for (int i = 0; i < 7; i++) {
        net_step(&net, x + 12 * i, &z);
        if (i % 2) net_prepare_next(&net);
        printf("%.9g ", z);
    }
    return 0;
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="needs cc")
@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_a_window_without_a_tick_is_written_with_the_reason(tmp_path, dynamo):
    """Two frames are one sample of the layer; a `Dim` says so: one frame alone cannot be reshaped."""

    class Stacked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = torch.nn.GRU(6, 4, batch_first=True)

        def forward(self, x):
            return self.gru(x.reshape(1, -1, 6))[0]

    path = tmp_path / "stacked.onnx"
    sizes = {"dynamic_axes": {"x": {1: "time"}}}
    if dynamo:
        pytest.importorskip("onnxscript", reason="PyTorch's dynamo exporter needs it")
        sizes = {"dynamic_shapes": ({1: 2 * torch.export.Dim("half", min=2, max=512)},), "external_data": False}
    example = (torch.zeros(1, 8, 3),)
    torch.onnx.export(Stacked().eval(), example, path, input_names=["x"], dynamo=dynamo, **sizes)
    symbol = "2*half" if dynamo else "time"
    network = lstm_trt.OnnxNetwork(path, sizes={symbol: 12})
    assert network.facts.time_symbol == symbol and network.in_mode("stream").states
    written = lstm_trt.export_c(network, tmp_path)
    assert written.samples.keys() == {"run"} and written.error < 2e-6
    reason = written.file.no_step
    assert reason.startswith("it cannot be generated for 1 sample: stacked") and "Reshape" in reason
    assert reason in (tmp_path / "stacked.h").read_text() and f"stacked_step: none, because {reason}" in str(written)


def inputs() -> np.ndarray:
    return (np.arange(7 * 12) * 37 % 101 / 50 - 1).astype(np.float32).reshape(7, 1, 12)


def emulated(processor: str) -> tuple[str, ...]:
    return ("qemu-x86_64", "-cpu", processor)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("target", "compiler", "emulator", "status"),
    [
        ("native", "gcc", (), 0),
        ("x86-64-v3", "gcc", emulated("Haswell"), 0),
        ("x86-64", "gcc", emulated("Nehalem"), 0),
        ("aarch64", "aarch64-linux-gnu-gcc", ("qemu-aarch64",), 0),
        ("generic", "gcc", (), 0),
        ("generic", "arm-linux-gnueabihf-gcc", ("qemu-arm",), 0),
        ("x86-64-v4", "gcc", emulated("Haswell"), 3),
        ("x86-64-v3", "gcc", emulated("Nehalem"), 3),
    ],
)
def test_the_files_compile_without_a_warning_and_compute(tmp_path, target, compiler, emulator, status):
    """In a C program; on a processor that lacks the instructions, `init` reports it."""
    for program in (compiler, *emulator[:1]):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    if emulator and emulator[0] == "qemu-x86_64" and platform.machine() != "x86_64":
        pytest.skip("needs a compiler for x86-64")
    shape = LstmShape(2, 20, 7)
    _, *flags, _, _ = without_its_error(shape, tmp_path, target=target, name="net").file.command.split()
    main = MAIN.replace("if (i % 2) net_prepare_next(&net);", "") if target == "generic" else MAIN
    (tmp_path / "main.c").write_text(main)
    command = [compiler, *flags, "-static", "-Wall", "-Wextra", "-Wpedantic", "main.c", "net.c", "-o", "main"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0 and built.stderr == ""
    done = subprocess.run([*emulator, tmp_path / "main"], capture_output=True, text=True)
    assert done.returncode == status
    if status == 0:
        right = reference_outputs(build_module(shape, make_weights(shape, 0)), inputs()).ravel()
        assert np.allclose(np.fromstring(done.stdout, sep=" ").reshape(2, 7), right, rtol=0, atol=5e-7)


def sine() -> bytes:
    model = onnx.load_from_string(relu())
    model.graph.node[0].op_type, model.graph.node[0].name = "Sin", "my_sin"
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*SHAPE, "--c", "--target", "sparc"), "unknown target 'sparc': choose from native, x86-64-v4"),
        ((*SHAPE, "--c", "--name", "2x"), "C identifier"),
        ((*SHAPE, "--c", "--name", "float"), "C identifier"),
        ((*SHAPE, "--c", "--name", "TILE"), "C identifier"),
        ((*SHAPE, "--c", "--name", "time"), "for example network_time"),
        ((*SHAPE, "--c", "--symbolic"), "--c and --symbolic"),
        ((*SHAPE, "--c", "--batch", 2), "batch size"),
        ((*SHAPE, "--c", "--directions", 2, "--mode", "stream"), "bidirectional"),
        ((*SHAPE, "--target", "x86-64"), "--target is for C code"),
        (("--onnx", "planted.onnx"), "--onnx is for C code"),
        ((*SHAPE, "--c", "--onnx", "planted.onnx"), "--onnx and --layers exclude each other"),
        (("--c", "--onnx", "planted.onnx"), "Sin operator 'my_sin'"),
        (("--c", "--onnx", "missing.onnx"), "cannot read"),
        (("--c", "--onnx", "planted.onnx", "--size", "time=4"), "no symbolic size 'time'"),
        (("--c",), "--layers is missing"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path, refused, arguments, message):
    (tmp_path / "planted.onnx").write_bytes(sine())
    given = [tmp_path / word if str(word).endswith(".onnx") else word for word in arguments]
    assert message in refused("export", *given, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
