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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lstm_trt.config.errors import BuildFailed, ExportFailed, LabError, any_error, one_line
from lstm_trt.config.libraries import onnx, require
from lstm_trt.config.workload import RecurrentLayer
from lstm_trt.export.sizes import Sizes, attributes, fit, graphs, known_sizes

#: Activation -> its parameters.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "Sigmoid": (),
    "Tanh": (),
    "Relu": (),
    "Softsign": (),
    "Softplus": (),
    "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "ScaledTanh": ("alpha", "beta"),
    "Affine": ("alpha", "beta"),
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
DEFINITION = Rules("ONNX", tuple(PARAMETERS), different_directions=True)

_READ_AS_0 = "(batch first) would silently be read as layout=0"

#: Softplus is always read as 0; Affine is unknown; the builder fails on Elu in a gate;
#: ThresholdedRelu and ScaledTanh have different defaults in ONNX Runtime.
TENSORRT = Rules(
    "TensorRT",
    ("Sigmoid", "Tanh", "Relu", "HardSigmoid", "LeakyRelu", "Softsign"),
    layout=_READ_AS_0,
    cell_clip=(
        "TensorRT, but not ONNX Runtime, also clips the cell state before the last activation;"
        " remove clip, outputs would differ"
    ),
    input_forget=(
        "couples two gates, which TensorRT does not support: use an LSTM with a forget gate"
    ),
    float64="would silently be read as float32",
    checks_precision=True,
    small_gru=(
        "TensorRT for RTX 1.7 does not finish building a GRU of 3 to 6 hidden units with"
        " linear_before_reset=0 at batch size 1, and takes all memory: use linear_before_reset=1,"
        " or another size"
    ),
)

_CELL_STATE = (
    "does not clip the cell state before the last activation, as ONNX defines; remove clip"
)

