"""Own networks: what is read from a file, identity, inputs, states, and what is refused."""

import json
import os
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import lstm_trt as lab
from lstm_onnx.own_network import OnnxNetwork
from lstm_onnx.torch_network import TorchNetwork, torch_answers
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import ExportFailed, LabError, UsageError
from lstm_trt.config.workload import State, workload_from_dict
from lstm_trt.export import onnx_checks
from lstm_trt.export.sizes import sizes_of, static_model
from tests.support import own_networks, planted_graphs
from tests.support.own_networks import one_line, parsed, saved, stream

SIZES = {"time": 6, "batch": 2}


@pytest.fixture
def network(tmp_path):
    def make(model, name="network", **how):
        return OnnxNetwork(saved(model, tmp_path, name), **how)

    return make


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_what_is_read_from_a_recurrent_network(network, kind, gates, directions):
    found = network(stream(kind, features=3, hidden=4, directions=directions), sizes=SIZES)
    (layer,) = found.recurrent_layers
    assert (layer.operator, layer.hidden, layer.features, layer.sequence, layer.batch) == (kind, 4, 3, 6, 2)
    assert found.axes == dict(layers=1, hidden=4, sequence=6, batch=2, features=3, directions=directions)
    assert found.input_shapes["X"] == (6, 2, 3) and found.output_shapes["Y"] == (6, directions, 2, 4)
    assert (found.facts.time_symbol, found.facts.batch_symbol) == ("time", "batch")
    assert found.parameters == directions * gates * 4 * (3 + 4 + 2)  # W, R and two biases
    assert found.flops == directions * 2 * gates * 4 * (3 + 4) * 6 * 2  # two per weight of W and R, step and sequence
    carried = {State("h0", "hn", (directions, 2, 4))} | (
        {State("c0", "cn", (directions, 2, 4))} if gates == 4 else set()
    )
    assert set(found.states) == carried and found.modes == ("forward", "stream")[: 3 - directions]


def test_operations_of_convolutions_and_dense_layers(network):
    found = network(own_networks.smoothing_then_gru(3), sizes={"time": 10})
    # 10 positions x 2 output channels x 2 input channels x 3 taps; GRU: 12 gate rows of 2 + 4 weights
    assert found.flops == 2 * (10 * 2 * 2 * 3 + 12 * (2 + 4) * 10)
    dense = network(own_networks.dense(), sizes={"batch": 5})
    assert dense.flops == 2 * 5 * 6 * 2 and dense.axes == dict.fromkeys(dense.axes) and dense.recurrent_layers == ()
    words = network(own_networks.words(), sizes={"time": 4, "batch": 3})
    assert words.flops == 2 * (4 * 3 * 12 * (2 + 3) + 3 * 7 * 3)


def test_what_shape_inference_does_not_derive_is_taken_from_the_weights(network):
    found = network(own_networks.as_pytorch_exports(), sizes={"time": 6})
    (layer,) = found.recurrent_layers
    assert (layer.features, layer.hidden, layer.sequence) == (3, 4, 6)
    assert found.flops == 2 * 6 * (16 * (3 + 4) + 4 * 2) and found.facts.time_symbol == "time"


def test_sizes_without_a_symbol_have_the_name_of_input_and_axis(network):
    with pytest.raises(UsageError, match=r"--size X\.0=N --size X\.1=N --size h0\.1=N --size c0\.1=N"):
        network(own_networks.unnamed_sizes())
    found = network(own_networks.unnamed_sizes(), sizes={"X.0": 6, "X.1": 2, "h0.1": 2, "c0.1": 2})
    assert found.input_shapes == network(stream(), sizes=SIZES).input_shapes
    static = onnx.load_from_string(static_model(found.path, found))
    assert sizes_of(static.graph.input[0]) == (6, 2, 3)


def test_the_size_of_an_output_that_depends_on_the_values_is_measured(network):
    assert network(own_networks.selected()).output_shapes["y"][0] in range(9)


def test_a_network_is_known_by_its_content(network, tmp_path):
    one = network(stream(), sizes=SIZES)
    plain = json.loads(json.dumps(one.as_dict()))
    assert workload_from_dict(plain) == one and workload_from_dict(plain).as_dict() == one.as_dict()
    np.savez(tmp_path / "inputs.npz", X=np.ones((6, 2, 3), np.float32))
    others = [
        network(stream("GRU"), sizes=SIZES),
        network(stream(), sizes={**SIZES, "time": 7}),
        network(stream(), sizes=SIZES, states={"h0": "hn"}),
        network(stream(), sizes=SIZES, inputs=tmp_path / "inputs.npz"),
    ]
    ids = [Configuration(each, "onnxruntime", "1", "cpu").id for each in (one, *others)]
    assert len(set(ids)) == len(ids) and len({each.label for each in others[:2]} | {one.label}) == 3
    renamed = network(stream(), "another-name", sizes=SIZES)
    assert Configuration(renamed, "onnxruntime", "1", "cpu").id == ids[0]
    (tmp_path / "another-name.onnx").unlink()  # the cache has it
    assert renamed.path.read_bytes() == (tmp_path / "network.onnx").read_bytes()


