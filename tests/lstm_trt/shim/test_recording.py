"""Recordings on TensorRT over the stand-in for the driver."""

from __future__ import annotations

import itertools
import json
import os
import shlex
from functools import partial
from pathlib import Path

import pytest

import lstm_trt
from benchmarks import gpu_packages
from lstm_onnx.own_network import OnnxNetwork
from lstm_trt import runtimes
from lstm_trt.config.configuration import Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.config.step import Step
from lstm_trt.machine import checks, gpu, linux
from lstm_trt.machine.gpu import SHIM_NAME, SHIM_VARIABLE
from lstm_trt.machine.process import Interpreter
from lstm_trt.recorder import run, warm_up
from lstm_trt.recorder.describe import availability, describe
from lstm_trt.recorder.pool import WorkerPool, record
from lstm_trt.recorder.sweep import run_sweep
from lstm_trt.runtimes.base import preparer_of
from lstm_trt.runtimes.cuda import _cuda
from lstm_trt.store import folders
from tests.conftest import ROOT, rest_is_heavy
from tests.support import shim
from tests.support.own_networks import saved, stream, words
from tests.support.pictures import text_of
from tests.test_readme import blocks

SHAPE = LstmShape(1, 18, 8)
SIZE = ("--layers", 1, "--hidden", 18, "--sequence", 8)
ARRIVALS = ({}, {"arrival": "periodic", "period_us": 10_000.0}, {"arrival": "paused", "pause_ms": 1.0})


def recorded(asked: list, folder: Path, largest_error: float = 1e-6, **how) -> list:
    """The recordings of a sweep in which nothing fails; the gate compared their outputs with the reference."""
    report = run_sweep(asked, folder, show_progress=False, **how)
    assert (report.recorded, report.failures) == (len(asked), [])
    recordings = list(folders.read_many(folder))
    for recording in recordings:
        parity, precision = recording.provenance["parity"], recording.configuration.options.precision
        assert 0 <= parity["error"] <= (largest_error if precision == "fp32" else parity["bound"])
    return recordings


@pytest.mark.heavy
def test_a_step_of_ones_own_on_the_gpu(tmp_path):
    step = Step("tests.support.own_steps:make_numpy")
    recording = record(step, protocol=Protocol(trials=20), options=Options(device="cuda"), out=tmp_path)
    assert recording.configuration.device_name == SHIM_NAME
    assert recording.provenance["device_warm_up"]["calls"] and recording.provenance["gpu_before"]
    assert "gpu_sm_mhz" in recording.provenance["blocks"][0]
    with pytest.raises(UsageError, match="--graph"):
        describe(step, options=Options(device="cuda", graph=True))


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_graphs_clocks_and_arrivals(tmp_path, whole):
    """Every combination of graph and clocks, with all arrivals only where both are used unless `whole`."""
    shape = LstmShape(1, 22, 8)  # whose engine no other test builds
    asked = [
        describe(shape, "tensorrt", Protocol(trials=20, **arrival), Options(graph=graph, device_clocks=clocks))
        for graph, clocks, arrival in itertools.product((False, True), ("off", "compute", "all"), ARRIVALS)
        if whole or not arrival or (graph and clocks == "all")
    ]
    keys = set()
    for recording in recorded(asked, tmp_path, control=True):
        options, facts = recording.configuration.options, recording.provenance["runtime"]
        assert recording.configuration.device_name == SHIM_NAME
        told = {"graph_captured": options.graph, "graph_fallback": None, "graph_nodes": 1 if options.graph else None}
        assert facts.items() >= {**told, "driver_layer": os.environ["SHIM_LAYER"]}.items()
        assert facts["device_wait"].endswith("spins")
        columns = set(recording.columns) & {"compute_ns", "enqueue_ns", "h2d_ns", "d2h_ns"}
        assert len(columns) == {"off": 0, "compute": 2, "all": 4}[options.device_clocks]
        assert not columns or {"compute_ns", "enqueue_ns"} <= columns
        for name in columns:
            assert (recording.columns[name] >= 0).all() and len(recording.columns[name]) >= 20
        if options.device_clocks == "all" and recording.configuration.protocol.arrival != "periodic":
            inside = sum(recording.columns[name] for name in ("h2d_ns", "compute_ns", "d2h_ns"))
            assert (inside <= recording.columns["latency_ns"]).all()
        assert {"gpu_sm_mhz", "gpu_temperature_c"} <= recording.provenance["blocks"][0].keys()
        keys.add(facts["engine_sha256"])
        assert recording.provenance["threads"]["pinned_to"] == list(options.cores)
        others = sorted(set(linux.allowed_cores()) - set(options.cores)) or list(options.cores)
        assert facts["engine_warnings"] == [f"built on the cores {others}"]
    assert len(keys) == 1  # with and without a graph it is the same engine


