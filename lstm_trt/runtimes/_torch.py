"""The PyTorch runtimes: availability, precision and threads, preparing, and the steps that are
timed.

On the CPU a step is one forward pass on an input tensor that shares its memory with the
host buffer; its output is a host tensor. On a GPU a step copies the inputs from pinned
memory, runs, copies the outputs to pinned memory and waits for the stream; the host spins.
All work goes to the thread's current stream, which is set to a stream created by this
module, never the default stream, so a step belongs to the thread that called `prepare` or
`load_inputs` last.

In mode "stream" the state stays in tensors of the network's type on its device: what a call
returns is passed to the next one, or copied within the graph (`pytorch_cudagraph.py`).

A runtime of this family is a `TorchRuntime`: its `bind(module, inputs, *state)` binds the network
to its arguments; `prepare` does the rest. `facts` and `operators` record in the provenance what was
actually used. Precision switches, thread counts and Dynamo's caches are settings of the process, so
there may be only one prepared step at a time: with two, the settings of the one prepared last apply
to both.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np

from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed, RunFailed, building, first_line
from lstm_trt.config.libraries import RECORDING, how_to_install, torch
from lstm_trt.config.shape import INPUT, OUTPUT
from lstm_trt.export.network import build_module
from lstm_trt.machine.facts import cpu_name, installed_version
from lstm_trt.runtimes.base import Availability, BufferedStep, PreparedStep, Request, check_options

DISTRIBUTION = "torch"

#: On the CPU, fp16 is a loop of small operators if oneDNN does not support it; `facts` show this.
PRECISIONS = {"cpu": ("fp32", "bf16", "fp16"), "cuda": ("fp32", "tf32", "fp16", "bf16")}

CUDA_WHEEL = (
    "on a machine with an NVIDIA GPU: pip uninstall torch, then pip install torch"
    " (the PyPI wheel for Linux has CUDA)"
)


@dataclass(frozen=True)
class Bound:
    """A network bound to its input tensor, and in mode "stream" to its state.

    `run()` returns the outputs as a float32 tensor (sequence, batch, 1) on the device of
    the inputs, and carries the state; `reset()` sets the state to zero; `facts()` describes
    what was actually built; `release()` frees its resources.
    """

    run: Callable[[], torch.Tensor]
    reset: Callable[[], None]
    facts: Callable[[], dict] = dict
    release: Callable[[], None] = lambda: None


def availability(device: str, devices: tuple[str, ...] = ("cpu", "cuda")) -> Availability:
    """Whether PyTorch is installed and runs on `device`, one of `devices`; imports torch for
    "cuda", never raises."""
    version = installed_version(DISTRIBUTION)
    refused = partial(Availability, False, version)
    if version is None:
        return refused(reason="PyTorch is not installed", remedy=how_to_install(RECORDING))
    if device not in devices:
        return refused(reason=f"it runs on {' and '.join(devices)} only, not on {device}")
    if device == "cpu":
        return Availability(True, version, cpu_name())
    try:
        if torch.version.cuda is None:
            return refused(reason=f"PyTorch {version} is built without CUDA", remedy=CUDA_WHEEL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old driver is reported as the reason below
            torch.cuda.init()
            return Availability(True, version, torch.cuda.get_device_name(0))
    except Exception as error:  # no driver, an old driver, no GPU or a broken installation
        return refused(
            reason=first_line(error), remedy="`nvidia-smi` must show a GPU and a driver for CUDA 13"
        )


@dataclass(frozen=True)
class TorchRuntime:
    """A runtime of this family; `bind(module, inputs, *state)` binds the network to its arguments.

    `GRAPHS`: a graph may be asked for; it always has one.
    """

    NAME: str
    DEVICES: tuple[str, ...]
    PRECISIONS: Mapping[str, tuple[str, ...]]
    bind: Callable[..., Bound]
    availability: Callable[[str], Availability] = availability
    GRAPHS: bool = False

    DISTRIBUTION: ClassVar[str] = DISTRIBUTION
    MODES: ClassVar[tuple[str, ...]] = ("forward", "stream")
    DEVICE_CLOCKS: ClassVar[bool] = True

    def prepare(self, request: Request) -> PreparedStep:
        """The prepared step, after a first call.

        Raises `UsageError` for unsupported options, `RuntimeUnavailable`, `MemoryExhausted`,
        and `BuildFailed` for all other errors.
        """
        options = request.options
        self.availability(options.device).require(self.NAME)
        check_options(self.NAME, self, options)
        with building(self.NAME, request.label):
            configure(options)
            kind = CudaStep if options.device == "cuda" else CpuStep
            step = kind(request, load_module(request), self.bind)
            step.step()
            step.device_times()  # discards the times of this call
            return step


def load_module(request: Request) -> torch.nn.Module:
    """The network on its device and in its data type; inputs and outputs are always float32.

    For fp16 and bf16 the conversions of inputs and outputs are part of the module and so of the
    step; carried state has the data type of the network.
    """
    module: Any = build_module(request.workload, request.weights, request.mode)
    halves = {"fp16": torch.float16, "bf16": torch.bfloat16}
    half = halves.get(request.options.precision)
    module = module.to(request.options.device, torch.float32 if half is None else half)
    if request.options.device == "cuda":
        # One chunk of memory with all weights for cuDNN; `weights_in_one_chunk` shows whether it
        # worked. PyTorch makes one when moving a module to the device, except for bfloat16, where
        # it would copy all weights at every call.
        torch.backends.cudnn.CUDNN_TENSOR_DTYPES.add(torch.bfloat16)
        with suppress(RuntimeError):
            module.lstm.flatten_parameters()
    if half is None:
        return module

    class Converting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.half_type = module, half

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.network(inputs.to(self.half_type)).float()

    class ConvertingStream(Converting):
        def forward(self, inputs: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor):
            outputs, hn, cn = self.network(inputs.to(self.half_type), h0, c0)
            return outputs.float(), hn, cn

    return (ConvertingStream if request.mode == "stream" else Converting)().eval()


def guarded(
    forward: Callable, inputs: torch.Tensor, *state: torch.Tensor
) -> tuple[Callable[[], torch.Tensor], Callable[[], None]]:
    """`run` and `reset` of a `Bound`: `forward(inputs, *state)` in inference mode, with the least
    overhead.

    A 1 x 16 network of 4 steps took 60.8 us this way (one `torch.inference_mode()` object,
    entered again for each call, and `forward` instead of the module, since calling the module
    checks for hooks first), 64.0 us the usual way and 66.1 us with gradients enabled, where
    each operator passes through autograd. Entering the mode once for all calls took 57.9 us,
    but would leave the whole thread in it.
    """
    guard = torch.inference_mode()
    if not state:

        def run() -> torch.Tensor:
            with guard:
                return forward(inputs)

        return run, lambda: None

    # Made within the mode: otherwise they would differ from the carried ones, and torch.compile
    # would compile for both.
    with guard:
        zeros = h, c = tuple(torch.zeros_like(tensor) for tensor in state)

    def run_and_carry() -> torch.Tensor:
        nonlocal h, c
        with guard:
            outputs, h, c = forward(inputs, h, c)
        return outputs

    def reset() -> None:
        nonlocal h, c
        h, c = zeros

    return run_and_carry, reset


# Settings of a PyTorch process


def configure(options: Options) -> None:
    """Set the thread counts, the precision and how the host waits for a GPU; may be called again.

    Enables TF32 for "tf32" and disables it otherwise, in cuBLAS and in cuDNN's RNNs; raises
    `BuildFailed`. Both of PyTorch's interfaces are set, because reading one after setting only the
    other raises an error (Inductor still reads the old one); the old one first, since it also
    writes the new one's values. By default PyTorch enables TF32 in cuDNN, so without this call an
    LSTM in "float32" computes in TF32.
    """
    torch.set_num_threads(options.threads)
    if torch.get_num_interop_threads() != 1:
        # Allowed only once, before any parallel work; `facts` has the actual count.
        with suppress(RuntimeError):
            torch.set_num_interop_threads(1)
    if options.device == "cpu":
        return
    from lstm_trt.runtimes.cuda import _cuda

    _cuda.spin_while_waiting()
    allow = options.precision == "tf32"
    if allow:
        _cuda.check_tf32()
    switch_tf32(allow)
    wanted = "tf32" if allow else "ieee"
    found = precision_switches("cuda")
    if set(found.values()) != {wanted}:
        raise BuildFailed(
            f"cannot set PyTorch {torch.__version__} to the precision {wanted}: {found}"
        )


def switch_tf32(allow: bool) -> None:
    """Set both interfaces to TF32, old and new, consistently."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old interface is deprecated
        torch.backends.cuda.matmul.allow_tf32 = allow
        torch.backends.cudnn.allow_tf32 = allow
    backends: Any = torch.backends  # its stub lacks what newer versions have
    for operators_of in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        operators_of.fp32_precision = "tf32" if allow else "ieee"


