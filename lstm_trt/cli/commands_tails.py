"""The commands `verdict`, `outliers`, `summarize`, `compare` and `replay`: arguments, calls and printing.

All of them read recordings of this lab and tables from elsewhere (`samples_tables.py`). Each has
a function that adds its arguments to a parser and one that runs it and returns the exit status.
Importing this loads nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lstm_trt.cli.common import (
    PATH_HELP,
    draw_recordings,
    grouped,
    judgeable,
    options,
    print_json,
    read,
    reading_arguments,
    tell_files,
    warn,
)
from lstm_trt.config.errors import UsageError

if TYPE_CHECKING:
    from lstm_trt.analysis.outliers import Outliers
    from lstm_trt.store.runs import Runs
    from lstm_trt.store.samples import Group


VERDICT_SUMMARY = "whether a percentile of the latency meets a deadline, and how sure that is"

VERDICT_EXAMPLE = (
    "lstm-trt verdict recordings --deadline-us 1000 --percentile 99.9 --confidence 0.95\n"
    "  lstm-trt verdict times.csv --column latency --unit us --deadline-us 1000\n"
    "exit status: 0 MET, 1 MISSED, 3 NOT ENOUGH EVIDENCE, 2 a mistake in the input"
)

OUTLIERS_SUMMARY = "the late answers: how many, in which clusters, how often, and what coincides with them"

OUTLIERS_EXAMPLE = "lstm-trt outliers recordings\n  lstm-trt outliers times.csv --column latency_us --group-by hidden"

SUMMARIZE_SUMMARY = "one row a configuration: n, max, percentiles with exact intervals, outliers, clusters"

SUMMARIZE_FORMATS = ("table", "csv", "json")

SUMMARIZE_EXAMPLE = (
    "lstm-trt summarize recordings --format csv > summary.csv\n"
    "  lstm-trt summarize times.csv --column latency --unit ms --group-by runtime hidden"
)

COMPARE_SUMMARY = "whether B is faster than A, slower, or the same: by median and tail, and by clusters"

COMPARE_EXAMPLE = "lstm-trt compare before after\n  lstm-trt compare before.csv after.csv --column latency --unit us"

REPLAY_SUMMARY = "what a closed-loop recording would have cost at a fixed rate"

REPLAY_EXAMPLE = "lstm-trt replay recordings --period-us 1000 --deadline-us 1000"


#: So many configurations are told at full length; more of them get a line each.
AT_LENGTH = 8

#: A median so many times the deadline, or such a part of it, looks like a wrong unit.
FAR_ABOVE, FAR_BELOW = 100, 2e-3


def verdict_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `verdict`."""
    parser.add_argument("path", type=Path, help=PATH_HELP)
    parser.add_argument("--deadline-us", type=float, required=True, metavar="US", help="a later answer is a miss")
    parser.add_argument("--percentile", default="99.9", metavar="P", help="that must meet it (default 99.9)")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="C", help="of the verdict (default 0.95)")
    parser.add_argument("--figures", type=Path, default=None, metavar="DIR", help="draw a page for a review there")
    reading_arguments(parser)


def verdict(arguments: argparse.Namespace) -> int:
    """Run `verdict`; returns 0 MET, 1 MISSED, 3 NOT ENOUGH EVIDENCE: the worst of several, MISSED first."""
    from lstm_trt.analysis import deadline, text
    from lstm_trt.plots.pages import draw_verdicts

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
        tell_files(draw_verdicts(found.groups, verdicts, arguments.figures))
    return deadline.exit_status(one.verdict for one in verdicts)


def _far_from(found: Runs, deadline_us: float) -> list[str]:
    """A warning where a median is so far from the deadline that one of the two has another unit."""
    import numpy as np

    for group in found.groups:
        ratio = float(np.median(np.concatenate([sample.timed_ns for sample in group.samples]))) / 1e3 / deadline_us
        if not FAR_BELOW <= ratio <= FAR_ABOVE:
            return [
                f"the median of {group.name} is {ratio:.3g} times the deadline: is {found.how['unit']} the right unit?"
            ]
    return []


def outliers_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `outliers`."""
    parser.add_argument("path", type=Path, help=PATH_HELP)
    parser.add_argument("--figures", type=Path, default=None, metavar="DIR", help="draw tails and trials there")
    reading_arguments(parser)


def outliers(arguments: argparse.Namespace) -> int:
    """Run `outliers`; returns the exit status."""
    from lstm_trt.analysis.outliers import examine, quick
    from lstm_trt.plots.pages import draw_outliers

    found = read(arguments, arguments.path)
    judgeable(found)
    short = len(found.groups) > AT_LENGTH and arguments.format != "json"
    look = quick if short and not arguments.figures else examine  # a page tells causes and periods as well
    seen = [look(group.samples) if group.failure is None else None for group in found.groups]
    if arguments.format == "json":
        print_json(grouped(found, map(_outliers_dict, found.groups, seen)))
    else:
        told = [_outliers_words(group, one, short) for group, one in zip(found.groups, seen, strict=True)]
        print(("\n" if short else "\n\n").join(told))
    if arguments.figures:
        groups = [group for group in found.groups if group.failure is None]
        tell_files(draw_outliers(groups, [one for one in seen if one is not None], arguments.figures))
    return 0


def _outliers_words(group: Group, seen: Outliers | None, short: bool) -> str:
    from lstm_trt.analysis import text

    if seen is None:
        return f"{group.name}: {group.failure}"
    if not short:
        return text.outliers_text(seen, group.name)
    clusters = text.clusters_line(seen.clusters)
    return f"{group.name}: {seen.outliers} outliers in {seen.n}, clusters {clusters}, {seen.steady_state}"


def _outliers_dict(group: Group, seen: Outliers | None) -> dict:
    if seen is not None:
        return seen.as_dict()
    return {"n": 0, "outliers": None, "clusters": [], "segments": [], "failure": group.failure}


def summarize_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `summarize`."""
    parser.add_argument("path", type=Path, help=PATH_HELP)
    parser.add_argument("--by-round", action="store_true", help="a row for each round")
    parser.add_argument("--figures", type=Path, default=None, metavar="DIR", help="draw the figures there as well")
    parser.add_argument("--deadline-us", type=float, default=None, metavar="US", help="drawn into the figures")
    reading_arguments(parser)


