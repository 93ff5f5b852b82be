"""A report as a person meets it: opened, clicked and printed in Chromium without a screen."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections import Counter
from contextlib import contextmanager

import pytest

import lstm_trt as lab
from lstm_judge.outcomes import Outcome
from lstm_judge.plots.style import with_micro
from lstm_trt.config.format import latency
from tests.conftest import ROOT, sampled, wait_for
from tests.lstm_judge.report.conftest import DEADLINE_US, HOSTILE

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
def browser(recordings, folder, script: bool = True, deadline_us: float = DEADLINE_US):
    """A browser that shows the report of some recordings."""
    path = folder / "report.html"
    lab.report(recordings, deadline_us, "99", out=path)
    with opened_page(path, script) as driver:
        yield driver


@contextmanager
def opened_page(path, script: bool = True):
    """A browser that shows a file; the page runs without errors and asks for nothing."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.set_capability("unhandledPromptBehavior", "ignore")
    if not script:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        driver.get(path.as_uri())
        yield driver
        assert not driver.get_log("browser") and not requested(driver)
    finally:
        driver.quit()


def find(driver, selector: str) -> list:
    return driver.find_elements("css selector", selector)


def point_at(driver, element) -> None:
    """Move the pointer onto an element, from elsewhere: it may be there already, and then nothing would happen."""
    webdriver.ActionChains(driver).move_to_element(find(driver, "h1")[0]).move_to_element(element).perform()


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
    with browser(campaign, tmp_path_factory.mktemp("page")) as driver:
        yield driver


def shown_verdicts(driver, stop: int) -> list[str]:
    """Of each configuration the verdict that the colour of its cell means, with the slider at this stop."""
    return [VERDICTS.get(kind, "failed") for _, kind in sorted(move(driver, stop).items())]


def numbers_of_verdicts(driver) -> dict[str, Counter]:
    """What each part of the page says of the numbers of verdicts."""
    heads = texts(driver, "#s th")
    overview: Counter = Counter()
    for place, text in enumerate(texts(driver, "#s td")):
        name = heads[place % len(heads)]
        if name not in ("system", "largest network that meets it"):
            overview[name] += int(text)
    verdict = texts(driver, "#r th").index("verdict") + 1
    counted = [re.fullmatch(r"(\d+) (.*)", text.strip()) for text in texts(driver, "ul li")]
    output = texts(driver, "output")[0].partition(": ")[2].split(", ")
    return {
        "headline": Counter({match[2]: int(match[1]) for match in counted}),
        "slider": Counter({name: int(number) for number, name in (text.split(" ", 1) for text in output)}),
        "overview": overview,
        "rows": Counter(texts(driver, f"#r td:nth-child({verdict})")),
        "maps": Counter(
            driver.execute_script("return [...document.querySelectorAll('.map [title]')].map(e => e.title)")
        ),
    }


def test_every_colour_and_number_of_verdicts_follows_the_slider(opened, runs):
    """The colours, the headline, the slider's text, the overview, the table and the maps agree with `verdict`."""
    data = json.loads(texts(opened, "script")[0])
    before = opened.find_element("css selector", "body").text
    for stop, deadline_us in enumerate(map(float, data["stops"])):
        verdicts = lab.verdict(runs, deadline_us, "99")
        expected = [str(each.outcome) if each.n else "failed" for each in verdicts]
        assert shown_verdicts(opened, stop) == expected
        if stop % 6 and stop != data["given"]:
            continue
        for part, found in numbers_of_verdicts(opened).items():
            assert +found == Counter(expected), (part, deadline_us)
        for heading in (texts(opened, "h1")[0], opened.title):
            assert heading == with_micro(f"Which networks answer within {latency(deadline_us)}?")
        (moved,) = find(opened, "#moved")
        assert moved.is_displayed() == (stop != data["given"])
        grey = [each.value_of_css_property("opacity") != "1" for each in find(opened, ".fixed, #r td:last-child")]
        assert set(grey) == {stop != data["given"]}
        recorded = [each for each in find(opened, "p") if each.text.startswith("Recorded ")]
        assert recorded and all(each.value_of_css_property("opacity") == "1" for each in recorded)
    move(opened, data["given"])
    assert opened.find_element("css selector", "body").text == before


def test_the_shown_numbers_are_those_of_the_row_at_a_moved_deadline(opened):
    cell = find(opened, ".map a")[0]
    for stop in (0, json.loads(texts(opened, "script")[0])["given"]):
        move(opened, stop)
        point_at(opened, cell)
        verdict = cell.find_element("xpath", "..").get_attribute("title")
        (card,) = find(opened, "aside")
        assert wait_for(lambda card=card, verdict=verdict: f"verdict {verdict}," in card.text)
    find(opened, "body")[0].send_keys("\ue00c")


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
    field = find(opened, "input[type=search]")[0]
    field.send_keys("FAST missed")
    rows = texts(opened, "#r tbody tr:not([hidden])")
    assert rows and all("fast" in row and "MISSED" in row for row in rows)
    field.clear()
    field.send_keys(" ")
    assert len(texts(opened, "#r tbody tr:not([hidden])")) == len(find(opened, "#r tbody tr"))