USUAL = ["h0 hn", "h_0 h_n", "h_in h_out", "past_h present_h", "prev_h next_h", "initial_h Y_h"]
USUAL += ["state stateN", "hidden hidden_out", "memory new_memory", "cell next_cell"]


@pytest.mark.parametrize(("before", "after"), [pair.split() for pair in [*USUAL, "state state_out", "h h_next"]])
def test_states_are_recognized_by_the_usual_names(network, before, after):
    model = stream("GRU")
    model.graph.input[1].name = model.graph.node[0].input[5] = before
    model.graph.output[1].name = model.graph.node[0].output[1] = after
    assert network(model, sizes=SIZES).carried == ((before, after),)


def renamed_outputs(*names):
    """An LSTM with the inputs X, h0, c0 and these names of the outputs that have the shape of a state."""
    model = stream()
    for place, name in enumerate(names, start=1):
        model.graph.output[place].name = model.graph.node[0].output[place] = name
    return model


def test_states_are_refused_where_two_outputs_could_be_one(network):
    found = network(renamed_outputs("hn", "h0_out"), sizes=SIZES)
    assert found.carried == () and found.modes == ("forward",)
    with pytest.raises(
        UsageError, match=r"not clear which outputs are its states, h0 \(hn or h0_out\): .*--state INPUT"
    ):
        found.check_mode("stream")
    chosen = network(renamed_outputs("hn", "h0_out"), sizes=SIZES, states={"h0": "hn", "c0": "h0_out"})
    assert len(chosen.states) == 2 and chosen.modes == ("forward", "stream")
    model = stream()
    model.graph.input[2].name = model.graph.node[0].input[6] = "h"
    shared = network(model, sizes=SIZES)  # hn is the state of h0 or of h
    with pytest.raises(UsageError, match=r"h0 \(hn\), h \(hn\)"):
        shared.check_mode("stream")


def with_names(model, **names):
    """The same network with other names of inputs and outputs."""
    for item in (*model.graph.input, *model.graph.output):
        item.name = names.get(item.name, item.name)
    for node in model.graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
    return model


@pytest.mark.parametrize(
    ("kind", "names", "likely"),
    [
        ("GRU", {"h0": "h", "Y": "output0", "hn": "output1"}, {"h": "output1"}),
        ("LSTM", {"h0": "h", "c0": "c", "hn": "output1", "cn": "output2"}, {"h": "output1", "c": "output2"}),
        ("LSTM", {"c0": "memory", "cn": "output2"}, {"memory": "output2"}),
        ("LSTM", {}, {}),
    ],
    ids=["all names are its own", "of an LSTM", "one of two", "known by name"],
)
def test_an_input_with_an_output_of_its_shape_is_named_as_a_likely_state(network, kind, names, likely):
    found = network(with_names(stream(kind), **names), sizes=SIZES)
    assert found.likely_states == likely
    flags = {**dict(found.carried), **likely}
    text = " ".join(f"--state {before}={after}" for before, after in flags.items())
    assert [text in warning for warning in found.warnings] == [True] * bool(likely)
    chosen = network(with_names(stream(kind), **names), sizes=SIZES, states=flags)
    assert chosen.modes == ("forward", "stream") and chosen.likely_states == {} and not chosen.warnings


#: Networks and their likely states: of one input; of several, of which one must be for data; of a sequence.
LIKELY = {
    "(float[n, 4] x) => (float[n, 4] y) { y = Tanh (x) }": {},
    "(float[n, 4] x, float[n, 4] h) => (float[n, 4] y, float[n, 4] z) { s = Add (x, h) y = Tanh (s) z = Neg (s) }": {
        "h": "z"
    },
    """(float[n, 1, 3] x, float[n, 1, 4] more) => (float[n, 1, 4] y, float[n, 1, 4] z) {
        Y = GRU <hidden_size = 4> (x, W, R)
        flat = Squeeze (Y, one)
        y = Add (flat, more)
        z = Neg (flat)
    }""": {},
}


@pytest.mark.parametrize("text", LIKELY, ids=["one input", "the first of several", "a sequence"])
def test_data_of_the_shape_of_an_answer_is_no_likely_state(network, text):
    found = network(parsed(text, W=(1, 12, 3), R=(1, 12, 4), one=[1]), sizes={"n": 5})
    assert found.likely_states == LIKELY[text]


