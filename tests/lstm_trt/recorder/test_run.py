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
from tests.support.packages import PACKAGES, loaded

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


def test_the_runtimes_of_the_core_are_all_there(recorded):
    made = recorded[1].keys()
    assert {"pytorch", "torchscript"} <= made or made in ({"onnxruntime"}, {"torch-compile"})


def test_every_trial_is_there_and_the_file_says_the_same(recorded):
    folder, made = recorded
    by_id = {item.configuration.id: item for item in folders.read_many(folder)}
    assert len(by_id) == len(made)
    for name, recording in made.items():
        assert recording.configuration.runtime == name
        assert len(recording.timed_ns) == 200 and recording.columns["warmup"].sum() >= 10
        assert (recording.columns["latency_ns"] > 0).all()
        other = by_id[recording.configuration.id]
        assert np.array_equal(other.columns["latency_ns"], recording.columns["latency_ns"])
        for column in ("involuntary_switches", "minor_faults", "major_faults"):
            assert (other.columns[column] >= 0).all()
        assert "compute_ns" not in other.columns and "intended_ns" not in other.columns


def test_the_provenance_says_how_it_was_made(recorded):
    for recording in recorded[1].values():
        told = recording.provenance
        assert 0 <= told["parity"]["error"] <= told["parity"]["bound"] == PARITY_BOUNDS["fp32"]
        assert told["parity"]["nan_reaches_output"] is (recording.configuration.runtime != "onnxruntime")
        check = told["self_check"]
        assert check["clocks_differ_by"] == check["loop_ns"] / check["loop_raw_ns"] - 1
        assert told["clock"]["overhead_ns"] > 0 and told["clock"]["step_ns"] > 0
        assert told["threads"]["pinned_to"] == list(recording.configuration.options.cores)
        assert len(told["threads"]["pinned_to"]) == 1
        assert told["versions"]["python"] and told["versions"]["numpy"]
        assert sum(block["rows"] for block in told["blocks"]) == len(recording.columns["trial"])
        assert {"steal_ns", "throttled_ns", "cpu_khz"} <= told["blocks"][0].keys()
        assert told["machine_fingerprint"]
        others = told["others"]  # a sandbox may count neither
        assert (others is None) == (told["blocks"][0]["steal_ns"] is None)
        assert others is None or (min(others["pinned_cores_ns"], others["all_cores_ns"]) >= 0 and "alone" in others)
        assert told["network_sha256"] or recording.configuration.runtime != "onnxruntime"


def test_recordings_can_be_published(recorded):
    """No host name and no folder of this machine travels with them."""
    for recording in recorded[1].values():
        text = canonical_json(recording.provenance) + canonical_json(recording.configuration.as_dict())
        # A host name that is an everyday word, as in a container, would be found anywhere.
        if len(socket.gethostname()) > 5:
            assert socket.gethostname() not in text
        assert os.path.expanduser("~") + "/" not in text and os.getcwd() not in text


def test_a_recording_waits_for_its_cores_after_preparing_and_says_so(tmp_path):
    events = []
    mine = ExitStack()
    mine.enter_context(timing_lock(resources(describe(SHAPE).options)))

    def listen(message: dict) -> None:
        events.append(message)
        if message["event"] == "waiting":
            events.append(time.time_ns())
            mine.close()

    recording = lstm_trt.record(SHAPE, protocol=Protocol(trials=20), out=tmp_path, listener=listen)
    waiting = next(place for place, event in enumerate(events) if event.get("holder", "").startswith(HERE))
    stages = [event["stage"] for event in events[waiting + 2 :] if event["event"] == "stage"]
    assert stages[:3] == ["build", "parity", "run"] and stages[-1] == "store"
    assert recording.provenance["started_unix_ns"] > events[waiting + 1]
    # The reference, which needs other cores, was ready before.
    assert any(event["event"] == "floor" for event in events[:waiting])


def test_cores_in_use_can_be_refused(tmp_path, refused):
    command = ("record", "--layers", 1, "--hidden", 8, "--sequence", 4, "--trials", 20, "--out", tmp_path, "--no-wait")
    with timing_lock(resources(describe(SHAPE).options)):
        for given in (command, ("sweep", *command[1:], "--quiet"), (*command[:7], *command[9:], "--for", "1s")):
            assert str(os.getpid()) in refused(*given)
    assert not list(tmp_path.glob("*.parquet")) and not list(tmp_path.glob("*.json"))


