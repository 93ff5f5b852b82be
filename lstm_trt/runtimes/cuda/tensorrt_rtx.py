"""TensorRT for RTX: engines with kernels that are compiled on the machine that runs them.

A trial is copy in, enqueue or graph launch, copy out, wait (`_tensorrt.py`). Kernels are
specialised to the sizes before the first trial (EAGER; the default, LAZY, uses fallback
kernels until a background thread has compiled better ones) and stored in the cache, since
compiling takes longer than building.

The graph is captured by this package as for TensorRT, not by the engine (`cuda_graph_strategy`
is DISABLED): the engine would capture it in a later call, or run without a graph if it
cannot, and report neither. With our own capture the graph exists before the first trial, or
the failure is recorded, and events can be recorded around it.
"""

from types import ModuleType
from typing import Any

from lstm_trt.config.errors import LabError
from lstm_trt.machine import gpu
from lstm_trt.runtimes.cuda import _tensorrt
from lstm_trt.store import cache

#: The kind of these cache entries.
KERNELS = "rtx-kernels"


def _open(trt: ModuleType, engine: Any, plan_sha256: str) -> _tensorrt.Opened:
    config = engine.create_runtime_config()
    config.dynamic_shapes_kernel_specialization_strategy = (
        trt.DynamicShapesKernelSpecializationStrategy.EAGER
    )
    config.cuda_graph_strategy = trt.CudaGraphStrategy.DISABLED
    identity = {"engine": plan_sha256, "version": trt.__version__, "gpu": gpu.cuda_device().name}
    kernels = config.create_runtime_cache()
    state = "new"
    kept = cache.stored(KERNELS, identity, ".bin")
    if kept:
        loaded = kernels.deserialize(kept.path.read_bytes())
        state = "loaded" if loaded else "refused"  # by another driver than that which wrote them
    found = {
        "kernel_specialization": "eager",
        "engine_cuda_graphs": "disabled",
        "kernel_cache": state,
    }
    config.set_runtime_cache(kernels)
    context = engine.create_execution_context(config)

    def why_not_captured(handle: int) -> str:
        if context.is_stream_capturable(handle):
            return ""
        return "TensorRT for RTX reports that it cannot be captured"

    def keep_kernels() -> None:
        """Write the compiled kernels, unless they were loaded; if writing fails, the next start
        compiles again."""
        if state == "loaded":
            return
        content = kernels.serialize()
        if content is None:
            return
        try:
            cache.keep(KERNELS, identity, ".bin", bytes(content))
            found["kernel_cache"] = f"{state}, kept"
        except LabError as error:
            found["kernel_cache"] = f"{state}, not kept: {error}"

    return _tensorrt.Opened(context, why_not_captured, keep_kernels, lambda: found, config)


RUNTIME = _tensorrt.TensorRtRuntime("tensorrt-rtx", _open)
