"""Networks for whole windows as streams: calls of a few samples against the window, and what is refused by its name."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import lstm_trt as lab
from lstm_onnx.own_network import OnnxNetwork
from lstm_onnx.read_onnx import run_onnxruntime
from lstm_trt.config.errors import UsageError
from lstm_trt.export.sizes import static_model
from tests.conftest import ROOT
from tests.support.own_networks import parsed

X, Y = "float[time, batch, 3] x", "float[time, batch, width] y"


def window(text, inputs=X, outputs=Y, before="", read="x", **constants):
    """A GRU of x (time, batch, 3), or of what is made before it, with the result `steps` (time, batch, 4), and more."""
    return parsed(
        f"""({inputs}) => ({outputs}) {{
            {before}
            [gru] Y, last = GRU <hidden_size = 4> ({read}, W, R)
            steps = Squeeze (Y, axis1)
            {text}
        }}""",
        W=(1, 12, 3), R=(1, 12, 4), A=(4, 2), axis1=[1], **constants,
    )  # fmt: skip


def padded(pads, strides=(1,), size=3, own=False, mode="constant"):
    """Channels first, a Pad or a convolution with its own padding, and back; several with several strides."""
    last = "channels" if own else "padded"
    text = "channels = Transpose <perm = [1, 2, 0]> (x)"
    if not own:
        text += f' padded = Pad <mode = "{mode}"> (channels, pads)'
    for number, stride in enumerate(strides):
        made = "smooth" if number == len(strides) - 1 else f"smooth{number}"
        padding = f", pads = {list(pads)}" if own else ""
        text += f" [conv{number or ''}] {made} = Conv <strides = [{stride}]{padding}> ({last}, kernel)"
        last = made
    text += " turned = Transpose <perm = [2, 0, 1]> (smooth)"
    return window(
        "y = Sigmoid (steps)", before=text, read="turned", kernel=(3, 3, size), pads=[0, 0, pads[0], 0, 0, pads[1]]
    )


def stacked():
    """An LSTM with peepholes, an RNN, and products on features with the state of the last sample as an output."""
    return window(
        """Y2, , cell = LSTM <hidden_size = 5> (steps, W2, R2, "", "", "", "", P2)
        steps2 = Squeeze (Y2, axis1)
        Y3 = RNN <hidden_size = 6> (steps2, W3, R3)
        y = Softmax <axis = -1> (Y3)
        z = Tanh (cell)""",
        outputs="float[time, 1, batch, 6] y, float[1, batch, 5] z",
        W2=(1, 20, 4), R2=(1, 20, 5), P2=(1, 15), W3=(1, 6, 5), R3=(1, 6, 6),
    )  # fmt: skip


#: The batch size of the input, as exporters write it.
SIZES = "batch = Shape <start = 1, end = 2> (x) sizes = Concat <axis = 0> (axis1, batch, axis1)"


def first_states():
    """Their batch size is that of the input."""
    return window(
        f"""{SIZES}
        hs = Expand (h, sizes)
        cs = Expand (c, sizes)
        Y2, , cell = LSTM <hidden_size = 5> (steps, W2, R2, "", "", hs, cs)
        y = Squeeze (Y2, axis1)
        z = Tanh (cell)""",
        outputs="float[time, batch, 5] y, float[1, batch, 5] z",
        W2=(1, 20, 4), R2=(1, 20, 5), h=(1, 1, 5), c=(1, 1, 5),
    )  # fmt: skip


def beginning(model):
    """The model, of which the GRU begins with the state `h`."""
    (gru,) = (node for node in model.graph.node if node.op_type == "GRU")
    gru.input.extend(["", "", "h"])
    return model


def with_state(array):
    """A first state of any batch size."""
    before = f"{SIZES} h = Expand (first, sizes)"
    return beginning(window("y = Tanh (steps)", before=before, first=np.asarray(array, np.float32)))


def state_from_the_samples():
    """The first state is the mean of the first sample."""
    before = """first = Slice (x, none, axis1, none)
        mean = ReduceMean (first, axes)
        h = Expand (mean, sizes)"""
    return beginning(window("y = Tanh (steps)", before=before, none=[0], axes=[2], sizes=[1, 1, 4]))


STREAMS = {
    "a product": lambda: window("y = MatMul (steps, A)"),
    "three layers": stacked,
    "a padded convolution": lambda: padded([2, 0], own=True),
    "a pad before a convolution": lambda: padded([2, 0]),
    "a first state": lambda: with_state(np.full((1, 1, 4), 0.5)),
    "first states of an LSTM, expanded to the batch": first_states,
    "the sizes of a call": lambda: window("sizes = Shape (steps) y = Reshape (steps, sizes)"),
}


def calls(network, inputs, samples):
    """The outputs of a stream in calls of so many samples, one after another along time."""
    stream = OnnxNetwork(network.path, sizes={**dict(network.sizes), "time": samples}, states=dict(network.carried))
    total = len(inputs["x"])
    sets = [{"x": inputs["x"][start : start + samples]} for start in range(0, total, samples)]
    return run_onnxruntime(static_model(stream.path, stream), sets, stream.states)


@pytest.mark.random(tail=1e-9, why="measured under 30 seeds: rounding errors are a hundredth of the bound")
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


@pytest.mark.random(tail=0, why="counted at test_calls_of_1_3_and_all_samples_are_the_whole_window")
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


def reversed_gru():
    model = window("y = Tanh (Y)")
    (gru,) = (node for node in model.graph.node if node.op_type == "GRU")
    gru.attribute.append(helper.make_attribute("direction", "reverse"))
    return model


#: A branch that reads all samples.
BRANCH = "() => (float[time, batch, 4] inner) { inner = CumSum (steps, zero) }"

REFUSED = {
    "Conv operator 'conv'": lambda: padded([1, 1], own=True),
    "Conv operator with output 'smooth'": lambda: _unnamed(padded([1, 0], own=True)),
    "Conv operator 'conv' ": lambda: padded([0, 0], own=True),
    "Pad operator": lambda: padded([1, 1]),
    "Pad operator with output 'padded'": lambda: padded([2, 0], mode="edge"),
    "GRU operator 'gru'": reversed_gru,
    "Slice operator": state_from_the_samples,
    "Conv operator 'conv'  ": lambda: padded([0, 1], [2], own=True),
    "ReduceMean operator": lambda: window("y = ReduceMean (steps, zeros)", zeros=[0]),
    "Pad operator with output 'y'": lambda: window("y = Pad (steps, pads)", pads=[2, 0, 0, 0, 0, 0]),
    "CumSum operator": lambda: window("y = CumSum (steps, zero)", zero=0),
    "Add operator": lambda: window("y = Add (Y, last)"),
    "Div operator": lambda: window("sizes = Shape <end = 1> (steps) n = Cast <to = 1> (sizes) y = Div (steps, n)"),
    "Reshape operator": lambda: window("y = Reshape (steps, order)", order=[4, -1]),
    "If operator 'choice'": lambda: window(
        f"[choice] y = If <then_branch = a {BRANCH}, else_branch = b {BRANCH}> (yes)", yes=True, zero=0
    ),
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


@pytest.mark.parametrize(("steps", "flags"), [("1", []), ("time", ["--size=time=4"])], ids=["one call", "window"])
def test_a_network_without_a_state_is_refused_with_what_to_do_instead(tmp_path, refused, steps, flags):
    model = parsed(f"(float[{steps}, 1, 4] x) => (float[{steps}, 1, 2] y) {{ y = MatMul (x, A) }}", A=(4, 2))
    onnx.save(model, tmp_path / "flat.onnx")
    line = refused("record", "--onnx", tmp_path / "flat.onnx", *flags, "--mode", "stream", "--out", tmp_path / "out")
    assert "flat has no mode stream" in line and "if it has none, --mode forward makes the same calls" in line
    assert "--state INPUT=OUTPUT (inputs: x; outputs: y)" in line


def test_a_layer_along_another_axis_and_what_is_constant_stay():
    """Only the GRU along time gets a state; the other runs over the batch, and reads both of its ends."""
    text = """swapped = Transpose <perm = [1, 0, 2]> (steps)
        y = GRU <hidden_size = 4, direction = "bidirectional"> (swapped, W2, R2)"""
    inputs, outputs = (each.replace("batch", "5") for each in (X, Y))
    model = window(text, inputs, outputs, W2=(2, 12, 4), R2=(2, 12, 4))
    network = OnnxNetwork(model.SerializeToString(), sizes={"time": 6})
    assert len(network.in_mode("stream").states) == 1


def test_a_fixed_number_of_samples_is_said():
    model = window("y = Tanh (steps)", X.replace("time", "6"))
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
