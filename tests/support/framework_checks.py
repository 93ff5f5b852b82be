"""Checks of implementations of the literature's workloads against PyTorch's `nn.LSTM`, for the tests of frameworks.

The networks are tiny, and the reference is written here instead of using this package's PyTorch
implementations. `Reference` updates two bias vectors; with `bias_hh` frozen it matches frameworks
that have one.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lstm_literature import implementations
from lstm_literature.data import Batch, make_batch, make_weights, weight_shapes
from lstm_literature.implementations import FrameworkStep, Implementation
from lstm_literature.metrics import COSTS
from lstm_literature.workloads import WORKLOADS, LiteratureWorkload
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import RunFailed, UsageError
from lstm_trt.runtimes.base import Request
from tests.support.gradients import gradients_of

STEPS = 20


def tiny(name: str, **sizes: object) -> LiteratureWorkload:
    """A workload's network and loss with small sizes."""
    full = WORKLOADS[name]
    chosen: dict = {"batch": 3, "sequence": 1 if name == "cell" else 4, "hidden": 4, "features": 5}
    chosen["layers"] = min(full.layers, 2)
    if full.vocabulary:
        chosen["vocabulary"] = 13
    if (full.outputs or 0) > 1000:
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


def prepared(
    implementation: str | Implementation,
    workload: LiteratureWorkload,
    mode: str = "forward",
    weights: dict | None = None,
    **options: object,
):
    """The step of an implementation, or of that with this name, for the batch and by default the weights of `given`."""
    if isinstance(implementation, str):
        implementation = implementations.load_implementation(implementation)
    own, batch = given(workload)
    return implementation.prepare(Request(workload, Options(**options), batch.by_name(), weights or own, mode=mode))


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


def assert_outputs_agree(implementation: str | Implementation, workload: LiteratureWorkload) -> dict:
    """Outputs agree with PyTorch's, also for other inputs; a returned array does not change later; returns the facts.

    With random weights that holds only if each gate, bias and direction is where PyTorch has it: `test_pytorch` shows
    that the outputs of the reference change with each of them.
    """
    task = prepared(implementation, workload)
    if isinstance(task, FrameworkStep):
        with pytest.raises(RunFailed):
            task.outputs()
    task.step()
    first = task.outputs()["outputs"]
    assert first.shape == workload.output_shape and first.dtype == np.float32
    assert apart(first, reference_outputs(workload)) <= 1e-5
    other = make_batch(workload, 99)
    task.load_inputs(other.by_name())
    task.step()
    assert apart(task.outputs()["outputs"], reference_outputs(workload, batch=other)) <= 1e-5
    assert apart(first, reference_outputs(workload)) <= 1e-5, "returned outputs must not change later"
    with pytest.raises(UsageError, match="inputs"):
        task.load_inputs(make_batch(replace(workload, batch=workload.batch + 1), 1).by_name())
    facts = task.facts()
    task.close()
    task.close()
    with pytest.raises(RunFailed, match="closed"):
        task.step()
    return facts


def assert_gradients_agree(found: dict[str, np.ndarray], workload: LiteratureWorkload) -> None:
    weights, batch = given(workload)
    _, gradients = Reference(workload, weights).step(batch, update=False)
    assert {key: value.shape for key, value in found.items()} == weight_shapes(workload)
    for key, gradient in gradients.items():
        assert found[key].dtype == np.float32
        assert apart(found[key], gradient) <= 1e-4, key
    assert apart_overall(found, gradients) <= 1e-4


def assert_training_agrees(
    name: str,
    workload: LiteratureWorkload,
    current: Callable,
    one_bias: bool = False,
    gradients_of: Callable = gradients_of,
) -> dict:
    """Gradients, losses and changes of the weights agree with PyTorch's, and the loss decreases; returns the facts.

    `current(step)`: names of the weights that one variable is the sum of -> its value, in PyTorch's layout.
    `gradients_of(step)`: its gradients.
    """
    weights, _ = given(workload)
    task = prepared(name, workload, "training")
    with pytest.raises(RunFailed):
        task.loss()
    assert_gradients_agree(gradients_of(task), workload)
    losses = []
    for _ in range(STEPS):
        task.step()
        losses.append(task.loss())
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


def assert_padding_has_no_influence(name: str, workload: LiteratureWorkload = TRAINING["speech-ctc-long"]) -> dict:
    """Changes of the padding have no effect, those of the lengths have; returns the facts."""
    workload = replace(workload, learning_rate=1e-12)  # the weights hardly change
    weights, batch = given(workload)
    task = prepared(name, workload, "training")
    task.step()
    clean, rubbish = task.loss(), batch.inputs.copy()
    padding = np.arange(workload.sequence)[:, None] >= batch.lengths
    assert padding.any()
    rubbish[padding] = 1e3
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


def assert_time_grows_with_the_work(name: str, mode: str) -> None:
    """256 times the batch takes longer; if a step returned before its work was done, the times would be equal.

    Training computes as much for the update of the weights with any batch, which is why the factor is large. The two
    steps take turns, so that both are slow while another program uses the core.
    """
    kind = "layer" if mode == "forward" else "speech-ce-short"
    few, many = (
        prepared(name, tiny(kind, batch=batch, sequence=4, hidden=256, features=256), mode) for batch in (4, 1024)
    )
    few_s, many_s = [], []
    for _ in range(5):
        few_s.append(_seconds(few.step))
        many_s.append(_seconds(many.step))
    few.close()
    many.close()
    assert min(many_s) > 2 * min(few_s)


def _seconds(step) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def assert_costs(task, *more: str) -> None:
    """Building, the first call and `more` have times, and nothing else."""
    assert set(task.costs) == {"build_s", "first_call_s", *more} <= set(COSTS)
    assert all(seconds > 0 for seconds in task.costs.values())


_TWO_THREADS = """
import os, sys
from lstm_literature import implementations
from lstm_trt.config.errors import LabError
from tests.support.framework_checks import WORKLOADS, prepared
name, fact, *modules = sys.argv[1:]
loaded = lambda: set(modules) & set(sys.modules)
assert implementations.load_implementation(name).availability().ready
assert not loaded(), "availability imports nothing"
cores = os.sched_getaffinity(0)
task = prepared(name, WORKLOADS["layer"], threads=2)
task.step()
assert loaded() == set(modules) and os.sched_getaffinity(0) == cores
assert task.facts()[fact] == 2, task.facts()
try:
    print(prepared(name, WORKLOADS["layer"], threads=1).facts()[fact])
except LabError as error:
    print(type(error).__name__, error)
"""


def with_two_threads(name: str, fact: str, *modules: str) -> str:
    """In a new process, which prints nothing else: what comes of asking for one thread after two.

    Before a step is prepared, none of the modules is imported; afterwards the fact says that there are two threads.
    """
    command = [sys.executable, "-c", _TWO_THREADS, name, fact, *modules]
    folder = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused_by(names: Iterable[str]) -> set[tuple[str, str, str]]:
    """Which implementations refuse which workload of the documents in which mode."""
    return {
        (name, workload.name, mode)
        for name in names
        for workload in WORKLOADS.values()
        for mode in workload.modes
        if implementations.load_implementation(name).supports(workload, mode)
    }
