"""The command `outliers`."""

import argparse

from lstm_judge.cli import common
from lstm_judge.outliers.outliers import outliers
from lstm_judge.outliers.text import AT_LENGTH
from lstm_trt.cli.common import figure_arguments

EXAMPLE = """lstm-trt outliers recordings
  lstm-trt outliers times.csv --column latency_us --group-by hidden"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `outliers`."""
    common.path_argument(parser)
    figure_arguments(parser, "draw the latency tail and the trials in order into this folder")
    common.table_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `outliers`; returns the exit status."""
    runs = common.load_runs(arguments, arguments.path)
    short = len(runs) > AT_LENGTH and arguments.format != "json" and not arguments.figures
    answers = outliers(runs, causes=not short)  # the short form shows no causes and periods
    return common.print_answers(arguments, answers, "draw_outliers", answers.runs, answers.answers)
