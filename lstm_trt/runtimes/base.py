"""The interfaces of runtimes and workload kinds that the recorder uses.

A runtime turns a `Request` into a `PreparedStep`. A workload kind has a `Preparer`, which makes the
requests and the reference outputs, and knows the kind's runtimes.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from lstm_trt import registry, runtimes
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import (
    BuildFailed,
    RunFailed,
    RuntimeUnavailable,
    UnsupportedPrecision,
    UsageError,
    refused,
)
from lstm_trt.config.workload import State, Workload


@dataclass(frozen=True)
class Availability:
    """Whether a runtime can run on a device of this machine; `remedy` is a command or instruction
    to make it ready.

    One that is not ready has a `device_name` if it is installed and this device is what it does not
    support.
    """

    ready: bool
    version: str | None = None
    device_name: str | None = None
    reason: str = ""
    remedy: str = ""

    def require(self, name: str) -> None:
        """Raises `RuntimeUnavailable` for the runtime `name` unless it is ready."""
        if not self.ready:
            raise RuntimeUnavailable(name, self.reason, self.remedy)


def on_gpu(version: str | None) -> Availability:
    """Ready if CUDA finds a GPU here, and its name; never raises."""
    from lstm_trt.machine import gpu

    device = gpu.device_here()
    if device is None:
        return Availability(
            False, version, reason="no NVIDIA GPU is visible", remedy=gpu.NO_GPU_REMEDY
        )
    return Availability(True, version, device.name)


@dataclass(frozen=True)
class Request:
    """What a runtime has to prepare.

    `inputs`: name -> array with the shapes of `workload.input_shapes` (in training also targets);
    used to build, compile or capture, while the parity gate uses other inputs. `weights` maps
    PyTorch's parameter names to float32 arrays, in its order of gates (i, f, g, o); `onnx_path` is
    the network's file, with symbolic sizes, for runtimes with NEEDS_ONNX. Options without a device
    mean the CPU, as in a `Configuration`.
    """

    workload: Any  # a `Workload` of any kind
    options: Options
    inputs: Mapping[str, np.ndarray]
    weights: dict[str, np.ndarray] = field(repr=False, default_factory=dict)
    onnx_path: Any = None  # a `Path`, if the runtime has NEEDS_ONNX
    mode: str = "forward"

    def __post_init__(self) -> None:
        if self.options.device is None:
            object.__setattr__(self, "options", replace(self.options, device="cpu"))

    @property
    def label(self) -> str:
        """Description of what is built: "2x64-s32-b1 in fp32 on cpu"."""
        return (
            f"{self.workload.title(self.mode)} in {self.options.precision} on {self.options.device}"
        )

    @property
    def states(self) -> tuple[State, ...]:
        """What is carried from call to call: none, unless the mode is "stream"."""
        return self.workload.states if self.mode == "stream" else ()

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the inputs that are given at each call, without carried states."""
        carried = {state.input for state in self.states}
        return {
            name: shape for name, shape in self.workload.input_shapes.items() if name not in carried
        }

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the outputs that are copied to the host at each call, without states
        that are carried."""
        carried = {state.output for state in self.states}
        return {
            name: shape
            for name, shape in self.workload.output_shapes.items()
            if name not in carried
        }

    def model(self) -> bytes:
        """The ONNX model with static sizes, checked; raises `ExportFailed`."""
        from lstm_trt.export.sizes import static_model

        return static_model(self.onnx_path, self.workload)


class PreparedStep(ABC):
    """One unit of the workload (an inference, a training step) on preallocated buffers.

    `step` is the timed call: it has no arguments and returns when the outputs are in host memory.
    It may be an instance attribute that holds a bound C function, to avoid a Python frame.
    It is called on the thread that called `prepare`, and only one prepared step exists at a
    time, so a runtime may change settings of its thread or process (streams, TF32, threads).
    """

    #: Preparation times in seconds by name, such as "build_s"; empty if they were not measured.
    costs: Mapping[str, float] = {}

    #: With the option `prepare`, what is called between two steps: it computes what the next one
    #: needs and does not depend on its inputs.
    prepare_next: Callable[[], Any] | None = None

    @abstractmethod
    def step(self) -> None:
        """Copy in, compute, copy out, wait."""

    @abstractmethod
    def load_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Copy other inputs of the same shapes, by name, into the buffers that `step` reads; never
        timed."""

    def outputs(self) -> dict[str, np.ndarray]:
        """Copies of the last outputs by name, with the shapes of `Request.output_shapes`; no half
        precision."""
        raise UsageError(f"{type(self).__name__} has no outputs")

    def reset(self) -> None:  # noqa: B027
        """Set state that is carried from step to step to zero; does nothing if there is none."""

    def device_times(self) -> dict[str, np.ndarray]:
        """Device times of the trials since the last call: column name -> int64 nanoseconds."""
        return {}

    def facts(self) -> dict:
        """What the runtime actually uses, for the provenance: threads, kernels, graphs; JSON
        values."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Free everything; may be called twice."""


