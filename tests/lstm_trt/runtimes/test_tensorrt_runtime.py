"""The TensorRT runtimes and `runtimes/cuda/_cuda.py`.

Without a GPU, `planted_cuda.py` mocks the driver and the parts of TensorRT that need one: it checks the
order of calls and the release of resources. The tests marked gpu check the rest.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import json
import os
import time
import traceback
from types import SimpleNamespace

import numpy as np
import pytest

from lstm_trt import runtimes
from lstm_trt.config.errors import BuildFailed, LabError, MemoryExhausted, RunFailed, RuntimeUnavailable, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.network import make_inputs
from lstm_trt.export.tensorrt import build, engine, trt as export_trt
from lstm_trt.export.to_onnx import INPUT, OUTPUT
from lstm_trt.machine import gpu
from lstm_trt.runtimes.cuda import _cuda, _status, _tensorrt, tensorrt_rtx
from lstm_trt.store import cache
from tests.support import prepared_steps
from tests.support.planted_cuda import MockDriver, MockTensorRt

NAMES = ("tensorrt", "tensorrt-rtx")
SMALL = LstmShape(2, 16, 12, 2)


def request_of(shape, **options):
    return prepared_steps.request_of("tensorrt", shape, **{"device": "cuda", **options})


def on_a_gpu():
    return not any("GPU" in lack.what for lack in _cuda.missing())


# Without a GPU: what is missing


@pytest.mark.skipif(on_a_gpu(), reason="there is a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_availability_names_what_is_missing_in_one_line(name):
    module = runtimes.load_runtime(name)
    state = module.availability("cuda")
    assert not state.ready and state.reason.startswith("no ") and "GPU" in state.reason
    assert "\n" not in state.reason + state.remedy and state.reason.isascii() and state.remedy
    if importlib.util.find_spec(export_trt.FLAVOURS[name].module) is None:
        assert f"no {module.DISTRIBUTION}, " in state.reason and export_trt.FLAVOURS[name].remedy in state.remedy
    assert "on cpu" in module.availability("cpu").reason
    with pytest.raises(RuntimeUnavailable, match=name):
        module.prepare(request_of(SMALL))


def test_every_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(_cuda, "installed_version", lambda name: None)
    monkeypatch.setattr(gpu, "libcuda", raising(OSError("libcuda.so.1: cannot open shared object file")))
    assert [lack.what for lack in _cuda.missing()] == ["cuda-bindings", "GPU driver"]
    monkeypatch.setattr(_tensorrt, "find_spec", lambda module: None)
    state = runtimes.load_runtime("tensorrt").availability("cuda")
    assert state.reason == "no tensorrt, cuda-bindings, GPU driver"
    assert state.remedy.startswith("make gpu; ") and state.remedy.count("make gpu") == 1
    assert "nvidia-smi" in state.remedy


def test_a_driver_without_a_gpu_and_a_broken_package_are_reported(driver, monkeypatch):
    assert _cuda.missing() == [] and gpu.cuda_device().name == "Planted GPU"
    driver.cu_init = 100
    (lack,) = _cuda.missing()
    assert "no CUDA-capable device is detected" in lack.what and "nvidia-smi" in lack.remedy
    with pytest.raises(RuntimeUnavailable, match="no CUDA-capable device is detected"):
        _cuda.Session()
    driver.cu_init = 0
    broken = _cuda.CudaUnavailable("loadable cuda-bindings (ABI)", "install it again")
    monkeypatch.setattr(_cuda, "_bindings", raising(broken))
    assert _cuda.missing() == [broken]


def raising(error):
    def refuse(*arguments):
        raise error

    return refuse


def test_names_used_on_cuda_bindings_are_there():
    driver = pytest.importorskip("cuda.bindings.driver")
    for name in MockDriver.BINDINGS:
        assert hasattr(driver, name), name
    assert "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL" in driver.CUstreamCaptureMode.__members__
    assert int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY) == _status._OUT_OF_MEMORY
    assert int(driver.CUctx_flags.CU_CTX_SCHED_SPIN) == _cuda._SPIN
    assert int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING) == _cuda._NON_BLOCKING
    assert not driver.CUresult.CUDA_SUCCESS and driver.CUresult.CUDA_ERROR_UNKNOWN  # a status is used as a boolean


def test_names_used_on_pycuda_are_there():
    if importlib.util.find_spec("pycuda") is None:
        pytest.skip("pycuda is not installed")
    try:
        import pycuda.driver as driver
    except ImportError as error:
        pytest.skip(f"pycuda.driver needs the NVIDIA driver: {error}")
    for path in (*MockDriver.PYCUDA, "Context.detach", "Context.push"):
        found = driver
        for name in path.split("."):
            found = getattr(found, name)
    assert issubclass(driver.MemoryError, driver.Error)


# Without a GPU: calls of the driver, counted


@pytest.fixture
def driver(monkeypatch):
    driver = MockDriver()
    pycuda_driver, bindings = driver.pycuda_driver(), driver.bindings()
    monkeypatch.setattr(_cuda, "installed_version", lambda name: "13.0")
    monkeypatch.setattr(gpu, "libcuda", driver.libcuda)
    monkeypatch.setattr(_cuda, "_driver", lambda: pycuda_driver)
    monkeypatch.setattr(_cuda, "_bindings", lambda: bindings)
    monkeypatch.setattr(_cuda.atexit, "register", lambda function, *arguments: None)
    monkeypatch.setattr(_cuda, "POOL_TRIALS", 4)
    _cuda._primary.cache_clear()
    yield driver
    _cuda._primary.cache_clear()
    _cuda._open.clear()


STAGES = [
    ("retain", 1), ("push", 1), ("Stream", 1), ("pinned", 1), ("device", 1), ("Event", 1), ("Event", 7),
    ("begin capture", 1), ("enqueue", 1), ("end capture", 1), ("instantiate", 1), ("copy in", 1), ("launch", 1),
    ("copy out", 1), ("wait", 1),
]  # fmt: skip


def test_what_is_open_at_the_end_of_the_process_is_closed(driver):
    _cuda.Session().pinned((2,), np.float32)
    second = _cuda.Session()
    second.device(8)
    assert driver.calls.count("retain") == 1 and "scheduling 1" in driver.calls
    _cuda._leave(SimpleNamespace(detach=lambda: driver.calls.append("detach")))
    assert driver.left() == {} and driver.pushed == 0 and driver.calls[-1] == "detach" and _cuda._open == []
    second.close()


# Without a GPU: the step, on a mock engine


@pytest.fixture
def planted(driver, monkeypatch):
    """`planted(name)` prepares a step on the mock engine."""
    trt = driver.trt = MockTensorRt(driver, SMALL)
    messages = []
    monkeypatch.setattr(_tensorrt, "find_spec", lambda module: True)
    monkeypatch.setattr(export_trt, "logger", lambda name: SimpleNamespace(lines=messages))
    monkeypatch.setattr(export_trt, "load_module", lambda name: trt)
    information = {"flavour": "tensorrt", "engine": {"bytes": 4, "version": "11.4", "sha256": "ab" * 32}}
    information |= {"target": {"compute_capabilities": [], "gpu": None}, "build_seconds": 0.5, "warnings": []}
    information["layers"] = {"launches": 42, "loops": []}
    built = SimpleNamespace(sha256="ab" * 32, cached=True, plan=b"plan", information=information)
    monkeypatch.setattr(build, "build_engine", lambda onnx, options, *, name: built)
    for kept in cache.entries():
        if kept.kind == tensorrt_rtx.KERNELS:
            cache.remove(kept.path)

    def prepare(name="tensorrt", **options):
        return runtimes.load_runtime(name).prepare(request_of(SMALL, **options))

    prepare.messages = messages
    return prepare


def checked_outputs(step, seed=7, tolerance=1e-5):
    inputs, _, _ = make_inputs(SMALL, seed)
    outputs = prepared_steps.outputs_of(step, inputs)
    assert outputs.dtype == np.float32 and np.allclose(outputs[..., 0], inputs.sum(2), atol=tolerance)
    return outputs


@pytest.mark.parametrize("device_clocks", ("off", "compute", "all"))
@pytest.mark.parametrize("graph", (False, True))
@pytest.mark.parametrize("name", NAMES)
def test_a_step_copies_in_runs_copies_out_and_waits(planted, driver, name, graph, device_clocks):
    step = planted(name, graph=graph, device_clocks=device_clocks)
    step.load_inputs({INPUT: make_inputs(SMALL, 7)[0]})
    driver.calls.clear()
    for _ in range(6):
        step.step()  # more trials than the pool holds
    trial = ["copy in", "launch" if graph else "enqueue", "copy out", "wait"]
    assert [call for call in driver.calls if call != "Event"] == trial * 6
    times = step.device_times()
    columns = {"off": [], "compute": ["compute_ns"], "all": ["compute_ns", "d2h_ns", "h2d_ns"]}[device_clocks]
    assert sorted(times) == (sorted([*columns, "enqueue_ns"]) if columns else [])
    assert all(len(values) == 6 and values.dtype == np.int64 and (values > 0).all() for values in times.values())
    assert all(set(times[name]) == {1000} for name in columns)  # one tick of the planted clock
    checked_outputs(step)
    facts = step.facts()
    assert json.dumps(facts, allow_nan=False)
    told = {"graph_captured": graph, "graph_fallback": None, "graph_nodes": 1 if graph else None}
    told |= {"engine_sha256": "ab" * 32, "device_wait": "cuStreamSynchronize, spins", "compute_capability": "8.9"}
    assert facts.items() >= told.items() and facts.get("event_pool") == (None if device_clocks == "off" else 8)
    driver.calls.clear()
    step.close()
    assert driver.left() == {} and driver.pushed == 0
    freed = list(dict.fromkeys(call for call in driver.calls if call.startswith("free") or call == "pop"))
    wanted = ["executable", "graph"] * graph + ["event"] * (device_clocks != "off")
    wanted += ["device", "pinned", "context", "engine", "runtime", "stream"]
    assert freed == [*(f"free {kind}" for kind in wanted), "pop"]
    step.close()
    for refused in (step.step, step.outputs, lambda: step.load_inputs({INPUT: make_inputs(SMALL, 1)[0]})):
        with pytest.raises(RunFailed, match="closed"):
            refused()
    assert step.facts()["engine_sha256"] == "ab" * 32 and step.device_times() == {}


def test_rtx_is_asked_whether_it_can_be_captured(planted, driver):
    driver.trt.capturable = False
    step = planted("tensorrt-rtx", graph=True)
    assert "cannot be captured" in step.facts()["graph_fallback"] and "begin capture" not in driver.calls
    step.close()


def test_rtx_keeps_the_kernels_that_it_compiled(planted, driver):
    for state, takes in (("new, kept", True), ("loaded", True), ("refused, kept", False), ("loaded", True)):
        driver.trt.takes_kernels = takes
        step = planted("tensorrt-rtx")
        assert step.facts()["kernel_cache"] == state
        assert (step.facts()["kernel_specialization"], step.facts()["engine_cuda_graphs"]) == ("eager", "disabled")
        step.close()
    assert driver.trt.stored == [b"compiled kernels"] * 3


@pytest.mark.parametrize("graph", (False, True))
@pytest.mark.parametrize("code", (2, 700))
@pytest.mark.parametrize(
    ("name", "nth"),
    [*STAGES, ("pinned", 2), ("device", 2), ("enqueue", 2), ("wait", 2), ("copy in", 2), ("copy out", 1)],
)
def test_a_step_frees_after_a_failure_at_any_stage(planted, driver, name, nth, code, graph):
    driver.fails, driver.code = (name, nth), code
    captured = graph and (name in ("begin capture", "end capture", "instantiate") or (name, nth) == ("enqueue", 2))
    try:
        step = planted("tensorrt-rtx", graph=graph, device_clocks="all")
    except LabError as error:
        assert not driver.live.get("device") and not driver.live.get("pinned") and driver.pushed == 0
        assert isinstance(error, MemoryExhausted) if code == 2 else not captured
        assert "\n" not in str(error)
        del error
    else:  # the call is not made, or belongs to a capture
        facts = step.facts()
        assert not graph or driver.fails or facts["graph_fallback"]
        assert not captured or name == "enqueue" or "planted" in facts["graph_fallback"]
        assert facts["graph_captured"] is (facts["graph_fallback"] is None and graph)
        checked_outputs(step)
        step.close()
    assert driver.left() == {} and driver.pushed == 0 and _cuda._open == []


@pytest.mark.parametrize(
    ("refuses", "messages", "error", "match"),
    [
        ("engine", [("ERROR", "of another GPU")], BuildFailed, "of another GPU"),
        ("engine", [], BuildFailed, "gives no reason"),
        ("engine", [("ERROR", "Cuda Runtime (out of memory)")], MemoryExhausted, "out of memory"),
        ("context", [], BuildFailed, "gives no reason"),
        ("context", [("ERROR", "memory (9 bytes) could not be allocated")], MemoryExhausted, "could not be"),
        ("context: memory", [], MemoryExhausted, "1099511627776 bytes"),
        ("shape", [], BuildFailed, "inputs of shape"),
        ("address", [], BuildFailed, "buffer"),
        ("enqueue", [("ERROR", "illegal")], RunFailed, "illegal"),
        ("enqueue", [("ERROR", "cudaError 2: out of memory")], MemoryExhausted, "out of memory"),
    ],
)
def test_errors_of_tensorrt_are_reported(planted, driver, monkeypatch, refuses, messages, error, match):
    driver.trt.refuses = refuses
    forgetting = lambda name: planted.messages.extend(messages) or SimpleNamespace(lines=planted.messages)  # noqa: E731
    monkeypatch.setattr(export_trt, "logger", forgetting)
    with pytest.raises(error, match=match) as caught:
        planted("tensorrt")
    assert "\n" not in str(caught.value) and not driver.live.get("pinned") and not driver.live.get("device")
    traceback.clear_frames(caught.tb)
    del caught
    assert driver.left() == {} and driver.pushed == 0


def test_unsupported_options_are_rejected(planted, driver, monkeypatch):
    for options in ({"precision": "bf16"}, {"precision": "int8"}, {"device_clocks": "some"}):
        with pytest.raises(UsageError):
            planted("tensorrt", **options)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with pytest.raises(BuildFailed, match="TF32_OVERRIDE"):
        planted("tensorrt", precision="tf32")
    step = planted("tensorrt")
    with pytest.raises(UsageError, match="inputs"):
        step.load_inputs({INPUT: np.zeros((1, 1, 12), np.float32)})
    step.close()


def test_half_buffers_are_filled_outside_the_trial(planted, driver):
    driver.trt.data_type = np.float16
    step = planted("tensorrt")
    assert step.facts()["tensor_types"] == {INPUT: "float16", OUTPUT: "float16"}
    assert sorted(buffer.size for buffer in driver.memory.values()) == [2 * 12 * 2, 2 * 12 * 2 * 12]
    checked_outputs(step, tolerance=1e-2)
    step.close()


# Without a GPU, with TensorRT for RTX: a real plan that cannot be loaded here


def with_plan(built, plan, folder):
    """The engine with another plan."""
    (folder / "other.engine").write_bytes(plan)
    return dataclasses.replace(built, path=folder / "other.engine", sha256=cache.sha256(plan))


@pytest.mark.skipif(on_a_gpu(), reason="there is a GPU")
def test_a_real_plan_is_refused_with_its_reason_and_all_is_freed(driver, tmp_path):
    pytest.importorskip("tensorrt_rtx")
    built = build.build_engine(SMALL, engine.EngineOptions("tensorrt-rtx", "fp32", "sm86"))
    request = request_of(SMALL)
    for plan in (built.plan, built.plan[:-100]):
        with pytest.raises(BuildFailed, match="tensorrt-rtx: the engine cannot be loaded on the GPU") as caught:
            _tensorrt.TensorRtStep(
                "tensorrt-rtx", request, with_plan(built, plan, tmp_path), tensorrt_rtx.RUNTIME.open_context
            )
        assert "\n" not in str(caught.value)
        traceback.clear_frames(caught.tb)
        del caught
        assert driver.left() == {} and driver.pushed == 0


# A GPU


BOUNDS = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 1e-2}
#: Over the tests' stand-in for a driver, which shows nothing about speed, a small one.
GPU_SHAPE = SMALL if gpu.SHIM_VARIABLE in os.environ else LstmShape(2, 256, 32, 3, 12, 2)


@pytest.fixture(params=NAMES)
def ready(request):
    """The name of a flavour that can run here."""
    state = runtimes.load_runtime(request.param).availability("cuda")
    if not state.ready:
        pytest.skip(f"{request.param}: {state.reason}")
    return request.param


@pytest.fixture
def session():
    lacks = _cuda.missing()
    if lacks:
        pytest.skip("no " + ", ".join(lack.what for lack in lacks))
    with_session = _cuda.Session()
    yield with_session
    with_session.close()


def prepare(name, shape=GPU_SHAPE, **options):
    return runtimes.load_runtime(name).prepare(request_of(shape, **options))


def real_outputs(step, shape=GPU_SHAPE, seed=7):
    return prepared_steps.outputs_of(step, make_inputs(shape, seed)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("graph", (False, True))
@pytest.mark.parametrize("precision", BOUNDS)
def test_gpu_outputs_agree_with_the_reference(ready, precision, graph):
    step = prepare(ready, precision=precision, graph=graph)
    outputs = real_outputs(step)
    assert prepared_steps.error(outputs, GPU_SHAPE, make_inputs(GPU_SHAPE, 7)[0]) < BOUNDS[precision]
    facts = step.facts()
    assert facts["graph_captured"] is graph or facts["graph_fallback"], facts
    assert facts["tf32"] is (precision == "tf32") and facts["activation_bytes"] >= 0
    assert set(facts["tensor_types"].values()) == {"float32"} and json.dumps(facts)
    step.close()
    step.close()


@pytest.mark.gpu
def test_gpu_outputs_with_and_without_graph_are_equal(ready):
    found = []
    for graph in (False, True):
        step = prepare(ready, graph=graph)
        if graph and not step.facts()["graph_captured"]:
            pytest.skip(f"{ready}: {step.facts()['graph_fallback']}")
        for seed in (5, 6, 7):
            outputs = real_outputs(step, seed=seed)
        found.append(outputs)
        step.close()
    np.testing.assert_array_equal(*found)


@pytest.mark.gpu
@pytest.mark.parametrize("graph", (False, True))
def test_gpu_event_times_lie_within_the_host_time(ready, graph):
    step = prepare(ready, graph=graph, device_clocks="all")
    prepared_steps.check_event_times(step, make_inputs(GPU_SHAPE, 3)[0])


@pytest.mark.gpu
def test_gpu_memory_is_freed_after_100_engines(ready, session):
    def run_once(device_clocks="off"):
        step = prepare(ready, SMALL, graph=True, device_clocks=device_clocks)
        step.step()
        step.close()

    run_once()  # kernels and library handles are loaded once and kept
    run_once("compute")
    free_before, _ = session.memory_bytes()
    for number in range(100):
        run_once("off" if number % 10 else "compute")
    free_after, _ = session.memory_bytes()
    assert free_before - free_after < 16 << 20


@pytest.mark.gpu
def test_gpu_a_plan_that_does_not_fit_is_refused_with_its_reason(ready, session, tmp_path):
    request = request_of(SMALL)
    built = build.build_engine(SMALL, engine.EngineOptions(ready, "fp32"))
    older = bytearray(built.plan)
    older[24] -= 1 if older[24] else -1  # the major version in the engine's header
    free_before, _ = session.memory_bytes()
    for plan in (built.plan[: len(built.plan) // 2], bytes(older), b"no plan at all" * 100, b""):
        with pytest.raises((BuildFailed, MemoryExhausted)) as caught:
            _tensorrt.TensorRtStep(
                ready, request, with_plan(built, plan, tmp_path), runtimes.load_runtime(ready).open_context
            )
        assert "gives no reason" not in str(caught.value) and "\n" not in str(caught.value)
        traceback.clear_frames(caught.tb)
        del caught
    assert free_before - session.memory_bytes()[0] < 16 << 20
    step = prepare(ready, SMALL)  # the context still works
    real_outputs(step, SMALL)
    step.close()


@pytest.mark.gpu
def test_gpu_the_context_is_pytorchs(ready, session, torch_on_gpu):
    torch = torch_on_gpu
    weights = torch.randn(64, 64, device="cuda")
    product = (weights @ weights).cpu()
    current = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(current)) == 0
    assert current.value == _cuda._primary().handle
    step = prepare(ready, SMALL, graph=True)
    first = real_outputs(step, SMALL)
    assert torch.equal((weights @ weights).cpu(), product)
    np.testing.assert_array_equal(real_outputs(step, SMALL), first)
    step.close()
    session.close()
    assert torch.equal((weights @ weights).cpu(), product)  # after every session is closed


@pytest.mark.gpu
def test_gpu_buffers_streams_and_events(session):
    sent, back = session.pinned((1024, 1024), np.float32), session.pinned((1024, 1024), np.float32)
    address = session.device(sent.nbytes)
    assert session.stream.handle and address % 256 == 0 and _cuda.scheduling() != "unknown"
    copy_in, _ = session.copies(address, sent)
    _, copy_out = session.copies(address, back)
    first, last = session.new_event(), session.new_event()
    for number in range(3):
        sent[:] = np.arange(sent.size).reshape(sent.shape) + number
        began = time.perf_counter_ns()
        first.record(session.stream)
        copy_in()
        copy_out()
        last.record(session.stream)
        session.stream.synchronize()
        assert 0 < first.time_till(last) <= (time.perf_counter_ns() - began) / 1e6 + 0.002
        np.testing.assert_array_equal(sent, back)
    with pytest.raises(MemoryExhausted, match="out of memory"):
        session.device(session.memory_bytes()[1] * 2)


@pytest.mark.gpu
def test_gpu_capture_and_its_refusal(session):
    array, address = session.pinned((1000,), np.float32), session.device(4000)
    copy_in, copy_out = session.copies(address, array)
    array[:] = 1
    copy_in()
    session.stream.synchronize()

    def waits():
        copy_out()
        session.stream.synchronize()  # not allowed inside a capture

    with pytest.raises(_cuda.CaptureRefused, match="captur"):
        session.capture(waits)
    launch, nodes = session.capture(copy_out)  # the stream still works
    assert nodes == 1
    array[:] = 2
    launch()
    session.stream.synchronize()
    assert (array == 1).all()


@pytest.mark.gpu
def test_gpu_a_recording_carries_the_gpu_before_and_after(ready, tmp_path):
    import lstm_trt

    options = lstm_trt.Options(device="cuda", graph=True, device_clocks="all")
    recording = lstm_trt.record(SMALL, ready, lstm_trt.Protocol(trials=50, warmup=5), options, out=tmp_path)
    states = [recording.provenance[name] for name in ("gpu_before", "gpu_after")]
    assert all(state is None or {"gpu_sm_mhz", "memory_used_bytes"} <= state.keys() for state in states)
    assert recording.provenance["runtime"]["device_clocks"] == "all"
    assert (recording.columns["compute_ns"] > 0).all()
