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

from __future__ import annotations

from types import ModuleType
from typing import Any

from lstm_trt.config.configuration import canonical_json
from lstm_trt.config.errors import LabError
from lstm_trt.machine import gpu
from lstm_trt.runtimes.cuda import _tensorrt
from lstm_trt.store import cache

#: The kind of these cache entries.
KERNELS = "rtx-kernels"


def _open(trt: ModuleType, engine: Any, plan_sha256: str) -> _tensorrt.Opened:
    config = engine.create_runtime_config()
    config.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.EAGER
    config.cuda_graph_strategy = trt.CudaGraphStrategy.DISABLED
    identity = {"engine": plan_sha256, "version": trt.__version__, "gpu": gpu.cuda_device().name}
    kernels = KernelCache(config, cache.sha256(canonical_json(identity).encode()))
    context = engine.create_execution_context(config)

    def why_not_captured(handle: int) -> str:
        return "" if context.is_stream_capturable(handle) else "TensorRT for RTX reports that it cannot be captured"

    def facts() -> dict:
        return {"kernel_specialization": "eager", "engine_cuda_graphs": "disabled", "kernel_cache": kernels.state}

    return _tensorrt.Opened(context, why_not_captured, kernels.keep, facts)


class KernelCache:
    """The kernels compiled for one engine, stored between processes.

    `state`: "loaded" from the cache, "new" if there were none, "refused" if TensorRT for RTX
    rejected them (another driver); "kept" once they are written. Needs a current CUDA context;
    keeps a reference to the runtime configuration.
    """

    def __init__(self, config: Any, key: str) -> None:
        self._config, self._key, self.state = config, key, "new"
        self._kernels = config.create_runtime_cache()
        kept = cache.stored(KERNELS, key, ".bin")
        if kept:
            self.state = "loaded" if self._kernels.deserialize(kept[0].read_bytes()) else "refused"
        config.set_runtime_cache(self._kernels)

    def keep(self) -> None:
        """Write the compiled kernels, unless they were loaded; if writing fails, the next start compiles again."""
        if self.state == "loaded":
            return
        if (content := self._kernels.serialize()) is None:
            return
        try:
            cache.keep(KERNELS, self._key, ".bin", bytes(content))
            self.state += ", kept"
        except LabError as error:
            self.state += f", not kept: {error}"


RUNTIME = _tensorrt.TensorRtRuntime("tensorrt-rtx", _open)
