"""The scaling analysis as text. No code parses it."""

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence

from lstm_judge.read.numbers import multiple
from lstm_judge.scaling.scaling import POINTS, Findings, Inversion, Line, ScalingAnswers
from lstm_judge.scaling.times import Times
from lstm_judge.statistics.quantiles import ROUNDS
from lstm_trt.config.format import count, percent
from lstm_trt.config.shape import FIELDS

#: Maximum number of inversions that are printed; the others are counted.
MOST_INVERSIONS = 10


def text(answers: ScalingAnswers) -> str:
    """The source, then for each system: each axis, batching, and larger networks that are faster."""
    findings = answers.findings
    lines = [_source(findings.times)]
    for system in findings.times.cells:
        lines.append("")
        if len(findings.times.systems) > 1:
            lines.append(f"{system}:")
        lines += [_axis(findings, system, axis) for axis in findings.times.axes]
        if "batch" in findings.times.axes:
            lines += [_penalties(findings, system), _batching(findings, system)]
        lines += _inversions(findings, system)
    return "\n".join(lines)


def _source(times: Times) -> str:
    counts = times.counts
    sizes = zip(*itertools.chain(*times.cells.values()), strict=True)
    columns = zip(times.axes, sizes, strict=True)
    grid = "; ".join(
        f"{axis} {' '.join(map(str, sorted(set(column))))}" for axis, column in columns
    )
    text = f"{times.where}: times of {count(counts.shapes, 'shape')} ({grid}){times.mode_text}"
    for number_left, noun, more in (
        (counts.holes, "shape", " of the grid missing"),
        (counts.blank, "row", " with a blank"),
        (counts.failed, "failure", ""),
    ):
        text += f", {count(number_left, noun)}{more}" if number_left else ""
    lines = [
        text,
        "a series: networks that differ in one size only; slopes: median (lowest to highest)",
    ]
    if times.unused:
        lines.append(f"columns not used: {', '.join(times.unused)}")
    if counts.duplicates:
        pooled = (
            f"{count(counts.duplicates, 'row')} of a shape that occurs before: the median is used"
        )
        remedy = 'name it with --rename, for example "GPU=device_name"'
        lines.append(f"{pooled}; if a column distinguishes them, {remedy}")
    return "\n".join(lines)


def _axis(findings: Findings, system: str, axis: str) -> str:
    series = [line for line in findings.linearity if (line.system, line.axis) == (system, axis)]
    inversions = [
        pair for pair in findings.inversions if (pair.system, pair.axis) == (system, axis)
    ]
    if series:
        slopes = sorted(line.slope_us for line in series)
        between = f" ({_slope(slopes[0])} to {_slope(slopes[-1])})" if len(slopes) > 1 else ""
        text = f"{growth_text(series)}; {'median slope' if between else 'slope'}"
        text += f" {_slope(statistics.median(slopes))} us per {FIELDS[axis].unit}{between}; "
        breaks = Counter(line.breaks_at for line in series if line.breaks_at is not None)
        places = ", ".join(f"{times} at {axis} {size}" for size, times in sorted(breaks.items()))
        leave = "leave" if breaks.total() > 1 else "leaves"
        text += f"{breaks.total() or 'no'} series {leave} the line through the smaller sizes by more than 10 %"
        if untested := sum(line.untested_break for line in series):
            places += f"; {untested} not tested against noise, which takes {ROUNDS} processes"
        text += f" ({places})" if breaks else ""
    else:
        longest = max(map(len, findings.lines(system, axis)), default=0)
        text = f"growth not fitted: needs at least {POINTS} sizes, has {longest}"
    text += (
        f"; larger is faster in {count(len(inversions), 'pair')}{_significant(inversions)}"
        if inversions
        else ""
    )
    return f"{FIELDS[axis].heading.capitalize()}: {text}{_places(findings.times, system, axis, inversions)}"


def growth_text(series: Sequence[Line]) -> str:
    """Whether time may grow linearly (1 is in the interval of the power), with which powers, and
    off straight lines."""
    powers = sorted(line.exponent for line in series)
    linear = sum(line.exponent_low <= 1 <= line.exponent_high for line in series)
    text = "may be linear" if linear else "not linear"
    text += f" in {linear} of {len(series)} series" if 0 < linear < len(series) else ""
    text += f": power {statistics.median(powers):.2f} of the size"
    text += (
        f" ({powers[0]:.2f} to {powers[-1]:.2f} in {len(series)} series)" if len(series) > 1 else ""
    )
    return f"{text}; at most {percent(max(line.departure for line in series))} off a straight line"


