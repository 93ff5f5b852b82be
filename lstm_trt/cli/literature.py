"""The command `literature`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from lstm_trt.cli.common import (
    AXIS_HELP,
    exit_status,
    figure_arguments,
    print_answer,
    print_files,
    print_progress,
    stopped,
    sweep_arguments,
    sweep_options,
)
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import listed
from lstm_trt.literature import completeness, metrics, plan
from lstm_trt.literature.session import describe_benchmark, interpreters, listing, ready_implementations
from lstm_trt.literature.workloads import MODES, VARIANTS, WORKLOADS, LiteratureWorkload, find
from lstm_trt.recorder.sweep import run_sweep
from lstm_trt.store import folders

FORMATS = ("text", "csv", "json", "markdown")

EXAMPLE = (
    "lstm-trt literature --list\n"
    "  lstm-trt literature ptb-lm --implementation pytorch-one-call-eager pytorch-fused-eager --mode training"
    " --scale 1/8 --out recordings\n"
    "  lstm-trt literature layer --variants --implementation onnxruntime --out recordings\n"
    "  lstm-trt literature --plan --out recordings\n"
    "  lstm-trt literature --coverage --out recordings"
)

SIZES = ("hidden", "layers", "batch", "sequence")

#: The document's sizes, not scaled.
WHOLE = LiteratureWorkload.scale

#: Options that --plan sets for each of its rows.
PLANNED = ("mode", "scale", "variants", *SIZES, "batches", "warmup", "device")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `literature`."""
    add = parser.add_argument
    add("workload", nargs="*", metavar="WORKLOAD", help=f"workloads: {', '.join(WORKLOADS)}")
    add("--list", action="store_true", help="show the workloads and the implementations that can run them")
    add("--plan", action="store_true", help="record all workloads and implementations, scaled to 45 minutes on 2 cores")
    add("--dry-run", action="store_true", help="with --plan: only print each row with its scale and estimated time")
    add("--table", action="store_true", help="print the results in the folders --out; nothing is recorded")
    today = "print for each published time what takes its place in the folders --out, or why nothing does"
    add("--coverage", action="store_true", help=today)
    add(
        "--implementation",
        nargs="+",
        metavar="NAME",
        help="names of implementations, or the word all: those that are ready here",
    )
    add("--mode", choices=MODES, help="mode (default: the first mode of the document)")
    scale = "fraction of the document's batch size and sequence length, such as 1/8 (default %(default)s)"
    add("--scale", default=WHOLE, metavar="FRACTION", help=scale)
    add("--variants", action="store_true", help="all sizes for which the document has results")
    for name in SIZES:
        add(f"--{name}", type=int, metavar="N", help=f"{AXIS_HELP[name]}, before scaling (default: the document's)")
    add("--batches", type=int, metavar="N", help="timed batches (default: the document's number)")
    add("--warmup", type=int, metavar="N", help="warm-up batches (default: as many per timed batch as in the document)")
    threads = "threads, one core each (default %(default)s)"
    add("--threads", type=int, default=Options.threads, metavar="K", help=threads)
    add("--device", metavar="NAME", help="cpu or cuda (default: the first that the implementation supports)")
    add("--rounds", type=int, metavar="N", help="rounds, each in new processes (default 1)")
    seed = "seed of weights, batches and recording order (default %(default)s)"
    add("--seed", type=int, default=Protocol.seed, metavar="N", help=seed)
    add("--time-limit", type=float, metavar="S", help="time limit per recording in seconds")
    sweep_arguments(parser)
    out = "folder for the recordings; with --table and --coverage folders to read"
    add("--out", type=Path, nargs="+", metavar="DIR", help=out)
    figure_arguments(parser, "draw the results beside the published ones into this folder")


def run(arguments: argparse.Namespace) -> int:
    """Run `literature`; returns the exit status."""
    for name in arguments.workload:
        find(name)  # an unknown name is reported before anything that is missing
    if arguments.format == "csv" and (arguments.list or arguments.dry_run):
        raise UsageError(f"{'--list' if arguments.list else '--dry-run'} supports text and json only")
    if arguments.format == "markdown" and not arguments.coverage:
        raise UsageError("--format markdown needs --coverage")
    if len(arguments.out or ()) > 1 and not (arguments.table or arguments.coverage):
        raise UsageError("a recording goes into one folder: give one after --out, and workloads before all options")
    if arguments.list:
        return _list(arguments)
    if arguments.plan:
        return _plan(arguments)
    if arguments.dry_run:
        raise UsageError("--dry-run needs --plan")
    if arguments.out is None:
        raise UsageError("--out is missing: give a folder for the recordings, or --list")
    if arguments.table:
        return _print_metrics(arguments, lambda item: _wanted(arguments, item.workload.name, item.runtime, item.mode))
    if arguments.coverage:
        return _print_coverage(arguments)
    if not arguments.workload:
        raise UsageError("no workload given: lstm-trt literature --list shows them")
    if not arguments.implementation:
        raise UsageError("--implementation is missing: lstm-trt literature --list shows them")
    return _record(arguments, configurations(arguments))


