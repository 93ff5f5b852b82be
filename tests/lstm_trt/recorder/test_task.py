"""Recordings as tasks of executors: of this process and others, and of planted machines and accidents."""

from __future__ import annotations

import itertools
import pickle
import platform
import re
import sys
import time
import weakref
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from lstm_trt.config.configuration import Configuration, Options, Protocol, cell_key
from lstm_trt.config.errors import StoreError, UsageError
from lstm_trt.config.shape import Grid, LstmShape
from lstm_trt.config.step import Step
from lstm_trt.recorder import task
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.pool import Seconds, failure_of
from lstm_trt.recorder.process import Process
from lstm_trt.recorder.sweep import run_sweep, sweep
from lstm_trt.store import files, folders, schema
from tests.conftest import wait_for
from tests.lstm_trt.config.test_shape import CHANGES, configuration
from tests.lstm_trt.store.test_store import planted
from tests.support.traced_steps import made

SHORT = Protocol(trials=20, warmup=2)
GRID = Grid(layers=(1,), hidden=(4, 5, 6, 7), sequence=(2,))
QUIET = {"show_progress": False}


class Elsewhere(Executor):
    """Another machine that records nothing: its results are planted; `accident` changes them, or raises."""

    _max_workers = 2

    def __init__(self, folder: Path, name: str = "elsewhere", accident=lambda place, result: result) -> None:
        self.folder, self.name, self.accident = folder, name, accident
        self.jobs: list[task.Task] = []
        self.futures: weakref.WeakSet[Future] = weakref.WeakSet()
        self.most = 0

    def submit(self, fn, /, job):
        assert pickle.loads(pickle.dumps(fn)) is task.record_task
        future: Future = Future()
        self.futures.add(future)
        self.most = max(self.most, len(self.futures))
        self.jobs.append(pickle.loads(pickle.dumps(job)))
        try:
            future.set_result(pickle.loads(pickle.dumps(self.accident(len(self.jobs), self.result(job)))))
        except Exception as error:
            future.set_exception(error)
        return future

    def result(self, job: task.Task, failure: schema.Failure | None = None) -> task.Result:
        asked = Configuration.from_dict(job.configuration)
        here = replace(asked, runtime_version="9", device_name=self.name, options=replace(asked.options, cores=(63,)))
        recording = replace(planted(), configuration=here, round=job.round)
        path = files.write_failure(failure, self.folder) if failure else files.write(recording, self.folder)
        known = {"key": job.key, "round": job.round, "content": path.read_bytes(), "machine": self.name}
        return task.Result(path=Path(path.name), failure=failure, seconds=Seconds(), **known)


@pytest.fixture
def elsewhere(tmp_path_factory):
    return lambda *how: Elsewhere(tmp_path_factory.mktemp("elsewhere"), *how)


def swept(folder: Path, executor: Executor, workloads=GRID, **how):
    """The report of a sweep into a folder."""
    return sweep(workloads, **{"protocol": SHORT, "out": folder, "executor": executor, **QUIET, **how})


def names(folder: Path, suffix: str = ".parquet") -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(suffix))


# Real recordings


@pytest.mark.heavy
def test_threads_record_in_one_pool_which_ends_when_it_is_idle(tmp_path, monkeypatch):
    pools: list[WatchedPool] = []
    workers: list[Process] = []

    class WatchedPool(task.WorkerPool):
        def __enter__(self):
            pools.append(self)
            return super().__enter__()

        def record_configuration(self, configuration, *how, **more):
            recorded = super().record_configuration(configuration, *how, **more)
            workers.extend(worker for worker in self._workers.values() if worker.alive)
            return recorded

    monkeypatch.setattr(task, "WorkerPool", WatchedPool)
    monkeypatch.setattr(task, "IDLE_S", 1.0)
    monkeypatch.setattr(platform, "node", lambda: "node-of-the-test")
    shapes = [LstmShape(1, 4, 2), LstmShape(1, 5, 2)]
    asked = {"protocol": SHORT, "rounds": 2, "out": tmp_path, **QUIET}
    with ThreadPoolExecutor(2) as executor:
        report = sweep(shapes, executor=executor, **asked)
        assert wait_for(lambda: len(pools) == 1 and not pools[0]._workers)
    assert (report.recorded, report.failures, report.left) == (4, [], 0)
    assert len(workers) == 4 and len(set(workers)) == 2  # one for each round
    assert not any(worker.alive for worker in workers)
    assert report.machines == {"node-of-the-test": 4} == report.as_dict()["machines"]
    recordings = list(folders.read_many(tmp_path))
    ids = {describe(shape, protocol=SHORT).id for shape in shapes}  # of this machine, with its cores
    found = {(item.configuration.id, item.round) for item in recordings}
    assert found == set(itertools.product(ids, (0, 1))) and len(recordings) == 4
    assert all(len(item.timed_ns) == 20 and "node-of-the-test" not in str(item.provenance) for item in recordings)
    for again in (pytest.fail, None):  # an executor is made only if something is left
        report = sweep(shapes, executor=again, **asked)
        assert (report.recorded, report.done_before) == (0, 4)


