"""Checks of implementations of the literature's workloads against PyTorch's `nn.LSTM`, for the tests of frameworks.

The networks are tiny, and the reference is written here instead of using this package's PyTorch
implementations. `Reference` updates two bias vectors; with `bias_hh` frozen it matches frameworks
that have one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from operator import methodcaller

import numpy as np
import pytest

from lstm_literature import implementations
from lstm_literature.data import Batch, make_batch, make_weights, weight_shapes
from lstm_literature.workloads import WORKLOADS, LiteratureWorkload
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import RunFailed, UsageError
from lstm_trt.runtimes.base import Request

STEPS = 20


def tiny(name: str, **sizes: object) -> LiteratureWorkload:
    """A workload's network and loss with small sizes."""
    full = WORKLOADS[name]
    chosen: dict = {"batch": 3, "sequence": 1 if name == "cell" else 4, "hidden": 4, "features": 5}
    chosen["layers"] = min(full.layers, 2)
    if full.vocabulary:
        chosen["vocabulary"] = 13
    if name == "ptb-lm":
        chosen["outputs"] = 13
    if full.loss == "ctc":
        chosen |= {"lengths": (3, 4), "labels": 2, "outputs": 6, "layers": 1}
    return replace(full, **{**chosen, **sizes})


FORWARD = {
    "cell": tiny("cell"),
    "layer": tiny("layer"),
    "stack": tiny("stack", layers=2, batch=1),
    "ptb-lm": tiny("ptb-lm"),
}
#: speech-ce-long is speech-ce-short with other sizes.
TRAINING = {
    name: tiny(name)
    for name in ("ptb-lm", "text-classifier", "speech-ce-short", "speech-bidirectional-ce-long", "speech-ctc-long")
}


class Reference:
    """`nn.LSTM` with embedding and head, and PyTorch's losses and optimizers."""

    def __init__(self, workload: LiteratureWorkload, weights: dict[str, np.ndarray], one_bias: bool = False) -> None:
        import torch

        self.workload = workload
        self.lstm = torch.nn.LSTM(
            workload.features, workload.hidden, workload.layers, bidirectional=workload.directions == 2
        )
        self.parameters = {f"lstm.{name}": value for name, value in self.lstm.named_parameters()}
        for name in ("embedding.weight", "dense.weight", "dense.bias"):
            if name in weights:
                self.parameters[name] = torch.nn.Parameter(torch.empty(weights[name].shape))
        assert self.parameters.keys() == weights.keys()
        for name, value in weights.items():
            self.parameters[name].data.copy_(torch.from_numpy(value))
            self.parameters[name].requires_grad_(not (one_bias and "bias_hh" in name))
        if workload.optimizer:
            kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[workload.optimizer]
            trained = [value for value in self.parameters.values() if value.requires_grad]
            self.optimizer = kind(trained, lr=workload.learning_rate)

    def outputs(self, batch: Batch):
        import torch
        from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

        read = torch.from_numpy(batch.inputs)
        if self.workload.vocabulary:
            read = self.parameters["embedding.weight"][read]
        if self.workload.lengths:
            packed = self.lstm(pack_padded_sequence(read, torch.from_numpy(batch.lengths)))[0]
            every = pad_packed_sequence(packed, total_length=self.workload.sequence)[0]
        else:
            every = self.lstm(read)[0]
        if self.workload.head == "none":
            return every
        read = every[-1] if self.workload.head == "last-step" else every
        return torch.nn.functional.linear(read, self.parameters["dense.weight"], self.parameters.get("dense.bias"))

    def step(self, batch: Batch, update: bool = True) -> tuple[float, dict[str, np.ndarray]]:
        import torch

        outputs, targets = self.outputs(batch), torch.from_numpy(batch.targets)
        if self.workload.loss == "ctc":
            labels = torch.full([self.workload.batch], self.workload.labels)
            criterion = torch.nn.CTCLoss(reduction="mean")
            loss = criterion(outputs.log_softmax(2), targets, torch.from_numpy(batch.lengths), labels)
        else:
            loss = torch.nn.CrossEntropyLoss()(outputs.flatten(0, -2), targets.flatten())
        for value in self.parameters.values():
            value.grad = None
        loss.backward()
        if update:
            self.optimizer.step()
        found = {name: value.grad.numpy().copy() for name, value in self.parameters.items() if value.grad is not None}
        return loss.item(), found


