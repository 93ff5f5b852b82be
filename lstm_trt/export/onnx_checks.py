"""Checks of ONNX graphs: recurrent operators that a runtime refuses, or reads wrongly without an
error.

Several runtimes silently misread some LSTM, GRU and RNN operators. For TensorRT these were found by
evaluating the parsed network in numpy (tests/support/network_in_numpy.py), for the others by
running them, and comparing with the definition of the operators (`evaluate`). What `Rules` do not
refuse is read correctly. Files with operators that contradict the definition itself (`DEFINITION`)
are refused when they are read, whatever the runtime. Errors name the operator and a remedy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lstm_trt.config.errors import BuildFailed, ExportFailed, LabError, any_error, one_line
from lstm_trt.config.libraries import onnx, require
from lstm_trt.config.workload import RecurrentLayer
from lstm_trt.export import work
from lstm_trt.export.sizes import Sizes, attributes, bodies, fit, graphs, known_sizes

#: A parameter that has to be given: its default is that of an operator that ONNX no longer has.
NO_DEFAULT = float("nan")

#: Activation -> function of (x, alpha, beta), and the defaults of both; None: has no such
#: parameter.
ACTIVATIONS: dict[str, tuple[Callable, float | None, float | None]] = {
    "Sigmoid": (lambda x, alpha, beta: 0.5 * (1 + np.tanh(0.5 * x)), None, None),
    "Tanh": (lambda x, alpha, beta: np.tanh(x), None, None),
    "Relu": (lambda x, alpha, beta: np.maximum(x, 0), None, None),
    "Softsign": (lambda x, alpha, beta: x / (1 + np.abs(x)), None, None),
    "Softplus": (lambda x, alpha, beta: np.logaddexp(x, 0), None, None),
    "LeakyRelu": (lambda x, alpha, beta: np.where(x < 0, alpha * x, x), 0.01, None),
    "ThresholdedRelu": (lambda x, alpha, beta: np.where(x > alpha, x, 0), 1.0, None),
    "Elu": (
        lambda x, alpha, beta: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
        1.0,
        None,
    ),
    "HardSigmoid": (lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1), 0.2, 0.5),
    "ScaledTanh": (lambda x, alpha, beta: alpha * np.tanh(beta * x), NO_DEFAULT, NO_DEFAULT),
    "Affine": (lambda x, alpha, beta: alpha * x + beta, NO_DEFAULT, NO_DEFAULT),
}

#: Recurrent operator -> activations of one direction if none are given.
RECURRENT = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}

INPUT_NAMES = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


@dataclass(frozen=True)
class Rules:
    """What a runtime reads of LSTM, GRU and RNN operators; a text is the reason to refuse an
    attribute or input.

    `activations`: read correctly; `without_defaults`: those of them whose default parameters differ
    from ONNX's.
    """

    title: str
    activations: tuple[str, ...]
    layout: str = ""
    cell_clip: str = ""
    without_defaults: tuple[str, ...] = ()
    input_forget: str = ""
    peepholes: str = ""
    float64: str = ""
    different_directions: bool = False
    checks_precision: bool = False
    small_gru: str = ""


#: What no runtime can compute: operators that contradict their own definition.
DEFINITION = Rules("ONNX", tuple(ACTIVATIONS), different_directions=True)

_READ_AS_0 = "(batch first) would silently be read as layout=0"

#: Softplus is always read as 0; Affine is unknown; the builder fails on Elu in a gate;
#: ThresholdedRelu and ScaledTanh have different defaults in ONNX Runtime.
TENSORRT = Rules(
    "TensorRT",
    ("Sigmoid", "Tanh", "Relu", "HardSigmoid", "LeakyRelu", "Softsign"),
    layout=_READ_AS_0,
    cell_clip=(
        "TensorRT, but not ONNX Runtime, also clips the cell state before the last activation; remove clip,"
        " outputs would differ"
    ),
    input_forget="couples two gates, which TensorRT does not support: use an LSTM with a forget gate",
    float64="would silently be read as float32",
    checks_precision=True,
    small_gru=(
        "TensorRT for RTX 1.7 does not finish building a GRU of 3 to 6 hidden units with linear_before_reset=0 at batch"
        " size 1, and takes all memory: use linear_before_reset=1, or another size"
    ),
)

_CELL_STATE = (
    "does not clip the cell state before the last activation, as ONNX defines; remove clip"
)

ONNXRUNTIME = Rules(
    "ONNX Runtime",
    tuple(ACTIVATIONS),
    layout="(batch first) is not supported",
    cell_clip=f"ONNX Runtime {_CELL_STATE}",
    without_defaults=("ThresholdedRelu", "ScaledTanh", "Affine"),
    float64="is not supported",
    different_directions=True,
)

OPENVINO = Rules(
    "OpenVINO",
    ("Sigmoid", "Tanh", "Relu"),
    layout=_READ_AS_0,
    cell_clip=f"OpenVINO {_CELL_STATE}",
    input_forget="would silently be ignored: use an LSTM with a forget gate",
    peepholes="would silently be ignored: use an LSTM without them",
)


def read(
    content: bytes, name: str = "network", kind: type[LabError] = ExportFailed
) -> onnx.ModelProto:
    """An ONNX file with its local functions inlined; raises `kind` if it is invalid, truncated, or
    too much work."""
    require("onnx")
    import onnx.inliner

    with any_error(kind, f"{name} is not an ONNX file, or is truncated", one_line):
        model = onnx.load_from_string(content)
    if not model.graph.node:
        raise kind(f"{name} is not an ONNX file, or has no operators")
    if not _is_utf8(model):
        # TensorRT would quote such a name, and its bindings print an error before the logger is
        # called.
        raise kind(f"{name} is not valid ONNX: a name in it is not UTF-8; export it again")
    with any_error(kind, f"{name} is not valid ONNX", one_line):
        functions = {(each.domain, each.name): each for each in model.functions}
        if work.operators(model.graph, functions, {}) > work.MOST:
            raise kind(
                f"{name} has functions that call themselves, or more than {work.MOST} operators with them expanded"
            )
        if functions:
            model = onnx.inliner.inline_local_functions(model)
        if work.passes(model.graph, {}) > work.MOST:
            raise kind(f"{name} has loops that never end, or have more than {work.MOST} passes")
        return model


def _is_utf8(message) -> bool:
    """Whether all strings of a protobuf message are UTF-8; others are returned as bytes."""
    for field, value in message.ListFields():
        single = isinstance(value, str | bytes) or hasattr(value, "ListFields")
        if field.type == field.TYPE_STRING:
            if any(isinstance(text, bytes) for text in ([value] if single else value)):
                return False
        elif field.message_type is not None and not all(
            map(_is_utf8, [value] if single else value)
        ):
            return False
    return True


def nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """All operators of a graph, and after them those in the bodies of Loop, If and Scan."""
    return [node for each in graphs(graph) for node in each.node]


def operators(
    graph: onnx.GraphProto, outer: Sizes | None = None, within: str = ""
) -> Iterator[tuple]:
    """All operators, each with the sizes that are known where it is, and the body that it is in."""
    known = {**(outer or {}), **known_sizes(graph)}
    for node in graph.node:
        yield node, known, within
        for name, body in bodies(node).items():
            yield from operators(body, known, f"{label(node)}, {name}")


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """All stored tensors: initializers and those in attributes, inner graphs included."""
    for each in graphs(graph):
        yield from each.initializer
    for node in nodes(graph):
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)


def is_float32(value: onnx.ValueInfoProto) -> bool:
    """Whether an input or output is a tensor of float32."""
    return value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def retype(
    model: onnx.ModelProto,
    values: Iterable[onnx.ValueInfoProto],
    number: int,
    name: str = "network",
) -> None:
    """Convert all stored float32 tensors, and those of the inputs and outputs `values`, to the ONNX
    element type.

    Raises `BuildFailed` for a number that this type does not have.
    """
    kind = onnx.helper.tensor_dtype_to_np_dtype(number)
    most = float(np.finfo(kind).max)
    for tensor in tensors(model.graph):
        if tensor.data_type == onnx.TensorProto.FLOAT:
            numbers = onnx.numpy_helper.to_array(tensor)
            largest = float(np.max(np.abs(numbers[np.isfinite(numbers)]), initial=0))
            if largest > most:
                raise BuildFailed(
                    f"{name} has {largest:g} in {tensor.name!r}, above {kind}'s {most:g}: use fp32"
                )
            tensor.CopyFrom(onnx.numpy_helper.from_array(numbers.astype(kind), tensor.name))
    for value in filter(is_float32, values):
        value.type.tensor_type.elem_type = number


def recurrent_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The LSTM, GRU and RNN operators."""
    return [
        node
        for node in nodes(model.graph)
        if node.op_type in RECURRENT and node.domain in ("", "ai.onnx")
    ]


