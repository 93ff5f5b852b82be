"""What several commands share: arguments, the objects made of them, and how answers are printed.

Defaults and choices are those of the dataclasses and constants that the arguments become.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from lstm_trt.analysis.quantiles import DEFAULT_CONFIDENCE, EFFECT
from lstm_trt.cli.main import EXIT_STOPPED
from lstm_trt.config.configuration import ARRIVALS, DEVICE_CLOCKS, PRECISIONS, TIERS, WAITS, Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import AXES, LstmShape
from lstm_trt.store.runs import Runs, load
from lstm_trt.store.tables import UNIT_NS

if TYPE_CHECKING:
    from lstm_trt.recorder.sweep import Report

EXIT_FAILED = 1

PATH_HELP = "recordings (file, folder or consolidated pair), or a table of times (CSV, Parquet, JSON, plain text)"

RUNTIME_HELP = "runtime; lstm-trt doctor lists them"

CONTROL_HELP = "also time an empty step after each recording (doubles the run time)"

AXIS_HELP = {
    "layers": "stacked LSTM layers",
    "hidden": "hidden units per layer",
    "sequence": "time steps",
    "batch": "batch size",
    "features": "inputs per time step",
    "directions": "1, or 2 for bidirectional",
}


def shape_arguments(parser: argparse.ArgumentParser, *, several: bool = False, required: bool = True) -> None:
    """The sizes of one shape, or of `several`."""
    for axis, meaning in AXIS_HELP.items():
        default = getattr(LstmShape, axis, None)
        parser.add_argument(
            f"--{axis}",
            type=int,
            nargs="+" if several else None,
            metavar="N",
            required=required and default is None,
            help=meaning if default is None else f"{meaning} (default {default})",
        )


def sizes_of(arguments: argparse.Namespace) -> dict:
    """The sizes that were given: axis -> size, or sizes."""
    return {axis: getattr(arguments, axis) for axis in AXES if getattr(arguments, axis) is not None}


def shape_of(arguments: argparse.Namespace) -> LstmShape:
    """The shape that was given; raises `UsageError` for impossible sizes."""
    return LstmShape(**sizes_of(arguments))


def runtime_arguments(parser: argparse.ArgumentParser) -> None:
    """How the runtime is asked to run (`Options`), and how the trials are run (`Protocol`)."""
    options = parser.add_argument_group("runtime options")
    add = options.add_argument
    add("--precision", choices=PRECISIONS, default=Options.precision, help="precision (default %(default)s)")
    add(
        "--threads", type=int, default=Options.threads, metavar="K", help="threads, one core each (default %(default)s)"
    )
    add("--device", metavar="NAME", help="cpu or cuda (default: the first that the runtime supports)")
    add("--graph", action="store_true", help="launch a CUDA graph, on runtimes where that is optional")
    clocks = "also record device times: of the computation, or of the copies as well (default %(default)s)"
    add("--device-clocks", choices=DEVICE_CLOCKS, default=Options.device_clocks, help=clocks)
    protocol = parser.add_argument_group("protocol")
    add = protocol.add_argument
    add("--trials", type=int, metavar="N", help=f"timed trials (default {Protocol.trials})")
    tiers = ", ".join(f"{name} {trials}" for name, trials in TIERS.items())
    add("--tier", choices=TIERS, help=f"number of trials by name: {tiers}")
    warmup = "warm-up trials, stored and marked (default %(default)s)"
    add("--warmup", type=int, default=Protocol.warmup, metavar="N", help=warmup)
    arrival = "when calls begin: when the last returns, at a fixed period, or after a pause (default %(default)s)"
    add("--arrival", choices=ARRIVALS, default=Protocol.arrival, help=arrival)
    add("--period-us", type=float, metavar="US", help="period of periodic arrivals")
    wait = f"how periodic arrivals wait (default {WAITS['periodic'][0]}; sleep spins for the last 200 us)"
    add("--wait", choices=WAITS["periodic"], default=Protocol.wait, help=wait)
    add("--pause-ms", type=float, metavar="MS", help="idle time before each call of paused arrivals")
    seed = "seed of weights, inputs and order (default %(default)s)"
    add("--seed", type=int, default=Protocol.seed, metavar="N", help=seed)
    parser.add_argument("--time-limit", type=float, metavar="S", help="seconds that a configuration may take")


def sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """How several configurations are recorded, beside their protocol."""
    parser.add_argument("--retry-failed", action="store_true", help="try again what failed before")
    parser.add_argument("--quiet", action="store_true", help="no progress line")


def sweep_options(arguments: argparse.Namespace) -> dict:
    """The keyword arguments of `run_sweep` that were given, but for the seed."""
    return {
        "rounds": arguments.rounds,
        "time_limit_s": arguments.time_limit,
        "retry_failed": arguments.retry_failed,
        "show_progress": not arguments.quiet,
    }


def protocol_of(arguments: argparse.Namespace) -> Protocol:
    """The protocol that was given; raises `UsageError` where its parts do not go together."""
    return Protocol(**{**_given(arguments, Protocol), "trials": _trials(arguments)})


def options_of(arguments: argparse.Namespace) -> Options:
    """The options that were given."""
    return Options(**_given(arguments, Options))


def _given(arguments: argparse.Namespace, kind: type) -> dict:
    """The arguments that are fields of a dataclass."""
    return {field.name: getattr(arguments, field.name) for field in fields(kind) if hasattr(arguments, field.name)}


def _trials(arguments: argparse.Namespace) -> int:
    if arguments.tier is None:
        return Protocol.trials if arguments.trials is None else arguments.trials
    trials = TIERS[arguments.tier]
    if arguments.trials not in (None, trials):
        raise UsageError(f"--tier {arguments.tier} means {trials} trials, --trials says {arguments.trials}: give one")
    return trials


def table_arguments(parser: argparse.ArgumentParser, *, grouped: bool = True) -> None:
    """How a table from elsewhere is read: its column of times, and, where it is `grouped`, what its rows belong to."""
    group = parser.add_argument_group("tables recorded elsewhere")
    add = group.add_argument
    column = "column of the times (default: latency_ns, _us, _ms or _s, or the only one that states a unit)"
    add("--column", metavar="NAME", help=column)
    add("--unit", choices=UNIT_NS, help="unit of the times, where the column's name does not state it")
    rename = 'rename columns first, as in "Average time (s)=latency_s"; OLD= ignores a column'
    add("--rename", nargs="+", action="extend", default=[], metavar="OLD=NEW", help=rename)
    if not grouped:
        return
    add("--group-by", nargs="+", default=[], metavar="COLUMN", help="columns that tell configurations apart")
    add("--causes", nargs="+", metavar="COLUMN", help="columns with counts per trial that may explain the tail")
    add("--one-group", action="store_true", help="all rows belong to one configuration")


def load_runs(arguments: argparse.Namespace, path: Path) -> Runs:
    """The runs under a path, read as `table_arguments` ask."""
    names = ("column", "unit", "group_by", "causes", "one_group")
    return load(path, rename=renames(arguments.rename), **{name: getattr(arguments, name) for name in names})


def renames(given: Iterable[str]) -> dict[str, str]:
    """`["Num LSTM layers=layers"]` -> `{"Num LSTM layers": "layers"}`; raises `UsageError` without a `=`."""
    names: dict[str, str] = {}
    for text in given:
        old, equals, new = text.rpartition("=")
        if not equals or not old.strip():
            raise UsageError(f'--rename takes OLD=NEW, as in "Average time (s)=latency_s", not {text!r}')
        if names.setdefault(old.strip(), new.strip()) != new.strip():
            raise UsageError(f"--rename gives {old.strip()!r} two names")
    return names


def comparison_arguments(parser: argparse.ArgumentParser) -> None:
    """What counts as a difference, and how sure the answer is."""
    effect = "smallest relevant relative difference (default %(default)s)"
    parser.add_argument("--effect", type=float, default=EFFECT, metavar="E", help=effect)
    confidence_argument(parser, "confidence of each comparison")


def confidence_argument(parser: argparse.ArgumentParser, meaning: str) -> None:
    """The confidence of an answer."""
    parser.add_argument(
        "--confidence", type=float, default=DEFAULT_CONFIDENCE, metavar="C", help=f"{meaning} (default %(default)s)"
    )


def print_json(value: object) -> None:
    """A JSON answer on standard output."""
    print(json.dumps(value, indent=1, allow_nan=False))


def print_answer(answer: object, form: str, warnings: Iterable[str] = ()) -> None:
    """An answer as JSON (`as_dict`), CSV (`csv_text`), or text (`str`), on standard output; warnings before it."""
    warn(warnings)
    if form == "json":
        print_json(answer.as_dict())
    elif form == "csv":
        print(answer.csv_text(), end="")
    else:
        print(answer)


def print_progress(line: str) -> None:
    """A line about what is under way, on standard error: standard output may be read by a program."""
    print(line, file=sys.stderr, flush=True)


def warn(warnings: Iterable[str]) -> None:
    """Warnings, a line each, on standard error."""
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def print_files(paths: Iterable[Path]) -> None:
    """The names of figures, on standard error, and after the answer where both go to one file."""
    sys.stdout.flush()
    for path in paths:
        print(path, file=sys.stderr)


def stopped(given: Sequence[str], before: str = "") -> int:
    """Print the command that resumes, on standard error; returns the exit status of what Ctrl-C has ended."""
    print(f"stopped; {before}resume with: {shlex.join(['lstm-trt', *given])}", file=sys.stderr)
    return EXIT_STOPPED


def exit_status(report: Report) -> int:
    """Of a sweep that ran to its end: failed where it has no recording at all."""
    return 0 if report.recorded + report.done_before else EXIT_FAILED
