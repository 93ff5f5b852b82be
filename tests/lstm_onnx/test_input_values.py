"""Which numbers inputs of whole numbers have: by where they go in the graph; and what is said where that ends."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import torch

from lstm_onnx.own_network import OnnxNetwork
from lstm_onnx.read_onnx import run_onnxruntime
from lstm_onnx.torch_network import TorchNetwork
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import UsageError
from lstm_trt.config.workload import workload_from_dict
from lstm_trt.export.sizes import static_model
from lstm_trt.machine.roofline import PROBES, MachineRates, roofline_bound
from lstm_trt.recorder.describe import describe
from tests.support.own_networks import parsed, saved, stream

#: Steps, sequences, and rows of tables.
STEPS, BATCH, ROWS = 40, 2, 7


def packed(text, inputs="int64[2] n", **constants):
    """An LSTM whose lengths `lens` (int32, one for each sequence) the text makes; x (steps, batch, 3)."""
    return parsed(
        f"""(float[{STEPS}, {BATCH}, 3] x{inputs and ", "}{inputs})
        => (float[{STEPS}, 1, {BATCH}, 4] Y, float[1, {BATCH}, 4] last) {{
            {text} [layer] Y, last = LSTM <hidden_size = 4> (x, W, R, "", lens)
        }}""",
        W=(1, 16, 3), R=(1, 16, 4), **constants,
    )  # fmt: skip


#: What may lie between an input and the lengths of an LSTM: what the input is cast to, the inputs, the constants, and
#: the numbers that the input must have.
WAYS = {
    "nothing": ("lens = Identity (n)", "int32[2] n", {}, STEPS),
    "Cast": ("lens = Cast <to = 6> (n)", "int64[2] n", {}, STEPS),
    "two Casts": ("s = Cast <to = 1> (n)", "int64[2] n", {}, STEPS),
    "Unsqueeze, Squeeze": ("u = Unsqueeze (n, one) s = Squeeze (u, one)", "int64[2] n", {"one": [1]}, STEPS),
    "Reshape": ("s = Reshape (n, flat)", "int64[2, 1] n", {"flat": [-1]}, STEPS),
    "Gather": ("s = Gather <axis = 1> (n, column)", "int64[2, 1] n", {"column": 0}, STEPS),
    "Gather in another order": ("s = Gather (n, order)", "int64[2] n", {"order": [1, 0]}, STEPS),
    "Slice": ("s = Slice (n, from, to)", "int64[3] n", {"from": [1], "to": [3]}, STEPS),
    "Min": ("s = Min (n, most)", "int64[2] n", {"most": STEPS}, STEPS),
    "Max": ("s = Max (n, least)", "int64[2] n", {"least": 1}, STEPS),
    "Clip": ("s = Clip (n, least, most)", "int64[2] n", {"least": 1, "most": STEPS}, STEPS),
    "half of the samples": ("s = Div (n, two)", "int64[2] n, float[80] samples", {"two": 2}, 80),
    "half of the samples, in floating point": (
        "f = Cast <to = 1> (n) h = Div (f, two) s = Ceil (h)",
        "int64[2] n, float[79] samples",
        {"two": np.float32(2)},
        79,
    ),
    "a kernel of 3 samples": ("s = Sub (n, less)", "int64[2] n, float[42] samples", {"less": 2}, 42),
    "the sum of a mask": (
        "i = Cast <to = 7> (n) s = ReduceSum <keepdims = 0> (i, one)",
        "bool[2, 40] n",
        {"one": [1]},
        1,
    ),
    "the sum of what is no padding": (
        "kept = Not (n) i = Cast <to = 7> (kept) s = ReduceSum <keepdims = 0> (i, one)",
        "bool[2, 40] n",
        {"one": [1]},
        0,
    ),
}


def way(name):
    """The network of one of `WAYS`: the lengths are a tensor `s` as int32, unless they are there."""
    text, inputs, constants, _ = WAYS[name]
    return packed(text if "lens" in text else f"{text} lens = Cast <to = 6> (s)", inputs, **constants)


def computed(network, name):
    """An inner tensor for inputs that are drawn."""
    model = onnx.load_from_string(static_model(network.path, network))
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    (found,) = run_onnxruntime(model.SerializeToString(), [network.make_inputs(3)])
    return found[name]


@pytest.mark.parametrize("name", WAYS)
def test_sequences_have_their_full_length_whatever_lies_between(tmp_path, name):
    number = WAYS[name][-1]
    network = OnnxNetwork(saved(way(name), tmp_path))
    assert (computed(network, "lens") == STEPS).all() and network.lengths == {"n": (number, number)}
    assert network.label == f"network@{network.sha256[:8]}-n{number}"
    assert network.identity["lengths"] == {"n": [number, number]}
    (layer,) = network.recurrent_layers
    assert layer.steps is None and layer.flops == 2 * 16 * (3 + 4) * STEPS * BATCH
    plain = json.loads(json.dumps(network.as_dict()))
    assert workload_from_dict(plain) == network and workload_from_dict(plain).label == network.label


def test_recordings_with_lengths_of_earlier_versions_are_no_rounds_of_new_ones(tmp_path):
    """They drew 0 and 1; other networks keep their ids."""
    network = OnnxNetwork(saved(way("Cast"), tmp_path))
    plain = json.loads(json.dumps(network.as_dict()))
    del plain["lengths"], plain["facts"]["inputs"][1]["meaning"]
    plain["facts"]["inputs"][1]["range"] = [0, 1]
    earlier = workload_from_dict(plain)
    assert earlier.label == f"network@{network.sha256[:8]}" and "lengths" not in earlier.identity
    assert earlier.group_fields("forward") != network.group_fields("forward")
    ids = {Configuration(each, "onnxruntime", "1", "cpu").id for each in (network, earlier)}
    assert len(ids) == 2
    without = OnnxNetwork(saved(stream(), tmp_path), sizes={"time": 6, "batch": 2})
    assert without.identity.keys() == {"kind", "sha256", "sizes", "states"} and not without.lengths


def test_full_lengths_do_not_divide_a_curve_over_the_sequence(tmp_path):
    model = way("Cast")
    for each in (model.graph.input[0], model.graph.output[0]):
        each.type.tensor_type.shape.dim[0].dim_param = "time"
    path = saved(model, tmp_path)
    networks = [OnnxNetwork(path, sizes={"time": steps}) for steps in (10, 20)]
    assert [each.lengths["n"] for each in networks] == [(10, 10), (20, 20)]
    assert len({each.group_fields("forward")["workload"] for each in networks}) == 1
    assert networks[0].label != networks[1].label


def given(tmp_path, **arrays):
    np.savez(tmp_path / "inputs.npz", **arrays)
    return tmp_path / "inputs.npz"


def test_given_lengths_are_those_of_the_row_and_of_the_bound(tmp_path):
    """The mean of 10 and 30 of 40 steps is half of them."""
    path = saved(way("Min"), tmp_path)
    full = OnnxNetwork(path)
    network = OnnxNetwork(path, inputs=given(tmp_path, n=np.array([10, 30])))
    (layer,) = network.recurrent_layers
    assert (layer.sequence, layer.steps, network.axes["sequence"]) == (STEPS, 20, STEPS)
    assert 2 * network.flops == full.flops and network.lengths == {"n": (10, 30)}
    assert "-n10to30-inputs-" in network.label and network.label_fields["lengths n"] == "10to30"
    assert workload_from_dict(json.loads(json.dumps(network.as_dict()))).recurrent_layers == (layer,)
    rates = MachineRates(100.0, ((1 << 14, 200.0),), 1, "cpu", "now", next(iter(PROBES.values())))
    bounds = [roofline_bound(each, rates) for each in (network, full)]
    assert 2 * bounds[0].recurrence_ns == pytest.approx(bounds[1].recurrence_ns)
    assert 2 * bounds[0].arithmetic_ns == pytest.approx(bounds[1].arithmetic_ns)


def test_lengths_that_are_constants_count_for_the_bound(tmp_path):
    """Of the file, and by --value."""
    stored = packed("lens = Cast <to = 6> (n)", "", n=[10, 20])
    (layer,) = OnnxNetwork(saved(stored, tmp_path)).recurrent_layers
    assert layer.steps == 15
    one = packed("s = Expand (n, batch) lens = Cast <to = 6> (s)", "int64[1] n", batch=[2])
    network = OnnxNetwork(saved(one, tmp_path), constants={"n": 8})
    assert network.recurrent_layers[0].steps == 8 and network.label.endswith("-n8")
    assert OnnxNetwork(saved(one, tmp_path)).lengths == {"n": (STEPS, STEPS)}


class Packed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.GRU(3, 4, batch_first=True)

    def forward(self, x, lengths):
        rnn = torch.nn.utils.rnn
        sequences = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return rnn.pad_packed_sequence(self.layer(sequences)[0], batch_first=True)[0]


@pytest.mark.filterwarnings("ignore")
def test_a_module_with_packed_sequences_has_full_lengths(tmp_path):
    """As a file has, whatever the lengths of its example are."""
    network = TorchNetwork(Packed(), (torch.zeros(2, 9, 3), torch.tensor([9, 4])))
    assert network.lengths == {"lengths": (9, 9)} and network.recurrent_layers[0].steps is None
    shorter = TorchNetwork(
        Packed(), (torch.zeros(2, 9, 3), torch.tensor([9, 4])), inputs=given(tmp_path, lengths=np.array([3, 6]))
    )
    assert shorter.recurrent_layers[0].steps == 4.5 and shorter.lengths == {"lengths": (3, 6)}


def indexed(text, tokens="int64[2, 5] n", **constants):
    """Rows of a table of `ROWS`; the text makes the result `picked` of them."""
    return parsed(f"({tokens}) => (float[a, b, c] picked) {{ {text} }}", table=(ROWS, 3), **constants)


#: What lies between an input and a table, what more is stored, and the first and last number that the input may have.
INDICES = {
    "Gather": ("picked = Gather (table, n)", {}, (0, ROWS - 1)),
    "Cast": ("i = Cast <to = 7> (n) picked = Gather (table, i)", {"tokens": "int32[5] n"}, (0, ROWS - 1)),
    "in floating point": (
        "f = Cast <to = 1> (n) i = Cast <to = 7> (f) picked = Gather (table, i)", {}, (0, ROWS - 1)
    ),
    "the last one": ("i = Gather <axis = 1> (n, end) picked = Gather (table, i)", {"end": -1}, (0, ROWS - 1)),
    "a negative one counts from the end": (
        """below = Less (n, zero)
        moved = Add (n, rows)
        i = Where (below, moved, n)
        picked = Gather (table, i)""",
        {"zero": 0, "rows": ROWS},
        (0, ROWS - 1),
    ),
    "moved by one": ("i = Add (n, one) picked = Gather (table, i)", {"one": 1}, (0, ROWS - 2)),
    "tripled": ("i = Mul (n, three) picked = Gather (table, i)", {"three": 3}, (0, 1)),
    "two tables": (
        "first = Gather (table, n) second = Gather (small, n) picked = Add (first, second)", {"small": (4, 3)}, (0, 3)
    ),
    "GatherElements": ("picked = GatherElements (table, n)", {"tokens": "int64[2, 3] n"}, (0, ROWS - 1)),
    "GatherND": ("picked = GatherND (table, n)", {"tokens": "int64[4, 2] n"}, (0, 2)),
    "along the second axis": ("picked = Gather <axis = 1> (table, n)", {"tokens": "int64[4] n"}, (0, 2)),
    "no use": ("f = Cast <to = 1> (n) picked = Mul (f, f)", {}, (0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("case", INDICES)
def test_indices_are_those_of_the_rows_whatever_lies_between(tmp_path, case):
    text, more, expected = INDICES[case]
    network = OnnxNetwork(saved(indexed(text, **more), tmp_path))
    (tensor,) = network.facts.inputs
    assert tensor.range == expected and tensor.meaning is None and not network.lengths
    drawn = np.concatenate([network.make_inputs(seed)["n"].ravel() for seed in range(40)])
    assert (drawn.min(), drawn.max()) == expected
    assert computed(network, "picked").size
    assert network.identity.keys() == {"kind", "sha256", "sizes", "states"}  # the id is that of earlier recordings


@pytest.mark.parametrize(("padding", "expected"), [(0, (1, ROWS - 1)), (ROWS - 1, (0, ROWS - 2))])
def test_tokens_are_no_padding_where_their_number_is_the_length(tmp_path, padding, expected):
    """The row that stands for padding is not drawn."""
    text = """none = Equal (n, padding)
        some = Not (none)
        i = Cast <to = 7> (some)
        s = ReduceSum <keepdims = 0> (i, one)
        lens = Cast <to = 6> (s)
        embedded = Gather (table, n)"""
    model = packed(text, "int64[2, 40] n", padding=padding, one=[1], table=(ROWS, 3))
    network = OnnxNetwork(saved(model, tmp_path))
    assert network.facts.inputs[1].range == expected and (computed(network, "lens") == STEPS).all()


@pytest.mark.parametrize("inputs", ["bool[2, 40] mask, int64[2] n", "int64[2] n, bool[2, 40] mask"])
def test_lengths_that_follow_from_two_inputs(tmp_path, inputs):
    """The sum of a mask, but at most another length, in either order of the inputs."""
    text = """i = Cast <to = 7> (mask)
        counted = ReduceSum <keepdims = 0> (i, one)
        s = Min (counted, n)
        lens = Cast <to = 6> (s)"""
    network = OnnxNetwork(saved(packed(text, inputs, one=[1]), tmp_path))
    assert network.lengths == {"mask": (1, 1), "n": (STEPS, STEPS)} and (computed(network, "lens") == STEPS).all()


def test_tokens_that_are_compared_with_as_many_numbers_are_no_lengths(tmp_path):
    model = parsed(
        """(int64[1, 5] n) => (float[1, 5, 3] picked, bool[1, 5] below) {
            below = Less (n, limits)
            picked = Gather (table, n)
        }""",
        table=(ROWS, 3),
        limits=np.arange(5)[None],
    )
    network = OnnxNetwork(saved(model, tmp_path))
    assert not network.lengths and network.facts.inputs[0].range == (0, ROWS - 1)


def test_of_a_table_of_unknown_size_the_first_row_is_drawn(tmp_path):
    """Only that is certain to exist."""
    model = parsed(
        """(float[3] x, int64[2] n) => (float[a, b] picked) {
            top = ReduceMax <keepdims = 0> (x)
            condition = Cast <to = 9> (top)
            either = If <
                then_branch = one () => (float[] t) { t = Identity (table) },
                else_branch = other () => (float[] u) { u = Identity (flat) }
            > (condition)
            picked = Gather <axis = 1> (either, n)
        }""",
        table=(ROWS, 3),
        flat=np.zeros((2, 2, 2), np.float32),
    )
    assert OnnxNetwork(saved(model, tmp_path)).facts.inputs[1].range == (0, 0)


def test_a_mask_of_positions_is_that_of_full_lengths(tmp_path):
    model = parsed(
        """(float[2, 40] x, int64[2] n) => (float[2, 40] y) {
            column = Unsqueeze (n, one)
            inside = Less (positions, column)
            mask = Cast <to = 1> (inside)
            y = Mul (x, mask)
        }""",
        one=[1],
        positions=np.arange(STEPS),
    )
    network = OnnxNetwork(saved(model, tmp_path))
    assert network.lengths == {"n": (STEPS, STEPS)} and computed(network, "inside").all()


#: Inputs that are sizes, positions or numbers of turns, or decide: the input, what it does, a number that it may have.
DECISIONS = {
    "Slice": ("int64[1] n", "y = Slice (x, zeros, n)", 2),
    "Tile": ("int64[1] n", "both = Concat <axis = 0> (n, ones) y = Tile (x, both)", 2),
    "ConstantOfShape": ("int64[1] n", "z = ConstantOfShape (n) y = Concat <axis = 0> (z, z)", 3),
    "Range": ("int64 n", "z = Range (zero, n, one) y = Cast <to = 1> (z)", 3),
    "TopK": ("int64[1] n", "y, i = TopK (x, n)", 2),
    "Loop": (
        "int64 n",
        """y = Loop <body = b (int64 turn, bool go, float[4, 3] h) => (bool on, float[4, 3] more) {
            on = Identity (go) more = Add (h, h)
        }> (n, "", x)""",
        3,
    ),
    "If": (
        "bool n",
        """y = If <
            then_branch = one () => (float[] t) { t = Tanh (x) },
            else_branch = other () => (float[] u) { u = Sigmoid (x) }
        > (n)""",
        1,
    ),
}


@pytest.mark.parametrize("operator", DECISIONS)
def test_what_only_the_user_knows_must_be_given(tmp_path, operator):
    declared, text, number = DECISIONS[operator]
    model = parsed(f"(float[4, 3] x, {declared}) => (float[a, b] y) {{ {text} }}", zero=0, one=1, zeros=[0], ones=[1])
    path = saved(model, tmp_path)
    network = OnnxNetwork(path)
    with pytest.raises(UsageError, match=rf"{operator} operator .* --value n=.*--inputs FILE\.npz") as said:
        describe(network, "onnxruntime")
    assert "\n" not in str(said.value)
    array = np.full(network.input_shapes["n"], number, network.types["n"])
    for how in ({"constants": {"n": number}}, {"inputs": given(tmp_path, n=array)}):
        assert describe(OnnxNetwork(path, **how), "onnxruntime").workload.facts.outputs


#: Networks of which one input needs real numbers: a single index that cannot be drawn (as a constant, it would make the
#: rest of the network one), and lengths that random numbers change.
NOT_DRAWN = {
    "Gather": lambda: indexed("i = Add (n, rows) picked = Gather (table, i)", "int64[1, 1] n", rows=3 * ROWS),
    "LSTM": lambda: packed(
        """top = ReduceMax <keepdims = 0> (x)
        i = Cast <to = 7> (top)
        s = Mul (n, i)
        lens = Cast <to = 6> (s)"""
    ),
}


@pytest.mark.parametrize("operator", NOT_DRAWN)
def test_numbers_that_are_no_setting_must_be_given(tmp_path, operator):
    network = OnnxNetwork(saved(NOT_DRAWN[operator](), tmp_path))
    with pytest.raises(UsageError, match=rf"{operator} operator .*: give them with --inputs FILE\.npz$"):
        describe(network, "onnxruntime")


def test_a_state_that_is_a_position_need_not_be_given(tmp_path):
    """It is 0 before the first call."""
    model = parsed(
        """(float[4, 3] x, int64[1] step) => (float[a, 3] y, int64[1] step_out) {
            row = Gather (table, step)
            step_out = Add (step, one)
            z = Slice (x, zero, step_out)
            y = Add (z, row)
        }""",
        table=(ROWS, 3), one=[1], zero=[0],
    )  # fmt: skip
    network = OnnxNetwork(saved(model, tmp_path))
    assert network.carried == (("step", "step_out"),)
    for mode in ("forward", "stream"):
        assert describe(network, "onnxruntime", mode=mode).workload == network
