"""Loads that run beside the trials: what they do, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import lstm_trt
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import RunFailed, UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.machine import counters
from lstm_trt.machine.linux import allowed_cores
from lstm_trt.recorder import beside, pool
from lstm_trt.recorder.beside import Load, Loads, rate_in, used
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.pool import resources
from lstm_trt.store import files, folders, joins
from lstm_trt.store.locks import timing_lock
from tests.conftest import rest_is_heavy, wait_for

SHAPE = LstmShape(1, 16, 8)

#: A load of a process that starts another in a session of its own, both busy, and leaves a third that nobody waits for.
FAMILY = """
import os, sys, time
sys.argv  # the mark
for depth in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
while True:
    sum(range(1000))
"""


def python(code: str, *arguments: str) -> str:
    """The command of a load that runs this code."""
    return shlex.join([sys.executable, "-S", "-c", code, *arguments])


BUSY = python("while True: pass")


def where(**fields) -> Protocol:
    """A protocol with loads where this machine has cores for them."""
    on = "other-cores" if len(allowed_cores()) > 1 else "same-core"
    return Protocol(**{"trials": 300, "beside_on": on, **fields})


def marked(mark: str) -> list[psutil.Process]:
    """Processes with the mark among their arguments, without those that ended."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        named = mark in (process.info["cmdline"] or ())
        if named and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def gone(mark: str) -> bool:
    return wait_for(lambda: not marked(mark))


# What is asked for


def test_a_quiet_protocol_says_nothing_of_loads_and_a_load_is_part_of_the_identity():
    quiet = Protocol()
    assert not {"beside", "beside_on", "fifo"} & quiet.as_dict().keys()
    asked = [
        quiet,
        Protocol(beside={"a": "x 1"}),
        Protocol(beside={"a": "x 2"}),
        Protocol(beside={"b": "x 1"}),
        Protocol(beside={"a": "x 1"}, beside_on="same-core"),
        Protocol(arrival="periodic", period_us=1e4, wait="os"),
        Protocol(arrival="periodic", period_us=1e4, wait="os", fifo=3),
    ]
    configurations = [Configuration(SHAPE, "c", "1", "cpu", protocol=protocol) for protocol in asked]
    assert len({each.id for each in configurations}) == len(asked)
    assert [Configuration.from_dict(each.as_dict()) for each in configurations] == configurations
    assert len({each.protocol.arrival_text for each in configurations}) == len(asked) - 1  # the commands differ only


def test_the_order_of_loads_and_the_way_they_are_given_make_no_difference():
    pairs = [("b", "y"), ("a", "x")]
    assert Protocol(beside=pairs) == Protocol(beside=dict(pairs)) == Protocol(beside=tuple(reversed(pairs)))


@pytest.mark.parametrize(
    "fields",
    [
        {"beside": {"a b": "x"}},
        {"beside": {"": "x"}},
        {"beside": {"a": " "}},
        {"beside": [("a", "x"), ("a", "y")]},
        {"beside": {"COPIES": "0"}},
        {"beside": {"COPIES": "1.5"}},
        {"beside": {"a": "x"}, "beside_on": "no-core"},
        {"fifo": 5},
        {"fifo": 5, "arrival": "periodic", "period_us": 1000},
        {"fifo": 5, "arrival": "paused", "pause_ms": 1},
        {"fifo": 100, "arrival": "periodic", "period_us": 1000, "wait": "os"},
        {"fifo": 0, "arrival": "periodic", "period_us": 1000, "wait": "os"},
    ],
)
def test_what_cannot_be_meant_is_refused(fields):
    with pytest.raises(UsageError):
        Protocol(**fields)


@pytest.mark.parametrize("command", ["no-such-program-anywhere 1", "'unclosed", "''"])
def test_a_program_that_is_not_there_is_refused_before_anything_is_made(command):
    with pytest.raises(UsageError, match="--beside x"):
        describe(SHAPE, "c", where(beside={"x": command}))


def test_without_tail_a_load_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="--beside x: there is no program tail: install it"):
        describe(SHAPE, "onnxruntime", where(beside={"x": BUSY}))


def test_loads_have_cores_of_their_own_or_are_refused():
    cores = allowed_cores()
    options = Options(threads=len(cores), cores=cores)
    asked = Protocol(beside={"x": BUSY})
    with pytest.raises(UsageError, match="same-core"):
        beside.cores_of(asked, options)
    assert beside.cores_of(replace(asked, beside_on="same-core"), options) == cores
    assert beside.cores_of(Protocol(), options) == ()
    for core in cores[:-1]:
        assert beside.cores_of(asked, Options(cores=(core,))) == tuple(each for each in cores if each != core)


