"""Pictures of how latency grows: lines with their fits and breaks, batching, a map of inversions.

Each takes the findings of `analysis.scaling.examine` and shows one system; sizes that are
not drawn are held at one value, which is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lstm_trt.analysis.scaling import Batching, Findings, Line, fit
from lstm_trt.errors import UsageError
from lstm_trt.plots_inversions import inversions
from lstm_trt.plots_scaling_parts import (
    LEGEND_IN,
    choose_system,
    columns_for,
    hold,
    matches,
    notes,
    panels,
    size_handles,
)
from lstm_trt.plots_style import (
    GREY,
    WIDTH_IN,
    Picture,
    latency_axis,
    plain,
    sheet,
    size_axis,
    size_colors,
    style,
    write_pictures,
)
from lstm_trt.plots_tables import AXIS_NAMES, axis_value

__all__ = ["batching", "draw_scaling", "fits", "inversions"]

#: Axis -> (one panel a value of, one line a value of), as in `plots_curves.py`.
ARRANGEMENT = {
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
    facet, color_axis = ARRANGEMENT[axis]
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
    facet, color_axis = ARRANGEMENT["batch"]
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
