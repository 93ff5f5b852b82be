"""Recordings made for real, in fresh processes, through the package and the command line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import lstm_trt
from lstm_trt import registry
from lstm_trt.config.configuration import Options, Protocol, canonical_json
from lstm_trt.config.errors import ConfigurationFailed, ParityFailed, UsageError
from lstm_trt.config.format import latency
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.network import make_inputs
from lstm_trt.export.to_onnx import OUTPUT
from lstm_trt.machine import gpu
from lstm_trt.machine.linux import allowed_cores
from lstm_trt.recorder import warm_up
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.jobs import ReferenceJob
from lstm_trt.recorder.parity import PARITY_BOUNDS, check_parity
from lstm_trt.recorder.pool import WorkerPool, resources
from lstm_trt.recorder.preparers.stacked import PREPARER
from lstm_trt.recorder.process import Limits, Process, WorkerLost
from lstm_trt.runtimes import load_runtime
from lstm_trt.runtimes.base import Gate, PreparedStep
from lstm_trt.store import files, folders
from lstm_trt.store.locks import timing_lock
from tests.conftest import ROOT, rest_is_heavy
from tests.lstm_trt.store.test_store import same

SHAPE = LstmShape(2, 16, 8, 2)

HERE = f"process {os.getpid()}"


@pytest.fixture(
    scope="module", params=rest_is_heavy(("onnxruntime", "the others", "torch-compile"), ("onnxruntime",).__contains__)
)
def recorded(request, tmp_path_factory):
    """One recording by each runtime that is ready on this machine's CPU, those with a name by themselves."""
    folder = tmp_path_factory.mktemp("recorded")
    made = {}
    for name in registry.table("RUNTIMES"):
        if request.param != (name if name in ("onnxruntime", "torch-compile") else "the others"):
            continue
        module = load_runtime(name)
        if "cpu" in module.DEVICES and module.availability("cpu").ready:
            shape = replace(SHAPE, batch=1) if name == "c" else SHAPE
            made[name] = lstm_trt.record(shape, name, Protocol(trials=200, warmup=10), out=folder)
    return folder, made


def test_every_trial_is_there_and_the_file_says_the_same(recorded):
    folder, made = recorded
    assert {"pytorch", "torchscript"} <= made.keys() or made.keys() in ({"onnxruntime"}, {"torch-compile"})
    by_id = {item.configuration.id: item for item in folders.read_many(folder)}
    assert len(by_id) == len(made)
    for name, recording in made.items():
        assert recording.configuration.runtime == name and same(recording, by_id[recording.configuration.id])
        columns = recording.columns
        assert len(recording.timed_ns) == 200 and columns["warmup"].sum() >= 10 and (columns["latency_ns"] > 0).all()
        for column in ("involuntary_switches", "minor_faults", "major_faults"):
            assert (columns[column] >= 0).all()
        assert not {"compute_ns", "intended_ns"} & columns.keys()


def test_the_provenance_says_how_it_was_made(recorded):
    for recording in recorded[1].values():
        told, runtime = recording.provenance, recording.configuration.runtime
        parity, check, blocks, others = (told[name] for name in ("parity", "self_check", "blocks", "others"))
        assert 0 <= parity["error"] <= parity["bound"] == PARITY_BOUNDS["fp32"]
        assert parity["nan_reaches_output"] is (runtime != "onnxruntime")
        assert check["clocks_differ_by"] == check["loop_ns"] / check["loop_raw_ns"] - 1
        assert told["clock"]["overhead_ns"] > 0 and told["clock"]["step_ns"] > 0
        (core,) = recording.configuration.options.cores
        assert told["threads"]["pinned_to"] == [core]
        assert told["versions"]["python"] and told["versions"]["numpy"] and told["machine_fingerprint"]
        assert sum(block["rows"] for block in blocks) == len(recording.columns["trial"])
        assert {"steal_ns", "throttled_ns", "cpu_khz"} <= blocks[0].keys()
        assert (others is None) == (blocks[0]["steal_ns"] is None)  # a sandbox may count neither
        assert others is None or (min(others["pinned_cores_ns"], others["all_cores_ns"]) >= 0 and "alone" in others)
        assert told["network_sha256"] or runtime != "onnxruntime"