def precision_switches(device: str) -> dict[str, str]:
    """The libraries' current precision for float32 operations."""
    backends: Any = torch.backends  # its stub lacks what newer versions have
    if device == "cuda":
        return {
            "cublas_matmul": backends.cuda.matmul.fp32_precision,
            "cudnn_rnn": backends.cudnn.rnn.fp32_precision,
        }
    return {
        "mkldnn_matmul": backends.mkldnn.matmul.fp32_precision,
        "mkldnn_rnn": backends.mkldnn.rnn.fp32_precision,
    }


def operators(forward: Callable, *arguments: Any) -> dict[str, int]:
    """Number of calls per operator in one forward pass.

    `aten.mkldnn_rnn_layer` or `aten._cudnn_rnn` if a library's LSTM is used, else many small
    operators.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            counted[str(operator).removesuffix(".default")] += 1
            return operator(*args, **(kwargs or {}))

    counted: Counter[str] = Counter()
    with torch.no_grad(), Counting():  # inference mode would hide the operators within `aten.lstm`
        forward(*arguments)
    return dict(counted)


#: Operator that is a library's whole LSTM -> the library.
LSTM_KERNELS = {"aten._cudnn_rnn": "cuDNN", "aten.mkldnn_rnn_layer": "oneDNN"}


def lstm_kernel(counted: Mapping[str, int]) -> str:
    """Whose LSTM ran, from the result of `operators`: "cuDNN", "oneDNN", or "operators" for many
    small ones."""
    for name, library in LSTM_KERNELS.items():
        if name in counted:
            return library
    return "operators"


def facts(options: Options) -> dict:
    """This process's current settings: threads, precision, denormals; JSON values."""
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
        from lstm_trt.runtimes.cuda import _cuda

        major, minor = torch.cuda.get_device_capability()
        found |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "compute_capability": f"{major}.{minor}",
            "host_memory": "pinned",
            "device_wait": f"cudaStreamSynchronize, {_cuda.scheduling()}",
        }
    return found


