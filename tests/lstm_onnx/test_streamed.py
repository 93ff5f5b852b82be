"""Networks for whole windows as streams: calls of a few samples against the window, and what is refused by its name."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import lstm_trt as lab
from lstm_onnx.own_network import OnnxNetwork
from lstm_onnx.read_onnx import run_onnxruntime
from lstm_trt.config.errors import UsageError
from lstm_trt.export.sizes import static_model
from tests.conftest import ROOT
from tests.support.own_networks import model_of, numbers, value

make = helper.make_node


def window(*nodes, outputs=None, batch="batch", before=(), opset=18, **constants):
    """A GRU of x (time, batch, 3) with the result `steps` (time, batch, 4), and further nodes."""
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    stored += [numbers("W", 1, 12, 3), numbers("R", 1, 12, 4), numbers("A", 4, 2)]
    stored.append(numpy_helper.from_array(np.array([1]), "axis1"))
    first = [*before, make("GRU", ["read" if before else "x", "W", "R"], ["Y", "last"], name="gru", hidden_size=4)]
    nodes = [*first, make("Squeeze", ["Y", "axis1"], ["steps"]), *nodes]
    outputs = outputs or {"y": ["time", batch, "width"]}
    model = model_of(
        nodes, [value("x", ["time", batch, 3])], [value(name, sizes) for name, sizes in outputs.items()], stored
    )
    model.opset_import[0].version = opset
    return model


def padded(pads, strides=(), size=3, **how):
    """Channels first, a Pad or a convolution with its own padding, and back; several with several strides."""
    own = how.pop("own", False)
    nodes = [make("Transpose", ["x"], ["channels"], perm=[1, 2, 0])]
    if not own:
        nodes.append(make("Pad", ["channels", "pads"], ["padded"], **how))
    attributes = {"pads": pads} if own else {}
    last = "channels" if own else "padded"
    for number, stride in enumerate(strides or [1]):
        name = f"conv{number or ''}"
        nodes.append(make("Conv", [last, "kernel"], [f"smooth{number}"], name=name, strides=[stride], **attributes))
        last = f"smooth{number}"
    nodes[-1].output[0] = "smooth"
    nodes.append(make("Transpose", ["smooth"], ["read"], perm=[2, 0, 1]))
    constants = {
        "kernel": numpy_helper.to_array(numbers("kernel", 3, 3, size)),
        "pads": np.array([0, 0, pads[0], 0, 0, pads[1]]),
    }
    return window(make("Sigmoid", ["steps"], ["y"]), before=nodes, **constants)


def stacked():
    """An LSTM with peepholes, an RNN, and products on features with the state of the last sample as an output."""
    more = {
        name: numpy_helper.to_array(numbers(name, *shape))
        for name, shape in {"W2": (1, 20, 4), "R2": (1, 20, 5), "P2": (1, 15), "W3": (1, 6, 5), "R3": (1, 6, 6)}.items()
    }
    nodes = [
        make("LSTM", ["steps", "W2", "R2", "", "", "", "", "P2"], ["Y2", "", "cell"], hidden_size=5),
        make("Squeeze", ["Y2", "axis1"], ["steps2"]),
        make("RNN", ["steps2", "W3", "R3"], ["Y3"], hidden_size=6),
        make("Softmax", ["Y3"], ["y"], axis=-1),
        make("Tanh", ["cell"], ["z"]),
    ]
    return window(*nodes, outputs={"y": ["time", 1, "batch", 6], "z": [1, "batch", 5]}, **more)


def first_states():
    """Their batch size is that of the input, as exporters write it."""
    more = {name: numpy_helper.to_array(numbers(name, *shape)) for name, shape in {
        "W2": (1, 20, 4), "R2": (1, 20, 5), "h": (1, 1, 5), "c": (1, 1, 5)}.items()}  # fmt: skip
    nodes = [
        make("Shape", ["x"], ["batch"], start=1, end=2),
        make("Concat", ["axis1", "batch", "axis1"], ["sizes"], axis=0),
        make("Expand", ["h", "sizes"], ["hs"]),
        make("Expand", ["c", "sizes"], ["cs"]),
        make("LSTM", ["steps", "W2", "R2", "", "", "hs", "cs"], ["Y2", "", "cell"], hidden_size=5),
        make("Squeeze", ["Y2", "axis1"], ["y"]),
        make("Tanh", ["cell"], ["z"]),
    ]
    return window(*nodes, outputs={"y": ["time", "batch", 5], "z": [1, "batch", 5]}, **more)


def with_state(array):
    model = window(make("Tanh", ["steps"], ["y"]), h=np.asarray(array, np.float32))
    (gru,) = (node for node in model.graph.node if node.op_type == "GRU")
    gru.input.extend(["", "", "h"])
    if np.ndim(array) == 3:  # of any batch size
        model.graph.node.insert(0, make("Shape", ["x"], ["batch"], start=1, end=2))
        model.graph.node.insert(1, make("Concat", ["axis1", "batch", "axis1"], ["sizes"], axis=0))
        model.graph.node.insert(2, make("Expand", ["h", "sizes"], ["hs"]))
        gru.input[5] = "hs"
    return model


def state_from_the_samples():
    """The first state is the mean of the first sample."""
    nodes = [
        make("Slice", ["x", "none", "axis1", "none"], ["first"]),
        make("ReduceMean", ["first", "axes"], ["mean"]),
        make("Expand", ["mean", "sizes"], ["h"]),
        make("Identity", ["x"], ["read"]),
    ]
    constants = {"none": np.array([0]), "axes": np.array([2]), "sizes": np.array([1, 1, 4])}
    model = window(make("Tanh", ["steps"], ["y"]), before=nodes, **constants)
    (gru,) = (node for node in model.graph.node if node.op_type == "GRU")
    gru.input.extend(["", "", "h"])
    return model


STREAMS = {
    "a product": lambda: window(make("MatMul", ["steps", "A"], ["y"])),
    "three layers": stacked,
    "a padded convolution": lambda: padded([2, 0], own=True),
    "a pad before a convolution": lambda: padded([2, 0]),
    "a first state": lambda: with_state(np.full((1, 1, 4), 0.5)),
    "first states of an LSTM, expanded to the batch": first_states,
    "the sizes of a call": lambda: window(
        make("Shape", ["steps"], ["sizes"]), make("Reshape", ["steps", "sizes"], ["y"])
    ),
}


def calls(network, inputs, samples):
    """The outputs of a stream in calls of so many samples, one after another along time."""
    stream = OnnxNetwork(network.path, sizes={**dict(network.sizes), "time": samples}, states=dict(network.carried))
    total = len(inputs["x"])
    sets = [{"x": inputs["x"][start : start + samples]} for start in range(0, total, samples)]
    return run_onnxruntime(static_model(stream.path, stream), sets, stream.states)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", STREAMS)
def test_calls_of_1_3_and_all_samples_are_the_whole_window(name, batch, rng):
    network = OnnxNetwork(STREAMS[name]().SerializeToString(), sizes={"time": 12, "batch": batch})
    assert network.modes == ("forward",)
    stream, inputs = network.in_mode("stream"), network.make_inputs(int(rng.integers(2**32)))
    (whole,) = run_onnxruntime(static_model(network.path, network), [inputs])
    for samples in (1, 3, 12):
        found = calls(stream, inputs, samples)
        joined = np.concatenate([outputs["y"] for outputs in found])
        np.testing.assert_allclose(joined, whole["y"], rtol=1e-4, atol=1e-6)
        if "z" in whole:  # the final state of each call
            np.testing.assert_allclose(found[-1]["z"], whole["z"], rtol=1e-4, atol=1e-6)
    assert stream.sizes == network.sizes and stream.flags == network.flags and stream.name == network.name
    assert stream.in_mode("stream") is stream and network.in_mode("forward") is network


#: Networks with convolutions that have a stride along time, and what it is.
STRIDED = {
    "causal": (lambda: padded([2, 0], [2], own=True), 2),
    "padded on both sides, which needs no later sample": (lambda: padded([1, 1], [2], own=True), 2),
    "without padding": (lambda: padded([0, 0], [3], own=True), 3),
    "a pad before it": (lambda: padded([1, 0], [3], size=4), 3),
    "two of them": (lambda: padded([1, 1], [2, 2], own=True), 4),
    "another order": (lambda: padded([1, 1], [2, 3], own=True), 6),
}


@pytest.mark.parametrize("name", STRIDED)
def test_a_stride_takes_as_many_samples_a_call(name, rng):
    build, stride = STRIDED[name]
    network = OnnxNetwork(build().SerializeToString(), sizes={"time": 12, "batch": 1}, name="mine")
    stream, inputs = network.in_mode("stream"), network.make_inputs(int(rng.integers(2**32)))
    (whole,) = run_onnxruntime(static_model(network.path, network), [inputs])
    for samples in (stride, 12):
        joined = np.concatenate([outputs["y"] for outputs in calls(stream, inputs, samples)])
        np.testing.assert_allclose(joined, whole["y"], rtol=1e-4, atol=1e-6)
    other = OnnxNetwork(network.path, sizes={"time": stride + 1, "batch": 1}, name="mine")
    with pytest.raises(UsageError, match=f"takes {stride} samples a call, .*--size time={stride}$"):
        other.in_mode("stream")


def turned(**how):
    model = window(make("Tanh", ["Y"], ["y"]))
    (gru,) = (node for node in model.graph.node if node.op_type == "GRU")
    gru.attribute.extend(helper.make_attribute(name, text) for name, text in how.items())
    return model


def branched():
    """An If whose branch reads all samples."""
    body = helper.make_graph(
        [make("CumSum", ["steps", "zero"], ["inner"])], "body", [], [value("inner", ["time", "batch", 4])]
    )
    return window(
        make("If", ["yes"], ["y"], name="choice", then_branch=body, else_branch=body),
        yes=np.array(True),
        zero=np.array(0),
    )


REFUSED = {
    "Conv operator 'conv'": lambda: padded([1, 1], own=True),
    "Conv operator with output 'smooth'": lambda: _unnamed(padded([1, 0], own=True)),
    "Conv operator 'conv' ": lambda: padded([0, 0], own=True),
    "Pad operator": lambda: padded([1, 1]),
    "Pad operator with output 'padded'": lambda: padded([2, 0], mode="edge"),
    "GRU operator 'gru'": lambda: turned(direction="reverse"),
    "Slice operator": state_from_the_samples,
    "Conv operator 'conv'  ": lambda: padded([0, 1], [2], own=True),
    "ReduceMean operator": lambda: window(make("ReduceMean", ["steps", "zero"], ["y"]), zero=np.array([0])),
    "Pad operator with output 'y'": lambda: window(make("Pad", ["steps", "pads"], ["y"]), pads=np.array([2, *[0] * 5])),
    "CumSum operator": lambda: window(make("CumSum", ["steps", "zero"], ["y"]), zero=np.array(0)),
    "Add operator": lambda: window(make("Add", ["Y", "last"], ["y"])),
    "Div operator": lambda: window(
        make("Shape", ["steps"], ["sizes"], end=1),
        make("Cast", ["sizes"], ["count"], to=1),
        make("Div", ["steps", "count"], ["y"]),
    ),
    "Reshape operator": lambda: window(make("Reshape", ["steps", "order"], ["y"]), order=np.array([4, -1])),
    "If operator 'choice'": branched,
}


def _unnamed(model):
    for node in model.graph.node:
        node.name = ""
    return model


@pytest.mark.parametrize("operator", REFUSED)
def test_what_cannot_be_a_stream_is_refused_by_its_name(operator):
    network = OnnxNetwork(REFUSED[operator]().SerializeToString(), sizes={"time": 4, "batch": 1}, name="mine")
    with pytest.raises(UsageError, match=f"^mine has no mode stream: {operator.strip()}") as refusal:
        network.in_mode("stream")
    assert "needs more than the current sample" in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("sizes", [{}, {"time": 4}], ids=["one call", "window"])
def test_a_network_without_a_state_is_refused_with_what_to_do_instead(tmp_path, refused, sizes):
    steps = "time" if sizes else 1
    ends = [[value(name, [steps, 1, width])] for name, width in (("x", 4), ("y", 2))]
    onnx.save(model_of([make("MatMul", ["x", "A"], ["y"])], *ends, [numbers("A", 4, 2)]), tmp_path / "flat.onnx")
    flags = [f"--size={name}={size}" for name, size in sizes.items()]
    line = refused("record", "--onnx", tmp_path / "flat.onnx", *flags, "--mode", "stream", "--out", tmp_path / "out")
    assert "flat has no mode stream" in line and "if it has none, --mode forward makes the same calls" in line
    assert "--state INPUT=OUTPUT (inputs: x; outputs: y)" in line


def test_a_layer_along_another_axis_and_what_is_constant_stay():
    """Only the GRU along time gets a state; `also` runs over the batch, and reads both of its ends."""
    more = {
        name: numpy_helper.to_array(numbers(name, *shape))
        for name, shape in {"W2": (2, 12, 4), "R2": (2, 12, 4)}.items()
    }
    also = [
        make("Transpose", ["steps"], ["swapped"], perm=[1, 0, 2]),
        make("GRU", ["swapped", "W2", "R2"], ["y"], hidden_size=4, direction="bidirectional"),
    ]
    network = OnnxNetwork(window(*also, batch=5, **more).SerializeToString(), sizes={"time": 6})
    assert len(network.in_mode("stream").states) == 1


def test_a_fixed_number_of_samples_is_said():
    model = window(make("Tanh", ["steps"], ["y"]))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 6
    with pytest.raises(UsageError, match="export it with a symbolic number of samples"):
        OnnxNetwork(model.SerializeToString(), sizes={"batch": 1}).in_mode("stream")


@pytest.mark.heavy
def test_a_module_with_a_causal_convolution_streams(tmp_path):
    """As PyTorch exports it, batch first; and the file that `export_onnx` writes."""
    import torch

    class Detector(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv1d(3, 6, 4, dilation=2)
            self.norm, self.lstm = torch.nn.LayerNorm(6), torch.nn.LSTM(6, 8, 2, batch_first=True)
            self.dense = torch.nn.Linear(8, 1)

        def forward(self, x):
            steps = self.conv(torch.nn.functional.pad(x.transpose(1, 2), (6, 0))).transpose(1, 2)
            return torch.sigmoid(self.dense(self.lstm(self.norm(steps))[0]))

    axes = {"x": {0: "batch", 1: "time"}, "output": {0: "batch", 1: "time"}}
    network = lab.TorchNetwork(Detector(), torch.randn(1, 20, 3), dynamic_axes=axes)
    written = lab.export_onnx(network, tmp_path, mode="stream", symbolic=True)
    assert written.path.name == "Detector-stream.onnx" and "carried state stream_state0_in" in str(written)
    assert written.as_dict()["shape"]["sequence"] == 20
    stream = OnnxNetwork(written.path, sizes={"time": 1, "batch": 2})
    assert [state.shape for state in stream.states] == [(2, 3, 6), *[(1, 2, 8)] * 4]
    inputs = OnnxNetwork(network.path, sizes={"time": 20, "batch": 2}).make_inputs(4)
    (whole,) = run_onnxruntime(network.path.read_bytes(), [inputs])
    sets = [{"x": inputs["x"][:, [place]]} for place in range(20)]
    found = run_onnxruntime(static_model(stream.path, stream), sets, stream.states)
    joined = np.concatenate([outputs["output"] for outputs in found], axis=1)
    np.testing.assert_allclose(joined, whole["output"], rtol=1e-5, atol=1e-6)


@pytest.mark.heavy
def test_a_window_of_a_file_is_recorded_as_a_stream(tmp_path, lab):
    """By the command, whose command line records the same again; from Keras, with the batch first."""
    file = ROOT / "data/networks/keras_lstm.onnx"
    sizes = ("--size", "unk__135=1", "--size", "unk__136=2")
    done = lab("record", "--onnx", file, *sizes, "--mode", "stream", "--trials", 50, "--no-control", "--out", tmp_path)
    assert done.returncode == 0 and "carried state stream_state0_in -> stream_state0_out, " in done.stderr
    assert "add --c, or --mode stream" in lab("export", "--onnx", file, *sizes, "--out", tmp_path).stderr
    assert lab("export", "--onnx", file, *sizes, "--mode", "stream", "--out", tmp_path).returncode == 0
    (written,) = tmp_path.glob("keras_lstm@*-stream.onnx")
    assert len(onnx.load(written).graph.output) == 5
