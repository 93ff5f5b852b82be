"""The networks in data/networks are what their scripts write, and are read as they were built."""

from __future__ import annotations

import runpy

import onnx
import pytest
from onnx import numpy_helper

import lstm_trt as lab
from tests.conftest import ROOT

FOLDER = ROOT / "data/networks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.onnx"))


def content(path) -> tuple[list, list]:
    """Operators and initializers, sorted, since names and the order of initializers differ between exports."""
    graph = onnx.load(path).graph
    arrays = [numpy_helper.to_array(tensor) for tensor in graph.initializer]
    return sorted(node.op_type for node in graph.node), sorted((array.shape, array.tobytes()) for array in arrays)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")  # of the exporters
@pytest.mark.parametrize("name", NAMES)
def test_a_script_writes_the_network_that_ships(name, tmp_path):
    pytest.importorskip("tf2onnx" if name == "keras_lstm" else "torch")
    written = runpy.run_path(str(FOLDER / f"{name}.py"))["write"](tmp_path)
    assert written == tmp_path / f"{name}.onnx" and content(written) == content(FOLDER / written.name)


def test_what_is_read_of_the_networks():
    """Recurrent operators, symbols of time and batch, and states, of three exporters' files."""
    sizes = {"conv_lstm_dense": ("time", "batch"), "keras_lstm": ("unk__136", "unk__135"), "streaming_gru": ("time",)}
    found = {
        name: lab.OnnxNetwork(FOLDER / f"{name}.onnx", sizes=dict.fromkeys(symbols, 5))
        for name, symbols in sizes.items()
    }
    read = {
        name: ([layer.operator for layer in network.recurrent_layers], dict(network.carried))
        for name, network in found.items()
    }
    assert read == {
        "conv_lstm_dense": (["LSTM"], {}),
        "keras_lstm": (["LSTM"] * 2, {}),
        "streaming_gru": (["GRU"] * 2, {"h0": "hn"}),
    }
    symbols = {name: (network.facts.time_symbol, network.facts.batch_symbol) for name, network in found.items()}
    assert {name: tuple(filter(None, pair)) for name, pair in symbols.items()} == sizes
