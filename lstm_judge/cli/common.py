"""Shared by the commands that judge: what is read, and the printing of answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lstm_judge import plots
from lstm_judge.read.labels import FIELDS
from lstm_judge.read.runs import COLUMNS, LATENCIES, Incomplete, Runs, load
from lstm_judge.read.tables import UNIT_NS
from lstm_judge.statistics.quantiles import DEFAULT_CONFIDENCE
from lstm_judge.verdict.text import names_text
from lstm_judge.verdict.verdict import provable
from lstm_trt.cli.common import pair, print_answer, print_files, warn
from lstm_trt.cli.main import show
from lstm_trt.config.errors import UsageError
from lstm_trt.config.shape import AXES, FIELDS as SIZES

PATH_HELP = (
    "recordings (file or folder), or a table of latencies (CSV, Parquet, JSON, .npy, plain text;"
    " also .gz), a folder of tables, or - for standard input"
)

#: Arguments of `table_arguments` for tables, as `load` takes them.
TABLE = ("column", "unit", "group_by", "causes", "one_group", "drop_missing", "counts")

#: Fields with a flag of their own where recordings are read.
SELECTED = ("runtime", *AXES[:4], "precision", "mode", "machine")


def path_argument(parser: argparse.ArgumentParser, meaning: str = PATH_HELP) -> None:
    """Add one or several paths of recordings or tables; `load_runs` reads them."""
    parser.add_argument(
        "path", type=Path, nargs="+", metavar="PATH", help=f"{meaning}; several are read together"
    )


def values(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The values of these arguments by their names."""
    return {name: getattr(arguments, name) for name in names}


def table_arguments(parser: argparse.ArgumentParser, *, grouped: bool = True) -> None:
    """Add the selection of what is read, and options for tables recorded elsewhere.

    `grouped` adds those that assign rows to configurations.
    """
    select = parser.add_argument_group(
        "selection of what is read (several values of a field are alternatives)"
    ).add_argument
    headings = {name: field.heading for name, field in {**SIZES, **FIELDS}.items()}
    for name in SELECTED:
        what = headings.get(name, "beginning of the fingerprint of the machine")
        select(f"--{name}", nargs="+", metavar="N" if name in AXES else "NAME", help=what)
    select(
        "--where",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="any field of a configuration, or a size of your own network; all of several must"
        " hold",
    )
    add = parser.add_argument_group("tables recorded elsewhere").add_argument
    add(
        "--column",
        metavar="NAME",
        help="column of the latencies, or its place from 1 (default: latency_ns, _us, _ms or _s, or"
        " the only one that states a unit)",
    )
    add(
        "--unit",
        choices=UNIT_NS,
        help="unit of the latencies, if the column's name does not state it",
    )
    add(
        "--rename",
        nargs="+",
        action="extend",
        default=[],
        metavar="OLD=NEW",
        help='rename columns first, for example "Average time (s)=latency_s"; OLD= ignores a'
        " column",
    )
    if not grouped:
        return
    add(
        "--group-by",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns that distinguish configurations (default of several tables: file, the name of"
        " the table)",
    )
    add(
        "--causes",
        nargs="+",
        metavar="COLUMN",
        help="columns with event counts per trial that may explain the tail",
    )
    add(
        "--one-group",
        action="store_true",
        help="treat all rows as one configuration, and each table as one round",
    )
    add(
        "--drop-missing",
        action="store_true",
        help="drop rows without a time, and state their number",
    )
    add(
        "--counts",
        metavar="COLUMN",
        help="column of a histogram with the number of calls in each bin",
    )


def load_runs(
    arguments: argparse.Namespace, path: Path | Sequence[Path], latencies: bool = False
) -> Runs:
    """Load the runs of paths with the options of `table_arguments`; of recordings all columns, or
    only `latencies`."""
    if arguments.counts and getattr(arguments, "figures", None):
        raise UsageError(
            "--figures shows each call, which the histogram of --counts does not have: omit one of"
            " them"
        )
    runs = load(
        path,
        rename=renames(arguments.rename),
        columns=LATENCIES if latencies else COLUMNS,
        **values(arguments, TABLE),
    )
    return runs.where(**selection(arguments))


def selection(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Name -> allowed values of the selection in `table_arguments`, as `Runs.where` takes them."""
    found = {name: given for name, given in values(arguments, SELECTED).items() if given}
    for text in arguments.where:
        name, value = pair("--where", "KEY=VALUE", text)
        if name in found:
            raise UsageError(f"--where gives {name!r} once more: one value of a field is possible")
        found[name] = [value]
    return found


def renames(given: Iterable[str]) -> dict[str, str]:
    """`["Num LSTM layers=layers"]` -> `{"Num LSTM layers": "layers"}`; raises `UsageError` without
    a `=`."""
    names: dict[str, str] = {}
    for text in given:
        old, new = pair(
            "--rename", 'OLD=NEW, for example "Average time (s)=latency_s"', text, empty=True
        )
        if names.setdefault(old, new) != new:
            raise UsageError(f"--rename gives {old!r} two names")
    return names


def percentiles_argument(parser: argparse.ArgumentParser) -> None:
    """Add --percentiles."""
    parser.add_argument(
        "--percentiles",
        nargs="+",
        default=[],
        metavar="P",
        help="percentiles to print, such as 50 99.9 99.99, instead of the usual ones",
    )


def confidence_argument(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add --confidence."""
    parser.add_argument(
        "--confidence",
        type=float,
        default=DEFAULT_CONFIDENCE,
        metavar="C",
        help=f"{meaning} (default %(default)s)",
    )


def print_answers(
    arguments: argparse.Namespace, answers: Any, figures: str = "", *shown: Any, **more: Any
) -> int:
    """Print answers with their warnings; with --figures also draw `shown` with the function
    `figures` of `plots`.

    Returns the exit status of the answers; 3 instead of 0 if recordings are missing from them.
    """
    print_answer(answers, arguments.format, answers.warnings)
    if figures and arguments.figures:
        print_files(
            getattr(plots, figures)(*shown, arguments.figures, formats=arguments.formats, **more)
        )
    return answers.exit_status or incomplete_status(answers.warnings)


def incomplete_status(warnings: Iterable[str]) -> int:
    """3 if recordings are missing from an answer, else 0."""
    return 3 if any(isinstance(warning, Incomplete) for warning in warnings) else 0


def conclude(runs: Any, deadline_us: float | None, form: str) -> None:
    """Print which configurations meet a deadline, if one is given; to standard error unless `form`
    is text."""
    answers = None if deadline_us is None else provable(runs, deadline_us)
    if answers:
        warn([text for text in answers.warnings if text not in runs.remarks])
        show(names_text(answers), sys.stdout if form == "text" else sys.stderr)
