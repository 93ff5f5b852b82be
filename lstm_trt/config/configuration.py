"""What is measured: a workload on a runtime with its options, under a protocol, on a device.

The id of a configuration is the SHA-256 of its canonical JSON. Recordings with the same id are
repetitions of the same measurement. A sweep skips a configuration whose file exists.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Self

from lstm_trt.config.arrivals import (
    KINDS,
    LONGEST_GAP_S,
    SHORTEST_GAP_S,
    Closed,
    Periodic,
    checked_time,
)
from lstm_trt.config.errors import UsageError, one_of, refused
from lstm_trt.config.fields import (
    JsonFields,
    Tells,
    as_list,
    check_types,
    described,
    identity_fields,
    known_fields,
)
from lstm_trt.config.format import microseconds
from lstm_trt.config.workload import check_whole, workload_from_dict

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8")

#: What is timed on the device's own clock: nothing, the computation, or the computation and the
#: copies.
DEVICE_CLOCKS = ("off", "compute", "all")

ARRIVALS = tuple(KINDS)

#: Numbers of trials by name. 30 000 trials without a miss prove p99.99 at 95 % confidence.
TIERS = {"look": 1_000, "compare": 10_000, "certify": 30_000}

#: Limits of the whole numbers of a protocol.
_LEAST = {"trials": 1, "warmup": 0, "seed": 0, "block_trials": 1, "block_ms": 1, "settle": 0}
_MOST = {"trials": 100_000_000, "warmup": 100_000_000, "seed": 2**63 - 1}

LONGEST_SOAK_S = 30 * 86_400.0

#: The load that is a number of further processes with the same step, instead of a command.
COPIES = "COPIES"


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Options(JsonFields):
    """Options of the runtime.

    The process is pinned to `cores` before the runtime is imported. There must be one core per
    thread; if empty, `describe` chooses them. `device` None is the first device that the runtime
    offers. `graph`: use a CUDA graph, on runtimes where it is optional. `device_clocks` ("off",
    "compute" or "all"): what is also timed on the device, with "all" also the copies. `device`
    "cuda:1" selects a GPU by CUDA's numbers and is stored as `device_index`, which is not part of
    the identity: the device's name is. `io_binding`: ONNX Runtime reads and writes the same buffers
    at every call; without it, `session.run` allocates the outputs at every call. `reduce_range`:
    int8 weights have 7 bits, which `describe` sets where the processor's 8-bit products would
    saturate. `prepare`: after each step of a stream with periodic arrivals, its
    `prepare_next` computes what of the next step does not depend on its inputs, which is not part
    of the latency.
    """

    precision: str = described(
        "fp32",
        help="precision; int8: quantized by ONNX Runtime or C code",
        choices=PRECISIONS,
        plain=True,
        kept=True,
    )
    threads: int = described(1, help="threads, one core each", kept=True)
    cores: tuple[int, ...] = described((), tells=Tells.NEVER)
    device: str = described(  # None until `Configuration` or `describe` has chosen it
        None,
        help="cpu, cuda, or cuda:1 and so on (default: the first that the runtime supports)",
        plain=True,
    )
    graph: bool = described(False, help="use a CUDA graph, on runtimes where it is optional")
    device_clocks: str = described(
        "off",
        help="also measure on the device: only the computation, or all including copies",
        choices=DEVICE_CLOCKS,
    )
    device_index: int = described(0, compare=False, tells=Tells.NEVER)
    io_binding: bool = described(
        True,
        help="ONNX Runtime: call session.run, which allocates the outputs, instead of using the "
        "same buffers at every call",
        heading="I/O binding",
        added=True,
    )
    reduce_range: bool = described(
        False, heading="weights", values={True: "7 bits", False: "full"}, added=True
    )
    prepare: bool = described(
        False,
        help="runtime c: call prepare_next after each step of a stream with periodic arrivals; the "
        "latency is that of the step alone",
        heading="step",
        plain=True,
        values={True: "prepared", False: "unprepared"},
        added=True,
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "cores", tuple(as_list(self.cores)))
        kind, colon, index = (self.device or "").partition(":")
        if colon and kind == "cuda" and index.isdecimal():
            object.__setattr__(self, "device", kind)
            object.__setattr__(self, "device_index", int(index))
        one_of("precision", self.precision, PRECISIONS)
        check_whole("threads", self.threads, 1)
        if self.device not in (None, "cpu", "cuda"):
            raise UsageError(
                f"unknown device {self.device!r}: choose cpu, cuda, or cuda:1 and so on"
            )
        one_of("device clocks", self.device_clocks, DEVICE_CLOCKS)

    @classmethod
    def each(cls, precision: str | Sequence[str], **others: Any) -> list[Self]:
        """Options with one precision, or with each of several, and otherwise the same."""
        return [cls(precision=name, **others) for name in dict.fromkeys(as_list(precision))]


#: What recordings that end when they are decided need: its range, and the test for it.
_OF_UNTIL: dict[str, tuple[str, Callable[[float], bool]]] = {
    "deadline_us": ("above 0", lambda us: 0 < us < math.inf),
    "burst_length": ("at least 1", lambda calls: 1 <= calls < math.inf),
    "percentile": ("at least 50 and below 100", lambda percent: 50 <= percent < 100),
}

#: A field of theirs.
_of_until = partial(described, None, tells=Tells.MINOR, added=True)


@dataclass(frozen=True)
class Protocol:
    """How the trials are run; the number of trials is fixed beforehand, unless `until` is
    "decided".

    The `warmup` trials are recorded too, and marked. The machine's state is read between
    blocks of trials. A block ends after `block_trials` trials, or with the first trial that
    ends more than `block_ms` after its start. The `settle` trials after each reading are
    marked as warm-up, because the reading evicts the caches.

    Arrivals: "closed" starts a call when the previous call returns. "periodic" starts a call every
    `period_us` and waits by `wait`: "spin", "sleep" (sleep, then spin for the last 200 us) or "os"
    (sleep only). "paused" sleeps `pause_ms` before each call. With `for_s` the recording ends after
    that time, and `trials` is the maximum for one part of it. With `until` "decided" it ends when
    the verdict on `deadline_us`, at `percentile` and for bursts of misses of at most `burst_length`
    calls, averaged over misses, is MET or MISSED (`registry.STOPPING`), and `trials` is the
    maximum.

    With `after_warmup` "zeros" all inputs of floating point are zero from the first call after the
    warm-up on, so that the k-th timed call of a stream is the k-th of silence.

    `beside`: loads that run during the trials, the command of each by its name, on the other cores
    or with `beside_on` "same-core" on those of the trials; the load `COPIES` is a number of further
    processes that run the same step. Commands run without the variables that set numbers of threads
    (OMP_NUM_THREADS and the like), which are the recorder's. `fifo`: the real-time priority
    (SCHED_FIFO) of the timed thread from the end of the warm-up on.
    """

    trials: int = described(1000, help="timed trials", tells=Tells.MINOR)
    warmup: int = described(10, help="warm-up trials, stored and marked as such", tells=Tells.MINOR)
    arrival: str = described(
        "closed",
        help="start of a call: after the previous one, at a fixed period, or after a pause",
        choices=ARRIVALS,
    )
    wait: str | None = described(
        None,
        help=f"how to wait for the next period (default {Periodic.WAITS[0]}; "
        "sleep spins for the last 200 us)",
        choices=Periodic.WAITS,
    )
    seed: int = described(0, help="seed of weights, inputs and recording order", tells=Tells.MINOR)
    block_trials: int = described(1000, tells=Tells.NEVER)
    block_ms: int = described(500, tells=Tells.NEVER)
    settle: int = described(3, tells=Tells.NEVER)
    period_us: float | None = described(None, help="period of periodic arrivals", unit="us")
    pause_ms: float | None = described(
        None, help="idle time before each call of paused arrivals", unit="ms"
    )
    for_s: float | None = described(None, unit="s", tells=Tells.MINOR)
    until: str | None = _of_until(
        help="stop as soon as the verdict on the deadline is MET or MISSED, at the latest after "
        "--at-most trials",
        choices=("decided",),
    )
    deadline_us: float | None = _of_until(help="deadline of --until decided", unit="us")
    percentile: float | None = _of_until(
        help="percentile that must meet the deadline (default 99.9)", unit="p"
    )
    burst_length: float | None = _of_until(
        help="MET must hold if a miss lies, averaged over misses, in a burst of up to this length, "
        "in calls",
        unit="b",
    )
    after_warmup: str | None = described(
        None,
        help="inputs of the timed calls of a stream: silence after usual ones",
        choices=("zeros",),
        added=True,
    )
    beside: tuple[tuple[str, str], ...] = described(
        (),
        help="run this command during the trials; several of them run together; COPIES=N: N further"
        " processes that run the same step",
        unit="name=command",
        added=True,
    )
    beside_on: str = described(
        "other-cores",
        help="cores of the loads",
        choices=("other-cores", "same-core"),
        heading="loads on",
        added=True,
    )
    fifo: int | None = described(
        None,
        help="real-time priority (SCHED_FIFO, 1 to 99) of the timed thread after the warm-up, for"
        " periodic arrivals that sleep",
        heading="FIFO",
        added=True,
    )

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            check_whole(name, getattr(self, name), least, _MOST.get(name))
        one_of("arrival", self.arrival, ARRIVALS)
        self._check_arrival()
        self._check_until()
        if self.after_warmup is not None:
            one_of("after_warmup", self.after_warmup, ("zeros",))
        self._check_loads()
        if self.fifo is not None:
            check_whole("fifo", self.fifo, 1, 99)
            if not self.arrivals().sleeps or self.arrival != "periodic":
                raise UsageError(
                    "fifo needs calls with sleep between them, since nothing else runs on the core"
                    " of a real-time thread: add --arrival periodic --wait sleep, or --wait os"
                )

    def _check_loads(self) -> None:
        one_of("beside_on", self.beside_on, ("other-cores", "same-core"))
        loads = self.beside.items() if isinstance(self.beside, Mapping) else self.beside
        object.__setattr__(self, "beside", tuple(sorted((name, text) for name, text in loads)))
        for name, command in self.beside:
            if not command.strip() or not re.fullmatch(r"[\w.-]+", name):
                raise UsageError(
                    "a load is NAME=COMMAND, and a name has letters, digits, points and dashes:"
                    f" not {name!r} and {command!r}"
                )
            if name == COPIES:
                check_whole(COPIES, int(command) if command.isdecimal() else command, 1)
        if len(dict(self.beside)) < len(self.beside):
            raise UsageError("two loads have the same name: give each another one")

    @property
    def beside_text(self) -> str | None:
        """The loads in words, "2 copies of itself and stream on the same core"; None without."""
        names = []
        for name, command in self.beside:
            called = name
            if name == COPIES:
                called = "a copy of itself" if int(command) == 1 else f"{command} copies of itself"
            names.append(called)
        if not names:
            return None
        text = " and ".join(names)
        return text if self.beside_on == Protocol.beside_on else f"{text} on the same core"

    def _check_until(self) -> None:
        if self.until is None:
            for name in _OF_UNTIL:
                if getattr(self, name) is not None:
                    raise UsageError(
                        f"{name} is for recordings that end when they are decided:"
                        " add --until decided"
                    )
            return
        one_of("until", self.until, ("decided",))
        if self.for_s is not None:
            raise UsageError("until and for_s exclude each other: give one of them")
        if self.percentile is None:
            object.__setattr__(self, "percentile", 99.9)
        for name, (words, is_right) in _OF_UNTIL.items():
            value = getattr(self, name)
            if value is None:
                raise UsageError(f"--until decided needs {name}: give --{name.replace('_', '-')}")
            if not is_right(value):
                raise UsageError(f"{name} must be {words}, not {value:g}")
            object.__setattr__(self, name, float(value))

    def _check_arrival(self) -> None:
        kind = KINDS[self.arrival]
        if self.wait is None:
            object.__setattr__(self, "wait", kind.WAITS[0])
        elif self.wait not in kind.WAITS and len(kind.WAITS) == 1:
            raise UsageError(
                f"wait applies to periodic arrivals only, not to {self.arrival}: remove it"
            )
        one_of("wait", self.wait, kind.WAITS)
        for other in KINDS.values():
            if other.FIELD is not None:
                self._check_gap(other.FIELD, other, kind)
        if self.for_s is not None:
            object.__setattr__(
                self, "for_s", checked_time("for_s", self.for_s, 1.0, LONGEST_SOAK_S)
            )

    def _check_gap(self, field: str, of: type[Closed], chosen: type[Closed]) -> None:
        """Check the field of one kind of arrival, which only that kind may have."""
        value = getattr(self, field)
        if value is None:
            if of is chosen:
                raise UsageError(
                    f"{of.NAME} arrivals need {field}: give --{field.replace('_', '-')}"
                )
            return
        if of is not chosen:
            raise UsageError(
                f"{field} applies to {of.NAME} arrivals only, not to {chosen.NAME}: remove it"
            )
        least = SHORTEST_GAP_S * of.PER_S
        most = LONGEST_GAP_S * of.PER_S
        object.__setattr__(self, field, checked_time(field, value, least, most))

    def arrivals(self) -> Closed:
        """The arrivals of calls, as an object of their kind with a schedule of its own."""
        kind = KINDS[self.arrival]
        return kind(getattr(self, kind.FIELD) if kind.FIELD else None, self.wait)

    @property
    def gap_s(self) -> float:
        """The period or the pause in s; 0 in a closed loop."""
        return self.arrivals().gap_s

    @property
    def arrival_text(self) -> str:
        """The arrivals as text: "periodic every 1000 us (spin)", "closed in silence"."""
        text = self.arrivals().text
        if self.wait != "none":
            text += f" ({self.wait})"
        if self.after_warmup:
            text += " in silence"
        if self.fifo:
            text += f" at FIFO priority {self.fifo}"
        if self.beside:
            text += f" beside {self.beside_text}"
        return f"{text} for {self.for_s:g} s" if self.for_s else text

    def as_dict(self) -> dict[str, Any]:
        """JSON values; fields that do not apply are left out, and see `identity_fields`."""
        return {name: value for name, value in identity_fields(self).items() if value is not None}


@dataclass(frozen=True)
class Configuration(JsonFields):
    """A workload, a runtime, its options, a protocol and a device.

    `runtime` is the name of a runtime, or of an implementation of the workload. `mode` is one of
    `workload.modes`.
    """

    workload: Any  # a `Workload` of any kind
    runtime: str = described(plain=True, kept=True)
    runtime_version: str = described(tells=Tells.MINOR, kept=True)
    device_name: str = described(plain=True, tells=Tells.MINOR, kept=True)
    options: Options = field(default_factory=Options)
    protocol: Protocol = field(default_factory=Protocol)
    mode: str = described("forward")

    def __post_init__(self) -> None:
        if not self.options.device:
            object.__setattr__(self, "options", replace(self.options, device="cpu"))

    @property
    def name(self) -> str:
        """Name of the workload: `2x200-s128-b1`, `ptb-lm@1/8 training`."""
        return self.workload.title(self.mode)

    @property
    def title(self) -> str:
        """Workload and runtime, and the precision if it is not the default: `2x200-s128-b1 on
        onnxruntime in int8`."""
        title = f"{self.name} on {self.runtime}"
        precision = self.options.precision
        return title if precision == Options.precision else f"{title} in {precision}"

    @cached_property
    def id(self) -> str:
        """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
        return _hash({**self.as_dict(), "workload": self.workload.identity})

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Inverse of `as_dict`.

        Raises `UnknownConfiguration` for a workload kind or a field that this version does not
        have, `UsageError` if a field is missing or its value is invalid.
        """
        with refused("invalid configuration", AttributeError, LookupError, TypeError, ValueError):
            check_types(cls, plain)
            return cls(
                workload_from_dict(plain["workload"]),
                plain["runtime"],
                plain["runtime_version"],
                plain["device_name"],
                _part(Options, json.dumps(plain["options"])),
                _part(Protocol, json.dumps(plain["protocol"])),
                plain["mode"],
            )


@lru_cache(maxsize=256)
def _part(kind: type, text: str) -> Any:
    """Options or a protocol from JSON; many configurations share them."""
    return known_fields(kind, json.loads(text))


def _hash(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()


def cell_key(plain: Mapping[str, Any]) -> str:
    """The same for a configuration, given as JSON values, on all machines: its id without what
    `describe` adds there.

    That is the runtime's version, the device's name, the cores, and whether weights have 7 bits.
    Raises `UnknownConfiguration` for a workload of another version.
    """
    found = ("cores", "reduce_range")
    return _hash(
        {
            "workload": workload_from_dict(plain["workload"]).identity,
            "mode": plain["mode"],
            "runtime": plain["runtime"],
            "options": {name: plain["options"][name] for name in plain["options"].keys() - found},
            "protocol": plain["protocol"],
        }
    )


#: Unexplained CPU time matters from this share of a mean call on, since less could not make even a
#: single call longer by more than that, and from so many ns on, of which the readings are exact to
#: a tenth.
UNEXPLAINED_SHARE = 0.1
UNEXPLAINED_NS = 100_000


def warnings_of(
    protocol: Protocol,
    rows: int,
    inside_ns: float,
    self_check: Mapping[str, Any],
    unexplained_ns: int | None = None,
) -> list[str]:
    """Warnings about a loop of `rows` trials, which took `inside_ns` of its time.

    `self_check`: that of the loop. `unexplained_ns`: CPU time of threads that are neither timed nor
    of the pool.
    """
    mean_us = inside_ns / rows / 1e3
    outside_share = 1 - inside_ns / self_check["loop_ns"]
    text = protocol.arrivals().warning(mean_us, outside_share, self_check)
    warnings = [text] if text else []
    text = unexplained_text(unexplained_ns, 1e3 * mean_us)
    return [*warnings, text] if text else warnings


def unexplained_text(unexplained_ns: int | None, call_ns: float) -> str | None:
    """What is said of unexplained CPU time beside calls of this length; None if it is little."""
    if unexplained_ns is None or unexplained_ns < max(UNEXPLAINED_NS, UNEXPLAINED_SHARE * call_ns):
        return None
    used = f"used {microseconds(unexplained_ns / 1e3)} us of CPU time during the trials"
    return f"threads that are neither timed nor of the runtime's pool {used}"
