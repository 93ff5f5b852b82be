"""Main program of the processes that `process.py` starts: runs the jobs that the parent sends.

Jobs, messages and answers (`jobs.py`) are exchanged over a connection, given by its file
descriptor. Output of libraries goes to standard output and error, which the parent writes to a
file.
"""

import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from lstm_trt import registry
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import ConfigurationFailed, LabError, StoreError
from lstm_trt.config.libraries import turn_telemetry_off
from lstm_trt.config.workload import workload_from_dict
from lstm_trt.machine.linux import allowed_cores
from lstm_trt.recorder.jobs import (
    CopyJob,
    Described,
    DescribeJob,
    Failed,
    Job,
    RecordJob,
    ReferenceJob,
    Send,
    Written,
)

#: Cores that this process may use, before it leaves some of them.
first_allowed_cores = cache(allowed_cores)


def leave(cores: Sequence[int]) -> None:
    """Keep this process off `cores` if it may use others, since another recording may be timed on
    them now."""
    others = set(first_allowed_cores()) - set(cores)
    if others:
        os.sched_setaffinity(0, others)


def make_reference(job: ReferenceJob, send: Send) -> dict[str, Any]:
    """What the parity gate compares with; in a process that is not pinned."""
    from lstm_trt.runtimes.base import preparer_of

    configuration = Configuration.from_dict(job.configuration)
    leave(configuration.options.cores)
    preparer = preparer_of(configuration.workload)
    return preparer.reference(configuration, job.gate_seed, Path(job.path), send)


def record_here(job: RecordJob, send: Send) -> Written:
    """Record in this process, pinned to its cores."""
    from lstm_trt.recorder.run import record, record_soak

    configuration = _pinned(job)
    if job.asked_s is None:
        return record(configuration, job, send)
    return record_soak(configuration, job, send)


def _pinned(job: RecordJob | CopyJob) -> Configuration:
    """The configuration of a job, for which this process is pinned from now on."""
    from lstm_trt.recorder.run import pin

    configuration = Configuration.from_dict(job.configuration)
    options = configuration.options
    # Not before the first job: until then another recording may use these cores.
    if options.device == "cpu":
        pin(options)
    else:  # pinned later, so that the driver's threads and the engine's build stay off the core
        leave(options.cores)
    return configuration


def copy_here(job: CopyJob, send: Send) -> None:
    """Call the step in a thread of this process, for as long as it lives."""
    from lstm_trt.recorder.run import call_for_ever, set_up

    with ExitStack() as held:
        run = held.enter_context(set_up(_pinned(job), job.reference, send))
        Thread(target=call_for_ever, args=(run, held.pop_all()), daemon=True).start()


def describe_here(job: DescribeJob, send: Send) -> Described:
    """The version of a library that this Python imports, and a configuration with it."""
    from importlib import import_module, metadata

    from lstm_trt.recorder.describe import describe
    from lstm_trt.runtimes.base import preparer_of

    workload = workload_from_dict(job.workload)
    runtime = preparer_of(workload).runtime(job.runtime)
    if hasattr(runtime, "load_module"):
        module = runtime.load_module()
    else:
        module = import_module(job.library.replace("-", "_"))
    found = Described(
        metadata.version(job.library),
        getattr(module, "__version__", None),
        getattr(module, "__file__", None),
    )
    protocol = Protocol(**job.protocol)
    options = Options(**job.options)
    try:
        configuration = describe(workload, job.runtime, protocol, options, job.mode)
    except LabError as error:
        return replace(found, error=str(error))
    return replace(found, configuration=configuration.as_dict())


#: Kind of job -> what runs it.
RUN: dict[type, Callable[[Any, Send], Any]] = {
    ReferenceJob: make_reference,
    RecordJob: record_here,
    CopyJob: copy_here,
    DescribeJob: describe_here,
}


def failure(error: Exception, job: Job) -> Failed:
    """What the parent is told of an error."""
    reason = str(error)
    stage = getattr(error, "stage", None)
    invalid = getattr(error, "invalid", False)
    if isinstance(error, StoreError):
        return Failed(reason, refused=True)
    if isinstance(error, ConfigurationFailed):
        # The device may be in an undefined state: a failed graph capture leaves an allocator in it.
        on_device = isinstance(job, RecordJob) and job.configuration["options"]["device"] != "cpu"
        spent = stage in ("memory", "run", "time") or (on_device and stage == "build")
        return Failed(reason, stage, invalid=invalid, spent=spent)
    if isinstance(error, LabError):
        return Failed(reason, stage, invalid=invalid)
    if isinstance(error, MemoryError):
        return Failed(f"not enough host memory: {reason}".rstrip(": "), "memory", spent=True)
    *_, where = traceback.extract_tb(error.__traceback__)
    place = f"{Path(where.filename).name}, line {where.lineno}"
    raised = ": ".join([type(error).__name__, *reason.strip().splitlines()[:1]])
    unexpected = f"{job.doing} failed unexpectedly in {place}: {raised}"
    return Failed(unexpected, detail=traceback.format_exc(), spent=True)


def main() -> int:
    """Run jobs until the parent closes the connection; argument: its file descriptor."""
    # PR_SET_PDEATHSIG: Linux kills this process when its parent dies.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
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
            job, added = connection.recv()
        except (EOFError, OSError):
            return 0
        if done == 1:  # objects alive between two jobs are mostly modules, which stay
            gc.collect()
            gc.freeze()
        done += 1
        registry.added.update(added)
        try:
            send("done", answer=RUN[type(job)](job, send))
        except Exception as error:
            failed = failure(error, job)
            send("failed", answer=failed)
            if failed.spent:
                return 1
