"""Generated C code: its outputs against float64 in numpy, its memory accesses, NaN, and what cannot be generated."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from torch.nn.functional import elu, hardsigmoid, leaky_relu

import lstm_trt
from lstm_onnx.c import file as c_file_module, runtime as c
from lstm_onnx.c.compile import find_compiler
from lstm_onnx.c.export import with_packed_weights
from lstm_onnx.c.file import c_file
from lstm_onnx.c.targets import TARGETS, native_target
from lstm_onnx.c.weights import as_packed, in_pairs
from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.workload import State
from lstm_trt.export.network import to_bfloat16
from lstm_trt.export.sizes import static_model
from tests.conftest import ROOT, rest_is_heavy, sampled
from tests.support import c_networks
from tests.support.c_networks import FUNCTIONS, KINDS, Plan, computed, drawn, file_of, loaded, network, right
from tests.support.own_networks import model_of, numbers, value
from tests.support.planted_graphs import REFUSED, changed, recurrent, without

RUNNABLE = c_networks.runnable()

needs_compiler = pytest.mark.skipif(not c.availability().ready, reason="needs a C compiler")
needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")

#: Relative to `scale_of` the outputs. Correct code has up to 1e-6; in int8 a state between two whole numbers may become
#: the other one, 3e-5 of the largest, which large networks add up: 2.6e-4 was seen.
BOUND = 2e-6
BOUNDS = {"fp32": BOUND, "bf16": BOUND, "int8": 1e-3}
#: Absolute, where drawn states or infinities make large sums: correct code has up to 1.1e-6.
WIDE_BOUND = 1e-5

ALL = ("LSTM", "GRU", "GRU, reset first")


def on_all_targets(cases: Iterable) -> list[tuple]:
    """Pairs of cases and targets, of which any third has all targets too, where three can run."""
    count = len(RUNNABLE)
    return [(case, RUNNABLE[(place + n) % count]) for place, case in enumerate(cases) for n in range(count)]


#: What gcc warns of.
WARNINGS = ("-Wall", "-Wextra", "-Wconversion")


def without_warnings() -> tuple[str, ...]:
    """Flags with which gcc refuses code that it warns of: warnings that need an optimizer cost no compilation more."""
    return (*WARNINGS, "-Werror") if find_compiler().version.startswith("gcc") else ()


#: Sizes around those of vectors and of the part of a window that `kernel.c` computes at once: a plan and a block.
EDGES = {
    "one vector": (Plan(("LSTM", "GRU"), (15, 17), 25, 1), 24),
    "two vectors": (Plan(("GRU, reset first", "LSTM"), (33, 16), 24, 5, bias=False), 23),
    "one unit": (Plan(("GRU", "LSTM"), (1, 31), 23, 2, around=True), 1),
    "three kinds": (Plan(ALL, (16, 31, 32), 47, 4), 25),
    "one step": (Plan(ALL, (1, 63, 65), 1, 1), 1),
    "many": (Plan(ALL, (47, 48, 113), 49, 65, around=True), 48),
    "RNN": (Plan(("RNN", "GRU", "RNN"), (130, 17, 33), 25, 3), 24),
    "backwards": (Plan(ALL, (9, 8, 7), 26, 3, directions=("reverse", "bidirectional", "reverse")), 1),
}


@needs_compiler
@pytest.mark.parametrize(
    ("edge", "target"),
    rest_is_heavy(
        on_all_targets(EDGES),
        lambda edge, target: (edge, target) in zip(EDGES, RUNNABLE, strict=False),
        one_in=3,
    ),
)
def test_sizes_at_the_edges(edge, target, rng):
    """It is also compiled without a warning, as with weights of fewer bits."""
    plan, block = EDGES[edge]
    assert c_networks.largest_error(plan, target, block, rng, "-O1", *without_warnings()) < BOUND


@needs_compiler
@pytest.mark.parametrize(
    ("edge", "target"),
    rest_is_heavy(
        on_all_targets(EDGES),
        lambda edge, target: (edge, target) == (list(EDGES)[2], RUNNABLE[0]),
        one_in=3,
    ),
)
@pytest.mark.parametrize(("precision", "bound"), [("bf16", BOUND), ("int8", 3e-4)])
def test_weights_of_fewer_bits(edge, target, precision, bound, rng):
    """Against the network with the weights as packed; without this the error is 1e-3."""
    plan, block = EDGES[edge]
    half = replace(plan, precision=precision)
    assert c_networks.largest_error(half, target, block, rng, "-O1", *without_warnings()) < bound
    whole, packed = (len(file_of(each, target, block).weights) for each in (plan, half))
    assert packed < whole or edge == "one unit"


@needs_compiler
@pytest.mark.parametrize("precision", rest_is_heavy(["bf16", "int8"], lambda precision: precision == "int8"))
@pytest.mark.parametrize("row", rest_is_heavy([0, 4], lambda row: row == 4))
def test_a_nan_reaches_the_answer_in_each_precision(row, precision, rng):
    plan = replace(EDGES["two vectors"][0], precision=precision)
    x = rng.standard_normal((plan.sequence, 1, plan.features)).astype(np.float32)
    x[row, 0, -1] = np.nan
    y, last = (np.zeros(array.shape, np.float32) for array in c_networks.right_of(plan, x).values())
    compiled = loaded(file_of(plan, RUNNABLE[0], 1), "-O1")  # keeps its memory
    compiled.bound("run", x, y, last)()
    assert np.isnan(y[row:]).all() and not np.isnan(y[:row]).any() and np.isnan(last).all()


LONG_SUMS = (512, 530, 1100)


@needs_compiler
@pytest.mark.parametrize(
    ("units", "target"),
    rest_is_heavy(on_all_targets(LONG_SUMS), lambda units, target: (units, target) == (LONG_SUMS[0], RUNNABLE[0])),
)
def test_whole_numbers_do_not_overflow(units, target):
    """All states become 1 or -1, and all products with them the largest: a sum that wrapped would close the gates."""
    sign = np.where(np.arange(units) % 2, 1, -1)
    b, r = np.full((2, 4, units), 25.0), np.full((4, units, units), 0.9) * sign
    b[:, 3], r[3] = 25 * sign, r[3] * sign[:, None]  # of the new content of the cells
    arrays = {"W": np.zeros((1, 4 * units, 1)), "R": r.reshape(1, 4 * units, units), "B": b.reshape(1, 8 * units)}
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    node = helper.make_node("LSTM", ["x", "W", "R", "B"], ["y"], hidden_size=units)
    model = model_of([node], [value("x", [20, 1, 1])], [value("y", [20, 1, 1, units])], constants)
    y = computed(model, {"x": np.zeros((20, 1, 1), np.float32)}, target, precision="int8")["y"]
    assert np.allclose(y[-1, 0, 0], sign, rtol=0, atol=1e-6)


@needs_compiler
def test_the_source_has_all_bits_of_the_weights(rng):
    """Packed whole numbers may be those of a NaN or an infinity."""
    file = file_of(EDGES["one step"][0], RUNNABLE[0], 1)
    bits = rng.integers(0, 2**32, file.content.size, dtype=np.uint32)
    bits[::3] |= 0x7F800000
    bits[: c_file_module.HEAD] = file.content[: c_file_module.HEAD].view(np.uint32)
    bits[c_file_module.HEAD :][:4] = 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00000
    file = replace(file, content=bits.view(np.float32), included=True)
    library = loaded(file, "-O1")._library
    assert np.array_equal(np.ctypeslib.as_array((ctypes.c_uint32 * bits.size).in_dll(library, "network_weights")), bits)


def test_whole_numbers_are_refused_for_a_state_that_may_exceed_one():
    model = recurrent("LSTM", (5, 1, 6, 4)).SerializeToString()
    with pytest.raises(BuildFailed, match="may exceed 1: use bf16"):
        c_file(model, None, TARGETS["x86-64"], "network", precision="int8")
    states = [State("h0", "Y_h", (1, 1, 4)), State("c0", "Y_c", (1, 1, 4))]
    assert c_file(None, model, TARGETS["x86-64"], "network", states=states, precision="int8").reader.layers


@pytest.mark.parametrize("k", [1, 2, 7, 64])
def test_packed_weights_are_near(k, rng):
    weights = (rng.standard_normal((5, k)) * 10.0 ** rng.uniform(-6, 6, (5, k))).astype(np.float32)
    packed = as_packed(weights, 16)
    assert in_pairs(weights).shape == (5, -(-k // 2)) and (np.abs(packed - weights) <= 2**-8 * np.abs(weights)).all()
    assert np.array_equal(as_packed(packed, 16), packed) and not as_packed(np.zeros((2, k), np.float32), 16).any()
    assert np.array_equal(packed[:, ::2], to_bfloat16(weights[:, ::2]))


@pytest.mark.heavy
@sampled(2)
@needs_compiler
@pytest.mark.parametrize("target", RUNNABLE)
def test_networks_of_random_sizes(target, rng):
    """24 on all targets, one in eight of them optimized as users do; a failure names the network."""
    wrong = []
    for number in range(-(-24 // len(RUNNABLE))):
        plan = replace(drawn(rng, kinds=tuple(KINDS)), precision=list(BOUNDS)[number % 3])
        block = int(rng.integers(1, min(plan.sequence, 40) + 1))
        flags = () if number % 8 == 0 and max(plan.hidden) < 100 else ("-O1",)
        error = c_networks.largest_error(plan, target, block, np.random.default_rng(plan.seed), *flags)
        if not error < BOUNDS[plan.precision]:
            wrong.append((error, plan, block))
    assert not wrong


@needs_gcc
@pytest.mark.parametrize("target", rest_is_heavy(RUNNABLE, lambda target: target == RUNNABLE[0]))
def test_the_code_has_no_warnings(target, tmp_path):
    """None of those that need no optimizer, for all edges; see `without_warnings` for the others."""
    for edge, (plan, block) in EDGES.items():
        precision = {"three kinds": "bf16", "many": "int8", "one unit": "int8"}.get(edge, "fp32")
        file_of(replace(plan, precision=precision), target, block).write(tmp_path)
        command = ["gcc", "-std=gnu99", "-O1", *WARNINGS, *TARGETS[target].flags, "-fsyntax-only", "network.c"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), edge


@pytest.mark.heavy
@needs_gcc
@pytest.mark.parametrize("statement", ["int whole = 2.5; (void)whole;", "int first; net->prepared = first;"])
def test_a_planted_warning_is_found(statement, monkeypatch):
    """A conversion, and a number that is not initialized, which is found by what optimizes."""
    monkeypatch.setenv("CC", "gcc")
    file = file_of(EDGES["one step"][0], "x86-64", 1)
    head, body = file.source.split("void network_reset(struct network *net)\n{\n")
    planted = f"{head}void network_reset(struct network *net)\n{{\n    {statement}\n{body}"
    monkeypatch.setattr(c_file_module.CFile, "source", property(lambda file: planted))
    with pytest.raises(BuildFailed, match="-Werror="):
        loaded(file, "-O1", *without_warnings())


# All networks with an optimizer, on one of the targets and levels at a time: 10 to 15 s.
@pytest.mark.heavy
@sampled(6)
@needs_gcc
@pytest.mark.parametrize("level", ["-O2", "-O3"])
@pytest.mark.parametrize("target", RUNNABLE)
def test_the_stack_is_as_small_as_the_head_says(target, level, tmp_path):
    """A call has three frames at most: the function, what computes, and a layer."""
    for number, (plan, block) in enumerate(EDGES.values()):
        file = file_of(replace(plan, precision=("fp32", "bf16", "int8")[number % 3]), target, block)
        file.write(tmp_path)
        flags = ["-std=gnu99", level, "-fstack-usage", *TARGETS[target].flags]
        subprocess.run(["gcc", *flags, "-S", "network.c"], cwd=tmp_path, check=True)
        rows = (line.split("\t") for line in (tmp_path / "network.su").read_text().splitlines())
        frames = {place.split(":")[-1]: int(size) for place, size, _ in rows}
        layers = [size for name, size in frames.items() if name.startswith("layer_")]
        others = sorted(size for name, size in frames.items() if not name.startswith("layer_"))
        assert others and max(layers, default=0) + sum(others[-2:]) < c_file_module.STACK


#: Two instances in two threads: a window twice, and blocks, in memory of exactly their sizes; writes all outputs.
PROGRAM = r"""
#include "network.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static float x[INPUT], *weights;

