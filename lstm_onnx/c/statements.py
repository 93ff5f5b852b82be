"""The stages of a network as calls of kernel functions in C, and places of their buffers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lstm_onnx.c.moves import BASE, Loop
from lstm_onnx.c.reader import Reader
from lstm_onnx.c.stages import (
    Binary,
    Call,
    Copy,
    Dense,
    End,
    Layer,
    Pointwise,
    Recurrent,
    Repeat,
    Stage,
)
from lstm_onnx.c.weights import TILE, Weights

#: Columns up to which a dense layer is computed as separate dot products.
FEW_COLUMNS = 4

#: Time steps of which `kernel.c` computes the input's products at once.
CHUNK = 24

#: A helper's part of a layer, in C.
_PART = """static void {name}_part(\
const struct lstm_trt_work *to, int part, const struct lstm_trt_work *from)
{{
    products({sizes}, to, part, from);
}}
"""


@dataclass
class Pass:
    """`run` or `step`: statements, functions that they call, floats needed in the struct.

    `copied`: those of which a helper has a copy.
    """

    reader: Reader
    weights: Weights
    threads: int
    functions: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    buffer: int = 0
    gates: int = 0
    copied: int = 0

    @classmethod
    def of(cls, reader: Reader, weights: Weights, threads: int) -> Pass:
        """The statements of a graph; its constants and matrices are added to the weights."""
        made = cls(reader, weights, threads)
        for base, values in reader.constants.items():
            reader.bases[base] = f"w + {weights.add(values)}"
        for stage in reader.stages:
            statement = _STATEMENTS[type(stage)]
            made.lines.append(
                statement(made, stage, reader.place(stage.x), reader.bases[stage.y // BASE])
            )
        places, made.buffer = _buffers(reader, weights.unit)
        pointers = {base: f"net->buffer + {place}" for base, place in places.items()}
        for name, (base, _) in reader.outputs.items():
            pointers[base] = name
        made.lines[:0] = [
            f"float *{reader.bases[base]} = {pointer};" for base, pointer in pointers.items()
        ]
        return made

    @property
    def arguments(self) -> dict[str, int]:
        """Inputs and outputs: parameter -> size."""
        return {
            **self.reader.inputs,
            **{name: size for name, (_, size) in self.reader.outputs.items()},
        }

    def _recurrent(self, stage: Recurrent, x: str, y: str) -> str:
        layer = self.reader.layers[stage.layer]
        h = f"net->h{stage.layer}"
        c = f"net->c{stage.layer}"
        to = f"{y} + {stage.y % BASE}"
        part = f"{layer.kind}, {layer.features}, {layer.units}, {stage.rows}"
        if self.weights.row_major:
            kept = c if layer.kind in KEEP_C else "0"
            return (
                f"recurrent({part}, {int(stage.reverse)}, {x}, w + {layer.offset}, {h}, {kept},"
                f" {to}, {stage.width});"
            )
        bits = self.weights.bits[not layer.bounded]
        part = f"{bits}, {part}"
        sizes = f"{part}, {int(stage.reverse)}"
        name = re.sub(r"\W+", "_", f"layer_{sizes.lower()}_{stage.width}")
        parameters = (
            "const float *x, const float *w, const float *sums,"
            " float *h, float *c, float *gates, float *y"
        )
        inside = ""
        outside = ""
        if self.threads > 1:
            inside = f", team, {name}_part, own"
            outside = ", &net->team, net->own"
            parameters += ", struct lstm_trt_team *team, float *own"
            self.functions[f"{name}_part"] = _PART.format(name=name, sizes=part)
        self.functions[name] = (
            f"static void {name}({parameters})\n{{\n"
            f"    recurrent({sizes}, x, w, sums, h, c, gates, y, {stage.width}{inside});\n}}\n"
        )
        self._reserve(layer, stage.rows, bits)
        prepared = "0" if stage.layer in self.reader.given else f"PREPARED({stage.layer})"
        return f"{name}({x}, w + {layer.offset}, {prepared}, {h}, {c}, net->gates, {to}{outside});"

    def _reserve(self, layer: Layer, rows: int, bits: int) -> None:
        """Memory for the gates of a layer, and for what its helpers copy."""
        rows = min(rows, CHUNK)
        columns = len(self.weights.gates(layer.weights[2], layer.gates))
        inputs = layer.features
        if bits == 8:
            inputs = rounded_up(inputs, self.weights.length) // 2 + 1
            columns += inputs
        self.gates = max(self.gates, rows * columns + self.weights.length)
        self.copied = max(self.copied, rows * inputs + rounded_up(layer.units, self.weights.length))

    def _dense(self, stage: Dense, x: str, y: str) -> str:
        k, columns = stage.matrix.shape
        weights = self.weights
        if columns <= FEW_COLUMNS or weights.row_major:
            matrix = weights.add(weights.vector(stage.matrix).T)
            function = "dots("
        else:
            matrix = weights.add(weights.matrix(stage.matrix.T, TILE))
            function = f"dense({weights.bits[1]}, "
        bias = weights.add(weights.vector(stage.bias))
        return (
            f"{function}{stage.rows}, {k}, {columns}, {x}, {stage.stride},"
            f" w + {matrix}, w + {bias}, {y}, {columns});"
        )

    def _pointwise(self, stage: Pointwise, x: str, y: str) -> str:
        a, b = (*(c_number(each, self.weights.row_major) for each in stage.parameters), "0", "0")[
            :2
        ]
        return f"POINTWISE({stage.function}, {stage.size}, {x}, {y}, {a}, {b});"

    def _binary(self, stage: Binary, x: str, y: str) -> str:
        count = stage.size // stage.rows
        stride = 0 if stage.repeated else count
        other = self.reader.place(stage.other)
        return f"BINARY({stage.function}, {stage.rows}, {count}, {x}, {other}, {stride}, {y});"

    def _copy(self, stage: Copy, x: str, y: str) -> str:
        """Loops around adjacent numbers, or around single ones."""
        *around, last = stage.loops or (Loop(1, 0, 0),)
        y = f"{y} + {stage.y % BASE}"
        adjacent = (last.read, last.write) == (1, 1)
        begin = ""
        for number, loop in enumerate(around if adjacent else (*around, last)):
            begin += f"for (int i{number} = 0; i{number} < {loop.count}; i{number}++) "
            x += f" + i{number} * {loop.read}"
            y += f" + i{number} * {loop.write}"
        return f"{begin}memcpy({y}, {x}, {4 * last.count if adjacent else 4});"

    def _call(self, stage: Call, x: str, y: str) -> str:
        arguments = (*map(str, stage.numbers), x, *map(self.reader.place, stage.others), y)
        return f"{stage.function}({', '.join(arguments)});"

    def _repeat(self, stage: Repeat, x: str, y: str) -> str:
        return f"for (int t = 0; t < {stage.rows}; t++) {{"

    def _end(self, stage: End, x: str, y: str) -> str:
        return "}"


#: Kind of stage -> its statements.
_STATEMENTS: dict[type[Stage], Callable[[Pass, Any, str, str], str]] = {
    Recurrent: Pass._recurrent,
    Dense: Pass._dense,
    Pointwise: Pass._pointwise,
    Binary: Pass._binary,
    Copy: Pass._copy,
    Call: Pass._call,
    Repeat: Pass._repeat,
    End: Pass._end,
}

#: Kinds of layers with a second vector beside the state h in `kernel_generic.c`.
KEEP_C = ("LSTM", "RESET")


def rounded_up(size: int, unit: int) -> int:
    """The smallest multiple of `unit` that is at least `size`."""
    return -(-size // unit) * unit


def c_number(value: float, plain: bool = False) -> str:
    """A float constant in C; `plain`: by `math.h`, where it is no number."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        infinity = "INFINITY" if plain else "__builtin_inff()"
        return infinity if value > 0 else f"-{infinity}"
    return f"{np.float32(value)!s}f"


def _buffers(reader: Reader, unit: int) -> tuple[dict[int, int], int]:
    """Base -> place of each buffer in floats, and the size of all: places are used again."""
    outputs = [base for base, _ in reader.outputs.values()]
    last = {
        address // BASE: number
        for number, stage in enumerate(reader.stages)
        for address in stage.reads
    }
    free: list[tuple[int, int]] = []
    places: dict[int, tuple[int, int]] = {}
    total = 0
    for number, stage in enumerate(reader.stages):
        writes = stage.y // BASE
        if writes in reader.buffers and writes not in places and writes not in outputs:
            needed = rounded_up(reader.buffers[writes], unit)
            fitting = min((entry for entry in free if entry[0] >= needed), default=None)
            if fitting:
                free.remove(fitting)
            else:
                fitting = (needed, total)
                total += needed
            places[writes] = fitting
        reads = {address // BASE for address in stage.reads}
        free += [places[base] for base in reads if last[base] == number and base in places]
    return {base: place for base, (_, place) in places.items()}, total
