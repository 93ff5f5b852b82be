"""The command `summarize`."""

import argparse

from lstm_judge.cli import common
from lstm_judge.summarize.summarize import summarize
from lstm_judge.verdict.question import Question
from lstm_trt.cli.common import deadline_argument, figure_arguments
from lstm_trt.config.errors import UsageError

EXAMPLE = """lstm-trt summarize recordings --format csv > summary.csv
  lstm-trt summarize times.csv --column latency --unit ms --group-by runtime hidden"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `summarize`."""
    common.path_argument(parser)
    parser.add_argument(
        "--by-round",
        action="store_true",
        help="one row per round (one recording in its own process)",
    )
    parser.add_argument(
        "--clusters",
        choices=("yes", "no"),
        default="yes",
        help="search for clusters and a steady state, which takes most of the time (default yes)",
    )
    common.percentiles_argument(parser)
    figure_arguments(parser, "draw the figures into this folder")
    deadline_argument(parser, "also print which configurations meet this deadline, and draw it")
    common.table_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `summarize`; returns the exit status."""
    if arguments.deadline_us is not None:
        Question(
            arguments.deadline_us
        )  # refused before the recordings are loaded, which may take long
    runs = common.load_runs(arguments, arguments.path, latencies=True)
    if arguments.figures and not runs.own:
        raise UsageError(
            f"--figures needs recordings made by lstm-trt, but {runs.source} is a table: omit it,"
            " or draw tables with lstm-trt outliers, verdict or scaling --figures"
        )
    answers = summarize(
        runs, arguments.by_round, arguments.clusters == "yes", arguments.percentiles
    )
    status = common.print_answers(
        arguments, answers, "draw_sweep", runs, deadline_us=arguments.deadline_us
    )
    common.conclude(runs, arguments.deadline_us, arguments.format)
    return status
