"""The PyTorch runtimes: availability, precision and threads, preparing, and the steps that are timed.

On the CPU a step is one forward on an input tensor that shares its memory with the
host buffer; its answer is a host tensor. On a GPU a step copies the inputs from
pinned memory, runs, copies the answer to pinned memory and waits for the stream: the
host spins. Everything goes to the thread's current stream, which becomes one of this
process's own, never the default one, so a step belongs to the thread that called
`prepare` or `load_inputs` last.

A runtime of this family is a `TorchRuntime`: its `bind(module, inputs)` ties the network to its
input tensor once and for all; `prepare` does the rest. `facts` and `operators` say for
the provenance what was really used. Precision switches, thread counts and Dynamo's
caches belong to the process, so one prepared step at a time: where two are alive, the
one prepared last decides for both.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed, RunFailed, UsageError, building, first_line
from lstm_trt.export.network import build_module
from lstm_trt.export.to_onnx import INPUT, OUTPUT
from lstm_trt.machine.facts import cpu_name, installed_version
from lstm_trt.runtimes import _cuda
from lstm_trt.runtimes._cuda import EventClocks
from lstm_trt.runtimes.base import Availability, BufferedStep, PreparedStep, Request, check_options

if TYPE_CHECKING:
    import torch


DISTRIBUTION = "torch"

#: On the CPU fp16 is a loop of small operators wherever oneDNN lacks it; `facts` show it.
PRECISIONS = {"cpu": ("fp32", "bf16", "fp16"), "cuda": ("fp32", "tf32", "fp16", "bf16")}

CUDA_WHEEL = (
    "on a machine with an NVIDIA GPU: pip uninstall torch, then pip install torch (PyPI has it with CUDA for Linux)"
)


@dataclass(frozen=True)
class Bound:
    """A network tied to one input tensor.

    `run()` gives the answer as a float32 tensor (sequence, batch, 1) on the device of
    the inputs; `facts()` what was really built; `release()` frees what `run` holds.
    """

    run: Callable[[], torch.Tensor]
    facts: Callable[[], dict] = dict
    release: Callable[[], None] = lambda: None


def availability(device: str, devices: tuple[str, ...] = ("cpu", "cuda")) -> Availability:
    """Whether PyTorch can run on `device`; imports torch for "cuda" only, never raises."""
    version = installed_version(DISTRIBUTION)
    if version is None:
        return Availability(False, reason="PyTorch is not installed", remedy="pip install torch")
    if device not in devices:
        return Availability(False, version, reason=f"it runs on {' and '.join(devices)} only, not on {device}")
    if device == "cpu":
        return Availability(True, version, cpu_name())
    try:
        import torch

        if torch.version.cuda is None:
            return Availability(False, version, reason=f"PyTorch {version} is built without CUDA", remedy=CUDA_WHEEL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old driver is the reason below, once
            torch.cuda.init()
            return Availability(True, version, torch.cuda.get_device_name(0))
    except Exception as error:  # no driver, an old one, no GPU, a broken install: all mean not ready
        return Availability(
            False, version, reason=first_line(error), remedy="`nvidia-smi` must list a GPU and a driver for CUDA 13"
        )


@dataclass(frozen=True)
class TorchRuntime:
    """A runtime of this family; `bind(module, inputs)` ties the network to its input tensor."""

    NAME: str
    DEVICES: tuple[str, ...]
    PRECISIONS: Mapping[str, tuple[str, ...]]
    bind: Callable[[torch.nn.Module, torch.Tensor], Bound]

    DISTRIBUTION: ClassVar[str] = DISTRIBUTION

    def availability(self, device: str) -> Availability:
        """Ready where PyTorch is installed, and for "cuda" sees a GPU."""
        return availability(device, self.DEVICES)

    def prepare(self, request: Request) -> PreparedStep:
        """The prepared step, having answered once.

        Raises `UsageError` for options that the runtime does not have, `RuntimeUnavailable`,
        `MemoryExhausted`, and `BuildFailed` for whatever else goes wrong.
        """
        options = request.options
        self.availability(options.device).require(self.NAME)
        check_options(self.NAME, self, options)
        if options.graph and self.NAME != "pytorch-cudagraph":
            raise UsageError(f"{self.NAME} captures no CUDA graph: use the runtime pytorch-cudagraph")
        with building(self.NAME, request.label):
            configure(options)
            set_precision(options)
            step = (CudaStep if options.device == "cuda" else CpuStep)(request, load_module(request), self.bind)
            step.step()
            step.device_times()  # forget the clocks of this call
            return step


def configure(options: Options) -> None:
    """Thread counts of this process; harmless when called again."""
    import torch

    torch.set_num_threads(options.threads)
    if torch.get_num_interop_threads() != 1:
        with suppress(RuntimeError):  # PyTorch allows it once, before any parallel work; `facts` tell what holds
            torch.set_num_interop_threads(1)


def load_module(request: Request) -> torch.nn.Module:
    """The network on its device and in its type; inputs and outputs are float32 all the same.

    For fp16 and bf16 the conversion at both ends is part of the module, and so of the step.
    """
    import torch

    module = build_module(request.workload, request.weights)
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(request.options.precision)
    module = module.to(request.options.device, half or torch.float32)
    if request.options.device == "cuda":
        _flatten(module.lstm)
    if half is None:
        return module

    class Converting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.half_type = module, half

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.network(inputs.to(self.half_type)).float()

    return Converting().eval()


def _flatten(lstm: torch.nn.LSTM) -> None:
    """One chunk for all weights, as cuDNN wants them; `weights_in_one_chunk` tells whether it worked.

    PyTorch does so by itself on the way to the device, but leaves bfloat16 out of its
    list of types, and would copy all weights at every call.
    """
    import torch

    torch.backends.cudnn.CUDNN_TENSOR_DTYPES.add(torch.bfloat16)
    with suppress(RuntimeError):
        lstm.flatten_parameters()


def guarded(forward: Callable, inputs: torch.Tensor) -> Callable[[], torch.Tensor]:
    """`forward(inputs)` under inference mode, at the least cost.

    A 1 x 16 network of 4 steps took 60.8 us so (one `torch.inference_mode()` entered
    again each time, and `forward` instead of the module, whose call looks for hooks
    first), 64.0 the usual way, 66.1 with gradients on, where each operator passes
    autograd; 57.9 with the mode entered once for all calls, which would leave the whole
    thread in it.
    """
    import torch

    guard = torch.inference_mode()

    def run() -> torch.Tensor:
        with guard:
            return forward(inputs)

    return run


# What holds in a PyTorch process


def set_precision(options: Options) -> None:
    """TF32 on for "tf32" and off for all else, in cuBLAS and in cuDNN's RNNs; raises `BuildFailed`.

    Both of PyTorch's interfaces are set, the old one first since it writes the new
    one's values too: readers of either (Inductor still asks the old one) then agree,
    where setting one alone makes the other raise. PyTorch's own default has TF32 on in
    cuDNN, so an LSTM in "float32" is none until this has run.
    """
    import torch

    if options.device != "cuda":
        return
    allow = options.precision == "tf32"
    if allow and torch.cuda.get_device_capability()[0] < 8:
        raise BuildFailed(f"tf32 needs compute capability 8.0, {torch.cuda.get_device_name()} has less")
    if allow and os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        raise BuildFailed("tf32 is switched off by NVIDIA_TF32_OVERRIDE=0 in the environment: unset it")
    switch_tf32(allow)
    wanted = "tf32" if allow else "ieee"
    wrong = {name: value for name, value in precision_switches("cuda").items() if value != wanted}
    if wrong:
        raise BuildFailed(f"PyTorch {torch.__version__} did not take the precision {wanted}: {wrong}")


def switch_tf32(allow: bool) -> None:
    """Both interfaces to TF32, old and new, in agreement."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old interface is deprecated
        torch.backends.cuda.matmul.allow_tf32 = allow
        torch.backends.cudnn.allow_tf32 = allow
    for operators_of in (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
        operators_of.fp32_precision = "tf32" if allow else "ieee"


def precision_switches(device: str) -> dict[str, str]:
    """What float32 means to the libraries now."""
    import torch

    if device == "cuda":
        return {
            "cublas_matmul": torch.backends.cuda.matmul.fp32_precision,
            "cudnn_rnn": torch.backends.cudnn.rnn.fp32_precision,
        }
    return {
        "mkldnn_matmul": torch.backends.mkldnn.matmul.fp32_precision,
        "mkldnn_rnn": torch.backends.mkldnn.rnn.fp32_precision,
    }


def operators(forward: Callable, inputs: torch.Tensor) -> dict[str, int]:
    """How often one forward calls which operator: `aten.mkldnn_rnn_layer` or `aten._cudnn_rnn`
    where the libraries' LSTMs are used, a long list of small ones where they are not.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            counted[str(operator).removesuffix(".default")] += 1
            return operator(*args, **(kwargs or {}))

    counted: Counter[str] = Counter()
    with torch.no_grad(), Counting():  # inference mode would hide what `aten.lstm` is made of
        forward(inputs)
    return dict(counted)


def facts(options: Options) -> dict:
    """What holds in this process now: threads, precision, denormals; JSON values."""
    import torch

    found = {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "parallel_backend": torch.__config__.parallel_info().rsplit("backend:", 1)[-1].split()[0],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
        "gradients": "off: inference mode, or a graph captured under no_grad",
        "precision_switches": precision_switches(options.device),
        "denormals_flushed": float(torch.full((1,), 1e-38) * 1e-2) == 0.0,
    }
    if options.device == "cuda":
        found |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "compute_capability": "{}.{}".format(*torch.cuda.get_device_capability()),
            "host_memory": "pinned",
            "device_wait": f"cudaStreamSynchronize, {_cuda.scheduling()}",
        }
    return found


# What is timed


@cache
def own_stream() -> torch.cuda.Stream:
    """The stream of all steps of this process."""
    import torch

    return torch.cuda.Stream()


class _TorchStep(BufferedStep):
    """Buffers, inputs and the end of life, alike on both devices."""

    def __init__(self, request: Request, host_inputs: torch.Tensor) -> None:
        super().__init__(host_inputs.numpy())
        self._options = request.options
        self._output_shape = request.workload.output_shapes[OUTPUT]
        self._host_inputs = host_inputs
        self._bound: Bound | None = None
        self.load_inputs(request.inputs)

    def facts(self) -> dict:
        bound = self._bound.facts() if self._bound else {}
        return {**facts(self._options), **bound}

    def close(self) -> None:
        super().close()
        if self._bound is not None:
            self._bound.release()
            self._bound = None

    def _check(self, answer: torch.Tensor) -> None:
        if tuple(answer.shape) != self._output_shape:
            raise RunFailed(f"the answer has the shape {tuple(answer.shape)}, not {self._output_shape}")


class CpuStep(_TorchStep):
    """A forward on the calling thread; the answer is already in host memory."""

    def __init__(self, request: Request, module: torch.nn.Module, bind: Callable[..., Bound]) -> None:
        import torch

        super().__init__(request, torch.empty(request.workload.input_shapes[INPUT]))
        self._bound = bind(module, self._host_inputs)
        run = self._bound.run
        self._answer = answer = [run()]
        self._check(answer[0])

        def step() -> None:
            answer[0] = run()

        self.step = step

    def outputs(self) -> dict[str, np.ndarray]:
        return {OUTPUT: self._answer[0].numpy().copy()}

    def close(self) -> None:
        super().close()
        self._answer.clear()


class CudaStep(_TorchStep):
    """Copy in, forward, copy out, wait; with events between them where asked for."""

    def __init__(self, request: Request, module: torch.nn.Module, bind: Callable[..., Bound]) -> None:
        import torch

        self._stream = own_stream()
        super().__init__(request, torch.empty(request.workload.input_shapes[INPUT], pin_memory=True))
        self._module = module
        self._device_inputs = self._host_inputs.to("cuda")
        self._host_outputs = torch.empty(self._output_shape, pin_memory=True)
        self._bound = bind(module, self._device_inputs)
        self._check(self._bound.run())
        if self._options.device_clocks == "off":
            self.step = self._plain_step()
        else:
            every = self._options.device_clocks == "all"
            self._clocks = EventClocks(lambda: torch.cuda.Event(enable_timing=True), self._stream, every)
            self.step = self._clocked_step(every)
        torch.cuda.synchronize()

    def load_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        import torch

        torch.cuda.set_stream(self._stream)  # of this thread, which is the one that will run the trials
        super().load_inputs(inputs)

    def outputs(self) -> dict[str, np.ndarray]:
        return {OUTPUT: self._host_outputs.numpy().copy()}

    def facts(self) -> dict:
        found = super().facts()
        found["device_clocks"] = self._options.device_clocks
        if self._clocks:
            found["event_pool"] = self._clocks.size
        if self._module is not None:
            lstm = getattr(self._module, "network", self._module).lstm
            chunks = {weight.untyped_storage().data_ptr() for weight in lstm.parameters()}
            found["weights_in_one_chunk"] = len(chunks) == 1
        return found

    def close(self) -> None:
        import torch

        if self._bound is None:
            return
        torch.cuda.synchronize()
        super().close()
        self._module = self._clocks = self._device_inputs = None
        torch.cuda.empty_cache()

    def _plain_step(self) -> Callable[[], None]:
        copy_in, copy_out = self._device_inputs.copy_, self._host_outputs.copy_
        host_inputs, run, wait = self._host_inputs, self._bound.run, self._stream.synchronize

        def step() -> None:
            copy_in(host_inputs, True)  # True: non_blocking
            copy_out(run(), True)
            wait()

        return step

    def _clocked_step(self, every: bool) -> Callable[[], None]:
        copy_in, copy_out = self._device_inputs.copy_, self._host_outputs.copy_
        host_inputs, run, stream = self._host_inputs, self._bound.run, self._stream
        wait, take, enqueued = stream.synchronize, self._clocks.take, self._clocks.enqueue_ns.append
        clock = time.perf_counter_ns

        def step() -> None:
            began = clock()
            before_in, before_run, after_run, after_out = take()
            if every:
                before_in.record(stream)
            copy_in(host_inputs, True)
            before_run.record(stream)
            answer = run()
            after_run.record(stream)
            copy_out(answer, True)
            if every:
                after_out.record(stream)
            enqueued(clock() - began)
            wait()

        return step
