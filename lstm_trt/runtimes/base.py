"""What the recorder asks of a runtime and of a kind of workload.

A runtime turns a `Request` into a `PreparedStep`. A kind of workload has a `Preparer`, which makes the
requests, knows the reference's answers, and says where its runtimes stand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lstm_trt import registry, runtimes
from lstm_trt.config.configuration import Configuration, Options
from lstm_trt.config.errors import BuildFailed, RunFailed, RuntimeUnavailable, UsageError
from lstm_trt.config.workload import Workload
from lstm_trt.export.to_onnx import INPUT
from lstm_trt.runtimes._cuda import EventClocks

#: Keys that `PreparedStep.costs` may have, all in seconds.
COSTS = ("export_s", "schedule_s", "tuning_s", "build_s", "first_call_s")


@dataclass(frozen=True)
class Availability:
    """Whether a runtime can run on a device here; `remedy` is the line that makes it ready."""

    ready: bool
    version: str | None = None
    device_name: str | None = None
    reason: str = ""
    remedy: str = ""

    def require(self, name: str) -> Availability:
        """This, where it is ready; raises `RuntimeUnavailable` for the runtime `name` where it is not."""
        if not self.ready:
            raise RuntimeUnavailable(name, self.reason, self.remedy)
        return self


@dataclass(frozen=True)
class Request:
    """What a runtime is asked to prepare.

    `inputs` are by name, with the shapes of `workload.input_shapes` (in training also targets); they are
    used to build, compile or capture: the parity gate asks with others. `weights` maps PyTorch's parameter
    names to float32 arrays; `onnx_path` is the exported network with symbolic sizes, for runtimes with NEEDS_ONNX.
    Options without a device mean the CPU, as in a `Configuration`.
    """

    workload: Workload
    options: Options
    inputs: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict)
    onnx_path: Path | None = None
    mode: str = "forward"

    def __post_init__(self) -> None:
        if self.options.device is None:
            object.__setattr__(self, "options", replace(self.options, device="cpu"))

    @property
    def label(self) -> str:
        """What is to be built, in words: "2x64-s32-b1 in fp32 on cpu"."""
        return f"{self.workload.title(self.mode)} in {self.options.precision} on {self.options.device}"


class PreparedStep(ABC):
    """One unit of the workload (an inference, a training step) on buffers that are already in place.

    `step` is what is timed: no argument, it returns when the answer is in host memory.
    It may be an instance attribute that holds a bound C function, to spare a frame.
    It is called on the thread that called `prepare`, and one prepared step is alive at a
    time: a runtime may set what belongs to its thread or process (streams, TF32, threads).
    """

    #: Seconds that it took to get here, by `COSTS`; empty where they were not measured.
    costs: Mapping[str, float] = {}

    @abstractmethod
    def step(self) -> None:
        """Copy in, compute, copy out, wait.

        In training: zero gradients, forward, loss, gradients, optimizer update, and the loss is on the host.
        The first step of a caller begins with the weights that were given.
        """

    @abstractmethod
    def load_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Put other inputs of the same shapes, by name, where `step` reads them; never timed."""

    def outputs(self) -> dict[str, np.ndarray]:
        """The last answer by name, float32 copies with the shapes of `workload.output_shapes`."""
        raise UsageError(f"{type(self).__name__} is not prepared for forward")

    def reset(self) -> None:  # noqa: B027
        """Put state that is carried from step to step back to zero; nothing where none is carried."""

    def loss(self) -> float:
        """The last training step's loss, at the weights before its update."""
        raise UsageError(f"{type(self).__name__} is not prepared for training")

    def gradients(self) -> dict[str, np.ndarray]:
        """Of the loss at the present weights, float32, by the names of the weights; nothing is updated."""
        raise UsageError(f"{type(self).__name__} is not prepared for training")

    def device_times(self) -> dict[str, np.ndarray]:
        """Device clocks of the trials since the last call: column name -> int64 nanoseconds."""
        return {}

    def facts(self) -> dict:
        """What the runtime really does, for the provenance: threads, kernels, graphs; JSON values."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Free everything; may be called twice."""


