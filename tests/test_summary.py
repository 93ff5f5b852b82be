"""Summaries of samples whose statistics are known."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest

from lstm_trt import store
from lstm_trt.analysis.summary import count_outliers, statistics, summarize
from lstm_trt.tables import frames, text_table
from tests.test_store import planted

FIELDS = ["n", "min_us", "mean_us", "std_us", "median_us", "p90_us", "p99_us", "p999_us", "max_us", "outliers"]


def test_percentiles_are_exact_order_statistics():
    told = statistics(np.random.default_rng().permutation(np.arange(1, 1001)) * 1000)
    assert (told["n"], told["min_us"], told["max_us"]) == (1000, 1.0, 1000.0)
    assert (told["median_us"], told["p90_us"], told["p99_us"], told["p999_us"]) == (500.0, 900.0, 990.0, 999.0)
    assert told["mean_us"] == 500.5
    assert told["std_us"] == pytest.approx(math.sqrt(1000 * 1001 / 12))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 99, 100, 101, 999, 1001, 2000])
def test_a_percentile_is_the_smallest_value_that_enough_trials_do_not_exceed(n):
    values = np.arange(1, n + 1) * 1000
    told = statistics(values)
    for name, per_mille in (("median_us", 500), ("p90_us", 900), ("p99_us", 990), ("p999_us", 999)):
        below = int(told[name])
        assert below * 1000 >= per_mille * n > (below - 1) * 1000


def test_one_trial_has_no_spread():
    told = statistics(np.array([5000]))
    assert told["std_us"] is None and told["outliers"] == 0 and told["median_us"] == told["max_us"] == 5.0


@pytest.mark.parametrize(("planted_low", "planted_high"), [(0, 0), (3, 0), (0, 37), (2, 100)])
def test_outliers_are_those_that_were_planted(planted_low, planted_high):
    body = np.linspace(100, 110, 1000 - planted_low - planted_high)
    values = np.concatenate([body, np.full(planted_low, 50), np.full(planted_high, 125)])
    assert count_outliers(values) == planted_low + planted_high


def test_outliers_follow_numpys_linear_quartiles():
    # 1, 2, 3, 4, x: quartiles 2 and 4 -> the fence is at 7; one above it, none at it.
    assert count_outliers(np.array([1, 2, 3, 4, 7])) == 0
    assert count_outliers(np.array([1, 2, 3, 4, 7.001])) == 1


def test_warm_up_stands_beside_and_does_not_count():
    recording = planted(rows=10, latency_ns=np.array([9000, 100, 100, 5, 6, 7, 8, 9, 10, 11]) * 1000)
    (row,) = summarize([recording])
    assert (row.n, row.max_us, row.max_with_warmup_us) == (7, 11.0, 9000.0)


def test_rounds_are_pooled_and_unlike_machines_are_not():
    one, two = planted(round=0), planted(round=1)
    (row,) = summarize([two, one])
    assert row.n == 34 and row.rounds == 2
    assert row.max_us_rounds == (one.timed_ns.max() / 1e3, two.timed_ns.max() / 1e3)
    assert row.max_us == max(row.max_us_rounds)
    assert [r.round for r in summarize([two, one], by_round=True)] == [0, 1]
    two.provenance["machine_fingerprint"] = "another"
    assert [r.n for r in summarize([one, two])] == [17, 17]


def folder_with_a_failure(folder):
    store.write(planted(8), folder)
    store.write_failure(store.Failure(planted(9).configuration, 0, "memory", "too large, by far"), folder)
    return folder


def test_json_and_csv_have_the_promised_fields(tmp_path, lab):
    folder_with_a_failure(tmp_path)
    rows = json.loads(lab("summarize", tmp_path, "--format", "json").stdout)
    good, bad = rows
    timed = np.sort(planted(8).timed_ns) / 1000
    assert [good[name] for name in ("n", "min_us", "median_us", "max_us")] == [17, timed[0], timed[8], timed[16]]
    assert [good[axis] for axis in ("layers", "hidden", "sequence", "batch", "features", "directions")] == [
        1,
        8,
        4,
        1,
        12,
        1,
    ]
    assert (bad["status"], bad["stage"], bad["reason"], bad["n"]) == ("failed", "memory", "too large, by far", 0)
    assert all(bad[name] is None for name in FIELDS[1:])
    table = list(csv.DictReader(io.StringIO(lab("summarize", tmp_path, "--format", "csv").stdout)))
    assert set(FIELDS) <= table[0].keys() and float(table[0]["max_us"]) == good["max_us"] and table[1]["max_us"] == ""


def test_the_table_tells_failures_and_aligns(tmp_path):
    folder_with_a_failure(tmp_path)
    caption, header, good, bad = text_table(summarize(store.read_many(tmp_path))).splitlines()
    assert header.split()[:6] == ["network", "seq", "batch", "runtime", "n", "max"]
    assert "latencies in us" in caption
    assert bad.endswith("failed at memory: too large, by far")
    assert header.index("outliers") + len("outliers") == len(good) == len(header)


def test_frames_hold_every_trial_and_every_failure(tmp_path):
    folder_with_a_failure(tmp_path)
    summary, trials = frames(store.read_many(tmp_path))
    assert summary["status"].tolist() == ["ok", "failed"] and len(trials) == 20
    assert trials["latency_ns"].tolist() == planted(8).columns["latency_ns"].tolist()
    summary, trials = frames([item for item in store.read_many(tmp_path) if isinstance(item, store.Failure)])
    assert len(summary) == 1 and trials.empty
