"""How much work an ONNX file describes: counted before anything in it is expanded or computed.

A file of a few kilobytes can describe work without end: local functions that each call another twice, or loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lstm_trt.config.format import short_number
from lstm_trt.config.libraries import onnx
from lstm_trt.export.sizes import bodies, known_sizes, scanned

#: Most operators of a network with its local functions expanded, and most passes through its loops in a call.
MOST = 10**6


class Work(NamedTuple):
    """Operators with local functions expanded, and passes through loops whose number the file states."""

    operators: float
    passes: float


def refusal(model: onnx.ModelProto) -> str | None:
    """Why a file is too much work; None if it is not. Raises `ValueError` for a function that calls itself."""
    operators, passes = _Counter(model.functions).of_graph(model.graph, {})
    for number, what in ((operators, "operators once its functions are expanded"), (passes, "passes through loops")):
        if number > MOST:
            many = "endlessly many" if math.isinf(number) else short_number(float(number), 3)
            return f"it has {many} {what}: {MOST} are read at most"
    return None


class _Counter:
    """Counts each local function once, however often it is called."""

    def __init__(self, functions: Iterable[onnx.FunctionProto]) -> None:
        self._functions = {(each.domain, each.name): each for each in functions}
        self._counted: dict[tuple[str, str], Work | None] = {}

    def of_graph(self, graph: onnx.GraphProto, outer: Mapping[str, Any]) -> Work:
        """`outer`: the constants around the graph."""
        stored = {tensor.name: number for tensor in graph.initializer for number in _numbers(tensor)}
        return self._of_nodes(graph.node, {**outer, **stored}, known_sizes(graph))

    def _of_nodes(self, nodes: Iterable[onnx.NodeProto], constants: Mapping[str, Any], sizes: Mapping) -> Work:
        constants = {**constants, **_made(nodes)}
        operators = passes = 0.0
        for node in nodes:
            called = (node.domain, node.op_type)
            inner = [self.of_graph(body, constants) for body in bodies(node).values()]
            if called in self._functions:
                inner.append(self._of_function(called))
            repeated = sum(each.passes for each in inner)
            times = _times(node, constants, sizes)
            operators += 1 + sum(each.operators for each in inner)
            passes += repeated if times is None else times * (1 + repeated)
        return Work(operators, passes)

    def _of_function(self, called: tuple[str, str]) -> Work:
        if called not in self._counted:
            self._counted[called] = None
            self._counted[called] = self._of_nodes(self._functions[called].node, {}, {})
        found = self._counted[called]
        if found is None:  # it is being counted
            raise ValueError(f"its local function {called[1]} calls itself")
        return found


def _numbers(tensor: onnx.TensorProto) -> list[Any]:
    """The number or truth value of a tensor that has one; empty for others."""
    single = math.prod(tensor.dims) == 1 and tensor.data_location != onnx.TensorProto.EXTERNAL
    if single and tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.BOOL):
        return onnx.numpy_helper.to_array(tensor).ravel().tolist()
    return []


def _made(nodes: Iterable[onnx.NodeProto]) -> dict[str, Any]:
    """Single numbers that operators `Constant` make, by name."""
    made = [node for node in nodes if node.op_type == "Constant" and node.attribute and node.output]
    return {node.output[0]: number for node in made for number in _numbers(node.attribute[0].t)}


def _times(node: onnx.NodeProto, constants: Mapping[str, Any], sizes: Mapping) -> float | None:
    """How often a loop computes its body; None for other operators, and if it depends on what is computed."""
    if node.op_type == "Scan":
        return scanned(node, sizes)
    body = bodies(node).get("body")
    if node.op_type != "Loop" or body is None:
        return None
    most, goes_on = [*node.input, "", ""][:2]
    within = {**constants, **{tensor.name: number for tensor in body.initializer for number in _numbers(tensor)}}
    within |= _made(body.node)
    condition = body.output[0].name
    copied = {name: each.input[0] for each in body.node if each.op_type == "Identity" for name in each.output}
    condition = copied.get(condition, condition)
    ends = condition != body.input[1].name and not within.get(condition)
    if ends or (goes_on and not constants.get(goes_on)):
        return None
    times = constants.get(most) if most else math.inf
    return None if times is None else max(times, 0)