def configurations(arguments: argparse.Namespace) -> list[Configuration]:
    """The requested configurations; raises `UsageError` for unknown names and invalid sizes."""
    options = Options(threads=arguments.threads, device=arguments.device)
    more = {name: getattr(arguments, name) for name in ("mode", "scale", "batches", "warmup", "seed")}
    return [
        describe_benchmark(workload, name, options=options, **more)
        for workload in _workloads(arguments)
        for name in _implementations(arguments, workload)
    ]


def _workloads(arguments: argparse.Namespace) -> list[LiteratureWorkload]:
    sizes = {name: getattr(arguments, name) for name in SIZES if getattr(arguments, name) is not None}
    if sizes and arguments.variants:
        raise UsageError(f"--variants and --{next(iter(sizes))} exclude each other: give one of them")
    found = []
    for name in dict.fromkeys(arguments.workload):
        workload = find(name)
        found += VARIANTS[name] if arguments.variants else [workload.variant(**sizes) if sizes else workload]
    return found


def _implementations(arguments: argparse.Namespace, workload: LiteratureWorkload) -> list[str]:
    if arguments.implementation != ["all"]:
        return list(dict.fromkeys(arguments.implementation))
    return ready_implementations(workload.scaled(arguments.scale), arguments.mode or workload.modes[0])


def _own_implementations(arguments: argparse.Namespace) -> list[str]:
    """The implementations given by a dotted name, which are in no table; --list and --plan include them."""
    return [name for name in arguments.implementation or () if "." in name]


def _record(arguments: argparse.Namespace, wanted: list[Configuration]) -> int:
    named = not arguments.plan and arguments.implementation != ["all"]
    pythons = interpreters(wanted, print_progress, optional=not named)
    wanted = [configuration for configuration in wanted if configuration.id in pythons]
    how = {"seed": arguments.seed, "interpreters": pythons, **sweep_options(arguments)}
    report = run_sweep(wanted, arguments.out[0], **how)
    print_progress(str(report))
    if report.stopped:
        return stopped(arguments.given)
    ids = {configuration.id for configuration in wanted}
    _print_metrics(arguments, lambda configuration: configuration.id in ids)
    return exit_status(report)


def _wanted(arguments: argparse.Namespace, workload: str, implementation: str, mode: str) -> bool:
    """Filter of --table and --coverage: whether a row is of the given workloads, implementations and mode."""
    names = set(arguments.implementation or ()) - {"all"}
    return (
        (not arguments.workload or workload in arguments.workload)
        and (not names or implementation in names)
        and arguments.mode in (None, mode)
    )


def _metrics(arguments: argparse.Namespace, wanted: Callable[[Configuration], bool]) -> metrics.Table:
    """The metrics of the wanted configurations in the folders --out; raises `UsageError` if there are none."""
    command = "literature WORKLOAD --implementation NAME"
    found = metrics.table(
        item
        for folder in arguments.out
        for item in folders.read_many(folder, command=command)
        if isinstance(item.configuration.workload, LiteratureWorkload) and wanted(item.configuration)
    )
    if not found:
        raise UsageError(f"{listed(arguments.out)} has no matching recording of a literature workload")
    return found


def _print_coverage(arguments: argparse.Namespace) -> int:
    rows = completeness.coverage(_metrics(arguments, lambda item: True))
    wanted = [row for row in rows if _wanted(arguments, row.workload, row.implementation, row.mode)]
    if not wanted:
        raise UsageError("no published time is of this workload, implementation and mode")
    print_answer(completeness.Coverage(tuple(wanted)), arguments.format)
    return 0


def _print_metrics(arguments: argparse.Namespace, wanted: Callable[[Configuration], bool]) -> int:
    """Print and draw the metrics of the wanted configurations in the folders --out."""
    found = _metrics(arguments, wanted)
    print_answer(found, arguments.format)
    if arguments.figures is not None:
        from lstm_trt.literature.plots import draw  # matplotlib takes a second to load

        print_files(draw(found, arguments.figures, formats=arguments.formats))
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    if arguments.workload or set(arguments.implementation or ()) != set(_own_implementations(arguments)):
        raise UsageError("--plan chooses workloads and implementations: remove them, except for dotted names")
    chosen = [name for name in PLANNED if getattr(arguments, name) not in (None, False, WHOLE)]
    if chosen or arguments.threads != Options.threads:
        raise UsageError(f"--plan sets --{(chosen or ['threads'])[0]} for each row: remove it")
    whole = plan.plan(_own_implementations(arguments))
    if arguments.dry_run:
        print_answer(whole, arguments.format)
        return 0
    if arguments.out is None:
        raise UsageError("--out is missing: give a folder for the recordings, or --dry-run")
    print_progress(str(whole))
    arguments.time_limit = arguments.time_limit or plan.TIME_LIMIT_S
    return _record(arguments, whole.configurations)


def _list(arguments: argparse.Namespace) -> int:
    print_answer(listing(arguments.workload, _own_implementations(arguments)), arguments.format)
    return 0