@pytest.mark.heavy
def test_a_recording_on_a_core_that_could_not_be_locked_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("LSTM_TRT_LOCKS", str(tmp_path / "missing"))
    warnings = lstm_trt.record(SHAPE, protocol=Protocol(trials=20)).provenance["warnings"]
    assert any(" is not locked " in line and "LSTM_TRT_LOCKS" in line for line in warnings)


def test_the_preparing_process_leaves_the_cores_that_are_timed():
    cores = allowed_cores()
    program = "import os; from lstm_trt.recorder.child import leave\n"
    program += "for cores in ({last}, set(range(9999)), set()): leave(cores); print(*sorted(os.sched_getaffinity(0)))"
    done = subprocess.run(
        [sys.executable, "-c", program.format(last=set(cores[-1:]))], cwd=ROOT, capture_output=True, text=True
    )
    rest, untouched, whole = done.stdout.splitlines()
    assert whole == " ".join(map(str, cores)), done.stderr
    assert rest == untouched == (" ".join(map(str, cores[:-1])) or whole)


@pytest.mark.heavy
def test_the_same_question_again_is_a_further_round_and_parity_asks_anew(tmp_path):
    first, second = (lstm_trt.record(SHAPE, protocol=Protocol(trials=20), out=tmp_path) for _ in range(2))
    assert first.configuration.id == second.configuration.id
    assert (first.round, second.round) == (0, 1)
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert first.provenance["parity"]["inputs_seed"] != second.provenance["parity"]["inputs_seed"]


class _Planted(PreparedStep):
    def __init__(self, answer):
        self.answer = answer

    def step(self):
        pass

    def load_inputs(self, inputs):
        pass

    def outputs(self):
        return {OUTPUT: self.answer}


@pytest.mark.parametrize(
    ("factor", "passes"), [(1.0, True), (1 + 9e-6, True), (1 + 2e-5, False), (float("nan"), False), (0.0, False)]
)
def test_the_bound_of_the_gate(factor, passes, rng):
    configuration = describe(LstmShape(1, 4, 3))
    answers = rng.standard_normal((3, 1, 1)).astype(np.float32)
    gate = Gate(({},), {OUTPUT: answers}, 1)
    planted = _Planted((answers.astype(np.float64) * factor).astype(np.float64))
    if passes:
        assert check_parity(planted, configuration, gate)["error"] <= 1e-5
    else:
        with pytest.raises(ParityFailed, match="fp32"):
            check_parity(planted, configuration, gate)


def test_one_wrong_sequence_of_a_large_batch_is_found(tmp_path, rng):
    shape = LstmShape(1, 4, 4, batch=64)
    configuration = describe(shape)
    _, distinct, which = make_inputs(shape, 9)
    answers = rng.standard_normal((4, distinct.shape[1], 1)).astype(np.float32)
    np.save(tmp_path / "answers.npy", [answers])
    gate = PREPARER.gate(configuration, {"gate_seed": 9, "reference_path": str(tmp_path / "answers.npy")})
    right = answers[:, which]
    assert check_parity(_Planted(right), configuration, gate)["inputs_seed"] == 9
    wrong = right.copy()
    wrong[:, 63] *= 1.01
    with pytest.raises(ParityFailed):
        check_parity(_Planted(wrong), configuration, gate)
    with pytest.raises(ParityFailed, match="shape"):
        check_parity(_Planted(right[:, :, 0]), configuration, gate)


def test_a_failure_is_an_exception_with_its_stage(tmp_path):
    with pytest.raises(ConfigurationFailed, match="parity") as caught:
        lstm_trt.record(LstmShape(1, 8, 4), "tests.support.faulty.wrong", Protocol(trials=10), out=tmp_path)
    assert caught.value.stage == "parity"
    assert len(list(tmp_path.glob("*.failure.json"))) == 1


