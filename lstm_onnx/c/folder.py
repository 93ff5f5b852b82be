"""What lies beside the C file of a network: a test with known answers, and files for CMake."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lstm_onnx.c.file import LICENCE, CFile, text_of
from lstm_onnx.c.statements import c_number
from lstm_trt.store import files

#: Precision -> share of the largest output by which code may differ from the same arithmetic in
#: float64. Correct code is below 1e-6; in int8, where a state between two whole numbers may become
#: the other one, up to 2.6e-4 was seen.
LARGEST_ERROR = {"fp32": 1e-5, "bf16": 1e-5, "int8": 1e-3}

#: Calls of a function of which the test has the answers at most, and numbers of these; a call is
#: always tested.
CALLS = {"run": 4, "run_n": 4, "step": 64}
MOST_NUMBERS = 2**16


@dataclass(frozen=True)
class Answers:
    """Inputs of some calls of a function, in float32, and their outputs in float64, by name.

    After `calls_of_a_sequence` the state is reset; with 0 it is carried through all of them.
    `count`: the function's last argument, if it has one.
    """

    function: str
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    calls_of_a_sequence: int
    count: int = 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Those of all outputs, which the last call of a sequence has."""
        return {name: array.shape for name, array in self.outputs[-1].items()}

    @property
    def scale(self) -> float:
        """The largest absolute value of an output; NaN if one is."""
        largest = []
        for call in self.outputs:
            largest += [np.abs(array).max() for array in call.values()]
        return float(np.max(largest))


#: Files for the whole folder, which are written where there are none.
COMMON = ("CMakeLists.txt", "README.md")


def write(file: CFile, answers: Sequence[Answers], folder: str | Path) -> list[Path]:
    """Write all files of a network; returns their paths. Without known answers there is no test."""
    paths = file.write(folder)
    flags = " ".join(file.compile_flags[1:])  # the standard is a property, which C++ does not have
    beside = {
        f"{file.name}.network.cmake": text_of(
            "network.cmake.in", name=file.name, flags=flags, licence=LICENCE
        )
    }
    if answers:
        beside[f"{file.name}_test.c"] = self_test(file, answers)
    for name in COMMON:
        if not Path(folder, name).exists():
            beside[name] = text_of(f"{name}.in")
    return [
        *paths,
        *(files.put(Path(folder, name), text.encode()) for name, text in beside.items()),
    ]


def self_test(file: CFile, every: Sequence[Answers]) -> str:
    """The content of NAME_test.c."""
    bound = f"{LARGEST_ERROR[file.precision] * every[0].scale + 1e-30:.3g}"
    arrays = ""
    parts = ""
    for answers in every:
        known, part = _tested(file, answers, bound)
        arrays += known
        parts += part
    load = ""
    weights = f"{file.name}_weights"
    if not file.included:
        load = text_of("load.c.in", name=file.name, aligned=file.aligned)
        weights = "weights"
    return text_of(
        "test.c.in",
        name=file.name,
        command=f"cc {' '.join(file.compile_flags)} {file.name}.c {file.name}_test.c",
        bound=bound,
        licence=LICENCE,
        arrays=arrays,
        parts=parts,
        load=load,
        weights=weights,
    )


def _tested(file: CFile, answers: Answers, bound: str) -> tuple[str, str]:
    """The arrays of known answers of one function, and the statements that compare them."""
    function = answers.function
    period = answers.calls_of_a_sequence
    arguments = file.arguments(function)
    calls = max(
        1, min(CALLS[function], len(answers.inputs), MOST_NUMBERS // sum(arguments.values()))
    )
    names = [*answers.inputs[0], *file.reader.output_names]
    known = ""
    compare = ""
    parameters = []
    for (parameter, size), name in zip(arguments.items(), names, strict=True):
        array = f"{function}_{parameter}"
        if parameter.startswith("x"):
            known += _table(array, [each[name] for each in answers.inputs[:calls]], size)
            parameters.append(f"{array}[call]")
            continue
        rows = [each.get(name) for each in answers.outputs[:calls]]
        known += f"{_table(f'{array}_right', rows, size)}static float {array}[{size}];\n"
        parameters.append(array)
        last = ""
        # Without an axis of time it is known after the last call of a sequence.
        if len(rows) > 1 and rows[0] is None:
            last = f"call % {period} == {period - 1} && "
        compare += text_of("test_output.c.in", array=array, size=size, last=last)
    reset = ""
    if period:
        reset = f"            if (call % {period} == 0)\n                {file.name}_reset(&net);\n"
    if function == "step" and file.prepares:
        reset += f"            if (call % 2)\n                {file.name}_prepare_next(&net);\n"
    if answers.count:
        parameters.append(str(answers.count))
    part = text_of(
        "test_function.c.in",
        name=file.name,
        function=function,
        calls=calls,
        reset=reset,
        arguments=", ".join(parameters),
        compare=compare,
        bound=bound,
    )
    return known, part


def _table(name: str, rows: Sequence[np.ndarray | None], size: int) -> str:
    """A constant array in C with a row for each call; what is not known is 0."""
    lines = []
    for row in rows:
        values = np.zeros(size) if row is None else row.ravel()
        lines.append("{" + ", ".join(map(c_number, values.tolist())) + "}")
    table = ",\n".join(lines)
    return f"static const float {name}[{len(rows)}][{size}] = {{\n{table}}};\n"
