"""Main program of the processes that `process.py` starts.

Jobs and messages are exchanged over a connection, given by its file descriptor. Output of libraries
goes to standard output and error, which the parent writes to a file. Kinds of job: "reference"
makes what the parity gate compares with (preparing process); "record" records one configuration
(worker); "describe" reports which version of a library is loaded and the resulting configuration
(an environment's Python).
"""

import ctypes
import gc
import importlib
import importlib.metadata
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lstm_trt import registry
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import ConfigurationFailed, LabError, StoreError
from lstm_trt.config.libraries import turn_telemetry_off
from lstm_trt.config.workload import workload_from_dict
from lstm_trt.machine.linux import allowed_cores

#: Cores that this process may use, before it leaves some of them.
first_allowed_cores = cache(allowed_cores)


def leave(cores: Sequence[int]) -> None:
    """Keep this process off `cores` if it may use others, since another recording may be timed on
    them now."""
    others = set(first_allowed_cores()) - set(cores)
    if others:
        os.sched_setaffinity(0, others)


#: `send(event, **values)`: sends a message to the parent.
Send = Callable[..., None]


def reference_job(job: dict, send: Send) -> None:
    """Make the reference that preparing and the parity gate need, outside the pinned worker."""
    from lstm_trt.runtimes.base import preparer_of

    configuration = Configuration.from_dict(job["configuration"])
    leave(configuration.options.cores)
    preparer, path = preparer_of(configuration.workload), Path(job["reference_path"])
    send("done", reference=preparer.reference(configuration, job["gate_seed"], path, send))


def record_job(job: dict, send: Send) -> None:
    """Record one configuration and write its file or its parts."""
    from lstm_trt.recorder.prepare import pin, record_into

    configuration = Configuration.from_dict(job["configuration"])
    # Not before the first job: until then another recording may use these cores.
    if configuration.options.device == "cpu":
        pin(configuration.options)
    else:  # pinned after preparing, so that the helper threads of the driver and the engine's build stay off the core
        leave(configuration.options.cores)
    send(
        "done",
        **record_into(
            Path(job["folder"]), configuration, job["reference"], send=send, **job["how"]
        ),
    )


def describe_job(job: dict, send: Send) -> None:
    """Report a library's version by its metadata and its module, the module's file, and the
    configuration or an error.

    The job has `library` and the arguments of `recorder.describe.describe` as JSON values. The
    runtime can have a function that imports the module; by default it is the one with the library's
    name.
    """
    from lstm_trt.recorder.describe import describe
    from lstm_trt.runtimes.base import preparer_of

    workload, name = workload_from_dict(job["workload"]), job["runtime"]
    load_module = getattr(preparer_of(workload).runtime(name), "load_module", None)
    module = (
        load_module() if load_module else importlib.import_module(job["library"].replace("-", "_"))
    )
    loaded = {
        "module": getattr(module, "__version__", None),
        "file": getattr(module, "__file__", None),
    }
    loaded["metadata"] = importlib.metadata.version(job["library"])
    protocol, options = Protocol(**job["protocol"]), Options(**job["options"])
    try:
        found = {
            "configuration": describe(workload, name, protocol, options, job.get("mode")).as_dict()
        }
    except LabError as error:
        found = {"error": str(error)}
    send("done", **loaded, **found)


#: What a job was doing, for errors that nobody expected.
DOING = {
    "reference": "making the reference outputs",
    "record": "recording",
    "describe": "reading the version",
}


def failure(error: Exception, job: dict) -> dict:
    """What the parent is told of an error; `spent`: this process can no longer be relied on, and
    ends."""
    stage, reason, detail, spent = (
        getattr(error, "stage", None),
        str(error),
        "",
        not isinstance(error, LabError),
    )
    if isinstance(error, ConfigurationFailed):
        # The device may be in an undefined state: a failed graph capture, for example, leaves an
        # allocator in it.
        on_device = job["configuration"]["options"]["device"] != "cpu"
        spent = stage in ("memory", "run", "time") or (on_device and stage == "build")
    elif isinstance(error, MemoryError):
        stage, reason = "memory", f"not enough host memory: {error}".rstrip(": ")
    elif spent:
        *_, where = traceback.extract_tb(error.__traceback__)
        raised = ": ".join([type(error).__name__, *reason.strip().splitlines()[:1]])
        place = f"{Path(where.filename).name}, line {where.lineno}"
        reason = f"{DOING[job['kind']]} failed unexpectedly in {place}: {raised}"
        stage, detail = None, traceback.format_exc()
    invalid = getattr(error, "invalid", False)
    return {"stage": stage, "reason": reason, "detail": detail, "invalid": invalid, "spent": spent}


JOBS = {"reference": reference_job, "record": record_job, "describe": describe_job}


def main() -> int:
    """Run jobs until the parent closes the connection; argument: its file descriptor."""
    ctypes.CDLL(None).prctl(
        1, signal.SIGKILL
    )  # PR_SET_PDEATHSIG: Linux kills this process when its parent dies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    with suppress(OSError):  # the OOM killer prefers this process to its parent
        Path("/proc/self/oom_score_adj").write_text("1000")
    turn_telemetry_off()
    connection = Connection(int(sys.argv[1]))

    def send(event: str, **values: Any) -> None:
        connection.send({"event": event, **values})

    done = 0
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            return 0
        if done == 1:  # objects alive between two jobs are mostly modules, which stay
            gc.collect()
            gc.freeze()
        done += 1
        registry.added.update(job.pop("added"))
        try:
            JOBS[job["kind"]](job, send)
        except StoreError as error:
            send("refused", reason=str(error))
        except Exception as error:
            told = failure(error, job)
            send("failed", **told)
            if told["spent"]:
                return 1