static float *memory(size_t count) { return malloc(4 * count); }

static float *copy(const float *from, size_t count)
{
    float *to = memory(count);
    for (size_t i = 0; i < count; i++) to[i] = from[i];
    return to;
}

static void *compute(void *result)
{
    struct network *net = aligned_alloc(64, sizeof *net);
    float *own = copy(x, INPUT), *y = memory(OUTPUT), *last = memory(LAST), *to = result;
    if (network_init(net, weights)) exit(3);
    for (int i = 0; i < 2; i++) network_run(net, own, y, last);
    for (int i = 0; i < OUTPUT; i++) *to++ = y[i];
    for (int i = 0; i < LAST; i++) *to++ = last[i];
#ifdef network_STEP
    network_reset(net);
    for (int block = 0; block < COUNT; block++) {
        float *part = copy(x + block * (INPUT / ROWS * network_STEP), INPUT / ROWS * network_STEP);
        float *answers = memory(OUTPUT / ROWS * network_STEP);
        if (block % 3) network_prepare_next(net);
        network_step(net, part, answers, last);
        for (int i = 0; i < OUTPUT / ROWS * network_STEP; i++) *to++ = answers[i];
        free(part);
        free(answers);
    }
#endif
    free(net);
    free(own);
    free(y);
    free(last);
    return NULL;
}

int main(void)
{
    pthread_t threads[2];
    float *results[2];
    FILE *file = fopen("network.bin", "rb");
    weights = aligned_alloc(64, 4 * network_WEIGHTS);
    if (fread(weights, 4, network_WEIGHTS, file) != network_WEIGHTS || fread(x, 4, INPUT, stdin) != INPUT) return 1;
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, compute, results[i] = calloc(TOTAL, 4));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) fwrite(results[i], 4, TOTAL, stdout), free(results[i]);
    free(weights);
    fclose(file);
    return 0;
}
"""


#: Its last state is copied from two places.
JOINED = Plan(("GRU, reset first",), (26,), 7, 18, directions=("bidirectional",))


def sanitized(plan: Plan, target: str, block: int, x: np.ndarray, sanitizers: str, folder: Path) -> None:
    """The program is compiled and run without a report, which would name lines; its outputs are right.

    With -g instead of -g1, which has no variables, gcc takes up to twice as long.
    """
    file, expected = file_of(plan, target, block), c_networks.right_of(plan, x)
    file.write(folder)
    (folder / "main.c").write_text(PROGRAM)
    blocks = plan.sequence // block if plan.carries else 0
    streamed = expected["y"][: blocks * block] if blocks else np.zeros(0)
    once = np.concatenate([array.ravel() for array in (expected["y"], expected["last"], streamed)])
    sizes = {"INPUT": x.size, "OUTPUT": expected["y"].size, "LAST": expected["last"].size, "ROWS": plan.sequence}
    defines = [f"-D{name}={size}" for name, size in {**sizes, "COUNT": blocks, "TOTAL": once.size}.items()]
    flags = ("-std=gnu11", "-O1", "-g1", *file.target.flags, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")
    command = ["gcc", *flags, *defines, "main.c", "network.c", "-pthread", "-o", "main"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, (plan, built.stderr)
    done = subprocess.run(["./main"], cwd=folder, input=x.tobytes(), capture_output=True)
    assert done.returncode == 0 and not done.stderr, (plan, target, block, done.stderr.decode())
    for found in np.split(np.frombuffer(done.stdout, np.float32), 2):
        assert np.abs(found - once).max() < BOUNDS[plan.precision] * c_networks.scale_of(once), (plan, target, block)


#: A plan that is given, or the precision of one that is drawn.
SANITIZED = {
    "address,undefined": {"joined": JOINED, "drawn": "fp32", "bf16": "bf16", "int8": "int8"},
    "thread": {"drawn": "fp32", "bf16": "bf16", "int8": "int8"},
}


@pytest.mark.heavy
@sampled(2)
@needs_gcc
@pytest.mark.parametrize(
    ("sanitizers", "case"), [(sanitizers, case) for sanitizers, cases in SANITIZED.items() for case in cases]
)
def test_memory_and_threads(sanitizers, case, rng, tmp_path):
    """AddressSanitizer and UBSan, or ThreadSanitizer."""
    given = SANITIZED[sanitizers][case]
    plan = given if isinstance(given, Plan) else replace(drawn(rng, 40), precision=given)
    block = int(rng.integers(1, min(plan.sequence, 30) + 1))
    x = rng.standard_normal((plan.sequence, 1, plan.features)).astype(np.float32)
    sanitized(plan, str(rng.choice(RUNNABLE)), block, x, sanitizers, tmp_path)


#: The same calls for any input: a window, and steps of one sample.
CALLS = r"""
#include <stdio.h>
#include <stdlib.h>
#include "network.h"

