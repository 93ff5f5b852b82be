"""Bad input is one clear line, exit status 2, no data lost, no partial files.

`golden/refusals.txt` has commands, each with the line that it says; `...` stands for what depends on the machine.
`python -m tests.lstm_trt.cli.test_refusals` rewrites the lines; review the differences.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from functools import cache
from pathlib import Path

import onnx
import pytest

from lstm_trt.config.errors import RuntimeUnavailable
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.sizes import static_model
from lstm_trt.export.tensorrt import trt
from lstm_trt.export.to_onnx import export_network
from tests.conftest import run_here
from tests.support.planted_graphs import lstm, unknown_attribute

GOLDEN = Path(__file__).parent / "golden" / "refusals.txt"
TABLE = dict(re.findall(r"^\$ (.*)\n(.*)\n", GOLDEN.read_text(), re.MULTILINE))


def words(command: str) -> list[str]:
    """A command as `run_here` takes it."""
    program, *arguments = shlex.split(command)
    return arguments if program == "lstm-trt" else [program, *arguments]


@cache
def graphs() -> dict[str, bytes]:
    """The files that the commands name: with what TensorRT would read wrongly, and with symbolic sizes."""
    shape = LstmShape(1, 16, 3)
    path = export_network(shape).path
    renamed = onnx.load(path)
    for value in (renamed.graph.input[0], renamed.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    return {
        "empty.onnx": b"",
        "text.onnx": b"no protobuf at all",
        "truncated.onnx": lstm().SerializeToString()[:-9],
        "attribute.onnx": unknown_attribute(),
        "layout.onnx": lstm(layout=1, states=False).SerializeToString(),
        "symbolic.onnx": path.read_bytes(),
        "renamed.onnx": renamed.SerializeToString(),
        "static.onnx": static_model(path, shape),
    }


def plant(folder: Path) -> list[Path]:
    for name, content in graphs().items():
        (folder / name).write_bytes(content)
    return sorted(folder.rglob("*"))


def is_as_in(golden: str, line: str) -> bool:
    return bool(re.fullmatch(re.escape(golden).replace(r"\.\.\.", ".*"), line))


@pytest.mark.parametrize("command", TABLE)
def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path, refused, command):
    if "build" in command:
        try:
            trt.load_module("tensorrt-rtx")
        except RuntimeUnavailable as missing:
            pytest.skip(str(missing))
    planted = plant(tmp_path)
    line = refused(*words(command), cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert is_as_in(TABLE[command], line.rstrip("\n")), line
    files = [path for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    assert [path for path in files if "cache" not in path.parts or "engine" in path.parts] == planted


if __name__ == "__main__":
    graphs()  # before the folder of the cache is another one
    texts = []
    for command, golden in TABLE.items():
        with tempfile.TemporaryDirectory() as folder:
            plant(Path(folder))
            os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
            line = run_here(words(command), Path(folder)).stderr.rstrip("\n")
        texts.append(f"$ {command}\n{golden if is_as_in(golden, line) else line}\n")
    GOLDEN.write_text("\n".join(texts))
