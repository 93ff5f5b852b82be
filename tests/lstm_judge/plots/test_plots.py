"""Figures show the numbers of their runs: planted values are read back from the artists."""

from __future__ import annotations

import itertools
from base64 import b64decode
from dataclasses import replace
from functools import partial
from html import escape
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from PIL import Image

from lstm_judge import plots
from lstm_judge.plots import heatmap, style
from lstm_judge.plots.curve import EACH_ROUND, FLOOR, THICK, THIN
from lstm_judge.plots.points import points_of, system_looks
from lstm_judge.plots.style import image_bytes
from lstm_judge.plots.sweep import _plan
from lstm_judge.read.rounds import Group, NoTrials, Round
from lstm_judge.read.runs import Runs, load
from lstm_judge.scaling.scaling import scaling
from lstm_judge.statistics.quantiles import interval
from lstm_judge.statistics.trials import Trials
from lstm_judge.summarize.summarize import summarize
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import Grid, LstmShape
from lstm_trt.store.schema import Failure
from tests.conftest import ROOT, rest_is_heavy
from tests.support.packages import loaded
from tests.support.pictures import (
    assert_readable,
    cells,
    deadlines,
    labelled,
    lines,
    only,
    png_size,
    shaded,
    text_of,
)

EPYC = ("onnxruntime", "1.27.0", "AMD EPYC 9005")
XEON = ("onnxruntime", "1.27.0", "Intel Xeon 8480")
OLDER = ("onnxruntime", "1.26.0", "AMD EPYC 9005")
TORCH = ("pytorch", "2.13.0", "AMD EPYC 9005")
N, SLOW, TWICE, WARMUP = 400, 30, 6, 10


def base_us(system: tuple, shape: LstmShape) -> float:
    """Median that is planted; differs for every shape and system."""
    speed = 1 + 0.5 * [EPYC, TORCH, XEON, OLDER].index(system)
    return speed * (20 + shape.layers * shape.sequence * (0.5 + shape.hidden / 500) + shape.batch / 3)


def latencies_us(
    median_us: float, n: int = N, slow: int = SLOW, twice: int = TWICE, largest: float = 3.0
) -> np.ndarray:
    """An even body within 0.5 %, `slow` trials at 1.25 x, `twice` at 2 x, one at `largest` x; shuffled."""
    below = (n + 1) // 2 - 1  # the median is the next one: an order statistic
    above = n - below - 1 - slow - twice - 1
    body = np.r_[np.linspace(0.995, 0.9999, below), 1.0, np.linspace(1.0001, 1.005, above)]
    ratios = np.concatenate([body, np.full(slow, 1.25), np.full(twice, 2.0), [largest]])
    return median_us * np.random.default_rng(n).permutation(ratios)


def make_runs(grid, systems=(EPYC,), rounds=1, failing=None, floor=True, make=latencies_us, **protocol) -> Runs:
    """`failing(system, shape, round)` gives the stage of a failure, or None."""
    groups, failures = [], []
    for system in systems:
        for shape in grid:
            configuration = Configuration(shape, *system, Options(), Protocol(warmup=WARMUP, **protocol))
            recorded = []
            for number in range(rounds):
                stage = failing(system, shape, number) if failing else None
                if stage:
                    failures.append(Failure(configuration, number, stage, f"no {stage} left"))
                    continue
                timed = make(base_us(system, shape) * (1 + 0.01 * number))
                warm = timed[0] * np.r_[40.0, np.linspace(3, 1.5, WARMUP - 1)]
                latency_ns = np.round(np.r_[warm, timed] * 1000)
                floor_us = 0.2 * base_us(system, shape) if floor else None
                warmup = np.arange(len(latency_ns)) < WARMUP
                recorded.append(Round(latency_ns, warmup, round=number, floor_us=floor_us))
            failure = None if recorded else NoTrials(stage, f"no {stage} left")
            name = f"{shape.label} on {system[0]}"
            groups.append(Group(name, tuple(recorded), configuration=configuration, failure=failure))
    return Runs(tuple(groups), recordings=tuple(failures))


def us(group: Group) -> np.ndarray:
    """All latencies after warm-up."""
    return np.concatenate([round_.timed_ns for round_ in group.rounds]) / 1000


def median_us(group: Group) -> float:
    return float(np.quantile(us(group), 0.5, method="inverted_cdf"))


def medians(figure) -> list:
    """Lines of the statistic in a picture of curves."""
    return lines(figure, linewidth=THICK["linewidth"], marker="o") + lines(figure, linewidth=1.5, marker="s")


def points_drawn(found) -> list[tuple[float, float]]:
    return sorted(pair for line in found for pair in zip(*line.get_data(), strict=True))


SWEEP = Grid((1, 2), (64, 128), (32, 64, 128), (1, 4, 32))


@pytest.fixture(scope="module")
def sweep():
    return make_runs(SWEEP)


def test_curves_hold_every_configuration_at_what_is_fixed(sweep):
    figure = plots.curves(sweep, "sequence")
    assert "Fixed: batch 1, 12 input features, unidirectional." in text_of(figure)
    assert "n = 400 trials" in text_of(figure)
    assert "onnxruntime 1.27.0 (fp32, threads 1) on AMD EPYC 9005" in text_of(figure)
    shapes = {group.configuration.workload: group for group in sweep.where(batch=1)}
    drawn = points_drawn(medians(figure))
    assert drawn == sorted((shape.sequence, median_us(group)) for shape, group in shapes.items())
    drawn = points_drawn(lines(figure, linewidth=THIN["linewidth"]))
    assert drawn == sorted((shape.sequence, us(group).max()) for shape, group in shapes.items())
    floors = sorted(y for _, y in points_drawn(lines(figure, linestyle=FLOOR["linestyle"])))
    assert floors == sorted(group.rounds[0].floor_us for group in shapes.values())
    assert [ax.get_title(loc="left") for ax in figure.axes if ax.get_visible()] == ["1 layer", "2 layers"]


def test_curves_swap_lines_and_sizes(sweep):
    figure = plots.curves(sweep.where(batch=32), "hidden")
    assert {"32", "64", "128", "sequence length"} <= set(text_of(figure).splitlines()) and "batch 32" in text_of(figure)
    assert {tuple(line.get_xdata()) for line in medians(figure)} == {(64, 128)} and len(medians(figure)) == 6


def table_beside(rows: dict[str, dict[tuple[int, int, int, int], float]]) -> pd.DataFrame:
    """Label -> (layers, hidden, sequence, batch) -> us, as a table of numbers from elsewhere."""
    found = [
        dict(zip(("layers", "hidden", "sequence", "batch"), sizes, strict=True), label=label, latency_us=us)
        for label, numbers in rows.items()
        for sizes, us in numbers.items()
    ]
    return pd.DataFrame(found)


