"""torch.compile with Inductor and frozen weights.

A trial is one call of the compiled module (`_torch.py`), including the guards that Dynamo
checks before each call (20 to 30 us). By default `torch.compile` does not compile an
`nn.LSTM`, so eager mode would be timed; therefore `allow_rnn` is set, and it is checked that
the network was compiled. On the CPU each layer and direction remains one oneDNN call, and a
network compiles in 1 to 2 s for any sequence length (the first in a process takes 5 to
25 s). Where oneDNN does not support the LSTM, the sequence is unrolled: on GPUs, and in fp16
on the CPU, where compiling took 18 s for 32 steps in total and 50 s for 128. Hence
`UNROLLED_SEQUENCE`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.libraries import torch
from lstm_trt.runtimes import _torch
from lstm_trt.runtimes.base import Availability

#: No fp16 on the CPU: it would be unrolled, with one kernel per step.
PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": _torch.PRECISIONS["cuda"]}

#: Longest sequence, and largest product of layers and directions, of a network that is unrolled.
UNROLLED_SEQUENCE = 64
UNROLLED_LAYERS = 2


def availability(device: str) -> Availability:
    """Ready if PyTorch is ready and there is a C++ compiler, and for "cuda" also Triton and what it
    compiles its launchers with."""
    state = _torch.availability(device)
    if not state.ready:
        return state
    refused = partial(Availability, False, state.version)
    words = os.environ.get("CXX", "g++").split()
    compiler = words[0] if words else "$CXX"
    if shutil.which(compiler) is None:
        return refused(reason=f"no C++ compiler ({compiler})", remedy="apt install g++, or set CXX")
    if device == "cpu":
        return state
    if importlib.util.find_spec("triton") is None:
        return refused(reason="Triton is not installed", remedy="pip install triton")
    compilers = [os.environ.get("CC", ""), "gcc", "clang", "cc"]
    if not any(shutil.which(name) for name in compilers if name):
        remedy = "apt install gcc, or set CC"
        return refused(reason="no C compiler, which Triton needs", remedy=remedy)
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return refused(reason="no Python.h, which Triton needs", remedy="apt install python3-dev")
    return state


def leave_nothing_running() -> None:
    """Before compiling: Inductor keeps a pool of processes that compile, and tqdm a thread that
    runs every 10 s."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    tqdm.monitor_interval = 0


def _bind(module: torch.nn.Module, inputs: torch.Tensor, *state: torch.Tensor) -> _torch.Bound:
    """Raises `BuildFailed` unless the network was compiled."""
    lstm: Any = getattr(module, "network", module).lstm
    unrolled = "aten.mkldnn_rnn_layer" not in _torch.operators(module, inputs, *state)
    sequence = inputs.shape[0]
    layers = lstm.num_layers * (2 if lstm.bidirectional else 1)
    if unrolled and (sequence > UNROLLED_SEQUENCE or layers > UNROLLED_LAYERS):
        raise BuildFailed(
            f"torch.compile unrolls this LSTM on {inputs.device.type}: compiling {layers} layers"
            f" (times directions) x {sequence} steps would take minutes; the limit is"
            f" {UNROLLED_LAYERS} x {UNROLLED_SEQUENCE}"
        )
    run, reset = _torch.guarded(module, inputs, *state)
    compiled = Compiled(module, run, "torch-compile", {"freezing": True}, nullcontext())

    def facts() -> dict:
        return {
            "compile_s": compiled.compile_s,
            "unrolled": unrolled,
            "compiled": compiled.made,
            "recompiled_later": compiled.recompiled,
        }

    return _torch.Bound(run, reset, facts, torch._dynamo.reset)


class Compiled:
    """A module that is compiled as a whole by its first call, which takes `compile_s`.

    `made`: what `compiled_so_far` counted of it. Discards what was compiled earlier in this
    process: Dynamo keeps at most 8 networks of one class and searches them at each call.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        call: Callable[[], Any],
        name: str,
        options: dict[str, bool],
        first: AbstractContextManager,
    ) -> None:
        """`call` calls the module, for the first time in the context `first`; `name` is that of the
        runtime, `options` are Inductor's.

        Raises `BuildFailed` unless the whole network became one graph, which the second call uses.
        """
        import torch._dynamo
        import torch._inductor.config

        torch._dynamo.reset()
        torch._dynamo.config.allow_rnn = True  # without it an nn.LSTM stays eager
        leave_nothing_running()
        before = compiled_so_far()
        module.compile(fullgraph=True, dynamic=False, options=options)
        began = time.perf_counter()
        with first, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised within PyTorch
            call()
        self.compile_s = time.perf_counter() - began
        after = compiled_so_far()
        self.made = {kind: after[kind] - before[kind] for kind in after}
        if self.made["graphs"] < 1 or self.made["inductor_graphs"] < 1:
            raise BuildFailed(
                f"torch.compile compiled nothing, so eager mode would be timed: {self.made}"
            )
        if self.made["graphs"] > 1 or self.made["graph_breaks"]:
            raise BuildFailed(f"torch.compile split the network into several graphs: {self.made}")
        call()
        self._graphs = after["graphs"]
        if self.recompiled:
            raise BuildFailed(f"{name} recompiled the network at its second call")

    @property
    def recompiled(self) -> int:
        """The number of graphs that were captured since the first call."""
        return compiled_so_far()["graphs"] - self._graphs


def compiled_so_far() -> dict[str, int]:
    """Counters of Dynamo and Inductor in this process.

    `graphs` captured by Dynamo, `graph_breaks`, `inductor_graphs` that Inductor compiled
    or found in its cache (`inductor_cached` of them), `external_calls` into libraries,
    and generated `kernels`.
    """
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    inductor = counters["inductor"]
    cached = inductor["fxgraph_cache_hit"]
    return {
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "inductor_graphs": cached
        + inductor["fxgraph_cache_miss"]
        + inductor["fxgraph_cache_bypass"],
        "inductor_cached": cached,
        "external_calls": inductor["extern_calls"],
        "kernels": metrics.generated_kernel_count,
    }


RUNTIME = _torch.TorchRuntime("torch-compile", ("cpu", "cuda"), PRECISIONS, _bind, availability)
