"""The command `compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lstm_trt.analysis.compare import check_question, compare
from lstm_trt.cli import common

EXAMPLE = (
    "lstm-trt compare before after\n"
    "  lstm-trt compare before.csv after.csv --column latency --unit us\n"
    "exit status: 0 SAME or FASTER, 1 SLOWER, 3 AMBIGUOUS (the worst of median and tail), 2 invalid input"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `compare`."""
    parser.add_argument("a", type=Path, metavar="A", help=common.PATH_HELP)
    parser.add_argument("b", type=Path, metavar="B", help="second recordings or table, compared with A")
    common.comparison_arguments(parser)
    common.table_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `compare`; returns 0 SAME or FASTER, 1 SLOWER, 3 AMBIGUOUS; of several the worst, SLOWER first."""
    check_question(arguments.effect, arguments.confidence)  # before the recordings are loaded, which may take long
    a, b = common.load_sides(arguments, arguments.a, arguments.b)
    return common.print_answers(arguments, compare(a, b, arguments.effect, arguments.confidence))