def test_the_cores_of_loads_are_locked_too():
    cores = allowed_cores()
    configuration = describe(SHAPE, "c", where(beside={"x": BUSY}))
    load_cores = beside.cores_of(configuration.protocol, configuration.options)
    locked = {name for name in resources(configuration.options, load_cores) if name.startswith("core-")}
    assert {f"core-{core}" for core in cores} <= locked or configuration.protocol.beside_on == "same-core"
    assert locked >= {f"core-{core}" for core in configuration.options.cores}


def test_a_recording_waits_for_the_cores_of_its_loads():
    asked = where(beside={"x": BUSY})
    configuration = describe(SHAPE, "onnxruntime", asked)
    load_core = beside.cores_of(asked, configuration.options)[0]
    with timing_lock([f"core-{load_core}"]), pytest.raises(UsageError, match=f"core {load_core} "):
        lstm_trt.record(SHAPE, "onnxruntime", asked, wait=False)


# What a load does


def test_who_supervises_a_load_is_not_among_its_processes():
    load = Load("x", "sh -c 'while :; do :; done'", allowed_cores())
    assert wait_for(lambda: used(load)[0] > 3e8)
    assert used(load)[2] == ["sh"]
    load.end()


def test_what_a_load_used_counts_all_that_came_of_it(tmp_path):
    mark = f"mark-{os.getpid()}-used"
    written = 3_000_000
    code = f"open({str(tmp_path / 'written')!r}, 'wb').write(bytes({written}))"
    ends = python(code, mark)
    load = Load("sh", shlex.join(["sh", "-c", f"{ends}; {python('while True: pass', mark)}"]), allowed_cores())
    assert wait_for(lambda: (tmp_path / "written").exists() and used(load)[0] > 3e8)
    cpu_ns, io_bytes, names = used(load)
    assert io_bytes > written and 3e8 < cpu_ns < time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert "sh" in names and len(names) == 2
    load.end()
    assert not marked(mark) and used(load) == (0, 0, [])