int main(void)
{
    static float x[INPUT], y[OUTPUT], last[LAST];
    struct network *net = aligned_alloc(64, sizeof *net);
    float *weights = aligned_alloc(64, 4 * network_WEIGHTS);
    FILE *file = fopen("network.bin", "rb");
    if (fread(weights, 4, network_WEIGHTS, file) != network_WEIGHTS || fread(x, 4, INPUT, stdin) != INPUT) return 1;
    if (network_init(net, weights)) return 2;
    network_run(net, x, y, last);
    for (int i = 0; i < ROWS; i++) {
        network_step(net, x + i * (INPUT / ROWS), y, last);
        if (i % 3) network_prepare_next(net);
    }
    return 0;
}
"""

needs_valgrind = pytest.mark.skipif(
    shutil.which("valgrind") is None or "x86-64-v3" not in RUNNABLE,
    reason="needs valgrind and a processor with AVX2: apt-get install valgrind",
)


@pytest.mark.heavy
@sampled(2)
@needs_gcc
@needs_valgrind
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_any_input_takes_the_same_instructions(precision, rng, tmp_path):
    plan = Plan((*ALL, "LSTM"), (9, 21, 34, 40), 12, 5, around=True, precision=precision)
    file, x = file_of(plan, "x86-64-v3", 1), np.zeros((12, 1, 5))
    file.write(tmp_path)
    (tmp_path / "main.c").write_text(CALLS)
    expected = c_networks.right_of(plan, x)
    sizes = {"INPUT": x.size, "OUTPUT": expected["y"].size, "LAST": expected["last"].size, "ROWS": plan.sequence}
    defines = [f"-D{name}={size}" for name, size in sizes.items()]
    command = ["gcc", "-std=gnu11", "-O3", *file.target.flags, *defines, "main.c", "network.c", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", "./main"]
    found = {}
    for name, scale in {"random": 1, "zero": 0, "tiny": 1e-39, "huge": 1e30, "infinite": np.inf, "NaN": np.nan}.items():
        given = (rng.standard_normal(x.shape) * scale if scale else x).astype(np.float32)
        done = subprocess.run(tool, cwd=tmp_path, input=given.tobytes(), capture_output=True, check=True)
        (found[name],) = re.findall(rb"I +refs: +([\d,]+)", done.stderr)
    assert len(set(found.values())) == 1, found


# Pointwise functions, NaN and infinities

#: In float64, with the float32 parameters of `FUNCTIONS`.
DEFINITIONS = {
    "Exp": lambda x: np.where(x < np.log(3.4028235e38), np.exp(np.minimum(x, 89)), np.where(np.isnan(x), x, np.inf)),
    "Sigmoid": lambda x: np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x))),
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "Elu": lambda x: np.where(x < 0, np.float32(0.7) * np.expm1(np.minimum(x, 0)), x),
    "LeakyRelu": lambda x: np.where(x < 0, np.float64(np.float32(0.2)) * x, x),
    "HardSigmoid": lambda x: np.clip(np.float64(np.float32(0.3)) * x + np.float64(np.float32(0.4)), 0, 1),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Clip": lambda x: np.clip(x, -1.5, 2),
}

#: Error relative to the result, and the absolute error that is allowed besides; 2e-38 is twice the smallest normal
#: number. Elu and HardSigmoid are sums that may cancel.
ACCURACIES = {"Elu": (1e-7, 1e-7), "HardSigmoid": (1e-7, 1e-7)}


def floats() -> np.ndarray:
    """Numbers of all sizes and signs: every 4099th of float32, and many around zero, one and limits of exponentials."""
    places = np.array([0.0, 1e-38, 1e-4, 0.35, 1, 1.5, 2, 7.905311, 16.6, 87, 87.33, 88.7, 103.9, 3.4e38], np.float32)
    near = places.view(np.int32)[:, None] + np.arange(-300, 301)
    bits = np.concatenate([np.arange(0, 2**31, 4099), near[near >= 0]]).astype(np.int32)
    positive = np.concatenate([bits.view(np.float32), np.array([np.inf], np.float32)])
    return np.concatenate([positive, -positive])


def pointwise(size: int) -> onnx.ModelProto:
    """One output for each function of `DEFINITIONS`."""
    bounds = [numpy_helper.from_array(np.float32(bound), name) for name, bound in (("low", -1.5), ("high", 2))]
    nodes = [helper.make_node(name, ["x"], [name], **attributes) for name, attributes in FUNCTIONS.items()]
    nodes += [helper.make_node("Clip", ["x", "low", "high"], ["Clip"]), helper.make_node("Exp", ["x"], ["Exp"])]
    return model_of(nodes, [value("x", [size])], [value(name, [size]) for name in DEFINITIONS], bounds)


@needs_compiler
@pytest.mark.parametrize("target", rest_is_heavy(RUNNABLE, RUNNABLE[0].__eq__))
def test_pointwise_functions_over_the_whole_range(target):
    """Sigmoid and tanh to 4e-7 of the result, from denormals to infinities; a NaN of either sign is passed on."""
    x = floats()
    outputs, missing = computed(pointwise(len(x)), {"x": x}, target), np.isnan(x)
    assert missing.any() and not missing.all() and (np.abs(x) < 1e-38).any()
    for name, y in outputs.items():
        with np.errstate(invalid="ignore"):
            exact = DEFINITIONS[name](x.astype(np.float64))
            relative, absolute = ACCURACIES.get(name, (4e-7, 2e-38))
            error = np.abs(y - exact)
        assert np.isnan(y[missing]).all(), name
        finite = np.isfinite(exact)
        assert (error[finite] <= relative * np.abs(exact[finite]) + absolute).all(), name
        assert (y[np.isinf(exact)] == exact[np.isinf(exact)]).all(), name


#: Flags with which compilers reorder sums, and some assume that there are no NaN and infinities.
FAST = (("-O1",), ("-O2",), ("-O3",), ("-Ofast",), ("-O3", "-funsafe-math-optimizations"), ("-O3", "-ffast-math"))


@cache
def an_lstm() -> tuple[torch.nn.LSTM, onnx.ModelProto]:
    """Of 9 samples."""
    torch.manual_seed(0)
    layer, samples = torch.nn.LSTM(3, 20), torch.randn(9, 1, 3)
    written = lstm_trt.TorchNetwork(Module(lambda p, x: p["lstm"](x)[0], lstm=layer).eval(), samples, name="module")
    return layer, onnx.load_from_string(static_model(written.path, written))


@needs_compiler
@pytest.mark.parametrize(
    ("flags", "target"),
    rest_is_heavy(
        on_all_targets(FAST),
        lambda flags, target: (flags, target) == (FAST[3], RUNNABLE[0]),
        one_in=3,
    ),
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_values_do_not_depend_on_the_flags(flags, target):
    """Each pointwise function, a window of an LSTM against PyTorch, and a NaN in both; infinities are left out."""
    x = floats()
    x = x[(np.abs(x) < 1e30) | np.isnan(x)]
    outputs, missing = computed(pointwise(len(x)), {"x": x}, target, *flags), np.isnan(x)
    assert missing.any() and not missing.all()
    for name, y in outputs.items():
        with np.errstate(invalid="ignore"):
            exact = DEFINITIONS[name](x.astype(np.float64))
            finite = np.isfinite(exact)
            error = np.abs(y - exact)[finite]
        assert np.isnan(y[missing]).all(), name
        assert (error <= 1e-6 * np.maximum(1, np.abs(exact[finite]))).all(), name
    layer, model = an_lstm()
    samples = torch.randn(9, 1, 3, generator=torch.Generator().manual_seed(0))
    for changed_from in (9, 4):
        samples[changed_from:, 0, 1] = np.nan
        with torch.inference_mode():
            expected = layer(samples)[0].numpy()
        (found,) = computed(model, {"x": samples.numpy()}, target, *flags).values()
        assert np.isnan(found[changed_from:]).all()
        assert np.abs(found - expected)[:changed_from].max() < 2e-6


@pytest.mark.heavy
@pytest.mark.parametrize("cc", ["clang", f"{sys.executable} -m ziglang cc"], ids=["clang", "zig"])
@pytest.mark.parametrize("flags", [("-Ofast",), ("-O3", "-ffast-math")], ids=" ".join)
def test_values_do_not_depend_on_the_flags_of_other_compilers(cc, flags, monkeypatch):
    command = shlex.split(cc)
    if shutil.which(command[0]) is None or subprocess.run([*command, "--version"], capture_output=True).returncode:
        pytest.skip("not installed")
    monkeypatch.setenv("CC", cc)
    monkeypatch.setitem(TARGETS, "native", native_target())  # Zig has other names for the others
    test_values_do_not_depend_on_the_flags(flags, "native")


def positions(plan: Plan) -> list[tuple[int, int]]:
    """Time steps and features: the first, the last, and steps around the part that is computed at once."""
    steps = {0, 1, 23, 24, plan.sequence - 1}
    return [(step, feature) for step in sorted(steps) for feature in (0, plan.features - 1)]


@needs_compiler
@pytest.mark.parametrize(
    ("kinds", "target"),
    rest_is_heavy(
        [(kinds, target) for kinds in (*((kind,) for kind in KINDS), ALL) for target in RUNNABLE],
        lambda kinds, target: (kinds, target) == (("LSTM",), RUNNABLE[0]),
        one_in=2,
    ),
)
def test_nan_and_infinities_in_a_window(kinds, target, rng):
    """A NaN reaches all outputs from its time step on, and none before; infinities give what they give in float64."""
    plan = Plan(kinds, (37, 5, 16)[: len(kinds)], 27, 6)
    model, x = network(plan), rng.standard_normal((27, 1, 6)).astype(np.float32)
    compiled, given, expected = loaded(file_of(plan, target, 1), "-O1"), x.copy(), right(model, x)
    y, last = (np.empty(expected[name].shape, np.float32) for name in ("y", "last"))
    run = compiled.bound("run", given, y, last)
    for step, feature in positions(plan):
        given[...] = x
        given[step, 0, feature] = np.nan
        run()
        missing = np.isnan(y).reshape(27, -1)
        assert missing[step:].all() and not missing[:step].any() and np.isnan(last).all()
        for number in (np.inf, -np.inf, 3e38, -3e38, 1e-44):
            given[step, 0, feature] = number
            run()
            assert np.abs(y - right(model, given)["y"]).max() < WIDE_BOUND
    given[...] = x
    run()
    assert np.abs(y - expected["y"]).max() < WIDE_BOUND, "a NaN of the call before is still there"


# Graphs


def constant(name: str, *entries: float, kind=np.int64) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(entries, kind), name)


def graph(*nodes, x=(6, 1, 5), constants=(), **outputs) -> onnx.ModelProto:
    """Nodes are (operator, inputs, outputs, attributes); `outputs`: name=shape. Float constants are drawn by name."""
    made = [
        helper.make_node(kind, inputs.split(","), results.split(","), name=f"my_{kind.lower()}", **dict(*attributes))
        for kind, inputs, results, *attributes in nodes
    ]
    shapes = {"A": (5, 3), "B": (3,), "B2": (6, 3), "C": (5,), "ROWS": (6, 1, 1), "ROW": (1, 1, 5), "FLAT": (30, 7)}
    used = {name for node in made for name in node.input}
    constants = [*constants, *(numbers(name, *shape) for name, shape in shapes.items() if name in used)]
    return model_of(made, [value("x", x)], [value(name, shape) for name, shape in outputs.items()], constants)


AXES = [constant("zero", 0), constant("one", 1), constant("two", 2), constant("three", 3), constant("five", 5)]
RELU = ("Relu", "x", "r")
LARGE = numpy_helper.from_array(np.array(200, np.float32), "LARGE")
VARIANCE = numpy_helper.from_array(np.array([0.2, 1, 3, 0.01, 7], np.float32), "VARIANCE")

GRAPHS = {
    "an operator between product and bias": graph(
        ("MatMul", "x,A", "p"), RELU, ("Add", "p,B", "y"), y=(6, 1, 3), r=(6, 1, 5)
    ),
    "a product with another use": graph(
        ("MatMul", "x,A", "p"), ("Dropout", "p", "d"), ("Add", "d,B", "y"), y=(6, 1, 3), p=(6, 1, 3)
    ),
    "a tensor that is read again later": graph(
        ("MatMul", "x,A", "p"),
        ("Relu", "p", "a"),
        ("Sigmoid", "a", "b"),
        ("Tanh", "p", "y"),
        ("Elu", "b", "z"),
        y=(6, 1, 3),
        z=(6, 1, 3),
    ),
    "two biases": graph(("MatMul", "x,A", "p"), ("Add", "p,B", "q"), ("Add", "B,q", "y"), y=(6, 1, 3)),
    "Softmax": graph(("Softmax", "x", "y", {"axis": 0}), ("Softmax", "x", "z"), y=(6, 1, 5), z=(6, 1, 5)),
    "Softmax of large numbers": graph(("Mul", "x,LARGE", "m"), ("Softmax", "m", "y"), y=(6, 1, 5), constants=[LARGE]),
    "LayerNormalization": graph(
        ("LayerNormalization", "x,C,BIAS", "y", {"epsilon": 0.1}),
        ("LayerNormalization", "x,ROWS", "z", {"axis": 0}),
        y=(6, 1, 5),
        z=(6, 1, 5),
        constants=[numbers("BIAS", 5)],
    ),
    "BatchNormalization": graph(
        ("BatchNormalization", "x,C,BIAS,MEAN,VARIANCE", "y"),
        x=(1, 5, 7),
        y=(1, 5, 7),
        constants=[numbers("BIAS", 5), numbers("MEAN", 5), VARIANCE],
    ),
    "largest and smallest": graph(
        ("Max", "x,ROW,ROWS", "a"),
        ("Min", "a,x", "y"),
        ("ReduceMax", "x,two", "m"),
        y=(6, 1, 5),
        m=(6, 1, 1),
        constants=AXES[2:3],
    ),
    "constants by time step": graph(("Mul", "x,ROWS", "m"), ("Sub", "C,m", "y"), y=(6, 1, 5)),
    "divided": graph(("Sub", "x,C", "s"), ("Div", "s,C", "y"), y=(6, 1, 5)),
    "a transposed tensor and constants": graph(
        ("Transpose", "x", "t", {"perm": [2, 1, 0]}),
        ("Mul", "t,BY", "m"),
        ("Div", "BY,m", "d"),
        ("Sub", "FEW,d", "y"),
        y=(5, 1, 6),
        constants=[numbers("BY", 5, 1, 6), numbers("FEW", 5, 1, 1)],
    ),
    "Gemm": graph(
        ("Squeeze", "x,one", "q"), ("Gemm", "q,A,B", "y", {"alpha": 0.5, "beta": 2.0}), y=(6, 3), constants=AXES[1:2]
    ),
    "flattened": graph(("Flatten", "x", "f", {"axis": 0}), ("MatMul", "f,FLAT", "y"), y=(1, 7)),
    "features": graph(("Slice", "x,one,three,two", "y"), y=(6, 1, 2), constants=AXES[1:4]),
    "joined": graph(RELU, ("Concat", "x,r", "y", {"axis": 2}), y=(6, 1, 10)),
    "split": graph(
        ("Split", "x", "a,b", {"num_outputs": 2}), ("Relu", "a", "y"), ("Tanh", "b", "z"), y=(3, 1, 5), z=(3, 1, 5)
    ),
    "the input as output": graph(("Identity", "x", "y"), RELU, y=(6, 1, 5), r=(6, 1, 5)),
    "last step": graph(("Slice", "x,five,six,zero", "y"), y=(1, 1, 5), constants=[*AXES, constant("six", 6)]),
    "names that are equal in C": graph(
        ("Relu", "x", "a.b"), ("Tanh", "x", "a_b"), **{"a.b": (6, 1, 5), "a_b": (6, 1, 5)}
    ),
    "bounds in the wrong order": graph(
        ("Clip", "x,high,low", "y"),
        y=(6, 1, 5),
        constants=[numpy_helper.from_array(np.float32(bound), name) for name, bound in (("low", -0.2), ("high", 0.3))],
    ),
    "residual": graph(RELU, ("Add", "x,r", "s"), ("Sub", "r,s", "d"), ("Mul", "d,x", "y"), y=(6, 1, 5), s=(6, 1, 5)),
    "features of two kinds": graph(RELU, ("Concat", "x,r", "y", {"axis": 2}), x=(20, 1, 5), y=(20, 1, 10)),
    "joined with a constant": graph(("Concat", "x,ROW", "y", {"axis": 0}), y=(7, 1, 5)),
    "transposed features": graph(
        ("Transpose", "x", "t", {"perm": [2, 1, 0]}),
        ("MatMul", "t,T", "y"),
        x=(20, 1, 5),
        y=(5, 1, 3),
        constants=[numbers("T", 20, 3)],
    ),
    "transposed and back": graph(
        ("Transpose", "x", "t", {"perm": [2, 1, 0]}),
        ("Tanh", "t", "u"),
        ("Mul", "u,TURNED", "v"),
        ("Transpose", "v", "y", {"perm": [2, 1, 0]}),
        x=(20, 1, 5),
        y=(20, 1, 5),
        constants=[numbers("TURNED", 5, 1, 1)],
    ),
    "a constant divided": graph(("Exp", "ROW", "e"), ("Sigmoid", "x", "s"), ("Div", "e,s", "y"), y=(6, 1, 5)),
    "larger constant": graph(("Mul", "x,L", "y"), y=(2, 6, 1, 5), constants=[numbers("L", 2, 1, 1, 5)]),
    "powers": graph(
        ("Pow", "x,two_", "a"),
        ("Pow", "a,half", "b"),
        ("Pow", "b,three_", "c"),
        ("Cast", "c", "d", {"to": 1}),
        ("Sqrt", "d", "y"),
        y=(6, 1, 5),
        constants=[constant(name, at, kind=np.float32) for name, at in (("two_", 2), ("half", 0.5), ("three_", 3))],
    ),
    "means": graph(
        ("ReduceMean", "x,two", "m"),
        ("ReduceSum", "x,zero", "s", {"keepdims": 0}),
        ("ReduceL2", "x", "l", {"keepdims": 0}),
        m=(6, 1, 1),
        s=(1, 5),
        l=(),
        constants=[AXES[0], AXES[2]],
    ),
    "padded": graph(
        ("Pad", "x,AROUND,FILL", "p"),
        ("Pad", "p,BEFORE", "q", {"mode": "reflect"}),
        ("Pad", "q,BEFORE", "y", {"mode": "edge"}),
        y=(13, 1, 10),
        constants=[
            constant("AROUND", 1, 0, 2, 2, 0, 3),
            constant("BEFORE", 2, 0, 0, 0, 0, 0),
            constant("FILL", 0.75, kind=np.float32),
        ],
    ),
    "attention": graph(("Transpose", "x", "t", {"perm": [0, 2, 1]}), ("MatMul", "x,t", "y"), y=(6, 1, 1)),
    "bias by row": graph(("Squeeze", "x,one", "q"), ("Gemm", "q,A,B2", "y"), y=(6, 3), constants=AXES[1:2]),
    "vector": graph(("MatMul", "x,C", "y"), y=(6, 1)),
    "batch first": recurrent("LSTM", (7, 1, 6, 5), layout=1, states=False),
    "batch first, peepholes": recurrent("LSTM", (7, 1, 6, 5), layout=1, states=False, peepholes=True),
    "a shorter length": recurrent("GRU", (7, 1, 6, 5), lengths=[3], states=False),
    "states as inputs": recurrent("LSTM", (7, 1, 6, 5), directions=2),
    "a state of another layer": None,
}


def state_of_another_layer() -> onnx.ModelProto:
    """A GRU from zero; a second one begins with the last h of the first."""
    nodes = [
        helper.make_node("GRU", ["x", "W", "R"], ["z", "h"], hidden_size=4),
        helper.make_node("GRU", ["x", "W", "R", "", "", "h"], ["y", "last"], hidden_size=4, linear_before_reset=1),
    ]
    outputs = [value("y", [7, 1, 1, 4]), value("last", [1, 1, 4])]
    return model_of(nodes, [value("x", [7, 1, 3])], outputs, [numbers("W", 1, 12, 3), numbers("R", 1, 12, 4)])


GRAPHS["a state of another layer"] = state_of_another_layer()


@pytest.mark.heavy
@sampled(2)
@needs_compiler
@pytest.mark.parametrize("case", GRAPHS)
def test_graphs(case, rng):
    model = GRAPHS[case]
    onnx.checker.check_model(model, full_check=True)
    shapes = {entry.name: [dim.dim_value for dim in entry.type.tensor_type.shape.dim] for entry in model.graph.input}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    (first, *others) = wide
    expected = right(model, wide[first], **{name: wide[name] for name in others})
    outputs = computed(model, inputs, RUNNABLE[0])
    assert outputs.keys() == expected.keys()
    for name, array in outputs.items():
        # Sums that cancel leave up to 0.4e-6.
        assert np.allclose(array, expected[name], rtol=1e-5, atol=5e-6), name


def normalized(channels: int) -> list[onnx.TensorProto]:
    return [numbers(part, 1, channels, 1) for part in ("MEAN", "SCALE")]


#: Graphs of (1, 12, samples) that move numbers or repeat constants.
GROWING: dict[str, Callable[[], list[tuple]]] = {
    "a part": lambda: [("Slice", "x,one,huge,two", "y")],
    "every second, backwards": lambda: [("Slice", "x,last,least,two,back", "y")],
    "zeros around": lambda: [("Pad", "x,around", "y")],
    "reflected": lambda: [("Pad", "x,around", "y", {"mode": "reflect"})],
    "transposed": lambda: [("Transpose", "x", "y", {"perm": [2, 0, 1]})],
    "transposed and flat": lambda: [("Transpose", "x", "t", {"perm": [2, 0, 1]}), ("Flatten", "t", "y", {"axis": 0})],
    "joined": lambda: [RELU, ("Transpose", "r", "t", {"perm": [0, 2, 1]}), ("Transpose", "x", "u", {"perm": [0, 2, 1]}),
                       ("Concat", "t,u", "y", {"axis": 2})],
    "other channels": lambda: [("Gather", "x,channels", "y", {"axis": 1})],
    "windows": lambda: [("Conv", "x,K", "y", {"pads": [2, 0]})],
    "windows with steps, twice": lambda: [("Conv", "x,K", "c", {"pads": [1, 1], "strides": [2]}),
                                          ("Conv", "c,K2", "y", {"pads": [1, 1]})],
    "a window of each sample": lambda: [("Transpose", "x", "t", {"perm": [2, 0, 1]}),
                                        ("Conv", "t,KEACH", "c", {"pads": [1, 2], "strides": [4]}),
                                        ("Conv", "c,K2", "y", {"pads": [1, 1], "strides": [2]})],
    "constants of each channel": lambda: [("Sub", "x,MEAN", "s"), ("Mul", "s,SCALE", "m"), ("Sub", "MEAN,m", "y")],
    "a sum over channels": lambda: [("ReduceSum", "x,one", "s"), ("Sub", "x,s", "y")],
}  # fmt: skip

GROWING_CONSTANTS = [
    constant("one", 1), constant("two", 2), constant("huge", 2**40), constant("last", -1), constant("least", -(2**40)),
    constant("back", -2), constant("around", 0, 2, 3, 0, 1, 4), constant("channels", 7, 0, 2, 2, 11, 5),
    numbers("K", 7, 12, 3), numbers("K2", 5, 7, 3), numbers("KEACH", 7, 1, 5), *normalized(12),
]  # fmt: skip


def growing(case: str, samples: int) -> onnx.ModelProto:
    nodes = GROWING[case]()
    used = {name for _, inputs, *_ in nodes for name in inputs.split(",")}
    constants = [tensor for tensor in GROWING_CONSTANTS if tensor.name in used]
    return onnx.shape_inference.infer_shapes(graph(*nodes, x=(1, 12, samples), constants=constants, y=None))


@pytest.mark.parametrize("case", GROWING)
def test_the_code_does_not_grow_with_the_samples(case):
    """Neither the source nor the weights, nor the time that a compiler is given."""
    codes = [c_file(growing(case, n).SerializeToString(), None, TARGETS["x86-64"], "network") for n in (60, 2000)]
    few, many = (len(code.source) - len(code.weights) for code in codes)
    assert abs(many - few) < 1000 and codes[1].content.size - codes[0].content.size <= 16


@needs_compiler
@pytest.mark.parametrize("case", rest_is_heavy(list(GROWING), lambda case: case == "a window of each sample"))
def test_what_is_moved_comes_to_its_place(case, rng):
    model = growing(case, 60)
    inputs = {"x": rng.standard_normal((1, 12, 60)).astype(np.float32)}
    (found,), (expected,) = computed(model, inputs, RUNNABLE[0]).values(), right(model, inputs["x"]).values()
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-5


#: Kernel of a convolution -> its shape, that of the input, and attributes.
CONVOLUTIONS = {
    "causal": ((7, 5, 3), (1, 5, 9), {"pads": [2, 0]}),
    "strided": ((20, 5, 4), (1, 5, 30), {"strides": [3], "pads": [1, 2]}),
    "dilated": ((6, 3, 3), (1, 3, 20), {"dilations": [4]}),
    "two groups": ((8, 3, 2), (1, 6, 11), {"group": 2}),
    "of each channel": ((6, 1, 5), (1, 6, 12), {"group": 6, "pads": [4, 0]}),
    "one place": ((9, 4, 1), (1, 4, 6), {}),
    "same above": ((5, 2, 4), (1, 2, 10), {"auto_pad": "SAME_UPPER", "strides": [3]}),
    "same below": ((5, 2, 4), (1, 2, 10), {"auto_pad": "SAME_LOWER", "strides": [3]}),
    "image": ((6, 3, 3, 2), (1, 3, 8, 7), {"strides": [2, 1], "pads": [1, 0, 1, 1]}),
    "batch": ((6, 3, 3), (4, 3, 8), {"pads": [1, 1]}),
}


NORMAL = ("scale", "shift", "mean", "variance")


def normal(suffix: str, channels: int) -> list[onnx.TensorProto]:
    """The constants of a BatchNormalization."""
    variance = constant(f"variance{suffix}", *np.geomspace(0.05, 3, channels), kind=np.float32)
    return [*(numbers(f"{part}{suffix}", channels) for part in NORMAL[:3]), variance]


@needs_compiler
@pytest.mark.parametrize("precision", rest_is_heavy(["fp32", "bf16"], lambda precision: precision == "fp32"))
@pytest.mark.parametrize(
    ("transposed", "has"),
    rest_is_heavy(
        [(1, {"alpha": 0.3}), (0, {"beta": 2.0}), (0, {}), (1, {"used": True})], lambda _, has: "alpha" in has
    ),
)
def test_a_normalization_goes_into_the_product_before_it(transposed, has, precision, rng):
    """Unless something else needs the product, or its bias has a factor: then it is computed by itself."""
    used, has = has.get("used", False), {key: number for key, number in has.items() if key != "used"}
    nodes = [
        helper.make_node("Gemm", ["x", "W", "B"], ["p"], transB=transposed, **has),
        helper.make_node("BatchNormalization", ["p", *NORMAL], ["y"], epsilon=0.1),
        *[helper.make_node("Tanh", ["p"], ["t"])] * used,
    ]
    constants = [numbers("W", *((9, 5) if transposed else (5, 9))), numbers("B", 9), *normal("", 9)]
    outputs = [value("y", [6, 9]), *[value("t", [6, 9])] * used]
    model, x = model_of(nodes, [value("x", [6, 5])], outputs, constants), rng.standard_normal((6, 5)).astype(np.float32)
    file = c_file(model.SerializeToString(), None, TARGETS[RUNNABLE[0]], "network", precision=precision)
    assert ("BINARY(times" in file.source) is (used or "beta" in has)
    found = computed(model, {"x": x}, RUNNABLE[0], precision=precision)
    for name, expected in right(with_packed_weights(model, precision), x).items():
        assert np.abs(found[name] - expected).max() < 2e-6 * max(np.abs(expected).max(), 1)


@pytest.mark.heavy
@sampled(2)
@needs_compiler
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case, precision, rng):
    """Two of them with a function between and a layer behind, as ONNX's own evaluator computes them."""
    kernel, shape, has = CONVOLUTIONS[case]
    axes = list(range(2, len(shape)))
    second = numbers("K2", 8, kernel[0], *(1 for _ in axes))
    model = model_of(
        [
            helper.make_node("Conv", ["x", "K", "KB"], ["p"], name="my_conv", **has),
            helper.make_node("BatchNormalization", ["p", *(f"{part}1" for part in NORMAL)], ["n"]),
            helper.make_node("Relu", ["n"], ["q"]),
            helper.make_node("Conv", ["q", "K2"], ["r"]),
            helper.make_node("BatchNormalization", ["r", *(f"{part}2" for part in NORMAL)], ["s"], epsilon=0.3),
            helper.make_node("Add", ["s", "CHANNELS"], ["y"]),
            helper.make_node("ReduceMean", ["y", "AXES"], ["m"]),
        ],
        [value("x", shape)],
        [value("y", None), value("m", None)],
        [
            numbers("K", *kernel),
            numbers("KB", kernel[0]),
            second,
            numbers("CHANNELS", 1, 8, *(1 for _ in axes)),
            constant("AXES", *axes),
            *normal("1", kernel[0]),
            *normal("2", 8),
        ],
    )
    model = onnx.shape_inference.infer_shapes(model)
    inputs = {"x": rng.standard_normal(shape).astype(np.float32)}
    outputs = computed(model, inputs, RUNNABLE[0], precision=precision)
    expected = right(with_packed_weights(model, precision), inputs["x"])
    for name, array in outputs.items():
        assert array.shape == expected[name].shape
        assert np.abs(array - expected[name]).max() < 2e-6 * max(np.abs(expected[name]).max(), 1), name


