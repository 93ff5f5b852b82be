"""The parity gate: before timing, outputs for new random inputs must agree with the reference's."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import ParityFailed
from lstm_trt.runtimes.base import Gate, PreparedStep

#: Largest relative error, by the Euclidean norm over all outputs, against the reference in
#: float32. Observed errors: float32 up to 1e-6, TF32 1e-4 to 1e-3, bfloat16 1e-3 to 4e-3;
#: so a runtime that silently computes in TF32 or bfloat16 does not pass as fp32.
PARITY_BOUNDS = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 1e-2, "bf16": 3e-2, "int8": 5e-2}

#: Where `Gate.rounded` is known: the largest error as a multiple of that of the rounded network, if
#: that is more than the bound above. So it adapts to how errors grow in a network, and to outputs
#: that are small because terms cancel.
MULTIPLES = {"tf32": 1, "fp16": 2, "bf16": 6, "int8": 16}

#: Precisions with more digits than bfloat16, and a typical error. An error above it must be smaller
#: than the difference from `Gate.rounded`; instead of the bound above, 4 times this error is always
#: allowed.
FINER_THAN_BF16 = {"tf32": 2**-12, "fp16": 2**-11}

#: Largest bound: beyond it the outputs have little to do with the reference.
MOST_ERROR = 0.5

#: A difference up to this is none: a runtime may take denormal numbers, below 1.2e-38, for zero.
SMALLEST = 1e-30

#: A comparison proves something if the outputs vary with the inputs by more than this multiple of
#: the error reached.
IGNORED_MULTIPLE = 2

#: Output values that are compared at least, in several calls if necessary: the relative error of a
#: single number can be small or large by chance in any precision.
LEAST_VALUES = 16


def check_parity(step: PreparedStep, configuration: Configuration, gate: Gate) -> dict:
    """Run the prepared step on the gate's inputs and compare its last outputs with the reference's.

    Compared is the relative error of what the gate asks for, by norm. Returns `{"of", "error",
    "bound", "inputs_seed", "reference", "reference_checked_by", "not_checked"}`; `error` is None if
    nothing was checked, and `not_checked` then says why: there is nothing to compare with, or the
    comparison is `hollow`. Raises `ParityFailed`.
    """
    precision = configuration.options.precision
    bound = max(PARITY_BOUNDS[precision], gate.least_bound) if gate.bound is None else gate.bound
    outputs = _last_outputs(step, gate)
    error = reason = None
    if gate.expected is None:
        reason = gate.not_checked
    else:
        error = _error(outputs, gate.expected)
        if gate.rounded is not None:
            bound = _bound_by_rounded(outputs, gate, precision, bound)
        if not error <= bound:
            differ = "differ" if gate.of == "outputs" else "differs"
            raise ParityFailed(
                f"{gate.of} {differ} from {_far(gate, error)}; limit for {precision}: {bound:g}"
            )
        reason = hollow(gate, max(PARITY_BOUNDS["fp32"], IGNORED_MULTIPLE * error))
    return {
        "of": gate.of,
        "error": error if reason is None else None,
        "bound": bound,
        "inputs_seed": gate.seed,
        "reference": gate.reference,
        "reference_checked_by": gate.checked_by,
        "not_checked": reason,
    }


def _last_outputs(step: PreparedStep, gate: Gate) -> dict[str, np.ndarray]:
    """Run a step on the gate's inputs; what is compared of its last call, or of all of them."""
    step.reset()
    every: list[dict[str, np.ndarray]] = []
    for inputs in gate.inputs:
        if step.prepare_next is not None:
            step.prepare_next()
        step.load_inputs(inputs)
        step.step()
        if gate.every:
            every.append(gate.answers(step))
    if gate.expected is None:
        return {}
    return stacked(every) if gate.every else gate.answers(step)