def test_numbers_from_elsewhere_lie_beside_the_curves():
    runs = make_runs(Grid((1, 2), (64, 128), (32, 64)), (EPYC, TORCH), floor=False)
    old = {(1, 64, 32, 1): 7.0, (1, 64, 64, 1): 9.0, (1, 64, 512, 1): 70.0, (2, 128, 32, 1): 11.0}
    left_out = {(1, 64, 32, 4): 1.0, (4, 64, 32, 1): 2.0, (1, 400, 32, 1): 3.0}  # batch, panel, line of no recording
    new = {(1, 128, 64, 1): 5.0}
    table = table_beside({"Old machine": old | left_out, "New machine": new})
    figure = plots.curves(runs, "sequence", beside=table)
    first, second = (ax for ax in figure.axes if ax.get_visible())
    open_lines = [line for line in lines(figure, markerfacecolor="white") if line.get_linewidth() == 1.5]
    drawn = sorted(sorted(zip(*line.get_data(), strict=True)) for line in open_lines)
    assert drawn == [[(32, 7.0), (64, 9.0), (512, 70.0)], [(32, 11.0)], [(64, 5.0)]]
    # One look per machine, in all panels; none is that of a recorded system, and colours are those of the lines.
    every = lines(figure, linewidth=THICK["linewidth"])
    looks = [{(line.get_marker(), str(line._dash_pattern)) for line in each} for each in (open_lines, every)]
    assert len(looks[0]) == 2 and len(looks[1]) == 4
    assert len({marker for marker, _ in looks[1]}) == len({dashes for _, dashes in looks[1]}) == 4
    recorded = plots.curves(runs, "sequence")
    colors = {tuple(line.get_xdata()): line.get_color() for line in lines(first) if line in open_lines}
    assert colors[32, 64, 512] != colors[(64,)] and {*colors.values()} <= {
        line.get_color() for line in medians(recorded)
    }
    # No maximum and no round: every further number in the panels is that of a recording.
    before, after = (points_drawn(lines(each)) for each in (recorded, figure))
    added = [pair for pair in after if pair not in before and np.isfinite(pair[1])]
    assert sorted(added) == sorted(pair for each in drawn for pair in each)
    assert "Open markers: one number each, from elsewhere: New machine; Old machine." in text_of(figure)
    assert {"Old machine", "New machine"} <= set(text_of(figure).splitlines())
    assert second.get_xlim()[1] > 512
    assert_readable(figure)


def test_numbers_from_elsewhere_get_panels_of_their_own_if_the_recordings_do():
    runs = make_runs(Grid((1, 2), (32, 64, 96, 128, 256), (32, 64)), (EPYC, TORCH), floor=False)
    table = table_beside({"Old machine": {(1, 64, 32, 1): 7.0, (2, 64, 64, 1): 9.0}})
    figure = plots.curves(runs, "sequence", beside=table)
    (title,) = [ax.get_title(loc="left") for ax in figure.axes if "Old" in ax.get_title(loc="left")]
    assert title == "Old machine\n1 layer"
    found = [line for line in lines(figure, markerfacecolor="white") if line.get_linewidth() == 1.5]
    assert points_drawn(found) == [(32, 7.0), (64, 9.0)] and {line.get_marker() for line in found} == {"*"}
    assert_readable(figure)


def test_a_table_without_these_networks_changes_nothing():
    runs = make_runs(Grid((1, 2), (64,), (32, 64)))
    before = plots.curves(runs, "sequence")
    after = plots.curves(runs, "sequence", beside=table_beside({"Old machine": {(1, 65, 32, 1): 7.0}}))
    assert text_of(before) == text_of(after) and points_drawn(lines(before)) == points_drawn(lines(after))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns=["hidden", "latency_us"]), "lacks the columns hidden, latency_us"),
        (lambda table: pd.concat([table, table]), "has 'Old machine' twice at one size"),
        (lambda table: table.assign(label="onnxruntime"), "has 'onnxruntime' twice at one size"),
    ],
)
def test_a_table_beside_that_cannot_be_drawn_is_refused(change, message):
    runs = make_runs(Grid((1,), (64,), (32, 64)))
    table = table_beside({"Old machine": {(1, 64, 32, 1): 7.0}})
    with pytest.raises(UsageError, match=message):
        plots.curves(runs, "sequence", beside=change(table))


def halves(figure) -> list[np.ndarray]:
    """The outline of each half of the violins, as (x, y), from the left."""
    (ax,) = figure.axes
    outlines = [path.vertices for each in ax.collections for path in each.get_paths()]
    return sorted(outlines, key=lambda outline: outline[:, 0].mean())


def test_a_violin_shows_two_sizes_as_its_halves():
    """Left the smaller size, with a mode more and another reach than the larger one."""

    def make(median: float) -> np.ndarray:
        small = median < 150
        return latencies_us(median, slow=150 if small else 0, largest=2.5 if small else 4.0)

    runs = make_runs([LstmShape(2, 64, 64), LstmShape(2, 256, 64), LstmShape(2, 400, 64)], make=make)
    figure = plots.violins(runs, "hidden", (400, 64))
    left, right = halves(figure)
    assert left[:, 0].max() == pytest.approx(0) and right[:, 0].min() == pytest.approx(0)
    assert -left[:, 0].min() == pytest.approx(right[:, 0].max(), rel=0.02)  # the same maximum
    ends = [(outline[:, 1].min(), outline[:, 1].max()) for outline in (left, right)]
    assert ends == [pytest.approx((-0.005, top - 1), abs=1e-3) for top in (2.5, 4.0)]

    def width_at(outline: np.ndarray, level: float) -> float:
        return float(np.abs(outline[np.argsort(np.abs(outline[:, 1] - level))[:4], 0]).max())

    assert width_at(left, 0.25) > 2 * width_at(left, 0.1) > 0  # 150 trials at 1.25 times the median
    assert width_at(right, 0.25) < width_at(left, 0.25) / 3
    small, large = (base_us(EPYC, LstmShape(2, hidden, 64)) for hidden in (64, 400))
    assert f"onnxruntime {small:.3g} µs | {large:.3g} µs" in text_of(figure)
    assert "by hidden size: 64 (left) and 400 (right)" in text_of(figure) and "2 layers" in text_of(figure)
    assert_readable(figure)


def test_a_violin_needs_both_sizes_on_one_system():
    grid = Grid((1,), (64, 128), (32,))
    gone = {(TORCH, 128), (XEON, 64)}
    fails = lambda system, shape, _: "memory" if (system, shape.hidden) in gone else None  # noqa: E731
    figure = plots.violins(make_runs(grid, (EPYC, TORCH), failing=fails), "hidden", (64, 128))
    (ax,) = figure.axes
    assert [label.get_text().split("\n")[0] for label in ax.get_xticklabels()] == ["onnxruntime"]
    assert len(halves(figure)) == 2
    with pytest.raises(UsageError, match="no system has trials at hidden 64 and 128"):
        plots.violins(make_runs(grid, (TORCH,), failing=fails), "hidden", (128, 64))


