"""The command `rerun`."""

import argparse
import sys
from pathlib import Path

from lstm_judge.rerun import Run, check_papermill, parse_value, rerun
from lstm_trt.cli.common import print_json
from lstm_trt.cli.main import show
from lstm_trt.config.errors import UsageError

EXAMPLE = (
    "lstm-trt rerun notebooks/03_layers.ipynb notebooks/04_batch_size.ipynb -p deadline_us 500"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `rerun`."""
    add = parser.add_argument
    add(
        "notebooks",
        type=Path,
        nargs="+",
        metavar="NOTEBOOK",
        help="notebooks, run one after the other",
    )
    add(
        "-p",
        "--parameter",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="set a parameter to a number, True, False, None or text; one value in place of a list"
        " is a list of one",
    )
    add(
        "-y",
        "--yaml",
        action="append",
        default=[],
        help="set parameters, for example 'hidden: [64, 128]'",
    )
    add("-k", "--kernel", metavar="NAME", help="kernel to use instead of the notebook's own")
    add("--cell-limit", type=int, metavar="S", help="time limit per cell in seconds")
    add(
        "--out",
        type=Path,
        default="runs",
        metavar="DIR",
        help="folder for the executed notebooks (default runs)",
    )
    add("--quiet", action="store_true", help="do not print progress")


def run(arguments: argparse.Namespace) -> int:
    """Run `rerun`; returns 0 if all notebooks completed, else 1."""
    check_papermill()
    import yaml

    values = [(name, parse_value(text)) for name, text in arguments.parameter]
    for text in arguments.yaml:
        try:
            values += dict(yaml.safe_load(text)).items()
        except (yaml.YAMLError, TypeError, ValueError):
            raise UsageError(f"-y {text!r} is not YAML of the form 'name: value'") from None
    names = [name for name, _ in values]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the parameter {name} is given twice")

    def print_run(done: Run) -> None:
        if done.failure is not None:
            show(f"lstm-trt: {done}", sys.stderr)
        elif arguments.format != "json":
            show(done)

    runs = rerun(
        arguments.notebooks,
        dict(values),
        out=arguments.out,
        kernel=arguments.kernel,
        cell_limit_s=arguments.cell_limit,
        show_progress=not arguments.quiet,
        listener=print_run,
    )
    if arguments.format == "json":
        print_json([done.as_dict() for done in runs])
    return int(any(done.failure is not None for done in runs))