def test_processes_record_one_at_a_time_on_a_core(tmp_path, monkeypatch):
    monkeypatch.setenv("TESTS_TRACED", str(tmp_path / "trace"))
    steps = [Step(f"tests.support.traced_steps:cell_{place}") for place in range(2)]
    with ProcessPoolExecutor(2) as executor:
        report = swept(tmp_path / "out", executor, steps)
    assert (report.recorded, report.failures) == (2, []) and len(made(tmp_path / "trace")) == 2
    taken = [item.provenance for item in folders.read_many(tmp_path / "out")]
    (first, second) = sorted((each["started_unix_ns"], each["self_check"]["loop_ns"]) for each in taken)
    assert sum(first) < second[0]


def test_a_machine_without_a_runtime_makes_failures_that_another_retries(tmp_path, elsewhere, monkeypatch):
    monkeypatch.setattr(task, "describe", lambda *asked: describe(LstmShape(1, 4, 2), "tests.support.absent"))
    with ThreadPoolExecutor(1) as executor:
        report = swept(tmp_path, executor)
    assert (report.recorded, len(report.failures)) == (0, 4)
    assert {(each.stage, each.configuration.runtime_version) for each in report.failures} == {("build", "unknown")}
    assert "tests.support.absent" in report.failures[0].reason and len(names(tmp_path, ".failure.json")) == 4
    other = elsewhere()
    assert swept(tmp_path, other).failed_before == 4 and not other.jobs
    assert swept(tmp_path, other, retry_failed=True).recorded == 4
    assert names(tmp_path, ".failure.json") == [] and len(names(tmp_path)) == 4


# The plan


def test_any_machine_counts_for_an_executor_and_only_this_one_without(tmp_path, elsewhere):
    first, second = elsewhere("first"), elsewhere("second")
    assert swept(tmp_path, first, rounds=2).recorded == 8
    report = swept(tmp_path, second, rounds=3)
    assert (report.done_before, report.recorded) == (8, 4) and {job.round for job in second.jobs} == {2}
    folders.consolidate_folder(tmp_path)
    for name in names(tmp_path):
        if len(name) > 64:
            (tmp_path / name).unlink()
    third = elsewhere("third")
    assert swept(tmp_path, third, rounds=3).done_before == 12
    longer = Protocol(trials=21, warmup=2)
    assert swept(tmp_path, third, protocol=longer).recorded == 4
    known, _ = folders.finished(tmp_path)
    assert (describe(LstmShape(1, 4, 2), "onnxruntime", SHORT).id, 0) not in known


@pytest.mark.parametrize("changes", [*CHANGES, {"options": Options(reduce_range=True)}], ids=str)
def test_a_key_is_the_configuration_without_its_machine(changes):
    one, other = configuration(), configuration(**changes)
    of_the_machine = other.options in (Options(device="cpu", cores=(1,)), Options(device="cpu", reduce_range=True))
    same = of_the_machine or changes.keys() <= {"runtime_version", "device_name"}
    assert (cell_key(other.as_dict()) == cell_key(one.as_dict())) == same
    assert changes == {} or other.id != one.id


def test_a_configuration_of_any_machine_has_the_key_of_this_one():
    asked = (LstmShape(1, 4, 2), "onnxruntime", SHORT, Options("int8"))
    here, anywhere = describe(*asked), describe(*asked, anywhere=True)
    assert cell_key(here.as_dict()) == cell_key(anywhere.as_dict()) and here.id != anywhere.id


def test_jobs_say_what_is_asked_for_on_any_machine(tmp_path, elsewhere):
    executor = elsewhere()
    options = [Options(device="cuda:1", device_clocks="all"), Options(device="cuda", precision="fp16")]
    sweep([LstmShape(1, 4, 2)], ["tensorrt"], SHORT, options, out=tmp_path, executor=executor, control=True, **QUIET)
    asked = [Configuration.from_dict(job.configuration) for job in executor.jobs]
    assert {each.options.device_index for each in asked} == {0, 1} and {each.runtime for each in asked} == {"tensorrt"}
    assert {each.options.cores for each in asked} == {()} and all(job.control for job in executor.jobs)


def test_each_machine_has_a_folder_of_its_name(tmp_path, elsewhere):
    machines = {"one": elsewhere("one"), "two": elsewhere("two")}
    report = swept(tmp_path, machines)
    assert report.recorded == 8 and report.folders == [tmp_path / "one", tmp_path / "two"]
    for name, executor in machines.items():
        assert len(executor.jobs) == 4
        assert {item.configuration.device_name for item in folders.read_many(tmp_path / name)} == {name}
    machines["three"] = elsewhere("three")
    report = swept(tmp_path, machines)
    assert (report.done_before, report.recorded, report.machines) == (8, 4, {"three": 4})


