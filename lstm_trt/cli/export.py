"""The command `export`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lstm_trt.cli.common import print_answer, shape_arguments, shape_of
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.to_onnx import export_onnx

EXAMPLE = "lstm-trt export --layers 2 --hidden 200 --sequence 128 --batch 1 --out networks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `export`."""
    shape_arguments(parser)
    add = parser.add_argument
    mode = "forward (default), or stream: the states are inputs and outputs"
    add("--mode", choices=LstmShape.modes, default=LstmShape.modes[0], help=mode)
    add("--symbolic", action="store_true", help="leave sequence length and batch size symbolic")
    add("--seed", type=int, default=0, metavar="N", help="seed of the weights (default %(default)s)")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the file")


def run(arguments: argparse.Namespace) -> int:
    """Run `export`; returns the exit status."""
    settings = {name: getattr(arguments, name) for name in ("symbolic", "seed", "mode")}
    written = export_onnx(shape_of(arguments), arguments.out, **settings)
    print_answer(written, arguments.format)
    return 0
