"""Latency against the network size: linear fits with breaks, latency per sample, and inversions.

Each figure takes the findings of `analysis.scaling` and shows one system; sizes that are not drawn
are held at one value, which the notes state.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from lstm_judge.plots import points as data, style
from lstm_judge.plots.heatmap import Looks, cells_fit, draw_cells, edge_width
from lstm_judge.plots.points import AXIS_NAMES
from lstm_judge.plots.style import GREY, Picture
from lstm_judge.scaling.scaling import Findings, Inversion, fit, lines
from lstm_judge.scaling.text import growth_text
from lstm_trt.config.errors import UsageError

CELL_IN = (0.44, 0.27)

#: A pair that was not measured.
EMPTY = "0.9"


RING = {
    "marker": "o",
    "markersize": 9,
    "markerfacecolor": "none",
    "markeredgecolor": "black",
    "linestyle": "none",
}

KNEE = {
    "marker": "D",
    "markersize": 7,
    "markerfacecolor": "white",
    "markeredgewidth": 1.6,
    "linestyle": "none",
}

STAR = {
    "marker": "*",
    "markersize": 11,
    "markeredgecolor": "white",
    "markeredgewidth": 0.7,
    "linestyle": "none",
}

FREE = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (4, 3))}

#: Axis -> the size at which a figure holds it; others are chosen.
Fixed = dict[str, int] | None


def draw_scaling(
    findings: Findings, folder: str | Path, *, formats: Iterable[str] = ("png",)
) -> list[Path]:
    """Draw all figures that the findings allow into `folder` as `scaling-*.png` (or svg, pdf);
    returns the paths.

    For each system: fits along every axis on which a series has at least 3 sizes, a map of
    inversions if there are any, and batching. Raises `UsageError` if the folder cannot be written.
    """
    systems = list(findings.times.cells)
    fitted = {(line.system, line.axis) for line in findings.linearity}
    inverted = {(pair.system, pair.axis) for pair in findings.inversions}
    pictures: dict[str, Callable[[], Picture]] = {}
    for number, system in enumerate(systems, 1):
        suffix = f"-{number}" if len(systems) > 1 else ""
        for axis in findings.times.axes:
            if (system, axis) in fitted:
                pictures[f"scaling-by-{axis}{suffix}"] = partial(fits, findings, axis, system)
            if (system, axis) in inverted:
                pictures[f"scaling-inversions-{axis}{suffix}"] = partial(
                    inversions, findings, axis, system
                )
        if any(network.system == system for network in findings.batching):
            pictures[f"scaling-batching{suffix}"] = partial(batching, findings, system)
    return style.write_pictures(pictures, folder, formats)


def _choose_system(findings: Findings, system: str | None) -> str:
    """The given system, or the only one; raises `UsageError` if it is unknown or there are several."""
    found = [name for name in findings.times.cells if system in (None, name)]
    if len(found) != 1:
        raise UsageError(f"choose one of these systems: {'; '.join(findings.times.cells)}")
    return found[0]


def _held(
    findings: Findings, found: Sequence, system: str | None, axis: str, fixed: Fixed
) -> tuple[list, str]:
    """What was found of a system along an axis at the sizes that are held fixed, and the note that
    states them."""
    system = _choose_system(findings, system)
    here = [each for each in found if each.system == system]
    held = data.hold([each.fixed for each in here], (axis, *data.ARRANGEMENT[axis]), fixed)
    return [each for each in here if data.at(each.fixed, held)], _note(findings, system, held)


def _note(findings: Findings, system: str, held: Mapping[str, int]) -> str:
    """A note for the head of a figure: the source of the numbers and the fixed sizes."""
    rounds = [cell.rounds for cell in findings.times.cells[system].values() if cell.rounds]
    counted = f"latencies from {Path(findings.times.where).name}"
    if rounds:
        lengths = style.whole_range(each.n for several in rounds for each in several)
        counted = f"medians of n = {lengths} trials after warm-up"
        processes = max(len(several) for several in rounds)
        counted += f", the middle one of up to {processes} rounds" if processes > 1 else ""
    fixed = (
        f" Fixed: {', '.join(data.axis_value(axis, size) for axis, size in held.items())}."
        if held
        else ""
    )
    return f"{'' if system == 'all' else f'{system}: '}{counted}{findings.times.mode_text}.{fixed}"


class Series(NamedTuple):
    """What was found along an axis (a `Line` or `Batching`), with the latency in µs by size, and
    its colour."""

    found: Any
    times_us: dict[int, float]
    color: Any = None


#: Draws the series of a panel.
Draw = Callable[[Axes, list[Series]], None]


def _picture(
    title: str,
    notes: list[str],
    summary: str,
    y: str,
    axis: str,
    series: list[Series],
    draw: Draw,
    marks: dict,
) -> Picture:
    """Latencies (`y`) against `axis`: a panel for each size of one further axis, and a colour for
    each of another.

    The panels share a latency axis, which is logarithmic if the latencies span more than a factor
    of 20. `marks` maps entries of the legend to the looks in which `draw` draws them.
    """
    facet, color_axis = data.ARRANGEMENT[axis]
    known = series[0].found.fixed
    colored = sorted({each.found.fixed.get(color_axis, 0) for each in series})
    colors = dict(zip(colored, style.size_colors(len(colored)), strict=True))
    every = sorted({each.found.fixed.get(facet, 0) for each in series})
    facets, sizes = style.spread(every), sorted({size for each in series for size in each.times_us})
    titles = [
        data.axis_value(facet, size) if facet in known and len(every) > 1 else "" for size in facets
    ]
    notes = [*notes, data.describe_shown(f"values of {AXIS_NAMES[facet]}", len(facets), len(every))]
    handles = (
        style.size_handles(style.folded(AXIS_NAMES[color_axis]), colors)
        if color_axis in known
        else []
    )
    handles += [style.entry(label, **look) for label, look in marks.items()]
    names = AXIS_NAMES[axis], y
    with style.facets(title, notes, [titles], names, handles, summary=summary) as (picture, axes):
        style.latency_axis(axes, [time_us for each in series for time_us in each.times_us.values()])
        log2 = axis == "batch" or axes[0].get_yscale() == "log"
        for ax, size in zip(axes, facets, strict=True):
            here = [each for each in series if each.found.fixed.get(facet, 0) == size]
            draw(
                ax,
                [each._replace(color=colors[each.found.fixed.get(color_axis, 0)]) for each in here],
            )
            style.size_axis(ax, sizes, log2)
    return picture


def fits(findings: Findings, axis: str, system: str | None = None, fixed: Fixed = None) -> Picture:
    """Latency against one axis with a least-squares line through each series; breaks are marked.

    One panel and one line for each value of two other axes. Where latencies span more than a factor
    of 20, both scales are logarithmic, and straight lines are bent. At a break the line through the
    points before it is continued, dotted. Raises `UsageError` if no series along the axis has 3
    sizes.
    """
    along = [line for line in findings.linearity if line.axis == axis]
    here, note = _held(findings, along, system, axis, fixed)
    if not here:
        raise UsageError(f"no series along {axis} has 3 sizes: no fit to draw")
    broken = sum(line.breaks_at is not None for line in here)
    reading = f"{growth_text(here)}. Break in {broken} of {len(here)}: a point lies more than 10 % off the line through"
    reading = reading[0].upper() + reading[1:] + " the points before it."
    if untested := sum(line.untested_break for line in here):
        reading += f" Not tested against noise: {untested}, which takes 5 processes."
    marks = {
        "measured": {"color": GREY, "marker": "o", "markersize": 3.5, "linestyle": "none"},
        "least squares": {"color": GREY, "linewidth": 1.2},
    }
    if broken:
        marks |= {"break": RING, "line through\npoints before": {"color": GREY, "linestyle": ":"}}
    title = f"Latency against {AXIS_NAMES[axis]}, with fitted straight lines"
    series = [Series(line, dict(zip(line.sizes, line.times_us, strict=True))) for line in here]
    return _picture(
        title, [note, reading], reading, "latency [µs]", axis, series, _draw_fits, marks
    )


def _draw_fits(ax: Axes, series: Sequence[Series]) -> None:
    for line, times_us, color in series:
        ax.plot(
            line.sizes,
            line.times_us,
            color=color,
            linestyle="none",
            marker="o",
            markersize=3.8,
            zorder=3,
        )
        xs = np.linspace(line.sizes[0], line.sizes[-1], 200)
        _above_zero(
            ax, xs, line.intercept_us + line.slope_us * xs, color=color, linewidth=1.1, alpha=0.75
        )
        if line.breaks_at is not None:
            place = line.sizes.index(line.breaks_at)
            slope, intercept, _ = fit(line.sizes[:place], line.times_us[:place])
            xs = np.linspace(line.sizes[0], line.breaks_at, 100)
            _above_zero(
                ax,
                xs,
                intercept + slope * xs,
                color=color,
                linestyle=":",
                linewidth=1.3,
                zorder=2.5,
            )
            ax.plot([line.breaks_at], [times_us[line.breaks_at]], zorder=4, **RING)


def _above_zero(ax: Axes, xs: np.ndarray, ys: np.ndarray, **look) -> None:
    """Plot the positive part of a curve, which a logarithmic axis can show."""
    ax.plot(xs, np.where(ys > 0, ys, np.nan), marker="", **look)


def batching(findings: Findings, system: str | None = None, fixed: Fixed = None) -> Picture:
    """Latency per sample against the batch size; marks the cheapest batch and the last that is
    almost free.

    One panel per number of layers, one line per hidden size. The dashed guide shows free batching,
    which halves the latency per sample with each doubling. Raises `UsageError` if no network has
    two batch sizes.
    """
    here, note = _held(findings, findings.batching, system, "batch", fixed)
    if not here:
        raise UsageError("no network has two batch sizes: nothing to draw")
    grey = {"color": GREY}
    marks = {
        "almost free\nup to here": grey | KNEE,
        "cheapest": grey | STAR,
        "if batching\nwere free": FREE,
    }
    reading = "Almost free: doubling the batch size increases the latency by less than 10 %."
    cheapest = style.whole_range(network.cheapest for network in here)
    summary = f"The batch size with the least latency per sample is {cheapest}."
    series = [
        Series(network, {size: us / size for size, us in network.times_us.items()})
        for network in here
    ]
    title, y = "Latency per sample, by batch size", "latency per sample [µs]"
    return _picture(title, [note, reading], summary, y, "batch", series, _draw_batching, marks)


def _draw_batching(ax: Axes, series: Sequence[Series]) -> None:
    """Draw the costs of a panel, and the guide from the highest first point."""
    first, cost_us = max(
        (next(iter(each.times_us.items())) for each in series), key=lambda start: start[1]
    )
    xs = np.geomspace(first, max(size for each in series for size in each.times_us), 50)
    ax.plot(xs, cost_us * first / xs, zorder=1, **FREE)
    for network, costs_us, color in series:
        ax.plot(*zip(*costs_us.items(), strict=True), color=color, marker="o", markersize=3.2)
        if network.stops_at is not None:
            ax.plot(
                [network.free_up_to], [costs_us[network.free_up_to]], color=color, zorder=4, **KNEE
            )
        ax.plot([network.cheapest], [costs_us[network.cheapest]], color=color, zorder=5, **STAR)


def growth(findings: Findings, base: Mapping[str, int]) -> Picture:
    """Which size costs most: how latency grows when one size of the network `base` changes and the
    others stay.

    One panel per system, one line per axis: latency relative to `base` over size relative to
    `base`, both log2. `base`: all sizes of a measured network, such as `{"layers": 2, "hidden": 64,
    "sequence": 64, "batch": 1}`. Raises `UsageError` if no series of two sizes passes through it.
    """
    grown: dict[str, dict[str, dict[float, float]]] = {}
    for system, axis, fixed, line in lines(findings.times):
        if data.at(base, fixed) and base.get(axis) in line and len(line) > 1:
            start, first_us = base[axis], line[base[axis]].latency_us
            relative = {size / start: cell.latency_us / first_us for size, cell in line.items()}
            grown.setdefault(system, {})[axis] = relative
    sizes = ", ".join(data.axis_value(axis, size) for axis, size in base.items())
    if not grown:
        raise UsageError(
            f"no series of two sizes passes through the network with {sizes}: nothing to draw"
        )
    colors = dict(
        zip(findings.times.axes, style.kind_colors(len(findings.times.axes)), strict=True)
    )
    doubled = [
        f"{system}: {', '.join(f'{AXIS_NAMES[axis]} {each[2]:.2f}' for axis, each in axes.items() if 2 in each)}"
        for system, axes in grown.items()
    ]
    shown = {system: grown[system] for system in style.spread([*grown])}
    notes = [f"Medians relative to the network with {sizes}. Dotted: in proportion to the size."]
    notes.append(data.describe_shown("systems", len(shown), len(grown)))
    summary = f"Latency with one size doubled, relative to before: {'; '.join(doubled)}."
    known = {axis for axes in grown.values() for axis in axes}
    handles = [
        style.entry(AXIS_NAMES[axis], color=colors[axis], marker="o")
        for axis in colors
        if axis in known
    ]
    names, title = (
        ("size / size of the base", "latency / latency of the base"),
        "Growth of latency along each size",
    )
    with style.facets(title, notes, [[*shown]], names, handles, summary=summary) as (
        picture,
        panes,
    ):
        for ax, axes in zip(panes, shown.values(), strict=True):
            for axis, each in axes.items():
                ax.plot(
                    *zip(*each.items(), strict=True), color=colors[axis], marker="o", markersize=3.8
                )
            ends = sorted(size for each in axes.values() for size in each)
            ax.plot([ends[0], ends[-1]], [ends[0], ends[-1]], color=GREY, linestyle=":", zorder=1)
            ax.set_xscale("log", base=2)
            ax.set_yscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_major_formatter("{x:g}")
    return picture


def inversions(
    findings: Findings, axis: str, system: str | None = None, fixed: Fixed = None
) -> Picture:
    """Pairs of neighbouring sizes on one axis, one panel per pair; inverted cells show larger /
    smaller.

    A pair is inverted if the larger network is faster. White cells are not inverted, grey ones were
    not measured, and significant inversions are bold. The axis that is not drawn is held where most
    inversions are. Pairs of sizes without inversions have no panel, unless there are no inversions
    at all; of more than four rows of panels, those with the most inversions are drawn. Raises
    `UsageError` if no series has two sizes.
    """
    system = _choose_system(findings, system)
    along = [
        (rest, line)
        for label, name, rest, line in lines(findings.times)
        if (label, name) == (system, axis)
    ]
    measured = [
        ({**rest, axis: size}, larger)
        for rest, line in along
        for size, larger in itertools.pairwise(line)
    ]
    if not measured:
        raise UsageError(f"no series along {axis} has two sizes: no pair to draw")
    found = [pair for pair in findings.inversions if (pair.system, pair.axis) == (system, axis)]
    up, across = data.ARRANGEMENT[axis]
    drawn = [pair.smaller for pair in found] or [smaller for smaller, _ in measured]
    held = data.hold(drawn, (axis, across, up), fixed)
    here = [pair for pair in found if data.at(pair.smaller, held)]

    def key(smaller: Mapping[str, int], larger: int) -> tuple:
        return (smaller[axis], larger), smaller.get(across, 0), smaller.get(up, 0)

    pairs: dict[tuple, Inversion | None] = {
        key(*pair): None for pair in measured if data.at(pair[0], held)
    }
    pairs |= {key(pair.smaller, pair.larger[axis]): pair for pair in here}
    compared, all_xs, all_ys = map(set, zip(*pairs, strict=True))
    inverted_in = Counter(step for (step, _, _), pair in pairs.items() if pair)
    neighbours = itertools.pairwise(sorted({size for step in compared for size in step}))
    every = sorted(inverted_in or {*neighbours} & compared)
    xs, ys = sorted(all_xs), sorted(all_ys)
    columns = max(
        1, int((style.WIDTH_IN - 1.6) / max(len(xs) * CELL_IN[0] + 0.15, style.PANEL_IN + 0.25))
    )
    steps = sorted(sorted(every, key=lambda step: -inverted_in[step])[: columns * style.MOST_ROWS])
    cell_in = (style.WIDTH_IN - 1.6) / columns / len(xs), max(CELL_IN[1], style.PANEL_IN / len(ys))
    numbers = cells_fit([_ratio(pair) for pair in here], cell_in)
    left_out = inverted_in.total() - sum(inverted_in[step] for step in steps)
    counted = _counted(findings, here, found, len(pairs), left_out, numbers)
    colors = ScalarMappable(Normalize(min([pair.ratio for pair in here] + [0.95]), 1.0), "OrRd_r")
    title = f"Where {'more layers are' if axis == 'layers' else f'a larger {AXIS_NAMES[axis]} is'} faster"
    names: Any = tuple(
        AXIS_NAMES[name] if name in findings.times.axes else "" for name in (across, up)
    )
    how: Any = {"columns": columns, "panel_in": len(ys) * cell_in[1], "summary": counted}
    titles, notes = (
        [f"{smaller} → {larger}" for smaller, larger in steps],
        [_note(findings, system, held), counted],
    )
    with style.facets(title, notes, [titles], names, **how) as (picture, axes):
        edge = {"edgecolor": "0.82", "linewidth": edge_width(0.6, cell_in)}
        for ax, step in zip(axes, steps, strict=True):
            cells = {tuple(place): pair for (each, *place), pair in pairs.items() if each == step}
            looks = {place: _looks(pair, colors, edge, numbers) for place, pair in cells.items()}
            draw_cells(ax, xs, ys, looks, facecolor=EMPTY, **edge)
        if here:
            bar = axes[0].figure.colorbar(colors, ax=axes, aspect=14, fraction=0.05)
            bar.set_label("latency ratio, larger / smaller")
    return picture


def _counted(
    findings: Findings,
    here: list[Inversion],
    found: list[Inversion],
    compared: int,
    left_out: int,
    numbers: bool,
) -> str:
    text = f"{len(here)} of {compared} neighbouring pairs are inverted"
    if here and findings.times.raw:
        text += f", {sum(bool(pair.certain) for pair in here)} of them significantly{' (bold)' if numbers else ''}"
    if findings.min_ratio > 1:
        text += f"; only ratios of {findings.min_ratio:g} or more are counted"
    if len(found) > len(here):
        text += f"; {len(found) - len(here)} more at other sizes"
    if left_out:
        text += f"; {left_out} in panels that are not shown"
    cells = "Cells" if numbers else "Colours"
    reading = f". {cells}: ratio of latencies, larger / smaller; grey: not measured; no panel: no inversion."
    return text + (reading if here else ".")


def _ratio(pair: Inversion) -> str:
    return f"{pair.ratio:.2f}" if pair.ratio < 0.995 else f"{pair.ratio:.3f}"


def _looks(inversion: Inversion | None, colors: ScalarMappable, edge: dict, number: bool) -> Looks:
    if inversion is None:
        return {"facecolor": "white", **edge}, {}
    color = colors.to_rgba(np.array(inversion.ratio))
    ink = "white" if style.brightness(color) < 0.5 else "black"
    text = {
        "s": _ratio(inversion),
        "weight": "bold" if inversion.certain else "normal",
        "color": ink,
    }
    return {"facecolor": color, **edge}, text if number else {}
