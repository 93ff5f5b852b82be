"""The contract of an implementation of the literature's workloads: `Implementation` in, `Task` out.

An implementation is a module, or a small object in one, with the names in `CONTRACT`:

    NAME           what users type and recordings store: "pytorch-basic-eager"
    TITLE          as figures write it
    FRAMEWORK      "PyTorch", "TensorFlow", "ONNX Runtime", ...
    STYLE          "basic" (the cell written out), "fused" (the framework's cell in a loop), "while",
                   "static" (the cell unrolled), "one-call" (the framework's LSTM)
    EXECUTION      "eager", "scripted", "compiled", "graph", "xla", ...
    EXTRA          the extra of this package that installs it, None for the core
    DISTRIBUTION   the package whose version is the implementation's version
    supports(workload, mode) -> str | None     None where it can, else the reason in a few words
    availability() -> Availability             cheap, imports nothing heavy, never raises
    prepare(workload, mode, weights, batch, threads) -> Task

and, where it is not for the CPU alone, DEVICES (the default first); its `availability` and
`prepare` then take `device=` as well. Importing it must not import its framework.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from lstm_trt.config.errors import BuildFailed, UsageError
from lstm_trt.config.workload import MODES, Workload
from lstm_trt.literature.data import Batch

CONTRACT = (
    "NAME",
    "TITLE",
    "FRAMEWORK",
    "STYLE",
    "EXECUTION",
    "EXTRA",
    "DISTRIBUTION",
    "supports",
    "availability",
    "prepare",
)

#: Keys that `Task.costs` may have, all in seconds.
COSTS = ("export_s", "schedule_s", "tuning_s", "build_s", "first_call_s")


class Task(ABC):
    """A workload in one mode, prepared: weights and batch in place, compiled, having been called.

    `prepare` may call it (`first_call_s`), and puts the weights and the optimizer back
    afterwards: the first `step` of a caller begins with the weights that were given.
    """

    #: Seconds that it took to get here, by `COSTS`; what does not apply is left out.
    costs: dict[str, float]

    @abstractmethod
    def step(self) -> None:
        """What is timed; nothing returns before its work is done.

        Forward: the answer is in host memory as numpy. Training: zero gradients, forward,
        loss, gradients, optimizer update, and the loss is on the host.
        """

    @abstractmethod
    def load_batch(self, batch: Batch) -> None:
        """Another batch of the same shapes (lengths may differ); never timed."""

    def outputs(self) -> np.ndarray:
        """The last forward answer, float32, `Workload.output_shape`; zero beyond a sequence's length."""
        raise UsageError(f"{type(self).__name__} is not prepared for forward")

    def loss(self) -> float:
        """The last step's loss, at the weights before its update."""
        raise UsageError(f"{type(self).__name__} is not prepared for training")

    def gradients(self) -> dict[str, np.ndarray]:
        """Of the loss at the present weights, float32, by the names of `data.weight_shapes`; nothing is updated."""
        raise UsageError(f"{type(self).__name__} is not prepared for training")

    def facts(self) -> dict:
        """What it really does, for the provenance; JSON values."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Free everything; may be called twice."""


def devices(implementation: object) -> tuple[str, ...]:
    """Where an implementation can run, its default first."""
    return getattr(implementation, "DEVICES", ("cpu",))


def mode_reason(workload: Workload, mode: str) -> str | None:
    """Why no implementation has this mode of the workload; None where it is one of the document's."""
    if mode in workload.modes:
        return None
    return f"{workload.name} is for {' and '.join(workload.modes)}" if mode in MODES else f"unknown mode {mode!r}"


def exported_reason(workload: Workload, mode: str) -> str | None:
    """Why the ONNX export cannot do this: it has forward passes of fixed length; None where it can."""
    if mode == "training":
        return "it does not train"
    if workload.lengths is not None:
        return "the export has no variable lengths"
    return mode_reason(workload, mode)


def check(implementation: object, workload: Workload, mode: str, batch: Batch, **where: str) -> None:
    """Raises `BuildFailed` for what the implementation does not support, `UsageError` for a batch of other shapes.

    `where` is `device=` for an implementation whose `supports` takes it.
    """
    reason = implementation.supports(workload, mode, **where)
    if reason:
        raise BuildFailed(f"{implementation.NAME} does not do {workload.label} ({mode}): {reason}")
    if batch.inputs.shape != workload.input_shape:
        raise UsageError(f"{workload.label} takes inputs of {workload.input_shape}, not {batch.inputs.shape}")


def check_inputs(workload: Workload, batch: Batch) -> None:
    """Raises `UsageError` for another batch, of other shapes than the task was prepared for."""
    if batch.inputs.shape != workload.input_shape:
        raise UsageError(f"inputs must be {workload.input_shape}, not {batch.inputs.shape}")
