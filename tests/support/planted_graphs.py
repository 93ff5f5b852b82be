"""ONNX graphs of one LSTM operator: valid ones, and ones that TensorRT cannot run or reads wrongly."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def lstm(sizes=(5, 3, 6, 4), directions=1, dtype=np.float32, states=True, lengths=None, peepholes=False, **attributes):
    """One LSTM operator 'my_lstm' with random weights; sizes are sequence, batch, features, hidden."""
    sequence, batch, features, hidden = sizes
    random = np.random.default_rng(0)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def numbers(name: str, *shape: int):
        return numpy_helper.from_array(random.uniform(-0.7, 0.7, shape).astype(dtype), name)

    stored = [numbers("W", directions, 4 * hidden, features), numbers("R", directions, 4 * hidden, hidden)]
    stored.append(numbers("B", directions, 8 * hidden))
    x = (sequence, batch, features) if not attributes.get("layout") else (batch, sequence, features)
    inputs = [helper.make_tensor_value_info("X", kind, x)]
    names = ["X", "W", "R", "B", "lengths" if lengths is not None else ""]
    if lengths is not None:
        stored.append(numpy_helper.from_array(np.array(lengths, np.int32), "lengths"))
    if states:
        inputs += [helper.make_tensor_value_info(name, kind, (directions, batch, hidden)) for name in ("h0", "c0")]
    names += ["h0", "c0"] if states else ["", ""]
    if peepholes:
        stored.append(numbers("P", directions, 3 * hidden))
        names.append("P")
    if directions == 2:
        attributes["direction"] = "bidirectional"
    node = helper.make_node("LSTM", names, ["Y", "Y_h", "Y_c"], name="my_lstm", hidden_size=hidden, **attributes)
    last = (directions, batch, hidden) if not attributes.get("layout") else (batch, directions, hidden)
    every = (sequence, *last) if not attributes.get("layout") else (batch, sequence, directions, hidden)
    outputs = [helper.make_tensor_value_info(n, kind, size) for n, size in (("Y", every), ("Y_h", last), ("Y_c", last))]
    graph = helper.make_graph([node], "one", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


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
    "hidden_size": (lambda: without(lstm(), "hidden_size"), "hidden_size is missing"),
    "external data": (external, "'W', read by LSTM operator 'my_lstm',"),
}


def relu() -> bytes:
    sizes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "none", sizes[:1], sizes[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()


def unknown_attribute() -> bytes:
    return lstm(states=False, nonsense=1).SerializeToString()
