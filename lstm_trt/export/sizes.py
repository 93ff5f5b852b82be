"""ONNX graphs at fixed sizes: the sizes of their tensors, and the branches that they take.

Exporters compute sizes inside the graph (PyTorch), keep weights behind Unsqueeze or Slice, and
choose between branches by the number of axes of a tensor. ONNX's shape inference alone derives
little of this, and rejects a graph for a branch that is never taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lstm_trt.config.errors import ExportFailed, UsageError, any_error
from lstm_trt.config.format import listed
from lstm_trt.config.libraries import onnx
from lstm_trt.config.workload import Workload
from lstm_trt.export.limits import check_time

#: Sizes of tensors by name, a number or None each.
Sizes = Mapping[str, Any]

#: Tensors up to this size are sizes and indices, not weights.
SMALL_ELEMENTS = 32

#: The first version of the format in which a constant need not be an input as well.
CONSTANTS_ALONE = 4

#: Operators whose outputs differ from call to call.
RANDOM = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)


def bodies(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    """The graphs inside a Loop, If or Scan, by the names of their attributes."""
    return {attribute.name: attribute.g for attribute in node.attribute if attribute.HasField("g")}


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of an operator by name, with text instead of bytes."""
    found = {
        attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
    }
    return {name: _decoded(value) for name, value in found.items()}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def scanned(node: onnx.NodeProto, known: Sizes) -> int | None:
    """How often a Scan computes its body; None if that is not known."""
    has = attributes(node)
    with suppress(LookupError):  # of an operator that is not valid
        return known[node.input[-has["num_scan_inputs"]]][has.get("scan_input_axes", [0])[0]]
    return None


def graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """A graph and those in the bodies of its operators."""
    return [
        graph,
        *(inner for node in graph.node for body in bodies(node).values() for inner in graphs(body)),
    ]


def sizes_of(value: onnx.ValueInfoProto) -> tuple[int | None, ...]:
    """Sizes of a tensor of a graph; None for those that are symbolic or not known."""
    return tuple(dim.dim_value or None for dim in value.type.tensor_type.shape.dim)


def known_sizes(graph: onnx.GraphProto) -> dict[str, tuple[int | None, ...]]:
    """`sizes_of` each tensor of a graph without its bodies, as far as its number of axes is known."""
    values = (*graph.value_info, *graph.input, *graph.output)
    found = {
        value.name: sizes_of(value) for value in values if value.type.tensor_type.HasField("shape")
    }
    return {**found, **{tensor.name: tuple(tensor.dims) for tensor in graph.initializer}}


def fit(sizes: Sequence[int | None], others: Sequence[int | None]) -> bool:
    """Whether two shapes can be the same, if sizes of them that are None are not known."""
    pairs = zip(sizes, others, strict=False)
    return len(sizes) == len(others) and all(
        one == other or None in (one, other) for one, other in pairs
    )


def symbolic_shapes(model: onnx.ModelProto) -> dict[str, tuple[int | str, ...]]:
    """Input -> its sizes, a number or a symbol each; sizes without a symbol are `INPUT.AXIS`."""
    constants = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name not in constants:
            if not value.type.HasField("tensor_type"):
                others = "sequences, maps and optionals are not supported"
                raise UsageError(f"the input {value.name} is not a tensor: {others}")
            dims = enumerate(value.type.tensor_type.shape.dim)
            found[value.name] = tuple(
                dim.dim_value or dim.dim_param or f"{value.name}.{axis}" for axis, dim in dims
            )
            if any(isinstance(size, int) and size < 0 for size in found[value.name]):
                raise UsageError(
                    f"the input {value.name} has a size below 0: export the network again"
                )
    return found


