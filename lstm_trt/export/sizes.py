"""ONNX graphs at fixed sizes: what is known of their tensors, and the graph of a configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lstm_trt.config.errors import ExportFailed, any_error
from lstm_trt.config.libraries import onnx
from lstm_trt.config.workload import Workload

#: Sizes of tensors by name, a number or None each.
Sizes = Mapping[str, Any]

#: Constants up to this size can be sizes, which shape inference reads; larger ones are weights.
SMALL_ELEMENTS = 32


def static_model(path: Path, workload: Workload) -> bytes:
    """The network in an ONNX file with the sizes of `workload` written into the graph, checked.

    Strict shape inference must not derive other outputs than those of `workload`, which detects a
    size that an exporter fixed inside the graph. A workload with a method `simplified(model,
    shapes)` changes the graph first. Raises `ExportFailed`.
    """
    file = f"{getattr(workload, 'name', path.stem)}.onnx"  # that in the cache is called by its hash
    shapes = {**workload.input_shapes, **workload.output_shapes}
    for state in workload.states:
        shapes[state.input] = shapes[state.output] = state.shape
    # DecodeError, InferenceError, ValidationError, OSError: all mean an unusable file
    with any_error(ExportFailed, f"{file} cannot be made static at {workload.label}"):
        model = onnx.load(str(path))
        simplified = getattr(workload, "simplified", None)
        if simplified is not None:
            model = simplified(model, shapes)
        strict = not has_branches(model)  # a branch that is not taken may be invalid
        derived = known_sizes(inferred(without_weights(model, shapes), strict).graph)
        for value in model.graph.output:
            expected = shapes[value.name]
            found = derived.get(value.name, expected)
            if not fit(found, expected):
                raise ExportFailed(
                    f"{file} at {workload.label} gives {value.name} of {found}, not {expected}"
                )
        del model.graph.value_info[:]
        write_sizes((*model.graph.input, *model.graph.output), shapes)
        return model.SerializeToString()


def without_weights(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]
) -> onnx.ModelProto:
    """The graph with inputs of these shapes, and with inputs in place of its weights, checked.

    So inference takes milliseconds for any size of network. Raises onnx's errors.
    """
    whole = model.graph
    bare = onnx.helper.make_model(
        onnx.helper.make_graph(whole.node, whole.name, whole.input, whole.output),
        functions=model.functions,
        ir_version=model.ir_version,
        opset_imports=model.opset_import,
    )
    graph = bare.graph
    inputs = {value.name for value in graph.input}
    for tensor in whole.initializer:
        if math.prod(tensor.dims) <= SMALL_ELEMENTS:
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    write_sizes(graph.input, shapes)
    onnx.checker.check_model(bare)
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")  # must be derived by the inference
    return bare


def inferred(model: onnx.ModelProto, strict: bool = True) -> onnx.ModelProto:
    """The graph with the sizes of all tensors as far as they can be derived; raises onnx's errors,
    `strict` also those of an operator whose sizes do not fit."""
    return onnx.shape_inference.infer_shapes(
        model, check_type=True, strict_mode=strict, data_prop=True
    )


def write_sizes(
    values: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Give inputs or outputs these shapes, whatever number of axes they are declared with."""
    for value in values:
        if value.name in shapes:
            kind = value.type.tensor_type.elem_type
            value.type.CopyFrom(onnx.helper.make_tensor_type_proto(kind, shapes[value.name]))


# What a graph says


def bodies(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    """The graphs inside a Loop, If or Scan, by the names of their attributes."""
    return {attribute.name: attribute.g for attribute in node.attribute if attribute.HasField("g")}


def graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """A graph and those in the bodies of its operators."""
    found = [graph]
    for node in graph.node:
        for body in bodies(node).values():
            found += graphs(body)
    return found


def has_branches(model: onnx.ModelProto) -> bool:
    """Whether there is an If in the graph, or in a body."""
    return any(node.op_type == "If" for graph in graphs(model.graph) for node in graph.node)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of an operator by name, with text instead of bytes."""
    value_of = onnx.helper.get_attribute_value
    return {attribute.name: _decoded(value_of(attribute)) for attribute in node.attribute}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def sizes_of(value: onnx.ValueInfoProto) -> tuple[int | None, ...]:
    """Sizes of a tensor of a graph; None for those that are symbolic or not known."""
    return tuple(dim.dim_value or None for dim in value.type.tensor_type.shape.dim)


def known_sizes(graph: onnx.GraphProto) -> dict[str, tuple[int | None, ...]]:
    """`sizes_of` each tensor of a graph without its bodies, as far as its number of axes is
    known."""
    found = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            found[value.name] = sizes_of(value)
    for tensor in graph.initializer:
        found[tensor.name] = tuple(tensor.dims)
    return found


def fit(sizes: Sequence[int | None], others: Sequence[int | None]) -> bool:
    """Whether two shapes can be the same, if sizes of them that are None are not known."""
    pairs = zip(sizes, others, strict=False)
    return len(sizes) == len(others) and all(
        size == other or None in (size, other) for size, other in pairs
    )
