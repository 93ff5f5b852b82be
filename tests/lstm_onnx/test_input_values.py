"""Which numbers inputs of whole numbers have: by where they go in the graph; and what is said where that ends."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from lstm_onnx.own_network import OnnxNetwork
from lstm_onnx.read_onnx import run_onnxruntime
from lstm_onnx.torch_network import TorchNetwork
from lstm_trt.config.configuration import Configuration
from lstm_trt.config.errors import UsageError
from lstm_trt.config.workload import workload_from_dict
from lstm_trt.export.sizes import static_model
from lstm_trt.machine.roofline import PROBES, MachineRates, roofline_bound
from lstm_trt.recorder.describe import describe
from tests.support.own_networks import model_of, numbers, saved, stream, value

INT64, INT32, BOOL = TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL

#: Steps, sequences, and rows of tables.
STEPS, BATCH, ROWS = 40, 2, 7

make = helper.make_node


def whole(name, *values, kind=np.int64):
    """A constant; a single number is a scalar."""
    return numpy_helper.from_array(np.array(values if len(values) != 1 else values[0], kind), name)


def axis(name, number):
    return numpy_helper.from_array(np.array([number]), name)


def packed(nodes, inputs, constants=(), steps=STEPS):
    """An LSTM whose lengths `lens` (int32, one for each sequence) the nodes make; x (steps, batch, 3)."""
    layer = make("LSTM", ["x", "W", "R", "", "lens"], ["Y", "last"], hidden_size=4, name="layer")
    inputs = [value("x", [steps, BATCH, 3]), *inputs]
    weights = [numbers("W", 1, 16, 3), numbers("R", 1, 16, 4), *constants]
    return model_of([*nodes, layer], inputs, [value("Y", [steps, 1, BATCH, 4]), value("last", [1, BATCH, 4])], weights)


def cast(before, after, to=INT32):
    return make("Cast", [before], [after], to=to)


PER_SEQUENCE = [value("n", [BATCH], INT64)]

#: What may lie between an input and the lengths of an LSTM: the model, and the numbers that the input must have.
WAYS = {
    "nothing": (lambda: packed([make("Identity", ["n"], ["lens"])], [value("n", [BATCH], INT32)]), STEPS),
    "Cast": (lambda: packed([cast("n", "lens")], PER_SEQUENCE), STEPS),
    "two Casts": (lambda: packed([cast("n", "f", 1), cast("f", "lens")], PER_SEQUENCE), STEPS),
    "Unsqueeze, Squeeze": (
        lambda: packed(
            [make("Unsqueeze", ["n", "one"], ["u"]), make("Squeeze", ["u", "one"], ["s"]), cast("s", "lens")],
            PER_SEQUENCE,
            [axis("one", 1)],
        ),
        STEPS,
    ),
    "Reshape": (
        lambda: packed(
            [make("Reshape", ["n", "flat"], ["s"]), cast("s", "lens")],
            [value("n", [BATCH, 1], INT64)],
            [axis("flat", -1)],
        ),
        STEPS,
    ),
    "Gather": (
        lambda: packed(
            [make("Gather", ["n", "column"], ["s"], axis=1), cast("s", "lens")],
            [value("n", [BATCH, 1], INT64)],
            [whole("column", 0)],
        ),
        STEPS,
    ),
    "Gather in another order": (
        lambda: packed(
            [make("Gather", ["n", "order"], ["s"]), cast("s", "lens")], PER_SEQUENCE, [whole("order", 1, 0)]
        ),
        STEPS,
    ),
    "Slice": (
        lambda: packed(
            [make("Slice", ["n", "from", "to"], ["s"]), cast("s", "lens")],
            [value("n", [BATCH + 1], INT64)],
            [axis("from", 1), axis("to", BATCH + 1)],
        ),
        STEPS,
    ),
    "Min": (
        lambda: packed([make("Min", ["n", "most"], ["s"]), cast("s", "lens")], PER_SEQUENCE, [whole("most", STEPS)]),
        STEPS,
    ),
    "Max": (
        lambda: packed([make("Max", ["n", "least"], ["s"]), cast("s", "lens")], PER_SEQUENCE, [whole("least", 1)]),
        STEPS,
    ),
    "Clip": (
        lambda: packed(
            [make("Clip", ["n", "least", "most"], ["s"]), cast("s", "lens")],
            PER_SEQUENCE,
            [whole("least", 1), whole("most", STEPS)],
        ),
        STEPS,
    ),
    "half of the samples": (
        lambda: packed(
            [make("Div", ["n", "two"], ["s"]), cast("s", "lens")],
            [*PER_SEQUENCE, value("samples", [2 * STEPS])],
            [whole("two", 2)],
        ),
        2 * STEPS,
    ),
    "half of the samples, in floating point": (
        lambda: packed(
            [cast("n", "f", 1), make("Div", ["f", "two"], ["h"]), make("Ceil", ["h"], ["c"]), cast("c", "lens")],
            [*PER_SEQUENCE, value("samples", [2 * STEPS - 1])],
            [whole("two", 2, kind=np.float32)],
        ),
        2 * STEPS - 1,
    ),
    "a kernel of 3 samples": (
        lambda: packed(
            [make("Sub", ["n", "less"], ["s"]), cast("s", "lens")],
            [*PER_SEQUENCE, value("samples", [STEPS + 2])],
            [whole("less", 2)],
        ),
        STEPS + 2,
    ),
    "the sum of a mask": (
        lambda: packed(
            [cast("n", "i", INT64), make("ReduceSum", ["i", "one"], ["s"], keepdims=0), cast("s", "lens")],
            [value("n", [BATCH, STEPS], BOOL)],
            [axis("one", 1)],
        ),
        1,
    ),
    "the sum of what is no padding": (
        lambda: packed(
            [
                make("Not", ["n"], ["kept"]),
                cast("kept", "i", INT64),
                make("ReduceSum", ["i", "one"], ["s"], keepdims=0),
                cast("s", "lens"),
            ],
            [value("n", [BATCH, STEPS], BOOL)],
            [axis("one", 1)],
        ),
        0,
    ),
}


def computed(network, name):
    """An inner tensor for inputs that are drawn."""
    model = onnx.load_from_string(static_model(network.path, network))
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    (found,) = run_onnxruntime(model.SerializeToString(), [network.make_inputs(3)])
    return found[name]


@pytest.mark.parametrize("way", WAYS)
def test_sequences_have_their_full_length_whatever_lies_between(tmp_path, way):
    plant, number = WAYS[way]
    network = OnnxNetwork(saved(plant(), tmp_path))
    assert (computed(network, "lens") == STEPS).all() and network.lengths == {"n": (number, number)}
    assert network.label == f"network@{network.sha256[:8]}-n{number}" and network.identity["lengths"] == {
        "n": [number, number]
    }
    (layer,) = network.recurrent_layers
    assert layer.steps is None and layer.flops == 2 * 16 * (3 + 4) * STEPS * BATCH
    plain = json.loads(json.dumps(network.as_dict()))
    assert workload_from_dict(plain) == network and workload_from_dict(plain).label == network.label


def test_recordings_with_lengths_of_earlier_versions_are_no_rounds_of_new_ones(tmp_path):
    """They drew 0 and 1; other networks keep their ids."""
    network = OnnxNetwork(saved(WAYS["Cast"][0](), tmp_path))
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
    model = WAYS["Cast"][0]()
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
    path = saved(WAYS["Min"][0](), tmp_path)
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
    stored = packed([cast("n", "lens")], [], [whole("n", 10, 20)])
    (layer,) = OnnxNetwork(saved(stored, tmp_path)).recurrent_layers
    assert layer.steps == 15
    one = packed(
        [make("Expand", ["n", "batch"], ["s"]), cast("s", "lens")], [value("n", [1], INT64)], [axis("batch", 2)]
    )
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


def indexed(nodes, inputs, constants=(), axes=3):
    """Rows of a table of `ROWS`; the nodes make the result."""
    return model_of(nodes, inputs, [value("picked", [*"abc"[:axes]])], [numbers("table", ROWS, 3), *constants])


TOKENS = [value("n", [BATCH, 5], INT64)]

INDICES = {
    "Gather": (lambda: indexed([make("Gather", ["table", "n"], ["picked"])], TOKENS), (0, ROWS - 1)),
    "Cast": (
        lambda: indexed([cast("n", "i", INT64), make("Gather", ["table", "i"], ["picked"])], [value("n", [5], INT32)]),
        (0, ROWS - 1),
    ),
    "in floating point": (
        lambda: indexed([cast("n", "f", 1), cast("f", "i", INT64), make("Gather", ["table", "i"], ["picked"])], TOKENS),
        (0, ROWS - 1),
    ),
    "the last one": (
        lambda: indexed(
            [make("Gather", ["n", "end"], ["i"], axis=1), make("Gather", ["table", "i"], ["picked"])],
            TOKENS,
            [whole("end", -1)],
        ),
        (0, ROWS - 1),
    ),
    "a negative one counts from the end": (
        lambda: indexed(
            [
                make("Less", ["n", "zero"], ["below"]),
                make("Add", ["n", "rows"], ["moved"]),
                make("Where", ["below", "moved", "n"], ["i"]),
                make("Gather", ["table", "i"], ["picked"]),
            ],
            TOKENS,
            [whole("zero", 0), whole("rows", ROWS)],
        ),
        (0, ROWS - 1),
    ),
    "moved by one": (
        lambda: indexed(
            [make("Add", ["n", "one"], ["i"]), make("Gather", ["table", "i"], ["picked"])], TOKENS, [whole("one", 1)]
        ),
        (0, ROWS - 2),
    ),
    "tripled": (
        lambda: indexed(
            [make("Mul", ["n", "three"], ["i"]), make("Gather", ["table", "i"], ["picked"])],
            TOKENS,
            [whole("three", 3)],
        ),
        (0, 1),
    ),
    "two tables": (
        lambda: indexed(
            [
                make("Gather", ["table", "n"], ["first"]),
                make("Gather", ["small", "n"], ["second"]),
                make("Add", ["first", "second"], ["picked"]),
            ],
            TOKENS,
            [numbers("small", 4, 3)],
        ),
        (0, 3),
    ),
    "GatherElements": (
        lambda: indexed([make("GatherElements", ["table", "n"], ["picked"])], [value("n", [2, 3], INT64)]),
        (0, ROWS - 1),
    ),
    "GatherND": (
        lambda: indexed([make("GatherND", ["table", "n"], ["picked"])], [value("n", [4, 2], INT64)]),
        (0, 2),
    ),
    "along the second axis": (
        lambda: indexed([make("Gather", ["table", "n"], ["picked"], axis=1)], [value("n", [4], INT64)]),
        (0, 2),
    ),
    "no use": (lambda: indexed([cast("n", "f", 1), make("Mul", ["f", "f"], ["picked"])], TOKENS), (0, 1)),
}


@pytest.mark.parametrize("case", INDICES)
def test_indices_are_those_of_the_rows_whatever_lies_between(tmp_path, case):
    plant, expected = INDICES[case]
    network = OnnxNetwork(saved(plant(), tmp_path))
    (tensor,) = network.facts.inputs
    assert tensor.range == expected and tensor.meaning is None and not network.lengths
    drawn = np.concatenate([network.make_inputs(seed)["n"].ravel() for seed in range(40)])
    assert (drawn.min(), drawn.max()) == expected
    assert computed(network, "picked").size
    assert network.identity.keys() == {"kind", "sha256", "sizes", "states"}  # the id is that of earlier recordings


def test_tokens_are_no_padding_where_their_number_is_the_length(tmp_path):
    """The row 0 stands for padding, and is not drawn; the last row in a second network."""
    for padding, expected in ((0, (1, ROWS - 1)), (ROWS - 1, (0, ROWS - 2))):
        nodes = [
            make("Equal", ["n", "padding"], ["none"]),
            make("Not", ["none"], ["some"]),
            cast("some", "i", INT64),
            make("ReduceSum", ["i", "one"], ["s"], keepdims=0),
            cast("s", "lens"),
            make("Gather", ["table", "n"], ["embedded"]),
        ]
        constants = [whole("padding", padding), axis("one", 1), numbers("table", ROWS, 3)]
        network = OnnxNetwork(saved(packed(nodes, [value("n", [BATCH, STEPS], INT64)], constants), tmp_path))
        assert network.facts.inputs[1].range == expected and (computed(network, "lens") == STEPS).all()


def test_lengths_that_follow_from_two_inputs(tmp_path):
    """The sum of a mask, but at most another length, in either order of the inputs."""
    nodes = [
        cast("mask", "i", INT64),
        make("ReduceSum", ["i", "one"], ["counted"], keepdims=0),
        make("Min", ["counted", "n"], ["s"]),
        cast("s", "lens"),
    ]
    inputs = [value("mask", [BATCH, STEPS], BOOL), *PER_SEQUENCE]
    for order in (inputs, inputs[::-1]):
        network = OnnxNetwork(saved(packed(nodes, order, [axis("one", 1)]), tmp_path))
        assert network.lengths == {"mask": (1, 1), "n": (STEPS, STEPS)} and (computed(network, "lens") == STEPS).all()


def test_tokens_that_are_compared_with_as_many_numbers_are_no_lengths(tmp_path):
    nodes = [make("Less", ["n", "limits"], ["below"]), make("Gather", ["table", "n"], ["picked"])]
    limits = numpy_helper.from_array(np.arange(5)[None], "limits")
    outputs = [value("picked", [1, 5, 3]), value("below", [1, 5], BOOL)]
    model = model_of(nodes, [value("n", [1, 5], INT64)], outputs, [numbers("table", ROWS, 3), limits])
    network = OnnxNetwork(saved(model, tmp_path))
    assert not network.lengths and network.facts.inputs[0].range == (0, ROWS - 1)


def test_of_a_table_of_unknown_size_the_first_row_is_drawn(tmp_path):
    """Only that is certain to exist."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [make("Identity", [table], [f"{name}_t"])], name, [], [value(f"{name}_t", None)]
        )
        for name, table in (("then", "table"), ("else", "flat"))
    }
    nodes = [
        make("ReduceMax", ["x"], ["top"], keepdims=0),
        cast("top", "condition", BOOL),
        make("If", ["condition"], ["either"], **branches),
        make("Gather", ["either", "n"], ["picked"], axis=1),
    ]
    inputs = [value("x", [3]), value("n", [2], INT64)]
    outputs = [value("picked", ["a", "b"])]
    flat = numpy_helper.from_array(np.zeros((2, 2, 2), np.float32), "flat")
    network = OnnxNetwork(saved(model_of(nodes, inputs, outputs, [numbers("table", ROWS, 3), flat]), tmp_path))
    assert network.facts.inputs[1].range == (0, 0)


