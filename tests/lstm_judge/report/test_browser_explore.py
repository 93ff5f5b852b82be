"""The page to explore as a person meets it: in the output of a notebook, with mouse and keyboard."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace

import pytest

import lstm_trt as lab
from lstm_judge.compare.text import results
from lstm_judge.plots.style import with_micro
from lstm_trt.config.format import latency
from lstm_trt.config.shape import LstmShape
from lstm_trt.store import files
from tests.conftest import ROOT, wait_for
from tests.lstm_judge.report.conftest import DEADLINE_US, HOSTILE, failure, recording
from tests.lstm_judge.report.test_browser import find, move, opened_page, pytestmark, texts, webdriver  # noqa: F401
from tests.lstm_judge.report.test_explore import sides
from tests.lstm_judge.report.test_report import Page

KEYS = pytest.importorskip("selenium.webdriver.common.keys", reason="needs selenium").Keys


@contextmanager
def notebook(explorer, folder):
    """A browser within the page of a trusted output."""
    path = folder / "output.html"
    path.write_text(f'<!doctype html><meta charset="utf-8"><p>above</p>{explorer._repr_html_()}')
    with opened_page(path) as driver:
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 1440, "height": 757, "deviceScaleFactor": 1, "mobile": False},
        )
        assert not any(each.is_displayed() for each in find(driver, "img"))
        driver.switch_to.frame(find(driver, "iframe")[0])
        assert wait_for(lambda: find(driver, "#map button"))
        yield driver
        driver.switch_to.default_content()


@pytest.fixture(scope="module")
def explorer(runs):
    return lab.explore(runs, DEADLINE_US, "99")


@pytest.fixture(scope="module")
def data(explorer):
    return Page(explorer.page).data


@pytest.fixture(scope="module")
def opened(explorer, tmp_path_factory):
    with notebook(explorer, tmp_path_factory.mktemp("explorer")) as driver:
        yield driver


def click(driver, place: int, shift: bool = False) -> None:
    """Click the cell of a configuration, which the map has."""
    actions = webdriver.ActionChains(driver)
    (cell,) = find(driver, f"#map button[value='{place}']")
    if shift:
        actions.key_down(KEYS.SHIFT)
    actions.click(cell).key_up(KEYS.SHIFT).perform()


def choose(driver, label: str, text: str) -> None:
    """Choose from the list with this label."""
    for each in find(driver, "#choices label"):
        if each.text.startswith(label):
            options = each.find_elements("css selector", "option")
            next(option for option in options if option.text == text).click()
            return
    raise AssertionError(f"no choice {label} in {texts(driver, '#choices label')}")


def shown(driver) -> list[int]:
    return [int(each.get_attribute("value")) for each in find(driver, "#map button")]


def rows(driver, caption: str) -> list[list[str]]:
    """The cells of the table whose caption begins so."""
    script = """return [...document.querySelectorAll(".cells")]
      .filter((each) => each.caption.textContent.startsWith(arguments[0]))
      .flatMap((each) => [...each.rows].slice(1).map((row) => [...row.cells].map((cell) => cell.textContent)));"""
    return driver.execute_script(script, caption)


def place_of(runs, runtime: str, hidden: int, sequence: int, precision: str = "fp32") -> int:
    wanted = runs.where(runtime=runtime, hidden=hidden, sequence=sequence, precision=precision)
    return runs.groups.index(wanted[0])


def test_a_click_shows_what_verdict_and_outliers_say(opened, runs, data):
    verdicts, outliers = lab.verdict(runs, DEADLINE_US, "99"), lab.outliers(runs)
    for place in (place_of(runs, "slow", 32, 4), place_of(runs, "slow", 16, 4)):
        choose(opened, "runtime", "slow")
        click(opened, place)
        ((_, name, verdict, *numbers, missed),) = rows(opened, "Latencies")
        each = verdicts[place]
        assert name == runs[place].name and verdict.endswith(f"\u00a0{each.outcome}")
        assert missed.split() == [str(each.misses), "of", str(each.n)]
        assert float(numbers[-1]) == pytest.approx(each.max_us, rel=0.01)
        assert float(numbers[0]) == pytest.approx(outliers[place].median_us, rel=0.01)
        clusters = rows(opened, "Clusters")
        assert [row[2] for row in clusters] == [str(each.count) for each in outliers[place].clusters]
        drawn = (
            "return [...document.querySelectorAll('[data-label]')].map(e => e.getAttribute('d').split('M').length - 1)"
        )
        assert sum(opened.execute_script(drawn)) == each.n + len(clusters)  # a mark of each in the table
        assert texts(opened, "code") == [sides(data, place, place)[0]]


def test_a_shift_click_shows_what_compare_says(opened, runs, data):
    a, b = place_of(runs, "slow", 16, 4), place_of(runs, "slow", 32, 4)
    choose(opened, "runtime", "slow")
    click(opened, a)
    click(opened, b, shift=True)
    answer = lab.compare(runs[a], runs[b], deadline_us=DEADLINE_US)
    (said,) = texts(opened, "#compared")
    assert said.startswith(f"{results(answer[0])} of 150 µs: B compared with A")
    assert f"median {answer[0].median.ratio.estimate:.3g}" in said
    (call,) = texts(opened, "code")
    assert str(eval(call, {"lab": lab, "runs": runs})) == str(answer)
    assert [row[0] for row in rows(opened, "Latencies")] == ["A", "B"] and len(find(opened, "#cell svg[role]")) == 2
    # No neighbours: not compared beforehand, and the call compares them.
    click(opened, place_of(runs, "slow", 8, 8))
    click(opened, b, shift=True)
    assert "Not compared beforehand" in texts(opened, "#compared")[0]
    (call,) = texts(opened, "code")
    assert call == f"lab.compare({', '.join(sides(data, place_of(runs, 'slow', 8, 8), b))}, {data['asked']})"
    eval(call, {"lab": lab, "runs": runs})


def test_the_slider_moves_map_headline_and_tails(opened, runs, data):
    choose(opened, "runtime", "slow")
    place = place_of(runs, "slow", 32, 4)
    click(opened, place)
    script = """const slider = document.querySelector(".slider input");
    slider.value = arguments[0]; slider.dispatchEvent(new Event("input"));"""
    low, high = runs[place].rounds[0].timed_ns.min() / 1e3, runs[place].rounds[0].timed_ns.max() / 1e3
    for stop in (10, 25, 35, 50, data["given"]):
        deadline_us = float(data["stops"][stop])
        opened.execute_script(script, stop)
        verdicts = lab.verdict(runs, deadline_us, "99")
        assert texts(opened, "h1") == [with_micro(f"Which networks answer within {latency(deadline_us)}?")]
        for cell in find(opened, "#map button"):
            number = int(cell.get_attribute("value"))
            expected = verdicts[number].outcome if runs[number].n else "failed"
            assert cell.get_attribute("aria-label").endswith(f", {expected}")
            assert cell.get_attribute("class") == "mxnf"[data["names"].index(str(expected))]
            assert cell.text[-1] == data["signs"][data["names"].index(str(expected))]
        assert rows(opened, "Latencies")[0][-1].split()[0] == str(verdicts[place].misses)
        assert len(find(opened, ".deadline")) == (2 if low < deadline_us < high else 0)
        beyond = "longer" if deadline_us >= high else "shorter"
        said = [text for text in texts(opened, "svg text") if text.endswith(f"; the deadline is {beyond}")]
        assert len(said) == (0 if low < deadline_us < high else 2)


def test_values_and_axes_are_chosen(opened, runs):
    choose(opened, "runtime", "fast")
    place = place_of(runs, "fast", 16, 8)
    click(opened, place)
    cell = f"#map button[value='{place}']"
    for value, expected in (("median", "80"), ("share of misses", "0 %"), ("margin to the deadline", "1.9×")):
        choose(opened, "cells show", value)
        assert texts(opened, cell)[0].startswith(f"A {expected}") or value == "median"
        assert texts(opened, "#map caption")[0].startswith(value)
    choose(opened, "cells show", "maximum")
    choose(opened, "across", "runtime")
    assert {runs[each].configuration.runtime for each in shown(opened)} == {"slow", "fast"}
    choose(opened, "upwards", "runtime")  # both axes change places
    assert "across: sequence length; upwards: runtime" in texts(opened, "#map caption")[0]
    choose(opened, "across", "hidden size")
    choose(opened, "upwards", "sequence length")
    assert place in shown(opened)
    choose(opened, "precision", "fp16")  # of which there is only one configuration
    assert [runs[each].configuration.options.precision for each in shown(opened)] == ["fp16"]
    choose(opened, "precision", "fp32")


def test_neighbours_lead_on_and_are_compared(opened, runs):
    choose(opened, "runtime", "slow")
    click(opened, place_of(runs, "slow", 16, 4))
    steps = [row[0] for row in rows(opened, "Neighbours")]
    assert steps[:2] == ["hidden size 16 → 8", "hidden size 16 → 32"] and "runtime slow → fast" in steps
    (there,) = [each for each in find(opened, ".cells button") if each.text == "runtime slow → fast"]
    row = there.find_element("xpath", "../..")
    row.find_elements("css selector", "button")[1].click()
    assert "FASTER" in texts(opened, "#compared")[0]
    (there,) = [each for each in find(opened, ".cells button") if each.text == "runtime slow → fast"]
    there.click()
    assert rows(opened, "Latencies")[0][1] == runs[place_of(runs, "fast", 16, 4)].name


def test_a_copy_is_what_is_shown(opened, runs):
    """Without the clipboard of the browser, which a page without an origin may not use."""
    choose(opened, "runtime", "slow")
    click(opened, place_of(runs, "slow", 16, 4))
    (copy,) = [each for each in find(opened, "button") if each.text == "Copy"]
    copy.click()
    assert opened.execute_script("return String(getSelection())") == texts(opened, "code")[0]
    assert re.fullmatch(" copied| selected: .*", texts(opened, "[role=status]")[0])


def focused(driver) -> str:
    return driver.execute_script("return document.activeElement.value")


def test_the_keyboard_does_what_the_mouse_does(opened, runs):
    choose(opened, "runtime", "slow")
    first, place, other = shown(opened)[0], place_of(runs, "slow", 16, 4), place_of(runs, "slow", 32, 4)
    find(opened, "#choices select")[-1].send_keys(KEYS.TAB)
    assert focused(opened) == str(first)
    webdriver.ActionChains(opened).send_keys(KEYS.SPACE).perform()
    assert rows(opened, "Latencies")[0][1] == runs[first].name
    find(opened, f"#map button[value='{place}']")[0].send_keys(KEYS.ENTER)
    assert rows(opened, "Latencies")[0][1] == runs[place].name
    assert focused(opened) == str(place)  # also after the map was drawn again
    find(opened, f"#map button[value='{other}']")[0].send_keys(KEYS.SHIFT, KEYS.ENTER)
    assert [row[1] for row in rows(opened, "Latencies")] == [runs[place].name, runs[other].name]


def test_each_cell_has_a_name_with_configuration_value_and_verdict(opened, runs, data):
    verdicts = lab.verdict(runs, DEADLINE_US, "99")
    for cell in find(opened, "#map button"):
        number = int(cell.get_attribute("value"))
        mark = re.match("[AB] |", cell.text)[0]
        value, sign = cell.text.removeprefix(mark).split()
        outcome = str(verdicts[number].outcome) if runs[number].n else "failed"
        assert cell.get_attribute("aria-label") == f"{mark}{runs[number].name}: {value}, {outcome}"
        assert sign == data["signs"][data["names"].index(outcome)]


#: Hidden sizes of a map that is wider than half of a page.
WIDE = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    for hidden in WIDE:
        for sequence in (4, 8):
            files.write(recording(LstmShape(2, hidden, sequence), "fast", hidden * sequence / 8), folder)
    with notebook(lab.explore(folder, DEADLINE_US, "99"), folder) as driver:
        yield driver


@pytest.mark.parametrize("width", [400, 650, 970, 1070, 1440])
def test_nothing_is_behind_a_scrollbar(wide, width):
    """As wide as outputs of JupyterLab are; 650 px is half of such a width, at a zoom of 200 %; 400 px is a narrow one,
    where tables scroll, but not the page."""
    size = {"width": width, "height": 757, "deviceScaleFactor": 1, "mobile": False}
    wide.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    click(wide, shown(wide)[0])
    click(wide, shown(wide)[-1], shift=True)
    root = "document.documentElement"
    assert wide.execute_script(f"return {root}.scrollWidth <= {root}.clientWidth")
    if width > 800:
        scrolls = "e => e.clientWidth && e.scrollWidth > e.clientWidth + 1"
        found = f"return [...document.querySelectorAll('#both *')].filter({scrolls}).map(e => e.tagName)"
        assert not wide.execute_script(found)
    (map_,), (tail, *_) = find(wide, "#map"), find(wide, "#tail svg")
    assert tail.rect["y"] >= map_.rect["y"] + map_.rect["height"] and tail.rect["width"] > 300
    assert tail.rect["y"] < 450 or width < 600


def test_links_scroll(opened):
    opened.execute_script("document.querySelector('a[href=\"#views\"]').click()")
    assert opened.execute_script("return location.href") == "about:srcdoc"
    opened.execute_script("scrollTo(0, 0)")


def test_the_first_screen_has_answer_map_tail_and_calls(opened):
    for selector in ("h1", "ul", ".slider", "#map", "#tail svg", "#cell svg"):
        assert find(opened, selector)[0].rect["y"] < 560, selector


def test_hostile_names_do_nothing(hostile, tmp_path):
    with notebook(lab.explore(hostile, DEADLINE_US, "99"), tmp_path) as driver:
        for place in shown(driver):
            click(driver, place)
        assert driver.execute_script("return document.title") == "Which networks answer within 150 µs?"
        assert len(shown(driver)) >= 1 and len(find(driver, "script")) == 2 and len(HOSTILE) > 1


def test_the_report_has_the_map_with_choices_without_single_calls(campaign, tmp_path, runs):
    path = tmp_path / "report.html"
    lab.report(campaign, DEADLINE_US, "99", out=path)
    with opened_page(path) as driver:
        driver.execute_script("document.querySelector('#views').scrollIntoView()")
        choose(driver, "runtime", "slow")
        place = place_of(runs, "slow", 16, 4)
        driver.execute_script(f"document.querySelector('#map button[value=\"{place}\"]').click()")
        assert rows(driver, "Latencies")[0][1] == runs[place].name and rows(driver, "Neighbours")
        assert find(driver, "#tail svg") and not find(driver, "#cell svg[role]")
        verdicts = move(driver, 20)
        assert {
            each.get_attribute("value"): each.get_attribute("class") for each in find(driver, "#map button")
        }.items() <= {str(number): kind for number, kind in verdicts.items()}.items()


def test_ticks_of_close_latencies_differ(wide):
    """Those of a drawing whose ends are 2 % apart."""
    click(wide, shown(wide)[-1])
    ticks = texts(wide, "#tail svg text")[:5]
    assert len({*ticks}) == 5 and float(ticks[0]) < float(ticks[-1])


def test_what_is_missing_is_said(tmp_path):
    """Of a failure alone, and of a histogram: no drawing without a word."""
    failed, bins = tmp_path / "failed", tmp_path / "bins.csv"
    failed.mkdir()
    files.write_failure(failure(LstmShape(1, 64, 4), "fast", "no memory"), failed)
    bins.write_text("us,calls\n100,10\n101,3000\n102,800\n103,1\ninf,0\n")
    histogram = lab.load(bins, column="us", counts="calls", unit="us")
    for runs, tails, reason in ((failed, 0, "failed at build: no memory"), (histogram, 1, "not judged: a histogram")):
        with notebook(lab.explore(runs, DEADLINE_US, "99"), tmp_path) as driver:
            assert len(shown(driver)) == 1 and len(find(driver, "#both svg[role]")) == tails
            assert "Neighbours of A: none" in texts(driver, "#tail p")
            assert reason in texts(driver, "#cell p")[-1]


#: Folders of recordings of the repository.
RECORDED = sorted(path.parent for path in (ROOT / "data").rglob("trials.parquet"))


def test_pages_of_all_recordings_run(tmp_path):
    """Of up to 5 configurations of each folder: no error, a map with more than one cell if there is a neighbour, and
    nothing that is not a number."""
    pages = []
    for folder in RECORDED:
        runs = lab.load(folder)
        runs = replace(runs, groups=runs.groups[:: -(-len(runs) // 5)])
        pages.append(tmp_path / f"{folder.parent.name}-{folder.name}.html")
        lab.explore(runs).write(pages[-1])
    with opened_page(pages[0]) as driver:
        for page in pages:
            driver.get(page.as_uri())
            places = range(len(driver.execute_script("return data.labels")))
            assert len(shown(driver)) > 1 or "Neighbours of A: none" in texts(driver, "#tail p"), page
            for place in places:
                driver.execute_script(f"pick({place}, false)")
                driver.execute_script(f"pick({places[-1]}, true)")
                said = driver.execute_script("return document.body.innerText")
                assert place in shown(driver) and "Clusters of" in said, page
                assert not re.search(r"undefined|NaN|Infinity|\bnull\b|\[object", said), page