def summarize(arguments: argparse.Namespace) -> int:
    """Run `summarize`; returns the exit status."""
    from lstm_trt.analysis import summary
    from lstm_trt.analysis.tables import text_table
    from lstm_trt.store import folders
    from lstm_trt.store.foreign import read_foreign

    found = read_foreign(arguments.path, **options(arguments))
    if found is not None:
        if arguments.figures:
            raise UsageError(f"--figures draws recordings of this lab, and {arguments.path} is a table: leave it out")
        warn(found.warnings)
        rows = summary.summarize_groups(found.groups, arguments.by_round)
    else:
        rows = summary.summarize(folders.read_many(arguments.path), arguments.by_round)
    if arguments.format == "json":
        print_json([row.as_dict() for row in rows])
    elif arguments.format == "csv":
        import csv

        writer = csv.DictWriter(sys.stdout, summary.FIELDS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(name, value) for name, value in row.as_dict().items()})
    else:
        print(text_table(rows))
    if arguments.figures:
        draw_recordings(arguments.path, arguments.figures, arguments.deadline_us)
    return 0


def _cell(name: str, value: object) -> object:
    """A CSV cell: lists of rounds with spaces between, other structures as JSON."""
    if name.endswith("_rounds"):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `compare`."""
    parser.add_argument("a", type=Path, help=PATH_HELP)
    parser.add_argument("b", type=Path, help="the same: told against A")
    parser.add_argument("--effect", type=float, default=0.02, metavar="E", help="what matters (default 0.02: 2 %%)")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="C", help="of the answer (default 0.95)")
    reading_arguments(parser)


def compare(arguments: argparse.Namespace) -> int:
    """Run `compare`; returns the exit status."""
    from lstm_trt.analysis import compare as analysis_compare
    from lstm_trt.analysis import text
    from lstm_trt.analysis.pairing import pair
    from lstm_trt.analysis.quantiles import check_confidence

    check_confidence(arguments.confidence)
    a, b = read(arguments, arguments.a), read(arguments, arguments.b)
    for found in (a, b):
        judgeable(found)
    pairs = pair(a, b)
    answers, words = [], []
    for shared, one, other in pairs.pairs:
        failure = one.failure or other.failure
        if failure is not None:
            side = a.source if one.failure else b.source
            answers.append({"group": shared, **_not_compared(f"{side}: {failure}")})
            words.append(f"{one.name}: not compared: {side}: {failure}")
            continue
        told = analysis_compare.compare(one, other, arguments.effect, arguments.confidence)
        answers.append({"group": shared, **told.as_dict()})
        names = [_side(found, group, pairs.several) for found, group in ((a, one), (b, other))]
        names = ["A", "B"] if names[0] == names[1] else names
        words.append(text.comparison_text(told, *names))
    for source, groups in ((a.source, pairs.only_a), (b.source, pairs.only_b)):
        for group in groups:
            answers.append({"group": group.group, **_not_compared(f"only in {source}")})
            words.append(f"{group.name}: only in {source}")
    if arguments.format == "json":
        sides = {"a": {"source": a.source, **a.how}, "b": {"source": b.source, **b.how}}
        whole = [{**sides, **answer} for answer in answers]
        print_json(whole if pairs.several else {**whole[0], "group": {}})
        return 0
    for name, (of_a, of_b) in pairs.differ.items():
        print(f"{name}: {of_a} in A, {of_b} in B")
    print("\n\n".join(words) if pairs.several else words[0])
    return 0


def _side(found: Runs, group: Group, several: bool) -> str:
    return f"{group.name} in {found.source}" if several else found.source


def _not_compared(reason: str) -> dict:
    return {"median": None, "tail": None, "clusters_gone": [], "clusters_new": [], "reasons": [reason]}


def replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `replay`."""
    parser.add_argument("path", type=Path, help=PATH_HELP)
    parser.add_argument("--period-us", type=float, required=True, metavar="US", help="a call is due every so often")
    parser.add_argument(
        "--deadline-us", type=float, default=None, metavar="US", help="from when a call was due (default: the period)"
    )
    reading_arguments(parser)


def replay(arguments: argparse.Namespace) -> int:
    """Run `replay`; returns the exit status."""
    from lstm_trt.analysis import text
    from lstm_trt.analysis.replay import replay

    found = read(arguments, arguments.path)
    judgeable(found)
    answers, words = [], []
    for group in found.groups:
        try:
            if group.failure is not None:
                raise UsageError(group.failure)
            told = replay(group, arguments.period_us, arguments.deadline_us)
        except UsageError as error:
            if len(found.groups) == 1:
                raise
            answers.append({"n": group.n, "failure": str(error)})
            words.append(f"{group.name}: {error}")
            continue
        answers.append(told.as_dict())
        words.append(text.replay_text(told, group.name))
    if all("failure" in answer for answer in answers):
        raise UsageError(answers[0]["failure"])
    print_json(grouped(found, answers)) if arguments.format == "json" else print("\n\n".join(words))
    return 0
