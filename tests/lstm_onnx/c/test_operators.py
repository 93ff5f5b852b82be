"""Operators in generated C: ONNX's own node cases, the whole range of each function, and random networks of them."""

from __future__ import annotations

import contextlib
import importlib
import math
import pkgutil
import warnings
from collections import defaultdict
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import compose, helper, numpy_helper

from lstm_onnx.c import runtime as c
from lstm_onnx.c.file import c_file
from lstm_onnx.c.operators import HANDLERS, of_whole_numbers
from lstm_onnx.c.targets import TARGETS
from lstm_onnx.evaluate import evaluate
from lstm_trt.config.errors import BuildFailed
from tests.conftest import rest_is_heavy
from tests.support.c_networks import computed, runnable
from tests.support.own_networks import model_of, parsed, value
from tests.support.planted_graphs import feeds, own_cases, recurrent

RUNNABLE = runnable()

needs_compiler = pytest.mark.skipif(not c.availability().ready, reason="needs a C compiler")

FLOAT = onnx.TensorProto.FLOAT

#: Cases that are one network: of so many arguments a call may have.
MOST = 80

Case = tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]


@cache
def node_cases() -> dict[str, Case]:
    """ONNX's node cases of the operators that have handlers: name -> (model, inputs, expected outputs)."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        for module in pkgutil.iter_modules(node.__path__):
            with contextlib.suppress(Exception):  # of operators that need other libraries
                importlib.import_module(f"onnx.backend.test.case.node.{module.name}")
    cases = {}
    for case in node._NodeTestCases:
        graph = case.model.graph
        if len(graph.node) == 1 and graph.node[0].op_type in HANDLERS and not graph.node[0].domain:
            inputs, outputs = (list(map(as_array, side)) for side in case.data_sets[0])
            names = [each.name for each in graph.input], [each.name for each in graph.output]
            if all(isinstance(array, np.ndarray) for array in (*inputs, *outputs)):
                cases[case.name] = (
                    case.model,
                    dict(zip(names[0], inputs, strict=True)),
                    dict(zip(names[1], outputs, strict=True)),
                )
    return cases


def as_array(value: object) -> object:
    """A single number of numpy as an array."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def varying(case: Case, count: int) -> Case:
    """The case in float32, of which only the first inputs vary, and only the first output is computed."""
    model, inputs, outputs = case
    model = onnx.load_from_string(model.SerializeToString())
    graph = model.graph
    for each in (*graph.input, *graph.output):
        if each.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE:
            each.type.tensor_type.elem_type = FLOAT
    inputs = {name: in_float32(array) for name, array in inputs.items()}
    del graph.input[count:]
    if graph.node[0].op_type != "Split":
        del graph.output[1:], graph.node[0].output[1:]
    for name, array in list(inputs.items())[count:]:
        graph.initializer.append(numpy_helper.from_array(array, name))
    first = graph.output[0]
    if of_whole_numbers(first.type.tensor_type.elem_type):
        graph.node.append(helper.make_node("Cast", [first.name], ["as_float"], to=FLOAT))
        first.name = "as_float"
        first.type.tensor_type.elem_type = FLOAT
    names = [each.name for each in graph.output]
    return model, dict(list(inputs.items())[:count]), dict(zip(names, outputs.values(), strict=False))


