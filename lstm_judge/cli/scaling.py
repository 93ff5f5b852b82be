"""The command `scaling`."""

import argparse

from lstm_judge.cli import common
from lstm_judge.scaling.scaling import scaling
from lstm_trt.cli.common import figure_arguments

EXAMPLE = (
    'lstm-trt scaling table.csv --rename "Num LSTM layers=layers" "Average time (s)=latency_s"'
    " --format json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `scaling`."""
    common.path_argument(
        parser,
        "recordings (file or folder), or a CSV or Parquet table with columns layers, hidden,"
        " sequence, batch and latency_us (or _ns, _ms, _s); columns such as runtime and device_name"
        " distinguish systems",
    )
    parser.add_argument(
        "--min-ratio",
        type=float,
        default=1.0,
        metavar="R",
        help="list larger networks that are faster from this ratio slower / faster on (default"
        " %(default)g: all)",
    )
    figure_arguments(parser, "draw the figures into this folder")
    common.table_arguments(parser, grouped=False)


def run(arguments: argparse.Namespace) -> int:
    """Run `scaling`; returns the exit status."""
    answers = scaling(
        arguments.path,
        arguments.min_ratio,
        common.renames(arguments.rename),
        arguments.column,
        arguments.unit,
        common.selection(arguments),
    )
    return common.print_answers(arguments, answers, "draw_scaling", answers.findings)
