"""ONNX graphs of one LSTM operator: valid ones, and ones that TensorRT cannot run or reads wrongly."""

from __future__ import annotations

import importlib
import itertools
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lstm_trt.config.workload import RecurrentLayer
from lstm_trt.export.onnx_checks import PARAMETERS, RECURRENT


def recurrent(
    kind,
    sizes=(5, 3, 6, 4),
    directions=1,
    dtype=np.float32,
    states=True,
    bias=True,
    lengths=None,
    peepholes=False,
    stored=True,
    **attributes,
):
    """One operator 'my_lstm', 'my_gru' or 'my_rnn' with random weights; sizes are sequence, batch, features, hidden.

    `stored`: W, R and B are constants, else inputs.
    """
    sequence, batch, features, hidden = sizes
    random = np.random.default_rng(0)
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    carried = ["h0", "c0"] if kind == "LSTM" else ["h0"]

    def numbers(name: str, *shape: int):
        return numpy_helper.from_array(random.uniform(-0.7, 0.7, shape).astype(dtype), name)

    gates = RecurrentLayer(kind, hidden, features, sequence, batch).gates
    constants = [numbers("W", directions, gates, features), numbers("R", directions, gates, hidden)]
    constants += [numbers("B", directions, 2 * gates)] if bias else []
    by_batch = bool(attributes.get("layout"))
    x = (batch, sequence, features) if by_batch else (sequence, batch, features)
    last = (batch, directions, hidden) if by_batch else (directions, batch, hidden)
    every = (batch, sequence, directions, hidden) if by_batch else (sequence, directions, batch, hidden)
    inputs = [helper.make_tensor_value_info("X", number, x)]
    names = ["X", "W", "R", "B" if bias else "", "lengths" if lengths is not None else ""]
    if not stored:
        inputs += [helper.make_tensor_value_info(tensor.name, number, tensor.dims) for tensor in constants]
        constants = []
    if lengths is not None:
        constants.append(numpy_helper.from_array(np.array(lengths, np.int32), "lengths"))
    if states:
        inputs += [helper.make_tensor_value_info(name, number, last) for name in carried]
    names += carried if states else [""] * len(carried)
    if peepholes:
        constants.append(numbers("P", directions, 3 * hidden))
        names.append("P")
    if directions == 2:
        attributes["direction"] = "bidirectional"
    made = ["Y", "Y_h", "Y_c"][: 1 + len(carried)]
    node = helper.make_node(kind, names, made, name=f"my_{kind.lower()}", hidden_size=hidden, **attributes)
    shapes = zip(made, (every, last, last), strict=False)
    outputs = [helper.make_tensor_value_info(name, number, shape) for name, shape in shapes]
    graph = helper.make_graph([node], "one", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


lstm = partial(recurrent, "LSTM")


def changed(model, name: str, array: np.ndarray):
    """The model with other values of a stored tensor."""
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(array, name))
    return model


def without(model, attribute: str):
    (node,) = model.graph.node
    kept = [a for a in node.attribute if a.name != attribute]
    del node.attribute[:]
    node.attribute.extend(kept)
    return model


def unnamed(model):
    model.graph.node[0].name = ""
    return model


def with_half_states():
    model = lstm()
    for value in model.graph.input[1:]:
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def with_one_state():
    model = lstm()
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 1
    return model


def external():
    model = lstm()
    tensor = model.graph.initializer[1]
    tensor.raw_data = b""
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "weights.bin")
    return model


def of_no_known_type() -> onnx.ModelProto:
    model = lstm()
    model.graph.input[0].type.tensor_type.elem_type = 69
    return model


def in_bfloat16():
    model = lstm(states=False)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            helper.make_tensor(tensor.name, TensorProto.BFLOAT16, tensor.dims, [0.0] * np.prod(tensor.dims))
        )
    return model


