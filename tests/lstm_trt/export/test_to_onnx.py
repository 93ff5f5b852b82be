"""Real exports: content of the file, comparison with ONNX's reference evaluator, the cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest

from lstm_trt.config.errors import ExportFailed, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.export import to_onnx
from lstm_trt.export.network import make_inputs
from lstm_trt.export.sizes import static_model
from lstm_trt.export.tensorrt import trt as export_trt
from lstm_trt.export.tensorrt.build import build_engine
from lstm_trt.export.tensorrt.engine import EngineOptions
from lstm_trt.store import cache
from tests.support.network_in_numpy import evaluate, parse
from tests.support.prepared_steps import reference

SHAPES = [
    LstmShape(1, 8, 1),
    LstmShape(3, 16, 7, 2),
    LstmShape(2, 12, 5, 3, directions=2),
    LstmShape(1, 6, 4, 1, features=3, directions=2),
]


def sizes(value) -> list:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_one_file_serves_every_sequence_and_batch():
    first = to_onnx.export_network(LstmShape(2, 24, 3, 1))
    second = to_onnx.export_network(LstmShape(2, 24, 500, 64))
    assert first.path == second.path and not first.cached and second.cached
    graph = onnx.load(first.path).graph
    assert sizes(graph.input[0]) == ["sequence", "batch", 12]
    assert sizes(graph.output[0])[:2] == ["sequence", "batch"]
    assert [node.op_type for node in graph.node].count("LSTM") == 2


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
def test_the_static_graph_is_valid_and_computes_what_pytorch_does(shape):
    exported = to_onnx.export_network(shape, 5)
    model = onnx.load_from_string(static_model(exported.path, shape))
    onnx.checker.check_model(model, full_check=True)
    assert sizes(model.graph.input[0]) == [shape.sequence, shape.batch, shape.features]
    assert sizes(model.graph.output[0]) == [shape.sequence, shape.batch, 1]
    if shape.directions == 2:
        return  # ONNX's reference evaluator has no reverse direction; ONNX Runtime's test covers it
    inputs, _, _ = make_inputs(shape, 1)
    (outputs,) = onnx.reference.ReferenceEvaluator(model).run(None, {to_onnx.INPUT: inputs})
    np.testing.assert_allclose(outputs, reference(shape, inputs, 5), rtol=0, atol=1e-6)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_step_version_computes_a_long_sequence_call_by_call(tmp_path, layers, symbolic):
    shape = LstmShape(layers, 10, 4, 3)
    written = to_onnx.export_onnx(shape, tmp_path, symbolic=symbolic, seed=5, mode="stream")
    assert written.path.stem == (f"{layers}x10-symbolic-stream" if symbolic else f"{shape.label}-stream")
    assert written.as_dict()["mode"] == "stream" and "h0 -> hn, c0 -> cn" in str(written)
    model = onnx.load(written.path)
    assert [value.name for value in model.graph.input] == ["inputs", "h0", "c0"]
    assert [value.name for value in model.graph.output] == ["outputs", "hn", "cn"]
    state = [layers, "batch" if symbolic else 3, 10]
    assert [sizes(value) for value in model.graph.input[1:]] == [state, state]
    evaluator = onnx.reference.ReferenceEvaluator(model)
    check_calls(shape, lambda *given: evaluator.run(None, dict(zip(("inputs", "h0", "c0"), given, strict=True))))


def check_calls(shape: LstmShape, compute: Callable) -> None:
    """Three calls give the outputs of a long sequence; `compute(inputs, h, c)` returns outputs, h and c."""
    inputs, _, _ = make_inputs(shape, 1, calls=3)
    state = 2 * [np.zeros((shape.layers, shape.batch, shape.hidden), np.float32)]
    for one_call, outputs in zip(np.split(inputs, 3), np.split(reference(shape, inputs, 5), 3), strict=True):
        found, *state = compute(one_call, *state)
        np.testing.assert_allclose(found, outputs, rtol=0, atol=1e-6)


@pytest.mark.heavy
def test_tensorrt_parses_and_builds_the_step_version(tmp_path):
    """The network that TensorRT for RTX parsed, computed in numpy call by call, and an engine; neither needs a GPU."""
    trt = pytest.importorskip("tensorrt_rtx")
    shape = LstmShape(2, 16, 3, 2)
    content = to_onnx.export_onnx(shape, tmp_path, seed=5, mode="stream").path.read_bytes()
    network, keep = parse(trt, export_trt.logger("tensorrt-rtx"), content)

    def compute(inputs, h, c):
        found = evaluate(trt, network, {"inputs": inputs, "h0": h, "c0": c})
        return found["outputs"], found["hn"], found["cn"]

    check_calls(shape, compute)
    for precision in ("fp32", "fp16"):
        options = EngineOptions("tensorrt-rtx", precision, compute_capability="sm89")
        assert keep and build_engine(content, options, name="stream").plan


def test_a_size_fixed_inside_the_graph_is_detected(tmp_path):
    """What the dynamo exporter of PyTorch 2.13 does: symbolic outside, a constant in a Reshape."""
    shape = LstmShape(1, 8, 3, 2)
    model = onnx.load(to_onnx.export_network(shape).path)
    graph = model.graph
    output = graph.output[0].name
    last = next(node for node in graph.node if output in node.output)
    last.output[0] = "unshaped"
    graph.initializer.append(onnx.helper.make_tensor("frozen", onnx.TensorProto.INT64, [3], [3, -1, 1]))
    graph.node.append(onnx.helper.make_node("Reshape", ["unshaped", "frozen"], [output]))
    onnx.save(model, tmp_path / "frozen.onnx")
    assert static_model(tmp_path / "frozen.onnx", shape)  # correct at the size of the example
    with pytest.raises(ExportFailed, match=r"gives outputs of|cannot be made static"):
        static_model(tmp_path / "frozen.onnx", LstmShape(1, 8, 6, 2))


@pytest.mark.parametrize("content", [b"", b"no protobuf at all", b"\x08\x07", None], ids=str)
def test_files_that_are_no_network_are_refused(tmp_path, content):
    shape, path = LstmShape(1, 20, 3), tmp_path / "bad.onnx"
    whole = to_onnx.export_network(shape).path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(ExportFailed, match=r"bad\.onnx"):
        static_model(path, shape)


def test_a_damaged_cache_is_repaired():
    exported = to_onnx.export_network(LstmShape(1, 20, 3))
    whole = exported.path.read_bytes()
    exported.path.write_bytes(whole[: len(whole) // 2])
    again = to_onnx.export_network(LstmShape(1, 20, 3))
    assert not again.cached and again.sha256 == exported.sha256 and again.path.read_bytes() == whole


def test_seeds_and_sizes_have_separate_files():
    paths = {
        to_onnx.export_network(LstmShape(layers, hidden, 4, directions=directions), seed).path
        for layers in (1, 2)
        for hidden in (5, 6)
        for directions in (1, 2)
        for seed in (0, 1)
    }
    assert len(paths) == 16


def test_the_command_writes_the_file_that_it_states(tmp_path, lab):
    arguments = ("export", "--layers", 2, "--hidden", 10, "--sequence", 6, "--batch", 3, "--out", tmp_path)
    answer = json.loads(lab(*arguments, "--format", "json").stdout)
    model = onnx.load(answer["path"])
    onnx.checker.check_model(model, full_check=True)
    assert sizes(model.graph.input[0]) == [6, 3, 12]
    assert answer["sha256"] == cache.sha256((tmp_path / "2x10-s6-b3.onnx").read_bytes())
    assert lab(*arguments, "--symbolic").returncode == 0
    assert sizes(onnx.load(tmp_path / "2x10-symbolic.onnx").graph.input[0]) == ["sequence", "batch", 12]


def test_the_cache_is_bounded_and_drops_what_was_used_longest_ago(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LSTM_TRT_CACHE_MB", "3")
    for number in range(5):
        path, _, there = cache.fetch("kind", f"key{number}", ".bin", lambda: bytes(900_000))
        assert not there and path.exists()
        cache.fetch("kind", "key0", ".bin", lambda: bytes(900_000))  # used all the time
    left = {entry.path.name for entry in cache.entries()}
    assert left == {"key0.bin", "key3.bin", "key4.bin"}
    assert sum(entry.size_bytes for entry in cache.entries()) == 2_700_000 and len(cache.entries()) == 3
    cache.clear()
    assert cache.entries() == []
    monkeypatch.setenv("LSTM_TRT_CACHE_MB", "much")
    with pytest.raises(UsageError, match="LSTM_TRT_CACHE_MB"):
        cache.limit_bytes()


def test_an_entry_that_another_process_removes_is_passed_over(tmp_path, monkeypatch):
    """As `cache --clear` does during a sweep: between the listing of the names and the look at each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for key in "ab":
        cache.keep("onnx", key, ".onnx", b"content")
    look = Path.stat

    def removed_afterwards(path, **how):
        status = look(path, **how)
        if path.name == "a.onnx":
            path.unlink()
        return status

    monkeypatch.setattr(Path, "stat", removed_afterwards)
    assert len(cache.entries()) == 2
    assert [entry.path.name for entry in cache.entries()] == ["b.onnx"]
    cache.trim()


def test_an_unwritable_cache_is_one_line(tmp_path, refused):
    blocked = tmp_path / "file"
    blocked.write_text("")
    line = refused(
        *("export", "--layers", 1, "--hidden", 4, "--sequence", 2, "--out", tmp_path / "out"),
        XDG_CACHE_HOME=str(blocked),
    )
    assert "XDG_CACHE_HOME" in line
