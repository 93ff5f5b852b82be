"""One time for each shape, from recordings: what the analysis of scaling works on.

It asks nothing of a measurement but a network's sizes and how long it took, so that
tables made elsewhere serve as well (`times_tables.py`). What was measured on different
systems (runtime, version, device, options, machine) is kept apart, and what was left
out is counted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from lstm_trt.errors import UsageError

AXES = ("layers", "hidden", "sequence", "batch")
#: Of the intervals of medians that pairs of recordings are judged by.
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Round:
    """The median of one process, and the exact interval that holds the true one at `CONFIDENCE`.

    The bounds are order statistics, 0 and infinity where there are too few trials for one.
    """

    median_us: float
    low_us: float
    high_us: float
    n: int


@dataclass(frozen=True)
class Cell:
    """The time of one shape on one system; `rounds` where it comes from recordings."""

    latency_us: float
    rounds: tuple[Round, ...] = ()


@dataclass
class Counts:
    """What was read and what was left out.

    `rows` of the table, or recordings; `blank` of them have no time or no size; `duplicates`
    were put into one number with a row before them; `failed` are failure rows. `holes` are
    combinations of the sizes present that have no time.
    """

    rows: int = 0
    used: int = 0
    blank: int = 0
    duplicates: int = 0
    failed: int = 0
    holes: int = 0
    shapes: int = 0


@dataclass(frozen=True)
class Times:
    """Times of shapes: `cells[system][sizes]`, sizes in the order of `axes`.

    `axes` are those of `AXES` that the source has; the others are constant. `systems` tells
    what each system is, by the label that `cells` has for it.
    """

    where: str
    axes: tuple[str, ...]
    cells: dict[str, dict[tuple[int, ...], Cell]] = field(repr=False)
    systems: dict[str, dict]
    counts: Counts
    unused: tuple[str, ...] = ()

    @property
    def raw(self) -> bool:
        """Whether there are trials behind the numbers."""
        return any(cell.rounds for cells in self.cells.values() for cell in cells.values())


def median_interval(ordered: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Order statistics that hold the true median with at least `confidence`, whatever the distribution.

    `ordered` ascends. With B ~ Binomial(n, 1/2) and l the smallest number with P(B <= l) above
    (1 - confidence) / 2, these are the l-th smallest and l-th largest (David and Nagaraja,
    Order Statistics, 7.1); (0, inf) where l is 0. Trials are taken as independent.
    """
    from scipy.stats import binom

    rank = int(binom.ppf((1 - confidence) / 2, len(ordered), 0.5))
    if rank < 1:
        return 0.0, math.inf
    return float(ordered[rank - 1]), float(ordered[len(ordered) - rank])


def from_recordings(items: Iterable, where: str = "the recordings") -> Times:
    """Times of recordings (what `store.read_many` gives): the middle one of the rounds' medians.

    The middle, since a process is the unit of replication and its median one observation;
    for an even number of rounds the lower of the two. Everything in the configuration but
    the four sizes belongs to the system, and so does the machine.
    """
    from lstm_trt.store import Failure

    found: dict[tuple, dict[tuple[int, ...], dict]] = {}
    told: dict[tuple, dict] = {}
    counts = Counts()
    for item in items:
        if isinstance(item, Failure):
            counts.failed += 1
            continue
        counts.rows += 1
        plain = item.configuration.as_dict()
        sizes = tuple(plain["workload"].get(axis) for axis in AXES)
        if None in sizes:
            counts.blank += 1  # a network of the literature, without these sizes
            continue
        told_here = _system(plain, item.provenance.get("machine_fingerprint"))
        key = tuple((name, str(value)) for name, value in told_here.items())
        told[key] = told_here
        rounds = found.setdefault(key, {}).setdefault(sizes, {})
        mark = (item.round, item.provenance.get("started_unix_ns"))
        if mark in rounds:
            counts.duplicates += 1  # a copy of the same file is no further round
            continue
        ordered = np.sort(item.timed_ns)
        if not len(ordered):
            counts.blank += 1
            continue
        low, high = median_interval(ordered)
        median = float(ordered[(len(ordered) - 1) // 2])
        rounds[mark] = Round(median / 1e3, low / 1e3, high / 1e3, len(ordered))
    labels = labels_of(told)
    cells: dict[str, dict[tuple[int, ...], Cell]] = {}
    for key, shapes in found.items():
        for sizes, rounds in sorted(shapes.items()):
            if not rounds:
                continue
            ordered_rounds = tuple(rounds[mark] for mark in sorted(rounds, key=str))
            latency = statistics.median_low(one.median_us for one in ordered_rounds)
            if latency <= 0:
                raise UsageError(
                    f"{where}: the median of {dict(zip(AXES, sizes, strict=True))} is 0: nothing was timed"
                )
            cells.setdefault(labels[key], {})[sizes] = Cell(latency, ordered_rounds)
            counts.used += len(ordered_rounds)
    if not cells:
        raise UsageError(f"{where}: no recording of a stacked LSTM among {counts.rows + counts.failed} items")
    return whole(where, AXES, cells, {labels[key]: told[key] for key in told}, counts)


def _system(plain: dict, machine: str | None) -> dict:
    """All of a configuration that is not one of the four sizes, flat."""
    told = {"runtime": plain["runtime"], "runtime_version": plain["runtime_version"]}
    told["device_name"] = plain["device_name"]
    told |= plain["options"]
    told |= {"mode": plain["mode"], **plain["protocol"]}
    told |= {name: value for name, value in plain["workload"].items() if name not in AXES}
    return told | {"machine": machine}


def labels_of(told: dict[tuple, dict]) -> dict[tuple, str]:
    """A short name for each system: the runtime, and of the rest what differs."""
    names = list(dict.fromkeys(name for one in told.values() for name in one))
    differ = [name for name in names if len({str(one.get(name)) for one in told.values()}) > 1]
    labels = {}
    for key, one in told.items():
        head = str(one.get("runtime") or one.get("framework") or "")
        rest = [
            f"{one[name]}"
            if name in ("precision", "device_name", "device")
            else f"{name.replace('_', ' ')} {one[name]}"
            for name in differ
            if name in one and name not in ("runtime", "framework")
        ]
        labels[key] = ", ".join(filter(None, [head, *rest])) or "all"
    return labels


def whole(
    where: str, axes: tuple[str, ...], cells: dict, systems: dict, counts: Counts, unused: tuple[str, ...] = ()
) -> Times:
    """Times in order, with shapes and holes counted."""
    for shapes in cells.values():
        counts.shapes += len(shapes)
        counts.holes += math.prod(len(set(values)) for values in zip(*shapes, strict=True)) - len(shapes)
    return Times(where, axes, dict(sorted(cells.items())), dict(sorted(systems.items())), counts, unused)
