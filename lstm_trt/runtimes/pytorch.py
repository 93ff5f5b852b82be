"""PyTorch in eager mode: `nn.LSTM` and a dense layer.

A trial is one forward pass of the module in inference mode; on a GPU with the copies and
the wait around it (`_torch.py`). On the CPU, oneDNN repacks the weights at every call. The
mode matters there: with gradients enabled, PyTorch 2.13 uses oneDNN's training primitive,
which took 0.68 times as long at 2 x 200 x 128 (1.59 instead of 2.35 ms on a 2-core EPYC with
AVX-512) and 1.07 times at 1 x 16 x 4. On a GPU, cuDNN is used, which chooses its kernel by
the hidden size. `operators` in the facts shows whether these libraries were used.
"""

from __future__ import annotations

from lstm_trt.config.libraries import torch
from lstm_trt.runtimes import _torch


def _bind(module: torch.nn.Module, *arguments: torch.Tensor) -> _torch.Bound:
    found = {"operators": _torch.operators(module, *arguments)}
    return _torch.Bound(*_torch.guarded(module.forward, *arguments), lambda: found)


RUNTIME = _torch.TorchRuntime("pytorch", ("cpu", "cuda"), _torch.PRECISIONS, _bind)
