"""The graph of an ONNX model as calls of functions in `kernel.c`, at static sizes, batch 1.

Each operator has a handler in the table of `operators`. Operators that only rename axes (Transpose,
Reshape, Squeeze), take a part (Slice, Gather, Split) or put parts together (Concat, Pad) need no
code: they are evaluated on the addresses of the numbers, and what then does not lie in a row is
copied where a call needs it so. What depends on constants only is evaluated beforehand. Everything
else is refused by name.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import numpy as np

from lstm_onnx.c.moves import BASE
from lstm_onnx.c.node import Node
from lstm_onnx.c.operators import CONDITIONS, HANDLERS, MOVES, SIZES, of_whole_numbers
from lstm_onnx.c.program import FILL, Program
from lstm_onnx.c.rewrites import fold_first_states, fold_normalizations
from lstm_onnx.c.stages import Addresses, Data, Recurrent, Repeat, Value
from lstm_onnx.constants import evaluated, opsets_of, stored_values
from lstm_trt.config.errors import BuildFailed, any_error
from lstm_trt.config.format import listed
from lstm_trt.config.libraries import onnx
from lstm_trt.config.workload import State
from lstm_trt.export.onnx_checks import label, read


def identifier(text: str) -> str:
    """A C identifier for a network: letters, digits and underscores of `text`."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "network"
    return f"n{name}" if name[0].isdigit() else name


def parameter(letter: str, name: str, names: Sequence[str]) -> str:
    """The parameter of an input or output: x or y, with its name if there are several.

    The numbers of the inputs or outputs replace names that are not different in C.
    """
    if len(names) == 1:
        return letter
    different = len({identifier(each) for each in names}) == len(names)
    return f"{letter}_{identifier(name) if different else list(names).index(name)}"


