"""Latency against the network size: linear fits with breaks, latency per sample, and inversions.

Each figure takes the findings of `analysis.scaling` and shows one system; sizes that are not drawn
are held at one value, which the notes state. `growth` shows all systems.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from lstm_judge.plots import points as data, style
from lstm_judge.plots.curve import Head, Series, by_size, in_blocks, line_colors
from lstm_judge.plots.heatmap import Cell, Layout, cell_maps, columns_that_fit
from lstm_judge.plots.points import AXIS_NAMES
from lstm_judge.plots.style import GREY, Picture
from lstm_judge.scaling.scaling import Findings, Inversion, Line, Neighbours, fit, lines
from lstm_judge.scaling.text import growth_text
from lstm_trt.config.errors import UsageError

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


def draw_scaling(
    findings: Findings, folder: str | Path, *, formats: Iterable[str] = ("png",)
) -> list[Path]:
    """Draw all figures that the findings allow into `folder` as `scaling-*.png` (or svg, pdf);
    returns the paths.

    For each system: fits along every axis on which a series has at least 3 sizes, a map of
    inversions if there are any, and batching. Raises `UsageError` if the folder cannot be written.
    """
    systems = findings.times.cells
    of_axes = {"by": (fits, findings.linearity), "inversions": (inversions, findings.inversions)}
    pictures: dict[str, style.Draw] = {}
    for number, system in enumerate(systems, 1):
        suffix = f"-{number}" if len(systems) > 1 else ""
        for axis in findings.times.axes:
            for name, (draw, found) in of_axes.items():
                if any((each.system, each.axis) == (system, axis) for each in found):
                    picture = partial(draw, findings, axis, system)
                    pictures[f"scaling-{name}-{axis}{suffix}"] = picture
        if any(network.system == system for network in findings.batching):
            pictures[f"scaling-batching{suffix}"] = partial(batching, findings, system)
    return style.write_pictures(pictures, folder, formats)


def _choose_system(findings: Findings, system: str | None) -> str:
    """The given system, or the only one; raises `UsageError` if it is unknown or one of several."""
    found = [name for name in findings.times.cells if system in (None, name)]
    if len(found) != 1:
        raise UsageError(f"choose one of these systems: {'; '.join(findings.times.cells)}")
    return found[0]


def _note(findings: Findings, system: str, held: Mapping[str, int]) -> str:
    """A note for the head of a figure: the source of the numbers and the fixed sizes."""
    rounds = [cell.rounds for cell in findings.times.cells[system].values() if cell.rounds]
    note = "" if system == "all" else f"{system}: "
    if rounds:
        lengths = style.whole_range(each.n for several in rounds for each in several)
        note += f"medians of n = {lengths} trials after warm-up"
        most = max(map(len, rounds))
        if most > 1:
            note += f", the middle one of up to {most} rounds"
    else:
        note += f"latencies from {Path(findings.times.where).name}"
    note += f"{findings.times.mode_text}."
    return f"{note} Fixed: {_sizes(held)}." if held else note


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(map(data.axis_value, sizes, sizes.values()))


def _held(
    findings: Findings, found: Iterable[Any], system: str | None, axis: str
) -> tuple[list[Any], str]:
    """What was found of a system along an axis at the sizes that are held fixed, and the note that
    states them."""
    system = _choose_system(findings, system)
    here = [each for each in found if each.system == system]
    held = data.hold([each.fixed for each in here], (axis, *data.ARRANGEMENT[axis]))
    return [each for each in here if data.at(each.fixed, held)], _note(findings, system, held)


@contextmanager
def _by_size(
    head: Head,
    axis: str,
    found: Sequence[tuple[Any, Mapping[int, float]]],
    y: str,
    marks: Mapping[str, dict],
    ax: Axes | None,
) -> Iterator[tuple[Picture, Iterable[tuple[Axes, list[tuple[Any, Mapping, Any]]]]]]:
    """Panels for what was `found` along an axis (a `Line` or `Batching`, and latencies by size);
    yields the axes of each, with what is drawn in it and its colour.

    `marks` maps entries of the legend to looks.
    """
    facet, colored = data.ARRANGEMENT[axis]
    series = []
    for each in found:
        fixed = each[0].fixed
        series.append(Series(each[0].system, fixed.get(facet, 0), fixed.get(colored, 0), each))
    colors = line_colors(series)
    blocks = in_blocks(series, facet)
    handles = [style.entry(label, **look) for label, look in marks.items()]
    if colored in fixed:
        handles = style.size_handles(style.folded(AXIS_NAMES[colored]), colors) + handles
    with by_size(
        replace(
            head,
            notes=[
                *head.notes,
                data.describe_shown(
                    f"values of {AXIS_NAMES[facet]}", blocks[0], {each.facet for each in series}
                ),
            ],
        ),
        blocks,
        (AXIS_NAMES[axis], y),
        handles,
        [us for _, times_us in found for us in times_us.values()],
        sorted({size for _, times_us in found for size in times_us}),
        ax=ax,
    ) as (picture, panels):
        yield (
            picture,
            [
                (panel, [(*each.found, colors[each.line]) for each in here])
                for panel, here in panels
            ],
        )


def fits(
    findings: Findings, axis: str, system: str | None = None, *, ax: Axes | None = None
) -> Picture:
    """Latency against one axis with a least-squares line through each series; breaks are marked.

    One panel and one line for each value of two other axes; a single panel into `ax` if given.
    Where latencies span more than a factor of 20, both scales are logarithmic, and straight lines
    are bent. At a break the line through the points before it is continued, dotted. Raises
    `UsageError` if no series along the axis has 3 sizes.
    """
    here, note = _held(
        findings, [line for line in findings.linearity if line.axis == axis], system, axis
    )
    if not here:
        raise UsageError(f"no series along {axis} has 3 sizes: no fit to draw")
    broken = sum(line.breaks_at is not None for line in here)
    untested = sum(line.untested_break for line in here)
    growth = growth_text(here)
    reading = (
        f"{growth[0].upper()}{growth[1:]}. Break in {broken} of {len(here)}: a point lies more"
        " than 10 % off the line through the points before it."
    )
    if untested:
        reading += f" Not tested against noise: {untested}, which takes 5 processes."
    marks = {
        "measured": {"color": GREY, "marker": "o", "markersize": 3.5, "linestyle": "none"},
        "least squares": {"color": GREY, "linewidth": 1.2},
    }
    if broken:
        marks["break"] = RING
        marks["line through\npoints before"] = {"color": GREY, "linestyle": ":"}
    with _by_size(
        Head(
            f"Latency against {AXIS_NAMES[axis]}, with fitted straight lines",
            [note, reading],
            reading,
        ),
        axis,
        [(line, line.times_us) for line in here],
        "latency [µs]",
        marks,
        ax,
    ) as (picture, panels):
        for panel, drawn in panels:
            for line, times_us, color in drawn:
                panel.plot(*_points(times_us), "o", color=color, markersize=3.8, zorder=3)
                _draw_fit(panel, line, color)
    return picture


def _points(numbers: Mapping[Any, float]) -> tuple[list[Any], list[float]]:
    """Places on x and y."""
    return [*numbers], [*numbers.values()]


def _draw_fit(ax: Axes, line: Line, color: Any) -> None:
    """Draw the straight line through all points of a series; with a break also that before it."""
    sizes, times_us = _points(line.times_us)
    _straight(ax, line.slope_us, line.intercept_us, sizes, color=color, linewidth=1.1, alpha=0.75)
    if line.breaks_at is not None:
        before = sizes.index(line.breaks_at)
        slope, intercept, _ = fit(sizes[:before], times_us[:before])
        _straight(
            ax,
            slope,
            intercept,
            sizes[: before + 1],
            color=color,
            linewidth=1.3,
            linestyle=":",
            zorder=2.5,
        )
        ax.plot([line.breaks_at], [times_us[before]], zorder=4, **RING)


def _straight(
    ax: Axes, slope: float, intercept: float, sizes: Sequence[float], **look: Any
) -> None:
    """Draw a straight line over the sizes where it is positive, as a logarithmic axis can show."""
    xs = np.linspace(sizes[0], sizes[-1], 200)
    ys = intercept + slope * xs
    ax.plot(xs, np.where(ys > 0, ys, np.nan), marker="", **look)


def batching(findings: Findings, system: str | None = None, *, ax: Axes | None = None) -> Picture:
    """Latency per sample against the batch size; marks the cheapest batch and the last that is
    almost free.

    One panel per number of layers, a single one into `ax` if given, and one line per hidden size.
    The dashed guide shows free batching, which halves the latency per sample with each doubling.
    Raises `UsageError` if no network has two batch sizes.
    """
    here, note = _held(findings, findings.batching, system, "batch")
    if not here:
        raise UsageError("no network has two batch sizes: nothing to draw")
    found = []
    for network in here:
        costs_us = {size: time_us / size for size, time_us in network.times_us.items()}
        found.append((network, costs_us))
    with _by_size(
        Head(
            "Latency per sample, by batch size",
            [note, "Almost free: doubling the batch size increases the latency by less than 10 %."],
            "The batch size with the least latency per sample is"
            f" {style.whole_range(network.cheapest for network in here)}.",
        ),
        "batch",
        found,
        "latency per sample [µs]",
        {
            "almost free\nup to here": {"color": GREY, **KNEE},
            "cheapest": {"color": GREY, **STAR},
            "if batching\nwere free": FREE,
        },
        ax,
    ) as (picture, panels):
        for panel, drawn in panels:
            for network, costs_us, color in drawn:
                panel.plot(*_points(costs_us), color=color, marker="o", markersize=3.2)
                if network.stops_at is not None:
                    knee = network.free_up_to
                    panel.plot([knee], [costs_us[knee]], color=color, zorder=4, **KNEE)
                best = network.cheapest
                panel.plot([best], [costs_us[best]], color=color, zorder=5, **STAR)
            # The guide, from the highest first point.
            size, cost_us = max(
                [min(costs_us.items()) for _, costs_us, _ in drawn], key=itemgetter(1)
            )
            xs = np.geomspace(size, max(max(costs_us) for _, costs_us, _ in drawn), 50)
            panel.plot(xs, cost_us * size / xs, zorder=1, **FREE)
    return picture


def growth(findings: Findings, base: Mapping[str, int], *, ax: Axes | None = None) -> Picture:
    """Which size costs most: how latency grows when one size of the network `base` changes and the
    others stay.

    One panel per system, a single one into `ax` if given, and one line per axis: latency relative
    to `base` over size relative to `base`, both log2. `base`: all sizes of a measured network, such
    as `{"layers": 2, "hidden": 64, "sequence": 64, "batch": 1}`. Raises `UsageError` if no series
    of two sizes passes through it.
    """
    grown = _grown(findings, base)
    if not grown:
        raise UsageError(
            f"no series of two sizes passes through the network with {_sizes(base)}:"
            " nothing to draw"
        )
    doubled = []
    for system, axes in grown.items():
        ratios = [f"{AXIS_NAMES[axis]} {each[2]:.2f}" for axis, each in axes.items() if 2 in each]
        doubled.append(f"{system}: {', '.join(ratios)}")
    shown = style.spread([*grown])
    axes = dict.fromkeys(axis for each in grown.values() for axis in each)
    looks = {
        axis: {"color": color, "marker": "o", "markersize": 3.8}
        for axis, color in zip(axes, style.kind_colors(len(axes)), strict=True)
    }
    with style.facets(
        "Growth of latency along each size",
        [
            f"Medians relative to the network with {_sizes(base)}."
            " Dotted: in proportion to the size.",
            data.describe_shown("systems", shown, grown),
        ],
        [shown],
        ("size / size of the base", "latency / latency of the base"),
        [style.entry(AXIS_NAMES[axis], **look) for axis, look in looks.items()],
        summary=f"Latency with one size doubled, relative to before: {'; '.join(doubled)}.",
        ax=ax,
    ) as (picture, panels):
        for panel, system in zip(panels, shown, strict=True):
            for axis, relative in grown[system].items():
                panel.loglog(*_points(relative), base=2, **looks[axis])
            panel.axline((1, 1), (2, 2), color=GREY, linestyle=":", zorder=1)
            panel.xaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_major_formatter("{x:g}")
    return picture


def _grown(findings: Findings, base: Mapping[str, int]) -> dict[str, dict[str, dict[float, float]]]:
    """System -> axis -> size -> latency, both relative to the network `base`, where there are
    several sizes."""
    grown: dict[str, dict[str, dict[float, float]]] = {}
    for system, axis, fixed, line in lines(findings.times):
        if data.at(base, fixed) and base.get(axis) in line and len(line) > 1:
            start_us = line[base[axis]].latency_us
            grown.setdefault(system, {})[axis] = {
                size / base[axis]: cell.latency_us / start_us for size, cell in line.items()
            }
    return grown


def inversions(
    findings: Findings, axis: str, system: str | None = None, *, ax: Axes | None = None
) -> Picture:
    """Pairs of neighbouring sizes on one axis, one panel per pair; inverted cells show larger /
    smaller.

    A pair is inverted if the larger network is faster. Grey pairs were not measured, and
    significant inversions are bold. The axis that is not drawn is held where most inversions are.
    Pairs of sizes without inversions have no panel, unless there are no inversions at all; of more
    than four rows of panels, those with the most inversions are drawn; a single panel is drawn into
    `ax` if given. Raises `UsageError` if no series has two sizes.
    """
    system = _choose_system(findings, system)
    pairs = [pair for pair in findings.neighbours if (pair.system, pair.axis) == (system, axis)]
    if not pairs:
        raise UsageError(f"no series along {axis} has two sizes: no pair to draw")
    up, across = data.ARRANGEMENT[axis]
    found = [pair for pair in pairs if isinstance(pair, Inversion)]
    held = data.hold([pair.smaller for pair in found or pairs], (axis, across, up))
    here = [pair for pair in pairs if data.at(pair.smaller, held)]
    inverted = [pair for pair in here if isinstance(pair, Inversion)]
    counted = Counter(pair.sizes for pair in inverted or here)
    layout = _layout(here, counted, across, up)
    summary = _counted(findings, inverted, len(here), len(found))
    notes = [
        _note(findings, system, held),
        f"{summary} Bold: significant. Without a panel: no inversion." if inverted else summary,
        data.describe_shown("pairs of sizes", layout.panels, counted),
    ]
    colors = ScalarMappable(
        Normalize(min(0.95, *(cell.value for cell in layout.cells)), 1.0), "OrRd_r"
    )
    with cell_maps(
        Head(f"Larger networks that are faster, by {AXIS_NAMES[axis]}", notes, summary),
        layout,
        (AXIS_NAMES[across], AXIS_NAMES[up]),
        colors,
        ax,
    ) as (picture, axes):
        if inverted:
            axes[0].figure.colorbar(colors, ax=axes, aspect=14, fraction=0.05).set_label(
                "latency ratio, larger / smaller"
            )
    return picture


def _layout(pairs: Sequence[Neighbours], counted: Counter, across: str, up: str) -> Layout:
    """A panel for each pair of sizes; of too many for those that are counted most often."""
    xs = sorted({pair.smaller.get(across, 0) for pair in pairs})
    columns = columns_that_fit(xs, len(counted))
    most = dict(counted.most_common(columns * style.MOST_ROWS))
    shown = sorted((pair for pair in pairs if pair.sizes in most), key=attrgetter("sizes"))
    return Layout(
        [_cell(pair, across, up) for pair in shown],
        xs,
        sorted({pair.smaller.get(up, 0) for pair in pairs}),
        columns,
    )


def _counted(
    findings: Findings, inverted: Sequence[Inversion], compared: int, everywhere: int
) -> str:
    """How many pairs are inverted, of those that are drawn."""
    text = f"{len(inverted)} of {compared} neighbouring pairs are inverted"
    if inverted and findings.times.raw:
        certain = sum(bool(pair.certain) for pair in inverted)
        text += f", {certain} of them significantly"
    if findings.min_ratio > 1:
        text += f"; only ratios of {findings.min_ratio:g} or more are counted"
    if everywhere > len(inverted):
        text += f"; {everywhere - len(inverted)} more at other sizes"
    return f"{text}."


def _cell(pair: Neighbours, across: str, up: str) -> Cell:
    cell = Cell(
        "{} → {}".format(*pair.sizes), pair.smaller.get(across, 0), pair.smaller.get(up, 0), 1.0
    )
    if not isinstance(pair, Inversion):
        return cell
    return replace(
        cell,
        value=pair.ratio,
        text=f"{pair.ratio:.{2 if pair.ratio < 0.995 else 3}f}",
        bold=bool(pair.certain),
    )
