"""The implementations of the literature's workloads: one file per framework, with the interface of a runtime.

An implementation is a runtime (`lstm_trt.runtimes`) for these workloads: a module, or an object in a module, such as
an `Implementation`. In addition to a runtime's attributes it has

    TITLE          the name in figures
    FRAMEWORK      "PyTorch", "TensorFlow", "ONNX Runtime", ...
    STYLE          "basic" (the cell written out), "fine-grained" (the same, gate by gate), "fused" (the framework's
                   cell in a loop), "while", "static" (the cell unrolled), "one-call" (the framework's LSTM)
    EXECUTION      "eager", "scripted", "compiled", "graph", "xla", ...
    EXTRA          the extra of this package that installs it; None for the core and for other packages
    supports(workload, mode, device) -> str | None     None if it is supported, else the reason in a few words

and optionally

    RATES          mode -> `Rates`, from which `literature.plan` estimates; without them the plan has no estimate
    ENVIRONMENT    ("mxnet==1.9.1", "numpy==1.23.5"): requirements, the framework first, that contradict other packages
                   here. It is recorded in an environment of its own, made at its first use, which has all other
                   packages from here; `availability` says whether this environment can be made

Its prepared steps have `costs`, and in training `loss`: a step zeroes the gradients, computes the loss and the
gradients, updates the weights, and copies the loss to the host; the first starts from the given weights.
`prepare` may call the step (`first_call_s`) and restores the weights and the optimizer afterwards. Built-in
implementations are listed in `IMPLEMENTATIONS`; others come from entry points of the group `lstm_trt.implementations`,
or by a name with a dot, `my_package.my_implementation` or `my_package.module:OBJECT`. Importing one must not import its
framework.
"""

import csv
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lstm_literature.data import Batch, weight_shapes
from lstm_literature.workloads import LiteratureWorkload
from lstm_trt import registry, runtimes
from lstm_trt.config.errors import (
    BuildFailed,
    MemoryExhausted,
    RunFailed,
    UsageError,
    building,
    first_line,
    is_memory_error,
)
from lstm_trt.config.libraries import how_to_install
from lstm_trt.machine.facts import installed_version
from lstm_trt.runtimes.base import Availability, PreparedStep, Request, on_gpu

#: Name for `--implementation` -> module or object; the contract is that of a runtime, extended.
IMPLEMENTATIONS = {
    "pytorch-basic-eager": "lstm_literature.implementations.on_pytorch:BASIC_EAGER",
    "pytorch-basic-scripted": "lstm_literature.implementations.on_pytorch:BASIC_SCRIPTED",
    "pytorch-basic-compiled": "lstm_literature.implementations.on_pytorch:BASIC_COMPILED",
    "pytorch-fine-grained-eager": "lstm_literature.implementations.on_pytorch:FINE_GRAINED_EAGER",
    "pytorch-fine-grained-scripted": "lstm_literature.implementations.on_pytorch:FINE_GRAINED_SCRIPTED",
    "pytorch-fused-eager": "lstm_literature.implementations.on_pytorch:FUSED_EAGER",
    "pytorch-fused-scripted": "lstm_literature.implementations.on_pytorch:FUSED_SCRIPTED",
    "pytorch-fused-compiled": "lstm_literature.implementations.on_pytorch:FUSED_COMPILED",
    "pytorch-one-call-eager": "lstm_literature.implementations.on_pytorch:ONE_CALL_EAGER",
    "pytorch-one-call-scripted": "lstm_literature.implementations.on_pytorch:ONE_CALL_SCRIPTED",
    "pytorch-one-call-compiled": "lstm_literature.implementations.on_pytorch:ONE_CALL_COMPILED",
    "tensorflow-basic-eager": "lstm_literature.implementations.on_tensorflow:BASIC_EAGER",
    "tensorflow-basic-graph": "lstm_literature.implementations.on_tensorflow:BASIC_GRAPH",
    "tensorflow-fine-grained-eager": "lstm_literature.implementations.on_tensorflow:FINE_GRAINED_EAGER",
    "tensorflow-fine-grained-graph": "lstm_literature.implementations.on_tensorflow:FINE_GRAINED_GRAPH",
    "tensorflow-while-graph": "lstm_literature.implementations.on_tensorflow:WHILE_GRAPH",
    "tensorflow-static-eager": "lstm_literature.implementations.on_tensorflow:STATIC_EAGER",
    "tensorflow-static-graph": "lstm_literature.implementations.on_tensorflow:STATIC_GRAPH",
    "tensorflow-xla": "lstm_literature.implementations.on_tensorflow:XLA",
    "tensorflow-one-call-eager": "lstm_literature.implementations.on_tensorflow:ONE_CALL_EAGER",
    "tensorflow-one-call-graph": "lstm_literature.implementations.on_tensorflow:ONE_CALL_GRAPH",
    "keras-jax": "lstm_literature.implementations.on_keras:JAX",
    "keras-torch": "lstm_literature.implementations.on_keras:TORCH",
    "onnxruntime": "lstm_literature.implementations.on_onnxruntime:ONNXRUNTIME",
    "tensorrt": "lstm_literature.implementations.on_tensorrt:TENSORRT",
    "tensorrt-rtx": "lstm_literature.implementations.on_tensorrt:TENSORRT_RTX",
    "tvm-untuned": "lstm_literature.implementations.on_tvm:UNTUNED",
    "tvm-tuned": "lstm_literature.implementations.on_tvm:TUNED",
    "mxnet-one-call": "lstm_literature.implementations.on_mxnet:ONE_CALL",
    "jax-scan": "lstm_literature.implementations.on_jax:SCAN",
    "pytensor-scan": "lstm_literature.implementations.on_pytensor:SCAN",
}

