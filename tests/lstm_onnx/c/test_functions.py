"""Every function of generated C code computes what the graph does: run, run_n, step, and prepare_next between steps."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import lstm_trt
from lstm_onnx.c import export as c_export, file as c_file_module, runtime as c
from lstm_onnx.c.compile import LoadedNetwork, find_compiler
from lstm_onnx.c.file import c_file
from lstm_onnx.c.targets import TARGETS
from lstm_onnx.read_onnx import run_onnxruntime
from lstm_trt.config.errors import BuildFailed, UsageError
from lstm_trt.config.workload import State
from lstm_trt.export.sizes import sizes_of
from tests.conftest import rest_is_heavy
from tests.support.c_networks import loaded, right, runnable
from tests.support.own_networks import parsed, saved, value
from tests.support.planted_graphs import recurrent

needs_compiler = pytest.mark.skipif(not c.availability().ready, reason="needs a C compiler")

#: Samples of a window.
WINDOW = 12

#: Relative to the largest output, and at least to 1: rounding errors stay ten times below.
BOUND = 5e-6
BOUNDS = {"fp32": BOUND, "bf16": BOUND, "int8": 1e-3}

#: Operators from {a} to {b}, both (time, 1, 5), that compute a sample from it and those before.
CAUSAL = {
    "LSTM": "Y{b} = LSTM <hidden_size = 5> ({a}, W4, R4) {b} = Squeeze (Y{b}, one)",
    "GRU": "Y{b} = GRU <hidden_size = 5> ({a}, W3, R3) {b} = Squeeze (Y{b}, one)",
    "RNN": "Y{b} = RNN <hidden_size = 5> ({a}, W1, R1) {b} = Squeeze (Y{b}, one)",
    "reset first, with a first state": """Y{b} = GRU <hidden_size = 5, linear_before_reset = 1> (
        {a}, W3, R3, "", "", first) {b} = Squeeze (Y{b}, one)""",
    "an LSTM with first states": """Y{b} = LSTM <hidden_size = 5> ({a}, W4, R4, "", "", first, second)
        {b} = Squeeze (Y{b}, one)""",
    "an RNN with a first state": """Y{b} = RNN <hidden_size = 5> ({a}, W1, R1, "", "", first)
        {b} = Squeeze (Y{b}, one)""",
    "a product": "p{b} = MatMul ({a}, square) {b} = Add (p{b}, bias)",
    "a causal convolution": """t{b} = Transpose <perm = [1, 2, 0]> ({a})
        s{b} = Conv <pads = [2, 0]> (t{b}, kernel)
        {b} = Transpose <perm = [2, 0, 1]> (s{b})""",
    "a pad before a convolution": """t{b} = Transpose <perm = [1, 2, 0]> ({a})
        p{b} = Pad (t{b}, before)
        s{b} = Conv (p{b}, kernel)
        {b} = Transpose <perm = [2, 0, 1]> (s{b})""",
    "a function": "{b} = Tanh ({a})",
    "a softmax over features": "{b} = Softmax <axis = 2> ({a})",
    "normal features": "{b} = LayerNormalization ({a}, bias)",
    "another order of features": """s{b} = Slice ({a}, one, huge, two)
        f{b} = Slice ({a}, zero, one, two)
        {b} = Concat <axis = 2> (s{b}, f{b})""",
}

#: As these, but with other samples as well, or fewer of them.
OTHERS = {
    "backwards": 'Y{b} = GRU <hidden_size = 5, direction = "reverse"> ({a}, W3, R3) {b} = Squeeze (Y{b}, one)',
    "a convolution around": """t{b} = Transpose <perm = [1, 2, 0]> ({a})
        s{b} = Conv <pads = [1, 1]> (t{b}, kernel)
        {b} = Transpose <perm = [2, 0, 1]> (s{b})""",
    "every second sample": """t{b} = Transpose <perm = [1, 2, 0]> ({a})
        s{b} = Conv <strides = [2], pads = [1, 0]> (t{b}, kernel)
        {b} = Transpose <perm = [2, 0, 1]> (s{b})""",
    "the sample before": """s{b} = Slice ({a}, zero, minus_one, zero)
        p{b} = Pad (s{b}, earlier)
        {b} = Add ({a}, p{b})""",
    "the difference from the sample before": """s{b} = Slice ({a}, one, huge, zero)
        e{b} = Slice ({a}, zero, minus_one, zero)
        {b} = Sub (s{b}, e{b})""",
    "without the first sample": "s{b} = Slice ({a}, zero, one, zero) {b} = Sub ({a}, s{b})",
    "without the mean": "m{b} = ReduceMean ({a}, zero) {b} = Sub ({a}, m{b})",
    "a softmax along time": "{b} = Softmax <axis = 0> ({a})",
    "a running sum": "s{b} = CumSum ({a}, along) {b} = Tanh (s{b})",
}

PARTS = {**CAUSAL, **OTHERS}
RECURRENT = [name for name in CAUSAL if "hidden_size" in PARTS[name]]

SAMPLES, ANSWERS = "float[time, 1, 3] x", "float[steps, 1, 5] y"

#: What is stored, by name: shapes of random numbers, and whole numbers.
STORED = {
    **{"A": (3, 5), "square": (5, 5), "bias": (5,), "kernel": (5, 5, 3), "first": (1, 1, 5), "second": (1, 1, 5)},
    **{"W1": (1, 5, 5), "R1": (1, 5, 5), "W3": (1, 15, 5), "R3": (1, 15, 5), "W4": (1, 20, 5), "R4": (1, 20, 5)},
    **{"zero": [0], "one": [1], "two": [2], "minus_one": [-1], "huge": [2**40], "along": 0},
    **{"before": [0, 0, 2, 0, 0, 0], "earlier": [1, 0, 0, 0, 0, 0]},
}


def made_of(text: str, inputs: str = SAMPLES, outputs: str = ANSWERS, **stored) -> onnx.ModelProto:
    """A network of `v`, five numbers for each sample, and the text."""
    return parsed(f"({inputs}) => ({outputs}) {{ v = MatMul (x, A) {text} }}", **{**STORED, **stored})


def chained(parts: list[str], ending: str = "y = Identity ({a})", outputs: str = ANSWERS) -> onnx.ModelProto:
    """Parts one behind another."""
    names = ["v", *(f"v{number}" for number in range(len(parts)))]
    text = [PARTS[part].format(a=a, b=b) for part, a, b in zip(parts, names[:-1], names[1:], strict=True)]
    return made_of(" ".join([*text, ending.format(a=names[-1])]), outputs=outputs)


def exported(model: onnx.ModelProto, folder: Path, **how) -> c_export.WrittenC:
    return lstm_trt.export_c(opened(model, folder), folder, name="own", **how)


def opened(model: onnx.ModelProto, folder: Path) -> lstm_trt.OnnxNetwork:
    return lstm_trt.OnnxNetwork(saved(model, folder, "own"), sizes={"time": WINDOW})


def as_measured(file: c_file_module.CFile) -> LoadedNetwork:
    """The library with which `export_c` measured the error, from the cache: its head does not state the error."""
    return LoadedNetwork(replace(file, included=False, error="not measured"), find_compiler())


class Called:
    """The functions of a file, and the graph as ONNX Runtime computes it, in int8 as the evaluation in float64 does."""

    def __init__(self, model: onnx.ModelProto, file: c_file_module.CFile, rng: np.random.Generator) -> None:
        self.packed = c_export.with_packed_weights(model, file.precision, file.reader.bounded_inputs)
        self.file, self.compiled, self.rng = file, as_measured(file), rng
        graph = model.graph
        self.more = {each.name: self.drawn(*sizes_of(each)) for each in graph.input if each.name != "x"}
        dims = {each.name: [dim.dim_param for dim in each.type.tensor_type.shape.dim] for each in graph.output}
        self.along = {name: params.index("steps") for name, params in dims.items() if "steps" in params}

    def drawn(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def right(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for samples of any number."""
        if self.file.precision == "int8":  # states of which ONNX Runtime knows nothing
            return right(self.packed, x, **self.more)
        (outputs,) = run_onnxruntime(self.packed.SerializeToString(), [{"x": x, **self.more}])
        return {name: outputs[name] for name in self.file.reader.output_names}

    def agrees(self, found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
        bound = BOUNDS[self.file.precision]
        return all(
            np.abs(found[name] - array).max(initial=0) < bound * max(1, np.abs(array).max(initial=0))
            for name, array in expected.items()
        )

    def of_a_window(self, function: str, samples: int) -> bool:
        """Whether `run`, or `run_n` of so many samples, computes what the graph does and writes nothing behind it."""
        x = self.drawn(samples, 1, 3)
        nothing = dict.fromkeys(
            self.file.reader.output_names, np.zeros(0)
        )  # ONNX Runtime ends the process without a sample
        expected = self.right(x) if samples else nothing
        guarded = {name: np.full(array.size + 1, 7, np.float32) for name, array in expected.items()}
        call = self.compiled.bound(function, x, *self.more.values(), *guarded.values())
        call(*[ctypes.c_size_t(samples)] * (function == "run_n"))
        found = {name: array[:-1].reshape(expected[name].shape) for name, array in guarded.items()}
        return self.agrees(found, expected) and all(array[-1] == 7 for array in guarded.values())

    def by_steps(self, size: int) -> bool:
        """Whether steps of so many samples, beginning twice, compute what the graph does for all of them."""
        x = self.drawn(2 * WINDOW, 1, 3)
        expected, given, right = self.right(x), x[:size].copy(), True
        parts = {name: np.split(expected[name], len(x) // size, axis) for name, axis in self.along.items()}
        found = {
            name: np.empty_like(parts[name][0] if name in parts else expected[name], np.float32) for name in expected
        }
        step = self.compiled.bound("step", given, *self.more.values(), *found.values())
        prepare_next, reset = self.compiled.bound("prepare_next"), self.compiled.bound("reset")
        for _ in range(2):
            reset()
            for place in range(len(x) // size):
                given[...] = x[place * size : (place + 1) * size]
                if self.rng.random() < 0.7:
                    prepare_next()
                step()
                right &= self.agrees(found, {name: parts[name][place] for name in parts})
            right &= self.agrees(found, {name: expected[name] for name in expected.keys() - parts.keys()})
        return right


def functions_that_agree(model: onnx.ModelProto, rng: np.random.Generator, folder: Path, **how) -> dict[str, int]:
    """Checks all functions of the file and what it says of them; returns the samples of a call that it states."""
    written = exported(model, folder, **how)
    assert written.error < BOUND
    called = Called(model, written.file, rng)
    functions = {**written.samples, **({"run_n": 0} if written.as_dict()["any_length"] else {})}
    assert called.of_a_window("run", WINDOW)
    if "run_n" in functions:
        assert all(called.of_a_window("run_n", samples) for samples in (0, 1, 7, WINDOW, WINDOW + 1, 26))
    if "step" in functions:
        assert called.by_steps(written.file.arguments("step")["x"] // 3)
    header, tested, printed = (folder / "own.h").read_text(), (folder / "own_test.c").read_text(), str(written)
    for function in ("run", "run_n", "step"):
        assert (f"own_{function}(&net" in tested) is (f"own_{function}(" in header) is (function in functions)
    assert ("own_run_n: any number" in printed) is ("run_n" in functions)
    reason = written.file.no_step
    assert bool(reason) is ("step" not in functions) and written.as_dict()["no_step"] == (reason or None)
    assert reason in header and (not reason or f"own_step: none, because {reason}" in printed)
    return functions


#: Samples of a call; `run_n` takes any number.
RUN, STEP, ANY = {"run": WINDOW}, {"run": WINDOW, "step": 1}, {"run": WINDOW, "step": 1, "run_n": 0}

#: Networks that are more than parts one behind another, and their functions.
NAMED = {
    "the last state as an output": (
        lambda: made_of(
            "Y, last = GRU <hidden_size = 5> (v, W3, R3) y = Squeeze (Y, one)",
            outputs=f"{ANSWERS}, float[1, 1, 5] last",
        ),
        ANY,
    ),
    "samples and what is computed of them": (
        lambda: chained(["GRU"], "s = Sigmoid ({a}) y = Concat <axis = 2> (s, x)", "float[steps, 1, 8] y"),
        ANY,
    ),
    "time last": (
        lambda: chained(["GRU"], "y = Transpose <perm = [1, 2, 0]> ({a})", "float[1, 5, steps] y"),
        STEP,
    ),
    "a first state by an input": (
        lambda: made_of(
            """p = MatMul (c, A) h = Unsqueeze (p, zero)
            Y = GRU <hidden_size = 5> (v, W3, R3, "", "", h) y = Squeeze (Y, one)""",
            f"{SAMPLES}, float[1, 3] c",
        ),
        RUN,
    ),
    "a first state that is an input": (
        lambda: made_of(
            'Y = GRU <hidden_size = 5> (v, W3, R3, "", "", c) y = Squeeze (Y, one)', f"{SAMPLES}, float[1, 1, 5] c"
        ),
        RUN,
    ),
}

#: Every part behind a GRU, and its functions.
ALONE = {part: (lambda part=part: chained(["GRU", part]), ANY) for part in CAUSAL}
ALONE |= {part: (lambda part=part: chained(["GRU", part]), RUN) for part in OTHERS}
ALONE["every second sample"] = (lambda: chained(["every second sample", "GRU"]), {"run": WINDOW, "step": 2})

LIGHT = ("the last state as an output", "a first state by an input", "every second sample")


@pytest.mark.random(tail=1e-9, why="errors of rounding stay ten times below the bound")
@needs_compiler
@pytest.mark.parametrize("name", rest_is_heavy([*NAMED, *ALONE], lambda name: name in LIGHT))
def test_each_function_computes_what_the_graph_does_or_there_is_none(name, rng, tmp_path):
    build, samples = {**NAMED, **ALONE}[name]
    assert functions_that_agree(build(), rng, tmp_path) == samples


@pytest.mark.random(tail=0, why="counted at test_each_function_computes_what_the_graph_does_or_there_is_none")
@needs_compiler
@pytest.mark.parametrize(
    ("parts", "samples"),
    [(["GRU", "every second sample"], {"run": WINDOW, "step": 2}), (["a causal convolution"], RUN)],
    ids=["a stride behind the first layer", "no recurrent layer"],
)
def test_the_samples_of_a_call_are_stated(parts, samples, rng, tmp_path):
    assert functions_that_agree(chained(parts), rng, tmp_path) == samples


@pytest.mark.random(tail=0, why="counted at test_each_function_computes_what_the_graph_does_or_there_is_none")
@needs_compiler
@pytest.mark.parametrize("number", rest_is_heavy(list(range(24)), lambda number: number == 0, one_in=4))
def test_random_graphs_in_all_their_functions(number, rng, tmp_path):
    """A recurrent layer and two other parts in any order; half of the networks can be computed sample by sample."""
    parts = [str(rng.choice(RECURRENT)), *rng.choice([*CAUSAL, *OTHERS] if number % 2 else [*CAUSAL], 2, replace=False)]
    parts = [str(part) for part in rng.permutation(parts)]
    precision, threads = str(rng.choice(["fp32", "bf16"])), int(rng.integers(1, 3))
    functions = functions_that_agree(chained(parts), rng, tmp_path, precision=precision, threads=threads)
    assert functions.keys() == ANY.keys() or not set(parts) <= CAUSAL.keys(), parts


@pytest.mark.random(tail=0, why="counted at test_each_function_computes_what_the_graph_does_or_there_is_none")
@needs_compiler
@pytest.mark.parametrize("precision", rest_is_heavy(["bf16", "int8"], lambda precision: precision == "int8"))
def test_a_first_state_in_other_precisions(precision, rng, tmp_path):
    """In int8 it must not exceed 1."""
    text = f"{CAUSAL['reset first, with a first state'].format(a='v', b='w')} y = Identity (w)"
    first = np.linspace(-1, 1, 5, dtype=np.float32).reshape(1, 1, 5)
    assert functions_that_agree(made_of(text, first=first), rng, tmp_path, precision=precision) == ANY
    beyond = made_of(text, first=1.5 * first)
    if precision == "int8":
        with pytest.raises(BuildFailed, match="exceeds 1: use bf16"):
            exported(beyond, tmp_path, precision=precision)
    else:
        assert exported(beyond, tmp_path, precision=precision).error < 1e-5


def self_test(folder: Path) -> subprocess.CompletedProcess:
    """With the command in its first line."""
    command = (folder / "own_test.c").read_text().splitlines()[0].removeprefix("/* ")
    return subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)


@pytest.mark.heavy
@needs_compiler
def test_a_step_that_computes_something_else_is_found(tmp_path, monkeypatch):
    """When it is written, and by the self-test: a step that forgets its state is right for the first sample only."""
    model = chained(["GRU"])
    exported(model, tmp_path)
    done = self_test(tmp_path)
    functions = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert done.returncode == 0 and functions == ["own_run", "own_run_n", "own_step"]
    source = (tmp_path / "own.c").read_text()
    forgets = source.replace("WITH_DEFAULTS(lstm_trt_step", "own_reset(net); WITH_DEFAULTS(lstm_trt_step")
    (tmp_path / "own.c").write_text(forgets)
    assert forgets != source and self_test(tmp_path).returncode == 1
    monkeypatch.setattr(c_file_module.CFile, "source", property(lambda file: forgets))
    with pytest.raises(BuildFailed, match="the error of step is"):
        exported(model, tmp_path)


def test_a_step_that_cannot_be_generated_leaves_the_window(tmp_path, monkeypatch):
    """The header has the reason."""
    whole = c_export.c_file

    def refusing(models, *args, **kwargs):
        if "step" in models:
            raise BuildFailed("Reshape operator 'r' cannot be evaluated")
        return whole(models, *args, **kwargs)

    monkeypatch.setattr(c_export, "c_file", refusing)
    written = exported(chained(["GRU"]), tmp_path)
    reason = "it cannot be generated: Reshape operator 'r' cannot be evaluated"
    assert written.samples == RUN and written.file.no_step == reason and reason in (tmp_path / "own.h").read_text()


def test_a_network_that_is_no_stream_says_why_in_the_words_of_the_refusal(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    model = chained(["GRU", "without the mean"])
    with pytest.raises(UsageError) as refusal:
        opened(model, tmp_path).in_mode("stream")
    assert exported(model, tmp_path).file.no_step == str(refusal.value)


@pytest.mark.parametrize(
    ("states", "said", "unsaid"),
    [
        (None, "in each call the inputs give the first state of layer 1", "own_step("),
        ({"memory": "Y_h"}, "continues from the state after the call before.", "own_run("),
    ],
)
def test_the_header_says_what_becomes_of_a_state_that_is_an_input(tmp_path, monkeypatch, states, said, unsaid):
    """With an output of another name nothing is carried, unless it is told."""
    monkeypatch.setenv("CC", "no-such-compiler")
    model = recurrent("GRU", (2, 1, 3, 4))
    model.graph.input[-1].name = model.graph.node[0].input[5] = "memory"
    lstm_trt.export_c(lstm_trt.OnnxNetwork(saved(model, tmp_path), states=states), tmp_path, name="own")
    header = (tmp_path / "own.h").read_text()
    assert said in header and unsaid not in header
    assert ("in each call the inputs" in header) is ("--state INPUT=OUTPUT" in header) is (states is None)


# States that are inputs and outputs

CARRIED = {
    "LSTM": (recurrent("LSTM", (2, 1, 3, 4)), {"h0": "Y_h", "c0": "Y_c"}),
    "GRU": (recurrent("GRU", (2, 1, 3, 4)), {"h0": "Y_h"}),
    "exchanged": (recurrent("LSTM", (2, 1, 3, 4)), {"h0": "Y_c", "c0": "Y_h"}),
    "a delay": (
        parsed(
            """(float[4, 3] x, float[4, 3] a, float[4, 3] b) => (float[4, 3] y, float[4, 3] a_, float[4, 3] b_) {
                all = Concat <axis = 0> (a, b, x)
                b_ = Slice (all, seven, eleven)
                a_ = Identity (b)
                y = Sub (a, x)
            }""",
            seven=[7],
            eleven=[11],
        ),
        {"a": "a_", "b": "b_"},
    ),
}


@pytest.mark.random(tail=0, why="counted at test_each_function_computes_what_the_graph_does_or_there_is_none")
@pytest.mark.heavy
@needs_compiler
@pytest.mark.parametrize("case", CARRIED)
def test_states_are_carried_from_call_to_call(case, rng):
    """By a layer or by none, as ONNX Runtime computes them, called by hand."""
    model, carried = CARRIED[case]
    shapes = {each.name: sizes_of(each) for each in model.graph.input}
    states, content = [State(name, after, shapes[name]) for name, after in carried.items()], model.SerializeToString()
    file = c_file({"step": content}, TARGETS[runnable()[0]], "network", states=states, include_weights=False)
    (name,) = shapes.keys() - carried.keys()
    sets = [{name: rng.standard_normal(shapes[name]).astype(np.float32)} for _ in range(5)]
    x, expected = np.empty(shapes[name], np.float32), run_onnxruntime(content, sets, states)
    outputs = {each: np.empty(expected[0][each].shape, np.float32) for each in file.reader.output_names}
    compiled = loaded(file, "-O1")
    call, prepare_next, reset = compiled.bound("step", x, *outputs.values()), *map(compiled.bound, FREE)
    for _ in range(2):
        for place, (inputs, answers) in enumerate(zip(sets, expected, strict=True)):
            x[...] = inputs[name]
            call()
            assert all(np.abs(array - answers[each]).max() < 2e-6 for each, array in outputs.items())
            if place % 2:
                prepare_next()
        reset()


#: Functions without arrays.
FREE = ("prepare_next", "reset")


@pytest.mark.random(tail=0, why="counted at test_each_function_computes_what_the_graph_does_or_there_is_none")
@pytest.mark.heavy
@needs_compiler
def test_a_state_that_is_given_in_each_call(rng):
    """It is not carried, and what `prepare_next` computed from the state before is not used."""
    model = recurrent("GRU", (2, 1, 3, 4))
    compiled = loaded(c_file({"step": model.SerializeToString()}, TARGETS[runnable()[0]], "network"), "-O1")
    x, h0 = rng.standard_normal((2, 1, 3)).astype(np.float32), rng.standard_normal((1, 1, 4)).astype(np.float32)
    y, last = np.empty((2, 1, 1, 4), np.float32), np.empty((1, 1, 4), np.float32)
    step, prepare_next = compiled.bound("step", x, h0, y, last), compiled.bound("prepare_next")
    for _ in range(3):
        step()
        prepare_next()
        assert np.abs(y - right(model, x, h0=h0.astype(np.float64))["Y"]).max() < BOUND
        h0 *= -1.5


def two_layers() -> onnx.ModelProto:
    """Two GRU operators: one with the state h0 -> Y_h, and one from zero, with the state z_h."""
    model, other = recurrent("GRU", (2, 1, 3, 4)), recurrent("GRU", (2, 1, 3, 4), states=False).graph.node[0]
    other.output[:] = ["z", "z_h"]
    model.graph.node.append(other)
    model.graph.output.append(value("z_h", [1, 1, 4]))
    return model


STATES = {
    "of another layer": (two_layers(), {"h0": "z_h"}, "must be carried as well"),
    "one of two layers": (two_layers(), {"h0": "Y_h"}, "layer 2 begins each call from zero"),
    "backwards": (recurrent("GRU", (2, 1, 3, 4), direction="reverse"), {"h0": "Y_h"}, "reads the sequence backwards"),
}


@pytest.mark.parametrize("case", STATES)
def test_states_that_cannot_be_carried_are_refused(case):
    model, carried, message = STATES[case]
    states = [State(before, after, (1, 1, 4)) for before, after in carried.items()]
    with pytest.raises(BuildFailed, match=message):
        c_file({"step": model.SerializeToString()}, TARGETS["x86-64"], "network", states=states)
