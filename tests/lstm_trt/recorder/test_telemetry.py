"""Runtimes send no usage data from processes that record, and CPU time of other threads of these is seen.

The first tests record on every runtime that is ready and keep the workers alive for longer than the 10 s after which
ONNX Runtime sends for the first time; a library loaded before the C library notes what they ask of the network. The
same recordings with the telemetry that a user can turn on show that it would be seen.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
from tqdm import tqdm

from lstm_judge.compare.pairing import differences
from lstm_judge.outliers.outliers import outliers
from lstm_judge.read.rounds import Group, Round, telemetry_of
from lstm_judge.read.runs import load
from lstm_trt.config import libraries
from lstm_trt.config.configuration import UNEXPLAINED_NS, UNEXPLAINED_SHARE, Protocol, unexplained_text, warnings_of
from lstm_trt.machine import counters, linux
from lstm_trt.machine.counters import Watcher, difference, split_cpu_time
from lstm_trt.machine.facts import installed_version
from lstm_trt.recorder.loop import between_calls
from lstm_trt.runtimes import load_runtime, torch_compile
from lstm_trt.store import files
from lstm_trt.store.provenance import facts
from tests.conftest import ROOT, sampled
from tests.lstm_trt.store.test_store import planted as planted_recording

RUNTIMES = ("c", "onnxruntime", "openvino", "pytorch", "torch-compile", "torchscript")
#: Takes longer to compile than all others to record; the heavy part has it.
COMPILED = "torch-compile"

#: Records a small network on each runtime, then waits until the workers are old enough, or until something was sent.
RECORD = """
import json, os, pathlib, sys, time
from lstm_trt.config.configuration import Options, Protocol
from lstm_trt.config.shape import LstmShape
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.pool import WorkerPool
from lstm_trt.store import files
names, seconds, expected = json.loads(sys.argv[1])
out = files.make_folder(pathlib.Path("out"))
stated = {}
with WorkerPool() as pool:
    for name in names:
        configuration = describe(LstmShape(1, 8, 4, 1), name, Protocol(trials=20, warmup=2), Options())
        outcome = pool.record_configuration(configuration, 0, out)
        outcome.check()
        stated[name] = files.read(outcome.path).provenance["telemetry"]
    end = time.monotonic() + seconds
    seen = pathlib.Path(os.environ["NETWORK_LOG"])
    while time.monotonic() < end and not (expected and all(host in seen.read_text() for host in expected)):
        time.sleep(0.1)
