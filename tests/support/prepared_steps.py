"""What the tests of several runtimes do with a prepared step."""

from __future__ import annotations

import time

import numpy as np

from lstm_trt.config.configuration import Options
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.network import build_module, make_inputs, make_weights, reference_outputs
from lstm_trt.export.to_onnx import INPUT, OUTPUT, export_network
from lstm_trt.recorder.parity import relative_error
from lstm_trt.runtimes import load_runtime
from lstm_trt.runtimes.base import Request


def request_of(name: str, shape: LstmShape, mode: str = "forward", **options) -> Request:
    """What a runtime gets: inputs of seed 1, weights of seed 0, and the ONNX file if it needs one."""
    inputs, weights = {INPUT: make_inputs(shape, 1)[0]}, make_weights(shape, 0)
    path = export_network(shape).path if getattr(load_runtime(name), "NEEDS_ONNX", False) else None
    return Request(shape, Options(**options), inputs, weights, path, mode)


def prepare(name: str, shape: LstmShape, mode: str = "forward", **options):
    """A prepared step of a runtime."""
    return load_runtime(name).prepare(request_of(name, shape, mode, **options))


def outputs_of(step, inputs: np.ndarray) -> np.ndarray:
    """The outputs of a step for these inputs."""
    step.load_inputs({INPUT: inputs})
    step.step()
    return step.outputs()[OUTPUT]


def reference(shape: LstmShape, inputs: np.ndarray, seed: int = 0) -> np.ndarray:
    """The outputs of PyTorch with the weights of this seed."""
    return reference_outputs(build_module(shape, make_weights(shape, seed)), inputs)


def error(outputs: np.ndarray, shape: LstmShape, inputs: np.ndarray) -> float:
    """The relative error of outputs, of which shape and type must be right."""
    expected = reference(shape, inputs)
    assert (outputs.shape, outputs.dtype) == (expected.shape, np.float32)
    return relative_error(outputs, expected)


def stream_error(step, shape: LstmShape, calls: int) -> float:
    """The larger error of a stream in so many calls, and of the same after a reset."""
    inputs, errors = make_inputs(shape, 7, calls=calls)[0], []
    for _ in range(2):
        step.reset()
        outputs = [outputs_of(step, one_call) for one_call in np.split(inputs, calls)]
        errors.append(error(np.concatenate(outputs), shape, inputs))
    step.close()
    return max(errors)


def check_event_times(step, inputs: np.ndarray) -> None:
    """The times of all device clocks lie within those of the host."""
    step.load_inputs({INPUT: inputs})
    host = np.empty(3000, np.int64)
    for trial in range(len(host)):  # more trials than the pool holds at first
        began = time.perf_counter_ns()
        step.step()
        host[trial] = time.perf_counter_ns() - began
    times = step.device_times()
    assert {len(column) for column in times.values()} == {len(host)}
    device = times["h2d_ns"] + times["compute_ns"] + times["d2h_ns"]
    assert (times["compute_ns"] > 0).all() and (times["h2d_ns"] >= 0).all() and (times["d2h_ns"] >= 0).all()
    assert (times["enqueue_ns"] <= host).all()
    assert np.mean(device <= host + 2_000) > 0.999  # events tick in half microseconds
    assert all(len(column) == 0 for column in step.device_times().values())
    step.close()