@pytest.fixture(scope="module", autouse=True)
def one_thread_for_the_reference():
    """Several PyTorch threads on a shared core would wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def given(workload: LiteratureWorkload) -> tuple[dict[str, np.ndarray], Batch]:
    return make_weights(workload, 11), make_batch(workload, 12)


@cache
def trained(workload: LiteratureWorkload, one_bias: bool) -> tuple[list[float], dict[str, np.ndarray]]:
    """PyTorch's losses of `STEPS` training steps on one batch, and the changes of the weights."""
    weights, batch = given(workload)
    reference = Reference(workload, weights, one_bias)
    losses = [reference.step(batch)[0] for _ in range(STEPS)]
    return losses, {name: reference.parameters[name].detach().numpy() - weights[name] for name in weights}


def prepared(name: str, workload: LiteratureWorkload, mode: str, weights: dict | None = None):
    own, batch = given(workload)
    return implementations.load_implementation(name).prepare(
        Request(workload, Options(), batch.by_name(), weights or own, mode=mode)
    )


def apart(found: np.ndarray, wanted: np.ndarray) -> float:
    """Relative error by norm; if zeros are expected (weights that only multiply a zero state), they must be exact."""
    error, size = float(np.linalg.norm(found - wanted)), float(np.linalg.norm(wanted))
    return 0.0 if error == 0 else error / size if size else float("inf")