def _places(times: Times, system: str, axis: str, inversions: Sequence[Inversion]) -> str:
    """The sizes between which a larger network is faster, and the sizes on the other axes if not
    all."""
    if not inversions:
        return ""
    steps = Counter((pair.smaller[axis], pair.larger[axis]) for pair in inversions)
    texts = [
        f"between {', '.join(f'{small} and {large} ({n})' for (small, large), n in steps.most_common(3))}"
    ]
    texts[0] += " and others" if len(steps) > 3 else ""
    for place, other in enumerate(times.axes):
        sizes = {pair.smaller[other] for pair in inversions}
        if (
            other != axis
            and len(inversions) > 1
            and sizes < {shape[place] for shape in times.cells[system]}
        ):
            texts.append(f"only at {other} {', '.join(map(str, sorted(sizes)))}")
    return ", " + ", ".join(texts)


def _penalties(findings: Findings, system: str) -> str:
    found = sorted(
        (pair for pair in findings.batch1_penalties if pair.system == system),
        key=lambda pair: -pair.ratio,
    )
    measured = sum({1, 2} <= line.keys() for line in findings.lines(system, "batch"))
    if not measured:
        return "Batch 1 slower than batch 2: not tested, no network was measured at both"
    text = f"Batch 1 slower than batch 2: in {len(found) or 'none'}{_significant(found)}"
    text += f" of {count(measured, 'network')} measured at both"
    return text + (
        f", by at most {multiple(found[0].ratio)} at {_shape(found[0].shape)}" if found else ""
    )


def _batching(findings: Findings, system: str) -> str:
    here = [batching for batching in findings.batching if batching.system == system]
    if not here:
        return "Batching: no network was measured at two batch sizes"
    stopped = [batching for batching in here if batching.stops_at is not None]
    nowhere = sum(batching.free_up_to == batching.smallest for batching in stopped)
    free = Counter(
        batching.free_up_to for batching in stopped if batching.free_up_to != batching.smallest
    )
    never = sum(batching.stops_at is None for batching in here)
    places = [f"at no batch size ({count(nowhere, 'network')})"] if nowhere else []
    places += [
        f"up to batch {size} ({count(times, 'network')})" for size, times in sorted(free.items())
    ]
    places += [f"up to the largest batch measured ({count(never, 'network')})"] if never else []
    best = Counter(batching.cheapest for batching in here)
    cheapest = (f"batch {size} ({count(times, 'network')})" for size, times in sorted(best.items()))
    text = f"Batching: doubling the batch costs less than 10 % {', '.join(places)}"
    text += f"; least time per sample at {', '.join(cheapest)}"
    largest = f"{sum(batching.cheapest_is_largest for batching in here)} of {len(here)} networks"
    better = f"; in {largest} this is the largest batch measured, and a larger one may be better"
    return text + (better if any(batching.cheapest_is_largest for batching in here) else "")


def _inversions(findings: Findings, system: str) -> list[str]:
    found = sorted(
        (pair for pair in findings.inversions if pair.system == system), key=lambda pair: pair.ratio
    )
    lines = []
    for pair in found[:MOST_INVERSIONS]:
        rest = {axis: size for axis, size in pair.smaller.items() if axis != pair.axis}
        text = (
            f"  {pair.ratio:.3f}  {pair.axis} {pair.smaller[pair.axis]} -> {pair.larger[pair.axis]}"
        )
        text += f" at {_shape(rest)}" if rest else ""
        lines.append(
            text + {True: "  significant", False: "  not significant", None: ""}[pair.certain]
        )
    if len(found) > MOST_INVERSIONS:
        lines.append(f"  and {len(found) - MOST_INVERSIONS} more; --format json lists all")
    doubts = Counter(doubt for pair in found for doubt in pair.uncertain_because or ())
    if doubts:
        reasons = ", ".join(
            f"{doubt} ({count(pairs, 'pair')})" for doubt, pairs in doubts.most_common()
        )
        lines.append(f"  not significant because of: {reasons}")
    return (
        ["Larger networks that are faster (ratio of times, larger / smaller):", *lines]
        if lines
        else []
    )


def _significant(pairs: Sequence) -> str:
    if not pairs or pairs[0].certain is None:
        return ""
    return f" ({sum(pair.certain for pair in pairs)} significant)"


def _shape(shape: dict[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in shape.items())


def _slope(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
