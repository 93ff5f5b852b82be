"""A report in a few lines of Markdown, for a pull request, and as JUnit, for a build server."""

from typing import Any
from xml.etree import ElementTree

from lstm_trt.analysis.answers import frame_cells
from lstm_trt.analysis.outcomes import Outcome
from lstm_trt.analysis.text.verdict import sentence
from lstm_trt.config.format import escaped, markdown

#: Most configurations in Markdown that do not meet the deadline.
MOST_ROWS = 20


def markdown_text(report: Any) -> str:
    """Warnings, the answer, the verdicts by system, and the configurations that do not meet the deadline."""
    reasons = (f"**Unfinished: {escaped(report.shown(reason))}.**" for reason in report.unfinished)
    warnings = (f"**Warning: {escaped(report.shown(warning))}.**" for warning in report.runs.warnings)
    lines = [
        f"## {report.title}",
        *reasons,
        *warnings,
        *(escaped(line) for line in report.answer),
        _table(report, *report.overview),
    ]
    frame = report.verdicts.frame
    others = frame.loc[frame["verdict"] != Outcome.MET]
    if len(others):
        lines.append(_table(report, *frame_cells(others.head(MOST_ROWS))))
    if len(others) > MOST_ROWS:
        lines.append(f"and {len(others) - MOST_ROWS} more that do not meet it")
    return "\n\n".join(lines) + "\n"


def _table(report: Any, header: list[str], rows: list[list[str]]) -> str:
    return markdown(header, [[*map(report.cut, row[:-1]), report.shown(row[-1])] for row in rows]).rstrip()


def junit(report: Any) -> str:
    """A test case per configuration: a failure unless it meets the deadline, an error if it could not be recorded.

    The warnings are its output.
    """
    suite, tags = ElementTree.Element("testsuite", name=report.title), []
    for (group, verdict), row in zip(report.verdicts.items(), report.rows, strict=True):
        place = ".".join(filter(None, (row.runtime, row.precision))) or "table"
        case = ElementTree.SubElement(suite, "testcase", classname=report.cut(place), name=report.shown(group.name))
        found = {
            Outcome.MISSED: ("failure", "missed", sentence(verdict)),
            Outcome.NOT_ENOUGH_EVIDENCE: (report.undecided, "not-enough-evidence", sentence(verdict)),
        }.get(verdict.verdict)
        if group.failure is not None:
            found = ("error", group.failure.stage or "failed", group.failure.reason)
        if found:
            tag, kind, message = found
            tags.append(tag)
            ElementTree.SubElement(case, tag, type=report.shown(kind), message=report.shown(message))
    numbers = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.attrib |= {"tests": str(len(suite)), **{name: str(tags.count(tag)) for name, tag in numbers.items()}}
    if report.runs.warnings:
        ElementTree.SubElement(suite, "system-err").text = "\n".join(map(report.shown, report.runs.warnings))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
