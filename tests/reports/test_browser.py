"""A report as a person meets it: opened, clicked and printed in Chromium without a screen."""

from __future__ import annotations

import base64
import json
import re
import shutil
from contextlib import contextmanager

import pytest

import lstm_trt as lab
from lstm_trt.analysis.outcomes import Outcome
from tests.conftest import ROOT
from tests.reports.conftest import DEADLINE_US, HOSTILE

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
printing = pytest.importorskip("selenium.webdriver.common.print_page_options", reason="needs selenium")

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromium-driver"),
]

#: Class of a cell -> the verdict that it shows.
VERDICTS = {"m": Outcome.MET, "x": Outcome.MISSED, "n": Outcome.NOT_ENOUGH_EVIDENCE}

#: The recordings of the repository of which the report must do.
REPOSITORY = {"xeon": ["data/xeon/grid", "data/xeon/batch"], "epyc": ["data/epyc/grid"]}


@contextmanager
def browser(width: int = 1280, script: bool = True):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},900")
    for flag in flags:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.set_capability("unhandledPromptBehavior", "ignore")
    if not script:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def find(driver, selector: str) -> list:
    return driver.find_elements("css selector", selector)


def texts(driver, selector: str) -> list[str]:
    return driver.execute_script(
        f"return [...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"
    )


def requested(driver) -> list[str]:
    """The addresses that the page asked for, besides itself and what it holds."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("data:", "file:"))]


def move(driver, stop: int) -> dict[int, str]:
    """Move the slider; returns the class of the cell of each configuration."""
    script = """const slider = document.querySelector("#maps input");
    slider.value = arguments[0]; slider.dispatchEvent(new Event("input"));
    return [...document.querySelectorAll(".map a")].map(a => [Number(a.hash.slice(2)), a.parentNode.className]);"""
    return dict(driver.execute_script(script, stop))


@pytest.fixture(scope="module")
def opened(campaign, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    lab.report(campaign, DEADLINE_US, "99", out=path)
    with browser() as driver:
        driver.get(path.as_uri())
        yield driver
        assert not driver.get_log("browser") and not requested(driver)


def test_each_colour_at_each_deadline_is_the_verdict_of_the_command(opened, runs):
    data = json.loads(texts(opened, "script")[0])
    for stop, deadline_us in enumerate(map(float, data["stops"])):
        verdicts, colours = lab.verdict(runs, deadline_us, "99"), move(opened, stop)
        assert len(colours) == len(runs)
        for place, (group, verdict) in enumerate(verdicts.items()):
            assert VERDICTS.get(colours[place], "failed") == ("failed" if group.failure else verdict.verdict)
        shown = texts(opened, "output")[0]
        assert shown.startswith(f"{data['stops'][stop]} µs: {list(colours.values()).count('m')} MET")
    move(opened, data["given"])


def test_tables_sort_by_numbers_and_by_names(opened):
    heads = texts(opened, "#r th")

    def column(name: str) -> list[str]:
        return texts(opened, f"#r tbody tr:not([hidden]) td:nth-child({heads.index(name) + 1})")

    head = find(opened, "#r th")[heads.index("max")]
    for order in ("ascending", "descending"):
        head.click()
        timed = [float(text) for text in column("max") if text != "-"]
        assert timed == sorted(timed, reverse=order == "descending") and head.get_attribute("aria-sort") == order
    find(opened, "#r th")[0].send_keys("\n")
    hidden = [int(re.split(r"\D", text)[1]) for text in column("network")]
    assert hidden == sorted(hidden) and hidden[0] == 8 and not head.get_attribute("aria-sort")


def test_words_leave_rows_out(opened):
    field = find(opened, "#r input")[0]
    field.send_keys("FAST missed")
    rows = texts(opened, "#r tbody tr:not([hidden])")
    assert rows and all("fast" in row and "MISSED" in row for row in rows)
    field.clear()
    field.send_keys(" ")
    assert len(texts(opened, "#r tbody tr:not([hidden])")) == len(find(opened, "#r tbody tr"))


def test_numbers_are_shown_under_the_pointer_and_the_curve_after_a_click(opened, runs):
    cell = find(opened, ".map td.m a")[0]
    row = texts(opened, f"#{cell.get_attribute('href').partition('#')[2]} td")
    webdriver.ActionChains(opened).move_to_element(cell).perform()
    (card,) = find(opened, "aside")
    assert all(text in card.text for text in row) and not find(opened, "aside svg")
    cell.click()
    assert len(find(opened, "aside svg path")) > 5
    group = runs[int(cell.get_attribute("href").partition("#r")[2])]
    low, high = sorted(group.samples[0].timed_ns)[0] / 1e3, max(group.samples[0].timed_ns) / 1e3
    ticks = [float(text) for text in texts(opened, "aside text") if re.fullmatch(r"[\d.]+", text)]
    assert ticks[0] == pytest.approx(low, rel=0.01) and ticks[-1] == pytest.approx(high, rel=0.01)
    find(opened, "body")[0].send_keys("\ue00c")
    assert not card.is_displayed()


@pytest.mark.parametrize("size", [(21.0, 29.7), (21.59, 27.94)], ids=["A4", "letter"])
def test_it_prints(opened, size):
    options = printing.PrintOptions()
    options.page_width, options.page_height = size
    content = base64.b64decode(opened.print_page(options))
    assert content.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 8


def test_without_a_script_everything_but_the_slider_is_there(campaign, tmp_path):
    lab.report(campaign, DEADLINE_US, "99", out=tmp_path / "r.html")
    with browser(script=False) as driver:
        driver.get((tmp_path / "r.html").as_uri())
        assert not any(each.is_displayed() for each in find(driver, ".scripted"))
        for selector in ("h1", "#s", "#r", "#e", ".map", "figure img"):
            assert find(driver, selector) and all(each.is_displayed() for each in find(driver, selector)), selector
        assert {each.get_attribute("class") for each in find(driver, ".map td")} >= set("mxnf")


def test_hostile_names_do_nothing(hostile, tmp_path):
    lab.report(hostile, DEADLINE_US, "99", out=tmp_path / "r.html")
    with browser(width=500) as driver:
        driver.get((tmp_path / "r.html").as_uri())
        for each in find(driver, ".map a"):
            driver.execute_script("arguments[0].click()", each)
        assert driver.title == "Which networks answer within 150 µs?"
        assert "<script>document" in texts(driver, "#r")[0] and len(find(driver, "#r tbody tr")) == 2 * len(HOSTILE)
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert not driver.get_log("browser") and not requested(driver)


@pytest.mark.parametrize("name", REPOSITORY)
def test_recordings_of_the_repository(name, tmp_path):
    """Opened, moved, clicked and printed; the colours at some deadlines are those of the command."""
    runs = lab.load([ROOT / path for path in REPOSITORY[name]])
    lab.report(runs, 1000, "99", out=tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 2_000_000
    with browser() as driver:
        driver.get((tmp_path / "r.html").as_uri())
        data = json.loads(texts(driver, "script")[0])
        for stop in (data["given"], 20, 45):
            verdicts, colours = lab.verdict(runs, float(data["stops"][stop]), "99"), move(driver, stop)
            assert [VERDICTS[colours[place]] for place in range(len(runs))] == [each.verdict for each in verdicts]
        find(driver, ".map a")[0].click()
        assert find(driver, "aside svg") and base64.b64decode(driver.print_page()).startswith(b"%PDF")
        assert not driver.get_log("browser") and not requested(driver)
