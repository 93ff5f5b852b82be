"""Which whole numbers an input can be: what follows from where it goes in the graph.

An input of whole numbers or truth values is an index, a length, a mask, a size or a decision. With
any numbers, a network would fail, or take the time of another one: an LSTM whose sequences have
length 0 is left at once. So numbers that the uses of an input suggest are tried: the operators
between are evaluated for the least and the greatest, and the first range is taken with which every
use gets what it needs. If there is none, only the user knows the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lstm_onnx.constants import evaluated, operators, opsets_of, stored_values
from lstm_onnx.limits import check_time
from lstm_trt.config.libraries import onnx
from lstm_trt.export.onnx_checks import RECURRENT, label
from lstm_trt.export.sizes import Sizes, attributes, bodies

#: Places of inputs that are sizes, positions or numbers of repetitions, or decide what is computed.
DECISIONS = {
    "Loop": (0, 1),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
    **dict.fromkeys(("ConstantOfShape", "If"), (0,)),
    **dict.fromkeys(
        ("Expand", "OneHot", "Pad", "Reshape", "Split", "Tile", "TopK", "Unsqueeze"), (1,)
    ),
}

#: Operators whose second input has indices along an axis of the first, or along its first axes.
INDEXED = ("Gather", "GatherElements", "ScatterElements")
INDEXED_BY_ROWS = ("GatherND", "ScatterND")
INDEXING = (*INDEXED, *INDEXED_BY_ROWS)

COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")

#: Operators whose results are sizes, or valid indices, whatever the numbers are.
ENDS = ("ArgMax", "ArgMin", "NonZero", "Shape", "Size", *RECURRENT)


#: What is said of an input of lengths.
LENGTHS = "lengths"


class Use(NamedTuple):
    """A tensor of which an operator needs numbers from `low` to `high`; None: numbers that only the
    user knows.

    `lengths`: they are the lengths of sequences; if not `certain`, they are compared with the
    positions in sequences.
    """

    operator: str
    tensor: str
    low: int | None = None
    high: int | None = None
    lengths: bool = False
    certain: bool = True


class InputValues:
    """A network with known sizes; its inputs have `name`, `type` and `shape`, and its weights are
    inputs, too."""

    def __init__(self, model: onnx.ModelProto, inputs: Sequence[Any]) -> None:
        self._inputs = {each.name: each for each in inputs}
        self._opsets = opsets_of(model)
        self._constants = stored_values(model.graph)
        self._makers: dict[str, onnx.NodeProto] = {}
        self._uses: list[Use] = []
        # Tensor -> the inputs from which it is computed without weights.
        self._sources = {name: {name} for name in self._inputs}
        weights = {each.name for each in model.graph.input} - self._inputs.keys()
        for node, known, _ in operators(model.graph):
            sources: set[str] = set()
            if node.op_type not in ENDS and weights.isdisjoint(node.input):
                sources.update(*(self._sources.get(name, ()) for name in node.input))
            made = list(node.output)
            for body in bodies(node).values():
                made += [value.name for value in body.input]
            self._makers.update(dict.fromkeys(made, node))
            self._sources.update(dict.fromkeys(made, sources))
            if node.op_type == "TopK":  # its indices are valid
                self._sources[node.output[1]] = set()
            self._uses += _uses(node, known)

    def meanings(self) -> dict[str, tuple[tuple[int, int] | None, str | None]]:
        """Input of whole numbers or truth values -> its range, None if only the user knows it, and
        what it is.

        That is `LENGTHS`, or the operator that needs what the user knows.
        """
        found: dict[str, Any] = {}
        whole = [each for each in self._inputs.values() if np.dtype(each.type).kind in "iub"]
        assumed = {each.name: np.ones(each.shape, each.type) for each in whole}
        for each in (*whole, *whole):  # once more, since they can depend on each other
            uses = [use for use in self._uses if each.name in self._sources.get(use.tensor, ())]
            certain = [use for use in uses if use.certain]
            if math.prod(each.shape) > max(each.shape, default=1):  # not one for each sequence
                uses = certain
            drawn = self._first(each, uses, assumed) or self._first(each, certain, assumed)
            if drawn:
                low, high = drawn
                lengths = low == high and any(use.lengths for use in uses)
                found[each.name] = drawn, LENGTHS if lengths else None
                assumed[each.name] = np.full(each.shape, high, each.type)
            elif certain:
                found[each.name] = None, certain[0].operator
        return found

    def _first(
        self, tensor: Any, uses: Sequence[Use], assumed: Mapping[str, np.ndarray]
    ) -> tuple[int, int] | None:
        """The first range of an input with whose least and greatest number these uses get what they
        need."""
        sizes = [size for each in self._inputs.values() for size in each.shape]
        for drawn in _tried(uses, sizes):
            check_time()
            if tensor.type == "bool" and max(drawn) > 1:
                continue
            ends = [
                {**assumed, tensor.name: np.full(tensor.shape, number, tensor.type)}
                for number in dict.fromkeys(drawn)
            ]
            if all(_fits(use, [self.value(use.tensor, arrays) for arrays in ends]) for use in uses):
                return drawn
        return None

    def value(self, tensor: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """A tensor for these inputs; None if it needs others, or weights, or if ONNX's evaluator
        fails."""
        try:
            return self._value(tensor, {**self._constants, **arrays})
        except Exception:  # of any class
            return None

    def _value(self, tensor: str, known: dict[str, Any]) -> np.ndarray:
        if tensor not in known:
            node = self._makers[tensor]
            needed = {name: self._value(name, known) for name in node.input if name}
            known |= zip(
                filter(None, node.output), evaluated(node, needed, self._opsets), strict=True
            )
        return known[tensor]


def _fits(use: Use, found: Sequence[np.ndarray | None]) -> bool:
    """Whether an operator gets what it needs; a size or a decision must be the same for all numbers
    of an input."""
    if use.low is None or use.high is None:
        return len(found) == 1
    return all(
        array is not None and ((use.low <= array) & (array <= use.high)).all() for array in found
    )


def _uses(node: onnx.NodeProto, known: Sizes) -> Iterator[Use]:
    """What an operator needs of its inputs."""
    kind = node.op_type
    has = attributes(node)
    name = label(node)
    given = dict(enumerate(node.input))
    sizes = known.get(given.get(0, "")) or (None, None)
    if kind.endswith(tuple(RECURRENT)) and given.get(4):
        steps = sizes[1 if has.get("layout") else 0]
        yield Use(name, given[4], steps, steps, lengths=True)
    for place in DECISIONS.get(kind, ()):
        if given.get(place):
            yield Use(name, given[place])
    if kind in INDEXED:
        sizes = sizes[has.get("axis", 0) :][:1]
    if kind in INDEXING:
        rows = min((size or 1 for size in sizes), default=1)
        yield Use(name, given[1], -rows, rows - 1)
    if kind in COMPARISONS:
        yield from _compared(node, known)


def _compared(node: onnx.NodeProto, known: Sizes) -> Iterator[Use]:
    """If more numbers stand on one side of a comparison, they may be the positions in sequences of
    these lengths."""
    sizes = {name: [size or 1 for size in known.get(name, ())] for name in node.input}
    few, many = sorted(node.input, key=lambda name: math.prod(sizes[name]))
    if math.prod(sizes[few]) < math.prod(sizes[many]):
        steps = max(sizes[many])
        yield Use(label(node), few, steps - 1, steps, lengths=True, certain=False)


def _tried(uses: Sequence[Use], sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges that uses suggest.

    Of indices all rows, those without the first or the last, which may stand for padding, and a
    half, a quarter and so on. Where lengths are needed, single numbers: these, the sizes of inputs,
    and whether a sample counts.
    """
    tops = [use.high for use in uses if use.high is not None and not use.lengths]
    top = min(tops, default=0)
    if tops:
        yield from ((0, top), (min(1, top), top), (0, max(top - 1, 0)), (0, top // 2))
    steps = [use.high for use in uses if use.lengths and use.high is not None]
    if steps:
        for number in dict.fromkeys([*steps, *sorted(sizes, reverse=True), 1, 0]):
            yield number, number
    while top > 1:
        top //= 2
        yield 0, top // 2