TRAINING = [
    numpy_helper.from_array(np.array(0.5, np.float32), "HALF"),
    numpy_helper.from_array(np.array(True), "TRUE"),
]

#: Model -> what the message says.
NOT_GENERATED = {
    "mask": (graph(("Dropout", "x", "d,m"), ("Cast", "m", "y", {"to": 1}), y=(6, 1, 5)), "its input m"),
    "constant": (graph(("Identity", "A", "y"), RELU, y=(5, 3), r=(6, 1, 5)), "y does not depend on the input"),
    "batch size": (
        recurrent("LSTM", (5, 2, 6, 4), states=False),
        "LSTM operator 'my_lstm': batch size 2, but the C kernel computes batch size 1: give the file a symbolic batch",
    ),
    "several": (
        graph(
            ("Sin", "x", "s"),
            ("Add", "s,s", "a"),
            ("ReduceLogSumExp", "a", "m"),
            ("Sin", "m", "n"),
            RELU,
            ("Div", "C,r", "d"),
            ("ConvTranspose", "d,K", "y"),
            ("Pow", "r,ROW", "w"),
            y=(6, 2, 5),
            constants=[numbers("K", 1, 2, 1)],
        ),
        "Sin operator 'my_sin' and 1 more, ReduceLogSumExp operator 'my_reducelogsumexp', ConvTranspose operator"
        " 'my_convtranspose': the C kernel has LSTM, GRU, RNN, Conv, MatMul, Gemm, Add, Sub, Mul, Div,",
    ),
    "powers": (
        graph(("Pow", "x,ROW", "y"), y=(6, 1, 5)),
        "Pow operator 'my_pow': the C kernel has powers with the constant exponents 0.5, 1, 2, and 3: write others, of"
        " numbers above 0, as Exp of the exponent times Log",
    ),
    "indices of the largest": (
        graph(("MaxPool", "x,", "y,i", {"kernel_shape": [2]}), y=(6, 1, 4)),
        "MaxPool operator 'my_maxpool': the C kernel has no indices of the largest numbers: remove this output",
    ),
    "a dropout in training": (
        graph(("Dropout", "x,HALF,TRUE", "y"), y=(6, 1, 5), constants=TRAINING),
        "Dropout operator 'my_dropout': it is in training mode: export the network in evaluation mode",
    ),
    "a shape that varies": (
        graph(("Cast", "x", "s", {"to": 7}), ("Reshape", "ROW,s", "y"), y=(5,)),
        "Cast operator 'my_cast': the C kernel has float32 only, and whole numbers that are inputs",
    ),
    "lengths and backwards": (
        recurrent("GRU", (5, 1, 6, 4), lengths=[3], direction="reverse"),
        "GRU operator 'my_gru': a sequence of a length that varies is read forward only, and in a whole window: export"
        " it without sequence_lens",
    ),
    "lengths of several": (
        recurrent("GRU", (5, 1, 6, 4), lengths=[3, 4]),
        "sequence_lens has shape (2,), expected (1,)",
    ),
    "direction": (recurrent("LSTM", (5, 1, 6, 4), direction="sideways"), "unknown direction 'sideways'"),
    "hidden_size": (without(recurrent("LSTM", (5, 1, 6, 4)), "hidden_size"), "hidden_size None, but R of 4 units"),
    "projection": (changed(recurrent("LSTM", (5, 1, 6, 4)), "R", np.zeros((1, 16, 2), np.float32)), "R of 2 units"),
    "W": (changed(recurrent("LSTM", (5, 1, 6, 4)), "W", np.zeros((1, 16, 7), np.float32)), "W has shape (1, 16, 7)"),
    "B": (changed(recurrent("LSTM", (5, 1, 6, 4)), "B", np.zeros((1, 16), np.float32)), "B has shape (1, 16)"),
    "weights as inputs": (recurrent("LSTM", (5, 1, 6, 4), stored=False), "W must be a constant in float32"),
    "float64": (recurrent("LSTM", (5, 1, 6, 4), dtype=np.float64), "the input X is not float32"),
    "inside an If": (REFUSED["inside an If"][0](), "is a setting, give its value with --value condition=N"),
}


