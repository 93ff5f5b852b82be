"""The page to explore, without a browser: what its data say, how large it is, and where its HTML goes."""

from __future__ import annotations

import base64
import io
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest

import lstm_trt as lab
from lstm_judge.outliers.answer import Outliers
from lstm_judge.read.rounds import Group, Round
from lstm_judge.report import views
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import LstmShape
from tests.lstm_judge.report.conftest import DEADLINE_US, HOSTILE, recording
from tests.lstm_judge.report.test_report import Page


@pytest.fixture(scope="module")
def explorer(runs):
    return lab.explore(runs, DEADLINE_US, "99")


@pytest.fixture(scope="module")
def data(explorer):
    return Page(explorer.page).data


def sides(data: dict, a: int, b: int) -> list[str]:
    """The calls that load two configurations, as the page writes them."""
    return [
        f"runs.where({', '.join(each['arguments'][each['of'][place]] for each in data['dimensions'])})"
        for place in (a, b)
    ]


def test_an_explorer_says_what_the_verdicts_say(explorer, runs):
    verdicts = lab.verdict(runs, DEADLINE_US, "99")
    assert repr(explorer) == f"<Explorer: {verdicts.sentence}>" and "\n" not in repr(explorer)
    shown = io.StringIO()
    explorer._repr_pretty_(type("Printer", (), {"text": shown.write}), False)
    assert verdicts.sentence in shown.getvalue() and "write" in shown.getvalue()


def test_the_percentile_is_the_highest_that_each_configuration_can_prove(runs):
    """390 trials prove p99; 3 000 prove p99.9."""
    assert lab.explore(runs, DEADLINE_US).report.verdicts[0].question.percentile == 99
    long = Group("a", (Round.of(1e5 + np.arange(3000) % 97),))
    assert lab.explore(long).report.verdicts[0].question.percentile == 99.9


def test_the_call_of_each_configuration_loads_it(data, runs):
    for place, group in enumerate(runs):
        (found,) = eval(sides(data, place, place)[0], {"runs": runs})
        assert found.key == group.key


def test_neighbours_differ_in_one_dimension_and_are_compared(data, runs, explorer):
    compared = 0
    for place, near in enumerate(data["near"]):
        for dimension, other, *said in near:
            differ = [each["label"] for each in data["dimensions"] if each["of"][place] != each["of"][other]]
            assert differ == [data["dimensions"][dimension]["label"]]
            assert bool(said) == (runs[place].n > 0 and runs[other].n > 0)
            if said and not compared % 7:
                answer = lab.compare(runs[place], runs[other], deadline_us=DEADLINE_US)
                assert str(answer).startswith(f"{data['results'][said[0]]}: B")
                assert said[1].startswith(f"median {answer[0].median.ratio.estimate:.3g}")
            compared += bool(said)
    assert compared > 10
    axes = {data["dimensions"][dimension]["label"] for near in data["near"] for dimension, *_ in near}
    assert axes == {"hidden size", "sequence length", "runtime", "precision"}


def test_misses_at_each_deadline_are_counted(data, runs):
    for place, group in enumerate(runs):
        before, *misses = data["misses"][place]
        shown = [group.n] * before + misses
        for stop, deadline_us in enumerate(map(float, data["stops"])):
            expected = lab.verdict(group, deadline_us, "99")[0].misses if group.n and stop % 7 == 0 else None
            if expected is not None:
                assert (shown[stop] if stop < len(shown) else 0) == expected


