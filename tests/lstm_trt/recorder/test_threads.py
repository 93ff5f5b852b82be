"""No thread but the runtime's own runs in the timed process while trials are timed."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Thread

import pytest

from lstm_trt import registry
from lstm_trt.config.configuration import Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.config.step import Step
from lstm_trt.machine.linux import allowed_cores
from lstm_trt.recorder.describe import describe
from lstm_trt.recorder.pool import WorkerPool
from lstm_trt.runtimes import load_runtime
from tests.conftest import rest_is_heavy

ON_CPU = [name for name in registry.table("RUNTIMES") if "cpu" in load_runtime(name).DEVICES]


def cpu_times(process: int) -> dict[str, int]:
    """Number of each thread of a process -> its CPU time in ns."""
    folder = Path(f"/proc/{process}/task")
    return {thread.name: int((thread / "schedstat").read_text().split()[0]) for thread in folder.iterdir()}


def ran_beside(tmp_path, workload, runtime: str, threads: int = 1) -> list[set[str]]:
    """The threads beside the timed one that ran during the trials of two recordings of one process.

    Looked at between blocks, and at the end while a control run is timed; in the first recording after a block, since
    a thread that was started beforehand may be late.
    """
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not state the CPU time of threads")
    looks, found = [], []

    def look(message: dict) -> None:
        if message["event"] == "progress" or message.get("stage") == "control":
            (worker,) = pool._workers.values()
            looks.append(cpu_times(worker.child.pid))
            looks[-1].pop(str(worker.child.pid))

    with WorkerPool() as pool:
        for seed, first in enumerate((1, 0)):
            protocol = Protocol(trials=200, block_trials=50, seed=seed)
            configuration = describe(workload, runtime, protocol, Options(threads=threads))
            pool.record_configuration(configuration, 0, tmp_path, look, control=True).check()
            found.append({thread for thread, _ in looks[-1].items() - looks[first].items()})
            looks.clear()
    return found


# Two threads of PyTorch wait for each other by spinning: a minute where other programs use the cores.
@pytest.mark.parametrize("name", rest_is_heavy(ON_CPU, ("onnxruntime", "c").__contains__))
def test_no_thread_but_the_runtimes_own_runs_in_the_timed_process(tmp_path, name):
    """Of one thread that is the timed one, of two one more at most."""
    if not load_runtime(name).availability("cpu").ready:
        pytest.skip(f"{name} is not ready here")
    shape = LstmShape(1, 8, 4)
    assert ran_beside(tmp_path, shape, name) == [set(), set()]
    try:
        assert max(map(len, ran_beside(tmp_path, shape, name, threads=2))) <= 1
    except UsageError:
        assert len(allowed_cores()) == 1


def monitored():
    """A step beside a thread that looks after something now and then."""

    def watch() -> None:
        while True:
            time.sleep(1e-3)

    Thread(target=watch, daemon=True).start()
    return lambda: time.sleep(1e-4)


def test_a_thread_that_is_not_the_runtimes_is_found(tmp_path):
    assert [len(found) for found in ran_beside(tmp_path, Step(f"{__name__}:monitored"), "python")] == [1, 1]
