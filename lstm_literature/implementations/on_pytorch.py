"""PyTorch: four styles of the network, each eager and scripted, and all but one compiled.

Forward passes run in inference mode. A training step zeroes the gradients, runs forward, loss,
backward and the optimizer, and reads the loss. `scripted`: TorchScript, deprecated by PyTorch
but still used; the network and its loss are scripted (in forward mode also frozen), the backward
pass uses autograd, and the optimizer is not scripted. `compiled`: `torch.compile` with Inductor
for the same part, including its backward pass; unless the whole becomes one graph, preparing
fails. Inductor unrolls loops over time, with C++ code for each step, hence `UNROLLED`. It omits
computations that no output depends on: if the head reads `output[-1]`, for example, all but one
step of the last layer's reverse direction.

On the CPU the tensors are in place and a step only computes. On a GPU a step copies the batch
from pinned memory, computes, and reads the outputs or the loss, which waits for the device.
Costs: `build_s` is making the module, scripting, and for `compiled` the call that compiles;
`first_call_s` is the first step after that; its weight update is undone.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lstm_literature.data import Batch
from lstm_literature.implementations import FrameworkStep, Implementation, mode_reason, timed
from lstm_literature.workloads import LiteratureWorkload
from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.libraries import torch
from lstm_trt.runtimes import _torch, torch_compile
from lstm_trt.runtimes.base import Availability, PreparedStep, Request
from lstm_trt.store.temporary import temporary_folder

#: Largest number of cells (steps x layers x directions) that may be unrolled into one compiled graph. Compile
#: time on one core of a shared 2-core EPYC: 0.25 s per cell in a forward pass (110 s for 400 cells), about 1 s in
#: a training step, 2 s in a training step with `nn.LSTM`, which then does not use oneDNN.
UNROLLED = {"forward": 400, "training": 200, "one-call": 64}

#: TorchScript profiles the first call and compiles in the next; the third is a safety margin.
_SCRIPT_CALLS = 3


@dataclass(frozen=True)
class PyTorch(Implementation):
    """One style and execution as an implementation."""

    STYLE: str
    EXECUTION: str

    FRAMEWORK = "PyTorch"
    DISTRIBUTION = _torch.DISTRIBUTION
    DEVICES = ("cpu", "cuda")

    @property
    def NAME(self) -> str:
        return f"pytorch-{self.STYLE}-{self.EXECUTION}"

    @property
    def TITLE(self) -> str:
        kind = {"fused": "LSTMCell", "one-call": "nn.LSTM"}.get(self.STYLE, self.STYLE)
        return f"PyTorch {kind}, {self.EXECUTION}"

    def supports(self, workload: LiteratureWorkload, mode: str, device: str = "cpu") -> str | None:
        """None if supported; on a CPU, forward passes of `nn.LSTM` are one oneDNN call per layer and have no limit."""
        reason = mode_reason(workload, mode)
        if reason or self.EXECUTION != "compiled":
            return reason
        if self.STYLE == "one-call" and mode == "forward" and device == "cpu":
            return None
        if workload.loss == "ctc" and mode == "training":
            return "torch.compile does not support the CTC loss, whose sizes depend on the values of the lengths"
        cells = workload.cells
        limit = UNROLLED["one-call" if self.STYLE == "one-call" else mode]
        if cells > limit:
            return f"torch.compile unrolls it: compiling {cells} cells would take minutes, the limit is {limit}"
        return None

    def availability(self, device: str = "cpu") -> Availability:
        """Ready if PyTorch is installed, and for `compiled` a C++ compiler; never raises."""
        if self.EXECUTION == "compiled":
            return torch_compile.availability(device)
        return _torch.availability(device, self.DEVICES)

    def _prepare(self, request: Request, batch: Batch) -> PreparedStep:
        return (ForwardStep if request.mode == "forward" else TrainingStep)(self, request, batch)


class _TorchStep(FrameworkStep):
    """Weights, batch and execution, common to both modes; `_call` is the module as it is executed."""

    def __init__(self, implementation: PyTorch, request: Request, batch: Batch) -> None:
        from lstm_literature.implementations import on_pytorch_networks

        super().__init__(implementation, request)
        self._networks = on_pytorch_networks
        _torch.configure(self._options)
        self._place(batch)
        with timed(self.costs, "build_s"):
            self._network: Any = on_pytorch_networks.build_network(self._workload, implementation.STYLE)
            on_pytorch_networks.load_weights(self._network.canonical(), self._weights)
            self._network.to(self._options.device)
            if implementation.STYLE == "one-call":
                self._network.lstm.flatten_parameters()  # one chunk of memory for cuDNN; no effect on a CPU
            self._parameters = self._network.canonical()
            self._call: Any = self._executed()
        self._rewind()
        self._finish(more_steps=_SCRIPT_CALLS - 1 if implementation.EXECUTION == "scripted" else 0)

    @abstractmethod
    def _module(self) -> torch.nn.Module:
        """The module to execute: the network, or the network with its loss."""

    @abstractmethod
    def _try(self, call: Callable[..., torch.Tensor]) -> None:
        """One call without a weight update, which triggers lazy compilation."""

    def _place(self, batch: Batch) -> None:
        packed = self._networks.packing(self._workload, batch)
        on_gpu = self._options.device == "cuda"
        self._host = [torch.from_numpy(np.array(array)) for array in self._read_by_step(batch)]
        if on_gpu:
            self._host = [tensor.pin_memory() for tensor in self._host]
        self._placed = [tensor.to("cuda") for tensor in self._host] if on_gpu else self._host
        positions = packed.positions.to(self._options.device) if packed.positions is not None else None
        self._arguments = (*self._placed, packed.lengths, packed.sizes, positions)

    def _copy_in(self) -> None:
        """Copy to the GPU without waiting; does nothing on a CPU, where the tensors are the same objects."""
        if self._placed is not self._host:
            for placed, host in zip(self._placed, self._host, strict=True):
                placed.copy_(host, non_blocking=True)

    def _executed(self) -> Callable[..., torch.Tensor]:
        module = self._module()
        execution = self._implementation.EXECUTION
        if execution == "eager":
            return module.forward  # calling the module would check for hooks first
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated; Dynamo's warnings are raised within PyTorch
            return self._scripted(module) if execution == "scripted" else self._compiled(module)

    def _scripted(self, module: torch.nn.Module) -> Callable[..., torch.Tensor]:
        scripted = torch.jit.script(module)
        if self._trains:
            self._facts["scripted"] = "network and loss; backward pass by autograd, optimizer eager"
        else:
            self._facts["scripted"] = "the whole network, frozen"
            scripted = torch.jit.freeze(scripted)
        return scripted.forward

    def _compiled(self, module: torch.nn.Module) -> Callable[..., torch.Tensor]:
        """The module, compiled by calling it; raises `BuildFailed` unless the whole became one graph."""
        from torch._inductor.utils import fresh_cache

        options = {} if self._trains else {"freezing": True}
        with temporary_folder() as folder, fresh_cache(dir=str(folder)):  # empty, so that `build_s` includes compiling
            self._as_compiled = torch_compile.Compiled(
                module, partial(self._try, module), self._implementation.NAME, options, self._tracing()
            )
        made = self._as_compiled.made
        if self._trains and made["inductor_graphs"] < 2:
            raise BuildFailed(f"torch.compile compiled no backward pass: {made}")
        self._facts["compiled"] = made
        return module

    def _tracing(self) -> AbstractContextManager:
        """Context of the first call of a compiled module.

        Disables oneDNN for training `nn.LSTM`: Inductor 2.13 keeps oneDNN's layer in training but cannot run it.
        (The layer's workspace is None, which makes the compiled call fail.)
        """
        if not self._trains or self._implementation.STYLE != "one-call" or self._options.device != "cpu":
            return nullcontext()
        self._facts["unrolled"] = True
        return torch.backends.mkldnn.flags(enabled=False)

    def facts(self) -> dict:
        found = {**_torch.facts(self._options), **self._facts}
        if self._implementation.EXECUTION == "compiled":
            found["recompiled_later"] = self._as_compiled.recompiled
        if self._implementation.STYLE == "one-call" and not self._trains:
            found["operators"] = _torch.operators(lambda inputs: self._network.forward(*inputs), self._arguments)
        return found

    def close(self) -> None:
        if not self._closed and self._implementation.EXECUTION == "compiled":
            torch._dynamo.reset()
        super().close()


class ForwardStep(_TorchStep):
    """Forward pass in inference mode; the outputs as numpy, which on a GPU is a copy that waits."""

    def _module(self) -> torch.nn.Module:
        self._guard = torch.inference_mode()
        return self._network.eval().requires_grad_(False)

    def _try(self, call: Callable[..., torch.Tensor]) -> None:
        with self._guard:
            call(*self._arguments)

    def _run(self) -> np.ndarray:
        with self._guard:
            self._copy_in()
            return self._call(*self._arguments).cpu().numpy()


class TrainingStep(_TorchStep):
    """Zero gradients, forward, loss, backward, update; reads the loss as a number."""

    def _module(self) -> torch.nn.Module:
        return self._networks.Objective(self._network, self._workload).train()

    def _try(self, call: Callable[..., torch.Tensor]) -> None:
        call(*self._arguments).backward()

    def _rewind(self) -> None:
        super()._rewind()
        self._networks.load_weights(self._parameters, self._weights)
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        self._optimizer: Any = kinds[self._workload.optimizer](
            list(self._network.parameters()), lr=self._workload.learning_rate
        )
        self._optimizer.zero_grad()
        self._facts |= {"gradients": "on", "optimizer": f"{type(self._optimizer).__name__}, eager"}

    def _run(self) -> float:
        self._optimizer.zero_grad()
        self._copy_in()
        loss = self._call(*self._arguments)
        loss.backward()
        self._optimizer.step()
        return loss.item()


BASIC_EAGER = PyTorch("basic", "eager")

BASIC_SCRIPTED = PyTorch("basic", "scripted")

BASIC_COMPILED = PyTorch("basic", "compiled")

FINE_GRAINED_EAGER = PyTorch("fine-grained", "eager")

FINE_GRAINED_SCRIPTED = PyTorch("fine-grained", "scripted")

FUSED_EAGER = PyTorch("fused", "eager")

FUSED_SCRIPTED = PyTorch("fused", "scripted")

FUSED_COMPILED = PyTorch("fused", "compiled")

ONE_CALL_EAGER = PyTorch("one-call", "eager")

ONE_CALL_SCRIPTED = PyTorch("one-call", "scripted")

ONE_CALL_COMPILED = PyTorch("one-call", "compiled")
