"""PyTorch with a CUDA graph: the eager network's kernels, launched together.

A trial is copy in, one replay, copy out, wait (`_torch.py`); the copies are outside the
graph. Buffers are static; carried state is copied back into them within the graph. If the
capture fails, there is no fallback to eager mode, since the runtime's name stands for a graph.
"""

from __future__ import annotations

from functools import partial

from lstm_trt.config.errors import BuildFailed, first_line, is_memory_error
from lstm_trt.config.libraries import torch
from lstm_trt.runtimes import _torch

#: Forward passes before the capture: cuDNN and cuBLAS load kernels and allocate workspaces in the
#: first ones.
WARMUPS = 3


def _bind(module: torch.nn.Module, inputs: torch.Tensor, *state: torch.Tensor) -> _torch.Bound:
    stream = torch.cuda.current_stream()  # not the default stream, see `_torch.py`
    found = {"operators": _torch.operators(module, inputs, *state), "graph_captured": True}
    graph = torch.cuda.CUDAGraph()
    # No inference mode: if the first graph is captured under it, later captures in this process
    # can fail (pytorch issue 166792), and a replay calls no operator anyway.
    with torch.no_grad():
        for _ in range(WARMUPS):
            module(inputs, *state)
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=stream):
                returned = module(inputs, *state)
                outputs, *carried = returned if state else (returned,)
                for tensor, latest in zip(state, carried, strict=True):
                    tensor.copy_(latest)
        except RuntimeError as error:
            if is_memory_error(error):
                raise
            # The error that aborted the capture is more informative than the one raised on ending
            # it.
            reason = first_line(error.__context__ or error)
            raise BuildFailed(f"pytorch-cudagraph: the capture failed: {reason}") from error
    replay = graph.replay

    def run() -> torch.Tensor:
        replay()
        return outputs

    def reset() -> None:
        for tensor in state:
            tensor.zero_()

    return _torch.Bound(run, reset, lambda: found, graph.reset)


PRECISIONS = {"cuda": _torch.PRECISIONS["cuda"]}

AVAILABILITY = partial(_torch.availability, devices=("cuda",))

RUNTIME = _torch.TorchRuntime(
    "pytorch-cudagraph", ("cuda",), PRECISIONS, _bind, AVAILABILITY, GRAPHS=True
)