#: Attributes that an implementation must have.
CONTRACT = (*runtimes.CONTRACT, "TITLE", "FRAMEWORK", "STYLE", "EXECUTION", "EXTRA", "supports")

#: PyTorch's defaults for Adam, which the other frameworks are given.
ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8


@dataclass(frozen=True)
class Rates:
    """Rates for estimating the time of a run in one mode, for `literature.plan`.

    A step takes `gflop_ms` per GFLOP of the forward pass, and `gflop_unit_ms` more for each hidden unit of the network
    (where wider rows leave the cache), `cell_ms` per cell (one layer, direction and time step),
    `weights_ms` per million weights read by the cells and `outputs_ms` per million outputs of the dense layer. A run
    takes in addition `start_s` (process, framework, parity gate, storing), `build_s`, and `build_cell_s` per cell.
    `measured` is the time that recordings took, divided by this estimate.
    """

    gflop_ms: float
    cell_ms: float
    weights_ms: float = 0.0
    outputs_ms: float = 4.0
    start_s: float = 2.0
    build_s: float = 0.0
    build_cell_s: float = 0.0
    gflop_unit_ms: float = 0.0
    measured: float = 1.0

    def step_ms(self, workload: LiteratureWorkload) -> float:
        """Estimate for one batch, without the optimizer."""
        outputs = math.prod(workload.output_shape) / 1e6 if workload.outputs else 0.0
        gflop_ms = self.gflop_ms + self.gflop_unit_ms * workload.hidden
        cells_ms = gflop_ms * workload.flops / 1e9 + self.cell_ms * workload.cells
        weights = workload.sequence * workload.cell_weights / 1e6
        return self.outputs_ms * outputs + cells_ms + self.weights_ms * weights

    def building_s(self, workload: LiteratureWorkload) -> float:
        """Estimate for building."""
        return self.build_s + self.build_cell_s * workload.cells


@cache
def _rates() -> dict[tuple[str, str], Rates]:
    """(implementation, mode) -> rates of the built-in ones."""
    with (Path(__file__).parent / "rates.csv").open() as file:
        return {
            (line.pop("implementation"), line.pop("mode")): Rates(**{name: float(rate) for name, rate in line.items()})
            for line in csv.DictReader(file)
        }


