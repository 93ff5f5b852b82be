"""Latencies in memory, as analysis and plots use them: a `Round` of one process, a `Group` of all
rounds of one configuration.

Recordings are converted to groups here, tables from elsewhere in `foreign`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Self, TypeAlias

import numpy as np

from lstm_judge.read.labels import (
    FIELDS,
    LEFT_OUT,
    flat,
    labels,
    load_text,
    telling,
    version_text,
    without_loads,
)
from lstm_judge.read.whole import AllTrials, Bins
from lstm_trt.config.configuration import PRECISIONS, Configuration, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import JsonFields, Tells, about
from lstm_trt.config.format import count, listed
from lstm_trt.config.libraries import sends
from lstm_trt.store import provenance as stored
from lstm_trt.store.schema import Failure, Recording, Stored

#: Counters that are read at each trial.
TRIAL_CAUSES = ("involuntary_switches", "minor_faults", "major_faults")

#: Counters that are read between blocks of trials; every trial has the count of its block.
BLOCK_CAUSES = ("steal_ns", "throttled_periods", "unexplained_cpu_ns")


#: Times off the core that are measured at each trial.
OFF_CORE = ("preempted_ns", "off_core_ns", "pool_preempted_ns")


#: What recordings of one group share: configuration id, machine (None if not known), and whether a
#: CUDA graph was refused.
Key: TypeAlias = "tuple[str, str | None, bool]"


@dataclass(frozen=True)
class Round:
    """Latencies of one process, in order of the calls; the arrays have one entry per call.

    `latency_ns` is float64, > 0. `warmup` (bool) marks calls that statistics leave out. `start_ns`:
    ascending start times, the intended ones if known, else the actual ones; None if not known.
    `causes`: name -> counts at each trial, >= 0; a counter that is absent was not read.
    `block_causes`: the same for counters that are read between blocks of trials. `switches`: what
    the recorder says of measuring times off the core, None for other sources; `off_core`: these
    times by name, at each call, and with periodic arrivals `late_ns`, from the intended start to
    the actual one; `control_off_core`: those of the control run. `blocks`: rows and readings of
    each block. `loads`: what each load beside the trials used, as the recording states it.
    `control_ns`: latencies of the control run (an empty step with the same arrivals),
    None if there was none. `facts`: what the recording states and summaries show, by its place in
    the provenance, such as `parity.error`; a fact that is not known is None or absent. `whole`: all
    trials of a long recording, of which the arrays have one of each `whole.step`. `telemetry`:
    "off", or "on" with the libraries that sent usage data from the timed process; None if not
    known. `unexplained_cpu_ns`: CPU time of its threads that were neither timed nor of the
    runtime's pool, None if not known. Of a histogram `whole` is `Bins`, and the arrays have an
    entry per bin. `edges_ns` (2, entries): the least and the most that each latency may be, of a
    bin or by a clock so coarse that it shows 0; else None. `floor_us`: roofline bound, None without
    one; `floor_missing`: why, None where it has no meaning.
    """

    latency_ns: np.ndarray
    warmup: np.ndarray
    start_ns: np.ndarray | None = None
    causes: dict[str, np.ndarray] = field(default_factory=dict)
    block_causes: dict[str, np.ndarray] = field(default_factory=dict)
    off_core: dict[str, np.ndarray] = field(default_factory=dict)
    control_off_core: dict[str, np.ndarray] = field(default_factory=dict)
    switches: Mapping[str, Any] | None = None
    blocks: Sequence[Mapping[str, Any]] = ()
    loads: Sequence[Mapping[str, Any]] = ()
    control_ns: np.ndarray | None = None
    round: int = 0
    started_unix_ns: int | None = None
    machine: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    floor_us: float | None = None
    floor_missing: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    telemetry: str | None = None
    unexplained_cpu_ns: int | None = None
    whole: AllTrials | None = None
    edges_ns: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"<Round {self.round}: {count(self.n, 'trial')}>"

    @property
    def n(self) -> int:
        """Trials after warm-up, also those that are not in memory."""
        return len(self.whole) if self.whole else int(np.count_nonzero(~self.warmup))

    @property
    def most_ns(self) -> float:
        """The largest latency including warm-up."""
        return float(self.whole.most_ns if self.whole else np.nanmax(self.latency_ns))

    @property
    def share_of_floor(self) -> float | None:
        """The median after warm-up as a share of the roofline bound; None without either."""
        if not (self.floor_us and self.n):
            return None
        return float(np.median(self.timed_ns)) / (1e3 * self.floor_us)

    @property
    def timed_ns(self) -> np.ndarray:
        """Latencies after warm-up in ns, in order; raises `UsageError` for a histogram, which has
        none."""
        if isinstance(self.whole, Bins):
            raise UsageError(
                "a histogram has no order and no single times: summarize and verdict read it"
            )
        return self.latency_ns[~self.warmup]

    def timed(self, values: np.ndarray) -> np.ndarray:
        """The entries after warm-up of one of the arrays."""
        return values[~self.warmup]

    def edge(self, end: int) -> Round:
        """This round with the least (0) or the most (1) that each latency may be."""
        if self.edges_ns is None:
            return self
        edge_ns = self.edges_ns[end]
        whole = self.whole and replace(self.whole, values=edge_ns, most_ns=edge_ns[-1])
        return replace(self, latency_ns=edge_ns, whole=whole, edges_ns=None)

    @property
    def plain(self) -> Round:
        """This round without its counters and times off the core, to be sent to another process."""
        return replace(
            self,
            causes={},
            block_causes={},
            off_core={},
            control_off_core={},
            switches=None,
            blocks=(),
        )

    def of_blocks(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Of these readings between blocks, those that all blocks have: every call has the value of
        its block."""
        rows = [block["rows"] for block in self.blocks]
        found = {}
        for name in names:
            values: list[Any] = [block.get(name) for block in self.blocks]
            if values and None not in values:
                found[name] = np.repeat(values, rows)
        return found

    @classmethod
    def of(cls, latency_ns, start_ns=None, **more) -> Self:
        """A round without warm-up, from any sequence of numbers."""
        latency_ns = np.asarray(latency_ns, dtype=np.float64)
        return cls(latency_ns, np.zeros(len(latency_ns), dtype=bool), start_ns, **more)


