"""What the pictures of scaling share: which system, what is held fixed, panels, legends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lstm_trt.analysis.scaling import Findings
from lstm_trt.errors import UsageError
from lstm_trt.plots_style import folded
from lstm_trt.plots_tables import AXIS_NAMES, axis_value, middle

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
