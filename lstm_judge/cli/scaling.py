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
    path = (
        "recordings (file or folder), or a CSV or Parquet table with columns layers, hidden,"
        " sequence, batch and latency_us (or _ns, _ms, _s); columns such as runtime and device_name"
        " distinguish systems"
    )
    common.path_argument(parser, path)
    faster = "list larger networks that are faster from this ratio slower / faster on"
    parser.add_argument(
        "--min-ratio",
        type=float,
        default=1.0,
        metavar="R",
        help=f"{faster} (default %(default)g: all)",
    )
    figure_arguments(parser, "draw the figures into this folder")
    common.table_arguments(parser, grouped=False)


def run(arguments: argparse.Namespace) -> int:
    """Run `scaling`; returns the exit status."""
    names = common.renames(arguments.rename)
    where = common.selection(arguments)
    answers = scaling(
        arguments.path, arguments.min_ratio, names, arguments.column, arguments.unit, where
    )
    return common.print_answers(arguments, answers, "draw_scaling", answers.findings)
