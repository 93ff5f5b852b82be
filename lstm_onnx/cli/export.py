"""The command `export`."""

import argparse
from pathlib import Path
from typing import Any

from lstm_onnx.c.export import NATIVE, export_c
from lstm_onnx.c.targets import TARGETS
from lstm_onnx.c.weights import PRECISIONS
from lstm_onnx.cli import flags
from lstm_onnx.own_network import OnnxNetwork
from lstm_trt.cli.common import field_arguments, print_answer
from lstm_trt.cli.workloads import one_workload
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.to_onnx import export_onnx

EXAMPLE = (
    "lstm-trt export --layers 2 --hidden 200 --sequence 128 --batch 1 --out networks\n"
    "  lstm-trt export --layers 2 --hidden 64 --sequence 64 --c --target x86-64-v3 --out firmware"
)

FORMATS = ("text", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `export`."""
    field_arguments(parser, LstmShape)
    add = parser.add_argument
    add(
        "--mode",
        choices=LstmShape.modes,
        help="forward (default), or stream: the states are inputs and outputs; with --c only the"
        " function run, or step, for --sequence samples",
    )
    add("--symbolic", action="store_true", help="leave sequence length and batch size symbolic")
    add(
        "--seed", type=int, default=0, metavar="N", help="seed of the weights (default %(default)s)"
    )
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the file")
    group = parser.add_argument_group("C code")
    add = group.add_argument
    add(
        "--c",
        action="store_true",
        help="write C code: a function run for --sequence samples, and a function step for one,"
        " which carries the state",
    )
    add(
        "--target",
        metavar="NAME",
        help=f"processor that it is for: {NATIVE} (default), {', '.join(TARGETS)}",
    )
    add(
        "--precision",
        choices=tuple(PRECISIONS),
        help="bf16: weights take half the memory; int8: those for a recurrent layer's output a"
        " quarter (default fp32)",
    )
    add(
        "--threads",
        type=int,
        metavar="N",
        help="threads of the program that compute a call together (default 1)",
    )
    add(
        "--name", metavar="NAME", help="name of the files and functions (default: from the network)"
    )
    flags.add_arguments(group)


def run(arguments: argparse.Namespace) -> None:
    """Run `export`."""
    network: Any = one_workload(arguments, [OnnxNetwork.KIND])
    if arguments.c:
        if arguments.symbolic:
            raise UsageError("--c and --symbolic exclude each other: the sizes of C code are fixed")
        written = export_c(
            network,
            arguments.out,
            mode=arguments.mode,
            name=arguments.name,
            seed=arguments.seed,
            target=arguments.target or NATIVE,
            precision=arguments.precision or "fp32",
            threads=1 if arguments.threads is None else arguments.threads,
        )
    else:
        for flag in ("target", "precision", "threads", "name"):
            if getattr(arguments, flag) is not None:
                raise UsageError(f"--{flag} is for C code: add --c")
        mode = arguments.mode or LstmShape.modes[0]
        if arguments.onnx and mode != "stream":
            raise UsageError("--onnx is for C code: add --c, or --mode stream")
        written = export_onnx(
            network, arguments.out, symbolic=arguments.symbolic, mode=mode, seed=arguments.seed
        )
    print_answer(written, arguments.format)
