"""The checks of one Keras implementation, named by the environment variable `CHECKED`; `test_keras.py` runs them."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from lstm_literature import implementations
from lstm_literature.data import make_batch
from lstm_trt.config.errors import RunFailed, RuntimeUnavailable
from tests.support.framework_checks import (
    FORWARD,
    TRAINING,
    assert_costs,
    assert_outputs_agree,
    assert_time_grows_with_the_work,
    assert_training_agrees,
    given,
    one_thread_for_the_reference,  # noqa: F401
    prepared,
)

NAME = os.environ["CHECKED"]
TRAINED = {name: workload for name, workload in TRAINING.items() if workload.loss != "ctc"}


@pytest.mark.parametrize("workload", FORWARD.values(), ids=FORWARD)
def test_outputs_agree_with_pytorch(workload):
    assert_outputs_agree(NAME, workload)


def current(task) -> dict[tuple[str, ...], np.ndarray]:
    """The values of Keras' variables, by the names of the weights that each is the sum of."""
    values = {held.names: np.array(held.variable.numpy()) for held in task._held}
    transposed = {held.names for held in task._held if held.transposed}
    return {names: value.T if names in transposed else value for names, value in values.items()}


@pytest.mark.parametrize("workload", TRAINED.values(), ids=TRAINED)
def test_training_agrees_with_pytorch_and_the_loss_decreases(workload):
    facts = assert_training_agrees(NAME, workload, current, one_bias=True)
    assert facts["bias_vectors"] == 1 and "updates" in facts and facts["compiled"] == (NAME == "keras-jax")


def test_the_loss_is_that_of_the_batch_and_not_a_running_mean():
    """With weights that hardly change, each batch has its own loss, whatever came before."""
    workload = replace(TRAINED["speech-ce-short"], learning_rate=1e-12)
    batches = [given(workload)[1], make_batch(workload, 77)]
    task, losses = prepared(NAME, workload, "training"), []
    for index in (0, 1, 0, 1, 1):
        task.load_inputs(batches[index].by_name())
        task.step()
        losses.append(task.loss())
    first, second = losses[:2]
    assert losses == pytest.approx([first, second, first, second, second], rel=1e-6)
    assert first != pytest.approx(second, rel=1e-2)


@pytest.mark.parametrize("mode", ["forward", "training"])
def test_time_inside_the_step_grows_with_the_work(mode):
    assert_time_grows_with_the_work(NAME, mode)


def test_facts_costs_and_errors():
    task = prepared(NAME, TRAINED["text-classifier"], "training")
    assert_costs(task)
    facts = json.loads(json.dumps(task.facts()))
    assert facts["keras"] == implementations.load_implementation(NAME).availability().version
    assert facts[NAME.removeprefix("keras-")] and facts["device"] == "cpu"
    task._model.train_on_batch = lambda *_: 1 / 0
    with pytest.raises(RunFailed, match="division by zero"):
        task.step()
    other = {"keras-jax": "keras-torch", "keras-torch": "keras-jax"}[NAME]
    with pytest.raises(RuntimeUnavailable, match=f"uses the backend {NAME.removeprefix('keras-')} in this process"):
        prepared(other, FORWARD["layer"], "forward")
