"""Figures of the literature's workloads: published times next to current recordings.

`bars` shows the implementations of one workload, one panel per side; `over_size` a family of workloads over its
sizes, where lines with equal slopes scale alike independent of the machine; `table_of` many shapes, one line each;
`costs` the time before the first output. Each side has its own axis and its own fastest implementation, since machine
and size differ. Failures are drawn with their reason. `draw` writes all figures for which there are recordings.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from lstm_judge.plots import style
from lstm_judge.plots.style import GREY, Picture, multiple, number
from lstm_literature import published, sides
from lstm_literature.implementations import load_implementation, names, title_and_framework
from lstm_literature.metrics import COSTS
from lstm_literature.sides import Side, SideEntry, source_text
from lstm_literature.workloads import TEXT, VARIANTS, LiteratureWorkload
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import listed

ROW_IN = 0.21
HEAD_IN = 0.62

#: Colour of frameworks in documents that have no implementation in this package.
OTHER = "0.55"


@cache
def framework_colors() -> dict[str, tuple]:
    """Colour of each framework that has an implementation: that of its runtime in all figures."""
    frameworks = [load_implementation(name).FRAMEWORK for name in names()]
    runtimes = {framework: framework.lower().replace(" ", "") for framework in frameworks}
    looks = style.runtime_looks([*runtimes.values()])
    return {framework: looks[runtime]["color"] for framework, runtime in runtimes.items()}


def color_of(implementation: str) -> tuple | str:
    """The colour of an implementation's framework, or that of its successor; grey for those without one."""
    return framework_colors().get(title_and_framework(sides.successors_of(implementation)[0])[1], OTHER)


#: Mode -> marker of its runs; half filled if the sizes are a fraction of the document's.
RUN_MARKERS = {"forward": "o", "training": "s"}

MODE_TITLES = {"forward": "forward pass", "training": "training step"}


def run_look(mode: str, scaled: bool) -> dict:
    """The marker of a run."""
    fill = {"fillstyle": "left", "markerfacecoloralt": "white"} if scaled else {}
    return {"marker": RUN_MARKERS[mode], "linestyle": "none", "markersize": 6.5, **fill}


def run_handles(runs: Iterable[tuple[str, bool]]) -> list[Line2D]:
    """Legend entries for the markers of runs: (mode, scaled)."""
    return [
        style.entry(MODE_TITLES[mode] + (", scaled down" if scaled else ""), color=GREY, **run_look(mode, scaled))
        for mode, scaled in sorted(set(runs))
    ]


#: Panels, and rows in all of them, of one figure of `bars`.
MOST_PANELS = style.MOST_ROWS
MOST_ROWS = 40


def pages(sides: Sequence[Side]) -> list[list[Side]]:
    """The sides in parts that `bars` can draw in one figure each."""
    parts: list[list[Side]] = []
    for side in sides:
        rows = sum(len(each.entries) for each in [*parts[-1], side]) if parts else math.inf
        if rows > MOST_ROWS or len(parts[-1]) == MOST_PANELS:
            parts.append([])
        parts[-1].append(side)
    return parts


def bars(sides: Sequence[Side], title: str) -> Picture:
    """One panel per side, fastest first; times per batch in ms as dots on log axes, which have no zero for bars.

    Of more than four sides four are drawn, which a note states; `pages` gives the parts for several figures. Raises
    `UsageError` if no side has an entry.
    """
    every = [side for side in sides if side.entries]
    if not every:
        raise UsageError("nothing to draw: there are no published figures and no recordings")
    sides = style.spread(every, MOST_PANELS)
    notes = [source_text([side]) for side in sides]
    if len(sides) < len(every):
        notes.append(f"{len(sides)} of {len(every)} panels are shown.")
    heights = [HEAD_IN + max(style.PANEL_IN + 0.15, ROW_IN * len(side.entries)) for side in sides]
    with style.figure(title, notes, sum(heights) + 0.25, summary=_fastest(sides)) as (picture, body):
        axes = np.atleast_1d(body.subplots(len(sides), 1, height_ratios=heights))
        for ax, side in zip(axes, sides, strict=True):
            _panel(ax, side)
        axes[-1].set_xlabel("time per batch [ms] (log); labels: time and ratio to the panel's fastest")
        style.legend_below(body, run_handles((side.mode, side.scaled) for side in sides), ncols=4)
    return picture


