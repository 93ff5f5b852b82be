"""The command `versions`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lstm_trt.analysis.quantiles import ROUNDS
from lstm_trt.cli import common
from lstm_trt.cli.main import EXIT_FAILED
from lstm_trt.config.configuration import Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.workload import Workload
from lstm_trt.literature import session
from lstm_trt.literature.workloads import WORKLOADS, find
from lstm_trt.recorder.versions import record_versions

EXAMPLE = (
    "lstm-trt versions onnxruntime 1.20.1 1.31.1 --layers 2 --hidden 64 --sequence 32 --out versions\n"
    "  lstm-trt versions tensorflow-cpu 2.20.0 2.21.0 --workload text-classifier --scale 1/8"
    " --runtime tensorflow-one-call-graph --out versions\n"
    "each version is installed into its own virtual environment, which is kept in the cache"
)

FORMATS = ("text", "csv", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `versions`."""
    add = parser.add_argument
    add("library", metavar="LIBRARY", help="name of the package on PyPI, such as onnxruntime, torch, tensorrt")
    add("versions", nargs="+", metavar="VERSION", help="two or more versions; the first is the baseline")
    common.shape_arguments(parser)
    workload = "workload of the literature instead of a stacked LSTM, with the warm-up and batches of its document"
    add("--workload", metavar="NAME", help=f"{workload}: {', '.join(WORKLOADS)}")
    add("--scale", metavar="FRACTION", help="fraction of its batch size and sequence length, such as 1/8 (default 1)")
    mode = "forward, stream or training, if the workload has it (default: its first)"
    add("--mode", metavar="MODE", help=mode)
    runtime = "runtime, or with --workload implementation, if the library has several; lstm-trt doctor lists them"
    add("--runtime", metavar="NAME", help=runtime)
    common.runtime_arguments(parser)
    add("--rounds", type=int, default=ROUNDS, metavar="N", help="rounds, each in new processes (default %(default)s)")
    add("--control", action="store_true", help=common.CONTROL_HELP)
    common.comparison_arguments(parser)
    common.sweep_arguments(parser)
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the recordings")


def run(arguments: argparse.Namespace) -> int:
    """Run `versions`; returns the exit status."""
    workload = _workload(arguments)
    answer = record_versions(
        arguments.library,
        arguments.versions,
        workload,
        out=arguments.out,
        mode=arguments.mode,
        runtime=arguments.runtime,
        **common.sweep_options(arguments),
        protocol=_protocol(arguments, workload),
        options=common.options_of(arguments),
        control=arguments.control,
        effect=arguments.effect,
        confidence=arguments.confidence,
        tell=(lambda line: None) if arguments.quiet else common.print_progress,
    )
    common.print_progress(str(answer.report))
    if answer.report.stopped:
        return common.stopped(arguments.given)
    common.print_answer(answer, arguments.format, answer.warnings)
    return 0 if any(answer.comparisons) else EXIT_FAILED


def _workload(arguments: argparse.Namespace) -> Workload:
    if arguments.workload:
        return find(arguments.workload).variant(**common.sizes_of(arguments)).scaled(arguments.scale or "1")
    if arguments.scale:
        raise UsageError("--scale is for a workload of the literature: give one with --workload")
    return common.shape_of(arguments, "--workload NAME")


def _protocol(arguments: argparse.Namespace, workload: Workload) -> Protocol:
    if not arguments.workload:
        return common.protocol_of(arguments)
    document = session.protocol_of(workload, common.trials_of(arguments), arguments.warmup)
    return common.protocol_of(arguments, trials=document.trials, warmup=document.warmup, settle=document.settle)
