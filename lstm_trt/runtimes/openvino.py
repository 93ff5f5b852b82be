"""OpenVINO on the CPU.

A trial is one `infer` of a request whose inputs and outputs are host arrays that it reads and
writes in place. The latency hint is set, with one stream of `options.threads` threads, and
OpenVINO's own pinning is off. The precision is always stated: by itself OpenVINO computes in
bfloat16 on processors that have it. In the mode "stream" two requests alternate: each reads the
states that the other wrote.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lstm_trt.config.errors import BuildFailed, building, is_memory_error
from lstm_trt.config.libraries import how_to_install
from lstm_trt.export import onnx_checks
from lstm_trt.machine.facts import cpu_name, installed_version
from lstm_trt.machine.linux import cpuinfo_flags
from lstm_trt.runtimes.base import Availability, HostStep, PreparedStep, Request, in_turn

NAME = "openvino"

DISTRIBUTION = "openvino"

DEVICES = ("cpu",)

#: Not float16: with that hint OpenVINO 2026.4 computes recurrent layers in float32.
PRECISIONS = {"cpu": ("fp32", "bf16")}

NEEDS_ONNX = True

MODES = ("forward", "stream")

ONNX_RULES = onnx_checks.OPENVINO

#: Flags of x86 and Arm processors that compute in bfloat16; on others OpenVINO accepts the hint and
#: emulates it.
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


def availability(device: str = "cpu") -> Availability:
    """Ready if the package is installed."""
    version = installed_version(DISTRIBUTION)
    if version is None:
        return Availability(False, reason="not installed", remedy=how_to_install("openvino"))
    return Availability(True, version, cpu_name())


def prepare(request: Request) -> PreparedStep:
    """A compiled network with its requests, after a first call.

    Raises `BuildFailed`, also if the processor does not have the precision or OpenVINO would
    compute a recurrent layer in another one, `MemoryExhausted` and `RuntimeUnavailable`.
    """
    availability().require(NAME)
    hint = {"fp32": "f32", "bf16": "bf16"}[request.options.precision]
    if hint == "bf16" and not BFLOAT16_FLAGS & cpuinfo_flags():
        raise BuildFailed(f"{cpu_name()} does not compute in bf16")
    with building(NAME, request.label):
        content = onnx_checks.checked(request.model(), ONNX_RULES)
        began = time.perf_counter()
        compiled = _compiled(content, hint, request.options.threads)
        return _RequestStep(compiled, request, began)


def _compiled(content: bytes, hint: str, threads: int):
    """The compiled model; raises `BuildFailed` with OpenVINO's reason."""
    import openvino

    core = openvino.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
    }
    try:
        compiled = core.compile_model(core.read_model(content), "CPU", settings)
    except RuntimeError as error:
        if is_memory_error(error):
            raise
        raise BuildFailed(f"{NAME} cannot build it: {_reason(error)}") from error
    different = [precision for precision in _recurrent_precisions(compiled) if precision != hint]
    if different:
        raise BuildFailed(
            f"{NAME} would compute the recurrent layers in {different[0]} instead of {hint}"
        )
    return compiled


def _reason(error: RuntimeError) -> str:
    """The summary of OpenVINO's message, or its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    summary = [line[3:] for line in lines if line.startswith("-- ") and not line.endswith(":")]
    return "; ".join(summary) or lines[-1].rpartition("CALLBACK HAS THROWN: ")[2]


def _recurrent_precisions(compiled) -> list[str]:
    """The precisions in which the recurrent layers are computed; those that OpenVINO unrolls are
    not listed."""
    found = []
    for layer in compiled.get_runtime_model().get_ordered_ops():
        info = layer.get_rt_info()
        if info["layerType"].astype(str).startswith("RNN"):
            found.append(info["runtimePrecision"].astype(str))
    return found


class _RequestStep(HostStep):
    def __init__(self, compiled, request: Request, began: float) -> None:
        super().__init__(request, began)
        self._states = request.states
        bind = partial(self._call, compiled)
        self.first_call(*in_turn(bind, self._states, np.asarray, np.copyto))
        get = compiled.get_property
        flush = "on" if get("CPU_DENORMALS_OPTIMIZATION") else "off"
        self._facts = {
            "inference_precision": get("INFERENCE_PRECISION_HINT").to_string(),
            "recurrent_precisions": _recurrent_precisions(compiled),
            "inference_threads": get("INFERENCE_NUM_THREADS"),
            "streams": get("NUM_STREAMS"),
            "performance_hint": str(get("PERFORMANCE_HINT")),
            "own_pinning": get("ENABLE_CPU_PINNING"),
            "denormals": f"processor setting (CPU_DENORMALS_OPTIMIZATION is {flush})",
        }

    def _call(self, compiled, read: dict, written: dict) -> Callable[[], Any]:
        """The inference of a new request on the host buffers and these states."""
        import openvino

        request = compiled.create_infer_request()
        arrays = {**self._inputs, **self._outputs}
        for state in self._states:
            arrays[state.input] = read[state]
            arrays[state.output] = written[state]
        for name, array in arrays.items():
            request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        base: Any = super(type(request), request)
        infer = base.infer  # the bound C function, without the Python wrapper
        return partial(infer, {}, share_outputs=True, decode_strings=False)
