"""The layer table of an engine: the kernels of its program, and the number of launches.

An engine is a small program: kernels, integer operations on the host, and conditional jumps that
form the loop over time steps. With detailed verbosity the builder's log lists its rows, without a
GPU; on a GPU the engine inspector lists the same rows. The rows and their jump targets are read
from there. The iterations of a loop (called turns in the code: limit / step, which are literals of
the program, or the sequence length if it is dynamic) and the launches (one per kernel row and
iteration) are derived.
"""

import itertools
import json
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
    def kernel(self) -> bool:
        """Whether it is launched on the GPU; integer operations on the host have only scalar
        outputs."""
        return self.kind in KERNELS or not (
            self.scalar or COPIES.search(f"{self.kind} {self.name}")
        )

    @property
    def what(self) -> str:
        """The row's name without its serial numbers; the operations of a fused kernel, four letters
        each."""
        if self.kind == "gemm":
            return "matrix product"
        return re.sub(r"^__myln?_|_myl\d+_\d+$", "", self.name)


def rows_from_log(lines: Iterable[tuple[str, str]]) -> list[LayerRow] | None:
    """The program from the messages of the builder; None if they do not contain one."""
    for _, text in lines:
        if text.startswith(LOG_MARK):
            return [_row_from_text(line) for line in text.splitlines() if line.startswith("Name: ")]
    return None


def _row_from_text(line: str) -> LayerRow:
    head, _, tail = line.partition(", LayerType: ")
    before, _, outputs = tail.partition("Outputs: [")
    outputs = outputs.partition("], TacticName")[0]
    integers = re.findall(r"Dimensions: \[1?\], [^{}]*Datatype: (?:Int|Bool)", outputs)
    then = re.search(r"JumpTargetThen: (\S+?),", line)
    return LayerRow(
        name=head.removeprefix("Name: "),
        kind=tail.partition(",")[0],
        inputs=tuple(
            re.findall(
                r"\{ Name: (.+?), (?:Location|Dimensions)", before.partition("Constants: [")[0]
            )
        ),
        outputs=tuple(re.findall(r"\{ Name: (.+?), (?:Location|Dimensions)", outputs)),
        scalar=len(integers) == outputs.count("{ Name: "),
        onnx=tuple(re.findall(r"\[ONNX Layer: (.*?)\]", line)),
        then=then and then[1],
    )


def rows_from_inspector(text: str) -> list[LayerRow] | None:
    """The program from the JSON of the engine inspector; None if that has only names."""
    layers = json.loads(text).get("Layers", [])
    if not layers or not all(isinstance(layer, dict) for layer in layers):
        return None
    return [_row_from_json(layer) for layer in layers]


def _row_from_json(layer: dict) -> LayerRow:
    outputs = layer.get("Outputs", [])
    return LayerRow(
        name=layer.get("Name", ""),
        kind=layer.get("LayerType", ""),
        inputs=tuple(tensor.get("Name", "") for tensor in layer.get("Inputs", [])),
        outputs=tuple(tensor.get("Name", "") for tensor in outputs),
        scalar=all(
            tensor.get("Dimensions") in ([], [1])
            and "Int" in tensor.get("Datatype", "") + tensor.get("Format/Datatype", "")
            for tensor in outputs
        ),
        onnx=tuple(re.findall(r"\[ONNX Layer: (.*?)\]", str(layer.get("Metadata", "")))),
        then=layer.get("JumpTargetThen"),
    )


def structure(network) -> dict[str, int]:
    """Loops, recurrences and matrix products of the parsed network, before anything is optimized."""
    kinds = [network.get_layer(index).type.name for index in range(network.num_layers)]
    return {
        "layers": len(kinds),
        "loops": kinds.count("TRIP_LIMIT"),
        "recurrences": kinds.count("RECURRENCE"),
        "matrix_products": kinds.count("MATRIX_MULTIPLY"),
    }


