"""Constants of a graph: numbers of inputs, what follows from sizes, and the branches that both
decide.

Exporters compute sizes inside the graph (PyTorch), keep weights behind Unsqueeze or Slice, and
choose between branches by the number of axes of a tensor. ONNX's shape inference alone derives
little of this, and rejects a graph for a branch that is never taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from lstm_onnx.limits import check_time
from lstm_trt.config.errors import UsageError, any_error
from lstm_trt.config.format import listed
from lstm_trt.config.libraries import onnx
from lstm_trt.export.onnx_checks import label
from lstm_trt.export.sizes import (
    SMALL_ELEMENTS,
    Sizes,
    attributes,
    bodies,
    graphs,
    has_branches,
    inferred,
    known_sizes,
    sizes_of,
    without_weights,
)

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


def symbolic_shapes(model: onnx.ModelProto) -> dict[str, tuple[int | str, ...]]:
    """Input -> its sizes, a number or a symbol each; sizes without a symbol are `INPUT.AXIS`."""
    constants = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        if not value.type.HasField("tensor_type"):
            raise UsageError(
                f"the input {value.name} is not a tensor: sequences, maps and optionals are not"
                " supported"
            )
        dims = value.type.tensor_type.shape.dim
        if any(dim.dim_value < 0 for dim in dims):
            raise UsageError(f"the input {value.name} has a size below 0: export the network again")
        found[value.name] = tuple(
            dim.dim_value or dim.dim_param or f"{value.name}.{axis}"
            for axis, dim in enumerate(dims)
        )
    return found


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


def with_sizes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """The graph with inputs of these shapes, checked and `resolved`, with the sizes of all tensors
    as far as they can be derived.

    Weights are replaced by inputs, so that this takes milliseconds for any size of network. Raises
    onnx's errors.
    """
    found = resolved(without_weights(model, shapes))
    # A branch that is not taken may be invalid at these sizes.
    return inferred(found, strict=not has_branches(found))


def resolved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph without the If operators whose condition follows from sizes and constants: their
    branch replaces them.

    Small tensors that follow from sizes and constants become constants. The sizes that the file
    states of inner tensors are ignored: exporters write those of their example there.
    """
    model.ir_version = max(model.ir_version, CONSTANTS_ALONE)
    for graph in graphs(model.graph):
        del graph.value_info[:]
    nothing = _Known({}, {}, opsets_of(model))
    before = b""
    while model.SerializeToString() != before:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        before = model.SerializeToString()
        _fold(model.graph, nothing)
    return model


class _Known(NamedTuple):
    """What is known where an operator is: the sizes of tensors, the values of small ones, versions
    of operators."""

    sizes: Sizes
    values: dict[str, np.ndarray]
    opsets: dict[str, int]

    def within(self, graph: onnx.GraphProto) -> _Known:
        """What is known in a graph, which sees what is around it."""
        values = dict(self.values)
        for tensor in graph.initializer:
            if math.prod(tensor.dims) <= SMALL_ELEMENTS:
                values[tensor.name] = onnx.numpy_helper.to_array(tensor)
        return _Known({**self.sizes, **known_sizes(graph)}, values, self.opsets)


def _fold(graph: onnx.GraphProto, outer: _Known) -> None:
    """One pass over a graph and its bodies: constants become initializers, branches that are taken
    operators."""
    known = outer.within(graph)
    returned = {value.name for value in graph.output}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        check_time()
        constants = _constants(node, known)
        known.values.update(constants)
        if node.op_type == "If" and node.input[0] in known.values:
            taken = "then_branch" if known.values[node.input[0]].all() else "else_branch"
            _take(graph, node, bodies(node)[taken])
        elif constants and not returned & constants.keys():
            for name, array in constants.items():
                graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        else:
            for body in bodies(node).values():
                _fold(body, known)
            graph.node.append(node)


def _constants(node: onnx.NodeProto, known: _Known) -> dict[str, np.ndarray]:
    """The outputs of an operator of known inputs, or of Shape and Size at known sizes; empty if
    they are large."""
    values = known.values
    if node.op_type in ("Shape", "Size"):
        sizes = known.sizes.get(node.input[0], (None,))
        if None not in sizes:
            values = {node.input[0]: np.broadcast_to(np.float32(0), sizes)}
    if node.op_type in RANDOM or not values.keys() >= {*filter(None, node.input)}:
        return {}
    # Of any class; an operator that the evaluator does not know is left as it is.
    with suppress(Exception):
        if _is_small(node, known):
            arrays = evaluated(node, values, known.opsets)
            if all(
                isinstance(array, np.ndarray) and array.size <= SMALL_ELEMENTS for array in arrays
            ):
                return dict(zip(filter(None, node.output), arrays, strict=True))
    return {}


def _is_small(node: onnx.NodeProto, known: _Known) -> bool:
    """Whether the outputs of an operator of known inputs are small, before they are computed."""
    if node.op_type == "Range":  # of which ONNX infers the size for whole numbers only
        start, limit, delta = (float(known.values[name]) for name in node.input)
        return (limit - start) / delta <= SMALL_ELEMENTS
    sizes = [known.sizes.get(name, (None,)) for name in node.output if name]
    return all(None not in each and math.prod(each) <= SMALL_ELEMENTS for each in sizes)


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """Domain of operators -> the version of it that the model uses."""
    return {each.domain: each.version for each in model.opset_import}


def stored_values(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Name -> array, of the weights and constants that a graph holds, without those of its
    bodies."""
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}


def evaluated(node: onnx.NodeProto, values: Mapping, opsets: dict[str, int]) -> list[Any]:
    """The outputs of one operator without a body, by ONNX's reference evaluator; raises any
    class."""
    from onnx.reference import ReferenceEvaluator

    if bodies(node):
        raise NotImplementedError(f"{node.op_type} is not evaluated: its body may never end")
    ends = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
    evaluator: Any = ReferenceEvaluator(onnx.helper.make_graph([node], "one", [], ends), opsets)
    return evaluator.run(None, values)


def _take(graph: onnx.GraphProto, node: onnx.NodeProto, branch: onnx.GraphProto) -> None:
    """Append the operators of a branch of an If to the graph; their names may be used in other
    branches."""
    made = [tensor.name for tensor in branch.initializer]
    for inner in branch.node:
        made += filter(None, inner.output)
    first = next(filter(None, node.output), "")
    _rename(branch, {name: f"{first}/{name}" for name in made})
    graph.initializer.extend(branch.initializer)
    graph.node.extend(branch.node)
    for end, name in zip(branch.output, node.output, strict=True):
        if name:
            graph.node.append(onnx.helper.make_node("Identity", [end.name], [name]))


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for value in (*graph.initializer, *graph.output):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
        for body in bodies(node).values():
            _rename(body, names)


def operators(
    graph: onnx.GraphProto, outer: Sizes | None = None, within: str = ""
) -> Iterator[tuple]:
    """All operators, each with the sizes that are known where it is, and the body that it is in."""
    known = {**(outer or {}), **known_sizes(graph)}
    for node in graph.node:
        yield node, known, within
        for name, body in bodies(node).items():
            yield from operators(body, known, f"{label(node)}, {name}")


def scanned(node: onnx.NodeProto, known: Sizes) -> int | None:
    """How often a Scan computes its body; None if that is not known."""
    has = attributes(node)
    with suppress(LookupError):  # of an operator that is not valid
        return known[node.input[-has["num_scan_inputs"]]][has.get("scan_input_axes", [0])[0]]
    return None
