"""Own networks in the recorder: the reference and what confirms it, streams, the gate, and the commands."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import lstm_trt as lab
from lstm_onnx import preparer as own
from lstm_onnx.own_network import OnnxNetwork
from lstm_onnx.read_onnx import run_onnxruntime
from lstm_trt import runtimes
from lstm_trt.config.errors import BuildFailed, ParityFailed, UsageError
from lstm_trt.export.sizes import static_model
from lstm_trt.export.tensorrt.onnx_fp16 import to_half
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.parity import check_parity
from lstm_trt.runtimes.base import PreparedStep
from tests.conftest import rest_is_heavy
from tests.support import own_networks
from tests.support.own_networks import parsed, saved, stream
from tests.support.planted_faults import FAULTS, drawn_network, is_refused
from tests.support.rounded_lstm import half, significant

SHORT = lab.Protocol(trials=40, warmup=2)
READERS = ("onnxruntime", "openvino")


def reference_of(configuration, folder, seed=5):
    path = folder / "answers.npy"
    reference = own.PREPARER.reference(configuration, seed, path, lambda event, **values: None)
    return {**reference, "gate_seed": seed, "reference_path": str(path)}


def gated(configuration, folder):
    """Prepare in this process and pass the gate; returns its result."""
    reference = reference_of(configuration, folder)
    module = own.PREPARER.runtime(configuration.runtime)
    step = module.prepare(own.PREPARER.request(configuration, reference))
    try:
        return check_parity(step, configuration, own.PREPARER.gate(configuration, reference))
    finally:
        step.close()


@pytest.mark.parametrize("runtime", READERS)
@pytest.mark.parametrize("make", [own_networks.smoothing_then_gru, own_networks.words, own_networks.dense, stream])
def test_networks_agree_with_an_evaluation_in_numpy(tmp_path, runtime, make):
    pytest.importorskip(runtime)
    model = make()
    sizes = {"time": 12, "batch": 2}
    known = str(model)
    network = OnnxNetwork(saved(model, tmp_path), sizes={name: size for name, size in sizes.items() if name in known})
    found = gated(describe(network, runtime, SHORT), tmp_path)
    assert found["error"] <= 1e-5 and found["reference_checked_by"] == own.NUMPY


@pytest.mark.parametrize("mode", ["forward", "stream"])
@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_own_networks_that_compute_in_less_fail(tmp_path, precision, mode):
    """Planted: ONNX Runtime with parameters and inputs rounded to the digits of each type."""
    network = OnnxNetwork(saved(stream(), tmp_path), sizes={"time": 16, "batch": 1})
    asked = replace(describe(network, "onnxruntime", SHORT, mode=mode), options=lab.Options(precision=precision))
    reference = reference_of(asked, tmp_path)
    gate = own.PREPARER.gate(asked, reference)
    assert gate.rounded.keys() == gate.expected.keys()
    model = onnx.load_from_string(static_model(network.path, network))
    states = network.states if mode == "stream" else ()
    for round_to, passes in [(half, True), (significant(11), True), (significant(8), False)]:
        planted = onnx.ModelProto()
        planted.CopyFrom(model)
        for tensor in planted.graph.initializer:
            values = onnx.numpy_helper.to_array(tensor)
            if values.dtype == np.float32:
                tensor.CopyFrom(onnx.numpy_helper.from_array(round_to(values), tensor.name))
        sets = [{name: round_to(array) for name, array in inputs.items()} for inputs in gate.inputs]
        step = Answers(run_onnxruntime(planted.SerializeToString(), sets, states))
        if passes:
            assert 1e-5 < check_parity(step, asked, gate)["error"] < 5e-3
        else:
            with pytest.raises(ParityFailed):
                check_parity(step, asked, gate)


class Answers(PreparedStep):
    """Gives outputs that are known, call by call."""

    def __init__(self, every):
        self.every = iter(every)

    def load_inputs(self, inputs):
        self.current = next(self.every)

    def step(self):
        pass

    def outputs(self):
        return self.current


STREAMS = [
    (runtime, io_binding, kind, *sizes)
    for runtime, io_binding in [("onnxruntime", True), ("onnxruntime", False), ("openvino", True)]
    for kind in ("LSTM", "GRU", "RNN")
    for sizes in [(1, 1), (7, 3), (64, 1)]
]


@pytest.mark.parametrize(
    ("runtime", "io_binding", "kind", "time", "batch"),
    rest_is_heavy(STREAMS, lambda runtime, io_binding, kind, time, batch: kind == "LSTM" and time == 7),
)
def test_streams_equal_one_run_over_all_samples(tmp_path, runtime, io_binding, kind, time, batch):
    pytest.importorskip(runtime)
    network = OnnxNetwork(saved(stream(kind), tmp_path), sizes={"time": time, "batch": batch})
    configuration = describe(network, runtime, SHORT, lab.Options(io_binding=io_binding), "stream")
    reference = reference_of(configuration, tmp_path)
    step = runtimes.load_runtime(runtime).prepare(own.PREPARER.request(configuration, reference))
    gate = own.PREPARER.gate(configuration, reference)
    calls = -(-own.STREAM_SAMPLES // time)
    assert len(gate.inputs) == calls and gate.expected["Y"].shape == (calls, time, 1, batch, 4)
    assert check_parity(step, configuration, gate)["error"] <= 1e-5
    assert check_parity(step, configuration, gate)["error"] <= 1e-5  # which starts with a reset
    step.load_inputs(gate.inputs[0])
    step.step()  # without a reset: the first outputs are not those of a zero state
    assert not np.allclose(step.outputs()["Y"], gate.expected["Y"][0], atol=1e-4)
    assert set(step.outputs()) == {"Y"}
    step.close()


class _Faulty:
    """A step that passes calls on, but not every reset or state."""

    def __init__(self, step, fault):
        self._step, self._fault = step, fault

    def __getattr__(self, name):
        return getattr(self._step, name)

    def step(self):
        if self._fault == "forgets":
            self._step.reset()
        self._step.step()

    def reset(self):
        if self._fault != "never resets":
            self._step.reset()


@pytest.mark.parametrize("fault", ["forgets", "never resets"])
def test_a_stream_that_does_not_carry_or_reset_its_state_fails_the_gate(tmp_path, fault):
    network = OnnxNetwork(saved(stream(), tmp_path), sizes={"time": 2, "batch": 1})
    configuration = describe(network, "onnxruntime", SHORT, mode="stream")
    reference = reference_of(configuration, tmp_path)
    step = _Faulty(runtimes.load_runtime("onnxruntime").prepare(own.PREPARER.request(configuration, reference)), fault)
    gate = own.PREPARER.gate(configuration, reference)
    step.step()
    step.step()
    with pytest.raises(ParityFailed):
        check_parity(step, configuration, gate)
    step.close()


def test_a_network_that_looks_beyond_a_call_is_no_stream(tmp_path):
    network = OnnxNetwork(saved(own_networks.smoothing_then_gru(), tmp_path), sizes={"time": 4})
    with pytest.raises(ParityFailed, match=r"4 samples at a time, Y differs by .*a convolution over time"):
        reference_of(describe(network, "onnxruntime", SHORT, mode="stream"), tmp_path)
    fixed = OnnxNetwork(saved(own_networks.as_pytorch_exports(), tmp_path), sizes={"time": 4})
    assert gated(describe(fixed, "onnxruntime", SHORT, mode="stream"), tmp_path)["error"] <= 1e-5
    point = OnnxNetwork(saved(own_networks.smoothing_then_gru(1), tmp_path), sizes={"time": 4})
    assert gated(describe(point, "onnxruntime", SHORT, mode="stream"), tmp_path)["error"] <= 1e-5


@pytest.mark.parametrize("features", [1, 4])
def test_a_network_that_answers_one_sample_without_an_axis_is_a_stream(tmp_path, features):
    """Its answer is squeezed of all axes of size 1: that of the samples, which one run over all of them has."""
    model = stream()
    model.graph.initializer.append(own_networks.numbers("A", 4, features))
    make = onnx.helper.make_node
    model.graph.node.extend([make("MatMul", ["Y", "A"], ["scores"]), make("Squeeze", ["scores"], ["answer"])])
    (place,) = (place for place, output in enumerate(model.graph.output) if output.name == "Y")
    model.graph.output[place].CopyFrom(own_networks.value("answer", ["frames"]))
    network = OnnxNetwork(saved(model, tmp_path), sizes={"time": 1, "batch": 1})
    found = gated(describe(network, "onnxruntime", SHORT, mode="stream"), tmp_path)
    assert found["error"] <= 1e-5 and network.output_shapes["answer"] == (() if features == 1 else (4,))


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3), (3, 6), (2, 6, 3), (1, 6, 1), (6, 1, 1, 4)])
def test_calls_of_a_stream_are_joined_as_one_run_gives_them(shape, samples):
    """An answer to one sample may lack the axis of the samples, and all others of size 1."""
    whole = np.arange(np.prod(shape)).reshape(shape)
    axis = shape.index(6)
    calls = np.split(whole, 6 // samples, axis)
    assert np.array_equal(own._joined(calls, shape), whole)
    if samples == 1:
        assert np.array_equal(own._joined([call.squeeze(axis) for call in calls], shape), whole)
        assert np.array_equal(own._joined([call.squeeze() for call in calls], shape), whole)
    assert own._joined(calls[:-1], shape) is None
    assert own._joined([whole], shape) is whole


@pytest.fixture
def compared(tmp_path):
    """A network, and what the reference is made of: its model and the inputs."""
    network = OnnxNetwork(saved(stream(), tmp_path), sizes={"time": 3, "batch": 1})
    return network, static_model(network.path, network), own.gate_inputs(network, "forward", 1)


def refusing(*given):
    raise UsageError("an operator that is not known")


def failing(*given):
    raise RuntimeError("not implemented")


def test_the_reference_is_checked_by_an_evaluation_in_numpy(compared, monkeypatch):
    name, outputs, checked, limit = own.reference_outputs(*compared)
    assert limit == 1e-5 and (name, checked) == (own.ONNX_RUNTIME, own.NUMPY) and len(outputs) == len(compared[2]) == 4
    run = own.run_onnxruntime

    def slightly_wrong(*given):
        return [{name: array * np.float32(1.001) for name, array in each.items()} for each in run(*given)]

    monkeypatch.setattr(own, "run_onnxruntime", slightly_wrong)
    with pytest.raises(ParityFailed, match=r"Y of ONNX Runtime differs from an evaluation in numpy by 0\.001"):
        own.reference_outputs(*compared)
    monkeypatch.setattr(own, "run_onnxruntime", failing)
    name, evaluated, checked, _ = own.reference_outputs(*compared)
    assert (name, checked) == (own.NUMPY, None)
    assert np.allclose(evaluated[0]["Y"], outputs[0]["Y"], atol=1e-6)


def test_a_reference_that_nothing_checks_is_said_not_to_be(compared, tmp_path, monkeypatch):
    monkeypatch.setattr(own.evaluate, "evaluate", refusing)
    assert own.reference_outputs(*compared)[2] is None
    found = gated(describe(compared[0], "onnxruntime", SHORT), tmp_path)
    assert found["error"] is None and found["reference_checked_by"] is None  # nothing independent: not checked
    assert found["not_checked"] == "it is its own reference"
    if runtimes.load_runtime("openvino").availability("cpu").ready:
        assert gated(describe(compared[0], "openvino", SHORT), tmp_path)["error"] <= 1e-5  # against ONNX Runtime
    monkeypatch.setattr(own, "run_onnxruntime", failing)
    assert own.reference_outputs(*compared) == (None, [], None, 1e-5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[16, 6] y) { z = Mul (x, zero) y = Identity (z) }", "all outputs are 0"),
        ("(float[16, 6] y) { z = Mul (x, zero) y = Add (z, numbers) }", "the outputs hardly vary with the inputs"),
        ("(int64[16] best) { best = ArgMax <axis = 1, keepdims = 0> (x) }", None),
    ],
)
def test_outputs_that_do_not_follow_from_the_inputs_are_not_checked(tmp_path, text, reason):
    """A network that gives 0, one that forgets its inputs, and one that does not: whole numbers can be compared."""
    model = parsed(f"(float[16, 6] x) => {text}", zero=np.float32(0), numbers=(6,))
    network = OnnxNetwork(model.SerializeToString(), name="planted")
    found = gated(describe(network, "onnxruntime", SHORT), tmp_path)
    assert found["not_checked"] == reason and found["error"] == (None if reason else 0)


def test_only_runtimes_that_read_onnx_files_take_own_networks(tmp_path):
    network = OnnxNetwork(saved(stream(), tmp_path), sizes={"time": 3, "batch": 1})
    with pytest.raises(UsageError, match="pytorch does not read ONNX files: choose from c, onnxruntime"):
        describe(network, "pytorch")


@pytest.mark.parametrize("runtime", READERS)
@pytest.mark.parametrize("mode", ["forward", "stream"])
def test_a_file_in_half_precision_is_compared_as_such(tmp_path, runtime, mode):
    pytest.importorskip(runtime)
    network = OnnxNetwork(saved(to_half(stream("GRU", hidden=16)), tmp_path), sizes={"time": 3, "batch": 2})
    found = gated(describe(network, runtime, SHORT, mode=mode), tmp_path)
    assert network.facts.half and found["error"] <= found["bound"] == 1e-2
    assert found["reference_checked_by"] == own.NUMPY


@pytest.mark.parametrize("runtime", READERS)
@pytest.mark.parametrize("opset", [13, 17, 21])
def test_a_file_that_is_quantized_is_checked(tmp_path, runtime, opset):
    pytest.importorskip(runtime)
    network = OnnxNetwork(saved(own_networks.quantized(opset), tmp_path), sizes={"time": 40})
    found = gated(describe(network, runtime, SHORT), tmp_path)
    assert network.facts.quantized and found["reference_checked_by"] == own.NUMPY
    assert found["error"] <= found["bound"] == 5e-2


@pytest.mark.parametrize(("added", "scale", "refused"), [(0.02, 1, False), (0, 1.1, True)])
def test_numbers_on_the_other_side_of_an_edge_are_no_fault_but_a_wrong_scale_is(
    tmp_path, monkeypatch, added, scale, refused
):
    """Planted: ONNX Runtime with five of 200 numbers one step of 8 bits away; or with another scale."""
    network = OnnxNetwork(saved(own_networks.quantized(), tmp_path), sizes={"time": 40})
    run = own.run_onnxruntime

    def planted(content, sets, states=()):
        outputs = run(content, sets, states)
        for each in outputs:
            each["product_rounded"][:1] += np.float32(added)
            each["product_rounded"] *= np.float32(scale)
        return outputs

    monkeypatch.setattr(own, "run_onnxruntime", planted)
    model, sets = static_model(network.path, network), own.gate_inputs(network, "forward", 1)
    if refused:
        with pytest.raises(ParityFailed, match="product_rounded of ONNX Runtime differs"):
            own.reference_outputs(network, model, sets)
    else:
        assert own.reference_outputs(network, model, sets)[2] == own.NUMPY


@pytest.mark.parametrize("make", [stream, own_networks.dense])
def test_int8_is_refused_unless_every_recurrent_operator_is_quantized(tmp_path, make):
    sizes = {"time": 3, "batch": 1} if make is stream else {"batch": 1}
    network = OnnxNetwork(saved(make(), tmp_path), sizes=sizes)
    found = gated(describe(network, "onnxruntime", SHORT, lab.Options("int8")), tmp_path)
    assert 1e-5 < found["error"] <= 5e-2
    if make is stream:
        network = OnnxNetwork(saved(stream("GRU"), tmp_path), sizes=sizes)
        with pytest.raises(BuildFailed, match="GRU"):
            gated(describe(network, "onnxruntime", SHORT, lab.Options("int8")), tmp_path)


@pytest.mark.heavy
def test_commands_take_own_networks(tmp_path, lab):
    files = [saved(stream(kind, hidden=len(kind)), tmp_path, kind.lower()) for kind in ("LSTM", "GRU")]
    out = tmp_path / "recordings"
    asked = ("--size", "time=4,8", "--size", "batch=1", "--trials", 300, "--out", out, "--format", "json")
    done = json.loads(lab("sweep", "--onnx", *files, *asked, "--mode", "stream", "--quiet").stdout)
    assert done["recorded"] == 4 and not done["failures"]
    again = json.loads(lab("sweep", "--onnx", *files, *asked, "--mode", "stream", "--quiet").stdout)
    assert again["done_before"] == 4 and again["recorded"] == 0
    one = ("record", "--onnx", files[0], "--size", "time=4", "--size", "batch=1", "--trials", 300, "--no-control")
    found = json.loads(lab(*one, "--no-io-binding", "--out", out, "--format", "json").stdout)
    assert [found["summary"]["configuration"][name] for name in ("sequence", "mode")] == [4, "forward"]
    rows = [row["configuration"] for row in json.loads(lab("summarize", out, "--format", "json").stdout)]
    assert len(rows) == 5 and {row["mode"] for row in rows} == {"forward", "stream"}
    text = lab("summarize", out, "--figures", tmp_path / "figures").stdout
    assert "I/O binding" in text and "lstm@" in text
    by = {path.stem.partition("-by-")[2] for path in (tmp_path / "figures").glob("sweep-latency-by-*.png")}
    assert by == {"sequence"}  # hidden sizes differ between the networks, but not within one
    assert "lstm@" in lab("verdict", out, "--deadline-us", 1e6, "--percentile", 90).stdout
    assert "lstm@" in lab("outliers", out).stdout
    sides = [next(path for path in out.glob("*.parquet") if row["config_id"] in path.name) for row in rows[:2]]
    assert "size time: 4 -> 8" in lab("compare", *sides).stdout
    commands = {command_of(row, out): row["config_id"] for row in rows}
    (again,) = (text for text in commands if "--onnx gru.onnx" in text and "time=4" in text and "--mode stream" in text)
    done = lab(*shlex.split(again)[1:], "--no-control", cwd=tmp_path)  # the command records the same configuration
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.split()[-1]).name.startswith(commands[again])


def command_of(row, out):
    from lstm_judge.read.labels import record_command
    from lstm_trt.store import files

    (path,) = (path for path in out.glob("*.parquet") if row["config_id"] in path.name)
    return record_command(files.read(path).configuration, "recordings")


def shows_bound(provenance):
    """Either the bound, or why this machine has none."""
    return bool(provenance["floor_ns"]) != bool(provenance["floor_missing"])


def test_a_recording_can_be_read_without_the_file(tmp_path):
    network = OnnxNetwork(saved(stream(), tmp_path), sizes={"time": 3, "batch": 1})
    recording = lab.record(network, protocol=SHORT, mode="stream", control=False, out=tmp_path / "out")
    (tmp_path / "network.onnx").unlink()
    read = lab.load(tmp_path / "out").recordings[0]
    assert read.configuration == recording.configuration and read.configuration.workload == network
    assert read.provenance["network_sha256"] == network.sha256 and shows_bound(read.provenance)
    assert onnx.load(network.path)


@pytest.mark.heavy
def test_planted_faults_are_found_and_right_networks_are_not_refused():
    """The first 20 networks of `benchmarks/reference_limit.py`, whose 300 are the long version."""
    drawn = [(seed, np.random.default_rng(seed)) for seed in range(20)]
    networks = [(rng, drawn_network(rng), seed) for seed, rng in drawn]
    assert not any(is_refused(*network) for network in networks)
    for fault in FAULTS:
        assert sum(is_refused(*network, fault) for network in networks) >= 19, fault


def limits(text, **constants):
    """Those of an LSTM of 4 units with the output `Y`, and of what the text makes of it."""
    model = parsed(
        f"(float[9, 1, 3] x) => (float[9, 1, 1, 4] y) {{ Y = LSTM <hidden_size = 4> (x, W, R) {text} }}",
        W=(1, 16, 3), R=(1, 16, 4), **{name: np.float32(number) for name, number in constants.items()},
    )  # fmt: skip
    network = OnnxNetwork(model.SerializeToString())
    content, sets = static_model(network.path, network), own.gate_inputs(network, "forward", 3)
    narrow = own._evaluated(content, sets, ())
    return own.limits_of(network, narrow, own._evaluated(content, sets, (), in_float64=True))


def test_the_limit_follows_the_rounding_errors_of_a_network():
    """Where a Sigmoid gives small numbers, or sums cancel; at most 1e-3, and never for what is large anyway."""
    assert limits("y = Identity (Y)") == {"y": 1e-5}
    small = limits("z = Sub (Y, c) y = Sigmoid (z)", c=7)
    assert 1e-5 < small["y"] < 1e-3
    assert limits("z = Add (Y, c) y = Sub (z, c)", c=3e4) == {"y": 1e-3}
    # A conversion to float32 is one to float64 in the evaluation.
    assert limits("z = Cast <to = 1> (Y) s = Sub (z, c) y = Sigmoid (s)", c=7) == small


def test_a_recording_states_the_lengths_of_its_sequences(tmp_path):
    """Of a mask that reaches an LSTM by way of a sum, and of another network none."""
    model = parsed(
        """(float[30, 1, 3] x, bool[1, 30] mask) => (float[30, 1, 1, 4] Y) {
            ones = Cast <to = 6> (mask)
            lengths = ReduceSum <keepdims = 0> (ones, one)
            Y = LSTM <hidden_size = 4> (x, W, R, "", lengths)
        }""",
        W=(1, 16, 3), R=(1, 16, 4), one=[1],
    )  # fmt: skip
    masked = OnnxNetwork(saved(model, tmp_path))
    other = OnnxNetwork(saved(own_networks.dense(), tmp_path), sizes={"batch": 1})
    for network, lengths in ((masked, {"mask": [1, 1]}), (other, None)):
        lab.record(network, protocol=SHORT, control=False, out=tmp_path / "out")
        (row,) = (row for row in lab.load(tmp_path / "out").recordings if row.configuration.workload == network)
        assert row.provenance["lengths"] == lengths and row.configuration.workload.label == network.label
        assert ("-mask1" in network.label) == bool(lengths)
