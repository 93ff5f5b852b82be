"""What lies beside the C file of a network: a test with known answers, and files to build all networks of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lstm_onnx.c.file import LICENCE, CFile
from lstm_onnx.c.statements import c_number
from lstm_trt.store import files

#: Precision -> share of the largest output by which code may differ from the same arithmetic in float64. Correct code
#: is below 1e-6; in int8, where a state between two whole numbers may become the other one, up to 2.6e-4 was seen.
LARGEST_ERROR = {"fp32": 1e-5, "bf16": 1e-5, "int8": 1e-3}

#: Calls of a function of which the test has the answers at most, and numbers of these; a call is always tested.
CALLS = {"run": 4, "run_n": 4, "step": 64}
MOST_NUMBERS = 2**16


@dataclass(frozen=True)
class Answers:
    """Inputs of some calls of a function, in float32, and their outputs in float64 or None, both by name.

    After `calls_of_a_sequence` the state is reset; with 0 it is carried through all of them. `count`: the function's
    last argument, if it has one.
    """

    function: str
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    calls_of_a_sequence: int
    count: int = 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Those of all outputs, which the last call of a sequence has."""
        return {name: array.shape for name, array in self.outputs[self.calls_of_a_sequence - 1].items()}

    @property
    def scale(self) -> float:
        """The largest absolute value of an output."""
        return float(max(np.abs(array).max() for call in self.outputs for array in call.values() if array is not None))


TEST = """/* {command} -o {name}_test && ./{name}_test

   Calls the functions of {name} with random numbers and compares their outputs with those of the ONNX model in float64,
   also those of {name}_step with what the window gives for each sample. Prints the largest errors; the exit status is 1
   if one is above {bound}. {licence} */

#include "{name}.h"
#include <stdio.h>

static struct {name} net;
{arrays}
int main(void)
{{
    int wrong = 0;
{load}    int status = {name}_init(&net, {weights});
    if (status) {{
        fprintf(stderr, "{name}_init returned %d, see {name}.h\\n", status);
        return 1;
    }}
{parts}    return wrong;
}}
"""

PART = """    {{
        double largest = 0;
        for (int call = 0; call < {calls}; call++) {{
{reset}            {name}_{function}(&net, {arguments});
{compare}        }}
        printf("{name}_{function}: largest error %g, allowed {bound}\\n", largest);
        wrong |= !(largest <= {bound});
    }}
"""

COMPARE = """            for (int i = 0; {last}i < {size}; i++) {{
                double error = (double){array}[i] - (double){array}_right[call][i];
                error = error < 0 ? -error : error;
                largest = error <= largest ? largest : error; /* a NaN is the largest */
            }}
"""

LOAD = """    static {aligned}float weights[{name}_WEIGHTS];
    FILE *file = fopen("{name}.bin", "rb");
    if (!file || fread(weights, sizeof weights, 1, file) != 1) {{
        fprintf(stderr, "cannot read {name}.bin in this folder\\n");
        return 1;
    }}
    fclose(file);
"""

CMAKE = """# The library {name}, and its test where it has one and the option LSTM_TRT_TESTS is on.
# {licence}
set(lstm_trt_sources ${{CMAKE_CURRENT_LIST_DIR}}/{name}.c ${{CMAKE_CURRENT_LIST_DIR}}/{name}_test.c)
get_property(lstm_trt_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if(NOT C IN_LIST lstm_trt_languages)
  set_source_files_properties(${{lstm_trt_sources}} PROPERTIES LANGUAGE CXX)
endif()
add_library({name} STATIC ${{CMAKE_CURRENT_LIST_DIR}}/{name}.c)
set_target_properties({name} PROPERTIES C_STANDARD 99)
if(NOT MSVC)
  target_compile_options({name} PRIVATE {flags})
endif()
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_LIST_DIR}})
option(LSTM_TRT_TESTS "Build the tests of generated networks" OFF)
if(LSTM_TRT_TESTS AND EXISTS ${{CMAKE_CURRENT_LIST_DIR}}/{name}_test.c)
  add_executable({name}_test ${{CMAKE_CURRENT_LIST_DIR}}/{name}_test.c)
  target_link_libraries({name}_test {name})
  add_test(NAME {name}_test COMMAND {name}_test WORKING_DIRECTORY ${{CMAKE_CURRENT_LIST_DIR}})
endif()
"""