def test_numbers_are_shown_under_the_pointer_and_the_curve_after_a_click(opened, runs):
    cell = find(opened, ".map td.m a")[0]
    row = texts(opened, f"#{cell.get_attribute('href').partition('#')[2]} td")
    point_at(opened, cell)
    (card,) = find(opened, "aside")
    assert wait_for(lambda: all(text in card.text for text in row)) and not find(opened, "aside svg")
    cell.click()
    assert wait_for(lambda: len(find(opened, "aside svg path")) > 5)
    group = runs[int(cell.get_attribute("href").partition("#r")[2])]
    low, high = sorted(group.rounds[0].timed_ns)[0] / 1e3, max(group.rounds[0].timed_ns) / 1e3
    ticks = [float(text) for text in texts(opened, "aside text") if re.fullmatch(r"[\d.]+", text)]
    assert ticks[0] == pytest.approx(low, rel=0.01) and ticks[-1] == pytest.approx(high, rel=0.01)
    find(opened, "body")[0].send_keys("\ue00c")
    assert wait_for(lambda: not card.is_displayed())


@pytest.mark.parametrize("size", [(21.0, 29.7), (21.59, 27.94)], ids=["A4", "letter"])
def test_it_prints(opened, size):
    options = printing.PrintOptions()
    options.page_width, options.page_height = size
    content = base64.b64decode(opened.print_page(options))
    assert content.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 8


#: Links each heading and the first cell or picture after it, so that a PDF has the page of both; returns their names.
LINK_HEADINGS = """
// What only a script shows is not printed.
const printed = (element) => element.getClientRects().length && !element.closest(".scripted");
const shown = (element) => printed(element) && element.getBoundingClientRect().width;
const link = (element, id) => {
  element.id = element.id || id;
  const to = document.createElement("a");
  to.href = "#" + element.id;
  to.textContent = ".";
  document.body.append(to);
  return element.id;
};
const contents = [...document.querySelectorAll("td, img")].filter(shown);
const named = [...document.querySelectorAll("h2, h3, caption")].filter((each) => each.textContent.trim());
const spacer = document.createElement("div");
spacer.id = "spacer";
document.querySelector("nav").before(spacer);
return named.filter(shown).map((heading, k) => {
  const next = contents.find((each) => heading.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_FOLLOWING);
  return [heading.textContent, link(heading, `heading${k}`), link(next.closest("tr") || next, `next${k}`)];
});"""


def test_headings_stay_with_what_follows_in_print(campaign, tmp_path):
    """Wherever they come to stand on the page: what stands before them is made higher by and by."""
    with browser(campaign, tmp_path) as driver:
        linked = driver.execute_script(LINK_HEADINGS)
        assert len(linked) > 6
        pages = set()
        for height in range(0, 1000, 45):
            driver.execute_script(f"document.querySelector('#spacer').style.height = '{height}px'")
            content = base64.b64decode(driver.print_page()).decode("latin1")
            page_of = dict(re.findall(r"/(\w+) \[(\d+) 0 R /XYZ", content))
            for name, heading, following in linked:
                assert page_of[heading] == page_of[following], (name, height)
            pages.add(page_of[linked[0][1]])
        assert len(pages) > 1


#: Elements that stick out of the window without standing in something that scrolls.
STICKING_OUT = """
const scrolls = (each) => each && (getComputedStyle(each).overflowX === "auto" || scrolls(each.parentElement));
return [...document.querySelectorAll("body *")]
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 1 && !scrolls(each.parentElement))
  .map((each) => each.outerHTML.slice(0, 80));"""


@pytest.mark.parametrize("planted", ["campaign", "hostile"])
def test_nothing_runs_out_of_400_pixels(planted, request, tmp_path):
    with browser(request.getfixturevalue(planted), tmp_path) as driver:
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False},
        )
        driver.refresh()
        assert driver.execute_script("return [innerWidth, document.documentElement.scrollWidth <= 400]") == [400, True]
        assert driver.execute_script(STICKING_OUT) == []
        recorded = next(each for each in find(driver, "p") if each.text.startswith("Recorded "))
        assert recorded.location["y"] < 800  # on the first screen
        if planted == "campaign":  # the answer and the maps need no scrolling
            wide = "return [...document.querySelectorAll('#s, .map')].filter(e => e.scrollWidth > e.clientWidth).length"
            assert driver.execute_script(wide) == 0


def test_without_a_script_everything_but_the_slider_is_there(campaign, tmp_path):
    with browser(campaign, tmp_path, script=False) as driver:
        assert not any(each.is_displayed() for each in find(driver, ".scripted"))
        for selector in ("h1", "#s", "#r", "#e", ".map", "figure img"):
            assert find(driver, selector) and all(each.is_displayed() for each in find(driver, selector)), selector
        assert {each.get_attribute("class") for each in find(driver, ".map td")} >= set("mxnf")


def test_hostile_names_do_nothing(hostile, tmp_path):
    with browser(hostile, tmp_path) as driver:
        for each in find(driver, ".map a"):
            driver.execute_script("arguments[0].click()", each)
        assert driver.title == "Which networks answer within 150 µs?"
        assert "<script>document" in texts(driver, "#r")[0] and len(find(driver, "#r tbody tr")) == 2 * len(HOSTILE)


# One of them, chosen by the seed: the report of so many recordings takes 10 to 20 s of CPU time.
@sampled(2)
@pytest.mark.parametrize("name", REPOSITORY)
def test_recordings_of_the_repository(name, tmp_path):
    """Opened, moved, clicked and printed; the colours at some deadlines are those of the command."""
    runs = lab.load([ROOT / path for path in REPOSITORY[name]])
    with browser(runs, tmp_path, deadline_us=1000) as driver:
        assert (tmp_path / "report.html").stat().st_size < 2_000_000
        data = json.loads(texts(driver, "script")[0])
        for stop in (data["given"], 20, 45):
            verdicts = lab.verdict(runs, float(data["stops"][stop]), "99")
            assert shown_verdicts(driver, stop) == [each.outcome for each in verdicts]
        find(driver, ".map a")[0].click()
        assert find(driver, "aside svg") and base64.b64decode(driver.print_page()).startswith(b"%PDF")
