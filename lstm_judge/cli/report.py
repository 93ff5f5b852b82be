"""The command `report`."""

import argparse
from pathlib import Path

from lstm_judge.cli import common
from lstm_judge.cli.verdict import question_arguments
from lstm_judge.report.report import report
from lstm_judge.verdict.question import Question
from lstm_trt.cli.common import given, print_answer, print_files

EXAMPLE = """lstm-trt report recordings --deadline-us 1000 --percentile 99 --out report.html
exit status: that of verdict, with --baseline that of compare"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `report`."""
    add = parser.add_argument
    common.path_argument(parser)
    question_arguments(parser)
    add(
        "--out",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="file, or several: .html (everything in one file), .md (a short form), .xml (JUnit)",
    )
    add("--baseline", type=Path, metavar="A", help="recordings that these are compared with")
    add("--anonymous", action="store_true", help="leave out host name, user and paths")
    add(
        "--undecided",
        choices=("failure", "skipped"),
        default="failure",
        help="what NOT ENOUGH EVIDENCE is in JUnit (default failure)",
    )
    add(
        "--explore",
        action="store_true",
        help="the HTML file also has the calls in order, and neighbours compared with each other",
    )
    common.percentiles_argument(parser)
    common.table_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `report`; returns the exit status of the verdicts, with a baseline that of the
    comparison."""
    baseline = arguments.baseline and common.load_runs(arguments, arguments.baseline)
    found = report(
        common.load_runs(arguments, arguments.path),
        baseline=baseline,
        **given(arguments, Question),
        **common.values(arguments, ("out", "anonymous", "undecided", "explore", "percentiles")),
    )
    warnings = [*found.verdicts.warnings, *(baseline.remarks if baseline else ())]
    print_answer(found, arguments.format, warnings)
    print_files(arguments.out)
    return found.exit_status or common.incomplete_status(warnings)
