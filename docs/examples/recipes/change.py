"""How much the latency changes from one call to the next."""

import numpy as np
from matplotlib.axes import Axes

from lstm_judge.plots import points as data, style
from lstm_judge.plots.style import Picture, whole
from lstm_judge.plots.trials import DOT
from lstm_judge.read.runs import RunsSource


def changes(runs: RunsSource, ax: Axes | None = None) -> Picture:
    """Differences of consecutive latencies of the first round of one configuration, in order."""
    group = data.one_group(runs)
    changes_us = np.diff(group.rounds[0].timed_ns) / 1000
    notes = [f"n = {whole(len(changes_us))} changes."]
    names = ("trial", "change [µs]")
    with style.facets(f"Changes: {group.name}", notes, [[""]], names, ax=ax) as (picture, panels):
        panels[0].plot(changes_us, **DOT, markersize=3)
    return picture