@pytest.mark.parametrize("case", NOT_GENERATED)
def test_what_is_not_generated_is_named(case):
    model, message = NOT_GENERATED[case]
    with pytest.raises(BuildFailed) as refusal:
        c_file(model.SerializeToString(), None, TARGETS["x86-64"], "network")
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


# PyTorch modules and networks of other exporters


class Module(torch.nn.Module):
    """A module whose `forward` is a function of its parts and the inputs."""

    def __init__(self, forward: Callable, **parts: torch.nn.Module) -> None:
        super().__init__()
        self.parts, self.function = torch.nn.ModuleDict(parts), forward

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.function(self.parts, *inputs)


def test_whole_numbers_are_inputs_and_no_outputs():
    """An input of whole numbers is float32 in C; an output would be read as what it is not."""
    table = numbers("TABLE", 50, 5)
    model = graph(("Cast", "x", "i", {"to": 7}), ("Gather", "TABLE,i", "y"), x=(1, 6), y=(1, 6, 5), constants=[table])
    one = graph(("Add", "x,x", "y"), x=(2,), y=(2,))
    for each in (model, one):
        each.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    file = c_file(model.SerializeToString(), None, TARGETS["x86-64"], "network")
    assert "const float x[6]" in file.header and file.reader.whole_inputs == {"x": 50}
    with pytest.raises(BuildFailed, match="the output y is not float32"):
        c_file(one.SerializeToString(), None, TARGETS["x86-64"], "network")