def test_where_the_user_has_chosen_other_states_are_likely_only_beside_them(network):
    model = with_names(stream("LSTM"), h0="h", hn="output1")
    assert network(model, sizes=SIZES, states={"c0": "cn"}).likely_states == {"h": "output1"}
    assert network(model, sizes=SIZES, states={}).likely_states == {}


def test_an_output_of_another_shape_is_no_state(network):
    model = renamed_outputs("hn", "cn")
    model.graph.output[0].name = model.graph.node[0].output[0] = "h0_out"
    assert network(model, sizes=SIZES).carried == (("c0", "cn"), ("h0", "hn"))


@pytest.mark.random(tail=1.2e-11, why="exact: one of 5 numbers missing among 120")
def test_inputs_are_random_within_what_the_graph_allows(network, rng):
    found = network(own_networks.words(), sizes={"time": 30, "batch": 4})
    inputs = found.make_inputs(int(rng.integers(2**32)))
    assert set(np.unique(inputs["tokens"])) == set(range(5)) and inputs["tokens"].dtype == np.int64
    assert inputs["lengths"].tolist() == [30] * 4 and inputs["lengths"].dtype == np.int32


F32 = np.float32


def test_inputs_give_the_sizes(network, tmp_path):
    np.savez(tmp_path / "inputs.npz", X=np.ones((6, 2, 3), F32), h0=np.ones((1, 2, 4), F32))
    found = network(stream(), inputs=tmp_path / "inputs.npz")
    assert found == network(stream(), inputs=tmp_path / "inputs.npz", sizes=SIZES) and dict(found.sizes) == SIZES


