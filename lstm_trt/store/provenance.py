"""What a recording states beside its trials: `Provenance` is the table of these facts.

A line has the fact's name in the file and its type, which is checked once, when the file is read.
`Fact`, where it is more than that of the first part, says how several become one, and what
summaries show of it. docs/file-format.md says what each means; other entries can be there, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    TypedDict,
    get_args,
    get_type_hints,
    is_typeddict,
)

from lstm_trt.config.format import microseconds
from lstm_trt.store import joins


@dataclass(frozen=True)
class Fact:
    """How a fact of several recordings becomes one, and what summaries show of it.

    `join`: the fact of all parts of a long recording, in their order, and in a summary that of all
    rounds; a part that lacks it has None. That of a value inside an entry is for rounds only.
    `column`: its name in the CSV and JSON of summaries, which lack a fact without one. `heading`:
    its column in their table, which is shown if a row has a value other than 0, and there is none
    without it. `text` is a value there, `legend` explains the column.
    """

    join: Callable[[Sequence[Any]], Any] = joins.first
    column: str = ""
    heading: str = ""
    text: Callable[[Any], str] = str
    legend: str = ""


class Machine(TypedDict):
    cpu: str
    architecture: NotRequired[str]


class Parity(TypedDict, total=False):
    error: Annotated[float | None, Fact(joins.largest, "parity_error")]
    not_checked: Annotated[str | None, Fact(joins.first_known, "not_checked")]
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
    alone: Annotated[
        bool,
        Fact(
            joins.number_of_false,
            "not_alone",
            "not alone",
            legend="not alone: recordings during which other programs used the CPU",
        ),
    ]


class Load(TypedDict):
    """What a load did while trials were timed; `processes` are their names."""

    name: str
    command: str
    cores: list[int]
    cpu_ns: int
    io_bytes: int
    wall_ns: int
    processes: list[str]
    rate: NotRequired[str | None]
    rate_alone: NotRequired[str | None]


class OfRuntime(TypedDict, total=False):
    graph_captured: Annotated[bool | None, Fact(column="graph_captured")]
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
    """Every fact of the core, and those of kinds of workload that are read."""

    # the machine and the process
    machine: Machine
    machine_fingerprint: str | None
    versions: dict[str, str | None]
    commit: Any
    clock: Any
    garbage_collector: Any
    threads: Any
    runtime: OfRuntime | None
    telemetry: dict[str, str] | None

    # before the trials
    parity: Parity | None
    costs_s: dict[str, float]
    device_warm_up: Any
    pilot: Any
    floor_ns: float | None
    floor_limited_by: Any
    floor_missing: str | None

    # during the trials
    started_unix_ns: int
    blocks: Annotated[list[Block], Fact(joins.blocks)]
    self_check: Annotated[SelfCheck, Fact(joins.self_check)]
    switches: Annotated[Switches | None, Fact(joins.last)]  # of all parts so far
    others: Annotated[Others | None, Fact(joins.others)]
    unexplained_cpu_ns: Annotated[int | None, Fact(joins.total)]
    beside: Annotated[list[Load], Fact(joins.loads)]
    scheduling: Any
    prepare_us: Annotated[
        float | None,
        Fact(
            joins.largest,
            "prepare_us",
            "prepare us",
            microseconds,
            "prepare: median time of prepare_next after a step, the largest of the rounds",
        ),
    ]
    gpu_before: Any
    gpu_after: Annotated[Any, Fact(joins.last)]

    # of the whole
    control: Any
    until: Any
    soak: Annotated[Any, Fact(joins.last)]
    seconds: Annotated[Any, Fact(joins.seconds)]
    warnings: list[str]

    # of the literature
    implementation: Implementation | None
    losses: list[float] | None


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


@cache
def facts(entries: Any = Provenance) -> dict[str, Fact]:
    """Each fact of the provenance, or of an entry of it, by name."""
    hints = get_type_hints(entries, include_extras=True)
    return {name: getattr(hint, "__metadata__", [Fact()])[0] for name, hint in hints.items()}


@cache
def columns() -> dict[str, Fact]:
    """The facts that summaries show, by their place in the provenance: `commit`, `parity.error`."""
    found = dict(facts())
    for name, hint in get_type_hints(Provenance).items():
        for entry in (hint, *get_args(hint)):
            if is_typeddict(entry):
                found |= {f"{name}.{inside}": fact for inside, fact in facts(entry).items()}
    return {place: fact for place, fact in found.items() if fact.column}


def stated(provenance: Mapping[str, Any], place: str) -> Any:
    """The fact at a place, such as `parity.error`; None if a recording lacks it."""
    value: Any = provenance
    for name in place.split("."):
        value = value.get(name) if value else None
    return value


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The provenance of a long recording from those of its parts, in their order.

    The kind of a workload can add facts, which are those of the first part.
    """
    known = facts()
    return {
        name: known.get(name, Fact()).join([part.get(name) for part in parts]) for name in parts[0]
    }