def sequential(parts: Mapping, x: torch.Tensor) -> torch.Tensor:
    """Constants that normalize the samples, a dense layer, two LSTM layers, a dense layer."""
    x = (x - torch.arange(3.0)) / torch.tensor([1.0, 2.0, 0.5])
    return parts["last"](parts["lstm"](torch.relu(parts["first"](x)))[0])


def two_outputs(parts: Mapping, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, (h, c) = parts["lstm"](x)
    return torch.sigmoid(parts["dense"](y)), h, c[1:]


LSTM, GRU, Linear = torch.nn.LSTM, torch.nn.GRU, torch.nn.Linear

#: Forward of the parts and x, the shape of x, the parts.
MODULES: dict[str, tuple[Callable, tuple[int, ...], dict[str, torch.nn.Module]]] = {
    "batch first": (lambda p, x: p["lstm"](x)[0], (1, 9, 3), {"lstm": LSTM(3, 20, 2, batch_first=True)}),
    "bidirectional": (lambda p, x: p["lstm"](x)[0], (9, 1, 3), {"lstm": LSTM(3, 20, 2, bidirectional=True)}),
    "GRU": (lambda p, x: p["gru"](x)[0], (9, 1, 3), {"gru": GRU(3, 20, 2)}),
    "last step": (
        lambda p, x: torch.tanh(p["dense"](p["gru"](x)[0][:, -1])),
        (1, 9, 3),
        {"gru": GRU(3, 7, batch_first=True), "dense": Linear(7, 5)},
    ),
    "sequential": (sequential, (9, 1, 3), {"first": Linear(3, 17), "lstm": LSTM(17, 18, 2), "last": Linear(18, 2)}),
    "flattened": (
        lambda p, x: p["dense"](torch.flatten(p["lstm"](x)[0], 1)),
        (1, 9, 3),
        {"lstm": LSTM(3, 6, batch_first=True), "dense": Linear(54, 3)},
    ),
    "both last states": (
        lambda p, x: p["dense"](torch.cat([*p["lstm"](x)[1][0]], -1)),
        (9, 1, 3),
        {"lstm": LSTM(3, 6, bidirectional=True), "dense": Linear(12, 3)},
    ),
    "three outputs": (two_outputs, (9, 1, 3), {"lstm": LSTM(3, 20, 2), "dense": Linear(20, 4)}),
    "activations": (
        lambda p, x: torch.sigmoid(elu(leaky_relu(hardsigmoid(p["dense"](x)) - 0.3, 0.2)).clamp(-0.5, 2)),
        (4, 1, 3),
        {"dense": Linear(3, 33)},
    ),
}


def in_onnxruntime(model: bytes, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, dict(inputs)), strict=True))


