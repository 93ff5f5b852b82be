"""What is asked for, as configurations: a workload of the literature, an implementation, a mode, a protocol.

Nothing is run here and no framework imported.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from functools import lru_cache

from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import BuildFailed, UsageError
from lstm_trt.config.workload import Workload
from lstm_trt.literature import implementations
from lstm_trt.literature.task import devices, mode_reason
from lstm_trt.literature.workloads import VARIANTS, find
from lstm_trt.machine.facts import cpu_name
from lstm_trt.machine.linux import choose_cores
from lstm_trt.runtimes.base import Availability


def where(implementation: object, device: str) -> dict:
    """The keyword for implementations that have a choice of devices; nothing for the others."""
    return {"device": device} if hasattr(implementation, "DEVICES") else {}


@lru_cache(maxsize=128)
def availability(name: str, device: str | None = None) -> Availability:
    """Whether an implementation can run here; raises `UsageError` for an unknown name."""
    implementation = implementations.load(name)
    return implementation.availability(**where(implementation, device or devices(implementation)[0]))


def reason(name: str, workload: Workload, mode: str, device: str | None = None) -> str | None:
    """Why an implementation does not do this; None where it can, ready or not."""
    implementation = implementations.load(name)
    takes = "device" in inspect.signature(implementation.supports).parameters
    return implementation.supports(
        workload, mode, **({"device": device or devices(implementation)[0]} if takes else {})
    )


def base_of(workload: Workload) -> Workload | None:
    """The variant of the document that a scaled workload was made of: the first that fits, None where none does.

    An unscaled workload is its own.
    """
    if workload.scale == "1":
        return workload
    plain = replace(workload, note="")
    for variant in VARIANTS.get(workload.name, ()):
        if replace(variant.scaled(workload.scale), note="") == plain:
            return variant
    return None


def protocol_of(workload: Workload, batches: int | None = None, warmup: int | None = None, seed: int = 0) -> Protocol:
    """The document's warm-up and batches; with fewer `batches` the warm-up shrinks in proportion, to at least 1.

    The document's loop has no pause that would call for `settle`: all batches after warm-up count.
    """
    if batches is not None and batches < 1:
        raise UsageError(f"batches must be at least 1, not {batches}")
    if warmup is None:
        share = 1 if batches is None else min(1, batches / workload.batches)
        warmup = max(1, math.ceil(workload.warmup * share))
    return Protocol(trials=workload.batches if batches is None else batches, warmup=warmup, seed=seed, settle=0)


def describe_configuration(
    workload: Workload | str,
    implementation: str,
    mode: str | None = None,
    *,
    scale: str = "1",
    threads: int = 1,
    batches: int | None = None,
    warmup: int | None = None,
    seed: int = 0,
    device: str | None = None,
) -> Configuration:
    """The configuration that these names mean on this machine; nothing is run.

    `mode` is the document's first one if not given. Raises `UsageError` for unknown names, a
    mode that the document does not have, more threads than cores; `RuntimeUnavailable` where
    the implementation is not installed. One that is, and cannot do this workload, is told
    when it is recorded: that is a failure row.
    """
    workload = find(workload) if isinstance(workload, str) else workload
    mode = mode or workload.modes[0]
    if refusal := mode_reason(workload, mode):
        raise UsageError(refusal)
    module = implementations.load(implementation)
    device = device or devices(module)[0]
    if device not in devices(module):
        raise UsageError(f"{implementation} has no device {device!r}: choose from {', '.join(devices(module))}")
    state = availability(implementation, device).require(implementation)
    return Configuration(
        workload=workload.scaled(scale) if str(scale) != "1" else workload,
        runtime=implementation,
        runtime_version=state.version or "unknown",
        device_name=state.device_name or (cpu_name() if device == "cpu" else device),
        options=Options(threads=threads, cores=choose_cores(threads), device=device),
        protocol=protocol_of(workload, batches, warmup, seed),
        mode=mode,
    )


def check_supported(configuration: Configuration) -> None:
    """Raises `BuildFailed` with the implementation's own reason for a workload that it does not do."""
    name, workload, mode = configuration.runtime, configuration.workload, configuration.mode
    if refusal := reason(name, workload, mode, configuration.options.device):
        raise BuildFailed(f"{name} does not do {workload.label} ({mode}): {refusal}")
