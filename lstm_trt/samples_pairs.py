"""Which configuration of one source is compared with which of another.

What is the same throughout one source, and the same throughout the other, is what the comparison
is about (another runtime, another version, another machine) and does not keep two from being
matched; what varies within a source tells its configurations apart, and has to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lstm_trt.errors import UsageError
from lstm_trt.samples import Group
from lstm_trt.samples_tables import Read

#: Tell recordings of one configuration apart; they count only where nothing else does.
_MINOR = ("trials", "warmup", "seed", "for_s", "runtime_version", "device_name", "machine", "config_id")


@dataclass(frozen=True)
class Pairs:
    """`pairs`: (group, A's, B's), where `group` has what they share. The others are on one side only."""

    pairs: tuple[tuple[dict, Group, Group], ...]
    only_a: tuple[Group, ...] = ()
    only_b: tuple[Group, ...] = ()
    several: bool = False
    differ: dict[str, tuple] = field(default_factory=dict)


def pair(a: Read, b: Read) -> Pairs:
    """The groups of B that answer the same question as those of A.

    One group a side is compared whatever it is called. Raises `UsageError` where nothing can be
    matched, or where it cannot be told which of several belong together.
    """
    if len(a.groups) == len(b.groups) == 1:
        one, other = told(a.groups[0]), told(b.groups[0])
        shared = {name: value for name, value in one.items() if name in other and other[name] == value}
        return Pairs(((shared, a.groups[0], b.groups[0]),), several=bool(a.keys or b.keys))
    sides = [[told(group) for group in read.groups] for read in (a, b)]
    names = [name for name in sides[0][0] if all(name in one for side in sides for one in side)]
    values = [{name: {repr(one[name]) for one in side} for name in names} for side in sides]
    fixed = [name for name in names if len(values[0][name]) == len(values[1][name]) == 1]
    free = [name for name in names if name not in fixed]
    major = [name for name in free if name not in _MINOR]
    keyed = [_by(side, read.groups, major) for side, read in zip(sides, (a, b), strict=True)]
    if None in keyed:
        keyed = [_by(side, read.groups, free) for side, read in zip(sides, (a, b), strict=True)]
    for side, read in zip(keyed, (a, b), strict=True):
        if side is None:
            raise UsageError(
                f"{read.source} holds several configurations that cannot be told apart by {', '.join(free) or 'a name'}"
                " in both: give one configuration a side, or the same --group-by columns"
            )
    matched = [key for key in keyed[0] if key in keyed[1]]
    differ = {name: (sides[0][0][name], sides[1][0][name]) for name in fixed if values[0][name] != values[1][name]}
    if not matched:
        have = [", ".join(group.name for group in read.groups[:3]) for read in (a, b)]
        raise UsageError(f"nothing to compare: {a.source} has {have[0]}, {b.source} has {have[1]}")
    pairs = []
    for key in matched:
        one, other = told(keyed[0][key]), told(keyed[1][key])
        shared = {name: value for name, value in one.items() if name in other and other[name] == value}
        pairs.append((shared, keyed[0][key], keyed[1][key]))
    return Pairs(
        tuple(pairs),
        tuple(group for key, group in keyed[0].items() if key not in keyed[1]),
        tuple(group for key, group in keyed[1].items() if key not in keyed[0]),
        True,
        {name: both for name, both in differ.items() if name not in _MINOR},
    )


def told(group: Group) -> dict:
    """What tells a group from others: of a recording of this lab everything that was configured."""
    if group.configuration is None:
        return group.group
    plain = group.configuration.as_dict()
    options = {name: value for name, value in plain["options"].items() if name != "cores"}
    protocol = {name: plain["protocol"].get(name) for name in ("arrival", "wait", "period_us", "pause_ms")}
    protocol |= {name: plain["protocol"].get(name) for name in ("trials", "warmup", "seed", "for_s")}
    workload = {name: value for name, value in plain["workload"].items() if name != "kind"}
    said = {**workload, "mode": plain["mode"], "runtime": plain["runtime"], **options, **protocol}
    said |= {name: plain[name] for name in ("runtime_version", "device_name")}
    machine = group.samples[0].machine if group.samples else None
    return {**said, "machine": machine, "config_id": group.configuration.id}


def _by(side: Sequence[dict], groups: Sequence[Group], names: Sequence[str]) -> dict[tuple, Group] | None:
    """The groups by their values of these names; None where two have the same."""
    keyed = {tuple(repr(one[name]) for name in names): group for one, group in zip(side, groups, strict=True)}
    return keyed if len(keyed) == len(groups) else None
