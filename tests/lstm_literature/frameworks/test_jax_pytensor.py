"""JAX and PyTensor compared with PyTorch's `nn.LSTM`: outputs, losses, gradients, gates, biases, padding, times."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from lstm_literature import implementations
from lstm_literature.implementations.functional import by_inputs
from lstm_trt.config.errors import RunFailed
from tests.conftest import sampled
from tests.support.framework_checks import (
    FORWARD,
    TRAINING,
    assert_costs,
    assert_outputs_agree,
    assert_padding_has_no_influence,
    assert_time_grows_with_the_work,
    assert_training_agrees,
    one_thread_for_the_reference,  # noqa: F401
    prepared,
    refused_by,
    with_two_threads,
)
from tests.support.gradients import gradients_of

NAMES = ("jax-scan", "pytensor-scan")

for _name in NAMES:
    if not (_state := implementations.load_implementation(_name).availability()).ready:
        pytest.skip(f"needs the extra frameworks: {_state.reason}", allow_module_level=True)


#: PyTensor compiles training of one layer for half a minute: one of these at a time.
SHORT = {name: replace(TRAINING[name], layers=1) for name in ("ptb-lm", "text-classifier")}


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled():
    """Numba optimizes less, which halves the time that it compiles; `test_a_new_process` runs what users run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_OPT", "1")
        yield


def current(task) -> dict[tuple[str, ...], np.ndarray]:
    """The weights, each by its own name."""
    values = {name: task._variables[name] for name in task._names}
    if task._implementation.NAME == "pytensor-scan":
        values = {name: value.get_value() for name, value in values.items()}
    return {(name,): np.asarray(value) for name, value in by_inputs(values).items()}


@pytest.mark.parametrize("workload", FORWARD.values(), ids=FORWARD)
def test_outputs_agree_with_pytorch(workload):
    assert_outputs_agree("jax-scan", workload)


@sampled(2)  # PyTensor compiles a layer for about 10 s
@pytest.mark.parametrize("workload", FORWARD.values(), ids=FORWARD)
def test_outputs_of_pytensor_agree_with_pytorch(workload):
    assert_outputs_agree("pytensor-scan", workload)


@sampled(2)  # JAX compiles each for some seconds
@pytest.mark.parametrize("workload", TRAINING.values(), ids=TRAINING)
def test_training_agrees_with_pytorch_and_the_loss_decreases(workload):
    facts = assert_training_agrees("jax-scan", workload, current)
    assert facts["bias_vectors"] == 2
    assert ("variable_lengths" in facts) == (workload.loss == "ctc")


def interpreted_gradients(task) -> dict[str, np.ndarray]:
    """The gradients by PyTensor's Python code instead of Numba, which would compile a second time.

    What Numba makes of them shows in the losses and in the changes of the weights.
    """
    from pytensor.compile.mode import Mode

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "mode", Mode(linker="py", optimizer="fast_compile"))
        return gradients_of(task)


# Numba compiles for half a minute, so one seed in two asks for it.
@pytest.mark.random(tail=0, why="identity: the seed chooses one of the workloads")
@sampled(2)
@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
def test_training_with_pytensor_agrees_on_a_workload_that_the_seed_chooses(seed):
    workload = list(SHORT.values())[seed // 2 % len(SHORT)]
    facts = assert_training_agrees("pytensor-scan", workload, current, gradients_of=interpreted_gradients)
    assert facts["bias_vectors"] == 2


def test_padding_has_no_influence():
    assert_padding_has_no_influence("jax-scan")


@sampled(2)
@pytest.mark.parametrize(
    ("name", "mode"), [("jax-scan", "forward"), ("jax-scan", "training"), ("pytensor-scan", "forward")]
)
def test_time_inside_the_step_grows_with_the_work(name, mode):
    assert_time_grows_with_the_work(name, mode)


@pytest.mark.parametrize("name", NAMES)
def test_facts_costs_and_errors(name, monkeypatch):
    task = prepared(name, FORWARD["layer"])
    assert_costs(task)
    assert task.costs["build_s"] > task.costs["first_call_s"], "the first call compiles nothing"
    facts = json.loads(json.dumps(task.facts()))
    assert facts["threads"] == 1
    assert facts[name.split("-")[0]] == implementations.load_implementation(name).availability().version
    monkeypatch.setattr(task, "_call", lambda: 1 / 0)
    with pytest.raises(RunFailed, match="division by zero"):
        task.step()


def test_what_is_supported():
    refused = refused_by(NAMES)
    long = ("speech-bidirectional-ce-long", "speech-ctc-long", "speech-ctc-linspace")
    assert refused == {("pytensor-scan", name, "training") for name in long}


# PyTensor compiles twice, optimized as for users: 15 s. One of them a run.
@sampled(2)
@pytest.mark.parametrize(("name", "last"), [("jax-scan", "UsageError JAX already runs with 2"), ("pytensor-scan", "1")])
def test_a_new_process_prints_nothing_and_has_the_threads_of_the_options(name, last, monkeypatch):
    monkeypatch.delenv("NUMBA_OPT")
    modules = {"jax-scan": ("jax",), "pytensor-scan": ("pytensor", "numba")}[name]
    assert with_two_threads(name, "threads", *modules).startswith(last)
