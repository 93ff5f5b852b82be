"""The command `versions`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lstm_trt.analysis.quantiles import ROUNDS
from lstm_trt.cli.common import (
    CONTROL_HELP,
    comparison_arguments,
    options_of,
    print_answer,
    print_progress,
    protocol_of,
    runtime_arguments,
    shape_arguments,
    shape_of,
    stopped,
    sweep_arguments,
    sweep_options,
)
from lstm_trt.cli.main import EXIT_FAILED
from lstm_trt.recorder.versions import record_versions

EXAMPLE = (
    "lstm-trt versions onnxruntime 1.20.1 1.31.1 --layers 2 --hidden 64 --sequence 32 --out versions\n"
    "each version is installed into its own virtual environment, which is kept in the cache"
)

FORMATS = ("text", "csv", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `versions`."""
    add = parser.add_argument
    add("library", metavar="LIBRARY", help="name of the package on PyPI: onnxruntime, torch, tensorrt, tensorrt-rtx")
    add("versions", nargs="+", metavar="VERSION", help="two or more versions; the first is the baseline")
    shape_arguments(parser)
    add("--runtime", metavar="NAME", help="runtime, if the library has several; lstm-trt doctor lists them")
    runtime_arguments(parser)
    add("--rounds", type=int, default=ROUNDS, metavar="N", help="rounds, each in new processes (default %(default)s)")
    add("--control", action="store_true", help=CONTROL_HELP)
    comparison_arguments(parser)
    sweep_arguments(parser)
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the recordings")


def run(arguments: argparse.Namespace) -> int:
    """Run `versions`; returns the exit status."""
    answer = record_versions(
        arguments.library,
        arguments.versions,
        shape_of(arguments),
        out=arguments.out,
        runtime=arguments.runtime,
        **sweep_options(arguments),
        protocol=protocol_of(arguments),
        options=options_of(arguments),
        control=arguments.control,
        effect=arguments.effect,
        confidence=arguments.confidence,
        tell=(lambda line: None) if arguments.quiet else print_progress,
    )
    print_progress(str(answer.report))
    if answer.report.stopped:
        return stopped(arguments.given)
    print_answer(answer, arguments.format, answer.warnings)
    return 0 if any(answer.comparisons) else EXIT_FAILED
