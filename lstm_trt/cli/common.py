"""Shared by several commands: arguments, the objects built from them, and printing.

Defaults and choices come from the dataclasses and constants of the package.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from lstm_trt import registry
from lstm_trt.cli.main import EXIT_STOPPED, show
from lstm_trt.config.configuration import TIERS, Options, Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.config.fields import about
from lstm_trt.config.format import (
    FIGURE_FORMATS,
    csv_text,
    decimal,
    frame_cells,
    markdown,
    warning_lines,
)

RUNTIME_HELP = "runtime; lstm-trt doctor lists them"


#: Most trials of `--until decided`.
UNDECIDED_TRIALS = 1_000_000


def field_arguments(
    parser: argparse._ActionsContainer, kind: type, several: Collection[str] = ()
) -> None:
    """Add the flags of a dataclass's fields, which are None if not given (`given`); those in
    `several` take a list.

    A flag that the parser has already stays as it is.
    """
    hints = get_type_hints(kind)
    for name, field in about(kind).items():
        if field.flag is None or field.flag in parser._option_string_actions:
            continue
        hint = hints[name]
        if hint is bool:
            const = not field.default
            parser.add_argument(
                field.flag, action="store_const", const=const, dest=name, help=field.help
            )
            continue
        if get_origin(hint) is tuple:
            parser.add_argument(
                field.flag,
                type=_named,
                action="append",
                metavar=field.unit.upper(),
                help=field.help,
            )
            continue
        number: Any = None
        metavar = "NAME"
        if int in (hint, *get_args(hint)):
            number = int
            metavar = "N"
        elif float in (hint, *get_args(hint)):
            number = float
            metavar = field.unit.upper()
        help = field.help
        if field.default is not None:
            help += f" (default {field.default})"
        parser.add_argument(
            field.flag,
            type=number,
            nargs="+" if name in several else None,
            choices=field.choices,
            metavar=None if field.choices else metavar,
            help=help,
        )


def pair(flag: str, form: str, text: str, empty: bool = False) -> tuple[str, str]:
    """Both sides of the last `=` in a value of a flag; the second may be `empty`. Raises
    `UsageError`."""
    name, equals, value = text.rpartition("=")
    if not equals or not name.strip() or not (empty or value.strip()):
        raise UsageError(f"{flag} takes {form}, not {text!r}")
    return name.strip(), value.strip()


def _named(text: str) -> tuple[str, str]:
    """Both sides of the first `=`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"needs NAME=COMMAND, not {text!r}")
    return name, value


