"""The command `scaling`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lstm_trt.analysis.scaling import scaling
from lstm_trt.cli.common import print_answer, print_files
from lstm_trt.config.errors import UsageError
from lstm_trt.plots.scaling import draw_scaling

EXAMPLE = 'lstm-trt scaling table.csv --rename "Num LSTM layers=layers" "Average time (s)=latency_s" --format json'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `scaling`."""
    add = parser.add_argument
    add("path", type=Path, help="recordings (file, folder or consolidated pair), or a CSV or Parquet table of times")
    rename = (
        "name a column of the table layers, hidden, sequence, batch or latency_us (or _ns, _ms, _s);"
        " runtime, device_name and others keep systems apart; OLD= ignores the column"
    )
    add("--rename", nargs="+", action="extend", default=[], metavar="OLD=NEW", help=rename)
    ratio = "report only pairs whose latencies differ by at least this ratio (default %(default)g: all)"
    add("--min-ratio", type=float, default=1.0, metavar="R", help=ratio)
    add("--figures", type=Path, metavar="DIR", help="draw the figures into this folder")


def run(arguments: argparse.Namespace) -> int:
    """Run `scaling`; returns the exit status."""
    answers = scaling(arguments.path, arguments.min_ratio, renames(arguments.rename))
    print_answer(answers, arguments.format)
    if arguments.figures:
        print_files(draw_scaling(answers.findings, arguments.figures))
    return 0


def renames(given: Sequence[str]) -> dict[str, str]:
    """`["Num LSTM layers=layers"]` -> `{"Num LSTM layers": "layers"}`; raises `UsageError` without a `=`."""
    found: dict[str, str] = {}
    for text in given:
        old, equals, new = text.rpartition("=")
        if not equals or not old.strip():
            raise UsageError(f'--rename takes OLD=NEW, as in "Average time (s)=latency_s", not {text!r}')
        if found.setdefault(old.strip(), new.strip()) != new.strip():
            raise UsageError(f"--rename gives {old.strip()!r} two names")
    return found