print(json.dumps(stated))
"""

#: ONNX Runtime sends nothing where one of these is set, and OpenVINO for some of them.
CI = ("CI", "TF_BUILD", "GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "TRAVIS", "JENKINS_URL", "CODEBUILD_BUILD_ID")
CI += ("BUILDKITE", "TEAMCITY_VERSION", "APPVEYOR", "BITBUCKET_BUILD_NUMBER", "SYSTEM_TEAMFOUNDATIONCOLLECTIONURI")
CI += ("ORT_RUNNING_UNIT_TESTS", libraries.ORT_VARIABLE)


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: what a process asks of the network cannot be noted")
    library = tmp_path_factory.mktemp("network") / "network.so"
    source = ROOT / "tests/support/network_shim.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@dataclass
class Noted:
    """What recordings on some runtimes state, ask of the network, and leave in the user's home and cache."""

    folder: Path
    process: subprocess.Popen

    @cached_property
    def stated(self) -> dict[str, dict[str, str]]:
        """Runtime -> what its recording states of telemetry; waits for the process."""
        printed, errors = self.process.communicate()
        assert self.process.returncode == 0, errors
        return json.loads(printed)

    def asked(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()

    def files(self, place: str, pattern: str) -> list[str]:
        return sorted(str(path.relative_to(self.folder / place)) for path in (self.folder / place).glob(pattern))


def start_recording(
    shim: Path, folder: Path, names: list[str], seconds: float, expected: Sequence[str] = (), **variables: str
) -> Noted:
    """Record in a process that starts here; `expected`: hosts after which it need not last any longer."""
    (folder / "home").mkdir(exist_ok=True)
    (folder / "log").touch()
    environment = {name: value for name, value in os.environ.items() if name not in CI}
    environment |= {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    environment |= {"LD_PRELOAD": str(shim), "NETWORK_LOG": str(folder / "log"), **variables}
    command = [sys.executable, "-c", RECORD, json.dumps([names, seconds, expected])]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return Noted(folder, subprocess.Popen(command, cwd=folder, env=environment, **pipes))


def ready(names: Iterable[str]) -> list[str]:
    return [name for name in names if load_runtime(name).availability("cpu").ready]


#: Library -> the host that it asks for where its telemetry is on.
HOSTS = {"onnxruntime": "events.data.microsoft", "openvino": "google-analytics"}


def sending() -> list[str]:
    """The libraries installed here that send usage data where a user turns it on."""
    names = [name for name in HOSTS if libraries.sends(name, installed_version(name) or "")]
    return [name for name in names if name != "openvino" or installed_version("openvino-telemetry")]


@pytest.fixture(scope="module")
def start(shim, tmp_path_factory):
    """Starts recordings, at most once each of "off", "on" and "compiled"; they end with the tests."""
    started: dict[str, Noted] = {}

    def noted(kind: str) -> Noted:
        if kind in started:
            return started[kind]
        folder = tmp_path_factory.mktemp("noted")
        if kind == "on":
            consents_to_openvino(folder / "home", "1")
            hosts, names = [HOSTS[name] for name in sending()], sending()
            started[kind] = start_recording(shim, folder, names, 300, hosts, **{libraries.ORT_VARIABLE: "0"})
        else:
            names = [name for name in RUNTIMES if (name == COMPILED) == (kind == "compiled")]
            started[kind] = start_recording(shim, folder, ready(names), 12.5)
        return started[kind]

    yield noted
    for each in started.values():
        each.process.kill()
        each.process.communicate()


# Waits for the longer part of 20 s, until the workers are older than 10 s.
@pytest.mark.heavy
@sampled(2)
@pytest.mark.parametrize("kind", ["off", "compiled"])
def test_no_runtime_sends_anything_or_writes_into_the_home(start, kind):
    if kind == "compiled" and not ready([COMPILED]):
        pytest.skip(f"{COMPILED} is not ready here")
    noted = start(kind)
    if kind == "off":
        start("on")  # for the next test: both wait most of the time
    stated = noted.stated
    assert "onnxruntime" in stated or kind == "compiled"
    assert (noted.asked(), noted.files("home", "**/*"), noted.files("cache", "*")) == ([], [], ["lstm_trt"])
    assert stated == {
        name: {name: "off"} if name in libraries.SENDS_SINCE and libraries.sends(name, installed_version(name)) else {}
        for name in stated
    }


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "host"), HOSTS.items())
def test_telemetry_that_a_user_turns_on_is_kept_and_seen(start, name, host):
    if name not in sending():
        pytest.skip(f"{name} {installed_version(name)} sends nothing here")
    noted = start("on")
    assert noted.stated[name] == {name: "on"}
    assert any(host in line for line in noted.asked())
    place, pattern = ("home", "intel/stats") if name == "openvino" else ("cache", "Microsoft")
    assert noted.files(place, pattern)


def consents_to_openvino(home: Path, answer: str) -> None:
    consent = home / libraries.OPENVINO_CONSENT
    consent.parent.mkdir(parents=True)
    consent.write_text(answer)


