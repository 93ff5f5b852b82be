"""The parity gate tells precisions apart, and what a NaN in the input does: planted networks, and real runtimes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from lstm_onnx import preparer as own
from lstm_onnx.own_network import OnnxNetwork
from lstm_trt.config.configuration import PRECISIONS, Configuration, Options, Protocol
from lstm_trt.config.errors import ParityFailed
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.network import make_weights, to_bfloat16
from lstm_trt.export.to_onnx import INPUT, OUTPUT
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.parity import (
    LEAST_VALUES,
    PARITY_BOUNDS,
    check_parity,
    hollow,
    nan_reaches_output,
    relative_error,
)
from lstm_trt.recorder.preparers.stacked import PREPARER
from lstm_trt.runtimes import load_runtime
from lstm_trt.runtimes.base import Gate, PreparedStep
from tests.conftest import rest_is_heavy, sampled
from tests.lstm_onnx.test_preparer import reference_of, saved
from tests.lstm_trt.recorder.test_stream import RUNTIMES, prepared
from tests.support.own_networks import stream
from tests.support.planted_graphs import relu
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
    reference |= {"gate_seed": 1000 + seed, "reference_path": folder / "answers.npy"}
    return configuration, PREPARER.gate(configuration, reference)


FLOATS = np.linspace(-1, 1, 24).reshape(4, 2, 3)

#: Outputs by name for four sets of inputs -> what `not_checked` says; None for a comparison that proves something.
HOLLOW = {
    "zero": ({"y": 0 * FLOATS}, "all outputs are 0"),
    "one number": ({"y": 0 * FLOATS + 7}, "all outputs are one number"),
    "one number each": ({"y": 0 * FLOATS + 7, "z": 0 * FLOATS}, "all outputs are one number"),
    "the same": ({"y": np.broadcast_to(FLOATS[:1], FLOATS.shape)}, "the outputs hardly vary with the inputs"),
    "hardly different": ({"y": 1e3 + 1e-4 * FLOATS}, "the outputs hardly vary with the inputs"),
    "floats are the same": ({"y": 0 * FLOATS + 7, "best": np.arange(4)}, "all outputs are one number"),
    "integers are the same": ({"best": np.full(4, 3)}, "all outputs are one number"),
    "different": ({"y": FLOATS}, None),
    "near a number": ({"y": 1 + 1e-3 * FLOATS}, None),
    "one differs": ({"y": 0 * FLOATS, "z": FLOATS}, None),
    "integers differ": ({"best": np.array([3, 3, 0, 3])}, None),
    "a mask": ({"best": np.arange(4) > 1}, None),
    "one set differs": ({"y": np.where(np.arange(4)[:, None, None] == 2, FLOATS, 1)}, None),
}


class Answers(PreparedStep):
    """Has of each of these outputs that of the set whose number is its input; or always the first, if it is frozen."""

    def __init__(self, arrays: dict[str, np.ndarray], frozen: bool = False) -> None:
        self.arrays, self.frozen = arrays, frozen

    def load_inputs(self, inputs):
        self.at = 0 if self.frozen else int(inputs["x"][0])

    def step(self):
        pass

    def outputs(self):
        return {name: array[self.at] for name, array in self.arrays.items()}


def numbered(expected: dict[str, np.ndarray]) -> Gate:
    """A gate whose sets of inputs are their numbers."""
    count = len(next(iter(expected.values())))
    return Gate(tuple({"x": np.full(1, number, np.float32)} for number in range(count)), expected, 0, every=True)


def asked_for(precision: str = "fp32") -> Configuration:
    return Configuration(QUICK[0], "pytorch", "1.0", "a device", Options(precision=precision), Protocol())


@pytest.mark.parametrize("kind", HOLLOW)
def test_a_comparison_with_outputs_that_do_not_vary_checks_nothing(kind):
    """A step that repeats its first outputs passes exactly where nothing is said to be checked."""
    expected, reason = HOLLOW[kind]
    arrays = {name: np.asarray(array) for name, array in expected.items()}
    arrays = {name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in arrays.items()}
    found = check_parity(Answers(arrays), asked_for(), numbered(arrays))
    assert found["not_checked"] == reason and found["error"] == (None if reason else 0.0)
    if kind != "floats are the same":  # its integers are not
        assert passes(Answers(arrays, frozen=True), asked_for(), numbered(arrays)) == (reason is not None)


@pytest.mark.parametrize(("off", "frozen", "checked"), [(0.002, False, True), (0.04, False, False), (0.0, True, False)])
def test_what_varies_less_than_a_wide_limit_is_checked_by_the_error_that_is_reached(off, frozen, checked):
    """Outputs that vary by 4 % with the inputs, within int8's 5 %: deep stacks have such outputs."""
    outputs = (1 + 0.03 * np.array([[1.0, -1.0], [-1.0, 1.0]])).astype(np.float32)
    step = Answers({"y": outputs * np.float32(1 + off)}, frozen)
    found = check_parity(step, asked_for("int8"), numbered({"y": outputs}))
    assert (found["error"] is not None) == checked == (found["not_checked"] is None)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((2, 3)), "all outputs are 0"),
        (np.ones((2, 3)), "all outputs are one number"),
        *((array, None) for array in (np.ones((1, 1)), np.array([1.0, 1.0, 2.0]), np.array(0.693))),  # a single loss
    ],
)
def test_one_set_of_outputs_is_hollow_if_it_is_one_number(array, reason):
    assert hollow(Gate((), {"y": array}, 0), 1e-5) == reason


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
@sampled(2)
def test_over_many_networks_what_is_honest_passes_and_what_computes_in_less_fails(tmp_path):
    found = shares_that_pass(MANY, 10, tmp_path)
    assert all(found[precision, computed] >= 0.97 for precision, several in HONEST.items() for computed in several), (
        found
    )
    assert all(found["fp32", computed] == (computed == "fp32") for computed in COMPUTED)
    for precision, several in LESS.items():
        assert all(found[precision, computed] <= 1 - share + 1e-9 for computed, share in several.items()), found


