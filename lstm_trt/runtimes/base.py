"""The contract between a runtime and the recorder: `Request` in, `PreparedStep` out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import RuntimeUnavailable
from lstm_trt.config.shape import LstmShape


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

    `weights` maps the names of `networks.weight_shapes` to float32 arrays; `onnx_path`
    is the exported network with symbolic sizes, for runtimes with NEEDS_ONNX.
    `inputs` are (sequence, batch, features) float32 and only used to build, compile or
    capture: the parity gate asks with others.
    """

    shape: LstmShape
    options: Options
    inputs: np.ndarray
    weights: dict[str, np.ndarray] = field(repr=False, default_factory=dict)
    onnx_path: Path | None = None

    @property
    def label(self) -> str:
        """What is to be built, in words: "2x64-s32-b1 in fp32 on cpu"."""
        return f"{self.shape.name} in {self.options.precision} on {self.options.device}"


class PreparedStep(ABC):
    """One unit of the workload on buffers that are already in place.

    `step` is what is timed: no argument, it returns when the answer is in host memory.
    It may be an instance attribute that holds a bound C function, to spare a frame.
    It is called on the thread that called `prepare`, and one prepared step is alive at a
    time: a runtime may set what belongs to its thread or process (streams, TF32, threads).
    """

    @abstractmethod
    def step(self) -> None:
        """Copy in, compute, copy out, wait."""

    @abstractmethod
    def load_inputs(self, inputs: np.ndarray) -> None:
        """Put other inputs, (sequence, batch, features) float32, into the host buffer; never timed."""

    @abstractmethod
    def outputs(self) -> tuple[np.ndarray, ...]:
        """The last answer as float32 copies: one array, (sequence, batch, 1)."""

    def device_times(self) -> dict[str, np.ndarray]:
        """Device clocks of the trials since the last call: column name -> int64 nanoseconds."""
        return {}

    def facts(self) -> dict:
        """What the runtime really does, for the provenance: threads, kernels, graphs; JSON values."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Free everything; may be called twice."""
