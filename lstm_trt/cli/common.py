"""Arguments that several commands share: shapes, runtimes, trials, arrivals. Importing this loads nothing.

What the commands that judge latencies share: how tables from elsewhere are read, and how answers are grouped.

Importing this loads nothing.

How every command tells what it found and how it ended. Importing this loads nothing.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lstm_trt.config.errors import UsageError

if TYPE_CHECKING:
    from lstm_trt.config.configuration import Options, Protocol
    from lstm_trt.recorder.sweep import Report
    from lstm_trt.store.runs import Runs


#: As `configuration.TIERS`, `.ARRIVALS` and `.WAITS`, which the parser need not load.
TIERS, ARRIVALS, WAITS = ("look", "compare", "certify"), ("closed", "periodic", "paused"), ("spin", "sleep", "os")


def shape_arguments(parser: argparse.ArgumentParser, many: bool, required: bool = True) -> None:
    """The sizes of one shape, or of `many`."""
    more = {"nargs": "+"} if many else {}
    unset = None if many else argparse.SUPPRESS
    for axis, meaning, needed in (
        ("layers", "stacked LSTM layers", True),
        ("hidden", "units a layer", True),
        ("sequence", "time steps", True),
        ("batch", "sequences at once (default 1)", False),
        ("features", "inputs a step (default 12)", False),
        ("directions", "1, or 2 for bidirectional (default 1)", False),
    ):
        parser.add_argument(
            f"--{axis}",
            type=int,
            help=meaning,
            metavar="N",
            required=needed and required and not many,
            default=unset,
            **more,
        )


def shape_of(arguments: argparse.Namespace):
    """The one shape that was given; raises `UsageError` where a size is missing or impossible."""
    from lstm_trt.config.shape import AXES, LstmShape

    for axis in ("layers", "hidden", "sequence"):
        if not hasattr(arguments, axis):
            raise UsageError(f"--{axis} is missing: give the shape's sizes, or --onnx FILE")
    return LstmShape(**{axis: getattr(arguments, axis) for axis in AXES if hasattr(arguments, axis)})


def runtime_arguments(parser: argparse.ArgumentParser) -> None:
    """How a runtime is asked to run, and how many trials there are, and when."""
    add = parser.add_argument
    add("--precision", default="fp32", help="fp32, tf32, fp16, bf16 or int8, as the runtime offers")
    add("--threads", type=int, default=1, metavar="K", help="threads, each pinned to a core (default 1)")
    add("--device", default=None, help="cpu or cuda; the runtime's own choice if not given")
    add("--graph", action="store_true", help="launch a CUDA graph, where the runtime offers the choice")
    add("--device-clocks", default="off", choices=("off", "compute", "all"), help="clocks on the GPU")
    add("--trials", type=int, default=None, metavar="N", help="timed trials (default 1000)")
    add("--tier", choices=TIERS, default=None, help="trials by name: look 1000, compare 10000, certify 30000")
    add("--warmup", type=int, default=10, metavar="N", help="warm-up trials, kept and marked (default 10)")
    add("--arrival", choices=ARRIVALS, default="closed", help="when the next call begins: when the last returns")
    add("--period-us", type=float, default=None, metavar="US", help="periodic: a call is due each so many us")
    add("--wait", choices=WAITS, default=None, help="periodic: how it waits (default spin; sleep spins at the end)")
    add("--pause-ms", type=float, default=None, metavar="MS", help="paused: idle for so long before each call")
    add("--seed", type=int, default=0, help="of weights, inputs and the sweep's order (default 0)")
    add("--time-limit", type=float, default=None, metavar="S", help="seconds a configuration may take")


def trials_of(arguments: argparse.Namespace) -> int:
    """The number that was given, or that the tier means; raises `UsageError` where both are, and differ."""
    from lstm_trt.config.configuration import TIERS

    if arguments.tier is None:
        return 1000 if arguments.trials is None else arguments.trials
    trials = TIERS[arguments.tier]
    if arguments.trials not in (None, trials):
        raise UsageError(f"--tier {arguments.tier} means {trials} trials, --trials says {arguments.trials}: give one")
    return trials


def protocol_of(arguments: argparse.Namespace) -> Protocol:
    """The protocol that the flags of `runtime_arguments` ask for."""
    from lstm_trt.config.configuration import Protocol

    names = ("warmup", "seed", "arrival", "wait", "period_us", "pause_ms")
    return Protocol(trials=trials_of(arguments), **{name: getattr(arguments, name) for name in names})


def options_of(arguments: argparse.Namespace) -> Options:
    """The options that the flags of `runtime_arguments` ask for."""
    from lstm_trt.config.configuration import Options

    names = ("precision", "threads", "device", "graph", "device_clocks")
    return Options(**{name: getattr(arguments, name) for name in names})


PATH_HELP = "recordings (a file, a folder, a consolidated pair), or a table of times: CSV, Parquet, JSON, or plain text"


def reading_arguments(parser: argparse.ArgumentParser) -> None:
    """How a table from elsewhere is read."""
    table = parser.add_argument_group("tables from elsewhere")
    add = table.add_argument
    add("--column", default=None, metavar="NAME", help="of the times (default: found by its name)")
    add("--unit", default=None, choices=("ns", "us", "ms", "s"), help="of the times (default: as the column's name)")
    add("--group-by", nargs="+", default=[], metavar="COLUMN", help="columns that tell configurations apart")
    add(
        "--causes", nargs="+", default=None, metavar="COLUMN", help="counts at each trial that may explain late answers"
    )
    add("--one-group", action="store_true", help="all rows are of one configuration, whatever else the table has")


def read(arguments: argparse.Namespace, path: Path) -> Runs:
    """The groups under a path; warnings go to standard error."""
    from lstm_trt.store.runs import load

    found = load(path, **options(arguments))
    warn(found.warnings)
    return found


def options(arguments: argparse.Namespace) -> dict:
    """The options of `reading_arguments`, as `runs.load` takes them."""
    return {name: getattr(arguments, name) for name in ("column", "unit", "group_by", "causes", "one_group")}


def judgeable(found: Runs) -> None:
    """Raise `UsageError` where a configuration has one trial: nothing can be said of it."""
    for group in found.groups:
        if group.failure is None and group.n < 2:
            few = f"{group.n or 'no'} trial{'s' * (group.n == 0)} after warm-up"
            raise UsageError(f"{found.source}: {group.name} has {few}, at least 2 are needed")


def grouped(found: Runs, dicts: Iterable[dict]) -> dict | list[dict]:
    """The JSON answer: an object, or a list of them where groups are told apart."""
    told = [
        {"group": group.group, "name": group.name, **found.how, "warnings": list(found.warnings), **one}
        for group, one in zip(found.groups, dicts, strict=True)
    ]
    return told if found.grouped else told[0]


EXIT_FAILED, EXIT_USAGE, EXIT_BUG, EXIT_STOPPED = 1, 2, 70, 130


def print_json(value: object) -> None:
    """A JSON answer on standard output."""
    print(json.dumps(value, indent=1, allow_nan=False))


def warn(warnings: Iterable[str]) -> None:
    """Lines on standard error: standard output may be read by a program."""
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def tell_files(paths: Iterable[Path]) -> None:
    """The names of figures, on standard error as well, and after the answer where both go to one file."""
    sys.stdout.flush()
    for path in paths:
        print(path, file=sys.stderr)


def draw_recordings(path: Path, folder: Path, deadline_us: float | None) -> None:
    """Draw the figures of the recordings under `path` into `folder`, and tell their names."""
    from lstm_trt.analysis.tables import frames
    from lstm_trt.plots.recordings import draw_sweep
    from lstm_trt.store import files, folders

    files.make_folder(folder)
    summary, trials = frames(folders.read_many(path))
    tell_files(draw_sweep(summary, trials, folder, deadline_us=deadline_us))


def stopped(given: Sequence[str], before: str = "") -> int:
    """Tell the command that goes on, on standard error; returns the exit status of what Ctrl-C has ended."""
    print(f"stopped; {before}go on with: {shlex.join(['lstm-trt', *given])}", file=sys.stderr)
    return EXIT_STOPPED


def exit_status(report: Report) -> int:
    """Of a sweep that ran to its end: failed where it has no recording at all."""
    return 0 if report.recorded + report.done_before else EXIT_FAILED
