"""Heat maps of a sweep: one cell with a latency per configuration, one panel per system and further
size.

Cells show a statistic of the measured latencies, or its proven upper bound. With a deadline the
colour is the margin to it. Failures are hatched cells that name the stage.
"""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch, Rectangle

from lstm_judge.outcomes import Outcome
from lstm_judge.plots import points as data, style
from lstm_judge.plots.points import AXIS_NAMES, Point
from lstm_judge.plots.style import Picture, number, whole
from lstm_judge.read.runs import as_runs
from lstm_judge.statistics.quantiles import DEFAULT_CONFIDENCE, check_confidence
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.verdict import evidence_percentile, judge
from lstm_trt.config.errors import UsageError, one_of
from lstm_trt.config.fields import as_list
from lstm_trt.config.format import short_number

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

#: Axes of a map, in order of preference.
MAP_AXES = ("hidden", "sequence", "batch", "layers", "features", "directions")

EMPTY = "0.93"

HATCH = "////"

#: Different from that of a failure.
HATCH_EVIDENCE = "\\\\\\"


def cells_fit(labels: Iterable[str], cell_in: tuple[float, float]) -> bool:
    """Whether the numbers of a map fit its cells, in bold."""
    sizes = [style.text_size(label, 8, "bold") for label in labels]
    return all(
        width + 2 <= 72 * cell_in[0] and height <= 72 * cell_in[1] for width, height in sizes
    )


def edge_width(width: float, cell_in: tuple[float, float]) -> float:
    """Width in points of the line between cells."""
    return min(width, 72 * 0.04 * min(cell_in))


#: The looks of a cell's area, and of its text, if any.
Looks = tuple[dict, dict]


def draw_cells(
    ax: Axes, xs: Sequence[int], ys: Sequence[int], looks: Mapping[tuple[int, int], Looks], **empty
) -> None:
    """Draw a map with a cell for each pair of sizes (0 if not known); those without `looks` have
    that of `empty`."""
    for (i, x), (j, y) in itertools.product(enumerate(xs), enumerate(ys)):
        area, text = looks.get((x, y), (empty, {}))
        ax.add_patch(Rectangle((i, j), 1, 1, **area))
        if text:
            ax.text(i + 0.5, j + 0.5, **{"ha": "center", "va": "center", "size": 8, **text})
    ax.set(xlim=(0, len(xs)), ylim=(0, len(ys)))
    for axis, sizes in ((ax.xaxis, xs), (ax.yaxis, ys)):
        style.size_ticks(
            axis, sizes, [i + 0.5 for i in range(len(sizes))], [str(size or "") for size in sizes]
        )
    ax.grid(False)


@dataclass(frozen=True)
class HeatCell:
    """What a map shows of a point: a latency for the colour, None if nothing was timed, and its
    text.

    It is bold if it misses the deadline.
    """

    point: Point
    value_us: float | None = None
    text: str = ""
    bold: bool = False
    hatch: str | None = None

    def label(self, number: bool, stage: bool) -> str:
        """The text with its `number`, and the `stage` of a failure."""
        return "\n".join(
            [self.text] * number + self.point.stages[:1] * (self.point.failed and stage)
        ).strip()


Cells = list[HeatCell]


