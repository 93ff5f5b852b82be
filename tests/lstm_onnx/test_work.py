"""Files that describe more work than anybody can do are refused before it is begun, or ended."""

from __future__ import annotations

import math
import os
import signal
import threading

import numpy as np
import onnx
import onnx.inliner
import pytest
from onnx import TensorProto, helper

from lstm_onnx import limits, work
from lstm_onnx.own_network import OnnxNetwork
from lstm_trt.config.errors import TimeLimitReached, UsageError
from tests.support.own_networks import one_line, parsed, value

INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


#: Of an input: not given.
NONE = '""'


def relu():
    return parsed("(float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }")


def calling(calls):
    """A network of local functions: function `k` calls `calls[k]` one after another, or is one Relu without any."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    functions = []
    for number, called in enumerate(calls):
        nodes = [
            helper.make_node(f"f{other}", [f"t{place}"], [f"t{place + 1}"], domain="local")
            for place, other in enumerate(called)
        ]
        nodes = nodes or [helper.make_node("Relu", ["t0"], ["t1"])]
        end = nodes[-1].output[0]
        functions.append(helper.make_function("local", f"f{number}", ["t0"], [end], nodes, opsets))
    node = helper.make_node(f"f{len(calls) - 1}", ["x"], ["y"], domain="local")
    graph = helper.make_graph([node], "calling", [value("x", [2, 3])], [value("y", [2, 3])])
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8)


def counted(model):
    functions = {(each.domain, each.name): each for each in model.functions}
    return work.operators(model.graph, functions, {})


@pytest.mark.random(tail=0, why="identity")
def test_operators_of_functions_are_counted_as_the_inliner_expands_them(rng):
    for _ in range(20):
        calls = [[int(other) for other in rng.integers(0, k, rng.integers(1, 4))] if k else [] for k in range(5)]
        model = calling(calls)
        assert counted(model) == len(onnx.inliner.inline_local_functions(model).graph.node)


@pytest.mark.parametrize(
    "calls",
    [[[], *([k, k] for k in range(40))], [[0]], [[1], [0]], [[], *([k] for k in range(5000))]],
    ids=["doubled", "calls itself", "each other", "deep"],
)
def test_functions_without_end_are_refused_before_they_are_expanded(calls, monkeypatch):
    monkeypatch.setattr(onnx.inliner, "inline_local_functions", lambda model: pytest.fail("expanded"))
    with pytest.raises(UsageError, match=r"functions|recursion"):
        work.read(calling(calls).SerializeToString(), "it")


def loop(inner, most="", condition="Identity", depth=0):
    """Operators of a Loop around a Loop and so on, with a Relu in the last; `inner`: their numbers of passes.

    `most`: the name of the number of passes, in place of a constant. `condition`: the operator that makes the condition
    of the next pass.
    """
    within, made = f"w = Relu (v{depth})", "w"
    if inner[1:]:
        within, made = loop(inner[1:], most, condition, depth + 1), f"w{depth + 1}"
    number = "" if most else f"n{depth} = Constant <value = int64 {{{inner[0]}}}> ()"
    return f"""{number} w{depth} = Loop <
        body = b (int64 pass{depth}, bool on{depth}, float[] v{depth}) => (bool still{depth}, float[] {made}) {{
            still{depth} = {condition} (on{depth}) {within}
        }}
    > ({most or f"n{depth}"}, "", {f"v{depth - 1}" if depth else "x"})"""


def looping(inner, before="", **how):
    text = f"{before} {loop(inner, **how)} y = Identity (w0)"
    return parsed(f"(float[2, 3] x) => (float[2, 3] y) {{ {text} }}", large=np.float32(2.0**61))


@pytest.mark.parametrize("inner", [[5], [7, 3], [2, 3, 4], [0]])
def test_passes_of_loops_in_loops_are_multiplied(inner):
    expected = sum(math.prod(inner[: depth + 1]) for depth in range(len(inner)))
    assert work.passes(looping(inner).graph, {}) == expected


@pytest.mark.parametrize("inner", [[2**62], [2000, 2000, 2000]], ids=["long", "nested"])
def test_loops_of_too_many_passes_are_refused(inner):
    with pytest.raises(UsageError, match="loops that never end, or have more than 1000000 passes"):
        OnnxNetwork(looping(inner).SerializeToString())


def test_a_loop_without_a_number_and_with_a_constant_condition_is_refused_and_one_that_may_end_is_not():
    assert work.passes(looping([1], most=NONE).graph, {}) == math.inf
    assert work.passes(looping([2**62], condition="Not").graph, {}) == 0
    assert work.passes(relu().graph, {}) == 0


def scan(steps):
    return parsed(
        f"""(float[{steps}, 3] x) => (float[{steps}, 3] y) {{
            y = Scan <body = b (float[3] v) => (float[3] w) {{ w = Relu (v) }}, num_scan_inputs = 1> (x)
        }}"""
    )


def test_passes_of_a_scan_are_those_of_its_input():
    assert work.passes(scan(8).graph, {}) == 8
    with pytest.raises(UsageError, match="passes"):
        work.read(scan(2**40).SerializeToString(), "it")


def endless():
    """A Loop that no text of the file ends: the number of its passes is 2**61 and more, by what the input is."""
    before = """most = ReduceMax <keepdims = 0> (x)
        size = Abs (most)
        number = Add (size, large)
        passes = Cast <to = 7> (number)"""
    return looping([1], before, most="passes").SerializeToString()


def test_a_loop_that_does_not_end_is_ended_within_the_limit_that_the_message_names(monkeypatch):
    monkeypatch.setattr(limits, "LIMIT_S", 0.3)
    with one_line(r"longer than 0\.3 s", TimeLimitReached):
        OnnxNetwork(endless())


def test_an_interrupt_ends_a_call_of_a_network():
    threads = threading.active_count()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        OnnxNetwork(endless())
    assert threading.active_count() == threads


def test_a_number_of_passes_may_be_an_attribute():
    text = f"{loop([5], most='five')} y = Identity (w0)"
    model = parsed(f"(float[2, 3] x) => (float[2, 3] y) {{ five = Constant <value_int = 5> () {text} }}")
    assert work.passes(model.graph, {}) == 5