def in_float32(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype == np.float64 else array


def generated(model: onnx.ModelProto) -> str:
    """Empty, or why there is no code for a network."""
    try:
        c_file({"run": model.SerializeToString()}, TARGETS["x86-64"], "network")
    except BuildFailed as refusal:
        return str(refusal)
    return ""


def together(cases: dict[str, Case]) -> Case:
    """All cases of one version of the operators as one network, which is compiled once."""
    models, inputs, outputs = [], {}, {}
    for number, (model, given, expected) in enumerate(cases.values()):
        prefix = f"n{number}_"
        models.append(compose.add_prefix(model, prefix))
        inputs.update({prefix + name: array.astype(np.float32) for name, array in given.items()})
        outputs.update({prefix + name: array for name, array in expected.items()})
    whole = models[0]
    for model in models[1:]:
        for field in ("node", "input", "output", "initializer"):
            getattr(whole.graph, field).extend(getattr(model.graph, field))
    return whole, inputs, outputs


def by_version(cases: dict[str, Case]) -> list[dict[str, Case]]:
    found: dict[tuple, dict[str, Case]] = defaultdict(dict)
    for number, (name, case) in enumerate(cases.items()):
        found[case[0].opset_import[0].version, number // MOST][name] = case
    return list(found.values())


def wrong(cases: dict[str, Case], *flags: str) -> list[str]:
    """The cases of which the code answers something else."""
    found = []
    for group in by_version(cases):
        model, inputs, expected = together(group)
        outputs = computed(model, inputs, RUNNABLE[0], *flags)
        for name, right in expected.items():
            case = list(group)[int(name[1:].split("_")[0])]
            if outputs[name].shape != right.shape or not agree(outputs[name], right):
                found.append(case)
    return found


def agree(array: np.ndarray, right: np.ndarray) -> bool:
    """Whether they differ by rounding errors of float32 only."""
    right = right.astype(np.float64)
    scale = np.abs(right[np.isfinite(right)]).max(initial=1.0)
    rounded = right.size < 10 and np.allclose(right, right.round(4), rtol=1e-7, atol=0)  # as a case states it
    atol = 1e-4 if rounded else 2e-6 * scale
    return np.allclose(array, right, rtol=1e-5, atol=atol, equal_nan=True)


def accepted(kind: str) -> dict[str, Case]:
    """The cases of an operator for which there is code, with all inputs varying and with only the first one."""
    found = {}
    for name, case in node_cases().items():
        if case[0].graph.node[0].op_type == kind:
            for count in {1, len(case[1])}:
                one = varying(case, count)
                if not generated(one[0]):
                    found[f"{name}, {count} varying"] = one
    return found


#: Operators without a node case that C code could compute: what does not depend on the input, types that it lacks, and
#: names of `operators.DEFINITIONS` that ONNX no longer has. LSTM and RNN
#: have cases of batch size 3 only.
WITHOUT_CASE = {"Shape", "Size", "Cast", "CastLike", "Affine", "ScaledTanh", "LSTM", "RNN", "SwiGLU", "Swish"}

OFTEN = ("Where", "Gelu", "CumSum", "MaxPool", "Gather", "LogSoftmax", "PRelu")


@needs_compiler
@pytest.mark.parametrize(
    "kind", rest_is_heavy(sorted(HANDLERS.keys() - WITHOUT_CASE), lambda kind: kind in OFTEN, one_in=6)
)
def test_node_cases_of_onnx(kind):
    """All that are not refused are computed; one at least is not refused."""
    cases = accepted(kind)
    assert cases and not wrong(cases)


def test_cases_of_all_operators_are_known():
    with_case = {case[0].graph.node[0].op_type for case in node_cases().values()}
    assert HANDLERS.keys() - with_case <= WITHOUT_CASE


# Recurrent layers that are loops

SIZES = (5, 1, 6, 4)


@pytest.mark.random(
    tail=0,
    why="identity: the seed chooses 24 of up to 126 layers a kind; all of them were computed, with at most "
    "0.44 of the bound",
)
@needs_compiler
@pytest.mark.parametrize("kind", rest_is_heavy(["LSTM", "GRU", "RNN"], lambda kind: kind == "RNN"))
def test_recurrent_layers_with_all_that_onnx_defines(kind, rng):
    """Activations, clip, peepholes, input_forget; one direction and both, with and without states."""
    cases = {}
    for states in (False, True):
        planted = own_cases(sizes=SIZES, states=states)
        names = [name for name in planted if name.startswith(kind) and not generated(planted[name])]
        for name in rng.choice(names, 12, replace=False):
            inputs = feeds(planted[name])
            cases[f"{name}, states: {states}"] = (planted[name], inputs, evaluate(planted[name], inputs))
    assert not wrong(cases)


@needs_compiler
@pytest.mark.parametrize("kind", rest_is_heavy(["LSTM", "GRU", "RNN"], lambda kind: kind == "GRU"))
def test_a_length_that_is_an_input(kind):
    """Outputs behind it are 0, and the last states are those of its last sample."""
    model = recurrent(kind, SIZES, states=False, lengths=[3])
    stored = [tensor for tensor in model.graph.initializer if tensor.name == model.graph.node[0].input[4]]
    for tensor in stored:
        model.graph.initializer.remove(tensor)
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, onnx.TensorProto.INT32, [1]))
    x = feeds(recurrent(kind, SIZES, states=False))
    lengths = model.graph.node[0].input[4]
    cases = {}
    for length in range(1, 6):
        inputs = {**x, lengths: np.array([length], np.int32)}
        cases[str(length)] = (model, inputs, evaluate(model, inputs))
    assert not wrong(cases)


# The whole range

FUNCTIONS = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Reciprocal": lambda x: 1 / x,
    "Log": np.log,
    "Erf": lambda x: np.array([math.erf(number) for number in x]),
    "Softplus": lambda x: np.logaddexp(x, 0),
}


