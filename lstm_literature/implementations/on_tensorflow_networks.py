"""The literature's networks in TensorFlow, in five styles; each maps its variables to PyTorch's weights.

Keras' gate order i, f, c, o equals PyTorch's i, f, g, o; kernels are transposed,
(inputs, 4 x hidden). The loops are time-major like the workloads; `one-call` is batch-major,
Keras' layout, and its batch is transposed in advance.

At padding, a sequence keeps its state (forward direction) or has not started (backward
direction) and its output is zero, as for a packed sequence; the padding is computed nevertheless.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from lstm_literature.data import weight_shapes
from lstm_literature.workloads import LiteratureWorkload

if TYPE_CHECKING:
    from tensorflow import Tensor


#: Hidden and cell state, each (batch, width).
State = tuple["Tensor", "Tensor"]


@dataclass(frozen=True)
class Held:
    """A Keras variable, which is the sum of the named weights: two for Keras' single bias vector."""

    variable: Any
    names: tuple[str, ...]
    transposed: bool = False

    def load(self, weights: dict[str, np.ndarray]) -> None:
        value: Any = sum(weights[name] for name in self.names)
        self.variable.assign(value.T if self.transposed else value)


@dataclass(frozen=True)
class HeldGate(Held):
    """A Keras variable of one gate: that of the named matrices, one above the other, or of the sum of the vectors."""

    gate: int = 0

    def load(self, weights: dict[str, np.ndarray]) -> None:
        parts: Any = [np.split(weights[name], 4)[self.gate].T for name in self.names]
        self.variable.assign(np.concatenate(parts) if self.transposed else sum(parts))


def held_by_cell(cell: Any, suffix: str) -> list[Held]:
    """The variables of a `keras.layers.LSTMCell`, which has one bias vector."""
    return [
        Held(cell.kernel, (f"lstm.weight_ih_{suffix}",), transposed=True),
        Held(cell.recurrent_kernel, (f"lstm.weight_hh_{suffix}",), transposed=True),
        Held(cell.bias, (f"lstm.bias_ih_{suffix}", f"lstm.bias_hh_{suffix}")),
    ]


def lstm_layers(keras: ModuleType, workload: LiteratureWorkload) -> tuple[list, list[Held]]:
    """One `keras.layers.LSTM` per layer, within a `Bidirectional` for two directions, and their variables."""
    stack = []
    held = []
    for index, width in enumerate(workload.shape.layer_inputs()):
        both = workload.directions == 2
        only_last = workload.head == "last-step" and index == workload.layers - 1 and not both
        layer = keras.layers.LSTM(workload.hidden, return_sequences=not only_last, dtype="float32")
        if both:
            layer = keras.layers.Bidirectional(layer, dtype="float32")
        layer.build((workload.batch, workload.sequence, width))
        cells = [layer.forward_layer.cell, layer.backward_layer.cell] if both else [layer.cell]
        for cell, suffix in zip(cells, ("", "_reverse"), strict=False):
            held += held_by_cell(cell, f"l{index}{suffix}")
        stack.append(layer)
    return stack, held


