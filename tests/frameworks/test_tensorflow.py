"""The TensorFlow implementations compared with PyTorch's `nn.LSTM`: outputs, losses, gradients, gates, biases, times.

The networks are tiny, and the reference is written here instead of using this package's PyTorch
implementations. `Reference` updates two bias vectors; with `bias_hh` frozen it matches Keras,
which has one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from lstm_trt import registry
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed, MemoryExhausted, RunFailed, RuntimeUnavailable, UsageError
from lstm_trt.literature import implementations
from lstm_trt.literature.data import Batch, make_batch, make_weights, weight_shapes
from lstm_trt.literature.implementations import tensorflow as tensorflow_implementations
from lstm_trt.literature.workloads import WORKLOADS, LiteratureWorkload
from lstm_trt.runtimes.base import COSTS, Request

NAMES = tuple(name for name in registry.IMPLEMENTATIONS if name.startswith("tensorflow"))
TWO_BIASES = ("tensorflow-basic-eager", "tensorflow-basic-graph", "tensorflow-while-graph", "tensorflow-xla")
KERAS = tuple(name for name in NAMES if name not in TWO_BIASES)

_STATE = implementations.load(NAMES[0]).availability()
if not _STATE.ready:
    pytest.skip(f"needs the extra frameworks: {_STATE.reason}", allow_module_level=True)

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
    return implementations.load(name).prepare(Request(workload, Options(), batch.by_name(), weights or own, mode=mode))


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


@pytest.mark.parametrize("workload", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("name", NAMES)
def test_outputs_agree_with_pytorch(name, workload):
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


@pytest.mark.parametrize("workload", TRAINING.values(), ids=TRAINING)
@pytest.mark.parametrize("name", NAMES)
def test_training_agrees_with_pytorch_and_the_loss_decreases(name, workload):
    weights, batch = given(workload)
    task = prepared(name, workload, "training")
    with pytest.raises(RunFailed):
        task.loss()
    loss, gradients = Reference(workload, weights).step(batch, update=False)
    found = task.gradients()
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
    expected, moves = trained(workload, name in KERAS)
    assert losses == pytest.approx(expected, rel=1e-4)
    # These losses hardly depend on the embedding, so compare the weights too.
    for held in task._network.held:
        start, move = (sum(side[key] for key in held.names) for side in (weights, moves))
        moved = held.variable.numpy().T if held.transposed else held.variable.numpy()
        assert apart(moved - start, move) <= 1e-2, held.names
    facts = task.facts()
    assert ("updates" in facts) == (name in KERAS)
    assert facts["optimizer"] == {"adam": "Keras Adam", "sgd": "Keras SGD"}[workload.optimizer]
    assert facts["optimizer_epsilon"] == (1e-8 if workload.optimizer == "adam" else None)
    assert ("ctc" in facts) == ("variable_lengths" in facts) == (workload.loss == "ctc")
    task.close()


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

    tf, keras = tensorflow_implementations.load(Options(device="cpu"))
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


def test_the_reference_has_sequences_of_different_lengths():
    workload = TRAINING["speech-ctc-long"]
    _, batch = given(workload)
    assert batch.lengths.min() < workload.sequence


@pytest.mark.parametrize("name", ["tensorflow-basic-eager", "tensorflow-while-graph", "tensorflow-one-call-eager"])
def test_padding_has_no_influence(name):
    """Changes of the padding have no effect; other lengths need no retracing."""
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
    assert task.facts()["traces"] == (0 if name.endswith("eager") else 1)
    with pytest.raises(UsageError, match="lengths"):
        task.load_inputs(replace(batch, lengths=None).by_name())


def reordered(weights: dict[str, np.ndarray], order: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The gates of every LSTM weight in another order."""
    return {
        name: np.concatenate([np.split(value, 4)[gate] for gate in order]) if name.startswith("lstm") else value
        for name, value in weights.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_gates_are_in_pytorchs_order(name):
    """Wrong orders are detected (PyTorch i, f, g, o; ONNX i, o, f, g; older kernels of TensorFlow i, g, f, o)."""
    workload = FORWARD["layer"]
    weights, _ = given(workload)
    task = prepared(name, workload, "forward")
    task.step()
    found = task.outputs()["outputs"]
    assert apart(found, reference_outputs(workload)) <= 1e-5
    for order in ((0, 3, 1, 2), (0, 2, 1, 3), (1, 0, 2, 3), (3, 1, 2, 0)):
        assert apart(found, reference_outputs(workload, reordered(weights, order))) > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_both_bias_vectors_are_used(name):
    """Only the sum of the bias vectors matters, and omitting either changes the outputs."""
    workload = FORWARD["stack"]
    weights, _ = given(workload)
    outputs = []
    for scale_ih, scale_hh in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0)):
        scales = {"lstm.bias_ih": scale_ih, "lstm.bias_hh": scale_hh}
        other = {key: value * np.float32(scales.get(key[:12], 1)) for key, value in weights.items()}
        task = prepared(name, workload, "forward", other)
        task.step()
        outputs.append(task.outputs()["outputs"])
        assert apart(outputs[-1], reference_outputs(workload, other)) <= 1e-5
    assert apart(outputs[1], outputs[0]) > 1e-2 and apart(outputs[2], outputs[0]) > 1e-2
    moved = dict(weights)
    for layer in range(workload.layers):
        moved[f"lstm.bias_ih_l{layer}"] = weights[f"lstm.bias_ih_l{layer}"] + weights[f"lstm.bias_hh_l{layer}"]
        moved[f"lstm.bias_hh_l{layer}"] = np.zeros_like(moved[f"lstm.bias_ih_l{layer}"])
    task = prepared(name, workload, "forward", moved)
    task.step()
    assert apart(task.outputs()["outputs"], outputs[0]) <= 1e-6