class Implementation(ABC):
    """Base class of the built-in implementations: checks requests and converts errors."""

    NAME: str
    TITLE: str
    FRAMEWORK: str
    STYLE: str
    EXECUTION: str
    DISTRIBUTION: str
    #: Packages that it imports.
    PACKAGES: ClassVar[tuple[str, ...]] = ()
    EXTRA: str | None = None
    DEVICES: tuple[str, ...] = ("cpu",)
    PRECISIONS: ClassVar[Mapping[str, tuple[str, ...]]] = {"cpu": ("fp32",), "cuda": ("fp32",)}

    @property
    def RATES(self) -> dict[str, Rates]:
        """Mode -> its line in `rates.csv`."""
        return {mode: rates for (name, mode), rates in _rates().items() if name == self.NAME}

    def availability(self, device: str = "cpu") -> Availability:
        """Ready if `PACKAGES` are installed, and for "cuda" if there is a GPU; imports no framework, never raises."""
        version = installed_version(self.DISTRIBUTION)
        for package in self.PACKAGES:
            if not is_installed(package):
                return Availability(
                    False, version, reason=f"{package} is not installed", remedy=how_to_install("frameworks")
                )
        return Availability(True, version) if device == "cpu" else on_gpu(version)

    def supports(self, workload: LiteratureWorkload, mode: str, device: str = "cpu") -> str | None:
        """None if it is supported, here the modes of the document; else the reason in a few words."""
        return mode_reason(workload, mode)

    @abstractmethod
    def _prepare(self, request: Request, batch: Batch) -> PreparedStep:
        """`prepare` for a supported, checked request."""

    def prepare(self, request: Request) -> PreparedStep:
        """The prepared step of a request.

        Raises `RuntimeUnavailable`, `UsageError` for inputs or weights with wrong shapes, `MemoryExhausted`, and
        `BuildFailed` if the workload is not supported or cannot be built.
        """
        workload = request.workload
        device = request.options.device
        self.availability(device).require(self.NAME)
        if reason := self.supports(workload, request.mode, device):
            raise BuildFailed(f"{self.NAME} does not support {workload.label} ({request.mode}): {reason}")
        given = {name: array.shape for name, array in request.weights.items()}
        wanted = weight_shapes(workload)
        if differing := sorted(name for name in given.keys() | wanted.keys() if given.get(name) != wanted.get(name)):
            raise UsageError(f"the weights do not fit the network: {', '.join(differing)}")
        batch = batch_of(workload, request.inputs)
        with building(self.NAME, request.label):
            return self._prepare(request, batch)