def _fastest(sides: Iterable[Side]) -> str:
    """The fastest implementations of each side, those that cannot be told apart together, in one sentence."""
    found = [(side, side.ranked[0].seconds) for side in sides if side.ranked]
    texts = [f"{side.name}: {side.fastest_text} ({number(1e3 * seconds)} ms)" for side, seconds in found]
    return f"Fastest: {'; '.join(texts) or 'none'}."


def costs(rows: Sequence, title: str) -> Picture:
    """Time of each implementation before its first output, in s on a log axis: one colour per kind of cost.

    All recordings of an implementation are drawn. Raises `UsageError` if the recordings have no costs.
    """
    kinds = [name.removesuffix("_s") for name in COSTS]
    found = [row for row in rows if row.statistic in kinds and row.value]
    if not found:
        raise UsageError("these recordings contain no costs (export, tuning, build)")
    found.sort(key=lambda row: row.value)
    longest = found[-1]
    titles = list({row.title: row for row in reversed(found)})[::-1]  # by the longest of each
    summary = f"Longest: {longest.statistic.replace('_', ' ')} of {longest.title}, {number(longest.value)} s."
    hardware = listed(dict.fromkeys(str(row.hardware) for row in found))
    with style.figure(
        title,
        [f"One marker per recording on {hardware}; all workloads and sizes."],
        1.3 + ROW_IN * len(titles),
        summary=summary,
    ) as (picture, body):
        ax = body.subplots()
        colors = dict(zip(kinds, style.kind_colors(len(kinds)), strict=True))
        runs = [(row.mode, row.scale != LiteratureWorkload.scale) for row in found]
        for row, run in zip(found, runs, strict=True):
            ax.plot([row.value], [titles.index(row.title)], color=colors[row.statistic], alpha=0.8, **run_look(*run))
        _rows(ax, titles, found[0].value / 1.5, longest.value * 1.5)
        ax.set_xlabel("time [s] (log)")
        shown = {row.statistic for row in found}
        handles = [Patch(color=colors[kind], label=kind.replace("_", " ")) for kind in kinds if kind in shown]
        handles += run_handles(runs)
        style.legend_below(body, handles, ncols=len(handles))
    return picture


def _rows(ax: Axes, names: Sequence[str], low: float, high: float) -> None:
    """One row per name from top to bottom, over a log axis of times."""
    style.log_axis(ax.xaxis, low, high)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)


def _panel(ax: Axes, side: Side) -> None:
    ranked = side.ranked
    rest = [entry for entry in side.entries if entry.seconds is None]
    entries = [*ranked, *sorted(rest, key=lambda entry: (entry.status == "empty", entry.title))]
    times_ms = _times_ms([side])
    low = min(times_ms) / 2.2
    high = max(times_ms) * 1.15
    reach = high * (high / low) ** 0.32  # space for the label of the longest time
    _rows(ax, [entry.title for entry in entries], low, reach)
    for place, entry in enumerate(entries):
        if entry.seconds is None:
            _missing(ax, place, entry, low)
            continue
        time_ms = 1e3 * entry.seconds
        ax.plot([time_ms], [place], color=color_of(entry.implementation), **run_look(side.mode, side.scaled))
        text = f"{number(time_ms)} ms   {multiple(side.ratio(entry))}{' ?' if entry.doubt else ''}"
        style.beside(ax, text, (time_ms, place), (8, 0), size=8.5)
    ax.tick_params(axis="y", length=0)
    if not ranked:
        ax.set_xticks([])
    ax.set_title(side.name, loc="left")