def test_few_jobs_are_submitted_at_a_time_and_their_futures_are_dropped(tmp_path, elsewhere):
    executor = elsewhere()
    grid = Grid(layers=(1,), hidden=tuple(range(4, 24)), sequence=(2,))
    assert swept(tmp_path, executor, grid).recorded == 20
    assert executor.most <= 2 * executor._max_workers + 1  # one may be on its way into the folder
    assert not list(executor.futures)


def test_the_progress_names_the_machines(tmp_path, elsewhere, capsys, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 * next(clock))  # a line follows another after 10 s
    sweep(GRID, protocol=SHORT, rounds=2, out=tmp_path, executor=elsewhere("node7"))
    shown = capsys.readouterr().err
    assert "0/8  remaining time not known yet, 4 jobs at 2 workers, recorded by none" in shown
    assert re.search(r"^4/8  about .* left, 4 jobs at 2 workers, recorded by node7 4", shown, re.MULTILINE)


# What is refused, and accidents


def test_a_second_result_is_refused(tmp_path, elsewhere):
    kept: list[task.Result] = []

    def repeated(place: int, result: task.Result) -> task.Result:
        kept.append(result)
        return kept[0] if place == 3 else result

    with pytest.raises(StoreError):
        swept(tmp_path, elsewhere("node", repeated))
    assert len(names(tmp_path)) < 4
    assert swept(tmp_path, elsewhere("node")).left == 0
    assert len(names(tmp_path)) == 4


def raised_for_the_second(error: Exception):
    """An accident: the executor has this error in place of the second result."""

    def accident(place: int, result: task.Result) -> task.Result:
        if place == 2:
            raise error
        return result

    return accident


def test_what_an_executor_loses_is_a_failure_and_its_own_end_is_not(tmp_path, elsewhere):
    class KilledWorker(Exception):
        pass

    loses = elsewhere("node", raised_for_the_second(KilledWorker("several workers died")))
    report = swept(tmp_path / "a", loses)
    assert (report.recorded, len(report.failures)) == (3, 1)
    lost = "the executor did not return its result: several workers died"
    assert (report.failures[0].stage, report.failures[0].reason) == ("run", lost)
    assert len(names(tmp_path / "a", ".failure.json")) == 1
    ends = elsewhere("node", raised_for_the_second(BrokenExecutor("a process ended")))
    with pytest.raises(UsageError, match="the executor has ended: a process ended"):
        swept(tmp_path / "b", ends)
    assert names(tmp_path / "b", ".failure.json") == []


def test_the_failure_of_a_machine_replaces_that_of_another(tmp_path, elsewhere):
    def fail(executor: Elsewhere, job: task.Task) -> task.Result:
        configuration = replace(Configuration.from_dict(job.configuration), device_name=executor.name)
        return Elsewhere.result(executor, job, failure_of(configuration, 0, UsageError(f"not on {executor.name}")))

    for name in ("one", "two"):
        executor = elsewhere(name)
        executor.result = lambda job, executor=executor: fail(executor, job)
        report = swept(tmp_path, executor, retry_failed=True)
        assert len(report.failures) == 4
        assert {item.reason for item in folders.read_many(tmp_path)} == {f"not on {name}"}


@pytest.mark.parametrize("how", [{"wait": False}, {"interpreters": {"id": None}}, {"for_s": 10.0}])
def test_what_needs_this_machine_is_refused(tmp_path, elsewhere, how):
    protocol = replace(SHORT, for_s=how.pop("for_s", None))
    configurations = [describe(LstmShape(1, 4, 2), "onnxruntime", protocol)]
    asked = {"out": tmp_path / "out", "executor": elsewhere()}
    with pytest.raises(UsageError):
        run_sweep(configurations, **asked, **how)
    with pytest.raises(UsageError):
        sweep(GRID, protocol=SHORT, options=Options(cores=(0,)), **asked, **QUIET)
    assert not asked["executor"].jobs and not asked["out"].exists()


@pytest.mark.parametrize(
    ("address", "said"), [("127.0.0.1", "tcp://HOST:8786"), ("tcp://127.0.0.1:1", "pip install -e '.[cluster]'")]
)
def test_an_address_has_its_protocol_and_without_dask_one_line_names_the_extra(
    refused, tmp_path, monkeypatch, address, said
):
    monkeypatch.setitem(sys.modules, "distributed", None)
    shape = ("--layers", 1, "--hidden", 8, "--sequence", 4)
    assert said in refused("sweep", *shape, "--scheduler", address, "--out", tmp_path)
