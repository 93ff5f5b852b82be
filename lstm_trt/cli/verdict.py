"""The command `verdict`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from lstm_trt.analysis import deadline, text
from lstm_trt.cli.common import (
    PATH_HELP,
    confidence_argument,
    grouped,
    judgeable,
    print_files,
    print_json,
    read,
    table_arguments,
    warn,
)
from lstm_trt.plots.pages import draw_verdicts
from lstm_trt.store.runs import Runs

EXAMPLE = (
    "lstm-trt verdict recordings --deadline-us 1000 --percentile 99.9 --confidence 0.95\n"
    "  lstm-trt verdict times.csv --column latency --unit us --deadline-us 1000\n"
    "exit status: 0 MET, 1 MISSED, 3 NOT ENOUGH EVIDENCE, 2 an error in the input"
)

#: A median so many times the deadline, or such a part of it, looks like a wrong unit.
FAR_ABOVE, FAR_BELOW = 100, 2e-3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `verdict`."""
    add = parser.add_argument
    add("path", type=Path, help=PATH_HELP)
    add("--deadline-us", type=float, required=True, metavar="US", help="deadline; a longer latency is a miss")
    percentile = "percentile that must meet the deadline (default %(default)s)"
    add("--percentile", default="99.9", metavar="P", help=percentile)
    confidence_argument(parser, "confidence of the verdict")
    add("--figures", type=Path, metavar="DIR", help="draw a page for a review into this folder")
    table_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `verdict`; returns 0 MET, 1 MISSED, 3 NOT ENOUGH EVIDENCE: the worst of several, MISSED first."""
    asked = (arguments.deadline_us, arguments.percentile, arguments.confidence)
    deadline.failed("nothing read yet", *asked)  # refuses what is out of range before a long reading
    found = read(arguments, arguments.path)
    judgeable(found)
    verdicts = [
        deadline.judge(group.samples, *asked) if group.failure is None else deadline.failed(group.failure, *asked)
        for group in found.groups
    ]
    if not (found.own or any("right unit" in warning for warning in found.warnings)):
        warn(_far_from(found, arguments.deadline_us))
    if arguments.format == "json":
        print_json(grouped(found, (one.as_dict() for one in verdicts)))
    elif len(verdicts) == 1:
        print(text.verdict_text(verdicts[0], found.groups[0].name))
    else:
        names = [one.verdict for one in verdicts]
        for one, group in zip(verdicts, found.groups, strict=True):
            print(text.verdict_line(one, group.name))
        counts = [f"{names.count(name)} {name}" for name in deadline.EXIT if name in names]
        print(f"{len(names)} configurations: {', '.join(counts)}")
    if arguments.figures:
        print_files(draw_verdicts(found.groups, verdicts, arguments.figures))
    return deadline.exit_status(one.verdict for one in verdicts)


def _far_from(found: Runs, deadline_us: float) -> list[str]:
    """A warning where a median is so far from the deadline that one of the two has another unit."""
    for group in found.groups:
        ratio = float(np.median(np.concatenate([sample.timed_ns for sample in group.samples]))) / 1e3 / deadline_us
        if not FAR_BELOW <= ratio <= FAR_ABOVE:
            unit = found.how["unit"]
            return [f"the median of {group.name} is {ratio:.3g} times the deadline: is {unit} the right unit?"]
    return []
