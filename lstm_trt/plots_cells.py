"""Panels of coloured cells, a cell a configuration: what the heat maps of a sweep have in common.

A failure is a hatched cell with its stage, never a gap that nobody explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize, to_rgb
from matplotlib.patches import Patch, Rectangle

from lstm_trt import plots_tables as tables
from lstm_trt.plots_style import WIDTH_IN, Picture, folded, log_ticks, number, sheet, style

CELL_WIDTH_IN, CELL_HEIGHT_IN = 0.46, 0.32
MOST_PANELS = 12
#: Width of all panels side by side, without colour bar and labels.
PANELS_IN = WIDTH_IN - 1.45
#: From here on a cell tells thousands of µs.
THOUSANDS_FROM = 9_995
EMPTY = "0.93"
HATCH = "////"
#: Unlike that of a failure.
HATCH_EVIDENCE = "..."


@dataclass(frozen=True)
class Cell:
    """What one cell shows: lines of text, a colour (None: nothing measured), bold where late, a hatch."""

    words: tuple[str, ...] = ()
    color: tuple | None = None
    bold: bool = False
    hatch: str | None = None
    kind: str = "not measured"


@dataclass(frozen=True)
class Colors:
    """Latency in µs -> colour, and what the colour bar shows (None where there is no number)."""

    of: Callable[[float], tuple]
    mappable: ScalarMappable | None
    ticks: tuple[int, ...] = ()
    extend: str = "neither"


def draw_cells(
    table: pd.DataFrame,
    axes: tuple[str, str],
    facets: Sequence[str],
    fixed: dict[str, int] | None,
    value: str,
    deadline_us: float | None,
    title: str,
    reading: Sequence[str],
    cell_of: Callable[[pd.DataFrame, Colors], Cell],
    name: str,
    marks: Sequence[Patch] = (),
) -> Picture:
    """Panels of cells, coloured by the column `value` (µs); `cell_of` says what the rows of one cell show.

    `marks` are explained in the legend beside failures and what was not measured.
    """
    x, y = axes
    facets = [axis for axis in facets if axis not in (x, y, *(fixed or {})) and tables.values(table, axis)]
    while facets and len(table.drop_duplicates(["system", *facets])) > MOST_PANELS:
        facets.pop()
    table = tables.hold_fixed(table, (x, y, *facets), fixed)
    shown = [axis for axis in facets if len(tables.values(table, axis)) > 1]
    xs, ys = tables.values(table, x), tables.values(table, y)
    panels, columns = _arrange(table, shown, int(PANELS_IN / max(len(xs) * CELL_WIDTH_IN + 0.12, 1.85)))
    rows = math.ceil(len(panels) / columns)
    fit_characters = int((PANELS_IN / columns - 0.12) / 0.078)
    titles = [folded(words, fit_characters) for words, _ in panels]
    head_in = 0.2 + 0.16 * max(title.count("\n") for title in titles)
    thousands = "µs (k: thousands)." if (table[value] >= THOUSANDS_FROM).any() else "µs."
    with style():
        picture, body = sheet(
            title,
            [
                f"{tables.describe_counts(table)}. {tables.describe_fixed(table, (x, y, *shown))}",
                tables.describe_systems(table),
                " ".join([*reading, f"In each cell: {thousands}"]),
            ],
            max(rows * (max(len(ys) * CELL_HEIGHT_IN, 1.05) + head_in + 0.15) + 0.6, 2.9),
        )
        grid = body.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for place in range(len(panels), rows * columns):
            grid.flat[place].set_visible(False)
            grid.flat[place - columns].tick_params(labelbottom=True)
        colors = _colors(table, value, deadline_us)
        for ax, (_, part), words in zip(grid.flat, panels, titles, strict=False):
            ax.set_title(words, loc="left")
            _cells(ax, part, (x, xs), (y, ys), lambda rows: cell_of(rows, colors))
        if colors.mappable is not None:
            _color_bar(body, list(grid.flat), colors, name)
        holes = any(len(part.drop_duplicates([x, y])) < len(xs) * len(ys) for _, part in panels)
        handles = [Patch(facecolor=EMPTY, edgecolor="white", label="not measured")] if holes else []
        if len(tables.failed(table)):
            handles.append(Patch(facecolor="white", edgecolor="0.55", hatch=HATCH, label="failed, at the stage named"))
        handles += marks
        if handles:
            body.legend(handles=handles, loc="outside lower left", ncols=3)
    return picture


def _arrange(table: pd.DataFrame, shown: Sequence[str], fit: int) -> tuple[list[tuple[str, pd.DataFrame]], int]:
    """Panels as (title, rows of the table) in reading order, and how many stand side by side.

    With two or more dimensions the last is across, so that panels below one another compare;
    a panel without rows stays, empty. Where that does not fit `fit` panels, they just follow.
    """
    keys = ["system", *shown] if len(tables.systems(table)) > 1 or not shown else list(shown)
    across = tables.values(table, keys[-1]) if len(keys) > 1 else []
    groups = {key: part for key, part in table.groupby(keys, observed=True, sort=True)}
    if 0 < len(across) <= fit:
        order, columns = (
            [(*key, size) for key in dict.fromkeys(key[:-1] for key in groups) for size in across],
            len(across),
        )
    else:
        order, columns = list(groups), max(1, min(len(groups), fit))
    panels = []
    for key in order:
        words = [
            str(one) if axis == "system" else tables.axis_value(axis, int(one))
            for axis, one in zip(keys, key, strict=True)
        ]
        title = "" if keys == ["system"] and len(groups) == 1 else ", ".join(words)
        panels.append((title, groups.get(key, table.iloc[:0])))
    return panels, columns


def _colors(table: pd.DataFrame, value: str, deadline_us: float | None) -> Colors:
    numbers = tables.succeeded(table)[value].dropna()
    numbers = numbers[numbers > 0]
    if numbers.empty:
        return Colors(lambda _: to_rgb("white"), None)
    if deadline_us:
        farthest = np.abs(np.log2(deadline_us / numbers)).max()
        reach = min(4, max(1, math.ceil(farthest)))
        norm, scale = Normalize(-reach, reach), matplotlib.colormaps["RdBu"]
        ticks, extend = tuple(range(-reach, reach + 1)), "both" if farthest > reach else "neither"
        return Colors(lambda us: scale(norm(math.log2(deadline_us / us))), ScalarMappable(norm, scale), ticks, extend)
    low, high = float(numbers.min()), float(numbers.max())
    log_norm, scale = LogNorm(low, max(high, low * 1.1)), matplotlib.colormaps["viridis_r"]
    return Colors(lambda us: scale(log_norm(us)), ScalarMappable(log_norm, scale))


def _color_bar(body, axes: list[Axes], colors: Colors, name: str) -> None:
    bar = body.colorbar(colors.mappable, ax=axes, shrink=0.9, pad=0.02, aspect=25, extend=colors.extend)
    bar.outline.set_visible(False)
    if colors.ticks:
        words = ["1" if t == 0 else f"{2**t}×" if t > 0 else f"1/{2**-t}" for t in colors.ticks]
        bar.set_ticks(list(colors.ticks), labels=words)
        bar.set_label(f"late  ←  deadline / {name}  →  in time")
    else:
        log_ticks(bar.ax.yaxis, *colors.mappable.get_clim())
        bar.set_label(f"{name} [µs] (log)")


def _cells(ax: Axes, part: pd.DataFrame, x_axis: tuple, y_axis: tuple, cell_of: Callable[[pd.DataFrame], Cell]) -> None:
    (x, xs), (y, ys) = x_axis, y_axis
    ax.set_xlim(0, len(xs))
    ax.set_ylim(0, len(ys))
    for (i, column), (j, row) in ((a, b) for a in enumerate(xs) for b in enumerate(ys)):
        rows = part[(part[x] == column) & (part[y] == row)]
        shown = cell_of(rows)
        stages = sorted({tables.stage_of(bad) for bad in tables.failed(rows).itertuples()})
        cell = {"facecolor": EMPTY, "edgecolor": "white", "linewidth": 1.2, "gid": shown.kind}
        words, ink = list(shown.words), {"color": "0.1", "weight": "bold" if shown.bold else "normal", "bbox": None}
        if shown.color is not None:
            light = float(np.dot(to_rgb(shown.color), (0.2126, 0.7152, 0.0722)))
            cell |= {"facecolor": shown.color}
            ink |= {"color": "black" if light > 0.42 else "white"}
        hatch = HATCH if stages else shown.hatch
        if hatch:
            cell |= {"hatch": hatch, "edgecolor": "0.55" if stages else "0.35", "linewidth": 0}
            cell |= {"gid": "failed"} if stages else {}
            cell |= {} if words else {"facecolor": "white"}
            ink |= {"bbox": {"facecolor": cell["facecolor"], "edgecolor": "none", "pad": 0.6}}
            words += stages[:1]
        ax.add_patch(Rectangle((i, j), 1, 1, **cell))
        place = {"ha": "center", "va": "center", "size": 8, "linespacing": 0.95, "gid": f"cell:{column},{row}"}
        ax.text(i + 0.5, j + 0.5, "\n".join(words), **place, **ink)
    ax.set_xticks([i + 0.5 for i in range(len(xs))], [str(size) for size in xs])
    ax.set_yticks([j + 0.5 for j in range(len(ys))], [str(size) for size in ys])
    ax.grid(False)
    ax.tick_params(length=0, pad=2)
    if ax.xaxis.get_tick_params()["labelbottom"]:
        ax.set_xlabel(tables.AXIS_NAMES[x], labelpad=2)
    if ax.yaxis.get_tick_params()["labelleft"]:
        ax.set_ylabel(tables.AXIS_NAMES[y], labelpad=2)
    for spine in ax.spines.values():
        spine.set_visible(False)


def short(number_us: float) -> str:
    """Fits a cell: 84.1, 1 570, 12.3k, 123k."""
    if number_us < THOUSANDS_FROM:
        return number(number_us)
    return f"{number_us / 1000:.{1 if number_us < 99_950 else 0}f}k"
