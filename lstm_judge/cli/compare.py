"""The command `compare`."""

import argparse
from pathlib import Path

from lstm_judge.cli import common
from lstm_judge.compare.answer import Question
from lstm_judge.compare.compare import compare
from lstm_judge.read.runs import NotATable, Runs, load
from lstm_judge.statistics.quantiles import EFFECT
from lstm_trt.cli.common import deadline_argument, given

EXAMPLE = """lstm-trt compare before after another
  lstm-trt compare before after --deadline-us 1000 --percentile 99.9
  lstm-trt compare before.csv after.csv --column latency --unit us
exit status: 0 SAME, FASTER or FEWER misses, 1 SLOWER or MORE misses, 3 AMBIGUOUS (the worst of\
 all), 2 invalid input"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `compare`."""
    parser.add_argument("a", type=Path, metavar="A", help=common.PATH_HELP)
    parser.add_argument(
        "b",
        type=Path,
        nargs="+",
        metavar="B",
        help="recordings or tables that are compared with A, each by itself",
    )
    comparison_arguments(parser)
    deadline_argument(
        parser, "also compare the miss rates at this deadline: they differ by a ratio above 1.25"
    )
    parser.add_argument(
        "--percentile",
        metavar="P",
        help="percentile of the tail (default: the highest that all processes have enough trials"
        " for)",
    )
    common.table_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `compare`; returns 1 SLOWER or MORE misses, 3 AMBIGUOUS, else 0; of several the worst, 1
    first."""
    question = given(arguments, Question)
    Question(**question)  # refused before the recordings are loaded, which may take long
    return common.print_answers(arguments, compare(*_sides(arguments), **question))


def _sides(arguments: argparse.Namespace) -> list[Runs]:
    """Load the runs of A and of the others; the options of `table_arguments` are for those that are
    tables."""
    sides, refused = [], []
    for path in (arguments.a, *arguments.b):
        try:
            sides.append(common.load_runs(arguments, path))
        except NotATable as error:
            refused.append(error)
            sides.append(load(path).where(**common.selection(arguments)))
    if len(refused) == len(sides):
        raise refused[0]
    return sides


def comparison_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the smallest relevant difference and the confidence of a comparison."""
    parser.add_argument(
        "--effect",
        type=float,
        default=EFFECT,
        metavar="E",
        help="smallest relative difference that is relevant (default %(default)s)",
    )
    common.confidence_argument(parser, "confidence of each comparison")
