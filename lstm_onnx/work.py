"""How much work an ONNX file describes: counted before anything in it is expanded or computed.

A file of a few kilobytes can describe work without end: local functions that each call another
twice, or loops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lstm_onnx.constants import scanned
from lstm_trt.config.errors import UsageError, any_error, one_line
from lstm_trt.config.libraries import onnx
from lstm_trt.export import onnx_checks
from lstm_trt.export.sizes import bodies, known_sizes

#: Most operators of a network with its local functions expanded, and most passes through its loops
#: in a call.
MOST = 10**6


def read(content: bytes, name: str) -> onnx.ModelProto:
    """`onnx_checks.read`; raises `UsageError` also for a file that describes too much work."""
    model = onnx_checks.parsed(content, name, UsageError)
    with any_error(UsageError, f"{name} is not valid ONNX", one_line):
        functions = {(each.domain, each.name): each for each in model.functions}
        if operators(model.graph, functions, {}) > MOST:
            raise UsageError(
                f"{name} has functions that call themselves, or more than {MOST} operators with"
                " them expanded"
            )
        model = onnx_checks.inlined(model)
        if passes(model.graph, {}) > MOST:
            raise UsageError(f"{name} has loops that never end, or have more than {MOST} passes")
    return model


def operators(
    part: Any, functions: Mapping[tuple[str, str], Any], counted: dict[tuple[str, str], float]
) -> float:
    """Operators of a graph or function with local functions expanded; infinitely many if one of
    these calls itself.

    `counted`: those of functions that are known already, to which others are added.
    """
    total = 0.0
    for node in onnx_checks.nodes(part):
        name = (node.domain, node.op_type)
        if name in functions and name not in counted:
            counted[name] = math.inf  # until it is known
            counted[name] = operators(functions[name], functions, counted)
        total += counted.get(name, 1)
    return total


def passes(graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto]) -> float:
    """Passes through the loops of a graph without functions in a call, as far as the file states
    how often they run.

    `outer`: constants around the graph.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer if not tensor.external_data}
    constants = {**outer, **stored}
    for node in graph.node:
        if node.op_type == "Constant":
            (given,) = node.attribute
            if given.name == "value":
                constants[node.output[0]] = given.t
            elif given.name == "value_int":
                constants[node.output[0]] = onnx.numpy_helper.from_array(np.array(given.i))
    sizes = known_sizes(graph)
    total = 0.0
    for node in graph.node:
        inner = sum(passes(body, constants) for body in bodies(node).values())
        times = scanned(node, sizes) if node.op_type == "Scan" else _times(node, constants)
        total += times * (1 + inner) if times else inner
    return total


def _times(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> float:
    """Passes of a Loop whose condition stays as it is; 0 for others, and if it does not state
    them."""
    body = bodies(node).get("body")
    if node.op_type != "Loop" or body is None:
        return 0
    same = {body.input[1].name}
    same |= {
        each.output[0] for each in body.node if each.op_type == "Identity" and each.input[0] in same
    }
    if body.output[0].name not in same:
        return 0
    if not node.input[0]:
        return math.inf
    return (
        onnx.numpy_helper.to_array(constants[node.input[0]]).item()
        if node.input[0] in constants
        else 0
    )
