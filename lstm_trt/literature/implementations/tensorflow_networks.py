"""The literature's networks in TensorFlow, in four styles; each says how its variables map to PyTorch's weights.

Gates stand in the order i, f, c, o in Keras, which is PyTorch's i, f, g, o; kernels are
transposed, (inputs, 4 x hidden). The loops are time-major as the workloads are; `one-call` is
batch-major, Keras' own layout, and gets its batch so.

A sequence that has ended keeps its state (going forward) or has not begun (going backward) and
answers zero, which is what a packed sequence does; its padding is computed all the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from lstm_trt.literature.data import weight_shapes
from lstm_trt.literature.workloads import LiteratureWorkload

if TYPE_CHECKING:
    from tensorflow import Tensor


#: (inputs, hidden, memory) -> (hidden, memory), each (batch, width).
Cell = Callable[["Tensor", "Tensor", "Tensor"], tuple["Tensor", "Tensor"]]


@dataclass(frozen=True)
class Held:
    """A Keras variable and the canonical weights whose sum it holds: two for Keras' one bias vector."""

    variable: object
    names: tuple[str, ...]
    transposed: bool = False

    def load(self, weights: dict[str, np.ndarray]) -> None:
        value = sum(weights[name] for name in self.names)
        self.variable.assign(value.T if self.transposed else value)

    def spread(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """The gradient of a sum is the gradient of each of its terms."""
        return {name: np.ascontiguousarray(array.T if self.transposed else array).copy() for name in self.names}


class Network(ABC):
    """Embedding, LSTM layers, head; the LSTM is the style's."""

    batch_major = False

    def __init__(self, tf: ModuleType, keras: ModuleType, workload: LiteratureWorkload) -> None:
        self._tf, self._keras, self._workload = tf, keras, workload
        self._shapes = weight_shapes(workload)
        self.held: list[Held] = []
        self._embedding = self._hold("embedding.weight") if workload.vocabulary else None
        self._build_layers()
        self._kernel = self._hold("dense.weight", transposed=True) if workload.head != "none" else None
        self._bias = self._hold("dense.bias") if "dense.bias" in self._shapes else None

    def _hold(self, name: str, transposed: bool = False) -> object:
        """A new variable for one canonical weight."""
        shape = self._shapes[name][::-1] if transposed else self._shapes[name]
        variable = self._keras.Variable(np.zeros(shape, np.float32), dtype="float32", name=name.replace(".", "_"))
        self.held.append(Held(variable, (name,), transposed))
        return variable.value

    def _hold_cell(self, cell: object, suffix: str) -> None:
        """The variables of a `keras.layers.LSTMCell`, which has one bias vector."""
        self.held.append(Held(cell.kernel, (f"lstm.weight_ih_{suffix}",), transposed=True))
        self.held.append(Held(cell.recurrent_kernel, (f"lstm.weight_hh_{suffix}",), transposed=True))
        self.held.append(Held(cell.bias, (f"lstm.bias_ih_{suffix}", f"lstm.bias_hh_{suffix}")))

    @abstractmethod
    def _build_layers(self) -> None:
        """Make the variables of the LSTM."""

    @abstractmethod
    def _layers(self, read: Tensor, running: Tensor | None) -> Tensor:
        """What the last layer answers: of every step, or of the last one alone where the head reads no other."""

    def load_weights(self, weights: dict[str, np.ndarray]) -> None:
        """Assign weights by the names of `data.weight_shapes`."""
        for held in self.held:
            held.load(weights)

    def answers(self, inputs: Tensor, lengths: Tensor | None) -> Tensor:
        """Of `output_shape`, batch before sequence where `batch_major`; of padding, whatever comes out."""
        tf = self._tf
        read = inputs if self._embedding is None else tf.gather(self._embedding, inputs)
        running = None if lengths is None else self._running(lengths)
        every = self._layers(read, running)
        return every if self._kernel is None else self._head(every)

    def _running(self, lengths: Tensor) -> Tensor:
        """Which steps are no padding: (sequence, batch), or (batch, sequence)."""
        running = self._tf.sequence_mask(lengths, self._workload.sequence)
        return running if self.batch_major else self._tf.transpose(running)

    def _head(self, every: Tensor) -> Tensor:
        tf, sizes = self._tf, every.shape
        answers = tf.matmul(tf.reshape(every, [-1, sizes[-1]]), self._kernel)
        if self._bias is not None:
            answers = tf.nn.bias_add(answers, self._bias)
        return tf.reshape(answers, [*sizes[:-1], answers.shape[-1]])


class Loops(Network):
    """Each direction of each layer is a loop over time around one of `self._cells`."""

    def _build_layers(self) -> None:
        widths = self._workload.shape.layer_inputs()
        suffixes = ("", "_reverse")[: self._workload.directions]
        #: For each layer and direction, the cell and whether it runs backward.
        self._cells = [
            [(self._build_cell(width, f"l{index}{suffix}"), bool(suffix)) for suffix in suffixes]
            for index, width in enumerate(widths)
        ]

    def _build_cell(self, width: int, suffix: str) -> Callable[[], Cell]:
        """The cell written out; calling what it gives reads the weights, once a loop and not once a step."""
        tf = self._tf
        held = [self._hold(f"lstm.weight_{name}_{suffix}", transposed=True) for name in ("ih", "hh")]
        held += [self._hold(f"lstm.bias_{name}_{suffix}") for name in ("ih", "hh")]

        def bind() -> Cell:
            kernel, recurrent, bias_ih, bias_hh = map(tf.convert_to_tensor, held)

            def cell(inputs: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
                gates = tf.matmul(inputs, kernel) + bias_ih + tf.matmul(hidden, recurrent) + bias_hh
                enter, forget, value, leave = tf.split(gates, 4, axis=1)
                memory = tf.sigmoid(forget) * memory + tf.sigmoid(enter) * tf.tanh(value)
                return tf.sigmoid(leave) * tf.tanh(memory), memory

            return cell

        return bind

    def _zeros(self) -> Tensor:
        return self._tf.zeros([self._workload.batch, self._workload.hidden])


class Unrolled(Loops):
    """`basic`: a Python loop; a graph has a copy of the cell for each step.

    TensorFlow prunes a graph: of the last layer's backward direction, of which `output[-1]`
    reads the first step taken, it then computes no other.
    """

    def _layers(self, read: Tensor, running: Tensor | None) -> Tensor:
        tf = self._tf
        steps = tf.unstack(read)
        masks = None if running is None else tf.unstack(running[:, :, None])
        for directions in self._cells:
            answers = [self._loop(bind(), steps, masks, backward) for bind, backward in directions]
            steps = answers[0] if len(answers) == 1 else [tf.concat(both, 1) for both in zip(*answers, strict=True)]
        return steps[-1] if self._workload.head == "last-step" else tf.stack(steps)

    def _loop(self, cell: Cell, steps: list[Tensor], masks: list[Tensor] | None, backward: bool) -> list[Tensor]:
        tf = self._tf
        zeros = hidden = memory = self._zeros()
        answers: list = [None] * len(steps)
        for index in range(len(steps))[:: -1 if backward else 1]:
            answer, cell_memory = cell(steps[index], hidden, memory)
            if masks is None:
                answers[index], hidden, memory = answer, answer, cell_memory
            else:
                mask = masks[index]
                answers[index] = tf.where(mask, answer, zeros)
                hidden, memory = tf.where(mask, answer, hidden), tf.where(mask, cell_memory, memory)
        return answers


class Static(Unrolled):
    """`static`: the loop of `basic` around `keras.layers.LSTMCell`, called as users call it."""

    def _build_cell(self, width: int, suffix: str) -> Callable[[], Cell]:
        layer = self._keras.layers.LSTMCell(self._workload.hidden, dtype="float32")
        layer.build((None, width))
        self._hold_cell(layer, suffix)

        def cell(inputs: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
            return layer(inputs, [hidden, memory])[1]

        return lambda: cell


class While(Loops):
    """`while`: a symbolic loop, so a graph has one copy of the cell for each layer and direction."""

    def _layers(self, read: Tensor, running: Tensor | None) -> Tensor:
        tf = self._tf
        for directions in self._cells:
            answers = [self._loop(bind(), read, running, backward) for bind, backward in directions]
            read = answers[0] if len(answers) == 1 else tf.concat(answers, 2)
        return read[-1] if self._workload.head == "last-step" else read

    def _loop(self, cell: Cell, read: Tensor, running: Tensor | None, backward: bool) -> Tensor:
        tf, length = self._tf, self._workload.sequence
        zeros = self._zeros()
        steps = tf.TensorArray(tf.float32, length).unstack(read)
        answers = tf.TensorArray(tf.float32, length, element_shape=zeros.shape)

        def body(count: Tensor, hidden: Tensor, memory: Tensor, answers: object) -> tuple:
            index = length - 1 - count if backward else count
            answer, cell_memory = cell(steps.read(index), hidden, memory)
            if running is None:
                return count + 1, answer, cell_memory, answers.write(index, answer)
            mask = running[index][:, None]
            states = tf.where(mask, answer, hidden), tf.where(mask, cell_memory, memory)
            return (count + 1, *states, answers.write(index, tf.where(mask, answer, zeros)))

        *_, answers = tf.while_loop(
            lambda count, *_: count < length, body, (0, zeros, zeros, answers), maximum_iterations=length
        )
        return answers.stack()


class OneCall(Network):
    """`one-call`: a `keras.layers.LSTM` a layer, in a `Bidirectional` where there are two directions."""

    batch_major = True

    def _build_layers(self) -> None:
        workload, layers = self._workload, self._keras.layers
        self._stack = []
        for index, width in enumerate(workload.shape.layer_inputs()):
            both = workload.directions == 2
            only_last = workload.head == "last-step" and index == workload.layers - 1 and not both
            layer = layers.LSTM(workload.hidden, return_sequences=not only_last, dtype="float32")
            if both:
                layer = layers.Bidirectional(layer, dtype="float32")
            layer.build((workload.batch, workload.sequence, width))
            cells = [layer.forward_layer.cell, layer.backward_layer.cell] if both else [layer.cell]
            for cell, suffix in zip(cells, ("", "_reverse"), strict=False):
                self._hold_cell(cell, f"l{index}{suffix}")
            self._stack.append(layer)

    def _layers(self, read: Tensor, running: Tensor | None) -> Tensor:
        for layer in self._stack:
            read = layer(read, mask=running)
        # Bidirectional's own last answer has the backward half of the first step: PyTorch's output[-1] has the last's.
        return read[:, -1] if self._workload.head == "last-step" and self._workload.directions == 2 else read


STYLES = {"basic": Unrolled, "static": Static, "while": While, "one-call": OneCall}
