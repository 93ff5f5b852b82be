"""What the analysis of scaling found, in words."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from lstm_trt.analysis.scaling import POINTS, Findings, Inversion, lines
from lstm_trt.times import Times

AXIS_NAMES = {"layers": "Layers", "hidden": "Hidden size", "sequence": "Sequence length", "batch": "Batch size"}
A_UNIT = {"layers": "a layer", "hidden": "a unit", "sequence": "a step", "batch": "a sample"}
#: A line is called linear above this.
LINEAR_R2 = 0.99
INVERSIONS_TOLD = 10


def words(findings: Findings) -> str:
    """The answers as lines of text, a block a system."""
    told = [_source(findings.times)]
    for system in findings.times.cells:
        told.append("")
        if len(findings.times.systems) > 1:
            told.append(f"{system}:")
        told += [_axis(findings, system, axis) for axis in findings.times.axes]
        if "batch" in findings.times.axes:
            told += [_penalties(findings, system), _batching(findings, system)]
        told += _inversions(findings, system)
    return "\n".join(told)


def _source(times: Times) -> str:
    counts = times.counts
    sizes = {axis: set() for axis in times.axes}
    for cells in times.cells.values():
        for shape in cells:
            for axis, size in zip(times.axes, shape, strict=True):
                sizes[axis].add(size)
    grid = "; ".join(f"{axis} {' '.join(map(str, sorted(values)))}" for axis, values in sizes.items())
    left = [
        _count(count, what) + more
        for count, what, more in (
            (counts.holes, "hole", " in the grid"),
            (counts.blank, "row", " with a blank"),
            (counts.failed, "failure", ""),
        )
        if count
    ]
    lines_told = [f"{times.where}: times of {counts.shapes} shapes ({grid})" + "".join(f", {one}" for one in left)]
    if times.unused:
        lines_told.append(f"columns not used: {', '.join(times.unused)}")
    if counts.duplicates:
        lines_told.append(
            f"{_count(counts.duplicates, 'row')} on top of another of the same shape: the median is taken; where a"
            ' column tells them apart, name it with --rename, as in "GPU=device_name"'
        )
    return "\n".join(lines_told)


def _axis(findings: Findings, system: str, axis: str) -> str:
    name = AXIS_NAMES[axis]
    here = [line for line in findings.linearity if (line.system, line.axis) == (system, axis)]
    if here:
        slopes = sorted(line.slope_us for line in here)
        linear = sum(line.r2 > LINEAR_R2 for line in here)
        between = f", {_number(slopes[0])} to {_number(slopes[-1])}" if len(slopes) > 1 else ""
        told = f"{name}: linear in {linear} of {_count(len(here), 'line')} (R2 > {LINEAR_R2})"
        told += f", {_number(statistics.median(slopes))} us {A_UNIT[axis]}{between}; "
        breaks = Counter(line.breaks_at for line in here if line.breaks_at is not None)
        places = ", ".join(f"at {size} ({count})" for size, count in sorted(breaks.items()))
        told += f"{breaks.total()} break off by more than 10 %, {places}" if breaks else "none breaks off by 10 %"
    else:
        most = max((len(line) for one, other, _, line in lines(findings.times) if (one, other) == (system, axis)))
        told = f"{name}: {_count(most, 'value')} at most on a line, {POINTS} are needed to ask for linearity"
    found = [pair for pair in findings.inversions if (pair.system, pair.axis) == (system, axis)]
    return f"{told}; {_count(len(found), 'inversion')}{_sure(found)}{_where(findings.times, system, axis, found)}"


def _where(times: Times, system: str, axis: str, found: Sequence[Inversion]) -> str:
    """Between which sizes, and where on the other axes, if not everywhere."""
    if not found:
        return ""
    steps = Counter((pair.smaller[axis], pair.larger[axis]) for pair in found)
    told = [f"between {', '.join(f'{one} and {other} ({n})' for (one, other), n in steps.most_common(3))}"]
    if len(steps) > 3:
        told[0] += " and others"
    for place, other in enumerate(times.axes):
        seen = {pair.smaller[other] for pair in found}
        if other != axis and len(found) > 1 and seen < {shape[place] for shape in times.cells[system]}:
            told.append(f"only at {other} {', '.join(map(str, sorted(seen)))}")
    return ", " + ", ".join(told)


def _penalties(findings: Findings, system: str) -> str:
    found = sorted((one for one in findings.batch1_penalties if one.system == system), key=lambda one: -one.ratio)
    told = f"Batch 1 slower than batch 2: in {len(found) or 'none'}{_sure(found)}"
    told += f" of {_count(_both_batches(findings.times, system), 'network')} that have both"
    return told + (f", the most by {found[0].ratio:.2f} at {_shape(found[0].shape)}" if found else "")


def _both_batches(times: Times, system: str) -> int:
    return sum({1, 2} <= line.keys() for one, axis, _, line in lines(times) if (one, axis) == (system, "batch"))


def _batching(findings: Findings, system: str) -> str:
    here = [one for one in findings.batching if one.system == system]
    if not here:
        return "Batching: no network has two batch sizes"
    free = Counter(one.free_up_to for one in here if one.stops_at is not None)
    never = sum(one.stops_at is None for one in here)
    places = [f"{size} ({count})" for size, count in sorted(free.items())]
    told = "Batching: almost free, under 10 % a doubling,"
    told += f" up to batch {', '.join(places)}" if places else ""
    told += f"{' and' if places else ''} to the largest measured ({never})" if never else ""
    best = Counter(one.cheapest for one in here)
    told += f"; least time a sample at batch {', '.join(f'{size} ({count})' for size, count in sorted(best.items()))}"
    largest = sum(one.cheapest_is_largest for one in here)
    return told + (f", in {largest} of {len(here)} the largest measured: a larger one may be better" if largest else "")


def _inversions(findings: Findings, system: str) -> list[str]:
    found = sorted((one for one in findings.inversions if one.system == system), key=lambda one: one.ratio)
    told = [
        f"  {one.ratio:.3f}  {one.axis} {one.smaller[one.axis]} -> {one.larger[one.axis]} at "
        + _shape({axis: size for axis, size in one.smaller.items() if axis != one.axis})
        + {True: "  certain", False: "  not certain", None: ""}[one.certain]
        for one in found[:INVERSIONS_TOLD]
    ]
    if len(found) > INVERSIONS_TOLD:
        told.append(f"  and {len(found) - INVERSIONS_TOLD} more: --format json has them all")
    return ["The larger is faster, larger / smaller:", *told] if told else []


def _sure(found: Sequence) -> str:
    if not found or found[0].certain is None:
        return ""
    return f" ({sum(one.certain for one in found)} certain)"


def _shape(shape: dict[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in shape.items()) or "that"


def _count(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