@pytest.fixture
def no_telemetry_set(monkeypatch, tmp_path):
    """The user's home is empty, and neither library was imported or told anything."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(libraries.ORT_VARIABLE, raising=False)
    for name in ("onnxruntime", "openvino", libraries.OPENVINO_MODULE):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("own", [None, "0", "false"])
@pytest.mark.parametrize("consent", [None, "0", "1", ""])
def test_what_a_user_chose_holds(no_telemetry_set, monkeypatch, own, consent):
    if own is not None:
        monkeypatch.setenv(libraries.ORT_VARIABLE, own)
    if consent is not None:
        consents_to_openvino(no_telemetry_set, consent)
    libraries.turn_telemetry_off()
    assert os.environ[libraries.ORT_VARIABLE] == (own or "1")
    stopped = sys.modules.pop(libraries.OPENVINO_MODULE, "can be imported") is None
    assert stopped == (consent != "1")


def test_what_a_user_has_imported_stays(no_telemetry_set, monkeypatch):
    theirs = types.ModuleType(libraries.OPENVINO_MODULE)
    monkeypatch.setitem(sys.modules, libraries.OPENVINO_MODULE, theirs)
    libraries.turn_telemetry_off()
    assert sys.modules[libraries.OPENVINO_MODULE] is theirs
    monkeypatch.setitem(sys.modules, "openvino", types.SimpleNamespace(__version__="2026.4.1-1-release"))
    assert libraries.telemetry() == {"openvino": "on"}


@pytest.mark.parametrize(
    ("version", "own", "said"),
    [("1.31.1", None, 1), ("1.31.1", "1", 0), ("1.31.1", "0", 0), ("1.28.0", None, 0)],
)
def test_a_program_that_has_imported_onnxruntime_is_told_once(no_telemetry_set, monkeypatch, version, own, said):
    """Its telemetry cannot be turned off any more; a user who chose it is not told."""
    if own is not None:
        monkeypatch.setenv(libraries.ORT_VARIABLE, own)
    monkeypatch.setitem(sys.modules, "onnxruntime", types.SimpleNamespace(__version__=version, planted=3))
    lazy = libraries._OnnxRuntime("onnxruntime")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert lazy.planted == lazy.planted == 3
    lines = [line for warning in caught for line in str(warning.message).splitlines()]
    assert len(lines) == said and all(f"{libraries.ORT_VARIABLE}=1" in line for line in lines)
    assert os.environ.get(libraries.ORT_VARIABLE) == own


def test_a_program_that_has_not_imported_it_gets_it_without_telemetry(no_telemetry_set, monkeypatch):
    planted = types.SimpleNamespace(__version__="1.31.1", planted=3)
    seen = []

    def load(name):
        seen.append(os.environ.get(libraries.ORT_VARIABLE))
        monkeypatch.setitem(sys.modules, name, planted)
        return planted

    monkeypatch.setattr(libraries, "import_module", load)
    assert libraries._OnnxRuntime("onnxruntime").planted == 3
    assert seen == ["1"] and libraries.telemetry() == {"onnxruntime": "off"}


@pytest.mark.parametrize(
    ("sends", "name", "versions"),
    [
        (False, "onnxruntime", ["1.9.0", "1.20.1", "1.28.0", ""]),
        (True, "onnxruntime", ["1.29.0", "1.31.1", "2.0", "1.100.0"]),
        (True, "openvino", ["2026.4.1"]),
        (False, "torch", ["2.13.0"]),
    ],
)
def test_which_versions_send(sends, name, versions):
    assert {libraries.sends(name, version) for version in versions} == {sends}


# --- recordings with and without it ---


@pytest.mark.parametrize(
    ("versions", "stated", "telemetry"),
    [
        ({"onnxruntime": "1.31.1"}, None, "on (onnxruntime)"),  # recorded before it was stated
        ({"onnxruntime": "1.23.2", "torch": "2.13.0", "openvino": None}, None, "off"),
        ({"openvino": "2026.4.1"}, None, "on (openvino)"),
        ({"onnxruntime": "1.31.1"}, {"onnxruntime": "off"}, "off"),
        ({"onnxruntime": "1.31.1"}, {"onnxruntime": "on", "openvino": "on"}, "on (onnxruntime, openvino)"),
        ({"torch": "2.13.0"}, {}, "off"),
    ],
)
def test_what_a_recording_says_of_telemetry(versions, stated, telemetry):
    provenance = {"versions": versions} | ({} if stated is None else {"telemetry": stated})
    assert telemetry_of(provenance) == telemetry
    assert telemetry_of({}) is None


def sides(*telemetry: str | None):
    samples = [Round.of([1e6, 2e6], round=number, telemetry=found) for number, found in enumerate(telemetry)]
    return Group("planted", tuple(samples))


def test_a_comparison_names_recordings_that_had_telemetry():
    assert "telemetry: on (onnxruntime) -> off" in differences(sides("on (onnxruntime)"), sides("off"))
    assert not [text for text in differences(sides("off"), sides("off")) if "telemetry" in text]
    assert "telemetry differs between rounds of A" in differences(sides("off", "on (onnxruntime)"), sides("off", "off"))


def test_rounds_with_and_without_telemetry_are_pooled_with_a_warning(tmp_path):
    for number, state in enumerate(("off", "on")):
        recording = planted_recording(round=number)
        recording.provenance.update(versions={}, telemetry={"onnxruntime": state})
        files.write(recording, tmp_path)
        found = [text for text in load(tmp_path).warnings if "with telemetry on" in text]
        assert len(found) == number


# --- CPU time of other threads ---


def unexplained(blocks: list[dict]) -> int | None:
    return counters.total(blocks, "unexplained_cpu_ns")


def burn(cpu_ms: float) -> None:
    """Use that much CPU time of the calling thread."""
    end_ns = time.thread_time_ns() + int(1e6 * cpu_ms)
    while time.thread_time_ns() < end_ns:
        pass


def test_cpu_time_of_threads_that_have_ended_is_seen():
    """A pool that works in every block, and in the second a thread that has ended when it is read."""
    blocks = []
    with ThreadPoolExecutor(1) as pool, Watcher(linux.allowed_cores()[:1], "cpu") as watcher:
        pool.submit(burn, 1).result()
        before = watcher.read()
        if before["threads_cpu_ns"] is None:
            pytest.skip("this system has no clocks of threads")
        for stray_ms in (0, 30, 0):
            burn(40)  # the timed thread
            pool.submit(burn, 20).result()
            stray = threading.Thread(target=burn, args=(stray_ms,))
            stray.start()
            stray.join()
            after = watcher.read()
            blocks.append(difference(before, after))
            before = after
    blocks = split_cpu_time(blocks)
    assert all(block["thread_cpu_ns"] >= 40e6 and block["pool_cpu_ns"] >= 20e6 for block in blocks)
    assert [block["unexplained_cpu_ns"] >= 30e6 for block in blocks] == [False, True, False]
    # starting and ending threads, and what other threads of this test's process do, take far less
    assert unexplained(blocks) == pytest.approx(30e6, abs=15e6)


def planted(process: int, timed: int, **threads: int) -> dict:
    return {"rows": 5, "process_cpu_ns": process, "thread_cpu_ns": timed, "threads_cpu_ns": threads}


def test_the_pool_is_what_ran_in_every_block():
    blocks = [
        planted(1_000_000, 600_000, pool=400_000),
        planted(3_000_000, 700_000, pool=300_000, stray=1_500_000),  # and 0.5 ms of threads that have ended
        planted(1_009_000, 500_000, pool=500_000),  # less than what the readings can tell
    ]
    found = split_cpu_time(blocks)
    assert [block["pool_cpu_ns"] for block in found] == [400_000, 300_000, 500_000]
    assert [block["unexplained_cpu_ns"] for block in found] == [0, 2_000_000, 0]
    assert unexplained(found) == 2_000_000
    assert not any({"process_cpu_ns", "threads_cpu_ns"} & block.keys() for block in found)
    join = facts()["unexplained_cpu_ns"].join
    assert join([5, 7]) == 12 and join([5, None]) is None


def test_a_block_that_is_ahead_is_made_up_for_by_the_next():
    blocks = split_cpu_time([planted(4_000_000, 1_000_000, a=10), planted(1_000_000, 2_999_000, a=10)])
    assert [block["unexplained_cpu_ns"] for block in blocks] == [2_999_990, -1_999_010]
    assert list(map(unexplained, (blocks, blocks[1:]))) == [1_000_980, 0]


def test_what_the_system_does_not_tell_is_null(tmp_path):
    with Watcher((0,), "cpu", root=tmp_path) as watcher:
        block = {"rows": 1, **difference(watcher.read(), watcher.read())}
    (found,) = split_cpu_time([block])
    assert found["thread_cpu_ns"] is found["pool_cpu_ns"] is found["unexplained_cpu_ns"] is None
    assert unexplained([found]) is None and unexplained_text(None, 1e6) is None


@pytest.mark.parametrize(("call_ns", "least_ns"), [(1e4, UNEXPLAINED_NS), (5e6, UNEXPLAINED_SHARE * 5e6)])
def test_unexplained_cpu_time_is_named_where_it_matters(call_ns, least_ns):
    n, loop = 100, {"loop_ns": 101 * call_ns}
    for unexplained_ns, named in ((least_ns - 1, False), (least_ns, True)):
        assert bool(warnings_of(Protocol(), n, n * call_ns, loop, int(unexplained_ns))) == named
        sample = Round.of(np.full(n, call_ns), unexplained_cpu_ns=int(unexplained_ns), telemetry="on (onnxruntime)")
        answers = outliers([Group("planted", (sample,))])
        (found,) = answers
        assert bool(found.events.unexplained) == named
        if named:
            assert "telemetry: on (onnxruntime)" in found.events.unexplained[0]
            assert found.events.unexplained[0] in str(answers)


# --- time between calls ---


@pytest.mark.parametrize(
    ("cpu", "runnable", "preempted", "off_core", "split"),
    [
        # 100 ms, 70 of them in calls
        ((80, 20), (0, 0), 0, 0, (30, 0, 0)),  # the recorder itself
        ((65, 7), (20, 8), 0, 0, (2, 28, 0)),  # other programs, as in the recording that blamed short calls
        ((60, 1), (15, 20), 10, 12, (3, 25, 2)),  # and in calls, which took 12 ms of the 35
        ((50, 21), (0, 0), 0, 0, (1, 0, 29)),
        ((90, 60), (50, 50), 0, 0, (30, 0, 0)),  # readings that reach beyond the loop
    ],
)
def test_time_between_calls_is_split_as_it_was_measured(cpu, runnable, preempted, off_core, split):
    ms = 10**6
    blocks = [{"thread_cpu_ns": ms * a, "runnable_ns": ms * b} for a, b in zip(cpu, runnable, strict=True)]
    columns = {"off_core_ns": np.array([ms * off_core, 0]), "preempted_ns": np.array([ms * preempted, 0])}
    found = between_calls(columns, blocks, 70 * ms, 100 * ms)
    assert found is not None and tuple(found.values()) == tuple(ms * part for part in split)
    (text,) = warnings_of(Protocol(), 2, 70 * ms, {"loop_ns": 100 * ms, "between_calls": found})
    head, _, parts = text.partition(": ")
    assert head == "30 % of the time passed between calls" and "short" not in parts
    for part, name in zip(split, ("the recorder", "waiting for the core", "other waiting"), strict=True):
        assert f"{part} % {name}" in parts


def test_time_between_calls_without_a_measurement_has_no_cause():
    measured = {"off_core_ns": np.zeros(2), "preempted_ns": np.zeros(2)}
    for columns, block in (
        ({}, {"thread_cpu_ns": 1, "runnable_ns": 1}),
        (measured, {"thread_cpu_ns": None, "runnable_ns": 1}),
        (measured, {"thread_cpu_ns": 1}),
    ):
        assert between_calls(columns, [block], 70, 100) is None
    (text,) = warnings_of(Protocol(), 2, 70, {"loop_ns": 100, "between_calls": None})
    assert text == "30 % of the time passed between calls"


@pytest.mark.heavy
def test_compiling_leaves_no_thread_that_runs_now_and_then(monkeypatch):
    """Inductor shows its progress with tqdm, whose monitor runs every 10 s from then on."""
    for name, value in (("monitor", None), ("monitor_interval", 10)):
        monkeypatch.setattr(tqdm, name, value)
    torch_compile.leave_nothing_running()
    for _ in tqdm([1, 2, 3], file=io.StringIO()):
        pass
    assert tqdm.monitor is None
