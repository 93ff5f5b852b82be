"""The command `consolidate`."""

import argparse
from pathlib import Path

from lstm_trt.cli.common import print_answer
from lstm_trt.store.folders import consolidate_folder

EXAMPLE = "lstm-trt consolidate recordings --out data/campaign"

FORMATS = ("text", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `consolidate`."""
    parser.add_argument("path", type=Path, help="folder of recordings")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the two files (default: the same folder)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run `consolidate`."""
    print_answer(consolidate_folder(arguments.path, arguments.out), arguments.format)
