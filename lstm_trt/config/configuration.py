"""What is measured: a workload on a runtime with its options, under a protocol, on a device.

A configuration has an identity, the SHA-256 of its canonical JSON. Two recordings
with one identity answer the same question; a file of that name is the sign that a
sweep has done its work there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from lstm_trt.config.errors import UsageError
from lstm_trt.config.workload import Workload, check_whole, identity_fields, known_fields, workload_from_dict

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8")

#: What is timed on the device's own clock: nothing, the computation, the copies around it too.
DEVICE_CLOCKS = ("off", "compute", "all")

#: How the calls arrive, and how each kind may wait for the next one; the first is the default.
WAITS = {"closed": ("none",), "periodic": ("spin", "sleep", "os"), "paused": ("os",)}

ARRIVALS = tuple(WAITS)

#: A tier is named by its trials: 30 000 are enough for p99.99 at 95 % with no miss.
TIERS = {"look": 1_000, "compare": 10_000, "certify": 30_000}

MOST_TRIALS = 100_000_000

LONGEST_GAP_S = 3600.0

LONGEST_SOAK_S = 30 * 86_400.0


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Options:
    """How the runtime is asked to run.

    `cores` are the cores that the process is pinned to before the runtime is
    imported, as many as there are `threads`; none means those that `describe` chooses.
    `device` None means the first one that the runtime offers.
    """

    precision: str = "fp32"
    threads: int = 1
    cores: tuple[int, ...] = ()
    device: str | None = None
    graph: bool = False
    device_clocks: str = "off"

    def __post_init__(self) -> None:
        object.__setattr__(self, "cores", tuple(self.cores))
        if self.precision not in PRECISIONS:
            raise UsageError(f"unknown precision {self.precision!r}: choose from {', '.join(PRECISIONS)}")
        check_whole("threads", self.threads, 1)
        if self.device not in (None, "cpu", "cuda"):
            raise UsageError(f"unknown device {self.device!r}: choose cpu or cuda")
        if self.device_clocks not in DEVICE_CLOCKS:
            raise UsageError(f"unknown device clocks {self.device_clocks!r}: choose from {', '.join(DEVICE_CLOCKS)}")

    def as_dict(self) -> dict:
        """Plain JSON values, without fields that were added later and have their default (`identity_fields`)."""
        return identity_fields(self)


@dataclass(frozen=True)
class Protocol:
    """How the trials are run; the number of trials is fixed beforehand.

    `warmup` trials are recorded too, and marked. A block is what lies between two
    readings of the machine's state; it ends after `block_trials` trials, or with the
    trial in which `block_ms` are over. After a reading come `settle` trials that are
    marked as warm-up, since the reading itself has emptied caches.

    Arrivals: "closed" begins a call when the last returns; "periodic" one each
    `period_us`, and waits for it by `wait`: "spin", "sleep" (then spin the last 200 us)
    or "os" (sleep only); "paused" sleeps `pause_ms` before each call. With `for_s` the
    recording ends by time, and `trials` is the most that one part of it holds.
    """

    trials: int = 1000
    warmup: int = 10
    arrival: str = "closed"
    wait: str | None = None
    seed: int = 0
    block_trials: int = 1000
    block_ms: int = 500
    settle: int = 3
    period_us: float | None = None
    pause_ms: float | None = None
    for_s: float | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("trials", 1, MOST_TRIALS),
            ("warmup", 0, MOST_TRIALS),
            ("seed", 0, 2**63 - 1),
            ("block_trials", 1, None),
            ("block_ms", 1, None),
            ("settle", 0, None),
        ):
            check_whole(name, getattr(self, name), least, most)
        if self.arrival not in ARRIVALS:
            raise UsageError(f"unknown arrival {self.arrival!r}: choose from {', '.join(ARRIVALS)}")
        self._check_arrival()

    def _check_arrival(self) -> None:
        waits = WAITS[self.arrival]
        if self.wait is None:
            object.__setattr__(self, "wait", waits[0])
        elif self.wait not in waits:
            if len(waits) == 1:
                raise UsageError(f"wait goes with periodic arrivals, not with {self.arrival} ones: leave it out")
            raise UsageError(f"unknown wait {self.wait!r}: choose from {', '.join(waits)}")
        for name, arrival, unit_s, least_s, longest_s in (
            ("period_us", "periodic", 1e-6, 1e-6, LONGEST_GAP_S),
            ("pause_ms", "paused", 1e-3, 1e-6, LONGEST_GAP_S),
            ("for_s", None, 1.0, 1.0, LONGEST_SOAK_S),
        ):
            value = getattr(self, name)
            if value is None:
                if arrival == self.arrival:
                    raise UsageError(f"{arrival} arrivals need {name}: give --{name.replace('_', '-')}")
                continue
            if arrival not in (None, self.arrival):
                raise UsageError(f"{name} goes with {arrival} arrivals, not with {self.arrival} ones: leave it out")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(f"{name} must be a number, not {value!r}")
            if not least_s <= value * unit_s <= longest_s:
                least, most = least_s / unit_s, longest_s / unit_s
                raise UsageError(f"{name} must be from {least:g} to {most:.0f}, not {value:g}")
            object.__setattr__(self, name, float(value))

    @property
    def gap_s(self) -> float:
        """Time from one call to the next that the arrivals ask for, in s: the period, the pause, or 0."""
        return (self.period_us or 0.0) / 1e6 + (self.pause_ms or 0.0) / 1e3

    @property
    def scheduled_s(self) -> float:
        """What the gaps of all trials take together, in s; with a period that is all that the trials take."""
        return (self.trials + self.warmup) * self.gap_s

    @property
    def arrival_words(self) -> str:
        """How the calls come, for people: closed, periodic every 1000 µs (spin), paused 100 ms."""
        text = self.arrival
        text += f" every {self.period_us:g} µs" if self.period_us else ""
        text += f" {self.pause_ms:g} ms" if self.pause_ms else ""
        text += f" ({self.wait})" if self.wait != "none" else ""
        return text + (f" for {self.for_s:g} s" if self.for_s else "")

    def as_dict(self) -> dict:
        """Plain JSON values; what does not apply is left out, and so is what was added later (`identity_fields`)."""
        return {name: value for name, value in identity_fields(self).items() if value is not None}


@dataclass(frozen=True)
class Configuration:
    """One question that a recording answers; `id` is its identity.

    `runtime` names what computes the workload, as its kind calls it (a runtime of this lab, or an
    implementation). `mode` is one of the workload's.
    """

    workload: Workload
    runtime: str
    runtime_version: str
    device_name: str
    options: Options = field(default_factory=Options)
    protocol: Protocol = field(default_factory=Protocol)
    mode: str = "forward"

    def __post_init__(self) -> None:
        if self.options.device is None:
            object.__setattr__(self, "options", replace(self.options, device="cpu"))

    @property
    def name(self) -> str:
        """The workload, for people: `2x200-s128-b1`, `ptb-lm@1/8 training`."""
        return self.workload.title(self.mode)

    def as_dict(self) -> dict:
        """Plain JSON values; `from_dict` is the inverse."""
        return {
            "workload": self.workload.as_dict(),
            "mode": self.mode,
            "runtime": self.runtime,
            "runtime_version": self.runtime_version,
            "options": self.options.as_dict(),
            "protocol": self.protocol.as_dict(),
            "device_name": self.device_name,
        }

    @cached_property
    def id(self) -> str:
        """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(canonical_json(self.as_dict()).encode()).hexdigest()

    @classmethod
    def from_dict(cls, plain: Mapping) -> Configuration:
        """Inverse of `as_dict`.

        Raises `UnknownConfiguration` for a workload kind or a field that this version does not know,
        `UsageError` where a field is missing or its value cannot be.
        """
        try:
            return cls(
                workload=workload_from_dict(plain["workload"]),
                runtime=plain["runtime"],
                runtime_version=plain["runtime_version"],
                device_name=plain["device_name"],
                options=known_fields(Options, plain["options"]),
                protocol=known_fields(Protocol, plain["protocol"]),
                mode=plain["mode"],
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"not a configuration of this version: {error}") from None


#: Above this share of time outside the trials a closed-loop recording is warned of.
OUTSIDE_SHARE_LIMIT = 0.20


def warnings_of(protocol: Protocol, rows: int, inside_ns: float, wall_ns: float) -> list[str]:
    """What a reader of a loop of `rows` trials should know: `inside_ns` of its `wall_ns` were inside them."""
    outside, mean_us, warnings = 1 - inside_ns / wall_ns, inside_ns / rows / 1e3, []
    if protocol.arrival == "closed" and outside > OUTSIDE_SHARE_LIMIT:
        warnings.append(
            f"{100 * outside:.0f} % of the loop lies outside the trials:"
            " the step is short beside the recorder's own work"
        )
    if protocol.arrival == "periodic" and mean_us > protocol.period_us:
        warnings.append(
            f"the calls took {mean_us:.1f} us in the mean, longer than the period of {protocol.period_us:g} us:"
            " they fell ever further behind, and latencies tell the length of the recording"
        )
    return warnings
