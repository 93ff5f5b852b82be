"""The TensorFlow implementations compared with PyTorch's `nn.LSTM`: outputs, losses, gradients, gates, biases."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from lstm_literature import implementations
from lstm_literature.data import make_batch
from lstm_literature.implementations import on_tensorflow as tensorflow_implementations
from lstm_literature.implementations.on_tensorflow_networks import HeldGate
from lstm_literature.workloads import WORKLOADS
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed, MemoryExhausted, RunFailed, RuntimeUnavailable, UsageError
from lstm_trt.runtimes.base import Request
from tests.conftest import sampled
from tests.support.framework_checks import (
    FORWARD,
    TRAINING,
    assert_costs,
    assert_outputs_agree,
    assert_padding_has_no_influence,
    assert_time_grows_with_the_work,
    assert_training_agrees,
    given,
    one_thread_for_the_reference,  # noqa: F401
    prepared,
    refused_by,
    trained,
    with_two_threads,
)
from tests.support.gradients import spread

NAMES = tuple(name for name in implementations.IMPLEMENTATIONS if name.startswith("tensorflow"))
TWO_BIASES = ("tensorflow-basic-eager", "tensorflow-basic-graph", "tensorflow-while-graph", "tensorflow-xla")
#: With one bias vector: Keras' layers, and the cell of document 001.
ONE_BIAS = tuple(name for name in NAMES if name not in TWO_BIASES)

_STATE = implementations.load_implementation(NAMES[0]).availability()
if not _STATE.ready:
    pytest.skip(f"needs the extra frameworks: {_STATE.reason}", allow_module_level=True)


@pytest.mark.parametrize("workload", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("name", NAMES)
def test_outputs_agree_with_pytorch(name, workload):
    assert_outputs_agree(name, workload)


def current(task) -> dict[tuple[str, ...], np.ndarray]:
    """The values of Keras' variables, by the weights that each is the sum of."""
    found: dict = {}
    for held in task._network.held:
        value = held.variable.numpy()
        if not isinstance(held, HeldGate):
            found[held.names] = value.T if held.transposed else value
        else:  # the gates of a weight are in different variables
            by_name = spread(held, value)
            parts = by_name.items() if held.transposed else [(held.names, by_name[held.names[0]])]
            for names, part in parts:
                key = names if isinstance(names, tuple) else (names,)
                found[key] = found.get(key, 0) + part
    return found


@pytest.mark.parametrize(("style", "products", "width"), [("basic", 2, 4), ("fine-grained", 4, 1)])
def test_a_step_of_the_written_out_cell_has_as_many_products_as_document_001(style, products, width):
    """The fine-grained cell multiplies inputs and hidden state together, for each gate."""
    workload = FORWARD["layer"]
    task = prepared(f"tensorflow-{style}-graph", workload, "forward")
    nodes = task._call.get_concrete_function(*task._arguments).graph.as_graph_def().node
    assert sum(node.op == "MatMul" for node in nodes) == products * workload.sequence
    kernels = [held.variable.shape for held in task._network.held if held.transposed]
    assert {shape[1] for shape in kernels} == {width * workload.hidden}
    rows = {workload.features + workload.hidden} if width == 1 else {workload.features, workload.hidden}
    assert {shape[0] for shape in kernels} == rows


@sampled(3)  # each compiles for some seconds
@pytest.mark.parametrize("workload", TRAINING.values(), ids=TRAINING)
@pytest.mark.parametrize("name", NAMES)
def test_training_agrees_with_pytorch_and_the_loss_decreases(name, workload):
    facts = assert_training_agrees(name, workload, current, one_bias=name in ONE_BIAS)
    assert ("updates" in facts) == (name in ONE_BIAS)
    assert facts["optimizer"] == {"adam": "Keras Adam", "sgd": "Keras SGD"}[workload.optimizer]
    assert facts["optimizer_epsilon"] == (1e-8 if workload.optimizer == "adam" else None)
    assert ("ctc" in facts) == ("variable_lengths" in facts) == (workload.loss == "ctc")


def test_one_bias_vector_trains_differently_from_two():
    """Keras' styles do differ, and the comparison above would detect it."""
    workload = TRAINING["speech-ce-short"]
    two_biases, one_bias = (trained(workload, frozen)[0] for frozen in (False, True))
    assert two_biases[0] == one_bias[0]
    assert two_biases != pytest.approx(one_bias, rel=1e-4)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_updates_agree_with_pytorch_for_tiny_gradients_and_for_slices(name):
    """Gradients close to epsilon show where it is added; rows are read twice, once or not at all."""
    import torch

    tf, keras = tensorflow_implementations.load_tensorflow(Options(device="cpu"))
    start = np.ones((4, 2), np.float32)
    scale = np.float32([[1, 1e-2], [1e-6, 1e-7], [1e-8, 1e-9], [1, 1]])
    ours, theirs = keras.Variable(start), torch.nn.Parameter(torch.from_numpy(start.copy()))
    tested = tensorflow_implementations.optimizer(keras, name, 1e-3, tf.convert_to_tensor)
    tested.build([ours])
    reference = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]([theirs], lr=1e-3)
    for rows in ([0, 1, 2], [0, 1, 1], [2, 1, 0], [1, 1, 1]):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(ours.value, rows) * scale[rows])
        gradient = tape.gradient(loss, ours.value)
        assert isinstance(gradient, tf.IndexedSlices)
        tested.apply([gradient], [ours])
        reference.zero_grad()
        (theirs[rows] * torch.from_numpy(scale)[rows]).sum().backward()
        reference.step()
        assert ours.numpy() - start == pytest.approx(theirs.detach().numpy() - start, rel=1e-3, abs=2e-7)
    assert (ours.numpy()[3] == 1).all() and (ours.numpy()[0] != 1).all()