def label(node: onnx.NodeProto) -> str:
    """`LSTM operator '/lstm/LSTM'`; an operator without a name is identified by its output."""
    output = next((output for output in node.output if output), "none")
    return (
        f"{node.op_type} operator {node.name!r}"
        if node.name
        else f"{node.op_type} operator with output {output!r}"
    )


def check(
    model: onnx.ModelProto, precision: str = "fp32", name: str = "network", rules: Rules = TENSORRT
) -> None:
    """Reject a graph that a runtime cannot build or would misread.

    Raises `BuildFailed` for external data or with the reason of `refusal`, and `ExportFailed` if
    ONNX's own checker rejects the file.
    """
    for tensor in tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            reader = next((node for node in nodes(model.graph) if tensor.name in node.input), None)
            where = f", read by {label(reader)}," if reader is not None else ""
            remedy = f"save {name} with its weights included, onnx.save(onnx.load(path), path)"
            raise BuildFailed(f"the values of {tensor.name!r}{where} are in another file: {remedy}")
    reason = refusal(model, rules, precision)
    if reason:
        raise BuildFailed(reason)
    with any_error(
        ExportFailed, f"{name} is not valid ONNX", one_line
    ):  # the text names the operator
        onnx.checker.check_model(model, full_check=True)


def checked(content: bytes, rules: Rules, precision: str = "fp32") -> bytes:
    """The same ONNX file; raises `BuildFailed` with the reason of `refusal`."""
    reason = refusal(read(content), rules, precision)
    if reason:
        raise BuildFailed(reason)
    return content


