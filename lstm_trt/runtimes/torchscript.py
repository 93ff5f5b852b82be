"""TorchScript: the whole network scripted and frozen; deprecated by PyTorch but still deployed.

A trial is one call of the frozen module (`_torch.py`). The module around the LSTM is
scripted, since a frozen `nn.LSTM` alone has no callable forward. Its executor specialises
during the first calls, which are done before any trial is timed.
"""

from __future__ import annotations

import warnings

from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.libraries import torch
from lstm_trt.runtimes import _torch

#: The executor profiles the first call and compiles in the next; the third is a safety margin.
WARMUPS = 3


def _bind(module: torch.nn.Module, *arguments: torch.Tensor) -> _torch.Bound:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        frozen = torch.jit.freeze(torch.jit.script(module))
    if not isinstance(frozen, torch.jit.ScriptModule) or not callable(
        getattr(frozen, "forward", None)
    ):
        raise BuildFailed("torchscript: the frozen module has no callable forward")
    run, reset = _torch.guarded(frozen.forward, *arguments)
    for _ in range(WARMUPS):
        run()
    found = {
        "scripted": type(frozen).__name__,
        "frozen": not list(frozen.parameters()),
        "operators": _torch.operators(frozen.forward, *arguments),
    }
    return _torch.Bound(run, reset, lambda: found)


RUNTIME = _torch.TorchRuntime("torchscript", ("cpu", "cuda"), _torch.PRECISIONS, _bind)
