"""What slow calls spent their time on, by the times off the core that a recording measured.

A call is preempted, waits by itself (for a lock, its threads, the device), or is on the core; with
periodic arrivals it may also begin behind the previous call, or late. Nothing is estimated: the
excess of some calls over others is a difference of means, so the differences of its parts sum to
it. What the part on the core was spent on is not measured. Counters that were higher for these
calls, or in their blocks, are stated beside it; that is no test of a cause (`causes.py` has one).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from lstm_judge.read.rounds import Round
from lstm_trt.config.fields import JsonFields

#: Part -> its name, and what helps against it. The last one is that of recordings without times off
#: the core.
PARTS = {
    "late": (
        "late wake-up",
        "spinning until the call is due, or shallower idle states, would help",
    ),
    "behind": ("behind the previous call", "a longer period or shorter calls would help"),
    "preempted": ("preempted", "an isolated core or a higher priority would help"),
    "waiting": (
        "waiting by itself",
        "it waits, as for the runtime's threads, the device or a page of memory",
    ),
    "on_core": (
        "on the core",
        "another runtime or network would help, unless an empty step is delayed too",
    ),
    "not_split": ("not split", "the times off the core were not measured"),
}

#: Counters of each trial, and readings of each block, that are compared.
OF_TRIALS = ("minor_faults", "major_faults", "pool_preempted_ns")
OF_BLOCKS = ("interrupts", "softirqs", "steal_ns", "runnable_ns", "unexplained_cpu_ns", "cpu_khz")

#: A counter is stated if it is higher by at least this factor and not rarer than the second, and
#: the clock if it is lower by the first.
SEEN = 1.1
RARE = 0.1

#: How the turns of a program in several recordings become one.
_RAN: dict[str, Callable] = {"times": sum, "shortest_ns": min, "longest_ns": max, "total_ns": sum}

#: Number of the slowest calls that are compared with the others.
SLOWEST = 10


@dataclass(frozen=True)
class Excess(JsonFields):
    """How much longer `n` calls take than `others`, by their means, and the parts that sum to it,
    in us.

    `seen`: counter -> its mean per call, or per block of these calls, and that of the others, where
    they differ.
    """

    n: int
    others: int
    excess_us: float
    parts_us: dict[str, float]
    seen: dict[str, tuple[float, float]]

    @property
    def mostly(self) -> str | None:
        """The part that is more than half of the excess, if there is one."""
        for kind, time_us in self.parts_us.items():
            if time_us > self.excess_us / 2:
                return kind
        return None


def parts_of(round_: Round, split: bool = True) -> dict[str, np.ndarray]:
    """Parts of each latency in ns, (n,) each, warm-up included; `split`: whether by the times off
    the core."""
    parts: dict[str, np.ndarray] = {}
    if "late_ns" in round_.off_core and round_.start_ns is not None:
        ends = round_.start_ns + round_.latency_ns
        behind = np.clip(
            np.append(0, ends[:-1] - round_.start_ns[1:]), 0, round_.off_core["late_ns"]
        )
        parts |= {"late": round_.off_core["late_ns"] - behind, "behind": behind}
    if split:
        preempted = round_.off_core["preempted_ns"]
        parts |= {"preempted": preempted, "waiting": round_.off_core["off_core_ns"] - preempted}
    return parts | {"on_core" if split else "not_split": round_.latency_ns - sum(parts.values())}


class Spent:
    """What the timed calls of several rounds spent their time on, to compare some of the calls with
    others."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        self._rounds = rounds
        self._measured = bool(rounds) and all(round_.switches is not None for round_ in rounds)

    @classmethod
    def of_control(cls, rounds: Sequence[Round]) -> Self:
        """Of the control runs, an empty step, whose waiting can only be a late wake-up."""
        return cls(
            [
                Round.of(run.control_ns, off_core=run.control_off_core, switches=run.switches)
                for run in rounds
                if run.control_ns is not None
            ]
        )

    @cached_property
    def _latency_ns(self) -> np.ndarray:
        return np.concatenate([round_.timed_ns for round_ in self._rounds])

    @cached_property
    def _parts(self) -> dict[str, np.ndarray]:
        split = all("off_core_ns" in round_.off_core for round_ in self._rounds)
        return self._timed(PARTS, [parts_of(round_, split) for round_ in self._rounds])

    @cached_property
    def _counters(self) -> dict[str, np.ndarray]:
        tables = [
            round_.causes | round_.off_core | round_.of_blocks(OF_BLOCKS) for round_ in self._rounds
        ]
        return self._timed((*OF_TRIALS, *OF_BLOCKS), tables)

    def _timed(
        self, names: Iterable[str], tables: Sequence[Mapping[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        """The timed trials of all rounds by name, of what all rounds have."""
        found = {}
        for name in names:
            if all(name in table for table in tables):
                found[name] = np.concatenate(
                    [
                        round_.timed(table[name])
                        for round_, table in zip(self._rounds, tables, strict=True)
                    ]
                )
        return found

    def excess(self, slow: np.ndarray, others: np.ndarray) -> Excess | None:
        """The excess of the `slow` calls over `others`: masks of the timed trials of all rounds.

        If there are no others, that over zero. None if there are no such calls, or if a round was
        recorded before these times were.
        """
        n = int(np.count_nonzero(slow))
        n_others = int(np.count_nonzero(others))
        if not n or not self._measured:
            return None

        def means(values: np.ndarray) -> tuple[float, float]:
            return float(values[slow].sum()) / n, float(values[others].sum()) / max(n_others, 1)

        def excess_us(values_ns: np.ndarray) -> float:
            here, there = means(values_ns)
            return (here - there) / 1e3

        counted = {name: means(values) for name, values in self._counters.items()}
        return Excess(
            n,
            n_others,
            excess_us(self._latency_ns),
            {name: excess_us(part_ns) for name, part_ns in self._parts.items()},
            {name: pair for name, pair in counted.items() if _is_seen(name, *pair)},
        )

    def slowest(self) -> Excess | None:
        """The excess of the slowest calls of all rounds over the others."""
        if not self._measured:
            return None
        slow = self._latency_ns >= np.sort(self._latency_ns)[-SLOWEST:][0]
        return self.excess(slow, ~slow)


def _is_seen(name: str, here: float, there: float) -> bool:
    """Whether a counter, or the clock, differs enough to be stated (`SEEN`)."""
    return there > SEEN * here if name == "cpu_khz" else here > max(SEEN * there, RARE)


def ran(switches: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """What ran while a timed call was preempted: name -> `times`, `shortest_ns`, `longest_ns`,
    `total_ns`."""
    turns: dict[str, list[Mapping[str, int]]] = {}
    for recorded in switches:
        for name, of_recording in recorded["ran"].items():
            turns.setdefault(name, []).append(of_recording)
    return {
        name: {key: join(each[key] for each in known) for key, join in _RAN.items()}
        for name, known in turns.items()
    }
