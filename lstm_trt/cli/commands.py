"""The commands `scaling` and `rerun` of the command line: their arguments, calls and printing.

Each has a function that adds its arguments to a parser and one that runs it and returns
the exit status. Importing this loads nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lstm_trt.cli.common import print_json, tell_files
from lstm_trt.config.errors import UsageError

SCALING_SUMMARY = "how latency grows with each size: linearity, breaks, inversions, batching"

SCALING_EXAMPLE = (
    'lstm-trt scaling table.csv --rename "Num LSTM layers=layers" "Average time (s)=latency_s" --format json'
)

RERUN_SUMMARY = "run notebooks with parameters, strictly: one that does not run to its end fails"

RERUN_EXAMPLE = "lstm-trt rerun notebooks/03_layers.ipynb notebooks/04_batch_size.ipynb -p trials 1000"


def scaling_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `scaling`."""
    parser.add_argument(
        "path", type=Path, help="recordings (a file, a folder, a consolidated pair), or a CSV or Parquet table of times"
    )
    parser.add_argument(
        "--rename",
        nargs="+",
        action="extend",
        default=[],
        metavar="OLD=NEW",
        help="call a column of the table layers, hidden, sequence, batch, latency_us (or _ns, _ms, _s),"
        ' or runtime, device_name, ... to keep systems apart; "OLD=" leaves it out',
    )
    parser.add_argument(
        "--min-ratio",
        type=float,
        default=1.0,
        metavar="R",
        help="report only pairs with slower / faster of at least this (default 1: all)",
    )
    parser.add_argument("--figures", type=Path, default=None, metavar="DIR", help="draw the figures there as well")


def scaling(arguments: argparse.Namespace) -> int:
    """Run `scaling`; returns the exit status."""
    from lstm_trt.analysis.scaling import examine
    from lstm_trt.analysis.text import scaling_text as words
    from lstm_trt.analysis.times import read_times
    from lstm_trt.plots.scaling import draw_scaling

    findings = examine(read_times(arguments.path, renames(arguments.rename)), arguments.min_ratio)
    if arguments.format == "json":
        print_json(findings.as_dict())
    else:
        print(words(findings))
    if arguments.figures:
        tell_files(draw_scaling(findings, arguments.figures))
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


def rerun_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `rerun`."""
    parser.add_argument("notebooks", type=Path, nargs="+", metavar="NOTEBOOK", help="run one after the other")
    pair = {"nargs": 2, "action": "append", "default": [], "metavar": ("NAME", "VALUE")}
    parser.add_argument("-p", "--parameter", **pair, help="a number, True, False, None, or text")
    parser.add_argument("-r", "--raw", **pair, help="text, whatever it looks like")
    parser.add_argument(
        "-y", "--yaml", action="append", default=[], metavar="YAML", help="as in -y 'hidden: [64, 128]'"
    )
    parser.add_argument("-k", "--kernel", default=None, metavar="NAME", help="instead of the one a notebook names")
    parser.add_argument("--cell-limit", type=int, default=None, metavar="S", help="seconds a cell may take")
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for what ran (default runs)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress line")


def rerun(arguments: argparse.Namespace) -> int:
    """Run `rerun`; returns 0 where all notebooks ran to their end, else 1."""
    from lstm_trt.rerun import Run, parse_value, parse_yaml, rerun

    given = [(name, parse_value(text)) for name, text in arguments.parameter]
    given += [item for text in arguments.yaml for item in parse_yaml(text).items()]
    as_json = arguments.format == "json"

    def tell(run: Run) -> None:
        if run.failure is not None:
            print(f"lstm-trt: {run.line}", file=sys.stderr, flush=True)
        elif not as_json:
            print(run.line, flush=True)

    runs = rerun(
        arguments.notebooks,
        _once(given),
        raw=_once(arguments.raw),
        out=arguments.out,
        kernel=arguments.kernel,
        cell_limit_s=arguments.cell_limit,
        show_progress=not arguments.quiet,
        listener=tell,
    )
    if as_json:
        print(json.dumps([run.as_dict() for run in runs], indent=1))  # parameters may be NaN
    return int(any(run.failure is not None for run in runs))


def _once(given: Sequence[Sequence]) -> dict:
    found: dict = {}
    for name, value in given:
        if name in found:
            raise UsageError(f"the parameter {name} is given twice")
        found[name] = value
    return found
