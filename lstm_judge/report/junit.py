"""A report as JUnit, for a build server."""

from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from lstm_judge.outcomes import Change, Outcome
from lstm_judge.report.answer import Report
from lstm_judge.report.text import basis, title
from lstm_judge.verdict.text import sentence

#: Tag of what is wrong with a case -> the attribute of the suite with their number.
NUMBERS = {"failure": "failures", "error": "errors", "skipped": "skipped"}


@dataclass(frozen=True)
class Case:
    """A test case; `tag` is one of `NUMBERS`, or empty if the case passes."""

    place: str
    name: str
    tag: str = ""
    kind: str = ""
    message: str = ""
    output: str = ""


def page(report: Report) -> str:
    """A test case per configuration: a failure unless it meets the deadline, an error if it could
    not be recorded.

    With a baseline one more for each that is in both: a failure if it is SLOWER. What is undecided
    is `undecided`. The warnings are its error output.
    """
    cases = [*_verdicts(report), *_comparisons(report)]
    suite = ElementTree.Element("testsuite", name=title(report))
    for case in cases:
        _add(suite, case, report)
    _add_text(suite, "system-out", map(report.shown, basis(report)))
    suite.set("tests", str(len(cases)))
    for tag, attribute in NUMBERS.items():
        suite.set(attribute, str(sum(case.tag == tag for case in cases)))
    _add_text(suite, "system-err", map(report.shown, report.runs.remarks))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _verdicts(report: Report) -> Iterator[Case]:
    for (group, verdict), row in zip(report.verdicts.items(), report.rows, strict=True):
        place = ".".join(filter(None, (row.runtime, row.precision))) or "table"
        if group.failure is not None:
            stage = group.failure.stage or "failed"
            yield Case(place, group.name, "error", stage, group.failure.reason)
        elif verdict.verdict == Outcome.MET:
            yield Case(place, group.name)
        elif verdict.verdict == Outcome.MISSED:
            yield Case(place, group.name, "failure", "missed", sentence(verdict))
        else:
            said = sentence(verdict)
            yield Case(place, group.name, report.undecided, "not-enough-evidence", said)


def _comparisons(report: Report) -> Iterator[Case]:
    header, rows = report.compared
    for row in rows:
        text = "; ".join(f"{name}: {cell}" for name, cell in zip(header, row, strict=True) if cell)
        tag = kind = message = ""
        if Change.SLOWER in row:
            tag, kind, message = "failure", "slower", text
        elif Change.AMBIGUOUS in row:
            tag, kind, message = report.undecided, "ambiguous", text
        yield Case("baseline", row[0], tag, kind, message, text)


def _add(suite: ElementTree.Element, case: Case, report: Report) -> None:
    names = {"classname": report.cut(case.place), "name": report.shown(case.name)}
    element = ElementTree.SubElement(suite, "testcase", names)
    if case.tag:
        why = {"type": report.shown(case.kind), "message": report.shown(case.message)}
        ElementTree.SubElement(element, case.tag, why)
    _add_text(element, "system-out", filter(None, [report.shown(case.output)]))


def _add_text(element: ElementTree.Element, tag: str, lines: Iterator[str]) -> None:
    """Add an element with these lines; none without a line."""
    text = "\n".join(lines)
    if text:
        ElementTree.SubElement(element, tag).text = text