def _times_ms(sides: Iterable[Side]) -> list[float]:
    """All times of the sides, for the limits of an axis; [1.0] if there are none."""
    return [1e3 * entry.seconds for side in sides for entry in side.ranked] or [1.0]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _missing(ax: Axes, place: int, entry: SideEntry, low: float) -> None:
    """Mark a failure at the left edge, with its reason; write an empty cell of the document as text."""
    failed = entry.status == "failed"
    text = entry.reason if failed else f"no figure ({entry.reason})" if entry.reason else "no figure"
    if failed:
        ax.plot([low * (ax.get_xlim()[1] / low) ** 0.015], [place], color="#a22", **style.FAILED)
    style.beside(
        ax,
        _cut(text, 75),
        (low, place),
        (18 if failed else 4, 0),
        color="#a22" if failed else "0.45",
        size=8.5,
        bbox=style.BACKGROUND,
    )


#: Families that are drawn over a size: workload -> (field, axis label).
SIZES = {"stack": ("layers", "layers"), **dict.fromkeys(TEXT, ("hidden", "hidden size"))}


def draw(rows: Iterable, folder: str | Path, *, formats: Iterable[str] = ("png",)) -> list[Path]:
    """Write `literature-*.png` (or svg, pdf) into `folder`; returns their paths.

    Bars for every workload and mode (for `layer` all sizes in one figure, for `stack` and
    `text-classifier` a figure over the size instead), and the time of each document's implementations
    before the first output. Raises `UsageError` if the folder cannot be written.
    """
    rows = list(rows)
    pictures: dict[str, Callable[[], Picture]] = {}
    for name, mode in dict.fromkeys((row.workload, row.mode) for row in rows):
        pictures |= _of_workload(rows, name, mode)
    for document in dict.fromkeys(row.source for row in rows):
        own = [row for row in rows if row.source == document]
        if any(f"{row.statistic}_s" in COSTS for row in own):
            title = f"Document {document}: time before the first output"
            pictures[f"literature-costs-{document}"] = partial(costs, own, title)
    return style.write_pictures(pictures, folder, formats)


def _of_workload(rows: Sequence, name: str, mode: str) -> dict[str, Callable[[], Picture]]:
    """Name -> what draws it: the figures of one workload in one mode."""
    key = f"literature-{name}-{mode}"
    title = MODE_TITLES[mode]
    printed = published.of(VARIANTS[name][0].document)
    found = [(each, sides.printed(printed, each, mode), _today(rows, each, mode)) for each in VARIANTS[name]]
    if name == "layer":
        table = [(each.label, next(iter(then), None), next(iter(now), None)) for each, then, now in found]
        return {key: partial(table_of, table, "layer: batch x sequence x units")}
    if name in SIZES:
        field, axis = SIZES[name]
        # Variants with the batch and sequence of the first; recordings at the smallest scale, which has all.
        size = found[0][0].batch, found[0][0].sequence
        found = [item for item in found if (item[0].batch, item[0].sequence) == size]
        before = {getattr(workload, field): then[0] for workload, then, _ in found if then}
        today = {getattr(workload, field): now[-1] for workload, _, now in found if now}
        return {key: partial(over_size, before, today, axis, f"{name} by {axis}: {title}")}
    ((_, then, now),) = found
    *others, last = pages([*then, *now])
    parts = {f"{key}-{number}": part for number, part in enumerate(others, 1)} | {key: last}
    return {each: partial(bars, part, f"{name}: {title}") for each, part in parts.items()}


def _today(rows: Sequence, workload: LiteratureWorkload, mode: str) -> list[Side]:
    try:
        return sides.today(rows, workload, mode)
    except UsageError:  # unlike recordings
        return []