def test_curves_of_too_many_systems_are_a_part_which_is_stated():
    (group,) = make_runs([LstmShape(1, 64, 32)])
    several = [replace(group, configuration=replace(group.configuration, runtime=f"r{n:03}")) for n in range(51)]
    figure = plots.curves(several, "hidden")
    assert "4 of 51 systems are shown." in text_of(figure) and len(medians(figure)) == 4
    assert_readable(figure)


def test_a_runtime_has_one_colour_and_one_marker_in_all_figures():
    grid = Grid((1,), (64,), (32, 64))
    both, all_runtimes = make_runs(grid, (EPYC, TORCH)), (*style.RUNTIMES, "mine", "another")
    groups = [
        replace(group, configuration=replace(group.configuration, runtime=name))
        for group in make_runs(grid)
        for name in all_runtimes
    ]
    looks = system_looks(points_of(groups))
    assert len({look["marker"] for look in looks.values()}) == len(all_runtimes)
    assert len({look["color"] for look in looks.values()}) == len(all_runtimes)
    two = system_looks(points_of(both))
    assert two == {name: looks[name] for name in ("onnxruntime", "pytorch")}
    alone = system_looks(points_of(both.where(runtime="pytorch")))
    assert list(alone.values()) == [looks["pytorch"]]
    several = in_precisions(both, "fp32", "bf16")
    for figure in (plots.runtimes(both), plots.precisions(several), plots.curves(both.where(hidden=64), "sequence")):
        drawn = {(line.get_color(), line.get_marker()) for line in lines(figure)}
        assert {(look["color"], look["marker"]) for look in two.values()} <= drawn


def test_further_systems_of_a_runtime_are_darker_by_the_same_factor():
    runs = in_precisions(make_runs(ONE, (EPYC, TORCH)), "fp32", "bf16", "int8")
    looks = system_looks(points_of(runs))
    for runtime in ("onnxruntime", "pytorch"):
        first, second, third = (np.array(look["color"]) for name, look in looks.items() if name.startswith(runtime))
        assert np.allclose(second, first * 0.62) and np.allclose(third, second * 0.62)


def test_machines_differ_by_line_style():
    looks = system_looks(points_of(make_runs(ONE, (EPYC, XEON, TORCH))))
    assert len({str(look["linestyle"]) for look in looks.values()}) == 2
    assert len({look["marker"] for look in looks.values()}) == 2


def test_batches_stand_on_a_log2_axis():
    ax = plots.curves(make_runs([LstmShape(1, 64, 32, batch) for batch in (1, 4, 32)], floor=False), "batch").axes[0]
    assert ax.get_yscale() == "linear"
    assert ax.get_xscale() == "log" and ax.xaxis.get_transform().base == 2
    ticks = [*ax.xaxis.get_majorticklocs(), *ax.xaxis.get_minorticklocs()]
    assert sorted(ticks) == [1, 4, 32]


def test_deadline_and_maximum_as_the_statistic(sweep):
    figure = plots.curves(sweep, "sequence", statistic="max_us", deadline_us=333)
    assert [set(line.get_ydata()) for line in deadlines(figure)] == [{333}, {333}]
    assert "deadline 333 µs" in text_of(figure) and "Latency against sequence length: maximum" in text_of(figure)
    assert not lines(figure, linewidth=THIN["linewidth"])
    assert max(y for _, y in points_drawn(medians(figure))) == max(us(group).max() for group in sweep.where(batch=1))


def test_latency_is_logarithmic_above_twenty_fold():
    narrow = make_runs(Grid((1,), (64,), (32, 64)), floor=False)
    wide = make_runs(Grid((1,), (64,), (1, 4096)), floor=False)
    assert plots.curves(narrow, "sequence").axes[0].get_yscale() == "linear"
    assert plots.curves(wide, "sequence").axes[0].get_yscale() == "log"


def test_failures_are_marked_in_every_picture():
    def failing(system, shape, _):
        return "memory" if (shape.hidden, shape.sequence, system) == (128, 128, EPYC) else None

    runs = make_runs(Grid((1,), (64, 128), (32, 128)), (EPYC, TORCH), failing=failing)
    figure = plots.curves(runs, "sequence")
    assert [list(line.get_xdata()) for line in lines(figure, marker="x")] == [[128]]
    assert "memory: 1" in text_of(figure)
    floors = [round_.floor_us for group in runs for round_ in group.rounds]
    assert figure.axes[0].get_ylim()[0] < min(floors)  # room for the marks below the numbers

    figure = plots.heat_map(runs)
    text, patch = cells(figure.axes[0])[128, 128]
    assert text.get_text() == "memory" and patch.get_hatch()
    assert [len(ax.patches) for ax in figure.axes[:2]] == [1, 0]
    assert "failed at the named stage" in text_of(figure)

    assert "× failed: memory" in text_of(plots.runtimes(runs))
    assert "failed: memory" in text_of(plots.box_plots(runs, "sequence", fixed={"hidden": 128}))


def test_a_round_that_failed_is_marked_beside_those_that_ran():
    runs = make_runs(
        Grid((1,), (64,), (32, 64)), rounds=3, failing=lambda system, shape, number: "run" if number == 1 else None
    )
    figure = plots.curves(runs, "sequence")
    assert len(lines(figure, marker="x")) == 2 and len(only(medians(figure)).get_xdata()) == 2
    assert "run: 2" in text_of(figure)


def test_outliers_are_counted_as_the_founding_document_does():
    body = [10.0, 11, 12, 13, 14]  # quartiles 11 and 13 stay: one outlier is added on either side
    assert Trials(1e3 * np.array(body)).outliers == 0
    inside, outside = Trials(1e3 * np.array([*body, 7.0, 17.0])), Trials(1e3 * np.array([*body, 5.9, 18.1]))
    assert inside.quartiles_us == outside.quartiles_us == (10.5, 13.5)  # numpy's linear ones: reach 4.5
    assert inside.outliers == 0 and list(outside.latency_us[outside.is_outlier]) == [5.9, 18.1]


def test_outliers_beside_a_box_are_those_of_the_table():
    runs = load(ROOT / "data" / "epyc" / "outliers")
    table = [row.statistics["outliers"] for row in summarize(runs, clusters=False)]
    assert [point.rounds[0].outliers for point in points_of(runs)] == table
    assert table[1] == 2747  # nine trials are exactly on a fence


