"""A report as JUnit, for a build server."""

from typing import Any
from xml.etree import ElementTree

from lstm_judge.outcomes import Change, Outcome
from lstm_judge.verdict.text import sentence


def page(report: Any) -> str:
    """A test case per configuration: a failure unless it meets the deadline, an error if it could
    not be recorded.

    With a baseline one more for each that is in both: a failure if it is SLOWER. What is undecided
    is `undecided`. The warnings are its error output.
    """
    cases = []
    for (group, verdict), row in zip(report.verdicts.items(), report.rows, strict=True):
        found = {
            Outcome.MISSED: ("failure", "missed", sentence(verdict)),
            Outcome.NOT_ENOUGH_EVIDENCE: (
                report.undecided,
                "not-enough-evidence",
                sentence(verdict),
            ),
        }.get(verdict.outcome)
        if group.failure is not None:
            found = ("error", group.failure.stage or "failed", group.failure.reason)
        cases.append(
            (
                ".".join(
                    filter(None, (row.configuration["runtime"], row.configuration["precision"]))
                )
                or "table",
                group.name,
                found,
                "",
            )
        )
    header, rows = report.compared if report.comparisons else ([], [])
    for row in rows:
        text = "; ".join(f"{name}: {cell}" for name, cell in zip(header, row, strict=True) if cell)
        found = None
        if Change.SLOWER in row:
            found = ("failure", "slower", text)
        elif Change.AMBIGUOUS in row:
            found = (report.undecided, "ambiguous", text)
        cases.append(("baseline", row[0], found, text))

    suite = ElementTree.Element("testsuite", name=report.title)
    tags = []
    for place, name, found, output in cases:
        case = ElementTree.SubElement(
            suite, "testcase", classname=report.cut(place), name=report.shown(name)
        )
        if found:
            tag, kind, message = found
            tags.append(tag)
            ElementTree.SubElement(
                case, tag, type=report.shown(kind), message=report.shown(message)
            )
        if output:
            ElementTree.SubElement(case, "system-out").text = report.shown(output)
    ElementTree.SubElement(suite, "system-out").text = "\n".join(map(report.shown, report.basis))
    numbers = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.attrib |= {
        "tests": str(len(cases)),
        **{name: str(tags.count(tag)) for name, tag in numbers.items()},
    }
    if report.runs.remarks:
        ElementTree.SubElement(suite, "system-err").text = "\n".join(
            map(report.shown, report.runs.remarks)
        )
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
