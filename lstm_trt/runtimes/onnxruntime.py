"""ONNX Runtime: the CPU provider, and CUDA if the installed package has its provider.

A trial is one `run_with_iobinding` with a host input and a host output that stay bound:
on the CPU there is no copy; on CUDA it is copy in, run, copy out, wait, with pageable host
memory. There is no CUDA graph: a captured session only replays, so that new inputs in host
memory would not be copied.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path

import numpy as np

from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed, building
from lstm_trt.export.to_onnx import INPUT, OUTPUT, static_model
from lstm_trt.machine.facts import cpu_name, gpu_name, installed_version
from lstm_trt.machine.gpu import NO_GPU_REMEDY
from lstm_trt.runtimes import _cuda
from lstm_trt.runtimes.base import Availability, BufferedStep, PreparedStep, Request

NAME = "onnxruntime"

DISTRIBUTION = "onnxruntime"

DEVICES = ("cpu", "cuda")

PRECISIONS = {"cpu": ("fp32", "int8"), "cuda": ("fp32", "tf32")}

NEEDS_ONNX = True

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def availability(device: str = "cpu") -> Availability:
    """Ready if the package is installed and has the device's provider."""
    version = installed_version("onnxruntime") or installed_version("onnxruntime-gpu")
    if version is None:
        return Availability(False, reason="not installed", remedy="pip install onnxruntime")
    if device == "cpu":
        return Availability(True, version, cpu_name())
    import onnxruntime

    if PROVIDERS[device] not in onnxruntime.get_available_providers():
        return Availability(
            False,
            version,
            reason=f"the installed onnxruntime has no {PROVIDERS[device]}",
            remedy="pip uninstall onnxruntime, then pip install 'onnxruntime-gpu[cuda,cudnn]' (needs an NVIDIA GPU)",
        )

    name = gpu_name()
    if name is None:
        return Availability(False, version, reason="no NVIDIA GPU is visible", remedy=NO_GPU_REMEDY)
    return Availability(True, version, name)


def prepare(request: Request) -> PreparedStep:
    """A bound session on static sizes. Raises `BuildFailed`, `MemoryExhausted`, `RuntimeUnavailable`."""
    availability(request.options.device).require(NAME)
    if request.options.device == "cuda":
        _prepare_cuda(request.options)
    with building(NAME, request.label):
        model = static_model(request.onnx_path, request.workload)
        return bound_session(_quantized(model) if request.options.precision == "int8" else model, request)


def _prepare_cuda(options: Options) -> None:
    """Load the CUDA libraries, which needs to be done before the first session, and with TF32 off for float32.

    Its LSTM uses cuDNN's default math, in which TF32 is allowed whatever `use_tf32` says; the variable is read when
    the libraries are loaded. A worker process has one precision.
    """
    if options.precision == "fp32":
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    _cuda.spin_while_waiting()
    import onnxruntime

    with suppress(Exception), redirect_stdout(io.StringIO()):  # it prints what it cannot find; the session reports it
        onnxruntime.preload_dlls()


def bound_session(model: bytes, request: Request) -> PreparedStep:
    """A session for an ONNX model with static sizes, bound to a host input and output, after a first call.

    The input has the type of the request's input. `costs` has `build_s` (creating the session, with graph
    optimizations) and `first_call_s`. Raises `BuildFailed` and the package's errors: call it within `building`.
    """
    import onnxruntime

    options, began = request.options, time.perf_counter()
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.inter_op_num_threads = 1
    settings.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    settings.log_severity_level = 4  # errors are also raised as exceptions, so do not log them
    provider_options = {}
    if options.device == "cuda":
        provider_options = {"use_tf32": "1" if options.precision == "tf32" else "0"}
    providers = [(PROVIDERS[options.device], provider_options)]
    session = onnxruntime.InferenceSession(model, settings, providers=providers, enable_fallback=0)
    if session.get_providers()[0] != PROVIDERS[options.device]:
        raise BuildFailed(f"onnxruntime fell back from {PROVIDERS[options.device]} to {session.get_providers()[0]}")
    built = time.perf_counter()
    step = _Bound(session, request)
    step.costs = {"build_s": built - began, "first_call_s": time.perf_counter() - built}
    return step


class _Bound(BufferedStep):
    def __init__(self, session, request: Request) -> None:
        super().__init__(np.array(request.inputs[INPUT], order="C"))
        self._session = session
        self._options = request.options
        self._outputs = np.empty(request.workload.output_shapes[OUTPUT], dtype=np.float32)
        self._binding = session.io_binding()
        # By address: bind_cpu_input would make a copy that load_inputs cannot change.
        for bind, name, array in (
            (self._binding.bind_input, INPUT, self._inputs),
            (self._binding.bind_output, OUTPUT, self._outputs),
        ):
            bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        run = partial(session.run_with_iobinding, self._binding)
        if self._options.device == "cpu":
            self.step = run
        else:
            wait = self._binding.synchronize_outputs

            def step() -> None:
                run()
                wait()

            self.step = step
        self.step()

    def outputs(self) -> dict[str, np.ndarray]:
        return {OUTPUT: self._outputs.copy()}

    def facts(self) -> dict:
        return {
            "providers": self._session.get_providers() if self._session else [],
            "intra_op_threads": self._options.threads,
            "denormals": "processor setting (session.set_denormal_as_zero is off)",
            "graph_optimization": "all",
            **({} if self._options.device == "cpu" else {"host_memory": "pageable", "device_wait": _cuda.scheduling()}),
        }

    def close(self) -> None:
        super().close()
        self._binding = self._session = None


def _quantized(model: bytes) -> bytes:
    """Dynamic int8: weights stored in 8 bits, activations quantized at every call."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory(prefix="lstm_trt-") as folder:
        target = os.path.join(folder, "int8.onnx")
        quantize_dynamic(onnx.load_from_string(model), target, weight_type=QuantType.QInt8)
        quantized = Path(target).read_bytes()
    operators = {node.op_type for node in onnx.load_from_string(quantized).graph.node}
    if "DynamicQuantizeLSTM" not in operators:
        raise BuildFailed("onnxruntime did not quantize the LSTM: int8 would compute in fp32")
    return quantized
