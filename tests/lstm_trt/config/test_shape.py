"""Shapes, grids and the identity of configurations."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
import torch

from lstm_trt.config.configuration import Configuration, Options, Protocol, canonical_json
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import PUBLISHED_003, Grid, LstmShape
from lstm_trt.export.network import DISTINCT_SEQUENCES, build_module, make_inputs, make_weights, weight_shapes
from lstm_trt.machine.linux import choose_cores

SHAPES = [LstmShape(1, 7, 3), LstmShape(3, 16, 5, 2), LstmShape(2, 9, 4, 3, features=5, directions=2)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
def test_counts_are_those_of_the_network_itself(shape):
    module = build_module(shape, make_weights(shape, 0))
    assert shape.parameters == sum(parameter.numel() for parameter in module.parameters())
    # Every weight of a matrix is used once per step and sequence, in a multiplication and an addition.
    steps = shape.sequence * shape.batch
    matrices = {name: p.numel() for name, p in module.named_parameters() if p.dim() == 2}
    assert shape.flops == 2 * steps * sum(matrices.values())
    recurrent = sum(layer.recurrent_flops for layer in shape.recurrent_layers)
    assert recurrent == 2 * steps * sum(n for name, n in matrices.items() if "weight_hh" in name)


def test_the_predefined_grid():
    shapes = list(PUBLISHED_003)
    assert len(shapes) == len(set(shapes)) == len(PUBLISHED_003) == 2000
    assert {shape.layers for shape in shapes} == {1, 2, 3, 4, 6}
    assert {shape.hidden for shape in shapes} == {32, 64, 100, 128, 200, 256, 300, 400}
    assert {shape.sequence for shape in shapes} == {32, 64, 128, 200, 256}
    assert {shape.batch for shape in shapes} == {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}
    assert {shape.features for shape in shapes} == {12}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": 0}, "layers must be at least 1"),
        ({"hidden": -3}, "hidden must be at least 1"),
        ({"sequence": 1.5}, "sequence must be a whole number"),
        ({"batch": True}, "batch must be a whole number"),
        ({"directions": 3}, "directions must be 1 or 2"),
        ({"hidden": 10**9}, "at most"),
    ],
)
def test_invalid_sizes(values, message):
    with pytest.raises(UsageError, match=message):
        LstmShape(**{"layers": 1, "hidden": 8, "sequence": 4, **values})


def test_names_are_unique_and_grids_drop_duplicates():
    names = [shape.label for shape in Grid((1, 2), (8, 16), (4, 8), (1, 2), (12, 3), (1, 2))]
    assert len(set(names)) == len(names) == 64
    assert len(Grid(layers=(1, 1, 2), hidden=(8,), sequence=(4,))) == 2
    with pytest.raises(UsageError, match="hidden needs at least one value"):
        Grid(layers=(1,), hidden=(), sequence=(4,))


def configuration(**changes) -> Configuration:
    return replace(Configuration(LstmShape(2, 64, 32), "onnxruntime", "1.31.1", "a processor"), **changes)


def test_the_id_is_the_hash_of_canonical_json_and_survives_a_round_trip():
    original = configuration()
    text = json.dumps(original.as_dict(), sort_keys=True, separators=(",", ":"))
    assert canonical_json(original.as_dict()) == text
    assert original.id == hashlib.sha256(text.encode()).hexdigest()
    back = Configuration.from_dict(json.loads(text))
    assert back == original and back.id == original.id


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": LstmShape(2, 64, 33)},
        {"runtime": "pytorch"},
        {"runtime_version": "1.31.2"},
        {"device_name": "another"},
        {"options": Options(threads=2)},
        {"options": Options(cores=(1,))},
        {"options": Options(precision="int8")},
        {"options": Options(graph=True)},
        {"options": Options(device_clocks="all")},
        {"protocol": Protocol(trials=1001)},
        {"protocol": Protocol(warmup=11)},
        {"protocol": Protocol(seed=1)},
    ],
    ids=str,
)
def test_every_change_of_the_configuration_changes_the_id(changes):
    assert configuration(**changes).id != configuration().id


@pytest.mark.parametrize("plain", [{}, {"workload": 3}, {**configuration().as_dict(), "options": {"speed": 1}}])
def test_invalid_configurations_are_refused(plain):
    with pytest.raises(UsageError):
        Configuration.from_dict(plain)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Options(precision="fp8"),
        lambda: Options(threads=0),
        lambda: Options(device="tpu"),
        lambda: Protocol(trials=0),
        lambda: Protocol(warmup=-1),
        lambda: Protocol(arrival="whenever"),
        lambda: choose_cores(10_000),
    ],
)
def test_invalid_options_are_refused(make):
    with pytest.raises(UsageError):
        make()


def test_weights_are_seeded_and_inputs_repeat_few_sequences():
    shape = LstmShape(2, 16, 5, 9)
    first, again, other = make_weights(shape, 1), make_weights(shape, 1), make_weights(shape, 2)
    assert {name: array.shape for name, array in first.items()} == weight_shapes(shape)
    for name, array in first.items():
        assert (array == again[name]).all() and (array != other[name]).any()
        assert abs(array).max() <= 1 / 16**0.5
    inputs, distinct, which = make_inputs(shape, 3)
    assert inputs.shape == (5, 9, 12) and distinct.shape == (5, DISTINCT_SEQUENCES, 12)
    assert (inputs == distinct[:, which]).all()
    assert set(which) == set(range(DISTINCT_SEQUENCES))
    assert len({sequence.tobytes() for sequence in distinct.transpose(1, 0, 2)}) == DISTINCT_SEQUENCES


def test_one_answer_a_step_and_sequence():
    shape = LstmShape(2, 8, 6, 3, directions=2)
    module = build_module(shape, make_weights(shape, 0))
    assert module(torch.zeros(6, 3, 12)).shape == (6, 3, 1)
    assert not module.training and not any(parameter.requires_grad for parameter in module.parameters())
