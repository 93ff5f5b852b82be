"""Checks of ONNX graphs for TensorRT: rejects those that it cannot build or misreads.

TensorRT's parser silently misreads some LSTM operators. These were found by evaluating the parsed network in numpy
(tests/support/network_in_numpy.py) and comparing it with ONNX Runtime and the definition of the operator; peepholes and
sequence lengths are read correctly and accepted. Errors name the operator and a remedy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from lstm_trt.config.errors import BuildFailed, ExportFailed
from lstm_trt.export.trt import one_line

if TYPE_CHECKING:
    import onnx


INPUT_NAMES = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")

#: Read correctly, with ONNX's default parameters. Softplus is always read as 0; Affine is unknown; the builder fails on
#: Elu in a gate; ThresholdedRelu and ScaledTanh have different defaults in ONNX Runtime.
ACTIVATIONS = ("Sigmoid", "Tanh", "Relu", "HardSigmoid", "LeakyRelu", "Softsign")


class Value(NamedTuple):
    """Known properties of a tensor: ONNX element type (0: unknown) and sizes (None: symbolic or unknown)."""

    type: int
    sizes: tuple[int | None, ...] | None


def read(content: bytes, name: str = "network") -> onnx.ModelProto:
    """An ONNX file with its local functions inlined; raises `ExportFailed` if it is invalid or truncated."""
    import onnx
    import onnx.inliner

    try:
        model = onnx.load_from_string(content)
    except Exception as error:  # protobuf's DecodeError, which onnx does not export
        raise ExportFailed(f"{name} is not an ONNX file, or is truncated: {one_line(error)}") from None
    if not model.graph.node:
        raise ExportFailed(f"{name} is not an ONNX file, or has no operators")
    if not _is_utf8(model):
        # TensorRT would quote such a name, and its bindings print an error before the logger is called.
        raise ExportFailed(f"{name} is not valid ONNX: a name in it is not UTF-8; export it again")
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def _is_utf8(message) -> bool:
    """Whether all strings of a protobuf message are UTF-8; others are returned as bytes."""
    for field, value in message.ListFields():
        single = isinstance(value, str | bytes) or hasattr(value, "ListFields")
        if field.type == field.TYPE_STRING:
            if any(isinstance(text, bytes) for text in ([value] if single else value)):
                return False
        elif field.message_type is not None and not all(map(_is_utf8, [value] if single else value)):
            return False
    return True


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All operators of a graph, those in the bodies of Loop, If and Scan included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from nodes(inner)


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """All stored tensors: initializers and those in attributes, inner graphs included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from tensors(inner)


def lstms(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in nodes(model.graph) if node.op_type == "LSTM" and node.domain in ("", "ai.onnx")]


def label(node: onnx.NodeProto) -> str:
    """`LSTM operator '/lstm/LSTM'`; an operator without a name is identified by its output."""
    output = next((output for output in node.output if output), "none")
    return f"{node.op_type} operator {node.name!r}" if node.name else f"{node.op_type} operator with output {output!r}"


def check(model: onnx.ModelProto, precision: str = "fp32", name: str = "network") -> None:
    """Reject a graph that TensorRT cannot build or would misread.

    `precision` is that of the engine: "fp32" and "tf32" reject operators in float16. Raises `BuildFailed`, and
    `ExportFailed` if ONNX's own checker rejects the file.
    """
    import onnx

    _refuse_external_data(model, name)
    found = lstms(model)
    if not found:
        kinds = ", ".join(sorted({node.op_type for node in nodes(model.graph)}))
        raise BuildFailed(f"{name} has no LSTM operator, only {one_line(kinds, 80)}: nothing to measure")
    values = _values(model)
    for node in found:
        fault = _fault(node, values, precision)
        if fault:
            raise BuildFailed(f"{label(node)}: {fault}")
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # ValidationError, InferenceError: the text names the operator
        raise ExportFailed(f"{name} is not valid ONNX: {one_line(error)}") from None


def _refuse_external_data(model: onnx.ModelProto, name: str) -> None:
    import onnx

    for tensor in tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            reader = next((node for node in nodes(model.graph) if tensor.name in node.input), None)
            where = f", read by {label(reader)}," if reader is not None else ""
            raise BuildFailed(
                f"the values of {tensor.name!r}{where} are in another file: save {name} with its weights included,"
                " onnx.save(onnx.load(path), path)"
            )


