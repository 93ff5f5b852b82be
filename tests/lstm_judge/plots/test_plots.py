"""Figures show the numbers of their runs: planted values are read back from the artists."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from dataclasses import replace
from functools import partial
from html import escape
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_rgba
from PIL import Image

from lstm_judge import plots
from lstm_judge.plots import heatmap, style
from lstm_judge.plots.curve import EACH_ROUND, FLOOR, THICK, THIN
from lstm_judge.plots.points import points_of, system_looks
from lstm_judge.plots.style import image_bytes
from lstm_judge.plots.sweep import _plan
from lstm_judge.read.rounds import Group
from lstm_judge.read.runs import load
from lstm_judge.scaling.scaling import scaling
from lstm_judge.statistics.quantiles import interval
from lstm_judge.statistics.trials import Trials
from lstm_judge.summarize.summarize import summarize
from lstm_trt.config.shape import Grid, LstmShape
from tests.conftest import ROOT
from tests.lstm_judge.plots.planted import (
    EPYC,
    ERRORS,
    ONE,
    SLOW,
    TORCH,
    TWICE,
    TWO,
    WARMUP,
    XEON,
    N,
    all_fail,
    base_us,
    in_precisions,
    latencies_us,
    make_runs,
    of_runtimes,
    of_versions,
)
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


def us(group: Group) -> np.ndarray:
    """All latencies after warm-up."""
    return np.concatenate([round_.timed_ns for round_ in group.rounds]) / 1000


def medians_us(group: Group) -> list[float]:
    """The median of each round, in ascending order."""
    return sorted(np.quantile(each.timed_ns / 1000, 0.5, method="inverted_cdf") for each in group.rounds)


def median_us(group: Group) -> float:
    """The lower middle of the rounds' medians."""
    several = medians_us(group)
    return float(several[(len(several) - 1) // 2])


def medians(figure) -> list:
    """Lines of the statistic in a picture of curves."""
    return lines(figure, linewidth=THICK["linewidth"], marker="o") + lines(figure, linewidth=1.5, marker="s")


def points_drawn(found) -> list[tuple[float, float]]:
    return sorted(pair for line in found for pair in zip(*line.get_data(), strict=True))


SWEEP = Grid((1, 2), (64, 128), (32, 64, 128), (1, 4, 32))


@pytest.fixture(scope="module")
def sweep():
    return make_runs(SWEEP)


@pytest.mark.parametrize("axis", ["sequence", "hidden"])
def test_curves_hold_every_configuration_at_what_is_fixed(sweep, axis):
    figure = plots.curves(sweep, axis)
    held = [(getattr(group.configuration.workload, axis), group) for group in sweep.where(batch=1)]
    assert points_drawn(medians(figure)) == sorted((size, median_us(group)) for size, group in held)
    largest = lines(figure, linewidth=THIN["linewidth"])
    assert points_drawn(largest) == sorted((size, us(group).max()) for size, group in held)
    floors = lines(figure, linestyle=FLOOR["linestyle"])
    assert points_drawn(floors) == sorted((size, group.rounds[0].floor_us) for size, group in held)
    maxima = plots.curves(sweep, axis, statistic="max_us")
    assert points_drawn(medians(maxima)) == points_drawn(largest) and not lines(maxima, linewidth=THIN["linewidth"])


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
    left, right = halves(plots.violins(runs, "hidden", (400, 64)))
    assert left[:, 0].max() == pytest.approx(0) and right[:, 0].min() == pytest.approx(0)
    assert -left[:, 0].min() == pytest.approx(right[:, 0].max(), rel=0.02)  # the same maximum
    ends = [(outline[:, 1].min(), outline[:, 1].max()) for outline in (left, right)]
    assert ends == [pytest.approx((-0.005, top - 1), abs=1e-3) for top in (2.5, 4.0)]

    def width_at(outline: np.ndarray, level: float) -> float:
        return float(np.abs(outline[np.argsort(np.abs(outline[:, 1] - level))[:4], 0]).max())

    assert width_at(left, 0.25) > 2 * width_at(left, 0.1) > 0  # 150 trials at 1.25 times the median
    assert width_at(right, 0.25) < width_at(left, 0.25) / 3


def test_a_runtime_has_one_colour_and_one_marker_in_all_figures():
    both, every = make_runs(TWO, (EPYC, TORCH)), (*style.RUNTIMES, "mine", "another")
    looks = system_looks(points_of(of_runtimes(make_runs(TWO), every)))
    for part in ("marker", "color"):
        assert len({look[part] for look in looks.values()}) == len(every)
    two = system_looks(points_of(both))
    assert two == {name: looks[name] for name in ("onnxruntime", "pytorch")}
    assert [*system_looks(points_of(both.where(runtime="pytorch"))).values()] == [looks["pytorch"]]
    several = in_precisions(both, "fp32", "bf16")
    for figure in (plots.runtimes(both), plots.precisions(several), plots.curves(both, "sequence")):
        drawn = {(line.get_color(), line.get_marker()) for line in lines(figure)}
        assert {(look["color"], look["marker"]) for look in two.values()} <= drawn


def test_further_systems_of_a_runtime_are_darker_by_the_same_factor():
    runs = in_precisions(make_runs(ONE, (EPYC, TORCH)), "fp32", "bf16", "int8")
    looks = system_looks(points_of(runs))
    for runtime in ("onnxruntime", "pytorch"):
        first, second, third = (np.array(look["color"]) for name, look in looks.items() if name.startswith(runtime))
        assert np.allclose(second, first * 0.62) and np.allclose(third, second * 0.62)


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
    (ax,) = figure.axes
    outliers = [line.get_ydata() for line in lines(figure, marker="o") if line.get_alpha()]
    assert np.allclose(np.sort(outliers), 3 * [np.repeat([0.25, 1.0, 2.0], [SLOW, TWICE, 1])], atol=1e-4)
    planted = {batch: base_us(EPYC, LstmShape(2, 64, 64, batch)) for batch in (1, 4, 32)}
    labels = [f"{batch}\n{median:.3g}" for batch, median in planted.items()]
    assert [label.get_text() for label in ax.get_xticklabels()] == labels
    low, high = ax.get_ylim()
    assert low < -0.005 and high > 2.0  # all trials are within the limits
    (group,) = sweep.where(layers=2, hidden=64, sequence=64, batch=1)
    first, third = np.quantile(us(group), (0.25, 0.75))
    assert ax.yaxis.get_transform().linear_width == pytest.approx((third - first) / median_us(group), rel=0.02)


def share_above(line, level: float) -> float:
    x, y = line.get_data()
    return y[np.searchsorted(x, level, side="right") - 1] if level >= x[0] else 1.0


def evidence_levels(figure) -> list[float]:
    """Heights of the dotted lines across the picture."""
    found = [line for line in lines(figure.axes[0]) if line.get_linewidth() <= 1.1 and line.is_dashed()]
    return sorted({line.get_ydata()[0] for line in found if line.get_ydata()[0] == line.get_ydata()[-1] < 1})


def test_tails_are_the_exact_share():
    (group,) = make_runs(ONE)
    figure = plots.tails(group, deadline_us=1.5 * median_us(group))
    line = only(labelled(figure, group.name))
    ratios = np.sort(us(group)) / median_us(group)
    for ratio in (0.99, 1.0, 1.1, 1.3, 1.999, 2.5):
        assert share_above(line, ratio) == np.mean(ratios > ratio)
    x, y = line.get_data()
    assert (x[-1], y[-1], line.get_markevery()) == (ratios[-1], 1 / N, [len(x) - 1])
    assert f"misses {TWICE + 1} of {N}" in text_of(figure)
    assert not deadlines(figure)  # it is another multiple for each configuration
    # Of this rate no event in 400 trials has a chance of 5 %. Recordings of another length have a line of their own.
    assert (1 - only(evidence_levels(figure))) ** N == pytest.approx(0.05)
    longer = make_runs(TWO, make=lambda us: latencies_us(us, n=2000))[1]
    assert evidence_levels(plots.tails([group, longer])) == pytest.approx([3 / 2000, 3 / 400], rel=0.01)


def test_the_control_run_stands_beside_the_tails():
    first, second = make_runs(TWO)
    noise_ns = np.full(200, 300.0)
    noise_ns[7] = 70_300.0
    controlled = replace(first, rounds=(replace(first.rounds[0], control_ns=noise_ns),))
    network, machine = plots.tails([controlled, second]).axes
    line = only([line for line in lines(machine) if len(line.get_xdata()) > 2])
    assert line.get_color() == only(labelled(network, first.name)).get_color()
    assert (line.get_xdata()[0], line.get_xdata()[-1]) == (0.3, 70.3) and share_above(line, 1.0) == 1 / 200
    assert len(plots.tails([first, second]).axes) == 1


def test_trials_in_order_mark_warm_up_and_outliers():
    (group,) = make_runs(ONE)
    figure = plots.trials_in_order(group)
    drawn = [len(only(labelled(figure, name)).get_xdata()) for name in ("outside 1.5", "within 1.5")]
    assert drawn == [SLOW + TWICE + 1, N - SLOW - TWICE - 1]
    span = only(shaded(figure, "warm-up"))
    assert (span.get_x(), span.get_width()) == (-0.5, WARMUP)
    guides = {line.get_ydata()[0] for line in lines(figure) if line.is_dashed()}
    assert guides == {1.25 * median_us(group), 2 * median_us(group)}
    assert sum(bar.get_width() for bar in figure.axes[1].patches) == N  # the histogram holds every trial


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
    assert text is None and patch.get_facecolor() == to_rgba(heatmap.EMPTY)


def test_runtimes_write_the_ratio_to_the_fastest():
    runs = make_runs(TWO, (EPYC, TORCH))
    figure = plots.runtimes(runs, deadline_us=100)
    assert Counter(text.get_text() for text in figure.axes[0].texts if "×" in text.get_text()) == {"1×": 4, "1.50×": 4}
    drawn = {line.get_xdata()[0] for line in lines(figure) if line.get_marker() in ("o", "s")}
    assert drawn == {median_us(group) for group in runs} | {us(group).max() for group in runs}


def test_latency_against_error_has_a_dot_for_each_precision():
    runs = in_precisions(make_runs(TWO, (EPYC, TORCH), rounds=2), *ERRORS)
    figure = plots.precisions(runs, deadline_us=50)
    for ax, sequence in zip(figure.axes, (32, 64), strict=True):
        here = runs.where(sequence=sequence)
        dots = [line for line in ax.lines if line.get_marker() in ("o", "s")]
        assert points_drawn(dots) == sorted((group.parity_error or 0, median_us(group)) for group in here)
        bars = [line.get_ydata() for line in ax.lines if len(line.get_ydata()) == 2 and line not in deadlines(ax)]
        intervals = [interval(np.sort(round_.timed_ns) / 1000, 0.5) for group in here for round_ in group.rounds]
        assert np.allclose(sorted(map(tuple, bars)), sorted(intervals))
        assert sorted(text.get_text() for text in ax.texts) == sorted([*ERRORS] * 2)


def test_versions_have_a_dot_per_round_and_the_ratio_to_the_oldest():
    runs = of_versions("1.27.0", "1.9.0")
    figure = plots.versions(runs)
    newer, older = map(medians_us, runs)
    labels = [label.get_text() for label in only(figure.axes).get_xticklabels()]
    assert labels == ["1.9.0\n1.00", f"1.27.0\n{newer[1] / older[1]:.2f}"]  # by number, not by letter
    drawn = [sorted(line.get_ydata()) for line in lines(figure, linestyle="None", marker="o")]
    assert np.allclose(drawn, np.divide([older, newer], older[1]))


def test_growth_is_relative_to_the_base_along_each_axis():
    runs = make_runs(Grid((1, 2, 4), (64,), (32, 64), (1, 8)))
    base = {"layers": 2, "hidden": 64, "sequence": 32, "batch": 1}
    figure = plots.growth(scaling(runs).findings, base)

    def growth(axis: str, size: int) -> tuple[float, float]:
        (start,), (found,) = runs.where(**base), runs.where(**base | {axis: size})
        return size / base[axis], median_us(found) / median_us(start)

    drawn = [points_drawn([line]) for line in only(figure.axes).lines if line.get_marker() == "o"]
    sizes = {"layers": (1, 2, 4), "sequence": (32, 64), "batch": (1, 8)}
    assert sorted(drawn) == sorted([growth(axis, size) for size in several] for axis, several in sizes.items())


def test_rounds_are_points_and_never_averaged():
    runs = make_runs(TWO, rounds=4)
    figure = plots.curves(runs, "sequence")
    assert list(only(medians(figure)).get_ydata()) == [medians_us(group)[1] for group in runs]  # the lower middle
    largest = only(lines(figure, linewidth=THIN["linewidth"]))
    assert list(largest.get_ydata()) == [us(group).max() for group in runs]
    each = [line.get_ydata() for line in lines(figure, markersize=EACH_ROUND["markersize"])]
    assert [sorted(found) for found in each[:2]] == [medians_us(group) for group in runs]
    assert "max 3.09×" in text_of(plots.box_plots(runs, "sequence"))  # the largest of all over the median of the first
    assert len(lines(plots.tails(runs[0]), drawstyle="steps-post")) == 5  # all, and each
    outside = only(labelled(plots.trials_in_order(runs[0]), "outside 1.5"))
    assert len(outside.get_xdata()) == 4 * (SLOW + TWICE + 1)  # each by its round


def test_what_was_not_checked_has_no_picture_of_errors():
    runs = make_runs(ONE, (EPYC, TORCH))
    partly = in_precisions(runs, "fp32", "bf16", errors={"fp32": None, "bf16": 1e-3})
    assert "2 configurations not checked" in text_of(plots.precisions(partly))
    checked = in_precisions(runs, "fp32", "bf16")
    assert ["precisions" in _plan(each, None) for each in (runs, partly, checked)] == [False, False, True]


@pytest.mark.heavy
def test_draw_sweep_writes_what_the_data_supports(tmp_path):
    runs = make_runs(Grid((1, 2), (64, 128), (32, 64), (1, 4)), (EPYC, TORCH))
    (tmp_path / "kept.txt").write_text("mine")
    with matplotlib.rc_context({"font.size": 17, "axes.grid.axis": "x"}):
        before, settings = pyplot.get_fignums(), dict(matplotlib.rcParams)
        paths = plots.draw_sweep(runs, tmp_path, deadline_us=200)
        assert pyplot.get_fignums() == before and dict(matplotlib.rcParams) == settings
    axes = ("layers", "hidden", "sequence", "batch")
    names = [f"latency-by-{axis}" for axis in axes] + ["heat-map", "runtimes"]
    names += [f"boxes-by-{axis}" for axis in axes] + ["tails", "trials"]
    assert [path.name for path in paths] == [f"sweep-{name}.png" for name in names]
    assert {*tmp_path.iterdir()} == {*paths, tmp_path / "kept.txt"}  # nothing half-written
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
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in reversed(second)]
    svg, png, pdf = first
    title = ElementTree.parse(svg).getroot().find("{http://www.w3.org/2000/svg}title").text
    assert title == Image.open(png).info["Description"] and "set $HOME_$ or $\\frac" in title
    assert pdf.read_bytes().startswith(b"%PDF")


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


def later_rounds_fail(system, shape, number):
    return "run" if number else None


def xeon_fails(system, shape, number):
    return "time" if system == XEON else None


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
        (make_runs(TWO, failing=all_fail), set()),
        (
            make_runs(TWO, rounds=3, failing=later_rounds_fail),
            {"latency-by-sequence", "boxes-by-sequence", "tails", "trials"},
        ),
        pytest.param(
            make_runs(ONE, (EPYC, XEON), failing=xeon_fails), {"runtimes", "tails", "trials"}, marks=pytest.mark.heavy
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


def test_more_than_four_rows_become_pages():
    runtimes = ("c", "onnxruntime", "openvino", "pytorch", "tensorrt")
    plan = _plan(of_runtimes(make_runs(Grid((1,), (64, 128, 200), (32, 64, 128))), runtimes), None)
    pages = [f"{name}-{page}" for name in ("latency-by-hidden", "boxes-by-hidden") for page in (1, 2)]
    assert [name for name in plan if "by-hidden" in name] == pages
    assert {"heat-map-1", "heat-map-2", "runtimes"} <= {*plan}
    drawn = [text_of(plan[f"boxes-by-hidden-{page}"]()) for page in (1, 2)]
    assert all(sum(name in text.splitlines() for text in drawn) == 1 for name in runtimes)


@pytest.mark.heavy
def test_jupyter_displays_figures_and_imports_are_fast(sweep):
    assert image_bytes(plots.curves(sweep, "sequence")).startswith(b"\x89PNG")
    assert loaded("import lstm_judge.plots", ["matplotlib"], "matplotlib") == []
    assert loaded("import lstm_judge.plots.sweep", ["torch", "onnx", "onnxruntime"], "onnx") == []
