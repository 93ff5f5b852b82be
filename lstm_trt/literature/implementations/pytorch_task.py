"""The prepared steps of the PyTorch implementations: what is timed.

On the CPU the tensors are in place and a step computes. On a GPU a step copies the batch from
pinned memory, computes, and reads the answer or the loss, which waits for the device. The calls
of `prepare` are timed as costs: `build_s` is the module, its scripting, and for `compiled` the
call that compiles; `first_call_s` is the first step after that, whose update is taken back.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch

from lstm_trt.config.errors import BuildFailed, RunFailed, run_failure
from lstm_trt.literature.data import Batch
from lstm_trt.literature.implementations import batch_of
from lstm_trt.literature.implementations.pytorch_networks import Objective, build_network, load_weights, packing
from lstm_trt.runtimes import _torch, torch_compile
from lstm_trt.runtimes.base import PreparedStep, Request

if TYPE_CHECKING:
    from lstm_trt.literature.implementations.pytorch import PyTorch


#: TorchScript profiles the first call and compiles in the next; one more to be sure.
_SCRIPT_CALLS = 3


class _TorchStep(PreparedStep):
    """Weights, batch and execution, alike for both modes; `_call` is the module as it is executed."""

    #: Whether the graph that is compiled holds a backward pass as well.
    _trains = False

    def __init__(self, implementation: PyTorch, request: Request, batch: Batch) -> None:
        self._name, self._style, self._execution = implementation.NAME, implementation.STYLE, implementation.EXECUTION
        self._workload, self._weights, self._options = request.workload, request.weights, request.options
        self._told: dict = {}
        self._graphs = 0
        _torch.configure(self._options)
        _torch.set_precision(self._options)
        self._place(batch)
        began = time.perf_counter()
        self._network = build_network(self._workload, self._style)
        load_weights(self._network.canonical(), self._weights)
        self._network.to(self._options.device)
        if self._style == "one-call":
            self._network.lstm.flatten_parameters()  # one chunk, as cuDNN wants it; nothing on a CPU
        self._parameters = self._network.canonical()
        self._call: Callable[..., torch.Tensor] | None = self._executed()
        self.costs = {"build_s": time.perf_counter() - began}
        self._start()
        began = time.perf_counter()
        self.step()
        self.costs["first_call_s"] = time.perf_counter() - began
        for _ in range(_SCRIPT_CALLS - 1 if self._execution == "scripted" else 0):
            self.step()
        self._start()

    def _module(self) -> torch.nn.Module:
        """What is executed: the network, or the network with its loss."""
        raise NotImplementedError

    def _try(self, call: Callable[..., torch.Tensor]) -> None:
        """One call without an update, for PyTorch to compile what it compiles lazily."""
        raise NotImplementedError

    def _start(self) -> None:
        """Make `step`; weights and optimizer as they were given."""
        raise NotImplementedError

    def step(self) -> None:
        """Replaced by a closure while the task is open."""
        raise RunFailed("the step is closed")

    def load_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._place(batch_of(self._workload, inputs))

    def _place(self, batch: Batch) -> None:
        packed, on_gpu = packing(self._workload, batch), self._options.device == "cuda"
        arrays = [batch.inputs, batch.targets] if self._trains else [batch.inputs]
        self._host = [torch.from_numpy(np.array(array)) for array in arrays]
        if on_gpu:
            self._host = [tensor.pin_memory() for tensor in self._host]
        placed = [tensor.to("cuda") for tensor in self._host] if on_gpu else self._host
        positions = packed.positions.to(self._options.device) if packed.positions is not None else None
        self._placed = placed
        self._arguments = (*placed, packed.lengths, packed.sizes, positions)

    def _copy_in(self) -> None:
        """To the GPU, without waiting; on a CPU the tensors are one and the same."""
        if self._placed is not self._host:
            for placed, host in zip(self._placed, self._host, strict=True):
                placed.copy_(host, non_blocking=True)

    def _executed(self) -> Callable[..., torch.Tensor]:
        module = self._module()
        if self._execution == "eager":
            return module.forward  # the module's own call would look for hooks first
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, which is known; Dynamo's are of PyTorch's own
            return self._scripted(module) if self._execution == "scripted" else self._compiled(module)

    def _scripted(self, module: torch.nn.Module) -> Callable[..., torch.Tensor]:
        self._told["scripted"] = "network and loss; the backward pass is autograd's, the optimizer eager"
        return torch.jit.script(module).forward

    def _compiled(self, module: torch.nn.Module) -> Callable[..., torch.Tensor]:
        """The module, compiled by a call; raises `BuildFailed` unless the whole became one graph."""
        import torch._dynamo
        import torch._inductor.config
        from torch._inductor.utils import fresh_cache

        torch._dynamo.reset()
        torch._dynamo.config.allow_rnn = True  # without it an nn.LSTM stays eager
        torch._inductor.config.compile_threads = 1  # its pool of processes would outlive the compilation
        before = torch_compile.compiled_so_far()
        module.compile(fullgraph=True, dynamic=False, options={} if self._trains else {"freezing": True})
        with self._tracing(), tempfile.TemporaryDirectory(prefix="lstm_trt-") as folder, fresh_cache(dir=folder):
            self._try(module)  # what an earlier process has compiled would make `build_s` nothing
        after = torch_compile.compiled_so_far()
        made = {name: after[name] - before[name] for name in after}
        torch_compile.check_compiled(made)
        if self._trains and made["inductor_graphs"] < 2:
            raise BuildFailed(f"torch.compile compiled no backward pass: {made}")
        self._try(module)
        self._graphs = torch_compile.compiled_so_far()["graphs"]
        if self._graphs != after["graphs"]:
            raise BuildFailed(f"{self._name} compiled the network again at its second call")
        self._told["compiled"] = made
        return module

    def _tracing(self) -> AbstractContextManager:
        """Within this the first call of a compiled module runs."""
        return nullcontext()

    def facts(self) -> dict:
        found = {**_torch.facts(self._options), **self._told}
        if self._execution == "compiled":
            found["recompiled_later"] = torch_compile.compiled_so_far()["graphs"] - self._graphs
        return found

    def close(self) -> None:
        self.__dict__.pop("step", None)  # what is left is the method above
        if self._call is not None and self._execution == "compiled":
            torch._dynamo.reset()
        self._call = self._network = None
        self._parameters, self._weights = {}, {}
        self._arguments = self._host = self._placed = ()


class ForwardStep(_TorchStep):
    """Forward in inference mode; the answer as numpy, which on a GPU is a copy that waits."""

    _answer: np.ndarray | None = None

    def _module(self) -> torch.nn.Module:
        return self._network.eval().requires_grad_(False)

    def _scripted(self, module: torch.nn.Module) -> Callable[..., torch.Tensor]:
        self._told["scripted"] = "the whole network, frozen"
        return torch.jit.freeze(torch.jit.script(module)).forward

    def _try(self, call: Callable[..., torch.Tensor]) -> None:
        with torch.inference_mode():
            call(*self._arguments)

    def _start(self) -> None:
        call, copy_in, guard = self._call, self._copy_in, torch.inference_mode()

        def step() -> None:
            try:
                with guard:
                    copy_in()
                    self._answer = call(*self._arguments).cpu().numpy()
            except Exception as error:
                raise run_failure(self._name, error) from error

        self.step = step

    def outputs(self) -> dict[str, np.ndarray]:
        if self._answer is None:
            raise RunFailed("there is no answer yet")
        return {"outputs": self._answer.copy()}

    def facts(self) -> dict:
        found = super().facts()
        if self._style == "one-call" and self._call is not None:
            found["operators"] = _torch.operators(lambda inputs: self._network.forward(*inputs), self._arguments)
        return found


class TrainingStep(_TorchStep):
    """Zero gradients, forward, loss, backward, update, and the loss read as a number."""

    _trains = True
    _loss: float | None = None

    def _module(self) -> torch.nn.Module:
        return Objective(self._network, self._workload).train()

    def _try(self, call: Callable[..., torch.Tensor]) -> None:
        call(*self._arguments).backward()

    def _tracing(self) -> AbstractContextManager:
        """Without oneDNN for `nn.LSTM`: Inductor of 2.13 keeps its layer in training and cannot run it.

        (The layer's workspace comes back as None, and the compiled call stops at it.)
        """
        if self._style != "one-call" or self._options.device != "cpu":
            return nullcontext()
        self._told["unrolled"] = True
        return torch.backends.mkldnn.flags(enabled=False)

    def _start(self) -> None:
        load_weights(self._parameters, self._weights)
        parameters = list(self._parameters.values())
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        optimizer = kinds[self._workload.optimizer](parameters, lr=self._workload.learning_rate)
        optimizer.zero_grad()
        call, copy_in, zero_gradients, update = self._call, self._copy_in, optimizer.zero_grad, optimizer.step

        def step() -> None:
            try:
                zero_gradients()
                copy_in()
                loss = call(*self._arguments)
                loss.backward()
                update()
                self._loss = loss.item()
            except Exception as error:
                raise run_failure(self._name, error) from error

        self.step, self._loss = step, None
        self._told["optimizer"] = f"{type(optimizer).__name__}, eager"

    def loss(self) -> float:
        if self._loss is None:
            raise RunFailed("there is no loss yet")
        return self._loss

    def gradients(self) -> dict[str, np.ndarray]:
        if self._call is None:
            raise RunFailed("the step is closed")
        for parameter in self._parameters.values():
            parameter.grad = None
        self._try(self._call)
        found = {}
        for name, parameter in self._parameters.items():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            found[name], parameter.grad = gradient.cpu().numpy().copy(), None
        return found

    def facts(self) -> dict:
        return {**super().facts(), "gradients": "on"}