def inside_an_if():
    """An operator inside the body of an If."""
    inner = lstm(layout=1, states=False)
    branch = helper.make_graph(list(inner.graph.node), "branch", [], list(inner.graph.output), inner.graph.initializer)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("a", "b", "c")]
    condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
    either = helper.make_node("If", ["condition"], ["a", "b", "c"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph([either], "outer", [condition, *inner.graph.input], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def inside_a_function():
    """An operator inside a function of the file."""
    inner = lstm(layout=1, states=False)
    given, made = ["X", "W", "R", "B"], ["Y", "Y_h", "Y_c"]
    imports = [helper.make_opsetid("", 18)]
    function = helper.make_function("own", "Recurrent", given, made, list(inner.graph.node), imports)
    call = helper.make_node("Recurrent", given, made, domain="own")
    graph = helper.make_graph([call], "outer", inner.graph.input, inner.graph.output, inner.graph.initializer)
    imports = [*imports, helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=[function])


REFUSED = {
    "inside an If": (inside_an_if, "layout=1 (batch first)"),
    "inside a function": (inside_a_function, "layout=1 (batch first)"),
    "layout": (lambda: lstm(layout=1, states=False), "layout=1 (batch first)"),
    "layout, no name": (lambda: unnamed(lstm(layout=1, states=False)), "LSTM operator with output 'Y': layout=1"),
    "input_forget": (lambda: lstm(input_forget=1), "input_forget couples two gates"),
    "clip": (lambda: lstm(clip=0.5), "clip"),
    "softplus": (lambda: lstm(activations=["Sigmoid", "Softplus", "Tanh"]), "activation Softplus"),
    "affine": (lambda: lstm(activations=["Affine", "Tanh", "Tanh"]), "activation Affine"),
    "elu": (lambda: lstm(activations=["Elu", "Tanh", "Tanh"]), "activation Elu"),
    "lower case": (lambda: lstm(activations=["sigmoid", "tanh", "tanh"]), "activation sigmoid"),
    "two activations": (lambda: lstm(activations=["Sigmoid", "Tanh"]), "2 activations where 3 are needed"),
    "different directions": (
        lambda: lstm(directions=2, activations=["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Relu", "Tanh"]),
        "the two directions have different activations",
    ),
    "direction": (lambda: lstm(direction="sideways"), "unknown direction 'sideways'"),
    "float64": (lambda: lstm(dtype=np.float64), "float64"),
    "bfloat16": (in_bfloat16, "bfloat16"),
    "no known type": (of_no_known_type, "X number 69, W float"),
    "float16": (lambda: lstm(dtype=np.float16), "--precision fp16"),
    "states of another type": (with_half_states, "(X float, W float, R float, B float"),
    "states of another size": (with_one_state, "initial_h has shape [1, 1, 4], expected [1, 3, 4]"),
    "projection": (lambda: changed(lstm(), "R", np.zeros((1, 16, 2), np.float32)), "proj_size"),
    "W": (
        lambda: changed(lstm(), "W", np.zeros((1, 16, 7), np.float32)),
        "W has shape [1, 16, 7], expected [1, 16, 6]",
    ),
    "B": (lambda: changed(lstm(), "B", np.zeros((1, 16), np.float32)), "B has shape [1, 16], expected [1, 32]"),
    "lengths": (lambda: lstm(lengths=[1, 2]), "sequence_lens has shape [2], expected [3]"),
    "small GRU, no name": (lambda: unnamed(recurrent("GRU", (5, 1, 6, 4))), "does not finish building a GRU of 3 to 6"),
    "hidden_size": (lambda: without(lstm(), "hidden_size"), "hidden_size is missing"),
    "external data": (external, "'W', read by LSTM operator 'my_lstm',"),
}


def relu() -> bytes:
    sizes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "none", sizes[:1], sizes[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()


def unknown_attribute() -> bytes:
    return lstm(states=False, nonsense=1).SerializeToString()


def feeds(model, seed: int = 1) -> dict[str, np.ndarray]:
    """Random values of the inputs of a graph with static sizes, by name."""
    random, found = np.random.default_rng(seed), {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        values = 2 * random.standard_normal([dim.dim_value for dim in tensor.shape.dim])
        found[value.name] = values.astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return found


def backend_cases() -> dict[str, tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """The node cases of ONNX for LSTM, GRU and RNN: name -> (model, inputs, expected outputs)."""
    import onnx.backend.test.case.node as node

    for kind in ("lstm", "gru", "rnn"):
        importlib.import_module(f"onnx.backend.test.case.node.{kind}")
    cases = {}
    for case in node._NodeTestCases:
        named = zip((case.model.graph.input, case.model.graph.output), case.data_sets[0], strict=True)
        cases[case.name] = (case.model, *({v.name: array for v, array in zip(*pair, strict=True)} for pair in named))
    return cases


def own_cases(**common) -> dict[str, onnx.ModelProto]:
    """One operator each: every attribute, input and activation that the definitions of LSTM, GRU and RNN have.

    `common`: arguments of `recurrent` for all of them.
    """
    given = []
    for kind, usual in RECURRENT.items():
        both = {"directions": 2}
        plain = [{}, {"states": False}, {"bias": False}, {"stored": False}, both, {"direction": "reverse"}]
        plain += [{"lengths": [2, 5, 3], **more} for more in ({}, both, {"direction": "reverse"})]
        plain += [{"clip": 0.5}, {"clip": 0.5, "lengths": [2, 3, 3]}, {"layout": 1}, {"layout": 1, "states": False}]
        plain += [{"dtype": np.float64}, {"dtype": np.float16}]
        for place, name in itertools.product(range(len(usual)), PARAMETERS):
            names = [*usual[:place], name, *usual[place + 1 :]]
            alpha, beta = ([0.3] if parameter in PARAMETERS[name] else [] for parameter in ("alpha", "beta"))
            parameters = {"activation_alpha": alpha, "activation_beta": beta}
            chosen = {"activations": names, **{key: value for key, value in parameters.items() if value}}
            plain += [chosen] if name in ("Affine", "ScaledTanh") else [{"activations": names}, chosen]
        plain += [
            {**both, "activations": [*usual, *["Sigmoid"] * len(usual)]},
            {**both, "activations": ["LeakyRelu", *usual[1:]] * 2, "activation_alpha": [0.3, 0.1]},
            {"activations": ["HardSigmoid", *["LeakyRelu"] * (len(usual) - 1)], "activation_alpha": [0.3, 0.1, 0.2]},
        ]
        given += [(kind, case) for case in plain]
    more = ({}, {"directions": 2}, {"lengths": [2, 5, 3]}, {"bias": False})
    for kind, flag in (
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"peepholes": True}),
        ("GRU", {"linear_before_reset": 1}),
    ):
        given += [(kind, {**flag, **case}) for case in (*more, {"clip": 0.5})]
    given.append(("LSTM", {"input_forget": 1, "peepholes": True}))
    return {f"{kind} {case}": recurrent(kind, **{**common, **case}) for kind, case in given}
