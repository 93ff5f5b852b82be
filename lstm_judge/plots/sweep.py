"""All figures that can be drawn from a sweep."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from lstm_judge.plots import box, points as data
from lstm_judge.plots.curve import ROW_CHARACTERS, curves
from lstm_judge.plots.heatmap import heat_map, map_axes
from lstm_judge.plots.precision import precisions
from lstm_judge.plots.runtime import runtimes
from lstm_judge.plots.style import MOST_ROWS, Draw, Picture, write_pictures
from lstm_judge.plots.tail import choose_tails, tails
from lstm_judge.plots.trials import trials_in_order
from lstm_judge.plots.version import by_version, versions
from lstm_judge.read.runs import Runs, as_runs


def draw_sweep(
    runs: Any,
    folder: str | Path,
    deadline_us: float | None = None,
    *,
    formats: Iterable[str] = ("png",),
) -> list[Path]:
    """Draw all figures that the runs allow into `folder` as `sweep-*.png` (or svg, pdf); returns
    their paths.

    These are curves and box plots for every axis with more than one value, a heat map if there are
    two such axes (each on several pages if there are many systems), runtimes if there are several
    systems, latency against error if there are several precisions, medians by version if there are
    several, tails of up to 6 configurations, and the trials in order of the one with the largest
    maximum / median; none if nothing succeeded. Files are written atomically; other files in the
    folder are not touched. Raises `UsageError` if the folder cannot be written.
    """
    data.check_deadline(deadline_us)
    return write_pictures(
        {f"sweep-{name}": draw for name, draw in _plan(as_runs(runs), deadline_us).items()},
        folder,
        formats,
    )


def _plan(runs: Runs, deadline_us: float | None) -> dict[str, Draw]:
    """Name of each figure -> function that draws it."""
    points = data.points_of(runs)
    good = [point for point in points if point.ok]
    if not good:
        return {}
    axes = data.varied(points)
    systems = data.systems(points)
    plan: dict[str, Draw] = {}

    # A long name takes two lines above the panels of its system.
    rows = MOST_ROWS
    if max(map(len, systems)) > ROW_CHARACTERS // 3:
        rows -= 1
    for axis in axes:
        by_axis = partial(curves, axis=axis, deadline_us=deadline_us)
        plan |= _pages(f"latency-by-{axis}", runs, rows, by_axis)
    if len(axes) > 1:
        x, y = map_axes(runs)
        plan |= _pages(
            "heat-map", runs, MOST_ROWS, partial(heat_map, x=x, y=y, deadline_us=deadline_us)
        )
    if len(systems) > 1:
        plan["runtimes"] = partial(runtimes, runs, deadline_us=deadline_us)
    if len({point.precision for point in good if point.group.parity_error is not None}) > 1:
        plan["precisions"] = partial(precisions, runs, deadline_us=deadline_us)
    if by_version(points):
        plan["versions"] = partial(versions, runs)
    for axis in axes:
        if any(point.ok for point in data.hold_fixed(points, (axis,))):
            by_axis = partial(box.box_plots, axis=axis)
            plan |= _pages(f"boxes-by-{axis}", runs, box.MOST_ROWS, by_axis)
    chosen = choose_tails(runs)
    plan["tails"] = partial(tails, chosen, deadline_us=deadline_us)
    plan["trials"] = partial(trials_in_order, chosen[0], deadline_us=deadline_us)
    return plan


def _pages(name: str, runs: Runs, most: int, draw: Callable[[Runs], Picture]) -> dict[str, Draw]:
    """A figure of which each page has so many systems at most; several pages are numbered."""
    parts = data.pages(runs, most)
    if len(parts) == 1:
        return {name: partial(draw, runs)}
    return {f"{name}-{number}": partial(draw, part) for number, part in enumerate(parts, 1)}