def _error(outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The largest error of outputs; raises `ParityFailed` if they have other shapes."""
    found = {name: array.shape for name, array in outputs.items()}
    wanted = {name: array.shape for name, array in expected.items()}
    if found != wanted:
        raise ParityFailed(
            f"outputs have shape {_shapes(found, wanted)}, expected {_shapes(wanted, found)}"
        )
    return largest_error(outputs, expected)


def _bound_by_rounded(
    outputs: Mapping[str, np.ndarray], gate: Gate, precision: str, bound: float
) -> float:
    """The bound by the error of the rounded network, if that is more than `bound`.

    Raises `ParityFailed` if the outputs of a finer precision are rather those of the rounded one.
    """
    expected: Any = gate.expected
    rounded: Any = gate.rounded
    of_rounded = largest_error(rounded, expected)
    typical = FINER_THAN_BF16.get(precision)
    least = 4 * typical if typical else bound
    bound = min(max(MULTIPLES[precision] * of_rounded, least), MOST_ERROR)
    if typical:
        error = largest_error(outputs, expected)
        to_rounded = largest_error(outputs, rounded)
        if max(to_rounded, typical) < error <= bound:
            raise ParityFailed(
                f"{gate.of} are not those of {precision}: they differ from {_far(gate, error)}, and"
                f" only by {to_rounded:.2g} from those of the network rounded to bf16"
            )
    return bound


def _far(gate: Gate, error: float) -> str:
    return f"{gate.reference} by {error:.2g} (relative, by norm)"


def hollow(gate: Gate, least: float) -> str | None:
    """Why a step can agree with the reference without computing the network; None if it cannot.

    Its floating-point outputs, if there are any, are all 0, or all the same number, or a step that
    ignores its inputs would come as near: those for all sets of inputs differ by no more than
    `least`.
    """
    every: Mapping[str, np.ndarray] = gate.expected or {}
    outputs = [array for array in every.values() if array.dtype.kind == "f"] or list(every.values())
    if not any(array.any() for array in outputs):
        return "all outputs are 0"
    if all(array.size > 1 and (array == array.flat[0]).all() for array in outputs):
        return "all outputs are one number"
    if gate.every and all(
        relative_error(np.broadcast_to(array[0], array.shape), array) <= least for array in outputs
    ):
        return "the outputs hardly vary with the inputs"
    return None


def nan_reaches_output(step: PreparedStep, gate: Gate) -> bool | None:
    """Whether a call has a NaN in any of its outputs if its inputs have a NaN.

    The inputs are the gate's last set, with NaN as the first element of the first floating-point
    input. None if calls are not repeatable, without such an input, and if the call fails. Carried
    state is reset before and after; the buffers contain the NaN until other inputs are loaded.
    """
    inputs = gate.inputs[-1] if gate.inputs else {}
    name = next(
        (name for name, array in inputs.items() if array.size and array.dtype.kind == "f"), None
    )
    if name is None or not gate.repeatable:
        return None
    array = inputs[name].copy()
    array.flat[0] = np.nan
    try:
        step.reset()
        step.load_inputs({**inputs, name: array})
        step.step()
        return any(bool(np.isnan(output).any()) for output in step.outputs().values())
    except Exception:  # of any runtime: a call that is not timed does not make a recording fail
        return None
    finally:
        step.reset()


def _shapes(shapes: dict[str, tuple[int, ...]], others: dict[str, tuple[int, ...]]) -> str:
    """The shapes, with names if there are several or the names differ."""
    named = len(shapes) > 1 or shapes.keys() != others.keys()
    return (
        ", ".join(f"{name} {shape}" if named else str(shape) for name, shape in shapes.items())
        or "none"
    )


def stacked(every: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The outputs of several calls by name, on a new first axis."""
    return {name: np.stack([outputs[name] for outputs in every]) for name in every[0]}


def largest_error(outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The largest relative error of the outputs by name; NaN, which is above every limit, if any is
    NaN."""
    return float(np.max([relative_error(outputs[name], array) for name, array in expected.items()]))


def relative_error(outputs: np.ndarray, expected: np.ndarray) -> float:
    """Norm of the difference, without elements up to `SMALLEST`, divided by that of `expected`, in
    float64."""
    expected = expected.astype(np.float64)
    size = max(np.linalg.norm(expected), np.finfo(np.float64).tiny)
    difference = outputs.astype(np.float64) - expected
    return float(np.linalg.norm(np.where(np.abs(difference) <= SMALLEST, 0.0, difference)) / size)
