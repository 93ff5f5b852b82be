"""The command `rerun`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from lstm_trt.cli.main import show
from lstm_trt.config.errors import UsageError
from lstm_trt.rerun import Run, parse_value, parse_yaml, rerun

EXAMPLE = "lstm-trt rerun notebooks/03_layers.ipynb notebooks/04_batch_size.ipynb -p deadline_us 500"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `rerun`."""
    add = parser.add_argument
    add("notebooks", type=Path, nargs="+", metavar="NOTEBOOK", help="notebooks, run one after the other")
    pair = {"nargs": 2, "action": "append", "default": [], "metavar": ("NAME", "VALUE")}
    add("-p", "--parameter", **pair, help="set a parameter to a number, True, False, None or text")
    add("-r", "--raw", **pair, help="set a parameter to this text, without conversion")
    yaml = "set parameters, for example 'hidden: [64, 128]'"
    add("-y", "--yaml", action="append", default=[], metavar="YAML", help=yaml)
    add("-k", "--kernel", metavar="NAME", help="kernel to use instead of the notebook's own")
    add("--cell-limit", type=int, metavar="S", help="time limit per cell in seconds")
    folder = "folder for the executed notebooks (default %(default)s)"
    add("--out", type=Path, default=Path("runs"), metavar="DIR", help=folder)
    add("--quiet", action="store_true", help="do not print progress")


def run(arguments: argparse.Namespace) -> int:
    """Run `rerun`; returns 0 if all notebooks completed, else 1."""
    values = [(name, parse_value(text)) for name, text in arguments.parameter]
    values += [item for text in arguments.yaml for item in parse_yaml(text).items()]
    as_json = arguments.format == "json"

    def print_run(done: Run) -> None:
        if done.failure is not None:
            show(f"lstm-trt: {done}", sys.stderr)
        elif not as_json:
            show(done)

    runs = rerun(
        arguments.notebooks,
        _unique(values),
        raw=_unique(arguments.raw),
        out=arguments.out,
        kernel=arguments.kernel,
        cell_limit_s=arguments.cell_limit,
        show_progress=not arguments.quiet,
        listener=print_run,
    )
    if as_json:
        print(json.dumps([done.as_dict() for done in runs], indent=1))  # parameters may be NaN
    return int(any(done.failure is not None for done in runs))


def _unique(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, value in pairs:
        if name in values:
            raise UsageError(f"the parameter {name} is given twice")
        values[name] = value
    return values
