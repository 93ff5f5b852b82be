"""The report pages and the margin map show the numbers of their findings; nothing is cut off."""

from __future__ import annotations

import itertools
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
from lstm_judge.read.rounds import Group, Round
from lstm_judge.read.runs import Runs, as_runs, load
from lstm_judge.statistics.causes import Cause
from lstm_judge.statistics.quantiles import count_outliers
from lstm_judge.statistics.trials import Trials
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.verdict import Verdicts, failed
from lstm_trt.config.shape import LstmShape
from tests.lstm_judge.plots.planted import (
    MEDIAN_NS,
    clustered,
    control,
    explained,
    failed_group,
    group,
    margins,
    of_lengths,
    round_,
    watched,
)
from tests.lstm_judge.plots.test_pictures import arrivals, in_bursts, replayed
from tests.support.pictures import (
    assert_readable,
    cells,
    deadlines,
    labelled,
    lines,
    only,
    png_size,
    shaded,
    table_rows,
    text_of,
)
from tests.support.planted_latencies import explain, judge


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
    value = dict(table_rows(figure))
    timed = round_(1000, late).timed_ns > 150_000
    for k in (10, 100, 1000):
        assert int(value[f"most in any {k} consecutive"]) == max(timed[i : i + k].sum() for i in range(1001 - k))
    assert value["in n = 1\u2009000 trials"] == str(late) and value["measured"] == percent(late / 1000)
    assert (value["after a miss"] == "–") == (late == 0)
    assert ("new trials needed" in value) == (expected == "NOT ENOUGH EVIDENCE")


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
    verdict, figure = page(in_bursts(), 150)
    assert verdict.effective.n < 3000
    assert (1 - levels(figure)["evidence"]) ** verdict.effective.n == pytest.approx(0.05, rel=0.01)


def test_rounds_are_drawn_apart_and_trials_one_after_the_other():
    recorded = group(*(round_(500, 5, seed=number, round=number) for number in range(3)))
    _, figure = page(recorded, 250)
    assert len({line.get_color() for line in lines(figure, drawstyle="steps-post", linewidth=0.8)}) == 3
    bulk = only(lines(figure, label="within 1.5 × IQR")).get_xdata()
    assert len(bulk) == 3 * 495
    assert (np.diff(np.sort(bulk)) > 10).sum() >= 2  # gaps, and the warm-up of each round
    assert len(shaded(figure, "warm-up")) == 3


def test_the_control_run_is_drawn_by_its_excess_in_us():
    noise = np.full(1000, 500.0)
    noise[3] = 60_500.0  # one excess of 60 us
    _, figure = page(group(round_(1000, control_ns=noise)), 1000)
    x, _ = only(labelled(figure, "empty step")).get_data()
    median = np.quantile(round_(1000).timed_ns, 0.5, method="inverted_cdf") / 1000
    assert x[0] == pytest.approx(median) and x[-1] == pytest.approx(median + 60)


def test_a_configuration_that_failed_has_a_page_with_its_reason():
    recorded = failed_group("memory")
    figure = plots.verdict_page(recorded, failed(recorded.failure, Question(1000)))
    assert "no memory left" in text_of(figure) and "NOT ENOUGH EVIDENCE" in text_of(figure)
    assert_readable(figure)


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


@pytest.mark.parametrize("percentile", ["99", "99.9"])
def test_the_margin_map_draws_the_bounds_that_the_verdicts_rest_on(percentile):
    """What so many trials cannot prove is no number."""
    runs = margins()
    found = cells(bounds(runs, 150, percentile).axes[0])
    for recorded, verdict in zip(runs, verdicts_of(runs, percentile), strict=True):
        shape = recorded.configuration.workload
        text, patch = found[shape.hidden, shape.sequence]
        if recorded.failure:
            assert text.get_text() == "build" and patch.get_hatch()
        else:
            assert verdict_of(text, patch) == verdict.outcome
            assert text.get_text().startswith(">") == (percentile == "99.9")
            assert (float(text.get_text().strip(">")) <= 150 and percentile == "99") == (verdict.outcome == "MET")


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


def test_the_percentile_is_what_so_many_trials_can_prove():
    figure = bounds(of_lengths(298, 1000, 3000), 150)
    assert "p99 at n = 298 or 1\u2009000, p99.9 at n = 3\u2009000" in text_of(figure)
    found = cells(figure.axes[0])
    assert [found[hidden, 64][0].get_text()[0] == ">" for hidden in (8, 16, 32)] == [True, False, False]


@pytest.mark.heavy
def test_draw_verdicts_writes_a_page_each_and_the_map(tmp_path):
    groups = margins(hidden=(64, 128))
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


def test_arrivals_stand_side_by_side_with_the_machine_alone():
    network, machine = plots.arrival_tails(arrivals(), deadline_us=150).axes
    assert len(lines(machine, drawstyle="steps-post")) == 2
    for kind, late in (("closed", 3), ("periodic", 9), ("paused", 0)):
        x, y = only(labelled(network, kind)).get_data()
        assert y[np.searchsorted(x, 99.95, side="right") - 1] > 0.4
        assert (x[-1] > 150) == bool(late) and (not late or y[np.searchsorted(x, 150, side="right") - 1] == late / 500)
    assert len(plots.arrival_tails(arrivals()[:1]).axes) == 1


