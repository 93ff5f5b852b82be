"""Keras 3 on JAX and on PyTorch: a compiled `keras.Model` with `keras.layers.LSTM`, as a user of Keras writes it.

A step is `train_on_batch`, which returns the loss of this batch before the update (Keras resets its running mean at
each call), or `predict_on_batch`. Both take numpy arrays and return a number or a numpy array, which waits for the
result. With Keras' defaults the step is compiled on JAX and eager on PyTorch. Costs: `build_s` is making the model;
`first_call_s` is the first step, in which JAX compiles; its weight update is undone.

Losses and outputs agree with PyTorch as described in `tensorflow`: Keras has one bias vector, and its Adam is changed.
A process can have one backend.
"""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from lstm_literature.data import Batch
from lstm_literature.implementations import FrameworkStep, Implementation, mode_reason, on_jax, timed
from lstm_literature.implementations.on_tensorflow import ONE_BIAS, load_keras, optimizer
from lstm_literature.implementations.on_tensorflow_networks import Held, lstm_layers
from lstm_literature.workloads import LiteratureWorkload
from lstm_trt.machine.facts import installed_version
from lstm_trt.runtimes import _torch
from lstm_trt.runtimes.base import Availability, PreparedStep, Request


@dataclass(frozen=True)
class Keras(Implementation):
    """Keras on one backend as an implementation."""

    backend: str
    EXECUTION: str
    DEVICES: tuple[str, ...]

    FRAMEWORK = "Keras"
    STYLE = "one-call"
    EXTRA = "frameworks"
    DISTRIBUTION = "keras"

    @property
    def NAME(self) -> str:
        return f"keras-{self.backend}"

    @property
    def PACKAGES(self) -> tuple[str, ...]:
        return ("keras", self.backend)

    @property
    def TITLE(self) -> str:
        return f"Keras LSTM on {'JAX' if self.backend == 'jax' else 'PyTorch'}"

    def supports(self, workload: LiteratureWorkload, mode: str, device: str = "cpu") -> str | None:
        """None for sequences of the same length, else the reason."""
        if workload.loss == "ctc":
            return "variable lengths and the CTC loss are not supported"
        return mode_reason(workload, mode)

    def availability(self, device: str = "cpu") -> Availability:
        """Ready if Keras and its backend are installed, for "cuda" if PyTorch finds a GPU; imports no Keras."""
        state = super().availability()
        return state if device == "cpu" or not state.ready else _torch.availability(device, self.DEVICES)

    def _prepare(self, request: Request, batch: Batch) -> PreparedStep:
        return KerasStep(self, request, batch)


class KerasStep(FrameworkStep):
    """Outputs, or loss and update."""

    _batch_major = True

    def __init__(self, implementation: Keras, request: Request, batch: Batch) -> None:
        super().__init__(implementation, request)
        os.environ["KERAS_TORCH_DEVICE"] = self._options.device
        if implementation.backend == "jax":
            on_jax.load_jax(self._options.threads)
        self._keras = load_keras(implementation.backend)
        workload = self._workload
        if implementation.backend == "torch":
            _torch.configure(self._options)
        with timed(self.costs, "build_s"):
            chosen = optimizer(self._keras, workload.optimizer, workload.learning_rate) if workload.optimizer else None
            self._model, self._held = self._built(chosen)
        # Copies, since what a variable gives can change with it.
        self._initial = [(each, np.array(each.numpy())) for each in (chosen.variables if chosen else ())]
        self._place(batch)
        self._rewind()
        self._finish()

    def _built(self, optimizer: Any | None) -> tuple:
        """A compiled model and its variables."""
        workload = self._workload
        layers = self._keras.layers
        stack, held = lstm_layers(self._keras, workload)
        sequence, batch, *features = workload.input_shape
        inputs = read = self._keras.Input(batch_shape=(batch, sequence, *features), dtype=None if features else "int32")
        if workload.vocabulary:
            embedding = layers.Embedding(workload.vocabulary, workload.features)
            read = embedding(read)
            held.append(Held(embedding.embeddings, ("embedding.weight",)))
        for layer in stack:
            read = layer(read)
        if workload.head == "last-step" and workload.directions == 2:
            read = read[:, -1]
        if workload.head != "none":
            dense = layers.Dense(workload.outputs, use_bias=workload.head_bias)
            read = dense(read)
            held.append(Held(dense.kernel, ("dense.weight",), transposed=True))
            if workload.head_bias:
                held.append(Held(dense.bias, ("dense.bias",)))
        model = self._keras.Model(inputs, read)
        if optimizer:
            model.compile(optimizer, self._keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            optimizer.build(model.trainable_variables)
        return model, held

    def _run(self) -> np.ndarray | float:
        if self._trains:
            return float(self._model.train_on_batch(*self._arrays))
        return self._model.predict_on_batch(self._arrays[0])

    def _place(self, batch: Batch) -> None:
        self._arrays = [np.array(array, order="C") for array in self._read_by_step(batch)]

    def _rewind(self) -> None:
        super()._rewind()
        for held in self._held:
            held.load(self._weights)
        for variable, value in self._initial:
            variable.assign(value)

    def facts(self) -> dict:
        backend = self._implementation.backend
        found = {
            "keras": self._keras.__version__,
            backend: installed_version(backend),
            "bias_vectors": 1,
            "device": self._options.device,
            "compiled": self._implementation.EXECUTION == "xla",
        }
        return found | {"gradients": "on", "updates": ONE_BIAS} if self._trains else found


JAX = Keras("jax", "xla", ("cpu",))

TORCH = Keras("torch", "eager", ("cpu", "cuda"))
