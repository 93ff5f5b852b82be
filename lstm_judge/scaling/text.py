"""The scaling analysis as text: for each system a table of growth, of batching, and of larger
networks that are faster. No code parses it."""

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from lstm_judge.read.numbers import table
from lstm_judge.scaling.scaling import POINTS, Findings, Inversion, Line, ScalingAnswers
from lstm_judge.scaling.times import Times
from lstm_judge.statistics.quantiles import ROUNDS
from lstm_trt.config.format import count, percent
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


def text(answers: ScalingAnswers) -> str:
    """The source, then for each system: growth, batching, and larger networks that are faster."""
    findings = answers.findings
    lines = _source(findings.times)
    for system in findings.times.cells:
        lines.append("")
        if len(findings.times.systems) > 1:
            lines.append(f"{system}:")
        lines.append(
            table(GROWTH, [_growth(findings, system, axis) for axis in findings.times.axes])
        )
        lines += _batching(findings, system)
        lines += _faster([pair for pair in findings.inversions if pair.system == system])
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
    series = [line for line in findings.linearity if (line.system, line.axis) == (system, axis)]
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
        f"{_spread([line.slope_us for line in series], _slope)} per {FIELDS[axis].unit}",
        breaks or "none",
    ]


def growth_text(series: Sequence[Line]) -> str:
    """Whether time may grow linearly, with which powers, and off straight lines; for figures."""
    linear = _linear(series)
    words = ["may be linear" if linear else "not linear"]
    if 0 < linear < len(series):
        words.append(f"in {linear} of {len(series)} series")
    return (
        f"{' '.join(words)}: power {_powers(series)} of the size;"
        f" at most {_most_off(series)} off a straight line"
    )


def _linear(series: Sequence[Line]) -> int:
    """Number of series whose power may be 1."""
    return sum(line.exponent_low <= 1 <= line.exponent_high for line in series)


def _powers(series: Sequence[Line]) -> str:
    return _spread([line.exponent for line in series], "{:z.2f}".format)


def _most_off(series: Sequence[Line]) -> str:
    return percent(max(line.departure for line in series))


def _spread(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """The median, and of several values the lowest and the highest."""
    text = shown(statistics.median(values))
    if len(values) > 1:
        text += f" ({shown(min(values))} to {shown(max(values))})"
    return text


def _slope(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _batching(findings: Findings, system: str) -> list[str]:
    """Networks by the batch up to which batching is almost free, and by the cheapest batch."""
    here = [batching for batching in findings.batching if batching.system == system]
    if not here:
        return []
    sizes = sorted({size for batching in here for size in batching.times_us})
    free = Counter(batching.free_up_to for batching in here)
    cheapest = Counter(batching.cheapest for batching in here)
    rows = [
        ["doubling it costs less than 10 % up to", *(str(free[size]) for size in sizes)],
        ["least time per sample", *(str(cheapest[size]) for size in sizes)],
    ]
    lines = ["", table([f"Batch of {count(len(here), 'network')}", *map(str, sizes)], rows)]
    if largest := sum(batching.cheapest_is_largest for batching in here):
        lines.append(
            f"in {count(largest, 'network')} the least time per sample is at the largest"
            " batch measured, and a larger one may be better"
        )
    measured = sum({1, 2} <= batching.times_us.keys() for batching in here)
    slower = sum(penalty.system == system for penalty in findings.batch1_penalties)
    if measured:
        lines.append(
            f"batch 1 slower than batch 2: {slower or 'none'} of"
            f" {count(measured, 'network')} measured at both"
        )
    return lines


def _faster(inversions: Sequence[Inversion]) -> list[str]:
    """Pairs of neighbours of which the larger network is faster, a row for each two sizes."""
    steps: dict[str, list[Inversion]] = {}
    for pair in sorted(inversions, key=lambda pair: pair.ratio):
        step = f"{pair.axis} {pair.smaller[pair.axis]} -> {pair.larger[pair.axis]}"
        steps.setdefault(step, []).append(pair)
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
