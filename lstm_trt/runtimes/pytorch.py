"""PyTorch in eager mode: `nn.LSTM` and a dense layer, as most people run them.

A trial is one forward of the module in inference mode; on a GPU with the copies and
the wait around it (`_torch.py`). On the CPU oneDNN repacks the weights at every
call. The mode matters there: with gradients on, PyTorch 2.13 has oneDNN take its
training primitive, which was 0.68 times the time at 2 x 200 x 128 (1.59 and 2.35 ms on
a 2-core EPYC with AVX-512) and 1.07 at 1 x 16 x 4. On a GPU it is cuDNN, whose choice of
kernel depends on the hidden size. `operators` in the facts tells whether those were used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lstm_trt.runtimes import _torch
from lstm_trt.runtimes._torch import operators

if TYPE_CHECKING:
    import torch


def _bind(module: torch.nn.Module, inputs: torch.Tensor) -> _torch.Bound:
    found = {"operators": operators(module, inputs)}
    return _torch.Bound(_torch.guarded(module.forward, inputs), lambda: found)


RUNTIME = _torch.TorchRuntime("pytorch", ("cpu", "cuda"), _torch.PRECISIONS, _bind)