class _Program:
    """Values of the integers in a program, as far as literals and the sequence length determine
    them."""

    def __init__(self, rows: list[LayerRow], sequence: int | None) -> None:
        self.rows, self.sequence = rows, sequence
        self.makers: dict[str, LayerRow] = {}
        for row in rows:
            # A variable that a memset clears and a calculation sets later has the value of the
            # calculation; an `add` increments a loop counter, which starts at the value of the
            # memset.
            made = row.outputs[0] if row.outputs else ""
            if made not in self.makers or (
                self.makers[made].kind == "memset" and row.kind != "add"
            ):
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
        operands = [
            value for used in maker.inputs if (value := self.value(used, depth + 1)) is not None
        ]
        if not operands or len(operands) < len(maker.inputs):
            return None
        if maker.kind in ("copy", "cast"):
            return operands[0]
        if maker.kind in ("mul", "div") and len(operands) == 2 and operands[1]:
            return operands[0] * operands[1] if maker.kind == "mul" else operands[0] // operands[1]
        return None

    def loops(self) -> list[dict]:
        """The loops, one per backward jump: rows from `first` to `last`, number of turns, and steps
        per turn."""
        places = {row.name: place for place, row in enumerate(self.rows)}
        found = []
        for last, row in enumerate(self.rows):
            first = places.get(row.then or "", last + 1)
            if first > last or len(row.inputs) != 2:
                continue
            counter, limit = row.inputs
            steps = [
                self.value(r.inputs[1])
                for r in self.rows[first:last]
                if r.kind == "add" and counter in r.outputs
            ]
            start = next(
                (
                    self.value(r.inputs[0])
                    for r in self.rows
                    if r.kind == "copy" and counter in r.outputs
                ),
                0,
            )
            end, step = self.value(limit), steps[0] if steps else None
            turns = (
                None
                if not step or end is None or start is None
                else max(0, -(-(end - start) // step))
            )
            found.append({"first": first, "last": last, "step": step, "turns": turns})
        return found


def layer_table(
    rows: list[LayerRow], network: dict[str, int], source: str, sequence: int | None = None
) -> dict:
    """The kernels and launches of an inference, as JSON values.

    `network` is the result of `structure`; `sequence` is the number of time steps that is assumed
    for a dynamic loop. `launches` is None if the turns of a loop cannot be derived.
    """
    loops, kernels = _Program(rows, sequence).loops(), []
    for place, row in enumerate(rows):
        if row.kernel:
            which = next(
                (n for n, loop in enumerate(loops) if loop["first"] <= place <= loop["last"]), None
            )
            kernels.append(
                {"loop": which, "kind": row.kind, "what": row.what, "onnx": list(row.onnx)}
            )
    counted, inside = [], Counter(kernel["loop"] for kernel in kernels)
    for number, loop in enumerate(loops):
        turns, step, body = loop["turns"], loop["step"], inside[number]
        named = [set(row.onnx) for row in rows[loop["first"] : loop["last"] + 1] if row.onnx]
        # If steps remain after the last turn, only their rows, which follow the loop, name the
        # operator.
        named = named or [set(row.onnx) for row in rows[loop["last"] :] if row.onnx][:1]
        counted.append(
            {
                "onnx": sorted(set().union(*named)),
                "steps": None if turns is None else turns * step,
                "steps_a_turn": step,
                "turns": turns,
                "kernels_a_turn": body,
                "kernels_a_step": body / step if step else None,
            }
        )
    known = all(loop["turns"] is not None for loop in counted)
    return {
        "source": source,
        "network": network,
        "sequence": sequence,
        "loops": counted,
        "kernels_outside_loops": inside[None],
        "launches": inside[None] + sum(loop["kernels_a_turn"] * loop["turns"] for loop in counted)
        if known
        else None,
        "copies_of_sizes": sum(bool(COPIES.search(f"{row.kind} {row.name}")) for row in rows),
        "kernels": kernels,
        "rows": len(rows),
    }


def render(table: dict | None) -> list[str]:
    """The table as lines of text; one line if there is no table."""
    if table is None:
        return [
            "no layer table: the builder's log has none (was another logger set first?), and there is no GPU"
        ]
    network, loops = table["network"], table["loops"]
    lines = [
        f"network as parsed: {count(network['loops'], 'loop')}, {count(network['recurrences'], 'recurrence')},"
        f" {count(network['matrix_products'], 'matrix product')}, {count(network['layers'], 'layer')}",
        f"engine (read from {table['source']}): {count(len(table['kernels']), 'kernel')} among"
        f" {count(table['rows'], 'row')}, {count(len(loops), 'loop')}"
        + ("" if loops else ": all time steps are unrolled"),
    ]
    if loops:
        header = (
            "loop",
            "steps",
            "steps/iteration",
            "iterations",
            "kernels/iteration",
            "kernels/step",
            "operator",
        )
        rows = []
        for number, loop in enumerate(loops, 1):
            cells = [
                loop[name]
                for name in ("steps", "steps_a_turn", "turns", "kernels_a_turn", "kernels_a_step")
            ]
            texts = [
                "?" if cell is None else f"{cell:.3g}" if isinstance(cell, float) else str(cell)
                for cell in cells
            ]
            rows.append((str(number), *texts, " ".join(loop["onnx"])))
        lines += table_lines(header, rows, left=("loop",), indent=2)
    header = (
        "loop",
        "rows",
        "kind",
        "kernel (fused kernels: four letters of each operation)",
        "operator",
    )
    rows = []
    for kernel, same in itertools.groupby(table["kernels"]):
        loop = "-" if kernel["loop"] is None else str(kernel["loop"] + 1)
        rows.append(
            (
                loop,
                str(len(list(same))),
                kernel["kind"],
                kernel["what"][:76],
                " ".join(kernel["onnx"]),
            )
        )
    lines += table_lines(header, rows, left=("loop",), indent=2)
    if table["launches"] is None:
        lines.append(
            "launches per inference: unknown, the iterations of a loop are determined at run time"
        )
    else:
        counted = f", counted for {table['sequence']} time steps" if table["sequence"] else ""
        sums = "".join(f" + {loop['turns']} x {loop['kernels_a_turn']}" for loop in loops)
        lines.append(
            f"launches per inference (derived{counted}, one per kernel and iteration): {table['launches']}"
            f" = {table['kernels_outside_loops']}{sums}"
        )
    if table["copies_of_sizes"]:
        lines.append(
            f"sizes copied between host and device during an inference: {table['copies_of_sizes']}"
        )
    return lines