@dataclass(frozen=True)
class Content:
    """What a map shows: its cells, and texts about them.

    `value` describes the number of a cell; `in_numbers` are notes that are needed only where cells
    have numbers.
    """

    title: str
    value: str
    cells: Cells
    reading: list[str]
    in_numbers: list[str]
    summary: str


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
    """One cell per configuration with its latency in µs, one panel per system and value of
    `facets`.

    `runs` is the result of `load`, or a path, recordings or groups, `value` one of
    `STATISTIC_NAMES` or "bound_us". With a deadline the colour is the margin, log2(deadline /
    value), and cells above the deadline are bold; without, it is the latency on a log scale.
    Failures are hatched and name the stage, configurations that were not measured are grey, also
    those that were asked for (`runs.missing`). If `facets` give more than 12 panels, the last of
    them is held fixed; at most four rows of panels are drawn.

    "bound_us" needs a deadline. It is the exact one-sided upper bound of the percentile at
    `confidence` and the effective sample size, an order statistic. If it lies beyond the maximum of
    the trials, the maximum is written after a ">". Verdicts are those of `lab.verdict`: MISSED is
    bold, NOT ENOUGH EVIDENCE hatched. Without `percentile`, each cell uses the highest of p99,
    p99.9, p99.99 and p99.999 that its number of trials can prove. Raises `UsageError` for an
    unknown axis or value.
    """
    data.check_deadline(deadline_us)
    check_confidence(confidence)
    if value != BOUND:
        one_of("statistic", value, data.STATISTIC_NAMES)
    elif deadline_us is None:
        raise UsageError(f"{BOUND} needs a deadline")
    if x == y:
        raise UsageError("x and y must differ")
    runs = as_runs(runs)
    points = data.points_of(runs)
    facets = [
        axis
        for axis in as_list(facets)
        if axis not in (x, y, *(fixed or {})) and data.values(points, axis)
    ]
    while (
        facets
        and len({(point.system, *(point.sizes[axis] for axis in facets)) for point in points})
        > MOST_PANELS
    ):
        facets.pop()
    points = data.hold_fixed(points, (x, y, *facets), fixed)
    facets = [axis for axis in facets if len(data.values(points, axis)) > 1]
    if deadline_us is not None and value == BOUND:
        content = _proven(points, deadline_us, percentile, confidence)
    else:
        content = _measured(points, (x, y), value, deadline_us)
    missing = [known for known in runs.missing.values() if _is_beside(known, points, (x, y))]
    return _draw(content, (x, y), facets, deadline_us, missing)


def _is_beside(known: Mapping[str, Any], points: Sequence[Point], drawn: Collection[str]) -> bool:
    """Whether what is missing has sizes of the points on the axes that are not drawn."""
    others = [axis for axis in AXIS_NAMES if axis in known and axis not in drawn]
    return all(known[axis] in data.values(points, axis) for axis in others)


def map_axes(runs: Any) -> tuple[str, str]:
    """Two axes for a map of these runs: the first in a fixed order of preference that vary."""
    points = data.points_of(runs)
    x, y, *_ = sorted(MAP_AXES, key=lambda axis: len(data.values(points, axis)) < 2)
    return x, y


def _measured(
    points: Sequence[Point], axes: tuple[str, str], statistic: str, deadline_us: float | None
) -> Content:
    """A map of a statistic."""
    name = data.STATISTIC_NAMES[statistic]
    title = f"{name.capitalize()} latency by {AXIS_NAMES[axes[0]]} and {AXIS_NAMES[axes[1]]}"
    title += f", with a deadline of {number(deadline_us)} µs" if deadline_us else ""
    reading = ["Colour: margin to the deadline."] if deadline_us else []
    in_numbers = ["Bold: above the deadline."] if deadline_us else []
    if any(len(point.rounds) > 1 for point in points):
        reading.append(
            f"Of several rounds the {'largest' if statistic == 'max_us' else 'middle'} value is shown."
        )
    cells = []
    for point in points:
        value_us = point.statistic(statistic)
        missed = bool(deadline_us) and value_us > deadline_us
        cells.append(
            HeatCell(point, value_us, short(value_us), missed) if point.ok else HeatCell(point)
        )
    summary = data.describe_extremes(points, statistic)
    if deadline_us:
        summary += f" {sum(cell.bold for cell in cells)} of {len(cells)} configurations are above the deadline."
    return Content(title, f"{name} latency", cells, reading, in_numbers, summary)


def _proven(points: Sequence[Point], deadline_us: float, percentile, confidence: float) -> Content:
    """A map of upper bounds."""
    cells, lengths, verdicts = [], {}, Counter()
    for point in points:
        if not point.ok:
            cells.append(HeatCell(point))
            continue
        n = point.group.n
        chosen = (
            percentile if percentile is not None else evidence_percentile(n, confidence) or "99"
        )
        verdict = judge(
            point.group.rounds, Question(deadline_us, chosen, confidence), point.group.until
        )
        beyond = verdict.bounds.percentile_high_us is None
        bound_us: Any = verdict.max_us if beyond else verdict.bounds.percentile_high_us
        hatch = HATCH_EVIDENCE if verdict.outcome == Outcome.NOT_ENOUGH_EVIDENCE else None
        text = ">" * beyond + short(bound_us)
        cells.append(HeatCell(point, bound_us, text, verdict.outcome == Outcome.MISSED, hatch))
        lengths.setdefault(short_number(float(chosen)), set()).add(n)
        verdicts[verdict.outcome] += 1
    named = f"p{next(iter(lengths))}" if len(lengths) == 1 else "a high percentile"
    several = [
        f"p{name} at n = {' or '.join(map(whole, sorted(ns)))}"
        for name, ns in sorted(lengths.items())
    ]
    reading = [
        f"Exact upper bound of {', '.join(several) or named}, at {100 * confidence:g} % confidence."
    ]
    if percentile is None and lengths:
        reading.append(
            "This is the highest of p99, p99.9, p99.99 and p99.999 that this number of trials can prove."
        )
    beyond = any(cell.text.startswith(">") for cell in cells)
    in_numbers = (
        ["Cells with >: the bound lies beyond the maximum, which is shown."] if beyond else []
    )
    in_numbers += [f"Bold: {Outcome.MISSED}."] if Outcome.MISSED in verdicts else []
    summary = f"Verdicts: {', '.join(f'{total} {verdict}' for verdict, total in verdicts.most_common()) or 'none'}."
    title = f"Margin to a deadline of {number(deadline_us)} µs: upper bound of {named}"
    return Content(title, "bound", cells, reading, in_numbers, summary)


