"""The command `versions`."""

import argparse
from pathlib import Path

from lstm_judge.cli.common import values
from lstm_judge.cli.compare import comparison_arguments
from lstm_judge.statistics.quantiles import ROUNDS
from lstm_judge.versions import record_versions
from lstm_trt import registry
from lstm_trt.cli import common
from lstm_trt.cli.main import EXIT_FAILED
from lstm_trt.cli.sweep import CONTROL_HELP, sweep_arguments, sweep_options
from lstm_trt.cli.workloads import flags_of, one_workload
from lstm_trt.config.configuration import Protocol
from lstm_trt.config.shape import LstmShape
from lstm_trt.config.step import Step
from lstm_trt.config.workload import Workload

EXAMPLE = """\
lstm-trt versions onnxruntime 1.20.1 1.31.1 --layers 2 --hidden 64 --sequence 32 --out versions
each version is installed into its own virtual environment, which is kept in the cache"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `versions`."""
    common.field_arguments(parser, LstmShape)
    own = parser.add_argument_group("your own network")
    for flags in flags_of(_kinds()):
        flags.add_arguments(own, several=False)
    recording_arguments(parser)


def _kinds() -> list[str]:
    """The workload kinds that a runtime computes: all but steps of one's own."""
    return [kind for kind in registry.table("FLAGS") if kind != Step.KIND]


def recording_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the library and its versions, and how a workload is recorded and compared."""
    add = parser.add_argument
    add(
        "library",
        metavar="LIBRARY",
        help="name of the package on PyPI, such as onnxruntime, torch, tensorrt",
    )
    add(
        "versions",
        nargs="+",
        metavar="VERSION",
        help="two or more versions; the first is the baseline",
    )
    add(
        "--mode",
        metavar="MODE",
        help="forward, stream or training, if the workload has it (default: its first)",
    )
    add(
        "--runtime",
        metavar="NAME",
        help="runtime, if the library has several; lstm-trt doctor lists them",
    )
    common.runtime_arguments(parser)
    add(
        "--rounds",
        type=int,
        default=ROUNDS,
        metavar="N",
        help="rounds, each in new processes (default %(default)s)",
    )
    add("--control", action="store_true", help=CONTROL_HELP)
    comparison_arguments(parser)
    sweep_arguments(parser)
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the recordings")


def run(arguments: argparse.Namespace) -> int:
    """Run `versions`; returns the exit status."""
    return record(arguments, one_workload(arguments, _kinds()), common.protocol_of(arguments))


def record(arguments: argparse.Namespace, workload: Workload, protocol: Protocol) -> int:
    """Record a workload with the arguments of `recording_arguments`, and print the answer."""
    answer = record_versions(
        arguments.library,
        arguments.versions,
        workload,
        protocol=protocol,
        options=common.options_of(arguments),
        tell=common.print_progress if arguments.show_progress else lambda line: None,
        **values(arguments, ("out", "mode", "runtime", "control", "effect", "confidence")),
        **sweep_options(arguments),
    )
    common.print_progress(str(answer.report))
    if answer.report.stopped:
        return common.stopped(arguments.given)
    common.print_answer(answer, arguments.format, answer.warnings)
    return 0 if any(answer.comparisons.values()) else EXIT_FAILED
