"""PyTorch under a CUDA graph: the eager network's kernels, launched all at once.

A trial is copy in, one replay, copy out, wait (`_torch.py`); the copies stand
outside the graph. Buffers are static. Where capture is refused there is no falling
back to eager mode: the name promises a graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lstm_trt.config.errors import BuildFailed, first_line, is_memory_error
from lstm_trt.runtimes import _torch
from lstm_trt.runtimes._torch import operators

if TYPE_CHECKING:
    import torch


#: Forwards before the capture: cuDNN and cuBLAS load kernels and take workspaces in the first ones.
WARMUPS = 3


def _bind(module: torch.nn.Module, inputs: torch.Tensor) -> _torch.Bound:
    import torch

    stream = torch.cuda.current_stream()  # not the default one, see `_torch.py`
    found = {"operators": operators(module, inputs), "graph_captured": True}
    graph = torch.cuda.CUDAGraph()
    # No inference mode: a graph that was captured first under it could make later captures
    # in this process fail (pytorch issue 166792), and a replay passes no operator anyway.
    with torch.no_grad():
        for _ in range(WARMUPS):
            module(inputs)
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=stream):
                answer = module(inputs)
        except RuntimeError as error:
            if is_memory_error(error):
                raise
            # What ended the capture first says more than the error that closing it raised.
            raise BuildFailed(
                f"pytorch-cudagraph: capture was refused: {first_line(error.__context__ or error)}"
            ) from error
    replay = graph.replay

    def run() -> torch.Tensor:
        replay()
        return answer

    return _torch.Bound(run, lambda: found, graph.reset)


RUNTIME = _torch.TorchRuntime("pytorch-cudagraph", ("cuda",), {"cuda": _torch.PRECISIONS["cuda"]}, _bind)