# What is timed


@cache
def own_stream() -> torch.cuda.Stream:
    """The stream that all steps of this process use."""
    return torch.cuda.Stream()


class _TorchStep(BufferedStep):
    """Common to both devices: buffers, inputs, carried state and closing."""

    def __init__(self, request: Request, pinned: bool) -> None:
        self._host_inputs = torch.empty(request.workload.input_shapes[INPUT], pin_memory=pinned)
        super().__init__({INPUT: self._host_inputs.numpy()})
        self._options = request.options
        self._states = request.states
        self._output_shape = request.workload.output_shapes[OUTPUT]
        self._bound: Any = None  # `Bound`, until it is closed
        self.load_inputs(request.inputs)

    def facts(self) -> dict:
        found = facts(self._options)
        if self._bound is not None:
            found |= self._bound.facts()
        if "operators" in found:
            found["lstm_kernel"] = lstm_kernel(found["operators"])
        return found

    def close(self) -> None:
        super().close()
        if self._bound is not None:
            self._bound.release()
            self._bound = None

    def _bind(
        self, bind: Callable[..., Bound], module: torch.nn.Module, inputs: torch.Tensor
    ) -> torch.Tensor:
        """Bind the network to its inputs and to a state of zeros; returns the outputs of a first
        call."""
        kind = next(module.parameters()).dtype
        zeros = [inputs.new_zeros(state.shape, dtype=kind) for state in self._states]
        self._bound = bind(module, inputs, *zeros)
        self.reset = self._bound.reset
        outputs = self._bound.run()
        found = tuple(outputs.shape)
        if found != self._output_shape:
            raise RunFailed(f"the outputs have shape {found}, expected {self._output_shape}")
        return outputs


class CpuStep(_TorchStep):
    """A forward pass on the calling thread; its outputs are in host memory."""

    def __init__(
        self, request: Request, module: torch.nn.Module, bind: Callable[..., Bound]
    ) -> None:
        super().__init__(request, pinned=False)
        self._latest = latest = [self._bind(bind, module, self._host_inputs)]
        run = self._bound.run

        def step() -> None:
            latest[0] = run()

        self.step = step

    def outputs(self) -> dict[str, np.ndarray]:
        return {OUTPUT: self._latest[0].numpy().copy()}

    def close(self) -> None:
        super().close()
        self._latest.clear()


class CudaStep(_TorchStep):
    """Copy in, forward pass, copy out, wait; with events in between if requested."""

    def __init__(
        self, request: Request, module: torch.nn.Module, bind: Callable[..., Bound]
    ) -> None:
        from lstm_trt.runtimes.cuda import _cuda

        self._stream = own_stream()
        super().__init__(request, pinned=True)
        self._module: Any = module
        self._device_inputs: Any = self._host_inputs.to("cuda")
        torch.cuda.synchronize()  # the weights were converted on the default stream
        self._host_outputs = torch.empty(self._output_shape, pin_memory=True)
        self._bind(bind, module, self._device_inputs)
        if self._options.device_clocks != "off":
            every = self._options.device_clocks == "all"
            self._clocks = _cuda.EventClocks(
                lambda: torch.cuda.Event(enable_timing=True), self._stream, every
            )
        copy_in = partial(self._device_inputs.copy_, self._host_inputs, True)  # True: non_blocking
        self.step = _cuda.timed_step(
            copy_in, self._bound.run, self._host_outputs.copy_, self._stream, self._clocks
        )
        torch.cuda.synchronize()

    def load_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        torch.cuda.set_stream(self._stream)  # for this thread, which will run the trials
        super().load_inputs(inputs)

    def outputs(self) -> dict[str, np.ndarray]:
        return {OUTPUT: self._host_outputs.numpy().copy()}

    def facts(self) -> dict:
        found = super().facts()
        found["device_clocks"] = self._options.device_clocks
        if self._clocks:
            found["event_pool"] = self._clocks.size
        if self._module is not None:
            lstm: Any = getattr(self._module, "network", self._module).lstm
            chunks = {weight.untyped_storage().data_ptr() for weight in lstm.parameters()}
            found["weights_in_one_chunk"] = len(chunks) == 1
        return found

    def close(self) -> None:
        if self._bound is None:
            return
        torch.cuda.synchronize()
        super().close()
        self._module = self._clocks = self._device_inputs = None
        torch.cuda.empty_cache()
