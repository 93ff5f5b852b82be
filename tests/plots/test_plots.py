"""The pictures hold the numbers of their tables: what is planted is read back from the artists."""

from __future__ import annotations

import hashlib
import itertools
import struct
import subprocess
import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.text import Text

from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import Grid, LstmShape
from lstm_trt.plots import boxes as plots_boxes
from lstm_trt.plots import curves, heat_map, recordings, runtimes
from lstm_trt.plots import trials as plots_trials
from lstm_trt.plots.tables import spread

EPYC = ("onnxruntime", "1.27.0", "AMD EPYC 9005", "fp32", 1)
XEON = ("onnxruntime", "1.27.0", "Intel Xeon 8480", "fp32", 1)
OLDER = ("onnxruntime", "1.26.0", "AMD EPYC 9005", "fp32", 1)
TORCH = ("pytorch", "2.13.0", "AMD EPYC 9005", "fp32", 1)
STATISTICS = ["n", "min_us", "mean_us", "std_us", "median_us", "p90_us", "p99_us", "p999_us", "max_us", "outliers"]
N, SLOW, TWICE, WARMUP = 400, 30, 6, 10


def config_of(system: tuple, shape: LstmShape) -> str:
    return hashlib.sha256(repr((system, shape)).encode()).hexdigest()


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


