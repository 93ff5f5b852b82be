"""The parity gate: nothing is timed before its answer agrees with PyTorch's in float32, on fresh random inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import ParityFailed
from lstm_trt.export.network import make_inputs
from lstm_trt.runtimes.base import PreparedStep

#: Largest relative error, by the Euclidean norm over all outputs, against PyTorch in
#: float32. Float32 itself was seen up to 1e-6; TF32 at 1e-4 to 1e-3 and bfloat16 at 1e-3
#: to 4e-3, so a runtime that silently computes in those does not pass as fp32.
PARITY_BOUNDS = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 1e-2, "bf16": 3e-2, "int8": 5e-2}


@dataclass(frozen=True)
class Reference:
    """What the parity gate asks, and PyTorch's answer.

    `answers` are (sequence, d, 1) for the d distinct sequences that
    `make_inputs(shape, seed)` makes.
    """

    seed: int
    answers: np.ndarray


def check_parity(prepared: PreparedStep, configuration: Configuration, reference: Reference) -> dict:
    """Ask the prepared step with fresh inputs and hold its answer against PyTorch's.

    Returns `{"error", "bound", "inputs_seed"}`; raises `ParityFailed`. Two questions are
    asked, so that a step that does not read its inputs, or gives the last answer
    again, fails as well.
    """
    shape, precision = configuration.workload, configuration.options.precision
    bound = PARITY_BOUNDS[precision]
    inputs, _, which = make_inputs(shape, reference.seed)
    prepared.load_inputs(np.zeros_like(inputs))
    prepared.step()
    prepared.load_inputs(inputs)
    prepared.step()
    outputs = prepared.outputs()
    expected = reference.answers[:, which]
    if len(outputs) != 1 or outputs[0].shape != expected.shape:
        shapes = ", ".join(str(array.shape) for array in outputs)
        raise ParityFailed(f"outputs have the shape {shapes}, not {expected.shape}")
    error = relative_error(outputs[0], expected)
    if not error <= bound:  # NaN fails too
        raise ParityFailed(
            f"outputs differ from PyTorch in float32 by {error:.2g} (relative, by norm); {precision} allows {bound:g}"
        )
    return {"error": error, "bound": bound, "inputs_seed": reference.seed}


def relative_error(outputs: np.ndarray, expected: np.ndarray) -> float:
    """Euclidean norm of the difference over that of `expected`, in float64."""
    expected = expected.astype(np.float64)
    return float(np.linalg.norm(outputs - expected) / max(np.linalg.norm(expected), np.finfo(np.float64).tiny))