@pytest.mark.parametrize("shape", [LstmShape(1, 4, 1), LstmShape(1, 4, 3, 2), LstmShape(1, 4, 16), LstmShape(1, 4, 64)])
def test_enough_outputs_are_compared(shape, tmp_path):
    """A single output can agree by chance: calls of few outputs are repeated with other inputs."""
    _, gate = gate_of(shape, "fp32", 0, tmp_path)
    assert gate.expected[OUTPUT].size >= LEAST_VALUES and len(gate.inputs) > 1 and gate.rounded is None
    distinct = {inputs[INPUT].tobytes() for inputs in gate.inputs}
    assert len(distinct) == len(gate.inputs)


def test_the_bound_of_a_lower_precision_follows_from_the_network(tmp_path):
    """Of outputs that nearly cancel, the relative errors are large in every precision."""
    shape = LstmShape(2, 32, 16)
    configuration, gate = gate_of(shape, "bf16", 0, tmp_path)
    plain = check_parity(Planted(shape, 0, "bf16"), configuration, gate)
    assert plain["error"] <= plain["bound"] <= PARITY_BOUNDS["bf16"] * 3
    shift = gate.expected[OUTPUT].mean() * np.float32(0.98)

    class Shifted(Planted):
        def outputs(self):
            return {OUTPUT: self.answer - shift}

    moved = {name: {OUTPUT: getattr(gate, name)[OUTPUT] - shift} for name in ("expected", "rounded")}
    found = check_parity(Shifted(shape, 0, "bf16"), configuration, replace(gate, **moved))
    assert found["bound"] > 1.5 * plain["bound"] and found["error"] > 1.5 * plain["error"]


@pytest.mark.random(tail=0, why="identity")
def test_rounding_to_bfloat16(rng):
    values = (rng.standard_normal(1000) * 10.0 ** rng.integers(-20, 20, 1000)).astype(np.float32)
    assert np.array_equal(to_bfloat16(values), significant(8)(values))
    assert np.array_equal(to_bfloat16(np.array([0, 1, -1.5], np.float32)), [0, 1, -1.5])


# Whether a NaN reaches the output

NAN = float("nan")


class Running(PreparedStep):
    """Adds up what a function makes of its inputs, since the last reset."""

    def __init__(self, function):
        self.function, self.resets = function, 0
        self.reset()

    def reset(self):
        self.sum, self.resets = 0.0, self.resets + 1

    def load_inputs(self, inputs):
        self.inputs = inputs

    def step(self):
        self.sum = self.sum + self.function(self.inputs)

    def outputs(self):
        return {"count": np.array([1]), "sum": np.asarray(self.sum)}


def planted_gate(**inputs) -> Gate:
    return Gate(({name: np.zeros_like(array) for name, array in inputs.items()}, inputs), None, 1)


