"""`verdict`, `outliers`, `summarize`, `compare` and `replay` on the command line: results, formats, exit statuses.

What they refuse is in `tests/golden/refusals.json`, and what they print of recordings beside it.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lstm_judge.read import tables
from lstm_judge.read.runs import load
from lstm_trt.config.errors import UsageError
from lstm_trt.store import files, schema
from tests.conftest import ROOT
from tests.lstm_trt.store.test_store import planted


def body(n: int, median: float = 500.0) -> list[str]:
    return [f"{value:.3f}" for value in np.random.default_rng(n).normal(median, median / 100, n)]


def write_failure(folder, hidden: int) -> None:
    configuration = planted(hidden, rows=203).configuration
    files.write_failure(schema.Failure(configuration, 0, "memory", "too large"), folder)


# which configurations meet a deadline


@pytest.fixture
def folder(tmp_path):
    """Two networks of about 15 us with 400 trials, one with 20, and a failure."""
    for hidden, rows in ((8, 403), (16, 403), (24, 23)):
        files.write(planted(hidden, rows=rows), tmp_path)
    write_failure(tmp_path, 32)
    return tmp_path


def test_a_summary_ends_with_what_meets_the_deadline(folder, run):
    """And it is as without one; 20 trials cannot prove even p99."""
    for form in ("text", "json", "csv"):
        command = ("summarize", folder, "--format", form)
        _, plain, _ = run(*command)
        status, out, errors = run(*command, "--deadline-us", 21)
        assert out.startswith(plain) and status == 0 and (errors == "") == (form == "text")
        *_, counts, largest, undecided = (out[len(plain) :] or errors).splitlines()
        assert "2 met it, 1 had too few trials to say, 1 failed" in counts and "1x16-s4-b1" in largest
        assert "1x24-s4-b1" in undecided and undecided.endswith("--trials 299 --out new-recordings")


@pytest.mark.parametrize(
    ("sizes", "deadline_us", "expected"),
    [((8,), 21, "The one configuration met it"), ((8, 16), 21, "2 met it"), ((8, 16), 11, "2 missed it")],
)
def test_a_summary_of_a_selection_ends_with_what_meets_the_deadline(folder, run, sizes, deadline_us, expected):
    _, out, _ = run("summarize", folder, "--hidden", *sizes, "--deadline-us", deadline_us)
    assert expected in "".join(out.splitlines()[-2:])


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
def test_the_verdict_on_clean_trials_from_elsewhere(table, answer, run, n, verdict, status):
    command = ("verdict", table({"latency_us": body(n)}), "--deadline-us", 1000)
    found, exited = answer(*command)
    assert (found["outcome"], exited, found["n"], found["misses"]) == (verdict, status, n, 0)
    assert found["question"] == {"deadline_us": 1000, "percentile": 99.9, "confidence": 0.95, "burst_length": 1}
    assert (found["group"], found["unit"], found["column"], found["warnings"]) == ({}, "us", "latency_us", [])
    exited, out, errors = run(*command)
    assert out.startswith(verdict) and (exited, errors) == (status, "")


@pytest.mark.parametrize(("unit", "scale"), [("ns", 1000), ("us", 1), ("ms", 1e-3), ("s", 1e-6)])
def test_a_time_at_the_deadline_is_no_miss_in_any_unit(table, answer, unit, scale):
    """1.1 ms read as ms is 1100 us; 1.100001 ms is a miss."""
    deadlines = {1100: "1.1", 1000.3: "1.0003", 700.1: "0.7001", 333.3: "0.3333", 1.1: "1.1e-3"}
    for deadline, in_ms in deadlines.items():
        times = [f"{value * scale:.12g}" for value in [deadline] * 20 + [deadline * 0.9] * 10 + [deadline * 1.00001]]
        path = table({"took": times})
        for question in (("--deadline-us", deadline), ("--deadline-ms", in_ms)):
            found, _ = answer("verdict", path, "--column", "took", "--unit", unit, *question)
            assert (found["misses"], found["question"]["deadline_us"]) == (1, deadline), (question, unit)


def test_the_verdict_on_recordings_of_this_lab(tmp_path, answer, run):
    """A folder is a list, a file one object."""
    met, failed = ("MET", 3097), ("NOT ENOUGH EVIDENCE", 0)
    path = files.write(planted(8, rows=3100), tmp_path)
    write_failure(tmp_path, 9)
    found, status = answer("verdict", tmp_path, "--deadline-us", 20)
    assert ([(row["outcome"], row["n"]) for row in found], status) == ([met, failed], 3)
    assert "too large" in str(found[1]["reasons"])
    assert "failed at memory" in run("verdict", tmp_path, "--deadline-us", 20)[1]
    for file, expected in ((path, (*met, 0)), (next(tmp_path.glob("*.failure.json")), (*failed, 3))):
        found, status = answer("verdict", file, "--deadline-us", 20)
        assert (found["outcome"], found["n"], status) == expected and found["group"] == {}


def test_control_characters_of_a_file_never_reach_the_terminal(table, run):
    """A name that would clear the screen, set its colour, or begin a new line; JSON escapes them itself."""
    hostile = "\x1b[2J\x1b[31mred\x07\x9b1m"
    path = table({"model": [hostile] * 40 + ["b"] * 40, "latency_us": range(100, 180)})
    for command in (("verdict", "--deadline-us", 500), ("outliers",), ("summarize",)):
        for form in ("json", "text"):
            shown = "".join(run(*command, path, "--group-by", "model", "--format", form)[1:])
            assert all(letter.isprintable() or letter == "\n" for letter in shown), shown
            assert "\\x1b[2J" in shown or "\\u001b[2J" in shown
    assert hostile in [group.group["model"] for group in load(path, group_by=["model"])]  # the data are as they were


def test_a_missed_deadline_is_never_hidden_by_a_closed_pipe(table):
    """`verdict ... | head -1` in a shell with pipefail; the reader is gone before anything is written."""
    path = table({"latency_us": [300] * 400})
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "lstm_trt", "verdict", path, "--deadline-us", "200", "--percentile", "99"]
    with open(write, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.returncode == 141 and done.stderr == ""
    done = subprocess.run(["bash", "-c", '"$@" | head -1; exit ${PIPESTATUS[0]}', "-", *command], cwd=ROOT)
    assert done.returncode in (1, 141)


def test_a_table_with_thousands_of_columns_is_read_in_one_pass_over_their_names(tmp_path, table, monkeypatch):
    """It took minutes for 10 000 columns: for each name all names were compared."""
    path = table({"latency_us": [1, 2, 3], **{f"c{k}": [k] * 3 for k in range(500)}})
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
    "compare": (),
    "scaling": (),
}


@pytest.mark.parametrize("command", ARGUMENTS)
def test_no_command_answers_without_a_unit(tmp_path, table, refused, monkeypatch, command):
    """Milliseconds in files of every kind: nothing states the unit, so nothing is answered."""
    good = table({"hidden": [8] * 20, "latency_us": body(20)}, "good.csv")
    folder = tmp_path / "without"
    folder.mkdir()
    rows = pd.DataFrame({"hidden": [32, 64] * 25, "latency": np.random.default_rng(1).normal(1.9, 0.01, 50).round(6)})
    rows["latency"].to_csv(folder / "t.txt", index=False, header=False)
    rows.to_csv(folder / "t.csv", index=False)
    rows.to_csv(folder / "t.csv.gz", index=False)
    rows.to_json(folder / "t.json", orient="records")
    rows.to_parquet(folder / "t.parquet")
    np.save(folder / "t.npy", rows["latency"])
    np.save(folder / "s.npy", rows.to_records(index=False))
    for path in (*folder.iterdir(), "-", folder):
        for paths in ((path, good), (good, path)):
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((folder / "t.csv").read_bytes())))
            message = refused(command, *paths, *ARGUMENTS[command])
            assert "does not state its unit: use --unit" in message, (path, message)
            assert ("standard input" in message) == (path == "-")


@pytest.mark.parametrize("command", ARGUMENTS)
def test_every_warning_is_in_the_json_too(table, run, command):
    """A unit that contradicts the name of the column, on both sides of a comparison."""
    columns = {"hidden": [8] * 50, "latency_us": [f"{value * 1e6:.6f}" for value in np.linspace(0.5, 0.6, 50)]}
    paths = [table(columns, f"{name}.csv") for name in "ab"]
    _, out, err = run(command, *paths, "--unit", "ns", *ARGUMENTS[command], "--format", "json")
    printed = [line.removeprefix("warning: ") for line in err.splitlines()]
    found = json.loads(out)
    assert all(row["warnings"] == printed for row in (found if isinstance(found, list) else [found]))
    for path in paths:
        assert f"{path}: latency_us states the unit us, but is read in ns because of --unit" in printed


COMMANDS = [command for command in ARGUMENTS if command != "scaling"]

#: More of them are in `tests/lstm_judge/read/test_rounds.py`; these show that each command reports the errors.
BAD_TABLES = (
    ("latency_us\n500\nnan\n501\n", "line 3"),
    ("hidden,latency_us\n" + "32,500\n64,900\n" * 20, "--group-by hidden"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reports_in_one_line_what_it_cannot_read(tmp_path, table, refused, command):
    good, bad, nothing = table({"latency_us": body(20)}), tmp_path / "bad.csv", tmp_path / "nothing"
    nothing.mkdir()
    for content, message in BAD_TABLES:
        bad.write_text(content)
        for path, expected in ((bad, message), (nothing, "no recording")):
            for paths in ((good, path), (path, good)) if command == "compare" else ((path,),):
                assert expected in refused(command, *paths, *ARGUMENTS[command])


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "summarize"])
def test_one_trial_of_this_lab_is_refused(tmp_path, refused, command):
    files.write(planted(8, rows=4), tmp_path)
    paths = [tmp_path] * (2 if command == "compare" else 1)
    assert "1 trial after warm-up" in refused(command, *paths, *ARGUMENTS[command])


def test_exit_statuses_of_a_separate_process(tmp_path, lab, refused):
    """The shell gets the exit status, and numbers without a unit get no verdict."""
    path = tmp_path / "times.txt"
    path.write_text("\n".join(body(2995)))
    command = ("verdict", path, "--deadline-us", 1000)
    assert "--unit" in refused(*command)
    assert lab(*command, "--unit", "us").returncode == 0
    assert lab(*command, "--unit", "ms", process=True).returncode == 1
    assert lab(*command, "--unit", "us", "--percentile", 99.99).returncode == 3


@pytest.mark.parametrize(("unit", "warned"), [("us", False), ("ms", True), ("ns", True)])
def test_a_median_far_from_the_deadline_is_warned_of(table, run, unit, warned):
    path = table({"t": body(100)})
    _, out, err = run("verdict", path, "--unit", unit, "--deadline-us", 1000, "--format", "json")
    assert ("unit" in err) == warned and err == "".join(f"warning: {text}\n" for text in json.loads(out)["warnings"])


# outliers and summarize


def test_outliers_report_failures(tmp_path, answer):
    files.write(planted(8, rows=300), tmp_path)
    write_failure(tmp_path, 9)
    (good, failed), _ = answer("outliers", tmp_path)
    assert (good["n"], failed["n"], failed["clusters"]) == (297, 0, []) and "too large" in failed["failure"]


def test_a_table_in_csv_has_the_groups_and_comparisons_of_the_json(answer, run):
    """The JSON is golden."""
    before, after = (f"tests/golden/{name}.csv" for name in ("before", "after"))
    found, _ = answer("summarize", before, "--group-by", "hidden")
    rows = csv.DictReader(io.StringIO(run("summarize", before, "--group-by", "hidden", "--format", "csv")[1]))
    for row, line in zip(found, rows, strict=True):
        assert (json.loads(line["group"]), float(line["max_us"])) == (row["group"], row["statistics"]["max_us"])
    question = ("compare", before, after, "--group-by", "hidden", "--deadline-us", 120)
    rows = list(csv.DictReader(io.StringIO(run(*question, "--format", "csv")[1])))
    assert [row["misses"] for row in rows] == ["MORE", "SAME", "", ""]
    assert [row["not_compared"] for row in rows] == ["", "", f"only in {before}", f"only in {after}"]
    assert {"deadline_us", "miss_rate_ratio", "miss_rate_ratio_low", "miss_rate_ratio_high"} <= rows[0].keys()


# compare


def test_groups_of_which_none_is_on_both_sides_are_refused(table, refused):
    paths = [
        table({"hidden": sizes * 9, "latency_us": range(100, 118)}, f"{sizes[0]}.csv") for sizes in ([8, 16], [9, 17])
    ]
    assert "nothing to compare" in refused("compare", *paths, "--group-by", "hidden")


@pytest.fixture
def recorded(tmp_path):
    """Recordings of several hidden sizes in a folder of this name; `changes` are of the configuration."""

    def write(name: str, sizes, rounds=1, scale=1.0, **changes):
        folder = tmp_path / name
        folder.mkdir()
        for hidden in sizes:
            for number in range(rounds):
                plain = planted(hidden, number, rows=203)
                rng = np.random.default_rng([hidden, number, *name.encode()])
                latency = (rng.integers(10_000, 10_100, 203) * scale).astype(np.int64)
                columns = {**plain.columns, "latency_ns": latency, "start_ns": np.cumsum(latency)}
                provenance = {**plain.provenance, "started_unix_ns": rng.integers(1, 2**60).item()}
                configuration = replace(plain.configuration, **changes)
                files.write(schema.Recording(configuration, number, columns, provenance), folder)
        return folder

    return write


def test_what_is_on_one_side_only_takes_a_line_a_side(recorded, answer, run):
    a, b = recorded("a", (8, *range(100, 130))), recorded("b", (8, *range(200, 230)))
    alone = [line for line in run("compare", a, b)[1].splitlines() if line.startswith("only in ")]
    assert len(alone) == 2 and str(a) in alone[0] and "1x100-s4-b1" in alone[0] and "1x200-s4-b1" not in alone[0]
    assert len(answer("compare", a, b)[0]) == 61  # JSON has them all


#: What side B has besides its speed -> what the JSON says of each hidden size.
SIDES = {
    "another version": (
        ((16, 8, 32), {"scale": 2, "runtime_version": "2.0"}),
        {8: "SLOWER", 16: "SLOWER", 24: None, 32: None},
    ),
    "another runtime throughout": (
        ((8, 16, 24), {"scale": 0.5, "runtime": "pytorch"}),
        dict.fromkeys((8, 16, 24), "FASTER"),
    ),
}


@pytest.mark.parametrize("name", SIDES)
def test_folders_are_matched_by_configuration_but_for_what_differs_throughout(recorded, answer, run, name):
    (sizes, changes), expected = SIDES[name]
    a, b = recorded("a", (8, 16, 24)), recorded("b", sizes, **changes)
    found, _ = answer("compare", a, b)
    assert {row["group"]["hidden"]: row["median"] and row["median"]["change"] for row in found} == expected
    assert ("runtime" in found[0]["group"]) == ("runtime" not in changes) and "config_id" not in found[0]["group"]
    assert name.split()[1] in str(found[0]["differences"])
    assert ("runtime: onnxruntime in A, pytorch in B" in run("compare", a, b)[1]) == ("runtime" in changes)


def test_recordings_are_compared_with_a_table(table, recorded, answer):
    """Options for tables are for the side that is a table."""
    own, path = recorded("a", (8,)), table({"took": np.linspace(30, 31, 200)})
    for sides, change in (((own, path), "SLOWER"), ((path, own), "FASTER")):
        assert answer("compare", *sides, "--unit", "us")[0]["median"]["change"] == change


def test_a_file_for_each_process_makes_a_comparison_possible(tmp_path, answer):
    sides = [tmp_path / "a", tmp_path / "b"]
    for side, median in zip(sides, (500, 530), strict=True):
        side.mkdir()
        for number in range(5):
            times = np.linspace(median, median + 1, 200) + number
            (side / f"{number}.txt.gz").write_bytes(gzip.compress("\n".join(map(str, times)).encode()))
    found, _ = answer("compare", *sides, "--unit", "us", "--one-group")
    assert (found["median"]["change"], found["a"]["rounds"], found["b"]["rounds"]) == ("SLOWER", 5, 5)
    each, _ = answer("compare", *sides, "--unit", "us")
    assert [row["group"] for row in each] == [{"file": str(number)} for number in range(5)]


def test_a_failure_on_one_side_is_reported(recorded, answer):
    a, b = recorded("a", (8, 16)), recorded("b", (8,))
    write_failure(b, 16)
    (both, failed), _ = answer("compare", a, b)
    assert both["median"]["change"] == "AMBIGUOUS"
    assert failed["median"] is None and "too large" in failed["reasons"][0]


def test_pages_of_outliers_have_periods_and_causes_and_their_names_come_last(tmp_path, table, run, monkeypatch):
    """Pages need periods and causes, which the short form of long lists does not compute."""
    from lstm_judge.plots import page
    from lstm_judge.plots.style import Picture

    drawn = []
    real = page.draw_outliers
    monkeypatch.setattr(page, "draw_outliers", lambda *given, **more: drawn.append(given) or real(*given, **more))
    monkeypatch.setattr(page, "outliers_page", lambda *_: Picture())  # tests/lstm_judge/plots looks at pages
    latency = np.full(600, 100_000) + np.arange(600) % 7
    latency[::30] *= 2
    path = table({"configuration": np.arange(600) % 10, "latency_ns": latency})
    status, out, err = run("outliers", path, "--group-by", "configuration", "--figures", tmp_path / "pages")
    assert status == 0 and len(out.splitlines()) == 10  # one line each: too many for the long form
    ((groups, findings, _),) = drawn
    assert len(groups) == len(findings) == 10 and all(row.events is not None for row in findings)
    assert len(list((tmp_path / "pages").glob("*.png"))) == len(err.splitlines()) == 10