def short(value_us: float) -> str:
    """A latency as text that fits a cell: 84.1, 1 570, 12.3k, 123k."""
    thousands = f"{value_us / 1000:.{1 if value_us < 99_950 else 0}f}k"
    return number(value_us) if value_us < THOUSANDS_FROM else thousands


def _draw(
    content: Content,
    axes: tuple[str, str],
    facets: Sequence[str],
    deadline_us: float | None,
    missing: Sequence[Mapping[str, Any]],
) -> Picture:
    drawn = [cell.point.sizes for cell in content.cells]
    xs, ys = (
        sorted({sizes[axis] for sizes in (*drawn, *missing) if isinstance(sizes.get(axis), int)})
        for axis in axes
    )
    fit = int(PANELS_IN / max(len(xs) * CELL_WIDTH_IN + 0.12, style.PANEL_IN + 0.12))
    every, columns = _arrange(content.cells, facets, fit or DENSE_COLUMNS)
    parts = every[: columns * style.MOST_ROWS]
    cells = [cell for _, part in parts for cell in part]
    points = [cell.point for cell in cells]
    width_in = PANELS_IN / columns - 0.12
    cell_in = width_in / len(xs), max(min(CELL_HEIGHT_IN, 3.0 / len(ys)), style.PANEL_IN / len(ys))
    timed_us = [cell.value_us for cell in cells if cell.value_us is not None]
    numbers = cells_fit([cell.text for cell in cells if cell.text], cell_in)
    stages = cells_fit([cell.label(True, True) for cell in cells if cell.point.failed], cell_in)
    titles = [style.folded(title, int(width_in / 0.078)) for title, _ in parts]
    thousands = any(value_us >= THOUSANDS_FROM for value_us in timed_us)
    in_numbers = (
        [*content.in_numbers, f"Values in µs{' (k: thousands)' if thousands else ''}."]
        if numbers
        else []
    )
    notes = [
        f"{data.describe_counts(points)}. {data.describe_fixed(points, (*axes, *facets))}",
        data.describe_systems(points),
        " ".join(content.reading + in_numbers),
        data.describe_shown("panels", len(parts), len(every)),
    ]
    kinds: Any = (
        (
            "not measured",
            len(cells) < len(parts) * len(xs) * len(ys),
            {"facecolor": EMPTY, "edgecolor": "white"},
        ),
        (
            "failed" + " at the named stage" * stages,
            any(point.failed for point in points),
            {"hatch": HATCH},
        ),
        (
            str(Outcome.NOT_ENOUGH_EVIDENCE),
            any(cell.hatch for cell in cells),
            {"hatch": HATCH_EVIDENCE},
        ),
    )
    area: dict[str, Any] = {"facecolor": "white", "edgecolor": "0.45"}
    marks = [Patch(label=name, **area | look) for name, seen, look in kinds if seen]
    how: Any = {
        "columns": columns,
        "panel_in": len(ys) * cell_in[1],
        "below": 3,
        "summary": content.summary,
    }
    names = AXIS_NAMES[axes[0]], AXIS_NAMES[axes[1]]
    with style.facets(content.title, notes, [titles], names, marks, **how) as (picture, grid):
        colors, edge = (
            _colors(timed_us, deadline_us),
            {"edgecolor": "white", "linewidth": edge_width(1.2, cell_in)},
        )
        for ax, (_, part) in zip(grid, parts, strict=True):
            places = {tuple(cell.point.sizes[axis] for axis in axes): cell for cell in part}
            looks = {
                at: _looks(cell, colors, edge, cell.label(numbers, stages))
                for at, cell in places.items()
            }
            draw_cells(ax, xs, ys, looks, facecolor=EMPTY, **edge)
            ax.tick_params(length=0, pad=2)
            ax.spines[:].set_visible(False)
        if timed_us:
            _color_bar(grid, colors, content.value, deadline_us)
    return picture


