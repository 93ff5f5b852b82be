"""The runtimes: one file each, behind one contract.

A runtime is a module with these names:

    NAME         what users type and recordings store
    DISTRIBUTION the package whose version is the runtime's version
    DEVICES      devices that it can use, the default first: ("cpu", "cuda")
    PRECISIONS   device -> precisions that it offers there, "fp32" among them if it can
    NEEDS_ONNX   whether it reads the exported ONNX file
    availability(device) -> Availability     cheap enough for `doctor`; never raises
    prepare(request) -> PreparedStep         raises ConfigurationFailed or RuntimeUnavailable

and, where it needs it, `configure(options)`, called in the fresh process after pinning and
before `prepare`.

A name with a dot, `my_package.my_runtime`, is imported as a module of that contract,
so a runtime of one's own needs no change here.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from lstm_trt.config.errors import UsageError

REGISTRY = {
    "onnxruntime": "lstm_trt.runtimes.onnxruntime",
    "pytorch": "lstm_trt.runtimes.pytorch",
    "pytorch-cudagraph": "lstm_trt.runtimes.pytorch_cudagraph",
    "tensorrt": "lstm_trt.runtimes.tensorrt",
    "tensorrt-rtx": "lstm_trt.runtimes.tensorrt_rtx",
    "torch-compile": "lstm_trt.runtimes.torch_compile",
    "torchscript": "lstm_trt.runtimes.torchscript",
}


CONTRACT = ("NAME", "DISTRIBUTION", "DEVICES", "PRECISIONS", "NEEDS_ONNX", "availability", "prepare")


def load(name: str) -> ModuleType:
    """The module of a runtime; importing it must not import the runtime's own libraries.

    Raises `UsageError` for an unknown name or a module that lacks part of the contract.
    """
    target = REGISTRY.get(name, name if "." in name else None)
    if target is None:
        raise UsageError(f"unknown runtime {name!r}: choose from {', '.join(REGISTRY)}, or name a module with a dot")
    try:
        module = importlib.import_module(target)
    except ImportError as error:
        raise UsageError(f"runtime {name!r} cannot be imported: {error}") from None
    missing = [attribute for attribute in CONTRACT if not hasattr(module, attribute)]
    if missing:
        raise UsageError(f"module {target!r} is no runtime: it lacks {', '.join(missing)}")
    return module
