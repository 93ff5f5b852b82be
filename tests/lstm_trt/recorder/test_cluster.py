"""Sweeps on a Dask scheduler with workers, as real processes on loopback: joined late, killed, stopped, finished."""

from __future__ import annotations

import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import lstm_trt as lab
from lstm_trt.recorder.cluster import connect
from lstm_trt.store import files, folders
from tests.conftest import sampled, wait_for
from tests.support.dask_cluster import DaskCluster
from tests.support.traced_steps import made

pytest.importorskip("distributed", reason="needs the extra cluster")
pytestmark = pytest.mark.frameworks

MODULE = "tests.support.traced_steps"

#: A recording takes a third of a second beside the start of its process.
PACED = lab.Protocol(trials=60, warmup=2, arrival="paused", pause_ms=5)


def recorded(folder: Path) -> set[str]:
    """The steps that a folder has recordings of."""
    paths = folders.contents(folder).recordings.values() if folder.exists() else ()
    found = [files.trials_of(path, ())[0]["configuration"]["workload"]["function"] for path in paths]
    assert len(set(found)) == len(found)
    return {name.partition(":")[2] for name in found}


def times_made(trace: Path) -> Counter[str]:
    return Counter(name for name, *_ in made(trace))


def processes_of(trace: Path) -> list[int]:
    """The processes of a cluster and of its recorders, which have the trace in their environment."""
    found = psutil.process_iter(["environ"])
    return [each.pid for each in found if (each.info["environ"] or {}).get("TESTS_TRACED") == str(trace)]


def kill_workers(cluster: DaskCluster, folder: Path, nanny: bool, kills: int, rng) -> list[tuple[set, Counter]]:
    """Add two workers, and kill one of those that run at random moments, each after one more recording.

    Returns for each kill the steps that were recorded before, and how often each step had been made.
    """
    known = []

    def results(dask_scheduler) -> int:
        """How many results workers keep; the scheduler forgets one when it was written."""
        return sum(task.state == "memory" for task in dask_scheduler.tasks.values())

    with cluster.client() as client:
        assert wait_for(lambda: client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))
        for _ in range(2):
            cluster.add_worker(nanny)
        while len(known) < kills:
            assert wait_for(lambda: len(recorded(folder)) > len(known))
            time.sleep(rng.uniform(0, 1))
            before = recorded(folder)
            assert wait_for(lambda: not client.run_on_scheduler(results))  # those of before are forgotten
            workers = sorted(client.run(os.getpid).values())
            os.kill(workers[rng.integers(len(workers))], signal.SIGKILL)
            known.append((before, times_made(cluster.trace)))
            if not nanny:
                cluster.add_worker()
            client.wait_for_workers(2)
    return known


# Each recording and each new worker is a process that starts: 10 to 15 s.
@pytest.mark.random(tail=0, why="identity: whichever workers are killed, and whenever")
@sampled(2)
@pytest.mark.parametrize(("nanny", "kills"), [(False, 3), (True, 2)])
def test_workers_that_are_killed_lose_at_most_what_is_under_way(tmp_path, nanny, kills, rng):
    trace, out, cells = tmp_path / "trace", tmp_path / "out", kills + 4
    steps = [lab.Step(f"{MODULE}:cell_{place}") for place in range(cells)]
    with DaskCluster(tmp_path, TESTS_TRACED=str(trace)) as cluster, ThreadPoolExecutor(1) as beside:
        cluster.trace, executor = trace, connect(cluster.address)
        killing = beside.submit(kill_workers, cluster, out, nanny, kills, rng)
        report = lab.sweep(steps, protocol=PACED, out=out, executor=executor, show_progress=False)
        known = killing.result(600)
        executor._client.close()
    assert (report.recorded, report.failures, report.left, report.machines) == (cells, [], 0, {platform.node(): cells})
    assert recorded(out) == {step.function.partition(":")[2] for step in steps}
    recordings = list(folders.read_many(out))
    assert [len(item.timed_ns) for item in recordings] == [60] * cells
    in_the_end = times_made(trace)
    for before, then in known:
        assert {name: in_the_end[name] for name in before} == {name: then[name] for name in before}
    assert cells <= in_the_end.total() <= cells + 2 * kills
    # The machine has one set of locks, although two workers chose the same core.
    times = sorted((r.provenance["started_unix_ns"], r.provenance["self_check"]["loop_ns"]) for r in recordings)
    assert all(sum(one) < other[0] for one, other in itertools.pairwise(times))
    assert {threshold for *_, threshold in made(trace)} == {"-"}  # the nanny's is not that of the recorder
    assert wait_for(lambda: not processes_of(trace), 300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two workers of a scheduler with TLS, if there is openssl to make a certificate."""
    folder = tmp_path_factory.mktemp("cluster")
    with DaskCluster(folder, tls=bool(shutil.which("openssl")), TESTS_TRACED=str(folder / "trace")) as cluster:
        for _ in range(2):
            cluster.add_worker()
        cluster.trace = folder / "trace"
        yield cluster


def command(cluster: DaskCluster, folder: Path, steps: int, *more: str) -> list[str]:
    names = [f"{MODULE}:{folder.name}_{place}" for place in range(steps)]
    arguments = ["sweep", "--step", *names, "--arrival", "paused", "--pause-ms", "5", "--out", str(folder)]
    return [sys.executable, "-m", "lstm_trt", *arguments, "--scheduler", cluster.address, *more]


def test_ctrl_c_leaves_the_workers_idle_and_without_recorders(cluster, tmp_path):
    line = command(cluster, tmp_path / "long", 6, "--trials", "100000", "--rounds", "1")
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": cluster.environment}
    sweep = subprocess.Popen(line, **how)
    assert wait_for(lambda: len(made(cluster.trace)) >= 1, 300, sweep)
    sweep.send_signal(signal.SIGINT)
    output, errors = sweep.communicate(timeout=600)
    assert sweep.returncode == 130 and "Traceback" not in errors, errors
    assert "resume with:\n  lstm-trt sweep" in errors and "--scheduler" in errors and "6 left" in output, output
    with cluster.client() as client:
        tasks = lambda: client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))  # noqa: E731
        busy = lambda: sum(client.run(lambda dask_worker: dask_worker.state.executing_count).values())  # noqa: E731
        assert wait_for(lambda: not tasks() and not busy(), 300)
        workers = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
    assert len(workers) == 2 and wait_for(lambda: not any(worker.children(True) for worker in workers), 300)
    assert recorded(tmp_path / "long") == set()


def test_the_command_records_on_the_workers_and_needs_them_no_more_when_it_is_done(cluster, tmp_path):
    folder = tmp_path / "short"
    line = command(cluster, folder, 2, "--trials", "50", "--format", "json")

    def answer(*words: str) -> dict:
        done = subprocess.run(words, capture_output=True, text=True, env=cluster.environment, timeout=900)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first = answer(*line)
    assert (first["recorded"], first["machines"]) == (2, {platform.node(): 2})
    nobody = cluster.address.rpartition(":")[0] + ":1"
    assert answer(*(nobody if word == cluster.address else word for word in line))["done_before"] == 2
    assert answer(*line, "--each-machine")["recorded"] == 2
    assert recorded(folder / platform.node()) == recorded(folder) == {"short_0", "short_1"}
    assert answer(*line, "--each-machine")["done_before"] == 2
