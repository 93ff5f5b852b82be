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
from tests.support.own_networks import drawn_inputs, model_of, parsed, value
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


#: Edges of each precision that are quick.
QUICK_EDGES = {precision: [("one unit", RUNNABLE[0])] for precision in ("bf16", "int8")}
QUICK_EDGES["fp32"] = list(zip(EDGES, RUNNABLE, strict=False))


@pytest.mark.random(
    tail=1e-9,
    why="measured under 60 seeds for each network, 23 and more; of fewer bits 8 and more of the logarithm of "
    "the error; int8 under 80: 4.4e-5 is the largest, and more than ten states at once would have to "
    "become another whole number",
)
@needs_compiler
@pytest.mark.parametrize(
    ("precision", "edge", "target"),
    rest_is_heavy(
        [(precision, *case) for precision in BOUNDS for case in on_all_targets(EDGES)],
        lambda precision, edge, target: (edge, target) in QUICK_EDGES[precision],
        one_in=3,
    ),
)
def test_sizes_at_the_edges(precision, edge, target, rng):
    """Against the network with the weights as packed; it is also compiled without a warning."""
    whole, block = EDGES[edge]
    plan, bound = replace(whole, precision=precision), 3e-4 if precision == "int8" else BOUND
    assert c_networks.largest_error(plan, target, block, rng, "-O1", *without_warnings()) < bound
    if precision != "fp32" and edge != "one unit":
        assert len(file_of(plan, target, block).weights) < len(file_of(whole, target, block).weights)


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
    model = parsed(
        f"(float[20, 1, 1] x) => (float[20, 1, 1, {units}] y) {{ y = LSTM <hidden_size = {units}> (x, W, R, B) }}",
        W=np.zeros((1, 4 * units, 1), np.float32),
        R=r.reshape(1, 4 * units, units).astype(np.float32),
        B=b.reshape(1, 8 * units).astype(np.float32),
    )
    y = computed(model, {"x": np.zeros((20, 1, 1), np.float32)}, target, precision="int8")["y"]
    assert np.allclose(y[-1, 0, 0], sign, rtol=0, atol=1e-6)


@pytest.mark.random(tail=0, why="identity")
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
        c_file({"run": model}, TARGETS["x86-64"], "network", precision="int8")
    states = [State("h0", "Y_h", (1, 1, 4)), State("c0", "Y_c", (1, 1, 4))]
    assert c_file({"step": model}, TARGETS["x86-64"], "network", states=states, precision="int8").reader.layers


