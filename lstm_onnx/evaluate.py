"""Evaluation of ONNX networks in numpy, independent of the runtimes.

ONNX's reference evaluator computes all operators except LSTM, GRU and RNN, of which its own
versions ignore clip, activations, input_forget and sequence_lens. These three are computed here, by
the definition of the operators (https://onnx.ai/onnx/operators): all directions and layouts,
initial states, peepholes, lengths, clip, activations with their parameters, input_forget,
linear_before_reset. A clip is applied to the input of each activation, that of h in an LSTM
included. They are computed in the type of their inputs, float16 in float32; so the difference of a
network from itself `in_float64` tells how far rounding errors grow in it. For that, Sigmoid is
computed here too, as runtimes do it: with an error of so much of 1, and not of its result, which
matters where that is small. BatchNormalization, QuantizeLinear and DequantizeLinear are computed in
all versions by ONNX's newest ones (`NEWEST`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from lstm_trt.config.errors import LabError, first_line
from lstm_trt.config.libraries import onnx
from lstm_trt.export.onnx_checks import INPUT_NAMES, RECURRENT, inlined, nodes, retype
from lstm_trt.export.sizes import attributes

#: Activation -> function of x and its `PARAMETERS`, and the defaults of these; None: has to be
#: given.
ACTIVATIONS: dict[str, tuple] = {
    "Sigmoid": (lambda x: 0.5 * (1 + np.tanh(0.5 * x)),),
    "Tanh": (np.tanh,),
    "Relu": (lambda x: np.maximum(x, 0),),
    "Softsign": (lambda x: x / (1 + np.abs(x)),),
    "Softplus": (lambda x: np.logaddexp(x, 0),),
    "LeakyRelu": (lambda x, alpha: np.where(x < 0, alpha * x, x), 0.01),
    "ThresholdedRelu": (lambda x, alpha: np.where(x > alpha, x, 0), 1.0),
    "Elu": (lambda x, alpha: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x), 1.0),
    "HardSigmoid": (lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1), 0.2, 0.5),
    "ScaledTanh": (lambda x, alpha, beta: alpha * np.tanh(beta * x), None, None),
    "Affine": (lambda x, alpha, beta: alpha * x + beta, None, None),
}


class Activation(NamedTuple):
    """A key of `ACTIVATIONS` with its parameters, "alpha" and "beta"."""

    name: str
    parameters: dict[str, float]


#: Recurrent layers of more operations are not evaluated: a minute or more in numpy.
LARGEST_FLOPS = 10**11

#: Operators whose newest versions compute the older ones. Of these ONNX's evaluator takes
#: BatchNormalization for one in training before version 14 of the operators, and lacks
#: DequantizeLinear before version 19, and both of the last in ONNX Runtime's domain, in which its
#: tools write those of 16 and 4 bits.
NEWEST = (
    ("", "BatchNormalization"),
    ("", "QuantizeLinear"),
    ("", "DequantizeLinear"),
    ("com.microsoft", "QuantizeLinear"),
    ("com.microsoft", "DequantizeLinear"),
)


class NotEvaluated(LabError):
    """This network cannot be evaluated in numpy; the text is the reason."""


def evaluate(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a network by name, for inputs by name.

    Raises `NotEvaluated` if an operator is unknown to the evaluator or fails in it, if ONNX does
    not define the result, or if a recurrent layer has more than `LARGEST_FLOPS` operations.
    """
    from onnx.reference import ReferenceEvaluator

    try:
        # Recurrent operators inside of functions would not be replaced.
        evaluator: Any = ReferenceEvaluator(inlined(model), new_ops=_operators())
        with np.errstate(over="ignore"):
            outputs = evaluator.run(None, dict(inputs))
    except NotEvaluated:
        raise
    except Exception as error:  # the evaluator raises any class
        raise NotEvaluated(first_line(error.__cause__ or error)) from error
    return dict(zip(evaluator.output_names, outputs, strict=True))


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network with all its float32 numbers, inputs and conversions in float64; it is
    changed."""
    retype(model, (*model.graph.input, *model.graph.output), 11)  # TensorProto.DOUBLE
    for node in nodes(model.graph):
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == 1:  # TensorProto.FLOAT
                attribute.i = 11
    return model


@lru_cache(maxsize=1)
def _operators() -> list[type]:
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import load_op

    def run(self, *inputs, **_):
        node = self.onnx_node
        return recurrent_outputs(node.op_type, inputs, attributes(node))[: len(node.output)]

    def sigmoid(self, x):
        return (ACTIVATIONS["Sigmoid"][0](x).astype(x.dtype),)

    runs = {**dict.fromkeys(RECURRENT, run), "Sigmoid": sigmoid}
    found = [type(kind, (OpRun,), {"op_domain": "", "_run": each}) for kind, each in runs.items()]
    found += [type(kind, (load_op("", kind),), {"op_domain": domain}) for domain, kind in NEWEST]
    return found


def recurrent_outputs(
    kind: str, inputs: tuple[np.ndarray | None, ...], has: Mapping
) -> tuple[np.ndarray, ...]:
    """Y, Y_h and, of an LSTM, Y_c; of the type of X.

    `kind` is a key of `RECURRENT`; `inputs` in the operator's order: X, W, R, B, sequence_lens,
    initial_h, initial_c, P, None if left out. Beyond ONNX, the attribute `steps` has the numbers of
    parts of 1 to which X, and each state h before its product with R, are rounded; 0: not at all.
    Raises `NotEvaluated` for attributes that are not valid and for too many operations.
    """
    given = {
        name: array for name, array in zip(INPUT_NAMES, inputs, strict=False) if array is not None
    }
    lengths = given.pop("sequence_lens", None)
    layout = has.get("layout")
    operands = _operands(given, layout)
    steps, batch, _ = operands["X"].shape
    if lengths is None:
        lengths = np.full(batch, steps)
    flops = 2 * steps * batch * (operands["W"].size + operands["R"].size)
    directions = len(operands["R"])
    _check(kind, has, flops, directions)
    activations = activations_of(kind, has, directions)
    if not lengths.all():
        raise NotEvaluated(
            f"ONNX does not define the final state of a {kind} for a sequence of length 0"
        )
    found = [
        _direction(kind, has, operands, lengths, index, each)
        for index, each in enumerate(activations)
    ]
    y, *states = (np.stack(arrays) for arrays in zip(*found, strict=True))
    y = y.swapaxes(0, 1)
    if layout:
        y = y.transpose(2, 0, 1, 3)
        states = [state.swapaxes(0, 1) for state in states]
    results = (y, *states) if kind == "LSTM" else (y, states[0])
    return tuple(array.astype(given["X"].dtype) for array in results)


def _operands(given: Mapping[str, np.ndarray], layout: int | None) -> dict[str, np.ndarray]:
    """Inputs of an operator with time first, in float32 or more; zeros for those that are left
    out."""
    number = np.promote_types(given["X"].dtype, np.float32)
    operands = {name: array.astype(number) for name, array in given.items()}
    if layout:
        for name in operands.keys() & {"X", "initial_h", "initial_c"}:
            operands[name] = operands[name].swapaxes(0, 1)
    directions, rows, hidden = operands["R"].shape
    state = (operands["X"].shape[1], hidden)
    shapes = {"B": (2 * rows,), "initial_h": state, "initial_c": state, "P": (3 * hidden,)}
    for name, shape in shapes.items():
        operands.setdefault(name, np.zeros((directions, *shape), number))
    return operands


def _direction(
    kind: str,
    has: Mapping,
    operands: Mapping,
    lengths: np.ndarray,
    index: int,
    activations: Sequence[Activation],
) -> tuple[np.ndarray, ...]:
    """Y (sequence, batch, hidden) of one direction, zero after the end of each sequence, and each
    state after its last step.

    Backward, the steps behind the end of a sequence come first, and leave its state as it is.
    """
    w, r, b, p, *state = (
        operands[name][index] for name in ("W", "R", "B", "P", "initial_h", "initial_c")
    )
    functions = [partial(_activated, each, has.get("clip")) for each in activations]
    wb, rb = np.split(b, 2)
    steps_of_x, steps_of_h = has.get("steps", (0, 0))
    product = partial(_product, np.ascontiguousarray(r.T), steps_of_h)
    flag = bool(has.get("input_forget") or has.get("linear_before_reset"))
    cell = partial(CELLS[kind], functions, flag, product, rb, np.split(p, 3))
    xw = _rounded(operands["X"], steps_of_x) @ w.T + wb
    y = np.zeros((len(xw), *state[0].shape), xw.dtype)
    times = range(len(xw))
    if index == 1 or has.get("direction") == "reverse":
        times = reversed(times)
    for time in times:
        inside = (time < lengths)[:, None]
        new = cell(xw[time], *state)
        y[time] = np.where(inside, new[0], 0)
        state = [np.where(inside, after, before) for after, before in zip(new, state, strict=True)]
    return (y, *state)


def _check(kind: str, has: Mapping, flops: int, directions: int) -> None:
    """Raise `NotEvaluated` for too many operations, and a direction that is not that of the
    weights."""
    if flops > LARGEST_FLOPS:
        raise NotEvaluated(f"{kind} operator with more than {LARGEST_FLOPS:.0e} operations")
    order = has.get("direction") or "forward"
    if directions != {"forward": 1, "reverse": 1, "bidirectional": 2}.get(order):
        raise NotEvaluated(
            f"{kind} operator with direction {order!r} and weights of {directions} directions"
        )


def activations_of(
    kind: str, attributes: Mapping[str, Any], directions: int
) -> list[list[Activation]]:
    """The activations of each direction with their parameters, which are consumed in the order of
    the activations.

    Raises `NotEvaluated` for those that ONNX does not define.
    """
    default = RECURRENT[kind]
    names = tuple(attributes.get("activations") or default * directions)
    if kind == "RNN":  # the attribute's default is for two directions
        names = names[:directions]
    if not ACTIVATIONS.keys() >= {*names} or len(names) != len(default) * directions:
        raise NotEvaluated(f"{kind} operator with activations {', '.join(names)}")
    given = {key: iter(attributes.get(f"activation_{key}") or ()) for key in ("alpha", "beta")}
    found = []
    for name in names:
        _, *defaults = ACTIVATIONS[name]
        parameters = {
            key: next(given[key], usual) for key, usual in zip(given, defaults, strict=False)
        }
        if None in parameters.values():
            raise NotEvaluated(
                f"{kind} operator with activation {name}, for which ONNX defines no default"
                " parameters"
            )
        found.append(Activation(name, parameters))
    return [found[place : place + len(default)] for place in range(0, len(found), len(default))]


def _activated(activation: Activation, clip: float | None, x: np.ndarray) -> np.ndarray:
    function = ACTIVATIONS[activation.name][0]
    return function(x if clip is None else np.clip(x, -clip, clip), *activation.parameters.values())


def _rounded(x: np.ndarray, steps: int) -> np.ndarray:
    return np.rint(x * steps) / steps if steps else x


def _product(r: np.ndarray, steps: int, h: np.ndarray) -> np.ndarray:
    return _rounded(h, steps) @ r


# A step of one direction: activations, input_forget of an LSTM or linear_before_reset of a GRU, the
# product of a state with R (hidden, gates x hidden), its biases, the peepholes; the products of the
# input and W, and the state, (batch, ...).


def _lstm(functions, coupled, r, b, p, xw, h, c) -> tuple[np.ndarray, np.ndarray]:
    f, g, last = functions
    i, o, forget, new = np.split(xw + r(h) + b, 4, axis=1)
    i = f(i + p[0] * c)
    forget = 1 - i if coupled else f(forget + p[2] * c)
    c = forget * c + i * g(new)
    return f(o + p[1] * c) * last(c), c


def _gru(functions, reset_last, r, b, p, xw, h, c) -> tuple[np.ndarray, np.ndarray]:
    f, g = functions
    of_x = np.split(xw, 3, axis=1)
    of_h = np.split(r(h) + b, 3, axis=1)
    z = f(of_x[0] + of_h[0])
    reset = f(of_x[1] + of_h[1])
    new = reset * of_h[2] if reset_last else np.split(r(reset * h) + b, 3, axis=1)[2]
    return (1 - z) * g(of_x[2] + new) + z * h, c


def _rnn(functions, flag, r, b, p, xw, h, c) -> tuple[np.ndarray, np.ndarray]:
    return functions[0](xw + r(h) + b), c


CELLS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