def test_weights_that_do_not_fit_are_rejected():
    workload = FORWARD["layer"]
    weights, batch = given(workload)
    wrong = {**weights, "lstm.weight_hh_l0": weights["lstm.weight_hh_l0"][:, :-1]}
    with pytest.raises(UsageError, match=r"lstm\.weight_hh_l0$"):
        prepared("tensorflow-while-graph", workload, "forward", wrong)
    task = prepared("tensorflow-while-graph", workload, "forward")
    with pytest.raises(UsageError, match="inputs"):
        task.load_inputs(Batch(batch.inputs[:-1]).by_name())


@pytest.mark.parametrize("name", NAMES)
def test_time_inside_the_step_grows_with_the_work(name):
    """256 times the batch takes longer; if a step returned before its work was done, the times would be equal."""
    fastest = []
    for batch in (4, 1024):
        workload = tiny("layer", batch=batch, sequence=4, hidden=256, features=256)
        task = prepared(name, workload, "forward")
        fastest.append(fastest_step(task))
    assert fastest[1] > 2 * fastest[0]


@pytest.mark.parametrize("name", ["tensorflow-while-graph", "tensorflow-xla"])
def test_time_inside_a_training_step_grows_with_the_work(name):
    fastest = []
    for batch in (4, 1024):
        workload = tiny("speech-ce-short", batch=batch, sequence=4, hidden=256, features=256)
        fastest.append(fastest_step(prepared(name, workload, "training")))
    assert fastest[1] > 2 * fastest[0]


def fastest_step(task) -> float:
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        task.step()
        seconds.append(time.perf_counter() - began)
    task.close()
    return min(seconds)


@pytest.mark.parametrize("name", NAMES)
def test_facts_and_costs(name):
    workload = FORWARD["layer"]
    task = prepared(name, workload, "forward")
    assert set(task.costs) == {"build_s", "first_call_s"} <= set(COSTS)
    assert all(seconds > 0 for seconds in task.costs.values())
    facts = json.loads(json.dumps(task.facts()))
    eager, loop = name.endswith("eager"), name in ("tensorflow-while-graph", "tensorflow-one-call-graph")
    assert facts["intra_op_threads"] == facts["inter_op_threads"] == 1
    assert facts["traces"] == (0 if eager else 1)
    assert facts["bias_vectors"] == (1 if name in KERAS else 2)
    assert ("dispatches_to" in facts) == ("one-call" in name)
    if not eager:
        assert facts["xla"] == (name == "tensorflow-xla")
        assert facts["while_loops"] == (loop or facts["xla"])
        assert facts["lstm_kernels"] == [], "there is no kernel for a whole LSTM on a CPU"
        longer = prepared(name, replace(workload, sequence=10), "forward").facts()
        assert (longer["graph_nodes"] > 1.3 * facts["graph_nodes"]) == (not facts["while_loops"])


def test_what_is_supported():
    refused = {
        (name, workload.name, mode)
        for name in NAMES
        for workload in WORKLOADS.values()
        for mode in workload.modes
        if implementations.load(name).supports(workload, mode)
    }
    unrolled = ("tensorflow-basic-graph", "tensorflow-static-graph")
    long = ("speech-bidirectional-ce-long", "speech-ctc-long")
    assert refused == {(name, workload, "training") for name in unrolled for workload in long}
    basic, full = implementations.load(unrolled[0]), WORKLOADS[long[0]]
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
    with pytest.raises(MemoryExhausted, match=r"^tensorflow-basic-eager: .*OOM when allocating"):
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
    tensorflow_implementations.load(Options(device="cuda"))
    assert (hidden, tf32) == ([], [False])
    tensorflow_implementations.load(Options(device="cpu"))
    assert hidden == [([], "GPU")]
    visible.clear()
    with pytest.raises(RuntimeUnavailable, match="and-cuda"):
        tensorflow_implementations.load(Options(device="cuda"))


def test_names_and_titles_are_unique():
    found = [implementations.load(name) for name in NAMES]
    assert [implementation.NAME for implementation in found] == list(NAMES)
    assert len({implementation.TITLE for implementation in found}) == len(NAMES)
    assert all(item.EXTRA == "frameworks" and item.availability().version for item in found)


_QUIET = """
import sys
from lstm_trt.literature import implementations
from lstm_trt.literature.data import make_batch, make_weights
from lstm_trt.literature.workloads import WORKLOADS
from lstm_trt.config.configuration import Options
from lstm_trt.runtimes.base import Request
implementation = implementations.load("tensorflow-xla")
assert implementation.availability().ready
assert not {"tensorflow", "keras"} & set(sys.modules), "availability imports nothing"
workload = WORKLOADS["layer"]
arguments = make_batch(workload, 1).by_name(), make_weights(workload, 1)
task = implementation.prepare(Request(workload, Options(threads=2), *arguments))
task.step()
assert task.facts()["intra_op_threads"] == 2
try:
    implementation.prepare(Request(workload, Options(threads=1), *arguments))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_new_process_prints_nothing_and_its_threads_are_fixed():
    result = subprocess.run([sys.executable, "-c", _QUIET], capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout.startswith("UsageError ") and "2 and 2 threads" in result.stdout
