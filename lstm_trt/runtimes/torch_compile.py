"""torch.compile with Inductor and frozen weights.

A trial is one call of the compiled module (`_torch.py`), with the guards that
Dynamo checks before each call: 20 to 30 us. `torch.compile` by itself leaves an
`nn.LSTM` alone, and eager mode would be timed under another name; so `allow_rnn` is
set, and that something was compiled is checked. On the CPU each layer and direction
stays one oneDNN call, and a network compiles in 1 to 2 s whatever its sequence (the
first of a process takes 5 to 25 s). Where oneDNN does not take it the sequence is
unrolled: on GPUs, and in fp16 on the CPU, where 32 steps in all took 18 s and 128 took
50 s. Hence `UNROLLED_LIMITS`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
import warnings
from typing import TYPE_CHECKING

from lstm_trt.config.errors import BuildFailed
from lstm_trt.runtimes import _torch
from lstm_trt.runtimes._torch import operators
from lstm_trt.runtimes.base import Availability

if TYPE_CHECKING:
    import torch


#: No fp16 on the CPU: it would be unrolled, a kernel a step.
PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": _torch.PRECISIONS["cuda"]}

#: Longest sequence, and most layers times directions, of a network that is unrolled.
UNROLLED_LIMITS = {"sequence": 64, "layers": 2}


def availability(device: str) -> Availability:
    """Ready where PyTorch is, and a C++ compiler, and for "cuda" Triton and its C compiler."""
    state = _torch.availability(device)
    if not state.ready:
        return state
    compiler = os.environ.get("CXX", "g++").split()
    if not compiler or shutil.which(compiler[0]) is None:
        found = compiler[0] if compiler else "$CXX"
        return Availability(
            False, state.version, reason=f"no C++ compiler ({found})", remedy="apt install g++, or set CXX"
        )
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        return Availability(False, state.version, reason="Triton is not installed", remedy="pip install triton")
    return state


def _bind(module: torch.nn.Module, inputs: torch.Tensor) -> _torch.Bound:
    """Raises `BuildFailed` where nothing was compiled.

    Forgets what was compiled before in this process: Dynamo keeps at most 8 networks
    of one class, and searches them at each call.
    """
    import torch
    import torch._dynamo
    import torch._inductor.config

    lstm = getattr(module, "network", module).lstm
    unrolled = "aten.mkldnn_rnn_layer" not in operators(module, inputs)
    if unrolled:
        _check_limits(inputs.shape[0], lstm.num_layers * (2 if lstm.bidirectional else 1), inputs.device.type)
    torch._dynamo.reset()
    torch._dynamo.config.allow_rnn = True
    torch._inductor.config.compile_threads = 1  # its pool of processes would outlive the compilation
    before = compiled_so_far()
    module.compile(fullgraph=True, dynamic=False, options={"freezing": True})
    run = _torch.guarded(module, inputs)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's, of its own modules
        run()
    compile_s = time.perf_counter() - began
    after = compiled_so_far()
    made = {name: after[name] - before[name] for name in after}
    check_compiled(made)
    run()
    if compiled_so_far()["graphs"] != after["graphs"]:
        raise BuildFailed("torch-compile compiled the network again at its second call")

    def facts() -> dict:
        again = compiled_so_far()["graphs"] - after["graphs"]
        return {"compile_s": compile_s, "unrolled": unrolled, "compiled": made, "recompiled_later": again}

    return _torch.Bound(run, facts, torch._dynamo.reset)


def compiled_so_far() -> dict[str, int]:
    """What Dynamo and Inductor have counted in this process.

    `graphs` that Dynamo captured, `graph_breaks`, `inductor_graphs` that Inductor
    compiled or found in its cache (`inductor_cached` of them), `external_calls` into
    libraries, and generated `kernels`.
    """
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    inductor = counters["inductor"]
    cached = inductor["fxgraph_cache_hit"]
    return {
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "inductor_graphs": cached + inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"],
        "inductor_cached": cached,
        "external_calls": inductor["extern_calls"],
        "kernels": metrics.generated_kernel_count,
    }


def check_compiled(made: dict[str, int]) -> None:
    """Raises `BuildFailed` unless the whole network became one compiled graph."""
    if made["graphs"] < 1 or made["inductor_graphs"] < 1:
        raise BuildFailed(f"torch.compile compiled nothing, eager mode would be timed instead: {made}")
    if made["graphs"] > 1 or made["graph_breaks"]:
        raise BuildFailed(f"torch.compile compiled the network in pieces: {made}")


def _check_limits(sequence: int, layers: int, device: str) -> None:
    if sequence > UNROLLED_LIMITS["sequence"] or layers > UNROLLED_LIMITS["layers"]:
        raise BuildFailed(
            f"torch.compile unrolls this LSTM on {device}: {layers} x {sequence} steps (layers, directions) would "
            f"compile for minutes; limits are {UNROLLED_LIMITS['layers']} x {UNROLLED_LIMITS['sequence']}"
        )


class TorchCompile(_torch.TorchRuntime):
    """As the others, but that it needs a compiler."""

    def availability(self, device: str) -> Availability:
        return availability(device)


RUNTIME = TorchCompile("torch-compile", ("cpu", "cuda"), PRECISIONS, _bind)
