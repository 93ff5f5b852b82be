"""The gradients of training steps of the literature's workloads: computed as a step does, but nothing is updated.

A step has no method for them, since recordings do not need them; so this reads what each framework holds. It imports
no framework, and nothing of pytest, as the process that runs MXNet.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lstm_literature.data import weight_shapes
from lstm_literature.implementations.functional import by_inputs

Gradients = dict[str, np.ndarray]

#: With this learning rate, an update by SGD is the gradient to the precision of float32.
KERAS_RATE = 2.0**20


def gradients_of(step: Any) -> Gradients:
    """Float32 gradients of the loss at the current weights, by the names of `data.weight_shapes`."""
    step._require_open()
    return _OF_FRAMEWORK[step._implementation.FRAMEWORK](step)


def _of_pytorch(step: Any) -> Gradients:
    """Zeros where a weight has no gradient; those of gates one above the other."""
    step._optimizer.zero_grad()
    step._try(step._call)
    found = {}
    for name, held in step._parameters.items():
        parts = [np.zeros(each.shape, np.float32) if each.grad is None else each.grad.cpu().numpy() for each in held]
        found[name] = np.concatenate([part.T for part in parts] if len(held) > 1 else parts)
    step._optimizer.zero_grad()
    return found


def _of_functions(step: Any) -> Gradients:
    """JAX and PyTensor, compiled at each call."""
    found = step._compiled(lambda variables, batch: (step._loss_and_gradients(variables, batch)[1], {}))()
    return by_inputs({name: np.array(gradient) for name, gradient in zip(step._names, found, strict=True)})


def _of_tensorflow(step: Any) -> Gradients:
    """With the step's own execution; a weight can be held by several variables."""
    found: Gradients = {}
    call = step._executed(lambda *arguments: step._loss_and_gradients(*arguments)[1])
    for held, gradient in zip(step._network.held, call(*step._arguments), strict=True):
        assert gradient is not None, held.names
        # That of an embedding is in slices.
        for name, part in spread(held, step._tf.convert_to_tensor(gradient).numpy()).items():
            found[name] = found[name] + part if name in found else part
    return found


def _of_keras(step: Any) -> Gradients:
    """From one update by SGD of a copy of the model."""
    model, copies = step._built(step._keras.optimizers.SGD(KERAS_RATE))
    before = [np.array(held.variable.numpy()) for held in step._held]
    for held, value in zip(copies, before, strict=True):
        held.variable.assign(value)
    model.train_on_batch(*step._arrays)
    found: Gradients = {}
    for held, value in zip(copies, before, strict=True):
        found |= spread(held, (value - np.array(held.variable.numpy())) / np.float32(KERAS_RATE))
    return found


def spread(held: Any, array: np.ndarray) -> Gradients:
    """The gradient of each weight that a Keras variable is the sum of; zero outside of its gate if it has one."""
    if not hasattr(held, "gate"):
        return {name: np.ascontiguousarray(array.T if held.transposed else array).copy() for name in held.names}
    width = array.shape[-1]
    parts = (array[:-width], array[-width:]) if held.transposed else (array, array)
    pads = ((held.gate * width, (3 - held.gate) * width), (0, 0))[: array.ndim]
    return {name: np.pad(part.T, pads) for name, part in zip(held.names, parts, strict=True)}


def _of_mxnet(step: Any) -> Gradients:
    """Those of the packed parameters of the LSTM by weight."""
    from lstm_literature.implementations import on_mxnet

    step._loss()
    found = {name: parameter.grad.asnumpy().copy() for name, parameter in step._held.items()}
    names, shapes = on_mxnet.packed_names(step._workload), weight_shapes(step._workload)
    parts = np.split(found.pop(on_mxnet._LSTM), np.cumsum([math.prod(shapes[name]) for name in names])[:-1])
    return found | {name: part.reshape(shapes[name]) for name, part in zip(names, parts, strict=True)}


_OF_FRAMEWORK = {
    "PyTorch": _of_pytorch,
    "TensorFlow": _of_tensorflow,
    "Keras": _of_keras,
    "JAX": _of_functions,
    "PyTensor": _of_functions,
    "MXNet": _of_mxnet,
}
