"""What a recording states beside its trials: the types of the entries that are read, and how those
of parts are joined.

The types are checked once, when a file is read. They name the entries that this package uses;
others can be there.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NotRequired, Required, TypedDict


class Machine(TypedDict):
    cpu: str
    architecture: NotRequired[str]


class Parity(TypedDict, total=False):
    error: float | None
    not_checked: str | None
    nan_reaches_output: bool | None


class Ran(TypedDict):
    times: int
    shortest_ns: int
    longest_ns: int
    total_ns: int


class Switches(TypedDict):
    """How times off the core were measured."""

    missing: str | None
    ran: dict[str, Ran]
    ran_missing: str | None
    faults: dict[str, int]
    faults_missing: str | None


class Block(TypedDict):
    """What was read between two blocks of trials; a count is None where it is not known."""

    first_row: int
    rows: int
    steal_ns: NotRequired[float | None]
    throttled_periods: NotRequired[float | None]
    interrupts: NotRequired[float | None]
    softirqs: NotRequired[float | None]
    runnable_ns: NotRequired[float | None]
    unexplained_cpu_ns: NotRequired[float | None]
    others_ns: NotRequired[float | None]
    others_total_ns: NotRequired[float | None]
    cpu_khz: NotRequired[float | None]


class Others(TypedDict):
    pinned_cores_ns: int
    all_cores_ns: int
    alone: bool


class OfRuntime(TypedDict, total=False):
    graph_captured: bool | None
    graph_fallback: str | None


class BetweenCalls(TypedDict):
    recorder_ns: int
    runnable_ns: int
    waiting_ns: int


class SelfCheck(TypedDict):
    loop_ns: int
    loop_raw_ns: int
    clocks_differ_by: float
    outside_share: float
    between_calls: NotRequired[BetweenCalls | None]
    batches_ns: NotRequired[int]
    batches_loop_ns: NotRequired[int]


class Seconds(TypedDict):
    timing: float
    inside_trials: float
    control: float


class Soak(TypedDict):
    """Of a part of a long recording."""

    part: int
    last: bool
    asked_s: float
    elapsed_s: float


class Implementation(TypedDict):
    """Of the literature."""

    title: str
    framework: str


class Provenance(TypedDict, total=False):
    machine: Machine
    machine_fingerprint: str | None
    versions: dict[str, str | None]
    parity: Parity | None
    floor_ns: float | None
    floor_missing: str | None
    switches: Switches | None
    blocks: list[Block]
    started_unix_ns: int
    telemetry: dict[str, str] | None
    unexplained_cpu_ns: int | None
    others: Others | None
    runtime: OfRuntime | None
    warnings: list[str]
    costs_s: dict[str, float]
    losses: list[float] | None
    self_check: SelfCheck
    implementation: Implementation | None


class ProvenanceOfPart(Provenance):
    """What the joined recording is computed from."""

    blocks: Required[list[Block]]
    seconds: Required[Seconds]
    self_check: Required[SelfCheck]
    soak: Required[Soak]


class Described(TypedDict):
    """The JSON of a recording."""

    config_id: str
    configuration: dict
    round: int
    part: NotRequired[int | None]
    provenance: Provenance


class DescribedRow(Described):
    """The same of a consolidated table, and where its trials are."""

    row_group: int
    first_row: int
    rows: int


class DescribedPart(Described):
    provenance: ProvenanceOfPart


class DescribedFailure(TypedDict):
    """The JSON of a failure."""

    config_id: str
    configuration: dict
    round: int
    stage: str
    reason: str
    provenance: NotRequired[Provenance]


def _blocks(parts: list[list[dict]]) -> list[dict]:
    found, first_row = [], 0
    for blocks in parts:
        found += [{**block, "first_row": first_row + block["first_row"]} for block in blocks]
        first_row += sum(block["rows"] for block in blocks)
    return found


def _sums(parts: list[dict], *names: str) -> dict:
    return {name: sum(part[name] for part in parts) for name in names}


def _self_check(parts: list[dict]) -> dict:
    """Sums of durations, the mean share, and the largest difference of the clocks."""
    sums = _sums(parts, "loop_ns", "loop_raw_ns")
    between: list[Any] = [part.get("between_calls") for part in parts]
    return {
        **sums,
        "between_calls": None if None in between else _sums(between, *between[0]),
        "clocks_differ_by": max((check["clocks_differ_by"] for check in parts), key=abs),
        "outside_share": sum(check["outside_share"] * check["loop_ns"] for check in parts)
        / sums["loop_ns"],
    }


def _sum(parts: list[Any]) -> int | None:
    return None if None in parts else sum(parts)


def _others(parts: list[dict | None]) -> dict | None:
    """The CPU time of others; None if it is not known for all parts."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return {
        **_sums(known, "pinned_cores_ns", "all_cores_ns"),
        "alone": all(part["alone"] for part in known),
    }


def _seconds(parts: list[dict]) -> dict:
    return parts[0] | _sums(parts, "timing", "inside_trials", "control")


_first, _last = itemgetter(0), itemgetter(-1)

#: Every entry of the provenance (docs/file-format.md) -> how those of the parts of a long recording
#: become one: what is built and checked once is that of the first part. The kind of a workload can
#: add entries, which are the first's too.
PROVENANCE = {
    **dict.fromkeys(
        ("machine", "machine_fingerprint", "versions", "commit", "clock", "garbage_collector"),
        _first,
    ),
    **dict.fromkeys(
        ("parity", "device_warm_up", "pilot", "floor_ns", "floor_limited_by", "floor_missing"),
        _first,
    ),
    **dict.fromkeys(
        ("gpu_before", "costs_s", "started_unix_ns", "threads", "runtime", "warnings"), _first
    ),
    **dict.fromkeys(("control", "until"), _first),
    "blocks": _blocks,
    "gpu_after": _last,
    "telemetry": _first,
    "unexplained_cpu_ns": _sum,
    "others": _others,
    "seconds": _seconds,
    "self_check": _self_check,
    "soak": _last,
    "switches": _last,  # of all parts so far
}


def joined(parts: Sequence[Mapping]) -> dict:
    """The provenance of a long recording from those of its parts, in their order."""
    return {
        name: PROVENANCE.get(name, _first)([part.get(name) for part in parts]) for name in parts[0]
    }
