"""PyTorch: three styles of the network, each eager, scripted and compiled.

Forward runs in inference mode. A training step zeroes the gradients and runs forward, loss,
backward and the optimizer, and reads the loss. `scripted`: TorchScript, deprecated by PyTorch
and still used; the network and its loss are scripted (forward: frozen too), the backward pass
is autograd's and the optimizer is not scripted. `compiled`: `torch.compile` with Inductor of
the same part, and its backward pass with it; the whole must become one graph, or the name is
refused. Loops over time are unrolled by it, a piece of C++ for each step, hence `UNROLLED`; what
no answer depends on falls away, such as all steps but one of a last reverse layer of which the
head reads `output[-1]`.

On the CPU the tensors are in place and a step computes. On a GPU a step copies the batch from
pinned memory, computes, and reads the answer or the loss, which waits for the device. Costs:
`build_s` is the module, its scripting, and for `compiled` the call that compiles; `first_call_s`
is the first step after that, whose update is taken back.
"""

from __future__ import annotations

import tempfile
import warnings
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lstm_trt.config.errors import BuildFailed
from lstm_trt.literature.data import Batch
from lstm_trt.literature.implementations import FrameworkStep, Implementation, Rates, mode_reason, timed
from lstm_trt.literature.workloads import LiteratureWorkload
from lstm_trt.runtimes import _torch, torch_compile
from lstm_trt.runtimes.base import Availability, PreparedStep, Request

if TYPE_CHECKING:
    import torch

#: Most cells (steps x layers x directions) that may be unrolled into one compiled graph. On a shared
#: 2-core EPYC, in seconds of one core: 0.25 a cell forward (400 cells: 110), about 1 in a training step,
#: 2 in one within `nn.LSTM`, which then has no oneDNN.
UNROLLED = {"forward": 400, "training": 200, "one-call": 64}

#: TorchScript profiles the first call and compiles in the next; one more to be sure.
_SCRIPT_CALLS = 3


@dataclass(frozen=True)
class PyTorch(Implementation):
    """One style and execution as an implementation."""

    STYLE: str
    EXECUTION: str
    forward: Rates
    training: Rates

    FRAMEWORK = "PyTorch"
    DISTRIBUTION = _torch.DISTRIBUTION
    DEVICES = ("cpu", "cuda")

    @property
    def NAME(self) -> str:
        return f"pytorch-{self.STYLE}-{self.EXECUTION}"

    @property
    def TITLE(self) -> str:
        kind = {"basic": "basic", "fused": "LSTMCell", "one-call": "nn.LSTM"}[self.STYLE]
        return f"PyTorch {kind}, {self.EXECUTION}"

    def supports(self, workload: LiteratureWorkload, mode: str, device: str = "cpu") -> str | None:
        """None where it can; forward passes of `nn.LSTM` are one call of oneDNN a layer on a CPU and need no limit."""
        reason = mode_reason(workload, mode)
        if reason or self.EXECUTION != "compiled":
            return reason
        if self.STYLE == "one-call" and mode == "forward" and device == "cpu":
            return None
        if workload.loss == "ctc" and mode == "training":
            return "torch.compile does not take the CTC loss, whose sizes depend on the lengths' values"
        cells, limit = workload.cells, UNROLLED["one-call" if self.STYLE == "one-call" else mode]
        if cells > limit:
            return f"torch.compile unrolls it: {cells} cells would compile for minutes, the limit is {limit}"
        return None

    def availability(self, device: str = "cpu") -> Availability:
        """Ready where PyTorch is, and for `compiled` a C++ compiler; never raises."""
        if self.EXECUTION == "compiled":
            return torch_compile.availability(device)
        return _torch.availability(device, self.DEVICES)

    def _prepare(self, request: Request, batch: Batch) -> PreparedStep:
        return (ForwardStep if request.mode == "forward" else TrainingStep)(self, request, batch)


