"""An answer has the text and JSON of its command, and a DataFrame."""

from __future__ import annotations

import csv
import html
import json
import re

import numpy as np
import pandas as pd
import pytest

from lstm_judge.compare.compare import compare
from lstm_judge.outcomes import Outcome
from lstm_judge.outliers.outliers import outliers
from lstm_judge.read.frames import html_table
from lstm_judge.read.rounds import Group, NoTrials, Round
from lstm_judge.read.runs import as_runs
from lstm_judge.replay import replay
from lstm_judge.scaling.scaling import scaling
from lstm_judge.summarize.summarize import summarize
from lstm_judge.verdict.verdict import verdict
from lstm_trt.config.errors import UsageError
from tests.conftest import ROOT, rest_is_heavy
from tests.lstm_judge.read.test_runs import recorded_with

CONFIRM, LAYERS = ROOT / "data" / "epyc" / "confirm", ROOT / "data" / "epyc" / "layers"


@pytest.mark.parametrize(
    ("command", "answer"),
    rest_is_heavy(
        [
            (["verdict", CONFIRM, "--deadline-us", "1000"], lambda: verdict(CONFIRM, 1000)),
            (["outliers", CONFIRM], lambda: outliers(CONFIRM)),
            (["summarize", CONFIRM], lambda: summarize(CONFIRM)),
            (["compare", CONFIRM, CONFIRM], lambda: compare(CONFIRM, CONFIRM)),
            (["compare", CONFIRM, CONFIRM, CONFIRM], lambda: compare(CONFIRM, CONFIRM, CONFIRM)),
            (["replay", CONFIRM, "--period-us", "2000"], lambda: replay(CONFIRM, 2000)),
            (["scaling", LAYERS], lambda: scaling(LAYERS)),
        ],
        lambda command, _: command[0] in ("verdict", "summarize", "scaling"),
    ),
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_answer_has_the_text_and_json_of_its_command(lab, command, answer):
    found = answer()
    assert f"{found}\n" == lab(*command).stdout
    assert found.as_dict() == json.loads(lab(*command, "--format", "json").stdout)
    assert len(found.frame) >= len(found) > 0
    header, *rows = csv.reader(lab(*command, "--format", "csv").stdout.splitlines())
    assert len(rows) == len(found.frame) and all(len(row) == len(header) for row in rows)
    head, line, *lines = lab(*command, "--format", "md").stdout.splitlines()
    assert set(line) == set("| -") and len(lines) >= len(found)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in (head, *lines)} == {line.count("|")}


def test_several_comparisons_have_the_worst_exit_status():
    rounds = {factor: [group("a", *(factor * np.linspace(10, 10.1, 200)))] for factor in (1, 0.5, 2)}
    assert [compare(rounds[1], rounds[factor]).exit_status for factor in (0.5, 2)] == [3, 1]
    both = compare(rounds[1], rounds[0.5], rounds[2], rounds[0.5])
    assert both.exit_status == 1 and len(both) == 3 and both[1].runs is both[0].runs


@pytest.mark.parametrize(
    ("answer", "sides"),
    [
        (lambda runs: verdict(runs, 100), 1),
        (outliers, 1),
        (summarize, 1),
        (lambda runs: replay(runs, 100), 1),
        (scaling, 1),
        (lambda runs: compare(runs, runs), 2),
    ],
    ids=["verdict", "outliers", "summarize", "replay", "scaling", "compare"],
)
def test_every_answer_says_once_that_its_recordings_have_several_versions(answer, sides):
    runs = as_runs([recorded_with("1.0", 8), recorded_with("2.0", 16)])
    (line,) = runs.remarks
    found = answer(runs)
    assert found.warnings.count(line) == sides
    objects = found.as_dict()
    assert all(item["warnings"].count(line) == sides for item in (objects if isinstance(objects, list) else [objects]))


def group(name: str, *latencies_us: float) -> Group:
    return Group(name, (Round.of(1000 * np.array(latencies_us)),), {"model": name})


FAILED = NoTrials("memory", "too large")


def test_a_configuration_that_failed_has_its_place_in_each_answer():
    groups = [group("a", *[5.0] * 50), Group("b", (), {"model": "b"}, failure=FAILED)]
    verdicts = verdict(groups, 100, "90")
    for found in (verdicts, outliers(groups), replay(groups, 10)):
        assert "failed at memory: too large" in str(found)
        assert [item["group"]["model"] for item in found.as_dict()] == ["a", "b"]
    assert verdicts.exit_status == 3
    assert [answer.outcome for answer in verdicts] == [Outcome.MET, Outcome.NOT_ENOUGH_EVIDENCE]
    assert [row.failure for row in summarize(groups)] == [None, FAILED]


def test_an_answer_of_many_configurations_is_one_line_each():
    groups = [group(f"model {number}", *[5.0] * 50) for number in range(9)]
    assert len(str(outliers(groups)).splitlines()) == 9
    assert len(str(verdict(groups, 100)).splitlines()) == 11  # the question, and the numbers of each outcome