ONNXRUNTIME = Rules(
    "ONNX Runtime",
    tuple(PARAMETERS),
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
    """An ONNX file with its local functions inlined; raises `kind` if it is invalid or
    truncated."""
    model = parsed(content, name, kind)
    with any_error(kind, f"{name} is not valid ONNX", one_line):
        return inlined(model)


def parsed(content: bytes, name: str, kind: type[LabError]) -> onnx.ModelProto:
    """An ONNX file as it is; raises `kind` if it has no operators, or names that cannot be read."""
    require("onnx")
    with any_error(kind, f"{name} is not an ONNX file, or is truncated", one_line):
        model = onnx.load_from_string(content)
    if not model.graph.node:
        raise kind(f"{name} is not an ONNX file, or has no operators")
    if not _is_utf8(model):
        # TensorRT would quote such a name, and its bindings print an error before the logger is
        # called.
        raise kind(f"{name} is not valid ONNX: a name in it is not UTF-8; export it again")
    return model


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """A network without local functions; raises onnx's errors."""
    import onnx.inliner

    return onnx.inliner.inline_local_functions(model) if model.functions else model


def _is_utf8(message: Any) -> bool:
    """Whether all strings of a protobuf message are UTF-8; others are returned as bytes."""
    for field, value in message.ListFields():
        single = isinstance(value, str | bytes) or hasattr(value, "ListFields")
        values = [value] if single else value
        if field.type == field.TYPE_STRING:
            if any(isinstance(text, bytes) for text in values):
                return False
        elif field.message_type is not None and not all(map(_is_utf8, values)):
            return False
    return True


def nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """All operators of a graph, and after them those in the bodies of Loop, If and Scan."""
    return [node for each in graphs(graph) for node in each.node]


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
    if node.name:
        return f"{node.op_type} operator {node.name!r}"
    outputs = [output for output in node.output if output]
    output = outputs[0] if outputs else "none"
    return f"{node.op_type} operator with output {output!r}"


def check(model: onnx.ModelProto, precision: str = "fp32", name: str = "network") -> None:
    """Reject a graph that TensorRT cannot build or would misread.

    Raises `BuildFailed` for external data or with the reason of `refusal`, and `ExportFailed` if
    ONNX's own checker rejects the file.
    """
    for tensor in tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            users = [label(node) for node in nodes(model.graph) if tensor.name in node.input]
            where = f", read by {users[0]}," if users else ""
            remedy = f"save {name} with its weights included, onnx.save(onnx.load(path), path)"
            raise BuildFailed(f"the values of {tensor.name!r}{where} are in another file: {remedy}")
    refuse(model, TENSORRT, precision)
    # The checker's text names the operator.
    with any_error(ExportFailed, f"{name} is not valid ONNX", one_line):
        onnx.checker.check_model(model, full_check=True)


def checked(content: bytes, rules: Rules, precision: str = "fp32") -> bytes:
    """The same ONNX file; raises `BuildFailed` with the reason of `refusal`."""
    refuse(read(content), rules, precision)
    return content


def refuse(model: onnx.ModelProto, rules: Rules, precision: str) -> None:
    """Raises `BuildFailed` with the reason of `refusal`, if there is one."""
    reason = refusal(model, rules, precision)
    if reason:
        raise BuildFailed(reason)


def refusal(model: onnx.ModelProto, rules: Rules, precision: str = "fp32") -> str | None:
    """Why a runtime refuses or would misread a recurrent operator, with the operator's name and a
    remedy, else None.

    `precision` is that of an engine of TensorRT: "fp32" and "tf32" reject operators in float16.
    """
    recurrent = recurrent_nodes(model)
    if not recurrent:
        return None
    with contextlib.suppress(Exception):  # a broken graph: the checker reports it
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    graph = model.graph
    sizes = known_sizes(graph)
    types = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    for tensor in graph.initializer:
        types[tensor.name] = tensor.data_type
    for node in recurrent:
        for fault in _faults(node, types, sizes, precision, rules):
            return f"{label(node)}: {fault}"
    return None


def _faults(
    node: onnx.NodeProto, types: Mapping[str, int], sizes: Sizes, precision: str, rules: Rules
) -> Iterator[str]:
    """The faults of one operator with their remedies; what follows a fault relies on its
    absence."""
    kind = node.op_type
    has = attributes(node)
    inputs = {name: tensor for name, tensor in zip(INPUT_NAMES, node.input, strict=False) if tensor}
    yield from _faults_in_attributes(kind, has, "P" in inputs, rules)
    yield from _faults_in_activations(kind, has, rules)
    numbers = {name: types[tensor] for name, tensor in inputs.items() if types.get(tensor)}
    numbers.pop("sequence_lens", None)
    yield from _faults_in_types(kind, numbers, precision, rules)
    if not has.get("hidden_size"):
        yield "hidden_size is missing, which every runtime needs: add it to the operator"
    shapes = {name: sizes[tensor] for name, tensor in inputs.items() if tensor in sizes}
    yield from _faults_in_sizes(kind, has, shapes)
    if rules.small_gru and kind == "GRU" and not has.get("linear_before_reset"):
        x = shapes.get("X", ())
        if len(x) == 3 and x[1] == 1 and 3 <= has["hidden_size"] <= 6:
            yield rules.small_gru


def _faults_in_attributes(kind: str, has: Mapping, peepholes: bool, rules: Rules) -> Iterator[str]:
    direction = has.get("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        yield f"unknown direction {direction!r}: forward, reverse or bidirectional"
    if has.get("layout") and rules.layout:
        yield (
            f"layout={has['layout']} {rules.layout}: export it time-major (PyTorch adds Transpose"
            " operators), or transpose X and Y yourself"
        )
    if has.get("input_forget") and rules.input_forget:
        yield f"input_forget {rules.input_forget}"
    if "clip" in has and kind == "LSTM" and rules.cell_clip:
        yield f"clip: {rules.cell_clip}"
    if peepholes and rules.peepholes:
        yield f"peepholes (input P) {rules.peepholes}"


def _faults_in_activations(kind: str, has: Mapping, rules: Rules) -> Iterator[str]:
    both_directions = has.get("direction") == "bidirectional"
    names = list(has.get("activations", ()))
    needed = len(RECURRENT[kind]) * (2 if both_directions else 1)
    if names and len(names) != needed:
        yield f"{len(names)} activations where {needed} are needed: {', '.join(names)}"
    for name in names:
        if name not in rules.activations:
            known = ", ".join(rules.activations)
            yield f"{rules.title} misreads or does not support activation {name}: use {known}"
    lists = [names]
    for parameter in ("alpha", "beta"):
        attribute = f"activation_{parameter}"
        given = list(has.get(attribute, ()))
        lists.append(given)
        users = [name for name in names if parameter in PARAMETERS[name]]
        different = [name for name in users if name in rules.without_defaults]
        if different and len(given) < len(users):
            yield (
                f"{rules.title} has another default of {attribute} for {different[0]}:"
                f" add {attribute} to the operator"
            )
    differ = any(given[: len(given) // 2] != given[len(given) // 2 :] for given in lists)
    if both_directions and differ and not rules.different_directions:
        yield (
            "the two directions have different activations,"
            f" which {rules.title} does not support: use the same for both"
        )


def type_name(number: int) -> str:
    """ONNX's name of an element type, in lower case; its number if it has none, as in a damaged
    file."""
    if number in onnx.TensorProto.DataType.values():
        return onnx.TensorProto.DataType.Name(number).lower()
    return f"number {number}"


def _faults_in_types(
    kind: str, types: Mapping[str, int], precision: str, rules: Rules
) -> Iterator[str]:
    found = set(types.values())
    if onnx.TensorProto.BFLOAT16 in found:
        yield (
            f"ONNX's {kind} does not support bfloat16: convert it to float32 or float16"
            " (--precision fp16)"
        )
    if onnx.TensorProto.DOUBLE in found and rules.float64:
        yield f"float64 {rules.float64}: convert it to float32"
    if len(found) > 1:
        listed = ", ".join(f"{name} {type_name(number)}" for name, number in types.items())
        yield (
            f"its inputs have different types ({listed}): use one type for all of them,"
            " including initial states"
        )
    if onnx.TensorProto.FLOAT16 in found and precision != "fp16" and rules.checks_precision:
        yield (
            f"the graph computes in float16, but {precision} was requested: use --precision fp16"
        )


def _faults_in_sizes(kind: str, has: Mapping, shapes: Mapping[str, Any]) -> Iterator[str]:
    hidden = has["hidden_size"]
    x = shapes.get("X", ())
    sequence, batch, features = x if len(x) == 3 else (None, None, None)
    if has.get("layout"):
        sequence, batch = batch, sequence
    layer = RecurrentLayer(kind, hidden, features, sequence, batch, has.get("direction", "forward"))
    state = (layer.directions, batch, hidden)
    if has.get("layout"):
        state = (batch, layer.directions, hidden)
    expected = {
        **layer.weight_shapes,
        "sequence_lens": (batch,),
        "initial_h": state,
        "initial_c": state,
        "P": (layer.directions, 3 * hidden),
    }
    for name, needed in expected.items():
        sizes = shapes.get(name, needed)
        if fit(sizes, needed):
            continue
        fault = f"{name} has shape {list(sizes)}, expected {[size or '?' for size in needed]}"
        if name == "R" and len(sizes) == 3 and sizes[2] is not None and sizes[2] < hidden:
            fault += (
                f"; ONNX's {kind} has no projection (PyTorch's proj_size): multiply its output"
                " instead"
            )
        yield f"{fault}: export it again"