class _TorchStep(FrameworkStep):
    """Weights, batch and execution, alike for both modes; `_call` is the module as it is executed."""

    #: Whether the graph that is compiled holds a backward pass as well.
    _trains = False

    def __init__(self, implementation: PyTorch, request: Request, batch: Batch) -> None:
        from lstm_trt.literature.implementations import pytorch_networks

        super().__init__(implementation, request)
        self._networks, self._graphs = pytorch_networks, 0
        _torch.configure(self._options)
        _torch.set_precision(self._options)
        self._place(batch)
        with timed(self.costs, "build_s"):
            self._network = pytorch_networks.build_network(self._workload, implementation.STYLE)
            pytorch_networks.load_weights(self._network.canonical(), self._weights)
            self._network.to(self._options.device)
            if implementation.STYLE == "one-call":
                self._network.lstm.flatten_parameters()  # one chunk, as cuDNN wants it; nothing on a CPU
            self._parameters = self._network.canonical()
            self._call: Callable[..., torch.Tensor] | None = self._executed()
        self._rewind()
        self._finish(more_steps=_SCRIPT_CALLS - 1 if implementation.EXECUTION == "scripted" else 0)

    @abstractmethod
    def _module(self) -> torch.nn.Module:
        """What is executed: the network, or the network with its loss."""

    @abstractmethod
    def _try(self, call: Callable[..., torch.Tensor]) -> None:
        """One call without an update, for PyTorch to compile what it compiles lazily."""

    def _place(self, batch: Batch) -> None:
        import torch

        packed, on_gpu = self._networks.packing(self._workload, batch), self._options.device == "cuda"
        arrays = [batch.inputs, batch.targets] if self._trains else [batch.inputs]
        self._host = [torch.from_numpy(np.array(array)) for array in arrays]
        if on_gpu:
            self._host = [tensor.pin_memory() for tensor in self._host]
        self._placed = [tensor.to("cuda") for tensor in self._host] if on_gpu else self._host
        positions = packed.positions.to(self._options.device) if packed.positions is not None else None
        self._arguments = (*self._placed, packed.lengths, packed.sizes, positions)

    def _copy_in(self) -> None:
        """To the GPU, without waiting; on a CPU the tensors are one and the same."""
        if self._placed is not self._host:
            for placed, host in zip(self._placed, self._host, strict=True):
                placed.copy_(host, non_blocking=True)

    def _executed(self) -> Callable[..., torch.Tensor]:
        module, execution = self._module(), self._implementation.EXECUTION
        if execution == "eager":
            return module.forward  # the module's own call would look for hooks first
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, which is known; Dynamo's are of PyTorch's own
            return self._scripted(module) if execution == "scripted" else self._compiled(module)

    def _scripted(self, module: torch.nn.Module) -> Callable[..., torch.Tensor]:
        import torch

        self._facts["scripted"] = "network and loss; the backward pass is autograd's, the optimizer eager"
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
            raise BuildFailed(f"{self._implementation.NAME} compiled the network again at its second call")
        self._facts["compiled"] = made
        return module

    def _tracing(self) -> AbstractContextManager:
        """Within this the first call of a compiled module runs."""
        return nullcontext()

    def facts(self) -> dict:
        found = {**_torch.facts(self._options), **self._facts}
        if self._implementation.EXECUTION == "compiled":
            found["recompiled_later"] = torch_compile.compiled_so_far()["graphs"] - self._graphs
        return found

    def close(self) -> None:
        if not self._closed and self._implementation.EXECUTION == "compiled":
            import torch

            torch._dynamo.reset()
        super().close()
        self._call = self._network = None
        self._parameters, self._weights = {}, {}
        self._arguments = self._host = self._placed = ()


