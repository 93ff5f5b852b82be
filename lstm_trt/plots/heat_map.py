"""Panels of coloured cells, a cell a configuration: what the heat maps of a sweep have in common.

A failure is a hatched cell with its stage, never a gap that nobody explains.

Heat maps of a sweep: a cell a configuration, its number written in.

With a deadline the colour tells the margin, so that what is late is seen before it is
read. `heat_map` draws what was seen, `margin_map` what the trials prove.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize, to_rgb
from matplotlib.patches import Patch, Rectangle

from lstm_trt.analysis.quantiles import interval_ranks, share_of
from lstm_trt.config.errors import UsageError
from lstm_trt.plots import tables
from lstm_trt.plots.style import WIDTH_IN, Picture, folded, log_ticks, number, plain, sheet, style, whole

if TYPE_CHECKING:
    from lstm_trt.store.samples import Group


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


def heat_map(
    summary: pd.DataFrame,
    x: str = "hidden",
    y: str = "sequence",
    value: str = "max_us",
    deadline_us: float | None = None,
    fixed: dict[str, int] | None = None,
    facets: Sequence[str] = ("layers", "batch"),
) -> Picture:
    """A cell a configuration with its latency in µs written in, a panel a system and value of `facets`.

    With a deadline the colour is the margin, log2(deadline / value), and late cells are bold;
    else it is the latency on a log scale. Failures are hatched with their stage, what was not
    measured is grey. Where `facets` make more than 12 panels the last is held fixed.
    Raises `UsageError` for a column or value that is not there.
    """
    tables.check_deadline(deadline_us)
    table = tables.prepare(summary)
    if value not in table:
        raise UsageError(f"the summary has no column {value!r}")
    check_axes(table, x, y)
    name = tables.STATISTIC_NAMES.get(value, value)
    title = f"{name[0].upper()}{name[1:]} latency by {tables.AXIS_NAMES[x]} and {tables.AXIS_NAMES[y]}"
    reading = []
    if deadline_us:
        title += f", against a deadline of {number(deadline_us)} µs"
        reading.append("Colour: margin to the deadline; late cells are bold.")
    if table["round"].nunique() > 1:
        reading.append(f"Of several rounds: the {'largest' if value == 'max_us' else 'middle one'}.")

    def cell_of(rows: pd.DataFrame, colors: Colors) -> Cell:
        number_us = tables.over_rounds(rows, value)
        if not np.isfinite(number_us):
            return Cell()
        late = bool(deadline_us) and number_us > deadline_us
        return Cell((short(number_us),), colors.of(number_us), late, kind="measured")

    return draw_cells(table, (x, y), facets, fixed, value, deadline_us, title, reading, cell_of, f"{name} latency")


def check_axes(table: pd.DataFrame, x: str, y: str) -> None:
    """Raises `UsageError` where these two cannot span a map."""
    if x == y:
        raise UsageError("x and y must differ")
    for axis in (x, y):
        tables.values(table, axis)


def margin_map(
    groups: Sequence[Group],
    deadline_us: float,
    percentile: str | float | None = None,
    confidence: float = 0.95,
    x: str = "hidden",
    y: str = "sequence",
    fixed: dict[str, int] | None = None,
    facets: Sequence[str] = ("layers", "batch"),
) -> Picture:
    """What the trials prove against a deadline, a cell a configuration of this lab.

    In a cell: the exact upper bound of the percentile, an order statistic, one-sided at
    `confidence`, with what the trials are worth where they are not independent; the colour is its
    margin to the deadline. Where the bound lies beyond the maximum of the trials, the maximum is
    written after a ">". Verdicts are those of `judge`: MISSED is bold, NOT ENOUGH EVIDENCE dotted;
    failures are hatched as in `heat_map`. Without `percentile` it is, cell by cell, the highest of
    p99, p99.9, p99.99 and p99.999 that so many trials can prove.
    Raises `UsageError` where nothing of this can be drawn.
    """
    tables.check_deadline(deadline_us)
    mine = [group for group in groups if group.configuration is not None]
    if not mine:
        raise UsageError("a map needs recordings of this lab: those from elsewhere do not tell their shapes")
    rows = [_judged(group, deadline_us, percentile, confidence) for group in mine]
    machines = {row["machine"] for row in rows if row["machine"]}
    if len(machines) > 1:
        for row in rows:
            row["device_name"] += f" ({row['machine']})"
    table = tables.prepare(pd.DataFrame(rows))
    check_axes(table, x, y)
    good = tables.succeeded(table)
    asked = {words: sorted(part["n"].unique()) for words, part in good.groupby("percentile", sort=True)}
    several = [f"p{words} at n = {' or '.join(map(whole, counts))}" for words, counts in asked.items()]
    named = f"p{next(iter(asked))}" if len(asked) == 1 else "a high percentile"
    title = f"Margin to a deadline of {number(deadline_us)} µs: what the trials prove of {named}"
    reading = [f"The upper bound of {', '.join(several) or named}, exact, at {100 * confidence:g} %."]
    if percentile is None and asked:
        reading.append("It is the highest of p99, p99.9, p99.99 and p99.999 that so many trials can prove.")
    if not good.empty and good["beyond"].any():
        reading.append("After a >: the maximum; the bound lies beyond it.")
    marks = []
    if (good["verdict"] == "NOT ENOUGH EVIDENCE").any():
        label = "NOT ENOUGH EVIDENCE"
        marks.append(Patch(facecolor="white", edgecolor="0.35", hatch=HATCH_EVIDENCE, label=label))
    if (good["verdict"] == "MISSED").any():
        reading.append("Bold: MISSED.")

    def cell_of(rows: pd.DataFrame, colors: Colors) -> Cell:
        judged = tables.succeeded(rows)
        if judged.empty:
            return Cell()
        row = judged.iloc[0]
        unproven = row["verdict"] == "NOT ENOUGH EVIDENCE"
        words = (">" if row["beyond"] else "") + short(row["bound_us"])
        hatch = HATCH_EVIDENCE if unproven else None
        return Cell((words,), colors.of(row["bound_us"]), row["verdict"] == "MISSED", hatch, row["verdict"])

    return draw_cells(table, (x, y), facets, fixed, "bound_us", deadline_us, title, reading, cell_of, "bound", marks)


def map_axes(groups: Sequence[Group]) -> tuple[str, str]:
    """Two axes that span a map of these shapes: those that vary, in the order in which people ask for them."""
    shapes = [group.configuration.workload.axes for group in groups]
    order = ("hidden", "sequence", "batch", "layers", "features", "directions")
    varied = [axis for axis in order if len({shape[axis] for shape in shapes}) > 1]
    x, y, *_ = [*varied, *(axis for axis in order if axis not in varied)]
    return x, y


def _judged(group: Group, deadline_us: float, percentile: str | float | None, confidence: float) -> dict:
    """A row as `plots_tables.prepare` has them, with the bound and the verdict."""
    from lstm_trt.analysis.deadline import evidence_percentile, judge

    configuration, options = group.configuration, group.configuration.options
    machine = next((sample.machine for sample in group.samples if sample.machine), None)
    row = {
        "config_id": f"{configuration.id} {machine}",
        "round": 0,
        "machine": machine,
        "runtime": configuration.runtime,
        "runtime_version": configuration.runtime_version,
        "device_name": configuration.device_name,
        **{name: getattr(options, name) for name in ("precision", "threads", "graph", "device_clocks")},
        **configuration.workload.axes,
        "mode": configuration.mode,
        "arrival": configuration.protocol.arrival_words,
        "status": "ok",
    }
    if not group.n:
        stage = (group.failure and group.failure.stage) or ""
        return row | {"status": "failed", "stage": stage, "bound_us": np.nan, "n": 0}
    ordered = np.sort(np.concatenate([sample.timed_ns for sample in group.samples])) / 1000
    chosen = percentile if percentile is not None else evidence_percentile(len(ordered), confidence) or "99"
    verdict = judge(group.samples, deadline_us, chosen, confidence)
    rank = _bound_rank(len(ordered), chosen, confidence, verdict.effective_n / verdict.n)
    return row | {
        "n": len(ordered),
        "percentile": plain(float(chosen)),
        "bound_us": float(ordered[-1 if rank is None else rank - 1]),
        "beyond": rank is None,
        "verdict": verdict.verdict,
    }


def _bound_rank(n: int, percentile: str | float, confidence: float, worth: float) -> int | None:
    """Rank of the order statistic that is the upper bound of n trials, each worth so much; None where there is none."""
    effective_n = max(1, math.floor(n * worth + 1e-9))
    # A two-sided interval at 2c - 1 leaves 1 - c above it: the bound that the verdict rests on.
    rank = interval_ranks(effective_n, share_of(percentile), 2 * confidence - 1)[1]
    return None if rank is None else n - math.floor((effective_n - rank) / worth + 1e-9)
