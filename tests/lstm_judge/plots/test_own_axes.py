"""A figure of one panel is drawn into axes of one's own as into a figure of its own."""

from __future__ import annotations

import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes

from lstm_judge import plots
from lstm_judge.scaling.scaling import scaling
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import Grid
from tests.lstm_judge.plots.test_plots import EPYC, TORCH, faster, in_precisions, make_runs, of_versions

RUNS = make_runs(Grid((1,), (64, 128), (32,)))
GRID = make_runs(Grid((1,), (64, 128), (16, 32, 64), (1, 2)), make=faster)
FOUND = scaling(GRID).findings
BASE = {"layers": 1, "hidden": 64, "sequence": 32, "batch": 1}
DRAWN = {
    "box_plots": lambda **how: plots.box_plots(RUNS, "hidden", **how),
    "violins": lambda **how: plots.violins(RUNS, "hidden", (64, 128), **how),
    "runtimes": lambda **how: plots.runtimes(RUNS, deadline_us=1000, **how),
    "versions": lambda **how: plots.versions(of_versions("1.27.0", "1.9.0"), **how),
    "heat_map": lambda **how: plots.heat_map(GRID.where(batch=1), deadline_us=1000, **how),
    "curves": lambda **how: plots.curves(GRID, "sequence", deadline_us=1000, **how),
    "tails": lambda **how: plots.tails(RUNS, relative=False, deadline_us=1000, **how),
    "fits": lambda **how: plots.fits(FOUND, "sequence", **how),
    "batching": lambda **how: plots.batching(FOUND, **how),
    "growth": lambda **how: plots.growth(FOUND, BASE, **how),
    "inversions": lambda **how: plots.inversions(FOUND, "hidden", **how),
    "precisions": lambda **how: plots.precisions(in_precisions(RUNS.where(hidden=64), "fp32", "bf16"), **how),
}


def contents(ax: Axes) -> tuple:
    """What is drawn in axes: lines, outlines, texts, and the limits and names of the axes."""
    outlines = [path.vertices.tolist() for each in ax.collections for path in each.get_paths()]
    texts = [(text.get_text(), text.get_position()) for text in ax.texts]
    drawn = [line.get_xydata().tolist() for line in ax.lines]
    return drawn, outlines, texts, ax.axis(), ax.get_xlabel(), ax.get_ylabel()


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_of_one_panel_is_drawn_into_axes_of_ones_own(name):
    own, (ax, other) = pyplot.subplots(1, 2, figsize=(18, 5))
    assert DRAWN[name](ax=ax) is own and own.axes[:2] == [ax, other]  # a map has a colour bar
    assert not other.has_data() and not other.texts and not other.get_xlabel()
    panel = DRAWN[name]().axes[0]
    assert contents(ax) == contents(panel) and ax.has_data()
    pyplot.close(own)


def test_several_panels_do_not_fit_into_axes_of_ones_own():
    own, ax = pyplot.subplots()
    runs = make_runs(Grid((1,), (64, 128), (32,)), (EPYC, TORCH))
    with pytest.raises(UsageError, match=r"has 2: select what one of them shows \(onnxruntime, pytorch\)"):
        plots.box_plots(runs, "hidden", ax=ax)
    assert not ax.has_data()
    pyplot.close(own)