def write_sizes(
    values: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Give inputs or outputs these shapes, whatever number of axes they are declared with."""
    for value in [value for value in values if value.name in shapes]:
        value.type.CopyFrom(
            onnx.helper.make_tensor_type_proto(value.type.tensor_type.elem_type, shapes[value.name])
        )


def fix_inputs(model: onnx.ModelProto, numbers: Mapping[str, float], name: str = "network") -> None:
    """Make inputs that are single numbers constants of the graph; a symbolic size of such an input
    is 1.

    Raises `UsageError` for an input that does not exist or that cannot be this number.
    """
    known = symbolic_shapes(model)
    inputs = {value.name: value for value in model.graph.input if value.name in known}
    for key, number in numbers.items():
        if key not in inputs:
            raise UsageError(f"{name} has no input {key!r}: its inputs are {listed(list(inputs))}")
        with any_error(UsageError, f"the input {key} of {name} has no known type"):
            kind = onnx.helper.tensor_dtype_to_np_dtype(inputs[key].type.tensor_type.elem_type)
        shape = [size or 1 for size in sizes_of(inputs[key])]
        whole = kind.kind in "iu" and np.can_cast(np.min_scalar_type(number), kind)
        if math.prod(shape) > 1 or not (whole or kind.kind in "fb"):
            raise UsageError(
                f"the input {key} of {name} is not a single {kind.name} that can be {number}"
            )
        model.ir_version = max(model.ir_version, CONSTANTS_ALONE)
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(np.full(shape, number, kind), key)
        )
        model.graph.input.remove(inputs[key])


def has_branches(model: onnx.ModelProto) -> bool:
    """Whether there is an If in the graph, or in a body."""
    return any(node.op_type == "If" for graph in graphs(model.graph) for node in graph.node)


def with_sizes(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], *, fold: bool = True
) -> onnx.ModelProto:
    """The graph with inputs of these shapes, checked, with the sizes of all tensors as far as they
    can be derived.

    Weights are replaced by inputs, so that this takes milliseconds for any size of network. `fold`:
    as by `resolved`; without it less is derived. Raises onnx's errors.
    """
    whole, versions = (
        model.graph,
        {"ir_version": model.ir_version, "opset_imports": model.opset_import},
    )
    graph = onnx.helper.make_graph(whole.node, whole.name, whole.input, whole.output)
    bare = onnx.helper.make_model(graph, functions=model.functions, **versions)
    graph = bare.graph
    known = {value.name for value in graph.input}
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= SMALL_ELEMENTS:  # shape inference reads their values
            graph.initializer.append(tensor)
        elif tensor.name not in known:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    write_sizes(graph.input, shapes)
    onnx.checker.check_model(bare)
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")  # must be derived by the inference
    found = resolved(bare) if fold else bare
    strict = not has_branches(found)  # a branch that is not taken may be invalid at these sizes
    return onnx.shape_inference.infer_shapes(
        found, check_type=True, strict_mode=strict, data_prop=True
    )


def static_model(path: Path, workload: Workload) -> bytes:
    """The network in an ONNX file with the sizes and constants of `workload` written into the
    graph, checked.

    Strict shape inference must not derive other outputs than those of `workload`, which detects a
    size that an exporter fixed inside the graph. An If whose condition is then known is replaced by
    its branch, since runtimes reject a graph for the other one. Raises `ExportFailed`.
    """
    file = f"{getattr(workload, 'name', path.stem)}.onnx"  # that in the cache is called by its hash
    # DecodeError, InferenceError, ValidationError, OSError: all mean an unusable file
    with any_error(ExportFailed, f"{file} cannot be made static at {workload.label}"):
        model = onnx.load(str(path))
        fix_inputs(model, getattr(workload, "constants", {}))
        shapes = {**workload.input_shapes, **workload.output_shapes}
        shapes |= {
            name: state.shape for state in workload.states for name in (state.input, state.output)
        }
        branches = has_branches(model)
        derived = known_sizes(with_sizes(model, shapes, fold=branches).graph)
        for value in model.graph.output:
            expected = shapes[value.name]
            found = derived.get(value.name, expected)
            if not fit(found, expected):
                raise ExportFailed(
                    f"{file} at {workload.label} gives {value.name} of {found}, not {expected}"
                )
        del model.graph.value_info[:]
        write_sizes((*model.graph.input, *model.graph.output), shapes)
        return (resolved(model) if branches else model).SerializeToString()


def resolved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph without the If operators whose condition follows from sizes and constants: their
    branch replaces them.

    Small tensors that follow from sizes and constants become constants. The sizes that the file
    states of inner tensors are ignored: exporters write those of their example there.
    """
    model.ir_version, before = max(model.ir_version, CONSTANTS_ALONE), b""
    for graph in graphs(model.graph):
        del graph.value_info[:]
    while model.SerializeToString() != before:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        before = model.SerializeToString()
        _fold(model.graph, {}, {}, {each.domain: each.version for each in model.opset_import})
    return model


def _fold(
    graph: onnx.GraphProto, outer: Sizes, values: dict[str, Any], opsets: dict[str, int]
) -> None:
    """One pass over a graph and its bodies; `outer` and `values`: the sizes and the small constants
    around it."""
    known, nodes, results = (
        {**outer, **known_sizes(graph)},
        list(graph.node),
        {value.name for value in graph.output},
    )
    small = [tensor for tensor in graph.initializer if math.prod(tensor.dims) <= SMALL_ELEMENTS]
    values = values | {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in small}
    del graph.node[:]
    for node in nodes:
        check_time()
        found = _small_outputs(node, known, values, opsets)
        values |= found
        if node.op_type == "If" and node.input[0] in values:
            _take(
                graph,
                node,
                bodies(node)["then_branch" if values[node.input[0]].all() else "else_branch"],
            )
        elif found and not results & found.keys():
            graph.initializer.extend(
                onnx.numpy_helper.from_array(array, name) for name, array in found.items()
            )
        else:
            for body in bodies(node).values():
                _fold(body, known, values, opsets)
            graph.node.append(node)


def _take(graph: onnx.GraphProto, node: onnx.NodeProto, branch: onnx.GraphProto) -> None:
    """Append the operators of a branch of an If to the graph; their names may be used in other
    branches."""
    made = [tensor.name for tensor in branch.initializer] + [
        name for each in branch.node for name in each.output
    ]
    first = next(filter(None, node.output), "")
    _rename(branch, {name: f"{first}/{name}" for name in made if name})
    graph.initializer.extend(branch.initializer)
    graph.node.extend(branch.node)
    ends = zip(branch.output, node.output, strict=True)
    graph.node.extend(
        onnx.helper.make_node("Identity", [end.name], [name]) for end, name in ends if name
    )


def _small_outputs(
    node: onnx.NodeProto, known: Sizes, values: Mapping, opsets: dict[str, int]
) -> dict[str, Any]:
    """The outputs of an operator of known inputs, or of `Shape` and `Size` at known sizes; empty if
    they are large."""
    if node.op_type in ("Shape", "Size") and None not in known.get(node.input[0], (None,)):
        values = {node.input[0]: np.broadcast_to(np.float32(0), known[node.input[0]])}
    sizes = [known.get(name, (None,)) for name in node.output if name]
    large = any(None in each or math.prod(each) > SMALL_ELEMENTS for each in sizes)
    if node.op_type == "Range" and values.keys() >= {
        *node.input
    }:  # ONNX infers the size of whole numbers only
        large = _elements_of_range(*(float(values[name]) for name in node.input)) > SMALL_ELEMENTS
    if not large and node.op_type not in RANDOM and values.keys() | {""} >= {*node.input}:
        with suppress(Exception):  # any class; an operator that it does not know is left as it is
            found = dict(
                zip(filter(None, node.output), evaluated(node, values, opsets), strict=True)
            )
            if all(
                isinstance(array, np.ndarray) and array.size <= SMALL_ELEMENTS
                for array in found.values()
            ):
                return found
    return {}


def _elements_of_range(start: float, limit: float, delta: float) -> float:
    return (limit - start) / delta if delta else math.inf


def evaluated(node: onnx.NodeProto, values: Mapping, opsets: dict[str, int]) -> list[Any]:
    """The outputs of one operator without a body, by ONNX's reference evaluator; raises any class."""
    from onnx.reference import ReferenceEvaluator

    if bodies(node):
        raise NotImplementedError(f"{node.op_type} is not evaluated: its body may never end")
    ends = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
    evaluator: Any = ReferenceEvaluator(onnx.helper.make_graph([node], "one", [], ends), opsets)
    return evaluator.run(None, values)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for value in (*graph.initializer, *graph.output):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
        for body in bodies(node).values():
            _rename(body, names)
