"""The command line `lstm-literature`: record the literature's workloads, and print what the documents would print."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lstm_judge.cli import versions
from lstm_literature import completeness, metrics, schedule
from lstm_literature.preparer import describe_benchmark, interpreters, protocol_of, ready_implementations
from lstm_literature.workloads import MODES, VARIANTS, WORKLOADS, LiteratureWorkload, find
from lstm_trt.cli import common
from lstm_trt.cli.common import print_answer, print_files, print_progress
from lstm_trt.cli.main import Program, main as run_program
from lstm_trt.cli.sweep import exit_status, sweep_arguments, sweep_options
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.format import listed
from lstm_trt.config.shape import FIELDS
from lstm_trt.recorder.sweep import run_sweep
from lstm_trt.registry import Command
from lstm_trt.store import folders

SIZES = ("hidden", "layers", "batch", "sequence")


@dataclass(frozen=True)
class Parts:
    """What `registry.Command` asks of the module of a command."""

    EXAMPLE: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    FORMATS: tuple[str, ...] = ("text", "csv", "json")


def record_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `record`."""
    add = parser.add_argument
    _workload_argument(parser, "+")
    add(
        "--implementation",
        nargs="+",
        required=True,
        metavar="NAME",
        help="names of implementations, or the word all: those that are ready here; lstm-literature list shows them",
    )
    add("--mode", choices=MODES, help="mode (default: the first mode of the document)")
    _size_arguments(parser)
    add("--variants", action="store_true", help="all sizes for which the document has results")
    add("--batches", type=int, metavar="N", help="timed batches (default: the document's number)")
    add("--warmup", type=int, metavar="N", help="warm-up batches (default: as many per timed batch as in the document)")
    add(
        "--threads",
        type=int,
        default=Options.threads,
        metavar="K",
        help="threads, one core each (default %(default)s)",
    )
    add("--device", metavar="NAME", help="cpu or cuda (default: the first that the implementation supports)")
    _recording_arguments(parser, "seed of weights, batches and recording order", required=True)


def _size_arguments(parser: argparse.ArgumentParser) -> None:
    """What `record` and `versions` share."""
    parser.add_argument(
        "--scale",
        default=LiteratureWorkload.scale,
        metavar="FRACTION",
        help="fraction of the document's batch size and sequence length, such as 1/8 (default %(default)s)",
    )
    for name in SIZES:
        parser.add_argument(
            f"--{name}",
            type=int,
            metavar="N",
            help=f"{FIELDS[name].help}, before scaling (default: the document's)",
        )


def _workload_argument(parser: argparse.ArgumentParser, number: str) -> None:
    parser.add_argument("workload", nargs=number, metavar="WORKLOAD", help=f"workloads: {', '.join(WORKLOADS)}")


def _recording_arguments(parser: argparse.ArgumentParser, seed: str, required: bool) -> None:
    """What `record` and `plan` share; `seed` says what is drawn from it."""
    add = parser.add_argument
    add("--seed", type=int, default=Protocol.seed, metavar="N", help=f"{seed} (default %(default)s)")
    add("--rounds", type=int, metavar="N", help="rounds, each in new processes (default 1)")
    add("--time-limit", type=float, metavar="S", help="time limit per recording in seconds")
    sweep_arguments(parser)
    add("--out", type=Path, required=required, metavar="DIR", help="folder for the recordings")
    common.figure_arguments(parser, "draw the results beside the published ones into this folder")


def record(arguments: argparse.Namespace) -> int:
    """Run `record`; returns the exit status."""
    for name in arguments.workload:
        find(name)  # an unknown name is reported before anything that is missing
    return _record(arguments, configurations(arguments), named=arguments.implementation != ["all"])