@pytest.mark.random(tail=0, why="identity")
@pytest.mark.parametrize(
    ("function", "answer"),
    [
        (lambda inputs: inputs["x"], True),
        (lambda inputs: inputs["x"].astype(np.float16), True),
        (lambda inputs: np.nan_to_num(inputs["x"]), False),
        (lambda inputs: np.fmax(inputs["x"], -1), False),
        (lambda inputs: inputs["other"], False),
        (lambda inputs: np.argmax(inputs["x"]), False),
        (lambda inputs: 1 // 0, None),
    ],
    ids=["passes", "passes in half precision", "hides", "clamps", "other input", "index", "raises"],
)
def test_planted_steps_that_pass_or_hide_a_nan(function, answer, rng):
    gate = planted_gate(index=np.arange(3), x=rng.standard_normal((2, 3)), other=rng.standard_normal((2, 3)))
    step = Running(function)
    step.sum = NAN  # a state that was not reset before
    assert nan_reaches_output(step, gate) is answer
    assert step.resets == 3 and np.all(step.sum == 0)
    assert np.isfinite(gate.inputs[-1]["x"]).all()
    if answer is not None:
        assert np.argwhere(np.isnan(step.inputs["x"])).tolist() == [[0, 0]] and np.isfinite(step.inputs["other"]).all()


@pytest.mark.parametrize(
    "gate",
    [
        Gate((), None, 1),
        planted_gate(index=np.arange(3), empty=np.zeros((0, 2))),
        replace(planted_gate(x=np.ones(1)), repeatable=False),
    ],
)
def test_nothing_is_known_of_a_nan_without_an_input_for_it(gate):
    step = Running(lambda inputs: NAN)
    assert nan_reaches_output(step, gate) is None and step.resets == 1  # it was not called


ON_CPU = [name for name in RUNTIMES if "cpu" in load_runtime(name).DEVICES]


@pytest.mark.parametrize(
    ("name", "mode"),
    rest_is_heavy(itertools.product(ON_CPU, ("forward", "stream")), lambda name, _: name in ("onnxruntime", "pytorch")),
)
def test_onnx_runtime_hides_a_nan_that_others_pass_and_none_remains(tmp_path, name, mode):
    """Outputs after the check are those before it; in a stream, a NaN stays until the reset."""
    if not load_runtime(name).availability("cpu").ready:
        pytest.skip(f"{name} is not ready here")
    _, request, gate = prepared(LstmShape(2, 16, 7, 1 if name == "c" else 2), name, tmp_path, mode=mode)
    step = load_runtime(name).prepare(request)

    def calls(inputs, count=3):
        found = []
        for _ in range(count):
            step.load_inputs(inputs)
            step.step()
            found.append(step.outputs()[OUTPUT])
        return np.stack(found)

    step.reset()
    before = calls(request.inputs)
    assert nan_reaches_output(step, gate) is (name != "onnxruntime")
    assert np.array_equal(calls(request.inputs), before) and np.isfinite(before).all()
    with_nan = request.inputs[INPUT].copy()
    with_nan[0, 0, 0] = NAN
    step.reset()
    calls({INPUT: with_nan}, 1)
    later = calls(request.inputs)
    assert np.isfinite(later[:, :, 1:]).all()  # the other sequence of the batch
    remains = mode == "stream" and name != "onnxruntime"
    assert (np.isnan if remains else np.isfinite)(later[:, :, 0]).all()
    assert remains or np.array_equal(later, before) == (mode == "forward")
    step.close()


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "hiding"), [("onnxruntime", {"LSTM", "GRU"}), ("openvino", {"Relu"})])
@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN", "Relu"])
def test_the_operators_that_hide_a_nan(tmp_path, name, hiding, operator):
    pytest.importorskip(name)
    model, sizes = (relu(), {}) if operator == "Relu" else (stream(operator), {"time": 7, "batch": 1})
    network = OnnxNetwork(saved(model, tmp_path), sizes=sizes)
    for mode in network.modes:
        configuration = describe(network, name, Protocol(trials=1), mode=mode)
        reference = reference_of(configuration, tmp_path)
        step = load_runtime(name).prepare(own.PREPARER.request(configuration, reference))
        assert nan_reaches_output(step, own.PREPARER.gate(configuration, reference)) is (operator not in hiding), mode
        step.close()


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([0.0, 0.0, 0.0], [1e-39, -3e-38, 1e-31], 0),
        ([0.0], [1e-29], 1),
        ([1.0, 0.0], [1.0, 1e-39], 0),
        ([NAN], [0.0], NAN),
    ],
)
def test_a_difference_of_denormal_size_is_none(found, expected, error):
    sides = (np.array(values, np.float32) for values in (found, expected))
    assert relative_error(*sides) == pytest.approx(error, abs=0, nan_ok=True)