def test_recordings_can_be_published(recorded):
    """No host name and no folder of this machine travels with them."""
    for recording in recorded[1].values():
        text = canonical_json(recording.provenance) + canonical_json(recording.configuration.as_dict())
        # A host name that is an everyday word, as in a container, would be found anywhere.
        if len(socket.gethostname()) > 5:
            assert socket.gethostname() not in text
        assert os.path.expanduser("~") + "/" not in text and os.getcwd() not in text


def test_a_recording_waits_for_its_cores_after_preparing_and_says_so(tmp_path):
    events, freed_ns, mine = [], [], ExitStack()
    mine.enter_context(timing_lock(resources(describe(SHAPE).options)))

    def listen(message: dict) -> None:
        events.append(message.get("stage", message["event"]))
        if message["event"] == "waiting" and message["holder"].startswith(HERE):
            freed_ns.append(time.time_ns())
            mine.close()

    recording = lstm_trt.record(SHAPE, protocol=Protocol(trials=20), out=tmp_path, listener=listen)
    assert recording.provenance["started_unix_ns"] > freed_ns[0]
    # The reference, which needs other cores, was ready before.
    order = [event for event in events if event in ("floor", "waiting", "build", "parity", "run", "store")]
    assert list(dict.fromkeys(order)) == ["floor", "waiting", "build", "parity", "run", "store"]


def test_cores_in_use_can_be_refused(tmp_path, refused):
    line = ["--layers", "1", "--hidden", "8", "--sequence", "4", "--no-wait"]
    with timing_lock(resources(describe(SHAPE).options)):
        for command in (["record", "--trials", "20"], ["sweep", "--quiet"], ["record", "--for", "1s"]):
            assert str(os.getpid()) in refused(*command, *line, "--out", tmp_path)
    assert not list(tmp_path.glob("*.parquet")) and not list(tmp_path.glob("*.json"))


@pytest.mark.heavy
def test_a_recording_on_a_core_that_could_not_be_locked_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("LSTM_TRT_LOCKS", str(tmp_path / "missing"))
    warnings = lstm_trt.record(SHAPE, protocol=Protocol(trials=20)).provenance["warnings"]
    assert any(" is not locked " in line and "LSTM_TRT_LOCKS" in line for line in warnings)


def test_the_preparing_process_leaves_the_cores_that_are_timed():
    cores = allowed_cores()
    program = "import os; from lstm_trt.recorder.child import leave\n"
    program += "for cores in ({last}, set(range(9999)), set()): leave(cores); print(sorted(os.sched_getaffinity(0)))"
    command = [sys.executable, "-c", program.format(last={cores[-1]})]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    rest = list(cores[:-1] or cores)
    assert list(map(json.loads, done.stdout.splitlines())) == [rest, rest, list(cores)], done.stderr


class _Planted(PreparedStep):
    def __init__(self, answer):
        self.answer = answer

    def step(self):
        pass

    def load_inputs(self, inputs):
        pass

    def outputs(self):
        return {OUTPUT: self.answer}


@pytest.mark.random(tail=0, why="identity: the error is relative")
@pytest.mark.parametrize(
    ("factor", "passes"), [(1.0, True), (1 + 9e-6, True), (1 + 2e-5, False), (float("nan"), False), (0.0, False)]
)
def test_the_bound_of_the_gate(factor, passes, rng):
    answers = rng.standard_normal((3, 1, 1)).astype(np.float32)
    asked = (
        _Planted(answers.astype(np.float64) * factor),
        describe(LstmShape(1, 4, 3)),
        Gate(({},), {OUTPUT: answers}, 1),
    )
    if passes:
        assert check_parity(*asked)["error"] <= 1e-5
    else:
        with pytest.raises(ParityFailed):
            check_parity(*asked)