@pytest.mark.heavy
@sampled(2)
@needs_compiler
@pytest.mark.parametrize("case", MODULES)
def test_modules_of_pytorch(case):
    """As PyTorch, ONNX Runtime and the evaluation in float64 compute them."""
    forward, shape, parts = MODULES[case]
    torch.manual_seed(len(case))
    module, x = Module(forward, **parts).eval(), torch.randn(shape)
    written = lstm_trt.TorchNetwork(module, x, name="module")
    model = onnx.load_from_string(static_model(written.path, written))
    (name,) = written.input_shapes
    outputs = computed(model, {name: x.numpy()}, RUNNABLE[0])
    with torch.inference_mode():
        answers = module(x)
    by_pytorch = [answer.numpy() for answer in (answers if isinstance(answers, tuple) else (answers,))]
    others = [by_pytorch, [*in_onnxruntime(model.SerializeToString(), {name: x.numpy()}).values()]]
    for other in [*others, [*right(model, x.numpy()).values()]]:
        for found, expected in zip(outputs.values(), other, strict=True):
            assert found.shape == expected.shape and np.abs(found - expected).max() < 2e-6


#: Symbolic sizes of a network in data/networks.
SHIPPED = {"keras_lstm": {"unk__136": 9, "unk__135": 1}, "streaming_gru": {"time": 9}}