@pytest.mark.parametrize(
    ("shapes", "sizes", "words"),
    [
        ({"h0": (1, 2, 4)}, {}, "give --size time=N, or .*; for example --size time=1$"),
        ({"X": (6, 2, 3), "h0": (1, 3, 4)}, {}, r"in .*inputs.npz is float32 \[|not valid at these sizes"),
        (
            {"X": (6, 2, 3)},
            {**SIZES, "time": 7},
            r"X in .* is float32 \[6, 2, 3\], but network needs float32 \[7, 2, 3\]",
        ),
        ({"X": (6, 2, 4)}, SIZES, r"float32 \[6, 2, 4\], but network needs float32 \[6, 2, 3\]"),
        ({"x": (6, 2, 3)}, SIZES, "'x', but the inputs of network are X, h0, c0"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(network, tmp_path, shapes, sizes, words):
    np.savez(tmp_path / "inputs.npz", **{name: np.ones(shape, F32) for name, shape in shapes.items()})
    with one_line(words):
        network(stream(), sizes=sizes, inputs=tmp_path / "inputs.npz")


@pytest.mark.parametrize(
    ("array", "words"),
    [(np.zeros((6, 2, 3)), "is float64"), (np.array([{}], object), "not an .npz file of arrays")],
    ids=["float64", "which would be unpickled"],
)
def test_inputs_of_other_types_are_refused(network, tmp_path, array, words):
    np.savez(tmp_path / "inputs.npz", allow_pickle=True, X=array)
    with one_line(words):
        network(stream(), sizes=SIZES, inputs=tmp_path / "inputs.npz")


def test_own_inputs_replace_the_random_ones(network, tmp_path):
    given = np.arange(36, dtype=np.float32).reshape(6, 2, 3)
    np.savez(tmp_path / "inputs.npz", X=given)
    found = network(stream(), sizes=SIZES, inputs=tmp_path / "inputs.npz")
    inputs = found.make_inputs(1)
    assert np.array_equal(inputs["X"], given) and set(inputs) == {"X", "h0", "c0"}
    assert set(found.make_inputs(1, "stream")) == {"X"}


CONTRADICTORY = ["direction", "states of another size", "projection", "W", "B", "lengths", "two activations"]


@pytest.mark.parametrize("case", [*CONTRADICTORY, "hidden_size"])
def test_an_operator_that_contradicts_its_definition_is_refused_by_reading_with_the_reason_of_every_runtime(
    network, case
):
    """Whatever reads it: C code once computed what all other runtimes refuse."""
    plant, message = planted_graphs.REFUSED[case]
    rules = (onnx_checks.TENSORRT, onnx_checks.ONNXRUNTIME, onnx_checks.OPENVINO)
    (reason,) = {onnx_checks.refusal(plant(), each) for each in rules}
    assert message in reason
    with one_line(f"^network is not valid.*{re.escape(reason)}"):
        network(plant())


@pytest.mark.parametrize("attributes", [{}, {"layout": 1}, {"clip": 0.5}, {"directions": 2, "layout": 1}])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_what_one_runtime_lacks_is_no_reason_not_to_read_a_file(network, kind, attributes):
    (layer,) = network(planted_graphs.recurrent(kind, **attributes)).recurrent_layers
    assert (layer.sequence, layer.batch, layer.features, layer.hidden) == (5, 3, 6, 4)


def test_a_constant_is_part_of_the_identity_and_of_the_command(network):
    model = parsed("(float[batch, 3] x, float[1] scale) => (float[batch, 3] y) { y = Mul (x, scale) }")
    plain, fixed = (network(model, sizes={"batch": 2}, constants=how) for how in ({}, {"scale": 0.5}))
    assert "constants" not in plain.identity and fixed.identity == {**plain.identity, "constants": {"scale": 0.5}}
    assert workload_from_dict(json.loads(json.dumps(fixed.as_dict()))) == fixed
    assert fixed.flags["--value"] == ("scale=0.5",) and len({plain.label, fixed.label}) == 2
    assert fixed.input_shapes == {"x": (2, 3)} and "constants" not in plain.as_dict()
    inputs = fixed.make_inputs(1)
    (found,) = onnxruntime.InferenceSession(static_model(fixed.path, fixed)).run(None, inputs)
    assert np.array_equal(found, inputs["x"] / 2)


def test_the_sizes_that_a_file_states_wrongly_are_said_and_not_used(network):
    model = stream()
    for dims, wrong in ((0, [1, 2]), (1, [9, 2, 4])):
        del model.graph.output[dims].type.tensor_type.shape.dim[:]
        for size in wrong:
            model.graph.output[dims].type.tensor_type.shape.dim.add().dim_value = size
    found = network(model, sizes=SIZES)
    assert found.output_shapes == network(stream(), sizes=SIZES).output_shapes
    assert [(each.name, each.declared) for each in found.facts.outputs if each.declared] == [
        ("Y", (1, 2)),
        ("hn", (9, 2, 4)),
    ]
    assert len(found.warnings) == 2 and "network.onnx" in found.warnings[0] and " Y " in found.warnings[0]
    assert found.sha256 not in " ".join(found.warnings) and network(stream(), sizes=SIZES).warnings == ()
    static = onnx.load_from_string(static_model(found.path, found))
    assert sizes_of(static.graph.output[0]) == (6, 1, 2, 4)


def test_a_size_that_is_fixed_inside_is_named_with_file_and_output_not_with_the_hash(network):
    found = network(own_networks.as_pytorch_exports(), sizes={"time": 6})
    wrong = replace(found.facts, outputs=tuple(replace(each, shape=(9, 9)) for each in found.facts.outputs))
    vars(found)["facts"] = wrong
    with pytest.raises(ExportFailed, match=r"^network\.onnx at .* gives y of ") as caught:
        static_model(found.path, found)
    assert found.sha256 not in str(caught.value)


def test_the_message_about_missing_sizes_has_a_call_that_works(network):
    """Here all sizes must be equal, and at least 3."""
    text = """(float[n] a, float[m] b) => (float[1] y) {
        sum = Add (a, b)
        cut = Slice (sum, two, three)
        y = Reshape (cut, one)
    }"""
    model = parsed(text, one=[1], two=[2], three=[3])
    with one_line("--size n=N --size m=N, or --inputs FILE.npz; for example (.*)") as refusal:
        network(model)
    flags = str(refusal.value).split("for example ")[1].replace("--size ", "").split()
    found = network(model, sizes={name: int(size) for name, size in (flag.split("=") for flag in flags)})
    assert _outputs(found, found.make_inputs(1))[0].shape == (1,)


#: Only one value of a whole number makes a table of the right size.
OF_ONE_RATE = """(float[4] x, int64 sr) => (int64[1, n] y) {
    fits = Equal (sr, rate)
    z = If <
        then_branch = good () => (float[] g) { g = Identity (x) },
        else_branch = bad () => (float[] h) { h = Reshape (x, five) }
    > (fits)
    y = NonZero (z)
}"""


def test_without_outputs_for_random_inputs_the_message_says_what_to_give(network, tmp_path):
    model = parsed(OF_ONE_RATE, rate=16000, five=[5])
    with one_line("random inputs: give real ones with --inputs FILE.npz, or --value sr=16000$"):
        network(model)
    assert network(model, constants={"sr": 16000}).output_shapes == {"y": (1, 4)}
    for wrong in (0.5, 2**70):
        with one_line("the input sr of network is not a single int64 that can be"):
            network(model, constants={"sr": wrong})
    np.savez(tmp_path / "all.npz", x=np.zeros(4, np.float32), sr=np.array(8000))
    with one_line("network gives no outputs for the given inputs: "):
        network(model, inputs=tmp_path / "all.npz")
    np.savez(tmp_path / "all.npz", x=np.ones(4, np.float32), sr=np.array(16000))
    assert network(model, inputs=tmp_path / "all.npz").constants == {"sr": 16000}


TORCH, KERAS = "lab.TorchNetwork", "model.export"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.pt", b"PK\x03\x04 a zip", TORCH),
        ("a.pth", b"\x80\x02}q", TORCH),
        ("checkpoint", b"\x80\x02}q", TORCH),
        ("a.safetensors", b'\x10\0\0\0\0\0\0\0{"a":{}}', "weights without a network"),
        ("weights", b'\x10\0\0\0\0\0\0\0{"a":{}}', "weights without a network"),
        ("a.keras", b"PK\x03\x04 a zip", KERAS),
        ("A.H5", b"\x89HDF\r\n\x1a\n", KERAS),
        ("a.bin", b"\x89HDF\r\n\x1a\n", KERAS),
        ("a.tflite", b"\x1c\0\0\0TFL3", "tf2onnx"),
        ("a.pt2", b"PK\x03\x04 a zip", "torch.export.load"),
        ("a.ort", b"\x14\0\0\0ORTM\x0c\0", "in ONNX Runtime's own format.* give the ONNX file"),
        ("model", b"\x14\0\0\0ORTM\x0c\0", "in ONNX Runtime's own format"),
        ("a.xml", b'<?xml version="1.0"?>\n<net name="a">', "in OpenVINO's format.* give the ONNX file"),
        ("a.engine", b"ftrt\0\0", "a TensorRT engine.* give the ONNX file"),
        ("a.plan", b"\0", "a TensorRT engine"),
        ("a.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "git lfs pull"),
        ("b.onnx", b"<!DOCTYPE html><html>", "a web page"),
        ("a.zip", b"PK\x03\x04 a zip", "not an ONNX file"),
    ],
)
def test_files_of_other_formats_are_named_with_the_way_to_onnx(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with one_line(words) as refusal:
        OnnxNetwork(tmp_path / name)
    assert name in str(refusal.value)


def test_a_pickle_is_not_loaded(tmp_path):
    """Its only instruction would write a file."""

    class Harmful:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "harm"),))

    (tmp_path / "a.pt").write_bytes(pickle.dumps(Harmful(), protocol=2))
    with pytest.raises(UsageError, match="is a PyTorch file"):
        OnnxNetwork(tmp_path / "a.pt")
    assert not (tmp_path / "harm").exists()


