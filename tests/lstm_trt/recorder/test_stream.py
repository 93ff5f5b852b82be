"""Streams: state that is carried from call to call, in every runtime that has the mode."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import lstm_trt
from lstm_judge.plots.points import describe_systems, points_of, systems
from lstm_judge.read.rounds import groups_of
from lstm_judge.scaling.times import read_times
from lstm_trt import registry
from lstm_trt.config.configuration import Options, Protocol
from lstm_trt.config.errors import ParityFailed
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.to_onnx import OUTPUT
from lstm_trt.machine import facts
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.jobs import Seconds
from lstm_trt.recorder.loop import Loop, against_clock
from lstm_trt.recorder.parity import PARITY_BOUNDS, check_parity
from lstm_trt.recorder.pool import remarks
from lstm_trt.recorder.preparers.stacked import PREPARER, STREAM_SAMPLES
from lstm_trt.recorder.run import Pass, Run
from lstm_trt.runtimes import load_runtime
from lstm_trt.runtimes.base import Request
from tests.conftest import computes_bf16, rest_is_heavy
from tests.lstm_judge.test_confirmation import recording
from tests.support.faulty import RightStep, lstm
from tests.support.trials import NoSwitches, run_trials

SHAPES = [LstmShape(*sizes) for sizes in itertools.product((1, 2, 3), (16,), (1, 7, 64), (1, 3))]
RUNTIMES = [name for name in registry.table("RUNTIMES") if "stream" in getattr(load_runtime(name), "MODES", ())]
QUICK = [LstmShape(2, 16, 7, 3)]
QUICK_OF_C = LstmShape(2, 16, 7, 1)  # the runtime c is for batch size 1


def prepared(shape, runtime, tmp_path, options=None, mode="stream"):
    """Configuration, request and gate, as a worker gets them."""
    configuration = describe(shape, runtime, Protocol(trials=10), options, mode)
    reference = PREPARER.reference(configuration, 99, tmp_path / "answers.npy", lambda *event, **values: None)
    reference |= {"gate_seed": 99, "reference_path": tmp_path / "answers.npy"}
    return configuration, PREPARER.request(configuration, reference), PREPARER.gate(configuration, reference)


def cases():
    return [
        (name, shape, precision)
        for name in RUNTIMES
        if "cpu" in load_runtime(name).DEVICES and load_runtime(name).availability("cpu").ready
        for precision in load_runtime(name).PRECISIONS["cpu"]
        for shape in (SHAPES if precision == "fp32" else [*QUICK, LstmShape(3, 24, 64, 1)])
        if name != "c" or load_runtime(name).supports(shape, "stream") is None
    ]


def is_quick(name, shape, precision):
    if name == "c":
        return shape == QUICK_OF_C
    return name != "torch-compile" and shape in QUICK and precision == "fp32"


def test_the_runtimes_that_carry_state():
    pytorch = {"pytorch", "torchscript", "torch-compile", "pytorch-cudagraph"}
    assert {"onnxruntime", "tensorrt", "tensorrt-rtx", *pytorch} <= set(RUNTIMES)


@pytest.mark.parametrize(("name", "shape", "precision"), rest_is_heavy(cases(), is_quick, one_in=3))
def test_calls_of_a_few_samples_equal_one_pass(tmp_path, name, shape, precision):
    if precision == "bf16" and not computes_bf16(name):
        pytest.skip(f"{name} does not compute in bf16 on this processor")
    configuration, request, gate = prepared(shape, name, tmp_path, Options(precision=precision))
    assert gate.every and len(gate.inputs) * shape.sequence >= STREAM_SAMPLES and len(gate.inputs) > 1
    step = load_runtime(name).prepare(request)
    assert 0 <= check_parity(step, configuration, gate)["error"] <= PARITY_BOUNDS[precision]
    after = step.outputs()[OUTPUT]
    assert check_parity(step, configuration, gate)["error"] <= PARITY_BOUNDS[precision]  # it begins with a reset
    step.reset()
    step.load_inputs(gate.inputs[-1])
    step.step()
    assert relative(step.outputs()[OUTPUT], after) > PARITY_BOUNDS["fp32"]  # the state is part of the outputs
    if name == "torch-compile":
        assert step.facts()["recompiled_later"] == 0
    step.close()
    step.reset()


@pytest.mark.parametrize(
    "name",
    rest_is_heavy([name for name in ("c", "onnxruntime", "pytorch") if name in RUNTIMES], lambda name: name == "c"),
)
def test_silence_after_the_warm_up_carries_the_state_on(tmp_path, name):
    if not load_runtime(name).availability("cpu").ready:
        pytest.skip(f"{name} is not ready")
    protocol = Protocol(trials=30, warmup=7, after_warmup="zeros")
    configuration, request, _ = prepared(LstmShape(2, 16, 1), name, tmp_path)
    step = load_runtime(name).prepare(request)
    silence = {key: np.zeros_like(array) for key, array in request.inputs.items()}

    def after(*calls: tuple[dict, int]) -> np.ndarray:
        step.reset()
        for inputs, count in calls:
            step.load_inputs(inputs)
            for _ in range(count):
                step.step()
        return step.outputs()[OUTPUT].copy()

    unlike, expected = after((request.inputs, 37)), after((request.inputs, 7), (silence, 30))
    after((request.inputs, 0))
    loop = Loop(step.step, protocol, after_warmup=partial(step.load_inputs, silence))
    loop.part(protocol.warmup)
    assert loop.rows == 37 and np.array_equal(step.outputs()[OUTPUT], expected)
    assert relative(expected, unlike) > 1e-3
    recording = lstm_trt.record(request.workload, name, replace(protocol, trials=20), out=tmp_path, mode="stream")
    assert recording.configuration.protocol.after_warmup == "zeros"
    assert configuration.id not in {each.configuration.id for each in lstm_trt.load(tmp_path)}
    step.close()


def relative(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


class NumpyStream(RightStep):
    """Carries the states in `keeps`, and sets the others to zero before each call."""

    keeps: tuple[int, ...] = (0, 1)

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.zeros = np.zeros((request.workload.batch, request.workload.hidden), np.float32)
        self.reset()

    def reset(self) -> None:
        self.state = [(self.zeros, self.zeros)] * self.layers

    def step(self) -> None:
        self.state = [
            tuple(values if place in self.keeps else self.zeros for place, values in enumerate(pair))
            for pair in self.state
        ]
        self.latest = lstm(self.weights, self.layers, self.inputs, self.state)


@pytest.mark.parametrize("keeps", [(0, 1), (0,), (1,), ()])
@pytest.mark.parametrize("sequence", [1, 64])
def test_a_runtime_that_loses_state_fails_the_gate(tmp_path, monkeypatch, sequence, keeps):
    """Both states are right; only h, only c, a reset at each call, and a reset that does nothing are not."""
    monkeypatch.setattr(NumpyStream, "keeps", keeps)
    configuration, request, gate = prepared(LstmShape(2, 16, sequence, 2), "pytorch", tmp_path)
    step = NumpyStream(request)
    if keeps == (0, 1):
        assert check_parity(step, configuration, gate)["error"] < 1e-6
        step.reset = lambda: None
    with pytest.raises(ParityFailed):
        check_parity(step, configuration, gate)


def test_windows_and_streams_of_one_folder_stay_apart():
    """In the summary, the fits along an axis, and the figures, which all state the mode where it is not forward."""
    windows = [recording(hidden) for hidden in (8, 16, 24)]
    streams = [replace(item, configuration=replace(item.configuration, mode="stream")) for item in windows]
    both = groups_of([*windows, *streams])
    assert len({group.name for group in both}) == 6
    rows = lstm_trt.summarize(both)
    asked = [(row.configuration["hidden"], row.configuration["mode"]) for row in rows]
    assert asked == list(itertools.product((8, 16, 24), ("forward", "stream")))
    assert (str(rows).count("stream"), str(lstm_trt.summarize(windows)).count("stream")) == (3, 0)
    times = [read_times(runs) for runs in (both, windows, streams)]
    assert {fields["mode"] for fields in times[0].systems.values()} == {"forward", "stream"}
    assert [(len(each.cells), each.mode_text) for each in times] == [(2, ""), (1, ""), (1, ", mode stream")]
    assert systems(points_of(both)) == ["onnxruntime, mode forward", "onnxruntime, mode stream"]
    assert "mode stream, " in describe_systems(points_of(streams))
    assert "forward" not in describe_systems(points_of(windows))


def test_what_an_empty_step_takes_of_a_short_call():
    clock = {"overhead_ns": 40, "call_ns": 80, "step_ns": 10, "resolution_ns": 1}
    assert against_clock(4_000, clock) == {"median_share": 0.02, "shortest_us": pytest.approx(0.8)}
    assert against_clock(4_000, {**clock, "step_ns": 250})["shortest_us"] == pytest.approx(2.5)
    (short,) = remarks(None, clock | against_clock(4_000, clock), None)
    assert all(text in short for text in ("0.08 us", "2.0 %", "0.8 us"))
    assert remarks(None, clock | against_clock(4_000_000, clock), None) == []


@pytest.mark.parametrize("call_ns", [10, 10**9])
def test_calls_that_are_too_short_to_be_resolved_give_a_warning(call_ns):
    """Calls of more than 10 us, compared with an empty step that takes 10 ns, and with one that takes a second."""
    configuration = describe(LstmShape(1, 8, 1), "onnxruntime", Protocol(trials=20), mode="stream")
    run = Run(configuration, SimpleNamespace(facts=dict), None, NoSwitches(), {}, {})
    run.provenance["clock"] = {**facts.clock_cost(200), "step_ns": 0, "call_ns": call_ns}
    trials = run_trials(lambda: time.sleep(1e-5), configuration.protocol)
    provenance = run.recording(Pass(trials, 0, Seconds(), {}), 0, None, {}).provenance
    assert any("not resolved" in warning for warning in provenance["warnings"]) == (call_ns == 10**9)
    assert provenance["clock"]["median_share"] == call_ns / trials.median_ns
