"""The packages in a copy without metadata, as in a checkout that was never installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lstm_judge.environments import package_folders
from lstm_trt import registry
from lstm_trt.config.configuration import Protocol
from lstm_trt.config.shape import LstmShape
from lstm_trt.recorder.pool import record
from tests.conftest import ROOT
from tests.support.packages import PACKAGES, copy_packages

#: Runs several command lines in one process, each as `python -m` does, and prints what they print as a list.
SEVERAL = """
import contextlib, io, json, runpy, sys

printed = []
for module, *arguments in json.loads(sys.argv[1]):
    sys.argv = [module, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as ended:
            assert not ended.code, arguments
    printed.append(output.getvalue())
print(json.dumps(printed))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A folder with the packages, and a function that runs Python where it finds them there only."""
    folder, site = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("site")
    copy_packages(folder)  # with what Python compiled of them, which stays valid
    (folder / "several.py").write_text(SEVERAL)
    for installed in package_folders():
        for path in Path(installed).iterdir():
            if "lstm_trt" not in path.name and not (site / path.name).exists():
                (site / path.name).symlink_to(path)

    def run(*arguments: object) -> str:
        line = [sys.executable, "-S", *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(site)}
        done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return folder, run


# Three command lines and the processes that record: 10 s.
@pytest.mark.heavy
def test_the_literature_is_recorded_and_read_by_both(copy):
    folder, run = copy
    asked = ("layer", "--implementation", "onnxruntime", "--scale", "1/8", "--batches", 3, "--out", "rec")
    rows = json.loads(run("-m", "lstm_literature", "record", *asked, "--quiet", "--format", "json"))
    assert {row["implementation"] for row in rows} == {"onnxruntime"} and rows[0]["n"] == 3
    assert "layer-4x1x32@1/8" in run("-m", "lstm_trt", "summarize", "rec")
    files = ", ".join(f"{name}.__file__" for name in PACKAGES)
    (folder / "where.py").write_text(f"import {', '.join(PACKAGES)}; print({files})")
    shipped = str(ROOT / "data/xeon/literature")
    lines = (
        ("lstm_trt", "summarize", shipped),
        ("lstm_literature", "list", "cell", "--format", "json"),
        ("where",),
    )
    summary, listing, where = json.loads(run("several.py", json.dumps(lines)))
    assert "pytorch-one-call-eager" in summary
    assert json.loads(listing)["implementations"].keys() >= {"onnxruntime", "jax-scan"}
    assert all(path.startswith(str(folder)) for path in where.split())


@pytest.mark.heavy
def test_what_a_program_adds_travels_to_the_process_that_records(tmp_path, monkeypatch):
    (tmp_path / "planted_runtime.py").write_text(
        "from lstm_trt.runtimes.onnxruntime import *\n"
        "from lstm_trt.runtimes import onnxruntime as _real\n"
        "NAME = 'planted'\n"
        "availability, prepare = _real.availability, _real.prepare\n"
        "NEEDS_ONNX, DEVICES, PRECISIONS, DISTRIBUTION = True, ('cpu',), {'cpu': ('fp32',)}, 'onnxruntime'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "added", {})
    shipped = registry.table("RUNTIMES")["c"]
    registry.add("RUNTIMES", "planted", "planted_runtime")
    registry.add("RUNTIMES", "c", "planted_runtime")  # what ships stays
    recording = record(LstmShape(1, 8, 4), "planted", Protocol(trials=20, warmup=2), control=False)
    assert recording.configuration.runtime == "planted" and len(recording.timed_ns) == 20
    assert registry.table("RUNTIMES")["c"] == shipped
