"""The CUDA paths, over a stand-in for NVIDIA's driver: tests/lstm_trt/shim in a process that loads it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lstm_trt.store import folders
from tests.conftest import ROOT, sampled
from tests.support import shim

#: Tests for a GPU that need neither its numbers nor PyTorch on it.
GPU = (
    "test_gpu_a_plan_that_does_not_fit_is_refused_with_its_reason",
    "test_gpu_a_recording_carries_the_gpu_before_and_after",
    "test_gpu_outputs_with_and_without_graph_are_equal",
    "test_gpu_event_times_lie_within_the_host_time",
    "test_gpu_memory_is_freed_after_100_engines",
    "test_gpu_buffers_streams_and_events",
    "test_gpu_capture_and_its_refusal",
)


pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def built(folder: Path, layer: str) -> dict[str, str]:
    """Builds the stand-in; returns the environment of processes that use it through this layer."""
    pytest.importorskip("cuda.bindings.driver")
    user = None  # without it PyCUDA cannot be loaded
    if layer == "pycuda":
        pytest.importorskip("pycuda", reason="PyCUDA is not installed; `make test-frameworks` builds it")
        user = Path(importlib.util.find_spec("pycuda._driver").origin)
    shim.build(folder, user)
    return shim.environment(folder, layer)


# Each case records some 50 networks in some 20 tests; a run has one part of each layer.
@pytest.mark.heavy
@sampled(2)
@pytest.mark.parametrize(
    ("layer", "part"),
    [
        ("cuda-bindings", "not heavy and not gpu"),
        ("cuda-bindings", "heavy or gpu"),
        ("pycuda", "heavy or gpu"),
        ("pycuda", "not heavy and not gpu"),
    ],
)
def test_the_cuda_paths_over_a_driver_made_of_host_memory(tmp_path, layer, part, pytestconfig):
    """A heavy test runs on one of the two layers, by the seed."""
    environment = built(tmp_path, layer)
    file = "tests/lstm_trt/runtimes/test_tensorrt_runtime.py"
    names = [f"{file}::{name}" for name in ("test_names_used_on_pycuda_are_there", *GPU)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/lstm_trt/shim",
        *names,
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        part,
    ]
    half = (pytestconfig.option.seed // 2 + (layer == "pycuda")) % 2
    environment |= {"SHIM_HALF": str(half)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# Starts some ten processes, of which half load PyTorch.
@pytest.mark.heavy
@sampled(2)
@pytest.mark.parametrize("layer", ["cuda-bindings", "pycuda"])
def test_the_session_on_a_gpu_is_rehearsed(tmp_path, monkeypatch, layer):
    """With the tests of a GPU that run without a real one."""
    environment = built(tmp_path, layer)
    work = tmp_path / "work"
    command = [sys.executable, "benchmarks/gpu_session.py", "1", "--rehearse", "shim", "--work", str(work)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((work / "out/report.json").read_text())
    assert [row["status"] for row in report] == [0, 0, 0, 0], (work / "out/log.txt").read_text()
    assert "1 recordings at the corners" in done.stdout
    (recording,) = folders.read_many(work / "grid")
    assert recording.provenance["runtime"]["device_clocks"] == "off" and recording.configuration.options.graph
    monkeypatch.setenv("SHIM_REPORT", environment["SHIM_REPORT"])
    assert shim.left() == []
