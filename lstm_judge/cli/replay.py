"""The command `replay`."""

import argparse

from lstm_judge.cli import common
from lstm_judge.replay import replay
from lstm_trt.cli.common import deadline_argument

EXAMPLE = "lstm-trt replay recordings --period-us 1000 --deadline-us 1000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `replay`."""
    common.path_argument(parser)
    parser.add_argument(
        "--period-us",
        type=float,
        required=True,
        metavar="US",
        help="time between calls at the fixed rate",
    )
    deadline_argument(parser, "deadline, counted from the time a call is due (default: the period)")
    common.percentiles_argument(parser)
    common.table_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `replay`; returns the exit status."""
    answers = replay(
        common.load_runs(arguments, arguments.path),
        arguments.period_us,
        arguments.deadline_us,
        arguments.percentiles,
    )
    return common.print_answers(arguments, answers)
