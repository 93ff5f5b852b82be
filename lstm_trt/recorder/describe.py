"""What is recorded: a workload, a runtime, a protocol and options as a configuration of this
machine; nothing is run.

The parent process uses this module, `run.py` is for the worker.
"""

from dataclasses import replace
from functools import lru_cache

from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import UsageError, refused
from lstm_trt.config.libraries import require
from lstm_trt.config.workload import Workload
from lstm_trt.machine import facts, real_time
from lstm_trt.machine.linux import choose_cores
from lstm_trt.recorder import beside
from lstm_trt.runtimes.base import Availability, Preparer, check_options, preparer_of


def describe(
    workload: Workload,
    runtime: str | None = None,
    protocol: Protocol | None = None,
    options: Options | None = None,
    mode: str | None = None,
    *,
    anywhere: bool = False,
) -> Configuration:
    """The configuration given by these arguments on this machine; nothing is run.

    Defaults: for `runtime`, that of the workload's kind, "onnxruntime" for networks; for `options`
    without device or cores, the runtime's first device and free cores; for `mode`, the workload's
    first. Raises `UsageError` for unknown names, unsupported precision, device or mode, or more
    threads than cores; `RuntimeUnavailable` if the runtime cannot run; `NotInstalled` without a
    library that the reference needs. A workload or a GPU that the runtime does not support is no
    error here; recording it gives a failure row.

    `anywhere`: without what depends on the machine (version, device name, cores, range of int8
    weights), so that nothing need be installed here; cores that are given raise `UsageError`.
    """
    preparer = preparer_of(workload)
    runtime = runtime or preparer.DEFAULT_RUNTIME
    module = preparer.runtime(runtime)
    mode = mode or workload.modes[0]
    options = options or Options()
    options = replace(options, device=options.device or module.DEVICES[0])
    check_options(runtime, module, options)
    if mode == "stream" and mode not in getattr(module, "MODES", ()):
        raise UsageError(
            f"{runtime} has no mode stream: use --mode forward, or another runtime such as"
            " onnxruntime"
        )
    protocol = protocol or Protocol()
    _check_together(protocol, options, mode)
    asked = Configuration(
        workload.in_mode(mode), runtime, "unknown", "unknown", options, protocol, mode
    )
    if not anywhere:
        return _here(asked, preparer)
    if options.cores:
        raise UsageError(
            "--cores are those of one machine: leave them out, or the executor (--scheduler)"
        )
    return asked


def _check_together(protocol: Protocol, options: Options, mode: str) -> None:
    """Raise `UsageError` if the protocol, the options and the mode contradict each other."""
    if protocol.fifo and options.threads > 1:
        raise UsageError("--fifo is for one timed thread: leave out --threads")
    if mode != "stream":
        if protocol.after_warmup:
            raise UsageError(
                "--after-warmup is for streams, which carry a state into the silence:"
                " add --mode stream"
            )
        if options.prepare:
            raise UsageError("--prepare is for streams, between two steps: add --mode stream")
    elif options.prepare and protocol.arrival != "periodic":
        raise UsageError(
            f"--prepare needs time between the steps, not {protocol.arrival} arrivals:"
            " add --arrival periodic"
        )


def _here(asked: Configuration, preparer: Preparer) -> Configuration:
    """A configuration with what depends on this machine."""
    options = asked.options
    runtime = asked.runtime
    module = preparer.runtime(runtime)
    require(*preparer.LIBRARIES)
    if getattr(module, "NEEDS_ONNX", False):
        require("onnx")
    options = replace(options, cores=choose_cores(options.threads, options.cores))
    beside.check_programs(asked.protocol)
    beside.cores_of(asked.protocol, options)
    with real_time.scheduled(asked.protocol.fifo):
        pass  # refused if this user may not
    reduces_range = getattr(module, "reduces_range", lambda options: False)
    options = replace(options, reduce_range=bool(reduces_range(options)))
    name = _name_of_gpu(options.device_index) if options.device_index else None
    state = availability(preparer, runtime, options.device)
    if state.device_name is None:
        state.require(runtime)
    name = name or state.device_name
    if name is None:
        name = facts.cpu_name() if options.device == "cpu" else options.device
    version = preparer.version(asked.workload) or state.version or "unknown"
    return replace(asked, runtime_version=version, device_name=name, options=options)


def _name_of_gpu(index: int) -> str:
    from lstm_trt.machine import gpu

    with refused(f"there is no device cuda:{index} here", gpu.NoCudaDevice):
        return gpu.cuda_device(index).name


@lru_cache(maxsize=128)
def availability(preparer: Preparer, runtime: str, device: str | None = None) -> Availability:
    """Whether a runtime of a workload kind can run on a device (default: its first); cached."""
    module = preparer.runtime(runtime)
    return module.availability(device or module.DEVICES[0])