def _scale(now: Side | None) -> str:
    return f" ({now.name})" if now and now.name != "today" else ""


#: Share of a panel's height for the labels of failures.
STRIP = 0.16

SHORT = {"out of mem": "mem", "didn't run": "no run", "recursion depth": "recursion", "stack overflow": "stack"}


def over_size(then: Mapping[int, Side], now: Mapping[int, Side], axis: str, title: str) -> Picture:
    """Time per batch in ms over a size, one line per implementation; `then` and `now`: size -> side.

    The legend gives each line's growth: its time at the largest size divided by that at the
    smallest. Raises `UsageError` if no side has an entry.
    """
    panels = [{size: side for size, side in sides.items() if side.entries} for sides in (then, now)]
    panels = [sides for sides in panels if sides]
    if not panels:
        raise UsageError("nothing to draw: there are no published figures and no recordings")
    sizes = sorted({size for sides in panels for size in sides})
    most = max(len({entry.implementation for entry in _entries(sides.values())}) for sides in panels)
    notes = [source_text(list(sides.values())) for sides in panels]
    largest = [sides[max(sides)] for sides in panels]
    summary = f"{_fastest(largest)} ({axis}: {', '.join(sorted({str(max(sides)) for sides in panels}))})"
    with style.figure(title, notes, 3.4 + 0.185 * most, summary=summary) as (picture, body):
        for part, sides in zip(body.subfigures(1, len(panels), squeeze=False)[0], panels, strict=True):
            ax = part.subplots()
            _size_panel(ax, sides, sizes)
            ax.set_title(next(iter(sides.values())).name, loc="left")
            ax.set(xlabel=f"{axis} (log2)", ylabel="time per batch [ms] (log)")
            style.legend_below(part, style.handles_of(ax), fontsize=8.5)
    return picture


def _size_panel(ax: Axes, sides: Mapping[int, Side], sizes: Sequence[int]) -> None:
    looks = _looks(_entries(sides.values()))
    for title, look in looks.items():
        found = {size: entry for size, side in sides.items() for entry in side.entries if entry.title == title}
        times = {size: 1e3 * entry.seconds for size, entry in sorted(found.items()) if entry.seconds is not None}
        label = f"{title}: {_growth(times)}"
        if any(entry.doubt for entry in found.values()):
            label += " ?"
        ax.plot(list(times), list(times.values()), label=label, markersize=4.5, linewidth=1.3, **look)
    failed = {size: side.failed for size, side in sides.items() if side.failed}
    strip = STRIP if failed else 0
    times_ms = _times_ms(sides.values())
    low = min(times_ms) / 1.3
    high = max(times_ms) * 1.3
    style.log_axis(ax.yaxis, low, high)
    ax.set_ylim(low, high * (high / low) ** (strip / (1 - strip)))
    style.size_axis(ax, sizes, True)
    ax.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)  # space for the labels of failures at the largest size
    if strip:
        _failures(ax, failed)


def _failures(ax: Axes, failed: Mapping[int, Sequence[SideEntry]]) -> None:
    """The strip above a panel, with the number of failures at each size by their reason."""
    ax.add_patch(Rectangle((0, 1 - STRIP), 1, STRIP, transform=ax.transAxes, color="#fbeaea", zorder=0.5, linewidth=0))
    for size, entries in failed.items():
        reasons = Counter(SHORT.get(entry.reason, "failed") for entry in entries)
        text = "\n".join(f"{reason} {count}" for reason, count in reasons.items())
        ax.annotate(
            f"✕ {text}",
            (size, 0.99),
            xycoords=ax.get_xaxis_transform(),
            ha="center",
            va="top",
            size=8,
            color="#a22",
        )


def _growth(times: Mapping[int, float]) -> str:
    """How a line of the legend ends: what the time of the largest size is in terms of that of the smallest."""
    if not times:
        return "failed"
    (first, low), (last, high) = min(times.items()), max(times.items())
    return f"{multiple(high / low)} from {first} to {last}" if last > first else f"{number(low)} ms"


