"""ONNX Runtime: the CPU provider, and CUDA if the installed package has its provider.

A trial is one `run_with_iobinding` with host inputs and outputs that stay bound: on the CPU
there is no copy; on CUDA it is copy in, run, copy out, wait, with pageable host memory.
Carried states are on the device in two sets of buffers, read and written in turn. With the
option `io_binding` off, a trial is one `session.run`, which allocates its outputs. There is no
CUDA graph: a captured session only replays, so that new inputs in host memory would not be
copied.
"""

import io
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from functools import partial

import numpy as np

from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed, building
from lstm_trt.config.libraries import RECORDING, how_to_install, onnx, onnxruntime
from lstm_trt.export import onnx_checks
from lstm_trt.machine.facts import cpu_name, installed_version
from lstm_trt.machine.linux import cpuinfo_flags
from lstm_trt.runtimes.base import Availability, HostStep, PreparedStep, Request, in_turn, on_gpu
from lstm_trt.store.temporary import temporary_folder

NAME = "onnxruntime"

DISTRIBUTION = "onnxruntime"

DEVICES = ("cpu", "cuda")

PRECISIONS = {"cpu": ("fp32", "int8"), "cuda": ("fp32", "tf32")}

NEEDS_ONNX = True

ONNX_RULES = onnx_checks.ONNXRUNTIME

MODES = ("forward", "stream")

IO_BINDING = True

#: Processor flags of instructions that add four 8-bit products in 32 bits.
VNNI_FLAGS = frozenset({"avx512_vnni", "avx_vnni"})

#: A timed call, or one that sets carried state to zero.
Call = Callable[[], None]

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def availability(device: str = "cpu") -> Availability:
    """Ready if the package is installed and has the device's provider."""
    version = installed_version("onnxruntime") or installed_version("onnxruntime-gpu")
    if version is None:
        return Availability(False, reason="not installed", remedy=how_to_install(RECORDING))
    if device == "cpu":
        return Availability(True, version, cpu_name())

    if PROVIDERS[device] not in onnxruntime.get_available_providers():
        reason = f"the installed onnxruntime has no {PROVIDERS[device]}"
        remedy = (
            "pip uninstall onnxruntime, then pip install 'onnxruntime-gpu[cuda,cudnn]'"
            " (needs an NVIDIA GPU)"
        )
        return Availability(False, version, reason=reason, remedy=remedy)
    return on_gpu(version)


def prepare(request: Request) -> PreparedStep:
    """A bound session on static sizes. Raises `BuildFailed`, `MemoryExhausted`,
    `RuntimeUnavailable`."""
    availability(request.options.device).require(NAME)
    load_libraries(request.options)
    with building(NAME, request.label):
        model = onnx_checks.checked(request.model(), ONNX_RULES)
        if request.options.precision == "int8":
            model = _quantized(model, request.options.reduce_range)
        return bound_session(model, request)


def reduces_range(options: Options) -> bool:
    """Whether int8 weights are limited to 7 bits here: on x86 without VNNI.

    The older instruction adds two 8-bit products in 16 bits, which saturates (ONNX Runtime's
    documentation of quantization); with 7 bits the sum fits.
    """
    if options.precision != "int8" or options.device != "cpu":
        return False
    return platform.machine() in ("x86_64", "AMD64") and not VNNI_FLAGS & cpuinfo_flags()


def load_libraries(options: Options) -> None:
    """For "cuda", load its libraries, which needs to be done before the first session, and with
    TF32 off for float32.

    Its LSTM uses cuDNN's default math, in which TF32 is allowed whatever `use_tf32` says; the
    variable is read when the libraries are loaded. A worker process has one precision.
    """
    if options.device != "cuda":
        return
    if options.precision == "fp32":
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    from lstm_trt.runtimes.cuda import _cuda

    _cuda.spin_while_waiting()
    # It prints what it cannot find, which the session reports.
    with suppress(Exception), redirect_stdout(io.StringIO()):
        onnxruntime.preload_dlls()