def test_box_plots_show_the_planted_outliers(sweep):
    figure = plots.box_plots(sweep, "batch", fixed={"layers": 2, "hidden": 64, "sequence": 64})
    ax = figure.axes[0]
    assert text_of(figure).splitlines().count(f"{SLOW + TWICE + 1} of {N}") == 3
    outliers = [line for line in lines(figure, marker="o") if line.get_alpha()]
    for line in outliers:
        planted = np.repeat([0.25, 1.0, 2.0], [SLOW, TWICE, 1])
        np.testing.assert_allclose(np.sort(line.get_ydata()), planted, atol=1e-4)
    assert len(outliers) == 3
    labels = [label.get_text() for label in ax.get_xticklabels()]
    medians = [base_us(EPYC, LstmShape(2, 64, 64, batch)) for batch in (1, 4, 32)]
    for label, batch, median in zip(labels, (1, 4, 32), medians, strict=True):
        size, shown = label.split("\n")
        assert int(size) == batch and shown == f"{median:.3g}"
    assert text_of(figure).count("max 3.00×") == 3
    assert ax.get_yscale() == "asinh"
    low, high = ax.get_ylim()
    assert low < -0.005 and high > 2.0  # all trials are within the limits


def test_box_plot_axis_is_linear_within_the_iqr(sweep):
    ax = plots.box_plots(sweep, "sequence").axes[0]
    (group,) = sweep.where(layers=1, hidden=64, sequence=32, batch=1)
    low, high = np.quantile(us(group), (0.25, 0.75))
    assert ax.yaxis.get_transform().linear_width == pytest.approx((high - low) / np.median(us(group)), rel=0.02)


def share_above(line, level: float) -> float:
    x, y = line.get_data()
    return y[np.searchsorted(x, level, side="right") - 1] if level >= x[0] else 1.0


def evidence_levels(figure) -> set[float]:
    """Heights of the dotted lines across the picture."""
    found = [line for line in lines(figure.axes[0]) if line.get_linewidth() <= 1.1 and line.is_dashed()]
    return {line.get_ydata()[0] for line in found if line.get_ydata()[0] == line.get_ydata()[-1] < 1}


def test_tails_are_the_exact_share():
    (group,) = make_runs([LstmShape(1, 64, 32)])
    figure = plots.tails(group, deadline_us=1.5 * median_us(group))
    line = only(labelled(figure, group.name))
    assert line.get_drawstyle() == "steps-post"
    ratios = np.sort(us(group)) / median_us(group)
    for ratio in (0.99, 1.0, 1.1, 1.3, 1.999, 2.5):
        assert share_above(line, ratio) == np.mean(ratios > ratio)
    x, y = line.get_data()
    assert (x[-1], y[-1]) == (ratios[-1], 1 / N) and line.get_markevery() == [len(x) - 1]
    level = only(sorted(evidence_levels(figure)))
    assert (1 - level) ** N == pytest.approx(0.05)  # of this rate no event in 400 trials has a chance of 5 %
    assert f"misses {TWICE + 1} of {N}" in text_of(figure)
    assert f"Misses: above {style.number(1.5 * median_us(group))} µs." in text_of(figure)
    assert not deadlines(figure)  # it is another multiple for each configuration


def test_the_control_run_stands_beside_the_tails():
    runs = make_runs([LstmShape(1, 64, 32), LstmShape(1, 128, 32)])
    noise_ns = np.full(200, 300.0)
    noise_ns[7] = 70_300.0
    first = replace(runs[0], rounds=(replace(runs[0].rounds[0], control_ns=noise_ns),))
    figure = plots.tails([first, runs[1]])
    network, machine = figure.axes
    line = only([line for line in lines(machine) if len(line.get_xdata()) > 2])
    assert line.get_color() == only(labelled(network, first.name)).get_color()
    assert (line.get_xdata()[0], line.get_xdata()[-1]) == (0.3, 70.3) and share_above(line, 1.0) == 1 / 200
    assert len(plots.tails(runs).axes) == 1


def test_recordings_of_different_length_have_a_line_each():
    runs = make_runs([LstmShape(1, 64, 32)])
    longer = make_runs([LstmShape(1, 64, 64)], make=lambda us: latencies_us(us, n=2000))
    levels = evidence_levels(plots.tails([*runs, *longer]))
    assert sorted(levels) == pytest.approx([3 / 2000, 3 / 400], rel=0.01)


def test_trials_in_order_mark_warm_up_and_outliers():
    (group,) = make_runs([LstmShape(1, 64, 32)])
    median = median_us(group)
    figure = plots.trials_in_order(group)
    assert len(only(lines(figure, label="outside 1.5 × IQR (box plot)")).get_xdata()) == SLOW + TWICE + 1
    assert len(only(lines(figure, label="within 1.5 × IQR")).get_xdata()) == N - SLOW - TWICE - 1
    span = only(shaded(figure, "warm-up"))
    assert (span.get_x(), span.get_width()) == (-0.5, WARMUP)
    assert len(only(lines(figure, marker=".", color="0.4")).get_xdata()) == WARMUP
    guides = {line.get_ydata()[0] for line in lines(figure) if line.is_dashed()}
    assert guides == {1.25 * median, 2 * median}
    assert "1 of 10 warm-up trials above" in text_of(figure)
    assert sum(bar.get_width() for bar in figure.axes[1].patches) == N  # the histogram holds every trial
    assert "1x64-s32-b1" in text_of(figure)


def test_trials_in_order_state_a_deadline_that_is_far_away():
    figure = plots.trials_in_order(make_runs([LstmShape(1, 64, 32)]), deadline_us=1e6)
    assert "▲ deadline at 1\u2009000\u2009000 µs" in text_of(figure) and not deadlines(figure)


def test_settling_trials_in_the_middle_are_shaded_too():
    (group,) = make_runs([LstmShape(1, 64, 32)])
    warmup = group.rounds[0].warmup.copy()
    warmup[200:203] = True
    figure = plots.trials_in_order(replace(group, rounds=(replace(group.rounds[0], warmup=warmup),)))
    assert [(patch.get_x(), patch.get_width()) for patch in shaded(figure, "warm-up")] == [(-0.5, 10), (199.5, 3)]


