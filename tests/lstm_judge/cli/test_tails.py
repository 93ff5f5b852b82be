"""`verdict`, `outliers`, `summarize`, `compare` and `replay` on the command line: results, formats, exit statuses."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lstm_judge.read import tables
from lstm_judge.read.runs import load
from lstm_trt.config.errors import UsageError
from lstm_trt.store import files, schema
from tests.conftest import ROOT
from tests.lstm_judge.read.test_rounds import put
from tests.lstm_trt.store.test_store import planted


@pytest.fixture
def answer(run):
    """The JSON output of a command, and its exit status; standard error must be empty."""

    def call(*arguments: object):
        status, out, err = run(*arguments, "--format", "json")
        assert err == "", err
        return json.loads(out), status

    return call


@pytest.fixture
def mistake(run):
    """The error line of a command that must fail."""

    def call(*arguments: object) -> str:
        status, out, err = run(*arguments)
        assert (status, out) == (2, "") and err.startswith("lstm-trt: ") and err.count("\n") == 1, (status, err)
        return err

    return call


def body(n: int, median: float = 500.0) -> list[str]:
    return [f"{value:.3f}" for value in np.random.default_rng(n).normal(median, median / 100, n)]


# which configurations meet a deadline


@pytest.fixture
def folder(tmp_path):
    """Two networks of about 15 us with 400 trials, one with 20, and a failure."""
    for hidden, rows in ((8, 403), (16, 403), (24, 23)):
        files.write(planted(hidden, rows=rows), tmp_path)
    files.write_failure(schema.Failure(planted(32).configuration, 0, "memory", "too large"), tmp_path)
    return tmp_path


def test_a_summary_ends_with_what_meets_the_deadline(folder, run):
    _, plain, _ = run("summarize", folder)
    status, out, err = run("summarize", folder, "--deadline-us", 21)
    *_, counts, largest = out[len(plain) :].splitlines()
    assert "1x16-s4-b1" in largest
    assert out.startswith(plain) and (status, err) == (0, "")
    assert "2 met it, 1 had too few trials to say, 1 failed" in counts  # 20 trials cannot prove even p99
    _, out, _ = run("summarize", folder, "--where", "hidden=8", "--deadline-us", 21)
    assert out.splitlines()[-1] == "The one configuration met it"
    _, out, _ = run("summarize", folder, "--hidden", 8, 16, "--deadline-us", 21)
    assert "2 met it" in out.splitlines()[-2] and "1x16-s4-b1" in out.splitlines()[-1]
    _, out, _ = run("summarize", folder, "--hidden", 8, 16, "--deadline-us", 11)
    assert "2 missed it" in out.splitlines()[-1]


def test_json_and_csv_stay_what_they_are_with_a_deadline(folder, run):
    for form in ("json", "csv"):
        command = ("summarize", folder, "--format", form)
        _, plain, _ = run(*command)
        _, out, err = run(*command, "--deadline-us", 21)
        assert out == plain and "1 had too few trials to say" in err


def test_a_summary_of_a_table_with_a_deadline_has_no_largest_network(tmp_path, run):
    path = put(tmp_path / "t.csv", {"model": ["a"] * 400 + ["b"] * 400, "latency_us": [*body(400), *body(400, 2000)]})
    _, out, _ = run("summarize", path, "--group-by", "model", "--deadline-us", 1000)
    assert "1 met it, 1 missed it" in out.splitlines()[-1]


def test_a_deadline_of_a_summary_or_a_sweep_is_refused_before_anything_else(tmp_path, mistake):
    assert "deadline" in mistake("summarize", tmp_path / "nowhere", "--deadline-us", 0)
    sweep = ("sweep", "--layers", 1, "--hidden", 8, "--sequence", 4, "--out", tmp_path / "out")
    assert "deadline" in mistake(*sweep, "--deadline-us", -1) and not (tmp_path / "out").exists()


@pytest.mark.heavy
def test_a_sweep_ends_with_what_meets_its_deadline(tmp_path, run):
    """A machine with load can leave it undecided, but every network is counted and named."""
    sizes = ("--layers", 1, "--hidden", 4, 8, "--sequence", 2, "--batch", 1)
    sweep = ("sweep", *sizes, "--trials", 310, "--runtime", "onnxruntime", "--quiet", "--out", tmp_path)
    status, out, _ = run(*sweep, "--deadline-us", 1e7)
    _, ended = out.split("total time")
    names = {"1x4-s2-b1 on onnxruntime", "1x8-s2-b1 on onnxruntime"}
    assert status == 0 and names <= set(re.findall(r"1x[48]-s2-b1 on onnxruntime", ended))
    assert sum(map(int, re.findall(r"(\d+) (?:met|missed|had|stayed)", ended))) == 2
    status, out, err = run(*sweep, "--deadline-us", 1e7, "--format", "json")
    assert json.loads(out) and "Of 2 configurations" in err


# verdict


@pytest.mark.parametrize(("n", "verdict", "status"), [(2995, "MET", 0), (2994, "NOT ENOUGH EVIDENCE", 3)])
def test_the_verdict_on_clean_trials_from_elsewhere(tmp_path, answer, run, n, verdict, status):
    path = put(tmp_path / "times.csv", {"latency_us": body(n)})
    command = ("verdict", path, "--deadline-us", 1000, "--percentile", 99.9, "--confidence", 0.95)
    found, exited = answer(*command)
    assert (found["outcome"], exited, found["n"], found["misses"]) == (verdict, status, n, 0)
    assert found["question"] == {"deadline_us": 1000, "percentile": 99.9, "confidence": 0.95, "burst_length": 1}
    assert (found["group"], found["unit"], found["column"], found["warnings"]) == ({}, "us", "latency_us", [])
    assert {"max_us", "bounds", "effective", "new_recording"} <= found.keys()
    exited, out, err = run(*command)
    assert out.startswith(verdict) and exited == status and err == ""


def test_columns_are_renamed_before_they_are_read(tmp_path, answer, mistake):
    path = put(tmp_path / "t.csv", {"Num LSTM layers": [1, 2] * 100, "took": [100, 200] * 100})
    names = ("--rename", "Num LSTM layers=layers", "took=latency_us")
    found, status = answer("verdict", path, *names, "--group-by", "layers", "--deadline-us", 150)
    assert [(row["group"], row["unit"], row["misses"]) for row in found] == [
        ({"layers": 1}, "us", 0),
        ({"layers": 2}, "us", 100),
    ]
    assert status == 1
    assert "--rename takes OLD=NEW" in mistake("verdict", path, "--rename", "took", "--deadline-us", 150)


def test_a_missed_deadline(tmp_path, answer):
    times = body(1000)
    for place in range(0, 1000, 50):
        times[place] = "1200.5"
    found, status = answer("verdict", put(tmp_path / "t.csv", {"latency_us": times}), "--deadline-us", 1000)
    assert (found["outcome"], found["misses"], found["max_us"], status) == ("MISSED", 20, 1200.5, 1)


@pytest.mark.parametrize(("unit", "scale"), [("ns", 1000), ("us", 1), ("ms", 1e-3), ("s", 1e-6)])
def test_a_time_at_the_deadline_is_no_miss_in_any_unit(tmp_path, answer, unit, scale):
    """1.1 ms read as ms is 1100 us; 1.100001 ms is a miss."""
    deadlines = {1100: "1.1", 1000.3: "1.0003", 700.1: "0.7001", 333.3: "0.3333", 1.1: "1.1e-3"}
    for deadline, in_ms in deadlines.items():
        times = [f"{value * scale:.12g}" for value in [deadline] * 20 + [deadline * 0.9] * 10 + [deadline * 1.00001]]
        path = put(tmp_path / "t.csv", {"took": times})
        for question in (("--deadline-us", deadline), ("--deadline-ms", in_ms)):
            found, _ = answer("verdict", path, "--column", "took", "--unit", unit, *question)
            assert (found["misses"], found["question"]["deadline_us"]) == (1, deadline), (question, unit)


def test_many_configurations_get_a_verdict_each(tmp_path, answer, run):
    columns = {
        "model": ["good"] * 3000 + ["few"] * 100 + ["late"] * 400,
        "batch": [1] * 3500,
        "latency_us": [*body(3000), *body(100), *body(400, 2000)],
    }
    path = put(tmp_path / "t.csv", columns)
    found, status = answer("verdict", path, "--deadline-us", 1000, "--group-by", "model", "batch")
    assert [(row["group"], row["outcome"]) for row in found] == [
        ({"model": "good", "batch": 1}, "MET"),
        ({"model": "few", "batch": 1}, "NOT ENOUGH EVIDENCE"),
        ({"model": "late", "batch": 1}, "MISSED"),
    ]
    assert status == 1
    status, out, _ = run("verdict", path, "--deadline-us", 1000, "--group-by", "model")
    assert status == 1 and "3 configurations 1 met it, 1 missed it, 1 had too few trials" in out
    rows = columns["model"].index("late")
    path = put(tmp_path / "t.csv", {name: cells[:rows] for name, cells in columns.items()})
    assert answer("verdict", path, "--deadline-us", 1000, "--group-by", "model")[1] == 3
    path = put(tmp_path / "t.csv", {name: cells[:3000] for name, cells in columns.items()})
    found, status = answer("verdict", path, "--deadline-us", 1000, "--group-by", "model")
    assert status == 0 and isinstance(found, list) and len(found) == 1


def test_the_verdict_on_recordings_of_this_lab(tmp_path, answer, run):
    files.write(planted(8, rows=3100), tmp_path)
    files.write_failure(schema.Failure(planted(9).configuration, 0, "memory", "too large"), tmp_path)
    found, status = answer("verdict", tmp_path, "--deadline-us", 20)
    assert [(row["outcome"], row["n"]) for row in found] == [("MET", 3097), ("NOT ENOUGH EVIDENCE", 0)] and status == 3
    assert found[0]["group"]["hidden"] == 8 and "too large" in str(found[1]["reasons"])
    assert "failed at memory" in run("verdict", tmp_path, "--deadline-us", 20)[1]
    found, status = answer("verdict", next(tmp_path.glob("*.parquet")), "--deadline-us", 20)
    assert (found["outcome"], found["group"], status) == ("MET", {}, 0)
    found, status = answer("verdict", next(tmp_path.glob("*.failure.json")), "--deadline-us", 20)
    assert (found["outcome"], found["n"], status) == ("NOT ENOUGH EVIDENCE", 0, 3)


def test_a_folder_of_one_configuration_is_a_list_too(tmp_path, answer):
    files.write(planted(8), tmp_path)
    for command, more in (("verdict", ("--deadline-us", 20)), ("replay", ("--period-us", 20))):
        found, _ = answer(command, tmp_path, *more)
        assert len(found) == 1 and found[0]["group"]["hidden"] == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--deadline-us --deadline-ms is required"),
        (("--deadline-us", "5", "--deadline-ms", "5"), "--deadline-ms: not allowed with argument --deadline-us"),
        (("--deadline-ms", "soon"), "invalid float value: 'soon'"),
        (("--deadline-ms", "inf"), "inf"),
        (("--deadline-us", "0"), "deadline"),
        (("--deadline-us", "-3"), "-3"),
        (("--deadline-us", "nan"), "nan"),
        (("--deadline-us", "inf"), "inf"),
        (("--deadline-us", "soon"), "invalid float value: 'soon'"),
        (("--deadline-us", "5", "--percentile", "100"), "at least 50 and below 100"),
        (("--deadline-us", "5", "--percentile", "0"), "at least 50 and below 100"),
        (("--deadline-us", "5", "--percentile", "49.9"), "49.9 is no percentile"),
        (("--deadline-us", "5", "--percentile", "0.999"), "0.999 is a share; percentiles are in percent: 99.9?"),
        (("--deadline-us", "5", "--percentile", "most"), "'most'"),
        (("--deadline-us", "5", "--confidence", "95"), "0.95"),
        (("--deadline-us", "5", "--confidence", "1"), "0.95"),
        (("--deadline-us", "5", "--confidence", "nan"), "0.95"),
        (("--deadline-us", "5", "--unit", "parsec"), "invalid choice: 'parsec'"),
        (("--deadline-us", "5", "--column", "x"), "no column 'x'"),
    ],
)
def test_mistakes_of_verdict(tmp_path, mistake, arguments, message):
    assert message in mistake("verdict", put(tmp_path / "t.csv", {"latency_us": [1, 2, 3]}), *arguments)


def test_control_characters_of_a_file_never_reach_the_terminal(tmp_path, lab):
    """A name that would clear the screen, set its colour, or begin a new line; JSON escapes them itself."""
    hostile = "\x1b[2J\x1b[31mred\x07\x9b1m"
    columns = {"model": [hostile] * 40 + ["b"] * 40, "latency_us": [*range(100, 180)]}
    path = put(tmp_path / "t.csv", columns)
    for command in (("verdict", path, "--deadline-us", 500), ("outliers", path), ("summarize", path)):
        for form in (("--format", "json"), ()):
            result = lab(*command, "--group-by", "model", *form)
            shown = result.stdout + result.stderr
            assert all(letter.isprintable() or letter == "\n" for letter in shown), shown
            assert "\\x1b[2J" in shown or "\\u001b[2J" in shown
    assert hostile in [group.group["model"] for group in load(path, group_by=["model"])]  # the data are as they were


def test_a_missed_deadline_is_never_hidden_by_a_closed_pipe(tmp_path):
    """`verdict ... | head -1` in a shell with pipefail; the reader is gone before anything is written."""
    path = put(tmp_path / "t.csv", {"latency_us": [300] * 400})
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "lstm_trt", "verdict", path, "--deadline-us", "200", "--percentile", "99"]
    with open(write, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.returncode == 141 and done.stderr == ""
    done = subprocess.run(["bash", "-c", '"$@" | head -1; exit ${PIPESTATUS[0]}', "-", *command], cwd=ROOT)
    assert done.returncode in (1, 141)


def test_a_table_with_thousands_of_columns_is_read_in_one_pass_over_their_names(tmp_path, monkeypatch):
    """It took minutes for 10 000 columns: for each name all names were compared."""
    path = put(tmp_path / "t.csv", {"latency_us": [1, 2, 3], **{f"c{k}": [k] * 3 for k in range(500)}})
    passes, names = [], tables.Table.names.fget
    monkeypatch.setattr(tables.Table, "names", property(lambda table: passes.append(1) or names(table)))
    assert load(path)[0].n == 3 and len(passes) < 50
    (tmp_path / "u.csv").write_text("latency_us,c7,c7,c7\n1,2,3,4\n5,6,7,8\n")
    with pytest.raises(UsageError, match="3 columns named c7"):
        load(tmp_path / "u.csv")


ARGUMENTS = {
    "verdict": ("--deadline-us", 1000),
    "outliers": (),
    "summarize": (),
    "replay": ("--period-us", 1000),
}


def stdin_is(monkeypatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("command", [*ARGUMENTS, "compare", "scaling"])
def test_no_command_answers_without_a_unit(tmp_path, mistake, monkeypatch, command):
    """Milliseconds in files of every kind: nothing states the unit, so nothing is answered."""
    times = np.round(np.random.default_rng(1).normal(1.9, 0.01, 50), 6)
    axes = [32, 64] * 25
    text = "hidden,latency\n" + "".join(f"{size},{time}\n" for size, time in zip(axes, times, strict=True))
    (tmp_path / "t.txt").write_text("\n".join(map(str, times)))
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "t.json").write_text(json.dumps([{"hidden": 32, "latency": time} for time in times]))
    pq.write_table(pa.table({"hidden": axes, "latency": times}), tmp_path / "t.parquet")
    np.save(tmp_path / "t.npy", times)
    np.save(tmp_path / "s.npy", np.rec.fromarrays([axes, times], names=["hidden", "latency"]))
    good = put(tmp_path / "good.csv", {"hidden": [8] * 20, "latency_us": body(20)})
    more = ARGUMENTS.get(command, ())
    for path in (*(path for path in tmp_path.iterdir() if path != good), "-", tmp_path):
        for paths in ((path, good), (good, path)):
            stdin_is(monkeypatch, text.encode())
            message = mistake(command, *paths, *more)
            assert "does not state its unit: use --unit" in message, (path, message)
            assert ("standard input" in message) == (path == "-")


@pytest.mark.parametrize("command", [*ARGUMENTS, "compare", "scaling"])
def test_every_warning_is_in_the_json_too(tmp_path, run, command):
    """A unit that contradicts the name of the column, on both sides of a comparison."""
    columns = {"hidden": [8] * 50, "latency_us": [f"{value * 1e6:.6f}" for value in np.linspace(0.5, 0.6, 50)]}
    paths = [put(tmp_path / f"{name}.csv", columns) for name in "ab"]
    options = ("--unit", "ns", *ARGUMENTS.get(command, ()))
    _, out, err = run(command, *paths, *options, "--format", "json")
    printed = [line.removeprefix("warning: ") for line in err.splitlines()]
    found = json.loads(out)
    assert all(row["warnings"] == printed for row in (found if isinstance(found, list) else [found]))
    for path in paths:
        assert f"{path}: latency_us states the unit us, but is read in ns because of --unit" in printed


#: More bad tables are in `tests/lstm_judge/read/test_rounds.py`; these show that each command reports the errors.
BAD_TABLES = {
    "nan": ("latency_us\n500\nnan\n501\n", "line 3"),
    "mixed": ("hidden,latency_us\n" + "32,500\n64,900\n" * 20, "--group-by hidden"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
@pytest.mark.parametrize("command", [*ARGUMENTS, "compare"])
def test_every_command_reports_a_bad_table_in_one_line(tmp_path, mistake, command, name):
    content, message = BAD_TABLES[name]
    path, good = tmp_path / "t.csv", put(tmp_path / "good.csv", {"latency_us": body(20)})
    path.write_text(content)
    assert message in mistake(command, *((good, path) if command == "compare" else (path, *ARGUMENTS[command])))
    if command == "compare":
        assert message in mistake(command, path, good)


@pytest.mark.parametrize("command", [*ARGUMENTS, "compare"])
def test_every_command_reports_a_missing_path(tmp_path, mistake, command):
    good = put(tmp_path / "good.csv", {"latency_us": body(20)})
    (tmp_path / "nothing").mkdir()
    for path, message in ((tmp_path / "nowhere", "file or folder"), (tmp_path / "nothing", "no recording")):
        assert message in mistake(command, *((good, path) if command == "compare" else (path, *ARGUMENTS[command])))
    files.write(planted(8), tmp_path)
    file = next(tmp_path.glob("*.parquet"))
    paths = (good, file) if command == "compare" else (file, *ARGUMENTS[command])
    assert "--group-by" in mistake(command, *paths, "--group-by", "hidden") or command == "compare"


@pytest.mark.parametrize("command", ["verdict", "outliers", "replay", "compare"])
def test_one_trial_of_this_lab_is_refused(tmp_path, mistake, command):
    files.write(planted(8, rows=4), tmp_path)
    paths = (tmp_path, tmp_path) if command == "compare" else (tmp_path, *ARGUMENTS[command])
    assert "1 trial after warm-up" in mistake(command, *paths)


def test_exit_statuses_of_a_separate_process(tmp_path, lab, refused):
    """The shell gets the exit status, and numbers without a unit get no verdict."""
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
    path = put(tmp_path / "t.csv", {"t": body(100)})
    _, out, err = run("verdict", path, "--unit", unit, "--deadline-us", 1000, "--format", "json")
    assert ("unit" in err) == warned and err == "".join(f"warning: {text}\n" for text in json.loads(out)["warnings"])


# outliers


def with_cluster(n: int, every: int = 50) -> list[str]:
    times = body(n, 400)
    for place in range(7, n, every):
        times[place] = f"{2 * float(times[place]):.3f}"
    return times


def test_outliers_from_elsewhere(tmp_path, answer, run):
    times = with_cluster(2000)
    path = put(tmp_path / "t.csv", {"trial": range(2000), "latency_us": times})
    found, status = answer("outliers", path)
    (cluster,) = found["clusters"]
    assert status == 0 and found["n"] == 2000 and found["group"] == {}
    assert cluster["multiplier"] == pytest.approx(2, abs=0.02) and cluster["count"] == 40
    assert {"share", "share_low", "share_high", "period_ms", "causes"} <= cluster.keys() and found["rounds"][0][
        "segments"
    ]
    low, high = np.percentile(np.array(times, float), [25, 75])
    far = 1.5 * (high - low)
    assert found["outliers"] == sum(not low - far <= float(time) <= high + far for time in times)
    status, out, err = run("outliers", path)
    assert status == 0 and err == "" and "2.0" in out


def test_outliers_of_many_configurations(tmp_path, answer, run):
    columns = {"model": [f"m{place % 10}" for place in range(5000)], "latency_us": body(5000)}
    columns["latency_us"][::10] = with_cluster(500)
    path = put(tmp_path / "t.csv", columns)
    found, _ = answer("outliers", path, "--group-by", "model")
    assert [row["group"] for row in found] == [{"model": f"m{place}"} for place in range(10)]
    assert found[0]["clusters"] and all(row["n"] == 500 for row in found)
    _, out, _ = run("outliers", path, "--group-by", "model")
    assert len(out.splitlines()) == 10 and out.startswith("model=m0: ")


def test_outliers_report_failures(tmp_path, answer, run):
    files.write(planted(8, rows=300), tmp_path)
    files.write_failure(schema.Failure(planted(9).configuration, 0, "memory", "too large"), tmp_path)
    (good, failed), _ = answer("outliers", tmp_path)
    assert (good["n"], failed["n"], failed["clusters"]) == (297, 0, []) and "too large" in failed["failure"]
    assert "failed at memory: too large" in run("outliers", tmp_path)[1]


# summarize


def test_summaries_from_elsewhere(tmp_path, answer, run):
    mixed = [191 * place % 500 + 1 for place in range(500)]  # ascending ones would depend on each other
    path = put(tmp_path / "t.csv", {"hidden": [32, 64] * 500, "took": [k for n in mixed for k in (n, 2 * n)]})
    found, _ = answer("summarize", path, "--column", "took", "--unit", "ms", "--group-by", "hidden")
    medians = [row["percentiles"]["median"] for row in found]
    assert [(row["group"], row["n"], row["statistics"]["max_us"]) for row in found] == [
        ({"hidden": 32}, 500, 500e3),
        ({"hidden": 64}, 500, 1000e3),
    ]
    assert [median["us"] for median in medians] == [250e3, 500e3]
    assert medians[0]["low_us"] < 250e3 < medians[0]["high_us"]
    assert found[0]["percentiles"]["p999"]["high_us"] is None
    options = ("--column", "took", "--unit", "ms", "--group-by", "hidden")
    rows = list(csv.DictReader(io.StringIO(run("summarize", path, *options, "--format", "csv")[1])))
    assert [float(row["max_us"]) for row in rows] == [500e3, 1000e3]
    assert [json.loads(row["group"]) for row in rows] == [{"hidden": 32}, {"hidden": 64}]
    assert "hidden" in run("summarize", path, *options)[1]


def test_summaries_by_round_and_without_figures(tmp_path, answer, mistake):
    path = put(tmp_path / "t.csv", {"round": [0, 1] * 50, "latency_us": range(1, 101)})
    assert [row["n"] for row in answer("summarize", path)[0]] == [100]
    assert [row["n"] for row in answer("summarize", path, "--by-round")[0]] == [50, 50]
    instead = "is a table: omit it, or draw tables with lstm-trt outliers, verdict or scaling --figures"
    assert instead in mistake("summarize", path, "--figures", tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


# compare


def test_one_group_a_side_is_compared_whatever_it_is_called(tmp_path, answer, run):
    a = put(tmp_path / "a.csv", {"latency_us": body(1000)})
    b = put(tmp_path / "b.csv", {"took (ms)": [f"{float(value) / 1e3:.6f}" for value in body(1000, 1000)]})
    found, status = answer("compare", a, b)
    assert (found["median"]["change"], found["group"], status) == ("SLOWER", {}, 1)
    assert (found["a"]["unit"], found["b"]["unit"], found["b"]["column"]) == ("us", "ms", "took (ms)")
    assert answer("compare", b, a)[0]["median"]["change"] == "FASTER"
    assert "SLOWER" in run("compare", a, b)[1]
    found, status = answer("compare", a, put(tmp_path / "c.csv", {"latency_us": body(1000)}))
    assert found["median"]["change"] == "AMBIGUOUS" and found["reasons"]


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
    found, status = answer("compare", a, b, "--group-by", "hidden", "--effect", 0.05)
    by = {row["group"]["hidden"]: row for row in found}
    assert status == 1 and [by[size]["median"]["change"] for size in (32, 64)] == ["SLOWER", "SAME"]
    assert by[96]["median"] is None and by[96]["reasons"] == [f"only in {a}"]
    assert by[128]["median"] is None and by[128]["reasons"] == [f"only in {b}"]
    assert (by[32]["a"]["rounds"], by[32]["effect"]) == (6, 0.05)
    out = run("compare", a, b, "--group-by", "hidden")[1]
    assert f"only in {a}: hidden=96\n" in out and f"only in {b}: hidden=128\n" in out
    c = rounds(tmp_path / "c.csv", {256: 100, 512: 100})
    assert "nothing to compare" in mistake("compare", a, c, "--group-by", "hidden")


def test_miss_rates_and_the_percentile_of_the_tail_are_compared(tmp_path, answer, run, mistake):
    a = rounds(tmp_path / "a.csv", {32: 100, 64: 200})
    b = rounds(tmp_path / "b.csv", {32: 150, 64: 200})
    question = ("compare", a, b, "--group-by", "hidden", "--percentile", "90")
    found, status = answer(*question, "--deadline-ms", 0.12, "--effect", 0.9)
    assert [row["misses"]["change"] for row in found] == ["MORE", "SAME"]
    assert {(row["misses"]["deadline_us"], row["tail"]["percentile"]) for row in found} == {(120, 90)}
    assert [row["median"]["change"] for row in found] == ["SAME", "SAME"] and status == 1
    header, *rows = csv.reader(run(*question, "--deadline-us", 120, "--format", "csv")[1].splitlines())
    assert {"misses", "deadline_us", "miss_rate_ratio", "miss_rate_ratio_low", "miss_rate_ratio_high"} <= {*header}
    assert [row[header.index("misses")] for row in rows] == ["MORE", "SAME"]
    status, text, _ = run(*question, "--deadline-us", 1000)
    assert status == 1 and "misses AMBIGUOUS" in text and "no call of either side missed" in text
    assert "misses" not in run(*question)[1]
    assert "MORE" in run(*question, "--deadline-us", 120, "--format", "md")[1]
    assert "positive" in mistake(*question, "--deadline-us", 0)
    assert "0.999 is a share" in mistake("compare", a, b, "--group-by", "hidden", "--percentile", "0.999")


def recorded(folder, sizes, rounds=1, scale=1.0, **changes):
    """Recordings of several hidden sizes; `changes` are of the configuration."""
    from dataclasses import replace

    folder.mkdir()
    for hidden in sizes:
        for number in range(rounds):
            plain = planted(hidden, number, rows=203)
            rng = np.random.default_rng([hidden, number, *folder.name.encode()])
            latency = (rng.integers(10_000, 10_100, 203) * scale).astype(np.int64)
            columns = {**plain.columns, "latency_ns": latency, "start_ns": np.cumsum(latency)}
            provenance = {**plain.provenance, "started_unix_ns": rng.integers(1, 2**60).item()}
            files.write(schema.Recording(replace(plain.configuration, **changes), number, columns, provenance), folder)
    return folder


@pytest.mark.parametrize("apart", [1, 30])
def test_what_is_on_one_side_only_takes_a_line_a_side(tmp_path, answer, run, apart):
    a = recorded(tmp_path / "a", (8, *range(100, 100 + apart)))
    b = recorded(tmp_path / "b", (8, *range(200, 200 + apart)))
    both = len(run("compare", *(recorded(tmp_path / name, (8,)) for name in "cd"))[1].splitlines())
    lines = run("compare", a, b)[1].splitlines()
    alone = [line for line in lines if line.startswith("only in ")]
    assert len(alone) == 2 and len(lines) <= both + 5
    assert str(a) in alone[0] and "1x100-s4-b1" in alone[0] and "1x200-s4-b1" not in alone[0]
    assert len(answer("compare", a, b)[0]) == 1 + 2 * apart  # JSON has them all


def test_folders_are_matched_by_configuration_and_not_by_version(tmp_path, answer, run):
    a = recorded(tmp_path / "a", (8, 16, 24))
    b = recorded(tmp_path / "b", (16, 8, 32), scale=2, runtime_version="2.0")
    found, _ = answer("compare", a, b)
    assert [(row["group"]["hidden"], row["median"] and row["median"]["change"]) for row in found] == [
        (8, "SLOWER"),
        (16, "SLOWER"),
        (24, None),
        (32, None),
    ]
    assert any("version" in text for text in found[0]["differences"])
    assert "config_id" not in found[0]["group"] and found[0]["group"]["runtime"] == "onnxruntime"
    assert "only in" in run("compare", a, b)[1]


def test_another_runtime_throughout_is_what_is_compared(tmp_path, answer, run):
    a = recorded(tmp_path / "a", (8, 16))
    b = recorded(tmp_path / "b", (8, 16), scale=0.5, runtime="pytorch")
    found, _ = answer("compare", a, b)
    assert [(row["group"]["hidden"], row["median"]["change"]) for row in found] == [(8, "FASTER"), (16, "FASTER")]
    assert "runtime" not in found[0]["group"]
    assert "runtime: onnxruntime in A, pytorch in B" in run("compare", a, b)[1]


def test_rounds_of_one_configuration_are_one_object(tmp_path, answer):
    found, _ = answer("compare", recorded(tmp_path / "a", (8,), 6), recorded(tmp_path / "b", (8,), 6, scale=1.5))
    assert (found["median"]["change"], found["tail"]["change"], found["group"]) == ("SLOWER", "SLOWER", {})
    assert found["a"]["rounds"] == 6


def test_recordings_are_compared_with_a_table(tmp_path, answer, mistake):
    """Options for tables are for the side that is a table."""
    own = recorded(tmp_path / "a", (8,))
    path = put(tmp_path / "t.csv", {"took": np.linspace(30, 31, 200)})
    for sides, change in (((own, path), "SLOWER"), ((path, own), "FASTER")):
        assert answer("compare", *sides, "--unit", "us")[0]["median"]["change"] == change
    assert "remove --unit" in mistake("compare", own, own, "--unit", "us")


def test_a_file_for_each_process_makes_a_comparison_possible(tmp_path, answer):
    for side, median in (("a", 500), ("b", 530)):
        (tmp_path / side).mkdir()
        for number in range(5):
            times = np.linspace(median, median + 1, 200) + number
            (tmp_path / side / f"{number}.txt.gz").write_bytes(gzip.compress("\n".join(map(str, times)).encode()))
    found, _ = answer("compare", tmp_path / "a", tmp_path / "b", "--unit", "us", "--one-group")
    assert (found["median"]["change"], found["a"]["rounds"], found["b"]["rounds"]) == ("SLOWER", 5, 5)
    assert [row["group"] for row in answer("compare", tmp_path / "a", tmp_path / "b", "--unit", "us")[0]] == [
        {"file": str(number)} for number in range(5)
    ]


def test_a_failure_on_one_side_is_reported(tmp_path, answer):
    a, b = recorded(tmp_path / "a", (8, 16)), recorded(tmp_path / "b", (8,))
    files.write_failure(schema.Failure(planted(16, rows=203).configuration, 0, "memory", "too large"), b)
    found, _ = answer("compare", a, b)
    assert found[0]["median"]["change"] == "AMBIGUOUS"
    assert found[1]["median"] is None and "too large" in found[1]["reasons"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--confidence", "95"), "0.95"),
        (("--effect", "-1"), "effect"),
        (("--effect", "nan"), "effect"),
        (("--effect", "much"), "invalid float value"),
    ],
)
def test_mistakes_of_compare(tmp_path, mistake, arguments, message):
    path = put(tmp_path / "t.csv", {"latency_us": body(100)})
    assert message in mistake("compare", path, path, *arguments)


# replay


def test_a_replay_makes_late_calls_late_again(tmp_path, answer, run):
    """100 us each, one of 350 us, with a period of 200 us: the next call starts 150 us late, the following 50 us."""
    times = [100] * 20
    times[10] = 350
    path = put(tmp_path / "t.csv", {"latency_us": times})
    found, status = answer("replay", path, "--period-us", 200)
    assert status == 0 and (found["n"], found["group"]) == (20, {})
    assert (found["closed"]["max_us"], found["replayed"]["max_us"]) == (350, 350)
    assert (found["closed"]["misses"], found["replayed"]["misses"]) == (1, 2)
    assert found["queued"] == 2 and found["worst_wait_us"] == 150
    assert answer("replay", path, "--period-us", 200, "--deadline-us", 140)[0]["replayed"]["misses"] == 3
    assert "200 us" in run("replay", path, "--period-us", 200)[1]


@pytest.mark.parametrize("period", [50, 0, -1, "nan", "inf"])
def test_mistakes_of_replay(tmp_path, mistake, period):
    mistake("replay", put(tmp_path / "t.csv", {"latency_us": [100] * 20}), "--period-us", period)


def test_a_replay_of_many_reports_those_that_are_impossible(tmp_path, answer, run, mistake):
    path = put(tmp_path / "t.csv", {"hidden": [32, 64] * 50, "latency_us": [100, 900] * 50})
    found, _ = answer("replay", path, "--period-us", 500, "--group-by", "hidden")
    assert found[0]["replayed"]["misses"] == 0 and "failure" in found[1] and found[1]["group"] == {"hidden": 64}
    assert "hidden=64" in run("replay", path, "--period-us", 500, "--group-by", "hidden")[1]
    mistake("replay", path, "--period-us", 50, "--group-by", "hidden")


def test_pages_of_outliers_have_periods_and_causes_and_their_names_come_last(tmp_path, run, monkeypatch):
    """Pages need periods and causes, which the short form of long lists does not compute."""
    from lstm_judge.plots import page
    from lstm_judge.plots.style import Picture

    drawn = []
    real = page.draw_outliers
    monkeypatch.setattr(page, "draw_outliers", lambda *given, **more: drawn.append(given) or real(*given, **more))
    monkeypatch.setattr(page, "outliers_page", lambda *_: Picture())  # tests/lstm_judge/plots looks at pages
    latency = np.full(600, 100_000) + np.arange(600) % 7
    latency[::30] *= 2
    path = put(tmp_path / "times.csv", {"configuration": np.arange(600) % 10, "latency_ns": latency})
    status, out, err = run("outliers", path, "--group-by", "configuration", "--figures", tmp_path / "pages")
    assert status == 0 and len(out.splitlines()) == 10  # one line each: too many for the long form
    ((groups, findings, _),) = drawn
    assert len(groups) == len(findings) == 10 and all(row.events is not None for row in findings)
    assert len(list((tmp_path / "pages").glob("*.png"))) == len(err.splitlines()) == 10
