"""The layer table of an engine: the kernels of its program, and the number of launches.

An engine is a small program: kernels, integer operations on the host, and conditional jumps that
form the loop over time steps. With detailed verbosity the builder's log lists its rows, without a
GPU; on a GPU the engine inspector says the same. The rows and their jump targets are read from
there. The iterations of a loop (called turns in the code: limit / step, which are literals of
the program, or the sequence length if it is dynamic) and the launches (one per kernel row and
iteration) are derived.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from lstm_trt.config.format import count, table_lines

LOG_MARK = "Layers:\n"

#: Rows of these kinds are always kernels.
KERNELS = ("kgen", "gemm", "runtime_fusion")

#: Rows that copy a size between host and device during an inference: they synchronize, but are not
#: kernels.
COPIES = re.compile(r"ShapeHostToDevice|copy_d2h|copy_h2d")

#: A tensor in a row of the log, and an operator of the ONNX file in a row.
TENSOR = re.compile(r"\{ Name: (.+?), (?:Location|Dimensions)")
OPERATOR = re.compile(r"\[ONNX Layer: (.*?)\]")


@dataclass(frozen=True)
class LayerRow:
    """One row of the program: `onnx` are the names of its operators in the file, `then` is the
    target of a jump."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scalar: bool
    onnx: tuple[str, ...]
    then: str | None

    @property
    def copies_size(self) -> bool:
        """Whether it copies a size between host and device."""
        return COPIES.search(f"{self.kind} {self.name}") is not None

    @property
    def kernel(self) -> bool:
        """Whether it is launched on the GPU; integer operations on the host have only scalar
        outputs."""
        return self.kind in KERNELS or not (self.scalar or self.copies_size)

    @property
    def what(self) -> str:
        """The row's name without its serial numbers; the operations of a fused kernel, four letters
        each."""
        if self.kind == "gemm":
            return "matrix product"
        return re.sub(r"^__myln?_|_myl\d+_\d+$", "", self.name)


def rows_from_log(lines: Iterable[tuple[str, str]]) -> list[LayerRow]:
    """The program from the messages of the builder; empty if they do not contain one."""
    for _, text in lines:
        if text.startswith(LOG_MARK):
            return rows_of(text)
    return []


def rows_of(text: str) -> list[LayerRow]:
    """The program from what the engine inspector says in lines, as the builder's log has it; empty
    if that has only names."""
    return [_row_of(line) for line in text.splitlines() if line.startswith("Name: ")]


def _row_of(line: str) -> LayerRow:
    head, _, tail = line.partition(", LayerType: ")
    inputs, _, outputs = tail.partition("Outputs: [")
    inputs = inputs.partition("Constants: [")[0]
    outputs = outputs.partition("], TacticName")[0]
    integers = re.findall(r"Dimensions: \[1?\], [^{}]*Datatype: (?:Int|Bool)", outputs)
    jump = re.search(r"JumpTargetThen: (\S+?),", line)
    return LayerRow(
        name=head.removeprefix("Name: "),
        kind=tail.partition(",")[0],
        inputs=tuple(TENSOR.findall(inputs)),
        outputs=tuple(TENSOR.findall(outputs)),
        scalar=len(integers) == outputs.count("{ Name: "),
        onnx=tuple(OPERATOR.findall(line)),
        then=jump[1] if jump else None,
    )


def structure(network) -> dict[str, int]:
    """Loops, recurrences and matrix products of the parsed network, before anything is
    optimized."""
    kinds = [network.get_layer(index).type.name for index in range(network.num_layers)]
    return {
        "layers": len(kinds),
        "loops": kinds.count("TRIP_LIMIT"),
        "recurrences": kinds.count("RECURRENCE"),
        "matrix_products": kinds.count("MATRIX_MULTIPLY"),
    }


@dataclass(frozen=True)
class Loop:
    """The rows from `first` to `last`, which a backward jump repeats: steps of the sequence a turn,
    and number of turns, as far as they are known."""

    first: int
    last: int
    step: int | None
    turns: int | None


