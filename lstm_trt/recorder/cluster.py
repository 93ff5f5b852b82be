"""The workers of a Dask scheduler as an executor of a sweep (docs/cluster.md); needs the extra `cluster`."""

from __future__ import annotations

import platform
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import cached_property
from typing import Any

from lstm_trt.config.errors import refused

#: What a worker offers: `dask worker ADDRESS --resources "lstm_trt=1"`, so that it records one configuration at a time.
RESOURCE = "lstm_trt"

#: How long the scheduler may take to answer.
CONNECT_S = 10.0


class Cluster(Executor):
    """The workers of the Dask scheduler at `address` that offer `RESOURCE`, or only those on the host with this IP.

    It connects when it is first used: a finished sweep needs neither the scheduler nor Dask. Then raises `UsageError`
    if Dask is not installed or no scheduler answers.
    """

    def __init__(self, address: str, host: str | None = None) -> None:
        self.address, self.host = address, host

    @cached_property
    def _client(self) -> Any:
        with refused("a scheduler needs Dask", ImportError, hint=": pip install -e '.[cluster]'"):
            from distributed import Client
        with refused(f"cannot reach a Dask scheduler at {self.address}", OSError, ValueError):
            return Client(self.address, timeout=CONNECT_S, set_as_default=False)

    def _found(self) -> dict[str, dict]:
        """Address -> what the scheduler knows of it, of the workers that can be used."""
        found = self._client.scheduler_info(n_workers=-1)["workers"]
        usable = {address: each for address, each in found.items() if RESOURCE in each["resources"]}
        return {address: each for address, each in usable.items() if self.host in (None, each["host"])}

    @property
    def workers(self) -> int:
        """The number of workers now; others may join."""
        return len(self._found())

    def machines(self) -> dict[str, Cluster]:
        """Name of each host that has workers now -> its workers."""
        found, machines = self._found(), {}
        for address, name in self._client.run(platform.node, workers=list(found)).items():
            machines[name] = Cluster(self.address, found[address]["host"])
            vars(machines[name])["_client"] = self._client
        return machines

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """As `concurrent.futures.Executor.submit`."""
        where = {"workers": [self.host]} if self.host else {}
        return self._client.get_executor(pure=False, resources={RESOURCE: 1}, **where).submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the scheduler, which then cancels what has not been recorded."""
        if "_client" in vars(self):
            self._client.close()