@pytest.mark.random(tail=1e-8, why="exact: the norm of one sequence would have to be a thousandth of that of all")
def test_one_wrong_sequence_of_a_large_batch_is_found(tmp_path, rng):
    shape, path = LstmShape(1, 4, 4, batch=64), tmp_path / "answers.npy"
    configuration = describe(shape)
    _, distinct, which = make_inputs(shape, 9)
    answers = rng.standard_normal((4, distinct.shape[1], 1)).astype(np.float32)
    np.save(path, [answers])
    gate = PREPARER.gate(configuration, {"gate_seed": 9, "reference_path": str(path)})
    right = answers[:, which]
    assert check_parity(_Planted(right), configuration, gate)["inputs_seed"] == 9
    wrong = right.copy()
    wrong[:, 63] *= 1.01
    for answer in (wrong, right[:, :, 0]):
        with pytest.raises(ParityFailed):
            check_parity(_Planted(answer), configuration, gate)


def test_a_failure_is_an_exception_with_its_stage(tmp_path):
    with pytest.raises(ConfigurationFailed, match="parity") as caught:
        lstm_trt.record(LstmShape(1, 8, 4), "tests.support.faulty.wrong", Protocol(trials=10), out=tmp_path)
    assert caught.value.stage == "parity"
    assert len(list(tmp_path.glob("*.failure.json"))) == 1


@pytest.mark.heavy
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_threads_are_pinned_to_the_two_cores_that_are_named(tmp_path, typed):
    first, second, *_ = allowed_cores()
    line = "record --layers 1 --hidden 8 --sequence 4 --trials 20 --threads 2 --cores {1},{0} --out {2}"
    typed(line, first, second, tmp_path)
    (recording,) = lstm_trt.load(tmp_path).recordings
    assert recording.configuration.options.cores == (first, second)
    assert recording.provenance["threads"]["pinned_to"] == [first, second]


def test_more_threads_than_cores_are_refused():
    with pytest.raises(UsageError, match="lower --threads"):
        lstm_trt.record(SHAPE, options=Options(threads=len(os.sched_getaffinity(0)) + 1))


def test_the_command_records_and_prints_what_it_stored(tmp_path, typed):
    line = "record --layers 2 --hidden 16 --sequence 8 --trials 100 --out {}"
    summary = typed(f"{line} --format json", tmp_path)["summary"]
    first = files.read(next(tmp_path.glob("*.parquet")))
    timed_us = first.timed_ns / 1e3
    assert summary["n"] == len(timed_us) == 100
    statistics = summary["statistics"]
    assert (statistics["max_us"], statistics["min_us"]) == (timed_us.max(), timed_us.min())
    text = typed(line, tmp_path)
    (path,) = tmp_path.glob("*-r1.parquet")
    again = files.read(path)
    assert len({each.provenance["parity"]["inputs_seed"] for each in (again, first)}) == 2  # parity asks anew
    assert again.configuration.id == first.configuration.id
    timed_us = np.sort(again.timed_ns) / 1e3
    numbers = {"max": timed_us[99], "p99": timed_us[98], "median": timed_us[49]}
    expected = ", ".join(f"{name} {latency(value)}" for name, value in numbers.items())
    assert text.startswith(f"100 trials after warm-up: {expected}\n") and text.endswith(f"{path}\n")


def test_what_the_process_of_references_refuses_is_a_failure_with_its_reason(tmp_path):
    process = Process(None, tmp_path, "reference")
    with pytest.raises(WorkerLost, match="invalid configuration"):
        process.call(ReferenceJob({}, 1, "answers.npy"), Limits(time_s=300))
    assert process.alive
    process.close()
    process.close()
    assert not process.alive