def _entries(sides: Iterable[Side]) -> list[SideEntry]:
    return list(itertools.chain.from_iterable(side.entries for side in sides))


def _looks(entries: Iterable[SideEntry]) -> dict[str, dict]:
    """Title -> line style: one colour per framework, with different dashes and markers within a framework.

    Frameworks that are not in this package get unused colours.
    """
    own = {entry.title: color_of(entry.implementation) for entry in entries}
    others = [title for title, color in own.items() if color == OTHER]
    free = [color for color in style.kind_colors(10) if color not in own.values()]
    colors = own | {title: free[number % len(free)] for number, title in enumerate(others)}
    looks = {}
    for title, color in colors.items():
        used = sum(look["color"] == color for look in looks.values())
        looks[title] = {
            "color": color,
            "marker": style.MARKERS[used % len(style.MARKERS)],
            "linestyle": style.DASHES[used % len(style.DASHES)],
        }
    return looks


def table_of(rows: Sequence[tuple[str, Side | None, Side | None]], title: str, notes: Sequence[str] = ()) -> Picture:
    """Many shapes, one line each: the document's times as open markers, today's as filled ones, in ms.

    `rows`: (label, the document's side, today's side). Failures are listed at the left edge.
    """
    rows = [row for row in rows if any(row[1:])]
    sources: list[list[Any]] = [[side for side in sides if side] for sides in list(zip(*rows, strict=True))[1:]]
    sources = [sides for sides in sources if sides]
    if not sources:
        raise UsageError("nothing to draw: there are no published figures and no recordings")
    both = list(itertools.chain(*sources))
    looks = _looks(_entries(both))
    summary = [f"{sides[0].name}: {len(sides)} shapes, {_span_text(_times_ms(sides))}" for sides in sources]
    height_in = 1.2 + 0.22 * len(rows) + 0.18 * math.ceil(len(looks) / 3)
    notes = [*map(source_text, sources), *notes]
    with style.figure(title, notes, height_in, summary=f"{'; '.join(summary)}.") as (picture, body):
        ax = body.subplots()
        times_ms = _times_ms(both)
        _rows(ax, [name + _scale(now) for name, _, now in rows], min(times_ms) / 1.4, max(times_ms) * 1.4)
        for place, (_, then, now) in enumerate(rows):
            _table_row(ax, place, {"document": then, "today": now}, looks)
        ax.set_xlabel("time per batch [ms] (log)")
        style.legend_below(body, style.handles_of(ax), ncols=3, fontsize=8, columnspacing=1.0, handletextpad=0.3)
    return picture


def _span_text(times_ms: Sequence[float]) -> str:
    return f"{number(min(times_ms))} to {number(max(times_ms))} ms"


def _table_row(ax: Axes, place: int, sides: Mapping[str, Side | None], looks: Mapping[str, dict]) -> None:
    failed = []
    for source, side in sides.items():
        where, filling = (" (document)", {"markerfacecolor": "white"}) if source == "document" else ("", {})
        for entry in side.entries if side else ():
            if entry.seconds is not None:
                look: Any = looks[entry.title] | {"linestyle": "none", "markersize": 5.5} | filling
                ax.plot([1e3 * entry.seconds], [place], label=f"{source}: {entry.title}", **look)
            elif entry.status != "empty":
                failed.append(f"{entry.title.removesuffix(', eager')}{where}: {entry.reason}")
    if failed:
        text = f"✕ {len(failed)} failed, {failed[0]}" if len(failed) > 1 else f"✕ {failed[0]}"
        style.beside(
            ax,
            _cut(text, 62),
            (0, place),
            (3, 0),
            size=8,
            color="#a22",
            bbox=style.BACKGROUND,
            xycoords=ax.get_yaxis_transform(),
        )
