"""What the PyTorch runtimes share: availability, preparing, the module on its device, errors.

A runtime of this family gives a `bind(module, inputs)` that ties the network to its
input tensor once and for all; `prepare` does the rest. What is timed by each is one
call of `PreparedStep.step`, see `_torch_steps.py`. Precision switches, thread counts
and Dynamo's caches belong to the process, so one prepared step at a time: where two
are alive, the one prepared last decides for both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lstm_trt import runtimes
from lstm_trt.configuration import Options
from lstm_trt.errors import UsageError, first_line
from lstm_trt.failures import building
from lstm_trt.networks import build_module
from lstm_trt.runtimes.contract import Availability, PreparedStep, Request, installed_version

if TYPE_CHECKING:
    import torch

DISTRIBUTION = "torch"
#: On the CPU fp16 is a loop of small operators wherever oneDNN lacks it; `facts` show it.
PRECISIONS = {"cpu": ("fp32", "bf16", "fp16"), "cuda": ("fp32", "tf32", "fp16", "bf16")}
#: Device clocks that a prepared step knows.
DEVICE_CLOCKS = {"cpu": ("off",), "cuda": ("off", "compute", "all")}
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
        from lstm_trt.machine import cpu_name

        return Availability(True, version, cpu_name())
    try:
        import torch

        if torch.version.cuda is None:
            return Availability(False, version, reason=f"PyTorch {version} is built without CUDA", remedy=CUDA_WHEEL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old driver is told once, as the reason below
            torch.cuda.init()
            return Availability(True, version, torch.cuda.get_device_name(0))
    except Exception as error:  # no driver, an old one, no GPU, a broken install: all mean not ready
        return Availability(
            False, version, reason=first_line(error), remedy="`nvidia-smi` must list a GPU and a driver for CUDA 13"
        )


def configure(options: Options) -> None:
    """Thread counts of this process; harmless when called again."""
    import torch

    torch.set_num_threads(options.threads)
    if torch.get_num_interop_threads() != 1:
        with suppress(RuntimeError):  # PyTorch allows it once, before any parallel work; `facts` tell what holds
            torch.set_num_interop_threads(1)


def prepare(name: str, request: Request, bind: Callable[[torch.nn.Module, torch.Tensor], Bound]) -> PreparedStep:
    """The prepared step of the runtime `name`, having answered once.

    Raises `UsageError` for options that it does not have, `RuntimeUnavailable`,
    `MemoryExhausted`, and `BuildFailed` for whatever else goes wrong.
    """
    options = checked(name, request)
    if options.graph and name != "pytorch-cudagraph":
        raise UsageError(f"{name} captures no CUDA graph: use the runtime pytorch-cudagraph")
    with building(name, request.label):
        from lstm_trt.runtimes._torch_state import set_precision
        from lstm_trt.runtimes._torch_steps import CpuStep, CudaStep

        configure(options)
        set_precision(options)
        step = (CudaStep if options.device == "cuda" else CpuStep)(request, load_module(request), bind)
        step.step()
        step.device_times()  # forget the clocks of this call
        return step


def checked(name: str, request: Request) -> Options:
    """The options, where the runtime `name` is ready and has them; raises `RuntimeUnavailable` and `UsageError`."""
    options, runtime = request.options, runtimes.load(name)
    runtime.availability(options.device).require(name)
    where = f"{name} on {options.device}"
    offered, clocks = runtime.PRECISIONS[options.device], DEVICE_CLOCKS[options.device]
    if options.precision not in offered:
        raise UsageError(f"{where} offers no {options.precision}: choose from {', '.join(offered)}")
    if options.device_clocks not in clocks:
        raise UsageError(f"{where} has no device clocks {options.device_clocks!r}: choose from {', '.join(clocks)}")
    return options


def load_module(request: Request) -> torch.nn.Module:
    """The network on its device and in its type; inputs and outputs are float32 all the same.

    For fp16 and bf16 the conversion at both ends is part of the module, and so of the step.
    """
    import torch

    module = build_module(request.shape, request.weights)
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
