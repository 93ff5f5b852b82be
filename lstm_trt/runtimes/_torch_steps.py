"""The prepared steps of the PyTorch runtimes: what is timed, on the CPU and on a GPU.

On the CPU a step is one forward on an input tensor that shares its memory with the
host buffer; its answer is a host tensor. On a GPU a step copies the inputs from
pinned memory, runs, copies the answer to pinned memory and waits for the stream: the
host spins. Everything goes to the thread's current stream, which becomes one of this
process's own, never the default one, so a step belongs to the thread that called
`prepare` or `load_inputs` last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from lstm_trt.errors import RunFailed, UsageError
from lstm_trt.runtimes import _torch, _torch_state
from lstm_trt.runtimes._events import EventClocks
from lstm_trt.runtimes.contract import PreparedStep, Request

if TYPE_CHECKING:
    import torch


class _TorchStep(PreparedStep):
    """Buffers, inputs and the end of life, alike on both devices."""

    def __init__(self, request: Request, host_inputs: torch.Tensor) -> None:
        self._options = request.options
        self._output_shape = (request.shape.sequence, request.shape.batch, 1)
        self._host_inputs = host_inputs
        self._input_array = host_inputs.numpy()
        self._bound: _torch.Bound | None = None
        self.load_inputs(request.inputs)

    def step(self) -> None:
        """Replaced by a closure while the step is open."""
        raise RunFailed("the step is closed")

    def load_inputs(self, inputs: np.ndarray) -> None:
        if inputs.shape != self._input_array.shape:
            raise UsageError(f"inputs must be {self._input_array.shape}, not {inputs.shape}")
        np.copyto(self._input_array, inputs, casting="same_kind")

    def facts(self) -> dict:
        bound = self._bound.facts() if self._bound else {}
        return {**_torch_state.facts(self._options), **bound}

    def close(self) -> None:
        self.__dict__.pop("step", None)  # what is left is the method above
        if self._bound is not None:
            self._bound.release()
            self._bound = None

    def _check(self, answer: torch.Tensor) -> None:
        if tuple(answer.shape) != self._output_shape:
            raise RunFailed(f"the answer has the shape {tuple(answer.shape)}, not {self._output_shape}")


class CpuStep(_TorchStep):
    """A forward on the calling thread; the answer is already in host memory."""

    def __init__(self, request: Request, module: torch.nn.Module, bind: Callable[..., _torch.Bound]) -> None:
        import torch

        shape = request.shape
        super().__init__(request, torch.empty(shape.sequence, shape.batch, shape.features))
        self._bound = bind(module, self._host_inputs)
        run = self._bound.run
        self._answer = answer = [run()]
        self._check(answer[0])

        def step() -> None:
            answer[0] = run()

        self.step = step

    def outputs(self) -> tuple[np.ndarray, ...]:
        return (self._answer[0].numpy().copy(),)

    def close(self) -> None:
        super().close()
        self._answer.clear()


class CudaStep(_TorchStep):
    """Copy in, forward, copy out, wait; with events between them where asked for."""

    def __init__(self, request: Request, module: torch.nn.Module, bind: Callable[..., _torch.Bound]) -> None:
        import torch

        shape = request.shape
        self._stream, self._clocks = own_stream(), None
        super().__init__(request, torch.empty(shape.sequence, shape.batch, shape.features, pin_memory=True))
        self._module = module
        self._device_inputs = self._host_inputs.to("cuda")
        self._host_outputs = torch.empty(self._output_shape, pin_memory=True)
        self._bound = bind(module, self._device_inputs)
        self._check(self._bound.run())
        if self._options.device_clocks == "off":
            self.step = self._plain_step()
        else:
            every = self._options.device_clocks == "all"
            self._clocks = EventClocks(lambda: torch.cuda.Event(enable_timing=True), self._stream, every)
            self.step = self._clocked_step(every)
        torch.cuda.synchronize()

    def load_inputs(self, inputs: np.ndarray) -> None:
        import torch

        torch.cuda.set_stream(self._stream)  # of this thread, which is the one that will run the trials
        super().load_inputs(inputs)
        if self._clocks:
            self._clocks.restart()  # what the parity gate ran is no trial

    def outputs(self) -> tuple[np.ndarray, ...]:
        return (self._host_outputs.numpy().copy(),)

    def device_times(self) -> dict[str, np.ndarray]:
        return self._clocks.read() if self._clocks else {}

    def facts(self) -> dict:
        found = super().facts()
        found["device_clocks"] = self._options.device_clocks
        if self._clocks:
            found["event_pool"] = self._clocks.size
        if self._module is not None:
            lstm = getattr(self._module, "network", self._module).lstm
            chunks = {weight.untyped_storage().data_ptr() for weight in lstm.parameters()}
            found["weights_in_one_chunk"] = len(chunks) == 1
        return found

    def close(self) -> None:
        import torch

        if self._bound is None:
            return
        torch.cuda.synchronize()
        super().close()
        self._module = self._clocks = self._device_inputs = None
        torch.cuda.empty_cache()

    def _plain_step(self) -> Callable[[], None]:
        copy_in, copy_out = self._device_inputs.copy_, self._host_outputs.copy_
        host_inputs, run, wait = self._host_inputs, self._bound.run, self._stream.synchronize

        def step() -> None:
            copy_in(host_inputs, True)  # True: non_blocking
            copy_out(run(), True)
            wait()

        return step

    def _clocked_step(self, every: bool) -> Callable[[], None]:
        copy_in, copy_out = self._device_inputs.copy_, self._host_outputs.copy_
        host_inputs, run, stream = self._host_inputs, self._bound.run, self._stream
        wait, take, enqueued = stream.synchronize, self._clocks.take, self._clocks.enqueue_ns.append
        clock = time.perf_counter_ns

        def step() -> None:
            began = clock()
            before_in, before_run, after_run, after_out = take()
            if every:
                before_in.record(stream)
            copy_in(host_inputs, True)
            before_run.record(stream)
            answer = run()
            after_run.record(stream)
            copy_out(answer, True)
            if every:
                after_out.record(stream)
            enqueued(clock() - began)
            wait()

        return step


@cache
def own_stream() -> torch.cuda.Stream:
    """The stream of all steps of this process."""
    import torch

    return torch.cuda.Stream()