@pytest.mark.heavy
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_threads_are_pinned_to_the_two_cores_that_are_named(tmp_path, lab):
    first, second, *_ = allowed_cores()
    sizes = ("--layers", 1, "--hidden", 8, "--sequence", 4, "--trials", 20)
    done = lab("record", *sizes, "--threads", 2, "--cores", f"{second},{first}", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    (recording,) = lstm_trt.load(tmp_path).recordings
    assert recording.configuration.options.cores == (first, second)
    assert recording.provenance["threads"]["pinned_to"] == [first, second]


def test_more_threads_than_cores_are_refused():
    with pytest.raises(UsageError, match="lower --threads"):
        lstm_trt.record(SHAPE, options=Options(threads=len(os.sched_getaffinity(0)) + 1))


@pytest.mark.heavy
def test_what_lies_in_the_working_folder_is_not_imported(tmp_path):
    for name in ("onnx", "numpy", "torch", "onnxruntime", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    arguments = ["record", "--layers", "1", "--hidden", "8", "--sequence", "4", "--trials", "10", "--out", "here"]
    result = subprocess.run(
        [sys.executable, "-P", "-m", "lstm_trt", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


def test_the_command_records_and_prints_what_it_stored(tmp_path, lab):
    arguments = ("record", "--layers", 2, "--hidden", 16, "--sequence", 8, "--trials", 100, "--out", tmp_path)
    result = lab(*arguments, "--format", "json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    timed = files.read(next(tmp_path.glob("*.parquet"))).timed_ns
    assert answer["summary"]["n"] == len(timed) == 100
    assert answer["summary"]["statistics"]["max_us"] == timed.max() / 1e3
    assert answer["summary"]["statistics"]["min_us"] == timed.min() / 1e3
    text = lab(*arguments).stdout
    (path,) = tmp_path.glob("*-r1.parquet")
    timed_us = np.sort(files.read(path).timed_ns) / 1e3
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


def test_a_worker_loads_neither_pandas_nor_the_analysis(tmp_path):
    """Both take longer than most recordings, and would be in the process that is timed."""
    code = (
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from lstm_trt.recorder import child, run\n"
        "from lstm_trt.store import files\n"
        "from lstm_trt.config.configuration import Configuration, Protocol\n"
        "from lstm_trt.config.shape import LstmShape\n"
        "from lstm_trt.store.schema import Recording\n"
        "rows = np.arange(5)\n"
        "columns = {'trial': rows, 'warmup': rows < 1, 'start_ns': rows * 9, 'latency_ns': rows + 1}\n"
        "configuration = Configuration(LstmShape(1, 8, 4), 'onnxruntime', '1', 'd', protocol=Protocol(trials=4))\n"
        f"files.write(Recording(configuration, 0, columns, {{}}), Path({str(tmp_path)!r}))\n"
    )
    names = ["pandas", "scipy", "torch", *PACKAGES[1:]]
    assert loaded(code, names, "lstm_judge.statistics.quantiles") == []


def warmed(monkeypatch, sm_mhz: Callable, reasons: Callable, highest_mhz: int | None = 1980) -> dict:
    """Warm up a GPU of which NVML states these functions of the time in s; each call takes a millisecond."""
    now = [100.0]
    monkeypatch.setattr(warm_up, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def call() -> None:
        now[0] += 0.001

    def read() -> dict:
        return {"gpu_sm_mhz": sm_mhz(now[0] - 100), "gpu_throttle_reasons": reasons(now[0] - 100)}

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


def test_workers_leave_the_device_in_use_if_it_is_for_one_process(monkeypatch):
    """Of two GPUs the second allows one process only."""

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
    options = [Options(device="cpu"), *(Options(device=f"cuda:{place}") for place in (0, 1))]
    for asked, ended in ((options[1], set()), (options[2], {2})):
        with WorkerPool() as pool:
            workers = [Worker() for _ in options]
            keys = [("planted", each, each.device_index, None) for each in options]
            pool._workers.update(zip(keys, workers, strict=True))
            pool._leave_device(asked)
            assert {place for place, worker in enumerate(workers) if not worker.alive} == ended


def test_compilers_that_a_process_starts_count_until_it_is_timed(monkeypatch):
    """Finding them reads all of /proc, which would disturb the trials."""
    children = [SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=1000))] * 2
    asked = []

    def planted(pid):
        def found(recursive):
            asked.append(recursive)
            return children

        return SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=5), children=found)

    monkeypatch.setattr("lstm_trt.recorder.process.psutil.Process", planted)
    process = Process.__new__(Process)
    process.child = SimpleNamespace(pid=1)
    process.stage = "build"
    assert process._resident_bytes() == 2005 and asked == [True]
    process.stage = "run"
    assert process._resident_bytes() == 5 and asked == [True]