def test_an_onnx_file_may_have_any_ending(tmp_path):
    (tmp_path / "network.pt").write_bytes(stream().SerializeToString())
    assert OnnxNetwork(tmp_path / "network.pt", sizes=SIZES).recurrent_layers


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (dict(sizes={"time": 6}), r"give --size batch=N, or --inputs FILE.npz; for example --size batch=1$"),
        (dict(sizes=SIZES, constants={"sr": 1}), "no input 'sr': its inputs are X, h0, c0"),
        (dict(sizes=SIZES, constants={"h0": 1}), "the input h0 of network is not a single float32 that can be 1"),
        (dict(sizes={**SIZES, "steps": 1}), "no symbolic size 'steps': its symbolic sizes are time, batch"),
        (dict(sizes={**SIZES, "time": 0}), "time must be at least 1, not 0"),
        (dict(sizes={**SIZES, "time": 2.0}), "time must be a whole number"),
        (dict(sizes={**SIZES, "time": 2**30}), "does not fit into the memory"),
        (dict(sizes=SIZES, states={"h": "hn"}), "no input 'h': its inputs are X, h0, c0"),
        (dict(sizes=SIZES, states={"h0": "h"}), "no output 'h': its outputs are Y, hn, cn"),
        (dict(sizes=SIZES, states={"X": "Y"}), r"X is float32 \[6, 2, 3\] and Y is float32 \[6, 1, 2, 4\]"),
        (dict(sizes=SIZES, states={"h0": "hn", "c0": "hn"}), "same output"),
        (dict(sizes=SIZES, inputs="nowhere.npz"), "cannot read nowhere.npz"),
    ],
)
def test_wrong_sizes_and_states_are_one_line(network, how, words):
    with one_line(words):
        network(stream(), **how)


def test_modes_that_a_network_lacks_are_refused_with_the_reason(network):
    with pytest.raises(UsageError, match=r"--state INPUT=OUTPUT .inputs: x; outputs: y"):
        network(own_networks.dense(), sizes={"batch": 1}).check_mode("stream")
    model = stream("GRU")
    del model.graph.output[0]
    with pytest.raises(UsageError, match="all its outputs are states"):
        network(model, sizes=SIZES).check_mode("stream")
    with pytest.raises(UsageError, match="my_lstm is bidirectional and needs the whole sequence"):
        network(stream(directions=2), sizes=SIZES).check_mode("stream")