def bound_session(model: bytes, request: Request) -> PreparedStep:
    """A session for an ONNX model with static sizes, bound to host inputs and outputs, after a
    first call.

    The inputs have the types of the request's inputs. `costs` has `build_s` (creating the session,
    with graph optimizations) and `first_call_s`. Raises `BuildFailed` and the package's errors:
    call it within `building`.
    """
    began = time.perf_counter()
    options = request.options
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.inter_op_num_threads = 1
    settings.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    settings.log_severity_level = 4  # errors are also raised as exceptions, so do not log them
    provider = PROVIDERS[options.device]
    of_provider = {}
    if options.device == "cuda":
        of_provider["use_tf32"] = "1" if options.precision == "tf32" else "0"
    session = onnxruntime.InferenceSession(
        model, settings, providers=[(provider, of_provider)], enable_fallback=0
    )
    used = session.get_providers()[0]
    if used != provider:
        raise BuildFailed(f"onnxruntime fell back from {provider} to {used}")
    return _SessionStep(session, request, began)


class _SessionStep(HostStep):
    def __init__(self, session, request: Request, began: float) -> None:
        super().__init__(request, began)
        self._options = request.options
        self._states = request.states
        bind = self._bound if self._options.io_binding else self._unbound
        self.first_call(*bind(session))
        self._facts = {
            "providers": session.get_providers(),
            "intra_op_threads": self._options.threads,
            "denormals": "processor setting (session.set_denormal_as_zero is off)",
            "graph_optimization": "all",
        }
        if self._options.device != "cpu":
            from lstm_trt.runtimes.cuda import _cuda

            self._facts |= {"host_memory": "pageable", "device_wait": _cuda.scheduling()}

    def _bound(self, session) -> tuple[Call, Call]:
        """The call with bound buffers; with states, two calls in turn: each reads the states that
        the other wrote."""
        kind = onnxruntime.OrtValue
        placed = partial(kind.ortvalue_from_numpy, device_type=self._options.device)
        return in_turn(partial(self._call, session), self._states, placed, kind.update_inplace)

    def _call(self, session, read: Mapping, written: Mapping) -> Call:
        """The call that is bound to the host buffers, and to the states that are read and
        written."""
        binding = session.io_binding()
        for name, array in self._inputs.items():
            binding.bind_input(name, *_by_address(array))
        for name, array in self._outputs.items():
            binding.bind_output(name, *_by_address(array))
        for state in self._states:
            binding.bind_ortvalue_input(state.input, read[state])
            binding.bind_ortvalue_output(state.output, written[state])
        run = partial(session.run_with_iobinding, binding)
        if self._options.device == "cpu":
            return run

        def call() -> None:
            run()
            binding.synchronize_outputs()

        return call

    def _unbound(self, session) -> tuple[Call, Call]:
        """The call with arrays, which returns new ones; states are passed on."""
        run = session.run
        outputs = self._outputs
        names = [*outputs, *(state.output for state in self._states)]
        zeros = {state.input: state.zeros() for state in self._states}
        feed = {**self._inputs, **zeros}
        first_state = len(outputs)

        def step() -> None:
            results = run(names, feed)
            outputs.update(zip(outputs, results, strict=False))
            feed.update(zip(zeros, results[first_state:], strict=True))

        return step, lambda: feed.update(zeros)


def _by_address(array: np.ndarray) -> tuple:
    """A host buffer itself, to be bound: `bind_cpu_input` would make a copy that `load_inputs`
    cannot change."""
    return "cpu", 0, array.dtype.type, array.shape, array.ctypes.data


def _quantized(model: bytes, reduce_range: bool) -> bytes:
    """Dynamic int8: weights stored in 8 bits, with `reduce_range` in 7; activations quantized at
    every call.

    Convolutions stay in float32, because the CPU provider lacks their int8 operator. Raises
    `BuildFailed` if a recurrent operator would stay in float32, or everything would.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with temporary_folder() as folder:
        target = folder / "int8.onnx"
        quantize_dynamic(
            onnx.load_from_string(model),
            target,
            op_types_to_quantize=["LSTM", "MatMul", "Gemm"],
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
        )
        quantized = target.read_bytes()
    operators = {node.op_type for node in onnx.load_from_string(quantized).graph.node}
    left = sorted(operators & {"LSTM", "GRU", "RNN"})
    if left:
        raise BuildFailed(
            f"onnxruntime did not quantize the operator {left[0]}: int8 would compute it in fp32"
        )
    if not operators & {"DynamicQuantizeLSTM", "MatMulInteger"}:
        raise BuildFailed(
            "onnxruntime quantizes LSTM operators and products with stored weights: there are none"
        )
    return quantized