def refusal(model: onnx.ModelProto, rules: Rules, precision: str = "fp32") -> str | None:
    """Why a runtime refuses or would misread a recurrent operator, with the operator's name and a
    remedy, else None.

    `precision` is that of an engine of TensorRT: "fp32" and "tf32" reject operators in float16.
    """
    found = recurrent_nodes(model)
    if found:
        with contextlib.suppress(Exception):  # a broken graph: the checker reports it
            model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    graph, sizes = model.graph, known_sizes(model.graph)
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.value_info, *graph.input, *graph.output)
    }
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    faults = (
        f"{label(node)}: {fault}"
        for node in found
        for fault in _faults(node, types, sizes, precision, rules)
    )
    return next(faults, None)


def _faults(
    node: onnx.NodeProto, types: dict[str, int], sizes: Sizes, precision: str, rules: Rules
) -> Iterator[str]:
    """The faults of one operator with their remedies; what follows a fault relies on its absence."""
    has = attributes(node)
    direction = has.get("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        yield f"unknown direction {direction!r}: forward, reverse or bidirectional"
    if has.get("layout", 0) != 0 and rules.layout:
        remedy = (
            "export it time-major (PyTorch adds Transpose operators), or transpose X and Y yourself"
        )
        yield f"layout={has['layout']} {rules.layout}: {remedy}"
    if has.get("input_forget", 0) != 0 and rules.input_forget:
        yield f"input_forget {rules.input_forget}"
    if "clip" in has and node.op_type == "LSTM" and rules.cell_clip:
        yield f"clip: {rules.cell_clip}"
    if rules.peepholes and any(node.input[INPUT_NAMES.index("P") :]):
        yield f"peepholes (input P) {rules.peepholes}"
    yield from _faults_in_activations(
        node.op_type, has, 2 if direction == "bidirectional" else 1, rules
    )
    tensors = dict(zip(INPUT_NAMES, node.input, strict=False))
    named = {
        name: types[tensor]
        for name, tensor in tensors.items()
        if types.get(tensor) and name != "sequence_lens"
    }
    yield from _faults_in_types(node.op_type, named, precision, rules)
    if not has.get("hidden_size"):
        yield "hidden_size is missing, which every runtime needs: add it to the operator"
    found = {name: sizes[tensor] for name, tensor in tensors.items() if tensor in sizes}
    yield from _faults_in_sizes(
        node.op_type, found, has["hidden_size"], direction, bool(has.get("layout"))
    )
    one = len(found.get("X", ())) == 3 and found["X"][1] == 1
    small = one and 3 <= has["hidden_size"] <= 6 and not has.get("linear_before_reset")
    if rules.small_gru and node.op_type == "GRU" and small:
        yield rules.small_gru


def _faults_in_activations(kind: str, has: dict, directions: int, rules: Rules) -> Iterator[str]:
    names = list(has.get("activations", ()))
    needed = len(RECURRENT[kind]) * directions
    if names and len(names) != needed:
        yield f"{len(names)} activations where {needed} are needed: {', '.join(names)}"
    for name in names:
        if name not in rules.activations:
            yield f"{rules.title} misreads or does not support activation {name}: use {', '.join(rules.activations)}"
    for place, parameter in enumerate(("activation_alpha", "activation_beta"), start=1):
        users = [name for name in names if ACTIVATIONS[name][place] is not None]
        different = next((name for name in users if name in rules.without_defaults), None)
        if different and len(has.get(parameter, ())) < len(users):
            yield f"{rules.title} has another default of {parameter} for {different}: add {parameter} to the operator"
    values = (
        names,
        *(list(has.get(f"activation_{parameter}", ())) for parameter in ("alpha", "beta")),
    )
    differ = any(given[: len(given) // 2] != given[len(given) // 2 :] for given in values)
    if directions == 2 and not rules.different_directions and differ:
        remedy = f"which {rules.title} does not support: use the same for both"
        yield f"the two directions have different activations, {remedy}"


def type_name(number: int) -> str:
    """ONNX's name of an element type, in lower case; its number if it has none, as in a damaged
    file."""
    known = number in onnx.TensorProto.DataType.values()
    return onnx.TensorProto.DataType.Name(number).lower() if known else f"number {number}"


def _faults_in_types(
    kind: str, types: dict[str, int], precision: str, rules: Rules
) -> Iterator[str]:
    if onnx.TensorProto.BFLOAT16 in types.values():
        yield f"ONNX's {kind} does not support bfloat16: convert it to float32 or float16 (--precision fp16)"
    if onnx.TensorProto.DOUBLE in types.values() and rules.float64:
        yield f"float64 {rules.float64}: convert it to float32"
    if len(set(types.values())) > 1:
        listed = ", ".join(f"{name} {type_name(number)}" for name, number in types.items())
        yield f"its inputs have different types ({listed}): use one type for all of them, including initial states"
    if (
        onnx.TensorProto.FLOAT16 in types.values()
        and precision != "fp16"
        and rules.checks_precision
    ):
        yield f"the graph computes in float16, but {precision} was requested: use --precision fp16"


def _faults_in_sizes(
    kind: str, found: dict[str, Any], hidden: int, direction: str, batch_first: bool
) -> Iterator[str]:
    x = found.get("X", ())
    sizes: Any = x if len(x) == 3 else (None, None, None)
    sequence, batch, features = sizes
    if batch_first:
        batch, sequence = sequence, batch
    layer = RecurrentLayer(kind, hidden, features, sequence, batch, direction)
    state = (batch, layer.directions, hidden) if batch_first else (layer.directions, batch, hidden)
    others = {"initial_h": state, "initial_c": state, "P": (layer.directions, 3 * hidden)}
    for name, needed in {**layer.weight_shapes, "sequence_lens": (batch,), **others}.items():
        sizes = found.get(name, needed)
        if not fit(sizes, needed):
            fault = f"{name} has shape {list(sizes)}, expected {[size or '?' for size in needed]}"
            if name == "R" and len(sizes) == 3 and sizes[2] is not None and sizes[2] < hidden:
                fault += f"; ONNX's {kind} has no projection (PyTorch's proj_size): multiply its output instead"
            yield fault + ": export it again"
