"""How a notebook that was run looks: converted by nbconvert and opened in Chromium, as wide as in JupyterLab."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

#: Outputs are then 993 px wide, as in a window of JupyterLab of 1440 x 757 beside its file browser.
WIDTH, HEIGHT = 1118, 757
#: Two screens of such a window, which shows so many pixels of a notebook below its bars.
TWO_SCREENS = 2 * 645
MOST_COLUMNS = 8

#: nbconvert's page without the scripts that it loads from elsewhere.
TEMPLATE = """{% extends "lab/index.html.j2" %}
{% block html_head_js %}{% endblock %}
{% block html_head_js_mathjax %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}"""

#: Of each cell its id, whether it is code, and what it shows: text, place, figures, columns of tables, excess of width.
LOOK = """
const top = (element) => Math.round(element.getBoundingClientRect().top + scrollY);
const excess = (element) => element.scrollWidth - element.clientWidth;
const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
const columns = (row) => [...row.cells].reduce((sum, cell) => sum + cell.colSpan, 0);
const look = (output) => ({
  text: output.innerText.trim(),
  top: top(output),
  figures: [...output.querySelectorAll("img, iframe")].filter((each) => each.getClientRects().length).map(top),
  columns: Math.max(0, ...[...output.querySelectorAll("tr")].map(columns)),
  excess: Math.max(...[output, ...[...output.querySelectorAll("*")].filter(scrolls)].map(excess)),
});
// What a user writes into the cell of parameters, and what is shown only while recording.
const added = document.querySelectorAll(".celltag_injected-parameters");
const recording = [...document.querySelectorAll(".jp-OutputArea")].filter((each) => each.innerText.includes("█"));
for (const each of [...added, ...recording]) each.remove();
return [...document.querySelectorAll(".jp-Cell")].map((cell) => ({
  id: cell.id.replace("cell-id=", ""),
  code: cell.classList.contains("jp-CodeCell"),
  outputs: [...cell.querySelectorAll(".jp-OutputArea-output, .jp-MarkdownOutput")].map(look),
}));"""


def look(notebook: Any, folder: Path) -> list[dict]:
    """The cells as `LOOK` finds them; skips the test where there is no browser."""
    from tests.lstm_judge.report.test_browser import BROWSER, DRIVER, opened_page  # skips without selenium

    exporter = pytest.importorskip("nbconvert").HTMLExporter(raw_template=TEMPLATE)
    if not (BROWSER and DRIVER):
        pytest.skip("how the notebook looks: needs chromium and chromium-driver")
    path = folder / "notebook.html"
    path.write_text(exporter.from_notebook_node(notebook)[0], encoding="utf-8")
    with opened_page(path) as driver:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        return driver.execute_script(LOOK)


def faults(cells: list[dict]) -> list[str]:
    """What a reader should not meet: a line each; none if the notebook begins with its answer and is easy to read."""
    found = list(faults_of_the_answer(cells))
    for cell in cells:
        for number, output in enumerate(cell["outputs"], 1):
            name = f"output {number} of cell {cell['id']} ({output['text'][:40]!r})"
            if output["columns"] > MOST_COLUMNS:
                found.append(f"{name}: a table of {output['columns']} columns, at most {MOST_COLUMNS}")
            if output["excess"] > 2:
                found.append(f"{name}: {output['excess']} px wider than its place")
            if output["text"].startswith("warning:"):
                found.append(f"{name}: begins with a warning")
    return found


def faults_of_the_answer(cells: list[dict]):
    """The first output is that of the cell `answer`: sentences with a number, then one figure, on two screens."""
    showing = [cell["id"] for cell in cells if cell["code"] and cell["outputs"]]
    if showing[:1] != ["answer"]:
        yield f"the first cells with an output are {', '.join(showing[:3])}: answer is not the first"
    outputs = next((cell["outputs"] for cell in cells if cell["id"] == "answer"), [])
    figures = [top for output in outputs for top in output["figures"]]
    sentences = [output["top"] for output in outputs if re.search(r"\d", output["text"])]
    if len(figures) != 1:
        yield f"answer has {len(figures)} figures, not one"
    if not sentences:
        yield "answer has no text with a number"
    for name, tops in (("first sentence", sentences), ("figure", figures)):
        if tops and tops[0] > TWO_SCREENS:
            yield f"the {name} of answer begins at {tops[0]} px, below two screens ({TWO_SCREENS} px)"
    if sentences and figures and sentences[0] > figures[0]:
        yield "the figure of answer stands above its first sentence"
