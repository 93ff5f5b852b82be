"""The runtime `c`: its outputs, what is compiled and cached, and what is said without a compiler."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

from lstm_onnx.c import compile as c_compile, runtime as c
from lstm_onnx.c.compile import find_compiler, shared_library
from lstm_trt.config.errors import BuildFailed, RuntimeUnavailable
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.network import make_inputs
from lstm_trt.export.to_onnx import INPUT, OUTPUT
from lstm_trt.recorder import describe
from lstm_trt.recorder.parity import PARITY_BOUNDS, relative_error
from lstm_trt.store import cache, files
from tests.conftest import rest_is_heavy, wait_for
from tests.support import own_networks
from tests.support.planted_graphs import relu
from tests.support.prepared_steps import prepare, reference

SHAPE = LstmShape(2, 20, 7)
SHAPES = (SHAPE, LstmShape(1, 1, 1, features=1), LstmShape(3, 33, 5, features=5), LstmShape(2, 200, 128))

needs_compiler = pytest.mark.skipif(not c.availability().ready, reason="needs a C compiler")
needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")


@needs_compiler
@pytest.mark.parametrize("shape", rest_is_heavy(SHAPES, SHAPE.__eq__), ids=lambda shape: shape.label)
def test_outputs_follow_the_inputs_and_agree_with_pytorch(shape):
    step = prepare("c", shape)
    for seed in (1, 2):
        inputs, _, _ = make_inputs(shape, seed)
        step.load_inputs({INPUT: inputs})
        step.step()
        assert relative_error(step.outputs()[OUTPUT], reference(shape, inputs)) < PARITY_BOUNDS["fp32"] / 5
    again = prepare("c", shape)
    assert again.facts() == {**step.facts(), "library_cached": True} and again.costs.keys() == {
        "build_s",
        "first_call_s",
    }
    assert step.facts()["compiler"] == find_compiler().version and "native" in step.facts()["flags"]
    step.close()
    step.reset()  # its memory is gone


@needs_compiler
def test_batch_size_1():
    assert "batch size" in c.supports(LstmShape(1, 8, 4, 2), "forward") and c.supports(SHAPE, "forward") is None


def library(*flags: str, source: str = "float half(float x) { return x / 2; }\n"):
    return shared_library(find_compiler(), "small", source, "", flags)


@needs_gcc
def test_an_entry_of_the_cache_has_its_flags_compiler_and_processor(monkeypatch):
    monkeypatch.setenv("CC", "gcc")
    path, _, cached = library("-O1", "-DPLANTED")
    again = library("-O1", "-DPLANTED")
    assert not cached and again.path == path and again.cached
    assert library("-O2", "-DPLANTED")[0] != path
    monkeypatch.setattr(c_compile, "cpuinfo_flags", lambda: frozenset({"planted"}))
    assert library("-O1", "-DPLANTED")[0] != path
    monkeypatch.undo()
    path.write_bytes(b"damaged")
    monkeypatch.setenv("CC", "gcc")
    mended = library("-O1", "-DPLANTED")
    assert mended.path == path and not mended.cached


@needs_gcc
def test_loading_a_library_leaves_denormals_as_they_are(monkeypatch):
    """With -ffast-math, gcc links code into a shared library that flushes denormals of the thread that loads it."""
    import ctypes

    monkeypatch.setenv("CC", "gcc")
    small = np.array([1e-30], np.float32)
    ctypes.PyDLL(str(library("-O2", "-ffast-math")[0]))
    assert (small * np.float32(1e-10) > 0).all()


#: A compiler that can be asked for its version; then it does what is planted.
COMPILER = '#!/bin/sh\ncase $1 in -E) exec gcc "$@" ;; esac\n'

FAILURES = {
    "small.c:1:2: error: planted": "echo 'small.c: In function f:\nsmall.c:1:2: error: planted\nmore' >&2; exit 1\n",
    "failed: ended by signal 9": "kill -9 $$\n",
    "failed: exit status 3": "exit 3\n",
    "wrote no file": "exit 0\n",
    "did not end within 0.5 s": "sleep 1000 & echo $! > $PLANTED; wait\n",
}


def plant_a_limit(monkeypatch, started: Path) -> None:
    """The time of a compiler is over when it has written `started`, and not before, however busy the machine is."""
    communicate = subprocess.Popen.communicate

    def until_started(child: subprocess.Popen, timeout: float | None = None):
        if "-E" in child.args:
            return communicate(child)
        assert timeout == 0.5 and wait_for(lambda: started.exists() and started.read_text().strip())
        raise subprocess.TimeoutExpired(child.args, timeout)

    monkeypatch.setattr(c_compile, "limit_s", lambda source: 0.5)
    monkeypatch.setattr(subprocess.Popen, "communicate", until_started)


def test_a_larger_source_has_more_time():
    small, large = "int f(void) { return 1; }\n", "int f(void) { return 1; }\n" * 1000
    weights = f"float w[] = {{{'0x1p-3f, ' * 1_000_000}}};"
    assert 60 < c_compile.limit_s(small) < 61 < c_compile.limit_s(large) < c_compile.limit_s(weights)


@needs_gcc
@pytest.mark.parametrize("message", FAILURES)
def test_a_compiler_that_fails_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, message):
    path = tmp_path / "planted-cc"
    path.write_text(COMPILER + FAILURES[message])
    path.chmod(0o755)
    monkeypatch.setenv("CC", shlex.quote(str(path)))
    monkeypatch.setenv("PLANTED", str(tmp_path / "pid"))
    if "within" in message:
        plant_a_limit(monkeypatch, tmp_path / "pid")
    before = cache.entries()
    with pytest.raises(BuildFailed, match="planted-cc") as failure:
        library()
    assert message in str(failure.value) and "\n" not in str(failure.value)
    assert cache.entries() == before
    if "within" in message:
        pid = int((tmp_path / "pid").read_text())
        assert wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


@pytest.mark.parametrize(
    ("variable", "reason"),
    [("", "no C compiler"), ("no-such-cc -m64", "'no-such-cc'"), ("'cc", "No closing quotation")],
)
def test_without_a_compiler_there_is_a_reason_and_a_remedy(variable, reason, tmp_path, monkeypatch, lab, refused):
    monkeypatch.setattr(c_compile.importlib.util, "find_spec", lambda name: None)
    describe.availability.cache_clear()
    given = {"CC": variable, "PATH": str(tmp_path)}
    line = refused(
        "record", "--layers", 1, "--hidden", 8, "--sequence", 4, "--runtime", "c", "--out", tmp_path, **given
    )
    assert reason in line and "apt install gcc" in line
    describe.availability.cache_clear()
    rows = json.loads(lab("doctor", "--format", "json", **given).stdout)["runtimes"]
    (row,) = (row for row in rows if row["runtime"] == "c")
    assert not row["ready"] and reason in row["reason"] and row["remedy"].startswith("install a C compiler: ")


@pytest.mark.parametrize("variable", ["tr", "true"])
def test_a_program_that_is_no_compiler(variable, monkeypatch):
    monkeypatch.setenv("CC", variable)
    with pytest.raises(RuntimeUnavailable, match=variable):
        find_compiler()


@pytest.mark.heavy
@needs_compiler
@pytest.mark.parametrize("mode", ["forward", "stream"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recordings_pass_the_gate(tmp_path, lab, mode, kind):
    """A shape in a window and a stream; an ONNX file with states, which has no window."""
    path, sizes = own_networks.saved(own_networks.stream(kind), tmp_path), ("--size", "time=7", "batch=1")
    given = ("--onnx", path, *sizes) if mode == "stream" else ("--layers", 1, "--hidden", 8, "--sequence", 7)
    rest = ("--mode", mode, "--runtime", "c", "--trials", 200, "--no-control", "--format", "json", "--out", tmp_path)
    result = lab("record", *given, *rest)
    assert result.returncode == 0, result.stderr
    (recording,) = tmp_path.glob("*.parquet")
    provenance = files.read(recording).provenance
    assert 0 < provenance["parity"]["error"] < 2e-6 and provenance["parity"]["nan_reaches_output"]
    assert provenance["runtime"]["compiler"] and provenance["costs_s"]["build_s"] > 0


@pytest.mark.heavy
@needs_compiler
def test_an_operator_that_cannot_be_generated_is_named(tmp_path, lab):
    model = onnx.load_from_string(relu())
    model.graph.node[0].op_type, model.graph.node[0].name = "Floor", "my_floor"
    path = own_networks.saved(model, tmp_path)
    result = lab("record", "--onnx", path, "--runtime", "c", "--out", tmp_path / "out")
    assert result.returncode == 2 and "build: Floor operator 'my_floor'" in result.stderr.splitlines()[-1]
    rows = json.loads(lab("inspect", path, "--format", "json").stdout)["runtimes"]
    (row,) = (row for row in rows if row["runtime"] == "c")
    assert row["state"] == "refused" and "Floor operator 'my_floor'" in row["reason"]
    path = own_networks.saved(own_networks.dense(), tmp_path, "dense")
    rows = json.loads(lab("inspect", path, "--size", "batch=1", "--format", "json").stdout)["runtimes"]
    (row,) = (row for row in rows if row["runtime"] == "c")
    assert row["state"] == "runs" and row["error"] < 2e-6
