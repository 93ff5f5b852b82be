"""The command `verdict`."""

import argparse

from lstm_judge.cli import common
from lstm_judge.verdict.question import Question
from lstm_judge.verdict.verdict import verdict
from lstm_trt.cli.common import deadline_argument, figure_arguments, given

EXAMPLE = """lstm-trt verdict recordings --deadline-us 1000 --percentile 99.9 --confidence 0.95
  lstm-trt verdict times.csv --column latency --unit us --deadline-us 1000
exit status: 0 MET, 1 MISSED, 3 NOT ENOUGH EVIDENCE, 2 invalid input"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `verdict`."""
    common.path_argument(parser)
    question_arguments(parser)
    figure_arguments(parser, "draw a report page per configuration into this folder")
    common.table_arguments(parser)


def question_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is tested, the fields of `Question`."""
    add = parser.add_argument
    deadline_argument(parser, "deadline in microseconds; a longer latency is a miss", required=True)
    add(
        "--percentile",
        default="99.9",
        metavar="P",
        help="percentile that must meet the deadline (default %(default)s)",
    )
    common.confidence_argument(parser, "confidence of the verdict")
    bursts = "MET must hold if a miss lies, averaged over misses, in a burst of up to this length"
    add(
        "--burst-length",
        type=float,
        default=1.0,
        metavar="B",
        help=f"{bursts}, in calls (default 1)",
    )
    add(
        "--burst-ms",
        type=float,
        metavar="T",
        help=f"{bursts}, in ms: divided by the time of a call",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run `verdict`; returns 0 MET, 1 MISSED, 3 NOT ENOUGH EVIDENCE; of several the worst, MISSED
    first."""
    question = given(arguments, Question)
    Question(**question)  # refused before the recordings are loaded, which may take long
    answers = verdict(common.load_runs(arguments, arguments.path), **question)
    return common.print_answers(arguments, answers, "draw_verdicts", answers.runs, answers.answers)