@pytest.mark.random(
    tail=1e-9,
    why="measured: of 3.8 million drawn numbers for each function, the largest error is 0.30 of the bound",
)
@needs_compiler
@pytest.mark.parametrize("flags", [(), ("-O3", "-ffast-math")], ids=["", "fast"])
def test_functions_over_the_whole_range(flags, rng):
    """From the smallest normal numbers to infinities; a NaN is passed on."""
    x = (rng.standard_normal(4000) * 10.0 ** rng.uniform(-37, 37, 4000)).astype(np.float32)
    x = np.concatenate([x, np.linspace(-10, 10, 4000), np.geomspace(0.5, 2, 1001)]).astype(np.float32)
    x = x[np.abs(x) > 1.2e-38]
    if not flags:
        x = np.concatenate([x, np.array([0, np.inf, -np.inf, np.nan], np.float32)])
    nodes = [helper.make_node(name, ["x"], [name]) for name in FUNCTIONS]
    model = model_of(nodes, [value("x", [x.size])], [value(name, [x.size]) for name in FUNCTIONS], [])
    for name, y in computed(model, {"x": x}, RUNNABLE[0], *flags).items():
        with np.errstate(all="ignore"):
            right = FUNCTIONS[name](x.astype(np.float64)).astype(np.float32)
        tiny = np.abs(right) < 2e-38
        near = np.isclose(y, right, rtol=1e-6, atol=1e-6 if name == "Softplus" else 2e-7, equal_nan=True)
        assert (near | tiny).all(), (name, x[~(near | tiny)][:5])


@needs_compiler
@pytest.mark.parametrize("flags", [(), ("-O3", "-ffast-math")], ids=["", "fast"])
def test_no_index_reads_outside_the_table(flags):
    """Negative ones count from its end; of others the nearest row is taken, and the first for what is no number."""
    table = np.arange(21, dtype=np.float32).reshape(7, 3)
    model = parsed("(int64[12] x) => (float[12, 3] y) { y = Gather (table, x) }", table=table)
    given = np.array([0, 6, -1, -7, 7, -8, 1e9, -1e9, 3e38, np.nan, np.inf, -np.inf], np.float32)
    (y,) = computed(model, {"x": given}, RUNNABLE[0], *flags).values()
    assert np.array_equal(y[:, 0] / 3, [0, 6, 6, 0, 6, 0, 6, 0, 0, 0, 0, 0])


# Networks of several operators


#: Operators from {a} to {b}, none of which has a jump, or a slope that makes a large error of a rounding error.
CHAIN = (
    "{b} = Gelu ({a})",
    "{b} = LogSoftmax ({a})",
    "g{b} = Greater ({a}, half) n{b} = Neg ({a}) s{b} = Sub ({a}, one) {b} = Where (g{b}, n{b}, s{b})",
    "{b} = PRelu ({a}, slope)",
    "{b} = HardSwish ({a})",
    "{b} = Softplus ({a})",
    "m{b} = ReduceMin ({a}, last) {b} = Sub ({a}, m{b})",
    "s{b} = CumSum ({a}, first) {b} = Tanh (s{b})",
    """u{b} = Unsqueeze ({a}, first) m{b} = MaxPool <kernel_shape = [3], pads = [1, 1]> (u{b})
        {b} = Squeeze (m{b}, first)""",
    """u{b} = Unsqueeze ({a}, first) m{b} = AveragePool <kernel_shape = [2], pads = [1, 0]> (u{b})
        {b} = Squeeze (m{b}, first)""",
    "p{b} = Abs ({a}) s{b} = Add (p{b}, half) {b} = Sqrt (s{b})",
    "{b} = LayerNormalization <epsilon = 0.1> ({a}, slope)",
)


def drawn(rng: np.random.Generator, rows: int, width: int) -> onnx.ModelProto:
    """An embedding, attention over the window, and a chain of five random operators behind."""
    chain = [text.format(a=f"t{number}", b=f"t{number + 1}") for number, text in enumerate(rng.choice(CHAIN, 5))]
    model = parsed(
        f"""(int64[{rows}] x) => (float[{rows}, {width}] t5) {{
            e = Gather (table, x)
            k = MatMul (e, K)
            turned = Transpose <perm = [1, 0]> (e)
            scores = MatMul (k, turned)
            weights = Softmax (scores)
            t0 = MatMul (weights, e)
            {" ".join(chain)}
        }}""",
        table=(9, width),
        K=(width, width),
        slope=(width,),
        last=[-1],
        first=[0],
        half=np.float32(0.5),
        one=np.float32(1),
    )
    model.opset_import[0].version = 20  # the first with Gelu
    return model


@pytest.mark.random(
    tail=1e-8,
    why="measured under 110 seeds: 6.6 of the logarithm of the error, of which the largest is 0.03 of the "
    "bound; no operator of these networks has a jump or a steep slope",
)
@needs_compiler
@pytest.mark.parametrize("number", rest_is_heavy(list(range(8)), lambda number: number == 0))
def test_random_networks_as_onnxruntime_computes_them(number, rng):
    rows, width = int(rng.integers(2, 30)), int(rng.integers(1, 40))
    model = drawn(rng, rows, width)
    x = rng.integers(0, 9, rows)
    (right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (found,) = computed(model, {"x": x.astype(np.float32)}, RUNNABLE[0]).values()
    kinds = [node.op_type for node in model.graph.node]
    assert np.allclose(found, right, rtol=1e-4, atol=2e-5 * max(1, np.abs(right).max())), (rows, width, kinds)