def runtime_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the fields of `Options` and `Protocol`; with `several` a list of precisions."""
    options = parser.add_argument_group("runtime options")
    field_arguments(options, Options, several=["precision"] if several else ())
    options.add_argument(
        "--cores",
        type=_cores,
        metavar="LIST",
        help="cores to run on, one per thread, such as 2,3 or 0-3"
        " (default: the last that are allowed)",
    )
    protocol = parser.add_argument_group("protocol")
    also = ", or that a sweep ends with which configurations meet it" if several else ""
    deadline_argument(protocol, f"deadline of --until decided{also}")
    field_arguments(protocol, Protocol)
    protocol.add_argument(
        "--at-most",
        type=int,
        dest="trials",
        metavar="N",
        help=f"the same as --trials, for --until decided (default {UNDECIDED_TRIALS})",
    )
    tiers = ", ".join(f"{name} {trials}" for name, trials in TIERS.items())
    protocol.add_argument("--tier", choices=TIERS, help=f"predefined number of trials: {tiers}")
    parser.add_argument(
        "--time-limit", type=float, metavar="S", help="time limit per configuration in seconds"
    )


def _cores(text: str) -> tuple[int, ...]:
    """The cores of a list such as 2,3 or 0-3, each once."""
    from lstm_trt.machine.linux import cpu_list

    if not (cores := cpu_list(text)):
        raise argparse.ArgumentTypeError(
            f"needs numbers of cores, such as 2,3 or 0-3, not {text!r}"
        )
    return tuple(sorted(set(cores)))


def recording_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every command that records takes: --no-wait and --wait-limit set `lock_wait`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--no-wait",
        action="store_false",
        dest="lock_wait",
        help="stop if another recording uses the same cores, instead of waiting until it ends",
    )
    group.add_argument(
        "--wait-limit",
        type=float,
        dest="lock_wait",
        metavar="S",
        help="stop if it uses them for longer than this time in seconds (default no limit)",
    )


def protocol_of(arguments: argparse.Namespace, **defaults: Any) -> Protocol:
    """The given protocol, else `defaults`; raises `UsageError` if options contradict each other."""
    trials = trials_of(arguments) or (UNDECIDED_TRIALS if arguments.until else None)
    chosen: dict[str, Any] = {} if trials is None else {"trials": trials}
    return Protocol(**defaults | given(arguments, Protocol) | chosen)


def options_of(arguments: argparse.Namespace) -> Options:
    """The given options."""
    return Options(**given(arguments, Options))


def given(arguments: argparse.Namespace, kind: type) -> dict:
    """The given values of a dataclass's fields."""
    values = {field.name: getattr(arguments, field.name, None) for field in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


def trials_of(arguments: argparse.Namespace) -> int | None:
    """The given number of trials, None if there is none; raises `UsageError` if it is not that of
    the given tier."""
    if arguments.tier is None:
        return arguments.trials
    trials = TIERS[arguments.tier]
    if arguments.trials not in (None, trials):
        raise UsageError(
            f"--tier {arguments.tier} means {trials} trials, but --trials is {arguments.trials}:"
            " give one"
        )
    return trials


def deadline_argument(
    parser: argparse._ActionsContainer, meaning: str, *, required: bool = False
) -> None:
    """Add --deadline-us and --deadline-ms; both set `deadline_us`."""
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--deadline-us", type=float, metavar="US", help=meaning)
    group.add_argument(
        "--deadline-ms",
        type=_us_of_ms,
        dest="deadline_us",
        metavar="MS",
        help="the same deadline in milliseconds",
    )


def _us_of_ms(text: str) -> float:
    """Milliseconds to microseconds without rounding errors: 1.1 is 1100."""
    try:
        return float(1000 * Decimal(repr(float(decimal(text)))))
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid float value: {text!r}") from None


def print_json(value: Any) -> None:
    """Print a value as JSON to standard output."""
    print(json.dumps(value, indent=1, allow_nan=False))


def print_answer(answer: Any, form: str, warnings: Iterable[str] = ()) -> None:
    """Print warnings to standard error, then the answer: JSON (`as_dict`), CSV, Markdown, text."""
    warn(warnings)
    if form == "json":
        print_json(answer.as_dict())
    elif form == "csv":
        text = answer.csv_text() if hasattr(answer, "csv_text") else csv_text(answer.frame)
        print(text, end="")
    elif form == "md":
        print(markdown(*table_cells(answer)), end="")
    else:
        show(answer)


def table_cells(answer: Any) -> tuple[list[str], list[list[str]]]:
    """Header and rows, as text, of the table of an answer: those of its module of texts, else of
    its `frame`."""
    text = registry.find("TEXTS", type(answer).__name__)
    return text.cells(answer) if hasattr(text, "cells") else frame_cells(answer.frame)


def print_progress(line: str) -> None:
    """Print a progress line to standard error, since a program may read standard output."""
    show(line, sys.stderr)


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to standard error, a line per kind."""
    for line in warning_lines(warnings):
        show(line, sys.stderr)


def figure_arguments(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add --figures and --formats."""
    parser.add_argument("--figures", type=Path, metavar="DIR", help=meaning)
    parser.add_argument(
        "--formats",
        nargs="+",
        choices=FIGURE_FORMATS,
        default=["png"],
        help="file formats of the figures (default png)",
    )


def print_files(paths: Iterable[Path]) -> None:
    """Print the paths of figures to standard error, after everything on standard output."""
    sys.stdout.flush()
    for path in paths:
        print(path, file=sys.stderr)


def stopped(given: Sequence[str], before: str = "") -> int:
    """Print the command that resumes to standard error; returns the exit status after Ctrl-C."""
    show(f"stopped; {before}resume with:\n  {shlex.join(given)}", sys.stderr)
    return EXIT_STOPPED


def verdict_status(runs: Any, protocol: Protocol) -> int:
    """Print the verdicts on what was recorded until they are decided to standard error; returns
    their exit status.

    0 if no package has a verdict.
    """
    verdict = registry.find("API", "verdict")
    if verdict is None:
        return 0
    answers = verdict(runs, protocol.deadline_us or 0, protocol.percentile or 0)
    print_progress(str(answers))
    return answers.exit_status
