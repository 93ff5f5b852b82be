"""All figures that can be drawn from a sweep, and its failures if nothing succeeded."""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from lstm_judge.plots import box, points as data
from lstm_judge.plots.curve import ROW_CHARACTERS, curves
from lstm_judge.plots.heatmap import heat_map, map_axes
from lstm_judge.plots.precision import precisions
from lstm_judge.plots.runtime import runtimes
from lstm_judge.plots.style import MOST_ROWS, Draw, Picture, count, figure, write_pictures
from lstm_judge.plots.tail import choose_tails, tails
from lstm_judge.plots.trials import trials_in_order
from lstm_judge.plots.version import by_version, versions
from lstm_judge.read.runs import as_runs

FAILURE_LINES = 25


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
    maximum / median; the failures if nothing succeeded. Files are written atomically; other files
    in the folder are not touched. Raises `UsageError` if there is nothing to draw or the folder
    cannot be written.
    """
    data.check_deadline(deadline_us)
    plan = _plan(as_runs(runs), deadline_us)
    return write_pictures({f"sweep-{name}": draw for name, draw in plan.items()}, folder, formats)


def _plan(runs: Any, deadline_us: float | None) -> dict[str, Draw]:
    """Name of each figure -> function that draws it."""
    points = data.points_of(runs)
    if not any(point.ok for point in points):
        return {"failures": partial(failures, runs)}
    axes = data.varied(points)
    plan: dict[str, Draw] = {}

    def add(name: str, most: int, draw: Callable[..., Picture], *given: Any, **how: Any) -> None:
        """Plan a figure of which each page has so many systems at most."""
        parts = data.pages(runs, most)
        for number, part in enumerate(parts, 1):
            plan[name + f"-{number}" * (len(parts) > 1)] = partial(draw, part, *given, **how)

    long = any(
        len(name) > ROW_CHARACTERS // 3 for name in data.systems(points)
    )  # takes two lines above its panels
    for axis in axes:
        add(f"latency-by-{axis}", MOST_ROWS - long, curves, axis, deadline_us=deadline_us)
    if len(axes) > 1:
        add("heat-map", MOST_ROWS, heat_map, *map_axes(runs), deadline_us=deadline_us)
    if len(data.systems(points)) > 1:
        plan["runtimes"] = partial(runtimes, runs, deadline_us=deadline_us)
    if (
        len(
            {
                point.precision
                for point in points
                if point.ok and point.group.parity_error is not None
            }
        )
        > 1
    ):
        plan["precisions"] = partial(precisions, runs, deadline_us=deadline_us)
    if by_version(points):
        plan["versions"] = partial(versions, runs)
    for axis in axes:
        if any(point.ok for point in data.hold_fixed(points, (axis,))):
            add(f"boxes-by-{axis}", box.MOST_ROWS, box.box_plots, axis)
    chosen = choose_tails(runs)
    plan["tails"] = partial(tails, chosen, deadline_us=deadline_us)
    plan["trials"] = partial(trials_in_order, chosen[0], deadline_us=deadline_us)
    return plan


def failures(runs: Any) -> Picture:
    """A list of the first 25 failures with stage and reason, and the number of further ones."""
    every = data.points_of(runs)
    failed = [point for point in every if point.failed]
    lines = []
    for point in failed[:FAILURE_LINES]:
        reason = next((f": {failure.reason}" for failure in point.failures if failure.reason), "")
        text = f"{point.network} on {point.system}, {point.stages[0]}{reason}"
        lines.append(textwrap.shorten(text, 125, placeholder=" …"))
    if len(failed) > FAILURE_LINES:
        lines.append(f"and {len(failed) - FAILURE_LINES} more")
    stages = Counter(point.stages[0] for point in failed)
    by_stage = ", ".join(f"{stage} {total}" for stage, total in stages.most_common())
    title = "Failures" if any(point.ok for point in every) else "No configuration succeeded"
    counted = (
        f"{count(len(failed), 'configuration')} failed, by stage: {by_stage}" if failed else ""
    )
    notes = [counted, data.describe_systems(failed)] if failed else []
    with figure(title, notes, 0.3 + 0.2 * max(len(lines), 1), summary=counted) as (picture, body):
        body.text(
            0.012,
            0.97,
            "\n".join(lines) or "Nothing failed.",
            va="top",
            ha="left",
            size=9,
            linespacing=1.5,
        )
    return picture