class Network(ABC):
    """Embedding, LSTM layers, head; subclasses implement the LSTM."""

    batch_major = False

    def __init__(self, tf: ModuleType, keras: ModuleType, workload: LiteratureWorkload) -> None:
        self._tf, self._keras, self._workload = tf, keras, workload
        self._shapes = weight_shapes(workload)
        self.held: list[Held] = []
        self._embedding = self._hold("embedding.weight") if workload.vocabulary else None
        self._build_layers()
        self._kernel = self._hold("dense.weight", transposed=True) if workload.head != "none" else None
        self._bias = self._hold("dense.bias") if "dense.bias" in self._shapes else None

    def _hold(self, name: str, transposed: bool = False) -> Any:
        """A new variable for one weight."""
        shape = self._shapes[name][::-1] if transposed else self._shapes[name]
        return self._keep(shape, Held, (name,), transposed)

    def _keep(self, shape: tuple[int, ...], kind: type[Held], names: tuple[str, ...], *more: Any) -> Any:
        variable = self._keras.Variable(np.zeros(shape, np.float32), dtype="float32", name=names[0].replace(".", "_"))
        self.held.append(kind(variable, names, *more))
        return variable.value

    @abstractmethod
    def _build_layers(self) -> None:
        """Create the variables of the LSTM."""

    @abstractmethod
    def _layers(self, read: Tensor, running: Tensor | None) -> Tensor:
        """The last layer's outputs: of every step, or only of the last step if the head reads no other."""

    def load_weights(self, weights: dict[str, np.ndarray]) -> None:
        """Assign weights by the names of `data.weight_shapes`."""
        for held in self.held:
            held.load(weights)

    def outputs(self, inputs: Tensor, lengths: Tensor | None) -> Tensor:
        """Outputs of `output_shape`, batch before sequence if `batch_major`; undefined at padding."""
        tf = self._tf
        read = inputs if self._embedding is None else tf.gather(self._embedding, inputs)
        running = None  # which steps are not padding: (sequence, batch), or (batch, sequence) if `batch_major`
        if lengths is not None:
            mask = tf.sequence_mask(lengths, self._workload.sequence)
            running = mask if self.batch_major else tf.transpose(mask)
        every = self._layers(read, running)
        return every if self._kernel is None else self._head(every)

    def _head(self, every: Tensor) -> Tensor:
        tf = self._tf
        sizes = every.shape
        outputs = tf.matmul(tf.reshape(every, [-1, sizes[-1]]), self._kernel)
        if self._bias is not None:
            outputs = tf.nn.bias_add(outputs, self._bias)
        return tf.reshape(outputs, [*sizes[:-1], outputs.shape[-1]])


