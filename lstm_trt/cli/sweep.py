"""The command `sweep`."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from lstm_trt import registry
from lstm_trt.cli import common
from lstm_trt.cli.main import EXIT_FAILED
from lstm_trt.cli.workloads import instead_of_sizes, own_workloads, workload_arguments
from lstm_trt.config.configuration import Options
from lstm_trt.config.errors import UsageError, one_of
from lstm_trt.config.format import count
from lstm_trt.config.shape import AXES, GRIDS, Grid, LstmShape
from lstm_trt.recorder.report import SweepReport
from lstm_trt.recorder.sweep import Executors, sweep

EXAMPLE = (
    "lstm-trt sweep --layers 1 2 --hidden 32 64 128 --sequence 32 64 --batch 1 2 4"
    " --runtime onnxruntime pytorch --out recordings"
)


CONTROL_HELP = (
    "also time an empty step after each recording, which measures the delays of the machine itself"
    " (doubles the run time)"
)

FORMATS = ("text", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sweep`."""
    add = parser.add_argument
    grids = ", ".join(f"{name} ({count(len(grid), 'network')})" for name, grid in GRIDS.items())
    add(
        "--grid",
        metavar="NAME",
        help=f"predefined grid: {grids}; given sizes replace those of the grid",
    )
    workload_arguments(parser, several=True)
    add(
        "--runtime",
        nargs="+",
        default=[None],
        metavar="NAME",
        help=f"{common.RUNTIME_HELP} (default onnxruntime)",
    )
    common.runtime_arguments(parser, several=True)
    add(
        "--rounds",
        type=int,
        metavar="N",
        help="rounds, each in new processes (default 3 from 10000 trials on, else 1)",
    )
    add("--control", action="store_true", help=CONTROL_HELP)
    sweep_arguments(parser)
    add(
        "--scheduler",
        metavar="ADDRESS",
        help="record on the workers of a Dask scheduler, such as tcp://HOST:8786",
    )
    add(
        "--each-machine",
        action="store_true",
        help="record all on each of its machines, into DIR/MACHINE",
    )
    add("--for", dest="for_time", help=argparse.SUPPRESS)  # else it would be --format
    add(
        "--memory-limit-gb", type=float, metavar="GB", help="memory limit of a worker process in GB"
    )
    common.figure_arguments(parser, "draw the figures of the sweep into this folder")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the recordings")


def run(arguments: argparse.Namespace) -> int:
    """Run `sweep`; returns the exit status."""
    if arguments.for_time:
        raise UsageError("--for records one network on this machine: lstm-trt record --for TIME")
    deadline_us = arguments.deadline_us
    after = _after(arguments)
    if arguments.until is None:
        arguments.deadline_us = None  # only for what follows the sweep
    protocol = common.protocol_of(arguments)
    options = {"precision": Options.precision, **common.given(arguments, Options)}
    report = sweep(
        own_workloads(arguments) or _grid(arguments),
        arguments.runtime,
        protocol,
        Options.each(**options),
        out=arguments.out,
        mode=arguments.mode,
        seed=protocol.seed,
        control=arguments.control,
        memory_limit=_memory_limit(arguments),
        executor=_executor(arguments),
        **sweep_options(arguments),
    )
    common.print_answer(report, arguments.format)
    if report.stopped:
        return common.stopped(arguments.given)
    if after is not None:
        status = after.conclude(arguments, report.folders, protocol, deadline_us)
        if protocol.until:
            return status
    return exit_status(report)


def _after(arguments: argparse.Namespace) -> Any:
    """The module that draws figures and tests the deadline; None if neither was asked for."""
    if not arguments.figures and arguments.deadline_us is None:
        return None
    after = registry.find("AFTER", "sweep")
    if after is None:
        raise UsageError(
            "--figures and --deadline-us need a package that judges recordings,"
            " and there is none here"
        )
    after.check(arguments.deadline_us)
    return after


def _memory_limit(arguments: argparse.Namespace) -> int | None:
    """In bytes."""
    limit = arguments.memory_limit_gb
    if limit is None:
        return None
    if not limit > 0:
        raise UsageError(f"--memory-limit-gb must be above 0, not {limit:g}")
    return int(limit * 1e9)


def _executor(arguments: argparse.Namespace) -> Executors:
    """The workers of the given scheduler, on each machine if so asked; None for this machine."""
    address = arguments.scheduler
    if not address:
        if arguments.each_machine:
            raise UsageError(
                "--each-machine is for the machines of a scheduler: give it with --scheduler"
            )
        return None
    from lstm_trt.recorder.cluster import connect, machines

    return machines(address) if arguments.each_machine else partial(connect, address)


def _grid(arguments: argparse.Namespace) -> Grid:
    """The given grid; raises `UsageError` for an unknown name or an axis without values."""
    sizes = common.given(arguments, LstmShape)
    if arguments.grid is not None:
        name = one_of("grid", arguments.grid, GRIDS)
        sizes = {axis: getattr(GRIDS[name], axis) for axis in AXES} | sizes
    for axis in ("layers", "hidden", "sequence"):
        if axis not in sizes:
            instead = f"give its values, or --grid {next(iter(GRIDS))}, or {instead_of_sizes()}"
            raise UsageError(f"--{axis} is missing: {instead}")
    return Grid(**sizes)


def sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that record several configurations."""
    parser.add_argument(
        "--retry-failed", action="store_true", help="retry configurations that failed before"
    )
    parser.add_argument(
        "--quiet", action="store_false", dest="show_progress", help="do not print progress"
    )
    common.recording_arguments(parser)


def sweep_options(arguments: argparse.Namespace) -> dict:
    """The keyword arguments of `run_sweep`, except the seed."""
    return {
        "rounds": arguments.rounds,
        "retry_failed": arguments.retry_failed,
        "show_progress": arguments.show_progress,
        "time_limit_s": arguments.time_limit,
        "wait": arguments.lock_wait,
    }


def exit_status(report: SweepReport) -> int:
    """Exit status of a completed sweep: failed if it has no recording at all."""
    return 0 if report.recorded + report.done_before else EXIT_FAILED
