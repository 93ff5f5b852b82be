"""The implementations of the literature's workloads: one line each here, one file (or part of one) each.

A further framework is one file with the names of `literature.task.CONTRACT` and one line in
`REGISTRY`. A name with a dot, `my_package.my_implementation` or `my_package.module:OBJECT`,
is imported as one, so an implementation of one's own needs no change here.
"""

from __future__ import annotations

import importlib

from lstm_trt.config.errors import UsageError
from lstm_trt.literature.task import CONTRACT

_HERE = "lstm_trt.literature.implementations"


#: name -> module, or module:attribute.
REGISTRY = {
    "pytorch-basic-eager": f"{_HERE}.pytorch:BASIC_EAGER",
    "pytorch-basic-scripted": f"{_HERE}.pytorch:BASIC_SCRIPTED",
    "pytorch-basic-compiled": f"{_HERE}.pytorch:BASIC_COMPILED",
    "pytorch-fused-eager": f"{_HERE}.pytorch:FUSED_EAGER",
    "pytorch-fused-scripted": f"{_HERE}.pytorch:FUSED_SCRIPTED",
    "pytorch-fused-compiled": f"{_HERE}.pytorch:FUSED_COMPILED",
    "pytorch-one-call-eager": f"{_HERE}.pytorch:ONE_CALL_EAGER",
    "pytorch-one-call-scripted": f"{_HERE}.pytorch:ONE_CALL_SCRIPTED",
    "pytorch-one-call-compiled": f"{_HERE}.pytorch:ONE_CALL_COMPILED",
    "tensorflow-basic-eager": f"{_HERE}.tensorflow:BASIC_EAGER",
    "tensorflow-basic-graph": f"{_HERE}.tensorflow:BASIC_GRAPH",
    "tensorflow-while-graph": f"{_HERE}.tensorflow:WHILE_GRAPH",
    "tensorflow-static-eager": f"{_HERE}.tensorflow:STATIC_EAGER",
    "tensorflow-static-graph": f"{_HERE}.tensorflow:STATIC_GRAPH",
    "tensorflow-xla": f"{_HERE}.tensorflow:XLA",
    "tensorflow-one-call-eager": f"{_HERE}.tensorflow:ONE_CALL_EAGER",
    "tensorflow-one-call-graph": f"{_HERE}.tensorflow:ONE_CALL_GRAPH",
    "onnxruntime": f"{_HERE}.onnxruntime",
    "tensorrt": f"{_HERE}.tensorrt:TENSORRT",
    "tensorrt-rtx": f"{_HERE}.tensorrt:TENSORRT_RTX",
    "tvm-untuned": f"{_HERE}.tvm:UNTUNED",
    "tvm-tuned": f"{_HERE}.tvm:TUNED",
}


def load(name: str) -> object:
    """The implementation of a name; importing it must not import its framework.

    Raises `UsageError` for an unknown name, or for what lacks part of the contract.
    """
    target = REGISTRY.get(name, name if "." in name else None)
    if target is None:
        raise UsageError(f"unknown implementation {name!r}: choose from {', '.join(REGISTRY)}, or name a module")
    module_name, _, attribute = target.partition(":")
    try:
        found = importlib.import_module(module_name)
        implementation = getattr(found, attribute) if attribute else found
    except (ImportError, AttributeError) as error:
        raise UsageError(f"implementation {name!r} cannot be imported: {error}") from None
    missing = [part for part in CONTRACT if not hasattr(implementation, part)]
    if missing:
        raise UsageError(f"{target!r} is no implementation: it lacks {', '.join(missing)}")
    return implementation
