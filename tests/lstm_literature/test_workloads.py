"""The literature's workloads, their weights and batches, and the registry of implementations."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from lstm_literature import data, implementations
from lstm_literature.workloads import TEXT, VARIANTS, WORKLOADS, LiteratureWorkload, find
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import BuildFailed, RuntimeUnavailable, UsageError
from lstm_trt.config.workload import workload_from_dict
from lstm_trt.runtimes.base import Availability, Request

SPEECH = {
    "speech-ce-short": 572_800,
    "speech-ce-long": 572_800,
    "speech-bidirectional-ce-long": 8_533_760,
    "speech-ctc-long": 8_565_120,
    "speech-ctc-linspace": 8_565_120,
}
EVERY_VARIANT = [workload for variants in VARIANTS.values() for workload in variants]


def test_parameters_are_those_of_document_004_and_of_the_language_model_by_hand():
    assert {name: WORKLOADS[name].parameters for name in SPEECH} == SPEECH
    embedding = 10001 * 128
    lstm = 4 * 256 * (128 + 256 + 2) + 2 * 4 * 256 * (256 + 256 + 2)
    assert WORKLOADS["ptb-lm"].parameters == embedding + lstm + 256 * 10001 + 10001


@pytest.mark.parametrize("workload", EVERY_VARIANT, ids=lambda workload: workload.label)
def test_the_number_of_weights_is_the_number_of_parameters(workload):
    shapes = data.weight_shapes(workload)
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == workload.parameters


#: Workload -> document, batch, sequence, features, hidden, layers, directions, warm-up, batches, vocabulary,
#: head, outputs, loss, optimizer; as the documents and their programs have them.
SIZES = {
    "cell": ("000", 128, 1, 512, 512, 1, 1, 10, 100, None, "none", None, None, None),
    "layer": ("000", 32, 8, 32, 32, 1, 1, 10, 100, None, "none", None, None, None),
    "stack": ("000", 1, 100, 64, 64, 1, 1, 10, 100, None, "none", None, None, None),
    "ptb-lm": ("001", 128, 50, 128, 256, 3, 1, 10, 50, 10001, "every-step", 10001, "cross-entropy", "adam"),
}
_CLASSIFIER = ("002", 128, 64, 128, 128, 1, 1, 2, 50, 10000)
SIZES["text-classifier"] = (*_CLASSIFIER, "last-step", 5, "cross-entropy", "sgd")
SIZES["text-classifier-tensorflow"] = SIZES["text-classifier"]
SIZES["text-classifier-mxnet"] = (*_CLASSIFIER, "every-step", 5, "cross-entropy", "sgd")
SIZES["text-classifier-torch7"] = (*_CLASSIFIER, "last-step", 10000, "cross-entropy", "sgd")
_CE, _DEEP = (100, 400, None, "last-step", 10, "cross-entropy", "adam"), ("004", 32, 1000, 123, 320, 4, 2)
SIZES["speech-ce-short"] = ("004", 64, 100, 123, 320, 1, 1, *_CE)
SIZES["speech-ce-long"] = ("004", 32, 1000, 123, 320, 1, 1, *_CE)
SIZES["speech-bidirectional-ce-long"] = (*_DEEP, *_CE)
SIZES |= dict.fromkeys(
    ("speech-ctc-long", "speech-ctc-linspace"), (*_DEEP, 100, 400, None, "every-step", 59, "ctc", "adam")
)


def test_every_size_and_protocol_is_the_documents():
    fields = ("document", "batch", "sequence", "features", "hidden", "layers", "directions", "warmup", "batches")
    fields += ("vocabulary", "head", "outputs", "loss", "optimizer")
    assert {name: tuple(getattr(w, field) for field in fields) for name, w in WORKLOADS.items()} == SIZES
    assert {name for name, w in WORKLOADS.items() if "forward" in w.modes} == {"cell", "layer", "stack", "ptb-lm"}
    assert {name for name, w in WORKLOADS.items() if "training" in w.modes} == {"ptb-lm", *TEXT, *SPEECH}
    lengths = {name: (w.lengths, w.labels, w.even_lengths) for name, w in WORKLOADS.items() if w.loss == "ctc"}
    ctc = ("speech-ctc-long", "speech-ctc-linspace")
    assert lengths == {name: ((500, 1000), 100, name.endswith("linspace")) for name in ctc}
    # theano/basic_theano.py, tensorflow/tensorflow_rnn.py, mxnet/basic.py, torch/basic.lua; Keras' default.
    assert [WORKLOADS[name].learning_rate for name in TEXT] == [0.01, 0.001, 0.001, 0.1]


def test_recordings_keep_their_workloads_and_new_ones_are_other_workloads():
    """What was recorded has the fields that it had; only a field with another value than the default is added."""
    plain = WORKLOADS["speech-ctc-long"].as_dict()
    assert "even_lengths" not in plain and WORKLOADS["text-classifier"].learning_rate == 0.01
    even = WORKLOADS["speech-ctc-linspace"].as_dict()
    assert even == plain | {"name": "speech-ctc-linspace", "even_lengths": True}
    assert LiteratureWorkload.from_dict(even) == WORKLOADS["speech-ctc-linspace"]
    assert len({workload.name for workload in WORKLOADS.values()}) == len(WORKLOADS)


def test_lengths_at_equal_distances_are_those_of_document_004():
    """`np.int32(np.linspace(max_len / 2, max_len, batch_size))[::-1]`, in support.py and bench_pytorch_cudnnLSTM.py."""
    one, other = (data.make_batch(WORKLOADS["speech-ctc-linspace"].scaled(scale), 5).lengths for scale in ("1", "1/4"))
    assert one.tolist() == np.int32(np.linspace(500, 1000, 32))[::-1].tolist()
    assert other.tolist() == [int(125 + place * 125 / 7) for place in range(7, -1, -1)]


def test_variants_are_the_documents_tables():
    assert len(VARIANTS["layer"]) == 27
    assert [w.layers for w in VARIANTS["stack"]][:-1] == [1, *range(2, 21, 2)]
    assert all([w.hidden for w in VARIANTS[name]] == [128, 256, 512, 1024, 2048] for name in TEXT)
    assert all(w.features == w.hidden for name in ("layer", "stack", *TEXT) for w in VARIANTS[name])
    assert all(WORKLOADS[name] in variants for name, variants in VARIANTS.items())
    labels = [workload.label for workload in EVERY_VARIANT]
    assert len(set(labels)) == len(labels)


@pytest.mark.heavy
@pytest.mark.parametrize("name", WORKLOADS)
def test_flops_agree_with_pytorchs_count_for_the_basic_cell(name):
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from lstm_literature.implementations.on_pytorch_networks import build_network

    labels = WORKLOADS[name].labels and 2
    workload = replace(WORKLOADS[name], batch=3, sequence=6, hidden=8, features=5, lengths=None, labels=labels)
    network = build_network(workload, "basic")
    for parameter in network.parameters():
        parameter.data.zero_()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.from_numpy(data.make_batch(workload, 0).inputs), None, None, None)
    assert counter.get_total_flops() == workload.flops


def test_flops_of_variable_lengths_are_those_of_the_mean():
    ctc = WORKLOADS["speech-ctc-long"]
    assert ctc.flops / replace(ctc, lengths=None).flops == 0.75


def test_scaling_reduces_the_batch_and_keeps_the_network():
    eighth = WORKLOADS["ptb-lm"].scaled("1/8")
    network = {"batch": 16, "sequence": 6, "scale": "1/8"}
    assert eighth == replace(WORKLOADS["ptb-lm"], **network) and eighth.label == "ptb-lm@1/8"
    ctc = WORKLOADS["speech-ctc-long"].scaled(Fraction(1, 50))
    assert (ctc.batch, ctc.sequence, ctc.lengths, ctc.labels) == (1, 20, (10, 20), 2)
    assert WORKLOADS["stack"].scaled(0.25).scaled("1/2").scale == "1/8"
    assert WORKLOADS["cell"].scaled(1) == WORKLOADS["cell"]
    smallest = WORKLOADS["layer"].scaled("1/1000")
    assert (smallest.batch, smallest.sequence) == (1, 1)


def test_every_scale_leaves_ctc_enough_steps_for_its_labels():
    for denominator in range(1, 1200):
        workload = WORKLOADS["speech-ctc-long"].scaled(Fraction(1, denominator))
        assert workload.lengths[0] >= 2 * workload.labels - 1


@pytest.mark.parametrize("fraction", [0, -1, "3/2", "0", "half", float("nan"), float("inf"), None, "1/0"])
def test_an_invalid_scale_is_rejected(fraction):
    with pytest.raises(UsageError, match="scale"):
        WORKLOADS["cell"].scaled(fraction)


def test_variants_of_other_sizes():
    layer = WORKLOADS["layer"].variant(batch=7, sequence=3, hidden=40)
    assert (layer.features, layer.hidden, layer.label) == (40, 40, "layer-7x3x40")
    for name, sizes in (("cell", {"hidden": 3}), ("text-classifier", {"batch": 3}), ("stack", {"features": 3})):
        with pytest.raises(UsageError, match=name):
            WORKLOADS[name].variant(**sizes)


@pytest.mark.parametrize("workload", [*EVERY_VARIANT, WORKLOADS["speech-ctc-long"].scaled("1/8")])
def test_a_workload_can_be_stored_as_json(workload):
    plain = json.loads(json.dumps(workload.as_dict()))
    assert plain["kind"] == "literature"
    assert LiteratureWorkload.from_dict(plain) == workload


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "stacked-lstm"},
        {"colour": "red"},
        {"batch": 0},
        {"batch": 2.5},
        {"batch": True},
        {"modes": ["sleep"]},
        {"modes": []},
        {"head": "first-step"},
        {"directions": 3},
        {"hidden": None},
    ],
    ids=str,
)
def test_invalid_workloads_are_rejected(wrong):
    with pytest.raises(UsageError) as error:
        workload_from_dict(WORKLOADS["cell"].as_dict() | wrong)
    assert "\n" not in str(error.value)


def test_incomplete_and_unknown_workloads_are_rejected():
    with pytest.raises(UsageError):
        workload_from_dict({name: value for name, value in WORKLOADS["cell"].as_dict().items() if name != "hidden"})
    with pytest.raises(UsageError, match="cell, layer"):
        find("ptb")


@pytest.mark.parametrize("name", WORKLOADS)
def test_batches_have_the_documented_shapes_and_types(name):
    workload = WORKLOADS[name].scaled("1/10")
    batch, again, other = (data.make_batch(workload, seed) for seed in (3, 3, 4))
    assert batch.inputs.shape == workload.input_shape
    np.testing.assert_array_equal(batch.inputs, again.inputs)
    assert not np.array_equal(batch.inputs, other.inputs)
    if workload.vocabulary:
        assert batch.inputs.dtype == np.int64
        assert batch.inputs.min() >= 0 and batch.inputs.max() < workload.vocabulary
    else:
        assert batch.inputs.dtype == np.float32
    if workload.loss is None:
        assert batch.targets is None
        return
    ctc = workload.loss == "ctc"
    assert batch.targets.dtype == np.int64
    assert batch.targets.shape == ((workload.batch, workload.labels) if ctc else workload.output_shape[:-1])
    assert batch.targets.min() >= ctc and batch.targets.max() < workload.outputs


def test_lengths_are_in_descending_order_and_padding_is_zero():
    workload = WORKLOADS["speech-ctc-long"].scaled("1/4")
    batch = data.make_batch(workload, 5)
    assert batch.lengths.dtype == np.int64 and batch.lengths.shape == (8,)
    assert batch.lengths[0] == workload.sequence and (np.diff(batch.lengths) <= 0).all()
    assert batch.lengths[-1] >= workload.lengths[0] and len(set(batch.lengths)) > 1
    for row, length in enumerate(batch.lengths):
        assert not batch.inputs[length:, row].any() and batch.inputs[:length, row].any(1).all()


def test_weights_depend_only_on_the_network_and_the_seed():
    workload = WORKLOADS["text-classifier"]
    weights = data.make_weights(workload, 1)
    assert {name: array.shape for name, array in weights.items()} == data.weight_shapes(workload)
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}
    for name, array in data.make_weights(workload.scaled("1/8"), 1).items():
        np.testing.assert_array_equal(array, weights[name])
    assert not np.array_equal(data.make_weights(workload, 2)["dense.weight"], weights["dense.weight"])
    assert not np.array_equal(weights["lstm.bias_ih_l0"], weights["lstm.bias_hh_l0"])
    bound = 1 / np.sqrt(workload.hidden)
    largest = np.abs(weights["lstm.weight_hh_l0"]).max()
    assert 0.99 * bound < largest <= bound


def test_registered_implementations_are_complete_and_import_no_framework():
    code = """