class BufferedStep(PreparedStep):
    """A step whose inputs stand in one host array, and which is an instance attribute `step` while it is open.

    `device_times` are those of `_clocks`, where a constructor sets them.
    """

    _clocks: EventClocks | None = None

    def __init__(self, inputs: np.ndarray) -> None:
        self._inputs: np.ndarray | None = inputs

    def step(self) -> None:
        raise RunFailed("the step is closed")

    def load_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        if self._inputs is None:
            raise RunFailed("the step is closed")
        array = inputs[INPUT]
        if array.shape != self._inputs.shape:
            raise UsageError(f"inputs must be {self._inputs.shape}, not {array.shape}")
        np.copyto(self._inputs, array, casting="same_kind")
        if self._clocks:
            self._clocks.restart()  # what the parity gate ran is no trial

    def device_times(self) -> dict[str, np.ndarray]:
        return self._clocks.read() if self._clocks else {}

    def close(self) -> None:
        self._inputs = None
        self.__dict__.pop("step", None)  # what is left is the method above


def check_options(name: str, runtime: Any, options: Options) -> None:
    """Raises `UsageError` for what `runtime`, which users call `name`, does not have on the device of the options."""
    device = options.device
    if device not in runtime.DEVICES:
        raise UsageError(f"{name} has no device {device!r}: choose from {', '.join(runtime.DEVICES)}")
    if options.precision not in runtime.PRECISIONS[device]:
        offered = ", ".join(runtime.PRECISIONS[device])
        raise UsageError(f"{name} on {device} offers no {options.precision}: choose from {offered}")
    if options.graph and device == "cpu":
        raise UsageError(f"{name} runs on the CPU, where there is no CUDA graph: leave --graph out")
    if options.device_clocks != "off" and device == "cpu":
        raise UsageError(f"{name} runs on the CPU, which has no device clocks: leave --device-clocks off")


@dataclass(frozen=True)
class Gate:
    """What the parity gate asks, one set of inputs after another, and the reference's answer to the last of them.

    Carried state is reset before the first, and not between them.

    `expected` is by name, as `outputs()`; in training `loss`, (1,) float64, of the first step. `reference` is the
    name of what made it, for messages.
    """

    questions: tuple[Mapping[str, np.ndarray], ...]
    expected: Mapping[str, np.ndarray]
    seed: int
    reference: str = "PyTorch in float32"


class Preparer(ABC):
    """How one kind of workload is prepared; named in `registry.PREPARERS`."""

    #: The table of `registry` in which the kind's runtimes stand.
    RUNTIMES = "RUNTIMES"
    #: Whether each configuration gets a process of its own, since what an earlier one left would count.
    FRESH_PROCESS = False
    #: Whether one reference serves all runtimes of a workload, being dear to make.
    SHARED_REFERENCE = False

    def runtime(self, name: str):
        """A runtime of this kind; raises `UsageError` for an unknown one."""
        return runtimes.load(name, self.RUNTIMES)

    def check(self, configuration: Configuration) -> None:
        """Raises `BuildFailed` with the runtime's own reason for a workload or mode that it does not do."""
        workload, mode = configuration.workload, configuration.mode
        supports = getattr(self.runtime(configuration.runtime), "supports", None)
        reason = supports(workload, mode, configuration.options.device) if supports else None
        if reason:
            raise BuildFailed(f"{configuration.runtime} does not do {workload.label} ({mode}): {reason}")

    @abstractmethod
    def reference(
        self, configuration: Configuration, gate_seed: int, answers_path: Path, send: Callable[..., None]
    ) -> dict:
        """In the preparing process: write the answers to the gate's inputs to `answers_path` (.npy).

        Returns JSON values that `request` and `gate` get as `reference`, beside `gate_seed` and
        `answers_path`. `send(event, **values)` tells the parent of stages.
        """

    @abstractmethod
    def request(self, configuration: Configuration, reference: Mapping) -> Request:
        """In the worker: what the runtime is asked to prepare; its inputs are those of the trials."""

    @abstractmethod
    def gate(self, configuration: Configuration, reference: Mapping) -> Gate:
        """In the worker: what the parity gate asks and expects."""

    def provenance(self, configuration: Configuration, reference: Mapping) -> dict:
        """What recordings of this kind store beside the rest; JSON values."""
        return {}


def preparer_of(workload: Workload) -> Preparer:
    """Who prepares a kind of workload; raises `UsageError` where nobody does."""
    try:
        return registry.load("PREPARERS", workload.KIND)
    except (KeyError, ImportError, AttributeError) as error:
        raise UsageError(f"nobody prepares workloads of the kind {workload.KIND!r}: {error}") from None