class Loops(Network):
    """Each direction of each layer is a loop over time with one of `self._cells`, here the cell written out."""

    def _build_layers(self) -> None:
        widths = self._workload.shape.layer_inputs()
        suffixes = ("", "_reverse")[: self._workload.directions]
        #: For each layer and direction: what the cell holds, and whether it runs backward.
        self._cells = [
            [(self._build_cell(width, f"l{index}{suffix}"), bool(suffix)) for suffix in suffixes]
            for index, width in enumerate(widths)
        ]

    def _build_cell(self, width: int, suffix: str) -> Any:
        """The weights of a cell."""
        held = [self._hold(f"lstm.weight_{name}_{suffix}", transposed=True) for name in ("ih", "hh")]
        return held + [self._hold(f"lstm.bias_{name}_{suffix}") for name in ("ih", "hh")]

    def _read(self, held: Any) -> Any:
        """What a cell holds as a loop uses it: the weights are read once per loop, not per step."""
        return list(map(self._tf.convert_to_tensor, held))

    def _gates(self, read: Any, inputs: Tensor, hidden: Tensor) -> Sequence[Tensor]:
        """The four gates before their functions, each (batch, width)."""
        tf = self._tf
        kernel, recurrent, bias_ih, bias_hh = read
        both = tf.matmul(inputs, kernel) + bias_ih + tf.matmul(hidden, recurrent) + bias_hh
        return tf.split(both, 4, axis=1)

    def _cell(self, read: Any, inputs: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The next hidden and cell state, each (batch, width)."""
        tf = self._tf
        input_gate, forget_gate, candidate, output_gate = self._gates(read, inputs, hidden)
        memory = tf.sigmoid(forget_gate) * memory + tf.sigmoid(input_gate) * tf.tanh(candidate)
        return tf.sigmoid(output_gate) * tf.tanh(memory), memory

    def _step(
        self, read: Any, inputs: Tensor, state: State, mask: Tensor | None, zeros: Tensor
    ) -> tuple[Tensor, State]:
        """The output of a step, and the next state; at padding the output is `zeros` and the state stays."""
        tf = self._tf
        output, memory = self._cell(read, inputs, *state)
        if mask is None:
            return output, (output, memory)
        kept = tf.where(mask, output, state[0]), tf.where(mask, memory, state[1])
        return tf.where(mask, output, zeros), kept

    def _zeros(self) -> Tensor:
        return self._tf.zeros([self._workload.batch, self._workload.hidden])


class Unrolled(Loops):
    """`basic`: a Python loop; a graph has a copy of the cell for each step.

    TensorFlow prunes graphs: if the head reads `output[-1]`, it computes only the first step of
    the last layer's backward direction.
    """

    def _layers(self, read: Tensor, running: Tensor | None) -> Tensor:
        tf = self._tf
        steps = tf.unstack(read)
        masks = [None] * len(steps) if running is None else tf.unstack(running[:, :, None])
        for directions in self._cells:
            outputs = [self._loop(self._read(held), steps, masks, backward) for held, backward in directions]
            steps = outputs[0] if len(outputs) == 1 else [tf.concat(both, 1) for both in zip(*outputs, strict=True)]
        return steps[-1] if self._workload.head == "last-step" else tf.stack(steps)

    def _loop(self, read: Any, steps: list[Tensor], masks: list, backward: bool) -> list[Tensor]:
        zeros = self._zeros()
        state = zeros, zeros
        outputs: list = [None] * len(steps)
        for index in range(len(steps))[:: -1 if backward else 1]:
            outputs[index], state = self._step(read, steps[index], state, masks[index], zeros)
        return outputs


class FineGrained(Unrolled):
    """`fine-grained`: the loop of `basic` with the cell of document 001, four products of inputs and hidden state.

    (lcy-seso/Carrot 0a722e9, benchmarks/rnnlm/tf_model/utils.py.) Each gate has a matrix and a bias vector of its own.
    """

    def _build_cell(self, width: int, suffix: str) -> list:
        size = self._workload.hidden
        weights, biases = (
            tuple(f"lstm.{kind}_{name}_{suffix}" for name in ("ih", "hh")) for kind in ("weight", "bias")
        )
        kernels = [self._keep((width + size, size), HeldGate, weights, True, gate) for gate in range(4)]
        return kernels + [self._keep((size,), HeldGate, biases, False, gate) for gate in range(4)]

    def _gates(self, read: list[Tensor], inputs: Tensor, hidden: Tensor) -> Sequence[Tensor]:
        tf = self._tf
        both = tf.concat([inputs, hidden], 1)
        return [tf.matmul(both, kernel) + bias for kernel, bias in zip(read[:4], read[4:], strict=True)]


class Static(Unrolled):
    """`static`: the loop of `basic` with `keras.layers.LSTMCell`, called as in user code."""

    def _build_cell(self, width: int, suffix: str) -> Any:
        layer = self._keras.layers.LSTMCell(self._workload.hidden, dtype="float32")
        layer.build((None, width))
        self.held += held_by_cell(layer, suffix)
        return layer

    def _read(self, held: Any) -> Any:
        return held

    def _cell(self, read: Any, inputs: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return read(inputs, [hidden, memory])[1]


class While(Loops):
    """`while`: a symbolic loop, so a graph has one copy of the cell for each layer and direction."""

    def _layers(self, read: Tensor, running: Tensor | None) -> Tensor:
        for directions in self._cells:
            outputs = [self._loop(self._read(held), read, running, backward) for held, backward in directions]
            read = outputs[0] if len(outputs) == 1 else self._tf.concat(outputs, 2)
        return read[-1] if self._workload.head == "last-step" else read

    def _loop(self, weights: Any, read: Tensor, running: Tensor | None, backward: bool) -> Tensor:
        tf = self._tf
        length = self._workload.sequence
        zeros = self._zeros()
        steps = tf.TensorArray(tf.float32, length).unstack(read)
        outputs = tf.TensorArray(tf.float32, length, element_shape=zeros.shape)

        def body(count: Tensor, hidden: Tensor, memory: Tensor, outputs: Any) -> tuple:
            index = length - 1 - count if backward else count
            mask = None if running is None else running[index][:, None]
            output, state = self._step(weights, steps.read(index), (hidden, memory), mask, zeros)
            return (count + 1, *state, outputs.write(index, output))

        *_, outputs = tf.while_loop(
            lambda count, *_: count < length, body, (0, zeros, zeros, outputs), maximum_iterations=length
        )
        return outputs.stack()


class OneCall(Network):
    """`one-call`: one `keras.layers.LSTM` per layer, within a `Bidirectional` for two directions."""

    batch_major = True

    def _build_layers(self) -> None:
        self._stack, held = lstm_layers(self._keras, self._workload)
        self.held += held

    def _layers(self, read: Tensor, running: Tensor | None) -> Tensor:
        for layer in self._stack:
            read = layer(read, mask=running)
        # Bidirectional's last output has the backward half of the first step, PyTorch's output[-1] that of the last.
        return read[:, -1] if self._workload.head == "last-step" and self._workload.directions == 2 else read


STYLES = {"basic": Unrolled, "fine-grained": FineGrained, "static": Static, "while": While, "one-call": OneCall}