def test_calls_in_order_are_those_of_outliers(runs):
    """By cluster as many as there are; latencies as far as they can be seen; of many calls those of clusters first."""
    generator = np.random.default_rng(3)
    latency_ns = 1e5 * generator.uniform(0.99, 1.01, 5000)
    latency_ns[::25] *= 2
    group = Group("spikes", (Round.of(latency_ns[:2000]), Round.of(latency_ns[2000:], round=1)))
    for each, most in ((group, views.MOST_CALLS), (runs[0], runs[0].n)):
        answers = lab.outliers(each)
        found = answers[0]
        assert isinstance(found, Outliers)
        (drawn,) = views.calls(answers.runs, answers)
        points = {
            int(label): np.frombuffer(base64.b64decode(text), "<u2").reshape(-1, 2) / views.STEPS
            for label, text in drawn["calls"].items()
        }
        assert sum(map(len, points.values())) == most and drawn["rounds"] == len(each.rounds)
        for label, cluster in enumerate(found.clusters):
            assert len(points[label]) == cluster.count
        times_us = np.concatenate([p[:, 1] for p in points.values()])
        times_us = drawn["low"] * (drawn["high"] / drawn["low"]) ** times_us
        every_us = np.concatenate([round_.timed_ns for round_ in each.rounds]) / 1e3
        assert times_us.min() == pytest.approx(every_us.min(), rel=1e-3)
        assert times_us.max() == pytest.approx(every_us.max(), rel=1e-3)
        assert np.median(times_us) == pytest.approx(np.median(every_us), rel=0.02)


def test_tails_are_thinned(data):
    assert max(map(len, data["curves"])) <= 200


def plant(networks: int) -> list[Group]:
    """Groups of 1000 trials, each network on two runtimes, 3 % of the calls twice as long."""
    generator = np.random.default_rng(networks)
    groups = []
    sizes = [(layers, hidden, batch) for batch in (1, 2) for layers in (1, 2, 4, 8) for hidden in range(8, 133)]
    for layers, hidden, batch in sizes[:networks]:
        for runtime in ("onnxruntime", "pytorch"):
            made = recording(LstmShape(layers, hidden, 4, batch), runtime, 1.0)
            latency_ns = 1e3 * layers * hidden * generator.uniform(0.99, 1.01, 1000)
            latency_ns[generator.integers(0, 1000, 30)] *= 2
            name = f"{made.configuration.name} on {runtime}"
            key = (made.configuration.id, "0123456789abcdef", False)
            groups.append(Group(name, (Round.of(latency_ns),), {"name": name}, made.configuration, key=key))
    return groups


def test_160_configurations_are_at_most_2_mb():
    explorer = lab.explore(plant(80), 200)
    page = Page(explorer.page)
    assert len(page.data["labels"]) == 160 and len(explorer._repr_html_().encode()) <= 2_000_000
    assert all(
        sum(len(base64.b64decode(each)) for each in found["calls"].values()) == 4000 for found in page.data["calls"]
    )
    assert "single calls: the latencies" in page.all("p")[-1][1]


@pytest.mark.heavy
def test_2000_configurations_are_at_most_2_mb_without_calls():
    explorer = lab.explore(plant(1000), 200)
    page = Page(explorer.page)
    assert len(page.data["labels"]) == 2000 and page.data["calls"] is None
    assert len(explorer._repr_html_().encode()) <= 2_000_000
    assert "the calls in order are left out" in page.all("p")[-1][1]


def test_what_a_notebook_gets(explorer):
    """The figure with its text, hidden where a style is let through, and the page in an iframe without rights."""
    shown = explorer._repr_html_()
    page = Page(shown)
    ((frame, _),) = page.all("iframe")
    assert frame["sandbox"] == "allow-scripts" and frame["srcdoc"] == explorer.page
    ((_, text),) = page.all("style")
    (name,) = re.fullmatch(r"#([\w-]+) \{ display: none; \}", text).groups()
    ((_, static),) = page.all("div", id=name)
    assert "not trusted" in static and lab.verdict(explorer.report.runs, DEADLINE_US, "99").sentence in static
    ((image, _),) = page.all("img")
    assert image["src"].startswith("data:image/png;base64,") and "Maximum latency" in image["alt"]
    assert shown == explorer._repr_html_()


def test_the_untrusted_figure_stays(explorer):
    """JupyterLab drops `style` and `iframe` of an untrusted notebook: the figure is then neither hidden nor alone."""
    shown = re.sub(r"<(style|iframe)\b.*?</\1>", "", explorer._repr_html_(), flags=re.DOTALL)
    page = Page(shown)
    assert len(page.all("img")) == 1 and "Trust Notebook" in shown and len(page.all("iframe")) == 0


def test_a_page_to_explore_loads_nothing(explorer):
    page = Page(explorer.page)
    policy = page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0][0]["content"]
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    for _, attributes, _ in page.found:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert all(attributes.get(name, "#").startswith("#") for name in ("src", "href", "action"))
    ids = {attributes["id"] for _, attributes, _ in page.found if "id" in attributes}
    assert {attributes["href"][1:] for attributes, _ in page.all("a")} <= ids