@dataclass(frozen=True)
class NoTrials(JsonFields):
    """Why a configuration has no trials; `stage`: one of `errors.STAGES`, or None."""

    stage: str | None
    reason: str

    def __str__(self) -> str:
        return f"failed at {self.stage}: {self.reason}" if self.stage else self.reason


@dataclass(frozen=True)
class Group:
    """All rounds of one configuration, in their order.

    `name` is for display. `group` (JSON values) distinguishes it from the other groups of its
    source and is empty if there are none. `failure` is the reason if there are no rounds.
    `configuration` is None for tables from elsewhere, and so is `key` (`group_key`).
    """

    name: str
    rounds: tuple[Round, ...]
    group: dict = field(default_factory=dict)
    configuration: Any = None  # a `Configuration`; None for rows of a table
    failure: NoTrials | None = None
    key: Key | None = None

    def __repr__(self) -> str:
        return f"<Group {self.name}: {self.failure or self.measured}>"

    @property
    def measured(self) -> str:
        """Numbers of trials and rounds as text."""
        return f"{count(self.n, 'trial')} in {count(len(self.rounds), 'round')}"

    @property
    def plain(self) -> Group:
        """This group with its rounds `plain`."""
        return replace(self, rounds=tuple(round_.plain for round_ in self.rounds))

    @property
    def median_ns(self) -> float:
        """The median of the medians of the rounds."""
        medians = []
        for round_ in self.rounds:
            if round_.n:
                ordered = round_.whole or np.sort(round_.timed_ns)
                medians.append(ordered[(len(ordered) - 1) // 2])
        return float(np.median(medians))

    @property
    def machine(self) -> str | None:
        """The machine's fingerprint; None if it is not known."""
        if self.key:
            return self.key[1]
        return self.rounds[0].machine if self.rounds else None

    @property
    def until(self) -> float | None:
        """The length of bursts for which the recording was to be decided; None if its number of
        trials was fixed."""
        return None if self.configuration is None else self.configuration.protocol.burst_length

    @property
    def n(self) -> int:
        """Trials after warm-up, over all rounds."""
        return sum(round_.n for round_ in self.rounds)

    @property
    def parity_error(self) -> float | None:
        """Relative difference of the outputs from those in float32; None if a round was not
        checked."""
        return facts_of(self.rounds)["parity_error"]

    @property
    def floor_missing(self) -> str | None:
        """Why a round has no roofline bound; None if all have one, or where it has no meaning."""
        for round_ in self.rounds:
            if round_.floor_missing:
                return round_.floor_missing
        return None


def least_of_floor(rounds: Iterable[Round]) -> float | None:
    """The smallest `share_of_floor`; None without a bound."""
    return min(filter(None, (round_.share_of_floor for round_ in rounds)), default=None)


def below_floor(groups: Iterable[Group]) -> Iterator[str]:
    """A line if medians are below the roofline bound, which names the configurations."""
    below = {}
    for group in groups:
        share = least_of_floor(group.rounds)
        if share is not None and share < 1:
            below[group.name] = share
    if below:
        yield (
            f"{count(len(below), 'configuration')} faster than the arithmetic of the network (a"
            f" median of {min(below.values()):.2g} of the roofline bound or more):"
            f" {listed(list(below), 3)}; lengths, constants or weights of 0 may be why"
        )


def facts_of(rounds: Sequence[Round]) -> dict[str, Any]:
    """What several rounds state, by column of the summary; None if there are no rounds."""
    found = {}
    for place, fact in stored.columns().items():
        values = [round_.facts.get(place) for round_ in rounds]
        found[fact.column] = fact.join(values) if values else None
    return found


def of_recording(recording: Recording) -> Round:
    """Convert a recording to a round."""
    columns = recording.columns
    provenance = recording.provenance
    control = recording.control or {}
    off_core = {name: columns[name] for name in OFF_CORE if name in columns}
    if "intended_ns" in columns:
        off_core["late_ns"] = columns["start_ns"] - columns["intended_ns"]
    whole = recording.whole
    if whole is not None:
        whole = AllTrials(whole.values, whole.counts, whole.step, whole.most_ns, whole.parts)
    floor_ns = provenance.get("floor_ns")
    round_ = Round(
        latency_ns=columns["latency_ns"].astype(np.float64),
        warmup=columns["warmup"],
        start_ns=columns.get("intended_ns", columns.get("start_ns")),
        causes={name: columns[name] for name in TRIAL_CAUSES if name in columns},
        off_core=off_core,
        control_off_core={name: control[name] for name in OFF_CORE if name in control},
        switches=switches_of(provenance),
        blocks=() if whole else provenance.get("blocks", ()),
        loads=provenance.get("beside", ()),
        control_ns=control["latency_ns"].astype(np.float64) if control else None,
        round=recording.round,
        started_unix_ns=provenance.get("started_unix_ns"),
        machine=provenance.get("machine_fingerprint"),
        versions=provenance.get("versions", {}),
        floor_us=floor_ns and floor_ns / 1e3,
        floor_missing=provenance.get("floor_missing"),
        facts={place: stored.stated(provenance, place) for place in stored.columns()},
        telemetry=telemetry_of(provenance),
        unexplained_cpu_ns=provenance.get("unexplained_cpu_ns"),
        whole=whole,
    )
    return replace(round_, block_causes=round_.of_blocks(BLOCK_CAUSES))


def switches_of(provenance: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What it says of times off the core; among what ran, processes of the loads are called so."""
    switches = provenance.get("switches")
    if not switches:
        return None
    ran = dict(switches["ran"])
    for load in provenance.get("beside", ()):
        for name in load["processes"]:
            if name in ran:
                ran[f"{name} (load)"] = ran.pop(name)
    return {**switches, "ran": ran}


def telemetry_of(provenance: Mapping[str, Any]) -> str | None:
    """ "on (onnxruntime)" where such libraries sent usage data meanwhile, else "off"; None if no
    versions are stated.

    Recordings that do not state it had telemetry if a version that sends was installed as their
    runtime.
    """
    versions = provenance.get("versions")
    if versions is None:
        return None
    if (stated := provenance.get("telemetry")) is not None:
        on = [name for name, state in stated.items() if state == "on"]
    else:
        on = [name for name, version in versions.items() if version and sends(name, version)]
    return f"on ({', '.join(on)})" if on else "off"


def groups_of(items: Iterable[Stored]) -> list[Group]:
    """Group recordings by configuration and machine, sorted by shape and runtime.

    Recordings of different machines are never pooled, nor those with a CUDA graph and those whose
    capture was refused. A configuration that failed in some rounds only is represented by its
    recordings. A recording given twice counts once.
    """
    rounds: dict[Key, dict[tuple, Round]] = {}
    failures: dict[Key, NoTrials] = {}
    configurations: dict[Key, Configuration] = {}
    for item in items:
        key = group_key(item)
        configurations[key] = item.configuration
        if isinstance(item, Failure):
            failures.setdefault(key, NoTrials(item.stage, item.reason))
        else:
            round_ = of_recording(item)
            rounds.setdefault(key, {})[round_.round, round_.started_unix_ns or 0] = round_
    measured = {(name, place) for name, machine, _ in rounds for place in (machine, None)}
    machines = {key[1] for key in configurations if key in rounds or key[1] is not None}
    precisions = {configuration.options.precision for configuration in configurations.values()}
    groups = []
    for key, configuration in configurations.items():
        found = rounds.get(key, {})
        if not found and key[:2] in measured:
            continue
        groups.append(
            Group(
                _name(configuration, key, with_precision=precisions != {PRECISIONS[0]}),
                tuple(found[mark] for mark in sorted(found)),
                _fields_of_group(configuration, key, with_machine=len(machines) > 1),
                configuration,
                None if found else failures[key],
                key,
            )
        )
    return with_distinct_names(sorted(groups, key=_place))


def _name(configuration: Configuration, key: Key, with_precision: bool) -> str:
    """The name of a group, which `with_distinct_names` makes longer where it has to."""
    name = f"{configuration.name} on {configuration.runtime}"
    if with_precision:
        name += f" in {configuration.options.precision}"
    if configuration.protocol.beside:
        name += f" {load_text(configuration)}"
    return f"{name}, graph refused" if key[2] else name


def _fields_of_group(configuration: Configuration, key: Key, with_machine: bool) -> dict[str, Any]:
    """The fields of `Group.group`: what JSON says of the configuration."""
    workload = configuration.workload
    options = about(type(configuration.options)).items()
    every = fields_of(configuration, key[1])
    if not with_machine:
        del every["machine"]
    names = [
        *workload.group_fields(configuration.mode),
        *workload.axes,
        *("runtime", "config_id", "runtime_version", "device_name"),
        *(name for name, field in options if field.kept or field.added),
        "machine",
        *LEFT_OUT,
    ]
    fields = {name: every[name] for name in names if name in every}
    return fields | {"graph_captured": False} if key[2] else fields


def _place(group: Group) -> tuple:
    """Groups are sorted by it: workload, sizes, runtime, precision, then the other fields of the
    configuration.

    Not by the identity first, a hash: another version of a runtime would give another order.
    """
    configuration = group.configuration
    named = " ".join(map(str, configuration.workload.group_fields(configuration.mode).values()))
    every = flat(configuration)
    others = [every.get(name, known.default) for name, known in FIELDS.items()]
    others += [*configuration.workload.label_fields.values(), configuration.id]
    return (
        named,
        *map(in_order, configuration.workload.axes.values()),
        configuration.runtime,
        PRECISIONS.index(configuration.options.precision),
        *map(in_order, others),
    )


def in_order(value: object) -> tuple:
    """A value of any kind as a key: None, then numbers, then texts, in which numbers count: 1.9.0
    before 1.10.0."""
    if value is None:
        return (0,)
    if isinstance(value, Real):
        return 1, value
    parts = re.split(r"(\d+)", str(value))
    return 2, [(len(part) if part.isdecimal() else 0, part) for part in parts]


def by_network(groups: Iterable[Group]) -> list[list[int]]:
    """The places of the groups with a configuration, those together that differ in their loads
    only."""
    places: dict[tuple, list[int]] = {}
    for place, group in enumerate(groups):
        if group.configuration is not None:
            # Of groups without a key it is not known where they were recorded.
            others = group.key[1:] if group.key else (place,)
            alike = (without_loads(group.configuration).id, *others)
            places.setdefault(alike, []).append(place)
    return list(places.values())


def fields_of(configuration: Configuration, machine: str | None) -> dict[str, Any]:
    """All fields of a configuration on a machine in one dictionary."""
    return {
        **flat(configuration),
        **configuration.workload.group_fields(configuration.mode),
        **configuration.workload.axes,
        "machine": machine,
        "config_id": configuration.id,
    }


def group_key(item: Stored) -> Key:
    """The key of the group of a recording or failure."""
    refused = (item.provenance.get("runtime") or {}).get("graph_fallback") is not None
    return item.configuration.id, item.provenance.get("machine_fingerprint"), refused


def with_distinct_names(groups: list[Group]) -> list[Group]:
    """The groups with distinct names: to equal names the fields are added that differ."""
    by_name: dict[str, list[Group]] = {}
    for group in groups:
        by_name.setdefault(group.name, []).append(group)
    names: dict[Any, str] = {}
    for name, alike in by_name.items():
        texts = labels([label_fields(group) for group in alike], enough=True)
        for group, text in zip(alike, texts, strict=True):
            names[group.key] = f"{name}, {text}" if text else name
    return [replace(group, name=names[group.key]) for group in groups]


#: Fields of the protocol that names show beside the arrivals and the number of trials.
_NAMED = [
    name
    for name in telling(Tells.MINOR, Tells.NEVER, of=about(Protocol))
    if name not in ("trials", "for_s")
]


def label_fields(group: Group) -> dict[str, object]:
    """Fields of a configuration besides shape and runtime, the most important first; for names."""
    configuration = group.configuration
    every = fields_of(configuration, group.machine)
    named = (*configuration.options.as_dict(), "device_name", "machine", "load_commands", *_NAMED)
    return {
        "mode": configuration.mode,
        "arrivals": without_loads(configuration).protocol.arrival_text,
        "beside": configuration.protocol.beside_text,
        "version": version_text(configuration.runtime, configuration.runtime_version),
        **{name: every.get(name) for name in named},
        "length": f"{configuration.protocol.trials} trials",
    }