def test_heat_map_marks_misses_and_what_was_not_measured(sweep):
    gone = LstmShape(1, 128, 32)
    runs = [group for group in sweep.where(batch=1) if group.configuration.workload != gone]
    deadline = float(np.median([us(group).max() for group in runs]))
    figure = plots.heat_map(runs, deadline_us=deadline)
    panels = {ax.get_title(loc="left"): cells(ax) for ax in figure.axes if ax.get_title(loc="left")}
    for group in runs:
        shape, largest = group.configuration.workload, us(group).max()
        text, _ = panels[f"{shape.layers} layer{'s' * (shape.layers > 1)}"][shape.hidden, shape.sequence]
        assert float(text.get_text().replace("\u2009", "")) == pytest.approx(largest, rel=0.01)
        assert (text.get_weight() == "bold") == (largest > deadline)
    text, patch = panels["1 layer"][128, 32]
    assert text is None and patch.get_facecolor() == to_rgba(heatmap.EMPTY) and "not measured" in text_of(figure)
    assert sum(text is not None for panel in panels.values() for text, _ in panel.values()) == len(runs)


def titles(figure) -> list[str]:
    """Titles of the panels."""
    return [ax.get_title(loc="left") for ax in figure.axes if ax.get_title(loc="left")]


def test_heat_map_keeps_within_its_panels(sweep):
    many = make_runs(Grid((1, 2, 3, 4, 6), (64, 128), (32, 64), (1, 2, 4)))
    figure = plots.heat_map(many)
    assert len(titles(figure)) == 5 and "batch 1" in text_of(figure)
    assert len(titles(plots.heat_map(sweep))) == 6


def test_runtimes_write_the_ratio_to_the_fastest():
    runs = make_runs(Grid((1,), (64,), (32, 64)), (EPYC, TORCH))
    figure = plots.runtimes(runs, deadline_us=100)
    assert [text.get_text() for text in figure.axes[0].texts].count("1×") == 4
    assert [text.get_text() for text in figure.axes[0].texts].count("1.50×") == 4
    drawn = {line.get_xdata()[0] for line in lines(figure) if line.get_marker() in ("o", "s")}
    assert drawn == {median_us(group) for group in runs} | {us(group).max() for group in runs}
    many = make_runs(SWEEP, (EPYC, TORCH))
    assert "10 of 36 networks" in text_of(plots.runtimes(many))
    assert len(plots.runtimes(many).axes[0].get_yticks()) == 10


ERRORS = {"fp32": 0.0, "tf32": 2e-4, "fp16": 3e-4, "bf16": 2e-3, "int8": 9e-3}


def in_precisions(runs: Runs, *names: str, errors=ERRORS) -> Runs:
    """Each group in each precision with its error; lower ones are faster."""
    groups = []
    for group in runs:
        for order, name in enumerate(names):
            options = replace(group.configuration.options, precision=name)
            rounds = group.rounds
            if errors[name] is not None:
                rounds = [
                    replace(
                        each,
                        latency_ns=each.latency_ns / (1 + order),
                        facts={"parity.error": errors[name] * (1 + each.round)},
                    )
                    for each in group.rounds
                ]
            configuration = replace(group.configuration, options=options)
            groups.append(replace(group, rounds=tuple(rounds), configuration=configuration))
    return Runs(tuple(groups))


def test_latency_against_error_has_a_dot_for_each_precision():
    runs = in_precisions(make_runs(Grid((1,), (64,), (32, 64)), (EPYC, TORCH), rounds=2), *ERRORS)
    figure = plots.precisions(runs, deadline_us=50)
    assert len(figure.axes) == 2 and "2 of 2" not in text_of(figure)
    for ax, sequence in zip(figure.axes, (32, 64), strict=True):
        here = runs.where(sequence=sequence)
        dots = [line for line in ax.lines if line.get_marker() in ("o", "s")]
        assert points_drawn(dots) == sorted((group.parity_error or 0, middle_us(group)) for group in here)
        assert sorted(text.get_text() for text in ax.texts) == sorted([*ERRORS] * 2)
        bars = [
            tuple(line.get_ydata()) for line in ax.lines if len(line.get_ydata()) == 2 and line not in deadlines(ax)
        ]
        intervals = [interval(np.sort(round_.timed_ns) / 1000, 0.5) for group in here for round_ in group.rounds]
        assert np.allclose(sorted(bars), sorted(intervals))
    ticks = figure.axes[-1].xaxis
    assert ticks.get_major_formatter()(ticks.get_majorticklocs()[0]) == "0"
    assert {line.get_label() for line in figure.findobj(Line2D)} >= {"onnxruntime", "pytorch"}
    assert "onnxruntime, int8 in 2 of 2 networks" in figure.alt and "0 to 1.8e-02" in figure.alt


def middle_us(group: Group) -> float:
    """The lower middle of the rounds' medians."""
    return float(np.sort([np.quantile(each.timed_ns / 1000, 0.5, method="inverted_cdf") for each in group.rounds])[0])


def test_latency_against_error_leaves_out_what_was_not_checked():
    runs = make_runs(ONE, (EPYC, TORCH))
    with pytest.raises(UsageError, match="nothing to draw"):
        plots.precisions(runs)
    partly = in_precisions(runs, "fp32", "bf16", errors={"fp32": None, "bf16": 1e-3})
    assert "2 configurations not checked" in text_of(plots.precisions(partly))
    assert "precisions" not in _plan(partly, None) and "precisions" not in _plan(runs, None)
    assert "precisions" in _plan(in_precisions(runs, "fp32", "bf16"), None)


def test_machines_and_versions_are_lines_of_their_own():
    runs = make_runs(Grid((1,), (64,), (32, 64)), (EPYC, XEON, OLDER))
    figure = plots.curves(runs, "sequence")
    legend = text_of(figure)
    for system in (
        "onnxruntime, 1.26.0, AMD EPYC 9005",
        "onnxruntime, 1.27.0, AMD EPYC 9005",
        "onnxruntime, 1.27.0, Intel Xeon 8480",
    ):
        assert system in legend
    drawn = lines(figure, linewidth=THICK["linewidth"])
    assert len(drawn) == 3
    assert [y for _, y in points_drawn(drawn)] == [y for _, y in sorted(
        (group.configuration.workload.sequence, median_us(group)) for group in runs)]  # fmt: skip
    assert sum(ax.get_visible() for ax in plots.box_plots(runs, "sequence").axes) == 3


def of_versions(*names: str) -> Runs:
    """One network under several versions, in 3 rounds; each version has other planted medians."""
    systems = (OLDER, EPYC, TORCH)[: len(names)]
    groups = [
        replace(group, configuration=replace(group.configuration, runtime="onnxruntime", runtime_version=name))
        for system, name in zip(systems, names, strict=True)
        for group in make_runs(ONE, (system,), rounds=3)
    ]
    return Runs(tuple(groups))


