"""The PyTorch runtimes: on the CPU, dry runs of the GPU code, and on a GPU if there is one."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from lstm_trt import runtimes
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed, MemoryExhausted, RunFailed, RuntimeUnavailable, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.network import build_module, make_inputs, make_weights
from lstm_trt.export.to_onnx import INPUT, OUTPUT
from lstm_trt.runtimes import _torch
from lstm_trt.runtimes.base import Request
from tests.conftest import computes_bf16
from tests.support import prepared_steps
from tests.support.prepared_steps import prepare, request_of

NAMES = ("pytorch", "pytorch-cudagraph", "torch-compile", "torchscript")
SMALL = LstmShape(2, 16, 12)
ALL_KINDS = [
    LstmShape(layers, 16, 12, batch, 5, directions)
    for layers, directions, batch in itertools.product((1, 2, 3), (1, 2), (1, 3))
]
SOME_KINDS = [LstmShape(1, 16, 12), LstmShape(2, 16, 12, 3, 5, 2), LstmShape(3, 16, 70, 1, 5, 1)]


def error_on_fresh_inputs(step, shape, seed=7):
    """The error for inputs that are new to the step, which detects frozen outputs."""
    inputs, _, _ = make_inputs(shape, seed)
    return prepared_steps.error(prepared_steps.outputs_of(step, inputs), shape, inputs)


# The contract


@pytest.mark.parametrize("name", NAMES)
def test_availability_names_what_is_missing(name, monkeypatch):
    module = runtimes.load_runtime(name)
    assert module.DISTRIBUTION == "torch" and not getattr(module, "NEEDS_ONNX", False)
    for device in ("cpu", "cuda"):
        state = module.availability(device)
        assert state.version and "\n" not in state.reason + state.remedy
        assert state.device_name if state.ready else state.reason
    monkeypatch.setattr(_torch, "installed_version", lambda distribution: None)
    assert module.availability(module.DEVICES[0]).remedy == "pip install -e '.[record]'"


@pytest.mark.parametrize("name", NAMES)
def test_unsupported_options_are_rejected(name):
    if name == "pytorch-cudagraph":
        with pytest.raises(RuntimeUnavailable, match="cuda"):
            prepare(name, SMALL)
        return
    for options in ({"device_clocks": "compute"}, {"device_clocks": "all"}, {"graph": True}, {"precision": "int8"}):
        with pytest.raises(UsageError):
            prepare(name, SMALL, **options)


def test_a_too_large_batch_exhausts_memory():
    shape = LstmShape(1, 8, 1_000_000, 1_000_000)
    inputs = np.broadcast_to(np.float32(0), (shape.sequence, shape.batch, shape.features))
    with pytest.raises(MemoryExhausted, match="1x8"):
        runtimes.load_runtime("pytorch").prepare(Request(shape, Options(), {INPUT: inputs}, make_weights(shape, 0)))


@pytest.mark.parametrize("name", ("pytorch", "torchscript"))
def test_a_closed_step_raises(name):
    step = prepare(name, SMALL)
    with pytest.raises(UsageError, match="inputs"):
        step.load_inputs({INPUT: np.zeros((1, 1, 12), np.float32)})
    step.close()
    step.close()
    with pytest.raises(RunFailed, match="closed"):
        step.step()


# The CPU


@pytest.mark.parametrize("shape", ALL_KINDS, ids=lambda shape: shape.label)
@pytest.mark.parametrize("name", ("pytorch", "torchscript"))
def test_outputs_agree_with_the_reference(name, shape):
    step = prepare(name, shape)
    first = step.outputs()[OUTPUT]
    assert prepared_steps.error(first, shape, make_inputs(shape, 1)[0]) < 1e-6
    assert error_on_fresh_inputs(step, shape) < 1e-6
    assert not np.array_equal(first, step.outputs()[OUTPUT])
    step.outputs()[OUTPUT][:] = 0  # a copy
    assert step.outputs()[OUTPUT].any()
    facts = step.facts()
    assert facts["threads"] == 1 and facts["operators"]["aten.mkldnn_rnn_layer"] == shape.layers * shape.directions
    assert facts["precision_switches"]["mkldnn_rnn"] in ("none", "ieee")
    step.close()


def test_threads_are_those_asked_for():
    for threads in (2, 1):
        step = prepare("pytorch", SMALL, threads=threads)
        assert step.facts()["threads"] == threads
        step.close()


@pytest.mark.parametrize(("name", "precision"), [("pytorch", "bf16"), ("pytorch", "fp16"), ("torchscript", "bf16")])
def test_half_precisions_differ_and_stay_close(name, precision):
    step = prepare(name, SMALL, precision=precision)
    assert 1e-5 < error_on_fresh_inputs(step, SMALL) < 3e-2
    assert step.facts()["operators"]["aten._to_copy"] == 2  # conversion of inputs and outputs, within the step
    step.close()


def test_torchscript_is_scripted_and_frozen(recwarn):
    step = prepare("torchscript", SMALL)
    facts = step.facts()
    assert facts["scripted"] == "RecursiveScriptModule" and facts["frozen"]
    assert not [warning for warning in recwarn if "torch.jit" in str(warning.message)]
    step.close()


# torch.compile on the CPU


@pytest.mark.heavy
@pytest.mark.parametrize("shape", SOME_KINDS, ids=lambda shape: shape.label)
def test_torch_compile_compiles_the_whole_network_once(shape):
    step = prepare("torch-compile", shape)
    assert error_on_fresh_inputs(step, shape) < 1e-6
    facts = step.facts()
    assert facts["compiled"]["graphs"] == 1 and facts["compiled"]["graph_breaks"] == 0
    assert facts["compiled"]["inductor_graphs"] == 1
    # One oneDNN call per layer and direction, and the dense layer: nothing was unrolled.
    assert facts["compiled"]["external_calls"] >= shape.layers * shape.directions
    assert not facts["unrolled"] and facts["recompiled_later"] == 0 and facts["compile_s"] > 0
    step.close()
    step.close()


@pytest.mark.heavy
def test_torch_compile_in_bf16():
    if not computes_bf16("torch-compile"):
        with pytest.raises(BuildFailed, match="in bf16 on cpu"):
            prepare("torch-compile", SMALL, precision="bf16")
        return
    step = prepare("torch-compile", SMALL, precision="bf16")
    assert 1e-5 < error_on_fresh_inputs(step, SMALL) < 3e-2
    step.close()


@pytest.mark.heavy
def test_torch_compile_refuses_where_compilation_is_disabled(monkeypatch):
    """PyTorch reads the variable when something is compiled."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(BuildFailed):
        prepare("torch-compile", LstmShape(1, 8, 4))


