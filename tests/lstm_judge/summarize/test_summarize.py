"""Summaries of samples whose statistics are known."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from lstm_judge import columns
from lstm_judge.compare.compare import compare
from lstm_judge.outliers.answer import Cluster
from lstm_judge.outliers.text import clusters_text
from lstm_judge.read.rounds import Group, NoTrials, Round
from lstm_judge.read.runs import as_runs
from lstm_judge.statistics.quantiles import count_outliers, percentile
from lstm_judge.summarize.summarize import summarize, summarize_groups
from lstm_judge.summarize.text import text as summary_table
from lstm_judge.verdict.verdict import verdict
from lstm_trt.config.configuration import Options
from lstm_trt.store import files, folders, schema
from tests.conftest import ROOT
from tests.lstm_trt.store.test_store import planted
from tests.support.planted_latencies import even

GRID = ROOT / "data" / "epyc" / "grid"
#: Columns that a failed row lacks.
FIELDS = ["n", "min_us", "mean_us", "std_us", "median_us", "p90_us", "p99_us", "p999_us", "max_us", "outliers"]


def statistics_of(latency_ns) -> dict:
    """The columns of the summary of one round."""
    (row,) = summarize_groups([Group("one", (Round.of(latency_ns),))], clusters=False)
    return row.flat


def test_percentiles_are_exact_order_statistics(rng):
    found = statistics_of(rng.permutation(np.arange(1, 1001)) * 1000)
    assert (found["n"], found["min_us"], found["max_us"]) == (1000, 1.0, 1000.0)
    assert (found["median_us"], found["p90_us"], found["p99_us"], found["p999_us"]) == (500.0, 900.0, 990.0, 999.0)
    assert found["mean_us"] == 500.5
    assert found["std_us"] == pytest.approx(math.sqrt(1000 * 1001 / 12))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 99, 100, 101, 999, 1001, 2000])
def test_a_percentile_is_the_smallest_value_that_enough_trials_do_not_exceed(n):
    values = np.arange(1, n + 1) * 1000
    found = statistics_of(values)
    for name, per_mille in (("median_us", 500), ("p90_us", 900), ("p99_us", 990), ("p999_us", 999)):
        below = int(found[name])
        assert below * 1000 >= per_mille * n > (below - 1) * 1000


def test_one_trial_has_no_spread():
    found = statistics_of(np.array([5000]))
    assert found["std_us"] is None and found["outliers"] == 0 and found["median_us"] == found["max_us"] == 5.0


@pytest.mark.parametrize(("planted_low", "planted_high"), [(0, 0), (3, 0), (0, 37), (2, 100)])
def test_outliers_are_those_that_were_planted(planted_low, planted_high):
    body = np.linspace(100, 110, 1000 - planted_low - planted_high)
    values = np.concatenate([body, np.full(planted_low, 50), np.full(planted_high, 125)])
    assert count_outliers(values) == planted_low + planted_high


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
    assert summarize(recordings)[0].facts["not_alone"] is None and "not alone" not in str(summarize(recordings))
    for recording, alone in zip(recordings, (True, True, False), strict=False):
        recording.provenance["others"] = {"pinned_cores_ns": 1, "all_cores_ns": 2, "alone": alone}
    assert summarize(recordings[:2])[0].facts["not_alone"] == 0 and "not alone" not in str(summarize(recordings[:2]))
    assert summarize(recordings)[0].facts["not_alone"] == 1 and "not alone" in str(summarize(recordings))
    assert [row.facts["not_alone"] for row in summarize(recordings, by_round=True)] == [0, 0, 1, None]


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
    assert [row.configuration["precision"] for row in found] == ["fp32", "fp16", "int8"]
    assert [row.facts["parity_error"] for row in found] == [1e-7, 3e-4, 0.02]
    assert [row.facts["parity_error"] for row in summarize(fp32, by_round=True)] == [1e-7, 0.0]
    assert list(found.frame["parity_error"]) == [1e-7, 3e-4, 0.02] and "parity_error" in found.csv_text()
    shown = str(found).splitlines()
    place = shown[2].index("parity error") + len("parity error")
    assert [line[:place].split()[-1] for line in shown[3:]] == ["1.0e-07", "3.0e-04", "2.0e-02"]
    assert "parity error" not in str(summarize(fp32))
    (row,) = unchecked = summarize([fp32[0], in_precision("fp32", None, round=1)])
    assert row.facts["parity_error"] is None and "not checked" in str(unchecked)


def test_precisions_are_never_pooled_and_named():
    runs = as_runs([in_precision("bf16", 1e-3), in_precision("fp32", 1e-7), in_precision("fp16", 1e-4)])
    names = [f"1x8-s4-b1 on onnxruntime in {precision}" for precision in ("fp32", "fp16", "bf16")]
    assert [group.name for group in runs] == names
    assert [group.name for group in as_runs([in_precision("fp32", 0.0)])] == ["1x8-s4-b1 on onnxruntime"]
    assert [group.name for group in as_runs([in_precision("bf16", 0.0)])] == names[2:]
    assert [group.name for group, _ in verdict(runs, deadline_us=1000).items()] == names
    sides = compare(runs, as_runs([in_precision(name, 0.0, round=1) for name in ("fp32", "bf16")]))
    paired = [[side and side.name for side in (both.a, both.b)] for both, _ in sides.items()]
    assert paired == [names[:1] * 2, names[2:] * 2, [names[1], None]]


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
    assert {axis: good["configuration"][axis] for axis in axes} == axes
    assert (bad["status"], bad["failure"], bad["n"]) == (
        "failed",
        {"stage": "memory", "reason": "too large, by far"},
        0,
    )
    assert bad["statistics"] is bad["percentiles"] is None
    table = list(csv.DictReader(io.StringIO(lab("summarize", tmp_path, "--format", "csv").stdout)))
    assert set(FIELDS) <= table[0].keys() and float(table[0]["max_us"]) == statistics["max_us"]
    assert {table[1][name] for name in FIELDS[1:]} == {""} and table[1]["stage"] == "memory"


def test_the_table_shows_failures_and_aligns(tmp_path):
    folder_with_a_failure(tmp_path)
    caption, legend, header, good, bad = str(summarize(tmp_path)).splitlines()
    assert header.split()[:6] == ["network", "seq", "batch", "runtime", "n", "max"]
    assert "latencies in us" in caption and "multiple of the local median" in legend
    assert bad.endswith("failed at memory: too large, by far")
    assert header.split()[-2:] == ["outliers", "clusters"]
    assert good[: header.index("clusters")].split()[-1] == "0" and len(good) > header.index("outliers") + 8


def test_a_frame_holds_every_configuration_and_every_failure(tmp_path):
    folder_with_a_failure(tmp_path)
    assert summarize(tmp_path, by_round=True).frame["status"].tolist() == ["ok", "failed"]
    failures = [item for item in folders.read_many(tmp_path) if isinstance(item, schema.Failure)]
    assert len(summarize(failures).frame) == 1


# Intervals


@pytest.mark.parametrize("n", [5, 6, 35, 36, 299, 368, 1000, 3688])
def test_intervals_are_exact_order_statistics_or_none(n):
    found = statistics_of(np.random.default_rng(n).permutation(np.arange(1, n + 1)) * 1000)
    for name, share in (("median_us", "0.5"), ("p90_us", "0.9"), ("p99_us", "0.99"), ("p999_us", "0.999")):
        low, high, p = found[f"{name}_low"], found[f"{name}_high"], Fraction(share)
        # Latencies are their ranks: the percentile lies below rank k with P(B >= k), above with P(B <= k - 1).
        below = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)] if n < 400 else None
        assert low is None or low <= found[name]
        assert high is None or high >= found[name]
        assert (high is None) == (p**n > Fraction(1, 40)), name
        assert (low is None) == ((1 - p) ** n > Fraction(1, 40)), name
        if below is not None and None not in (low, high):
            assert sum(below[: int(low)]) <= Fraction(1, 40) < sum(below[: int(low) + 1])
            assert sum(below[int(high) :]) <= Fraction(1, 40) < sum(below[int(high) - 1 :])


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


def test_frames_have_no_object_columns_of_numbers(tmp_path):
    types = summarize(folder_with_a_failure(tmp_path)).frame.dtypes
    assert not [name for name in (*FIELDS, "hidden", "floor_us", "below_floor", "seed") if types[name].kind == "O"]


def test_percentiles_that_are_asked_for_stand_in_every_format():
    ranks = mixed(4000)
    answers = summarize(as_runs([elsewhere("a", ranks)]), percentiles=("50", 99.95, "99.9", 99.95, "99.99"))
    row = answers[0].flat
    assert answers.as_dict()[0]["percentiles"]["p9995"]["us"] == 3998
    exact = {"p9999_us": 4000.0, "p9995_us": 3998.0, "p999_us": 3996.0, "median_us": 2000.0}
    assert {name: row[name] for name in exact} == exact
    for name, p in (("p9995_us", Fraction("0.9995")), ("p9999_us", Fraction("0.9999"))):
        low, high, n = int(row[f"{name}_low"]), row[f"{name}_high"], len(ranks)
        below = [float(math.comb(n, k) * p**k * (1 - p) ** (n - k)) for k in range(n - 50, n + 1)]  # the others: 1e-30
        assert sum(below[: low - n + 50]) <= 0.025 < sum(below[: low - n + 51])
        assert (high is None) == (below[-1] > 0.025)
    header, line = answers.csv_text().splitlines()
    assert dict(zip(header.split(","), line.split(","), strict=True))["p9995_us_low"] == str(row["p9995_us_low"])
    assert answers.frame["p9999_us"].tolist() == [4000.0] and len(answers.frame.columns) == len(columns.SUMMARY) + 6
    legend, header, cells = str(answers).splitlines()[1:]
    assert header.split()[:6] == ["n", "max", "p99.99", "p99.95", "p99.9", "median"] and "n too small" in legend
    assert cells.split()[:6] == ["4000", "4000.0", "4000.0*", "3998.0*", "3996.0", "2000.0"]


@pytest.mark.parametrize(("asked", "message"), [("0.999", "percent: 99.9"), ("100", "below 100"), ("p99", "number")])
def test_a_percentile_out_of_range_is_refused(refused, asked, message):
    for command in (("summarize",), ("replay", "--period-us", 1000), ("report", "--deadline-us", 1, "--out", "r.md")):
        assert message in refused(command[0], GRID, *command[1:], "--percentiles", "50", asked)


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
    assert repr(row) == "<SummaryRow: {'model': 'a', 'batch': 4}, 2000 trials, ok>"
    assert row.group == {"model": "a", "batch": 4} and row.status == "ok" and row.n == 2000
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
    assert "failed at memory: too large" in summary_table([failed]) and "failed: no trials" in summary_table([empty])


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
    table = summary_table(summarize_groups([elsewhere("a", mixed(1000)), elsewhere("b", mixed(5000))]))
    _, legend, header, few, many = table.splitlines()
    assert "too small for an upper bound" in legend
    assert few.split()[2] == "999.0*" and "*" not in many
    place = header.index("p99.9") + len("p99.9")
    assert few[place] == "*" and few[place - 5 : place] == "999.0" and many[place - 6 : place] == "4995.0"
    assert "*" not in summary_table(summarize_groups([elsewhere("b", mixed(5000))]))
    ascending = summary_table(summarize_groups([elsewhere("b", range(1, 5001))]))
    assert "5000.0*" not in ascending and "4995.0*" in ascending  # they count for a few independent ones


def test_the_table_names_groups_from_elsewhere():
    rows = summarize_groups(
        [elsewhere("x", np.arange(1, 101) * 1e5, model="network-" * 30, hidden=hidden) for hidden in (64, 128)]
    )
    lines = summary_table(rows).splitlines()
    assert lines[2].split()[:3] == ["model", "hidden", "n"]
    assert lines[3].split()[1] == "64" and lines[4].split()[1] == "128"


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
    assert clusters_text(clusters) == "1.0 % at 2.01x, 2.0 % at 1.25x"
    assert (
        clusters_text(clusters, short=True) == "2.0 % at 1.25x; 1 more"
        and clusters_text(clusters[:1], short=True) == "1.0 % at 2.01x"
    )
    assert (
        clusters_text([], short=True) == "none"
        and clusters_text([cluster_at(3, 0.0002)], short=True) == "0.020 % at 3.00x"
    )


def test_a_sweep_is_summarized_with_and_without_clusters():
    items = list(folders.read_many(GRID))[::8]
    rows = summarize(items)
    assert len(rows) == 20
    lines = str(rows).splitlines()
    assert max(map(len, lines)) <= 150
    place = lines[2].index("clusters")
    assert [line[place:] for line in lines[3:]] == [clusters_text(row.clusters, short=True) for row in rows]
    assert all(re.fullmatch(r"none|\d+(\.\d+)? % at \d+(\.\d+)?x(; \d+ more)?", line[place:]) for line in lines[3:])
    bare = summarize(items, clusters=False)
    assert bare[0].clusters is bare[0].steady_state is None
    assert [row.percentiles for row in bare] == [row.percentiles for row in rows]