class _Program:
    """Values of the integers in a program, as far as literals and the sequence length determine
    them."""

    def __init__(self, rows: list[LayerRow], sequence: int | None) -> None:
        self.rows = rows
        self.sequence = sequence
        self.makers: dict[str, LayerRow] = {}
        for row in rows:
            # A variable that a memset clears and a calculation sets later has the value of the
            # calculation; an `add` increments a loop counter, which starts at the value of the
            # memset.
            made = row.outputs[0] if row.outputs else ""
            before = self.makers.get(made)
            if before is None or (before.kind == "memset" and row.kind != "add"):
                self.makers[made] = row

    def value(self, name: str, depth: int = 0) -> int | None:
        literal = re.match(r"__d\^(M?)(\d+)i(?:32|64)", name)
        if literal:
            return -int(literal[2]) if literal[1] else int(literal[2])
        if name.startswith("host^"):  # copied back from the device: the dynamic size
            return self.sequence
        maker = self.makers.get(name)
        if maker is None or depth > 20:
            return None
        if maker.kind == "memset":
            return 0
        operands = []
        for used in maker.inputs:
            operand = self.value(used, depth + 1)
            if operand is None:
                return None
            operands.append(operand)
        match maker.kind, operands:
            case "copy" | "cast", [first, *_]:
                return first
            case "mul", [first, second]:
                return first * second
            case "div", [first, second] if second:
                return first // second
        return None

    def loops(self) -> list[Loop]:
        """The loops, one per backward jump."""
        places = {row.name: place for place, row in enumerate(self.rows)}
        found = []
        for last, row in enumerate(self.rows):
            first = places.get(row.then or "", last + 1)
            if first <= last and len(row.inputs) == 2:
                counter, limit = row.inputs
                step = self._operand("add", 1, counter, self.rows[first:last], None)
                start = self._operand("copy", 0, counter, self.rows, 0)
                end = self.value(limit)
                turns = None
                if step and end is not None and start is not None:
                    turns = max(0, math.ceil((end - start) / step))
                found.append(Loop(first, last, step, turns))
        return found

    def _operand(
        self, kind: str, place: int, output: str, rows: list[LayerRow], otherwise: int | None
    ) -> int | None:
        """An input of the first row of this kind that makes `output`."""
        for row in rows:
            if row.kind == kind and output in row.outputs:
                return self.value(row.inputs[place])
        return otherwise


def layer_table(
    rows: list[LayerRow], network: dict[str, int], source: str, sequence: int | None = None
) -> dict:
    """The kernels and launches of an inference, as JSON values.

    `network` is the result of `structure`; `sequence` is the number of time steps that is assumed
    for a dynamic loop. `launches` is None if the turns of a loop cannot be derived, or if there is
    no kernel, so that the rows mean something else.
    """
    loops = _Program(rows, sequence).loops()
    kernels = []
    for place, row in enumerate(rows):
        if row.kernel:
            around = [n for n, loop in enumerate(loops) if loop.first <= place <= loop.last]
            kernels.append(
                {
                    "loop": around[0] if around else None,
                    "kind": row.kind,
                    "what": row.what,
                    "onnx": list(row.onnx),
                }
            )
    inside = Counter(kernel["loop"] for kernel in kernels)
    described = [_described(loop, rows, inside[number]) for number, loop in enumerate(loops)]
    launches = None
    if kernels and all(loop.turns is not None for loop in loops):
        in_loops = [loop["kernels_a_turn"] * loop["turns"] for loop in described]
        launches = inside[None] + sum(in_loops)
    return {
        "source": source,
        "network": network,
        "sequence": sequence,
        "loops": described,
        "kernels_outside_loops": inside[None],
        "launches": launches,
        "copies_of_sizes": sum(row.copies_size for row in rows),
        "kernels": kernels,
        "rows": len(rows),
    }