def make_tables(grid, system_list=(EPYC,), rounds=1, failing=None, floor=True, make=latencies_us):
    """(summary, trials); `failing(system, shape, round)` gives the stage or None."""
    rows, parts = [], []
    for system in system_list:
        for shape in grid:
            for number in range(rounds):
                row = dict(
                    zip(("runtime", "runtime_version", "device_name", "precision", "threads"), system, strict=True)
                )
                row |= {"config_id": config_of(system, shape), "round": number, **shape.as_dict(), "status": "ok"}
                row |= {"floor_us": 0.2 * base_us(system, shape)} if floor else {}
                stage = failing(system, shape, number) if failing else None
                if stage:
                    row |= {"status": "failed", "stage": stage, "reason": f"no {stage} left"}
                    rows.append(row | dict.fromkeys(STATISTICS, np.nan))
                    continue
                timed = make(base_us(system, shape) * (1 + 0.01 * number))
                warm = timed[0] * np.r_[40.0, np.linspace(3, 1.5, WARMUP - 1)]
                latency_ns = np.round(np.r_[warm, timed] * 1000).astype("int64")
                parts.append(
                    pd.DataFrame(
                        {
                            "config_id": row["config_id"],
                            "round": number,
                            "trial": np.arange(len(latency_ns)),
                            "warmup": np.arange(len(latency_ns)) < WARMUP,
                            "latency_ns": latency_ns,
                        }
                    )
                )
                us = latency_ns[WARMUP:] / 1000
                row |= {"stage": None, "reason": None, "n": len(us), "min_us": us.min(), "mean_us": us.mean()}
                row |= {"std_us": us.std(), "max_us": us.max(), "outliers": 0}
                for name, share in (("median_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("p999_us", 0.999)):
                    row[name] = np.quantile(us, share, method="inverted_cdf")
                rows.append(row)
    columns = ["config_id", "round", "trial", "warmup", "latency_ns"]
    return pd.DataFrame(rows), pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def artists(figure, gid: str) -> list:
    """Artists whose gid starts with this."""
    return figure.findobj(lambda artist: str(artist.get_gid() or "").startswith(gid))


def only(figure, gid: str):
    found = artists(figure, gid)
    assert len(found) == 1, (gid, found)
    return found[0]


def words(figure) -> str:
    """All that is written, each text on one line."""
    return "\n".join(text.get_text().replace("\n", " ") for text in figure.findobj(Text) if text.get_visible())


SWEEP = Grid((1, 2), (64, 128), (32, 64, 128), (1, 4, 32))


@pytest.fixture(scope="module")
def sweep():
    return make_tables(SWEEP)


def test_curves_hold_every_configuration_at_what_is_fixed(sweep):
    summary, _ = sweep
    figure = curves.curves(summary, "sequence")
    assert "Fixed: batch 1, 12 input features, unidirectional." in words(figure)
    assert "n = 400 trials" in words(figure) and "onnxruntime 1.27.0 (fp32, 1 thread) on AMD EPYC 9005" in words(figure)
    expected = summary[summary["batch"] == 1]
    for kind in ("median_us", "max_us"):
        drawn = sorted(pair for line in artists(figure, f"{kind}:") for pair in zip(*line.get_data(), strict=True))
        assert drawn == sorted(zip(expected["sequence"], expected[kind], strict=True))
    floors = sorted(y for line in artists(figure, "floor:") for y in line.get_ydata())
    assert floors == sorted(expected["floor_us"])
    assert [ax.get_title(loc="left") for ax in figure.axes if ax.get_visible()] == ["1 layer", "2 layers"]


def test_curves_swap_lines_and_sizes(sweep):
    figure = curves.curves(sweep[0], "hidden", fixed={"batch": 32})
    assert {line.get_gid().split("=")[-1] for line in artists(figure, "median_us:")} == {"32", "64", "128"}
    assert "batch 32" in words(figure)


def test_batches_stand_on_a_log2_axis():
    summary, _ = make_tables([LstmShape(1, 64, 32, batch) for batch in (1, 4, 32)], floor=False)
    ax = curves.curves(summary, "batch").axes[0]
    assert ax.get_yscale() == "linear"
    assert ax.get_xscale() == "log" and ax.xaxis.get_transform().base == 2
    ticks = [*ax.xaxis.get_majorticklocs(), *ax.xaxis.get_minorticklocs()]
    assert sorted(ticks) == [1, 4, 32]


def test_deadline_and_maximum_as_the_statistic(sweep):
    figure = curves.curves(sweep[0], "sequence", statistic="max_us", deadline_us=333)
    assert [set(line.get_ydata()) for line in artists(figure, "deadline")] == [{333}, {333}]
    assert "deadline 333 µs" in words(figure) and "Latency against sequence length: maximum" in words(figure)
    assert not artists(figure, "median_us:")


def test_latency_is_logarithmic_above_twenty_fold():
    narrow, _ = make_tables(Grid((1,), (64,), (32, 64)), floor=False)
    wide, _ = make_tables(Grid((1,), (64,), (1, 4096)), floor=False)
    assert curves.curves(narrow, "sequence").axes[0].get_yscale() == "linear"
    assert curves.curves(wide, "sequence").axes[0].get_yscale() == "log"


def test_failures_are_marked_in_every_picture():
    def failing(system, shape, _):
        return "memory" if (shape.hidden, shape.sequence, system) == (128, 128, EPYC) else None

    summary, trials = make_tables(Grid((1,), (64, 128), (32, 128)), (EPYC, TORCH), failing=failing)
    figure = curves.curves(summary, "sequence")
    assert [line.get_xdata()[0] for line in artists(figure, "failed")] == [128]
    assert "failed   memory: 1" in words(figure)
    assert figure.axes[0].get_ylim()[0] < min(summary["floor_us"])  # room for the marks below the numbers

    figure = heat_map.heat_map(summary)
    hatched = only(figure, "failed")
    assert hatched.get_hatch() and hatched.get_xy() == (1, 1)
    assert "memory" in [text.get_text() for text in artists(figure, "cell:128,128")]
    assert "failed, at the stage named" in words(figure)

    assert only(runtimes.runtimes(summary), "failed:onnxruntime").get_text() == "× failed: memory"
    assert "failed: memory" in words(plots_boxes.box_plots(trials, summary, "sequence", {"hidden": 128}))


def test_outliers_are_counted_as_the_founding_document_does():
    body = [10.0, 11, 12, 13, 14]  # quartiles 11 and 13 stay: one outlier is added on either side
    assert spread(np.array(body)).outliers == 0
    inside, outside = spread(np.array([*body, 7.0, 17.0])), spread(np.array([*body, 5.9, 18.1]))
    assert inside.quartiles_us == outside.quartiles_us == (10.5, 13.5)  # numpy's linear ones: reach 4.5
    assert inside.outliers == 0 and list(outside.latency_us[outside.is_outlier]) == [5.9, 18.1]


def test_box_plots_tell_the_planted_outliers(sweep):
    summary, trials = sweep
    figure = plots_boxes.box_plots(trials, summary, "batch", {"layers": 2, "hidden": 64, "sequence": 64})
    ax = figure.axes[0]
    assert [text.get_text() for text in artists(figure, "count:")] == [f"{SLOW + TWICE + 1} of {N}"] * 3
    for line in artists(figure, "outliers:"):
        planted = np.repeat([0.25, 1.0, 2.0], [SLOW, TWICE, 1])
        np.testing.assert_allclose(np.sort(line.get_ydata()), planted, atol=1e-4)
    labels = [label.get_text() for label in ax.get_xticklabels()]
    medians = [base_us(EPYC, LstmShape(2, 64, 64, batch)) for batch in (1, 4, 32)]
    for label, batch, median in zip(labels, (1, 4, 32), medians, strict=True):
        size, told = label.split("\n")
        assert int(size) == batch and told == f"{median:.3g} µs"
    assert words(figure).count("max 3.0×") == 3
    assert ax.get_yscale() == "asinh"
    low, high = ax.get_ylim()
    assert low < -0.005 and high > 2.0  # nothing is cut off
    assert "Nothing is cut off." in words(figure)


def test_box_plot_axis_is_linear_within_the_iqr(sweep):
    summary, trials = sweep
    ax = plots_boxes.box_plots(trials, summary, "sequence").axes[0]
    config = config_of(EPYC, LstmShape(1, 64, 32, 1))
    us = trials[(trials["config_id"] == config) & ~trials["warmup"]]["latency_ns"] / 1000
    low, high = np.quantile(us, (0.25, 0.75))
    assert ax.yaxis.get_transform().linear_width == pytest.approx((high - low) / np.median(us), rel=0.02)


def test_tails_are_the_exact_share():
    summary, trials = make_tables([LstmShape(1, 64, 32)])
    config = summary["config_id"][0]
    figure = plots_trials.tails(trials, summary, [config], deadline_us=float(summary["median_us"][0] * 1.5))
    line = only(figure, f"tail:{config}")
    x, y = line.get_data()
    assert line.get_drawstyle() == "steps-post"
    us = np.sort(trials[~trials["warmup"]]["latency_ns"].to_numpy() / 1000)
    ratios = us / summary["median_us"][0]
    for ratio in (0.99, 1.0, 1.1, 1.3, 1.999, 2.5):
        drawn = y[np.searchsorted(x, ratio, side="right") - 1] if ratio >= x[0] else 1.0
        assert drawn == np.mean(ratios > ratio)
    assert only(figure, f"max:{config}").get_data() == ([ratios[-1]], [1 / N])
    level = only(figure, "3/n:400").get_ydata()[0]
    assert level == 3 / N and min(only(figure, f"proven:{config}").get_ydata()) >= level
    assert f"{TWICE + 1} of {N} late" in words(figure)
    assert only(figure, "deadline").get_xdata()[0] == pytest.approx(1.5)


def test_the_control_run_stands_behind_the_tail_by_its_excess_in_us():
    summary, trials = make_tables([LstmShape(1, 64, 32), LstmShape(1, 128, 32)])
    config, median_us = summary["config_id"][0], summary["median_us"][0]
    noise_ns = np.full(200, 300.0)
    noise_ns[7] = 300 + 700 * median_us  # once 0.7 medians longer than usual
    figure = plots_trials.tails(trials, summary, list(summary["config_id"]), controls={config: noise_ns})
    x, y = only(figure, f"control:{config}").get_data()
    assert (x[0], x[-1]) == pytest.approx((1, 1.7)) and y[np.searchsorted(x, 1.2) - 1] == 1 / 200
    assert len(artists(figure, "control:")) == 1 and "control run" in words(figure)
    assert not artists(plots_trials.tails(trials, summary, [config]), "control")


def test_recordings_of_unlike_length_have_a_line_each():
    summary, trials = make_tables([LstmShape(1, 64, 32)])
    longer, more = make_tables([LstmShape(1, 64, 64)], make=lambda us: latencies_us(us, n=2000))
    summary, trials = pd.concat([summary, longer]), pd.concat([trials, more])
    figure = plots_trials.tails(trials, summary, list(summary["config_id"]))
    assert {line.get_ydata()[0] for line in artists(figure, "3/n:")} == {3 / 400, 3 / 2000}


def test_trials_in_order_mark_warm_up_and_outliers():
    summary, trials = make_tables([LstmShape(1, 64, 32)])
    median = summary["median_us"][0]
    figure = plots_trials.trials_in_order(trials, summary["config_id"][0], summary)
    assert len(only(figure, "outliers").get_xdata()) == SLOW + TWICE + 1
    assert len(only(figure, "body").get_xdata()) == N - SLOW - TWICE - 1
    shaded = only(figure, "warm-up").get_x(), only(figure, "warm-up").get_width()
    assert shaded == (-0.5, WARMUP) and len(only(figure, "before").get_xdata()) == WARMUP
    assert {line.get_ydata()[0] for line in artists(figure, "guide:")} == {1.25 * median, 2 * median}
    assert "1 of 10 warm-up trials above" in only(figure, "outside").get_text()
    assert sum(bar.get_width() for bar in figure.axes[1].patches) == N  # the histogram holds every trial
    assert "1x64-s32-b1" in words(figure)


def test_trials_in_order_tell_a_deadline_that_is_far_away():
    summary, trials = make_tables([LstmShape(1, 64, 32)])
    figure = plots_trials.trials_in_order(trials, summary["config_id"][0], deadline_us=1e6)
    assert "▲ deadline at 1\u2009000\u2009000 µs" in words(figure) and not artists(figure, "deadline")


def test_settling_trials_in_the_middle_are_shaded_too():
    summary, trials = make_tables([LstmShape(1, 64, 32)])
    trials.loc[trials["trial"].between(200, 202), "warmup"] = True
    figure = plots_trials.trials_in_order(trials, summary["config_id"][0])
    assert [(patch.get_x(), patch.get_width()) for patch in artists(figure, "warm-up") if hasattr(patch, "get_x")] == [
        (-0.5, 10),
        (199.5, 3),
    ]


def test_heat_map_tells_late_cells_and_what_was_not_measured(sweep):
    summary = sweep[0][sweep[0]["batch"] == 1]
    gone = (summary["hidden"] == 128) & (summary["sequence"] == 32) & (summary["layers"] == 1)
    summary = summary[~gone]
    deadline = float(summary["max_us"].median())
    figure = heat_map.heat_map(summary, deadline_us=deadline)
    texts = {
        (ax.get_title(loc="left"), text.get_gid()): text
        for ax in figure.axes
        for text in artists(ax, "cell:")
        if text.get_text()
    }
    assert len(texts) == len(summary)
    for row in summary.itertuples():
        text = texts[f"{row.layers} layer{'s' * (row.layers > 1)}", f"cell:{row.hidden},{row.sequence}"]
        assert float(text.get_text().replace("\u2009", "")) == pytest.approx(row.max_us, rel=0.01)
        assert (text.get_weight() == "bold") == (row.max_us > deadline)
    assert len(artists(figure, "not measured")) == 1 and "not measured" in words(figure)


def test_heat_map_keeps_within_its_panels(sweep):
    summary, _ = make_tables(Grid((1, 2, 3, 4, 6), (64, 128), (32, 64), (1, 2, 4)))
    figure = heat_map.heat_map(summary)
    assert sum(bool(artists(ax, "cell:")) for ax in figure.axes) == 5 and "batch 1" in words(figure)
    assert sum(bool(artists(ax, "cell:")) for ax in heat_map.heat_map(sweep[0]).axes) == 6


def test_runtimes_write_the_ratio_to_the_fastest():
    summary, _ = make_tables(Grid((1,), (64,), (32, 64)), (EPYC, TORCH))
    figure = runtimes.runtimes(summary, deadline_us=100)
    assert [text.get_text() for text in figure.axes[0].texts].count("1×") == 4
    assert [text.get_text() for text in figure.axes[0].texts].count("1.50×") == 4
    drawn = {artist.get_xdata()[0] for artist in artists(figure, "median_us:") + artists(figure, "max_us:")}
    assert drawn == set(summary["median_us"]) | set(summary["max_us"])
    many, _ = make_tables(SWEEP, (EPYC, TORCH))
    assert (
        "10 of 36 shapes" in words(runtimes.runtimes(many))
        and len(runtimes.runtimes(many, 4).axes[0].get_yticks()) == 4
    )


def test_machines_and_versions_are_lines_of_their_own():
    summary, trials = make_tables(Grid((1,), (64,), (32, 64)), (EPYC, XEON, OLDER))
    figure = curves.curves(summary, "sequence")
    names = {line.get_gid().split(":")[1].split("/")[0] for line in artists(figure, "median_us:")}
    assert names == {
        "onnxruntime 1.26.0 on AMD EPYC 9005",
        "onnxruntime 1.27.0 on AMD EPYC 9005",
        "onnxruntime 1.27.0 on Intel Xeon 8480",
    }
    assert sorted(y for line in artists(figure, "median_us:") for y in line.get_ydata()) == sorted(summary["median_us"])
    assert len(plots_boxes.box_plots(trials, summary, "sequence").axes) == 4  # one of them hidden
    legend = words(figure)
    assert "onnxruntime 1.26.0 on AMD EPYC 9005" in legend


def test_many_lines_get_panels_of_their_own():
    summary, _ = make_tables(Grid((1, 2), (32, 64, 100, 128, 200), (32, 64)), (EPYC, TORCH))
    figure = curves.curves(summary, "sequence")
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["onnxruntime\n1 layer", "2 layers", "pytorch\n1 layer", "2 layers"]
    assert len({ax.get_ylim() for ax in figure.axes}) == 1


def test_rounds_are_points_and_never_averaged():
    summary, trials = make_tables(Grid((1,), (64,), (32, 64)), rounds=4)
    figure = curves.curves(summary, "sequence")
    drawn = only(figure, "median_us:").get_ydata()
    by_size = [sorted(part["median_us"]) for _, part in summary.groupby("sequence")]
    assert list(drawn) == [medians[1] for medians in by_size]  # the lower of the middle two
    assert list(only(figure, "max_us:").get_ydata()) == list(summary.groupby("sequence")["max_us"].max())
    assert len(only(figure, "rounds:median_us:").get_ydata()) == 8
    assert "each of 4 rounds" in words(figure) and "each round is a small mark" in words(figure)
    boxes = plots_boxes.box_plots(trials, summary, "sequence")
    assert "first of 4 rounds" in words(boxes)
    assert [len(line.get_ydata()) for line in artists(boxes, "rounds:")] == [3, 3]
    assert "max 3.1×" in words(boxes)  # the largest of all rounds over the median of the first
    config = summary["config_id"][0]
    assert len(artists(plots_trials.tails(trials, summary, [config]), f"tail:{config}")) == 4
    assert "Round 3 of 4 rounds, the one with the largest maximum." in words(
        plots_trials.trials_in_order(trials, config)
    )
    with pytest.raises(UsageError, match="no round 9"):
        plots_trials.trials_in_order(trials, config, round_number=9)


def test_configurations_that_look_alike_are_refused_until_a_column_tells_them_apart():
    summary, _ = make_tables(Grid((1,), (64,), (32, 64)))
    other = summary.assign(config_id=[config + "x" for config in summary["config_id"]])
    both = pd.concat([summary, other], ignore_index=True)
    with pytest.raises(UsageError, match="2 configurations of 1x64-s32-b1"):
        curves.curves(both, "sequence")
    both["arrival"] = ["closed"] * 2 + ["periodic"] * 2
    assert ", periodic" in words(curves.curves(both, "sequence"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, t: curves.curves(s.drop(columns="hidden"), "sequence"), "lacks the columns hidden"),
        (lambda s, t: curves.curves(s.iloc[:0], "sequence"), "no rows"),
        (lambda s, t: curves.curves(s, "width"), "unknown axis 'width'"),
        (lambda s, t: curves.curves(s, "sequence", statistic="p42_us"), "no column 'p42_us'"),
        (
            lambda s, t: curves.curves(s, "sequence", fixed={"batch": 5}),
            r"nothing was measured at batch = 5: there is \[1",
        ),
        (lambda s, t: curves.curves(s, "sequence", fixed={"sequence": 32}), "sequence is drawn"),
        (lambda s, t: curves.curves(s, "sequence", facet="hidden"), "must differ"),
        (lambda s, t: curves.curves(s, "sequence", deadline_us=-1), "above 0"),
        (lambda s, t: heat_map.heat_map(s, "hidden", "hidden"), "must differ"),
        (lambda s, t: heat_map.heat_map(s, "width"), "unknown axis 'width'"),
        (lambda s, t: heat_map.heat_map(s, facets=("width",)), "unknown axis 'width'"),
        (lambda s, t: curves.curves(s, "batch", line="width"), "unknown axis 'width'"),
        (lambda s, t: plots_boxes.box_plots(t, s, "width"), "unknown axis 'width'"),
        (lambda s, t: plots_boxes.box_plots(t.iloc[:0], s, "batch"), "no trials"),
        (lambda s, t: plots_boxes.box_plots(t.drop(columns="trial"), s, "batch"), "lack the columns trial"),
        (lambda s, t: plots_trials.tails(t, s, ["feed"]), "not in the summary: feed"),
        (lambda s, t: plots_trials.tails(t, s, []), "no configs"),
        (lambda s, t: plots_trials.trials_in_order(t, "feed"), "no trials of configuration feed"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line(sweep, call, message):
    with pytest.raises(UsageError, match=message):
        call(*sweep)


def png_size(path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n") and content.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", content[16:24])


def test_draw_sweep_writes_what_the_data_supports(tmp_path):
    summary, trials = make_tables(Grid((1, 2), (64, 128), (32, 64), (1, 4)), (EPYC, TORCH))
    (tmp_path / "kept.txt").write_text("mine")
    with matplotlib.rc_context({"font.size": 17, "axes.grid.axis": "x"}):
        before, settings = pyplot.get_fignums(), dict(matplotlib.rcParams)
        paths = recordings.draw_sweep(summary, trials, tmp_path, deadline_us=200)
        assert pyplot.get_fignums() == before and dict(matplotlib.rcParams) == settings
    axes = ("layers", "hidden", "sequence", "batch")
    names = [f"sweep-latency-by-{axis}.png" for axis in axes] + ["sweep-heat-map.png", "sweep-runtimes.png"]
    names += [f"sweep-boxes-by-{axis}.png" for axis in axes] + ["sweep-tails.png", "sweep-trials.png"]
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["kept.txt", *names])  # nothing half-written
    for path in paths:
        width, height = png_size(path)
        assert width == round(9.2 * 130) and 300 < height < 3000 and 10_000 < path.stat().st_size < 1_000_000


def one_trial(us: float) -> np.ndarray:
    return np.array([us])


def all_equal(us: float) -> np.ndarray:
    return np.full(50, 100.0)


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (make_tables([LstmShape(2, 64, 32)]), {"tails", "trials"}),
        (make_tables([LstmShape(2, 64, 32)], make=one_trial, floor=False), {"tails", "trials"}),
        (
            make_tables(Grid((2,), (64, 128), (32,)), make=all_equal),
            {"latency-by-hidden", "boxes-by-hidden", "tails", "trials"},
        ),
        (
            make_tables(Grid((2,), (64,), (32, 64)), failing=lambda system, shape, number: "build"),
            {"failures"},
        ),
        (
            make_tables(
                Grid((2,), (64,), (32, 64)), rounds=3, failing=lambda system, shape, number: "run" if number else None
            ),
            {"latency-by-sequence", "boxes-by-sequence", "tails", "trials"},
        ),
        (
            make_tables(
                [LstmShape(2, 64, 32)], (EPYC, XEON), failing=lambda system, *_: "time" if system == XEON else None
            ),
            {"runtimes", "tails", "trials"},
        ),
    ],
    ids=["one configuration", "one trial", "zero IQR", "only failures", "failed rounds", "one runtime failed"],
)
@pytest.mark.filterwarnings("error")
def test_draw_sweep_on_the_edges(tmp_path, tables, expected):
    paths = recordings.draw_sweep(*tables, tmp_path, deadline_us=150)
    assert {path.stem.removeprefix("sweep-") for path in paths} == expected
    assert all(png_size(path)[1] > 100 for path in paths)


def test_without_trials_the_summary_is_drawn_alone(tmp_path, sweep):
    summary, trials = sweep
    summary = summary[summary["batch"] == 1].drop(columns="floor_us")
    paths = recordings.draw_sweep(summary, trials.iloc[:0], tmp_path)
    assert {path.stem for path in paths} == {f"sweep-latency-by-{a}" for a in ("layers", "hidden", "sequence")} | {
        "sweep-heat-map"
    }


def test_only_failures_are_told_with_stage_and_reason():
    summary, _ = make_tables(Grid((1,), (64,), tuple(range(1, 31))), failing=lambda *_: "memory")
    text = words(recordings.failures(summary))
    assert "No configuration succeeded" in text and "30 failed, by stage: memory 30" in text
    assert "1x64-s1-b1 on onnxruntime, memory: no memory left" in text and "and 5 more" in text
    summary["reason"], summary["device_name"] = "set $HOME_$ or\n$\\frac", "A $5 $x^ card"
    assert "set $HOME_$ or $\\frac" in words(recordings.failures(summary))
    assert recordings.failures(summary)._repr_png_()


def test_tails_of_a_sweep_begin_with_the_worst():
    summary, _ = make_tables(SWEEP)
    worst = summary["config_id"][17]
    summary.loc[17, "max_us"] *= 9
    chosen = recordings.choose_tails(summary)
    assert chosen[0] == worst and len(set(chosen)) == 6


def test_a_folder_that_cannot_be_written_is_said(tmp_path, sweep):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError, match="cannot write pictures to"):
        recordings.draw_sweep(*sweep, tmp_path / "taken")


