"""The command `inspect`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lstm_trt.cli.common import print_answer, print_progress, size_argument, size_values
from lstm_trt.config.errors import UsageError
from lstm_trt.recorder.inspect import inspect
from lstm_trt.recorder.pool import waiting_text

EXAMPLE = "lstm-trt inspect model.onnx --size batch=1 --size time=64"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `inspect`."""
    parser.add_argument("path", type=Path, metavar="FILE", help="ONNX file")
    size_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `inspect`; returns the exit status."""

    def listener(message: dict) -> None:
        if message["event"] == "waiting":
            print_progress(waiting_text(message))

    print_answer(inspect(arguments.path, _sizes(arguments), listener=listener), arguments.format)
    return 0


def _sizes(arguments: argparse.Namespace) -> dict[str, int]:
    """The given symbolic sizes; raises `UsageError` for several values of one."""
    found = size_values(arguments.size)
    for name, values in found.items():
        if len(values) > 1:
            raise UsageError(f"--size {name} needs one value, not {', '.join(map(str, values))}")
    return {name: value for name, (value,) in found.items()}