import sys
from lstm_trt import registry
from lstm_literature import implementations, workloads
for name in implementations.IMPLEMENTATIONS:
    implementation = implementations.load_implementation(name)
    assert implementation.NAME == name, (name, implementation.NAME)
    assert all(implementation.PRECISIONS[device] for device in implementation.DEVICES), name
    for part in ("TITLE", "FRAMEWORK", "STYLE", "EXECUTION", "DISTRIBUTION"):
        assert getattr(implementation, part), (name, part)
    state = implementation.availability()
    assert state.ready or (state.reason and state.remedy), (name, state)
    assert set(implementation.DEVICES) <= {"cpu", "cuda"}, name
    for workload in workloads.WORKLOADS.values():
        for mode in workloads.MODES:
            reason = implementation.supports(workload, mode)
            assert reason is None or (0 < len(reason) < 160 and "\\n" not in reason), (name, reason)
            assert reason is not None or mode in workload.modes, (name, workload.name, mode)
titles = {implementations.load_implementation(name).TITLE for name in implementations.IMPLEMENTATIONS}
assert len(titles) == len(implementations.IMPLEMENTATIONS)
heavy = {"torch", "tensorflow", "keras", "tvm", "onnx", "jax"} & set(sys.modules)
assert not heavy, heavy
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr


def test_an_implementation_can_be_given_as_a_module(tmp_path, monkeypatch):
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text(
        "class Mine:\n    pass\n"
        f"for name in {implementations.CONTRACT!r}:\n    setattr(Mine, name, name)\n"
        "Mine.NAME = 'mine'\nclass Lacking:\n    NAME = 'lacking'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert implementations.load_implementation("my_package.mine:Mine").NAME == "mine"
    for name, match in (
        ("my_package.mine:Lacking", "TITLE"),
        ("my_package.mine:Absent", "Absent"),
        ("my_package.absent", "absent"),
        ("pytorch", "'pytorch'"),
    ):
        with pytest.raises(UsageError, match=match):
            implementations.load_implementation(name)


class Unsupporting(implementations.Implementation):
    NAME = "some"
    state, reason = Availability(True), "planted reason"

    def availability(self, device="cpu"):
        return self.state

    def supports(self, workload, mode, device="cpu"):
        return self.reason

    def _prepare(self, request, batch):
        return batch


def test_an_unsupported_workload_is_rejected_with_the_reason():
    some = Unsupporting()
    inputs = data.make_batch(WORKLOADS["cell"], 0).by_name()
    cell, layer = (
        Request(WORKLOADS[name], Options(), inputs, data.make_weights(WORKLOADS[name], 0)) for name in ("cell", "layer")
    )
    with pytest.raises(BuildFailed, match=r"some .*cell \(forward\): planted reason"):
        some.prepare(cell)
    some.reason = None
    assert some.prepare(cell).inputs is inputs["inputs"]
    with pytest.raises(UsageError, match="inputs"):
        some.prepare(layer)
    some.state = Availability(False, reason="not here")
    with pytest.raises(RuntimeUnavailable, match="not here"):
        some.prepare(cell)
    assert "forward" in implementations.mode_reason(WORKLOADS["cell"], "training")
    assert implementations.mode_reason(WORKLOADS["cell"], "sleep") is not None
    assert implementations.mode_reason(WORKLOADS["ptb-lm"], "training") is None