def test_a_mask_of_positions_is_that_of_full_lengths(tmp_path):
    nodes = [
        make("Unsqueeze", ["n", "one"], ["column"]),
        make("Less", ["positions", "column"], ["inside"]),
        cast("inside", "mask", 1),
        make("Mul", ["x", "mask"], ["y"]),
    ]
    constants = [axis("one", 1), numpy_helper.from_array(np.arange(STEPS), "positions")]
    shapes = [value("x", [BATCH, STEPS]), value("n", [BATCH], INT64)]
    network = OnnxNetwork(saved(model_of(nodes, shapes, [value("y", [BATCH, STEPS])], constants), tmp_path))
    assert network.lengths == {"n": (STEPS, STEPS)} and computed(network, "inside").all()


def decided(node, inputs, *constants, more=(), axes=2):
    return model_of([node, *more], [value("x", [4, 3]), *inputs], [value("y", [*"ab"[:axes]])], constants)


ONE, SCALAR = [value("n", [1], INT64)], [value("n", [], INT64)]


def loop():
    body = helper.make_graph(
        [make("Identity", ["go"], ["on"]), make("Add", ["h", "h"], ["more"])],
        "body",
        [value("turn", [], INT64), value("go", [], BOOL), value("h", [4, 3])],
        [value("on", [], BOOL), value("more", [4, 3])],
    )
    return decided(make("Loop", ["n", "", "x"], ["y"], body=body), SCALAR)