def _values(model: onnx.ModelProto) -> dict[str, Value]:
    """Types and sizes by name, as far as ONNX's shape inference determines them."""
    import onnx

    with contextlib.suppress(Exception):  # a broken graph: the checker reports it
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    found = {}
    for value in (*model.graph.value_info, *model.graph.output, *model.graph.input):
        tensor = value.type.tensor_type
        sizes = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
        found[value.name] = Value(tensor.elem_type, sizes if tensor.HasField("shape") else None)
    for tensor in model.graph.initializer:
        found[tensor.name] = Value(tensor.data_type, tuple(tensor.dims))
    return found


def _fault(node: onnx.NodeProto, values: dict[str, Value], precision: str) -> str:
    """The fault of one LSTM operator and its remedy, or ""."""
    import onnx

    has = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    direction = has.get("direction", b"forward").decode(errors="replace")
    if direction not in ("forward", "reverse", "bidirectional"):
        return f"unknown direction {direction!r}: forward, reverse or bidirectional"
    if has.get("layout", 0) != 0:
        return (
            f"layout={has['layout']} (batch first) would silently be read as layout=0: export it time-major"
            " (PyTorch adds Transpose operators), or transpose X and Y yourself"
        )
    if has.get("input_forget", 0) != 0:
        return "input_forget couples two gates, which TensorRT does not support: use an LSTM with a forget gate"
    if "clip" in has:
        return (
            "clip: TensorRT, but not ONNX Runtime, also clips the cell state before the last activation; remove clip,"
            " outputs would differ"
        )
    directions = 2 if direction == "bidirectional" else 1
    return (
        _fault_in_activations(has, directions)
        or _fault_in_types(node, values, precision)
        or _fault_in_sizes(node, values, has.get("hidden_size"), directions)
    )


def _fault_in_activations(has: dict, directions: int) -> str:
    names = [name.decode(errors="replace") for name in has.get("activations", ())]
    if names and len(names) != 3 * directions:
        return f"{len(names)} activations where {3 * directions} are needed: {', '.join(names)}"
    for name in names:
        if name not in ACTIVATIONS:
            return f"TensorRT misreads or does not support activation {name}: use {', '.join(ACTIVATIONS)}"
    if directions == 2 and names[:3] != names[3:]:
        return "the two directions have different activations, which TensorRT does not support: use the same for both"
    return ""


def _fault_in_types(node: onnx.NodeProto, values: dict[str, Value], precision: str) -> str:
    from onnx import TensorProto

    types = {
        name: values[tensor].type
        for name, tensor in zip(INPUT_NAMES, node.input, strict=False)
        if tensor in values and values[tensor].type and name != "sequence_lens"
    }
    if TensorProto.BFLOAT16 in types.values():
        return "ONNX's LSTM does not support bfloat16: convert it to float32 or float16 (--precision fp16)"
    if TensorProto.DOUBLE in types.values():
        return "float64 would silently be read as float32: convert it to float32"
    if len(set(types.values())) > 1:
        listed = ", ".join(f"{name} {TensorProto.DataType.Name(number).lower()}" for name, number in types.items())
        return f"its inputs have different types ({listed}): use one type for all of them, including initial states"
    if TensorProto.FLOAT16 in types.values() and precision != "fp16":
        return f"the graph computes in float16, but {precision} was requested: use --precision fp16"
    return ""


def _fault_in_sizes(node: onnx.NodeProto, values: dict[str, Value], hidden: int | None, directions: int) -> str:
    if not hidden:
        return "hidden_size is missing, which TensorRT needs: add it to the operator"
    inputs = dict(zip(INPUT_NAMES, node.input, strict=False))
    x = values.get(inputs.get("X", ""), Value(0, None)).sizes
    _, batch, features = x if x is not None and len(x) == 3 else (None, None, None)
    expected = {
        "W": (directions, 4 * hidden, features),
        "R": (directions, 4 * hidden, hidden),
        "B": (directions, 8 * hidden),
        "sequence_lens": (batch,),
        "initial_h": (directions, batch, hidden),
        "initial_c": (directions, batch, hidden),
        "P": (directions, 3 * hidden),
    }
    for name, needed in expected.items():
        sizes = values.get(inputs.get(name, ""), Value(0, None)).sizes
        if sizes is None:
            continue
        same = len(sizes) == len(needed)
        if not same or any(a != b for a, b in zip(sizes, needed, strict=True) if a is not None and b is not None):
            fault = f"{name} has shape {list(sizes)}, expected {[size or '?' for size in needed]}"
            if name == "R" and same and sizes[2] is not None and sizes[2] < hidden:
                fault += "; ONNX's LSTM has no projection (PyTorch's proj_size): multiply its output instead"
            return fault + ": export it again"
    return ""