def test_versions_have_a_dot_per_round_and_the_ratio_to_the_oldest():
    runs = of_versions("1.27.0", "1.9.0")
    figure = plots.versions(runs)
    ax = only(figure.axes)
    newer, older = (sorted(median for median, _ in rounds_us(group)) for group in runs)
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["1.9.0\n1.00", f"1.27.0\n{newer[1] / older[1]:.2f}"]  # by number, not by letter
    drawn = [sorted(line.get_ydata()) for line in lines(figure, linestyle="None", marker="o")]
    assert np.allclose(drawn, np.divide([older, newer], older[1]))
    assert f"1 = {style.number(older[1])} µs" in text_of(figure) and "AMD EPYC 9005" in text_of(figure)
    with pytest.raises(UsageError, match="two versions"):
        plots.versions(of_versions("1.27.0"))


def rounds_us(group: Group) -> list[tuple[float, float]]:
    """Median and maximum of each round."""
    return [(each.median_us, each.max_us) for each in points_of([group])[0].rounds]


def test_growth_is_relative_to_the_base_along_each_axis():
    runs = make_runs(Grid((1, 2, 4), (64,), (32, 64), (1, 8)))
    base = {"layers": 2, "hidden": 64, "sequence": 32, "batch": 1}
    figure = plots.growth(scaling(runs).findings, base)
    start_us = median_us(only(list(runs.where(**base))))
    drawn = {
        tuple(zip(*(line.get_data()), strict=True)) for line in only(figure.axes).lines if line.get_marker() == "o"
    }
    expected = set()
    for axis, sizes in {"layers": (1, 2, 4), "sequence": (32, 64), "batch": (1, 8)}.items():
        networks = [only(list(runs.where(**{**base, axis: size}))) for size in sizes]
        ratios = [median_us(group) / start_us for group in networks]
        expected.add(tuple(zip([size / base[axis] for size in sizes], ratios, strict=True)))
    assert drawn == expected
    assert f"layers {median_us(only(list(runs.where(**{**base, 'layers': 4})))) / start_us:.2f}" in figure.alt
    with pytest.raises(UsageError, match="no series"):
        plots.growth(scaling(runs).findings, {**base, "hidden": 65})


def test_many_lines_get_panels_of_their_own():
    figure = plots.curves(make_runs(Grid((1, 2), (32, 64, 100, 128, 200), (32, 64)), (EPYC, TORCH)), "sequence")
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["onnxruntime\n1 layer", "2 layers", "pytorch\n1 layer", "2 layers"]
    assert len({ax.get_ylim() for ax in figure.axes}) == 1


def test_rounds_are_points_and_never_averaged():
    runs = make_runs(Grid((1,), (64,), (32, 64)), rounds=4)
    figure = plots.curves(runs, "sequence")
    each = [sorted(timed.median_us for timed in point.rounds) for point in points_of(runs)]
    assert list(only(medians(figure)).get_ydata()) == [several[1] for several in each]  # the lower of the middle two
    largest = only(lines(figure, linewidth=THIN["linewidth"]))
    assert list(largest.get_ydata()) == [us(group).max() for group in runs]
    assert [len(line.get_ydata()) for line in lines(figure, markersize=EACH_ROUND["markersize"])] == 4 * [4]
    assert "each of 4 rounds" in text_of(figure) and "single rounds" in text_of(figure)
    boxes = plots.box_plots(runs, "sequence")
    assert "first of 4 rounds" in text_of(boxes)
    assert [len(line.get_ydata()) for line in lines(boxes, marker="D")] == [3, 3]
    assert "max 3.09×" in text_of(boxes)  # the largest of all rounds over the median of the first
    steps = lines(plots.tails(runs[0]), drawstyle="steps-post")
    assert len(steps) == 5 and len({line.get_color() for line in steps}) == 5  # all, and each
    assert len(lines(plots.tails(runs), drawstyle="steps-post")) == 2
    ordered = plots.trials_in_order(runs[0])
    assert "4 rounds in sequence" in text_of(ordered)
    assert f"{4 * (SLOW + TWICE + 1)} of 1\u2009600 are outside 1.5 × IQR" in text_of(ordered)  # each by its round
    assert len(only(lines(ordered, label="outside 1.5 × IQR (box plot)")).get_xdata()) == 4 * (SLOW + TWICE + 1)


def test_arrivals_and_trials_distinguish_systems():
    grid = Grid((1,), (64,), (32, 64))
    both = [*make_runs(grid), *make_runs(grid, arrival="periodic", period_us=1000.0)]
    assert "onnxruntime, periodic every 1000 µs" in text_of(plots.curves(both, "sequence"))
    longer = [*make_runs(grid), *make_runs(grid, trials=5000)]
    assert "onnxruntime, 5000 trials" in text_of(plots.curves(longer, "sequence"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda runs: plots.curves([Group("numbers", (Round.of([1e5, 2e5]),))], "sequence"),
            "made by this package",
        ),
        (lambda runs: plots.curves([], "sequence"), "nothing to draw"),
        (lambda runs: plots.curves(runs, "width"), "unknown axis 'width'"),
        (lambda runs: plots.curves(runs, "sequence", statistic="p42_us"), "unknown statistic 'p42_us'"),
        (lambda runs: plots.box_plots(runs, "sequence", fixed={"batch": 5}), "batch = 5"),
        (lambda runs: plots.box_plots(runs, "sequence", fixed={"sequence": 32}), "sequence is drawn"),
        (lambda runs: plots.curves(runs, "sequence", line="layers"), "must not be layers, which is drawn"),
        (lambda runs: plots.curves(runs, "sequence", deadline_us=-1), "positive"),
        (lambda runs: plots.heat_map(runs, "hidden", "hidden"), "must differ"),
        (lambda runs: plots.heat_map(runs, "width"), "unknown axis 'width'"),
        (lambda runs: plots.heat_map(runs, value="bound_us"), "needs a deadline"),
        (lambda runs: plots.curves(runs, "batch", line="width"), "unknown axis 'width'"),
        (lambda runs: plots.box_plots(runs, "width"), "unknown axis 'width'"),
        (lambda runs: plots.box_plots(make_runs(SWEEP, failing=lambda *_: "run"), "batch"), "no trials"),
        (lambda runs: plots.tails([]), "trials after warm-up"),
        (plots.trials_in_order, "there are 36"),
        (lambda runs: plots.trials_in_order(replace(runs[0], rounds=())), "no trials after warm-up"),
    ],
)
def test_what_cannot_be_drawn_raises_an_error(sweep, call, message):
    with pytest.raises(UsageError, match=message):
        call(sweep)


