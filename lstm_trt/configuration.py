"""What is measured: a workload on a runtime with its options, under a protocol, on a device.

A configuration has an identity, the SHA-256 of its canonical JSON. Two recordings
with one identity answer the same question; a file of that name is the sign that a
sweep has done its work there.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property

from lstm_trt.errors import UsageError
from lstm_trt.shapes import LstmShape

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8")
ARRIVALS = ("closed",)
MODES = ("forward",)


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Options:
    """How the runtime is asked to run.

    `cores` are the cores that the process is pinned to before the runtime is
    imported, as many as there are `threads`.
    """

    precision: str = "fp32"
    threads: int = 1
    cores: tuple[int, ...] = ()
    device: str = "cpu"
    graph: bool = False
    device_clocks: str = "off"

    def __post_init__(self) -> None:
        object.__setattr__(self, "cores", tuple(self.cores))
        if self.precision not in PRECISIONS:
            raise UsageError(f"unknown precision {self.precision!r}: choose from {', '.join(PRECISIONS)}")
        if not isinstance(self.threads, int) or self.threads < 1:
            raise UsageError(f"threads must be a whole number of at least 1, not {self.threads!r}")
        if self.device not in ("cpu", "cuda"):
            raise UsageError(f"unknown device {self.device!r}: choose cpu or cuda")


@dataclass(frozen=True)
class Protocol:
    """How the trials are run; the number of trials is fixed beforehand.

    `warmup` trials are recorded too, and marked. A block is what lies between two
    readings of the machine's state; it ends after `block_trials` trials, or with the
    trial in which `block_ms` are over. After a reading come `settle` trials that are
    marked as warm-up, since the reading itself has emptied caches.
    """

    trials: int = 1000
    warmup: int = 10
    arrival: str = "closed"
    wait: str = "none"
    seed: int = 0
    block_trials: int = 1000
    block_ms: int = 500
    settle: int = 3

    def __post_init__(self) -> None:
        for name, least in (
            ("trials", 1),
            ("warmup", 0),
            ("seed", 0),
            ("block_trials", 1),
            ("block_ms", 1),
            ("settle", 0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise UsageError(f"{name} must be a whole number, not {value!r}")
            if value < least:
                raise UsageError(f"{name} must be at least {least}, not {value}")
        if self.trials > 100_000_000 or self.warmup > 100_000_000:
            raise UsageError("trials and warmup are at most 100000000")
        if self.seed >= 2**63:
            raise UsageError("seed must be below 2**63")
        if self.arrival not in ARRIVALS:
            raise UsageError(f"unknown arrival {self.arrival!r}: choose from {', '.join(ARRIVALS)}")


@dataclass(frozen=True)
class Configuration:
    """One question that a recording answers; `id` is its identity."""

    workload: LstmShape
    runtime: str
    runtime_version: str
    device_name: str
    options: Options = field(default_factory=Options)
    protocol: Protocol = field(default_factory=Protocol)
    mode: str = "forward"

    def as_dict(self) -> dict:
        """Plain JSON values; `from_dict` is the inverse."""
        return {
            "workload": {"kind": "stacked-lstm", **self.workload.as_dict()},
            "mode": self.mode,
            "runtime": self.runtime,
            "runtime_version": self.runtime_version,
            "options": {**asdict(self.options), "cores": list(self.options.cores)},
            "protocol": asdict(self.protocol),
            "device_name": self.device_name,
        }

    @cached_property
    def id(self) -> str:
        """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(canonical_json(self.as_dict()).encode()).hexdigest()

    @classmethod
    def from_dict(cls, plain: dict) -> Configuration:
        """Inverse of `as_dict`; raises `UsageError` where a field is missing or unknown."""
        try:
            workload = dict(plain["workload"])
            kind = workload.pop("kind", "stacked-lstm")
            if kind != "stacked-lstm":
                raise UsageError(f"unknown workload {kind!r}: this version knows stacked-lstm")
            return cls(
                workload=LstmShape(**workload),
                runtime=plain["runtime"],
                runtime_version=plain["runtime_version"],
                device_name=plain["device_name"],
                options=Options(**plain["options"]),
                protocol=Protocol(**plain["protocol"]),
                mode=plain["mode"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"not a configuration of this version: {error}") from None


def choose_cores(threads: int) -> tuple[int, ...]:
    """The last `threads` cores that this process may use.

    The last, because interrupts and what else the machine does gather on the first.
    Raises `UsageError` where fewer are allowed: two threads pinned to one core make
    the tail 30 times longer.
    """
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if threads > len(allowed):
        raise UsageError(
            f"{threads} threads need {threads} cores, this process may use {len(allowed)}: lower --threads"
        )
    return tuple(allowed[-threads:])


SHAPE_FIELDS = tuple(f.name for f in fields(LstmShape))