@pytest.mark.heavy
def test_torch_compile_fails_if_dynamo_skips_the_lstm(monkeypatch):
    import torch

    compile_module = torch.nn.Module.compile

    def compile_by_default(module, **kwargs):
        torch._dynamo.config.allow_rnn = False
        compile_module(module)

    monkeypatch.setattr(torch.nn.Module, "compile", compile_by_default)
    with pytest.raises(BuildFailed, match="graph_breaks"):
        prepare("torch-compile", SMALL)


def test_torch_compile_refuses_to_unroll_long_sequences(monkeypatch):
    monkeypatch.setattr(_torch, "operators", lambda network, inputs: {"aten.addmm": 1})
    for shape in (LstmShape(1, 8, 65), LstmShape(3, 8, 4), LstmShape(2, 8, 4, directions=2)):
        with pytest.raises(BuildFailed, match="unrolls"):
            prepare("torch-compile", shape)


# GPU paths without a GPU


@pytest.fixture
def restored_switches():
    yield
    _torch.switch_tf32(False)


@pytest.mark.parametrize("allow", (True, False, True))
def test_both_tf32_interfaces_agree(allow, restored_switches):
    import torch

    _torch.switch_tf32(allow)
    assert set(_torch.precision_switches("cuda").values()) == {"tf32" if allow else "ieee"}
    # The old interface raises where it disagrees with the new one.
    assert torch.backends.cuda.matmul.allow_tf32 is allow and torch.backends.cudnn.allow_tf32 is allow
    assert torch.get_float32_matmul_precision() == ("high" if allow else "highest")