@pytest.mark.heavy
@pytest.mark.parametrize("shape", [LstmShape(1, 18, 1), LstmShape(2, 20, 7, 3)], ids=lambda shape: shape.label)
def test_a_stream_carries_its_state_in_device_memory(tmp_path, shape):
    """With and without a graph, where one copy follows the engine; the parity gate compares a thousand samples."""
    asked = [
        describe(shape, "tensorrt", Protocol(trials=20), Options(graph=graph, device_clocks=clocks), "stream")
        for graph, clocks in itertools.product((False, True), ("off", "all"))
    ]
    for recording in recorded(asked, tmp_path, control=True):
        options, facts = recording.configuration.options, recording.provenance["runtime"]
        assert recording.provenance["device_warm_up"]["calls"] > 0
        assert facts["tensor_types"] == dict.fromkeys(("inputs", "outputs", "h0", "c0", "hn", "cn"), "float32")
        assert (facts["graph_captured"], facts["graph_nodes"]) == ((True, 2) if options.graph else (False, None))
        assert ("compute_ns" in recording.columns) == (options.device_clocks == "all")


@pytest.mark.heavy
@pytest.mark.parametrize(("make", "mode"), [(stream, "stream"), (partial(stream, "GRU"), "stream"), (words, "forward")])
def test_own_networks_with_several_inputs_of_their_types(tmp_path, make, mode):
    network = OnnxNetwork(saved(make(), tmp_path), sizes={"time": 3, "batch": 2})
    asked = [describe(network, "tensorrt", Protocol(trials=20), Options(graph=graph), mode) for graph in (False, True)]
    for recording in recorded(asked, tmp_path / "runs", 1e-5):
        kinds = recording.provenance["runtime"]["tensor_types"]
        expected = {"tokens": "int64", "lengths": "int32", "scores": "float32", "best": "int64"}
        assert kinds == (expected if mode == "forward" else dict.fromkeys(kinds, "float32"))


@pytest.mark.parametrize(
    ("planted", "stage", "said"),
    rest_is_heavy(
        [
            ({"SHIM_FAIL": "cuStreamSynchronize:30:700:sticky"}, "run", "illegal memory access"),
            ({"SHIM_MEMORY": "600"}, "memory", "out of memory"),
            ({"SHIM_FAIL": "cuDevicePrimaryCtxRetain:2:2"}, "memory", "context"),
            ({"SHIM_TRT_NULL": "1"}, "build", "driver version is insufficient"),
            ({"SHIM_TRT_BUILD": "fail"}, "build", "any implementation for node"),
            ({"SHIM_MEMORY": "100"}, "memory", "512 bytes needed"),
        ],
        quick=lambda planted, stage, said: stage == "run",
    ),
)
def test_a_failure_is_a_row_with_its_reason(tmp_path, monkeypatch, planted, stage, said):
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    report = run_sweep([describe(SHAPE, "tensorrt", Protocol(trials=50))], tmp_path / "runs", show_progress=False)
    (failure,) = report.failures
    assert failure.stage == stage and said in failure.reason
    if "sticky" in str(planted):  # a dead device frees nothing
        shim.left()