def test_external_data_is_part_of_the_content(tmp_path):
    path, content = _external(tmp_path / "network")
    weights = path.with_name("weights.bin")
    weights.write_bytes(content)
    found, single = (OnnxNetwork(each, sizes=SIZES) for each in (path, stream().SerializeToString()))
    inputs = single.make_inputs(3)
    assert found.sha256 != single.sha256  # that of the two files
    assert all(map(np.array_equal, *(_outputs(each, inputs) for each in (found, single))))
    weights.write_bytes(content[::-1])
    assert OnnxNetwork(path, sizes=SIZES).sha256 != found.sha256
    weights.write_bytes(content[:10])
    with one_line("external data of .* cannot be loaded"):
        OnnxNetwork(path, sizes=SIZES)


def _external(folder, location="weights.bin"):
    """The file of a network and the content of its external data, which is not written."""
    folder.mkdir()
    path = folder / "network.onnx"
    onnx.save(stream(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    content = (folder / "weights.bin").read_bytes()
    (folder / "weights.bin").unlink()
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = location
    path.write_bytes(model.SerializeToString())
    return path, content


@pytest.mark.parametrize(
    ("data", "location", "reads", "onnxruntime_reads"),
    [
        ({"link/weights.bin": "../store/blob"}, "weights.bin", True, True),  # as in Hugging Face's cache
        ({"link/weights.bin": None}, "weights.bin", True, True),
        ({"store/weights.bin": None}, "weights.bin", True, False),
        ({"link/weights.bin": None, "store/weights.bin": "damaged"}, "weights.bin", True, True),
        ({"store/deep/weights.bin": None}, "deep/weights.bin", True, False),
        ({"other/weights.bin": None}, "../other/weights.bin", False, False),
        ({"other/weights.bin": None}, "{folder}/other/weights.bin", False, False),
        ({"other/blob": None, "link/weights.bin": "../other/blob"}, "weights.bin", False, False),
        ({"other/blob": None, "store/weights.bin": "../other/blob"}, "weights.bin", False, False),
        ({}, "weights.bin", False, False),
    ],
    ids=["both", "beside", "target", "first", "deeper", "up", "absolute", "out", "out-of-target", "missing"],
)
def test_external_data_is_beside_a_link_or_its_target_and_nowhere_else(
    tmp_path, data, location, reads, onnxruntime_reads
):
    """Each name is a file, or a link to what is given; ONNX Runtime does not look beside the target."""
    _, content = _external(tmp_path / "store", location.format(folder=tmp_path))
    (tmp_path / "link").mkdir()
    os.symlink("../store/network.onnx", tmp_path / "link" / "network.onnx")
    (tmp_path / "store" / "blob").write_bytes(content)
    for name, what in data.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        if what is None:
            file.write_bytes(content)
        elif what == "damaged":
            file.write_bytes(content[::-1])
        else:
            os.symlink(what, file)
    link = tmp_path / "link" / "network.onnx"
    if reads:
        found, whole = OnnxNetwork(link, sizes=SIZES), OnnxNetwork(stream().SerializeToString(), sizes=SIZES)
        inputs = whole.make_inputs(3)
        assert all(map(np.array_equal, *(_outputs(each, inputs) for each in (found, whole))))
    else:
        with one_line("is outside its folder" if data else "is missing"):
            OnnxNetwork(link, sizes=SIZES)
    if onnxruntime_reads:
        onnxruntime.InferenceSession(link)


def test_external_data_ends_where_the_file_ends(tmp_path):
    path, content = _external(tmp_path / "store")
    path.with_name("weights.bin").write_bytes(content)
    model = onnx.load(path, load_external_data=False)
    for key, value in (
        ("offset", "-4"),
        ("length", "-4"),
        ("offset", "four"),
        ("location", "weights\0.bin"),
        ("offset", str(len(content))),
        ("length", str(len(content) + 1)),
    ):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        (entry,) = (each for each in changed.graph.initializer[0].external_data if each.key == key)
        entry.value = value
        path.write_bytes(changed.SerializeToString())
        with one_line("external data of .* cannot be loaded: "):
            OnnxNetwork(path, sizes=SIZES)


def _no_outputs(model):
    del model.graph.output[:]


def _two_outputs_of_one_name(model):
    model.graph.output.append(model.graph.output[0])


def _negative_size(model):
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -3


def _outputs_without_names(model):
    model.graph.node.add().CopyFrom(model.graph.node[0])
    for place in range(len(model.graph.node[-1].output)):
        model.graph.node[-1].output[place] = ""
    model.graph.node[-1].name = ""


def _tensor_of_no_type(model):
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c"], value=model.graph.initializer[0]))
    model.graph.node[0].attribute[0].t.data_type = -1


def _tensor_of_another_size(model):
    model.graph.initializer[0].raw_data += bytes(4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_no_outputs, "it has no outputs"),
        (_two_outputs_of_one_name, "two outputs have the same name"),
        (_negative_size, "a size below 0"),
        (_outputs_without_names, None),
        (_tensor_of_no_type, "is not valid"),
        (_tensor_of_another_size, "is not valid ONNX"),
    ],
)
def test_a_field_of_a_wrong_kind_is_one_line(network, change, said):
    model = stream()
    change(model)
    if said is None:
        assert network(model, sizes=SIZES).recurrent_layers[-1].name == ""
        return
    for sizes in ({}, SIZES):
        with one_line(said):
            network(model, sizes=sizes)