class FakeEvent:
    """A mock CUDA event: its clock advances by one microsecond per record."""

    ticks = 0

    def __init__(self, **kwargs):
        self.at_ms = None

    def record(self, stream):
        FakeEvent.ticks += 1
        self.at_ms = FakeEvent.ticks * 1e-3

    def elapsed_time(self, later):
        return later.at_ms - self.at_ms


@pytest.fixture
def pretended_gpu(monkeypatch):
    """Runs the CUDA steps with host tensors, which finds only programming errors."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    calls = []
    stream = SimpleNamespace(synchronize=lambda: calls.append("wait"))
    empty, tensor_to = torch.empty, torch.Tensor.to

    class Graph(TorchDispatchMode):
        """Keeps what is called in a capture, and calls it again with the same tensors."""

        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            made = function(*arguments, **(named or {}))
            self.work.append((partial(function, *arguments, **(named or {})), made))
            return made

        def replay(self):
            calls.append("replay")
            for again, made in self.work:
                for place, value in zip(tree_leaves(made), tree_leaves(again()), strict=True):
                    if place is not None:
                        place.copy_(value)

        def reset(self):
            calls.append("reset")

    def capture(graph, stream):
        graph.work = []
        return graph

    def unpinned(*sizes, pin_memory=False, **kwargs):
        return empty(*sizes, **kwargs)

    monkeypatch.setattr(torch, "empty", unpinned)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *args: self.clone() if args[0] == "cuda" else tensor_to(self, *args)
    )
    monkeypatch.setattr(_torch, "own_stream", lambda: stream)
    for name in ("set_stream", "synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *args: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    return calls


@pytest.mark.parametrize("device_clocks", ("off", "compute", "all"))
@pytest.mark.parametrize("name", ("pytorch", "pytorch-cudagraph"))
def test_dry_run_of_the_cuda_step(name, device_clocks, pretended_gpu):
    request = request_of(name, SMALL, device="cuda", device_clocks=device_clocks)
    module = build_module(SMALL, request.weights)
    step = _torch.CudaStep(request, module, runtimes.load_runtime(name).bind)
    pretended_gpu.clear()
    assert error_on_fresh_inputs(step, SMALL) < 1e-6
    assert pretended_gpu == ["replay"] * (name == "pytorch-cudagraph") + ["wait"]
    columns = {"off": [], "compute": ["compute_ns"], "all": ["compute_ns", "d2h_ns", "h2d_ns"]}[device_clocks]
    times = step.device_times()
    assert sorted(times) == (sorted([*columns, "enqueue_ns"]) if columns else [])
    assert all(len(column) == 1 and column.dtype == np.int64 for column in times.values())
    assert all(times[column] == 1000 for column in columns)  # one tick of the mock clock
    assert all(len(column) == 0 for column in step.device_times().values())
    assert step.facts()["device_clocks"] == device_clocks and step.facts()["host_memory"] == "pinned"
    step.close()
    step.close()
    assert pretended_gpu.count("reset") == (name == "pytorch-cudagraph")


@pytest.mark.parametrize("name", ("pytorch", "pytorch-cudagraph"))
def test_dry_run_of_a_stream_on_cuda(name, pretended_gpu):
    """Outside a graph the state is passed on; in a graph it is copied back into the buffers that the network reads."""
    shape = LstmShape(2, 16, 5, 3)
    request = request_of(name, shape, "stream", device="cuda")
    step = _torch.CudaStep(request, build_module(shape, request.weights, "stream"), runtimes.load_runtime(name).bind)
    assert prepared_steps.stream_error(step, shape, 2) < 1e-6


def test_a_failed_capture_is_an_error(pretended_gpu, monkeypatch):
    import torch

    @contextmanager
    def refusing(graph, stream):
        raise RuntimeError("operation not permitted when stream is capturing\nat somewhere")
        yield

    monkeypatch.setattr(torch.cuda, "graph", refusing)
    request = request_of("pytorch", SMALL, device="cuda")
    with pytest.raises(BuildFailed, match="operation not permitted"):
        _torch.CudaStep(request, build_module(SMALL, request.weights), runtimes.load_runtime("pytorch-cudagraph").bind)


def test_the_facts_name_whose_lstm_ran():
    step = prepare("pytorch", LstmShape(1, 8, 4))
    facts = step.facts()
    whole = "aten.mkldnn_rnn_layer" in facts["operators"]  # where PyTorch was built with oneDNN
    assert facts["lstm_kernel"] == ("oneDNN" if whole else "operators")
    assert _torch.lstm_kernel({"aten._cudnn_rnn": 1, "aten.copy_": 2}) == "cuDNN"
    assert _torch.lstm_kernel({"aten.mm": 32, "aten.sigmoid": 48}) == "operators"
    step.close()


# A GPU


BOUNDS = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 1e-2, "bf16": 3e-2}
GPU_SHAPE = LstmShape(2, 256, 32, 3, 12, 2)


@pytest.mark.gpu
@pytest.mark.usefixtures("torch_on_gpu")
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("name", ("pytorch", "pytorch-cudagraph", "torchscript"))
def test_gpu_outputs_agree_with_the_reference(name, precision):
    step = prepare(name, GPU_SHAPE, device="cuda", precision=precision)
    facts = step.facts()
    assert error_on_fresh_inputs(step, GPU_SHAPE) < BOUNDS[precision]
    assert set(facts["precision_switches"].values()) == {"tf32" if precision == "tf32" else "ieee"}
    assert facts["weights_in_one_chunk"], "cuDNN would copy the weights at every call"
    if precision != "bf16":  # which some versions of PyTorch keep from cuDNN
        assert facts["operators"].get("aten._cudnn_rnn") == 1
    assert facts["lstm_kernel"] == ("cuDNN" if "aten._cudnn_rnn" in facts["operators"] else "operators")
    assert facts["cudnn"] and facts["host_memory"] == "pinned"
    step.close()
    step.close()


@pytest.mark.gpu
@pytest.mark.usefixtures("torch_on_gpu")
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("name", ("pytorch", "pytorch-cudagraph", "torchscript"))
def test_gpu_streams_carry_their_state(name, precision):
    shape = LstmShape(2, 64, 7, 3)
    step = prepare(name, shape, "stream", device="cuda", precision=precision)
    assert prepared_steps.stream_error(step, shape, 20) < BOUNDS[precision]


@pytest.mark.gpu
@pytest.mark.usefixtures("torch_on_gpu")
@pytest.mark.parametrize("name", ("pytorch", "pytorch-cudagraph"))
def test_gpu_event_times_lie_within_the_host_time(name):
    step = prepare(name, GPU_SHAPE, device="cuda", device_clocks="all")
    prepared_steps.check_event_times(step, make_inputs(GPU_SHAPE, 3)[0])


@pytest.mark.gpu
@pytest.mark.usefixtures("torch_on_gpu")
def test_gpu_torch_compile():
    state = runtimes.load_runtime("torch-compile").availability("cuda")
    if not state.ready:
        pytest.skip(state.reason)
    shape = LstmShape(1, 32, 8)
    step = prepare("torch-compile", shape, device="cuda")
    assert error_on_fresh_inputs(step, shape) < 1e-5
    assert step.facts()["unrolled"] and step.facts()["compiled"]["kernels"] > 0
    step.close()
    with pytest.raises(BuildFailed, match="unrolls"):
        prepare("torch-compile", LstmShape(1, 32, 65), device="cuda")