@pytest.mark.heavy
@needs_compiler
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_networks(name, rng):
    """As ONNX Runtime computes them; a state is an input of the window."""
    network = lstm_trt.OnnxNetwork(ROOT / f"data/networks/{name}.onnx", sizes=SHIPPED[name])
    model = onnx.load_from_string(static_model(network.path, network))
    shapes = {entry.name: [dim.dim_value for dim in entry.type.tensor_type.shape.dim] for entry in model.graph.input}
    inputs = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    outputs = computed(model, inputs, RUNNABLE[0])
    for key, expected in in_onnxruntime(model.SerializeToString(), inputs).items():
        assert outputs[key].shape == expected.shape and np.abs(outputs[key] - expected).max() < 2e-6


# The version


def exact(model: onnx.ModelProto) -> bytes:
    """The model with weights that are the same on every machine."""
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            numbers = (np.arange(np.prod(tensor.dims, dtype=int)) * 37 % 101 / 128 - 0.375).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(numbers.reshape(tensor.dims), tensor.name))
    return model.SerializeToString()


PLAN = Plan((*ALL, "LSTM"), (9, 21, 34, 40), 30, 5)

#: Window and step: recurrent layers, and everything else.
PLANTED = {
    "recurrent": (exact(network(PLAN)), exact(network(PLAN, 2))),
    "pointwise": (exact(pointwise(40)), None),
    "dense": (exact(graph(("Mul", "x,C", "m"), ("MatMul", "m,A", "p"), ("Add", "p,B", "y"), y=(6, 1, 3))), None),
    "convolution": (
        exact(
            graph(
                ("Transpose", "x", "t", {"perm": [1, 2, 0]}),
                ("Conv", "t,K", "c", {"pads": [2, 0]}),
                ("Sqrt", "c", "s"),
                ("Mul", "c,s", "y"),
                y=(1, 7, 6),
                constants=[numbers("K", 7, 5, 3)],
            )
        ),
        None,
    ),
    "flat": (exact(graph(("Flatten", "x", "f", {"axis": 0}), ("MatMul", "f,FLAT", "y"), y=(1, 7))), None),
}


#: Version of the generated code -> target -> SHA-256 of the code of `PLANTED` without comments, with weights.
CODE = {
    "1": {
        "x86-64-v4": "a8b0dd41f237295acc4ab788608d955d0f7d2f602bf0ae50a33e99ff342cc35a",
        "x86-64-v3": "4709182207b739c3c4c7a7cd29fd1aec49f00389954eed77ffa3bb7ca52ac902",
        "x86-64": "5e7d78692e1ae9bdd15f23c51ebf4c1e44d757f81e070aa37c824615a7bbb198",
        "aarch64": "a8812c3fe99fc72972918ff433d7bea1b883b5ae3ec8799c93018c2b7a999679",
    },
    "2": {
        "x86-64-v4": "2d0a6cc9cb518eeff8b347e2d2e7982a9a2b9162aaa59c9a033dfe6b862fc236",
        "x86-64-v3": "8b39e64c322f1cc8af30cb3ea1cb9fbf24c5c1d2a05239466454216e730aa45c",
        "x86-64": "897d371e382e1d7131c5b3a33670d5bb669b945a5d7abf3d500df75f8f07bf27",
        "aarch64": "414b3edc233311ab8191026cfb8a6f701cf20c419f6f3769bce82ad564290462",
    },
    "3": {
        "x86-64-v4": "14381e99528fcb2bc8d837dfef6d588be77f1735d582bfffdf61f3f7b6cad739",
        "x86-64-v3": "cf58dd058821c66cbd4ebe94579856c233113e7ddd66a9ac3b739924df9013bf",
        "x86-64": "25561c1d475948325be524b5459b51cf985c3ac17e4497765c0d666812e293e9",
        "aarch64": "58b250d972e602a9e8149cd207e20abef7eb11456282d7c0ed14b9e9f96e2573",
    },
    "4": {
        "x86-64-v4": "f06d69b37d4598302a0cc6103571f84e65e39b55fbc969f173e1b21b8bada66a",
        "x86-64-v3": "9150c969c6e147d07892124897eac118bad1dddb777476d78620499cb0528da4",
        "x86-64": "10b279c63f24d2fa5667251ec23efa3d5157beb0f33246de34126bb5b30f7c9c",
        "aarch64": "1b23ed53c65713a30851772172779f430176ec4191ad1f48075d5842093aa751",
    },
    "5": {
        "x86-64-v4": "64d7f27641d2f1cfef479ede53fa9825863b6e5bf6ede90405c70aa6957a0d9e",
        "x86-64-v3": "9a834e6d529f24dcda2238d9f99269653808a3312d0ae64818a63765646acd9f",
        "x86-64": "7f0d5c88e65245fe2178a64673504ae3e340be136c06e830c89ae1636973d8c0",
        "aarch64": "147437dd740edf08cf22b9aaa76dfa61057dc2ee936ee737eb66ba8bb015c50b",
    },
    "6": {
        "x86-64-v4": "69ccda836fb162925dbc9b67af9c1f08aaf938e6ea93408ab6c89593b1cf0952",
        "x86-64-v3": "d090e402e956270a8d7f161ac0b96dadb3609363667630598f29686205ee0625",
        "x86-64": "186f09ff83fb065e6a510192d4e2c74ca251350d502ebccd0c3f673e11dcc78a",
        "aarch64": "3a7d81b356ca22fafa03a296a47b1036d399b4e452caaddacbc98c4547f7ffed",
    },
    "7": {
        "x86-64-v4": "676017b5df517470369e0e828ab46b4ef5788732965b392eec159d378e9ff077",
        "x86-64-v3": "757aaea5e2ee3a9c0d617999ccb37d36919d671a6b5a621e37d48055849b6306",
        "x86-64": "20c4bbe5cf66cfd389d6ef3424d58c8f614baa3eea369ce16fb3be313dd900fa",
        "aarch64": "c1e89d7e9bc1ec8b26496ed25f5c63e77d6e84ac237e646e6a20b0ea666b4f46",
    },
    "8": {
        "x86-64-v4": "e73bb8f97f19bf2c3df61d4d497b354e5810175817f586e456986bd9f491324c",
        "x86-64-v3": "0b0e486b04fa6f888e1baca8d6c481a9289ca04a2739507571e6c50a6c982d26",
        "x86-64": "2ab9e778ffb4a2d9a64b1b0812ee8890106a46b31b8e7415b71b87e5245a41b4",
        "aarch64": "2044038e21b87def1025b4402c774c78cfdaae7acd0da20d2398c9fe89ea02d6",
    },
    "9": {
        "x86-64-v4": "c89f741acfb1d0fcf793701f51a5970b1cea05bc76d5997a85ec94e54e0de8dc",
        "x86-64-v3": "0bd0ff5892979d06de032debbadcaec900ac7679efd6cd096f02550aff1d5882",
        "x86-64": "cdc46d33f48c367583551cb8732b481d7ac8a077ef36f3ed0b6960077c2bd15b",
        "aarch64": "fd77520b2800fffcbfa9631370788446c3d02a706bd6da8e5c4cde8fea188482",
        "generic": "1b9667b3c821f791d5617e56bd5e6be2f0aa8f6a771514b453cd5a594ef6ca8b",
    },
}


@pytest.mark.parametrize("target", TARGETS)
def test_other_code_has_another_version(target):
    """Recordings of the same version are pooled, so that it has to change with the code."""
    digest = hashlib.sha256()
    for window, step in PLANTED.values():
        file = c_file(window, step, TARGETS[target], "network", include_weights=False)
        code = re.sub(r"/\*.*?\*/", " ", file.source + file.header, flags=re.DOTALL)
        digest.update(" ".join((*code.split(), *file.compile_flags)).encode() + file.weights)
    found = digest.hexdigest()
    recorded = CODE.get(c_file_module.VERSION, {}).get(target)
    assert found == recorded, "the generated code changed: raise c_file.VERSION and record the new hashes here"
    assert c.availability().version is None or c_file_module.VERSION in c.availability().version.split(", ")
