"""The report pages and the margin map show the numbers of their findings; nothing is cut off."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba

from lstm_judge import plots
from lstm_judge.outliers.outliers import OutlierAnswers, outliers
from lstm_judge.outliers.text import causes_text, clusters_text
from lstm_judge.plots import page as pages, style, tail
from lstm_judge.plots.style import Picture, apart, image_bytes, multiple, percent
from lstm_judge.read.rounds import Group, NoTrials, Round
from lstm_judge.read.runs import Runs, as_runs, load
from lstm_judge.statistics.causes import Cause
from lstm_judge.statistics.quantiles import count_outliers
from lstm_judge.statistics.trials import Trials
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.text import sentence
from lstm_judge.verdict.verdict import Verdicts, failed
from lstm_trt.config.configuration import Configuration, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import Grid, LstmShape
from lstm_trt.store.schema import Failure
from tests.conftest import rest_is_heavy
from tests.support.pictures import (
    assert_nothing_is_covered,
    assert_nothing_is_cut_off,
    cells,
    deadlines,
    labelled,
    lines,
    only,
    png_size,
    shaded,
    table_rows,
    table_texts,
    text_of,
)
from tests.support.planted_latencies import explain, judge

MEDIAN_NS = 100_000.0


def round_(n: int, late: int = 0, far: float = 2.0, warmup: int = 10, seed: int = 0, **more) -> Round:
    """A bulk near 100 us, evenly spread within 1 %, with `late` trials at `far` times that; warm-up first."""
    body = MEDIAN_NS * np.linspace(0.99, 1.01, max(n - late, 0))
    timed = np.random.default_rng(seed).permutation(np.r_[body, np.full(late, far * MEDIAN_NS)])
    warm = MEDIAN_NS * np.linspace(9, 3, warmup)
    return Round(np.r_[warm, timed], np.arange(warmup + n) < warmup, **more)


SHAPE = LstmShape(2, 64, 64)


def group(*rounds: Round, shape: LstmShape = SHAPE, **more) -> Group:
    configuration = Configuration(shape, "onnxruntime", "1.31.1", "AMD EPYC", protocol=Protocol(**more))
    return Group(f"{shape.label} on onnxruntime", rounds, configuration=configuration)


def control(n: int) -> np.ndarray:
    return 200 + 100 * np.random.default_rng(n).exponential(size=n) ** 3


def page(recorded: Group, deadline_us: float, percentile: str = "99", outliers=None):
    verdict = judge(recorded.rounds, deadline_us, percentile)
    return verdict, plots.verdict_page(recorded, verdict, outliers)


def pooled_line(figure):
    """The tail of all rounds."""
    return only(lines(figure, drawstyle="steps-post", linewidth=1.8))


def levels(figure) -> dict[str, float]:
    """Heights of the two lines across the tail: the allowed share, and the evidence line."""
    across = [line for line in lines(pooled_line(figure).axes) if list(line.get_xdata()) == [0, 1]]
    return {"evidence" if line.is_dashed() else "allowed": line.get_ydata()[0] for line in across}


@pytest.mark.parametrize(
    ("late", "expected"), [(0, "MET"), (5, "NOT ENOUGH EVIDENCE"), (60, "MISSED")], ids=["none", "few", "many"]
)
def test_the_page_shows_the_verdict_and_its_numbers(late, expected):
    verdict, figure = page(group(round_(1000, late)), 150)
    assert verdict.outcome == expected
    band = figure.subfigs[1].subfigs[0]
    badge, beside = band.texts
    assert badge.get_text().replace("\n", " ") == expected
    color = only([artist for artist in band.artists if isinstance(artist, pages.Rectangle)]).get_facecolor()
    assert color == to_rgba(pages.VERDICT_COLORS[expected])
    assert beside.get_text().replace("\n", " ") == sentence(verdict).replace(" us", " µs")
    rows = table_rows(figure)
    value = dict(rows)
    timed = round_(1000, late).timed_ns > 150_000
    for k in (10, 100, 1000):
        assert int(value[f"most in any {k} consecutive"]) == max(timed[i : i + k].sum() for i in range(1001 - k))
    assert ("in n = 1\u2009000 trials", str(late)) in rows
    assert value["measured"] == percent(late / 1000) and value["allowed"] == "1 %"
    assert (value["after a miss"] == "–") == (late == 0)
    assert ("new trials needed" in value) == (expected == "NOT ENOUGH EVIDENCE")
    assert "n = 1\u2009000 trials after warm-up; maximum" in text_of(figure)
    assert "onnxruntime 1.31.1 (fp32, threads 1) on AMD EPYC; arrivals: closed" in text_of(figure)


def test_thousands_stand_apart_in_figures():
    texts = {
        "12345.6789 µs": "12\u2009345.6789 µs",
        "999": "999",
        "0.0033 %": "0.0033 %",
        "-1234567": "-1\u2009234\u2009567",
    }
    assert {text: apart(text) for text in texts} == texts


def test_the_tail_is_exact_and_its_lines_stand_where_they_should():
    recorded = group(round_(1000, 7))
    _, figure = page(recorded, 150)
    us = recorded.rounds[0].timed_ns / 1000
    line = pooled_line(figure)
    x, y = line.get_data()
    for level in (99.0, 99.5, 100.0, 101.0, 150.0, 199.9):
        assert y[np.searchsorted(x, level, side="right") - 1] == np.mean(us > level)
    assert (x[-1], y[-1], line.get_markevery()) == (200.0, 1 / 1000, [1000])  # the maximum is marked
    assert levels(figure)["allowed"] == pytest.approx(0.01)
    # at this rate no miss in 1000 has a chance of 5 %
    assert (1 - levels(figure)["evidence"]) ** 1000 == pytest.approx(0.05)
    ax = line.axes
    assert only(deadlines(ax)).get_xdata()[0] == 150
    figure.draw_without_rendering()
    (above,) = ax.child_axes
    median = np.quantile(us, 0.5, method="inverted_cdf")
    assert list(above.get_xlim()) == pytest.approx([edge / median for edge in ax.get_xlim()])


def band_at(figure, latency_us: float) -> tuple[float, float]:
    """Lower and upper edge of the band at a latency."""
    drawn = pooled_line(figure).axes.collections
    bands = [band for band in drawn if str(band.get_label()).startswith("exact bounds")]
    pairs = itertools.pairwise(only(bands).get_paths()[0].vertices)
    crossed = [a[1] for a, b in pairs if min(a[0], b[0]) <= latency_us < max(a[0], b[0])]
    return min(crossed), max(crossed)


@pytest.mark.parametrize("late", [0, 3, 4, 5, 12, 16, 17, 30])
def test_the_band_at_the_deadline_is_the_verdict(late):
    """MET where its upper edge lies below what is allowed, MISSED where its lower edge lies above."""
    verdict, figure = page(group(round_(1000, late)), 150)
    assert verdict.effective.n == 1000  # shuffled: independent
    low, high = band_at(figure, 150)
    assert verdict.outcome == ("MET" if high <= 0.01 else "MISSED" if low > 0.01 else "NOT ENOUGH EVIDENCE")


def test_dependence_takes_back_no_missed():
    """Misses in runs of 10: few effective trials, and still the band lies above the allowed share."""
    latency = np.full(3000, 1e5) * np.random.default_rng(5).uniform(0.99, 1.01, 3000)
    latency[np.arange(3000) % 100 < 10] *= 2
    verdict, figure = page(group(Round.of(latency)), 150)
    assert verdict.outcome == "MISSED" and verdict.effective.n < 600
    low, high = band_at(figure, 150)
    assert 0.01 < low < 0.1 < high


def test_misses_in_bursts_widen_the_band():
    latency = np.full(3000, 1e5) * np.random.default_rng(5).uniform(0.99, 1.01, 3000)
    for start in (400, 1400, 2400):
        latency[start : start + 4] = 2e5
    burst = group(Round.of(latency))
    verdict, figure = page(burst, 150)
    assert verdict.effective.n < 3000
    assert (1 - levels(figure)["evidence"]) ** verdict.effective.n == pytest.approx(0.05, rel=0.01)
    assert "no evidence below, effective n = " in text_of(figure) and dict(table_rows(figure))["effective sample size"]


def test_rounds_are_drawn_apart_and_trials_one_after_the_other():
    recorded = group(*(round_(500, 5, seed=number, round=number) for number in range(3)))
    _, figure = page(recorded, 250)
    rounds = lines(figure, drawstyle="steps-post", linewidth=0.8)
    assert len({line.get_color() for line in rounds}) == len(rounds) == 3 and "each of 3 rounds" in text_of(figure)
    bulk = only(lines(figure, label="within 1.5 × IQR"))
    assert len(bulk.get_xdata()) == 3 * 495
    assert (np.diff(np.sort(bulk.get_xdata())) > 10).sum() >= 2  # gaps, and the warm-up of each round
    assert [label.get_text() for label in bulk.axes.get_xticklabels()] == ["0", "1", "2"]
    assert "in 3 rounds" in text_of(figure) and "by round" in text_of(figure)
    assert len(shaded(figure, "warm-up")) == 3


def test_the_control_run_is_drawn_by_its_excess_in_us():
    noise = np.full(1000, 500.0)
    noise[3] = 60_500.0  # one excess of 60 us
    _, figure = page(group(round_(1000, control_ns=noise)), 1000)
    x, _ = only(labelled(figure, "empty step")).get_data()
    median = np.quantile(round_(1000).timed_ns, 0.5, method="inverted_cdf") / 1000
    assert x[0] == pytest.approx(median) and x[-1] == pytest.approx(median + 60)
    assert "empty step: excess over its median" in text_of(figure)


def test_a_configuration_that_failed_has_a_page_with_its_reason():
    recorded = replace(group(), rounds=(), failure=NoTrials("memory", "no memory left"))
    figure = plots.verdict_page(recorded, failed(recorded.failure, Question(1000)))
    assert "no memory left" in text_of(figure) and "NOT ENOUGH EVIDENCE" in text_of(figure)
    assert_nothing_is_cut_off(figure)


@pytest.mark.heavy
def test_all_of_a_million_trials_are_drawn():
    generator = np.random.default_rng(3)
    latency = MEDIAN_NS * (1 + 0.01 * generator.standard_normal(1_000_000))
    slow = generator.choice(1_000_000, 5000, replace=False)
    latency[slow] *= 1.25
    latency[123_456] = 9 * MEDIAN_NS
    recorded = group(Round.of(latency, control_ns=control(1_000_000)))
    verdict = judge(recorded.rounds, 1000, "99.99")
    figure = plots.verdict_page(recorded, verdict)
    image_bytes(figure)
    assert pooled_line(figure).get_xdata()[-1] == pytest.approx(900)
    outliers = only(lines(figure, label="outside 1.5 × IQR (box plot)")).get_ydata()
    inside = Trials(latency)
    assert len(outliers) == inside.outliers and outliers.max() == pytest.approx(900)
    bulk = only(lines(figure, label="within 1.5 × IQR")).get_ydata()
    kept = inside.latency_us[~inside.is_outlier]
    assert len(bulk) == len(kept) and (bulk.min(), bulk.max()) == (kept.min(), kept.max())
    x, y = pooled_line(figure).get_data()
    assert len(x) < 6000
    for level in np.quantile(latency / 1000, [0.01, 0.3, 0.5, 0.9, 0.99, 0.996, 0.99999]):
        drawn = y[np.searchsorted(x, level, side="right") - 1]
        assert drawn == pytest.approx(np.mean(latency / 1000 > level), rel=0.02)


def test_exceedance_counts_the_trials_above_each_level():
    values = np.random.default_rng(1).random(50_001)
    ordered = np.sort(values)
    latency, above = tail.exceedance(ordered)
    assert (ordered[len(values) - 1 - above] == latency).all() and list(above[-3:]) == [2, 1, 0]


def sweep(n: int = 1000, hidden: tuple[int, ...] = (32, 64, 128)) -> Runs:
    """Networks with more misses at larger sizes; one failed."""
    groups, failures = [], []
    for shape in Grid((2,), hidden, (16, 32)):
        late = {32: 0, 64: 5, 128: 60}[shape.hidden]
        recorded = group(round_(n, late, seed=shape.hidden + shape.sequence), shape=shape)
        if (shape.hidden, shape.sequence) == (128, 32):
            recorded = replace(recorded, rounds=(), failure=NoTrials("build", "none"))
            failures.append(Failure(recorded.configuration, 0, "build", "none"))
        groups.append(recorded)
    return Runs(tuple(groups), recordings=tuple(failures))


def verdicts_of(runs: Runs, percentile: str) -> list:
    """Verdicts at a deadline of 150 us."""
    return [judge(group.rounds, 150, percentile) if group.n else failed(group.failure, Question(150)) for group in runs]


def bounds(runs, deadline_us: float, percentile: str | None = None, **options):
    return plots.heat_map(runs, value="bound_us", deadline_us=deadline_us, percentile=percentile, **options)


def verdict_of(text, patch) -> str:
    """The verdict of a cell in the map of bounds: MISSED is bold, NOT ENOUGH EVIDENCE dotted."""
    if text.get_weight() == "bold":
        return "MISSED"
    return "NOT ENOUGH EVIDENCE" if patch.get_hatch() else "MET"


def test_the_margin_map_draws_the_bounds_that_the_verdicts_rest_on():
    runs = sweep()
    figure = bounds(runs, 150, "99")
    found = cells(figure.axes[0])
    for recorded in runs:
        shape = recorded.configuration.workload
        text, patch = found[shape.hidden, shape.sequence]
        if recorded.failure:
            assert text.get_text() == "build"
            failed_hatch = patch.get_hatch()
            continue
        verdict = judge(recorded.rounds, 150, "99")
        assert not text.get_text().startswith(">")
        assert (float(text.get_text()) <= 150) == (verdict.outcome == "MET")
        assert verdict_of(text, patch) == verdict.outcome
    hatches = {patch.get_hatch() for _, patch in found.values()}
    assert len(hatches) == 3 and failed_hatch  # none, too little evidence, failed
    assert "NOT ENOUGH EVIDENCE" in text_of(figure) and "failed at the named stage" in text_of(figure)


@pytest.mark.parametrize("misses", [0, 1, 2, 3, 4, 5, 6])
def test_the_bound_is_the_order_statistic_of_the_exact_test(misses):
    """The bound meets a deadline between two latencies exactly where the verdict does."""
    groups = [group(round_(1000, 0), shape=LstmShape(2, hidden, 64)) for hidden in (8, 16)]
    ordered = np.sort(groups[0].rounds[0].timed_ns) / 1000
    deadline = float((ordered[999 - misses] + ordered[1000 - misses]) / 2) if misses else 1000.0
    verdict = judge(groups[0].rounds, deadline, "99")
    assert verdict.misses == misses
    (shown,) = {verdict_of(*cell) for cell in cells(bounds(groups, deadline, "99").axes[0]).values()}
    assert shown == verdict.outcome == ("MET" if misses <= 4 else "NOT ENOUGH EVIDENCE")


def test_what_so_many_trials_cannot_prove_is_not_a_number():
    figure = bounds(sweep(), 150, "99.9")
    found = [cells(figure.axes[0])[32, sequence] for sequence in (16, 32)]
    assert {text.get_text() for text, _ in found} == {">101"} and "the bound lies beyond the maximum" in text_of(figure)
    assert {verdict_of(*cell) for cell in found} == {"NOT ENOUGH EVIDENCE"}


def test_the_percentile_is_what_so_many_trials_can_prove():
    shapes = [LstmShape(2, hidden, 64) for hidden in (8, 16, 32)]
    groups = [group(round_(n), shape=shape) for n, shape in zip((298, 1000, 3000), shapes, strict=True)]
    figure = bounds(groups, 150)
    assert "p99 at n = 298 or 1\u2009000, p99.9 at n = 3\u2009000" in text_of(figure)
    found = cells(figure.axes[0])
    assert [found[hidden, 64][0].get_text()[0] == ">" for hidden in (8, 16, 32)] == [True, False, False]
    assert "p99.9" not in text_of(bounds(groups[:2], 150)).split("This is the highest")[0]


def test_the_margin_map_needs_shapes_and_axes():
    with pytest.raises(UsageError, match="recordings made by this package"):
        bounds([Group("numbers", (round_(100),))], 100)
    with pytest.raises(UsageError, match="must differ"):
        bounds(sweep(), 100, x="hidden", y="hidden")
    with pytest.raises(UsageError, match="unknown axis 'width'"):
        bounds(sweep(), 100, x="width")
    with pytest.raises(UsageError, match="deadline"):
        bounds(sweep(), -1)


def test_the_map_distinguishes_machines():
    groups = [group(round_(1000, machine=machine)) for machine in ("one", "other")]
    shown = text_of(bounds(groups, 150))
    assert "machine one" in shown and "machine other" in shown


@pytest.mark.heavy
def test_draw_verdicts_writes_a_page_each_and_the_map(tmp_path):
    groups = sweep(hidden=(64, 128))
    verdicts = verdicts_of(groups, "99.9")
    paths = plots.draw_verdicts(groups, verdicts, tmp_path)
    assert [path.name for path in paths if "margin" in path.name] == ["verdict-margin-p99.9.png"]
    names = {f"verdict-2x{hidden}-s{sequence}-b1-on-onnxruntime.png" for hidden in (64, 128) for sequence in (16, 32)}
    assert {path.name for path in paths} >= names and len(paths) == 5
    assert all(png_size(path)[0] == round(9.2 * 130) for path in paths)


@pytest.fixture
def names_only(monkeypatch):
    """Pages are made and get their names, but are not drawn as pictures, which takes most of the time."""
    monkeypatch.setattr(style, "image_bytes", lambda picture, form="png": b"a picture")


def test_columns_of_one_table_have_pages_of_their_own(names_only, tmp_path, lab):
    pd.DataFrame({"a_us": [5.1, 6.2, 7.4] * 9, "b_us": [8.1, 9.4, 9.9] * 9}).to_csv(tmp_path / "times.csv")
    for command, more in (("verdict", ["--deadline-us", 5]), ("outliers", [])):
        for column in ("a_us", "b_us"):
            done = lab(command, tmp_path / "times.csv", "--column", column, *more, "--figures", tmp_path / "pages")
            assert f"{command}-times.csv-{column}.png" in done.stderr
    assert len(list((tmp_path / "pages").iterdir())) == 4
    runs = load(tmp_path / "times.csv", column="b_us")
    assert "column b_us, unit µs" in text_of(plots.outliers_page(runs, outliers(runs)[0]))


def test_the_same_page_is_the_same_file(tmp_path):
    recorded = group(round_(300, 4))
    verdict = judge(recorded.rounds, 150, "99")
    hashes = set()
    for name in ("a", "b"):
        (path,) = plots.draw_verdicts([recorded], [verdict], tmp_path / name)
        hashes.add(hashlib.sha256(path.read_bytes()).digest())
    assert len(hashes) == 1


def test_of_many_the_worst_have_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "PAGES", 3)
    drawn = []
    monkeypatch.setattr(pages, "verdict_page", lambda _, verdict, __: drawn.append(verdict) or Picture())
    groups = [Group("", (round_(40, 1, far=2 + late),)) for late in range(14)]
    verdicts = [judge(recorded.rounds, 150, "50") for recorded in groups]
    verdicts[3] = judge(groups[3].rounds, 50, "50")  # all trials are misses
    paths = plots.draw_verdicts(groups, verdicts, tmp_path)
    assert [path.name for path in paths] == ["verdict.png", "verdict-2.png", "verdict-3.png"]
    assert drawn == [verdicts[3], verdicts[13], verdicts[12]]  # MISSED first, then the largest maximum
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        plots.draw_verdicts(groups[:1], verdicts[:1], tmp_path / "taken")


def test_arrivals_stand_side_by_side_with_the_machine_alone():
    closed = group(round_(500, 3, control_ns=control(500)))
    spin = group(round_(500, 9, control_ns=control(400)), arrival="periodic", period_us=1000.0)
    paused = group(round_(500), arrival="paused", pause_ms=10.0)
    figure = plots.arrival_tails([paused, spin, closed], deadline_us=150)
    legend = [text for text in text_of(figure).splitlines() if "median" in text]
    assert [text.split(":")[0] for text in legend] == ["closed", "periodic every 1000 µs (spin)", "paused 10 ms (os)"]
    assert "misses 9 of 500 (1.8 %)" in legend[1] and "misses 0 of 500 (0 %)" in legend[2]
    network, machine = figure.axes
    assert len(lines(machine, drawstyle="steps-post")) == 2
    x, y = only(labelled(network, "closed")).get_data()
    assert y[np.searchsorted(x, 150, side="right") - 1] == 3 / 500
    assert len(plots.arrival_tails([paused]).axes) == 1
    with pytest.raises(UsageError, match="none of these"):
        plots.arrival_tails([group()])


def test_a_replay_is_drawn_beside_what_was_recorded():
    latency = np.full(100, 100_000.0)
    latency[10] = 2_000_000.0  # with a period of 200 us the calls after it wait
    recorded = group(Round.of(latency))
    figure = plots.replay_tails(recorded, 200, deadline_us=250)
    closed, due = (line.get_data() for line in lines(figure, drawstyle="steps-post"))
    assert [np.round(y[np.searchsorted(x, 250, side="right") - 1] * 100) for x, y in (closed, due)] == [1, 18]
    assert "onnxruntime 1.31.1" in text_of(figure) and "on AMD EPYC" in text_of(figure)
    with pytest.raises(UsageError, match="period"):
        plots.replay_tails(recorded, 100)


EDGES = {
    "one trial": (group(round_(1, warmup=0)), 150, "99"),
    "one trial, deadline far": (group(round_(1)), 1e6, "99.99"),
    "all equal": (group(Round.of(np.full(50, 1e5))), 150, "99"),
    "deadline far below": (group(round_(1000, 3)), 0.5, "99"),
    "deadline just above": (group(round_(1000)), 101.5, "99"),
    "three rounds": (group(*(round_(700, 9, seed=n, round=n) for n in range(3))), 150, "99"),
    "a dozen rounds": (group(*(round_(60, 2, seed=n, round=n) for n in range(12))), 150, "90"),
    "control": (group(round_(1000, 12, control_ns=control(1000))), 150, "99.9"),
    "long tail": (group(round_(10_000, 30, far=300)), 1000, "99.99"),
    "numbers from elsewhere": (Group("", (Round.of([3e6, 5e6, 4e6]),), {"batch": 3}), 4500, "50"),
    "a long name": (Group("a recording with a very long name " * 4, (round_(100),)), 150, "99"),
}


def assert_the_page_is_whole(figure) -> None:
    assert_nothing_is_cut_off(figure)
    table = [text.get_window_extent() for row in table_texts(figure) for text in row if text.get_text().strip()]
    tail_end = pooled_line(figure).axes.get_tightbbox().x1
    assert all(box.x0 >= tail_end for box in table)


#: `make test` draws these, and the heavy part the others.
QUICK = {"one trial", "numbers from elsewhere"}


@pytest.mark.parametrize("name", rest_is_heavy(EDGES, QUICK.__contains__))
@pytest.mark.filterwarnings("error")
def test_the_page_on_the_edges(name):
    recorded, deadline_us, percentile = EDGES[name]
    _, figure = page(recorded, deadline_us, percentile)
    assert_the_page_is_whole(figure)
    ax = pooled_line(figure).axes
    assert bool(deadlines(ax)) != ("beyond the " in text_of(figure))  # drawn, or stated in the legend
    assert_nothing_is_covered(figure)


def test_trials_in_order_of_a_group():
    figure = plots.trials_in_order(group(round_(300, 4)), deadline_us=150)
    outside = only(lines(figure, label="outside 1.5 × IQR (box plot)"))
    assert len(outside.get_xdata()) == 4 and len(deadlines(figure)) == 2
    with pytest.raises(UsageError, match="no trials after warm-up"):
        plots.trials_in_order(group())


def watched(missing: str | None = None) -> Round:
    """Calls of 100 us, one each ms, in two blocks; ten are preempted, five wait, one has page faults.

    During the second block other programs used the processor.
    """
    n = 200
    latency_ns, preempted, waited = np.full(n, 100_000.0), np.zeros(n, int), np.zeros(n, int)
    preempted[20:30], waited[50:55] = 40_000, 7_000
    faults = np.where(np.arange(n) == 70, 12, 0)
    others = {"others_ns": 60_000_000, "others_total_ns": 60_000_000}
    quiet = dict.fromkeys(others, 0)
    return Round.of(
        latency_ns + preempted + waited,
        np.arange(n) * 1_000_000,
        off_core={} if missing else {"preempted_ns": preempted, "off_core_ns": preempted + waited},
        causes={"minor_faults": faults, "major_faults": faults * 0},
        switches={"missing": missing, "ran": {}, "ran_missing": missing, "faults": {}, "faults_missing": missing},
        blocks=[{"rows": 100, "interrupts": 40, **quiet}, {"rows": 100, "interrupts": 90, **others}],
    )


def test_the_timeline_shows_what_was_measured_beside_each_call():
    figure = plots.timeline(group(watched()))
    latency, *below = figure.axes
    assert len(latency.lines[0].get_xdata()) == 200
    named = {line.get_label(): line for ax in below for line in ax.lines}
    assert named["preempted: 10 calls"].get_ydata().tolist() == [40] * 10
    waited = named["waiting by itself: 5 calls"]
    assert waited.get_ydata().tolist() == [7] * 5
    assert waited.get_xdata() == pytest.approx([0.050, 0.051, 0.052, 0.053, 0.054])
    assert named["minor page faults: 1 call"].get_ydata().tolist() == [12]
    assert set(named["interrupts"].get_ydata()) == {40, 90}
    for ax in figure.axes:
        span = only([patch for patch in ax.patches if patch.get_label() == "other programs ran"])
        assert (span.get_x(), span.get_x() + span.get_width()) == pytest.approx((0.100, 0.199))


def test_the_timeline_without_times_off_the_core_says_why():
    figure = plots.timeline(group(watched("perf_event_open: Permission denied")))
    assert "Times off the core were not measured: perf_event_open: Permission denied." in text_of(figure)
    assert not list(figure.axes[1].lines)
    with pytest.raises(UsageError, match="no round with times off the core"):
        plots.timeline(group(round_(300)))


def test_the_timeline_is_drawn_beside_the_page_of_outliers(names_only, tmp_path):
    recorded = group(watched())
    paths = plots.draw_outliers([recorded], [explain(recorded.rounds)], tmp_path)
    assert [path.name for path in paths][1:] == ["timeline-2x64-s64-b1-on-onnxruntime.png"]


def clustered(n: int = 2000, seed: int = 0, counts=((1.25, 40), (2.0, 20)), step: float = 1.0, **more) -> Round:
    """A normal bulk of 1 %, clusters of exact size, a step half way; warm-up first."""
    generator = np.random.default_rng(seed)
    ratios = 1 + 0.01 * generator.standard_normal(n)
    places, first = generator.permutation(n), 0
    for multiplier, count in counts:
        ratios[places[first : first + count]] = multiplier * (1 + 0.002 * generator.standard_normal(count))
        first += count
    ratios[n // 2 :] *= step
    warm = np.linspace(9, 3, 10)
    return Round(MEDIAN_NS * np.r_[warm, ratios], np.arange(n + 10) < 10, **more)


def planted(**more) -> tuple[Group, object]:
    recorded = group(clustered(**more))
    return recorded, explain(recorded.rounds)


def cluster_line(figure, cluster):
    name = f"{'fast' if cluster.multiplier < 1 else 'slow'} cluster at {multiple(cluster.multiplier)}"
    return only(labelled(figure, f"{name}: {cluster.count} trials, {percent(cluster.share)}"))


def test_clusters_have_their_own_colours_and_names():
    recorded, found = planted(step=1.05)
    figure = plots.outliers_page(recorded, found)
    assert len(found.clusters) == 2
    drawn = [cluster_line(figure, cluster) for cluster in found.clusters]
    assert [len(line.get_ydata()) for line in drawn] == [cluster.count for cluster in found.clusters]
    bulk = only(labelled(figure, "bulk"))
    assert len({str(line.get_color()) for line in (bulk, *drawn)}) == 3
    others = sum(len(line.get_xdata()) for line in labelled(figure, "tail"))
    late = sum(cluster.count for cluster in found.clusters)
    assert len(bulk.get_xdata()) + late + others == 2000  # every trial has one colour
    place, level = only(labelled(figure, "level of each segment")).get_data()
    assert level[0] == pytest.approx(100, rel=0.01) and level[-1] == pytest.approx(105, rel=0.01)
    jump = place[np.flatnonzero(np.diff(level) > 3)[0]]
    assert abs(jump - 1010) < 30  # behind the ten of the warm-up


def test_findings_belong_to_the_trials_that_are_drawn():
    recorded, found = planted()
    figure = plots.outliers_page(recorded, found)
    places = cluster_line(figure, found.clusters[0]).get_xdata()
    assert list(places) == list(10 + np.flatnonzero(found.rounds[0].labels == 0))
    (first,) = recorded.rounds
    shorter = replace(first, latency_ns=first.latency_ns[20:], warmup=first.warmup[20:])
    with pytest.raises(UsageError, match=r"\[2000\] trials, but .* has \[1990\]"):
        plots.outliers_page(replace(recorded, rounds=(shorter,)), found)
    with pytest.raises(UsageError, match=r"\[2000\] trials, but .* has \[2000, 2000\]"):
        plots.outliers_page(replace(recorded, rounds=(first, replace(first, round=1))), found)


def test_rounds_without_timed_trials_do_not_shift_the_findings():
    empty = Round(np.array([1e5]), np.array([True]), round=0)
    recorded = group(empty, clustered(seed=1, round=1), clustered(seed=2, round=2))
    found = explain(recorded.rounds)
    figure = plots.verdict_page(recorded, judge(recorded.rounds, 250, "99"), found)
    assert len(cluster_line(figure, found.clusters[0]).get_xdata()) == found.clusters[0].count > 60
    assert_the_page_is_whole(figure)


@pytest.mark.parametrize(
    "counts",
    [(), ((0.8, 80), (1.5, 60)), ((1.25, 60), (1.6, 50), (2.2, 40), (3.5, 30))],
    ids=["none", "fast and slow", "four"],
)
@pytest.mark.filterwarnings("error")
def test_the_page_of_outliers(counts):
    """The page shows all findings with their counts."""
    recorded, found = planted(counts=counts, control_ns=control(500))
    figure = plots.outliers_page(recorded, found)
    rows, kinds = dict(table_rows(figure)), ("bulk", "slow clusters", "fast clusters", "tail")
    number = {
        name: int(rows[name].split(",")[0].replace("\u2009", "")) for name in (*kinds, "sum", "outside 1.5 × IQR")
    }
    assert [number[kind] for kind in kinds] == list(found.partition.values())
    assert sum(number[kind] for kind in kinds) == number["sum"] == 2000
    assert number["outside 1.5 × IQR"] == found.outliers == count_outliers(recorded.rounds[0].timed_ns)
    legend = {kind: sum(len(line.get_xdata()) for line in labelled(figure, kind.removesuffix("s"))) for kind in kinds}
    assert legend == {kind: number[kind] for kind in kinds}
    assert number["fast clusters"] == (80 if counts and counts[0][0] == 0.8 else 0)
    shown = [text for name, text in table_rows(figure) if name == "trials"]
    expected = [cluster.count for cluster in found.clusters] + ([found.tail.count] if found.tail else [])
    assert [int(text.split(",")[0].replace("\u2009", "")) for text in shown] == expected
    drawn = [cluster_line(figure, cluster) for cluster in found.clusters]
    assert len(drawn) == len(counts)
    marked = {to_rgba(line.get_color()) for line in drawn}
    assert {patch.get_facecolor() for patch in pooled_line(figure).axes.patches} == marked
    assert "no events were counted" not in text_of(figure)  # the control run was
    assert_the_page_is_whole(figure)
    with pytest.raises(UsageError, match="no trials after warm-up"):
        plots.outliers_page(group(), found)


def test_draw_outliers_writes_a_page_each(tmp_path):
    pairs = [planted(seed=seed) for seed in range(2)]
    groups, findings = (
        [recorded for recorded, _ in pairs] + [replace(group(), failure=NoTrials("run", "no"))],
        [f for _, f in pairs],
    )
    paths = plots.draw_outliers(groups, [*findings, None], tmp_path)
    assert [path.name for path in paths] == [
        "outliers-2x64-s64-b1-on-onnxruntime.png",
        "outliers-2x64-s64-b1-on-onnxruntime-2.png",
    ]
    assert paths[0].read_bytes() != paths[1].read_bytes()


def test_tables_of_verdicts_outliers_and_clusters():
    groups = sweep()
    verdicts = verdicts_of(groups, "99")
    table = Verdicts(as_runs(groups), tuple(verdicts)).frame
    assert table["max_us"].dropna().is_monotonic_decreasing and len(table) == 6
    last = table.iloc[-1]
    assert last["verdict"] == "NOT ENOUGH EVIDENCE" and last["because"] == "failed at build: none" and last["n"] == 0
    assert table.set_index("network")["misses"].to_dict()["2x64-s16-b1 on onnxruntime"] == 5
    needed = table["trials_needed"].notna() & (table["n"] > 0)
    assert set(table[needed]["verdict"]) == {"NOT ENOUGH EVIDENCE"}
    recorded, found = planted()
    answers = OutlierAnswers(as_runs([recorded]), (found,))
    (row,) = answers.frame.to_dict("records")
    assert row["outliers"] == found.outliers and row["clusters"] == clusters_text(found.clusters)
    clusters = answers.clusters
    assert clusters["trials"].tolist() == [cluster.count for cluster in found.clusters] and len(clusters) == 2
    assert clusters["percent"].tolist() == pytest.approx([100 * cluster.share for cluster in found.clusters])
    assert (clusters["percent_low"] < clusters["percent"]).all() and (
        clusters["percent"] < clusters["percent_high"]
    ).all()
    assert OutlierAnswers(as_runs([]), ()).clusters.empty


def test_a_cause_of_few_slow_trials_is_stated_as_a_part():
    def text(share: float, by: str = "trial") -> str:
        cause = Cause("major_faults", 12.0, 8.0, 20.0, 1e-6, share, 0.01, by)
        part = SimpleNamespace(causes=(cause,), hint=None)
        return causes_text(part, SimpleNamespace(counted=("major_faults",)), short=True).replace("\u00a0", " ")

    assert text(0.9) == "major page faults (odds ratio 12.0)"
    assert text(0.063) == "partly major page faults (6.3 % of these, odds ratio 12.0)"
    assert "partly" not in text(0.2, "control")
    nothing = SimpleNamespace(causes=(), hint=None)
    assert causes_text(nothing, SimpleNamespace(counted=("major_faults",)), short=True) == "unexplained"
    assert causes_text(nothing, SimpleNamespace(counted=()), short=True) == "no events were counted"
