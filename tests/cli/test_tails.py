"""`verdict`, `outliers`, `summarize`, `compare` and `replay` on the command line: answers, formats, exit statuses."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from lstm_trt.store import files, schema
from tests.store.test_samples import put
from tests.store.test_store import planted


@pytest.fixture
def answer(run):
    """The JSON answer of a command, and its status; nothing may stand on standard error."""

    def call(*arguments: object):
        status, out, err = run(*arguments, "--format", "json")
        assert err == "", err
        return json.loads(out), status

    return call


@pytest.fixture
def mistake(run):
    """The one line of a command that must be refused."""

    def call(*arguments: object) -> str:
        status, out, err = run(*arguments)
        assert (status, out) == (2, "") and err.startswith("lstm-trt: ") and err.count("\n") == 1, (status, err)
        return err

    return call


def body(n: int, median: float = 500.0) -> list[str]:
    return [f"{value:.3f}" for value in np.random.default_rng(n).normal(median, median / 100, n)]


# verdict


@pytest.mark.parametrize(("n", "words", "status"), [(2995, "MET", 0), (2994, "NOT ENOUGH EVIDENCE", 3)])
def test_the_verdict_on_clean_trials_from_elsewhere(tmp_path, answer, run, n, words, status):
    path = put(tmp_path / "times.csv", {"latency_us": body(n)})
    asked = ("verdict", path, "--deadline-us", 1000, "--percentile", 99.9, "--confidence", 0.95)
    told, exited = answer(*asked)
    assert (told["verdict"], exited, told["n"], told["misses"]) == (words, status, n, 0)
    assert (told["deadline_us"], told["percentile"], told["confidence"]) == (1000, 99.9, 0.95)
    assert (told["group"], told["unit"], told["column"], told["warnings"]) == ({}, "us", "latency_us", [])
    assert {"max_us", "trials_needed", "miss_rate_low", "miss_rate_high", "effective_n"} <= told.keys()
    exited, out, err = run(*asked)
    assert out.startswith(words) and exited == status and err == ""


def test_columns_are_renamed_before_they_are_read(tmp_path, answer, mistake):
    path = put(tmp_path / "t.csv", {"Num LSTM layers": [1, 2] * 100, "took": [100, 200] * 100})
    names = ("--rename", "Num LSTM layers=layers", "took=latency_us")
    found, status = answer("verdict", path, *names, "--group-by", "layers", "--deadline-us", 150)
    assert [(one["group"], one["unit"], one["misses"]) for one in found] == [
        ({"layers": 1}, "us", 0),
        ({"layers": 2}, "us", 100),
    ]
    assert status == 1
    assert "--rename takes OLD=NEW" in mistake("verdict", path, "--rename", "took", "--deadline-us", 150)


def test_a_missed_deadline(tmp_path, answer):
    times = body(1000)
    for place in range(0, 1000, 50):
        times[place] = "1200.5"
    told, status = answer("verdict", put(tmp_path / "t.csv", {"latency_us": times}), "--deadline-us", 1000)
    assert (told["verdict"], told["misses"], told["max_us"], status) == ("MISSED", 20, 1200.5, 1)


@pytest.mark.parametrize(("unit", "scale"), [("ns", 1000), ("us", 1), ("ms", 1e-3), ("s", 1e-6)])
def test_a_time_at_the_deadline_is_no_miss_in_any_unit(tmp_path, answer, unit, scale):
    """1.1 ms read as ms is 1100 us; 1.100001 ms is late."""
    deadlines = [1100, 1000.3, 700.1, 333.3, 1.1]
    for deadline in deadlines:
        times = [f"{value * scale:.12g}" for value in [deadline] * 20 + [deadline * 0.9] * 10 + [deadline * 1.00001]]
        path = put(tmp_path / "t.csv", {"took": times})
        told, _ = answer("verdict", path, "--column", "took", "--unit", unit, "--deadline-us", deadline)
        assert told["misses"] == 1, (deadline, unit)


def test_many_configurations_get_a_verdict_each(tmp_path, answer, run):
    columns = {
        "model": ["good"] * 3000 + ["few"] * 100 + ["late"] * 400,
        "batch": [1] * 3500,
        "latency_us": [*body(3000), *body(100), *body(400, 2000)],
    }
    path = put(tmp_path / "t.csv", columns)
    told, status = answer("verdict", path, "--deadline-us", 1000, "--group-by", "model", "batch")
    assert [(one["group"], one["verdict"]) for one in told] == [
        ({"model": "good", "batch": 1}, "MET"),
        ({"model": "few", "batch": 1}, "NOT ENOUGH EVIDENCE"),
        ({"model": "late", "batch": 1}, "MISSED"),
    ]
    assert status == 1
    status, out, _ = run("verdict", path, "--deadline-us", 1000, "--group-by", "model")
    assert status == 1 and "3 configurations: 1 MET, 1 MISSED, 1 NOT ENOUGH EVIDENCE" in out
    rows = columns["model"].index("late")
    path = put(tmp_path / "t.csv", {name: cells[:rows] for name, cells in columns.items()})
    assert answer("verdict", path, "--deadline-us", 1000, "--group-by", "model")[1] == 3
    path = put(tmp_path / "t.csv", {name: cells[:3000] for name, cells in columns.items()})
    told, status = answer("verdict", path, "--deadline-us", 1000, "--group-by", "model")
    assert status == 0 and isinstance(told, list) and len(told) == 1


def test_the_verdict_on_recordings_of_this_lab(tmp_path, answer, run):
    files.write(planted(8, rows=3100), tmp_path)
    files.write_failure(schema.Failure(planted(9).configuration, 0, "memory", "too large"), tmp_path)
    told, status = answer("verdict", tmp_path, "--deadline-us", 20)
    assert [(one["verdict"], one["n"]) for one in told] == [("MET", 3097), ("NOT ENOUGH EVIDENCE", 0)] and status == 3
    assert told[0]["group"]["hidden"] == 8 and "too large" in str(told[1]["reasons"])
    assert "failed at memory" in run("verdict", tmp_path, "--deadline-us", 20)[1]
    told, status = answer("verdict", next(tmp_path.glob("*.parquet")), "--deadline-us", 20)
    assert (told["verdict"], told["group"], status) == ("MET", {}, 0)
    told, status = answer("verdict", next(tmp_path.glob("*.failure.json")), "--deadline-us", 20)
    assert (told["verdict"], told["n"], status) == ("NOT ENOUGH EVIDENCE", 0, 3)


def test_a_folder_of_one_configuration_is_a_list_too(tmp_path, answer):
    files.write(planted(8), tmp_path)
    for command, more in (("verdict", ("--deadline-us", 20)), ("replay", ("--period-us", 20))):
        told, _ = answer(command, tmp_path, *more)
        assert len(told) == 1 and told[0]["group"]["hidden"] == 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "required: --deadline-us"),
        (("--deadline-us", "0"), "positive"),
        (("--deadline-us", "-3"), "positive"),
        (("--deadline-us", "nan"), "nan"),
        (("--deadline-us", "inf"), "inf"),
        (("--deadline-us", "soon"), "invalid float value: 'soon'"),
        (("--deadline-us", "5", "--percentile", "100"), "between 0 and 100"),
        (("--deadline-us", "5", "--percentile", "0"), "between 0 and 100"),
        (("--deadline-us", "5", "--percentile", "most"), "'most'"),
        (("--deadline-us", "5", "--confidence", "95"), "such as 0.95"),
        (("--deadline-us", "5", "--confidence", "1"), "such as 0.95"),
        (("--deadline-us", "5", "--confidence", "nan"), "such as 0.95"),
        (("--deadline-us", "5", "--unit", "parsec"), "invalid choice: 'parsec'"),
        (("--deadline-us", "5", "--column", "x"), "no column 'x'"),
    ],
)
def test_mistakes_of_verdict(tmp_path, mistake, arguments, words):
    assert words in mistake("verdict", put(tmp_path / "t.csv", {"latency_us": [1, 2, 3]}), *arguments)


ASKED = {
    "verdict": ("--deadline-us", 1000),
    "outliers": (),
    "summarize": (),
    "replay": ("--period-us", 1000),
}
WRONG = {
    "empty": ("", "is empty"),
    "one trial": ("latency_us\n500\n", "has 1 time"),
    "nan": ("latency_us\n500\nnan\n501\n", "1 blank or NaN, the first in line 3"),
    "negative": ("latency_us\n500\n-1\n501\n", "1 zero or negative, the first in line 3"),
    "zero": ("latency_us\n500\n501\n0\n", "1 zero or negative, the first in line 4"),
    "mixed": ("hidden,latency_us\n" + "32,500\n64,900\n" * 20, "mixes 2 values of hidden: use --group-by hidden"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("command", [*ASKED, "compare"])
def test_every_command_refuses_bad_input_in_one_line(tmp_path, mistake, command, name):
    content, words = WRONG[name]
    path, good = tmp_path / "t.csv", put(tmp_path / "good.csv", {"latency_us": body(20)})
    path.write_text(content)
    assert words in mistake(command, *((good, path) if command == "compare" else (path, *ASKED[command])))
    if command == "compare":
        assert words in mistake(command, path, good)


@pytest.mark.parametrize("command", [*ASKED, "compare"])
def test_every_command_refuses_what_is_not_there(tmp_path, mistake, command):
    good = put(tmp_path / "good.csv", {"latency_us": body(20)})
    (tmp_path / "nothing").mkdir()
    for path, words in ((tmp_path / "nowhere", "file or folder"), (tmp_path / "nothing", "no recording")):
        assert words in mistake(command, *((good, path) if command == "compare" else (path, *ASKED[command])))
    files.write(planted(8), tmp_path)
    file = next(tmp_path.glob("*.parquet"))
    paths = (good, file) if command == "compare" else (file, *ASKED[command])
    assert "--group-by" in mistake(command, *paths, "--group-by", "hidden") or command == "compare"


@pytest.mark.parametrize("command", ["verdict", "outliers", "replay", "compare"])
def test_one_trial_of_this_lab_is_refused(tmp_path, mistake, command):
    files.write(planted(8, rows=4), tmp_path)
    paths = (tmp_path, tmp_path) if command == "compare" else (tmp_path, *ASKED[command])
    assert "1 trial after warm-up" in mistake(command, *paths)


def test_a_process_of_its_own_exits_as_promised(tmp_path, lab, refused):
    """The status reaches the shell, and numbers without a unit get no verdict."""
    path = tmp_path / "times.txt"
    path.write_text("\n".join(body(2995)))
    assert "--unit" in refused("verdict", path, "--deadline-us", 1000)
    result = lab("verdict", path, "--unit", "us", "--deadline-us", 1000, "--format", "json")
    assert result.returncode == 0 and json.loads(result.stdout)["unit"] == "us" and not result.stderr
    assert lab("verdict", path, "--unit", "ms", "--deadline-us", 1000, process=True).returncode == 1
    assert lab("verdict", path, "--unit", "us", "--deadline-us", 1000, "--percentile", 99.99).returncode == 3
    assert "file or folder" in refused("verdict", tmp_path / "nowhere", "--deadline-us", 1)


@pytest.mark.parametrize(("unit", "warned"), [("us", False), ("ms", True), ("ns", True)])
def test_a_median_far_from_the_deadline_is_warned_of(tmp_path, run, unit, warned):
    _, _, err = run("verdict", put(tmp_path / "t.csv", {"t": body(100)}), "--unit", unit, "--deadline-us", 1000)
    assert ("right unit" in err) == warned and err.count("\n") == warned


# outliers


def with_cluster(n: int, every: int = 50) -> list[str]:
    times = body(n, 400)
    for place in range(7, n, every):
        times[place] = f"{2 * float(times[place]):.3f}"
    return times


def test_outliers_from_elsewhere(tmp_path, answer, run):
    times = with_cluster(2000)
    path = put(tmp_path / "t.csv", {"trial": range(2000), "latency_us": times})
    told, status = answer("outliers", path)
    (cluster,) = told["clusters"]
    assert status == 0 and told["n"] == 2000 and told["group"] == {}
    assert cluster["multiplier"] == pytest.approx(2, abs=0.02) and cluster["count"] == 40
    assert {"share", "share_low", "share_high", "period_ms", "causes"} <= cluster.keys() and told["segments"]
    low, high = np.percentile(np.array(times, float), [25, 75])
    far = 1.5 * (high - low)
    assert told["outliers"] == sum(not low - far <= float(time) <= high + far for time in times)
    status, out, err = run("outliers", path)
    assert status == 0 and err == "" and "2.0" in out


def test_outliers_of_many_configurations(tmp_path, answer, run):
    columns = {"model": [f"m{place % 10}" for place in range(5000)], "latency_us": body(5000)}
    columns["latency_us"][::10] = with_cluster(500)
    path = put(tmp_path / "t.csv", columns)
    told, _ = answer("outliers", path, "--group-by", "model")
    assert [one["group"] for one in told] == [{"model": f"m{place}"} for place in range(10)]
    assert told[0]["clusters"] and all(one["n"] == 500 for one in told)
    _, out, _ = run("outliers", path, "--group-by", "model")
    assert len(out.splitlines()) == 10 and out.startswith("model=m0: ")


def test_outliers_tell_failures(tmp_path, answer, run):
    files.write(planted(8, rows=300), tmp_path)
    files.write_failure(schema.Failure(planted(9).configuration, 0, "memory", "too large"), tmp_path)
    told, _ = answer("outliers", tmp_path)
    assert told[0]["n"] == 297 and (told[1]["n"], told[1]["clusters"]) == (0, []) and "too large" in told[1]["failure"]
    assert "failed at memory: too large" in run("outliers", tmp_path)[1]


# summarize


def test_summaries_from_elsewhere(tmp_path, answer, run):
    path = put(tmp_path / "t.csv", {"hidden": [32, 64] * 500, "took": [k for n in range(1, 501) for k in (n, 2 * n)]})
    told, _ = answer("summarize", path, "--column", "took", "--unit", "ms", "--group-by", "hidden")
    assert [(row["group"], row["n"], row["median_us"], row["max_us"]) for row in told] == [
        ({"hidden": 32}, 500, 250e3, 500e3),
        ({"hidden": 64}, 500, 500e3, 1000e3),
    ]
    assert told[0]["median_us_low"] < 250e3 < told[0]["median_us_high"] and told[0]["p999_us_high"] is None
    options = ("--column", "took", "--unit", "ms", "--group-by", "hidden")
    rows = list(csv.DictReader(io.StringIO(run("summarize", path, *options, "--format", "csv")[1])))
    assert [float(row["max_us"]) for row in rows] == [500e3, 1000e3]
    assert [json.loads(row["group"]) for row in rows] == [{"hidden": 32}, {"hidden": 64}]
    assert "hidden" in run("summarize", path, *options)[1]


def test_summaries_by_round_and_without_figures(tmp_path, answer, mistake):
    path = put(tmp_path / "t.csv", {"round": [0, 1] * 50, "latency_us": range(1, 101)})
    assert [row["n"] for row in answer("summarize", path)[0]] == [100]
    assert [row["n"] for row in answer("summarize", path, "--by-round")[0]] == [50, 50]
    assert "leave it out" in mistake("summarize", path, "--figures", tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


# compare


def test_one_group_a_side_is_compared_whatever_it_is_called(tmp_path, answer, run):
    a = put(tmp_path / "a.csv", {"latency_us": body(1000)})
    b = put(tmp_path / "b.csv", {"took (ms)": [f"{float(value) / 1e3:.6f}" for value in body(1000, 1000)]})
    told, status = answer("compare", a, b)
    assert (told["median"], told["group"], status) == ("SLOWER", {}, 0)
    assert (told["a"]["unit"], told["b"]["unit"], told["b"]["column"]) == ("us", "ms", "took (ms)")
    assert {"tail", "clusters_gone", "clusters_new"} <= told.keys()
    assert answer("compare", b, a)[0]["median"] == "FASTER"
    assert "SLOWER" in run("compare", a, b)[1]
    told, status = answer("compare", a, put(tmp_path / "c.csv", {"latency_us": body(1000)}))
    assert told["median"] == "AMBIGUOUS" and told["reasons"]


def rounds(path, medians: dict):
    """A table with 6 rounds of each of the given hidden sizes."""
    rows = [
        (hidden, number, value)
        for hidden, median in medians.items()
        for number in range(6)
        for value in body(200, median)
    ]
    return put(path, dict(zip(("hidden", "round", "latency_us"), zip(*rows, strict=True), strict=True)))


def test_groups_are_matched_and_the_others_named(tmp_path, answer, run, mistake):
    a = rounds(tmp_path / "a.csv", {32: 100, 64: 200, 96: 300})
    b = rounds(tmp_path / "b.csv", {64: 200, 32: 150, 128: 400})
    told, status = answer("compare", a, b, "--group-by", "hidden", "--effect", 0.05)
    by = {one["group"]["hidden"]: one for one in told}
    assert status == 0 and [by[size]["median"] for size in (32, 64)] == ["SLOWER", "SAME"]
    assert by[96]["median"] is None and by[96]["reasons"] == [f"only in {a}"]
    assert by[128]["median"] is None and by[128]["reasons"] == [f"only in {b}"]
    assert (by[32]["rounds_a"], by[32]["effect"]) == (6, 0.05)
    out = run("compare", a, b, "--group-by", "hidden")[1]
    assert f"hidden=96: only in {a}" in out and f"hidden=128: only in {b}" in out
    c = rounds(tmp_path / "c.csv", {256: 100, 512: 100})
    assert "nothing to compare" in mistake("compare", a, c, "--group-by", "hidden")


def recorded(folder, sizes, rounds=1, scale=1.0, **changes):
    """Recordings of several hidden sizes; `changes` are of the configuration."""
    from dataclasses import replace

    folder.mkdir()
    for hidden in sizes:
        for number in range(rounds):
            one = planted(hidden, number, rows=203)
            rng = np.random.default_rng([hidden, number, *folder.name.encode()])
            latency = (rng.integers(10_000, 10_100, 203) * scale).astype(np.int64)
            columns = {**one.columns, "latency_ns": latency, "start_ns": np.cumsum(latency)}
            provenance = {**one.provenance, "started_unix_ns": rng.integers(1, 2**60).item()}
            files.write(schema.Recording(replace(one.configuration, **changes), number, columns, provenance), folder)
    return folder


def test_folders_are_matched_by_configuration_and_not_by_version(tmp_path, answer, run):
    a = recorded(tmp_path / "a", (8, 16, 24))
    b = recorded(tmp_path / "b", (16, 8, 32), scale=2, runtime_version="2.0")
    told, _ = answer("compare", a, b)
    assert [(one["group"]["hidden"], one["median"]) for one in told] == [
        (8, "SLOWER"),
        (16, "SLOWER"),
        (24, None),
        (32, None),
    ]
    assert any("version" in text for text in told[0]["differences"])
    assert "config_id" not in told[0]["group"] and told[0]["group"]["runtime"] == "onnxruntime"
    assert "only in" in run("compare", a, b)[1]


def test_another_runtime_throughout_is_what_is_compared(tmp_path, answer, run):
    a = recorded(tmp_path / "a", (8, 16))
    b = recorded(tmp_path / "b", (8, 16), scale=0.5, runtime="pytorch")
    told, _ = answer("compare", a, b)
    assert [(one["group"]["hidden"], one["median"]) for one in told] == [(8, "FASTER"), (16, "FASTER")]
    assert "runtime" not in told[0]["group"]
    assert "runtime: onnxruntime in A, pytorch in B" in run("compare", a, b)[1]


def test_rounds_of_one_configuration_are_one_object(tmp_path, answer):
    told, _ = answer("compare", recorded(tmp_path / "a", (8,), 6), recorded(tmp_path / "b", (8,), 6, scale=1.5))
    assert (told["median"], told["tail"], told["rounds_a"], told["group"]) == ("SLOWER", "SLOWER", 6, {})


def test_a_failure_on_one_side_is_told(tmp_path, answer):
    a, b = recorded(tmp_path / "a", (8, 16)), recorded(tmp_path / "b", (8,))
    files.write_failure(schema.Failure(planted(16, rows=203).configuration, 0, "memory", "too large"), b)
    told, _ = answer("compare", a, b)
    assert told[0]["median"] == "AMBIGUOUS" and told[1]["median"] is None and "too large" in told[1]["reasons"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--confidence", "95"), "such as 0.95"),
        (("--effect", "-1"), "effect"),
        (("--effect", "nan"), "effect"),
        (("--effect", "much"), "invalid float value"),
    ],
)
def test_mistakes_of_compare(tmp_path, mistake, arguments, words):
    path = put(tmp_path / "t.csv", {"latency_us": body(100)})
    assert words in mistake("compare", path, path, *arguments)


# replay


def test_a_replay_makes_late_calls_late_again(tmp_path, answer, run):
    """100 us each and one of 350 us, every 200 us: the next begins 150 us late, the one after 50 us."""
    times = [100] * 20
    times[10] = 350
    path = put(tmp_path / "t.csv", {"latency_us": times})
    told, status = answer("replay", path, "--period-us", 200)
    assert status == 0 and (told["n"], told["group"]) == (20, {})
    assert (told["closed"]["max_us"], told["replayed"]["max_us"]) == (350, 350)
    assert (told["closed"]["misses"], told["replayed"]["misses"]) == (1, 2)
    assert told["queued"] == 2 and told["worst_wait_us"] == 150
    assert answer("replay", path, "--period-us", 200, "--deadline-us", 140)[0]["replayed"]["misses"] == 3
    assert "200 us" in run("replay", path, "--period-us", 200)[1]


@pytest.mark.parametrize("period", [50, 0, -1, "nan", "inf"])
def test_mistakes_of_replay(tmp_path, mistake, period):
    mistake("replay", put(tmp_path / "t.csv", {"latency_us": [100] * 20}), "--period-us", period)


def test_a_replay_of_many_tells_which_cannot_be(tmp_path, answer, run, mistake):
    path = put(tmp_path / "t.csv", {"hidden": [32, 64] * 50, "latency_us": [100, 900] * 50})
    told, _ = answer("replay", path, "--period-us", 500, "--group-by", "hidden")
    assert told[0]["replayed"]["misses"] == 0 and "failure" in told[1] and told[1]["group"] == {"hidden": 64}
    assert "hidden=64" in run("replay", path, "--period-us", 500, "--group-by", "hidden")[1]
    mistake("replay", path, "--period-us", 50, "--group-by", "hidden")


def test_the_page_of_outliers_tells_period_and_causes_and_its_name_comes_last(tmp_path, run, monkeypatch):
    """What the page says under "comes with" is looked for: the quick look of long tables does not."""
    from lstm_trt.plots import page

    drawn = []
    real = page.draw_outliers
    monkeypatch.setattr(page, "draw_outliers", lambda *given: drawn.append(given) or real(*given))
    latency = np.full(600, 100_000) + np.arange(600) % 7
    latency[::30] *= 2
    path = put(tmp_path / "times.csv", {"configuration": np.arange(600) % 10, "latency_ns": latency})
    status, out, err = run("outliers", path, "--group-by", "configuration", "--figures", tmp_path / "pages")
    assert status == 0 and len(out.splitlines()) == 10  # a line each: more than are told at full length
    ((groups, findings, _),) = drawn
    assert len(groups) == len(findings) == 10 and all(one.period_by is not None for one in findings)
    assert len(list((tmp_path / "pages").glob("*.png"))) == len(err.splitlines()) == 10
