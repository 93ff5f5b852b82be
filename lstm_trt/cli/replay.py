"""The command `replay`."""

from __future__ import annotations

import argparse

from lstm_trt.analysis.replay import replay
from lstm_trt.cli.common import deadline_argument, load_runs, path_argument, print_answer, table_arguments

EXAMPLE = "lstm-trt replay recordings --period-us 1000 --deadline-us 1000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `replay`."""
    add = parser.add_argument
    path_argument(parser)
    add("--period-us", type=float, required=True, metavar="US", help="time between calls at the fixed rate")
    deadline_argument(parser, "deadline, counted from the time a call is due (default: the period)")
    table_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `replay`; returns the exit status."""
    runs = load_runs(arguments, arguments.path)
    answers = replay(runs, arguments.period_us, arguments.deadline_us)
    print_answer(answers, arguments.format, answers.warnings)
    return 0