def test_a_file_without_symbolic_sizes_says_what_it_fixes():
    model = stream()
    for tensor in (*model.graph.input, *model.graph.output):
        for dim, size in zip(tensor.type.tensor_type.shape.dim, (5, 1, 3), strict=False):
            dim.dim_value = dim.dim_value or size
    with one_line(r"\(X is 5 x 1 x 3.*dynamic_axes=.*\"time\".*dynamic_shapes"):
        OnnxNetwork(model.SerializeToString(), sizes={"time": 8})


def _outputs(network, inputs):
    return onnxruntime.InferenceSession(network.path.read_bytes()).run(None, inputs)


@pytest.mark.random(tail=0, why="fuzzing, 40 mutants")
def test_damaged_and_foreign_files_are_one_line(network, tmp_path, rng):
    content = stream().SerializeToString()
    path = tmp_path / "damaged.onnx"
    cases = [b"", b"PK\x03\x04 a zip", b"not onnx at all", content[: len(content) // 2]]
    for _ in range(40):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] = rng.integers(256)
        cases.append(bytes(damaged))
    refused = 0
    for case in cases:
        path.write_bytes(case)
        try:
            OnnxNetwork(path, sizes=SIZES)
        except LabError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused >= 4
    with pytest.raises(UsageError, match=r"cannot read .*: Is a directory"):
        OnnxNetwork(tmp_path)


class Layer(torch.nn.Module):
    """An LSTM of 3 features and 8 units, and what a function makes of it and the inputs."""

    def __init__(self, forward, **how):
        super().__init__()
        self.lstm, self.function = torch.nn.LSTM(3, 8, **how), forward

    def forward(self, samples):
        return self.function(self.lstm, samples)


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.dense = torch.nn.LSTM(3, 8), torch.nn.Linear(8, 2)

    def forward(self, samples, h0, c0):
        steps, state = self.lstm(samples, (h0, c0))
        return self.dense(steps), state


def as_pytorch_computes(network):
    """Whether ONNX Runtime computes of a module what PyTorch does; returns the inputs."""
    inputs, expected = torch_answers(network)
    found = dict(zip(expected, _outputs(network, inputs), strict=True))
    assert all(np.allclose(found[name], expected[name], atol=1e-6) for name in expected)
    return inputs


EXAMPLE = (torch.zeros(4, 1, 3), torch.zeros(1, 1, 8), torch.zeros(1, 1, 8))


def test_a_module_is_exported_with_its_outputs():
    module = Head().train()
    names = dict(output_names=["scores", "hn", "cn"], dynamic_axes={"samples": {0: "time"}, "scores": {0: "time"}})
    network = lab.TorchNetwork(module, EXAMPLE, **names)
    assert module.training and network.sizes == (("time", 4),) and len(network.states) == 2
    inputs = as_pytorch_computes(network)
    assert set(inputs) == {"samples", "h0", "c0"} and np.abs(inputs["samples"]).sum() > 0
    assert list(network.output_shapes) == names["output_names"]
    assert lab.TorchNetwork(module, EXAMPLE, **names, sizes={"time": 9}).input_shapes["samples"] == (9, 1, 3)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (dict(example_inputs=(torch.zeros(4, 1, 5), *EXAMPLE[1:])), "cannot be run with the example inputs"),
        (dict(example_inputs=[1]), "must be a tensor"),
        (dict(output_names=["one"]), "3 outputs, but 1 names"),
        (dict(dynamic_axes={"sample": {0: "time"}}), "no input or output is called 'sample'"),
        (dict(dynamic_axes={"samples": {3: "time"}}), "'samples' has the axes 0 to 2, not 3"),
    ],
    ids=str,
)
def test_what_does_not_fit_a_module_is_refused(wrong, words):
    with one_line(words, LabError):
        TorchNetwork(Head(), **{"example_inputs": EXAMPLE, **wrong})


