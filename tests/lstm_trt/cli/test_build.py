"""`lstm-trt build`: files, output and errors; wheels without libraries."""

from __future__ import annotations

import json
import sys

import onnx
import pytest

from lstm_trt.config.errors import RuntimeUnavailable
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.tensorrt import trt
from lstm_trt.export.to_onnx import export_network
from lstm_trt.store import cache
from tests.support.planted_graphs import lstm

RTX = "tensorrt-rtx"
try:
    trt.load_module(RTX)
except RuntimeUnavailable as missing:
    pytest.skip(str(missing), allow_module_level=True)

BUILD = ("build", "--layers", 3, "--hidden", 72, "--sequence", 24, "--batch", 4, "--compute-capability", "sm86")


def test_the_command_writes_an_engine_and_its_information(tmp_path, lab):
    result = lab(*BUILD, "--runtime", RTX, "--out", tmp_path)
    assert result.returncode == 0 and result.stderr == ""
    stem = tmp_path / "3x72-s24-b4-fp32-rtx-sm86"
    assert sorted(tmp_path.iterdir()) == [stem.with_suffix(".engine"), stem.with_suffix(".json")]
    information = json.loads(stem.with_suffix(".json").read_text())
    assert information["engine"]["sha256"] == cache.sha256(stem.with_suffix(".engine").read_bytes())
    assert information["layers"]["launches"] > 0 and information["options"]["compute_capability"] == "sm86"
    answer = json.loads(lab(*BUILD, "--out", tmp_path, "--format", "json").stdout)
    assert answer["cached"] and answer["engine"] == information["engine"] and len(answer["files"]) == 2


def test_the_command_builds_a_users_own_file_and_ranges(tmp_path, lab):
    onnx.save(lstm(), tmp_path / "mine.onnx")
    arguments = ("build", "--onnx", tmp_path / "mine.onnx", "--precision", "fp16", "--out", tmp_path / "out")
    assert lab(*arguments, "--compute-capability", "SM120").returncode == 0
    (tmp_path / "symbolic.onnx").write_bytes(export_network(LstmShape(1, 8, 4)).path.read_bytes())
    ranges = ("--sequence-range", 2, 8, 16, "--batch-range", 1, 1, 4, "--compute-capability", "sm89")
    result = lab("build", "--onnx", tmp_path / "symbolic.onnx", *ranges, "--out", tmp_path / "out")
    assert result.returncode == 0, result
    shape = ("build", "--layers", 1, "--hidden", 8, "--sequence-range", 2, 8, 16, "--compute-capability", "sm89")
    assert lab(*shape, "--out", tmp_path / "out").returncode == 0
    assert sorted(path.name for path in (tmp_path / "out").glob("*.engine")) == [
        "1x8-s2to16-b1-fp32-rtx-sm89.engine",
        "mine-fp16-rtx-sm120.engine",
        "symbolic-fp32-rtx-sm89.engine",
    ]


def test_the_command_shows_the_layer_table(lab):
    shape = ("--layers", 2, "--hidden", 64, "--sequence", 32, "--compute-capability", "sm89")
    text = lab("build", *shape, "--layers-table").stdout
    assert "2 loops, 4 recurrences, 5 matrix products" in text
    assert "/lstm/LSTM_1" in text and "launches per inference" in text


@pytest.mark.parametrize(
    ("stub", "message"),
    [
        (
            "raise ImportError('libnvinfer.so.11: cannot open shared object file: No such file or directory')",
            "libnvinfer",
        ),
        ("import tensorrt_libs_that_are_not_there", "tensorrt_libs_that_are_not_there"),
        ("__version__ = '11.4.0'", "has no Builder"),
    ],
)
def test_a_wheel_without_libraries_is_one_clear_line(tmp_path, refused, stub, message):
    (tmp_path / "tensorrt").mkdir()
    (tmp_path / "tensorrt" / "__init__.py").write_text(stub + "\n")
    line = refused(
        *("build", "--layers", 1, "--hidden", 8, "--sequence", 4, "--runtime", "tensorrt", "--out", tmp_path / "out"),
        process=True,
        PYTHONPATH=str(tmp_path),
    )
    assert message in line and "tensorrt: " in line and "see NVIDIA's installation guide" in line


def test_tensorrt_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(RuntimeUnavailable) as caught:
        trt.load_module(RTX)
    assert (caught.value.reason, caught.value.remedy) == ("not installed", "pip install -e '.[rtx]'")
