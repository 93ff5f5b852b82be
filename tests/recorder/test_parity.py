"""The parity gate tells precisions apart: planted networks that compute in less than they were asked for."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest

from lstm_trt.config.configuration import PRECISIONS, Configuration, Options, Protocol
from lstm_trt.config.errors import ParityFailed
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.network import make_weights
from lstm_trt.export.to_onnx import INPUT, OUTPUT
from lstm_trt.recorder.parity import LEAST_VALUES, PARITY_BOUNDS, check_parity, to_bfloat16
from lstm_trt.recorder.shapes import PREPARER
from lstm_trt.runtimes.base import Gate, PreparedStep
from tests.support.rounded_lstm import COMPUTED, outputs, significant

QUICK = [LstmShape(1, 32, 1), LstmShape(2, 64, 32), LstmShape(1, 64, 1, 1, 512)]
MANY = [
    *QUICK,
    *(LstmShape(*sizes) for sizes in [(1, 8, 1), (2, 64, 1), (1, 32, 16), (2, 16, 100), (3, 128, 8), (1, 256, 8)]),
    *(LstmShape(*sizes) for sizes in [(4, 64, 32), (2, 64, 32, 4), (2, 64, 16, 1, 12, 2)]),
]

#: What may compute in place of each precision: as exact or more so.
HONEST = {
    "fp32": ["fp32"],
    "tf32": ["fp32", "tf32"],
    "fp16": ["fp32", "tf32", "fp16"],
    "bf16": ["fp32", "tf32", "fp16", "bf16 products", "bf16"],
    "int8": [*COMPUTED],
}

#: Precision -> what computes in less, and the share of networks for which that is detected at least.
LESS = {
    "fp32": {"tf32": 1, "fp16": 1, "bf16 products": 1, "bf16": 1, "int8": 1},
    "tf32": {"bf16 products": 0.95, "bf16": 0.9, "int8": 0.95},
    "fp16": {"bf16": 0.9, "int8": 0.6},
}


class Planted(PreparedStep):
    """The network of `export.network` computed in one of `COMPUTED`."""

    def __init__(self, shape: LstmShape, seed: int, computed: str) -> None:
        self.how = shape, make_weights(shape, seed)
        self.computed, self.known = computed, {}

    def load_inputs(self, inputs):
        self.inputs = inputs[INPUT]

    def step(self):
        key = self.inputs.tobytes()
        if key not in self.known:
            self.known[key] = outputs(*self.how, self.inputs, self.computed)
        self.answer = self.known[key]

    def outputs(self):
        return {OUTPUT: self.answer}


def gate_of(shape: LstmShape, precision: str, seed: int, folder) -> tuple[Configuration, Gate]:
    configuration = Configuration(
        shape, "pytorch", "1.0", "a device", Options(precision=precision), Protocol(seed=seed)
    )
    reference = PREPARER.reference(configuration, 1000 + seed, folder / "answers.npy", lambda *event, **values: None)
    reference |= {"gate_seed": 1000 + seed, "answers_path": folder / "answers.npy"}
    return configuration, PREPARER.gate(configuration, reference)


def passes(step: PreparedStep, configuration: Configuration, gate: Gate) -> bool:
    try:
        check_parity(step, configuration, gate)
    except ParityFailed:
        return False
    return True


def shares_that_pass(shapes, seeds, folder) -> dict[tuple[str, str], float]:
    """(precision, computed) -> share of the networks that pass the gate."""
    passed = defaultdict(list)
    for shape, seed in itertools.product(shapes, range(seeds)):
        steps = {computed: Planted(shape, seed, computed) for computed in COMPUTED}
        for precision in PRECISIONS:
            gate = gate_of(shape, precision, seed, folder)
            for computed, step in steps.items():
                passed[precision, computed].append(passes(step, *gate))
    return {pair: float(np.mean(values)) for pair, values in passed.items()}


def test_what_computes_in_less_than_it_was_asked_for_fails(tmp_path):
    found = shares_that_pass(QUICK, 1, tmp_path)
    assert all(found[precision, computed] == 1 for precision, several in HONEST.items() for computed in several)
    less = {(precision, computed): share for precision, several in LESS.items() for computed, share in several.items()}
    assert all(found[pair] == 0 for pair, share in less.items() if share >= 0.9), found


@pytest.mark.heavy
def test_over_many_networks_what_is_honest_passes_and_what_computes_in_less_fails(tmp_path):
    found = shares_that_pass(MANY, 10, tmp_path)
    for precision, several in HONEST.items():
        assert all(found[precision, computed] >= 0.97 for computed in several), found
    assert all(found["fp32", computed] == (computed == "fp32") for computed in COMPUTED)
    for precision, several in LESS.items():
        assert all(found[precision, computed] <= 1 - share + 1e-9 for computed, share in several.items()), found


@pytest.mark.parametrize("shape", [LstmShape(1, 4, 1), LstmShape(1, 4, 3, 2), LstmShape(1, 4, 16), LstmShape(1, 4, 64)])
def test_enough_outputs_are_compared(shape, tmp_path):
    """A single output can agree by chance: calls of few outputs are repeated with other inputs."""
    _, gate = gate_of(shape, "fp32", 0, tmp_path)
    assert gate.expected[OUTPUT].size >= LEAST_VALUES and len(gate.questions) > 1 and gate.rounded is None
    distinct = {inputs[INPUT].tobytes() for inputs in gate.questions}
    assert len(distinct) == len(gate.questions)


def test_the_bound_of_a_lower_precision_follows_from_the_network(tmp_path):
    """Of outputs that nearly cancel, the relative errors are large in every precision."""
    shape = LstmShape(2, 32, 16)
    configuration, gate = gate_of(shape, "bf16", 0, tmp_path)
    plain = check_parity(Planted(shape, 0, "bf16"), configuration, gate)
    assert plain["error"] <= plain["bound"] <= PARITY_BOUNDS["bf16"] * 3

    class Shifted(Planted):
        def outputs(self):
            return {OUTPUT: self.answer - shift}

    shift = gate.expected[OUTPUT].mean() * np.float32(0.98)
    moved = {
        name: {OUTPUT: arrays[OUTPUT] - shift} for name, arrays in vars(gate).items() if name in ("expected", "rounded")
    }
    nearly_zero = type(gate)(**{**vars(gate), **moved})
    found = check_parity(Shifted(shape, 0, "bf16"), configuration, nearly_zero)
    assert found["bound"] > 1.5 * plain["bound"] and found["error"] > 1.5 * plain["error"]


def test_rounding_to_bfloat16(rng):
    values = rng.standard_normal(1000).astype(np.float32) * np.float32(10.0) ** rng.integers(-20, 20, 1000)
    assert np.array_equal(to_bfloat16(values), significant(8)(values))
    assert np.array_equal(to_bfloat16(np.array([0, 1, -1.5], np.float32)), [0, 1, -1.5])
