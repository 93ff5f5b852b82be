"""Times that are known only to a bin of a histogram, or to a step of a clock: no verdict claims more than they show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lstm_judge.outcomes import Outcome
from lstm_judge.outliers.outliers import outliers
from lstm_judge.read.runs import load
from lstm_judge.statistics.segments import not_judged
from lstm_judge.summarize.summarize import summarize
from lstm_judge.verdict.decide import fixed_number
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.verdict import verdict
from lstm_trt.config.errors import LabError, UsageError
from tests.conftest import rest_is_heavy
from tests.lstm_judge.read.test_rounds import put, refusal

#: Latencies in us without chance: evenly over the quantiles of a skewed distribution, in an order of their own.
EVEN = (np.arange(1, 4001) * 0.6180339887498949) % 1
TRUE_US = np.round(40 + 30 * -np.log1p(-EVEN * 0.9999), 4)

#: Edges of bins in us: of equal width, growing as a clock's or HdrHistogram's, and with empty bins left out.
EDGES = {
    "equal": np.arange(0, 401, 5.0),
    "narrow": np.arange(0, 400.1, 0.25),
    "doubling": 2.0 ** np.arange(12),
    "growing": np.r_[np.arange(0, 64, 2.0), np.arange(64, 128, 4.0), np.arange(128, 513, 8.0)],
}


def binned(edges: np.ndarray, stated: str, empty: bool) -> pd.DataFrame:
    """The histogram of `TRUE_US`, with the lower edge, the middle or the upper edge of each bin."""
    counts, _ = np.histogram(TRUE_US, edges)
    numbers = {"lower": edges[:-1], "middle": (edges[:-1] + edges[1:]) / 2, "upper": edges[1:]}[stated]
    table = pd.DataFrame({"latency_us": np.r_[numbers, np.inf], "count": [*counts, 0]})
    return table if empty else table[table["count"] > 0]


def falsely_decided(runs, percentiles=("50", "90", "99")) -> list:
    """Deadlines at which a verdict says more than the true latencies prove."""
    wrong = []
    for percentile in percentiles:
        for deadline_us in np.r_[np.linspace(1, 450, 60), 64, 128, 256]:
            misses = int(np.count_nonzero(deadline_us < TRUE_US))
            seen: Any = SimpleNamespace(misses=misses, certain=misses, n=len(TRUE_US))
            seen.question = Question(float(deadline_us), percentile)
            true = fixed_number(seen)
            found = verdict(runs, float(deadline_us), percentile)[0].outcome
            if found not in (true, Outcome.NOT_ENOUGH_EVIDENCE):
                wrong.append((percentile, deadline_us, found, true))
    return wrong


@pytest.mark.parametrize("empty", rest_is_heavy([True, False], bool))
@pytest.mark.parametrize("stated", rest_is_heavy(["lower", "middle", "upper"], lambda stated: stated == "upper"))
@pytest.mark.parametrize("name", EDGES)
def test_a_histogram_decides_nothing_that_its_calls_do_not(name, stated, empty):
    """Whatever edge a bin is named by, also if empty bins are left out."""
    runs = load(binned(EDGES[name], stated, empty), counts="count")
    assert runs[0].n == len(TRUE_US) and not falsely_decided(runs)


def test_a_fine_histogram_decides_as_its_calls():
    runs = load(binned(EDGES["narrow"], "lower", True), counts="count")
    each = load(TRUE_US, unit="us")
    for deadline_us, outcome in ((120.1, Outcome.MISSED), (300.1, Outcome.MET)):
        (of_bins,), (of_calls,) = (verdict(source, deadline_us, "99") for source in (runs, each))
        assert of_bins.outcome == of_calls.outcome == outcome
        assert of_bins.certain_misses <= of_calls.misses <= of_bins.misses and of_bins.n == of_calls.n
        assert of_bins.misses - of_bins.certain_misses <= 10  # those in two bins
    for percentile in ("50", "99", "99.9"):
        (of_bins,), (of_calls,) = (verdict(source, 200, percentile) for source in (runs, each))
        assert abs(of_bins.percentile_us - of_calls.percentile_us) <= 0.25
        assert of_bins.bounds.percentile_low_us <= of_calls.bounds.percentile_low_us
        assert (of_bins.bounds.percentile_high_us or np.inf) >= (of_calls.bounds.percentile_high_us or 0)
    (of_bins,), (of_calls,) = summarize(runs), summarize(each)
    assert of_bins.n == of_calls.n and of_bins.clusters is None and of_bins.steady_state is None
    for field in ("median_us", "p99_us", "mean_us", "min_us", "max_us"):
        assert abs(of_bins.flat[field] - of_calls.flat[field]) <= 0.25, field


#: 3000 calls in bins of 1 us, of which 6 miss 1000 us.
FINE = {**dict.fromkeys(range(271, 300), 100), 300: 40, 399: 30, 400: 1, 401: 23, 1184: 5, 1185: 1}


def rows(path, bins: dict, heading: str = "latency_us,count"):
    path.write_text("\n".join([heading, *(f"{latency},{count}" for latency, count in bins.items())]) + "\n")
    return path


def test_the_order_of_a_histogram_is_not_judged(tmp_path):
    runs = load(rows(tmp_path / "h.csv", FINE), counts="count")
    (answer,) = verdict(runs, 1000, "99")
    assert (answer.outcome, answer.n, answer.misses, answer.percentile_us) == (Outcome.MET, 3000, 6, 399)
    assert (answer.bounds.percentile_low_us, answer.bounds.percentile_high_us) == (
        398,
        402,
    )  # from edge to edge of bins
    assert (
        answer.firm_statistics is None and answer.drift is None and answer.known_to == "bin" and answer.bursts.tau == 1
    )
    assert answer.dependence.how == "" and answer.rounds[0].steady_state is None
    assert verdict(runs, 1000, "99.9")[0].outcome == Outcome.NOT_ENOUGH_EVIDENCE
    (within,) = verdict(runs, 299.5, "97.5")  # the bin of 300 may reach below it
    assert within.outcome == Outcome.NOT_ENOUGH_EVIDENCE and (within.certain_misses, within.misses) == (60, 200)
    assert verdict(runs, 150, "99")[0].outcome == Outcome.MISSED
    assert verdict(runs, 1000, "99", burst_length=50)[0].outcome == Outcome.NOT_ENOUGH_EVIDENCE


def test_calls_above_the_bins_miss_and_leave_the_maximum_open(tmp_path, lab):
    for above in ("inf", "+Inf", ">2000", "2000+", "overflow"):
        runs = load(rows(tmp_path / "h.csv", {100: 2000, 200: 990, 300: 0, 400: 0, above: 10}), counts="count")
        (answer,) = verdict(runs, 350, "99")
        assert (answer.n, answer.misses, answer.certain_misses) == (3000, 10, 10), above
        assert answer.max_us is None and verdict(runs, 5000, "99.9")[0].certain_misses == 0
        (row,) = summarize(runs)
        assert row.statistics["max_us"] is None
        assert [row.percentiles[key].us for key in ("p999", "median")] == [None, 100]
    for command in (["verdict", "--deadline-us", 350], ["summarize"]):
        for form in ("text", "json"):
            result = lab(*command, tmp_path / "h.csv", "--counts", "count", "--format", form)
            assert result.returncode in (0, 1) and "inf" not in result.stdout.lower().replace("firm", "")


def test_a_billion_calls_are_not_expanded(tmp_path):
    runs = load(rows(tmp_path / "h.csv", {100: 3 * 10**9, 200: 10**6, 900: 7, 910: 0, "inf": 0}), counts="count")
    (answer,) = verdict(runs, 500, "99.9")
    assert answer.outcome == Outcome.MET and answer.n == 3_001_000_007 and answer.misses == 7
    assert summarize(runs)[0].percentiles["p999"].us == 100
    # All calls may miss 50 us: what MET would have assumed is not computed for each.
    for deadline_us, outcome in ((50, Outcome.NOT_ENOUGH_EVIDENCE), (150, Outcome.MET), (950, Outcome.MET)):
        assert verdict(runs, deadline_us, "99")[0].outcome == outcome


REFUSED = {
    "its calls above": ({100: 5, 200: 7, 300: 0}, "calls above it may be missing"),
    "cumulative": ({100: 5, 200: 70, 300: 80, 400: 81, 500: 81, "inf": 82}, "cumulative"),
    "one bin": ({100: 5}, "at least 2 bins"),
    "no calls": ({100: 0, 200: 0, "inf": 0}, "and a call"),
    "part of a call": ({100: 1.5, 200: 2}, "whole numbers"),
    "less than no call": ({100: 5, 200: -2}, "whole numbers"),
    "before the start": ({-100: 5, 200: 2}, "1 negative"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_histogram_from_which_calls_may_be_missing_is_refused(tmp_path, name):
    bins, expected = REFUSED[name]
    assert expected in refusal(rows(tmp_path / "h.csv", bins), counts="count")


@pytest.mark.parametrize("heading", ["count", "counts", "frequency", "hits", "calls"])
def test_a_histogram_is_not_read_as_trials(tmp_path, heading):
    path = rows(tmp_path / "h.csv", FINE, f"latency_us,{heading}")
    assert f"--counts {heading}" in refusal(path)
    assert load(path, counts=heading)[0].n == 3000
    assert load(path, rename={heading: ""})[0].n == len(FINE)


def test_what_needs_single_times_says_so_of_a_histogram(tmp_path, lab):
    path = rows(tmp_path / "h.csv", FINE)
    counted = ["--counts", "count"]
    for command in (["outliers", path], ["replay", path, "--period-us", 2000], ["compare", path, path]):
        result = lab(*command, *counted)
        (line,) = (result.stdout + result.stderr).splitlines()
        assert "no order" in line and result.returncode != 70
    assert lab("verdict", path, "--deadline-us", 1, *counted, "--figures", tmp_path).returncode == 2
    with pytest.raises(LabError, match="no order"):
        load(path, counts="count")[0].rounds[0].timed_ns  # noqa: B018


# Clocks


def readings(latency_ms: np.ndarray, step_ms: float) -> np.ndarray:
    """What a clock of this step shows of latencies that begin anywhere between two steps."""
    begin = (np.arange(len(latency_ms)) * 0.7548776662466927) % 1 * step_ms
    return np.round((np.floor((begin + latency_ms) / step_ms) - np.floor(begin / step_ms)) * step_ms, 6)


@pytest.mark.parametrize("step_us", [60.0, 100.0, 1000.0])
def test_a_coarse_clock_decides_nothing_that_its_calls_do_not(step_us, tmp_path):
    """Also where most of its times are 0: all of them count."""
    shown = readings(TRUE_US, step_us)
    path = put(tmp_path / "t.csv", {"latency_us": shown})
    runs = load(path)
    assert (shown == 0).any() and runs[0].n == len(shown) and not falsely_decided(runs)
    assert any("are 0" in warning for warning in runs.warnings)
    assert runs[0].rounds[0].latency_ns.min() == step_us * 1000


def test_most_times_of_a_coarse_clock_are_zero(tmp_path):
    """As 0.00 ms of a clock of 15.6 ms: neither a miss nor a hit below a step, and certain above two."""
    path = put(tmp_path / "t.csv", {"latency_ms": ["0.00"] * 4510 + ["15.60"] * 500 + ["15.63"] * 115})
    runs = load(path)
    for deadline_ms, outcome in ((5, "NOT ENOUGH EVIDENCE"), (20, "NOT ENOUGH EVIDENCE"), (40, "MET")):
        (answer,) = verdict(runs, 1e3 * deadline_ms, "99")
        assert (answer.outcome, answer.n) == (outcome, 5125), deadline_ms
        assert answer.known_to == "step" and answer.drift is None and "15.6 ms" in answer.not_judged
    (row,) = summarize(runs)
    assert row.n == 5125 and row.percentiles["median"].us == 15600 and row.clusters is None
    assert "not judged" in str(outliers(runs)) and "15.6 ms" in str(outliers(runs))


def test_zeros_among_times_of_a_fine_clock_count_as_the_shortest(tmp_path):
    (answer,) = verdict(load(put(tmp_path / "t.csv", {"latency_us": [0, *np.arange(500, 600, 0.1)]})), 400, "99")
    assert (answer.n, answer.misses) == (1001, 1001) and answer.certain_misses < 1001


def test_only_zeros_are_refused(tmp_path):
    assert "smaller steps" in refusal(put(tmp_path / "t.csv", {"latency_ms": ["0.00"] * 50}))


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_ratios_are_judged_from_three_steps_on(steps):
    """Without a 0 too, as where a clock of 1 ms shows 1 and 2: those are no cluster at 2x."""
    shown_ms = readings(steps + 0.1 + 0.1 * EVEN, 1.0)
    why = not_judged(load(shown_ms, unit="ms")[0].rounds)
    assert (why is None) == (steps >= 3)
    assert not_judged(load(shown_ms + EVEN * 1e-3, unit="ms")[0].rounds) is None  # a fine clock


def test_other_rounds_of_a_coarse_clock_have_no_zero(tmp_path):
    first = put(tmp_path / "a.csv", {"latency_ms": [0, 1, 0, 1] * 100})
    second = put(tmp_path / "b.csv", {"latency_ms": [4, 5, 4, 5] * 100})
    (answer,) = verdict(load([first, second], one_group=True), 4500, "50")
    assert answer.n == 800 and (answer.misses, answer.certain_misses) == (200, 200)


def test_no_refusal_advises_to_remove_trials(tmp_path):
    for times in ([5, -1, 6], [5, "inf", 6], [5, "", 6], [0, 0, 0]):
        message = refusal(put(tmp_path / "t.csv", {"trial": [7, 8, 9], "latency_us": times}))
        assert "remove" not in message and "drop these" not in message, message
    with pytest.raises(UsageError, match="1 negative"):
        load(np.array([5.0, -1.0]), unit="us")
