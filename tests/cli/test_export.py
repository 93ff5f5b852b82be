"""`lstm-trt export --c`: the files, what is printed, and mistakes."""

from __future__ import annotations

import json
import shutil
import subprocess

import onnx
import pytest

import lstm_trt
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.c_file import TARGETS
from lstm_trt.export.to_onnx import export_onnx
from tests.support.planted_graphs import recurrent, relu

SHAPE = ("--layers", 1, "--hidden", 8, "--sequence", 4)

COMPILERS = {"aarch64": "aarch64-linux-gnu-gcc"}


def test_the_command_writes_what_it_prints(tmp_path, lab):
    result = lab("export", *SHAPE, "--c", "--target", "x86-64-v3", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["lstm_1x8_s4_b1.c", "lstm_1x8_s4_b1.h"]
    assert all(str(path) in result.stdout for path in files) and "-march=x86-64-v3" in result.stdout
    answer = json.loads(
        lab("export", *SHAPE, "--c", "--out", tmp_path, "--name", "controller", "--format", "json").stdout
    )
    assert answer["name"] == "controller" and answer["samples"] == {"run": 4, "step": 1}
    assert {(tmp_path / name).stat().st_size for name in ("controller.c", "controller.h")} == {
        file["bytes"] for file in answer["files"]
    }


@pytest.mark.parametrize(("mode", "samples"), [("forward", {"run": 4}), ("stream", {"step": 4})])
def test_a_mode_selects_the_function(tmp_path, lab, mode, samples):
    written = lstm_trt.export_c(LstmShape(1, 8, 4), tmp_path, mode=mode)
    assert written.samples == samples


def test_an_onnx_file_with_states_gets_a_step(tmp_path, lab):
    path = export_onnx(LstmShape(1, 8, 4), tmp_path, symbolic=True, mode="stream").path
    sizes = ("--size", "sequence=2", "batch=1")
    answer = json.loads(lab("export", "--onnx", path, *sizes, "--c", "--out", tmp_path, "--format", "json").stdout)
    assert answer["samples"] == {"step": 2} and answer["name"] == "n1x8_symbolic_stream"


@pytest.mark.heavy
@pytest.mark.parametrize("target", TARGETS)
def test_the_printed_command_compiles_without_a_warning(tmp_path, target):
    written = lstm_trt.export_c(LstmShape(2, 20, 7), tmp_path, target=target)
    _, *flags = written.command.split()
    compiler = COMPILERS.get(target, "gcc")
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    done = subprocess.run([compiler, "-Wall", "-Wextra", *flags], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def convolution() -> bytes:
    model = onnx.load_from_string(relu())
    model.graph.node[0].op_type, model.graph.node[0].name = "Softplus", "my_softplus"
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*SHAPE, "--c", "--target", "sparc"), "unknown target 'sparc': choose from native, x86-64-v4"),
        ((*SHAPE, "--c", "--name", "2x"), "C identifier"),
        ((*SHAPE, "--c", "--name", "float"), "C identifier"),
        ((*SHAPE, "--c", "--symbolic"), "--c and --symbolic"),
        ((*SHAPE, "--c", "--batch", 2), "batch size"),
        ((*SHAPE, "--c", "--directions", 2, "--mode", "stream"), "bidirectional"),
        ((*SHAPE, "--target", "x86-64"), "--target is for C code"),
        (("--onnx", "planted.onnx"), "--onnx is for C code"),
        ((*SHAPE, "--c", "--onnx", "planted.onnx"), "--onnx and --layers exclude each other"),
        (("--c", "--onnx", "planted.onnx"), "Softplus operator 'my_softplus'"),
        (("--c", "--onnx", "clipped.onnx"), "GRU operator 'my_gru'"),
        (("--c", "--onnx", "missing.onnx"), "cannot read"),
        (("--c",), "--layers is missing"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path, refused, arguments, message):
    (tmp_path / "planted.onnx").write_bytes(convolution())
    onnx.save(recurrent("GRU", (5, 1, 6, 4), clip=0.5, states=False), tmp_path / "clipped.onnx")
    given = [tmp_path / word if str(word).endswith(".onnx") else word for word in arguments]
    assert message in refused("export", *given, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
