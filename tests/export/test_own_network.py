"""Own networks: what is read from a file, identity, inputs, states, and what is refused."""

import json
import os

import numpy as np
import onnx
import onnxruntime
import pytest

import lstm_trt as lab
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import ExportFailed, LabError, UsageError
from lstm_trt.config.workload import State, workload_from_dict
from lstm_trt.export.own_network import OnnxNetwork, TorchNetwork, torch_answers
from lstm_trt.export.to_onnx import static_model
from tests.support import own_networks
from tests.support.own_networks import saved, stream

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
    assert [dim.dim_value for dim in static.graph.input[0].type.tensor_type.shape.dim] == [6, 2, 3]


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


def test_an_output_of_another_shape_is_no_state(network):
    model = renamed_outputs("hn", "cn")
    model.graph.output[0].name = model.graph.node[0].output[0] = "h0_out"
    assert network(model, sizes=SIZES).carried == (("c0", "cn"), ("h0", "hn"))


def test_inputs_are_random_within_what_the_graph_allows(network, rng):
    found = network(own_networks.words(), sizes={"time": 30, "batch": 4})
    inputs = found.make_inputs(int(rng.integers(2**32)))
    assert set(np.unique(inputs["tokens"])) == set(range(5)) and inputs["tokens"].dtype == np.int64
    assert inputs["lengths"].tolist() == [30] * 4 and inputs["lengths"].dtype == np.int32


def test_own_inputs_replace_the_random_ones(network, tmp_path):
    given = np.arange(36, dtype=np.float32).reshape(6, 2, 3)
    np.savez(tmp_path / "inputs.npz", X=given)
    found = network(stream(), sizes=SIZES, inputs=tmp_path / "inputs.npz")
    inputs = found.make_inputs(1)
    assert np.array_equal(inputs["X"], given) and set(inputs) == {"X", "h0", "c0"}
    assert set(found.make_inputs(1, "stream")) == {"X"}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (dict(sizes={"time": 6}), r"give --size batch=N"),
        (dict(sizes={**SIZES, "steps": 1}), "no symbolic size 'steps': its symbolic sizes are time, batch"),
        (dict(sizes={**SIZES, "time": 0}), "time must be a whole number of at least 1, not 0"),
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
    with pytest.raises(UsageError, match=words) as caught:
        network(stream(), **how)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (dict(X=np.zeros((6, 2, 4), np.float32)), r"float32 \[6, 2, 4\], but network needs float32 \[6, 2, 3\]"),
        (dict(X=np.zeros((6, 2, 3))), "is float64"),
        (dict(x=np.zeros((6, 2, 3), np.float32)), "'x', but the inputs of network are X, h0, c0"),
        (dict(X=np.array([{}], object)), "not an .npz file of arrays"),  # would be unpickled
    ],
)
def test_wrong_inputs_are_one_line(network, tmp_path, arrays, words):
    np.savez(tmp_path / "inputs.npz", allow_pickle=True, **arrays)
    with pytest.raises(UsageError, match=words):
        network(stream(), sizes=SIZES, inputs=tmp_path / "inputs.npz")


def test_modes_that_a_network_lacks_are_refused_with_the_reason(network):
    with pytest.raises(UsageError, match=r"--state INPUT=OUTPUT .inputs: x; outputs: y"):
        network(own_networks.dense(), sizes={"batch": 1}).check_mode("stream")
    model = stream("GRU")
    del model.graph.output[0]
    with pytest.raises(UsageError, match="all its outputs are states"):
        network(model, sizes=SIZES).check_mode("stream")
    with pytest.raises(UsageError, match="my_lstm is bidirectional and needs the whole sequence"):
        network(stream(directions=2), sizes=SIZES).check_mode("stream")


def test_external_data_stays_inside_the_folder_of_the_file(tmp_path):
    for folder in ("network", "elsewhere"):
        (tmp_path / folder).mkdir()
    path = tmp_path / "network" / "network.onnx"
    onnx.save(stream(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    whole = saved(stream(), tmp_path / "elsewhere")
    found, single = (OnnxNetwork(file, sizes=SIZES) for file in (path, whole))
    inputs = single.make_inputs(3)
    assert found.sha256 != single.sha256  # that of the two files
    assert all(map(np.array_equal, *(_outputs(each, inputs) for each in (found, single))))

    weights = path.with_name("weights.bin")
    content = weights.read_bytes()
    weights.write_bytes(content[::-1])
    assert OnnxNetwork(path, sizes=SIZES).sha256 != found.sha256
    weights.write_bytes(content[:10])
    with pytest.raises(UsageError, match=r"external data of .* cannot be loaded"):
        OnnxNetwork(path, sizes=SIZES)
    outside = tmp_path / "elsewhere" / "weights.bin"
    weights.rename(outside)
    with pytest.raises(UsageError, match=r"'weights.bin' of .* is missing"):
        OnnxNetwork(path, sizes=SIZES)
    os.symlink(outside, weights)
    with pytest.raises(UsageError, match="is outside its folder"):
        OnnxNetwork(path, sizes=SIZES)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "../elsewhere/weights.bin"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match="is outside its folder"):
        OnnxNetwork(path, sizes=SIZES)


def _outputs(network, inputs):
    return onnxruntime.InferenceSession(network.path.read_bytes()).run(None, inputs)


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


def test_a_module_is_exported_with_its_outputs():
    import torch

    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.dense = torch.nn.LSTM(3, 8), torch.nn.Linear(8, 2)

        def forward(self, samples, h0, c0):
            steps, state = self.lstm(samples, (h0, c0))
            return self.dense(steps), state

    module = Head().train()
    example = (torch.zeros(4, 1, 3), torch.zeros(1, 1, 8), torch.zeros(1, 1, 8))
    names = dict(output_names=["scores", "hn", "cn"], dynamic_axes={"samples": {0: "time"}, "scores": {0: "time"}})
    network = lab.TorchNetwork(module, example, **names)
    assert module.training and network.sizes == (("time", 4),) and len(network.states) == 2
    inputs, expected = torch_answers(network)
    assert set(inputs) == {"samples", "h0", "c0"} and np.abs(inputs["samples"]).sum() > 0
    found = dict(zip(expected, _outputs(network, inputs), strict=True))
    assert all(np.allclose(found[name], expected[name], atol=1e-6) for name in ("scores", "hn", "cn"))
    assert lab.TorchNetwork(module, example, **names, sizes={"time": 9}).input_shapes["samples"] == (9, 1, 3)
    for wrong, words in (
        (dict(example_inputs=(torch.zeros(4, 1, 5), *example[1:])), "cannot be run with the example inputs"),
        (dict(example_inputs=[1]), "must be a tensor"),
        (dict(example_inputs=example, output_names=["one"]), "3 outputs, but 1 names"),
        (dict(example_inputs=example, dynamic_axes={"sample": {0: "time"}}), "no input or output is called 'sample'"),
        (dict(example_inputs=example, dynamic_axes={"samples": {3: "time"}}), "'samples' has the axes 0 to 2, not 3"),
    ):
        with pytest.raises((UsageError, ExportFailed), match=words):
            TorchNetwork(module, **wrong)