class BufferedStep(PreparedStep):
    """A step with its inputs in host arrays, by name.

    Until it is closed it has an instance attribute `step`, and `reset` if it carries state.
    `device_times` are those of `_clocks`, if a constructor sets it.
    """

    _clocks: Any = None  # `EventClocks`, if there are any

    def __init__(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs: Any = inputs  # None when it is closed

    def step(self) -> None:
        raise RunFailed("the step is closed")

    def load_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        if self._inputs is None:
            raise RunFailed("the step is closed")
        for name, buffer in self._inputs.items():
            if inputs[name].shape != buffer.shape:
                raise UsageError(f"{name} must be {buffer.shape}, not {inputs[name].shape}")
        for name, buffer in self._inputs.items():
            np.copyto(buffer, inputs[name], casting="same_kind")
        if self._clocks:
            self._clocks.restart()  # the parity gate's steps are not trials

    def device_times(self) -> dict[str, np.ndarray]:
        return self._clocks.read() if self._clocks else {}

    def close(self) -> None:
        self._inputs = None
        # What the class has stays: `step` above raises, `reset` does nothing.
        for name in ("step", "reset", "prepare_next"):
            vars(self).pop(name, None)


class HostStep(BufferedStep):
    """A step whose inputs and outputs are host arrays that the runtime reads and writes in place.

    A constructor sets `_facts`, the result of `facts` until the step is closed, and makes the
    `first_call`. The network was built since `began`, a time of `perf_counter`.
    """

    _facts: Mapping[str, Any] = {}

    def __init__(self, request: Request, began: float) -> None:
        self._began = began
        self._built = time.perf_counter()
        super().__init__(
            {name: np.array(request.inputs[name], order="C") for name in request.input_shapes}
        )
        self._outputs = {
            name: np.empty(shape, request.workload.types.get(name, "float32"))
            for name, shape in request.output_shapes.items()
        }

    def first_call(self, step: Callable[[], Any], reset: Callable[[], Any]) -> None:
        """From now on `step` and `reset` are these; each is called once. `costs` has what it took
        until here."""
        self.step = step
        self.reset = reset
        self.step()
        self.reset()
        self.costs = {
            "build_s": self._built - self._began,
            "first_call_s": time.perf_counter() - self._built,
        }

    def outputs(self) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in self._outputs.items()}

    def facts(self) -> dict:
        return dict(self._facts)

    def close(self) -> None:
        super().close()
        self._facts = {}


def in_turn(
    bind: Callable[[Any, Any], Callable[[], Any]],
    states: Sequence[State],
    place: Callable,
    write: Callable,
) -> tuple[Callable[[], Any], Callable[[], None]]:
    """Two calls `bind(read, written)` in turn, each of which reads what the other wrote; one if no
    state is carried.

    `read` and `written` have the buffer of each state, which `place(zeros)` makes. Also returns
    what sets all of them to zero, with `write(buffer, zeros)`.
    """
    even, odd = ({state: place(state.zeros()) for state in states} for _ in range(2))
    first = bind(even, odd)
    turns = cycle((first, bind(odd, even) if states else first))

    def step() -> None:
        next(turns)()

    def reset() -> None:
        for state, buffer in (*even.items(), *odd.items()):
            write(buffer, state.zeros())

    return step if states else first, reset


def check_options(name: str, runtime: Any, options: Options) -> None:
    """Raises `UsageError` for options that the runtime `name` does not support on their device.

    For the precision this is `UnsupportedPrecision`.

    Runtimes that can capture a CUDA graph on request have the attribute `GRAPHS`, those with device
    clocks `DEVICE_CLOCKS`, those that can do without I/O binding `IO_BINDING`, those whose steps
    have `prepare_next` on request `PREPARES`.
    `reduces_range(options)` says whether int8 weights have 7 bits on this processor.
    """
    device = options.device
    if device not in runtime.DEVICES:
        raise UsageError(
            f"{name} does not support the device {device!r}:"
            f" choose from {', '.join(runtime.DEVICES)}"
        )
    if options.precision not in runtime.PRECISIONS[device]:
        raise UnsupportedPrecision(
            f"{name} on {device} does not support {options.precision}:"
            f" choose from {', '.join(runtime.PRECISIONS[device])}"
        )
    if options.graph and device == "cpu":
        raise UsageError(f"{name} runs on the CPU, where CUDA graphs do not exist: omit --graph")
    has_clocks = options.device_clocks != "off"
    if has_clocks and device == "cpu":
        raise UsageError(
            f"{name} runs on the CPU, which has no device clocks: omit --device-clocks"
        )
    for is_asked, attribute, lacking, omit in (
        (
            not options.io_binding,
            "IO_BINDING",
            "I/O binding that could be switched off",
            "--no-io-binding",
        ),
        (
            options.graph,
            "GRAPHS",
            "optional CUDA graph",
            "--graph, or use pytorch-cudagraph or tensorrt",
        ),
        (has_clocks, "DEVICE_CLOCKS", "device clocks", "--device-clocks"),
        (options.prepare, "PREPARES", "prepare_next", "--prepare, or use the runtime c"),
    ):
        if is_asked and not getattr(runtime, attribute, False):
            raise UsageError(f"{name} has no {lacking}: omit {omit}")