def table_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `table`."""
    add = parser.add_argument
    _workload_argument(parser, "*")
    add(
        "--coverage",
        action="store_true",
        help="print for each published time what takes its place in the folders, or why nothing does",
    )
    add("--implementation", nargs="+", metavar="NAME", help="only these implementations")
    add("--mode", choices=MODES, help="only this mode")
    add(
        "--out",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="folders of recordings to read (of --coverage the default is what ships)",
    )
    common.figure_arguments(parser, "draw the results beside the published ones into this folder")


def table(arguments: argparse.Namespace) -> int:
    """Run `table`; returns the exit status."""
    for name in arguments.workload:
        find(name)
    if arguments.coverage:
        return _print_coverage(arguments)
    if not arguments.out:
        raise UsageError("--out is missing: give folders of recordings, or --coverage for those that ship")
    found = _metrics(arguments.out, lambda item: _wanted(arguments, item.workload.name, item.runtime, item.mode))
    recorded = {*found.frame["workload"], *found.frame["implementation"], "all"}
    missing = [name for name in (*arguments.workload, *(arguments.implementation or ())) if name not in recorded]
    if missing:
        common.warn([f"{listed(arguments.out)} has no matching recording of {listed(missing)}"])
    return _print_metrics(arguments, found) or (3 if missing else 0)


def list_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `list`."""
    _workload_argument(parser, "*")
    _own_argument(parser)


def _own_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--implementation",
        nargs="+",
        default=[],
        metavar="NAME",
        help="further implementations: package.module, or package.module:OBJECT",
    )


def show_list(arguments: argparse.Namespace) -> int:
    """Run `list`; returns the exit status."""
    from lstm_literature.states import listing  # with doctor, which recordings do not need

    print_answer(listing(arguments.workload, _own_implementations(arguments)), arguments.format)
    return 0


def plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `plan`."""
    parser.add_argument("--dry-run", action="store_true", help="only print each row with its scale and estimated time")
    _own_argument(parser)
    _recording_arguments(parser, "seed of the recording order", required=False)


def plan(arguments: argparse.Namespace) -> int:
    """Run `plan`; returns the exit status."""
    if arguments.format == "csv" and arguments.dry_run:
        raise UsageError("--dry-run supports text and json only")
    recorded = folders.finished(arguments.out)[0] if arguments.out and arguments.out.is_dir() else ()
    whole = schedule.plan(_own_implementations(arguments), {config_id for config_id, _ in recorded})
    if arguments.dry_run:
        print_answer(whole, arguments.format)
        return 0
    if arguments.out is None:
        raise UsageError("--out is missing: give a folder for the recordings, or --dry-run")
    print_progress(str(whole))
    arguments.time_limit = arguments.time_limit or schedule.TIME_LIMIT_S
    return _record(arguments, [entry.configuration for entry in whole.entries if entry.configuration], named=False)


def versions_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `versions`."""
    parser.add_argument(
        "--workload",
        required=True,
        metavar="NAME",
        help=f"workload, with the warm-up and batches of its document: {', '.join(WORKLOADS)}",
    )
    _size_arguments(parser)
    versions.recording_arguments(parser)


def record_versions(arguments: argparse.Namespace) -> int:
    """Run `versions`; returns the exit status."""
    return versions.record(arguments, *version_workload(arguments))


def version_workload(arguments: argparse.Namespace) -> tuple[LiteratureWorkload, Protocol]:
    """The workload of `versions`, and the given protocol in addition to its document's."""
    workload = find(arguments.workload).variant(**_sizes(arguments)).scaled(arguments.scale)
    document = protocol_of(workload, common.trials_of(arguments), arguments.warmup)
    own = {name: getattr(document, name) for name in ("trials", "warmup", "settle")}
    return workload, common.protocol_of(arguments, **own)


RECORD = Parts(
    "lstm-literature record ptb-lm --implementation pytorch-one-call-eager pytorch-fused-eager --mode training"
    " --scale 1/8 --out recordings\n"
    "  lstm-literature record layer --variants --implementation onnxruntime --out recordings",
    record_arguments,
    record,
)
PLAN = Parts("lstm-literature plan --out recordings", plan_arguments, plan)
VERSIONS = Parts(
    "lstm-literature versions tensorflow-cpu 2.20.0 2.21.0 --workload text-classifier --scale 1/8"
    " --runtime tensorflow-one-call-graph --out versions",
    versions_arguments,
    record_versions,
)
TABLE = Parts("lstm-literature table --coverage --out recordings", table_arguments, table)
LIST = Parts("lstm-literature list cell ptb-lm", list_arguments, show_list, ("text", "json"))

