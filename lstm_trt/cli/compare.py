"""The command `compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lstm_trt.analysis import compare, text
from lstm_trt.analysis.pairing import pair
from lstm_trt.analysis.quantiles import check_confidence
from lstm_trt.cli.common import PATH_HELP, comparison_arguments, judgeable, print_json, read, table_arguments
from lstm_trt.store.runs import Runs
from lstm_trt.store.samples import Group

EXAMPLE = "lstm-trt compare before after\n  lstm-trt compare before.csv after.csv --column latency --unit us"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `compare`."""
    parser.add_argument("a", type=Path, metavar="A", help=PATH_HELP)
    parser.add_argument("b", type=Path, metavar="B", help="second recordings or table, compared with A")
    comparison_arguments(parser)
    table_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `compare`; returns the exit status."""
    check_confidence(arguments.confidence)
    a, b = read(arguments, arguments.a), read(arguments, arguments.b)
    for found in (a, b):
        judgeable(found)
    pairs = pair(a, b)
    answers, texts = [], []
    for shared, one, other in pairs.pairs:
        failure = one.failure or other.failure
        if failure is not None:
            side = a.source if one.failure else b.source
            answers.append({"group": shared, **_not_compared(f"{side}: {failure}")})
            texts.append(f"{one.name}: not compared: {side}: {failure}")
            continue
        comparison = compare.compare(one, other, arguments.effect, arguments.confidence)
        answers.append({"group": shared, **comparison.as_dict()})
        names = [_side(found, group, pairs.several) for found, group in ((a, one), (b, other))]
        names = ["A", "B"] if names[0] == names[1] else names
        texts.append(text.comparison_text(comparison, *names))
    for source, groups in ((a.source, pairs.only_a), (b.source, pairs.only_b)):
        for group in groups:
            answers.append({"group": group.group, **_not_compared(f"only in {source}")})
            texts.append(f"{group.name}: only in {source}")
    if arguments.format == "json":
        sides = {"a": {"source": a.source, **a.how}, "b": {"source": b.source, **b.how}}
        whole = [{**sides, **answer} for answer in answers]
        print_json(whole if pairs.several else {**whole[0], "group": {}})
        return 0
    for name, (of_a, of_b) in pairs.differ.items():
        print(f"{name}: {of_a} in A, {of_b} in B")
    print("\n\n".join(texts) if pairs.several else texts[0])
    return 0


def _side(found: Runs, group: Group, several: bool) -> str:
    return f"{group.name} in {found.source}" if several else found.source


def _not_compared(reason: str) -> dict:
    return {"median": None, "tail": None, "clusters_gone": [], "clusters_new": [], "reasons": [reason]}