def apart_overall(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """`apart` for all arrays in `wanted` together, as one vector."""
    return apart(*(np.concatenate([side[key].ravel() for key in sorted(wanted)]) for side in (found, wanted)))


def reference_outputs(
    workload: LiteratureWorkload, weights: dict | None = None, batch: Batch | None = None
) -> np.ndarray:
    own, own_batch = given(workload)
    return Reference(workload, weights or own).outputs(batch or own_batch).detach().numpy()


def assert_outputs_agree(name: str, workload: LiteratureWorkload) -> None:
    """Outputs agree with PyTorch's, also for other inputs; a returned array does not change later."""
    task = prepared(name, workload, "forward")
    with pytest.raises(RunFailed):
        task.outputs()["outputs"]
    task.step()
    first = task.outputs()["outputs"]
    assert first.shape == workload.output_shape and first.dtype == np.float32
    assert apart(first, reference_outputs(workload)) <= 1e-5
    other = make_batch(workload, 99)
    task.load_inputs(other.by_name())
    task.step()
    assert apart(task.outputs()["outputs"], reference_outputs(workload, batch=other)) <= 1e-5
    assert apart(first, reference_outputs(workload)) <= 1e-5, "returned outputs must not change later"
    task.close()
    task.close()
    with pytest.raises(RunFailed):
        task.step()


def assert_training_agrees(
    name: str,
    workload: LiteratureWorkload,
    current: Callable,
    one_bias: bool = False,
    gradients_of: Callable = methodcaller("gradients"),
) -> dict:
    """Gradients, losses and changes of the weights agree with PyTorch's, and the loss decreases; returns the facts.

    `current(step)`: names of the weights that one variable is the sum of -> its value, in PyTorch's layout.
    `gradients_of(step)`: its gradients.
    """
    weights, batch = given(workload)
    task = prepared(name, workload, "training")
    with pytest.raises(RunFailed):
        task.loss()
    loss, gradients = Reference(workload, weights).step(batch, update=False)
    found = gradients_of(task)
    assert {key: value.shape for key, value in found.items()} == weight_shapes(workload)
    for key, gradient in gradients.items():
        assert found[key].dtype == np.float32
        assert apart(found[key], gradient) <= 1e-4, key
    assert apart_overall(found, gradients) <= 1e-4
    losses = []
    for _ in range(STEPS):
        task.step()
        losses.append(task.loss())
    assert losses[0] == pytest.approx(loss, rel=1e-4)
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    # Compare all updates: with PyTorch's two bias vectors, or with one of them frozen as in Keras.
    expected, moves = trained(workload, one_bias)
    assert losses == pytest.approx(expected, rel=1e-4)
    # These losses hardly depend on the embedding, so compare the weights too.
    values = current(task)
    assert {key for names in values for key in names} == weights.keys()
    for names, value in values.items():
        start, move = (sum(side[key] for key in names) for side in (weights, moves))
        assert apart(value - start, move) <= 1e-2, names
    facts = task.facts()
    task.close()
    return facts


def assert_padding_has_no_influence(name: str) -> dict:
    """Changes of the padding have no effect, those of the lengths have; returns the facts."""
    workload = replace(TRAINING["speech-ctc-long"], learning_rate=1e-12)  # the weights hardly change
    weights, batch = given(workload)
    task = prepared(name, workload, "training")
    task.step()
    clean, rubbish = task.loss(), batch.inputs.copy()
    rubbish[np.arange(workload.sequence)[:, None] >= batch.lengths] = 1e3
    task.load_inputs(replace(batch, inputs=rubbish).by_name())
    task.step()
    assert task.loss() == pytest.approx(clean, rel=1e-6)
    shorter = replace(batch, lengths=np.array([4, 3, 3]))
    task.load_inputs(shorter.by_name())
    task.step()
    assert task.loss() == pytest.approx(Reference(workload, weights).step(shorter)[0], rel=1e-4)
    assert task.loss() != pytest.approx(clean, rel=1e-4)
    with pytest.raises(UsageError, match="lengths"):
        task.load_inputs(replace(batch, lengths=None).by_name())
    return task.facts()


def reordered(weights: dict[str, np.ndarray], order: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The gates of every LSTM weight in another order."""
    return {
        name: np.concatenate([np.split(value, 4)[gate] for gate in order]) if name.startswith("lstm") else value
        for name, value in weights.items()
    }


@cache
def shared(name: str, workload: LiteratureWorkload):
    """A forward pass for tests that leave it as it is, since some libraries compile it for seconds."""
    return prepared(name, workload, "forward")


def assert_gates_are_in_pytorchs_order(name: str) -> None:
    """Wrong orders are detected (PyTorch i, f, g, o; ONNX i, o, f, g; older kernels of TensorFlow i, g, f, o)."""
    workload = FORWARD["layer"]
    weights, _ = given(workload)
    task = shared(name, workload)
    task.step()
    found = task.outputs()["outputs"]
    assert apart(found, reference_outputs(workload)) <= 1e-5
    for order in ((0, 3, 1, 2), (0, 2, 1, 3), (1, 0, 2, 3), (3, 1, 2, 0)):
        assert apart(found, reference_outputs(workload, reordered(weights, order))) > 1e-2


def assert_both_bias_vectors_are_used(name: str, workload: LiteratureWorkload = FORWARD["stack"]) -> None:
    """Only the sum of the bias vectors matters, and omitting either changes the outputs.

    One network lacks the first vector; another has the sum in the first, and lacks the second. The outputs with both
    are those of `assert_outputs_agree`.
    """
    weights, _ = given(workload)
    lacking, moved = dict(weights), dict(weights)
    for layer in range(workload.layers):
        first, second = f"lstm.bias_ih_l{layer}", f"lstm.bias_hh_l{layer}"
        lacking[first] = np.zeros_like(weights[first])
        moved[first], moved[second] = weights[first] + weights[second], np.zeros_like(weights[second])
    both, outputs = reference_outputs(workload), []
    for other in (lacking, moved):
        task = prepared(name, workload, "forward", other)
        task.step()
        outputs.append(task.outputs()["outputs"])
        assert apart(outputs[-1], reference_outputs(workload, other)) <= 1e-5
    assert apart(outputs[0], both) > 1e-2 and apart(outputs[1], both) <= 1e-5
    # What an implementation computes that has only the first vector, or ignores the first.
    for kept in ("bias_ih", "bias_hh"):
        scaled = {key: value * np.float32("bias" not in key or kept in key) for key, value in weights.items()}
        assert apart(both, reference_outputs(workload, scaled)) > 1e-2


def assert_time_grows_with_the_work(name: str, mode: str) -> None:
    """256 times the batch takes longer; if a step returned before its work was done, the times would be equal."""
    fastest = []
    for batch in (4, 1024):
        kind = "layer" if mode == "forward" else "speech-ce-short"
        task = prepared(name, tiny(kind, batch=batch, sequence=4, hidden=256, features=256), mode)
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            task.step()
            seconds.append(time.perf_counter() - began)
        task.close()
        fastest.append(min(seconds))
    assert fastest[1] > 2 * fastest[0]


def refused_by(names: Iterable[str]) -> set[tuple[str, str, str]]:
    """Which implementations refuse which workload of the documents in which mode."""
    return {
        (name, workload.name, mode)
        for name in names
        for workload in WORKLOADS.values()
        for mode in workload.modes
        if implementations.load_implementation(name).supports(workload, mode)
    }
