"""A Dask scheduler and workers as processes on this machine, as a user starts them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, wait_for


class DaskCluster:
    """A context manager: the scheduler listens on loopback, at `address`; `add_worker` starts a worker."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._folder, self.processes = folder, []
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        # A test kills more workers than Dask allows for one job.
        self._environment = {**os.environ, "PYTHONPATH": path, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "99"}
        self._environment |= {"DASK_TEMPORARY_DIRECTORY": str(folder), **environment}

    def _start(self, program: str, *arguments: str) -> subprocess.Popen:
        log = (self._folder / f"{program}-{len(self.processes)}.log").open("w")
        command = [sys.executable, "-m", f"distributed.cli.{program}", "--no-dashboard", *arguments]
        with log:
            how = {"stdout": log, "stderr": log, "cwd": self._folder, "env": self._environment}
            self.processes.append(subprocess.Popen(command, **how))
        return self.processes[-1]

    def __enter__(self) -> DaskCluster:
        described = self._folder / f"scheduler-{random.getrandbits(32):x}.json"
        where = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(described))
        scheduler = self._start("dask_scheduler", *where)
        assert wait_for(lambda: described.exists() and described.read_text().endswith("}"), 120, scheduler)
        self.address = json.loads(described.read_text())["address"]
        return self

    def add_worker(self, nanny: bool = False) -> subprocess.Popen:
        how = ["--nthreads", "1", "--memory-limit", "0", "--resources", "lstm_trt=1"]
        return self._start("dask_worker", self.address, *how, "--nanny" if nanny else "--no-nanny")

    def __exit__(self, *exception: object) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
