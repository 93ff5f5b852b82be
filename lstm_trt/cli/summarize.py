"""The command `summarize`."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

from lstm_trt.analysis import summary
from lstm_trt.analysis.tables import text_table
from lstm_trt.cli.common import PATH_HELP, draw_recordings, print_json, table_arguments, table_options, warn
from lstm_trt.config.errors import UsageError
from lstm_trt.store.runs import load

EXAMPLE = (
    "lstm-trt summarize recordings --format csv > summary.csv\n"
    "  lstm-trt summarize times.csv --column latency --unit ms --group-by runtime hidden"
)

FORMATS = ("table", "csv", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `summarize`."""
    add = parser.add_argument
    add("path", type=Path, help=PATH_HELP)
    add("--by-round", action="store_true", help="one row per round")
    add("--figures", type=Path, metavar="DIR", help="draw the figures into this folder")
    add("--deadline-us", type=float, metavar="US", help="deadline to show in the figures")
    table_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `summarize`; returns the exit status."""
    found = load(arguments.path, **table_options(arguments))
    if found.own:
        rows = summary.summarize(found.recordings, arguments.by_round)
    else:
        if arguments.figures:
            raise UsageError(f"--figures draws recordings of this lab, and {arguments.path} is a table: leave it out")
        warn(found.warnings)
        rows = summary.summarize_groups(found.groups, arguments.by_round)
    if arguments.format == "json":
        print_json([row.as_dict() for row in rows])
    elif arguments.format == "csv":
        writer = csv.DictWriter(sys.stdout, summary.FIELDS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(name, value) for name, value in row.as_dict().items()})
    else:
        print(text_table(rows))
    if arguments.figures:
        draw_recordings(arguments.path, arguments.figures, arguments.deadline_us)
    return 0


def _cell(name: str, value: object) -> object:
    """A CSV cell: lists of rounds with spaces between, other structures as JSON."""
    if name.endswith("_rounds"):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, (list, dict)) else value