def test_scripts_styles_and_templates_stay_small():
    """At most 500 lines together, none longer than 120 columns."""
    folder = Path(views.__file__).parent
    lines = [line for kind in ("html", "css", "js") for path in folder.glob(f"*.{kind}") for line in path.open()]
    assert 250 < len(lines) <= 500 and max(len(line.rstrip("\n")) for line in lines) <= 120


def test_a_file_of_its_own(explorer, tmp_path):
    explorer.write(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == explorer.page
    with pytest.raises(UsageError, match="cannot write"):
        explorer.write(tmp_path / "nowhere" / "page.html")


def test_hostile_names_are_text(hostile):
    explorer = lab.explore(hostile, DEADLINE_US, "99")
    page = Page(explorer.page)
    assert len(page.all("script")) == 2 and len(page.all("img")) == 0 and len(page.data["labels"]) == 2 * len(HOSTILE)
    assert len(Page(explorer._repr_html_()).all("script")) == 0


def test_a_table_and_a_single_configuration_can_be_explored(tmp_path, runs):
    path = tmp_path / "t.csv"
    rows = [
        f"{name},{size},{100 + 7 * trial % 40 + size}" for name in "ab" for size in (1, 2, 3) for trial in range(80)
    ]
    path.write_text("model,size,latency_us\n" + "\n".join(rows))
    table = lab.load(path, group_by=["model", "size"])
    data = Page(lab.explore(table, 150).page).data
    assert [each["label"] for each in data["dimensions"]] == ["model", "size"]
    (found,) = eval(sides(data, 4, 4)[0], {"runs": table})
    assert found.name == table[4].name and "<img" in lab.explore(table, 150)._repr_html_()
    single = Page(lab.explore(runs[0], 150).page).data
    assert single["dimensions"] == [] and len(single["near"]) == 1


def test_sizes_of_own_networks_are_dimensions(tmp_path):
    """A name that is no word of Python is given in a dictionary."""
    dimension = views.Dimension("size x.0", [8, 16], [0, 1])
    assert dimension.label == "x.0" and dimension.arguments == ["**{'x.0': 8}", "**{'x.0': 16}"]


def test_the_report_holds_single_calls_only_to_explore(lab, campaign, tmp_path):
    question = ("--deadline-us", DEADLINE_US, "--percentile", 99)
    pages = []
    for name, more in (("a.html", ()), ("b.html", ("--explore",))):
        assert lab("report", campaign, *question, "--out", tmp_path / name, *more).returncode == 1
        pages.append(Page((tmp_path / name).read_text()))
    plain, explored = pages
    assert plain.data["calls"] is None and "single calls," in plain.all("p")[-1][1]
    assert len(explored.data["calls"]) == 16 and "It holds single calls" in explored.all("p")[-1][1]
    assert {len(entry) for near in plain.data["near"] for entry in near} == {2}


def run(*words) -> None:
    subprocess.run([sys.executable, *map(str, words)], check=True, capture_output=True)


@pytest.mark.heavy
def test_papermill_and_nbconvert_keep_the_page_and_nbstripout_takes_it_out(campaign, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    for module in ("papermill", "nbconvert", "nbstripout"):
        pytest.importorskip(module)
    path, made, html = tmp_path / "n.ipynb", tmp_path / "made.ipynb", tmp_path / "made.html"
    cell = nbformat.v4.new_code_cell(
        f"import lstm_trt as lab\nlab.explore(lab.load({str(campaign)!r}), {DEADLINE_US}, '99')"
    )
    spec = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=spec), path)
    run("-m", "papermill", path, made)
    shown = "".join(nbformat.read(made, 4).cells[-1].outputs[-1]["data"]["text/html"])
    inner = Page(shown).all("iframe")[0][0]["srcdoc"]
    assert len(Page(inner).data["labels"]) == 16
    run("-m", "nbconvert", "--to", "html", made, "--output", html)
    assert inner in unescape(html.read_text())
    run("-m", "nbstripout", made)
    assert not nbformat.read(made, 4).cells[-1].outputs and "iframe" not in made.read_text()