class Dropped(torch.nn.Module):
    """A dictionary of outputs, with dropout between and behind the layers."""

    def __init__(self):
        super().__init__()
        self.lstm, self.drop = torch.nn.LSTM(3, 8, 2, batch_first=True, dropout=0.5), torch.nn.Dropout(0.5)

    def forward(self, samples):
        steps, (hn, cn) = self.lstm(samples)
        return {"steps": self.drop(steps), "states": [hn, cn]}


class Packed(Dropped):
    def forward(self, samples, lengths):
        packed, _ = self.lstm(pack_padded_sequence(samples, lengths, batch_first=True, enforce_sorted=False))
        return pad_packed_sequence(packed, batch_first=True)[0]


BATCH = torch.zeros(2, 5, 3)
OPEN = {"dynamic_axes": {"samples": {1: torch.export.Dim("time")}}}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("make", "example", "how", "names"),
    [
        (Dropped, BATCH, OPEN, ["output0", "output1", "output2"]),
        (Packed, (BATCH, torch.tensor([3, 5])), OPEN, ["output"]),
        (lambda: torch.jit.trace(Dropped().lstm.eval(), BATCH), BATCH, {}, ["output0", "output1", "output2"]),
    ],
    ids=["training mode, a dictionary of outputs, Dim", "packed sequences", "traced"],
)
def test_modules_as_people_have_them(make, example, how, names):
    module = make()
    mode = module.training
    network = lab.TorchNetwork(module, example, **how)
    assert list(network.output_shapes) == names and module.training == mode
    assert [layer.sequence for layer in network.recurrent_layers] == [5, 5]
    assert dict(network.sizes) == ({"time": 5} if how else {})
    as_pytorch_computes(network)


STEPS = torch.zeros(5, 1, 3)


def exported(module):
    return torch.export.export(module, (STEPS,))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("make", "how", "words"),
    [
        (lambda: Layer(lambda lstm, x: lstm(x), proj_size=4), {}, "has an LSTM with proj_size"),
        (lambda: Layer(lambda lstm, x: torch.nn.functional.dropout(lstm(x)[0])), {}, "the outputs of Layer are random"),
        (Dropped, {"dynamic_axes": {"samples": {1: torch.export.Dim.AUTO}}}, "axis 1 of 'samples' needs a name"),
        (lambda: exported(torch.nn.LSTM(3, 8)), {}, "give the module itself, not what was exported from it"),
        (lambda: exported(torch.nn.LSTM(3, 8)).module(), {}, "give the module itself, not what was exported from it"),
    ],
    ids=["proj_size", "random", "axis without a name", "exported", "module of what was exported"],
)
def test_modules_that_are_no_network_are_refused(make, how, words):
    with one_line(words, LabError):
        TorchNetwork(make(), STEPS, **how)


class Of(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, samples):
        return self.function(samples)


@pytest.mark.parametrize(
    ("make", "shape", "reason"),
    [
        (
            lambda: Of(lambda x: torch.stft(x, 64, window=torch.ones(64), return_complex=True).abs()),
            (1, 400),
            "STFT does not currently support complex types",
        ),
        (
            lambda: torch.jit.trace(Layer(lambda lstm, x: lstm(x)[0], proj_size=4), STEPS),
            (5, 1, 3),
            "LSTMs with projections",
        ),
        (lambda: Of(lambda x: torch.linalg.eigh(x @ x.T)[0]), (3, 3), "aten::linalg_eigh"),
    ],
    ids=["spectrum", "traced projection", "eigenvalues"],
)
def test_what_pytorch_cannot_export_is_one_line_and_its_text_is_in_a_file(capfd, make, shape, reason):
    with pytest.raises(ExportFailed, match=reason) as caught:
        TorchNetwork(make(), torch.ones(shape), name="planted")
    said, _, path = str(caught.value).partition("; the exporter's own text: ")
    assert len(said) < 350 and "\n" not in path and "Caused by" not in said
    assert reason in Path(path).read_text() and "graph(" in Path(path).read_text()
    assert capfd.readouterr().out == ""


class Loop(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTMCell(3, 4)

    def forward(self, samples):
        h, c = torch.zeros(1, 4), torch.zeros(1, 4)
        outputs = []
        for step in range(samples.size(0)):
            h, c = self.cell(samples[step], (h, c))
            outputs.append(h)
        return torch.stack(outputs)


def test_a_scripted_loop_is_exported():
    """PyTorch interprets its condition while it exports, where tensors of an inference mode cannot be used."""
    as_pytorch_computes(TorchNetwork(torch.jit.script(Loop()), STEPS, name="loop"))
