"""The scaling analysis as text: the answer in a sentence, and for each system a table of growth, of
batching, and of larger networks that are faster. No code parses it."""

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from lstm_judge.read.numbers import table
from lstm_judge.scaling.scaling import (
    DEPARTURE,
    POINTS,
    Findings,
    Inversion,
    Line,
    ScalingAnswers,
)
from lstm_judge.scaling.times import Times
from lstm_judge.statistics.quantiles import ROUNDS
from lstm_trt.config.format import count, listed, number, percent
from lstm_trt.config.shape import FIELDS

#: Most rows of larger networks that are faster; the others are counted.
MOST_STEPS = 10

#: Columns of the table of growth, and of that of larger networks that are faster.
GROWTH = ("", "linear", "power of the size", "off a line", "slope in us", "breaks")
FASTER = ("Larger is faster", "pairs", "significant", "lowest ratio", "at")

LEGEND = (
    "a series: networks that differ in one size only; of several: median (lowest to highest)",
    "linear: series whose power may be 1; off a line: at most, from a straight line of all sizes",
    "breaks: series more than 10 % off the line through the smaller sizes;"
    f" tested against noise if every size has {ROUNDS} rounds",
)


def headline(answers: ScalingAnswers) -> str:
    """The answer in one line."""
    return "; ".join(sentences(answers.findings, answers.findings.times.axes))


def sentences(findings: Findings, axes: Sequence[str]) -> list[str]:
    """For each system with which powers of these sizes time grows, and whether a larger network is
    faster; of the batch alone first what batching costs."""
    lines = []
    for system in findings.times.systems:
        series = [_series(findings, system, axis) for axis in axes]
        powers = ", and ".join(growth_text(each) for each in series if each)
        parts = _batching(findings, system) if axes == ("batch",) else []
        if powers:
            parts.append(f"time {powers}")
        else:
            parts.append(f"growth not fitted: needs at least {POINTS} sizes")
        parts.append(_larger(findings, system, axes))
        lines.append(f"{system}: {'; '.join(parts)}")
    return lines


def _larger(findings: Findings, system: str, axes: Sequence[str]) -> str:
    """Whether a network is faster than its smaller neighbour."""
    pairs = [pair for pair in findings.inversions if pair.system == system and pair.axis in axes]
    faster = "faster"
    if findings.min_ratio > 1:
        faster += f" by a factor of {findings.min_ratio:g}"
    if not pairs:
        return f"no larger network is {faster}"
    certain = listed(dict.fromkeys(pair.step for pair in pairs if pair.certain), 3)
    return f"the larger network is {faster} in {count(len(pairs), 'pair')}, certain: {certain}"


def legend(_: ScalingAnswers) -> Sequence[str]:
    """What the columns mean."""
    return LEGEND