#: Files for the whole folder, which are written where there are none.
COMMON = {
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.13)
project(networks C)
option(LSTM_TRT_TESTS "Build the tests of generated networks" ON)
enable_testing()
file(GLOB networks ${CMAKE_CURRENT_SOURCE_DIR}/*.network.cmake)
foreach(network ${networks})
  include(${network})
endforeach()
""",
    "README.md": """# Networks as C code

Each network NAME has these files:

| file | content |
| --- | --- |
| NAME.c, NAME.h | the code and its interface; the head says what the network is, its memory, and how to compile it |
| NAME.bin | the weights, if they are not in NAME.c |
| NAME_test.c | a test with known answers; its first line is the command that compiles and runs it |
| NAME.network.cmake | the library NAME and its test for CMake |

Build all of them and run their tests, on the processor that they are for:

    cmake -S . -B build && cmake --build build && ctest --test-dir build

In a project of your own, in C or C++: `include(PATH/NAME.network.cmake)`, then `target_link_libraries(PROGRAM NAME)`;
the tests are built with `-DLSTM_TRT_TESTS=ON`. NAME.h says what each function does: NAME_init first, then NAME_step for
each sample, or NAME_run for a window. Generated code may be used, changed and passed on without any condition.
""",
}


def write(file: CFile, answers: Sequence[Answers], folder: str | Path) -> list[Path]:
    """Write all files of a network; returns their paths. Without known answers there is no test."""
    paths = file.write(folder)
    flags = " ".join(file.compile_flags[1:])  # the standard is a property, which C++ does not have
    beside = {f"{file.name}.network.cmake": CMAKE.format(name=file.name, flags=flags, licence=LICENCE)}
    if answers:
        beside[f"{file.name}_test.c"] = self_test(file, answers)
    beside |= {name: text for name, text in COMMON.items() if not Path(folder, name).exists()}
    return [*paths, *(files.put(Path(folder, name), text.encode()) for name, text in beside.items())]


def self_test(file: CFile, every: Sequence[Answers]) -> str:
    """The content of NAME_test.c."""
    bound = f"{LARGEST_ERROR[file.precision] * every[0].scale + 1e-30:.3g}"
    tested = [_tested(file, answers, bound) for answers in every]
    return TEST.format(
        name=file.name,
        command=f"cc {' '.join(file.compile_flags)} {file.name}.c {file.name}_test.c",
        bound=bound,
        licence=LICENCE,
        arrays="".join(arrays for arrays, _ in tested),
        parts="".join(part for _, part in tested),
        load=""
        if file.included
        else LOAD.format(name=file.name, aligned="" if file.target.plain else "LSTM_TRT_ALIGNED "),
        weights=f"{file.name}_weights" if file.included else "weights",
    )


def _tested(file: CFile, answers: Answers, bound: str) -> tuple[str, str]:
    """The arrays of known answers of one function, and the statements that compare them."""
    function = answers.function
    shapes = answers.shapes
    arguments = file.passes["run" if function == "run_n" else function].arguments
    calls = max(1, min(CALLS[function], len(answers.inputs), MOST_NUMBERS // sum(arguments.values())))
    names = [*answers.inputs[0], *file.reader.output_names]
    text = ""
    compare = ""
    parameters = []
    for (parameter, size), name in zip(arguments.items(), names, strict=True):
        array = f"{function}_{parameter}"
        is_output = name in shapes and parameter.startswith("y")
        rows = [each[name] for each in (answers.outputs if is_output else answers.inputs)[:calls]]
        text += _table(f"{array}_right" if is_output else array, rows, size)
        if is_output:
            text += f"static float {array}[{size}];\n"
            # Without an axis of time it is known after the last call of a sequence only.
            often = len(rows) == 1 or rows[0] is not None
            last = "" if often else f"call % {answers.calls_of_a_sequence} == {answers.calls_of_a_sequence - 1} && "
            compare += COMPARE.format(array=array, size=size, last=last)
        parameters.append(array if is_output else f"{array}[call]")
    reset = ""
    if answers.calls_of_a_sequence:
        reset = (
            f"            if (call % {answers.calls_of_a_sequence} == 0)\n                {file.name}_reset(&net);\n"
        )
    if function == "step" and file.prepares:
        reset += f"            if (call % 2)\n                {file.name}_prepare_next(&net);\n"
    if answers.count:
        parameters.append(str(answers.count))
    part = PART.format(
        name=file.name,
        function=function,
        calls=calls,
        reset=reset,
        arguments=", ".join(parameters),
        compare=compare,
        bound=bound,
    )
    return text, part


def _table(name: str, rows: Sequence[np.ndarray | None], size: int) -> str:
    """A constant array in C with a row for each call; what is not known is 0."""
    lines = []
    for row in rows:
        values = np.zeros(size) if row is None else row.ravel()
        lines.append("{" + ", ".join(map(c_number, values.tolist())) + "}")
    table = ",\n".join(lines)
    return f"static const float {name}[{len(rows)}][{size}] = {{\n{table}}};\n"
