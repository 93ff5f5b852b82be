"""What PyTorch and ONNX Runtime need on CUDA, as far as it can be seen without a GPU."""

from __future__ import annotations

import os
import shutil

import onnxruntime as ort
import pytest

from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import RuntimeUnavailable, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.recorder.describe import describe
from lstm_trt.runtimes import onnxruntime, torch_compile
from lstm_trt.runtimes.base import Availability, Request
from lstm_trt.runtimes.cuda import _cuda
from tests.support.prepared_steps import prepare


@pytest.mark.parametrize(
    ("runtime", "options"),
    [
        ("onnxruntime", {"graph": True}),  # a captured session would not copy new inputs from host memory
        ("onnxruntime", {"device_clocks": "compute"}),
        ("pytorch", {"graph": True}),
    ],
)
def test_graphs_and_clocks_that_a_runtime_lacks_are_refused_at_once(runtime, options):
    with pytest.raises(UsageError, match=f"{runtime} has no"):
        describe(LstmShape(1, 8, 4), runtime, options=Options(device="cuda", **options))


@pytest.mark.parametrize(("precision", "expected"), [("fp32", "0"), ("tf32", None)])
def test_float32_switches_tf32_off_before_the_libraries_are_loaded(monkeypatch, precision, expected):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "x")  # so that it is restored
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    spun = []
    monkeypatch.setattr(_cuda, "spin_while_waiting", lambda: spun.append(True))
    loaded = []
    monkeypatch.setattr(ort, "preload_dlls", lambda: loaded.append(os.environ.get("NVIDIA_TF32_OVERRIDE")))
    onnxruntime.load_libraries(Options(device="cuda", precision=precision))
    assert os.environ.get("NVIDIA_TF32_OVERRIDE") == expected and spun and loaded == [expected]


def test_a_session_never_falls_back_to_the_cpu(monkeypatch):
    asked = {}

    def session(model, settings, **how):
        asked.update(how)
        raise RuntimeError("CUDA failure 35")

    monkeypatch.setattr(ort, "InferenceSession", session)
    request = Request(LstmShape(1, 8, 4), Options(device="cuda"), {})
    with pytest.raises(RuntimeError, match="35"):
        onnxruntime.bound_session(b"", request)
    assert asked["enable_fallback"] == 0
    assert asked["providers"] == [("CUDAExecutionProvider", {"use_tf32": "0"})]


def test_torch_compile_needs_a_compiler_and_on_a_gpu_triton(monkeypatch, tmp_path):
    ready = Availability(True, "2.13.0", "a device")
    available = torch_compile.availability
    monkeypatch.setattr(torch_compile._torch, "availability", lambda device: ready)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in available("cpu").reason and "apt install g++" in available("cpu").remedy
    with pytest.raises(RuntimeUnavailable, match="apt install"):
        prepare("torch-compile", LstmShape(1, 8, 4))
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "no C++ compiler (g++)" in available("cpu").reason
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(torch_compile.importlib.util, "find_spec", lambda name: None)
    assert available("cuda").remedy == "pip install triton"
    assert available("cpu") is ready
    monkeypatch.setattr(torch_compile.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch_compile.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "Python.h" in available("cuda").reason
    (tmp_path / "Python.h").touch()
    assert available("cuda") is ready
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/g++" if name == "g++" else None)
    assert "no C compiler" in available("cuda").reason
