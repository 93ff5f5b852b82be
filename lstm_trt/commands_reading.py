"""What the commands that judge latencies share: how tables from elsewhere are read, and how answers are grouped.

Importing this loads nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from lstm_trt.commands_telling import warn
from lstm_trt.errors import UsageError

if TYPE_CHECKING:
    from lstm_trt.samples_tables import Read

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


def read(arguments: argparse.Namespace, path: Path) -> Read:
    """The groups under a path; warnings go to standard error."""
    from lstm_trt.samples_tables import read_groups

    found = read_groups(path, **options(arguments))
    warn(found.warnings)
    return found


def options(arguments: argparse.Namespace) -> dict:
    """The options of `reading_arguments`, as `read_groups` takes them."""
    return {name: getattr(arguments, name) for name in ("column", "unit", "group_by", "causes", "one_group")}


def judgeable(found: Read) -> None:
    """Raise `UsageError` where a configuration has one trial: nothing can be said of it."""
    for group in found.groups:
        if group.failure is None and group.n < 2:
            few = f"{group.n or 'no'} trial{'s' * (group.n == 0)} after warm-up"
            raise UsageError(f"{found.source}: {group.name} has {few}, at least 2 are needed")


def grouped(found: Read, dicts: Iterable[dict]) -> dict | list[dict]:
    """The JSON answer: an object, or a list of them where groups are told apart."""
    told = [
        {"group": group.group, "name": group.name, **found.how, "warnings": list(found.warnings), **one}
        for group, one in zip(found.groups, dicts, strict=True)
    ]
    return told if found.grouped else told[0]
