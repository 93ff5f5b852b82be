"""What is recorded: a workload, a runtime, a protocol and options as a configuration of this
machine; nothing is run.

The parent process uses this module, `prepare.py` is for the worker.
"""

from dataclasses import replace
from functools import lru_cache

from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import UsageError, refused
from lstm_trt.config.libraries import require
from lstm_trt.config.workload import Workload
from lstm_trt.machine import facts
from lstm_trt.machine.linux import choose_cores
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
    mode = mode or workload.modes[0]
    workload = workload.in_mode(mode)
    runtime = runtime or preparer.DEFAULT_RUNTIME
    module = preparer.runtime(runtime)
    options = options or Options()
    options = replace(options, device=options.device or module.DEVICES[0])
    check_options(runtime, module, options)
    if mode == "stream" and mode not in getattr(module, "MODES", ()):
        raise UsageError(
            f"{runtime} has no mode stream: use --mode forward, or another runtime such as onnxruntime"
        )
    asked = Configuration(
        workload, runtime, "unknown", "unknown", options, protocol or Protocol(), mode
    )
    if asked.protocol.after_warmup and mode != "stream":
        raise UsageError(
            "--after-warmup is for streams, which carry a state into the silence: add --mode stream"
        )
    if anywhere and options.cores:
        raise UsageError(
            "--cores are those of one machine: leave them out, or the executor (--scheduler)"
        )
    if anywhere:
        return asked
    require(*preparer.LIBRARIES, *(["onnx"] if getattr(module, "NEEDS_ONNX", False) else []))
    reduces, cores = (
        getattr(module, "reduces_range", None),
        choose_cores(options.threads, options.cores),
    )
    options = replace(options, cores=cores, reduce_range=bool(reduces and reduces(options)))
    name = None
    if options.device_index:
        from lstm_trt.machine import gpu

        with refused(f"there is no device cuda:{options.device_index} here", gpu.NoCudaDevice):
            name = gpu.cuda_device(options.device_index).name
    state = availability(preparer, runtime, options.device)
    if state.device_name is None:
        state.require(runtime)
    version = preparer.version(workload) or state.version or "unknown"
    name = (
        name
        or state.device_name
        or (facts.cpu_name() if options.device == "cpu" else options.device)
    )
    return replace(asked, runtime_version=version, device_name=name, options=options)


@lru_cache(maxsize=128)
def availability(preparer: Preparer, runtime: str, device: str | None = None) -> Availability:
    """Whether a runtime of a workload kind can run on a device (default: its first); cached."""
    module = preparer.runtime(runtime)
    return module.availability(device or module.DEVICES[0])