def warmed(monkeypatch, sm_mhz: Callable, reasons: Callable, highest_mhz: int | None = 1980) -> dict:
    """Warm up a GPU of which NVML states these functions of the time in s; each call takes a millisecond."""
    passed = [0.0]
    monkeypatch.setattr(warm_up, "time", SimpleNamespace(perf_counter=lambda: passed[0]))

    def call() -> None:
        passed[0] += 0.001

    def read() -> dict:
        return {"gpu_sm_mhz": sm_mhz(passed[0]), "gpu_throttle_reasons": reasons(passed[0])}

    return warm_up.warm_up_device(SimpleNamespace(step=call, device_times=dict), read, highest_mhz)


def busy(seconds: float) -> int:
    return 0


def idle(seconds: float) -> int:
    return 0x1


@pytest.mark.parametrize(
    ("sm_mhz", "reasons", "highest_mhz", "seconds", "last_mhz"),
    [
        (lambda at: 1755, idle, 1980, 0.5, 1755),  # the clock is that of a GPU that works
        (lambda at: 345, busy, 1980, 0.5, 345),  # locked at a low clock
        (lambda at: 345, idle, 1980, 2.0, 345),
        (lambda at: 345 if at < 0.82 else 1755, idle, 1980, 0.95, 1755),  # NVML lags
        (lambda at: 345, lambda at: int(at < 0.72), 1980, 0.75, 345),
        (lambda at: 300 + 100 * round(at / 0.05), busy, 1980, 2.0, 4300),  # never steady
        (lambda at: 1100, idle, 1980, 2.0, 1100),  # 0.56 of the highest clock
        (lambda at: 1755, lambda at: None, None, 2.0, 1755),
        (lambda at: 1755, busy, None, 0.5, 1755),
        (lambda at: None, lambda at: None, None, 0.5, None),
    ],
)
def test_a_gpu_is_warmed_up_until_it_is_awake(monkeypatch, sm_mhz, reasons, highest_mhz, seconds, last_mhz):
    found = warmed(monkeypatch, sm_mhz, reasons, highest_mhz)
    assert found["seconds"] == pytest.approx(seconds, abs=0.01) and found["sm_mhz"] == last_mhz
    assert found["calls"] == pytest.approx(1000 * seconds, abs=10)


@pytest.mark.parametrize(("asked", "ended"), [(0, []), (1, [2])])
def test_workers_leave_the_device_in_use_if_it_is_for_one_process(monkeypatch, asked, ended):
    """Of two GPUs the second allows one process only; of three workers the first is on the CPU."""

    class Worker:
        alive = True

        def close(self) -> None:
            self.alive = False

    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByPciBusId=int,
        nvmlDeviceGetComputeMode=lambda handle: (0, 3)[handle],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(gpu, "cuda_device", lambda place=0: SimpleNamespace(pci_bus_id=str(place)))
    options = [Options(device=device) for device in ("cpu", "cuda:0", "cuda:1")]
    with WorkerPool() as pool:
        workers = {("planted", each, each.device_index, None): Worker() for each in options}
        pool._workers.update(workers)
        pool._leave_device(options[1 + asked])
        assert [place for place, worker in enumerate(workers.values()) if not worker.alive] == ended


def test_compilers_that_a_process_starts_count_until_it_is_timed(monkeypatch):
    """Finding them reads all of /proc, which would disturb the trials."""

    def of_size(rss: int, **more):
        return SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=rss), **more)

    found = of_size(5, children=lambda recursive: [of_size(1000)] * (1 + recursive))
    monkeypatch.setattr("lstm_trt.recorder.process.psutil.Process", lambda pid: found)
    process = Process.__new__(Process)
    process.child = SimpleNamespace(pid=1)
    process.stage = "build"
    assert process._resident_bytes() == 2005
    del found.children
    process.stage = "run"
    assert process._resident_bytes() == 5
