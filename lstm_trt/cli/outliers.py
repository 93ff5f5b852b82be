"""The command `outliers`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lstm_trt.analysis import text
from lstm_trt.analysis.outliers import Outliers, examine, quick
from lstm_trt.cli.common import PATH_HELP, grouped, judgeable, print_files, print_json, read, table_arguments
from lstm_trt.plots.pages import draw_outliers
from lstm_trt.store.samples import Group

EXAMPLE = "lstm-trt outliers recordings\n  lstm-trt outliers times.csv --column latency_us --group-by hidden"

#: So many configurations are reported at full length; more of them get a line each.
AT_LENGTH = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `outliers`."""
    parser.add_argument("path", type=Path, help=PATH_HELP)
    figures = "draw the latency tail and the trials in order into this folder"
    parser.add_argument("--figures", type=Path, metavar="DIR", help=figures)
    table_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `outliers`; returns the exit status."""
    found = read(arguments, arguments.path)
    judgeable(found)
    short = len(found.groups) > AT_LENGTH and arguments.format != "json"
    look = quick if short and not arguments.figures else examine  # a page has causes and periods as well
    seen = [look(group.samples) if group.failure is None else None for group in found.groups]
    if arguments.format == "json":
        print_json(grouped(found, map(_as_dict, found.groups, seen)))
    else:
        texts = [_text(group, one, short) for group, one in zip(found.groups, seen, strict=True)]
        print(("\n" if short else "\n\n").join(texts))
    if arguments.figures:
        groups = [group for group in found.groups if group.failure is None]
        print_files(draw_outliers(groups, [one for one in seen if one is not None], arguments.figures))
    return 0


def _text(group: Group, seen: Outliers | None, short: bool) -> str:
    if seen is None:
        return f"{group.name}: {group.failure}"
    if not short:
        return text.outliers_text(seen, group.name)
    clusters = text.clusters_line(seen.clusters)
    return f"{group.name}: {seen.outliers} outliers in {seen.n}, clusters {clusters}, {seen.steady_state}"


def _as_dict(group: Group, seen: Outliers | None) -> dict:
    if seen is not None:
        return seen.as_dict()
    return {"n": 0, "outliers": None, "clusters": [], "segments": [], "failure": group.failure}