def cells(answers: ScalingAnswers) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table: the growth of each system along each size."""
    findings = answers.findings
    rows = []
    for system in findings.times.systems:
        for axis in findings.times.axes:
            if _series(findings, system, axis):
                rows.append([system, *_growth(findings, system, axis)])
    return ["system", "size", *GROWTH[1:]], rows


def text(answers: ScalingAnswers) -> str:
    """The source, then for each system: growth along each size that has neighbours, batching, and
    larger networks that are faster."""
    findings = answers.findings
    lines = _source(findings.times)
    axes = [axis for axis in findings.times.axes if findings.pairs[axis]]
    for system in findings.times.cells:
        lines.append("")
        if len(findings.times.systems) > 1:
            lines.append(f"{system}:")
        lines += [
            table(GROWTH, [_growth(findings, system, axis) for axis in axes]),
            *_batching(findings, system),
            *_faster([pair for pair in findings.inversions if pair.system == system]),
        ]
    return "\n".join(lines)


def _source(times: Times) -> list[str]:
    counts = times.counts
    grid = []
    shapes = itertools.chain(*times.cells.values())
    for axis, sizes in zip(times.axes, zip(*shapes, strict=True), strict=True):
        grid.append(f"{axis} {' '.join(map(str, sorted(set(sizes))))}")
    facts = [
        (
            f"{times.where}: times of {count(counts.shapes, 'shape')}"
            f" ({'; '.join(grid)}){times.mode_text}"
        )
    ]
    if counts.holes:
        facts.append(f"{count(counts.holes, 'shape')} of the grid missing")
    if counts.blank:
        facts.append(f"{count(counts.blank, 'row')} with a blank")
    if counts.failed:
        facts.append(count(counts.failed, "failure"))
    lines = [", ".join(facts), *LEGEND]
    if times.unused:
        lines.append(f"columns not used: {', '.join(times.unused)}")
    if counts.duplicates:
        lines.append(
            f"{count(counts.duplicates, 'row')} of a shape that occurs before: the median is used;"
            " if a column distinguishes them, name it with --rename, for example"
            ' "GPU=device_name"'
        )
    return lines


def _growth(findings: Findings, system: str, axis: str) -> list[str]:
    """The row of an axis; free text if no series has enough sizes."""
    heading = FIELDS[axis].heading.capitalize()
    series = _series(findings, system, axis)
    if not series:
        return [heading, f"not fitted: needs at least {POINTS} sizes"]
    sizes = Counter(line.breaks_at for line in series if line.breaks_at is not None)
    breaks = ", ".join(f"{times} at {size}" for size, times in sorted(sizes.items()))
    if untested := sum(line.untested_break for line in series):
        breaks += f" ({untested} not tested)"
    return [
        heading,
        f"{_linear(series)} of {len(series)}",
        _powers(series),
        _most_off(series),
        f"{_spread([line.slope_us for line in series])} per {FIELDS[axis].unit}",
        breaks or "none",
    ]


def _series(findings: Findings, system: str, axis: str) -> list[Line]:
    return [line for line in findings.linearity if (line.system, line.axis) == (system, axis)]


def growth_text(series: Sequence[Line]) -> str:
    """With which power of its size the time of these series grows, and whether straight lines fit;
    for sentences and figures."""
    text = f"grows as {series[0].axis}^{_powers(series)}"
    if max(line.departure for line in series) > DEPARTURE:
        return text
    return f"{text}, straight within {_most_off(series)}"


def _linear(series: Sequence[Line]) -> int:
    """Number of series whose power may be 1."""
    return sum(line.exponent_low <= 1 <= line.exponent_high for line in series)


def _powers(series: Sequence[Line]) -> str:
    return _spread([line.exponent for line in series], "{:z.2f}".format)


def _most_off(series: Sequence[Line]) -> str:
    return percent(max(line.departure for line in series))


def _spread(values: Sequence[float], shown: Callable[[float], str] = number) -> str:
    """The median, and of different values the lowest and the highest."""
    low, median, high = map(shown, (min(values), statistics.median(values), max(values)))
    return median if low == high else f"{median} ({low} to {high})"


def _batching(findings: Findings, system: str) -> list[str]:
    """Up to which batch it is almost free, at which it is cheapest, and what batch 2 costs."""
    networks = [network for network in findings.batching if network.system == system]
    if not networks:
        return []
    free = listed(sorted({network.free_up_to for network in networks}), comma=" or ")
    cheapest = listed(sorted({network.cheapest for network in networks}), comma=" or ")
    lines = [
        f"almost free (doubling costs less than 10 %) up to batch {free}",
        f"least time per sample at batch {cheapest}",
    ]
    if largest := sum(network.cheapest_is_largest for network in networks):
        lines[-1] += f" (the largest measured of {count(largest, 'network')})"
    both = [network.times_us for network in networks if {1, 2} <= network.times_us.keys()]
    if ratios := [times_us[2] / times_us[1] for times_us in both]:
        lines.append(f"batch 2 takes {_spread(ratios)} times as long as batch 1")
    return lines


def _faster(inversions: Sequence[Inversion]) -> list[str]:
    """Pairs of neighbours of which the larger network is faster, a row for each two sizes."""
    steps: dict[str, list[Inversion]] = {}
    for pair in sorted(inversions, key=lambda pair: pair.ratio):
        steps.setdefault(pair.step, []).append(pair)
    if not steps:
        return []
    rows = []
    for step, pairs in steps.items():
        lowest = pairs[0]
        rest = [f"{axis} {size}" for axis, size in lowest.smaller.items() if axis != lowest.axis]
        certain = [pair for pair in pairs if pair.certain]
        significant = "-" if lowest.certain is None else str(len(certain))
        rows.append([step, str(len(pairs)), significant, f"{lowest.ratio:.3f}", ", ".join(rest)])
    lines = ["", table(FASTER, rows[:MOST_STEPS])]
    if len(rows) > MOST_STEPS:
        lines.append(f"and {len(rows) - MOST_STEPS} more; --format json lists all")
    doubts = Counter(doubt for pair in inversions for doubt in pair.uncertain_because or ())
    if doubts:
        reasons = [f"{doubt} ({count(pairs, 'pair')})" for doubt, pairs in doubts.most_common()]
        lines.append(f"not significant because of: {', '.join(reasons)}")
    return lines