def _arrange(cells: Cells, facets: Sequence[str], fit: int) -> tuple[list[tuple[str, Cells]], int]:
    """Panels as (title, cells) in reading order, and the number of columns.

    With two or more dimensions the last one runs across, so that panels in a column can be
    compared, and panels without cells stay empty. If that needs more than `fit` columns, the panels
    fill the rows one after the other.
    """
    points = [cell.point for cell in cells]
    several = len(data.systems(points)) > 1
    groups: dict[tuple, Cells] = {}
    for cell in cells:
        key = (cell.point.system, *(cell.point.sizes[axis] for axis in facets))
        groups.setdefault(key, []).append(cell)
    across = data.values(points, facets[-1]) if several + len(facets) > 1 else []
    order, columns = sorted(groups), max(1, min(len(groups), fit))
    if 0 < len(across) <= fit:
        order = [
            (*key, size) for key in dict.fromkeys(key[:-1] for key in order) for size in across
        ]
        columns = len(across)
    parts = []
    for system, *sizes in order:
        named = [data.axis_value(axis, size) for axis, size in zip(facets, sizes, strict=True)]
        parts.append((", ".join([system] * several + named), groups.get((system, *sizes), [])))
    return parts, columns


def _colors(timed_us: Sequence[float], deadline_us: float | None) -> ScalarMappable:
    """Colours of latencies in µs, by the margin to the deadline up to a factor of 16, or by the
    latency itself."""
    low, high = min(timed_us, default=1.0), max(timed_us, default=1.0)
    colors = ScalarMappable(LogNorm(low, max(high, low * 1.1)), "viridis_r")
    if deadline_us:
        reach = 2 ** min(
            4, max(1, math.ceil(math.log2(max(deadline_us / low, high / deadline_us))))
        )
        colors = ScalarMappable(LogNorm(deadline_us / reach, deadline_us * reach), "RdBu_r")
    colors.set_array(timed_us)
    return colors


def _color_bar(
    axes: list[Axes], colors: ScalarMappable, name: str, deadline_us: float | None
) -> None:
    low, high = colors.get_clim()
    timed_us: Any = colors.get_array()
    extend = "neither" if low <= timed_us.min() and timed_us.max() <= high else "both"
    body: Any = axes[0].figure
    height_in = body.bbox.height / body.figure.dpi
    bar = body.colorbar(
        colors, ax=axes, shrink=min(0.9, BAR_IN / height_in), pad=0.02, aspect=25, extend=extend
    )
    bar.outline.set_visible(False)
    if deadline_us:
        bar.ax.invert_yaxis()
        reach = round(math.log2(high / deadline_us))
        labels = {
            2.0**-power: f"{2**power}×" if power > 0 else f"1/{2**-power}"
            for power in range(-reach, reach + 1)
        }
        labels[1.0] = "1"
        bar.set_ticks([deadline_us * ratio for ratio in labels], labels=list(labels.values()))
        bar.set_ticks([], minor=True)
        bar.set_label(
            f"deadline / {name}\nmissed  ←  →  met"
        )  # on two lines, since low maps have a short bar
    else:
        style.log_axis(bar.ax.yaxis, low, high)
        bar.set_label(f"{name} [µs] (log)")


def _looks(cell: HeatCell, colors: ScalarMappable, edge: dict, label: str) -> Looks:
    area, text = {"facecolor": "white", **edge}, {"color": "0.1", "s": label, "linespacing": 0.95}
    if cell.value_us is not None:
        color = colors.to_rgba(np.array(cell.value_us))
        area["facecolor"] = color
        ink = "black" if style.brightness(color) > 0.42 else "white"
        text |= {"color": ink, "weight": "bold" if cell.bold else "normal"}
    failed = cell.point.failed
    if failed or cell.hatch:
        area |= {
            "hatch": HATCH if failed else cell.hatch,
            "edgecolor": "0.55" if failed else "0.35",
            "linewidth": 0,
        }
        text["bbox"] = {"facecolor": area["facecolor"], "edgecolor": "none", "pad": 0.6}
    return area, text if label else {}