def test_a_load_runs_on_its_cores_without_the_thread_variables_of_the_recorder(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    core = allowed_cores()[-1]
    code = "import os; print(sorted(os.sched_getaffinity(0)), os.environ.get('OMP_NUM_THREADS'), flush=True)"
    load = Load("x", python(f"{code}\nwhile True: pass"), [core])
    assert wait_for(lambda: used(load)[0] > 5e8)
    assert [os.sched_getaffinity(pid) for pid in load.pids] == [{core}] * 2  # and what reads its output
    assert load.end() == f"[{core}] None\n"


def test_a_load_has_a_moment_for_its_last_words_and_no_longer(tmp_path):
    wait = "open(sys.argv[1], 'w')\nwhile True: time.sleep(.01)"
    said = f"import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(print('last', flush=True)))\n{wait}"
    deaf = f"import signal, sys, time\nsignal.signal(15, signal.SIG_IGN)\nprint('deaf', flush=True)\n{wait}"
    loads, ready = [], []
    for name, code in (("said", said), ("deaf", deaf)):
        ready.append(tmp_path / name)
        loads.append(Load(name, python(code, str(ready[-1])), allowed_cores()))
    assert wait_for(lambda: all(path.exists() for path in ready))
    assert [load.end() for load in loads] == ["last\n", "deaf\n"]


def test_of_what_a_load_prints_only_the_end_is_kept(tmp_path):
    """A load that never stops printing, such as `yes`, fills no disk: it prints into a pipe, as does its reader."""
    done = tmp_path / "done"
    code = "import sys\nfor number in range(100_000): print(number)\nsys.stdout.flush()\nopen(sys.argv[1], 'w')\n"
    load = Load("x", python(f"{code}while True: pass", str(done)), allowed_cores())
    assert wait_for(done.exists)
    for pid in load.pids:
        assert os.readlink(f"/proc/{pid}/fd/1").startswith("pipe:")
    printed = load.end()
    assert len(printed) == beside.KEPT_BYTES and printed.endswith("\n99998\n99999\n")
    assert load.end() == printed


def test_a_load_that_holds_its_output_open_is_not_waited_for(monkeypatch):
    """Once both of its supervisors were killed nothing ends it, but the recorder goes on."""
    mark = f"mark-{os.getpid()}-held"
    monkeypatch.setattr(beside, "PATIENCE_S", 0.1)
    load = Load("x", python("while True: pass", mark), allowed_cores())

    def loads_and_supervisors() -> tuple[list, list]:
        found = marked(mark)
        itself = [each for each in found if each.cmdline()[1:2] == ["-S"]]
        return itself, [each for each in found if each not in itself]

    assert wait_for(lambda: len(loads_and_supervisors()[0]) == 1)
    (itself,), supervisors = loads_and_supervisors()
    for each in supervisors:
        each.kill()
    assert len(supervisors) == 2 and load.end() == "" and itself.is_running()
    itself.kill()


def test_rates_are_read_from_what_a_load_prints():
    assert rate_in("hdd   8947.77 MB/sec read rate\nwrote 5.5 MB/s\n") == "5.5 MB/s"
    assert rate_in("memory rate: 12.1 MB read/sec") == "12.1 MB read/sec"
    assert rate_in("4224 bogo ops, real time 2.00 s, bogo ops/s") is None


def test_rates_beside_and_alone_stand_side_by_side():
    printing = python(
        "import itertools, time\nfor n in itertools.count(1):\n print(n, 'items/s', flush=True)\n time.sleep(.001)"
    )
    asked = Protocol(beside={"quiet": BUSY, "printing": printing})
    with Loads(asked, allowed_cores(), ()) as loads:
        loads.begin()
        time.sleep(0.2)
        stated = loads.finish()
        loads.add_rates(stated)
    printed, quiet = stated
    assert printed["name"] == "printing" and "rate" not in quiet
    for name in ("rate", "rate_alone"):
        assert int(printed[name].removesuffix(" items/s")) > 0


def test_parts_of_a_long_recording_add_up():
    part = {"name": "x", "command": "y", "cores": [1], "cpu_ns": 5, "io_bytes": 7, "wall_ns": 11, "processes": ["z"]}
    other = {**part, "name": "v", "cpu_ns": 1}
    twice = joins.loads([[part, other], [part, other]])
    assert twice == [
        {**part, "cpu_ns": 10, "io_bytes": 14, "wall_ns": 22},
        {**other, "cpu_ns": 2, "io_bytes": 14, "wall_ns": 22},
    ]


@pytest.mark.parametrize(("on_pinned", "alone"), [(False, True), (True, False)])
def test_the_time_of_a_load_is_not_that_of_others(on_pinned, alone):
    """A load of 0.9 s within 1 s, on the other core or on the pinned one, where 0.5 s of others are counted besides."""
    pinned_ns = 900_000_000 if on_pinned else 1_000_000
    blocks = [
        {
            "others_ns": pinned_ns + on_pinned * 500_000_000,
            "others_total_ns": pinned_ns + 900_000_000 * (not on_pinned) + on_pinned * 500_000_000,
        }
    ]
    without = counters.others(blocks, 1_000_000_000, 1)
    assert without is not None and without["alone"] is False
    found = counters.others(blocks, 1_000_000_000, 1, 900_000_000, on_pinned)
    assert found is not None and found["alone"] is alone
    assert found["all_cores_ns"] == (500_000_000 if on_pinned else 1_000_000)


# Recordings


def test_a_recording_beside_a_load_states_what_the_load_did(tmp_path):
    recording = lstm_trt.record(SHAPE, "onnxruntime", where(beside={"busy": BUSY}), out=tmp_path)
    (load,) = recording.provenance["beside"]
    assert load["name"] == "busy" and load["command"] == BUSY and recording.timed_ns.size == 300
    assert 0 < load["cpu_ns"] <= 1.5 * load["wall_ns"] * len(load["cores"]) + 1e8
    assert recording.configuration.protocol.beside == (("busy", BUSY),)
    stated = recording.provenance
    on_pinned = recording.configuration.protocol.beside_on == "same-core"
    without = counters.others(stated["blocks"], stated["self_check"]["loop_ns"], 1, load["cpu_ns"], on_pinned)
    assert stated["others"] == without
    (stored,) = folders.read_many(tmp_path)
    assert stored.provenance["beside"] == [load]


def test_copies_call_the_same_step_and_end_with_the_recording(tmp_path, monkeypatch):
    started = {}

    class Noted(pool.Process):
        def __init__(self, options, logs, name, interpreter=None):
            super().__init__(options, logs, name, interpreter)
            started[name] = self

    monkeypatch.setattr(pool, "Process", Noted)
    recording = lstm_trt.record(SHAPE, "onnxruntime", where(beside={"COPIES": "2"}), out=tmp_path)
    (load,) = recording.provenance["beside"]
    assert load["name"] == "COPIES" and load["command"] == "2" and load["cpu_ns"] > 0
    assert recording.configuration.protocol.beside_text.startswith("2 copies of itself")
    assert {"copy-0", "copy-1"} <= started.keys()
    assert not any(started[name].alive for name in ("copy-0", "copy-1"))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("sleep 1000", "neither CPU time nor I/O"),
        (python("print('first')\nprint('no such option')\nraise SystemExit(3)"), "exit status 3: no such option"),
        (python("import os\nos.kill(os.getpid(), 9)"), "exit status 137"),
    ],
)
def test_a_load_that_was_none_makes_a_failure_row(tmp_path, command, reason):
    lstm_trt.sweep([SHAPE], ["onnxruntime"], where(beside={"x": command}), out=tmp_path, show_progress=False)
    (failure,) = folders.read_many(tmp_path)
    assert failure.stage == "run" and reason in failure.reason
    assert not list(tmp_path.glob("*.parquet"))


