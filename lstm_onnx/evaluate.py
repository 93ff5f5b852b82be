"""Evaluation of ONNX networks in numpy, independent of the runtimes.

ONNX's reference evaluator computes all operators except LSTM, GRU and RNN, of which its own versions ignore clip,
activations, input_forget and sequence_lens. These three are computed here, by the definition of the operators
(https://onnx.ai/onnx/operators): all directions and layouts, initial states, peepholes, lengths, clip, activations with
their parameters, input_forget, linear_before_reset. A clip is applied to the input of each activation, that of h in an
LSTM included. They are computed in the type of their inputs, float16 in float32; so the difference of a network from
itself `in_float64` tells how far rounding errors grow in it. For that, Sigmoid is computed here too, as runtimes do it:
with an error of so much of 1, and not of its result, which matters where that is small. BatchNormalization is computed
here because ONNX's evaluator takes it for one in training before version 14 of the operators. QuantizeLinear and
DequantizeLinear are computed in all versions by ONNX's newest ones, also those of ONNX Runtime's own domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from lstm_trt.config.errors import LabError, first_line
from lstm_trt.config.libraries import onnx
from lstm_trt.export.onnx_checks import INPUT_NAMES, RECURRENT, nodes, retype
from lstm_trt.export.sizes import attributes

#: A parameter that has to be given: its default is that of an operator that ONNX no longer has.
NO_DEFAULT = float("nan")

#: Activation -> function of (x, alpha, beta), and the defaults of both; None: has no such parameter.
ACTIVATIONS: dict[str, tuple[Callable, float | None, float | None]] = {
    "Sigmoid": (lambda x, alpha, beta: 0.5 * (1 + np.tanh(0.5 * x)), None, None),
    "Tanh": (lambda x, alpha, beta: np.tanh(x), None, None),
    "Relu": (lambda x, alpha, beta: np.maximum(x, 0), None, None),
    "Softsign": (lambda x, alpha, beta: x / (1 + np.abs(x)), None, None),
    "Softplus": (lambda x, alpha, beta: np.logaddexp(x, 0), None, None),
    "LeakyRelu": (lambda x, alpha, beta: np.where(x < 0, alpha * x, x), 0.01, None),
    "ThresholdedRelu": (lambda x, alpha, beta: np.where(x > alpha, x, 0), 1.0, None),
    "Elu": (lambda x, alpha, beta: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x), 1.0, None),
    "HardSigmoid": (lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1), 0.2, 0.5),
    "ScaledTanh": (lambda x, alpha, beta: alpha * np.tanh(beta * x), NO_DEFAULT, NO_DEFAULT),
    "Affine": (lambda x, alpha, beta: alpha * x + beta, NO_DEFAULT, NO_DEFAULT),
}


class Activation(NamedTuple):
    """A key of `ACTIVATIONS` with its parameters, None for one that it does not have."""

    name: str
    alpha: float | None
    beta: float | None


#: Recurrent layers of more operations are not evaluated: a minute or more in numpy.
LARGEST_FLOPS = 10**11

#: ONNX's evaluator lacks DequantizeLinear before version 19 of the operators, and both in the second domain, in which
#: ONNX Runtime's tools write those of 16 and 4 bits. Their newest versions compute all of these.
LINEAR, LINEAR_DOMAINS = ("QuantizeLinear", "DequantizeLinear"), ("", "com.microsoft")


class NotEvaluated(LabError):
    """This network cannot be evaluated in numpy; the text is the reason."""


def evaluate(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a network by name, for inputs by name.

    Raises `NotEvaluated` if an operator is unknown to the evaluator or fails in it, if ONNX does not define the result,
    or if a recurrent layer has more than `LARGEST_FLOPS` operations.
    """
    import onnx.inliner
    from onnx.reference import ReferenceEvaluator

    try:
        if model.functions:  # its recurrent operators would not be replaced
            model = onnx.inliner.inline_local_functions(model)
        evaluator: Any = ReferenceEvaluator(model, new_ops=list(_operators()))
        with np.errstate(over="ignore"):
            outputs = evaluator.run(None, dict(inputs))
    except NotEvaluated:
        raise
    except Exception as error:  # the evaluator raises any class
        raise NotEvaluated(first_line(error.__cause__ or error)) from error
    return dict(zip(evaluator.output_names, outputs, strict=True))


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network with all its float32 numbers, inputs and conversions in float64; it is changed."""
    retype(model, (*model.graph.input, *model.graph.output), 11)  # TensorProto.DOUBLE
    for attribute in (attribute for node in nodes(model.graph) for attribute in node.attribute):
        if attribute.name in ("to", "dtype") and attribute.i == 1:  # TensorProto.FLOAT
            attribute.i = 11
    return model


@lru_cache(maxsize=1)
def _operators() -> tuple[type, ...]:
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import load_op

    def run(self, *inputs, **_):
        node = self.onnx_node
        return recurrent_outputs(node.op_type, inputs, attributes(node))[: len(node.output)]

    def sigmoid(self, x):
        return (ACTIVATIONS["Sigmoid"][0](x, None, None).astype(x.dtype),)

    def normalized(self, x, scale, bias, mean, variance, epsilon=1e-5, training_mode=0, **attributes):
        if training_mode:
            raise NotEvaluated("BatchNormalization operator in training mode")
        factor, axes = scale / np.sqrt(variance + x.dtype.type(epsilon)), (-1, *[1] * (x.ndim - 2))
        return (x * factor.reshape(axes) + (bias - mean * factor).reshape(axes),)

    runs = {**dict.fromkeys(RECURRENT, run), "Sigmoid": sigmoid, "BatchNormalization": normalized}
    own = [type(kind, (OpRun,), {"op_domain": "", "_run": each}) for kind, each in runs.items()]
    newest = [type(kind, (load_op("", kind),), {"op_domain": domain}) for kind in LINEAR for domain in LINEAR_DOMAINS]
    return (*own, *newest)


def recurrent_outputs(kind: str, inputs: tuple[np.ndarray | None, ...], has: Mapping) -> tuple[np.ndarray, ...]:
    """Y, Y_h and, of an LSTM, Y_c; of the type of X.

    `kind` is a key of `RECURRENT`; `inputs` in the operator's order: X, W, R, B, sequence_lens, initial_h, initial_c,
    P, None if left out. Beyond ONNX, the attribute `steps` has the numbers of parts of 1 to which X, and each state h
    before its product with R, are rounded; 0: not at all. Raises `NotEvaluated` for attributes that are not valid and
    for too many operations.
    """
    given: list[Any] = [*inputs, *(None,) * (8 - len(inputs))]
    lengths = given.pop(INPUT_NAMES.index("sequence_lens"))
    kind_of_number = given[0].dtype
    computed = np.promote_types(kind_of_number, np.float32)
    cast: Any = (None if array is None else array.astype(computed) for array in given)
    x, w, r, b, h, c, p = cast
    steps_of_x, steps_of_h = has.get("steps", (0, 0))
    layout = has.get("layout") or 0
    if layout:
        cast = (None if array is None else array.swapaxes(0, 1) for array in (x, h, c))
        x, h, c = cast
    steps, batch, _ = x.shape
    directions, _, hidden = r.shape
    _check(kind, has, 2 * steps * batch * (w.size + r.size), directions)
    functions = _functions(kind, has, directions)
    if lengths is None:
        lengths = np.full(batch, steps)
    if not lengths.all():
        raise NotEvaluated(f"ONNX does not define the final state of a {kind} for a sequence of length 0")

    def zeros(array: np.ndarray | None, *shape: int) -> np.ndarray:
        return np.zeros((directions, *shape), computed) if array is None else array

    h = zeros(h, batch, hidden)
    c = zeros(c, batch, hidden)
    b = zeros(b, 2 * w.shape[1])
    p = zeros(p, 3 * hidden)
    x = _rounded(x, steps_of_x)
    flag = bool(has.get("input_forget") or has.get("linear_before_reset"))
    found = []
    for index in range(directions):
        wb, rb = np.split(b[index], 2)
        product = partial(_product, np.ascontiguousarray(r[index].T), steps_of_h)
        cell = partial(CELLS[kind], functions[index], flag, product, rb, np.split(p[index], 3))
        backward = index == 1 or has.get("direction") == "reverse"
        found.append(_scan(cell, x @ w[index].T + wb, lengths, (h[index], c[index]), backward))
    y = np.stack([every for every, _ in found], axis=1)
    states = [np.stack(state) for state in zip(*(last for _, last in found), strict=True)]
    if layout:
        y = y.transpose(2, 0, 1, 3)
        states = [state.swapaxes(0, 1) for state in states]
    return tuple(array.astype(kind_of_number) for array in (y, *states)[: 3 if kind == "LSTM" else 2])


def _check(kind: str, has: Mapping, flops: int, directions: int) -> None:
    """Raise `NotEvaluated` for too many operations, and a direction that is not that of the weights."""
    if flops > LARGEST_FLOPS:
        raise NotEvaluated(f"{kind} operator with more than {LARGEST_FLOPS:.0e} operations")
    order = has.get("direction") or "forward"
    if order not in ("forward", "reverse", "bidirectional") or directions != 1 + (order == "bidirectional"):
        raise NotEvaluated(f"{kind} operator with direction {order!r} and weights of {directions} directions")


def activations_of(kind: str, attributes: Mapping[str, Any], directions: int) -> list[list[Activation]]:
    """The activations of each direction with their parameters, which are consumed in the order of the activations.

    Raises `NotEvaluated` for those that ONNX does not define.
    """
    names = attributes.get("activations") or ()
    default = RECURRENT[kind]
    if kind == "RNN":  # the attribute's default is for two directions
        names = names[:directions]
    names = tuple(names) or default * directions
    unknown = [name for name in names if name not in ACTIVATIONS]
    if unknown or len(names) != len(default) * directions:
        raise NotEvaluated(f"{kind} operator with activations {', '.join(names)}")
    alphas = iter(attributes.get("activation_alpha") or ())
    betas = iter(attributes.get("activation_beta") or ())
    found = []
    for name in names:
        _, alpha, beta = ACTIVATIONS[name]
        alpha = alpha if alpha is None else next(alphas, alpha)
        beta = beta if beta is None else next(betas, beta)
        if NO_DEFAULT in (alpha, beta):  # by identity
            raise NotEvaluated(f"{kind} operator with activation {name}, for which ONNX defines no default parameters")
        found.append(Activation(name, alpha, beta))
    return [found[place : place + len(default)] for place in range(0, len(found), len(default))]


def _functions(kind: str, attributes: Mapping[str, Any], directions: int) -> list[list[Callable]]:
    """The activations of each direction as functions of their inputs."""
    clip = attributes.get("clip")
    return [
        [partial(_clipped, ACTIVATIONS[name][0], alpha, beta, clip) for name, alpha, beta in each]
        for each in activations_of(kind, attributes, directions)
    ]


def _clipped(function: Callable, alpha: Any, beta: Any, clip: float | None, x: np.ndarray) -> np.ndarray:
    return function(x if clip is None else np.clip(x, -clip, clip), alpha, beta)


def _rounded(x: np.ndarray, steps: int) -> np.ndarray:
    return np.rint(x * steps) / steps if steps else x


def _product(r: np.ndarray, steps: int, h: np.ndarray, columns: slice = slice(None)) -> np.ndarray:
    return _rounded(h, steps) @ r[:, columns]


# A step of one direction: activations, input_forget of an LSTM or linear_before_reset of a GRU, the product of a state
# with (some columns of) R (hidden, gates x hidden), its biases, the peepholes; the products of the input and W, and the
# state, (batch, ...).


def _lstm(functions, coupled, r, b, p, xw, h, c) -> tuple[np.ndarray, np.ndarray]:
    f, g, last = functions
    i, o, forget, new = np.split(xw + r(h) + b, 4, axis=1)
    i = f(i + p[0] * c)
    forget = 1 - i if coupled else f(forget + p[2] * c)
    c = forget * c + i * g(new)
    return f(o + p[1] * c) * last(c), c


def _gru(functions, reset_last, r, b, p, xw, h, c) -> tuple[np.ndarray, np.ndarray]:
    (f, g), size = functions, h.shape[1]
    first, last = slice(None, 2 * size), slice(2 * size, None)
    z, reset = np.split(f(xw[:, first] + r(h, first) + b[first]), 2, axis=1)
    new = reset * (r(h, last) + b[last]) if reset_last else r(reset * h, last) + b[last]
    return (1 - z) * g(xw[:, last] + new) + z * h, c


def _rnn(functions, flag, r, b, p, xw, h, c) -> tuple[np.ndarray, np.ndarray]:
    return functions[0](xw + r(h) + b), c


CELLS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def _scan(
    cell: Callable, xw: np.ndarray, lengths: np.ndarray, state: tuple[np.ndarray, ...], backward: bool
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Y (sequence, batch, hidden), zero after the end of each sequence, and the states after its last step.

    Backward, each sequence is read from its own end.
    """
    steps, batch, _ = xw.shape
    time = np.arange(steps)[:, None]
    order = np.where(time < lengths, lengths - 1 - time, time), np.arange(batch)
    xw = xw[order] if backward else xw
    y = np.zeros((steps, *state[0].shape), xw.dtype)
    for step in range(steps):
        inside = (step < lengths)[:, None]
        new = cell(xw[step], *state)
        y[step] = np.where(inside, new[0], 0)
        state = tuple(np.where(inside, after, before) for after, before in zip(new, state, strict=True))
    return (y[order] if backward else y), state
