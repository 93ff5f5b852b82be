"""Executors on the workers of a Dask scheduler (docs/cluster.md); needs the extra `cluster`."""

import platform
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any
from urllib.parse import urlsplit

from lstm_trt.config.errors import UsageError, refused
from lstm_trt.config.libraries import how_to_install

#: How long the scheduler may take to answer.
CONNECT_S = 10.0


def connect(address: str, hosts: Sequence[str] | None = None) -> Any:
    """An executor of the workers of a scheduler that were started with `--resources lstm_trt=1`,
    one job a worker.

    `hosts`: only of those on these. Raises `UsageError` if Dask is not installed or no scheduler
    answers.
    """
    if not urlsplit(address).port:
        raise UsageError(f"--scheduler takes an address such as tcp://HOST:8786, not {address!r}")
    with refused(
        "--scheduler needs Dask", ImportError, hint=f"; install it with {how_to_install('cluster')}"
    ):
        from distributed import Client, Security
    certificates = Security().get_connection_args("client")["ssl_context"]
    if address.startswith("tls:") and certificates is None:
        raise UsageError(
            f"{address} needs certificates, which Dask's configuration does not name:"
            " see docs/cluster.md"
        )
    with refused(f"no Dask scheduler answers at {address}", OSError):
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    return client.get_executor(pure=False, resources={"lstm_trt": 1}, workers=hosts)


def machines(address: str) -> dict[str, Executor]:
    """The name of each host that has workers now -> an executor of those; raises as `connect`."""
    names = connect(address)._client.run(platform.node)
    hosts = {name: urlsplit(worker).hostname or "" for worker, name in names.items()}
    return {name: connect(address, [host]) for name, host in hosts.items()}