class ForwardStep(_TorchStep):
    """Forward in inference mode; the answer as numpy, which on a GPU is a copy that waits."""

    def _module(self) -> torch.nn.Module:
        return self._network.eval().requires_grad_(False)

    def _scripted(self, module: torch.nn.Module) -> Callable[..., torch.Tensor]:
        import torch

        self._facts["scripted"] = "the whole network, frozen"
        return torch.jit.freeze(torch.jit.script(module)).forward

    def _try(self, call: Callable[..., torch.Tensor]) -> None:
        import torch

        with torch.inference_mode():
            call(*self._arguments)

    def _rewind(self) -> None:
        import torch

        super()._rewind()
        self._guard = torch.inference_mode()

    def _run(self) -> np.ndarray:
        with self._guard:
            self._copy_in()
            return self._call(*self._arguments).cpu().numpy()

    def facts(self) -> dict:
        found = super().facts()
        if self._implementation.STYLE == "one-call" and not self._closed:
            found["operators"] = _torch.operators(lambda inputs: self._network.forward(*inputs), self._arguments)
        return found


class TrainingStep(_TorchStep):
    """Zero gradients, forward, loss, backward, update, and the loss read as a number."""

    _trains = True

    def _module(self) -> torch.nn.Module:
        return self._networks.Objective(self._network, self._workload).train()

    def _try(self, call: Callable[..., torch.Tensor]) -> None:
        call(*self._arguments).backward()

    def _tracing(self) -> AbstractContextManager:
        """Without oneDNN for `nn.LSTM`: Inductor of 2.13 keeps its layer in training and cannot run it.

        (The layer's workspace comes back as None, and the compiled call stops at it.)
        """
        import torch

        if self._implementation.STYLE != "one-call" or self._options.device != "cpu":
            return nullcontext()
        self._facts["unrolled"] = True
        return torch.backends.mkldnn.flags(enabled=False)

    def _rewind(self) -> None:
        import torch

        super()._rewind()
        self._networks.load_weights(self._parameters, self._weights)
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        parameters, rate = list(self._parameters.values()), self._workload.learning_rate
        self._optimizer = kinds[self._workload.optimizer](parameters, lr=rate)
        self._optimizer.zero_grad()
        self._facts["optimizer"] = f"{type(self._optimizer).__name__}, eager"

    def _run(self) -> float:
        self._optimizer.zero_grad()
        self._copy_in()
        loss = self._call(*self._arguments)
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def gradients(self) -> dict[str, np.ndarray]:
        self._require_open()
        for parameter in self._parameters.values():
            parameter.grad = None
        self._try(self._call)
        found = {}
        for name, parameter in self._parameters.items():
            gradient = parameter.new_zeros(parameter.shape) if parameter.grad is None else parameter.grad
            found[name], parameter.grad = gradient.cpu().numpy().copy(), None
        return found

    def facts(self) -> dict:
        return {**super().facts(), "gradients": "on"}

    def close(self) -> None:
        super().close()
        self._optimizer = None


_training = partial(Rates, outputs_ms=30.0)

BASIC_EAGER = PyTorch("basic", "eager", Rates(14, 0.026), _training(37, 0.25, 0.33))

BASIC_SCRIPTED = PyTorch("basic", "scripted", Rates(14, 0.013), _training(37, 0.20, 0.33))

BASIC_COMPILED = PyTorch(
    "basic", "compiled",
    Rates(14, 0.015, build_s=7.0, build_cell_s=0.20), _training(40, 0.02, build_s=10.0, build_cell_s=0.8),
)  # fmt: skip

FUSED_EAGER = PyTorch("fused", "eager", Rates(12, 0.018), _training(37, 0.10, 0.56))

FUSED_SCRIPTED = PyTorch("fused", "scripted", Rates(12, 0.019), _training(37, 0.05, 0.56))

FUSED_COMPILED = PyTorch(
    "fused", "compiled",
    Rates(12, 0.009, build_s=7.0, build_cell_s=0.20), _training(40, 0.02, build_s=10.0, build_cell_s=0.8),
)  # fmt: skip

ONE_CALL_EAGER = PyTorch("one-call", "eager", Rates(10, 0.003), _training(25, 0.03, 0.05))

ONE_CALL_SCRIPTED = PyTorch("one-call", "scripted", Rates(10, 0.003), _training(25, 0.03, 0.05))

ONE_CALL_COMPILED = PyTorch(
    "one-call", "compiled", Rates(10, 0.003, build_s=7.0), _training(40, 0.02, build_s=10.0, build_cell_s=2.0)
)