def either(condition=BOOL):
    branches = {
        f"{name}_branch": helper.make_graph([make(kind, ["x"], ["z"])], name, [], [value("z", None)])
        for name, kind in (("then", "Tanh"), ("else", "Sigmoid"))
    }
    return decided(make("If", ["n"], ["y"], **branches), [value("n", [], condition)])


#: Inputs that are sizes, positions or numbers of turns, or decide; a number that they may have.
DECISIONS = {
    "Slice": (lambda: decided(make("Slice", ["x", "zero", "n"], ["y"]), ONE, axis("zero", 0)), 2),
    "Tile": (
        lambda: decided(
            make("Tile", ["x", "both"], ["y"]),
            ONE,
            axis("one", 1),
            more=[make("Concat", ["n", "one"], ["both"], axis=0)],
        ),
        2,
    ),
    "ConstantOfShape": (
        lambda: decided(
            make("ConstantOfShape", ["n"], ["z"]), ONE, more=[make("Concat", ["z", "z"], ["y"], axis=0)], axes=1
        ),
        3,
    ),
    "Range": (
        lambda: decided(
            make("Range", ["zero", "n", "one"], ["z"]),
            SCALAR,
            whole("zero", 0),
            whole("one", 1),
            more=[cast("z", "y", 1)],
            axes=1,
        ),
        3,
    ),
    "TopK": (lambda: decided(make("TopK", ["x", "n"], ["y", "i"]), ONE), 2),
    "Loop": (loop, 3),
    "If": (either, 1),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_what_only_the_user_knows_must_be_given(tmp_path, case):
    plant, number = DECISIONS[case]
    model = plant()
    if case == "Tile":  # an operator must follow those that make its inputs
        model.graph.node.insert(0, model.graph.node.pop())
    path = saved(model, tmp_path)
    network = OnnxNetwork(path)
    with pytest.raises(
        UsageError, match=rf"its input n has, and {case} operator .*: give them with --value n="
    ) as said:
        describe(network, "onnxruntime")
    assert "--inputs FILE.npz" in str(said.value) and "\n" not in str(said.value)
    array = np.full(network.input_shapes["n"], number, network.types["n"])
    for how in ({"constants": {"n": number}}, {"inputs": given(tmp_path, n=array)}):
        assert describe(OnnxNetwork(path, **how), "onnxruntime").workload.facts.outputs


def test_an_index_that_cannot_be_drawn_is_an_input_and_no_setting(tmp_path):
    """A single one, too: as a constant, it would make the rest of the network one."""
    far = [make("Add", ["n", "rows"], ["i"]), make("Gather", ["table", "i"], ["picked"])]
    model = indexed(far, [value("n", [1, 1], INT64)], [whole("rows", 3 * ROWS)])
    with pytest.raises(UsageError, match=r"Gather operator .*: give them with --inputs FILE\.npz$"):
        describe(OnnxNetwork(saved(model, tmp_path)), "onnxruntime")


def test_a_state_that_is_a_position_need_not_be_given(tmp_path):
    """It is 0 before the first call."""
    nodes = [
        make("Gather", ["table", "step"], ["row"]),
        make("Add", ["step", "one"], ["step_out"]),
        make("Slice", ["x", "zero", "step_out"], ["z"]),
        make("Add", ["z", "row"], ["y"]),
    ]
    inputs = [value("x", [4, 3]), value("step", [1], INT64)]
    outputs = [value("y", ["a", 3]), value("step_out", [1], INT64)]
    constants = [numbers("table", ROWS, 3), axis("one", 1), axis("zero", 0)]
    network = OnnxNetwork(saved(model_of(nodes, inputs, outputs, constants), tmp_path))
    assert network.carried == (("step", "step_out"),)
    for mode in ("forward", "stream"):
        assert describe(network, "onnxruntime", mode=mode).workload == network


def test_an_input_that_meets_random_numbers_on_the_way_to_lengths_must_be_given(tmp_path):
    nodes = [
        make("ReduceMax", ["x"], ["top"], keepdims=0),
        cast("top", "i", INT64),
        make("Mul", ["n", "i"], ["s"]),
        cast("s", "lens"),
    ]
    network = OnnxNetwork(saved(packed(nodes, PER_SEQUENCE), tmp_path))
    with pytest.raises(UsageError, match=r"numbers its input n has, and LSTM operator 'layer' depends .*with --inputs"):
        describe(network, "onnxruntime")
