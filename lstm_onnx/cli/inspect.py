"""The command `inspect`."""

import argparse
from pathlib import Path
from typing import Any

from lstm_onnx.cli import flags
from lstm_onnx.inspect import inspect
from lstm_onnx.own_network import OnnxNetwork
from lstm_trt.cli.common import print_answer, print_progress
from lstm_trt.cli.workloads import one_workload
from lstm_trt.recorder.pool import waiting_text

EXAMPLE = "lstm-trt inspect model.onnx --size batch=1 --size time=64"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `inspect`."""
    parser.add_argument("onnx", type=Path, nargs=1, metavar="FILE", help="ONNX file")
    flags.input_arguments(parser)
    parser.add_argument(
        "--profile",
        action="store_true",
        help="also list the operators with the largest shares of the time, by ONNX Runtime's"
        " profiler, in extra calls",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run `inspect`."""

    def listener(message: dict) -> None:
        if message["event"] == "waiting":
            print_progress(waiting_text(message))

    network: Any = one_workload(arguments, [OnnxNetwork.KIND])
    print_answer(inspect(network, profile=arguments.profile, listener=listener), arguments.format)
