"""Summaries of samples whose statistics are known."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from lstm_judge import columns
from lstm_judge.compare.compare import compare
from lstm_judge.outliers.answer import Cluster
from lstm_judge.outliers.text import clusters_text
from lstm_judge.read.rounds import Group, NoTrials, Round
from lstm_judge.read.runs import as_runs
from lstm_judge.statistics.quantiles import percentile
from lstm_judge.summarize.summarize import summarize, summarize_groups
from lstm_judge.summarize.text import text as summary_table
from lstm_judge.verdict.verdict import verdict
from lstm_trt.config.configuration import Options
from lstm_trt.store import files, folders, schema
from tests.conftest import ROOT
from tests.lstm_trt.store.test_store import planted
from tests.support.planted_latencies import even
from tests.support.said import said

GRID = ROOT / "data" / "epyc" / "grid"
#: Columns that a failed row lacks.
FIELDS = ["n", "min_us", "mean_us", "std_us", "median_us", "p90_us", "p99_us", "p999_us", "max_us", "outliers"]


def statistics_of(latency_ns) -> dict:
    """The columns of the summary of one round."""
    (row,) = summarize_groups([Group("one", (Round.of(latency_ns),))], clusters=False)
    return row.flat


@pytest.mark.random(tail=0, why="identity")
@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 99, 100, 101, 999, 1000, 1001, 2000])
def test_percentiles_are_exact_order_statistics(rng, n):
    """The smallest value that enough trials do not exceed; one trial has no spread."""
    found = statistics_of(rng.permutation(np.arange(1, n + 1)) * 1000)
    assert (found["n"], found["min_us"], found["max_us"], found["mean_us"]) == (n, 1.0, n, (n + 1) / 2)
    assert found["std_us"] == (None if n == 1 else pytest.approx(math.sqrt(n * (n + 1) / 12)))
    assert found["outliers"] == 0
    for name, per_mille in (("median_us", 500), ("p90_us", 900), ("p99_us", 990), ("p999_us", 999)):
        below = int(found[name])
        assert below * 1000 >= per_mille * n > (below - 1) * 1000


def test_warm_up_is_shown_and_does_not_count():
    recording = planted(rows=10, latency_ns=np.array([9000, 100, 100, 5, 6, 7, 8, 9, 10, 11]) * 1000)
    (row,) = summarize([recording])
    assert (row.n, row.statistics["max_us"], row.max_with_warmup_us) == (7, 11.0, 9000.0)


def test_rounds_are_pooled_and_different_machines_are_not():
    first, second = planted(round=0), planted(round=1)
    (row,) = summarize([second, first])
    assert row.n == 34 and row.rounds.count == 2
    assert row.rounds.max_us == (first.timed_ns.max() / 1e3, second.timed_ns.max() / 1e3)
    assert row.statistics["max_us"] == max(row.rounds.max_us)
    assert [r.round for r in summarize([second, first], by_round=True)] == [0, 1]
    second.provenance["machine_fingerprint"] = "another"
    assert [r.n for r in summarize([first, second])] == [17, 17]


def test_recordings_that_were_not_alone_are_marked():
    """Recordings of older versions do not know it."""
    recordings = [planted(round=number) for number in range(4)]
    answers = [summarize(recordings)]
    for recording, alone in zip(recordings, (True, True, False), strict=False):
        recording.provenance["others"] = {"pinned_cores_ns": 1, "all_cores_ns": 2, "alone": alone}
    answers += [summarize(recordings[:2]), summarize(recordings)]
    assert [answer[0].facts["not_alone"] for answer in answers] == [None, 0, 1]
    assert [row.facts["not_alone"] for row in summarize(recordings, by_round=True)] == [0, 0, 1, None]
    said(*map(str, answers))


def in_precision(precision: str, error: float | None, **more) -> schema.Recording:
    recording = planted(**more)
    options = Options(precision=precision, cores=(0,))
    provenance = {**recording.provenance, "parity": {"error": error}}
    return replace(recording, configuration=replace(recording.configuration, options=options), provenance=provenance)


def test_the_error_against_float32_is_beside_the_times():
    """The largest of all rounds; a table in which everything is in float32 leaves it out."""
    fp32 = [in_precision("fp32", error, round=number) for number, error in enumerate((1e-7, 0.0))]
    half = [in_precision("fp16", error, round=number) for number, error in enumerate((2e-4, 3e-4))]
    found = summarize([*half, *fp32, in_precision("int8", 0.02)])
    assert list(found.frame["precision"]) == ["fp32", "fp16", "int8"]
    assert list(found.frame["parity_error"]) == [1e-7, 3e-4, 0.02]
    assert [row.facts["parity_error"] for row in summarize(fp32, by_round=True)] == [1e-7, 0.0]
    (row,) = unchecked = summarize([fp32[0], in_precision("fp32", None, round=1)])
    assert row.facts["parity_error"] is None
    said(str(found), str(summarize(fp32)), str(unchecked))


def test_precisions_are_never_pooled_and_named():
    runs = as_runs([in_precision("bf16", 1e-3), in_precision("fp32", 1e-7), in_precision("fp16", 1e-4)])
    sides = compare(runs, as_runs([in_precision(name, 0.0, round=1) for name in ("fp32", "bf16")]))
    of_one = [as_runs([in_precision(precision, 0.0)])[0].name for precision in ("fp32", "bf16")]
    assert [group.name for group, _ in verdict(runs, deadline_us=1000).items()] == [group.name for group in runs]
    said(
        *(group.name for group in runs),
        *of_one,
        *(f"{both.a and both.a.name}, {both.b and both.b.name}" for both, _ in sides.items()),
    )


def folder_with_a_failure(folder):
    files.write(planted(8), folder)
    files.write_failure(schema.Failure(planted(9).configuration, 0, "memory", "too large, by far"), folder)
    return folder


def test_json_and_csv_have_the_promised_fields(tmp_path, lab):
    folder_with_a_failure(tmp_path)
    rows = json.loads(lab("summarize", tmp_path, "--format", "json").stdout)
    good, bad = rows
    timed = np.sort(planted(8).timed_ns) / 1000
    statistics = good["statistics"]
    assert [good["n"], statistics["min_us"], statistics["max_us"]] == [17, timed[0], timed[16]]
    assert good["percentiles"]["median"]["us"] == timed[8]
    axes = {"layers": 1, "hidden": 8, "sequence": 4, "batch": 1, "features": 12, "directions": 1}
    assert axes.items() <= good["configuration"].items()
    assert (bad["status"], bad["n"], bad["statistics"], bad["percentiles"]) == ("failed", 0, None, None)
    assert bad["failure"] == {"stage": "memory", "reason": "too large, by far"}
    table = list(csv.DictReader(io.StringIO(lab("summarize", tmp_path, "--format", "csv").stdout)))
    assert set(FIELDS) <= table[0].keys() and float(table[0]["max_us"]) == statistics["max_us"]
    assert {table[1][name] for name in FIELDS[1:]} == {""} and table[1]["stage"] == "memory"
    said(str(summarize(tmp_path)))


def test_a_frame_holds_every_configuration_and_every_failure(tmp_path):
    frame = summarize(folder_with_a_failure(tmp_path), by_round=True).frame
    assert frame["status"].tolist() == ["ok", "failed"]
    numbers = (*FIELDS, "hidden", "floor_us", "below_floor", "seed")
    assert not [name for name in numbers if frame.dtypes[name].kind == "O"]
    failures = [item for item in folders.read_many(tmp_path) if isinstance(item, schema.Failure)]
    assert len(summarize(failures).frame) == 1


# Intervals


@pytest.mark.parametrize("n", [5, 6, 35, 36, 299, 368, 1000, 3688, 4000])
def test_intervals_are_exact_order_statistics_or_none(n):
    asked = {"median_us": "0.5", "p90_us": "0.9", "p99_us": "0.99", "p999_us": "0.999", "p9995_us": "0.9995"}
    runs = as_runs([elsewhere("one", np.random.default_rng(n).permutation(n) + 1 if n < 4000 else mixed(n))])
    (row,) = summarize(runs, percentiles=[100 * float(share) for share in asked.values()], clusters=False)
    for name, share in asked.items():
        low, high, p = row.flat[f"{name}_low"], row.flat[f"{name}_high"], float(share)
        # Latencies are their ranks: the percentile lies below rank k with P(B >= k), above with P(B <= k - 1).
        below = stats.binom(n, p)
        assert (high is None) == (p**n > 1 / 40), name
        assert (low is None) == ((1 - p) ** n > 1 / 40), name
        assert (low or 0) <= row.flat[name] <= (high or n)
        if n < 400 or name == "p9995_us":  # elsewhere so many trials count as fewer independent ones
            assert low is None or below.cdf(low - 1) <= 1 / 40 < below.cdf(low)
            assert high is None or below.sf(high - 1) <= 1 / 40 < below.sf(high - 2)


def test_every_column_is_in_json_csv_and_frame_in_the_same_order():
    """A column is one line of `columns.SUMMARY`; a percentile is followed by its interval."""
    answers = summarize([planted(rows=1003)])
    header = answers.csv_text().splitlines()[0].split(",")
    assert header == answers.frame.columns.tolist() == [*columns.SUMMARY] == [*answers[0].flat]
    for name in ("median_us", "p90_us", "p99_us", "p999_us"):
        place = header.index(name)
        assert header[place + 1 : place + 3] == [f"{name}_low", f"{name}_high"]
    (found,) = answers.as_dict()
    assert all(columns.value_at(found, path) == answers[0].flat[name] for name, path in columns.SUMMARY.items())
    median, p999 = answers[0].percentiles["median"], answers[0].percentiles["p999"]
    assert median.low_us < median.us < median.high_us and answers[0].percentiles["p99"].high_us is not None
    assert p999.low_us < p999.us and p999.high_us is None


def test_percentiles_that_are_asked_for_stand_in_every_format():
    answers = summarize(as_runs([elsewhere("a", mixed(4000))]), percentiles=("50", 99.95, "99.9", 99.95, "99.99"))
    row = answers[0].flat
    exact = {"p9999_us": 4000.0, "p9995_us": 3998.0, "p999_us": 3996.0, "median_us": 2000.0}
    assert {name: row[name] for name in exact} == exact
    assert answers.as_dict()[0]["percentiles"]["p9995"]["us"] == 3998
    assert answers.frame["p9999_us"].tolist() == [4000.0] and len(answers.frame.columns) == len(columns.SUMMARY) + 6
    said(str(answers), answers.csv_text().splitlines()[0])


@pytest.mark.parametrize("asked", ["0.999", "100", "p99"])
def test_a_percentile_out_of_range_is_refused(refused, asked):
    commands = (["summarize"], ["replay", "--period-us", 1000], ["report", "--deadline-us", 1, "--out", "r.md"])
    said(*(refused(name, GRID, *options, "--percentiles", "50", asked) for name, *options in commands))


# Groups, also of latencies from elsewhere


def mixed(n: int) -> np.ndarray:
    """1 to n in an order in which no neighbours are alike: ascending ones would depend on each other."""
    return 1597 * np.arange(n) % n + 1


def elsewhere(name, *rounds, **group) -> Group:
    rounds = tuple(
        Round.of(1000 * np.asarray(latencies_us), round=number) for number, latencies_us in enumerate(rounds)
    )
    return Group(name, rounds, group)


def test_what_was_measured_elsewhere_has_no_shape():
    latency = even(2000) / 1e3
    latency[::50] *= 1.5
    (row,) = summarize_groups([elsewhere("model a", latency, model="a", batch=4)])
    assert set(row.configuration.values()) == {None}
    said(repr(row))
    assert row.percentiles["median"].us == pytest.approx(percentile(np.sort(latency), Fraction("0.5")))
    assert row.steady_state == "flat"
    (cluster,) = row.clusters
    assert cluster.multiplier == pytest.approx(1.5, abs=0.02) and 27 <= cluster.count <= 60
    assert json.loads(json.dumps(row.as_dict(), allow_nan=False))["clusters"][0]["share"] == cluster.share


def test_groups_stay_in_their_order_and_rounds_are_pooled_or_separate():
    groups = [elsewhere("b", range(1, 101), range(101, 201)), elsewhere("a", [5.0] * 10)]
    first, second = summarize_groups(groups)
    assert (first.n, first.percentiles["median"].us) == (200, 100.0)
    assert (first.rounds.count, first.rounds.median_us, first.rounds.max_us) == (2, (50.0, 150.0), (100.0, 200.0))
    assert (first.round, second.n, second.group) == (None, 10, {})
    assert [(row.n, row.round) for row in summarize_groups(groups, by_round=True)] == [(100, 0), (100, 1), (10, 0)]


def test_a_group_without_trials_is_a_failed_row():
    failed, empty = summarize_groups(
        [Group("x", (), {"model": "x"}, failure=NoTrials("memory", "too large")), elsewhere("y", [])]
    )
    assert (failed.status, failed.failure, failed.n) == ("failed", NoTrials("memory", "too large"), 0)
    assert (empty.status, empty.failure) == ("failed", NoTrials(None, "no trials after warm-up"))
    assert failed.clusters == () and failed.steady_state is None and failed.flat["median_us_low"] is None
    said(summary_table([failed]), summary_table([empty]))


def test_a_failure_has_its_row_in_its_round(tmp_path):
    good, bad = planted(8), schema.Failure(planted(8).configuration, 1, "time", "too slow")
    assert [row.status for row in summarize([good, bad])] == ["ok"]
    assert [(row.round, row.failure and row.failure.stage) for row in summarize([bad, good], by_round=True)] == [
        (0, None),
        (1, "time"),
    ]
    assert [(row.round, row.status) for row in summarize([bad])] == [(None, "failed")]


def test_a_recording_given_twice_counts_once():
    (row,) = summarize([planted(), planted()])
    assert (row.n, row.rounds.count) == (17, 1)


# The table


def test_a_star_marks_what_has_no_upper_bound():
    """Ascending latencies count for a few independent ones."""
    few, many, ascending = (
        elsewhere(name, us) for name, us in (("a", mixed(1000)), ("b", mixed(5000)), ("c", range(1, 5001)))
    )
    said(*(summary_table(summarize_groups(groups)) for groups in ([few, many], [many], [ascending])))


def test_the_table_names_groups_from_elsewhere():
    group = {"model": "network-" * 30}
    groups = [elsewhere("x", np.arange(1, 101) * 1e5, **group, hidden=hidden) for hidden in (64, 128)]
    said(summary_table(summarize_groups(groups)))


def test_a_recording_with_everything_stays_narrow():
    recording = planted(rows=1003, latency_ns=np.random.default_rng(0).integers(10**9, 2 * 10**9, 1003))
    recording.provenance.update(floor_ns=123456789, parity={"error": 1e-7})
    (row,) = summarize([recording])
    clusters = tuple(cluster_at(1.25 * k, 0.02) for k in range(1, 9))
    row = replace(row, clusters=clusters, configuration={**row.configuration, "directions": 2})
    lines = summary_table([row, row]).splitlines()
    assert max(map(len, lines)) <= 160 and lines[2].endswith("clusters")
    assert lines[3].endswith("2.0 % at 1.25x; 7 more")


def cluster_at(multiplier: float, share: float) -> Cluster:
    bounds = {"low": multiplier, "high": multiplier, "share_low": share, "share_high": share}
    return Cluster(multiplier=multiplier, time_us=100 * multiplier, count=20, share=share, counts=(20,), **bounds)


def test_a_cell_has_the_most_frequent_cluster_and_the_number_of_others():
    clusters = [cluster_at(2.011, 0.01), cluster_at(1.25, 0.0204)]
    cells = [clusters_text(some, short=True) for some in (clusters, clusters[:1], [], [cluster_at(3, 0.0002)])]
    said(clusters_text(clusters), *cells)


def test_a_sweep_is_summarized_with_and_without_clusters():
    items = list(folders.read_many(GRID))[::8]
    rows = summarize(items)
    assert len(rows) == 20
    assert max(map(len, str(rows).splitlines())) <= 150
    bare = summarize(items, clusters=False)
    assert bare[0].clusters is bare[0].steady_state is None
    assert [row.percentiles for row in bare] == [row.percentiles for row in rows]
    said(str(rows))