@pytest.mark.heavy
def test_draw_sweep_writes_what_the_data_supports(tmp_path):
    runs = make_runs(Grid((1, 2), (64, 128), (32, 64), (1, 4)), (EPYC, TORCH))
    (tmp_path / "kept.txt").write_text("mine")
    with matplotlib.rc_context({"font.size": 17, "axes.grid.axis": "x"}):
        before, settings = pyplot.get_fignums(), dict(matplotlib.rcParams)
        paths = plots.draw_sweep(runs, tmp_path, deadline_us=200)
        assert pyplot.get_fignums() == before and dict(matplotlib.rcParams) == settings
    axes = ("layers", "hidden", "sequence", "batch")
    names = [f"sweep-latency-by-{axis}.png" for axis in axes] + ["sweep-heat-map.png", "sweep-runtimes.png"]
    names += [f"sweep-boxes-by-{axis}.png" for axis in axes] + ["sweep-tails.png", "sweep-trials.png"]
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["kept.txt", *names])  # nothing half-written
    for path in paths:
        width, height = png_size(path)
        assert width == round(9.2 * 130) and 300 < height < 3000 and 10_000 < path.stat().st_size < 1_000_000


def test_files_are_the_same_each_time_and_state_what_they_show(tmp_path):
    named = replace(make_runs(ONE)[0], name="set $HOME_$ or $\\frac")
    draw = {"trials": partial(plots.trials_in_order, named)}
    first, second = (
        style.write_pictures(draw, tmp_path / name, formats)
        for name, formats in (("a", ("svg", "png", "pdf")), ("b", ("pdf", "png", "svg")))
    )
    assert [path.name for path in first] == ["trials.svg", "trials.png", "trials.pdf"]
    assert all(path.read_bytes() == (tmp_path / "b" / path.name).read_bytes() for path in first) and len(second) == 3
    svg, png, pdf = first
    title = ElementTree.parse(svg).getroot().find("{http://www.w3.org/2000/svg}title").text
    assert title == Image.open(png).info["Description"] and "set $HOME_$ or $\\frac" in title
    assert pdf.read_bytes().startswith(b"%PDF")
    with pytest.raises(UsageError, match="gif"):
        plots.draw_sweep(make_runs(ONE), tmp_path, formats=("png", "gif"))


def test_alternative_texts_state_the_main_number(sweep):
    (group,) = sweep.where(layers=1, hidden=64, sequence=64, batch=1)
    assert "3.00× the median" in plots.tails(group).alt and group.name in plots.tails(group).alt
    pair = sweep.where(layers=1, sequence=64, batch=1)
    low, high = (f"{style.number(median_us(each))} µs ({each.name})" for each in pair)
    assert f"The median is {low} to {high}." in plots.curves(pair, "hidden").alt
    assert f"maximum is {style.number(3 * median_us(pair[0]))} µs" in plots.heat_map(pair).alt
    both = make_runs(ONE, (EPYC, TORCH))
    assert "onnxruntime in 1 of 1 networks" in plots.runtimes(both).alt
    assert f"{SLOW + TWICE + 1} of {N}" in plots.trials_in_order(group).alt
    assert f"{SLOW + TWICE + 1} of {N}" in plots.box_plots(pair, "hidden").alt


def test_alternative_text_in_a_notebook(sweep):
    v4, exporters = (pytest.importorskip(name) for name in ("nbformat.v4", "nbconvert"))
    formatters = pytest.importorskip("IPython.core.formatters")
    notebook = v4.new_notebook(cells=[v4.new_code_cell("")])
    picture = plots.runtimes(sweep[:2])
    data, _ = formatters.DisplayFormatter().format(picture)
    notebook.cells[0].outputs = [v4.new_output("display_data", data=data)]
    page, _ = exporters.HTMLExporter().from_notebook_node(notebook)
    assert f'alt="{escape(picture.alt)}"' in page
    assert data.keys() == {"text/html", "image/png", "text/plain"} and data["text/plain"] == picture.alt
    assert data["text/html"].split("base64,")[1].split('"')[0] == data["image/png"]
    # Exporters that know no HTML have the picture as well: a PDF is made from LaTeX.
    latex, resources = exporters.LatexExporter().from_notebook_node(notebook)
    ((name, content),) = resources["outputs"].items()
    assert content == b64decode(data["image/png"]) and content.startswith(b"\x89PNG")
    assert f"{{{name}}}" in latex


def one_trial(us: float) -> np.ndarray:
    return np.array([us])


def all_equal(us: float) -> np.ndarray:
    return np.full(50, 100.0)


ONE, TWO = [LstmShape(2, 64, 32)], Grid((2,), (64,), (32, 64))


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        pytest.param(make_runs(ONE), {"tails", "trials"}, marks=pytest.mark.heavy),
        (make_runs(ONE, make=one_trial, floor=False), {"tails", "trials"}),
        pytest.param(
            make_runs(Grid((2,), (64, 128), (32,)), make=all_equal),
            {"latency-by-hidden", "boxes-by-hidden", "tails", "trials"},
            marks=pytest.mark.heavy,
        ),
        (make_runs(TWO, failing=lambda *_: "build"), set()),
        (
            make_runs(TWO, rounds=3, failing=lambda system, shape, number: "run" if number else None),
            {"latency-by-sequence", "boxes-by-sequence", "tails", "trials"},
        ),
        pytest.param(
            make_runs(ONE, (EPYC, XEON), failing=lambda system, *_: "time" if system == XEON else None),
            {"runtimes", "tails", "trials"},
            marks=pytest.mark.heavy,
        ),
    ],
    ids=["one configuration", "one trial", "zero IQR", "only failures", "failed rounds", "one runtime failed"],
)
@pytest.mark.filterwarnings("error")
def test_draw_sweep_on_the_edges(tmp_path, runs, expected):
    paths = plots.draw_sweep(runs, tmp_path, deadline_us=150)
    assert {path.stem.removeprefix("sweep-") for path in paths} == expected
    assert all(png_size(path)[1] > 100 for path in paths)


def test_tails_of_a_sweep_begin_with_the_worst(sweep):
    worst = sweep[17]
    latency_ns = worst.rounds[0].latency_ns.copy()
    latency_ns[-1] *= 30
    groups = list(sweep)
    groups[17] = replace(worst, rounds=(replace(worst.rounds[0], latency_ns=latency_ns),))
    chosen = plots.choose_tails(groups)
    assert chosen[0] is groups[17] and len({group.name for group in chosen}) == 6


def test_a_folder_that_cannot_be_written_raises_an_error(tmp_path, sweep):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        plots.draw_sweep(sweep, tmp_path / "taken")


def few(us: float) -> np.ndarray:
    return latencies_us(us, n=40, slow=3, twice=1)


def steps(count: int) -> tuple[int, ...]:
    """As many sizes: the founding document's, or multiples of 4."""
    return (32, 64, 100, 128, 200, 256, 300, 400)[:count] if count <= 8 else tuple(range(4, 4 * count + 1, 4))