@pytest.mark.heavy
def test_a_capture_that_is_refused_is_never_published_as_a_graph(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIM_TRT_SYNCHRONIZES", "1")
    recording = lstm_trt.record(SHAPE, "tensorrt", Protocol(trials=50), Options(graph=True), out=tmp_path)
    facts = recording.provenance["runtime"]
    assert (facts["graph_captured"], facts["graph_nodes"]) == (False, None)
    assert "not permitted when stream is capturing" in facts["graph_fallback"]
    assert any(facts["graph_fallback"] in warning for warning in recording.provenance["warnings"])
    monkeypatch.delenv("SHIM_TRT_SYNCHRONIZES")
    for graph in (False, True):  # the captured one is the second round of the same configuration
        lstm_trt.record(SHAPE, "tensorrt", Protocol(trials=50), Options(graph=graph), out=tmp_path)
    rows = lstm_trt.summarize(tmp_path)
    assert sorted((row.configuration["graph"], row.facts["graph_captured"]) for row in rows) == [
        (False, False),
        (True, False),
        (True, True),
    ]
    assert len({group.name for group in lstm_trt.load(tmp_path)}) == 3
    assert {"yes", "no", "refused"} <= set(str(rows).split())
    assert "tensorrt, graph refused" in text_of(lstm_trt.plots.runtimes(tmp_path))


def test_a_soak(tmp_path, lab):
    done = lab(
        "record", *SIZE, "--runtime", "tensorrt", "--graph", "--for", "1s", "--out", tmp_path, "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    (recording,) = folders.read_many(tmp_path)
    assert len(recording.timed_ns) == json.loads(done.stdout)["trials"] > 0


@pytest.mark.heavy
def test_the_commands_of_the_gpu_page_run_and_a_second_device_is_another_one(tmp_path, monkeypatch, lab, refused):
    """Its name tells the recordings apart, its number does not."""
    monkeypatch.setenv("SHIM_DEVICES", "2")
    shown = "\n".join(block for language, block in blocks((ROOT / "docs/gpu.md").read_text()) if language == "bash")
    commands = [shlex.split(line)[1:] for line in shown.splitlines() if line.startswith("lstm-trt ")]
    answers = [lab(*command, "--format", "json", cwd=tmp_path) for command in commands]
    assert [answer.returncode for answer in answers] == [0] * 4, answers
    (row,) = [row for row in json.loads(answers[0].stdout)["runtimes"] if row["runtime"] == "tensorrt"]
    assert (row["ready"], row["device_name"], row["version"]) == (True, SHIM_NAME, "11.4.0.106")
    recordings = list(folders.read_many(tmp_path / "gpu"))
    found = {(item.configuration.device_name, item.configuration.options.device_clocks): item for item in recordings}
    assert set(found) == {(SHIM_NAME, "off"), (SHIM_NAME, "all"), (f"{SHIM_NAME} 1", "off")}
    first, second = found[SHIM_NAME, "off"], found[f"{SHIM_NAME} 1", "off"]
    assert second.provenance["gpu_before"]["name"] == f"{SHIM_NAME} 1"
    assert second.provenance["machine"]["cuda_settings"] == {"CUDA_VISIBLE_DEVICES": "1"}
    assert first.configuration.as_dict()["options"] == second.configuration.as_dict()["options"]
    assert "cuda:2" in refused(*commands[1], "--device", "cuda:2")


@pytest.mark.parametrize(("version", "major"), [(12080, 12), (13000, 13), (14000, 13), (11080, None)])
def test_the_packages_are_those_of_the_drivers_cuda_version(monkeypatch, version, major):
    monkeypatch.setenv("SHIM_VERSION", str(version))
    if major is None:
        with pytest.raises(gpu.NoCudaDevice, match=r"supports CUDA 11\.8"):
            gpu_packages.requirements()
    else:
        assert gpu_packages.requirements()[0].startswith(f"tensorrt-cu{major}>=")
        assert gpu_packages.requirements("headers") == gpu_packages.REQUIREMENTS[major]["headers"]


@pytest.mark.parametrize(
    ("planted", "name", "verdict", "found"),
    [
        ({}, "GPU driver", "good", "CUDA 13.0"),
        ({"SHIM_VERSION": "12080"}, "GPU driver", "attention", "CUDA 12.8"),
        ({}, "GPU compute mode", "good", "default"),
        ({"SHIM_COMPUTE_MODE": "2"}, "GPU compute mode", "attention", "prohibited"),
        ({}, "GPU persistence mode", "good", "on"),
        ({}, "GPU clocks", "unknown", "1500 of at most 1980 MHz"),
        ({"SHIM_NVML": "none"}, "GPU clocks", "unknown", "not visible"),
        ({}, "MPS", "good", "not in use"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/tmp"}, "MPS", "attention", "in use"),
        ({}, "core near the GPU", "unknown", "not visible"),
    ],
)
def test_the_doctor_checks_the_gpu(monkeypatch, planted, name, verdict, found):
    for variable, value in planted.items():
        monkeypatch.setenv(variable, value)
    (check,) = [check for check in checks.host_checks() if check.name == name]
    assert check.verdict == verdict and found in check.value
    assert bool(check.remedy) == (verdict == "attention" or found.startswith("1500"))


def test_a_core_far_from_the_gpu_is_named(tmp_path):
    near_file = tmp_path / "sys/bus/pci/devices/0000:01:00.0/local_cpulist"
    near_file.parent.mkdir(parents=True)
    first, *_, last = (*linux.allowed_cores(), linux.allowed_cores()[-1])
    for near, verdict in ((last, "good"), (first, "good" if first == last else "attention")):
        near_file.write_text(f"{near}")
        check = checks.near_gpu(tmp_path)
        assert (check.verdict, f"taskset --cpu-list {near} " in check.remedy) == (verdict, verdict == "attention")


@pytest.mark.heavy
def test_without_nvml_the_driver_alone_decides(tmp_path, monkeypatch):
    """As on Jetson, and in containers without the driver's utilities."""
    monkeypatch.setenv("SHIM_NVML", "none")
    recording = lstm_trt.record(SHAPE, "tensorrt", Protocol(trials=10), out=tmp_path)
    assert recording.configuration.device_name == SHIM_NAME
    assert recording.provenance["blocks"][0]["gpu_sm_mhz"] is None


def test_a_clock_that_moves_is_a_warning(monkeypatch):
    monkeypatch.delenv("LSTM_TRT_CLOCKS", raising=False)
    readings = [None, *({"gpu_sm_mhz": clock} for clock in (1500, 1495, None, 1500))]
    assert gpu.clock_warnings(readings) == []
    (warning,) = gpu.clock_warnings([*readings, {"gpu_sm_mhz": 1200}])
    assert "1200" in warning and "--lock-gpu-clocks=1500" in warning
    monkeypatch.setenv("LSTM_TRT_CLOCKS", "fixed")
    (warning,) = gpu.clock_warnings([*readings, {"gpu_sm_mhz": 1200}])
    assert "1200" in warning and "nvidia-smi" not in warning and gpu.lock_advice(1500) == ""


def test_the_readings_before_and_after_the_trials_count_too(tmp_path):
    """A recording shorter than a block has one reading between its trials, which alone shows no change."""
    provenance = lstm_trt.record(SHAPE, "tensorrt", Protocol(trials=10), out=tmp_path).provenance
    before, after = provenance["gpu_before"], provenance["gpu_after"]
    assert len(provenance["blocks"]) == 1 and after["gpu_sm_mhz"] and provenance["device_warm_up"]["calls"]
    moved = {**after, "gpu_sm_mhz": before["gpu_sm_mhz"] // 2}
    assert gpu.clock_warnings([before, *provenance["blocks"], moved])


def test_the_primary_context_has_its_address_on_both_layers():
    assert isinstance(_cuda._primary().handle, int) and _cuda._primary().handle


@pytest.mark.heavy
@pytest.mark.parametrize("one_process_only", [False, True])
def test_a_gpu_has_one_process_a_runtime_or_one_in_all(tmp_path, monkeypatch, one_process_only):
    """Precisions, graphs and clocks of a runtime come one after another in its process."""
    asked = [
        describe(SHAPE, "tensorrt", Protocol(trials=10), Options(precision, graph=graph, device_clocks=clocks))
        for precision, graph, clocks in itertools.product(("fp32", "fp16"), (False, True), ("off", "all"))
    ]
    used, alive = set(), []
    original = WorkerPool._worker

    def worker(pool, configuration):
        process = original(pool, configuration)
        used.add(process)
        alive.append(sum(process.alive for process in pool._workers.values()))
        return process

    monkeypatch.setattr(WorkerPool, "_worker", worker)
    monkeypatch.setenv("SHIM_COMPUTE_MODE", "3" if one_process_only else "0")
    recorded(asked, tmp_path / "a", rounds=1)
    assert set(alive) == {1} and len(used) == 1
    others = {configuration.id: Interpreter() for configuration in asked[::2]}
    recorded(asked, tmp_path / "b", rounds=1, interpreters=others)
    assert set(alive) == ({1} if one_process_only else {1, 2})


def test_nobody_records_on_the_stand_in_by_accident(tmp_path, monkeypatch, refused):
    monkeypatch.delenv(SHIM_VARIABLE)
    assert "stand-in" in refused("record", *SIZE, "--runtime", "tensorrt", "--out", tmp_path, process=True)
    assert not list(tmp_path.iterdir())


def test_an_engine_is_built_for_the_gpu_here(tmp_path, lab):
    done = lab("build", *SIZE, "--runtime", "tensorrt", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    (engine,) = tmp_path.glob("*.engine")
    assert engine.stat().st_size and "sm90" in next(tmp_path.glob("*.json")).read_text()


@pytest.mark.heavy
def test_a_notebook_records_with_a_graph(tmp_path, lab):
    sizes = {"layers": "[1]", "hidden": "[16, 18]", "sequence": "[8]", "batch": "[1]", "trials": "30", "rounds": "1"}
    sizes["deep"] = '{"layers": [1], "hidden": [16, 18], "sequence": [8, 16]}'
    chosen = {"runtimes": "[tensorrt]", "device": "cuda", "graph": "true", "record": "true", "out": tmp_path / "runs"}
    given = [item for name, value in (sizes | chosen).items() for item in ("-y", f"{name}: {value}")]
    notebook = ROOT / "notebooks/02_sequence_length.ipynb"
    done = lab("rerun", notebook, "--out", tmp_path / "notebooks", *given)
    assert done.returncode == 0, done.stderr
    rows = lstm_trt.summarize(tmp_path / "runs").frame
    found = list(rows[["runtime", "graph_captured", "hidden", "sequence"]].itertuples(index=False, name=None))
    assert found == [("tensorrt", True, hidden, sequence) for hidden in (16, 18) for sequence in (8, 16)]


@pytest.mark.heavy
def test_a_workload_of_the_literature(tmp_path, lab):
    command = ("lstm-literature", "record", "layer", "--implementation", "tensorrt")
    done = lab(*command, "--hidden", 16, "--batch", 2, "--sequence", 8, "--batches", 10, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    (recording,) = folders.read_many(tmp_path)
    assert recording.configuration.device_name == SHIM_NAME and len(recording.timed_ns) == 10


@pytest.mark.heavy
def test_an_inspector_that_says_something_new_does_not_spoil_the_engine(tmp_path, monkeypatch, lab):
    """Rows as an engine of a future version may have them: an operand that is not among the inputs, and none at all."""
    row = "Name: add, LayerType: add, Inputs: [], Outputs: [ { Name: x, Location: Device }], TacticName: "
    jump = "Name: end, LayerType: jump, Inputs: [ { Name: x, Dimensions: [1] }, { Name: y, Dimensions: [1] }]"
    jump += ", Outputs: [], TacticName: , JumpTargetThen: add, Metadata: "
    for number, rows in enumerate(([row, jump], ["text"], ["Name: "])):
        inspector = tmp_path / "inspector.txt"
        inspector.write_text("\n".join(["Layers:", *rows]))
        monkeypatch.setenv("SHIM_TRT_INSPECTOR", str(inspector))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache{number}"))
        engine = lstm_trt.build_engine(SHAPE, lstm_trt.EngineOptions("tensorrt", detailed=True))
        assert engine.information["layers"] is None or engine.information["layers"]["launches"] is None
        assert engine.plan


@pytest.mark.heavy
def test_tensorrt_for_rtx_is_refused_on_a_gpu_that_it_does_not_support(monkeypatch, tmp_path, lab):
    def row() -> dict:
        availability.cache_clear()
        rows = json.loads(lab("doctor", "--format", "json").stdout)["runtimes"]
        return next(row for row in rows if row["runtime"] == "tensorrt-rtx")

    assert not row()["ready"] and "sm90" in row()["reason"]
    sizes = ("--layers", "1", "--hidden", "8", "--sequence", "4", "--trials", "20", "--rounds", "1")
    lab("sweep", *sizes, "--runtime", "tensorrt-rtx", "tensorrt", "--out", str(tmp_path))
    failures = [json.loads(path.read_text()) for path in tmp_path.glob("*.failure.json")]
    assert [failure["configuration"]["runtime"] for failure in failures] == ["tensorrt-rtx"]
    assert "sm90" in failures[0]["reason"] and len(list(tmp_path.glob("*.parquet"))) == 1
    monkeypatch.setenv("SHIM_CAPABILITY", "75")
    assert row()["ready"]
    assert runtimes.load_runtime("tensorrt-rtx")._engine_options(Options()).compute_capability == "sm75"


def test_the_gpu_is_warmed_up_after_all_other_preparing(monkeypatch, tmp_path):
    """A GPU lowers its clocks when it has no work."""
    done = []

    def spy(name):
        original = getattr(run.facts, name)
        monkeypatch.setattr(run.facts, name, lambda *given: done.append(name) or original(*given))

    configuration = describe(SHAPE, "tensorrt", Protocol(trials=10))
    preparer, path = preparer_of(SHAPE), tmp_path / "reference.npy"
    reference = preparer.reference(configuration, 1, path, lambda *event, **values: None)
    monkeypatch.setattr(run, "pin", lambda options: None)
    monkeypatch.setattr(warm_up, "warm_up_device", lambda *given: done.append("warm-up") or {})
    for name in ("describe", "versions", "commit", "clock_cost"):
        spy(name)
    reference |= {"gate_seed": 1, "reference_path": str(path)}
    with run.set_up(configuration, reference, lambda event, **values: None):
        assert set(done) == {"describe", "versions", "commit", "clock_cost", "warm-up"} and done[-1] == "warm-up"
