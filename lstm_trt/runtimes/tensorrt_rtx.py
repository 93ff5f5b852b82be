"""TensorRT for RTX: engines whose kernels are compiled on the GPU that runs them.

A trial is copy in, enqueue or graph launch, copy out, wait (`_tensorrt.py`). Kernels are
specialised to the sizes before the first trial (EAGER; the default, LAZY, answers with
fallback kernels until a thread of its own has compiled better ones) and kept in the
lab's cache, since compiling takes longer than building.

The graph is captured by us as for TensorRT, not by the engine (`cuda_graph_strategy`
stays DISABLED): the engine would capture in some later call and run without a graph
where it cannot, and tell neither; ours is there before the first trial, or its refusal
is on record, and events can be put around it.
"""

from __future__ import annotations

from types import ModuleType

from lstm_trt.config.configuration import canonical_json
from lstm_trt.config.errors import LabError
from lstm_trt.runtimes import _cuda, _tensorrt
from lstm_trt.store import cache

#: The kind of our entries in the cache.
KERNELS = "rtx-kernels"


def _open(trt: ModuleType, engine: object, plan_sha256: str) -> _tensorrt.Opened:
    config = engine.create_runtime_config()
    config.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.EAGER
    config.cuda_graph_strategy = trt.CudaGraphStrategy.DISABLED
    identity = {"engine": plan_sha256, "version": trt.__version__, "gpu": _cuda.gpu_name()}
    kernels = KernelCache(config, cache.sha256(canonical_json(identity).encode()))
    context = engine.create_execution_context(config)

    def why_not_captured(handle: int) -> str:
        return "" if context.is_stream_capturable(handle) else "TensorRT for RTX says that it cannot be captured"

    def facts() -> dict:
        return {
            "kernel_specialization": "eager",
            "engine_cuda_graphs": "disabled",
            "kernel_cache": kernels.state,
        }

    return _tensorrt.Opened(context, why_not_captured, kernels.keep, facts)


class KernelCache:
    """The kernels that were compiled for one engine, kept between processes.

    `state`: "loaded" from the lab's cache, "new" where there were none, "refused" where
    TensorRT for RTX did not take them (another driver); "kept" once they are written.
    Needs a current CUDA context; holds the runtime configuration as long as itself.
    """

    def __init__(self, config: object, key: str) -> None:
        self._config, self._key, self.state = config, key, "new"
        self._kernels = config.create_runtime_cache()
        kept = cache.stored(KERNELS, key, ".bin")
        if kept:
            self.state = "loaded" if self._kernels.deserialize(kept[0].read_bytes()) else "refused"
        config.set_runtime_cache(self._kernels)

    def keep(self) -> None:
        """Write what was compiled, unless it came from there; a full disk costs the next start only."""
        if self.state == "loaded":
            return
        content = self._kernels.serialize()
        if content is None:
            return
        try:
            cache.keep(KERNELS, self._key, ".bin", bytes(content))
            self.state += ", kept"
        except LabError as error:
            self.state += f", not kept: {error}"


RUNTIME = _tensorrt.TensorRtRuntime("tensorrt-rtx", _open)
