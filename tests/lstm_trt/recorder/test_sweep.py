"""Sweeps that finish, fail, are killed, are stopped: real processes, real files."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lstm_trt.config.configuration import Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import Grid
from lstm_trt.machine import facts
from lstm_trt.recorder import pool
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.jobs import Job, ReferenceJob
from lstm_trt.recorder.process import Limits, Listener, Process
from lstm_trt.recorder.sweep import order, plan_configurations, run_sweep
from lstm_trt.store import files as store_files, folders, schema
from lstm_trt.store.locks import LOCK_FILE, folder_lock
from tests.conftest import ROOT, sampled, wait_for
from tests.lstm_trt.store.test_store import planted, same

SMALL = Grid(layers=(1,), hidden=(8,), sequence=(4, 6))
GRID = Grid(layers=(1, 2), hidden=(8,), sequence=(4,), batch=(1, 2))
ONE = Grid(layers=(1,), hidden=(8,), sequence=(4,))
LACKING = {"onnxruntime": ("tf32", "bf16"), "pytorch": ("tf32", "int8")}
#: What the faulty runtimes fail on.
ODD = Grid(layers=(1,), hidden=(8,), sequence=(6,))


def plan(runtime="onnxruntime", grid=GRID, trials=50):
    return [describe(shape, runtime, Protocol(trials=trials)) for shape in grid]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK_FILE)


def test_every_configuration_once_and_resume_finds_nothing_to_do(tmp_path):
    configurations = plan()
    report = run_sweep(configurations, tmp_path, rounds=2, show_progress=False)
    assert (report.recorded, report.failures, report.left) == (8, [], 0)
    assert "control" not in str(report).splitlines()[1]
    assert files(tmp_path) == sorted(f"{c.id}-r{number}.parquet" for c in configurations for number in range(2))
    for recording in folders.read_many(tmp_path):
        parity = recording.provenance["parity"]
        assert len(recording.timed_ns) == 50 and parity["error"] <= parity["bound"] and recording.control is None
    again = run_sweep(configurations, tmp_path, rounds=2, show_progress=False)
    assert (again.recorded, again.done_before, again.seconds.timing) == (0, 8, 0.0)


def test_no_reference_is_made_while_trials_are_timed(tmp_path, monkeypatch):
    events, call = [], Process.call

    def spied(process: Process, job: Job, limits: Limits, listener: Listener) -> object:
        events.append("reference" if isinstance(job, ReferenceJob) else "record")
        answer = call(process, job, limits, lambda message: events.append(message.get("stage")))
        events.append("done")
        return answer

    monkeypatch.setattr(Process, "call", spied)
    assert run_sweep(plan(grid=SMALL), tmp_path, show_progress=False).recorded == 2
    order = [name for name in events if name in ("reference", "record", "run", "store", "done")]
    assert order == ["reference", "done", "record", "run", "store", "done"] * 2


def test_rounds_come_in_new_orders_and_new_processes():
    configurations = plan(grid=Grid(layers=(1,), hidden=tuple(range(1, 31)), sequence=(2,)))
    first, second = order(configurations, 2, seed=1)
    assert sorted(c.id for c in first) == sorted(c.id for c in second) == sorted(c.id for c in configurations)
    assert first != second and first != configurations
    assert [first, second] == list(order(configurations, 2, seed=1))
    assert first != next(iter(order(configurations, 1, seed=2)))


@pytest.mark.parametrize(
    ("runtime", "stage", "words", "limits"),
    [
        ("tests.support.faulty.segfault", "run", "SIGSEGV", {}),
        pytest.param(
            *("tests.support.faulty.hungry", "memory", "--memory-limit-gb", {"memory_limit": 1_500_000_000}),
            marks=pytest.mark.heavy,
        ),
        # The others need less than this on a busy machine too.
        pytest.param(
            *("tests.support.faulty.hang", "time", "--time-limit", {"time_limit_s": 25}), marks=pytest.mark.heavy
        ),
    ],
)
def test_a_worker_that_dies_is_a_row_and_the_sweep_goes_on(tmp_path, runtime, stage, words, limits):
    configurations = plan(runtime, grid=SMALL, trials=200)
    report = run_sweep(configurations, tmp_path, show_progress=False, **limits)
    assert report.recorded == 1
    (failure,) = store_failures(tmp_path)
    assert failure.configuration.workload.sequence == 6
    assert failure.stage == stage
    assert words in failure.reason
    assert orphans(configurations[0].id) == []
    # It counts as done, until it is asked for again.
    assert run_sweep(configurations, tmp_path, show_progress=False, **limits).failed_before == 1
    # What is left fails whenever its time is over, so that this limit may be short.
    limits = limits and {name: min(limit, 3) if name == "time_limit_s" else limit for name, limit in limits.items()}
    again = run_sweep(configurations, tmp_path, retry_failed=True, show_progress=False, **limits)
    assert len(again.failures) == 1 and again.done_before == 1


@pytest.mark.parametrize(
    ("runtime", "stage", "words"),
    [("wrong", "parity", "fp32"), ("frozen", "parity", "fp32"), ("bug", "build", "KeyError")],
)
def test_what_answers_wrongly_is_never_timed(tmp_path, runtime, stage, words):
    report = run_sweep(plan(f"tests.support.faulty.{runtime}", SMALL), tmp_path, show_progress=False)
    assert report.recorded == 0 and len(report.failures) == len(SMALL)
    assert all(failure.stage == stage and words in failure.reason for failure in store_failures(tmp_path))
    assert not [name for name in files(tmp_path) if name.endswith(".parquet")]


def test_a_recording_takes_the_place_of_its_failure(tmp_path):
    (configuration,) = plan(grid=ONE, trials=20)
    store_files.write_failure(schema.Failure(configuration, 0, "memory", "not enough"), tmp_path)
    asked = (configuration.workload, configuration.runtime, configuration.protocol, configuration.options)
    assert pool.record(*asked, control=False, out=tmp_path).round == 0
    assert files(tmp_path) == [f"{configuration.id}-r0.parquet"]


def store_failures(folder: Path) -> list[schema.Failure]:
    return [item for item in folders.read_many(folder) if isinstance(item, schema.Failure)]


def orphans(mark: str) -> list[int]:
    """Processes that carry `mark` in their environment or command line."""
    found = psutil.process_iter(["environ", "cmdline"])
    return [each.pid for each in found if mark in str(each.info) and each.pid != os.getpid()]


def start_sweep(folder: Path, mark: str, *more: str) -> subprocess.Popen:
    arguments = ["sweep", "--layers", "1", "2", "--hidden", "8", "16", "--sequence", "4", "8", "--batch", "1", "2"]
    arguments += ["--trials", "2000", "--out", str(folder), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "lstm_trt", *arguments],
        cwd=ROOT,
        env={**os.environ, "LSTM_TRT_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_failure_has_its_machine_and_leaves_no_temporary_files(tmp_path, monkeypatch):
    """The outputs that it was compared with can take 256 MB."""
    left, end = [], pool.WorkerPool.__exit__

    def looked_at(workers, *exception):
        left.extend(path.name for path in workers._logs.iterdir() if path.suffix != ".log")
        end(workers, *exception)

    monkeypatch.setattr(pool.WorkerPool, "__exit__", looked_at)
    run_sweep(plan("tests.support.faulty.wrong", grid=ODD), tmp_path, show_progress=False)
    (failure,) = store_failures(tmp_path)
    assert left == [] and failure.provenance["machine_fingerprint"] == facts.fingerprint(facts.describe())


def test_what_hangs_is_ended_at_its_time_limit(tmp_path):
    configurations = plan("tests.support.faulty.hang", grid=ODD)
    report = run_sweep(configurations, tmp_path, show_progress=False, time_limit_s=2)
    (failure,) = store_failures(tmp_path)
    assert (report.recorded, failure.stage, orphans(configurations[0].id)) == (0, "time", [])


@pytest.mark.heavy
@pytest.mark.parametrize("kills", [3, pytest.param(12, marks=sampled(2))])
def test_killed_at_random_moments_loses_at_most_what_was_under_way(tmp_path, kills):
    mark = f"mark-{random.getrandbits(64):x}"
    seen: set[str] = set()
    for _ in range(kills):
        sweep = start_sweep(tmp_path, mark)
        time.sleep(random.uniform(0.05, 3.0))
        sweep.kill()
        sweep.communicate()
        assert wait_for(lambda: not orphans(mark)), "a worker outlived its sweep"
        now = {name for name in files(tmp_path) if name.endswith(".parquet")}
        assert seen <= now, "a recording was lost"
        for name in now:
            assert len(store_files.read(tmp_path / name).timed_ns) == 2000
        seen = now
    sweep = start_sweep(tmp_path, mark)
    output, errors = sweep.communicate(timeout=600)
    assert sweep.returncode == 0, errors
    assert len(files(tmp_path)) == 16, files(tmp_path)  # no temporary file is left either
    keys = [(item.configuration.id, item.round) for item in folders.read_many(tmp_path)]
    assert len(set(keys)) == 16
    assert f"{len(seen)} already recorded" in output or not seen


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path):
    mark = f"mark-{random.getrandbits(64):x}"
    sweep = start_sweep(tmp_path, mark, "--rounds", "40")
    began = wait_for(lambda: any(name.endswith(".parquet") for name in files(tmp_path)), 300, sweep)
    if not began:
        sweep.kill()
        pytest.fail(sweep.communicate()[1])
    sweep.send_signal(signal.SIGINT)
    _, errors = sweep.communicate(timeout=300)
    assert sweep.returncode == 130
    assert "resume with:\n  lstm-trt sweep" in errors and str(tmp_path) in errors and "Traceback" not in errors
    assert wait_for(lambda: not orphans(mark))
    assert all(isinstance(item, schema.Recording) for item in folders.read_many(tmp_path))


def test_a_folder_in_use_is_refused(tmp_path, refused):
    with folder_lock(tmp_path):
        for command in ("record", "sweep"):
            line = refused(command, "--layers", 1, "--hidden", 8, "--sequence", 4, "--out", tmp_path)
            assert "in use" in line and str(os.getpid()) in line and str(tmp_path) in line
    assert files(tmp_path) == []


def test_a_damaged_recording_is_set_aside_and_recorded_again(tmp_path):
    configurations = plan(grid=ONE)
    path = store_files.write(replace(planted(), configuration=configurations[0]), tmp_path)
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(half)
    report = run_sweep(configurations, tmp_path, show_progress=False)
    assert report.recorded == 1 and "damaged" in report.warnings[0]
    assert store_files.read(path) and (tmp_path / f"{path.name}.damaged").read_bytes() == half


def test_a_full_disk_stops_the_sweep_in_one_line_and_loses_nothing(tmp_path, lab):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here")

    def fails(line: str) -> str:
        done = lab(*line.split(), disk)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert "No space left" in done.stderr.splitlines()[-1], done.stderr
        return done.stderr

    try:
        errors = fails("sweep --layers 1 --hidden 8 --sequence 2 3 4 5 6 7 8 9 --trials 2000 --quiet --out")
        assert errors.count("\n") == 1
        kept = files(disk)
        assert 0 < len(kept) < 8 and all(name.endswith(".parquet") for name in kept)
        assert {len(recording.timed_ns) for recording in folders.read_many(disk)} == {2000}
        # Whatever else writes there says so in one line as well.
        fails("record --layers 1 --hidden 40 --sequence 4 --trials 5000 --out")
        fails("export --layers 1 --hidden 40 --sequence 4 --out")
        fails("consolidate")
        assert files(disk) == kept
    finally:
        subprocess.run(["umount", disk], check=True)


def test_failures_and_recordings_survive_consolidation(tmp_path, typed):
    configurations = plan("tests.support.faulty.segfault", SMALL)
    run_sweep(configurations, tmp_path / "a", show_progress=False)
    typed("consolidate {} --out {}", tmp_path / "a", tmp_path / "b")
    before, after = (
        sorted(folders.read_many(tmp_path / name), key=lambda item: item.configuration.id) for name in ("a", "b")
    )
    assert {type(item) for item in before} == {schema.Recording, schema.Failure}
    for one, other in zip(before, after, strict=True):
        assert same(one, other) if isinstance(one, schema.Recording) else one == other
    # A consolidated folder counts as done, too.
    report = run_sweep(configurations, tmp_path / "b", show_progress=False)
    assert (report.recorded, report.done_before, report.failed_before) == (0, 1, 1)


def test_a_runtime_is_skipped_for_the_precisions_that_it_lacks():
    runtimes = ["onnxruntime", "pytorch"]
    wanted, skipped = plan_configurations(
        SMALL, runtimes, options=Options.each(["fp32", "tf32", "bf16", "int8", "fp32"], threads=1)
    )
    found = {(each.runtime, each.options.precision) for each in wanted}
    assert found == {("onnxruntime", "fp32"), ("onnxruntime", "int8"), ("pytorch", "fp32"), ("pytorch", "bf16")}
    assert len(wanted) == len(SMALL) * len(found)
    told = [re.search(r"(\S+) on cpu does not support (\S+): choose from fp32", line).groups() for line in skipped]
    assert told == [(name, each) for name, lacks in LACKING.items() for each in lacks]
    assert plan_configurations(SMALL, ["pytorch"], options=Options(precision="bf16"))[1] == []
    for asked in (runtimes[:1], runtimes):
        with pytest.raises(UsageError) as raised:
            plan_configurations(SMALL, asked, options=Options.each("tf32"))
        assert all(f"{name} on cpu does not support tf32: choose from fp32" in str(raised.value) for name in asked)


def test_the_report_in_json_adds_up(tmp_path, typed):
    line = "sweep --layers 1 --hidden 8 --sequence 16 --trials 500 --precision int8 bf16 fp32 --format json --out {}"
    answer = typed(line, tmp_path)
    assert (answer["total"], answer["recorded"], answer["left"]) == (2, 2, 0)
    (skipped,) = (line for line in answer["warnings"] if line.startswith("skipped"))  # a busy machine adds others
    assert "does not support bf16" in skipped
    fp32, int8 = typed("summarize {} --format json", tmp_path)
    assert [row["configuration"]["precision"] for row in (fp32, int8)] == ["fp32", "int8"]
    assert 0 < fp32["facts"]["parity_error"] < 1e-5 and 1e-4 < int8["facts"]["parity_error"] < 5e-2
    inside, timing, preparing = (answer[f"{name}_s"] for name in ("inside_trials", "timing", "preparing"))
    assert 0 < inside <= timing and preparing + timing + answer["storing_s"] <= answer["wall_s"]
    assert answer["preparing_s_each"] == pytest.approx(preparing / 2)
    assert answer["efficiency"] == pytest.approx(inside / timing)
