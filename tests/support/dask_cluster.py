"""A Dask scheduler and workers as processes on this machine, as a user starts them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, wait_for


class DaskCluster:
    """A context manager: the scheduler listens on loopback, at `address`; `add_worker` starts a worker.

    `tls`: with a certificate, made as in docs/cluster.md, that all processes need.
    """

    def __init__(self, folder: Path, tls: bool = False, **environment: str) -> None:
        self._folder, self.processes = folder, []
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        # A test kills more workers than Dask allows for one job.
        self.environment = {**os.environ, "PYTHONPATH": path, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "99"}
        self.environment |= {"DASK_TEMPORARY_DIRECTORY": str(folder), **environment}
        self._protocol = "tls" if tls else "tcp"
        if tls:
            page = (ROOT / "docs/cluster.md").read_text()
            line, file = re.findall(r"```text\n(openssl .*?)\n```.*?```yaml\n(.*?)```", page, re.DOTALL)[0]
            subprocess.run(line, shell=True, check=True, cwd=folder, capture_output=True)
            (folder / "dask.yaml").write_text(file.replace("/home/me/dask", str(folder)))
            self.environment["DASK_CONFIG"] = str(folder / "dask.yaml")

    def _start(self, program: str, *arguments: str) -> subprocess.Popen:
        log = (self._folder / f"{program}-{len(self.processes)}.log").open("w")
        command = [sys.executable, "-m", f"distributed.cli.{program}", "--no-dashboard", *arguments]
        with log:
            how = {"stdout": log, "stderr": log, "cwd": self._folder, "env": self.environment}
            self.processes.append(subprocess.Popen(command, **how))
        return self.processes[-1]

    def __enter__(self) -> DaskCluster:
        described = self._folder / f"scheduler-{random.getrandbits(32):x}.json"
        where = ("--protocol", self._protocol, "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(described))
        scheduler = self._start("dask_scheduler", *where)
        assert wait_for(lambda: described.exists() and described.read_text().endswith("}"), 120, scheduler)
        self.address = json.loads(described.read_text())["address"]
        return self

    def add_worker(self, nanny: bool = False) -> subprocess.Popen:
        how = ["--nthreads", "1", "--memory-limit", "0", "--resources", "lstm_trt=1"]
        return self._start("dask_worker", self.address, *how, "--nanny" if nanny else "--no-nanny")

    def client(self) -> Any:
        """A client of Dask in this process."""
        from distributed import Client, Security

        own = {name: str(self._folder / f"{name}.pem") for name in ("cert", "key")}
        certificates = {"tls_ca_file": own["cert"], "tls_client_cert": own["cert"], "tls_client_key": own["key"]}
        security = Security(**certificates) if self._protocol == "tls" else None
        return Client(self.address, security=security, set_as_default=False)

    def __exit__(self, *exception: object) -> None:
        # The scheduler ends last: workers that had to end without it took more than 20 s and were killed.
        scheduler, *workers = self.processes
        for group in (workers, [scheduler]):
            for process in group:
                process.send_signal(signal.SIGTERM)
            for process in group:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