@pytest.mark.parametrize("name", ["tensorflow-basic-eager", "tensorflow-while-graph", "tensorflow-one-call-eager"])
def test_padding_has_no_influence(name):
    """Other lengths need no retracing."""
    assert assert_padding_has_no_influence(name)["traces"] == (0 if name.endswith("eager") else 1)


def test_weights_that_do_not_fit_are_rejected():
    workload = FORWARD["layer"]
    weights, _ = given(workload)
    wrong = {**weights, "lstm.weight_hh_l0": weights["lstm.weight_hh_l0"][:, :-1]}
    with pytest.raises(UsageError, match=r"lstm\.weight_hh_l0$"):
        prepared("tensorflow-while-graph", workload, "forward", wrong)


@sampled(2)
@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, "forward") for name in NAMES), ("tensorflow-while-graph", "training"), ("tensorflow-xla", "training")],
)
def test_time_inside_the_step_grows_with_the_work(name, mode):
    assert_time_grows_with_the_work(name, mode)


@pytest.mark.parametrize("name", NAMES)
def test_facts_and_costs(name):
    workload = FORWARD["layer"]
    task = prepared(name, workload, "forward")
    assert_costs(task)
    facts = json.loads(json.dumps(task.facts()))
    eager, loop = name.endswith("eager"), name in ("tensorflow-while-graph", "tensorflow-one-call-graph")
    assert facts["intra_op_threads"] == facts["inter_op_threads"] == 1
    assert facts["traces"] == (0 if eager else 1)
    assert facts["bias_vectors"] == (1 if name in ONE_BIAS else 2)
    assert ("dispatches_to" in facts) == ("one-call" in name)
    if not eager:
        assert facts["xla"] == (name == "tensorflow-xla")
        assert facts["while_loops"] == (loop or facts["xla"])
        assert facts["lstm_kernels"] == [], "there is no kernel for a whole LSTM on a CPU"
        longer = prepared(name, replace(workload, sequence=10), "forward").facts()
        assert (longer["graph_nodes"] > 1.3 * facts["graph_nodes"]) == (not facts["while_loops"])


def test_what_is_supported():
    refused = refused_by(NAMES)
    unrolled = [f"tensorflow-{style}-graph" for style in ("basic", "fine-grained", "static")]
    long = ("speech-bidirectional-ce-long", "speech-ctc-long", "speech-ctc-linspace")
    assert refused == {(name, workload, "training") for name in unrolled for workload in long}
    basic, full = implementations.load_implementation(unrolled[0]), WORKLOADS[long[0]]
    assert "8000 cells" in basic.supports(full, "training")
    assert "training" in basic.supports(full, "forward")
    small = full.scaled("1/100")
    with pytest.raises(BuildFailed, match="speech-bidirectional-ce-long"):
        basic.prepare(Request(full, Options(), make_batch(small, 0).by_name(), mode="training"))


def test_exhausted_memory_is_reported():
    import tensorflow as tf

    task = prepared("tensorflow-basic-eager", FORWARD["layer"], "forward")

    def exhausted(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[1,2]\nand more")

    task._call = exhausted
    with pytest.raises(MemoryExhausted, match=r"^tensorflow-basic-eager failed in a call: .*OOM when allocating"):
        task.step()
    task._call = lambda *_: 1 / 0
    with pytest.raises(RunFailed, match="division by zero"):
        task.step()


def test_gpus_are_hidden_on_the_cpu_only(monkeypatch):
    """For planted GPUs; on "cuda" TF32 is off, and a build that finds no GPU is refused."""
    import tensorflow as tf

    hidden, tf32, visible = [], [], ["GPU:0"]
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda devices, kind: hidden.append((devices, kind)))
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: visible)
    monkeypatch.setattr(tf.config.experimental, "enable_tensor_float_32_execution", tf32.append)
    tensorflow_implementations.load_tensorflow(Options(device="cuda"))
    assert (hidden, tf32) == ([], [False])
    tensorflow_implementations.load_tensorflow(Options(device="cpu"))
    assert hidden == [([], "GPU")]
    visible.clear()
    with pytest.raises(RuntimeUnavailable, match="and-cuda"):
        tensorflow_implementations.load_tensorflow(Options(device="cuda"))


def test_a_new_process_prints_nothing_and_its_threads_are_fixed():
    again = with_two_threads("tensorflow-xla", "intra_op_threads", "tensorflow", "keras")
    assert again.startswith("UsageError ") and "2 and 2 threads" in again
