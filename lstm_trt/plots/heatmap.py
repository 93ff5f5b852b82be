"""Heat maps of a sweep: one cell with a latency per configuration, one panel per system and further size.

Cells show a statistic of the measured latencies, or its proven upper bound. With a deadline the colour is the margin
to it. Failures are hatched cells that name the stage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import SubFigure
from matplotlib.patches import Patch, Rectangle

from lstm_trt.analysis.deadline import Question, evidence_percentile, judge
from lstm_trt.analysis.outcomes import Outcome
from lstm_trt.analysis.quantiles import DEFAULT_CONFIDENCE, interval_ranks, share_of
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import short_number
from lstm_trt.plots import points as data
from lstm_trt.plots import style
from lstm_trt.plots.points import AXIS_NAMES, Point
from lstm_trt.plots.style import Picture, number, whole

#: The `value` that shows the proven upper bound instead of a measured statistic.
BOUND = "bound_us"

CELL_WIDTH_IN, CELL_HEIGHT_IN = 0.46, 0.32

MOST_PANELS = 12

#: Panels side by side if their cells are too narrow for numbers.
DENSE_COLUMNS = 2

#: Longest colour bar.
BAR_IN = 6.0

#: Width of all panels side by side, without colour bar and labels.
PANELS_IN = style.WIDTH_IN - 1.45

#: From this latency in µs on, cells are written in thousands.
THOUSANDS_FROM = 9_995

EMPTY = "0.93"

HATCH = "////"

#: Different from that of a failure.
HATCH_EVIDENCE = "..."


@dataclass(frozen=True)
class HeatCell:
    """What one cell shows: a latency for the colour, and its text; bold if it misses the deadline."""

    value_us: float
    text: str
    bold: bool = False
    hatch: str | None = None


#: Points with their cells; None if nothing was timed.
Cells = list[tuple[Point, HeatCell | None]]


def heat_map(
    runs: Any,
    x: str = "hidden",
    y: str = "sequence",
    *,
    value: str = "max_us",
    deadline_us: float | None = None,
    percentile: str | float | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    fixed: dict[str, int] | None = None,
    facets: Sequence[str] = ("layers", "batch"),
) -> Picture:
    """One cell per configuration with its latency in µs, one panel per system and value of `facets`.

    `runs` is the result of `load`, or a path, recordings or groups, `value` one of `STATISTIC_NAMES` or "bound_us".
    With a deadline the colour is the margin, log2(deadline / value), and cells above the deadline are bold; without, it
    is the latency on a log scale. Failures are hatched and name the stage, configurations that were not measured are
    grey. If `facets` give more than 12 panels, the last of them is held fixed.

    "bound_us" needs a deadline. It is the exact one-sided upper bound of the percentile at `confidence` and the
    effective sample size, an order statistic. If it lies beyond the maximum of the trials, the maximum is written after
    a ">". Verdicts are those of `lab.verdict`: MISSED is bold, NOT ENOUGH EVIDENCE dotted. Without `percentile`, each
    cell uses the highest of p99, p99.9, p99.99 and p99.999 that its number of trials can prove. Raises `UsageError` for
    an unknown axis or value.
    """
    data.check_deadline(deadline_us)
    if value != BOUND:
        data.check_statistic(value)
    if value == BOUND and deadline_us is None:
        raise UsageError(f"{BOUND} needs a deadline")
    if x == y:
        raise UsageError("x and y must differ")
    points = data.points_of(runs)
    for axis in (x, y):
        data.values(points, axis)  # raises for an unknown axis
    points, facets = _choose(points, (x, y), facets, fixed)
    if deadline_us is not None and value == BOUND:
        cells, title, reading, marks, summary = _proven(points, deadline_us, percentile, confidence)
        name = "bound"
    else:
        cells, title, reading, marks, summary = _measured(points, (x, y), value, deadline_us)
        name = f"{data.STATISTIC_NAMES[value]} latency"
    return _draw(cells, (x, y), facets, deadline_us, title, reading, name, marks, summary)


def map_axes(runs: Any) -> tuple[str, str]:
    """Two axes for a map of these runs: the first in a fixed order of preference that vary."""
    points = data.points_of(runs)
    order = ("hidden", "sequence", "batch", "layers", "features", "directions")
    x, y, *_ = sorted(order, key=lambda axis: len(data.values(points, axis)) < 2)
    return x, y


def _choose(
    points: list[Point], axes: tuple[str, str], facets: Sequence[str], fixed: dict[str, int] | None
) -> tuple[list[Point], list[str]]:
    """The points for at most `MOST_PANELS` panels, and the facets that vary among them."""
    facets = [axis for axis in facets if axis not in (*axes, *(fixed or {})) and data.values(points, axis)]
    while facets and len({(point.system, *(point.sizes[axis] for axis in facets)) for point in points}) > MOST_PANELS:
        facets.pop()
    points = data.hold_fixed(points, (*axes, *facets), fixed)
    return points, [axis for axis in facets if len(data.values(points, axis)) > 1]


def _measured(points: Sequence[Point], axes: tuple[str, str], statistic: str, deadline_us: float | None) -> tuple:
    """Cells, title, notes, legend and summary of a map of a statistic."""
    name = data.STATISTIC_NAMES[statistic]
    title = f"{name[0].upper()}{name[1:]} latency by {AXIS_NAMES[axes[0]]} and {AXIS_NAMES[axes[1]]}"
    reading, in_numbers = [], []
    if deadline_us:
        title += f", with a deadline of {number(deadline_us)} µs"
        reading.append("Colour: margin to the deadline.")
        in_numbers.append("Bold: above the deadline.")
    if any(len(point.rounds) > 1 for point in points):
        reading.append(f"Of several rounds the {'largest' if statistic == 'max_us' else 'middle'} value is shown.")
    cells: Cells = []
    for point in points:
        value_us = point.statistic(statistic)
        missed = bool(deadline_us) and value_us > deadline_us
        cells.append((point, HeatCell(value_us, short(value_us), missed) if point.ok else None))
    summary = data.describe_extremes(points, statistic)
    if deadline_us:
        above = sum(cell is not None and cell.bold for _, cell in cells)
        summary += f" {above} of {len(cells)} configurations are above the deadline."
    return cells, title, (reading, in_numbers), [], summary


def _proven(points: Sequence[Point], deadline_us: float, percentile, confidence: float) -> tuple:
    """Cells, title, notes, legend and summary of a map of upper bounds."""
    cells: Cells = []
    lengths: dict[str, set[int]] = {}
    beyond, verdicts = False, Counter()
    for point in points:
        if not point.ok:
            cells.append((point, None))
            continue
        ordered_us = np.sort(np.concatenate([each.latency_us for each in point.rounds]))
        n = len(ordered_us)
        chosen = percentile if percentile is not None else evidence_percentile(n, confidence) or "99"
        verdict = judge(point.group.samples, Question(deadline_us, chosen, confidence))
        rank = _bound_rank(n, chosen, confidence, verdict.effective_n / n)
        bound_us = float(ordered_us[-1 if rank is None else rank - 1])
        hatch = HATCH_EVIDENCE if verdict.verdict == Outcome.NOT_ENOUGH_EVIDENCE else None
        text = (">" if rank is None else "") + short(bound_us)
        cells.append((point, HeatCell(bound_us, text, verdict.verdict == Outcome.MISSED, hatch)))
        lengths.setdefault(short_number(float(chosen)), set()).add(n)
        beyond, verdicts = beyond or rank is None, verdicts + Counter([verdict.verdict])
    named = f"p{next(iter(lengths))}" if len(lengths) == 1 else "a high percentile"
    several = [f"p{name} at n = {' or '.join(map(whole, sorted(ns)))}" for name, ns in sorted(lengths.items())]
    title = f"Margin to a deadline of {number(deadline_us)} µs: upper bound of {named}"
    reading = [f"Exact upper bound of {', '.join(several) or named}, at {100 * confidence:g} % confidence."]
    if percentile is None and lengths:
        reading.append("This is the highest of p99, p99.9, p99.99 and p99.999 that this number of trials can prove.")
    in_numbers = ["Cells with >: the bound lies beyond the maximum, which is shown."] if beyond else []
    in_numbers += [f"Bold: {Outcome.MISSED}."] if Outcome.MISSED in verdicts else []
    marks = [Patch(facecolor="white", edgecolor="0.35", hatch=HATCH_EVIDENCE, label=str(Outcome.NOT_ENOUGH_EVIDENCE))]
    summary = f"Verdicts: {', '.join(f'{total} {verdict}' for verdict, total in verdicts.most_common()) or 'none'}."
    return cells, title, (reading, in_numbers), marks if Outcome.NOT_ENOUGH_EVIDENCE in verdicts else [], summary


def _bound_rank(n: int, percentile: str | float, confidence: float, effective_share: float) -> int | None:
    """Rank of the order statistic that is the upper bound of n trials; None if there is none.

    `effective_share` is the effective sample size over n.
    """
    effective_n = max(1, math.floor(n * effective_share + 1e-9))
    # The upper end of a two-sided interval at 2c - 1 is the one-sided bound at c, which the verdict uses.
    rank = interval_ranks(effective_n, share_of(percentile), 2 * confidence - 1)[1]
    return None if rank is None else n - math.floor((effective_n - rank) / effective_share + 1e-9)


def short(value_us: float) -> str:
    """A latency as text that fits a cell: 84.1, 1 570, 12.3k, 123k."""
    if value_us < THOUSANDS_FROM:
        return number(value_us)
    return f"{value_us / 1000:.{1 if value_us < 99_950 else 0}f}k"


def _draw(
    cells: Cells,
    axes: tuple[str, str],
    facets: Sequence[str],
    deadline_us: float | None,
    title: str,
    reading: tuple[list[str], list[str]],
    name: str,
    marks: Sequence[Patch],
    summary: str,
) -> Picture:
    """Draw the panels.

    `reading` are notes, and those that are needed only if the cells have numbers. `name` describes the value; `marks`
    are legend entries beside those of failures and gaps.
    """
    points = [point for point, _ in cells]
    sizes = data.values(points, axes[0]), data.values(points, axes[1])
    fit = int(PANELS_IN / max(len(sizes[0]) * CELL_WIDTH_IN + 0.12, 1.85))
    parts, columns = _arrange(cells, facets, fit or DENSE_COLUMNS)
    rows = math.ceil(len(parts) / columns)
    cell_in = (PANELS_IN / columns - 0.12) / len(sizes[0]), style.cell_height_in(CELL_HEIGHT_IN, len(sizes[1]), rows)
    numbers = style.cells_fit([cell.text for _, cell in cells if cell], cell_in)
    failed = ["\n".join(_lines(point, cell, True, True)) for point, cell in cells if point.failed]
    stages = style.cells_fit(failed, cell_in)
    fit_characters = int((PANELS_IN / columns - 0.12) / 0.078)
    titles = [style.folded(text, fit_characters) for text, _ in parts]
    head_in = 0.2 + 0.16 * max(text.count("\n") for text in titles)
    thousands = any(cell and cell.value_us >= THOUSANDS_FROM for _, cell in cells)
    in_numbers = [*reading[1], f"Values in µs{' (k: thousands)' if thousands else ''}."]
    with style.figure(
        title,
        [
            f"{data.describe_counts(points)}. {data.describe_fixed(points, (*axes, *facets))}",
            data.describe_systems(points),
            " ".join(reading[0] + (in_numbers if numbers else [])),
        ],
        max(rows * (max(len(sizes[1]) * cell_in[1], 1.05) + head_in + 0.15) + 0.6, 2.9),
        summary=summary,
    ) as (picture, body):
        grid = style.panels(body, len(parts), columns)
        timed_us = [cell.value_us for _, cell in cells if cell]
        colors = _colors(timed_us, deadline_us)
        for ax, (_, part), text in zip(grid, parts, titles, strict=True):
            ax.set_title(text, loc="left")
            _panel(ax, part, axes, sizes, colors, cell_in, (numbers, stages))
        style.name_axes(grid, *(AXIS_NAMES[axis] for axis in axes))
        if timed_us:
            _color_bar(body, grid, colors, timed_us, name, deadline_us)
        holes = len(cells) < len(parts) * len(sizes[0]) * len(sizes[1])
        handles = [Patch(facecolor=EMPTY, edgecolor="white", label="not measured")] if holes else []
        if any(point.failed for point in points):
            label = "failed at the named stage" if stages else "failed"
            handles.append(Patch(facecolor="white", edgecolor="0.55", hatch=HATCH, label=label))
        handles += marks
        if handles:
            style.legend_below(body, handles, ncols=3)
    return picture


def _arrange(cells: Cells, facets: Sequence[str], fit: int) -> tuple[list[tuple[str, Cells]], int]:
    """Panels as (title, cells) in reading order, and the number of columns.

    With two or more dimensions the last one runs across, so that panels in a column can be compared, and panels without
    cells stay empty. If that needs more than `fit` columns, the panels fill the rows one after the other.
    """
    points = [point for point, _ in cells]
    by_system = len(data.systems(points)) > 1 or not facets
    groups: dict[tuple, Cells] = {}
    for point, cell in cells:
        key = ((point.system,) if by_system else ()) + tuple(point.sizes[axis] for axis in facets)
        groups.setdefault(key, []).append((point, cell))
    across = data.values(points, facets[-1]) if by_system + len(facets) > 1 else []
    order, columns = sorted(groups), max(1, min(len(groups), fit))
    if 0 < len(across) <= fit:
        order = [(*key, size) for key in dict.fromkeys(key[:-1] for key in order) for size in across]
        columns = len(across)
    parts = []
    for key in order:
        sizes = [data.axis_value(axis, size) for axis, size in zip(facets, key[by_system:], strict=True)]
        title = ", ".join([*map(str, key[:1] if len(data.systems(points)) > 1 else ()), *sizes])
        parts.append((title, groups.get(key, [])))
    return parts, columns


def _colors(timed_us: Sequence[float], deadline_us: float | None) -> ScalarMappable:
    """Colours of latencies in µs, by the margin to the deadline up to a factor of 16, or by the latency itself."""
    low, high = min(timed_us, default=1.0), max(timed_us, default=1.0)
    if deadline_us:
        reach = 2 ** min(4, max(1, math.ceil(math.log2(max(deadline_us / low, high / deadline_us)))))
        return ScalarMappable(LogNorm(deadline_us / reach, deadline_us * reach), "RdBu_r")
    return ScalarMappable(LogNorm(low, max(high, low * 1.1)), "viridis_r")


def _color_bar(
    body: SubFigure,
    axes: list[Axes],
    colors: ScalarMappable,
    timed_us: Sequence[float],
    name: str,
    deadline_us: float | None,
) -> None:
    low, high = colors.get_clim()
    extend = "neither" if low <= min(timed_us) and max(timed_us) <= high else "both"
    height_in = body.bbox.height / body.figure.dpi
    bar = body.colorbar(colors, ax=axes, shrink=min(0.9, BAR_IN / height_in), pad=0.02, aspect=25, extend=extend)
    bar.outline.set_visible(False)
    if deadline_us:
        bar.ax.invert_yaxis()
        reach = round(math.log2(high / deadline_us))
        labels = {2.0**-power: f"{2**power}×" if power > 0 else f"1/{2**-power}" for power in range(-reach, reach + 1)}
        labels[1.0] = "1"
        bar.set_ticks([deadline_us * ratio for ratio in labels], labels=list(labels.values()))
        bar.set_ticks([], minor=True)
        bar.set_label(f"deadline / {name}\nmissed  ←  →  met")  # on two lines, since low maps have a short bar
    else:
        style.log_ticks(bar.ax.yaxis, low, high)
        bar.set_label(f"{name} [µs] (log)")


def _panel(
    ax: Axes,
    part: Cells,
    axes: tuple[str, str],
    sizes: tuple[list[int], list[int]],
    colors: ScalarMappable,
    cell_in: tuple[float, float],
    texts: tuple[bool, bool],
) -> None:
    """Draw one panel; `texts` are whether cells have numbers, and the stages of failures."""
    found = {(point.sizes[axes[0]], point.sizes[axes[1]]): (point, cell) for point, cell in part}
    xs, ys = sizes
    ax.set_xlim(0, len(xs))
    ax.set_ylim(0, len(ys))
    for i, column in enumerate(xs):
        for j, row in enumerate(ys):
            point, cell = found.get((column, row), (None, None))
            lines = _lines(point, cell, *texts) if point else []
            _draw_cell(ax, i, j, point, cell, colors, lines, style.edge_width(1.2, cell_in))
    style.size_ticks(ax.xaxis, xs, [i + 0.5 for i in range(len(xs))])
    style.size_ticks(ax.yaxis, ys, [j + 0.5 for j in range(len(ys))])
    ax.grid(False)
    ax.tick_params(length=0, pad=2)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _lines(point: Point, cell: HeatCell | None, number: bool, stage: bool) -> list[str]:
    """The text of a cell: its number, and the stage of a failure."""
    return ([cell.text] if cell and number else []) + (point.stages[:1] if point.failed and stage else [])


def _draw_cell(
    ax: Axes,
    i: int,
    j: int,
    point: Point | None,
    cell: HeatCell | None,
    colors: ScalarMappable,
    lines: Sequence[str],
    edge: float,
) -> None:
    look = {"facecolor": EMPTY, "edgecolor": "white", "linewidth": edge}
    ink = {"color": "0.1", "ha": "center", "va": "center", "size": 8, "linespacing": 0.95}
    if cell is not None:
        color = colors.to_rgba(np.array(cell.value_us))
        light = np.dot(color[:3], (0.2126, 0.7152, 0.0722))
        look |= {"facecolor": color}
        ink |= {"color": "black" if light > 0.42 else "white", "weight": "bold" if cell.bold else "normal"}
    failed = point is not None and point.failed
    hatch = HATCH if failed else cell.hatch if cell else None
    if hatch:
        look |= {"hatch": hatch, "edgecolor": "0.55" if failed else "0.35", "linewidth": 0}
        look |= {} if cell else {"facecolor": "white"}
        ink |= {"bbox": {"facecolor": look["facecolor"], "edgecolor": "none", "pad": 0.6}}
    ax.add_patch(Rectangle((i, j), 1, 1, **look))
    if lines:
        ax.text(i + 0.5, j + 0.5, "\n".join(lines), **ink)