def test_nothing_reaches_beyond_the_sheet_and_ticks_do_not_touch():
    systems = (EPYC, ("pytorch-cudagraph", *EPYC[1:2], "NVIDIA H100 80GB HBM3", "fp32", 1))
    grid = Grid((1, 2, 3, 4, 6), (32, 64, 100, 128, 200, 256, 300, 400), (32, 256))
    summary, _ = make_tables(grid, (EPYC,), failing=lambda _, shape, __: "memory" if shape.hidden > 300 else None)
    wide, trials = make_tables([LstmShape(1, 32, 32, 2**power) for power in range(10)])
    other = wide.assign(runtime=systems[1][0], device_name=systems[1][2], config_id=wide["config_id"] + "x")
    both = pd.concat([wide, other], ignore_index=True)
    figures = [
        curves.curves(summary, "hidden", deadline_us=1000),
        curves.curves(both, "batch"),
        heat_map.heat_map(summary, deadline_us=300),
        runtimes.runtimes(both),
        plots_boxes.box_plots(trials, wide, "batch"),
        plots_trials.tails(trials, wide, list(wide["config_id"][:6]), deadline_us=80),
        plots_trials.trials_in_order(trials, wide["config_id"][0], wide, deadline_us=80),
    ]
    for figure in figures:
        figure.draw_without_rendering()
        sheet = figure.bbox.padded(1)
        notes = only(figure, "notes").get_window_extent()
        assert notes.y1 <= only(figure, "title").get_window_extent().y0
        for part in figure.subfigs:
            for artist in [*part.texts, *part.legends]:
                box = artist.get_window_extent()
                assert sheet.contains(box.x0, box.y0) and sheet.contains(box.x1, box.y1), artist
        assert all(text.get_size() >= 8 for text in figure.findobj(Text))
        for ax in figure.axes:
            if not ax.get_visible():
                continue
            box = ax.get_tightbbox()
            assert box.y1 <= notes.y0
            assert sheet.contains(box.x0, box.y0) and sheet.contains(box.x1, box.y1), ax.get_title(loc="left")
            boxes = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
            boxes = sorted((box for box in boxes if box.width), key=lambda box: box.x0)
            if ax.xaxis.get_tick_params().get("labelbottom", True):
                assert all(left.x1 <= right.x0 for left, right in itertools.pairwise(boxes))


def test_figures_show_themselves_and_imports_are_light(sweep):
    assert curves.curves(sweep[0], "sequence")._repr_png_().startswith(b"\x89PNG")
    code = "import sys, lstm_trt.plots.recordings; print([m for m in ('torch', 'onnx', 'onnxruntime') if m in sys.modules])"  # noqa: E501
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"
