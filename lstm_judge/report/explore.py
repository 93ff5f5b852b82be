"""The recordings as a page to explore, in the output of a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from lstm_judge.answers import runs_to_judge
from lstm_judge.plots.heatmap import heat_map, map_axes
from lstm_judge.plots.style import Picture
from lstm_judge.plots.tail import choose_tails, tails
from lstm_judge.read.runs import RunsSource
from lstm_judge.report import html
from lstm_judge.report.answer import Report
from lstm_judge.report.report import report
from lstm_judge.statistics.quantiles import DEFAULT_CONFIDENCE, check_confidence
from lstm_judge.verdict.verdict import evidence_percentile
from lstm_trt.config.errors import UsageError, file_errors
from lstm_trt.config.format import warning_lines
from lstm_trt.store.files import write_whole

#: Height of the page in the output of a cell, in pixels: a screen with the notebook's own bars.
HEIGHT = 640

#: How to see the page where its elements are not let through.
TRUST = (
    "The page to explore is not shown in a notebook that is not trusted. Run this cell, or in"
    " JupyterLab choose View, Activate Command Palette, Trust Notebook."
)


def explore(
    runs: RunsSource,
    deadline_us: float = 1000,
    percentile: str | float | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
) -> Explorer:
    """Linked views of recordings for the output of a notebook's cell: a map with the axes and the
    value that the reader chooses, a deadline in us that can be moved, and what belongs to a cell.

    A click on a cell shows its tail, its calls in order, its clusters, its neighbours and the call
    that loads it; a shift-click on a second one compares both. `runs`: the result of `load`, or a
    path, recordings or groups. `percentile` (in percent) is that of `verdict`, by default
    the highest of p99, p99.9, p99.99 and p99.999 that each configuration can prove, and
    `confidence` that of the verdicts and of the comparisons of neighbours. The page computes no
    statistics and loads nothing. Raises `UsageError` as `verdict` does.
    """
    runs = runs_to_judge(runs, bounds=True)
    if percentile is None:
        shortest = min((group.n for group in runs if group.n), default=0)
        percentile = evidence_percentile(shortest, check_confidence(confidence)) or "99"
    return Explorer(report(runs, deadline_us, percentile, confidence, explore=True))


@dataclass(frozen=True, eq=False, repr=False)
class Explorer:
    """A page to explore what `report` says; `write` makes a file of it that any browser opens."""

    report: Report

    @property
    def sentence(self) -> str:
        """The answer in one line."""
        return self.report.verdicts.sentence

    @property
    def page(self) -> str:
        """The page as HTML."""
        return html.explorer(self.report)

    @property
    def figure(self) -> Picture:
        """What is seen without the page: the map of the maxima, of tables from elsewhere tails."""
        runs = self.report.runs
        deadline_us = self.report.verdicts[0].question.deadline_us
        try:
            return heat_map(runs, *map_axes(runs), deadline_us=deadline_us)
        except UsageError:  # no sizes are known
            return tails(choose_tails(runs), deadline_us=deadline_us, relative=False)

    def write(self, path: str | Path) -> None:
        """Write the page to a file of its own, whatever its name. Raises `UsageError` if it cannot
        be written."""
        with file_errors(f"write {path}"):
            write_whole(Path(path), self.page.encode())

    @property
    def _said(self) -> list[str]:
        return [*warning_lines(self.report.verdicts.warnings), f"{self.sentence}."]

    def __repr__(self) -> str:
        return f"<Explorer: {self.sentence}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the warnings and the sentence in a terminal, and where a notebook becomes a PDF."""
        printer.text("\n".join([*self._said, "`write` makes a page of it to explore."]))

    def _repr_html_(self) -> str:
        """Show the page in Jupyter, and only where it is not let through the figure."""
        page = self.page
        name = f"explorer-{sha256(page.encode()).hexdigest()}"
        figure = self.figure._repr_mimebundle_()["text/html"]
        # Single quotes, of which a page has few.
        inner = page.replace("&", "&amp;").replace("'", "&#39;")
        said = "<br>".join(map(escape, [*self._said, TRUST]))
        static = self.report.shown(f"<p>{said}</p>{figure}")
        return (
            f"<style>#{name} {{ display: none; }}</style>\n"
            f'<div id="{name}">{static}</div>\n'
            f'<iframe sandbox="allow-scripts" title="Page to explore" width="100%"'
            f' height="{HEIGHT}" frameborder="0" srcdoc=\'{inner}\'></iframe>'
        )
