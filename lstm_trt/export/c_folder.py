"""What lies beside the C file of a network: a test with known answers, and files to build all networks of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lstm_trt.export.c_file import CFile, c_number
from lstm_trt.store import files

#: Precision -> share of the largest output by which code may differ from the same arithmetic in float64. Correct code
#: is below 1e-6; in int8, where a state between two whole numbers may become the other one, up to 2.6e-4 was seen.
LARGEST_ERROR = {"fp32": 1e-5, "bf16": 1e-5, "int8": 1e-3}

#: Calls of which the test has the answers, at most.
CALLS = 4


@dataclass(frozen=True)
class Answers:
    """Inputs of some calls, in float32, and their outputs in float64, both by name.

    Each call begins with states of zero, or with those of the call before if they are `carried`.
    """

    inputs: Sequence[Mapping[str, np.ndarray]]
    outputs: Sequence[Mapping[str, np.ndarray]]
    carried: bool

    @property
    def scale(self) -> float:
        """The largest absolute value of an output."""
        return float(max(np.abs(array).max() for call in self.outputs for array in call.values()))


TEST = """/* {command} -o {name}_test && ./{name}_test

   Calls {name}_{function} with random numbers and compares its outputs with those of the ONNX model in float64. Prints
   the largest error; the exit status is 1 if it is above {bound}. */

#include "{name}.h"
#include <stdio.h>

#define CALLS {calls}

static struct {name} net;
{arrays}
int main(void)
{{
    double largest = 0;
{load}    int status = {name}_init(&net, {weights});
    if (status) {{
        fprintf(stderr, "{name}_init returned %d, see {name}.h\\n", status);
        return 1;
    }}
    for (int call = 0; call < CALLS; call++) {{
{reset}        {name}_{function}(&net, {arguments});
{compare}    }}
    printf("{name}_{function}: largest error %g, allowed {bound}\\n", largest);
    return !(largest <= {bound});
}}
"""

COMPARE = """        for (int i = 0; i < {size}; i++) {{
            double error = (double){parameter}[i] - (double){parameter}_right[call][i];
            error = error < 0 ? -error : error;
            largest = error <= largest ? largest : error; /* a NaN is the largest */
        }}
"""

LOAD = """    static float weights[{name}_WEIGHTS] __attribute__((aligned(64)));
    FILE *file = fopen("{name}.bin", "rb");
    if (!file || fread(weights, sizeof weights, 1, file) != 1) {{
        fprintf(stderr, "cannot read {name}.bin in this folder\\n");
        return 1;
    }}
    fclose(file);
"""

CMAKE = """# The library {name}, and its test where it has one.
add_library({name} STATIC ${{CMAKE_CURRENT_LIST_DIR}}/{name}.c)
target_compile_options({name} PRIVATE {flags})
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_LIST_DIR}})
if(EXISTS ${{CMAKE_CURRENT_LIST_DIR}}/{name}_test.c)
  add_executable({name}_test ${{CMAKE_CURRENT_LIST_DIR}}/{name}_test.c)
  target_link_libraries({name}_test {name})
  add_test(NAME {name} COMMAND {name}_test WORKING_DIRECTORY ${{CMAKE_CURRENT_LIST_DIR}})
endif()
"""

#: Files for the whole folder, which are written where there are none.
COMMON = {
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.13)
project(networks C)
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

In a project of your own: `include(PATH/NAME.network.cmake)`, then `target_link_libraries(PROGRAM NAME)`. NAME.h says
what each function does: NAME_init first, then NAME_step for each sample, or NAME_run for a window.
""",
}


def write(file: CFile, answers: Answers | None, folder: str | Path) -> list[Path]:
    """Write all files of a network; returns their paths. Without known answers there is no test."""
    paths = file.write(folder)
    flags = " ".join(file.compile_flags)
    beside = {f"{file.name}.network.cmake": CMAKE.format(name=file.name, flags=flags)}
    if answers:
        beside[f"{file.name}_test.c"] = self_test(file, answers)
    beside |= {name: text for name, text in COMMON.items() if not Path(folder, name).exists()}
    return [*paths, *(files.put(Path(folder, name), text.encode()) for name, text in beside.items())]


def self_test(file: CFile, answers: Answers) -> str:
    """The content of NAME_test.c."""
    function, one = next(iter(file.passes.items()))
    calls = min(CALLS, len(answers.inputs))
    columns = [[call[key] for call in answers.inputs[:calls]] for key in answers.inputs[0]]
    columns += [[call[key] for call in answers.outputs[:calls]] for key in file.reader.output_names]
    arrays, compare, arguments = "", "", []
    for (parameter, size), values in zip(one.arguments.items(), columns, strict=True):
        is_output = parameter in one.reader.outputs
        rows = ",\n".join("{" + ", ".join(map(c_number, array.ravel().tolist())) + "}" for array in values)
        known = f"{parameter}{'_right' * is_output}[CALLS][{size}]"
        arrays += f"static const float {known} = {{\n{rows}}};\n"
        arrays += f"static float {parameter}[{size}];\n" * is_output
        arguments.append(parameter + "[call]" * (not is_output))
        compare += COMPARE.format(parameter=parameter, size=size) * is_output
    return TEST.format(
        name=file.name,
        command=f"cc {' '.join(file.compile_flags)} {file.name}.c {file.name}_test.c",
        function=function,
        bound=f"{LARGEST_ERROR[file.precision] * answers.scale + 1e-30:.3g}",
        calls=calls,
        arrays=arrays,
        load="" if file.included else LOAD.format(name=file.name),
        weights=f"{file.name}_weights" if file.included else "weights",
        reset="" if answers.carried else f"        {file.name}_reset(&net);\n",
        arguments=", ".join(arguments),
        compare=compare,
    )
