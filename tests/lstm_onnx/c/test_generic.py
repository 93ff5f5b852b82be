"""The target `generic`: plain C99, with what the other targets are tested with, and for microcontrollers."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import partial
from importlib import resources

import numpy as np
import pytest

from lstm_onnx.c import runtime as c
from lstm_onnx.c.file import PLAIN_STACK, CFile, c_file
from lstm_onnx.c.operators import ARITHMETIC, HANDLERS, POINTWISE, SWAPPED
from lstm_onnx.c.targets import TARGETS
from lstm_trt.config.errors import BuildFailed
from tests.conftest import rest_is_heavy
from tests.lstm_onnx.c import test_file, test_operators
from tests.support import c_networks
from tests.support.c_networks import Plan, drawn, models_of, network

needs_compiler = pytest.mark.skipif(not c.availability().ready, reason="needs a C compiler")

STRICT = ("-Wpedantic", *test_file.without_warnings()) if c.availability().ready else ()

#: Property of the targets with vectors -> the test, which gets a generator of random numbers if it takes one.
PROPERTIES = {
    **{f"graph, {case}": partial(test_file.test_graphs, case) for case in test_file.GRAPHS},
    **{f"convolution, {case}": partial(test_file.test_convolutions, case, "fp32") for case in test_file.CONVOLUTIONS},
    **{f"moved, {case}": partial(test_file.test_what_is_moved_comes_to_its_place, case) for case in test_file.GROWING},
    **{
        f"loop, {kind}": partial(test_operators.test_recurrent_layers_with_all_that_onnx_defines, kind)
        for kind in ("LSTM", "GRU", "RNN")
    },
    "functions": partial(test_operators.test_functions_over_the_whole_range, ()),
    "random network": partial(test_operators.test_random_networks_as_onnxruntime_computes_them, 0),
}
OPERATORS = sorted(HANDLERS.keys() - test_operators.WITHOUT_CASE)
OFTEN = ("functions", "random network", "graph, a state of another layer", "moved, a window of each sample")


@pytest.mark.random(tail=1e-8, why="as the tests of the same networks for other targets")
@needs_compiler
@pytest.mark.parametrize("edge", rest_is_heavy(list(test_file.EDGES), lambda edge: edge in ("three kinds", "RNN")))
def test_layers(edge, rng):
    plan, block = test_file.EDGES[edge]
    assert c_networks.largest_error(plan, "generic", block, rng, "-O1", *STRICT) < test_file.BOUND


@pytest.mark.random(tail=0, why="counted at test_layers")
@needs_compiler
@pytest.mark.parametrize("name", rest_is_heavy(list(PROPERTIES), lambda name: name in OFTEN, one_in=6))
def test_what_the_other_targets_compute(name, rng, monkeypatch):
    for module in (test_file, test_operators):
        monkeypatch.setattr(module, "RUNNABLE", ["generic"])
    PROPERTIES[name](rng=rng)


@needs_compiler
@pytest.mark.parametrize("kind", rest_is_heavy(OPERATORS, lambda kind: kind in ("Where", "Gelu"), one_in=6))
def test_operators_of_onnx(kind, monkeypatch):
    monkeypatch.setattr(test_operators, "RUNNABLE", ["generic"])
    test_operators.test_node_cases_of_onnx(kind)


@needs_compiler
def test_no_index_reads_outside_the_table(monkeypatch):
    monkeypatch.setattr(test_operators, "RUNNABLE", ["generic"])
    test_operators.test_no_index_reads_outside_the_table(())


def test_both_kernels_have_the_functions_of_all_operators():
    folder = resources.files("lstm_onnx.c")
    functions = {*POINTWISE.values(), *ARITHMETIC.values(), *SWAPPED.values()}
    for kernel in ("kernel.c", "kernel_generic.c"):
        defined = set(re.findall(r"^(?:INLINE|static) \w+ (\w+)\(", folder.joinpath(kernel).read_text(), re.MULTILINE))
        assert functions <= defined, kernel


@pytest.mark.parametrize("how", [{"precision": "bf16"}, {"precision": "int8"}, {"threads": 2}], ids=str)
def test_what_it_has_not_is_refused(how):
    with pytest.raises(BuildFailed, match="generic is in fp32 and for one thread"):
        c_file({"run": network(Plan(("GRU",), (5,), 3, 2)).SerializeToString()}, TARGETS["generic"], "net", **how)


def plain(rng: np.random.Generator) -> CFile:
    """A network of random sizes, with its weights in the source."""
    plan = drawn(rng, 24)
    return c_file(models_of(plan), TARGETS["generic"], "network", include_weights=True)


PROCESSORS = {
    "cortex-m4": ("-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"),
    "cortex-m7": ("-mcpu=cortex-m7", "-mfpu=fpv5-sp-d16", "-mfloat-abi=hard"),
    "cortex-m0plus": ("-mcpu=cortex-m0plus",),
}

CROSS = "arm-none-eabi-gcc"
needs_cross = pytest.mark.skipif(not shutil.which(CROSS), reason=f"needs {CROSS}")


def run(command: list[str], folder) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), command
    return done.stdout


@pytest.mark.random(tail=0, why="fuzzing, 4 networks")
@pytest.mark.skipif(not shutil.which("gcc") or not shutil.which("g++"), reason="needs gcc and g++")
def test_it_is_plain(rng, tmp_path):
    """C99 and C++ without a warning; no vectors, attributes, builtins or pragmas."""
    file = plain(rng)
    file.write(tmp_path)
    assert not re.search(r"__|_Pragma|#pragma|\basm\b", re.sub("__cplusplus", "", file.source + file.header))
    for command in ("gcc -std=c99", "g++ -x c++"):
        run(
            [*command.split(), "-O1", "-pedantic", *test_file.WARNINGS, "-Werror", "-fsyntax-only", "network.c"],
            tmp_path,
        )


@pytest.mark.random(tail=0, why="fuzzing, 4 networks")
@needs_cross
@pytest.mark.parametrize("processor", PROCESSORS)
def test_flash_memory_and_stack_are_as_the_head_says(processor, rng, tmp_path):
    file = plain(rng)
    file.write(tmp_path)
    flags = ["-std=c99", "-Os", "-mthumb", *PROCESSORS[processor], "-pedantic", "-Wall", "-Wextra", "-Werror"]
    run([CROSS, *flags, "-fstack-usage", "-c", "network.c"], tmp_path)
    code = int(run(["arm-none-eabi-size", "network.o"], tmp_path).splitlines()[1].split()[0]) - len(file.weights)
    assert code < int(re.search(r"less than (\d+) bytes of code", file.head)[1]) or processor == "cortex-m0plus"
    frames = [int(line.split("\t")[1]) for line in (tmp_path / "network.su").read_text().splitlines()]
    assert sum(sorted(frames)[-5:]) < PLAIN_STACK
    (tmp_path / "size.c").write_text('#include "network.h"\nchar size[sizeof(struct network)];\n')
    run([CROSS, *flags, "-c", "size.c"], tmp_path)
    size = int(run(["arm-none-eabi-nm", "-S", "size.o"], tmp_path).split()[1], 16)
    assert size <= int(re.search(r"Memory    (\d+)", file.head)[1]) <= size + 8


@needs_cross
def test_a_gru_of_20_units_is_small(tmp_path):
    """Linked for a Cortex-M7 with all of the C library that it needs: 2 KB of code, and 200 bytes of state."""
    step = network(Plan(("GRU",), (20,), 1, 3), 1)
    del step.graph.output[1]
    file = c_file({"step": step.SerializeToString()}, TARGETS["generic"], "net", include_weights=True)
    file.write(tmp_path)
    (tmp_path / "main.c").write_text(
        '#include "net.h"\nstruct net net;\nfloat x[net_INPUTS], y[net_OUTPUTS];\n'
        "int main(void) { return net_init(&net, net_weights); }\nvoid tick(void) { net_step(&net, x, y); }\n"
        "void start(void) { main(); for (;;) tick(); }\n"
    )
    flags = ["-std=c99", "-Os", "-mthumb", *PROCESSORS["cortex-m7"], "-ffunction-sections", "-fdata-sections"]
    link = ["-Wl,--gc-sections", "-Wl,-estart", "-nostartfiles", "--specs=nano.specs"]
    run([CROSS, *flags, *link, "main.c", "net.c", "-o", "net.elf"], tmp_path)
    text, data, bss = map(int, run(["arm-none-eabi-size", "net.elf"], tmp_path).splitlines()[1].split()[:3])
    assert text - len(file.weights) < 2048
    assert data + bss - 4 * (3 + 20) <= 200