@pytest.mark.random(tail=0, why="identity")
@pytest.mark.parametrize("k", [1, 2, 7, 64])
def test_packed_weights_are_near(k, rng):
    weights = (rng.standard_normal((5, k)) * 10.0 ** rng.uniform(-6, 6, (5, k))).astype(np.float32)
    packed = as_packed(weights, 16)
    assert in_pairs(weights).shape == (5, -(-k // 2)) and (np.abs(packed - weights) <= 2**-8 * np.abs(weights)).all()
    assert np.array_equal(as_packed(packed, 16), packed) and not as_packed(np.zeros((2, k), np.float32), 16).any()
    assert np.array_equal(packed[:, ::2], to_bfloat16(weights[:, ::2]))


@pytest.mark.random(
    tail=0,
    why="fuzzing, 31 networks; errors of rounding stay ten times below the bound, of int8 in 450 networks four times",
)
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


@pytest.mark.random(
    tail=0,
    why="fuzzing, 31 networks; errors of rounding stay ten times below the bound, of int8 in 450 networks four times",
)
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


@pytest.mark.random(tail=0, why="identity")
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
ACCURACIES = {**dict.fromkeys(DEFINITIONS, (4e-7, 2e-38)), "Elu": (1e-7, 1e-7), "HardSigmoid": (1e-7, 1e-7)}


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


def inaccurate(x: np.ndarray, accuracies: Mapping[str, tuple[float, float]], target: str, *flags: str) -> list[str]:
    """The functions with larger errors in finite numbers; a NaN of either sign must be passed on."""
    outputs, missing, wrong = computed(pointwise(len(x)), {"x": x}, target, *flags), np.isnan(x), []
    assert missing.any() and not missing.all()
    for name, y in outputs.items():
        relative, absolute = accuracies[name]
        with np.errstate(invalid="ignore"):
            exact = DEFINITIONS[name](x.astype(np.float64))
            finite, error = np.isfinite(exact), np.abs(y - exact)
        right = (error <= relative * np.abs(exact) + absolute)[finite].all() and np.isnan(y[missing]).all()
        infinite = np.isinf(exact) & (not flags)  # of which some flags say that there are none
        if not right or (y[infinite] != exact[infinite]).any():
            wrong.append(name)
    return wrong


@needs_compiler
@pytest.mark.parametrize("target", rest_is_heavy(RUNNABLE, RUNNABLE[0].__eq__))
def test_pointwise_functions_over_the_whole_range(target):
    """Sigmoid and tanh to 4e-7 of the result, from denormals to infinities."""
    assert (np.abs(floats()) < 1e-38).any()
    assert not inaccurate(floats(), ACCURACIES, target)


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
    within = x[(np.abs(x) < 1e30) | np.isnan(x)]
    assert not inaccurate(within, dict.fromkeys(DEFINITIONS, (5e-7, 5e-7)), target, *flags)
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


@pytest.mark.random(tail=1e-8, why="measured, 6 and more of the logarithm of the error")
@needs_compiler
@pytest.mark.parametrize(
    ("kinds", "precision", "target"),
    rest_is_heavy(
        [(kinds, "fp32", target) for kinds in (*((kind,) for kind in KINDS), ALL) for target in RUNNABLE]
        + [(kinds, precision, RUNNABLE[0]) for kinds in (("GRU",), ALL) for precision in ("bf16", "int8")],
        lambda *case: case in [(("LSTM",), "fp32", RUNNABLE[0]), (("GRU",), "int8", RUNNABLE[0])],
        one_in=2,
    ),
)
def test_nan_and_infinities_in_a_window(kinds, precision, target, rng):
    """A NaN reaches all outputs from its time step on, and none before; infinities give what they give in float64."""
    plan = Plan(kinds, (37, 5, 16)[: len(kinds)], 27, 6, precision=precision)
    x = rng.standard_normal((27, 1, 6)).astype(np.float32)
    compiled, given, expected = loaded(file_of(plan, target, 1), "-O1"), x.copy(), c_networks.right_of(plan, x)
    y, last = (np.empty(expected[name].shape, np.float32) for name in ("y", "last"))
    run, bound = compiled.bound("run", given, y, last), max(WIDE_BOUND, BOUNDS[precision])
    for step, feature in positions(plan):
        given[...] = x
        given[step, 0, feature] = np.nan
        run()
        missing = np.isnan(y).reshape(27, -1)
        assert missing[step:].all() and not missing[:step].any() and np.isnan(last).all()
        for number in (np.inf, -np.inf, 3e38, -3e38, 1e-44) if precision == "fp32" else ():
            given[step, 0, feature] = number
            run()
            assert np.abs(y - c_networks.right_of(plan, given)["y"]).max() < bound
    given[...] = x
    run()
    assert np.abs(y - expected["y"]).max() < bound, "a NaN of the call before is still there"


# Graphs


def renamed(model: onnx.ModelProto, before: str, after: str) -> onnx.ModelProto:
    """With another name of an output, such as the notation has none."""
    (node,) = (node for node in model.graph.node if node.output[0] == before)
    (output,) = (output for output in model.graph.output if output.name == before)
    node.output[0] = output.name = after
    return model


#: Constants of graphs, by name: shapes of random numbers, and others.
STORED = {
    **{"A": (5, 3), "B": (3,), "B2": (6, 3), "C": (5,), "ROWS": (6, 1, 1), "ROW": (1, 1, 5), "FLAT": (30, 7)},
    **{"BIAS": (5,), "MEAN": (5,), "BY": (5, 1, 6), "FEW": (5, 1, 1), "T": (20, 3), "TURNED": (5, 1, 1)},
    **{"L": (2, 1, 1, 5), "W": (1, 12, 3), "R": (1, 12, 4), "K": (1, 2, 1), "TABLE": (50, 5)},
    **{"zero": [0], "one": [1], "two": [2], "three": [3], "five": [5], "six": [6]},
    **{"AROUND": [1, 0, 2, 2, 0, 3], "BEFORE": [2, 0, 0, 0, 0, 0]},
    **{"LARGE": np.float32(200), "VARIANCE": np.array([0.2, 1, 3, 0.01, 7], np.float32), "FILL": np.float32([0.75])},
    **{"low": np.float32(-0.2), "high": np.float32(0.3), "HALF": np.float32(0.5), "TRUE": np.array(True)},
    **{"square": np.float32([2]), "root": np.float32([0.5]), "cube": np.float32([3])},
}


def graph(text: str, x: str = "6, 1, 5", **stored) -> onnx.ModelProto:
    """A network of x: its outputs and operators, in ONNX's own notation."""
    return parsed(f"(float[{x}] x) => {text}", **{**STORED, **stored})


#: The outputs and operators, and the shape of x if it is not (6, 1, 5).
TEXTS = {
    "an operator between product and bias": (
        "(float[6, 1, 3] y, float[6, 1, 5] r) { p = MatMul (x, A) r = Relu (x) y = Add (p, B) }",
    ),
    "a product with another use": (
        "(float[6, 1, 3] y, float[6, 1, 3] p) { p = MatMul (x, A) d = Dropout (p) y = Add (d, B) }",
    ),
    "a tensor that is read again later": (
        """(float[6, 1, 3] y, float[6, 1, 3] z) {
            p = MatMul (x, A) a = Relu (p) b = Sigmoid (a) y = Tanh (p) z = Elu (b)
        }""",
    ),
    "two biases": ("(float[6, 1, 3] y) { p = MatMul (x, A) q = Add (p, B) y = Add (B, q) }",),
    "Softmax": ("(float[6, 1, 5] y, float[6, 1, 5] z) { y = Softmax <axis = 0> (x) z = Softmax (x) }",),
    "Softmax of large numbers": ("(float[6, 1, 5] y) { m = Mul (x, LARGE) y = Softmax (m) }",),
    "LayerNormalization": (
        """(float[6, 1, 5] y, float[6, 1, 5] z) {
            y = LayerNormalization <epsilon = 0.1> (x, C, BIAS)
            z = LayerNormalization <axis = 0> (x, ROWS)
        }""",
    ),
    "BatchNormalization": ("(float[1, 5, 7] y) { y = BatchNormalization (x, C, BIAS, MEAN, VARIANCE) }", "1, 5, 7"),
    "largest and smallest": (
        "(float[6, 1, 5] y, float[6, 1, 1] m) { a = Max (x, ROW, ROWS) y = Min (a, x) m = ReduceMax (x, two) }",
    ),
    "constants by time step": ("(float[6, 1, 5] y) { m = Mul (x, ROWS) y = Sub (C, m) }",),
    "divided": ("(float[6, 1, 5] y) { s = Sub (x, C) y = Div (s, C) }",),
    "a transposed tensor and constants": (
        """(float[5, 1, 6] y) {
            t = Transpose <perm = [2, 1, 0]> (x) m = Mul (t, BY) d = Div (BY, m) y = Sub (FEW, d)
        }""",
    ),
    "Gemm": ("(float[6, 3] y) { q = Squeeze (x, one) y = Gemm <alpha = 0.5, beta = 2.0> (q, A, B) }",),
    "flattened": ("(float[1, 7] y) { f = Flatten <axis = 0> (x) y = MatMul (f, FLAT) }",),
    "features": ("(float[6, 1, 2] y) { y = Slice (x, one, three, two) }",),
    "joined": ("(float[6, 1, 10] y) { r = Relu (x) y = Concat <axis = 2> (x, r) }",),
    "split": (
        "(float[3, 1, 5] y, float[3, 1, 5] z) { a, b = Split <num_outputs = 2> (x) y = Relu (a) z = Tanh (b) }",
    ),
    "the input as output": ("(float[6, 1, 5] y, float[6, 1, 5] r) { y = Identity (x) r = Relu (x) }",),
    "last step": ("(float[1, 1, 5] y) { y = Slice (x, five, six, zero) }",),
    "bounds in the wrong order": ("(float[6, 1, 5] y) { y = Clip (x, high, low) }",),
    "residual": (
        "(float[6, 1, 5] y, float[6, 1, 5] s) { r = Relu (x) s = Add (x, r) d = Sub (r, s) y = Mul (d, x) }",
    ),
    "features of two kinds": ("(float[20, 1, 10] y) { r = Relu (x) y = Concat <axis = 2> (x, r) }", "20, 1, 5"),
    "joined with a constant": ("(float[7, 1, 5] y) { y = Concat <axis = 0> (x, ROW) }",),
    "transposed features": (
        "(float[5, 1, 3] y) { t = Transpose <perm = [2, 1, 0]> (x) y = MatMul (t, T) }", "20, 1, 5"
    ),
    "transposed and back": (
        """(float[20, 1, 5] y) {
            t = Transpose <perm = [2, 1, 0]> (x) u = Tanh (t) v = Mul (u, TURNED) y = Transpose <perm = [2, 1, 0]> (v)
        }""",
        "20, 1, 5",
    ),
    "a constant divided": ("(float[6, 1, 5] y) { e = Exp (ROW) s = Sigmoid (x) y = Div (e, s) }",),
    "larger constant": ("(float[2, 6, 1, 5] y) { y = Mul (x, L) }",),
    "powers": (
        """(float[6, 1, 5] y) {
            a = Pow (x, square) b = Pow (a, root) c = Pow (b, cube) d = Cast <to = 1> (c) y = Sqrt (d)
        }""",
    ),
    "means": (
        """(float[6, 1, 1] m, float[1, 5] s, float l) {
            m = ReduceMean (x, two) s = ReduceSum <keepdims = 0> (x, zero) l = ReduceL2 <keepdims = 0> (x)
        }""",
    ),
    "padded": (
        """(float[13, 1, 10] y) {
            p = Pad (x, AROUND, FILL) q = Pad <mode = "reflect"> (p, BEFORE) y = Pad <mode = "edge"> (q, BEFORE)
        }""",
    ),
    "attention": ("(float[6, 1, 1] y) { t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (x, t) }",),
    "bias by row": ("(float[6, 3] y) { q = Squeeze (x, one) y = Gemm (q, A, B2) }",),
    "vector": ("(float[6, 1] y) { y = MatMul (x, C) }",),
    "a state of another layer": (
        """(float[7, 1, 1, 4] y, float[1, 1, 4] last) {
            z, h = GRU <hidden_size = 4> (x, W, R)
            y, last = GRU <hidden_size = 4, linear_before_reset = 1> (x, W, R, "", "", h)
        }""",
        "7, 1, 3",
    ),
}  # fmt: skip

GRAPHS = {
    **{name: graph(*text) for name, text in TEXTS.items()},
    "names that are equal in C": renamed(
        graph("(float[6, 1, 5] a_b, float[6, 1, 5] other) { other = Relu (x) a_b = Tanh (x) }"), "other", "a.b"
    ),
    "batch first": recurrent("LSTM", (7, 1, 6, 5), layout=1, states=False),
    "batch first, peepholes": recurrent("LSTM", (7, 1, 6, 5), layout=1, states=False, peepholes=True),
    "a shorter length": recurrent("GRU", (7, 1, 6, 5), lengths=[3], states=False),
    "states as inputs": recurrent("LSTM", (7, 1, 6, 5), directions=2),
}


@pytest.mark.random(tail=0, why="counted at test_nan_and_infinities_in_a_window")
@pytest.mark.heavy
@sampled(2)
@needs_compiler
@pytest.mark.parametrize("case", GRAPHS)
def test_graphs(case, rng):
    model = GRAPHS[case]
    onnx.checker.check_model(model, full_check=True)
    inputs = drawn_inputs(model, rng)
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    (first, *others) = wide
    expected = right(model, wide[first], **{name: wide[name] for name in others})
    outputs = computed(model, inputs, RUNNABLE[0])
    assert outputs.keys() == expected.keys()
    for name, array in outputs.items():
        # Sums that cancel leave up to 0.4e-6.
        assert np.allclose(array, expected[name], rtol=1e-5, atol=5e-6), name


#: Graphs of (1, 12, samples) that move numbers or repeat constants.
GROWING = {
    "a part": "y = Slice (x, one, huge, two)",
    "every second, backwards": "y = Slice (x, last, least, two, back)",
    "zeros around": "y = Pad (x, around)",
    "reflected": 'y = Pad <mode = "reflect"> (x, around)',
    "transposed": "y = Transpose <perm = [2, 0, 1]> (x)",
    "transposed and flat": "t = Transpose <perm = [2, 0, 1]> (x) y = Flatten <axis = 0> (t)",
    "joined": """r = Relu (x) t = Transpose <perm = [0, 2, 1]> (r)
        u = Transpose <perm = [0, 2, 1]> (x) y = Concat <axis = 2> (t, u)""",
    "other channels": "y = Gather <axis = 1> (x, channels)",
    "windows": "y = Conv <pads = [2, 0]> (x, K)",
    "windows with steps, twice": "c = Conv <pads = [1, 1], strides = [2]> (x, K) y = Conv <pads = [1, 1]> (c, K2)",
    "a window of each sample": """t = Transpose <perm = [2, 0, 1]> (x)
        c = Conv <pads = [1, 2], strides = [4]> (t, KEACH) y = Conv <pads = [1, 1], strides = [2]> (c, K2)""",
    "constants of each channel": "s = Sub (x, MEAN) m = Mul (s, SCALE) y = Sub (MEAN, m)",
    "a sum over channels": "s = ReduceSum (x, one) y = Sub (x, s)",
}

GROWING_CONSTANTS = {
    **{"one": [1], "two": [2], "huge": [2**40], "last": [-1], "least": [-(2**40)], "back": [-2]},
    **{"around": [0, 2, 3, 0, 1, 4], "channels": [7, 0, 2, 2, 11, 5]},
    **{"K": (7, 12, 3), "K2": (5, 7, 3), "KEACH": (7, 1, 5), "MEAN": (1, 12, 1), "SCALE": (1, 12, 1)},
}


def growing(case: str, samples: int) -> onnx.ModelProto:
    made = graph(f"(float[] y) {{ {GROWING[case]} }}", f"1, 12, {samples}", **GROWING_CONSTANTS)
    return onnx.shape_inference.infer_shapes(made)


@pytest.mark.parametrize("case", GROWING)
def test_the_code_does_not_grow_with_the_samples(case):
    """Neither the source nor the weights, nor the time that a compiler is given."""
    codes = [c_file({"run": growing(case, n).SerializeToString()}, TARGETS["x86-64"], "network") for n in (60, 2000)]
    few, many = (len(code.source) - len(code.weights) for code in codes)
    assert abs(many - few) < 1000 and codes[1].content.size - codes[0].content.size <= 16


@pytest.mark.random(tail=1e-9, why="errors of rounding stay ten times below the bound")
@needs_compiler
@pytest.mark.parametrize("case", rest_is_heavy(list(GROWING), lambda case: case == "a window of each sample"))
def test_what_is_moved_comes_to_its_place(case, rng):
    model = growing(case, 60)
    inputs = {"x": rng.standard_normal((1, 12, 60)).astype(np.float32)}
    (found,), (expected,) = computed(model, inputs, RUNNABLE[0]).values(), right(model, inputs["x"]).values()
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-5


#: Kernel of a convolution -> its shape, that of the input, and attributes.
CONVOLUTIONS = {
    "causal": ((7, 5, 3), (1, 5, 9), "pads = [2, 0]"),
    "strided": ((20, 5, 4), (1, 5, 30), "strides = [3], pads = [1, 2]"),
    "dilated": ((6, 3, 3), (1, 3, 20), "dilations = [4]"),
    "two groups": ((8, 3, 2), (1, 6, 11), "group = 2"),
    "of each channel": ((6, 1, 5), (1, 6, 12), "group = 6, pads = [4, 0]"),
    "one place": ((9, 4, 1), (1, 4, 6), "group = 1"),
    "same above": ((5, 2, 4), (1, 2, 10), 'auto_pad = "SAME_UPPER", strides = [3]'),
    "same below": ((5, 2, 4), (1, 2, 10), 'auto_pad = "SAME_LOWER", strides = [3]'),
    "image": ((6, 3, 3, 2), (1, 3, 8, 7), "strides = [2, 1], pads = [1, 0, 1, 1]"),
    "batch": ((6, 3, 3), (4, 3, 8), "pads = [1, 1]"),
}


def normal(suffix: str, channels: int) -> dict[str, object]:
    """The constants of a BatchNormalization."""
    variance = np.geomspace(0.05, 3, channels, dtype=np.float32)
    return {**{f"{part}{suffix}": (channels,) for part in ("scale", "shift", "mean")}, f"variance{suffix}": variance}


def packed_as_computed(model: onnx.ModelProto, precision: str, rng: np.random.Generator) -> bool:
    """Whether C code computes what the network with weights of this precision does."""
    inputs = drawn_inputs(model, rng)
    found = computed(model, inputs, RUNNABLE[0], precision=precision)
    for name, expected in right(with_packed_weights(model, precision), inputs["x"]).items():
        assert found[name].shape == expected.shape
        assert np.abs(found[name] - expected).max() < 2e-6 * max(np.abs(expected).max(), 1), name
    return True


@pytest.mark.random(tail=0, why="counted at test_what_is_moved_comes_to_its_place")
@needs_compiler
@pytest.mark.parametrize("precision", rest_is_heavy(["fp32", "bf16"], lambda precision: precision == "fp32"))
@pytest.mark.parametrize(
    ("attributes", "used", "folded"),
    rest_is_heavy(
        [
            ("alpha = 0.3, transB = 1", False, True),
            ("beta = 2.0", False, False),
            ("transB = 0", False, True),
            ("transB = 1", True, False),
        ],
        lambda attributes, used, folded: "alpha" in attributes,
    ),
)
def test_a_normalization_goes_into_the_product_before_it(attributes, used, folded, precision, rng):
    """Unless something else needs the product, or its bias has a factor: then it is computed by itself."""
    outputs, more = ("(float[6, 9] y, float[6, 9] t)", "t = Tanh (p)") if used else ("(float[6, 9] y)", "")
    model = graph(
        f"""{outputs} {{
            p = Gemm <{attributes}> (x, W, B)
            y = BatchNormalization <epsilon = 0.1> (p, scale, shift, mean, variance)
            {more}
        }}""",
        "6, 5",
        W=(9, 5) if "transB = 1" in attributes else (5, 9),
        B=(9,),
        **normal("", 9),
    )
    file = c_file({"run": model.SerializeToString()}, TARGETS[RUNNABLE[0]], "network", precision=precision)
    assert ("BINARY(times" in file.source) is not folded
    assert packed_as_computed(model, precision, rng)


@pytest.mark.random(tail=0, why="counted at test_what_is_moved_comes_to_its_place")
@pytest.mark.heavy
@sampled(2)
@needs_compiler
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case, precision, rng):
    """Two of them with a function between and a layer behind, as ONNX's own evaluator computes them."""
    kernel, shape, attributes = CONVOLUTIONS[case]
    ones = (1,) * (len(shape) - 2)
    model = graph(
        f"""(float[] y, float[] m) {{
            [my_conv] p = Conv <{attributes}> (x, K, KB)
            n = BatchNormalization (p, scale1, shift1, mean1, variance1)
            q = Relu (n)
            r = Conv (q, K2)
            s = BatchNormalization <epsilon = 0.3> (r, scale2, shift2, mean2, variance2)
            y = Add (s, CHANNELS)
            m = ReduceMean (y, AXES)
        }}""",
        ", ".join(map(str, shape)),
        K=kernel,
        KB=kernel[:1],
        K2=(8, kernel[0], *ones),
        CHANNELS=(1, 8, *ones),
        AXES=list(range(2, len(shape))),
        **normal("1", kernel[0]),
        **normal("2", 8),
    )
    assert packed_as_computed(onnx.shape_inference.infer_shapes(model), precision, rng)


#: Model -> what the message says.
NOT_GENERATED = {
    "mask": (graph("(float[6, 1, 5] y) { d, m = Dropout (x) y = Cast <to = 1> (m) }"), "its input m"),
    "constant": (
        graph("(float[5, 3] y, float[6, 1, 5] r) { y = Identity (A) r = Relu (x) }"),
        "y does not depend on the input",
    ),
    "batch size": (
        recurrent("LSTM", (5, 2, 6, 4), states=False),
        "LSTM operator 'my_lstm': batch size 2, but the C kernel computes batch size 1: give the file a symbolic batch",
    ),
    "several": (
        graph(
            """(float[6, 2, 5] y) {
                [my_sin] s = Sin (x)
                a = Add (s, s)
                [my_sum] m = ReduceLogSumExp (a)
                n = Sin (m)
                r = Relu (x)
                d = Div (C, r)
                [my_conv] y = ConvTranspose (d, K)
                w = Pow (r, ROW)
            }"""
        ),
        "Sin operator 'my_sin' and 1 more, ReduceLogSumExp operator 'my_sum', ConvTranspose operator 'my_conv':"
        " the C kernel has LSTM, GRU, RNN, Conv, MatMul, Gemm, Add, Sub, Mul, Div,",
    ),
    "powers": (graph("(float[6, 1, 5] y) { y = Pow (x, ROW) }"), "the constant exponents 0.5, 1, 2, and 3"),
    "indices of the largest": (
        graph("(float[6, 1, 4] y) { y, i = MaxPool <kernel_shape = [2]> (x) }"),
        "no indices of the largest numbers: remove this output",
    ),
    "a dropout in training": (
        graph("(float[6, 1, 5] y) { y = Dropout (x, HALF, TRUE) }"),
        "export the network in evaluation mode",
    ),
    "a shape that varies": (
        graph("(float[5] y) { s = Cast <to = 7> (x) y = Reshape (ROW, s) }"),
        "the C kernel has float32 only, and whole numbers that are inputs",
    ),
    "lengths and backwards": (
        recurrent("GRU", (5, 1, 6, 4), lengths=[3], direction="reverse"),
        "GRU operator 'my_gru': a sequence of a length that varies is read forward only",
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
        c_file({"run": model.SerializeToString()}, TARGETS["x86-64"], "network")
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
    model = graph("(float[1, 6, 5] y) { i = Cast <to = 7> (x) y = Gather (TABLE, i) }", "1, 6")
    one = graph("(float[2] y) { y = Add (x, x) }", "2")
    for each in (model, one):
        each.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    file = c_file({"run": model.SerializeToString()}, TARGETS["x86-64"], "network")
    assert "const float x[6]" in file.header and file.reader.whole_inputs == {"x": 50}
    with pytest.raises(BuildFailed, match="the output y is not float32"):
        c_file({"run": one.SerializeToString()}, TARGETS["x86-64"], "network")


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


@pytest.mark.random(tail=0, why="counted at test_nan_and_infinities_in_a_window")
@pytest.mark.heavy
@needs_compiler
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_networks(name, rng):
    """As ONNX Runtime computes them; a state is an input of the window."""
    network = lstm_trt.OnnxNetwork(ROOT / f"data/networks/{name}.onnx", sizes=SHIPPED[name])
    model = onnx.load_from_string(static_model(network.path, network))
    inputs = drawn_inputs(model, rng)
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
    "dense": (exact(graph("(float[6, 1, 3] y) { m = Mul (x, C) p = MatMul (m, A) y = Add (p, B) }")), None),
    "convolution": (
        exact(
            graph(
                """(float[1, 7, 6] y) {
                    t = Transpose <perm = [1, 2, 0]> (x)
                    c = Conv <pads = [2, 0]> (t, K)
                    s = Sqrt (c)
                    y = Mul (c, s)
                }""",
                K=(7, 5, 3),
            )
        ),
        None,
    ),
    "flat": (exact(graph(*TEXTS["flattened"])), None),
}


#: Version of the generated code and target -> SHA-256 of the code of `PLANTED` without comments, with weights.
CODE = {
    ("9", "x86-64-v4"): "c89f741acfb1d0fcf793701f51a5970b1cea05bc76d5997a85ec94e54e0de8dc",
    ("9", "x86-64-v3"): "0bd0ff5892979d06de032debbadcaec900ac7679efd6cd096f02550aff1d5882",
    ("9", "x86-64"): "cdc46d33f48c367583551cb8732b481d7ac8a077ef36f3ed0b6960077c2bd15b",
    ("9", "aarch64"): "fd77520b2800fffcbfa9631370788446c3d02a706bd6da8e5c4cde8fea188482",
    ("9", "generic"): "1b9667b3c821f791d5617e56bd5e6be2f0aa8f6a771514b453cd5a594ef6ca8b",
}


@pytest.mark.parametrize("target", TARGETS)
def test_other_code_has_another_version(target):
    """Recordings of the same version are pooled, so that it has to change with the code."""
    digest = hashlib.sha256()
    for window, step in PLANTED.values():
        models = {"run": window, "step": step} if step else {"run": window}
        file = c_file(models, TARGETS[target], "network", include_weights=False)
        code = re.sub(r"/\*.*?\*/", " ", file.source + file.header, flags=re.DOTALL)
        digest.update(" ".join((*code.split(), *file.compile_flags)).encode() + file.weights)
    found = digest.hexdigest()
    recorded = CODE.get((c_file_module.VERSION, target))
    assert found == recorded, "the generated code changed: raise c_file.VERSION and record the new hashes here"
    assert c.availability().version is None or c_file_module.VERSION in c.availability().version.split(", ")