def test_an_executor_records_beside_loads_and_says_what_its_machine_lacks(tmp_path):
    protocols = [where(beside={"busy": BUSY}), where(beside={"missing": "no-such-program-anywhere"})]
    with ThreadPoolExecutor(1) as executor:
        lstm_trt.sweep([SHAPE], ["onnxruntime"], protocols, out=tmp_path, executor=executor, show_progress=False)
    stored = {item.configuration.protocol.beside[0][0]: item for item in folders.read_many(tmp_path)}
    (load,) = stored["busy"].provenance["beside"]
    assert load["cpu_ns"] > 0 and "there is no program no-such-program-anywhere" in stored["missing"].reason


def test_a_load_that_ends_during_the_trials_makes_a_failure(monkeypatch):
    with Loads(
        Protocol(beside={"x": python("import time\nend = time.time() + 1.5\nwhile time.time() < end: pass")}),
        allowed_cores(),
        (),
    ) as loads:
        loads.begin()
        time.sleep(2)
        with pytest.raises(RunFailed, match="ended before the trials did, with exit status 0"):
            loads.finish()


@pytest.mark.heavy
def test_a_soak_beside_a_load_states_it_in_each_part(tmp_path, typed):
    on = where().beside_on
    typed(
        "record --layers 1 --hidden 8 --sequence 8 --for 3s --beside {} --beside-on {} --out {}",
        shlex.quote(f"busy={BUSY}"),
        on,
        tmp_path,
    )
    parts = [files.read(path).provenance["beside"] for path in tmp_path.glob("*.parquet")]
    (recording,) = folders.read_many(tmp_path)
    assert all(load["cpu_ns"] > 0 for (load,) in parts)
    assert recording.provenance["beside"] == joins.loads(parts)
    assert sum(load["wall_ns"] for (load,) in parts) > 2e9


# Nothing is left


def starter(mark: str) -> subprocess.Popen:
    """A process that starts a family as a load and waits; all of the family have the mark."""
    code = (
        "import sys, time; from lstm_trt.recorder.beside import Load\n"
        f"load = Load('x', {python(FAMILY, mark)!r}, {list(allowed_cores())})\n"
        "time.sleep(1000)"
    )
    return subprocess.Popen([sys.executable, "-c", code], cwd=Path(lstm_trt.__file__).parents[1])


@pytest.mark.parametrize("moment", rest_is_heavy(range(20), lambda moment: moment < 6, one_in=1))
def test_whoever_is_killed_at_whatever_moment_nothing_is_left(moment):
    """SIGKILL of the recorder, a supervisor, or the load, at a random moment from before the start to well after it."""
    mark = f"mark-{os.getpid()}-{moment}"
    recorder = starter(mark)
    try:
        time.sleep(random.uniform(0.05, 1.0))
        victim = (recorder.pid, *(each.pid for each in sorted(marked(mark), key=lambda each: each.create_time())))
        os.kill(victim[moment % len(victim)], signal.SIGKILL)
        time.sleep(random.uniform(0.0, 0.2))
    finally:
        recorder.kill()
        recorder.wait()
    assert gone(mark)
