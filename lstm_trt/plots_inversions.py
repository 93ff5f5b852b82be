"""A map of inversions: between which sizes, and where, the larger network is the faster one."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from lstm_trt.analysis.scaling import Findings, Inversion, lines
from lstm_trt.errors import UsageError
from lstm_trt.plots_scaling_parts import choose_system, hold, matches, notes, panels
from lstm_trt.plots_style import WIDTH_IN, Picture, sheet, style
from lstm_trt.plots_tables import AXIS_NAMES

#: Axis of the pairs -> (across, up) in a panel.
ARRANGEMENT = {
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
    across, up = ARRANGEMENT[axis]
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
