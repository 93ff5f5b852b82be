"""Heat maps of a sweep: one cell with a latency per configuration, one panel per system and further
size.

Cells show a statistic of the measured latencies, or its proven upper bound. With a deadline the
colour is the margin to it. Failures are hatched cells that name the stage.

A map is a list of `Cell`, then drawing (`cell_maps`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, to_rgba
from matplotlib.patches import Patch, Rectangle

from lstm_judge.outcomes import Outcome
from lstm_judge.plots import points as data, style
from lstm_judge.plots.curve import Head
from lstm_judge.plots.points import AXIS_NAMES, Point
from lstm_judge.plots.style import Picture, number, whole
from lstm_judge.read.runs import Runs, as_runs
from lstm_judge.statistics.quantiles import DEFAULT_CONFIDENCE, check_confidence
from lstm_judge.verdict.answer import Verdict
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.verdict import evidence_percentile, judge
from lstm_trt.config.errors import UsageError, one_of
from lstm_trt.config.format import short_number

#: The `value` that shows the proven upper bound instead of a measured statistic.
BOUND = "bound_us"

#: Size of a cell that holds its number well, in inches.
CELL_IN = (0.46, 0.32)

#: Least width of a cell with a number, and with the name of a stage; and least height.
NUMBER_IN, STAGE_IN, LINE_IN = 0.4, 0.6, 0.14

MOST_PANELS = 12

#: Lines between cells that are narrower would hide them.
THINNEST_IN = 0.06

#: Panels side by side if their cells are too narrow for numbers.
DENSE_COLUMNS = 2

#: Width of all panels side by side, without colour bar and labels; and between two of them.
PANELS_IN = style.WIDTH_IN - 1.45
GAP_IN = 0.12

#: From this latency in µs on, cells are written in thousands.
THOUSANDS_FROM = 9_995

#: Axes of a map, in order of preference.
MAP_AXES = ("hidden", "sequence", "batch", "layers", "features", "directions")

#: Axes that have panels, if they are not drawn.
FACETS = ("layers", "batch")

#: How bright red, green and blue are.
LUMINANCE = (0.2126, 0.7152, 0.0722)

#: Colour of what was not measured.
EMPTY = "0.93"

HATCH = "////"

#: Different from that of a failure.
HATCH_EVIDENCE = "\\\\\\"


@dataclass(frozen=True)
class Cell:
    """A cell of a map: the title of its panel, its sizes, the number of its colour (NaN: white),
    and its text.

    `stage` is a second line that is left out where it does not fit, `hatch` a pattern.
    """

    panel: str
    x: int
    y: int
    value: float = math.nan
    text: str = ""
    stage: str = ""
    bold: bool = False
    hatch: str = ""


@dataclass(frozen=True)
class Layout:
    """The cells of all panels, the sizes on both axes, and the number of panels side by side."""

    cells: list[Cell]
    xs: list[int]
    ys: list[int]
    columns: int

    @property
    def panels(self) -> list[str]:
        """The titles of the panels."""
        return list(dict.fromkeys(cell.panel for cell in self.cells))

    @property
    def cell_in(self) -> tuple[float, float]:
        """Width and height of a cell in inches."""
        width_in = PANELS_IN / self.columns - GAP_IN
        height_in = max(min(CELL_IN[1], 3.0 / len(self.ys)), style.PANEL_IN / len(self.ys))
        return width_in / len(self.xs), height_in

    @property
    def numbers(self) -> bool:
        """Whether the numbers of the cells fit."""
        width_in, height_in = self.cell_in
        return width_in >= NUMBER_IN and height_in >= LINE_IN

    @property
    def stages(self) -> bool:
        """Whether the stages of failures fit."""
        return self.numbers and self.cell_in[0] >= STAGE_IN


def columns_that_fit(xs: Sequence[int], most: int) -> int:
    """How many panels with these sizes on x fit side by side, of so many."""
    panel_in = max(len(xs) * CELL_IN[0], style.PANEL_IN) + GAP_IN
    return min(int(PANELS_IN / panel_in) or DENSE_COLUMNS, most)


@contextmanager
def cell_maps(
    head: Head,
    layout: Layout,
    names: tuple[str, str],
    colors: ScalarMappable,
    ax: Axes | None,
) -> Iterator[tuple[Picture, list[Axes]]]:
    """Draw a map for each panel of the cells; a colour bar beside them can be added."""
    width_in, height_in = layout.cell_in
    characters = int(len(layout.xs) * width_in / 0.078)
    with style.facets(
        head.title,
        head.notes,
        [[style.folded(panel, characters) for panel in layout.panels]],
        names,
        _marks(layout),
        ax=ax,
        columns=layout.columns,
        panel_in=len(layout.ys) * height_in,
        below=3,
        summary=head.summary,
    ) as (picture, axes):
        for drawn, panel in zip(axes, layout.panels, strict=True):
            cells = [cell for cell in layout.cells if cell.panel == panel]
            _draw_panel(drawn, cells, layout, colors)
        yield picture, axes


def _draw_panel(ax: Axes, cells: Sequence[Cell], layout: Layout, colors: ScalarMappable) -> None:
    """Draw the cells of one panel; those of other sizes are empty."""
    areas = np.tile(to_rgba(EMPTY), (len(layout.ys), len(layout.xs), 1))
    places = [(layout.xs.index(cell.x), layout.ys.index(cell.y)) for cell in cells]
    for cell, (column, row) in zip(cells, places, strict=True):
        known = not math.isnan(cell.value)
        areas[row, column] = colors.to_rgba(np.array(cell.value)) if known else to_rgba("white")
    ax.pcolormesh(
        areas, edgecolors="white" if min(layout.cell_in) > THINNEST_IN else "none", linewidth=1
    )
    for cell, (column, row) in zip(cells, places, strict=True):
        _mark(ax, cell, (column, row), areas[row, column], layout)
    for axis, sizes in ((ax.xaxis, layout.xs), (ax.yaxis, layout.ys)):
        style.size_ticks(
            axis,
            sizes,
            [place + 0.5 for place in range(len(sizes))],
            [str(size or "") for size in sizes],
        )
    ax.grid(False)
    ax.tick_params(length=0, pad=2)
    ax.spines[:].set_visible(False)


def _mark(ax: Axes, cell: Cell, place: tuple[int, int], area: np.ndarray, layout: Layout) -> None:
    """Write what fits into a cell, and hatch it."""
    column, row = place
    box = None
    if cell.hatch:
        ax.add_patch(
            Rectangle(place, 1, 1, hatch=cell.hatch, edgecolor="0.45", linewidth=0, fill=False)
        )
        box = {"facecolor": area, "edgecolor": "none", "pad": 0.6}
    text = "\n".join(
        filter(None, [cell.text if layout.numbers else "", cell.stage if layout.stages else ""])
    )
    if text:
        ax.text(
            column + 0.5,
            row + 0.5,
            text,
            ha="center",
            va="center",
            size=8,
            linespacing=0.95,
            weight="bold" if cell.bold else "normal",
            color="black" if np.dot(area[:3], LUMINANCE) > 0.42 else "white",
            bbox=box,
        )


@dataclass(frozen=True)
class Content:
    """What a map shows: its cells, and texts about them.

    `value` describes the number of a cell; `in_numbers` is needed only where cells have
    numbers.
    """

    title: str
    value: str
    cells: list[Cell]
    reading: str
    in_numbers: str
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
    ax: Axes | None = None,
) -> Picture:
    """One cell per configuration with its latency in µs, one panel per system, layers and batch.

    `runs` is the result of `load`, or a path, recordings or groups, `value` the maximum "max_us" or
    "bound_us". With a deadline the colour is the margin, log2(deadline / value), and cells above
    the deadline are bold; without, it is the latency on a log scale. Failures are hatched and name
    the stage, configurations that were not measured are grey, also those that were asked for
    (`runs.missing`). If there were more than 12 panels, the batch is held fixed; at most four rows
    of panels are drawn, a single panel into `ax` if given.

    "bound_us" needs a deadline. It is the exact one-sided upper bound of the percentile at
    `confidence` and the effective sample size, an order statistic. If it lies beyond the maximum of
    the trials, the maximum is written after a ">". Verdicts are those of `lab.verdict`: MISSED is
    bold, NOT ENOUGH EVIDENCE hatched. Without `percentile`, each cell uses the highest of p99,
    p99.9, p99.99 and p99.999 that its number of trials can prove. Raises `UsageError` for an
    unknown axis or value.
    """
    data.check_deadline(deadline_us)
    check_confidence(confidence)
    one_of("value", value, ["max_us", BOUND])
    if value == BOUND and deadline_us is None:
        raise UsageError("bound_us needs a deadline")
    if x == y:
        raise UsageError("x and y must differ")
    runs = as_runs(runs)
    points, facets = _choose_facets(data.points_of(runs), (x, y))
    every = _panels(points, facets)
    xs = _sizes_on(x, points, runs, (x, y))
    columns = columns_that_fit(xs, (len(data.values(points, facets[-1])) if facets else len(every)))
    shown = dict(list(every.items())[: columns * style.MOST_ROWS])

    points = [point for part in shown.values() for point in part]
    blank = [_blank(panel, point, x, y) for panel, part in shown.items() for point in part]
    if value == BOUND:
        content = _proven(points, blank, deadline_us, percentile, confidence)
    else:
        content = _measured(points, blank, (x, y), deadline_us)
    layout = Layout(content.cells, xs, _sizes_on(y, points, runs, (x, y)), columns)
    timed_us = [cell.value for cell in content.cells if cell.text]
    colors = _colors(timed_us, deadline_us)
    with cell_maps(
        Head(
            content.title,
            [
                *data.describe(points, (x, y, *facets)),
                content.reading
                + (f" Values in µs (k: thousands).{content.in_numbers}" if layout.numbers else ""),
                data.describe_shown("panels", shown, every),
            ],
            content.summary,
        ),
        layout,
        (AXIS_NAMES[x], AXIS_NAMES[y]),
        colors,
        ax,
    ) as (picture, grid):
        if timed_us:
            _color_bar(grid, colors, content.value, deadline_us)
    return picture


def _choose_facets(points: list[Point], axes: tuple[str, str]) -> tuple[list[Point], list[str]]:
    """The points at one value of what is not drawn, and the axes on which they have panels."""
    facets = [axis for axis in FACETS if axis not in axes and data.values(points, axis)]
    while facets and len(_panels(points, facets)) > MOST_PANELS:
        facets.pop()
    points = data.hold_fixed(points, (*axes, *facets))
    return points, [axis for axis in facets if len(data.values(points, axis)) > 1]


def _panels(points: Sequence[Point], facets: Sequence[str]) -> dict[str, list[Point]]:
    """Title of each panel -> its points; by system, then by the sizes on `facets`."""
    several = len(data.systems(points)) > 1
    panels: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda point: (point.system, *_sizes(point, facets))):
        named = map(data.axis_value, facets, _sizes(point, facets))
        panels.setdefault(", ".join([point.system, *named] if several else named), []).append(point)
    return panels


def _sizes(point: Point, axes: Iterable[str]) -> list[int]:
    return [point.sizes[axis] for axis in axes]


def _sizes_on(axis: str, points: Sequence[Point], runs: Runs, drawn: tuple[str, str]) -> list[int]:
    """The sizes of the points on an axis, and those of what is missing and would be drawn."""
    sizes = set(data.values(points, axis))
    others = [name for name in AXIS_NAMES if name not in drawn]
    for known in runs.missing.values():
        if all(known.get(name) in {point.sizes[name] for point in points} for name in others):
            sizes.add(known[axis])
    return sorted(sizes)


def map_axes(runs: Any) -> tuple[str, str]:
    """Two axes for a map of these runs: the first in a fixed order of preference that vary."""
    points = data.points_of(runs)
    x, y, *_ = sorted(MAP_AXES, key=lambda axis: len(data.values(points, axis)) < 2)
    return x, y


def _blank(panel: str, point: Point, x: str, y: str) -> Cell:
    """The cell of a point before its number is known."""
    cell = Cell(panel, point.sizes[x], point.sizes[y])
    return replace(cell, stage=point.stages[0], hatch=HATCH) if point.failed else cell


def _measured(
    points: Sequence[Point],
    blank: Sequence[Cell],
    axes: tuple[str, str],
    deadline_us: float | None,
) -> Content:
    """A map of the maxima."""
    title = f"Maximum latency by {AXIS_NAMES[axes[0]]} and {AXIS_NAMES[axes[1]]}"
    reading = ""
    in_numbers = ""
    summary = data.describe_extremes(points, "max_us")
    cells = []
    for point, cell in zip(points, blank, strict=True):
        largest_us = point.statistic("max_us")  # NaN if all rounds failed
        missed = deadline_us is not None and largest_us > deadline_us
        cells.append(
            replace(cell, value=largest_us, text=short(largest_us) if point.ok else "", bold=missed)
        )
    if deadline_us:
        title += f", with a deadline of {number(deadline_us)} µs"
        reading = "Colour: margin to the deadline."
        in_numbers = " Bold: above the deadline."
        missed = sum(cell.bold for cell in cells)
        summary += f" {missed} of {len(cells)} configurations are above the deadline."
    if any(len(point.rounds) > 1 for point in points):
        reading += " Of several rounds the largest value is shown."
    return Content(title, "maximum latency", cells, reading, in_numbers, summary)


def _proven(
    points: Sequence[Point],
    blank: Sequence[Cell],
    deadline_us: Any,
    percentile: str | float | None,
    confidence: float,
) -> Content:
    """A map of upper bounds."""
    cells = []
    lengths: dict[str, set[int]] = {}  # percentile -> numbers of trials
    outcomes: Counter[Outcome] = Counter()
    for point, cell in zip(points, blank, strict=True):
        if not point.ok:
            cells.append(cell)
            continue
        n = point.group.n
        chosen: Any = percentile or evidence_percentile(n, confidence) or "99"
        verdict = judge(
            point.group.rounds, Question(deadline_us, chosen, confidence), point.group.until
        )
        cells.append(_bound(cell, verdict))
        lengths.setdefault(short_number(float(chosen)), set()).add(n)
        outcomes[verdict.outcome] += 1

    named = f"p{next(iter(lengths))}" if len(lengths) == 1 else "a high percentile"
    several = [
        f"p{name} at n = {' or '.join(map(whole, sorted(ns)))}"
        for name, ns in sorted(lengths.items())
    ]
    reading = (
        f"Exact upper bound of {', '.join(several) or named}, at {100 * confidence:g} % confidence."
    )
    if percentile is None and lengths:
        reading += (
            " This is the highest of p99, p99.9, p99.99 and p99.999"
            " that this number of trials can prove."
        )
    in_numbers = ""
    if any(cell.text.startswith(">") for cell in cells):
        in_numbers += " Cells with >: the bound lies beyond the maximum, which is shown."
    if Outcome.MISSED in outcomes:
        in_numbers += f" Bold: {Outcome.MISSED}."
    counted = ", ".join(f"{total} {outcome}" for outcome, total in outcomes.most_common())
    return Content(
        f"Margin to a deadline of {number(deadline_us)} µs: upper bound of {named}",
        "bound",
        cells,
        reading,
        in_numbers,
        f"Verdicts: {counted or 'none'}.",
    )


def _bound(cell: Cell, verdict: Verdict) -> Cell:
    """A cell with the upper bound that a verdict rests on."""
    proven_us = verdict.bounds.percentile_high_us
    bound_us: Any = verdict.max_us if proven_us is None else proven_us
    return replace(
        cell,
        value=bound_us,
        text=f"{'>' if proven_us is None else ''}{short(bound_us)}",
        bold=verdict.outcome == Outcome.MISSED,
        hatch=(
            HATCH_EVIDENCE
            if verdict.outcome == Outcome.NOT_ENOUGH_EVIDENCE and not cell.hatch
            else cell.hatch
        ),
    )


def short(value_us: float) -> str:
    """A latency as text that fits a cell: 84.1, 1 570, 12.3k, 123k."""
    if value_us < THOUSANDS_FROM:
        return number(value_us)
    return f"{value_us / 1000:.{1 if value_us < 99_950 else 0}f}k"


def _marks(layout: Layout) -> list[Patch]:
    """The legend: cells without a number, and what their hatches mean."""
    hatches = {cell.hatch for cell in layout.cells}
    marks = []
    if len(layout.cells) < len(layout.panels) * len(layout.xs) * len(layout.ys):
        marks.append(Patch(label="not measured", facecolor=EMPTY))
    hatched = {
        HATCH: "failed at the named stage" if layout.stages else "failed",
        HATCH_EVIDENCE: Outcome.NOT_ENOUGH_EVIDENCE,
    }
    for hatch, label in hatched.items():
        if hatch in hatches:
            marks.append(Patch(label=label, hatch=hatch, facecolor="white", edgecolor="0.45"))
    return marks


def _colors(timed_us: Sequence[float], deadline_us: float | None) -> ScalarMappable:
    """Colours of latencies in µs, by the margin to the deadline up to a factor of 16, or by the
    latency itself."""
    low = min(timed_us, default=1.0)
    high = max(timed_us, default=1.0)
    if deadline_us is None:
        return ScalarMappable(LogNorm(low, max(high, low * 1.1)), "viridis_r")
    doublings = math.ceil(math.log2(max(deadline_us / low, high / deadline_us)))
    reach = 2 ** min(4, max(1, doublings))
    colors: Any = ScalarMappable(LogNorm(deadline_us / reach, deadline_us * reach), "RdBu_r")
    colors.cmap.colorbar_extend = "neither" if doublings <= 4 else "both"
    return colors


def _color_bar(
    axes: list[Axes], colors: ScalarMappable, name: str, deadline_us: float | None
) -> None:
    """Draw the colour bar beside the axes."""
    bar = axes[0].figure.colorbar(colors, ax=axes, shrink=0.9, pad=0.02, aspect=25)
    bar.outline.set_visible(False)
    low, high = colors.get_clim()
    if deadline_us is None:
        style.log_axis(bar.ax.yaxis, low, high)
        bar.set_label(f"{name} [µs] (log)")
        return
    bar.ax.invert_yaxis()
    reach = round(math.log2(high / deadline_us))
    ratios = [Fraction(2) ** power for power in range(-reach, reach + 1)]
    bar.set_ticks(
        [deadline_us / float(ratio) for ratio in ratios], labels=[f"{ratio}×" for ratio in ratios]
    )
    bar.set_ticks([], minor=True)
    # On two lines, since low maps have a short bar.
    bar.set_label(f"deadline / {name}\nmissed  ←  →  met")
