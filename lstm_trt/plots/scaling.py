"""What the pictures of scaling share: which system, what is held fixed, panels, legends.

A map of inversions: between which sizes, and where, the larger network is the faster one.

Pictures of how latency grows: lines with their fits and breaks, batching, a map of inversions.

Each takes the findings of `analysis.scaling.examine` and shows one system; sizes that are
not drawn are held at one value, which is told.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lstm_trt.analysis.scaling import Batching, Findings, Inversion, Line, fit, lines
from lstm_trt.config.errors import UsageError
from lstm_trt.plots.style import (
    GREY,
    WIDTH_IN,
    Picture,
    folded,
    latency_axis,
    plain,
    sheet,
    size_axis,
    size_colors,
    style,
    write_pictures,
)
from lstm_trt.plots.tables import AXIS_NAMES, axis_value, middle

LEGEND_IN = 1.5


def choose_system(findings: Findings, system: str | None) -> str:
    """The wanted system, or the only one; raises `UsageError` where there are several to choose from."""
    systems = list(findings.times.cells)
    if system is None and len(systems) == 1:
        return systems[0]
    if system not in systems:
        raise UsageError(f"choose one of these systems: {'; '.join(systems)}")
    return system


def notes(findings: Findings, system: str, held: Mapping[str, int], *more: str) -> list[str]:
    """Where the numbers come from and what is held fixed, for the head of a sheet."""
    words = [axis_value(axis, size) for axis, size in held.items()]
    rounds = [cell.rounds for cell in findings.times.cells[system].values() if cell.rounds]
    counted = f"times as in {Path(findings.times.where).name}"
    if rounds:
        trials = [one.n for several in rounds for one in several]
        least, most = min(trials), max(trials)
        counted = f"medians of n = {least if least == most else f'{least} to {most}'} trials after warm-up"
        processes = max(len(several) for several in rounds)
        counted += f", the middle one of up to {processes} rounds" if processes > 1 else ""
    fixed = f" Fixed: {', '.join(words)}." if words else ""
    name = "" if system == "all" else f"{system}: "
    return [f"{name}{counted}.{fixed}", *more]


def hold(
    rows: Sequence[Mapping[str, int]], free: Sequence[str], wanted: Mapping[str, int] | None = None
) -> dict[str, int]:
    """A value for each axis that is not drawn: the wanted one, else the one of most rows.

    Of equals the smallest batch and the middle of anything else. Raises `UsageError` for a
    wanted value that no row has.
    """
    held: dict[str, int] = {}
    for axis in ("batch", "layers", "sequence", "hidden"):
        present = Counter(row[axis] for row in rows if axis in row)
        if axis in free or not present:
            continue
        value = (wanted or {}).get(axis)
        if value is None:
            best = [size for size, count in present.items() if count == max(present.values())]
            value = min(best) if axis == "batch" else middle(best)
        elif value not in present:
            raise UsageError(f"nothing is there at {axis} = {value}: there is {sorted(present)}")
        held[axis] = int(value)
        rows = [row for row in rows if row[axis] == value]
    return held


def matches(row: Mapping[str, int], held: Mapping[str, int]) -> bool:
    """Whether a row has every held value."""
    return all(row[axis] == size for axis, size in held.items())


def panels(body, count: int, columns: int, share_y: bool = True) -> list[Axes]:
    """`count` axes in rows of `columns`, with labels below each one that has none beneath it."""
    grid = body.subplots(math.ceil(count / columns), columns, sharex=True, sharey=share_y, squeeze=False)
    for place, ax in enumerate(grid.flat):
        ax.set_visible(place < count)
        if place < count <= place + columns:
            ax.tick_params(labelbottom=True)
    return list(grid.flat)[:count]


def columns_for(count: int) -> int:
    """Panels side by side."""
    return min(count, 2 if count in (2, 4) else 3)


def size_handles(axis: str, colors: Mapping[int, tuple]) -> list[Line2D]:
    """Legend entries of a size, the largest on top as the lines mostly lie."""
    title = Line2D([], [], linestyle="none", label=folded(AXIS_NAMES[axis]))
    sizes = [Line2D([], [], color=color, marker="o", markersize=4, label=str(size)) for size, color in colors.items()]
    return [title, *reversed(sizes), Line2D([], [], linestyle="none", label=" ")]


#: Axis of the pairs -> (across, up) in a panel.
INVERSIONS_ARRANGEMENT = {
    "hidden": ("sequence", "layers"),
    "sequence": ("hidden", "layers"),
    "batch": ("hidden", "layers"),
    "layers": ("sequence", "hidden"),
}

MOST_PANELS = 12

CELL_IN = (0.44, 0.27)

#: A pair that was not measured.
EMPTY = "0.9"


def inversions(
    findings: Findings, axis: str, system: str | None = None, fixed: dict[str, int] | None = None
) -> Picture:
    """Neighbours on one axis, a panel a pair: larger / smaller is written where the larger is faster.

    White cells are pairs in their order, grey ones were not measured; certain inversions are
    bold. The axis that is not drawn is held where most inversions are. Pairs of sizes that are
    nowhere inverted there have no panel, unless none is; of more than 12 those with the most
    inversions are shown. Raises `UsageError` where no two sizes stand on one line.
    """
    system = choose_system(findings, system)
    measured = [
        ({**fixed_here, axis: one}, other)
        for label, name, fixed_here, line in lines(findings.times)
        if (label, name) == (system, axis)
        for one, other in itertools.pairwise(line)
    ]
    if not measured:
        raise UsageError(f"no two sizes along {axis} on one line: no pair to draw")
    found = [one for one in findings.inversions if (one.system, one.axis) == (system, axis)]
    across, up = INVERSIONS_ARRANGEMENT[axis]
    held = hold([one.smaller for one in found] or [one for one, _ in measured], (axis, across, up), fixed)
    here = [one for one in found if matches(one.smaller, held)]
    steps = _steps(axis, [(one, other) for one, other in measured if matches(one, held)], here)
    xs = sorted({one.get(across, 0) for one, _ in measured if matches(one, held)})
    ys = sorted({one.get(up, 0) for one, _ in measured if matches(one, held)})
    compared = {
        ((one[axis], other), one.get(across, 0), one.get(up, 0)) for one, other in measured if matches(one, held)
    }
    wrong = {_key(axis, across, up, one): one for one in here}
    left_out = len(here) - sum(key[0] in steps for key in wrong)
    columns = max(1, min(4, int((WIDTH_IN - 1.6) / (len(xs) * CELL_IN[0] + 0.15))))
    rows = math.ceil(len(steps) / columns)
    norm = Normalize(min([one.ratio for one in here] + [0.95]), 1.0)
    with style():
        picture, body = sheet(
            f"Where {'more layers are' if axis == 'layers' else f'a larger {AXIS_NAMES[axis]} is'} faster",
            notes(findings, system, held, _counted(findings, here, found, len(compared), left_out)),
            max(rows * (len(ys) * CELL_IN[1] + 0.3) + 0.6, 1.9),
        )
        axes = panels(body, len(steps), columns)
        for place, (ax, step) in enumerate(zip(axes, steps, strict=True)):
            for (x, one), (y, other) in itertools.product(enumerate(xs), enumerate(ys)):
                key = (step, one, other)
                _draw_pair(ax, x, y, key in compared, wrong.get(key), norm)
            ax.set_xlim(-0.5, len(xs) - 0.5)
            ax.set_ylim(-0.5, len(ys) - 0.5)
            ax.set_xticks(range(len(xs)), xs)
            ax.set_yticks(range(len(ys)), ys)
            ax.grid(False)
            ax.set_title(f"{step[0]} → {step[1]}", loc="left")
            if across not in findings.times.axes:
                ax.set_xticks([])
            elif place + columns >= len(steps):
                ax.set_xlabel(AXIS_NAMES[across])
            if up not in findings.times.axes:
                ax.set_yticks([])
            elif place % columns == 0:
                ax.set_ylabel(AXIS_NAMES[up])
        if here:
            mappable = ScalarMappable(norm, matplotlib.colormaps["OrRd_r"])
            bar = body.colorbar(mappable, ax=axes, aspect=14, fraction=0.05, shrink=min(1.0, 2.0 / rows))
            bar.set_label("larger / smaller")
    return picture


def _key(axis: str, across: str, up: str, one: Inversion) -> tuple:
    step = (one.smaller[axis], one.larger[axis])
    return step, one.smaller.get(across, 0), one.smaller.get(up, 0)


def _steps(axis: str, measured: list[tuple[dict, int]], here: list[Inversion]) -> list[tuple[int, int]]:
    """Pairs that get a panel: those inverted somewhere; where none is, all next to each other on the whole axis."""
    weight = Counter((one.smaller[axis], one.larger[axis]) for one in here)
    sizes = sorted({size for one, other in measured for size in (one[axis], other)})
    steps = sorted(weight or {*itertools.pairwise(sizes)} & {(one[axis], other) for one, other in measured})
    return sorted(sorted(steps, key=lambda step: -weight[step])[:MOST_PANELS])


def _counted(findings: Findings, here: list[Inversion], found: list[Inversion], compared: int, left_out: int) -> str:
    told = f"{len(here)} of {compared} pairs of neighbours are inverted"
    if here and findings.times.raw:
        told += f", {sum(bool(one.certain) for one in here)} of them certainly (bold)"
    if findings.min_ratio > 1:
        told += f"; only those by {findings.min_ratio:g} or more"
    if len(found) > len(here):
        told += f"; {len(found) - len(here)} more at other sizes"
    if left_out:
        told += f"; {left_out} in pairs that are not shown"
    return told + (". Pairs of sizes without any have no panel; grey was not measured." if here else ".")


def _draw_pair(ax: Axes, x: int, y: int, measured: bool, inversion: Inversion | None, norm: Normalize) -> None:
    color = matplotlib.colormaps["OrRd_r"](norm(inversion.ratio)) if inversion else "white" if measured else EMPTY
    ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=color, edgecolor="0.82", linewidth=0.6))
    if inversion:
        dark = np.dot(color[:3], (0.2126, 0.7152, 0.0722)) < 0.5
        look = {"ha": "center", "va": "center", "size": 8, "gid": "inversion"}
        look |= {"weight": "bold" if inversion.certain else "normal", "color": "white" if dark else "black"}
        ax.text(x, y, f"{inversion.ratio:.2f}" if inversion.ratio < 0.995 else f"{inversion.ratio:.3f}", **look)


#: Axis -> (one panel a value of, one line a value of), as in `plots_curves.py`.
SCALING_ARRANGEMENT = {
    "sequence": ("layers", "hidden"),
    "hidden": ("layers", "sequence"),
    "batch": ("layers", "hidden"),
    "layers": ("sequence", "hidden"),
}

RING = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgecolor": "black", "linestyle": "none"}

KNEE = {"marker": "D", "markersize": 7, "markerfacecolor": "white", "markeredgewidth": 1.6, "linestyle": "none"}

STAR = {"marker": "*", "markersize": 11, "markeredgecolor": "white", "markeredgewidth": 0.7, "linestyle": "none"}

FREE = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (4, 3))}


def draw_scaling(findings: Findings, folder: str | Path) -> list[Path]:
    """Draw what the findings support into `folder` as `scaling-*.png`; returns the paths.

    For each system: the fits along every axis with at least 3 sizes on some line, a map of
    inversions where there are any, and batching. Raises `UsageError` where the folder cannot
    be written.
    """
    systems = list(findings.times.cells)
    pictures = {}
    for number, system in enumerate(systems, 1):
        tail = f"-{number}" if len(systems) > 1 else ""
        pictures |= {f"scaling-{name}{tail}.png": draw for name, draw in _plan(findings, system).items()}
    return write_pictures(pictures, folder)


def _plan(findings: Findings, system: str) -> dict[str, Callable[[], Picture]]:
    plan: dict[str, Callable[[], Picture]] = {}
    for axis in findings.times.axes:
        if any((line.system, line.axis) == (system, axis) for line in findings.linearity):
            plan[f"by-{axis}"] = lambda axis=axis: fits(findings, axis, system)
        if any((pair.system, pair.axis) == (system, axis) for pair in findings.inversions):
            plan[f"inversions-{axis}"] = lambda axis=axis: inversions(findings, axis, system)
    if any(one.system == system for one in findings.batching):
        plan["batching"] = lambda: batching(findings, system)
    return plan


def fits(findings: Findings, axis: str, system: str | None = None, fixed: dict[str, int] | None = None) -> Picture:
    """Times against one axis with the line of least squares through each, and the break marked.

    A panel and a line a value of two other axes; a panel has its own scale, linear so that a
    straight line looks straight, but logarithmic for batches, which double. Where one breaks
    off, the line fitted to the points before goes on, dotted: what was to be expected. Raises
    `UsageError` for an axis with fewer than 3 sizes on every line.
    """
    system = choose_system(findings, system)
    here = [line for line in findings.linearity if (line.system, line.axis) == (system, axis)]
    if not here:
        raise UsageError(f"no line along {axis} has 3 sizes: no fit to draw")
    facet, color_axis = SCALING_ARRANGEMENT[axis]
    held = hold([line.fixed for line in here], (axis, facet, color_axis), fixed)
    here = [line for line in here if matches(line.fixed, held)]
    facets = sorted({line.fixed.get(facet, 0) for line in here})
    colored = sorted({line.fixed.get(color_axis, 0) for line in here})
    colors = dict(zip(colored, size_colors(len(colored)), strict=True))
    columns = columns_for(len(facets))
    linear = sum(line.r2 > 0.99 for line in here)
    broken = sum(line.breaks_at is not None for line in here)
    told = f"R² > 0.99 on {linear} of {len(here)} lines. {broken or 'None'} break{'s' * (broken < 2)} off: more than"
    told += " 10 % from the line through the points before."
    log = axis == "batch"
    with style():
        rows = math.ceil(len(facets) / columns)
        title = f"Latency against {AXIS_NAMES[axis]}, and straight lines through it"
        picture, body = sheet(title, notes(findings, system, held, told), 2.5 * rows if rows > 1 else 3.7)
        axes = panels(body, len(facets), columns, share_y=log)
        sizes = sorted({size for line in here for size in line.sizes})
        if log:
            log = latency_axis(axes, [time_us for line in here for time_us in line.times_us])
        for place, (ax, value) in enumerate(zip(axes, facets, strict=True)):
            lines = [line for line in here if line.fixed.get(facet, 0) == value]
            for line in lines:
                _draw_fit(ax, line, colors[line.fixed.get(color_axis, 0)])
            if axis != "batch":
                ax.set_ylim(0, 1.08 * max(time_us for line in lines for time_us in line.times_us))
                ax.yaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
                ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
            size_axis(ax, sizes, axis == "batch", (WIDTH_IN - LEGEND_IN - 0.6) / columns - 0.4)
            if place + columns >= len(facets):
                ax.set_xlabel(AXIS_NAMES[axis] + (" (log2)" if axis == "batch" else ""))
            if place % columns == 0:
                ax.set_ylabel("latency [µs]" + (" (log)" if log else ""))
            if facet in findings.times.axes:
                ax.set_title(axis_value(facet, value), loc="left")
        handles = size_handles(color_axis, colors) if color_axis in findings.times.axes else []
        handles.append(Line2D([], [], color=GREY, marker="o", markersize=3.5, linestyle="none", label="measured"))
        handles.append(Line2D([], [], color=GREY, linewidth=1.2, label="least squares"))
        if broken:
            handles.append(Line2D([], [], label="breaks off", **RING))
            handles.append(Line2D([], [], color=GREY, linestyle=":", label="as before\nthe break"))
        body.legend(handles=handles, loc="outside right upper", handlelength=2.2, labelspacing=0.4)
    return picture


def _draw_fit(ax: Axes, line: Line, color) -> None:
    ax.plot(line.sizes, line.times_us, color=color, linestyle="none", marker="o", markersize=3.8, zorder=3, gid="times")
    xs = np.linspace(line.sizes[0], line.sizes[-1], 200)
    _above_zero(ax, xs, line.intercept_us + line.slope_us * xs, color=color, linewidth=1.1, alpha=0.75, gid="fit")
    if line.breaks_at is None:
        return
    place = line.sizes.index(line.breaks_at)
    slope, intercept, _ = fit(line.sizes[:place], line.times_us[:place])
    xs = np.linspace(line.sizes[0], line.breaks_at, 100)
    _above_zero(ax, xs, intercept + slope * xs, color=color, linestyle=":", linewidth=1.3, zorder=2.5, gid="before")
    ax.plot([line.breaks_at], [line.times_us[place]], zorder=4, gid="break", **RING)


def _above_zero(ax: Axes, xs: np.ndarray, ys: np.ndarray, **look) -> None:
    """A curve without what a logarithmic axis cannot show."""
    ax.plot(xs, np.where(ys > 0, ys, np.nan), marker="", **look)


def batching(findings: Findings, system: str | None = None, fixed: dict[str, int] | None = None) -> Picture:
    """Time a sample against the batch size, with the last batch that is almost free and the cheapest.

    A panel a number of layers, a line a hidden size. The dashed guide halves the time a sample
    with each doubling, as if batching were free: lines that run along it gain all there is.
    Raises `UsageError` where no network has two batch sizes.
    """
    system = choose_system(findings, system)
    here = [one for one in findings.batching if one.system == system]
    if not here:
        raise UsageError("no network has two batch sizes: nothing to draw")
    facet, color_axis = SCALING_ARRANGEMENT["batch"]
    held = hold([one.fixed for one in here], (facet, color_axis), fixed)
    costs = [(one, _a_sample(findings, system, one)) for one in here if matches(one.fixed, held)]
    facets = sorted({one.fixed.get(facet, 0) for one, _ in costs})
    colored = sorted({one.fixed.get(color_axis, 0) for one, _ in costs})
    colors = dict(zip(colored, size_colors(len(colored)), strict=True))
    columns = columns_for(len(facets))
    with style():
        rows = math.ceil(len(facets) / columns)
        told = "Almost free: a doubling of the batch takes under 10 % longer."
        picture, body = sheet(
            "What a sample costs in a batch", notes(findings, system, held, told), 2.6 * rows if rows > 1 else 3.7
        )
        axes = panels(body, len(facets), columns)
        sizes = sorted({size for _, cost_us in costs for size in cost_us})
        logarithmic = latency_axis(axes, [cost for _, cost_us in costs for cost in cost_us.values()])
        for place, (ax, value) in enumerate(zip(axes, facets, strict=True)):
            drawn = [(one, cost_us) for one, cost_us in costs if one.fixed.get(facet, 0) == value]
            _draw_guide(ax, [cost_us for _, cost_us in drawn])
            for one, cost_us in drawn:
                color = colors[one.fixed.get(color_axis, 0)]
                ax.plot(cost_us.keys(), cost_us.values(), color=color, marker="o", markersize=3.2, gid="a sample")
                if one.stops_at is not None:
                    ax.plot([one.free_up_to], [cost_us[one.free_up_to]], color=color, zorder=4, gid="knee", **KNEE)
                ax.plot([one.cheapest], [cost_us[one.cheapest]], color=color, zorder=5, gid="cheapest", **STAR)
            size_axis(ax, sizes, True, (WIDTH_IN - LEGEND_IN - 0.6) / columns - 0.25)
            if facet in findings.times.axes:
                ax.set_title(axis_value(facet, value), loc="left")
            if place + columns >= len(facets):
                ax.set_xlabel("batch size (log2)")
            if place % columns == 0:
                ax.set_ylabel("latency / batch [µs]" + (" (log)" if logarithmic else ""))
        handles = size_handles(color_axis, colors) if color_axis in findings.times.axes else []
        handles.append(Line2D([], [], color=GREY, label="almost free\nup to here", **KNEE))
        handles.append(Line2D([], [], color=GREY, label="cheapest", **STAR))
        handles.append(Line2D([], [], label="if batching\nwere free", **FREE))
        body.legend(handles=handles, loc="outside right upper", handlelength=2.2, labelspacing=0.5)
    return picture


def _a_sample(findings: Findings, system: str, one: Batching) -> dict[int, float]:
    """Batch -> us a sample, of one network."""
    shapes = ((dict(zip(findings.times.axes, shape, strict=True)), shape) for shape in findings.times.cells[system])
    return {
        row["batch"]: findings.times.cells[system][shape].latency_us / row["batch"]
        for row, shape in shapes
        if matches(row, one.fixed)
    }


def _draw_guide(ax: Axes, costs_us: Sequence[dict[int, float]]) -> None:
    """From the dearest first point of the panel; the limits of the axis stay."""
    cost_us = max(costs_us, key=lambda one: next(iter(one.values())))
    first = next(iter(cost_us))
    xs = np.geomspace(first, max(size for one in costs_us for size in one), 50)
    limits = ax.get_ylim()
    ax.plot(xs, cost_us[first] * first / xs, zorder=1, gid="free", **FREE)
    ax.set_ylim(limits)
