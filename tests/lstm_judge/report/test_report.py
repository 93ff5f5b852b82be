"""What a report says, and what its files hold.

`python -m tests.lstm_judge.report.test_report` rewrites the golden texts in `golden/`; use it after an intended change,
and review the differences.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from contextlib import chdir
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pytest

import lstm_trt as lab
from lstm_judge.outcomes import Outcome
from lstm_judge.report import html, junit, markdown
from lstm_judge.report.text import basis
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.verdict import judge
from lstm_trt.config.shape import LstmShape
from lstm_trt.store import files
from lstm_trt.store.locks import folder_lock
from tests.conftest import ROOT
from tests.lstm_judge.report.conftest import (
    DEADLINE_US,
    HOSTILE,
    failure,
    record_campaign,
    record_old_and_new,
    record_on_two_machines,
    recording,
)

QUESTION = (DEADLINE_US, "99")
GOLDEN = Path(__file__).parent / "golden"


class Page(HTMLParser):
    """The elements of a page by name, their attributes, and the text of each."""

    VOID = ("meta", "br", "input", "img")

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict, list[str]]] = []
        self._open: list[tuple[str, dict, list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), []))
        if tag not in self.VOID:
            self._open.append(self.found[-1])

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, _, texts in self._open:
            texts.append(data)

    def all(self, tag: str, **wanted: str) -> list[tuple[dict, str]]:
        return [
            (attributes, "".join(texts))
            for name, attributes, texts in self.found
            if name == tag and wanted.items() <= attributes.items()
        ]

    @property
    def data(self) -> dict:
        return json.loads(self.all("script", type="application/json")[0][1])


@pytest.fixture(scope="module")
def report(runs):
    return lab.report(runs, *QUESTION)


@pytest.fixture(scope="module")
def text(report):
    return html.page(report)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.fixture(scope="module")
def hostile_report(hostile):
    return lab.report(hostile, *QUESTION)


def test_the_answer_is_that_of_verdict(runs, report):
    verdicts = lab.verdict(runs, *QUESTION)
    assert [each.outcome for each in report.verdicts] == [each.outcome for each in verdicts]
    counts = [sum(each.outcome == outcome for each in verdicts if each.n) for outcome in Outcome]
    assert list(report.counts().values()) == [*counts, 2] and min(counts) > 0  # one of each runtime failed
    header, rows = report.overview
    for column, (name, number) in enumerate(report.counts().items(), start=1):
        assert header[column] == name and sum(int(row[column]) for row in rows) == number
    assert str(report).startswith(f"{verdicts.sentence}.")
    assert report.exit_status == verdicts.exit_status == 1
    assert report.as_dict()["verdicts"] == verdicts.as_dict()


def test_the_largest_network_is_the_one_with_most_operations_that_meets_the_deadline(report):
    """16 x 8 takes 160 us on slow and 80 us on fast; 32 x 4 the same, with more operations."""
    largest = {row[0].split(",")[0]: row[-1].split(" ")[0] for row in report.overview[1] if "fp16" not in row[0]}
    assert largest == {"slow": "1x16-s4-b1", "fast": "1x32-s4-b1"}


#: How a report is shown in text: ending of its golden file -> function.
FORMATS = {"txt": str, "md": markdown.page, "xml": junit.page}


def said() -> dict[str, str]:
    """Golden file -> what it holds: reports of a campaign, of two machines, with a baseline, and of one table.

    The recordings are made in the working directory, so that their names are the same everywhere.
    """
    here, machines, table = Path(), Path("machines"), Path("times.csv")
    record_campaign(here)
    machines.mkdir()
    record_on_two_machines(machines)
    old, new = record_old_and_new(here)
    table.write_text("latency_us\n" + "\n".join(str(100 + 7 * trial % 40) for trial in range(80)))
    reports = {
        "campaign": lab.report(here, *QUESTION),
        "undecided": replace(lab.report(here, DEADLINE_US, "99.9"), undecided="skipped"),
        "machines": lab.report(machines, *QUESTION),
        "baseline": lab.report(new, 1000, "99", baseline=old, undecided="skipped"),
        "met": lab.report(table, 1000, "90"),
        "missed": lab.report(table, 50, "90"),
        "neither": lab.report(table, 133, "90"),
    }
    return {f"{name}.{ending}": write(report) for name, report in reports.items() for ending, write in FORMATS.items()}


def test_a_report_says_what_it_did(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said() == {path.name: path.read_text() for path in GOLDEN.iterdir()}


def test_a_later_recording_of_the_largest_network_confirms_it_or_not(tmp_path):
    for hidden in (8, 16):
        files.write(recording(LstmShape(1, hidden, 4), "fast", 100.0), tmp_path)
    for median_us, outcome in ((100.0, Outcome.MET), (200.0, Outcome.MISSED)):
        later = recording(LstmShape(1, 16, 4), "fast", median_us, trials=380, started=2)
        files.write(later, tmp_path)
        found = lab.report(tmp_path, *QUESTION)
        assert f"1x16-s4-b1 (selected from 2, a later recording of it: {outcome})" in str(found)


def test_what_is_unfinished_is_said_first(tmp_path):
    for hidden, rounds in ((8, 3), (16, 2)):
        for number in range(rounds):
            files.write(recording(LstmShape(1, hidden, 4), "fast", 100.0, number, round=number), tmp_path)
    assert len(lab.report(tmp_path, *QUESTION).unfinished) == 1
    with folder_lock(tmp_path):
        found = lab.report(tmp_path, *QUESTION)
    assert [reason.split(" ")[0] for reason in found.unfinished] == [str(tmp_path), "1"]
    assert str(found).startswith("unfinished: ") and markdown.page(found).splitlines()[2].startswith("**Unfinished")
    assert html.page(found).index("Unfinished") < html.page(found).index("<h1>")


def test_the_verdicts_in_the_page_are_those_of_judge_at_each_deadline(runs, report, page):
    data = page.data
    assert len(data["stops"]) in (59, 60) and float(data["stops"][data["given"]]) == DEADLINE_US
    for place in (0, 3, 8, next(place for place, group in enumerate(runs) if group.failure)):
        group = runs[place]
        for stop, deadline_us in enumerate(map(float, data["stops"])):
            name = data["names"][int(data["verdicts"][place][stop])]
            question = Question(deadline_us, "99")
            assert name == ("failed" if group.failure else judge(group.rounds, question).outcome), (place, deadline_us)


def test_curves_are_order_statistics(runs, page):
    for place, group in enumerate(runs):
        curve, n = page.data["curves"][place], page.data["trials"][place]
        above = page.data["above"][str(n)]
        assert n == group.n and len(curve) == len(above) * (n > 0)
        for value, longer in zip(curve, above, strict=False):
            latency_us = sorted(group.rounds[0].timed_ns / 1e3)[n - 1 - longer]
            assert value == float(f"{latency_us:.4g}")


def test_every_configuration_has_a_row_and_a_cell_in_the_map_of_its_system(runs, report, page):
    places = [attributes["href"][2:] for attributes, _ in page.all("a") if attributes["href"].startswith("#r")]
    assert sorted(map(int, filter(None, places))) == list(range(len(runs)))
    ids = {attributes["id"] for _, attributes, _ in page.found if "id" in attributes}
    assert {attributes["href"][1:] for attributes, _ in page.all("a")} <= ids
    rows = [text for attributes, text in page.all("tr") if re.fullmatch(r"r\d+", attributes.get("id", ""))]
    assert len(rows) == len(runs)
    for kind, name in zip("mxnf", (*Outcome, "failed"), strict=True):
        of_table, of_map = (page.all("td", **{"class": kind, **more}) for more in ({}, {"title": str(name)}))
        assert len(of_map) == report.counts()[name] and len(of_table) == 2 * len(of_map)  # a row and a cell for each


def test_a_page_can_be_read_by_everyone(page):
    assert page.all("html")[0][0] == {"lang": "en"}
    assert all(attributes["alt"] for attributes, _ in page.all("img"))
    assert page.all("nav")[0][0]["aria-label"] and len(page.all("h1")) == 1
    assert all(attributes.get("scope") for attributes, _ in page.all("th"))


def contrast(one: str, other: str) -> float:
    """Of two colours `#rrggbb`, by WCAG 2.1."""

    def luminance(color: str) -> float:
        shares = (int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_have_enough_contrast():
    style = (html.Path(html.__file__).parent / "page.css").read_text()

    def whole(color: str) -> str:
        return color if len(color) == 7 else "#" + "".join(2 * letter for letter in color[1:])

    pairs = re.findall(r"background: (#\w+); color: (#\w+)", style)
    pairs += [("#ffffff", color) for color in re.findall(r"(?<![-\w])color: (#\w+)", style.replace("color: #fff", ""))]
    assert len(pairs) > 4
    for behind, color in pairs:
        assert contrast(whole(behind), whole(color)) >= 4.5, (behind, color)


def test_a_page_loads_nothing_and_runs_only_its_script(page):
    policy = page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0][0]["content"]
    (style,), (_, script) = page.all("style"), page.all("script")
    for kind, (_, content) in (("style", style), ("script", script)):
        assert f"{kind}-src 'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    assert len(script[1].encode()) <= 40_000
    for _, attributes, _ in page.found:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        for name in ("src", "href", "action", "data", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:image/svg+xml;base64,"))
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|\beval\b|innerHTML", style[1] + script[1])


def test_the_same_recordings_give_the_same_bytes(report, text, campaign):
    again = lab.report(campaign, *QUESTION)
    assert html.page(again) == text
    for write in (markdown.page, junit.page):
        assert write(again) == write(report)


def test_the_example_says_what_the_recordings_say():
    example = Page((ROOT / "docs/examples/report.html").read_text())
    verdicts = lab.verdict(ROOT / "data/epyc/grid", 1000, "99")
    kinds = dict(zip(Outcome, "mxn", strict=True))
    for place, each in enumerate(verdicts):
        (row,) = [text for attributes, text in example.all("tr") if attributes.get("id") == f"r{place}"]
        assert str(each.outcome) in row
    for outcome, kind in kinds.items():
        number = sum(each.outcome == outcome for each in verdicts)
        assert len(example.all("td", **{"class": kind, "title": str(outcome)})) == number > 0
        assert str(number) in (ROOT / "docs/python.md").read_text().split("![A report: ")[1].split(";")[0]


def columns(line: str) -> int:
    """Of a row of a table in Markdown."""
    return len(re.findall(r"(?<!\\)\|", line)) - 1


def markdown_rows(text: str, first: str) -> list[list[str]]:
    """The cells of the rows of the table in Markdown whose first heading is this and that has most columns."""
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith(f"| {first} |")]
    return [line.strip("| ").split(" | ") for line in max(tables, key=lambda table: columns(table[0]))[2:]]


def test_markdown_shows_the_undecided_then_those_near_the_deadline(runs, report):
    """At every deadline: all that are undecided or failed, and what is decided only within a factor of 2."""
    for deadline_us in (20.0, DEADLINE_US, 200.0, 10_000.0):
        found = lab.report(runs, deadline_us, "99")
        whole = markdown.page(found)
        by_name = dict(zip([group.name for group in runs], found.verdicts, strict=True))
        rows = markdown_rows(whole, "network")
        kinds = [row[1] for row in rows]
        undecided = [kind in (Outcome.NOT_ENOUGH_EVIDENCE, "failed") for kind in kinds]
        assert undecided == sorted(undecided, reverse=True)
        shown = {row[0]: row[1] for row in rows}
        for name, verdict in by_name.items():
            near = verdict.n > 0 and 1 / 2 <= verdict.percentile_us / deadline_us <= 2
            assert (name in shown) == (near or verdict.outcome == Outcome.NOT_ENOUGH_EVIDENCE), (name, deadline_us)
            if name in shown:
                assert shown[name] == (verdict.outcome if verdict.n else "failed")
        ratios = [abs(math.log(float(row[2]) / deadline_us)) for row in rows if row[1] in (Outcome.MET, Outcome.MISSED)]
        assert ratios == sorted(ratios)


def test_markdown_leaves_out_the_farthest_of_many(tmp_path):
    """A table of 40 undecided configurations has 20 rows, the nearest, and says so."""
    path = tmp_path / "t.csv"
    rows = [f"{name},{100 + name + trial % 7}" for name in range(40) for trial in range(20)]
    path.write_text("name,latency_us\n" + "\n".join(rows))
    found = lab.report(lab.load(path, group_by=["name"]), 150, "99")
    whole = markdown.page(found)
    assert len(markdown_rows(whole, "network")) == 20 and "20 of 40" in whole
    distances = [abs(math.log(float(row[2]) / 150)) for row in markdown_rows(whole, "network")]
    every = sorted(abs(math.log(each.percentile_us / 150)) for each in found.verdicts)
    assert distances == pytest.approx(every[:20])


def test_the_first_screen_of_a_page_has_machines_processors_dates_and_versions(tmp_path):
    record_on_two_machines(tmp_path)
    found = lab.report(tmp_path, *QUESTION)
    page = html.page(found)
    assert all(line in page[page.index("<h1>") : page.index("<table")] for line in basis(found))
    alone = lab.report(tmp_path, *QUESTION, baseline=tmp_path)
    assert len(lines := basis(alone)) == 4 and lines[2] == lines[0].replace("Recorded", "Baseline recorded")


def test_hostile_names_are_text(hostile_report):
    """In every format: what is shown, not what is run, and no control characters."""
    page = Page(html.page(hostile_report))
    assert len(page.all("script")) == 2 and len(page.all("img")) == len(page.all("figure"))
    assert page.all("title")[0][1] == "Which networks answer within 150 µs?"
    texts = [each for _, _, several in page.found for each in several]
    assert any("<script>document" in text for text in texts) and any("{{ 7 * 7 }}" in text for text in texts)
    cut = [(attributes["title"], text) for attributes, text in page.all("bdi") if "title" in attributes]
    assert cut and all(len(text) == 80 and len(whole) >= 10_000 for whole, text in cut)
    shortened, xml = markdown.page(hostile_report), junit.page(hostile_report)
    for text in (html.page(hostile_report), shortened, xml, str(hostile_report)):
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)
    assert "\\u202eright" in xml and "\\x1b[31m red \\x00" in xml
    assert not re.search(r"(?<!\\)<(script|img|!--)", shortened)
    rows = [line for line in shortened.splitlines() if line.startswith("|")]
    assert len(set(map(columns, rows))) == 2
    suite = ElementTree.fromstring(xml)
    assert len(suite.findall("testcase")) == 2 * len(HOSTILE)


def test_an_anonymous_report_has_no_paths_host_or_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/carol-the-user")
    monkeypatch.setattr("platform.node", lambda: "secret-host")
    files.write(recording(LstmShape(1, 8, 4), "fast", 50.0, warnings=["on secret-host by carol-the-user"]), tmp_path)
    files.write_failure(failure(LstmShape(1, 9, 4), "fast", "no memory in /home/alice/model.onnx"), tmp_path)
    hidden = lab.report(tmp_path, *QUESTION, anonymous=True)
    texts = [html.page(hidden), markdown.page(hidden), junit.page(hidden), str(hidden)]
    for private in ("/home/", "alice", "secret-host", "carol-the-user", str(tmp_path)):
        assert not any(private in text for text in texts), private
    assert "no paths, host name or user" in texts[0] and "on [left out] by [left out]" in texts[0]
    assert "/home/alice" in junit.page(replace(hidden, anonymous=False))


def test_tables_from_elsewhere_have_a_report_without_maps(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("latency_us\n" + "\n".join(str(100 + 7 * trial % 40) for trial in range(80)))
    found = lab.report(path, 150, "90", out=tmp_path / "r.html")
    assert found.exit_status == 0 and 'id="maps"' not in (tmp_path / "r.html").read_text()


def test_a_baseline_is_compared(tmp_path):
    """The times of 8 became 0.6 times as long, and of 16 1.5 times."""
    old, new = record_old_and_new(tmp_path)
    found = lab.report(new, 1000, "99", baseline=lab.load(old).where(runtime="fast"))
    assert found.exit_status == found.comparisons.exit_status != found.verdicts.exit_status
    ratios = {row[0].split(" ")[0]: row[3:5] for row in found.compared[1]}
    assert list(ratios) == ["1x16-s4-b1", "1x8-s4-b1", "1x32-s4-b1"]  # SLOWER first
    for name, ratio in (("1x16-s4-b1", 1.5), ("1x8-s4-b1", 0.6)):
        assert list(map(float, ratios[name])) == pytest.approx([ratio, ratio], rel=0.02)
    (shown, _), *_ = Page(html.page(found)).all("table", id="b")
    assert shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "r.pdf"), "unknown format of a report '.pdf'"),
        (("--out", "r.html", "--percentile", "30"), "at least 50"),
        (("--out", "/dev/null/r.html"), "cannot write /dev/null/r.html: "),
        (("--out", "r.html", "--hidden", 9), "no recording or row has hidden 9"),
    ],
)
def test_what_cannot_be_written_is_one_line(refused, campaign, tmp_path, arguments, message):
    assert message in refused("report", campaign, "--deadline-us", 150, *arguments, cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_writes_all_formats_of_a_selection(lab, campaign, tmp_path):
    out = [tmp_path / f"r.{ending}" for ending in ("html", "md", "xml")]
    question = ("--deadline-ms", 0.15, "--percentile", 99)
    result = lab("report", campaign, *question, "--runtime", "fast", "--hidden", 8, "--out", *out)
    assert result.returncode == 0 and result.stderr.split() == list(map(str, out))
    assert "of 3 configurations 3 met it." in result.stdout.partition("\n")[0]
    assert len(ElementTree.parse(out[2]).findall("testcase")) == 3
    assert json.loads(lab("report", campaign, *question, "--out", out[1], "--format", "json").stdout)["largest"]
    for form in ("csv", "md"):
        printed = lab("report", campaign, *question, "--out", out[1], "--format", form).stdout
        assert printed == lab("verdict", campaign, *question, "--format", form).stdout


if __name__ == "__main__":
    with TemporaryDirectory() as folder, chdir(folder):
        found = said()
    for name, content in found.items():
        (GOLDEN / name).write_text(content)