def _described(loop: Loop, rows: list[LayerRow], kernels: int) -> dict:
    """A loop with this number of kernels as JSON values, and the operators of the file in it."""
    operators = {name for row in rows[loop.first : loop.last + 1] for name in row.onnx}
    if not operators:
        # If steps remain after the last turn, only their rows, which follow the loop, name the
        # operator.
        following = [row.onnx for row in rows[loop.last :] if row.onnx]
        operators = set(following[0]) if following else set()
    steps = None
    if loop.turns is not None and loop.step is not None:
        steps = loop.turns * loop.step
    return {
        "onnx": sorted(operators),
        "steps": steps,
        "steps_a_turn": loop.step,
        "turns": loop.turns,
        "kernels_a_turn": kernels,
        "kernels_a_step": kernels / loop.step if loop.step else None,
    }


#: Columns of the table of loops -> key.
LOOP_COLUMNS = {
    "steps": "steps",
    "steps/iteration": "steps_a_turn",
    "iterations": "turns",
    "kernels/iteration": "kernels_a_turn",
    "kernels/step": "kernels_a_step",
}

NO_TABLE = (
    "no layer table: the builder's log has none (was another logger set first?), and there is no"
    " GPU"
)


def render(table: dict | None) -> list[str]:
    """The table as lines of text; one line if there is no table."""
    if table is None:
        return [NO_TABLE]
    network = table["network"]
    loops = table["loops"]
    parsed = [
        count(network["loops"], "loop"),
        count(network["recurrences"], "recurrence"),
        count(network["matrix_products"], "matrix product"),
        count(network["layers"], "layer"),
    ]
    engine = (
        f"engine (read from {table['source']}): {count(len(table['kernels']), 'kernel')} among"
        f" {count(table['rows'], 'row')}, {count(len(loops), 'loop')}"
    )
    lines = [f"network as parsed: {', '.join(parsed)}"]
    if loops:
        lines += [engine, *_loop_lines(loops)]
    else:
        lines.append(f"{engine}: all time steps are unrolled")
    lines += _kernel_lines(table["kernels"])
    lines.append(_launches(table))
    if table["copies_of_sizes"]:
        lines.append(
            f"sizes copied between host and device during an inference: {table['copies_of_sizes']}"
        )
    return lines


def _loop_lines(loops: list[dict]) -> list[str]:
    rows = []
    for number, loop in enumerate(loops, 1):
        texts = []
        for key in LOOP_COLUMNS.values():
            cell = loop[key]
            texts.append(
                "?" if cell is None else f"{cell:.3g}" if key == "kernels_a_step" else str(cell)
            )
        rows.append((str(number), *texts, " ".join(loop["onnx"])))
    return table_lines(("loop", *LOOP_COLUMNS, "operator"), rows, left=("loop",), indent=2)


def _kernel_lines(kernels: list[dict]) -> list[str]:
    header = (
        "loop",
        "rows",
        "kind",
        "kernel (fused kernels: four letters of each operation)",
        "operator",
    )
    rows = []
    for kernel, same in itertools.groupby(kernels):
        loop = "-" if kernel["loop"] is None else str(kernel["loop"] + 1)
        operators = " ".join(kernel["onnx"])
        rows.append((loop, str(len(list(same))), kernel["kind"], kernel["what"][:76], operators))
    return table_lines(header, rows, left=("loop",), indent=2)


def _launches(table: dict) -> str:
    if table["launches"] is None:
        return (
            "launches per inference: unknown, the iterations of a loop are determined at run time"
        )
    counted = f", counted for {table['sequence']} time steps" if table["sequence"] else ""
    terms = [f"{loop['turns']} x {loop['kernels_a_turn']}" for loop in table["loops"]]
    total = " + ".join([str(table["kernels_outside_loops"]), *terms])
    return (
        f"launches per inference (derived{counted}, one per kernel and iteration):"
        f" {table['launches']} = {total}"
    )
