"""What the two TensorRT runtimes share: what is missing here, and the way from an ONNX file to a step.

What is timed is in `_tensorrt_step.py`. A runtime of this family gives an
`open_context(trt, engine, plan_sha256)` that makes an execution context as its flavour does.
"""

from __future__ import annotations

import os
import time
from importlib.util import find_spec

from lstm_trt import cuda, engines, tensorrt_module
from lstm_trt.errors import BuildFailed, RuntimeUnavailable
from lstm_trt.export import static_model
from lstm_trt.failures import building
from lstm_trt.runtimes._tensorrt_step import OpenContext, Opened, TensorRtStep
from lstm_trt.runtimes._torch import checked
from lstm_trt.runtimes.contract import Availability, PreparedStep, Request, installed_version

__all__ = ["DEVICES", "PRECISIONS", "Opened", "TensorRtStep", "availability", "prepare"]

DEVICES = ("cuda",)
PRECISIONS = {"cuda": ("fp32", "tf32", "fp16")}


def availability(name: str, device: str) -> Availability:
    """What is missing, all in one line; loads TensorRT only where there are a GPU and all packages. Never raises."""
    flavour = engines.FLAVOURS[name]
    version = installed_version(flavour.distribution)
    if device not in DEVICES:
        return Availability(False, version, reason=f"it runs on {' and '.join(DEVICES)} only, not on {device}")
    reason, remedies = "", []
    try:
        lacks = cuda.missing()
        if find_spec(flavour.module) is None:
            # The extra brings cuda-bindings as well, so that need not be typed.
            lacks = [lack if lack.remedy != cuda.BINDINGS_REMEDY else lack._replace(remedy="") for lack in lacks]
            lacks.insert(0, cuda.Lack(flavour.distribution, f"pip install -e '.[{flavour.extra}]'"))
        if not lacks:
            trt = engines.load_module(name)
            return Availability(True, version or trt.__version__, cuda.gpu_name())
        reason, remedies = "no " + ", ".join(lack.what for lack in lacks), [lack.remedy for lack in lacks]
    except RuntimeUnavailable as error:
        reason, remedies = error.reason, [error.remedy]
    except Exception as error:  # a broken install
        reason = f"{flavour.distribution} does not load: {tensorrt_module.one_line(error)}"
    return Availability(False, version, reason=reason, remedy="; ".join(dict.fromkeys(filter(None, remedies))))


def prepare(name: str, request: Request, open_context: OpenContext) -> PreparedStep:
    """The prepared step of the runtime `name`, having answered once.

    Raises `UsageError` for options that it does not have, `RuntimeUnavailable`,
    `ExportFailed`, `MemoryExhausted`, and `BuildFailed` for whatever else goes wrong.
    """
    options = checked(name, request)
    if options.precision == "tf32" and os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        raise BuildFailed("tf32 is switched off by NVIDIA_TF32_OVERRIDE=0 in the environment: unset it")
    with building(name, request.label):
        onnx = static_model(request.onnx_path, request.shape)
        began = time.perf_counter()
        # Detailed, for the launches of an inference; the markers that this brings are switched off again.
        wanted = engines.EngineOptions(name, options.precision, detailed=True, capturable=options.graph)
        built = engines.build_engine(onnx, wanted, name=request.shape.name)
        ready = time.perf_counter()
        step = TensorRtStep(name, request, built, open_context)
        step.told |= {"build_s": ready - began, "load_s": time.perf_counter() - ready}
        return step