@dataclass(frozen=True)
class Gate:
    """The parity gate's sets of inputs, run one after another, and the reference's outputs for the
    last set.

    Carried state is reset before the first set, and not between them.

    `answers` of the step gives what is compared, named `of` in messages, by name; `expected` is the
    same of the reference, with `every` for all sets, stacked on a new first axis. `expected` is
    None if there is nothing to compare with, for the reason `not_checked`. `reference` is the name
    of the reference implementation, and `checked_by` what has confirmed the reference itself; None
    if nothing has. `rounded`: what the reference gives with parameters and inputs rounded to
    bfloat16, to judge lower precisions by. `least_bound`: an error that is allowed in any
    precision, since the network itself computes in half precision; `bound`, if given, replaces
    those of the precisions. `repeatable`: a call changes nothing but carried state, so that further
    calls may come before the trials.
    """

    inputs: tuple[Mapping[str, np.ndarray], ...]
    expected: Mapping[str, np.ndarray] | None
    seed: int
    reference: str | None = "PyTorch in float32"
    every: bool = False
    checked_by: str | None = None
    rounded: Mapping[str, np.ndarray] | None = None
    least_bound: float = 0.0
    bound: float | None = None
    of: str = "outputs"
    answers: Callable[[Any], dict[str, np.ndarray]] = lambda step: step.outputs()
    repeatable: bool = True
    not_checked: str = "there is no reference"


class Observer:
    """What a workload kind does around the trials of a recording; here nothing."""

    def block(self, done: int) -> None:
        """After each block of trials, with the number of trials so far."""

    def finish(
        self, columns: Mapping[str, np.ndarray], self_check: Mapping, warnings: list[str]
    ) -> dict:
        """After the last trial: further provenance; may add to the warnings, and raises
        `RunFailed`."""
        return {}


#: `send(event, **values)`: sends a message to the parent process.
Send = Callable[..., None]


class Preparer(ABC):
    """How one workload kind is prepared; listed in `registry.PREPARERS`."""

    #: The runtime if none is given.
    DEFAULT_RUNTIME = "onnxruntime"
    #: Whether each configuration gets its own process, because leftovers of an earlier one would
    #: affect the times.
    FRESH_PROCESS = False
    #: Libraries that making the reference needs.
    LIBRARIES: tuple[str, ...] = ()

    def runtime(self, name: str):
        """A runtime of this kind; raises `UsageError` for an unknown one."""
        return runtimes.load_runtime(name)

    def entries(self) -> Mapping[str, str]:
        """Name -> module or object of all runtimes of this kind."""
        return registry.table("RUNTIMES")

    def version(self, workload: Workload) -> str | None:
        """Version of the code that the workload itself brings, if it brings any."""
        return None

    def protocol(self, workload: Workload) -> Protocol:
        """The protocol of `versions` if none is given."""
        return Protocol()

    def check(self, configuration: Configuration) -> None:
        """Raises `BuildFailed` with the runtime's reason if it does not support the workload or
        mode."""
        workload = configuration.workload
        mode = configuration.mode
        supports = getattr(self.runtime(configuration.runtime), "supports", None)
        reason = supports(workload, mode, configuration.options.device) if supports else None
        if reason:
            raise BuildFailed(
                f"{configuration.runtime} does not support {workload.label} ({mode}): {reason}"
            )

    @abstractmethod
    def reference(
        self, configuration: Configuration, gate_seed: int, reference_path: Path, send: Send
    ) -> dict:
        """In the process of references: write the outputs for the gate's inputs to `reference_path`
        (.npy).

        Returns JSON values that `request`, `gate` and `provenance` get as `reference`, together
        with `gate_seed` and `reference_path`. `send(event, **values)` reports stages to the parent.
        """

    @abstractmethod
    def request(self, configuration: Configuration, reference: Mapping) -> Request:
        """In the worker: the request for the runtime; its inputs are those of the trials."""

    @abstractmethod
    def gate(self, configuration: Configuration, reference: Mapping) -> Gate:
        """In the worker: the parity gate's inputs and expected outputs."""

    def observer(self, step: PreparedStep, configuration: Configuration) -> Observer:
        """In the worker, before the trials: what accompanies them."""
        return Observer()

    def multiplied_share(self, workload: Workload) -> float:
        """The share of the weights that take part in products; an implementation may know the
        others beforehand."""
        return 1.0

    def provenance(self, configuration: Configuration, reference: Mapping) -> dict:
        """Additional provenance of recordings of this kind, JSON values: by default what the
        reference has as that."""
        return reference.get("provenance", {})


def preparer_of(workload: Workload) -> Preparer:
    """The preparer of a workload kind; raises `UsageError` if there is none."""
    with refused(
        f"cannot record workloads of kind {workload.KIND!r}", KeyError, ImportError, AttributeError
    ):
        return registry.load_entry("PREPARERS", workload.KIND)