class FrameworkStep(PreparedStep):
    """Common part of the steps of all frameworks: costs, last outputs or loss, errors after closing.

    A subclass's constructor builds within `timed` and ends with `_finish`. If it sets `_batch_major`, the network reads
    and returns the batch before the sequence.
    """

    _batch_major = False
    _closed = False

    def __init__(self, implementation: Implementation, request: Request) -> None:
        self._implementation: Any = implementation
        self._workload = request.workload
        self._weights = request.weights
        self._options = request.options
        self._trains = request.mode == "training"
        self.costs: dict[str, float] = {}
        self._facts: dict = {}
        #: Outputs of the last step, or in training its loss.
        self._result: np.ndarray | float | None = None

    @abstractmethod
    def _run(self) -> np.ndarray | float:
        """One step; returns its outputs in host memory, or in training its loss."""

    @abstractmethod
    def _place(self, batch: Batch) -> None:
        """Copy a batch to where `_run` reads it."""

    def _read_by_step(self, batch: Batch) -> list[np.ndarray]:
        """The inputs, and in training the targets; those of the last step and of CTC have no sequence."""
        inputs = batch.inputs
        targets = batch.targets
        if self._batch_major:
            inputs = inputs.swapaxes(0, 1)
            every_step = self._workload.loss == "cross-entropy" and self._workload.head == "every-step"
            if targets is not None and every_step:
                targets = targets.swapaxes(0, 1)
        return [inputs, targets] if self._trains and targets is not None else [inputs]

    def _rewind(self) -> None:
        """Restore the given weights and the initial state of the optimizer."""
        self._result = None

    def _finish(self, more_steps: int = 0) -> None:
        """Run the first step, timed as a cost, and `more_steps` untimed ones; then restore the initial state."""
        with timed(self.costs, "first_call_s"):
            self.step()
        for _ in range(more_steps):
            self.step()
        self._rewind()

    def step(self) -> None:
        self._require_open()
        try:
            self._result = self._run()
        except Exception as error:
            kind = MemoryExhausted if is_memory_error(error) else RunFailed
            raise kind(f"{self._implementation.NAME} failed in a call: {first_line(error)}") from error

    def load_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._place(batch_of(self._workload, inputs))

    def outputs(self) -> dict[str, np.ndarray]:
        if self._trains:
            return super().outputs()
        outputs = self._last("output")
        if self._batch_major and outputs.ndim == 3:
            outputs = outputs.swapaxes(0, 1)
        return {"outputs": np.array(outputs, dtype=np.float32, order="C")}

    def loss(self) -> float:
        """The last training step's loss, computed before its weight update."""
        if not self._trains:
            raise UsageError(f"{type(self).__name__} is not prepared for training")
        return self._last("loss")

    def facts(self) -> dict:
        return dict(self._facts)

    def close(self) -> None:
        vars(self).clear()  # frees what the framework holds
        self._closed = True

    def _last(self, name: str) -> Any:
        if self._result is None:
            raise RunFailed(f"there is no {name} yet")
        return self._result

    def _require_open(self) -> None:
        if self._closed:
            raise RunFailed("the step is closed")


@contextmanager
def timed(costs: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds that the block takes to `costs[name]`."""
    began = time.perf_counter()
    yield
    costs[name] = costs.get(name, 0.0) + time.perf_counter() - began


def names(more: Iterable[str] = ()) -> list[str]:
    """The names of the built-in implementations, of those in installed packages, and of `more`."""
    return list(dict.fromkeys([*entries(), *more]))


def entries() -> dict[str, str]:
    """Name -> module or object: the built-in implementations, then those of other packages."""
    return {**IMPLEMENTATIONS, **registry.table("lstm_trt.implementations"), **IMPLEMENTATIONS}


def load_implementation(name: str) -> Any:
    """The implementation with this name; raises `UsageError` if it is unknown or lacks a required attribute."""
    return runtimes.load_from(entries(), name, CONTRACT, "implementation")


def title_and_framework(name: str) -> tuple[str, str]:
    """Title and framework of an implementation, for figures; (`name`, "") if it cannot be loaded."""
    try:
        implementation = load_implementation(name)
    except UsageError:
        return name, ""
    return implementation.TITLE, implementation.FRAMEWORK


def mode_reason(workload: LiteratureWorkload, mode: str) -> str | None:
    """Reason why no implementation has this mode of the workload; None if it is one of the document's modes."""
    return None if mode in workload.modes else f"{workload.name} supports only {' and '.join(workload.modes)}"


def batch_of(workload: LiteratureWorkload, inputs: Mapping[str, np.ndarray]) -> Batch:
    """Inputs by name as a batch.

    Raises `UsageError` for inputs with wrong shapes, and for CTC unless the lengths are in descending order, start
    with the sequence and are at least 1.
    """
    batch = Batch(**inputs)
    lengths = batch.lengths
    if batch.inputs.shape != workload.input_shape:
        raise UsageError(f"{workload.label} needs inputs of shape {workload.input_shape}, not {batch.inputs.shape}")
    if workload.loss == "ctc" and not (
        lengths is not None
        and lengths.shape == (workload.batch,)
        and lengths[0] == workload.sequence
        and (np.diff(lengths) <= 0).all()
        and lengths[-1] >= 1
    ):
        raise UsageError(
            f"lengths must be in descending order from {workload.sequence} to at least 1, one per sequence"
        )
    return batch


def is_installed(package: str) -> bool:
    """Whether a package is installed, without importing it."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False
