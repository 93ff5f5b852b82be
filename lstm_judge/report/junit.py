"""A report as JUnit, for a build server."""

from collections.abc import Iterator
from xml.etree import ElementTree

from lstm_judge.outcomes import Change, Outcome
from lstm_judge.report.answer import Report
from lstm_judge.report.text import basis, title
from lstm_judge.verdict.text import sentence

#: Attribute of the suite -> the elements that it counts.
NUMBERS = {
    "tests": "testcase",
    "failures": "*/failure",
    "errors": "*/error",
    "skipped": "*/skipped",
}


def page(report: Report) -> str:
    """A test case per configuration: a failure unless it meets the deadline, an error if it could
    not be recorded.

    With a baseline one more for each that is in both: a failure if it is SLOWER. What is undecided
    is `undecided`. The warnings are its error output.
    """
    suite = ElementTree.Element("testsuite", name=title(report))
    suite.extend([*_verdicts(report), *_comparisons(report)])
    for attribute, path in NUMBERS.items():
        suite.set(attribute, str(len(suite.findall(path))))
    ElementTree.SubElement(suite, "system-out").text = "\n".join(map(report.shown, basis(report)))
    if report.runs.remarks:
        ElementTree.SubElement(suite, "system-err").text = "\n".join(
            map(report.shown, report.runs.remarks)
        )
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _verdicts(report: Report) -> Iterator[ElementTree.Element]:
    for (group, verdict), row in zip(report.verdicts.items(), report.rows, strict=True):
        place = "table"
        if row.configuration["runtime"]:
            place = f"{row.configuration['runtime']}.{row.configuration['precision']}"
        case = _case(report, place, group.name)
        if group.failure is not None:
            _add(report, case, "error", group.failure.stage or "failed", group.failure.reason)
        elif verdict.outcome == Outcome.MISSED:
            _add(report, case, "failure", "missed", sentence(verdict))
        elif verdict.outcome == Outcome.NOT_ENOUGH_EVIDENCE:
            _add(report, case, report.undecided, "not-enough-evidence", sentence(verdict))
        yield case


def _comparisons(report: Report) -> Iterator[ElementTree.Element]:
    header, rows = report.compared
    for row in rows:
        text = "; ".join(f"{name}: {cell}" for name, cell in zip(header, row, strict=True) if cell)
        case = _case(report, "baseline", row[0])
        if Change.SLOWER in row:
            _add(report, case, "failure", "slower", text)
        elif Change.AMBIGUOUS in row:
            _add(report, case, report.undecided, "ambiguous", text)
        ElementTree.SubElement(case, "system-out").text = report.shown(text)
        yield case


def _case(report: Report, place: str, name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=report.cut(place), name=report.shown(name))


def _add(report: Report, case: ElementTree.Element, tag: str, kind: str, message: str) -> None:
    """Say what is wrong with a case: a failure, an error, or that it is skipped."""
    ElementTree.SubElement(case, tag, type=report.shown(kind), message=report.shown(message))
