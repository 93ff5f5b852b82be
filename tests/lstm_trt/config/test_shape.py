"""Shapes, grids and the identity of configurations."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lstm_trt.config.configuration import Configuration, Options, Protocol, canonical_json
from lstm_trt.config.errors import UnknownConfiguration, UsageError
from lstm_trt.config.shape import PUBLISHED_003, Grid, LstmShape
from lstm_trt.export.network import DISTINCT_SEQUENCES, build_module, make_inputs, make_weights, weight_shapes
from lstm_trt.machine.linux import choose_cores

SHAPES = [LstmShape(1, 7, 3), LstmShape(3, 16, 5, 2), LstmShape(2, 9, 4, 3, features=5, directions=2)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
def test_counts_are_those_of_the_network_itself(shape):
    module = build_module(shape, make_weights(shape, 0))
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    assert shape.parameters == sum(sizes.values())
    # Every weight of a matrix is used once per step and sequence, in a multiplication and an addition.
    operations = 2 * shape.sequence * shape.batch
    matrices = {name: sizes[name] for name, parameter in module.named_parameters() if parameter.dim() == 2}
    assert shape.flops == operations * sum(matrices.values())
    recurrent = sum(layer.recurrent_flops for layer in shape.recurrent_layers)
    assert recurrent == operations * sum(n for name, n in matrices.items() if "weight_hh" in name)
    # One answer a step and sequence.
    inputs = torch.zeros(shape.sequence, shape.batch, shape.features)
    assert module(inputs).shape == (shape.sequence, shape.batch, 1)
    assert not module.training and not any(parameter.requires_grad for parameter in module.parameters())


def test_the_predefined_grid():
    batches = [2**power for power in range(10)]
    hidden, sequences = (32, 64, 100, 128, 200, 256, 300, 400), (32, 64, 128, 200, 256)
    expected = set(itertools.starmap(LstmShape, itertools.product((1, 2, 3, 4, 6), hidden, sequences, batches)))
    assert set(PUBLISHED_003) == expected and len(list(PUBLISHED_003)) == len(PUBLISHED_003) == len(expected)
    assert {shape.features for shape in expected} == {12}


@pytest.mark.parametrize(
    ("name", "value"),
    [("layers", 0), ("hidden", -3), ("sequence", 1.5), ("batch", True), ("directions", 3), ("hidden", 10**9)],
)
def test_invalid_sizes(name, value):
    with pytest.raises(UsageError, match=name):
        LstmShape(**{"layers": 1, "hidden": 8, "sequence": 4, name: value})


def test_names_are_unique_and_grids_drop_duplicates():
    names = [shape.label for shape in Grid((1, 2), (8, 16), (4, 8), (1, 2), (12, 3), (1, 2))]
    assert len(set(names)) == len(names) == 64
    assert len(Grid(layers=(1, 1, 2), hidden=(8,), sequence=(4,))) == 2
    with pytest.raises(UsageError):
        Grid(layers=(1,), hidden=(), sequence=(4,))


def configuration(**changes) -> Configuration:
    return replace(Configuration(LstmShape(2, 64, 32), "onnxruntime", "1.31.1", "a processor"), **changes)


PERIODIC = Protocol(arrival="periodic", period_us=1000)
CHANGES = [
    {},
    {"workload": LstmShape(2, 64, 33)},
    {"runtime": "pytorch"},
    {"runtime_version": "1.31.2"},
    {"device_name": "another"},
    {"mode": "stream"},
    *(
        {"options": Options(**{name: value})}
        for name, value in {
            "threads": 2,
            "cores": (1,),
            "precision": "int8",
            "graph": True,
            "device_clocks": "all",
            "prepare": True,
        }.items()
    ),
    *(
        {"protocol": Protocol(**{name: value})}
        for name, value in {"trials": 1001, "warmup": 11, "seed": 1, "for_s": 3600}.items()
    ),
    {"protocol": PERIODIC},
    *(
        {"protocol": replace(PERIODIC, **{name: value})}
        for name, value in [("period_us", 500), ("wait", "sleep"), ("wait", "os")]
    ),
    {"protocol": Protocol(arrival="paused", pause_ms=100)},
]


def test_every_change_of_the_configuration_changes_the_id_and_comes_back():
    made = [configuration(**changes) for changes in CHANGES]
    assert len({each.id for each in made}) == len(made)
    for each in made:
        text = json.dumps(each.as_dict(), sort_keys=True, separators=(",", ":"))
        assert canonical_json(each.as_dict()) == text and each.id == hashlib.sha256(text.encode()).hexdigest()
        back = Configuration.from_dict(json.loads(text))
        assert back == each and back.id == each.id
    # What is not asked for is not part of it.
    assert "prepare" not in configuration().as_dict()["options"]


@pytest.mark.parametrize("plain", [{}, {"workload": 3}])
def test_invalid_configurations_are_refused(plain):
    with pytest.raises(UsageError):
        Configuration.from_dict(plain)


@pytest.mark.parametrize("part", ["workload", "options", "protocol"])
def test_fields_of_a_later_version_are_unknown(part):
    plain = configuration().as_dict()
    with pytest.raises(UnknownConfiguration):
        Configuration.from_dict(plain | {part: plain[part] | {"of_tomorrow": 1}})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Options, "precision", "fp8"),
        (Options, "threads", 0),
        (Options, "device", "tpu"),
        (Protocol, "trials", 0),
        (Protocol, "warmup", -1),
        (Protocol, "arrival", "whenever"),
        (choose_cores, "threads", 10_000),
    ],
)
def test_invalid_options_are_refused(kind, name, value):
    with pytest.raises(UsageError):
        kind(**{name: value})


def test_weights_are_seeded_and_inputs_repeat_few_sequences():
    shape = LstmShape(2, 16, 5, 9)
    first, again, other = (make_weights(shape, seed) for seed in (1, 1, 2))
    assert {name: array.shape for name, array in first.items()} == weight_shapes(shape)
    np.testing.assert_equal(again, first)
    assert all((array != other[name]).any() and abs(array).max() <= 1 / 16**0.5 for name, array in first.items())
    inputs, distinct, which = make_inputs(shape, 3)
    assert inputs.shape == (5, 9, 12) and distinct.shape == (5, DISTINCT_SEQUENCES, 12)
    assert (inputs == distinct[:, which]).all() and set(which) == set(range(DISTINCT_SEQUENCES))
    assert len({sequence.tobytes() for sequence in distinct.transpose(1, 0, 2)}) == DISTINCT_SEQUENCES
