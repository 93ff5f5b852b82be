"""The literature's networks, losses and updates as functions of arrays, for libraries that compile such functions.

The cell is written out and the loop over time is the library's scan, so a compiled function has one copy of the cell
for each layer and direction. The inputs of all steps are projected before the scan, in one matrix product.
Everything is written with functions that `jax.numpy` and `pytensor.tensor` have in common; subclasses of
`FunctionalStep` add what differs.

Training has PyTorch's two bias vectors and the updates of its SGD and Adam; gradients and updates are part of the
compiled function. Costs: `build_s` is making the arrays and compiling, `first_call_s` the first step after that.

Sequences of different lengths are masked, not packed: at padding the input and the forget gate are closed, so hidden
and cell state are zero there, and the reverse direction starts with zeros at the last step of a sequence.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from lstm_literature.data import Batch, weight_shapes
from lstm_literature.implementations import ADAM_BETAS, ADAM_EPSILON, FrameworkStep, Implementation, timed
from lstm_trt.runtimes.base import PreparedStep, Request

#: An array of the library, or its symbol for one.
Array = Any

#: Arrays by name.
Arrays = dict[str, Array]

#: Value of the gates at padding; its sigmoid is zero in float32.
CLOSED = -1e4

#: What Adam keeps of each gradient.
MOMENTS = ("mean", "square")


class Functional(Implementation):
    """An implementation whose step is a `FunctionalStep`."""

    STYLE = "while"
    EXTRA = "frameworks"
    STEP: ClassVar[type[FunctionalStep]]

    def _prepare(self, request: Request, batch: Batch) -> PreparedStep:
        return self.STEP(self, request, batch)


def by_inputs(arrays: Arrays) -> Arrays:
    """The matrices that multiply transposed to (inputs, outputs); applied twice, the given arrays."""
    return {
        name: np.ascontiguousarray(array.T) if array.ndim == 2 and not name.startswith("embedding") else array
        for name, array in arrays.items()
    }


class FunctionalStep(FrameworkStep):
    """A workload as functions of its variables and batch, and the step that is compiled from them.

    The variables are the weights by name (`by_inputs`) and, in training, what the optimizer keeps. A subclass has
    `_variables` and `_batch` in place, and the following attributes from `_load` on.
    """

    #: The module with the library's functions of arrays, and two functions with different places.
    arrays: ModuleType
    sigmoid: Callable[[Array], Array]
    log_softmax: Callable[..., Array]

    def __init__(self, implementation: Functional, request: Request, batch: Batch) -> None:
        super().__init__(implementation, request)
        self._names = tuple(weight_shapes(self._workload))
        self._load()
        with timed(self.costs, "build_s"):
            self._rewind()
            self._place(batch)
            self._call: Any = self._compiled(self._trained if self._trains else self._inferred)
        self._finish()

    @abstractmethod
    def _load(self) -> None:
        """Import the library, set its number of threads, and start the facts."""

    @abstractmethod
    def _scan(self, cell: Callable, gates: Array, state: tuple[Array, Array], reverse: bool) -> Array:
        """The hidden states of all steps; `cell(gates, hidden, memory)` returns the next hidden and cell state."""

    @abstractmethod
    def _differentiated(self, loss: Callable[[Arrays], Array], weights: Arrays) -> tuple[Array, list[Array]]:
        """`loss(weights)` and its gradients."""

    @abstractmethod
    def _compiled(self, work: Callable) -> Callable[[], Any]:
        """`work(variables, batch)`, which returns a result and updated variables, for the arrays in place.

        Calling it stores the variables, waits for everything and returns the result.
        """

    def _initial(self) -> Arrays:
        weights = by_inputs(self._weights)
        if not self._trains or self._workload.optimizer == "sgd":
            return weights
        kept = {f"{moment}.{name}": np.zeros_like(weights[name]) for moment in MOMENTS for name in weights}
        return {**weights, **kept, "updates": np.zeros((), np.float32)}

    def _read(self, batch: Batch) -> Arrays:
        """The arrays of a batch that the compiled function reads."""
        arrays: Arrays = {"inputs": batch.inputs}
        if self._trains:
            arrays["targets"] = batch.targets
        if self._workload.lengths:
            arrays["lengths"] = batch.lengths
        return arrays

    def _run(self) -> np.ndarray | float:
        result = self._call()
        return float(result) if self._trains else np.asarray(result)

    def facts(self) -> dict:
        found = {**super().facts(), "bias_vectors": 2}
        if self._trains:
            found |= {"gradients": "on", "optimizer": f"PyTorch's {self._workload.optimizer}, written out"}
        if self._workload.lengths:
            found["variable_lengths"] = "masked: padding is computed"
        return found

    def _inferred(self, variables: Arrays, batch: Arrays) -> tuple[Array, Arrays]:
        return self._outputs(variables, batch), {}

    def _outputs(self, weights: Arrays, batch: Arrays) -> Array:
        """Outputs of `output_shape`."""
        workload = self._workload
        read = batch["inputs"]
        if workload.vocabulary:
            read = weights["embedding.weight"][read]
        for layer in range(workload.layers):
            suffixes = [f"l{layer}", f"l{layer}_reverse"][: workload.directions]
            read = self.arrays.concatenate([self._direction(weights, suffix, read, batch) for suffix in suffixes], 2)
        if workload.head == "none":
            return read
        if workload.head == "last-step":
            read = read[-1]
        biases = [weights["dense.bias"]] if workload.head_bias else []
        return _product(read, weights["dense.weight"], biases, workload.output_shape)

    def _direction(self, weights: Arrays, suffix: str, read: Array, batch: Arrays) -> Array:
        """The outputs (sequence, batch, hidden) of one direction of one layer."""
        workload, arrays, width = self._workload, self.arrays, self._workload.hidden
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        kernel, recurrent, *biases = (weights[f"lstm.{name}_{suffix}"] for name in names)
        projected = _product(read, kernel, biases, (workload.sequence, workload.batch, 4 * width))
        if "lengths" in batch:
            running = arrays.arange(workload.sequence)[:, None, None] < batch["lengths"][:, None]
            projected = arrays.where(running, projected, CLOSED)

        def cell(gates: Array, hidden: Array, memory: Array) -> tuple[Array, Array]:
            gates = gates + hidden @ recurrent
            input_gate, forget_gate, candidate, output_gate = (
                gates[:, gate * width : (gate + 1) * width] for gate in range(4)
            )
            memory = self.sigmoid(forget_gate) * memory + self.sigmoid(input_gate) * arrays.tanh(candidate)
            return self.sigmoid(output_gate) * arrays.tanh(memory), memory

        zeros = arrays.zeros((workload.batch, width), dtype="float32")
        return self._scan(cell, projected, (zeros, zeros), suffix.endswith("reverse"))

    def _loss(self, weights: Arrays, batch: Arrays) -> Array:
        """The mean cross-entropy over all outputs, as of `torch.nn.CrossEntropyLoss`."""
        rows = math.prod(self._workload.output_shape[:-1])
        likelihoods = self.log_softmax(self._outputs(weights, batch).reshape((rows, -1)), axis=1)
        return -likelihoods[self.arrays.arange(rows), batch["targets"].reshape((rows,))].mean()

    def _loss_and_gradients(self, variables: Arrays, batch: Arrays) -> tuple[Array, list[Array]]:
        weights = {name: variables[name] for name in self._names}
        return self._differentiated(lambda weights: self._loss(weights, batch), weights)

    def _trained(self, variables: Arrays, batch: Arrays) -> tuple[Array, Arrays]:
        """The loss, and the variables after an update of PyTorch's SGD or Adam."""
        arrays = self.arrays
        rate = self._workload.learning_rate
        loss, gradients = self._loss_and_gradients(variables, batch)
        by_name = dict(zip(self._names, gradients, strict=True))
        if self._workload.optimizer == "sgd":
            return loss, {name: variables[name] - rate * gradient for name, gradient in by_name.items()}
        updates = variables["updates"] + 1
        # 1 - beta ** updates, which would lose digits in float32.
        first, second = (-arrays.expm1(updates * math.log(beta)) for beta in ADAM_BETAS)
        updated = {"updates": updates}
        for name, gradient in by_name.items():
            mean, square = (variables[f"{moment}.{name}"] for moment in MOMENTS)
            mean = mean + (1 - ADAM_BETAS[0]) * (gradient - mean)
            square = square + (1 - ADAM_BETAS[1]) * (gradient * gradient - square)
            updated |= {f"mean.{name}": mean, f"square.{name}": square}
            updated[name] = variables[name] - rate / first * mean / (arrays.sqrt(square / second) + ADAM_EPSILON)
        return loss, updated


def _product(read: Array, kernel: Array, biases: list[Array], shape: tuple[int, ...]) -> Array:
    """`read @ kernel` plus the biases, as one product of two matrices; `shape` is that of the result."""
    return (read.reshape((math.prod(shape[:-1]), -1)) @ kernel + sum(biases)).reshape(shape)