@pytest.mark.parametrize("number", [1, 2, 20, 23])
@pytest.mark.parametrize(
    "answer",
    [
        as_runs,
        lambda runs: verdict(runs, 100),
        outliers,
        summarize,
        lambda runs: replay(runs, 1000),
        lambda runs: compare(runs, runs),
    ],
    ids=["runs", "verdict", "outliers", "summarize", "replay", "compare"],
)
def test_in_a_notebook_an_answer_is_a_sentence_above_its_table(answer, number):
    """Names are text, not markup; the first 20 configurations have a row, and the others are counted."""
    groups = [group(f"<b>{place}</b> {'long ' * 30}", *[1000 / 3 + place] * 50) for place in range(number)]
    found = answer(groups)
    assert len(repr(found)) < 300 and "\n" not in repr(found)
    shown = found._repr_html_()
    assert html.escape(found.sentence) in shown and "<b>" not in shown
    names = re.findall(r"&lt;b&gt;(\d+)&lt;/b&gt; (?:long )*long", shown.partition("<tbody>")[2])
    assert len(names) == len(set(names)) == min(number, 20)
    assert ("... 3 more rows" in shown) == (number == 23)
    assert "333.3333" not in shown


@pytest.mark.parametrize("number", [1, 3])
def test_in_a_notebook_no_table_has_more_than_eight_columns(number):
    runs = as_runs([recorded_with("1.0", hidden) for hidden in (8, 16, 24)[:number]])
    answers = [runs, verdict(runs, 100), outliers(runs), summarize(runs), replay(runs, 100, 12), compare(runs, runs)]
    for found in answers:
        assert 2 <= found._repr_html_().count("<th>") <= 8, found


def test_what_is_no_column_stands_above_the_table():
    """Of more than eight columns: first what is the same in all rows, then the least important ones."""
    frame = pd.DataFrame({f"of_{letter}": [letter, f"{letter}2"] for letter in "abcdefghij"} | {"one": 1})
    shown = html_table(["a < b"], frame, ["none", "of_d", "of_a", "of_b"])
    lines = shown.removeprefix("<p>").partition("</p>")[0].split("<br>")
    assert lines == ["a &lt; b", "the same in all rows: one 1", "not shown: of_d, of_a"]
    assert re.findall("<th>(.*?)</th>", shown) == [f"of {letter}" for letter in "bcefghij"]
    assert "not shown" not in html_table([], frame.iloc[:, 2:], ["of_c"])
    single = html_table([], frame[:1], ["of_a"])
    assert re.findall("<th>(.*?)</th>", single) == ["column", "value"] and single.count("<tr>") == 11


def test_names_stay_on_one_line_and_a_column_with_a_text_begins_at_the_left():
    frame = pd.DataFrame({"network": ["2x128-s64-b1 on c", "b"], "because": ["40 letters " * 4, "short"]})
    shown = html_table([], frame)
    line, text = (f'<div style="{style}">'.__add__ for style in ("white-space: nowrap", "text-align: left"))
    for cell in (line("2x128-s64-b1 on c<"), line("b<"), text("short<"), text("because<"), text("40 letters 40")):
        assert cell in shown


def test_the_sentence_of_several_configurations_says_their_results():
    groups = [group(name, *[us] * 5000) for name, us in (("a", 50.0), ("b", 60.0), ("c", 500.0))]
    assert "of 3 configurations 2 met it, 1 missed it" in verdict(groups, 100, "99").sentence
    assert "median 50.0 to 500.0 us, maximum 500.0 us" in summarize(groups).sentence
    assert outliers(groups).sentence.startswith("3 configurations: 0 with clusters")
    assert "median 3 AMBIGUOUS; tail 3 AMBIGUOUS" in compare(groups, groups).sentence


def test_no_frame_has_numbers_as_objects():
    """What is not known is NaN or <NA>, also in a column of which nothing is known, and beside a failure."""
    groups = [group("a", *[5.0] * 50, 7.0), Group("b", (), {"model": "b"}, failure=FAILED)]
    answers = [verdict(groups, 4, "90"), verdict(groups, 100), outliers(groups), summarize(groups), replay(groups, 100)]
    frames = [found.frame for found in (as_runs(groups), *answers, compare(groups, groups, deadline_us=100))]
    for frame in (*frames, outliers(groups).clusters, scaling(LAYERS).frame, outliers(CONFIRM).clusters):
        for name in frame.select_dtypes(object):
            assert any(not isinstance(cell, int | float) and cell is not None for cell in frame[name]), name


@pytest.mark.parametrize("latencies_us", [(), (5.0,)])
def test_fewer_than_two_trials_are_refused(latencies_us):
    with pytest.raises(UsageError):
        verdict(group("a", *latencies_us), 100)
