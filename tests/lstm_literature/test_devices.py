"""On which devices the literature's implementations can run, decided without a GPU: what a build has is planted."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from lstm_literature import implementations, states
from lstm_literature.implementations import is_installed, on_tensorflow
from lstm_literature.workloads import VARIANTS, WORKLOADS
from lstm_trt.config.errors import RuntimeUnavailable
from lstm_trt.machine import gpu as machine_gpu
from lstm_trt.runtimes import onnxruntime
from lstm_trt.runtimes.base import Availability
from tests.support.framework_checks import prepared

CELL = WORKLOADS["cell"].scaled("1/64")


@pytest.mark.parametrize(
    ("installed", "gpu", "reason"),
    [
        ({"tensorflow-cpu": "2.21"}, "NVIDIA X", "built without CUDA"),
        ({"tensorflow": "2.21"}, None, "no NVIDIA GPU"),
        ({"tensorflow": "2.21"}, "NVIDIA X", None),
    ],
)
def test_tensorflow_on_a_gpu(monkeypatch, installed, gpu, reason):
    for module in (on_tensorflow, implementations):
        monkeypatch.setattr(module, "installed_version", installed.get)
    monkeypatch.setattr(implementations, "find_spec", lambda package: object())
    monkeypatch.setattr(machine_gpu, "device_here", lambda: gpu and SimpleNamespace(name=gpu))
    implementation = implementations.load_implementation("tensorflow-xla")
    assert implementation.availability("cpu").ready
    state = implementation.availability("cuda")
    assert state.ready == (reason is None) and state.version == "2.21"
    if reason:
        assert reason in state.reason and state.remedy
        with pytest.raises(RuntimeUnavailable, match=reason):
            prepared(implementation, CELL, device="cuda")


def test_onnx_runtime_on_cuda_loads_its_libraries_before_the_session(monkeypatch):
    done = []

    def session(model, request):
        done.append((request.options.device, len(model) > 100))
        return SimpleNamespace(costs={})

    monkeypatch.setattr(onnxruntime, "availability", lambda device: Availability(True))
    monkeypatch.setattr(onnxruntime, "load_libraries", lambda options: done.append(options.device))
    monkeypatch.setattr(onnxruntime, "bound_session", session)
    implementation = implementations.load_implementation("onnxruntime")
    assert implementation.DEVICES == ("cpu", "cuda")
    step = prepared(implementation, CELL, device="cuda")
    assert done == ["cuda", ("cuda", True)] and "export_s" in step.costs


def test_onnx_runtime_without_the_provider_or_without_a_gpu_says_so(monkeypatch):
    import onnxruntime as ort

    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "CUDAExecutionProvider" in onnxruntime.availability("cuda").reason
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    for name, ready in ((None, False), ("NVIDIA X", True)):
        monkeypatch.setattr(machine_gpu, "device_here", lambda name=name: name and SimpleNamespace(name=name))
        state = implementations.load_implementation("onnxruntime").availability("cuda")
        assert (state.ready, state.device_name) == (ready, name) and bool(state.remedy) != ready


def test_on_a_gpu_tvm_is_limited_by_building_only():
    untuned, slow = implementations.load_implementation("tvm-untuned"), VARIANTS["layer"][18]
    assert slow.hidden == 1024 and untuned.DEVICES == ("cpu", "cuda")
    assert untuned.supports(slow, "forward", "cpu") and untuned.supports(slow, "forward", "cuda") is None


def test_the_list_says_which_devices_an_implementation_can_use(monkeypatch):
    found = {
        "cpu": Availability(True, "1.0", "Planted CPU"),
        "cuda": Availability(False, "1.0", reason="planted: built without CUDA", remedy="pip install planted"),
    }
    for name in ("tensorflow-xla", "onnxruntime"):
        monkeypatch.setattr(
            type(implementations.load_implementation(name)), "availability", lambda self, device="cpu": found[device]
        )
    rows = [states.row_of(name) for name in ("tensorflow-xla", "onnxruntime")]
    assert rows[1].ready and rows[1].devices == found
    page = states.by_framework(rows)
    assert "devices" in page and max(map(len, page.splitlines())) <= 100
    whole = " ".join(page.split())
    assert whole.count("not on cuda, planted: built without CUDA") == 2 and "-> pip install planted" in whole
    found["cuda"] = Availability(True, "1.0", "NVIDIA X")
    assert "cpu, cuda" in states.by_framework([states.row_of("onnxruntime")])


def test_what_is_installed_at_its_first_use_is_ready_and_says_so():
    state = {"ready": True, "version": "1.0", "reason": "installed at its first use"}
    row = states.ImplementationRow(**state, implementation="later", framework="A framework")
    page = states.by_framework([row])
    assert "  ready  A framework  1.0      core   -        later: installed at its first use" in page


def test_the_list_says_how_to_install_what_is_missing():
    """What `lstm-trt doctor` said of the literature: state, version, extra, devices, reason and remedy of each."""
    found = states.listing(["cell"])
    plain = found.as_dict()["implementations"]
    assert set(plain) == set(implementations.names())
    assert {"ready", "version", "reason", "remedy", "framework", "extra", "devices"} <= set(plain["onnxruntime"])
    page = " ".join(str(found).split())
    for name, row in plain.items():
        assert name in page
        if not row["ready"]:
            assert row["reason"] and row["remedy"] in page, name


def test_a_package_that_cannot_be_looked_up_is_not_installed(monkeypatch):
    """The parent of a dotted name may be missing, and a module that a program made has no specification."""
    monkeypatch.setitem(sys.modules, "made_by_hand", ModuleType("made_by_hand"))
    assert [is_installed(name) for name in ("numpy", "no_such_parent.child", "made_by_hand")] == [True, False, False]
