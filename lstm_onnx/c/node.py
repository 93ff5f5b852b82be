"""An operator of a graph as handlers see it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lstm_onnx.c.stages import Value, is_constant
from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.libraries import onnx
from lstm_trt.export.onnx_checks import INPUT_NAMES, label
from lstm_trt.export.sizes import attributes


@dataclass(frozen=True)
class Node:
    """An operator and its inputs, None for one that is left out."""

    proto: onnx.NodeProto
    inputs: tuple[Value, ...]

    @property
    def kind(self) -> str:
        return self.proto.op_type

    @cached_property
    def has(self) -> dict[str, Any]:
        """Its attributes."""
        return attributes(self.proto)

    def get(self, place: int) -> Value:
        """An input, None if it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def named(self, name: str) -> Value:
        """An input of a recurrent layer."""
        return self.get(INPUT_NAMES.index(name))

    def refused(self, reason: str) -> BuildFailed:
        """The error for an operator that cannot be generated."""
        return BuildFailed(f"{label(self.proto)}: {reason}")

    def constant(self, value: Value, what: str) -> np.ndarray:
        """An input that has to be a constant; raises `BuildFailed` for others."""
        if not is_constant(value) or value.dtype != np.float32:
            raise self.refused(f"{what} must be a constant in float32, not computed from the input")
        return value

    def number(self, value: Value, what: str) -> np.ndarray:
        """An input that has to be a constant, of float32 or of whole numbers."""
        if is_constant(value) and value.dtype.kind in "biu":
            return value.astype(np.float32)
        return self.constant(value, what)
