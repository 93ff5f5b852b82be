"""How the facts of several recordings become one: of the parts of a long one, or of rounds.

Each function takes the facts in the order of the recordings; one that a recording lacks is None.
"""

from collections.abc import Sequence
from typing import Any


def first(values: Sequence[Any]) -> Any:
    """What is built and checked once is that of the first."""
    return values[0]


def first_known(values: Sequence[Any]) -> Any:
    """The first that is not None."""
    return next((value for value in values if value is not None), None)


def last(values: Sequence[Any]) -> Any:
    return values[-1]


def total(values: Sequence[Any]) -> Any:
    """Their sum; None unless all are known."""
    return None if None in values else sum(values)


def largest(values: Sequence[Any]) -> Any:
    """The largest; None unless all are known."""
    return None if None in values else max(values)


def number_of_false(values: Sequence[Any]) -> int | None:
    """How many are False; None if none is known."""
    known = [value for value in values if value is not None]
    return known.count(False) if known else None


def blocks(parts: Sequence[list[dict]]) -> list[dict]:
    """The blocks of all parts; their rows are numbered consecutively."""
    found = []
    first_row = 0
    for of_part in parts:
        found += [{**block, "first_row": first_row + block["first_row"]} for block in of_part]
        first_row += sum(block["rows"] for block in of_part)
    return found


def _sums(parts: Sequence[dict], *names: str) -> dict:
    return {name: sum(part[name] for part in parts) for name in names}


def self_check(parts: Sequence[dict]) -> dict:
    """Sums of durations, the mean share, and the largest difference of the clocks."""
    sums = _sums(parts, "loop_ns", "loop_raw_ns")
    between: list[Any] = [part.get("between_calls") for part in parts]
    outside_ns = sum(check["outside_share"] * check["loop_ns"] for check in parts)
    return {
        **sums,
        "between_calls": None if None in between else _sums(between, *between[0]),
        "clocks_differ_by": max((check["clocks_differ_by"] for check in parts), key=abs),
        "outside_share": outside_ns / sums["loop_ns"],
    }


def others(parts: Sequence[dict | None]) -> dict | None:
    """The CPU time of others; None if it is not known for all parts."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    sums = _sums(known, "pinned_cores_ns", "all_cores_ns")
    return {**sums, "alone": all(part["alone"] for part in known)}


def loads(parts: Sequence[list[dict]]) -> list[dict]:
    """What each load did during all parts."""
    sums = ("cpu_ns", "io_bytes", "wall_ns")
    return [{**same[0], **_sums(same, *sums)} for same in zip(*parts, strict=True)]


def seconds(parts: Sequence[dict]) -> dict:
    return {**parts[0], **_sums(parts, "timing", "inside_trials", "control")}