def dense(layers=(1,), hidden=(32, 64), sequence=(32, 64), batch=(1,), systems=(EPYC,), make=few, **more) -> Runs:
    """A grid with few trials; every tenth hidden size fails at the second sequence length."""

    def failing(system, shape, number):
        return "memory" if shape.hidden % 40 == 8 and shape.sequence == 64 else None

    return make_runs(Grid(layers, hidden, sequence, batch), systems, make=make, failing=failing, **more)


def faster(us: float) -> np.ndarray:
    """Larger networks take less time."""
    return few(1e4 / us)


def findings(**grid):
    return scaling(dense(**grid)).findings


#: What is dense. `make test` draws every third, and the heavy part the others.
DRAWN = [
    lambda: plots.heat_map(dense(layers=(1, 2), hidden=steps(8)), deadline_us=40),
    lambda: plots.heat_map(dense(hidden=steps(32)), deadline_us=40),
    lambda: plots.heat_map(dense(hidden=steps(32), sequence=(32,)), value="bound_us", deadline_us=60),
    lambda: plots.heat_map(dense(hidden=(32,), sequence=steps(200))),
    lambda: plots.box_plots(dense(hidden=steps(8), sequence=(64,), rounds=2), "hidden"),
    lambda: plots.box_plots(dense(systems=(EPYC, TORCH)), "hidden"),
    lambda: plots.box_plots(dense(hidden=steps(32), sequence=(64,)), "hidden"),
    lambda: plots.box_plots(dense(hidden=steps(200), sequence=(32,)), "hidden"),
    lambda: plots.curves(dense(hidden=steps(200), sequence=(64,)), "hidden", deadline_us=40),
    lambda: plots.curves(dense(hidden=steps(80)), "sequence"),
    lambda: plots.curves(dense(layers=steps(32), hidden=(32,), sequence=(2, 4)), "sequence"),
    lambda: plots.curves(dense(batch=tuple(2**k for k in range(10)), systems=(EPYC, TORCH)), "batch"),
    lambda: plots.runtimes(dense(hidden=steps(32), systems=(EPYC, TORCH))),
    lambda: plots.precisions(in_precisions(dense(sequence=(64,)), "fp32"), deadline_us=40),
    lambda: plots.versions(of_versions("1.9.0", "1.26.1", "1.27.0")),
    lambda: plots.growth(
        findings(layers=(1, 2, 4), hidden=(32, 64, 400), sequence=(32, 64, 128), batch=(1, 64), systems=(EPYC, TORCH)),
        {"layers": 2, "hidden": 64, "sequence": 32, "batch": 1},
    ),
    lambda: plots.precisions(in_precisions(dense(systems=(EPYC, TORCH, XEON)), "fp32", "bf16", "int8")),
    lambda: plots.precisions(in_precisions(dense(hidden=steps(8), systems=(EPYC, TORCH, OLDER)), *ERRORS)),
    lambda: plots.tails(dense(hidden=steps(8), sequence=(32,)), deadline_us=40),
    lambda: plots.trials_in_order(dense(hidden=(32,), sequence=(32,), rounds=80), deadline_us=80),
    lambda: plots.fits(findings(sequence=steps(80), hidden=(32,)), "sequence"),
    lambda: plots.batching(findings(hidden=steps(80), sequence=(32,), batch=(1, 2))),
    lambda: plots.inversions(findings(hidden=steps(32), make=faster), "sequence"),
    lambda: plots.inversions(findings(hidden=steps(80), sequence=(32,), layers=(1, 2), make=faster), "layers"),
]


@pytest.mark.parametrize("draw", rest_is_heavy(DRAWN, lambda draw: DRAWN.index(draw) % 3 == 0))
def test_no_text_is_cut_off_or_overlaps(draw):
    assert_readable(draw())


@pytest.mark.parametrize("word", ["Wide MMMM", "narrow ill", "x" * 300])
def test_titles_and_notes_are_folded_by_their_width(word):
    text = f"{word} " * (900 // len(word))
    with style.figure(text, [text], 1.0) as (picture, _):
        assert_readable(picture)


@pytest.mark.parametrize(
    ("sizes", "scale", "expected"),
    [
        (range(2, 201), "linear", [2, *range(5, 91, 5), *range(100, 201, 10)]),
        (range(32, 2561, 32), "linear", [32, *range(128, 2561, 128)]),
        ([4 * 2**k for k in range(7)], "log", [4, 8, 16, 32, 64, 128, 256]),
        ([32, 64, 100, 128, 200, 256, 300, 400], "linear", [32, 64, 100, 128, 200, 256, 300, 400]),
        ([7, 11, 13, 17, 19, 23], "linear", [7, 11, 13, 17, 19, 23]),
    ],
    ids=str,
)
def test_ticks_are_those_that_fit_round_values_first(sizes, scale, expected):
    with style.figure("Ticks", [], 2.0) as (picture, body):
        ax = body.subplots()
        ax.set_xscale(scale)
        ax.set_xlim(min(sizes), max(sizes))
        style.size_ticks(ax.xaxis, sizes)
    assert_readable(picture)
    assert [int(tick) for tick in ax.xaxis.get_majorticklocs()] == expected


def test_of_many_sizes_some_have_a_box_which_is_stated():
    figure = plots.box_plots(dense(hidden=steps(32), sequence=(64,)), "hidden")
    assert "10 of 32 values of hidden size are shown." in text_of(figure)
    assert len([line for line in lines(figure, marker="^")]) + text_of(figure).count("failed: memory") == 10


def test_more_than_four_rows_become_pages():
    runtimes = ("c", "onnxruntime", "openvino", "pytorch", "tensorrt")
    one = make_runs(Grid((1,), (64, 128, 200), (32, 64, 128)))
    configured = [(name, replace(group.configuration, runtime=name)) for name in runtimes for group in one]
    each = itertools.cycle(one)
    groups = [replace(next(each), name=name, configuration=configuration) for name, configuration in configured]
    runs = Runs(tuple(groups))
    names = list(_plan(runs, None))
    assert [name for name in names if "by-hidden" in name] == [
        *("latency-by-hidden-1", "latency-by-hidden-2", "boxes-by-hidden-1", "boxes-by-hidden-2")
    ]
    assert {"heat-map-1", "heat-map-2", "runtimes"} <= {*names}
    plan = _plan(runs, None)
    drawn = [text_of(plan[f"boxes-by-hidden-{page}"]()) for page in (1, 2)]
    assert all(sum(name in text.splitlines() for text in drawn) == 1 for name in runtimes)


@pytest.mark.heavy
def test_jupyter_displays_figures_and_imports_are_fast(sweep):
    assert image_bytes(plots.curves(sweep, "sequence")).startswith(b"\x89PNG")
    assert loaded("import lstm_judge.plots", ["matplotlib"], "matplotlib") == []
    assert loaded("import lstm_judge.plots.sweep", ["torch", "onnx", "onnxruntime"], "onnx") == []