def test_a_replay_is_drawn_beside_what_was_recorded():
    figure = plots.replay_tails(replayed(), 200, deadline_us=250)
    closed, due = (line.get_data() for line in lines(figure, drawstyle="steps-post"))
    assert [np.round(y[np.searchsorted(x, 250, side="right") - 1] * 100) for x, y in (closed, due)] == [1, 18]


def test_the_timeline_is_drawn_beside_the_page_of_outliers(names_only, tmp_path):
    recorded = group(watched())
    paths = plots.draw_outliers([recorded], [explain(recorded.rounds)], tmp_path)
    assert [path.name for path in paths][1:] == ["timeline-2x64-s64-b1-on-onnxruntime.png"]


def cluster_line(figure, cluster):
    name = f"{'fast' if cluster.multiplier < 1 else 'slow'} cluster at {multiple(cluster.multiplier)}"
    return only(labelled(figure, f"{name}: {cluster.count} trials, {percent(cluster.share)}"))


def test_the_level_of_each_segment_is_drawn():
    recorded, found = explained(step=1.05)
    figure = plots.outliers_page(recorded, found)
    place, level = only(labelled(figure, "level of each segment")).get_data()
    assert level[0] == pytest.approx(100, rel=0.01) and level[-1] == pytest.approx(105, rel=0.01)
    jump = place[np.flatnonzero(np.diff(level) > 3)[0]]
    assert abs(jump - 1010) < 30  # behind the ten of the warm-up


def test_findings_belong_to_the_trials_that_are_drawn():
    recorded, found = explained()
    figure = plots.outliers_page(recorded, found)
    places = cluster_line(figure, found.clusters[0]).get_xdata()
    assert list(places) == list(10 + np.flatnonzero(found.rounds[0].labels == 0))


def test_rounds_without_timed_trials_do_not_shift_the_findings():
    recorded = group(Round(np.array([1e5]), np.array([True]), round=0), clustered(seed=1, round=1))
    found = explain(recorded.rounds)
    figure = plots.verdict_page(recorded, judge(recorded.rounds, 250, "99"), found)
    assert len(cluster_line(figure, found.clusters[0]).get_xdata()) == found.clusters[0].count > 30


@pytest.mark.parametrize(
    "counts",
    [(), ((0.8, 80), (1.5, 60)), ((1.25, 60), (1.6, 50), (2.2, 40), (3.5, 30))],
    ids=["none", "fast and slow", "four"],
)
def test_the_page_of_outliers(counts):
    """The page shows all findings with their counts."""
    recorded, found = explained(counts=counts, control_ns=control(500))
    figure = plots.outliers_page(recorded, found)
    rows = [(name, text.split(",")[0].replace("\u2009", "")) for name, text in table_rows(figure)]
    number = dict(rows)
    for kind, trials in found.partition.items():
        name = kind.replace("_", " ")
        drawn = labelled(figure, name.removesuffix("s"))
        assert int(number[name]) == trials == sum(len(line.get_xdata()) for line in drawn)
    assert sum(found.partition.values()) == int(number["sum"]) == 2000
    assert found.partition["fast_clusters"] == sum(trials for multiplier, trials in counts if multiplier < 1)
    assert int(number["outside 1.5 × IQR"]) == found.outliers == count_outliers(recorded.rounds[0].timed_ns)
    parts = [*found.clusters, *filter(None, [found.tail])]
    assert [int(text) for name, text in rows if name == "trials"] == [part.count for part in parts]
    marked = {to_rgba(cluster_line(figure, cluster).get_color()) for cluster in found.clusters}
    assert {patch.get_facecolor() for patch in pooled_line(figure).axes.patches} == marked
    assert len(marked) == len(counts)


def test_draw_outliers_writes_a_page_each(tmp_path):
    pairs = [explained(seed=seed) for seed in range(2)]
    groups, findings = zip(*pairs, (failed_group("run"), None), strict=True)
    paths = plots.draw_outliers(groups, findings, tmp_path)
    assert [path.name for path in paths] == [
        "outliers-2x64-s64-b1-on-onnxruntime.png",
        "outliers-2x64-s64-b1-on-onnxruntime-2.png",
    ]
    assert paths[0].read_bytes() != paths[1].read_bytes()


def test_tables_of_verdicts_outliers_and_clusters():
    groups = margins()
    verdicts = verdicts_of(groups, "99")
    table = Verdicts(as_runs(groups), tuple(verdicts)).frame
    assert table["max_us"].dropna().is_monotonic_decreasing and len(table) == 6
    last = table.iloc[-1]
    assert (last["verdict"], last["n"]) == ("NOT ENOUGH EVIDENCE", 0)
    assert table.set_index("network")["misses"].to_dict()["2x64-s16-b1 on onnxruntime"] == 5
    needed = table["trials_needed"].notna() & (table["n"] > 0)
    assert set(table[needed]["verdict"]) == {"NOT ENOUGH EVIDENCE"}
    recorded, found = explained()
    answers = OutlierAnswers(as_runs([recorded]), (found,))
    (row,) = answers.frame.to_dict("records")
    assert row["outliers"] == found.outliers and row["clusters"] == clusters_text(found.clusters)
    clusters = answers.clusters
    assert clusters["trials"].tolist() == [cluster.count for cluster in found.clusters] and len(clusters) == 2
    assert clusters["percent"].tolist() == pytest.approx([100 * cluster.share for cluster in found.clusters])
    assert clusters["percent"].between(clusters["percent_low"], clusters["percent_high"], "neither").all()
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