COMMANDS = {
    "record": Command(
        10,
        "lstm_literature.commands:RECORD",
        "commands",
        "record workloads with implementations, and print the figures of their documents",
    ),
    "plan": Command(
        20,
        "lstm_literature.commands:PLAN",
        "commands",
        "record all workloads and implementations, scaled for 2 cores; prints first how long it takes; resumes",
    ),
    "versions": Command(
        30,
        "lstm_literature.commands:VERSIONS",
        "commands",
        "compare versions of a framework on one workload, recorded in interleaved rounds",
    ),
    "table": Command(
        40,
        "lstm_literature.commands:TABLE",
        "commands",
        "print the figures of recordings beside the published ones, or what takes the place of each published time",
    ),
    "list": Command(
        50,
        "lstm_literature.commands:LIST",
        "commands",
        "show the workloads and the implementations that can run them",
    ),
}

PROGRAM = Program(
    "lstm-literature",
    "Record published LSTM benchmarks with current implementations, in the published metrics.",
    lambda: COMMANDS,
)


def main(given: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status, as `lstm-trt`."""
    return run_program(given, PROGRAM)


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
    sizes = _sizes(arguments)
    if sizes and arguments.variants:
        raise UsageError(f"--variants and --{next(iter(sizes))} exclude each other: give one of them")
    found = []
    for default in map(find, dict.fromkeys(arguments.workload)):
        found += VARIANTS[default.name] if arguments.variants else [default.variant(**sizes)]
    return found


def _sizes(arguments: argparse.Namespace) -> dict[str, int]:
    return {name: getattr(arguments, name) for name in SIZES if getattr(arguments, name) is not None}


def _implementations(arguments: argparse.Namespace, workload: LiteratureWorkload) -> list[str]:
    if arguments.implementation != ["all"]:
        return list(dict.fromkeys(arguments.implementation))
    return ready_implementations(workload.scaled(arguments.scale), arguments.mode or workload.modes[0])


def _own_implementations(arguments: argparse.Namespace) -> list[str]:
    """The implementations of `list` and `plan`, which include all others; raises `UsageError` for a plain name."""
    for name in arguments.implementation:
        if "." not in name:
            raise UsageError(f"all implementations with a plain name are included: remove {name}")
    return arguments.implementation


def _record(arguments: argparse.Namespace, wanted: list[Configuration], named: bool) -> int:
    """Record and print; `named`: one that cannot be recorded here is an error, since the user chose it."""
    pythons = interpreters(wanted, print_progress, optional=not named)
    wanted = [configuration for configuration in wanted if configuration.id in pythons]
    report = run_sweep(wanted, arguments.out, seed=arguments.seed, interpreters=pythons, **sweep_options(arguments))
    print_progress(str(report))
    if report.stopped:
        return common.stopped(arguments.given)
    ids = {configuration.id for configuration in wanted}
    _print_metrics(arguments, _metrics([arguments.out], lambda configuration: configuration.id in ids))
    return exit_status(report)


def _wanted(arguments: argparse.Namespace, workload: str, implementation: str, mode: str) -> bool:
    """Filter of `table`: whether a row is of the given workloads, implementations and mode."""
    names = set(arguments.implementation or ()) - {"all"}
    return (
        (not arguments.workload or workload in arguments.workload)
        and (not names or implementation in names)
        and arguments.mode in (None, mode)
    )


def _metrics(paths: Sequence[Path], wanted: Callable[[Configuration], bool]) -> metrics.Table:
    """The metrics of the wanted configurations in folders; raises `UsageError` if there are none."""
    items = []
    for folder in paths:
        for item in folders.read_many(folder, command="lstm-literature record WORKLOAD --implementation NAME"):
            if isinstance(item.configuration.workload, LiteratureWorkload) and wanted(item.configuration):
                items.append(item)
    found = metrics.table(items)
    if not found:
        raise UsageError(f"{listed(paths)} has no matching recording of a literature workload")
    return found


def _print_coverage(arguments: argparse.Namespace) -> int:
    if arguments.out:
        rows = completeness.coverage(_metrics(arguments.out, lambda item: True))
    else:
        rows = completeness.shipped()
    wanted = [_wanted(arguments, row.workload, row.implementation, row.mode) for row in rows]
    if not any(wanted):
        raise UsageError("no published time is of this workload, implementation and mode")
    print_answer(completeness.Coverage(rows.frame.loc[wanted]), arguments.format)
    return 0


def _print_metrics(arguments: argparse.Namespace, found: metrics.Table) -> int:
    """Print metrics, and draw them where asked."""
    print_answer(found, arguments.format)
    if arguments.figures is not None:
        from lstm_literature.pictures import draw  # matplotlib takes a second to load

        print_files(draw(found, arguments.figures, formats=arguments.formats))
    return 0