class Reader(Program):
    """One graph with static sizes as stages; `states` are those that are carried.

    A state is that of a recurrent layer, which the layer itself carries; or it is in `kept`, and is
    copied after each call. Raises `BuildFailed` for an operator or attribute that the kernel lacks.
    """

    def __init__(
        self, content: bytes, states: Sequence[State], name: str, kept: Sequence[str] = ()
    ) -> None:
        super().__init__()
        model = read(content, name)
        graph = model.graph
        carried = {state.input: state.output for state in states}
        fold_normalizations(graph)
        firsts = fold_first_states(graph, carried, kept)
        self.opsets.update(opsets_of(model))
        self.carries = bool(states)
        #: States that are not in `kept`, but not those of a recurrent layer either.
        self.others: list[str] = []
        #: Field of the struct with a state in `kept` -> size.
        self.fields: dict[str, int] = {}
        self.uses.update(value.name for value in graph.output)
        for node in graph.node:
            self.uses.update(node.input)
        self.values.update(stored_values(graph))
        #: Parameter of each input, x or x_NAME if there are several, -> its size.
        self.inputs: dict[str, int] = {}
        self._read_inputs(graph, carried, kept)
        self._read_all(graph.node)
        for before, after in carried.items():
            if before not in kept:
                self._carry(
                    before, after, self.values[firsts[before]] if before in firsts else None
                )
        outputs = {state.output for state in states}
        self.output_names = tuple(value.name for value in graph.output if value.name not in outputs)
        #: Parameter of each output -> its base and size.
        self.outputs: dict[str, tuple[int, int]] = {}
        for each in self.output_names:
            self.outputs[parameter("y", each, self.output_names)] = self._output(each)
        self._keep({before: carried[before] for before in kept})

    @classmethod
    def of(cls, content: bytes, states: Sequence[State], name: str) -> Self:
        """The graph, of which all states that no recurrent layer carries are kept."""
        others = cls(content, states, name).others
        return cls(content, states, name, others)

    @property
    def rows(self) -> int:
        """Time steps of the first recurrent layer; 1 without one."""
        for stage in self.stages:
            if isinstance(stage, (Recurrent, Repeat)):
                return stage.rows
        return 1

    def _read_inputs(
        self, graph: onnx.GraphProto, carried: Mapping[str, str], kept: Sequence[str]
    ) -> None:
        given = [value for value in graph.input if value.name not in self.values]
        names = [value.name for value in given if value.name not in carried]
        for value in given:
            kind = value.type.tensor_type.elem_type
            if of_whole_numbers(kind):
                self.whole.add(value.name)
                self.whole_inputs[value.name] = 2
            elif kind != onnx.TensorProto.FLOAT:
                raise BuildFailed(
                    f"the input {value.name} is not float32:"
                    " the C kernel takes that and whole numbers"
                )
            sizes = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            if value.name in kept:
                self.values[value.name] = self._field(sizes)
            elif value.name in carried:
                self.values[value.name] = self.new(f"state {value.name}", sizes)
            else:
                base = parameter("x", value.name, names)
                self.values[value.name] = self.new(base, sizes)
                self.inputs[base] = math.prod(sizes)

    def _field(self, sizes: tuple[int, ...]) -> Addresses:
        """A state in the struct, with channels side by side, as convolutions read them."""
        name = f"s{len(self.fields)}"
        self.fields[name] = math.prod(sizes)
        data = self.new(f"net->{name}", sizes)
        if len(sizes) <= 2:
            return data
        return np.moveaxis(data.reshape(sizes[0], *sizes[2:], sizes[1]), -1, 1)

    def _read_all(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Raises `BuildFailed` with all nodes that are refused, those after the first by kind."""
        unknown: dict[str, list[str]] = defaultdict(list)
        faults: list[str] = []
        lost: set[str] = set()
        for node in nodes:
            kind = _kind(node)
            varies = any(
                isinstance(self.values.get(name), Data) or name in lost for name in node.input
            )
            if varies and kind not in HANDLERS:
                unknown[kind].append(label(node))
            elif lost.isdisjoint(node.input):
                try:
                    with any_error(BuildFailed, f"{label(node)} is not valid"):
                        self.read(node)
                    continue
                except BuildFailed as error:
                    faults.append(str(error))
            lost.update(node.output)
        if unknown:
            first = []
            for one, *more in unknown.values():
                first.append(f"{one} and {len(more)} more" if more else one)
            faults.insert(
                0,
                f"{listed(first)}: the C kernel has {', '.join(HANDLERS)};"
                " compute the rest outside the network",
            )
            faults += [
                f"if the input {name} is a setting, give its value with --value {name}=N"
                for name in self.whole_inputs
                if self.values[name].size == 1
            ]
        if faults:
            raise BuildFailed("; ".join(faults))

    def read(self, proto: onnx.NodeProto) -> None:
        """The outputs of an operator among `values`."""
        for name in proto.input:
            if name and name not in self.values:
                raise BuildFailed(f"{label(proto)}: the C kernel does not compute its input {name}")
        inputs = tuple(self.values[name] if name else None for name in proto.input)
        node = Node(proto, inputs)
        kind = _kind(proto)
        varying = {place for place, value in enumerate(inputs) if isinstance(value, Data)}
        if kind in SIZES or not varying:
            outputs = self.evaluated(proto, inputs)
        elif kind in MOVES and (kind == "Concat" or varying == {0}):
            outputs = self._moved(node)
        else:
            outputs = HANDLERS[kind](self, node)
        self.values.update(zip(proto.output, outputs, strict=False))
        if self._is_whole(node):
            self.whole.update(proto.output)

    def _is_whole(self, node: Node) -> bool:
        """Whether outputs are whole numbers or conditions; raises `BuildFailed` if divided."""
        names = list(node.proto.input)
        if node.kind in CONDITIONS:
            return True
        if node.kind == "Cast":
            return of_whole_numbers(node.has["to"])
        if node.kind == "Where":
            names = names[1:]
        elif node.kind in MOVES and node.kind != "Concat":
            names = names[:1]
        for name in filter(None, names):
            value = self.values[name]
            if name not in self.whole and (
                isinstance(value, Data) or value.dtype.kind not in "biu"
            ):
                return False
        if node.kind in ("Div", "ReduceMean", "AveragePool") and any(
            name in self.whole for name in names
        ):
            raise node.refused(
                "the C kernel does not divide whole numbers: cast them to float32 before"
            )
        return True

    def evaluated(self, proto: onnx.NodeProto, values: Sequence[Value]) -> list[np.ndarray]:
        """The outputs of an operator for inputs of which addresses are moved as numbers are."""
        arrays = [value.view(np.ndarray) if isinstance(value, Data) else value for value in values]
        with any_error(BuildFailed, f"{label(proto)} cannot be evaluated"):
            return evaluated(proto, dict(zip(proto.input, arrays, strict=True)), self.opsets)

    def _moved(self, node: Node) -> list[Addresses]:
        """The outputs of an operator that moves numbers, by their addresses."""
        fill = 0.0
        proto = node.proto
        values = node.inputs
        if node.kind == "Concat":
            values = [self.data(value) for value in values if value is not None]
        if node.kind == "Pad" and node.has.get("mode", "constant") == "constant":
            given = node.get(2)
            fill = float(node.has.get("value", 0.0) if given is None else given.item())
            values = [*values[:2], np.int64(FILL), *values[3:]]
            names = [*proto.input[:2], "fill", *proto.input[3:]]
            proto = onnx.helper.make_node("Pad", names, proto.output, name=proto.name)
        return [self.filled(at, fill) for at in self.evaluated(proto, values)]

    def _carry(self, before: str, after: str, first: Value) -> None:
        """A state that a recurrent layer carries itself, and the constant from which it begins."""
        ends = [self.after.get(address) for address in self.values[before].ravel().tolist()]
        value = self.values[after]
        same = isinstance(value, Data) and ends == value.ravel().tolist()
        if not same or isinstance(first, Data):
            self.others.append(before)
        elif first is not None:
            self.begin_from(first, ends[0])

    def _output(self, name: str) -> tuple[int, int]:
        """The base that holds an output, all of it, and its size."""
        data = self.values.get(name)
        if data is None:
            raise BuildFailed(
                f"the C kernel does not compute the output {name}: leave it out of the network"
            )
        if not isinstance(data, Data):
            raise BuildFailed(f"the output {name} does not depend on the input")
        if name in self.whole:
            raise BuildFailed(
                f"the output {name} is not float32, which is all that C code answers: cast it"
            )
        address = self.address(data)
        size = data.size
        base = address // BASE
        if (base, size) in self.outputs.values() or self.buffers.get(base) != size:
            whole = self.buffer(data.shape).flat[0]
            self.copy_row(address, whole, size)
            base = whole // BASE
        return base, size

    def _keep(self, kept: Mapping[str, str]) -> None:
        """Copy states, input -> output, into the struct, after all of them have been computed."""
        ends = []
        for before, after in kept.items():
            order = np.argsort(self.values[before].ravel())
            ends.append(self.copied(self.data(self.values[after]).ravel()[order]))
        for before, end in zip(kept, ends, strict=True):
            at = self.values[before]
            self.copy_row(end, int(at.min()), at.size)


def _kind(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
